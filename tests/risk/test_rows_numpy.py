"""Risks in NumPy: against means by hand, their differences, and what compiled clients say."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.sets import Box, WholeSpace
from bidro.data.federation import Federation
from bidro.data.splines import Basis
from bidro.federated.engines.in_process import HostClients, all_replies
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Hinge, Huber, Logistic, SmoothedHinge, Softmax, Squared, losses_of
from bidro.problem.problem import Problem
from bidro.risk import rows_numpy
from bidro.risk.inner import Exact, Inner
from bidro.risk.rows_numpy import FoldedRows, curvatures, needs_no_search, risks
from bidro.risk.transport import Transport
from bidro.selection.fold_queries import FoldRisks, FoldScores, RisksBroadcast, ScoresBroadcast
from bidro.solvers.bundle.algorithm import ExactMWDRO
from tests.small import in_folds

SIZES = np.array([5, 40, 7])
TRANSPORT = Transport(np.array([0.5, 2.0, 1.0]), 1.0, True)
# Three segments of the first feature, one of the second.
CURVES = {"basis": Basis(((-0.5, 0.4), ())), "smoothing": 0.3}
LOSSES = {
    "logistic": Logistic(True),
    "no intercept": Logistic(),
    "smoothed hinge": SmoothedHinge(True),
    "Huber": Huber(True),
    "softmax": Softmax(3, True),
    "softmax, no intercept": Softmax(3),
    "curves": Logistic(True, **CURVES),
    "Huber curves": Huber(True, **CURVES),
    "softmax curves": Softmax(3, True, **CURVES),
}


def inner_of(loss):
    transport = TRANSPORT if loss.labels is not None else Transport(np.array([0.5, 2.0, math.inf]), 1.0)
    return Inner(transport, WholeSpace(3), loss)


def folded(loss, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(SIZES.sum(), 3))
    if loss.labels is not None:
        table[:, -1] = rng.choice(loss.labels, len(table))
        table[:5, -1] = loss.labels[-1]  # a client that has one class alone
    return FoldedRows(table, SIZES, np.concatenate([np.arange(size) % 3 for size in SIZES]))


def steepness(loss, x, labels):
    """By its definition: ||S^-1 w||, and of classes the largest distance of two of which one is there; of
    curves, with the steepest slope of each feature."""

    def norm(w):
        first, second = (abs(w[0]), abs(w[1])) if loss.basis is None else (abs(w[:3]).max(), abs(w[3]))
        return math.hypot(first / 0.5, second / 2.0)

    if not isinstance(loss, Softmax):
        return norm(x)
    columns = 2 if loss.basis is None else 4
    w = x[: 3 * columns].reshape(3, columns)
    return max(norm(w[int(y)] - w[k]) for y in set(labels) for k in range(3))


def roughness(loss, x):
    """What smooths curves: it is added once, whatever rows there are."""
    return 0.0 if loss.penalty is None else float(x @ loss.penalty @ x)


def by_hand(loss, rows, x, fold, eps):
    """(n,) the risks over balls of radii eps, of the rows that are not in a fold."""
    found, ends = [], np.cumsum(rows.sizes)[:-1]
    for own, fold_ids in zip(np.split(rows.samples, ends), np.split(rows.fold_ids, ends), strict=True):
        kept = own[fold_ids != fold]
        still = losses_of(loss, x, kept).mean() + roughness(loss, x)
        found.append(still + eps * steepness(loss, x, kept[:, -1]))
    return np.array(found)


@pytest.mark.parametrize("block", [1 << 18, 40])
@pytest.mark.parametrize("name", LOSSES)
def test_risks_and_their_derivatives(name, block, monkeypatch):
    """Values by hand, gradients and curvatures by differences of these; in large blocks of rows and in small
    ones, which cut clients in two."""
    monkeypatch.setattr(rows_numpy, "_ONE_THREAD", block)
    monkeypatch.setattr(rows_numpy, "_FEWEST_ROWS", 2)
    loss = LOSSES[name]
    inner, rows = inner_of(loss), folded(loss)
    d = loss.dimension(3)
    rng = np.random.default_rng(1)
    x, fold = 0.7 * rng.normal(size=(4, d)), np.array([0, 2, 3, 1])
    eps = np.array([0.0, 0.3, 0.2, 0.0])
    found = risks(inner, rows, x, fold, np.tile(eps, (3, 1)))
    packed = curvatures(inner, rows, x, fold)
    above, right = np.triu_indices(d + 1)
    step = 1e-5 * np.eye(d)
    for j in range(4):
        value = by_hand(loss, rows, x[j], fold[j], eps[j])
        np.testing.assert_allclose(found.value[:, j], value, rtol=1e-12)
        # In (x, nu): with nu(x) put in, the gradient is that of the risk.
        slope = found.gradient[:, j, :-1] + found.gradient[:, j, -1:] * steepness_gradient(loss, x[j])
        differences = [
            (by_hand(loss, rows, x[j] + h, fold[j], eps[j]) - by_hand(loss, rows, x[j] - h, fold[j], eps[j]))
            / 2e-5
            for h in step
        ]
        np.testing.assert_allclose(slope, np.stack(differences, axis=1), atol=1e-8)
        own = np.zeros((3, d + 1, d + 1))
        own[:, above, right] = own[:, right, above] = packed[:, j]
        assert not own[:, -1].any()
        around = [np.stack([x[j] + h, x[j] - h]) for h in step]
        at = [risks(inner, rows, two, fold[[j, j]], np.zeros((3, 2))) for two in around]
        bent = [(one.gradient[:, 0, :-1] - one.gradient[:, 1, :-1]) / 2e-5 for one in at]
        np.testing.assert_allclose(own[:, :-1, :-1], np.stack(bent, axis=1), atol=1e-8)


def steepness_gradient(loss, x):
    """Of nu(x), over all classes, by differences."""
    labels = (0, 1, 2)
    steps = 1e-6 * np.eye(len(x))
    return np.array([(steepness(loss, x + h, labels) - steepness(loss, x - h, labels)) / 2e-6 for h in steps])


def test_small_losses_keep_their_digits():
    """log(1 + exp(-40)) is not 0, of one score or of three."""
    table = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    rows = FoldedRows(table, np.array([2]), np.zeros(2, np.int64))
    nowhere, none = np.array([-1]), np.zeros((1, 1))
    binary = risks(inner_of(Logistic()), rows, np.array([[40.0, 0.0]]), nowhere, none)
    many = risks(inner_of(Softmax(3)), rows, np.array([[0.0, 0, 40, 0, 0, 0]]), nowhere, none)
    assert binary.value[0, 0] == pytest.approx(math.exp(-40), rel=1e-12)
    assert many.value[0, 0] == pytest.approx(2 * math.exp(-40), rel=1e-12)
    np.testing.assert_allclose(many.gradient[0, 0, :6], np.array([1, 0, -2, 0, 1, 0]) * math.exp(-40))


def federation_of(loss, seed=0):
    parts = np.split(folded(loss, seed).samples, np.cumsum(SIZES)[:-1])
    return Federation.from_arrays(list(parts), "unbounded")


@pytest.mark.parametrize(
    ("name", "eps"),
    [("logistic", 0.1), ("softmax", 0.0), ("curves", 0.1), ("softmax curves", 0.1), ("softmax curves", 0.0)],
)
def test_the_exact_solvers_clients_say_the_same_as_compiled_ones(name, eps):
    """Bounds and cuts to rounding; a bound from below is below, one from above is above."""
    loss = LOSSES[name]
    problem = Problem(
        federation_of(loss), loss, Box.cube(5.0, loss.dimension(3)), TRANSPORT, WassersteinBall(eps)
    )
    algorithm = ExactMWDRO(Exact())
    x = np.random.default_rng(2).uniform(-1.0, 1.0, problem.dimension)  # no two slopes tie
    broadcast = algorithm.broadcast(algorithm.init(problem)._replace(x=x))
    there = all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))
    here = algorithm.client_batch_numpy(broadcast, HostClients(problem, None, 0).host)
    for own, other in zip(here, there, strict=True):
        np.testing.assert_allclose(own, np.asarray(other), rtol=1e-11, atol=1e-13)
    assert np.all(here.attained < here.upper)
    mean = by_hand(loss, folded(loss), x, -1, eps)
    assert np.all((here.attained <= mean) & (mean <= here.upper))


@pytest.mark.parametrize("curvature", [True, False])
def test_squared_loss_without_a_radius_is_said_as_compiled(curvature):
    """Risks are squares of roots there, which are smoothed at 0, and sums of squares here."""
    loss = Squared(intercept=True, basis=LOSSES["curves"].basis, smoothing=0.01)
    transport = Transport(np.array([0.5, 2.0, np.inf]), 2.0)
    models = Box.cube(5.0, loss.dimension(3))
    problem = Problem(federation_of(loss), loss, models, transport, WassersteinBall(0.0))
    algorithm = ExactMWDRO(Exact(), curvature)
    x = np.random.default_rng(2).uniform(-1.0, 1.0, problem.dimension)
    broadcast = algorithm.broadcast(algorithm.init(problem)._replace(x=x))
    there = all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))
    here = algorithm.client_batch_numpy(broadcast, HostClients(problem, None, 0).host)
    for name in ("upper", "gradient", "certified"):
        np.testing.assert_allclose(
            getattr(here, name), np.asarray(getattr(there, name)), rtol=1e-9, atol=1e-9
        )
    assert np.all(here.attained <= here.upper)


@pytest.mark.parametrize("name", ["logistic", "curves"])
def test_cross_validation_asks_the_same_here_and_compiled(name):
    """Solves with radii and without, and the scores."""
    loss, fold_spec = LOSSES[name], FoldSpec(2, 0)
    d = loss.dimension(3)
    problem = Problem(federation_of(loss), loss, Box.cube(5.0, d), TRANSPORT, WassersteinBall(0.0))
    clients = in_folds(problem, fold_spec)
    held = HostClients(problem, fold_spec, 0).host
    rng = np.random.default_rng(0)
    # Ten places, of which six count; curvature at two of three.
    x, bend_x = (0.5 * rng.normal(size=(count, d)) for count in (10, 3))
    fold, scale = np.resize([0, 1, 2], 10), np.resize([0.0, 0.0, 0.0, 0.5, 0.5, 0.5], 10)
    bends = (np.asarray(2), bend_x, np.array([2, 1, 0]), np.array([0.0, 0.5, 0.0]))
    asked = RisksBroadcast(np.asarray(6), x, fold, scale, *bends)
    models = ScoresBroadcast(rng.normal(size=(2, 4, d)))
    # What comes after the questions that are asked is to be ignored.
    for one, broadcast, counts in (
        (FoldRisks(Exact()), asked, (6, 6, 6, 2)),
        (FoldScores(), models, (2, 2)),
    ):
        there = all_replies(one, clients, jax.random.key(0), broadcast, jnp.asarray(1))
        here = one.client_batch_numpy(broadcast, held)
        for own, other, count in zip(here, there, counts, strict=True):
            assert own.shape == other.shape
            np.testing.assert_allclose(own[:, :count], np.asarray(other)[:, :count], rtol=1e-11, atol=1e-13)


def test_what_needs_a_search_is_not_answered_here():
    none, some = np.zeros((2, 3)), np.full((2, 3), 0.1)
    logistic = inner_of(Logistic())
    assert needs_no_search(logistic, none)
    assert needs_no_search(logistic, some)
    for transport in (Transport.classification(3, 2.0), Transport.classification(3, 1.0, 1.0)):
        searched = replace(logistic, transport=transport)
        assert needs_no_search(searched, none)
        assert not needs_no_search(searched, some)
    # Kinks are to be smoothed, and of squared loss with radii second moments tell all.
    assert not needs_no_search(inner_of(Hinge()), none)
    assert needs_no_search(inner_of(Squared()), none)
    assert not needs_no_search(inner_of(Squared()), some)
    loss = Logistic()
    penalised = Problem(federation_of(loss), loss, Box.cube(5.0, 2), TRANSPORT, Penalty(3.0))
    exact = ExactMWDRO(Exact())
    broadcast = exact.broadcast(exact.init(penalised))
    assert exact.client_batch_numpy(broadcast, HostClients(penalised, None, 0).host) is None


@pytest.mark.parametrize(
    ("numbers", "multiplications", "height"),
    [
        # 2^16 numbers a block, and at least three a row, its columns; but 16 rows or more.
        (1, 1, 2**16 // 3),
        (64, 1, 2**10),
        (64, 0, 2**10),
        (10_000, 1, 16),
        # 2^18 multiplications a product, where 16 rows do not have more.
        (64, 2**10, 2**8),
        (64, 2**14, 16),
        (64, 2**14 + 1, 2**10),
    ],
)
def test_rows_are_taken_in_blocks_of_so_many_numbers(numbers, multiplications, height):
    rows = FoldedRows(np.zeros((30_000, 3)), np.array([30_000]), np.zeros(30_000, np.int64))
    first = next(iter(rows_numpy.blocks(rows, Logistic(True), numbers, multiplications)))
    assert len(first.rows) == height
