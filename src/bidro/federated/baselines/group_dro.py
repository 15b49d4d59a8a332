"""Online Group DRO: one row, or a few, of one group a round.

Solves min over x in X of max over alpha in the simplex of

    sum_g alpha_g (mean_k l(x, xi_g^k) + C / sqrt(N_g)),

the groups being the clients and C the `adjustment`, by which small ones count for more. Each round one group
g sends the loss and its gradient at one of its rows, drawn uniformly, or their means over a `batch`:

- sampling = "uniform" (Sagawa, Koh, Hashimoto and Liang, 2020, Algorithm 1): g is uniform,
  alpha_g <- alpha_g exp(eta_alpha (l + C / sqrt(N_g))), rescaled to sum to 1, and then
  x <- x - eta_x alpha_g grad l with the new alpha_g. As published, no factor n makes up for one group of n.
- sampling = "weights" (Soma et al., 2022; Yu et al., 2024): g is drawn by alpha, so that
  x <- x - eta_x grad l needs no weight, and the gain (l + C / sqrt(N_g)) / alpha_g of the group drawn, 0 for
  others, is an unbiased estimate of all groups' losses. This is the bare rule, without the exploration that
  published variants add: a group whose alpha_g is not large against eta_alpha l can leap to a weight near 1,
  and then no other is drawn any more.

x is projected on X after every step.

References: Shiori Sagawa, Pang Wei Koh, Tatsunori B. Hashimoto and Percy Liang. Distributionally Robust
Neural Networks for Group Shifts. ICLR, 2020. Tasuku Soma, Khashayar Gatmiry, Sharut Gupta and Stefanie
Jegelka. Near-Optimal Algorithms for Group Distributionally Robust Optimization and Beyond. 2022. Dingzhi Yu,
Yunuo Cai, Wei Jiang and Lijun Zhang. Efficient Algorithms for Empirical Group Distributionally Robust
Optimization and Beyond. ICML, 2024.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import RowsBehind, masked
from bidro.federated.algorithms.first_order import (
    Batched,
    ModelBroadcast,
    Sampling,
    State,
    ValueAndGradient,
    mean_and_gradient,
)
from bidro.problem.client import Client
from bidro.problem.problem import Problem

_TAG = 0x6D20  # of the server's random numbers


class Groups(NamedTuple):
    sizes: Array  # (n,) N_g
    sampling: Sampling


@pytree
class GroupDRO(Batched):
    """Step sizes, the adjustment C for small groups, how groups are drawn, and rows a round (one by default).

    alpha starts at the proportions N_g / N, as for every algorithm here. If the sampled group does not reply,
    nothing moves. Weights need the full simplex.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the weights, in their exponent.
        adjustment: C, at least 0.
        sampling: how the group of a round is drawn: "uniform" or "weights".
        batch: rows of that group, drawn anew; None for one.

    Raises:
        BidroError: for a negative step size or adjustment, or another word for `sampling`.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import GroupDRO
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(GroupDRO(0.01, 0.01), paper_problem(simulate(0), None), 200).alpha.shape
        (5,)
    """

    broadcast_type: ClassVar[type] = ModelBroadcast
    reply_type: ClassVar[type] = ValueAndGradient
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    adjustment: float = 0.0
    sampling: Literal["uniform", "weights"] = static(default="uniform")
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.adjustment, int | float | np.number)
        if not number or not 0 <= self.adjustment < math.inf:
            raise BidroError(
                f"The adjustment must be a finite number and not negative; got {self.adjustment!r}."
            )
        if self.sampling not in ("uniform", "weights"):
            raise BidroError(f"Groups are sampled 'uniform' or by 'weights'; got {self.sampling!r}.")

    @property
    def rows_behind(self) -> RowsBehind:
        return "one row" if self.batch is None else super().rows_behind

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.mixture_set.is_whole:
            raise BidroError(
                f"Group DRO multiplies its weights, which keeps them in the full simplex only, not in a "
                f"{type(problem.mixture_set).__name__}; leave out `mixtures`, or use AFL or DRFA."
            )
        groups = Groups(jnp.asarray(problem.federation.sizes, float), Sampling.of(problem, seed, _TAG))
        return super().init(problem, seed)._replace(extra=groups)

    def broadcast(self, state: State) -> ModelBroadcast:
        return ModelBroadcast(state.x)

    def participants(self, state: State) -> Array:
        noise = state.extra.sampling.draws(state.t, jax.random.gumbel)
        # The largest of log alpha_g plus Gumbel noise is at group g with probability alpha_g.
        score = noise if self.sampling == "uniform" else noise + jnp.log(state.alpha)
        return jnp.arange(score.shape[0]) == jnp.argmax(score)

    def draw(self, client: Client, key: Array) -> Array:
        """In [0, 1): which of its rows the group takes; with a batch, their positions (1, batch)."""
        return jax.random.uniform(key) if self.batch is None else super().draw(client, key)

    def client(self, broadcast: ModelBroadcast, client: Client, draw: Array) -> ValueAndGradient:
        if self.batch is not None:
            return ValueAndGradient(*mean_and_gradient(client, broadcast.x, draw[0]))
        row = client.rows.row((draw * client.rows.size).astype(int))
        return ValueAndGradient(*jax.value_and_grad(client.inner.loss.value)(broadcast.x, row))

    def server(self, state: State, replies: ValueAndGradient, replied: Array) -> State:
        chosen = replied & self.participants(state)
        zero = jnp.zeros(())
        gain = masked(chosen, replies.value + self.adjustment / jnp.sqrt(state.extra.sizes), zero)
        if self.sampling == "weights":
            gain = gain / jnp.where(chosen, state.alpha, 1.0)
        # Softmax takes the largest exponent off all of them.
        alpha = jax.nn.softmax(jnp.log(state.alpha) + self.eta_alpha * gain)
        weights = alpha if self.sampling == "uniform" else jnp.ones_like(alpha)
        step = weights @ masked(chosen, replies.gradient, zero)
        x = state.models.project(state.x - self.eta_x * step)
        return state.step(x, alpha)
