"""Solutions from second moments, against the exact solver over rows and in the places that are hard."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.algorithms import ExactMWDRO, OneShotMWDRO, moment_newton, second_moments
from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.exact_messages import Broadcast
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.moment_newton import _weights, minimax_from_moments
from bidro.algorithms.one_shot import risks_from_moments, squared_risks
from bidro.client import WassersteinBall
from bidro.engines.in_process import all_replies
from bidro.engines.solve import solve
from bidro.federation import Federation
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.sets import Ball, Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.transport import Transport
from bidro.worst_case import Exact
from tests.sets.test_sets import constraints
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
    return second_moments.of_clients(np.asarray(whole.federation.samples), whole.federation.sizes)


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
    cones = tuple(whole.loss.steepness_cones(whole.transport.inverse_scale)) if whole.lifted else ()
    risks = squared_risks(moments_of(whole), whole.loss, cones)
    eps = np.zeros(4) if whole.eps is None else np.asarray(whole.eps)
    weights = np.asarray(whole.initial_weights)
    for start in (np.zeros(whole.dimension), np.full(whole.dimension, 0.2), np.asarray(optimum.x)):
        for gap in (1e-1, 1e-4):
            found = minimax_from_moments(risks, eps, whole.models, whole.mixture_set, start, weights, gap)
            assert found.lower <= optimum.upper * (1 + 1e-12)
            assert found.upper >= optimum.lower * (1 - 1e-12)
            assert whole.mixture_set.contains(found.alpha)


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
    risks = squared_risks(
        moments_of(whole), whole.loss, tuple(whole.loss.steepness_cones(whole.transport.inverse_scale))
    )
    rng = np.random.default_rng(2)
    x, eps, alpha, h = (
        rng.normal(size=4),
        np.array([0.1, 0.0, 0.4, 0.2]),
        np.array([0.2, 0.5, 0.0, 0.3]),
        1e-5,
    )
    here = risks.at(x, eps)
    np.testing.assert_allclose(here.values, risks.values(x, eps), rtol=1e-14)
    for j, step in enumerate(h * np.eye(4)):
        up, down = risks.at(x + step, eps), risks.at(x - step, eps)
        np.testing.assert_allclose(here.gradients[:, j], (up.values - down.values) / (2 * h), rtol=1e-6)
        bent = alpha @ (up.gradients - down.gradients) / (2 * h)
        np.testing.assert_allclose(here.curvature(alpha)[j], bent, rtol=1e-5, atol=1e-6)


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
            ours, corners = _weights(mixtures, r, image, begin, 1e-10)
            assert float(r @ ours - 0.5 * np.sum((image @ ours) ** 2)) == pytest.approx(best, abs=1e-7)
            assert mixtures.contains(ours)
            assert len(corners) <= 4


def test_weights_end_where_rounding_hides_what_is_left():
    """Collinear images, and nothing that counts as enough: a corner is taken up once."""
    rng = np.random.default_rng(4)
    image = rng.normal(size=(3, 40))
    image[2] = image[0]
    _, corners = _weights(Simplex(40), rng.normal(size=40), 1e3 * image, np.full((1, 40), 1 / 40), 0.0)
    assert len(corners) == len(np.unique(corners, axis=0)) <= 4


def test_every_candidate_is_solved_to_the_gap_also_where_newton_is_not_enough():
    """A model set in the way: each candidate's risk is that of a solve over the training rows."""
    whole = problem(radius=0.0, models=Box.cube(0.3, 4))
    marks = whole.federation.folds(3, 1)
    samples, sizes = np.asarray(whole.federation.samples), np.array(SIZES)
    trained = second_moments.of_folds(samples, sizes, marks, 3)
    candidates = tuple(Candidate(c, k) for c in (0.0, 2.0) for k in (1.0, 2.0, np.inf))
    losses = fold_losses(FoldMoments(candidates, 3, 1.0, gap=1e-5), whole, trained)
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
                part, whole.loss, whole.models, whole.transport, WassersteinBall(eps), one.mixtures(SIZES)
            )
            x = solve(own, 1e-7).x
            for i, other in enumerate(left_out):
                again[i, j] += np.sum((other[:, :3] @ x[:3] + x[3] - other[:, 3]) ** 2) / SIZES[i]
    np.testing.assert_allclose(losses, again, rtol=3e-3)


def test_one_round_is_all_that_is_asked_for():
    whole = problem()
    assert solve(whole, 1e-8, "one-shot").rounds == 1
    assert OneShotMWDRO(1e-8).evidence == "all rows"


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
    risks = squared_risks(second_moments.of_clients(np.concatenate(parts), [size] * n), loss, cones)
    mixtures, begin = CappedSimplex.around_proportions(np.full(n, size), 2.0), np.zeros(k + 1)

    def gap():
        models, even = Box.cube(100.0, k + 1), np.full(n, 1 / n)
        found = minimax_from_moments(risks, np.zeros(n), models, mixtures, begin, even, 1e-9)
        return (found.upper - found.lower) / found.size

    assert gap() <= 1e-9
    monkeypatch.setattr(moment_newton, "_SHARE_FOR_WEIGHTS", 1e7)
    assert gap() <= 1e-9
    monkeypatch.setattr(moment_newton, "_LEAST_SHARE", 1e7)
    assert gap() > 1e-3
