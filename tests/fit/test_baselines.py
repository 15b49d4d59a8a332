"""What a model is held against: one guess for everybody, and shares of wrong predictions."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bidro.data.standardise import Standard
from bidro.fit.baselines import baselines_of_replies, baselines_of_rows, ranking_of
from bidro.fit.client_side import prepared
from bidro.fit.questions import HoldoutBounds
from bidro.losses import Absolute, Gamma, Huber, Logistic, Pinball, Poisson, Softmax, Squared, Tweedie

SIZES = (5, 7)
RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(12, 3))
TARGETS = RNG.normal(size=40)
PARTS = (ROWS[:5, -1], ROWS[5:, -1])


def huber(u):
    return np.where(np.abs(u) <= 0.5, u**2 / 2, 0.5 * (np.abs(u) - 0.25))


@pytest.mark.parametrize(
    ("loss", "middle", "cost"),
    [
        (Squared(True), TARGETS.mean(), lambda u: u**2),
        (Squared(False), TARGETS.mean(), lambda u: u**2),
        (Absolute(True), np.median(TARGETS), np.abs),
        (Huber(True, threshold=0.5), np.median(TARGETS), huber),
        (
            Pinball(True, quantile=0.8),
            np.quantile(TARGETS, 0.8),
            lambda u: np.where(u > 0, 0.8 * u, -0.2 * u),  # u is the target less the guess
        ),
    ],
)
@pytest.mark.parametrize("held_out", [True, False])
def test_a_number_is_guessed_by_the_middle_of_the_training_rows(loss, middle, cost, held_out):
    zero = np.zeros((2, loss.dimension(3)))
    found = baselines_of_rows(loss, TARGETS, ROWS, SIZES, {"shared": zero}, held_out)
    wanted = [cost(own - middle).mean() for own in PARTS]
    assert found.guess.value == pytest.approx(middle)
    np.testing.assert_allclose(found.guess.costs, wanted)
    assert found.guess.held_out is held_out
    np.testing.assert_allclose(found.costs["shared"], [cost(own).mean() for own in PARTS])


@pytest.mark.parametrize("loss", [Poisson(True), Gamma(True), Tweedie(1.4, True)])
def test_of_counts_and_costs_people_read_the_absolute_error_beside_that_of_the_mean(loss):
    rows, targets = ROWS.copy(), np.array([1.0, 4.0, 2.0, 9.0])
    rows[:, -1] = np.arange(1.0, len(rows) + 1)
    model = np.array([0.3, -0.2, 1.1])
    found = baselines_of_rows(loss, targets, rows, SIZES, {"shared": np.tile(model, (2, 1))}, True)
    parts = np.split(rows, np.cumsum(SIZES)[:-1])
    assert np.exp(found.guess.value) == pytest.approx(4.0)
    np.testing.assert_allclose(found.guess.costs, [np.abs(own[:, -1] - 4.0).mean() for own in parts])
    wanted = [np.abs(own[:, -1] - np.exp(own[:, :2] @ model[:2] + model[2])).mean() for own in parts]
    np.testing.assert_allclose(found.costs["shared"], wanted)


def test_a_class_is_guessed_by_the_commonest_and_mistakes_are_counted():
    rows = ROWS.copy()
    rows[:, -1] = [0, 1, 2, 2, 2, 1, 1, 0, 2, 0, 1, 1]
    targets = np.array([2.0] * 5 + [1.0] * 4)
    model = RNG.normal(size=9)
    loss = Softmax(3, True)
    split_w, split_b = loss.split(model)
    predicted = np.argmax(rows[:, :2] @ np.asarray(split_w).T + np.asarray(split_b), axis=1)
    found = baselines_of_rows(loss, targets, rows, SIZES, {"shared": np.tile(model, (2, 1))}, True)
    assert found.guess.value == 2
    np.testing.assert_allclose(found.guess.costs, [2 / 5, 6 / 7])
    wrong = predicted != rows[:, -1]
    np.testing.assert_allclose(found.costs["shared"], [wrong[:5].mean(), wrong[5:].mean()])


def test_what_sites_have_told_gives_the_same_guess_over_training_rows():
    offered = np.ones((2, 5))
    told = prepared(ROWS, SIZES, (2, 2), offered)
    standard = Standard(np.zeros(2), np.ones(2), 0.25, 1.0)
    shifted = ROWS - [0, 0, 0.25]
    by_rows = baselines_of_rows(Squared(True), shifted[:, -1], shifted, SIZES, {}, False).guess
    by_moments = baselines_of_replies(Squared(True), told, standard, None, False).guess
    assert by_moments.value == pytest.approx(by_rows.value)
    np.testing.assert_allclose(by_moments.costs, by_rows.costs)
    assert not by_moments.held_out
    # Of other losses, and of more than two classes, means and deviations do not tell it.
    assert baselines_of_replies(Absolute(True), told, standard, None, False).guess is None
    assert baselines_of_replies(Softmax(3, True), told, standard, None, False).guess is None


@pytest.mark.parametrize("commonest", [-1.0, 1.0])
def test_two_classes_are_guessed_by_their_shares_and_mistakes_are_as_told(commonest):
    rows = ROWS.copy()
    rows[:, -1] = np.where(np.arange(12) % 3 == 0, -commonest, commonest)
    offered = np.ones((2, 5))
    told = prepared(rows, SIZES, (2, 2), offered)
    standard = Standard(np.zeros(2), np.ones(2), 0.0, 1.0)
    bounds = HoldoutBounds.like(1, False, True, True, True)._replace(
        means=np.array([[0.4, 0, 0.2, 0.3, 0.1], [0.5, 0, 0.25, 0.3, 0.15]])
    )
    found = baselines_of_replies(Logistic(True), told, standard, bounds, True)
    by_rows = baselines_of_rows(Logistic(True), rows[:, -1], rows, SIZES, {}, False).guess
    assert found.guess.value == by_rows.value == commonest
    np.testing.assert_allclose(found.guess.costs, by_rows.costs)
    np.testing.assert_allclose(found.costs["shared"], [0.2, 0.25])
    np.testing.assert_allclose(found.costs["personal"], [0.1, 0.15])
    np.testing.assert_allclose(
        baselines_of_replies(Logistic(True), told, standard, bounds, False).costs["personal"], [0.2, 0.25]
    )


def test_rankings_of_a_rare_class_are_those_of_scikit_learn_and_of_counting():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = np.round(rng.normal(size=200), 1 if seed % 2 else 9)  # with ties and without
        rare = rng.random(200) < 0.05 + 0.4 * (scores > 1)
        found = ranking_of(scores, rare, 1.0)
        np.testing.assert_allclose(found.area, roc_auc_score(rare, scores))
        assert found.share == rare.mean()
        if not seed % 2:
            top = np.argsort(-scores)[:20]
            np.testing.assert_allclose(found.lift, rare[top].mean() / rare.mean())
    alike = ranking_of(np.zeros(50), np.arange(50) < 10, 1.0)
    assert (alike.area, alike.lift) == (0.5, pytest.approx(1.0))


def test_scores_of_either_class_rank_by_the_rarer_one():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=(300, 2)), np.ones(300)])
    model = np.array([1.0, -0.5])
    rows[:, -1] = np.where(rows[:, :-1] @ model + rng.logistic(size=300) > 2, 1.0, -1.0)
    for sign in (1.0, -1.0):
        turned = rows * [1, 1, sign]
        found = baselines_of_rows(
            Logistic(), turned[:, -1], turned, [100, 200], {"shared": np.tile(sign * model, (2, 1))}, True
        )
        area = roc_auc_score(rows[:, -1] > 0, rows[:, :-1] @ model)
        assert found.rankings["shared"].label == sign
        np.testing.assert_allclose(found.rankings["shared"].area, area)
