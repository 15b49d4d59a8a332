"""What may be asked of a fit and of a statement, so that it can be refused before any work begins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

import numpy as np

from bidro.errors import BidroError

RADIUS_WORDS = ("cross-validate", "bootstrap", "explicit")
WEIGHT_WORDS = ("auto", "simplex", "fixed")
METRICS = ("features", "joint")
CRITERIA = ("risk", "regret")


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


def check_criterion(criterion: Any) -> None:
    """Raise BidroError for a criterion that there is not."""
    if criterion not in CRITERIA:
        raise BidroError(f"criterion must be {_or(CRITERIA)}; got {criterion!r}.")


def check_metric(metric: Any, label_cost: Any, p: Any = None) -> None:
    """Raise BidroError for a cost of moving rows that stands for nothing."""
    if metric not in METRICS:
        raise BidroError(f"metric must be {_or(METRICS)}; got {metric!r}.")
    if not is_number(label_cost) or not 0 < label_cost < math.inf:
        raise BidroError(f"label_cost must be a positive number; got {label_cost!r}.")
    if p is not None and (not is_number(p) or not 1 <= p < math.inf):
        raise BidroError(f"p must be a number of at least 1; got {p!r}.")


def check_radius(radius: Any) -> None:
    """Raise BidroError for a radius that is none."""
    if isinstance(radius, str):
        if radius not in RADIUS_WORDS:
            raise BidroError(f"radius must be a number, one a client, {_or(RADIUS_WORDS)}; got {radius!r}.")
        return
    try:
        given = np.asarray(list(radius.values()) if isinstance(radius, Mapping) else radius, float)
    except (TypeError, ValueError) as error:
        raise BidroError(
            f"radius must be a number, one a client, {_or(RADIUS_WORDS)}; got {radius!r}."
        ) from error
    if given.ndim > 1 or not np.all((given >= 0) & (given < math.inf)):
        raise BidroError(f"A radius must be a finite number of at least 0; got {radius!r}.")


def check_weights(weights: Any) -> None:
    """Raise BidroError for weights that are none."""
    if isinstance(weights, str):
        if weights not in WEIGHT_WORDS:
            raise BidroError(f"weights must be a cap of at least 1, {_or(WEIGHT_WORDS)}; got {weights!r}.")
    elif not is_number(weights) or not 1 <= weights < math.inf:
        raise BidroError(
            "A cap on the weights must be a finite number of at least 1 ('simplex' is without a cap); got "
            f"{weights!r}."
        )


def _or(words: Sequence[str]) -> str:
    """'a', 'b' or 'c'."""
    quoted = [f"'{word}'" for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"
