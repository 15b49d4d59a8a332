"""One Wasserstein ball around the fixed mixture of the clients (WAFL, Nguyen et al.).

Solves, with w_i = N_i / N and one radius eps,

    min over x in X of sup { E_Q[l(x, xi)] : W_p(Q, sum_i w_i P_i) <= eps }
      = min over x in X and lambda >= 0 of
            lambda eps^p + sum_i w_i mean_k sup over xi in Xi of [ l(x, xi) - lambda c(xi_i^k, xi) ].

All clients share one lambda, where MW-DRO gives each its own: the budget of movement is spent wherever in the
federation it hurts most. The mixture is not uncertain, and the problem's mixture set plays no part.

On an unbounded support the supremum is infinite below lambda = floor(x), which is coefficient nu^p for a loss
that grows with the order p of the cost, and 0 otherwise. The variables are therefore x and an excess s >= 0
with lambda(x, s) = floor(x) + s unit(x), so that every pair is feasible. The unit is nu (or a norm of all of
x, where labels can change): near x = 0 the best lambda vanishes with it but the best s does not, which keeps
steps in x bounded. With phi_i and C_i the means of the suprema and of the costs of the moves of client i,

    d/ds = (eps^p - sum_i w_i C_i) unit,    d/dx = sum_i w_i [ d phi_i/dx + (eps^p - C_i) d lambda/dx ],

so each client can follow the part of the objective in brackets on its own. A round: everyone gets (x, s),
takes `local_steps` gradient steps in x at that s, and replies with its model and, at the x it was sent, C_i
and its derivative in log s. The server averages models by size, and moves s towards the root.

Reference: Tung-Anh Nguyen, Tuan Dung Nguyen, Long Tan Le, Canh T. Dinh and Nguyen H. Tran. On the
Generalization of Wasserstein Robust Federated Learning. 2022.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.core.sets import WholeSpace
from bidro.federated.algorithm import masked
from bidro.federated.algorithms.first_order import ModelAndWeights, State
from bidro.federated.baselines.fedavg import FedAvg
from bidro.federated.baselines.fedavg import Reply as Model
from bidro.losses import LinearLoss, Softmax
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Inner, Oracle
from bidro.risk.inner.ball import is_lifted, steepness
from bidro.risk.rows_jax import Point, moved_pass

# At the floor itself a quadratic loss is infinite; this far (relatively) above it, it can be computed with.
_MARGIN = 1e-9
# With lambda = 0 a change of label that gains nothing would be as good as none.
_LEAST_UNIT = 1e-6
# A round multiplies s by at most this factor or its inverse, and s stays in these bounds.
_FACTOR = 8.0
_LEAST, _MOST = 1e-20, 1e20


class Excess(NamedTuple):
    excess: Array  # s
    reach: Array  # the largest change of log s allowed in a round
    cut: Array  # 1 or -1 where the last change was cut short going up or down, else 0
    budget: Array  # eps^p


class Broadcast(NamedTuple):
    x: Array  # x_t
    excess: Array  # s


class Reply(NamedTuple):
    x: Array  # the client's model after its local steps, (d,)
    cost: Array  # C_i at x_t
    fall: Array  # -dC_i/d log s there; 0 where it is not known


def multiplier(inner: Inner, x: Array, excess: Array) -> Array:
    """lambda(x, s)."""
    loss, p = inner.loss, inner.transport.p
    if not isinstance(loss, LinearLoss | Softmax):
        return excess
    nu = steepness(inner, x)
    labels_stay = inner.reachable_labels is None
    unit = nu if labels_stay else jnp.sqrt(nu**2 + jnp.sum(x**2) + _LEAST_UNIT**2)
    if loss.growth.order != p or not isinstance(inner.support, WholeSpace):
        return excess * unit
    return (1 + _MARGIN) * loss.growth.coefficient * nu**p + excess * unit


@pytree
class MixtureBall(ModelAndWeights):
    """Step size, local steps, and the inner oracle (used where there is no closed form for a moved sample).

    Models and costs are averaged over the clients that replied, by size; if none did, nothing moves. Local
    models are projected on X once, after averaging. With a radius of 0 this is FedAvg.

    Args:
        eta_x: step size of the model.
        local_steps: gradient steps between two averages.
        oracle: solves the inner problems that have no closed form.

    Raises:
        BidroError: for a negative step size or no local step, and from `run` for clients of different radii.

    Examples:
        >>> from dataclasses import replace
        >>> from bidro import WassersteinBall, run
        >>> from bidro.federated.contrib import MixtureBall
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = replace(paper_problem(simulate(0), None), ambiguity=WassersteinBall(0.1))
        >>> run(MixtureBall(0.02), problem, 100).x.shape
        (3,)
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    eta_x: float = 0.05
    local_steps: int = static(default=1)
    oracle: Oracle = static(default=Exact())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps < 1:
            raise BidroError(f"MixtureBall needs at least one local step; got {self.local_steps}.")

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.ambiguity_set.over_balls or np.ptp(problem.eps) > 0:
            raise BidroError("MixtureBall has one ball: give it WassersteinBall(eps), the same for all.")
        self.oracle.check(problem.inner)
        budget = problem.eps[0] ** problem.transport.p
        excess = Excess(jnp.ones(()), jnp.log(_FACTOR), jnp.zeros(()), budget)
        shares = jnp.asarray(problem.federation.proportions)
        return super().init(problem, seed)._replace(alpha=shares, extra=excess)

    def broadcast(self, state: State) -> Broadcast:
        return Broadcast(state.x, state.extra.excess)

    def client(self, broadcast: Broadcast, client: Client, draw: None) -> Reply:
        reply = self._step(broadcast.x, broadcast.excess, client)

        def step(_: int, x: Array) -> Array:
            return self._step(x, broadcast.excess, client).x

        return reply._replace(x=jax.lax.fori_loop(1, self.local_steps, step, reply.x))

    def _step(self, x: Array, excess: Array, client: Client) -> Reply:
        """One gradient step from x on the client's part of the objective, and what its moves cost at x."""
        inner, rows, d = client.inner, client.rows, x.shape[0]
        penalty, (by_x, by_s) = jax.value_and_grad(lambda v: multiplier(inner, *v))((x, excess))
        nu = steepness(inner, x) if is_lifted(inner) else None
        # Other losses know no second derivative in lambda, and their Hessians would cost much.
        curved = isinstance(inner.loss, LinearLoss)
        found = moved_pass(rows, inner, self.oracle, Point(x, nu, jnp.zeros(())), penalty, curved)
        # Norms have no derivative at 0, where 0 is one of their subgradients.
        gradient = found.gradient[:d]
        gradient += (client.eps**inner.transport.p - found.cost) * jnp.nan_to_num(by_x)
        if nu is not None:
            gradient += found.gradient[d] * jnp.nan_to_num(jax.grad(lambda v: steepness(inner, v))(x))
        # Without a budget no sample moves: lambda is infinite.
        plain = rows.mean_and_gradient(inner.loss.values, x)[1]
        gradient = jnp.where(client.eps > 0, gradient, plain)
        curvature = jnp.zeros(()) if found.lambda_curvature is None else found.lambda_curvature
        return Reply(x - self.eta_x * gradient, found.cost, curvature * by_s * excess)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        shares = jnp.where(replied, state.alpha, 0.0)
        present = jnp.sum(shares)
        shares = shares / jnp.where(present > 0, present, 1.0)
        cost = shares @ masked(replied, replies.cost, jnp.zeros(()))
        fall = shares @ masked(replied, replies.fall, jnp.zeros(()))
        before = state.extra
        moves = (present > 0) & (before.budget > 0)
        moved = jax.tree.map(lambda v, w: jnp.where(moves, v, w), _next_excess(before, cost, fall), before)
        return FedAvg().server(state, Model(replies.x), replied)._replace(extra=moved)


def _next_excess(state: Excess, cost: Array, fall: Array) -> Excess:
    """Newton's method on log C = log eps^p as a function of log s, in which a power law is a line.

    Where moves jump, or C is no smooth function of s, Newton's step is too long. Hence the longest step
    allowed halves whenever C is on the other side of eps^p after a step that was cut short, and grows again
    otherwise.
    """
    side = jnp.sign(cost - state.budget)
    reach = jnp.where(side * state.cut < 0, state.reach / 2, 1.2 * state.reach)
    reach = jnp.minimum(reach, math.log(_FACTOR))
    known = (cost > 0) & (fall > 0) & (state.budget > 0)
    ratio = jnp.where(known, cost, 1.0) / jnp.where(known, state.budget, 1.0)
    newton = jnp.abs(jnp.log(ratio)) * cost / jnp.where(known, fall, 1.0)
    length = jnp.where(known, jnp.minimum(newton, reach), reach)
    excess = jnp.clip(state.excess * jnp.exp(side * length), _LEAST, _MOST)
    return state._replace(excess=excess, reach=reach, cut=jnp.where(length >= reach, side, 0.0))
