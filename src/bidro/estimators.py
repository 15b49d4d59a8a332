"""scikit-learn estimators on the exact solver: linear models, or curves, robust to any mix of the clients.

`RobustEstimator` has what both share: from arrays to `fit`, and the methods of a fitted estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import Bound, check_shift
from bidro.certify.intervals import Fits, HeldOutFits, Intervals, class_sets, interval_ends
from bidro.certify.statements import with_holdout, without_holdout
from bidro.certify.trained_rows import TrainedRows
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence
from bidro.data.given_rows import (
    classes_and_codes,
    client_labels,
    coded,
    column_taken,
    dense,
    enough_to_choose,
    learned_columns,
    refuse,
    row_labels,
)
from bidro.data.standardise import require_inside, signs
from bidro.fit.fit import fit
from bidro.fit.fitted import Fitted, Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings, settings_of
from bidro.fit.training import cross_validates
from bidro.model.predictor import Curve, Predictor
from bidro.model.summary import Summary, summary_of
from bidro.problem.worst_case import WorstCase, worst_case_distribution
from bidro.selection.segments import with_a_line


@dataclass(eq=False, repr=False, kw_only=True)
class RobustEstimator(BaseEstimator):  # type: ignore[misc]
    """See `RobustRegressor` and `RobustClassifier`, which declare the parameters."""

    radius: Any = FitSettings.radius
    weights: Any = FitSettings.weights
    max_cost: float = FitSettings.max_cost
    criterion: str = FitSettings.criterion
    personal: str | None = FitSettings.personal
    metric: str = FitSettings.metric
    label_cost: float = FitSettings.label_cost
    p: float | None = FitSettings.p
    support: Any = FitSettings.support
    fit_intercept: bool = FitSettings.fit_intercept
    gap: float = FitSettings.gap
    folds: int | None = FitSettings.folds
    confidence: float = FitSettings.confidence
    random_state: int = FitSettings.seed
    curves: Any = FitSettings.curves
    pairs: Any = FitSettings.pairs
    increasing: Sequence[str] = FitSettings.increasing
    decreasing: Sequence[str] = FitSettings.decreasing
    # Where scikit-learn routes `clients` at all, scores are of the models that clients use.
    __metadata_request__score = {"clients": True}  # noqa: RUF012 - as scikit-learn reads it

    def _settings(self) -> FitSettings:
        """Raises BidroError for a parameter that stands for nothing."""
        named = {field.name: known.parameter or field.name for field, known in settings_of(FitSettings)}
        return FitSettings(
            **{name: getattr(self, mine) for name, mine in named.items() if hasattr(self, mine)}
        )

    def _encode(self, y: Any) -> Floats:
        """The target as numbers (N,); sets what the loss and predictions need."""
        raise NotImplementedError

    def _classes(self) -> int | None:
        """How many classes `_encode` has seen; None for a number."""
        classes = getattr(self, "classes_", None)
        return None if classes is None else len(classes)

    def _codes(self, y: Any) -> Floats:
        """A target seen after `fit` as numbers (N,)."""
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        people: ArrayLike | str | None = None,
        **refused: Any,
    ) -> Self:
        """Train on the rows of all clients.

        There is no `sample_weight`: every statement counts a row as one draw from its client.

        A client of one row is left out where something is cross-validated, with a warning: it gets the shared
        model.

        Args:
            X: rows (N, k) of numbers, or a frame of pandas or polars, whose columns of text or categories
                become columns of 0 and 1, one for every level but the first, as in `bidro fit`. Sparse rows
                are made dense, where there is room for that.
            y: their targets (N,).
            clients: whose row each is (N,), or the name of the column of a frame X that says it, which is
                then no feature, now and in `predict`; without it all rows are one client's.
            people: which person (or thing) each row is of (N,), or the name of its column, where rows of one
                are to stay in one fold.
            refused: nothing else is taken.

        Returns:
            The estimator itself.

        Raises:
            ValueError: for rows that cannot be used, each time with a sentence that says which.
        """
        refuse(refused)
        settings = self._settings()
        self._named = {"client": _name(clients), "person": _name(people)}
        X, clients = column_taken(X, clients, "client")
        X, people = column_taken(X, people, "person")
        self._schema = learned_columns(X, client_labels(clients, len(y)))
        X = coded(X, self._schema)
        X, y = validate_data(
            self, X, y, accept_sparse=True, dtype=np.float64, ensure_min_samples=2, y_numeric=False
        )
        X, owners = self._with_logarithm(dense(X)), client_labels(clients, len(y))
        labels = None if people is None else row_labels(people, len(y), "person")
        if cross_validates(settings, len(np.unique(owners)), can_be_personal=True):
            kept = enough_to_choose(owners, labels)
            X, y, owners = X[kept], y[kept], owners[kept]
            labels = None if labels is None else labels[kept]
        target = self._encode(y)
        columns = [*self._columns(), "target"]
        loss = settings.loss_choice(self._classes())
        settings = replace(settings, curves=with_a_line(settings.curves, settings.exposure, columns[:-1]))
        options = Options(loss, settings, self.support, shown=False)
        self._support = self.support
        if self.support is not None:
            # A row outside the declared support voids every statement: better said before training.
            require_inside(self.support, X, target, owners, columns, loss.classes is None)
        network = LocalNetwork.of(X, target, owners, columns, people=labels)
        self._has_people = labels is not None
        del owners, labels  # as long as the table, and of no more use
        self._places = network.places
        self._seen = X.min(axis=0), X.max(axis=0)
        self._keep(fit(network, options))
        return self

    def _keep(self, fitted: Fitted) -> None:
        trained = fitted.trained
        names = trained.problem.federation.names
        assert trained.solution is not None
        self.client_weights_ = dict(zip(names, trained.alpha.tolist(), strict=True))
        self.client_risks_ = dict(zip(names, trained.solution.risks.tolist(), strict=True))
        self.radii_ = dict(zip(names, trained.problem.eps.tolist(), strict=True))
        self.duality_gap_ = trained.solution.gap
        self.n_rounds_ = trained.rounds
        self.n_iter_ = trained.rounds
        self.calibration_ = trained.calibration
        self.standard_ = fitted.standard
        self.model_ = trained.x
        self.certificate_ = fitted.certificates[self.confidence]
        self._assessed = fitted.assessed
        self._fitted = fitted
        self._personal_models = fitted.personal_models
        features, model = self._columns(), self._predictor(trained.x)
        personal = {name: self._predictor(x) for name, x in fitted.personal_models.items()}
        self.curves_ = model.curves(features, *self._seen)
        self.__dict__.pop("personal_curves_", None)
        self.pairs_ = model.pairs(features)
        self.coef_, self.intercept_ = self._shaped(*model.lines)
        shaped = {name: self._shaped(*one.lines) for name, one in personal.items()}
        self.personal_coef_ = {name: slopes for name, (slopes, _) in shaped.items()}
        self.personal_intercept_ = {name: offset for name, (_, offset) in shaped.items()}
        self._trained_rows = TrainedRows.of(trained.problem.federation.by_client())
        self.intervals_: Intervals | None = None
        self._spread, self._steepness = fitted.spread(), fitted.steepness

    @cached_property
    def personal_curves_(self) -> dict[str, dict[str, Curve]]:
        """By client: drawn once they are asked for."""
        features, models = self._columns(), self._fitted.personal_models
        return {name: self._predictor(x).curves(features, *self._seen) for name, x in models.items()}

    def _predictor(self, x: Floats) -> Predictor:
        return Predictor(self._assessed.loss, x, self.standard_)

    def _shaped(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Any]:
        """(coef_, intercept_) from those of every score."""
        raise NotImplementedError

    def get_feature_names_out(self) -> NDArray[np.object_]:
        """The columns that coefficients are of: those of X, of text and categories one a level.

        Returns:
            Names (k,).
        """
        check_is_fitted(self)
        return np.asarray(self._columns(), object)

    def explain(self, X: Any, clients: ArrayLike | str | None = None) -> pd.DataFrame:
        """What every feature contributes to a prediction.

        Args:
            X: rows (N, k).
            clients: as in `predict`.

        Returns:
            A column `base`, the prediction for a row that is average in everything, a column a feature, and
            one a pair such as "age*sex"; they add up to the prediction (for classes to the score of
            `decision_function`, with columns by class where there are more than two).
        """
        check_is_fitted(self)
        index = getattr(X, "index", None)
        X, clients, _ = self._taken(X, clients)
        X = self._checked(X)
        names = self._columns()
        classes = [str(name) for name in getattr(self, "classes_", ())] or None
        found = self._predictor(self.model_).explained(X, names, classes)
        for name, own in self._rows_of_personal(X, clients):
            parts = self._predictor(self._personal_models[name]).explained(X[own], names, classes)
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
        people: ArrayLike | str | None = None,
        rows_per_person: int | None = None,
    ) -> Certificate:
        """What rows that were not used in `fit` say of this model, under any mixture of the clients.

        Rows must be independent draws, in any order. The interval is part of it where the training rows are
        still at hand. Warns of rows that may have been used in `fit`: see `certify.trained_rows`.

        Args:
            X: rows (N, k).
            y: their targets (N,).
            clients: whose row each is (N,); every client of training needs one.
            confidence: of each statement by itself.
            shift: room for so much shift inside every client, in pooled standard deviations.
            bound: of means: "betting" or "bernstein".
            people: of which person (or thing) each row is (N,): a person is then one draw with the mean loss
                of its rows. A model fitted with `people` needs them, and of none may rows have been used in
                `fit`.
            rows_per_person: the largest number of rows that a person can have, known beforehand: means over
                rows are then bounded, too.

        Returns:
            The certificate.

        Raises:
            BidroError: for a row outside the declared support, and for rows that were used in `fit`.
        """
        check_is_fitted(self)
        check_confidence(confidence)
        check_shift(shift)
        X, clients, people = self._taken(X, clients, people)
        if self._has_people and people is None:
            raise BidroError(
                "This model was fitted with `people`, and several rows of one person are not independent "
                "draws; give the person of every row."
            )
        owners = client_labels(clients, len(y))
        labels = None if people is None else row_labels(people, len(y), "person")
        fresh = self._holdout_rows(X, y, owners)
        self._trained_rows.require_new(fresh)
        parts = None if labels is None else {name: labels[owners == name] for name in fresh}
        bare = self.certificate_
        if confidence != bare.confidence and self._fitted is not None:
            bare = without_holdout(
                self._fitted.stated, self.model_, confidence, distances=self._fitted.distances
            )
            bare = replace(bare, weights=tuple(self.client_weights_.values()))
        personal = self._personal_models or None
        return with_holdout(
            bare, self._assessed, fresh, confidence, shift, bound, parts, personal, rows_per_person
        )

    def summary(self, confidence: float = 0.95) -> Summary:
        """The coefficients with standard errors, intervals and p-values, and how much clients differ.

        Args:
            confidence: of every interval by itself.

        Returns:
            Tables, which print as one; where there is no interval, a note says why.

        Raises:
            BidroError: for an unpickled estimator: training rows do not travel with it.
        """
        check_is_fitted(self)
        if self._fitted is None:
            raise BidroError(
                "This estimator was unpickled, and training rows do not travel with it; fit it again for "
                "standard errors."
            )
        classes = getattr(self, "classes_", None)
        words = None if classes is None else [str(name) for name in classes]
        return summary_of(self._fitted, self._columns(), confidence, words)

    def conformalize(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        people: ArrayLike | str | None = None,
    ) -> Self:
        """Make intervals for rows, from rows that were not used in `fit`: see `predict_interval`.

        Args:
            X: rows (N, k).
            y: their targets (N,).
            clients: whose row each is (N,). Rows of clients that were not in training make the interval for
                clients that are new.
            people: of which person (or thing) each row is (N,), where several are of one: a person is then
                one draw, and a random row of a new one what is promised.

        Returns:
            The estimator itself, with `intervals_`.

        Raises:
            BidroError: for rows that were used in `fit`, and a loss without intervals.
        """
        check_is_fitted(self)
        X, clients, people = self._taken(X, clients, people)
        if self._has_people and people is None:
            raise BidroError("This model was fitted with `people`; give the person of every row.")
        owners = client_labels(clients, len(y))
        labels = None if people is None else row_labels(people, len(y), "person")
        X, y = validate_data(self, X, y, accept_sparse=True, dtype=np.float64, reset=False, y_numeric=False)
        rows = self.standard_.rows(self._with_logarithm(dense(X)), self._codes(y))
        parts = {str(name): rows[owners == name] for name in np.unique(owners)}
        self._trained_rows.require_new({n: own for n, own in parts.items() if n in self.client_weights_})
        known = {name: own for name, own in parts.items() if name in self.client_weights_}
        if not known:
            raise BidroError("None of these clients was in training; give rows of some that were.")
        loss, shared = self._assessed.loss, self.model_
        used = {name: self._personal_models.get(name, shared) for name in known}
        new = {name: own for name, own in parts.items() if name not in known}
        fits = HeldOutFits(
            Fits.of(loss, known, used),
            Fits.of(loss, known, dict.fromkeys(known, shared)),
            spread=self._spread,
            new=Fits.of(loss, new, dict.fromkeys(new, shared)) if new else None,
            people=None if labels is None else {name: labels[owners == name] for name in known},
        )
        self.intervals_ = Intervals.of(fits, *self._steepness)
        return self

    def _interval(
        self, X: Any, clients: ArrayLike | str | None, confidence: float, shift: float | None
    ) -> tuple[Floats, Floats]:
        """(the scores (N, outputs) that intervals are around, the largest (N,) that fits)."""
        check_is_fitted(self)
        intervals = self.intervals_
        if intervals is None:
            raise BidroError("Intervals need rows that were not used in `fit`; call `conformalize` first.")
        X, clients, _ = self._taken(X, clients)
        X = self._checked(X)
        owners = None if clients is None else client_labels(clients, len(X))
        rows = self.standard_.rows(X, np.zeros(len(X)))[:, :-1]
        half = intervals.half_widths(rows, owners, confidence, shift)
        scores = self._predictor(self.model_).scores(X)
        for name, own in self._rows_of_personal(X, clients):
            if name in intervals.quantiles[0].clients:
                scores[own] = self._predictor(self._personal_models[name]).scores(X[own])
        return scores, half

    def _holdout_rows(self, X: Any, y: Any, clients: ArrayLike | None) -> dict[str, Floats]:
        """Each client's rows (N_i, k + 1) in the units of training, in the order of the clients."""
        X, y = validate_data(self, X, y, accept_sparse=True, dtype=np.float64, reset=False, y_numeric=False)
        X, target, owners = self._with_logarithm(dense(X)), self._codes(y), client_labels(clients, len(y))
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
        """(N, outputs) for rows seen after `fit`, with the client's personal model where it has one."""
        check_is_fitted(self)
        X, clients, _ = self._taken(X, clients)
        X = self._checked(X)
        scores = self._predictor(self.model_).scores(X)
        for name, own in self._rows_of_personal(X, clients):
            scores[own] = self._predictor(self._personal_models[name]).scores(X[own])
        return scores

    def _checked(self, X: Any) -> Floats:
        """Rows (N, k) seen after `fit`."""
        return self._with_logarithm(
            dense(validate_data(self, X, accept_sparse=True, dtype=np.float64, reset=False))
        )

    def _with_logarithm(self, X: Floats) -> Floats:
        """Rows (N, k) with the logarithm of the exposure in its place, where there is one."""
        name = getattr(self, "exposure", None)
        if name is None:
            return X
        columns = list(self._columns())
        if name not in columns:
            raise BidroError(f"exposure='{name}' is no feature; there are {', '.join(columns)}.")
        exposed = X[:, columns.index(name)]
        if not np.all(exposed > 0):
            row = int(np.argmin(exposed > 0))
            raise BidroError(
                f"Row {row}: the exposure '{name}' is {exposed[row]:g}, and must be above 0: in no time "
                "nothing is counted."
            )
        found = X.copy()
        found[:, columns.index(name)] = np.log(exposed)
        return found

    def _taken(self, X: Any, clients: Any, people: Any = None) -> tuple[Any, Any, Any]:
        """(rows, clients, people) where X may be a frame with columns that say whose rows they are: those
        that `fit` took, wherever they are, and those that are named now."""
        given = {"client": clients, "person": people}
        for what, name in getattr(self, "_named", {}).items():
            if given[what] is None and name is not None and name in list(getattr(X, "columns", ())):
                given[what] = name
        for what, value in given.items():
            X, given[what] = column_taken(X, value, what)
        # Estimators that were pickled before there were columns of text have no schema.
        return coded(X, getattr(self, "_schema", None)), given["client"], given["person"]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows_of_personal(
        self, X: Floats, clients: ArrayLike | None
    ) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """The clients with a personal model, and which rows are theirs."""
        if clients is None:
            return
        owners = client_labels(clients, len(X))
        if not set(owners.tolist()) & set(self.client_weights_):
            warnings.warn(
                f"None of these clients was in training (such as '{owners[0]}'): every row gets the shared "
                "model.",
                stacklevel=4,
            )
        for name in set(owners.tolist()) & set(self._personal_models):
            yield name, owners == name


def _name(given: Any) -> str | None:
    return given if isinstance(given, str) else None


@dataclass(eq=False, repr=False)
class RobustRegressor(RegressorMixin, RobustEstimator):  # type: ignore[misc]
    """A linear model, or curves, of a number: the best under the worst admissible mixture of the clients.

    Solves min over (w, b) of the worst mixture of the clients' worst mean losses over Wasserstein balls, to a
    certified duality gap, and chooses how much of that is worth its cost by cross-validation.

    Args:
        loss: "squared", "absolute", "huber" or "pinball"; "poisson" for counts, "gamma" or "tweedie" for
            costs, whose means are exponentials of scores.
        radius: how far each client's distribution may shift: a number (0: no shift), one a client (names in
            alphabetical order), a mapping by client, "cross-validate", "bootstrap" or "explicit" (needs
            `support` and metric="joint"); in pooled standard deviations of the features.
        weights: the mixtures to guard against: "auto" (by cross-validation, within `max_cost`), "simplex"
            (any), "fixed" (by rows: pooled training), or a number kappa of at least 1 (no client counts for
            more than kappa times its share).
        max_cost: of weights="auto", by which share the mean loss may rise over pooled training for a better
            worst case; inf for whatever it costs.
        criterion: "risk", or "regret": what the worst mixture loses beyond what each client could attain by
            itself.
        personal: "auto", each client that gains by it has a personal model around the shared one, "offset",
            of its intercept alone, or None.
        metric: "features" (targets do not move) or "joint", where moving the target by one of its standard
            deviations costs label_cost.
        label_cost: of metric="joint".
        p: order of the cost; None for 2 with squared loss and 1 otherwise.
        support: declared (lower, upper) bounds of every feature and of the target, needed for the Wasserstein
            certificate.
        threshold: Huber's, in standard deviations of the target.
        quantile: the pinball loss's.
        power: of the Tweedie loss, from 1 to 2.
        exposure: of poisson, gamma and tweedie, the name of the feature that says how long, or how much, a
            row was exposed (of an array "x0", "x1", ...): what is predicted is in proportion to it.
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
        pairs: "auto", pairs of features whose effects depend on each other, as many as cross-validation
            chooses (0 is among them); None; a number of pairs; or the pairs, such as [("age", "sex")].
            Features that are increasing or decreasing are in none.
        increasing: features whose lines or curves must rise.
        decreasing: features whose lines or curves must fall.

    Attributes:
        coef_: (k,) on the original scale, whatever was chosen: of a feature that is a straight line its
            slope, NaN of one with a curve or a pair (see `curves_` and `pairs_`), or by whose levels another
            has curves.
        intercept_: the prediction where every feature is 0; with curves, for a row that is average.
        curves_: by feature its knots, values and slopes.
        pairs_: by pair, such as "age*sex", its knots and values; clients' personal models have the same.
        personal_coef_: by client, of those with a personal model; so are `personal_curves_` and
        `personal_intercept_`. client_weights_: the worst-case mixture, by client.
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

    loss: str = "squared"
    _: KW_ONLY
    threshold: float = FitSettings.threshold
    quantile: float = FitSettings.quantile
    power: float = FitSettings.power
    exposure: str | None = FitSettings.exposure

    def predict(self, X: ArrayLike, clients: ArrayLike | str | None = None) -> Floats:
        """Predictions for rows, by the shared model, or by the client's own where it has one.

        Args:
            X: rows (N, k).
            clients: whose row each is (N,), or the name of the column of a frame X that says it (the one that
                `fit` took is found by itself); without it all rows get the shared model.

        Returns:
            Predictions (N,), in the target's unit.
        """
        return self._assessed.loss.predicted(self._scores(X, clients)[:, 0])

    def predict_interval(
        self,
        X: ArrayLike,
        clients: ArrayLike | str | None = None,
        confidence: float = 0.9,
        shift: float | None = None,
    ) -> tuple[Floats, Floats]:
        """Where the targets of rows lie, after `conformalize`: on average over the rows given to that, a
        share `confidence` of new rows is inside. `intervals_.promise(confidence)` says it in full.

        Args:
            X: rows (N, k).
            clients: as in `predict`; without it intervals hold under any mixture of the clients.
            confidence: the share of rows: 0.5, 0.8, 0.9, 0.95 or 0.99.
            shift: room for rows that move by so many pooled standard deviations in the mean.

        Returns:
            Lower and upper ends (N,), infinite where there are too few rows.

        Raises:
            BidroError: before `conformalize`, and for a share that is not kept.
        """
        scores, half = self._interval(X, clients, confidence, shift)
        return interval_ends(self._assessed.loss, scores, half)

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
                a grid search then scores clients' personal models.

        Returns:
            R squared.
        """
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _encode(self, y: Any) -> Floats:
        return np.asarray(column_or_1d(y, warn=True), float)

    _codes = _encode

    def _shaped(self, coefficients: Floats, intercepts: Floats) -> tuple[Floats, Any]:
        return coefficients[0], float(intercepts[0])


def _has_probabilities(estimator: RobustClassifier) -> bool:
    if estimator.loss != "logistic":
        raise AttributeError("Probabilities need loss='logistic'.")
    return True


@dataclass(eq=False, repr=False)
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
        coef_: (1, k) for two classes, (classes, k) for more, on the original scale; NaN for a feature with
            a curve.

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

    loss: str = "logistic"
    _: KW_ONLY
    width: float = FitSettings.width

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

    def predict_set(
        self, X: ArrayLike, clients: ArrayLike | str | None = None, confidence: float = 0.9
    ) -> NDArray[np.bool_]:
        """Which classes rows may be of, after `conformalize`: see `RobustRegressor.predict_interval`.

        Args:
            X: rows (N, k).
            clients: as in `decision_function`; without it sets hold under any mixture of the clients.
            confidence: the share of rows whose class is in the set: 0.5, 0.8, 0.9, 0.95 or 0.99.

        Returns:
            Whether each class (N, classes) is in it, in the order of `classes_`; the likeliest always is.

        Raises:
            BidroError: before `conformalize`, and for a share that is not kept.
        """
        return class_sets(*self._interval(X, clients, confidence, None))

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
                `set_score_request(clients=True)`, a grid search then scores clients' personal models.

        Returns:
            The accuracy.
        """
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))

    def _encode(self, y: Any) -> Floats:
        self.classes_, codes = classes_and_codes(y)
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
