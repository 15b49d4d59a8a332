"""Whom a site has ever told of, in whatever study: one partition of people for all agreements.

Two studies of the same people under other columns are two memories of rows (`row_memory`), between which no
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
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.known_rows import KnownRows, rounded
from bidro.deploy.partitions import OUTSIDE, Ints, distinct_by_atom, fewest_alike, placed, refined
from bidro.deploy.rules import RefusedError, too_few
from bidro.splits import scrambled

# Parts of the people of a class whose values are compared.
_PARTS = 32
# Values from which on a column has many, among so many rows.
_FEW_VALUES, _LOOKED_AT = 10, 4_000
_NO_PEOPLE = (
    "its earlier runs used other columns, or none that tells people apart as this one does, so that nobody "
    "knows whether the people are the same; name the column of persons (unit) in every agreement from the "
    "first, agree on a private run, or, for a table of other people, give this site another folder (state in "
    "its site.toml)."
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
    """Raise RefusedError where the people of earlier runs cannot be told from those of the table: nothing
    was kept of them, they were named by another column, or by none."""
    if (other_codings and (before is None or known.units is None)) or (
        before is not None and before.column != str(known.schema.unit)
    ):
        raise RefusedError(_NO_PEOPLE)


def after(before: People, known: KnownRows, labels: Ints, needed: Ints, min_rows: int) -> People:
    """All people ever told of when sums over sets of rows are released: labels (N,) the set of each row of
    the table, or OUTSIDE, and the different rows (N,) that its set needs in this study. Raises RefusedError
    where THE RULE would be broken, or a column that another study has used has changed."""
    inside = labels != OUTSIDE
    hashes, first, of_row = np.unique(known.people[inside], return_index=True, return_inverse=True)
    here, everybody, new = placed(before.hashes, hashes)
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
                kept_known[name] = was_known
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
        raise RefusedError(
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
    """Raise RefusedError where a column of a class that another study was told of is not what it was. Digests
    are sums over people, so that those of the parts of a class add up to its own."""
    for parent in np.unique(parents[(parents >= 0) & present]):
        parts = parents == parent
        with np.errstate(over="ignore"):
            same = np.array_equal(digests[parts].sum(axis=0, dtype=np.uint64), was[parts][0])
        if not (np.all(present[parts]) and was_known[parts][0] and same):
            raise RefusedError(_CHANGED.format(name=name))


def _require_not_renamed(
    name: str, was: NDArray[np.uint64], digests: Mapping[str, NDArray[np.uint64]]
) -> None:
    """Raise RefusedError where a column of another name is for most parts of the people of some classes what
    a column of another study was (classes, parts), and not for all of them."""
    for other, own in digests.items():
        same, held = own == was, own != 0  # a part without people says nothing
        if other != name and 2 * np.sum(same & held) > np.sum(held) and not np.all(same):
            raise RefusedError(_CHANGED.format(name=other))


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
            for part in np.ascontiguousarray(rounded(values[inside][order]).T):
                mixed = scrambled(mixed, part.view(np.uint64))
            with np.errstate(over="ignore"):
                digest[cells] = np.add.reduceat(mixed, first)
        found[name] = digest.reshape(n, _PARTS)
    return found
