"""Losses and gradients of a linear predictor, row by row in the strict sense: the same bits for a row
wherever it stands and whatever the others are.

Sensitivities are proved for numbers that depend on one row alone. Products of matrices and the processor's
own exponential do not promise that: a last bit may change with a row's place, and rounding may then carry it
into what is released, for many rows at once. Here are only operations on single numbers that IEEE 754
rounds in one way: +, -, *, / and scaling by powers of two.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.privacy.fixed_point import sum_of_columns

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
        raise BidroError("A model must be of finite numbers, none above 1e30, to be asked about rows.")
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
        raise BidroError(
            "Directions must be of finite numbers, none above a million, to be asked about rows."
        )
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
