"""The inner supremum without iteration error, for losses of linear predictors and p = 1 or 2."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from bidro.errors import BidroError
from bidro.losses import LinearLoss, Softmax, has_curves
from bidro.sets import Ball, Box, WholeSpace
from bidro.worst_case.ascent import BacktrackingAscent
from bidro.worst_case.inner import Inner, InnerMax, best_over_labels
from bidro.worst_case.path import maximise_on_path, pieces_of_path


@dataclass(frozen=True)
class Exact:
    """The global maximum of phi over Xi.

    Linear predictors, p = 1 and 2, unbounded and box support: exact, with error bound 0. The value is
    inf, and the point that of the sample, where phi is unbounded. Softmax: exact for p = 1 on
    unbounded support; elsewhere a point found by ascent, and `value + error_bound` is an upper
    bound of the supremum.
    """

    @staticmethod
    def obstacle(inner: Inner) -> str | None:
        """Why this problem has no exact treatment here; None where it has one."""
        if not isinstance(inner.loss, LinearLoss | Softmax):
            return f"{type(inner.loss).__name__} is not a loss of a linear predictor"
        if inner.transport.p not in (1, 2):
            return f"the order p = {inner.transport.p:g} of the cost is neither 1 nor 2"
        if has_curves(inner.loss):
            # Rows do not move along one line: what is known of the supremum is a bound, see `ball`.
            needs_one = isinstance(inner.loss, Softmax) and inner.transport.p != 1
            return "curves of several classes need a cost of order p = 1" if needs_one else None
        if isinstance(inner.support, Ball):
            return "the support is a ball"
        return None

    @property
    def needs_noise(self) -> bool:
        return False

    def check(self, inner: Inner) -> None:
        if (why := self.obstacle(inner)) is not None:
            raise BidroError(f"There is no exact inner supremum here: {why}; use BacktrackingAscent instead.")

    def maximise(
        self, inner: Inner, x: Array, zeta: Array, rho: Array, noise: Array | None = None
    ) -> InnerMax:
        loss = inner.loss
        if isinstance(loss, LinearLoss):
            return best_over_labels(inner, zeta, lambda label: _linear(inner, loss, x, zeta, label, rho))
        assert isinstance(loss, Softmax)
        return best_over_labels(inner, zeta, lambda label: _softmax(inner, loss, x, zeta, label, rho))


def _linear(inner: Inner, loss: LinearLoss, x: Array, zeta: Array, label: Array, rho: Array) -> InnerMax:
    """sup over the features with the label held at `label`, along the clipped path."""
    support, transport = inner.support, inner.transport
    assert isinstance(support, Box | WholeSpace)
    start = zeta if loss.labels is None else zeta.at[-1].set(label)
    a, offset = loss.direction(x, label)
    pieces = pieces_of_path(a, zeta, transport.inverse_scale, support)
    u0 = jnp.sum(a * zeta) + offset
    nu, best = maximise_on_path(loss.scalar, pieces, u0, rho, transport.p)
    finite = best < jnp.inf
    moved = start + jnp.where(finite, nu, 0.0) * a * transport.inverse_scale**2
    point = jnp.where(transport.inverse_scale > 0, support.project(moved), start)
    value = jnp.where(finite, inner.phi(x, zeta, point, rho), jnp.inf)
    return InnerMax(point, value, jnp.zeros(()))


def _softmax(inner: Inner, loss: Softmax, x: Array, zeta: Array, label: Array, rho: Array) -> InnerMax:
    """sup over the features with the label held at `label`.

    The loss is convex in theta with slope at most K_y = max_k ||S^-1 (w_k - w_y)||, reached far out.
    p = 1, unbounded: the supremum is the value at the sample if K_y <= rho, else inf.
    p = 2: l(theta) <= l + K_y t and l(theta) <= l + g t + M t^2 / 2 for a move of length t, with g the
    slope at the sample and M the curvature, so sup phi <= l + min(K_y^2 / (4 rho), g^2 / (4 rho - 2 M)).
    Where phi is strongly concave (4 rho > 2 M), ascent bounds its own error too, and hardly has any.
    p = 1 on a box: the gain is at most (K_y - rho)_+ times the distance to the farthest corner.
    """
    support, transport = inner.support, inner.transport
    start = zeta.at[-1].set(label)
    steepest = loss.steepness(x, transport.inverse_scale, label)
    here = inner.phi(x, zeta, start, rho)
    if transport.p == 1 and isinstance(support, WholeSpace):
        value = jnp.where(steepest <= rho, here, jnp.inf)
        return InnerMax(start, value, jnp.zeros(()))
    found = BacktrackingAscent().from_label(inner, x, zeta, label, rho)
    if transport.p == 2:
        ceiling = here + _softmax_gain(inner, loss, x, start, steepest, rho)
    else:
        assert isinstance(support, Box)
        farthest = jnp.maximum(support.upper - zeta, zeta - support.lower)
        movable = transport.inverse_scale > 0
        reach = jnp.linalg.norm(jnp.where(movable, transport.scale, 0.0) * farthest)
        ceiling = here + jnp.maximum(steepest - rho, 0.0) * reach
    above = jnp.maximum(ceiling - found.value, 0.0)
    return InnerMax(found.point, found.value, jnp.minimum(above, found.error_bound))


def _softmax_gain(inner: Inner, loss: Softmax, x: Array, start: Array, steepest: Array, rho: Array) -> Array:
    inverse = inner.transport.inverse_scale
    slope = jnp.linalg.norm(jax.grad(loss.value, argnums=1)(x, start) * inverse)
    spare = 4 * rho - 2 * loss.curvature(x, inverse)
    local = jnp.where(spare > 0, slope**2 / jnp.where(spare > 0, spare, 1.0), jnp.inf)
    return jnp.minimum(steepest**2 / (4 * rho), local)
