"""Rows as whole numbers whose norm is bounded exactly, so that no rounding can spend more than was charged.

Sums of floating-point numbers depend on their order, and a norm of 1 may be one of 1 + 1e-16; sums of whole
numbers and their norms are what they are. A row's numbers depend on that row alone: each is computed by
additions, multiplications, divisions and roots of single numbers, which are the same wherever a row stands
and however many others there are. A product of matrices, or a sum that NumPy arranges, is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError

Integers = NDArray[np.int64]

# The largest norm that whole numbers are made for: sums of 2^13 products of two are exact in float64.
MOST_STEPS = 2**20
_TOGETHER = 8192


def clipped_rows(rows: Floats, clip: float, steps: int) -> Integers:
    """Rows (N, m) scaled by min(1, clip / ||row||) and then rounded, in units of clip / steps, to whole
    numbers (N, m) with sum of squares at most steps^2, exactly.

    Every row is rounded to the nearest; where that is too long, towards zero. Raises BidroError for numbers
    that are not finite.
    """
    check_clip(clip)
    if not 0 < steps <= MOST_STEPS:
        raise ValueError(f"steps must be from 1 to {MOST_STEPS}; got {steps}")
    if not np.all(np.isfinite(rows)):
        raise BidroError(
            "Rows must be finite numbers before noise is added to what is told of them; leave out or fill "
            "in what is missing."
        )
    largest = np.zeros(len(rows))
    for column in rows.T:
        np.maximum(largest, np.abs(column), out=largest)
    # Directions first, so that squares neither overflow nor vanish.
    with np.errstate(under="ignore", over="ignore"):
        directions = rows / np.where(largest > 0, largest, 1.0)[:, None]
        length = np.sqrt(sum_of_columns(directions**2))
        short = largest * np.maximum(length, 1.0) / clip < 1
        scaled = np.where(
            short[:, None], rows / clip * steps, directions / np.maximum(length, 1.0)[:, None] * steps
        )
    found = np.rint(scaled).astype(np.int64)
    long = np.flatnonzero(_squares(found) > steps**2)
    found[long] = np.trunc(scaled[long]).astype(np.int64)
    while len(long := long[_squares(found[long]) > steps**2]):
        found[long] -= np.sign(found[long])
    return found


def sum_of_columns(table: Floats) -> Floats:
    """(N,) the sum of every row (N, m), from left to right: the same bits wherever the row stands."""
    total = np.zeros(len(table))
    for column in table.T:
        total += column
    return total


def gram(rows: Integers) -> list[list[int]]:
    """(m, m) sum of the outer products of whole rows (N, m) with norm at most `MOST_STEPS`, exactly."""
    m = rows.shape[1]
    total = np.zeros((m, m), dtype=object)
    for begin in range(0, len(rows), _TOGETHER):
        # Every partial sum is a whole number below 2^53, in whatever order it is taken.
        part = rows[begin : begin + _TOGETHER].astype(float)
        total += (part.T @ part).astype(np.int64).astype(object)
    return [[int(entry) for entry in row] for row in total]


def column_sums(rows: Integers) -> list[int]:
    """(m,) the sums of whole rows (N, m), of which none is larger than 2^40, exactly."""
    total = np.zeros(rows.shape[1], dtype=object)
    for begin in range(0, len(rows), _TOGETHER):
        total += rows[begin : begin + _TOGETHER].sum(axis=0).astype(object)
    return [int(entry) for entry in total]


def check_clip(clip: float) -> None:
    """Raise BidroError where a largest norm is none that rows can be scaled to."""
    if not 2.0**-100 <= clip <= 2.0**100:
        raise BidroError(f"A largest norm of rows must be a positive number; got {clip}.")


def _squares(rows: Integers) -> Integers:
    return np.asarray((rows**2).sum(axis=1))
