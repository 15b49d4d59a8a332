"""One-sided confidence bounds of the mean of independent draws from [0, 1]: from the draws as a multiset, or
from noisy sums of polynomials of them.

Noisy sums: values v are known by the sums S_k over draws of the Bernstein polynomials B_k(v), k = 0, ..., K,
each with Gaussian noise of variance sigma^2. A gambler who bets against the mean being mu or more, with
theta_k = ln(1 + lambda (mu - k / K)) and 0 <= lambda < 1 / (1 - mu), has in the end

    exp(sum_k theta_k S_k - sigma^2 sum_k theta_k^2 / 2).

Of one draw sum_k theta_k B_k(v) <= ln(1 + lambda (mu - v)), since the B_k(v) are weights with sum 1 and mean
v of k / K, and ln is concave; and the noise has E exp(theta N) <= exp(theta^2 sigma^2 / 2). So where the mean
is mu or more, what the gambler has is 1 or less in expectation, and 1 / beta or more with probability at most
beta. Noise is part of the wager: the bound needs no number of draws and no exact count. The same sums bound
the mean of v^j, j <= K: its weights on the B_k(v) are binom(k, j) / binom(K, j), in place of k / K.

References: Ian Waudby-Smith and Aaditya Ramdas. Estimating means of bounded random variables by betting.
Journal of the Royal Statistical Society Series B 86, 2024. Andreas Maurer and Massimiliano Pontil. Empirical
Bernstein Bounds and Sample-Variance Penalization. COLT, 2009. C. J. Clopper and E. S. Pearson. The Use of
Confidence or Fiducial Limits Illustrated in the Case of the Binomial. Biometrika 26, 1934.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import betaincinv, comb, log_softmax, logsumexp

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.privacy.mechanisms import Noisy

# A bound above this share of the largest loss that counts says no more than that one does without any rows.
VACUOUS_SHARE = 0.99
# Of a bound, as a share of the largest value; added to it, so that it errs on the safe side.
_PRECISION = 1e-12
_RATIO_PRECISION = 1e-9
# Values that are handled together: what is computed of them for every stake stays in the cache.
_TOGETHER = 4096
# The standard deviations that stakes are made for, and how the capital is split over them: see `betting`.
_SPREADS = np.geomspace(0.7, 0.01, 16)
_LOG_SHARES = log_softmax(-0.5 * (np.log(_SPREADS / 0.2) / 1.2) ** 2)
# Candidates for the mean, from the largest down: fixed beforehand, so that no more than the first true one
# need be ruled out wrongly for the bound to be false. In parts, of which few are needed.
_CANDIDATES = np.split(np.geomspace(1.0, 1e-5, 2501)[1:], 25)
# The same as above for stakes against noisy sums: see `noisy_bound`.
_NOISY_SPREADS = np.geomspace(0.7, 0.02, 8)
_NOISY_LOG_SHARES = log_softmax(-0.5 * (np.log(_NOISY_SPREADS / 0.2) / 1.2) ** 2)
# What is added to a bound for the rounding of logarithms: far above it, far below what anyone reads.
_NOISY_PRECISION = 1e-9


def empirical_bernstein(values: Floats, beta: float, counts: Floats | None = None) -> float:
    """Maurer and Pontil's bound of the mean of values in [0, 1]: it fails with probability at most beta.

    `counts` says how often each value was drawn; once, unless it is given.
    """
    often = np.ones(len(values)) if counts is None else counts
    n = float(often.sum())
    if n < 2:
        return 1.0
    log, mean = math.log(2 / beta), float(often @ values) / n
    variance = float(often @ (values - mean) ** 2) / (n - 1)
    return min(1.0, mean + math.sqrt(2 * variance * log / n) + 7 * log / (3 * (n - 1)))


def betting(values: Floats, beta: float, counts: Floats | None = None) -> float:
    """A bound of the mean of n values in [0, 1] by betting against each candidate; no order counts.

    If mu is the mean of independent draws, a gambler who stakes the share c / (1 - mu) of the capital on
    every value being below mu ends with prod_t (1 + c (mu - v_t) / (1 - mu)), of mean 1 and never negative
    for c <= 1; and so does one who splits the capital over several c beforehand. By Markov's inequality the
    end is 1 / beta or more with probability at most beta. Candidates for which it is are ruled out; what is
    won rises with the candidate, so the bound is the root. `counts` as in `empirical_bernstein`.

    The stakes are fixed by n and beta alone: r / sqrt(r^2 + s^2) with r^2 = 2 ln(1 / beta) / n, which for
    small r is the best stake where the values' standard deviation is s, over s from 0.7 to 0.01, the capital
    split in the shape of a bell around 0.2 on a logarithmic axis.
    """
    if counts is None:
        values, repeated = np.unique(values, return_counts=True)
        counts = repeated.astype(float)
    n = float(counts.sum())
    wanted, mean = math.log(1 / beta), float(counts @ values) / n
    r = math.sqrt(2 * wanted / n)
    stakes, weights = r / np.hypot(r, _SPREADS), counts * (1 - values)

    def excess(candidate: float) -> tuple[float, float]:
        """(log capital - log(1 / beta), its slope)"""
        odds = (candidate - values) / (1 - candidate)
        ends, slopes = _LOG_SHARES, np.zeros(())
        for begin in range(0, len(odds), _TOGETHER):
            part = slice(begin, begin + _TOGETHER)
            won = np.multiply.outer(stakes, odds[part])
            ends = ends + np.log1p(won) @ counts[part]
            won += 1
            slopes = slopes + np.reciprocal(won, out=won) @ weights[part]
        most = float(ends.max())
        shares = np.exp(ends - most)
        total = float(shares.sum())
        slope = float(shares @ (stakes * slopes)) / total / (1 - candidate) ** 2
        return most + math.log(total) - wanted, slope

    high = 1 - _PRECISION
    if mean >= high:
        return 1.0
    # The excess is convex in the candidate: Newton's steps reach the root from above, after at most one that
    # leaps over it.
    deviation = math.sqrt(float(counts @ (values - mean) ** 2) / n)
    candidate, step = min(mean + r * deviation, high), -1.0
    while abs(step) > _PRECISION:
        value, slope = excess(candidate)
        if candidate == high and value < 0:
            return 1.0
        step = value / slope
        candidate = min(candidate - step, high)
    return min(1.0, candidate + 2 * _PRECISION)


def betting_ratio(sums: Floats, sizes: Floats, most: int, beta: float) -> float:
    """A bound of E S / E K, the mean over rows, from n people with K rows each, 1 <= K <= `most`, and a sum S
    of their values, in [0, K]; it fails with probability at most beta.

    At the true ratio m the mean of m K - S is 0, and (m K - S) / (most (1 - m)) is never below -1: a gambler
    who stakes shares of the capital on it ends, on average, with as much, and the argument of `betting` goes
    through, with the same stakes. What is won rises with the candidate m, so that the bound is the root.
    """
    pairs, repeated = np.unique(np.stack([sums, sizes]), axis=1, return_counts=True)
    (total, rows), counts = pairs, repeated.astype(float)
    wanted = math.log(1 / beta)
    r = math.sqrt(2 * wanted / float(counts.sum()))
    stakes = r / np.hypot(r, _SPREADS)

    def ruled_out(candidate: float) -> bool:
        ends = _LOG_SHARES.copy()
        odds = (candidate * rows - total) / (most * (1 - candidate))
        for begin in range(0, len(odds), _TOGETHER):
            part = slice(begin, begin + _TOGETHER)
            ends += np.log1p(np.multiply.outer(stakes, odds[part])) @ counts[part]
        return bool(logsumexp(ends) >= wanted)

    low, high = float(counts @ total / (counts @ rows)), 1 - _PRECISION
    if low >= high or not ruled_out(high):
        return 1.0
    while high - low > _RATIO_PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if ruled_out(middle) else (middle, high)
    return high


def clopper_pearson(values: Floats, beta: float, counts: Floats | None = None) -> float:
    """The exact bound of a probability from zeros and ones; `counts` as in `empirical_bernstein`."""
    often = np.ones(len(values)) if counts is None else counts
    n, wrong = float(often.sum()), float(often @ values)
    return 1.0 if wrong == n else float(betaincinv(wrong + 1, n - wrong, 1 - beta))


BOUNDS: dict[str, Callable[..., float]] = {
    "betting": betting,
    "bernstein": empirical_bernstein,
    "clopper-pearson": clopper_pearson,
}


def rows_for_half_way(mean: float, beta: float, kind: str) -> int | None:
    """The fewest draws from [0, 1] of this mean whose bound is at most (mean + 1) / 2, if they are zeros and
    ones: none of the same mean spread more. None where the mean is too high for any bound to say something.
    """
    half_way = (mean + 1) / 2
    if half_way >= VACUOUS_SHARE:
        return None

    def too_few(n: int) -> bool:
        counts = np.array([(1 - mean) * n, mean * n])
        return BOUNDS[kind](np.array([0.0, 1.0]), beta, counts) > half_way

    return fewest(too_few)


def fewest(too_few: Callable[[int], bool]) -> int:
    """The least whole number from 1 that is not too few, where all above it are not either."""
    low, high = 0, 1
    while too_few(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if too_few(middle) else (low, middle)
    return high


def noisy_bound(noisy: Noisy, beta: float, rows: float, power: int = 1) -> float:
    """The mean of this power of independent values in [0, 1] is at most this, which fails with probability at
    most `beta`.

    Args:
        noisy: sums of Bernstein polynomials, from `bidro.privacy.mechanisms.bernstein`.
        beta: the failure probability.
        rows: about how many values there are, known from elsewhere than these sums and their noise: stakes
            are made for it. However wrong it is, the bound is true.
        power: of the values, from 1 to the polynomials' degree.

    Returns:
        A number up to 1.0, which says nothing.
    """
    if not 0 < beta < 1:
        raise BidroError(f"The failure probability must lie strictly between 0 and 1; got {beta}.")
    if len(set(noisy.scale.variance)) != 1:
        raise ValueError("the noise of every sum must have the same variance")
    wanted, bound = math.log(1 / beta), 1.0
    for candidates in _CANDIDATES:
        ended = log_capital(noisy, candidates, wanted, rows, power)
        kept = np.flatnonzero(ended < wanted + _NOISY_PRECISION)
        if len(kept):
            return bound if kept[0] == 0 else float(candidates[kept[0] - 1])
        bound = float(candidates[-1])
    return bound


def noisy_mean(noisy: Noisy) -> float:
    """The mean as noisy sums estimate it."""
    places = np.arange(len(noisy.values)) / (len(noisy.values) - 1)
    return float(np.clip(places @ noisy.sums / max(float(noisy.sums.sum()), 1.0), 0.0, 1.0))


def log_capital(noisy: Noisy, candidates: Floats, wanted: float, rows: float, power: int = 1) -> Floats:
    """(c,) the logarithm of what the gambler has in the end against each candidate (c,)."""
    sums, variance = noisy.sums, float(noisy.scale.sigma[0]) ** 2
    places = comb(np.arange(len(sums)), power) / comb(len(sums) - 1, power)
    away = candidates[:, None] - places  # (c, K + 1)
    # The best stake, for small ones, where the standard deviation of values is s.
    noise = variance * (away**2).sum(axis=1)
    spread = (max(rows, 1.0) * _NOISY_SPREADS**2 + noise[:, None]) / (1 - candidates[:, None]) ** 2
    stakes = np.sqrt(2 * wanted / (2 * wanted + spread))  # (c, s)
    odds = away / (1 - candidates[:, None])
    theta = np.log1p(stakes[:, :, None] * odds[:, None, :])  # (c, s, K + 1)
    ends = theta @ sums - variance / 2 * (theta**2).sum(axis=2)
    return np.asarray(logsumexp(ends + _NOISY_LOG_SHARES, axis=1))
