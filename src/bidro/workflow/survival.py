"""How well a model of times to an event does: who is first, how far its curves are from what was seen, and
the curves of every client beside those of Kaplan and Meier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.data.tables import Schema
from bidro.data.tables.survival import ROW, Observed
from bidro.model.model_file import Model
from bidro.model.survival import concordance, integrated_brier, kaplan_meier, restricted_means

_NAMES = {
    "guess": "one curve for everybody",
    "pooled": "pooled training",
    "shared": "the shared model",
    "personal": "each client's own model",
}


@dataclass(frozen=True, eq=False)
class Watched:
    """People with their times, a row each, on whom a model is judged, and those that it was trained on."""

    table: pd.DataFrame  # of those that it is judged on
    observed: Observed  # of the same
    trained_on: Observed | None  # None where they are not known
    held_out: bool  # whether they are others
    people: bool  # whether each is a person, or one of several rows of one
    model: Model | None = None  # that is judged

    @classmethod
    def fresh(cls, model: Model, table: pd.DataFrame) -> Watched:
        """Other people than those of training, by a table before it is laid out."""
        schema = model.schema
        assert schema.survival is not None
        observed = schema.survival.observed(table, schema.target)
        return cls(table, observed, None, True, schema.person == ROW, model)

    @classmethod
    def of(
        cls, schema: Schema, table: pd.DataFrame, training: NDArray[np.int64], clients: Sequence[str]
    ) -> Watched:
        """From a table before it is laid out, the places of the training rows in it when it is, and the
        clients of training. Where nobody was held out it is those of training."""
        assert schema.survival is not None
        observed = schema.survival.observed(table, schema.target)
        person = schema.survival.grid.periods(observed).person
        inside, every = np.zeros(len(table), bool), np.zeros(len(table), bool)
        inside[person[training]] = True
        every[person] = True
        others = every & ~inside & np.isin(schema.clients(table), clients)
        judged = others if others.any() else inside
        people = observed.only(judged), observed.only(inside)
        return cls(table[judged], *people, bool(others.any()), schema.person == ROW)


def survival_evaluation(watched: Watched) -> dict[str, Any]:
    """How a model does on people, in numbers.

    `models` has by name the `concordance` and the integrated `brier` score over all of them, of whom there
    are so many `rows` and `events`; `clients` the same of the model in use, with the mean of its curves
    (`predicted`) and the curve of Kaplan and Meier (`observed`) at the `ends` of the periods. None stands for
    what few people do not tell.
    """
    model = watched.model
    assert model is not None
    survival = model.schema.survival
    assert survival is not None
    ends, seen = survival.grid.ends, watched.observed
    curves = {"shared": replace(model, personal={}).survival_curves(watched.table)}
    if model.pooled is not None:
        curves["pooled"] = replace(model, x=model.pooled, personal={}).survival_curves(watched.table)
    if model.personal:
        curves["personal"] = model.survival_curves(watched.table)
    if watched.trained_on is not None:
        everybody = kaplan_meier(watched.trained_on, ends)
        # Beyond the last who was watched it goes on as it was.
        curves["guess"] = np.tile(pd.Series(everybody).ffill().to_numpy(), (len(watched.table), 1))
    owners = model.schema.clients(watched.table)
    used = curves.get("personal", curves["shared"])
    clients = {}
    for name in np.unique(owners).tolist():
        own = owners == name
        people = seen.only(own)
        clients[name] = {
            **_of(people, used[own], ends),
            "predicted": used[own].mean(axis=0).tolist(),
            "observed": [None if np.isnan(one) else float(one) for one in kaplan_meier(people, ends)],
        }
    return {
        "time": survival.time,
        "unit": model.schema.target_unit,
        "event": model.schema.target,
        "ends": list(ends),
        "held_out": watched.held_out,
        "whose": "people" if watched.people else "rows",
        "models": {name: _of(seen, curves[name], ends) for name in _NAMES if name in curves},
        "clients": clients,
    }


def _of(seen: Observed, curves: Floats, ends: tuple[float, ...]) -> dict[str, Any]:
    return {
        "rows": len(seen.time),
        "events": int(seen.event.sum()),
        "concordance": concordance(seen, -restricted_means(curves, ends)),
        "brier": integrated_brier(seen, curves, ends),
    }


def in_words(found: Mapping[str, Any], clients: int = 0) -> str:
    """A table for the screen: the models, and of so many clients, those with the most people first, the model
    that each uses."""
    every, on = found["models"]["shared"], "held-out" if found["held_out"] else "training"
    title = f"On {every['rows']:,} {on} {found['whose']}, {every['events']:,} with '{found['event']}'"
    listed = [(_NAMES[name], one) for name, one in found["models"].items()]
    listed += sorted(found["clients"].items(), key=lambda item: -item[1]["rows"])[:clients]
    rows = [(title, "order", "error")]
    rows += [(name, _number(one["concordance"]), _number(one["brier"])) for name, one in listed]
    wide = max(len(row[0]) for row in rows)
    until = f"{found['ends'][-1]:g} {found['unit'] or ''}".rstrip()
    return "\n".join(
        [
            *(f"{name:<{wide}}  {order:>5}  {error:>5}" for name, order, error in rows),
            "order: of two people, how often the one at higher risk has the event first (Harrell's C; 0.5 by "
            "chance).",
            "error: the mean square of the predicted chance less what was seen, until "
            f"{until} (integrated Brier score; 0 is perfect).",
        ]
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
