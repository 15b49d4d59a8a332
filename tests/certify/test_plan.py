"""Plans by hand: the width of an interval, the radius that reaches it, and what twice a client's rows do."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.certify import out_of_sample_interval, plan_sample_size
from bidro.certify.coverage import failure_probabilities
from bidro.certify.out_of_sample import cloud_distances
from bidro.certify.plan import SampleSizePlan, rows_for_radius
from bidro.certify.radius import explicit_rule
from bidro.core.errors import BidroError
from bidro.core.sets import CappedSimplex
from bidro.problem.worst_case import robust_risk
from tests.certify.test_certificate import X, problem

CAPPED = CappedSimplex(np.zeros(2), np.array([0.6, 0.7]))


@pytest.mark.parametrize("mixtures", [None, CAPPED], ids=["simplex", "capped"])
@pytest.mark.parametrize("delta", [None, 0.2, 0.0])
def test_a_width_by_hand(mixtures, delta):
    """2 L sum alpha_i eps_i + L delta diam_1(A) / 2, diam_1 being 2 for the simplex and 1.3 for the caps."""
    whole = problem(mixtures=mixtures)
    rule = explicit_rule(whole.federation, whole.transport)
    sizes, share = np.array(whole.federation.sizes), 1.0 if mixtures is None else 0.65
    beta = failure_probabilities(0.9, whole.federation.sizes, rule)[0]
    interval = out_of_sample_interval(whole, X, 0.9, delta)
    between = cloud_distances(whole)[0, 1]

    def width(radii, risks):
        worse = int(np.argmax(risks))
        alpha = np.zeros(2)
        alpha[worse] = 1.0 if mixtures is None else CAPPED.upper[worse]
        alpha[1 - worse] = 1 - alpha[worse]
        apart = min(between + radii.sum(), rule.diameter) if delta is None else delta
        return interval.lipschitz * (2 * alpha @ radii + apart * share)

    now = np.array([rule.radius(size, beta) for size in sizes])
    fewer = np.array([rule.radius(2 * size, beta) for size in sizes])
    risks, better = (
        np.asarray(robust_risk(replace(whole, ambiguity=WassersteinBall(radii)), X, curvature=False).value)
        for radii in (now, fewer)
    )
    then = [
        width(np.where(np.arange(2) == i, fewer, now), np.where(np.arange(2) == i, better, risks))
        for i in range(2)
    ]
    # A width that half of today's radii would have: below the diameter, so that delta grows with them.
    wanted = width(now / 8, risks)
    found = plan_sample_size(whole, X, width=wanted, confidence=0.9, delta=delta)
    assert (found.target, found.wanted) == ("width", wanted)
    assert found.now == pytest.approx(width(now, risks), rel=1e-9)
    assert found.best == whole.federation.names[int(np.argmin(then))]
    assert found.then == pytest.approx(min(then), rel=1e-9)
    common = (wanted / interval.lipschitz - share * (delta or 0.0)) / 2
    if delta is None:
        common = (wanted / interval.lipschitz - share * between) / (2 + 2 * share)
        assert between + 2 * common < rule.diameter
    assert found.radius == pytest.approx(common, rel=1e-9)
    fewest = rows_for_radius(rule, common, beta)
    assert found.rows == {"north": 40, "south": 150}
    assert found.needed == {"north": max(40, fewest), "south": max(150, fewest)}


def test_a_width_that_all_radii_have_and_one_that_none_has():
    whole = problem()
    diameter = explicit_rule(whole.federation, whole.transport).diameter
    wide = plan_sample_size(whole, X, width=1e6, confidence=0.9, delta=0.2)
    assert wide.radius == pytest.approx(diameter)
    assert wide.needed == wide.rows
    never = plan_sample_size(whole, X, width=1e-3, confidence=0.9, delta=0.2)
    assert np.isnan(never.radius)
    # Known to be alike, any width is a question of rows.
    assert plan_sample_size(whole, X, width=1e-3, confidence=0.9, delta=0.0).radius > 0


def test_the_advice_counts_the_rows_that_are_missing():
    def planned(needed, target="radius"):
        return SampleSizePlan(target, 1.0, 2.0, 1.0, {"a": 10, "b": 2000, "c": 30}, needed, "b", 1.5).advice

    helped = " Of single clients, 'b' helps most: twice its rows take the radius from 2 to 1.5."
    assert planned({"a": 10, "b": 2000, "c": 30}) == "The target is met already." + helped
    some = planned({"a": 1510, "b": 2000, "c": 3000})
    assert some == "4,470 more rows in all reach the target, 2,970 of them at 'c'." + helped
    assert planned(dict.fromkeys("abc")).startswith(
        "Rows alone do not reach the target: narrow the support or use fewer features."
    )
    assert "tighten the weight set, narrow the support, or give a known delta." in planned(
        dict.fromkeys("abc"), "width"
    )


class Falling:
    """Radii of a rule that can be inverted on paper: 1000 / rows."""

    def radius(self, rows, beta):
        return 1000.0 / rows


def test_the_fewest_rows_by_hand():
    assert rows_for_radius(Falling(), 1.0, 0.1) == 1000
    assert rows_for_radius(Falling(), 0.999, 0.1) == 1002
    assert rows_for_radius(Falling(), 1024.0, 0.1) == 1
    assert rows_for_radius(Falling(), 500.0, 0.1) == 2
    assert rows_for_radius(Falling(), 1e-7, 0.1) == 10**10
    assert rows_for_radius(Falling(), 0.99e-7, 0.1) is None
    assert rows_for_radius(Falling(), 0.0, 0.1) is None
    assert rows_for_radius(Falling(), np.nan, 0.1) is None


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ({"radius": 0.0}, "positive number"),
        ({"radius": np.inf}, "positive number"),
        ({"width": np.nan}, "positive number"),
        ({"width": 1.0, "delta": -0.1}, "delta"),
        ({"width": 1.0, "delta": np.inf}, "delta"),
        ({"width": 1.0, "confidence": 0.0}, "confidence"),
        ({"width": 1.0, "confidence": 1.0}, "confidence"),
    ],
)
def test_targets_that_make_no_sense_are_refused(target, word):
    with pytest.raises(BidroError, match=word):
        plan_sample_size(problem(), X, **target)


def test_where_nothing_is_said_the_confidence_of_a_plan_is_0_95():
    assert plan_sample_size(problem(), radius=0.5) == plan_sample_size(problem(), radius=0.5, confidence=0.95)
    assert (
        plan_sample_size(problem(), radius=0.5).needed
        != plan_sample_size(problem(), radius=0.5, confidence=0.9).needed
    )
