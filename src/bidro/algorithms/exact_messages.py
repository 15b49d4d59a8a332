"""What the exact solver sends to its clients, and what they reply: a risk, a cut below it, its curvature."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jax import Array

from bidro.trees import namespace
from bidro.worst_case.risk import RiskModel

# Sent in place of an infinite multiplier, since messages hold finite numbers only.
INFINITE = float(np.finfo(float).max)


class Broadcast(NamedTuple):
    x: Any  # (d,) the model to be assessed
    width: Any  # kinks of the loss are smoothed over this, in the client's own units


class Reply(NamedTuple):
    """All that leaves a site, each number computed over all its rows."""

    upper: Array  # upper end of R_i(x); 0 where none is known
    certified: Array  # 1 where `upper` is proven, else 0
    attained: Array  # at x, of a cut below R_i
    gradient: Array  # (k,) of that cut
    smoothing: Array  # what the risk with smoothed kinks exceeds `attained` by
    curvature: Array  # upper triangle of H_i, row by row; empty where it is not sent
    multiplier: Array  # lambda_i; the largest float stands for infinity

    @classmethod
    def of(cls, found: RiskModel) -> Reply:
        xp = namespace(found.value)
        known = xp.isfinite(found.value)
        above = (..., *np.triu_indices(found.gradient.shape[-1]))
        packed = xp.zeros((*known.shape, 0)) if found.curvature is None else found.curvature[above]
        return cls(
            xp.where(known, found.value, 0.0),
            known.astype(float),
            found.attained,
            found.gradient,
            found.smoothing,
            packed,
            xp.minimum(found.multiplier, INFINITE),
        )
