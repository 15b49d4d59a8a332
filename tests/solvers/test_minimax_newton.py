"""Minimax by Newton's method from second moments, against the exact solver over rows and in the
places that are hard."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import all_replies
from bidro.losses import Squared
from bidro.losses.base import Cone
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import MomentsOracle, of_clients, of_folds
from bidro.risk.oracle import Lift, QuadraticRisks
from bidro.risk.transport import Transport
from bidro.selection.cross_validate import Candidate
from bidro.solvers import minimax_newton as newton
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import OneShotMWDRO, risks_from_moments
from bidro.solvers.bundle.state import Broadcast
from bidro.solvers.minimax_newton import _best_mix, _Pieces, minimax_newton
from bidro.solvers.solve import solve
from tests.core.sets.test_sets import constraints
from tests.small import fold_losses

SIZES = (30, 50, 80, 40)


def problem(radius=0.1, models=None, mixtures=None, transport=None, intercept=True, d=3, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    parts = []
    for k, size in enumerate(SIZES):
        theta = rng.normal(size=(size, d)) + 0.2 * k
        y = theta @ rng.normal(size=d) + noise * rng.normal(size=size) + 1
        parts.append(np.column_stack([theta, y]))
    federation = Federation.from_arrays(parts, "unbounded")
    ambiguity = None if radius is None else WassersteinBall(radius)
    models = Box.cube(50.0, d + intercept) if models is None else models
    transport = Transport.features_only(d + 1) if transport is None else transport
    return Problem(federation, Squared(intercept), models, transport, ambiguity, mixtures)


def moments_of(whole):
    return of_clients(np.asarray(whole.federation.samples), whole.federation.sizes)


def oracle_of(whole, eps=None):
    cones = tuple(whole.loss.steepness_cones(whole.transport.inverse_scale)) if whole.lifted else ()
    if eps is None:
        eps = np.zeros(4) if whole.eps is None else np.asarray(whole.eps)
    return MomentsOracle.given(whole.loss, moments_of(whole), eps, Lift(cones))


SHARE = np.array(SIZES) / sum(SIZES)
HARD = {
    "any mixture": {},
    "capped": {"mixtures": CappedSimplex.around_proportions(np.array(SIZES), 1.5)},
    "fixed": {"mixtures": CappedSimplex.around_proportions(np.array(SIZES), 1.0)},
    "near the proportions": {"mixtures": L1SimplexBall(SHARE, 0.4)},
    "targets move": {"transport": Transport.euclidean(4), "radius": 0.5},
    "no intercept": {"intercept": False},
    "no ambiguity": {"radius": None},
    "no radius": {"radius": 0.0},
    "own radii": {"radius": [0.0, 0.3, 0.1, 0.2], "mixtures": Simplex(4)},
    "a radius that flattens the model": {"radius": 30.0},
    "a model set in the way": {"models": Box.cube(0.3, 4)},
    "a ball in the way": {"models": Ball(np.zeros(4), 0.5)},
    "an exact fit": {"noise": 0.0, "seed": 0, "d": 2, "radius": 0.2, "transport": Transport.features_only(3)},
}


@pytest.mark.parametrize("case", HARD)
def test_the_solution_is_that_of_the_exact_solver_over_rows(case):
    whole = problem(**HARD[case])
    found = solve(whole, 1e-7, "one-shot", moments=moments_of(whole))
    over_rows = solve(whole, 1e-7, "curvature")
    assert found.gap <= 1e-7
    assert found.certified
    assert found.upper == pytest.approx(over_rows.upper, rel=3e-7)
    assert found.lower <= over_rows.upper * (1 + 1e-12)
    assert over_rows.lower <= found.upper * (1 + 1e-12)
    assert whole.mixture_set.contains(found.alpha)
    assert whole.models.contains(found.x)
    np.testing.assert_allclose(found.risks, over_rows.risks, rtol=2e-3)


def test_it_goes_on_to_a_smaller_gap_and_begins_where_it_is_told():
    whole = problem()
    coarse = solve(whole, 1e-2, "one-shot")
    fine = solve(whole, 1e-9, "one-shot", resume=coarse)
    assert fine.gap <= 1e-9
    again = solve(whole, 1e-9, "one-shot", moments=moments_of(whole), start=fine.x)
    np.testing.assert_allclose(again.upper, fine.upper, rtol=2e-9)


@pytest.mark.parametrize("case", HARD)
def test_bounds_hold_wherever_the_search_ends(case):
    """Whatever it stops for, the optimum lies between its bounds; from a far start too."""
    whole = problem(**HARD[case])
    optimum = solve(whole, 1e-8, "curvature")
    risks, weights = oracle_of(whole), np.asarray(whole.initial_weights)[None]
    for start in (np.zeros(whole.dimension), np.full(whole.dimension, 0.2), np.asarray(optimum.x)):
        for gap in (1e-1, 1e-4):
            (found,) = minimax_newton(risks, whole.models, [whole.mixture_set], start[None], weights, gap)
            assert found.lower <= optimum.upper * (1 + 1e-12)
            assert found.upper >= optimum.lower * (1 - 1e-12)
            assert whole.mixture_set.contains(found.alpha)
            assert whole.models.contains(found.x)
            assert found.settled == (found.upper - found.lower <= gap * found.size)


def test_many_solves_in_the_same_batches_are_those_of_each():
    """Radii of two scales and mixtures of two kinds, from different starts: a solve that ends before the
    others leaves the batch, and changes nothing for them."""
    whole = problem(radius=0.0)
    scales, rng = np.array([0.0, 0.5, 2.0, 0.5]), np.random.default_rng(5)
    mixtures = [HARD["capped"]["mixtures"], Simplex(4), Simplex(4), HARD["fixed"]["mixtures"]]
    starts, weights = rng.normal(size=(4, 4)), np.tile(SHARE, (4, 1))
    starts[1] = solve(whole, 1e-8).x
    alone = oracle_of(whole)
    risks, sizes = (
        MomentsOracle(alone.loss, alone.of, lambda _: np.array(SIZES, float), alone.eps, alone.lift),
        [],
    )
    view = risks.with_radii(np.zeros(4), scales)
    together = minimax_newton(view, whole.models, mixtures, starts, weights, 1e-9, progress=sizes.append)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
    assert len(set(sizes)) > 2
    for j, found in enumerate(together):
        one = risks.with_radii(np.zeros(4), scales[j])
        (own,) = minimax_newton(
            one, whole.models, mixtures[j : j + 1], starts[j : j + 1], weights[j : j + 1], 1e-9
        )
        np.testing.assert_array_equal(found.x, own.x)
        np.testing.assert_array_equal(found.alpha, own.alpha)
        assert (found.upper, found.lower, found.settled) == (own.upper, own.lower, True)


def test_a_search_that_is_stopped_says_so_and_its_bounds_hold():
    whole = problem(radius=0.3)
    optimum, risks = solve(whole, 1e-8), oracle_of(whole)
    for certified in (True, False):
        (found,) = minimax_newton(
            risks, whole.models, [Simplex(4)], np.zeros((1, 4)), SHARE[None], 1e-9, certified=certified,
            most_rounds=2,
        )  # fmt: skip
        assert not found.settled
        assert found.lower <= optimum.upper
        assert optimum.lower <= found.upper


@pytest.mark.parametrize("radius", [0.3, None])
@pytest.mark.parametrize("intercept", [True, False])
def test_risks_from_moments_are_what_clients_reply(radius, intercept):
    whole = problem(radius=radius, intercept=intercept)
    x = np.random.default_rng(1).normal(size=whole.dimension)
    exact = ExactMWDRO(Exact())
    at = Broadcast(jnp.asarray(x), jnp.asarray(1.5))
    replies = all_replies(exact, whole.clients, jax.random.key(0), at, jnp.asarray(1))
    eps = np.zeros(4) if radius is None else np.full(4, radius)
    ours = risks_from_moments(whole.lifted, moments_of(whole), eps, whole.inner, x, 1.5)
    for name, part, theirs in zip(ours._fields, ours, replies, strict=True):
        assert isinstance(part, np.ndarray), name
        np.testing.assert_allclose(part, theirs, rtol=1e-9, atol=1e-11, err_msg=name)


def test_the_slopes_and_curvature_of_risks_are_those_of_finite_differences():
    whole = problem(radius=0.4, transport=Transport.euclidean(4))
    rng = np.random.default_rng(2)
    x, eps, alpha, h = (
        rng.normal(size=4),
        np.array([0.1, 0.0, 0.4, 0.2]),
        np.array([0.2, 0.5, 0.0, 0.3]),
        1e-5,
    )
    risks = oracle_of(whole, eps)

    def around(x):
        return risks.lift.chained(risks.expand(x[None]), 0, x)

    here = around(x)
    np.testing.assert_allclose(here.values, risks.values(x[None])[0], rtol=1e-14)
    for j, step in enumerate(h * np.eye(4)):
        up, down = around(x + step), around(x - step)
        np.testing.assert_allclose(here.gradients[:, j], (up.values - down.values) / (2 * h), rtol=1e-6)
        bent = alpha @ (up.gradients - down.gradients) / (2 * h)
        np.testing.assert_allclose(here.hessian(alpha)[j], bent, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mixtures", [Simplex(4), HARD["capped"]["mixtures"], L1SimplexBall(SHARE, 0.4)])
def test_weights_maximise_the_quadratic_over_the_mixtures(mixtures):
    """Against a cone solver, from the proportions and from corners that are of no use."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        r, image = rng.normal(size=4), rng.normal(size=(2, 4))
        alpha = cp.Variable(4)
        objective = r @ alpha - 0.5 * cp.sum_squares(image @ alpha)
        best = cp.Problem(cp.Maximize(objective), constraints(mixtures, alpha)).solve(solver=cp.CLARABEL)
        worst = mixtures.linear_maximum(-r)[1]
        for begin in (SHARE[None], np.stack([worst, SHARE])):
            ours, corners = _best_mix(mixtures, _Pieces(None, r, r, None), image, begin, 1e-10)
            assert float(r @ ours - 0.5 * np.sum((image @ ours) ** 2)) == pytest.approx(best, abs=1e-7)
            assert mixtures.contains(ours)
            assert len(corners) <= 4


@pytest.mark.parametrize("certified", [True, False])
def test_the_largest_of_several_norms_is_mixed_as_risks_are(certified):
    """Risks that rise with the largest of three norms: against a cone solver, at radii at which one norm
    decides and at which several tie."""
    rng = np.random.default_rng(6)
    n, d = 4, 5
    for radius in (0.1, 1.0, 5.0):
        cones = tuple(Cone(rng.normal(size=(3, d)), rng.normal(size=3)) for _ in range(3))
        root, z = rng.normal(size=(n, d, d)), np.zeros(d + 1)
        H = np.zeros((n, d + 1, d + 1))
        H[:, :d, :d] = root @ root.swapaxes(1, 2) + 0.1 * np.eye(d)
        g = np.column_stack([rng.normal(size=(n, d)), np.full(n, radius)])
        risks = QuadraticRisks(z, 3 + rng.normal(size=n), g, H, Lift(cones))
        x, t, top = cp.Variable(d), cp.Variable(), cp.Variable()
        each = [
            risks.risks[i] + g[i, :d] @ x + 0.5 * cp.quad_form(x, H[i, :d, :d]) + radius * t for i in range(n)
        ]
        within = [cp.norm(c.matrix @ x + c.offset) <= t for c in cones] + [one <= top for one in each]
        best = cp.Problem(cp.Minimize(top), within).solve(solver=cp.CLARABEL)
        start = 2 * rng.normal(size=(1, d))
        (found,) = minimax_newton(
            risks, Box.cube(50.0, d), [Simplex(n)], start, np.full((1, n), 1 / n), 1e-7, certified=certified
        )
        assert found.settled
        assert float(risks.values(found.x[None]).max()) == pytest.approx(best, rel=1e-6)
        assert not certified or found.lower <= best * (1 + 1e-8)


def test_weights_end_where_rounding_hides_what_is_left():
    """Collinear images, and nothing that counts as enough: a corner is taken up once."""
    rng = np.random.default_rng(4)
    image = rng.normal(size=(3, 40))
    image[2] = image[0]
    r = rng.normal(size=40)
    pieces = _Pieces(None, r, r, None)
    _, corners = _best_mix(Simplex(40), pieces, 1e3 * image, np.full((1, 40), 1 / 40), 0.0)
    assert len(corners) == len(np.unique(corners, axis=0)) <= 4


def test_every_candidate_is_solved_to_the_gap_also_where_newton_is_not_enough():
    """A model set in the way: each candidate's risk is that of a solve over the training rows."""
    whole = problem(radius=0.0, models=Box.cube(0.3, 4))
    marks = whole.federation.folds(3, 1)
    samples, sizes = np.asarray(whole.federation.samples), np.array(SIZES)
    trained = of_folds(samples, sizes, marks, 3)
    candidates = tuple(Candidate(c, k) for c in (0.0, 2.0) for k in (1.0, 2.0, np.inf))
    losses = fold_losses(whole, candidates, trained)
    again = np.zeros((4, len(candidates)))
    ends = np.cumsum(sizes)[:-1]
    for fold in range(3):
        keep = [of != fold for of in np.split(marks, ends)]
        rows = [own[k] for own, k in zip(np.split(samples, ends), keep, strict=True)]
        left_out = [own[~k] for own, k in zip(np.split(samples, ends), keep, strict=True)]
        part = Federation.from_arrays(rows, "unbounded")
        for j, one in enumerate(candidates):
            eps = one.scale / np.sqrt([len(own) for own in rows])
            own = Problem(
                part,
                whole.loss,
                whole.models,
                whole.transport,
                WassersteinBall(eps),
                one.mixture_spec.mixtures(SIZES),
            )
            x = solve(own, 1e-7).x
            for i, other in enumerate(left_out):
                again[i, j] += np.sum((other[:, :3] @ x[:3] + x[3] - other[:, 3]) ** 2) / SIZES[i]
    np.testing.assert_allclose(losses, again, rtol=3e-3)


def test_one_round_is_all_that_is_asked_for():
    whole = problem()
    assert solve(whole, 1e-8, "one-shot").rounds == 1
    assert OneShotMWDRO(1e-8).rows_behind == "all rows"


def test_weights_are_found_more_closely_where_their_error_hides_what_a_step_brings(monkeypatch):
    """Of forty clients whose weights are far off at first, steps bring nothing; the gap is reached anyway."""
    n, k, size = 40, 6, 25
    rng = np.random.default_rng(0)
    slopes, parts = rng.normal(size=k), []
    for _ in range(n):
        theta = rng.normal(size=(size, k))
        y = theta @ (slopes + 0.3 * rng.normal(size=k)) + 0.5 * rng.normal(size=size)
        parts.append(np.column_stack([theta, y]))
    loss = Squared(True)
    cones = tuple(loss.steepness_cones(Transport.features_only(k + 1).inverse_scale))
    moments = of_clients(np.concatenate(parts), [size] * n)
    risks = MomentsOracle.given(loss, moments, np.zeros(n), Lift(cones))
    mixtures, begin = CappedSimplex.around_proportions(np.full(n, size), 2.0), np.zeros(k + 1)

    def gap():
        models, even = Box.cube(100.0, k + 1), np.full((1, n), 1 / n)
        (found,) = minimax_newton(risks, models, [mixtures], begin[None], even, 1e-9)
        return (found.upper - found.lower) / found.size

    assert gap() <= 1e-9
    monkeypatch.setattr(newton, "_SHARE_FOR_WEIGHTS", 1e7)
    assert gap() <= 1e-9
    monkeypatch.setattr(newton, "_LEAST_SHARE", 1e7)
    assert gap() > 1e-3
