"""How finely a client tells what it tells of its rows' losses, so that no row's own can be worked out of it.

The mean of n losses and a confidence bound of it are 16 digits each, and where one row lies far out its loss
follows from the two, as the others hardly count in how far the bound is above the mean. So a mean is told to
a quarter of what the row with the largest loss adds to it, that loss taken as the next power of two: then
the loss is known to an eighth of that at best, and the row's residual to a sixteenth of itself. That is well
below the standard error of the mean: rows whose largest loss is eight times their mean tell it to 2% where
there are 100 of them. Bounds are told to the same step, upwards, so that they hold. Standard errors, which
are made of squares of losses, are told to four binary digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats

# The share of what one row adds to a mean that the mean is told to.
SHARE = 0.25
# Binary digits of standard errors, and of how far worst cases move rows.
_DIGITS = 4


def steps(values: Floats, sizes: NDArray[np.int64], draws: Floats) -> Floats:
    """(n,) to what a mean of values (N,) is told by clients with so many rows (n,) and draws (n,)."""
    largest = np.maximum.reduceat(np.abs(values), np.cumsum(sizes) - sizes)
    mantissa, exponent = np.frexp(largest)
    whole = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(np.where(largest > 0, SHARE * whole / draws, 1.0))


def nearest(values: Floats, steps: Floats) -> Floats:
    """The whole step that each value is nearest to."""
    return np.asarray(steps * np.rint(values / steps))


def together(parts: Sequence[Floats], sizes: NDArray[np.int64], draws: Floats) -> Floats:
    """(parts, n) the means of several losses of the same rows, each (N,): the smallest as the nearest step,
    the others by how much they are above it, which is told to a step of its own, as it is smaller."""
    values, first = np.stack(parts), np.cumsum(sizes) - sizes
    means = np.add.reduceat(values, first, axis=1) / sizes
    least = np.argmin(means, axis=0)
    every, base = np.arange(len(sizes)), np.repeat(least, sizes)
    smallest = values[base, np.arange(values.shape[1])]
    found = np.tile(nearest(means[least, every], steps(smallest, sizes, draws)), (len(values), 1))
    for place, above in enumerate(values - smallest):
        found[place] += nearest(means[place] - means[least, every], steps(above, sizes, draws))
    return found


def upwards(values: Floats, steps: Floats) -> Floats:
    """The whole step that is no less than each value."""
    return np.asarray(steps * np.ceil(values / steps))


def few_digits(values: Floats) -> Floats:
    """Values to a few binary digits, towards 0."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(mantissa, _DIGITS)), exponent - _DIGITS))


def error(values: Floats) -> Floats:
    """Standard errors to as many digits, upwards: none is told as less than it is."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.ceil(np.ldexp(mantissa, _DIGITS)), exponent - _DIGITS))
