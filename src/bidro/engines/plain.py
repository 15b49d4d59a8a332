"""Settings as plain data and back: only objects of a fixed list of kinds are ever built from what arrives."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from bidro.algorithms import (
    AFL,
    DRFA,
    FDRSVM,
    QFFL,
    BiDROCompressed,
    BiDROFL,
    BiDROLocal,
    EightBit,
    ExactMWDRO,
    FedAvg,
    GroupDRO,
    GroupDROBalls,
    MixtureBall,
    OneShotMWDRO,
    TopK,
    UnbalancedDRO,
)
from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.fold_newton import FoldNewton
from bidro.algorithms.own_correction import OwnCorrections, Shrinkage
from bidro.client import Penalty, WassersteinBall
from bidro.curves import Basis
from bidro.errors import BidroError
from bidro.losses import registry
from bidro.sets import Box, WholeSpace
from bidro.transport import Transport
from bidro.worst_case import BacktrackingAscent, Exact, FixedStepAscent

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(AFL, BiDROFL, BiDROLocal, DRFA, FDRSVM, FedAvg, GroupDRO, GroupDROBalls, MixtureBall, QFFL),
        *(UnbalancedDRO, BiDROCompressed, EightBit, TopK),
        *(ExactMWDRO, OneShotMWDRO, FoldScores, FoldSolves, FoldNewton, FoldMoments, Candidate),
        *(OwnCorrections, Shrinkage),
        Basis,
        *(BacktrackingAscent, Exact, FixedStepAscent),
        *(Box, WholeSpace, Transport, Penalty, WassersteinBall),
    )
}


def _kinds() -> dict[str, type]:
    """By name: those above, and every registered loss."""
    return _KINDS | {kind.__name__: kind for kind in registry.kinds().values()}


def described(value: Any) -> Any:
    """Numbers, text, arrays, and objects of the list, as JSON holds them. Raises BidroError for others."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if type(value) in _kinds().values():
        if isinstance(value, Candidate | Shrinkage):
            names = list(value._fields)
        else:
            names = [field.name for field in dataclasses.fields(value) if field.init]
        return {"kind": type(value).__name__, **{name: described(getattr(value, name)) for name in names}}
    if isinstance(value, tuple):
        return [described(part) for part in value]
    if hasattr(value, "dtype"):
        return {"kind": "array", "values": np.asarray(value, float).tolist()}
    raise BidroError(f"A {type(value).__name__} cannot be sent to another machine.")


def made(content: Any) -> Any:
    """What `described` was given. Raises BidroError for anything that it would not have written."""
    if isinstance(content, list):
        return tuple(made(part) for part in content)
    if not isinstance(content, dict):
        return content
    parts = {name: part for name, part in content.items() if name != "kind"}
    kind = content.get("kind")
    try:
        if kind == "array":
            return jnp.asarray(np.asarray(parts["values"], float))
        return _kinds()[str(kind)](**{name: made(part) for name, part in parts.items()})
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BidroError):
            raise
        raise BidroError(f"A message describes no {kind!r} that this version of bidro knows.") from error
