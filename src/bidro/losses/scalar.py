"""Convex functions L(u) of one variable, from which the losses of linear predictors are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bidro.core.pytrees import namespace

if TYPE_CHECKING:
    from jax import Array

Numbers = TypeVar("Numbers", "Array", NDArray[np.float64])


class Tangent(NamedTuple):
    """A line that lies below L everywhere, and the function above L whose slope at u it has.

    That function is L itself, with its kinks smoothed.
    """

    value: Any  # of the line at u
    slope: Any
    smoothed: Any  # value of the function at u
    curvature: Any  # its second derivative


# No quotient by it overflows.
_LEAST_ROOT = 1e-150


class Followed(NamedTuple):
    """Arguments at which L was evaluated before, oldest first."""

    u: Any  # (models, ...)
    width: Any  # (models, ...) kinks were smoothed over

    def slope(self, knot: float, t: Any) -> Any:
        """s of the kink at `knot`, from -1 to 1, after a step from the last of these models to t = u - knot;
        see `tangent`."""
        xp = namespace(t)
        before = self.u - knot
        # Of an exact fit that was not smoothed the slope may be any: whatever follows decides it.
        root = xp.maximum(xp.sqrt(before**2 + self.width**2), _LEAST_ROOT)
        turned, after = before / root, xp.concatenate([before[1:], t[None]])
        slope = turned[0]
        for j in range(len(before)):
            step = (after[j] - before[j]) * (1 - slope * turned[j]) / root[j]
            slope = xp.clip(turned[j] + step, -1.0, 1.0)
        return slope


@dataclass(frozen=True)
class PiecewiseQuadratic:
    """L(u) = q2 u^2 + q1 u + q0 on each piece, convex and continuous.

    Squared, absolute, Huber, hinge, smoothed hinge and pinball loss are all of this form.

    Args:
        knots: the points between the pieces, rising.
        pieces: (q2, q1, q0) of each piece from left to right, one more than there are knots.

    Examples:
        >>> import numpy as np
        >>> from bidro import PiecewiseQuadratic
        >>> absolute = PiecewiseQuadratic((0.0,), ((0.0, -1.0, 0.0), (0.0, 1.0, 0.0)))
        >>> absolute.value(np.array([-2.0, 3.0])).tolist()
        [2.0, 3.0]
    """

    knots: tuple[float, ...]
    pieces: tuple[tuple[float, float, float], ...]

    def value(self, u: Numbers) -> Numbers:
        result = _quadratic(self.pieces[0], u)
        where = namespace(u).where
        for knot, piece in zip(self.knots, self.pieces[1:], strict=True):
            result = where(u >= knot, _quadratic(piece, u), result)
        return result

    def tangent(self, u: Numbers, width: Numbers, followed: Followed | None = None) -> Tangent:
        """The tangent of L at u, with kinks smoothed over about `width`.

        A kink is a term jump/2 |t|, t = u - knot. It is smoothed to jump/2 r, r = sqrt(t^2 + width^2); a line
        with the slope of that at u, but through the kink itself, stays below L.

        The second derivative of r is (1 - s t / r) / r at s = t / r. With `followed` (widths above 0) s is
        not t / r but what Newton's steps for s r = t make of it from one model to the next, as in the
        primal-dual method of Chan, Golub and Mulet (1999). Of a narrow kink the second derivative at u says
        nothing about where the next step ends; this one does, since s changes by no more than steps require.
        """
        xp = namespace(u, width)
        q2, q1, _ = self.pieces[0]
        value, slope, curvature = self.value(u), 2 * q2 * u + q1, xp.full_like(u, 2 * q2)
        smoothed = value
        for knot, (q2, q1, _) in zip(self.knots, self.pieces[1:], strict=True):
            slope = xp.where(u >= knot, 2 * q2 * u + q1, slope)
            curvature = xp.where(u >= knot, 2 * q2, curvature)
        for knot, before, after in self._kinks:
            half, t = (after - before) / 2, u - knot
            root = xp.sqrt(t**2 + width**2)
            safe = xp.where(root > 0, root, 1.0)
            sign = xp.where(t >= 0, 1.0, -1.0)
            kink = None if followed is None else followed.slope(knot, t)
            turned = xp.where(width > 0, t / safe, sign if kink is None else kink)
            # Not in place: of NumPy's arrays `value` and `smoothed` begin as one.
            value = value + half * (turned * t - xp.abs(t))
            slope = slope + half * (turned - sign)
            smoothed = smoothed + half * (root - xp.abs(t))
            if kink is None:
                curvature = curvature + xp.where(width > 0, half * (width / safe) ** 2 / safe, 0.0)
            else:
                curvature = curvature + half * (1 - kink * turned) / safe
        return Tangent(value, slope, smoothed, curvature)

    @property
    def _kinks(self) -> list[tuple[float, float, float]]:
        """(knot, slope on its left, slope on its right) wherever the two differ."""
        slopes = [
            (knot, 2 * left[0] * knot + left[1], 2 * right[0] * knot + right[1])
            for knot, left, right in zip(self.knots, self.pieces[:-1], self.pieces[1:], strict=True)
        ]
        return [(knot, left, right) for knot, left, right in slopes if not np.isclose(left, right)]

    @property
    def left_slope(self) -> float:
        """lim L(u) / |u| as u -> -inf; inf where L grows quadratically there."""
        q2, q1, _ = self.pieces[0]
        return np.inf if q2 > 0 else -q1

    @property
    def right_slope(self) -> float:
        """lim L(u) / |u| as u -> +inf; inf where L grows quadratically there."""
        q2, q1, _ = self.pieces[-1]
        return np.inf if q2 > 0 else q1

    @property
    def growth_order(self) -> int:
        return 2 if max(self.left_slope, self.right_slope) == np.inf else 1

    @property
    def growth_coefficient(self) -> float:
        if self.growth_order == 2:
            return max(self.pieces[0][0], self.pieces[-1][0])
        return self.lipschitz

    @property
    def lipschitz(self) -> float:
        # A convex function is steepest at its two ends.
        return max(abs(self.left_slope), abs(self.right_slope))

    @property
    def curvature(self) -> float:
        """sup L''; inf where the slope jumps at a knot."""
        return np.inf if self._kinks else 2 * max(q2 for q2, _, _ in self.pieces)

    def curvature_of(self, width: Numbers) -> Numbers:
        """An upper bound of the second derivative once kinks are smoothed over `width` > 0."""
        of_kinks = (
            sum((after - before) / 2 for _, before, after in self._kinks) / width if self._kinks else 0.0
        )
        return 2 * max(q2 for q2, _, _ in self.pieces) + of_kinks + 0 * width


@dataclass(frozen=True)
class Softplus:
    """L(u) = log(1 + exp(-u)), the logistic loss of a margin u."""

    left_slope: float = 1.0
    right_slope: float = 0.0
    growth_order: int = 1
    growth_coefficient: float = 1.0
    lipschitz: float = 1.0
    curvature: float = 0.25

    def value(self, u: Numbers) -> Numbers:
        xp = namespace(u)
        # The same; NumPy has no fast `logaddexp`, and JAX needs it for second derivatives at 0.
        return xp.maximum(-u, 0.0) + xp.log1p(xp.exp(-abs(u))) if xp is np else xp.logaddexp(0.0, -u)

    def tangent(self, u: Numbers, width: Numbers, followed: Followed | None = None) -> Tangent:
        """The tangent of L at u; there are no kinks that `width` would smooth."""
        xp = namespace(u)
        # exp of a number that is not positive, also where the other side of the comparison is taken.
        small = xp.exp(-abs(u))
        total = 1 + small
        value = xp.maximum(-u, 0.0) + xp.log1p(small) if xp is np else self.value(u)
        return Tangent(value, xp.where(u >= 0, -small, -1.0) / total, value, small / total**2)

    def curvature_of(self, width: Numbers) -> Numbers:
        """As for the other scalar functions; there are no kinks."""
        return self.curvature + 0 * width


Scalar = PiecewiseQuadratic | Softplus


def _quadratic(piece: tuple[float, float, float], u: Numbers) -> Numbers:
    q2, q1, q0 = piece
    return (q2 * u + q1) * u + q0
