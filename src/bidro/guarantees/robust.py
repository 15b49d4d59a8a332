"""The risk of a model over each client's Wasserstein ball, and the distributions that attain it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.arrays import Floats
from bidro.client import Client
from bidro.errors import BidroError
from bidro.federation import LARGEST_SIZE
from bidro.guarantees.curved_worst import curved_atoms
from bidro.losses import LinearLoss, ResidualLoss, Softmax, has_curves, losses_of
from bidro.problem import Problem
from bidro.worst_case import Inner, Oracle, default_oracle
from bidro.worst_case.ball import has_closed_form, is_lifted, steepness
from bidro.worst_case.risk import RiskModel

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
    """R_i(x) of every client: the supremum of its mean loss over its ball.

    Args:
        problem: over balls.
        x: the model (d,).
        oracle: the exact one where there is one. With ascent in its place the value is an upper bound only
            where the loss declares a curvature that makes the inner problem concave, else inf.
        curvature: whether a model of the second derivative is wanted, which there is for convex losses.

    Returns:
        Arrays with a leading axis of clients; the risk lies in [attained, value].

    Raises:
        BidroError: for a problem without balls, or an oracle that does not suit.

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
    return _all_clients(chosen, curvature, problem.clients, model)


def worst_case_distribution(
    problem: Problem, x: ArrayLike, client: str, oracle: Oracle | None = None
) -> WorstCase:
    """Atoms and masses of the worst distribution in one client's ball.

    Every sample keeps its mass 1 / N_i, split in two where the radius binds at a jump. Where the supremum
    is finite but not attained (p = 1 on an unbounded support), mass is moved far enough that the deficit
    is below 1e-7 of the risk. With curves it is the worst distribution that was found: see `curved_worst`.

    Args:
        problem: over balls.
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
    risks = _all_clients(chosen, False, problem.clients, model)
    points, masses, origins = _atoms(problem, chosen, model, client, lambda: risks)
    losses = losses_of(problem.loss, model, points)
    risk = float(risks.value[problem.federation.names.index(client)])
    return WorstCase(points, masses, float(masses @ losses), risk, origins)


def _atoms(
    problem: Problem, oracle: Oracle, x: Array, client: str, risks: Callable[[], RiskModel]
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """(points, masses, origins) of a client's worst case; `risks` of all clients are asked for where they are
    needed."""
    rows = np.asarray(problem.federation.client_samples(client))
    i = problem.federation.names.index(client)
    assert problem.eps is not None
    eps = float(problem.eps[i])
    points, masses, origins = rows, np.full(len(rows), 1 / len(rows)), np.arange(len(rows))
    if eps == 0:
        return points, masses, origins
    if has_curves(problem.loss):
        return curved_atoms(problem, np.asarray(x), rows, eps)
    if has_closed_form(problem.inner) and problem.transport.p == 2:
        return _squared_atoms(problem.inner, rows, x, eps), masses, origins
    found: RiskModel = jax.tree.map(itemgetter(i), risks())
    if not has_closed_form(problem.inner):
        budget = eps**problem.transport.p
        used = _within_budget(problem, oracle, x, rows, found, budget)
        points = np.concatenate([part for part, _ in used])
        masses = np.concatenate([np.full(len(rows), mass / len(rows)) for _, mass in used])
        origins = np.tile(origins, len(used))
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
    and tell residuals of single rows."""
    model, oracle = _checked(problem, x, None)

    @cache
    def risks() -> RiskModel:
        return _all_clients(oracle, False, problem.clients, model)

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
        >>> from bidro import WassersteinBall, worst_case_mixture
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> round(worst_case_mixture(problem, np.ones(3), [0.2] * 5).masses.sum(), 9)
        np.float64(1.0)
    """
    weights = np.asarray(alpha, float)
    if weights.shape != (problem.n,) or not bool(problem.mixture_set.contains(jnp.asarray(weights), 1e-6)):
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


def _checked(problem: Problem, x: ArrayLike, oracle: Oracle | None) -> tuple[Array, Oracle]:
    if problem.eps is None:
        raise BidroError("The robust risk needs a problem with WassersteinBall(radius).")
    model = np.asarray(x, float)
    if model.shape != (problem.dimension,) or not np.all(np.isfinite(model)):
        raise BidroError(f"The model must be {problem.dimension} finite numbers; got {model}.")
    if np.abs(model).max(initial=0.0) > LARGEST_SIZE:
        raise BidroError(
            f"The model has numbers too large to be squared, above {LARGEST_SIZE:g}; got {model}."
        )
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    chosen.check(problem.inner)
    return jax.device_put(model), chosen


@partial(jax.jit, static_argnums=(0, 1))
def _all_clients(oracle: Oracle, curvature: bool, clients: Client, x: Array) -> RiskModel:
    def one(client: Client) -> RiskModel:
        risk = client.risk(oracle, x, jnp.zeros(()), curvature and client.inner.loss.convex_in_x)
        return _in_x(client.inner, x, risk) if client.lifted else risk

    return jax.vmap(one, in_axes=(clients.client_axes(),))(clients)


def _in_x(inner: Inner, x: Array, risk: RiskModel) -> RiskModel:
    """A model of the risk in (x, nu), nu being the steepness at x, as one in x alone.

    Where nu has a kink its derivatives are taken as 0, which gives one of the subgradients.
    """

    def nu(v: Array) -> Array:
        return steepness(inner, v)

    slope, bend = jnp.nan_to_num(jax.grad(nu)(x)), jnp.nan_to_num(jax.hessian(nu)(x))
    whole = jnp.concatenate([jnp.eye(len(x)), slope[:, None]], axis=1)
    curvature = risk.curvature
    if curvature is not None:
        curvature = whole @ curvature @ whole.T + risk.gradient[-1] * bend
    return risk._replace(gradient=whole @ risk.gradient, curvature=curvature)


def _within_budget(
    problem: Problem, oracle: Oracle, x: Array, rows: Floats, found: RiskModel, budget: float
) -> list[tuple[Floats, float]]:
    """Moved rows (N, m) with their share of the mass: moves that cost more than the budget and moves that
    cost less, mixed so that they spend it.

    The multipliers of the search enclose the one at which moves jump by a hair, and this program may see the
    jump on their other side: then farther ones are tried. Shares follow from the moves as they are.
    """

    def moves(multiplier: Array, away: float) -> tuple[Floats, float]:
        points = np.asarray(_moved(oracle, problem.inner, x, jnp.asarray(rows), multiplier * (1 + away)))
        return points, float(problem.transport.row_costs(rows, points).mean())

    for away in _FARTHER:
        cheap, least = moves(found.multiplier, away)
        if least <= budget:
            break
    else:
        return [(cheap, budget / least), (rows, 1 - budget / least)]
    for away in _FARTHER:
        dear, most = moves(found.lower_multiplier, -away)
        if most > budget or float(found.lower_share) == 0:
            break
    share = (budget - least) / (most - least) if budget < most < np.inf else float(most <= budget)
    return [(points, mass) for points, mass in ((dear, share), (cheap, 1 - share)) if mass > 0]


@partial(jax.jit, static_argnums=0)
def _moved(oracle: Oracle, inner: Inner, x: Array, samples: Array, multiplier: Array) -> Array:
    return jax.vmap(lambda zeta: oracle.maximise(inner, x, zeta, multiplier).point)(samples)


def _squared_atoms(inner: Inner, samples: Floats, x: Array, eps: float) -> Floats:
    """p = 2, squared loss, unbounded: every sample moves along S^-2 a, in proportion to its residual."""
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    inverse = np.asarray(inner.transport.inverse_scale)
    a, offset = (np.asarray(v) for v in loss.direction(x, 1.0))
    norm = float(np.linalg.norm(a * inverse))
    if norm == 0:
        return samples
    u = samples @ a + offset
    rmse = np.sqrt(np.mean(u**2))
    lengths = eps * (u / rmse if rmse > 0 else np.ones(len(u)))
    return np.asarray(samples + lengths[:, None] * (a * inverse**2 / norm))


def _spend_far_out(
    inner: Inner, x: Array, points: Floats, masses: Floats, budget: float, risk: float
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """p = 1, unbounded: a little mass of one atom moves so far that it earns the full slope for the budget.

    Returns the atoms, their masses, and which of the given atoms each comes from.
    The less mass, the farther it goes and the smaller the deficit, which is kept below 1e-7 of the risk.
    """
    origins, starts, fees = _as_labels_may_be(inner, points)
    along, slope, steepest = _steepest_directions(inner, x, starts)
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
    allowed = _DEFICIT * max(risk, 1e-300)
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
    if not isinstance(inner.loss, ResidualLoss):
        return 1.0
    scalar = inner.loss.scalar
    return risk + (scalar.lipschitz**2 / scalar.curvature if 0 < scalar.curvature < np.inf else 0.0)


def _steepest_directions(inner: Inner, x: Array, points: Floats) -> tuple[Floats, Floats, float]:
    """For each point the direction (points, m), of length 1 in the scaled norm, in which the loss is steepest
    far out, that slope, and the largest of them."""
    loss, inverse = inner.loss, np.asarray(inner.transport.inverse_scale)
    if isinstance(loss, LinearLoss):
        a = np.asarray(loss.direction(x, 1.0)[0])
        norm = float(np.linalg.norm(a * inverse))
        outward = 1.0 if loss.scalar.right_slope == loss.scalar.lipschitz else -1.0
        signs = outward * (np.ones(len(points)) if loss.labels is None else points[:, -1])
        along = signs[:, None] * (a * inverse**2) / (norm or 1.0)
        steep = loss.scalar.lipschitz * norm
        return along, np.full(len(points), steep), steep
    assert isinstance(loss, Softmax)
    weights = np.asarray(loss.split(x)[0])
    gaps = weights[None] - weights[points[:, -1].astype(int)][:, None]  # (points, K, features)
    norms = np.linalg.norm(gaps * inverse[:-1], axis=2)
    best = norms.argmax(axis=1)
    slope = norms.max(axis=1)
    chosen = gaps[np.arange(len(points)), best] * inverse[:-1] ** 2 / np.where(slope > 0, slope, 1.0)[:, None]
    return np.column_stack([chosen, np.zeros(len(points))]), slope, float(slope.max())
