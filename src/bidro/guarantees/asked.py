"""What may be asked of a statement, so that it can be refused before any work begins."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeGuard

from bidro.errors import BidroError


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of any kind is one real number, of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_confidence(confidence: Any) -> None:
    """Raise BidroError for a confidence that no statement can have."""
    if not is_number(confidence) or not 0 < confidence < 1:
        raise BidroError(
            f"The confidence must be a number strictly between 0 and 1, such as 0.95; got {confidence!r}."
        )


def check_shift(shift: Any) -> None:
    """Raise BidroError for a shift that is no distance; None stands for no statement about shift."""
    if shift is not None and (not is_number(shift) or not 0 <= shift < math.inf):
        raise BidroError(
            "The shift is a distance in standard deviations, a number of at least 0 such as 0.1; got "
            f"{shift!r}."
        )
