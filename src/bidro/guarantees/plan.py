"""How many more rows each client needs for a wanted radius or width, and which single client helps most."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bidro.arrays import Floats
from bidro.client import WassersteinBall
from bidro.errors import BidroError
from bidro.guarantees.asked import check_confidence
from bidro.guarantees.coverage import failure_probabilities
from bidro.guarantees.heterogeneity import cloud_distances, widened
from bidro.guarantees.out_of_sample import Interval, l1_diameter, out_of_sample_interval
from bidro.guarantees.radius import ExplicitRadius, explicit_rule
from bidro.guarantees.robust import robust_risk
from bidro.problem import Problem

# Beyond this many rows a target counts as out of reach.
MOST_ROWS = 10**10


@dataclass(frozen=True)
class Plan:
    """What it takes to reach a target.

    Examples:
        >>> from bidro import plan
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> plan(paper_problem(simulate(0), None), radius=3.0).best
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


def plan(
    problem: Problem,
    x: ArrayLike | None = None,
    *,
    radius: float | None = None,
    width: float | None = None,
    confidence: float = 0.95,
    delta: float | None = None,
) -> Plan:
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
        >>> from bidro import plan
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = plan(paper_problem(simulate(0), None), radius=3.0)
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
    """Raise BidroError for what `plan` cannot be asked."""
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
    low, high = 0, 1
    while rule.radius(high, beta) > radius:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rule.radius(middle, beta) > radius else (low, middle)
    return high


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
) -> Plan:
    rows = dict(zip(problem.federation.names, problem.federation.sizes, strict=True))
    fewest = rows_for_radius(rule, radius, beta)
    needed = {name: None if fewest is None else max(size, fewest) for name, size in rows.items()}
    return Plan(target, wanted, now, radius, rows, needed, best, then)


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
        share = l1_diameter(self.problem.mixture_set) / 2
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
            alpha = np.asarray(self.problem.mixture_set.linear_maximum(jnp.asarray(risks))[1])
            widths.append(self.width(alpha, radii))
        best = int(np.argmin(widths))
        return best, widths[best]
