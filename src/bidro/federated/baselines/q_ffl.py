"""q-FFL, fair federated learning (Li, Sanjabi, Beirami and Smith, 2020), by their q-FedAvg.

Solves min over x in X of sum_i p_i F_i(x)^(q+1) / (q + 1) with F_i(x) = mean_k l(x, xi_i^k) >= 0 and
p_i = N_i / N. With q = 0 this is FedAvg's problem; the larger q is, the more the largest F_i counts.

Every client replies with F_i at the common model x and with its model x_i after `local_steps` gradient steps
of size eta_x = 1 / L, each over all its rows or over a `batch` of them (F_i is over all of them either way).
D_i = L (x - x_i) stands for its gradient, and the server's step follows from a bound of the objective's
curvature, so that a step size that suits q = 0 suits every q:

    x <- x - sum_i p_i F_i^q D_i / sum_i p_i (q F_i^(q-1) ||D_i||^2 + L F_i^q), projected on X.

Reference: Tian Li, Maziar Sanjabi, Ahmad Beirami and Virginia Smith. Fair Resource Allocation in Federated
Learning. ICLR, 2020.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import masked
from bidro.federated.algorithms.first_order import (
    Batched,
    ModelBroadcast,
    State,
    descended,
    mean_and_gradient,
)
from bidro.problem.client import Client
from bidro.problem.problem import Problem

# A mean loss below this counts as this: F^(q-1) has no value at F = 0 where q < 1.
_FLOOR = 1e-12


class Reply(NamedTuple):
    value: Array  # F_i(x_t), mean loss over the client's rows
    x: Array  # the client's model after its local steps, (d,)


@pytree
class QFFL(Batched):
    """The power q >= 0, the step size 1 / L, local steps, and rows a step (all by default). The
    set A of mixtures plays no part.

    The step is over the clients that replied; if none did, the model stays. The weights shown as alpha are
    p_i F_i^q, scaled to sum to 1; a client that does not reply keeps its weight, and those who do share
    theirs out anew. Before the first reply they are p_i.

    Args:
        q: the power, at least 0; 0 is FedAvg's problem.
        eta_x: step size 1 / L of the local steps.
        local_steps: gradient steps between two exchanges.
        batch: rows a step, drawn anew; None for all.

    Raises:
        BidroError: for a negative power or step size, or no local step.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.baselines import QFFL
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(QFFL(q=2.0), paper_problem(simulate(0), None), 200).x.round(1).tolist()
        [1.0, 0.5, -0.5]
    """

    broadcast_type: ClassVar[type] = ModelBroadcast
    reply_type: ClassVar[type] = Reply
    needs_steps: ClassVar[str] = "q-FFL"
    q: float = 1.0
    eta_x: float = 0.1
    local_steps: int = static(default=1)
    batch: int | None = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.q, int | float | np.number) or not 0 <= self.q < math.inf:
            raise BidroError(f"The power q must be a finite number and not negative; got {self.q!r}.")

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.loss.nonnegative:
            raise BidroError(
                f"q-FFL takes powers of mean losses, so that they must not be negative; of "
                f"{type(problem.loss).__name__} this is not known."
            )
        shares = jnp.asarray(problem.federation.proportions)
        return super().init(problem, seed)._replace(alpha=shares, extra=shares)

    def broadcast(self, state: State) -> ModelBroadcast:
        return ModelBroadcast(state.x)

    def client(self, broadcast: ModelBroadcast, client: Client, draw: Array | None) -> Reply:
        x, eta_x = broadcast.x, self.eta_x
        if draw is not None:
            value = client.rows.mean(client.inner.loss.values, x)
            return Reply(value, descended(client, x, eta_x, self.local_steps, draw))
        value, gradient = mean_and_gradient(client, x, None)
        return Reply(value, descended(client, x - eta_x * gradient, eta_x, self.local_steps - 1, None))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        shares = state.extra  # p
        values = jnp.maximum(masked(replied, replies.value, jnp.zeros(())), _FLOOR)
        moves = state.x - masked(replied, replies.x, state.x)  # D_i / L
        # Only ratios of the F_i^q matter, and those to the largest do not overflow.
        counts = jnp.where(replied, shares * (values / jnp.max(values)) ** self.q, 0.0)
        total = jnp.sum(counts)
        safe_eta = jnp.where(jnp.asarray(self.eta_x) > 0, self.eta_x, 1.0)
        curvatures = 1 + self.q * jnp.sum(moves**2, axis=1) / (safe_eta * values)
        step = counts @ moves / jnp.where(total > 0, counts @ curvatures, 1.0)
        x = jnp.where(total > 0, state.models.project(state.x - step), state.x)
        held = jnp.sum(jnp.where(replied, state.alpha, 0.0))
        alpha = jnp.where(replied, held * counts / jnp.where(total > 0, total, 1.0), state.alpha)
        return state.step(x, alpha)
