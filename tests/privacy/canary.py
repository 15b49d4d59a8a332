"""What an attacker who knows all but one row learns: how well it tells runs with that row from runs without.

An attacker's score of a run is larger where the row, the canary, was probably in it. Noise that costs rho
lets no score tell the two apart better than two Gaussian laws of variance 1 whose means are sqrt(2 rho) apart
(the releases are Gaussian, each chosen by those before: Dong, Roth and Su, 2022): the area under the curve is
at most Phi(sqrt(rho)). An audit runs a mechanism many times with and without the canary and turns the area
that is found, less its sampling error, into the rho that the noise at least costs, and that into epsilon.
Noise that is smaller than what was charged gives more than the budget.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from bidro.privacy.accounting import epsilon_of


class Audit(NamedTuple):
    area: float  # under the curve of the attacker's scores: 0.5 learns nothing
    error: float  # its standard error
    epsilon: float  # no less than this was spent, at the confidence asked for
    by_counts: float  # the same without that the noise is Gaussian: from shares of runs told right


def audit(score: Callable[[bool, int], float], runs: int, delta: float, confidence: float = 0.999) -> Audit:
    """From `score(present, seed)`, a run of the whole mechanism with or without the canary, each with a seed
    of its own, and what the attacker makes of all that was sent."""
    present = np.array([score(True, 2 * run) for run in range(runs)])
    absent = np.array([score(False, 2 * run + 1) for run in range(runs)])
    area, error = area_under_curve(present, absent)
    least = max(area - float(ndtri(confidence)) * error, 0.5)
    rho = Fraction(float(ndtri(min(least, 1 - 1e-9)))) ** 2
    return Audit(area, error, epsilon_of(rho, delta), least_epsilon(present, absent, delta, confidence))


def largest_area(rho: Fraction) -> float:
    """Phi(sqrt(rho)): the largest area under the curve at this cost."""
    return float(ndtr(math.sqrt(rho)))


def area_under_curve(present, absent) -> tuple[float, float]:
    """(the share of pairs in which the score with the canary is larger, its standard error): ties count one
    half; the error by DeLong's variance of both samples' placements."""
    larger = (present[:, None] > absent).astype(float) + 0.5 * (present[:, None] == absent)
    placed, others = larger.mean(axis=1), larger.mean(axis=0)
    variance = placed.var(ddof=1) / len(present) + others.var(ddof=1) / len(absent)
    return float(larger.mean()), math.sqrt(variance)


def least_epsilon(present, absent, delta: float, confidence: float) -> float:
    """A lower bound of epsilon from shares of runs above a threshold, whatever the law of the scores: by
    definition share(with) <= e^epsilon share(without) + delta, and the same for what is not above, with the
    two exchanged. The threshold is chosen on one half of the runs; Clopper and Pearson's bounds are of the
    other half."""
    half = len(present) // 2
    found = 0.0
    for one, other in ((present, absent), (-absent, -present)):
        thresholds = np.quantile(np.concatenate([one[:half], other[:half]]), np.linspace(0.02, 0.98, 97))
        shares = [
            (np.mean(one[:half] > t) + 1 / half, np.mean(other[:half] > t) + 1 / half) for t in thresholds
        ]
        best = thresholds[int(np.argmax([a / b for a, b in shares]))]
        level, n = (1 - confidence) / 4, len(one) - half
        hits, alarms = int(np.sum(one[half:] > best)), int(np.sum(other[half:] > best))
        low = float(beta.ppf(level, hits, n - hits + 1)) if hits else 0.0
        high = float(beta.ppf(1 - level, alarms + 1, n - alarms)) if alarms < n else 1.0
        if low > delta:
            found = max(found, math.log((low - delta) / high))
    return found


def log_likelihood_ratio(values, with_canary, without, variance) -> float:
    """The best score there is of one release: how much likelier its values are with the canary, from what
    they would be without noise in either case, all in steps, and the noise's variance of each."""
    away = [
        (Fraction(int(v) - int(b)) ** 2 - Fraction(int(v) - int(a)) ** 2) / (2 * s)
        for v, a, b, s in zip(values, with_canary, without, variance, strict=True)
    ]
    return float(sum(away, Fraction(0)))
