"""The exact solver on curves, against cvxpy on the same convex program."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex
from bidro.data.federation import Federation
from bidro.data.splines import Basis
from bidro.losses import Huber, Logistic, Softmax, Squared
from bidro.losses.base import Cone
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.curves.references import optimum

KNOTS = ((-0.7, 0.0, 0.6), (), (-0.5, 0.2))
BASIS = Basis(KNOTS)
SCALE = np.array([1.0, 2.0, 0.5])
CAPPED = CappedSimplex.around_proportions(np.array([60, 60, 60]), 2.0)
POOLED = CappedSimplex.around_proportions(np.array([60, 60, 60]), 1.0)


def clients(labels=False, seed=0):
    rng, parts = np.random.default_rng(seed), {}
    for i in range(3):
        theta = rng.normal(size=(60, 3))
        f = 1.5 * np.abs(theta[:, 0]) + 0.5 * (i - 1) * theta[:, 1] + np.maximum(theta[:, 2], 0)
        y = f + 0.3 * rng.normal(size=60)
        if labels:
            y = np.where(y > np.median(y) + 0.3 * rng.normal(size=60), 1.0, -1.0)
        parts[f"c{i}"] = np.column_stack([theta, y])
    return parts


def problem(loss, p, eps, mixtures=None, models=None, basis=BASIS, movable=np.inf):
    labels = loss.labels is not None
    parts = clients(labels)
    transport = (
        Transport(np.append(SCALE, 1.0), p, True) if labels else Transport(np.append(SCALE, movable), p)
    )
    models = models or Box.cube(10.0, loss.dimension(4))
    federation = Federation.from_arrays(parts, "unbounded")
    return list(parts.values()), Problem(federation, loss, models, transport, WassersteinBall(eps), mixtures)


CASES = [
    (Squared(True, basis=BASIS), 2.0, 0.1, None),
    (Squared(True, basis=BASIS), 2.0, [0.05, 0.1, 0.2], CAPPED),
    (Squared(True, basis=BASIS), 2.0, 0.0, POOLED),
    (Squared(False, basis=BASIS), 2.0, 0.3, POOLED),
    (Huber(True, 0.5, basis=BASIS), 1.0, 0.1, None),
    (Huber(True, 0.5, basis=BASIS), 1.0, [0.05, 0.1, 0.2], CAPPED),
    (Logistic(True, basis=BASIS), 1.0, 0.1, CAPPED),
    (Logistic(True, basis=BASIS), 1.0, [0.05, 0.1, 0.2], POOLED),
]


@pytest.mark.parametrize(("loss", "p", "eps", "mixtures"), CASES)
def test_against_cvxpy(loss, p, eps, mixtures):
    parts, posed = problem(loss, p, eps, mixtures)
    expected, _ = optimum(parts, loss, KNOTS, eps, SCALE, p, mixtures)
    found = solve(posed, 1e-8)
    assert found.gap <= 1e-8
    assert found.upper == pytest.approx(expected, rel=1e-7)
    assert found.lower <= expected * (1 + 1e-9)


@pytest.mark.parametrize(
    ("loss", "p", "eps"),
    [
        (Squared(True, basis=BASIS, smoothing=0.05), 2.0, 0.0),
        (Squared(True, basis=BASIS, smoothing=0.05), 2.0, 0.1),
        (Logistic(True, basis=BASIS, smoothing=0.05), 1.0, 0.1),
    ],
)
@pytest.mark.parametrize("method", [None, "curvature"])
def test_smoothed_curves_against_cvxpy(loss, p, eps, method):
    parts, posed = problem(loss, p, eps, CAPPED)
    expected, _ = optimum(parts, loss, KNOTS, eps, SCALE, p, CAPPED, smooth=0.05)
    found = solve(posed, 1e-8, method)
    assert found.upper == pytest.approx(expected, rel=1e-7)


def test_a_target_that_moves_counts_in_the_steepness():
    loss = Squared(True, basis=BASIS)
    parts, posed = problem(loss, 2.0, 0.1, movable=3.0)
    expected, _ = optimum(parts, loss, KNOTS, 0.1, SCALE, 2.0, movable=3.0)
    assert solve(posed, 1e-8).upper == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("loss", "p"), [(Squared(True, basis=BASIS), 2.0), (Huber(True, 0.5, basis=BASIS), 1.0)]
)
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_monotone_curves_have_slopes_of_one_sign(loss, p, eps):
    lower, upper = np.full(loss.dimension(4), -10.0), np.full(loss.dimension(4), 10.0)
    lower[BASIS.feature.tolist().index(0) :][:4] = 0.0  # the first feature rises, the last falls
    upper[np.flatnonzero(BASIS.feature == 2)] = 0.0
    parts, posed = problem(loss, p, eps, models=Box(lower, upper))
    expected, _ = optimum(parts, loss, KNOTS, eps, SCALE, p, signs={0: 1, 2: -1})
    found = solve(posed, 1e-8)
    assert found.upper == pytest.approx(expected, rel=1e-7)
    assert np.all(found.x[:4] >= 0)
    assert np.all(found.x[5:8] <= 0)


@pytest.mark.parametrize(
    ("loss", "p"),
    [
        (Squared, 2.0),
        (Huber, 1.0),
        (Logistic, 1.0),
        pytest.param(Huber, 2.0, marks=pytest.mark.slow),
        pytest.param(Logistic, 2.0, marks=pytest.mark.slow),
    ],
)
def test_one_segment_is_the_problem_of_straight_lines(loss, p):
    straight = Basis(((), (), ()))
    curved, line = (
        solve(problem(made, p, 0.1, CAPPED)[1], 1e-9) for made in (loss(True, basis=straight), loss(True))
    )
    assert curved.upper == pytest.approx(line.upper, rel=1e-9)
    assert curved.lower == pytest.approx(line.lower, rel=2e-9)


@pytest.mark.parametrize(
    "loss",
    [Huber(True, 0.5, basis=BASIS), pytest.param(Logistic(True, basis=BASIS), marks=pytest.mark.slow)],
)
def test_p_2_of_other_losses_is_the_dual_value_of_moves_of_u(loss):
    """min over lambda of lambda eps^2 + mean sup_t L(u + nu t) - lambda t^2, by brute force over both."""
    parts, posed = problem(loss, 2.0, 0.2, POOLED)
    found = solve(posed, 1e-8)
    assert found.gap <= 1e-8

    def risk(x):
        nu = np.linalg.norm(BASIS.steepest(x[:8]) / SCALE)
        t = np.linspace(-3, 3, 401)
        total = []
        for part in parts:
            u = BASIS.expand(part[:, :3]) @ x[:8] + x[8]
            u = u - part[:, 3] if loss.labels is None else part[:, 3] * u
            losses = np.asarray(loss.scalar.value(u[:, None] + nu * t))
            prices = np.geomspace(1e-2, 10, 150)
            total.append(min(c * 0.04 + np.max(losses - c * t**2, axis=1).mean() for c in prices))
        return np.mean(total)

    here = risk(found.x)
    assert here == pytest.approx(found.upper, rel=1e-3)
    rng = np.random.default_rng(0)
    assert min(risk(found.x + 0.05 * rng.normal(size=9)) for _ in range(5)) > here * (1 - 1e-3)


def test_several_classes():
    """Softmax with p = 1: mean loss + eps max over pairs of the norm of the largest differences of slopes."""
    import cvxpy as cp

    parts = clients()
    rng = np.random.default_rng(1)
    for part in parts.values():
        part[:, -1] = np.digitize(part[:, -1] + 0.5 * rng.normal(size=60), [0.7, 2.0])
    loss = Softmax(3, True, basis=BASIS)
    federation = Federation.from_arrays(parts, "unbounded")
    transport = Transport(np.append(SCALE, 1.0), 1.0, True)
    posed = Problem(federation, loss, Box.cube(10.0, 27), transport, WassersteinBall(0.05), POOLED)
    W, b = cp.Variable((3, 8)), cp.Variable(3)
    steep = cp.maximum(
        *(
            cp.norm(
                cp.hstack([cp.max(cp.abs((W[i] - W[j])[BASIS.feature == f])) / SCALE[f] for f in range(3)])
            )
            for i, j in ((0, 1), (0, 2), (1, 2))
        )
    )
    risks = []
    for part in parts.values():
        scores = BASIS.expand(part[:, :3]) @ W.T + np.ones((60, 1)) @ b[None]
        own = cp.sum(cp.multiply(scores, np.eye(3)[part[:, 3].astype(int)]))
        risks.append((cp.sum(cp.log_sum_exp(scores, axis=1)) - own) / 60 + 0.05 * steep)
    apart = W - np.ones((3, 3)) / 3 @ W
    pairs = [c for c in range(7) if BASIS.feature[c] == BASIS.feature[c + 1]]
    rough = cp.sum_squares(apart[:, [c + 1 for c in pairs]] - apart[:, pairs])
    limits = [cp.abs(W) <= 10, cp.abs(b) <= 10]
    for smoothing in (0.0, 0.02):
        program = cp.Problem(cp.Minimize(sum(risks) / 3 + smoothing * rough), limits)
        program.solve(solver=cp.CLARABEL)
        found = solve(replace(posed, loss=replace(loss, smoothing=smoothing)), 1e-7)
        assert found.upper == pytest.approx(program.value, rel=1e-6)


def test_the_norm_of_groups_and_its_dual():
    cone, rng = Cone(np.eye(5), np.zeros(5), np.array([0, 0, 1, 2, 2])), np.random.default_rng(0)
    for _ in range(50):
        v, y = rng.normal(size=(2, 5))
        norm = np.linalg.norm([max(abs(v[0]), abs(v[1])), abs(v[2]), max(abs(v[3]), abs(v[4]))])
        assert cone.norm(v) == pytest.approx(norm)
        dual = np.linalg.norm([abs(y[0]) + abs(y[1]), abs(y[2]), abs(y[3]) + abs(y[4])])
        assert cone.dual_norm(y) == pytest.approx(dual)
        slope = cone.slope(v)
        assert slope @ v == pytest.approx(norm)
        assert cone.dual_norm(slope) == pytest.approx(1.0)
        assert cone.toward(y) @ y == pytest.approx(dual)
        other = v + 0.1 * rng.normal(size=5)
        assert cone.norm(other) >= norm + slope @ (other - v) - 1e-12


def test_what_curves_cannot_have():
    loss = Squared(True, basis=BASIS)
    federation = Federation.from_arrays(clients(), "unbounded")
    transport, models = Transport(np.append(SCALE, np.inf), 2.0), Box.cube(10.0, 9)
    with pytest.raises(BidroError, match="penalty needs straight lines"):
        Problem(federation, loss, models, transport, Penalty(1.0))
    with pytest.raises(BidroError, match="order p = 1 or 2"):
        Problem(federation, loss, models, Transport(np.append(SCALE, np.inf), 3.0), WassersteinBall(0.1))
