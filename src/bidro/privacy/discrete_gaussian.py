"""Noise that is exactly what the proof says: the discrete Gaussian, drawn from random bits by whole numbers.

The integer x has probability proportional to exp(-x^2 / (2 sigma^2)). Drawn in floating point, noise has
holes that give away what it was added to; here every decision is a comparison of whole numbers with random
bits, so that the law is exact (by the algorithms of Canonne, Kamath and Steinke, 2020). How long a draw takes
depends on the noise alone, never on rows.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isqrt

import numpy as np

from bidro.core.errors import BidroError

# So many random bytes at every call.
Bits = Callable[[int], bytes]

_BYTES = 4096  # drawn at once
_WORD = 64


def secret_bits(count: int) -> bytes:
    """The operating system's random bytes: what a site uses."""
    return secrets.token_bytes(count)


def seeded_bits(seed: int | bytes) -> Bits:
    """Bits that follow from a seed, for rehearsals and tests: who knows the seed knows the noise."""
    secret = seed if isinstance(seed, bytes) else str(seed).encode()
    key = hashlib.blake2b(b"bidro noise " + secret).digest()
    requested = 0

    def bits(count: int) -> bytes:
        nonlocal requested
        requested += 1
        return hashlib.shake_256(key + requested.to_bytes(8, "little")).digest(count)

    return bits


def discrete_gaussian(variance: Fraction, count: int, bits: Bits = secret_bits) -> list[int]:
    """`count` independent draws with sigma^2 = `variance`, as whole numbers of any size.

    Their variance is at most sigma^2, and E exp(t x) <= exp(t^2 sigma^2 / 2) for every t.
    """
    if variance < 0:
        raise BidroError(f"A variance must not be negative; got {float(variance):g}.")
    if variance == 0:
        return [0] * count
    return _Coins(bits).gaussians(variance, count)


class _Coins:
    """Decisions of exactly given probabilities, from random bits."""

    def __init__(self, bits: Bits):
        self._next = _words(bits).__next__

    def gaussians(self, variance: Fraction, count: int) -> list[int]:
        """Two-sided geometric draws of about the same width, thinned out to the discrete Gaussian."""
        a, b = variance.numerator, variance.denominator
        t = isqrt(a // b) + 1
        btt = b * t
        below = 2 * a * b * t * t
        found: list[int] = []
        while len(found) < count:
            x = self._laplace(t)
            # exp(-(|x| - sigma^2 / t)^2 / (2 sigma^2)), in whole numbers
            if self._exponential((abs(x) * btt - a) ** 2, below):
                found.append(x)
        return found

    def _laplace(self, t: int) -> int:
        """An integer of probability proportional to exp(-|x| / t)."""
        while True:
            size = self._below(t)
            if not self._exponential_below_one(size, t):
                continue
            while self._exponential_below_one(1, 1):
                size += t
            negative = self._next() & 1
            # Zero is counted with one sign only.
            if size or not negative:
                return -size if negative else size

    def _exponential(self, n: int, d: int) -> bool:
        """True with probability exp(-n / d)."""
        while n > d:
            if not self._exponential_below_one(1, 1):
                return False
            n -= d
        return self._exponential_below_one(n, d)

    def _exponential_below_one(self, n: int, d: int) -> bool:
        """The same for n <= d: the first of coins n / d, n / 2d, n / 3d, ... that falls on false is an odd
        one."""
        turn, product = 1, d
        while self._coin(n, product):
            turn += 1
            product += d
        return turn % 2 == 1

    def _coin(self, n: int, d: int) -> bool:
        """True with probability n / d <= 1: its binary digits against random ones, a word at once."""
        while True:
            digits, n = divmod(n << _WORD, d)
            word = self._next()
            if word != digits:
                return word < digits

    def _below(self, t: int) -> int:
        """An integer from 0 to t - 1, each as likely."""
        length = (t - 1).bit_length()
        words, spare = -(-length // _WORD), -length % _WORD
        while True:
            drawn = 0
            for _ in range(words):
                drawn = drawn << _WORD | self._next()
            drawn >>= spare
            if drawn < t:
                return drawn


def _words(bits: Bits) -> Iterator[int]:
    while True:
        yield from np.frombuffer(bits(_BYTES), "<u8").tolist()
