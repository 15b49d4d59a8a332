"""Cross-validation by Newton's method, against the exact solver on the folds' training rows."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.fold_newton import FoldNewton
from bidro.algorithms.local_minimax import Caps, Steepness
from bidro.client import WassersteinBall
from bidro.engines.in_process import all_replies
from bidro.engines.rounds import Deal
from bidro.engines.solve import solve
from bidro.federation import Federation
from bidro.losses import Huber, Logistic, SmoothedHinge, Softmax
from bidro.losses.base import Cone
from bidro.problem import Problem
from bidro.sets import Ball, Box
from bidro.transport import Transport
from bidro.worst_case import Exact
from tests.small import in_folds

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


def solved(problem, algorithm, deal):
    clients, state = in_folds(problem, deal), algorithm.init(problem)
    while not state.finished:
        replies = all_replies(
            algorithm, clients, jax.random.key(0), algorithm.broadcast(state), jnp.asarray(state.t + 1)
        )
        state = algorithm.server(state, replies, jnp.ones(problem.n, bool))
    return state


# Risks that need a search take long to compile.
SEARCHED = ("order 2", "softmax")


@jax.jit
def risks(clients, x):
    """(n,) each client's risk at the model."""
    return jax.vmap(
        lambda own: own.risk(Exact(), x, jnp.zeros(()), False).value, in_axes=(clients.client_axes(),)
    )(clients)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SEARCHED)) for case in CASES]
)
def test_models_are_those_of_a_solve_on_the_training_rows(case):
    """The worst mixture of the risks at each model is that of the exact solver's, to the gap; risks are
    evaluated by the exact solver's own clients, which are tested elsewhere."""
    loss, classes, models, transport = CASES[case]
    rows = parts(classes)
    federation = Federation.from_arrays(rows, "unbounded")
    whole = Problem(federation, loss, models, transport, WassersteinBall(0.0))
    deal = Deal(2, 1)
    state = solved(whole, FoldNewton(Exact(), CANDIDATES, 2, 0.7), deal)
    assert state.models.shape == (3, len(CANDIDATES), whole.dimension)
    assert state.t <= 16
    marks = np.split(federation.folds(*deal), np.cumsum(SIZES)[:-1])
    for fold in (1,):
        training = {name: own[of != fold] for (name, own), of in zip(rows.items(), marks, strict=True)}
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(CANDIDATES):
            radii = 0.7 * one.scale / np.sqrt(part.sizes)
            problem = replace(
                whole, federation=part, ambiguity=WassersteinBall(radii), mixtures=one.mixtures(SIZES)
            )
            again = solve(problem, 1e-6)
            x = state.models[fold, j]
            assert whole.domain.contains(jnp.asarray(x))
            ours = float(problem.mixture_set.linear_maximum(risks(problem.clients, jnp.asarray(x)))[0])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 1e-4)


def test_a_round_that_not_all_answer_is_repeated():
    loss, classes, models, transport = CASES["logistic"]
    whole = Problem(
        Federation.from_arrays(parts(classes), "unbounded"), loss, models, transport, WassersteinBall(0.0)
    )
    algorithm = FoldNewton(Exact(), CANDIDATES, 2)
    clients, state = in_folds(whole, Deal(2, 0)), algorithm.init(whole)
    replies = all_replies(algorithm, clients, jax.random.key(0), algorithm.broadcast(state), jnp.asarray(1))
    again = algorithm.server(state, replies, jnp.array([True, False, True]))
    assert again.t == 1
    np.testing.assert_array_equal(again.x, state.x)
    assert not np.array_equal(algorithm.server(state, replies, jnp.ones(3, bool)).x, state.x)


def test_equal_questions_are_asked_once():
    loss, classes, models, transport = CASES["logistic"]
    whole = Problem(
        Federation.from_arrays(parts(classes), "unbounded"), loss, models, transport, WassersteinBall(0.0)
    )
    algorithm = FoldNewton(Exact(), (Candidate(0.0, 1.0), Candidate(0.0, 2.0), Candidate(1.0, 2.0)), 2)
    broadcast = algorithm.broadcast(algorithm.init(whole))
    # Two scales on two folds and on all rows; curvature over all rows, of two scales.
    assert (int(broadcast.models), int(broadcast.bends)) == (6, 2)


def test_classes_that_can_be_told_apart_end_far_out():
    """Without a radius the risk has no minimum: models go out to where it would be 1e-12 of the first."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(60, 2))
    theta[:, 0] += np.sign(theta[:, 0])
    table = np.column_stack([theta, np.sign(theta[:, 0])])
    federation = Federation.from_arrays([table[:30], table[30:]], "unbounded")
    loss, models = Logistic(intercept=True), Box.cube(1e3, 3)
    whole = Problem(federation, loss, models, Transport.classification(3, 1.0), WassersteinBall(0.0))
    state = solved(whole, FoldNewton(Exact(), (Candidate(0.0, 1.0),), 2), Deal(2, 0))
    margins = table[:, -1] * (theta @ state.models[:, 0, :2].T + state.models[:, 0, 2]).T
    assert np.all(np.mean(np.logaddexp(0, -margins), axis=1) < 1e-9)
    assert state.t <= 12


@pytest.mark.parametrize("blend", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("kappa", [1.0, 1.3, 4.0, math.inf])
def test_the_smoothed_worst_mixture(kappa, blend):
    """Its weights are the derivatives of its value, satisfy the caps, give way as they say, and the value
    tends to that of a linear program."""
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(6))
    caps = Caps(shares, np.array([[[kappa]]]), np.array([[[blend]]]))
    risks = rng.normal(size=(1, 1, 6))
    low = (1 - blend) * shares
    top = [(least, least + blend * min(1.0, kappa * share)) for least, share in zip(low, shares, strict=True)]
    worst = -linprog(-risks[0, 0], A_eq=np.ones((1, 6)), b_eq=[1.0], bounds=top).fun
    assert caps.worst(risks)[0, 0] == pytest.approx(worst, rel=1e-9)
    for mu in (1.0, 0.1, 1e-4):
        at = np.full((1, 1), mu)
        value, alpha, giving = caps.smoothed(risks, at)
        assert alpha.sum() == pytest.approx(1.0)
        assert np.all(alpha[0, 0] <= np.array(top)[:, 1] * (1 + 1e-9))
        assert np.all(alpha[0, 0] >= low * (1 - 1e-9))
        turn = (np.diag(giving[0, 0]) - np.outer(giving, giving) / max(giving.sum(), 1e-300)) / mu
        assert worst - mu * float(caps.most_entropy[0, 0]) - 1e-12 <= value[0, 0] <= worst + 1e-12
        for i in range(6):
            step = 1e-3 * mu * (np.arange(6) == i)
            up, down = caps.smoothed(risks + step, at), caps.smoothed(risks - step, at)
            assert (up[0] - down[0])[0, 0] / (2e-3 * mu) == pytest.approx(alpha[0, 0, i], abs=1e-5)
            np.testing.assert_allclose((up[1] - down[1])[0, 0] / 2e-3, mu * turn[i], atol=1e-6)


def test_the_smoothed_steepness_has_its_derivatives():
    rng = np.random.default_rng(2)
    steepness = Steepness(tuple(Cone(rng.normal(size=(2, 3)), rng.normal(size=2)) for _ in range(3)))
    x, delta = rng.normal(size=(1, 1, 3)), np.full((1, 1), 0.2)
    nu, gradient, second = steepness.smoothed(x, delta)
    assert steepness.at(x)[0, 0] <= nu[0, 0] <= steepness.at(x)[0, 0] + 0.2 * (1 + math.log(3))
    for i in range(3):
        step = 1e-5 * (np.arange(3) == i)
        up, down = steepness.smoothed(x + step, delta), steepness.smoothed(x - step, delta)
        assert (up[0] - down[0])[0, 0] / 2e-5 == pytest.approx(gradient[0, 0, i], abs=1e-8)
        np.testing.assert_allclose((up[1] - down[1])[0, 0] / 2e-5, second[0, 0, i], atol=1e-6)
