"""What sums over the columns of curves tell, and of which rows: the stretches that a site's memory counts.

A column of a curve grows over one segment and is constant elsewhere. Of a feature that bends at knots
k_1 < ... < k_K, sums over these columns are sums of every continuous function that is linear between knots,
the shortest of which live on two neighbouring segments (k_{i-1}, k_{i+1}), or on one of the two outermost.
These are the stretches here. Where two stretches of one feature overlap is one segment; second moments hold
sums of (v - k_i)(v - k_{i+1}) over the rows strictly inside it, and of one row alone that is its value. Of
two features they hold sums of products of such functions, so that two stretches at once are to second moments
what a cell of two levels is: of one row alone there, both its values. So

- in every segment there are no rows, or at least `min_rows`; when knots are first asked about, these;
- with a level, or in a stretch of another feature, rows of a stretch are none, or at least `min_cell`;
- no row outweighs the others in a column of a curve, or in a combination of them (`dominance`): in an
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

from bidro.arrays import Floats

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


def within(few: Knots, many: Knots) -> bool:
    """Whether all of the few are among the many."""
    return all(set(own) <= set(many.get(column, ())) for column, own in few.items())


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


def rows_inside(values: Floats, knots: Sequence[float], units: NDArray[np.uint64] | None) -> list[int]:
    """(segments,) how many rows, or units (N,), have values (N,) in each segment."""
    counts = []
    for low, high in pairwise([-math.inf, *knots, math.inf]):
        some = (values > low) & (values < high)
        counts.append(int(some.sum()) if units is None else len(np.unique(units[some])))
    return counts
