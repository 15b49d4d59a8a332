"""A feature of the schema, and how the cells of its column become numbers.

An empty cell of a number counts as its filler, and where training had several such cells another column tells
which: a category with the levels no and yes that is `of` the number. An empty cell of a category counts as
the word that is its filler, as if that stood in it: the level "missing", or another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.tables.cells import (
    Distinct,
    distinct,
    empty_cells,
    number_of,
    require_numbers,
    require_usable,
    words_of,
)
from bidro.tables.dates import ORDERS, days
from bidro.tables.places import row_name

# The level that empty cells of a category are.
MISSING = "missing"
# The levels of a column that tells whether the cells of another are empty.
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
    of: str | None = None  # the column of the table whose empty cells it tells of; None where it has its own
    dates: str | None = None  # how its days are written, which count from 1970-01-01; None for no dates

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

    def coding(self, values: pd.Series) -> list[Floats]:
        """(N,) each of its columns of numbers, from the cells of its source. Raises BidroError for a cell
        that is no number, and for an empty one without a filler."""
        if self.of is not None:
            return [empty_cells(values).astype(float)]
        self._require_filled(values)
        if self.levels is None:
            numbers = self.numbers(values)
            if self.filler is not None:
                numbers = np.where(np.isnan(numbers), float(self.filler), numbers)
            return [numbers]
        cells, levels = distinct(values), len(self.levels)
        codes = np.append(self.codes(cells), self._code(str(self.filler)))[cells.codes]
        return [np.where(codes == UNSEEN, 1 / levels, codes == k) for k in range(1, levels)]

    def numbers(self, values: pd.Series) -> Floats:
        """(N,) the cells of a number, NaN for an empty one."""
        if self.dates is None:
            return require_numbers(values)
        found = days(values, self.dates)
        require_usable(found, values)
        return found

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
        more = {"of": self.of, "dates": self.dates}
        return content | {name: word for name, word in more.items() if word is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], levels: tuple[str, ...] | None) -> Column:
        """Raises KeyError or BidroError where a part is missing or of another kind."""
        more = {name: str(content[name]) for name in ("of", "dates") if content.get(name) is not None}
        return cls(str(content["name"]), levels, content["filler"], content["other"], **more)


def _number(word: str) -> float:
    """NaN, which is no key of anything, for what is none."""
    found = number_of(word)
    return math.nan if found is None else found
