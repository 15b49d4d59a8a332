"""A personal correction of a model for a client that was not in training, from a few rows.

It differs from the shared model as the clients of training do, and at most by half as much as these, so that
few rows do no harm. Where it is not known by how much they do, as under a privacy budget, the client's own
rows say it, left out one fifth after the other. Nothing of that leaves, so that a site may do it as often as
it likes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro.certify.trained_rows import TrainedRows
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import write_private
from bidro.core.splits import Draws, arranged, dealt, label_ids
from bidro.losses import losses_of
from bidro.model.model_file import Model
from bidro.model.personal_file import FILE, PersonalModels, personal_file_in
from bidro.selection.personal import coefficients, personal_models
from bidro.workflow.folder import require_place, write_folder

# How freely a client's coefficients may differ, where its rows say it, and by how many parts of them.
_FREEDOMS, _FOLDS = tuple(4.0**k for k in range(-4, 2)), 5


@dataclass(frozen=True, eq=False)
class Adapted:
    """A client's personal model, and how its predictions for the rows given differ from the shared
    model's."""

    client: str
    x: Floats  # (d,) in the units of training
    rows: int
    freedom: Floats  # (q,) of its coefficients: see `selection.personal`
    change: float  # of a number: root mean square, in its unit; of classes: of how many the class differs
    deviation: float | None  # of the shared model's predictions of a number; None for classes
    trained: TrainedRows  # the sketch of these rows, by which `bidro certify` notices them

    def in_words(self, target: str, target_unit: str | None = None) -> str:
        """Two sentences: what was done, and what is not known."""
        unit = "" if target_unit is None else f" {target_unit}"
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        if self.deviation is None:
            what = f"the predicted class differs for {self.change:.0%} of them"
        else:
            what = (
                f"predictions of '{target}' for them change by {self.change:.3g}{unit} (root mean square; "
                f"the shared model's deviate by {self.deviation:.3g}{unit})"
            )
        kind = "correction" if np.any(self.freedom[:-1] > 0) else "offset"
        return (
            f"Client '{self.client}' has a personal {kind} of the model, from {rows}: {what}. No statement "
            "covers it, and these rows cannot tell how good it is: `bidro evaluate` on others can."
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "adapted": True,
            "rows": self.rows,
            "freedom": self.freedom.tolist(),
            "change": self.change,
            "deviation": self.deviation,
        }


def newcomers_freedom(model: Model) -> Floats | None:
    """How freely a newcomer's coefficients differ from the shared ones (q,), by the clients of training; None
    where these gain nothing by personal models. Raises BidroError for a model trained before their variance
    components were estimated."""
    personal: Mapping[str, Any] = model.settings["personal"]
    if "freedom" not in personal:
        raise BidroError(
            "This model is of an earlier version of bidro, which did not estimate how much clients differ; "
            "fit it again."
        )
    found = np.array(personal["newcomers"], float)
    return found if found.any() else None


def freedom_by_rows(model: Model, table: pd.DataFrame, client: str) -> Floats | None:
    """The same by the client's own rows, where training has made no personal models: the best of `_FREEDOMS`,
    of the offset alone and of every coefficient, on rows left out; None where that is not better than the
    shared model by a standard error. Rows of one person are left out together. Raises BidroError as `adapt`,
    and for fewer rows, or people, than folds."""
    _require_rows(model, table, client)
    rows, loss, codes = model.rows(table), model.loss, np.zeros(len(table), np.int64)
    person = model.schema.person
    named = None if person is None else label_ids(table[person].astype(str).to_numpy(np.str_))
    _, ids = arranged(codes, rows[:, :-1], rows[:, -1], named)
    draws = (Draws.single_rows if named is None else Draws.of)(codes, ids)
    fold = dealt((client,), draws, "row" if named is None else "person", _FOLDS, 0)
    which = np.ones((2, coefficients(loss, rows.shape[1])))
    which[0, :-1] = 0.0
    candidates = [f * one for f in _FREEDOMS for one in which]
    gains = np.zeros((len(candidates), len(rows)))
    for left_out in (fold == k for k in range(_FOLDS)):
        trained, fresh = rows[~left_out], rows[left_out]
        before = losses_of(loss, model.x, fresh)
        for one, freedom in zip(gains, candidates, strict=True):
            x = personal_models(loss, trained, [len(trained)], model.x, freedom)[0]
            one[left_out] = before - losses_of(loss, x, fresh)
    best = int(gains.sum(axis=1).argmax())
    by_draw = np.bincount(draws.of_row, gains[best])
    error = math.sqrt(len(by_draw)) * float(by_draw.std(ddof=1))
    return candidates[best] if by_draw.sum() > error else None


def _require_rows(model: Model, table: pd.DataFrame, client: str) -> None:
    """Raise BidroError for a table without rows, or with rows of another client."""
    if table.empty:
        raise BidroError(f"There are no rows of client '{client}'; give it at least one.")
    if model.schema.client in table:
        others = [name for name in model.schema.clients(table).tolist() if name != client]
        if others:
            raise BidroError(
                f"The table has rows of '{others[0]}' in its column '{model.schema.client}'; give rows of "
                f"'{client}' alone, or a table without that column."
            )


def adapt(model: Model, table: pd.DataFrame, client: str, freedom: Floats) -> Adapted:
    """Raises BidroError for a table without rows, or with rows of another client."""
    _require_rows(model, table, client)
    if model.schema.survival is not None:
        # What changes is said of the periods, each of which is a row of training.
        table = model.schema.laid_out(table)
        model = replace(model, schema=replace(model.schema, survival=None, target_unit=None))
    rows = model.rows(table)
    x = personal_models(model.loss, rows, [len(table)], model.x, freedom)[0]
    trained = TrainedRows.of({client: rows}, adapted=client)
    named = table.assign(**{model.schema.client: client})
    before, after = (
        np.asarray(replace(model, personal=personal).predict(named)["prediction"])
        for personal in ({}, {client: x})
    )
    if model.schema.classes is not None:
        return Adapted(client, x, len(table), freedom, float(np.mean(before != after)), None, trained)
    change = float(np.sqrt(np.mean((after - before) ** 2)))
    return Adapted(client, x, len(table), freedom, change, float(before.std()), trained)


def require_newcomer(model: Model, client: str, force: bool) -> None:
    """Raise BidroError for a client without a name, or one that is known already, unless with `force`."""
    if not client.strip():
        raise BidroError("Name the newcomer: --client NAME.")
    if force:
        return
    if client in model.personal:
        raise BidroError(
            f"Client '{client}' has a personal model already; name another, or replace it with --force."
        )
    if client in model.clients and model.settings.get("personal") is not None:
        raise BidroError(
            f"Client '{client}' was in training, where it was seen to by itself; name another, or give it a "
            "personal model from these rows alone with --force."
        )


def write_adapted(
    folder: Path, model: Model, adapted: Adapted, out: Path | None, force: bool = False
) -> None:
    """Put the correction, with the sketch of its rows, into the model folder or a copy."""
    before = personal_file_in(folder, model.x)
    personal = PersonalModels(
        {**before.clients, adapted.client: adapted.x},
        model.x,
        {**before.adapted, adapted.client: adapted.trained},
    ).to_bytes()
    if out is None:
        write_private(folder / FILE, personal)
        return
    require_place(out, force)
    files: dict[str, str | bytes] = {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()
    }
    write_folder(out, {**files, FILE: personal})
