"""Cross-validation inside clients, against solves on sub-federations and scores by hand."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.fold_newton import FoldNewton
from bidro.client import Client, WassersteinBall
from bidro.engines.asked import _reply
from bidro.engines.in_process import all_replies, replies_of
from bidro.engines.rounds import Deal
from bidro.engines.solve import solve
from bidro.engines.wire import pack, unpack
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.calibration import _has_kinks, calibrate, pooled_spread
from bidro.guarantees.price import LeftOut, worst_decile
from bidro.guarantees.robust import robust_risk
from bidro.losses import Hinge, Logistic, Squared, losses_of
from bidro.problem import Problem
from bidro.sets import Box, CappedSimplex, Simplex
from bidro.transport import Transport
from bidro.worst_case import Exact
from tests.small import in_folds

SIZES = {"north": 24, "south": 40, "west": 90}


def problem(kind="squared", seed=0):
    rng = np.random.default_rng(seed)
    parts = {}
    for k, (name, size) in enumerate(SIZES.items()):
        theta = rng.normal(size=(size, 2)) + 0.3 * k
        y = theta @ [1.0, -0.5 * k] + 0.5 * rng.normal(size=size)
        parts[name] = np.column_stack([theta, y if kind == "squared" else np.where(y > 0, 1.0, -1.0)])
    federation = Federation.from_arrays(parts, "unbounded", ["age", "dose", "y"])
    if kind == "squared":
        return Problem(federation, Squared(intercept=True), Box.cube(50.0, 3), Transport.features_only(3))
    return Problem(federation, Logistic(intercept=True), Box.cube(50.0, 3), Transport.classification(3, 1.0))


def parts_of(whole, marks, keep):
    ends = np.cumsum(whole.federation.sizes)[:-1]
    rows = np.split(np.asarray(whole.federation.samples), ends)
    return {
        name: own[keep(of)]
        for name, own, of in zip(whole.federation.names, rows, np.split(marks, ends), strict=True)
    }


def worst_mixture(part, whole, radii, mixtures, x):
    """By the closed forms of both losses: (RMSE + eps ||w||)^2 and mean loss + eps ||w||."""
    steep, risks = np.linalg.norm(x[:2]), []
    for name, eps in zip(part.names, radii, strict=True):
        mean = float(np.mean(losses_of(whole.loss, x, np.asarray(part.client_samples(name)))))
        squared = isinstance(whole.loss, Squared)
        risks.append((math.sqrt(mean) + eps * steep) ** 2 if squared else mean + eps * steep)
    return float(mixtures.linear_maximum(jnp.asarray(risks))[0])


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_every_solve_and_score_a_second_time(kind):
    """The risk of each fold's model is that of a solve on the training rows alone, to the gap; the score is
    the mean of the losses on the rows left out."""
    whole = problem(kind)
    scales, weighings = (0.0, 1.0), ((1.5, 1.0), (math.inf, 0.3))
    found = calibrate(whole, scales, weighings, math.inf, folds=2, seed=3, spread=0.7)
    balls = replace(whole, ambiguity=WassersteinBall(0.0))
    algorithm = FoldNewton(Exact(), found.candidates, 2, 0.7)
    clients, state = in_folds(balls, Deal(2, 3)), algorithm.init(balls)
    while not state.finished:
        broadcast = algorithm.broadcast(state)
        replies = all_replies(algorithm, clients, jax.random.key(0), broadcast, jnp.asarray(1))
        state = algorithm.server(state, replies, jnp.ones(3, bool))
    models = state.models
    marks = whole.federation.folds(2, 3)
    losses, exact_losses = np.zeros((2, 3, len(found.candidates)))
    for fold in range(2):
        training = parts_of(whole, marks, lambda of, fold=fold: of != fold)
        left_out = parts_of(whole, marks, lambda of, fold=fold: of == fold)
        sizes = np.array([len(rows) for rows in training.values()])
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(found.candidates):
            radii = 0.7 * one.scale / np.sqrt(sizes)
            mixtures = one.mixtures(whole.federation.sizes)
            again = solve(
                replace(whole, federation=part, ambiguity=WassersteinBall(radii), mixtures=mixtures), 1e-6
            )
            ours = worst_mixture(part, whole, radii, mixtures, models[fold, j])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 1e-3)
            for i, rows in enumerate(left_out.values()):
                for total, x in ((losses, models[fold, j]), (exact_losses, again.x)):
                    values = losses_of(whole.loss, x, rows)
                    total[i, j] += float(values.sum()) / SIZES[whole.federation.names[i]]
    # From second moments the solves begin elsewhere: their scores are those of exact solves, to what the gap
    # leaves.
    tolerance = 1e-9
    if kind == "squared":
        tolerance, losses = 1e-3, exact_losses
    np.testing.assert_allclose(found.losses, losses, rtol=tolerance)
    if kind == "squared":
        fine = FoldMoments(found.candidates, 2, 0.7, gap=1e-8)
        start = fine.init(balls)
        replies = replies_of(fine, clients, jax.random.key(0), fine.broadcast(start), jnp.asarray(1))
        assert fine.server(start, replies, jnp.array([True, False, True])).found is None
        done = fine.server(start, replies, jnp.ones(3, bool)).found
        np.testing.assert_allclose(LeftOut(done.losses, done.rows).pooled, exact_losses, rtol=1e-3)
    # The last models are those of all rows.
    for j, one in enumerate(found.candidates):
        radii = 0.7 * one.scale / np.sqrt(whole.federation.sizes)
        mixtures = one.mixtures(whole.federation.sizes)
        again = solve(replace(whole, ambiguity=WassersteinBall(radii), mixtures=mixtures), 1e-6)
        ours = worst_mixture(whole.federation, whole, radii, mixtures, found.models[-1, j])
        assert again.lower - 1e-9 <= ours <= again.upper * (1 + 2e-3)
    # Of three clients the worst tenth and the worst fifth are both one.
    np.testing.assert_allclose(found.scores, losses.max(axis=0), rtol=tolerance)
    np.testing.assert_allclose(found.worst_deciles, losses.max(axis=0), rtol=tolerance)
    assert found.chosen == found.candidates[int(losses.max(axis=0).argmin())]
    np.testing.assert_allclose(found.radii, 0.7 * found.chosen.scale / np.sqrt(list(SIZES.values())))


@pytest.mark.parametrize("curvature", [True, False])
def test_solves_of_the_exact_solver_reach_their_gap(curvature):
    """Which losses with kinks, and clients that send gradients alone, are cross-validated by."""
    whole = replace(problem("logistic"), ambiguity=WassersteinBall(0.0))
    candidates = (Candidate(0.0, 1.5), Candidate(1.0, math.inf))
    algorithm = FoldSolves(Exact(), candidates, 2, 0.7, curvature)
    clients, state = in_folds(whole, Deal(2, 3)), algorithm.init(whole)
    while not state.finished:
        broadcast = algorithm.broadcast(state)
        replies = all_replies(algorithm, clients, jax.random.key(0), broadcast, jnp.asarray(1))
        state = algorithm.server(state, replies, jnp.ones(3, bool))
    marks = whole.federation.folds(2, 3)
    for fold in range(2):
        training = parts_of(whole, marks, lambda of, fold=fold: of != fold)
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(candidates):
            radii = 0.7 * one.scale / np.sqrt([len(rows) for rows in training.values()])
            mixtures = one.mixtures(whole.federation.sizes)
            again = solve(
                replace(whole, federation=part, ambiguity=WassersteinBall(radii), mixtures=mixtures), 1e-6
            )
            ours = worst_mixture(part, whole, radii, mixtures, state.models[fold, j])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 2e-3)


def test_the_ends_of_the_grid_are_fedavg_and_afl():
    sizes = tuple(SIZES.values())
    fixed = Candidate(0.0, 1.0).mixtures(sizes)
    assert isinstance(fixed, CappedSimplex)
    share = np.asarray(sizes) / sum(sizes)
    for c in np.eye(3):
        np.testing.assert_allclose(fixed.linear_maximum(jnp.asarray(c))[1], share, atol=1e-12)
    assert isinstance(Candidate(0.0, math.inf).mixtures(sizes), Simplex)


@pytest.mark.parametrize("price", [0.02, math.inf])
def test_held_to_one_weighing_the_choice_is_as_without_the_others(price):
    """Seeds with a large radius and with a smaller one; pooled training is what it is compared with."""
    chosen = set()
    for seed in range(5):
        whole = problem(seed=seed)
        alone = calibrate(whole, (0.6, 0.0, 0.3), ((3.0, 1.0),), price)
        among = calibrate(whole, (0.6, 0.0, 0.3), ((1.0, 1.0), (3.0, 1.0)), price).held_to((3.0, 1.0))
        assert among.chosen == alone.chosen
        np.testing.assert_allclose(among.radii, alone.radii, rtol=1e-12, atol=1e-15)
        assert among.candidates[among.pooled] == Candidate(0.0, 1.0, 1.0)
        chosen.add(among.chosen.scale)
    assert len(chosen) > 1 or price < math.inf


def test_one_number_a_candidate_and_fold_leaves_a_client_with_the_scores():
    whole = replace(problem(), ambiguity=WassersteinBall(0.0))
    scoring, state = FoldScores(), jnp.zeros((2, 5, 3))
    clients = in_folds(whole, Deal(2, 0))
    replies = all_replies(scoring, clients, jax.random.key(0), scoring.broadcast(state), jnp.asarray(1))
    assert replies.loss.shape == (3, 2, 5)
    assert replies.rows.sum(axis=1).tolist() == list(SIZES.values())
    scored = scoring.server(state, replies, jnp.array([True, False, True]))
    assert np.isnan(scored.loss[1]).all()
    assert np.isfinite(scored.loss[0]).all()


def test_a_client_alone_answers_as_it_does_among_the_others():
    """On its own machine, with bytes in and out, a client deals its own folds and sends the same reply."""
    whole = replace(problem(), ambiguity=WassersteinBall(0.0))
    algorithm = FoldSolves(Exact(), (Candidate(0.0, 1.0), Candidate(1.0, math.inf)), 2)
    broadcast = algorithm.broadcast(algorithm.init(whole))
    together = all_replies(
        algorithm, in_folds(whole, Deal(2, 7)), jax.random.key(0), broadcast, jnp.asarray(1)
    )
    name, i = "south", 1
    rows = whole.federation.client_samples(name)
    own = Federation.from_arrays({name: rows}, "unbounded")
    client = Client.single(
        name, rows, whole.loss, whole.transport, whole.federation.support, WassersteinBall(0.0)
    )
    client = replace(client, rows=client.rows.in_folds(own.folds(2, 7), 2))
    message = unpack(pack(broadcast), algorithm.broadcast_type)
    alone = _reply(algorithm, client, jax.random.key(0), jnp.asarray(1), message)
    for ours, theirs in zip(alone, together, strict=True):
        np.testing.assert_allclose(ours, theirs[i], rtol=1e-10, atol=1e-12)


def test_the_worst_decile_by_hand():
    losses = np.arange(1.0, 13.0)
    assert worst_decile(losses) == (11 + 12) / 2
    assert worst_decile(losses[:10]) == 10
    np.testing.assert_array_equal(worst_decile(np.stack([losses, -losses], axis=1)), [11.5, -1.5])


def test_the_spread_is_one_in_standardised_units():
    whole = problem()
    rows = np.asarray(whole.federation.samples)
    standard = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    federation = replace(whole.federation, samples=jnp.asarray(standard))
    assert pooled_spread(replace(whole, federation=federation)) == pytest.approx(1.0)
    # The same by the scale of the cost.
    scale = np.append(1 / rows.std(axis=0)[:2], math.inf)
    assert pooled_spread(replace(whole, transport=Transport(scale))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: calibrate(problem(), (), ((1.0, 1.0),)), "at least one"),
        (lambda: calibrate(problem(), (-1.0,), ((1.0, 1.0),)), "scale"),
        (lambda: calibrate(problem(), (1.0,), ((0.5, 1.0),)), "cap"),
        (lambda: calibrate(problem(), (1.0,), ((2.0, 1.5),)), "blend"),
        (lambda: calibrate(problem(), (1.0,), ((1.0, 1.0),), folds=30), "fewer than the 30 folds"),
        (lambda: calibrate(problem(), spread=0.0), "spread"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def test_risks_have_kinks_where_the_loss_has_or_labels_have_a_price_that_a_ball_can_pay():
    smooth = replace(problem("logistic"), ambiguity=WassersteinBall(0.0))
    priced = replace(smooth, transport=Transport.classification(3, 1.0, 1.0))
    assert not _has_kinks(smooth, True)
    assert not _has_kinks(priced, False)
    assert _has_kinks(priced, True)
    assert _has_kinks(replace(priced, ambiguity=WassersteinBall(0.1)), False)
    assert not _has_kinks(replace(smooth, ambiguity=WassersteinBall(0.1)), False)
    assert _has_kinks(replace(smooth, loss=Hinge(intercept=True)), False)


@pytest.mark.slow
def test_labels_at_a_price_take_few_rounds_and_models_are_those_of_a_solve():
    """To the gap of `FoldSolves`. With a radius the risk has a kink at 0, where the best models of robust
    candidates are: Newton's method went on there for all its 20 rounds."""
    whole = replace(problem("logistic"), transport=Transport.classification(3, 1.0, 1.0))
    found = calibrate(whole, (0.5, 2.0), ((1.5, 1.0), (math.inf, 1.0)), math.inf, folds=2, seed=3, spread=0.7)
    assert found.rounds <= 10
    marks = whole.federation.folds(2, 3)
    for fold in range(2):
        part = Federation.from_arrays(parts_of(whole, marks, lambda of, f=fold: of != f), "unbounded")
        for j, one in enumerate(found.candidates):
            ball = WassersteinBall(0.7 * one.scale / np.sqrt(part.sizes))
            mixtures = one.mixtures(whole.federation.sizes)
            own = replace(whole, federation=part, ambiguity=ball, mixtures=mixtures)
            again, risk = solve(own, 1e-6), robust_risk(own, found.models[fold, j], curvature=False).value
            ours = float(mixtures.linear_maximum(jnp.asarray(risk))[0])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 1e-3)
