"""Reference values for the convergence figure: small minimax problems solved numerically."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import minimize

from bidro.arrays import Floats
from bidro.problem import Problem
from bidro.worst_case import Inner, Oracle


def _client_risks(
    oracle: Oracle, clients: int, inner: Inner, samples: Array, owner: Array, rho: Array, x: Array
) -> Array:
    values = jax.vmap(
        lambda zeta, i: inner.phi(x, zeta, oracle.maximise(inner, x, zeta, rho[i]).point, rho[i])
    )(samples, owner)
    rows = jax.ops.segment_sum(jnp.ones(len(owner)), owner, num_segments=clients)
    return jax.ops.segment_sum(values, owner, num_segments=clients) / rows


_risks = jax.jit(_client_risks, static_argnums=(0, 1))
_jacobian = jax.jit(jax.jacfwd(_client_risks, argnums=6), static_argnums=(0, 1))


class ClientRisks:
    """x -> (F_1(x), ..., F_n(x)) by one oracle over all rows of a problem, or over other rows.

    The Jacobian goes through the oracle itself, whose result defines the objective.
    """

    def __init__(self, problem: Problem, oracle: Oracle, samples: Floats | None = None) -> None:
        rows = problem.federation.samples if samples is None else jnp.asarray(samples)
        owner = jnp.asarray(np.repeat(np.arange(problem.n), problem.federation.sizes))
        self._arguments = (oracle, problem.n, problem.inner, rows, owner, problem.rho)

    def __call__(self, x: Array | Floats) -> Array:
        return _risks(*self._arguments, jnp.asarray(x))

    def jacobian(self, x: Array | Floats) -> Array:
        """(n, d)."""
        return _jacobian(*self._arguments, jnp.asarray(x))


def minimise_largest(risks: ClientRisks, problem: Problem, starts: list[Floats]) -> float:
    """min over x in X of max_i F_i(x), the best of SLSQP on its epigraph form from each start."""
    lower, upper = (np.asarray(v) for v in problem.models.bounding_box())
    best = np.inf
    for start in starts:
        top = float(jnp.max(risks(start)))
        found = minimize(
            lambda v: v[-1],
            np.append(start, top),
            jac=lambda v: np.append(np.zeros(len(v) - 1), 1.0),
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), (None, None)],
            constraints={
                "type": "ineq",
                "fun": lambda v: v[-1] - np.asarray(risks(v[:-1])),
                "jac": lambda v: np.column_stack([-risks.jacobian(v[:-1]), np.ones(problem.n)]),
            },
            options={"maxiter": 500, "ftol": 1e-14},
        )
        x = np.clip(found.x[:-1], lower, upper)
        best = min(best, top, float(jnp.max(risks(x))))
    return best
