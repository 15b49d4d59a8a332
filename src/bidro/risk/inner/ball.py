"""One client's risk over its Wasserstein ball, by duality, with the distribution that attains it.

    R(x) = sup { E_Q[l(x, xi)] : W_p(Q, P_hat) <= eps }
         = min over lambda >= 0 of lambda eps^p + mean_k sup_xi [ l(x, xi) - lambda c(xi_k, xi) ].

The dual objective is convex in the one variable lambda, and its slope is eps^p minus the mean cost of moving
every sample to its maximiser. At the best lambda the maximisers often jump, so that no lambda spends the
budget: the worst-case distribution then mixes the moves just below and just above it.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import namespace
from bidro.core.sets import WholeSpace
from bidro.losses import LinearLoss, PiecewiseLinear, Softmax, Squared, has_curves
from bidro.losses.custom import DeclaredLoss
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner.problem import Inner, Oracle, TwoClasses
from bidro.risk.rows_jax import Pass, Point, RiskModel, first_order_pass, moved_pass, still_pass, unmoved_risk

# The search for lambda goes by factors of 16 until it has a bracket, then halves it until the two sides are
# this far apart, relatively: more than rounding, for at a jump each must keep its own moves.
_APART = 1e-13
_LARGEST = 1e60
# Moves that change the risk by less than this share of it leave it to first order.
_NEAR = 1e-10
# Where kinks of a loss are smoothed over a width, that of RMSE at an exact fit is over this share of it.
_SMOOTHING_OF_RMSE = 1e-4
# Moves jump at lambda where its two sides differ by more than this share of the budget.
_JUMP = 1e-6


def is_lifted(inner: Inner) -> bool:
    """Whether the risk over a ball is a function of (x, nu): see `risk`.

    With curves it is an upper bound of the risk that is, on any support: u moves by at most nu t.
    """
    straight = isinstance(inner.loss, LinearLoss | PiecewiseLinear) and not has_curves(inner.loss)
    if not inner.transport.is_euclidean and not straight:
        return False
    if not isinstance(inner.support, WholeSpace) and not has_curves(inner.loss):
        return False
    if isinstance(inner.loss, LinearLoss):
        return inner.transport.p in (1, 2)
    if isinstance(inner.loss, PiecewiseLinear):
        return inner.transport.p == 1
    if not isinstance(inner.loss, Softmax):
        return False
    return inner.transport.p == 1 or (inner.transport.p == 2 and inner.loss.difference is not None)


def has_closed_form(inner: Inner) -> bool:
    """Whether R needs no search: it is lifted, labels keep their values, and either p = 1 or it is squared
    loss with p = 2."""
    if not is_lifted(inner) or inner.reachable_labels is not None:
        return False
    return inner.transport.p == 1 or isinstance(inner.loss, Squared)


def steepness(inner: Inner, x: Array) -> Array:
    """nu: ||S^-1 a(x)|| for a linear predictor, in the dual norm of the metric, the Lipschitz constant for
    softmax and pieces."""
    if not inner.transport.is_euclidean and isinstance(inner.loss, PiecewiseLinear):
        return jnp.max(jax.vmap(inner.transport.dual_norm)(inner.loss.slopes(x)))
    if not inner.transport.is_euclidean:
        assert isinstance(inner.loss, LinearLoss)
        return inner.transport.dual_norm(inner.loss.direction(x, 1.0)[0])
    if isinstance(inner.loss, LinearLoss):
        return inner.loss.dual_norm(x, inner.transport.inverse_scale)
    return inner.loss.lipschitz(x, inner.transport.inverse_scale)


def has_kinks(inner: Inner) -> bool:
    """Whether risks have kinks: those of the loss, or of labels that change where that pays."""
    loss = inner.loss
    steps = isinstance(loss, LinearLoss) and loss.scalar.curvature == math.inf
    return steps or inner.reachable_labels is not None


def can_follow(inner: Inner) -> bool:
    """Whether kinks can be followed from model to model: there are some, and features of moved samples stay
    where they were."""
    two = TwoClasses.of(inner)
    straight = inner if two is None else two.inner
    known = is_lifted(straight) and straight.transport.p == 1
    return known and isinstance(straight.loss, LinearLoss) and has_kinks(straight)


def ball_risk(
    rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, eps: Array, curvature: bool
) -> RiskModel:
    """R over the client's ball of radius `eps` in the metric of `inner.transport`, at a point with nu where R
    is lifted, and with the models before it where kinks are followed (`can_follow`)."""
    if not has_closed_form(inner):
        return _searched(rows, inner, oracle, at, eps, curvature)
    still = still_pass(rows, inner, at, curvature)
    if inner.transport.p == 2:
        return root_form(at, still, eps)
    if isinstance(inner.loss, Softmax):
        return _softmax_form(rows, inner, at, still, eps)
    if isinstance(inner.loss, PiecewiseLinear):
        return _slope_form(at, still, eps, 1.0)
    assert isinstance(inner.loss, LinearLoss)
    return _slope_form(at, still, eps, inner.loss.scalar.lipschitz)


def _slope_form(at: Point, still: Pass, eps: Array, steep: float) -> RiskModel:
    """p = 1, a Lipschitz loss: R = mean loss + eps Lip nu."""
    assert at.nu is not None
    reward = eps * steep * at.nu
    gradient = still.gradient.at[-1].add(eps * steep)
    return RiskModel.unsplit(still, still.value + reward, still.minorant + reward, gradient, steep * at.nu)


def root_form(at: Point, still: Pass, eps: Array) -> RiskModel:
    """p = 2, squared loss: R = (RMSE + eps nu)^2.

    RMSE is a norm of the residuals, with a kink at an exact fit. With it smoothed to
    f = sqrt(RMSE^2 + mu^2), the cut is that of 2 root (RMSE + eps nu) - root^2 for
    root = f + eps nu, in which <residuals, residuals at x> / f stands for RMSE. The pass has RMSE^2 between
    `minorant` and `value`. It may be that of many clients, along a leading axis, and in NumPy.
    """
    assert at.nu is not None
    xp = namespace(still.value, eps)
    f = xp.sqrt(still.value + (_SMOOTHING_OF_RMSE * at.width) ** 2)
    fits = f == 0
    safe = xp.where(fits, 1.0, f)
    exact, root = xp.sqrt(still.value) + eps * at.nu, f + eps * at.nu
    attained = 2 * root * (xp.where(fits, 0.0, still.minorant / safe) + eps * at.nu) - root**2
    of_f = xp.where(fits[..., None], 0.0, still.gradient / (2 * safe)[..., None])
    of_root = of_f + eps[..., None] * (xp.arange(of_f.shape[-1]) == of_f.shape[-1] - 1)
    hessian = still.hessian
    if hessian is not None:
        growth = xp.where(fits, 1.0, root / safe)[..., None, None]
        hessian = 2 * _square(of_root) + 2 * growth * (hessian / 2 - _square(of_f))
    still = still._replace(hessian=hessian, smoothing=root**2 - attained)
    share = xp.sqrt(still.value) * at.nu / xp.where(eps > 0, eps, 1.0)
    multiplier = xp.where(eps > 0, at.nu**2 + share, np.inf)
    return RiskModel.unsplit(still, exact**2, attained, (2 * root)[..., None] * of_root, multiplier)


def _square(v: Array) -> Array:
    """v v' along the last axis."""
    return v[..., :, None] * v[..., None, :]


def _softmax_form(rows: ClientRows, inner: Inner, at: Point, still: Pass, eps: Array) -> RiskModel:
    """p = 1, softmax: R = mean loss + eps max ||S^-1 (w_k - w_y)|| over the labels y that the client has.

    Only pairs of classes of which the client has neither are left out. Where there is no such pair the
    maximum is nu; else it enters by its gradient in x.
    """
    loss = inner.loss
    assert isinstance(loss, Softmax)
    assert at.nu is not None

    def count(_: Array, block: Array, weights: Array) -> Array:
        return weights @ (block[:, -1:] == jnp.arange(loss.classes))

    present = rows.sum(count, jnp.zeros(())) > 0
    everything = jnp.sum(~present) <= 1

    def own(x: Array) -> Array:
        of_label = partial(loss.steepness, x, inner.transport.inverse_scale)
        return jnp.max(jnp.where(present, jax.vmap(of_label)(jnp.arange(loss.classes)), 0.0))

    steep, slope = jax.value_and_grad(own)(at.x)
    gradient = still.gradient + eps * jnp.where(everything, 0.0, 1.0) * at.padded(jnp.nan_to_num(slope))
    gradient = gradient.at[-1].add(jnp.where(everything, eps, 0.0))
    reward = eps * steep
    return RiskModel.unsplit(still, still.value + reward, still.minorant + reward, gradient, steep)


def _searched(
    rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, eps: Array, curvature: bool
) -> RiskModel:
    budget = eps**inner.transport.p
    far = _far_slope(inner)
    # Kinks are followed on the host alone where labels change (`rows_kinked`).
    at = at._replace(before=None)
    # No multiplier below this leaves a finite supremum; on a box, any does.
    floor = jnp.zeros(()) if far is None or at.nu is None else far * at.nu
    # Where even the moves at the least price stay within the budget, that is lambda.
    free = moved_pass(rows, inner, oracle, at, floor, False).cost <= budget
    if far is None and isinstance(inner.support, WholeSpace):
        # Moves that cost nothing have no end here, unless there is nothing to gain; labels still cost.
        free &= jnp.zeros((), bool) if at.nu is None else at.nu == 0
    low, high = _bracket(rows, inner, oracle, at, budget, floor, jnp.where(free, floor, jnp.inf))
    sides = jax.vmap(lambda price: moved_pass(rows, inner, oracle, at, price, curvature))(
        jnp.stack([low, high])
    )
    lower, upper = (jax.tree.map(lambda v, k=k: v[k], sides) for k in range(2))
    room = lower.cost - upper.cost
    between = jnp.isfinite(lower.cost) & (room > 0)
    share = jnp.clip((budget - upper.cost) / jnp.where(between, room, 1.0), 0.0, 1.0)
    share = jnp.where(between, share, 0.0)

    def mixed(a: Array, b: Array) -> Array:
        # A side with share 0 may be infinite and must not enter.
        return jnp.where(share > 0, share * a, 0.0) + (1 - share) * b

    dual = jnp.minimum(jnp.where(share > 0, low * budget + lower.value, jnp.inf), high * budget + upper.value)
    spent: Pass = jax.tree.map(mixed, lower, upper)
    attained, gradient = spent.minorant, spent.gradient
    if far is not None:
        # What is left of the budget goes to moves without end, which earn `far` nu a unit of cost.
        left = jnp.maximum(budget - spent.cost, 0.0)
        attained = attained + left * floor
        gradient = gradient.at[-1].add(left * far)
    hessian = None
    if spent.hessian is not None and spent.coupling is not None and spent.lambda_curvature is not None:
        # Where moves do not jump, lambda gives way to the model, which lowers the curvature.
        gives = ~free & (room <= _JUMP * budget) & (spent.lambda_curvature > 0)
        rank_one = jnp.outer(spent.coupling, spent.coupling) / jnp.where(gives, spent.lambda_curvature, 1.0)
        hessian = spent.hessian - jnp.where(gives, rank_one, 0.0)
    found = RiskModel(dual, attained, gradient, spent.smoothing, hessian, high, low, share)
    if at.nu is not None and inner.transport.p == 2:
        near, is_near = _near_zero(rows, inner, at, eps, curvature)
        found = jax.tree.map(partial(jnp.where, is_near), near, found)
    unmoved = unmoved_risk(rows, inner, at, curvature)
    if isinstance(inner.loss, DeclaredLoss) and inner.reachable_labels is None:
        # W_1 is at most W_p, and a declared slope bounds what a move earns, wherever ascent has ended.
        declared = unmoved.value + eps * inner.loss.lipschitz(at.x, inner.transport.inverse_scale)
        found = found._replace(value=jnp.fmin(found.value, declared))
    result: RiskModel = jax.tree.map(partial(jnp.where, eps == 0), unmoved, found)
    return result


def _near_zero(
    rows: ClientRows, inner: Inner, at: Point, eps: Array, curvature: bool
) -> tuple[RiskModel, Array]:
    """(R where moves hardly change u, whether this is such a place): nu = 0, the kink of the norm, or nearly.

    R lies between the loss expected under the first-order moves, labels held, and the mean loss with the
    worst label that each row can take + nu eps Lip; where these labels matter it is no such place.
    """
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    assert at.nu is not None
    moved = first_order_pass(rows, inner, at, eps, curvature)
    plain = still_pass(rows, inner, at, False)
    worst = plain.value if inner.reachable_labels is None else _worst_label_mean(rows, inner, at)
    value = worst + at.nu * eps * loss.scalar.lipschitz
    small = _NEAR * plain.value
    is_near = (
        (at.nu * eps * loss.scalar.lipschitz <= small) & (worst - plain.value <= small) & jnp.isfinite(value)
    )
    multiplier = at.nu * moved.gradient[-1] / (2 * jnp.where(eps > 0, eps, 1.0) ** 2)
    return RiskModel.unsplit(moved, value, moved.minorant, moved.gradient, multiplier), is_near


def _worst_label_mean(rows: ClientRows, inner: Inner, at: Point) -> Array:
    """The mean loss with every row's label the worst that it can take."""

    def worst(args: tuple[Inner, Array], block: Array) -> Array:
        inner, x = args
        assert inner.reachable_labels is not None
        options = [block.at[:, -1].set(label) for label in inner.reachable_labels]
        return jnp.max(jnp.stack([inner.loss.values(x, option) for option in options]), axis=0)

    return rows.mean(worst, (inner, at.x))


def _far_slope(inner: Inner) -> float | None:
    """What moves without end earn a unit of u, p = 1 on an unbounded support; None elsewhere."""
    if not is_lifted(inner) or inner.transport.p != 1:
        return None
    return inner.loss.scalar.lipschitz if isinstance(inner.loss, LinearLoss) else 1.0


def _bracket(
    rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, budget: Array, floor: Array, ceiling: Array
) -> tuple[Array, Array]:
    """Multipliers just below and just above the one at which the moves spend the budget."""

    def search(bracket: tuple[Array, Array]) -> Array:
        low, high = bracket
        return ((high - low > 2 * _APART * high) | jnp.isinf(high)) & (low < _LARGEST) & (high > 1 / _LARGEST)

    def step(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket  # `floor` and `ceiling` as long as they are not known
        trial = jnp.where(jnp.isinf(high), 16 * jnp.maximum(low, 1 / 16), (low + high) / 2)
        trial = jnp.where((low == 0) & jnp.isfinite(high), high / 16, trial)
        cost = moved_pass(rows, inner, oracle, at, trial, False).cost
        # Below its growth the loss moves samples without end, which no budget allows.
        much = ~(cost <= budget)
        return jnp.where(much, trial, low), jnp.where(much, high, trial)

    return jax.lax.while_loop(search, step, (floor, ceiling))
