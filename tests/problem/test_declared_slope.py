"""A user's own loss with a declared slope: the risk over a ball has a certified upper end."""

import jax.numpy as jnp
import numpy as np
import pytest

from bidro import Box, CustomLoss, Federation, Problem, Transport, WassersteinBall, robust_risk, solve
from bidro.solvers.solve import GapNotReachedWarning

HALF = 1.5
STEEPEST = HALF * np.sqrt(2)  # of ||w|| over the box of models
RADII = np.array([0.05, 0.2])


def smooth_absolute(w, xi):
    """sqrt(1 + (<w, theta> - y)^2): slope at most ||w|| in theta, which is reached far out."""
    return jnp.sqrt(1 + (w @ xi[:-1] - xi[-1]) ** 2)


def problem(p=1.0, declared=STEEPEST, support="unbounded"):
    rng = np.random.default_rng(0)
    parts = []
    for k in range(2):
        theta = rng.normal(size=(20 + k, 2))
        parts.append(np.column_stack([theta, theta @ [0.8, -0.3 + k] + 0.3 * rng.normal(size=20 + k)]))
    loss = CustomLoss(
        smooth_absolute,
        np.zeros(2),
        convex=True,
        lipschitz_bound=declared,
        growth_order=1.0,
        never_negative=True,
    )
    federation = Federation.from_arrays(parts, support)
    ball = WassersteinBall(RADII)
    return parts, Problem(federation, loss, Box.cube(HALF, 2), Transport.features_only(3, p), ball)


def means(parts, w):
    return np.array([np.mean(np.sqrt(1 + (part[:, :2] @ w - part[:, 2]) ** 2)) for part in parts])


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_upper_end_is_finite_and_holds_the_risk(p):
    """p = 1, unbounded: the risk is mean + eps ||w|| exactly; in W_2 it is at most that."""
    parts, whole = problem(p)
    for w in (np.array([0.5, -1.0]), np.array([HALF, HALF]), np.zeros(2)):
        found = robust_risk(whole, w, curvature=False)
        bound = means(parts, w) + RADII * STEEPEST
        assert np.all(np.asarray(found.value) <= bound * (1 + 1e-12))
        assert np.all(np.isfinite(found.value))
        if p == 1:
            truth = means(parts, w) + RADII * np.linalg.norm(w)
            assert np.all(truth <= np.asarray(found.value) * (1 + 1e-12))
        assert np.all(np.asarray(found.attained) <= np.asarray(found.value))


def test_without_a_declared_slope_nothing_is_known():
    _, whole = problem(declared=np.inf)
    assert not np.any(np.isfinite(robust_risk(whole, np.array([0.5, -1.0]), curvature=False).value))


def test_a_solution_is_certified_between_what_is_true():
    """On a box; the least worst risk lies in the bounds, by a fine grid of models and moves along w."""
    parts, whole = problem(support=Box.cube(6.0, 3))
    with pytest.warns(GapNotReachedWarning):
        found = solve(whole, 1e-3, max_rounds=30)
    assert found.certified
    at = means(parts, found.x)
    assert found.upper <= np.max(at + RADII * STEEPEST) * (1 + 1e-9)
    assert found.upper >= np.max(at)
    # Every model's worst mean loss is a lower bound of its risk, and mean + eps ||w|| an upper one.
    grid = np.stack(np.meshgrid(*[np.linspace(-HALF, HALF, 61)] * 2), axis=-1).reshape(-1, 2)
    above = min(np.max(means(parts, w) + RADII * np.linalg.norm(w)) for w in grid)
    assert found.lower <= above
    assert found.lower >= min(np.max(means(parts, w)) for w in grid) * (1 - 5e-2)
