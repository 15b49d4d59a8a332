"""Which rows of a client are kept out of training, and what folds are dealt by: the seed, the client's name
and what is in its rows, never the order of a table.

In a sorted table a row's place says what is in it, so that rows chosen by place are no random sample. Here
rows are put in an order that looks random, by a hash of their numbers; places in that order are chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bidro.errors import BidroError

# Rows are kept out by other random numbers than those that deal folds with the same seed.
_OF_HOLDOUT_ROWS = 1 << 62
# Rows that are hashed together, so that no copy of all of them is made.
_TOGETHER = 65_536


def content_order(
    codes: NDArray[np.int64], features: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.int64]:
    """(N,) the rows client after client (by codes, from 0), each client's in an order that depends on what is
    in them alone: features (N, k) and target (N,) as they are in the table, before any standardising.

    Equal rows stand beside each other; which of them is first makes no difference.
    """
    return np.lexsort((_content_bits(features, target), codes))


def choose_holdout(
    clients: NDArray[np.str_],
    features: NDArray[np.float64],
    target: NDArray[np.float64],
    share: float,
    seed: int,
) -> NDArray[np.bool_]:
    """(N,) whether a row is kept out of training: the same share of every client, at least one row.

    It depends on the seed, a client's name and the set of its rows, neither on their order nor on the other
    clients. Of equal rows the first ones of the table are kept out.
    """
    _check_share(share)
    if share == 0:
        return np.zeros(len(clients), bool)
    names, codes = np.unique(clients, return_inverse=True)
    return holdout_of(names, codes, content_order(codes, features, target), share, seed)


def holdout_of(
    names: NDArray[np.str_], codes: NDArray[np.int64], order: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.bool_]:
    """`choose_holdout` where the rows' clients (codes, into the sorted names) and their `content_order` are
    known."""
    _check_share(share)
    kept = np.zeros(len(codes), bool)
    if share == 0:
        return kept
    sizes = np.bincount(codes, minlength=len(names))
    counts = np.maximum(1, np.round(share * sizes).astype(int))
    if np.any(sizes - counts < 2):
        small = int(np.argmax(sizes - counts < 2))
        raise BidroError(
            f"Client '{names[small]}' has {sizes[small]} row(s), too few to keep some out and train on the "
            "rest; leave it out, give it more rows, or use --hold-out 0."
        )
    owner = np.repeat(np.arange(len(names)), sizes)
    place = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    drawn = random_bits([str(name) for name in names], owner, place, seed + _OF_HOLDOUT_ROWS)
    kept[order[np.lexsort((drawn, owner))]] = place < np.repeat(counts, sizes)
    return kept


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise BidroError(f"--hold-out must be a share from 0 to below 1; got {share}.")


def client_id(name: str) -> NDArray[np.uint32]:
    """64 bits from a client's name, as two numbers: the same on every machine and in every order."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype=">u4").astype(np.uint32)


def random_bits(
    names: Sequence[str], owner: NDArray[np.int64], place: NDArray[np.int64], seed: int
) -> NDArray[np.uint64]:
    """64 bits a row from the seed, its client's name (names[owner]) and its place among that client's rows:
    the same where the client is alone as where all are together."""
    ids = np.stack([client_id(name) for name in names]).astype(np.uint64)
    of_client = scrambled(ids[:, 0] << np.uint64(32) | ids[:, 1], np.uint64(seed))
    return scrambled(of_client[owner], place.astype(np.uint64))


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
