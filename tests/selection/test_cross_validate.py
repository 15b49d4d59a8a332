"""Cross-validation from rows here and from replies of clients, against the exact solver on the folds'
training rows."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Huber, Logistic, SmoothedHinge, Softmax
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.oracle import Lift, Views
from bidro.risk.transport import Transport
from bidro.selection.cross_validate import Candidate, cross_validate
from bidro.selection.fold_queries import FoldRisks
from bidro.selection.replies import FoldClients, RepliesOracle
from bidro.solvers.solve import solve
from tests.small import Compiled

SIZES = (30, 50, 90)
CANDIDATES = (Candidate(0.0, 1.0), Candidate(0.5, 1.5), Candidate(2.0, math.inf))


def parts(classes, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for i, size in enumerate(SIZES):
        theta = rng.normal(size=(size, 2)) + 0.3 * i
        scores = theta @ rng.normal(size=(2, max(classes, 1))) + rng.gumbel(size=(size, max(classes, 1)))
        y = scores[:, 0] if classes == 0 else scores.argmax(axis=1).astype(float)
        if classes == 2:
            y = 2 * y - 1
        if classes == 3 and i == 0:
            y[:] = 1.0  # a client that has one class alone
        found[f"c{i}"] = np.column_stack([theta, y])
    return found


CASES = {
    "logistic": (Logistic(intercept=True), 2, Box.cube(50.0, 3), Transport.classification(3, 1.0)),
    "order 2": (Logistic(intercept=True), 2, Box.cube(50.0, 3), Transport.classification(3, 2.0)),
    "softmax": (Softmax(3, True), 3, Box.cube(50.0, 9), Transport.classification(3, 1.0)),
    "smoothed hinge": (SmoothedHinge(True), 2, Box.cube(50.0, 3), Transport.classification(3, 1.0)),
    "Huber": (Huber(True), 0, Box.cube(50.0, 3), Transport(jnp.array([1.0, 1.0, jnp.inf]), 1.0)),
    "edge of a box": (Logistic(intercept=True), 2, Box.cube(0.3, 3), Transport.classification(3, 1.0)),
    "edge of a ball": (
        Logistic(intercept=True),
        2,
        Ball(jnp.full(3, 0.1), 0.4),
        Transport.classification(3, 1.0),
    ),
}


NETWORKS = {"rows here": IN_PROCESS, "compiled": Compiled()}


def problem_of(case):
    loss, classes, models, transport = CASES[case]
    federation = Federation.from_arrays(parts(classes), "unbounded")
    return Problem(federation, loss, models, transport, WassersteinBall(0.0))


class Heard:
    """A network that keeps what it is asked, and in which some rounds go unanswered by a client."""

    def __init__(self, network, lost=()):
        self.network, self.lost, self.said = network, lost, []

    def clients_of(self, problem, fold_spec=None, seed=0):
        ask = self.network.clients_of(problem, fold_spec, seed)

        def heard(algorithm, broadcast, t, who=None):
            self.said.append((algorithm, broadcast, t))
            replies, replied = ask(algorithm, broadcast, t, who)
            return replies, np.asarray(replied) & ((t not in self.lost) | (np.arange(problem.n) != 1))

        return heard


# Risks that need a search take long to compile.
SEARCHED = ("order 2", "softmax")


@jax.jit
def risks(clients, x):
    """(n,) each client's risk at the model."""
    return jax.vmap(
        lambda own: own.risk(Exact(), x, jnp.zeros(()), False).value, in_axes=(clients.client_axes(),)
    )(clients)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SEARCHED)) for case in CASES]
)
def test_models_are_those_of_a_solve_on_the_training_rows(case, network):
    """The worst mixture of the risks at each model is that of the exact solver's, to the gap; risks are
    evaluated by the exact solver's own clients, which are tested elsewhere."""
    rows, whole, fold_spec = parts(CASES[case][1]), problem_of(case), FoldSpec(2, 1)
    found = cross_validate(whole, CANDIDATES, fold_spec, 0.7, Exact(), network)
    assert found.models.shape == (3, len(CANDIDATES), whole.dimension)
    assert found.rounds <= 17
    fold_ids = np.split(whole.federation.folds(*fold_spec), np.cumsum(SIZES)[:-1])
    for fold in (1,):
        training = {name: own[of != fold] for (name, own), of in zip(rows.items(), fold_ids, strict=True)}
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(CANDIDATES):
            radii = 0.7 * one.scale / np.sqrt(part.sizes)
            problem = replace(
                whole,
                federation=part,
                ambiguity=WassersteinBall(radii),
                mixtures=one.mixture_spec.mixtures(SIZES),
            )
            again = solve(problem, 1e-6)
            x = found.models[fold, j]
            assert whole.domain.contains(jnp.asarray(x))
            ours = float(problem.mixture_set.linear_maximum(risks(problem.clients, jnp.asarray(x)))[0])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 1e-4)


def test_a_round_that_not_all_answer_is_repeated():
    """With the same message, and the models are those of rounds that all have answered."""
    whole, fold_spec = problem_of("logistic"), FoldSpec(2, 0)
    plain, lossy = Heard(Compiled()), Heard(Compiled(), (1, 3, 4))
    found, again = (cross_validate(whole, CANDIDATES, fold_spec, 1.0, Exact(), one) for one in (plain, lossy))
    np.testing.assert_array_equal(found.models, again.models)
    np.testing.assert_array_equal(found.losses, again.losses)
    assert again.rounds == found.rounds + 3
    assert [t for *_, t in lossy.said] == list(range(1, again.rounds + 1))
    for t in (1, 3, 4):
        (_, first, _), (_, second, _) = lossy.said[t - 1 : t + 1]
        jax.tree.map(np.testing.assert_array_equal, first, second)
    silent = Heard(Compiled(), range(1000))
    with pytest.raises(BidroError, match="Not all clients replied"):
        cross_validate(whole, CANDIDATES, fold_spec, 1.0, Exact(), silent)


def test_equal_questions_are_asked_once():
    whole, heard = problem_of("logistic"), Heard(Compiled())
    some = (Candidate(0.0, 1.0), Candidate(0.0, 2.0), Candidate(1.0, 2.0))
    cross_validate(whole, some, FoldSpec(2, 0), 1.0, Exact(), heard)
    asked = [message for algorithm, message, _ in heard.said if isinstance(algorithm, FoldRisks)]
    # Two scales on two folds and on all rows; curvature over all rows, of two scales.
    assert (int(asked[0].models), int(asked[0].bends)) == (6, 2)
    # Messages have one shape, for which clients' programs are compiled once.
    assert len({tuple(np.shape(part) for part in message) for message in asked}) == 1


def test_replies_of_a_batch_are_those_of_each_model():
    """Some of the views, models twice, and curvature where it is wanted: what is asked is less than what is
    given, and each model has its own numbers."""
    whole, heard = problem_of("logistic"), Heard(Compiled())
    lift = Lift(tuple(whole.loss.steepness_cones(whole.transport.inverse_scale)))
    clients = FoldClients(heard.clients_of(whole, FoldSpec(2, 0)))
    views = Views(np.array([0.0, 0.0, 0.7, 0.7]), np.array([0, -1, 0, -1]))
    oracle = RepliesOracle(clients, Exact(), 3, 2, lift, 4, 4, np.array([0, 0, 1, 1]), views)
    X = np.random.default_rng(0).normal(size=(4, 3))
    every = oracle.expand(X, [True, False, True, True])
    assert int(heard.said[0][1].models) == 4
    which = np.array([3, 2])
    some = oracle.only(which).expand(X[which])
    np.testing.assert_allclose(some.values, every.values[which], rtol=1e-12)
    np.testing.assert_allclose(some.gradients, every.gradients[which], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(oracle.values(X), every.values, rtol=1e-12)
    assert clients.rounds == len(heard.said) == 3
    same = oracle.only(np.array([1])).without_fold(-1).only(np.array([0, 0, 0]))
    assert same.expand(np.tile(X[1], (3, 1))).values == pytest.approx(np.tile(every.values[1], (3, 1)))
    assert (int(heard.said[-1][1].models), int(heard.said[-1][1].bends)) == (1, 1)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_classes_that_can_be_told_apart_end_far_out(network):
    """Without a radius the risk has no minimum: models go out to where it would be 1e-12 of the first."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(60, 2))
    theta[:, 0] += np.sign(theta[:, 0])
    table = np.column_stack([theta, np.sign(theta[:, 0])])
    federation = Federation.from_arrays([table[:30], table[30:]], "unbounded")
    loss, models = Logistic(intercept=True), Box.cube(1e3, 3)
    whole = Problem(federation, loss, models, Transport.classification(3, 1.0), WassersteinBall(0.0))
    found = cross_validate(whole, (Candidate(0.0, 1.0),), FoldSpec(2, 0), 1.0, Exact(), network)
    margins = table[:, -1] * (theta @ found.models[:, 0, :2].T + found.models[:, 0, 2]).T
    assert np.all(np.mean(np.logaddexp(0, -margins), axis=1) < 1e-9)
    assert found.rounds <= 13
