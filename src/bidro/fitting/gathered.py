"""Rows of a table, in an order of choice, as one block of memory that JAX takes over without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats, aligned, release

# Rows that are moved together, so that no second copy of all of them is made.
_TOGETHER = 65_536
# And so few that they stay in the processor's cache while columns become rows.
_TURNED = 2_048
# The memory of smaller arrays is not always given back at once.
_GIVEN_BACK = 1 << 25


def gathered(
    features: Floats | list[Floats], target: Floats, orders: Sequence[NDArray[np.int64]]
) -> list[Floats]:
    """For each order, the rows (len(order), k + 1) of these places, the target last.

    `features` is (N, k), or a list of its columns (N,). A list is emptied on the way: then columns that
    nobody else keeps go as they are moved, and there is never a second copy of all numbers.
    """
    if isinstance(features, np.ndarray):
        return [_of_rows(features, target, order) for order in orders]
    width = len(features) + 1
    count = max(_TOGETHER, _GIVEN_BACK // (8 * width) + 1)
    parts = [[order[b : b + count] for b in range(0, len(order), count)] for order in orders]
    # First blocks of columns, while the columns go; then rows, while the blocks go.
    blocks = [[np.empty((width, len(part))) for part in own] for own in parts]
    for j in range(width):
        column = features.pop(0) if features else target
        for own, into in zip(parts, blocks, strict=True):
            for part, block in zip(own, into, strict=True):
                np.take(column, part, out=block[j])
        del column
        release()
    return [_turned(own, width) for own in blocks]


def _of_rows(features: Floats, target: Floats, order: NDArray[np.int64]) -> Floats:
    rows = aligned((len(order), features.shape[1] + 1))
    for begin in range(0, len(order), _TOGETHER):
        part = order[begin : begin + _TOGETHER]
        rows[begin : begin + len(part), :-1] = features[part]
        rows[begin : begin + len(part), -1] = target[part]
    return rows


def _turned(blocks: list[Floats], width: int) -> Floats:
    """Blocks (width, rows) as rows, one below the other; the list is emptied."""
    rows = aligned((sum(block.shape[1] for block in blocks), width))
    end = 0
    while blocks:
        block = blocks.pop(0)
        for begin in range(0, block.shape[1], _TURNED):
            part = block[:, begin : begin + _TURNED].T
            rows[end + begin : end + begin + len(part)] = part
        end += block.shape[1]
    return rows
