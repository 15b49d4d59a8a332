"""AFL, agnostic federated learning (Mohri et al.), as Section VI runs it.

Solves min over x in X of max over alpha in A of sum_i alpha_i mean_k l(x, xi_i^k): the mixture is
uncertain, the clients' distributions are not. Each round, every client evaluates its full local loss, or
that of a `batch` of its rows, and the server takes a projected descent step in x and an ascent step in alpha
at the same time.

Reference: Mehryar Mohri, Gary Sivek and Ananda Theertha Suresh. Agnostic Federated Learning. ICML, 2019.
"""

from __future__ import annotations

from typing import ClassVar

from bidro.core.jax_on_use import Array, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked
from bidro.federated.algorithms.first_order import (
    Batched,
    Broadcast,
    State,
    ValueAndGradient,
    mean_and_gradient,
)
from bidro.problem.client import Client


@pytree
class AFL(Batched):
    """Step sizes for both variables, and rows a round. A client that does not reply counts as one with
    gradient and value 0: the model and its weight do not move on its account.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        batch: rows a round, drawn anew; None for all.

    Raises:
        BidroError: for a step size that is negative or not finite.

    Examples:
        >>> from bidro import AFL, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(AFL(0.1, 0.1), paper_problem(simulate(0), None), 200).x_average.round(1).tolist()
        [-0.1, 1.4, -0.4]
    """

    reply_type: ClassVar[type] = ValueAndGradient
    eta_x: float = 0.001
    eta_alpha: float = 0.001
    batch: int | None = static(default=None)

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> ValueAndGradient:
        batch = None if draw is None else draw[0]
        return ValueAndGradient(*mean_and_gradient(client, broadcast.x, batch))

    def server(self, state: State, replies: ValueAndGradient, replied: Array) -> State:
        gradients = masked(replied, replies.gradient, jnp.zeros(()))
        values = masked(replied, replies.value, jnp.zeros(()))
        x = state.models.project(state.x - self.eta_x * (state.alpha @ gradients))
        alpha = state.mixtures.project(state.alpha + self.eta_alpha * values)
        return state.step(x, alpha)
