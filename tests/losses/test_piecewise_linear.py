"""Losses that are the largest of bilinear pieces: newsvendors and portfolios, against programs that cvxpy
solves, and worst cases that attain what is said of them."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from bidro import (
    AFL,
    BidroError,
    BiDROFL,
    Box,
    ConstrainedBox,
    Exact,
    Federation,
    Penalty,
    PiecewiseLinear,
    Problem,
    Transport,
    WassersteinBall,
    robust_risk,
    run,
    solve,
    worst_case_distribution,
)
from bidro.ambiguity import CVaR
from bidro.problem.worst_case import penalised_risk

TIGHT = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
ASSETS, WEIGHT, LEVEL = 4, 2.0, 0.8
M = np.diag([1.0, 4.0, 2.0, 1.0]) + 0.3
METRICS = {
    "euclidean": (Transport.euclidean(ASSETS, 1), cp.norm),
    # Its second coordinate is twice as costly to move.
    "l1": (
        Transport([1.0, 2.0, 1.0, 1.0], 1, norm=1),
        lambda a: cp.norm_inf(cp.multiply(a, np.array([1.0, 0.5, 1.0, 1.0]))),
    ),
    "linf": (Transport(np.ones(ASSETS), 1, norm=np.inf), cp.norm1),
    "mahalanobis": (
        Transport(np.ones(ASSETS), 1, matrix=M),
        lambda a: cp.norm(np.linalg.inv(np.linalg.cholesky(M)) @ a),
    ),
}


def returns(seed=0, unit=1.0):
    rng = np.random.default_rng(seed)
    spread, mean = np.linspace(0.02, 0.1, ASSETS), np.linspace(0.0, 0.03, ASSETS)
    return [unit * (rng.normal(size=(40 + 9 * i, ASSETS)) * spread + mean * (1 + i)) for i in range(3)]


def portfolio(parts, transport, radius, unit=1.0):
    """Weights of the portfolio that sum to 1, half of them at least in the first two, and t."""
    rows = [[1.0] * ASSETS + [0.0], [1.0, 1.0] + [0.0] * (ASSETS - 1)]
    ends = np.append(np.zeros(ASSETS), -9 * unit), np.append(np.ones(ASSETS), 9 * unit)
    models = ConstrainedBox(Box(*ends), rows, [1.0, 0.5], [1.0, np.inf])
    federation = Federation.from_arrays({f"desk {i}": rows for i, rows in enumerate(parts)}, "unbounded")
    loss = PiecewiseLinear.mean_cvar(ASSETS, WEIGHT, LEVEL)
    return Problem(federation, loss, models, transport, WassersteinBall(radius))


def optimum_of_portfolio(parts, radius, dual_norm):
    w, t, worst = cp.Variable(ASSETS), cp.Variable(), cp.Variable()
    inside = [w >= 0, w <= 1, cp.sum(w) == 1, w[0] + w[1] >= 0.5]
    steepest = 1 + WEIGHT / (1 - LEVEL)
    for rows in parts:
        loss = -rows @ w + WEIGHT * (t + cp.pos(-rows @ w - t) / (1 - LEVEL))
        inside.append(cp.sum(loss) / len(rows) + radius * steepest * dual_norm(w) <= worst)
    cp.Problem(cp.Minimize(worst), inside).solve(**TIGHT)
    return float(worst.value)


@pytest.mark.parametrize("radius", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("metric", METRICS)
def test_a_portfolio_is_that_of_a_cone_program(metric, radius):
    transport, dual_norm = METRICS[metric]
    found = solve(portfolio(returns(), transport, radius), gap=1e-8)
    best = optimum_of_portfolio(returns(), radius, dual_norm)
    assert found.certified
    assert found.gap <= 1e-8
    assert found.upper == pytest.approx(best, abs=1e-7 * abs(best))
    assert found.lower <= best + 1e-8 * abs(best)
    assert found.x[:ASSETS].sum() == pytest.approx(1.0, abs=1e-12)
    assert found.x[0] + found.x[1] >= 0.5 - 1e-9


@pytest.mark.parametrize("metric", METRICS)
def test_the_worst_case_of_a_portfolio_is_in_the_ball_and_approaches_its_risk(metric):
    transport, _ = METRICS[metric]
    parts, x = returns(), np.array([0.1, 0.5, 0.1, 0.3, 0.02])
    problem = portfolio(parts, transport, 0.05)
    for i, name in enumerate(problem.federation.names):
        worst = worst_case_distribution(problem, x, name)
        moved = transport.row_costs(parts[i][worst.origins], worst.points)
        assert worst.masses.sum() == pytest.approx(1.0)
        assert worst.masses @ moved <= 0.05 * (1 + 1e-9)
        assert abs(worst.deficit) <= 2e-7 * abs(worst.risk)


@pytest.mark.parametrize("unit", [1e-8, 1e6])
def test_returns_in_any_unit_give_the_same_portfolio(unit):
    transport, dual_norm = METRICS["euclidean"]
    found = solve(portfolio(returns(unit=unit), transport, 0.01 * unit, unit), gap=1e-6)
    best = unit * optimum_of_portfolio(returns(), 0.01, dual_norm)
    assert found.upper == pytest.approx(best, rel=2e-6)


DEMANDS = [
    np.random.default_rng(1).gamma(3, 10, 50)[:, None],
    np.random.default_rng(2).gamma(4, 12, 31)[:, None],
]
COST, PRICE, SALVAGE = 1.0, 3.0, 0.2


def newsvendor(support, p, ambiguity):
    federation = Federation.from_arrays({"a": DEMANDS[0], "b": DEMANDS[1]}, support)
    loss = PiecewiseLinear.newsvendor(COST, PRICE, SALVAGE)
    return Problem(federation, loss, Box([0.0], [200.0]), Transport.euclidean(1, p), ambiguity)


def loss_by_hand(x, demand):
    return COST * x - PRICE * np.minimum(x, demand) - SALVAGE * np.maximum(x - demand, 0.0)


@pytest.mark.parametrize("radius", [0.0, 0.5, 4.0])
def test_a_newsvendor_orders_what_the_closed_form_says(radius):
    """On an unbounded support, the mean loss and the radius times the slope in the demand: at the best order,
    which is a demand or where the two risks cross."""
    found = solve(newsvendor("unbounded", 1, WassersteinBall(radius)), gap=1e-9)
    x, worst = cp.Variable(), cp.Variable()
    risks = [
        cp.sum(cp.maximum((COST - PRICE) * x, (COST - SALVAGE) * x - (PRICE - SALVAGE) * own[:, 0]))
        / len(own)
        for own in DEMANDS
    ]
    program = cp.Problem(cp.Minimize(worst), [risk <= worst for risk in risks])
    program.solve(**TIGHT)
    assert found.upper == pytest.approx(worst.value + radius * (PRICE - SALVAGE), rel=1e-8)
    own = loss_by_hand(found.x[0], DEMANDS[0][:, 0]).mean() + radius * (PRICE - SALVAGE)
    assert found.risks[0] == pytest.approx(own, rel=1e-10)


def dual_on_a_box(x, demands, radius, p, low, high):
    """min over lambda of lambda radius^p + mean of the largest of the loss less lambda |move|^p over the box:
    the maximum is at the demand, an end, or, for p = 2, where a piece's slope is 2 lambda times the move."""

    def above(price):
        slopes = np.array([0.0, -(PRICE - SALVAGE)])
        ends = [demands, np.full(len(demands), low), np.full(len(demands), high)]
        if p == 2:
            ends += [np.clip(demands + slope / (2 * price), low, high) for slope in slopes]
        values = [loss_by_hand(x, end) - price * np.abs(end - demands) ** p for end in ends]
        return price * radius**p + np.max(values, axis=0).mean()

    grid = np.geomspace(1e-13, 1e3, 400)
    best = int(np.argmin([above(price) for price in grid]))
    low_end, high_end = grid[max(best - 1, 0)], grid[min(best + 1, 399)]
    return minimize_scalar(above, bounds=(low_end, high_end), method="bounded", options={"xatol": 1e-12}).fun


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("radius", [0.5, 4.0, 1e3])
def test_risks_on_a_box_are_those_of_the_dual_and_are_attained(p, radius):
    problem = newsvendor(Box([0.0], [160.0]), p, WassersteinBall(radius))
    for order in (5.0, 30.0, 120.0):
        found = robust_risk(problem, [order], curvature=False)
        for i, demands in enumerate(DEMANDS):
            by_hand = dual_on_a_box(order, demands[:, 0], radius, p, 0.0, 160.0)
            assert float(found.value[i]) == pytest.approx(by_hand, rel=1e-7)
            worst = worst_case_distribution(problem, [order], "ab"[i])
            moved = np.abs(worst.points - demands[worst.origins])[:, 0]
            assert (worst.masses @ moved**p) ** (1 / p) <= radius * (1 + 1e-9)
            assert abs(worst.deficit) <= 1e-7 * abs(worst.risk)


def test_a_box_of_several_returns_is_solved_as_the_conic_dual_has_it():
    """p = 1 on a box (Mohajerin Esfahani and Kuhn, 2018, Theorem 4.2): with prices g of the box's sides,
    s >= b_j + <a_j, xi> + <g, d - C xi> and ||C' g - a_j|| <= lambda for every piece and row."""
    parts, radius = [part[:12] for part in returns()[:2]], 0.02
    low, high = (np.min(np.vstack(parts), axis=0) - 0.01, np.max(np.vstack(parts), axis=0) + 0.02)
    open_ended = portfolio(parts, Transport.euclidean(ASSETS, 1), radius)
    bounded = Federation.from_arrays({"desk 0": parts[0], "desk 1": parts[1]}, Box(low, high))
    problem = Problem(bounded, open_ended.loss, open_ended.models, open_ended.transport, open_ended.ambiguity)
    found = solve(problem, gap=1e-4)
    w, t, worst = cp.Variable(ASSETS), cp.Variable(), cp.Variable()
    inside = [w >= 0, w <= 1, cp.sum(w) == 1, w[0] + w[1] >= 0.5]
    tail = WEIGHT / (1 - LEVEL)
    for rows in parts:
        price, s = cp.Variable(nonneg=True), cp.Variable(len(rows))
        for slope, of_t in ((1.0, WEIGHT), (1 + tail, WEIGHT - tail)):
            up, down = cp.Variable(rows.shape, nonneg=True), cp.Variable(rows.shape, nonneg=True)
            a, left = -slope * w, cp.sum(cp.multiply(up, high - rows) + cp.multiply(down, rows - low), axis=1)
            inside.append(s >= rows @ a + of_t * t + left)
            inside += [cp.norm(up[k] - down[k] - a) <= price for k in range(len(rows))]
        inside.append(price * radius + cp.sum(s) / len(rows) <= worst)
    cp.Problem(cp.Minimize(worst), inside).solve(**TIGHT)
    assert found.certified
    assert found.upper == pytest.approx(float(worst.value), rel=2e-4)
    assert found.lower <= float(worst.value) * (1 + 1e-7)


def test_a_penalty_bounds_the_steepness():
    """p = 1, unbounded: finite, and the mean loss, for portfolios of which no piece is steeper than rho."""
    parts, rho = returns(), 7.0
    ball = portfolio(parts, Transport.euclidean(ASSETS, 1), 0.0)
    with pytest.warns(UserWarning, match="too steep"):
        problem = Problem(ball.federation, ball.loss, ball.models, ball.transport, Penalty(rho))
    found = solve(problem, gap=1e-6)
    w, t, worst = cp.Variable(ASSETS), cp.Variable(), cp.Variable()
    inside = [w >= 0, w <= 1, cp.sum(w) == 1, w[0] + w[1] >= 0.5]
    inside.append((1 + WEIGHT / (1 - LEVEL)) * cp.norm(w) <= rho)
    for rows in parts:
        loss = -rows @ w + WEIGHT * (t + cp.pos(-rows @ w - t) / (1 - LEVEL))
        inside.append(cp.sum(loss) / len(rows) <= worst)
    cp.Problem(cp.Minimize(worst), inside).solve(**TIGHT)
    assert found.upper == pytest.approx(float(worst.value), rel=2e-4)
    assert found.lower <= float(worst.value) * (1 + 1e-7)
    steep = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    assert np.all(np.isinf(penalised_risk(problem, steep).value))


def test_the_worst_rows_of_a_newsvendor_are_weighed_anew():
    """CVaR over rows of a loss with kinks, against a linear program."""
    found = solve(newsvendor("unbounded", 1, CVaR(0.6)), gap=1e-7)
    x, worst, inside = cp.Variable(), cp.Variable(), []
    for own in DEMANDS:
        eta = cp.Variable()
        loss = cp.maximum((COST - PRICE) * x, (COST - SALVAGE) * x - (PRICE - SALVAGE) * own[:, 0])
        inside.append(eta + cp.sum(cp.pos(loss - eta)) / len(own) / 0.4 <= worst)
    cp.Problem(cp.Minimize(worst), inside).solve(**TIGHT)
    assert found.upper == pytest.approx(float(worst.value), rel=1e-6)


def test_algorithm_1_and_afl_train_it_within_the_constraints():
    ball = portfolio(returns(), Transport.euclidean(ASSETS, 2), 0.0)
    exact = solve(ball).upper
    # So dear that the worst case of a row is 0.01 away: its loss changes by |slope|^2 / (4 rho).
    dear = Problem(ball.federation, ball.loss, ball.models, ball.transport, Penalty(1e4))
    mean = Problem(ball.federation, ball.loss, ball.models, ball.transport, None)
    for algorithm, problem in ((AFL(0.02, 0.3), mean), (BiDROFL(0.01, 0.1, Exact()), dear)):
        found = run(algorithm, problem, rounds=600)
        assert bool(ball.models.contains(found.x_average, 1e-9))
        reached = max(np.mean(ball.loss.values(found.x_average, rows)) for rows in returns())
        assert exact - 1e-6 <= reached <= exact + 0.02


def test_bad_pieces_say_what_is_wrong():
    for make, words in (
        (lambda: PiecewiseLinear([[1.0, 2.0]]), "matrices"),
        (lambda: PiecewiseLinear([[[1.0, np.inf], [0.0, 0.0]]]), "finite"),
        (lambda: PiecewiseLinear.newsvendor(1.0, 2.0, 3.0), "at least what one left over"),
        (lambda: PiecewiseLinear.mean_cvar(3, 1.0, 1.0), "level"),
        (lambda: newsvendor_of_two_columns(), "for 1 columns but the rows have 2"),
    ):
        with pytest.raises(BidroError, match=words):
            make()


def newsvendor_of_two_columns():
    federation = Federation.from_arrays({"a": np.ones((3, 2))}, "unbounded")
    return Problem(federation, PiecewiseLinear.newsvendor(1, 2), Box([0.0], [1.0]), Transport.euclidean(2))
