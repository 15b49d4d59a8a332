"""Sets of mixture weights: the simplex and its declared subsets."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
from jax.typing import ArrayLike

from bidro.errors import BidroError
from bidro.sets.base import Held, Polytope, V, repeat_while, require_finite, vectors
from bidro.trees import namespace, pytree, static

_ROOT_OF_2 = float(np.sqrt(2.0))


@pytree
class Simplex:
    """The probability simplex {alpha >= 0, sum alpha = 1} in R^size.

    Args:
        size: how many weights.

    Examples:
        >>> import numpy as np
        >>> from bidro import Simplex
        >>> Simplex(3).project(np.array([0.9, 0.5, 0.0])).round(2).tolist()
        [0.7, 0.3, 0.0]
    """

    size: int = static()

    @property
    def dimension(self) -> int:
        return self.size

    def project(self, v: V) -> V:
        # A common shift changes nothing but the rounding, which is least near zero.
        return _finite_or_nan(v, _on_simplex(v - namespace(v).max(v)))

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v)
        return xp.all(v >= -tolerance) & (xp.abs(xp.sum(v) - 1) <= tolerance)

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c)
        best = xp.argmax(c)
        return c[best], (xp.arange(self.size) == best).astype(float)

    def diameter(self) -> Held:
        return _ROOT_OF_2 if self.size > 1 else 0.0

    def polytope(self) -> Polytope:
        return Polytope(np.zeros(self.size), np.eye(self.size), np.ones((1, self.size)), np.ones(1))


@pytree
class CappedSimplex:
    """{alpha in the simplex : lower <= alpha <= upper}; a single point where lower = upper.

    Args:
        lower: the least weight of every client, at least 0; one number for all.
        upper: the largest.

    Raises:
        BidroError: for bounds that no weights satisfy.

    Examples:
        >>> import numpy as np
        >>> from bidro import CappedSimplex
        >>> capped = CappedSimplex.around_proportions([300, 100, 100], kappa=1.5)
        >>> capped.linear_maximum(np.array([1.0, 2.0, 3.0]))[1].round(2).tolist()
        [0.4, 0.3, 0.3]
    """

    lower: Held
    upper: Held

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
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @classmethod
    def around_proportions(cls, sizes: ArrayLike, kappa: float) -> CappedSimplex:
        """alpha_i <= min(1, kappa N_i / N): no client counts for more than kappa times its share.

        Args:
            sizes: the clients' rows N_i (n,).
            kappa: the cap, at least 1.

        Returns:
            The set of weights.

        Raises:
            BidroError: for a cap below 1.
        """
        if kappa < 1:
            raise BidroError(f"A cap needs kappa >= 1, else no weights sum to 1; got {kappa}.")
        share = np.asarray(sizes, float) / np.sum(np.asarray(sizes, float))
        return cls(np.zeros(share.shape), np.minimum(1.0, kappa * share))

    @classmethod
    def blended(cls, sizes: ArrayLike, kappa: float, mu: float) -> CappedSimplex:
        """{(1 - mu) p + mu a : a_i <= min(1, kappa p_i)}, p = N_i / N: a share mu of the weight may leave the
        clients' proportions, within the caps of `around_proportions`.

        Args:
            sizes: the clients' rows N_i (n,).
            kappa: the cap, at least 1, or inf for none.
            mu: the share that may leave, from 0 to 1.

        Returns:
            The set of weights.

        Raises:
            BidroError: for a share or a cap that is none.
        """
        if not 0 <= mu <= 1:
            raise BidroError(f"A blend needs a share mu between 0 and 1; got {mu}.")
        share = np.asarray(sizes, float) / np.sum(np.asarray(sizes, float))
        caps = np.ones(share.shape) if np.isinf(kappa) else cls.around_proportions(sizes, kappa).upper
        return cls((1 - mu) * share, (1 - mu) * share + mu * caps)

    @property
    def dimension(self) -> int:
        return self.lower.shape[-1]

    def project(self, v: V) -> V:
        return _finite_or_nan(v, _lowered(v, self.lower, self.upper, 1.0))

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v, self.lower)
        inside = (v >= self.lower - tolerance) & (v <= self.upper + tolerance)
        return xp.all(inside) & (xp.abs(xp.sum(v) - 1) <= tolerance)

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c, self.lower)
        order = xp.argsort(-c)
        added = _fill_in_order((self.upper - self.lower)[order], 1 - xp.sum(self.lower))
        point = self.lower + added[xp.argsort(order)]
        return xp.sum(c * point), point

    def diameter(self) -> Held:
        """An upper bound: the diameter of the box around it, and at most sqrt(2)."""
        xp = namespace(self.lower)
        return xp.minimum(_ROOT_OF_2, xp.linalg.norm(self.upper - self.lower))

    def polytope(self) -> Polytope:
        # alpha = lower + y with y + slack = upper - lower and sum y = 1 - sum lower.
        n, eye = self.dimension, np.eye(self.dimension)
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        matrix = np.block([[eye, eye], [np.ones((1, n)), np.zeros((1, n))]])
        total = np.append(upper - lower, 1 - lower.sum())
        return Polytope(lower, np.hstack([eye, 0 * eye]), matrix, total)


@pytree
class L1SimplexBall:
    """{alpha in the simplex : ||alpha - center||_1 <= radius}, center in the simplex.

    Args:
        center: weights (n,) that sum to 1.
        radius: at least 0; 2 is the whole simplex.

    Raises:
        BidroError: for a centre outside the simplex, or a negative radius.

    Examples:
        >>> import numpy as np
        >>> from bidro import L1SimplexBall
        >>> L1SimplexBall([0.5, 0.5], 0.4).linear_maximum(np.array([1.0, 0.0]))[1].round(2).tolist()
        [0.7, 0.3]
    """

    center: Held
    radius: Held

    def __post_init__(self) -> None:
        (center,) = vectors("The centre of an l1 ball", self.center)
        require_finite("The centre and radius of an l1 ball", center, self.radius)
        if np.any(center < 0) or abs(center.sum() - 1) > 1e-9:
            raise BidroError("The centre of an l1 ball of weights must be nonnegative and sum to 1.")
        if np.ndim(self.radius) != 0 or self.radius < 0:
            raise BidroError(f"An l1 ball needs one radius >= 0; got {self.radius}.")
        object.__setattr__(self, "center", center)
        # Two points of the simplex are never further apart than 2.
        object.__setattr__(self, "radius", np.minimum(np.asarray(self.radius, float), 2.0))

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    def project(self, v: V) -> V:
        xp = namespace(v, self.center)
        free = Simplex(self.dimension).project(v)  # nan for weights that are not finite
        # Where the l1 constraint binds, weights that rise gain radius / 2 in all and weights that
        # fall lose as much; the two halves decouple into one water level each.
        d, half = v - self.center, self.radius / 2
        zero = xp.zeros_like(v)
        rise = _lowered(d, zero, zero + half, half)
        fall = _lowered(-d, zero, self.center, half)
        binds = xp.sum(xp.abs(free - self.center)) > self.radius
        return xp.where(binds, self.center + rise - fall, free)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v, self.center)
        close = xp.sum(xp.abs(v - self.center)) <= self.radius + tolerance
        return Simplex(self.dimension).contains(v, tolerance) & close

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c, self.center)
        order = xp.argsort(c)
        taken = _fill_in_order(self.center[order], self.radius / 2)
        best = xp.arange(self.dimension) == xp.argmax(c)
        point = self.center - taken[xp.argsort(order)] + xp.where(best, xp.sum(taken), 0.0)
        return xp.sum(c * point), point

    def diameter(self) -> Held:
        """An upper bound: ||a - b|| <= ||a - b||_1 / sqrt(2) for vectors of equal sum."""
        return namespace(self.radius).minimum(_ROOT_OF_2, self.radius * _ROOT_OF_2)

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


def capped_sizes(sizes: ArrayLike, most: float) -> Held:
    """Sizes (n,) with the same sum, of which none is more than the share `most` of it: what that takes from
    some goes to the others in proportion.

    Raises BidroError where so many shares of at most `most` do not sum to 1.
    """
    counts = np.asarray(sizes, float)
    return counts if most == 1 else counts.sum() * _capped_shares(counts, most)


def _capped_shares(counts: Held, most: float) -> Held:
    if not most * len(counts) >= 1 - 1e-12:
        raise BidroError(
            f"No {len(counts)} weights of at most {most:g} sum to 1: max_weight must be at least "
            f"1 / {len(counts)}."
        )
    share, held = counts / counts.sum(), np.zeros(len(counts), bool)
    while (over := ~held & (share > most)).any():
        held |= over
        if held.all():
            return np.full(len(counts), 1 / len(counts))
        left = 1 - most * held.sum()
        share = np.where(held, most, counts * (left / counts[~held].sum()))
    return share


def _fill_in_order(room: V, total: Any) -> V:
    """Pour `total` into slots of size `room`, filling each before the next."""
    xp = namespace(room, total)
    before = xp.cumsum(room) - room
    return xp.clip(total - before, 0.0, room)


def _finite_or_nan(v: V, projected: V) -> V:
    """Weights that are not finite have no projection, and must not turn into ones that look fine."""
    xp = namespace(v, projected)
    return xp.where(xp.all(xp.isfinite(v)), projected, np.nan)


def _on_simplex(v: V) -> V:
    """max(v - tau, 0) for the level tau at which it sums to 1 (Held, Wolfe and Crowder 1974): of the weights
    in falling order, the first k stay above 0, k being the last for which the k-th does."""
    xp = namespace(v)
    falling = xp.sort(v)[::-1]
    level = (xp.cumsum(falling) - 1) / xp.arange(1, v.shape[0] + 1)
    above = xp.sum(falling > level)
    return xp.maximum(v - level[above - 1], 0.0)


def _lowered(v: V, lower: Any, upper: Any, total: Any) -> V:
    """clip(v - tau, lower, upper) for the level tau at which it sums to `total`."""
    xp = namespace(v, lower, upper)
    # A second pass on values that are now near zero removes the rounding of a large level.
    near = v - xp.max(v)
    first = near - _water_level(near, lower, upper, total)
    return xp.clip(first - _water_level(first, lower, upper, total), lower, upper)


def _water_level(v: V, lower: Any, upper: Any, total: Any) -> V:
    """The tau with sum_i clip(v_i - tau, lower_i, upper_i) = total, exactly.

    The sum falls with tau, linearly between the 2n breakpoints v - upper and v - lower; a search
    over the sorted breakpoints finds the interval, and arithmetic the level in it.
    """
    xp = namespace(v, lower, upper)
    points = xp.sort(xp.concatenate([v - upper, v - lower]))

    def divisible(bracket: tuple[Any, Any]) -> Any:
        return bracket[1] - bracket[0] > 1

    def narrow(bracket: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bracket
        middle = (low + high) // 2
        enough = xp.sum(xp.clip(v - points[middle], lower, upper)) >= total
        return xp.where(enough, middle, low), xp.where(enough, high, middle)

    # The interval [points[k], points[k + 1]] that holds the level; its moving coordinates give tau.
    last = points.shape[0] - 1
    k = repeat_while(divisible, narrow, (xp.zeros((), int), xp.full((), last)))[0]
    middle = (points[k] + points[k + 1]) / 2
    moves = (v - upper < middle) & (middle < v - lower)
    still = xp.where(moves, 0.0, xp.clip(v - middle, lower, upper))
    count = xp.sum(moves)
    level = (xp.sum(xp.where(moves, v, 0.0)) + xp.sum(still) - total) / xp.maximum(count, 1)
    return xp.where(count > 0, level, middle)
