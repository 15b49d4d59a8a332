"""BiDRO-FL with local steps and absent clients, with compressed gradients, and without a server: each against
plain numpy, against Algorithm 1 where it must come down to it, and against the optimum."""

from functools import cache, partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.ambiguity import Penalty
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.core.splits import client_id
from bidro.data.federation import Federation
from bidro.federated.algorithm import client_key, part_of
from bidro.federated.algorithms import BiDROFL
from bidro.federated.algorithms.bidro_local import BiDROLocal
from bidro.federated.contrib.bidro_compressed import BiDROCompressed, EightBit, TopK
from bidro.federated.contrib.bidro_gossip import BiDROGossip, complete, metropolis, ring
from bidro.federated.engines.in_process import all_replies, run
from bidro.federated.engines.remote import _reply
from bidro.federated.engines.wire import pack, unpack, unpack_like
from bidro.losses import Squared
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import SIZES, admissible, paper_like, rows

RHO = np.array([20.0, 12.0, 9.0])
START = np.array(SIZES) / sum(SIZES)
NAMES = ("site-0", "site-1", "site-2")
PATH = (("site-0", "site-1"), ("site-1", "site-2"))
WHERE = np.array([0.6, 0.3, -0.2])  # a model well inside X, at which every client has something to gain


def replies_of(algorithm, problem, state, t=1, seed=0):
    key = jax.random.key(seed)
    return all_replies(algorithm, problem.clients, key, algorithm.broadcast(state), jnp.asarray(t))


@jax.jit
def after_round(algorithm, state, replies, replied):
    return algorithm.server(state, replies, replied)


def phi(x, zeta, rho):
    """sup over xi and its gradient in x, row by row, for squared loss and p = 2: the residual u = <a, zeta>,
    a = (-x, 1), grows to u rho / (rho - ||a||^2), as long as no moved row leaves the support."""
    a = np.append(-x, 1.0)
    u = zeta @ a
    moved = zeta + np.multiply.outer(u / (rho - a @ a), a)
    assert np.all(np.abs(moved) < 3)
    r = moved @ a
    return u**2 * rho / (rho - a @ a), -2 * r[..., None] * moved[..., :3]


def on_simplex(v):
    ordered = np.sort(v)[::-1]
    levels = (np.cumsum(ordered) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - levels[np.nonzero(ordered > levels)[0][-1]], 0)


def full_gradients(x):
    """(n,) F_i(x) and (n, d) their gradients."""
    of_clients = [phi(x, part, rho) for part, rho in zip(rows().values(), RHO, strict=True)]
    return np.array([v.mean() for v, _ in of_clients]), np.array([g.mean(axis=0) for _, g in of_clients])


def worst(x):
    return float(np.max(full_gradients(np.asarray(x))[0]))


@cache
def optimum():
    return solve(admissible(), gap=1e-10).lower


@cache
def algorithm_1():
    return run(BiDROFL(), paper_like(), 60, seed=3, record_every=20)


# Local steps and partial participation


def test_one_local_step_of_everyone_is_algorithm_1():
    other = run(BiDROLocal(local_steps=1), paper_like(), 60, seed=3, record_every=20)
    np.testing.assert_allclose(other.x, algorithm_1().x, rtol=1e-12)
    np.testing.assert_allclose(other.alpha, algorithm_1().alpha, atol=1e-12)
    np.testing.assert_allclose(other.x_average, algorithm_1().x_average, rtol=1e-12)


def test_rounds_with_local_steps_and_absent_clients_against_plain_numpy():
    """Four rounds of two of three clients, three local steps each, with the same draws."""
    algorithm = BiDROLocal(0.05, 0.1, 3, 0.6, Exact())
    result = run(algorithm, admissible(), 4, seed=7, record_every=1)
    x, alpha, data = np.zeros(3), START, list(rows().values())
    choice = jax.random.fold_in(jax.random.key(7), 0x10CA1)
    for t in range(1, 5):
        ids = [jnp.asarray(client_id(name)) for name in NAMES]
        lots = [float(jax.random.uniform(client_key(choice, t, i))) for i in ids]
        x_next, v = x.copy(), alpha.copy()
        for i in np.argsort(lots)[:2]:
            keys = jax.random.split(client_key(jax.random.key(7), t, ids[i]), 3)
            own = x.copy()
            for k in range(3):
                zeta = data[i][int(float(jax.random.uniform(keys[k])) * len(data[i]))]
                value, gradient = phi(own, zeta, RHO[i])
                own = own - 0.05 * gradient
                if k == 0:
                    v[i] += 0.1 * 3 / 2 * value
            x_next += 3 / 2 * alpha[i] * (own - x)
        x, alpha = np.clip(x_next, -1.5, 1.5), on_simplex(v)
        np.testing.assert_allclose(result.history.x[t - 1], x, rtol=1e-11)
        np.testing.assert_allclose(result.history.alpha[t - 1], alpha, atol=1e-12)


def test_every_set_of_clients_is_asked_equally_often():
    """Three of five, 12,000 rounds: each of the ten sets within 5 standard errors of a tenth."""
    algorithm, state = BiDROLocal(participation=0.6), BiDROLocal().init(paper_like())
    ids = jnp.stack([jnp.asarray(client_id(f"client {i}")) for i in range(5)])
    state = state._replace(alpha=jnp.full(5, 0.2), extra=state.extra._replace(ids=ids))
    asked = jax.jit(jax.vmap(lambda t: algorithm.participants(state._replace(t=t))))
    chosen = np.asarray(asked(jnp.arange(1, 12_001)))
    assert np.all(chosen.sum(axis=1) == 3)
    sets = [chosen[:, list(c)].all(axis=1).mean() for c in combinations(range(5), 3)]
    assert np.max(np.abs(np.array(sets) - 0.1)) < 5 * np.sqrt(0.09 / 12_000)
    assert BiDROLocal(participation=0.01)._participating(5) == 1
    assert algorithm.participants(BiDROLocal().init(paper_like(), 0)) is not None
    assert BiDROLocal().participants(state) is None


def test_the_mean_over_all_sets_of_clients_is_the_step_of_all():
    """Exactly, with the replies held fixed; projections are linear here, as no bound is met."""
    problem = admissible()
    some, everyone = (BiDROLocal(0.02, 0.02, 2, share, Exact()) for share in (0.6, 1.0))
    state = some.init(problem)
    replies = replies_of(some, problem, state)
    full = after_round(everyone, state, replies, jnp.ones(3, bool))
    pairs = np.array([[True, True, False], [True, False, True], [False, True, True]])
    states = [after_round(some, state, replies, pair) for pair in pairs]
    assert min(float(np.min(s.alpha)) for s in (full, *states)) > 0.05
    np.testing.assert_allclose(np.mean([s.x for s in states], axis=0), full.x, rtol=1e-12)
    np.testing.assert_allclose(np.mean([s.alpha for s in states], axis=0), full.alpha, atol=1e-14)


def test_both_steps_are_unbiased():
    """6,000 seeds, two local steps of two of three clients: the mean model against that over all pairs of
    rows, the mean weights against the mean of phi at x_t alone, within 5 standard errors."""
    problem, algorithm = admissible(), BiDROLocal(0.05, 0.05, 2, 0.6, Exact())
    state = algorithm.init(problem)
    state = state._replace(x=jnp.asarray(WHERE))

    def one(key):
        own = state._replace(extra=state.extra._replace(key=key))
        drawn = all_replies(algorithm, problem.clients, key, algorithm.broadcast(own), jnp.asarray(1))
        after = after_round(algorithm, own, drawn, algorithm.participants(own))
        return after.x, after.alpha

    xs, alphas = map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(11), 6000)))
    assert alphas.min() > 0
    assert np.abs(xs).max() < 1.5
    x, values = WHERE.copy(), np.zeros(3)
    for i, part in enumerate(rows().values()):
        first, gradients = phi(WHERE, part, RHO[i])
        values[i] = first.mean()
        ends = [m - 0.05 * phi(m, part, RHO[i])[1] for m in WHERE - 0.05 * gradients]
        x += START[i] * (np.mean(ends, axis=(0, 1)) - WHERE)
    expected = START + 0.05 * (values - values.mean())
    for found, target in ((xs, x), (alphas, expected)):
        error = found.std(axis=0) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(axis=0) - target) < 5 * error)
    # The test can tell: a step not scaled by n / m, or values at the second local model, would fail it.
    assert np.any(np.abs(2 / 3 * (x - WHERE) - (x - WHERE)) > 10 * xs.std(axis=0) / np.sqrt(len(xs)))


def test_weights_belong_to_clients_not_to_places_among_those_who_replied():
    problem, algorithm = admissible(), BiDROLocal(0.05, 0.3, 2, 0.6, Exact())
    state = algorithm.init(problem)
    replies = replies_of(algorithm, problem, state)
    after = after_round(algorithm, state, replies, jnp.array([False, True, True]))
    moves = np.asarray(replies.x) - np.asarray(state.x)
    x = np.asarray(state.x) + 1.5 * (START[1] * moves[1] + START[2] * moves[2])
    np.testing.assert_allclose(after.x, x, rtol=1e-12)
    g = np.asarray(replies.g_alpha)
    np.testing.assert_allclose(after.alpha, on_simplex(START + 0.45 * np.array([0, g[1], g[2]])), atol=1e-14)
    # One of the two that were asked does not reply: it stood still, and the other counts as before.
    alone = after_round(algorithm, state, replies, jnp.array([False, True, False]))
    np.testing.assert_allclose(alone.x, np.asarray(state.x) + 1.5 * START[1] * moves[1], rtol=1e-12)


def test_a_run_with_sampled_clients_resumes_to_the_same_bits():
    algorithm, problem = BiDROLocal(0.05, 0.1, 3, 0.6, Exact()), admissible()
    whole = run(algorithm, problem, 30, seed=2, record_every=10)
    part = run(algorithm, problem, 10, seed=2, record_every=10)
    again = run(algorithm, problem, 30, seed=2, record_every=10, resume=part)
    assert np.array_equal(whole.x, again.x)
    assert np.array_equal(whole.alpha, again.alpha)


# Compressed gradients


def test_all_entries_are_algorithm_1_with_full_gradients():
    result = run(BiDROCompressed(0.05, 0.1, TopK(3)), admissible(), 40)
    x, alpha = np.zeros(3), START
    for _ in range(40):
        values, gradients = full_gradients(x)
        x, alpha = np.clip(x - 0.05 * alpha @ gradients, -1.5, 1.5), on_simplex(alpha + 0.1 * values)
    np.testing.assert_allclose(result.x, x, rtol=1e-10)
    np.testing.assert_allclose(result.alpha, alpha, atol=1e-10)


def test_error_feedback_against_plain_numpy():
    """The largest entry of what the server does not know yet; ten rounds."""
    result = run(BiDROCompressed(0.05, 0.1, TopK(1)), admissible(), 10, record_every=1)
    x, alpha, h = np.zeros(3), START, np.zeros((3, 3))
    for t in range(10):
        values, gradients = full_gradients(x)
        for i in range(3):
            place = np.argmax(np.abs(gradients[i] - h[i]))
            h[i, place] = gradients[i, place]
        x, alpha = np.clip(x - 0.05 * alpha @ h, -1.5, 1.5), on_simplex(alpha + 0.1 * values)
        np.testing.assert_allclose(result.history.x[t], x, rtol=1e-11)
    np.testing.assert_allclose(result.alpha, alpha, atol=1e-12)
    np.testing.assert_allclose(result.state.extra, h, rtol=1e-10)


def test_eight_bits_are_right_in_the_mean():
    """20,000 roundings: the mean within 5 standard errors, each within one unit, the squared error within its
    bound, and what needs no rounding is exact."""
    v, c = np.array([0.3, -1.7, 1e-3, 0.0, 2.5, -2.5]), EightBit()
    u = np.random.default_rng(0).uniform(size=(20_000, 6))
    unit = 2.5 / 127
    there_and_back = jax.jit(lambda v, u: c.difference(c.reply(jnp.ones(()), v, u), 6))
    back = np.asarray(jax.vmap(there_and_back, in_axes=(None, 0))(v, u))
    error = back.std(axis=0) / np.sqrt(20_000)
    assert np.all(np.abs(back.mean(axis=0) - v) <= 5 * error + 1e-12)
    assert np.all(np.abs(back - v) < unit * (1 + 1e-9))
    assert np.all(back[:, 3:] == np.array([0.0, 2.5, -2.5]))
    assert np.mean(np.sum((back - v) ** 2, axis=1)) <= 6 / (4 * 127**2) * float(v @ v)
    assert error[0] > 1e-5
    almost_one = np.full(6, np.nextafter(1.0, 0.0))
    np.testing.assert_allclose(there_and_back(v, almost_one), v, atol=unit * (1 + 1e-9))
    assert np.all(np.asarray(there_and_back(np.zeros(6), almost_one)) == 0)


@partial(jax.jit, static_argnums=0)
def largest_entries(compressor, v):
    return compressor.difference(compressor.reply(jnp.ones(()), v, None), v.shape[0])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=5, max_size=5), st.integers(1, 5))
def test_the_largest_entries_leave_the_least(entries, k):
    """What is left out is the smallest in size, so its square is at most 1 - k / d of the whole."""
    v = np.array(entries)
    kept = np.asarray(largest_entries(TopK(k), v))
    left = np.sum((v - kept) ** 2)
    assert left == pytest.approx(np.sum(np.sort(v**2)[: 5 - k]), rel=1e-12)
    assert left <= (1 - k / 5) * np.sum(v**2) * (1 + 1e-12)


@pytest.mark.parametrize("compressor", [TopK(1), EightBit()], ids=repr)
def test_compressed_runs_reach_the_optimum(compressor):
    """Which compression without error feedback would not: see the next test."""
    result = run(BiDROCompressed(0.1, 1.0, compressor), admissible(), 800)
    assert worst(result.x) == pytest.approx(optimum(), rel=1e-8)


def test_without_error_feedback_the_largest_entry_is_not_enough():
    """Plain numpy with C(gradient) in the place of h: it stays away from the optimum."""
    x, alpha, values = np.zeros(3), START, []
    for _ in range(800):
        risks, gradients = full_gradients(x)
        largest = np.abs(gradients) == np.abs(gradients).max(axis=1, keepdims=True)
        x, alpha = x - 0.1 * alpha @ np.where(largest, gradients, 0.0), on_simplex(alpha + risks)
        values.append(risks.max())
    assert min(values[-50:]) > (1 + 1e-4) * optimum()


@pytest.mark.parametrize(("compressor", "numbers"), [(TopK(1), 8 + 8 + 4), (EightBit(), 8 + 8 + 3)], ids=repr)
def test_a_site_without_memory_gives_the_same_reply_in_few_bytes(compressor, numbers):
    """From its own rows and what it was sent, as bytes; integers keep their types on the way back."""
    problem, algorithm = admissible(), BiDROCompressed(0.05, 0.1, compressor)
    support, part = problem.federation.support, rows()["site-1"]
    own = Client.single("site-1", part, problem.loss, problem.transport, support, Penalty(RHO[1]))
    state = algorithm.init(problem)
    for t in (1, 2):
        replies = replies_of(algorithm, problem, state, t, seed=5)
        message = unpack(pack(part_of(algorithm, algorithm.broadcast(state), 1)), algorithm.broadcast_type)
        sent = _reply(algorithm, own, jax.random.key(5), jnp.asarray(t), message)
        assert type(sent) is algorithm.reply_type
        back = unpack_like(pack(sent), sent)
        assert sum(v.nbytes for v in back) == numbers
        for got, expected in zip(back, replies, strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, np.asarray(expected)[1], rtol=1e-10)
        state = after_round(algorithm, state, replies, jnp.ones(3, bool))
    assert np.any(np.asarray(state.extra) != 0)


def test_what_the_server_knows_of_an_absent_client_stays_and_counts():
    problem, algorithm = admissible(), BiDROCompressed(0.05, 0.1, TopK(1))
    state = algorithm.init(problem)
    state = after_round(algorithm, state, replies_of(algorithm, problem, state), jnp.ones(3, bool))
    replies = replies_of(algorithm, problem, state)
    h, alpha, x = (np.array(v) for v in (state.extra, state.alpha, state.x))
    values, gradients = full_gradients(x)
    for i in (1, 2):
        place = np.argmax(np.abs(gradients[i] - h[i]))
        h[i, place] = gradients[i, place]
    values[0] = 0.0
    after = after_round(algorithm, state, replies, jnp.array([False, True, True]))
    np.testing.assert_allclose(after.extra, h, rtol=1e-10)
    np.testing.assert_allclose(after.x, x - 0.05 * alpha @ h, rtol=1e-10)
    np.testing.assert_allclose(after.alpha, on_simplex(alpha + 0.1 * values), atol=1e-12)
    nobody = after_round(algorithm, state, replies, jnp.zeros(3, bool))
    for one, two in ((nobody.x, state.x), (nobody.alpha, state.alpha), (nobody.extra, state.extra)):
        np.testing.assert_allclose(one, two, atol=1e-15)


# Without a server


def test_the_complete_graph_is_algorithm_1():
    other = run(BiDROGossip(graph=complete(NAMES)), paper_like(), 60, seed=3, record_every=20)
    np.testing.assert_allclose(other.x, algorithm_1().x, rtol=1e-10)
    np.testing.assert_allclose(other.alpha, algorithm_1().alpha, atol=1e-10)
    np.testing.assert_allclose(other.state.x, np.tile(other.x, (3, 1)), rtol=1e-12)


def test_one_client_alone():
    """No edges, W = 1: plain stochastic descent."""
    part = rows()["site-2"]
    fed = Federation.from_arrays({"site-2": part}, Box.cube(3.0, 4))
    problem = Problem(fed, Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty(9.0))
    algorithm = BiDROGossip(0.05, 0.05, ring(("site-2",)), Exact())
    state, x = algorithm.init(problem), np.zeros(3)
    for t in (1, 2, 3):
        state = after_round(algorithm, state, replies_of(algorithm, problem, state, t), jnp.ones(1, bool))
        u = jax.random.uniform(client_key(jax.random.key(0), t, jnp.asarray(client_id("site-2"))))
        x = x - 0.05 * phi(x, part[int(float(u) * len(part))], 9.0)[1]
    np.testing.assert_allclose(state.x, x[None], rtol=1e-11)
    np.testing.assert_allclose(state.alpha, 1.0, rtol=1e-15)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_metropolis_weights(data):
    """Random connected graphs, edges in either direction and twice: symmetric, rows and columns sum to 1,
    nothing off the edges, and only consensus is left in the limit."""
    n = data.draw(st.integers(1, 8))
    names = tuple(f"n{i}" for i in range(n))
    tree = [(names[data.draw(st.integers(0, i - 1))], names[i]) for i in range(1, n)]
    pairs = st.lists(st.sampled_from(complete(names) or (("", ""),)), max_size=6)
    graph = tuple(tree + [(b, a) for a, b in data.draw(pairs)] if n > 1 else tree)
    weights = metropolis(graph, names)
    linked = np.eye(n, dtype=bool)
    for a, b in graph:
        linked[names.index(a), names.index(b)] = linked[names.index(b), names.index(a)] = True
    assert np.all(weights == weights.T)
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-14)
    assert np.all(weights[~linked] == 0)
    assert np.all(weights[linked] > 0)
    degree = linked.sum(axis=1) - 1
    i, j = np.nonzero(linked & ~np.eye(n, dtype=bool))
    np.testing.assert_allclose(weights[i, j], 1 / (1 + np.maximum(degree[i], degree[j])), rtol=1e-15)
    assert np.linalg.norm(weights - 1 / n, 2) < 1 - 1e-6


def apart(copies):
    return np.linalg.norm(np.asarray(copies) - np.mean(copies, axis=0))


def test_a_round_of_gossip_against_plain_numpy():
    """On a path, from copies that differ; weights 1/3 on both edges, 2/3 on the diagonal at its ends."""
    problem, algorithm = admissible(), BiDROGossip(0.05, 0.02, PATH, Exact())
    rng = np.random.default_rng(0)
    xs, alphas = WHERE + 0.1 * rng.normal(size=(3, 3)), rng.dirichlet([5, 5, 5], size=3)
    state = algorithm.init(problem)._replace(x=jnp.asarray(xs), alpha=jnp.asarray(alphas))
    after = after_round(algorithm, state, replies_of(algorithm, problem, state, 4, 6), jnp.ones(3, bool))
    sent_x, sent_alpha = xs.copy(), alphas.copy()
    for i, part in enumerate(rows().values()):
        key = client_key(jax.random.key(6), 4, jnp.asarray(client_id(NAMES[i])))
        value, gradient = phi(xs[i], part[int(float(jax.random.uniform(key)) * len(part))], RHO[i])
        sent_x[i] -= 0.05 * 3 * alphas[i, i] * gradient
        sent_alpha[i, i] += 0.02 * 3 * value
    weights = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    np.testing.assert_allclose(after.x, weights @ sent_x, rtol=1e-11)
    np.testing.assert_allclose(after.alpha, [on_simplex(v) for v in weights @ sent_alpha], atol=1e-12)
    shown = algorithm.snapshot(after)
    np.testing.assert_allclose(shown.x, sent_x.mean(axis=0), rtol=1e-11)
    assert bool(problem.mixture_set.contains(shown.alpha))
    # Node 2 is away: it stands still, and its neighbour goes on with what it last had from it.
    sent_x[2], sent_alpha[2] = xs[2], alphas[2]
    away = after_round(
        algorithm, state, replies_of(algorithm, problem, state, 4, 6), jnp.array([True, True, False])
    )
    np.testing.assert_allclose(away.x[:2], (weights @ sent_x)[:2], rtol=1e-11)
    np.testing.assert_allclose(away.alpha[1], on_simplex((weights @ sent_alpha)[1]), atol=1e-12)
    np.testing.assert_allclose(away.x[2], xs[2], rtol=0)
    np.testing.assert_allclose(away.alpha[2], alphas[2], rtol=0)


def test_copies_come_together():
    """Each round the distance to consensus shrinks by the second eigenvalue of W, but for what the steps add;
    without steps the average stays where it is."""
    problem = admissible()
    rng = np.random.default_rng(1)
    xs, alphas = jnp.asarray(0.3 * rng.normal(size=(3, 3))), jnp.asarray(rng.dirichlet([2, 2, 2], size=3))
    factor = np.linalg.norm(metropolis(PATH, NAMES) - 1 / 3, 2)
    for step in (0.0, 0.02):
        algorithm = BiDROGossip(step, step, PATH, Exact())
        state = algorithm.init(problem)._replace(x=xs, alpha=alphas)
        for t in range(1, 41):
            replies = replies_of(algorithm, problem, state, t)
            after = after_round(algorithm, state, replies, jnp.ones(3, bool))
            for name in ("x", "alpha"):
                before, sent = np.asarray(getattr(state, name)), np.asarray(getattr(replies, name))
                limit = factor * (apart(before) + np.linalg.norm(sent - before))
                assert apart(getattr(after, name)) <= limit * (1 + 1e-9) + 1e-15
            state = after
        if step == 0:
            assert apart(state.x) < 1e-6
            np.testing.assert_allclose(state.x[0], xs.mean(axis=0), atol=1e-6)
            np.testing.assert_allclose(state.alpha[0], alphas.mean(axis=0), atol=1e-6)


# All of them


@pytest.mark.parametrize(
    "algorithm",
    [
        BiDROLocal(0.05, 0.1, 2, 0.6, Exact()),
        BiDROCompressed(0.05, 0.1, EightBit()),
        BiDROGossip(0.05, 0.1, PATH, Exact()),
    ],
    ids=lambda a: type(a).__name__,
)
def test_permuting_clients_permutes_everything(algorithm):
    """Who is asked, whose weight is whose, and every node's copy go by name."""
    order = [2, 0, 1]
    data = rows()
    fed = Federation.from_arrays({NAMES[i]: data[NAMES[i]] for i in order}, Box.cube(3.0, 4))
    moved = Problem(fed, Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty(RHO[order]))
    problems, found = (admissible(), moved), []
    for problem in problems:
        state, asked = algorithm.init(problem, 4), []
        for t in range(1, 13):
            who = algorithm.participants(state)
            who = jnp.ones(3, bool) if who is None else who
            asked.append(np.asarray(who))
            state = after_round(algorithm, state, replies_of(algorithm, problem, state, t, 4), who)
        found.append((algorithm.snapshot(state), np.array(asked)))
    (one, asked), (two, asked_moved) = found
    np.testing.assert_allclose(one.x, two.x, rtol=1e-10)
    np.testing.assert_allclose(one.x_average, two.x_average, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(one.alpha)[order], two.alpha, atol=1e-10)
    assert np.array_equal(asked[:, order], asked_moved)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: BiDROLocal(eta_x=-1.0), "eta_x"),
        (lambda: BiDROLocal(local_steps=0), "local step"),
        (lambda: BiDROLocal(participation=0.0), "participation"),
        (lambda: BiDROLocal(participation=1.5), "participation"),
        (lambda: BiDROLocal().init(no_penalty()), "Penalty"),
        (lambda: BiDROCompressed(eta_alpha=np.nan), "eta_alpha"),
        (lambda: BiDROCompressed(compressor="top"), "TopK"),
        (lambda: TopK(0), "at least 1"),
        (lambda: BiDROCompressed(compressor=TopK(4)).init(admissible()), "more entries"),
        (lambda: BiDROCompressed().init(no_penalty()), "Penalty"),
        (lambda: BiDROGossip(eta_x=np.inf), "eta_x"),
        (lambda: BiDROGossip(graph=[("a", "b")]), "tuple of pairs"),
        (lambda: BiDROGossip(graph=(("a", "a"),)), "different"),
        (lambda: BiDROGossip().init(admissible()), "no way leads from 'site-0' to 'site-1'"),
        (lambda: BiDROGossip(graph=PATH[1:]).init(admissible()), "not connected"),
        (lambda: BiDROGossip(graph=(*PATH, ("site-0", "ward"))).init(admissible()), "names 'ward'"),
        (lambda: BiDROGossip(graph=PATH).init(no_penalty()), "Penalty"),
    ],
)
def test_bad_settings_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def no_penalty():
    fed = Federation.from_arrays(rows(), Box.cube(3.0, 4))
    return Problem(fed, Squared(), Box.cube(1.5, 3), Transport.euclidean(4))


def test_rings_and_complete_graphs():
    assert set(ring(("a", "b", "c", "d"))) == {("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")}
    assert ring(("a", "b")) == (("a", "b"),)
    assert len(complete(tuple("abcde"))) == 10
    np.testing.assert_allclose(metropolis(complete(tuple("abcde")), tuple("abcde")), 0.2, rtol=1e-15)
