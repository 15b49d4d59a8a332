"""The penalised risk of a model, and what it implies for Wasserstein balls.

For a client with penalty rho, F_rho(x) = mean_k sup_xi [ l(x, xi) - rho c(xi^k, xi) ]. By weak duality
the risk over a ball of radius eps satisfies R_eps(x) <= rho eps^p + F_rho(x) for every eps, with equality
at the radius where rho is the optimal multiplier: eps^p = mean_k c(xi^k, xi*_k) at the maximisers xi*_k.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.worst_case import Inner, Oracle, default_oracle


class PenalisedRisk(NamedTuple):
    """Per client, all of shape (n,): F_i(x) lies in [value, value + error_bound]."""

    value: Array
    error_bound: Array  # inf: unknown
    mean_cost: Array  # mean_k c(xi^k, xi*_k) at the maximisers found


def penalised_risk(problem: Problem, x: ArrayLike, oracle: Oracle | None = None) -> PenalisedRisk:
    """F_i(x) of every client over all its rows, with the exact oracle where there is one."""
    if problem.rho is None:
        raise BidroError("The penalised risk needs a problem with Penalty(rho).")
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    chosen.check(problem.inner)
    model = np.asarray(x, float)
    if model.shape != (problem.dimension,) or not np.all(np.isfinite(model)):
        raise BidroError(f"The model must be {problem.dimension} finite numbers; got {model}.")
    return _all_clients(chosen, problem.clients, jnp.asarray(model))


def ball_bound(
    problem: Problem, x: ArrayLike, radii: ArrayLike, oracle: Oracle | None = None
) -> NDArray[np.float64]:
    """rho_i eps_i^p + F_i(x), an upper bound of each client's risk over its ball of radius eps_i (n,).

    The upper end of F_i(x) is used, so the bound is inf where the inner supremum is not known.
    """
    eps = np.asarray(radii, float)
    if eps.shape not in ((), (problem.n,)) or np.any(~np.isfinite(eps)) or np.any(eps < 0):
        raise BidroError(
            f"Radii must be one number or {problem.n}, finite and not negative; got {eps.tolist()}."
        )
    risk = penalised_risk(problem, x, oracle)
    assert problem.rho is not None
    return np.asarray(problem.rho * eps**problem.transport.p + risk.value + risk.error_bound)


def implied_radii(problem: Problem, x: ArrayLike, oracle: Oracle | None = None) -> NDArray[np.float64]:
    """The radius at which each client's penalty is the optimal multiplier of its ball (n,).

    nan where the penalised risk is infinite: no ball has a multiplier that small.
    """
    return np.asarray(penalised_risk(problem, x, oracle).mean_cost ** (1 / problem.transport.p))


@partial(jax.jit, static_argnums=0)
def _all_clients(oracle: Oracle, clients: Client, x: Array) -> PenalisedRisk:
    def of_rows(args: tuple[Array, Array, Inner], rows: Array) -> PenalisedRisk:
        model, rho, inner = args

        def of_row(zeta: Array) -> PenalisedRisk:
            best = oracle.maximise(inner, model, zeta, rho)
            cost = inner.transport.cost(zeta, best.point)
            return PenalisedRisk(best.value, best.error_bound, jnp.where(best.value < jnp.inf, cost, jnp.nan))

        return jax.vmap(of_row)(rows)

    def of_client(client: Client) -> PenalisedRisk:
        risk: PenalisedRisk = client.rows.mean(of_rows, (x, client.rho, client.inner))
        return risk

    return jax.vmap(of_client, in_axes=(clients.client_axes(),))(clients)
