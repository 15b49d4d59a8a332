"""What both estimators share: from arrays to `fit`, and what can be asked after it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.estimators.given import client_labels, column_taken, dense, enough_to_choose, refuse, row_labels
from bidro.fitting import Fitted, LocalNetwork, Options, fit
from bidro.guarantees.asked import check_confidence, check_shift
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import Bound
from bidro.guarantees.robust import WorstCase, worst_case_distribution
from bidro.guarantees.statements import with_holdout, without_holdout
from bidro.guarantees.trained_rows import TrainedRows
from bidro.losses.registry import LossChoice
from bidro.predictor import Predictor
from bidro.standard import require_inside
from bidro.training import Choices, grid


class RobustEstimator(BaseEstimator):  # type: ignore[misc]
    """See `RobustRegressor` and `RobustClassifier`, which declare the parameters."""

    radius: Any
    weights: Any
    price: float
    criterion: str
    own: str | None
    metric: str
    label_cost: float
    p: float | None
    support: Any
    fit_intercept: bool
    gap: float
    folds: int | None
    confidence: float
    random_state: int
    curves: Any
    increasing: Sequence[str]
    decreasing: Sequence[str]
    # Where scikit-learn routes `clients` at all, scores are of the models that clients use.
    __metadata_request__score = {"clients": True}  # noqa: RUF012 - as scikit-learn reads it

    def _loss_choice(self) -> LossChoice:
        """The loss, known once `_encode` has seen the target."""
        raise NotImplementedError

    def _encode(self, y: Any) -> Floats:
        """The target as numbers (N,); sets what `_loss_choice` and predictions need."""
        raise NotImplementedError

    def _codes(self, y: Any) -> Floats:
        """A target seen after `fit` as numbers (N,)."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        units: ArrayLike | str | None = None,
        **refused: Any,
    ) -> Self:
        """Train on the rows of all clients.

        There is no `sample_weight`: every statement counts a row as one draw from its client.

        A client of one row is left out where something is cross-validated, with a warning: it gets the shared
        model.

        Args:
            X: rows (N, k) of numbers. Sparse ones are made dense, where there is room for that.
            y: their targets (N,).
            clients: whose row each is (N,), or the name of the column of a frame X that says it, which is
                then no feature, now and in `predict`; without it all rows are one client's.
            units: which person or thing each row is of (N,), or the name of its column, where rows of one are
                to stay in one fold.
            refused: nothing else is taken.

        Returns:
            The estimator itself.

        Raises:
            ValueError: for rows that cannot be used, each time with a sentence that says which.
        """
        refuse(refused)
        choices = Choices(
            radius=self.radius,
            weights=self.weights,
            price=self.price,
            criterion=self.criterion,
            own=self.own,
            metric=self.metric,
            label_cost=self.label_cost,
            p=self.p,
            gap=self.gap,
            folds=self.folds,
            seed=self.random_state,
            confidence=self.confidence,
            curves=self.curves,
            increasing=self.increasing,
            decreasing=self.decreasing,
        )
        self._named = {"client": _name(clients), "unit": _name(units)}
        X, clients = column_taken(X, clients, "client")
        X, units = column_taken(X, units, "unit")
        X, y = validate_data(
            self, X, y, accept_sparse=True, dtype=np.float64, ensure_min_samples=2, y_numeric=False
        )
        X, owners = dense(X), client_labels(clients, len(y))
        labels = None if units is None else row_labels(units, len(y), "unit")
        if _cross_validates(choices, len(np.unique(owners))):
            kept = enough_to_choose(owners, labels)
            X, y, owners = X[kept], y[kept], owners[kept]
            labels = None if labels is None else labels[kept]
        target = self._encode(y)
        columns = [*self._columns(), "target"]
        options = Options(self._loss_choice(), choices, self.support, shown=False)
        self._support = self.support
        if self.support is not None:
            # A row outside the declared support voids every statement: better said before training.
            require_inside(self.support, X, target, owners, columns, options.loss.classes is None)
        network = LocalNetwork.of(X, target, owners, columns, units=labels)
        self._has_units = labels is not None
        del owners, labels  # as long as the table, and of no more use
        self._places = network.places
        self._seen = X.min(axis=0), X.max(axis=0)
        self._keep(fit(network, options))
        return self

    def _keep(self, fitted: Fitted) -> None:
        trained = fitted.trained
        names = trained.problem.federation.names
        assert trained.problem.eps is not None
        assert trained.solution is not None
        self.client_weights_ = dict(zip(names, trained.alpha.tolist(), strict=True))
        self.client_risks_ = dict(zip(names, trained.solution.risks.tolist(), strict=True))
        self.radii_ = dict(zip(names, np.asarray(trained.problem.eps).tolist(), strict=True))
        self.duality_gap_ = trained.solution.gap
        self.n_rounds_ = trained.rounds
        self.n_iter_ = trained.rounds
        self.calibration_ = trained.calibration
        self.standard_ = fitted.standard
        self.model_ = trained.x
        self.certificate_ = fitted.certificates[self.confidence]
        self._assessed = fitted.assessed
        self._fitted = fitted
        self._own_models = fitted.own_models
        features, model = self._columns(), self._predictor(trained.x)
        own = {name: self._predictor(x) for name, x in fitted.own_models.items()}
        self.curves_ = model.curves(features, *self._seen)
        self.own_curves_ = {name: one.curves(features, *self._seen) for name, one in own.items()}
        self.intercept_ = self._offset(model)
        self.own_intercept_ = {name: self._offset(one) for name, one in own.items()}
        self._trained_rows = TrainedRows.of(trained.problem.federation.by_client())

    def _predictor(self, x: Floats) -> Predictor:
        return Predictor(self._assessed.loss, x, self.standard_)

    def _shaped(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Any]:
        """(coef_, intercept_) from those of every score."""
        raise NotImplementedError

    def _offset(self, model: Predictor) -> Any:
        """intercept_: the score where every feature is 0, with curves where every feature is average."""
        k = len(self.standard_.mean)
        parts = model.coefficients if model.straight else (np.zeros((len(model.base), k)), model.base)
        return self._shaped(*parts)[1]

    @property
    def coef_(self) -> Floats:
        """On the original scale, of a model of straight lines."""
        return self._coefficients(self.model_)

    @property
    def own_coef_(self) -> dict[str, Floats]:
        """By client, of those with a model of their own, of straight lines."""
        return {name: self._coefficients(x) for name, x in self._own_models.items()}

    def _coefficients(self, x: Floats) -> Floats:
        model = self._predictor(x)
        if not model.straight:
            raise AttributeError(
                "This model has curves, and so no coefficients: `curves_` has the knots, values and slopes "
                "of every feature."
            )
        return self._shaped(*model.coefficients)[0]

    def explain(self, X: Any, clients: ArrayLike | str | None = None) -> pd.DataFrame:
        """What every feature contributes to a prediction.

        Args:
            X: rows (N, k).
            clients: as in `predict`.

        Returns:
            A column `base`, the prediction for a row that is average in everything, and a column a feature;
            they add up to the prediction (for classes to the score of `decision_function`, with columns by
            class where there are more than two).
        """
        check_is_fitted(self)
        index = getattr(X, "index", None)
        X, clients, _ = self._taken(X, clients)
        X = self._checked(X)
        names = self._columns()
        classes = [str(name) for name in getattr(self, "classes_", ())] or None
        found = self._predictor(self.model_).explained(X, names, classes)
        for name, own in self._rows_of_own(X, clients):
            parts = self._predictor(self._own_models[name]).explained(X[own], names, classes)
            found.loc[own] = parts.to_numpy()
        return found if index is None else found.set_axis(index)

    def certify(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        confidence: float = 0.95,
        shift: float | None = None,
        bound: Bound = "betting",
        units: ArrayLike | str | None = None,
        rows_per_unit: int | None = None,
    ) -> Certificate:
        """What rows that were not used in `fit` say of this model, under any mixture of the clients.

        Rows must be independent draws, in any order. The interval is part of it where the training rows are
        still at hand. Warns of rows that may have been used in `fit`: see `guarantees.trained_rows`.

        Args:
            X: rows (N, k).
            y: their targets (N,).
            clients: whose row each is (N,); every client of training needs one.
            confidence: of each statement by itself.
            shift: room for so much shift inside every client, in pooled standard deviations.
            bound: of means: "betting" or "bernstein".
            units: of which person or thing each row is (N,): a unit is then one draw with the mean loss of
                its rows. A model fitted with units needs them, and of none may rows have been used in `fit`.
            rows_per_unit: the largest number of rows that a unit can have, known beforehand: means over rows
                are then bounded, too.

        Returns:
            The certificate.

        Raises:
            BidroError: for a row outside the declared support, and for rows that were used in `fit`.
        """
        check_is_fitted(self)
        check_confidence(confidence)
        check_shift(shift)
        X, clients, units = self._taken(X, clients, units)
        if self._has_units and units is None:
            raise BidroError(
                "This model was fitted with units, and several rows of one are not independent draws; give "
                "the unit of every row as `units`."
            )
        owners = client_labels(clients, len(y))
        labels = None if units is None else row_labels(units, len(y), "unit")
        fresh = self._holdout_rows(X, y, owners)
        self._trained_rows.require_new(fresh)
        parts = None if labels is None else {name: labels[owners == name] for name in fresh}
        bare = self.certificate_
        if confidence != bare.confidence and self._fitted is not None:
            bare = without_holdout(
                self._fitted.stated, self.model_, confidence, distances=self._fitted.distances
            )
            bare = replace(bare, weights=tuple(self.client_weights_.values()))
        own = self._own_models or None
        return with_holdout(bare, self._assessed, fresh, confidence, shift, bound, parts, own, rows_per_unit)

    def _holdout_rows(self, X: Any, y: Any, clients: ArrayLike | None) -> dict[str, Floats]:
        """Each client's rows (N_i, k + 1) in the units of training, in the order of the clients."""
        X, y = validate_data(self, X, y, accept_sparse=True, dtype=np.float64, reset=False, y_numeric=False)
        X, target, owners = dense(X), self._codes(y), client_labels(clients, len(y))
        names = self.certificate_.names
        unknown = sorted(set(owners) - set(names))
        missing = sorted(set(names) - set(owners))
        if unknown:
            raise BidroError(f"Client '{unknown[0]}' was not in training; certify rows of the same clients.")
        if missing:
            raise BidroError(
                f"There are no rows of client '{missing[0]}' to certify with; every client needs one."
            )
        if self._support is not None:
            columns = [*self._columns(), "target"]
            require_inside(self._support, X, target, owners, columns, self._assessed.loss.labels is None)
        rows = self.standard_.rows(X, target)
        return {name: rows[owners == name] for name in names}

    def worst_case(self, client: str) -> WorstCase:
        """The worst distribution in a client's ball, on the original scale.

        Args:
            client: its name.

        Returns:
            Atoms in the order of the rows given to `fit`, which `origins` name.

        Raises:
            BidroError: for an unpickled estimator: training rows do not travel with it.
        """
        check_is_fitted(self)
        if self._fitted is None:
            raise BidroError(
                "This estimator was unpickled, and training rows do not travel with it; fit it again to see "
                "worst cases."
            )
        found = worst_case_distribution(self._fitted.trained.problem, self.model_, str(client))
        # Rows are solved in an order of their own; atoms come in that of the rows given, and name them.
        federation = self._fitted.trained.problem.federation
        ends, i = np.cumsum(federation.sizes), federation.names.index(str(client))
        places = self._places[ends[i] - federation.sizes[i] : ends[i]]
        origins = np.argsort(np.argsort(places))[found.origins]
        order = np.argsort(origins, kind="stable")
        points = found.points[order]
        points[:, :-1] = points[:, :-1] * self.standard_.spread + self.standard_.mean
        points[:, -1] += self.standard_.middle
        return replace(found, points=points, masses=found.masses[order], origins=origins[order])

    def __getstate__(self) -> Any:
        """Rows of the clients stay here: a pickle holds the model and what is stated of it."""
        state = super().__getstate__()
        own = dict.fromkeys(("_fitted", "_places"))
        return {**state, **own} if "_fitted" in state else state

    def _columns(self) -> Sequence[str]:
        names: NDArray[np.str_] | None = getattr(self, "feature_names_in_", None)
        if names is None:
            return [f"x{j}" for j in range(self.n_features_in_)]
        return [str(name) for name in names]

    def _scores(self, X: Any, clients: ArrayLike | str | None = None) -> Floats:
        """(N, outputs) for rows seen after `fit`, with the client's own model where it has one."""
        check_is_fitted(self)
        X, clients, _ = self._taken(X, clients)
        X = self._checked(X)
        scores = self._predictor(self.model_).scores(X)
        for name, own in self._rows_of_own(X, clients):
            scores[own] = self._predictor(self._own_models[name]).scores(X[own])
        return scores

    def _checked(self, X: Any) -> Floats:
        """Rows (N, k) seen after `fit`."""
        return dense(validate_data(self, X, accept_sparse=True, dtype=np.float64, reset=False))

    def _taken(self, X: Any, clients: Any, units: Any = None) -> tuple[Any, Any, Any]:
        """(rows, clients, units) where X may be a frame with columns that say whose rows they are: those that
        `fit` took, wherever they are, and those that are named now."""
        given = {"client": clients, "unit": units}
        for what, name in getattr(self, "_named", {}).items():
            if given[what] is None and name is not None and name in list(getattr(X, "columns", ())):
                given[what] = name
        for what, value in given.items():
            X, given[what] = column_taken(X, value, what)
        return X, given["client"], given["unit"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows_of_own(self, X: Floats, clients: ArrayLike | None) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """The clients with a model of their own, and which rows are theirs."""
        if clients is None:
            return
        owners = client_labels(clients, len(X))
        if not set(owners.tolist()) & set(self.client_weights_):
            warnings.warn(
                f"None of these clients was in training (such as '{owners[0]}'): every row gets the shared "
                "model.",
                stacklevel=4,
            )
        for name in set(owners.tolist()) & set(self._own_models):
            yield name, owners == name


def _name(given: Any) -> str | None:
    return given if isinstance(given, str) else None


def _cross_validates(choices: Choices, clients: int) -> bool:
    """Whether something is chosen by rows left out."""
    found = grid(choices, clients)
    several = len(found.scales) * len(found.weighings) > 1
    return several or choices.criterion == "regret" or choices.own is not None
