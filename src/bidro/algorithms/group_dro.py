"""Online Group DRO: one row, or a few, of one group a round.

Solves min over x in X of max over alpha in the simplex of

    sum_g alpha_g (mean_k l(x, xi_g^k) + C / sqrt(N_g)),

the groups being the clients and C the `adjustment`, by which small ones count for more. Each round one group
g is asked for the loss and its gradient at one of its rows, drawn uniformly, or their means over a `batch`:

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

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.algorithms.contract import Evidence, Usual, client_key, masked, require_step
from bidro.algorithms.minibatch import (
    batch_mean_and_gradient,
    draw_batches,
    evidence_of,
    require_batch,
)
from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.sets import Simplex, VectorSet
from bidro.trees import pytree, static

_TAG = 0x6D20  # keeps the server's random numbers apart from those of clients and of other algorithms


class State(NamedTuple):
    x: Array  # x_t, (d,)
    alpha: Array  # alpha_t, (n,)
    x_sum: Array  # x_1 + ... + x_{t-1}
    t: Array  # the round to come, from 1
    models: VectorSet  # X
    sizes: Array  # (n,) N_g
    key: Array
    ids: Array  # (n, 2)


class Broadcast(NamedTuple):
    x: Array  # x_t


class Reply(NamedTuple):
    value: Array  # l at the row drawn, or its mean over the batch
    gradient: Array  # of l in x, (d,)


@pytree
class GroupDRO(Usual):
    """Step sizes, the adjustment C for small groups, how groups are drawn, and rows a round (one by default).

    alpha starts at the proportions N_g / N, as for every algorithm here. If the group asked does not reply,
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
        >>> from bidro import GroupDRO, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(GroupDRO(0.01, 0.01), paper_problem(simulate(0), None), 200).alpha.shape
        (5,)
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    second_order: ClassVar[bool] = False
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    adjustment: float = 0.0
    sampling: Literal["uniform", "weights"] = static(default="uniform")
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        require_step("eta_x", self.eta_x)
        require_step("eta_alpha", self.eta_alpha)
        number = isinstance(self.adjustment, int | float | np.number)
        if not number or not 0 <= self.adjustment < math.inf:
            raise BidroError(
                f"The adjustment must be a finite number and not negative; got {self.adjustment!r}."
            )
        if self.sampling not in ("uniform", "weights"):
            raise BidroError(f"Groups are sampled 'uniform' or by 'weights'; got {self.sampling!r}.")
        require_batch(self.batch)

    @property
    def evidence(self) -> Evidence:
        return evidence_of(self.batch, "one row")

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not isinstance(problem.mixture_set, Simplex):
            raise BidroError(
                f"Group DRO multiplies its weights, which keeps them in the full simplex only, not in a "
                f"{type(problem.mixture_set).__name__}; leave out `mixtures`, or use AFL or DRFA."
            )
        x, sizes = problem.initial_model, jnp.asarray(problem.federation.sizes, float)
        key = jax.random.fold_in(jax.random.key(seed), _TAG)
        ids, first = jnp.asarray(problem.federation.client_ids), jnp.ones((), int)
        return State(x, problem.initial_weights, jnp.zeros_like(x), first, problem.domain, sizes, key, ids)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(state.x)

    def participants(self, state: State) -> Array:
        keys = jax.vmap(client_key, in_axes=(None, None, 0))(state.key, state.t, state.ids)
        noise = jax.vmap(jax.random.gumbel)(keys)
        # The largest of log alpha_g plus Gumbel noise is at group g with probability alpha_g.
        score = noise if self.sampling == "uniform" else noise + jnp.log(state.alpha)
        return jnp.arange(score.shape[0]) == jnp.argmax(score)

    def draw(self, client: Client, key: Array) -> Array:
        """In [0, 1): which of its rows the group takes; with a batch, their positions."""
        if self.batch is not None:
            return draw_batches(client, key, 1, self.batch)[0]
        return jax.random.uniform(key)

    def client(self, broadcast: Broadcast, client: Client, draw: Array) -> Reply:
        if self.batch is not None:
            return Reply(*batch_mean_and_gradient(client, draw, broadcast.x))
        row = client.rows.row((draw * client.rows.size).astype(int))
        return Reply(*jax.value_and_grad(client.inner.loss.value)(broadcast.x, row))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        chosen = replied & self.participants(state)
        zero = jnp.zeros(())
        gain = masked(chosen, replies.value + self.adjustment / jnp.sqrt(state.sizes), zero)
        if self.sampling == "weights":
            gain = gain / jnp.where(chosen, state.alpha, 1.0)
        # Softmax takes the largest exponent off all of them.
        alpha = jax.nn.softmax(jnp.log(state.alpha) + self.eta_alpha * gain)
        weights = alpha if self.sampling == "uniform" else jnp.ones_like(alpha)
        step = weights @ masked(chosen, replies.gradient, zero)
        x = state.models.project(state.x - self.eta_x * step)
        return state._replace(x=x, alpha=alpha, x_sum=state.x_sum + state.x, t=state.t + 1)
