"""Where curves may bend across machines: at places of a public grid, which sites' rows decide on together.

The grid follows from the agreement: STEPS steps over the agreed centre of a column and WIDE spreads on both
sides of it, as far as its agreed bounds go. A site says at which places its rows are cut into parts that hold
as many each, and enough in every set of rows that sums are sent over. That tells about where its quantiles
are, to a step, and no count. The server takes common places from them, so that between any two there is a
whole part of every site.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.agreed import Agreed
from bidro.deploy.rules import Ids

# Steps of the grid, and how many spreads it goes to each side of the centre.
STEPS, WIDE = 256, 4.0
# Parts that a site cuts its rows into, at the most.
PARTS = 64
# How many segments a feature curves may have that a site bears, from the most; each contains the next.
BORNE = (64, 32, 16, 8, 4, 2, 1)
_Ints = NDArray[np.int64]


def public_grid(agreed: Agreed) -> Floats:
    """(k, STEPS + 1) the places of every feature in its own units; NaN for coded levels, which never bend."""
    found = []
    for column in agreed.schema.columns:
        if column.levels is not None:
            found += [np.full(STEPS + 1, np.nan)] * len(column.coded)
            continue
        unit = agreed.units[column.name]
        low, high = unit.centre - WIDE * unit.spread, unit.centre + WIDE * unit.spread
        if agreed.support is not None:
            lower, upper = agreed.support[column.name]
            overlaps = lower < high and low < upper
            low, high = (max(low, lower), min(high, upper)) if overlaps else (lower, upper)
        found.append(np.linspace(low, high, STEPS + 1))
    return np.stack(found)


def own_places(values: Floats, grid: Floats, sets: _Ints, units: Ids, least: int) -> tuple[list[int], int]:
    """(the places of the grid (places,) that cut values (N,) into at most PARTS parts, the fewest rows of a
    set in a part). Strictly inside every part there are at least `least` rows, or units (N,), of every set;
    `sets` (N,) says which one a row is in, from 0, -1 for none."""
    at = np.searchsorted(grid, values, side="left")
    on = (at < len(grid)) & (grid[np.minimum(at, len(grid) - 1)] == values)
    # Bins, by turns: what is between two places, and what is at one.
    bins, wide = 2 * at + on, 2 * len(grid) + 1
    inside = sets >= 0
    group, bins, whose = sets[inside], bins[inside], None if units is None else units[inside]
    if whose is not None:
        # A unit counts once a set, in its first bin: then no part has fewer than are counted.
        order = np.lexsort((bins, whose, group))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(group[order]) != 0) | (whose[order][1:] != whose[order][:-1])
        group, bins = group[order][first], bins[order][first]
    n = int(group.max(initial=-1)) + 1
    counts = np.bincount(group * wide + bins, minlength=n * wide).reshape(n, wide)
    up_to = np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0)))  # (sets, bins + 1) rows in earlier bins
    up_to = up_to[up_to[:, -1] > 0]
    if not len(up_to):
        return [], 0

    def rows(left: int, right: int) -> _Ints:
        """(sets,) strictly between two places; -1 and one past the last stand for no end."""
        return np.asarray(up_to[:, 2 * right + 1] - up_to[:, 2 * left + 2])

    share = up_to[:, -1].sum() / PARTS
    found: list[int] = []
    for place in range(len(grid)):
        part = rows(found[-1] if found else -1, place)
        if part.min() >= least and part.sum() >= share:
            found.append(place)
    while found and rows(found[-1], len(grid)).min() < least:
        found.pop()
    fewest = min(int(rows(*part).min()) for part in pairwise([-1, *found, len(grid)]))
    return found, fewest


def common_places(edges: _Ints, sizes: Floats, most: int) -> tuple[int, ...]:
    """Places for all sites, from those of each, edges (n, parts - 1) with -1 for none, where a curve of at
    most so many segments bends: at about equal shares of all rows, sizes (n,), and between any two, and
    beyond the outermost, there is a whole part of every site. Where so many are not to be had, there are as
    many as a power of two, so that fewer segments, at every second place, are of equal shares too."""
    parts = [np.concatenate([[-1], own[own >= 0], [STEPS + 1]]) for own in edges]
    below = sum(
        size * np.interp(np.arange(STEPS + 1), own, np.linspace(0.0, 1.0, len(own)))
        for size, own in zip(sizes, parts, strict=True)
    ) / np.sum(sizes)
    for segments in (most, *(fewer for fewer in BORNE if fewer < most)):
        found = _shares(parts, np.asarray(below), segments)
        if len(found) == segments - 1:
            return tuple(found)
    return ()


def _shares(parts: list[_Ints], below: Floats, segments: int) -> list[int]:
    """At most so many segments less one, from the share of rows (places,) that is below each place."""

    def holds(left: int, right: int) -> bool:
        """Whether every site has a whole part between two places."""
        return all(np.any((own[:-1] >= left) & (own[1:] <= right)) for own in parts)

    found: list[int] = []
    for place in range(STEPS + 1):
        wanted = (len(found) + 1) / segments
        # Half a step before a share is as near as half a step behind it.
        if wanted < 1 and (below[place] + below[min(place + 1, STEPS)]) / 2 >= wanted:
            last = found[-1] if found else -1
            found += [place] if holds(last, place) and holds(place, STEPS + 1) else []
    return found


def padded(places: Sequence[Sequence[int]], width: int) -> _Ints:
    """(k, width) the places of every feature, filled up with -1."""
    found = np.full((len(places), width), -1, np.int64)
    for j, own in enumerate(places):
        found[j, : len(own)] = own
    return found
