"""Arrays on the host: types, tables of numbers, memory that JAX takes over, and the machine's memory."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError

Floats = NDArray[np.float64]
# Rows looked at together, so that nothing copies the data.
BLOCK_ROWS = 65_536


def aligned(shape: tuple[int, int]) -> Floats:
    """An empty table that JAX takes over without a copy: it must start where JAX's own arrays would."""
    alignment = 64
    memory = np.empty(shape[0] * shape[1] * 8 + alignment, np.uint8)
    skip = -memory.ctypes.data % alignment
    return memory[skip : skip + shape[0] * shape[1] * 8].view(np.float64).reshape(shape)


def read_only(table: ArrayLike) -> Floats:
    """The same numbers as an array that cannot be written to; the one that was given stays as it is."""
    view = np.asarray(table).view()
    view.flags.writeable = False
    return view


def release() -> None:
    """Give back the memory of tables that are gone, which Arrow's allocator, if used, would keep."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.default_memory_pool().release_unused()


# With fewer columns, several threads mostly wait for each other.
_SMALL_MATRICES = 512


def one_thread(columns: int) -> AbstractContextManager[Any]:
    """Within it products of matrices are made by one thread, if they have so few columns that several would
    mostly wait for each other: seconds of the processor for nothing, and of the clock on a busy machine."""
    return _pools().limit(limits=1, user_api="blas") if columns <= _SMALL_MATRICES else nullcontext()


@cache
def _pools() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def machine_memory() -> int | None:
    """The machine's memory in bytes; None on systems that do not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs more than once; None where all differ."""
    counts = Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


def as_table(rows: ArrayLike, what: str) -> Floats:
    """The rows as a float64 table. Raises BidroError, with `what` they are, for anything else."""
    try:
        if np.iscomplexobj(rows):
            raise ValueError("it has complex numbers")
        table = np.asarray(rows, dtype=float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"{what} must be a table of numbers, rows x columns ({error}).") from error
    if table.size == 0:
        raise BidroError(f"{what} must have rows; there are none. Leave the client out or give it data.")
    if table.ndim != 2:
        raise BidroError(f"{what} must be a table of rows x columns; got shape {table.shape}.")
    return table


def split_by_sizes(values: NDArray[Any], sizes: Sequence[int] | NDArray[np.int64]) -> list[NDArray[Any]]:
    """Each client's part of values (N, ...) that stand client after client, so many of each."""
    return np.split(values, np.cumsum(sizes)[:-1])


def means_of(values: Floats, sizes: Sequence[int] | NDArray[np.int64]) -> Floats:
    """(n, ...) the clients' means of values (N, ...) that stand client after client, so many of each."""
    counts = np.asarray(sizes)
    sums = np.add.reduceat(values, np.cumsum(counts) - counts, axis=0)
    return np.asarray(sums / counts.reshape(-1, *[1] * (values.ndim - 1)))


def person_means(values: Floats, people: NDArray[Any]) -> tuple[Floats, NDArray[np.int64]]:
    """(people,) the mean over each person's values (N,), of these alone and whatever their order, and how
    many these are."""
    order = np.lexsort((values, people))
    _, first, sizes = np.unique(people[order], return_index=True, return_counts=True)
    each = values[order]
    # No mean lies above its largest part, but for rounding.
    return np.minimum(np.add.reduceat(each, first) / sizes, each[first + sizes - 1]), sizes


def stacked(tables: Sequence[Floats]) -> Floats:
    """The tables below each other, with a single copy, which JAX takes over without another."""
    return np.concatenate(tables, out=aligned((sum(len(t) for t in tables), tables[0].shape[1])))


def column_deviations(rows: Floats) -> Floats:
    """The standard deviation of every column (N, k), block by block, so that no copy of the rows is made."""
    mean, total = rows.mean(axis=0), np.zeros(rows.shape[1])
    for begin in range(0, len(rows), BLOCK_ROWS):
        total += ((rows[begin : begin + BLOCK_ROWS] - mean) ** 2).sum(axis=0)
    return np.asarray(np.sqrt(total / len(rows)))
