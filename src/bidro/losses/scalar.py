"""Convex functions L(u) of one variable, from which the losses of linear predictors are made."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclass(frozen=True)
class PiecewiseQuadratic:
    """L(u) = q2 u^2 + q1 u + q0 on each piece, convex and continuous.

    `pieces` holds (q2, q1, q0) from left to right and `knots` the points between them. Squared,
    absolute, Huber, hinge, smoothed hinge and pinball loss are all of this form.
    """

    knots: tuple[float, ...]
    pieces: tuple[tuple[float, float, float], ...]

    def value(self, u: Array) -> Array:
        result = _quadratic(self.pieces[0], u)
        for knot, piece in zip(self.knots, self.pieces[1:], strict=True):
            result = jnp.where(u >= knot, _quadratic(piece, u), result)
        return result

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
        for knot, left, right in zip(self.knots, self.pieces[:-1], self.pieces[1:], strict=True):
            if not np.isclose(2 * left[0] * knot + left[1], 2 * right[0] * knot + right[1]):
                return np.inf
        return 2 * max(q2 for q2, _, _ in self.pieces)


@dataclass(frozen=True)
class Softplus:
    """L(u) = log(1 + exp(-u)), the logistic loss of a margin u."""

    left_slope: float = 1.0
    right_slope: float = 0.0
    growth_order: int = 1
    growth_coefficient: float = 1.0
    lipschitz: float = 1.0
    curvature: float = 0.25

    def value(self, u: Array) -> Array:
        return jax.nn.softplus(-u)


Scalar = PiecewiseQuadratic | Softplus


def _quadratic(piece: tuple[float, float, float], u: Array) -> Array:
    q2, q1, q0 = piece
    return (q2 * u + q1) * u + q0
