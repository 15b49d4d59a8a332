"""Tables from and to files: CSV in the forms in which it is found, and Parquet; CSV out, in which no cell is
a formula to a spreadsheet.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import logging
import lzma
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import machine_memory, release, repeated
from bidro.core.errors import BidroError, listed, require_package
from bidro.core.files import require_file
from bidro.data.tables.cells import remember_files
from bidro.data.tables.databases import Query
from bidro.data.tables.on_disk import File, TableOnDisk, batch_rows, file_of_batches, parquet_file, same_rows
from bidro.data.tables.schema import require_single_columns

_log = logging.getLogger(__name__)

_Read = TypeVar("_Read")

# The column that says whose row it is, where each client has a file of its own.
FILE_CLIENT = "client"

_TEXT = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")
_SEPARATORS = (",", ";", "\t", "|")
# So much of a file is looked at to find its separator.
_HEAD_BYTES, _HEAD_LINES = 65_536, 20
# A number takes so much.
_CELL_BYTES = 8
# Packed text is about so many times as long when it is unpacked.
_PACKED_TIMES = 4
# How packed files and workbooks begin.
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PAR1", b"\xd0\xcf\x11\xe0")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Numbers are read to the last bit: by these bits rows are held out and dealt to folds. Since 3.1 pandas does
# so by itself; what it did before was quicker, and often off by one in the last place.
_EXACTLY: Mapping[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)


def _unpacked_zstd(path: Path) -> IO[bytes]:
    _require_arrow(path)
    import pyarrow

    return cast("IO[bytes]", pyarrow.input_stream(str(path), compression="zstd"))


_UNPACKED: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _unpacked_zstd,
}


# Where rows are: in a file, or what a query of a database gives.
Source = Path | Query


def read(paths: Sequence[Source], client: str | None) -> tuple[pd.DataFrame, str]:
    """(the rows of all tables, the name of the client column).

    One table with a client column; or, without `client`, one file a client, whose name is the client's. A
    model that was fitted on such files may be used on one of them alone. Of a folder, all tables in it.
    """
    paths = tables_in(paths)
    parts = [read_one(path) for path in paths]
    _refuse_the_same_twice(paths, parts, lambda one: [one.iloc[k].tolist() for k in (0, -1)], _equal)
    client, names = _owners(paths, parts, client)
    if names is not None:
        parts = [part.assign(**{client: name}) for part, name in zip(parts, names, strict=True)]
    first = list(parts[0].columns)
    whole = parts[0] if len(parts) == 1 else _joined([part[first] for part in parts])
    remember_files(whole, [(path, len(part)) for path, part in zip(paths, parts, strict=True)])
    return whole, client


def read_on_disk(paths: Sequence[Source], client: str | None, folder: Path) -> tuple[TableOnDisk, str]:
    """The same, without any table in memory as a whole; text is laid out in this folder."""
    paths = tables_in(paths)
    files = [_file_on_disk(path, folder / str(k)) for k, path in enumerate(paths)]
    _refuse_the_same_twice(paths, files, lambda one: [one.parts[0].rows], same_rows)
    client, names = _owners(paths, files, client)
    return TableOnDisk(files, None if names is None else (client, names)), client


def tables_in(paths: Sequence[Source]) -> list[Source]:
    """The files, and for a folder the tables in it, by name. Raises BidroError where there is none."""
    found: list[Source] = []
    for path in paths:
        inside: list[Source] = [path]
        if isinstance(path, Path) and path.is_dir():
            inside = [one for one in sorted(path.iterdir()) if _is_table(one)]
        if not inside:
            raise BidroError(f"The folder '{path}' holds no table, CSV or Parquet.")
        found += inside
    if not found:
        raise BidroError("Give at least one table, CSV or Parquet.")
    return found


def _is_table(path: Path) -> bool:
    kind = Path(path.stem).suffix if path.suffix.lower() in _UNPACKED else path.suffix
    return not path.name.startswith((".", "_")) and kind.lower() in (*_TEXT, *_PARQUET)


def cells_bytes(paths: Sequence[Source]) -> int | None:
    """About how much memory the cells of these tables take as numbers; None where a query tells nothing of
    it."""
    total = 0
    for path in tables_in(paths):
        if isinstance(path, Query):
            return None
        require_file(path)
        size = path.stat().st_size
        if path.suffix.lower() in _PARQUET:
            _require_arrow(path)
            total += parquet_bytes(path)
        else:
            total += size * (_PACKED_TIMES if path.suffix.lower() in _UNPACKED else 1)
    return total


def _owners(
    paths: Sequence[Source], parts: Sequence[Any], client: str | None
) -> tuple[str, tuple[str, ...] | None]:
    """(the client column, the client of each file where its name says it). Raises BidroError for a table
    without rows, or without the columns of the first, and where nothing says whose a row is."""
    for path, part in zip(paths, parts, strict=True):
        if len(part) == 0:
            raise BidroError(f"'{path}' has no rows.")
    names = None
    by_file = client == FILE_CLIENT and FILE_CLIENT not in parts[0].columns
    if client is None or by_file:
        if len(paths) == 1 and not by_file:
            raise BidroError("One table needs --client COLUMN, which says whose row each is.")
        if any(isinstance(path, Query) for path in paths):
            raise BidroError("Rows of a query need --client COLUMN, which says whose row each is.")
        names = tuple(_client_of(path) for path in paths if isinstance(path, Path))
        if (twice := repeated(names)) is not None:
            raise BidroError(f"Two files are named '{twice}'; a file's name is that of its client.")
        client = FILE_CLIENT
    first = list(parts[0].columns)
    for path, part in zip(paths, parts, strict=True):
        if set(part.columns) != set(first):
            odd = sorted(set(map(str, part.columns)) ^ set(map(str, first)))[0]
            raise BidroError(f"'{path}' and '{paths[0]}' have other columns: '{odd}' is in one only.")
        if names is None and client not in part.columns:
            raise BidroError(f"'{path}' has no column '{client}'; it has {listed(part.columns)}.")
    return client, names


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    whole = pd.concat(parts, ignore_index=True)
    for name in whole.columns:
        # What every file declares a category stays one, though the files have other levels.
        if all(isinstance(part[name].dtype, pd.CategoricalDtype) for part in parts):
            whole[name] = whole[name].astype("category")
    return whole


def _client_of(path: Path) -> str:
    """ "north" for north.csv and north.csv.gz."""
    return Path(path.stem).stem if path.suffix.lower() in _UNPACKED else path.stem


def _refuse_the_same_twice(
    paths: Sequence[Source],
    parts: Sequence[Any],
    ends: Callable[[Any], list[Any]],
    equal: Callable[[Any, Any], bool],
) -> None:
    """Raise BidroError for two files of the same rows: some would be both trained on and held out."""
    seen: dict[tuple[Any, ...], list[int]] = {}
    for k, part in enumerate(parts):
        # Few tables agree in these, and only those are compared as a whole.
        looks = map(str, ends(part)) if len(part) else ()
        alike = seen.setdefault((len(part), *map(str, part.columns), *looks), [])
        for j in alike:
            if equal(part, parts[j]):
                raise BidroError(
                    f"'{paths[j]}' and '{paths[k]}' hold the same rows, which would be on both sides of the "
                    "hold-out; give each table once."
                )
        alike.append(k)


def _equal(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return bool(one.equals(other))


def read_one(path: Source) -> pd.DataFrame:
    """A CSV file (also packed, with other separators or in another encoding), a Parquet file, or what a query
    gives."""
    if isinstance(path, Query):
        return path.read()
    table = _opened(path, _read_parquet, _parsed)
    remember_files(table, [(path, len(table))])
    return table


def _file_on_disk(path: Source, folder: Path) -> File:
    """The same as columns that are read when they are wanted; text, and what a query gives, are laid out in
    this folder."""
    if isinstance(path, Query):
        return file_of_batches(path, path.frames(), folder)

    def parsed(path: Path, unpacked: Callable[[Path], IO[bytes]], sep: str, encoding: str) -> File:
        names, shared = _header(path, unpacked, sep, encoding)

        def batches(**more: Any) -> Iterator[pd.DataFrame]:
            with unpacked(path) as stream, _named_parser_errors(path):
                yield from pd.read_csv(
                    stream, low_memory=False, chunksize=batch_rows(len(names)), **_EXACTLY, **shared, **more
                )

        return file_of_batches(path, batches(), folder, batches)

    def as_it_is(path: Path) -> File:
        _require_arrow(path)
        from pyarrow import parquet

        require_single_columns(parquet.read_schema(path).names, f"'{path}'")
        return parquet_file(path)

    _require_arrow(path)
    return _opened(path, as_it_is, parsed)


def _opened(path: Path, parquet: Callable[[Path], _Read], text: Callable[..., _Read]) -> _Read:
    """What these make of a file of either kind. Raises BidroError for any other, and for what they raise."""
    if path.is_dir():
        raise BidroError(f"'{path}' is a folder; give the tables in it.")
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    require_file(path)
    kind = path.suffix.lower()
    packed = kind in _UNPACKED
    try:
        if kind in _PARQUET:
            return parquet(path)
        if (Path(path.stem).suffix.lower() if packed else kind) in _TEXT:
            return _read_text(path, _counted(_UNPACKED[kind]) if packed else lambda p: p.open("rb"), text)
        raise BidroError(
            f"'{path}' is neither .csv, .tsv or .txt (also .gz, .bz2, .xz or .zst of these) nor .parquet; "
            "save it as one of them."
        )
    except BidroError:
        raise
    except Exception as error:
        raise BidroError(f"'{path}' could not be read as a table: {_first_line(error)}") from error


def _counted(unpacked: Callable[[Path], Any]) -> Callable[[Path], IO[bytes]]:
    return lambda path: cast("IO[bytes]", io.BufferedReader(_Counted(path, unpacked(path))))


def _read_text(path: Path, unpacked: Callable[[Path], IO[bytes]], parsed: Callable[..., _Read]) -> _Read:
    with unpacked(path) as stream:
        head = stream.read(_HEAD_BYTES)
    if not head.strip():
        raise BidroError(f"'{path}' is empty.")
    wide = head.startswith(_UTF_16)
    if head.startswith(_PACKED) or (b"\0" in head and not wide):
        raise BidroError(
            f"'{path}' is not text but a packed file, a workbook or the like; give it the ending of its "
            "kind, or save it as CSV."
        )
    encodings = ("utf-16",) if wide else ("utf-8", "cp1252")
    for encoding in encodings:
        try:
            table = parsed(path, unpacked, _separator(path, head.decode(encoding, "replace")), encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "cp1252":
            _log.warning(
                "Note: '%s' is not UTF-8 and was read as Windows-1252 (Latin-1); save it as UTF-8 if letters "
                "are wrong.",
                path,
            )
        return table
    raise BidroError(f"'{path}' is neither UTF-8 nor Windows-1252 (Latin-1) text; save it as UTF-8.")


def _separator(path: Path, head: str) -> str:
    """What lies between cells: a tab in .tsv, else what splits the first lines alike into most cells."""
    if "\t" in head and ".tsv" in path.name.lower():
        return "\t"
    lines = [line for line in head.lstrip("\ufeff").splitlines() if line.strip()]
    # The last line may have been cut.
    lines = lines[:_HEAD_LINES] if len(lines) <= 2 else lines[: min(len(lines) - 1, _HEAD_LINES)]
    cells = {sep: [len(row) for row in csv.reader(lines, delimiter=sep)] for sep in _SEPARATORS}
    even = [sep for sep in _SEPARATORS if len(set(cells[sep])) == 1 and cells[sep][0] > 1]
    return max(even or _SEPARATORS, key=lambda sep: cells[sep][0])


def _parsed(path: Path, unpacked: Callable[[Path], IO[bytes]], sep: str, encoding: str) -> pd.DataFrame:
    shared = _header(path, unpacked, sep, encoding)[1]
    with unpacked(path) as stream, _named_parser_errors(path):
        return pd.read_csv(stream, low_memory=False, **_EXACTLY, **shared)


def _header(
    path: Path, unpacked: Callable[[Path], IO[bytes]], sep: str, encoding: str
) -> tuple[list[str], dict[str, Any]]:
    """(the names of the columns, how the file is parsed)"""
    shared: dict[str, Any] = {"sep": sep, "encoding": encoding, "index_col": False}
    with unpacked(path) as stream:
        header = pd.read_csv(stream, header=None, nrows=1, dtype=str, keep_default_na=False, **shared)
    names = [str(name).lstrip("\ufeff") for name in header.iloc[0]]
    require_single_columns([name for name in names if name], f"'{path}'")
    return names, shared


@contextmanager
def _named_parser_errors(path: Path) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            yield
        except pd.errors.ParserWarning as error:
            raise BidroError(f"'{path}': rows have more cells than the header; name every column.") from error
        except pd.errors.ParserError as error:
            odd = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
            if odd is None:
                raise
            raise BidroError(
                f"'{path}', line {odd[2]} (the header is line 1): {odd[3]} cells where the lines before have "
                f"{odd[1]}; quote cells that hold a separator."
            ) from error


def _read_parquet(path: Path) -> pd.DataFrame:
    """Columns of numbers stay where they were read, so that there is one copy of them, not two."""
    _require_arrow(path)
    from pyarrow import parquet

    require_single_columns(parquet.read_schema(path).names, f"'{path}'")
    _require_room(path, parquet_bytes(path))
    # Read ahead, the packed file would be in memory together with its content.
    packed = parquet.read_table(path, pre_buffer=False)
    table = packed.to_pandas(split_blocks=True, self_destruct=True)
    del packed
    release()
    # A column that was an index when the file was written is a column all the same.
    named = any(name is not None for name in table.index.names)
    return table.reset_index() if named else table.reset_index(drop=True)


def parquet_bytes(path: Path) -> int:
    """How much memory the cells take, before any is read: a few bytes can stand for one value a billion
    times over, or for a long text as often."""
    import pyarrow.compute as compute
    from pyarrow import parquet

    total, texts = 0, set()
    with parquet.ParquetFile(path) as file:
        about = file.metadata
        for k in range(about.num_row_groups):
            for column in map(about.row_group(k).column, range(about.num_columns)):
                total += max(column.total_uncompressed_size, _CELL_BYTES * column.num_values)
                # Where texts are given by their positions in a list, each may be as long as the list.
                listed = column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page
                if listed and column.num_values * column.total_uncompressed_size > memory_here():
                    texts.add(column.path_in_schema)
        if not texts or total > memory_here():
            return total
    with parquet.ParquetFile(path, read_dictionary=sorted(texts)) as file:
        for k in range(about.num_row_groups):
            for column in file.read_row_group(k, columns=sorted(texts)).columns:
                for part in column.chunks:
                    if hasattr(part, "dictionary"):
                        lengths = compute.fill_null(compute.binary_length(part.dictionary), 0).to_numpy()
                        places = part.indices.drop_null().to_numpy()
                        total += int(np.bincount(places, minlength=len(lengths)) @ lengths)
    return total


def memory_here() -> int:
    """What this machine has, in bytes; 1 TiB where that is not known."""
    return machine_memory() or 2**40


def _require_room(path: Path, needed: int) -> None:
    if needed > (there := memory_here()):
        raise BidroError(
            f"'{path}' holds cells of {needed / 2**30:,.1f} GiB, and this machine has {there / 2**30:,.1f} "
            "GiB of memory; take fewer rows or columns."
        )


class _Counted(io.RawIOBase):
    """An unpacked stream that is given up where it is longer than the memory is large."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream, self._count = path, stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, place: Any) -> int:
        data = self._stream.read(len(place))
        place[: len(data)] = data
        self._count += len(data)
        _require_room(self._path, self._count)
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _require_arrow(path: Path) -> None:
    require_package("pyarrow", "parquet", f"Reading '{path}'")


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".") + "."


# A spreadsheet takes a text that begins so for a formula, and computes it.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_csv(table: pd.DataFrame) -> str:
    """The table as CSV. Texts that a spreadsheet would compute, in cells and titles, get an apostrophe before
    them, which a warning says; numbers, also those written as text, stay as they are."""
    safe, quoted = table.rename(columns=_plain), csv.QUOTE_MINIMAL
    for place, name in enumerate(table.columns):
        column = table.iloc[:, place]
        if column.dtype.kind in "OUST":
            # Few texts are many cells.
            texts = {text: _plain(text) for text in column.unique() if isinstance(text, str)}
            if any("\r" in text for text in texts):
                quoted = csv.QUOTE_NONNUMERIC  # else it would end the line, and begin a cell
            if changed := [text for text, plain in texts.items() if text != plain]:
                _log.warning(
                    "Note: %r in '%s' would be a formula to a spreadsheet, and is written with an apostrophe "
                    "before it.",
                    changed[0],
                    name,
                )
                safe.isetitem(place, column.map(lambda cell, texts=texts: texts.get(cell, cell)))
    return str(safe.to_csv(index=False, quoting=quoted))


def as_meant(words: NDArray[np.str_]) -> NDArray[np.str_]:
    """(N,) texts without the apostrophes that `as_csv` puts before some."""
    different, which = np.unique(words, return_inverse=True)
    meant = [word[1:] if word.startswith("'") and _plain(word[1:]) == word else word for word in different]
    return np.array(meant, str)[which]


def _plain(text: Any) -> Any:
    if not isinstance(text, str) or not text.startswith(_FORMULAS):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
