"""What multipliers prove, over all of X: by hand, never more than is true, and mended where a solver's last
digits would cost all of it."""

import cvxpy as cp
import numpy as np
import pytest

from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, ScaledNormCut, Simplex
from bidro.losses.base import Cone
from bidro.solvers.bundle.bound import exact_combination, lower_bound
from bidro.solvers.bundle.model import Answer, ConeModel, Cuts

MIXTURES = {
    "simplex": Simplex(3),
    "caps": CappedSimplex(np.array([0.0, 0.1, 0.0]), np.array([0.6, 0.5, 0.7])),
    "l1": L1SimplexBall(np.array([0.5, 0.3, 0.2]), 0.4),
}
CONES = (
    Cone(np.array([[1.0, 0.2], [0.0, 2.0]]), np.array([0.5, 0.0])),
    Cone(np.eye(2), np.array([0.1, 0.3])),
)


def given(beta, shares=(1.0,), cone_duals=(), norm_duals=(), n=1):
    weights, of_cones = np.full(n, 1 / n), np.concatenate([np.zeros(0), *cone_duals])
    beta, shares = np.asarray(beta), np.asarray(shares)
    return Answer(np.zeros(2), 0.0, beta, weights, shares, of_cones, tuple(norm_duals))


def test_what_two_cuts_prove_by_hand():
    """Half of 3 + 2 x1 and half of 1 - x2, over boxes and balls: as it is, and with what the slope costs."""
    cuts = Cuts.at_point(
        np.zeros(2, np.int64), np.array([3.0, 1.0]), np.array([[2.0, 0], [0, -1.0]]), np.zeros(2)
    )
    for models, lost in (
        (Box(np.array([-1.0, -2.0]), np.array([5.0, 4.0])), 1.0 + 0.5 * 4),
        (Ball(np.zeros(2), 2.0), 2 * np.sqrt(1 + 0.25)),
        (Ball(np.array([3.0, 1.0]), 2.0), 2 * np.sqrt(1.25) - (3.0 - 0.5)),
    ):
        model = ConeModel(models, models, Simplex(1), (), nonnegative=False)
        # All that is wanted is reached, so that nothing is mended.
        proof = lower_bound(model, cuts, np.zeros(2), given([0.5, 0.5]), 9.0, -np.inf)
        assert proof.bound == pytest.approx(2.0 - lost)
        assert proof.lost == pytest.approx(lost)
        # Known elsewhere, they say the same of all of X.
        moved = lower_bound(model, cuts, np.array([1.0, 1.0]), given([0.5, 0.5]), 9.0, -np.inf)
        assert moved.bound == pytest.approx(2.0 - lost)


def test_what_a_cone_proves_by_hand():
    """4 nu with nu >= ||(x1 + 0.5, x2)|| is at least 4 <y, (x1 + 0.5, x2)> for any y of length 1."""
    cone = Cone(np.eye(2), np.array([0.5, 0.0]))
    box = Box.cube(1.0, 2)
    model = ConeModel(box, box, Simplex(1), (cone,), nonnegative=False)
    z = model.lift(np.array([0.5, 0.0]))
    cuts = Cuts.at_point(np.zeros(1, np.int64), np.array([4.0]), np.array([[0.0, 0.0, 4.0]]), z)
    for y, bound in (
        (np.array([0.0, 0.0]), 0.0),
        (np.array([4.0, 0.0]), 2.0 - 4.0),
        (np.array([-2.0, 0.0]), -1.0 - 2.0),
        # Too long a vector is shortened to length 4.
        (np.array([40.0, 0.0]), 2.0 - 4.0),
        (np.array([0.0, -8.0]), -4.0),
    ):
        proof = lower_bound(model, cuts, z, given([1.0], cone_duals=[y]), 9.0, -np.inf)
        assert proof.bound == pytest.approx(bound, abs=1e-12)
    # A risk that falls as nu rises is nonsense and proves nothing.
    odd = cuts._replace(gradient=-cuts.gradient)
    assert lower_bound(model, odd, z, given([1.0], cone_duals=[np.zeros(2)]), 9.0, -np.inf).bound == -np.inf


def test_what_a_cut_of_the_models_proves_by_hand():
    """1 + 2 x1 where ||x|| <= 0.5: the box gives -1, the norm's multiplier (-2, 0) gives 0."""
    box = Box.cube(1.0, 2)
    small = ScaledNormCut(box, np.ones(2), 0.5)
    model = ConeModel(small, small, Simplex(1), (), nonnegative=False)
    cuts = Cuts.at_point(np.zeros(1, np.int64), np.ones(1), np.array([[2.0, 0.0]]), np.zeros(2))
    for y, bound in ((np.zeros(2), -1.0), (np.array([-2.0, 0.0]), 0.0), (np.array([-1.0, 0.0]), -0.5)):
        proof = lower_bound(model, cuts, np.zeros(2), given([1.0], norm_duals=[y]), 9.0, -np.inf)
        assert proof.bound == pytest.approx(bound, abs=1e-12)


def test_a_cone_that_holds_nothing_cancels_a_slope_of_next_to_nothing():
    """At x = (1, 0.5), nu = 1 the cuts 2 + 4 (nu - x1) + 1e-9 (x2 - 0.5) and 2 + 4 (nu - 1) - 3 (x1 - 1)
    meet; nu >= |x1| holds the model and nu >= |x2| does not. The first cut and its multiplier of 4 leave a
    slope of 1e-9, which costs 1e-3 over X. A multiplier of -1e-9 of the second cone takes it away, at the
    expense of the first, for which 1e-9 of the second cut makes up: all of it costs 1e-9 (|x2| + nu)."""
    cones = (Cone(np.array([[1.0, 0.0]]), np.zeros(1)), Cone(np.array([[0.0, 1.0]]), np.zeros(1)))
    wide = Box.cube(1e6, 2)
    model = ConeModel(wide, wide, Simplex(1), cones, nonnegative=True)
    z = model.lift(np.array([1.0, 0.5]))
    slopes = np.array([[-4.0, 1e-9, 4.0], [-3.0, 0.0, 4.0]])
    cuts = Cuts.at_point(np.zeros(2, np.int64), np.full(2, 2.0), slopes, z)
    answer = given([1.0, 0.0], cone_duals=[np.array([4.0]), np.array([0.0])])
    assert lower_bound(model, cuts, z, answer, 9.0, -np.inf).bound == pytest.approx(2.0 - 1e-3, rel=1e-6)
    proof = lower_bound(model, cuts, z, answer, 2.0, 2.0 - 1e-6)
    assert 2.0 - 2e-9 <= proof.bound <= 2.0 - 1.5e-9 + 1e-14


def test_a_client_trades_no_more_than_its_weight():
    """Two clients of weights 0.999 and 0.001 whose cuts leave a slope of 1e-3, which costs 1 over X. The
    second has a cut of slope -0.5 for nothing, of which it would take twice its weight; the first has one of
    slope -1 that is lower by 1e-4, of which 1e-3 does it."""
    wide, weights = Box.cube(1e3, 1), np.array([0.999, 0.001])
    model = ConeModel(wide, wide, CappedSimplex(weights, weights), (), nonnegative=True)
    slopes = np.array([[1e-3 / 0.999], [0.0], [-1.0], [-0.5]])
    cuts = Cuts.at_point(np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 1 - 1e-4, 1.0]), slopes, np.zeros(1))
    shares = np.zeros(model.mixtures.polytope().lift.shape[1])
    answer = given([0.999, 0.001, 0.0, 0.0], shares)._replace(alpha=weights)
    proof = lower_bound(model, cuts, np.zeros(1), answer, 1.0, 1.0 - 1e-6)
    assert 1.0 - 1e-6 <= proof.bound <= 1.0


def quadratics(rng, lifted, offset):
    """Cuts of three quadratics, some of which rise with nu, at points around the origin."""
    k = 3 if lifted else 2
    centre, base = 0.5 * rng.normal(size=(3, 2)), offset + rng.uniform(0, 0.3, 3)
    steep = np.array([0.5, 0.2, 0.8])
    model = ConeModel(Box.cube(1.0, 2), Box.cube(1.0, 2), Simplex(3), CONES if lifted else (), True)
    cuts = Cuts.none(k)
    for x in 0.6 * rng.normal(size=(12, 2)):
        z = model.lift(x)
        away = x - centre
        value = base + (away**2).sum(axis=1) + (steep * z[2] if lifted else 0.0)
        gradient = np.column_stack([2 * away, steep]) if lifted else 2 * away
        cuts = cuts.with_more(Cuts.at_point(np.arange(3), value, gradient, z))
    return model, cuts


def least(model, cuts):
    """The minimum over X of the worst mixture of the highest cuts, by CVXPY."""
    k = cuts.points.shape[1]
    v, s, polytope = cp.Variable(k), cp.Variable(3), model.mixtures.polytope()
    y = cp.Variable(len(polytope.total))
    heights = cuts.value - np.sum(cuts.gradient * cuts.points[cuts.origin], axis=1)
    limits = [s[cuts.owner] >= heights + cuts.gradient @ v, polytope.matrix.T @ y >= polytope.lift.T @ s]
    limits += [v[:2] >= model.models.lower, v[:2] <= model.models.upper]
    limits += [cp.norm(cone.matrix @ v[:2] + cone.offset) <= v[2] for cone in model.cones]
    problem = cp.Problem(cp.Minimize(polytope.offset @ s + polytope.total @ y), limits)
    return problem.solve(cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)


@pytest.mark.parametrize("lifted", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_multipliers_that_are_a_little_off_are_mended(name, lifted):
    """The slope that their error leaves costs far more over a wide X than the error itself: mended, they
    prove what those of the optimum do but for a hundredth of that, and never more."""
    rng = np.random.default_rng(0)
    for half_width in (1.0, 1e4):
        model, cuts = quadratics(rng, lifted, 2.0)
        X = Box.cube(half_width, 2)
        model = model._replace(models=X, finite=X, mixtures=MIXTURES[name])
        z = model.lift(np.zeros(2))
        best = least(model._replace(models=Box.cube(1.0, 2)), cuts)
        answer = model.solve(cuts, z, None, 1.0)
        bumps = 1e-6 * rng.normal(size=len(cuts.owner))
        multipliers, alpha = model.feasible(cuts, answer.multipliers * (1 + bumps), cuts.at(z))
        off = answer._replace(
            multipliers=multipliers,
            alpha=alpha,
            cone_duals=answer.cone_duals * (1 + 1e-6 * rng.normal(size=len(answer.cone_duals))),
        )
        plain = lower_bound(model, cuts, z, off, best, -np.inf)
        mended = lower_bound(model, cuts, z, off, best, np.inf)
        assert plain.bound <= mended.bound <= best + 1e-7
        assert bool(MIXTURES[name].contains(mended.alpha))
        assert best - mended.bound <= 1e-6 + 0.01 * (best - plain.bound)
        if half_width > 1:
            assert plain.bound < best - 1e-4


@pytest.mark.parametrize("lifted", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_no_multipliers_prove_more_than_the_optimum_of_the_cuts(name, lifted):
    rng = np.random.default_rng(1)
    for _ in range(2):
        model, cuts = quadratics(rng, lifted, 0.0)
        model = model._replace(mixtures=MIXTURES[name])
        best, z = least(model, cuts), model.lift(0.3 * rng.normal(size=2))
        for _ in range(8):
            raw = rng.exponential(size=len(cuts.owner)) * (rng.uniform(size=len(cuts.owner)) < 0.3)
            multipliers, alpha = model.feasible(cuts, raw, cuts.at(z))
            cone_duals = [rng.normal(size=len(cone.offset)) for cone in model.cones]
            shares = rng.exponential(size=model.mixtures.polytope().lift.shape[1])
            tried = given(multipliers, shares=shares, cone_duals=cone_duals)._replace(alpha=alpha)
            for enough in (-np.inf, np.inf):
                proof = lower_bound(model, cuts, z, tried, -np.inf, enough)
                assert proof.bound <= best + 1e-8
                # What is proven without mending is the sum's minimum at a corner, where the cones let it be.
                if enough < 0 and not lifted:
                    corners = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)])
                    sums = [multipliers @ cuts.at(corner) for corner in corners]
                    assert proof.bound == pytest.approx(min(sums), abs=1e-9)
                    assert proof.lost == pytest.approx(multipliers @ cuts.at(z) - min(sums), abs=1e-9)


def test_combinations_of_numbers_of_any_size():
    """Where splitting would overflow the products are summed as they are; zeros times anything count for
    nothing."""
    huge = exact_combination(np.array([1e300, -1e300, 1.0]), np.array([[1.0], [1.0], [3.0]]))
    assert huge.tolist() == [3.0]
    assert exact_combination(np.array([0.0, 2.0]), np.array([[np.inf], [1.5]])).tolist() == [3.0]
    # 1/3 as it is stored is 2^-54 / 3 short of a third.
    assert exact_combination(np.array([1 / 3, 1 / 3, 1 / 3, -1.0]), np.ones((4, 1))).tolist() == [-(2.0**-54)]
