"""The server's programs piece by piece: cuts by hand, cone programs against CVXPY, units of curvature."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.losses.base import Cone
from bidro.solvers.bundle.model import ConeModel, ConeProgram, Curvature, Cuts, held_by_cones

MIXTURES = {
    "simplex": Simplex(3),
    "caps": CappedSimplex(np.array([0.0, 0.1, 0.0]), np.array([0.6, 0.5, 0.4])),
    "l1": L1SimplexBall(np.array([0.5, 0.3, 0.2]), 0.4),
}


def two_rounds():
    """Clients 0 and 2 at the origin, all three at (1, 1)."""
    first = Cuts.at_point(
        np.array([0, 2]), np.array([1.0, 5.0]), np.array([[1.0, 0.0], [0.0, 2.0]]), np.zeros(2)
    )
    return first.with_more(
        Cuts.at_point(
            np.arange(3), np.array([2.0, 3.0, 4.0]), np.array([[0, 1], [1, 1], [-1, 0.0]]), np.ones(2)
        )
    )


def test_cuts_by_hand():
    cuts, z = two_rounds(), np.array([2.0, 3.0])
    assert list(cuts.blocks()) == [(0, slice(0, 2)), (1, slice(2, 5))]
    np.testing.assert_array_equal(cuts.at(z), [1 + 2, 5 + 6, 2 + 2, 3 + 1 + 2, 4 - 1])
    np.testing.assert_array_equal(cuts.value, [1, 5, 2, 3, 4])
    np.testing.assert_array_equal(cuts.highest(z, 4), [4.0, 6.0, 11.0, -np.inf])
    np.testing.assert_array_equal(cuts.raised(1, np.array([10.0, 20.0, 30.0])).value, [1, 5, 12, 23, 34])
    np.testing.assert_array_equal(cuts.raised(0, np.array([10.0, 20.0, 30.0])).value, [11, 35, 2, 3, 4])
    kept = cuts.only(np.array([False, False, True, False, True]))
    assert list(kept.blocks()) == [(1, slice(0, 2))]
    np.testing.assert_array_equal(kept.at(z), [4, 3])
    np.testing.assert_array_equal(kept.with_more(cuts).at(z), [4, 3, *cuts.at(z)])
    np.testing.assert_array_equal(Cuts.none(2).with_more(cuts).at(z), cuts.at(z))


@pytest.mark.parametrize("far", [3.0, 1e5, 1e7])
def test_a_norm_in_either_form_is_the_same_constraint(far):
    """min <c, w> + |w|^2 / 2 with ||here + B w|| <= nu + <along, w>, c leading out over the edge: by its
    conditions of optimality, and against CVXPY where that has the digits."""
    rng = np.random.default_rng(4)
    B, along, here = rng.normal(size=(3, 2)), np.array([0.3, -0.2]), rng.normal(size=3)
    here *= far / np.linalg.norm(here)
    c = -3 * (B.T @ here / far - along) + [0.5, 0.2]
    nu = far * (1 + 1e-9)
    program = ConeProgram(2)
    program.at_least_zero(np.full(2, 99.0), np.eye(2))
    program.under_nu(B, here, along, nu)
    w, dual = program.minimise(c, curved=True)
    (y,) = program.norm_multipliers(dual)
    ahead = here + B @ w
    pull = np.linalg.norm(y)
    assert pull > 1
    np.testing.assert_allclose(c + w + B.T @ y - pull * along, 0.0, atol=1e-6)
    np.testing.assert_allclose(y / pull, ahead / np.linalg.norm(ahead), atol=1e-4)
    assert abs(nu + along @ w - np.linalg.norm(ahead)) <= 1e-7 * max(far, 100.0)
    if far == 3:
        v = cp.Variable(2)
        cone = cp.norm(here + B @ v) <= nu + along @ v
        cp.Problem(cp.Minimize(c @ v + cp.sum_squares(v) / 2), [cone, v >= -99]).solve(cp.CLARABEL)
        np.testing.assert_allclose(w, v.value, atol=1e-5)


def test_a_program_without_a_solution_has_none():
    never = ConeProgram(1)
    never.at_least_zero(np.array([-1.0, -1.0]), np.array([[1.0], [-1.0]]))
    assert never.minimise(np.ones(1), curved=False) is None
    infimum_at_infinity = ConeProgram(1)
    infimum_at_infinity.at_least_zero(np.array([1.0]), np.array([[-1.0]]))
    assert infimum_at_infinity.minimise(np.ones(1), curved=False) is None


def test_a_bound_on_a_norm_and_its_multiplier_by_hand():
    """min w1 with ||w|| <= 2 and w2 >= 1: w = (-sqrt 3, 1), and y = 2 w / (2 sqrt 3) holds 1 in w1."""
    program = ConeProgram(2)
    program.at_least_zero(np.array([-1.0]), np.array([[0.0, 1.0]]))
    program.norm_at_most(3 * np.eye(2), np.zeros(2), np.zeros(2), 6.0)
    w, dual = program.minimise(np.array([1.0, 0.0]), curved=False)
    np.testing.assert_allclose(w, [-np.sqrt(3), 1.0], atol=1e-7)
    (y,) = program.norm_multipliers(dual)
    np.testing.assert_allclose(3 * y, w / np.sqrt(3), atol=1e-6)


@pytest.mark.parametrize("name", MIXTURES)
def test_prices_are_the_dual_of_the_worst_mixture(name):
    mixtures, rng = MIXTURES[name], np.random.default_rng(1)
    polytope = mixtures.polytope()
    for c in (rng.normal(size=3), np.zeros(3), np.array([1.0, 1.0, 0.0]), 1e6 * rng.normal(size=3)):
        prices = mixtures.prices(c)
        assert np.all(polytope.matrix.T @ prices >= polytope.lift.T @ c - 1e-9 * (1 + np.abs(c).max()))
        best = polytope.offset @ c + polytope.total @ prices
        assert best == pytest.approx(float(mixtures.linear_maximum(c)[0]), rel=1e-9, abs=1e-9)


def test_prices_where_caps_are_short_of_1_by_rounding():
    settled = CappedSimplex(np.zeros(3), np.array([0.2, 0.5, 0.3 - 5e-10]))
    for c in (np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])):
        prices = settled.prices(c)
        assert settled.polytope().total @ prices == pytest.approx(c @ [0.2, 0.5, 0.3], rel=1e-8)


def test_curvature_where_there_is_little_of_it():
    # None at all: a multiple of the identity.
    flat = Curvature.of(np.zeros((2, 2)), 3.0)
    assert flat.of_step(np.array([1.0, 2.0])) == pytest.approx(0.5 * 3 * 5)
    assert Curvature.of(np.zeros((1, 1))).of_step(np.ones(1)) == pytest.approx(0.5)
    # Of one coordinate only: the other has the same unit, and a small share of it.
    partly = Curvature.of(np.diag([4.0, 0.0]))
    np.testing.assert_allclose(partly.units, [0.5, 0.5])
    assert partly.of_step(np.array([1.0, 0.0])) == pytest.approx(2.0)
    assert partly.of_step(np.array([0.0, 1.0])) == pytest.approx(2.0 * 1e-13, rel=1e-3)
    # The unit of nu, where it has none, is what it changes by when the model does by its own units.
    cones = (Cone(np.diag([3.0, 4.0]), np.zeros(2)), Cone(np.eye(2), np.zeros(2)))
    with_nu = Curvature.of(np.diag([4.0, 4.0, 0.0]), cones=cones)
    np.testing.assert_allclose(with_nu.units, [0.5, 0.5, 2.5])
    np.testing.assert_allclose(Curvature.of(np.diag([4.0, 4.0, 1.0]), cones=cones).units, [0.5, 0.5, 1.0])
    np.testing.assert_allclose(Curvature.of(np.diag([4.0, 4.0, 0.0])).units, [0.5, 0.5, 0.5])


def test_curvature_that_cones_have_is_counted_where_risks_have_less():
    """slope ||B e_j||^2 / nu in coordinate j: all of it where risks have less than a millionth, else a
    hundredth; never less than there is."""
    cones = (Cone(np.diag([2.0, 1.0, 1.0]), np.zeros(3)), Cone(np.eye(3), np.zeros(3)))
    M = np.diag([0.0, 1e-4, 7.0, 5.0])
    M[0, 3] = M[3, 0] = 0.5
    found = held_by_cones(M, cones, slope=3.0, nu=2.0)
    expected = M.copy()
    np.fill_diagonal(expected, [3 * 4 / 2, 1e-2 * 3 / 2, 7.0, 5.0])
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(held_by_cones(np.zeros((4, 4)), cones, 3.0, 2.0), np.diag([6, 1.5, 1.5, 0.0]))


def lifted_model(mixtures, models):
    cones = (Cone(np.eye(2), np.array([0.5, 0.0])), Cone(np.array([[1.0, 1.0]]), np.array([0.2])))
    return ConeModel(models, models, mixtures, cones, nonnegative=False)


def test_the_lift_is_the_largest_of_the_norms():
    model = lifted_model(Simplex(3), Box.cube(1.0, 2))
    np.testing.assert_allclose(model.lift(np.array([0.5, -1.0])), [0.5, -1.0, np.sqrt(2)])
    np.testing.assert_allclose(model.lift(np.array([1.0, 1.0])), [1.0, 1.0, 2.2])
    np.testing.assert_array_equal(model._replace(cones=()).lift(np.ones(2)), np.ones(2))


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("lifted", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("models", [Box.cube(0.7, 2), Ball(np.array([0.1, 0.0]), 0.6)], ids=["box", "ball"])
def test_programs_against_cvxpy(models, name, lifted, curved):
    """The step, the value and what multipliers say, at scales from small to large."""
    mixtures, rng = MIXTURES[name], np.random.default_rng(2)
    model = lifted_model(mixtures, models)
    if not lifted:
        model = model._replace(cones=())
    k = 3 if lifted else 2
    M = np.diag([1.0, 2.0, 0.5])[:k, :k] + 0.1
    for scale in (1.0, 0.05):
        cuts = Cuts.none(k)
        for x in (np.array([0.2, 0.1]), np.array([-0.3, 0.2]), np.array([0.1, -0.4])):
            gradient = rng.normal(size=(3, k))
            if lifted:
                gradient[:, 2] = np.abs(gradient[:, 2])
            cuts = cuts.with_more(Cuts.at_point(np.arange(3), rng.uniform(1, 2, 3), gradient, model.lift(x)))
        z = model.lift(np.array([0.1, -0.4]))
        found = model.solve(cuts, z, Curvature.of(M) if curved else None, scale)
        v, s, y = cp.Variable(k), cp.Variable(3), cp.Variable(len(mixtures.polytope().total))
        limits = [s[i] >= cuts.value[j] + cuts.gradient[j] @ (v - cuts.points[cuts.origin[j]])
                  for j, i in enumerate(cuts.owner)]  # fmt: skip
        limits += [cp.norm(cone.matrix @ v[:2] + cone.offset) <= v[2] for cone in model.cones]
        if isinstance(models, Box):
            limits += [v[:2] >= models.lower, v[:2] <= models.upper]
        else:
            limits += [cp.norm(v[:2] - models.center) <= models.radius]
        polytope = mixtures.polytope()
        limits += [polytope.matrix.T @ y >= polytope.lift.T @ s]
        worst = polytope.offset @ s + polytope.total @ y
        bend = 0.5 * cp.quad_form(v - z, M) if curved else 0.0
        best = cp.Problem(cp.Minimize(worst + bend), limits).solve(cp.CLARABEL)
        reached = found.value + (0.5 * (found.z - z) @ M @ (found.z - z) if curved else 0.0)
        assert reached == pytest.approx(best, abs=2e-6)
        if curved:
            np.testing.assert_allclose(found.z, v.value, atol=2e-4)
        assert bool(models.contains(found.z[:2], 1e-7))
        # Multipliers are weights of A, spread over each client's cuts; shares make the same weights.
        assert np.all(found.multipliers >= 0)
        np.testing.assert_allclose(np.bincount(cuts.owner, found.multipliers, 3), found.alpha, atol=1e-9)
        assert bool(mixtures.contains(found.alpha))
        np.testing.assert_allclose(polytope.offset + polytope.lift @ found.shares, found.alpha, atol=1e-4)
        # They are those of the optimum: stationary in the coordinates that X does not hold.
        slope = found.multipliers @ cuts.gradient + (M @ (found.z - z) if curved else 0.0)
        for cone, y in model.of_cones(found.cone_duals):
            slope[:2] += cone.matrix.T @ y
        if lifted:
            lengths = [np.linalg.norm(y) for _, y in model.of_cones(found.cone_duals)]
            assert slope[2] == pytest.approx(sum(lengths), abs=1e-4)
        if isinstance(models, Box):
            inner = np.abs(found.z[:2]) < 0.7 - 1e-4
            np.testing.assert_allclose(slope[:2][inner], 0.0, atol=1e-4)
        else:
            np.testing.assert_allclose(slope[:2] + found.norm_duals[0], 0.0, atol=1e-4)


def test_a_lower_bound_reaches_to_the_edge_of_a_wide_set():
    """Without curvature nothing keeps a step short: one slope leads to the edge, wherever that is."""
    for half_width in (1.0, 1e5):
        wide = Box.cube(half_width, 2)
        model = ConeModel(wide, wide, Simplex(1), (), nonnegative=False)
        cuts = Cuts.at_point(np.zeros(1, np.int64), np.zeros(1), np.array([[1.0, -0.5]]), np.zeros(2))
        found = model.solve(cuts, np.zeros(2), None, 1.0)
        np.testing.assert_allclose(found.z, [-half_width, half_width], rtol=1e-6)
        assert found.value == pytest.approx(-1.5 * half_width, rel=1e-6)


def test_multipliers_are_moved_to_weights_and_spread_over_the_highest_cuts():
    model = ConeModel(Box.cube(1.0, 2), Box.cube(1.0, 2), MIXTURES["caps"], (), nonnegative=False)
    cuts = two_rounds()
    heights = cuts.at(np.zeros(2))
    multipliers, alpha = model.feasible(cuts, np.array([0.2, 0.3, 0.1, 0.0, 0.3]), heights)
    # Sums (0.3, 0, 0.6): the nearest weights within the caps are (0.45, 0.15, 0.4).
    np.testing.assert_allclose(alpha, [0.45, 0.15, 0.4], atol=1e-12)
    np.testing.assert_allclose(multipliers, [0.3, 0.2, 0.15, 0.15, 0.2], atol=1e-12)
    # A client without any has its weight on the cut that is highest there: of client 0 the second, 4 against
    # 3, and of client 2 the first, 11 against 3.
    multipliers, alpha = model.feasible(cuts, np.zeros(5), cuts.at(np.array([2.0, 3.0])))
    assert alpha.sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(multipliers, [0.0, alpha[2], alpha[0], alpha[1], 0.0])


def test_the_worst_mixture_is_that_of_a_linear_program():
    for mixtures in MIXTURES.values():
        model = ConeModel(Box.cube(1.0, 2), Box.cube(1.0, 2), mixtures, (), nonnegative=False)
        risks, polytope = np.array([0.3, 2.0, 1.0]), mixtures.polytope()
        found = linprog(-polytope.lift.T @ risks, A_eq=polytope.matrix, b_eq=polytope.total)
        assert model.worst_mixture(risks) == pytest.approx(polytope.offset @ risks - found.fun)


@pytest.mark.parametrize("curved", [False, True])
def test_programs_with_groups_of_rows_against_cvxpy(curved):
    """Cones of the largest of each group, beside one without groups: the step and the value."""
    rng = np.random.default_rng(5)
    cones = (
        Cone(rng.normal(size=(4, 3)), rng.normal(size=4), np.array([0, 0, 1, 1])),
        Cone(rng.normal(size=(2, 3)), rng.normal(size=2)),
        Cone(rng.normal(size=(3, 3)), rng.normal(size=3), np.array([0, 0, 1])),
    )
    box, simplex = Box.cube(0.7, 3), Simplex(2)
    model = ConeModel(box, box, simplex, cones, nonnegative=False)
    cuts = Cuts.none(4)
    for x in rng.uniform(-0.5, 0.5, size=(3, 3)):
        gradient = rng.normal(size=(2, 4))
        gradient[:, 3] = 2 + np.abs(gradient[:, 3])  # enough for a cone to hold nu
        cuts = cuts.with_more(Cuts.at_point(np.arange(2), rng.uniform(1, 2, 2), gradient, model.lift(x)))
    z, M = model.lift(np.array([0.1, -0.2, 0.3])), np.diag([1.0, 2.0, 0.5, 0.5]) + 0.1
    found = model.solve(cuts, z, Curvature.of(M) if curved else None, 0.5)
    v, s = cp.Variable(4), cp.Variable(2)
    limits = [s[i] >= cuts.value[j] + cuts.gradient[j] @ (v - cuts.points[cuts.origin[j]])
              for j, i in enumerate(cuts.owner)]  # fmt: skip
    limits += [v[:3] >= -0.7, v[:3] <= 0.7]
    for cone in cones:
        at = cone.matrix @ v[:3] + cone.offset
        groups = np.arange(len(cone.offset)) if cone.groups is None else cone.groups
        tops = [cp.norm_inf(at[np.flatnonzero(groups == one)]) for one in np.unique(groups)]
        limits.append(cp.norm(cp.hstack(tops)) <= v[3])
    bend = 0.5 * cp.quad_form(v - z, M) if curved else 0.0
    best = cp.Problem(cp.Minimize(cp.max(s) + bend), limits).solve(cp.CLARABEL)
    reached = found.value + (0.5 * (found.z - z) @ M @ (found.z - z) if curved else 0.0)
    assert reached == pytest.approx(best, abs=2e-6)
    assert [len(y) for _, y in model.of_cones(found.cone_duals)] == [4, 2, 3]
    slope = found.multipliers @ cuts.gradient + (M @ (found.z - z) if curved else 0.0)
    held = sum(cone.dual_norm(y) for cone, y in model.of_cones(found.cone_duals))
    assert slope[3] == pytest.approx(held, abs=1e-4)
    slope[:3] += sum(cone.matrix.T @ y for cone, y in model.of_cones(found.cone_duals))
    inner = np.abs(found.z[:3]) < 0.7 - 1e-4
    np.testing.assert_allclose(slope[:3][inner], 0.0, atol=1e-4)
