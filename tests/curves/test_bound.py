"""With curves the risk over a ball is an upper bound: nothing in the ball is worse, and what is found is in
it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.client import WassersteinBall
from bidro.curves import Basis
from bidro.federation import Federation
from bidro.guarantees.on_support import largest_loss, support_lipschitz
from bidro.guarantees.robust import robust_risk, worst_case_distribution
from bidro.losses import Huber, Logistic, Softmax, Squared
from bidro.problem import Problem
from bidro.sets import Box
from bidro.transport import Transport

BASIS = Basis(((-0.5, 0.4), ()))
SCALE = np.array([1.0, 2.0])


def posed(loss, p, eps, seed=0, rows=8, support="unbounded", movable=np.inf):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(rows, 2))
    if loss.labels is None:
        y, transport = rng.normal(size=rows), Transport(np.append(SCALE, movable), p)
    else:
        y = rng.choice(loss.labels, rows)
        transport = Transport(np.append(SCALE, 1.0), p, True)
    federation = Federation.from_arrays({"one": np.column_stack([theta, y])}, support)
    d = loss.dimension(3)
    problem = Problem(federation, loss, Box.cube(10.0, d), transport, WassersteinBall(eps))
    return problem, rng.normal(size=d)


def worst_on_a_grid(problem, x, eps):
    """The largest expected loss of a distribution within eps of the rows that lives on a grid of features,
    the labels being held: a linear program in the plan."""
    rows = np.asarray(problem.federation.samples)
    side = [np.linspace(-6, 6, 25), np.linspace(-6, 6, 13)]
    grid = np.stack(np.meshgrid(*side), axis=-1).reshape(-1, 2)
    plans, gains, owners = [], [], []
    for k, row in enumerate(rows):
        points = np.column_stack([np.vstack([grid, row[:2]]), np.full(len(grid) + 1, row[2])])
        cost = np.sum((SCALE * (points[:, :2] - row[:2])) ** 2, axis=1) ** (problem.transport.p / 2)
        near = cost <= 30 * eps**problem.transport.p * len(rows)
        plans.append(cost[near])
        gains.append(np.asarray(problem.loss.values(x, points))[near])
        owners.append(np.full(near.sum(), k))
    cost, gain, owner = (np.concatenate(part) for part in (plans, gains, owners))
    equal = (owner == np.arange(len(rows))[:, None]).astype(float)
    found = linprog(
        -gain,
        A_ub=cost[None],
        b_ub=[eps**problem.transport.p],
        A_eq=equal,
        b_eq=np.full(len(rows), 1 / len(rows)),
    )
    return -found.fun


CASES = [
    (Squared(True, basis=BASIS), 2.0),
    (Huber(True, 0.5, basis=BASIS), 1.0),
    pytest.param(Huber(True, 0.5, basis=BASIS), 2.0, marks=pytest.mark.slow),
    (Logistic(True, basis=BASIS), 1.0),
    pytest.param(Logistic(True, basis=BASIS), 2.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("loss", "p"), CASES)
def test_no_distribution_in_the_ball_is_worse_than_the_bound(loss, p):
    gained = []
    for seed, eps in enumerate((0.05, 0.5, 1.0)):
        problem, x = posed(loss, p, eps, seed)
        bound = float(robust_risk(problem, x, curvature=False).value[0])
        found = worst_case_distribution(problem, x, "one")
        # What is found is in the ball, and its expected loss what it says.
        rows = np.asarray(problem.federation.samples)
        costs = problem.transport.row_costs(rows[found.origins], found.points)
        assert float(found.masses @ costs) <= eps**p * (1 + 1e-9)
        np.testing.assert_allclose(np.bincount(found.origins, found.masses), 1 / len(rows))
        losses = np.asarray(loss.values(x, found.points))
        assert found.expected_loss == pytest.approx(float(found.masses @ losses))
        assert found.risk == pytest.approx(bound)
        on_grid = worst_on_a_grid(problem, x, eps)
        mean = float(np.mean(loss.values(x, rows)))
        assert mean <= found.expected_loss <= bound * (1 + 1e-9)
        assert mean <= on_grid <= bound * (1 + 1e-9)
        gained.append((found.expected_loss - mean) / (on_grid - mean))
    # The search is as good as the grid, or nearly; it is no proof.
    assert np.median(gained) >= 0.9
    assert min(gained) >= 0.4


def test_with_one_segment_the_bound_is_attained():
    straight = Basis(((), ()))
    problem, x = posed(Squared(True, basis=straight), 2.0, 0.3)
    found = worst_case_distribution(problem, x, "one")
    line = replace(problem, loss=Squared(True))
    exact = worst_case_distribution(line, x, "one")
    assert found.risk == pytest.approx(exact.risk, rel=1e-12)
    assert found.expected_loss == pytest.approx(exact.risk, rel=1e-6)


def test_a_target_that_moves_and_a_declared_support():
    problem, x = posed(Squared(True, basis=BASIS), 2.0, 0.3, movable=2.0)
    found = worst_case_distribution(problem, x, "one")
    assert found.expected_loss <= found.risk
    assert np.any(found.points[:, -1] != np.asarray(problem.federation.samples)[found.origins, -1])
    box = Box(np.array([-2.5, -2.5, -3.0]), np.array([2.5, 2.5, 3.0]))
    inside, _ = posed(Squared(True, basis=BASIS), 2.0, 0.3, support=box)
    kept = worst_case_distribution(inside, x, "one")
    assert np.all(kept.points >= np.asarray(box.lower))
    assert np.all(kept.points <= np.asarray(box.upper))
    assert kept.expected_loss <= kept.risk


def test_several_classes_move_far_out():
    problem, x = posed(Softmax(3, True, basis=BASIS), 1.0, 0.2)
    found = worst_case_distribution(problem, x, "one")
    mean = float(np.mean(problem.loss.values(x, np.asarray(problem.federation.samples))))
    assert mean < found.expected_loss <= found.risk


@pytest.mark.parametrize(
    "loss", [Squared(True, basis=BASIS), Logistic(True, basis=BASIS), Softmax(3, True, basis=BASIS)]
)
def test_the_largest_loss_and_slope_on_a_box(loss):
    box = Box(np.array([-2.0, -1.5, -3.0]), np.array([2.5, 1.0, 3.0]))
    problem, x = posed(loss, 1.0 if loss.labels else 2.0, 0.1, rows=5, support="unbounded")
    problem = replace(problem, federation=replace(problem.federation, support=box))
    rng = np.random.default_rng(5)
    points = rng.uniform(np.asarray(box.lower), np.asarray(box.upper), size=(40_000, 3))
    points[:9, :2] = [(a, b) for a in (-2.0, 2.5, 0.4) for b in (-1.5, 1.0, 0.0)]
    if loss.labels is not None:
        points[:, -1] = rng.choice(loss.labels, len(points))
    values = np.asarray(loss.values(x, points))
    most = largest_loss(problem, x)
    assert values.max() <= most * (1 + 1e-9)
    if not isinstance(loss, Softmax):
        assert values.max() >= 0.9 * most
    slope = support_lipschitz(problem, x)
    step = 1e-6 * rng.normal(size=(len(points), 2))
    moved = points.copy()
    moved[:, :2] += step
    change = np.abs(np.asarray(loss.values(x, moved)) - values) / np.linalg.norm(SCALE * step, axis=1)
    assert change.max() <= slope * (1 + 1e-3)
