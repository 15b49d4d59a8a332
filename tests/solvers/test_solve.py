"""The exact solver against cone programs, cutting surfaces and each other; its bounds against the truth."""

import itertools
from dataclasses import replace

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, WholeSpace
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS, all_replies, run
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
from bidro.problem.problem import Problem
from bidro.problem.worst_case import penalised_risk, robust_risk
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers import solve as solving
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from bidro.solvers.solve import GapNotReachedWarning, chosen_method, solve
from tests.cone_references import optimum
from tests.small import admissible, mostly_slow

D = 4


def clients(labelled=False, seed=0, sizes=(25, 40, 15), d=D):
    """Sites with models and noise of their own."""
    rng = np.random.default_rng(seed)
    w = np.array([1.0, -0.8, 0.6, -0.5])[:d]
    parts = []
    for k, size in enumerate(sizes):
        theta = rng.normal(size=(size, d)) + 0.3 * rng.normal(size=d)
        y = theta @ (w + 0.3 * rng.normal(size=d)) + 0.4 * k + (0.3 + 0.2 * k) * rng.normal(size=size)
        parts.append(np.column_stack([theta, np.where(y > 0, 1.0, -1.0) if labelled else y]))
    return parts


def problem_of(parts, loss, eps, p, movable=False, mixtures=None, support="unbounded", half_width=10.0):
    m = parts[0].shape[1]
    if loss.labels is not None:
        transport = Transport.classification(m, p)
    else:
        transport = Transport.euclidean(m, p) if movable else Transport.features_only(m, p)
    fed = Federation.from_arrays(parts, support)
    models = Box.cube(half_width, loss.dimension(m))
    return Problem(fed, loss, models, transport, WassersteinBall(eps), mixtures)


CAPPED = CappedSimplex(np.zeros(3), np.array([0.5, 0.6, 0.4]))
POINT = CappedSimplex(np.array([0.2, 0.5, 0.3]), np.array([0.2, 0.5, 0.3]))
L1 = L1SimplexBall(np.array([0.3, 0.5, 0.2]), 0.3)
RADII = [0.1, 0.0, 0.2]
# (loss, p, whether a continuous target moves, mixtures, radii)
CASES = [
    (Squared(intercept=True), 2.0, True, None, RADII),
    (Squared(intercept=True), 2.0, False, None, RADII),
    (Squared(intercept=True), 2.0, False, CAPPED, 0.1),
    (Squared(intercept=True), 2.0, True, POINT, 0.1),
    (Squared(intercept=True), 2.0, True, L1, 0.1),
    (Squared(intercept=True), 2.0, True, None, 0.0),
    (Logistic(intercept=True), 1.0, False, None, RADII),
    (Logistic(intercept=True), 1.0, False, CAPPED, 0.05),
    (Hinge(intercept=True), 1.0, False, None, 0.05),
    (Hinge(intercept=True), 1.0, False, POINT, 0.05),
    (Absolute(intercept=True), 1.0, True, None, RADII),
    (Absolute(intercept=True), 1.0, False, CAPPED, 0.1),
    (Huber(threshold=0.5, intercept=True), 1.0, True, None, RADII),
    (Pinball(quantile=0.8), 1.0, True, L1, 0.1),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{type(c[0]).__name__}-{c[2]}-{type(c[3]).__name__}-{c[4]}"
)
def test_against_a_cone_program(case):
    """Relative difference of the objective at most 1e-7, the bounds around it, the weights in their set."""
    loss, p, movable, mixtures, eps = case
    parts = clients(labelled=loss.labels is not None)
    problem = problem_of(parts, loss, eps, p, movable, mixtures)
    gap = 2e-8 if loss.scalar.curvature < np.inf else 1e-7
    found = solve(problem, gap=gap, method="curvature")
    value, _ = optimum(parts, loss, eps, p, movable, mixtures)
    plain = solve(problem, gap=gap)
    assert plain.method == ("one-shot" if isinstance(loss, Squared) else "curvature")
    assert plain.upper == pytest.approx(value, rel=1e-7)
    assert plain.lower <= value * (1 + 1e-9)
    assert plain.gap <= gap
    assert found.upper == pytest.approx(value, rel=1e-7)
    assert found.lower <= value * (1 + 1e-9)
    assert found.gap <= gap
    assert bool(problem.mixture_set.contains(jnp.asarray(found.alpha)))
    assert bool(problem.models.contains(jnp.asarray(found.x)))
    again = robust_risk(problem, found.x)
    np.testing.assert_allclose(again.value, found.risks, rtol=1e-12)
    np.testing.assert_allclose(again.multiplier, found.multipliers, rtol=1e-12)
    # A saddle point: alpha's own mixture of the risks is the worst one, as far as the gap tells.
    assert found.alpha @ found.risks == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("method", ["gradients", "one-shot"])
def test_the_other_methods_find_the_same(method):
    parts = clients()
    problem = problem_of(parts, Squared(intercept=True), RADII, 2.0, movable=False)
    found = solve(problem, gap=1e-7, method=method)
    value, _ = optimum(parts, Squared(intercept=True), RADII, 2.0)
    assert found.upper == pytest.approx(value, rel=1e-7)
    assert found.gap <= 1e-7
    assert found.method == method
    assert found.why == "it was asked for"
    if method == "one-shot":
        assert found.rounds == 1
        # One matrix of (d + 2)^2 numbers, and a header.
        assert 0 < found.bytes_from_client - 8 * (D + 2) ** 2 < 200
    plain = solve(problem, gap=1e-7, method="curvature")
    if method == "gradients":
        assert found.bytes_from_client / found.rounds < plain.bytes_from_client / plain.rounds


def test_gradients_alone_solve_losses_with_kinks():
    parts = clients(labelled=True)
    found = solve(problem_of(parts, Hinge(), 0.05, 1.0), gap=1e-6, method="gradients")
    assert found.upper == pytest.approx(optimum(parts, Hinge(), 0.05, 1.0)[0], rel=1e-6)
    assert found.gap <= 1e-6


def test_one_client_is_single_source_wasserstein_dro():
    parts = clients()[:1]
    found = solve(problem_of(parts, Squared(), 0.2, 2.0), gap=1e-8)
    assert found.upper == pytest.approx(optimum(parts, Squared(), 0.2, 2.0)[0], rel=1e-7)
    np.testing.assert_allclose(found.alpha, [1.0])


@pytest.mark.parametrize("loss", [Hinge(), Absolute()], ids=lambda v: type(v).__name__)
def test_kinks_that_are_followed_take_fewer_rounds(loss):
    rng = np.random.default_rng(1)
    parts = []
    for k in range(3):
        theta = rng.normal(size=(150, 15))
        y = theta @ (1 + 0.3 * rng.normal(size=15)) / 4 + (0.3 + 0.2 * k) * rng.normal(size=150)
        parts.append(np.column_stack([theta, y if loss.labels is None else np.sign(y)]))
    problem = problem_of(parts, loss, 0.1, 1.0)
    found = solve(problem)
    algorithm = ExactMWDRO(Exact())
    assert algorithm.kink_history == 0
    ask, state = IN_PROCESS.clients_of(problem), algorithm.init(problem)
    while not state.finished:
        replies, replied = ask(algorithm, algorithm.broadcast(state), state.t + 1)
        state = algorithm.server(state, replies, replied)
    assert max(found.lower, state.dual.bound) <= min(found.upper, state.best.upper)
    assert found.gap <= 1e-6
    assert found.rounds < 0.9 * state.t


@pytest.mark.parametrize("eps", [0.6, 0.9, 3.0])
def test_optima_at_and_near_zero_where_the_risk_has_a_kink(eps):
    """Labels that cannot move: R_i has a kink at x = 0, the start, and the optimum for large radii."""
    parts = [0.3 * part for part in clients()]
    found = solve(problem_of(parts, Squared(), eps, 2.0))
    value, x = optimum(parts, Squared(), eps, 2.0)
    assert found.upper == pytest.approx(value, rel=1e-6)
    assert found.gap <= 1e-6
    assert found.rounds <= 12
    if eps == 3.0:
        np.testing.assert_allclose(x, 0.0, atol=1e-4)
        np.testing.assert_allclose(found.x, 0.0, atol=1e-6)


@pytest.mark.parametrize("eps", [1.0, 10.0])
def test_p_2_with_an_optimum_at_zero_and_an_intercept(eps):
    """Logistic, p = 2: for a large radius no feature helps, and the worst class balance remains."""
    parts = clients(labelled=True)
    found = solve(problem_of(parts, Logistic(intercept=True), eps, 2.0))
    assert found.gap <= 1e-6
    np.testing.assert_allclose(found.x[:D], 0.0, atol=1e-6)
    grid = np.linspace(-3, 3, 20_001)
    shares = [np.mean(part[:, D] > 0) for part in parts]
    balance = np.max([q * np.logaddexp(0, -grid) + (1 - q) * np.logaddexp(0, grid) for q in shares], axis=0)
    assert found.upper == pytest.approx(balance.min(), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "eps"),
    [
        (Hinge(intercept=True), 3.0),
        (Absolute(intercept=True), 5.0),
        (Huber(threshold=0.5, intercept=True), 3.0),
    ],
    ids=lambda v: type(v).__name__,
)
def test_p_2_other_losses_with_an_optimum_at_zero(loss, eps):
    found = solve(problem_of(clients(loss.labels is not None), loss, eps, 2.0))
    assert found.gap <= 1e-6
    np.testing.assert_allclose(found.x[:D], 0.0, atol=1e-5)


def test_without_ambiguity_it_is_the_minimax_of_agnostic_federated_learning():
    parts = clients()
    fed = Federation.from_arrays(parts, "unbounded")
    plain = Problem(fed, Squared(), Box.cube(10.0, D), Transport.euclidean(D + 1))
    value, _ = optimum(parts, Squared(), 0.0, 2.0)
    for method in ("curvature", "one-shot"):
        assert solve(plain, gap=1e-8, method=method).upper == pytest.approx(value, rel=1e-7)


def test_the_penalised_problem_against_a_cone_program():
    """Squared loss, unbounded: mean u^2 rho / (rho - ||(w, -1)||^2), quadratic over linear."""
    parts, rho = clients(), np.array([9.0, 14.0, 20.0])
    fed = Federation.from_arrays(parts, "unbounded")
    problem = Problem(fed, Squared(), Box.cube(10.0, D), Transport.euclidean(D + 1), Penalty(rho))
    found = solve(problem, gap=1e-8)
    x, s = cp.Variable(D), cp.Variable(3)
    risks = [
        cp.quad_over_lin((part[:, :D] @ x - part[:, D]) / np.sqrt(len(part)), s[i])
        for i, part in enumerate(parts)
    ]
    limits = [s[i] + (cp.sum_squares(x) + 1) / rho[i] <= 1 for i in range(3)]
    program = cp.Problem(cp.Minimize(cp.maximum(*risks)), limits)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert found.upper == pytest.approx(program.value, rel=1e-7)
    np.testing.assert_allclose(found.multipliers, rho)


def test_on_a_box_algorithm_1_approaches_what_the_exact_solver_proves():
    """The penalised problem of the paper's kind: no model does better than the lower bound."""
    problem = admissible()
    found = solve(problem, gap=1e-8)
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0):
        near = np.clip(found.x + size * rng.normal(size=3), -1.5, 1.5)
        assert float(np.max(penalised_risk(problem, near).value)) >= found.lower
    np.testing.assert_allclose(penalised_risk(problem, found.x).value, found.risks, rtol=1e-10)


@pytest.mark.parametrize(
    "loss",
    [pytest.param(Logistic(intercept=True), marks=pytest.mark.slow), Huber(threshold=0.5)],
    ids=["Logistic", "Huber"],
)
def test_p_2_on_a_box_against_cutting_surfaces(loss):
    """One feature, a grid of spacing 0.005 for the worst cases (by HiGHS), CLARABEL for the models."""
    labelled = loss.labels is not None
    parts = [np.clip(part, -1.5, 1.5) for part in clients(labelled, sizes=(4, 5), d=1)]
    support = Box(np.array([-2.0, -1.5]), np.array([2.0, 1.5]))
    eps, axis = 0.3, np.linspace(-2.0, 2.0, 801)
    found = solve(problem_of(parts, loss, eps, 2.0, support=support), gap=1e-7)
    x = cp.Variable(1 + int(loss.intercept))
    t, cuts = cp.Variable(), [cp.abs(x) <= 10.0]
    value, worst = -np.inf, np.inf
    for _ in range(25):
        if len(cuts) > 1:
            program = cp.Problem(cp.Minimize(t), cuts)
            program.solve(solver=cp.CLARABEL)
            value, model = program.value, x.value
        else:
            model = np.zeros(x.shape)
        attained = []
        for part in parts:
            grid = np.union1d(axis, part[:, 0])
            costs = (part[:, :1] - grid[None]) ** 2
            points = np.array([[a, b] for b in part[:, 1] for a in grid])
            losses = np.asarray(loss.values(jnp.asarray(model), jnp.asarray(points)))
            rows = np.kron(np.eye(len(part)), np.ones(len(grid)))
            plan = linprog(
                -losses,
                A_ub=costs.reshape(1, -1),
                b_ub=[eps**2],
                A_eq=rows,
                b_eq=np.full(len(part), 1 / len(part)),
            )
            attained.append(-plan.fun)
            used = plan.x > 1e-12
            cuts.append(t >= _expected(loss, points[used], plan.x[used], x))
        worst = min(worst, max(attained))
        if worst - value < 1e-6:
            break
    # The grid loses at most the slope of the loss (below 3) times half its spacing.
    assert worst - 1e-5 <= found.upper <= worst + 3 * 0.0025
    assert found.lower <= found.upper


def _expected(loss, points, masses, x):
    score = points[:, 0] * x[0] + (x[1] if loss.intercept else 0.0)
    if loss.labels is None:
        return masses @ cp.huber(score - points[:, 1], loss.threshold) / 2
    return masses @ cp.logistic(-cp.multiply(points[:, 1], score))


@pytest.mark.parametrize(
    "loss",
    mostly_slow([Logistic(), Huber(threshold=0.5), SmoothedHinge()], lambda loss: isinstance(loss, Huber)),
    ids=lambda v: type(v).__name__,
)
def test_p_2_unbounded_converges_fast_and_its_lower_bound_holds(loss):
    labelled = loss.labels is not None
    problem = problem_of(clients(labelled), loss, 0.2, 2.0, movable=True)
    found = solve(problem)
    assert found.gap <= 1e-6
    # Small clients with a piecewise loss: their worst cases jump from model to model.
    assert found.rounds <= (60 if isinstance(loss, Huber) else 15)
    rng = np.random.default_rng(1)
    for size in (1e-3, 0.03, 1.0):
        y = found.x + size * rng.normal(size=D)
        assert float(np.max(robust_risk(problem, y).value)) >= found.lower


def test_labels_that_flip_at_a_cost_p_1():
    """Unbounded, p = 1: min over lambda >= ||w|| of lambda eps + mean max(L(u), L(-u) - lambda cost)."""
    parts, cost, eps = clients(labelled=True), 0.7, 0.3
    fed = Federation.from_arrays(parts, "unbounded")
    transport = Transport.classification(D + 1, 1.0, cost)
    problem = Problem(fed, Logistic(), Box.cube(10.0, D), transport, WassersteinBall(eps))
    found = solve(problem, gap=1e-7)
    x, price = cp.Variable(D), cp.Variable(3)
    risks = []
    for i, part in enumerate(parts):
        margin = cp.multiply(part[:, D], part[:, :D] @ x)
        worse = cp.maximum(cp.logistic(-margin), cp.logistic(margin) - price[i] * cost)
        risks.append(price[i] * eps + cp.sum(worse) / len(part))
    program = cp.Problem(cp.Minimize(cp.maximum(*risks)), [price >= cp.norm(x), cp.abs(x) <= 10])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert found.upper == pytest.approx(program.value, rel=1e-6)
    assert found.gap <= 1e-7


@pytest.mark.parametrize("absent", [False, True])
def test_softmax_p_1_against_a_cone_program(absent):
    """Mean loss + eps max ||w_k - w_y|| over the labels y that a client has; `absent`: one has only one."""
    rng = np.random.default_rng(3)
    parts = []
    for k in range(2):
        theta = rng.normal(size=(30, 3)) + 0.5 * k
        scores = theta @ np.array([[1.0, 0, 0], [0, 1.0, 0], [-1.0, -1.0, 0.5]]).T + rng.gumbel(size=(30, 3))
        parts.append(np.column_stack([theta, scores.argmax(1).astype(float)]))
    if absent:
        parts[1][:, 3] = 0.0
    fed, loss = Federation.from_arrays(parts, "unbounded"), Softmax(classes=3, intercept=True)
    transport = Transport.classification(4, 1.0)
    problem = Problem(fed, loss, Box.cube(5.0, 12), transport, WassersteinBall(0.1))
    found = solve(problem, gap=1e-6)
    W, b = cp.Variable((3, 3)), cp.Variable(3)
    risks = []
    for part in parts:
        scores = part[:, :3] @ W.T + np.ones((30, 1)) @ cp.reshape(b, (1, 3), order="C")
        labels = part[:, 3].astype(int)
        mean = (
            cp.sum(cp.log_sum_exp(scores, axis=1)) / 30 - cp.sum(cp.multiply(scores, np.eye(3)[labels])) / 30
        )
        pairs = [(j, k) for j, k in itertools.combinations(range(3), 2) if {j, k} & set(labels)]
        risks.append(mean + 0.1 * cp.maximum(*[cp.norm(W[j] - W[k]) for j, k in pairs]))
    program = cp.Problem(cp.Minimize(cp.maximum(*risks)), [cp.abs(W) <= 5, cp.abs(b) <= 5])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert found.upper == pytest.approx(program.value, rel=2e-6)
    assert found.gap <= 1e-6


@pytest.mark.parametrize(
    "loss", [Squared(intercept=True), Logistic(intercept=True)], ids=["Squared", "Logistic"]
)
def test_raw_features_of_very_different_sizes(loss):
    """Columns of size 1, 1e3 and 1e5, as they come from a table."""
    sizes, labelled = np.array([1.0, 1e3, 1e5, 1e-2]), loss.labels is not None
    parts = [np.column_stack([part[:, :D] * sizes, part[:, D]]) for part in clients(labelled)]
    fed, p = Federation.from_arrays(parts, "unbounded"), 1.0 if labelled else 2.0
    scale = np.append(1 / sizes, np.inf if not labelled else 1.0)
    transport = Transport(scale, p, labelled)
    half = np.append(10 / sizes, 10.0)
    found = solve(Problem(fed, loss, Box(-half, half), transport, WassersteinBall(0.1)))
    value, _ = optimum(clients(labelled), loss, 0.1, p)
    assert found.gap <= 1e-6
    assert found.rounds <= 12
    assert found.upper == pytest.approx(value, rel=2e-6)


DEGENERATE = {
    "duplicate clients": (Squared(), [clients()[0]] * 3, 0.1, 2.0),
    "one row each": (Squared(), [part[:1] for part in clients()], 0.1, 2.0),
    "one row in one client": (Absolute(), [clients()[0][:1], *clients()[1:]], 0.1, 1.0),
    "constant feature": (
        Squared(intercept=True),
        [p * [1, 0, 1, 1, 1] for p in clients()],
        [0.0, 0.1, 0.0],
        2.0,
    ),
    "exact fit": (Squared(), [clients()[0][:3]], 0.05, 2.0),
    "exact fit, no radius": (Squared(), [clients()[0][:3]], 0.0, 2.0),
    "separable classes": (
        Logistic(),
        [np.column_stack([p[:, :D], np.sign(p[:, 0])]) for p in clients()],
        [0.0, 0.0, 0.0],
        1.0,
    ),
    "separable, hinge": (
        Hinge(),
        [np.column_stack([p[:, :D], np.sign(p[:, 0])]) for p in clients()],
        [0.0, 0.1, 0.0],
        1.0,
    ),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_problems_solve(name):
    loss, parts, eps, p = DEGENERATE[name]
    found = solve(problem_of(parts, loss, eps, p, mixtures=None))
    value, _ = optimum(parts, loss, eps, p)
    assert found.gap <= 1e-6
    assert found.upper == pytest.approx(value, rel=2e-6, abs=1e-9)


def test_a_model_set_that_is_a_ball_and_a_bound_that_binds():
    parts = clients()
    fed = Federation.from_arrays(parts, "unbounded")
    ball = Ball(np.full(D, 0.5), 0.4)
    found = solve(Problem(fed, Squared(), ball, Transport.euclidean(D + 1), WassersteinBall(0.1)), gap=1e-8)
    x = cp.Variable(D)
    nu = cp.norm(cp.hstack([x, [-1.0]]))
    risks = [cp.norm(p[:, :D] @ x - p[:, D]) / np.sqrt(len(p)) + 0.1 * nu for p in parts]
    program = cp.Problem(cp.Minimize(cp.maximum(*risks)), [cp.norm(x - 0.5) <= 0.4])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert found.upper == pytest.approx(program.value**2, rel=1e-7)


def test_a_custom_loss_is_certified_only_with_a_declared_curvature():
    def squared(model, xi):
        return (xi[-1] - model["w"] @ xi[:-1]) ** 2

    parts = [np.clip(part[:6, [0, 1, 4]], -2, 2) for part in clients()]
    fed = Federation.from_arrays(parts, Box.cube(2.0, 3))

    def problem(**declared):
        loss = CustomLoss(squared, {"w": np.zeros(2)}, convex=True, **declared)
        return Problem(fed, loss, Box.cube(1.0, 2), Transport.euclidean(3), Penalty(12.0))

    # |(w, -1)|^2 <= 3 on the model set, so the second derivative in xi is at most 6 along unit directions.
    certified = solve(problem(curvature_bound=6.0), gap=1e-5)
    linear = Problem(fed, Squared(), Box.cube(1.0, 2), Transport.euclidean(3), Penalty(12.0))
    assert certified.certified
    assert certified.upper == pytest.approx(solve(linear, gap=1e-7).upper, rel=2e-5)
    unknown = solve(problem(), gap=1e-5)
    assert not unknown.certified
    assert unknown.gap == np.inf
    assert unknown.upper == np.inf
    np.testing.assert_allclose(unknown.x, certified.x, atol=0.05)


def test_the_order_of_clients_does_not_matter():
    parts = clients(labelled=True)
    one = solve(problem_of(parts, Logistic(), RADII, 1.0), gap=1e-8)
    other = solve(
        problem_of([parts[k] for k in (2, 0, 1)], Logistic(), [RADII[k] for k in (2, 0, 1)], 1.0), gap=1e-8
    )
    np.testing.assert_allclose(one.x, other.x, atol=1e-5)
    np.testing.assert_allclose(one.alpha[[2, 0, 1]], other.alpha, atol=1e-3)


def test_a_solution_resumes_to_a_tighter_gap_and_shows_its_history():
    problem = problem_of(clients(labelled=True), Logistic(), 0.05, 1.0)
    seen = []
    with pytest.warns(GapNotReachedWarning, match="after 3 rounds"):
        first = solve(problem, gap=1e-9, max_rounds=3, progress=lambda t, gap: seen.append((t, gap)))
    rest = solve(problem, gap=1e-9, resume=first)
    straight = solve(problem, gap=1e-9)
    assert rest.rounds == straight.rounds
    assert np.array_equal(rest.x, straight.x)
    assert np.array_equal(rest.history, straight.history)
    assert rest.bytes_from_client == straight.bytes_from_client
    assert [t for t, _ in seen] == [1, 2, 3]
    assert np.all(np.diff(straight.history[:, 0]) <= 0)
    assert np.all(np.diff(straight.history[:, 1]) >= 0)
    wider = solve(problem, gap=1e-2)
    assert wider.rounds < straight.rounds
    assert solve(problem, gap=1e-9, resume=wider).gap <= 1e-9


def test_a_round_that_a_client_misses_is_repeated():
    problem = problem_of(clients(), Squared(), 0.1, 2.0)
    algorithm = ExactMWDRO(Exact())

    def replies(state):
        broadcast = algorithm.broadcast(state)
        return all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))

    state = algorithm.init(problem)
    poisoned = jax.tree.map(lambda v: v.at[1].set(jnp.nan), replies(state))
    missed = algorithm.server(state, poisoned, jnp.array([True, False, True]))
    assert np.array_equal(missed.x, state.x)
    assert missed.t == 1
    assert missed.dual.bound == state.dual.bound
    for _ in range(12):
        missed = algorithm.server(missed, replies(missed), jnp.ones(3, bool))
    assert missed.gap <= 1e-6


def test_the_average_is_that_of_the_models_assessed():
    problem = problem_of(clients(), Squared(), 0.1, 2.0)
    algorithm = ExactMWDRO(Exact())
    state, assessed = algorithm.init(problem), []
    for t in range(3):
        assessed.append(state.x)
        message = algorithm.broadcast(state)
        replies = all_replies(algorithm, problem.clients, jax.random.key(0), message, jnp.asarray(t + 1))
        state = algorithm.server(state, replies, jnp.ones(3, bool))
    np.testing.assert_allclose(algorithm.snapshot(state).x_average, np.mean(assessed, axis=0), rtol=1e-12)


def test_it_runs_under_the_engine_of_the_other_algorithms():
    problem = problem_of(clients(), Squared(), 0.1, 2.0)
    found = solve(problem, method="curvature")
    for algorithm in (ExactMWDRO(Exact()), OneShotMWDRO()):
        by_rounds = run(algorithm, problem, found.rounds)
        assert float(np.max(robust_risk(problem, by_rounds.x).value)) == pytest.approx(found.upper, rel=1e-6)


def test_the_rule_is_one_line():
    small, large = (
        Problem(
            Federation.from_arrays([np.ones((2, d + 1))], "unbounded"),
            Squared(),
            Box.cube(1.0, d),
            Transport.euclidean(d + 1),
        )
        for d in (300, 2001)
    )
    assert chosen_method(small)[0] == "one-shot"
    assert chosen_method(replace(small, loss=Huber()))[0] == "curvature"
    assert chosen_method(replace(small, ambiguity=Penalty(1e4)))[0] == "curvature"
    assert chosen_method(large)[0] == "gradients"
    assert "2001 parameters" in chosen_method(large)[1]
    more = Federation.from_arrays([np.ones((2, 302))], "unbounded")
    wide = Problem(more, Squared(), Box.cube(1.0, 301), Transport.euclidean(302))
    assert chosen_method(wide)[0] == "one-shot"
    assert chosen_method(replace(wide, loss=Huber()))[0] == "gradients"


def test_in_one_process_work_decides(monkeypatch):
    """Where no bytes are sent: moments hardly larger than the table, Newton's method over the rows."""
    monkeypatch.setattr(solving, "LARGEST_CURVATURE", 20)
    rng, d = np.random.default_rng(0), 30
    theta = rng.normal(size=(2, 100, d)) / np.sqrt(d)
    parts = [np.column_stack([own, np.where(own @ rng.normal(size=d) > 0, 1.0, -1.0)]) for own in theta]
    federation, cost = Federation.from_arrays(parts, "unbounded"), Transport.classification(d + 1, 1.0)
    wide = Problem(federation, Logistic(), Box.cube(100.0, d), cost, WassersteinBall(0.01))
    found = solve(wide)
    assert (found.method, found.rounds) == ("gradients", 1)
    assert found.gap <= 1e-6
    assert found.upper == pytest.approx(solve(wide, 1e-6, "curvature").upper, rel=1e-6)
    longer = Federation.from_arrays([np.ones((2, 2002))], "unbounded")
    squared = Problem(longer, Squared(), Box.cube(1.0, 2001), Transport.euclidean(2002))
    many = Federation.from_arrays([np.ones((2002, 2002))], "unbounded")
    assert chosen_method(replace(squared, federation=many), here=True)[0] == "one-shot"
    assert chosen_method(squared, here=True)[0] == "gradients"
    assert chosen_method(replace(squared, federation=many))[0] == "gradients"


def simple(**changes):
    parts = clients()
    arguments = {
        "federation": Federation.from_arrays(parts, "unbounded"),
        "loss": Squared(),
        "models": Box.cube(1.0, D),
        "transport": Transport.euclidean(D + 1),
        "ambiguity": WassersteinBall(0.1),
    }
    return Problem(**(arguments | changes))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: solve(simple(), gap=0.0), "positive number"),
        (lambda: solve(simple(), gap="small"), "positive number"),
        (lambda: solve(simple(), max_rounds=0), "at least 1"),
        (lambda: solve(simple(), method="newton"), "'curvature', 'gradients' or 'one-shot'"),
        (lambda: solve(simple(models=WholeSpace(D))), "bounded model set"),
        (lambda: solve(simple(ambiguity=Penalty(50.0)), method="one-shot"), "another method"),
        (lambda: simple(transport=Transport.euclidean(D + 1, 1.0)), "infinite for every model"),
        (lambda: simple(ambiguity=Penalty(0.5)), "infinite for every model"),
        (lambda: solve(simple(), resume=solve(simple(ambiguity=WassersteinBall(0.2)))), "the problem"),
        (
            lambda: solve(
                simple(loss=CustomLoss(lambda w, xi: jnp.tanh(w @ xi[:-1]), np.zeros(D)), ambiguity=None)
            ),
            "convex in the model",
        ),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
