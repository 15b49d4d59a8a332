"""Losses of a linear predictor: l(x, xi) = L(u), u affine in the sample.

The model is x = (w, b): one coefficient a feature, and an intercept b where `intercept` is set.
- Regression: xi = (theta, y), u = <w, theta> + b - y, the residual.
- Classification: the label y is -1 or 1 and u = y (<w, theta> + b), the margin.

With a `basis` the predictor is a sum of curves, phi(theta) stands for theta, and w are their slopes. Samples
stay in the space of the features; u is then piecewise affine in them, and `dual_norm` a Lipschitz constant.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace
from bidro.core.sets import VectorSet
from bidro.core.sets.base import AnyArray
from bidro.data.splines import Basis
from bidro.losses.base import Cone, Growth, Loss
from bidro.losses.scalar import PiecewiseQuadratic, Scalar, Softplus

if TYPE_CHECKING:
    from jax import Array


class LinearScores(Loss):
    """A loss of K scores that are linear in the model, s_k = <x[layout_k], psi(row)>: the one place that
    knows how losses, their slopes and their second derivatives follow from scores, on the host. What sums
    over rows are made of them is the business of `risk`."""

    intercept: bool
    basis: Basis | None  # of curves; None for straight lines
    smoothing: float  # of curves in training: see `penalty`
    pseudo_rows: float  # of every client in training: see `pull`

    @property
    def convex_in_x(self) -> bool:
        return True

    @property
    def bounded_curvature(self) -> bool:
        """Whether second derivatives in a score are at most `score_curvature`."""
        return True

    @property
    def log_likelihood(self) -> bool:
        """Whether it is minus a log-likelihood with nothing left to estimate but the model."""
        return False

    @property
    def host_values(self) -> bool:
        return True

    @property
    def nonnegative(self) -> bool:
        return True

    def columns(self, m: int) -> int:
        return m if self.basis is None else self.basis.columns + 1

    def dimension(self, m: int) -> int:
        return self.scores * (self.columns(m) - 1 + int(self.intercept))

    def design(self, rows: Array) -> Array:
        return rows if self.basis is None else self.basis.rows(rows)

    def split(self, x: Array) -> tuple[Array, Array]:
        """(coefficients w (m - 1,), intercept b); of several scores (w (scores, m - 1), b (scores,))."""
        return (x[:-1], x[-1]) if self.intercept else (x, namespace(x).zeros(()))

    @property
    def penalty(self) -> NDArray[np.float64] | None:
        if self.basis is None or self.smoothing == 0:
            return None
        return self._of_slopes(self.smoothing * self.basis.roughness)

    def pull(self, d: int) -> NDArray[np.float64] | None:
        """That of so many rows more, for which a model is right whose slopes are 0, with features of size 1
        and the largest curvature c of the loss: c / 2 times their number times ||w||^2. Of a curve the mean
        over its segments counts."""
        if self.pseudo_rows == 0:
            return None
        shares = np.ones(d // self.scores - int(self.intercept))
        if self.basis is not None:
            # Cells of pairs are held by `penalty`.
            shares = np.zeros(self.basis.columns)
            shares[: self.basis.of_curves] = 1 / np.bincount(self.basis.curve)[self.basis.curve]
        return self._of_slopes(np.diag(0.5 * self.score_curvature(0.0) * self.pseudo_rows * shares))

    def _of_slopes(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """(d, d) a quadratic form (q, q) of a score's slopes as one of the model: of several scores, of their
        slopes around the mean, as what all have in common does not change the loss; 0 for offsets."""
        k = self.scores
        apart = np.eye(k) - 1 / k if k > 1 else np.ones((1, 1))
        return np.pad(np.kron(apart, matrix), (0, k * int(self.intercept)))

    def layout(self, m: int) -> NDArray[np.int64]:
        """(K, q) where a model for samples with m coordinates has the coefficient of each of the q columns of
        `score_columns` in each score: slopes of one score after the other, then the offsets."""
        q = self.columns(m) - 1
        slopes = np.arange(self.scores * q).reshape(self.scores, q)
        offsets = self.scores * q + np.arange(self.scores)[:, None]
        return np.concatenate([slopes, offsets], axis=1) if self.intercept else slopes

    def score_columns(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """(..., q) psi of rows (..., m): features, or what curves make of them, and 1 for offsets."""
        theta = np.asarray(self.design(rows))[..., :-1]  # type: ignore[arg-type]
        return np.concatenate([theta, np.ones((*theta.shape[:-1], int(self.intercept)))], axis=-1)

    @abstractmethod
    def of_scores(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(losses (...), their derivatives in the scores (K, ...)) at scores (K, ...) of rows with these
        labels or targets, which broadcast to (...); kinks smoothed over `width`."""

    @abstractmethod
    def score_curvature(self, width: Any) -> Any:
        """The largest second derivative in a score, kinks smoothed over `width`; inf at a kink of width 0."""

    @abstractmethod
    def score_hessian(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> NDArray[np.float64]:
        """(K, K, ...) second derivatives in the scores, kinks smoothed over `width`."""


@dataclass(frozen=True)
class LinearLoss(LinearScores):
    """Shared by all losses of a linear predictor; a subclass declares its scalar form L."""

    intercept: bool = False
    basis: Basis | None = field(default=None, kw_only=True)
    smoothing: float = field(default=0.0, kw_only=True)
    pseudo_rows: float = field(default=0.0, kw_only=True)

    @property
    @abstractmethod
    def scalar(self) -> Scalar:
        """The convex function L of the residual or margin."""

    @property
    def growth(self) -> Growth:
        return Growth(self.scalar.growth_order, self.scalar.growth_coefficient)

    def of_scores(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        line = self.scalar.tangent(self.of_residuals(target, scores[0]), np.asarray(width))
        slope = line.slope if self.labels is None else self.sign(target) * line.slope
        return np.asarray(line.value), np.asarray(slope)[None]

    def score_hessian(
        self, target: NDArray[np.float64], scores: NDArray[np.float64], width: Any = 0.0
    ) -> NDArray[np.float64]:
        line = self.scalar.tangent(self.of_residuals(target, scores[0]), np.asarray(width))
        return np.asarray(line.curvature)[None, None]

    def score_curvature(self, width: Any) -> Any:
        return (
            self.scalar.curvature if np.ndim(width) == 0 and width == 0 else self.scalar.curvature_of(width)
        )

    def of_residuals(self, target: NDArray[np.float64], score: NDArray[np.float64]) -> Any:
        """u, the residual or margin of a score."""
        return score - target if self.labels is None else self.sign(target) * score

    def direction(self, x: Array, label: Array | float) -> tuple[Array, Array]:
        """(a, offset) with u = <a, xi> + offset for samples that carry this label; a is (m,), and with curves
        as long as a row of `design`, of which this then holds."""
        w, b = self.split(x)
        xp = namespace(x, label)
        if self.labels is None:
            return xp.append(w, -1.0), b
        return self.sign(label) * xp.append(w, 0.0), self.sign(label) * b

    def sign(self, label: Any) -> Any:
        """1 for the label whose margin is the score, -1 for the other."""
        return label

    def value(self, x: Array, xi: Array) -> Array:
        w, b = self.split(x)
        score = (w * self.design(xi)[:-1]).sum() + b
        return self.scalar.value(score - xi[-1] if self.labels is None else self.sign(xi[-1]) * score)

    def values(self, x: Array, rows: Array) -> Array:
        return self.scalar.value(self.arguments(x, rows))

    def arguments(self, x: Array, rows: Array) -> Array:
        """(rows,) u of every row (rows, m)."""
        a, offset = self.direction(x, 1.0)
        u: Array = self.design(rows) @ a + offset
        return u if self.labels is None else self.sign(rows[:, -1]) * u

    def mistakes(self, x: Array, rows: Array) -> Array:
        if self.labels is None:
            return super().mistakes(x, rows)
        return (self.arguments(x, rows) <= 0).astype(float)

    def of_model(self, xi: Array) -> tuple[Array, Array]:
        """(psi, offset) with u = <psi, x> + offset at the sample xi; psi is (d,)."""
        columns, xp = self.design(xi)[:-1], namespace(xi)
        psi = xp.append(columns, 1.0) if self.intercept else columns
        return (psi, -xi[-1]) if self.labels is None else (self.sign(xi[-1]) * psi, xp.zeros(()))

    def steepness_cones(self, inverse_scale: Array) -> list[Cone]:
        features, groups = np.asarray(inverse_scale)[:-1], None
        matrix = np.diag(features)
        if self.basis is not None:
            slopes, feature, groups = self.basis.slope_rows()
            matrix = features[feature][:, None] * slopes
        if self.intercept:
            matrix = np.column_stack([matrix, np.zeros(len(matrix))])
        if self.labels is not None:
            return [Cone(matrix, np.zeros(len(matrix)), groups)]
        target = np.append(np.zeros(len(matrix)), -float(inverse_scale[-1]))
        if self.basis is not None:
            assert groups is not None
            groups = np.append(groups, groups[-1] + 1)
        return [Cone(np.vstack([matrix, np.zeros(matrix.shape[1])]), target, groups)]

    def lipschitz(self, x: Array, inverse_scale: Array) -> AnyArray:
        if self.scalar.lipschitz == np.inf:
            return np.asarray(np.inf)
        return self.scalar.lipschitz * self.dual_norm(x, inverse_scale)

    def curvature(self, x: Array, inverse_scale: Array) -> AnyArray:
        if self.scalar.curvature == np.inf or self.basis is not None:
            return np.asarray(np.inf)
        return self.scalar.curvature * self.dual_norm(x, inverse_scale) ** 2

    def largest_curvature(self, models: VectorSet, inverse_scale: Array) -> AnyArray:
        if self.scalar.curvature == np.inf or self.basis is not None:
            return np.asarray(np.inf)
        xp = namespace(inverse_scale)
        features = xp.append(inverse_scale[:-1], 0.0) if self.intercept else inverse_scale[:-1]
        label = inverse_scale[-1] if self.labels is None else 0.0
        return self.scalar.curvature * (models.largest_norm(features) ** 2 + label**2)

    def dual_norm(self, x: Array, inverse_scale: Array) -> Array:
        """||S^-1 a(x)||: how far u moves when a sample moves by 1 in the scaled norm; with curves, where the
        steepest slope of each feature counts, how far at the most."""
        a, _ = self.direction(x, 1.0)
        if self.basis is not None:
            a = namespace(a).append(self.basis.steepest(a[:-1]), a[-1])
        norm: Array = namespace(a, inverse_scale).linalg.norm(a * inverse_scale)
        return norm


class ResidualLoss(LinearLoss):
    """The base of losses L(u) of the residual u = <w, theta> + b - y of a number.

    A subclass is a frozen dataclass with the property `scalar`, the convex function L (`PiecewiseQuadratic`).

    Args:
        intercept: whether the model has b, its last entry, besides w.
        basis: of curves; None for straight lines.
        smoothing: of curves in training.
        pseudo_rows: of every client in training.

    Examples:
        >>> from bidro import Huber, ResidualLoss
        >>> issubclass(Huber, ResidualLoss), Huber(threshold=2.0).scalar.knots
        (True, (-2.0, 2.0))
    """

    def middle(self, targets: NDArray[np.float64]) -> float:
        """A prediction in the middle of the targets (N,): their median, unless the loss has its own."""
        return float(np.median(targets))


class MarginLoss(LinearLoss):
    """The base of losses L(u) of the margin u = y (<w, theta> + b) of a label y in {-1, 1}.

    A subclass is a frozen dataclass with the property `scalar`, the convex function L (`PiecewiseQuadratic`).

    Args:
        intercept: whether the model has b, its last entry, besides w.
        basis: of curves; None for straight lines.
        smoothing: of curves in training.
        pseudo_rows: of every client in training.

    Examples:
        >>> from bidro import Hinge, MarginLoss
        >>> issubclass(Hinge, MarginLoss), Hinge().labels
        (True, (-1.0, 1.0))
    """

    @property
    def labels(self) -> tuple[float, ...]:
        return (-1.0, 1.0)


@dataclass(frozen=True)
class Squared(ResidualLoss):
    """(y - <w, theta> - b)^2.

    Args:
        intercept: whether the model has b, its last entry, besides w.
        basis: of curves; None for straight lines.
        smoothing: of curves in training.
        pseudo_rows: of every client in training.

    Examples:
        >>> import numpy as np
        >>> from bidro import Squared
        >>> float(Squared().value(np.array([2.0]), np.array([3.0, 7.0])))  # prediction 6, target 7
        1.0
    """

    def middle(self, targets: NDArray[np.float64]) -> float:
        return float(targets.mean())

    @property
    def scalar(self) -> Scalar:
        return PiecewiseQuadratic((), ((1.0, 0.0, 0.0),))


@dataclass(frozen=True)
class Absolute(ResidualLoss):
    """|y - <w, theta> - b|.

    Parameters are those of `Squared`.

    Examples:
        >>> import numpy as np
        >>> from bidro import Absolute
        >>> float(Absolute().value(np.array([2.0]), np.array([3.0, 9.0])))  # prediction 6, target 9
        3.0
    """

    @property
    def scalar(self) -> Scalar:
        return PiecewiseQuadratic((0.0,), ((0.0, -1.0, 0.0), (0.0, 1.0, 0.0)))


@dataclass(frozen=True)
class Huber(ResidualLoss):
    """u^2 / 2 for residuals |u| <= threshold, threshold (|u| - threshold / 2) beyond.

    Parameters that are not listed are those of `Squared`.

    Args:
        threshold: where the loss goes on in a straight line, above 0, in the target's unit.

    Raises:
        BidroError: for a threshold that is not above 0.

    Examples:
        >>> import numpy as np
        >>> from bidro import Huber
        >>> float(Huber(threshold=1.0).value(np.array([2.0]), np.array([3.0, 9.0])))  # 1 * (3 - 1/2)
        2.5
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise BidroError(f"Huber loss needs a threshold > 0; got {self.threshold}.")

    @property
    def scalar(self) -> Scalar:
        t = self.threshold
        return PiecewiseQuadratic((-t, t), ((0.0, -t, -(t**2) / 2), (0.5, 0.0, 0.0), (0.0, t, -(t**2) / 2)))


@dataclass(frozen=True)
class Pinball(ResidualLoss):
    """quantile (y - f)_+ + (1 - quantile) (f - y)_+ for the prediction f.

    Its minimum over predictions is a quantile. Parameters that are not listed are those of `Squared`.

    Args:
        quantile: which, in (0, 1).

    Raises:
        BidroError: for a quantile outside (0, 1).

    Examples:
        >>> import numpy as np
        >>> from bidro import Pinball
        >>> float(Pinball(quantile=0.9).value(np.array([2.0]), np.array([3.0, 9.0])))
        2.7
    """

    quantile: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise BidroError(f"Pinball loss needs a quantile in (0, 1); got {self.quantile}.")

    def middle(self, targets: NDArray[np.float64]) -> float:
        return float(np.quantile(targets, self.quantile))

    @property
    def scalar(self) -> Scalar:
        q = self.quantile
        return PiecewiseQuadratic((0.0,), ((0.0, -q, 0.0), (0.0, 1 - q, 0.0)))


@dataclass(frozen=True)
class Logistic(MarginLoss):
    """log(1 + exp(-margin)), in nats.

    The margin is y (<w, theta> + b) with y in {-1, 1}. Parameters are those of `Squared`.

    Examples:
        >>> import numpy as np
        >>> from bidro import Logistic
        >>> round(float(Logistic().value(np.array([2.0]), np.array([0.5, -1.0]))), 3)
        1.313
    """

    @property
    def infimum_at_infinity(self) -> bool:
        return True

    @property
    def log_likelihood(self) -> bool:
        return True

    @property
    def scalar(self) -> Scalar:
        return Softplus()


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """max(0, 1 - margin).

    The margin is y (<w, theta> + b) with y in {-1, 1}. Parameters are those of `Squared`.

    Examples:
        >>> import numpy as np
        >>> from bidro import Hinge
        >>> float(Hinge().value(np.array([2.0]), np.array([0.25, 1.0])))
        0.5
    """

    @property
    def scalar(self) -> Scalar:
        return PiecewiseQuadratic((1.0,), ((0.0, -1.0, 1.0), (0.0, 0.0, 0.0)))


@dataclass(frozen=True)
class SmoothedHinge(MarginLoss):
    """The hinge with its corner replaced by (1 - margin)^2 / (2 width) over [1 - width, 1].

    Parameters that are not listed are those of `Squared`.

    Args:
        width: of the margins over which the corner is rounded, above 0.

    Raises:
        BidroError: for a width that is not above 0.

    Examples:
        >>> import numpy as np
        >>> from bidro import SmoothedHinge
        >>> float(SmoothedHinge(width=1.0).value(np.array([2.0]), np.array([0.25, 1.0])))
        0.125
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise BidroError(f"The smoothed hinge needs a width > 0; got {self.width}.")

    @property
    def scalar(self) -> Scalar:
        w = self.width
        return PiecewiseQuadratic(
            (1 - w, 1.0),
            (
                (0.0, -1.0, 1 - w / 2),
                (1 / (2 * w), -1 / w, 1 / (2 * w)),
                (0.0, 0.0, 0.0),
            ),
        )
