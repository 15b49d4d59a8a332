"""Mixtures that no linear program states: the solver holds corners that the support function finds."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from bidro import (
    Absolute,
    Box,
    ChiSquaredSimplexBall,
    ConstrainedSimplex,
    Federation,
    KLSimplexBall,
    MixtureSet,
    Problem,
    Squared,
    Transport,
    WassersteinBall,
    pytree,
    solve,
)
from bidro.core.pytrees import namespace

N = 4


@pytree
class AroundEven(MixtureSet):
    """Mixtures within a Euclidean distance of (1/n, ..., 1/n) at which no weight is below 0."""

    even: np.ndarray
    radius: float

    @property
    def dimension(self):
        return len(self.even)

    def project(self, v):
        xp = namespace(v)
        away = v - xp.mean(v)
        return self.even + away * xp.minimum(1.0, self.radius / xp.maximum(xp.linalg.norm(away), 1e-300))

    def linear_maximum(self, c):
        xp = namespace(c)
        away = c - xp.mean(c)
        alpha = self.even + away * (self.radius / xp.maximum(xp.linalg.norm(away), 1e-300))
        return c @ alpha, alpha


def problem(loss, radius, eps):
    rng = np.random.default_rng(7)
    parts = []
    for i in range(N):
        theta = rng.normal(size=(12 + i, 3))
        y = theta @ (np.ones(3) + 0.7 * rng.normal(size=3)) + (0.3 + 0.3 * i) * rng.normal(size=12 + i)
        parts.append(np.column_stack([theta, y]))
    federation = Federation.from_arrays(parts, "unbounded")
    models, ball = Box.cube(20.0, 4), WassersteinBall(np.full(N, eps))
    mixtures = AroundEven(np.full(N, 1 / N), radius)
    return parts, Problem(federation, loss, models, Transport.features_only(4), ball, mixtures)


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize(
    ("word", "method"),
    [
        ("squared", "curvature"),
        ("squared", "gradients"),
        ("squared", "one-shot"),
        ("absolute", "curvature"),
        ("absolute", "gradients"),
    ],
)
def test_the_optimum_is_that_of_a_cone_solver(word, eps, method):
    loss = Squared(True) if word == "squared" else Absolute(True)
    parts, whole = problem(loss, 0.25, eps)
    x, t = cp.Variable(4), cp.Variable(N)
    within = []
    for own, top in zip(parts, t, strict=True):
        away, nu = own[:, :3] @ x[:3] + x[3] - own[:, 3], cp.norm(x[:3])
        if word == "squared":
            root = cp.norm(away) / np.sqrt(len(own)) + eps * nu
            within.append(cp.square(root) <= top)
        else:
            within.append(cp.sum(cp.abs(away)) / len(own) + eps * nu <= top)
    worst = cp.sum(t) / N + 0.25 * cp.norm(t - cp.sum(t) / N)
    # The support function rises with every risk here: no weight can be 0.
    best = cp.Problem(cp.Minimize(worst), within).solve(solver=cp.CLARABEL)
    found = solve(whole, 1e-6, method)
    assert found.gap <= 1e-6
    assert found.lower <= best * (1 + 1e-7)
    assert found.upper >= best * (1 - 1e-7)
    assert whole.mixture_set.contains(np.asarray(found.alpha))


def test_a_single_mixture_and_no_linear_program():
    """Of a radius of 0 the set holds one mixture: the mean of the clients."""
    _, whole = problem(Squared(True), 0.0, 0.2)
    even = solve(replace(whole, mixtures=None, ambiguity=whole.ambiguity), 1e-7)
    found = solve(whole, 1e-7)
    np.testing.assert_allclose(found.alpha, np.full(N, 1 / N), atol=1e-9)
    assert found.upper <= even.upper


CENTER = np.array([0.4, 0.3, 0.2, 0.1])


def worst_of(mixtures, t):
    """(max over the set of <alpha, t> by its dual in cvxpy, constraints)."""
    match mixtures:
        case ChiSquaredSimplexBall(center, radius):
            eta = cp.Variable()
            return eta + np.sqrt(1 + radius) * cp.norm(cp.multiply(np.sqrt(center), cp.pos(t - eta))), []
        case KLSimplexBall(center, radius):
            level, price, parts = cp.Variable(), cp.Variable(nonneg=True), cp.Variable(N)
            cone = cp.ExpCone(t - level + price * np.log(center), price * np.ones(N), parts)
            return level + price * radius, [cone, cp.sum(parts) <= price]
        case ConstrainedSimplex(matrix, bound):
            prices = cp.Variable(len(bound), nonneg=True)
            return cp.max(t - matrix.T @ prices) + bound @ prices, []


@pytest.mark.parametrize("word", ["squared", "absolute"])
@pytest.mark.parametrize(
    "mixtures",
    [
        ChiSquaredSimplexBall(CENTER, 0.3),
        KLSimplexBall(CENTER, 0.2),
        ConstrainedSimplex([[1.0, 1.0, 0, 0], [0, 1.0, -1.0, 0], [0, 0, -1.0, 0]], [0.6, 0.1, -0.05]),
    ],
    ids=["chi-squared", "KL", "constraints"],
)
def test_sets_around_given_weights_have_the_optima_of_a_cone_solver(word, mixtures):
    loss = Squared(True) if word == "squared" else Absolute(True)
    parts, whole = problem(loss, 0.25, 0.2)
    x, t = cp.Variable(4), cp.Variable(N)
    within = []
    for own, top in zip(parts, t, strict=True):
        away, nu = own[:, :3] @ x[:3] + x[3] - own[:, 3], cp.norm(x[:3])
        root = cp.norm(away) / np.sqrt(len(own)) + 0.2 * nu
        within.append((cp.square(root) if word == "squared" else cp.norm1(away) / len(own) + 0.2 * nu) <= top)
    worst, more = worst_of(mixtures, t)
    exact = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
    best = cp.Problem(cp.Minimize(worst), within + more).solve(solver=cp.CLARABEL, **exact)
    found = solve(replace(whole, mixtures=mixtures), 1e-8)
    assert found.gap <= 1e-8
    assert found.lower <= best * (1 + 1e-8)
    assert found.upper == pytest.approx(best, rel=1e-7)
    assert mixtures.contains(np.asarray(found.alpha))
    # The weights carry the bound: they are a worst mixture at x.
    assert float(found.alpha @ found.risks) == pytest.approx(found.upper, rel=1e-4)
