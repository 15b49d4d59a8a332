"""What sites agree on before anything is trained, in one file, `schema.toml`: the columns with their levels,
classes and support bounds, their units, what is trained and how, and how much may be asked.

One site drafts it, all keep a copy, and every request names its digest: a site whose file says another thing
refuses a run. All that a server might otherwise choose, to learn more of a site's rows, stands here.

Whether a site's columns are in the agreed units is looked at too (`far_units`): age in months, where years
are meant, is trained on like any other number, and nothing else would tell.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bidro.ambiguity import Penalty
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, is_number
from bidro.core.files import read_toml, renamed
from bidro.data.standardise import Standard, client_moments
from bidro.data.tables import Column, Schema, bounds_of
from bidro.data.tables.survival import OUTCOMES, ROW, Survival
from bidro.deploy.site.disclosure.rules import RELEASES, Release
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import Adam, BiDROLocal, Momentum, ServerOptimised
from bidro.federated.baselines import AFL, DRFA, QFFL, FedAvg, GroupDRO
from bidro.fit.fitted import Options
from bidro.fit.private import private_plan
from bidro.fit.settings import TRAINING
from bidro.fit.training import AlgorithmOne, require_lines
from bidro.losses import Loss
from bidro.losses.predicted import PredictedLoss
from bidro.losses.registry import default_word
from bidro.losses.torch_loss import require_torch
from bidro.neural.models import from_factory, loss_of, require_factory_name
from bidro.privacy.terms import Plan, Terms
from bidro.risk.inner import FixedStepAscent
from bidro.selection.segments import Wanted
from bidro.workflow.options import FitOptions, toml, toml_lines

# What stands in the file for an algorithm, and for an optimiser at the server.
ALGORITHMS: dict[str, type] = {
    "FedAvg": FedAvg,
    "AFL": AFL,
    "DRFA": DRFA,
    "q-FFL": QFFL,
    "Group DRO": GroupDRO,
    "BiDRO-FL": BiDROLocal,
}
_OPTIMISERS: dict[str, type] = {"Momentum": Momentum, "Adam": Adam}
_LOSSES = {"regression": ("squared", "absolute"), "classification": ("cross entropy",)}
# Steps of the ascent that finds a row's worst case, for BiDRO-FL.
_ASCENT_STEPS = 10


@dataclass(frozen=True)
class NetworkAgreement:
    """The neural network that sites agree to train: the part [neural_network].

    It names a function that is installed at the server and at every site; no code travels. What the function
    is called with, by which algorithm it is trained, with which steps and batches, and for how many rounds
    stands here, so that nobody chooses it later. Raises BidroError for what stands for nothing; nothing is
    imported.
    """

    factory: str = ""  # "package.module:function"
    rounds: int = 0
    algorithm: str = "FedAvg"
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm, by the names that it has
    optimiser: str | None = None  # at the server
    optimiser_settings: Mapping[str, Any] = field(default_factory=dict)
    penalty: float | None = None  # rho of BiDRO-FL, for features and targets in the agreed spreads
    arguments: Mapping[str, Any] = field(default_factory=dict)  # that the factory is called with
    loss: str | None = None  # None for the first that suits the target: squared, or cross entropy
    input_shape: tuple[int, ...] | None = None  # that a row's features are reshaped to
    dtype: str = "float64"

    def __post_init__(self) -> None:
        try:
            require_factory_name(self.factory)
        except BidroError as error:
            raise BidroError(f"[neural_network]: {error}") from error
        if type(self.rounds) is not int or self.rounds < 1:
            raise BidroError(
                f"[neural_network] must say for how many rounds it is trained: rounds = 100; got "
                f"{self.rounds!r}."
            )
        for name in ("settings", "optimiser_settings", "arguments"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or not _plain(given):
                raise BidroError(
                    f"{name} in [neural_network] is a table of numbers, texts, true or false, and lists of "
                    f"them: {name} = {{NAME = VALUE}}."
                )
        if self.dtype not in ("float64", "float32"):
            raise BidroError(f'dtype in [neural_network] must be "float64" or "float32"; got {self.dtype!r}.')
        shape = self.input_shape
        if shape is not None:
            if not isinstance(shape, list | tuple) or not all(type(n) is int and n > 0 for n in shape):
                raise BidroError(
                    f"input_shape in [neural_network] is a list of whole numbers, [1, 28, 28]; got {shape!r}."
                )
            object.__setattr__(self, "input_shape", tuple(shape))
        if (self.penalty is None) == (self.algorithm == "BiDRO-FL"):
            raise BidroError(
                "[neural_network]: penalty = NUMBER is the price of moving a row, for algorithm = "
                '"BiDRO-FL", which needs it, and for no other.'
            )
        if self.penalty is not None and not (is_number(self.penalty) and 0 < self.penalty < math.inf):
            raise BidroError(f"penalty in [neural_network] must be above 0; got {self.penalty!r}.")
        self.trained_by  # noqa: B018 - settings that its algorithm does not have are said now

    @property
    def trained_by(self) -> Algorithm:
        """The algorithm with all its settings."""
        given = dict(self.settings)
        if self.penalty is not None:
            ascent = FixedStepAscent(_ASCENT_STEPS, 0.25 / self.penalty, perturbation=0.0)
            given["oracle"] = ascent
        found = _by_word("algorithm", ALGORITHMS, self.algorithm, given, self.settings)
        if self.optimiser is None:
            if self.optimiser_settings:
                raise BidroError(
                    "[neural_network]: optimiser_settings are for an optimiser at the server; name it: "
                    'optimiser = "Adam".'
                )
            return found
        own = self.optimiser_settings
        return ServerOptimised(found, _by_word("optimiser", _OPTIMISERS, self.optimiser, own, own))

    @property
    def ambiguity(self) -> Penalty | None:
        return None if self.penalty is None else Penalty(float(self.penalty))

    def loss_of(self, classes: tuple[str, ...] | None) -> str:
        """The loss by its word, for a target of these classes or a number. Raises BidroError for one that is
        for another kind of target."""
        task = "regression" if classes is None else "classification"
        found = _LOSSES[task][0] if self.loss is None else self.loss
        if found not in _LOSSES[task]:
            words = " or ".join(f'"{word}"' for word in _LOSSES[task])
            raise BidroError(f"loss in [neural_network] must be {words} for this target; got {found!r}.")
        return found

    def made(self, classes: tuple[str, ...] | None, seed: int) -> tuple[Any, Loss]:
        """(what the factory makes, the same with its loss): this imports and calls the factory. What PyTorch
        draws in it follows from the seed. Raises BidroError where there is none, or it draws anew every time
        it is called."""
        first, again = (_seeded(self.factory, self.arguments, seed) for _ in range(2))
        count = None if classes is None else len(classes)
        parts = self.loss_of(classes), self.input_shape, count, self.dtype
        found = loss_of(first, *parts)
        if repr(found) != repr(loss_of(again, *parts)):
            raise BidroError(
                f"The factory '{self.factory}' makes another network every time that it is called; let it "
                "draw from a seed of its own, or by PyTorch alone."
            )
        return first, found


def _predicted(schema: Schema) -> dict[str, Any]:
    """The options that say what is predicted, from what, and whose rows are whose."""
    person, survival = None if schema.person == ROW else schema.person, schema.survival
    if survival is None:
        task = "regression" if schema.classes is None else "classification"
        return {"target": schema.target, "task": task, "features": schema.read, "person": person}
    return {
        "event": f"{schema.target}={survival.happened}",
        "time": survival.time,
        "time_grid": survival.grid.ends,
        "entry": survival.entry,
        "features": tuple(name for name in schema.read if name != survival.time),
        "person": person,
    }


def _seeded(name: str, arguments: Mapping[str, Any], seed: int) -> Any:
    if find_spec("torch") is None:
        # A function of JAX needs none; a factory that does says so.
        return from_factory(name, arguments)
    torch = require_torch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return from_factory(name, arguments)


def _by_word(what: str, known: Mapping[str, type], word: Any, given: Mapping[str, Any], said: Any) -> Any:
    """An algorithm or an optimiser by its word. Raises BidroError for a word or a setting that it has not."""
    if not isinstance(word, str) or word not in known:
        listed = ", ".join(known)
        raise BidroError(f"{what} in [neural_network] must be one of {listed}; got {word!r}.")
    kind = known[word]
    defaults = {one.name: one.default for one in dataclasses.fields(kind) if one.name != "oracle"}
    for name, value in said.items():
        if name not in defaults:
            listed = ", ".join(defaults)
            raise BidroError(f"[neural_network]: {word} has no '{name}'; it has {listed}.")
        wanted = (int,) if defaults[name] is None else (type(defaults[name]), int)
        if type(value) not in wanted:
            raise BidroError(f"[neural_network]: {name} = {value!r} is no {name} of {word}.")
    try:
        return kind(**given)
    except BidroError as error:
        raise BidroError(f"[neural_network]: {error}") from error


def _plain(value: Any) -> bool:
    """Whether it is the same as JSON."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


# Models that may be scored over one table.
_MOST_MODELS = 8


@dataclass(frozen=True)
class ScoresAgreement:
    """How models from elsewhere are scored, where sites agree on that: the part [scores].

    Without it, no site scores any. What a loss counts as at most stands here, so that nobody takes it from
    the rows that are certified; and how many models may be scored over one table, as each tells a little of
    its rows. Raises BidroError for what stands for nothing.
    """

    loss: str = ""
    quantile: float = 0.5  # of the pinball loss
    largest: float | None = (
        None  # no loss counts as more; None for a loss that has a largest value of its own
    )
    models: int = 2  # over one table, in all runs

    def __post_init__(self) -> None:
        if not isinstance(self.loss, str) or not self.loss:
            raise BidroError('[scores] must name a loss: loss = "absolute".')
        if not is_number(self.quantile):
            raise BidroError(f"quantile in [scores] must be a number; got {self.quantile!r}.")
        loss = self.predicted
        if (self.largest is None) == (loss.largest(2) is None):
            given = (
                "a largest value of its own" if self.largest is not None else "no largest value of its own"
            )
            raise BidroError(
                f"[scores]: the {loss.in_words} has {given}; largest = NUMBER, as which larger ones count, "
                "is for losses that have none, and for all of these."
            )
        if self.largest is not None and not (is_number(self.largest) and 0 < self.largest < math.inf):
            raise BidroError(f"largest in [scores] must be a finite number above 0; got {self.largest!r}.")
        if type(self.models) is not int or not 1 <= self.models <= _MOST_MODELS:
            raise BidroError(
                f"models in [scores] must be a whole number from 1 to {_MOST_MODELS}; got {self.models!r}."
            )

    @property
    def predicted(self) -> PredictedLoss:
        return PredictedLoss(self.loss, float(self.quantile))

    def require_fits(self, classes: tuple[str, ...] | None) -> None:
        """Raise BidroError where the loss is for another kind of target."""
        if self.predicted.of_numbers != (classes is None):
            kind = "a number" if classes is None else "of classes"
            raise BidroError(f"[scores]: the {self.predicted.in_words} is not for a target that is {kind}.")

    def most(self, classes: tuple[str, ...] | None) -> float:
        """What a loss counts as at most."""
        found = self.predicted.largest(len(classes or ())) if self.largest is None else float(self.largest)
        assert found is not None
        return found


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
    seconds: int = 3_600  # of a site's time, a run
    runs: int = 1_000  # that a site works for, by their names: it keeps something of each

    def __post_init__(self) -> None:
        if not is_number(self.largest_coefficient) or not 0 < self.largest_coefficient <= 1e3:
            raise BidroError(
                "largest_coefficient must be a positive number of at most 1000; got "
                f"{self.largest_coefficient!r}."
            )
        for name in ("rounds", "models", "models_in_all", "seconds", "runs"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 10**12:
                raise BidroError(f"{name} in [limits] must be a whole number of at least 1; got {value!r}.")


@dataclass(frozen=True)
class Agreement:
    schema: Schema
    units: Mapping[str, Unit]  # by column, that of a numeric target among them
    release: Release  # what leaves the sites
    support: Mapping[str, tuple[float, float]] | None = None  # by column, for all numbers or for none
    options: FitOptions = field(default_factory=FitOptions)
    algorithm: AlgorithmOne | None = None  # in place of the exact solver
    limits: AskLimits = field(default_factory=AskLimits)
    privacy: Terms | None = None  # of a private run, in which sites tell sums with noise and nothing else
    scores: ScoresAgreement | None = None  # how models from elsewhere are scored; None where they are not
    neural_network: NetworkAgreement | None = None  # that is trained in place of a linear model
    units_drafted: bool = False  # whether the units were read off rows and nobody has confirmed them yet

    @classmethod
    def of(
        cls,
        schema: Schema,
        units: Mapping[str, Unit],
        support: Mapping[str, tuple[float, float]] | None = None,
        training: Mapping[str, Any] | None = None,
        *,
        release: Release,
        **parts: Any,
    ) -> Agreement:
        """With options of the part [training]. Raises BidroError for what stands for nothing."""
        training = renamed(training or {})
        unknown = sorted(set(training) - set(TRAINING))
        if unknown:
            raise BidroError(
                f"[training] has an unknown entry '{unknown[0]}'; there are {', '.join(sorted(TRAINING))}."
            )
        options = FitOptions.from_file(
            training,
            "[training]",
            client=schema.client,
            support=support,
            target_unit=schema.target_unit,
            exposure=schema.exposure,
            **_predicted(schema),
        )
        if release == "private":
            parts = {"privacy": Terms(), **parts}
        return cls(schema, dict(units), release, support, options, **parts)

    def __post_init__(self) -> None:
        schema = self.schema
        if self.release not in RELEASES:
            raise BidroError(_NO_RELEASE.format(where="What is agreed on", said=f"; got {self.release!r}"))
        numbers = [c.name for c in schema.columns if c.levels is None and not c.exposure]
        numbers += [schema.target] if schema.classes is None else []
        for name in numbers:
            if name not in self.units:
                raise BidroError(
                    f"The schema does not say in which unit '{name}' is measured: give it a centre and a "
                    "spread (of the target target_centre and target_spread), or draft it anew with "
                    "`bidro schema`."
                )
        for name, unit in self.units.items():
            if not is_number(unit.spread) or not 1 / _LARGEST < unit.spread < _LARGEST:
                raise BidroError(f"The spread of '{name}' must be a positive number; got {unit.spread!r}.")
            if not is_number(unit.centre) or not abs(unit.centre) < _LARGEST:
                raise BidroError(f"The centre of '{name}' must be a number; got {unit.centre!r}.")
        if self.options.radius == "bootstrap":
            raise BidroError(
                "radius = 'bootstrap' is not for machines apart; use 'cross-validate' or numbers."
            )
        if self.scores is not None:
            self.scores.require_fits(schema.classes)
        if self.neural_network is not None:
            self._require_network(self.neural_network)
        self._require_released()
        choices = self.fit_options.choices
        wanted = Wanted.of(choices.curves, choices.increasing, choices.decreasing, schema.features)
        if self.algorithm is not None:
            require_lines(wanted, choices)
        if any(wanted.by):
            raise BidroError(
                "Curves for each level of a category are not for machines apart: too few of a site's rows "
                "would stand behind each of them; leave the category out."
            )
        self.plan  # noqa: B018 - what cannot be had under a privacy budget is said before any site is asked

    def _require_released(self) -> None:
        """Raise BidroError where what is trained needs another kind of release than is agreed on."""
        if (self.release == "private") != (self.privacy is not None):
            raise BidroError(
                'A part [privacy] is for release = "private", and for no other; agree on one of them.'
            )
        if self.release != "moments":
            return
        for name, what in (("neural_network", "a neural network"), ("algorithm", "Algorithm 1")):
            if getattr(self, name) is not None:
                raise BidroError(_NEEDS_TRUST.format(what=what))
        if (word := self.fit_options.loss.word) != "squared":
            raise BidroError(_NEEDS_TRUST.format(what=f"{word} loss"))

    def _require_network(self, network: NetworkAgreement) -> None:
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
                "What is stated of a network from held-out rows is by the loss of [scores]: agree on it "
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
            unit = Unit(0.0, 1.0) if column.exposure else self.units.get(column.name, default)
            centres += [unit.centre] * len(column.coded)
            spreads += [unit.spread] * len(column.coded)
        classes = self.schema.classes
        target = Unit(0.0, 1.0) if classes is not None else self.units[self.schema.target]
        # What the logarithm is of is not to be centred.
        log_link = self.options.loss_choice(None if classes is None else len(classes)).log_link
        middle = 0.0 if log_link else float(target.centre)
        return Standard(np.array(centres), np.array(spreads), middle, float(target.spread))

    @cached_property
    def fit_options(self) -> Options:
        """What `fit` is to do."""
        return self.options.requested(
            self.schema,
            moments_alone=self.release == "moments",
            algorithm=self.algorithm,
            units=self.standard,
            largest_coefficient=self.limits.largest_coefficient,
            privacy=self.privacy,
            units_drafted=self.units_drafted,
        )

    @cached_property
    def plan(self) -> Plan | None:
        """What is released in a private run; None where it is none."""
        if self.privacy is None:
            return None
        held_out, people = self.options.hold_out > 0, self.schema.person is not None
        sites = None if self.privacy.shared is None else len(self.privacy.shared.keys) or None
        return private_plan(self.fit_options, self.schema.features, people, held_out, sites)

    @cached_property
    def digest(self) -> str:
        """The same for everybody who agreed on the same."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        options = self.options.in_file()
        content: dict[str, Any] = {
            "schema": self.schema.to_dict(),
            "units": {name: list(map(float, unit)) for name, unit in self.units.items()},
            "support": None if self.support is None else {k: list(v) for k, v in self.support.items()},
            "training": {name: options[name] for name in TRAINING},
            "release": self.release,
        }
        if self.units_drafted:
            content["units_drafted"] = True
        # Agreements of before there were the last two do not name them.
        made = {name: getattr(self, name) for name in _PARTS}
        said = {name: v for name, v in made.items() if v is not None or name in ("algorithm", "privacy")}
        content |= {name: None if v is None else dataclasses.asdict(v) for name, v in said.items()}
        if self.privacy is not None and self.privacy.shared is None:
            # Nor do private ones of before noise was shared.
            del content["privacy"]["shared"]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Agreement:
        support = content["support"]
        if support is not None:
            support = {str(name): (float(v[0]), float(v[1])) for name, v in support.items()}
        return cls.of(
            Schema.from_dict(content["schema"]),
            {str(name): Unit(float(v[0]), float(v[1])) for name, v in content["units"].items()},
            support,
            content["training"],
            release=content["release"],
            units_drafted=content.get("units_drafted", False),
            **{name: kind(**v) for name, kind in _PARTS.items() if (v := content.get(name)) is not None},
        )

    @classmethod
    def read(cls, path: Path) -> Agreement:
        """Raises BidroError for a file that is no schema, saying what is wrong with it."""
        content = renamed(read_toml(path))
        known = {"client", "target", "target_unit", "person", "classes", "columns", "training", "release"}
        known |= set(_PARTS)
        known |= {"units_drafted", "target_support", "target_centre", "target_spread", "survival"}
        _require_keys(content, known, f"'{path}'")
        for name in ("client", "target"):
            if not isinstance(content.get(name), str):
                raise BidroError(f"'{path}' must name its {name} column: {name} = \"...\".")
        for name in ("training", "survival", *_PARTS):
            if not isinstance(content.get(name, {}), dict):
                raise BidroError(f"'{path}': '{name}' is a part of its own, [{name}].")
        if not isinstance(content.get("columns", []), list):
            raise BidroError(f"'{path}': every column is a part of its own, [[columns]].")
        units_drafted = content.get("units_drafted", False)
        if not isinstance(units_drafted, bool):
            raise BidroError(f"'{path}': units_drafted = {units_drafted!r} must be true or false.")
        person = content.get("person")
        if person is not None and not isinstance(person, str):
            raise BidroError(f"'{path}': person = {person!r} must be the name of a column.")
        units, support = dict[str, Unit](), dict[str, Any]()
        columns = [_column(one, path, units, support) for one in content.get("columns", [])]
        if not columns and "survival" not in content:
            raise BidroError(f"'{path}' has no [[columns]]; draft it with `bidro schema TABLE`.")
        names = [content["client"], content["target"], *(column.name for column in columns)]
        names += [] if person is None else [person]
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
        classes, survival = _texts(content.get("classes"), target, 2), None
        if "survival" in content:
            # Its periods and its two classes follow from the grid.
            survival = Survival.from_dict(content["survival"])
            columns = [Column(survival.time, survival.grid.names), *columns]
            classes, person = OUTCOMES, person or ROW
        if classes is not None and target in units:
            raise BidroError(f"'{path}': a target with classes has no target_centre and target_spread.")
        unit = content.get("target_unit")
        schema = Schema(content["client"], target, classes, tuple(columns), person, unit, survival)
        if support:
            bounds_of(support, schema)
        declared = {name: (float(v[0]), float(v[1])) for name, v in support.items()} if support else None
        training = dict(content.get("training", {}))
        if "replies" in training:
            raise BidroError(f"'{path}' says replies in [training], of an earlier version; {_EARLIER}.")
        if "release" not in content:
            raise BidroError(_NO_RELEASE.format(where=f"'{path}'", said=f": {_EARLIER}"))
        # Rounds that are not said are refused in the words of whoever needs them.
        given = {name: content[name] for name in _PARTS if name in content}
        if "algorithm" in given:
            given["algorithm"] = {"rounds": 0, **given["algorithm"]}
        parts = {name: _made(_PARTS[name], part, path) for name, part in given.items()}
        return cls.of(
            schema,
            units,
            declared,
            training,
            release=content["release"],
            units_drafted=units_drafted,
            **parts,
        )


_EARLIER = (
    "bidro 0.1.0 of before this entry reads agreements without it; draft this one anew with `bidro schema`"
)
_NO_RELEASE = (
    '{where} must say what leaves the sites, release = "moments" (second moments, exactly: squared loss), '
    '"private" (sums with noise under each site\'s budget) or "trusted" (what the algorithm asks, exactly, '
    "to a server that is trusted by contract){said}."
)
_NEEDS_TRUST = (
    'release = "moments" is for squared loss, whose second moments are all that training needs; {what} asks '
    'for exact numbers about models that the server chooses: agree on release = "trusted", or, of squared '
    'and logistic loss, on "private".'
)
# The parts of the file besides [training], by the names of the fields that they are.
_PARTS: dict[str, Any] = {
    "algorithm": AlgorithmOne,
    "privacy": Terms,
    "limits": AskLimits,
    "scores": ScoresAgreement,
    "neural_network": NetworkAgreement,
}


def _made(kind: Any, content: Mapping[str, Any], path: Path) -> Any:
    """A part of the file as an object."""
    _require_keys(content, {one.name for one in dataclasses.fields(kind)}, f"'{path}'")
    return kind(**content)


def _column(one: Any, path: Path, units: dict[str, Unit], support: dict[str, Any]) -> Column:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        raise BidroError(f"Every [[columns]] of '{path}' needs a name.")
    name, where = one["name"], f"Column '{one['name']}' of '{path}'"
    _require_keys(
        one,
        {"name", "levels", "filler", "other", "of", "dates", "exposure", "support", "centre", "spread"},
        where,
    )
    levels = _texts(one.get("levels"), name, 1)
    if levels is not None and "centre" in one:
        raise BidroError(f"{where} has levels, whose centre is 0; it may have a spread.")
    if "support" in one:
        support[name] = one["support"]
    if "centre" in one or "spread" in one:
        centre = 0.0 if levels is not None else one.get("centre", math.nan)
        units[name] = Unit(centre, one.get("spread", math.nan))
    filler, other, of, dates = (one.get(part) for part in ("filler", "other", "of", "dates"))
    return Column(name, levels, filler, other, of, dates, one.get("exposure", False) is True)


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


_HEAD = """\
# What all sites agree on: one site drafts it, all agree on it, and each keeps a copy. A site answers this and
# nothing else, so that whoever asks cannot choose how to ask.
# Every number has a unit, which is public: `centre` and `spread`, here the mean and deviation of one table,
# rounded. Levels are 0 or 1 with a spread of 1/2 unless one is named.
# `units_drafted = true` says that units are read off rows: then a private run is to try out, and promises
# nothing. Put in what is known from elsewhere (one digit will do), and take that line out.
# Bounds ("support") hold for every row that any site can ever have; they are needed for the Wasserstein
# certificate, for all numbers or for none. What is commented out was read off one table: widen it and agree.
# `person` names the column of the person or thing that a row is of, where rows of one are to stay together.
# [survival] is of times to an event, the target: the column of times, the ends of the periods, and what the
# target says where it happened and where it did not.
# To a number with `exposure = true` predictions of counts and costs are in proportion; it has no unit.
# `target_unit` says what the target is counted in, such as "days": for the report page, and for nothing else.
# A level that is not listed counts as the one that `other` names; without `other`, no site trains on it, and
# predictions take it for the average level.
# [training] has the options of `bidro fit` that change what sites are asked, [limits] how much.
# `release` says what leaves the sites: "moments", second moments exactly (squared loss); "private", a few
# sums with noise under each site's budget ([privacy] has its terms); "trusted", what the algorithm asks,
# exactly, to a server that is trusted by contract. It has no default: agree on one.
# [scores] with `loss` (and `largest`, as which larger losses count) lets sites that allow it score models
# from elsewhere (`bidro federate --certify`).
# [neural_network] with `factory` (package.module:function, installed at every site) and `rounds` trains that
# in place of a linear model, at sites that allow it.
"""


def units_of(schema: Schema, table: pd.DataFrame) -> dict[str, Unit]:
    """The centre and spread of every number: mean and deviation, to one digit of the deviation, so that they
    tell little of the table; they are public from then on."""
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
) -> Agreement:
    """What would be agreed on by the units of this table, marked as read off it, and with the kind of release
    that is proposed for it, unless `parts` say which."""
    release = parts.pop("release", None) or proposed(schema, len(table), training, parts)[0]
    own = {"release": release, "units_drafted": True, **parts}
    return Agreement.of(schema, units_of(schema, table), support, training, **own)


# Rows of one site from which on noise under a budget of 1 costs a loss of classes a few per cent (`bench`).
_ROWS_FOR_NOISE = 5_000


def proposed(
    schema: Schema,
    rows: int,
    training: Mapping[str, Any] | None = None,
    parts: Mapping[str, Any] | None = None,
) -> tuple[Release, str]:
    """(what kind of release suits what is trained, for a site with so many rows, why)."""
    said, parts = training or {}, parts or {}
    word = said.get("loss") or default_word("regression" if schema.classes is None else "classification")
    if parts.get("privacy") is not None:
        return "private", "a part [privacy] is agreed on"
    if parts.get("neural_network") is not None or parts.get("algorithm") is not None:
        return "trusted", "networks and Algorithm 1 ask for gradients at models that the server chooses"
    if word == "squared":
        return "moments", "second moments are all that squared loss needs; nobody is told single rows"
    if word == "logistic" and rows >= _ROWS_FOR_NOISE:
        return "private", f"{word} loss asks at models that the server chooses, and {rows:,} rows bear noise"
    few = f", and {rows:,} rows are few for noise" if word == "logistic" else ""
    return "trusted", f"{word} loss asks for exact numbers about models that the server chooses{few}"


def draft(schema: Schema, table: pd.DataFrame) -> str:
    """A `schema.toml` to be agreed on, with the bounds of this table as comments: what one table happens to
    hold is not a support that was declared."""
    seen = {name: (float(np.nanmin(v)), float(np.nanmax(v))) for name, v in _numbers(schema, table).items()}
    agreed, why = drafted(schema, table), proposed(schema, len(table))[1]
    return _HEAD + "\n".join([*_columns(agreed, seen, "# ", why), *_training(agreed, "# ")])


def written(agreed: Agreement) -> str:
    """A `schema.toml` that says exactly this."""
    return "\n".join([*_columns(agreed, agreed.support or {}, ""), *_training(agreed, "")])


def _numbers(schema: Schema, table: pd.DataFrame) -> dict[str, Any]:
    numbers = [column.name for column in schema.columns if column.levels is None]
    numbers += [schema.target] if schema.classes is None else []
    return {name: schema.as_numbers(name, table) for name in numbers}


def _columns(
    agreed: Agreement, support: Mapping[str, tuple[float, float]], mark: str, why: str = ""
) -> list[str]:
    schema = agreed.schema

    def bounds(name: str, before: str = "") -> list[str]:
        return [f"{mark}{before}support = {toml(list(support[name]))}"] if name in support else []

    def unit(name: str, before: str = "", centre: bool = True) -> list[str]:
        if name not in agreed.units:
            return []
        found = agreed.units[name]
        lines = [f"{before}centre = {toml(found.centre)}"] if centre else []
        return [*lines, f"{before}spread = {toml(found.spread)}"]

    lines = [f"client = {toml(schema.client)}", f"target = {toml(schema.target)}"]
    if schema.target_unit is not None:
        lines.append(f"target_unit = {toml(schema.target_unit)}")
    if schema.person not in (None, ROW):
        lines.append(f"person = {toml(schema.person)}")
    if schema.classes is not None and schema.survival is None:
        lines.append(f"classes = {toml(list(schema.classes))}")
    lines += [f"# Proposed, as {why}."] if why else []
    lines.append(f"release = {toml(agreed.release)}")
    if agreed.units_drafted:
        lines.append("units_drafted = true")
    lines += unit(schema.target, "target_") + bounds(schema.target, "target_")
    if schema.survival is not None:
        lines += ["", "[survival]", *(f"{name} = {toml(v)}" for name, v in schema.survival.to_dict().items())]
    for column in schema.columns:
        if schema.survival is not None and column.name == schema.survival.time:
            continue
        lines += ["", "[[columns]]", f"name = {toml(column.name)}"]
        if column.levels is not None:
            lines.append(f"levels = {toml(list(column.levels))}")
        given = {"other": column.other, "of": column.of, "dates": column.dates}
        lines += [f"{entry} = {toml(word)}" for entry, word in given.items() if word is not None]
        lines += ["exposure = true"] if column.exposure else []
        lines += unit(column.name, centre=column.levels is None) + bounds(column.name)
        if column.filler is not None:
            lines.append(f"filler = {toml(column.filler)}")
    return lines


# What stands in a draft below [privacy].
_EPSILON_IN_WORDS = """\
# epsilon = 1 means: at most a factor of e^1 = 2.7 in the odds that anybody can tell whether a person took
# part, by all that leaves. Each site's own budget stands in its site.toml ([privacy] epsilon). Three sites or
# more can share the noise, which then costs a model much less: each adds a share, sums are masked, and
# epsilon holds as long as `honest` of the sites keep theirs to themselves. Every owner sends the line that
# `bidro site key` shows.
# [privacy.shared]
# epsilon = 1
# honest = 0.5
# [privacy.shared.keys]
# "a site" = "64 hexadecimal digits\""""


def _training(agreed: Agreement, mark: str) -> list[str]:
    """The parts but the columns; in a draft as comments that show what there is."""
    options = agreed.options.in_file()
    training = {name: options[name] for name in TRAINING}
    lines = ["", "[training]", *toml_lines(training, "training.", mark)]
    for name in _PARTS:
        if (part := getattr(agreed, name)) is not None:
            given = {key: value for key, value in dataclasses.asdict(part).items() if value is not None}
            begin = mark if name == "limits" else ""
            lines += ["", f"[{name}]", *(f"{begin}{key} = {toml(value)}" for key, value in given.items())]
            lines += _EPSILON_IN_WORDS.splitlines() if mark and name == "privacy" else []
    return [*lines, ""]


# A site is warned about whose mean lies so many agreed spreads from the agreed centre, or whose deviation is
# so many times the agreed spread, or such a part of it.
_AWAY = 4.0
_RATIO = 4.0


class FarUnit(NamedTuple):
    """A column that lies far from what was agreed on."""

    column: str
    mean: float
    deviation: float
    agreed: Unit

    def in_words(self, numbers: bool) -> str:
        """With the site's own numbers where these stay, or are known already."""
        own = f" (mean {self.mean:.4g}, deviation {self.deviation:.4g})" if numbers else ""
        return (
            f"its column '{self.column}'{own} lies far from the agreed centre {self.agreed.centre:g} and "
            f"spread {self.agreed.spread:g}: is it in another unit?"
        )


def far_units(agreed: Agreement, mean: Floats, deviation: Floats) -> list[FarUnit]:
    """The numbers among the columns, of which these are the mean (m,) and the deviation (m,) at a site, the
    target last, that lie far from the agreed units. One that does not vary at all tells by its mean alone."""
    schema, found = agreed.schema, []
    names = [*schema.features, schema.target]
    for name, own, spread in zip(names, mean.tolist(), deviation.tolist(), strict=True):
        unit = agreed.units.get(name)
        if unit is None:
            continue  # of a level, or of classes
        ratio = spread / unit.spread
        if abs(own - unit.centre) > _AWAY * unit.spread or ratio > _RATIO or 0 < ratio < 1 / _RATIO:
            found.append(FarUnit(name, own, spread, unit))
    return found


def far_units_of(agreed: Agreement, features: Floats, target: Floats) -> list[FarUnit]:
    """The same of rows themselves, features (N, k) and target (N,)."""
    parts = [client_moments(part, [len(target)]) for part in (features, target[:, None])]
    mean, deviation = (np.concatenate([part[0] for part in both]) for both in zip(*parts, strict=True))
    return far_units(agreed, mean, deviation)
