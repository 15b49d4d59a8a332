"""`RobustRegressor`: a linear model of a number that holds up under any mix of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import column_or_1d

from bidro.arrays import Floats
from bidro.estimators.base import RobustEstimator
from bidro.guarantees.price import PRICE
from bidro.guarantees.segments import DEFAULT_CURVES
from bidro.losses.registry import LossChoice


class RobustRegressor(RegressorMixin, RobustEstimator):  # type: ignore[misc]
    """A linear model, or curves, of a number: the best under the worst admissible mixture of the clients.

    Solves min over (w, b) of the worst mixture of the clients' worst mean losses over Wasserstein balls, to a
    certified duality gap, and chooses how much of that is worth its price by cross-validation.

    Args:
        loss: "squared", "absolute", "huber" or "pinball".
        radius: how far each client's distribution may shift: a number (0: no shift), one a client (names in
            alphabetical order), a mapping by client, "cross-validate", "bootstrap" or "explicit" (needs
            `support` and metric="joint"); in pooled standard deviations of the features.
        weights: the mixtures to guard against: "auto" (by cross-validation, within the price), "simplex"
            (any), "fixed" (by rows: pooled training), or a number kappa of at least 1 (no client counts for
            more than kappa times its share).
        price: of weights="auto", by which share the mean loss may rise over pooled training for a better
            worst case; inf for whatever it costs.
        criterion: "risk", or "regret": what the worst mixture loses beyond what each client could attain by
            itself.
        own: "auto", each client that gains by it has its own correction of the shared model, "offset", of its
            intercept alone, or None.
        metric: "features" (targets do not move) or "joint", where moving the target by one of its standard
            deviations costs label_cost.
        label_cost: of metric="joint".
        p: order of the cost; None for 2 with squared loss and 1 otherwise.
        support: declared (lower, upper) bounds of every feature and of the target, needed for the Wasserstein
            certificate.
        threshold: Huber's, in standard deviations of the target.
        quantile: the pinball loss's.
        fit_intercept: whether there is an intercept.
        gap: the relative duality gap to certify.
        folds: of cross-validation; None for 5, or fewer where a client has fewer rows.
        confidence: of `certificate_`, and of bootstrap and explicit radii.
        random_state: seed of folds and resamples.
        curves: "auto", a piecewise-linear curve for every feature, with as many segments as cross-validation
            chooses (1, a straight line, is among them); None, straight lines; a number of segments; or one of
            these by feature ("auto" for those not named); with a category, such as {"age": (8, "sex")}, a
            curve at each of its levels. With a radius, risks of curves are upper bounds of worst cases, and
            `worst_case` gives the other end.
        increasing: features whose lines or curves must rise.
        decreasing: features whose lines or curves must fall.

    Attributes:
        coef_: (k,) of straight lines, on the original scale.
        intercept_: the prediction where every feature is 0; with curves, for a row that is average.
        curves_: by feature its knots, values and slopes.
        own_coef_: by client, of those with a model of their own; so are `own_curves_` and `own_intercept_`.
        client_weights_: the worst-case mixture, by client.
        client_risks_: robust, in the loss's own unit, by client.
        radii_: by client.
        duality_gap_: the relative gap that was certified; with curves or classes, of the surrogate that is
            minimised (see `Solution`).
        n_rounds_: rounds with the clients that it took.
        calibration_: a `Calibration`: candidates, their losses on rows left out, the choice; None where
            nothing was chosen.
        certificate_: a `Certificate`: what the training rows allow to state.

    Raises:
        BidroError: from `fit`, for settings or rows that cannot be used.

    Examples:
        >>> import numpy as np
        >>> from bidro import RobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(60, 2)), np.repeat(["north", "south"], 30)
        >>> y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=60)
        >>> RobustRegressor(radius=0.1).fit(X, y, clients=site).coef_.round(1).tolist()
        [1.0, -2.0]
    """

    def __init__(
        self,
        loss: str = "squared",
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
        threshold: float = 1.35,
        quantile: float = 0.5,
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
        self.threshold = threshold
        self.quantile = quantile
        self.fit_intercept = fit_intercept
        self.gap = gap
        self.folds = folds
        self.confidence = confidence
        self.random_state = random_state
        self.curves = curves
        self.increasing = increasing
        self.decreasing = decreasing

    def predict(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> Floats:
        """Predictions for rows, by the shared model, or by the client's own where it has one.

        Args:
            X: rows (N, k).
            clients: whose row each is (N,), or the name of the column of a frame X that says it (the one that
                `fit` took is found by itself); without it all rows get the shared model.

        Returns:
            Predictions (N,), in the target's unit.
        """
        return self._scores(X, clients)[:, 0]

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        clients: ArrayLike | str | None = None,
    ) -> float:
        """The coefficient of determination of the predictions.

        Args:
            X: rows (N, k).
            y: their targets (N,).
            sample_weight: how much each row counts (N,).
            clients: as in `predict`; by scikit-learn's metadata routing, `set_score_request(clients=True)`,
                a grid search then judges clients' own models.

        Returns:
            R squared.
        """
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _loss_choice(self) -> LossChoice:
        parameters = {"threshold": self.threshold, "quantile": self.quantile}
        return LossChoice(self.loss, None, self.fit_intercept, parameters)

    def _encode(self, y: Any) -> Floats:
        return np.asarray(column_or_1d(y, warn=True), float)

    _codes = _encode

    def _shaped(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Any]:
        return coefficients[0], float(intercepts[0])
