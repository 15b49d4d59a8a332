"""Softmax cross-entropy of K linear scores; labels are 0, ..., K - 1."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace
from bidro.core.sets import VectorSet
from bidro.core.sets.base import AnyArray
from bidro.data.splines import Basis
from bidro.losses.base import Cone, Growth
from bidro.losses.linear import LinearScores, Logistic

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class Softmax(LinearScores):
    """log sum_k exp(<w_k, theta> + b_k) - (<w_y, theta> + b_y), in nats.

    The flat model is the row-major matrix (w_1, ..., w_K), followed by b where `intercept` is set. With a
    `basis`, phi(theta) stands for theta, and each class has its own curves.

    Args:
        classes: how many, labels being 0, 1, ...
        intercept: whether the model has b.
        basis: of curves; None for straight lines.
        smoothing: of curves in training.
        pseudo_rows: of every client in training.

    Raises:
        BidroError: for fewer than two classes.

    Examples:
        >>> import numpy as np
        >>> from bidro import Softmax
        >>> loss = Softmax(classes=3)
        >>> loss.dimension(m=3), round(float(loss.value(np.zeros(6), np.array([1.0, 2.0, 0.0]))), 3)
        (6, 1.099)
    """

    classes: int = 2
    intercept: bool = False
    basis: Basis | None = field(default=None, kw_only=True)
    smoothing: float = field(default=0.0, kw_only=True)
    pseudo_rows: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.classes != int(self.classes) or self.classes < 2:
            raise BidroError(f"Softmax needs at least 2 classes, a whole number; got {self.classes}.")

    @property
    def infimum_at_infinity(self) -> bool:
        return True

    @property
    def log_likelihood(self) -> bool:
        return True

    @property
    def labels(self) -> tuple[float, ...]:
        return tuple(float(k) for k in range(self.classes))

    @property
    def scores(self) -> int:
        return self.classes

    @property
    def growth(self) -> Growth:
        return Growth(1, 1.0)

    def split(self, x: Array) -> tuple[Array, Array]:
        """(weights of shape (K, features), intercepts of shape (K,))."""
        if self.intercept:
            return x[: -self.classes].reshape(self.classes, -1), x[-self.classes :]
        return x.reshape(self.classes, -1), namespace(x).zeros(self.classes)

    def value(self, x: Array, xi: Array) -> Array:
        return self.values(x, xi[None])[0]

    def values(self, x: Array, rows: Array) -> Array:
        scores, xp = self._scores(x, rows), namespace(x, rows)
        # From differences to the own score: a small loss then keeps its digits, however large the scores are.
        apart = scores - xp.take_along_axis(scores, rows[:, -1:].astype(int), axis=1)
        first = apart.argmax(axis=1)[:, None]
        highest, others = xp.take_along_axis(apart, first, axis=1), xp.arange(self.classes) != first
        return highest[:, 0] + xp.log1p(xp.where(others, xp.exp(apart - highest), 0.0).sum(axis=1))

    def of_scores(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        shape = scores.shape[1:]
        own = np.broadcast_to(np.asarray(target).astype(int), shape)[None]
        # As in `values`: a small loss keeps its digits.
        apart = scores - np.take_along_axis(scores, own, axis=0)
        first = apart.argmax(axis=0)[None]
        highest = np.take_along_axis(apart, first, axis=0)
        shares = np.exp(apart - highest)
        np.put_along_axis(shares, first, 0.0, axis=0)
        others = shares.sum(axis=0)
        np.put_along_axis(shares, first, 1.0, axis=0)
        shares /= 1.0 + others
        # 1 less the own share is the sum of the others, which keeps its digits too.
        np.put_along_axis(shares, own, 0.0, axis=0)
        np.put_along_axis(shares, own, -shares.sum(axis=0, keepdims=True), axis=0)
        return np.asarray(highest[0] + np.log1p(others)), shares

    def score_curvature(self, width: Any) -> Any:
        return 0.5

    def score_hessian(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> NDArray[np.float64]:
        shares = np.exp(scores - scores.max(axis=0))
        shares /= shares.sum(axis=0)
        hessian = -shares[:, None] * shares[None, :]
        each = np.arange(len(shares))
        hessian[each, each] += shares
        return np.asarray(hessian)

    def mistakes(self, x: Array, rows: Array) -> Array:
        return (self._scores(x, rows).argmax(axis=1) != rows[:, -1]).astype(float)

    def _scores(self, x: Array, rows: Array) -> Array:
        """(rows, K)"""
        weights, intercepts = self.split(x)
        return self.design(rows)[:, :-1] @ weights.T + intercepts

    def hessian_sum(self, x: Array, rows: Array, weights: Array) -> Array:
        """sum_k weights_k (diag(q_k) - q_k q_k') (x) theta_k theta_k', q_k the classes' probabilities."""
        matrix, intercepts = self.split(x)
        theta = self.design(rows)[:, :-1]
        xp = namespace(x, rows)
        scores = theta @ matrix.T + intercepts
        odds = xp.exp(scores - scores.max(axis=1, keepdims=True))
        q = odds / odds.sum(axis=1, keepdims=True)
        hessians = q[:, :, None] * (np.eye(self.classes) - q[:, None, :]) * weights[:, None, None]
        if self.intercept:
            theta = xp.concatenate([theta, np.ones((len(theta), 1))], axis=1)
        size = theta.shape[1]
        classes = range(self.classes)
        pairs = [[(theta.T * hessians[:, j, k]) @ theta for k in classes] for j in classes]
        full = xp.asarray(pairs).transpose(0, 2, 1, 3).reshape(self.classes * size, -1)
        if not self.intercept:
            return full
        # The model lists all weights first and the intercepts last.
        order = np.arange(self.classes * size).reshape(self.classes, size)
        flat = np.append(order[:, :-1].ravel(), order[:, -1])
        return full[flat][:, flat]

    def shift_invariance(self, m: int) -> NDArray[np.int64]:
        return self.layout(m).T

    @property
    def difference(self) -> ScoreDifference | None:
        """The same loss of the difference of two scores, D x in `apart`; None of more classes, or curves."""
        if self.classes > 2 or self.basis is not None:
            return None
        return ScoreDifference(self.intercept, pseudo_rows=self.pseudo_rows)

    def apart(self, m: int) -> NDArray[np.float64]:
        """(d / 2, d) D, for two classes: D x is the second's weights and intercept less the first's."""
        pairs, k = self.shift_invariance(m), np.arange(self.dimension(m) // 2)
        matrix = np.zeros((len(k), 2 * len(k)))
        matrix[k, pairs[:, 0]], matrix[k, pairs[:, 1]] = -1.0, 1.0
        return matrix

    def balanced(self, gradient: Array) -> Array:
        """With sums over the classes of exactly 0: what is added to all scores leaves the loss as it is, and
        over a wide set of models the rounding of such sums would cost a lower bound its digits.

        Numbers are rounded to a grid, of a few last bits of the largest, on which sums have no rounding.
        """
        features = (gradient.shape[0] - (self.classes if self.intercept else 0)) // self.classes
        cut = [self.classes * features, self.classes * (features + int(self.intercept))]
        xp = namespace(gradient)
        weights, intercepts, rest = xp.split(gradient, cut)
        flat = [weights.reshape(self.classes, -1), intercepts.reshape(self.classes, -1)]
        exponent = [xp.frexp(abs(part).max(axis=0, initial=0.0))[1] for part in flat]
        spare = (self.classes - 1).bit_length() + 1 - 52
        # Numbers that have no such bits, next to the smallest there are, count as 0.
        grids = [xp.where(e > -900, xp.ldexp(1.0, xp.maximum(e, -900) + spare), 1.0) for e in exponent]
        snapped = [xp.round(part / grid)[:-1] * grid for part, grid in zip(flat, grids, strict=True)]
        whole = [xp.vstack([part, -part.sum(axis=0)]).ravel() for part in snapped]
        return xp.concatenate([*whole, rest])

    def steepness(self, x: Array, inverse_scale: Array, label: Array) -> Array:
        """max_k ||S^-1 (w_k - w_label)||, the Lipschitz constant in theta at a fixed label."""
        weights, _ = self.split(x)
        apart = weights - weights[label.astype(int)]
        gaps = (apart if self.basis is None else self.basis.steepest(apart)) * inverse_scale[:-1]
        squared, xp = (gaps**2).sum(axis=1), namespace(gaps)
        # A label's distance to itself is 0, where the norm has no derivative: its own is taken as 0.
        apart = squared > 0
        return xp.where(apart, xp.sqrt(xp.where(apart, squared, 1.0)), 0.0).max()

    def steepness_cones(self, inverse_scale: Array) -> list[Cone]:
        """||S^-1 (w_j - w_k)|| for every pair of classes."""
        scale, groups = np.asarray(inverse_scale)[:-1], None
        features = np.diag(scale)
        if self.basis is not None:
            slopes, feature, groups = self.basis.slope_rows()
            features = scale[feature][:, None] * slopes
        unused = np.zeros((len(features), self.classes if self.intercept else 0))
        cones = []
        for j, k in itertools.combinations(range(self.classes), 2):
            blocks = np.zeros((len(features), self.classes, features.shape[1]))
            blocks[:, j], blocks[:, k] = features, -features
            matrix = np.hstack([blocks.reshape(len(features), -1), unused])
            cones.append(Cone(matrix, np.zeros(len(features)), groups))
        return cones

    def lipschitz(self, x: Array, inverse_scale: Array) -> AnyArray:
        """max ||S^-1 (w_j - w_k)|| over pairs of classes; of curves, of their steepest slopes."""
        weights, xp = self.split(x)[0], namespace(x, inverse_scale)
        one, other = np.triu_indices(self.classes, 1)
        apart = weights[one] - weights[other]
        apart = apart if self.basis is None else self.basis.steepest(apart)
        return xp.linalg.norm(apart * inverse_scale[:-1], axis=1).max()

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> AnyArray:
        if self.basis is not None:
            return np.asarray(np.inf)
        # ||w_j - w_k||^2 <= 2 (||w_j||^2 + ||w_k||^2).
        xp = namespace(inverse_scale)
        scale = xp.tile(inverse_scale[:-1], self.classes)
        scale = xp.append(scale, np.zeros(self.classes)) if self.intercept else scale
        return 0.5 * models.largest_norm(scale) ** 2

    def curvature(self, x: Array, inverse_scale: Array) -> AnyArray:
        if self.basis is not None:
            return np.asarray(np.inf)
        # Along a unit direction it is the variance of the scores' slopes under the classes' probabilities,
        # which is at most a quarter of their range squared.
        return 0.25 * self.lipschitz(x, inverse_scale) ** 2


@dataclass(frozen=True)
class ScoreDifference(Logistic):
    """Logistic loss of v = (w_1 - w_0, b_1 - b_0), which softmax of two classes is; labels are 0 and 1."""

    @property
    def labels(self) -> tuple[float, ...]:
        return (0.0, 1.0)

    def sign(self, label: Any) -> Any:
        return 2 * label - 1
