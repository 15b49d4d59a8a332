"""Certify a model that was not trained here: from arrays of its predictions, from the model itself, from
tables with its predictions and the true targets, or from an ONNX file, which is run on tables in a process
of its own.

Held-out statements need only losses. Losses without a largest value need one that was fixed without the rows
that are certified: a range that the user declares, or the largest loss on other rows, at which losses are
clipped. One that is read off the certified rows would void the statement, so that these are refused as the
other rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from bidro.certify.certificate import Certificate
from bidro.certify.held_out import paired
from bidro.certify.intervals import RowQuantiles, row_quantiles
from bidro.certify.rounding import EXACT, Rounding
from bidro.certify.row_promise import SHARE, row_promise
from bidro.certify.statements import (
    NO_INTERVAL,
    NOT_TRAINED_HERE,
    LossLimits,
    RowLosses,
    of_model_from_elsewhere,
    statements_of_rows,
)
from bidro.certify.trained_rows import TrainedRowsWarning, same_rows
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, check_confidence, is_number, listed
from bidro.core.sets import Simplex
from bidro.data.given_rows import by_client, client_labels, row_labels
from bidro.data.tables import Schema, as_meant, as_words, read, read_one, require_numbers, row_name
from bidro.data.tables.cells import numbers_or_none
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.model.onnx.run import OnnxModel, Predictions, Roles, by_name


@dataclass(frozen=True)
class Range:
    """What is known of a loss before the rows that are certified are seen."""

    declared: float | None = None  # no loss is larger; None where that is not known
    clip: float | None = None  # losses count as at most this; None where nothing is clipped
    origin: str = ""  # of both, in words
    note: str | None = None  # where the other rows may be among those that are certified

    @property
    def limits(self) -> LossLimits:
        return LossLimits(self.clip, self.declared)

    @classmethod
    def of(cls, loss: PredictedLoss, scored: Scored, largest: float | None, others: Scored | None) -> Range:
        """`largest` is declared by the user; `others` are other rows, whose largest loss is the clip level.

        Raises BidroError where the loss needs one of them and has none, has a range by itself and is given
        one, or where the other rows are those that are certified.
        """
        own = loss.largest(len(scored.classes or ()))
        if own is not None:
            if largest is not None or others is not None:
                raise BidroError(
                    f"The {loss.in_words} is at most {own:g} by itself; give neither a largest loss nor "
                    "other rows."
                )
            return cls(own, None, f"The {loss.in_words} is at most {own:g} by itself.")
        if largest is None and others is None:
            raise BidroError(
                f"The {loss.in_words} has no largest value of its own: declare one that you know beforehand "
                "(--largest, in Python largest=), or give other rows whose largest loss every loss counts as "
                "at most (--clip-from, clip_from=); one read off the rows to certify would void all."
            )
        if largest is not None and not (is_number(largest) and 0 < largest < math.inf):
            raise BidroError(f"The largest loss must be a finite number above 0; got {largest!r}.")
        said, clip, note = [], None, None
        if largest is not None:
            said.append(f"That no loss is above {largest:g} was declared by the user.")
        if others is not None:
            note = _refused_or_note(scored, others)
            # Any level that is fixed on other rows will do, also where the model is right on all of them.
            clip = float(loss.values(others).max()) or 1.0
            if not math.isfinite(clip):
                raise BidroError(
                    f"The largest {loss.in_words} on the other rows is infinite, for a true class of "
                    "probability 0; declare a largest loss instead."
                )
            said.append(
                f"Losses are clipped at {clip:.6g}, the largest on {len(others.target):,} other rows."
            )
        return cls(largest, clip, " ".join(said), note)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Held-out rows with a model's predictions, and what bounds their loss."""

    scored: Scored
    clients: NDArray[np.str_]  # (N,)
    loss: PredictedLoss
    known: Range
    people: NDArray[np.str_] | None = None  # (N,) the persons or things that rows are of
    against: Scored | None = None  # another model's predictions of the same rows, in the same order
    rows_per_person: int | None = None  # at most, declared
    columns: Columns | None = None  # of the table that they are from

    @classmethod
    def of(
        cls,
        scored: Scored,
        clients: NDArray[np.str_],
        loss: str | None,
        quantile: float,
        largest: float | None,
        others: Scored | None,
        **more: Any,
    ) -> ScoredRows:
        """With the default loss of a number or of classes where none is given; `largest` and `others` as in
        `Range.of`, `more` are other fields."""
        chosen = PredictedLoss(loss or ("squared" if scored.classes is None else "mistakes"), quantile)
        return cls(scored, clients, chosen, Range.of(chosen, scored, largest, others), **more)

    def certificate(self, confidence: float = 0.95, rounding: Rounding = EXACT) -> Certificate:
        """The held-out statements about the model, under any mixture of the clients; `rounding` as in
        `client_report`."""
        check_confidence(confidence)
        known, clients = self.known, self.clients
        labels = None if self.people is None else by_client(clients, self.people)
        losses, alone = by_client(clients, self.loss.values(self.scored)), self.loss.word == "mistakes"
        wrong = {} if self.scored.mistakes is None else by_client(clients, self.scored.mistakes)
        rows = {name: RowLosses(None if alone else own, wrong.get(name)) for name, own in losses.items()}
        mixtures, pair = Simplex(len(rows)), None
        found = statements_of_rows(
            rows, known.limits, confidence, mixtures, "betting", labels, self.rows_per_person, rounding
        )
        if self.against is not None:
            most = known.clip if known.clip is not None else known.declared
            assert most is not None
            others, clips = by_client(clients, self.loss.values(self.against)), known.clip is not None
            pair = paired(losses, others, most, confidence, clips, alone, labels, self.rows_per_person)
        absent = {
            "interval": NO_INTERVAL,
            "shift": "predictions alone do not show how the loss changes as rows move.",
            "held_out": "no range of the loss was declared, so rare large ones cannot be ruled out.",
            "clipped": "the range of the loss is known, and no other rows were given to clip it lower.",
        }
        origin = f"{NOT_TRAINED_HERE} {known.origin}"
        errors = wrong or by_client(clients, np.abs(self.scored.target - self.scored.predicted))
        of_rows = row_promise(errors, confidence, None if wrong else SHARE, people=labels)
        return of_model_from_elsewhere(
            confidence, [*losses], mixtures.in_words, found, absent, origin, pair, of_rows
        )

    def intervals(self, share: float) -> RowQuantiles:
        """How far rows lie from their prediction, or of probabilities -log p of the true class, at most for
        this share of new rows, on average over such rows as these: conformal quantiles, which need no range
        of a loss. Raises BidroError for classes without probabilities."""
        scored = self.scored
        if scored.classes is None:
            scores = np.abs(scored.target - scored.predicted)
        elif scored.predicted.ndim == 2:
            with np.errstate(divide="ignore"):
                scores = -np.log(scored.predicted[np.arange(len(scored.target)), scored.target.astype(int)])
        else:
            raise BidroError(
                "Sets of classes need a probability for every class, --probability CLASS=COLUMN; of a "
                "predicted class alone there are none."
            )
        people = None if self.people is None else by_client(self.clients, self.people)
        return row_quantiles(by_client(self.clients, scores), share, people=people)


def _refused_or_note(scored: Scored, others: Scored) -> str | None:
    """What to say of the rows that a clip level comes from; BidroError where they are those to certify."""
    if scored.content.shape[1] != others.content.shape[1]:
        raise BidroError("The other rows have predictions of another kind than the rows to certify.")
    found = same_rows(scored.content, others.content)
    # The same rows may come with another model's predictions.
    targets = same_rows(scored.target[:, None], others.target[:, None])
    if found.whole or found.sure or targets.sure:
        raise BidroError(
            "The other rows are, some or all, those to certify, and a clip level read off these would void "
            "the statement; give rows that are not certified."
        )
    if not found.odd:
        return None
    return (
        f"{found.equal:,} of the other rows have the target and prediction of a row to certify; if they are "
        "the same rows, and not alike by chance, the clip level voids the statement."
    )


@dataclass(frozen=True)
class Columns:
    """Where a table has what; raises BidroError unless predictions are in one way there."""

    client: str
    target: str
    prediction: str | None = None  # numbers, or classes
    probabilities: Mapping[str, str] | None = None  # by class
    person: str | None = None
    key: str | None = None  # names every row, where two tables are not in one order

    def __post_init__(self) -> None:
        if (self.prediction is None) == (not self.probabilities):
            raise BidroError(
                "Name the column of the predictions, --prediction COLUMN, or of classes those of the "
                "probabilities, --probability CLASS=COLUMN for each."
            )

    @property
    def schema(self) -> Schema:
        return Schema(self.client, self.target, None, (), self.person)


def read_scored(
    path: Path,
    columns: Columns,
    loss: str | None = None,
    quantile: float = 0.5,
    largest: float | None = None,
    clip_from: Path | None = None,
    against: Path | None = None,
) -> ScoredRows:
    """The predictions in a table; `clip_from` is a table of other rows, `against` one of another model's
    predictions of the same rows, both with the same columns. See `certify_predictions`.

    Raises BidroError for what cannot be used.
    """
    if loss is not None:
        PredictedLoss(loss, quantile)
    table = read_one(path)
    for what, other in (("other rows", clip_from), ("the other model's predictions", against)):
        if other is not None and other.exists() and other.samefile(path):
            raise BidroError(f"'{other}' is the table to certify itself; give a table of {what}.")
    schema = columns.schema
    clients, people = schema.clients(table), schema.people(table)
    numeric = _numeric_target(table, columns, loss, path)
    scored = _scored(table, columns, numeric, path)
    others = None if clip_from is None else _scored(read_one(clip_from), columns, numeric, clip_from)
    found = ScoredRows.of(scored, clients, loss, quantile, largest, others, people=people, columns=columns)
    if against is None:
        return found
    second = read_one(against)
    second = second.iloc[_places(table, second, columns, path, against)].reset_index(drop=True)
    pair = _scored(second, columns, numeric, against)
    _require_the_same(table, clients, scored, schema.clients(second), pair, columns, against)
    return replace(found, against=pair)


def _numeric_target(table: pd.DataFrame, columns: Columns, loss: str | None, path: Path) -> bool:
    """Whether the target is a number; the loss says so, or else the target."""
    if columns.probabilities:
        if loss is not None and PredictedLoss(loss).of_numbers:
            raise BidroError(f"The loss '{loss}' is for numbers, and probabilities are of classes.")
        return False
    if loss is not None:
        return PredictedLoss(loss).of_numbers
    return numbers_or_none(_column(table, columns.target, path)) is not None


def _scored(table: pd.DataFrame, columns: Columns, numeric: bool, path: Path) -> Scored:
    target = _column(table, columns.target, path)

    def row(place: int) -> str:
        return row_name(table, place)

    if columns.probabilities:
        each = [require_numbers(_column(table, name, path)) for name in columns.probabilities.values()]
        classes = as_meant(np.array([*columns.probabilities])).tolist()
        return Scored.probabilities(_classes(target), np.column_stack(each), classes, row)
    assert columns.prediction is not None
    predicted = _column(table, columns.prediction, path)
    if numeric:
        return Scored.numbers(require_numbers(target), require_numbers(predicted), row)
    return Scored.labels(_classes(target), _classes(predicted), row)


def _classes(column: pd.Series) -> NDArray[np.str_]:
    """(N,) as text. `bidro predict` writes a class that a spreadsheet would compute with an apostrophe before
    it: with and without one it is the same class."""
    return as_meant(as_words(column))


def _column(table: pd.DataFrame, name: str, path: Path) -> Any:
    if name not in table:
        raise BidroError(f"'{path}' has no column '{name}'; it has {listed(table.columns)}.")
    return table[name]


def _places(
    table: pd.DataFrame, second: pd.DataFrame, columns: Columns, path: Path, against: Path
) -> NDArray[np.intp]:
    """(N,) where each row of a table is in the second one: in its place, or by the key."""
    if columns.key is None:
        if len(table) != len(second):
            raise BidroError(
                f"'{path}' has {len(table):,} rows and '{against}' {len(second):,}; give predictions of the "
                "same rows."
            )
        return np.arange(len(table))
    found = []
    for part, where in ((table, path), (second, against)):
        words = as_words(_column(part, columns.key, where))
        different, counts = np.unique(words, return_counts=True)
        if "" in different or counts.max() > 1:
            name = different[int(np.argmax(counts))] if counts.max() > 1 else ""
            raise BidroError(
                f"'{where}': the key '{columns.key}' is '{name}' in {counts.max()} rows; it must name every "
                "row, each by another word."
            )
        found.append(words)
    ours, theirs = found
    for these, those, where, other in ((ours, theirs, path, against), (theirs, ours, against, path)):
        alone = ~np.isin(these, those)
        if alone.any():
            word = these[int(np.argmax(alone))]
            raise BidroError(
                f"'{where}' has a row with '{columns.key}' {word} and '{other}' has none; give predictions "
                "of the same rows."
            )
    order = np.argsort(theirs)
    return np.asarray(order[np.searchsorted(theirs, ours, sorter=order)])


def _require_the_same(
    table: pd.DataFrame,
    clients: NDArray[np.str_],
    scored: Scored,
    other_clients: NDArray[np.str_],
    other: Scored,
    columns: Columns,
    against: Path,
) -> None:
    """Raise BidroError for the first row that has another client or target in the other table."""
    differs = (clients != other_clients) | (_targets(scored) != _targets(other))
    if not differs.any():
        return
    place = int(np.argmax(differs))
    what = columns.client if clients[place] != other_clients[place] else columns.target
    otherwise = (
        "fix one of them"
        if columns.key is not None
        else "where the rows are in another order, name the column that tells them apart, --key COLUMN"
    )
    raise BidroError(
        f"{row_name(table, place)} has another '{what}' in '{against}', so that it is not the same row; "
        f"{otherwise}."
    )


def _targets(of: Scored) -> Floats | NDArray[np.str_]:
    return of.target if of.classes is None else np.array(of.classes)[of.target.astype(int)]


@dataclass(frozen=True)
class OnnxScores:
    """How tables are scored: columns of the table, `features` for a model that takes all in one input."""

    client: str
    target: str
    person: str | None = None
    features: tuple[str, ...] = ()
    loss: str | None = None
    quantile: float = 0.5

    def scored(
        self,
        path: Path,
        tables: Sequence[Path],
        largest: float | None = None,
        clip_from: Path | None = None,
        against: Path | None = None,
    ) -> tuple[ScoredRows, bool]:
        """(the predictions of the model at `path` for the tables, ready to be certified; whether its process
        was shut off from files and network).

        `clip_from` is a table of other rows, `against` another model. Raises BidroError for what cannot be
        used.
        """
        if self.loss is not None:
            PredictedLoss(self.loss, self.quantile)
        table, _ = read(tables, self.client)
        columns = Columns(self.client, self.target, path.name, person=self.person)
        clients, people = columns.schema.clients(table), columns.schema.people(table)
        model = self._model(path, table)
        numeric = self._numeric(model, table)
        chosen = PredictedLoss(self.loss or ("squared" if numeric else "mistakes"), self.quantile)
        scored = self._predicted(model, table, chosen)
        others = None
        if clip_from is not None:
            others = self._predicted(model, read([clip_from], self.client)[0], chosen)
        of = scored, clients, chosen.word, self.quantile, largest, others
        found = ScoredRows.of(*of, people=people, columns=columns)
        if against is not None:
            second = self._predicted(self._model(against, table), table, chosen)
            found = replace(found, against=second)
        return found, model.locked

    def _model(self, path: Path, table: pd.DataFrame) -> OnnxModel:
        first = {str(name): str(as_words(table[name].iloc[:1])[0]) for name in table}
        return OnnxModel.read(path, first, len(self.features))

    def _numeric(self, model: OnnxModel, table: pd.DataFrame) -> bool:
        """Whether the target is a number: the loss says so, or else the model and the target do."""
        if self.loss is not None:
            return PredictedLoss(self.loss).of_numbers
        alone = len(model.outputs) == 1 and model.outputs[0].kind in ("float32", "float64")
        one = alone and model.outputs[0].width in (1, None)
        return one and numbers_or_none(self._column(table, self.target)) is not None

    def _predicted(self, model: OnnxModel, table: pd.DataFrame, loss: PredictedLoss) -> Scored:
        roles = Roles.of(model.outputs, loss.of_numbers)
        target = self._column(table, self.target)
        found = model.run(self._inputs(model, table))

        def row(place: int) -> str:
            return row_name(table, place)

        if loss.of_numbers:
            said = Predictions.of(model, roles, found, ())
            assert said.numbers is not None
            return Scored.numbers(require_numbers(target), said.numbers, row)
        words = as_words(target)
        said = Predictions.of(model, roles, found, np.unique(words[words != ""]).tolist())
        if loss.of_probabilities and (off := said.contradicts).any():
            raise BidroError(
                f"{row(int(np.argmax(off)))}: the model's label is not the class of its highest probability; "
                f"its columns are taken for {', '.join(said.classes)}: name them in the file's metadata, "
                "under 'classes'."
            )
        if said.labels is not None and not loss.of_probabilities:
            return Scored.labels(words, said.labels, row)
        if said.shares is None:
            raise BidroError(f"The {loss.in_words} needs probabilities, and the model gives classes alone.")
        return Scored.probabilities(words, said.shares, said.classes, row)

    def _inputs(self, model: OnnxModel, table: pd.DataFrame) -> Mapping[str, Floats | NDArray[np.str_]]:
        names = [str(name) for name in table if name != self.target]
        if not by_name(model.inputs, names, self.features):
            each = [require_numbers(self._column(table, name)) for name in self.features]
            return {model.inputs[0].name: np.column_stack(each)}
        return {
            port.name: as_words(table[port.name])
            if port.kind == "text"
            else require_numbers(table[port.name])[:, None]
            for port in model.inputs
        }

    def _column(self, table: pd.DataFrame, name: str) -> pd.Series:
        if name not in table:
            raise BidroError(f"The table has no column '{name}'.")
        return table[name]


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
    people: ArrayLike | None = None,
    against: ArrayLike | None = None,
    rows_per_person: int | None = None,
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
        people: the person or thing that each row is of (N,): a person is then one draw, with the mean loss of
            its rows.
        against: another model's predictions of the same rows, of the same kind: the certificate then bounds
            the difference of the two losses, too.
        rows_per_person: the largest number of rows that a person can have, known beforehand: means over rows
            are then bounded, too.

    Rows must be independent draws, in any order, that had no part in training or choosing the model: that
    cannot be seen from predictions. Warns where some of `clip_from` may be among the rows to certify.

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
    rows = len(scored.target)
    found = ScoredRows.of(
        scored,
        client_labels(clients, rows),
        loss,
        quantile,
        largest,
        None if clip_from is None else as_scored(*_two(clip_from)),
        people=None if people is None else row_labels(people, rows, "person"),
        against=None if against is None else as_scored(y, against),
        rows_per_person=rows_per_person,
    )
    if found.known.note is not None:
        warnings.warn(found.known.note, TrainedRowsWarning, stacklevel=2)
    return found.certificate(confidence)


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
    people: ArrayLike | None = None,
    against: Any = None,
    rows_per_person: int | None = None,
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
        people: as in `certify_predictions`.
        against: another such model.
        rows_per_person: as in `certify_predictions`.

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
        people=people,
        against=None if against is None else predicted(against, X),
        rows_per_person=rows_per_person,
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
