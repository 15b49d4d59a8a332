"""One round for squared loss: every client sends its second moments, and the server solves everything.

    min over x in X of max over alpha in A of sum_i alpha_i (RMSE_i(x) + eps_i nu(x))^2

With v = (w, -1), RMSE_i(x)^2 = v' S_i v + (<v, m_i> + b)^2, m_i the mean and S_i the second moments around it
of client i's (theta, y): they are all there is to know of it. The server then runs the rounds of the exact
solver by itself. What is revealed is (m_i, S_i): one reply of the exact solver with curvature determines them
too, where the model has an intercept. Moments around zero would say the same, but lose what they have in
common to rounding; what rounding is left is bounded and added to the bounds.
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
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.rows import ClientRows
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner
from bidro.worst_case.atoms import Pass, Point
from bidro.worst_case.ball import root_form, steepness
from bidro.worst_case.risk import RiskModel

# Rounds that the server makes by itself before it gives up.
_MOST_STEPS = 500


# Sums over up to ten million rows are off by no more than this share of the sizes of their terms: twice what
# was found for terms made to round the same way.
_ROUNDING = 320 * float(np.finfo(float).eps)
# Means are mended by a second pass, and off by a few units only.
_OF_MEANS = 16 * float(np.finfo(float).eps)


class Reply(NamedTuple):
    """Of (theta, y)."""

    mean: Array  # (m,)
    around: Array  # (m, m) second moments around the mean


class OneShotState(NamedTuple):
    solver: State  # of the exact solver
    eps: Array  # (n,)
    inner: Inner
    lifted: bool

    @property
    def finished(self) -> bool:
        return self.solver.finished


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

    @staticmethod
    def suits(problem: Problem) -> bool:
        """Whether the second moments tell all of this problem."""
        kind = ambiguity_kind(problem.ambiguity)
        squared = isinstance(problem.loss, Squared)
        return squared and (kind == "none" or (kind == "ball" and problem.lifted))

    def init(self, problem: Problem, seed: int = 0) -> OneShotState:
        if not self.suits(problem):
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
        return second_moments(client.rows)

    def server(self, state: OneShotState, replies: Reply, replied: Array) -> OneShotState:
        """Needs all clients: until then, the round is repeated."""
        if not np.all(np.asarray(replied)):
            return state._replace(solver=state.solver._replace(t=state.solver.t + 1))
        exact = ExactMWDRO(Exact(), gap=self.gap, saves_rounds=False)
        solver, before = state.solver, state.solver.t
        while not solver.finished and solver.t - before < _MOST_STEPS:
            at = exact.broadcast(solver)
            found = risks_from_moments(state.lifted, replies, state.eps, state.inner, at.x, at.width)
            solver = exact.server(solver, found, replied)
        # Nothing new would come of asking again.
        return state._replace(solver=solver._replace(t=before + 1, stalled=True))

    def snapshot(self, state: OneShotState) -> Snapshot:
        return Snapshot(state.solver.best.x, state.solver.best.x, state.solver.alpha)


def second_moments(rows: ClientRows) -> Reply:
    """The mean of the rows, and their second moments around it."""
    centre = rows.mean(lambda _, block: block, jnp.zeros(()))

    def moments(centre: Array, block: Array, weights: Array) -> tuple[Array, Array]:
        away = block - centre
        return weights @ away, (away.T * weights) @ away

    # The centre is the mean up to rounding, which the second pass mends.
    left, second = (total / rows.size for total in rows.sum(moments, centre))
    return Reply(centre + left, second - jnp.outer(left, left))


@jax.jit(static_argnums=0)
def risks_from_moments(
    lifted: bool, moments: Reply, eps: Array, inner: Inner, x: Array, width: Array
) -> Risks:
    """What each client would reply, from the moments of n of them."""
    loss = inner.loss
    assert isinstance(loss, Squared)

    def one(of: Reply, radius: Array) -> Risks:
        w, b = loss.split(x)
        v = jnp.append(w, -1.0)
        residual, bent = jnp.sum(v * of.mean) + b, of.around @ v
        around = jnp.maximum(v @ bent, 0.0)
        mean = around + residual**2
        # Rounding of the mean residual, and of the moments: RMSE^2 is this far off at the most.
        slip = _OF_MEANS * (jnp.sum(jnp.abs(v * of.mean)) + jnp.abs(b))
        off = 2 * jnp.abs(residual) * slip + slip**2
        off += _ROUNDING * (jnp.abs(v) @ jnp.abs(of.around) @ jnp.abs(v) + mean)
        slopes = jnp.append(of.mean[:-1], 1.0) if loss.intercept else of.mean[:-1]
        d = x.shape[0]
        flat = jnp.zeros(d).at[: len(w)].set(bent[:-1])
        bend = jnp.zeros((d, d)).at[: len(w), : len(w)].set(of.around[:-1, :-1])
        spread = of.around[-1, -1] + (0.0 if loss.intercept else of.mean[-1] ** 2)
        at = Point(x, steepness(inner, x) if lifted else None, width * jnp.sqrt(spread))
        gradient = at.padded(2 * (flat + residual * slopes))
        hessian = at.padded(at.padded(2 * (bend + jnp.outer(slopes, slopes))).T)
        lowest = jnp.maximum(mean - off, 0.0)
        still = Pass(mean + off, jnp.zeros(()), lowest, gradient, jnp.zeros(()), hessian)
        if lifted:
            return Risks.of(root_form(at, still, radius))
        never = jnp.asarray(jnp.inf)
        return Risks.of(RiskModel.unsplit(still, still.value, still.minorant, gradient, never))

    return jax.vmap(one)(moments, eps)
