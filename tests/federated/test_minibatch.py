"""Batches of rows: how they are drawn, and each algorithm's step over them in plain NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.splits import client_id
from bidro.federated.algorithm import client_key
from bidro.federated.algorithms import BiDROLocal
from bidro.federated.algorithms.first_order import draw_batches
from bidro.federated.baselines import AFL, DRFA, QFFL, FedAvg, GroupDRO
from bidro.federated.engines.in_process import HostClients, run
from bidro.risk.inner import Exact
from tests.small import SIZES, admissible, plain, rows

DATA = list(rows().values())
SHARES = np.array(SIZES) / sum(SIZES)


def batches(client, t, steps, batch, seed=0):
    """The rows that a client (by its number) takes in round t."""
    problem = admissible()
    key = client_key(jax.random.key(seed), t, jnp.asarray(client_id(f"site-{client}")))
    size = replace(problem.clients, rows=replace(problem.clients.rows, size=np.asarray(SIZES[client])))
    positions = np.asarray(draw_batches(size, key, steps, batch))
    return [DATA[client][own[: min(batch, SIZES[client])]] for own in positions]


def mean_and_slope(part, x):
    u = part[:, :3] @ x - part[:, 3]
    return np.mean(u**2), 2 * part[:, :3].T @ u / len(part)


def test_a_batch_has_different_rows_each_equally_often():
    """20,000 batches of 5 of 12 rows: pairs too are as often together as in a uniformly random set."""
    client = replace(admissible().clients, rows=replace(admissible().clients.rows, size=np.asarray(12)))
    keys = jax.random.split(jax.random.key(3), 10_000)
    found = np.asarray(jax.jit(jax.vmap(lambda k: draw_batches(client, k, 2, 5)))(keys)).reshape(-1, 5)
    assert found.min() == 0
    assert found.max() == 11
    assert all(len(set(own)) == 5 for own in found.tolist())
    taken = np.zeros((len(found), 12))
    np.put_along_axis(taken, found, 1.0, axis=1)
    together = taken.T @ taken
    single, pair = 5 / 12, 5 / 12 * 4 / 11
    for counts, chance in ((np.diag(together), single), (together[~np.eye(12, dtype=bool)], pair)):
        error = np.sqrt(len(found) * chance * (1 - chance))
        assert np.all(np.abs(counts - len(found) * chance) < 5 * error)


def test_a_client_with_few_rows_takes_all_of_them():
    clients = replace(admissible().clients, rows=replace(admissible().clients.rows, size=np.asarray(3)))
    own = np.asarray(draw_batches(clients, jax.random.key(0), 4, 8))
    assert all(sorted(one[:3]) == [0, 1, 2] for one in own.tolist())


LARGE = {
    "FedAvg": FedAvg(eta_x=0.05, local_steps=3),
    "AFL": AFL(eta_x=0.05, eta_alpha=0.02),
    "DRFA": DRFA(eta_x=0.05, eta_alpha=0.02, local_steps=3),
    "q-FFL": QFFL(q=2.0, eta_x=0.1, local_steps=2),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_batch_of_all_rows_is_all_rows(name):
    """Batches as large as the largest client: the algorithm that takes all rows, up to the order of sums."""
    algorithm = LARGE[name]
    whole, batched = (run(a, plain(admissible()), 12) for a in (algorithm, replace(algorithm, batch=30)))
    np.testing.assert_allclose(batched.x, whole.x, rtol=1e-12)
    np.testing.assert_allclose(batched.alpha, whole.alpha, atol=1e-13)


def test_fedavg_and_q_ffl_over_batches_in_plain_numpy():
    steps, batch, eta = 3, 8, 0.05
    x = power = np.zeros(3)
    for t in (1, 2):
        x = SHARES @ [local(x, i, t, steps, batch, eta) for i in range(3)]
        values = np.array([mean_and_slope(part, power)[0] for part in DATA])
        moves = power - np.array([local(power, i, t, steps, batch, eta) for i in range(3)])
        scale = values.max()
        counts = SHARES * (values / scale) ** 2
        bent = 1 + 2 * np.sum(moves**2, axis=1) / (eta * values)
        power = power - counts @ moves / (counts @ bent)
    problem = plain(admissible())
    found = run(FedAvg(eta_x=eta, local_steps=steps, batch=batch), problem, 2)
    np.testing.assert_allclose(found.x, x, rtol=1e-12)
    fair = run(QFFL(q=2.0, eta_x=eta, local_steps=steps, batch=batch), problem, 2)
    np.testing.assert_allclose(fair.x, power, rtol=1e-12)


def local(x, client, t, steps, batch, eta):
    for part in batches(client, t, steps, batch):
        x = x - eta * mean_and_slope(part, x)[1]
    return x


def test_replies_of_single_batches_in_plain_numpy():
    """AFL, Group DRO, and both parts of a stage of DRFA."""
    problem, x = plain(admissible()), np.array([0.3, -0.2, 0.1])
    at = [mean_and_slope(batches(i, 1, 1, 8)[0], x) for i in range(3)]
    for algorithm in (AFL(batch=8), GroupDRO(batch=8)):
        state = algorithm.init(problem)._replace(x=jnp.asarray(x))
        found = HostClients(problem, None, 0)(algorithm, algorithm.broadcast(state), 1)[0]
        np.testing.assert_allclose(found.value, [value for value, _ in at], rtol=1e-12)
        np.testing.assert_allclose(found.gradient, [slope for _, slope in at], rtol=1e-12)
    algorithm = DRFA(eta_x=0.05, local_steps=3, batch=8)
    state = algorithm.init(problem)._replace(x=jnp.asarray(x))
    state = state._replace(extra=state.extra._replace(x_between=jnp.asarray(x)))
    sent = algorithm.broadcast(state)
    found = HostClients(problem, None, 0)(algorithm, sent, 1)[0]
    np.testing.assert_allclose(found.x, [local(x, i, 1, 3, 8, 0.05) for i in range(3)], rtol=1e-12)
    early = [local_upto(x, i, int(sent.step)) for i in range(3)]
    np.testing.assert_allclose(found.x_between, early, rtol=1e-12)
    assess = algorithm.broadcast(state._replace(t=jnp.asarray(2)))
    found = HostClients(problem, None, 0)(algorithm, assess, 2)[0]
    values = [mean_and_slope(batches(i, 2, 3, 8)[0], x)[0] for i in range(3)]
    np.testing.assert_allclose(found.value, values, rtol=1e-12)


def local_upto(x, client, step):
    for part in batches(client, 1, 3, 8)[:step]:
        x = x - 0.05 * mean_and_slope(part, x)[1]
    return x


def test_bidro_local_over_batches_against_the_closed_form():
    """One step over all rows of every client: each row moved to its exact worst case, found by hand.

    For squared loss, cost ||.||^2 and w = (x, -1) the supremum is u^2 rho / (rho - ||w||^2) at
    zeta + u w / (rho - ||w||^2); the support is wide enough here.
    """
    problem, eta = admissible(rho=(60.0, 50.0, 40.0)), 0.02
    algorithm = BiDROLocal(eta_x=eta, eta_alpha=0.01, local_steps=1, oracle=Exact(), batch=30)
    x = np.array([0.2, -0.1, 0.15])
    state = algorithm.init(problem)
    state = state._replace(x=jnp.asarray(x))
    found = HostClients(problem, None, 0)(algorithm, algorithm.broadcast(state), 1)[0]
    w = np.append(x, -1.0)
    for i, rho in enumerate((60.0, 50.0, 40.0)):
        u = DATA[i] @ w
        worst = DATA[i] + u[:, None] * w / (rho - w @ w)
        assert np.abs(worst).max() < 3.0
        np.testing.assert_allclose(found.x[i], x - eta * mean_and_slope(worst, x)[1], rtol=1e-9)
        assert float(found.g_alpha[i]) == pytest.approx(np.mean(u**2) * rho / (rho - w @ w), rel=1e-9)


def test_algorithms_tell_how_many_rows_a_reply_rests_on():
    for kind in (FedAvg, AFL, DRFA, QFFL):
        assert kind().rows_behind == "all rows"
        assert kind(batch=16).rows_behind == 16
        assert kind(batch=1).rows_behind == "one row"
    for kind in (GroupDRO, BiDROLocal):
        assert kind().rows_behind == kind(batch=1).rows_behind == "one row"
        assert kind(batch=16).rows_behind == 16


@pytest.mark.parametrize("batch", [0, -3, 2.5, True, "all"])
@pytest.mark.parametrize("kind", [FedAvg, AFL, DRFA, QFFL, GroupDRO, BiDROLocal])
def test_bad_batches_say_what_is_wrong(kind, batch):
    with pytest.raises(BidroError, match="A batch must be a whole number of rows"):
        kind(batch=batch)
