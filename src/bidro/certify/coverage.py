"""The probability that the true mixture is covered, given the clients' radii (Proposition 1).

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

from bidro.certify.radius import RadiusRule
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence
from bidro.core.sets import MixtureSet


@dataclass(frozen=True, eq=False)
class Coverage:
    """Radii (n,), the risks beta_i (n,) that they stand for, and both bounds of Proposition 1.

    Examples:
        >>> from bidro.certify import ExplicitRadius, coverage_probability
        >>> rule = ExplicitRadius(diameter=1.0, coordinates=1, p=1.0)
        >>> coverage_probability(rule, [500, 200], 0.05).probability
        0.9025
    """

    radii: Floats  # (n,) eps_i
    risks: Floats  # (n,) beta_i, the failure probabilities
    together: float  # prod (1 - beta_i)
    by_one: float  # 1 - prod beta-bar_i; 0 where delta is not known or a vertex is not admissible

    @property
    def probability(self) -> float:
        """1 - beta, the larger of the two: that the true mixture, if admissible, is covered."""
        return max(self.together, self.by_one)


def coverage_probability(
    rule: RadiusRule,
    sizes: Sequence[int],
    risks: ArrayLike,
    mixtures: MixtureSet | None = None,
    delta: float | None = None,
) -> Coverage:
    """Proposition 1: with which probability the balls hold the truth, for given failure probabilities beta_i.

    Args:
        rule: from rows and beta to a radius, such as `explicit_rule`'s.
        sizes: rows of each client.
        risks: beta_i (n,); one number is shared.
        mixtures: A, the full simplex by default.
        delta: the largest distance between two clients' true distributions. It must be known beforehand, not
            estimated from these samples: an estimate has to be widened by the radii, and then says nothing.

    Returns:
        Radii, failure probabilities, and both bounds of the proposition.

    Raises:
        BidroError: for failure probabilities outside (0, 1), or not one a client.

    Examples:
        >>> from bidro.certify import ExplicitRadius, coverage_probability
        >>> rule = ExplicitRadius(diameter=1.0, coordinates=1, p=1.0)
        >>> found = coverage_probability(rule, [500, 200], [0.05, 0.05])
        >>> round(found.together, 4), found.radii.round(2).tolist()
        (0.9025, [0.06, 0.1])
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
    """Failure probabilities beta_i of the clients' balls that leave a confidence to the whole.

    Args:
        confidence: prod (1 - beta_i).
        sizes: rows of each client.
        rule: from rows and beta to a radius.
        split: "equal", the same for all; "smallest largest", so that the largest radius is as small as it can
            be (small clients then get larger beta_i).

    Returns:
        beta_i (n,).

    Raises:
        BidroError: for a confidence outside (0, 1), or another word for `split`.

    Examples:
        >>> from bidro.certify import ExplicitRadius, failure_probabilities
        >>> rule = ExplicitRadius(diameter=1.0, coordinates=1, p=1.0)
        >>> failure_probabilities(0.9, [500, 200], rule, "smallest largest").round(3).tolist()
        [0.001, 0.099]
    """
    check_confidence(confidence)
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


def has_every_vertex(mixtures: MixtureSet | None, n: int) -> bool:
    """Whether each client alone is an admissible mixture."""
    if mixtures is None or mixtures.is_whole:
        return True
    return all(bool(mixtures.contains(np.eye(n)[i], 0.0)) for i in range(n))
