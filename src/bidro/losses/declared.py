"""Losses of which nothing is known but what the user declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.losses.base import Growth, Loss
from bidro.losses.fingerprints import UnknownFingerprintError, digest_of
from bidro.sets import VectorSet


@dataclass(frozen=True, eq=False, kw_only=True)
class DeclaredLoss(Loss):
    """Nothing is assumed that is not declared. With `convex` left False (a neural network), the
    algorithms run but the paper's convergence theorem and every certificate that needs convexity do
    not apply. `curvature_bound` is a bound of the second derivative in xi along unit directions of
    the scaled norm, `lipschitz_bound` one of the slope; each is a number valid for all models in X.
    `never_negative` says that l >= 0.
    """

    convex: bool = False
    curvature_bound: float = np.inf
    lipschitz_bound: float = np.inf
    growth_order: float | None = None
    never_negative: bool = False

    @property
    def convex_in_x(self) -> bool:
        return self.convex

    @property
    def nonnegative(self) -> bool:
        return self.never_negative

    @property
    def growth(self) -> Growth | None:
        return None if self.growth_order is None else Growth(self.growth_order, np.inf)

    def work(self, m: int) -> int:
        return max(m, self.dimension(m))

    def lipschitz(self, x: Array, inverse_scale: Array) -> Array:
        return jnp.asarray(self.lipschitz_bound)

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> Array:
        return jnp.asarray(self.curvature_bound)

    def curvature(self, x: Array, inverse_scale: Array) -> Array:
        return jnp.asarray(self.curvature_bound)


def name_of(function: Any) -> str:
    """The same for the same function in every process: where it is defined, and a digest of what it computes
    with, where there is one."""
    where = (
        f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    )
    try:
        return f"{where} {digest_of(function)}"
    except UnknownFingerprintError:
        return where
