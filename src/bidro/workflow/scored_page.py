"""What the report page shows of a model that was not trained here: see `report.page`.

How it was trained, its coefficients, its worst case and what robustness cost are not known, and these parts
of the page are left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np

import bidro
from bidro.fitting.fitted import ClientLoss
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.paired import Paired
from bidro.guarantees.scored import by_client
from bidro.losses import registry
from bidro.tables import Schema
from bidro.workflow.asked_for import LEVELS
from bidro.workflow.judged import evaluation
from bidro.workflow.page_content import level_content
from bidro.workflow.plainly import CUT_ERRORS, Typical, plain_promise
from bidro.workflow.scored import ScoredTable


def scored_content(table: ScoredTable, confidence: float) -> dict[str, Any]:
    """The content of the page, with statements at this confidence and at others."""
    confidences = sorted({*LEVELS, confidence})
    levels = [table.certificate(level) for level in confidences]
    stated = levels[confidences.index(confidence)]
    judged = evaluation(_judged(table))
    columns, loss, classes = table.columns, table.loss, table.scored.classes
    typical = registry.typical_of(loss.word)
    content: dict[str, Any] = {
        "title": f"{columns.target} by {columns.client}",
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "version": bidro.__version__,
        "trained": False,
        "task": "regression" if classes is None else "classification",
        "loss": {"name": loss.in_words, "unit": loss.unit(columns.target)},
        "target": columns.target,
        "client_column": columns.client,
        "rows": 0,
        "held_out_rows": len(table.clients),
        "origin": table.known.origin,
        "settings": _settings(table),
        "clients": [
            {"name": name, "held_out_rows": one["rows"], "loss": one["loss"], "se": one["se"]}
            for name, one in judged["clients"].items()
        ],
        "overall": {name: judged[name] for name in ("mean", "worst_client", "worst_decile")},
        "mixtures": stated.mixtures,
        "plainly": _plainly(judged, loss.word, typical),
        "levels": [
            {
                **level_content(level),
                "against": level.against and _against(level.against, level.names),
                "plainly": plain_promise(level, typical, loss.word in CUT_ERRORS),
            }
            for level in levels
        ],
        "default_level": confidences.index(confidence),
        "absent": dict(stated.absent),
        "advice": _advice(stated),
    }
    if classes is not None:
        content["classes"] = list(classes)
    return content


def _plainly(judged: Mapping[str, Any], word: str, typical: Typical | None) -> dict[str, Any] | None:
    """How well the predictions do in a measure for people, as `workflow.plainly` has it; None for losses
    without one."""
    if word != "mistakes" and typical is None:
        return None

    def plain(cost: float) -> float:
        return 1 - cost if typical is None else typical(cost)

    return {
        "measure": "right" if typical is None else "error",
        "words": "the share of right predictions" if typical is None else registry.typical_words(word),
        "models": {"shared": plain(judged["mean"])},
        "clients": {name: {"shared": plain(one["loss"])} for name, one in judged["clients"].items()},
        "guess": None,
        "guess_kept_out": None,
        "of_people": False,
    }


def bounds_content(found: Certificate, schema: Schema, loss: tuple[str, str], created: str) -> dict[str, Any]:
    """The content of the page where clients have told bounds alone: no loss of anybody is known. `loss` is
    its name and its unit."""
    held = found.fresh
    assert held is not None
    name, unit = loss
    content: dict[str, Any] = {
        "title": f"{schema.target} by {schema.client}",
        "created": created,
        "version": bidro.__version__,
        "trained": False,
        "task": "regression" if schema.classes is None else "classification",
        "loss": {"name": name, "unit": unit},
        "target": schema.target,
        "measured_in": schema.measured_in,
        "client_column": schema.client,
        "rows": 0,
        "held_out_rows": sum(held.rows.values()),
        "origin": found.balls,
        "settings": [["Loss", name], ["What is known of it", found.balls]],
        "clients": [{"name": client, "held_out_rows": held.rows[client]} for client in found.names],
        "overall": None,
        "mixtures": found.mixtures,
        "levels": [level_content(found)],
        "default_level": 0,
        "absent": dict(found.absent),
        "advice": _advice(found),
    }
    if schema.classes is not None:
        content["classes"] = list(schema.classes)
    return content


def _judged(table: ScoredTable) -> dict[str, ClientLoss]:
    losses = table.loss.values(table.scored)
    if table.known.clip is not None:
        # What is stated is of losses counted so, and a loss of infinity has no place on a page.
        losses = np.minimum(losses, table.known.clip)
    units = None if table.units is None else by_client(table.clients, table.units)
    return {
        name: ClientLoss.of(own, None if units is None else units[name])
        for name, own in by_client(table.clients, losses).items()
    }


def _against(found: Paired, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "bound": found.bound,
        "better": found.better,
        "lower": found.lower,
        "largest": found.largest if found.clipped else None,
        "units": found.units,
        "promise": found.promise,
        "means": [found.means[name] for name in names],
        "clients": [found.clients[name] for name in names],
    }


def _settings(table: ScoredTable) -> list[list[str]]:
    columns = table.columns
    predicted = columns.prediction or ", ".join((columns.probabilities or {}).values())
    rows = [
        ["Loss", table.loss.in_words],
        ["Its range", table.known.origin],
        ["Predictions", predicted],
    ]
    if table.loss.word == "pinball":
        rows.insert(1, ["Quantile", f"{table.loss.quantile:g}"])
    if columns.unit is not None:
        rows.append(["Units", f"rows with the same '{columns.unit}' are one draw, with their mean loss"])
    return rows


def _advice(found: Certificate) -> list[str]:
    held = found.fresh
    assert held is not None
    what = held.draws
    if held.vacuous:
        return [f"There are too few {what} to promise anything: {held.shortage}."]
    advice = [
        f"The bound is set by '{held.binding}', with {held.rows[held.binding]:,} {what}; more {what} there "
        "lower it first."
    ]
    if found.against is not None and not found.against.lower:
        binding = found.against.binding
        advice.append(
            f"Whether the model is better than the other at every client hangs on '{binding}', with "
            f"{found.against.rows[binding]:,} {what}."
        )
    return advice
