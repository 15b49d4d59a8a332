"""Convex sets: supports Xi, model sets X and mixture sets A.

Each set offers the Euclidean projection, membership, the linear maximum
max {<c, v> : v in the set} with a maximiser, and its Euclidean diameter. All sets are JAX pytrees, so
they can be passed through `jit` and `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.trees import pytree, static

# Enough halvings for a bisection to reach the last bit of a float64 from any bracket used here.
_HALVINGS = 100


class ConvexSet(Protocol):
    """What every set in this room offers."""

    @property
    def dimension(self) -> int: ...

    def project(self, v: Array) -> Array:
        """The nearest point of the set to `v` (shape (dimension,)) in the Euclidean norm."""

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        """Whether `v` lies in the set up to `tolerance` in each constraint."""

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        """(max <c, v> over the set, a point that attains it)."""

    def diameter(self) -> Array:
        """The largest Euclidean distance between two points of the set."""


class VectorSet(Protocol):
    """A set of models or samples: it can be projected on in any diagonal metric."""

    @property
    def dimension(self) -> int: ...

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array: ...

    def diameter(self) -> Array: ...

    def project(self, v: Array, weights: Array | None = None) -> Array:
        """argmin over the set of sum_j weights_j (u_j - v_j)^2; weights are 1 by default.

        An infinite weight holds a coordinate where it is.
        """

    def bounding_box(self) -> tuple[Array, Array]:
        """A box around the set: (lower, upper), each of shape (dimension,)."""

    def largest_norm(self, scale: Array) -> Array:
        """An upper bound of ||scale * v|| over the set; the largest value itself for a box."""


def _vectors(what: str, *values: ArrayLike) -> list[NDArray[np.float64]]:
    """The values as vectors of one length; a single number fits any length."""
    vectors = [np.atleast_1d(np.asarray(v, float)) for v in values]
    longest = max(len(v) for v in vectors)
    if any(v.ndim != 1 or len(v) not in (1, longest) for v in vectors):
        shapes = " and ".join(str(v.shape) for v in vectors)
        raise BidroError(f"{what} must be vectors of one length; got shapes {shapes}.")
    return [np.broadcast_to(v, (longest,)) for v in vectors]


def _require_finite(what: str, *values: ArrayLike) -> None:
    for value in values:
        if not np.all(np.isfinite(np.asarray(value))):
            raise BidroError(f"{what} must be finite numbers; got {np.asarray(value)}.")


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

    def largest_norm(self, scale: Array) -> Array:
        return jnp.where(jnp.any(scale > 0), jnp.inf, 0.0)


@pytree
class Box:
    """{v : lower <= v <= upper}, bounds finite, of shape (dimension,)."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        lower, upper = _vectors("Lower and upper bounds", self.lower, self.upper)
        _require_finite("The bounds of a box", lower, upper)
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

    def largest_norm(self, scale: Array) -> Array:
        return jnp.linalg.norm(scale * jnp.maximum(jnp.abs(self.lower), jnp.abs(self.upper)))


@pytree
class Ball:
    """{v : ||v - center|| <= radius} in the Euclidean norm."""

    center: Array
    radius: Array

    def __post_init__(self) -> None:
        (center,) = _vectors("The centre of a ball", self.center)
        _require_finite("The centre and radius of a ball", center, self.radius)
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

        most = _double_until(lambda mu: ~outside(point(mu)))
        mu = _bisect(lambda s: outside(point(s)), jnp.zeros(()), most)
        unpenalised = self.base.project(v, weights)
        return jnp.where(outside(unpenalised), point(mu), unpenalised)

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

    def largest_norm(self, scale: Array) -> Array:
        # ||scale v|| <= max(scale / self.scale) ||self.scale v||, where the cut bounds every coordinate.
        bounded = jnp.all((self.scale > 0) | (scale == 0))
        ratio = jnp.max(jnp.where(scale > 0, scale / jnp.where(self.scale > 0, self.scale, 1.0), 0.0))
        cut = jnp.where(bounded, ratio * self.radius, jnp.inf)
        return jnp.minimum(self.base.largest_norm(scale), cut)


@pytree
class Simplex:
    """The probability simplex {alpha >= 0, sum alpha = 1} in R^size."""

    size: int = static()

    @property
    def dimension(self) -> int:
        return self.size

    def project(self, v: Array) -> Array:
        # A common shift changes nothing but the rounding, which is least near zero.
        return _finite_or_nan(v, optax.projections.projection_simplex(v - jnp.max(v)))

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        return jnp.all(v >= -tolerance) & (jnp.abs(jnp.sum(v) - 1) <= tolerance)

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        best = jnp.argmax(c)
        return c[best], jnp.zeros_like(c).at[best].set(1.0)

    def diameter(self) -> Array:
        return jnp.sqrt(2.0) if self.size > 1 else jnp.zeros(())


@pytree
class CappedSimplex:
    """{alpha in the simplex : lower <= alpha <= upper}; a single point where lower = upper."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        lower, upper = _vectors("Lower and upper bounds", self.lower, self.upper)
        _require_finite("The bounds of a capped simplex", lower, upper)
        if np.any(lower < 0) or np.any(lower > upper):
            raise BidroError("A capped simplex needs 0 <= lower <= upper for every weight.")
        if lower.sum() > 1 + 1e-9 or upper.sum() < 1 - 1e-9:
            raise BidroError(
                f"No weights satisfy these bounds: the lower ones sum to {lower.sum():.6g} and the "
                f"upper ones to {upper.sum():.6g}, but weights must be able to sum to 1."
            )
        object.__setattr__(self, "lower", jnp.asarray(lower))
        object.__setattr__(self, "upper", jnp.asarray(upper))

    @classmethod
    def around_proportions(cls, sizes: ArrayLike, kappa: float) -> CappedSimplex:
        """alpha_i <= min(1, kappa N_i / N): no client counts for more than kappa times its share."""
        if kappa < 1:
            raise BidroError(f"A cap needs kappa >= 1, else no weights sum to 1; got {kappa}.")
        share = np.asarray(sizes, float) / np.sum(np.asarray(sizes, float))
        return cls(jnp.zeros(share.shape), jnp.asarray(np.minimum(1.0, kappa * share)))

    @property
    def dimension(self) -> int:
        return self.lower.shape[-1]

    def project(self, v: Array) -> Array:
        return _finite_or_nan(v, _lowered(v, self.lower, self.upper, jnp.ones(())))

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        inside = (v >= self.lower - tolerance) & (v <= self.upper + tolerance)
        return jnp.all(inside) & (jnp.abs(jnp.sum(v) - 1) <= tolerance)

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        order = jnp.argsort(-c)
        added = _fill_in_order((self.upper - self.lower)[order], 1 - jnp.sum(self.lower))
        point = self.lower.at[order].add(added)
        return jnp.sum(c * point), point

    def diameter(self) -> Array:
        """An upper bound: the diameter of the box around it, and at most sqrt(2)."""
        return jnp.minimum(jnp.sqrt(2.0), jnp.linalg.norm(self.upper - self.lower))


@pytree
class L1SimplexBall:
    """{alpha in the simplex : ||alpha - center||_1 <= radius}, center in the simplex."""

    center: Array
    radius: Array

    def __post_init__(self) -> None:
        (center,) = _vectors("The centre of an l1 ball", self.center)
        _require_finite("The centre and radius of an l1 ball", center, self.radius)
        if np.any(center < 0) or abs(center.sum() - 1) > 1e-9:
            raise BidroError("The centre of an l1 ball of weights must be nonnegative and sum to 1.")
        if np.ndim(self.radius) != 0 or self.radius < 0:
            raise BidroError(f"An l1 ball needs one radius >= 0; got {self.radius}.")
        object.__setattr__(self, "center", jnp.asarray(center))
        # Two points of the simplex are never further apart than 2.
        object.__setattr__(self, "radius", jnp.minimum(jnp.asarray(self.radius, float), 2.0))

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    def project(self, v: Array) -> Array:
        free = Simplex(self.dimension).project(v)
        # Where the l1 constraint binds, weights that rise gain radius / 2 in all and weights that
        # fall lose as much; the two halves decouple into one water level each.
        d, half = v - self.center, self.radius / 2
        zero = jnp.zeros_like(v)
        rise = _lowered(d, zero, zero + half, half)
        fall = _lowered(-d, zero, self.center, half)
        binds = jnp.sum(jnp.abs(free - self.center)) > self.radius
        return _finite_or_nan(v, jnp.where(binds, self.center + rise - fall, free))

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        close = jnp.sum(jnp.abs(v - self.center)) <= self.radius + tolerance
        return Simplex(self.dimension).contains(v, tolerance) & close

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        order = jnp.argsort(c)
        taken = _fill_in_order(self.center[order], self.radius / 2)
        point = self.center.at[order].add(-taken).at[jnp.argmax(c)].add(jnp.sum(taken))
        return jnp.sum(c * point), point

    def diameter(self) -> Array:
        """An upper bound: ||a - b|| <= ||a - b||_1 / sqrt(2) for vectors of equal sum."""
        return jnp.minimum(jnp.sqrt(2.0), self.radius * jnp.sqrt(2.0))


def _fill_in_order(room: Array, total: Array) -> Array:
    """Pour `total` into slots of size `room`, filling each before the next."""
    before = jnp.cumsum(room) - room
    return jnp.clip(total - before, 0.0, room)


def _finite_or_nan(v: Array, projected: Array) -> Array:
    """Weights that are not finite have no projection, and must not turn into ones that look fine."""
    return jnp.where(jnp.all(jnp.isfinite(v)), projected, jnp.nan)


def _norm(v: Array) -> Array:
    """||v|| without overflow."""
    largest = jnp.max(jnp.abs(v))
    scale = jnp.where(largest > 0, largest, 1.0)
    return scale * jnp.linalg.norm(v / scale)


def _lowered(v: Array, lower: Array, upper: Array, total: Array) -> Array:
    """clip(v - tau, lower, upper) for the level tau at which it sums to `total`."""
    # A second pass on values that are now near zero removes the rounding of a large level.
    near = v - jnp.max(v)
    first = near - _water_level(near, lower, upper, total)
    return jnp.clip(first - _water_level(first, lower, upper, total), lower, upper)


def _water_level(v: Array, lower: Array, upper: Array, total: Array) -> Array:
    """The tau with sum_i clip(v_i - tau, lower_i, upper_i) = total, exactly.

    The sum falls with tau, linearly between the 2n breakpoints v - upper and v - lower; a search
    over the sorted breakpoints finds the interval, and arithmetic the level in it.
    """
    points = jnp.sort(jnp.concatenate([v - upper, v - lower]))

    def narrow(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) // 2
        enough = jnp.sum(jnp.clip(v - points[middle], lower, upper)) >= total
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    # The interval [points[k], points[k + 1]] that holds the level; its moving coordinates give tau.
    last = points.shape[0] - 1
    bracket = (jnp.zeros((), int), jnp.full((), last))
    k = jnp.minimum(jax.lax.fori_loop(0, last.bit_length() + 1, narrow, bracket)[0], last - 1)
    middle = (points[k] + points[k + 1]) / 2
    moves = (v - upper < middle) & (middle < v - lower)
    still = jnp.where(moves, 0.0, jnp.clip(v - middle, lower, upper))
    count = jnp.sum(moves)
    level = (jnp.sum(jnp.where(moves, v, 0.0)) + jnp.sum(still) - total) / jnp.maximum(count, 1)
    return jnp.where(count > 0, level, middle)


def _bisect(too_small: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The point of [low, high] where the predicate `too_small` turns from true to false."""

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = bracket
        middle = (a + b) / 2
        small = too_small(middle)
        return jnp.where(small, middle, a), jnp.where(small, b, middle)

    return jax.lax.fori_loop(0, _HALVINGS, halve, (low, high))[1]


def _double_until(enough: Callable[[Array], Array]) -> Array:
    """The first of 1, 4, 16, ... (up to 4^200) for which the predicate holds."""
    return jax.lax.while_loop(
        lambda mu: ~enough(mu) & (mu < 1e120),
        lambda mu: 4 * mu,
        jnp.ones(()),
    )
