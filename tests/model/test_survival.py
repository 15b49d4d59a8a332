"""Measures of times to an event: against brute force and against lifelines, where that is installed."""

import numpy as np
import pandas as pd
import pytest

from bidro.data.tables.survival import Observed
from bidro.model.survival import (
    brier_scores,
    concordance,
    curves_of,
    integrated_brier,
    kaplan_meier,
    medians,
    outlook,
    restricted_means,
)

ENDS = (3.0, 6.0, 12.0)


def people(count=80, ties=False, late=False, seed=0):
    rng = np.random.default_rng(seed)
    time = rng.exponential(8, count) + 0.01
    time = np.ceil(time / 2) if ties else time
    entry = np.where(rng.random(count) < 0.4, 0.6 * time * rng.random(count), 0.0)
    return Observed(time, rng.random(count) < 0.6, entry if late else np.zeros(count))


def share_without(times, events, at, entry=None):
    """Kaplan and Meier's estimate after a time, as it is written down."""
    entry = np.full(len(times), -1.0) if entry is None else np.where(entry > 0, entry, -1.0)
    found = 1.0
    for time in sorted({t for t, e in zip(times, events, strict=True) if e and t <= at}):
        at_risk = sum(1 for t, e in zip(times, entry, strict=True) if e < time <= t)
        found *= 1 - sum(1 for t, e in zip(times, events, strict=True) if e and t == time) / at_risk
    return found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_concordance_counts_pairs(ties, late):
    seen, risk = people(ties=ties, late=late), np.random.default_rng(1).normal(size=80).round(1)
    right, pairs = 0.0, 0
    for i in range(80):
        for j in range(80):
            later = seen.time[j] > seen.time[i] or (seen.time[j] == seen.time[i] and not seen.event[j])
            entered = seen.entry[j] == 0 or seen.entry[j] < seen.time[i]
            if seen.event[i] and later and entered and i != j:
                pairs += 1
                right += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    assert concordance(seen, risk) == pytest.approx(right / pairs, abs=1e-12)


def test_concordance_of_nobody_is_not_known():
    seen = Observed(np.ones(3), np.zeros(3, bool), np.zeros(3))
    assert concordance(seen, np.arange(3.0)) is None


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_kaplan_and_meier(ties, late):
    seen, at = people(ties=ties, late=late), [1.0, 2.0, 5.0, 9.0]
    known = [share_without(seen.time, seen.event, t, seen.entry) for t in at]
    np.testing.assert_allclose(kaplan_meier(seen, at), known)
    assert np.isnan(kaplan_meier(seen, [1e6]))[0]


@pytest.mark.parametrize("ties", [False, True])
def test_brier_scores_weigh_by_the_chance_not_to_be_censored(ties):
    seen = people(ties=ties)
    curves = curves_of(np.random.default_rng(2).uniform(0.05, 0.4, (80, 3)))

    def uncensored(at, before):
        """Who has the event at a time is not at risk to be censored then."""
        found = 1.0
        for time in sorted({t for t, e in zip(seen.time, seen.event, strict=True) if not e}):
            if time < at or (time == at and not before):
                own = [(t, e) for t, e in zip(seen.time, seen.event, strict=True) if t >= time]
                at_risk = sum(1 for t, e in own if t > time or not e)
                found *= 1 - sum(1 for t, e in own if t == time and not e) / at_risk
        return found

    known = []
    for j, end in enumerate(ENDS):
        total = 0.0
        for i in range(80):
            if seen.event[i] and seen.time[i] <= end:
                total += curves[i, j] ** 2 / uncensored(seen.time[i], True)
            elif seen.time[i] > end:
                total += (1 - curves[i, j]) ** 2 / uncensored(end, False)
        known.append(total / 80)
    np.testing.assert_allclose(brier_scores(seen, curves, ENDS), known, rtol=1e-12)
    area = (known[0] + known[1]) / 2 * 3 + (known[1] + known[2]) / 2 * 6
    assert integrated_brier(seen, curves, ENDS) == pytest.approx(area / 9)


def test_without_censoring_the_brier_score_is_a_mean_square():
    rng = np.random.default_rng(4)
    seen = Observed(rng.exponential(6, 50), np.ones(50, bool), np.zeros(50))
    curves = curves_of(rng.uniform(0, 0.5, (50, 3)))
    known = [np.mean((curves[:, j] - (seen.time > end)) ** 2) for j, end in enumerate(ENDS)]
    np.testing.assert_allclose(brier_scores(seen, curves, ENDS), known)
    assert integrated_brier(people(late=True), np.ones((80, 3)), ENDS) is None


def test_medians_and_means_are_those_of_straight_pieces():
    curves = np.array([[0.8, 0.4, 0.2], [0.9, 0.8, 0.7], [0.5, 0.5, 0.1], [0.2, 0.1, 0.0]])
    found = medians(curves, ENDS)
    np.testing.assert_allclose(found[[0, 2, 3]], [3 + 3 * 0.3 / 0.4, 3.0, 3 * 0.5 / 0.8])
    assert np.isnan(found[1])
    fine = np.linspace(0, 12, 120_001)
    known = [np.trapezoid(np.interp(fine, [0, *ENDS], [1, *own]), fine) for own in curves]
    np.testing.assert_allclose(restricted_means(curves, ENDS), known, rtol=1e-8)
    shown = outlook(curves, ENDS, pd.RangeIndex(4))
    assert list(shown) == ["survives_3", "survives_6", "survives_12", "median", "mean", "risk"]
    np.testing.assert_allclose(shown["risk"], 1 - np.array(known) / 12)


@pytest.mark.parametrize("ties", [False, True])
def test_lifelines_says_the_same(ties):
    lifelines = pytest.importorskip("lifelines")
    from lifelines.utils import concordance_index

    seen, risk = people(400, ties=ties), np.random.default_rng(1).normal(size=400).round(1)
    assert concordance(seen, risk) == pytest.approx(
        concordance_index(seen.time, -risk, seen.event), abs=1e-12
    )
    for each in (seen, people(400, ties=ties, late=True)):
        fitted = lifelines.KaplanMeierFitter().fit(each.time, each.event, entry=each.entry)
        np.testing.assert_allclose(
            kaplan_meier(each, ENDS), fitted.survival_function_at_times(ENDS), atol=1e-12
        )
