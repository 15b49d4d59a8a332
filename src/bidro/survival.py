"""scikit-learn's face for times to an event: a classifier of periods, and the curves that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from bidro.certify.certificate import Certificate
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.given_rows import client_labels, column_taken, row_labels
from bidro.data.tables.survival import Grid, Observed
from bidro.estimators import RobustClassifier
from bidro.model.survival import concordance, curves_of, integrated_brier, medians, restricted_means


class _Laid(NamedTuple):
    """Rows of periods, as the classifier takes them."""

    X: pd.DataFrame
    y: NDArray[np.bool_]
    clients: NDArray[np.str_]
    people: NDArray[np.str_]


@dataclass(eq=False, repr=False)
class RobustSurvival(BaseEstimator):  # type: ignore[misc]
    """Chances to be without an event at the ends of periods, robust to any mix of the clients.

    People are laid out in periods, in each of which the event happens or does not, and `hazards` learns how
    likely that is, with a level for every period. A person is one draw in folds and statements, however many
    periods it has. A target is whether the event happened and until when that was watched, as in
    scikit-survival: a structured array with these two fields, or two columns; a third says from when on.

    Args:
        time_grid: the ends of the periods, such as (30, 90, 180, 365).
        hazards: the classifier with its parameters; `RobustClassifier()` by default.

    Attributes:
        hazards_: the classifier after `fit`, whose first features are the periods but the first: it has
            `coef_`, `certificate_`, `client_weights_` and all else.

    Raises:
        BidroError: from `fit`, for settings or rows that cannot be used.

    Examples:
        >>> import numpy as np
        >>> from bidro import RobustSurvival
        >>> rng = np.random.default_rng(0)
        >>> X, site = rng.normal(size=(300, 1)), np.repeat(["north", "south"], 150)
        >>> time, watched = rng.exponential(100 * np.exp(-X[:, 0])), rng.uniform(0, 300, 300)
        >>> y = np.column_stack([time <= watched, np.minimum(time, watched)])
        >>> model = RobustSurvival((30, 90, 180)).fit(X, y, clients=site)
        >>> model.predict_survival([[0.0]]).round(1).tolist()
        [[0.8, 0.4, 0.2]]
    """

    time_grid: Sequence[float] = ()
    hazards: RobustClassifier | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        people: ArrayLike | str | None = None,
    ) -> Self:
        """Train on the rows of all clients.

        Args:
            X: rows (N, k) of numbers, or a frame, as for `RobustClassifier`.
            y: (N,) with two fields, or (N, 2): whether the event happened, and until when that was watched; a
                third says since when.
            clients: whose row each is (N,), or the name of a column of a frame X.
            people: the person of every row (N,), or the name of its column; by default every row is one.

        Returns:
            The estimator itself.

        Raises:
            BidroError: for rows that cannot be used, each time with a sentence that says which.
        """
        grid = self._grid()
        self._named = {
            name: given for name, given in (("client", clients), ("person", people)) if isinstance(given, str)
        }
        laid = self._laid_out(X, y, clients, people)
        counts = np.bincount(grid.periods(observed_of(y)).period, minlength=len(grid.ends))
        if not counts.all():
            raise BidroError(
                f"Nobody is watched in the period {grid.names[int(np.argmin(counts > 0))]}; give a time_grid "
                "with ends that people reach."
            )
        hazards: Any = RobustClassifier() if self.hazards is None else clone(self.hazards)
        hazards.held_still = tuple(laid.X.columns[: len(grid.ends) - 1])
        self.hazards_ = hazards.fit(laid.X, laid.y, clients=laid.clients, people=laid.people)
        return self

    def predict(self, X: Any, clients: ArrayLike | str | None = None) -> Floats:
        """The risk of every row: the share of the time until the end of the grid that is expected to be lost.

        Args:
            X: rows (N, k).
            clients: whose row each is (N,), or the name of the column that says it.

        Returns:
            Risks (N,) from 0 to 1; of two rows the one with the higher is expected to have the event first.
        """
        return (
            1 - restricted_means(self.predict_survival(X, clients), self._grid().ends) / self._grid().ends[-1]
        )

    def predict_survival(self, X: Any, clients: ArrayLike | str | None = None) -> Floats:
        """The chance of every row to be without the event at the end of each period.

        Args:
            X: rows (N, k).
            clients: as in `predict`; without it all rows get the shared model.

        Returns:
            Chances (N, periods).
        """
        check_is_fitted(self)
        grid, (frame, owners, _) = self._grid(), self._taken(X, clients, None)
        J = len(grid.ends)
        rows = np.repeat(np.arange(len(frame)), J)
        laid = _with_periods(frame, rows, np.tile(np.arange(J), len(frame)), grid)
        own = None if owners is None else client_labels(owners, len(frame))[rows]
        return curves_of(self.hazards_.predict_proba(laid, clients=own)[:, 1].reshape(-1, J))

    def predict_median(self, X: Any, clients: ArrayLike | str | None = None) -> Floats:
        """When half have had the event.

        Args:
            X: rows (N, k).
            clients: as in `predict_survival`.

        Returns:
            Times (N,), by straight lines between the ends of the grid; NaN where that is after it.
        """
        return medians(self.predict_survival(X, clients), self._grid().ends)

    def score(
        self, X: Any, y: Any, sample_weight: None = None, clients: ArrayLike | str | None = None
    ) -> float:
        """Harrell's concordance: of pairs of which it is known who had the event first, the share in which
        that one has the higher risk.

        Args:
            X: rows (N, k).
            y: their targets, as in `fit`.
            sample_weight: not taken.
            clients: as in `predict`.

        Returns:
            A share, 0.5 by chance; NaN where there is no such pair.

        Raises:
            BidroError: for weights of rows.
        """
        if sample_weight is not None:
            raise BidroError("Concordance is of pairs of people, and has no sample_weight.")
        found = concordance(observed_of(y), self.predict(X, clients))
        return np.nan if found is None else found

    def brier_score(self, X: Any, y: Any, clients: ArrayLike | str | None = None) -> float:
        """The integrated Brier score, with weights for people who are censored.

        Args:
            X: rows (N, k).
            y: their targets, as in `fit`.
            clients: as in `predict`.

        Returns:
            A mean square, 0 at best; NaN where nobody outlives the first period, or people enter late.
        """
        found = integrated_brier(observed_of(y), self.predict_survival(X, clients), self._grid().ends)
        return np.nan if found is None else found

    def certify(
        self,
        X: Any,
        y: Any,
        clients: ArrayLike | str | None = None,
        confidence: float = 0.95,
        shift: float | None = None,
        people: ArrayLike | str | None = None,
    ) -> Certificate:
        """What rows that were not used in `fit` say of the losses of this model, under any mixture of the
        clients. Losses are of periods; a person is one draw, with the mean loss of its periods.

        Args:
            X: rows (N, k).
            y: their targets, as in `fit`.
            clients: whose row each is (N,).
            confidence: of each statement by itself.
            shift: room for so much shift inside every client, in pooled standard deviations.
            people: as in `fit`.

        Returns:
            The certificate.
        """
        check_is_fitted(self)
        laid = self._laid_out(X, y, clients, people)
        return self.hazards_.certify(laid.X, laid.y, laid.clients, confidence, shift, people=laid.people)

    def _grid(self) -> Grid:
        return Grid(tuple(float(end) for end in self.time_grid))

    def _taken(self, X: Any, clients: Any, people: Any) -> tuple[pd.DataFrame, Any, Any]:
        """(a frame of features, clients, people), where X may have columns that say whose rows they are."""
        given = {"client": clients, "person": people}
        for what, name in getattr(self, "_named", {}).items():
            if given[what] is None and name in list(getattr(X, "columns", ())):
                given[what] = name
        for what, value in given.items():
            X, given[what] = column_taken(X, value, what)
        if hasattr(X, "columns"):
            X = pd.DataFrame({str(name): np.asarray(X[name]) for name in X.columns})
        else:
            X = np.atleast_2d(np.asarray(X))
            X = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
        return X, given["client"], given["person"]

    def _laid_out(self, X: Any, y: Any, clients: Any, people: Any) -> _Laid:
        grid, seen = self._grid(), observed_of(y)
        X, clients, people = self._taken(X, clients, people)
        if len(X) != len(seen.time):
            raise BidroError(f"There are {len(X)} rows but {len(seen.time)} times; give one a row.")
        owners = client_labels(clients, len(X))
        if people is None:
            # A row is a person by what is in it, and by which copy of it it is, wherever it stands.
            content = X.assign(**{"its client": owners, **dict(zip(seen._fields, seen, strict=True))})
            hashed = pd.Series(pd.util.hash_pandas_object(content, index=False))
            people = hashed.astype(str) + "-" + hashed.groupby(hashed).cumcount().astype(str)
        labels = row_labels(people, len(X), "person")
        found = grid.periods(seen)
        laid = _with_periods(X, found.person, found.period, grid)
        return _Laid(laid, found.happened, owners[found.person], labels[found.person])


def observed_of(y: Any) -> Observed:
    """Times to an event as users give them: a structured array, or two or three columns. Raises BidroError
    for what is none."""
    fields = getattr(getattr(y, "dtype", None), "names", None)
    if fields is not None:
        columns = [np.asarray(y[name]) for name in fields]
    else:
        whole = np.asarray(y)
        columns = list(whole.T) if whole.ndim == 2 else []
    if len(columns) not in (2, 3):
        raise BidroError(
            "The target of RobustSurvival is whether the event happened, and until when that was watched: a "
            "structured array with two fields, or two columns, (event, time); a third says since when."
        )
    try:
        event, time, *since = (np.asarray(column, float) for column in columns)
    except (TypeError, ValueError) as error:
        raise BidroError(f"Events must be 0 or 1 and times numbers: {error}.") from error
    entry = since[0] if since else np.zeros(len(time))
    for words, wrong in (
        ("events must be 0 or 1, or true or false", ~np.isin(event, (0, 1))),
        ("times must be numbers of at least 0", ~(np.isfinite(time) & (time >= 0))),
        (
            "entries must be numbers from 0 to before the time",
            ~((entry >= 0) & ((entry < time) | (entry == 0))),
        ),
    ):
        if wrong.any():
            raise BidroError(f"Row {int(np.argmax(wrong))} of the target: {words}; is the event first?")
    return Observed(time, event == 1, entry)


def _with_periods(
    X: pd.DataFrame, rows: NDArray[np.int64], period: NDArray[np.int64], grid: Grid
) -> pd.DataFrame:
    """Rows of a frame behind columns of 0 and 1 for every period but the first."""
    levels = {f"period={name}": (period == j).astype(float) for j, name in enumerate(grid.names) if j}
    return pd.concat([pd.DataFrame(levels), X.iloc[rows].reset_index(drop=True)], axis=1)
