"""Losses against formulas written out by hand, their gradients, and what they declare."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.losses import (
    Absolute,
    CustomLoss,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    SmoothedHinge,
    Softmax,
    Squared,
)
from bidro.losses.scalar import Followed

BY_HAND = {
    Squared(): lambda u: u**2,
    Absolute(): abs,
    Huber(threshold=0.7): lambda u: u**2 / 2 if abs(u) <= 0.7 else 0.7 * (abs(u) - 0.35),
    Pinball(quantile=0.3): lambda u: max(0.3 * -u, 0.7 * u),
    Logistic(): lambda u: np.log1p(np.exp(-u)),
    Hinge(): lambda u: max(0.0, 1 - u),
    SmoothedHinge(width=0.5): lambda u: 0.0 if u >= 1 else (1 - u) ** 2 if u >= 0.5 else 1 - u - 0.25,
}
LINEAR = list(BY_HAND)
SOFTMAX = Softmax(classes=3, intercept=True)


def sample(loss, rng, m=4):
    xi = rng.normal(size=m)
    if loss.labels is not None:
        xi[-1] = rng.choice(loss.labels)
    return xi


def scalar_argument(loss, x, xi):
    w, b = (x[:-1], x[-1]) if loss.intercept else (x, 0.0)
    score = w @ xi[:-1] + b
    return score - xi[-1] if loss.labels is None else xi[-1] * score


@pytest.mark.parametrize("loss", LINEAR, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("intercept", [False, True])
def test_values_against_the_formula(loss, intercept):
    loss_here = type(loss)(**{**loss.__dict__, "intercept": intercept})
    rng = np.random.default_rng(0)
    x = rng.normal(size=loss_here.dimension(4))
    rows = np.stack([sample(loss_here, rng) for _ in range(50)])
    expected = [BY_HAND[loss](scalar_argument(loss_here, x, xi)) for xi in rows]
    np.testing.assert_allclose(loss_here.values(jnp.asarray(x), jnp.asarray(rows)), expected, atol=1e-13)
    one_by_one = [loss_here.value(jnp.asarray(x), jnp.asarray(xi)) for xi in rows]
    np.testing.assert_allclose(one_by_one, expected, atol=1e-13)


def test_softmax_against_the_formula():
    rng = np.random.default_rng(1)
    x = rng.normal(size=SOFTMAX.dimension(4))
    weights, b = x[:9].reshape(3, 3), x[9:]
    for _ in range(20):
        xi = sample(SOFTMAX, rng)
        scores = weights @ xi[:3] + b
        expected = np.log(np.exp(scores).sum()) - scores[int(xi[-1])]
        assert float(SOFTMAX.value(jnp.asarray(x), jnp.asarray(xi))) == pytest.approx(expected)


@pytest.mark.parametrize("loss", [*LINEAR, SOFTMAX], ids=lambda v: type(v).__name__)
def test_gradients_against_finite_differences(loss):
    rng = np.random.default_rng(2)
    x = rng.normal(size=loss.dimension(4))
    of, gradients = jax.jit(loss.value), [jax.jit(jax.grad(loss.value, argnums=k)) for k in (0, 1)]
    for _ in range(5):
        xi = sample(loss, rng)
        movable = 4 if loss.labels is None else 3
        for argument, value, count in ((0, x, len(x)), (1, xi, movable)):
            point = [jnp.asarray(x), jnp.asarray(xi)]
            gradient = np.asarray(gradients[argument](*point))
            for j in range(count):
                ends = []
                for sign in (1, -1):
                    moved = value.copy()
                    moved[j] += sign * 1e-6
                    both = list(point)
                    both[argument] = jnp.asarray(moved)
                    ends.append(float(of(*both)))
                assert float(gradient[j]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("loss", [*LINEAR, SOFTMAX], ids=lambda v: type(v).__name__)
def test_declared_lipschitz_constant_and_curvature_hold(loss):
    """Random pairs never exceed them, and for linear predictors the Lipschitz constant is reached."""
    rng = np.random.default_rng(3)
    inverse = np.array([0.5, 1.0, 2.0, 0.7])
    if loss.labels is not None:
        inverse[-1] = 0.0
    movable = inverse > 0
    x = jnp.asarray(rng.normal(size=loss.dimension(4)))
    slope_bound = float(loss.lipschitz(x, jnp.asarray(inverse)))
    curvature = float(loss.curvature(x, jnp.asarray(inverse)))
    points = np.stack([sample(loss, rng) * (10 if loss.labels is None else 1) for _ in range(300)])
    steps = np.where(movable, rng.normal(size=(300, 4)) * inverse, 0.0)
    lengths = np.linalg.norm(steps[:, movable] / inverse[movable], axis=1)

    def along(t, xi, step):
        return loss.value(x, xi + t * step)

    at = jax.jit(jax.vmap(along, in_axes=(None, 0, 0)))
    changes = np.abs(at(1.0, points, steps) - at(0.0, points, steps)) / lengths
    steepest = changes.max()
    assert steepest <= slope_bound * (1 + 1e-9)
    bend = jax.jit(jax.vmap(jax.grad(jax.grad(along)), in_axes=(None, 0, 0)))
    bends = bend(0.3, points, steps) / lengths**2
    assert np.max(bends) <= curvature * (1 + 1e-9) + 1e-9
    if np.isfinite(slope_bound):
        assert steepest > 0.3 * slope_bound


def test_kinks_and_quadratic_growth_are_declared_as_unbounded():
    x, inverse = jnp.ones(3), jnp.ones(4)
    assert np.isinf(Hinge().curvature(x, inverse))
    assert np.isinf(Absolute().curvature(x, inverse))
    assert np.isinf(Squared().lipschitz(x, inverse))
    assert (Squared().growth.order, Squared().growth.coefficient) == (2, 1.0)
    assert (Pinball(quantile=0.3).growth.order, Pinball(quantile=0.3).growth.coefficient) == (1, 0.7)
    # ||(1, 1, 1, -1)||^2 = 4, times L'' = 2.
    assert float(Squared().curvature(x, inverse)) == pytest.approx(8.0)


def test_custom_loss_takes_any_pytree_and_assumes_nothing():
    template = {"hidden": jnp.ones((2, 3)), "out": jnp.arange(2.0)}
    loss = CustomLoss(lambda p, xi: (p["out"] @ jnp.tanh(p["hidden"] @ xi[:3]) - xi[3]) ** 2, template)
    x = loss.initial(4)
    assert x.shape == (8,)
    assert loss.dimension(4) == 8
    np.testing.assert_array_equal(loss.model(x)["out"], [0.0, 1.0])
    assert not loss.convex_in_x
    assert np.isinf(loss.curvature(x, jnp.ones(4)))
    xi = jnp.array([0.1, 0.2, 0.3, 0.4])
    assert float(loss.value(x, xi)) == pytest.approx((np.tanh(0.6) - 0.4) ** 2)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Huber(threshold=0.0), "threshold"),
        (lambda: Pinball(quantile=1.0), "quantile"),
        (lambda: SmoothedHinge(width=-1.0), "width"),
        (lambda: Softmax(classes=1), "classes"),
        (lambda: CustomLoss(lambda p, xi: 0.0, {}).initial(3), "no parameters"),
    ],
)
def test_bad_losses_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


@pytest.mark.parametrize("loss", LINEAR, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("width", [0.0, 0.3])
def test_tangents_lie_below_and_the_smoothed_loss_above(loss, width):
    """The line at u is below L everywhere; the smoothed loss has its slope and the curvature stated."""
    scalar, grid = loss.scalar, jnp.linspace(-4, 4, 1601)
    at = jnp.asarray([-2.3, -0.71, -0.1, 0.05, 0.4, 0.93, 1.04, 2.6])
    line = scalar.tangent(at, jnp.asarray(width))
    for ours, compiled in zip(scalar.tangent(np.asarray(at), np.asarray(width)), line, strict=True):
        np.testing.assert_allclose(ours, compiled, rtol=1e-12, atol=1e-14)
    lines = line.value[:, None] + line.slope[:, None] * (grid[None] - at[:, None])
    assert float(jnp.max(lines - scalar.value(grid)[None])) <= 1e-12
    assert np.all(line.smoothed >= scalar.value(at) - 1e-14)

    def smoothed(u):
        return scalar.tangent(u, jnp.asarray(width)).smoothed

    step = 1e-4
    slope = (smoothed(at + step) - smoothed(at - step)) / (2 * step)
    np.testing.assert_allclose(line.slope, slope, atol=1e-6)
    bend = (smoothed(at + step) - 2 * smoothed(at) + smoothed(at - step)) / step**2
    np.testing.assert_allclose(line.curvature, bend, atol=1e-4)


KINKED = [loss for loss in LINEAR if np.isinf(loss.scalar.curvature)]


@pytest.mark.parametrize("loss", KINKED, ids=lambda v: type(v).__name__)
def test_slopes_of_kinks_follow_newtons_steps(loss):
    """From model to model s solves s r(t) = t to first order, whose derivatives are automatic here."""
    rng, scalar = np.random.default_rng(0), loss.scalar
    path, widths, u = 0.3 * rng.normal(size=(4, 9)), np.array([1.0, 0.4, 0.2, 0.2]), 0.3 * rng.normal(size=9)
    line = scalar.tangent(u, np.asarray(0.1), Followed(path, widths[:, None]))
    expected = np.asarray(jax.vmap(jax.grad(jax.grad(scalar.value)))(jnp.asarray(u)))
    for knot, before, after in scalar._kinks:

        def wrong(s, t, width):
            return s * jnp.sqrt(t**2 + width**2) - t

        t = np.vstack([path, u]) - knot
        s = t[0] / np.hypot(t[0], widths[0])
        for j, width in enumerate(widths):
            value = wrong(s, t[j], width)
            along = [jax.vmap(jax.grad(wrong, k), (0, 0, None))(s, t[j], width) for k in (0, 1)]
            s = np.clip(s - (value + along[1] * (t[j + 1] - t[j])) / along[0], -1, 1)
        r = np.hypot(t[-1], 0.1)
        expected = expected + (after - before) / 2 * (1 - s * t[-1] / r) / r
    np.testing.assert_allclose(line.curvature, expected, rtol=1e-12)
    assert line.curvature.min() >= 0
    plain = scalar.tangent(u, np.asarray(0.1))
    for part in ("value", "slope", "smoothed"):
        np.testing.assert_array_equal(getattr(line, part), getattr(plain, part))
    # Where no model comes before but the same one, there is nothing to follow.
    still = scalar.tangent(u, np.asarray(0.1), Followed(np.tile(u, (3, 1)), np.full((3, 1), 0.1)))
    np.testing.assert_allclose(still.curvature, plain.curvature, rtol=1e-10)


@pytest.mark.parametrize("loss", [*LINEAR, SOFTMAX], ids=lambda v: type(v).__name__)
def test_numpy_arrays_give_what_compiled_programs_give(loss):
    rng = np.random.default_rng(3)
    rows = np.stack([sample(loss, rng) for _ in range(6)])
    x, inverse = rng.normal(size=loss.dimension(4)), np.array([0.5, 1.0, 0.0, 0.3])
    models = Box.cube(2.0, loss.dimension(4))
    calls = [
        lambda xp: loss.value(xp.asarray(x), xp.asarray(rows[0])),
        lambda xp: loss.values(xp.asarray(x), xp.asarray(rows)),
        lambda xp: loss.lipschitz(xp.asarray(x), xp.asarray(inverse)),
        lambda xp: loss.curvature(xp.asarray(x), xp.asarray(inverse)),
        lambda xp: loss.largest_curvature(models, xp.asarray(inverse)),
    ]
    if isinstance(loss, Softmax):
        calls += [
            lambda xp: loss.mistakes(xp.asarray(x), xp.asarray(rows)),
            lambda xp: loss.hessian_sum(xp.asarray(x), xp.asarray(rows), np.arange(6.0)),
            lambda xp: loss.steepness(xp.asarray(x), inverse, xp.asarray(rows[0, -1])),
        ]
    else:
        calls += [lambda xp, k=k: loss.of_model(xp.asarray(rows[0]))[k] for k in (0, 1)]
    for call in calls:
        on_host = call(np)
        assert not isinstance(on_host, jax.Array)
        compiled = jax.jit(lambda call=call: call(jnp))()
        np.testing.assert_allclose(on_host, compiled, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("intercept", [pytest.param(False, marks=pytest.mark.slow), True])
def test_softmax_hessian_against_autodiff(intercept):
    rng, loss = np.random.default_rng(5), Softmax(classes=3, intercept=intercept)
    rows = jnp.asarray(np.column_stack([rng.normal(size=(6, 2)), rng.integers(0, 3, 6)]))
    x, weights = jnp.asarray(rng.normal(size=loss.dimension(3))), jnp.asarray(rng.uniform(size=6))
    expected = jax.jit(jax.hessian(lambda v: weights @ loss.values(v, rows)))(x)
    found = jax.jit(loss.hessian_sum)(x, rows, weights)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("loss", [*LINEAR[:1], *LINEAR[4:5], SOFTMAX], ids=lambda v: type(v).__name__)
def test_the_highest_steepness_cone_is_the_steepness(loss):
    rng = np.random.default_rng(6)
    x, inverse = rng.normal(size=loss.dimension(4)), rng.uniform(0.5, 2, 4)
    highest = max(np.linalg.norm(cone.at(x)) for cone in loss.steepness_cones(jnp.asarray(inverse)))
    if loss is SOFTMAX:
        expected = loss.lipschitz(jnp.asarray(x), jnp.asarray(inverse))
    else:
        expected = loss.dual_norm(jnp.asarray(x), jnp.asarray(inverse))
    assert highest == pytest.approx(float(expected), rel=1e-12)


def test_balanced_gradients_of_hardly_any_size_are_0():
    """Down to the smallest numbers there are: sums are 0, and nothing is divided by 0."""
    loss = Softmax(classes=3, intercept=True)
    for size in (1.0, 1e-300, 5e-324, 0.0):
        found = np.asarray(loss.balanced(jnp.asarray(size * np.arange(1.0, 10.0))))
        assert np.all(np.isfinite(found))
        assert np.all(found[:6].reshape(3, 2).sum(axis=0) == 0)
        assert abs(found[6:].sum()) == 0
        np.testing.assert_allclose(found[:4], size * np.arange(1.0, 5.0), atol=1e-270)
