"""The three releases of a site with a budget: second moments, gradients, and held-out losses as sums.

Each is a sum over rows of whole numbers plus discrete Gaussian noise. What one row can change it by, in the
L2 norm, is a whole number of steps that some row attains; a person with k rows can change it by k times as
much. What a step is in the rows' own units and how large the noise is follow from public numbers alone
(`Scale`), so that a server works both out by itself and only the sums have to be sent. Where rho is None
there is no budget: the same sums without noise.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.privacy.accounting import noise_variance
from bidro.privacy.discrete_gaussian import Bits, discrete_gaussian, secret_bits
from bidro.privacy.row_arithmetic import Integers, check_clip, clipped_rows, column_sums, gram

# Steps of the longest row. Sums of squares of 2^27 such rows still fit in 64 bits.
MOMENT_STEPS = 2**18
# Of a gradient, of the loss with it, and of both together: 24^2 + 7^2 = 25^2.
GRADIENT_STEPS, LOSS_STEPS, JOINT_STEPS = 24 * 2**14, 7 * 2**14, 25 * 2**14
BERNSTEIN_STEPS = 2**30
MOST_DEGREE = 64

_LARGEST = 2**63 - 1


class Scale(NamedTuple):
    """What released numbers mean; it depends on no row."""

    unit: Floats  # (n,) one step of each, in the units of what is summed
    variance: tuple[Fraction, ...]  # (n,) of the noise, in steps squared; zeros without a budget
    # Over so many sites' sums the sum is taken modulo 2^64, and this is the noise of one of them; 1 where a
    # site's sums are seen by themselves.
    sites: int = 1

    @property
    def over_sites(self) -> Scale:
        """Of the sum over the sites."""
        return Scale(self.unit, tuple(self.sites * one for one in self.variance))

    @property
    def sigma(self) -> Floats:
        """(n,) the noise's standard deviation, in the units of what is summed."""
        return np.asarray(self.unit * np.sqrt([float(v) for v in self.variance]))


class Noisy(NamedTuple):
    """A release: whole numbers of steps, and what they mean."""

    values: Integers  # (n,)
    scale: Scale

    @property
    def sums(self) -> Floats:
        """(n,) in the units of what was summed; unbiased but for rounding to steps."""
        return np.asarray(self.values * self.scale.unit)


def moments_scale(
    m: int, clip: float, rho: Fraction | None, rows_per_person: int = 1, sites: int = 1
) -> Scale:
    """Of the upper triangle of sum w^2 z z', row after row (see `upper`), for z of m numbers.

    Noise of variance s^2 on the diagonal and s^2 / 2 off it is that of a symmetric matrix whose Frobenius
    norm counts every entry off the diagonal twice: one row costs

        (sum_i z_i^4 + 2 sum_{i<j} z_i^2 z_j^2) / (2 s^2) = ||z||^4 / (2 s^2),

    at most clip^4 / (2 s^2), and k rows of one person k^2 times that, by the triangle inequality.
    """
    check_clip(clip)
    whole = _variance(rho, MOMENT_STEPS**2, rows_per_person)
    rows, columns = upper(m)
    variance = tuple(whole if diagonal else whole / 2 for diagonal in rows == columns)
    return Scale(np.full(len(rows), (clip / MOMENT_STEPS) ** 2), variance, sites)


def moments(
    z: Floats,
    clip: float,
    rho: Fraction | None,
    rows_per_person: int = 1,
    bits: Bits = secret_bits,
    sites: int = 1,
) -> Noisy:
    """sum w^2 z z' over rows z (N, m) with w = min(1, clip / ||z||), its upper triangle."""
    scale = moments_scale(z.shape[1], clip, rho, rows_per_person, sites)
    sums = gram(clipped_rows(z, clip, MOMENT_STEPS))
    rows, columns = upper(z.shape[1])
    return with_noise([sums[i][j] for i, j in zip(rows, columns, strict=True)], scale, bits)


def upper(m: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(rows, columns) of the entries of an (m, m) matrix on and above its diagonal, as they are released."""
    rows, columns = np.triu_indices(m)
    return rows, columns


def symmetric(entries: Floats, m: int) -> Floats:
    """The (m, m) matrix from its upper triangle (m (m + 1) / 2,)."""
    whole = np.zeros((m, m))
    whole[upper(m)] = entries
    return np.asarray(whole + np.triu(whole, 1).T)


def gradients_scale(
    d: int,
    clip: float,
    loss_clip: float,
    rho: Fraction | None,
    rows_per_person: int = 1,
    sites: int = 1,
) -> Scale:
    """Of d sums of gradients and, last, the sum of losses: together one row changes them by 25 parts, of
    which a gradient of norm `clip` takes 24 and a loss of `loss_clip` 7."""
    check_clip(clip)
    check_clip(loss_clip)
    variance = _variance(rho, JOINT_STEPS, rows_per_person)
    unit = np.append(np.full(d, clip / GRADIENT_STEPS), loss_clip / LOSS_STEPS)
    return Scale(unit, (variance,) * (d + 1), sites)


def gradients(
    rows: Floats,
    clip: float,
    loss_clip: float,
    rho: Fraction | None,
    rows_per_person: int = 1,
    bits: Bits = secret_bits,
    sites: int = 1,
) -> Noisy:
    """Sums over rows (N, d + 1) of the gradient, scaled to a norm of at most `clip`, and of the loss, which
    is the last number of a row and counts as at most `loss_clip`."""
    scale = gradients_scale(rows.shape[1] - 1, clip, loss_clip, rho, rows_per_person, sites)
    gradient = clipped_rows(rows[:, :-1], clip, GRADIENT_STEPS)
    loss = clipped_rows(rows[:, -1:], loss_clip, LOSS_STEPS)
    return with_noise(column_sums(np.hstack([gradient, loss])), scale, bits)


def bernstein_scale(degree: int, rho: Fraction | None, rows_per_person: int = 1) -> Scale:
    """Of the sums of B_0, ..., B_degree, which are not negative and of sum 1: one row changes them by at most
    1 in the L2 norm, and by that where it is 0 or 1."""
    if not 1 <= degree <= MOST_DEGREE:
        raise BidroError(f"The degree of Bernstein polynomials goes from 1 to {MOST_DEGREE}; got {degree}.")
    variance = _variance(rho, BERNSTEIN_STEPS, rows_per_person)
    return Scale(np.full(degree + 1, 1 / BERNSTEIN_STEPS), (variance,) * (degree + 1))


def bernstein(
    v: Floats, degree: int, rho: Fraction | None, rows_per_person: int = 1, bits: Bits = secret_bits
) -> Noisy:
    """Sums over values (N,) in [0, 1] of the Bernstein polynomials B_k(v) = C(K, k) v^k (1 - v)^(K - k).

    With degree 1 and values 0 and 1 these are two counts: of zeros and of ones.
    """
    scale = bernstein_scale(degree, rho, rows_per_person)
    return with_noise(column_sums(bernstein_steps(v, degree)), scale, bits)


def bernstein_steps(v: Floats, degree: int) -> Integers:
    """(N, K + 1) the Bernstein polynomials of values in [0, 1], in steps: whole numbers of at least 0 whose
    sum is exactly `BERNSTEIN_STEPS`, so that their L2 norm is at most that.

    Rounding moves weight from small k to large ones only: sum_k (k / K) B_k, which is v in exact numbers, is
    at least v and at most 2e-9 (K + 1) above it. A bound of its mean is one of the mean of v.
    """
    if np.any(np.isnan(v)):
        raise BidroError("Losses must be numbers before noise is added to sums over them.")
    inside = np.clip(v, 0.0, 1.0)
    # By the recurrence of the polynomials in their degree: sums and products of single numbers.
    basis = [np.ones(len(v))]
    for _ in range(degree):
        left, right = [(1 - inside) * b for b in basis], [inside * b for b in basis]
        basis = [left[0], *(a + b for a, b in zip(left[1:], right[:-1], strict=True)), right[-1]]
    below = np.zeros((len(v), degree + 2), dtype=np.int64)
    total = np.zeros(len(v))
    for k in range(degree):
        total = total + basis[k]
        # A little less than it is, by more than rounding can have added.
        least = np.floor(np.minimum(total, 1.0) * (1 - 2.0**-40) * BERNSTEIN_STEPS)
        below[:, k + 1] = least.astype(np.int64)
    below[:, -1] = BERNSTEIN_STEPS
    return np.diff(below, axis=1)


def count_scale(rho: Fraction | None, rows_per_person: int = 1) -> Scale:
    return Scale(np.ones(1), (_variance(rho, 1, rows_per_person),))


def count(rows: int, rho: Fraction | None, rows_per_person: int = 1, bits: Bits = secret_bits) -> Noisy:
    """How many rows there are."""
    return with_noise([rows], count_scale(rho, rows_per_person), bits)


def _variance(rho: Fraction | None, sensitivity: int, rows_per_person: int) -> Fraction:
    """Of the noise, in steps squared, where one row changes what is released by `sensitivity` steps."""
    if rows_per_person < 1:
        raise BidroError(f"rows_per_person must be at least 1; got {rows_per_person}.")
    return Fraction(0) if rho is None else noise_variance(rho, (sensitivity * rows_per_person) ** 2)


def with_noise(sums: list[int], scale: Scale, bits: Bits) -> Noisy:
    """The sums with noise. Numbers beyond 64 bits count as the largest, which is done after the noise; where
    sums are to be added up over sites, they are taken modulo 2^64, so that what comes of it is too."""
    counts = Counter(scale.variance)
    drawn = {variance: iter(discrete_gaussian(variance, n, bits)) for variance, n in counts.items()}
    whole = [s + next(drawn[variance]) for s, variance in zip(sums, scale.variance, strict=True)]
    if scale.sites > 1:
        return Noisy(np.array([v % 2**64 for v in whole], dtype=np.uint64).view(np.int64), scale)
    return Noisy(np.array([max(-_LARGEST, min(_LARGEST, v)) for v in whole], dtype=np.int64), scale)
