"""Table 1: how the rows of all sites lie in every column, from sums alone.

A row adds to every number its value and the square of it, in agreed units, values further out than `REACH`
spreads counting as that far, and one to the cell of a public grid that it lies in; to every category one to
its level. Means, deviations, quantiles, shares and what is missing follow from the sums over rows. With a
budget the sums have noise, and where sites share it they are masked: then no site's table is seen by anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bidro.core.arrays import Floats
from bidro.privacy.accounting import noise_variance
from bidro.privacy.discrete_gaussian import Bits, secret_bits
from bidro.privacy.mechanisms import Noisy, Scale, with_noise
from bidro.privacy.row_arithmetic import Integers, column_sums

if TYPE_CHECKING:
    import pandas as pd

    from bidro.data.tables import Schema

# Agreed spreads on either side of the centre, in so many cells; beyond lie two open ones.
REACH, CELLS = 4.0, 64
STEPS = 2**16
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MISSING, _NOT_LISTED = "(missing)", "(not listed)"


@dataclass(frozen=True)
class DescribedColumn:
    """A number with its agreed centre and spread, or a category with its levels."""

    name: str
    levels: tuple[str, ...] | None
    centre: float = 0.0
    spread: float = 1.0

    @property
    def sums(self) -> int:
        return CELLS + 4 if self.levels is None else len(self.levels) + 2

    @property
    def squared_steps(self) -> int:
        """At most the sum of squares of what a row adds, in steps squared."""
        return (3 if self.levels is None else 1) * STEPS**2

    @property
    def places(self) -> Floats:
        """(CELLS + 1,) where cells end."""
        return np.asarray(self.centre + self.spread * np.linspace(-REACH, REACH, CELLS + 1))


class Described(NamedTuple):
    """What is known of a column, each number as the noisy sums say it."""

    column: str
    level: str  # of a category; "" for a number
    rows: float  # with a cell in this column, or of this level
    share: float  # of all rows
    missing: float  # the share of all rows without a cell in this column
    mean: float | None
    deviation: float | None
    quantiles: tuple[float, ...] | None  # at QUANTILES
    noise: float  # standard deviation of the noise in `rows`


@dataclass(frozen=True)
class TableOne:
    """What is asked of every row; public."""

    columns: tuple[DescribedColumn, ...]

    @classmethod
    def of(cls, schema: Schema, units: Mapping[str, tuple[float, float]]) -> TableOne:
        """Of the target and all columns that are read."""
        numbers = dict(units)
        found = [
            DescribedColumn(schema.target, None, *numbers[schema.target])
            if schema.classes is None
            else DescribedColumn(schema.target, schema.classes)
        ]
        for one in schema.columns:
            if one.of is None:
                found.append(
                    DescribedColumn(one.name, None, *numbers[one.name])
                    if one.levels is None
                    else DescribedColumn(one.name, one.levels)
                )
        return cls(tuple(found))

    @property
    def numbers(self) -> int:
        return 1 + sum(column.sums for column in self.columns)

    @property
    def squared_steps(self) -> int:
        """What one row changes the sums by, at most, in steps squared."""
        return STEPS**2 + sum(column.squared_steps for column in self.columns)

    def scale(self, rho: Fraction | None, rows_per_person: int = 1, sites: int = 1) -> Scale:
        variance = Fraction(0)
        if rho is not None:
            variance = noise_variance(rho, self.squared_steps * rows_per_person**2)
        return Scale(np.full(self.numbers, 1 / STEPS), (variance,) * self.numbers, sites)

    def noisy(
        self,
        table: Sequence[Integers],
        rho: Fraction | None,
        rows_per_person: int = 1,
        bits: Bits = secret_bits,
        sites: int = 1,
    ) -> Noisy:
        """The sums over rows, whose parts `steps` gives column after column."""
        sums = [len(table[0]) * STEPS]
        for part in table:
            sums += column_sums(part)
        return with_noise(sums, self.scale(rho, rows_per_person, sites), bits)

    def steps(self, schema: Schema, table: pd.DataFrame) -> list[Integers]:
        """For every column (N, sums) what each row adds to its sums, in whole steps."""
        found = []
        by_name = {column.name: column for column in schema.columns}
        for column in self.columns:
            if column.levels is None:
                found.append(_of_numbers(column, schema.as_numbers(column.name, table)))
            else:
                found.append(_of_levels(column, by_name.get(column.name), table))
        return found

    def described(self, told: Noisy) -> list[Described]:
        """Lines of the table, column after column, levels in their order."""
        sums, noise = told.sums, float(told.scale.sigma[0])
        every, place, found = max(float(sums[0]), 1.0), 1, list[Described]()
        for column in self.columns:
            own = sums[place : place + column.sums]
            place += column.sums
            if column.levels is None:
                found.append(_number(column, own, every, noise))
                continue
            missing = float(np.clip(own[-2] / every, 0.0, 1.0))
            for level, rows in zip((*column.levels, _MISSING, _NOT_LISTED), own.tolist(), strict=True):
                share = min(max(rows / every, 0.0), 1.0)
                found.append(Described(column.name, level, rows, share, missing, None, None, None, noise))
        return found


def _of_numbers(column: DescribedColumn, values: Floats) -> Integers:
    there = np.isfinite(values)
    away = np.where(there, (np.where(there, values, column.centre) - column.centre) / column.spread, 0.0)
    inside = np.clip(away / REACH, -1.0, 1.0)
    steps = np.zeros((len(values), column.sums), np.int64)
    steps[:, 0], steps[:, 1] = np.rint(inside * STEPS), np.rint(inside * inside * STEPS)
    cells = np.floor((np.clip(away, -2 * REACH, 2 * REACH) + REACH) * (CELLS / (2 * REACH))).astype(np.int64)
    steps[np.flatnonzero(there), 3 + np.clip(cells, -1, CELLS)[there]] = STEPS
    return steps


def _of_levels(column: DescribedColumn, coded: Any, table: pd.DataFrame) -> Integers:
    from bidro.data.tables.cells import distinct, empty_cells
    from bidro.data.tables.schema import Column

    assert column.levels is not None
    values = table[column.name]
    by = Column(column.name, column.levels) if coded is None else coded
    cells = distinct(values)
    place = np.append(by.places(cells), -1)[cells.codes]
    place = np.where(place < 0, len(column.levels) + 1, place)
    place = np.where(empty_cells(values), len(column.levels), place)
    steps = np.zeros((len(values), column.sums), np.int64)
    steps[np.arange(len(values)), place] = STEPS
    return steps


def _number(column: DescribedColumn, sums: Floats, every: float, noise: float) -> Described:
    rows = float(sums[2:].sum())
    counted = max(rows, 1.0)
    first, second = float(sums[0]) / counted, float(sums[1]) / counted
    mean = column.centre + REACH * column.spread * min(max(first, -1.0), 1.0)
    deviation = REACH * column.spread * math.sqrt(max(second - first**2, 0.0))
    missing = min(max(1 - rows / every, 0.0), 1.0)
    quantiles = tuple(_quantile(column, sums[2:], share) for share in QUANTILES)
    # Of a sum over so many cells.
    of_rows = noise * math.sqrt(CELLS + 2)
    return Described(column.name, "", rows, rows / every, missing, mean, deviation, quantiles, of_rows)


def _quantile(column: DescribedColumn, cells: Floats, share: float) -> float:
    """Where that share of the rows lies below; the ends of the grid for what is beyond them. Numbers of rows
    below a place never fall: where noise makes them, the mean of the two nearest ways to that."""
    below = np.concatenate([[0.0], np.cumsum(cells)])
    rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
    wanted, places = share * rising[-1], column.places
    # Of the places, from the least on; `below` has an open cell on either side.
    return float(np.interp(wanted, rising[1:-1], places)) if np.ptp(rising) > 0 else column.centre


def as_json(found: Sequence[Described]) -> list[dict[str, Any]]:
    return [one._asdict() for one in found]


def to_csv(found: Sequence[Described]) -> str:
    """A line a column, or a level."""
    import csv
    import io

    text = io.StringIO()
    names = [f"q{round(100 * share):02d}" for share in QUANTILES]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["column", "level", "rows", "share", "missing", "mean", "deviation", *names, "noise"])
    for one in found:
        middle = [f"{v:.6g}" if v is not None else "" for v in (one.mean, one.deviation)]
        places = [f"{v:.6g}" for v in one.quantiles] if one.quantiles else [""] * len(names)
        first = [
            _text(one.column),
            _text(one.level),
            f"{one.rows:.1f}",
            f"{one.share:.4f}",
            f"{one.missing:.4f}",
        ]
        writer.writerow([*first, *middle, *places, f"{one.noise:.1f}"])
    return text.getvalue()


def _text(word: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{word}" if word[:1] in "=+-@\t\r" else word
