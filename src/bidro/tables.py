"""Tables of several sites as numbers: reading, the schema that people agree on, and what does not fit it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.errors import BidroError

Floats = NDArray[np.float64]

# The column that says whose row it is, where each client has a file of its own.
FILE_CLIENT = "client"
# A text column with more levels than this is more likely a name or a date than a category.
MOST_LEVELS = 200


@dataclass(frozen=True)
class Column:
    """A feature: a number, or a category with its levels, of which the first is the reference."""

    name: str
    levels: tuple[str, ...] | None = None  # None for a number
    filler: float | str | None = None  # for missing values; None where they are refused

    @property
    def coded(self) -> tuple[str, ...]:
        """The names of its columns of numbers."""
        if self.levels is None:
            return (self.name,)
        return tuple(f"{self.name}={level}" for level in self.levels[1:])


@dataclass(frozen=True)
class Schema:
    """What a table must have: its client column, its target and its features."""

    client: str
    target: str
    classes: tuple[str, ...] | None  # of the target; None for a number
    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of numbers that a model sees."""
        return tuple(name for column in self.columns for name in column.coded)

    def matrix(self, table: pd.DataFrame, order: NDArray[np.intp] | None = None) -> Floats:
        """(N, k) the features as numbers; `order` chooses rows.

        Raises BidroError for a column that is missing or a level that is not in the schema.
        """
        missing = [column.name for column in self.columns if column.name not in table]
        if missing:
            raise BidroError(
                f"The table has no column '{missing[0]}', which the model needs; it has "
                f"{', '.join(map(str, table.columns))}."
            )
        matrix = np.empty((len(table) if order is None else len(order), len(self.features)))
        place = 0
        for column in self.columns:
            width = len(column.coded)
            _fill(matrix[:, place : place + width], table[column.name], column, order)
            place += width
        return matrix

    def labels(self, table: pd.DataFrame) -> Floats | NDArray[np.str_]:
        """(N,) the target: numbers, or classes as text."""
        if self.target not in table:
            raise BidroError(f"The table has no column '{self.target}', the target.")
        values = table[self.target]
        if values.isna().any():
            row = int(np.argmax(values.isna().to_numpy()))
            raise BidroError(f"Row {row} has no '{self.target}'; the target must be known in every row.")
        if self.classes is None:
            return _numbers(values, self.target)
        words = as_words(values)
        unknown = ~np.isin(words, self.classes)
        if unknown.any():
            raise BidroError(
                f"Row {int(np.argmax(unknown))}: '{words[unknown][0]}' is not a class of '{self.target}'; "
                f"there are {', '.join(self.classes)}."
            )
        return words

    def clients(self, table: pd.DataFrame) -> NDArray[np.str_]:
        """(N,) whose row each is."""
        if self.client not in table:
            raise BidroError(f"The table has no column '{self.client}', which says whose row each is.")
        names = table[self.client]
        if names.isna().any():
            row = int(np.argmax(names.isna().to_numpy()))
            raise BidroError(f"Row {row} has no '{self.client}'; name a client for every row.")
        return as_words(names)

    def to_dict(self) -> dict[str, Any]:
        columns = [
            {"name": c.name, "levels": None if c.levels is None else list(c.levels), "filler": c.filler}
            for c in self.columns
        ]
        classes = None if self.classes is None else list(self.classes)
        return {"client": self.client, "target": self.target, "classes": classes, "columns": columns}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Raises KeyError or TypeError where a part is missing or of another kind."""
        columns = tuple(
            Column(str(c["name"]), None if c["levels"] is None else tuple(c["levels"]), c["filler"])
            for c in content["columns"]
        )
        classes = None if content["classes"] is None else tuple(content["classes"])
        return cls(str(content["client"]), str(content["target"]), classes, columns)


def read(paths: Sequence[Path], client: str | None) -> tuple[pd.DataFrame, str]:
    """(the rows of all tables, the name of the client column).

    One table with a client column; or, without `client`, one file a client, whose stem names it. A model that
    was fitted on such files may be used on one of them alone.
    """
    if not paths:
        raise BidroError("Give at least one table, CSV or Parquet.")
    parts = [read_one(path) for path in paths]
    by_file = client == FILE_CLIENT and FILE_CLIENT not in parts[0]
    if client is None or by_file:
        if len(paths) == 1 and not by_file:
            raise BidroError("One table needs --client COLUMN, which says whose row each is.")
        stems = [path.stem for path in paths]
        if len(set(stems)) < len(stems):
            twice = next(stem for stem in stems if stems.count(stem) > 1)
            raise BidroError(f"Two files are named '{twice}'; a file's name is that of its client.")
        parts = [part.assign(**{FILE_CLIENT: stem}) for part, stem in zip(parts, stems, strict=True)]
        client = FILE_CLIENT
    first = list(parts[0].columns)
    for path, part in zip(paths, parts, strict=True):
        if set(part.columns) != set(first):
            odd = sorted(set(map(str, part.columns)) ^ set(map(str, first)))[0]
            raise BidroError(f"'{path}' and '{paths[0]}' have other columns: '{odd}' is in one only.")
        if client not in part:
            have = ", ".join(map(str, part.columns))
            raise BidroError(f"'{path}' has no column '{client}'; it has {have}.")
    whole = parts[0] if len(parts) == 1 else pd.concat([part[first] for part in parts], ignore_index=True)
    if len(whole) == 0:
        raise BidroError(f"'{paths[0]}' has no rows.")
    return whole, client


def read_one(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file."""
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return _read_parquet(path)
        if path.suffix.lower() in (".csv", ".txt", ".tsv"):
            return pd.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")
    except Exception as error:
        raise BidroError(f"'{path}' could not be read as a table: {_first_line(error)}") from error
    raise BidroError(f"'{path}' is neither .csv, .tsv nor .parquet.")


def _read_parquet(path: Path) -> pd.DataFrame:
    """Columns of numbers stay where they were read, so that there is one copy of them, not two."""
    from pyarrow import parquet

    table = parquet.read_table(path).to_pandas(split_blocks=True, self_destruct=True)
    release()
    return table


def release() -> None:
    """Give back the memory of tables that are gone; the reader's allocator would keep it."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def learn_schema(
    table: pd.DataFrame,
    client: str,
    target: str,
    features: Sequence[str] | None = None,
    task: str | None = None,
    missing: str = "refuse",
) -> Schema:
    """The schema of a table: text, booleans and categories become categories with the levels observed.

    missing: "refuse", or "median" (the commonest level for categories). Without `task`, a target of text or
    of two different values is a class, any other a number. Raises BidroError for missing values unless they
    are to be filled, with how many there are and where.
    """
    if missing not in ("refuse", "median"):
        raise BidroError(f"Missing values are to 'refuse' or to fill by 'median'; got {missing!r}.")
    chosen = [c for c in table.columns if c not in (client, target)] if features is None else list(features)
    for name in (target, *chosen):
        if name not in table:
            have = ", ".join(map(str, table.columns))
            raise BidroError(f"The table has no column '{name}'; it has {have}.")
    if not chosen:
        raise BidroError("There are no features: every column is the client or the target.")
    if len({client, target, *chosen}) < 2 + len(chosen):
        raise BidroError("A column has one role: client, target or feature, and each is named once.")
    if missing == "refuse":
        _refuse_missing(table, client, [target, *chosen])
    columns = tuple(_learn_column(table[name], str(name), missing) for name in chosen)
    return Schema(client, target, _classes(table[target].dropna(), target, task), columns)


def _learn_column(values: pd.Series, name: str, missing: str) -> Column:
    fills = missing == "median"
    present = values.dropna()
    if len(present) == 0:
        raise BidroError(f"Column '{name}' has no values; leave it out with --features.")
    if pd.api.types.is_datetime64_any_dtype(values):
        raise BidroError(f"Column '{name}' holds dates; make numbers of it, or leave it out with --features.")
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        numbers = _numbers(present, name)
        return Column(name, None, float(np.median(numbers)) if fills else None)
    words = as_words(present)
    levels, counts = np.unique(words, return_counts=True)
    if len(levels) > MOST_LEVELS:
        raise BidroError(
            f"Column '{name}' has {len(levels):,} different texts, such as '{levels[0]}'; leave it out with "
            "--features, or make numbers of it."
        )
    return Column(name, tuple(map(str, levels)), str(levels[counts.argmax()]) if fills else None)


def _classes(target: pd.Series, name: str, task: str | None) -> tuple[str, ...] | None:
    if task not in (None, "regression", "classification"):
        raise BidroError(f"The task must be regression or classification; got {task!r}.")
    numeric = pd.api.types.is_numeric_dtype(target) and not pd.api.types.is_bool_dtype(target)
    if task is None:
        task = "regression" if numeric and target.nunique() > 2 else "classification"
    if task == "regression":
        if not numeric:
            raise BidroError(f"The target '{name}' is not a number; use --task classification.")
        return None
    levels = tuple(sorted(set(as_words(target))))
    if len(levels) < 2:
        raise BidroError(f"The target '{name}' has one class only, '{levels[0]}'; there is nothing to learn.")
    if len(levels) > MOST_LEVELS:
        raise BidroError(f"The target '{name}' has {len(levels):,} classes; use --task regression.")
    return levels


def _refuse_missing(table: pd.DataFrame, client: str, names: Sequence[str]) -> None:
    gaps = table[list(names)].isna()
    if not gaps.to_numpy().any():
        return
    counts = gaps.groupby(as_words(table[client])).sum()
    places = [
        f"{int(counts.loc[who, column])} in '{column}' of '{who}'"
        for who in counts.index
        for column in counts.columns
        if counts.loc[who, column] > 0
    ]
    more = f" and {len(places) - 5} more places" if len(places) > 5 else ""
    raise BidroError(
        f"There are missing values: {', '.join(places[:5])}{more}. Fix them, drop the rows, or fill features "
        "with --missing median."
    )


def _fill(into: Floats, values: pd.Series, column: Column, order: NDArray[np.intp] | None) -> None:
    """Write a column's numbers into its place (N, width) of the matrix."""
    gaps = values.isna().to_numpy()
    if gaps.any() and column.filler is None:
        raise BidroError(
            f"Row {int(np.argmax(gaps))} has no '{column.name}', and the model was fitted without a rule for "
            "missing values; fill it in, or fit with --missing median."
        )
    if column.levels is None:
        filled = values.fillna(column.filler) if gaps.any() else values
        numbers = _numbers(filled, column.name)
        into[:, 0] = numbers if order is None else numbers[order]
        return
    words = as_words(values)
    if gaps.any():
        words = np.where(gaps, str(column.filler), words)
    known = np.asarray(column.levels)
    codes = np.clip(np.searchsorted(known, words), 0, len(known) - 1)
    unknown = known[codes] != words
    if unknown.any():
        raise BidroError(
            f"Row {int(np.argmax(unknown))}: '{words[unknown][0]}' is not a level of '{column.name}'; there "
            f"are {', '.join(column.levels)}."
        )
    into[:] = (codes if order is None else codes[order])[:, None] == np.arange(1, len(known))


def as_words(values: pd.Series) -> NDArray[np.str_]:
    """Values as text; whole numbers without a decimal point, whatever type they were read as."""
    if pd.api.types.is_bool_dtype(values):
        return np.where(values.to_numpy(bool), "True", "False")
    if pd.api.types.is_float_dtype(values):
        different, place = np.unique(values.to_numpy(float), return_inverse=True)
        words = [str(int(v)) if math.isfinite(v) and v == int(v) else str(v) for v in different]
        return np.array(words, str)[place]
    return values.astype(str).to_numpy(str)


def _numbers(values: pd.Series, name: str) -> Floats:
    try:
        numbers = values.to_numpy(float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"Column '{name}' must hold numbers; {_first_line(error)}") from error
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BidroError(f"Row {row}: '{name}' is not a finite number; fix or drop the row.")
    return numbers


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".") + "."


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
