"""A newcomer's own correction of a model that was trained without it, from a few rows.

It is held at the shared model as strongly as the clients of training allow: by the strongest shrinkage that
was within a standard error of the best for them, so that few rows do no harm where clients are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro.algorithms.own_correction import NONE, Shrinkage, own_models
from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.trained_rows import TrainedRows
from bidro.model_file import Model
from bidro.own_file import FILE, OwnModels, own_file_in, write_private
from bidro.workflow.fit import require_place, write_folder


@dataclass(frozen=True, eq=False)
class Adapted:
    """A client's own model, and how its predictions for the rows given differ from the shared model's."""

    client: str
    x: Floats  # (d,) in the units of training
    rows: int
    shrinkage: Shrinkage
    change: float  # of a number: root mean square, in its unit; of classes: of how many the class differs
    deviation: float | None  # of the shared model's predictions of a number; None for classes
    trained: TrainedRows  # the sketch of these rows, by which `bidro certify` notices them

    def in_words(self, target: str, measured_in: str | None = None) -> str:
        """Two sentences: what was done, and what is not known."""
        unit = "" if measured_in is None else f" {measured_in}"
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        if self.deviation is None:
            what = f"the predicted class differs for {self.change:.0%} of them"
        else:
            what = (
                f"predictions of '{target}' for them change by {self.change:.3g}{unit} (root mean square; "
                f"the shared model's deviate by {self.deviation:.3g}{unit})"
            )
        kind = "offset" if math.isinf(self.shrinkage.slopes) else "correction"
        return (
            f"Client '{self.client}' has its own {kind} of the model, from {rows}: {what}. No statement "
            "covers it, and these rows cannot tell how good it is: `bidro evaluate` on others can."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "adapted": True,
            "rows": self.rows,
            "shrinkage": [None if math.isinf(part) else part for part in self.shrinkage],
            "change": self.change,
            "deviation": self.deviation,
        }


def newcomers_shrinkage(model: Model) -> Shrinkage | None:
    """How strongly a newcomer's model is held at the shared one; None where the clients of training gain
    nothing by models of their own. Raises BidroError where nobody has looked."""
    own: Mapping[str, Any] | None = model.settings.get("own")
    if own is None:
        raise BidroError(
            "This model was trained without own corrections, so that it is not known how strongly one must "
            "be held; fit it with own corrections of its clients."
        )
    found = Shrinkage(*(math.inf if part is None else float(part) for part in own["newcomers"]))
    return None if found == NONE else found


def adapt(model: Model, table: pd.DataFrame, client: str, shrinkage: Shrinkage) -> Adapted:
    """Raises BidroError for a table without rows, or with rows of another client."""
    if table.empty:
        raise BidroError(f"There are no rows of client '{client}'; give it at least one.")
    if model.schema.client in table:
        others = [name for name in model.schema.clients(table).tolist() if name != client]
        if others:
            raise BidroError(
                f"The table has rows of '{others[0]}' in its column '{model.schema.client}'; give rows of "
                f"'{client}' alone, or a table without that column."
            )
    rows = model.rows(table)
    x = own_models(model.loss, rows, [len(table)], model.x, shrinkage)[0]
    trained = TrainedRows.of({client: rows}, adapted=client)
    named = table.assign(**{model.schema.client: client})
    before, after = (
        np.asarray(replace(model, own=own).predict(named)["prediction"]) for own in ({}, {client: x})
    )
    if model.schema.classes is not None:
        return Adapted(client, x, len(table), shrinkage, float(np.mean(before != after)), None, trained)
    change = float(np.sqrt(np.mean((after - before) ** 2)))
    return Adapted(client, x, len(table), shrinkage, change, float(before.std()), trained)


def require_newcomer(model: Model, client: str, force: bool) -> None:
    """Raise BidroError for a client without a name, or one that is known already, unless with `force`."""
    if not client.strip():
        raise BidroError("Name the newcomer: --client NAME.")
    if force:
        return
    if client in model.own:
        raise BidroError(
            f"Client '{client}' has a model of its own already; name another, or replace it with --force."
        )
    if client in model.clients:
        raise BidroError(
            f"Client '{client}' was in training, where it was seen to by itself; name another, or give it a "
            "model of its own from these rows alone with --force."
        )


def write_adapted(
    folder: Path, model: Model, adapted: Adapted, out: Path | None, force: bool = False
) -> None:
    """Put the correction, with the sketch of its rows, beside the others in the model folder or a copy."""
    before = own_file_in(folder, model.x)
    own = OwnModels(
        {**before.clients, adapted.client: adapted.x},
        model.x,
        {**before.adapted, adapted.client: adapted.trained},
    ).to_bytes()
    if out is None:
        write_private(folder / FILE, own)
        return
    require_place(out, force)
    files: dict[str, str | bytes] = {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()
    }
    write_folder(out, {**files, FILE: own})
