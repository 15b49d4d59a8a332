"""Sets of mixture weights: the simplex and its declared subsets."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace, pytree, repeat_while, static
from bidro.core.sets.base import AnyArray, Polytope, V, require_finite, vectors

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROOT_OF_2 = float(np.sqrt(2.0))
# What a weight may be off by in a sum of weights.
_ROUNDING = 4 * float(np.finfo(float).eps)


class MixtureSet(ABC):
    """A, the mixtures to guard against: a convex part of the simplex {alpha >= 0, sum alpha = 1}.

    An own one is a class made by `bidro.pytree` with the three abstract members; it may be curved. `project`
    and `linear_maximum` are called with NumPy's vectors and with JAX's, which are traced. The other members
    are what more can be known; their defaults hold for any set.

    Examples:
        >>> from bidro import CappedSimplex, MixtureSet
        >>> capped = CappedSimplex([0.2, 0.2], [0.8, 0.8])
        >>> isinstance(capped, MixtureSet), capped.is_single_point, round(capped.l1_diameter(), 6)
        (True, False, 1.2)
    """

    is_whole: ClassVar[bool] = False  # whether it is known to be the whole simplex

    @property
    @abstractmethod
    def dimension(self) -> int:
        """n, how many weights."""

    @abstractmethod
    def project(self, v: V) -> V:
        """The nearest mixture to `v` (n,) in the Euclidean norm."""

    @abstractmethod
    def linear_maximum(self, c: V) -> tuple[V, V]:
        """(max <c, alpha> over the set, a mixture that attains it): the support function."""

    def polytope(self) -> Polytope | None:
        """The set as constraints of a linear program, of numbers of the host; None where it is curved or not
        known: then programs hold the corners that `linear_maximum` finds, as many as are needed."""
        return None

    @property
    def is_polytope(self) -> bool:
        """Whether `polytope` states the set, without making its matrices, which grow with n^2."""
        return type(self).polytope is not MixtureSet.polytope

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        """Whether `v` (n,) lies in the set up to `tolerance` in each weight."""
        return namespace(v).all(abs(self.project(v) - v) <= tolerance)

    def diameter(self) -> AnyArray:
        """The largest Euclidean distance of two mixtures of the set, or an upper bound of it."""
        return _ROOT_OF_2 if self.dimension > 1 else 0.0

    def l1_diameter(self) -> float:
        """The largest ||alpha - alpha'||_1 over the set, or an upper bound of it."""
        return 2.0 if self.dimension > 1 else 0.0

    @property
    def is_single_point(self) -> bool:
        """Whether it is known to hold one mixture only, up to rounding."""
        return self.dimension == 1 or float(self.diameter()) == 0

    @property
    def in_words(self) -> str:
        """What a statement that holds for all of it is about."""
        return "mixtures in the declared set, if the true one is among them"

    def prices(self, c: Numbers) -> Numbers:
        """pi that minimises <total, pi> subject to matrix' pi >= lift' c, of the `polytope`: the dual of
        `linear_maximum`, less what the offset earns."""
        from scipy.optimize import linprog  # half a second to load, and few sets need it

        polytope = self.polytope()
        assert polytope is not None
        need = polytope.lift.T @ c
        # The program's tolerances are absolute: it is stated in units of what it is about.
        unit = float(np.max(np.abs(need))) or 1.0
        found = linprog(
            polytope.total, A_ub=-polytope.matrix.T, b_ub=-need / unit, bounds=(None, None), method="highs-ds"
        )
        return np.asarray(unit * found.x)

    def unsettled(self, order: Indices) -> Indices | None:
        """Ascending ranks of the clients around which the weights of a worst mixture are not settled, the
        clients being in `order` (n,) of falling risk; None where that is not known, and no client can be left
        to a group."""
        return None

    def grouped(self, group: Indices) -> tuple[sparse.csr_matrix, MixtureSet]:
        """A part of the set with few members in place of n clients, where `unsettled` is known: shares
        (members, n), rows summing to 1, and the weights of members. The first members are the groups;
        `group` (n,) says in which a client is, -1 for none: it has no weight."""
        raise NotImplementedError


@pytree
class Simplex(MixtureSet):
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

    is_whole: ClassVar[bool] = True

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

    def polytope(self) -> Polytope:
        return Polytope(np.zeros(self.size), np.eye(self.size), np.ones((1, self.size)), np.ones(1))

    @property
    def in_words(self) -> str:
        return "any mixture of the clients"

    def prices(self, c: Numbers) -> Numbers:
        return np.atleast_1d(np.max(c))

    def unsettled(self, order: Indices) -> Indices:
        return np.zeros(1, np.int64)

    def grouped(self, group: Indices) -> tuple[sparse.csr_matrix, Simplex]:
        return _shares(group, np.ones(len(group))), Simplex(int(group.max()) + 1)


@pytree
class CappedSimplex(MixtureSet):
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

    lower: AnyArray
    upper: AnyArray

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
            kappa: the largest ratio of a weight to its client's share, at least 1.

        Returns:
            The set of weights.

        Raises:
            BidroError: for a kappa below 1.
        """
        if kappa < 1:
            raise BidroError(
                f"The largest weight ratio kappa must be at least 1, else no weights sum to 1; got {kappa}."
            )
        share = np.asarray(sizes, float) / np.sum(np.asarray(sizes, float))
        return cls(np.zeros(share.shape), np.minimum(1.0, kappa * share))

    @classmethod
    def mixed(cls, sizes: ArrayLike, kappa: float, mu: float) -> CappedSimplex:
        """{(1 - mu) p + mu a : a_i <= min(1, kappa p_i)}, p = N_i / N: a share mu of the weight may leave the
        clients' proportions, within the bounds of `around_proportions`.

        Args:
            sizes: the clients' rows N_i (n,).
            kappa: the largest ratio of a weight to its client's share, at least 1, or inf for none.
            mu: the share that may leave, from 0 to 1.

        Returns:
            The set of weights.

        Raises:
            BidroError: for a mu outside [0, 1] or a kappa below 1.
        """
        if not 0 <= mu <= 1:
            raise BidroError(f"The mixing share mu must lie between 0 and 1; got {mu}.")
        share = np.asarray(sizes, float) / np.sum(np.asarray(sizes, float))
        upper = np.ones(share.shape) if np.isinf(kappa) else cls.around_proportions(sizes, kappa).upper
        return cls((1 - mu) * share, (1 - mu) * share + mu * upper)

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
        if xp is np:
            # Model selection asks for it thousands of times: nothing is sorted twice.
            point = self.lower.copy()
            point[order] += added
        else:
            point = self.lower + added[xp.argsort(order)]
        return xp.sum(c * point), point

    def diameter(self) -> AnyArray:
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

    def l1_diameter(self) -> float:
        return min(super().l1_diameter(), float(np.sum(self.upper - self.lower)))

    @property
    def is_single_point(self) -> bool:
        """No weight can be lowered, or none raised, by more than rounding."""
        room = min(1.0 - float(np.sum(self.lower)), float(np.sum(self.upper)) - 1.0)
        return room <= self.dimension * _ROUNDING

    @property
    def in_words(self) -> str:
        return "mixtures within the declared bounds of each client's weight, if the true one is among them"

    def prices(self, c: Numbers) -> Numbers:
        # What the cheapest client among those that the worst mixture fills up would bring.
        order = np.argsort(-c)
        level = c[order[self.unsettled(order)[0]]]
        return np.append(np.maximum(c - level, 0.0), level)

    def unsettled(self, order: Indices) -> Indices:
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        return np.array([_last_filled((upper - lower)[order], 1 - lower.sum())])

    def grouped(self, group: Indices) -> tuple[sparse.csr_matrix, CappedSimplex]:
        # What a group may have above its clients' least weights goes to them in proportion to their room;
        # their least weights are a member of their own, of a weight that is settled.
        lower, room = np.asarray(self.lower), np.asarray(self.upper) - np.asarray(self.lower)
        size, least, above = (_sums(group, part) for part in (np.ones(len(group)), lower, room))
        apart = np.flatnonzero((least > 0) & (size > 1))
        share = sparse.vstack([_shares(group, room), _shares(group, lower)[apart]], format="csr")
        fixed = np.where(size == 1, least, 0.0)
        ends = (np.append(fixed, least[apart]), np.append(fixed + above, least[apart]))
        return share, CappedSimplex(*ends)


def around(center: ArrayLike, radius: Any) -> tuple[Numbers, Numbers]:
    """The centre (n,) and the radius of a ball of weights. Raises BidroError for what are none."""
    (found,) = vectors("The centre of a ball of weights", center)
    require_finite("The centre and radius of a ball of weights", found, radius)
    if np.any(found < 0) or abs(found.sum() - 1) > 1e-9:
        raise BidroError("The centre of a ball of weights must be nonnegative and sum to 1.")
    if np.ndim(radius) != 0 or radius < 0:
        raise BidroError(f"A ball of weights needs one radius >= 0; got {radius}.")
    return found, np.asarray(radius, float)


@pytree
class L1SimplexBall(MixtureSet):
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

    center: AnyArray
    radius: AnyArray

    def __post_init__(self) -> None:
        center, radius = around(self.center, self.radius)
        object.__setattr__(self, "center", center)
        # Two points of the simplex are never further apart than 2.
        object.__setattr__(self, "radius", np.minimum(radius, 2.0))

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

    def diameter(self) -> AnyArray:
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

    def l1_diameter(self) -> float:
        return min(super().l1_diameter(), 2 * float(self.radius))

    @property
    def in_words(self) -> str:
        return "mixtures within the declared distance of a centre, if the true one is among them"

    def unsettled(self, order: Indices) -> Indices:
        # The worst client gains what the least bad ones lose.
        last = _last_filled(np.asarray(self.center)[order[::-1]], float(self.radius) / 2)
        return np.unique([0, len(order) - 1 - last])

    def grouped(self, group: Indices) -> tuple[sparse.csr_matrix, L1SimplexBall]:
        center = np.asarray(self.center)
        total = _sums(group, center)
        return _shares(group, center), L1SimplexBall(total / total.sum(), self.radius)


def capped_sizes(sizes: ArrayLike, most: float) -> AnyArray:
    """Sizes (n,) with the same sum, of which none is more than the share `most` of it: what that takes from
    some goes to the others in proportion.

    Raises BidroError where so many shares of at most `most` do not sum to 1.
    """
    counts = np.asarray(sizes, float)
    if most == 1:
        return counts
    if not most * len(counts) >= 1 - 1e-12:
        raise BidroError(
            f"No {len(counts)} weights of at most {most:g} sum to 1: max_weight must be at least "
            f"1 / {len(counts)}."
        )
    share, held = counts / counts.sum(), np.zeros(len(counts), bool)
    while (over := ~held & (share > most)).any():
        held |= over
        if held.all():
            return counts.sum() * np.full(len(counts), 1 / len(counts))
        left = 1 - most * held.sum()
        share = np.where(held, most, counts * (left / counts[~held].sum()))
    return counts.sum() * share


def _last_filled(room: Numbers, total: float) -> int:
    """The place of the last slot that pouring `total` into slots of size `room`, one by one, reaches."""
    return min(int(np.searchsorted(np.cumsum(room), total)), len(room) - 1)


def _sums(group: Indices, parts: Numbers) -> Numbers:
    """(groups,) what the clients of each group have of `parts` (n,) together."""
    held = group >= 0
    return np.bincount(group[held], parts[held], int(group.max()) + 1).astype(float)


def _shares(group: Indices, parts: Numbers) -> sparse.csr_matrix:
    """(groups, n) each client's share in its group, by `parts` (n,); where no client of a group has any, all
    have the same."""
    held = np.flatnonzero(group >= 0)
    of, total, size = group[held], _sums(group, parts), _sums(group, np.ones(len(group)))
    data = np.where(total[of] > 0, parts[held] / np.where(total > 0, total, 1.0)[of], 1 / size[of])
    return sparse.csr_matrix((data, (of, held)), (len(total), len(group)))


def _fill_in_order(room: V, total: Any) -> V:
    """Pour `total` into slots of size `room`, filling each before the next."""
    xp = namespace(room, total)
    before = xp.cumsum(room) - room
    return xp.minimum(xp.maximum(total - before, 0.0), room)


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
