"""BiDRO-FL, Algorithm 1 of the paper, to the letter.

Solves the penalised problem (eq. reformed_DRO)

    min over x in X of max over alpha in A of
        sum_i alpha_i E_{zeta ~ P_i} [ sup over xi in Xi of l(x, xi) - rho_i c(zeta, xi) ]

by one projected stochastic descent step in x and one ascent step in alpha a round. DRO-FL, the baseline
of Section VI, is this algorithm on a problem with one shared penalty.

Reference: Yingzhu Liu, Zhongkui Li, Pengcheng You and Ashish Cherukuri. Distributionally Robust Federated
Learning with Multi-Source Data.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.federated.algorithm import RowsBehind, masked
from bidro.federated.algorithms.first_order import Broadcast, ModelAndWeights, State
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import FixedStepAscent, Oracle


class Draw(NamedTuple):
    position: Array  # in [0, 1): which of its rows the client samples
    noise: Array | None  # the oracle's random direction, (m,)


class Reply(NamedTuple):
    x: Array  # x_{i,t+1}, (d,)
    g_alpha: Array  # g^alpha_{i,t}


def normal_from_uniform(u: Array) -> Array:
    """Standard Gaussian numbers from uniform ones, by the inverse of the distribution function."""
    edge = np.nextafter(1.0, 0.0)
    return jnp.sqrt(2.0) * jax.scipy.special.erfinv(jnp.clip(2 * u - 1, -edge, edge))


@pytree
class BiDROFL(ModelAndWeights):
    """Step sizes eta_x and eta_alpha, and the inner oracle of line 5.

    A client that does not reply counts as one that stood still: its x_{i,t+1} is x_t and its
    g^alpha is 0.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        oracle: how line 5 finds the worst place of a sample; as the paper runs it by default.

    Raises:
        BidroError: for a step size that is negative or not finite.

    Examples:
        >>> from bidro import BiDROFL, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), [60.0, 60.0, 60.0, 60.0, 60.0])
        >>> found = run(BiDROFL(0.01, 0.01), problem, rounds=100, seed=1)
        >>> found.rounds, found.alpha.shape, round(found.alpha.sum(), 6)
        (100, (5,), np.float64(1.0))
    """

    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    oracle: Oracle = static(default=FixedStepAscent())

    @property
    def rows_behind(self) -> RowsBehind:
        return "one row"

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.ambiguity_set.penalised:
            raise BidroError("BiDRO-FL solves the penalised problem: give it Penalty(rho).")
        self.oracle.check(problem.inner)
        return super().init(problem, seed)

    def draw(self, client: Client, key: Array) -> Draw:
        if not self.oracle.needs_noise:
            return Draw(jax.random.uniform(key), None)
        # One call for all: a second key would cost as much again as the numbers themselves.
        u = jax.random.uniform(key, (1 + client.rows.samples.shape[-1],))
        return Draw(u[0], normal_from_uniform(u[1:]))

    def client(self, broadcast: Broadcast, client: Client, draw: Draw) -> Reply:
        g_x, g_alpha = self.gradients(broadcast.x, client, draw)
        return Reply(broadcast.x - self.eta_x * g_x, g_alpha)  # lines 8 and 9, eq. local_update

    def gradients(self, x: Array, client: Client, draw: Draw) -> tuple[Array, Array]:
        """(g^x, g^alpha) of one sampled row at x."""
        zeta = client.rows.row((draw.position * client.rows.size).astype(int))  # line 4
        z = self.oracle.maximise(client.inner, x, zeta, client.rho, draw.noise)  # line 5
        g_x = jax.grad(client.inner.loss.value)(x, z.point)  # line 6, eq. gradient_x
        return g_x, z.value  # line 7, eq. gradient_alpha; inf where the supremum is

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        x_clients = masked(replied, replies.x, state.x)
        g_alpha = masked(replied, replies.g_alpha, jnp.zeros(()))
        x = state.models.project(state.alpha @ x_clients)  # line 11, eq. global_x_update
        alpha = state.mixtures.project(state.alpha + self.eta_alpha * g_alpha)  # global_alpha_update
        return state.step(x, alpha)
