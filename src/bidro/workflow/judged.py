"""How good a model is: mean losses of the clients, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.fitting.fitted import Change, Changes, ClientLoss
from bidro.guarantees.price import worst_decile
from bidro.losses import registry
from bidro.model_file import Model
from bidro.tables import Schema
from bidro.workflow.measures import deviation, measures
from bidro.workflow.paid import verdict


def evaluation(
    clients: Mapping[str, ClientLoss], changes: Mapping[str, Changes] | None = None
) -> dict[str, Any]:
    """Mean over all rows, worst client and worst decile of the shared model; the same in `own`, with every
    client using its own model, None where none has one, and in `pooled`, of pooled training, None where
    `changes` against it are not known; and the clients.

    A client has its mean loss with its standard error, that under the model it uses, `own`, and where
    `changes` are known that of pooled training, what changed with standard errors, and in `verdict` whether
    it "gains" or "loses" by the model it uses beyond chance, or None.
    """
    rows = np.array([one.rows for one in clients.values()])
    used = [one.own for one in clients.values()]
    shared = [one.loss for one in clients.values()]
    each: dict[str, Any] = {name: one._asdict() for name, one in clients.items()}
    pooled = None
    if changes is not None:
        for name, change in changes.items():
            before = clients[name].loss - change.shared.mean
            each[name] |= {
                "pooled": before,
                "shared_change": change.shared._asdict(),
                "own_change": change.own._asdict(),
                "verdict": verdict(change.own, before),
            }
        pooled = _over_clients([each[name]["pooled"] for name in clients], rows)
    return {
        **_over_clients(shared, rows),
        "own": None if used == shared else _over_clients(used, rows),
        "pooled": pooled,
        "clients": each,
    }


def _over_clients(means: list[float], rows: NDArray[np.int64]) -> dict[str, float]:
    losses = np.array(means)
    return {
        "mean": float(rows @ losses / rows.sum()),
        "worst_client": float(losses.max()),
        "worst_decile": float(worst_decile(losses)),
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
    """`evaluation` of a model on a table with known targets, with the loss's name and the `measures` beside
    it: over all rows under each of the three models, and of every client under the model that it uses.

    Clients that the model does not know use the shared one. Standard errors are by unit where the model was
    trained so. `deviation` is that of the scores under the shared model and under pooled training.
    `not_in_training` has the clients that the model does not know, `counted_as_other` by column the rows
    whose level it does not know by name, `unseen_levels` those that count as the average level for want of
    another, `outside_range` by feature the rows outside what was seen.
    """
    by_client, units = rows_by_client(model, table), units_by_client(model.schema, table)
    models = {"shared": dict.fromkeys(by_client, model.x)}
    if not set(model.own).isdisjoint(by_client):
        models["own"] = {name: model.used_by(name) for name in by_client}
    if model.pooled is not None:
        models["pooled"] = dict.fromkeys(by_client, model.pooled)
    losses = {
        which: {name: model.losses(rows, x[name]) for name, rows in by_client.items()}
        for which, x in models.items()
    }
    found, rows = _judged(losses, units), np.concatenate(list(by_client.values()))
    scores = {
        which: np.concatenate([model.scores(rows, x[name]) for name, rows in by_client.items()])
        for which, x in models.items()
    }
    beside = {
        which: measures(model, scores[which], rows, _right(model, by_client, x), _mean_of(found, which))
        for which, x in models.items()
    }
    for which in set(models) - {"shared"}:
        found[which] |= beside[which]
    for name, own_rows in by_client.items():
        x, client = model.used_by(name), found["clients"][name]
        right = model.correct(own_rows, x)
        client |= measures(model, model.scores(own_rows, x), own_rows, right, client["own"])
        # Of few rows it says more about chance than about the model.
        client.pop("calibration_error", None)
    return {
        "loss": registry.entry_of(model.loss).word,
        "target": model.schema.target,
        "measured_in": model.schema.measured_in,
        **beside["shared"],
        **found,
        "deviation": {which: deviation(scores[which]) for which in ("shared", "pooled") if which in scores},
        "not_in_training": sorted(set(by_client) - set(model.clients)),
        "counted_as_other": model.schema.counted_as_other(table),
        "unseen_levels": model.schema.unseen_levels(table),
        "outside_range": model.outside(table),
    }


def _mean_of(found: Mapping[str, Any], which: str) -> float:
    mean: float = (found if which == "shared" else found[which])["mean"]
    return mean


def _right(
    model: Model, by_client: Mapping[str, Floats], x: Mapping[str, Floats]
) -> NDArray[np.bool_] | None:
    """(N,) whether the predicted class is the true one, client by client; None for a number."""
    each = [model.correct(rows, x[name]) for name, rows in by_client.items()]
    known = [right for right in each if right is not None]
    return np.concatenate(known) if known else None


def _judged(
    losses: Mapping[str, Mapping[str, Floats]], units: Mapping[str, NDArray[np.str_]] | None
) -> dict[str, Any]:
    """`evaluation` of losses (N_i,) by model and client."""
    shared = losses["shared"]
    own, pooled = losses.get("own", shared), losses.get("pooled")

    def unit(name: str) -> NDArray[np.str_] | None:
        return None if units is None else units[name]

    def change(name: str, after: Floats, before: Floats) -> Change:
        apart = ClientLoss.of(after - before, units=unit(name))
        return Change(apart.loss, apart.se)

    clients = {name: ClientLoss.of(each, own=own[name], units=unit(name)) for name, each in shared.items()}
    if pooled is None:
        return evaluation(clients)
    changes = {
        name: Changes(change(name, shared[name], before), change(name, own[name], before))
        for name, before in pooled.items()
    }
    return evaluation(clients, changes)
