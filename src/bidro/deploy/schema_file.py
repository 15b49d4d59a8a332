"""`schema.toml` as text: a draft to be agreed on, from one table, and the file that says what was agreed.

Bounds in a draft are commented out: what one table happens to hold is not a support that was declared.
Units are rounded, so that they tell little of the table, and are public from then on.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bidro.deploy.agreed import TRAINING, Agreed, Unit
from bidro.tables import Schema

_HEAD = """\
# What all sites agree on: one site drafts it, all agree on it, and each keeps a copy. A site answers this and
# nothing else, so that whoever asks cannot choose how to ask.
# Every number has a unit, which is public: `centre` and `spread`, here the mean and deviation of one table,
# rounded. Levels are 0 or 1 with a spread of 1/2 unless one is named.
# `units_drafted = true` says that units are read off rows: then a private run is to try out, and promises
# nothing. Put in what is known from elsewhere (one digit will do), and take that line out.
# Bounds ("support") hold for every row that any site can ever have; they are needed for the Wasserstein
# certificate, for all numbers or for none. What is commented out was read off one table: widen it and agree.
# `unit` names the column of the person or thing that a row is of, where rows of one are to stay together.
# `measured_in` says what the target is counted in, such as "days": for the report page, and for nothing else.
# A level that is not listed counts as the one that `other` names; without `other`, no site trains on it, and
# predictions take it for the average level.
# [training] has the options of `bidro fit` that change what sites are asked, [limits] how much.
# A part [privacy], even an empty one, makes a run private: then sites tell a few sums with noise alone.
# [scores] with `loss` (and `largest`, as which larger losses count) lets sites that allow it score models
# from elsewhere (`bidro federate --certify`).
# [neural_network] with `factory` (package.module:function, installed at every site) and `rounds` trains that
# in place of a linear model, at sites that allow it.
"""


def units_of(schema: Schema, table: pd.DataFrame) -> dict[str, Unit]:
    """The centre and spread of every number: mean and deviation, to one digit of the deviation."""
    return {name: rounded(np.nanmean(v), np.nanstd(v)) for name, v in _numbers(schema, table).items()}


def rounded(mean: float, deviation: float) -> Unit:
    """A unit with one significant digit of the deviation, and the mean to the same place."""
    if not deviation > 1e-13 * math.hypot(mean, deviation):
        deviation = abs(mean) or 1.0
    place = -math.floor(math.log10(deviation))
    spread = round(float(deviation), place)
    return Unit(round(float(mean), place) + 0.0, spread)


def drafted(
    schema: Schema,
    table: pd.DataFrame,
    support: Mapping[str, tuple[float, float]] | None = None,
    training: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Agreed:
    """What would be agreed on by the units of this table, marked as read off it."""
    return Agreed.of(schema, units_of(schema, table), support, training, **{"units_drafted": True, **parts})


def draft(schema: Schema, table: pd.DataFrame) -> str:
    """A `schema.toml` to be agreed on, with the bounds of this table as comments."""
    seen = {name: (float(np.nanmin(v)), float(np.nanmax(v))) for name, v in _numbers(schema, table).items()}
    agreed = drafted(schema, table)
    return _HEAD + "\n".join([*_columns(agreed, seen, "# "), *_training(agreed, "# ")])


def written(agreed: Agreed) -> str:
    """A `schema.toml` that says exactly this."""
    return "\n".join([*_columns(agreed, agreed.support or {}, ""), *_training(agreed, "")])


def _numbers(schema: Schema, table: pd.DataFrame) -> dict[str, Any]:
    numbers = [column.name for column in schema.columns if column.levels is None]
    numbers += [schema.target] if schema.classes is None else []
    return {name: schema.as_numbers(name, table) for name in numbers}


def _columns(agreed: Agreed, support: Mapping[str, tuple[float, float]], mark: str) -> list[str]:
    schema = agreed.schema

    def bounds(name: str, before: str = "") -> list[str]:
        return [f"{mark}{before}support = {_text(list(support[name]))}"] if name in support else []

    def unit(name: str, before: str = "", centre: bool = True) -> list[str]:
        if name not in agreed.units:
            return []
        found = agreed.units[name]
        lines = [f"{before}centre = {_text(found.centre)}"] if centre else []
        return [*lines, f"{before}spread = {_text(found.spread)}"]

    lines = [f"client = {_text(schema.client)}", f"target = {_text(schema.target)}"]
    if schema.measured_in is not None:
        lines.append(f"measured_in = {_text(schema.measured_in)}")
    if schema.unit is not None:
        lines.append(f"unit = {_text(schema.unit)}")
    if schema.classes is not None:
        lines.append(f"classes = {_text(list(schema.classes))}")
    if agreed.units_drafted:
        lines.append("units_drafted = true")
    lines += unit(schema.target, "target_") + bounds(schema.target, "target_")
    for column in schema.columns:
        lines += ["", "[[columns]]", f"name = {_text(column.name)}"]
        if column.levels is not None:
            lines.append(f"levels = {_text(list(column.levels))}")
        given = {"other": column.other, "of": column.of, "dates": column.dates}
        lines += [f"{entry} = {_text(word)}" for entry, word in given.items() if word is not None]
        lines += unit(column.name, centre=column.levels is None) + bounds(column.name)
        if column.filler is not None:
            lines.append(f"filler = {_text(column.filler)}")
    return lines


def _training(agreed: Agreed, mark: str) -> list[str]:
    """The parts [training], [algorithm] and [limits]; in a draft as comments that show what there is."""
    options = dataclasses.asdict(agreed.options)
    lines, parts = ["", "[training]"], list[str]()
    for name in TRAINING:
        value = options[name]
        if isinstance(value, Mapping):
            parts += ["", f"[training.{name}]", *(f"{_text(str(k))} = {_text(v)}" for k, v in value.items())]
        elif value is not None:
            lines.append(f"{mark}{name} = {_text('inf' if value == math.inf else value)}")
    lines += [f"{mark}replies = {_text(agreed.replies)}", *parts]
    if agreed.algorithm is not None:
        lines += ["", "[algorithm]", *_entries(agreed.algorithm, "")]
    if agreed.privacy is not None:
        given = {name: v for name, v in dataclasses.asdict(agreed.privacy).items() if v is not None}
        lines += ["", "[privacy]", *(f"{name} = {_text(value)}" for name, value in given.items())]
    lines += ["", "[limits]", *_entries(agreed.limits, mark), ""]
    for name in ("scores", "neural_network"):
        if (part := getattr(agreed, name)) is not None:
            lines += [f"[{name}]", *_entries(part, ""), ""]
    return lines


def _entries(part: Any, mark: str) -> list[str]:
    given = {name: value for name, value in dataclasses.asdict(part).items() if value is not None}
    return [f"{mark}{name} = {_text(value)}" for name, value in given.items()]


def _text(value: Any) -> str:
    """Text, numbers and lists of them are the same in TOML as in JSON."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(name))} = {_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
