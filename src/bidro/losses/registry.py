"""Every loss by its word: what options, model files, messages and the report page know of it.

A loss is added by one `LossEntry`: with it the estimators and the command accept the word, a model with it
can be saved and sent to sites, and the page has words for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from bidro.core.errors import BidroError
from bidro.losses.base import Loss
from bidro.losses.linear import (
    Absolute,
    Hinge,
    Huber,
    LinearScores,
    Logistic,
    Pinball,
    SmoothedHinge,
    Squared,
)
from bidro.losses.log_link import Gamma, Poisson, Tweedie
from bidro.losses.softmax import Softmax

Task = Literal["regression", "classification"]

# Where a loss falls for ever as the model grows, a level that only four rows have, all of one class, would be
# separated with certainty. So every client's sum of losses has so much of a row more that pulls slopes to
# 0: a client of few rows is held back by its own, however much it counts in a mixture, and a client of a
# thousand hardly. A whole row of every client would be felt where many have few.
PSEUDO_ROWS = 0.25

TASKS: tuple[Task, ...] = ("regression", "classification")


@dataclass(frozen=True)
class LossEntry:
    """All that options, model files, messages and the report page know of a loss.

    `parameters` are the loss's own fields that users choose, by the names that estimators and options have
    for them; a field that is not chosen keeps its own default. Those in `in_target_spreads` are chosen in
    standard deviations of the target.

    Examples:
        >>> from bidro import Absolute, LossEntry
        >>> entry = LossEntry("absolute", Absolute, "regression", "absolute error", "{target}")
        >>> entry.unit_in("days")
        'days'
    """

    word: str  # that users choose it by
    kind: type[Loss]  # its class
    task: Task  # "regression" or "classification"
    in_words: str  # on the report page
    unit: str  # of the loss; {target} stands for what the target is measured in
    parameters: tuple[str, ...] = ()  # fields that users choose
    in_target_spreads: tuple[str, ...] = ()  # those of them that are in standard deviations of the target
    offered: bool = True  # whether users choose it by its word
    many_classes: str | None = None  # the word of the loss that takes its place for more than two classes
    probabilities: bool = False  # whether its scores are logarithms of odds
    root_unit: bool = False  # whether its root is in the target's own unit
    typical: Callable[[float], float] | None = None  # a mean loss as an error in the target's own unit
    typical_words: str = ""  # what that error is
    by_errors: bool = False  # whether people read the mean error of predictions, as the loss has no unit

    def unit_in(self, measure: str) -> str:
        """The unit of the loss, where the target is measured in this, or has this name: "days²"; "" where it
        has none. Of several words or a quotient it is the whole that is squared."""
        squared = self.unit != "{target}" and re.search(r"[\s/*·^²³]", measure)
        return self.unit.format(target=f"({measure})" if squared else measure)

    def made(self, intercept: bool, given: Mapping[str, float], target_spread: float = 1.0) -> Loss:
        """The loss of a numeric target or of two classes, in the units of training."""
        own = {
            name: given[name] * (target_spread if name in self.in_target_spreads else 1.0)
            for name in self.parameters
            if name in given
        }
        return self.kind(intercept=intercept, **own)  # type: ignore[call-arg]


_ENTRIES: dict[str, LossEntry] = {}


def register_loss(entry: LossEntry) -> None:
    """Make a loss known by its word, to estimators, the command, model files and messages of this process.

    Args:
        entry: the loss's class, its word, and the words for it on the page.

    Returns:
        Nothing.

    Raises:
        BidroError: for a word or a class that is taken.

    Examples:
        >>> from bidro import Absolute, BidroError, LossEntry, register_loss
        >>> try:
        ...     register_loss(LossEntry("absolute", Absolute, "regression", "absolute error", "{target}"))
        ... except BidroError as error:
        ...     print(error)
        There is a loss 'absolute' or one of its class already.
    """
    if any(entry.word == known.word or entry.kind is known.kind for known in _ENTRIES.values()):
        raise BidroError(f"There is a loss '{entry.word}' or one of its class already.")
    _ENTRIES[entry.word] = entry


_BY_ERRORS: dict[str, Any] = {"typical_words": "the mean absolute error", "by_errors": True}
for _entry in (
    LossEntry(
        "squared",
        Squared,
        "regression",
        "squared error",
        "{target}²",
        root_unit=True,
        typical=math.sqrt,
        typical_words="the root of the mean squared error",
    ),
    LossEntry(
        "absolute",
        Absolute,
        "regression",
        "absolute error",
        "{target}",
        typical=float,
        typical_words="the mean absolute error",
    ),
    LossEntry(
        "huber",
        Huber,
        "regression",
        "Huber loss",
        "{target}²",
        ("threshold",),
        ("threshold",),
        typical=lambda mean: math.sqrt(2 * mean),  # below its threshold it is half the square
        typical_words="the root of twice the mean Huber loss, in which large errors count less",
    ),
    LossEntry(
        "pinball",
        Pinball,
        "regression",
        "pinball loss",
        "{target}",
        ("quantile",),
        typical=float,
        typical_words="the mean pinball loss, in which errors above and below count differently",
    ),
    LossEntry(
        "logistic",
        Logistic,
        "classification",
        "log loss",
        "nats",
        many_classes="softmax",
        probabilities=True,
    ),
    LossEntry("smoothed hinge", SmoothedHinge, "classification", "smoothed hinge loss", "", ("width",)),
    LossEntry("poisson", Poisson, "regression", "half the Poisson deviance of counts", "", **_BY_ERRORS),
    LossEntry("gamma", Gamma, "regression", "half the Gamma deviance of costs", "", **_BY_ERRORS),
    LossEntry("tweedie", Tweedie, "regression", "half the Tweedie deviance", "", ("power",), **_BY_ERRORS),
    LossEntry("softmax", Softmax, "classification", "log loss", "nats", offered=False, probabilities=True),
    LossEntry("hinge", Hinge, "classification", "hinge loss", "", offered=False),
):
    register_loss(_entry)


def words(task: str | None = None) -> tuple[str, ...]:
    """The losses that users can choose, of one task or of all."""
    return tuple(e.word for e in _ENTRIES.values() if e.offered and task in (None, e.task))


def entry_of(loss: Loss) -> LossEntry:
    """Raises BidroError for a loss that is not registered."""
    for entry in _ENTRIES.values():
        if type(loss) is entry.kind:
            return entry
    raise BidroError(f"A {type(loss).__name__} loss is not registered: see `bidro.losses.registry`.")


def unit_of(word: str, measure: str) -> str:
    """The unit of a loss by its word: `LossEntry.unit_in`."""
    return _ENTRIES[word].unit_in(measure)


def typical_of(word: str) -> Callable[[float], float] | None:
    """How a mean loss is brought to the target's own unit; None for a loss without that, or unknown."""
    return _ENTRIES[word].typical if word in _ENTRIES else None


def typical_words(word: str) -> str:
    """What that is."""
    return _ENTRIES[word].typical_words


def kinds() -> dict[str, type[Loss]]:
    """The classes of all losses, by word."""
    return {entry.word: entry.kind for entry in _ENTRIES.values()}


@dataclass(frozen=True)
class LossChoice:
    """A loss as a user chooses it, before the rows are known. Raises BidroError for one that there is not."""

    word: str
    classes: int | None  # None for a number
    intercept: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        task = "regression" if self.classes is None else "classification"
        require_word(self.word, task)
        entry = _ENTRIES[self.word]
        if self.classes is not None and self.classes > 2 and entry.many_classes is None:
            others = [w for w in words(task) if _ENTRIES[w].many_classes is not None]
            raise BidroError(
                f"The {self.word} is for two classes, and there are {self.classes}; use '{others[0]}'."
            )
        for name in entry.parameters:
            value = self.parameters.get(name, 1.0)
            if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
                raise BidroError(f"{name} must be a finite number; got {value!r}.")

    @property
    def log_link(self) -> bool:
        """Whether scores are logarithms of means: then targets are not centred."""
        return issubclass(_ENTRIES[self.word].kind, Tweedie)

    def in_units(self, target_spread: float) -> Loss:
        """The loss in the units of training, in which the target has this standard deviation."""
        entry = _ENTRIES[self.word]
        if self.classes is not None and self.classes > 2:
            assert entry.many_classes is not None
            many: Any = _ENTRIES[entry.many_classes].kind
            made: Loss = many(self.classes, self.intercept)
        else:
            made = entry.made(self.intercept, self.parameters, target_spread)
        if isinstance(made, Tweedie):
            made = replace(made, size=target_spread)
        if isinstance(made, LinearScores) and made.infimum_at_infinity:
            return replace(made, pseudo_rows=PSEUDO_ROWS)  # type: ignore[type-var]
        return made


def require_word(word: Any, task: str | None = None) -> None:
    """Raise BidroError for a word that is no loss, or none of the task's."""
    if word not in words(task):
        of = f" for {task}" if task else ""
        raise BidroError(f"loss must be one of {', '.join(words(task))}{of}; got {word!r}.")


def default_word(task: str) -> str:
    """The first of the task's."""
    return words(task)[0]
