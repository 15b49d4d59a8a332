"""How finely a client rounds the losses that it reports, so that no single row's can be reconstructed.

The mean of n losses and a confidence bound of it are 16 digits each, and where one row lies far out its loss
follows from the two, as the others hardly count in how far the bound is above the mean. So `QUANTISED` has a
mean reported to a quarter of what the row with the largest loss adds to it, that loss taken as the next power
of two: then the loss is known to an eighth of that at best, and the row's residual to a sixteenth of itself.
That is well below the standard error of the mean: rows whose largest loss is eight times their mean report
it to 2% where there are 100 of them. Bounds are reported to the same step, upwards, so that they hold.
Standard errors, which are made of squares of losses, have four binary digits. `EXACT` is for rows that are
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bidro.certify.held_out import ClientBound
from bidro.core.arrays import Floats

# The share of what one row adds to a mean that the mean is reported to.
SHARE = 0.25
# Binary digits of standard errors, and of how far worst cases move rows.
_DIGITS = 4


class Rounding:
    """Numbers as they are; the base of other roundings."""

    def means(self, losses: Sequence[Floats], draws: int) -> Floats:
        """(losses,) the means of several losses (N,) of the same rows, which are so many draws."""
        return np.array([one.mean() for one in losses])

    def bounds(
        self, found: list[ClientBound], losses: Floats, draws: int, largest: float, mean: float | None
    ) -> list[ClientBound]:
        """Bounds of one mean at several levels, from losses (N,) that count as at most `largest`. `mean` is
        what that mean was reported as; None where it was not."""
        return found

    def mistakes(self, found: list[ClientBound]) -> list[ClientBound]:
        """Bounds of a share of mistakes at several levels."""
        return found

    def error(self, errors: Floats) -> Floats:
        """Standard errors."""
        return errors

    def moves(self, lengths: Floats) -> Floats:
        """How far worst cases move rows."""
        return lengths


class Quantised(Rounding):
    """See the module's docstring."""

    def means(self, losses: Sequence[Floats], draws: int) -> Floats:
        """The smallest as the nearest step, the others by how much they are above it, which is reported to a
        step of its own, as it is smaller."""
        means = super().means(losses, draws)
        least = int(np.argmin(means))
        base = nearest(means[least], step(losses[least], draws))
        above = [
            nearest(mean - means[least], step(one - losses[least], draws))
            for one, mean in zip(losses, means, strict=True)
        ]
        return base + np.array(above)

    def bounds(
        self, found: list[ClientBound], losses: Floats, draws: int, largest: float, mean: float | None
    ) -> list[ClientBound]:
        width, exact = step(losses, draws), found[0].mean
        assert exact is not None
        reported = min(nearest(exact, width) if mean is None else mean, largest)
        # Where the mean is reported as more than it is, so is the bound.
        room = max(reported - exact, 0.0)
        return [
            ClientBound(min(upwards(one.bound + room, width), largest), reported, one.rows) for one in found
        ]

    def error(self, errors: Floats) -> Floats:
        """Upwards: none is reported as less than it is."""
        return _digits(errors, np.ceil)

    def moves(self, lengths: Floats) -> Floats:
        """Towards 0."""
        return _digits(lengths, np.trunc)


EXACT, QUANTISED = Rounding(), Quantised()


def step(losses: Floats, draws: int) -> float:
    """To what the mean of losses (N,) of so many draws is reported."""
    largest = float(np.abs(losses).max())
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(largest)
    return SHARE * math.ldexp(1.0, exponent - (mantissa == 0.5)) / draws


def among_people(bound: float, scores: Floats, draws: NDArray[np.int64], least: int) -> float:
    """A bound of scores (N,), one of them, as it may leave: the least number of few binary digits that is no
    less, such that at least so many draws (N,) have scores next below it, down to the number before; and
    where even from one power of two to the next there are fewer, the next power of two, to which the steps
    of means show the largest loss as well. So of one score it says hardly more than that it may be any of
    theirs."""
    exponent = math.frexp(bound)[1]
    for digits in range(_DIGITS, 0, -1):
        step = math.ldexp(1.0, exponent - digits)
        top = upwards(bound, step)
        if len(np.unique(draws[(scores > top - step) & (scores <= top)])) >= least:
            return top
    return upwards(bound, math.ldexp(1.0, exponent))


def decimals_up(bound: float, digits: int) -> float:
    """The least number of so many decimal digits that is not below a bound of at least 0."""
    if not 0 < bound < math.inf:
        return bound
    near = float(f"{bound:.{digits - 1}e}")
    unit = 10.0 ** (math.floor(math.log10(bound)) - digits + 1)
    return near if near >= bound else float(f"{near + unit:.{digits - 1}e}")


def nearest(value: float, step: float) -> float:
    """The whole step that a value is nearest to."""
    return step * round(value / step)


def upwards(value: float, step: float) -> float:
    """The whole step that is no less than a value."""
    return step * math.ceil(value / step)


def _digits(values: Floats, whole: np.ufunc) -> Floats:
    """Values to a few binary digits, made whole by a function."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(whole(np.ldexp(mantissa, _DIGITS)), exponent - _DIGITS))
