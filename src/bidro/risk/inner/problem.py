"""The inner problem: sup over xi in Xi of phi(x, zeta, xi) = l(x, xi) - rho c(zeta, xi)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.data.federation import Support
from bidro.losses import Loss, Softmax
from bidro.risk.transport import Transport


class InnerMax(NamedTuple):
    """A point found, the value phi there, and how much the supremum can exceed that value.

    The supremum lies in [value, value + error_bound]. An error bound of 0 means exact up to
    rounding; inf means unknown, and nothing computed from it may be called certified.

    Examples:
        >>> from bidro.risk.inner import InnerMax
        >>> InnerMax(point=0.5, value=2.0, error_bound=0.0).value
        2.0
    """

    point: Array  # (m,)
    value: Array  # ()
    error_bound: Array  # ()


@pytree
class Inner:
    """What an inner problem is made of; x, zeta and rho are given call by call.

    Args:
        transport: c.
        support: Xi.
        loss: l.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import Squared, Transport, WholeSpace
        >>> from bidro.risk.inner import Inner
        >>> inner, zeta = Inner(Transport.euclidean(2), WholeSpace(2), Squared()), jnp.array([1.0, 0.0])
        >>> float(inner.phi(jnp.array([0.5]), zeta, zeta, jnp.asarray(2.0)))
        0.25
    """

    transport: Transport
    support: Support
    loss: Loss = static()

    def phi(self, x: Array, zeta: Array, xi: Array, rho: Array) -> Array:
        """phi(x, zeta, xi) = l(x, xi) - rho c(zeta, xi)."""
        return self.loss.value(x, xi) - rho * self.transport.cost(zeta, xi)

    def concavity(self, x: Array, rho: Array) -> Array:
        """A modulus mu with phi mu-strongly concave in the scaled norm, or a number <= 0.

        Only a quadratic Euclidean cost has curvature of its own to set against that of the loss.
        """
        if self.transport.p != 2 or not self.transport.is_euclidean:
            return jnp.asarray(-jnp.inf)
        return 2 * rho - self.loss.curvature(x, self.transport.inverse_scale)

    @property
    def reachable_labels(self) -> tuple[float, ...] | None:
        """Labels that a sample can take at finite cost; None where it keeps its own."""
        if self.transport.discrete_label and math.isfinite(self.transport.label_cost):
            return self.loss.labels
        return None


class TwoClasses(NamedTuple):
    """Softmax of two classes as logistic loss of the difference of their scores.

    Of the model x only v = D x matters, and a sample moves along one line: worst cases are exact, and on an
    unbounded support risks are lifted, as those of any linear predictor.
    """

    inner: Inner
    apart: NDArray[np.float64]  # D, (d / 2, d)

    @classmethod
    def of(cls, inner: Inner) -> TwoClasses | None:
        """None where the loss is no softmax of two straight scores."""
        loss = inner.loss
        if not isinstance(loss, Softmax) or loss.difference is None:
            return None
        apart = loss.apart(inner.transport.dimension)
        return cls(Inner(inner.transport, inner.support, loss.difference), apart)

    def model(self, x: Array) -> Array:
        """v (d / 2,) of x (d,); each number is rounded once."""
        return jnp.asarray(self.apart) @ x


class Oracle(Protocol):
    """A way to solve the inner problem. Immutable and hashable.

    Examples:
        >>> from bidro import Exact, FixedStepAscent
        >>> Exact().needs_noise, FixedStepAscent().needs_noise
        (False, True)
    """

    def check(self, inner: Inner) -> None:
        """Raise BidroError where this oracle cannot treat this problem."""

    @property
    def needs_noise(self) -> bool:
        """Whether `maximise` uses a random direction."""

    def maximise(
        self, inner: Inner, x: Array, zeta: Array, rho: Array, noise: Array | None = None
    ) -> InnerMax:
        """Maximise phi(x, zeta, .) over Xi; `noise` is a standard Gaussian vector (m,)."""


def best_over_labels(inner: Inner, zeta: Array, solve: Callable[[Array], InnerMax]) -> InnerMax:
    """The best over the labels that zeta can take of `solve(label)`, which holds the label fixed."""
    labels = inner.reachable_labels
    if labels is None:
        return solve(zeta[-1])
    stacked = jax.vmap(solve)(jnp.asarray(labels))
    best = jnp.argmax(stacked.value)
    value = stacked.value[best]
    # The true supremum is at most the largest upper end over the labels.
    ceiling = jnp.max(stacked.value + stacked.error_bound)
    bound = jnp.where(jnp.isfinite(value), ceiling - value, stacked.error_bound[best])
    return InnerMax(stacked.point[best], value, bound)
