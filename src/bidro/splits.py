"""Which rows of a client are kept out of training, and what folds are dealt by: the seed, the client's name
and what is in its rows, never the order of a table.

In a sorted table a row's place says what is in it, so that rows chosen by place are no random sample. Here
rows are put in an order that looks random, by a hash of their numbers; places in that order are chosen.

Where several rows are of one person or thing, a unit, units are chosen and dealt whole, by a hash of their
labels. A unit is of one client: the same label at two clients is two units.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.errors import BidroError

# Rows are kept out by other random numbers than those that deal folds with the same seed.
_OF_HOLDOUT_ROWS = 1 << 62
# Rows that are hashed together, so that no copy of all of them is made.
_TOGETHER = 65_536


def content_order(
    codes: NDArray[np.int64],
    features: NDArray[np.float64],
    target: NDArray[np.float64],
    units: NDArray[np.uint64] | None = None,
) -> NDArray[np.int64]:
    """(N,) the rows client after client (by codes, from 0), each client's in an order that depends on what is
    in them alone: features (N, k) and target (N,) as they are in the table, before any standardising.

    Equal rows stand beside each other, by their units (N,) where these are named; which of those that are
    left is first makes no difference.
    """
    content = _content_bits(features, target)
    return np.lexsort((content, codes) if units is None else (units, content, codes))


def choose_holdout(
    clients: NDArray[np.str_],
    features: NDArray[np.float64],
    target: NDArray[np.float64],
    share: float,
    seed: int,
    units: NDArray[np.uint64] | None = None,
) -> NDArray[np.bool_]:
    """(N,) whether a row is kept out of training: the same share of every client, at least one row.

    It depends on the seed, a client's name and the set of its rows, neither on their order nor on the other
    clients. Of equal rows the first ones of the table are kept out. With `units` (N,), from `unit_ids`, it is
    the same share of every client's units, at least one, each with all its rows: how many does not depend on
    how large they are, so that what is kept out is a random sample of units.
    """
    names, codes = np.unique(clients, return_inverse=True)
    return holdout_of(names, codes, content_order(codes, features, target, units), share, seed, units)


def holdout_of(
    names: NDArray[np.str_],
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    share: float,
    seed: int,
    units: NDArray[np.uint64] | None = None,
) -> NDArray[np.bool_]:
    """`choose_holdout` where the rows' clients (codes, into the sorted names) and their `content_order` are
    known."""
    if not 0 <= share < 1:
        raise BidroError(f"--hold-out must be a share from 0 to below 1; got {share}.")
    kept = np.zeros(len(codes), bool)
    if share == 0:
        return kept
    what, distinct, sizes = "row", None, np.bincount(codes, minlength=len(names))
    if units is not None:
        what, distinct = "unit", Units.of(codes, units)
        sizes = distinct.counts(len(names))
    counts = kept_out_of(sizes, share)
    if np.any(sizes - counts < 2):
        small = int(np.argmax(sizes - counts < 2))
        raise BidroError(
            f"Client '{names[small]}' has {sizes[small]} {what}(s), too few to keep some out and train on "
            f"the rest; leave it out, give it more {what}s, or use --hold-out 0."
        )
    owner, place = np.repeat(np.arange(len(names)), sizes), places(sizes)
    bits = place.astype(np.uint64) if distinct is None else distinct.ids
    drawn = random_bits([str(name) for name in names], owner, bits, seed + _OF_HOLDOUT_ROWS)
    chosen = np.empty(len(owner), bool)
    chosen[np.lexsort((drawn, owner))] = place < np.repeat(counts, sizes)
    if distinct is not None:
        return np.asarray(chosen[distinct.of_row])
    kept[order] = chosen
    return kept


def kept_out_of(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many of so many rows, or units, are kept out of training: at least one; 0 for a share of 0."""
    return np.maximum(1, np.round(share * sizes).astype(int)) if share > 0 else np.zeros_like(sizes)


def places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... for each of the parts that stand one after the other, of these sizes."""
    return np.asarray(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))


class Units(NamedTuple):
    """The different units, client after client."""

    owner: NDArray[np.int64]  # (units,) whose each is
    ids: NDArray[np.uint64]  # (units,) of each, different inside a client
    of_row: NDArray[np.int64]  # (N,) which unit a row is of, as a place in these
    sizes: NDArray[np.int64]  # (units,) rows of each

    @classmethod
    def of(cls, codes: NDArray[np.int64], ids: NDArray[np.uint64]) -> Units:
        """From the client (N,), as a number from 0, and the unit (N,) of every row."""
        order = np.lexsort((ids, codes))
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(codes[order]) != 0) | (ids[order][1:] != ids[order][:-1])
        of_row = np.empty(len(order), np.int64)
        of_row[order] = np.cumsum(new) - 1
        first = order[new]
        return cls(codes[first], ids[first], of_row, np.bincount(of_row, minlength=len(first)))

    @classmethod
    def single_rows(cls, sizes: Sequence[int]) -> Units:
        """Every row is a unit by itself, known by its place among its client's."""
        owner, place = np.repeat(np.arange(len(sizes)), sizes), places(np.asarray(sizes))
        return cls(owner, place.astype(np.uint64), np.arange(len(owner)), np.ones(len(owner), np.int64))

    def counts(self, n: int) -> NDArray[np.int64]:
        """(n,) how many units each client has."""
        return np.bincount(self.owner, minlength=n)


def dealt(names: Sequence[str], units: Units, what: str, folds: int, seed: int) -> NDArray[np.int64]:
    """(N,) the fold of every row, from 0: each client's units go round, the largest first and those of one
    size in random order, so that two folds of a client differ by no more rows than its largest unit has.

    Raises BidroError for a client with fewer units than folds; `what` these are, "row" or "unit".
    """
    sizes = units.counts(len(names))
    if folds < 2:
        raise BidroError(f"Cross-validation needs at least 2 folds; got {folds}.")
    if sizes.min() < folds:
        raise BidroError(
            f"Client '{names[int(sizes.argmin())]}' has {sizes.min()} {what}(s), fewer than the {folds} "
            f"folds of cross-validation; leave it out, give it more {what}s, or do without: name the "
            "weights, and no own corrections."
        )
    drawn = random_bits(names, units.owner, units.ids, seed)
    found = np.empty(len(drawn), np.int64)
    order = np.lexsort((drawn, -units.sizes, units.owner))
    found[order] = places(sizes) % folds
    return found[units.of_row]


def unit_ids(labels: NDArray[np.str_]) -> NDArray[np.uint64]:
    """(N,) 64 bits from the label of every row's unit: the same on every machine. That two labels of a
    million have the same bits happens once in forty million times."""
    words, which = np.unique(labels, return_inverse=True)
    digests = b"".join(hashlib.blake2b(str(word).encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)[which]


def client_id(name: str) -> NDArray[np.uint32]:
    """64 bits from a client's name, as two numbers: the same on every machine and in every order."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype=">u4").astype(np.uint32)


def random_bits(
    names: Sequence[str], owner: NDArray[np.int64], key: NDArray[np.uint64], seed: int
) -> NDArray[np.uint64]:
    """64 bits a row, or unit, from the seed, its client's name (names[owner]) and its key, the place among
    that client's rows or what `unit_ids` says: the same where the client is alone as where all are together.
    Those of two keys of a client differ."""
    ids = np.stack([client_id(name) for name in names]).astype(np.uint64)
    of_client = scrambled(ids[:, 0] << np.uint64(32) | ids[:, 1], np.uint64(seed))
    return scrambled(of_client[owner], key)


def scrambled(key: NDArray[np.uint64], counter: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """64 bits that look random, from a key and a counter (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = key + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _content_bits(features: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.uint64]:
    """64 bits a row from its numbers; those of 0.0 and -0.0 are the same."""
    bits = np.zeros(len(target), np.uint64)
    for begin in range(0, len(target), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        numbers = np.column_stack([features[part], target[part]]).T + 0.0
        for column in np.ascontiguousarray(numbers).view(np.uint64):
            bits[part] = scrambled(bits[part], column)
    return bits
