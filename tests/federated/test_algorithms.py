"""One contract suite over all algorithms, then each of them against its paper, step by step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from bidro.ambiguity import NonconcaveInnerWarning, Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall
from bidro.core.splits import client_id
from bidro.data.federation import Federation
from bidro.experiments.simulation import COEFFICIENTS, PENALTIES, paper_problem, simulate
from bidro.federated.algorithm import client_key
from bidro.federated.algorithms import BiDROFL, Momentum, ServerOptimised
from bidro.federated.baselines import AFL, DRFA, QFFL, FedAvg, GroupDRO
from bidro.federated.engines.in_process import HostClients, participating, run, run_many
from bidro.federated.engines.rounds import run_over
from bidro.losses import (
    Absolute,
    CustomLoss,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    SmoothedHinge,
    Softmax,
    Squared,
)
from bidro.problem.problem import Problem
from bidro.risk.inner import BacktrackingAscent, Exact
from bidro.risk.transport import Transport
from tests.federated.cases import CASES, over_transport
from tests.small import SIZES, admissible, federation, mostly_slow, paper_like, plain, rows


def stacked_replies(algorithm, problem, state, t=1, seed=0):
    """All clients' replies, asked or not."""
    return HostClients(problem, None, seed)(algorithm, algorithm.broadcast(state), t)[0]


def after_rounds(algorithm, problem, rounds, replied):
    """The state after rounds in which those of `replied` (n,) who are asked reply."""
    state = algorithm.init(problem)
    for t in range(1, rounds + 1):
        state = one_round(algorithm, problem, state, t, jnp.asarray(replied))
    return state


def one_round(algorithm, problem, state, t, present):
    replies = stacked_replies(algorithm, problem, state, t)
    return served(algorithm, state, replies, participating(algorithm, state, problem.clients) & present)


def served(algorithm, state, replies, replied):
    step = _compiled if algorithm.traceable_server else type(algorithm).server
    return step(algorithm, state, replies, replied)


@jax.jit
def _compiled(algorithm, state, replies, replied):
    return algorithm.server(state, replies, replied)


@pytest.mark.parametrize("name", CASES)
def test_same_seed_same_bits_and_weights_in_their_set(name):
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    one, two = (run(algorithm, problem, 60, seed=3, record_every=7) for _ in range(2))
    assert np.array_equal(one.x, two.x)
    assert np.array_equal(one.alpha, two.alpha)
    assert np.array_equal(one.history.x_average, two.history.x_average)
    for alpha in one.history.alpha:
        assert bool(problem.mixture_set.contains(jnp.asarray(alpha)))
    for x in one.history.x:
        assert bool(problem.models.contains(jnp.asarray(x)))
    moved = np.abs(one.alpha - np.asarray(problem.initial_weights)).max()
    assert (moved > 1e-3) == CASES[name].alpha_moves
    assert np.abs(one.x - np.asarray(problem.initial_model)).max() > 1e-2


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_clients_does_not_matter_and_weights_are_keyed_by_client(name):
    """Randomness, choices of the server, and weights belong to a client's name, not to its position."""
    algorithm, make = CASES[name].algorithm, CASES[name].problem
    one = run(algorithm, make(), 50, seed=1)
    two = run(algorithm, make(("site-2", "site-0", "site-1")), 50, seed=1)
    np.testing.assert_allclose(one.x, two.x, rtol=1e-8, atol=1e-11)
    by_name = dict(zip(two.names, two.alpha, strict=True))
    np.testing.assert_allclose(one.alpha, [by_name[k] for k in one.names], atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_client_that_does_not_reply_is_ignored(name):
    """Whatever stands in its place, NaN included, and whoever it is, in every part of a stage."""
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    state = algorithm.init(problem)
    replied = jnp.array([True, False, True])
    for t in (1, 2):
        replies = stacked_replies(algorithm, problem, state, t)
        poisoned = jax.tree.map(lambda v: jnp.asarray(v).at[1].set(_poison(v.dtype)), replies)
        clean, dirty = (algorithm.snapshot(served(algorithm, state, r, replied)) for r in (replies, poisoned))
        for a, b in zip(clean, dirty, strict=True):
            assert np.array_equal(a, b)
            assert np.all(np.isfinite(b))
        state = served(algorithm, state, replies, replied)


def _poison(dtype):
    return jnp.nan if jnp.issubdtype(dtype, jnp.floating) else 1


@pytest.mark.parametrize("name", CASES)
def test_nobody_replies_and_nothing_moves(name):
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    before = algorithm.snapshot(algorithm.init(problem))
    after = algorithm.snapshot(after_rounds(algorithm, problem, 2, [False] * 3))
    np.testing.assert_allclose(after.x, before.x, atol=1e-15)
    np.testing.assert_allclose(after.alpha, before.alpha, atol=1e-15)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.algorithm.traceable_server])
def test_the_average_is_that_of_the_models_that_were_broadcast(name):
    """x-bar_T = (x_1 + ... + x_T) / T: the initial model counts, the final one does not. The exact solver
    shows the best model it has, not the next, and has no use for an average."""
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    result = run(algorithm, problem, 10, record_every=1)
    # A stage of DRFA has two rounds, and its model counts once.
    every = 2 if name.startswith("DRFA") else 1
    broadcast = np.vstack([problem.initial_model, result.history.x[:-1]])[::every]
    np.testing.assert_allclose(result.x_average, broadcast.mean(axis=0), rtol=1e-12)


ONE_OF_A_KIND = ("FedAvg", "DRFA", "Group DRO", "FDR-SVM", "BiDRO-FL", "BiDRO-FL, 8 bits")


@pytest.mark.parametrize(
    "name", mostly_slow([n for n in CASES if "gossip" not in n], lambda name: name in ONE_OF_A_KIND)
)
def test_the_same_model_in_process_and_over_the_transport(name, tmp_path):
    """Every message as bytes, every client rebuilt from the request; gossip has no hub to run over. Replies
    differ in the last bits, as sums are of one client here and of all together there. A server that solves a
    cone program, to 1e-10 in its value, has its model by these to fewer digits than one that takes a step."""
    algorithm, problem = CASES[name].algorithm, CASES[name].problem()
    same = 1e-9 if algorithm.traceable_server else 1e-8
    here = run(algorithm, problem, 6, seed=2)
    there = algorithm.snapshot(
        run_over(over_transport(problem, algorithm, tmp_path), algorithm, problem, 6, seed=2)
    )
    np.testing.assert_allclose(there.x, here.x, rtol=same, atol=1e-12)
    np.testing.assert_allclose(there.alpha, here.alpha, atol=same / 10)


# What each docstring says of a client that never replies: its weight stays where it was ("kept"), falls as
# that of others grows ("falls"), is what it always was because weights are fixed ("fixed"), or moves either
# way ("as others do").
SILENT = {
    "FedAvg": "fixed", "FedAvg, 3 local steps": "fixed", "FedProx": "fixed", "Ditto": "fixed",
    "SCAFFOLD": "fixed", "SCAFFOLD, batches": "fixed", "Ditto, batches": "fixed",
    "FedAdam": "fixed", "FedYogi": "fixed", "FedAdagrad": "fixed",
    "mixture ball": "fixed", "FDR-SVM": "fixed",
    # The exact ones wait for everyone, and repeat the round.
    "q-FFL": "kept", "exact MW-DRO": "kept", "exact MW-DRO, one-shot": "kept",
    "AFL": "falls", "DRFA": "falls", "Group DRO": "falls", "Group DRO by weights, adjusted": "falls",
    "Group DRO with balls": "falls", "unbalanced up": "as others do", "unbalanced down": "as others do",
    "BiDRO-FL": "falls", "BiDRO-FL, exact": "falls", "BiDRO-FL, local steps, part of the clients": "falls",
    "FedAvg, batches": "fixed", "AFL, batches": "falls", "DRFA, batches": "falls", "q-FFL, batches": "kept",
    "Group DRO, batches": "falls", "BiDRO-FL, batches": "falls",
    "FedAvg, Adam": "fixed", "DRFA, momentum": "falls", "BiDRO-FL, batches, Adam": "falls",
    "BiDRO-FL, top-k": "falls", "BiDRO-FL, 8 bits": "falls", "BiDRO-FL, gossip": "falls",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_client_that_never_replies_is_treated_as_the_docstring_says(name):
    """Its rows do not enter the model: with other rows at that client the same comes out."""
    case = CASES[name]
    problem = case.problem()
    samples = problem.federation.samples.copy()
    samples[7:19, :3] *= -0.5
    other = problem.with_samples(samples)
    states = [after_rounds(case.algorithm, one, 40, [True, False, True]) for one in (problem, other)]
    one, two = (case.algorithm.snapshot(state) for state in states)
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.alpha, two.alpha)
    before, after = float(problem.initial_weights[1]), float(one.alpha[1])
    if SILENT[name] == "falls":
        assert after < before - 1e-3
    elif SILENT[name] != "as others do":
        assert after == pytest.approx(before, abs=1e-12)


def test_algorithm_1_against_plain_numpy():
    """Ten rounds written as the paper reads, with the same draws."""
    problem, algorithm = paper_like(), BiDROFL()
    result = run(algorithm, problem, 10, seed=5)
    data, rho = list(rows().values()), [15.0, 5.0, 2.5]
    x, alpha = np.zeros(3), np.array(SIZES) / sum(SIZES)
    for t in range(1, 11):
        x_i, g_alpha = [], []
        for i, part in enumerate(data):
            key = client_key(jax.random.key(5), t, jnp.asarray(client_id(f"site-{i}")))
            u = np.asarray(jax.random.uniform(key, (5,)))
            zeta = part[int(u[0] * len(part))]
            z = zeta.copy()
            for _ in range(30):
                residual = z[3] - z[:3] @ x
                gradient = np.append(-2 * residual * x, 2 * residual) - 2 * rho[i] * (z - zeta)
                z = np.clip(z + 0.003 * gradient, -3, 3)
            noise = norm.ppf(u[1:])
            z = np.clip(z + 0.01 * noise / np.linalg.norm(noise), -3, 3)
            residual = z[3] - z[:3] @ x
            x_i.append(x + 0.01 * 2 * residual * z[:3])
            g_alpha.append(residual**2 - rho[i] * np.sum((z - zeta) ** 2))
        x = np.clip(alpha @ np.array(x_i), -100, 100)
        v = alpha + 0.01 * np.array(g_alpha)
        ordered = np.sort(v)[::-1]
        levels = (np.cumsum(ordered) - 1) / np.arange(1, 4)
        alpha = np.maximum(v - levels[np.nonzero(ordered > levels)[0][-1]], 0)
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.alpha, alpha, atol=1e-12)


def test_noise_is_standard_gaussian_and_apart_from_the_row():
    """20,000 draws of four numbers: moments within 5 standard errors, no correlation with the row."""
    algorithm, client = BiDROFL(), admissible().clients
    draws = jax.vmap(lambda k: algorithm.draw(client, k))(jax.random.split(jax.random.key(1), 20_000))
    noise = np.column_stack([np.asarray(draws.noise), np.asarray(draws.position)])
    error = 1 / np.sqrt(20_000)
    assert np.all(np.abs(noise[:, :4].mean(axis=0)) < 5 * error)
    assert np.all(np.abs(noise[:, :4].var(axis=0) - 1) < 5 * np.sqrt(2) * error)
    assert np.all(np.abs(np.corrcoef(noise.T) - np.eye(5)) < 5 * error)


def test_every_row_is_sampled_equally_often():
    """Line 4: 20,000 draws from 7 rows; each count within 5 standard errors of its mean."""
    client_rows = admissible().clients
    algorithm = BiDROFL()
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = jax.vmap(lambda k: algorithm.draw(client_rows, k).position)(keys)
    counts = np.bincount((np.asarray(draws) * 7).astype(int), minlength=7)
    expected, deviation = 20_000 / 7, np.sqrt(20_000 / 7 * 6 / 7)
    assert np.all(np.abs(counts - expected) < 5 * deviation)


def test_afl_against_plain_numpy_and_its_weights_enter_the_model():
    """A public AFL ignores the mixture weights in its documented mode; here they steer the model."""
    problem = plain(admissible())
    result = run(AFL(eta_x=0.05, eta_alpha=0.3), problem, 8)
    x, alpha = np.zeros(3), np.array(SIZES) / sum(SIZES)
    for _ in range(8):
        values, gradients = [], []
        for part in rows().values():
            u = part[:, :3] @ x - part[:, 3]
            values.append(np.mean(u**2))
            gradients.append(2 * part[:, :3].T @ u / len(part))
        x = x - 0.05 * alpha @ np.array(gradients)
        alpha = np.asarray(problem.mixture_set.project(jnp.asarray(alpha + 0.3 * np.array(values))))
    np.testing.assert_allclose(result.x, x, rtol=1e-11)
    np.testing.assert_allclose(result.alpha, alpha, atol=1e-12)
    frozen = run(AFL(eta_x=0.05, eta_alpha=0.0), problem, 8)
    assert np.abs(frozen.x - result.x).max() > 1e-3


def test_afl_reaches_the_minimax_solution():
    """Against cvxpy: min over x of the largest client mean."""
    import cvxpy as cp

    x, t = cp.Variable(3), cp.Variable()
    cuts = [cp.sum_squares(p[:, :3] @ x - p[:, 3]) / len(p) <= t for p in rows().values()]
    cp.Problem(cp.Minimize(t), cuts).solve(cp.CLARABEL)
    result = run(AFL(eta_x=0.02, eta_alpha=0.02), plain(admissible()), 40_000)
    risks = [np.mean((p[:, :3] @ result.x_average - p[:, 3]) ** 2) for p in rows().values()]
    assert max(risks) == pytest.approx(float(t.value), rel=2e-3)


@pytest.mark.parametrize("local_steps", [1, 4])
def test_fedavg_first_round_uses_proportional_weights(local_steps):
    """A public baseline aggregates its first round with all-zero weights and returns zeros."""
    problem = plain(admissible())
    result = run(FedAvg(eta_x=0.05, local_steps=local_steps), problem, 1)
    shares, models = np.array(SIZES) / sum(SIZES), []
    for part in rows().values():
        x = np.zeros(3)
        for _ in range(local_steps):
            x = x - 0.05 * 2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part)
        models.append(x)
    np.testing.assert_allclose(result.x, shares @ np.array(models), rtol=1e-11)
    assert np.abs(result.x).max() > 0.01


def test_fedavg_converges_to_pooled_least_squares():
    pooled = np.concatenate(list(rows().values()))
    solution, *_ = np.linalg.lstsq(pooled[:, :3], pooled[:, 3])
    result = run(FedAvg(eta_x=0.1), plain(admissible()), 3000)
    np.testing.assert_allclose(result.x, solution, rtol=1e-8)


def test_the_average_over_those_who_replied_is_weighted_by_client():
    """Mixture weights indexed by position among the participants would give other shares."""
    algorithm, problem = FedAvg(eta_x=0.05), plain(admissible())
    state = algorithm.init(problem)
    replies = stacked_replies(algorithm, problem, state)
    after = algorithm.server(state, replies, jnp.array([False, True, True]))
    expected = (12 * replies.x[1] + 30 * replies.x[2]) / 42
    np.testing.assert_allclose(after.x, expected, rtol=1e-12)


def test_restricted_mixtures_restrict_the_weights():
    capped = CappedSimplex.around_proportions(SIZES, 1.5)
    near = L1SimplexBall(np.array(SIZES) / sum(SIZES), 0.1)
    for mixtures in (capped, near):
        result = run(AFL(eta_x=0.05, eta_alpha=0.5), plain(admissible(mixtures=mixtures)), 200)
        assert all(bool(mixtures.contains(jnp.asarray(a))) for a in result.history.alpha)
    fixed = CappedSimplex(np.array(SIZES) / sum(SIZES), np.array(SIZES) / sum(SIZES))
    same = run(AFL(eta_x=0.05, eta_alpha=0.5), plain(admissible(mixtures=fixed)), 200)
    average = run(FedAvg(eta_x=0.05), plain(admissible()), 200)
    np.testing.assert_allclose(same.x, average.x, rtol=1e-9)


LABELS = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, -1.0)]) for k, v in rows().items()}
CLASSES = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, 0.0)]) for k, v in rows().items()}
NETWORK = CustomLoss(
    lambda p, xi: (p["out"] @ jnp.tanh(p["hidden"] @ xi[:3]) - xi[3]) ** 2,
    {"hidden": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3))), "out": jnp.ones(4) / 4},
)
LOSSES = [
    Squared(), Absolute(), Huber(), Pinball(quantile=0.8), Logistic(), Hinge(), SmoothedHinge(),
    Softmax(classes=2), NETWORK,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::bidro.problem.problem.NonconcaveInnerWarning")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
def test_every_algorithm_trains_every_loss(loss):
    """The worst client's mean loss falls, for every loss, a small neural network included."""
    data = rows() if loss.labels is None else CLASSES if isinstance(loss, Softmax) else LABELS
    fed = Federation.from_arrays(data, Box.cube(3.0, 4))
    transport = Transport.euclidean(4) if loss.labels is None else Transport.classification(4)
    problem = Problem(fed, loss, Box.cube(5.0, loss.dimension(4)), transport, Penalty(10.0))

    def worst(x):
        return max(float(jnp.mean(loss.values(jnp.asarray(x), jnp.asarray(p)))) for p in data.values())

    start = worst(problem.initial_model)
    for algorithm in (
        BiDROFL(eta_x=0.02, eta_alpha=0.02, oracle=BacktrackingAscent(steps=20)),
        AFL(eta_x=0.05, eta_alpha=0.02),
        FedAvg(eta_x=0.05),
    ):
        own = problem if isinstance(algorithm, BiDROFL) else plain(problem)
        result = run(algorithm, own, 400)
        assert worst(result.x_average) < 0.9 * start


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), AFL(), QFFL(), DRFA(), GroupDRO()], ids=lambda a: type(a).__name__
)
def test_algorithms_of_mean_losses_refuse_an_ambiguity_that_they_would_ignore(algorithm):
    for ambiguity in (Penalty(20.0), WassersteinBall([0.0, 0.0, 0.1])):
        with pytest.raises(
            BidroError, match=f"{type(algorithm).__name__} .* would ignore .*{type(ambiguity).__name__}"
        ):
            run(algorithm, replace(admissible(), ambiguity=ambiguity), 2)
    run(algorithm, replace(admissible(), ambiguity=WassersteinBall(0.0)), 2)


def test_algorithm_1_begins_where_it_is_told():
    """x_1 and alpha_1 are inputs of Algorithm 1: its a round in plain NumPy, and rounds without steps."""
    x, alpha = np.array([0.5, -1.0, 0.25]), np.array([0.2, 0.5, 0.3])
    still = run(BiDROFL(0.0, 0.0), admissible(), 3, x=x, alpha=alpha)
    assert np.array_equal(still.x, x)
    np.testing.assert_allclose(still.alpha, alpha, atol=1e-15)
    slopes = [2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part) for part in rows().values()]
    one = run(AFL(0.01, 0.0), plain(admissible()), 1, x=x, alpha=alpha)
    np.testing.assert_allclose(one.x, x - 0.01 * alpha @ np.array(slopes), rtol=1e-12)
    whole = run(BiDROFL(), admissible(), 20, x=x, alpha=alpha)
    part = run(BiDROFL(), admissible(), 9, x=x, alpha=alpha)
    assert np.array_equal(run(BiDROFL(), admissible(), 20, resume=part).x, whole.x)
    inside = ServerOptimised(AFL(0.01, 0.0), Momentum(1.0, 0.0))
    np.testing.assert_allclose(run(inside, plain(admissible()), 1, x=x, alpha=alpha).x, one.x, rtol=1e-12)


def test_where_a_run_cannot_begin():
    problem, x = admissible(), np.zeros(3)
    for wrong, words in (
        ({"x": [9.0, 0.0, 0.0]}, "3 finite numbers in X"),
        ({"x": [0.0]}, "3 finite numbers in X"),
        ({"x": [np.nan, 0.0, 0.0]}, "3 finite numbers in X"),
        ({"alpha": [0.5, 0.5, 0.5]}, "3 numbers in the problem's set A"),
        ({"alpha": [0.5, 0.5]}, "3 numbers in the problem's set A"),
        ({"x": x, "resume": run(BiDROFL(), problem, 2)}, "give no x"),
    ):
        with pytest.raises(BidroError, match=words):
            run(BiDROFL(), problem, 5, **wrong)
    with pytest.raises(BidroError, match="FedAvg has mixture weights of its own"):
        run(FedAvg(), plain(problem), 5, alpha=[0.5, 0.25, 0.25])


def test_bidro_fl_says_what_it_needs():
    with pytest.raises(BidroError, match="Penalty"):
        run(BiDROFL(), plain(admissible()), 3)
    cubic = Problem(federation(), Squared(), Box.cube(1.5, 3), Transport.euclidean(4, 3.0), Penalty(5.0))
    with pytest.raises(BidroError, match="BacktrackingAscent"):
        run(BiDROFL(oracle=Exact()), cubic, 3)


@pytest.mark.slow
def test_the_exact_inner_solver_diverges_at_the_paper_s_settings():
    """Said in the report: the 30 short steps are what keeps Algorithm 1 stable there."""
    data = [simulate(seed) for seed in range(2026, 2034)]
    with pytest.warns(NonconcaveInnerWarning, match="rho = 2.5"):
        problem = paper_problem(data[0], PENALTIES)
    samples, seeds = np.stack([d.samples for d in data]), range(8)
    exact = run_many(BiDROFL(oracle=Exact()), problem, samples, 10_000, seeds)
    short = run_many(BiDROFL(), problem, samples, 10_000, seeds)
    assert all(np.abs(r.history.x[50:] - COEFFICIENTS).max() < 0.5 for r in short)
    # They run away to the edge of the model set within 10,000 rounds; whether every one does is chance.
    assert sum(np.abs(r.history.x).max() >= 100.0 for r in exact) > len(data) / 2


def test_an_infinite_worst_case_stops_the_run():
    """Softmax, p = 1, unbounded: the first steps leave the models for which rho is enough."""
    fed = Federation.from_arrays(CLASSES, "unbounded")
    problem = Problem(
        fed, Softmax(classes=2), Box.cube(5.0, 6), Transport.classification(4, 1.0), Penalty([0.01, 5, 5])
    )
    with pytest.raises(BidroError, match="worst case is infinite"):
        run(BiDROFL(eta_x=0.5, oracle=Exact()), problem, 100)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: BiDROFL(eta_x=-1.0), "eta_x"),
        (lambda: BiDROFL(eta_alpha=np.nan), "eta_alpha"),
        (lambda: AFL(eta_x=np.inf), "eta_x"),
        (lambda: FedAvg(local_steps=0), "local step"),
    ],
)
def test_bad_settings_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
