"""What is known of a model without reading its file: its inputs, its outputs, how large it may be."""

from __future__ import annotations

from typing import NamedTuple

MOST_BYTES = 16 * 2**20  # of a file


class Port(NamedTuple):
    """An input or output of a model."""

    name: str
    kind: str  # float32, float64, int64, text; of outputs also "by class", a number for every class
    flat: bool  # whether it is of one axis, that of the rows
    width: int | None  # columns; None where any number will do
