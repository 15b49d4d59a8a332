"""What a loss is: l(x, xi), what is known about it, and its values over many rows.

A model x is a flat vector of shape (d,). A sample xi is a vector of shape (m,), the features first
and the label (or target) last. Distances between samples are taken in the scaled norm ||S v||;
`inverse_scale` is the diagonal of S^-1, zero for a coordinate that cannot move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax
from bidro.core.sets import VectorSet
from bidro.core.sets.base import AnyArray
from bidro.losses.fingerprints import digest_of

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class Growth:
    """l(x, xi) grows like coefficient * ||S^-1 a(x)||^order * ||S xi||^order far out.

    A penalised supremum over an unbounded support is finite where the transport cost grows faster.
    """

    order: float
    coefficient: float


class Cone(NamedTuple):
    """The convex function N(matrix x + offset) of a model x, N(v) = ||v||; where rows are in groups,
    N(v) = || max of |v_r| over each group ||, the l2 norm over groups of the largest of each, or the sum
    of these."""

    matrix: NDArray[np.float64]  # (rows, d)
    offset: NDArray[np.float64]  # (rows,)
    groups: NDArray[np.int64] | None = None  # (rows,) ascending from 0; None where each row is its own
    summed: bool = False  # whether groups are summed up: with one row each N is the l1 norm

    def at(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """matrix x + offset."""
        vector: NDArray[np.float64] = self.matrix @ x + self.offset
        return vector

    def norm(self, v: NDArray[np.float64]) -> float:
        """N(v) of v (rows,)."""
        return float(self.norms(v))

    def norms(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """(...) N of vectors v (..., rows)."""
        sizes = v if self.groups is None else self.largest(v)
        return np.asarray(sizes.sum(axis=-1) if self.summed else np.linalg.norm(sizes, axis=-1))

    def largest(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., groups) the largest |v_r| of every group, of v (..., rows)."""
        return np.asarray(np.maximum.reduceat(np.abs(v), self._starts, axis=-1))

    def dual_norm(self, y: NDArray[np.float64]) -> float:
        """The largest <y, v> with N(v) = 1: the l2 norm over groups of the sums of |y_r|, or the largest."""
        if self.summed:
            return float(self.sums(y).max())
        return float(np.linalg.norm(y if self.groups is None else self.sums(y)))

    def sums(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """(groups,) the sum of |y_r| over every group."""
        return np.asarray(np.add.reduceat(np.abs(y), self._starts))

    def toward(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows,) a slope of the dual norm at y, 0 in rows of groups in which y_r is 0."""
        size = self.dual_norm(y) or 1.0
        if self.groups is None:
            return np.asarray(y / size)
        sums = self.sums(y)
        if self.summed:
            return np.asarray(np.sign(y) * (self.groups == int(sums.argmax())))
        return np.asarray(np.sign(y) * sums[self.groups] / size)

    def slope(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows,) a slope of N at v, 0 at 0; in a group it is that of the first of the largest."""
        size = self.norm(v) or 1.0
        if self.groups is None:
            return np.asarray(v / size)
        found = np.zeros(len(v))
        top = np.abs(v) == self.largest(v)[self.groups]
        _, first = np.unique(self.groups[top], return_index=True)
        rows = np.flatnonzero(top)[first]
        found[rows] = np.sign(v[rows]) if self.summed else v[rows] / size
        return found

    @property
    def _starts(self) -> NDArray[np.int64]:
        assert self.groups is not None
        return np.flatnonzero(np.diff(self.groups, prepend=-1))


class Loss(ABC):
    """A loss l(x, xi) with its declared properties. Losses are immutable and hashable.

    Subclasses give `value`, `dimension` and `convex_in_x`; what they do not declare is not assumed. Models
    are flat vectors x (d,), samples xi (m,) with the label or target last; `inverse_scale` is `Transport`'s.

    Examples:
        >>> from bidro import Loss, Squared
        >>> isinstance(Squared(), Loss), Squared().convex_in_x, Squared().labels
        (True, True, None)
    """

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
    def infimum_at_infinity(self) -> bool:
        """Whether l falls to 0, its infimum, only as the model goes to infinity."""
        return False

    def middle(self, targets: NDArray[np.float64]) -> float | None:
        """The score of a constant prediction in the middle of the targets (N,); None where there is none."""
        return None

    def predicted(self, scores: Any) -> Any:
        """What is predicted at scores, in the target's unit: the scores, unless there is a link."""
        return scores

    def require_targets(self, targets: NDArray[np.float64], named: str) -> None:
        """Raise BidroError for targets (N,) of a column of this name that the loss is not defined for."""
        return

    @property
    def host_values(self) -> bool:
        """Whether `values` and `mistakes` of NumPy arrays need no compiled program."""
        return False

    @abstractmethod
    def dimension(self, m: int) -> int:
        """Length of the flat model x for samples with m coordinates (label included)."""

    def work(self, m: int) -> int:
        """How many multiplications a value takes, roughly; m as in `dimension`."""
        return m

    def columns(self, m: int) -> int:
        """How many numbers a row of `design` has, for samples with m coordinates."""
        return m

    def design(self, rows: Array) -> Array:
        """(..., columns) what of rows (..., m) the model is multiplied with, the label (or target) last: the
        rows themselves, unless features stand for several columns each."""
        return rows

    @property
    def penalty(self) -> NDArray[np.float64] | None:
        """(d, d) Q where training adds <x, Q x> to every client's mean loss, to smooth curves; None for
        nothing. It is no part of `value` and `values`."""
        return None

    def pull(self, d: int) -> NDArray[np.float64] | None:
        """(d, d) Q where training adds <x, Q x> to the *sum* of every client's losses; None for nothing. It
        holds back what few rows say, and no part of it is in `value` and `values`: see `pseudo_rows`."""
        return None

    @property
    def code_digest(self) -> str:
        """Of what it computes, besides what its repr shows: of a loss of this package its name, of a user's
        own class the code and all that this names. Raises UnknownFingerprintError where that is not known."""
        return digest_of(type(self) if type(self).__module__.startswith("bidro.") else self)

    def initial(self, m: int) -> AnyArray:
        """The model that training starts from, shape (d,): zero unless the loss says otherwise."""
        return np.zeros(self.dimension(m))

    @abstractmethod
    def value(self, x: Array, xi: Array) -> Array:
        """l(x, xi) for one model (d,) and one sample (m,)."""

    def values(self, x: Array, rows: Array) -> Array:
        """l(x, xi) for every row of `rows` (shape (rows, m)); shape (rows,).

        Where the loss has `host_values`, NumPy arrays give NumPy arrays."""
        jax = loaded_jax()
        if jax is None:
            return np.array([self.value(x, xi) for xi in rows], float)  # type: ignore[return-value]
        found: Array = jax.vmap(self.value, in_axes=(None, 0))(x, rows)
        return found

    def mistakes(self, x: Array, rows: Array) -> Array:
        """1 for every row of `rows` whose label the model does not predict, else 0; shape (rows,)."""
        raise BidroError(f"{type(self).__name__} has no labels to be mistaken about.")

    def hessian_sum(self, x: Array, rows: Array, weights: Array) -> Array:
        """sum_k weights_k d^2 l(x, rows_k) / dx^2, shape (d, d), by JAX unless the loss has its own."""
        found: Array = loaded_jax().hessian(lambda v: (weights * self.values(v, rows)).sum())(x)
        return found

    def shift_invariance(self, m: int) -> NDArray[np.int64]:
        """(groups, members) coordinates of x that can all rise by the same without l changing, none of them
        in two groups; m as in `dimension`."""
        return np.zeros((0, 0), np.int64)

    def balanced(self, gradient: Array) -> Array:
        """A gradient in x (d,), possibly with more behind it, in which what cancels in exact arithmetic does
        so to the last bit."""
        return gradient

    def lipschitz(self, x: Array, inverse_scale: Array) -> AnyArray:
        """A Lipschitz constant of xi -> l(x, xi) on the whole space; inf where none is known."""
        return np.asarray(np.inf)

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> AnyArray:
        """An upper bound of `curvature` over all models of a set; inf where none is known."""
        return np.asarray(np.inf)

    def curvature(self, x: Array, inverse_scale: Array) -> AnyArray:
        """An upper bound of the second derivative of xi -> l(x, xi) along any unit direction of the
        scaled norm; inf where none is known."""
        return np.asarray(np.inf)

    def steepness_cones(self, inverse_scale: Array) -> list[Cone]:
        """Functions of x whose maximum is the steepness that a radius multiplies on an unbounded support:
        ||S^-1 a(x)|| for a linear predictor. Empty where there is no such form."""
        return []


def has_curves(loss: Loss) -> bool:
    """Whether features are curves: then rows are not what the model is multiplied with."""
    return getattr(loss, "basis", None) is not None


_LARGEST_BLOCK = 1 << 13
# Numbers that are made of rows together on the host: with curves rows are wider than the table.
_NUMBERS = 1 << 18
_SMALLEST_BLOCK = 1 << 6


def losses_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """l(x, xi) for every row (N, m); shape (N,)."""
    return _in_blocks("values", loss, x, rows)


def mistakes_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """1 for every row (N, m) whose label the model does not predict, else 0; shape (N,)."""
    return _in_blocks("mistakes", loss, x, rows)


def errors_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """How far the target of every row (N, m) lies from its prediction; shape (N,)."""
    return _in_blocks("errors", loss, x, rows)


def parts_of(loss: Loss, table: NDArray[np.float64]) -> list[slice]:
    """Rows (N, m) that are handled together, so few that what is made of them stays small."""
    height = max(_SMALLEST_BLOCK, min(_LARGEST_BLOCK, _NUMBERS // loss.columns(table.shape[1])))
    return [slice(begin, begin + height) for begin in range(0, len(table), height)]


@cache
def _compiled(method: str) -> Callable[[Loss, Any, Any], Any]:
    """The loss's method of this name as a program, compiled once for every loss and shape."""

    def of(loss: Loss, x: Any, rows: Any) -> Any:
        return getattr(loss, method)(x, rows)

    program: Callable[[Loss, Any, Any], Any] = loaded_jax().jit(of, static_argnums=0)
    return program


def _in_blocks(method: str, loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    table, model = np.asarray(rows, float), np.asarray(x, float)
    found = np.empty(len(table))
    if loss.host_values or loaded_jax() is None:
        for some in parts_of(loss, table):
            found[some] = getattr(loss, method)(model, table[some])
        return found
    for begin in range(0, len(table), _LARGEST_BLOCK):
        block = table[begin : begin + _LARGEST_BLOCK]
        # Sizes are powers of two; what is added is cut off again.
        size = max(_SMALLEST_BLOCK, 1 << (len(block) - 1).bit_length())
        padded = np.concatenate([block, np.repeat(block[-1:], size - len(block), axis=0)])
        values = _compiled(method)(loss, model, padded)
        found[begin : begin + len(block)] = np.asarray(values)[: len(block)]
    return found
