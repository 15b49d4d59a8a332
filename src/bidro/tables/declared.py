"""Bounds that were declared for the columns of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.tables.places import row_name
from bidro.tables.schema import Schema


def bounds_of(support: Mapping[str, Any], schema: Schema) -> tuple[Floats, Floats]:
    """(lower, upper) of every feature and, for a numeric target, of the target, from bounds by column.

    Coded categories lie in [0, 1]. Raises BidroError for a number without bounds, or a bound of no column.
    """
    numeric = [column.name for column in schema.columns if column.levels is None]
    if schema.classes is None:
        numeric.append(schema.target)
    unknown = sorted(set(support) - set(numeric))
    if unknown:
        raise BidroError(f"The support has bounds of '{unknown[0]}', which is no number of the schema.")
    missing = [name for name in numeric if name not in support]
    if missing:
        raise BidroError(f"The support has no bounds of '{missing[0]}'; declare it as [lower, upper].")
    ends: list[tuple[float, float]] = []
    for column in schema.columns:
        ends += [_pair(column.name, support)] if column.levels is None else [(0.0, 1.0)] * len(column.coded)
    if schema.classes is None:
        ends.append(_pair(schema.target, support))
    return tuple(np.array(side) for side in zip(*ends, strict=True))  # type: ignore[return-value]


def _pair(name: str, support: Mapping[str, Any]) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in support[name])
    except (TypeError, ValueError) as error:
        raise BidroError(f"The support of '{name}' must be [lower, upper]; got {support[name]!r}.") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BidroError(f"The support of '{name}' must be finite with lower < upper; got {support[name]!r}.")
    return low, high


def require_declared(support: Mapping[str, Any], schema: Schema, table: pd.DataFrame) -> None:
    """Raise BidroError for the first number of the table outside its declared bounds."""
    bounds_of(support, schema)
    for name in support:
        low, high = _pair(name, support)
        values = schema.as_numbers(name, table)
        outside = (values < low) | (values > high)
        if outside.any():
            place = int(np.argmax(outside))
            raise BidroError(
                f"{row_name(table, place)}: '{name}' is {values[place]:g}, outside the declared support "
                f"[{low:g}, {high:g}]; widen the support or fix the row."
            )
