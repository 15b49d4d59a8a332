"""What a client says of its columns must be what some rows can have: means, deviations and second moments.

Second moments are positive semidefinite, of a rank below the number of rows; a column of 0 and 1 has the
variance p (1 - p) with p N a whole number, two such columns a share of rows where both are 1 that fits
theirs, and no row has two levels of one column. Values within [lower, upper] have a mean in it and a variance
of at most (upper - mean)(mean - lower). What rounding can do is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.second_moments import LeftOutSums
from bidro.arrays import Floats
from bidro.curves import Basis
from bidro.deploy.agreed import Agreed
from bidro.errors import BidroError
from bidro.federation import LARGEST_SIZE
from bidro.standard import Standard
from bidro.tables import bounds_of

# What rounding can do, as a share of a column's size.
_ROUNDING = 1e-9
# Of numbers that are 0 or 1, as a share of 1.
_OF_SHARES = 1e-6
# Above so many rows, whether a share of them is a whole number cannot be told.
_COUNTABLE = 1e6
# A machine's number has so many digits: a column's own rounding, as a share of its mean.
_DIGITS = 64 * float(np.finfo(float).eps)
# A column varies whose deviation rounding changes by less than this share.
_VARIES = 1e-3


@dataclass(frozen=True, eq=False)
class Values:
    """What is agreed on of the columns, the target last."""

    agreed: Agreed

    @cached_property
    def names(self) -> tuple[str, ...]:
        schema = self.agreed.schema
        return (*schema.features, schema.target)

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """(lower, upper), both (m,), infinite where nothing is agreed."""
        schema, m = self.agreed.schema, len(self.names)
        lower, upper = np.full(m, -np.inf), np.full(m, np.inf)
        if self.agreed.support is not None:
            low, high = bounds_of(self.agreed.support, schema)
            lower[: len(low)], upper[: len(high)] = low, high
        lower[self.column >= 0], upper[self.column >= 0] = 0.0, 1.0
        if schema.classes is not None:
            lower[-1], upper[-1] = (
                (-1.0, 1.0) if len(schema.classes) == 2 else (0.0, len(schema.classes) - 1.0)
            )
        return lower, upper

    @cached_property
    def column(self) -> NDArray[np.int64]:
        """(m,) of which category each column of 0 and 1 is a level; -1 for others."""
        places = [
            -1 if one.levels is None else j
            for j, one in enumerate(self.agreed.schema.columns)
            for _ in one.coded
        ]
        return np.array([*places, -1])

    @cached_property
    def two_values(self) -> NDArray[np.bool_]:
        """(m,) columns that have no values but their ends."""
        classes = self.agreed.schema.classes
        last = np.arange(len(self.names)) == len(self.names) - 1
        return (self.column >= 0) | (last & (classes is not None and len(classes) == 2))

    def require(self, mean: Floats, deviation: Floats, rows: float) -> None:
        """Raise BidroError for means and deviations (m,) that no `rows` rows have, in the columns' units."""
        if np.any(np.abs(mean) > LARGEST_SIZE) or np.any(deviation > LARGEST_SIZE):
            j = int(np.argmax(np.maximum(np.abs(mean), deviation)))
            raise BidroError(
                f"it tells values of '{self.names[j]}' above {LARGEST_SIZE:g}, which no site reads."
            )
        lower, upper = self.ends
        size = np.hypot(mean, deviation)
        slack = _ROUNDING * size + _DIGITS * np.abs(mean)
        self._none(
            (mean < lower - slack) | (mean > upper + slack), "a mean of '{}' outside its agreed bounds"
        )
        self._none(deviation < 0, "a deviation of '{}' below 0")
        if rows == 1:
            self._none(deviation > slack, "a deviation of '{}' though it has one row")
        bounded = np.isfinite(lower) & np.isfinite(upper)
        room = np.where(bounded, (upper - mean) * (mean - lower), np.inf)
        width = np.where(bounded, upper - lower, 0.0)
        off = _OF_SHARES * width**2 + slack**2
        self._none(
            bounded & (deviation**2 > room + off), "a deviation of '{}' larger than its agreed bounds allow"
        )
        two = self.two_values
        self._none(
            two & (np.abs(deviation**2 - room) > off),
            "a deviation of '{}' that is not that of a column of two values with its mean",
        )
        if rows <= _COUNTABLE:
            share = np.where(two, (mean - lower) / np.where(two, width, 1.0), 0.0) * rows
            self._none(
                np.abs(share - np.round(share)) > 1e-3, "a mean of '{}' that no such number of rows has"
            )

    def _none(self, wrong: NDArray[np.bool_], words: str) -> None:
        if np.any(wrong):
            raise BidroError(f"it tells {words.format(self.names[int(np.argmax(wrong))])}.")


@dataclass(frozen=True, eq=False)
class ToldMoments:
    """One client's columns as it has told them, and the units of training."""

    values: Values
    standard: Standard
    rows: int
    mean: Floats  # (m,) in the columns' own units
    deviation: Floats  # (m,)

    @cached_property
    def units(self) -> tuple[Floats, Floats]:
        """(centre, spread), both (m,)."""
        return np.append(self.standard.mean, self.standard.middle), np.append(self.standard.spread, 1.0)

    @cached_property
    def _slack(self) -> Floats:
        """(m,) what rounding can do to a mean or deviation, in the units of training."""
        centre, spread = self.units
        size = np.abs(self.mean) + np.abs(centre) + self.deviation
        return np.asarray(
            (_ROUNDING * (self.deviation + np.abs(self.mean - centre)) + 100 * _DIGITS * size) / spread
        )

    @cached_property
    def size(self) -> Floats:
        """(m,) root mean squares of the columns in the units of training."""
        centre, spread = self.units
        return np.asarray(np.hypot(self.mean - centre, self.deviation) / spread + self._slack)

    def sizes(self, bends: Basis | None) -> Floats:
        """(columns,) no column of curves is larger: none is larger than its feature."""
        return self.size if bends is None else np.append(self.size[:-1][bends.feature], self.size[-1])

    def require_curves(self, bends: Basis, around: Floats, rows: int) -> None:
        """Raise BidroError for second moments (columns, columns) in the columns of curves that no rows have.
        Columns of one feature grow together, one after the other."""
        more = np.sqrt(self.rows / max(rows, 1))
        _require_semidefinite(
            around, more * np.append(self._slack[:-1][bends.feature], self._slack[-1]), rows
        )
        size = more * self.sizes(bends)[:-1]
        same = bends.feature[:, None] == bends.feature
        if np.any(same & (around[:-1, :-1] < -_ROUNDING * size[:, None] * size)):
            raise BidroError("it tells columns of a curve of which one falls as another grows, as none do.")

    def require_whole(self, mean: Floats, around: Floats) -> None:
        """Raise BidroError for moments (m,) and (m, m) of all rows, in the units of training, that are not
        those of the columns as told, or that no rows have."""
        centre, spread = self.units
        far = np.abs(mean - (self.mean - centre) / spread)
        variance = np.diag(around)
        deviation = self.deviation / spread
        wrong = (far > self._slack) | ~(
            np.abs(np.sqrt(np.maximum(variance, 0.0)) - deviation) <= self._slack + _OF_SHARES * deviation
        )
        if wrong.any():
            name = self.values.names[int(np.argmax(wrong))]
            raise BidroError(
                f"it tells a mean or deviation of '{name}' other than it told when the run began."
            )
        self.require_part(mean, around, self.rows)

    def require_part(self, mean: Floats, around: Floats, rows: int) -> None:
        """Raise BidroError for moments that no `rows` of the client's rows have, in the units of training."""
        slack = self._slack * np.sqrt(self.rows / max(rows, 1))
        _require_semidefinite(around, slack, rows)
        centre, spread = self.units
        raw, covariance = mean * spread + centre, around * spread[:, None] * spread
        self.values.require(raw, np.sqrt(np.maximum(np.diag(covariance), 0.0)), rows)
        self._require_shares(raw, covariance, rows)

    def _require_shares(self, mean: Floats, covariance: Floats, rows: int) -> None:
        """The shares of rows where two columns of 0 and 1 are both 1."""
        coded = np.flatnonzero(self.values.column >= 0)
        p = mean[coded]
        both = covariance[np.ix_(coded, coded)] + p[:, None] * p
        of = self.values.column[coded]
        apart = (of[:, None] == of) & ~np.eye(len(coded), dtype=bool)
        least, most = np.maximum(p[:, None] + p - 1, 0.0), np.minimum(p[:, None], p)
        most = np.where(apart, 0.0, most)
        counts = both * rows
        wrong = (both < np.where(apart, 0.0, least) - _OF_SHARES) | (both > most + _OF_SHARES)
        if rows <= _COUNTABLE:
            wrong |= np.abs(counts - np.round(counts)) > 1e-3
        if wrong.any():
            i, j = (self.values.names[coded[int(k)]] for k in np.argwhere(wrong)[0])
            raise BidroError(f"it tells a second moment of '{i}' and '{j}' that no such number of rows has.")

    def require_folds(self, mean: Floats, around: Floats, rows: NDArray[np.int64], left: LeftOutSums) -> None:
        """Raise BidroError for moments (folds, ...) of every fold's training rows that no dealing of the rows
        has; `left` are the sums over what folds leave out."""
        for fold, count in enumerate(rows.tolist()):
            self.require_part(mean[fold], around[fold], count)
            out = self.rows - count
            first = left.first[0, fold] / out
            second = left.second(0, fold) / out - first[:, None] * first
            # Differences of sums over all rows: what they lose is a share of those.
            slack = (self._slack + 1e-7 * self.size) * np.sqrt(self.rows / out)
            _require_semidefinite(second, slack, out)


def _require_semidefinite(around: Floats, slack: Floats, rows: int) -> None:
    """Raise BidroError for second moments (m, m) around a mean that no `rows` rows have; `slack` (m,) is what
    rounding can do to a deviation."""
    variance = np.diag(around)
    scale = np.sqrt(np.maximum(variance, 0.0) + slack**2)
    safe = np.where(scale > 0, scale, 1.0)
    off = slack / safe  # (m,) a share; 1 for a column that does not vary
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = around / safe[:, None] / safe
    pairs = _ROUNDING + 2 * (off[:, None] + off)
    if not np.all(np.abs(matrix - matrix.T) <= pairs):
        raise BidroError("it tells second moments that are not symmetric.")
    if np.any(variance < -(slack**2)) or np.any(np.abs(matrix) > 1 + pairs):
        raise BidroError("it tells a covariance larger than the deviations of its two columns allow.")
    varies = off <= _VARIES
    room = _OF_SHARES + 4 * len(around) * np.max(off[varies], initial=0.0)
    values = np.linalg.eigvalsh(matrix[np.ix_(varies, varies)])
    if np.any(values < -room):
        raise BidroError("it tells second moments that are not positive semidefinite.")
    if np.sum(values > room) > rows - 1:
        raise BidroError(f"it tells second moments that {rows} row(s) cannot have: there are too few.")
