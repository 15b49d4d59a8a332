"""How good a model is: mean losses of the clients, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.fitting.fit import ClientLoss
from bidro.guarantees.price import worst_decile
from bidro.losses import registry
from bidro.model_file import Model
from bidro.tables import Schema

# More clients than this are summarised on the screen: quantiles, and so many of the worst.
MOST_LISTED = 50
_WORST_LISTED = 10


def evaluation(clients: Mapping[str, ClientLoss]) -> dict[str, Any]:
    """Mean over all rows, worst client, worst decile, and each client's mean with its standard error."""
    means = np.array([own.loss for own in clients.values()])
    rows = np.array([own.rows for own in clients.values()])
    return {
        "mean": float(rows @ means / rows.sum()),
        "worst_client": float(means.max()),
        "worst_decile": float(worst_decile(means)),
        "clients": {name: own._asdict() for name, own in clients.items()},
    }


def units_by_client(schema: Schema, table: pd.DataFrame) -> dict[str, NDArray[np.str_]] | None:
    """The unit of every row of every client in a table, by name, in the order of `rows_by_client`; None where
    the schema names none."""
    clients, units = schema.clients(table), schema.units(table)
    if units is None:
        return None
    return {str(name): units[clients == name] for name in np.unique(clients)}


def rows_by_client(model: Model, table: pd.DataFrame) -> dict[str, Floats]:
    """Rows (N_i, m) of every client in a table, in the units of training, by name."""
    clients, rows = model.schema.clients(table), model.rows(table)
    names, codes = np.unique(clients, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    parts = np.split(rows[order], np.cumsum(np.bincount(codes))[:-1])
    return dict(zip(names.tolist(), parts, strict=True))


def evaluated(model: Model, table: pd.DataFrame) -> dict[str, Any]:
    """`evaluation` of a model on a table with known targets, with the loss's name and what goes beside it.

    Of classes that is `accuracy`, of the squared loss `root_mean_squared_error` in the target's own unit,
    each over all rows and of every client. Standard errors are by unit where the model was trained so.
    `not_in_training` has the clients that the model does not know, `counted_as_other` by column the rows
    whose level it does not know by name.
    """
    by_client, units = rows_by_client(model, table), units_by_client(model.schema, table)
    found = evaluation(
        {
            name: ClientLoss.of(model.losses(rows), units=None if units is None else units[name])
            for name, rows in by_client.items()
        }
    )
    right = {name: model.correct(rows) for name, rows in by_client.items()}
    entry = registry.entry_of(model.loss)
    for name, own in found["clients"].items():
        hits = right[name]
        if hits is not None:
            own["accuracy"] = float(hits.mean())
        if entry.root_unit:
            own["root_mean_squared_error"] = float(np.sqrt(own["loss"]))
    beside: dict[str, float] = {}
    hits_of_all = [hits for hits in right.values() if hits is not None]
    if hits_of_all:
        beside["accuracy"] = float(np.concatenate(hits_of_all).mean())
    if entry.root_unit:
        beside["root_mean_squared_error"] = float(np.sqrt(found["mean"]))
    return {
        "loss": entry.word,
        "target": model.schema.target,
        **beside,
        **found,
        "not_in_training": sorted(set(by_client) - set(model.clients)),
        "counted_as_other": model.schema.counted_as_other(table),
    }


def in_words(found: Mapping[str, Any]) -> str:
    """What `evaluated` found, to read: every client, or of many the quantiles and the worst."""
    head = f"{found['loss']} loss: mean {found['mean']:.4g}{_beside(found)}, worst client "
    lines = [f"{head}{found['worst_client']:.4g}, worst decile {found['worst_decile']:.4g}"]
    worst_first = sorted(found["clients"].items(), key=lambda item: -item[1]["loss"])
    shown = worst_first
    if len(worst_first) > MOST_LISTED:
        quantiles = np.quantile([one["loss"] for _, one in worst_first], (0, 0.1, 0.5, 0.9, 1))
        words = ("best", "10%", "median", "90%", "worst")
        lines.append(
            f"  {len(worst_first):,} clients, mean losses: "
            + ", ".join(f"{word} {value:.4g}" for word, value in zip(words, quantiles, strict=True))
        )
        lines.append(f"  the {_WORST_LISTED} worst (--json has all):")
        shown = worst_first[:_WORST_LISTED]
    for name, one in shown:
        se = "" if one["se"] is None else f" ± {one['se']:.2g}"
        new = ", not in training" if name in found["not_in_training"] else ""
        rows = "1 row" if one["rows"] == 1 else f"{one['rows']:,} rows"
        lines.append(f"  {name:<20} {one['loss']:.4g}{se}{_beside(one)}  ({rows}{new})")
    return "\n".join(lines)


def _beside(found: Mapping[str, Any]) -> str:
    if "accuracy" in found:
        return f" (accuracy {found['accuracy']:.1%})"
    if "root_mean_squared_error" in found:
        return f" (root {found['root_mean_squared_error']:.4g})"
    return ""
