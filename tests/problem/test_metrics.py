"""Ground metrics other than the Euclidean: dual norms against cvxpy, worst cases that attain, refusals."""

import dataclasses
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize_scalar

from bidro import (
    Absolute,
    BidroError,
    Box,
    CustomLoss,
    Federation,
    Hinge,
    Huber,
    Logistic,
    Penalty,
    Problem,
    Softmax,
    Squared,
    Transport,
    WassersteinBall,
    robust_risk,
    solve,
    worst_case_distribution,
)
from bidro.ambiguity import CVaR
from bidro.certify.out_of_sample import support_lipschitz
from bidro.risk.transport import wasserstein_distance
from tests.cone_references import worst_mixture

METRICS = ("l1", "linf", "mahalanobis")
M = np.array([[2.0, 0.7, -0.2, 0.1], [0.7, 1.5, 0.4, 0.3], [-0.2, 0.4, 1.0, -0.5], [0.1, 0.3, -0.5, 2.5]])


def transport_of(metric, scale, p, labels):
    norm = {"l1": 1.0, "linf": np.inf}.get(metric, 2.0)
    return Transport(scale, p, labels, norm=norm, matrix=M if metric == "mahalanobis" else None)


def dual(metric, v, scale):
    """The dual norm in cvxpy of what moves earn, v (m,), of coordinates whose scale is finite; by hand."""
    free = np.flatnonzero(np.isfinite(scale))
    own = cp.hstack([v[j] / scale[j] for j in free])
    if metric == "l1":
        return cp.norm_inf(own)
    if metric == "linf":
        return cp.norm1(own)
    return cp.norm(np.linalg.inv(np.linalg.cholesky(M[np.ix_(free, free)])) @ own)


def clients(labels, seed=0, shift=0.0, unit=1.0):
    rng = np.random.default_rng(seed)
    parts = []
    for k, rows in enumerate((30, 17, 1)):
        X = unit * (rng.normal(size=(rows, 3)) + shift)
        score = X @ (np.array([1.0, -0.5 * k, 0.3]) / unit) + 0.4 * rng.normal(size=rows)
        parts.append(np.column_stack([X, np.where(score > 0, 1.0, -1.0) if labels else score]))
    return parts


CASES = {
    "squared": (Squared(intercept=True), 2.0),
    "absolute": (Absolute(), 1.0),
    "huber": (Huber(intercept=True, threshold=0.7), 1.0),
    "hinge": (Hinge(intercept=True), 1.0),
    "logistic": (Logistic(), 1.0),
}


@pytest.mark.parametrize(("metric", "case", "movable"), [*product(METRICS, CASES, (False, True))])
def test_optima_are_those_of_cone_programs(metric, case, movable):
    loss, p = CASES[case]
    labels = loss.labels is not None
    if labels and movable:
        pytest.skip("labels keep their values")
    parts, radii = clients(labels), np.array([0.1, 0.3, 0.0])
    scale = np.array([1.0, 2.0, 0.5, 1.5 if movable else np.inf])
    d, n = 3 + int(loss.intercept), len(parts)
    x = cp.Variable(d)
    a = cp.hstack([x[:3], 0.0 if labels else -1.0])
    nu = dual(metric, a, np.where(np.arange(4) < 3, scale, np.inf) if labels else scale)
    risks = []
    for part, eps in zip(parts, radii, strict=True):
        score = part[:, :3] @ x[:3] + (x[3] if loss.intercept else 0.0)
        y, rows = part[:, 3], len(part)
        risks.append(
            {
                "squared": lambda s=score, y=y, k=rows, e=eps: cp.square(
                    cp.norm(s - y) / np.sqrt(k) + e * nu
                ),
                "absolute": lambda s=score, y=y, k=rows, e=eps: cp.norm1(s - y) / k + e * nu,
                "huber": lambda s=score, y=y, k=rows, e=eps: (
                    cp.sum(cp.huber(s - y, 0.7)) / (2 * k) + e * 0.7 * nu
                ),
                "hinge": lambda s=score, y=y, k=rows, e=eps: (
                    cp.sum(cp.pos(1 - cp.multiply(y, s))) / k + e * nu
                ),
                "logistic": lambda s=score, y=y, k=rows, e=eps: (
                    cp.sum(cp.logistic(-cp.multiply(y, s))) / k + e * nu
                ),
            }[case]()
        )
    program = cp.Problem(cp.Minimize(worst_mixture(risks, None)), [cp.abs(x) <= 10])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    problem = Problem(
        Federation.from_arrays(parts, "unbounded"),
        loss,
        Box.cube(10, d),
        transport_of(metric, scale, p, labels),
        WassersteinBall(radii),
    )
    for method in (None, "curvature", "gradients"):
        found = solve(problem, gap=1e-9 if method is None else 1e-7, method=method, max_rounds=2000)
        assert found.lower <= program.value * (1 + 1e-8) + 1e-9, method
        assert found.upper == pytest.approx(program.value, rel=2e-7, abs=1e-9), method
    for k in range(n):
        worst = worst_case_distribution(problem, found.x, str(problem.federation.names[k]))
        assert worst.deficit <= 1e-6 * worst.risk + 1e-12
        moved = problem.transport.row_costs(parts[k][worst.origins], worst.points)
        assert float(worst.masses @ moved) <= radii[k] ** p * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("metric", METRICS)
def test_the_steepest_move_is_of_size_1_and_no_other_earns_more(metric):
    rng, scale = np.random.default_rng(1), np.array([1.0, np.inf, 0.5, 3.0])
    transport = transport_of(metric, scale, 1.0, False)
    origin = np.zeros(4)
    for _ in range(20):
        a = rng.normal(size=4)
        best = float(transport.dual_norm(a))
        move = transport.steepest(a)
        assert float(transport.cost(origin, move)) == pytest.approx(1.0)
        assert a @ move == pytest.approx(best)
        others = rng.normal(size=(2000, 4)) * (np.isfinite(scale))
        sizes = transport.row_costs(np.zeros_like(others), others)
        np.testing.assert_allclose(sizes, [float(transport.cost(origin, v)) for v in others])
        assert (others @ a / sizes).max() <= best * (1 + 1e-12)
    assert not np.any(transport.steepest(origin))


def test_a_mahalanobis_cost_is_the_euclidean_one_of_other_coordinates():
    """With theta' = L' theta, w' = L^-1 w: the same optimum, and models that are the same function."""
    parts = clients(False)
    root = np.linalg.cholesky(M[:3, :3])
    turned = [np.column_stack([part[:, :3] @ root, part[:, 3]]) for part in parts]
    wide, ball = Box.cube(100, 3), WassersteinBall(0.2)
    stays = Transport(np.array([1.0, 1.0, 1.0, np.inf]), 2.0, matrix=M[:3, :3])
    found = solve(
        Problem(Federation.from_arrays(parts, "unbounded"), Squared(), wide, stays, ball), gap=1e-10
    )
    plain = solve(
        Problem(
            Federation.from_arrays(turned, "unbounded"), Squared(), wide, Transport.features_only(4), ball
        ),
        gap=1e-10,
    )
    assert found.upper == pytest.approx(plain.upper, rel=1e-9)
    np.testing.assert_allclose(root @ plain.x, found.x, atol=1e-6)


@pytest.mark.parametrize(("metric", "p"), [*product(METRICS, (1.0, 2.0))])
def test_labels_that_can_change_and_the_risk_by_its_dual(metric, p):
    """min over lambda of lambda eps^p + mean sup, the supremum over a fine line along the steepest move and
    both labels; the worst distribution attains it."""
    part, eps, kappa = clients(True)[0][:8], 0.4, 0.6
    scale, x = np.array([1.0, 2.0, 0.5, 1.0]), np.array([0.8, -0.4, 0.5])
    made = dataclasses.replace(transport_of(metric, scale, p, True), label_cost=kappa)
    problem = Problem(
        Federation.from_arrays([part], "unbounded"), Logistic(), Box.cube(10, 3), made, WassersteinBall(eps)
    )
    nu = float(dual(metric, np.append(x, 0.0), np.where(np.arange(4) < 3, scale, np.inf)).value)
    t, u = np.linspace(0, 30, 15001), part[:, 3] * (part[:, :3] @ x)

    def at(price):
        best = -np.inf
        for sign, fee in ((1.0, 0.0), (-1.0, kappa**p)):
            gained = np.logaddexp(0, -(sign * u[:, None] - nu * t)) - price * (t**p + fee)
            best = np.maximum(best, gained.max(axis=1))
        return price * eps**p + best.mean()

    low = nu if p == 1 else 1e-3
    expected = minimize_scalar(at, bounds=(low, low + 5), method="bounded", options={"xatol": 1e-7}).fun
    assert float(robust_risk(problem, x, curvature=False).value[0]) == pytest.approx(expected, rel=1e-5)
    worst = worst_case_distribution(problem, x, problem.federation.names[0])
    assert worst.deficit <= 1e-6 * worst.risk
    spent = float(worst.masses @ made.row_costs(part[worst.origins], worst.points))
    assert spent <= eps**p * (1 + 1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_those_of_a_linear_program(metric):
    rng = np.random.default_rng(2)
    made = transport_of(metric, np.array([1.0, 2.0, 0.5, 1.5]), 1.0, False)
    a, b = rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    costs = np.array([[float(made.cost(v, w)) for w in b] for v in a])
    sums = np.vstack([np.kron(np.eye(5), np.ones(4)), np.kron(np.ones(5), np.eye(4))])
    plan = linprog(costs.ravel(), A_eq=sums, b_eq=np.append(np.full(5, 0.2), np.full(4, 0.25)))
    assert wasserstein_distance(a, b, made) == pytest.approx(plan.fun, rel=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_units_do_not_matter(metric):
    """Columns times 1e6 with scales divided by it are the same problem."""
    found = []
    for unit in (1.0, 1e6):
        parts = clients(False, unit=unit)
        made = transport_of(metric, np.array([1 / unit, 1 / unit, 1 / unit, np.inf]), 1.0, False)
        federation = Federation.from_arrays(parts, "unbounded")
        problem = Problem(federation, Absolute(), Box.cube(10 / unit, 3), made, WassersteinBall(0.2))
        found.append(solve(problem, gap=1e-8).upper)
    assert found[0] == pytest.approx(found[1], rel=1e-7)


def test_what_is_not_known_is_refused():
    parts = clients(False)
    free, boxed = (Federation.from_arrays(parts, s) for s in ("unbounded", Box.cube(50, 4)))
    l1 = Transport(np.ones(4), 1.0, norm=1.0)
    models, ball = Box.cube(10, 3), WassersteinBall(0.1)
    for arguments in (
        (boxed, Absolute(), models, l1, ball),
        (free, Absolute(), models, l1, Penalty(3.0)),
        (free, Absolute(), models, dataclasses.replace(l1, p=1.5), ball),
        (free, CustomLoss(lambda w, xi: (w @ xi[:-1]) ** 2, np.zeros(3), convex=True), models, l1, ball),
    ):
        with pytest.raises(BidroError, match="the l1 metric are known for"):
            Problem(*arguments)
    labelled = Federation.from_arrays([np.abs(np.sign(p)) * (p > 0) for p in parts], "unbounded")
    with pytest.raises(BidroError, match="the l1 metric"):
        Problem(labelled, Softmax(3), Box.cube(1, 9), Transport(np.ones(4), 1.0, True, norm=1.0), ball)
    assert solve(Problem(boxed, Absolute(), models, l1, CVaR(0.5)), gap=1e-4).gap <= 1e-4  # nothing moves
    for wrong in (
        {"norm": 3.0},
        {"norm": 1.0, "matrix": np.eye(4)},
        {"matrix": np.eye(3)},
        {"matrix": -np.eye(4)},
        {"matrix": np.triu(np.ones((4, 4)))},
        {"matrix": np.full((4, 4), np.nan)},
    ):
        with pytest.raises(BidroError, match=r"norm|matrix"):
            Transport(np.ones(4), **wrong)


def test_a_certificate_says_what_a_shift_in_this_metric_costs():
    """Absolute loss rises by at most the dual norm a unit of shift."""
    parts = [np.tile(part, (3, 1)) if len(part) > 1 else np.tile(part, (30, 1)) for part in clients(False)]
    problem = Problem(
        Federation.from_arrays(parts, "unbounded"),
        Absolute(),
        Box.cube(10, 3),
        Transport(np.ones(4), 1.0, norm=1.0),
        WassersteinBall(0.1),
    )
    x = np.array([0.3, -2.0, 0.5])
    assert support_lipschitz(problem, x) == pytest.approx(2.0)
