"""Projections and linear maxima against a cone solver, and the properties every set must have."""

from itertools import product

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace, pytree
from bidro.core.sets import (
    Ball,
    Box,
    CappedSimplex,
    ChiSquaredSimplexBall,
    ConstrainedBox,
    ConstrainedSimplex,
    KLSimplexBall,
    L1SimplexBall,
    MixtureSet,
    Polytope,
    ScaledNormCut,
    Simplex,
    WholeSpace,
)
from bidro.core.sets.vectors import _norm

N = 5
CENTER = np.array([0.4, 0.0, 0.25, 0.3, 0.05])
CUT_SCALE = np.array([0.5, 2.0, 1.0, 0.0, 1.5])


def constraints(convex_set, v):
    """The set's definition, written independently for cvxpy."""
    match convex_set:
        case WholeSpace():
            return []
        case Box(lower, upper):
            return [v >= np.asarray(lower), v <= np.asarray(upper)]
        case Ball(center, radius):
            return [cp.norm(v - np.asarray(center)) <= float(radius)]
        case ScaledNormCut(base, scale, radius):
            small = cp.norm(cp.multiply(np.asarray(scale), v)) <= float(radius)
            return [*constraints(base, v), small]
        case ConstrainedBox(box, matrix, least, most):
            inside = constraints(box, v)
            for row, low, high in zip(np.asarray(matrix), np.asarray(least), np.asarray(most), strict=True):
                inside += [row @ v >= low] if np.isfinite(low) else []
                inside += [row @ v <= high] if np.isfinite(high) else []
            return inside
        case Simplex():
            return [v >= 0, cp.sum(v) == 1]
        case CappedSimplex(lower, upper):
            return [v >= np.asarray(lower), v <= np.asarray(upper), cp.sum(v) == 1]
        case L1SimplexBall(center, radius):
            near = cp.norm1(v - np.asarray(center)) <= float(radius)
            return [v >= 0, cp.sum(v) == 1, near]
        case ChiSquaredSimplexBall(center, radius) | KLSimplexBall(center, radius) if float(radius) == 0:
            return [v == np.asarray(center)]
        case ChiSquaredSimplexBall(center, radius):
            c = np.asarray(center)
            near = cp.sum_squares(cp.multiply(1 / np.sqrt(c[c > 0]), (v - c)[c > 0])) <= float(radius)
            return [v >= 0, v[c == 0] == 0, cp.sum(v) == 1, near]
        case KLSimplexBall(center, radius):
            c = np.asarray(center)
            near = cp.sum(cp.kl_div(v[c > 0], c[c > 0])) <= float(radius)
            return [v >= 0, v[c == 0] == 0, cp.sum(v) == 1, near]
        case ConstrainedSimplex(matrix, bound):
            return [v >= 0, cp.sum(v) == 1, np.asarray(matrix) @ v <= np.asarray(bound)]


VECTOR_SETS = {
    "box": Box(np.linspace(-1, 0, N), np.linspace(0.2, 2, N)),
    "ball": Ball(np.linspace(-0.5, 0.5, N), 0.8),
    "cut of a box": ScaledNormCut(Box.cube(1.0, N), CUT_SCALE, 0.9),
    "cut of a ball": ScaledNormCut(Ball(0.2 * np.ones(N), 1.1), CUT_SCALE, 0.7),
    "constrained box": ConstrainedBox(
        Box(np.full(N, -0.5), np.linspace(0.5, 1.5, N)),
        [[0.0, 2.0, -1.0, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0, -1.0], [0.0, 0.0, 1.0, 1.0, 0.0]],
        [-0.2, -np.inf, -0.6],
        [0.4, 0.1, np.inf],
    ),
    "portfolio": ConstrainedBox(
        Box(np.zeros(N), 0.5),
        [[1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0, 0.0]],
        [1.0, -np.inf],
        [1.0, 0.6],
    ),
    "cut of the whole space": ScaledNormCut(WholeSpace(N), CUT_SCALE, 0.6),
}
WEIGHT_SETS = {
    "simplex": Simplex(N),
    "capped simplex": CappedSimplex(np.zeros(N), np.array([0.3, 0.5, 0.2, 0.9, 0.4])),
    "capped below and above": CappedSimplex(0.1 * np.ones(N), np.array([0.3, 0.5, 0.2, 0.9, 0.4])),
    "single point": CappedSimplex(CENTER, CENTER),
    "l1 ball": L1SimplexBall(CENTER, 0.3),
    "large l1 ball": L1SimplexBall(CENTER, 5.0),
    "l1 ball of radius 0": L1SimplexBall(CENTER, 0.0),
    "chi-squared ball": ChiSquaredSimplexBall(CENTER, 0.2),
    "large chi-squared ball": ChiSquaredSimplexBall(CENTER, 50.0),
    "chi-squared ball of radius 0": ChiSquaredSimplexBall(CENTER, 0.0),
    "KL ball": KLSimplexBall(CENTER, 0.2),
    "large KL ball": KLSimplexBall(CENTER, 9.0),
    "KL ball of radius 0": KLSimplexBall(CENTER, 0.0),
    "constrained simplex": ConstrainedSimplex(
        [[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, -2.0, 0.5], [0.0, 0.0, 0.0, -1.0, -1.0]], [0.6, 0.1, -0.2]
    ),
}
SETS = {**VECTOR_SETS, **WEIGHT_SETS}
POINTS = arrays(float, N, elements=st.floats(-4, 4, allow_subnormal=False))


_project = jax.jit(lambda convex_set, v: convex_set.project(v))
_project_weighted = jax.jit(lambda convex_set, v, weights: convex_set.project(v, weights))


@pytest.mark.parametrize("name", SETS)
def test_projection_against_a_cone_solver(name):
    convex_set = SETS[name]
    rng = np.random.default_rng(0)
    for size in (0.1, 1.0, 10.0):
        v = rng.normal(size=N) * size
        u = cp.Variable(N)
        cp.Problem(cp.Minimize(cp.sum_squares(u - v)), constraints(convex_set, u)).solve(
            cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        found = _project(convex_set, v)
        assert bool(convex_set.contains(found))
        np.testing.assert_allclose(found, u.value, atol=2e-5 * (1 + size))
        assert float(jnp.sum((found - v) ** 2)) <= np.sum((u.value - v) ** 2) + 1e-7 * (1 + size**2)


@pytest.mark.parametrize("name", VECTOR_SETS)
def test_projection_in_a_diagonal_metric_against_a_cone_solver(name):
    convex_set = VECTOR_SETS[name]
    rng = np.random.default_rng(1)
    for _ in range(3):
        v, weights = 2 * rng.normal(size=N), np.exp(rng.normal(size=N))
        u = cp.Variable(N)
        objective = cp.sum_squares(cp.multiply(np.sqrt(weights), u - v))
        cp.Problem(cp.Minimize(objective), constraints(convex_set, u)).solve(
            cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
        )
        found = convex_set.project(jnp.asarray(v), jnp.asarray(weights))
        np.testing.assert_allclose(found, u.value, atol=1e-4)


def test_an_infinite_weight_holds_a_coordinate():
    ball = Ball(np.zeros(3), 1.0)
    found = ball.project(jnp.array([2.0, 3.0, 0.6]), jnp.array([1.0, 1.0, jnp.inf]))
    assert float(found[2]) == 0.6
    np.testing.assert_allclose(jnp.linalg.norm(found), 1.0)
    np.testing.assert_allclose(found[1] / found[0], 1.5)


@pytest.mark.parametrize("name", [k for k in SETS if "cut" not in k])
def test_linear_maximum_against_a_cone_solver(name):
    convex_set = SETS[name]
    rng = np.random.default_rng(2)
    for size in (1.0, 1.0, 1e-2, 1e3):
        c = size * rng.normal(size=N)
        u = cp.Variable(N)
        best = cp.Problem(cp.Maximize(c @ u), constraints(convex_set, u)).solve(cp.CLARABEL)
        value, point = convex_set.linear_maximum(jnp.asarray(c))
        assert float(value) == pytest.approx(best, abs=1e-6 * size)
        assert bool(convex_set.contains(point))
        assert float(c @ point) == pytest.approx(float(value), abs=1e-12 * max(size, 1.0))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=40, deadline=None)
@given(v=POINTS, w=POINTS)
def test_projection_properties(name, v, w):
    """Feasible, idempotent, nonexpansive, and <v - Pv, u - Pv> <= 0 for points u of the set."""
    convex_set = SETS[name]
    pv, pw = _project(convex_set, v), _project(convex_set, w)
    assert bool(convex_set.contains(pv))
    np.testing.assert_allclose(_project(convex_set, pv), pv, atol=1e-9)
    assert float(jnp.linalg.norm(pv - pw)) <= np.linalg.norm(v - w) + 1e-9
    assert float(jnp.sum((v - pv) * (pw - pv))) <= 1e-7


@settings(max_examples=40, deadline=None)
@given(v=arrays(float, st.sampled_from([1, 2, 7, 40]), elements=st.floats(-1e6, 1e6)))
def test_weights_always_sum_to_one(v):
    """A public baseline's simplex projection is off by one and returns weights that sum to 2.7."""
    n = len(v)
    caps = CappedSimplex(np.zeros(n), np.full(n, 1.5 / n) if n > 1 else np.ones(1))
    for convex_set in (Simplex(n), caps, L1SimplexBall(np.full(n, 1 / n), 0.4)):
        found = np.asarray(_project(convex_set, v))
        # The level is of the size of v, and so is its rounding.
        assert found.sum() == pytest.approx(1.0, abs=1e-12 + 1e-15 * n * np.abs(v).max())
        assert found.min() >= -1e-12


@pytest.mark.parametrize("name", WEIGHT_SETS)
def test_weights_that_are_not_finite_do_not_turn_into_ones_that_look_fine(name):
    for bad in (np.inf, -np.inf, np.nan):
        for place in (0, N - 1):
            given_weights = np.zeros(N)
            given_weights[place] = bad
            assert np.all(np.isnan(_project(WEIGHT_SETS[name], given_weights)))


def test_a_point_without_a_direction_stays_a_number():
    """At a ball's centre, and for a linear function of slope 0, there is nothing to divide by."""
    ball = Ball(np.array([0.3, -0.1]), 0.5)
    for weights in (None, jnp.array([1.0, 2.0])):
        np.testing.assert_array_equal(ball.project(ball.center, weights), ball.center)
    assert float(_norm(jnp.zeros(2))) == 0.0
    value, point = ball.linear_maximum(jnp.zeros(2))
    assert float(value) == 0.0
    assert bool(ball.contains(point))
    value, point = WholeSpace(2).linear_maximum(jnp.zeros(2))
    assert float(value) == 0.0
    np.testing.assert_array_equal(point, 0.0)
    value, point = WholeSpace(2).linear_maximum(jnp.array([0.0, -2.0]))
    assert float(value) == np.inf
    np.testing.assert_array_equal(point, [0.0, -np.inf])


@pytest.mark.parametrize("name", VECTOR_SETS)
def test_the_largest_norm_bounds_every_point(name):
    """Also in a norm that counts a coordinate which a cut leaves free (here the fourth)."""
    convex_set, rng = VECTOR_SETS[name], np.random.default_rng(5)
    points = np.array([_project(convex_set, v) for v in 5 * rng.normal(size=(60, N))])
    for scale in (CUT_SCALE, np.ones(N), np.array([0.0, 0.0, 0.0, 1.0, 0.0]), np.array([3.0, 0, 0, 0, 1])):
        widest = np.linalg.norm(scale * points, axis=1).max()
        assert widest <= float(convex_set.largest_norm(jnp.asarray(scale))) * (1 + 1e-9)


def test_a_cut_bounds_the_norms_that_it_sees():
    free = ScaledNormCut(WholeSpace(2), np.array([2.0, 0.0]), 3.0)
    assert float(free.largest_norm(jnp.array([4.0, 0.0]))) == pytest.approx(6.0)
    assert np.isinf(free.largest_norm(jnp.array([4.0, 1.0])))
    assert float(WholeSpace(2).largest_norm(jnp.zeros(2))) == 0.0
    assert float(free.largest_norm(np.array([1.0, 0.0]))) == pytest.approx(1.5)
    assert float(free.largest_norm(np.zeros(2))) == 0.0
    boxed = ScaledNormCut(Box.cube(1.0, 2), np.array([2.0, 1.0]), 3.0)
    assert float(boxed.largest_norm(jnp.array([1.0, 1.0]))) == pytest.approx(np.sqrt(2))
    assert float(boxed.largest_norm(jnp.array([9.0, 0.0]))) == pytest.approx(9.0)


def test_a_cut_that_just_touches_its_set_is_one():
    """Of the ball around (3, 3) of radius 2 the smallest first coordinate is 1, wherever the second is."""
    ball, first = Ball(np.array([3.0, 3.0]), 2.0), np.array([1.0, 0.0])
    near = ScaledNormCut(ball, first, 1.2)
    assert bool(near.contains(np.array([1.1, 3.0])))
    # (x - 3)^2 + (y - 3)^2 <= 4 and x <= 1.2: from (3, 9) the nearest has both as equalities.
    np.testing.assert_allclose(near.project(np.array([3.0, 9.0])), [1.2, 3 + np.sqrt(4 - 1.8**2)], atol=1e-6)
    with pytest.raises(BidroError, match=r"at most 0\.9: the smallest is 1"):
        ScaledNormCut(ball, first, 0.9)
    single = ScaledNormCut(Box(np.array([1.0]), np.array([2.0])), np.ones(1), 1.0)
    np.testing.assert_allclose(single.project(np.array([7.0])), [1.0])


def test_huge_values():
    capped = CappedSimplex(np.zeros(3), np.array([0.5, 0.6, 1.0]))
    np.testing.assert_allclose(capped.project(jnp.array([1e17, 1e17, 0.0])), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(Simplex(3).project(np.array([1e17, 1e17, 0.0])), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(Simplex(2).project(np.array([-1e17, -1e17])), [0.5, 0.5])
    even = L1SimplexBall(np.full(4, 0.25), 0.5)
    np.testing.assert_allclose(even.project(np.array([1e17, 1e17, 0, 0])), [0.375, 0.375, 0.125, 0.125])
    np.testing.assert_allclose(Ball(np.zeros(2), 1.0).project(jnp.array([1e200, 0.0])), [1.0, 0.0])
    for weights in (np.ones(2), np.full(2, 1e-30), np.full(2, 1e30)):
        found = Ball(np.zeros(2), 1.0).project(np.array([3e9, 4e9]), weights)
        np.testing.assert_allclose(found, [0.6, 0.8], rtol=1e-9)


def test_a_held_coordinate_keeps_its_bits():
    rng = np.random.default_rng(4)
    ball, weights = Ball(np.array([0.3, 0.7, 0.1]), 1.0), jnp.array([1.0, 1.0, jnp.inf])
    for v in rng.normal(size=(200, 3)) * [3, 3, 0.3]:
        assert float(_project_weighted(ball, v, weights)[2]) == v[2]


def test_simplex_projection_by_hand():
    """(0.9, 0.6, -0.2): the level is 0.25, so (0.65, 0.35, 0). The known bug gives a sum above 1."""
    found = Simplex(3).project(jnp.array([0.9, 0.6, -0.2]))
    np.testing.assert_allclose(found, [0.65, 0.35, 0.0], atol=1e-15)


def test_capped_projection_by_hand():
    """(0.9, 0.6, -0.2) with caps 0.5: the first is capped, the second takes 0.5, the third 0."""
    capped = CappedSimplex(np.zeros(3), 0.5 * np.ones(3))
    np.testing.assert_allclose(capped.project(jnp.array([0.9, 0.6, -0.2])), [0.5, 0.5, 0.0], atol=1e-12)


def test_l1_ball_keeps_to_its_radius_when_it_binds():
    ball = L1SimplexBall(CENTER, 0.3)
    found = ball.project(jnp.array([5.0, 0.0, 0.0, 0.0, 0.0]))
    assert float(jnp.sum(jnp.abs(found - CENTER))) == pytest.approx(0.3)


def test_one_number_stands_for_every_coordinate():
    for box in (Box(-1.0, np.array([2.0, 3.0, 4.0])), Box(np.array([-1.0, -1.0, -1.0]), [2.0, 3.0, 4.0])):
        assert box.dimension == 3
        np.testing.assert_array_equal(box.lower, [-1.0, -1.0, -1.0])
    np.testing.assert_array_equal(CappedSimplex(0.0, [0.5, 0.6]).upper, [0.5, 0.6])
    np.testing.assert_array_equal(Box.cube(2.0, 2).lower, [-2.0, -2.0])
    np.testing.assert_array_equal(Box.cube(2.0, 2).upper, [2.0, 2.0])


def test_lists_of_whole_numbers_do_as_well_as_arrays():
    """What a set holds are arrays of its own: floats, and not those that it was made from."""
    given_center = np.array([0.0, 3.0])
    ball = Ball(given_center, 1)
    given_center[:] = 9.0
    for found, values in (
        (ball.project([0.0, 5.0]), [0.0, 4.0]),
        (Ball([0, 3], 1).project(np.array([0.0, 5.0])), [0.0, 4.0]),
        (Box([0, 1], [2, 3]).project(np.array([5.0, -1.0])), [2.0, 1.0]),
        (CappedSimplex([0, 0], [1, 1]).project(np.array([9.0, 0.0])), [1.0, 0.0]),
        (L1SimplexBall([0, 1], 1).project(np.array([9.0, 0.0])), [0.5, 0.5]),
        (ScaledNormCut(Box([-9, -9], [9, 9]), [1, 2], 2).project(np.array([0.0, 8.0])), [0.0, 1.0]),
    ):
        np.testing.assert_allclose(found, values, atol=1e-12)
    assert (Ball([0, 3], 1).dimension, Box([0, 1], [2, 3]).dimension) == (2, 2)
    assert (CappedSimplex([0, 0], [1, 1]).dimension, L1SimplexBall([0, 1], 1).dimension) == (2, 2)


@pytest.mark.parametrize("name", SETS)
def test_membership_is_up_to_the_tolerance(name):
    """From a point at the edge, straight out: a part of the tolerance is in, several are out."""
    convex_set = SETS[name]
    far = 50 * np.ones(N) if name in VECTOR_SETS else 50 * np.eye(N)[0]
    edge = np.asarray(_project(convex_set, far))
    out = (far - edge) / np.linalg.norm(far - edge)
    for tolerance in (1e-9, 1e-3):
        # Constraints are on single weights and their sum, on which a step of this length may count less.
        assert bool(convex_set.contains(jnp.asarray(edge + 0.4 * tolerance * out), tolerance))
        assert not bool(convex_set.contains(jnp.asarray(edge + 2.6 * tolerance * out), tolerance))
    # By default it is the first of these.
    assert bool(convex_set.contains(jnp.asarray(edge + 0.4e-9 * out)))
    assert not bool(convex_set.contains(jnp.asarray(edge + 2.6e-9 * out)))


def test_weights_must_be_in_all_of_their_constraints():
    assert not bool(Simplex(2).contains(jnp.array([1.1, -0.1])))
    assert not bool(Simplex(2).contains(jnp.array([0.5, 0.6])))
    assert not bool(Simplex(2).contains(jnp.array([0.5, 0.4])))
    capped = CappedSimplex(np.array([0.2, 0.1]), np.array([0.7, 0.9]))
    assert bool(capped.contains(jnp.array([0.3, 0.7])))
    for bad in ([0.1, 0.9], [0.8, 0.2], [0.3, 0.6], [0.3, 0.8]):
        assert not bool(capped.contains(jnp.array(bad)))
    assert not bool(L1SimplexBall(np.array([0.5, 0.5]), 1.0).contains(jnp.array([0.3, 0.5])))
    assert not bool(WholeSpace(2).contains(jnp.array([0.0, np.inf])))


@pytest.mark.parametrize("name", VECTOR_SETS)
def test_boxes_around_sets_and_diameters_bound_every_point(name):
    convex_set, rng = VECTOR_SETS[name], np.random.default_rng(6)
    points = np.array([_project(convex_set, v) for v in 5 * rng.normal(size=(40, N))])
    lower, upper = (np.asarray(v) for v in convex_set.bounding_box())
    assert np.all((points >= lower - 1e-9) & (points <= upper + 1e-9))
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert apart.max() <= float(convex_set.diameter()) + 1e-9


def test_boxes_and_diameters_by_hand():
    box = Box(np.array([-1.0, 0.0]), np.array([2.0, 4.0]))
    assert float(box.diameter()) == pytest.approx(5.0)
    ball = Ball(np.array([1.0, -1.0]), 0.5)
    assert float(ball.diameter()) == pytest.approx(1.0)
    np.testing.assert_allclose(ball.bounding_box(), [[0.5, -1.5], [1.5, -0.5]])
    assert float(ball.largest_norm(jnp.array([3.0, 4.0]))) == pytest.approx(5.0 + 0.5 * 4.0)
    assert float(box.largest_norm(jnp.array([1.0, 0.5]))) == pytest.approx(np.sqrt(8))
    cut = ScaledNormCut(box, np.array([0.5, 0.0]), 0.25)
    np.testing.assert_allclose(cut.bounding_box(), [[-0.5, 0.0], [0.5, 4.0]])
    assert float(cut.diameter()) == pytest.approx(np.sqrt(17))
    assert float(ScaledNormCut(ball, np.array([0.01, 0.01]), 9.0).diameter()) == pytest.approx(1.0)
    whole = WholeSpace(2)
    assert float(whole.diameter()) == np.inf
    np.testing.assert_array_equal(whole.bounding_box(), [[-np.inf] * 2, [np.inf] * 2])
    np.testing.assert_array_equal(whole.constraints()[:2], [[-np.inf] * 2, [np.inf] * 2])


def test_diameters_of_weights_by_hand():
    assert float(Simplex(3).diameter()) == pytest.approx(np.sqrt(2))
    assert float(Simplex(2).diameter()) == pytest.approx(np.sqrt(2))
    assert float(Simplex(1).diameter()) == 0.0
    assert float(CappedSimplex(np.zeros(2), np.ones(2)).diameter()) == pytest.approx(np.sqrt(2))
    assert float(CappedSimplex([0.2, 0.5], [0.5, 0.9]).diameter()) == pytest.approx(0.5)
    assert float(L1SimplexBall(CENTER, 0.3).diameter()) == pytest.approx(0.3 * np.sqrt(2))
    assert float(L1SimplexBall(CENTER, 5.0).diameter()) == pytest.approx(np.sqrt(2))
    assert float(L1SimplexBall(CENTER, 5.0).radius) == 2.0


def test_bounds_of_weights_may_be_off_by_rounding():
    """Weights that sum to 1 up to 1e-9 are taken, beyond that they are not."""
    for slack in (0.9e-9, 1.1e-9):
        high, low = np.array([0.5, 0.5 + slack]), np.array([0.5, 0.5 - slack])
        for make in (
            lambda high=high: CappedSimplex(high, high),
            lambda low=low: CappedSimplex(low, low),
            lambda high=high: L1SimplexBall(high, 0.1),
            lambda low=low: L1SimplexBall(low, 0.1),
        ):
            if slack < 1e-9:
                assert make().dimension == 2
            else:
                with pytest.raises(BidroError, match="sum to"):
                    make()


@pytest.mark.parametrize("kappa", [1.0, 1.5, np.inf])
@pytest.mark.parametrize("mu", [0.0, 0.2, 1.0])
def test_mixed_sets_are_mixtures_of_the_proportions_with_capped_weights(kappa, mu):
    """The worst mixture over the mixed set is (1 - mu) <p, c> + mu times that over the caps, for any c."""
    sizes, rng = np.array([10, 30, 60, 5]), np.random.default_rng(4)
    share = sizes / sizes.sum()
    caps = Simplex(4) if np.isinf(kappa) else CappedSimplex.around_proportions(sizes, kappa)
    mixed = CappedSimplex.mixed(sizes, kappa, mu)
    for c in rng.normal(size=(20, 4)):
        expected = (1 - mu) * share @ c + mu * float(caps.linear_maximum(c)[0])
        assert float(mixed.linear_maximum(c)[0]) == pytest.approx(expected, abs=1e-12)
        assert mixed.contains((1 - mu) * share + mu * np.asarray(caps.project(c)))


def test_cap_around_proportions():
    capped = CappedSimplex.around_proportions([10, 30, 60], kappa=2.0)
    np.testing.assert_allclose(capped.upper, [0.2, 0.6, 1.0])
    fixed = CappedSimplex.around_proportions([10, 30, 60], kappa=1.0)
    np.testing.assert_allclose(fixed.project(jnp.array([9.0, 0, 0])), [0.1, 0.3, 0.6])


@pytest.mark.parametrize("name", WEIGHT_SETS)
def test_diameter_bounds_all_distances(name):
    convex_set = WEIGHT_SETS[name]
    rng = np.random.default_rng(3)
    points = [_project(convex_set, 3 * rng.normal(size=N)) for _ in range(30)]
    largest = max(float(jnp.linalg.norm(a - b)) for a in points for b in points)
    assert largest <= float(convex_set.diameter()) + 1e-9


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Box(np.array([1.0]), np.array([0.0])), "lower <= upper"),
        (lambda: Box(np.array([0.0, 2.0]), np.array([1.0, 1.0])), "coordinate 1 has 2.0 > 1.0"),
        (lambda: Box(np.array([-np.inf]), np.array([0.0])), "finite"),
        (lambda: Box(np.array([-np.inf, 0.0]), np.array([0.0, 1.0])), "finite"),
        (lambda: Ball(np.zeros(2), -1.0), "radius"),
        (lambda: Box(np.zeros(2), np.ones(3)), "one length"),
        (lambda: Box(np.zeros((2, 2)), np.ones(2)), "one length"),
        (lambda: Ball(np.zeros(2), np.nan), "finite"),
        (lambda: Ball(np.zeros(2), np.ones(2)), "radius"),
        (lambda: L1SimplexBall(np.array([0.5, 0.5]), -0.1), "radius"),
        (lambda: L1SimplexBall(np.array([1.2, -0.2]), 0.1), "nonnegative"),
        (lambda: ChiSquaredSimplexBall([0.5, 0.5], -0.1), "radius"),
        (lambda: ChiSquaredSimplexBall([0.7, 0.5], 0.1), "sum to 1"),
        (lambda: KLSimplexBall([0.5, 0.5], np.inf), "finite"),
        (lambda: KLSimplexBall([1.2, -0.2], 0.1), "nonnegative"),
        (lambda: ConstrainedSimplex([[1.0, 1.0]], 0.9), "No weights of at least 0"),
        (lambda: ConstrainedSimplex([[1.0, 1.0]], [0.9, 1.0]), "shapes"),
        (lambda: ConstrainedSimplex([[1.0, np.nan]], 0.9), "finite"),
        (lambda: ConstrainedBox(Box(np.zeros(2), 1.0), [[1.0, 1.0]], 2.1, 3.0), "No model within"),
        (lambda: ConstrainedBox(Box(np.zeros(2), 1.0), [[1.0, 1.0]], [0.0, 0.0, 0.0], 1.0), "shapes"),
        (lambda: ConstrainedBox(Box(np.zeros(2), 1.0), [[1.0, np.nan]], 0.0, 1.0), "finite"),
        (lambda: ConstrainedBox(Box(np.zeros(2), 1.0), [[1.0, 1.0]], np.nan, 1.0), "numbers, or infinite"),
        (lambda: ConstrainedBox(Box(np.zeros(3), 1.0), [[1.0, 1.0]], 0.0, 1.0), "a Box of as many"),
        (lambda: CappedSimplex(0.5 * np.ones(3), np.ones(3)), "lower ones sum to 1.5"),
        (lambda: CappedSimplex(np.array([0.5, 0.0]), np.array([0.4, 1.0])), "lower <= upper"),
        (lambda: L1SimplexBall(np.array([0.5, 0.5]), np.array([0.1, 0.2])), "radius"),
        (lambda: CappedSimplex(np.zeros(3), 0.2 * np.ones(3)), "sum to"),
        (lambda: CappedSimplex(-np.ones(3), np.ones(3)), "0 <= lower"),
        (lambda: CappedSimplex.around_proportions([1, 2], 0.5), "kappa"),
        (lambda: CappedSimplex.mixed([1, 2], 0.5, 0.3), "kappa"),
        (lambda: CappedSimplex.mixed([1, 2], 2.0, 1.1), "between 0 and 1"),
        (lambda: L1SimplexBall(np.array([0.5, 0.6]), 0.1), "sum to 1"),
        (lambda: ScaledNormCut(Box(np.array([2.0]), np.array([3.0])), np.ones(1), 1.0), "smallest is 2"),
    ],
)
def test_bad_sets_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


@pytest.mark.parametrize("name", [name for name, one in WEIGHT_SETS.items() if one.is_polytope])
def test_a_polytope_is_the_set_it_was_made_from(name):
    """max <c, alpha> over {offset + lift y : y >= 0, matrix y = total}, by HiGHS."""
    weights, rng = WEIGHT_SETS[name], np.random.default_rng(0)
    polytope = weights.polytope()
    for _ in range(5):
        c = rng.normal(size=N)
        found = linprog(-polytope.lift.T @ c, A_eq=polytope.matrix, b_eq=polytope.total)
        expected = float(weights.linear_maximum(jnp.asarray(c))[0])
        assert polytope.offset @ c - found.fun == pytest.approx(expected, abs=1e-9)


# No random point lies where an equation holds.
@pytest.mark.parametrize("name", [name for name in VECTOR_SETS if name != "portfolio"])
def test_constraints_hold_exactly_inside(name):
    vectors, rng = VECTOR_SETS[name], np.random.default_rng(0)
    limits = vectors.constraints()
    inside = 0
    for v in rng.normal(size=(200, N)) * rng.choice([0.2, 0.6, 1.5], (200, 1)):
        within = np.all((limits.lower <= v) & (v <= limits.upper)) and all(
            np.linalg.norm(n.matrix @ v + n.offset) <= n.radius for n in limits.norms
        )
        if limits.rows is not None:
            matrix, least, most = limits.rows
            within &= np.all((least <= matrix @ v) & (matrix @ v <= most))
        assert within == bool(vectors.contains(jnp.asarray(v), 0.0))
        inside += within
    assert 0 < inside < 200


EVERY_SET = {**VECTOR_SETS, **WEIGHT_SETS, "whole space": WholeSpace(N)}


@pytest.mark.parametrize("name", EVERY_SET)
def test_numbers_of_the_host_stay_on_the_host_and_give_what_is_traced(name):
    """NumPy in, NumPy out, the same as compiled: an operation of JAX would compile a program."""
    convex_set = EVERY_SET[name]
    rng = np.random.default_rng(7)
    calls = {
        "project": lambda s, v: s.project(v),
        "contains": lambda s, v: s.contains(v),
        "linear_maximum": lambda s, v: s.linear_maximum(v),
        "weighted": lambda s, v: s.project(v, 1 + v**2),
        "largest_norm": lambda s, v: s.largest_norm(v**2),
        "bounding_box": lambda s, v: s.bounding_box(),
        "diameter": lambda s, v: s.diameter(),
    }
    if name in WEIGHT_SETS:
        calls = {key: calls[key] for key in ("project", "contains", "linear_maximum", "diameter")}
    elif not hasattr(convex_set, "linear_maximum"):
        del calls["linear_maximum"]
    for v in (rng.normal(size=N), 3 * rng.normal(size=N), np.full(N, 1 / N)):
        for call in calls.values():
            here = call(convex_set, v)
            assert not any(isinstance(part, jax.Array) for part in jax.tree.leaves(here))
            traced = jax.jit(call)(convex_set, v)
            for ours, theirs in zip(jax.tree.leaves(here), jax.tree.leaves(traced), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_projection_on_the_simplex_is_the_one_that_brute_force_finds():
    """Over every set of weights that stay above 0, the nearest point that keeps them alone."""
    rng = np.random.default_rng(8)
    for _ in range(50):
        v = rng.normal(size=4) * 10.0 ** rng.integers(-2, 3)
        points = []
        for kept in product([False, True], repeat=4):
            chosen = np.array(kept)
            if chosen.any():
                point = np.where(chosen, v - (v[chosen].sum() - 1) / chosen.sum(), 0.0)
                points += [point] if np.all(point >= 0) else []
        nearest = min(points, key=lambda point: float(np.sum((point - v) ** 2)))
        np.testing.assert_allclose(Simplex(4).project(v), nearest, atol=1e-12)


@pytree
class Segment(MixtureSet):
    """The mixtures between two: what a set has that says no more than it must."""

    first: np.ndarray
    last: np.ndarray

    @property
    def dimension(self):
        return len(self.first)

    def project(self, v):
        along = self.last - self.first
        share = namespace(v).clip((v - self.first) @ along / np.maximum(along @ along, 1e-300), 0.0, 1.0)
        return self.first + share * along

    def linear_maximum(self, c):
        points = namespace(c).stack([self.first + 0 * c, self.last + 0 * c])
        best = points[(points @ c).argmax()]
        return best @ c, best

    def polytope(self):
        lift = np.column_stack([self.last - self.first, np.zeros(self.dimension)])
        return Polytope(self.first, lift, np.ones((1, 2)), np.ones(1))


def test_what_a_set_says_that_declares_no_more_than_it_must():
    segment = Segment(CENTER, np.array([0.2, 0.4, 0.1, 0.1, 0.2]))
    assert bool(segment.contains(0.3 * segment.first + 0.7 * segment.last))
    assert not bool(segment.contains(segment.first + np.array([0.1, -0.1, 0, 0, 0])))
    assert not segment.is_single_point
    assert not segment.is_whole
    assert (segment.diameter(), segment.l1_diameter()) == (np.sqrt(2), 2.0)
    assert Segment(np.ones(1), np.ones(1)).is_single_point
    assert segment.unsettled(np.arange(N)) is None
    with pytest.raises(NotImplementedError):
        segment.grouped(np.zeros(N, np.int64))
    polytope, rng = segment.polytope(), np.random.default_rng(2)
    for c in rng.normal(size=(5, N)):
        prices = segment.prices(c)
        assert np.all(polytope.matrix.T @ prices >= polytope.lift.T @ c - 1e-9)
        dual = polytope.offset @ c + polytope.total @ prices
        assert dual == pytest.approx(float(segment.linear_maximum(c)[0]), abs=1e-9)


GROUPED = [name for name, one in WEIGHT_SETS.items() if one.unsettled(np.arange(N)) is not None]


@pytest.mark.parametrize("name", GROUPED)
def test_members_in_place_of_clients_have_weights_of_the_set(name):
    """Shares sum to 1, and what members have, shared out, is a mixture of the set."""
    rng = np.random.default_rng(7)
    for group in ([0, 1, 2, 2, 1], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]):
        share, members = WEIGHT_SETS[name].grouped(np.array(group))
        np.testing.assert_allclose(np.asarray(share.sum(axis=1)).ravel(), 1.0)
        assert members.dimension == share.shape[0]
        for c in rng.normal(size=(10, members.dimension)):
            alpha = np.asarray(members.linear_maximum(c)[1])
            assert bool(WEIGHT_SETS[name].contains(share.T @ alpha))


def test_who_is_in_no_group_has_no_weight():
    share, members = Simplex(4).grouped(np.array([0, -1, 1, -1]))
    np.testing.assert_array_equal(share.toarray(), np.eye(4)[[0, 2]])
    assert members.dimension == 2


def test_where_weights_are_not_settled():
    order = np.array([2, 0, 1, 3])
    assert Simplex(4).unsettled(order).tolist() == [0]
    # The worst two take 0.4 each, and the third what is left.
    assert CappedSimplex(np.zeros(4), 0.4 * np.ones(4)).unsettled(order).tolist() == [2]
    # The worst gains 0.3, which the last loses, who has 0.2, and the one before it.
    assert L1SimplexBall([0.3, 0.3, 0.2, 0.2], 0.6).unsettled(order).tolist() == [0, 2]


def test_constraints_hold_for_points_from_anywhere_in_any_unit():
    """The projection on a constrained box is in it, and is the nearest point: no other lies further along. Of
    points so far away that the box is nothing beside them, only the former can be asked."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        d, rows, unit = int(rng.integers(2, 9)), int(rng.integers(1, 4)), 10.0 ** rng.integers(-8, 7)
        lower, upper = -unit * rng.uniform(0, 2, d), unit * rng.uniform(0, 2, d)
        matrix, inside = (
            rng.normal(size=(rows, d)) * 10.0 ** rng.integers(-6, 6, (rows, 1)),
            rng.uniform(lower, upper),
        )
        there = matrix @ inside
        least = there - np.abs(there) * rng.choice([0.0, 0.1, np.inf], rows)
        most = there + np.abs(there) * rng.choice([0.0, 0.3], rows)
        constrained = ConstrainedBox(Box(lower, upper), matrix, least, most)
        far = rng.choice([0.1, 10.0, 1e4, 1e50])
        v = far * unit * rng.normal(size=d)
        found = constrained.project(v)
        assert bool(constrained.contains(found, 1e-9 * unit)), trial
        away = v - found
        if far < 1e50 and np.linalg.norm(away) > 1e-12 * np.linalg.norm(v):
            further = float(constrained.linear_maximum(away)[0]) - away @ found
            assert further <= 1e-9 * np.linalg.norm(away) * unit, trial
