"""Whether rows were trained on: a private sketch of the training rows, and tests of other rows against it.

A statement from fresh rows holds only if training never saw them. To notice rows that it saw, a fit leaves a
sketch: M slots, M at least `SLOTS_PER_ROW` times the rows, in which every training row that has no equal
among them sets the slot of its hash. Then every slot is flipped with probability 1 / (1 + e^EPSILON).

What it gives away. A row more or less changes at most one slot before the flips, whatever the other rows are,
so that the chance of any sketch changes by a factor of at most e^EPSILON: differential privacy for each row.
Whoever knows all other rows still learns no more than a factor of e in the odds that a row was there (and e^2
in the odds that it was this row rather than that one, where two slots change). The numbers of rows, which the
model file has too, are taken as known. EPSILON = 1 is what is commonly called strong, and enough to notice a
table of some fifty rows; every fit on the same rows gives away as much again. A model's coefficients are
another matter: the sketch makes them no more private.

What it shows. The hash of a new row falls anywhere, so that hits among new rows are binomial with the share
of set slots. Rows may equal training rows by chance where tables have few values, but a row of probability pi
is found exactly once among n training rows with probability n pi (1 - pi)^(n-1) <= (1 - 1/n)^(n-1), about
0.37, whatever pi is: that is why only rows without an equal set slots. Hits beyond that share are not chance,
in any table. Where the rows given seldom equal one another, chance explains less: see `_most_by_chance`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, gammaincinv

from bidro.core.errors import BidroError
from bidro.core.files import parsed_json, read_text
from bidro.core.pytrees import Frozen
from bidro.core.splits import client_id, scrambled

FORMAT, VERSION = "bidro trained rows", 1
FILE = "trained_rows.json"

EPSILON = 1.0
# Slots are flipped by comparing 32 random bits with this; rounded up, so that EPSILON is kept exactly.
_FLIPPED = math.ceil(2**32 / (1 + math.exp(EPSILON)))
FLIP = _FLIPPED / 2**32
# Few rows then share a slot with another.
SLOTS_PER_ROW, FEWEST_SLOTS = 16, 1024
# What is less likely than this is not taken for chance.
UNLIKELY = 1e-5
_FLIPPED_TOGETHER = 1 << 20


class TrainedRowsWarning(UserWarning):
    """Rows to certify with may have been trained on, or that is not known.

    Examples:
        >>> import warnings
        >>> from bidro import TrainedRowsWarning
        >>> warnings.simplefilter("error", TrainedRowsWarning)  # certify nothing then
    """


class Comparison(NamedTuple):
    """Rows against a sketch; rows that equal one another do not count."""

    rows: int  # that count
    share: float  # of these that equal a row of training, estimated
    if_new: float  # the chance of as many hits where no row equals one of training
    if_by_chance: float  # the largest chance where equal rows came about by independent draws
    if_trained_on: float  # `if_new` for as many hits as are expected where all rows were trained on
    adapted: str | None = None  # the client whose personal model was adapted on the rows of the sketch

    @property
    def trained_on(self) -> bool:
        """Whether the rows were trained on: more are equal than chance explains."""
        return self.if_by_chance < UNLIKELY

    @property
    def equal_rows(self) -> str | None:
        """The estimated share of rows that equal training rows, as a phrase; None where there is no evidence
        of any."""
        of, were, those = (
            ("these rows", "were in training", "of training")
            if self.adapted is None
            else (
                f"the rows of '{self.adapted}'",
                "are those that its personal model was adapted on",
                "that its personal model was adapted on",
            )
        )
        share = f"About {max(self.share, 0.01):.0%} of {of}"
        if self.trained_on:
            return f"{share} {were}"
        return f"{share} equal rows {those}" if self.if_new < UNLIKELY else None

    @property
    def note(self) -> str | None:
        """A caveat for rows that are to be certified with; None where they look new."""
        only = "statements hold only for rows that training never saw."
        if self.equal_rows is not None:
            return f"{self.equal_rows}, whether by chance or because they were used there; {only}"
        if self.if_trained_on >= UNLIKELY:
            these, trained = (
                ("These rows", "they were trained on")
                if self.adapted is None
                else (f"The rows of '{self.adapted}'", "its personal model was adapted on them")
            )
            return (
                f"{these} are too few, or rows of such tables equal one another too often, to tell whether "
                f"{trained}; {only}"
            )
        return None


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """The sketch; see the module's docstring."""

    key: int  # of the hash: 64 random bits, new in every fit
    slots: NDArray[np.bool_]  # (M,) after the flips
    rows: Mapping[str, int]  # that each client trained on
    adapted: str | None = None  # the client whose personal model was adapted on these rows; None for training

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Frozen(self.rows))

    def __getstate__(self) -> dict[str, Any]:
        """With a bit a slot, as in the file: the one part of a pickled model that grows with its rows."""
        return {**vars(self), "slots": np.packbits(self.slots).tobytes(), "rows": dict(self.rows)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        slots = np.unpackbits(np.frombuffer(state["slots"], np.uint8)).astype(bool)
        TrainedRows.__init__(self, **{**state, "slots": slots})

    @classmethod
    def of(cls, rows: Mapping[str, ArrayLike], adapted: str | None = None) -> TrainedRows:
        """Of every client's training rows (N_i, m), in the units of training; or of the one client `adapted`
        those that its personal model was adapted on."""
        key = secrets.randbits(64)
        counts = {name: len(np.asarray(own)) for name, own in rows.items()}
        count = _slot_count(sum(counts.values()))
        return cls(key, _flipped(occupied(rows, key, count)), counts, adapted)

    def compare(self, rows: Mapping[str, ArrayLike]) -> Comparison:
        """Rows (N_i, m) of some clients, in the units of training, against the sketch. Where a client's own
        model was adapted on its rows, other clients' do not count: they would hide those of the client."""
        if self.adapted is not None:
            rows = {name: own for name, own in rows.items() if name == self.adapted}
        hashes = {name: _hashes(name, own, self.key) for name, own in rows.items()}
        lone = {name: _without_equal(own) for name, own in hashes.items()}
        count = sum(map(len, lone.values()))
        hits = sum(int(self.slots[_slots(own, len(self.slots))].sum()) for own in lone.values())
        # A slot that a row of training set is still set with probability 1 - FLIP, any other with this one.
        anywhere = float(self.slots.mean())
        step = max(1 - FLIP - anywhere, 0.0)
        by_chance = anywhere + step * _most_by_chance(self.rows, hashes, lone)
        expected = math.floor((anywhere + step * self._without_equal) * count)
        share = (hits / count - anywhere) / step if count and step else 0.0
        return Comparison(
            count,
            min(max(share, 0.0), 1.0),
            _at_least(hits, count, anywhere),
            _at_least(hits, count, by_chance),
            _at_least(expected, count, anywhere),
            self.adapted,
        )

    def require_new(self, rows: Mapping[str, ArrayLike]) -> None:
        """Raise BidroError for rows that were trained on; warn of rows that may have been."""
        if (note := self.refused_or_note(rows)) is not None:
            warnings.warn(note, TrainedRowsWarning, stacklevel=3)

    def refused_or_note(self, rows: Mapping[str, ArrayLike]) -> str | None:
        """A caveat for rows to certify with, if any; raises BidroError for rows that were trained on."""
        found = self.compare(rows)
        if found.trained_on:
            raise BidroError(
                f"{found.equal_rows}, and what rows say of a model that was trained on them is no statement "
                "about new ones; give rows that training never saw."
            )
        return found.note

    @property
    def _without_equal(self) -> float:
        """The share of training rows that set a slot: about two standard errors above its estimate."""
        size = len(self.slots)
        error = math.sqrt(size * FLIP * (1 - FLIP)) / (1 - 2 * FLIP)
        found = size * (float(self.slots.mean()) - FLIP) / (1 - 2 * FLIP)
        return min(max((found + 2 * error) / sum(self.rows.values()), 0.0), 1.0)

    def to_json(self) -> str:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "key": f"{self.key:016x}",
            "slots": base64.b64encode(np.packbits(self.slots).tobytes()).decode(),
            "rows": dict(self.rows),
        }
        if self.adapted is not None:
            content["adapted"] = self.adapted
        check = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return json.dumps({**content, "check": check}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> TrainedRows:
        """Raises BidroError for text that is not exactly as it was written."""
        try:
            content = parsed_json(text)
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise BidroError(
                    f"'{where}' is of format {content['format']!r}, version {content['version']!r}; this "
                    f"program reads '{FORMAT}', version {VERSION}."
                )
            bits = np.frombuffer(base64.b64decode(content["slots"], validate=True), np.uint8)
            rows = {str(name): int(count) for name, count in content["rows"].items()}
            found = cls(
                int(content["key"], 16), np.unpackbits(bits).astype(bool), rows, content.get("adapted")
            )
            whole = min(rows.values()) > 0 and len(found.slots) == _slot_count(sum(rows.values()))
            whole = whole and found.to_json() == text
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error, OverflowError) as error:
            if isinstance(error, BidroError):
                raise
            whole = False
        if not whole:
            raise BidroError(f"'{where}' is damaged; fetch it again, or refit.")
        return found


class Same(NamedTuple):
    """Rows against other rows; those that have an equal on their own side do not count."""

    equal: int  # rows that equal one of the others
    sure: bool  # so many that it is beyond doubt not by chance
    whole: bool  # both have the same rows, each as often
    odd: bool  # some are equal though no two rows of one side are


def same_rows(rows: ArrayLike, others: ArrayLike) -> Same:
    """Whether rows (N, m) are among other rows (n, m), or the other way round; no order counts."""
    one, two = (_hashes("", given, 0) for given in (rows, others))
    lone, theirs = _without_equal(one), _without_equal(two)
    equal = int(np.isin(lone, theirs).sum())
    by_chance = [
        _at_least(equal, len(few), _most_by_chance({"": len(many)}, {"": given}, {"": few}))
        for few, given, many in ((lone, one, two), (theirs, two, one))
    ]
    whole = len(one) == len(two) and bool(np.all(np.sort(one) == np.sort(two)))
    odd = equal > 0 and len(lone) == len(one) and len(theirs) == len(two)
    return Same(equal, min(by_chance) < UNLIKELY, whole, odd)


def _most_by_chance(
    trained: Mapping[str, int],
    hashes: Mapping[str, NDArray[np.uint64]],
    lone: Mapping[str, NDArray[np.uint64]],
) -> float:
    """The largest share of the rows without an equal that independent draws leave equal to exactly one of so
    many training rows.

    It is at most the mean of (1 - 1/n)^(n-1). And where training rows and these are drawn alike, a row is
    found once among n with at most max(1, n / (N - 1)) times the probability of an equal among the other
    N - 1 rows given: n pi (1 - pi)^(n-1) is at most P(Bin(n, pi) >= 1), and for n >= N - 1 at most
    n / (N - 1) times P(Bin(N - 1, pi) = 1). Where equal rows are rare they come in pairs, and the number
    of pairs is Poisson's.
    """
    count = sum(map(len, lone.values()))
    if count == 0:
        return 1.0
    known = {name: trained[name] for name in lone if name in trained}
    anyhow = sum(len(lone[name]) * (1 - 1 / n) ** (n - 1) for name, n in known.items())
    with_equal = sum(len(hashes[name]) - len(lone[name]) for name in known)
    pairs = float(gammaincinv(math.ceil(with_equal / 2) + 1, 1 - UNLIKELY))
    factor = max((_times(n, len(hashes[name])) for name, n in known.items()), default=0.0)
    return float(min(anyhow, factor * 2 * pairs)) / count


def trained_rows_in(folder: Path) -> TrainedRows | None:
    """The sketch in a model folder; None where there is none, as after a federated run."""
    path = folder / FILE
    return TrainedRows.from_json(read_text(path), str(path)) if path.exists() else None


def occupied(rows: Mapping[str, ArrayLike], key: int, count: int) -> NDArray[np.bool_]:
    """(count,) the slots before the flips: those of rows that have no equal."""
    slots = np.zeros(count, bool)
    for name, own in rows.items():
        slots[_slots(_without_equal(_hashes(name, own, key)), count)] = True
    return slots


def _hashes(name: str, rows: ArrayLike, key: int) -> NDArray[np.uint64]:
    """(N,) 64 bits of every row and its client's name."""
    given = np.asarray(rows, float)
    high, low = client_id(name).astype(np.uint64)
    state = scrambled(np.full(len(given), high << np.uint64(32) | low), np.uint64(key))
    for j in range(given.shape[1]):
        # -0.0 + 0.0 is 0.0: they are equal, and so must their bits be.
        state = scrambled(state, (given[:, j] + 0.0).view(np.uint64))
    return state


def _without_equal(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values, counts = np.unique(hashes, return_counts=True)
    return np.asarray(values[counts == 1])


def _slots(hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    return (hashes & np.uint64(count - 1)).astype(np.int64)


def _slot_count(rows: int) -> int:
    """A power of two."""
    return max(FEWEST_SLOTS, 1 << (SLOTS_PER_ROW * rows - 1).bit_length())


def _flipped(slots: NDArray[np.bool_]) -> NDArray[np.bool_]:
    found = slots.copy()
    for begin in range(0, len(slots), _FLIPPED_TOGETHER):
        part = found[begin : begin + _FLIPPED_TOGETHER]
        part ^= np.frombuffer(secrets.token_bytes(4 * len(part)), np.uint32) < _FLIPPED
    return found


def _at_least(hits: int, count: int, probability: float) -> float:
    """P(Bin(count, probability) >= hits)."""
    return 1.0 if hits == 0 else float(bdtrc(hits - 1, count, probability))


def _times(trained: int, given: int) -> float:
    return max(1.0, trained / (given - 1)) if given > 1 else math.inf
