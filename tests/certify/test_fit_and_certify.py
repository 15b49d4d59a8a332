"""What `fit` states of a model from held-out rows is what `certify` states of its predictions of them."""

import numpy as np
import pytest

from bidro import certify_predictions
from bidro.certify.rounding import EXACT, QUANTISED
from bidro.certify.statements import with_holdout, without_holdout
from bidro.fit import client_side
from bidro.fit.fit import fit
from bidro.fit.fitted import Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.losses import losses_of
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.losses.registry import LossChoice
from bidro.workflow.certify import Range, ScoredRows

ROUNDINGS = {"exact": EXACT, "quantised": QUANTISED}
CONFIDENCE = 0.95


def fitted(word, classes=None, by_people=False, **choices):
    """A fit with held-out rows; (what came of it, these rows by client, and whose these are)."""
    rng = np.random.default_rng(3)
    sizes = (150, 200, 120)
    features = rng.normal(size=(sum(sizes), 2))
    score = features @ [1.0, -0.5] + rng.standard_t(4, sum(sizes)) * np.repeat([0.5, 1.0, 2.0], sizes)
    score += np.repeat([-1.0, 0.0, 1.5], sizes)
    target = score if classes is None else np.where(score > 0, 1.0, -1.0)
    people = (np.arange(sum(sizes)) // 3).astype(str) if by_people else None
    owner = np.repeat(["a", "b", "c"], sizes)
    network = LocalNetwork.of(features, target, owner, ["u", "v", "y"], 0.4, 0, people)
    support = None if classes is not None else (np.full(3, -40.0), np.full(3, 40.0))
    found = fit(network, Options(LossChoice(word, classes), FitSettings(**choices), support))
    ends = np.cumsum(network.holdout_sizes)[:-1]
    fresh = dict(zip(network.names, np.split(network.fresh, ends), strict=True))
    labels = None
    if network.fresh_people is not None:
        labels = dict(zip(network.names, np.split(network.fresh_people, ends), strict=True))
    return found, fresh, labels


def scored_rows(found, fresh):
    """The model's predictions of numbers, and whose rows they are of."""
    rows = np.concatenate(list(fresh.values()))
    w, b = found.assessed.loss.split(found.assessed.x)
    clients = np.repeat([*fresh], [len(own) for own in fresh.values()])
    return Scored.numbers(rows[:, -1], rows[:, :-1] @ w + b), clients


def assert_same(ours, theirs, rel=0.0):
    """The same statement, number by number."""
    assert (ours is None) == (theirs is None)
    if ours is None:
        return
    for name in ("clients", "means", "rows"):
        assert dict(getattr(ours, name)) == pytest.approx(dict(getattr(theirs, name)), rel=rel, abs=0)
    for name in ("confidence", "level", "kind", "largest", "clipped", "mistakes", "people", "personal"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.bound == pytest.approx(theirs.bound, rel=rel, abs=0)
    if rel == 0 and not ours.people:
        assert ours.promise == theirs.promise


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_statements_of_a_number_are_the_same_to_the_digit(rounding, monkeypatch):
    """From the losses of the rows, and from predictions alone, whose losses are rounded as numbers are."""
    monkeypatch.setattr(client_side, "ROUNDING", ROUNDINGS[rounding])
    found, fresh, _ = fitted("squared", radius=0.0, weights="simplex", personal=None)
    ours, of = found.certificates[CONFIDENCE], found.assessed
    bare = without_holdout(found.stated, of.x, CONFIDENCE, distances=found.distances)
    theirs = with_holdout(bare, of, fresh, CONFIDENCE, rounding=ROUNDINGS[rounding])
    scored, clients = scored_rows(found, fresh)
    known = Range(of.largest, of.seen)
    loss = PredictedLoss("squared")
    alone = ScoredRows(scored, clients, loss, known).certificate(CONFIDENCE, rounding=ROUNDINGS[rounding])
    assert ours.clipped is not None
    assert ours.held_out is not None
    for part in ("clipped", "held_out", "mistakes", "personal"):
        assert_same(getattr(ours, part), getattr(theirs, part))
        # A prediction less the target is the residual but for the last digit, which steps do not show.
        assert_same(getattr(ours, part), getattr(alone, part), rel=1e-12 if rounding == "exact" else 0.0)


def test_with_rounding_numbers_are_no_lower_and_hardly_higher(monkeypatch):
    """By one step for the bound and half a step for the mean: a quarter of the largest loss over the rows."""
    found, fresh, _ = fitted("squared", radius=0.0, weights="simplex", personal=None)
    of, rounded = found.assessed, found.certificates[CONFIDENCE].clipped
    exact = with_holdout(found.certificates[CONFIDENCE], of, fresh, CONFIDENCE).clipped
    for name, rows in fresh.items():
        counted = np.minimum(losses_of(of.loss, of.x, rows), of.seen)
        width = 2.0 ** np.ceil(np.log2(counted.max())) / (4 * len(rows))
        assert abs(rounded.means[name] - exact.means[name]) <= 0.5 * width * (1 + 1e-9)
        assert 0 <= rounded.clients[name] - exact.clients[name] <= 1.5 * width * (1 + 1e-9)
        assert rounded.clients[name] != exact.clients[name]


@pytest.mark.parametrize("by_people", [False, True])
def test_with_personal_models_and_pooled_training_the_statements_are_the_same(by_people, monkeypatch):
    """Where numbers are as they are, whatever else is told beside them."""
    monkeypatch.setattr(client_side, "ROUNDING", EXACT)
    found, fresh, labels = fitted(
        "logistic", 2, by_people, radius=0.0, weights="auto", personal="auto", curves=None
    )
    ours, of = found.certificates[CONFIDENCE], found.assessed
    own = (
        {name: found.personal_models.get(name, of.x) for name in fresh} if ours.personal is not None else None
    )
    theirs = with_holdout(ours, of, fresh, CONFIDENCE, people=labels, personal=own)
    for part in ("clipped", "held_out", "mistakes", "personal", "personal_mistakes"):
        assert_same(getattr(ours, part), getattr(theirs, part))
    assert ours.personal_mistakes is not None


def test_mistakes_are_stated_alike_by_the_public_functions():
    """They are counts, and never rounded."""
    found, fresh, _ = fitted("logistic", 2, radius=0.0, weights="simplex", personal=None, curves=None)
    rows, of = np.concatenate(list(fresh.values())), found.assessed
    w, b = of.loss.split(of.x)
    clients = np.repeat([*fresh], [len(own) for own in fresh.values()])
    labels = np.where(rows[:, :-1] @ w + b > 0, 1, -1)
    alone = certify_predictions(rows[:, -1].astype(int), labels, clients, loss="mistakes")
    assert_same(found.certificates[CONFIDENCE].mistakes, alone.mistakes)
