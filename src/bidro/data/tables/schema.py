"""The schema of a table: its client, target and feature columns, their levels, classes and declared bounds;
and how a table becomes numbers by it.

An empty cell of a number counts as its filler, and where training had several such cells another column
indicates them: a category with the levels no and yes that is `of` the number. An empty cell of a category
counts as the word that is its filler: the level "missing", or another.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats, repeated
from bidro.core.errors import BidroError, listed, one_line
from bidro.core.files import renamed
from bidro.core.splits import Words, arranged
from bidro.data.tables.cells import (
    ORDERS,
    Distinct,
    coded_labels,
    coded_words,
    days,
    distinct,
    empty_cells,
    number_of,
    require_numbers,
    require_usable,
    row_name,
    words_of,
)
from bidro.data.tables.survival import OUTCOMES, ROW, Survival, require_in_memory

# The level that empty cells of a category are.
MISSING = "missing"
# The levels of a column that indicates whether the cells of another are empty.
TELLS = ("no", "yes")
# The code of a level that is not listed, where the column has no `other`.
UNSEEN = -1


@dataclass(frozen=True)
class Column:
    """A feature: a number, or a category with its levels, of which the first is the reference.

    Raises BidroError for a filler, an `other` or an order of dates that does not belong to it.
    """

    name: str
    levels: tuple[str, ...] | None = None  # None for a number
    filler: float | str | None = None  # what an empty cell counts as; None where these are refused
    other: str | None = None  # the level as which any level that is not listed counts, in training, too
    of: str | None = None  # the column of the table whose empty cells it indicates; None where it has its own
    dates: str | None = None  # how its days are written, which count from 1970-01-01; None for no dates
    exposure: bool = False  # whether predictions are in proportion to it: then its number is the logarithm

    def __post_init__(self) -> None:
        known = self.levels or ()
        if self.other is not None and self.other not in known:
            raise BidroError(f"Column '{self.name}': other = {self.other!r} must be one of its levels.")
        if self.of is not None and (self.levels != TELLS or self.filler is not None):
            raise BidroError(
                f"Column '{self.name}' tells which cells of '{self.of}' are empty, and so has the levels "
                f"{' and '.join(TELLS)} and no filler."
            )
        if self.dates is not None and (self.levels is not None or self.dates not in ORDERS):
            raise BidroError(
                f"Column '{self.name}': dates = {self.dates!r} must be one of {', '.join(ORDERS)}, of a "
                "column without levels."
            )
        if self.exposure and (self.levels is not None or self.filler is not None or self.dates is not None):
            raise BidroError(
                f"Column '{self.name}' is an exposure, and so a number without a filler: how long, or how "
                "much, must be known of every row."
            )
        if self.filler is None:
            return
        if self.levels is not None and self.filler not in (*known, MISSING):
            raise BidroError(
                f"Column '{self.name}': filler = {self.filler!r} must be one of its levels, or '{MISSING}'."
            )
        number = isinstance(self.filler, int | float) and math.isfinite(self.filler)
        if self.levels is None and not number:
            raise BidroError(f"Column '{self.name}': filler = {self.filler!r} must be a finite number.")

    @property
    def coded(self) -> tuple[str, ...]:
        """The names of its columns of numbers."""
        if self.levels is None:
            return (self.name,)
        return tuple(f"{self.name}={level}" for level in self.levels[1:])

    @property
    def source(self) -> str:
        """The column of the table that it is read from."""
        return self.of or self.name

    @property
    def filled_by(self) -> str:
        """As what an empty cell counts, in words."""
        if self.levels is None or self.filler in self.levels:
            return f"'{self.filler}'"
        return "the average level" if self.other is None else f"'{self.other}'"

    def coding(self, values: pd.Series) -> Iterator[Floats]:
        """(N,) each of its columns of numbers, one after the other, from the cells of its source. Raises
        BidroError for a cell that is no number, and for an empty one without a filler."""
        if self.of is not None:
            yield empty_cells(values).astype(float)
            return
        self._require_filled(values)
        if self.levels is None:
            numbers = self.numbers(values)
            if self.filler is not None:
                numbers = np.where(np.isnan(numbers), float(self.filler), numbers)
            yield self._logarithms(numbers, values) if self.exposure else numbers
            return
        cells, levels = distinct(values), len(self.levels)
        codes = np.append(self.codes(cells), self._code(str(self.filler)))[cells.codes]
        for k in range(1, levels):
            yield np.where(codes == UNSEEN, 1 / levels, codes == k)

    def numbers(self, values: pd.Series) -> Floats:
        """(N,) the cells of a number, NaN for an empty one."""
        if self.dates is None:
            return require_numbers(values)
        found = days(values, self.dates)
        require_usable(found, values)
        return found

    def _logarithms(self, exposed: Floats, values: pd.Series) -> Floats:
        """(N,) of exposures. Raises BidroError for one that is not above 0."""
        if (odd := ~(exposed > 0)).any():
            place = int(np.argmax(odd))
            raise BidroError(
                f"{row_name(values, place)}: the exposure '{self.name}' is {exposed[place]:g}, and must be "
                "above 0: in no time nothing is counted."
            )
        return np.log(exposed)

    def codes(self, cells: Distinct) -> NDArray[np.intp]:
        """Which level each of the different cells counts as, UNSEEN where it is not listed and there is no
        `other`."""
        places = self.places(cells)
        return np.where(places < 0, self._code(""), places)

    def places(self, cells: Distinct) -> NDArray[np.intp]:
        """Which level each of the different cells is, UNSEEN for one that is not listed.

        A cell that reads as a number is the level that is the same number, where one is: whether 01 is read
        as text or as 1 depends on what else stands in its file.
        """
        levels = self.levels or ()
        place = {level: k for k, level in enumerate(levels)}
        numbers: dict[float, int] = {}
        for k, level in enumerate(levels):
            if (number := number_of(level)) is not None:
                numbers[number] = UNSEEN if number in numbers else k
        found = [
            place.get(word, numbers.get(_number(word), UNSEEN))  # an exact word comes first
            for word in words_of(cells)
        ]
        return np.array(found, np.intp)

    def _code(self, word: str) -> int:
        """The level that a word counts as, UNSEEN where there is none."""
        assert self.levels is not None
        for known in (word, self.other):
            if known in self.levels:
                return self.levels.index(known)
        return UNSEEN

    def unlisted(self, values: pd.Series) -> tuple[int, str, int] | None:
        """(the place and the cell of the first level that no listed one stands for, how many such cells there
        are); None where there is none."""
        if self.levels is None or self.of is not None:
            return None
        cells = distinct(values)
        wrong = np.append(self.codes(cells), self._code(str(self.filler))) == UNSEEN
        if self.filler is None:
            wrong[-1] = False
        rows = wrong[cells.codes]
        if not rows.any():
            return None
        first = int(np.argmax(rows))
        return first, [*words_of(cells), ""][cells.codes[first]], int(rows.sum())

    def _require_filled(self, values: pd.Series) -> None:
        if self.filler is not None:
            return
        gaps = empty_cells(values)
        if gaps.any():
            raise BidroError(
                f"{row_name(values, int(np.argmax(gaps)))} has no '{self.name}', and the model was fitted "
                "without a rule for missing values; fill it in, or fit with --missing median."
            )

    def to_dict(self) -> dict[str, Any]:
        levels = None if self.levels is None else list(self.levels)
        content = {"name": self.name, "levels": levels, "filler": self.filler, "other": self.other}
        more = {"of": self.of, "dates": self.dates, "exposure": True if self.exposure else None}
        return content | {name: word for name, word in more.items() if word is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], levels: tuple[str, ...] | None) -> Column:
        """Raises KeyError or BidroError where a part is missing or of another kind."""
        more: dict[str, Any] = {n: str(content[n]) for n in ("of", "dates") if content.get(n) is not None}
        more["exposure"] = content.get("exposure", False) is True
        return cls(str(content["name"]), levels, content["filler"], content["other"], **more)


def _number(word: str) -> float:
    """NaN, which is no key of anything, for what is none."""
    found = number_of(word)
    return math.nan if found is None else found


# More than this is no name of a unit, and leaves no room for numbers.
_LONGEST_MEASURE = 40


class UnseenLevelsWarning(UserWarning):
    """A model is used on a table with levels of a category that its training did not see."""


@dataclass(frozen=True)
class Schema:
    """What a table must have: its client column, its target and its features, and for training and
    statements the column that names the person of every row, where several rows are of one.

    Raises BidroError for two columns of numbers of one name, a person column that is the client or the
    target, or what is no name of something that a target is measured in.
    """

    client: str
    target: str
    classes: tuple[str, ...] | None  # of the target; None for a number
    columns: tuple[Column, ...]
    person: str | None = None  # None where every row is a person by itself
    target_unit: str | None = None  # what a target that is a number is counted in, such as days; for people
    survival: Survival | None = None  # where the target is an event, and rows are laid out in periods of time

    def __post_init__(self) -> None:
        for role, name in (("client", self.client), ("target", self.target)):
            if self.person == name:
                raise BidroError(
                    f"The person cannot be '{name}', the {role} column; name the column of the person or "
                    "thing that a row is of."
                )
        if self.survival is not None:
            self._require_periods(self.survival)
        if self.target_unit is not None:
            require_measure(self.target_unit)
            if self.classes is not None and self.survival is None:
                raise BidroError(
                    f"'{self.target}' has classes, which are not measured in anything; leave target_unit out."
                )
        if (twice := repeated(self.features)) is not None:
            raise BidroError(
                f"Two columns of numbers would be named '{twice}', one of them a level; rename one."
            )
        if (twice := repeated(column.name for column in self.columns)) is not None:
            raise BidroError(f"Two features would be named '{twice}'; rename the column of that name.")
        before: set[str] = set()
        for column in self.columns:
            if column.of is not None and column.of not in before:
                raise BidroError(
                    f"Column '{column.name}' tells which cells of '{column.of}' are empty, and that is no "
                    "number that stands before it in the schema."
                )
            before |= {column.name} if column.levels is None else set()

    def _require_periods(self, survival: Survival) -> None:
        period = [column for column in self.columns if column.name == survival.time]
        if self.classes != OUTCOMES or self.person is None or not period:
            raise BidroError(
                f"A time to an event has the classes {' and '.join(OUTCOMES)}, a person, and a column "
                f"'{survival.time}' of periods."
            )
        if period[0].levels != survival.grid.names:
            raise BidroError(
                f"The levels of '{survival.time}' are the periods of the grid: "
                f"{listed(survival.grid.names)}; got {listed(period[0].levels or ())}."
            )

    def laid_out(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table as all that follows takes it: of times to an event a row for every period that counts for
        a person, and else as it is. Where nobody named people, every row is one, by what is in it alone."""
        survival = self.survival
        if survival is None or survival.is_laid_out(table):
            return table
        require_in_memory(table)
        observed, people = survival.observed(table, self.target), None
        if self.person == ROW:
            columns = tuple(column for column in self.columns if column.name != survival.time)
            own = replace(self, columns=columns, person=None, target_unit=None, survival=None)
            owners = self.owners(table) if self.client in table else Words.of(np.zeros(len(table), str))
            numbers = [*own.each_number(table), observed.entry, observed.event.astype(float)]
            ids = arranged(owners.codes, np.column_stack(numbers), observed.time).ids
            people = ROW, np.array([f"{one:016x}" for one in ids])
        return survival.laid_out(table, observed, self.target, people)

    def once(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table with every row once, whatever period it is in, to say what is new in its cells."""
        survival = self.survival
        if survival is None:
            return table
        first = pd.Categorical.from_codes(np.zeros(len(table), int), survival.grid.names)
        return table.assign(**{survival.time: first})

    @property
    def measure(self) -> str:
        """What the target is measured in, in words; its own name where nobody said."""
        return self.target if self.target_unit is None else self.target_unit

    @property
    def exposure(self) -> str | None:
        """The column that predictions are in proportion to."""
        return next((column.name for column in self.columns if column.exposure), None)

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

    def columns_of(self, name: str) -> tuple[str, ...]:
        """The columns of numbers that a feature is in."""
        return tuple(part for column in self.columns if column.name == name for part in column.coded)

    def matrix(self, table: pd.DataFrame) -> Floats:
        """(N, k) the features as numbers, column by column as `numbers` has them."""
        return np.stack(self.numbers(table), axis=1)

    def numbers(self, table: pd.DataFrame) -> list[Floats]:
        """The features as numbers, (N,) each, as `each_number` gives them one after the other."""
        return list(self.each_number(table))

    def each_number(self, table: pd.DataFrame) -> Iterator[Floats]:
        """The features as numbers, (N,) each; those that the table has as such are not copied.

        A level that is not listed counts as the column's `other`. Where there is none it is coded as the
        average of the listed levels, each counted once: a score that is linear in the coding is then the mean
        of the scores that the row has with each of them, whichever of them is the reference. Curves by level
        have no average; such a row is on that of the first level. Training does not take such rows: see
        `require_listed_levels`. Raises BidroError for a column that is missing or a cell that is no number.
        """
        self._require_columns(table)
        for column in self.columns:
            yield from column.coding(table[column.source])

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
        if self.classes is None:
            return require_numbers(self._known_targets(table))
        return np.asarray(self.classes, str)[self.class_codes(table)]

    def class_codes(self, table: pd.DataFrame) -> NDArray[np.intp]:
        """(N,) which class, from 0, each target is."""
        assert self.classes is not None
        words = coded_words(self._known_targets(table))
        place = {word: k for k, word in enumerate(self.classes)}
        which = np.array([place.get(word, UNSEEN) for word in words.values.tolist()], np.intp)
        if (unknown := which == UNSEEN).any():
            row = int(np.argmax(unknown[words.codes]))
            raise BidroError(
                f"{row_name(table, row)}: '{words.values[words.codes[row]]}' is not a class of "
                f"'{self.target}'; there are {listed(self.classes)}."
            )
        return which[words.codes]

    def _known_targets(self, table: pd.DataFrame) -> pd.Series:
        if self.target not in table:
            raise BidroError(f"The table has no column '{self.target}', the target.")
        values = table[self.target]
        require_known_target(values)
        return values

    def clients(self, table: pd.DataFrame) -> NDArray[np.str_]:
        """(N,) whose row each is."""
        return self.owners(table).each

    def owners(self, table: pd.DataFrame) -> Words:
        """The same, without a text for every row."""
        if self.client not in table:
            raise BidroError(f"The table has no column '{self.client}', which says whose row each is.")
        words = coded_words(table[self.client])
        if (gaps := words.empty).any():
            place = int(np.argmax(gaps))
            raise BidroError(f"{row_name(table, place)} has no '{self.client}'; name a client for every row.")
        return words

    def people(self, table: pd.DataFrame) -> NDArray[np.str_] | None:
        """(N,) the person or thing that each row is of; None where every row is one by itself."""
        words = self.persons(table)
        return None if words is None else words.each

    def persons(self, table: pd.DataFrame) -> Words | None:
        """The same, without a text for every row."""
        if self.person is None:
            return None
        if self.person not in table:
            raise BidroError(
                f"The table has no column '{self.person}', which is to name the person of every row."
            )
        words = coded_labels(table[self.person])
        if (gaps := words.empty).any():
            place = int(np.argmax(gaps))
            raise BidroError(f"{row_name(table, place)} has no '{self.person}'; name one for every row.")
        return words

    def to_dict(self) -> dict[str, Any]:
        columns = [column.to_dict() for column in self.columns]
        classes = None if self.classes is None else list(self.classes)
        content = {"client": self.client, "target": self.target, "classes": classes, "columns": columns}
        survival = None if self.survival is None else self.survival.to_dict()
        more = {"person": self.person, "target_unit": self.target_unit, "survival": survival}
        return content | {name: said for name, said in more.items() if said is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Schema:
        """Raises KeyError, TypeError or BidroError where a part is missing or of another kind."""
        content = renamed(content)
        columns = tuple(Column.from_dict(one, _texts(one["levels"])) for one in content["columns"])
        more: dict[str, Any] = {n: str(content[n]) for n in ("person", "target_unit") if n in content}
        if "survival" in content:
            more["survival"] = Survival.from_dict(content["survival"])
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
            f"target_unit names what the target is counted in, such as days: 1 to {_LONGEST_MEASURE} "
            f"characters that can be printed, without blanks around them; got {one_line(repr(words), 60)}."
        )


def require_single_columns(names: Iterable[Any], where: str) -> None:
    """Raise BidroError where two columns have the same name."""
    if (twice := repeated(map(str, names))) is not None:
        raise BidroError(f"{where} has two columns named '{twice}'; rename one, or drop it.")


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


def require_every_class(schema: Schema, training: Iterable[Any]) -> None:
    """Raise BidroError where a class is not among those of training rows."""
    if schema.classes is None:
        return
    absent = sorted(set(schema.classes) - set(training))
    if absent:
        raise BidroError(
            f"All rows of class '{absent[0]}' of '{schema.target}' were held out of training: it has too "
            "few; merge it with another class, leave it out, or use another --seed or --hold-out 0."
        )
