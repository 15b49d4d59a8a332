"""SCAFFOLD (Karimireddy et al.): min over x in X of the mean over clients of mean_k l(x, xi_i^k).

Each client's gradients are corrected by how its own differ from all clients': with control variates c_i, and
c their mean, a local step is y - eta_x (g_i(y) - c_i + c). After K of them, from x_t to y_i,

    c_i' = c_i - c + (x_t - y_i) / (K eta_x),     x_{t+1} = x_t + server_rate mean_i (y_i - x_t),

the mean being over those who replied ("option II" of the paper). Control variates are kept by the server and
sent to their clients, so that clients keep no state and a run can be resumed by replay.

Reference: Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich and Ananda
Theertha Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML, 2020.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked, require_step
from bidro.federated.algorithms.first_order import Batched, State, descended
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class Broadcast(NamedTuple):
    """Each client gets its own row."""

    x: Array  # (n, d) x_t
    difference: Array  # (n, d) c - c_i


class Reply(NamedTuple):
    move: Array  # y_i - x_t, (d,)


@pytree
class Scaffold(Batched):
    """Step sizes and local steps. A client that does not reply keeps its control variate; if none did, the
    model stays. All clients count alike.

    Args:
        eta_x: step size of the local steps, above 0.
        local_steps: gradient steps a round.
        batch: rows a step, drawn anew; None for all.
        server_rate: step size of the server.

    Raises:
        BidroError: for a step size that is not above 0 or a negative rate, or no local step.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import Scaffold
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(Scaffold(0.05, 3), paper_problem(simulate(0), None), 200).x.shape
        (3,)
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    per_client_broadcast: ClassVar[bool] = True
    needs_steps: ClassVar[str] = "SCAFFOLD"
    eta_x: float = 0.01
    local_steps: int = static(default=1)
    batch: int | None = static(default=None)
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_step("server_rate", self.server_rate)
        if not self.eta_x > 0:
            raise BidroError(
                f"SCAFFOLD divides by its local step size, which must be above 0; got {self.eta_x}."
            )

    def init(self, problem: Problem, seed: int = 0) -> State:
        state = super().init(problem, seed)
        n, d = problem.n, problem.dimension
        return state._replace(alpha=jnp.full(n, 1 / n), extra=jnp.zeros((n, d)))

    def broadcast(self, state: State) -> Broadcast:
        every = state.extra
        return Broadcast(jnp.broadcast_to(state.x, every.shape), jnp.mean(every, axis=0) - every)

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        x, difference = broadcast
        found = descended(client, x, self.eta_x, self.local_steps, draw, lambda _: difference)
        return Reply(found - x)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        moves = masked(replied, replies.move, jnp.zeros(()))
        step = jnp.sum(moves, axis=0) / jnp.maximum(jnp.sum(replied), 1)
        anybody = jnp.any(replied)
        x = jnp.where(anybody, state.models.project(state.x + self.server_rate * step), state.x)
        own = state.extra
        renewed = own - jnp.mean(own, axis=0) - moves / (self.local_steps * self.eta_x)
        return state.step(x, state.alpha, masked(replied, renewed, own))
