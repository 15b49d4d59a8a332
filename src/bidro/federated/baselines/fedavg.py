"""FedAvg (McMahan et al.): min over x in X of sum_i (N_i / N) mean_k l(x, xi_i^k).

Each round, every client takes `local_steps` gradient steps from the common model, each over all its rows or
over a `batch` of them, and the server averages the results by sample size. With a prox weight mu the clients'
steps are on their mean loss + mu / 2 ||x - x_t||^2, x_t being the common model: FedProx (Li et al., 2020).

Reference: H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson and Blaise Aguera y Arcas.
Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS, 2017. Tian Li, Anit Kumar
Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar and Virginia Smith. Federated Optimization in
Heterogeneous Networks. MLSys, 2020.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from bidro.core.jax_on_use import Array, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import require_step
from bidro.federated.algorithms.first_order import Batched, Broadcast, State, descended
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class Reply(NamedTuple):
    x: Array  # the client's model after its local steps, (d,)


@pytree
class FedAvg(Batched):
    """Step size and local steps. The average is over the clients that replied; if none did, the
    model stays. Local models are projected on X once, after averaging.

    Args:
        eta_x: step size of the local steps.
        local_steps: gradient steps between two averages.
        batch: rows a step, drawn anew; None for all.
        prox_weight: mu of FedProx; 0 is FedAvg.

    Raises:
        BidroError: for a negative step size or prox weight, or no local step.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(FedAvg(0.1), paper_problem(simulate(0), None), 200).x.round(1).tolist()
        [1.0, 0.5, -0.5]
    """

    reply_type: ClassVar[type] = Reply
    needs_steps: ClassVar[str] = "FedAvg"
    eta_x: float = 0.01
    local_steps: int = static(default=1)
    batch: int | None = static(default=None)
    prox_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_step("prox_weight", self.prox_weight)

    def init(self, problem: Problem, seed: int = 0) -> State:
        return super().init(problem, seed)._replace(alpha=jnp.asarray(problem.federation.proportions))

    def client(self, broadcast: Broadcast, client: Client, draw: Array | None) -> Reply:
        def pull(x: Array) -> Array:
            return self.prox_weight * (x - broadcast.x)

        return Reply(descended(client, broadcast.x, self.eta_x, self.local_steps, draw, pull))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        shares = jnp.where(replied, state.alpha, 0.0)
        present = jnp.sum(shares)
        safe = jnp.where(replied[:, None], replies.x, 0.0)
        average = shares @ safe / jnp.where(present > 0, present, 1.0)
        x = jnp.where(present > 0, state.models.project(average), state.x)
        return state.step(x, state.alpha)
