"""What every set offers, and the checks that sets share."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from bidro.errors import BidroError


class ConvexSet(Protocol):
    """What every set in this room offers."""

    @property
    def dimension(self) -> int: ...

    def project(self, v: Array) -> Array:
        """The nearest point of the set to `v` (shape (dimension,)) in the Euclidean norm."""

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array:
        """Whether `v` lies in the set up to `tolerance` in each constraint."""

    def linear_maximum(self, c: Array) -> tuple[Array, Array]:
        """(max <c, v> over the set, a point that attains it)."""

    def diameter(self) -> Array:
        """The largest Euclidean distance between two points of the set."""


class VectorSet(Protocol):
    """A set of models or samples: it can be projected on in any diagonal metric."""

    @property
    def dimension(self) -> int: ...

    def contains(self, v: Array, tolerance: float = 1e-9) -> Array: ...

    def diameter(self) -> Array: ...

    def project(self, v: Array, weights: Array | None = None) -> Array:
        """argmin over the set of sum_j weights_j (u_j - v_j)^2; weights are 1 by default.

        An infinite weight holds a coordinate where it is.
        """

    def bounding_box(self) -> tuple[Array, Array]:
        """A box around the set: (lower, upper), each of shape (dimension,)."""

    def constraints(self) -> Constraints:
        """The set as constraints of a cone program."""

    def largest_norm(self, scale: Array) -> Array:
        """An upper bound of ||scale * v|| over the set; the largest value itself for a box."""


class NormBound(NamedTuple):
    """The constraint ||matrix v + offset|| <= radius."""

    matrix: NDArray[np.float64]  # (rows, dimension)
    offset: NDArray[np.float64]  # (rows,)
    radius: float


class Constraints(NamedTuple):
    """A set of vectors as a cone program states it: bounds on coordinates, and on norms."""

    lower: NDArray[np.float64]  # (dimension,), -inf where there is no bound
    upper: NDArray[np.float64]
    norms: tuple[NormBound, ...]


class Polytope(NamedTuple):
    """A set of weights as a linear program states it: {offset + lift y : y >= 0, matrix y = total}."""

    offset: NDArray[np.float64]  # (dimension,)
    lift: NDArray[np.float64]  # (dimension, variables)
    matrix: NDArray[np.float64]  # (equations, variables)
    total: NDArray[np.float64]  # (equations,)


def vectors(what: str, *values: ArrayLike) -> list[NDArray[np.float64]]:
    """The values as vectors of one length; a single number fits any length."""
    vectors = [np.atleast_1d(np.asarray(v, float)) for v in values]
    longest = max(len(v) for v in vectors)
    if any(v.ndim != 1 or len(v) not in (1, longest) for v in vectors):
        shapes = " and ".join(str(v.shape) for v in vectors)
        raise BidroError(f"{what} must be vectors of one length; got shapes {shapes}.")
    return [np.broadcast_to(v, (longest,)) for v in vectors]


def require_finite(what: str, *values: ArrayLike) -> None:
    for value in values:
        if not np.all(np.isfinite(np.asarray(value))):
            raise BidroError(f"{what} must be finite numbers; got {np.asarray(value)}.")
