"""One client's risk over its Wasserstein ball, by duality, with the distribution that attains it.

    R(x) = sup { E_Q[l(x, xi)] : W_p(Q, P_hat) <= eps }
         = min over lambda >= 0 of lambda eps^p + mean_k sup_xi [ l(x, xi) - lambda c(xi_k, xi) ].

The dual objective is convex in the one variable lambda, and its slope is eps^p minus the mean cost of moving
every sample to its maximiser. At the best lambda the maximisers often jump, so that no lambda spends the
budget: the worst-case distribution then mixes the moves just below and just above it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.losses import LinearLoss, Squared
from bidro.rows import ClientRows
from bidro.sets import WholeSpace
from bidro.worst_case.inner import Inner, Oracle

# Steps of the search for lambda: at most 60 to bracket it by factors of 16, then 64 halvings to rounding.
_BRACKETING = 60
_HALVINGS = 64
_APART = 1e-13


class BallRisk(NamedTuple):
    """R(x) of one client lies in [attained, value]; the model enters through `gradient`.

    value: a dual value, an upper bound for every lambda. attained: E_Q[l(x, .)] of a distribution Q in the
    ball. gradient: that of E_Q[l(., xi)] at x, so R(y) >= attained + <gradient, y - x> for every y where the
    loss is convex in x. multiplier: lambda; inf where eps = 0 and no sample moves. Q moves every sample to
    its maximiser at `multiplier`, and a share `lower_share` of it to that at `lower_multiplier`, just below.
    """

    value: Array
    attained: Array
    gradient: Array
    multiplier: Array
    lower_multiplier: Array
    lower_share: Array


def ball_risk(rows: ClientRows, inner: Inner, oracle: Oracle, x: Array, eps: Array) -> BallRisk:
    """R(x) over the client's ball of radius `eps` in the metric of `inner.transport`."""
    if has_slope_form(inner):
        return _slope_form(rows, inner, x, eps)
    budget = eps**inner.transport.p
    low, high = _bracket(rows, inner, oracle, x, budget)
    if isinstance(inner.support, WholeSpace):
        candidates = jnp.stack([low, high])
    else:
        candidates = jnp.stack([low, high, jnp.zeros(())])
    at = jax.vmap(lambda multiplier: _pass(rows, inner, oracle, x, multiplier))(candidates)
    lower, upper = (jax.tree.map(lambda v, k=k: v[k], at) for k in (0, 1))
    if not isinstance(inner.support, WholeSpace):
        # Where even a free move of every sample stays within the budget, lambda is 0.
        free = at.cost[2] <= budget
        low, high = jnp.where(free, 0.0, low), jnp.where(free, 0.0, high)
        zero = jax.tree.map(lambda v: v[2], at)
        lower, upper = (jax.tree.map(partial(jnp.where, free), zero, side) for side in (lower, upper))
    room = lower.cost - upper.cost
    between = jnp.isfinite(lower.cost) & (room > 0)
    share = jnp.clip((budget - upper.cost) / jnp.where(between, room, 1.0), 0.0, 1.0)
    share = jnp.where(between, share, 0.0)

    def mixed(a: Array, b: Array) -> Array:
        # A side with share 0 may be infinite and must not enter.
        return jnp.where(share > 0, share * a, 0.0) + (1 - share) * b

    dual = jnp.minimum(jnp.where(share > 0, low * budget + lower.value, jnp.inf), high * budget + upper.value)
    plain, plain_gradient = rows.mean_and_gradient(inner.loss.values, x)
    still = eps == 0
    return BallRisk(
        jnp.where(still, plain, dual),
        jnp.where(still, plain, mixed(lower.loss, upper.loss)),
        jnp.where(still, plain_gradient, mixed(lower.gradient, upper.gradient)),
        jnp.where(still, jnp.inf, high),
        jnp.where(still, jnp.inf, low),
        share,
    )


def _bracket(rows: ClientRows, inner: Inner, oracle: Oracle, x: Array, budget: Array) -> tuple[Array, Array]:
    """Multipliers just below and just above the one at which the moves spend the budget."""

    def step(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket  # 0 and inf as long as they are not known
        trial = jnp.where(jnp.isinf(high), 16 * jnp.maximum(low, 1 / 16), (low + high) / 2)
        trial = jnp.where((low == 0) & jnp.isfinite(high), high / 16, trial)
        cost = _pass(rows, inner, oracle, x, trial).cost
        # Below its growth the loss moves samples without end, which no budget allows.
        much = ~(cost <= budget)
        # The two sides stay apart by more than rounding: at a jump each must keep its own moves.
        close = jnp.isfinite(high) & (high - low <= _APART * high)
        return jnp.where(much & ~close, trial, low), jnp.where(much | close, high, trial)

    start = (jnp.zeros(()), jnp.asarray(jnp.inf))
    return jax.lax.fori_loop(0, _BRACKETING + _HALVINGS, step, start)


class _Pass(NamedTuple):
    value: Array  # mean of the penalised suprema
    cost: Array  # mean cost of the moves; nan or inf where a supremum is infinite
    loss: Array  # mean loss after the moves
    gradient: Array  # its gradient in x


def _pass(rows: ClientRows, inner: Inner, oracle: Oracle, x: Array, multiplier: Array) -> _Pass:
    """One pass over the client's rows at one multiplier."""

    def of_rows(args: tuple[Array, Array, Inner], block: Array) -> _Pass:
        model, price, problem = args

        def of_row(zeta: Array) -> _Pass:
            best = oracle.maximise(problem, model, zeta, price)
            loss, gradient = jax.value_and_grad(problem.loss.value)(model, best.point)
            cost = jnp.where(best.value < jnp.inf, problem.transport.cost(zeta, best.point), jnp.inf)
            return _Pass(best.value + best.error_bound, cost, loss, gradient)

        return jax.vmap(of_row)(block)

    result: _Pass = rows.mean(of_rows, (x, multiplier, inner))
    return result


def has_slope_form(inner: Inner) -> bool:
    """Whether R has a closed form on an unbounded support, labels keeping their values.

    p = 1 and a Lipschitz loss of a linear predictor: R = mean loss + eps Lip ||S^-1 a||.
    p = 2 and squared loss: R = (RMSE + eps ||S^-1 a||)^2.
    """
    loss = inner.loss
    if not isinstance(loss, LinearLoss) or not isinstance(inner.support, WholeSpace):
        return False
    if inner.reachable_labels is not None:
        return False
    lipschitz = inner.transport.p == 1 and np.isfinite(loss.scalar.lipschitz)
    squared = inner.transport.p == 2 and isinstance(loss, Squared)
    return bool(lipschitz or squared)


def _slope_form(rows: ClientRows, inner: Inner, x: Array, eps: Array) -> BallRisk:
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    mean, gradient = rows.mean_and_gradient(loss.values, x)
    direction = loss.direction(x, 1.0)[0] * inner.transport.inverse_scale
    norm = jnp.linalg.norm(direction)
    # d norm / dx, and 0, a subgradient, where the norm has a kink. The target's share is constant in x.
    unit = direction / jnp.where(norm > 0, norm, 1.0) * inner.transport.inverse_scale
    slope = jnp.append(unit[:-1], 0.0) if loss.intercept else unit[:-1]
    if inner.transport.p == 1:
        steep = loss.scalar.lipschitz
        value = mean + eps * steep * norm
        lambda_ = steep * norm
        return BallRisk(value, value, gradient + eps * steep * slope, lambda_, lambda_, jnp.zeros(()))
    rmse = jnp.sqrt(mean)
    safe = jnp.where(rmse > 0, rmse, 1.0)
    root = rmse + eps * norm
    value = root**2
    of_root = jnp.where(rmse > 0, gradient / (2 * safe), 0.0) + eps * slope
    multiplier = jnp.where(eps > 0, norm**2 + rmse * norm / jnp.where(eps > 0, eps, 1.0), jnp.inf)
    return BallRisk(value, value, 2 * root * of_root, multiplier, multiplier, jnp.zeros(()))
