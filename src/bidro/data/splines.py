"""Additive models of piecewise-linear curves: a basis in which they are linear predictors.

    f(v) = b + sum_j f_j(v_j),   f_j continuous, linear between knots and beyond the outermost of them.

The parameters are the slopes, one a segment. The column of segment s of feature j is
phi_js(v) = clip(v_j, low_s, high_s) - clip(0, low_s, high_s): how far v_j has come through the segment,
counted from 0. The columns of a feature add up to v_j, so that equal slopes are a straight line, and a
feature of one segment is its own column.

A feature may have a curve of its own for each level of a category: then a row's columns of all other levels
are 0. Such a category does not move.

Rows move in the space of the features. f changes by at most nu t when a row moves by t in the scaled norm,
nu = || (max over segments |slope_js|) / scale_j ||_2: the largest slope of every feature, at any level,
counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace

Indices = NDArray[np.int64]

# The most segments that a curve has, and all that cross-validation tries, from the most; each contains the
# next, so that fewer segments are equalities between neighbouring slopes.
SEGMENTS = (16, 8, 4, 1)
# A segment holds at least this many rows of all clients together.
FEWEST_ROWS = 20
# Slopes of a feature with pairs that are listed one by one.
_MOST_ROWS = 200
# Curves whose knots are agreed on are drawn over so many agreed spreads on both sides of the centre.
DRAWN = 4.0
# Quantiles by which a client describes a column.
PLACES = 64


class Category(NamedTuple):
    """What a feature has a curve by each level of."""

    name: str
    columns: tuple[str, ...]  # the features in which it is coded
    levels: tuple[str, ...] = ()  # the first is 0 in all columns; none where every value of one column is one


@dataclass(frozen=True)
class Levels:
    """A category for each of whose levels a feature has a curve of its own. A row is of the level with the
    values that are nearest to its own. Immutable, hashable."""

    columns: tuple[int, ...]  # the features in which it is coded
    values: tuple[tuple[float, ...], ...]  # (levels, columns) what each level has there
    names: tuple[str, ...]  # of the levels

    def __post_init__(self) -> None:
        numbers = [number for own in self.values for number in own]
        if not all(np.isfinite(numbers)) or len(set(self.values)) < len(self.values):
            raise BidroError(f"Levels must have different finite values; got {self.values}.")
        if len(self.names) != len(self.values) or {len(own) for own in self.values} != {len(self.columns)}:
            raise BidroError("Every level needs a name, and a value in each of the category's columns.")

    def of(self, features: Any) -> Any:
        """(...,) of which level rows (..., k) are, from 0, NumPy or traced."""
        away = features[..., None, np.array(self.columns)] - np.array(self.values)
        return (away**2).sum(axis=-1).argmin(axis=-1)


def through(values: Any, knots: Sequence[float]) -> Any:
    """(..., stretches) how far values (...,) are through each stretch between knots, counted from 0."""
    low, high = np.array(knots[:-1]), np.array(knots[1:])
    return namespace(values).clip(values[..., None], low, high) - np.clip(0.0, low, high)


@dataclass(frozen=True)
class Pair:
    """Two features whose effects depend on each other: sum_ab c_ab phi_a(v) psi_b(w), phi_a and psi_b being
    how far v and w are through each stretch between the knots of their feature, counted from 0: a continuous
    function that is bilinear between knots, goes on level beyond the outermost, and is 0 where v or w is 0,
    so that curves are what a feature does at the mean of the other. Immutable, hashable."""

    features: tuple[int, int]
    knots: tuple[tuple[float, ...], tuple[float, ...]]  # of each, ascending, at least two
    # In training what a cell adds to the sum of its corners, (a, b) and (a + 1, b + 1) less the other two, is
    # held at 0 so many times as strongly as a slope at its neighbour's.
    held: float = 1.0

    def __post_init__(self) -> None:
        for own in self.knots:
            if len(own) < 2 or not all(np.isfinite(own)) or any(b <= a for a, b in pairwise(own)):
                raise BidroError(f"A pair needs at least two finite knots in ascending order; got {own}.")
        if self.features[0] == self.features[1] or not 0 < self.held < np.inf:
            raise BidroError(f"A pair is of two features, held with a positive number; got {self}.")

    @property
    def ends(self) -> tuple[Floats, Floats, Floats, Floats]:
        """(low, high) of every cell along the first feature, and the same along the second, all (cells,)."""
        first, second = (np.array(own) for own in self.knots)
        a, b = (grid.ravel() for grid in np.indices((len(first) - 1, len(second) - 1)))
        return first[a], first[a + 1], second[b], second[b + 1]

    @property
    def shape(self) -> tuple[int, int]:
        """How many stretches there are along each feature; cells are in this order."""
        return len(self.knots[0]) - 1, len(self.knots[1]) - 1

    @property
    def columns(self) -> int:
        return self.shape[0] * self.shape[1]

    def expand(self, first: Any, second: Any) -> Any:
        """(..., columns) of values (...,) of the two features, NumPy or traced."""
        sides = [through(values, own) for values, own in zip((first, second), self.knots, strict=True)]
        product = sides[0][..., :, None] * sides[1][..., None, :]
        return product.reshape(*product.shape[:-2], self.columns)

    def at_knots(self, cells: Any, axis: int) -> Any:
        """(..., stretches, knots of the other) the slopes along the feature of this axis (0 or 1), in each of
        its stretches, where the other feature is at a knot, between which they are the steepest; of cells
        (..., columns)."""
        table = cells.reshape(*cells.shape[:-1], *self.shape)
        far = through(np.array(self.knots[1 - axis]), self.knots[1 - axis])
        return table @ far.T if axis == 0 else table.swapaxes(-1, -2) @ far.T


@dataclass(frozen=True)
class Basis:
    """The inner knots of every curve, ascending; none where it is a straight line. A feature has one curve,
    or one for each level of a category, one after the other. The columns of `pairs` of features stand behind
    those of curves. Immutable, hashable."""

    knots: tuple[tuple[float, ...], ...]
    by: tuple[Levels | None, ...] = ()  # (k,) of every feature; empty where none has curves by level
    pairs: tuple[Pair, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Without what follows from the knots, which may be far larger."""
        return {"knots": self.knots, "by": self.by, "pairs": self.pairs}

    def __post_init__(self) -> None:
        for own in self.knots:
            if not all(np.isfinite(own)) or any(b <= a for a, b in pairwise(own)):
                raise BidroError(f"Knots must be finite numbers in ascending order; got {own}.")
        columns = [column for levels in self.by if levels is not None for column in levels.columns]
        if len(self.feature_of_curve) != len(self.knots) or max(columns, default=0) >= max(self.features, 1):
            raise BidroError(
                f"There are {len(self.feature_of_curve)} curves of {self.features} features, and knots of "
                f"{len(self.knots)}."
            )
        of_pairs = [j for pair in self.pairs for j in pair.features]
        if of_pairs and not 0 <= min(of_pairs) <= max(of_pairs) < self.features:
            raise BidroError(f"There are pairs of feature {max(of_pairs)}, and {self.features} features.")

    @property
    def features(self) -> int:
        return len(self.by or self.knots)

    @property
    def straight(self) -> bool:
        """Whether every feature has one segment, and there are no pairs."""
        return not any(self.knots) and not any(self.by) and not self.pairs

    @cached_property
    def feature_of_curve(self) -> Indices:
        """(curves,)"""
        counts = [
            1 if levels is None else len(levels.values) for levels in self.by or (None,) * self.features
        ]
        return np.repeat(np.arange(self.features), np.array(counts, dtype=np.int64))

    def each_curve(self) -> list[tuple[int, int]]:
        """(of which feature, of which level of its category, from 0) every curve is."""
        of = self.feature_of_curve.tolist()
        return [(j, curve - of.index(j)) for curve, j in enumerate(of)]

    @cached_property
    def segments(self) -> Indices:
        """(curves,) how many each curve has."""
        return np.array([len(own) + 1 for own in self.knots], dtype=np.int64)

    @cached_property
    def most_segments(self) -> Indices:
        """(k,) of every feature's curves, the most."""
        found = np.zeros(self.features, np.int64)
        np.maximum.at(found, self.feature_of_curve, self.segments)
        return found

    @property
    def columns(self) -> int:
        return self.of_curves + sum(pair.columns for pair in self.pairs)

    @cached_property
    def of_curves(self) -> int:
        """How many of the columns, the first, are of curves."""
        return int(self.segments.sum())

    @property
    def of_pairs(self) -> list[slice]:
        """The columns of every pair."""
        ends = self.of_curves + np.cumsum([0, *(pair.columns for pair in self.pairs)])
        return [slice(a, b) for a, b in pairwise(ends.tolist())]

    @cached_property
    def curve(self) -> Indices:
        """(of_curves,) whose segment each is."""
        return np.repeat(np.arange(len(self.knots)), self.segments)

    @cached_property
    def feature(self) -> Indices:
        """(of_curves,) of which feature each is."""
        return self.feature_of_curve[self.curve]

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """(low, high), both (of_curves,), of every segment; infinite at the outermost."""
        low = [np.concatenate([[-np.inf], own]) for own in self.knots]
        high = [np.concatenate([own, [np.inf]]) for own in self.knots]
        none = np.zeros(0)
        return np.concatenate([none, *low]), np.concatenate([none, *high])

    @cached_property
    def _begin(self) -> Floats:
        """(of_curves,) where each segment counts from."""
        return np.clip(0.0, *self.ends)

    @cached_property
    def _table(self) -> Indices:
        """(k, most columns) the columns of every feature, filled up with one past the last."""
        counts = np.bincount(self.feature, minlength=self.features)
        place = np.arange(counts.max(initial=1))
        starts = np.cumsum(counts) - counts
        return np.where(place < counts[:, None], starts[:, None] + place, self.of_curves)

    @cached_property
    def roughness(self) -> Floats:
        """(columns, columns) R with <w, R w> the sum of squares of the differences between neighbouring
        slopes, 0 for straight lines, and of what every cell of a pair adds to the sum of its corners, as
        often as it is held."""
        found = np.zeros((self.columns, self.columns))
        for before in np.flatnonzero(np.diff(self.curve) == 0):
            both = np.ix_([before, before + 1], [before, before + 1])
            found[both] += np.array([[1.0, -1.0], [-1.0, 1.0]])
        for some, pair in zip(self.of_pairs, self.pairs, strict=True):
            low, high, other_low, other_high = pair.ends
            cells = np.arange(some.start, some.stop)
            found[cells, cells] = pair.held * ((high - low) * (other_high - other_low)) ** 2
        return found

    def curves_of(self, features: Any) -> Any:
        """(..., k) which curve of every feature rows (..., k) are on: of their level, or the only one."""
        xp, first = namespace(features), np.searchsorted(self.feature_of_curve, np.arange(self.features))
        every = [xp.full(features.shape[:-1], one) for one in first.tolist()]
        for j, levels in enumerate(self.by):
            every[j] = every[j] if levels is None else every[j] + levels.of(features)
        return xp.stack(every, axis=-1)

    def on(self, features: Any) -> Any:
        """(..., of_curves) whether each segment is of a curve that rows (..., k) are on."""
        return self.curves_of(features)[..., self.feature] == self.curve

    def expand(self, features: Any) -> Any:
        """(..., columns) from rows (..., k), NumPy or traced."""
        xp = namespace(features)
        values = features[..., self.feature]
        if any(self.by):
            # At 0 a curve is 0: so it is for rows of another level.
            values = xp.where(self.on(features), values, 0.0)
        curves = xp.clip(values, *self.ends) - self._begin
        return curves if not self.pairs else xp.concatenate([curves, self.expand_pairs(features)], axis=-1)

    def expand_pairs(self, features: Any) -> Any:
        """(..., columns of pairs) from rows (..., k), NumPy or traced."""
        each = [
            pair.expand(features[..., pair.features[0]], features[..., pair.features[1]])
            for pair in self.pairs
        ]
        return namespace(features).concatenate([features[..., :0], *each], axis=-1)

    def along(self, columns: Indices, values: Floats) -> Floats:
        """(N, columns) what some segments, of one feature and level, are at its values (N,)."""
        low, high = (end[columns] for end in self.ends)
        return np.asarray(np.clip(values[:, None], low, high) - self._begin[columns])

    def rows(self, rows: Any) -> Any:
        """(..., columns + 1) rows (..., k + 1) with their features expanded, the target last."""
        return namespace(rows).concatenate([self.expand(rows[..., :-1]), rows[..., -1:]], axis=-1)

    def steepest(self, slopes: Any) -> Any:
        """(..., k) the largest size of each feature's slopes (..., columns), of any level and wherever the
        features are that it has pairs with."""
        xp = namespace(slopes)
        sizes = xp.abs(slopes[..., : self.of_curves])
        padded = xp.concatenate([sizes, xp.zeros((*sizes.shape[:-1], 1))], axis=-1)
        found = padded[..., self._table].max(axis=-1)
        if not self.pairs:
            return found
        every = [found[..., j] for j in range(self.features)]
        for j in self.paired:
            parts = self._slopes_of_pairs(slopes, j)
            of_curve = slopes[..., self._stretches[j][0]]  # (..., stretches)
            most = of_curve + sum(part.max(axis=-1) for part in parts)
            least = of_curve + sum(part.min(axis=-1) for part in parts)
            every[j] = xp.maximum(xp.abs(most), xp.abs(least)).max(axis=-1)
        return xp.stack(every, axis=-1)

    @cached_property
    def paired(self) -> tuple[int, ...]:
        """The features that are in pairs."""
        return tuple(sorted({j for pair in self.pairs for j in pair.features}))

    @cached_property
    def _stretches(self) -> dict[int, tuple[Indices, tuple[tuple[int, int, Indices], ...]]]:
        """Of every feature in pairs, the stretches between all knots of its curves and pairs: (the column of
        each in each of the feature's curves, one curve after the other; for each of its pairs (which, along
        which side, the stretch of the pair that each is in, -1 beyond its ends))."""
        found = {}
        for j in self.paired:
            sides = [(p, own.features.index(j)) for p, own in enumerate(self.pairs) if j in own.features]
            curves = np.flatnonzero(self.feature_of_curve == j).tolist()
            knots = [*(self.knots[c] for c in curves), *(self.pairs[p].knots[side] for p, side in sides)]
            every = np.unique(np.concatenate([np.array(own, float) for own in knots]))
            inside = np.concatenate([[every[0] - 1], (every[1:] + every[:-1]) / 2, [every[-1] + 1]])
            starts = np.cumsum(self.segments) - self.segments
            of_curve = [starts[c] + np.searchsorted(np.array(self.knots[c], float), inside) for c in curves]
            each = []
            for p, side in sides:
                own = np.array(self.pairs[p].knots[side])
                at = np.searchsorted(own, inside) - 1
                each.append((p, side, np.tile(np.where(at < len(own) - 1, at, -1), len(curves))))
            found[j] = (np.concatenate(of_curve).astype(np.int64), tuple(each))
        return found

    def _slopes_of_pairs(self, slopes: Any, j: int) -> list[Any]:
        """For every pair of feature j (..., stretches, knots of the other feature): what it adds to the slope
        along feature j."""
        xp, found = namespace(slopes), []
        for p, side, at in self._stretches[j][1]:
            own = self.pairs[p].at_knots(slopes[..., self.of_pairs[p]], side)
            level = xp.zeros((*own.shape[:-2], 1, own.shape[-1]))
            found.append(xp.concatenate([own, level], axis=-2)[..., at, :])
        return found

    def slope_rows(self) -> tuple[Floats, Indices, Indices]:
        """(D (rows, columns), feature (rows,), group (rows,), ascending): wherever a row is, the size of its
        slope along a feature is at most the root of the sum over the feature's groups of the largest
        |<D_r, w>|^2, w being the slopes (columns,).

        A feature has one group, in which this is the largest there is, unless it has so many pairs that their
        knots have too many combinations: then curve and pairs have a group each, and as
        (a_0 + ... + a_p)^2 <= (p + 1) (a_0^2 + ... + a_p^2) these are the larger for it.
        """
        if not self.pairs:
            return np.eye(self.columns), self.feature, self.feature
        groups: list[tuple[int, Floats]] = []
        each = np.eye(self.columns)
        for j in range(self.features):
            own = each[: self.of_curves][self.feature == j]
            if j not in self.paired:
                groups.append((j, own))
                continue
            # As functions of the slopes: (stretches, knots of the other feature, columns).
            parts = [part.transpose(1, 2, 0) for part in self._slopes_of_pairs(each, j)]
            apart = each[self._stretches[j][0]][:, None]
            if len(apart) * math.prod(part.shape[1] for part in parts) > _MOST_ROWS:
                parts = [np.unique(part.reshape(-1, self.columns), axis=0) for part in parts]
                groups += [(j, math.sqrt(1 + len(parts)) * part) for part in (own, *parts)]
                continue
            for part in parts:
                apart = (apart[:, :, None] + part[:, None]).reshape(len(part), -1, self.columns)
            groups.append((j, np.unique(apart.reshape(-1, self.columns), axis=0)))
        sizes = [len(rows) for _, rows in groups]
        feature = np.repeat([j for j, _ in groups], sizes)
        return np.concatenate([rows for _, rows in groups]), feature, np.repeat(np.arange(len(groups)), sizes)

    def contributions(self, features: Floats, slopes: Floats) -> Floats:
        """(..., k + pairs) f_j(v), 0 at v_j = 0, of rows (..., k) and slopes (columns,), and of every pair, 0
        where one of its features is 0."""
        columns = self.expand(features) * slopes
        starts = np.searchsorted(self.feature, np.arange(self.features))
        starts = np.append(starts, [some.start for some in self.of_pairs]).astype(np.int64)
        return np.asarray(np.add.reduceat(columns, starts, axis=-1))

    def ranges(self, slopes: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Floats]:
        """(least, most), both (k + pairs,), of f_j over [lower_j, upper_j] and all levels, at an end, or at a
        knot between them; and of every pair."""
        least, most = np.full(self.features, np.inf), np.full(self.features, -np.inf)
        starts = np.cumsum(self.segments) - self.segments
        for start, own, j in zip(starts, self.knots, self.feature_of_curve.tolist(), strict=True):
            places = np.clip(np.array([lower[j], *own, upper[j]]), lower[j], upper[j])
            some = slice(start, start + len(own) + 1)
            low, high = (end[some] for end in self.ends)
            values = (np.clip(places[:, None], low, high) - self._begin[some]) @ slopes[some]
            least[j], most[j] = min(least[j], values.min()), max(most[j], values.max())
        of_pairs = []
        for some, pair in zip(self.of_pairs, self.pairs, strict=True):
            sides = [
                np.clip(np.array([lower[j], *own, upper[j]]), lower[j], upper[j])
                for j, own in zip(pair.features, pair.knots, strict=True)
            ]
            first, second = np.meshgrid(*sides)
            values = pair.expand(first, second) @ slopes[some]
            of_pairs.append((values.min(), values.max()))
        more = np.array(of_pairs).reshape(-1, 2)
        return np.append(least, more[:, 0]), np.append(most, more[:, 1])

    def thinned(self, most: int | Sequence[int]) -> Basis:
        """With at most so many segments a curve, or those of each feature (k,): every second knot goes until
        there are few enough."""
        each = np.broadcast_to(most, self.features)[self.feature_of_curve].tolist()
        found = []
        for own, segments in zip(self.knots, each, strict=True):
            kept = own
            while len(kept) + 1 > segments:
                kept = kept[1::2]
            found.append(kept)
        return replace(self, knots=tuple(found))

    def onto(self, fewer: Basis) -> Indices:
        """(columns,) the column of `fewer`, whose knots are some of these, that holds each segment: slopes
        of it are slopes[onto], and its columns the sums of those that they hold."""
        if fewer.pairs != self.pairs or any(
            not set(few) <= set(many) for few, many in zip(fewer.knots, self.knots, strict=True)
        ):
            raise BidroError("Curves with fewer segments must have some of the knots of those with more.")
        starts = np.cumsum(fewer.segments) - fewer.segments
        inside = [
            np.searchsorted(few, many, side="right")
            for few, many in zip(fewer.knots, self.knots, strict=True)
        ]
        parts = [start + np.concatenate([[0], own]) for start, own in zip(starts, inside, strict=True)]
        parts.append(np.arange(fewer.of_curves, fewer.columns))
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    def in_units(self, mean: Floats, spread: Floats) -> Basis:
        """The same knots where a feature v is mean + spread v."""
        each = zip(self.knots, self.feature_of_curve.tolist(), strict=True)
        knots = tuple(tuple(float(mean[j] + spread[j] * knot) for knot in own) for own, j in each)
        return Basis(
            knots,
            tuple(_in_units(levels, mean, spread) for levels in self.by),
            tuple(_pair_in_units(pair, mean, spread) for pair in self.pairs),
        )


def _pair_in_units(pair: Pair, mean: Floats, spread: Floats) -> Pair:
    first, second = (
        tuple(float(mean[j] + spread[j] * knot) for knot in own)
        for j, own in zip(pair.features, pair.knots, strict=True)
    )
    return replace(pair, knots=(first, second))


def _in_units(levels: Levels | None, mean: Floats, spread: Floats) -> Levels | None:
    if levels is None:
        return None
    some = list(levels.columns)
    values = mean[some] + spread[some] * np.array(levels.values)
    return replace(levels, values=tuple(map(tuple, values.tolist())))


def quantile_counts(rows: Floats, places: int = PLACES) -> tuple[Floats, Floats]:
    """(values (k, places), counts (k, places)): the distribution of rows (N, k) in every column. A column of
    at most so many values is reported exactly; else counts are of rows up to a value and above the one before
    it, at the least value and at quantiles. Places that are not used repeat the last value with a count of
    0."""
    n, k = rows.shape
    ordered, columns = np.sort(rows, axis=0), np.arange(k)
    # The last row of every value, and which value of its column each row has.
    marks = np.ones((n, k), bool)
    marks[:-1] = ordered[1:] != ordered[:-1]
    number = np.cumsum(marks, axis=0) - marks
    many = marks.sum(axis=0) > places
    if many.any():
        at = np.append(0, -(-np.arange(1, places) * n // (places - 1)) - 1)
        taken = np.zeros((n, k), bool)
        taken[number[at], columns] = True
        marks &= taken[number, columns] | ~many
    place, below = np.cumsum(marks, axis=0) - 1, np.zeros((k, places))
    values = np.tile(ordered[-1][:, None], places)
    row, column = np.nonzero(marks)
    values[column, place[row, column]] = ordered[row, column]
    below[column, place[row, column]] = row + 1
    return values, np.maximum(np.diff(below, axis=1, prepend=0.0), 0.0)


def common_knots(
    values: Floats, counts: Floats, most: Sequence[int], fewest_rows: int = FEWEST_ROWS
) -> Basis:
    """Knots for all clients from their `quantile_counts`, values and counts (n, k, places); `most`
    (k,) segments of every feature.

    Knots are at quantiles of all rows together, so that segments hold about as many each; a knot is left out
    where a segment would hold fewer than `fewest_rows`, and so are the ends: a column of three values has two
    segments, one of two is straight.
    """
    return Basis(
        tuple(
            _knots(values[:, j].ravel(), counts[:, j].ravel(), segments, fewest_rows)
            for j, segments in enumerate(most)
        )
    )


def public_knots(most: Sequence[int], low: Floats, high: Floats) -> Basis:
    """Knots that say nothing of any rows, for columns measured from an agreed centre in agreed spreads, whose
    agreed bounds in these units are low and high (k,), infinite where there are none: `most` (k,) segments of
    every feature, of as many rows each if these were normal inside the bounds."""
    found = []
    for segments, first, last in zip(most, ndtr(low), ndtr(high), strict=True):
        found.append(tuple(ndtri(first + (last - first) * np.arange(1, segments) / segments).tolist()))
    for j, own in enumerate(found):
        if not np.all(np.diff([low[j], *own, high[j]]) > 0):  # the centre lies far outside the bounds
            found[j] = tuple(np.linspace(low[j], high[j], most[j] + 1)[1:-1].tolist())
    return Basis(tuple(found))


def by_level(basis: Basis, by: tuple[Levels | None, ...], features: Floats, most: Sequence[int]) -> Basis:
    """With a curve for each level where features (k,) have them by level: knots are at quantiles of the rows
    (N, k) of that level, `most` (k,) segments at the most."""
    knots = []
    for j, levels in enumerate(by):
        if levels is None:
            knots.append(basis.knots[j])
            continue
        of_level = levels.of(features)
        for level in range(len(levels.values)):
            own = of_level == level
            enough = np.count_nonzero(own) >= 2 * FEWEST_ROWS
            values, counts = quantile_counts(features[own][:, [j]]) if enough else np.zeros((2, 1, 0))
            knots.append(_knots(values[0], counts[0], most[j], FEWEST_ROWS))
    return Basis(tuple(knots), by)


def _knots(values: Floats, counts: Floats, most: int, fewest_rows: int) -> tuple[float, ...]:
    used = counts > 0
    places, where = np.unique(values[used], return_inverse=True)
    if len(places) < 3 or most < 2:
        return ()
    up_to = np.cumsum(np.bincount(where, counts[used]))
    total = up_to[-1]
    at = np.searchsorted(up_to, np.arange(1, most) / most * total)
    # Of few values every inner one may be a knot.
    if len(places) - 1 <= most:
        at = np.arange(1, len(places) - 1)
    inner = np.unique(at[(at > 0) & (at < len(places) - 1)])
    kept: list[int] = []
    before = 0.0
    for place in inner.tolist():
        if up_to[place] - before >= fewest_rows and total - up_to[place] >= fewest_rows:
            kept.append(place)
            before = up_to[place]
    return tuple(float(places[place]) for place in kept)
