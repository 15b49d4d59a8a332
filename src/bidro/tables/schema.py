"""The schema of tables: which columns, which levels and classes, and how a table becomes numbers by it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError, one_line
from bidro.tables.cells import Distinct, as_words, distinct, empty_cells, require_numbers, words_of
from bidro.tables.places import row_name

# Of levels and columns, so many are listed in a sentence.
_LISTED = 12
# The code of a level that is not listed, where the column has no `other`.
_UNSEEN = -1
# More than this is no name of a unit, and leaves no room for numbers.
_LONGEST_MEASURE = 40


class UnseenLevelsWarning(UserWarning):
    """A model is used on a table with levels of a category that its training did not see."""


@dataclass(frozen=True)
class Column:
    """A feature: a number, or a category with its levels, of which the first is the reference.

    Raises BidroError for a filler or an `other` that does not belong to it.
    """

    name: str
    levels: tuple[str, ...] | None = None  # None for a number
    filler: float | str | None = None  # for missing values; None where they are refused
    other: str | None = None  # the level as which any level that is not listed counts, in training, too

    def __post_init__(self) -> None:
        known = self.levels or ()
        if self.other is not None and self.other not in known:
            raise BidroError(f"Column '{self.name}': other = {self.other!r} must be one of its levels.")
        if self.filler is None:
            return
        if self.levels is not None and self.filler not in known:
            raise BidroError(f"Column '{self.name}': filler = {self.filler!r} must be one of its levels.")
        number = isinstance(self.filler, int | float) and math.isfinite(self.filler)
        if self.levels is None and not number:
            raise BidroError(f"Column '{self.name}': filler = {self.filler!r} must be a finite number.")

    @property
    def coded(self) -> tuple[str, ...]:
        """The names of its columns of numbers."""
        if self.levels is None:
            return (self.name,)
        return tuple(f"{self.name}={level}" for level in self.levels[1:])


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

    @property
    def measure(self) -> str:
        """What the target is measured in, in words; its own name where nobody said."""
        return self.target if self.measured_in is None else self.measured_in

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
        found = list[Floats]()
        for column in self.columns:
            values = table[column.name]
            _require_filled(values, column)
            if column.levels is None:
                numbers = require_numbers(values)
                if column.filler is not None:
                    numbers = np.where(np.isnan(numbers), float(column.filler), numbers)
                found.append(numbers)
            else:
                codes = _level_codes(values, column)
                levels = len(column.levels)
                found += [np.where(codes == _UNSEEN, 1 / levels, codes == k) for k in range(1, levels)]
        return found

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
        for name in self.unseen_levels(table):
            column = next(column for column in self.columns if column.name == name)
            assert column.levels is not None
            cells = distinct(table[name])
            unknown = _codes(cells, column) == _UNSEEN
            first, word = cells.first(unknown)
            count = int(cells.counts[unknown].sum())
            rows = "1 row has" if count == 1 else f"{count:,} rows have"
            raise BidroError(
                f"{row_name(table[name], first)}: '{word}' is not a level of '{name}'; there are "
                f"{listed(column.levels)}, and no level for others. {rows} such levels: fix them, leave them "
                "out, or name one of the levels `other` in the schema."
            )

    def _not_listed(self, table: pd.DataFrame, columns: Iterable[Column]) -> dict[str, int]:
        self._require_columns(table)
        found = {}
        for column in columns:
            if column.levels is None:
                continue
            cells = distinct(table[column.name])
            unknown = _places(cells, column) < 0
            if unknown.any():
                found[column.name] = int(cells.counts[unknown].sum())
        return found

    def filled(self, table: pd.DataFrame) -> dict[str, int]:
        """By column, how many cells are missing and count as its filler."""
        self._require_columns(table)
        gaps = {c.name: int(table[c.name].isna().sum()) for c in self.columns if c.filler is not None}
        return {name: count for name, count in gaps.items() if count}

    def _require_columns(self, table: pd.DataFrame) -> None:
        require_single_columns(table.columns, "The table")
        missing = [column.name for column in self.columns if column.name not in table]
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
        words = as_words(table[self.unit])
        if np.any(words == ""):
            place = int(np.argmax(words == ""))
            raise BidroError(f"{row_name(table, place)} has no '{self.unit}'; name one for every row.")
        return words

    def to_dict(self) -> dict[str, Any]:
        columns = [
            {
                "name": c.name,
                "levels": None if c.levels is None else list(c.levels),
                "filler": c.filler,
                "other": c.other,
            }
            for c in self.columns
        ]
        classes = None if self.classes is None else list(self.classes)
        content = {"client": self.client, "target": self.target, "classes": classes, "columns": columns}
        more = {"unit": self.unit, "measured_in": self.measured_in}
        return content | {name: words for name, words in more.items() if words is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Raises KeyError, TypeError or BidroError where a part is missing or of another kind."""
        columns = tuple(
            Column(str(c["name"]), _texts(c["levels"]), c["filler"], c["other"]) for c in content["columns"]
        )
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


def _require_filled(values: pd.Series, column: Column) -> None:
    if column.filler is not None:
        return
    gaps = empty_cells(values)
    if gaps.any():
        raise BidroError(
            f"{row_name(values, int(np.argmax(gaps)))} has no '{column.name}', and the model was fitted "
            "without a rule for missing values; fill it in, or fit with --missing median."
        )


def require_known_target(values: pd.Series) -> None:
    gaps = empty_cells(values)
    if gaps.any():
        others = int(gaps.sum()) - 1
        have = f"and {others:,} more have" if others else "has"
        raise BidroError(
            f"{row_name(values, int(np.argmax(gaps)))} {have} no '{values.name}'; the target must be known "
            "in every row: leave out those without it."
        )


def _level_codes(values: pd.Series, column: Column) -> NDArray[np.intp]:
    """(N,) which level each cell has, _UNSEEN for one that is not listed where there is no `other`."""
    assert column.levels is not None
    cells = distinct(values)
    filler = _UNSEEN if column.filler is None else column.levels.index(str(column.filler))
    return np.append(_codes(cells, column), filler)[cells.codes]


def _codes(cells: Distinct, column: Column) -> NDArray[np.intp]:
    """Which level each of the different cells counts as."""
    assert column.levels is not None
    places = _places(cells, column)
    other = _UNSEEN if column.other is None else column.levels.index(column.other)
    return np.where(places < 0, other, places)


def _places(cells: Distinct, column: Column) -> NDArray[np.intp]:
    """Which level each of the different cells is by name, _UNSEEN for one that is not listed."""
    place = {level: k for k, level in enumerate(column.levels or ())}
    return np.array([place.get(word, _UNSEEN) for word in words_of(cells)], np.intp)


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
