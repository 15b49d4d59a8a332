"""Rows as the solver sees them: features in pooled standard deviations, the target around its mean.

Means and deviations are those of all clients' rows together; they follow from each client's own, so a
federated run computes the same. Targets keep their unit, and so do losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.arrays import Floats, column_deviations
from bidro.core.errors import BidroError
from bidro.core.sets import Box

# Rows that are handled together, so that no copy of all of them is made.
_TOGETHER = 8_192


class ColumnMoments(NamedTuple):
    """Of one client's rows, or of several clients' together: features first, the target last."""

    rows: int
    mean: Floats  # (k + 1,)
    deviation: Floats  # (k + 1,) root mean square distance to the mean

    @classmethod
    def of(cls, features: Floats, target: Floats) -> ColumnMoments:
        """From rows (N, k) and targets (N,)."""
        mean = np.append(features.mean(axis=0), target.mean())
        return cls(len(target), mean, np.append(column_deviations(features), target.std()))

    @classmethod
    def pooled(cls, rows: ArrayLike, means: ArrayLike, deviations: ArrayLike) -> ColumnMoments:
        """Of all rows, from how many each client has (n,) and their moments (n, k + 1)."""
        counts, centres = np.asarray(rows, float), np.asarray(means, float)
        share = counts / counts.sum()
        mean = share @ centres
        # By a second pass, free of the rounding of a large common part.
        mean = mean + share @ (centres - mean)
        variance = share @ (np.asarray(deviations, float) ** 2 + (centres - mean) ** 2)
        return cls(int(counts.sum()), mean, np.sqrt(variance))

    @property
    def varying(self) -> NDArray[np.bool_]:
        """(k + 1,) which columns vary: rounding leaves a trace of deviation in those that do not."""
        return self.deviation > 1e-13 * np.hypot(self.mean, self.deviation)


def client_moments(rows: Floats, sizes: Sequence[int]) -> tuple[Floats, Floats]:
    """(means, deviations), both (n, columns), of clients whose rows (N, columns) stand together."""
    counts = np.asarray(sizes)
    ends = np.cumsum(counts)
    mean, deviation = (np.empty((len(counts), rows.shape[1])) for _ in range(2))
    begin = 0
    while begin < len(counts):
        # As many clients as have about so many rows together, at least one.
        start = ends[begin] - counts[begin]
        end = max(begin + 1, int(np.searchsorted(ends, start + _TOGETHER, side="right")))
        if counts[begin] > _TOGETHER:
            mean[begin], deviation[begin] = _large_moments(rows[start : ends[begin]])
            begin += 1
            continue
        own, block = counts[begin:end, None], rows[start : ends[end - 1]]
        first = (ends - counts)[begin:end] - start
        centre = np.add.reduceat(block, first, axis=0) / own
        away = block - np.repeat(centre, counts[begin:end], axis=0)
        left = np.add.reduceat(away, first, axis=0) / own
        squares = np.add.reduceat(away**2, first, axis=0) / own - left**2
        mean[begin:end], deviation[begin:end] = centre + left, np.sqrt(np.maximum(squares, 0.0))
        begin = end
    return mean, deviation


def _large_moments(rows: Floats) -> tuple[Floats, Floats]:
    """(mean, deviation) of one client's rows (N, columns), without a copy of all of them."""
    parts = [rows[first : first + _TOGETHER] for first in range(0, len(rows), _TOGETHER)]
    centre = np.sum([part.sum(axis=0) for part in parts], axis=0) / len(rows)
    away, squares = np.zeros((2, rows.shape[1]))
    for part in parts:
        left = part - centre
        away, squares = away + left.sum(axis=0), squares + np.einsum("ij,ij->j", left, left)
    left = away / len(rows)
    return centre + left, np.sqrt(np.maximum(squares / len(rows) - left**2, 0.0))


@dataclass(frozen=True, eq=False)
class Standard:
    """x -> (x - mean) / spread for features, y -> y - middle for a numeric target; classes keep codes."""

    mean: Floats  # (k,)
    spread: Floats  # (k,), 1 for a column that does not vary
    middle: float
    target_spread: float  # standard deviation of the target; 1 for classes

    @classmethod
    def of(cls, moments: ColumnMoments, classes: bool) -> Standard:
        """From the moments of all clients' rows."""
        spread = np.where(moments.varying, moments.deviation, 1.0)
        if classes:
            return cls(moments.mean[:-1], spread[:-1], 0.0, 1.0)
        return cls(moments.mean[:-1], spread[:-1], float(moments.mean[-1]), float(spread[-1]))

    @classmethod
    def as_they_are(cls, k: int) -> Standard:
        """Of k features that are used, with the target, as they are."""
        return cls(np.zeros(k), np.ones(k), 0.0, 1.0)

    def rows(self, features: Floats, target: Floats) -> Floats:
        """(N, k + 1) rows in these units."""
        rows = np.column_stack([features, target])
        self.convert(rows)
        return rows

    def convert(self, rows: Floats) -> None:
        """Put rows (N, k + 1), the target last, into these units, in place."""
        for begin in range(0, len(rows), _TOGETHER):
            part = rows[begin : begin + _TOGETHER]
            part[:, :-1] -= self.mean
            # Of a column that does not vary, rounding would leave a trace for a model to follow.
            part[:, :-1][np.abs(part[:, :-1]) <= 1e-13 * np.abs(self.mean)] = 0.0
            part[:, :-1] /= self.spread
            part[:, -1] -= self.middle

    def box(self, support: tuple[ArrayLike, ArrayLike], labels: tuple[float, ...] | None) -> Box:
        """A declared support, lower and upper bounds of every feature and (for a numeric target) of the
        target, in these units."""
        k = len(self.mean)
        lower, upper = declared_bounds(support, k, labels is None)
        ends = [(side[:k] - self.mean) / self.spread for side in (lower, upper)]
        last = (
            (lower[-1] - self.middle, upper[-1] - self.middle)
            if labels is None
            else (min(labels), max(labels))
        )
        return Box(*(np.append(end, edge) for end, edge in zip(ends, last, strict=True)))

    def coefficients(self, w: Floats, b: Floats | float) -> tuple[Floats, Floats]:
        """Coefficients (..., k) and intercept on the original scale, from those in these units."""
        original = np.asarray(w) / self.spread
        return original, np.asarray(b) + self.middle - original @ self.mean


def declared_bounds(
    support: tuple[ArrayLike, ArrayLike], features: int, numeric_target: bool
) -> tuple[Floats, Floats]:
    """(lower, upper) of a declared support, one number a feature and one of a numeric target. Raises
    BidroError for anything else."""
    lower, upper = (np.asarray(side, float).ravel() for side in support)
    wanted = features + numeric_target
    if lower.shape != (wanted,) or upper.shape != (wanted,):
        what = "every feature and then of the target" if numeric_target else "every feature"
        raise BidroError(
            f"The support needs lower and upper bounds of {what}, {wanted} numbers each; got "
            f"{lower.size} and {upper.size}."
        )
    if not np.all(lower < upper) or not np.all(np.isfinite([lower, upper])):
        raise BidroError("The support needs finite bounds with every lower one below its upper one.")
    return lower, upper


def require_inside(
    support: tuple[ArrayLike, ArrayLike],
    features: Floats,
    target: Floats,
    clients: NDArray[np.str_],
    columns: Sequence[str],
    numeric_target: bool,
) -> None:
    """Raise BidroError, in the user's own units, for the first value outside the declared support."""
    lower, upper = declared_bounds(support, features.shape[1], numeric_target)
    for j, name in enumerate(columns if numeric_target else columns[:-1]):
        values = features[:, j] if j < features.shape[1] else target
        outside = (values < lower[j]) | (values > upper[j])
        if outside.any():
            row = int(np.argmax(outside))
            raise BidroError(
                f"Row {row}, of client '{clients[row]}': '{name}' is {values[row]:g}, outside the declared "
                f"support [{lower[j]:g}, {upper[j]:g}]; widen the support or fix the row."
            )


def signs(codes: NDArray[np.int64], classes: int) -> Floats:
    """Classes as losses know them, from 0, ..., K - 1: -1 and 1 for two, as they are for more."""
    return np.asarray(2.0 * codes - 1.0 if classes == 2 else codes, float)
