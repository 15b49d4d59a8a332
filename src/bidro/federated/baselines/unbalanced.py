"""Unbalanced Wasserstein balls with a varying centre (Wang et al.): rows can also be weighted anew.

With phi_ik(x) = sup over xi of l(x, xi) - rho c(xi_i^k, xi) and a transport whose first marginal is relaxed
by tau times a Kullback-Leibler divergence, the worst case around the mixture alpha has a closed form, and

    min over x in X of max over alpha in A of rho tau log sum_i alpha_i mean_k exp(phi_ik(x) / (rho tau))

is solved. This sign ("up") weights rows with a high loss up, exponentially: it is NOT robust to outliers, and
one wild row can rule the model. The outlier-robust sign ("down"),

    min over x in X of max over alpha in A of -rho tau log sum_i alpha_i mean_k exp(-phi_ik(x) / (rho tau)),

gives every row the benefit of the doubt and weights those with a high loss down. It is not convex in x. For a
large tau both are BiDRO-FL's problem.

A client replies with R_i = +-rho tau log mean_k exp(+-phi_ik / (rho tau)) and its gradient. The server
weights clients by p_i in proportion to alpha_i exp(+-R_i / (rho tau)), descends along sum_i p_i grad R_i, and
ascends in alpha along the gradient +-rho tau exp(+-(R_i - R) / (rho tau)), R being the value of the whole.

Reference: Zifan Wang, Xinlei Yi, Xenia Konti, Michael M. Zavlanos and Karl H. Johansson. Distributionally
Robust Federated Learning with Outlier Resilience. 2025.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import RowsBehind, masked
from bidro.federated.algorithms.first_order import Broadcast, ModelAndWeights, State, ValueAndGradient
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Inner, Oracle

# The gradient in alpha has no bound where a client with weight 0 is far worse than the others; an entry of
# this size already carries it to the edge of any set of mixtures.
_STEEPEST = 1e3


@pytree
class UnbalancedDRO(ModelAndWeights):
    """tau, step sizes, which sign, and the inner oracle.

    A client that does not reply is left out of the sums, and its weight changes only as others' do.
    For a small tau a reply is next to that of one row, so it counts as one.

    Args:
        tau: the price of reweighting rows, above 0.
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        sign: "up" or "down"; see the module.
        oracle: solves the inner problems.

    Raises:
        BidroError: for a tau that is not above 0, a negative step size, or another sign.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import UnbalancedDRO
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), [60.0, 60.0, 60.0, 60.0, 60.0])
        >>> run(UnbalancedDRO(tau=2.0), problem, 100).x.shape
        (3,)
    """

    reply_type: ClassVar[type] = ValueAndGradient
    rows_behind: ClassVar[RowsBehind] = "one row"
    tau: float = 1.0
    eta_x: float = 0.05
    eta_alpha: float = 0.05
    sign: Literal["up", "down"] = static(default="up")
    oracle: Oracle = static(default=Exact())

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.tau, int | float | np.number) or not 0 < self.tau < math.inf:
            raise BidroError(f"tau must be a positive number; got {self.tau!r}.")
        if self.sign not in ("up", "down"):
            raise BidroError(f"The sign is 'up' or 'down'; got {self.sign!r}.")

    @property
    def _side(self) -> float:
        return 1.0 if self.sign == "up" else -1.0

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.ambiguity_set.penalised or np.ptp(problem.rho) > 0:
            raise BidroError(
                "UnbalancedDRO has one price of movement: give it Penalty(rho), the same for all."
            )
        self.oracle.check(problem.inner)
        return super().init(problem, seed)._replace(extra=problem.rho[0])

    def client(self, broadcast: Broadcast, client: Client, draw: None) -> ValueAndGradient:
        temperature = client.rho * self.tau
        side, rows = self._side, client.rows
        at = (broadcast.x, client.rho, temperature, client.inner)

        def exponents(args: tuple[Array, Array, Array, Inner], block: Array) -> tuple[Array, Array]:
            x, rho, temperature, inner = args
            moved = jax.vmap(lambda zeta: self.oracle.maximise(inner, x, zeta, rho))(block)
            return side * moved.value / temperature, moved.point

        def totals(args: tuple[Array, Array], block: Array, weights: Array) -> tuple[Array, Array]:
            (x, *others), shift = args
            heights, points = exponents((x, *others), block)
            shares = weights * jnp.exp(heights - shift)
            along = jax.grad(lambda v: shares @ others[-1].loss.values(v, points))(x)
            return jnp.sum(shares), along

        largest = rows.largest(lambda args, block: exponents(args, block)[0], at)
        total, along = rows.sum(totals, (at, largest))
        value = side * temperature * (largest + jnp.log(total / rows.size))
        return ValueAndGradient(value, along / total)

    def server(self, state: State, replies: ValueAndGradient, replied: Array) -> State:
        side, zero, rho = self._side, jnp.zeros(()), state.extra
        heights = side * masked(replied, replies.value, zero) / (rho * self.tau)
        logs = jnp.where(replied, jnp.log(state.alpha) + heights, -jnp.inf)
        whole = jax.scipy.special.logsumexp(logs)
        known = jnp.isfinite(whole)
        shares = jnp.where(known, jnp.exp(logs - jnp.where(known, whole, 0.0)), 0.0)
        x = state.x - self.eta_x * (shares @ masked(replied, replies.gradient, zero))
        # A constant in all entries of a gradient moves no mixture; this one makes that of who is absent 0.
        apart = jnp.where(replied & known, heights - jnp.where(known, whole, 0.0), 0.0)
        slope = side * rho * self.tau * (jnp.minimum(jnp.exp(apart), _STEEPEST) - 1)
        alpha = state.mixtures.project(state.alpha + self.eta_alpha * slope)
        return state.step(state.models.project(x), alpha)
