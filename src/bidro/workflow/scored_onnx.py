"""Certify a model in an ONNX file from tables: it is run on them here, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.scored import Range
from bidro.losses.predicted import PredictedLoss, Scored
from bidro.scoring.matched import Roles, Said, by_name
from bidro.scoring.run import OnnxModel
from bidro.tables import as_words, read, require_numbers, row_name
from bidro.tables.cells import numbers_or_none
from bidro.workflow.scored import Columns, ScoredTable


@dataclass(frozen=True)
class OnnxScores:
    """How tables are scored: columns of the table, `features` for a model that takes all in one input."""

    client: str
    target: str
    unit: str | None = None
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
    ) -> tuple[ScoredTable, bool]:
        """(the predictions of the model at `path` for the tables, ready to be certified; whether its process
        was shut off from files and network).

        `clip_from` is a table of other rows, `against` another model. Raises BidroError for what cannot be
        used.
        """
        if self.loss is not None:
            PredictedLoss(self.loss, self.quantile)
        table, _ = read(tables, self.client)
        schema = Columns(self.client, self.target, path.name, unit=self.unit).schema
        clients, units = schema.clients(table), schema.units(table)
        model = self._model(path, table)
        numeric = self._numeric(model, table)
        chosen = PredictedLoss(self.loss or ("squared" if numeric else "mistakes"), self.quantile)
        scored = self._predicted(model, table, chosen)
        others = None
        if clip_from is not None:
            others = self._predicted(model, read([clip_from], self.client)[0], chosen)
        known = Range.of(chosen, scored, largest, others)
        second = None if against is None else self._predicted(self._model(against, table), table, chosen)
        columns = Columns(self.client, self.target, path.name, unit=self.unit)
        return ScoredTable(columns, scored, clients, units, chosen, known, second), model.locked

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
            said = Said.of(model, roles, found, ())
            assert said.numbers is not None
            return Scored.numbers(require_numbers(target), said.numbers, row)
        words = as_words(target)
        said = Said.of(model, roles, found, np.unique(words[words != ""]).tolist())
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
