"""From the clients' radii to the whole: with which probability the true mixture is covered (Proposition 1).

Two bounds of the probability that the true mixture lies in the global ambiguity set, of which the larger
counts: prod (1 - beta_i), every client's ball holding its own distribution; and, where all distributions are
within a known delta of one another and every single client is an admissible mixture, 1 - prod beta-bar_i, one
ball holding all of them, where beta-bar_i is the risk at which client i's radius would be eps_i - delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.radius import RadiusRule
from bidro.sets import CappedSimplex, L1SimplexBall, Simplex


@dataclass(frozen=True, eq=False)
class Coverage:
    """Radii (n,), the risks beta_i (n,) that they stand for, and both bounds of Proposition 1."""

    radii: Floats
    risks: Floats
    together: float  # prod (1 - beta_i)
    by_one: float  # 1 - prod beta-bar_i; 0 where delta is not known or a vertex is not admissible

    @property
    def probability(self) -> float:
        """1 - beta, the larger of the two: that the true mixture, if admissible, is covered."""
        return max(self.together, self.by_one)


def coverage(
    rule: RadiusRule,
    sizes: Sequence[int],
    risks: ArrayLike,
    mixtures: Simplex | CappedSimplex | L1SimplexBall | None = None,
    delta: float | None = None,
) -> Coverage:
    """Proposition 1 for given beta_i (one number is shared).

    `delta` must be known beforehand, not estimated from these samples: an estimate has to be widened by the
    radii, and then says nothing. `mixtures` is A, the full simplex by default.
    """
    beta = np.broadcast_to(np.asarray(risks, float), (len(sizes),)).copy()
    if np.any(~(beta > 0)) or np.any(~(beta < 1)):
        raise BidroError(f"Every risk beta must lie strictly between 0 and 1; got {beta}.")
    radii = np.array([rule.radius(int(n), float(b)) for n, b in zip(sizes, beta, strict=True)])
    together = float(np.prod(1 - beta))
    by_one = 0.0
    if delta is not None:
        if not 0 <= delta < math.inf:
            raise BidroError(f"The heterogeneity delta must be finite and not negative; got {delta}.")
        if has_every_vertex(mixtures, len(sizes)):
            bars = [
                rule.risk(int(n), float(e) - delta) if e > delta else 1.0
                for n, e in zip(sizes, radii, strict=True)
            ]
            by_one = 1 - float(np.prod(bars))
    return Coverage(radii, beta, together, by_one)


def failure_probabilities(
    confidence: float,
    sizes: Sequence[int],
    rule: RadiusRule,
    split: Literal["equal", "smallest largest"] = "equal",
) -> Floats:
    """beta_i (n,) with prod (1 - beta_i) = confidence.

    "equal": the same for all. "smallest largest": so that the largest radius is as small as it can be; small
    clients then get larger risks.
    """
    if not 0 < confidence < 1:
        raise BidroError(f"The confidence must lie strictly between 0 and 1; got {confidence}.")
    n = len(sizes)
    equal = np.full(n, -math.expm1(math.log(confidence) / n))
    if split == "equal":
        return equal
    if split != "smallest largest":
        raise BidroError(f"A split must be 'equal' or 'smallest largest'; got {split!r}.")

    def spent(radius: float) -> float:
        """-log of the confidence with which all balls of this radius hold."""
        return -sum(math.log1p(-min(rule.risk(int(s), radius), 1 - 1e-16)) for s in sizes)

    radii = [rule.radius(int(s), float(b)) for s, b in zip(sizes, equal, strict=True)]
    high, low = max(radii), 0.0
    target = -math.log(confidence)
    if spent(high) >= target:
        return equal
    common = float(brentq(lambda e: spent(e) - target, low, high, xtol=1e-15 * high, rtol=8.9e-16))
    # Up to rounding the risks must not spend more than there is.
    least = 1e-300
    risks = np.array([max(rule.risk(int(s), common), least) for s in sizes])
    over = -np.log1p(-risks).sum() / target
    return np.asarray(risks if over <= 1 else -np.expm1(np.log1p(-risks) / over))


def has_every_vertex(mixtures: Simplex | CappedSimplex | L1SimplexBall | None, n: int) -> bool:
    """Whether each client alone is an admissible mixture."""
    if mixtures is None or isinstance(mixtures, Simplex):
        return True
    return all(bool(mixtures.contains(np.eye(n)[i], 0.0)) for i in range(n))
