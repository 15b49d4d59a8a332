"""The inner supremum without iteration error, for losses of linear predictors and p = 1 or 2."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from bidro.errors import BidroError
from bidro.losses import LinearLoss, Softmax, has_curves
from bidro.sets import Ball, Box, WholeSpace
from bidro.worst_case.ascent import measured
from bidro.worst_case.inner import Inner, InnerMax, best_over_labels
from bidro.worst_case.path import maximise_on_path, pieces_of_path
from bidro.worst_case.several_classes import CLOSE, Sample, ceiling, highest
from bidro.worst_case.two_classes import TwoClasses


@dataclass(frozen=True)
class Exact:
    """The global maximum of phi over Xi.

    Linear predictors, p = 1 and 2, unbounded and box support: exact, with error bound 0. The value is
    inf, and the point that of the sample, where phi is unbounded. Softmax of two classes is such a loss,
    and that of more is exact for p = 1 on unbounded support; elsewhere it is a local maximum, and `value +
    error_bound` an upper bound of the supremum.

    Raises:
        BidroError: from `check`, for a loss, order or support without a closed form.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import Exact, Inner, Squared, Transport, WholeSpace
        >>> inner, zeta = Inner(Transport.euclidean(2), WholeSpace(2), Squared()), jnp.array([1.0, 0.0])
        >>> found = Exact().maximise(inner, jnp.array([0.5]), zeta, jnp.asarray(2.0))
        >>> round(float(found.value), 4), float(found.error_bound)  # 0.25 / (1 - 1.25 / 2)
        (0.6667, 0.0)
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
        two = TwoClasses.of(inner)
        if two is not None:
            inner, x = two.inner, two.model(x)
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

    The loss is convex in theta with slope at most K_y = max_k ||S^-1 (w_k - w_y)||, reached far out. On an
    unbounded support with p = 1, the supremum is the value at the sample if K_y <= rho, else inf. Elsewhere
    it is the best local maximum found, with a bound by cells, and where phi is strongly concave by its slope.
    """
    support, transport = inner.support, inner.transport
    start = zeta.at[-1].set(label)
    if transport.p == 1 and isinstance(support, WholeSpace):
        steepest = loss.steepness(x, transport.inverse_scale, label)
        here = inner.phi(x, zeta, start, rho)
        return InnerMax(start, jnp.where(steepest <= rho, here, jnp.inf), jnp.zeros(()))
    sample = Sample.of(inner, x, start, rho)
    tops = highest(sample)
    found = measured(inner, x, zeta, jnp.append(tops.theta, label), rho)
    # What a change of the label costs is no part of the sample's own.
    paid = rho * transport.cost(zeta, start)
    open_still = found.error_bound > CLOSE * jnp.abs(found.value)
    above = jnp.maximum(ceiling(sample, tops, found.value + paid, open_still) - paid - found.value, 0.0)
    return found._replace(error_bound=jnp.fmin(above, found.error_bound))
