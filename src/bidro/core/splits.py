"""Which rows of a client are held out of training, and how folds are dealt: by a key, the client's name and
what is in its rows, never the order of a table.

In a sorted table a row's place says what is in it, so that rows chosen by place are no random sample. Here
every row has random bits of its own: a keyed hash of the client's name, the row's numbers and which copy of
these it is (0, 1, ...), which nobody can guess without the key. In one process the key follows from
the seed; a site has one of its own.

Of every client the rows with the smallest bits are held out, as many as make the wanted share of its rows: a
simple random sample of exactly that size. The bits of the last of them are its *cut*. Where a table grows,
its cut moves, and with one row more at most one other row changes sides. Where that must not be, because sums
over the sides of an earlier table have left, the earlier cut is kept (`cut_of`): then adding rows moves no
other, and of what is added each row is held out by itself, with about the wanted share. Folds are drawn by
each row alone.

Where several rows are of one person (or thing), people are chosen and dealt whole, by a hash of their
labels. A person is of one client: the same label at two clients is two people.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError

# What splits are drawn by: a seed, or a site's own key of 32 bytes.
Key = int | bytes
KEY_BYTES = 32

# Rows are held out by other random bits than those that deal folds with the same key.
_OF_HOLDOUT, _OF_FOLDS, _OF_LABELS, _OF_SAMPLES = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
_OF_CLIENTS = np.uint64(4)
# Rows that are hashed together, so that no copy of all of them is made.
_TOGETHER = 65_536
# And so few that what is computed of them stays in the processor's cache.
_HASHED = 8_192


class Words(NamedTuple):
    """A word for every row, as the different ones in alphabetical order and which of them each row has: for
    a million rows the words themselves would take more memory, and longer to sort."""

    values: NDArray[np.str_]
    codes: NDArray[np.intp]  # (N,)

    @classmethod
    def of(cls, words: NDArray[np.str_]) -> Words:
        return cls(*np.unique(words, return_inverse=True))

    @property
    def each(self) -> NDArray[np.str_]:
        """(N,)"""
        return self.values[self.codes]

    @property
    def empty(self) -> NDArray[np.bool_]:
        """(N,) which are "", as of empty cells."""
        return np.asarray((self.values == "")[self.codes])


class Arranged(NamedTuple):
    order: NDArray[np.int64]  # (N,) the rows client after client, each client's by what is in them alone
    ids: NDArray[np.uint64]  # (N,) what a row is dealt by: its content and copy number, or its person


def arranged(
    codes: NDArray[np.int64],
    features: NDArray[np.float64] | Iterable[NDArray[np.float64]],
    target: NDArray[np.float64],
    people: NDArray[np.uint64] | None = None,
) -> Arranged:
    """Rows of clients (N,), by codes from 0, with features, a matrix (N, k) or its columns, and target (N,).

    Equal rows of a client are neighbours, by whose they are, `people` (N,), where these are named;
    which of those that are left is first makes no difference. Without people equal rows are distinguished by
    counting them.
    """
    content = _content_bits(features, target)
    if people is not None:
        return Arranged(np.lexsort((people, content, codes)), people)
    order = np.lexsort((content, codes))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(codes[order]) != 0
    in_order = content[order]
    first[1:] |= in_order[1:] != in_order[:-1]
    del in_order
    copies = np.zeros(len(order), np.uint64)
    if not first.all():
        runs = np.append(np.flatnonzero(first), len(order))
        copies[order] = places(np.diff(runs)).astype(np.uint64)
    return Arranged(order, scrambled(content, copies))


def choose_holdout(
    clients: NDArray[np.str_],
    features: NDArray[np.float64],
    target: NDArray[np.float64],
    share: float,
    key: Key,
    people: NDArray[np.uint64] | None = None,
) -> NDArray[np.bool_]:
    """(N,) whether a row is held out of training: of n rows of a client round(share n), a half up, but at
    least one, and at least two are trained on. With `people` (N,), from `label_ids`, so many of its people,
    each with all its rows: what is held out is a random sample of people, however large they are. Of equal
    rows either may be.
    """
    names, codes = np.unique(clients, return_inverse=True)
    return holdout_of(names, codes, arranged(codes, features, target, people).ids, share, key, people is None)


def holdout_of(
    names: NDArray[np.str_],
    codes: NDArray[np.int64],
    ids: NDArray[np.uint64],
    share: float,
    key: Key,
    rows: bool = True,
    alone: bool = False,
    cut: int | None = None,
    least: int = 0,
) -> NDArray[np.bool_]:
    """`choose_holdout` where the rows' clients (codes, into the sorted names) are known, and what each is
    dealt by: `rows`, or else people. With `alone` every row or person is dealt by itself, with probability
    `share`, however few there are: then on which side it is says nothing of the others. With a `cut`, from
    `cut_of`, that one is kept to. Without either at least `least` of a client are held out, where that is no
    more than half of them, and else that half."""
    if not 0 <= share < 1:
        raise BidroError(f"--hold-out must be a share from 0 to below 1; got {share}.")
    if share == 0:
        return np.zeros(len(codes), bool)
    dealt_out = Draws.single_rows(codes, ids) if rows else Draws.of(codes, ids)
    drawn = random_bits([str(name) for name in names], dealt_out.owner, dealt_out.ids, key, _OF_HOLDOUT)
    cut = cut_alone(share) if alone else cut
    if cut is not None:
        return np.asarray((drawn <= np.uint64(cut))[dealt_out.of_row])
    sizes, what = dealt_out.counts(len(names)), "row" if rows else "person"
    if sizes.min() < 3:
        small = int(sizes.argmin())
        raise BidroError(
            f"Client '{names[small]}' has {counted(sizes[small], what)}, too few to keep some out and train "
            f"on the rest; leave it out, give it more {_PLURALS[what]}, or use --hold-out 0."
        )
    wanted = np.clip(np.floor(share * sizes + 0.5).astype(np.int64), 1, sizes - 2)
    wanted = np.maximum(wanted, np.minimum(least, sizes // 2))
    # Two with the same bits, once in a million times of a million rows, are distinguished by what they are.
    order = np.lexsort((dealt_out.ids, drawn, dealt_out.owner))
    rank = np.empty(len(order), np.int64)
    rank[order] = places(sizes)
    return np.asarray((rank < wanted[dealt_out.owner])[dealt_out.of_row])


def left_out_clients(names: Sequence[str], share: float, key: Key) -> tuple[str, ...]:
    """Clients that training is to do without: round(share n) of n, a half up, by their names alone. Raises
    BidroError where fewer than two are left."""
    count = math.floor(share * len(names) + 0.5)
    if count and len(names) - count < 2:
        raise BidroError(
            f"Of {len(names)} clients {count} would be left out of training, and fewer than 2 stay; leave "
            "fewer out with --new-clients."
        )
    ids = np.array([0] * len(names), np.uint64)
    bits = random_bits(names, np.arange(len(names)), ids, key, _OF_CLIENTS)
    return tuple(sorted(names[i] for i in np.argsort(bits, kind="stable")[:count]))


def cut_of(name: str, ids: NDArray[np.uint64], kept: NDArray[np.bool_], key: Key) -> int:
    """The largest random bits of what a client holds out, from what its rows are dealt by (N,) and whether
    each is held out (N,), of which at least one is."""
    bits = random_bits([name], np.zeros(int(kept.sum()), np.int64), ids[kept], key, _OF_HOLDOUT)
    return int(bits.max())


def cut_alone(share: float) -> int:
    """The cut by which every row, or person, is held out by itself with probability `share`."""
    return (math.ceil(share * 2**53) << 11) - 1


def places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... for each of the parts that stand one after the other, of these sizes."""
    return np.asarray(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))


_PLURALS = {"row": "rows", "person": "people"}


def counted(number: int, what: str) -> str:
    """ "1 person", "2 people": `what` is "row" or "person"."""
    return f"{number} {what if number == 1 else _PLURALS[what]}"


class Draws(NamedTuple):
    """What is dealt out whole: people, each with all its rows, or single rows."""

    owner: NDArray[np.int64]  # (draws,) whose each is
    ids: NDArray[np.uint64]  # (draws,) of each, different inside a client
    of_row: NDArray[np.int64]  # (N,) which draw a row belongs to, as a place in these
    sizes: NDArray[np.int64]  # (draws,) rows of each

    @classmethod
    def of(cls, codes: NDArray[np.int64], ids: NDArray[np.uint64]) -> Draws:
        """From the client (N,), as a number from 0, and the person (N,) of every row."""
        order = np.lexsort((ids, codes))
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(codes[order]) != 0) | (ids[order][1:] != ids[order][:-1])
        of_row = np.empty(len(order), np.int64)
        of_row[order] = np.cumsum(new) - 1
        first = order[new]
        return cls(codes[first], ids[first], of_row, np.bincount(of_row, minlength=len(first)))

    @classmethod
    def single_rows(cls, codes: NDArray[np.int64], ids: NDArray[np.uint64]) -> Draws:
        """Every row is a draw by itself, with the ids of `arranged`."""
        return cls(codes, ids, np.arange(len(codes)), np.ones(len(codes), np.int64))

    def counts(self, n: int) -> NDArray[np.int64]:
        """(n,) how many each client has."""
        return np.bincount(self.owner, minlength=n)


def dealt(names: Sequence[str], draws: Draws, what: str, folds: int, key: Key) -> NDArray[np.int64]:
    """(N,) the fold of every row, from 0: every draw has its own, whatever the others are.

    Where that leaves a fold of a client with less than half as many draws as are its fair share, which
    happens to small clients alone, that client's are dealt in turn instead: the largest first and those of
    one size in random order, so that two of its folds differ by no more rows than its largest draw has.

    Raises BidroError for a client with fewer draws than folds; `what` these are, "row" or "person".
    """
    n = len(names)
    sizes = draws.counts(n)
    if folds < 2:
        raise BidroError(f"Cross-validation needs at least 2 folds; got {folds}.")
    if sizes.min() < folds:
        raise BidroError(
            f"Client '{names[int(sizes.argmin())]}' has {counted(sizes.min(), what)}, fewer than the {folds} "
            f"folds of cross-validation; leave it out, give it more {_PLURALS[what]}, or choose nothing: "
            "--weights fixed --personal none."
        )
    drawn = random_bits(names, draws.owner, draws.ids, key, _OF_FOLDS)
    found = np.minimum((_fractions(drawn) * folds).astype(np.int64), folds - 1)
    counts = np.bincount(draws.owner * folds + found, minlength=n * folds).reshape(n, folds)
    uneven = 2 * folds * counts.min(axis=1) < sizes
    if uneven.any():
        order = np.lexsort((drawn, -draws.sizes, draws.owner))
        in_turn = np.empty(len(drawn), np.int64)
        in_turn[order] = places(sizes) % folds
        found = np.where(uneven[draws.owner], in_turn, found)
    return found[draws.of_row]


def label_ids(labels: NDArray[np.str_] | Words) -> NDArray[np.uint64]:
    """(N,) 64 bits from the label of every row's person: the same on every machine. That two labels of a
    million have the same bits happens once in forty million times."""
    words, codes = labels if isinstance(labels, Words) else Words.of(labels)
    digests = b"".join(hashlib.blake2b(str(word).encode(), digest_size=8).digest() for word in words)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)[codes]


def client_id(name: str) -> NDArray[np.uint32]:
    """64 bits from a client's name, as two numbers: the same on every machine and in every order."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.frombuffer(digest, dtype=">u4").astype(np.uint32)


def key_of_seed(seed: int) -> bytes:
    """The key that a seed stands for: a rehearsal's sites have it, to split as one process does."""
    return hashlib.blake2b(f"bidro splits {seed}".encode(), digest_size=KEY_BYTES).digest()


def distinct_ids(
    names: Sequence[str], owner: NDArray[np.int64], ids: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """(N,) ids that differ between clients too, from those (N,) that differ inside one."""
    return random_bits(names, owner, ids, 0, _OF_LABELS)


def random_bits(
    names: Sequence[str],
    owner: NDArray[np.int64],
    ids: NDArray[np.uint64],
    key: Key,
    purpose: np.uint64,
) -> NDArray[np.uint64]:
    """64 bits a row, or person, from the key, its client's name (names[owner]) and its id: the same where the
    client is alone as where all are together. Without the key they cannot be distinguished from random
    ones."""
    both = np.stack([client_id(name) for name in names]).astype(np.uint64)
    of_client = both[:, 0] << np.uint64(32) | both[:, 1]
    secret = key if isinstance(key, bytes) else key_of_seed(key)
    short = np.frombuffer(hashlib.blake2b(secret, digest_size=16).digest(), dtype="<u8")
    bits = np.empty(len(ids), np.uint64)
    for begin in range(0, len(ids), _TOGETHER):
        part = slice(begin, begin + _TOGETHER)
        bits[part] = siphash(short, [of_client[owner[part]], ids[part], purpose])
    return bits


def siphash(key: NDArray[np.uint64], words: Sequence[NDArray[np.uint64] | np.uint64]) -> NDArray[np.uint64]:
    """SipHash-2-4 (Aumasson and Bernstein, 2012) of messages of whole words, the first of which has the shape
    of all: 64 bits each that only those who have the key (2,) can distinguish from random ones."""
    begins = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    v = [np.full_like(words[0], np.uint64(c) ^ key[i % 2]) for i, c in enumerate(begins)]
    with np.errstate(over="ignore"):
        for word in (*words, np.uint64(8 * len(words) % 256) << np.uint64(56)):
            v[3] = v[3] ^ word
            for _ in range(2):
                _sip_round(v)
            v[0] = v[0] ^ word
        v[2] = v[2] ^ np.uint64(0xFF)
        for _ in range(4):
            _sip_round(v)
    return np.asarray(v[0] ^ v[1] ^ v[2] ^ v[3])


def _sip_round(v: list[NDArray[np.uint64]]) -> None:
    def turned(x: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
        return np.asarray(x << np.uint64(bits) | x >> np.uint64(64 - bits))

    v[0] = v[0] + v[1]
    v[1] = turned(v[1], 13) ^ v[0]
    v[0] = turned(v[0], 32)
    v[2] = v[2] + v[3]
    v[3] = turned(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3]
    v[3] = turned(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1]
    v[1] = turned(v[1], 17) ^ v[2]
    v[2] = turned(v[2], 32)


def scrambled(key: NDArray[np.uint64], counter: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """64 bits that look random, from a key and a counter (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = key + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def drawn(ids: NDArray[np.uint64], share: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(draws,) whether each is in a sample that it is drawn for with probability `share` (draws,), by its id
    alone."""
    return np.asarray(_fractions(scrambled(ids, _OF_SAMPLES)) < share)


def _fractions(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers from 0 to below 1, by the first 53 of 64 bits."""
    return np.asarray((bits >> np.uint64(11)).astype(float) * 2.0**-53)


def _content_bits(
    features: NDArray[np.float64] | Iterable[NDArray[np.float64]], target: NDArray[np.float64]
) -> NDArray[np.uint64]:
    """64 bits a row from its numbers; those of 0.0 and -0.0 are the same."""
    bits = np.zeros(len(target), np.uint64)
    parts = [slice(begin, begin + _HASHED) for begin in range(0, len(target), _HASHED)]
    # Columns one after the other, where they are made one after the other; of a matrix all at once.
    together = [features.T] if isinstance(features, np.ndarray) else ([column] for column in features)
    for columns in chain(together, [[target]]):
        for part in parts:
            for column in columns:
                bits[part] = scrambled(bits[part], (column[part] + 0.0).view(np.uint64))
    return bits
