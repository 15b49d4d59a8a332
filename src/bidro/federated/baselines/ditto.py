"""Ditto (Li et al.): personal models v_i beside FedAvg's common one,

    v_i = argmin over v of mean_k l(v, xi_i^k) + pull / 2 ||v - x*||^2,    x* that of FedAvg.

Each round a client takes FedAvg's local steps from x_t, and as many of its own,
v <- v - eta_x (g_i(v) + pull (v - x_t)). Personal models are kept by the server and sent to their clients, so
that clients keep no state and a run can be resumed by replay; they are `result.state.extra` (n, d), in the
order of the clients.

Reference: Tian Li, Shengyuan Hu, Ahmad Beirami and Virginia Smith. Ditto: Fair and Robust Federated Learning
Through Personalization. ICML, 2021.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked, require_step
from bidro.federated.algorithms.first_order import Batched, State, descended, draw_batches
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class Broadcast(NamedTuple):
    """Each client gets its own row."""

    x: Array  # (n, d) x_t
    personal: Array  # (n, d) v_i


class Reply(NamedTuple):
    x: Array  # the client's model after its steps from x_t, (d,)
    personal: Array  # v_i after its own, (d,)


@pytree
class Ditto(Batched):
    """Step size, local steps and pull. A client that does not reply keeps its personal model; the common one
    is FedAvg's. Both are projected on X, the personal one after each round.

    Args:
        eta_x: step size of all local steps.
        local_steps: gradient steps a round, of each of the two models.
        batch: rows a step, drawn anew; None for all.
        pull: lambda of the paper, towards the common model.

    Raises:
        BidroError: for a negative step size or pull, or no local step.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import Ditto
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = run(Ditto(0.1, pull=1.0), paper_problem(simulate(0), None), 200)
        >>> found.x.round(1).tolist(), found.state.extra.shape
        ([1.0, 0.5, -0.5], (5, 3))
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    per_client_broadcast: ClassVar[bool] = True
    needs_steps: ClassVar[str] = "Ditto"
    eta_x: float = 0.01
    local_steps: int = static(default=1)
    batch: int | None = static(default=None)
    pull: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_step("pull", self.pull)

    def init(self, problem: Problem, seed: int = 0) -> State:
        state = super().init(problem, seed)
        first = jnp.tile(jnp.asarray(state.x), (problem.n, 1))
        return state._replace(alpha=jnp.asarray(problem.federation.proportions), extra=first)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(jnp.broadcast_to(state.x, state.extra.shape), state.extra)

    def draw(self, client: Client, key: Array) -> Array | None:
        """(2, local_steps, batch) positions, for the steps of either model; None without batches."""
        if self.batch is None:
            return None
        drawn = draw_batches(client, key, 2 * self.local_steps, self.batch)
        return drawn.reshape(2, self.local_steps, self.batch)

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        x, personal = broadcast
        common, own = (None, None) if draw is None else draw

        def towards(v: Array) -> Array:
            return self.pull * (v - x)

        return Reply(
            descended(client, x, self.eta_x, self.local_steps, common),
            descended(client, personal, self.eta_x, self.local_steps, own, towards),
        )

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        shares = jnp.where(replied, state.alpha, 0.0)
        present = jnp.sum(shares)
        average = shares @ masked(replied, replies.x, jnp.zeros(())) / jnp.where(present > 0, present, 1.0)
        x = jnp.where(present > 0, state.models.project(average), state.x)
        inside = jax.vmap(state.models.project)(masked(replied, replies.personal, state.extra))
        return state.step(x, state.alpha, masked(replied, inside, state.extra))
