"""Sets of models and of samples: the whole space, boxes, balls, and their cuts by a scaled norm."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace, pytree, repeat_while, static
from bidro.core.sets.base import AnyArray, Constraints, NormBound, V, VectorSet, require_finite, vectors

# Enough halvings for a bisection to reach the last bit of a float64 from any bracket used here.
_HALVINGS = 100


@pytree
class WholeSpace:
    """All of R^dimension: an unbounded support, or a model without constraints.

    Args:
        size: the dimension.

    Examples:
        >>> import numpy as np
        >>> from bidro import WholeSpace
        >>> bool(WholeSpace(2).contains(np.array([1e9, -1e9])))
        True
    """

    size: int = static()

    @property
    def dimension(self) -> int:
        return self.size

    def project(self, v: V, weights: V | None = None) -> V:
        return v

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v)
        return xp.all(xp.isfinite(v))

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c)
        point = xp.where(c > 0, np.inf, xp.where(c < 0, -np.inf, 0.0))
        return xp.where(xp.any(c != 0), np.inf, 0.0), point

    def diameter(self) -> AnyArray:
        return np.inf

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        bound = np.full(self.size, np.inf)
        return -bound, bound

    def constraints(self) -> Constraints:
        bound = np.full(self.size, np.inf)
        return Constraints(-bound, bound, ())

    def largest_norm(self, scale: V) -> V:
        xp = namespace(scale)
        return xp.where(xp.any(scale > 0), np.inf, 0.0)


@pytree
class Box:
    """{v : lower <= v <= upper}, bounds finite, of shape (dimension,).

    Args:
        lower: the least value of every coordinate; one number for all.
        upper: the largest.

    Raises:
        BidroError: for bounds that are not finite, or a lower one above an upper one.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box
        >>> Box([0, 0], [1, 2]).project(np.array([3.0, -1.0])).tolist()
        [1.0, 0.0]
    """

    lower: AnyArray
    upper: AnyArray

    def __post_init__(self) -> None:
        lower, upper = vectors("Lower and upper bounds", self.lower, self.upper)
        require_finite("The bounds of a box", lower, upper)
        if np.any(lower > upper):
            j = int(np.argmax(lower > upper))
            raise BidroError(f"A box needs lower <= upper; coordinate {j} has {lower[j]} > {upper[j]}.")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def cube(cls, half_width: float, dimension: int) -> Box:
        """[-half_width, half_width]^dimension.

        Args:
            half_width: how far it reaches to both sides of 0.
            dimension: its number of coordinates.

        Returns:
            The box.
        """
        return cls(np.full(dimension, -float(half_width)), np.full(dimension, float(half_width)))

    @property
    def dimension(self) -> int:
        return self.lower.shape[-1]

    def project(self, v: V, weights: V | None = None) -> V:
        # A box is separable, so the projection is the same in every diagonal metric.
        return namespace(v, self.lower).clip(v, self.lower, self.upper)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        inside = (v >= self.lower - tolerance) & (v <= self.upper + tolerance)
        return namespace(v, self.lower).all(inside)

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c, self.lower)
        point = xp.where(c > 0, self.upper, self.lower)
        return xp.sum(c * point), point

    def diameter(self) -> AnyArray:
        return namespace(self.lower).linalg.norm(self.upper - self.lower)

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        return self.lower, self.upper

    def constraints(self) -> Constraints:
        return Constraints(np.asarray(self.lower), np.asarray(self.upper), ())

    def largest_norm(self, scale: V) -> V:
        xp = namespace(scale, self.lower)
        return xp.linalg.norm(scale * xp.maximum(xp.abs(self.lower), xp.abs(self.upper)))


@pytree
class Ball:
    """{v : ||v - center|| <= radius} in the Euclidean norm.

    Args:
        center: (dimension,).
        radius: at least 0.

    Raises:
        BidroError: for numbers that are not finite, or a negative radius.

    Examples:
        >>> import numpy as np
        >>> from bidro import Ball
        >>> Ball([0, 0], 1.0).project(np.array([3.0, 4.0])).round(2).tolist()
        [0.6, 0.8]
    """

    center: AnyArray
    radius: AnyArray

    def __post_init__(self) -> None:
        (center,) = vectors("The centre of a ball", self.center)
        require_finite("The centre and radius of a ball", center, self.radius)
        if np.ndim(self.radius) != 0 or self.radius < 0:
            raise BidroError(f"A ball needs one radius >= 0; got {self.radius}.")
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "radius", np.asarray(self.radius, float))

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    def project(self, v: V, weights: V | None = None) -> V:
        xp = namespace(v, self.center)
        offset = v - self.center
        norm = _norm(offset)
        if weights is None:
            scale = xp.where(norm > self.radius, self.radius / xp.where(norm > 0, norm, 1.0), 1.0)
            return self.center + scale * offset

        # Stationarity gives u - center = weights offset / (weights + eta), whose norm falls with eta.
        def moved(eta: Any) -> Any:
            return offset / (1 + eta / weights)

        def outside(eta: Any) -> Any:
            return _norm(moved(eta)) > self.radius

        eta = _bisect(outside, xp.zeros(()), _double_until(lambda e: ~outside(e), xp.ones(())))
        # A held coordinate keeps its bits: center + (v - center) need not.
        return xp.where((norm > self.radius) & ~xp.isinf(weights), self.center + moved(eta), v)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        return namespace(v, self.center).linalg.norm(v - self.center) <= self.radius + tolerance

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c, self.center)
        norm = xp.linalg.norm(c)
        point = self.center + self.radius * c / xp.where(norm > 0, norm, 1.0)
        return xp.sum(c * self.center) + self.radius * norm, point

    def diameter(self) -> AnyArray:
        return 2 * self.radius

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        return self.center - self.radius, self.center + self.radius

    def constraints(self) -> Constraints:
        bound = np.full(self.dimension, np.inf)
        inside = NormBound(np.eye(self.dimension), -np.asarray(self.center), float(self.radius))
        return Constraints(-bound, bound, (inside,))

    def largest_norm(self, scale: V) -> V:
        xp = namespace(scale, self.center)
        return xp.linalg.norm(scale * self.center) + self.radius * xp.max(scale)


@pytree
class ScaledNormCut:
    """{v in base : ||scale * v|| <= radius}, the part of `base` with a small scaled norm.

    This is the domain on which a penalised loss is finite when the support is unbounded
    (for squared loss, ||S^-1 w||^2 < rho). Raises BidroError where the set is empty.
    """

    base: VectorSet
    scale: AnyArray
    radius: AnyArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", np.array(self.scale, float))
        object.__setattr__(self, "radius", np.asarray(self.radius, float))
        zero = np.zeros(self.base.dimension)
        closest = self.base.project(zero, np.maximum(self.scale**2, 1e-12))
        smallest = float(np.linalg.norm(self.scale * closest))
        if smallest > self.radius:
            raise BidroError(
                f"No point of the set has a scaled norm of at most {float(self.radius):.6g}: "
                f"the smallest is {smallest:.6g}."
            )

    @property
    def dimension(self) -> int:
        return self.base.dimension

    def project(self, v: V, weights: V | None = None) -> V:
        xp = namespace(v, self.scale)
        d = xp.ones_like(v) if weights is None else weights

        # The Lagrangian in mu is again a weighted projection on the base set.
        def point(mu: Any) -> Any:
            total = d + mu * self.scale**2
            return self.base.project(d * v / total, total)

        def outside(u: Any) -> Any:
            return xp.linalg.norm(self.scale * u) > self.radius

        unpenalised = self.base.project(v, weights)
        cut = outside(unpenalised)
        # Where nothing is cut there is nothing to search for.
        most = _double_until(lambda mu: ~cut | ~outside(point(mu)), xp.ones(()))
        mu = _bisect(lambda s: outside(point(s)), xp.zeros(()), xp.where(cut, most, 0.0))
        return xp.where(cut, point(mu), unpenalised)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        small = namespace(v, self.scale).linalg.norm(self.scale * v) <= self.radius + tolerance
        return self.base.contains(v, tolerance) & small

    def diameter(self) -> AnyArray:
        """An upper bound: the base set's, or that of the box around the cut."""
        lower, upper = self.bounding_box()
        xp = namespace(lower, upper)
        return xp.minimum(self.base.diameter(), xp.linalg.norm(upper - lower))

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        lower, upper = self.base.bounding_box()
        xp = namespace(lower, self.scale)
        reach = xp.where(self.scale > 0, self.radius / xp.where(self.scale > 0, self.scale, 1.0), np.inf)
        return xp.maximum(lower, -reach), xp.minimum(upper, reach)

    def constraints(self) -> Constraints:
        base = self.base.constraints()
        used = np.flatnonzero(np.asarray(self.scale))
        matrix = np.diag(np.asarray(self.scale))[used]
        cut = NormBound(matrix, np.zeros(len(used)), float(self.radius))
        return base._replace(norms=(*base.norms, cut))

    def largest_norm(self, scale: V) -> V:
        # ||scale v|| <= max(scale / self.scale) ||self.scale v||, where the cut bounds every coordinate.
        xp = namespace(scale, self.scale)
        bounded = xp.all((self.scale > 0) | (scale == 0))
        ratio = xp.max(xp.where(scale > 0, scale / xp.where(self.scale > 0, self.scale, 1.0), 0.0))
        cut = xp.where(bounded, ratio * self.radius, np.inf)
        return xp.minimum(self.base.largest_norm(scale), cut)


def _norm(v: V) -> V:
    """||v|| without overflow."""
    xp = namespace(v)
    largest = xp.max(xp.abs(v))
    scale = xp.where(largest > 0, largest, 1.0)
    return scale * xp.linalg.norm(v / scale)


def _bisect(too_small: Callable[[Any], Any], low: V, high: V) -> V:
    """The point of [low, high] where the predicate `too_small` turns from true to false."""
    xp = namespace(low, high)

    def divisible(bracket: tuple[V, V, V]) -> Any:
        a, b, k = bracket
        middle = (a + b) / 2
        return (a < middle) & (middle < b) & (k < _HALVINGS)

    def halve(bracket: tuple[V, V, V]) -> tuple[V, V, V]:
        a, b, k = bracket
        middle = (a + b) / 2
        small = too_small(middle)
        return xp.where(small, middle, a), xp.where(small, b, middle), k + 1

    return repeat_while(divisible, halve, (low, high, xp.zeros((), int)))[1]


def _double_until(enough: Callable[[Any], Any], one: V) -> V:
    """The first of 1, 4, 16, ... (up to 4^200) for which the predicate holds."""
    return repeat_while(lambda mu: ~enough(mu) & (mu < 1e120), lambda mu: 4 * mu, one)
