"""Projected ascent: the paper's version step by step, the default one against the exact supremum."""

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, WholeSpace
from bidro.losses import CustomLoss, Logistic, Squared
from bidro.risk.inner import BacktrackingAscent, Exact, FixedStepAscent, Inner
from bidro.risk.transport import Transport

M = 4
X = jnp.array([1.0, 0.5, -0.5])
ZETA = jnp.array([0.3, -0.2, 0.9, 0.4])


def test_the_paper_s_ascent_step_by_step():
    """30 steps of 0.003 from the sample, a perturbation of norm 0.01, projection; in plain NumPy."""
    inner = Inner(Transport.euclidean(M), Box.cube(0.91, M), Squared())
    noise, rho = np.array([1.0, -2.0, 3.0, 0.5]), 5.0
    a, zeta = np.append(X, -1.0), np.asarray(ZETA)
    z = zeta.copy()
    for _ in range(30):
        z = np.clip(z + 0.003 * (2 * (a @ z) * a - 2 * rho * (z - zeta)), -0.91, 0.91)
    z = np.clip(z + 0.01 * noise / np.linalg.norm(noise), -0.91, 0.91)
    found = FixedStepAscent().maximise(inner, X, ZETA, jnp.asarray(rho), jnp.asarray(noise))
    np.testing.assert_allclose(found.point, z, rtol=1e-12)
    assert float(found.value) == pytest.approx((a @ z) ** 2 - rho * np.sum((z - zeta) ** 2))


def test_settings_of_an_ascent_at_their_edges():
    """No steps, no step size, no perturbation and no tolerance are choices; less than none is not."""
    FixedStepAscent(steps=0, step_size=0.0, perturbation=0.0)
    BacktrackingAscent(steps=0, tolerance=0.0)
    for make in (
        lambda: FixedStepAscent(steps=-1),
        lambda: FixedStepAscent(step_size=-0.1),
        lambda: FixedStepAscent(step_size=np.inf),
        lambda: FixedStepAscent(perturbation=-0.1),
        lambda: FixedStepAscent(perturbation=np.inf),
        lambda: BacktrackingAscent(steps=-1),
        lambda: BacktrackingAscent(tolerance=-1e-9),
        lambda: BacktrackingAscent(tolerance=np.nan),
    ):
        with pytest.raises(BidroError, match="not negative"):
            make()


def test_noise_never_moves_what_cannot_move():
    inner = Inner(Transport.features_only(M), Box.cube(5.0, M), Squared())
    found = FixedStepAscent().maximise(inner, X, ZETA, jnp.asarray(5.0), jnp.ones(M))
    assert float(found.point[-1]) == float(ZETA[-1])
    ball = Inner(Transport.features_only(M), Ball(np.zeros(M), 1.3), Squared())
    for oracle in (FixedStepAscent(steps=200, step_size=0.1), BacktrackingAscent()):
        found = oracle.maximise(ball, 3 * X, ZETA, jnp.asarray(0.5), jnp.ones(M))
        assert float(found.point[-1]) == float(ZETA[-1])
        assert bool(ball.support.contains(found.point))


@pytest.mark.parametrize(
    "support",
    [WholeSpace(M), pytest.param(Box.cube(0.95, M), marks=pytest.mark.slow)],
    ids=["unbounded", "box"],
)
@pytest.mark.parametrize("scale", [np.ones(M), np.array([0.7, 1.5, 1.0, np.inf])], ids=["plain", "scaled"])
def test_error_bounds_hold_where_the_problem_is_strongly_concave(support, scale):
    """A short ascent is off by no more than it says; a long one is exact and says so."""
    inner = Inner(Transport(scale), support, Squared())
    rho = jnp.asarray(1.5 * float(Squared().dual_norm(X, inner.transport.inverse_scale)) ** 2)
    best = float(Exact().maximise(inner, X, ZETA, rho).value)
    for oracle in (FixedStepAscent(steps=3), FixedStepAscent(), BacktrackingAscent(steps=2)):
        found = oracle.maximise(inner, X, ZETA, rho, jnp.ones(M))
        assert float(found.value) <= best + 1e-12
        assert best <= float(found.value + found.error_bound) + 1e-12
    found = BacktrackingAscent().maximise(inner, X, ZETA, rho)
    assert float(found.value) == pytest.approx(best, rel=1e-9)
    assert float(found.error_bound) < 1e-8


@pytest.mark.parametrize(("p", "known"), [(1.0, False), (2.0, True), (3.0, False)])
def test_only_a_quadratic_cost_makes_the_problem_concave(p, known):
    inner = Inner(Transport.euclidean(M, p), Box.cube(2.0, M), Squared())
    assert (float(inner.concavity(jnp.full(M - 1, 0.3), jnp.asarray(50.0))) > 0) == known


def test_below_the_curvature_the_error_is_unknown():
    """A penalty below the curvature: ascent still runs, and claims nothing."""
    inner = Inner(Transport.euclidean(M), Box.cube(500.0, M), Squared())
    for oracle in (FixedStepAscent(), BacktrackingAscent()):
        found = oracle.maximise(inner, X, ZETA, jnp.asarray(2.4), jnp.ones(M))
        assert np.isinf(found.error_bound)
        assert np.isfinite(found.value)


def test_backtracking_survives_a_step_size_at_which_plain_ascent_diverges():
    """The known bug: inner ascent that diverges because the penalty is large, and nobody says so."""
    inner = Inner(Transport.euclidean(M), Box.cube(500.0, M), Squared())
    rho = jnp.asarray(400.0)  # 0.01 * 2 rho = 8: every plain step of 0.01 overshoots
    best = float(Exact().maximise(inner, X, ZETA, rho).value)
    plain = FixedStepAscent(step_size=0.01, perturbation=0.0).maximise(inner, X, ZETA, rho)
    assert float(plain.value) < best - 1.0
    assert float(plain.value + plain.error_bound) >= best
    assert float(BacktrackingAscent().maximise(inner, X, ZETA, rho).value) == pytest.approx(best)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("rho", [0.9, 2.0])
def test_any_order_against_the_closed_form(p, rho):
    """l = <g, xi>, ||g|| = 1: the best move has length t with p rho t^(p-1) = 1; none for p = 1 <= rho."""
    g = np.array([0.6, -0.8, 0.0])
    linear = CustomLoss(lambda w, xi: w * jnp.dot(jnp.asarray(g), xi), jnp.array(1.0))
    inner = Inner(Transport.euclidean(3, p), Box.cube(2.0, 3), linear)
    zeta = jnp.array([0.1, 0.2, -0.3])
    found = BacktrackingAscent(steps=2000).maximise(inner, jnp.array([1.0]), zeta, jnp.asarray(rho))
    here = float(g @ zeta)
    if p > 1:
        t = (1 / (p * rho)) ** (1 / (p - 1))
        expected = here + t - rho * t**p
    elif rho >= 1:
        expected = here
    else:
        # Below the slope the sample runs to the wall of the box; the best point on it, by a grid.
        axis = np.linspace(-2, 2, 201)
        grid = np.array([[a, b, c] for a in axis for b in axis for c in (-0.3,)])
        expected = np.max(grid @ g - rho * np.linalg.norm(grid - np.asarray(zeta), axis=1))
        assert float(found.value) >= expected - 1e-3
        return
    assert float(found.value) == pytest.approx(expected, abs=1e-7)


def test_labels_flip_where_that_pays():
    inner = Inner(Transport.classification(3, 2.0, label_cost=0.5), Box.cube(1.0, 3), Logistic())
    x, zeta = jnp.array([3.0, 0.0]), jnp.array([0.9, 0.0, 1.0])
    found = BacktrackingAscent().maximise(inner, x, zeta, jnp.asarray(1.0))
    exact = Exact().maximise(inner, x, zeta, jnp.asarray(1.0))
    assert float(found.point[-1]) == -1.0
    assert float(found.value) == pytest.approx(float(exact.value), rel=1e-8)


def test_declared_curvature_gives_a_custom_loss_an_error_bound():
    def function(w, xi):
        return jnp.sin(w * xi[0])

    x, zeta = jnp.array([1.0]), jnp.array([0.2, 0.0])
    honest = CustomLoss(function, jnp.array(1.0), curvature_bound=1.0)
    silent = CustomLoss(function, jnp.array(1.0))
    grid = np.linspace(-3, 3, 100_001)
    best = np.max(np.sin(grid) - 2.0 * (grid - 0.2) ** 2)
    for loss, known in ((honest, True), (silent, False)):
        inner = Inner(Transport.features_only(2), Box.cube(3.0, 2), loss)
        found = BacktrackingAscent().maximise(inner, x, zeta, jnp.asarray(2.0))
        assert float(found.value) == pytest.approx(best, abs=1e-8)
        assert np.isfinite(found.error_bound) == known
