"""DRFA and q-FFL against their papers in plain numpy, against enumeration, and against other solvers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from bidro.core.errors import BidroError
from bidro.core.sets import CappedSimplex, WholeSpace
from bidro.data.federation import Federation
from bidro.federated.algorithm import client_key, masked
from bidro.federated.baselines import FedAvg
from bidro.federated.baselines.drfa import _TAG, DRFA
from bidro.federated.baselines.q_ffl import QFFL
from bidro.federated.engines.in_process import all_replies, participating, run
from bidro.losses import CustomLoss, Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from tests.small import SIZES, TRUE, rows

SHARES = np.array(SIZES) / sum(SIZES)  # of `rows`
PARTS = np.array([30, 12, 8]) / 50  # of `unlike`


def unlike():
    """Clients whose best models differ: the largest client's is far from good for the smallest."""
    rng = np.random.default_rng(1)
    parts = {}
    for k, size in enumerate((30, 12, 8)):
        theta = rng.uniform(-1, 1, (size, 3))
        y = theta @ (TRUE + 0.5 * (k - 1)) + 0.2 * rng.normal(size=size)
        parts[f"site-{k}"] = np.column_stack([theta, y])
    return parts


def plain(data, **kwargs):
    """No ambiguity inside the clients."""
    fed = Federation.from_arrays(data, "unbounded")
    return Problem(fed, Squared(), WholeSpace(3), Transport.euclidean(4), **kwargs)


def mean_loss(part, x):
    return np.mean((part[:, :3] @ x - part[:, 3]) ** 2)


def gradient(part, x):
    return 2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part)


def local_models(part, x, eta, steps):
    """x after 1, ..., steps gradient steps, (steps, 3)."""
    models = []
    for _ in range(steps):
        x = x - eta * gradient(part, x)
        models.append(x)
    return np.array(models)


def minimax(data):
    """min over x of the largest client mean, by cvxpy."""
    import cvxpy as cp

    x, t = cp.Variable(3), cp.Variable()
    cuts = [cp.sum_squares(p[:, :3] @ x - p[:, 3]) / len(p) <= t for p in data.values()]
    cp.Problem(cp.Minimize(t), cuts).solve(cp.CLARABEL)
    return float(t.value)


def worst(data, x):
    return max(mean_loss(part, x) for part in data.values())


def replies_to(algorithm, problem, state):
    broadcast = algorithm.broadcast(state)
    return all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, state.t)


@jax.jit
def one_round(algorithm, clients, state, present=True):
    """A round in which those who are asked reply, if they are present (n,); for others there is NaN."""
    replies = all_replies(algorithm, clients, jax.random.key(0), algorithm.broadcast(state), state.t)
    replied = participating(algorithm, state, clients) & present
    return algorithm.server(state, jax.tree.map(lambda v: masked(replied, v, jnp.nan), replies), replied)


def with_key(state, key):
    """The state whose clients are drawn by another key."""
    return state._replace(extra=state.extra._replace(sampling=state.extra.sampling._replace(key=key)))


def many_states(algorithm, problem, rounds, count):
    """The states after so many rounds from `count` seeds."""
    start, clients = algorithm.init(problem), problem.clients

    @jax.jit
    @jax.vmap
    def play(key):
        state = with_key(start, key)
        for _ in range(rounds):
            state = one_round(algorithm, clients, state)
        return state.x, state.alpha

    return [np.asarray(v) for v in play(jax.random.split(jax.random.key(7), count))]


def assert_mean(draws, expected, errors=5.0):
    """The mean of the draws (count, ...) lies within so many standard errors of the one expected."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= errors * error + 1e-12)


def test_drfa_against_plain_numpy():
    """Eight rounds, four stages, as the paper reads, with the same draws: the first counts in full too. A
    public implementation aggregates its first round with all-zero weights and returns zeros."""
    data, seed, tau, m = rows(), 3, 3, 2
    problem = plain(data, mixtures=CappedSimplex(np.zeros(3), np.array([0.5, 0.6, 0.7])))
    eta_x, eta_alpha = 0.1, 0.05
    result = run(DRFA(eta_x, eta_alpha, tau, m), problem, 8, seed=seed, record_every=1)
    key = jax.random.fold_in(jax.random.key(seed), _TAG)

    def noise(t):
        ids = jnp.asarray(problem.federation.client_ids)
        return np.array([jax.random.gumbel(client_key(key, t, i), (m,)) for i in ids])

    x, alpha = np.zeros(3), np.asarray(problem.initial_weights)
    started, repeated = [], 0
    for stage in range(4):
        started.append(x)
        drawn = np.argmax(np.log(alpha)[:, None] + noise(2 * stage + 1), axis=0)
        repeated += drawn[0] == drawn[1]
        s = int(jax.random.randint(jax.random.fold_in(key, 2 * stage + 1), (), 1, tau + 1))
        paths = np.array([local_models(data[f"site-{i}"], x, eta_x, tau) for i in drawn])
        between, x = paths[:, s - 1].mean(axis=0), paths[:, -1].mean(axis=0)
        v = np.zeros(3)
        for i in np.argsort(-noise(2 * stage + 2)[:, 0])[:m]:
            v[i] = 3 / m * mean_loss(data[f"site-{i}"], between)
        alpha = np.asarray(problem.mixture_set.project(jnp.asarray(alpha + tau * eta_alpha * v)))
        np.testing.assert_allclose(result.history.x[2 * stage + 1], x, rtol=1e-11)
        np.testing.assert_allclose(result.history.alpha[2 * stage + 1], alpha, atol=1e-12)
        assert np.abs(x).max() > 0.01
    assert 0 < repeated < 4  # draws with and without a client that counts twice
    np.testing.assert_allclose(result.x_average, np.mean(started, axis=0), rtol=1e-11)
    # Between the two rounds of a stage nothing is shown yet, and its model is in the average already.
    np.testing.assert_array_equal(result.history.x[2], result.history.x[1])
    np.testing.assert_allclose(result.history.x_average[2], np.mean(started[:2], axis=0), rtol=1e-11)


def test_drfa_with_one_client_is_fedavg_on_every_second_round():
    problem = plain({"alone": rows()["site-2"]})
    staged = run(DRFA(0.1, 0.1, 3, 1), problem, 12, record_every=1)
    rounds = run(FedAvg(0.1, 3), problem, 6, record_every=1)
    np.testing.assert_allclose(staged.history.x[1::2], rounds.history.x, rtol=1e-13)
    np.testing.assert_allclose(staged.history.alpha, 1.0, atol=1e-15)
    np.testing.assert_allclose(staged.history.x_average[1::2], rounds.history.x_average, rtol=1e-13)


def test_drfa_with_a_fixed_mixture_steps_as_fedavg_in_expectation():
    """One local step, weights fixed at N_i / N, 4,000 seeds: within 5 standard errors."""
    problem = plain(rows(), mixtures=CappedSimplex(SHARES, SHARES))
    x, alpha = many_states(DRFA(0.2, 0.3, 1, 2), problem, 2, 4000)
    expected = run(FedAvg(0.2), problem, 1).x
    assert_mean(x, expected)
    np.testing.assert_allclose(alpha, np.tile(SHARES, (4000, 1)), atol=1e-12)
    # The test can tell: uniform draws would be off by far more.
    uniform = -0.2 * np.mean([gradient(p, np.zeros(3)) for p in rows().values()], axis=0)
    assert np.abs(uniform - expected).max() > 20 * x.std(axis=0).max() / np.sqrt(4000)


def test_drfa_draws_clients_by_their_weights_and_then_uniformly():
    """20,000 draws of 2 of 3: counts in (a) are multinomial in alpha, in (b) two different clients."""
    algorithm, problem = DRFA(sampled=2), plain(rows())
    start = algorithm.init(problem)
    keys = jax.random.split(jax.random.key(2), 20_000)

    @jax.jit
    @jax.vmap
    def counts(key):
        states = [with_key(start, key)._replace(t=jnp.asarray(t)) for t in (1, 2)]
        return [algorithm._drawn(state) for state in states], DRFA(local_steps=4).broadcast(states[0]).step

    (by_alpha, uniform), steps = jax.tree.map(np.asarray, counts(keys))
    assert np.all(by_alpha.sum(axis=1) == 2)
    assert_mean(by_alpha.astype(float), 2 * SHARES)
    assert_mean((by_alpha == 2).astype(float), SHARES**2)  # with replacement, and independent
    assert set(np.unique(uniform)) == {0, 1}
    assert np.all(uniform.sum(axis=1) == 2)
    assert_mean(uniform.astype(float), np.full(3, 2 / 3))
    assert_mean(np.eye(5)[steps][:, 1:], np.full(4, 1 / 4))


def test_drfa_moves_weights_without_bias():
    """One stage from 4,000 seeds, against the expectation over all draws and steps, counted out."""
    data, tau, eta_x, eta_alpha = rows(), 3, 0.2, 0.01
    problem = plain(data)
    x, alpha = many_states(DRFA(eta_x, eta_alpha, tau, 2), problem, 2, 4000)
    paths = np.array([local_models(p, np.zeros(3), eta_x, tau) for p in data.values()])
    losses = np.zeros(3)
    for i, j, s in itertools.product(range(3), range(3), range(tau)):
        between = (paths[i, s] + paths[j, s]) / 2
        losses += SHARES[i] * SHARES[j] / tau * np.array([mean_loss(p, between) for p in data.values()])
    # The weights stay inside the simplex, where the projection takes the mean off a step.
    assert alpha.min() > 0
    assert_mean(alpha, SHARES + tau * eta_alpha * (losses - losses.mean()))
    assert_mean(x, SHARES @ paths[:, -1])


def test_drfa_reaches_the_minimax_solution():
    """Against cvxpy. FedAvg's worst client is far worse off. Of 100 seeds tried, the worst was 2.3 % off."""
    data = unlike()
    best = minimax(data)
    result = run(DRFA(0.01, 0.01, 3, 2), plain(data), 20_000)
    assert worst(data, result.x_average) == pytest.approx(best, rel=0.03)
    assert worst(data, run(FedAvg(0.1), plain(data), 500).x) > 1.5 * best


def test_drfa_goes_on_with_those_who_reply():
    """Two of three draws fell on client 1: without the other the average is client 1's own model."""
    algorithm, problem = DRFA(0.1, 0.01, 2, 3), plain(rows())
    start, keys = algorithm.init(problem), jax.random.split(jax.random.key(0), 50)
    drawn = jax.jit(jax.vmap(lambda k: algorithm._drawn(with_key(start, k))))(keys)
    start = with_key(start, keys[int(np.argmax(np.all(np.asarray(drawn) == [1, 2, 0], axis=1)))])
    own = [local_models(p, np.zeros(3), 0.1, 2)[-1] for p in rows().values()]
    everyone = one_round(algorithm, problem.clients, start, jnp.ones(3, bool))
    np.testing.assert_allclose(everyone.extra.x_next, (own[0] + 2 * own[1]) / 3, rtol=1e-12)
    without = one_round(algorithm, problem.clients, start, jnp.array([False, True, True]))
    np.testing.assert_allclose(without.extra.x_next, own[1], rtol=1e-12)
    # In (b), one who does not reply counts as not chosen; x moves on to the average of (a).
    second = one_round(algorithm, problem.clients, without, jnp.array([True, False, True]))
    np.testing.assert_allclose(second.x, own[1], rtol=1e-12)
    v = np.array([mean_loss(p, np.asarray(without.extra.x_between)) for p in rows().values()]) * [1, 0, 1]
    # Inside the simplex the projection takes the mean off a step.
    np.testing.assert_allclose(second.alpha, SHARES + 2 * 0.01 * (v - v.mean()), atol=1e-12)
    nobody = start
    for _ in range(2):
        nobody = one_round(algorithm, problem.clients, nobody, jnp.zeros(3, bool))
    np.testing.assert_allclose(nobody.x, start.x, atol=1e-15)
    np.testing.assert_allclose(nobody.alpha, start.alpha, atol=1e-15)


def test_each_part_of_a_stage_of_drfa_costs_its_own_work_only():
    """Mapped over clients, the choice between the two stays a choice; what is not asked for is 0."""
    algorithm, problem = DRFA(0.1, 0.1, 2, 3), plain(rows())
    first = algorithm.init(problem)
    ask = (algorithm, problem.clients, jax.random.key(0), algorithm.broadcast(first), first.t)
    assert "cond[" in str(jax.make_jaxpr(all_replies)(*ask))
    second = one_round(algorithm, problem.clients, first, jnp.ones(3, bool))
    in_a, in_b = (replies_to(algorithm, problem, state) for state in (first, second))
    assert np.all(in_a.value == 0)
    assert np.abs(in_a.x).min() > 0
    assert np.all(in_b.x == 0)
    assert np.all(in_b.x_between == 0)
    expected = [mean_loss(p, np.asarray(second.extra.x_between)) for p in rows().values()]
    np.testing.assert_allclose(in_b.value, expected, rtol=1e-12)


def test_drfa_cut_within_a_stage_resumes_to_the_same_bits():
    algorithm, problem = DRFA(0.1, 0.1, 3, 2), plain(unlike())
    whole = run(algorithm, problem, 20, seed=4)
    again = run(algorithm, problem, 20, seed=4, resume=run(algorithm, problem, 7, seed=4))
    assert np.array_equal(whole.x, again.x)
    assert np.array_equal(whole.alpha, again.alpha)
    assert np.array_equal(whole.x_average, again.x_average)
    assert not np.array_equal(whole.x, run(algorithm, problem, 20, seed=5).x)


@pytest.mark.parametrize(("q", "local_steps"), [(1.5, 3), (0.4, 1)])
def test_q_ffl_against_plain_numpy(q, local_steps):
    """Eight rounds as the paper reads: Delta_i, h_i and their sums."""
    eta, x, alpha = 0.1, np.zeros(3), PARTS
    result = run(QFFL(q, eta, local_steps), plain(unlike()), 8, record_every=1)
    for t in range(8):
        assert np.allclose(np.vstack([np.zeros(3), result.history.x])[t], x, rtol=1e-11, atol=0)
        F = np.array([mean_loss(p, x) for p in unlike().values()])
        delta = np.array([x - local_models(p, x, eta, local_steps)[-1] for p in unlike().values()]) / eta
        h = q * F ** (q - 1) * np.sum(delta**2, axis=1) + F**q / eta
        x = x - (PARTS * F**q) @ delta / (PARTS @ h)
        alpha = PARTS * F**q / np.sum(PARTS * F**q)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.alpha, alpha, rtol=1e-10)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_q_ffl_at_q_0_is_fedavg(local_steps):
    problem = plain(unlike())
    fair = run(QFFL(0.0, 0.2, local_steps), problem, 60, record_every=5)
    plainly = run(FedAvg(0.2, local_steps), problem, 60, record_every=5)
    np.testing.assert_allclose(fair.history.x, plainly.history.x, atol=1e-10)
    np.testing.assert_allclose(fair.history.x_average, plainly.history.x_average, atol=1e-10)
    np.testing.assert_allclose(fair.alpha, PARTS, atol=1e-12)


def test_q_ffl_with_one_client_shortens_its_gradient_step():
    """F^q cancels: x - eta g / (1 + eta q ||g||^2 / F)."""
    part, eta, q = rows()["site-1"], 0.1, 2.0
    x = run(QFFL(q, eta), plain({"alone": part}), 1).x
    g, value = gradient(part, np.zeros(3)), mean_loss(part, np.zeros(3))
    np.testing.assert_allclose(x, -eta * g / (1 + eta * q * g @ g / value), rtol=1e-12)


def test_q_ffl_comes_to_rest_where_scipy_does():
    """q = 2: the minimum of sum_i p_i F_i^3 / 3."""
    data = unlike()

    def objective(x):
        return PARTS @ np.array([mean_loss(p, x) ** 3 for p in data.values()]) / 3

    def slope(x):
        return PARTS @ np.array([mean_loss(p, x) ** 2 * gradient(p, x) for p in data.values()])

    best = minimize(objective, np.zeros(3), jac=slope, method="BFGS", options={"gtol": 1e-12}).x
    result = run(QFFL(2.0, 0.3), plain(data), 3000)
    np.testing.assert_allclose(result.x, best, atol=1e-6)
    F = np.array([mean_loss(p, best) for p in data.values()])
    np.testing.assert_allclose(result.alpha, PARTS * F**2 / (PARTS @ F**2), atol=1e-5)
    assert np.abs(best - run(FedAvg(0.1), plain(data), 500).x).max() > 0.05


def test_q_ffl_with_a_large_q_is_nearly_minimax():
    """The largest of the F_i is at most min max F times (1 / min_i p_i)^(1 / (q + 1)), 1.9 % at q = 100."""
    data, q = unlike(), 100.0
    best = minimax(data)
    result = run(QFFL(q, 0.2), plain(data), 5000)
    assert best < worst(data, result.x) < best * (50 / 8) ** (1 / (q + 1))


def test_q_ffl_with_losses_of_zero_and_losses_whose_powers_overflow():
    """A client that the first model fits exactly, with q < 1; means of 1e6 to the power 200."""
    data = unlike()
    data["site-0"][:, 3] = 0.0
    for q in (0.0, 0.5, 1.0):
        result = run(QFFL(q, 0.1), plain(data), 5, record_every=1)
        assert np.all(np.isfinite(result.history.x))
        assert np.abs(result.history.x[0]).max() > 1e-3
    data = {k: np.column_stack([v[:, :3], 1e3 * v[:, 3]]) for k, v in unlike().items()}
    large = run(QFFL(200.0, 0.1), plain(data), 50)
    assert np.all(np.isfinite(large.x))
    assert worst(data, large.x) < worst(data, np.zeros(3))


def test_q_ffl_goes_on_with_those_who_reply():
    """A client that is silent keeps its weight, the others share theirs by p_i F_i^q."""
    algorithm, problem = QFFL(2.0, 0.1), plain(unlike())
    start = algorithm.init(problem)
    after = one_round(algorithm, problem.clients, start, jnp.array([False, True, True]))
    F = np.array([mean_loss(p, np.zeros(3)) for p in unlike().values()])
    g = np.array([gradient(p, np.zeros(3)) for p in unlike().values()])
    count = (PARTS * F**2)[1:]
    h = (PARTS * (2 * F * np.sum(g**2, axis=1) + 10 * F**2))[1:]
    np.testing.assert_allclose(after.x, -(count @ g[1:]) / h.sum(), rtol=1e-12)
    np.testing.assert_allclose(after.alpha[0], PARTS[0], rtol=1e-14)
    np.testing.assert_allclose(after.alpha[1:], (1 - PARTS[0]) * count / count.sum(), rtol=1e-12)
    nobody = one_round(algorithm, problem.clients, after, jnp.zeros(3, bool))
    assert np.array_equal(nobody.x, after.x)
    assert np.array_equal(nobody.alpha, after.alpha)


def test_settings_can_be_mapped_over():
    """Several q and step sizes in one program, as one by one."""
    settings, problem = [QFFL(0.0, 0.1), QFFL(1.0, 0.0), QFFL(3.0, 0.05)], plain(rows())
    start, clients = QFFL().init(problem), problem.clients

    @jax.jit
    def three_rounds(algorithm):
        state = start
        for _ in range(3):
            state = one_round(algorithm, clients, state)
        return state.x

    together = jax.vmap(three_rounds)(jax.tree.map(lambda *v: jnp.stack(v), *settings))
    for x, algorithm in zip(together, settings, strict=True):
        np.testing.assert_allclose(x, three_rounds(algorithm), atol=1e-14)
    np.testing.assert_allclose(together[1], 0.0, atol=1e-15)  # a step size of 0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: DRFA(eta_alpha=-1.0), "eta_alpha"),
        (lambda: DRFA(local_steps=0), "local step"),
        (lambda: DRFA(sampled=0), "sampled"),
        (lambda: run(DRFA(sampled=4), plain(rows()), 2), "sample 4 of 3"),
        (lambda: QFFL(q=-0.5), "power q"),
        (lambda: QFFL(q=np.nan), "power q"),
        (lambda: QFFL(eta_x=np.inf), "eta_x"),
        (lambda: QFFL(local_steps=0), "local step"),
    ],
)
def test_bad_settings_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def test_q_ffl_refuses_losses_that_may_be_negative():
    loss = CustomLoss(lambda w, xi: w @ xi[:3] - xi[3], jnp.zeros(3))
    fed = Federation.from_arrays(rows(), "unbounded")
    with pytest.raises(BidroError, match="negative"):
        run(QFFL(), Problem(fed, loss, WholeSpace(3), Transport.euclidean(4)), 2)
