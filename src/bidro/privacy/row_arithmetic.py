"""Arithmetic in which a row's numbers depend on that row alone, to the last bit: rows clipped to whole
numbers, and losses and gradients of a linear predictor.

Sensitivities are proved for numbers that depend on one row alone. Products of matrices, sums that NumPy
arranges and the processor's own exponential do not promise that: a last bit may change with a row's position,
and rounding may carry it into what is released, for many rows at once. Here are only operations on single
numbers that IEEE 754 rounds in one way: +, -, *, /, roots and scaling by powers of two.

Sums of floating-point numbers depend on their order, and a norm of 1 may be one of 1 + 1e-16. Sums and norms
of whole numbers are exact, so that no rounding can spend more than was charged.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError

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
            "Rows must be finite numbers before noise is added to sums over them; leave out or fill in "
            "what is missing."
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


PrivateLoss = Literal["squared", "logistic"]

# Rows count as no larger and models must not be larger: what is computed of them stays finite.
_LARGEST_IN_ROWS, _LARGEST_IN_MODEL = 2.0**200, 2.0**100
_LARGEST_IN_DIRECTIONS = 2.0**20
# ln 2 in two parts, the first of which has few digits, so that its multiples are exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_EXPONENTIAL = [1 / math.factorial(k) for k in range(14, -1, -1)]
_ODD = [1 / (2 * k + 1) for k in range(17, -1, -1)]


def losses_and_gradients(z: Floats, x: Floats, loss: PrivateLoss) -> Floats:
    """(N, d + 1) the gradient of the loss in the model x (d,), and last the loss, of rows z (N, d + 1).

    A row is (features, 1, target) or, without an intercept, (features, target); the target of a class is -1
    or 1. "squared": (<x, theta> - y)^2. "logistic": ln(1 + exp(-y <x, theta>)). Raises BidroError for a model
    that is not finite, before any row is looked at.
    """
    if not np.all(np.abs(x) <= _LARGEST_IN_MODEL):
        raise BidroError("A model must be of finite numbers, none above 1e30, to be evaluated on rows.")
    inside = np.clip(z, -_LARGEST_IN_ROWS, _LARGEST_IN_ROWS)
    theta, y = inside[:, :-1], inside[:, -1]
    predicted = sum_of_columns(theta * x)
    if loss == "squared":
        residual = predicted - y
        slope, value = 2 * residual, residual * residual
    elif loss == "logistic":
        margin = y * predicted
        slope, value = -y * logistic(-margin), softplus(-margin)
    else:
        raise BidroError(f"Under a privacy budget the loss must be squared or logistic; got '{loss}'.")
    return np.column_stack([theta * slope[:, None], value])


def along(rows: Floats, directions: Floats) -> Floats:
    """(N, d) products of rows (N, d) with each column of `directions` (d, d).

    Raises BidroError for directions that are not of finite numbers, before any row is looked at.
    """
    if not np.all(np.abs(directions) <= _LARGEST_IN_DIRECTIONS):
        raise BidroError("Directions must be of finite numbers, none above a million, for gradients of rows.")
    return np.column_stack([sum_of_columns(rows * column) for column in directions.T])


def softplus(t: Floats) -> Floats:
    """ln(1 + e^t), to a few units in the last place."""
    small = _exponential(-np.abs(t))
    # ln(1 + e) = 2 artanh(e / (2 + e)), of at most 1 / 3.
    part = small / (2 + small)
    return np.asarray(np.maximum(t, 0.0) + 2 * part * _polynomial(_ODD, part * part))


def logistic(t: Floats) -> Floats:
    """1 / (1 + e^-t), to a few units in the last place."""
    small = _exponential(-np.abs(t))
    return np.asarray(np.where(t >= 0, 1.0, small) / (1 + small))


def _exponential(t: Floats) -> Floats:
    """e^t for t <= 0."""
    t = np.maximum(t, -745.0)
    halvings = np.rint(t * (1 / math.log(2)))
    left = (t - halvings * _LN2_HIGH) - halvings * _LN2_LOW
    return np.asarray(np.ldexp(_polynomial(_EXPONENTIAL, left), halvings.astype(np.int64)))


def _polynomial(coefficients: list[float], t: Floats) -> Floats:
    """The highest first, by Horner's rule."""
    total = np.full_like(t, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * t + coefficient
    return total
