"""Risks with kinks in NumPy: against compiled programs that search, differences, and other models' risks."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import HostClients, all_replies
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Absolute, Hinge, Logistic, Pinball, SmoothedHinge, Softmax
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.inner import Exact
from bidro.risk.oracle import Lift
from bidro.risk.rows_kinked import _ByClient, _followed, kinked_risks, known_with_kinks
from bidro.risk.rows_numpy import FoldedRows
from bidro.risk.transport import Transport
from bidro.selection.fold_queries import CutsBroadcast, FoldCuts
from bidro.solvers.solve import solve

SIZES = (30, 45)
LOSSES = {
    "hinge": (Hinge(True), np.inf),
    "absolute": (Absolute(True), np.inf),
    "pinball": (Pinball(quantile=0.3), np.inf),
    "hinge, labels": (Hinge(), 0.7),
    "logistic, labels": (Logistic(True), 0.7),
    "smoothed hinge, labels": (SmoothedHinge(True, pseudo_rows=2.0), 0.7),
    "softmax, labels": (Softmax(2, True), 0.7),
}
# None of it, some of it, and more than all labels together cost.
RADII = [(0.1, 0.2), (0.0, 0.3), (2.0, 0.9)]


def problem_of(name, radii=RADII[0], sizes=SIZES, d=4, seed=0):
    loss, cost = LOSSES[name]
    rng, parts = np.random.default_rng(seed), []
    w = rng.normal(size=d) / np.sqrt(d)
    for size in sizes:
        theta = rng.normal(size=(size, d))
        y = theta @ w + 0.5 * rng.normal(size=size)
        parts.append(
            np.column_stack([theta, y if loss.labels is None else np.where(y > 0, *loss.labels[::-1])])
        )
    transport = Transport.features_only(d + 1, 1.0)
    if loss.labels is not None:
        transport = Transport.classification(d + 1, 1.0, cost)
    models = Box.cube(10.0, loss.dimension(d + 1))
    federation = Federation.from_arrays(parts, "unbounded")
    return Problem(federation, loss, models, transport, WassersteinBall(np.array(radii)))


def rows_of(problem):
    federation = problem.federation
    return FoldedRows(
        federation.host_rows, np.asarray(federation.sizes), np.arange(sum(federation.sizes)) % 3
    )


def model_of(problem, seed=0):
    return 0.4 * np.random.default_rng(seed).normal(size=problem.dimension)


def in_x(problem, x, found):
    """Gradients (n, d) and Hessians (n, d, d) of risks as functions of the model alone."""
    lift, d = Lift(problem.cones), problem.dimension
    steep = lift.exact(x)
    share = np.eye(len(steep.norms))[steep.norms.argmax()]
    whole = np.column_stack([np.eye(d), share @ steep.slopes])
    second = found.gradient[:, -1, None, None] * steep.second(share)
    return found.gradient @ whole.T, whole @ found.curvature @ whole.T + second


@pytest.mark.parametrize("radii", RADII)
@pytest.mark.parametrize("name", LOSSES)
def test_values_are_those_that_compiled_programs_search_for(name, radii):
    problem = problem_of(name, radii)
    x, eps = model_of(problem), np.array(radii)
    found = kinked_risks(problem.inner, rows_of(problem), x, eps, 1e-9, False)
    expected = np.asarray(robust_risk(problem, x).value)
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    # Kinks that are hardly smoothed cost hardly anything, and the cut is a lower bound.
    assert np.all(found.attained <= expected)
    np.testing.assert_allclose(found.attained, expected, rtol=1e-8)
    assert np.all(found.attained + found.smoothing >= expected - 1e-12)


@pytest.mark.parametrize("width", [0.5, 0.05])
@pytest.mark.parametrize("radii", RADII)
@pytest.mark.parametrize("name", LOSSES)
def test_slopes_and_curvature_are_the_smoothed_risks_derivatives(name, radii, width):
    problem = problem_of(name, radii)
    x, eps, rows, step = model_of(problem, 1), np.array(radii), rows_of(problem), 1e-5

    def smoothed(v):
        found = kinked_risks(problem.inner, rows, v, eps, width, True)
        return found.attained + found.smoothing, *in_x(problem, v, found)

    ends = [(smoothed(x + step * e), smoothed(x - step * e)) for e in np.eye(problem.dimension)]
    _, slopes, curvatures = smoothed(x)
    for k, derivative in enumerate((slopes, curvatures)):
        numeric = np.stack([(above[k] - below[k]) / (2 * step) for above, below in ends], axis=1)
        np.testing.assert_allclose(derivative, numeric, atol=1e-5)


@pytest.mark.parametrize("width", [0.3, 0.0])
@pytest.mark.parametrize("name", LOSSES)
def test_cuts_lie_below_the_risks_of_every_model(name, width):
    """Also with the slopes that kinks are followed to, which a width of 0 asks for."""
    problem = problem_of(name)
    eps, rows, lift = np.array(RADII[0]), rows_of(problem), Lift(problem.cones)
    path = np.array([np.append(model_of(problem, seed), 0.1) for seed in range(3)])
    x = path[-1, :-1] + 0.01
    found = kinked_risks(problem.inner, rows, x, eps, width, True, path)
    for seed in range(20):
        y = x + 10.0 ** -(seed % 4) * np.random.default_rng(seed).normal(size=len(x))
        cut = found.attained + found.gradient @ (lift.lifted(y) - lift.lifted(x))
        assert np.all(cut <= kinked_risks(problem.inner, rows, y, eps, 0.0, False).value)


@pytest.mark.parametrize("name", LOSSES)
def test_a_fold_is_left_out_as_if_its_rows_were_not_there(name):
    problem = problem_of(name)
    x, eps, rows = model_of(problem), np.array(RADII[0]), rows_of(problem)
    path = np.array([np.append(model_of(problem, seed), 0.1) for seed in range(3)])
    kept = rows.fold_ids != 1
    sizes = np.bincount(np.repeat([0, 1], rows.sizes)[kept])
    alone = FoldedRows(rows.samples[kept], sizes, np.zeros(kept.sum(), int))
    expected = kinked_risks(problem.inner, alone, x, eps, 0.1, True, path)
    found = kinked_risks(problem.inner, rows, x, eps, 0.1, True, path, fold=1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_cuts_of_many_solves_are_those_of_one_each(name):
    """Of solves that leave out a fold and of one that leaves none; what is not active is 0."""
    problem = problem_of(name)
    host = HostClients(problem, FoldSpec(3, 0), 0).host
    x = np.stack([model_of(problem, seed) for seed in range(4)])
    fold, scale = np.array([0, 2, 3, 0]), np.array([0.0, 0.5, 0.2, 0.0])
    message = CutsBroadcast(np.asarray(3), x, np.full(4, 0.1), fold, scale)
    found = FoldCuts(Exact()).client_batch_numpy(message, host)
    for j in range(3):
        eps = np.array(RADII[0]) + scale[j] / np.sqrt(host.folded.left(fold[j : j + 1])[:, 0])
        one = kinked_risks(problem.inner, host.folded, x[j], eps, 0.1, True, fold=int(fold[j]))
        np.testing.assert_array_equal(found.upper[:, j], one.value)
        np.testing.assert_array_equal(found.gradient[:, j], one.gradient)
    assert not any(part[:, 3].any() for part in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hinge", "pinball", "absolute"])
def test_cuts_are_those_of_compiled_clients_where_labels_keep_their_values(name):
    problem = problem_of(name)
    clients = HostClients(problem, FoldSpec(3, 0), 0)
    x = np.stack([model_of(problem, seed) for seed in range(2)])
    message = CutsBroadcast(np.asarray(2), x, np.full(2, 0.1), np.array([0, 3]), np.array([0.0, 0.5]))
    query = FoldCuts(Exact())
    found = query.client_batch_numpy(message, clients.host)
    expected = all_replies(query, *clients._compiled, message, 0)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-9, atol=1e-12)


def test_prices_give_way_so_that_the_budget_stays_spent():
    rng, sizes = np.random.default_rng(0), np.array([30, 45])
    rows = FoldedRows(np.zeros((75, 2)), sizes, np.zeros(75, int))
    by = _ByClient.of(rows, -1)
    gain, width = rng.normal(size=(3, 75)), 0.05
    prices = np.array([[0.3, 0.9]] * 3)
    away = gain - by.each(prices)
    root = np.hypot(away, width)
    slope = _followed(gain, away / root, root, by, prices, np.zeros((3, 2), bool))
    np.testing.assert_allclose(by.mean(slope), by.mean((away / root)[-2]), atol=1e-12)
    assert np.all(abs(slope) <= 1)


@pytest.mark.parametrize("name", ["hinge", "absolute", "logistic, labels", "softmax, labels"])
@pytest.mark.parametrize("seed", range(2))
def test_gaps_close_in_a_few_rounds(name, seed):
    """Kinks are followed, and the lines that prove the optimum have the slopes to which they are followed."""
    found = solve(problem_of(name, 0.1, (100,), 5, seed))
    assert found.gap <= 1e-6
    assert found.rounds <= 25


def test_what_is_known_here():
    some, none = np.array([0.1, 0.2]), np.zeros(2)
    for name in LOSSES:
        assert known_with_kinks(problem_of(name).inner, some)
    squares = replace(problem_of("hinge").inner, transport=Transport.classification(5, 2.0))
    assert known_with_kinks(squares, none)
    assert not known_with_kinks(squares, some)
    assert not known_with_kinks(replace(squares, loss=Logistic()), none)
