"""Bounds on rounding: by hand, in units of the last bit, and against exact arithmetic."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.sets import WholeSpace
from bidro.losses import Hinge, Huber, Logistic, Softmax, Squared
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner
from bidro.risk.rounding import of_cost, of_linear, of_softmax, of_sum, of_value
from bidro.risk.rows_jax import Point, still_pass
from bidro.risk.transport import Transport

EPS = float(np.finfo(float).eps)


def linear(loss, u, psi, z):
    """In units of eps, for one row."""
    u = np.array([u])
    slope = loss.scalar.tangent(u, np.zeros(())).slope
    return float(of_linear(loss.scalar, u, np.array([psi]), np.array(z), slope)[0]) / EPS


@pytest.mark.parametrize(
    ("loss", "u", "by_hand"),
    [
        # psi = (1, -2), z = (3, 1): terms of 5 in all, and an offset makes u; delta is 4 eps (2 * 5 + |u|).
        (Squared(), 5.0, 60 * 10 + 8 * 25),
        (Huber(), 5.0, 60 * 1 + 8 * (5 + 0.5)),  # a slope of 1, and |u| - 1/2 from its two terms
        (Huber(), 0.5, 42 * 0.5 + 8 * 0.125),
        (Hinge(), -4.0, 56 * 1 + 8 * (4 + 1)),
        (Hinge(), 1.0, 44 * 1),  # at its kink as steep as it gets
        (Logistic(), 2.0, 48 / (1 + math.exp(2)) + 8 * math.log1p(math.exp(-2))),
    ],
)
def test_a_loss_of_a_linear_score_by_hand(loss, u, by_hand):
    assert linear(loss, u, (1.0, -2.0), (3.0, 1.0)) == pytest.approx(by_hand, rel=1e-12)


def test_a_kink_where_nothing_can_be_off():
    assert linear(Hinge(), 0.0, (0.0,), (0.0,)) == pytest.approx(8 * 1)


def test_the_slope_within_what_u_may_be_off_by():
    """Of next to no slope at u itself: its curvature times delta, but never steeper than the loss is."""
    far = 1e9
    delta = 3 * EPS * (2 * far + 0)
    assert linear(Squared(), 0.0, (far,), (1.0,)) * EPS == pytest.approx(delta * 2 * delta, rel=1e-12)
    far = 1e17
    delta = 3 * EPS * 2 * far
    assert linear(Huber(), 0.0, (far,), (1.0,)) * EPS == pytest.approx(delta, rel=1e-12)


def test_squares_of_what_is_left_of_terms_that_cancel():
    rng = np.random.default_rng(0)
    psi, z = rng.normal(size=(50, 4)), 1e6 * rng.normal(size=4)
    target = psi @ z + 1e-3 * rng.normal(size=50)
    u = psi @ z - target
    bound = of_linear(Squared().scalar, u, psi, z, 2 * u)
    for row, y, got, off in zip(psi, target, u**2, bound, strict=True):
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(row, z, strict=True)) - Fraction(y)
        assert abs(exact**2 - Fraction(got)) <= Fraction(off)


def test_a_loss_of_several_scores_by_hand():
    """Scores x1 + 1, 2 x1 - 2 and 0 at x1 = 3: sizes of at most 8, of two coefficients each."""
    loss, rows = Softmax(3, True), np.array([[3.0, 1.0], [3.0, 0.0], [3.0, 2.0]])
    x = np.array([1.0, 2.0, 0.0, 1.0, -2.0, 0.0])
    total = math.log(2 * math.exp(4) + 1)
    losses = np.array([total - 4, total - 4, total])
    by_hand = 4 * 3 * 8 * np.minimum(losses, 1.0) + (8 + 3) * losses
    np.testing.assert_allclose(of_softmax(loss, x, rows) / EPS, by_hand, rtol=1e-12)
    without = Softmax(2)
    small = of_softmax(without, np.array([1.0, -1.0, 0.5, 0.25]), np.array([[2.0, 4.0, 0.0]])) / EPS
    # Scores -2 and 2, from terms of 6 and 2 in size.
    loss_of_it = math.log1p(math.exp(4))
    np.testing.assert_allclose(small, 4 * 4 * 6 + (8 + 2) * loss_of_it, rtol=1e-12)


def test_scores_far_apart_are_off_by_what_their_difference_is_off_by():
    """A score ahead by 1e9 has no loss that shows, nor a slope: its delta times delta, as that is below 1."""
    ahead, row = np.array([1e9, 0.0]), np.array([[1.0, 0.0]])
    delta = 4 * 3 * EPS * 1e9
    np.testing.assert_allclose(of_softmax(Softmax(2), ahead, row), delta**2, rtol=1e-12)


def test_products_sums_and_values_by_hand():
    np.testing.assert_allclose(
        of_cost(np.array([2.0, -3.0, np.inf]), np.array([4.0, 5.0, 1.0])), [64 * EPS, 120 * EPS, 0.0]
    )
    with np.errstate(invalid="ignore"):
        assert of_cost(np.array([np.inf]), np.array([0.0])) == [0.0]
    np.testing.assert_allclose(of_sum(np.array([2, 40]), np.array([3.0, -0.5])), [30 * EPS, 24 * EPS])
    np.testing.assert_allclose(of_value(np.array([3.0, -0.5]), 2), [30 * EPS, 5 * EPS])
    for of in (lambda value: of_sum(5, value), lambda value: of_value(value, 5)):
        np.testing.assert_array_equal(of(np.array([np.inf, -np.inf, np.nan])), 0.0)


def test_means_of_many_rows_leave_room_on_both_sides():
    """A thousand rows with u = 3: each loss of 2.5 may be off by 15 + 8 * 3.5 last bits, and their sum by
    1,008 of the mean."""
    rows = ClientRows.single(jnp.asarray(np.tile([1.0, -2.0], (1_000, 1))))
    inner = Inner(Transport.features_only(2), WholeSpace(2), Huber(threshold=1.0))
    found = still_pass(rows, inner, Point(jnp.ones(1), None, jnp.zeros(())), False)
    for room in (float(found.value) - 2.5, 2.5 - float(found.minorant)):
        assert room / EPS == pytest.approx(43 + 1_008 * 2.5, rel=0.01)
