"""One round for squared loss: every client sends its second moments, and the server solves everything.

    min over x in X of max over alpha in A of sum_i alpha_i (RMSE_i(x) + eps_i nu(x))^2

RMSE_i(x)^2 = v' C_i v with v = (w, b, -1) and C_i the mean of (theta, 1, y)(theta, 1, y)', so C_i is all
there is to know of client i. The server then runs the rounds of the exact solver by itself. What is revealed
is C_i: one reply of the exact solver with curvature determines it too.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.algorithms.contract import Evidence, Snapshot, Usual
from bidro.algorithms.exact import Broadcast, ExactMWDRO, State
from bidro.algorithms.exact import Reply as Risks
from bidro.client import Client, ambiguity_kind
from bidro.errors import BidroError
from bidro.losses import Loss, Squared
from bidro.problem import Problem
from bidro.rows import ClientRows
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner
from bidro.worst_case.atoms import Pass, Point
from bidro.worst_case.ball import root_form, steepness
from bidro.worst_case.risk import RiskModel

# Rounds that the server makes by itself before it gives up.
_MOST_STEPS = 500


class Reply(NamedTuple):
    moments: Array  # (d + 1, d + 1) mean of (theta, 1, y)(theta, 1, y)', without the 1 where no intercept


class OneShotState(NamedTuple):
    solver: State  # of the exact solver
    eps: Array  # (n,)
    inner: Inner
    lifted: bool


@pytree
class OneShotMWDRO(Usual):
    """Squared loss on an unbounded support with p = 2, over balls or without ambiguity inside clients."""

    gap: float = static(default=1e-6)

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "all rows"
    second_order: ClassVar[bool] = True

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> OneShotState:
        kind = ambiguity_kind(problem.ambiguity)
        squared = isinstance(problem.loss, Squared)
        if not squared or kind == "penalty" or (kind == "ball" and not problem.lifted):
            raise BidroError(
                "One round is enough only for squared loss over Wasserstein balls with p = 2 on an unbounded "
                "support, or without ambiguity inside clients; choose another method."
            )
        solver = ExactMWDRO(Exact(), gap=self.gap).init(problem)
        eps = jnp.zeros(problem.n) if problem.eps is None else problem.eps
        return OneShotState(solver, eps, problem.inner, problem.lifted)

    def broadcast(self, state: OneShotState) -> Broadcast:
        return Broadcast(jnp.asarray(state.solver.x), jnp.asarray(state.solver.width))

    def client(self, broadcast: Broadcast, client: Client, draw: object) -> Reply:
        return Reply(second_moments(client.rows, client.inner.loss))

    def server(self, state: OneShotState, replies: Reply, replied: Array) -> OneShotState:
        """Needs all clients: until then, the round is repeated."""
        if not np.all(np.asarray(replied)):
            return state._replace(solver=state.solver._replace(t=state.solver.t + 1))
        exact = ExactMWDRO(Exact(), gap=self.gap, saves_rounds=False)
        solver, before = state.solver, state.solver.t
        while not solver.finished and solver.t - before < _MOST_STEPS:
            at = exact.broadcast(solver)
            found = risks_from_moments(state.lifted, replies.moments, state.eps, state.inner, at.x, at.width)
            solver = exact.server(solver, found, replied)
        # Nothing new would come of asking again.
        return state._replace(solver=solver._replace(t=before + 1, stalled=True))

    def snapshot(self, state: OneShotState) -> Snapshot:
        return Snapshot(state.solver.best.x, state.solver.best.x, state.solver.alpha)


def second_moments(rows: ClientRows, loss: Loss) -> Array:
    """(d + 1, d + 1) mean of (theta, 1, y)(theta, 1, y)' over the rows, without the 1 where no intercept."""
    assert isinstance(loss, Squared)

    def moments(_: Array, block: Array, weights: Array) -> Array:
        one = jnp.ones((len(block), int(loss.intercept)))
        v = jnp.concatenate([block[:, :-1], one, block[:, -1:]], axis=1)
        return (v.T * weights) @ v

    return rows.sum(moments, jnp.zeros(())) / rows.size


@jax.jit(static_argnums=0)
def risks_from_moments(
    lifted: bool, moments: Array, eps: Array, inner: Inner, x: Array, width: Array
) -> Risks:
    """What each client would reply, from its moments (n, d + 1, d + 1)."""

    def one(moment: Array, radius: Array) -> Risks:
        v, d = jnp.append(x, -1.0), x.shape[0]
        at = Point(x, steepness(inner, x) if lifted else None, width * jnp.sqrt(moment[-1, -1]))
        gradient = at.padded(2 * (moment @ v)[:d])
        hessian = at.padded(at.padded(2 * moment[:d, :d]).T)
        mean = jnp.maximum(v @ moment @ v, 0.0)
        still = Pass(mean, jnp.zeros(()), mean, gradient, jnp.zeros(()), hessian)
        if lifted:
            return Risks.of(root_form(at, still, radius))
        return Risks.of(RiskModel.unsplit(still, mean, mean, gradient, jnp.asarray(jnp.inf)))

    return jax.vmap(one)(moments, eps)
