"""All options of `bidro fit` as one object, from a TOML file and back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidro.errors import BidroError


@dataclass(frozen=True)
class FitOptions:
    """See `bidro fit --help`. `support` has [lower, upper] by column."""

    tables: tuple[str, ...] = ()
    client: str | None = None
    target: str | None = None
    task: str | None = None
    features: tuple[str, ...] | None = None
    loss: str | None = None
    quantile: float = 0.5
    threshold: float = 1.35
    radius: float | str | Mapping[str, float] = "cross-validate"
    weights: float | str = "auto"
    metric: str = "features"
    label_cost: float = 1.0
    support: Mapping[str, Any] | None = None
    confidence: float = 0.95
    shift: float | None = None
    hold_out: float = 0.2
    missing: str = "refuse"
    folds: int | None = None
    gap: float = 1e-6
    seed: int = 0

    def changed(self, given: Mapping[str, Any]) -> FitOptions:
        """With the options that were given; None stands for "not given"."""
        return dataclasses.replace(self, **{k: v for k, v in given.items() if v is not None})

    def to_toml(self) -> str:
        lines, tables = [], []
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, Mapping):
                tables += ["", f"[{name}]", *(f"{_quoted(k)} = {_toml(v)}" for k, v in value.items())]
            elif value is not None:
                lines.append(f"{name} = {_toml(value)}")
        return "\n".join([*lines, *tables, ""])

    @classmethod
    def from_toml(cls, path: Path) -> FitOptions:
        content = read_toml(path)
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise BidroError(
                f"'{path}' has an unknown option '{unknown[0]}'; there are {', '.join(sorted(known))}."
            )
        for name in ("tables", "features"):
            if name in content:
                content[name] = tuple(map(str, content[name]))
        return cls(**content)


def read_toml(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BidroError(f"'{path}' is not valid TOML: {error}.") from error


def _toml(value: Any) -> str:
    """Text, numbers and lists of them are the same in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _quoted(key: str) -> str:
    return json.dumps(str(key), ensure_ascii=False)
