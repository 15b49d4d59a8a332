"""Sample sizes for a target: a radius, the width of an interval, or a largest cost of noise.

Under a privacy budget: for squared loss and one release of the second moments, with noise of standard
deviation sigma C^2 on the diagonal and sigma C^2 / sqrt(2) off it, summed over n sites of N rows. To first
order the noise moves the least-squares model b by (n N W)^-1 E (b, -1), where W are the mean moments of the
clipped rows and S those of the rows as they are, and the mean loss rises by

    sigma^2 C^4 ((1 + ||b||^2) tr(A) + b' A b) / (2 n N^2),     A = W^-1 S W^-1.

Where clipping scales all moments alike, by w^2 (the mean squared weight of rows), and without the last term,

    N >= (sigma C^2 / w^2) sqrt((1 + ||b||^2) tr(S^-1) / (2 share n MSE)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bidro.ambiguity import WassersteinBall
from bidro.certify.coverage import failure_probabilities
from bidro.certify.mean_bounds import fewest
from bidro.certify.out_of_sample import Interval, cloud_distances, out_of_sample_interval, widened
from bidro.certify.radius import ExplicitRadius, explicit_rule
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk

# Beyond this many rows a target counts as out of reach.
MOST_ROWS = 10**10


@dataclass(frozen=True)
class SampleSizePlan:
    """The rows that clients need to reach a target.

    Examples:
        >>> from bidro import plan_sample_size
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> plan_sample_size(paper_problem(simulate(0), None), radius=3.0).best
        'client-1'
    """

    target: str  # "radius" or "width"
    wanted: float  # of it
    now: float  # what it is
    radius: float  # the radius that every client then has at most; nan where the target cannot be reached
    rows: dict[str, int]  # that each client has
    needed: dict[str, int | None]  # in all; None where even 10^10 are too few
    best: str  # the client whose rows, doubled alone, help most
    then: float  # what the target is with these

    @property
    def advice(self) -> str:
        more = {name: (None if n is None else n - self.rows[name]) for name, n in self.needed.items()}
        reach = "The target is met already."
        if any(m is None for m in more.values()):
            reach = "Rows alone do not reach the target: " + (
                "tighten the weight set, narrow the support, or give a known delta."
                if self.target == "width"
                else "narrow the support or use fewer features."
            )
        elif any(m > 0 for m in more.values() if m is not None):
            most = max(more, key=lambda name: more[name] or 0)
            total = sum(m for m in more.values() if m is not None)
            reach = f"{total:,} more rows in all reach the target, {more[most]:,} of them at '{most}'."
        return (
            f"{reach} Of single clients, '{self.best}' helps most: twice its rows take the {self.target} "
            f"from {self.now:.4g} to {self.then:.4g}."
        )


def plan_sample_size(
    problem: Problem,
    x: ArrayLike | None = None,
    *,
    radius: float | None = None,
    width: float | None = None,
    confidence: float = 0.95,
    delta: float | None = None,
) -> SampleSizePlan:
    """How many rows it takes to reach a target: a largest explicit `radius`, or a `width` of the interval.

    The width is the sampling term plus the heterogeneity term, before the lower end is cut at 0. Rows are for
    the same risk beta_i at every client and the same slope; new rows that change the worst mixture or the
    distances between the clients change the answer.

    Args:
        problem: with rows and a declared support.
        x: the model (d,), for a width.
        radius: the largest that is wanted; or
        width: of the interval of `x`.
        confidence: of the interval.
        delta: as in `out_of_sample_interval`.

    Returns:
        Rows that each client would need, and whose rows help most.

    Raises:
        BidroError: unless exactly one target is given, above 0.

    Examples:
        >>> from bidro import plan_sample_size
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = plan_sample_size(paper_problem(simulate(0), None), radius=3.0)
        >>> found.now > found.wanted, found.target
        (True, 'radius')
    """
    check_plan(radius, width, confidence, delta)
    rule = explicit_rule(problem.federation, problem.transport, problem.loss.labels)
    sizes, names = problem.federation.sizes, problem.federation.names
    risks = failure_probabilities(confidence, sizes, rule)
    beta = float(risks[0])
    if radius is not None:
        radii = [rule.radius(size, beta) for size in sizes]
        largest = int(np.argmax(radii))
        others = radii[:largest] + radii[largest + 1 :]
        then = max([rule.radius(2 * sizes[largest], beta), *others])
        return _plan(rule, problem, "radius", radius, max(radii), radius, beta, names[largest], then)
    if x is None:
        raise BidroError("A width is that of a model's interval; give the model.")
    assert width is not None
    distances = cloud_distances(problem) if delta is None else None
    found = out_of_sample_interval(problem, x, confidence, delta, distances=distances)
    widths = _Widths(problem, found, rule, distances, 0.0 if delta is None else delta)
    best, then = widths.best_single(x, beta)
    now, common = found.sampling + found.heterogeneity, widths.common_radius(width)
    return _plan(rule, problem, "width", width, now, common, beta, names[best], then)


def check_plan(radius: float | None, width: float | None, confidence: float, delta: float | None) -> None:
    """Raise BidroError for a target that `plan_sample_size` does not have."""
    if (radius is None) == (width is None):
        raise BidroError("Give one target: radius=... or width=....")
    wanted = radius if radius is not None else width
    assert wanted is not None
    if not 0 < wanted < math.inf:
        raise BidroError(f"The target must be a positive number; got {wanted}.")
    if delta is not None and not 0 <= delta < math.inf:
        raise BidroError(f"delta must be a number of at least 0; got {delta}.")
    check_confidence(confidence)


def rows_for_radius(rule: ExplicitRadius, radius: float, beta: float) -> int | None:
    """The fewest rows with which the radius is at most this; None where even 10^10 are too few."""
    if not radius > 0 or rule.radius(MOST_ROWS, beta) > radius:
        return None
    return fewest(lambda rows: rule.radius(rows, beta) > radius)


def _plan(
    rule: ExplicitRadius,
    problem: Problem,
    target: str,
    wanted: float,
    now: float,
    radius: float,
    beta: float,
    best: str,
    then: float,
) -> SampleSizePlan:
    rows = dict(zip(problem.federation.names, problem.federation.sizes, strict=True))
    fewest = rows_for_radius(rule, radius, beta)
    needed = {name: None if fewest is None else max(size, fewest) for name, size in rows.items()}
    return SampleSizePlan(target, wanted, now, radius, rows, needed, best, then)


@dataclass(frozen=True, eq=False)
class _Widths:
    """The width of an interval as the radii change, with the slope and the clouds as they are."""

    problem: Problem
    found: Interval
    rule: ExplicitRadius
    distances: Floats | None  # None where delta is known
    delta: float

    def width(self, alpha: Floats, radii: Floats) -> float:
        apart = self.delta
        if self.distances is not None:
            apart = widened(self.distances, radii, self.rule.diameter)
        share = self.problem.mixture_set.l1_diameter() / 2
        return self.found.lipschitz * (2 * float(alpha @ radii) + apart * share)

    def common_radius(self, width: float) -> float:
        """The radius that, shared by all clients, makes the interval this wide; nan where none does."""

        def excess(radius: float) -> float:
            return self.width(self.found.alpha, np.full(self.problem.n, radius)) - width

        if excess(0.0) >= 0:
            return math.nan
        if excess(self.rule.diameter) <= 0:
            return self.rule.diameter
        return float(brentq(excess, 0.0, self.rule.diameter, xtol=1e-12 * self.rule.diameter))

    def best_single(self, x: ArrayLike, beta: float) -> tuple[int, float]:
        """(the client whose rows, doubled alone, narrow the interval most, the width then)."""
        fewer = np.array([self.rule.radius(2 * size, beta) for size in self.problem.federation.sizes])
        balls = replace(self.problem, ambiguity=WassersteinBall(fewer))
        better = np.asarray(robust_risk(balls, x, curvature=False).value)
        widths = []
        for i in range(self.problem.n):
            radii, risks = self.found.radii.copy(), self.found.risks.copy()
            radii[i], risks[i] = fewer[i], better[i]
            alpha = np.asarray(self.problem.mixture_set.linear_maximum(risks)[1])
            widths.append(self.width(alpha, radii))
        best = int(np.argmin(widths))
        return best, widths[best]


class NoiseCost(NamedTuple):
    """By how much the noise of a privacy budget raises the mean loss, at any number of rows."""

    cost: float  # the mean loss rises by cost / N^2 with N rows a site
    loss: float  # mean squared error of least squares without noise, in the same units
    sites: int

    def excess(self, rows: float) -> float:
        """By which share the mean loss rises, to first order, with so many rows a site."""
        return self.cost / rows**2 / self.loss

    def rows(self, share: float) -> int:
        """The rows a site from which it rises by no more than this share; right to a factor of two."""
        if not 0 < share < math.inf:
            raise BidroError(f"The wanted excess must be a positive share of the loss; got {share}.")
        return math.ceil(math.sqrt(self.cost / (share * self.loss)))


def noise_cost(
    z: Floats, sites: int, rho: Fraction, clip: float | None = None, rows_per_person: int = 1
) -> NoiseCost:
    """From rows z = (features, 1, target) (N, m) in public units that stand for those of the sites.

    `rho` is what the release of moments costs (`bidro.privacy.accounting.rho_of`), `clip` the norm C to which
    rows are scaled, C^2 = m / 2 unless it is given. Raises BidroError for rows that least squares fits
    exactly or that do not determine it.
    """
    norm = math.sqrt(z.shape[1] / 2) if clip is None else clip
    weights = np.minimum(1.0, norm / np.maximum(np.linalg.norm(z, axis=1), 1e-300))
    clipped = z * weights[:, None]
    whole, used = z.T @ z / len(z), clipped.T @ clipped / len(z)
    second, inner = whole[:-1, :-1], used[:-1, :-1]
    if np.linalg.matrix_rank(inner) < len(inner):
        raise BidroError(
            "The rows do not determine a model: some features are constant or follow from others; leave "
            "these out, or give more rows."
        )
    model = np.linalg.solve(second, whole[:-1, -1])
    loss = float(whole[-1, -1] - model @ whole[:-1, -1])
    if loss <= 1e-12 * whole[-1, -1]:
        raise BidroError("The features determine the target exactly: no noise is a small share of no loss.")
    spread = np.linalg.solve(inner, np.linalg.solve(inner, second).T)
    variance = rows_per_person**2 * norm**4 / (2 * float(rho))
    size = (1 + float(model @ model)) * float(np.trace(spread)) + float(model @ spread @ model)
    return NoiseCost(variance * size / (2 * sites), loss, sites)
