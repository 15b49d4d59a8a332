"""The risk of a model at each client under ambiguity, and the distributions that attain it.

Over a Wasserstein ball (`robust_risk`), and penalised: for a client with penalty rho,

    F_rho(x) = mean_k sup_xi [ l(x, xi) - rho c(xi^k, xi) ].

By weak duality the risk over a ball of radius eps satisfies R_eps(x) <= rho eps^p + F_rho(x) for every eps,
with equality at the radius where rho is the optimal multiplier: eps^p = mean_k c(xi^k, xi*_k) at the
maximisers xi*_k.

With curves the risk over a ball is bounded by what the steepest slope of every feature would earn everywhere.
For the other end rows are moved, in the space of their features, to where they lose more. At a multiplier
lambda a row gains

    L(u) - lambda ||S delta||^2,   u = sum_j f_j(v_j + delta_j) + b - y   (or y times the score),

and since L is convex, L(u) is at least its tangent at any u: with the tangent in its place every feature
moves by itself, to the best of the best places of its segments, and doing so again never loses. The
multiplier is that at which the moves spend the budget. For p = 1 on an unbounded support a little mass may
move far out instead, along the outermost segments. What is found is in the ball, so its expected loss is at
most the risk. What pairs of features add is left out where rows are moved, and counts where they have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.pytrees import mapped
from bidro.core.sets import Box, WholeSpace
from bidro.core.sets.base import AnyArray
from bidro.data.federation import LARGEST_SIZE
from bidro.data.splines import Basis
from bidro.losses import LinearLoss, PiecewiseLinear, ResidualLoss, Softmax, has_curves, losses_of
from bidro.problem.client import PenalisedRisk, moved_rows, penalised_at, risks_at
from bidro.problem.problem import Problem
from bidro.risk.inner import Inner, Oracle, default_oracle
from bidro.risk.inner.ball import has_closed_form, is_lifted
from bidro.risk.rows_jax import RiskModel

if TYPE_CHECKING:
    from jax import Array

Atoms = tuple[Floats, Floats, NDArray[np.int64]]

_STEPS, _HALVINGS = 12, 45
# Multipliers are searched between these.
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-9, 1e9
# Of the mass of one row, so much moves far out.
_FAR_SHARE = 1e-6


def curved_atoms(problem: Problem, x: Floats, rows: Floats, eps: float) -> Atoms:
    """(points (atoms, m), masses, origins) of a distribution within eps of the rows (N, m), in W_p."""
    found = [(rows, np.full(len(rows), 1 / len(rows)), np.arange(len(rows)))]
    if isinstance(problem.loss, LinearLoss):
        found.append(_near(problem, problem.loss, x, rows, eps))
    if problem.transport.p == 1 and isinstance(problem.federation.support, WholeSpace):
        found.append(_far(problem, x, rows, eps))
    expected = [float(mass @ losses_of(problem.loss, x, points)) for points, mass, _ in found]
    return found[int(np.argmax(expected))]


def _near(problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, eps: float) -> Atoms:
    """The rows moved as far as one multiplier allows, and where moves jump there, a share of each row's mass
    as if the multiplier were lower, so that the budget is spent."""
    p = problem.transport.p

    def moved(multiplier: float) -> tuple[Floats, float]:
        points = _moved_at_multiplier(problem, loss, x, rows, multiplier)
        return points, float(problem.transport.row_costs(rows, points).mean())

    budget, low, high = eps**p, _LEAST_MULTIPLIER, _LARGEST_MULTIPLIER
    (far, most), (near, least) = moved(low), (rows, 0.0)
    for _ in range(_HALVINGS):
        multiplier = math.sqrt(low * high)
        points, cost = moved(multiplier)
        if cost <= budget:
            (near, least), high = (points, cost), multiplier
        else:
            (far, most), low = (points, cost), multiplier
    share = 1.0 if most <= budget else (budget - least) / (most - least)
    return _mixed([(near, 1 - share), (far, share)])


def _mixed(parts: Sequence[tuple[Floats, float]]) -> Atoms:
    """Atoms of rows moved in several ways, (N, m) each, with the share of every row's mass that moves so."""
    used = [(points, mass) for points, mass in parts if mass > 0]
    rows = len(parts[0][0])
    return (
        np.concatenate([points for points, _ in used]),
        np.concatenate([np.full(rows, mass / rows) for _, mass in used]),
        np.tile(np.arange(rows), len(used)),
    )


def _moved_at_multiplier(
    problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, multiplier: float
) -> Floats:
    """(N, m) the rows at the best places found at a multiplier of the cost.

    A cost of order 1 is at most c / 2 + ||S delta||^2 / (2 c) for any c, and equal to it at the size of the
    move: moves are found for squares with the sizes of those before.
    """
    inverse, p = np.asarray(problem.transport.inverse_scale), problem.transport.p
    movable = inverse > 0
    start = np.asarray(loss.arguments(x, rows))  # type: ignore[arg-type]
    best, value = rows, np.asarray(loss.scalar.value(start))
    reach, none = float(np.std(start)) + 1e-3, np.zeros(())
    for side in (1.0, -1.0):
        u, of_square = start + side * reach, np.full(len(rows), multiplier)
        for _ in range(_STEPS):
            slope = np.asarray(loss.scalar.tangent(u, none).slope)
            slope = slope if loss.labels is None else rows[:, -1] * slope
            points = _each_feature(problem, loss, x, rows, slope, of_square)
            u = np.asarray(loss.arguments(x, points))  # type: ignore[arg-type]
            size = np.linalg.norm((points - rows)[:, movable] / inverse[movable], axis=1)
            gained = np.asarray(loss.scalar.value(u)) - multiplier * size**p
            better = gained > value
            best, value = np.where(better[:, None], points, best), np.where(better, gained, value)
            if p == 1:
                of_square = multiplier / (2 * np.maximum(size, 1e-9))
    return best


def _each_feature(
    problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, slope: Floats, multipliers: Floats
) -> Floats:
    """(N, m) where slope f_j(v) - multiplier (S_j (v - v_j))^2 is largest, feature by feature, on the
    support; slopes and multipliers are the rows' own (N,)."""
    inverse, multiplier = np.asarray(problem.transport.inverse_scale), multipliers[:, None]
    basis, support = loss.basis, problem.federation.support
    assert basis is not None
    w = np.asarray(loss.split(x)[0])[: basis.of_curves]  # type: ignore[arg-type]
    low, high = basis.ends
    if isinstance(support, Box):
        sides = [np.asarray(end)[:-1][basis.feature] for end in (support.lower, support.upper)]
        low, high = np.clip(low, *sides), np.clip(high, *sides)
    here = rows[:, :-1][:, basis.feature]
    moves = inverse[:-1][basis.feature]
    give = moves**2 / (2 * multiplier)
    place = np.clip(here + slope[:, None] * w * give, low, high)
    place = np.where(moves > 0, place, here)
    still = np.where(moves > 0, moves, 1.0)
    value = (
        slope[:, None] * (curve_intercepts(basis, w) + w * place) - multiplier * ((place - here) / still) ** 2
    )
    # A row stays on the curve of its own level.
    value = np.where(basis.on(rows[:, :-1]), value, -np.inf)
    points = rows.copy()
    for j in range(basis.features):
        own = np.flatnonzero(basis.feature == j)
        if inverse[j] > 0:
            points[:, j] = np.take_along_axis(place[:, own], value[:, own].argmax(axis=1)[:, None], axis=1)[
                :, 0
            ]
    if loss.labels is None and inverse[-1] > 0:
        points[:, -1] -= slope * inverse[-1] ** 2 / (2 * multipliers)
        if isinstance(support, Box):
            points[:, -1] = np.clip(points[:, -1], support.lower[-1], support.upper[-1])
    return points


def curve_intercepts(basis: Basis, slopes: Floats) -> Floats:
    """(of_curves,) c with f_j(v) = c + slope v on each segment, f_j(0) = 0."""
    found = np.zeros(basis.of_curves)
    starts = np.cumsum(basis.segments) - basis.segments
    for start, own in zip(starts, basis.knots, strict=True):
        some = slopes[start : start + len(own) + 1]
        rises = np.concatenate([[0.0], np.cumsum((some[:-1] - some[1:]) * np.array(own))])
        found[start : start + len(own) + 1] = rises - rises[np.searchsorted(np.array(own), 0.0)]
    return found


def _far(problem: Problem, x: Floats, rows: Floats, eps: float) -> Atoms:
    """A little mass of one row, moved so far for all of the budget that only the outermost segments count."""
    along, slope = _outward(problem.inner, x, rows)
    k = int(np.argmax(slope))
    part = _FAR_SHARE / len(rows)
    masses = np.append(np.full(len(rows), 1 / len(rows)), part)
    masses[k] -= part
    points = np.vstack([rows, rows[k] + eps / part * along[k]])
    return points, masses, np.append(np.arange(len(rows)), k)


def _outward(inner: Inner, x: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """(directions (N, m) of length 1 in the scaled norm in which each row loses most far out, that slope)."""
    loss, inverse = inner.loss, np.asarray(inner.transport.inverse_scale)
    if isinstance(loss, PiecewiseLinear):
        slopes = loss.slopes(x)
        sizes = [float(inner.transport.dual_norm(a)) for a in slopes]
        best = int(np.argmax(sizes))
        move = np.asarray(inner.transport.steepest(slopes[best]))
        return np.tile(move, (len(rows), 1)), np.full(len(rows), sizes[best])
    assert isinstance(loss, LinearLoss | Softmax)
    basis = loss.basis or Basis(((),) * (rows.shape[1] - 1))
    w = np.asarray(loss.split(x)[0])  # type: ignore[arg-type]
    last = np.cumsum(basis.segments) - 1
    first = last - basis.segments + 1
    at = basis.curves_of(rows[:, :-1])  # (N, k)

    def steepest(own: Any, slopes: Floats, target: float) -> tuple[Floats, Floats]:
        """Of what rises with a score of these slopes, and with the target by `target`, for some of the rows:
        (directions, slopes)."""
        if not inner.transport.is_euclidean:  # nothing is curved: the same of all rows
            a, every = np.append(slopes, target), np.ones(len(at[own]))
            return np.outer(every, inner.transport.steepest(a)), float(inner.transport.dual_norm(a)) * every
        right, left = np.maximum(slopes[last[at[own]]], 0.0), np.maximum(-slopes[first[at[own]]], 0.0)
        outward = np.where(right >= left, right, -left)
        direction = np.column_stack([outward, np.full(len(outward), target)]) * inverse
        size = np.linalg.norm(direction, axis=1)
        return direction * inverse / np.where(size > 0, size, 1.0)[:, None], size

    along, slope = np.zeros(rows.shape), np.zeros(len(rows))

    def take(own: Any, direction: Floats, size: Floats) -> None:
        better = size > slope[own]
        slope[own] = np.where(better, size, slope[own])
        along[own] = np.where(better[:, None], direction, along[own])

    if isinstance(loss, Softmax):
        for y in range(loss.classes):
            own = np.flatnonzero(rows[:, -1] == y)
            for k in range(loss.classes):
                if k != y:
                    take(own, *steepest(own, w[k] - w[y], 0.0))
        return along, slope
    moves = -1.0 if loss.labels is None else 0.0
    for label in (1.0,) if loss.labels is None else loss.labels:
        own = np.arange(len(rows)) if loss.labels is None else np.flatnonzero(rows[:, -1] == label)
        for sign, rise in ((1.0, loss.scalar.right_slope), (-1.0, loss.scalar.left_slope)):
            direction, size = steepest(own, sign * label * w, sign * moves)
            take(own, direction, rise * size)
    return along, slope


# By how much, relatively, multipliers are moved apart in search of the moves on either side of a jump.
_FARTHER = (0.0, *(10.0**k for k in range(-13, -5)))
# How far below the risk, relatively, a near-worst distribution may stay where the worst is not attained.
_DEFICIT = 1e-7


@dataclass(frozen=True, eq=False)
class WorstCase:
    """A distribution in a client's ball whose expected loss is the client's robust risk, or nearly so. With
    curves the risk is an upper bound, and the expected loss a lower one: the deficit says how loose it is.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from bidro import WassersteinBall, worst_case_distribution
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> found = worst_case_distribution(problem, np.ones(3), "client-1")
        >>> round(found.masses.sum(), 9), found.deficit <= 1e-6 * found.risk
        (np.float64(1.0), True)
    """

    points: NDArray[np.float64]  # (atoms, m)
    masses: NDArray[np.float64]  # (atoms,), sum 1
    expected_loss: float  # under this distribution
    risk: float  # upper end of the robust risk
    origins: NDArray[np.int64]  # (atoms,) the sample that each atom was moved from

    @property
    def deficit(self) -> float:
        """What the expected loss falls short of the risk; 0 up to rounding where it is attained."""
        return self.risk - self.expected_loss


def robust_risk(
    problem: Problem, x: ArrayLike, oracle: Oracle | None = None, curvature: bool = True
) -> RiskModel:
    """R_i(x) of every client: the supremum of its mean loss over its set.

    Args:
        problem: over balls, or sets of weights of rows (`bidro.ambiguity`).
        x: the model (d,).
        oracle: the exact one where there is one. With ascent in its place the value is an upper bound only
            where the loss declares a curvature that makes the inner problem concave, else inf.
        curvature: whether a model of the second derivative is wanted, which there is for convex losses.

    Returns:
        Arrays with a leading axis of clients; the risk lies in [attained, value].

    Raises:
        BidroError: for a problem without such sets, or an oracle that does not suit.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from bidro import WassersteinBall, robust_risk
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> np.asarray(robust_risk(problem, np.zeros(3), curvature=False).value).round(2).tolist()
        [13.87, 3.82, 3.07, 1.8, 1.66]
    """
    model, chosen = _checked(problem, x, oracle)
    return risks_at(chosen, curvature, problem.clients, model)


def worst_case_distribution(
    problem: Problem, x: ArrayLike, client: str, oracle: Oracle | None = None
) -> WorstCase:
    """Atoms and masses of the worst distribution in one client's set.

    In a set of weights of rows the rows stay and their masses change. In a ball every sample keeps its mass
    1 / N_i, split in two where the radius binds at a jump. Where the supremum is finite but not
    attained (p = 1 on an unbounded support), mass is moved far enough that the deficit is below 1e-7 of the
    risk. With curves it is the worst distribution that was found.

    Args:
        problem: as in `robust_risk`.
        x: the model (d,).
        client: its name.
        oracle: as in `robust_risk`.

    Returns:
        The distribution, its expected loss, and the risk that it attains.

    Raises:
        BidroError: for a problem without balls, and a client that there is not.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from bidro import WassersteinBall, worst_case_distribution
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> worst_case_distribution(problem, np.ones(3), "client-1").points.shape[1]
        4
    """
    model, chosen = _checked(problem, x, oracle)
    risks = risks_at(chosen, False, problem.clients, model)
    points, masses, origins = _atoms(problem, chosen, model, client, lambda: risks)
    losses = losses_of(problem.loss, model, points)
    risk = float(risks.value[problem.federation.names.index(client)])
    return WorstCase(points, masses, float(masses @ losses), risk, origins)


def _atoms(problem: Problem, oracle: Oracle, x: Array, client: str, risks: Callable[[], RiskModel]) -> Atoms:
    """(points, masses, origins) of a client's worst case; `risks` of all clients are computed where they are
    needed."""
    rows = np.asarray(problem.federation.client_samples(client))
    i = problem.federation.names.index(client)
    eps = float(problem.eps[i])
    points, masses, origins = rows, np.full(len(rows), 1 / len(rows)), np.arange(len(rows))
    weights = problem.ambiguity_set.of_client(i).row_weights(losses_of(problem.loss, x, rows))
    if weights is not None:
        return rows, weights / weights.sum(), origins
    if eps == 0:
        return points, masses, origins
    if has_curves(problem.loss):
        return curved_atoms(problem, np.asarray(x), rows, eps)
    if has_closed_form(problem.inner) and problem.transport.p == 2:
        return _squared_atoms(problem.inner, rows, x, eps), masses, origins
    found: RiskModel = mapped(itemgetter(i), risks())
    if not has_closed_form(problem.inner):
        budget = eps**problem.transport.p
        points, masses, origins = _within_budget(problem, oracle, x, rows, found, budget)
    if is_lifted(problem.inner) and problem.transport.p == 1:
        costs = problem.transport.row_costs(rows[origins], points)
        left = eps - float(masses @ costs)
        points, masses, split = _spend_far_out(problem.inner, x, points, masses, left, float(found.value))
        origins = origins[split]
    return points, masses, origins


def mean_displacements(problem: Problem, x: ArrayLike, clients: Sequence[str]) -> tuple[Floats, Floats]:
    """(how far the worst case moves the mean of every feature, and how far its rows, as a mean of order p),
    both (clients, m - 1): what can be shown of worst cases where their atoms, which are moved rows, stay at
    their sites. Of squared loss with p = 2 both follow from second moments; mean lengths of moves would not,
    and reveal residuals of single rows."""
    model, oracle = _checked(problem, x, None)

    @cache
    def risks() -> RiskModel:
        return risks_at(oracle, False, problem.clients, model)

    moved, typical = (np.zeros((len(clients), problem.federation.m - 1)) for _ in range(2))
    for k, client in enumerate(clients):
        points, masses, origins = _atoms(problem, oracle, model, client, risks)
        rows = np.asarray(problem.federation.client_samples(client))[:, :-1]
        steps = points[:, :-1] - rows[origins]
        p = problem.transport.p
        moved[k], typical[k] = masses @ steps, (masses @ np.abs(steps) ** p) ** (1 / p)
    return moved, typical


def worst_case_mixture(
    problem: Problem, x: ArrayLike, alpha: ArrayLike, oracle: Oracle | None = None
) -> WorstCase:
    """The clients' worst-case distributions, mixed.

    Args:
        problem: over balls.
        x: the model (d,).
        alpha: weights (n,), such as a solution's.
        oracle: as in `robust_risk`.

    Returns:
        The distribution, its expected loss, and the risk that it attains.

    Raises:
        BidroError: for a problem without balls, and weights that are not those of a mixture.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import replace
        >>> from bidro import WassersteinBall
        >>> from bidro.problem.worst_case import worst_case_mixture
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> round(worst_case_mixture(problem, np.ones(3), [0.2] * 5).masses.sum(), 9)
        np.float64(1.0)
    """
    weights = np.asarray(alpha, float)
    if weights.shape != (problem.n,) or not bool(problem.mixture_set.contains(weights, 1e-6)):
        raise BidroError(f"The weights must be {problem.n} numbers in the problem's set A; got {weights}.")
    names = problem.federation.names
    parts = [worst_case_distribution(problem, x, name, oracle) for name in names]
    starts = np.cumsum(problem.federation.sizes) - problem.federation.sizes
    return WorstCase(
        np.concatenate([part.points for part in parts]),
        np.concatenate([weight * part.masses for weight, part in zip(weights, parts, strict=True)]),
        float(sum(weight * part.expected_loss for weight, part in zip(weights, parts, strict=True))),
        float(sum(weight * part.risk for weight, part in zip(weights, parts, strict=True))),
        np.concatenate([start + part.origins for start, part in zip(starts, parts, strict=True)]),
    )


def _checked(problem: Problem, x: ArrayLike, oracle: Oracle | None) -> tuple[AnyArray, Oracle]:
    ambiguity = problem.ambiguity_set
    if not ambiguity.over_balls and ambiguity.of_client(0).row_weights(np.zeros(1)) is None:
        raise BidroError(
            "The robust risk needs a problem with WassersteinBall(radius) or a set of weights of rows."
        )
    model, chosen = _model_and_oracle(problem, x, oracle)
    if np.abs(model).max(initial=0.0) > LARGEST_SIZE:
        raise BidroError(
            f"The model has numbers too large to be squared, above {LARGEST_SIZE:g}; got {model}."
        )
    return model, chosen


def _model_and_oracle(problem: Problem, x: ArrayLike, oracle: Oracle | None) -> tuple[AnyArray, Oracle]:
    model = np.asarray(x, float)
    if model.shape != (problem.dimension,) or not np.all(np.isfinite(model)):
        raise BidroError(f"The model must be {problem.dimension} finite numbers; got {model}.")
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    chosen.check(problem.inner)
    return model, chosen


def _within_budget(
    problem: Problem, oracle: Oracle, x: Array, rows: Floats, found: RiskModel, budget: float
) -> Atoms:
    """Moves of the rows (N, m) that cost more than the budget and moves that cost less, mixed so that they
    spend it.

    The multipliers of the search enclose the one at which moves jump by a hair, and this program may see the
    jump on their other side: then farther ones are tried. Shares follow from the moves as they are.
    """

    def moves(multiplier: Array, away: float) -> tuple[Floats, float]:
        points = np.asarray(moved_rows(oracle, problem.inner, x, rows, multiplier * (1 + away)))
        return points, float(problem.transport.row_costs(rows, points).mean())

    for away in _FARTHER:
        near, least = moves(found.multiplier, away)
        if least <= budget:
            break
    else:
        return _mixed([(near, budget / least), (rows, 1 - budget / least)])
    for away in _FARTHER:
        far, most = moves(found.lower_multiplier, -away)
        if most > budget or float(found.lower_share) == 0:
            break
    share = (budget - least) / (most - least) if budget < most < np.inf else float(most <= budget)
    return _mixed([(far, share), (near, 1 - share)])


def _squared_atoms(inner: Inner, samples: Floats, x: Array, eps: float) -> Floats:
    """p = 2, squared loss, unbounded: every sample moves to where u gains most, along S^-2 a in the Euclidean
    metric, in proportion to its residual."""
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    a, offset = (np.asarray(v) for v in loss.direction(x, 1.0))
    u = samples @ a + offset
    rmse = np.sqrt(np.mean(u**2))
    lengths = eps * (u / rmse if rmse > 0 else np.ones(len(u)))
    return np.asarray(samples + lengths[:, None] * inner.transport.steepest(a))


def _spend_far_out(
    inner: Inner, x: Array, points: Floats, masses: Floats, budget: float, risk: float
) -> Atoms:
    """p = 1, unbounded: a little mass of one atom moves so far that it earns the full slope for the budget.

    Returns the atoms, their masses, and which of the given atoms each comes from.
    The less mass, the farther it goes and the smaller the deficit, which is kept below 1e-7 of the risk.
    """
    origins, starts, fees = _as_labels_may_be(inner, points)
    along, slope = _outward(inner, np.asarray(x), starts)
    steepest = float(slope.max())
    if steepest == 0 or budget <= 0:
        return points, masses, np.arange(len(points))
    candidates = np.flatnonzero((slope >= steepest * (1 - 1e-9)) & (masses[origins] > 0))
    before = losses_of(inner.loss, x, points[origins[candidates]])
    far = 1e8 * (_turn(inner, risk) + np.abs(before).max()) / steepest
    ends = starts[candidates] + far * along[candidates]
    reached = losses_of(inner.loss, x, ends)
    # What a move of any such length stays short of the full slope.
    short = np.maximum(steepest * (far + fees[candidates]) - (reached - before), 0.0)
    best = int(np.argmin(short))
    chosen = int(candidates[best])
    k, fee = int(origins[chosen]), float(fees[chosen])
    allowed = _DEFICIT * max(abs(risk), 1e-300)
    part = float(masses[k]) if short[best] <= 0 else min(float(masses[k]), allowed / short[best])
    if fee > 0:
        part = min(part, budget / (2 * fee))
    left = masses.copy()
    left[k] -= part
    moved = starts[chosen] + (budget / part - fee) * along[chosen]
    points, left = np.vstack([points, moved]), np.append(left, part)
    return points[left > 0], left[left > 0], np.append(np.arange(len(masses)), k)[left > 0]


def _as_labels_may_be(inner: Inner, points: Floats) -> tuple[NDArray[np.int64], Floats, Floats]:
    """(which point each comes from, the points (n, m) with every label that they may have, what that label
    costs): of several classes the loss may be steeper far out with another label."""
    every = np.arange(len(points))
    cost = inner.transport.label_cost
    if not isinstance(inner.loss, Softmax) or not np.isfinite(cost):
        return every, points, np.zeros(len(points))
    assert inner.loss.labels is not None
    labels = np.asarray(inner.loss.labels, float)
    origins, starts = np.repeat(every, len(labels)), np.repeat(points, len(labels), axis=0)
    starts[:, -1] = np.tile(labels, len(points))
    return origins, starts, np.where(starts[:, -1] == points[origins, -1], 0.0, cost)


def _turn(inner: Inner, risk: float) -> float:
    """The size of the loss beyond which it has its full slope: 1 for a margin, and for a residual that of the
    losses themselves unless it is rounded around 0."""
    if isinstance(inner.loss, PiecewiseLinear):
        return abs(risk)
    if not isinstance(inner.loss, ResidualLoss):
        return 1.0
    scalar = inner.loss.scalar
    return risk + (scalar.lipschitz**2 / scalar.curvature if 0 < scalar.curvature < np.inf else 0.0)


def penalised_risk(problem: Problem, x: ArrayLike, oracle: Oracle | None = None) -> PenalisedRisk:
    """F_i(x) of every client: the mean over its rows of the penalised suprema.

    Args:
        problem: with penalties.
        x: the model (d,).
        oracle: the exact one where there is one, by default.

    Returns:
        Values (n,), how far the suprema may lie above them, and the mean cost of the moves.

    Raises:
        BidroError: for a problem without penalties, or an oracle that does not suit.

    Examples:
        >>> import numpy as np
        >>> from bidro.problem.worst_case import penalised_risk
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> penalised_risk(paper_problem(simulate(0), PENALTIES), np.zeros(3)).value.round(2).tolist()
        [14.07, 3.8200000000000003, 3.41, 2.06, 2.35]
    """
    if not problem.ambiguity_set.penalised:
        raise BidroError("The penalised risk needs a problem with Penalty(rho).")
    model, chosen = _model_and_oracle(problem, x, oracle)
    return penalised_at(chosen, problem.clients, model)


def ball_bound(
    problem: Problem, x: ArrayLike, radii: ArrayLike, oracle: Oracle | None = None
) -> NDArray[np.float64]:
    """rho_i eps_i^p + F_i(x), an upper bound of each client's risk over its ball of radius eps_i.

    Args:
        problem: with penalties rho_i.
        x: the model (d,).
        radii: eps_i (n,), or one for all.
        oracle: as in `penalised_risk`.

    Returns:
        (n,) bounds; inf where the inner supremum is not known.

    Raises:
        BidroError: for a problem without penalties, or radii that are negative.

    Examples:
        >>> import numpy as np
        >>> from bidro.problem.worst_case import ball_bound
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> ball_bound(paper_problem(simulate(0), PENALTIES), np.zeros(3), [0.1] * 5).round(2).tolist()
        [14.22, 3.92, 3.46, 2.1, 2.38]
    """
    eps = np.asarray(radii, float)
    if eps.shape not in ((), (problem.n,)) or np.any(~np.isfinite(eps)) or np.any(eps < 0):
        raise BidroError(
            f"Radii must be one number or {problem.n}, finite and not negative; got {eps.tolist()}."
        )
    risk = penalised_risk(problem, x, oracle)
    return np.asarray(problem.rho * eps**problem.transport.p + risk.value + risk.error_bound)


def implied_radii(problem: Problem, x: ArrayLike, oracle: Oracle | None = None) -> NDArray[np.float64]:
    """The radius at which each client's penalty is the optimal multiplier of its ball.

    Args:
        problem: with penalties.
        x: the model (d,).
        oracle: as in `penalised_risk`.

    Returns:
        (n,) radii; nan where the penalised risk is infinite: no ball has a multiplier that small.

    Raises:
        BidroError: for a problem without penalties.

    Examples:
        >>> import numpy as np
        >>> from bidro.problem.worst_case import implied_radii
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> implied_radii(paper_problem(simulate(0), PENALTIES), np.zeros(3)).round(2).tolist()
        [0.26, 0.21, 0.41, 0.41, 0.79]
    """
    return np.asarray(penalised_risk(problem, x, oracle).mean_cost ** (1 / problem.transport.p))
