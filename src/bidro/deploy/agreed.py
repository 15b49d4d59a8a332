"""What sites agree on before anything is trained, in one file, `schema.toml`: the columns with their levels,
classes and support bounds, their units, what is trained and how, and how much may be asked.

One site drafts it, all keep a copy, and every request names its digest: a site whose file says another thing
refuses a run. All that a server might otherwise choose, to learn more of a site's rows, stands here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidro.deploy.agreed_network import AgreedNetwork
from bidro.deploy.agreed_scores import AgreedScores
from bidro.errors import BidroError
from bidro.fitting import Options
from bidro.fitting.asked_curves import require_lines
from bidro.fitting.private import private_plan
from bidro.guarantees.segments import Wanted
from bidro.privacy.terms import Plan, Terms
from bidro.standard import Standard
from bidro.tables import Column, Schema, bounds_of
from bidro.training import AlgorithmOne, Replies
from bidro.workflow.asked_for import fit_options
from bidro.workflow.options import FitOptions
from bidro.workflow.toml_files import read_toml

# Options of `bidro fit` that stand in the part [training].
TRAINING = (
    *("loss", "threshold", "quantile", "radius", "weights", "price", "criterion", "own", "metric"),
    *("label_cost", "hold_out", "confidence", "shift", "gap", "folds", "seed"),
    *("curves", "increasing", "decreasing"),
)
# Of a coded level, which is 0 or 1: half the difference.
LEVEL_SPREAD = 0.5
# What a centre may be at most, and a spread; a spread must be more than its inverse.
_LARGEST = 1e30


class Unit(NamedTuple):
    """A column is measured from its centre, in spreads."""

    centre: float
    spread: float


@dataclass(frozen=True)
class AskLimits:
    """How much a server may ask of a site."""

    largest_coefficient: float = 20.0  # of a model, in spreads of the target (1 for classes) a spread
    rounds: int = 1_000  # a run
    models: int = 50_000  # a run
    models_in_all: int = 10_000_000

    def __post_init__(self) -> None:
        if not _is_number(self.largest_coefficient) or not 0 < self.largest_coefficient <= 1e3:
            raise BidroError(
                "largest_coefficient must be a positive number of at most 1000; got "
                f"{self.largest_coefficient!r}."
            )
        for name in ("rounds", "models", "models_in_all"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 10**12:
                raise BidroError(f"{name} in [limits] must be a whole number of at least 1; got {value!r}.")


@dataclass(frozen=True)
class Agreed:
    schema: Schema
    units: Mapping[str, Unit]  # by column, that of a numeric target among them
    support: Mapping[str, tuple[float, float]] | None = None  # by column, for all numbers or for none
    options: FitOptions = field(default_factory=FitOptions)
    replies: Replies = "curvature"
    algorithm: AlgorithmOne | None = None  # in place of the exact solver
    limits: AskLimits = field(default_factory=AskLimits)
    privacy: Terms | None = None  # of a private run, in which sites tell sums with noise and nothing else
    scores: AgreedScores | None = None  # how models from elsewhere are scored; None where they are not
    neural_network: AgreedNetwork | None = None  # that is trained in place of a linear model
    units_drafted: bool = False  # whether the units were read off rows and nobody has confirmed them yet

    @classmethod
    def of(
        cls,
        schema: Schema,
        units: Mapping[str, Unit],
        support: Mapping[str, tuple[float, float]] | None = None,
        training: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> Agreed:
        """With options of the part [training]. Raises BidroError for what stands for nothing."""
        given = dict(training or {})
        unknown = sorted(set(given) - set(TRAINING))
        if unknown:
            raise BidroError(
                f"[training] has an unknown entry '{unknown[0]}'; there are {', '.join(sorted(TRAINING))}, "
                "and replies."
            )
        for name in ("increasing", "decreasing"):
            if not isinstance(given.get(name, ()), list | tuple):
                raise BidroError(f"{name} in [training] is a list of features; got {given[name]!r}.")
            given[name] = tuple(given.get(name, ()))
        options = FitOptions(
            client=schema.client,
            target=schema.target,
            task="regression" if schema.classes is None else "classification",
            features=schema.read,
            support=support,
            unit=schema.unit,
            measured_in=schema.measured_in,
            **given,
        )
        return cls(schema, dict(units), support, options, **parts)

    def __post_init__(self) -> None:
        schema = self.schema
        numbers = [column.name for column in schema.columns if column.levels is None]
        numbers += [schema.target] if schema.classes is None else []
        for name in numbers:
            if name not in self.units:
                raise BidroError(
                    f"The schema does not say in which unit '{name}' is measured: give it a centre and a "
                    "spread (of the target target_centre and target_spread), or draft it anew with "
                    "`bidro schema`."
                )
        for name, unit in self.units.items():
            if not _is_number(unit.spread) or not 1 / _LARGEST < unit.spread < _LARGEST:
                raise BidroError(f"The spread of '{name}' must be a positive number; got {unit.spread!r}.")
            if not _is_number(unit.centre) or not abs(unit.centre) < _LARGEST:
                raise BidroError(f"The centre of '{name}' must be a number; got {unit.centre!r}.")
        if self.options.radius == "bootstrap":
            raise BidroError(
                "radius = 'bootstrap' is not for machines apart; use 'cross-validate' or numbers."
            )
        if self.scores is not None:
            self.scores.require_fits(schema.classes)
        if self.neural_network is not None:
            self._require_network(self.neural_network)
        self.options.check()
        choices = self.fit_options.choices
        wanted = Wanted.of(choices.curves, choices.increasing, choices.decreasing, schema.features)
        if self.algorithm is not None:
            require_lines(wanted)
        if any(wanted.by):
            raise BidroError(
                "Curves for each level of a category are not for machines apart: too few of a site's rows "
                "would stand behind each of them; leave the category out."
            )
        self.plan  # noqa: B018 - what cannot be had under a privacy budget is said before any site is asked

    def _require_network(self, network: AgreedNetwork) -> None:
        """Raise BidroError where other parts do not go with a network."""
        network.loss_of(self.schema.classes)
        for name in ("algorithm", "privacy"):
            if getattr(self, name) is not None:
                raise BidroError(f"[neural_network] and [{name}] do not go together; leave one out.")
        if network.rounds > self.limits.rounds:
            raise BidroError(
                f"[neural_network] has {network.rounds} rounds, and [limits] rounds = {self.limits.rounds}; "
                "agree on fewer, or on a higher limit."
            )
        if self.options.hold_out > 0 and self.scores is None:
            raise BidroError(
                "What is stated of a network from rows kept out is by the loss of [scores]: agree on it "
                '(loss = "absolute" and largest = NUMBER, or loss = "mistakes"), or on hold_out = 0 in '
                "[training]."
            )

    @cached_property
    def standard(self) -> Standard:
        """The units as rows are put into them."""
        centres: list[float] = []
        spreads: list[float] = []
        for column in self.schema.columns:
            default = Unit(0.0, LEVEL_SPREAD)
            unit = self.units.get(column.name, default)
            centres += [unit.centre] * len(column.coded)
            spreads += [unit.spread] * len(column.coded)
        target = Unit(0.0, 1.0) if self.schema.classes is not None else self.units[self.schema.target]
        return Standard(np.array(centres), np.array(spreads), float(target.centre), float(target.spread))

    @cached_property
    def fit_options(self) -> Options:
        """What `fit` is to do."""
        limits = self.limits.largest_coefficient
        return fit_options(
            self.options,
            self.schema,
            self.replies,
            self.algorithm,
            self.standard,
            largest_coefficient=limits,
            privacy=self.privacy,
            units_drafted=self.units_drafted,
        )

    @cached_property
    def plan(self) -> Plan | None:
        """What is released in a private run; None where it is none."""
        if self.privacy is None:
            return None
        kept_out = self.options.hold_out > 0
        return private_plan(
            self.fit_options, len(self.schema.features), self.schema.unit is not None, kept_out
        )

    @cached_property
    def digest(self) -> str:
        """The same for everybody who agreed on the same."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        options = dataclasses.asdict(self.options)
        content: dict[str, Any] = {
            "schema": self.schema.to_dict(),
            "units": {name: list(map(float, unit)) for name, unit in self.units.items()},
            "support": None if self.support is None else {k: list(v) for k, v in self.support.items()},
            "training": {name: options[name] for name in TRAINING},
            "replies": self.replies,
            "algorithm": None if self.algorithm is None else dataclasses.asdict(self.algorithm),
            "limits": dataclasses.asdict(self.limits),
            "privacy": None if self.privacy is None else dataclasses.asdict(self.privacy),
        }
        if self.units_drafted:
            content["units_drafted"] = True
        parts = {name: getattr(self, name) for name in ("scores", "neural_network")}
        return content | {name: dataclasses.asdict(v) for name, v in parts.items() if v is not None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Agreed:
        support, algorithm, privacy = content["support"], content["algorithm"], content["privacy"]
        if support is not None:
            support = {str(name): (float(v[0]), float(v[1])) for name, v in support.items()}
        return cls.of(
            Schema.from_dict(content["schema"]),
            {str(name): Unit(float(v[0]), float(v[1])) for name, v in content["units"].items()},
            support,
            content["training"],
            replies=content["replies"],
            algorithm=None if algorithm is None else AlgorithmOne(**algorithm),
            limits=AskLimits(**content["limits"]),
            privacy=None if privacy is None else Terms(**privacy),
            scores=AgreedScores(**content["scores"]) if "scores" in content else None,
            neural_network=AgreedNetwork(**content["neural_network"])
            if "neural_network" in content
            else None,
            units_drafted=content.get("units_drafted", False),
        )

    @classmethod
    def read(cls, path: Path) -> Agreed:
        """Raises BidroError for a file that is no schema, saying what is wrong with it."""
        content = read_toml(path)
        known = {
            "client",
            "target",
            "measured_in",
            "unit",
            "classes",
            "columns",
            "training",
            "limits",
            "algorithm",
            "privacy",
            "scores",
            "neural_network",
            "units_drafted",
        }
        known |= {"target_support", "target_centre", "target_spread"}
        _require_keys(content, known, f"'{path}'")
        for name in ("client", "target"):
            if not isinstance(content.get(name), str):
                raise BidroError(f"'{path}' must name its {name} column: {name} = \"...\".")
        for name in ("training", "limits", "algorithm", "privacy", "scores", "neural_network"):
            if not isinstance(content.get(name, {}), dict):
                raise BidroError(f"'{path}': '{name}' is a part of its own, [{name}].")
        if not isinstance(content.get("columns", []), list):
            raise BidroError(f"'{path}': every column is a part of its own, [[columns]].")
        units_drafted = content.get("units_drafted", False)
        if not isinstance(units_drafted, bool):
            raise BidroError(f"'{path}': units_drafted = {units_drafted!r} must be true or false.")
        unit = content.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise BidroError(f"'{path}': unit = {unit!r} must be the name of a column.")
        columns: list[Column] = []
        units, support = dict[str, Unit](), dict[str, Any]()
        if not isinstance(content.get("columns", []), list):
            raise BidroError(f"'{path}': every column is a part of its own, [[columns]].")
        for one in content.get("columns", []):
            columns.append(_column(one, path, units, support))
        if not columns:
            raise BidroError(f"'{path}' has no [[columns]]; draft it with `bidro schema TABLE`.")
        names = [content["client"], content["target"], *(column.name for column in columns)]
        names += [] if unit is None else [unit]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BidroError(f"'{path}' names '{twice}' twice; a column has one role.")
        target = content["target"]
        if "target_support" in content:
            support[target] = content["target_support"]
        if "target_centre" in content or "target_spread" in content:
            units[target] = Unit(
                content.get("target_centre", math.nan), content.get("target_spread", math.nan)
            )
        classes = _texts(content.get("classes"), target, 2)
        if classes is not None and target in units:
            raise BidroError(f"'{path}': a target with classes has no target_centre and target_spread.")
        schema = Schema(content["client"], target, classes, tuple(columns), unit, content.get("measured_in"))
        if support:
            bounds_of(support, schema)
        declared = {name: (float(v[0]), float(v[1])) for name, v in support.items()} if support else None
        training = dict(content.get("training", {}))
        parts = {
            "replies": training.pop("replies", "curvature"),
            "algorithm": _made(AlgorithmOne, content.get("algorithm"), path, rounds=0),
            "limits": _made(AskLimits, content.get("limits", {}), path),
            "privacy": _made(Terms, content.get("privacy"), path),
            "scores": _made(AgreedScores, content.get("scores"), path),
            "neural_network": _made(AgreedNetwork, content.get("neural_network"), path),
            "units_drafted": units_drafted,
        }
        return cls.of(schema, units, declared, training, **parts)


def _made(kind: Any, content: Mapping[str, Any] | None, path: Path, **defaults: Any) -> Any:
    """A part of the file as an object; None where there is none."""
    if content is None:
        return None
    _require_keys(content, {one.name for one in dataclasses.fields(kind)}, f"'{path}'")
    return kind(**{**defaults, **content})


def _column(one: Any, path: Path, units: dict[str, Unit], support: dict[str, Any]) -> Column:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        raise BidroError(f"Every [[columns]] of '{path}' needs a name.")
    name, where = one["name"], f"Column '{one['name']}' of '{path}'"
    _require_keys(
        one, {"name", "levels", "filler", "other", "of", "dates", "support", "centre", "spread"}, where
    )
    levels = _texts(one.get("levels"), name, 1)
    if levels is not None and "centre" in one:
        raise BidroError(f"{where} has levels, whose centre is 0; it may have a spread.")
    if "support" in one:
        support[name] = one["support"]
    if "centre" in one or "spread" in one:
        centre = 0.0 if levels is not None else one.get("centre", math.nan)
        units[name] = Unit(centre, one.get("spread", math.nan))
    return Column(name, levels, *(one.get(part) for part in ("filler", "other", "of", "dates")))


def _require_keys(content: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(content) - known)
    if unknown:
        raise BidroError(
            f"{where} has an unknown entry '{unknown[0]}'; there are {', '.join(sorted(known))}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _texts(values: Any, name: str, least: int) -> tuple[str, ...] | None:
    """Levels or classes, in the order in which they are searched."""
    if values is None:
        return None
    if not isinstance(values, list) or len(values) < least or len({str(v) for v in values}) < len(values):
        raise BidroError(f"The levels of '{name}' must be a list of different texts, at least {least}.")
    return tuple(sorted(str(v) for v in values))
