"""The neural network that sites agree to train: the part [neural_network] of `schema.toml`.

It names a function that is installed at the server and at every site; no code travels. What the function is
called with, by which algorithm it is trained, with which steps and batches, and for how many rounds stands
here, so that nobody chooses it later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from bidro.algorithms import AFL, DRFA, QFFL, Adam, BiDROLocal, FedAvg, GroupDRO, Momentum, ServerOptimised
from bidro.algorithms.contract import Algorithm
from bidro.client import Penalty
from bidro.errors import BidroError
from bidro.guarantees.asked import is_number
from bidro.losses import Loss
from bidro.losses.torch_loss import require_torch
from bidro.networks.models import from_factory, loss_of, require_factory_name
from bidro.worst_case import FixedStepAscent

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
class AgreedNetwork:
    """Raises BidroError for what stands for nothing; nothing is imported."""

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
        found = _made("algorithm", ALGORITHMS, self.algorithm, given, self.settings)
        if self.optimiser is None:
            if self.optimiser_settings:
                raise BidroError(
                    "[neural_network]: optimiser_settings are for an optimiser at the server; name it: "
                    'optimiser = "Adam".'
                )
            return found
        own = self.optimiser_settings
        return ServerOptimised(found, _made("optimiser", _OPTIMISERS, self.optimiser, own, own))

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


def _seeded(name: str, arguments: Mapping[str, Any], seed: int) -> Any:
    if find_spec("torch") is None:
        # A function of JAX needs none; a factory that does says so.
        return from_factory(name, arguments)
    torch = require_torch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return from_factory(name, arguments)


def _made(what: str, known: Mapping[str, type], word: Any, given: Mapping[str, Any], said: Any) -> Any:
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
