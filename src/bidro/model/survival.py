"""What a model of times to an event says of people, and how right it is.

A model of periods gives hazards h_j, and with them S(g_j) = (1 - h_1) ... (1 - h_j), the chance to be without
the event at the end of period j; between the ends S is taken to be straight. People whose event was not seen
count by what is known of them: in *concordance* by all pairs of which it is known who was first (Harrell et
al. 1982), in the *Brier score* by weights 1 / G, where G is the chance not to be censored, of all of them
(Graf et al. 1999).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.data.tables.survival import Observed

# Pairs that are compared together, so that there is no table of all of them.
_TOGETHER = 1 << 22


def curves_of(hazards: Floats) -> Floats:
    """(N, J) the chances to be without the event at the end of each period, from those (N, J) that it happens
    in it to those who reach it."""
    return np.asarray(np.cumprod(1 - hazards, axis=1))


def medians(curves: Floats, ends: Sequence[float]) -> Floats:
    """(N,) when half have had the event; NaN where that is after the end of the grid."""
    times, values = _from_the_start(curves, ends)
    after = np.argmax(values <= 0.5, axis=1)
    reached = values[:, -1] <= 0.5
    row, after = np.arange(len(values)), np.maximum(after, 1)
    high, low = values[row, after - 1], values[row, after]
    share = (high - 0.5) / np.where(high > low, high - low, 1.0)
    found = times[after - 1] + share * (times[after] - times[after - 1])
    return np.where(reached, found, np.nan)


def restricted_means(curves: Floats, ends: Sequence[float]) -> Floats:
    """(N,) the mean time without the event until the end of the grid."""
    times, values = _from_the_start(curves, ends)
    return np.asarray(np.sum((values[:, 1:] + values[:, :-1]) / 2 * np.diff(times), axis=1))


def outlook(curves: Floats, ends: Sequence[float], index: pd.Index) -> pd.DataFrame:
    """What `predict` says of each row: `survives_<end>`, the chance to be without the event then; `median`,
    when half have had it, empty where that is after the grid; `mean`, the mean time without it until the end
    of the grid; `risk`, the share of that time that is lost."""
    found = {f"survives_{end:g}": curves[:, j] for j, end in enumerate(ends)}
    means = restricted_means(curves, ends)
    found |= {"median": medians(curves, ends), "mean": means, "risk": 1 - means / ends[-1]}
    return pd.DataFrame(found, index=index)


def kaplan_meier(observed: Observed, at: Sequence[float]) -> Floats:
    """(len(at),) the share without the event after each of these times, as Kaplan and Meier estimate it from
    people of whom some are censored and some enter late; NaN after the last whom anybody watched."""
    times, kept = _steps(observed.time, observed.entry, observed.event)
    found = np.append(1.0, np.cumprod(kept))[np.searchsorted(times, at, "right")]
    found[np.asarray(at) > observed.time.max()] = np.nan
    return np.asarray(found)


def concordance(observed: Observed, risk: Floats) -> float | None:
    """Of all pairs of people of whom it is known to whom the event happened first, the share in which this
    one's `risk` (N,) is higher; equal risks count by half. None where there is no such pair.

    Of a pair with equal times that one is first whose event was seen, if the other's was not. Who entered
    after the other's event makes no pair with it.
    """
    time, event, entry = observed.time, observed.event, _entered(observed.entry)
    cases = np.flatnonzero(event)
    right, pairs, step = 0.0, 0, max(1, _TOGETHER // max(len(time), 1))
    for begin in range(0, len(cases), step):
        own = cases[begin : begin + step, None]
        later = ((time > time[own]) | ((time == time[own]) & ~event)) & (entry < time[own])
        right += float((later & (risk < risk[own])).sum() + 0.5 * (later & (risk == risk[own])).sum())
        pairs += int(later.sum())
    return right / pairs if pairs else None


def brier_scores(observed: Observed, curves: Floats, ends: Sequence[float]) -> Floats:
    """(J,) at the end of each period the mean square of what was predicted less what was seen, 1 for a person
    without the event and 0 for one with it, weighted for those of whom it is not known. NaN where nobody is
    left to watch."""
    time, event, entry = observed
    # Who has the event at a time was not censored at it, and so is not at risk of that.
    times, kept = _steps(time, entry, ~event, first=event)
    uncensored = np.append(1.0, np.cumprod(kept))
    before = uncensored[np.searchsorted(times, time, "left")]
    found = np.full(len(ends), np.nan)
    for j, end in enumerate(ends):
        if not (time > end).any():
            continue
        happened, without = event & (time <= end), time > end
        square = np.zeros(len(time))
        square[happened] = curves[happened, j] ** 2 / before[happened]
        after = uncensored[np.searchsorted(times, end, "right")]
        square[without] = (1 - curves[without, j]) ** 2 / after
        found[j] = square.mean()
    return found


def integrated_brier(observed: Observed, curves: Floats, ends: Sequence[float]) -> float | None:
    """The mean of the Brier score over the time from the first end to the last that somebody outlives,
    straight between them; of a single end its score. None where nobody outlives one, and where people enter
    late, whose weights are other ones."""
    if observed.entry.any():
        return None
    scores, times = brier_scores(observed, curves, ends), np.asarray(ends)
    known = np.isfinite(scores)
    scores, times = scores[known], times[known]
    if len(times) < 2:
        return float(scores[0]) if len(times) else None
    area = np.sum((scores[1:] + scores[:-1]) / 2 * np.diff(times))
    return float(area / (times[-1] - times[0]))


def _from_the_start(curves: Floats, ends: Sequence[float]) -> tuple[Floats, Floats]:
    """(times, values) of curves that begin at 1."""
    return np.append(0.0, ends), np.column_stack([np.ones(len(curves)), curves])


def _steps(
    time: Floats, entry: Floats, event: NDArray[np.bool_], first: NDArray[np.bool_] | None = None
) -> tuple[Floats, Floats]:
    """(times of events, the share of those at risk to whom none happened); those who are `first` at a time
    are not at risk then."""
    times = np.unique(time[event])

    def before(values: Floats, side: Literal["left", "right"] = "left") -> NDArray[np.int64]:
        return np.searchsorted(np.sort(values), times, side)

    def at(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        return before(time[which], "right") - before(time[which])

    at_risk = before(_entered(entry)) - before(time)
    if first is not None:
        at_risk = at_risk - at(first)
    return times, 1 - at(event) / at_risk


def _entered(entry: Floats) -> Floats:
    """When each was watched from: who was from the beginning is at risk at time 0, too."""
    return np.where(entry > 0, entry, -np.inf)
