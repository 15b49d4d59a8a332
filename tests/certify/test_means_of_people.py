"""Where several rows are of one person: statements say that they are means of people, and beside them stands
the mean of rows, bounded only where a largest number of rows a person is declared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bidro import Certificate, certify_predictions, held_out_bound
from bidro.certify.mean_bounds import betting_ratio
from bidro.core.errors import BidroError
from bidro.workflow.page_content import plain_promise

# 400 people with one row each, all right; 20 with 200 rows each, all wrong.
PEOPLE = np.append(np.arange(400), np.repeat(np.arange(400, 420), 200))
RIGHT = np.append(np.ones(400, int), np.zeros(4000, int))


def stated(**options):
    return certify_predictions(np.ones(len(RIGHT), int), RIGHT, loss="mistakes", people=PEOPLE, **options)


def test_a_share_of_people_is_not_said_of_predictions():
    found = stated()
    held = found.mistakes
    assert held.bound < 0.09
    assert held.over_rows.means == {"all": pytest.approx(4000 / 4400)}
    assert (held.over_rows.bound, held.over_rows.most) == (None, None)
    line = next(line for line in str(found).splitlines() if "Mistakes" in line)
    assert "as a mean of people (of rows up to 90.91% observed, not bounded)" in line
    assert "fresh people" in str(found)
    assert "share of mistakes of this model on new people (a mean of people, not of rows)" in held.promise
    assert "As a mean of rows" in held.promise
    assert "0.909091 at 'all'" in held.promise
    assert "observed and not bounded" in held.promise
    page = plain_promise(found, None, False)
    assert page["people"] is True
    assert page["over_rows"] == {"observed": pytest.approx(400 / 4400), "bound": None}


def test_with_a_declared_number_of_rows_the_mean_of_rows_is_bounded():
    found = stated(rows_per_person=200)
    held = found.mistakes
    assert 4000 / 4400 < held.over_rows.bound < 1
    assert held.over_rows.clients == {"all": held.over_rows.bound}
    assert f"at most {held.over_rows.bound:.6g} with that confidence by itself" in held.promise
    assert "nobody has more than 200 rows" in held.promise
    assert f"of rows at most {held.over_rows.bound:.2%}" in str(found)
    again = Certificate.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert again.mistakes.over_rows.most == 200


def test_where_rows_are_drawn_nothing_changes():
    found = certify_predictions(np.ones(len(RIGHT), int), RIGHT, loss="mistakes")
    assert found.mistakes.over_rows is None
    assert "over_rows" not in found.to_json()
    assert "people" not in str(found)


def test_a_difference_of_two_models_is_one_of_people_too():
    found = stated(against=1 - RIGHT, rows_per_person=200).against
    assert found.better
    assert found.over_rows.means["all"] == pytest.approx((4000 - 400) / 4400)
    assert found.over_rows.bound > found.over_rows.means["all"]
    assert "on new people (a mean of people, not of rows)" in found.promise
    assert "As a mean of rows" in found.promise


@pytest.mark.parametrize(
    ("most", "what"),
    [
        (199, "has 200 rows, and 199 were declared .* one read off them would void the bound"),
        (0, "whole number from 1"),
        (2.5, "whole number from 1"),
    ],
)
def test_a_number_of_rows_that_does_not_hold_is_refused(most, what):
    with pytest.raises(BidroError, match=what):
        stated(rows_per_person=most)


def test_a_number_of_rows_needs_people():
    with pytest.raises(BidroError, match="needs `people`"):
        held_out_bound({"a": [0.1, 0.2]}, largest=1.0, rows_per_person=3)


@pytest.mark.parametrize("most", [6, 30])
def test_the_bound_of_the_mean_of_rows_covers_it(most):
    """People with more rows have larger losses, so that the mean of people is far below that of rows."""
    rng, repetitions, confidence, n = np.random.default_rng(5), 400, 0.9, 60
    sizes = np.array([1, 2, 6])
    chances, wrong = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.8])
    truth = float(chances @ (sizes * wrong) / (chances @ sizes))
    held, widths = 0, []
    for _ in range(repetitions):
        kind = rng.choice(3, n, p=chances)
        sums = rng.binomial(sizes[kind], wrong[kind]).astype(float)
        bound = betting_ratio(sums, sizes[kind].astype(float), most, 1 - confidence)
        held += bound >= truth
        widths.append(bound)
    assert held / repetitions >= confidence - 3 * math.sqrt(confidence * (1 - confidence) / repetitions)
    # It says something: far from 1.
    assert np.mean(widths) < 0.5 * (1 + truth)


def test_of_one_row_each_the_ratio_is_the_mean():
    """With one row a person, declared so, it is the betting bound of the rows."""
    losses = np.random.default_rng(3).beta(1, 4, 80)
    found = held_out_bound({"a": losses}, 0.9, 1.0, people={"a": np.arange(80)}, rows_per_person=1)
    assert found.over_rows.bound == pytest.approx(found.bound, abs=1e-8)
