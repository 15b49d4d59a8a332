"""What one client can say of its risk at a model: bounds, a cut, and curvature."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from bidro.rows import ClientRows
from bidro.trees import namespace
from bidro.worst_case.atoms import Pass, Point, moved_pass, still_pass
from bidro.worst_case.inner import Inner, Oracle


class RiskModel(NamedTuple):
    """R(z) of one client lies in [attained, value], and above a cut everywhere.

    value: a dual value, an upper bound for every lambda; inf where the inner suprema are not known.
    attained and gradient: R(y) >= attained + <gradient, y - z> for every y where the loss is convex in the
    model; they come from the loss expected under a distribution Q in the ball. smoothing: where kinks of the
    loss are smoothed, what the smoothed risk with this gradient exceeds `attained` by. curvature: a positive
    semidefinite model (up to rounding, which can be large where nu is tiny) of the second derivative, equal
    to it where R is twice differentiable and p = 2 or the support is unbounded. multiplier: lambda; inf where
    eps = 0 and no sample moves. Q moves every sample to its maximiser at `multiplier`, and a share
    `lower_share` of it to that at `lower_multiplier`, just below.
    """

    value: Array
    attained: Array
    gradient: Array  # (k,)
    smoothing: Array
    curvature: Array | None  # (k, k)
    multiplier: Array
    lower_multiplier: Array
    lower_share: Array

    @classmethod
    def unsplit(
        cls, found: Pass, value: Array, attained: Array, gradient: Array, multiplier: Array
    ) -> RiskModel:
        """One whose worst case needs no split of mass; curvature and smoothing are those of the pass."""
        zero = namespace(value).zeros_like(value)
        return cls(value, attained, gradient, found.smoothing, found.hessian, multiplier, multiplier, zero)


def unmoved_risk(rows: ClientRows, inner: Inner, at: Point, curvature: bool) -> RiskModel:
    """The mean loss: no ambiguity inside the client."""
    plain = still_pass(rows, inner, at, curvature)
    never = jnp.asarray(jnp.inf)
    return RiskModel.unsplit(plain, plain.value, plain.minorant, plain.gradient, never)


def penalised_risk(
    rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, rho: Array, curvature: bool
) -> RiskModel:
    """mean_k sup_xi [ l(x, xi) - rho c(xi_k, xi) ], the multiplier being given."""
    moved = moved_pass(rows, inner, oracle, at, rho, curvature)
    attained = moved.minorant - rho * moved.cost
    return RiskModel.unsplit(moved, moved.value, attained, moved.gradient, rho)
