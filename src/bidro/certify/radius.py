"""How far a client's true distribution can lie from its samples: radii with a stated confidence (Lemma 1).

`ExplicitRadius` needs no unknown constants. For samples on a set of diameter D with m coordinates,

    eps = D min{1, [A + sqrt(ln(1/beta) / (2 N))]^(1/p)},
    A = min over integers k >= 2 of (k^p - 1) sum over l >= 1 of k^(-p l) min(1, sqrt((k^(m l) - 1) / N) / 2),

and in one dimension, with the sharper inequality of Dvoretzky, Kiefer and Wolfowitz, eps = D [sqrt(ln(2/beta)
/ (2 N))]^(1/p). That is for values with an order: where the one coordinate is a label of K classes, W_p^p /
D^p is the total variation, at most the lesser of sqrt(ln((2^K - 2) / beta) / (2 N)) and sqrt((K - 1) / N) / 2
+ sqrt(ln(1/beta) / (2 N)). Why: docs/guarantees.md. `PaperRadius` is the paper's formula (eq. radius), for
constants c1 and c2 that the user must know. Both are rules with an inverse: which beta a given radius stands
for.

`bootstrap_radii` and `split_radii` are read off the samples: of a useful size where the explicit ones are
not, and without their promise. Each says what it promises. Distances run over the coordinates that can move;
clouds of more than 1,000 rows are thinned to a random 1,000 of them, which makes radii larger, not smaller.

References: Nicolas Fournier and Arnaud Guillin. On the rate of convergence in Wasserstein distance of the
empirical measure. Probability Theory and Related Fields 162, 2015. Pascal Massart. The Tight Constant in the
Dvoretzky-Kiefer-Wolfowitz Inequality. Annals of Probability 18, 1990. Tsachy Weissman, Erik Ordentlich,
Gadiel Seroussi, Sergio Verdu and Marcelo Weinberger. Inequalities for the L1 Deviation of the Empirical
Distribution. Hewlett-Packard Labs, 2003.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import brentq

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport, wasserstein_distance

_MOST_ROWS = 1000

OneClient = Callable[[Floats, Transport, np.random.Generator], float]


class RadiusRule(Protocol):
    """eps as a function of the number of rows and the risk beta that a radius may fail."""

    def radius(self, rows: int, beta: float) -> float:
        """A radius that holds with probability at least 1 - beta over `rows` independent samples."""

    def risk(self, rows: int, radius: float) -> float:
        """The smallest beta for which `radius(rows, beta)` is at most `radius`; 1 where there is none."""


@dataclass(frozen=True)
class ExplicitRadius:
    """A radius whose promise needs no unknown constant: see the module's docstring.

    Args:
        diameter: D, of the support in the metric of the transport cost.
        coordinates: m, the label included.
        p: order of the cost.
        finest: the least k; 2, or the number of classes of a discrete label, so that cells of the first level
            hold one label each.

    Raises:
        BidroError: for a diameter, number of coordinates or order that makes no sense.

    Examples:
        >>> from bidro.certify import ExplicitRadius
        >>> rule = ExplicitRadius(diameter=1.0, coordinates=1, p=1.0)
        >>> rule.radius(1000, 0.05) < rule.radius(100, 0.05), round(rule.risk(100, rule.radius(100, 0.05)), 3)
        (True, 0.05)
    """

    diameter: float
    coordinates: int
    p: float
    finest: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.diameter < math.inf:
            raise BidroError(
                f"A radius needs a bounded support; its diameter here is {self.diameter}. Declare a box."
            )
        _check_order(self.coordinates, self.p)

    def radius(self, rows: int, beta: float) -> float:
        _check(rows, beta)
        shares = [
            mean + math.sqrt((math.log(times) - math.log(beta)) / (2 * rows))
            for mean, times in self._bounds(rows)
        ]
        return self.diameter * min(1.0, *shares) ** (1 / self.p)

    def risk(self, rows: int, radius: float) -> float:
        _check(rows, 0.5)
        if radius >= self.diameter:
            return 0.0
        share = max(radius, 0.0) ** self.p / self.diameter**self.p
        risks = [
            math.exp(min(math.log(times) - 2 * rows * (share - mean) ** 2, 0.0))
            for mean, times in self._bounds(rows)
            if share > mean
        ]
        return min(1.0, *risks) if risks else 1.0

    def _bounds(self, rows: int) -> list[tuple[float, int]]:
        """Pairs (a, c): W_p^p / D^p exceeds a + t with probability at most c exp(-2 rows t^2), whatever t is.

        One coordinate with an order: by the distribution functions. One that is a label: by the shares of
        all sets of classes, of which there are as many for two classes as an interval has sides; and by the
        mean of the total variation.
        """
        if self.coordinates > 1:
            return [(mean_bound(rows, self.coordinates, self.p, self.finest), 1)]
        sets = (0.0, 2**self.finest - 2)
        return [sets] if self.finest == 2 else [sets, (math.sqrt((self.finest - 1) / rows) / 2, 1)]


def mean_bound(rows: int, m: int, p: float, finest: int = 2) -> float:
    """A, over all k for which it can be below 1."""
    # From k^(m l) >= 4 N + 1 on every term is k^(-p l): from the first level on, A is 1.
    largest = max(finest, int((4 * rows + 1) ** (1 / m)) + 1)
    k = np.arange(finest, largest + 1, dtype=float)
    total, left = np.zeros_like(k), np.ones_like(k, dtype=bool)
    level = 0
    while left.any():
        level += 1
        cells = k ** (m * level)
        full = left & (cells >= 4 * rows + 1)
        # The rest of the series, from this level on.
        total[full] += k[full] ** (-p * level) / (1 - k[full] ** -p)
        left &= ~full
        total[left] += k[left] ** (-p * level) * np.sqrt((cells[left] - 1) / rows) / 2
    return float(min(1.0, np.min((k**p - 1) * total)))


@dataclass(frozen=True)
class PaperRadius:
    """eq. radius, with R half the diameter of the support in the infinity norm.

    p != m/2: R (ln(c1 / beta) / (c2 N))^(1 / max(2 p, m)). p = m/2: R [h^-1(ln(c1 / beta) / (c2 N))]^(1/p)
    with h(x) = x^2 / ln(2 + 1/x)^2. c1 and c2 depend on p and m only, and are not known in general.

    Raises:
        BidroError: for a support without bounds, or numbers that make no sense.

    Examples:
        >>> from bidro.certify import PaperRadius
        >>> round(PaperRadius(half_width=1.0, coordinates=3, p=1.0, c1=2.0, c2=1.0).radius(1000, 0.05), 3)
        0.155
    """

    half_width: float  # R
    coordinates: int  # m
    p: float  # order of the cost
    c1: float  # the paper's constant
    c2: float  # likewise

    def __post_init__(self) -> None:
        if not 0 <= self.half_width < math.inf:
            raise BidroError("The paper's radius needs a bounded support; declare a box.")
        _check_order(self.coordinates, self.p)
        if not (self.c1 > 0 and self.c2 > 0):
            raise BidroError(f"The constants c1 and c2 must be positive; got {self.c1} and {self.c2}.")

    def radius(self, rows: int, beta: float) -> float:
        _check(rows, beta)
        level = max(math.log(self.c1 / beta), 0.0) / (self.c2 * rows)
        if self.p == self.coordinates / 2:
            return self.half_width * inverse_h(level) ** (1 / self.p)
        return self.half_width * level ** (1 / max(2 * self.p, self.coordinates))

    def risk(self, rows: int, radius: float) -> float:
        _check(rows, 0.5)
        if radius <= 0 or self.half_width == 0:
            return 1.0 if radius <= 0 else 0.0
        share = radius / self.half_width
        if self.p == self.coordinates / 2:
            level = h(share**self.p)
        else:
            level = share ** max(2 * self.p, self.coordinates)
        return min(1.0, self.c1 * math.exp(-self.c2 * rows * level))


def h(x: float) -> float:
    """x^2 / ln(2 + 1/x)^2, increasing on x > 0."""
    return x**2 / math.log(2 + 1 / x) ** 2


def inverse_h(y: float) -> float:
    """The x > 0 with h(x) = y; 0 for y = 0."""
    if y == 0:
        return 0.0
    high = 1.0
    while h(high) < y:
        high *= 2
    low = high
    while h(low) > y:
        low /= 2
    return float(brentq(lambda x: h(x) - y, low, high, xtol=1e-300, rtol=8.9e-16)) if low < high else low


def explicit_rule(
    federation: Federation, transport: Transport, labels: Sequence[float] | None = None
) -> ExplicitRadius:
    """The explicit radius for a declared box and the metric of the transport cost.

    Args:
        federation: with a declared support.
        transport: in whose metric the radius is.
        labels: those that a discrete label can take, `loss.labels`; where they are not given, every whole
            number in the box counts as one.

    Returns:
        The rule from rows and a failure probability to a radius.

    Raises:
        BidroError: where the true distribution lies outside every ball, or nothing is declared.

    Examples:
        >>> from bidro.certify import explicit_rule
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), None)
        >>> explicit_rule(problem.federation, problem.transport).coordinates
        4
    """
    return ExplicitRadius(
        metric_diameter(federation, transport),
        federation.m,
        transport.p,
        max(2, _classes(federation, transport, labels)),
    )


def paper_rule(federation: Federation, transport: Transport, c1: float, c2: float) -> PaperRadius:
    """The paper's radius (eq. radius) for a declared box, in the scaled coordinates of the transport cost.

    Args:
        federation: with a declared support.
        transport: in whose metric the radius is.
        c1: the paper's constant, which is not known in general.
        c2: likewise.

    Returns:
        The rule from rows and a failure probability to a radius.

    Raises:
        BidroError: where no box is declared, or a constant is not above 0.

    Examples:
        >>> from bidro.certify import paper_rule
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), None)
        >>> paper_rule(problem.federation, problem.transport, c1=2.0, c2=1.0).half_width
        500.0
    """
    metric_diameter(federation, transport)
    support = federation.support
    assert isinstance(support, Box)
    widths = np.asarray(support.upper - support.lower) * np.asarray(transport.scale)
    if transport.discrete_label:
        widths[-1] = transport.label_cost
    return PaperRadius(float(widths.max()) / 2, federation.m, transport.p, c1, c2)


def metric_diameter(federation: Federation, transport: Transport) -> float:
    """D: the diameter of the declared box in the metric of the transport cost.

    Raises BidroError for a support that is unbounded or was read off the data, and for a metric in which a
    coordinate cannot move: samples almost surely never match the true distribution there.
    """
    obstacle = coverage_obstacle(federation, transport)
    if obstacle is not None:
        raise BidroError(f"No radius covers the true distribution here: {obstacle}")
    support = federation.support
    assert isinstance(support, Box)
    widths = np.asarray(support.upper - support.lower)
    if not transport.discrete_label:
        return float(np.linalg.norm(widths * np.asarray(transport.scale)))
    features = float(np.linalg.norm((widths * np.asarray(transport.scale))[:-1]))
    return float((features**transport.p + transport.label_cost**transport.p) ** (1 / transport.p))


def coverage_obstacle(federation: Federation, transport: Transport) -> str | None:
    """Why no radius can promise coverage; None where one can."""
    if federation.support_from_data:
        return "the support was read off the data; declare a box before seeing them."
    if not isinstance(federation.support, Box):
        return (
            "it needs bounds of every feature and of the target, declared before anybody saw the rows "
            "(--support)."
        )
    if federation.people is not None:
        return "rows of one person are not independent draws, which coverage needs."
    movable = np.isfinite(np.asarray(transport.scale))
    if transport.discrete_label:
        movable[-1] = math.isfinite(transport.label_cost)
    if not movable.all():
        fixed = federation.columns[int(np.argmin(movable))]
        return (
            f"'{fixed}' cannot move, so the ball almost surely misses the true distribution; give it a "
            "finite cost. (As robustness to shift such a ball is fine, without coverage.)"
        )
    return None


def _classes(federation: Federation, transport: Transport, labels: Sequence[float] | None) -> int:
    """How many labels a discrete label can take, by the box where they are not given; 0 for a continuous
    target."""
    if not transport.discrete_label:
        return 0
    if labels is not None:
        return len(labels)
    support = federation.support
    assert isinstance(support, Box)
    return round(float(support.upper[-1] - support.lower[-1])) + 1


def _check_order(coordinates: int, p: float) -> None:
    if coordinates < 1 or not 1 <= p < math.inf:
        raise BidroError(f"A radius needs at least one coordinate and p >= 1; got {coordinates} and p = {p}.")


def _check(rows: int, beta: float) -> None:
    if rows < 1 or rows != int(rows):
        raise BidroError(f"A radius needs a whole number of rows, at least one; got {rows}.")
    if not 0 < beta < 1:
        raise BidroError(f"The risk beta must lie strictly between 0 and 1; got {beta}.")


@dataclass(frozen=True, eq=False)
class EmpiricalRadii:
    """Radii read off the samples, and what they do and do not promise.

    Examples:
        >>> from bidro.certify import split_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> split_radii(paper_problem(simulate(0), None), repetitions=2).radii.shape
        (5,)
    """

    radii: Floats  # (n,)
    promise: str  # in words


def bootstrap_radii(
    problem: Problem, confidence: float = 0.95, repetitions: int = 100, seed: int = 0
) -> EmpiricalRadii:
    """For each client the `confidence` quantile of W_p(P_hat*, P_hat) over resamples P_hat* of its rows.

    Needs the extra `distances`.

    Args:
        problem: whose rows and transport cost are used.
        confidence: of the quantile.
        repetitions: resamples of each client.
        seed: of the resamples.

    Returns:
        The radii, and what they promise.

    Raises:
        BidroError: for a confidence outside (0, 1) or fewer than 2 repetitions.

    Examples:
        >>> from bidro.certify import bootstrap_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> bool((bootstrap_radii(paper_problem(simulate(0), None), repetitions=3).radii > 0).all())
        True
    """
    check_confidence(confidence)
    if repetitions < 2:
        raise BidroError(f"A bootstrap needs at least 2 repetitions; got {repetitions}.")

    def one(rows: Floats, transport: Transport, rng: np.random.Generator) -> float:
        cloud = _some(rows, _MOST_ROWS, rng)
        size = len(cloud)
        found = []
        for _ in range(repetitions):
            counts = np.bincount(rng.integers(size, size=size), minlength=size)
            drawn = counts > 0
            found.append(wasserstein_distance(cloud[drawn], cloud, transport, counts[drawn] / size))
        return float(np.quantile(found, confidence, method="higher"))

    return EmpiricalRadii(
        _each_client(problem, one, seed),
        f"The {confidence:g} quantile of the distance between resampled and observed rows of each client. No "
        "promise for a finite sample: resamples reuse the observed points, and in many dimensions the true "
        f"distribution is farther away.{_what_stays(problem)}",
    )


def split_radii(problem: Problem, repetitions: int = 20, seed: int = 0) -> EmpiricalRadii:
    """For each client the root of the mean of W_p^p between two random halves of its rows.

    Needs the extra `distances`.

    Args:
        problem: whose rows and transport cost are used.
        repetitions: random halvings of each client.
        seed: of the halvings.

    Returns:
        The radii, and what they promise.

    Raises:
        BidroError: for no repetition, or a client with a single row.

    Examples:
        >>> from bidro.certify import split_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> bool((split_radii(paper_problem(simulate(0), None), repetitions=3).radii > 0).all())
        True
    """
    if repetitions < 1:
        raise BidroError(f"A split estimate needs at least one repetition; got {repetitions}.")
    p = problem.transport.p

    def one(rows: Floats, transport: Transport, rng: np.random.Generator) -> float:
        total = 0.0
        for _ in range(repetitions):
            halves = _some(rows, 2 * _MOST_ROWS, rng)
            middle = len(halves) // 2
            total += wasserstein_distance(halves[:middle], halves[middle : 2 * middle], transport) ** p
        return float((total / repetitions) ** (1 / p))

    return EmpiricalRadii(
        _each_client(problem, one, seed),
        "From the distance between two halves of each client's rows. Its p-th power is in the mean at least "
        "that of the distance between all rows and the true distribution (W_p^p is convex); for a single "
        f"sample it promises nothing.{_what_stays(problem)}",
    )


def _each_client(problem: Problem, one: OneClient, seed: int) -> Floats:
    if problem.federation.people is not None:
        raise BidroError(
            "A radius read off the rows takes these as independent draws, and several rows are of one "
            "person; use radius='cross-validate' or numbers."
        )
    movable = np.asarray(problem.transport.inverse_scale) > 0
    label_moves = problem.transport.discrete_label and math.isfinite(problem.transport.label_cost)
    kept = movable | (np.arange(len(movable)) == len(movable) - 1) & label_moves
    if not kept.any():
        raise BidroError("No coordinate can move, so there is no distance to take a radius from.")
    transport = problem.transport
    inner = Transport(
        transport.scale[kept],
        transport.p,
        label_moves,
        transport.label_cost if label_moves else math.inf,
        transport.norm,
        None if transport.matrix is None else transport.matrix[np.ix_(kept, kept)],
    )
    radii = []
    for i, name in enumerate(problem.federation.names):
        rows = np.asarray(problem.federation.client_samples(name))[:, kept]
        if len(rows) < 2:
            raise BidroError(
                f"Client '{name}' has a single row, from which no radius can be read; give it more rows or "
                "set its radius yourself."
            )
        radii.append(one(rows, inner, np.random.default_rng([seed, i])))
    return np.array(radii)


def _some(rows: Floats, most: int, rng: np.random.Generator) -> Floats:
    """The rows in random order, and no more than `most` of them."""
    return np.asarray(rows[rng.permutation(len(rows))[:most]])


def _what_stays(problem: Problem) -> str:
    """What to add where the label does not move."""
    still = np.isinf(np.asarray(problem.transport.scale))
    if problem.transport.discrete_label:
        still[-1] = math.isinf(problem.transport.label_cost)
    if not still.any():
        return ""
    names = ", ".join(f"'{c}'" for c, s in zip(problem.federation.columns, still, strict=True) if s)
    return f" {names} cannot move: this is robustness to shift of the other columns, without coverage."
