"""Clients that come later, with few rows: with corrections, and with the shared model as it is."""

import math

import numpy as np
import pytest

from bidro import RobustClassifier, RobustRegressor
from bidro.losses import losses_of
from bidro.selection.personal import personal_models

ROWS = (5, 10, 20, 40)
FEATURES = 3


class Population:
    """Clients whose intercepts and slopes deviate by so much from common ones."""

    def __init__(self, rng, offsets, slopes, classes):
        self.rng, self.offsets, self.slopes, self.classes = rng, offsets, slopes, classes

    def client(self, sizes):
        """Parts of rows (X, y) of a new client, of these sizes."""
        w = np.array([1.0, -0.5, 0.0]) + self.slopes * self.rng.normal(size=FEATURES)
        b = self.offsets * self.rng.normal()
        X = self.rng.normal(size=(sum(sizes), FEATURES))
        score = X @ w + b
        y = np.where(self.rng.logistic(size=len(X)) < score, 1.0, -1.0)
        y = y if self.classes else score + self.rng.normal(size=len(X))
        ends = np.cumsum(sizes)[:-1]
        return list(zip(np.split(X, ends), np.split(y, ends), strict=True))


def changes(seed, offsets, slopes, classes=False, sizes=20 * (40,), newcomers=15):
    """(newcomers, ROWS) by which share a newcomer's loss on fresh rows is above the shared model's, if it has
    a correction from so many rows; None where no correction is made."""
    population = Population(np.random.default_rng(seed), offsets, slopes, classes)
    known = [population.client([count])[0] for count in sizes]
    X, y = (np.concatenate([one[k] for one in known]) for k in (0, 1))
    make = RobustClassifier if classes else RobustRegressor
    model = make(random_state=seed).fit(X, y, np.repeat([f"c{k:02}" for k in range(len(sizes))], sizes))
    freedom, loss = model._fitted.trained.personal.newcomers, model._assessed.loss
    if not freedom.any():
        return None
    found = np.empty((newcomers, len(ROWS)))
    for k in range(newcomers):
        few, fresh = (model.standard_.rows(*part) for part in population.client([max(ROWS), 400]))
        before = losses_of(loss, model.model_, fresh).mean()
        for j, rows in enumerate(ROWS):
            own = personal_models(loss, few[:rows], [rows], model.model_, freedom)[0]
            found[k, j] = losses_of(loss, own, fresh).mean() / before - 1
    return found


def mean_change(seeds, *args, **options):
    """(mean (ROWS,), its standard error over repetitions), where models without correction change nothing."""
    found = [changes(seed, *args, **options) for seed in seeds]
    means = np.array([np.zeros(len(ROWS)) if one is None else one.mean(axis=0) for one in found])
    return means.mean(axis=0), means.std(axis=0, ddof=1) / math.sqrt(len(means))


@pytest.mark.parametrize(
    ("offsets", "slopes", "sizes"),
    [
        (0.0, 0.0, 20 * (40,)),
        # Few large clients are in the next case too.
        pytest.param(0.0, 0.0, 5 * (400,), marks=pytest.mark.slow),
        (0.1, 0.05, 5 * (400,)),
        (0.2, 0.1, 20 * (40,)),
    ],
    ids=["alike", "few large and alike", "few large that hardly differ", "hardly differ"],
)
def test_newcomers_of_clients_that_hardly_differ_are_not_harmed(offsets, slopes, sizes):
    mean, error = mean_change(range(8), offsets, slopes, sizes=sizes)
    assert np.all(mean <= 2 * error + 1e-3)


@pytest.mark.parametrize(
    ("offsets", "slopes", "sizes", "gain"),
    [(1.0, 0.0, 20 * (40,), 0.15), (0.0, 0.7, 20 * (40,), 0.15), (1.0, 0.3, 5 * (400,), 0.15)],
    ids=["offsets", "slopes", "few large"],
)
def test_newcomers_of_clients_that_differ_gain_and_the_more_rows_the_more(offsets, slopes, sizes, gain):
    mean, error = mean_change(range(6), offsets, slopes, sizes=sizes)
    assert np.all(mean <= 2 * error)
    assert mean[-1] <= -gain
    assert mean[-1] <= mean[0]


@pytest.mark.slow
def test_newcomers_with_two_classes():
    mean, error = mean_change(range(4), 1.0, 0.0, classes=True, sizes=20 * (60,))
    assert np.all(mean < 0)
    mean, error = mean_change(range(4), 0.0, 0.0, classes=True, sizes=20 * (60,))
    assert np.all(mean <= 2 * error + 1e-3)
