"""Times to an event, in periods: a table with one row a person becomes one with a row for every period in
which a person was watched, and whether the event happened in it is a target of two classes.

With periods (g_0, g_1], ..., (g_{J-1}, g_J] on a grid that everybody agrees on, the chance h_j that the event
happens in period j to those who reach it is what is learned, by logistic loss with a level for every period;
the product of 1 - h_j is the chance to be without the event at the end of each. A time may be *censored*: the
event had not happened when nobody watched any longer.

A period counts for a person who is watched for its first half, as in a life table whose censored people count
by half: of somebody who is censored later the period was survived, of somebody who is censored earlier
nothing is known of it. Somebody who enters late (`entry`) counts from the first period that is entered before
its middle on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, listed
from bidro.data.tables.cells import coded_words, empty_cells, number_of, require_numbers, row_name

_log = logging.getLogger(__name__)

# What the event's column says of people to whom it did not happen, and to whom it did.
CODES = (
    ("0", "1"),
    ("1", "2"),
    ("no", "yes"),
    ("false", "true"),
    ("censored", "event"),
    ("censored", "dead"),
    ("censored", "died"),
    ("alive", "dead"),
    ("alive", "died"),
)
# What losses are of, in words.
OF_PERIODS = (
    "Losses are of periods, in each of which '{event}' happens to a person or does not; a person is one "
    "draw, with the mean loss of the periods in which it was watched."
)
# The classes of a period.
OUTCOMES = ("no", "yes")
# The column of the people of a table that names none, in which every row is one.
ROW = "row of the table"


class Observed(NamedTuple):
    """How long each person was watched, in the unit of the grid."""

    time: Floats  # (N,) to the event, or until nobody watched any longer
    event: NDArray[np.bool_]  # (N,) whether it happened
    entry: Floats  # (N,) when watching began; 0 for all who were watched from the beginning

    def only(self, wanted: NDArray[Any]) -> Observed:
        """Some of the people."""
        return Observed(self.time[wanted], self.event[wanted], self.entry[wanted])


class Periods(NamedTuple):
    """One row for every period that counts for a person."""

    person: NDArray[np.int64]  # (M,) as a place among the N people
    period: NDArray[np.int64]  # (M,) from 0
    happened: NDArray[np.bool_]  # (M,)


@dataclass(frozen=True)
class Grid:
    """Ends of periods, the first of which begins at 0. Raises BidroError for what is none."""

    ends: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0.0, *self.ends), self.ends, strict=False))
        if not self.ends or not rising or not all(map(math.isfinite, self.ends)):
            raise BidroError(
                "time_grid must be the ends of periods, rising numbers above 0 such as 30,90,180,365; got "
                f"{','.join(f'{end:g}' for end in self.ends) or 'none'}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the periods."""
        return tuple(f"{a:g} to {b:g}" for a, b in zip((0.0, *self.ends), self.ends, strict=False))

    def periods(self, observed: Observed) -> Periods:
        """The periods that count for each of the people."""
        ends = np.asarray(self.ends)
        middles = (np.append(0.0, ends[:-1]) + ends) / 2
        inside = observed.event & (observed.time <= ends[-1])
        of_event = np.searchsorted(ends, observed.time, "left")
        last = np.where(inside, of_event, np.searchsorted(middles, observed.time, "right") - 1)
        first = np.searchsorted(middles, observed.entry, "left")
        counts = np.maximum(last - first + 1, 0)
        person = np.repeat(np.arange(len(counts)), counts)
        period = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first, counts)
        return Periods(person, period, inside[person] & (period == of_event[person]))


@dataclass(frozen=True)
class Survival:
    """Which columns of a table say when the event happened, and on which grid that counts."""

    time: str  # the column of how long each person was watched
    grid: Grid
    happened: str  # what the event's column says where it happened
    censored: tuple[str, ...]  # what it says where it did not
    entry: str | None = None  # the column of when watching began

    @property
    def columns(self) -> tuple[str, ...]:
        """Of times."""
        return (self.time,) if self.entry is None else (self.time, self.entry)

    def is_laid_out(self, table: pd.DataFrame) -> bool:
        """Whether a table has a row a period already: then its times are names of periods."""
        return self.time in table and (
            tuple(getattr(table[self.time].dtype, "categories", ())) == self.grid.names
        )

    def observed(self, table: pd.DataFrame, event: str) -> Observed:
        """From the cells of a table with a row a person. Raises BidroError, with the row, for a cell that is
        no time or says neither that the event happened nor that it did not."""
        for name in (*self.columns, event):
            if name not in table:
                raise BidroError(f"The table has no column '{name}'; it has {listed(table.columns)}.")
            if (gaps := empty_cells(table[name])).any():
                raise BidroError(
                    f"{row_name(table, int(np.argmax(gaps)))} has no '{name}' ({int(gaps.sum()):,} in all); "
                    "times and events must be known in every row: of somebody to whom the event did not "
                    "happen, until when that was known."
                )
        words = coded_words(table[event])
        happened = np.array([same_word(word, self.happened) for word in words.values], bool)
        known = np.array([any(same_word(word, one) for one in self.censored) for word in words.values], bool)
        if (odd := ~(happened | known)[words.codes]).any():
            place = int(np.argmax(odd))
            raise BidroError(
                f"{row_name(table, place)}: '{event}' is '{words.each[place]}', and it was agreed that "
                f"'{self.happened}' is the event and {listed(self.censored) or 'nothing else'} is none."
            )
        time = require_numbers(table[self.time])
        entry = np.zeros(len(time)) if self.entry is None else require_numbers(table[self.entry])
        for name, values in zip(self.columns, (time, entry), strict=False):
            if (odd := values < 0).any():
                place = int(np.argmax(odd))
                raise BidroError(
                    f"{row_name(table, place)}: '{name}' is {values[place]:g}; times count from 0 on."
                )
        if self.entry is not None and (odd := entry >= time).any():
            place = int(np.argmax(odd))
            raise BidroError(
                f"{row_name(table, place)}: '{self.entry}' is {entry[place]:g}, not before '{self.time}' = "
                f"{time[place]:g}; nobody was watched in between."
            )
        return Observed(time, happened[words.codes], entry)

    def laid_out(
        self, table: pd.DataFrame, observed: Observed, event: str, people: tuple[str, Any] | None = None
    ) -> pd.DataFrame:
        """A row for every period that counts for somebody; its time is the name of the period, and the event
        one of OUTCOMES. `people` are the name and the cells (N,) of another column."""
        found = self.grid.periods(observed)
        named = {} if people is None else {people[0]: np.asarray(people[1])[found.person]}
        rows = table.iloc[found.person].assign(
            **{
                self.time: pd.Categorical.from_codes(found.period, self.grid.names),
                event: pd.Categorical.from_codes(found.happened.astype(int), OUTCOMES),
                **named,
            }
        )
        return rows.drop(columns=[self.entry]) if self.entry in rows else rows

    def every_period(self, table: pd.DataFrame) -> pd.DataFrame:
        """Every row once in each of the periods, one after the other."""
        J = len(self.grid.ends)
        rows = table.iloc[np.repeat(np.arange(len(table)), J)].reset_index(drop=True)
        period = pd.Categorical.from_codes(np.tile(np.arange(J), len(table)), self.grid.names)
        return rows.assign(**{self.time: period})

    def note_left_out(self, table: pd.DataFrame, event: str) -> None:
        """A line each on what the periods do not tell of a table with a row a person."""
        observed = self.observed(table, event)
        found, end = self.grid.periods(observed), self.grid.ends[-1]
        beyond = int((observed.event & (observed.time > end)).sum())
        unseen = len(observed.time) - len(np.unique(found.person))
        if beyond:
            _log.warning(
                "Note: '%s' happened after %g, the end of the grid, in %s row(s); they count as without it "
                "until then.",
                *(event, end, f"{beyond:,}"),
            )
        if unseen:
            _log.warning(
                "Note: %s row(s) say nothing, as they were watched for less than half of a period, and are "
                "left out.",
                f"{unseen:,}",
            )

    def to_dict(self) -> dict[str, Any]:
        content = {"time": self.time, "grid": list(self.grid.ends), "happened": self.happened}
        content["censored"] = list(self.censored)
        return content if self.entry is None else content | {"entry": self.entry}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Survival:
        """Raises BidroError where a part is missing or of another kind."""
        known = {"time", "grid", "happened", "censored", "entry"}
        grid, censored = content.get("grid"), content.get("censored", [])
        texts = [content.get("time"), content.get("happened"), content.get("entry", "")]
        if (
            not set(content) <= known
            or not all(isinstance(text, str) for text in texts)
            or not isinstance(grid, list | tuple)
            or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in grid)
            or not isinstance(censored, list | tuple)
        ):
            raise BidroError(
                "[survival] names the column of times, the grid, and what the target says: time = "
                f'"days", grid = [30, 90], happened = "1", censored = ["0"]; got {dict(content)!r}.'
            )
        words = tuple(map(str, censored))
        return cls(str(texts[0]), Grid(tuple(map(float, grid))), str(texts[1]), words, content.get("entry"))


def require_in_memory(table: Any) -> None:
    """Raise BidroError for a table that is read in batches."""
    if not isinstance(table, pd.DataFrame):
        raise BidroError(
            "A table of times to an event is laid out in memory, and this one is too large for that; give "
            "more --memory, or fewer rows."
        )


def same_word(word: str, other: str) -> bool:
    """Whether two cells say the same, as numbers or whatever the size of their letters."""
    numbers = number_of(word), number_of(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return word.strip().casefold() == other.strip().casefold()


def event_words(values: pd.Series, named: str | None) -> tuple[str, tuple[str, ...]]:
    """(what the cells of the event say where it happened, what they say where it did not), where one of them
    may be `named`. Raises BidroError where that cannot be told from the cells."""
    words = [str(word) for word in coded_words(values).values if word]
    name = values.name
    if named is not None:
        same = [word for word in words if same_word(word, named)]
        if not same:
            raise BidroError(f"'{name}' is '{named}' in no row; it is {listed(words)}.")
        return same[0], tuple(word for word in words if word not in same)
    for censored, happened in CODES:
        pairs = [
            next((code for code in (censored, happened) if same_word(word, code)), None) for word in words
        ]
        if None in pairs or (len(words) == 1 and words[0] == "1"):
            continue
        if happened not in pairs:
            raise BidroError(f"'{name}' is {listed(words)} in every row: the event happened to nobody.")
        return happened, (censored,)
    raise BidroError(
        f"'{name}' is {listed(words)}; say which of them is the event: --event {name}={words[-1]}. All "
        "others count as censored."
    )
