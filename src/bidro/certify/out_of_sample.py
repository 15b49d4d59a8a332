"""The true cost of a model, between two ends, with a stated probability (the out-of-sample theorem).

On the event E that every client's ball holds its own distribution, of probability prod (1 - beta_i), and for
any true mixture in A, every model x satisfies

    J_hat(x) - 2 L sum_i alpha_i eps_i - L delta diam_1(A) / 2  <=  J(x)  <=  J_hat(x),

with J_hat(x) the worst mixture of the robust risks, alpha the weights that attain it, L the Lipschitz
constant of the loss in the sample over the support, and delta a bound of W_p between any two clients' true
distributions. The proof fixes x and never uses that it is optimal, so a model from anywhere can be certified.
The paper's lower end, J_hat - L (2 r + delta) with r the largest radius, is never higher.

With curves a robust risk is known by an upper bound alone. The lower end rests on a risk being at most the
mean loss plus L eps_i, which such a bound need not be: the lesser of the two takes its place.

L is how steep the loss can be on the support (`support_lipschitz`). On the event E, delta is at most the
largest W_p(P_hat_i, P_hat_j) + eps_i + eps_j, and never more than the diameter of the support. Distances
between clouds are exact up to a size; a larger cloud is replaced by some of its own points, each weighted by
the rows nearest to it, and what that moves, which is known exactly, is added. Where there are many clients,
distances go through one reference cloud: W(P_i, P_j) <= W(P_i, reference) + W(reference, P_j), one distance a
client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.ambiguity import WassersteinBall
from bidro.certify.coverage import coverage_probability, failure_probabilities
from bidro.certify.radius import ExplicitRadius, explicit_rule
from bidro.core.arrays import Floats, means_of
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.core.sets.base import AnyArray
from bidro.losses import LinearLoss, Softmax, has_curves, losses_of
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.inner.ball import steepness
from bidro.risk.transport import Cloud, Transport, thinned, wasserstein_distance


def support_lipschitz(problem: Problem, x: ArrayLike) -> float:
    """L: the largest slope of xi -> l(x, xi) on the support, in the metric of the transport cost.

    Exact for linear predictors, in the features: |L'| is largest at an end of the range of u over the box.
    Where labels can flip, a flip counts with the largest change it makes, divided by its cost.
    """
    loss, transport, support = problem.loss, problem.transport, problem.federation.support
    model: AnyArray = np.asarray(x, float)
    if isinstance(loss, Softmax) and isinstance(support, Box):
        slope = float(loss.lipschitz(model, transport.inverse_scale))
        return _with_flips(slope, float(np.max(_score_gaps(loss, model, support))), transport)
    if not isinstance(loss, LinearLoss) or not isinstance(support, Box):
        known = float(loss.lipschitz(model, transport.inverse_scale))
        if isinstance(loss, LinearLoss) and math.isfinite(known):
            known = loss.scalar.lipschitz * float(steepness(problem.inner, model))
        flips = transport.discrete_label and math.isfinite(transport.label_cost)
        if not math.isfinite(known) or flips:
            raise BidroError(
                "The slope of this loss on the support is not known; a linear predictor on a box has one."
            )
        return known
    ends = _ends(loss, model, support)
    # At a kink the slope on its other side counts too.
    both_sides = np.concatenate([ends, np.nextafter(ends, -np.inf)])
    steep = float(np.max(np.abs(loss.scalar.tangent(both_sides, np.zeros(())).slope)))
    slope = steep * float(steepness(problem.inner, model))
    if loss.labels is None:
        return slope
    values = loss.scalar.value(ends)
    return _with_flips(slope, float(np.max(np.abs(values[:2] - values[2:]))), transport)


def largest_loss(problem: Problem, x: ArrayLike) -> float | None:
    """An upper bound of l(x, .) on the declared support: exact for linear predictors; None where none is
    known, or where the support was read off the data."""
    loss, support, model = problem.loss, problem.federation.support, np.asarray(x, float)
    if not isinstance(support, Box) or problem.federation.support_from_data:
        return None
    if isinstance(loss, LinearLoss):
        return float(np.max(loss.scalar.value(_ends(loss, model, support))))
    if isinstance(loss, Softmax):
        # log sum_k exp(s_k - s_y), with each difference of scores as large as it can be on the box.
        return float(np.max(np.logaddexp.reduce(_score_gaps(loss, model, support), axis=1)))
    return None


def _score_gaps(loss: Softmax, model: AnyArray, support: Box) -> NDArray[np.float64]:
    """(y, k): the largest s_k - s_y on the box, s being the classes' scores."""
    weights, intercepts = loss.split(model)
    apart = weights[None] - weights[:, None]  # (y, k, features), with curves (y, k, columns)
    if loss.basis is not None:
        lower, upper = (np.asarray(end)[:-1] for end in (support.lower, support.upper))
        most = [[loss.basis.ranges(own, lower, upper)[1].sum() for own in row] for row in apart]
        return np.asarray(most) + intercepts[None] - intercepts[:, None]
    centre = np.asarray(support.lower + support.upper)[:-1] / 2
    half = np.asarray(support.upper - support.lower)[:-1] / 2
    return np.asarray(apart @ centre + np.abs(apart) @ half + intercepts[None] - intercepts[:, None])


def _with_flips(slope: float, change: float, transport: Transport) -> float:
    """The slope in the features together with labels that change the loss by at most `change`."""
    if not math.isfinite(transport.label_cost):
        return slope
    flip = change / transport.label_cost
    if transport.p == 1:
        return max(slope, flip)
    q = transport.p / (transport.p - 1)
    return float((slope**q + flip**q) ** (1 / q))


def _ends(loss: LinearLoss, model: AnyArray, support: Box) -> NDArray[np.float64]:
    """The least and largest residual on the box, or the margins with the label 1 and then with -1."""
    if loss.basis is not None:
        return _ends_of_curves(loss, model, support)
    a, offset = loss.direction(model, 1.0)
    centre = np.asarray(support.lower + support.upper) / 2
    half = np.array((support.upper - support.lower) / 2)
    if loss.labels is not None:
        half[-1] = 0.0
    middle, reach = float(a @ centre + offset), float(np.abs(a) @ half)
    ends = [middle - reach, middle + reach]
    return np.array(ends if loss.labels is None else [*ends, *(-end for end in ends)])


def _ends_of_curves(loss: LinearLoss, model: AnyArray, support: Box) -> NDArray[np.float64]:
    """The same, of curves: each is least and largest at an end of its side of the box, or at a knot. With
    pairs, which are so by themselves, they are bounds."""
    assert loss.basis is not None
    w, b = loss.split(model)
    lower, upper = np.asarray(support.lower), np.asarray(support.upper)
    least, most = (side.sum() + float(b) for side in loss.basis.ranges(np.asarray(w), lower[:-1], upper[:-1]))
    if loss.labels is None:
        return np.array([least - upper[-1], most - lower[-1]])
    return np.array([least, most, -least, -most])


# Clouds up to this size are compared exactly.
EXACT_ROWS = 2000
# With more clients than this, distances go through a reference cloud of so many points.
MOST_PAIRED = 12
REFERENCE_POINTS = 500


def cloud_distances(problem: Problem) -> Floats:
    """(n, n): at most this far apart are the clients' samples, in W_p of the problem's transport cost."""
    federation, transport, n = problem.federation, problem.transport, problem.n
    rows = [federation.client_samples(name) for name in federation.names]
    apart = np.zeros((n, n))
    if n > MOST_PAIRED:
        reference = thinned(federation.samples, transport, REFERENCE_POINTS).points
        to_reference = np.array([distance_to_reference(own, reference, transport) for own in rows])
        apart = to_reference[:, None] + to_reference[None, :]
        np.fill_diagonal(apart, 0.0)
        return apart
    clouds = [thinned(own, transport, EXACT_ROWS) for own in rows]
    for i in range(n):
        for j in range(i):
            apart[i, j] = apart[j, i] = _apart(clouds[i], clouds[j], transport)
    return apart


def widened(distances: Floats, radii: ArrayLike, diameter: float) -> float:
    """The largest distance plus both radii, and at most the diameter of the support: a bound of the true
    delta that holds wherever all balls do."""
    width = np.asarray(radii, float)
    others = distances + width[:, None] + width[None, :]
    np.fill_diagonal(others, 0.0)
    return min(float(others.max()), diameter)


def distance_to_reference(rows: ArrayLike, reference: ArrayLike, transport: Transport) -> float:
    """At most this far lie a client's rows from a cloud that everybody has; the number that it sends."""
    points = np.atleast_2d(np.asarray(reference, float))
    return _apart(thinned(rows, transport, EXACT_ROWS), thinned(points, transport, EXACT_ROWS), transport)


def delta_from_reference(distances: ArrayLike, radii: ArrayLike) -> float:
    """The two largest sums of a client's distance to the reference and its radius, added up: where all balls
    hold, a bound of the true delta for which only one number a client has to travel."""
    far = np.asarray(distances, float) + np.asarray(radii, float)
    if far.ndim != 1 or not np.all(np.isfinite(far)) or np.any(far < 0):
        raise BidroError(f"Distances and radii must be finite and not negative, one a client; got {far}.")
    return float(np.sort(far)[-2:].sum()) if len(far) > 1 else 0.0


def _apart(a: Cloud, b: Cloud, transport: Transport) -> float:
    return wasserstein_distance(a.points, b.points, transport, a.masses, b.masses) + a.moved + b.moved


@dataclass(frozen=True, eq=False)
class Interval:
    """`lower` <= true cost <= `upper` with probability at least `probability`, if the mixture is in A.

    Examples:
        >>> import numpy as np
        >>> from bidro import out_of_sample_interval
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = out_of_sample_interval(paper_problem(simulate(0), None), np.zeros(3), 0.9)
        >>> found.lower <= found.upper, round(found.probability, 6)
        (True, 0.9)
    """

    upper: float  # J_hat(x)
    lower: float  # of the true cost, at least 0 for losses that are
    probability: float  # of both ends together
    upper_probability: float  # of the upper end alone (Proposition 1)
    sampling: float  # 2 L sum_i alpha_i eps_i
    heterogeneity: float  # L delta diam_1(A) / 2
    paper_lower: float  # J_hat - L (2 r + delta)
    radii: Floats  # (n,)
    risks: Floats  # (n,) robust risks, upper ends
    alpha: Floats  # (n,) the worst mixture
    lipschitz: float  # L, the loss's slope on the support
    delta: float  # the distance between clients that was used
    names: tuple[str, ...]  # the clients'
    promise: str  # in words

    def __post_init__(self) -> None:
        for array in (self.radii, self.risks, self.alpha):
            array.setflags(write=False)

    @property
    def advice(self) -> str:
        """What would narrow the interval most."""
        if self.sampling >= self.heterogeneity:
            most = self.names[int(np.argmax(self.alpha * self.radii))]
            return f"Sampling error dominates: collect more rows at '{most}'."
        return "Heterogeneity dominates: bring the clients' data closer together, or tighten the weight set."


def out_of_sample_interval(
    problem: Problem,
    x: ArrayLike,
    confidence: float = 0.95,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    distances: Floats | None = None,
    risks: Floats | None = None,
    means: Floats | None = None,
) -> Interval:
    """The out-of-sample interval for a model, at explicit radii that hold together with this confidence.

    The problem's own ambiguity does not matter: a model trained with a calibrated radius, by FedAvg or
    elsewhere is certified in the same way. Needs the extra `distances`.

    Args:
        problem: with rows and a declared support.
        x: the model (d,).
        confidence: of the interval.
        delta: known beforehand; else it is estimated from the samples and widened by the radii, which
            costs no confidence.
        split: see `failure_probabilities`.
        distances: between the clouds, where `cloud_distances` has been called before.
        risks: (n,) the robust risks at `explicit_radii`, where the clients have computed them.
        means: (n,) the clients' mean losses, where they have been computed.

    Returns:
        Both ends, and what each part of the width comes from.

    Raises:
        BidroError: where no radius can promise coverage, and for a loss whose slope on the support is not
            known.

    Examples:
        >>> import numpy as np
        >>> from bidro import out_of_sample_interval
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> out_of_sample_interval(paper_problem(simulate(0), None), np.zeros(3)).names[:2]
        ('client-1', 'client-2')
    """
    rule = _rule(problem)
    sizes = problem.federation.sizes
    covered = coverage_probability(
        rule, sizes, failure_probabilities(confidence, sizes, rule, split), problem.mixture_set, delta
    )
    slope = support_lipschitz(problem, x)
    values = risks
    if values is None:
        balls = replace(problem, ambiguity=WassersteinBall(covered.radii))
        values = np.array(robust_risk(balls, x, curvature=False).value)
    if has_curves(problem.loss):
        means = client_means(problem, x) if means is None else means
        values = np.minimum(values, means + slope * covered.radii)
    worst, alpha = problem.mixture_set.linear_maximum(np.asarray(values))
    apart = delta
    if apart is None:
        between = cloud_distances(problem) if distances is None else distances
        apart = widened(between, covered.radii, rule.diameter)
    upper, weights = float(worst), np.array(alpha)
    sampling = 2 * slope * float(weights @ covered.radii)
    structure = slope * apart * problem.mixture_set.l1_diameter() / 2
    floor = 0.0 if problem.loss.nonnegative else -math.inf
    return Interval(
        upper=upper,
        lower=max(upper - sampling - structure, floor),
        probability=covered.together,
        upper_probability=covered.probability,
        sampling=sampling,
        heterogeneity=structure,
        paper_lower=max(upper - slope * (2 * float(covered.radii.max()) + apart), floor),
        radii=covered.radii,
        risks=values,
        alpha=weights,
        lipschitz=slope,
        delta=apart,
        names=problem.federation.names,
        promise=_promise(problem, upper, covered.probability, rule, covered.radii),
    )


def client_means(problem: Problem, x: ArrayLike) -> Floats:
    """(n,) the clients' mean losses."""
    losses = losses_of(problem.loss, x, problem.federation.host_rows)
    return means_of(losses, problem.federation.sizes)


def explicit_radii(problem: Problem, confidence: float) -> Floats:
    """(n,) radii whose balls hold together with this confidence, the same risk for every client."""
    rule, sizes = _rule(problem), problem.federation.sizes
    return coverage_probability(rule, sizes, failure_probabilities(confidence, sizes, rule)).radii


def _rule(problem: Problem) -> ExplicitRadius:
    return explicit_rule(problem.federation, problem.transport, problem.loss.labels)


def _promise(problem: Problem, upper: float, probability: float, rule: ExplicitRadius, radii: Floats) -> str:
    full = problem.mixture_set.is_whole
    where = "any mixture of the clients" if full else "the true mixture, if it is in A,"
    vague = ""
    if radii.max() > 0.5 * rule.diameter:
        vague = (
            f" The radii (up to {radii.max():.3g}) are a large part of the support's diameter "
            f"({rule.diameter:.3g}): the bound is conservative, and a held-out certificate says more."
        )
    return (
        f"With probability at least {probability:.4g} over the clients' samples, the true mean loss under "
        f"{where} is at most {upper:.6g}.{vague}"
    )
