"""Sums of products that are rounded once: large terms cancel in the slopes of proofs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def exact_combination(coefficients: Numbers, rows: Numbers) -> Numbers:
    """sum_j coefficients_j rows_j (columns,), each sum rounded once: products are split into their value and
    their rounding error (Dekker), and all of them summed exactly."""
    coefficients, rows = coefficients[coefficients != 0], rows[coefficients != 0]
    products = coefficients[:, None] * rows
    high, low = _halves(coefficients)
    row_high, row_low = _halves(rows)
    error = (high[:, None] * row_high - products) + high[:, None] * row_low + low[:, None] * row_high
    error = error + low[:, None] * row_low
    # Where splitting overflows, the products alone are as good as it gets.
    error[~np.isfinite(error)] = 0.0
    return np.array([math.fsum(column) for column in np.vstack([products, error]).T.tolist()])


def _halves(v: Numbers) -> tuple[Numbers, Numbers]:
    """v as a sum of two numbers of half as many digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        turned = (2.0**27 + 1) * v
        high = turned - (turned - v)
    return high, v - high
