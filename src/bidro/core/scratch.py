"""Arrays in scratch files, of which only so much is in memory at a time.

A scratch array is an ordinary NumPy array over a mapped file, so that whatever computes with rows a few at a
time computes with these, too: pages come from the file when they are touched. What has been touched would
count as memory of this process until the system needs it elsewhere. Here it is given back as soon as more
than `resident` bytes are mapped: a thread looks some fifty times a second, and drops all pages; those that
are needed again come back from the system's cache, or from the disk. Where the system does not say how much
is mapped nothing is dropped, and the system decides.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bidro.core.arrays import BLOCK_ROWS
from bidro.core.errors import BidroError

_BETWEEN_LOOKS = 0.02
_STATUS = Path("/proc/self/statm")
_PAGE = mmap.PAGESIZE


class Scratch:
    """A folder of mapped arrays, gone when it is closed. Raises BidroError where the disk has no room.

    Args:
        resident: so many bytes of all arrays are in memory at the most, but for what 20 ms add.
        folder: where the files are; that of temporary files by default.

    Examples:
        >>> from bidro.core.scratch import Scratch
        >>> with Scratch(1 << 20) as scratch:
        ...     rows = scratch.empty((1000, 3))
        ...     rows[:] = 1.0
        ...     float(rows.sum())
        3000.0
    """

    def __init__(self, resident: int, folder: Path | None = None) -> None:
        self.resident = resident
        self._folder = tempfile.TemporaryDirectory(prefix="bidro-", dir=folder)
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._count, self._over = 0, threading.Event()
        self._keeper = threading.Thread(target=_keep, args=(self._maps, resident, self._over), daemon=True)
        self._keeper.start()

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """An array of zeros that stands in a file of its own, which goes with it."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        if size == 0:
            return np.zeros(shape, kind)
        self._require_room(size)
        self._count += 1
        path = self.folder / f"{self._count}.rows"
        with path.open("w+b") as file:
            os.truncate(path, size)
            mapped = mmap.mmap(file.fileno(), size)
        path.unlink()  # the mapping keeps it; a process that is killed leaves nothing behind
        self._maps.add(mapped)
        _SCRATCH_OF[mapped] = self
        return np.frombuffer(mapped, kind).reshape(shape)

    def close(self) -> None:
        """Arrays that somebody still has stay as they are; nobody gives their memory back any more."""
        self._over.set()
        self._folder.cleanup()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_room(self, size: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise BidroError(
                f"The scratch file of this table takes {size / 1e9:,.1f} GB, and '{self.folder.parent}' has "
                f"{free / 1e9:,.1f} GB left; make room, or set TMPDIR to a folder that has it."
            )


def _keep(maps: weakref.WeakSet[mmap.mmap], resident: int, over: threading.Event) -> None:
    """Give pages back whenever more than `resident` bytes of files are mapped beyond what is never given
    back, such as the code of libraries."""
    if not _STATUS.exists() or not hasattr(mmap, "MADV_DONTNEED"):
        return
    floor = _mapped()
    while not over.wait(_BETWEEN_LOOKS):
        if (now := _mapped()) - floor > resident:
            for one in list(maps):
                one.madvise(mmap.MADV_DONTNEED)
            floor = min(_mapped(), now)


def _mapped() -> int:
    """Bytes of files that this process has in memory."""
    return int(_STATUS.read_text().split()[2]) * _PAGE


# Which scratch a mapped array is of.
_SCRATCH_OF: weakref.WeakKeyDictionary[mmap.mmap, Scratch] = weakref.WeakKeyDictionary()


def beside(rows: NDArray[Any], shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An array to be filled, where these rows are: in memory, or in the scratch folder that holds them."""
    home = scratch_of(rows)
    return np.empty(shape, dtype) if home is None else home.empty(shape, dtype)


def taken(rows: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """rows[places], a copy that is where the rows are."""
    found = beside(rows, (len(places), *rows.shape[1:]), rows.dtype)
    for begin in range(0, len(places), BLOCK_ROWS):
        part = slice(begin, begin + BLOCK_ROWS)
        found[part] = rows[places[part]]
    return found


def scratch_of(rows: Any) -> Scratch | None:
    """The scratch folder that an array is in; None for memory."""
    while isinstance(rows, np.ndarray):
        rows = rows.base
    mapped = rows.obj if isinstance(rows, memoryview) else rows
    return _SCRATCH_OF.get(mapped) if isinstance(mapped, mmap.mmap) else None
