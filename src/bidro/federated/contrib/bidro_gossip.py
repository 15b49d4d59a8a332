"""BiDRO-FL without a server: every client is a node with copies of its own, and talks to its neighbours.

Solves what Algorithm 1 solves (eq. reformed_DRO),

    min over x in X of max over alpha in A of
        sum_i alpha_i E_{zeta ~ P_i} [ sup over xi in Xi of l(x, xi) - rho_i c(zeta, xi) ],

as the paper's closing remark proposes: without central coordination. Node i keeps a model x_i and all weights
alpha_i (n,). In a round it first adapts, by the gradients of one sampled row at its own model,

    x_i' = x_i - eta_x n alpha_i[i] g^x_i,    alpha_i' = alpha_i + eta_alpha n g^alpha_i e_i,

sends both to its neighbours, and then combines what it has and gets,

    x_i <- P_X(sum_j W_ij x_j'),    alpha_i <- P_A(sum_j W_ij alpha_j').

That order is that of diffusion strategies (Chen and Sayed, 2012); weights kept by every node are as in AD-GDA
(Zecchin, Kountouris and Gesbert, 2022). W are Metropolis weights (Xiao, Boyd and Lall), symmetric with rows
that sum to 1, so that the average over nodes takes the steps of all. On the complete graph W_ij = 1 / n, all
copies stay equal, and the algorithm is Algorithm 1.

In the contract, a node's part of the broadcast is what it kept, its reply is what it sends to its neighbours,
and `server` stands for the wires between nodes and for what each node does with what it got. It runs in
one process only: the deployed networks have a hub.

References: Jianshu Chen and Ali H. Sayed. Diffusion Adaptation Strategies for Distributed Optimization and
Learning over Networks. IEEE Transactions on Signal Processing 60, 2012. Matteo Zecchin, Marios Kountouris and
David Gesbert. Communication-Efficient Distributionally Robust Decentralized Learning. TMLR, 2022. Lin Xiao,
Stephen Boyd and Sanjay Lall. A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus. IPSN,
2005.
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.core.sets import MixtureSet, VectorSet
from bidro.federated.algorithm import RowsBehind, Snapshot, masked
from bidro.federated.algorithms.bidro_fl import BiDROFL, Draw
from bidro.federated.algorithms.first_order import ModelAndWeights, State
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import FixedStepAscent, Oracle

Graph = tuple[tuple[str, str], ...]


def ring(names: tuple[str, ...]) -> Graph:
    """Every client is a neighbour of the one before and the one after it."""
    if len(names) < 3:
        return complete(names)
    return tuple(zip(names, (*names[1:], names[0]), strict=True))


def complete(names: tuple[str, ...]) -> Graph:
    """Every client is a neighbour of every other."""
    return tuple(combinations(names, 2))


def metropolis(graph: Graph, names: tuple[str, ...]) -> NDArray[np.float64]:
    """W (n, n): 1 / (1 + the larger number of neighbours) on an edge, on the diagonal what is left of 1.

    Raises BidroError where an edge names somebody else, or some client cannot be reached.
    """
    linked = np.zeros((len(names), len(names)), bool)
    for a, b in graph:
        for name in (a, b):
            if name not in names:
                raise BidroError(f"The graph names '{name}', but the clients are {', '.join(names)}.")
        linked[names.index(a), names.index(b)] = linked[names.index(b), names.index(a)] = True
    reached = np.arange(len(names)) == 0
    for _ in names:
        reached |= linked[reached].any(axis=0)
    if not reached.all():
        lost = names[int(np.argmin(reached))]
        raise BidroError(f"The graph is not connected: no way leads from '{names[0]}' to '{lost}'.")
    degree = linked.sum(axis=1)
    weights = np.where(linked, 1 / (1 + np.maximum.outer(degree, degree)), 0.0)
    return weights + np.diag(1 - weights.sum(axis=1))


class Broadcast(NamedTuple):
    x: Array  # x_i
    alpha: Array  # alpha_i
    own: Array  # e_i


class Reply(NamedTuple):
    x: Array  # x_i'
    alpha: Array  # alpha_i'


@pytree
class BiDROGossip(ModelAndWeights):
    """Step sizes, the graph as pairs of client names (see `ring` and `complete`), and the oracle.

    A node that does not reply stands still, and its neighbours go on with its last copies.

    Args:
        eta_x: step size of the model.
        eta_alpha: step size of the mixture weights.
        graph: pairs of clients' names that talk to each other; together they must reach everybody.
        oracle: solves the inner problems.

    Raises:
        BidroError: for a negative step size, and from `run` for a graph that leaves somebody out.

    Examples:
        >>> from bidro import run
        >>> from bidro.federated.contrib import BiDROGossip
        >>> from bidro.federated.contrib.bidro_gossip import ring
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), [60.0, 60.0, 60.0, 60.0, 60.0])
        >>> run(BiDROGossip(0.01, 0.01, ring(problem.federation.names)), problem, 50).x.shape
        (3,)
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    rows_behind: ClassVar[RowsBehind] = "one row"
    per_client_broadcast: ClassVar[bool] = True
    eta_x: float = 0.01
    eta_alpha: float = 0.01
    graph: Graph = static(default=())
    oracle: Oracle = static(default=FixedStepAscent())

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = isinstance(self.graph, tuple) and all(
            isinstance(edge, tuple) and len(edge) == 2 and edge[0] != edge[1] for edge in self.graph
        )
        if not pairs:
            raise BidroError("The graph must be a tuple of pairs of different client names.")

    def init(self, problem: Problem, seed: int = 0) -> State:
        """Each node's model (n, d) and weights (n, n), a row a node; W (n, n) is the extra."""
        weights = jnp.asarray(metropolis(self.graph, problem.federation.names))
        start = self._hub.init(problem, seed)
        x, alpha = (jnp.tile(v, (problem.n, 1)) for v in (start.x, start.alpha))
        return start._replace(x=x, alpha=alpha, extra=weights)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(state.x, state.alpha, jnp.eye(state.x.shape[0]))

    def draw(self, client: Client, key: Array) -> Draw:
        return self._hub.draw(client, key)

    def client(self, broadcast: Broadcast, client: Client, draw: Draw) -> Reply:
        x, alpha, own = broadcast
        n = own.shape[0]
        g_x, g_alpha = self._hub.gradients(x, client, draw)
        return Reply(x - self.eta_x * n * (alpha @ own) * g_x, alpha + self.eta_alpha * n * g_alpha * own)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        def combined(kept: Array, sent: Array, allowed: VectorSet | MixtureSet) -> Array:
            known = masked(replied, sent, kept)
            return masked(replied, jax.vmap(allowed.project)(state.extra @ known), kept)

        x = combined(state.x, replies.x, state.models)
        alpha = combined(state.alpha, replies.alpha, state.mixtures)
        x_sum = state.x_sum + jnp.mean(state.x, axis=0)
        return state._replace(x=x, alpha=alpha, x_sum=x_sum, t=state.t + 1)

    def snapshot(self, state: State) -> Snapshot:
        """The averages over nodes."""
        average = state.x_sum / jnp.maximum(state.t - 1, 1)
        return Snapshot(jnp.mean(state.x, axis=0), average, jnp.mean(state.alpha, axis=0))

    @property
    def _hub(self) -> BiDROFL:
        """Algorithm 1, for its draws and gradients, in which step sizes play no part."""
        return BiDROFL(oracle=self.oracle)
