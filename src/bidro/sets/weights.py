"""Sets of mixture weights: the simplex and its declared subsets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike

from bidro.errors import BidroError
from bidro.sets.base import Polytope, require_finite, vectors
from bidro.trees import pytree, static


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

    def polytope(self) -> Polytope:
        return Polytope(np.zeros(self.size), np.eye(self.size), np.ones((1, self.size)), np.ones(1))


@pytree
class CappedSimplex:
    """{alpha in the simplex : lower <= alpha <= upper}; a single point where lower = upper."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        lower, upper = vectors("Lower and upper bounds", self.lower, self.upper)
        require_finite("The bounds of a capped simplex", lower, upper)
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

    def polytope(self) -> Polytope:
        # alpha = lower + y with y + slack = upper - lower and sum y = 1 - sum lower.
        n, eye = self.dimension, np.eye(self.dimension)
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        matrix = np.block([[eye, eye], [np.ones((1, n)), np.zeros((1, n))]])
        total = np.append(upper - lower, 1 - lower.sum())
        return Polytope(lower, np.hstack([eye, 0 * eye]), matrix, total)


@pytree
class L1SimplexBall:
    """{alpha in the simplex : ||alpha - center||_1 <= radius}, center in the simplex."""

    center: Array
    radius: Array

    def __post_init__(self) -> None:
        (center,) = vectors("The centre of an l1 ball", self.center)
        require_finite("The centre and radius of an l1 ball", center, self.radius)
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
        free = Simplex(self.dimension).project(v)  # nan for weights that are not finite
        # Where the l1 constraint binds, weights that rise gain radius / 2 in all and weights that
        # fall lose as much; the two halves decouple into one water level each.
        d, half = v - self.center, self.radius / 2
        zero = jnp.zeros_like(v)
        rise = _lowered(d, zero, zero + half, half)
        fall = _lowered(-d, zero, self.center, half)
        binds = jnp.sum(jnp.abs(free - self.center)) > self.radius
        return jnp.where(binds, self.center + rise - fall, free)

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

    def polytope(self) -> Polytope:
        # alpha = center + rise - fall with fall + slack = center, sum rise = sum fall and
        # sum rise + slack = radius / 2; the variables are (rise, fall, slack of fall, slack of the sum).
        n, eye = self.dimension, np.eye(self.dimension)
        one, none, zero = np.ones((1, n)), np.zeros((1, n)), np.zeros((1, 1))
        matrix = np.block(
            [
                [0 * eye, eye, eye, np.zeros((n, 1))],
                [one, -one, none, zero],
                [one, none, none, zero + 1],
            ]
        )
        center = np.asarray(self.center)
        lift = np.hstack([eye, -eye, 0 * eye, np.zeros((n, 1))])
        return Polytope(center, lift, matrix, np.concatenate([center, [0.0, float(self.radius) / 2]]))


def _fill_in_order(room: Array, total: Array) -> Array:
    """Pour `total` into slots of size `room`, filling each before the next."""
    before = jnp.cumsum(room) - room
    return jnp.clip(total - before, 0.0, room)


def _finite_or_nan(v: Array, projected: Array) -> Array:
    """Weights that are not finite have no projection, and must not turn into ones that look fine."""
    return jnp.where(jnp.all(jnp.isfinite(v)), projected, jnp.nan)


def _lowered(v: Array, lower: Array, upper: Array, total: Array) -> Array:
    """clip(v - tau, lower, upper) for the level tau at which it sums to `total`."""
    # A second pass on values that are now near zero removes the rounding of a large level.
    near = v - jnp.max(v)
    first = near - _water_level(near, lower, upper, total)
    return jnp.clip(first - _water_level(first, lower, upper, total), lower, upper)


@jax.jit
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
