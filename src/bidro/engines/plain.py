"""What a round is asked for, as plain data: algorithms with their settings, and penalties or radii.

Nothing is built from such data. Who is asked describes all that it would answer, and compares.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bidro.algorithms import (
    AFL,
    DRFA,
    FDRSVM,
    QFFL,
    Adam,
    BiDROCompressed,
    BiDROFL,
    BiDROLocal,
    EightBit,
    ExactMWDRO,
    FedAvg,
    GroupDRO,
    GroupDROBalls,
    MixtureBall,
    Momentum,
    OneShotMWDRO,
    ServerOptimised,
    TopK,
    UnbalancedDRO,
)
from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.fold_newton import FoldNewton
from bidro.algorithms.own_correction import OwnCorrections, Shrinkage
from bidro.client import Penalty, WassersteinBall
from bidro.errors import BidroError
from bidro.worst_case import BacktrackingAscent, Exact, FixedStepAscent

_KINDS = (
    *(AFL, BiDROCompressed, BiDROLocal, DRFA, FDRSVM, FedAvg, GroupDRO, GroupDROBalls, MixtureBall, QFFL),
    *(UnbalancedDRO, EightBit, TopK, ServerOptimised, Momentum, Adam),
    *(BiDROFL, ExactMWDRO, OneShotMWDRO, FoldScores, FoldSolves, FoldNewton, FoldMoments, OwnCorrections),
    *(Candidate, Shrinkage, BacktrackingAscent, Exact, FixedStepAscent, Penalty, WassersteinBall),
)


def described(value: Any) -> Any:
    """Numbers, text and objects of the list, as JSON holds them. Raises BidroError for others."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if type(value) in _KINDS:
        if isinstance(value, Candidate | Shrinkage):
            names = list(value._fields)
        else:
            names = [field.name for field in dataclasses.fields(value) if field.init]
        return {"kind": type(value).__name__, **{name: described(getattr(value, name)) for name in names}}
    if isinstance(value, tuple):
        return [described(part) for part in value]
    raise BidroError(f"A {type(value).__name__} cannot be sent to another machine.")
