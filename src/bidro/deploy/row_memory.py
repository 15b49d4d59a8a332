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

Copies of a row tell of that row alone: counted are people (`known_rows`), and rows whose copies are in other
sets are in other atoms (`partitions`).

The same holds of three families of sets, each with a partition and a rule of its own:

- "rows", all sets: an atom has at least `min_rows` people;
- "sums", sets of training rows. All that is told of them counts as their second moments: the gradients of
  squared loss at one model more than there are parameters determine these, and those at two models that a
  server chooses a row of them. So an atom has as many different rows as these need (`information`);
  in it a level is had by nobody or by at least `min_rows` people, and any two levels at once by nobody or by
  at least `min_cell`. Of curves the stretches count among the levels: see `bends`. For the same reason no row
  of an atom outweighs the others (`dominance`);
- "held_out", sets of which mean losses are told: an atom has as many different rows as so many means need.

Of a set that is left behind, rows that were in a sum once and are gone now, counts are known by subtraction:
those of the atom as they were, less those of its rows that are still here. Of units that is a lower bound.
Whether a row outweighs others that are gone is not known. Rows that are gone, while others are new, may be
the same people written in another way: without a column that tells people apart such a table is refused, and
with one it is where they are. It does not matter whether the ones went before the others came. And of people
who have rows in several atoms, what is the same in all of them is told of whom the atoms differ by: that is
of many people, too (`tells_few_apart`). What all studies tell is held together by people (`people`).

A row is known by a keyed hash (`known_rows`); nothing readable is kept but counts of levels by atom, which
the sums have told. A row whose numbers change is a row that goes and another that comes.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy import people
from bidro.deploy.bends import (
    Curved,
    Knots,
    joined,
    known_knots,
    names_of,
    one_level,
    segments,
    stretch_of,
)
from bidro.deploy.cells import Levels, by_atom, cell_counts, smallest
from bidro.deploy.dominance import Some, require_none_outweighs
from bidro.deploy.information import NEVER, SAMPLE, Information
from bidro.deploy.known_rows import KnownRows
from bidro.deploy.partitions import (
    OUTSIDE,
    Ints,
    Refined,
    apart_by_copies,
    distinct_by_atom,
    fewest_alike,
    one_each,
    placed,
    refined,
    tells_few_apart,
)
from bidro.deploy.rules import FEW_WITHOUT_NEW_ROWS, MANY, Ids, RefusedError, rarest_value, too_few, words
from bidro.deploy.site_state import SiteState
from bidro.tables import Schema

KINDS = ("rows", "sums", "held_out")


class Partition(NamedTuple):
    """The atoms of one family of sets."""

    atoms: Ints  # (M,) of every row ever used, from 0; -1 for one in no set of this family
    needed: Ints  # (atoms,) different rows that an atom needs, and every part of it that is left behind
    levels: Ints  # (atoms, c, c) rows with two levels, on the diagonal with one; c is 0 but for "sums"
    people_levels: Ints  # the same of people, at least

    @classmethod
    def empty(cls) -> Partition:
        none = np.zeros((0, 0, 0), np.int64)
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), none, none)


class Memory(NamedTuple):
    """All rows ever used."""

    names: tuple[str, ...]  # (c,) of levels
    hashes: NDArray[np.uint64]  # (M,) by which rows are known
    contents: NDArray[np.uint64]  # (M,) the same for copies
    patterns: NDArray[np.uint64]  # (M,) the same for whoever has the same numbers
    people: NDArray[np.uint64]  # (M,) hashed, of whom each is
    partitions: Mapping[str, Partition]

    @classmethod
    def empty(cls) -> Memory:
        none = np.zeros(0, np.uint64)
        return cls((), none, none, none, none, {kind: Partition.empty() for kind in KINDS})

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        parts: dict[str, NDArray[np.generic]] = {
            "names": np.frombuffer(json.dumps(self.names).encode(), np.uint8),
            "hashes": self.hashes,
        }
        # Most rows are different: what says the same as the hashes is not kept again.
        for part in ("contents", "patterns", "people"):
            values = getattr(self, part)
            parts |= {part: values[:0] if np.array_equal(values, self.hashes) else values}
        for kind, own in self.partitions.items():
            parts |= {f"{kind}.{part}": values for part, values in own._asdict().items()}
            parts[f"{kind}.atoms"] = own.atoms.astype(np.int32)
        np.savez(file, **parts)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Memory:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            names, hashes = tuple(json.loads(file["names"].tobytes())), file["hashes"]
            if "people" not in file:
                return _of_earlier_version(names, hashes, {name: file[name] for name in file.files})
            partitions = {
                kind: Partition(*(file[f"{kind}.{part}"].astype(np.int64) for part in Partition._fields))
                for kind in KINDS
            }
            known = {part: file[part] for part in ("contents", "patterns", "people")}
            known = {part: values if len(values) else hashes for part, values in known.items()}
            return cls(names, hashes, **known, partitions=partitions)


def _of_earlier_version(
    names: tuple[str, ...], hashes: NDArray[np.uint64], file: Mapping[str, NDArray[Any]]
) -> Memory:
    """A memory that was written before people and bits were counted. What its atoms need is not known, so
    that no part of them may be left behind."""
    whose = file["units"] if len(file["units"]) else hashes
    rows, sums = (file[f"{kind}.atoms"].astype(np.int64) for kind in ("rows", "sums"))
    held_out = np.where(sums < 0, rows, -1)
    counts = (file[f"sums.{part}"].astype(np.int64) for part in ("levels", "unit_levels"))

    def never(atoms: Ints) -> Ints:
        return np.full(int(atoms.max(initial=-1)) + 1, NEVER, np.int64)

    def without_levels(atoms: Ints) -> Partition:
        none = np.zeros((int(atoms.max(initial=-1)) + 1, 0, 0), np.int64)
        return Partition(atoms, never(atoms), none, none)

    partitions = {
        "rows": without_levels(rows),
        "sums": Partition(sums, never(sums), *counts),
        "held_out": without_levels(held_out),
    }
    return Memory(names, hashes, hashes, hashes, whose, partitions)


class Demanded(NamedTuple):
    """What the rule demands of atoms."""

    min_rows: int
    min_cell: int
    parameters: int  # of a model; 0 where nothing is told but counts
    means: int = 0  # mean losses that are told of rows held out


def _counted(
    kind: str, before: Partition, now: Refined, known: KnownRows, of_table: Ints, has: NDArray[np.bool_]
) -> Partition:
    """The partition with its counts, from the atoms (N,) of the table's rows, -1 for those in no set of the
    release, and their levels (N, c); what atoms need is as it was."""
    n = len(now.before)
    needed = np.where(now.before >= 0, before.needed[now.before] if len(before.needed) else 0, 0)
    if kind != "sums":
        none = np.zeros((n, 0, 0), np.int64)
        return Partition(now.atoms, needed, none, none)
    behind = now.label == OUTSIDE

    def counted(old: Ints, counts: Ints) -> Ints:
        # What is in a set of the release is in the table, every row of it.
        counts[behind] = old[now.before[behind]]
        for atom in np.flatnonzero(behind & now.changed):
            pieces = (now.before == now.before[atom]) & ~behind
            counts[atom] = np.maximum(counts[atom] - counts[pieces].sum(axis=0), 0)
        return counts

    rows = counted(before.levels, cell_counts(has, of_table, n, None))
    if known.units is None:
        # Copies have the same levels: one of each is enough.
        if known.counted is not None:
            some = one_each(of_table, known.people)
            has, of_table = has[some], of_table[some]
        by_people = cell_counts(has, of_table, n, None)
    else:
        by_people = cell_counts(has, of_table, n, known.units)
    return Partition(now.atoms, needed, rows, counted(before.people_levels, by_people))


@dataclass(frozen=True)
class RowMemory:
    """What a site remembers of its rows, and the rule."""

    state: SiteState
    demanded: Demanded

    def known(self, schema: Schema, features: Floats, target: Floats, units: Ids) -> KnownRows:
        """The rows of a table as this memory knows them."""
        return KnownRows(schema, features, target, units, self.state.derived("rows"))

    def check(self, known: KnownRows, sets: Mapping[str, Ints], curved: Curved | None = None) -> int:
        """What `release` would say, without releasing anything."""
        with self.state.reading() as connection:
            return self._after(connection, known, sets, curved)[2]

    def release(self, known: KnownRows, sets: Mapping[str, Ints], curved: Curved | None = None) -> int:
        """Remember, before a reply leaves, that sums over sets of rows do: by family, the set (N,) that each
        row of the table is in, from 0, or OUTSIDE, and the curves that they are about, if any. What was
        released before changes nothing.

        Returns the fewest people that something rests on that can be worked out from all that was
        released: the smallest atom, or in it the rarest cell of two levels. Raises RefusedError
        where the rule would be broken; then nothing is remembered.
        """
        with self.state.transaction() as connection:
            memory, everybody, fewest = self._after(connection, known, sets, curved)
            if memory is not None:
                content = sqlite3.Binary(memory.to_bytes())
                connection.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (known.coding, content))
            if everybody is not None:
                content = sqlite3.Binary(everybody.to_bytes())
                connection.execute("INSERT OR REPLACE INTO people VALUES (1, ?)", (content,))
        return fewest

    def knots(self, known: KnownRows) -> Knots:
        """All knots of curves that sums were ever released for."""
        with self.state.reading() as connection:
            return known_knots(_read(connection, known.coding).names)

    def atoms(self, known: KnownRows, labels: Ints) -> Ints:
        """(N,) in which atom of the "sums" each row of the table would be if sets of training rows were
        released, labels (N,) as in `release`; -1 for rows in none of them."""
        with self.state.reading() as connection:
            memory = _read(connection, known.coding)
        here, _, new = placed(memory.hashes, known.hashes)
        now = _refined(memory, "sums", known, here, new, labels, self.demanded.min_rows)
        return np.where(labels == OUTSIDE, -1, now.atoms[here])

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
        sets: Mapping[str, Ints],
        curved: Curved | None,
    ) -> tuple[Memory | None, people.People | None, int]:
        """(the memory after a release, that of people, both None where they are as before, the fewest people
        that something rests on)."""
        memory = _read(connection, known.coding)
        here, hashes, new = placed(memory.hashes, known.hashes)
        everybody = _read_people(connection)
        others = "SELECT COUNT(*) FROM memory WHERE coding != ?"
        other_codings = connection.execute(others, (known.coding,)).fetchone()[0] > 0
        people.require_comparable(everybody, known, other_codings)
        gone = ~np.isin(memory.hashes, known.hashes)
        if len(new) and gone.any():
            _require_others(known, new, memory.people[gone])
        bent = {} if curved is None else curved.knots
        stretches = names_of(joined(known_knots(memory.names), bent))
        bends = "sums" in sets and not set(stretches) <= set(memory.names)
        more = [*memory.names, *(stretches if bends else ())]
        levels = _levels(known, tuple(more))
        memory = _widened(memory, levels.names)
        has = levels.in_order(memory.names)
        whom = np.concatenate([memory.people, known.people[new]])
        patterns = np.concatenate([memory.patterns, known.patterns[new]])
        # Whether every row ever used is of another person.
        alone = known.counted is None and bool(np.all(memory.hashes == memory.contents))
        partitions: dict[str, Partition] = {}
        fewest, same = [], len(new) == 0
        for kind, before in memory.partitions.items():
            if kind not in sets:
                atoms = np.concatenate([before.atoms, np.full(len(new), -1, np.int64)])
                partitions[kind] = before._replace(atoms=atoms)
                continue
            now = _refined(memory, kind, known, here, new, sets[kind], self.demanded.min_rows)
            of_table = np.where(sets[kind] == OUTSIDE, -1, now.atoms[here])
            sizes = distinct_by_atom(now.atoms, len(now.before), None if alone else whom)
            is_here = now.label != OUTSIDE
            if kind == "sums" and bends:
                # Where curves bend anew, all that is here is counted anew.
                now = now._replace(changed=now.changed | is_here)
            if now.changed.any():
                same, after = False, _counted(kind, before, now, known, of_table, has)
                different = sizes
                if not alone:
                    # What is the same in all rows of a person is there as often as there are people.
                    different = np.minimum(sizes, distinct_by_atom(now.atoms, len(now.before), patterns))
                counts = sizes, different, of_table
                after = self._require(kind, known, now, after, memory.names, counts, curved)
                if not alone:
                    self._require_many_apart(after, whom)
            else:
                after = Partition(now.atoms, *(part[now.before] for part in before[1:]))
            fewest += [smallest(sizes[is_here]), smallest(after.people_levels[is_here])]
            partitions[kind] = after
        least = min((count for count in fewest if count), default=0)
        if same:
            return None, None, least
        contents = np.concatenate([memory.contents, known.contents[new]])
        found = Memory(memory.names, hashes, contents, patterns, whom, partitions)
        if known.units is None or "rows" not in sets:
            return found, None, least
        needed = np.zeros(len(here), np.int64)
        for kind in sets:
            inside = sets[kind] != OUTSIDE
            own = partitions[kind]
            needed[inside] = np.maximum(needed[inside], own.needed[own.atoms[here[inside]]])
        if everybody is None:
            everybody = _people_of(memory, known)
        return found, people.after(everybody, known, sets["rows"], needed, self.demanded.min_rows), least

    def _require(
        self,
        kind: str,
        known: KnownRows,
        now: Refined,
        after: Partition,
        names: tuple[str, ...],
        counts_of: tuple[Ints, Ints, Ints],
        curved: Curved | None,
    ) -> Partition:
        """The partition with what its atoms need. Raises RefusedError where an atom that was none before
        breaks the rule of its family; names (c,) are those of levels, and counts are how many people and how
        many different rows each atom has (atoms,), and in which the table's rows (N,) are."""
        sizes, different, of_table = counts_of
        changed, demanded, named = now.changed, self.demanded, words(known.units)
        earlier = bool(np.any(now.before >= 0))
        if np.any(sizes[changed] < demanded.min_rows):
            raise RefusedError(too_few(named, "", "min_rows", demanded.min_rows, earlier))
        if kind == "rows":
            return after
        needed = after.needed.copy()
        knots = known_knots(names) if kind == "sums" else {}
        places = dict(by_atom(of_table))
        for atom in np.flatnonzero(changed & (now.label != OUTSIDE)).tolist():
            own = places[atom]
            each = sizes[atom] / different[atom]
            needed[atom] = max(needed[atom], self._needed(kind, known, own, knots, curved, each))
        few = changed & (different < needed)
        if few.any():
            alike = fewest_alike(of_table, len(changed), known.people, known.patterns)
            if np.any(few & (alike < demanded.min_rows)):
                raise RefusedError(MANY)
        after = after._replace(needed=needed)
        if kind == "held_out":
            return after
        # Counts of people are lower bounds: what some row has is not nothing.
        some, counts = after.levels[changed] > 0, after.people_levels[changed]
        curves = any(stretch_of(name) is not None for name in names)
        level = one_level(names)
        if np.any(some & level & (counts < demanded.min_rows)):
            what = " with a level or class" + (", or in a segment of a curve" if curves else "")
            raise RefusedError(too_few(named, what, "min_rows", demanded.min_rows, earlier))
        if np.any(some & ~level & (counts < demanded.min_cell)):
            what = " with two levels or classes at once" + (", or in parts of two curves" if curves else "")
            raise RefusedError(too_few(named, what, "min_cell", demanded.min_cell, earlier))
        # A number that has two values among these rows alone is a level there.
        for own in (places[atom] for atom in np.flatnonzero(changed & (now.label != OUTSIDE)).tolist()):
            counted = None if known.counted is None else known.counted[own]
            if rarest_value(known.two_valued(own, levels=False), False, counted) < demanded.min_rows:
                what = " with one of a column's two values"
                raise RefusedError(too_few(named, what, "min_rows", demanded.min_rows, earlier))
            require_none_outweighs(_some_rows(known, own, knots), known.people[own])
        return after

    def _require_many_apart(self, after: Partition, whom: NDArray[np.uint64]) -> None:
        """Raise RefusedError where what does not change from row to row of a person (M,) would be told of
        few people, because all others have rows in several atoms."""
        # What an atom of an earlier version needs is not known.
        needed = after.needed[after.needed < NEVER].max(initial=self.demanded.min_rows)
        if tells_few_apart(after.atoms, whom, int(needed)):
            raise RefusedError(FEW_WITHOUT_NEW_ROWS)

    def _needed(
        self,
        kind: str,
        known: KnownRows,
        own: NDArray[np.intp],
        knots: Knots,
        curved: Curved | None,
        each: float,
    ) -> int:
        """How many different rows a set of rows needs, places `own` in the table, each of which so many
        people have."""
        demanded = self.demanded
        one = own
        if known.counted is not None:
            one = own[one_each(np.zeros(len(own), np.int64), known.people[own])]
        # The table's order says nothing of what is in its rows, so that these are a random sample.
        one = one[:: -(-len(one) // SAMPLE)]
        whole = known.whole(one)
        if kind == "held_out":
            return Information.of(whole, whole[:, :0]).needed_by_means(demanded.means)
        if demanded.parameters == 0:
            return 0
        parameters = demanded.parameters if curved is None else max(demanded.parameters, curved.parameters)
        told = _some_rows(known, one, knots)(slice(None))
        return Information.of(whole, told).needed(parameters, each)


def _require_others(known: KnownRows, new: NDArray[np.intp], gone: NDArray[np.uint64]) -> None:
    """Raise RefusedError where new rows, by their places in the table, may be those of people whose rows
    (gone,) were told of once and are not in the table: sums over both differ by what has changed, which may
    be one cell, also where all rows were written anew, or everybody is a year older."""
    if known.units is None:
        raise RefusedError(
            "rows that earlier runs used are gone from its table and others are new, and no column tells "
            "whether these are the same people; name the column of persons (unit) in the agreement from "
            "the first, only add rows, or, for a table of other people, give this site another folder "
            "(state in its site.toml)."
        )
    if np.any(np.isin(known.people[new], gone)):
        raise RefusedError(
            "rows of people that earlier runs used have changed, or are gone while others of the same people "
            "are new: who compares the two sums would see what has changed; use the table as it was, with "
            "rows that are only added or people who are only taken out, or agree on a private run."
        )


def _some_rows(known: KnownRows, own: NDArray[np.intp], knots: Knots) -> Some:
    """The columns that second moments are told of, of some rows of the table, by their places."""

    def some(part: Any) -> Floats:
        here = own[part]
        bent = (segments(known.column(name)[here], at) for name, at in knots.items())
        return np.column_stack([known.whole(here), *bent])

    return some


def _refined(
    memory: Memory,
    kind: str,
    known: KnownRows,
    here: Ints,
    new: NDArray[np.intp],
    labels: Ints,
    least: int,
) -> Refined:
    """The atoms of one family when sets of the table's rows are released, labels (N,) as in `release`; fewer
    people than so many are no atom."""
    before = memory.partitions[kind].atoms
    atoms = np.concatenate([before, np.full(len(new), -1, np.int64)])
    whole = np.full(len(atoms), OUTSIDE, np.int64)
    whole[here] = labels
    contents = np.concatenate([memory.contents, known.contents[new]])
    if known.copies or np.any(memory.hashes != memory.contents):
        whole = apart_by_copies(atoms, whole, contents, least)
    return refined(atoms, whole)


def _people_of(memory: Memory, known: KnownRows) -> people.People:
    """The people of rows that were used before people were kept."""
    if not len(memory.people):
        return people.People.empty(str(known.schema.unit))
    hashes, first = np.unique(memory.people, return_index=True)
    own = memory.partitions["rows"]
    studies = {known.coding: people.Study(own.needed, {}, {})}
    return people.People(str(known.schema.unit), hashes, own.atoms[first], studies)


def _read_people(connection: sqlite3.Connection) -> people.People | None:
    found = connection.execute("SELECT content FROM people").fetchone()
    return None if found is None else people.People.from_bytes(found[0])


@lru_cache(maxsize=2)
def _levels(known: KnownRows, more: tuple[str, ...]) -> Levels:
    return Levels.of(known.schema, known.features, known.target, more)


def _read(connection: sqlite3.Connection, coding: str) -> Memory:
    found = connection.execute("SELECT content FROM memory WHERE coding = ?", (coding,)).fetchone()
    return Memory.empty() if found is None else Memory.from_bytes(found[0])


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
        counts = (np.pad(part, pads) for part in (own.levels, own.people_levels))
        partitions[kind] = Partition(own.atoms, own.needed, *counts)
    return memory._replace(names=(*memory.names, *more), partitions=partitions)
