"""Which statements are made of clients' bounds and which are not, on bounds that are written down by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import ClientBound
from bidro.certify.mean_bounds import clopper_pearson
from bidro.certify.statements import (
    CertifiedModel,
    client_report,
    clip_level,
    is_clip_level,
    loss_unit,
    statements_of,
    with_holdout,
    with_statements,
)
from bidro.core.sets import CappedSimplex, Simplex
from bidro.losses import Absolute, Huber, Logistic, Squared
from tests.certify.test_certificate_shown import INTERVAL

NONE = {"interval": "why not.", "held_out": "no rows.", "clipped": "no rows.", "shift": "no rows."}
BARE = Certificate(
    0.9, ("a", "b"), (10, 20), (0.1, 0.2), "any mixture", None, None, None, None, None, NONE, "no balls"
)
NUMBER = CertifiedModel(Squared(), np.array([1.0]), Simplex(2), 2.0, 9.0, 1.5, False)


def of_clients(clipped=(0.5, 0.25), others=(0.75, 0.5), classes=False):
    """Bounds of both clients, by statement."""
    parts = ("held_out", "mistakes") if classes else ("held_out",)
    return {
        name: {"clipped": ClientBound(one, 0.1, 40), **dict.fromkeys(parts, other)}
        for name, one, other in zip("ab", clipped, (ClientBound(v, 0.1, 40) for v in others), strict=True)
    }


def from_bounds(bare, of, bounds, confidence, shift=None, kind="betting", people=False):
    found = statements_of(bounds, of.limits, confidence, of.mixtures, kind, people)
    return with_statements(bare, of, found, confidence, shift)


def test_a_statement_is_made_where_all_that_it_needs_is_known():
    found = from_bounds(BARE, NUMBER, of_clients(), 0.9)
    assert (found.clipped.bound, found.held_out.bound, found.mistakes) == (0.5, 0.75, None)
    assert (found.clipped.largest, found.held_out.largest) == (2.0, 9.0)
    assert (found.clipped.clipped, found.held_out.clipped) == (True, False)
    assert dict(found.absent) == {"interval": "why not.", "shift": "no shift radius was chosen."}
    unbounded = from_bounds(BARE, replace(NUMBER, largest=None), of_clients(), 0.9)
    assert unbounded.held_out is None
    assert "cannot be ruled out" in unbounded.absent["held_out"]
    classes = from_bounds(BARE, NUMBER, of_clients(classes=True), 0.9)
    assert (classes.mistakes.bound, classes.mistakes.largest) == (0.75, 1.0)
    assert (classes.mistakes.mistakes, classes.mistakes.clipped) == (True, False)
    assert not (classes.clipped.mistakes)
    assert not (classes.held_out.mistakes)
    assert (classes.mistakes.kind, classes.clipped.kind) == ("clopper-pearson", "betting")
    people = from_bounds(BARE, NUMBER, of_clients(classes=True), 0.9, None, "bernstein", True)
    assert (people.mistakes.kind, people.clipped.kind, people.held_out.kind) == ("bernstein",) * 3
    assert people.clipped.people
    assert people.mistakes.people
    assert not classes.clipped.people


def test_an_interval_is_for_its_own_confidence():
    stated = replace(BARE, interval=INTERVAL, absent={})
    same = from_bounds(stated, NUMBER, of_clients(), 0.9)
    assert same.interval is INTERVAL
    assert "interval" not in same.absent
    other = from_bounds(stated, NUMBER, of_clients(), 0.8)
    assert other.interval is None
    assert other.absent["interval"] == "it was computed for a confidence of 0.9."
    assert (other.confidence, other.clipped.confidence) == (0.8, 0.8)
    # What was absent stays absent for its own reason.
    assert from_bounds(BARE, NUMBER, of_clients(), 0.8).absent["interval"] == "why not."


@pytest.mark.parametrize(
    ("of_root", "shift", "bound"),
    [
        (False, 0.4, 0.5 + 1.5 * 0.4),
        (True, 0.4, (math.sqrt(0.5) + 1.5 * 0.4) ** 2),
        (False, 0.0, 0.5),
        (False, 0.99, 0.5 + 1.5 * 0.99),
        # From 1 on the loss with room for shift is no lower than what losses count as at most.
        (False, 1.0, None),
        (True, 0.5, None),
    ],
)
def test_room_for_shift_is_left_below_what_losses_count_as(of_root, shift, bound):
    found = from_bounds(BARE, replace(NUMBER, of_root=of_root), of_clients(), 0.9, shift)
    if bound is None:
        assert found.shift is None
        assert "no lower than 2," in found.absent["shift"]
    else:
        assert found.shift.radius == shift
        assert found.shift.bound == pytest.approx(bound, rel=1e-12)
        assert f"stays at most {bound:.6g}" in found.shift.promise
        assert "after the rows were drawn" in found.shift.promise
        assert "shift" not in found.absent


def test_no_room_for_shift_without_a_slope_or_with_a_bound_that_says_nothing():
    unknown = from_bounds(BARE, replace(NUMBER, slope=None), of_clients(), 0.9, 0.1)
    assert unknown.shift is None
    assert "slope of this loss on the support is not known" in unknown.absent["shift"]
    vacuous = from_bounds(BARE, NUMBER, of_clients(clipped=(1.985, 0.1)), 0.9, 0.001)
    assert vacuous.shift is None
    assert "hold out more rows" in vacuous.absent["shift"]
    people = from_bounds(BARE, NUMBER, of_clients(), 0.9, 0.1, people=True)
    assert "after the people were drawn" in people.shift.promise


def test_levels_are_those_of_the_mixtures():
    """The full simplex asks every bound to hold by itself, a smaller set all of them together."""
    rng = np.random.default_rng(0)
    rows = {
        name: np.column_stack([rng.uniform(0, 1, 60), rng.choice([-1.0, 1.0], 60, p=[0.2, 0.8])])
        for name in "ab"
    }
    wrong = {name: (own[:, 1] < 0).astype(float) for name, own in rows.items()}
    for mixtures, level in (
        (Simplex(2), 0.1),
        (CappedSimplex(np.zeros(2), np.ones(2)), 1 - math.sqrt(0.9)),
    ):
        of = CertifiedModel(Logistic(), np.array([1.0]), mixtures, 2.0, None, None, False)
        found = with_holdout(BARE, of, rows, 0.9)
        assert found.mistakes.level == pytest.approx(level)
        for name in "ab":
            assert found.mistakes.clients[name] == pytest.approx(clopper_pearson(wrong[name], level))
        assert found.mistakes.bound == pytest.approx(max(found.mistakes.clients.values()))


def test_losses_are_clipped_at_what_training_saw_and_no_lower_than_the_support_allows():
    rows = np.array([[0.0, 0.5], [0.0, 3.0], [0.0, 1.0]])
    of = CertifiedModel(Squared(), np.array([1.0]), Simplex(1), 4.0, 10.0, None, False)
    found = client_report("a", of.losses(rows), of.limits, [0.1, 0.2]).bounds
    assert found.keys() == {"clipped", "held_out"}
    assert [one.mean for one in found["clipped"]] == pytest.approx([(0.25 + 4 + 1) / 3] * 2)
    assert [one.mean for one in found["held_out"]] == pytest.approx([(0.25 + 9 + 1) / 3] * 2)
    assert found["clipped"][0].bound > found["clipped"][1].bound


def test_the_clip_level_is_a_power_of_two_from_eight_times_the_mean():
    assert clip_level(0.3, 1.0) == 4.0
    assert clip_level(0.5, 1.0) == 4.0
    assert clip_level(0.51, 1.0) == 8.0
    assert clip_level(3e-5, 0.7) == 0.7 * 2.0**-11
    assert clip_level(0.0, 3.0) == 3.0
    # Of a model that fits exactly all is rounding, and a site takes no lower level.
    assert is_clip_level(clip_level(1e-31, 0.7), 0.7)
    rng = np.random.default_rng(0)
    for mean, unit in np.exp(rng.normal(0.0, 5.0, (500, 2))):
        level = clip_level(mean, unit)
        assert 8 * mean <= level < 16 * mean
        assert is_clip_level(level, unit)
        assert not any(
            is_clip_level(wrong, unit) for wrong in (0.0, -level, 1.5 * level, level * (1 + 1e-15))
        )
    assert not is_clip_level(2.0**41, 1.0)
    assert not is_clip_level(math.inf, 1.0)
    assert not is_clip_level(math.nan, 1.0)


def test_the_unit_of_losses_goes_with_that_of_the_target():
    assert loss_unit(Squared(True), 3, 5.0) == 25.0
    assert loss_unit(Absolute(), 3, 5.0) == 5.0
    assert loss_unit(Huber(threshold=10.0), 3, 20.0) == 4 * loss_unit(Huber(threshold=5.0), 3, 10.0)
    assert loss_unit(Logistic(), 3, 1.0) == 1.0
