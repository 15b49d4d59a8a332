"""What a loss is: l(x, xi), and a declaration of what is known about it.

A model x is a flat vector of shape (d,). A sample xi is a vector of shape (m,), the features first
and the label (or target) last. Distances between samples are taken in the scaled norm ||S v||;
`inverse_scale` is the diagonal of S^-1, zero for a coordinate that cannot move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.sets import VectorSet
from bidro.sets.base import Held


@dataclass(frozen=True)
class Growth:
    """l(x, xi) grows like coefficient * ||S^-1 a(x)||^order * ||S xi||^order far out.

    A penalised supremum over an unbounded support is finite where the transport cost grows faster.
    """

    order: float
    coefficient: float


class Cone(NamedTuple):
    """The convex function ||matrix x + offset|| of a model x."""

    matrix: NDArray[np.float64]  # (rows, d)
    offset: NDArray[np.float64]  # (rows,)

    def at(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """matrix x + offset."""
        vector: NDArray[np.float64] = self.matrix @ x + self.offset
        return vector


class Loss(ABC):
    """A loss l(x, xi) with its declared properties. Losses are immutable and hashable."""

    @property
    @abstractmethod
    def convex_in_x(self) -> bool:
        """Whether x -> l(x, xi) is convex for every xi; the paper's theorems need it."""

    @property
    def labels(self) -> tuple[float, ...] | None:
        """The discrete values of the label (last) coordinate; None where it is continuous."""
        return None

    @property
    def scores(self) -> int:
        """How many numbers a model predicts for a row."""
        return 1

    @property
    def growth(self) -> Growth | None:
        """Growth in xi on an unbounded support; None where it is not known."""
        return None

    @property
    def nonnegative(self) -> bool:
        """Whether l >= 0 is known: then 0 is a lower bound of every risk."""
        return False

    @property
    def endless(self) -> bool:
        """Whether l falls to 0, its infimum, only as the model goes to infinity."""
        return False

    @property
    def host_values(self) -> bool:
        """Whether `values` and `mistakes` of NumPy arrays need no compiled program."""
        return False

    @abstractmethod
    def dimension(self, m: int) -> int:
        """Length of the flat model x for samples with m coordinates (label included)."""

    def initial(self, m: int) -> Held:
        """The model that training starts from, shape (d,): zero unless the loss says otherwise."""
        return np.zeros(self.dimension(m))

    @abstractmethod
    def value(self, x: Array, xi: Array) -> Array:
        """l(x, xi) for one model (d,) and one sample (m,)."""

    def values(self, x: Array, rows: Array) -> Array:
        """l(x, xi) for every row of `rows` (shape (rows, m)); shape (rows,).

        Where the loss has `host_values`, NumPy arrays give NumPy arrays."""
        return jax.vmap(self.value, in_axes=(None, 0))(x, rows)

    def mistakes(self, x: Array, rows: Array) -> Array:
        """1 for every row of `rows` whose label the model does not predict, else 0; shape (rows,)."""
        raise BidroError(f"{type(self).__name__} has no labels to be mistaken about.")

    def hessian_sum(self, x: Array, rows: Array, weights: Array) -> Array:
        """sum_k weights_k d^2 l(x, rows_k) / dx^2, shape (d, d)."""
        return jax.hessian(lambda v: jnp.sum(weights * self.values(v, rows)))(x)

    def together(self, m: int) -> NDArray[np.int64]:
        """(groups, members) coordinates of x that can all rise by the same without l changing, none of them
        in two groups; m as in `dimension`."""
        return np.zeros((0, 0), np.int64)

    def balanced(self, gradient: Array) -> Array:
        """A gradient in x (d,), possibly with more behind it, in which what cancels in exact arithmetic does
        so to the last bit."""
        return gradient

    def lipschitz(self, x: Array, inverse_scale: Array) -> Array:
        """A Lipschitz constant of xi -> l(x, xi) on the whole space; inf where none is known."""
        return jnp.asarray(jnp.inf)

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> Array:
        """An upper bound of `curvature` over all models of a set; inf where none is known."""
        return jnp.asarray(jnp.inf)

    def curvature(self, x: Array, inverse_scale: Array) -> Array:
        """An upper bound of the second derivative of xi -> l(x, xi) along any unit direction of the
        scaled norm; inf where none is known."""
        return jnp.asarray(jnp.inf)

    def steepness_cones(self, inverse_scale: Array) -> list[Cone]:
        """Functions of x whose maximum is the steepness that a radius multiplies on an unbounded support:
        ||S^-1 a(x)|| for a linear predictor. Empty where there is no such form."""
        return []
