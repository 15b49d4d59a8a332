"""Settings trained side by side against runs one by one."""

from dataclasses import replace

import numpy as np
import pytest

from bidro.ambiguity import Penalty
from bidro.data.federation import Federation
from bidro.federated.algorithms import BiDROFL
from bidro.federated.baselines import AFL, DRFA, GroupDRO
from bidro.federated.engines.in_process import run
from bidro.federated.engines.side_by_side import Trial, train_settings
from bidro.risk.inner import Exact
from tests.federated.cases import penalised
from tests.small import rows

SIZES, FOLDS, ROUNDS = (8, 12, 30), 3, 20
OF_ROW = np.concatenate([np.sort(np.arange(size) % FOLDS) for size in SIZES])


def problem(rho=20.0):
    made = penalised()
    fed = Federation.from_arrays(rows(sizes=SIZES), made.federation.support)
    return replace(made, federation=fed, ambiguity=rho and Penalty(rho))


def second_half(result):
    """The mean of the models of the second half of the rounds."""
    return 2 * result.x_average - result.history.x_average[0]


@pytest.mark.parametrize(
    "settings",
    [
        [Trial(AFL(eta, 0.1), problem(None)) for eta in (0.01, 0.05)],
        [Trial(BiDROFL(0.05, 0.02, Exact()), problem(rho)) for rho in (15.0, 30.0)],
        [Trial(GroupDRO(eta, 0.1), problem(None)) for eta in (0.05, 0.1)],
        [Trial(DRFA(eta, 0.1, 2, 2), problem(None)) for eta in (0.05, 0.1)],
    ],
    ids=["AFL", "BiDRO-FL", "Group DRO", "DRFA"],
)
def test_settings_side_by_side_are_runs_one_by_one(settings):
    """The last model is that of all rows; that of a fold is a run on the other folds' rows alone, where
    weights begin at the shares of all rows."""
    models = train_settings(settings, OF_ROW, FOLDS, ROUNDS, seed=5)
    assert models.shape == (2, FOLDS + 1, 3)
    for k, (algorithm, whole) in enumerate(settings):
        alone = run(algorithm, whole, ROUNDS, seed=5, record_every=ROUNDS // 2)
        np.testing.assert_allclose(models[k, -1], second_half(alone), rtol=1e-9)


def test_a_fold_is_left_out():
    """AFL with fixed steps in x alone, so that nothing hangs on the shares of rows."""
    settings = [Trial(AFL(0.05, 0.0), problem(None))]
    models = train_settings(settings, OF_ROW, FOLDS, ROUNDS, seed=5)
    whole = settings[0].problem
    owner = np.repeat(np.arange(3), SIZES)
    samples = np.asarray(whole.federation.samples)
    for fold in range(FOLDS):
        x, states, shares = np.zeros(3), [], np.array(SIZES) / sum(SIZES)
        for _ in range(ROUNDS):
            states.append(x)
            gradient = np.zeros(3)
            for i in range(3):
                part = samples[(owner == i) & (fold != OF_ROW)]
                gradient += shares[i] * 2 * part[:, :3].T @ (part[:, :3] @ x - part[:, 3]) / len(part)
            x = np.clip(x - 0.05 * gradient, -1.5, 1.5)
        np.testing.assert_allclose(models[0, fold], np.mean(states[ROUNDS // 2 :], axis=0), rtol=1e-9)


def test_rows_of_a_fold_are_never_drawn():
    """One row a round: poison in the fold that is left out leaves no trace, and elsewhere does."""
    made = problem(None)
    samples = made.federation.samples.copy()
    samples[OF_ROW == 1] = 3.0
    poisoned = made.with_samples(samples)
    clean, dirty = (
        train_settings([Trial(GroupDRO(0.05, 0.1), one)], OF_ROW, FOLDS, 200) for one in (made, poisoned)
    )
    np.testing.assert_array_equal(clean[0, 1], dirty[0, 1])
    assert all(np.abs(clean[0, k] - dirty[0, k]).max() > 1e-3 for k in (0, 2, 3))


def test_a_setting_that_runs_away_spoils_nobody_else():
    settings = [Trial(AFL(eta, 0.1), problem(None)) for eta in (0.05, 1e200)]
    models = train_settings(settings, OF_ROW, FOLDS, ROUNDS)
    alone = train_settings(settings[:1], OF_ROW, FOLDS, ROUNDS)
    np.testing.assert_allclose(models[0], alone[0], rtol=1e-12)
