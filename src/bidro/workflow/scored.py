"""Certify a model that was not trained here, from tables: its predictions beside the true targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.scored import Range, certify_scored
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.tables import Schema, as_meant, as_words, read_one, require_numbers, row_name
from bidro.tables.cells import numbers_or_none
from bidro.tables.schema import listed


@dataclass(frozen=True)
class Columns:
    """Where a table has what; raises BidroError unless predictions are in one way there."""

    client: str
    target: str
    prediction: str | None = None  # numbers, or classes
    probabilities: Mapping[str, str] | None = None  # by class
    unit: str | None = None
    key: str | None = None  # names every row, where two tables are not in one order

    def __post_init__(self) -> None:
        if (self.prediction is None) == (not self.probabilities):
            raise BidroError(
                "Name the column of the predictions, --prediction COLUMN, or of classes those of the "
                "probabilities, --probability CLASS=COLUMN for each."
            )

    @property
    def schema(self) -> Schema:
        return Schema(self.client, self.target, None, (), self.unit)


@dataclass(frozen=True, eq=False)
class ScoredTable:
    """A table of predictions, all that is to be certified by it, and what bounds the loss."""

    columns: Columns
    scored: Scored
    clients: NDArray[np.str_]  # (N,)
    units: NDArray[np.str_] | None  # (N,)
    loss: PredictedLoss
    known: Range
    against: Scored | None  # the other model's predictions of the same rows
    rows_per_unit: int | None = None  # at most, declared

    def certificate(self, confidence: float) -> Certificate:
        return certify_scored(
            self.scored,
            self.clients,
            self.loss,
            self.known,
            confidence,
            self.units,
            self.against,
            self.rows_per_unit,
        )


def read_scored(
    path: Path,
    columns: Columns,
    loss: str | None = None,
    quantile: float = 0.5,
    largest: float | None = None,
    clip_from: Path | None = None,
    against: Path | None = None,
) -> ScoredTable:
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
    clients, units = schema.clients(table), schema.units(table)
    numeric = _numeric(table, columns, loss, path)
    scored = _scored(table, columns, numeric, path)
    chosen = PredictedLoss(loss or ("squared" if numeric else "mistakes"), quantile)
    others = None if clip_from is None else _scored(read_one(clip_from), columns, numeric, clip_from)
    known = Range.of(chosen, scored, largest, others)
    pair = None
    if against is not None:
        second = read_one(against)
        places = _places(table, second, columns, path, against)
        second = second.iloc[places].reset_index(drop=True)
        pair = _scored(second, columns, numeric, against)
        _require_the_same(table, clients, scored, schema.clients(second), pair, columns, against)
    return ScoredTable(columns, scored, clients, units, chosen, known, pair)


def _numeric(table: pd.DataFrame, columns: Columns, loss: str | None, path: Path) -> bool:
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
