"""Certify a model that was not trained here, from arrays: its predictions, or the model itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.estimators.given import client_labels, row_labels
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.scored import Range, certify_scored
from bidro.guarantees.trained_rows import TrainedRowsWarning
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.tables import as_words


def certify_predictions(
    y: ArrayLike,
    predicted: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    loss: str | None = None,
    quantile: float = 0.5,
    classes: Sequence[Any] | None = None,
    confidence: float = 0.95,
    largest: float | None = None,
    clip_from: tuple[ArrayLike, ArrayLike] | None = None,
    units: ArrayLike | None = None,
    against: ArrayLike | None = None,
    rows_per_unit: int | None = None,
) -> Certificate:
    """What rows that a model never saw say of it, under any mixture of their clients, from its predictions.

    Args:
        y: the true targets (N,), numbers or classes.
        predicted: numbers (N,); classes (N,); or with `classes` probabilities (N, classes).
        clients: whose row each is (N,); without it all are one client's.
        loss: "squared" (the default for numbers), "absolute" or "pinball" (with `quantile`); "mistakes" (the
            default for classes), "log loss" or "brier", the last two of probabilities.
        quantile: of pinball loss.
        classes: the class of each column of probabilities.
        confidence: of the bound.
        largest: the largest loss that is possible, known beforehand. Squared, absolute, pinball and log loss
            need it or `clip_from`.
        clip_from: (y, predicted) of other rows; losses then count as at most the largest of theirs.
        units: the person or thing that each row is of (N,): a unit is then one draw, with the mean loss of
            its rows.
        against: another model's predictions of the same rows, of the same kind: the certificate then bounds
            the difference of the two losses, too.
        rows_per_unit: the largest number of rows that a unit can have, known beforehand: means over rows are
            then bounded, too.

    Rows must be independent draws, in any order, that had no part in training or choosing the model: that
    cannot be told from predictions. Warns where some of `clip_from` may be among the rows to certify.

    Returns:
        The certificate, with held-out statements only.

    Raises:
        BidroError: for what cannot be used, and where `clip_from` are the rows to certify.

    Examples:
        >>> from bidro import certify_predictions
        >>> y, predicted, site = [0, 1] * 100, [0, 1] * 95 + [1, 0] * 5, ["north", "south"] * 100
        >>> stated = certify_predictions(y, predicted, site, loss="mistakes", confidence=0.9)
        >>> round(stated.mistakes.bound, 2), stated.mistakes.binding
        (0.09, 'north')
    """
    as_scored = _kind(y, predicted, loss, classes)
    scored = as_scored(y, predicted)
    chosen = PredictedLoss(loss or ("squared" if scored.classes is None else "mistakes"), quantile)
    known = Range.of(chosen, scored, largest, None if clip_from is None else as_scored(*_two(clip_from)))
    if known.note is not None:
        warnings.warn(known.note, TrainedRowsWarning, stacklevel=2)
    rows = len(scored.target)
    return certify_scored(
        scored,
        client_labels(clients, rows),
        chosen,
        known,
        confidence,
        None if units is None else row_labels(units, rows, "unit"),
        None if against is None else as_scored(y, against),
        rows_per_unit,
    )


def certify_model(
    model: Any,
    X: Any,
    y: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    loss: str | None = None,
    quantile: float = 0.5,
    confidence: float = 0.95,
    largest: float | None = None,
    clip_from: tuple[Any, ArrayLike] | None = None,
    units: ArrayLike | None = None,
    against: Any = None,
    rows_per_unit: int | None = None,
) -> Certificate:
    """`certify_predictions` of a model with `predict`, on rows that it never saw.

    Args:
        model: anything with `predict`, or for log loss and Brier score `predict_proba` and `classes_`.
        X: rows, as the model takes them.
        y: their targets (N,).
        clients: whose row each is (N,); without it all are one client's.
        loss: as in `certify_predictions`; by default "mistakes" for a model with `predict_proba`, else
            "squared".
        quantile: as in `certify_predictions`.
        confidence: of the bound.
        largest: as in `certify_predictions`.
        clip_from: (X, y) of other rows.
        units: as in `certify_predictions`.
        against: another such model.
        rows_per_unit: as in `certify_predictions`.

    Returns:
        The certificate, with held-out statements only.

    Raises:
        BidroError: as `certify_predictions`, and for a model without the method that the loss needs.

    Examples:
        >>> from sklearn.linear_model import LinearRegression
        >>> from bidro import certify_model, example_visits
        >>> train, fresh, columns = example_visits(), example_visits(seed=1), ["age", "bmi"]
        >>> model = LinearRegression().fit(train[columns], train["stay"])
        >>> stated = certify_model(model, fresh[columns], fresh["stay"], fresh["hospital"], largest=60**2)
        >>> stated.held_out.binding
        'harbour'
    """
    word = loss or ("mistakes" if hasattr(model, "predict_proba") else "squared")
    by_probability = PredictedLoss(word, quantile).of_probabilities
    classes = [*_part(model, "classes_")] if by_probability else None

    def predicted(by: Any, rows: Any) -> Any:
        if not by_probability:
            return _part(by, "predict")(rows)
        if [*_part(by, "classes_")] != classes:
            raise BidroError("The two models have other classes, or in another order; certify predictions.")
        return _part(by, "predict_proba")(rows)

    return certify_predictions(
        y,
        predicted(model, X),
        clients,
        loss=word,
        quantile=quantile,
        classes=classes,
        confidence=confidence,
        largest=largest,
        clip_from=None if clip_from is None else (_two(clip_from)[1], predicted(model, clip_from[0])),
        units=units,
        against=None if against is None else predicted(against, X),
        rows_per_unit=rows_per_unit,
    )


def _kind(
    y: ArrayLike, predicted: ArrayLike, loss: str | None, classes: Sequence[Any] | None
) -> Callable[[ArrayLike, ArrayLike], Scored]:
    """How targets and predictions of this kind become rows."""
    if classes is not None:
        names = _words(np.array([*classes])).tolist()
        return lambda y, predicted: Scored.probabilities(_words(y), _floats(predicted, 2), names)
    if np.ndim(predicted) == 2 and np.shape(predicted)[1] > 1:
        raise BidroError("Probabilities need `classes`, the class of each of their columns.")
    numbers = PredictedLoss(loss).of_numbers if loss is not None else _numeric(y) and _numeric(predicted)
    if numbers:
        return lambda y, predicted: Scored.numbers(_floats(y, 1), _floats(predicted, 1))
    return lambda y, predicted: Scored.labels(_words(y), _words(predicted))


def _numeric(given: Any) -> bool:
    """Whether these are numbers by their type, which nullable ones of pandas are, too."""
    kind = given.dtype if isinstance(given, pd.Series) else np.asarray(given).dtype
    return pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)


def _words(given: ArrayLike) -> NDArray[np.str_]:
    """(N,) classes as text, "" for a missing one; true and false are 1 and 0, as numbers are."""
    values = np.ravel(np.asarray(given))
    return as_words(pd.Series(values.astype(int) if values.dtype.kind == "b" else values))


def _floats(given: ArrayLike, dimensions: int) -> Floats:
    try:
        values = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"Targets and predictions of this loss must be numbers ({error}).") from error
    # A column of numbers is as good as a row of them.
    if dimensions == 1 and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != dimensions:
        raise BidroError(f"Targets and predictions must have one value a row; got shape {values.shape}.")
    return values


def _two(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, tuple) or len(given) != 2:
        raise BidroError("clip_from must be two: what predictions come from, and targets; see the docs.")
    return given


def _part(model: Any, name: str) -> Any:
    if not hasattr(model, name):
        raise BidroError(
            f"A {type(model).__name__} has no `{name}`, which this loss needs; use certify_predictions."
        )
    return getattr(model, name)
