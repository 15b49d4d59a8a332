"""FedProx, SCAFFOLD, Ditto and the adaptive optimisers, against their papers in plain NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.federated.algorithms import Adaptive, ServerOptimised
from bidro.federated.baselines import Ditto, FedAvg, Scaffold
from bidro.federated.engines.in_process import run
from tests.small import SIZES, admissible, plain, rows

SHARES, DATA = np.array(SIZES) / sum(SIZES), list(rows().values())


def slope(part, x):
    return 2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part)


def test_fedprox_in_plain_numpy():
    x = np.zeros(3)
    for _ in range(6):
        ends = []
        for part in DATA:
            y = x
            for _ in range(4):
                y = y - 0.05 * (slope(part, y) + 1.5 * (y - x))
            ends.append(y)
        x = SHARES @ np.array(ends)
    found = run(FedAvg(0.05, local_steps=4, prox_weight=1.5), plain(admissible()), 6)
    np.testing.assert_allclose(found.x, x, rtol=1e-11)


def scaffold(rounds, steps=4, eta=0.05, rate=0.8):
    """Option II, all clients, as the paper's Algorithm 1 reads, with the server's own running c."""
    x, c, own = np.zeros(3), np.zeros(3), [np.zeros(3) for _ in DATA]
    for _ in range(rounds):
        moves, changes = [], []
        for i, part in enumerate(DATA):
            y = x
            for _ in range(steps):
                y = y - eta * (slope(part, y) - own[i] + c)
            renewed = own[i] - c + (x - y) / (steps * eta)
            moves.append(y - x)
            changes.append(renewed - own[i])
            own[i] = renewed
        x = x + rate * np.mean(moves, axis=0)
        c = c + np.mean(changes, axis=0)
    return x, own


def test_scaffold_in_plain_numpy_and_it_has_no_drift():
    """Where FedAvg with local steps ends elsewhere, SCAFFOLD ends at the minimum of the mean."""
    problem = plain(admissible())
    found = run(Scaffold(0.05, 4, server_rate=0.8), problem, 7)
    x, own = scaffold(7)
    np.testing.assert_allclose(found.x, x, rtol=1e-10)
    np.testing.assert_allclose(found.state.extra, own, rtol=1e-9, atol=1e-12)
    normal = sum(part[:, :3].T @ part / len(part) for part in DATA)
    best = np.linalg.solve(normal[:, :3], normal[:, 3])
    ended = run(Scaffold(0.05, 10), problem, 3000).x
    np.testing.assert_allclose(ended, best, atol=1e-8)
    drifted = run(FedAvg(0.05, local_steps=10), problem, 3000).x
    pooled = np.linalg.lstsq(np.concatenate(DATA)[:, :3], np.concatenate(DATA)[:, 3])[0]
    assert np.abs(drifted - pooled).max() > 1e-3


def test_ditto_in_plain_numpy_and_where_it_ends():
    problem, pull = plain(admissible()), 0.7
    x, own = np.zeros(3), [np.zeros(3) for _ in DATA]
    for _ in range(6):
        ends = []
        for i, part in enumerate(DATA):
            y = x
            for _ in range(3):
                y = y - 0.05 * slope(part, y)
                own[i] = own[i] - 0.05 * (slope(part, own[i]) + pull * (own[i] - x))
            ends.append(y)
        x = SHARES @ np.array(ends)
    found = run(Ditto(0.05, 3, pull=pull), problem, 6)
    np.testing.assert_allclose(found.x, x, rtol=1e-11)
    np.testing.assert_allclose(found.state.extra, own, rtol=1e-10, atol=1e-12)
    ended = run(Ditto(0.05, 1, pull=pull), problem, 4000)
    for i, part in enumerate(DATA):
        A = 2 * part[:, :3].T @ part[:, :3] / len(part) + pull * np.eye(3)
        b = 2 * part[:, :3].T @ part[:, 3] / len(part) + pull * ended.x
        np.testing.assert_allclose(ended.state.extra[i], np.linalg.solve(A, b), atol=1e-8)


@pytest.mark.parametrize("rule", ["adagrad", "yogi", "adam"])
def test_adaptive_optimisers_in_plain_numpy(rule):
    """Algorithm 2 of Reddi et al., with v_{-1} = tau^2 and no correction of the means."""
    b1, b2, tau, rate = 0.8, 0.95, 1e-2, 0.05
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for _ in range(8):
        move = -0.05 * SHARES @ np.array([slope(part, x) for part in DATA])
        m = b1 * m + (1 - b1) * move
        if rule == "adagrad":
            v = v + move**2
        elif rule == "yogi":
            v = v - (1 - b2) * move**2 * np.sign(v - move**2)
        else:
            v = b2 * v + (1 - b2) * move**2
        x = x + rate * m / (np.sqrt(v) + tau)
    method = ServerOptimised(FedAvg(0.05), Adaptive(rule, rate, b1, b2, tau))
    np.testing.assert_allclose(run(method, plain(admissible()), 8).x, x, rtol=1e-11)


def test_personal_models_and_their_order_belong_to_names():
    problem = plain(admissible())
    names = problem.federation.names
    turned = replace(
        problem,
        federation=type(problem.federation).from_arrays(
            {name: problem.federation.client_samples(name) for name in reversed(names)},
            problem.federation.support,
        ),
        mixtures=None,
    )
    one, two = (run(Ditto(0.05, 3, batch=4), p, 20, seed=2).state.extra for p in (problem, turned))
    np.testing.assert_allclose(one, np.asarray(two)[::-1], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(prox_weight=-1.0),
        lambda: Scaffold(eta_x=0.0),
        lambda: Scaffold(server_rate=np.inf),
        lambda: Scaffold(local_steps=0),
        lambda: Ditto(pull=np.nan),
        lambda: Adaptive("sgd"),
        lambda: Adaptive("adam", second=1.0),
        lambda: Adaptive("adam", floor=-1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make):
    with pytest.raises(BidroError):
        make()
