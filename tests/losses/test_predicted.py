"""Losses of predictions beside scikit-learn's, and one sentence for predictions that cannot be used."""

import numpy as np
import pytest
from sklearn import metrics

from bidro.core.errors import BidroError
from bidro.losses.predicted import PredictedLoss, Scored

CLASSES = ("a", "b", "c")


@pytest.fixture
def numbers():
    rng = np.random.default_rng(0)
    return rng.normal(size=80), rng.normal(size=80)


def probabilities(classes=CLASSES, rows=80):
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(len(classes)), rows)
    return np.array(rng.choice(classes, rows)), shares


def test_losses_of_numbers(numbers):
    true, said = numbers
    of = Scored.numbers(true, said)
    for word, expected in (
        ("squared", metrics.mean_squared_error(true, said)),
        ("absolute", metrics.mean_absolute_error(true, said)),
    ):
        assert PredictedLoss(word).values(of).mean() == pytest.approx(expected, rel=1e-12)
    for quantile in (0.1, 0.5, 0.8):
        expected = metrics.mean_pinball_loss(true, said, alpha=quantile)
        assert PredictedLoss("pinball", quantile).values(of).mean() == pytest.approx(expected, rel=1e-12)
    assert of.mistakes is None
    assert PredictedLoss("squared").largest(0) is None
    assert PredictedLoss("squared").unit("stay") == "stay²"
    assert PredictedLoss("absolute").in_words == "absolute error"


def test_losses_of_classes():
    true, shares = probabilities()
    of = Scored.probabilities(true, shares, CLASSES)
    expected = metrics.log_loss(true, shares, labels=CLASSES)
    assert PredictedLoss("log loss").values(of).mean() == pytest.approx(expected, rel=1e-12)
    wrong = 1 - metrics.accuracy_score(true, np.array(CLASSES)[shares.argmax(axis=1)])
    assert PredictedLoss("mistakes").values(of).mean() == pytest.approx(wrong)
    labelled = Scored.labels(true, np.array(CLASSES)[shares.argmax(axis=1)])
    np.testing.assert_array_equal(labelled.mistakes, of.mistakes)
    by_hand = [sum((shares[k, j] - (true[k] == CLASSES[j])) ** 2 for j in range(3)) for k in range(len(true))]
    np.testing.assert_allclose(PredictedLoss("brier").values(of), by_hand, rtol=1e-12)
    assert PredictedLoss("brier").largest(3) == 2.0


def test_the_brier_score_of_two_classes_is_half_the_sum():
    true, shares = probabilities(("no", "yes"))
    of = Scored.probabilities(true, shares, ("no", "yes"))
    expected = metrics.brier_score_loss(true, shares[:, 1], pos_label="yes")
    assert PredictedLoss("brier").values(of).mean() == pytest.approx(expected, rel=1e-12)
    assert PredictedLoss("brier").largest(2) == 1.0
    sure = Scored.probabilities(np.array(["no", "no"]), np.array([[0.0, 1.0], [1.0, 0.0]]), ("no", "yes"))
    assert PredictedLoss("brier").values(sure).tolist() == [1.0, 0.0]
    assert PredictedLoss("log loss").values(sure).tolist() == [np.inf, 0.0]


def test_rounded_probabilities_are_divided_out():
    thirds = np.full((2, 3), 0.333)
    of = Scored.probabilities(np.array(["a", "b"]), thirds, CLASSES)
    np.testing.assert_allclose(of.predicted, 1 / 3, rtol=1e-15)


def changed(shares, place, value):
    found = shares.copy()
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda t, s: Scored.probabilities(t, changed(s, 3, [0.5, 0.5, 0.5]), CLASSES),
            "Row 3: .* sum to 1.5",
        ),
        (lambda t, s: Scored.probabilities(t, changed(s, 3, np.nan), CLASSES), "Row 3 has a probability"),
        (lambda t, s: Scored.probabilities(t, changed(s, 3, [1.5, -0.5, 0]), CLASSES), "Row 3 has a prob"),
        (lambda t, s: Scored.probabilities(np.where(t == "c", "d", t), s, CLASSES), "for the class 'd'"),
        (lambda t, s: Scored.probabilities(np.where(t == "c", "", t), s, CLASSES), "has no class"),
        (lambda t, s: Scored.probabilities(t, s[:, :2], CLASSES), "a column for every class, 3"),
        (lambda t, s: Scored.probabilities(t, s, ("a", "a", "b")), "different classes"),
        (lambda t, s: Scored.probabilities(t[1:], s, CLASSES), "79 targets but predictions of 80"),
        (lambda t, s: Scored.labels(t, np.where(t == "a", "", t)), "has no predicted class"),
        (lambda t, s: Scored.labels(t, np.full(len(t), "True")), "'True', is a class of the target"),
        (lambda t, s: Scored.numbers(s[:, 0], changed(s, 7, np.inf)[:, 0]), "Row 7 has no prediction"),
        (lambda t, s: Scored.numbers(changed(s, 7, np.nan)[:, 0], s[:, 0]), "Row 7 has no target"),
        (lambda t, s: Scored.numbers(s[:1, 0], s[:1, 0]), "too few rows"),
        (lambda t, s: Scored.numbers(s[:2, 0], s[:1, 0]), "2 targets but predictions of 1"),
        (lambda t, s: PredictedLoss("logistic"), "loss must be one of squared, absolute"),
        (lambda t, s: PredictedLoss("pinball", 1.0), "quantile"),
        (lambda t, s: PredictedLoss("squared").values(Scored.labels(t, t)), "for numbers"),
        (lambda t, s: PredictedLoss("mistakes").values(Scored.numbers(s[:, 0], s[:, 1])), "for classes"),
        (lambda t, s: PredictedLoss("brier").values(Scored.labels(t, t)), "a probability of every class"),
    ],
)
def test_one_sentence_for_what_cannot_be_used(made, words):
    with pytest.raises(BidroError, match=words):
        made(*probabilities())
