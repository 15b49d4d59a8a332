"""AFL, agnostic federated learning (Mohri et al.), as Section VI runs it.

Solves min over x in X of max over alpha in A of sum_i alpha_i mean_k l(x, xi_i^k): the mixture is
uncertain, the clients' distributions are not. Each round, every client evaluates its full local loss, or
that of a `batch` of its rows, and the server takes a projected descent step in x and an ascent step in alpha
at the same time.

Reference: Mehryar Mohri, Gary Sivek and Ananda Theertha Suresh. Agnostic Federated Learning. ICML, 2019.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Evidence, masked, require_step
from bidro.algorithms.minibatch import (
    batch_mean_and_gradient,
    draw_batches,
    evidence_of,
    require_batch,
)
from bidro.algorithms.model_and_weights import Broadcast, ModelAndWeights, State
from bidro.client import Client
from bidro.trees import pytree, static


class Reply(NamedTuple):
    value: Array  # mean loss over the client's rows, or over its batch
    gradient: Array  # its gradient in x, (d,)


@pytree
class AFL(ModelAndWeights):
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

    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.001
    eta_alpha: float = 0.001
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        require_step("eta_x", self.eta_x)
        require_step("eta_alpha", self.eta_alpha)
        require_batch(self.batch)

    @property
    def evidence(self) -> Evidence:
        return evidence_of(self.batch, "all rows")

    def draw(self, client: Client, key: Array) -> Array | None:
        """The rows of the batch."""
        return None if self.batch is None else draw_batches(client, key, 1, self.batch)[0]

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        if draw is not None:
            return Reply(*batch_mean_and_gradient(client, draw, broadcast.x))
        return Reply(*client.rows.mean_and_gradient(client.inner.loss.values, broadcast.x))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        gradients = masked(replied, replies.gradient, jnp.zeros(()))
        values = masked(replied, replies.value, jnp.zeros(()))
        x = state.models.project(state.x - self.eta_x * (state.alpha @ gradients))
        alpha = state.mixtures.project(state.alpha + self.eta_alpha * values)
        return state.step(x, alpha)
