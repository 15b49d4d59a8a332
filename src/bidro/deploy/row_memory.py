"""Which rows a site has ever sent sums over, so that two runs together tell no more of a few rows than one.

THE RULE. Let R_1, ..., R_m be all sets of rows that sums were ever released over: training rows, rows kept
out, the rows of each fold, in every run and of every version of the table. Their atoms are the classes of
rows that are in exactly the same of these sets (and in one at least). Every atom has at least `min_rows`
rows (units, where these are named). A release that would make a smaller one is refused.

Proof that then no few rows can be isolated. Let f be anything that is summed over rows (a product of two
columns, a loss, a gradient at some model). A sum over R_j is the sum of f's totals over the atoms inside
R_j:

    sum_{i in R_j} f(row_i) = sum_{A inside R_j} T_A(f),     T_A(f) = sum_{i in A} f(row_i),

because atoms are disjoint and R_j is a union of some. So a linear combination sum_j c_j sum_{i in R_j}
f(row_i) gives every row of an atom A the same weight, w_A = sum_{j: A inside R_j} c_j: the weights are
constant on atoms, and the rows with a weight other than 0 are a union of atoms, none or at least `min_rows`.
And since all sums are functions of the totals T_A, whatever is computed from them, linear or not, is what
could be computed from the totals alone, each over at least `min_rows` rows. What is no sum (a confidence
bound, a distance) is over a whole R_j, and two of these differ by whole atoms. QED.

The same holds of three families of sets, each with a partition and a rule of its own:

- "rows", all sets: an atom has at least `min_rows` rows;
- "sums", sets of training rows: in an atom a level is had by no row or by at least `min_rows`, as gradients
  hold a sum over the rows of every level, and any two levels are had at once by no row or by at least
  `min_cell`. That does not wait for second moments to be sent: the gradients of squared loss at one model
  more than there are parameters determine them, and those at two models that a server chooses a row of them.
  For the same reason no row of an atom outweighs the others (`dominance`). Of curves the stretches count
  among the levels: see `bends`;
- "moments", those sets of training rows whose second moments or curvature were sent: an atom has more than
  twice as many rows as a model has parameters. Of d parameters that stand for m columns of the table, as with
  curves, d^2 / m count: then second moments, too, are a quarter as many numbers as the rows have.

Of a set that is left behind, rows that were in a sum once and are gone now, counts are known by subtraction:
those of the atom as they were, less those of its rows that are still here. Of units that is a lower bound.
Whether a row outweighs others that are gone is not known.

A row is known by a keyed hash (`known_rows`); nothing readable is kept but counts of levels by atom, which
the sums have told. A row whose numbers change is a row that goes and another that comes.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.bends import Curved, Knots, joined, known_knots, names_of, one_level, stretch_of
from bidro.deploy.cells import Levels, cell_counts, distinct_by_atom, smallest
from bidro.deploy.dominance import require_none_outweighs
from bidro.deploy.known_rows import KnownRows
from bidro.deploy.rules import Ids, RefusedError, rarest_value, words
from bidro.deploy.site_state import SiteState
from bidro.tables import Schema

KINDS = ("rows", "sums", "moments")
# Label of a row that is in none of the sets of a release.
OUTSIDE = -1
_Ints = NDArray[np.int64]


class Partition(NamedTuple):
    """The atoms of one family of sets."""

    atoms: _Ints  # (M,) of every row ever used, from 0; -1 for one in no set of this family
    levels: _Ints  # (atoms, c, c) rows with two levels, on the diagonal with one; c is 0 but for "sums"
    unit_levels: _Ints  # the same of units, at least; equal where no units are named

    @classmethod
    def empty(cls) -> Partition:
        none = np.zeros((0, 0, 0), np.int64)
        return cls(np.zeros(0, np.int64), none, none)


class Memory(NamedTuple):
    """All rows ever used."""

    names: tuple[str, ...]  # (c,) of levels
    hashes: NDArray[np.uint64]  # (M,) by which rows are known
    units: NDArray[np.uint64]  # (M,) hashed, of which unit each is; empty where none are named
    partitions: Mapping[str, Partition]

    @classmethod
    def empty(cls) -> Memory:
        none = np.zeros(0, np.uint64)
        return cls((), none, none, {kind: Partition.empty() for kind in KINDS})

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        parts: dict[str, NDArray[np.generic]] = {
            "names": np.frombuffer(json.dumps(self.names).encode(), np.uint8),
            "hashes": self.hashes,
            "units": self.units,
        }
        for kind, own in self.partitions.items():
            parts |= {f"{kind}.{part}": values.astype(np.int32) for part, values in own._asdict().items()}
        np.savez(file, **parts)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Memory:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            partitions = {
                kind: Partition(*(file[f"{kind}.{part}"].astype(np.int64) for part in Partition._fields))
                for kind in KINDS
            }
            names = tuple(json.loads(file["names"].tobytes()))
            return cls(names, file["hashes"], file["units"], partitions)


class Demanded(NamedTuple):
    """What the rule demands of atoms."""

    min_rows: int
    min_cell: int
    parameters: int  # of a model


class Refined(NamedTuple):
    """A partition that one more release has made finer."""

    atoms: _Ints  # (M,)
    before: _Ints  # (atoms,) which atom each was part of; -1 for rows that were in no set
    label: _Ints  # (atoms,) the set of the release that each is in; OUTSIDE for what is left behind
    changed: NDArray[np.bool_]  # (atoms,) whether it was no atom before


def refined(atoms: _Ints, labels: _Ints) -> Refined:
    """The atoms when sets are released, labels (M,) of which set each row is in, or OUTSIDE; these are
    disjoint."""
    inside = (atoms >= 0) | (labels != OUTSIDE)
    width = int(labels.max(initial=0)) + 2
    pairs, of_row = np.unique((atoms[inside] + 1) * width + labels[inside] + 1, return_inverse=True)
    before, label = pairs // width - 1, pairs % width - 1
    found = np.full(len(atoms), -1, np.int64)
    found[inside] = of_row
    pieces = np.bincount(before[before >= 0], minlength=int(atoms.max(initial=0)) + 1)
    return Refined(found, before, label, (before < 0) | (pieces[before] > 1))


def _counted(
    kind: str, before: Partition, now: Refined, known: KnownRows, of_table: _Ints, has: NDArray[np.bool_]
) -> Partition:
    """The partition with its counts, from the atoms (N,) of the table's rows, -1 for those in no set of the
    release, and their levels (N, c)."""
    n = len(now.before)
    if kind != "sums":
        none = np.zeros((n, 0, 0), np.int64)
        return Partition(now.atoms, none, none)
    behind = now.label == OUTSIDE

    def counted(old: _Ints, units: Ids) -> _Ints:
        # What is in a set of the release is in the table, every row of it.
        counts = cell_counts(has, of_table, n, units)
        counts[behind] = old[now.before[behind]]
        for atom in np.flatnonzero(behind & now.changed):
            pieces = (now.before == now.before[atom]) & ~behind
            counts[atom] = np.maximum(counts[atom] - counts[pieces].sum(axis=0), 0)
        return counts

    rows = counted(before.levels, None)
    return Partition(
        now.atoms, rows, rows if known.units is None else counted(before.unit_levels, known.units)
    )


@dataclass(frozen=True)
class RowMemory:
    """What a site remembers of its rows, and the rule."""

    state: SiteState
    demanded: Demanded

    def known(self, schema: Schema, features: Floats, target: Floats, units: Ids) -> KnownRows:
        """The rows of a table as this memory knows them."""
        return KnownRows(schema, features, target, units, self.state.derived("rows"))

    def check(self, known: KnownRows, sets: Mapping[str, _Ints], curved: Curved | None = None) -> int:
        """What `release` would say, without releasing anything."""
        with self.state.reading() as connection:
            return self._after(connection, known, sets, curved)[1]

    def release(self, known: KnownRows, sets: Mapping[str, _Ints], curved: Curved | None = None) -> int:
        """Remember, before a reply leaves, that sums over sets of rows do: by family, the set (N,) that each
        row of the table is in, from 0, or OUTSIDE, and the curves that they are about, if any. What was
        released before changes nothing.

        Returns the fewest rows, or units, that something rests on that can be worked out from all that was
        released: the smallest atom, or in it the rarest cell of two levels. Raises RefusedError
        where the rule would be broken; then nothing is remembered.
        """
        with self.state.transaction() as connection:
            memory, fewest = self._after(connection, known, sets, curved)
            if memory is not None:
                content = sqlite3.Binary(memory.to_bytes())
                connection.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (known.coding, content))
        return fewest

    def knots(self, known: KnownRows) -> Knots:
        """All knots of curves that sums were ever released for."""
        with self.state.reading() as connection:
            return known_knots(_read(connection, known.coding).names)

    def atoms(self, known: KnownRows, labels: _Ints) -> _Ints:
        """(N,) in which atom of the "sums" each row of the table would be if sets of training rows were
        released, labels (N,) as in `release`; -1 for rows in none of them."""
        with self.state.reading() as connection:
            memory = _read(connection, known.coding)
        here, hashes, new = _places(memory.hashes, known.hashes)
        before = memory.partitions["sums"].atoms
        whole = np.full(len(hashes), OUTSIDE, np.int64)
        whole[here] = labels
        now = refined(np.concatenate([before, np.full(len(new), -1, np.int64)]), whole)
        return np.where(labels == OUTSIDE, -1, now.atoms[here])

    def take_as_new(self, known: KnownRows) -> None:
        """The site's owner says that the rows of the table, which are all unknown, are others than before."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self.state.transaction() as connection:
            what = (known.coding, known.digest, now)
            connection.execute("INSERT OR REPLACE INTO new_rows VALUES (?, ?, ?)", what)

    def changes(self, known: KnownRows) -> tuple[int, int]:
        """(rows of the table that were never used, rows once used that are not in it)."""
        with self.state.reading() as connection:
            before = _read(connection, known.coding).hashes
        new, gone = ~np.isin(known.hashes, before), ~np.isin(before, known.hashes)
        return int(new.sum()), int(gone.sum())

    def _after(
        self,
        connection: sqlite3.Connection,
        known: KnownRows,
        sets: Mapping[str, _Ints],
        curved: Curved | None,
    ) -> tuple[Memory | None, int]:
        """(the memory after a release, None where it is as before, the fewest rows that something rests
        on)."""
        memory = _read(connection, known.coding)
        here, hashes, new = _places(memory.hashes, known.hashes)
        if len(new) == len(here):
            _require_taken_as_new(connection, known)
        bent = {} if curved is None else curved.knots
        stretches = names_of(joined(known_knots(memory.names), bent))
        bends = "sums" in sets and not set(stretches) <= set(memory.names)
        more = [*memory.names, *(stretches if bends else ())]
        levels = Levels.of(known.schema, known.features, known.target, more)
        memory = _widened(memory, levels.names)
        has = levels.in_order(memory.names)
        units = memory.units
        if known.units is not None:
            units = np.concatenate([units, known.hashed_units[new]])
        partitions: dict[str, Partition] = {}
        fewest, same = [], len(new) == 0
        for kind, before in memory.partitions.items():
            atoms = np.concatenate([before.atoms, np.full(len(new), -1, np.int64)])
            if kind not in sets:
                partitions[kind] = before._replace(atoms=atoms)
                continue
            labels = np.full(len(hashes), OUTSIDE, np.int64)
            labels[here] = sets[kind]
            now = refined(atoms, labels)
            of_table = np.where(sets[kind] == OUTSIDE, -1, now.atoms[here])
            n = len(now.before)
            sizes = distinct_by_atom(now.atoms, n, None if known.units is None else units)
            present = now.label != OUTSIDE
            if kind == "moments" and curved is not None:
                _require_many(distinct_by_atom(now.atoms, n, None)[present], curved.parameters)
            if kind == "sums" and bends:
                # Where curves bend anew, all that is here is counted anew.
                now = now._replace(changed=now.changed | present)
            if now.changed.any():
                same, after = False, _counted(kind, before, now, known, of_table, has)
                self._require(kind, known, now, after, memory.names, sizes, of_table)
            else:
                after = Partition(now.atoms, before.levels[now.before], before.unit_levels[now.before])
            fewest += [smallest(sizes[present]), smallest(after.unit_levels[present])]
            partitions[kind] = after
        least = min((count for count in fewest if count), default=0)
        return (None if same else Memory(memory.names, hashes, units, partitions)), least

    def _require(
        self,
        kind: str,
        known: KnownRows,
        now: Refined,
        after: Partition,
        names: tuple[str, ...],
        sizes: _Ints,
        of_table: _Ints,
    ) -> None:
        """Raise RefusedError where an atom that was none before breaks the rule of its family; names (c,) are
        those of levels, sizes (atoms,) are in units where these are named."""
        changed, demanded, named = now.changed, self.demanded, words(known.units)
        earlier = bool(np.any(now.before >= 0))
        if kind == "rows":
            if np.any(sizes[changed] < demanded.min_rows):
                raise RefusedError(_too_few(named, "", "min_rows", demanded.min_rows, earlier))
            return
        if kind == "moments":
            _require_many(distinct_by_atom(now.atoms, len(changed), None)[changed], demanded.parameters)
            return
        # Counts of units are lower bounds: what some row has is not nothing.
        some, counts = after.levels[changed] > 0, after.unit_levels[changed]
        curves = any(stretch_of(name) is not None for name in names)
        level = one_level(names)
        if np.any(some & level & (counts < demanded.min_rows)):
            what = " with a level or class" + (", or in a segment of a curve" if curves else "")
            raise RefusedError(_too_few(named, what, "min_rows", demanded.min_rows, earlier))
        if np.any(some & ~level & (counts < demanded.min_cell)):
            what = " with two levels or classes at once" + (", or in parts of two curves" if curves else "")
            raise RefusedError(_too_few(named, what, "min_cell", demanded.min_cell, earlier))
        # A number that has two values among these rows alone is a level there.
        for atom in np.flatnonzero(changed & (now.label != OUTSIDE)):
            own = of_table == atom
            units = None if known.units is None else known.units[own]
            if rarest_value(known.numbers(own), False, units) < demanded.min_rows:
                what = " with one of a column's two values"
                raise RefusedError(_too_few(named, what, "min_rows", demanded.min_rows, earlier))
            require_none_outweighs(known.whole(own), units, demanded.min_rows)


def _require_many(rows: _Ints, parameters: int) -> None:
    """Raise RefusedError where a set has too few rows for second moments of so many parameters."""
    if np.any(rows <= 2 * parameters):
        raise RefusedError(
            "second moments or curvature over a set of its rows could be worked out that has too few for a "
            f"model of {parameters} parameters: it needs more than twice as many; use fewer folds, or agree "
            "on gradients as replies."
        )


def _too_few(named: str, what: str, rule: str, least: int, earlier: bool) -> str:
    """The sentence of a refusal, and what to do: it says nothing of the rows but that they are too few."""
    few = f"fewer than {least} of its {named}{what}, its {rule}"
    if earlier:
        return (
            f"a sum over {few}, could be worked out from this run and earlier ones, because its table has "
            "changed by too little since, or its folds or hold-out are others; use its table as it was, wait "
            f"for more new {named}, or use fewer folds."
        )
    return (
        f"a sum over {few}, could be worked out; use fewer folds, merge rare levels in the schema, give it "
        f"more {named}, or lower {rule} at that site."
    )


def _require_taken_as_new(connection: sqlite3.Connection, known: KnownRows) -> None:
    """Raise RefusedError where nothing of the table is known although rows were used before: whether these
    are the same persons, written in another way, only the owner can say."""
    if connection.execute("SELECT COUNT(*) FROM memory").fetchone()[0] == 0:
        return
    asked = "SELECT 1 FROM new_rows WHERE coding = ? AND digest = ?"
    if connection.execute(asked, (known.coding, known.digest)).fetchone() is None:
        raise RefusedError(
            "it knows none of the rows in its table, although earlier runs used some: its schema, or how its "
            "table is written, has changed, or all rows are new; its owner decides, see `bidro site check` "
            "and `bidro site approve --new-table`."
        )


def _read(connection: sqlite3.Connection, coding: str) -> Memory:
    found = connection.execute("SELECT content FROM memory WHERE coding = ?", (coding,)).fetchone()
    return Memory.empty() if found is None else Memory.from_bytes(found[0])


def _places(
    known: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> tuple[_Ints, NDArray[np.uint64], NDArray[np.intp]]:
    """(the table's rows (N,) as places among all (M,) ever used, these, which of the table's rows are
    new)."""
    order = np.argsort(known)
    at = np.searchsorted(known[order], hashes)
    is_known = np.zeros(len(hashes), bool)
    if len(known):
        is_known = known[order][np.minimum(at, len(known) - 1)] == hashes
    new = np.flatnonzero(~is_known)
    here = np.empty(len(hashes), np.int64)
    here[is_known] = order[at[is_known]]
    here[new] = len(known) + np.arange(len(new))
    return here, np.concatenate([known, hashes[new]]), new


def _widened(memory: Memory, names: tuple[str, ...]) -> Memory:
    """With levels that were not counted before: 0 of each where rows are gone, as nothing is known of
    them."""
    more = [name for name in names if name not in memory.names]
    if not more:
        return memory
    partitions = {}
    for kind, own in memory.partitions.items():
        wider = (0, len(more) if kind == "sums" else 0)
        pads = [(0, 0), wider, wider]
        partitions[kind] = Partition(own.atoms, np.pad(own.levels, pads), np.pad(own.unit_levels, pads))
    return memory._replace(names=(*memory.names, *more), partitions=partitions)
