"""Whether the rows that are left for training will do."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.tables.schema import Schema


def require_every_class(schema: Schema, training: NDArray[Any]) -> None:
    """Raise BidroError where a class has no row left among the targets (N,) of training."""
    if schema.classes is None:
        return
    absent = sorted(set(schema.classes) - set(training.tolist()))
    if absent:
        raise BidroError(
            f"All rows of class '{absent[0]}' of '{schema.target}' were kept out of training: it has too "
            "few; merge it with another class, leave it out, or use another --seed or --hold-out 0."
        )
