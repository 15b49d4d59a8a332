"""FDR-SVM (Ibrahim et al.): a support vector machine over a fixed mixture of Wasserstein balls, by ADMM.

Solves, with w_i = N_i / N, hinge loss, features that move in the Euclidean norm and labels that change at a
cost kappa (p = 1, unbounded support),

    min over x in X of sum_i w_i R_i(x),
    R_i(x) = min over lambda_i >= ||x|| of lambda_i eps_i + mean_k max( h(m_k), h(-m_k) - lambda_i kappa ),

h(m) = max(0, 1 - m) at the margins m_k = y_k <x, theta_k>; the norm leaves an intercept out. By the
alternating direction method of multipliers client i has a model v_i of its own and a dual u_i, and a round is

    (v_i, lambda_i) <- argmin of w_i R_i + <u_i, v - z> + c/2 ||v - z||^2 + c/2 (lambda - lambda_i)^2,
    z <- P_X( mean_i (v_i + u_i / c) ),    u_i <- u_i + c (v_i - z).

The client's problem is strongly convex and solved by `inner_steps` projected subgradient steps of length
2 / (c (k + 1)), averaged with weights k (Lacoste-Julien, Schmidt and Bach). The server keeps v_i, lambda_i
and u_i and sends them along, so that sites need no memory. The subgradient form of FDR-SVM is `GroupDROBalls`
with a point as the set of mixtures.

Reference: Michael Ibrahim, Heraldo Rozas, Nagi Gebraeel and Weijun Xie. FDR-SVM: A Federated Distributionally
Robust Support Vector Machine via a Mixture of Wasserstein Balls Ambiguity Set. UAI, 2025.
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
from bidro.losses import Hinge
from bidro.problem.client import Client
from bidro.problem.problem import Problem


class Duals(NamedTuple):
    """What the server keeps of every client; the state's model is z, its weights are w."""

    own: Array  # (n, d) v_i
    multipliers: Array  # (n,) lambda_i
    duals: Array  # (n, d) u_i


class Broadcast(NamedTuple):
    """Each client gets its own part."""

    x: Array  # (n, d) z, the same for every client
    dual: Array  # (n, d)
    multiplier: Array  # (n,)
    share: Array  # (n,)


class Reply(NamedTuple):
    own: Array  # v_i, (d,)
    multiplier: Array  # lambda_i


@pytree
class FDRSVM(ModelAndWeights):
    """The penalty c of ADMM, and steps by which a client solves its problem.

    A client that does not reply keeps its last model, multiplier and dual, which still enter the average. If
    nobody replies, nothing moves.

    Args:
        c: the penalty of ADMM, above 0.
        inner_steps: subgradient steps by which a client solves its own problem.

    Raises:
        BidroError: for a penalty or a number of steps that is not above 0.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box, Federation, Hinge, Problem, Transport, WassersteinBall, run
        >>> from bidro.federated.baselines import FDRSVM
        >>> theta = np.random.default_rng(0).normal(size=(2, 40, 1)) + 0.2
        >>> rows = np.concatenate([theta, np.sign(theta)], axis=2)
        >>> federation = Federation.from_arrays({"north": rows[0], "south": rows[1]}, "unbounded")
        >>> cost = Transport.classification(2, p=1, label_cost=1.0)
        >>> problem = Problem(federation, Hinge(), Box.cube(5, 1), cost, WassersteinBall(0.05))
        >>> bool(run(FDRSVM(), problem, 50).x[0] > 0)
        True
    """

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    per_client_broadcast: ClassVar[bool] = True
    c: float = 0.1
    inner_steps: int = static(default=200)

    def __post_init__(self) -> None:
        if not isinstance(self.c, int | float | np.number) or not 0 < self.c < math.inf:
            raise BidroError(f"The penalty c of ADMM must be a positive number; got {self.c!r}.")
        if self.inner_steps < 1:
            raise BidroError(f"FDR-SVM needs at least one inner step; got {self.inner_steps}.")

    def init(self, problem: Problem, seed: int = 0) -> State:
        transport, inner = problem.transport, problem.inner
        if not problem.ambiguity_set.over_balls or not isinstance(problem.loss, Hinge):
            raise BidroError(
                "FDR-SVM is for hinge loss over balls: give it Hinge() and WassersteinBall(eps)."
            )
        unit = bool(jnp.all(transport.inverse_scale[:-1] == 1))
        unit = unit and transport.is_euclidean
        if transport.p != 1 or not isinstance(inner.support, WholeSpace) or not unit:
            raise BidroError(
                "FDR-SVM needs p = 1, an unbounded support and features in one unit: use "
                "Transport.classification(m, 1.0, label_cost)."
            )
        state = super().init(problem, seed)
        every = jnp.tile(state.x, (problem.n, 1))
        kept = Duals(every, jnp.zeros(problem.n), jnp.zeros_like(every))
        return state._replace(alpha=jnp.asarray(problem.federation.proportions), extra=kept)

    def broadcast(self, state: State) -> Broadcast:
        _, multipliers, duals = state.extra
        return Broadcast(jnp.broadcast_to(state.x, duals.shape), duals, multipliers, state.alpha)

    def client(self, broadcast: Broadcast, client: Client, draw: None) -> Reply:
        z, dual, before, share = broadcast
        loss = client.inner.loss
        assert isinstance(loss, Hinge)
        kappa = client.inner.transport.label_cost

        def step(k: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            v, multiplier, v_mean, multiplier_mean = carry
            slope, flipped = client.rows.mean(
                lambda at, block: _slopes(loss, kappa, at, block), (v, multiplier)
            )
            g_multiplier = share * (client.eps - (0.0 if math.isinf(kappa) else kappa) * flipped)
            length = 2 / (self.c * (k + 2))
            v = v - length * (share * slope + dual + self.c * (v - z))
            multiplier = multiplier - length * (g_multiplier + self.c * (multiplier - before))
            v, multiplier = _onto_cone(loss, v, multiplier)
            weight = 2 / (k + 2)
            return (
                v,
                multiplier,
                v_mean + weight * (v - v_mean),
                multiplier_mean + weight * (multiplier - multiplier_mean),
            )

        start = _onto_cone(loss, z, before)
        _, _, v, multiplier = jax.lax.fori_loop(0, self.inner_steps, step, (*start, *start))
        return Reply(v, multiplier)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        before = state.extra
        own = masked(replied, replies.own, before.own)
        multipliers = masked(replied, replies.multiplier, before.multipliers)
        average = state.models.project(jnp.mean(own + before.duals / self.c, axis=0))
        x = jnp.where(jnp.any(replied), average, state.x)
        duals = masked(replied, before.duals + self.c * (own - x), before.duals)
        return state.step(x, state.alpha, Duals(own, multipliers, duals))


def _slopes(loss: Hinge, kappa: float, at: tuple[Array, Array], block: Array) -> tuple[Array, Array]:
    """Of every row, a subgradient in v of the larger branch (B, d), and whether its label is changed (B,)."""
    v, multiplier = at
    psi = jax.vmap(lambda row: loss.of_model(row)[0])(block)
    margins = psi @ v
    kept, changed = jnp.maximum(1 - margins, 0.0), jnp.maximum(1 + margins, 0.0)
    flips = jnp.zeros(margins.shape, bool) if math.isinf(kappa) else changed - multiplier * kappa > kept
    along = jnp.where(flips, (margins > -1).astype(float), -(margins < 1).astype(float))
    return along[:, None] * psi, flips.astype(float)


def _onto_cone(loss: Hinge, v: Array, multiplier: Array) -> tuple[Array, Array]:
    """The nearest point with ||w|| <= lambda; an intercept stays."""
    w = loss.split(v)[0]
    norm = jnp.linalg.norm(w)
    middle = (norm + multiplier) / 2
    edge = jnp.where(norm > 0, middle / jnp.where(norm > 0, norm, 1.0), 0.0)
    scale = jnp.where(norm <= multiplier, 1.0, jnp.where(norm <= -multiplier, 0.0, edge))
    multiplier = jnp.where(norm <= multiplier, multiplier, jnp.maximum(middle, 0.0))
    return v.at[: w.shape[0]].set(scale * w), multiplier
