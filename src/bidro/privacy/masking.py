"""Sums over sites of which nobody sees the parts: whole numbers under pairwise masks that cancel.

Site i sends v_i + sum_{j > i} M_ij - sum_{j < i} M_ij modulo 2^64, where M_ij are as many pseudorandom
64-bit numbers as there are values, known to sites i and j alone. Added up over all sites every mask occurs
once with each sign, so that the sum is that of the v_i, to the bit. Of fewer messages, or of the messages
with any other whole factors, some masks stay, and what is seen is as random as they are. Whoever knows the
keys of some sites learns the sum over all the others, and no more of them.

Masks are agreed on without a message. Every site has a key pair (X25519), and the others' public keys are
pinned in what the owners signed: whoever could put keys of its own there could sum over one site alone. From
a pair's shared secret and the `Release` (roster, agreement, run, round, question and message) HKDF-SHA256
gives the key of a ChaCha20 stream. A site that was shown another roster or another question than the others
has other masks, and the server is left with random numbers. `cryptography` does all of that.

A mask must never hide two different values: their difference would be seen. So what a site sends has to
follow from its `Release`: it keeps its values, noise included, with the release they were drawn for
(`privacy.ledger`), and sends the same bytes again. Against a server that can break X25519 masks hide nothing;
then the site's own noise is all there is.

Sums of whole numbers are exact as long as they stay within 64 bits, which `require_room` proves from what one
row can add. Noise may go beyond, with a probability of less than e^-500; then the sum is wrong, and no less
private, as numbers modulo 2^64 follow from the numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import Frozen
from bidro.privacy.row_arithmetic import Integers

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

# Of one person's site and one that colludes with the server the sum of two gives the first away.
MIN_SITES = 3
KEY_BYTES = 32
_WORD = 8
# Noise is given room for so many standard deviations: beyond them lies less than 2 e^-512 of it.
_DEVIATIONS = 32


@dataclass(frozen=True)
class SiteKey:
    """A site's own key pair; `secret` never leaves the site."""

    secret: bytes = field(repr=False)

    @classmethod
    def made(cls) -> SiteKey:
        """From the operating system's random bytes."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> bytes:
        """What the others pin."""
        return self._key.public_key().public_bytes_raw()

    @cached_property
    def _key(self) -> X25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return X25519PrivateKey.from_private_bytes(self.secret)

    def shared_with(self, public: bytes) -> bytes:
        """The secret that both sites know. Raises BidroError for bytes that are nobody's key."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise BidroError(
                f"A site key must be {KEY_BYTES} bytes that `bidro site init` has made; got {public.hex()}."
            ) from error


@dataclass(frozen=True)
class Roster:
    """The sites that a sum is over, with their public keys."""

    keys: Mapping[str, bytes]
    min_sites: int = MIN_SITES

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", Frozen(dict(sorted(self.keys.items()))))
        if self.min_sites < MIN_SITES:
            raise BidroError(
                f"min_sites must be at least {MIN_SITES}, as one of two sites learns the other's numbers "
                f"from their sum; got {self.min_sites}."
            )
        if len(self.keys) < self.min_sites:
            raise BidroError(
                f"A masked sum needs at least {self.min_sites} sites (min_sites); here it would be over "
                f"{len(self.keys)}: {', '.join(self.keys) or 'none'}."
            )
        for name, key in self.keys.items():
            if len(key) != KEY_BYTES:
                raise BidroError(f"The key of site '{name}' has {len(key)} bytes and must have {KEY_BYTES}.")
        if len(set(self.keys.values())) < len(self.keys):
            whose: dict[bytes, list[str]] = {}
            for name, key in self.keys.items():
                whose.setdefault(key, []).append(name)
            twice = next(names for names in whose.values() if len(names) > 1)
            raise BidroError(
                f"Sites {' and '.join(twice)} have the same key, so that they are one site; every site makes "
                "its own by `bidro site init`."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys)

    @cached_property
    def digest(self) -> bytes:
        return _digest(
            str(self.min_sites).encode(), *(p for n, k in self.keys.items() for p in (n.encode(), k))
        )


@dataclass(frozen=True)
class Release:
    """All that a masked sum is about. Two releases that differ in anything have different masks."""

    roster: Roster
    agreement: str
    run: str
    round: int
    question: str
    message: bytes = b""  # what is asked, as it was sent

    @cached_property
    def digest(self) -> bytes:
        words = self.agreement, self.run, str(self.round), self.question
        return _digest(self.roster.digest, *(word.encode() for word in words), self.message)


def masked(values: Integers, own: str, key: SiteKey, release: Release) -> Integers:
    """values (n,) with the masks of site `own`: what it may send. Raises BidroError where the site, or its
    key, is not of the roster."""
    keys = release.roster.keys
    if keys.get(own) != key.public:
        raise BidroError(
            f"The roster names another key for site '{own}' than this site has, or none; the agreement must "
            "pin the key that `bidro site init` wrote here."
        )
    total = np.array(values, np.int64).view(np.uint64)
    for other, public in keys.items():
        if other != own:
            first, second = sorted((own, other))
            mask = _mask(key.shared_with(public), (keys[first], keys[second]), release, total.size)
            if own == first:
                total += mask
            else:
                total -= mask
    return total.view(np.int64)


def sum_of_masked(messages: Integers) -> Integers:
    """(n,) the sum of the messages (sites, n) of a whole roster: that of their values."""
    return np.asarray(messages.view(np.uint64).sum(axis=0, dtype=np.uint64).view(np.int64))


def most_rows(sites: int, steps: int, variance: Fraction) -> int:
    """How many rows every one of so many sites may have so that no sum leaves 64 bits, where one changes it
    by at most so many steps and the noise of one site has this variance, in steps squared."""
    # Independent noise of variance s^2 a site is subgaussian with n s^2.
    noise = math.isqrt(_DEVIATIONS**2 * sites * math.ceil(variance)) + 1
    return max(2**63 - 1 - noise, 0) // (sites * steps)


def require_room(rows: int, sites: int, steps: int, variance: Fraction) -> None:
    """Raise BidroError for a site with so many rows that sums over the sites might not fit in 64 bits."""
    most = most_rows(sites, steps, variance)
    if rows > most:
        raise BidroError(
            f"Masked sums over {sites} sites are exact for at most {most:,} rows a site at this noise; here "
            f"are {rows:,}. Give fewer rows, or a larger epsilon where noise takes the room."
        )


def _mask(secret: bytes, pair: tuple[bytes, bytes], release: Release, count: int) -> NDArray[np.uint64]:
    """(count,) of the two sites that share a secret, whose public keys are the pair."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(SHA256(), 32, release.digest, b"bidro mask" + pair[0] + pair[1]).derive(secret)
    # The key is of one release alone, so that its stream is used once and the nonce may be anything.
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(_WORD * count)), "<u8")


def _digest(*parts: bytes) -> bytes:
    """Of parts of any length, each behind its length, so that no two lists of parts are read as one."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.digest()
