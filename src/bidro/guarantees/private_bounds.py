"""An upper bound of a mean from noisy sums, true for the rows and the noise together.

Values v in [0, 1] are known by the sums S_k over rows of the Bernstein polynomials B_k(v), k = 0, ..., K,
each with Gaussian noise of variance sigma^2. A gambler who bets against the mean being mu or more, with
theta_k = ln(1 + lambda (mu - k / K)) and 0 <= lambda < 1 / (1 - mu), has in the end

    exp(sum_k theta_k S_k - sigma^2 sum_k theta_k^2 / 2).

Of one row sum_k theta_k B_k(v) <= ln(1 + lambda (mu - v)), since the B_k(v) are weights with sum 1 and mean
v of k / K, and ln is concave; and the noise has E exp(theta N) <= exp(theta^2 sigma^2 / 2). So where the mean
is mu or more, what the gambler has is 1 or less in expectation, and 1 / beta or more with probability at most
beta. Noise is part of the wager: the bound needs no number of rows and no exact count.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_softmax, logsumexp

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.privacy.mechanisms import Noisy

# The degree that is used unless another is agreed: more of it means less loss by smoothing and more noise.
# Measured on squared errors at epsilon = 1, of 60 to 1,000 rows (tests/guarantees/test_private_bounds.py).
DEGREE = 4

# Candidates for the mean, from the largest down: fixed beforehand, so that no more than the first true one
# need be ruled out wrongly for the bound to be false. In parts, of which few are needed.
_CANDIDATES = np.split(np.geomspace(1.0, 1e-5, 2501)[1:], 25)
# The standard deviations that stakes are made for, and how the capital is split over them.
_SPREADS = np.geomspace(0.7, 0.02, 8)
_LOG_SHARES = log_softmax(-0.5 * (np.log(_SPREADS / 0.2) / 1.2) ** 2)
# What is added to a bound for the rounding of logarithms: far above it, far below what anyone reads.
_PRECISION = 1e-9


def mean_bound(noisy: Noisy, beta: float, rows: float) -> float:
    """The mean of independent values in [0, 1] is at most this, which fails with probability at most `beta`.

    Parameters
    ----------
    noisy : sums of Bernstein polynomials, from `bidro.privacy.mechanisms.bernstein`.
    rows : about how many values there are, known from elsewhere than these sums and their noise: stakes are
        made for it. However wrong it is, the bound is true.

    Returns
    -------
    A number up to 1.0, which says nothing.
    """
    if not 0 < beta < 1:
        raise BidroError(f"The failure probability must lie strictly between 0 and 1; got {beta}.")
    if len(set(noisy.scale.variance)) != 1:
        raise ValueError("the noise of every sum must have the same variance")
    wanted, bound = math.log(1 / beta), 1.0
    for candidates in _CANDIDATES:
        ended = log_capital(noisy, candidates, wanted, rows)
        kept = np.flatnonzero(ended < wanted + _PRECISION)
        if len(kept):
            return bound if kept[0] == 0 else float(candidates[kept[0] - 1])
        bound = float(candidates[-1])
    return bound


def log_capital(noisy: Noisy, candidates: Floats, wanted: float, rows: float) -> Floats:
    """(c,) the logarithm of what the gambler has in the end against each candidate (c,)."""
    sums, variance = noisy.sums, float(noisy.scale.sigma[0]) ** 2
    places = np.arange(len(sums)) / (len(sums) - 1)
    away = candidates[:, None] - places  # (c, K + 1)
    # The best stake, for small ones, where the standard deviation of values is s.
    noise = variance * (away**2).sum(axis=1)
    spread = (max(rows, 1.0) * _SPREADS**2 + noise[:, None]) / (1 - candidates[:, None]) ** 2
    stakes = np.sqrt(2 * wanted / (2 * wanted + spread))  # (c, s)
    odds = away / (1 - candidates[:, None])
    theta = np.log1p(stakes[:, :, None] * odds[:, None, :])  # (c, s, K + 1)
    ends = theta @ sums - variance / 2 * (theta**2).sum(axis=2)
    return np.asarray(logsumexp(ends + _LOG_SHARES, axis=1))
