"""Losses of which only what the user declares is known, and one of them: any differentiable function of a
model (any JAX pytree) and a sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax
from bidro.core.sets import VectorSet
from bidro.core.sets.base import AnyArray
from bidro.losses.base import Growth, Loss
from bidro.losses.fingerprints import UnknownFingerprintError, digest_of


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

    def lipschitz(self, x: Array, inverse_scale: Array) -> AnyArray:
        return np.asarray(self.lipschitz_bound)

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> AnyArray:
        return np.asarray(self.curvature_bound)

    def curvature(self, x: Array, inverse_scale: Array) -> AnyArray:
        return np.asarray(self.curvature_bound)


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


@dataclass(frozen=True, eq=False)
class CustomLoss(DeclaredLoss):
    """`function(model, xi)`, differentiable in both; `template` is the model training starts from.

    Nothing is assumed that is not declared. With `convex` left False (a neural network), the
    algorithms run but the paper's convergence theorem and every certificate that needs convexity do
    not apply. `curvature_bound` is a bound of the second derivative in xi along unit directions of
    the scaled norm, `lipschitz_bound` one of the slope; each is a number valid for all models in X.

    Args:
        function: l(model, xi), of a model like `template` and one sample (m,); traced by JAX.
        template: any JAX pytree of arrays.
        convex: whether l is convex in the model.
        curvature_bound: see above; inf for unknown.
        lipschitz_bound: see above; inf for unknown. Over a ball of radius eps it certifies that the risk is
            at most the mean loss + eps lipschitz_bound.
        growth_order: the power with which l grows in xi on an unbounded support; None for unknown.
        label_values: the values of a discrete label; None for a number.
        never_negative: whether l is never below 0.

    Raises:
        BidroError: from `Problem`, for a template without parameters.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import CustomLoss
        >>> loss = CustomLoss(lambda w, xi: (w @ jnp.sin(xi[:-1]) - xi[-1]) ** 2, jnp.zeros(2), convex=True)
        >>> loss.dimension(m=3)
        2
    """

    function: Callable[[Any, Array], Array]
    template: Any
    label_values: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        """The same in every process: a digest of the template's numbers stands for them."""
        numbers = hashlib.blake2b(np.asarray(self._flat[0]).tobytes(), digest_size=16).hexdigest()
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("function", "template")}
        return f"CustomLoss({name_of(self.function)}, {own}, {numbers})"

    @property
    def code_digest(self) -> str:
        return digest_of((type(self), self.function, self.template))

    @cached_property
    def _flat(self) -> tuple[Array, Callable[[Array], Any]]:
        flat, unravel = jax.flatten_util.ravel_pytree(self.template)
        if flat.size == 0:
            raise BidroError("The template of a CustomLoss has no parameters to train.")
        return flat.astype(float), unravel

    @property
    def labels(self) -> tuple[float, ...] | None:
        return self.label_values

    def dimension(self, m: int) -> int:
        return int(self._flat[0].size)

    def initial(self, m: int) -> Array:
        return self._flat[0]

    def model(self, x: Array) -> Any:
        """The user's own model structure, from the flat vector that the algorithms train."""
        return self._flat[1](x)

    def value(self, x: Array, xi: Array) -> Array:
        return self.function(self.model(x), xi)
