"""What every set offers, and the checks that sets share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError

if TYPE_CHECKING:
    from jax import Array

# A vector of the host, or one that JAX traces: what is given is what comes back.
V = TypeVar("V", "Array", NDArray[np.float64])
# What a set holds: numbers of the host, which JAX replaces by its own where it traces the set.
AnyArray = Any


class ConvexSet(Protocol):
    """What every set in this room offers.

    Examples:
        >>> import numpy as np
        >>> from bidro import Simplex
        >>> float(Simplex(3).linear_maximum(np.array([1.0, 5.0, 2.0]))[0])
        5.0
    """

    @property
    def dimension(self) -> int: ...

    def project(self, v: V) -> V:
        """The nearest point of the set to `v` (shape (dimension,)) in the Euclidean norm."""

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        """Whether `v` lies in the set up to `tolerance` in each constraint."""

    def linear_maximum(self, c: V) -> tuple[V, V]:
        """(max <c, v> over the set, a point that attains it)."""

    def diameter(self) -> AnyArray:
        """The largest Euclidean distance between two points of the set."""


class VectorSet(Protocol):
    """A set of models or samples: it can be projected on in any diagonal metric.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box
        >>> box = Box.cube(1.0, 2)
        >>> box.dimension, [bound.tolist() for bound in box.bounding_box()]
        (2, [[-1.0, -1.0], [1.0, 1.0]])
    """

    @property
    def dimension(self) -> int: ...

    def contains(self, v: V, tolerance: float = 1e-9) -> V: ...

    def diameter(self) -> AnyArray: ...

    def project(self, v: V, weights: V | None = None) -> V:
        """argmin over the set of sum_j weights_j (u_j - v_j)^2; weights are 1 by default.

        An infinite weight holds a coordinate where it is.
        """

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        """A box around the set: (lower, upper), each of shape (dimension,)."""

    def constraints(self) -> Constraints:
        """The set as constraints of a cone program."""

    def largest_norm(self, scale: V) -> V:
        """An upper bound of ||scale * v|| over the set; the largest value itself for a box."""


class NormBound(NamedTuple):
    """The constraint ||matrix v + offset|| <= radius."""

    matrix: NDArray[np.float64]  # (rows, dimension)
    offset: NDArray[np.float64]  # (rows,)
    radius: float


class Constraints(NamedTuple):
    """A set of vectors as a cone program states it: bounds on coordinates, on norms, and on what a matrix
    makes of them."""

    lower: NDArray[np.float64]  # (dimension,), -inf where there is no bound
    upper: NDArray[np.float64]
    norms: tuple[NormBound, ...]
    # (rows, dimension) a matrix, and (rows,) the least and the most of what it makes.
    rows: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None = None


class Polytope(NamedTuple):
    """A set of weights as a linear program states it: {offset + lift y : y >= 0, matrix y = total}.

    Examples:
        >>> from bidro import Simplex
        >>> Simplex(3).polytope().matrix.tolist(), Simplex(3).polytope().total.tolist()
        ([[1.0, 1.0, 1.0]], [1.0])
    """

    offset: NDArray[np.float64]  # (dimension,)
    lift: NDArray[np.float64]  # (dimension, variables)
    matrix: NDArray[np.float64]  # (equations, variables)
    total: NDArray[np.float64]  # (equations,)


def vectors(what: str, *values: ArrayLike) -> list[NDArray[np.float64]]:
    """Copies of the values as vectors of one length; a single number fits any length."""
    vectors = [np.atleast_1d(np.array(v, float)) for v in values]
    longest = max(len(v) for v in vectors)
    if any(v.ndim != 1 or len(v) not in (1, longest) for v in vectors):
        shapes = " and ".join(str(v.shape) for v in vectors)
        raise BidroError(f"{what} must be vectors of one length; got shapes {shapes}.")
    return [np.broadcast_to(v, (longest,)) for v in vectors]


def require_finite(what: str, *values: ArrayLike) -> None:
    for value in values:
        if not np.all(np.isfinite(np.asarray(value))):
            raise BidroError(f"{what} must be finite numbers; got {np.asarray(value)}.")
