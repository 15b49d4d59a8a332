"""With curves the risk over a ball is an upper bound: nothing in the ball is worse, and what is found is in
it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.ambiguity import WassersteinBall
from bidro.certify.out_of_sample import largest_loss, support_lipschitz
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.data.splines import Basis
from bidro.losses import Huber, Logistic, Pinball, Softmax, Squared, losses_of
from bidro.problem.problem import Problem
from bidro.problem.worst_case import (
    _each_feature,
    _far,
    _near,
    _outward,
    curve_intercepts,
    robust_risk,
    worst_case_distribution,
)
from bidro.risk.transport import Transport

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


def test_pieces_of_a_curve_are_lines_with_these_intercepts():
    basis = Basis(((-0.5, 0.4, 1.0), (), (0.2, 0.3), (-2.0, -1.0)))
    slopes = np.random.default_rng(7).normal(size=basis.columns)
    found = curve_intercepts(basis, slopes)
    for low, high, feature, slope, at_0 in zip(*basis.ends, basis.feature, slopes, found, strict=True):
        for v in (max(low, -5.0), min(high, 5.0)):
            rows = np.zeros((1, basis.features))
            rows[0, feature] = v
            value = basis.contributions(rows, slopes)[0, feature]
            assert value == pytest.approx(at_0 + slope * v, abs=1e-12)


@pytest.mark.parametrize("support", ["unbounded", "box"])
def test_every_feature_moves_to_its_best_place(support):
    """Against a fine grid of places: slope f_j(v) less the price of the move; the target against its own."""
    box = Box(np.array([-2.6, -2.5, -3.0]), np.array([2.6, 2.5, 3.0]))
    loss = Squared(True, basis=BASIS)
    problem, x = posed(loss, 2.0, 0.3, support=box if support == "box" else "unbounded", movable=0.8)
    rows = np.asarray(problem.federation.samples)
    slope, prices = np.linspace(-3.0, 3.0, len(rows)), np.linspace(0.4, 2.0, len(rows))
    found = _each_feature(problem, loss, x, rows, slope, prices)
    reach = box.upper if support == "box" else np.full(3, 9.0)
    scale, w = np.append(SCALE, 0.8), x[:4]
    for row, point, s, price in zip(rows, found, slope, prices, strict=True):
        for j in range(3):
            places = np.linspace(-reach[j], reach[j], 40_001)
            moved = np.tile(row, (len(places), 1))
            moved[:, j] = places
            score = -places if j == 2 else BASIS.contributions(moved[:, :2], w)[:, j]
            gained = s * score - price * (scale[j] * (places - row[j])) ** 2
            own = -point[2] if j == 2 else BASIS.contributions(point[None, :2], w)[0, j]
            best = s * own - price * (scale[j] * (point[j] - row[j])) ** 2
            assert best == pytest.approx(gained.max(), abs=1e-4)
            assert abs(point[j]) <= reach[j]


def test_what_cannot_move_stays():
    loss = Squared(True, basis=BASIS)
    problem, x = posed(loss, 2.0, 0.3)
    rows = np.asarray(problem.federation.samples)
    held = replace(problem, transport=Transport(np.array([np.inf, 2.0, np.inf]), 2.0))
    found = _each_feature(held, loss, x, rows, np.ones(len(rows)), np.ones(len(rows)))
    np.testing.assert_array_equal(found[:, [0, 2]], rows[:, [0, 2]])
    assert np.all(found[:, 1] != rows[:, 1])


@pytest.mark.parametrize(
    ("loss", "movable"),
    [
        (Huber(True, 0.5, basis=BASIS), np.inf),
        (Huber(True, 0.5, basis=BASIS), 0.7),
        (Pinball(True, quantile=0.2, basis=BASIS), np.inf),
        (Pinball(True, quantile=0.9, basis=BASIS), 0.7),
        (Logistic(True, basis=BASIS), np.inf),
        (Softmax(3, True, basis=BASIS), np.inf),
    ],
)
def test_far_out_no_direction_is_steeper(loss, movable):
    """The slope by what is lost a million away, and against random directions of the same length."""
    problem, x = posed(loss, 1.0, 0.2, movable=movable)
    rows = np.asarray(problem.federation.samples)
    scale = np.append(SCALE, movable)
    along, slope = _outward(problem.inner, x, rows)
    moves = np.isfinite(scale) & (np.arange(3) < (3 if loss.labels is None else 2))
    lengths = np.linalg.norm(along[:, moves] * scale[moves], axis=1)
    np.testing.assert_allclose(lengths, 1.0)
    assert not along[:, ~moves].any()

    def lost(way):
        return (losses_of(loss, x, rows + 1e6 * way) - losses_of(loss, x, rows)) / 1e6

    np.testing.assert_allclose(lost(along), slope, rtol=1e-4)
    rng = np.random.default_rng(0)
    for _ in range(200):
        way = np.where(moves, rng.normal(size=rows.shape) / np.where(moves, scale, 1.0), 0.0)
        way /= np.linalg.norm(way[:, moves] * scale[moves], axis=1)[:, None]
        assert np.all(lost(way) <= slope + 1e-4)


def test_a_little_mass_moved_far_out_spends_the_radius():
    problem, x = posed(Huber(True, 0.5, basis=BASIS), 1.0, 0.2)
    rows = np.asarray(problem.federation.samples)
    points, masses, origins = _far(problem, x, rows, 0.2)
    _, slope = _outward(problem.inner, x, rows)
    np.testing.assert_allclose(np.bincount(origins, masses), 1 / len(rows))
    assert masses.min() == pytest.approx(1e-6 / len(rows))
    costs = problem.transport.row_costs(rows[origins], points)
    assert masses @ costs == pytest.approx(0.2)
    mean = losses_of(problem.loss, x, rows).mean()
    assert masses @ losses_of(problem.loss, x, points) == pytest.approx(mean + 0.2 * slope.max(), rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "p"), [(Squared(True, basis=BASIS), 2.0), (Logistic(True, basis=BASIS), 1.0)]
)
def test_moves_nearby_spend_the_radius(loss, p):
    for eps in (0.05, 0.4):
        problem, x = posed(loss, p, eps)
        rows = np.asarray(problem.federation.samples)
        points, masses, origins = _near(problem, loss, x, rows, eps)
        np.testing.assert_allclose(np.bincount(origins, masses), 1 / len(rows))
        costs = problem.transport.row_costs(rows[origins], points)
        assert masses @ costs == pytest.approx(eps**p, rel=1e-6)
