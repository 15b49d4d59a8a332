"""Certificates of models that were not trained here: coverage, ranges of losses, and what is left out."""

import json
import math

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import held_out_bound
from bidro.core.errors import BidroError
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.workflow.certify import Range, ScoredRows

CONFIDENCE, REPETITIONS, CLIENTS = 0.9, 500, ("a", "b", "c")
ALLOWED = CONFIDENCE - 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / REPETITIONS)
SQUARED = PredictedLoss("squared")


def population(rng, client, rows):
    """(features (N, 2), targets (N,)) of a client; a few rows are far off, and of 20 there may be none."""
    features = rng.uniform(size=(rows, 2))
    far = 6.0 * (rng.uniform(size=rows) < {"a": 0.01, "b": 0.03, "c": 0.1}[client])
    noise = rng.normal(size=rows) * (0.2 + 0.3 * CLIENTS.index(client))
    return features, np.sin(6 * features[:, 0]) + features[:, 1] * CLIENTS.index(client) + noise + far


def stumps(features):
    """A boosted model with three steps, made by hand."""
    steps = ((0, 0.5, 1.2, -0.5), (0, 0.9, -0.2, 0.4), (1, 0.5, -0.1, 0.6))
    return sum(np.where(features[:, j] < at, low, high) for j, at, low, high in steps)


def constant(features):
    return np.full(len(features), 0.8)


class Truth:
    """The true mean clipped loss, and that of the difference of two models, from many rows of a client."""

    def __init__(self, model, other=None, rows=100_000):
        rng = np.random.default_rng(0)
        self.losses = {}
        for name in CLIENTS:
            features, target = population(rng, name, rows)
            own = (model(features) - target) ** 2
            self.losses[name] = own, None if other is None else (other(features) - target) ** 2

    def worst(self, level):
        def mean(own, other):
            clipped = np.minimum(own, level)
            return (clipped if other is None else clipped - np.minimum(other, level)).mean()

        return max(mean(*both) for both in self.losses.values())


def table(rng, model, rows, other=None):
    """(scored, clients, scored by the other model), sorted by client and target."""
    parts = {name: population(rng, name, rows) for name in CLIENTS}
    order = {name: np.argsort(target) for name, (_, target) in parts.items()}
    features = np.concatenate([parts[name][0][order[name]] for name in CLIENTS])
    target = np.concatenate([parts[name][1][order[name]] for name in CLIENTS])
    second = None if other is None else Scored.numbers(target, other(features))
    return Scored.numbers(target, model(features)), np.repeat(CLIENTS, rows), second


def observed(model, other, repetitions, rows, seed):
    """How often the bounds hold: of the loss, clipped at the largest on other rows, and of the difference."""
    # The clip level differs from time to time; the truth for it is between those of two of these.
    levels, alone = np.geomspace(0.05, 200, 60), Truth(model)
    of_loss = np.array([alone.worst(level) for level in levels])
    pair = Truth(model, other, 40_000)
    held = held_pair = 0
    for k in range(repetitions):
        rng = np.random.default_rng([seed, k])
        scored, clients, second = table(rng, model, rows, other)
        known = Range.of(SQUARED, scored, None, table(rng, model, 30)[0])
        found = ScoredRows(scored, clients, SQUARED, known, against=second).certificate(CONFIDENCE)
        # The truth rises with the level: that of the next level above is the harder one to hold.
        held += found.clipped.bound >= of_loss[np.searchsorted(levels, known.clip)]
        held_pair += found.against.bound >= pair.worst(known.clip)
    return held / repetitions, held_pair / repetitions


@pytest.mark.parametrize("model", [stumps, constant], ids=lambda f: f.__name__)
def test_bounds_of_twenty_rows_a_client_hold_as_often_as_promised(model):
    """A fast part of the slow test below, with a clip level that stays."""
    level, held = 30.0, 0
    truth = Truth(model, rows=200_000).worst(level)
    known = Range(None, level)
    for k in range(REPETITIONS):
        scored, clients, _ = table(np.random.default_rng([1, k]), model, 20)
        found = ScoredRows(scored, clients, SQUARED, known).certificate(CONFIDENCE)
        held += found.clipped.bound >= truth
    assert held / REPETITIONS >= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 100])
@pytest.mark.parametrize("kind", ["boosted", "constant"])
def test_coverage_of_boosted_and_constant_models(kind, rows):
    rng = np.random.default_rng(5)
    parts = [population(rng, name, 200) for name in CLIENTS]
    features, target = (np.concatenate(each) for each in zip(*parts, strict=True))
    boosted = GradientBoostingRegressor(n_estimators=60, random_state=0).fit(features, target).predict
    models = (boosted, constant) if kind == "boosted" else (constant, boosted)
    for share in observed(*models, REPETITIONS, rows, seed=rows):
        assert share >= ALLOWED


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 100])
@pytest.mark.parametrize("word", ["log loss", "brier", "mistakes"])
def test_coverage_for_classes(word, rows):
    """Of a boosted classifier; log loss counts as at most 4 nats."""

    def drawn(rng, name, count):
        features = rng.uniform(size=(count, 2))
        rate = np.clip(0.1 + 0.2 * CLIENTS.index(name) + 0.3 * (features[:, 0] > 0.8), 0, 1)
        return features, np.where(rng.uniform(size=count) < rate, "yes", "no")

    rng, loss = np.random.default_rng(6), PredictedLoss(word)
    features, target = (np.concatenate(e) for e in zip(*(drawn(rng, n, 200) for n in CLIENTS), strict=True))
    model = GradientBoostingClassifier(n_estimators=60, random_state=0).fit(features, target)

    def scored(rng, count):
        parts = [drawn(rng, name, count) for name in CLIENTS]
        rows, target = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Scored.probabilities(target, model.predict_proba(rows), [*model.classes_])

    many = loss.values(scored(rng, 100_000)).reshape(len(CLIENTS), -1)
    known = Range(None, 4.0) if word == "log loss" else Range(loss.largest(2))
    truth, held = np.minimum(many, 4.0).mean(axis=1).max(), 0
    for k in range(REPETITIONS):
        found = ScoredRows(
            scored(np.random.default_rng([7, k]), rows), np.repeat(CLIENTS, rows), loss, known
        ).certificate(CONFIDENCE)
        held += (found.clipped or found.held_out or found.mistakes).bound >= truth
    assert held / REPETITIONS >= ALLOWED


def test_no_order_of_rows_counts():
    rng = np.random.default_rng(2)
    scored, clients, second = table(rng, stumps, 40, constant)
    other = table(rng, stumps, 40)[0]
    known, people = Range.of(SQUARED, scored, 90.0, other), rng.integers(0, 50, len(clients)).astype(str)
    found = ScoredRows(scored, clients, SQUARED, known, people, second).certificate(0.9).to_json()
    for _ in range(3):
        at = rng.permutation(len(clients))
        mixed, pair = (Scored(one.target[at], one.predicted[at]) for one in (scored, second))
        known = Range.of(SQUARED, mixed, 90.0, other)
        assert (
            ScoredRows(mixed, clients[at], SQUARED, known, people[at], pair).certificate(0.9).to_json()
            == found
        )


def test_statements_are_those_of_the_losses():
    scored, clients, _ = table(np.random.default_rng(3), stumps, 40)
    losses = {name: ((scored.predicted - scored.target) ** 2)[clients == name] for name in CLIENTS}
    found = ScoredRows(scored, clients, SQUARED, Range(90.0, 5.0, "Said.")).certificate(0.9)
    assert found.held_out.bound == held_out_bound(losses, 0.9, 90.0).bound
    assert found.clipped.bound == held_out_bound(losses, 0.9, 5.0, clipped=True).bound
    assert not found.trained
    assert found.mistakes is found.against is found.interval is found.shift is None
    assert sorted(found.absent) == ["interval", "shift"]
    shown = str(found)
    assert "This model was not trained here. Said." in shown
    assert "fresh rows" in shown
    assert "trained on " not in shown.split("absent", 1)[0]
    assert Certificate.from_json(found.to_json()).to_json() == found.to_json()


def test_a_comparison_is_in_the_file_and_only_where_there_is_one():
    scored, clients, second = table(np.random.default_rng(4), stumps, 200, constant)
    alone = ScoredRows(scored, clients, SQUARED, Range(None, 50.0)).certificate(0.9)
    assert '"against"' not in alone.to_json()
    found = ScoredRows(scored, clients, SQUARED, Range(None, 50.0), against=second).certificate(0.9)
    again = Certificate.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert again.against.promise == found.against.promise
    assert found.against.verdict in str(found)
    assert "its bound" in str(found)
    for part, value in (("bound", None), ("vacuous", True), ("rows", 3), ("more", 1)):
        content = json.loads(found.to_json())
        content["against"][part] = value
        with pytest.raises(BidroError, match="damaged"):
            Certificate.from_json(json.dumps(content))


def test_classes_and_units():
    rng = np.random.default_rng(5)
    target = rng.choice(["no", "yes"], 120)
    chance = np.clip(np.where(target == "yes", 0.7, 0.3) + 0.2 * rng.normal(size=120), 0.01, 0.99)
    scored = Scored.probabilities(target, np.column_stack([1 - chance, chance]), ["no", "yes"])
    clients, people = np.repeat(["a", "b"], 60), np.repeat(np.arange(40).astype(str), 3)
    for word in ("brier", "mistakes"):
        loss = PredictedLoss(word)
        known = Range.of(loss, scored, None, None)
        rows = ScoredRows(scored, clients, loss, known).certificate(0.9)
        wrong = {name: scored.mistakes[clients == name] for name in ("a", "b")}
        assert rows.mistakes.bound == held_out_bound(wrong, 0.9, kind="clopper-pearson").bound
        assert (rows.held_out is None) == (word == "mistakes")
        by_people = ScoredRows(scored, clients, loss, known, people).certificate(0.9)
        assert by_people.mistakes.rows == {"a": 20, "b": 20}
        assert by_people.mistakes.kind == "betting"
        assert by_people.mistakes.mistakes
        assert "fresh people" in str(by_people)
        pair = ScoredRows(scored, clients, loss, known, against=scored).certificate(0.9).against
        assert pair.mistakes == (word == "mistakes")
        assert set(pair.means.values()) == {0.0}
        with pytest.raises(BidroError, match="by itself; give neither"):
            Range.of(loss, scored, 3.0, None)


def test_where_a_clip_level_may_come_from():
    rng = np.random.default_rng(6)
    scored, other = table(rng, stumps, 40)[0], table(rng, stumps, 40)[0]
    known = Range.of(SQUARED, scored, None, other)
    assert known.clip == ((other.predicted - other.target) ** 2).max()
    assert known.note is None
    assert "the largest on 120 other rows" in known.origin
    assert "declared by the user" in Range.of(SQUARED, scored, 90.0, None).origin

    def some(places):
        return Scored(scored.target[places], scored.predicted[places])

    for same in (some(slice(None)), some(rng.permutation(120)), some(slice(0, 60)), some(slice(0, 30))):
        with pytest.raises(BidroError, match="those to certify"):
            Range.of(SQUARED, scored, None, same)
    with pytest.raises(BidroError, match="those to certify"):
        Range.of(SQUARED, scored, None, Scored(scored.target, np.zeros(120)))
    few = Scored(np.append(other.target, scored.target[:2]), np.append(other.predicted, scored.predicted[:2]))
    assert Range.of(SQUARED, scored, None, few).note.startswith("2 of the other rows")
    with pytest.raises(BidroError, match="no largest value of its own"):
        Range.of(SQUARED, scored, None, None)
    for wrong in (0.0, -1.0, math.inf, math.nan, "3"):
        with pytest.raises(BidroError, match="must be a finite number above 0"):
            Range.of(SQUARED, scored, wrong, None)
    with pytest.raises(BidroError, match=r"losses outside \[0, 0.1\]"):
        ScoredRows(
            scored, np.repeat(CLIENTS, 40), SQUARED, Range.of(SQUARED, scored, 0.1, None)
        ).certificate()


def test_alike_by_chance_is_no_reason_to_refuse():
    """A constant prediction of few whole numbers: rows are equal everywhere."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one, two = (Scored(rng.poisson(3, n).astype(float), np.full(n, 3.0)) for n in (60, 200))
        assert Range.of(SQUARED, one, None, two).note is None
        # As many rows of each class on both sides, as where rows were chosen so.
        true, shares = np.repeat(["a", "b"], 30), rng.dirichlet([1, 1], (2, 60))
        one, two = (Scored.probabilities(true, each, ["a", "b"]) for each in shares)
        assert Range.of(PredictedLoss("log loss"), one, None, two).note is None


def test_an_infinite_log_loss_gives_no_clip_level():
    true, sure = np.array(["a", "b"] * 10), np.tile([1.0, 0.0], (20, 1))
    other = Scored.probabilities(true, sure, ["a", "b"])
    fair = Scored.probabilities(true, np.full((20, 2), 0.5), ["a", "b"])
    with pytest.raises(BidroError, match="is infinite"):
        Range.of(PredictedLoss("log loss"), fair, None, other)


def test_where_nothing_is_said_the_confidence_of_statements_is_0_95():
    scored, clients, _ = table(np.random.default_rng(3), stumps, 40)
    found = ScoredRows(scored, clients, SQUARED, Range(90.0, None)).certificate()
    assert found.confidence == found.held_out.confidence == 0.95
