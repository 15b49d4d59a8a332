"""The closed form of squared loss over a ball, (RMSE + eps nu)^2, in NumPy: differences, cuts and edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.sets import WholeSpace
from bidro.losses import Huber
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner
from bidro.risk.inner.ball import _near_zero, root_form
from bidro.risk.rows_jax import Pass, Point, still_pass
from bidro.risk.transport import Transport

RNG = np.random.default_rng(0)
FEATURES, TARGET = RNG.normal(size=(3, 12, 2)), RNG.normal(size=(3, 12))  # of three clients
EPS = np.array([0.4, 0.1, 0.0])
X, NU = np.array([0.3, -0.7]), 1.3


def still(x):
    """Means over each client's rows of u^2, and its derivatives in (x, nu)."""
    u = FEATURES @ x - TARGET
    value = np.mean(u**2, axis=1)
    gradient = np.column_stack([2 * np.einsum("nk,nkj->nj", u, FEATURES) / 12, np.zeros(3)])
    hessian = np.zeros((3, 3, 3))
    hessian[:, :2, :2] = 2 * np.einsum("nki,nkj->nij", FEATURES, FEATURES) / 12
    return Pass(value, np.zeros(3), value, gradient, np.zeros(3), hessian)


def form(x, nu, width=0.0, eps=EPS):
    return root_form(Point(x, np.asarray(nu), np.asarray(width)), still(x), eps)


def risk(x, nu):
    return (np.sqrt(still(x).value) + EPS * nu) ** 2


def test_value_gradient_and_curvature_by_differences():
    found = form(X, NU)
    np.testing.assert_allclose(found.value, risk(X, NU), rtol=1e-14)
    np.testing.assert_allclose(found.attained, risk(X, NU), rtol=1e-12)
    np.testing.assert_allclose(found.smoothing, 0.0, atol=1e-12)
    h, z = 1e-5, np.append(X, NU)
    for j in range(3):
        step = h * np.eye(3)[j]
        up, down = z + step, z - step
        slope = (risk(up[:2], up[2]) - risk(down[:2], down[2])) / (2 * h)
        np.testing.assert_allclose(found.gradient[:, j], slope, rtol=1e-6, atol=1e-8)
        bend = (form(up[:2], up[2]).gradient - form(down[:2], down[2]).gradient) / (2 * h)
        np.testing.assert_allclose(found.curvature[:, j], bend, rtol=1e-5, atol=1e-7)
    # lambda = nu^2 + RMSE nu / eps, by which the dual has the value: no radius, no price at which rows move.
    rmse = np.sqrt(still(X).value)
    np.testing.assert_allclose(found.multiplier[:2], NU**2 + rmse[:2] * NU / EPS[:2])
    assert found.multiplier[2] == np.inf
    price = found.multiplier[:2]
    dual = price * EPS[:2] ** 2 + still(X).value[:2] * price / (price - NU**2)
    np.testing.assert_allclose(found.value[:2], dual, rtol=1e-12)
    assert np.all(found.lower_share == 0)


@pytest.mark.parametrize("width", [0.0, 2.0, 500.0])
def test_cuts_lie_below_the_risk_however_much_is_smoothed(width):
    """With `smoothing` they are the square of sqrt(RMSE^2 + (1e-4 width)^2) + eps nu, which is above it."""
    found = form(X, NU, width)
    f = np.sqrt(still(X).value + (1e-4 * width) ** 2)
    np.testing.assert_allclose(found.attained + found.smoothing, (f + EPS * NU) ** 2, rtol=1e-12)
    np.testing.assert_allclose(found.value, risk(X, NU), rtol=1e-14)
    assert np.all(found.attained <= found.value + 1e-12)
    rng, z = np.random.default_rng(1), np.append(X, NU)
    for size in (1e-3, 0.1, 1.0, 10.0):
        for _ in range(20):
            other = z + size * rng.normal(size=3)
            other[2] = abs(other[2])
            cut = found.attained + found.gradient @ (other - z)
            assert np.all(cut <= risk(other[:2], other[2]) * (1 + 1e-9) + 1e-12)
    # As a function, the smoothed risk has this gradient and curvature.
    h = 1e-5

    def smoothed(v):
        return (np.sqrt(still(v[:2]).value + (1e-4 * width) ** 2) + EPS * v[2]) ** 2

    for j in range(3):
        step = h * np.eye(3)[j]
        slope = (smoothed(z + step) - smoothed(z - step)) / (2 * h)
        np.testing.assert_allclose(found.gradient[:, j], slope, rtol=1e-6, atol=1e-8)
        ends = [form((z + s)[:2], (z + s)[2], width).gradient for s in (step, -step)]
        np.testing.assert_allclose(found.curvature[:, j], (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-7)


def test_at_an_exact_fit_the_risk_is_that_of_the_moves_alone():
    """RMSE = 0: R = (eps nu)^2, growing with nu alone; nothing is divided by 0."""
    zero = np.zeros(3)
    hessian = still(X).hessian
    fits = Pass(zero, zero, zero, np.zeros((3, 3)), zero, hessian)
    found = root_form(Point(X, np.asarray(NU), np.asarray(0.0)), fits, EPS)
    np.testing.assert_allclose(found.value, (EPS * NU) ** 2)
    np.testing.assert_allclose(found.attained, (EPS * NU) ** 2)
    np.testing.assert_allclose(found.gradient, np.outer(2 * EPS**2 * NU, [0, 0, 1]))
    expected = hessian + 2 * (EPS**2)[:, None, None] * np.diag([0, 0, 1.0])
    np.testing.assert_allclose(found.curvature, expected)
    np.testing.assert_allclose(found.multiplier[:2], NU**2)
    without = root_form(Point(X, np.asarray(NU), np.asarray(0.0)), fits._replace(hessian=None), EPS)
    assert without.curvature is None


def test_next_to_zero_the_upper_end_has_room_for_the_steepest_moves():
    """Residuals of 3 with a slope of 2: a mean of 4, and nu times a radius of 0.5 times 2 more; as long as
    that is less than 1e-10 of it."""
    rows = ClientRows.single(jnp.asarray(np.tile([0.0, -3.0], (4, 1))))
    inner = Inner(Transport.features_only(2, 2.0), WholeSpace(2), Huber(threshold=2.0))

    @jax.jit
    def near_zero(nu):
        at = Point(jnp.array([1e-10]), nu, jnp.zeros(()))
        return *_near_zero(rows, inner, at, jnp.asarray(0.5), False), still_pass(rows, inner, at, False).value

    for nu, near in ((3.9e-10, True), (4.1e-10, False)):
        found, is_near, still = near_zero(jnp.asarray(nu))
        assert float(still) == pytest.approx(4.0, rel=1e-12)
        assert float(found.value) - float(still) == pytest.approx(nu, rel=1e-3)
        assert bool(is_near) == near
