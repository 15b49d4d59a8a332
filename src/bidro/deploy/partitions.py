"""Partitions of what a site has ever told of: the classes of rows, or of people, that no sum tells apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.splits import scrambled

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
