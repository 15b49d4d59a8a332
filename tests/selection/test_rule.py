"""The cost of robustness: which candidate is taken."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.selection.calibrate import calibrate
from bidro.selection.rule import (
    MIXTURE_SPECS,
    LeftOut,
    check_max_cost,
    choice,
    worst_decile,
    worst_fifth,
)
from tests.selection.test_calibrate import problem


def left_out(by_candidate, noise=0.0, folds=5, seed=0):
    """Losses (n, candidates) as those of every fold, with noise of the folds' own."""
    rng = np.random.default_rng(seed)
    losses = np.asarray(by_candidate, float).T[None] + noise * rng.normal(
        size=(folds, *np.shape(by_candidate)[::-1])
    )
    return LeftOut(losses, np.full(losses.shape[:2], 20.0))


POOLED = [1.0, 1.0, 1.0, 1.0, 2.0]
BETTER = [1.01, 1.01, 1.01, 1.01, 1.9]  # its mean is lower, by 0.06 / 5 +- 0.02
DEARER = [1.2, 1.2, 1.2, 1.2, 1.5]  # its mean is 5% higher, +- 11%


def test_the_best_worst_fifth_within_the_largest_cost():
    found = left_out([POOLED, BETTER, DEARER])
    assert choice(found, 0, 0.02) == 1
    assert choice(found, 0, 0.1) == 1
    assert choice(found, 0, 0.2) == 2
    assert choice(found, 0, math.inf) == 2


def test_nothing_dearer_is_taken_at_no_cost():
    dearer = [1.001, 1.001, 1.001, 1.001, 1.997]
    assert np.mean(dearer) > np.mean(POOLED) - 1e-3
    assert choice(left_out([POOLED, [v + 0.01 for v in dearer]]), 0, 0.0) == 0


def test_a_gain_within_its_noise_is_none():
    """The same gain is taken where folds agree on it and not where they do not."""
    assert choice(left_out([POOLED, BETTER], noise=0.001), 0, 0.02) == 1
    noisy = left_out([POOLED, BETTER], noise=0.3, seed=4)
    gain, error = (part[1] for part in noisy.gain(0))
    assert 0 < gain < 2 * error
    assert choice(noisy, 0, 0.5) == 0
    assert choice(noisy, 0, math.inf) == 1


def test_what_gains_less_than_it_pays_is_not_taken():
    """Shares of the worst tenth and of the mean, as they are told."""
    pooled = [1.0] * 8 + [1.5, 2.0]
    paying, gaining = [1.008] * 8 + [1.48, 1.998], [1.008] * 8 + [1.48, 1.95]
    found = left_out([pooled, paying, gaining])
    rise = found.means / found.means[0] - 1
    fall = 1 - worst_decile(found.pooled) / worst_decile(found.pooled)[0]
    assert rise[1] == pytest.approx(0.0037, abs=1e-4)
    assert fall[1] == pytest.approx(0.001)
    # Its worst fifth is lower and its cost is low.
    (gain, error), (cost, error_of_cost) = found.gain(0), found.cost(0)
    assert gain[1] > 3 * error[1] + 0.01
    assert cost[1] + 1.2 * error_of_cost[1] < 0.02 * found.means[0]
    assert choice(left_out([pooled, paying]), 0, 0.02) == 0
    assert choice(left_out([pooled, paying]), 0, math.inf) == 1
    assert choice(left_out([pooled, paying, gaining]), 0, 0.02) == 2
    net, _ = found.net(0)
    assert net == pytest.approx(fall - rise)


def test_a_net_gain_within_its_noise_is_none():
    """The worst tenth is one client's, on which the folds do not agree."""
    pooled, gaining = [1.0] * 9 + [2.0], [1.0] * 8 + [0.9, 1.97]
    assert choice(left_out([pooled, gaining], noise=1e-3), 0, 0.02) == 1
    apart = left_out([pooled, gaining])
    apart.losses[:, -1, 1] += [0.08, -0.08, 0.04, -0.04, 0.0]
    gain, error = apart.net(0)
    assert 0 < gain[1] < 2 * error[1]
    assert choice(apart, 0, 0.02) == 0


def test_where_pooled_training_makes_no_errors_nothing_is_gained():
    assert choice(left_out([[0.0] * 5, [0.0] * 5]), 0, 0.02) == 0


def test_a_second_best_beyond_doubt_is_taken():
    """The best by a noisy hair does not stand in the way of the one that is surely better."""
    sure = left_out([POOLED, BETTER])
    noisy = np.repeat(np.array([[1.0, 1.0, 1.0, 1.0, 1.85]]), 5, axis=0)
    noisy[:, -1] += [1.0, -1.0, 1.2, -1.2, 0.0]
    losses = np.concatenate([sure.losses, noisy[..., None]], axis=2)
    found = LeftOut(losses, sure.rows)
    assert np.argmin(worst_fifth(found.pooled)) == 2
    assert choice(found, 0, 0.02) == 1


def test_the_error_of_a_gain_is_that_of_the_clients_means_over_their_folds():
    """For one client it is the usual standard error; for several it is that of a sum of independent parts."""
    rng = np.random.default_rng(1)
    losses = rng.uniform(size=(7, 1, 2))
    gain, error = LeftOut(losses, np.full((7, 1), 3.0)).gain(0)
    apart = losses[:, 0, 0] - losses[:, 0, 1]
    assert gain.tolist() == pytest.approx([0, apart.mean()])
    assert error.tolist() == pytest.approx([0, apart.std(ddof=1) / math.sqrt(7)])


def test_the_error_of_a_gain_by_simulation():
    """Ten clients, two of them the worst fifth under both: the spread of gains over draws is what is said."""
    rng = np.random.default_rng(2)
    base = np.array([1.0] * 8 + [3.0, 3.0])
    truth = np.stack([base, base - 0.2], axis=1)
    found = [
        LeftOut(truth + 0.3 * rng.normal(size=(5, 10, 2)), np.full((5, 10), 8.0)).gain(0) for _ in range(2000)
    ]
    gains, errors = (np.array([one[k][1] for one in found]) for k in (0, 1))
    assert gains.mean() == pytest.approx(0.2, abs=4 * gains.std() / math.sqrt(2000))
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(gains.std(), rel=0.1)


def test_the_error_of_a_cost_is_at_least_that_over_clients():
    """Folds agree to the last digit, and clients do not: what a new client pays is as uncertain as that."""
    by_client = np.array([0.0, 0.0, 0.0, 0.5])
    losses = np.stack([np.ones(4), 1 + by_client], axis=1)[None].repeat(3, axis=0)
    cost, error = LeftOut(losses, np.full((3, 4), 10.0)).cost(0)
    assert cost[1] == pytest.approx(0.125)
    assert error[1] == pytest.approx(by_client.std(ddof=1) / 2)
    assert choice(LeftOut(losses, np.full((3, 4), 10.0)), 0, 0.13) == 0


def test_means_count_rows_and_worst_shares_count_clients():
    losses = np.array([[[1.0], [3.0]], [[2.0], [5.0]]])  # two folds, two clients
    found = LeftOut(losses, np.array([[10.0, 1.0], [30.0, 3.0]]))
    assert found.pooled[:, 0] == pytest.approx([1.75, 4.5])
    assert found.means == pytest.approx([(10 + 3 + 60 + 15) / 44])
    assert worst_decile(found.pooled) == pytest.approx([4.5])


@pytest.mark.parametrize("max_cost", [-0.1, math.nan, "cheap", None, True])
def test_costs_that_are_none(max_cost):
    with pytest.raises(BidroError, match="by which share the mean loss may rise"):
        check_max_cost(max_cost)


def test_pooled_training_is_always_a_candidate():
    found = calibrate(problem(), (0.0,), MIXTURE_SPECS, max_cost=0.0, folds=3)
    assert found.candidates[found.pooled].max_weight_ratio == 1
    assert found.means[found.place] <= found.means[found.pooled]
    # Its model is that of least squares over all rows.
    rows = np.asarray(found_rows := problem().federation.samples)
    design = np.column_stack([rows[:, :-1], np.ones(len(found_rows))])
    assert found.pooled_model == pytest.approx(np.linalg.lstsq(design, rows[:, -1], rcond=None)[0], abs=1e-4)


def test_radii_of_the_problem_are_kept_by_every_candidate():
    from dataclasses import replace

    from bidro.ambiguity import WassersteinBall

    given = replace(problem(), ambiguity=WassersteinBall([0.1, 0.2, 0.3]))
    found = calibrate(given, (0.0,), MIXTURE_SPECS, folds=2)
    assert found.radii.tolist() == [0.1, 0.2, 0.3]
    free = calibrate(problem(), (0.0,), MIXTURE_SPECS, folds=2)
    assert np.linalg.norm(found.pooled_model[:2]) < 0.98 * np.linalg.norm(free.pooled_model[:2])


def test_the_candidates_of_weights_run_from_pooled_training_to_any_mixture():
    """For one largest ratio, the more of the weight may move, the more mixtures there are."""
    sizes, directions = np.array([10, 20, 70]), np.random.default_rng(0).normal(size=(20, 3))
    sets = [one.mixtures(sizes) for one in MIXTURE_SPECS]
    assert MIXTURE_SPECS[0].fixed
    assert not any(one.fixed for one in MIXTURE_SPECS[1:])
    np.testing.assert_allclose(sets[0].project(np.array([3.0, -1.0, 0.2])), sizes / 100)
    assert sets[-1].is_whole
    most = np.array([[one.linear_maximum(c)[0] for c in directions] for one in sets])
    for k, (before, after) in enumerate(pairwise(MIXTURE_SPECS)):
        if before.max_weight_ratio == after.max_weight_ratio:
            assert before.mixing < after.mixing
            assert np.all(most[k] <= most[k + 1] + 1e-12)
