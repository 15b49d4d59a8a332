"""Small cells: counts of rows that have one level, or two levels at once, or lie in a stretch of a curve.

A column of 0 and 1 in a sum counts rows: the mean of such a column is the share of a level, the product of
two such columns a cell of a two-way table, and the sum of any other column against one is a sum over the
rows of a level. So whoever has the second moments of a set of rows has all its two-way tables. Of a category
with L levels that is coded as L - 1 columns the first level counts as well: it is what the others leave. Of
two values of a number both count, and of a target with classes every class, because gradients have a part
for each.

Counts are of rows, or of people where these are named: rows of one person tell of that person alone. Of a
number that is a curve stretches count as levels do: see below.

STRETCHES are what sums over the columns of curves tell of. A column of a curve grows over one segment and is
constant elsewhere. Of a feature that bends at knots k_1 < ... < k_K, sums over these columns are sums of
every continuous function that is linear between knots, the shortest of which live on two neighbouring
segments (k_{i-1}, k_{i+1}), or on one of the two outermost. These are the stretches here. Where two stretches
of one feature overlap is one segment; second moments hold sums of (v - k_i)(v - k_{i+1}) over the rows
strictly inside it, and of one row alone that is its value. Of two features they hold sums of products of such
functions, so that two stretches at once are to second moments what a cell of two levels is: of one row alone
there, both its values. So

- in every segment there are no rows, or at least `min_rows`;
- with a level, or in a stretch of another feature, rows of a stretch are none, or at least `min_cell`;
- no row outweighs the others in a column of a curve, or in a combination of them (`largest_share`): in an
  outermost segment, the one that lies far beyond the others there would.

A stretch counts as a level, with a name that has its ends in the column's own units. Of knots that were ever
used all count together: columns of two runs whose knots differ by a little tell of the rows in between.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.data.standardise import signs
from bidro.data.tables import Schema

_BEGIN = '["between", '
# Knots by column, in its own units, ascending.
Knots = Mapping[str, tuple[float, ...]]


class Stretch(NamedTuple):
    """The rows strictly between two values of a column."""

    column: str
    low: float
    high: float

    @property
    def name(self) -> str:
        return json.dumps(["between", *self])

    def has(self, values: Floats) -> NDArray[np.bool_]:
        """(N,) which values (N,) are in it."""
        return (values > self.low) & (values < self.high)


class Curved(NamedTuple):
    """The curves of a model: where they bend, and for how many parameters second moments of them count."""

    knots: Knots
    parameters: int


def stretch_of(name: str) -> Stretch | None:
    """What a name stands for; None where it is that of a level."""
    if not name.startswith(_BEGIN):
        return None
    try:
        _, column, low, high = json.loads(name)
    except ValueError:  # a level whose column has a strange name
        return None
    return Stretch(str(column), float(low), float(high))


def known_knots(names: Iterable[str]) -> Knots:
    """All knots of which some names have stretches."""
    found: dict[str, set[float]] = {}
    for one in filter(None, map(stretch_of, names)):
        found.setdefault(one.column, set()).update({one.low, one.high} - {-math.inf, math.inf})
    return {column: tuple(sorted(own)) for column, own in found.items()}


def joined(one: Knots, other: Knots) -> Knots:
    """The knots of both."""
    columns = [*one, *(column for column in other if column not in one)]
    return {column: tuple(sorted({*one.get(column, ()), *other.get(column, ())})) for column in columns}


def names_of(knots: Knots) -> list[str]:
    """The names of all stretches."""
    found = []
    for column, own in knots.items():
        if not own:
            continue
        ends = [-math.inf, -math.inf, *own, math.inf, math.inf]
        pairs = zip(ends, ends[2:], strict=False)
        found += [Stretch(column, low, high).name for low, high in pairs]
    return found


def one_level(names: Sequence[str]) -> NDArray[np.bool_]:
    """(c, c) where two of these names together are one level: on the diagonal, and where two stretches of one
    feature meet in a segment."""
    columns = [None if one is None else one.column for one in map(stretch_of, names)]
    places = {column: place for place, column in enumerate(dict.fromkeys(columns)) if column is not None}
    of = np.array([places.get(column, -1) for column in columns], np.int64)  # type: ignore[arg-type]
    return np.eye(len(names), dtype=bool) | ((of[:, None] == of) & (of >= 0))


def segments(values: Floats, knots: Sequence[float]) -> Floats:
    """(N, segments) the columns of a curve of values (N,): each grows over one segment."""
    ends = [-math.inf, *knots, math.inf]
    return np.column_stack([np.clip(values, low, high) for low, high in pairwise(ends)])


def rows_inside(values: Floats, knots: Sequence[float], people: NDArray[np.uint64] | None) -> list[int]:
    """(segments,) how many rows, or people (N,), have values (N,) in each segment."""
    counts = []
    for low, high in pairwise([-math.inf, *knots, math.inf]):
        some = (values > low) & (values < high)
        counts.append(int(some.sum()) if people is None else len(np.unique(people[some])))
    return counts


Counts = NDArray[np.int64]
# Rows whose counts are made together, so that no copy of all of them is made.
ROWS_AT_ONCE = 262_144


class Levels(NamedTuple):
    """Which row has which level."""

    names: tuple[str, ...]  # (c,) such as "ward=b", or those of stretches
    has: NDArray[np.bool_]  # (N, c)

    @classmethod
    def of(cls, schema: Schema, features: Floats, target: Floats, known: Sequence[str] = ()) -> Levels:
        """Of rows as numbers by the schema, features (N, k) and target (N,). `known` are names of before: a
        number that had two values then is still looked at where it has three now, and so are stretches."""
        stretches = [one for one in map(stretch_of, known) if one is not None]
        names: list[str] = []
        parts: list[NDArray[np.bool_]] = []
        place = 0
        for column in schema.columns:
            width = len(column.coded)
            own = features[:, place : place + width]
            place += width
            if column.levels is None:
                _add_values(column.name, own[:, 0], known, names, parts)
                here = [one for one in stretches if one.column == column.name]
                names += [one.name for one in here]
                parts += [one.has(own[:, 0]) for one in here]
            else:
                names += [f"{column.name}={level}" for level in column.levels]
                parts += [np.all(own == 0, axis=1), *(own.T == 1)]
        if schema.classes is None:
            _add_values(schema.target, target, known, names, parts)
        else:
            names += [f"{schema.target}={word}" for word in schema.classes]
            parts += [target == value for value in signs(np.arange(len(schema.classes)), len(schema.classes))]
        has = np.stack(parts, axis=1) if parts else np.zeros((len(target), 0), bool)
        return cls(tuple(names), has)

    def in_order(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """(N, c) in the order of these names; one that is not here no row has."""
        place = {name: k for k, name in enumerate(self.names)}
        none = np.zeros(len(self.has), bool)
        columns = [self.has[:, place[name]] if name in place else none for name in names]
        return np.stack(columns, axis=1) if columns else self.has


def _add_values(
    name: str, values: Floats, known: Sequence[str], names: list[str], parts: list[NDArray[np.bool_]]
) -> None:
    """The values of a number that has two, or that had two before."""
    wanted = {word[len(name) + 1 :] for word in known if word.startswith(f"{name}=")}
    first = values[0] if len(values) else 0.0
    others = values[values != first]
    if len(others) and np.all(others == others[0]):
        wanted |= {f"{first:.17g}", f"{others[0]:.17g}"}
    for word in sorted(wanted):
        try:
            value = float(word)
        except ValueError:  # of another column, whose name begins with this one's and "="
            continue
        names.append(f"{name}={word}")
        parts.append(values == value)


def cell_counts(
    has: NDArray[np.bool_], atoms: NDArray[np.int64], n: int, people: NDArray[np.uint64] | None
) -> Counts:
    """(n, c, c) how many rows of each of n atoms have two levels at once, on the diagonal one level, from the
    rows' levels (N, c) and atoms (N,), -1 for none; with people (N,), how many have a row with both."""
    c = has.shape[1]
    found = np.zeros((n, c, c), np.int64)
    for atom, own in by_atom(atoms):
        if people is None:
            for begin in range(0, len(own), ROWS_AT_ONCE):
                part = has[own[begin : begin + ROWS_AT_ONCE]].astype(np.float32)
                found[atom] += (part.T @ part).astype(np.int64)
        else:
            by_person = own[np.argsort(people[own], kind="stable")]
            levels, whose = has[by_person], people[by_person]
            # Sixty-four levels at once: a bit each.
            bits = np.packbits(np.pad(levels, ((0, 0), (0, -c % 64))), axis=1).view(np.uint64)
            for level in range(c):
                some = np.flatnonzero(levels[:, level])
                first = np.flatnonzero(np.diff(whose[some], prepend=~whose[some[:1]]))
                joined = np.bitwise_or.reduceat(bits[some], first, axis=0).view(np.uint8)
                found[atom, level] = np.unpackbits(joined, axis=1, count=c).sum(axis=0, dtype=np.int64)
    return found


def by_atom(atoms: NDArray[np.int64]) -> list[tuple[int, NDArray[np.intp]]]:
    """Every atom from 0 with the places of its rows."""
    order = np.argsort(atoms, kind="stable")
    values, first = np.unique(atoms[order], return_index=True)
    parts = np.split(order, first[1:])
    return [(int(atom), own) for atom, own in zip(values, parts, strict=True) if atom >= 0]


def smallest(counts: Counts) -> int:
    """The smallest count that is not 0; 0 where all are."""
    some = counts[counts > 0]
    return int(some.min()) if some.size else 0
