"""The cheapest way to move a linear predictor, and the exact maximum along it.

For a loss L(u) with u = <a, xi> + offset, only u matters, and the cheapest way to change it is along
xi(nu) = clip(zeta + nu S^-2 a) for nu in R: a ray where the support is unbounded, a path that bends
where a coordinate meets the box. Along it, with side s = sign(nu) and nu >= 0 from here on,

    u = u0 + s (travel + rate nu)      and      ||S (xi - zeta)||^2 = spent + rate nu^2

on each piece between two bends. The objective L(u) - rho ||S (xi - zeta)||^p is not concave, so its
global maximum is taken over the ends and all local maxima of all pieces.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.losses.scalar import PiecewiseQuadratic, Scalar
from bidro.sets import Box, WholeSpace
from bidro.worst_case.scalar_maxima import norm_cost_maxima, squared_cost_maxima


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
    endless = jnp.isinf(end) & (rate > 0) & _outgrows(scalar, side, rate, rho, p)
    highest = jnp.where(jnp.any(endless), jnp.inf, values.reshape(-1)[best])
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
