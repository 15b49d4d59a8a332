"""Sets of models and of samples: the whole space, boxes, balls, and their cuts by a scaled norm."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.errors import BidroError
from bidro.sets.base import Constraints, NormBound, VectorSet, require_finite, vectors
from bidro.trees import pytree, static

# Enough halvings for a bisection to reach the last bit of a float64 from any bracket used here.
_HALVINGS = 100


@pytree
class WholeSpace:
    """All of R^dimension: an unbounded support, or a model without constraints."""

    size: int = static()

    @property
    def dimension(self) -> int:
        return self.size

    def project(self, v: Array, weights: Array | None = None) -> Array:
        return v

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        return jnp.all(jnp.isfinite(v))

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        point = jnp.where(c == 0, 0.0, jnp.sign(c) * jnp.inf)
        return jnp.where(jnp.any(c != 0), jnp.inf, 0.0), point

    def diameter(self) -> Array:
        return jnp.asarray(jnp.inf)

    def bounding_box(self) -> tuple[Array, Array]:
        bound = jnp.full(self.size, jnp.inf)
        return -bound, bound

    def constraints(self) -> Constraints:
        bound = np.full(self.size, np.inf)
        return Constraints(-bound, bound, ())

    def largest_norm(self, scale: Array) -> Array:
        return jnp.where(jnp.any(scale > 0), jnp.inf, 0.0)


@pytree
class Box:
    """{v : lower <= v <= upper}, bounds finite, of shape (dimension,)."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        lower, upper = vectors("Lower and upper bounds", self.lower, self.upper)
        require_finite("The bounds of a box", lower, upper)
        if np.any(lower > upper):
            j = int(np.argmax(lower > upper))
            raise BidroError(f"A box needs lower <= upper; coordinate {j} has {lower[j]} > {upper[j]}.")
        object.__setattr__(self, "lower", jnp.asarray(lower))
        object.__setattr__(self, "upper", jnp.asarray(upper))

    @classmethod
    def cube(cls, half_width: float, dimension: int) -> Box:
        """[-half_width, half_width]^dimension."""
        return cls(jnp.full(dimension, -half_width), jnp.full(dimension, half_width))

    @property
    def dimension(self) -> int:
        return self.lower.shape[-1]

    def project(self, v: Array, weights: Array | None = None) -> Array:
        # A box is separable, so the projection is the same in every diagonal metric.
        return jnp.clip(v, self.lower, self.upper)

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        return jnp.all((v >= self.lower - tolerance) & (v <= self.upper + tolerance))

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        point = jnp.where(c > 0, self.upper, self.lower)
        return jnp.sum(c * point), point

    def diameter(self) -> Array:
        return jnp.linalg.norm(self.upper - self.lower)

    def bounding_box(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    def constraints(self) -> Constraints:
        return Constraints(np.asarray(self.lower), np.asarray(self.upper), ())

    def largest_norm(self, scale: Array) -> Array:
        return jnp.linalg.norm(scale * jnp.maximum(jnp.abs(self.lower), jnp.abs(self.upper)))


@pytree
class Ball:
    """{v : ||v - center|| <= radius} in the Euclidean norm."""

    center: Array
    radius: Array

    def __post_init__(self) -> None:
        (center,) = vectors("The centre of a ball", self.center)
        require_finite("The centre and radius of a ball", center, self.radius)
        if np.ndim(self.radius) != 0 or self.radius < 0:
            raise BidroError(f"A ball needs one radius >= 0; got {self.radius}.")
        object.__setattr__(self, "center", jnp.asarray(center))
        object.__setattr__(self, "radius", jnp.asarray(self.radius, float))

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    def project(self, v: Array, weights: Array | None = None) -> Array:
        offset = v - self.center
        norm = _norm(offset)
        if weights is None:
            scale = jnp.where(norm > self.radius, self.radius / jnp.where(norm > 0, norm, 1.0), 1.0)
            return self.center + scale * offset

        # Stationarity gives u - center = weights offset / (weights + eta), whose norm falls with eta.
        def moved(eta: Array) -> Array:
            return offset / (1 + eta / weights)

        def outside(eta: Array) -> Array:
            return _norm(moved(eta)) > self.radius

        eta = _bisect(outside, jnp.zeros(()), _double_until(lambda e: ~outside(e)))
        # A held coordinate keeps its bits: center + (v - center) need not.
        return jnp.where((norm > self.radius) & ~jnp.isinf(weights), self.center + moved(eta), v)

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        return jnp.linalg.norm(v - self.center) <= self.radius + tolerance

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        norm = jnp.linalg.norm(c)
        point = self.center + self.radius * c / jnp.where(norm > 0, norm, 1.0)
        return jnp.sum(c * self.center) + self.radius * norm, point

    def diameter(self) -> Array:
        return 2 * self.radius

    def bounding_box(self) -> tuple[Array, Array]:
        return self.center - self.radius, self.center + self.radius

    def constraints(self) -> Constraints:
        bound = np.full(self.dimension, np.inf)
        inside = NormBound(np.eye(self.dimension), -np.asarray(self.center), float(self.radius))
        return Constraints(-bound, bound, (inside,))

    def largest_norm(self, scale: Array) -> Array:
        return jnp.linalg.norm(scale * self.center) + self.radius * jnp.max(scale)


@pytree
class ScaledNormCut:
    """{v in base : ||scale * v|| <= radius}, the part of `base` with a small scaled norm.

    This is the domain on which a penalised loss is finite when the support is unbounded
    (for squared loss, ||S^-1 w||^2 < rho). Raises BidroError where the set is empty.
    """

    base: VectorSet
    scale: Array
    radius: Array

    def __post_init__(self) -> None:
        zero = jnp.zeros(self.base.dimension)
        closest = self.base.project(zero, jnp.maximum(self.scale**2, 1e-12))
        smallest = float(jnp.linalg.norm(self.scale * closest))
        if smallest > self.radius:
            raise BidroError(
                f"No point of the set has a scaled norm of at most {float(self.radius):.6g}: "
                f"the smallest is {smallest:.6g}."
            )

    @property
    def dimension(self) -> int:
        return self.base.dimension

    def project(self, v: Array, weights: Array | None = None) -> Array:
        d = jnp.ones_like(v) if weights is None else weights

        # The Lagrangian in mu is again a weighted projection on the base set.
        def point(mu: Array) -> Array:
            total = d + mu * self.scale**2
            return self.base.project(d * v / total, total)

        def outside(u: Array) -> Array:
            return jnp.linalg.norm(self.scale * u) > self.radius

        unpenalised = self.base.project(v, weights)
        cut = outside(unpenalised)
        # Where nothing is cut there is nothing to search for.
        most = _double_until(lambda mu: ~cut | ~outside(point(mu)))
        mu = _bisect(lambda s: outside(point(s)), jnp.zeros(()), jnp.where(cut, most, 0.0))
        return jnp.where(cut, point(mu), unpenalised)

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        small = jnp.linalg.norm(self.scale * v) <= self.radius + tolerance
        return self.base.contains(v, tolerance) & small

    def diameter(self) -> Array:
        """An upper bound: the base set's, or that of the box around the cut."""
        lower, upper = self.bounding_box()
        return jnp.minimum(self.base.diameter(), jnp.linalg.norm(upper - lower))

    def bounding_box(self) -> tuple[Array, Array]:
        lower, upper = self.base.bounding_box()
        reach = jnp.where(self.scale > 0, self.radius / jnp.where(self.scale > 0, self.scale, 1.0), jnp.inf)
        return jnp.maximum(lower, -reach), jnp.minimum(upper, reach)

    def constraints(self) -> Constraints:
        base = self.base.constraints()
        used = np.flatnonzero(np.asarray(self.scale))
        matrix = np.diag(np.asarray(self.scale))[used]
        cut = NormBound(matrix, np.zeros(len(used)), float(self.radius))
        return base._replace(norms=(*base.norms, cut))

    def largest_norm(self, scale: Array) -> Array:
        # ||scale v|| <= max(scale / self.scale) ||self.scale v||, where the cut bounds every coordinate.
        bounded = jnp.all((self.scale > 0) | (scale == 0))
        ratio = jnp.max(jnp.where(scale > 0, scale / jnp.where(self.scale > 0, self.scale, 1.0), 0.0))
        cut = jnp.where(bounded, ratio * self.radius, jnp.inf)
        return jnp.minimum(self.base.largest_norm(scale), cut)


def _norm(v: Array) -> Array:
    """||v|| without overflow."""
    largest = jnp.max(jnp.abs(v))
    scale = jnp.where(largest > 0, largest, 1.0)
    return scale * jnp.linalg.norm(v / scale)


def _bisect(too_small: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The point of [low, high] where the predicate `too_small` turns from true to false."""

    def divisible(bracket: tuple[Array, Array, Array]) -> Array:
        a, b, k = bracket
        middle = (a + b) / 2
        return (a < middle) & (middle < b) & (k < _HALVINGS)

    def halve(bracket: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, b, k = bracket
        middle = (a + b) / 2
        small = too_small(middle)
        return jnp.where(small, middle, a), jnp.where(small, b, middle), k + 1

    return jax.lax.while_loop(divisible, halve, (low, high, jnp.zeros((), int)))[1]


def _double_until(enough: Callable[[Array], Array]) -> Array:
    """The first of 1, 4, 16, ... (up to 4^200) for which the predicate holds."""
    return jax.lax.while_loop(
        lambda mu: ~enough(mu) & (mu < 1e120),
        lambda mu: 4 * mu,
        jnp.ones(()),
    )
