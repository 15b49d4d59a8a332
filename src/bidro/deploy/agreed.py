"""The schema that sites agree on before anything is trained: columns, levels, classes and support bounds.

It is a file, `schema.toml`, that one site drafts from its table and all keep; a site whose file says another
thing refuses a run. Bounds in a draft are commented out: what one table happens to hold is not a support that
people have declared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bidro.errors import BidroError
from bidro.tables import Column, Schema, bounds_of, require_numbers
from bidro.workflow.toml_files import read_toml

_HEAD = """\
# What the tables of all sites have in common: one site drafts it, all agree on it, and each keeps a copy.
# Bounds ("support") hold for every row that any site can ever have; they are needed for the Wasserstein
# certificate, for all numbers or for none. What is commented out was read off one table: widen it and agree.
# `unit` names the column of the person or thing that a row is of, where rows of one are to stay together.
# A level that is not listed counts as the one that `other` names; without `other`, it is refused.
"""


@dataclass(frozen=True)
class Agreed:
    schema: Schema
    support: Mapping[str, tuple[float, float]] | None  # by column, for all numbers or for none

    @property
    def digest(self) -> str:
        """The same for everybody who agreed on the same."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        support = None if self.support is None else {k: list(v) for k, v in self.support.items()}
        return {"schema": self.schema.to_dict(), "support": support}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Agreed:
        support = content["support"]
        if support is not None:
            support = {str(name): (float(v[0]), float(v[1])) for name, v in support.items()}
        return cls(Schema.from_dict(content["schema"]), support)

    @classmethod
    def read(cls, path: Path) -> Agreed:
        """Raises BidroError for a file that is no schema, saying what is wrong with it."""
        content = read_toml(path)
        _require_keys(
            content, {"client", "target", "unit", "classes", "target_support", "columns"}, f"'{path}'"
        )
        for name in ("client", "target"):
            if not isinstance(content.get(name), str):
                raise BidroError(f"'{path}' must name its {name} column: {name} = \"...\".")
        unit = content.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise BidroError(f"'{path}': unit = {unit!r} must be the name of a column.")
        columns, support = [], {}
        if not isinstance(content.get("columns", []), list):
            raise BidroError(f"'{path}': every column is a part of its own, [[columns]].")
        for one in content.get("columns", []):
            if not isinstance(one, dict) or not isinstance(one.get("name"), str):
                raise BidroError(f"Every [[columns]] of '{path}' needs a name.")
            _require_keys(
                one, {"name", "levels", "filler", "other", "support"}, f"Column '{one['name']}' of '{path}'"
            )
            levels = _texts(one.get("levels"), one["name"], 1)
            columns.append(Column(one["name"], levels, one.get("filler"), one.get("other")))
            if "support" in one:
                support[one["name"]] = one["support"]
        if not columns:
            raise BidroError(f"'{path}' has no [[columns]]; draft it with `bidro schema TABLE`.")
        names = [content["client"], content["target"], *(column.name for column in columns)]
        names += [] if unit is None else [unit]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BidroError(f"'{path}' names '{twice}' twice; a column has one role.")
        if "target_support" in content:
            support[content["target"]] = content["target_support"]
        classes = _texts(content.get("classes"), content["target"], 2)
        schema = Schema(content["client"], content["target"], classes, tuple(columns), unit)
        if not support:
            return cls(schema, None)
        bounds_of(support, schema)
        return cls(schema, {name: (float(v[0]), float(v[1])) for name, v in support.items()})


def draft(schema: Schema, table: pd.DataFrame) -> str:
    """A `schema.toml` to be agreed on, with the bounds of this table as comments."""
    numbers = [column.name for column in schema.columns if column.levels is None]
    if schema.classes is None:
        numbers.append(schema.target)
    read = {name: require_numbers(table[name]) for name in numbers}
    seen = {name: (float(np.nanmin(v)), float(np.nanmax(v))) for name, v in read.items()}
    return _HEAD + _lines(schema, seen, "# ")


def written(agreed: Agreed) -> str:
    """A `schema.toml` that says exactly this."""
    return _lines(agreed.schema, agreed.support or {}, "")


def _lines(schema: Schema, support: Mapping[str, tuple[float, float]], before_bounds: str) -> str:
    def bounds(name: str, key: str) -> list[str]:
        return [f"{before_bounds}{key} = {_text(list(support[name]))}"] if name in support else []

    lines = [f"client = {_text(schema.client)}", f"target = {_text(schema.target)}"]
    if schema.unit is not None:
        lines.append(f"unit = {_text(schema.unit)}")
    if schema.classes is not None:
        lines.append(f"classes = {_text(list(schema.classes))}")
    lines += bounds(schema.target, "target_support")
    for column in schema.columns:
        lines += ["", "[[columns]]", f"name = {_text(column.name)}"]
        if column.levels is not None:
            lines.append(f"levels = {_text(list(column.levels))}")
        if column.other is not None:
            lines.append(f"other = {_text(column.other)}")
        lines += bounds(column.name, "support")
        if column.filler is not None:
            lines.append(f"filler = {_text(column.filler)}")
    return "\n".join([*lines, ""])


def _require_keys(content: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise BidroError(
            f"{where} has an unknown entry '{unknown[0]}'; there are {', '.join(sorted(known))}."
        )


def _texts(values: Any, name: str, least: int) -> tuple[str, ...] | None:
    """Levels or classes, in the order in which they are searched."""
    if values is None:
        return None
    if not isinstance(values, list) or len(values) < least or len({str(v) for v in values}) < len(values):
        raise BidroError(f"The levels of '{name}' must be a list of different texts, at least {least}.")
    return tuple(sorted(str(v) for v in values))


def _text(value: Any) -> str:
    """Text, numbers and lists of them are the same in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False)
