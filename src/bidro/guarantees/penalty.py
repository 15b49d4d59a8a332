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
    """Per client, all of shape (n,): F_i(x) lies in [value, value + error_bound].

    Examples:
        >>> import numpy as np
        >>> from bidro import penalised_risk
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> penalised_risk(paper_problem(simulate(0), PENALTIES), np.zeros(3)).error_bound.tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]
    """

    value: Array  # at the maximisers found
    error_bound: Array  # inf: unknown
    mean_cost: Array  # mean_k c(xi^k, xi*_k) at the maximisers found


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
        >>> from bidro import penalised_risk
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> penalised_risk(paper_problem(simulate(0), PENALTIES), np.zeros(3)).value.round(2).tolist()
        [14.07, 3.8200000000000003, 3.41, 2.06, 2.35]
    """
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
        >>> from bidro import ball_bound
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
    assert problem.rho is not None
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
        >>> from bidro import implied_radii
        >>> from bidro.experiments.simulation import PENALTIES, paper_problem, simulate
        >>> implied_radii(paper_problem(simulate(0), PENALTIES), np.zeros(3)).round(2).tolist()
        [0.26, 0.21, 0.41, 0.41, 0.79]
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
