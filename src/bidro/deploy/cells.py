"""Small cells: counts of rows that have one level, or two levels at once.

A column of 0 and 1 in a sum counts rows: the mean of such a column is the share of a level, the product of
two such columns a cell of a two-way table, and the sum of any other column against one is a sum over the
rows of a level. So whoever has the second moments of a set of rows has all its two-way tables. Of a category
with L levels that is coded as L - 1 columns the first level counts as well: it is what the others leave. Of
two values of a number both count, and of a target with classes every class, because gradients have a part
for each.

Counts are of rows, or of units where these are named: rows of one person tell of that person alone. Of a
number that is a curve stretches count as levels do: see `bends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.bends import stretch_of
from bidro.standard import signs
from bidro.tables import Schema

Counts = NDArray[np.int64]
# Rows whose counts are made together, so that no copy of all of them is made.
_TOGETHER = 262_144


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
    has: NDArray[np.bool_], atoms: NDArray[np.int64], n: int, units: NDArray[np.uint64] | None
) -> Counts:
    """(n, c, c) how many rows of each of n atoms have two levels at once, on the diagonal one level, from the
    rows' levels (N, c) and atoms (N,), -1 for none; with units (N,), how many have a row with both."""
    c = has.shape[1]
    found = np.zeros((n, c, c), np.int64)
    for atom, own in by_atom(atoms):
        if units is None:
            for begin in range(0, len(own), _TOGETHER):
                part = has[own[begin : begin + _TOGETHER]].astype(np.float32)
                found[atom] += (part.T @ part).astype(np.int64)
        else:
            by_unit = own[np.argsort(units[own], kind="stable")]
            levels, whose = has[by_unit], units[by_unit]
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
