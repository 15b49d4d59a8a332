"""Parts of worst-case distributions by themselves: the steepest directions, mass that moves far out, and the
moves of squared loss in its closed form."""

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.sets import WholeSpace
from bidro.losses import Absolute, Hinge, Huber, Logistic, Pinball, Softmax, Squared, losses_of
from bidro.problem.worst_case import _outward, _spend_far_out, _squared_atoms, _turn
from bidro.risk.inner import Inner
from bidro.risk.transport import Transport

SCALE = np.array([0.5, 2.0, 1.5])
LOSSES = [Absolute(), Huber(threshold=0.5), Pinball(quantile=0.2), Pinball(quantile=0.7), Logistic(), Hinge()]
LOSSES += [Softmax(classes=3)]


def setting(loss):
    """(inner problem with p = 1, model, points)."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(7, 3))
    if loss.labels is None:
        transport = Transport(SCALE, 1.0)
    else:
        transport = Transport(np.append(SCALE[:2], np.inf), 1.0, discrete_label=True)
        points[:, 2] = rng.choice(loss.labels, 7)
    x = np.array([0.9, -0.4]) if not isinstance(loss, Softmax) else rng.normal(size=6)
    return Inner(transport, WholeSpace(3), loss), jnp.asarray(x), points


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_no_direction_is_steeper_far_out(loss):
    inner, x, points = setting(loss)
    along, slope = _outward(inner, np.asarray(x), points)
    scale = np.where(np.isfinite(inner.transport.scale), inner.transport.scale, 0.0)
    moving = np.isfinite(np.asarray(inner.transport.scale))
    assert np.all(along[:, ~moving] == 0)
    np.testing.assert_allclose(np.linalg.norm(scale * along, axis=1), 1.0, rtol=1e-12)
    far, here = 1e7, losses_of(loss, x, points)
    reached = (losses_of(loss, x, points + far * along) - here) / far
    np.testing.assert_allclose(reached, slope, rtol=1e-5)
    rng = np.random.default_rng(1)
    for _ in range(10):
        other = rng.normal(size=points.shape) * moving
        other /= np.linalg.norm(scale * other, axis=1, keepdims=True)
        assert np.all((losses_of(loss, x, points + far * other) - here) / far <= slope * (1 + 1e-5) + 1e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_mass_that_moves_far_out_earns_the_full_slope_for_the_budget(loss):
    inner, x, points = setting(loss)
    masses, budget, risk = np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.2, 0.1]), 0.6, 2.0
    _, slope = _outward(inner, np.asarray(x), points)
    steepest = slope.max()
    found, left, origins = _spend_far_out(inner, x, points, masses, budget, risk)
    assert left.sum() == pytest.approx(1.0, rel=1e-12)
    assert np.all(left > 0)
    costs = np.array([float(inner.transport.cost(jnp.asarray(points[o]), jnp.asarray(f)))
                      for o, f in zip(origins, found, strict=True)])  # fmt: skip
    assert left @ costs == pytest.approx(budget, rel=1e-9)
    # Every atom but the one that moved keeps what it had.
    assert np.count_nonzero(costs) == 1
    np.testing.assert_allclose(np.bincount(origins, left, 7), masses, atol=1e-12)
    before, after = masses @ losses_of(loss, x, points), left @ losses_of(loss, x, found)
    assert before + budget * steepest - 1.01e-7 * risk <= after <= before + budget * steepest * (1 + 1e-9)
    moved = int(origins[np.argmax(costs)])
    assert slope[moved] == pytest.approx(steepest)
    for nothing in (0.0, -1.0):
        same, weights, whose = _spend_far_out(inner, x, points, masses, nothing, risk)
        np.testing.assert_array_equal(same, points)
        np.testing.assert_array_equal(weights, masses)
        np.testing.assert_array_equal(whose, np.arange(7))
    still, _, _ = _spend_far_out(inner, jnp.zeros_like(x), points, masses, budget, risk)
    if loss.labels is not None:
        np.testing.assert_array_equal(still, points)


def test_where_a_loss_has_its_full_slope():
    """From 1 on for a margin; for a residual from the losses themselves on, and where it is rounded,
    from the square of its threshold more."""
    residuals = ((Absolute(), 3.0), (Huber(threshold=0.5), 3.25))
    for loss, turn in ((Logistic(), 1.0), (Softmax(classes=3), 1.0), *residuals):
        inner, _, _ = setting(loss)
        assert _turn(inner, 3.0) == pytest.approx(turn)


def test_the_moves_of_squared_loss_by_hand():
    """Along S^-2 a, in proportion to the residual: they spend eps^2 in the mean, and attain R."""
    inner = Inner(Transport(SCALE), WholeSpace(3), Squared())
    x, points, eps = jnp.array([0.9, -0.4]), np.random.default_rng(0).normal(size=(7, 3)), 0.3
    a = np.array([0.9, -0.4, -1.0])
    u, nu = points @ a, np.linalg.norm(a / SCALE)
    moved = _squared_atoms(inner, points, x, eps)
    steps = moved - points
    assert np.mean(np.sum((SCALE * steps) ** 2, axis=1)) == pytest.approx(eps**2)
    np.testing.assert_allclose(moved @ a, u * (1 + eps * nu / np.sqrt(np.mean(u**2))))
    assert np.mean((moved @ a) ** 2) == pytest.approx((np.sqrt(np.mean(u**2)) + eps * nu) ** 2)
    np.testing.assert_allclose(steps, np.outer(steps @ a, a / SCALE**2) / nu**2, atol=1e-12)
    # At an exact fit all rows move alike; where the model sees nothing, none does.
    fits = points - np.outer(u, a) / (a @ a)
    fits[:, 2] = fits[:, :2] @ [0.9, -0.4]
    np.testing.assert_allclose(_squared_atoms(inner, fits, x, eps) @ a, eps * nu, atol=1e-12)
    held = Inner(Transport(np.array([1.0, 1.0, np.inf])), WholeSpace(3), Squared())
    np.testing.assert_array_equal(_squared_atoms(held, points, jnp.zeros(2), eps), points)
