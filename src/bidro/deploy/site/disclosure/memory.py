"""Which rows a site has ever sent sums over, so that two runs together tell no more of a few rows than one.

THE RULE. Let R_1, ..., R_m be all sets of rows that sums were ever released over: training rows, rows kept
out, the rows of each fold, in every run and of every version of the table. Their atoms are the classes of
rows that are in exactly the same of these sets (and in one at least). Every atom has at least `min_rows`
rows (people, where these are named). A release that would make a smaller one is refused.

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
sets are in other atoms (`apart_by_copies`).

The same holds of three families of sets, each with a partition and a rule of its own:

- "rows", all sets: an atom has at least `min_rows` people;
- "sums", sets of training rows. All that is told of them counts as their second moments: the gradients of
  squared loss at one model more than there are parameters determine these, and those at two models that a
  server chooses a row of them. So an atom has as many different rows as these need (`information`);
  in it a level is had by nobody or by at least `min_rows` people, and any two levels at once by nobody or by
  at least `min_cell`. Of curves the stretches count among the levels: see `cells`. For the same reason no row
  of an atom outweighs the others (`largest_share`);
- "held_out", sets of which mean losses are told: an atom has as many different rows as so many means need.

Of a set that is left behind, rows that were in a sum once and are gone now, counts are known by subtraction:
those of the atom as they were, less those of its rows that are still here. Of units that is a lower bound.
Whether a row outweighs others that are gone is not known. Rows that are gone, while others are new, may be
the same people written in another way: without a column that tells people apart such a table is refused, and
with one it is where they are. It does not matter whether the ones went before the others came. And of people
who have rows in several atoms, what is the same in all of them is told of whom the atoms differ by: that is
of many people, too (`tells_few_apart`). What all studies tell is held together by people (below).

A row is known by a keyed hash (`known_rows`); nothing readable is kept but counts of levels by atom, which
the sums have told. A row whose numbers change is a row that goes and another that comes.

PEOPLE. Two studies of the same people under other columns are two memories of rows, between which no
row can be compared. People can, where every agreement names the column that tells them apart. THE RULE of
rows is asked of people over all studies together: the classes of people who were in exactly the same
released sets have each at least `min_rows` people, and at least as many different rows as all their studies
need together (`information`; that is enough, as bits told in two studies add up, and those that rows hold in
both are no fewer than in one). So a person who joins between two studies is seen, and so is one in a table
that was written anew with fewer digits, although no row of it is known.

Classes tell that the people are the same, not that their values are. A value that is corrected between two
studies is the difference of their sums. So of every class and column the state keeps sums of keyed hashes of
(person, value), one for each of some parts of its people, and a column that another study has used must be as
it was. A column of another name that is the same for most parts, and not for all, is that column, renamed.

A site asks `Releases` before it answers: `training` when a run begins, `folds` before the first reply over
folds, and `answerable` for what it tells the server that it would answer.
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

from bidro.core.arrays import Floats
from bidro.core.splits import scrambled
from bidro.data.tables import Schema
from bidro.deploy.site.disclosure.cells import (
    Curved,
    Knots,
    Levels,
    by_atom,
    cell_counts,
    joined,
    known_knots,
    names_of,
    one_level,
    rows_inside,
    segments,
    smallest,
    stretch_of,
)
from bidro.deploy.site.disclosure.information import NEVER, SAMPLE, Information, Some, require_none_outweighs
from bidro.deploy.site.disclosure.known_rows import KnownRows
from bidro.deploy.site.disclosure.rules import (
    FEW_WITHOUT_NEW_ROWS,
    MANY,
    Ids,
    PolicyViolationError,
    rarest_value,
    too_few,
    words,
)
from bidro.deploy.site.state import SiteState

Ints = NDArray[np.int64]
# Label of a row, or person, that is in none of the sets of a release.
OUTSIDE = -1
# Directions that differ by less are parallel: those of small whole numbers differ by much more.
_PARALLEL = 1e-6


class Refined(NamedTuple):
    """A partition that one more release has made finer."""

    atoms: Ints  # (M,)
    before: Ints  # (atoms,) which atom each was part of; -1 for rows that were in no set
    label: Ints  # (atoms,) the set of the release that each is in; OUTSIDE for what is left behind
    changed: NDArray[np.bool_]  # (atoms,) whether it was no atom before

    def classes_of(self, places: Ints) -> Ints:
        """The atoms of some of the M."""
        return np.asarray(self.atoms[places])


def refined(atoms: Ints, labels: Ints) -> Refined:
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


def placed(
    known: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> tuple[Ints, NDArray[np.uint64], NDArray[np.intp]]:
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


def distinct_by_atom(atoms: Ints, n: int, people: NDArray[np.uint64] | None) -> Ints:
    """(n,) how many rows, or people (M,), each atom has."""
    inside = atoms >= 0
    if people is not None:
        kept = one_each(atoms, people)
        return np.bincount(atoms[kept][inside[kept]], minlength=n)
    return np.bincount(atoms[inside], minlength=n)


def one_each(atoms: Ints, people: NDArray[np.uint64]) -> Ints:
    """Places of one row for every person in every atom."""
    order = np.lexsort((people, atoms))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(atoms[order]) != 0) | (people[order][1:] != people[order][:-1])
    return order[new]


def fewest_alike(atoms: Ints, n: int, people: NDArray[np.uint64], patterns: NDArray[np.uint64]) -> Ints:
    """(n,) how many people of each atom (M,) have its rarest row; 0 for an atom without rows."""
    inside = np.flatnonzero(atoms >= 0)
    pairs = scrambled(patterns[inside], atoms[inside].astype(np.uint64))
    _, first = np.unique(scrambled(pairs, people[inside]), return_index=True)
    _, one, counts = np.unique(pairs[first], return_index=True, return_counts=True)
    found = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(found, atoms[inside][first][one], counts)
    return np.where(found == np.iinfo(np.int64).max, 0, found)


def apart_by_copies(atoms: Ints, labels: Ints, contents: NDArray[np.uint64], least: int) -> Ints:
    """Labels (M,) that also tell apart rows whose copies are in other sets: sums over two sets that hold a
    copy of most rows each differ by the others alone. Contents with copies in the same proportion in every
    atom stay together, however many there are; so do a few, fewer than `least`, that no sums tell apart.
    Labels as they are where no content (M,) is there twice."""
    different, content = np.unique(contents, return_inverse=True)
    if len(different) == len(contents) or np.all(labels == OUTSIDE):
        return labels
    width = int(labels.max(initial=0)) + 2
    cell = (atoms + 1) * width + labels + 1  # 0 for rows in no set
    told = np.flatnonzero(cell)
    pairs = scrambled(contents[told], cell[told].astype(np.uint64))
    _, first, copies = np.unique(pairs, return_index=True, return_counts=True)
    order = np.argsort(content[told[first]], kind="stable")
    first, copies = told[first][order], copies[order]
    begins = np.flatnonzero(np.r_[True, np.diff(content[first]) != 0])
    shared = np.repeat(np.gcd.reduceat(copies, begins), np.diff(np.append(begins, len(first))))
    signature = np.zeros(len(different), np.uint64)
    with np.errstate(over="ignore"):
        np.add.at(signature, content[first], _in_cell(cell[first], copies // shared))
    of_row = signature[content]
    _, group, size = np.unique(signature[np.unique(content[told])], return_inverse=True, return_counts=True)
    few = np.zeros(len(different), bool)
    few[np.unique(content[told])] = size[group] < least
    if few.any() and not tells_few_apart(np.where(cell > 0, cell, -1), contents, least):
        of_row = np.where(few[content], _in_cell(cell, np.ones_like(cell)), of_row)
    inside = labels != OUTSIDE
    apart = np.full(len(labels), OUTSIDE, np.int64)
    own = scrambled(of_row[inside], labels[inside].astype(np.uint64))
    apart[inside] = np.unique(own, return_inverse=True)[1]
    return apart


def _in_cell(cell: Ints, copies: Ints) -> NDArray[np.uint64]:
    """64 bits for so many copies in a cell."""
    return scrambled(scrambled(cell.astype(np.uint64), np.uint64(0)), copies.astype(np.uint64))


def tells_few_apart(atoms: Ints, people: NDArray[np.uint64], least: int) -> bool:
    """Whether totals over atoms (M,) of what does not change from row to row of a person (M,), such as a
    birthday, combine to one over some people, but over fewer than so many: of those who came back all but
    one, the earlier rows less the later ones are that one's.

    Such totals give everybody the weight v'c, where v counts a person's rows by atom and c is the
    combination. One that leaves fewer than `least` people has weight 0 for every `least` people with parallel
    v, and for all that these span. Of what is left, parallel v are taken together again; where none are
    enough, as many of the largest as have room in one combination are taken to have weight 0.
    """
    inside = atoms >= 0
    persons, person = np.unique(people[inside], return_inverse=True)
    different, atom = np.unique(atoms[inside], return_inverse=True)
    n = max(len(different), 1)
    cells, rows = np.unique(person * n + atom, return_counts=True)
    if len(cells) == len(persons):  # nobody has rows in two atoms
        return False
    vectors = np.zeros((len(persons), n))
    vectors[cells // n, cells % n] = rows
    counts = np.ones(len(persons), np.int64)
    while True:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        first = np.argmax(np.abs(vectors) > _PARALLEL, axis=1)
        vectors *= np.sign(vectors[np.arange(len(vectors)), first])[:, None]
        _, one, same = np.unique(np.rint(vectors / _PARALLEL), axis=0, return_index=True, return_inverse=True)
        vectors, counts = vectors[one], np.bincount(same.ravel(), weights=counts).astype(np.int64)
        many = counts >= least
        if not many.any():
            break
        _, sizes, directions = np.linalg.svd(vectors[many], full_matrices=False)
        span = directions[sizes > _PARALLEL * sizes[0]]
        vectors = vectors - vectors @ span.T @ span
        left = np.linalg.norm(vectors, axis=1) > _PARALLEL
        vectors, counts = vectors[left], counts[left]
        if not left.any():
            return False
    room = int(np.linalg.matrix_rank(vectors, tol=_PARALLEL)) - 1
    return bool(counts.sum() - np.sort(counts)[::-1][:room].sum() < least)


# Parts of the people of a class whose values are compared.
_PARTS = 32
# Values from which on a column has many, among so many rows.
_FEW_VALUES, _LOOKED_AT = 10, 4_000
_NO_PEOPLE = (
    "its earlier runs used other columns, or none that tells people apart as this one does, so that nobody "
    "knows whether the people are the same; name the column of people (person) in every agreement from the "
    "first, agree on a private run, or, for a table of other people, give this site another folder (state in "
    "its site.toml)."
)

_OTHER_PEOPLE = (
    "most people of its table are new, and most of those that another study used are gone: either they have "
    "other labels now, and who compares the two sums would see who has come beside them, or they are other "
    "people; give people the labels that they had, or, for a table of other people, give this site another "
    "folder (state in its site.toml)."
)
_CHANGED = (
    "its column '{name}' was used in another study, and is not known to be for the same people what it was "
    "then: who compares the two sums would see what has changed; use the table as it was, or agree on a "
    "private run."
)


class Study(NamedTuple):
    """What one coding of the columns has told of every class."""

    needed: Ints  # (classes,) different rows, 0 where nothing was told
    digests: Mapping[str, NDArray[np.uint64]]  # (classes, parts) by column; what it was when told last
    known: Mapping[str, NDArray[np.bool_]]  # (classes,) whether that is known


class People(NamedTuple):
    """All people ever told of."""

    column: str  # which tells them apart
    hashes: NDArray[np.uint64]  # (P,)
    classes: Ints  # (P,)
    studies: Mapping[str, Study]  # by coding

    @classmethod
    def empty(cls, column: str) -> People:
        return cls(column, np.zeros(0, np.uint64), np.zeros(0, np.int64), {})

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        parts: dict[str, NDArray[np.generic]] = {"hashes": self.hashes, "classes": self.classes}
        for place, study in enumerate(self.studies.values()):
            parts[f"{place}.needed"] = study.needed
            for k, name in enumerate(study.digests):
                parts[f"{place}.{k}.digests"] = study.digests[name]
                parts[f"{place}.{k}.known"] = study.known[name]
        named = [self.column, [[coding, [*study.digests]] for coding, study in self.studies.items()]]
        parts["names"] = np.frombuffer(json.dumps(named).encode(), np.uint8)
        np.savez(file, **parts)  # type: ignore[arg-type]
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> People:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            column, named = json.loads(file["names"].tobytes())
            studies = {
                coding: Study(
                    file[f"{place}.needed"],
                    {name: file[f"{place}.{k}.digests"] for k, name in enumerate(columns)},
                    {name: file[f"{place}.{k}.known"] for k, name in enumerate(columns)},
                )
                for place, (coding, columns) in enumerate(named)
            }
            return cls(column, file["hashes"], file["classes"], studies)


def require_comparable(before: People | None, known: KnownRows, other_codings: bool) -> None:
    """Raise PolicyViolationError where the people of earlier runs cannot be told from those of the table:
    nothing was kept of them, they were named by another column, or by none."""
    if (other_codings and (before is None or known.named_people is None)) or (
        before is not None and before.column != str(known.schema.person)
    ):
        raise PolicyViolationError(_NO_PEOPLE)


def people_after(before: People, known: KnownRows, labels: Ints, needed: Ints, min_rows: int) -> People:
    """All people ever told of when sums over sets of rows are released: labels (N,) the set of each row of
    the table, or OUTSIDE, and the different rows (N,) that its set needs in this study. Raises
    PolicyViolationError where THE RULE would be broken, or a column that another study has used has
    changed."""
    inside = labels != OUTSIDE
    hashes, first, of_row = np.unique(known.people[inside], return_index=True, return_inverse=True)
    here, everybody, new = placed(before.hashes, hashes)
    if before.studies and known.coding not in before.studies:
        gone = ~np.isin(before.hashes, known.people)
        if 2 * len(new) > len(hashes) and 2 * gone.sum() > len(gone):
            raise PolicyViolationError(_OTHER_PEOPLE)
    sets = np.full(len(everybody), OUTSIDE, np.int64)
    sets[here] = labels[inside][first]
    now = refined(np.concatenate([before.classes, np.full(len(new), -1, np.int64)]), sets)
    n, present = len(now.before), now.label != OUTSIDE
    of_class = now.classes_of(here)[of_row]
    own = np.zeros(n, np.int64)
    np.maximum.at(own, of_class, needed[inside])
    digests = _digests(known, inside, of_class, n)
    # Columns of few values are alike for many people by chance.
    many = [name for name, values in known.by_column() if _many_values(values)]

    def inherited(values: NDArray[np.generic]) -> NDArray[np.generic]:
        found = np.zeros((n, *values.shape[1:]), values.dtype)
        some = now.before >= 0
        found[some] = values[now.before[some]]
        return found

    studies: dict[str, Study] = {}
    for coding, study in before.studies.items():
        earlier = inherited(study.needed).astype(np.int64)
        if coding == known.coding:
            own = np.maximum(own, earlier)
            continue
        kept_digests, kept_known = {}, {}
        for name, values in study.digests.items():
            was, was_known = inherited(values).astype(np.uint64), inherited(study.known[name]).astype(bool)
            whole = present & was_known & ~now.changed
            _require_not_renamed(name, was[whole], {other: digests[other][whole] for other in many})
            if name in digests:
                _require_unchanged(name, now.before, present, was, was_known, digests[name])
                kept_digests[name] = np.where(present[:, None], digests[name], was)
                # Of whom that study was told nothing, what it might be told is as it is now.
                kept_known[name] = was_known | ((now.before < 0) & present)
            else:
                kept_digests[name], kept_known[name] = was, was_known & ~now.changed
            # Of what is left behind nothing can be compared any more.
            kept_known[name] &= present | ~now.changed
        studies[coding] = Study(earlier, kept_digests, kept_known)
    studies[known.coding] = Study(own, digests, {name: present.copy() for name in digests})
    found = People(before.column, everybody, now.atoms, studies)
    # Of those who are left behind it is not known how many of their rows are different.
    sizes, alike = distinct_by_atom(now.atoms, n, None), np.zeros(n, np.int64)
    patterns = distinct_by_atom(of_class, n, known.patterns[inside])
    different = np.where(present, np.minimum(patterns, sizes), sizes)
    if len(studies) == 1:
        alike = fewest_alike(of_class, n, known.people[inside], known.patterns[inside])
    least = np.sum([study.needed for study in studies.values()], axis=0)
    few = (sizes < min_rows) | ((different < least) & (alike < min_rows))
    # What was told before is told: only what this release adds can be refused.
    if np.any(few & (now.changed | (present & (least > _least_before(before, now.before))))):
        earlier_runs = bool(np.any(now.before >= 0))
        raise PolicyViolationError(
            too_few("people", " of all its studies together", "min_rows", min_rows, earlier_runs)
        )
    return found


def _least_before(before: People, parents: Ints) -> Ints:
    """(classes,) what was needed of the class that each is part of."""
    found = np.zeros(len(parents), np.int64)
    if before.studies:
        total = np.sum([study.needed for study in before.studies.values()], axis=0)
        found[parents >= 0] = total[parents[parents >= 0]]
    return found


def _require_unchanged(
    name: str,
    parents: Ints,
    present: NDArray[np.bool_],
    was: NDArray[np.uint64],
    was_known: NDArray[np.bool_],
    digests: NDArray[np.uint64],
) -> None:
    """Raise PolicyViolationError where a column of a class that another study was told of is not what it was.
    Digests are sums over people, so that those of the parts of a class add up to its own."""
    for parent in np.unique(parents[(parents >= 0) & present]):
        parts = parents == parent
        with np.errstate(over="ignore"):
            same = np.array_equal(digests[parts].sum(axis=0, dtype=np.uint64), was[parts][0])
        if not (np.all(present[parts]) and was_known[parts][0] and same):
            raise PolicyViolationError(_CHANGED.format(name=name))


def _require_not_renamed(
    name: str, was: NDArray[np.uint64], digests: Mapping[str, NDArray[np.uint64]]
) -> None:
    """Raise PolicyViolationError where a column of another name is for most parts of the people of some
    classes what a column of another study was (classes, parts), and not for all of them."""
    for other, own in digests.items():
        same, held = own == was, own != 0  # a part without people says nothing
        if other != name and 2 * np.sum(same & held) > np.sum(held) and not np.all(same):
            raise PolicyViolationError(_CHANGED.format(name=other))


def _many_values(values: Floats) -> bool:
    """Whether a column (N, numbers) is one number with many values."""
    return values.shape[1] == 1 and len(np.unique(values[:_LOOKED_AT])) >= _FEW_VALUES


def _digests(
    known: KnownRows, inside: NDArray[np.bool_], of_class: Ints, n: int
) -> dict[str, NDArray[np.uint64]]:
    """(n, parts) by column, the sums of keyed hashes of (person, value) over the rows of each class and part
    of its people."""
    people = known.people[inside]
    cell = of_class * _PARTS + (people % np.uint64(_PARTS)).astype(np.int64)
    order = np.argsort(cell, kind="stable")
    cells, first = np.unique(cell[order], return_index=True)
    people = people[order]
    found = {}
    for name, values in known.by_column():
        digest = np.zeros(n * _PARTS, np.uint64)
        if len(people):
            mixed = people  # a secret of the site's, so that a plain mix of bits tells nobody anything
            for part in np.ascontiguousarray(values[inside][order].T + 0.0):
                mixed = scrambled(mixed, part.view(np.uint64))
            with np.errstate(over="ignore"):
                digest[cells] = np.add.reduceat(mixed, first)
        found[name] = digest.reshape(n, _PARTS)
    return found


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


class Told(NamedTuple):
    """What of a table was told before, row by row (N,)."""

    before: NDArray[np.bool_]  # it was in a sum
    known: NDArray[np.bool_]  # another row of its person was
    changed: NDArray[np.bool_]  # of its person a row was in a sum that is gone
    beside: NDArray[np.bool_]  # it was in all the same sums as a row that is gone
    gone: int  # rows that were in a sum, and are not in the table


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
    if known.named_people is None:
        # Copies have the same levels: one of each is enough.
        if known.counted is not None:
            some = one_each(of_table, known.people)
            has, of_table = has[some], of_table[some]
        by_people = cell_counts(has, of_table, n, None)
    else:
        by_people = cell_counts(has, of_table, n, known.named_people)
    return Partition(now.atoms, needed, rows, counted(before.people_levels, by_people))


@dataclass(frozen=True)
class RowMemory:
    """What a site remembers of its rows, and the rule."""

    state: SiteState
    demanded: Demanded

    def known(self, schema: Schema, features: Floats, target: Floats, named_people: Ids) -> KnownRows:
        """The rows of a table as this memory knows them."""
        return KnownRows(schema, features, target, named_people, self.state.derived("rows"))

    def check(self, known: KnownRows, sets: Mapping[str, Ints], curved: Curved | None = None) -> int:
        """What `release` would say, without releasing anything."""
        with self.state.reading() as connection:
            return self._after(connection, known, sets, curved)[2]

    def release(self, known: KnownRows, sets: Mapping[str, Ints], curved: Curved | None = None) -> int:
        """Remember, before a reply leaves, that sums over sets of rows do: by family, the set (N,) that each
        row of the table is in, from 0, or OUTSIDE, and the curves that they are about, if any. What was
        released before changes nothing.

        Returns the fewest people that something rests on that can be worked out from all that was
        released: the smallest atom, or in it the rarest cell of two levels. Raises PolicyViolationError
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

    def told(self, known: KnownRows) -> Told:
        """What was told of the table's rows; of those of a study of other columns by whose they are."""
        with self.state.reading() as connection:
            memory, everybody = _read(connection, known.coding), _read_people(connection)
        none = np.zeros(len(known.target), bool)
        if not len(memory.hashes):
            if everybody is None or known.named_people is None or everybody.column != known.schema.person:
                return Told(none, none, none, none, 0)
            here, _, new = placed(everybody.hashes, known.people)
            before = np.isin(known.people, everybody.hashes)
            # Who is gone, or was left behind by another study, where nothing of them can be compared.
            gone, beside, classes = ~np.isin(everybody.hashes, known.people), none.copy(), everybody.classes
            for study in everybody.studies.values():
                for comparable in study.known.values():
                    gone |= ~comparable[classes]
            beside[before] = np.isin(classes[here[before]], np.unique(classes[gone]))
            return Told(before, before, none, beside, int(gone.sum()))
        here, _, new = placed(memory.hashes, known.hashes)
        before = ~none
        before[new] = False
        gone = ~np.isin(memory.hashes, known.hashes)
        named = known.named_people is not None
        changed = np.isin(known.people, memory.people[gone]) if named else none
        changed = changed | np.isin(known.people, known.people[renamed(memory, known)])
        atoms, beside = memory.partitions["rows"].atoms, none.copy()
        beside[before] = np.isin(atoms[here[before]], np.unique(atoms[gone]))
        told = memory.people if everybody is None else everybody.hashes
        return Told(before, np.isin(known.people, told), changed, beside, int(gone.sum()))

    def _after(
        self,
        connection: sqlite3.Connection,
        known: KnownRows,
        sets: Mapping[str, Ints],
        curved: Curved | None,
    ) -> tuple[Memory | None, People | None, int]:
        """(the memory after a release, that of people, both None where they are as before, the fewest people
        that something rests on)."""
        memory = _read(connection, known.coding)
        here, hashes, new = placed(memory.hashes, known.hashes)
        everybody = _read_people(connection)
        others = "SELECT COUNT(*) FROM memory WHERE coding != ?"
        other_codings = connection.execute(others, (known.coding,)).fetchone()[0] > 0
        require_comparable(everybody, known, other_codings)
        gone = ~np.isin(memory.hashes, known.hashes)
        if len(new) and gone.any():
            _require_others(known, new, memory.people[gone])
        if renamed(memory, known)[new].any():
            raise PolicyViolationError(_RENAMED)
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
        if known.named_people is None or "rows" not in sets:
            return found, None, least
        needed = np.zeros(len(here), np.int64)
        for kind in sets:
            inside = sets[kind] != OUTSIDE
            own = partitions[kind]
            needed[inside] = np.maximum(needed[inside], own.needed[own.atoms[here[inside]]])
        if everybody is None:
            everybody = _people_of(memory, known)
        return found, people_after(everybody, known, sets["rows"], needed, self.demanded.min_rows), least

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
        """The partition with what its atoms need. Raises PolicyViolationError where an atom that was none
        before breaks the rule of its family; names (c,) are those of levels, and counts are how many people
        and how many different rows each atom has (atoms,), and in which the table's rows (N,) are."""
        sizes, different, of_table = counts_of
        changed, demanded, named = now.changed, self.demanded, words(known.named_people)
        earlier = bool(np.any(now.before >= 0))
        if np.any(sizes[changed] < demanded.min_rows):
            raise PolicyViolationError(too_few(named, "", "min_rows", demanded.min_rows, earlier))
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
                raise PolicyViolationError(MANY)
        after = after._replace(needed=needed)
        if kind == "held_out":
            return after
        # Counts of people are lower bounds: what some row has is not nothing.
        some, counts = after.levels[changed] > 0, after.people_levels[changed]
        curves = any(stretch_of(name) is not None for name in names)
        level = one_level(names)
        if np.any(some & level & (counts < demanded.min_rows)):
            what = " with a level or class" + (", or in a segment of a curve" if curves else "")
            raise PolicyViolationError(too_few(named, what, "min_rows", demanded.min_rows, earlier))
        if np.any(some & ~level & (counts < demanded.min_cell)):
            what = " with two levels or classes at once" + (", or in parts of two curves" if curves else "")
            raise PolicyViolationError(too_few(named, what, "min_cell", demanded.min_cell, earlier))
        # A number that has two values among these rows alone is a level there.
        for own in (places[atom] for atom in np.flatnonzero(changed & (now.label != OUTSIDE)).tolist()):
            counted = None if known.counted is None else known.counted[own]
            if rarest_value(known.two_valued(own, levels=False), False, counted) < demanded.min_rows:
                what = " with one of a column's two values"
                raise PolicyViolationError(too_few(named, what, "min_rows", demanded.min_rows, earlier))
            require_none_outweighs(_some_rows(known, own, knots), known.people[own])
        return after

    def _require_many_apart(self, after: Partition, whom: NDArray[np.uint64]) -> None:
        """Raise PolicyViolationError where what does not change from row to row of a person (M,) would be
        told of few people, because all others have rows in several atoms."""
        # What an atom of an earlier version needs is not known.
        needed = after.needed[after.needed < NEVER].max(initial=self.demanded.min_rows)
        if tells_few_apart(after.atoms, whom, int(needed)):
            raise PolicyViolationError(FEW_WITHOUT_NEW_ROWS)

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


_RENAMED = (
    "people that earlier runs used are in its table under other labels, by rows that nobody else has had: "
    "who compares the two sums would see who has come beside them; give people the labels that they had."
)


def renamed(memory: Memory, known: KnownRows) -> NDArray[np.bool_]:
    """(N,) which rows of the table one other person alone has had in sums: that of a label that is new is
    the same person's under another one, or a copy of it. Where few people share what they have, as of answers
    of 0 and 1, it may be somebody else, and nobody can tell."""
    none = np.zeros(len(known.target), bool)
    if known.named_people is None or not len(memory.patterns):
        return none
    _, first = np.unique(scrambled(memory.patterns, memory.people), return_index=True)
    patterns, at, people = np.unique(memory.patterns[first], return_index=True, return_counts=True)
    owner = memory.people[first][at]
    place = np.minimum(np.searchsorted(patterns, known.patterns), len(patterns) - 1)
    same = (patterns[place] == known.patterns) & (people[place] == 1)
    return np.asarray(same & (owner[place] != known.people))


def _require_others(known: KnownRows, new: NDArray[np.intp], gone: NDArray[np.uint64]) -> None:
    """Raise PolicyViolationError where new rows, by their places in the table, may be those of people whose
    rows (gone,) were told of once and are not in the table: sums over both differ by what has changed, which
    may be one cell, also where all rows were written anew, or everybody is a year older."""
    if known.named_people is None:
        raise PolicyViolationError(
            "rows that earlier runs used are gone from its table and others are new, and no column tells "
            "whether these are the same people; name the column of people (person) in the agreement from "
            "the first, only add rows, or, for a table of other people, give this site another folder "
            "(state in its site.toml)."
        )
    if np.any(np.isin(known.people[new], gone)):
        raise PolicyViolationError(
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


def _people_of(memory: Memory, known: KnownRows) -> People:
    """The people of rows that were used before people were kept."""
    if not len(memory.people):
        return People.empty(str(known.schema.person))
    hashes, first = np.unique(memory.people, return_index=True)
    own = memory.partitions["rows"]
    studies = {known.coding: Study(own.needed, {}, {})}
    return People(str(known.schema.person), hashes, own.atoms[first], studies)


def _read_people(connection: sqlite3.Connection) -> People | None:
    found = connection.execute("SELECT content FROM people").fetchone()
    return None if found is None else People.from_bytes(found[0])


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


@dataclass(frozen=True, eq=False)
class Releases:
    memory: RowMemory
    known: KnownRows
    holdout: NDArray[np.bool_]  # (N,) which rows are held out

    def training(self) -> int:
        """A run begins: there will be sums over the training rows and over those held out. Returns the fewest
        rows that something rests on. Raises PolicyViolationError where the memory's rule would be broken."""
        return self.memory.release(self.known, self._sets(None))

    def check(self) -> int:
        """What `training` would say, without releasing anything."""
        return self.memory.check(self.known, self._sets(None))

    def folds(self, fold_ids: NDArray[np.int64] | None, curved: Curved | None = None) -> int:
        """Before a reply over folds, marks (training rows,) from 0, or over all training rows where these
        are None; `curved` where it is about curves. As `training`."""
        self._require_kept_out(curved)
        return self.memory.release(self.known, self._sets(fold_ids), curved)

    def require_borne(self) -> None:
        """Raise PolicyViolationError where a segment that was told of before would hold too few of the rows
        that are held out."""
        self._require_kept_out(Curved({}, 0))

    def bears(self, fold_ids: NDArray[np.int64], curved: Curved) -> bool:
        """Whether `folds` would not refuse."""
        try:
            self._require_kept_out(curved)
            self.memory.check(self.known, self._sets(fold_ids), curved)
        except PolicyViolationError:
            return False
        return True

    def _require_kept_out(self, curved: Curved | None) -> None:
        """Of held-out rows mean losses are told, at models of which one segment may be all."""
        if curved is None:
            return
        named = words(self.known.named_people)
        knots = joined(self.memory.knots(self.known), curved.knots)
        for column, own in knots.items():
            inside = rows_inside(self._of(column, self.holdout), own, self._people(self.holdout))
            if any(0 < rows < self.memory.demanded.min_rows for rows in inside):
                raise PolicyViolationError(
                    f"a segment of a curve would hold fewer of the {named} that it holds out than its "
                    f"min_rows = {self.memory.demanded.min_rows}; use fewer segments."
                )

    def _of(self, column: str, some: NDArray[np.bool_]) -> NDArray[np.float64]:
        return self.known.column(column)[some]

    def _people(self, some: NDArray[np.bool_]) -> NDArray[np.uint64]:
        return np.asarray(self.known.people[some])

    def answerable(self, fold_ids: Mapping[int, NDArray[np.int64]]) -> tuple[int, ...]:
        """How many folds may be asked for, in rising order: what `folds` would not refuse, of the folds
        (training rows,) by their number; 1 stands for all training rows, without folds. One number may be
        answered where a smaller one is not: other folds than those of earlier runs cut these."""
        if fold_ids:
            # What may be told of parts may be told of what they make up: of large tables one look is enough.
            together = np.zeros(int(np.sum(~self.holdout)), np.int64)
            for count, own in fold_ids.items():
                together = together * count + own
            if self._may(self._sets(np.unique(together, return_inverse=True)[1])):
                return (1, *sorted(fold_ids))
        return tuple(k for k, own in sorted({1: None, **fold_ids}.items()) if self._may(self._sets(own)))

    def _may(self, sets: Mapping[str, NDArray[np.int64]]) -> bool:
        try:
            self.memory.check(self.known, sets)
        except PolicyViolationError:
            return False
        return True

    def _sets(self, fold_ids: NDArray[np.int64] | None) -> dict[str, NDArray[np.int64]]:
        training = np.full(len(self.holdout), OUTSIDE, np.int64)
        training[~self.holdout] = 0 if fold_ids is None else fold_ids
        every = np.where(self.holdout, training.max(initial=0) + 1, training)
        return {"rows": every, "sums": training, "held_out": np.where(self.holdout, 0, OUTSIDE)}
