"""By what a site knows a row and a person again: keyed hashes, which tell nothing to who has not the key.

A row is known by its numbers, by its person where people are named, and by which copy of the same it is.
Numbers are those to twelve digits (`to_digits`), which is all that anything is computed of at a site: a table
that was computed or written anew, so that last digits differ, is the same, and so are all sums over it. A
person is known by its label, whatever the other columns are; where none is named, every different row is a
person: copies of one row tell of that row alone, however many there are.

Statements about a table are counted by people, whatever agreement it is read by (`version_of`). An agreement
names columns and codes them; another one makes other numbers of the same rows. So a row is known
again by its person, by its numbers, or by all that its file says of it, whichever of these is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.splits import scrambled, siphash
from bidro.data.tables import Schema
from bidro.deploy.site.disclosure.rules import Ids, rarest_value
from bidro.deploy.site.state import SiteState

# Decimal digits of a number that a site uses.
_DIGITS = 12
# Powers of ten, each the nearest number to it, from 10^-308 on.
_TENS = np.array([float(f"1e{k}") for k in range(-308, 309)])
# Rows by which a column is seen to have more than two values, as a rule.
_FEW = 256
# And to have many.
_LOOKED_AT = 4_000
# Rows that are hashed together, so that no copy of all of them is made.
_TOGETHER = 65_536


@dataclass(frozen=True, eq=False)
class KnownRows:
    """The rows of a table as numbers, features (N, k) and target (N,), and by what they are known again."""

    schema: Schema
    features: Floats  # (N, k)
    target: Floats  # (N,)
    named_people: Ids  # (N,) by the schema's column `person`; None where it names none
    key: bytes

    def __repr__(self) -> str:
        """How many rows there are, never rows or the key."""
        return f"KnownRows({len(self.target)} rows)"

    @cached_property
    def coding(self) -> str:
        """A digest of what columns mean: whether rows under two codings are the same nobody can tell."""
        schema = self.schema
        columns = [(column.name, column.levels) for column in schema.columns]
        what = json.dumps([columns, schema.target, schema.classes, schema.person])
        return hashlib.sha256(what.encode()).hexdigest()

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """(N,) 64 bits from what is in a row, its person and which copy of the same it is."""
        content = self.contents.copy()
        order = np.argsort(content, kind="stable")
        new = np.ones(len(order), bool)
        new[1:] = content[order][1:] != content[order][:-1]
        first = np.flatnonzero(new)
        copy = np.empty(len(order), np.uint64)
        copy[order] = np.arange(len(order)) - first[np.cumsum(new) - 1]
        copies = copy > 0
        if copies.any():
            content[copies] = _hashed(np.stack([content[copies], copy[copies]], axis=1), self.key)
        return content

    @cached_property
    def contents(self) -> NDArray[np.uint64]:
        """(N,) 64 bits from what is in a row and its unit: copies have the same."""
        parts = [slice(begin, begin + _TOGETHER) for begin in range(0, len(self.target), _TOGETHER)]
        return np.concatenate([np.zeros(0, np.uint64), *(self._content(part) for part in parts)])

    @cached_property
    def patterns(self) -> NDArray[np.uint64]:
        """(N,) 64 bits from what is in a row alone, whoever's it is."""
        if self.named_people is None:
            return self.contents
        return replace(self, named_people=None).contents

    @cached_property
    def people(self) -> NDArray[np.uint64]:
        """(N,) of which person each row is: the hashed label, or the row's content."""
        return self.contents if self.named_people is None else self.hashed_people

    @cached_property
    def copies(self) -> int:
        """How many rows are copies of others, of the same person where people are named."""
        return int(np.sum(self.hashes != self.contents))

    @cached_property
    def counted(self) -> Ids:
        """(N,) of which person each row is; None where every row is of another."""
        return None if self.named_people is None and self.copies == 0 else self.people

    def repeating(self) -> tuple[tuple[str, ...], int]:
        """(columns that are numbers with more than two values, of which all rows together have few
        combinations, how many these are), where no person is named: several numbers that are the same from
        row to row are those of people, or places, with many rows. None where there are fewer than three."""
        if self.named_people is not None:
            return (), 0
        found = []
        for name, values in self.by_column():
            few = len(np.unique(values[:_LOOKED_AT])) * 2 <= len(values[:_LOOKED_AT])
            if values.shape[1] == 1 and few and 2 < len(np.unique(values)) <= len(values) // 2:
                found.append((name, values[:, 0]))
        if len(found) < 3:
            return (), 0
        together = np.zeros(len(self.target), np.uint64)
        largest = 0
        for _, values in found:
            together = scrambled(together, (values + 0.0).view(np.uint64))
            largest = max(largest, len(np.unique(values)))
        count = len(np.unique(together))
        # Numbers that come and go by themselves have many more combinations than each has values.
        return (tuple(name for name, _ in found), count) if count <= 2 * largest else ((), 0)

    def two_valued(self, some: NDArray[np.intp], levels: bool) -> Floats:
        """(rows, columns) those columns of which some of the rows, by their places, can have two values, and
        with `levels` coded levels among them and the target last; else of numbers alone."""
        schema = self.schema
        coded = np.array([column.levels is not None for column in schema.columns for _ in column.coded], bool)
        columns = [self.features[:, j] for j in np.flatnonzero(~coded | levels)]
        columns += [self.target] if schema.classes is None and not levels else []
        # Most columns show more than two values at once.
        few = [column[some] for column in columns if len(np.unique(column[some[:_FEW]])) <= 2]
        few += [self.target[some]] if levels else []
        return np.column_stack(few) if few else np.zeros((len(some), 0))

    def rarest(self, some: NDArray[np.bool_]) -> int:
        """How many people of some of the rows (N,) have the rarest level or class, or value of two: the
        fewest that a mean of a column tells of."""
        counted = None if self.counted is None else self.counted[some]
        rows = self.two_valued(np.flatnonzero(some), levels=True)
        return rarest_value(rows, self.schema.classes is not None, counted)

    def column(self, name: str) -> Floats:
        """(N,) a column that is a number."""
        return dict(self.by_column())[name][:, 0]

    def whole(self, wanted: NDArray[Any]) -> Floats:
        """(rows, k + 1) all numbers of some of the rows, the target last."""
        return joined_rows(self.features, self.target, wanted)

    def by_column(self) -> Iterator[tuple[str, Floats]]:
        """Every column of the table by its name, (N, numbers) as the schema codes it, the target last."""
        place = 0
        for column in self.schema.columns:
            width = len(column.coded)
            yield column.name, self.features[:, place : place + width]
            place += width
        yield self.schema.target, self.target[:, None]

    def _content(self, part: slice) -> NDArray[np.uint64]:
        """64 bits from the numbers and the person of some of the rows."""
        whole = np.column_stack([self.features[part], self.target[part]]) + 0.0  # without a sign of 0
        if self.named_people is not None:
            whole = np.column_stack([whole, self.named_people[part].view(np.float64)])
        return _hashed(whole, self.key)

    @cached_property
    def hashed_people(self) -> NDArray[np.uint64]:
        """(N,), or empty where no people are named."""
        if self.named_people is None:
            return np.zeros(0, np.uint64)
        different, of_row = np.unique(self.named_people, return_inverse=True)
        return _hashed(different[:, None], self.key)[of_row]


def joined_rows(features: Floats, target: Floats, wanted: NDArray[Any]) -> Floats:
    """(rows, k + 1) features (N, k) and target (N,) of some of the rows, by places or as a mask, with no
    other copy of them."""
    some = np.flatnonzero(wanted) if wanted.dtype == bool else wanted
    found = np.empty((len(some), features.shape[1] + 1))
    for begin in range(0, len(some), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        found[part, :-1], found[part, -1] = features[some[part]], target[some[part]]
    return found


def to_digits(numbers: Floats) -> Floats:
    """Numbers to twelve decimal digits: one that has no more, as nearly all that are recorded, is as it is,
    and so are whole numbers, of which a time in seconds has ten that never change.

    By the same numbers a row is known and summed. Were it known by fewer digits than it is summed with, one
    cell whose last digit changes would be the difference of two sums over the "same" rows, and with it, by
    the products, its whole row.
    """
    found = np.empty_like(numbers)
    for begin in range(0, len(numbers), _TOGETHER):
        own = numbers[begin : begin + _TOGETHER]
        _, binary = np.frexp(own)
        # Of 10^k <= |number| < 10^(k + 1), up to one: one digit more is no harm.
        k = np.floor((binary - 1) * np.log10(2.0)).astype(np.int64)
        away = np.clip(k - (_DIGITS - 1), -308, 308)
        small = away < 0
        # Whole powers of ten are exact, up to the 22nd: the quotient is the nearest number to its digits.
        up, down = _TENS[308 - np.where(small, away, 0)], _TENS[308 + np.where(small, 0, away)]
        kept = np.rint(own * up / down) / up * down
        found[begin : begin + _TOGETHER] = np.where(np.rint(own) == own, own, kept) + 0.0
    return found


def _hashed(rows: NDArray[np.generic], key: bytes) -> NDArray[np.uint64]:
    """(N,) 64 bits from the bytes of every row (N, m), which tell nothing without the key."""
    content = memoryview(rows.tobytes())
    width = rows.shape[1] * 8
    blake = hashlib.blake2b
    found = b"".join(
        blake(content[place : place + width], digest_size=8, key=key).digest()
        for place in range(0, len(rows) * width, width)
    )
    return np.frombuffer(found, np.uint64).copy()


def row_contents(table: pd.DataFrame, without: str) -> NDArray[np.uint64]:
    """(N,) 64 bits from all cells of each row, whatever the order of the columns, but for one column, which
    sites need not have."""
    named = sorted((str(name), place) for place, name in enumerate(table.columns) if name != without)
    found = np.zeros(len(table), np.uint64)
    for _, place in named:
        column = table.iloc[:, place]
        cells = column.astype(str) if pd.api.types.is_object_dtype(column) else column
        found = scrambled(found, pd.util.hash_pandas_object(cells, index=False).to_numpy(np.uint64))
    return found


def version_of(state: SiteState, known: KnownRows, contents: NDArray[np.uint64], min_rows: int) -> int:
    """The number of the version of a site's table, by the people in it: see `SiteState.version`."""
    key = np.frombuffer(state.derived("row contents")[:16], "<u8")
    people = [known.hashes, siphash(key, [contents])]
    if known.named_people is None:
        return state.version(people, np.arange(len(contents), dtype=np.uint64), min_rows)
    return state.version([*people, known.hashed_people], known.named_people, min_rows)


def copies_in_words(rows: int, copies: int, people: bool) -> str:
    """What a table of so many rows has of copies, and what to do."""
    each, left = divmod(rows, rows - copies)
    found = f"{copies} of the {rows} rows of the table are copies of others"
    if left == 0:
        found += f", as if every row were there {each} times: has a join multiplied rows?"
    else:
        found += "."
    if people:
        return found
    return (
        f"{found} Copies count as one person; if equal rows are of different people, name the column that "
        "tells people apart (person in the schema)."
    )
