"""The cheapest way to move a linear predictor, and the exact maximum along it.

For a loss L(u) with u = <a, xi> + offset, only u matters, and the cheapest way to change it is along
xi(nu) = clip(zeta + nu S^-2 a) for nu in R: a ray where the support is unbounded, a path with kinks
where a coordinate meets the box. Along it, with side s = sign(nu) and nu >= 0 from here on,

    u = u0 + s (travel + rate nu)      and      ||S (xi - zeta)||^2 = spent + rate nu^2

on each piece between two kinks. The objective L(u) - rho ||S (xi - zeta)||^p is not concave, so its
global maximum is taken over the ends and all local maxima of all pieces.

Those inside a piece come from `squared_cost_maxima` and `norm_cost_maxima`, whose candidates include every
one of them; others may be among these and do no harm, since all are clipped to their piece and the best value
is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.sets import Box, WholeSpace
from bidro.losses.scalar import PiecewiseQuadratic, Scalar

_NEWTON_STEPS = 60
_HALVINGS = 60


class Pieces(NamedTuple):
    """The pieces of both sides of the path; every array has shape (2, pieces)."""

    side: Array  # +1 or -1
    begin: Array  # nu at the start of the piece
    end: Array  # nu at its end, inf where it never ends
    rate: Array
    travel: Array
    spent: Array


def pieces_of_path(a: Array, zeta: Array, inverse_scale: Array, support: Box | WholeSpace) -> Pieces:
    """The pieces of clip(zeta + nu S^-2 a), a and zeta of shape (m,)."""
    weight = (a * inverse_scale) ** 2
    if isinstance(support, WholeSpace):
        return ray(jnp.sum(weight))
    side = jnp.array([[1.0], [-1.0]])
    moves = weight > 0
    speed = side * jnp.where(moves, a * inverse_scale**2, 1.0)  # (2, m): of each coordinate with nu
    room = jnp.abs(jnp.where(speed > 0, support.upper, support.lower) - zeta)
    limit = jnp.where(moves, room / jnp.abs(speed), jnp.inf)
    order = jnp.argsort(limit, axis=1)
    end = jnp.take_along_axis(limit, order, axis=1)
    rate = jnp.cumsum(weight[order][:, ::-1], axis=1)[:, ::-1]
    # What the coordinates that have met the box contribute, from the room they had.
    scale = 1 / jnp.where(moves, inverse_scale, jnp.inf)
    travel = _sum_before(jnp.take_along_axis(jnp.abs(a) * jnp.where(moves, room, 0.0), order, axis=1))
    spent = _sum_before(jnp.take_along_axis((scale * room) ** 2, order, axis=1))
    begin = jnp.concatenate([jnp.zeros((2, 1)), end[:, :-1]], axis=1)
    # Where nothing moves any more, the piece is its first point.
    begin = jnp.where(jnp.isinf(begin), 0.0, begin)
    end = jnp.where(rate > 0, end, begin)
    return Pieces(jnp.broadcast_to(side, end.shape), begin, end, rate, travel, spent)


def ray(rate: Array) -> Pieces:
    """The path on an unbounded support: one endless piece on either side."""
    side, one = jnp.array([[1.0], [-1.0]]), jnp.ones((2, 1))
    return Pieces(side, 0 * one, jnp.inf * one, rate * one, 0 * one, 0 * one)


def _sum_before(terms: Array) -> Array:
    """Sums of the terms before each one, along the second axis, without cancellation."""
    return jnp.concatenate([jnp.zeros((2, 1)), jnp.cumsum(terms, axis=1)[:, :-1]], axis=1)


def maximise_on_path(scalar: Scalar, pieces: Pieces, u0: Array, rho: Array, p: float) -> tuple[Array, Array]:
    """(nu with its sign, maximum) of L(u) - rho ||S (xi - zeta)||^p over the whole path, p in {1, 2}.

    The maximum is inf where the objective is unbounded on a piece that never ends.
    """
    side, begin, end, rate, travel, spent = pieces
    moving = jnp.where(rate > 0, rate, 1.0)
    if p == 2:
        centre = u0 + side * travel
        u = squared_cost_maxima(scalar, rho / moving, centre)
        inner = side * (u - centre) / moving
    else:
        inner = norm_cost_maxima(scalar, pieces, u0, rho)
    last = jnp.where(jnp.isinf(end), begin, end)
    nu = jnp.concatenate([begin[None], last[None], inner])
    nu = jnp.where(jnp.isfinite(nu), jnp.clip(nu, begin, end), begin)
    squared = spent + (jnp.sqrt(rate) * nu) ** 2
    cost = squared if p == 2 else jnp.sqrt(squared)
    values = scalar.value(u0 + side * (travel + rate * nu)) - rho * cost
    best = jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))
    infimum_at_infinity = jnp.isinf(end) & (rate > 0) & _outgrows(scalar, side, rate, rho, p)
    highest = jnp.where(jnp.any(infimum_at_infinity), jnp.inf, values.reshape(-1)[best])
    return (nu * side).reshape(-1)[best], highest


def _outgrows(scalar: Scalar, side: Array, rate: Array, rho: Array, p: float) -> Array:
    """Whether L grows faster than the cost far out on a piece that never ends."""
    if p == 2:
        if not isinstance(scalar, PiecewiseQuadratic):
            return jnp.zeros(rate.shape, bool)
        left, right = scalar.pieces[0][0], scalar.pieces[-1][0]
        growth = jnp.where(side > 0, right, left)
        return (growth > 0) & (growth * rate >= rho)
    slope = jnp.where(side > 0, scalar.right_slope, scalar.left_slope)
    return slope * jnp.sqrt(rate) > rho * (1 + 4 * np.finfo(float).eps)


def squared_cost_maxima(scalar: Scalar, kappa: Array, centre: Array) -> Array:
    """Local maxima in u of L(u) - kappa (u - centre)^2; shape (candidates, *kappa.shape)."""
    if isinstance(scalar, PiecewiseQuadratic):
        return jnp.stack(
            [
                jnp.where(
                    kappa > q2,
                    (q1 + 2 * kappa * centre) / (2 * jnp.where(kappa > q2, kappa - q2, 1.0)),
                    centre,
                )
                for q2, q1, _ in scalar.pieces
            ]
        )
    return jnp.stack(_logistic_squared_cost(kappa, centre))


def _logistic_squared_cost(kappa: Array, centre: Array) -> tuple[Array, Array]:
    """The (at most two) local maxima of log(1 + e^v) - kappa (v - c)^2, v = -u, c = -centre.

    A local maximum solves sigma(v) = 2 kappa (v - c) where sigma'(v) <= 2 kappa, which is
    |v| >= turn. Left of zero the difference g is convex, right of it concave, so Newton's method
    runs monotonically to the root from the outer end of each of the two zones.
    """
    c = -centre
    root = jnp.sqrt(jnp.maximum(1 - 8 * kappa, 0.0))
    turn = jnp.log1p(root) - jnp.log1p(-jnp.minimum(root, 1 - 1e-16))

    def newton(start: Array, clamp: Callable[[Array], Array]) -> Array:
        def step(_: int, v: Array) -> Array:
            sigma = jax.nn.sigmoid(v)
            slope = sigma * (1 - sigma) - 2 * kappa
            g = sigma - 2 * kappa * (v - c)
            return clamp(v - g / jnp.where(slope < 0, slope, -jnp.inf))

        return jax.lax.fori_loop(0, _NEWTON_STEPS, step, clamp(start))

    left = newton(c, lambda v: jnp.minimum(v, -turn))
    right = newton(c + 0.5 / kappa, lambda v: jnp.maximum(v, turn))
    return -left, -right


def norm_cost_maxima(scalar: Scalar, pieces: Pieces, u0: Array, rho: Array) -> Array:
    """Local maxima in nu of L(u0 + side (travel + rate nu)) - rho sqrt(spent + rate nu^2).

    Shape (candidates, *pieces.side.shape). Where spent = 0 the objective is convex on the piece
    and has no interior maximum.
    """
    if isinstance(scalar, PiecewiseQuadratic):
        edges = (-np.inf, *scalar.knots, np.inf)
        return jnp.stack(
            [
                _quadratic_norm_cost(q2, q1, low, high, pieces, u0, rho)
                for (q2, q1, _), low, high in zip(scalar.pieces, edges[:-1], edges[1:], strict=True)
            ]
        )
    return jnp.stack(_logistic_norm_cost(pieces, u0, rho))


def _quadratic_norm_cost(
    q2: float, q1: float, low: float, high: float, pieces: Pieces, u0: Array, rho: Array
) -> Array:
    """The local maximum of the piece q2 u^2 + q1 u + q0, low <= u <= high, if there is one.

    The derivative is rate times g(nu) = side (q1 + 2 q2 u) - rho nu / sqrt(spent + rate nu^2), and g
    is convex: its root from + to - lies left of its lowest point, where Newton's method started
    from the left end runs monotonically to it.
    """
    side, begin, end, rate, travel, spent = pieces
    moving = jnp.where(rate > 0, rate, 1.0)
    at = (side * (jnp.stack([jnp.full_like(side, low), jnp.full_like(side, high)]) - u0)) - travel
    first, last = jnp.min(at / moving, axis=0), jnp.max(at / moving, axis=0)
    begin, end = jnp.maximum(begin, first), jnp.minimum(end, last)
    if q2 == 0:
        # side q1 = rho nu / sqrt(spent + rate nu^2), solved for nu.
        steepness = side * q1
        excess = (rho / jnp.where(steepness > 0, steepness, 1.0)) ** 2 - moving
        nu = jnp.where(excess > 0, jnp.sqrt(spent / jnp.where(excess > 0, excess, 1.0)), end)
        return jnp.where(steepness > 0, nu, begin)
    lowest = jnp.sqrt(jnp.maximum((rho * spent / (2 * q2 * moving)) ** (2 / 3) - spent, 0.0) / moving)
    cap = jnp.maximum(jnp.minimum(end, lowest), begin)

    def step(_: int, nu: Array) -> Array:
        length = jnp.sqrt(jnp.maximum(spent + moving * nu**2, 1e-300))
        g = side * (q1 + 2 * q2 * (u0 + side * (travel + moving * nu))) - rho * nu / length
        slope = 2 * q2 * moving - rho * spent / length**3
        ahead = (g > 0) & (slope < 0)
        return jnp.minimum(nu + jnp.where(ahead, -g / jnp.where(ahead, slope, 1.0), 0.0), cap)

    return jax.lax.fori_loop(0, _NEWTON_STEPS, step, begin)


def _logistic_norm_cost(pieces: Pieces, u0: Array, rho: Array) -> tuple[Array, Array]:
    """The (at most two) local maxima of softplus(v0 + travel + rate nu) - rho sqrt(spent + rate nu^2).

    Only the side on which the margin falls can gain. With S = sqrt(rate) nu / sqrt(spent + rate nu^2)
    in (0, 1) and k = rho / sqrt(rate), a stationary point solves logit(k S) = v, and
    psi = logit(k S) - v passes from - to + at a local maximum. psi falls where
    Q(S) = S - k S^2 - e (1 - S^2)^(3/2) > 0, e = 1 / sqrt(spent rate). Q starts negative, is first
    convex and then concave, and Q'(0) = 1, so it rises to one peak and falls: psi rises, falls and rises
    again, with at most one crossing from - to + on each of the two rising stretches.
    """
    side, begin, _, rate, travel, spent = pieces
    moving = jnp.where(rate > 0, rate, 1.0)
    paid = jnp.where(spent > 0, spent, 1.0)
    k = rho / jnp.sqrt(moving)
    e = 1 / jnp.sqrt(paid * moving)
    v0 = -u0 + travel
    top = jnp.minimum(1.0, 1 / k)
    zero = jnp.zeros_like(k)

    def q(s: Array) -> Array:
        return s - k * s**2 - e * (1 - s**2) ** 1.5

    def q_slope(s: Array) -> Array:
        return 1 - 2 * k * s + 3 * e * s * jnp.sqrt(jnp.maximum(1 - s**2, 0.0))

    def nu(s: Array) -> Array:
        return jnp.sqrt(paid / moving) * s / jnp.sqrt(jnp.maximum(1 - s**2, 1e-300))

    def psi(s: Array) -> Array:
        logit = jnp.log(k * s) - jnp.log1p(-jnp.minimum(k * s, 1 - 1e-16))
        return logit - (v0 + moving * nu(s))

    peak = _where_sign_drops(q_slope, zero, top)
    falls_from = _where_sign_drops(lambda s: -q(s), zero, peak)
    falls_to = _where_sign_drops(q, peak, top)
    first = nu(_where_sign_drops(lambda s: -psi(s), zero, falls_from))
    second = nu(_where_sign_drops(lambda s: -psi(s), falls_to, top))
    useful = (side < 0) & (spent > 0)
    return jnp.where(useful, first, begin), jnp.where(useful, second, begin)


def _where_sign_drops(f: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The point of [low, high] where f turns from positive to negative (an end if it does not)."""

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = bracket
        middle = (a + b) / 2
        positive = f(middle) > 0
        return jnp.where(positive, middle, a), jnp.where(positive, b, middle)

    a, b = jax.lax.fori_loop(0, _HALVINGS, halve, (low, high))
    return (a + b) / 2
