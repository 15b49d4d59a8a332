"""Coordinates that rise together unseen: steps are held along them, and models kept off the edges."""

import numpy as np
import pytest

from bidro.core.sets import Ball, Box
from bidro.losses import Logistic, Softmax
from bidro.solvers.bundle.steps import centre_shifts, hold_shifts


@pytest.mark.parametrize("intercept", [False, True])
def test_a_rise_of_all_scores_changes_no_loss(intercept):
    loss, m = Softmax(4, intercept=intercept), 4
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=(20, m - 1)), rng.integers(0, 4, 20)])
    x, groups = rng.normal(size=loss.dimension(m)), loss.shift_invariance(m)
    assert sorted(groups.ravel()) == list(range(loss.dimension(m)))
    before, hessian = loss.values(x, rows), np.asarray(loss.hessian_sum(x, rows, np.ones(20)))
    for group in groups:
        rise = np.zeros(len(x))
        rise[group] = 1.0
        np.testing.assert_allclose(loss.values(x + 3 * rise, rows), before, rtol=1e-12)
        np.testing.assert_allclose(hessian @ rise, 0.0, atol=1e-12)
    assert Logistic(intercept=True).shift_invariance(m).size == 0


def test_curvature_is_held_along_a_rise_and_nowhere_else():
    """Two classes of curvature 2 each: along their rise 0 becomes 4, and what any other step costs, at the
    best rise beside it, stays."""
    M = np.array([[2.0, -2.0, 0.3], [-2.0, 2.0, -0.3], [0.3, -0.3, 1.0]])
    groups, x = np.array([[0, 1]]), np.zeros(3)
    raised = hold_shifts(M, groups, Box.cube(10.0, 3), x, 1.0)
    rise, apart = np.array([1.0, 1.0, 0.0]), np.array([1.0, -1.0, 0.5])
    assert rise @ raised @ rise == pytest.approx(4.0)
    assert min((apart + t * rise) @ raised @ (apart + t * rise) for t in np.linspace(-1, 1, 2001)) == (
        pytest.approx(apart @ M @ apart)
    )
    # At an edge it gives way: from edge to edge it costs half a thousandth of the risk.
    at_edge = hold_shifts(M, groups, Box.cube(10.0, 3), np.array([10.0, 0.0, 0.0]), 1.0)
    assert 0.5 * (20 * rise) @ at_edge @ (20 * rise) == pytest.approx(0.5e-3)
    np.testing.assert_array_equal(hold_shifts(np.zeros((3, 3)), groups, Box.cube(10.0, 3), x, 1.0), 0.0)


def test_a_model_at_an_edge_is_moved_between_both():
    groups, box = np.array([[0, 2], [1, 3]]), Box.cube(10.0, 5)
    x = np.array([10.0, 3.0, -4.0, 1.0, 9.9])
    np.testing.assert_allclose(centre_shifts(box, x, groups), [7.0, 3.0, -7.0, 1.0, 9.9])
    np.testing.assert_array_equal(centre_shifts(box, x, np.zeros((0, 0), np.int64)), x)
    # Where the middle between the edges of the box lies outside, it stays.
    round_set, out = Ball(np.zeros(3), 10.0), np.array([9.5, 9.5, 0.0])
    assert round_set.contains(centre_shifts(round_set, out / 2, np.array([[0, 1]])))
    near = np.array([9.0, 1.0, 4.0])
    np.testing.assert_allclose(centre_shifts(round_set, near, np.array([[0, 1, 2]])), near - 5.0)


def test_an_edge_is_near_within_a_tenth_of_the_width():
    """The narrowest member counts: of widths 20 and 40, an edge is near below 2."""
    box, groups = Box(np.array([-10.0, -15.0]), np.array([10.0, 25.0])), np.array([[0, 1]])
    # Moved to where the next edge is as far below as above: 8.45 from both, and 10.
    for x, moved in (([8.1, 0.0], [1.55, -6.55]), ([7.9, 0.0], [7.9, 0.0]), ([-8.1, 0.0], [0.0, 8.1])):
        np.testing.assert_allclose(centre_shifts(box, np.array(x), groups), moved, atol=1e-12)
    M, rise = np.array([[3.0, -1.0], [-1.0, 1.0]]), np.ones(2)

    def cost(x, risk):
        return float(rise @ (hold_shifts(M, groups, box, np.array(x), risk) - M) @ rise)

    # Both members by themselves have 4; near the edge as much as a thousandth of the risk from edge to edge.
    assert cost([7.9, 0.0], 2.0) == pytest.approx(4.0)
    assert cost([8.1, 0.0], 2.0) == pytest.approx(2e-3 / 20**2)
    assert cost([8.1, 0.0], 1e9) == pytest.approx(4.0)
    # In shares of what each has by itself.
    raised = hold_shifts(M, groups, box, np.zeros(2), 2.0) - M
    np.testing.assert_allclose(raised, np.outer([3.0, 1.0], [3.0, 1.0]) / 4)
    # Also where there is little of it.
    np.testing.assert_allclose(hold_shifts(M / 10, groups, box, np.zeros(2), 2.0), (M + raised) / 10)


def test_a_middle_outside_of_x_is_not_moved_to():
    """In the ball of radius 10, 2.1 below (8.2, -4, -4) is of length 10.57; the box around it has room."""
    at_edge, group = np.array([8.2, -4.0, -4.0]), np.array([[0, 1, 2]])
    np.testing.assert_array_equal(centre_shifts(Ball(np.zeros(3), 10.0), at_edge, group), at_edge)
    np.testing.assert_allclose(centre_shifts(Box.cube(10.0, 3), at_edge, group), at_edge - 2.1)
