"""FedAvg (McMahan et al.): min over x in X of sum_i (N_i / N) mean_k l(x, xi_i^k).

Each round, every client takes `local_steps` gradient steps from the common model, each over all its rows or
over a `batch` of them, and the server averages the results by sample size.

Reference: H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Aguera y Arcas.
Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS, 2017.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Evidence, require_step
from bidro.algorithms.minibatch import (
    batch_mean_and_gradient,
    draw_batches,
    evidence_of,
    require_batch,
)
from bidro.algorithms.model_and_weights import Broadcast, ModelAndWeights, State
from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.trees import pytree, static


class Reply(NamedTuple):
    x: Array  # the client's model after its local steps, (d,)


@pytree
class FedAvg(ModelAndWeights):
    """Step size and local steps. The average is over the clients that replied; if none did, the
    model stays. Local models are projected on X once, after averaging.

    Args:
        eta_x: step size of the local steps.
        local_steps: gradient steps between two averages.
        batch: rows a step, drawn anew; None for all.

    Raises:
        BidroError: for a negative step size or no local step.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(FedAvg(0.1), paper_problem(simulate(0), None), 200).x.round(1).tolist()
        [1.0, 0.5, -0.5]
    """

    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.01
    local_steps: int = static(default=1)
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        require_step("eta_x", self.eta_x)
        if self.local_steps < 1:
            raise BidroError(f"FedAvg needs at least one local step; got {self.local_steps}.")
        require_batch(self.batch)

    @property
    def evidence(self) -> Evidence:
        return evidence_of(self.batch, "all rows")

    def init(self, problem: Problem, seed: int = 0) -> State:
        return super().init(problem, seed)._replace(alpha=jnp.asarray(problem.federation.proportions))

    def draw(self, client: Client, key: Array) -> Array | None:
        """The rows of every local step's batch."""
        return None if self.batch is None else draw_batches(client, key, self.local_steps, self.batch)

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        if draw is not None:

            def batch_step(x: Array, rows: Array) -> tuple[Array, None]:
                return x - self.eta_x * batch_mean_and_gradient(client, rows, x)[1], None

            return Reply(jax.lax.scan(batch_step, broadcast.x, draw)[0])

        def step(_: int, x: Array) -> Array:
            return x - self.eta_x * client.rows.mean_and_gradient(client.inner.loss.values, x)[1]

        if self.local_steps == 1:
            return Reply(step(0, broadcast.x))
        return Reply(jax.lax.fori_loop(0, self.local_steps, step, broadcast.x))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        shares = jnp.where(replied, state.alpha, 0.0)
        present = jnp.sum(shares)
        safe = jnp.where(replied[:, None], replies.x, 0.0)
        average = shares @ safe / jnp.where(present > 0, present, 1.0)
        x = jnp.where(present > 0, state.models.project(average), state.x)
        return state.step(x, state.alpha)
