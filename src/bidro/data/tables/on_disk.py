"""Tables that are larger than memory: read a column at a time.

Parquet files are read as they are. Text, and frames that come one after the other (as from a database), are
written as Parquet a batch at a time, so that memory holds one. Whatever learns a schema, or makes numbers of
a table by it, asks for one column after the other (`table[name]`), and gets what it would of the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro.core.errors import BidroError, listed
from bidro.data.tables.cells import remember_files

# Rows of a batch, at about so many cells.
_BATCH_CELLS = 4_000_000


@dataclass(frozen=True)
class Part:
    """Rows of the table in one Parquet file; some columns may be in another, `words`, all of them text."""

    path: Path
    rows: int
    words: Path | None = None


@dataclass(frozen=True)
class File:
    """A table that was given, as parts one below the other."""

    path: Any  # the file or the query, by which it is named
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    words: frozenset[str] = frozenset()  # the columns that are in the parts' other files

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def column(self, name: str) -> pd.Series:
        from pyarrow import parquet

        found = []
        for part in self.parts:
            path = part.words if name in self.words else part.path
            assert path is not None
            read = parquet.read_table(path, columns=[name], pre_buffer=False)
            found.append(read.column(0).to_pandas())
        return _below(found, name)


@dataclass(eq=False)
class TableOnDisk:
    """What `read` makes of tables, a column at a time; like a frame it has `columns`, `attrs`, a length."""

    files: Sequence[File]
    by_file: tuple[str, tuple[str, ...]] | None = None  # (column, value in each file) that files' names give
    attrs: dict[str, Any] = field(default_factory=dict)
    _last: tuple[str, pd.Series] | None = None  # asked for again at once, as checks and readers do

    def __post_init__(self) -> None:
        remember_files(self, [(one.path, len(one)) for one in self.files])

    @property
    def columns(self) -> pd.Index:
        more = [] if self.by_file is None else [self.by_file[0]]
        return pd.Index([*self.files[0].columns, *more])

    def __len__(self) -> int:
        return sum(map(len, self.files))

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> pd.Series:
        if name not in self:
            raise KeyError(name)
        if self._last is None or self._last[0] != name:
            self._last = None  # two columns are never here together
            self._last = name, self._read(name)
        return self._last[1]

    def _read(self, name: str) -> pd.Series:
        if self.by_file is not None and name == self.by_file[0]:
            names = pd.CategoricalDtype(list(dict.fromkeys(self.by_file[1])))
            codes = [names.categories.get_loc(one) for one in self.by_file[1]]
            owner = np.repeat(codes, [len(one) for one in self.files])
            found = pd.Series(pd.Categorical.from_codes(owner, dtype=names), name=name)
        else:
            found = _below([one.column(name) for one in self.files], name)
        found.attrs = self.attrs
        return found

    def renamed(self, before: str, after: str) -> TableOnDisk:
        """With another name for the column that says whose row it is."""
        if before == after:
            return self
        if self.by_file is not None and self.by_file[0] == before:
            return TableOnDisk(self.files, (after, self.by_file[1]))
        raise BidroError(f"The client column is '{before}', and the schema names it '{after}'; rename it.")


def _below(parts: list[pd.Series], name: str) -> pd.Series:
    """One column of several parts: as of frames that are put below each other."""
    whole = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
    if len(parts) > 1 and all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
        whole = whole.astype("category")
    return whole.rename(name)


def parquet_file(path: Path) -> File:
    """A Parquet file as it is. Columns that were an index when it was written are columns all the same, and
    come first; an index without a name is none."""
    from pyarrow import parquet

    about = parquet.read_schema(path)
    with parquet.ParquetFile(path) as file:
        rows = file.metadata.num_rows
    index = [name for name in (about.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    names = [name for name in about.names if name not in index]
    named = [name for name in index if not name.startswith("__index_level_")]
    return File(path, (*named, *names), (Part(path, rows),))


def file_of_batches(
    path: Any,
    batches: Iterable[pd.DataFrame],
    folder: Path,
    again: Callable[..., Iterator[pd.DataFrame]] | None = None,
) -> File:
    """What `path`, a file or a query, gives in batches, each a frame with the same columns, written to this
    folder as Parquet.

    Of text it is known at its end alone whether a column is numbers: one that is numbers in some batches and
    text in others is read `again(usecols=[...], dtype=str)`, as if all had been read at once. Without `again`
    batches know the types of their columns.
    """
    folder.mkdir(exist_ok=True)
    kinds, parts = dict[str, set[str]](), list[Part]()
    columns: tuple[str, ...] = ()
    for frame in batches:
        names = tuple(str(name) for name in frame.columns)
        columns = columns or names
        if names != columns:
            raise BidroError(f"'{path}': batches have other columns: {listed(names)}, not {listed(columns)}.")
        for name in names:
            kinds.setdefault(name, set()).update(_kind(frame[name]))
        parts.append(Part(_written(frame, folder / f"{len(parts)}.parquet"), len(frame)))
    if not parts:
        raise BidroError(f"'{path}' has no rows.")
    mixed = frozenset(name for name, own in kinds.items() if len(own) > 1)
    if mixed and again is None:
        raise BidroError(f"'{path}': column '{min(mixed)}' is of several types; make it of one in the query.")
    if mixed and again is not None:
        texts = again(usecols=sorted(mixed), dtype=str)
        places = [folder / f"{k}-words.parquet" for k in range(len(parts))]
        parts = [
            Part(one.path, one.rows, _written(frame, place))
            for one, frame, place in zip(parts, texts, places, strict=True)
        ]
    return File(path, columns, tuple(parts), mixed)


def batch_rows(columns: int) -> int:
    """How many rows of so many columns are read together."""
    return max(1000, _BATCH_CELLS // max(columns, 1))


def _kind(column: pd.Series) -> set[str]:
    """What the cells of a batch are, as far as there are any."""
    if pd.api.types.is_bool_dtype(column):
        return {"true or false"}
    if pd.api.types.is_numeric_dtype(column):
        return set() if column.isna().all() else {"numbers"}
    known = column.dropna()
    if len(known) and all(isinstance(value, bool | np.bool_) for value in known.unique()):
        return {"true or false"}
    return {"text"} if len(known) else set()


def _written(frame: pd.DataFrame, place: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), place, compression="lz4")
    return place


def same_rows(one: File, other: File) -> bool:
    """Whether two files hold the same rows in the same order."""
    if len(one) != len(other) or one.columns != other.columns:
        return False
    return all(one.column(name).equals(other.column(name)) for name in one.columns)
