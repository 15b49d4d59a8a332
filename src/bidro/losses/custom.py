"""Any differentiable function of a model and a sample, the model being any JAX pytree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from bidro.errors import BidroError
from bidro.losses.declared import DeclaredLoss, name_of


@dataclass(frozen=True, eq=False)
class CustomLoss(DeclaredLoss):
    """`function(model, xi)`, differentiable in both; `template` is the model training starts from.

    What else is known is declared, as `DeclaredLoss` says; `label_values` are the discrete values of the
    label (last) coordinate, None where it is continuous.
    """

    function: Callable[[Any, Array], Array]
    template: Any
    label_values: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        """The same in every process: a digest of the template's numbers stands for them."""
        numbers = hashlib.blake2b(np.asarray(self._flat[0]).tobytes(), digest_size=16).hexdigest()
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("function", "template")}
        return f"CustomLoss({name_of(self.function)}, {own}, {numbers})"

    @cached_property
    def _flat(self) -> tuple[Array, Callable[[Array], Any]]:
        flat, unravel = ravel_pytree(self.template)
        if flat.size == 0:
            raise BidroError("The template of a CustomLoss has no parameters to train.")
        return jnp.asarray(flat, float), unravel

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
