"""`RobustClassifier`: a linear classifier that holds up under any mix of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.estimators.base import RobustEstimator
from bidro.guarantees.price import PRICE
from bidro.guarantees.segments import DEFAULT_CURVES
from bidro.losses.registry import LossChoice
from bidro.standard import signs


def _has_probabilities(estimator: RobustClassifier) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("Probabilities need loss='logistic'.")
    return True


class RobustClassifier(ClassifierMixin, RobustEstimator):  # type: ignore[misc]
    """A linear classifier, or one of curves: the best under the worst admissible mixture of the clients.

    Parameters that are not listed, and what is there after `fit`, are those of `RobustRegressor`.

    Args:
        loss: "logistic" (softmax for more than two classes) or "smoothed hinge" (two classes).
        metric: "features" (labels do not change) or "joint", where a change of label costs label_cost.
        support: declared (lower, upper) bounds of every feature.
        width: of the smoothed hinge's rounded corner.

    Attributes:
        classes_: the classes, sorted.
        coef_: (1, k) for two classes, (classes, k) for more, on the original scale.

    Raises:
        BidroError: from `fit`, for settings or rows that cannot be used, and for a single class.

    Examples:
        >>> import numpy as np
        >>> from bidro import RobustClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(80, 2)), np.repeat(["north", "south"], 40)
        >>> y = np.where(X[:, 0] > 0, "ill", "well")
        >>> RobustClassifier(radius=0.05).fit(X, y, clients=site).predict([[3.0, 0.0]]).tolist()
        ['ill']
    """

    def __init__(
        self,
        loss: str = "logistic",
        *,
        radius: Any = 0.0,
        weights: Any = "auto",
        price: float = PRICE,
        criterion: str = "risk",
        own: str | None = "auto",
        metric: str = "features",
        label_cost: float = 1.0,
        p: float | None = None,
        support: Any = None,
        width: float = 1.0,
        fit_intercept: bool = True,
        gap: float = 1e-6,
        folds: int | None = None,
        confidence: float = 0.95,
        random_state: int = 0,
        curves: Any = DEFAULT_CURVES,
        increasing: Sequence[str] = (),
        decreasing: Sequence[str] = (),
    ) -> None:
        self.loss = loss
        self.radius = radius
        self.weights = weights
        self.price = price
        self.criterion = criterion
        self.own = own
        self.metric = metric
        self.label_cost = label_cost
        self.p = p
        self.support = support
        self.width = width
        self.fit_intercept = fit_intercept
        self.gap = gap
        self.folds = folds
        self.confidence = confidence
        self.random_state = random_state
        self.curves = curves
        self.increasing = increasing
        self.decreasing = decreasing

    def decision_function(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> Floats:
        """How strongly a row is of a class.

        Args:
            X: rows (N, k).
            clients: whose row each is (N,), or the name of the column of a frame X that says it (the one that
                `fit` took is found by itself); without it all rows get the shared model.

        Returns:
            Scores: (N,) for two classes, above 0 for the second; (N, classes) for more.
        """
        scores = self._scores(X, clients)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> NDArray[Any]:
        """The likeliest class of every row.

        Args:
            X: rows (N, k).
            clients: as in `decision_function`.

        Returns:
            Classes (N,).
        """
        scores = self.decision_function(X, clients)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> Floats:
        """The probability of every class; with loss="logistic" only.

        Args:
            X: rows (N, k).
            clients: as in `decision_function`.

        Returns:
            Probabilities (N, classes), in the order of `classes_`.
        """
        scores = self.decision_function(X, clients)
        if scores.ndim == 1:
            return np.column_stack([expit(-scores), expit(scores)])
        return np.asarray(softmax(scores, axis=1))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> Floats:
        """Logarithms of the probabilities, finite also where these round to 0.

        Args:
            X: rows (N, k).
            clients: as in `decision_function`.

        Returns:
            Logarithms (N, classes), in the order of `classes_`.
        """
        scores = self.decision_function(X, clients)
        if scores.ndim == 1:
            return np.column_stack([log_expit(-scores), log_expit(scores)])
        return np.asarray(log_softmax(scores, axis=1))

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        clients: ArrayLike | str | None = None,
    ) -> float:
        """The share of right predictions.

        Args:
            X: rows (N, k).
            y: their classes (N,).
            sample_weight: how much each row counts (N,).
            clients: as in `decision_function`; by scikit-learn's metadata routing,
                `set_score_request(clients=True)`, a grid search then judges clients' own models.

        Returns:
            The accuracy.
        """
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _loss_choice(self) -> LossChoice:
        return LossChoice(self.loss, len(self.classes_), self.fit_intercept, {"width": self.width})

    def _encode(self, y: Any) -> Floats:
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise BidroError(
                f"A classifier needs at least two classes, and there is 1 class: {self.classes_[0]!r}."
            )
        return signs(codes, len(self.classes_))

    def _codes(self, y: Any) -> Floats:
        check_is_fitted(self)
        labels = column_or_1d(y)
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            raise BidroError(f"Class {labels[unknown][0]!r} was not in training.")
        return signs(np.searchsorted(self.classes_, labels), len(self.classes_))

    def _shaped(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Any]:
        return coefficients, intercepts
