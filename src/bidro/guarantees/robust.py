"""The risk of a model over each client's Wasserstein ball, and the distributions that attain it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.client import Client
from bidro.errors import BidroError
from bidro.losses import LinearLoss
from bidro.problem import Problem
from bidro.worst_case import Inner, Oracle, default_oracle
from bidro.worst_case.ball import has_closed_form, steepness
from bidro.worst_case.risk import RiskModel

# How far below the risk, relatively, a near-worst distribution may stay where the worst is not attained.
_DEFICIT = 1e-7


@dataclass(frozen=True, eq=False)
class WorstCase:
    """A distribution in a client's ball whose expected loss is the client's robust risk, or nearly so."""

    points: NDArray[np.float64]  # (atoms, m)
    masses: NDArray[np.float64]  # (atoms,), sum 1
    expected_loss: float
    risk: float  # upper end of the robust risk

    @property
    def deficit(self) -> float:
        """What the expected loss falls short of the risk; 0 up to rounding where it is attained."""
        return self.risk - self.expected_loss


def robust_risk(problem: Problem, x: ArrayLike, oracle: Oracle | None = None) -> RiskModel:
    """R_i(x) of every client over its ball; arrays with a leading axis of clients.

    The risk lies in [attained, value]. With ascent in place of the exact oracle the value is an upper
    bound only where the loss declares a curvature that makes the inner problem concave, else inf. There
    is no curvature for a loss that is not convex in the model.
    """
    model, chosen = _checked(problem, x, oracle)
    return _all_clients(chosen, problem.clients, model)


def worst_case_distribution(
    problem: Problem, x: ArrayLike, client: str, oracle: Oracle | None = None
) -> WorstCase:
    """Atoms and masses of the worst distribution in one client's ball.

    Every sample keeps its mass 1 / N_i, split in two where the radius binds at a jump. Where the supremum
    is finite but not attained (p = 1 on an unbounded support), mass is moved far enough that the deficit
    is below 1e-7 of the risk.
    """
    model, chosen = _checked(problem, x, oracle)
    samples = problem.federation.client_samples(client)
    i = problem.federation.names.index(client)
    assert problem.eps is not None
    eps = float(problem.eps[i])
    found: RiskModel = jax.tree.map(itemgetter(i), _all_clients(chosen, problem.clients, model))
    risk = float(found.value)
    if eps == 0:
        points, masses = np.asarray(samples), np.full(len(samples), 1 / len(samples))
    elif has_closed_form(problem.inner):
        points, masses = _slope_form_atoms(problem.inner, np.asarray(samples), model, eps, risk)
    else:
        share = float(found.lower_share)
        parts = [(found.lower_multiplier, share), (found.multiplier, 1 - share)]
        used = [(_moved(chosen, problem.inner, model, samples, at), mass) for at, mass in parts if mass > 0]
        points = np.concatenate([np.asarray(p) for p, _ in used])
        masses = np.concatenate([np.full(len(samples), mass / len(samples)) for _, mass in used])
    losses = np.asarray(problem.loss.values(model, jnp.asarray(points)))
    return WorstCase(points, masses, float(masses @ losses), risk)


def _checked(problem: Problem, x: ArrayLike, oracle: Oracle | None) -> tuple[Array, Oracle]:
    if problem.eps is None:
        raise BidroError("The robust risk needs a problem with WassersteinBall(radius).")
    model = np.asarray(x, float)
    if model.shape != (problem.dimension,) or not np.all(np.isfinite(model)):
        raise BidroError(f"The model must be {problem.dimension} finite numbers; got {model}.")
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    chosen.check(problem.inner)
    return jnp.asarray(model), chosen


@partial(jax.jit, static_argnums=0)
def _all_clients(oracle: Oracle, clients: Client, x: Array) -> RiskModel:
    def one(client: Client) -> RiskModel:
        risk = client.risk(oracle, x, jnp.zeros(()), client.inner.loss.convex_in_x)
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


@partial(jax.jit, static_argnums=0)
def _moved(oracle: Oracle, inner: Inner, x: Array, samples: Array, multiplier: Array) -> Array:
    return jax.vmap(lambda zeta: oracle.maximise(inner, x, zeta, multiplier).point)(samples)


def _slope_form_atoms(
    inner: Inner, samples: NDArray[np.float64], x: Array, eps: float, risk: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Atoms for the closed forms: moves along S^-2 a, of length t in the scaled norm."""
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    labels = samples[:, -1]
    inverse = np.asarray(inner.transport.inverse_scale)
    base, offset = (np.asarray(v) for v in loss.direction(x, 1.0))
    signs = np.ones(len(samples)) if loss.labels is None else labels
    norm = float(np.linalg.norm(base * inverse))
    masses = np.full(len(samples), 1 / len(samples))
    if norm == 0:
        return samples, masses
    # Moving a sample by t in the scaled norm along this direction raises its u by t norm.
    along = signs[:, None] * (base * inverse**2) / norm
    u = signs * (samples @ base + offset)
    if inner.transport.p == 2:
        rmse = np.sqrt(np.mean(u**2))
        return samples + (eps * (u / rmse if rmse > 0 else 1.0) * along.T).T, masses
    # All the budget goes to one sample, the one on which a far move comes closest to full slope.
    steep, n = loss.scalar.lipschitz, len(samples)
    outward = 1.0 if loss.scalar.right_slope == steep else -1.0
    far = 1e8 * (1 + np.abs(u).max())
    value = np.asarray(loss.scalar.value(jnp.asarray(np.stack([u, u + outward * far]))))
    short = np.maximum(steep * far - (value[1] - value[0]), 0.0)
    k = int(np.argmin(short))
    part = 1.0 if short[k] <= 0 else min(1.0, _DEFICIT * max(risk, 1e-300) * n / short[k])
    moved = samples[k] + outward * eps * n / part * along[k]
    masses[k] = (1 - part) / n
    points, weights = np.vstack([samples, moved]), np.append(masses, part / n)
    return points[weights > 0], weights[weights > 0]
