"""What is promised of rows: against its definition, by simulation, and through a fit to the page."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, binom

from bidro import (
    BidroError,
    Certificate,
    RobustClassifier,
    RobustRegressor,
    certify_predictions,
    example_visits,
)
from bidro.certify.intervals import confident_rank
from bidro.certify.rounding import decimals_up
from bidro.certify.row_promise import RowPromise, row_promise


def test_the_bound_is_the_largest_order_statistic_of_the_clients_with_enough_rows():
    rng = np.random.default_rng(0)
    errors = {name: np.abs(rng.normal(size=n)) for name, n in (("a", 200), ("b", 40), ("c", 12), ("d", 20))}
    found = row_promise(errors, 0.95)
    assert found.needed == 29  # 0.9^29 < 0.05
    by_hand = {n: np.sort(errors[n])[confident_rank(len(errors[n]), 0.1, 0.95) - 1] for n in ("a", "b")}
    for name, exact in by_hand.items():
        assert exact <= found.clients[name] <= exact * 1.01
    assert found.bound == max(found.clients.values())
    assert found.others == ("c", "d")
    both = np.sort(np.concatenate([errors["c"], errors["d"]]))
    assert both[confident_rank(32, 0.1, 0.95) - 1] <= found.together
    assert "2 clients with at least 29 held-out rows" in found.in_words("days")
    assert "'c', 'd'" in found.in_words("days")


def test_nothing_is_promised_where_all_together_are_too_few():
    found = row_promise({"a": np.arange(5.0), "b": np.arange(6.0)})
    assert (found.bound, found.together) == (None, None)
    assert found.promise.startswith(
        "Nothing is promised: no client has the 29 held-out rows that this takes."
    )
    both = row_promise({"a": np.arange(20.0), "b": np.arange(20.0)})
    words = both.in_words("days")
    assert words.startswith("With 95% confidence, at least 90% of new rows lie within")
    assert "in the mix of clients of the held-out rows. Nothing is promised of a client by itself" in words
    lent = row_promise({"a": np.arange(5.0), "b": np.arange(60.0)})
    assert lent.bound == 58.0
    assert lent.group == ("a", "b")
    assert "with rows of larger clients" in lent.promise


def test_mistakes_have_the_exact_bound_of_a_share():
    wrong = {"a": np.repeat([0.0, 1.0], [95, 5]), "b": np.repeat([0.0, 1.0], [38, 2])}
    found = row_promise(wrong, 0.9, None, guess={name: 1 - own for name, own in wrong.items()})
    for name, n, k in (("a", 100, 5), ("b", 40, 2)):
        exact = beta.ppf(0.9, k + 1, n - k)
        assert binom.cdf(k, n, exact) == pytest.approx(0.1)
        assert exact <= found.clients[name] <= exact + 0.001
    assert "in a hundred new rows are predicted wrongly" in found.in_words()
    assert found.guess > 0.9


@pytest.mark.parametrize("bound", [1e-300, 1.0, 1.0000000001, 0.999, 12.34, 1234567.0, 2.675, 1e9 / 3])
def test_what_is_shown_is_not_below_the_bound(bound):
    shown = decimals_up(bound, 3)
    assert bound <= shown <= bound * 1.0101
    assert float(f"{shown:.3g}") == shown


def _rate(holds: list[bool]) -> tuple[float, float]:
    return float(np.mean(holds)), math.sqrt(0.1 * 0.9 / len(holds))


@pytest.mark.parametrize("order", ["as drawn", "sorted"])
@pytest.mark.parametrize("people", [False, True])
def test_the_confidence_holds_under_the_worst_mixture_and_for_the_group(order, people):
    """Clients of different spreads, two of them small: whether the true share of rows within the bound is at
    least 9 of 10 at every client with enough (so under any mixture), and for the others together."""
    rng = np.random.default_rng(1)
    # People have several rows each, and their bound, by betting, needs more of them.
    sizes = {"a": 60, "b": 35, "c": 25, "d": 12} if not people else {"a": 90, "b": 60, "c": 25, "d": 30}
    scale = {"a": 1.0, "b": 1.1, "c": 2.0, "d": 0.7}
    alone, group = [], []
    for _ in range(150 if people else 1500):
        errors, labels = {}, {}
        for name, n in sizes.items():
            rows = rng.integers(1, 5, n) if people else np.ones(n, int)
            own = np.repeat(rng.exponential(size=n), rows) if people else rng.exponential(size=n)
            errors[name] = scale[name] * (np.sort(own) if order == "sorted" and not people else own)
            labels[name] = np.repeat(np.arange(n), rows)
        found = row_promise(errors, 0.9, people=labels if people else None)
        if found.bound is not None:
            alone.append(min(1 - math.exp(-found.bound / scale[n]) for n in found.clients) >= 0.9)
        if found.together is not None:
            part = [sizes[name] for name in found.group]
            inside = [1 - math.exp(-found.together / scale[name]) for name in found.group]
            group.append(np.average(inside, weights=part) >= 0.9)
    assert alone
    for held in (alone, group):
        if held:
            rate, error = _rate(held)
            assert rate >= 0.9 - 3 * error


def test_mistakes_of_clients_that_differ_are_bounded_together():
    rng = np.random.default_rng(2)
    chances, held = {"a": 0.0, "b": 0.6, "c": 0.05}, []
    for _ in range(2000):
        wrong = {name: (rng.uniform(size=20) < p).astype(float) for name, p in chances.items()}
        held.append(row_promise(wrong, 0.9, None).together >= np.mean([*chances.values()]))
    assert np.mean(held) >= 0.9 - 3 * _rate(held)[1]


def test_order_and_copies_of_labels_do_not_matter():
    rng = np.random.default_rng(3)
    errors, labels = rng.exponential(size=200), rng.integers(0, 90, 200)
    some = rng.permutation(200)
    one = row_promise({"a": errors}, people={"a": labels})
    other = row_promise({"a": errors[some]}, people={"a": labels[some] + 7})
    assert one.clients == other.clients
    assert one.people
    assert "random rows of new people" in one.promise


def test_it_is_kept_in_a_certificate_and_a_false_word_is_refused():
    y = np.random.default_rng(4).normal(size=400)
    clients = np.repeat(["a", "b"], [380, 20])
    found = certify_predictions(y, 0 * y, clients=clients, largest=100.0)
    assert found.of_rows.bound >= 1.5
    assert found.of_rows.group == ("b", "a")
    again = Certificate.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert "at least 90% of new rows lie within" in str(again)
    content = json.loads(found.to_json())
    content["of_rows"]["bound"] = 0.1
    with pytest.raises(BidroError, match="damaged"):
        Certificate.from_json(json.dumps(content))
    del content["of_rows"]
    assert Certificate.from_json(json.dumps(content)).of_rows is None


def test_estimators_promise_of_the_models_that_clients_use():
    table, fresh = example_visits(), example_visits(5)
    X, new = (t.select_dtypes("number").drop(columns="stay") for t in (table, fresh))
    model = RobustRegressor(curves=None).fit(X, table["stay"], clients=table["hospital"])
    found = model.certify(new, fresh["stay"], clients=fresh["hospital"]).of_rows
    error = np.abs(fresh["stay"] - model.predict(new, clients=fresh["hospital"]))
    inside = (error <= found.bound).groupby(fresh["hospital"]).mean()
    assert found.personal
    assert inside.min() >= 0.9
    classes = RobustClassifier(curves=None).fit(X, table["stay"] > 5, clients=table["hospital"])
    of_classes = classes.certify(new, fresh["stay"] > 5, clients=fresh["hospital"]).of_rows
    wrong = pd.Series(classes.predict(new, clients=fresh["hospital"]) != (fresh["stay"] > 5))
    assert of_classes.share is None
    assert of_classes.bound >= wrong.groupby(fresh["hospital"].to_numpy()).mean().max()


def test_bad_input_is_refused():
    with pytest.raises(BidroError, match="strictly between 0 and 1"):
        row_promise({"a": [1.0] * 40}, 95)
    with pytest.raises(BidroError, match="one number a row"):
        row_promise({"a": [float("nan")] * 40})
    with pytest.raises((ValueError, TypeError, KeyError)):
        RowPromise.restored({"promise": "all is well"})
