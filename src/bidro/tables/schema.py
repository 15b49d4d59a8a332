"""The schema of tables: which columns, which levels and classes, and how a table becomes numbers by it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError, one_line
from bidro.tables.cells import as_labels, as_words, distinct, empty_cells, require_numbers
from bidro.tables.columns import UNSEEN, Column
from bidro.tables.places import row_name

# Of levels and columns, so many are listed in a sentence.
_LISTED = 12
# More than this is no name of a unit, and leaves no room for numbers.
_LONGEST_MEASURE = 40


class UnseenLevelsWarning(UserWarning):
    """A model is used on a table with levels of a category that its training did not see."""


@dataclass(frozen=True)
class Schema:
    """What a table must have: its client column, its target and its features, and for training and
    statements the column that names the unit of every row, where several rows are of one.

    Raises BidroError for two columns of numbers of one name, a unit that is the client or the target, or what
    is no name of something that a target is measured in.
    """

    client: str
    target: str
    classes: tuple[str, ...] | None  # of the target; None for a number
    columns: tuple[Column, ...]
    unit: str | None = None  # None where every row is a unit by itself
    measured_in: str | None = None  # what a target that is a number is counted in, such as days; for people

    def __post_init__(self) -> None:
        for role, name in (("client", self.client), ("target", self.target)):
            if self.unit == name:
                raise BidroError(
                    f"The unit cannot be '{name}', the {role} column; name the column of the person or thing "
                    "that a row is of."
                )
        if self.measured_in is not None:
            require_measure(self.measured_in)
            if self.classes is not None:
                raise BidroError(
                    f"'{self.target}' has classes, which are not measured in anything; leave measured_in out."
                )
        names = self.features
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BidroError(
                f"Two columns of numbers would be named '{twice}', one of them a level; rename one."
            )
        alike = [column.name for column in self.columns]
        if len(set(alike)) < len(alike):
            twice = next(name for name in alike if alike.count(name) > 1)
            raise BidroError(f"Two features would be named '{twice}'; rename the column of that name.")
        before: set[str] = set()
        for column in self.columns:
            if column.of is not None and column.of not in before:
                raise BidroError(
                    f"Column '{column.name}' tells which cells of '{column.of}' are empty, and that is no "
                    "number that stands before it in the schema."
                )
            before |= {column.name} if column.levels is None else set()

    @property
    def measure(self) -> str:
        """What the target is measured in, in words; its own name where nobody said."""
        return self.target if self.measured_in is None else self.measured_in

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the table that features are read from."""
        return tuple(column.name for column in self.columns if column.of is None)

    def as_numbers(self, name: str, table: pd.DataFrame) -> Floats:
        """(N,) a feature that is a number, or such a target, NaN for an empty cell. Raises BidroError for a
        cell that is none."""
        found = [column for column in self.columns if column.name == name]
        return found[0].numbers(table[name]) if found else require_numbers(table[name])

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of numbers that a model sees."""
        return tuple(name for column in self.columns for name in column.coded)

    def matrix(self, table: pd.DataFrame) -> Floats:
        """(N, k) the features as numbers, column by column as `numbers` has them."""
        return np.stack(self.numbers(table), axis=1)

    def numbers(self, table: pd.DataFrame) -> list[Floats]:
        """The features as numbers, (N,) each; those that the table has as such are not copied.

        A level that is not listed counts as the column's `other`. Where there is none it is coded as the
        average of the listed levels, each counted once: a score that is linear in the coding is then the mean
        of the scores that the row has with each of them, whichever of them is the reference. Curves by level
        have no average; such a row is on that of the first level. Training does not take such rows: see
        `require_listed_levels`. Raises BidroError for a column that is missing or a cell that is no number.
        """
        self._require_columns(table)
        return [numbers for column in self.columns for numbers in column.coding(table[column.source])]

    def counted_as_other(self, table: pd.DataFrame) -> dict[str, int]:
        """By column, how many rows have a level that is not listed and counts as `other`."""
        return self._not_listed(table, [column for column in self.columns if column.other is not None])

    def unseen_levels(self, table: pd.DataFrame) -> dict[str, int]:
        """By column, how many rows have a level that is not listed and counts as the average level."""
        return self._not_listed(table, [column for column in self.columns if column.other is None])

    def warn_of_unseen_levels(self, table: pd.DataFrame, stacklevel: int = 2) -> None:
        """Warn, in one sentence, of rows whose levels count as the average level."""
        found = self.unseen_levels(table)
        if found:
            warnings.warn(in_words_unseen(found), UnseenLevelsWarning, stacklevel=stacklevel + 1)

    def require_listed_levels(self, table: pd.DataFrame) -> None:
        """Raise BidroError for a table to train on with a level that is neither listed nor counts as `other`.

        What a model is trained on must mean what was agreed: a table with other words for the same levels
        would else be trained on as if all its rows had the average level.
        """
        self._require_columns(table)
        for column in self.columns:
            values = table[column.source]
            if (found := column.unlisted(values)) is None:
                continue
            place, word, count = found
            rows = "1 row has" if count == 1 else f"{count:,} rows have"
            what = f"'{word}' is not a level of '{column.name}'" if word else f"'{column.name}' is empty"
            raise BidroError(
                f"{row_name(values, place)}: {what}; there are {listed(column.levels or ())}, and no level "
                f"for others. {rows} such levels: fix them, leave them out, or name one of the levels "
                "`other` in the schema."
            )

    def _not_listed(self, table: pd.DataFrame, columns: Iterable[Column]) -> dict[str, int]:
        self._require_columns(table)
        found = {}
        for column in columns:
            if column.levels is None or column.of is not None:
                continue
            cells = distinct(table[column.name])
            unknown = column.places(cells) == UNSEEN
            if unknown.any():
                found[column.name] = int(cells.counts[unknown].sum())
        return found

    def filled(self, table: pd.DataFrame) -> dict[str, int]:
        """By column, how many cells are missing and count as its filler."""
        self._require_columns(table)
        fills = [column.name for column in self.columns if column.filler is not None]
        gaps = {name: int(empty_cells(table[name]).sum()) for name in fills}
        return {name: count for name, count in gaps.items() if count}

    def _require_columns(self, table: pd.DataFrame) -> None:
        require_single_columns(table.columns, "The table")
        missing = [column.source for column in self.columns if column.source not in table]
        if missing:
            raise BidroError(
                f"The table has no column '{missing[0]}', which the model needs; it has "
                f"{listed(table.columns)}."
            )

    def labels(self, table: pd.DataFrame) -> Floats | NDArray[np.str_]:
        """(N,) the target: numbers, or classes as text."""
        if self.target not in table:
            raise BidroError(f"The table has no column '{self.target}', the target.")
        values = table[self.target]
        require_known_target(values)
        if self.classes is None:
            return require_numbers(values)
        words = as_words(values)
        unknown = ~np.isin(words, self.classes)
        if unknown.any():
            place = int(np.argmax(unknown))
            raise BidroError(
                f"{row_name(table, place)}: '{words[place]}' is not a class of '{self.target}'; "
                f"there are {listed(self.classes)}."
            )
        return words

    def clients(self, table: pd.DataFrame) -> NDArray[np.str_]:
        """(N,) whose row each is."""
        if self.client not in table:
            raise BidroError(f"The table has no column '{self.client}', which says whose row each is.")
        words = as_words(table[self.client])
        if np.any(words == ""):
            place = int(np.argmax(words == ""))
            raise BidroError(f"{row_name(table, place)} has no '{self.client}'; name a client for every row.")
        return words

    def units(self, table: pd.DataFrame) -> NDArray[np.str_] | None:
        """(N,) the person or thing that each row is of; None where every row is one by itself."""
        if self.unit is None:
            return None
        if self.unit not in table:
            raise BidroError(
                f"The table has no column '{self.unit}', which is to name the unit of every row."
            )
        words = as_labels(table[self.unit])
        if np.any(words == ""):
            place = int(np.argmax(words == ""))
            raise BidroError(f"{row_name(table, place)} has no '{self.unit}'; name one for every row.")
        return words

    def to_dict(self) -> dict[str, Any]:
        columns = [column.to_dict() for column in self.columns]
        classes = None if self.classes is None else list(self.classes)
        content = {"client": self.client, "target": self.target, "classes": classes, "columns": columns}
        more = {"unit": self.unit, "measured_in": self.measured_in}
        return content | {name: words for name, words in more.items() if words is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Raises KeyError, TypeError or BidroError where a part is missing or of another kind."""
        columns = tuple(Column.from_dict(one, _texts(one["levels"])) for one in content["columns"])
        more = {name: str(content[name]) for name in ("unit", "measured_in") if name in content}
        classes = _texts(content["classes"])
        return cls(str(content["client"]), str(content["target"]), classes, columns, **more)


def _texts(values: Any) -> tuple[str, ...] | None:
    if values is None:
        return None
    texts = tuple(map(str, values))
    if not texts or len(set(texts)) < len(texts):
        raise BidroError(f"Levels and classes must be different texts, at least one; got {listed(texts)}.")
    return texts


def require_known_target(values: pd.Series) -> None:
    gaps = empty_cells(values)
    if gaps.any():
        others = int(gaps.sum()) - 1
        have = f"and {others:,} more have" if others else "has"
        raise BidroError(
            f"{row_name(values, int(np.argmax(gaps)))} {have} no '{values.name}'; the target must be known "
            "in every row: leave out those without it."
        )


def in_words_unseen(counts: Mapping[str, int]) -> str:
    """A sentence on rows, by column, with levels that training did not see."""
    each = [f"'{name}' in {count:,} row{'s' * (count != 1)}" for name, count in counts.items()]
    return f"Levels that training did not see: {listed(each)}; these are predicted as the average level."


def require_measure(words: Any) -> None:
    """Raise BidroError for what is no name of a unit such as days: such a name is printed behind numbers."""
    fits = isinstance(words, str) and words == words.strip() and 0 < len(words) <= _LONGEST_MEASURE
    if not fits or not words.isprintable():
        raise BidroError(
            f"measured_in names what the target is counted in, such as days: 1 to {_LONGEST_MEASURE} "
            f"characters that can be printed, without blanks around them; got {one_line(repr(words), 60)}."
        )


def require_single_columns(names: Iterable[Any], where: str) -> None:
    """Raise BidroError where two columns have the same name."""
    listed_names = [str(name) for name in names]
    if len(set(listed_names)) < len(listed_names):
        twice = next(name for name in listed_names if listed_names.count(name) > 1)
        raise BidroError(f"{where} has two columns named '{twice}'; rename one, or drop it.")


def listed(names: Iterable[Any]) -> str:
    """Names with commas between them; of many, the first."""
    words = [str(name) for name in names]
    more = f" and {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return ", ".join(words[:_LISTED]) + more
