"""Cross-validation inside clients, against solves on sub-federations and scores by hand."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, Simplex
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS, all_replies
from bidro.federated.engines.remote import _reply
from bidro.federated.engines.rounds import FoldSpec
from bidro.federated.engines.wire import pack, unpack
from bidro.losses import Hinge, Logistic, Squared, losses_of
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.selection import cross_validate as selection
from bidro.selection.calibrate import calibrate, pooled_spread
from bidro.selection.cross_validate import Candidate, cross_validate, has_kinks
from bidro.selection.fold_queries import (
    CutsBroadcast,
    FoldCuts,
    FoldMoments,
    FoldScores,
    MomentsBroadcast,
    ScoresBroadcast,
)
from bidro.selection.rule import LeftOut, MixtureSpec, worst_decile
from bidro.solvers.solve import solve
from tests.small import Compiled, in_folds

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


def parts_of(whole, fold_ids, keep):
    ends = np.cumsum(whole.federation.sizes)[:-1]
    rows = np.split(np.asarray(whole.federation.samples), ends)
    return {
        name: own[keep(of)]
        for name, own, of in zip(whole.federation.names, rows, np.split(fold_ids, ends), strict=True)
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
def test_every_solve_and_score_a_second_time(kind, monkeypatch):
    """The risk of each fold's model is that of a solve on the training rows alone, to the gap; the score is
    the mean of the losses on the rows left out."""
    whole = problem(kind)
    scales, mixture_specs = (0.0, 1.0), ((1.5, 1.0), (math.inf, 0.3))
    found = calibrate(whole, scales, mixture_specs, math.inf, folds=2, seed=3, spread=0.7)
    balls = replace(whole, ambiguity=WassersteinBall(0.0))
    if kind == "logistic":
        # The same models from replies of compiled clients as from rows here, to what the gap leaves.
        replied = cross_validate(balls, found.candidates, FoldSpec(2, 3), 0.7, Exact(), Compiled())
        np.testing.assert_allclose(replied.models, found.models, atol=2e-2)
        np.testing.assert_allclose(LeftOut(replied.losses, replied.rows).pooled, found.losses, rtol=1e-3)
    models = found.models
    fold_ids = whole.federation.folds(2, 3)
    losses, exact_losses = np.zeros((2, 3, len(found.candidates)))
    for fold in range(2):
        training = parts_of(whole, fold_ids, lambda of, fold=fold: of != fold)
        left_out = parts_of(whole, fold_ids, lambda of, fold=fold: of == fold)
        sizes = np.array([len(rows) for rows in training.values()])
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(found.candidates):
            radii = 0.7 * one.scale / np.sqrt(sizes)
            mixtures = one.mixture_spec.mixtures(whole.federation.sizes)
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
        monkeypatch.setattr(selection, "_FROM_MOMENTS", 1e-8)
        fine = cross_validate(balls, found.candidates, FoldSpec(2, 3), 0.7, Exact(), IN_PROCESS)
        np.testing.assert_allclose(LeftOut(fine.losses, fine.rows).pooled, exact_losses, rtol=1e-3)
    # The last models are those of all rows.
    for j, one in enumerate(found.candidates):
        radii = 0.7 * one.scale / np.sqrt(whole.federation.sizes)
        mixtures = one.mixture_spec.mixtures(whole.federation.sizes)
        again = solve(replace(whole, ambiguity=WassersteinBall(radii), mixtures=mixtures), 1e-6)
        ours = worst_mixture(whole.federation, whole, radii, mixtures, found.models[-1, j])
        assert again.lower - 1e-9 <= ours <= again.upper * (1 + 2e-3)
    # Of three clients the worst tenth and the worst fifth are both one.
    np.testing.assert_allclose(found.scores, losses.max(axis=0), rtol=tolerance)
    np.testing.assert_allclose(found.worst_deciles, losses.max(axis=0), rtol=tolerance)
    assert found.chosen == found.candidates[int(losses.max(axis=0).argmin())]
    np.testing.assert_allclose(found.radii, 0.7 * found.chosen.scale / np.sqrt(list(SIZES.values())))


@pytest.mark.parametrize("curvature", [True, False])
def test_solves_of_the_exact_solver_reach_their_gap(curvature, monkeypatch):
    """Which losses with kinks, and clients that send gradients alone, are cross-validated by."""
    whole = replace(problem("logistic"), ambiguity=WassersteinBall(0.0))
    candidates = (Candidate(0.0, 1.5), Candidate(1.0, math.inf))
    if curvature:
        monkeypatch.setattr(selection, "has_kinks", lambda *_: True)
    found = cross_validate(whole, candidates, FoldSpec(2, 3), 0.7, Exact(), Compiled(), curvature)
    fold_ids = whole.federation.folds(2, 3)
    for fold in range(2):
        training = parts_of(whole, fold_ids, lambda of, fold=fold: of != fold)
        part = Federation.from_arrays(training, "unbounded")
        for j, one in enumerate(candidates):
            radii = 0.7 * one.scale / np.sqrt([len(rows) for rows in training.values()])
            mixtures = one.mixture_spec.mixtures(whole.federation.sizes)
            again = solve(
                replace(whole, federation=part, ambiguity=WassersteinBall(radii), mixtures=mixtures), 1e-6
            )
            ours = worst_mixture(part, whole, radii, mixtures, found.models[fold, j])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 2e-3)


def test_the_ends_of_the_grid_are_fedavg_and_afl():
    sizes = tuple(SIZES.values())
    fixed = MixtureSpec(1.0).mixtures(sizes)
    assert isinstance(fixed, CappedSimplex)
    share = np.asarray(sizes) / sum(sizes)
    for c in np.eye(3):
        np.testing.assert_allclose(fixed.linear_maximum(jnp.asarray(c))[1], share, atol=1e-12)
    assert isinstance(MixtureSpec(math.inf).mixtures(sizes), Simplex)


@pytest.mark.parametrize("max_cost", [0.02, math.inf])
def test_held_to_one_mixture_spec_the_choice_is_as_without_the_others(max_cost):
    """Seeds with a large radius and with a smaller one; pooled training is what it is compared with."""
    chosen = set()
    for seed in range(5):
        whole = problem(seed=seed)
        alone = calibrate(whole, (0.6, 0.0, 0.3), ((3.0, 1.0),), max_cost)
        among = calibrate(whole, (0.6, 0.0, 0.3), ((1.0, 1.0), (3.0, 1.0)), max_cost).held_to((3.0, 1.0))
        assert among.chosen == alone.chosen
        np.testing.assert_allclose(among.radii, alone.radii, rtol=1e-12, atol=1e-15)
        assert among.candidates[among.pooled] == Candidate(0.0, 1.0, 1.0)
        chosen.add(among.chosen.scale)
    assert len(chosen) > 1 or max_cost < math.inf


def test_one_number_a_candidate_and_fold_leaves_a_client_with_the_scores():
    whole = replace(problem(), ambiguity=WassersteinBall(0.0))
    scoring, message = FoldScores(), ScoresBroadcast(np.zeros((2, 5, 3)))
    clients = in_folds(whole, FoldSpec(2, 0))
    replies = all_replies(scoring, clients, jax.random.key(0), message, jnp.asarray(1))
    assert replies.loss.shape == (3, 2, 5)
    assert replies.rows.sum(axis=1).tolist() == list(SIZES.values())
    assert scoring.server(message, replies, jnp.array([True, False, True])) is message
    assert scoring.server(message, replies, jnp.ones(3, bool)).replies is replies


def test_moments_of_some_clients_are_not_taken_for_those_of_all():
    query, replies = FoldMoments(), object()
    assert query.server(MomentsBroadcast(), replies, np.array([True, False])) == MomentsBroadcast()
    assert query.server(MomentsBroadcast(), replies, np.ones(2, bool)).replies is replies


def test_a_client_alone_answers_as_it_does_among_the_others():
    """On its own machine, with bytes in and out, a client deals its own folds and sends the same reply."""
    whole = replace(problem(), ambiguity=WassersteinBall(0.0))
    algorithm, rng = FoldCuts(Exact()), np.random.default_rng(1)
    # Six solves of two radii, on two folds and on all rows, of which five go on.
    at = (rng.normal(size=(6, 3)), np.full(6, 0.1), np.arange(6) % 3, np.repeat([0.0, 1.0], 3))
    broadcast = CutsBroadcast(np.asarray(5), *at)
    together = all_replies(
        algorithm, in_folds(whole, FoldSpec(2, 7)), jax.random.key(0), broadcast, jnp.asarray(1)
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
        (lambda: calibrate(problem(), (1.0,), ((0.5, 1.0),)), "max_weight_ratio"),
        (lambda: calibrate(problem(), (1.0,), ((2.0, 1.5),)), "mixing"),
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
    assert not has_kinks(smooth, True)
    assert not has_kinks(priced, False)
    assert has_kinks(priced, True)
    assert has_kinks(replace(priced, ambiguity=WassersteinBall(0.1)), False)
    assert not has_kinks(replace(smooth, ambiguity=WassersteinBall(0.1)), False)
    assert has_kinks(replace(smooth, loss=Hinge(intercept=True)), False)


@pytest.mark.slow
def test_labels_at_a_price_take_few_rounds_and_models_are_those_of_a_solve():
    """To the gap of `FoldSolves`. With a radius the risk has a kink at 0, where the best models of robust
    candidates are: Newton's method went on there for all its 20 rounds."""
    whole = replace(problem("logistic"), transport=Transport.classification(3, 1.0, 1.0))
    found = calibrate(whole, (0.5, 2.0), ((1.5, 1.0), (math.inf, 1.0)), math.inf, folds=2, seed=3, spread=0.7)
    assert found.rounds <= 10
    fold_ids = whole.federation.folds(2, 3)
    for fold in range(2):
        part = Federation.from_arrays(parts_of(whole, fold_ids, lambda of, f=fold: of != f), "unbounded")
        for j, one in enumerate(found.candidates):
            ball = WassersteinBall(0.7 * one.scale / np.sqrt(part.sizes))
            mixtures = one.mixture_spec.mixtures(whole.federation.sizes)
            own = replace(whole, federation=part, ambiguity=ball, mixtures=mixtures)
            again, risk = solve(own, 1e-6), robust_risk(own, found.models[fold, j], curvature=False).value
            ours = float(mixtures.linear_maximum(jnp.asarray(risk))[0])
            assert again.lower - 1e-9 <= ours <= again.upper * (1 + 1e-3)
