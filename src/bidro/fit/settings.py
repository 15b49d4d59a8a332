"""The settings of a fit: name, default, what each is for, what it may be, and how it is written.

Everything that takes settings is made from the fields here: the parameters of the estimators, the options of
the command, `run.toml`, the part [training] of what sites agree on. What is said of one setting is said once.
Modules that take long to import are imported where a value is checked, so that the command's help is instant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from bidro.core.errors import BidroError, check_confidence, is_number
from bidro.core.files import read_toml, renamed

if TYPE_CHECKING:
    from bidro.losses.registry import LossChoice

Check = Callable[[str, Any], None]  # (name, value)

RADIUS_WORDS = ("cross-validate", "bootstrap", "explicit")
WEIGHT_WORDS = ("auto", "simplex", "fixed")


@dataclass(frozen=True)
class Setting:
    """What is known of one setting besides its name, type and default."""

    help: str = ""  # in the command's help, one sentence; its default is put behind it
    check: Check | None = None  # (name, value): raises BidroError in one sentence
    option: type | None = str  # what the command parses it as; None where the command does not have it
    from_option: Callable[[Any], Any] = lambda value: value
    in_file: bool = True  # whether it is in `run.toml`
    agreed: bool = True  # whether it is in [training] of what sites agree on
    parameter: str | None = None  # the name that estimators have for it, where that is another
    loss: str | None = None  # the loss that it belongs to, where it is one's alone
    to_file: Callable[[Any], Any] = lambda value: value
    from_file: Callable[[Any], Any] = lambda value: value
    names: bool = False  # whether it is a list of names


def setting(default: Any, help: str = "", check: Check | None = None, **more: Any) -> Any:
    """A dataclass field with what is known of it."""
    return dataclasses.field(default=default, metadata={"setting": Setting(help, check, **more)})


def names(help: str = "", default: tuple[str, ...] | None = (), **more: Any) -> Any:
    """A list of names, which the command has separated by commas."""
    return setting(
        default,
        help,
        names=True,
        from_option=names_in,
        from_file=lambda values: tuple(map(str, values)),
        **more,
    )


def of_python(default: Any, check: Check | None = None, **more: Any) -> Any:
    """A setting that stands in no file and that the command does not have."""
    return setting(default, "", check, option=None, in_file=False, agreed=False, **more)


def settings_of(kind: type) -> Iterator[tuple[dataclasses.Field[Any], Setting]]:
    """The fields of a dataclass of settings with what is known of each."""
    for field in dataclasses.fields(kind):
        yield field, field.metadata["setting"]


def check_settings(of: Any) -> None:
    """Raise BidroError for the first setting of an object that stands for nothing."""
    for field, known in settings_of(type(of)):
        if known.check is not None:
            known.check(field.name, getattr(of, field.name))


# How texts of the command line are read.


def names_in(text: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def curves_in(text: str) -> Any:
    """A word, a number of segments, or one of these by feature."""

    def one(word: str) -> int | str:
        return int(word) if word.strip().isdigit() else word.strip()

    if "=" not in text:
        return one(text)
    # The last "=" is ours: a level of a category is a feature with one of its own.
    return {name.strip(): one(word) for name, word in (part.rsplit("=", 1) for part in text.split(","))}


def pairs_in(text: str) -> Any:
    """A word, a number of pairs, or pairs of names, such as age*sex,bmi*dose."""
    if text.strip().isdigit():
        return int(text)
    return tuple(tuple(names_in(one.replace("*", ","))) for one in text.split(",")) if "*" in text else text


# How values are written in TOML and JSON, which have no word for None and no infinite number.


def _or_none(value: Any) -> Any:
    return None if isinstance(value, str) and value == "none" else value


def _none_as_word(value: Any) -> Any:
    return "none" if value is None else value


def _curves_from_file(value: Any) -> Any:
    """A curve for each level of a category is written "8@sex"."""
    if not isinstance(value, Mapping):
        return _or_none(value)
    return {name: _curve_from_file(one) for name, one in value.items()}


def _curve_from_file(value: Any) -> Any:
    if not isinstance(value, str) or "@" not in value:
        return _or_none(value)
    segments, category = value.split("@", 1)
    return (int(segments) if segments.isdigit() else segments), category


def _curves_to_file(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _curves_to_file(one) for name, one in value.items()}
    return f"{value[0]}@{value[1]}" if isinstance(value, tuple) else _none_as_word(value)


def _pairs_from_file(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(tuple(one) if isinstance(one, list | tuple) else one for one in value)
    return _or_none(value)


# What values may be.


def _must(be: Callable[[Any], bool], words: str) -> Check:
    """A check that raises BidroError with these words, in which {name} stands for the setting's."""

    def check(name: str, value: Any) -> None:
        if not be(value):
            raise BidroError(f"{words.format(name=name)}; got {value!r}.")

    return check


def _is_list_of_names(value: Any) -> bool:
    some = isinstance(value, Iterable) and not isinstance(value, str)
    return some and all(isinstance(one, str) for one in value)


_positive = _must(lambda v: is_number(v) and 0 < v < math.inf, "{name} must be a positive number")
_features = _must(_is_list_of_names, "{name} must be a list of names of features")


def _one_of(*words: str) -> Check:
    return _must(lambda v: isinstance(v, str) and v in words, f"{{name}} must be {_listed(words)}")


def _radius(name: str, value: Any) -> None:
    import numpy as np

    wrong = BidroError(f"{name} must be a number, one a client, {_listed(RADIUS_WORDS)}; got {value!r}.")
    if isinstance(value, str):
        if value not in RADIUS_WORDS:
            raise wrong
        return
    try:
        given = np.asarray(list(value.values()) if isinstance(value, Mapping) else value, float)
    except (TypeError, ValueError) as error:
        raise wrong from error
    if given.ndim > 1 or not np.all((given >= 0) & (given < math.inf)):
        raise BidroError(f"A radius must be a finite number of at least 0; got {value!r}.")


def _weights(name: str, value: Any) -> None:
    if isinstance(value, str):
        if value not in WEIGHT_WORDS:
            raise BidroError(
                f"{name} must be a largest weight ratio of at least 1, {_listed(WEIGHT_WORDS)}; got "
                f"{value!r}."
            )
    elif not is_number(value) or not 1 <= value < math.inf:
        raise BidroError(
            "The largest weight ratio must be a finite number of at least 1 ('simplex' is without one); got "
            f"{value!r}."
        )


def _by_its_room(name: str, value: Any) -> None:
    """A check that stands with what the setting is about."""
    from bidro.certify.held_out import check_shift
    from bidro.selection.pairs import check_pairs
    from bidro.selection.personalise import check_personal
    from bidro.selection.rule import check_max_cost
    from bidro.selection.segments import check_curves

    checks: dict[str, Callable[[Any], None]] = {
        "max_cost": check_max_cost,
        "personal": check_personal,
        "curves": check_curves,
        "pairs": check_pairs,
        "confidence": check_confidence,
        "shift": check_shift,
    }
    checks[name](value)


def _listed(words: Sequence[str]) -> str:
    """'a', 'b' or 'c'."""
    quoted = [f"'{word}'" for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


@dataclass(frozen=True, eq=False, kw_only=True)
class FitSettings:
    """What a user may choose of a fit besides rows and columns; radii are in pooled standard deviations.

    Raises BidroError for a setting that stands for nothing, so that it is said before any work begins.
    """

    loss: str | None = setting(  # None for the first one of the task
        None,
        "squared, absolute, huber, pinball; poisson for counts, gamma or tweedie for costs; logistic, "
        "'smoothed hinge'. [squared or logistic]",
    )
    quantile: float = setting(
        0.5,
        "Of the pinball loss.",
        _must(lambda v: is_number(v) and 0 < v < 1, "{name} must be a number strictly between 0 and 1"),
        option=float,
        loss="pinball",
    )
    power: float = setting(
        1.5,
        "Of the tweedie loss: the power of the mean that the variance is proportional to, from 1 to 2.",
        _must(lambda v: is_number(v) and 1 <= v <= 2, "{name} must be a number from 1 to 2"),
        option=float,
        agreed=False,
        loss="tweedie",
    )
    exposure: str | None = setting(
        None,
        "Of poisson, gamma and tweedie: column of how long, or how much, a row was exposed, above 0; what is "
        "predicted is in proportion to it.",
        _must(lambda v: v is None or isinstance(v, str), "{name} must be the name of a feature"),
        agreed=False,
    )
    threshold: float = setting(1.35, "", _positive, option=None, loss="huber")  # in deviations of the target
    width: float = of_python(1.0, _positive, loss="smoothed hinge")
    fit_intercept: bool = of_python(True)
    radius: Any = setting(
        0.0,
        "Shift inside clients to guard against: a number of standard deviations, cross-validate, bootstrap "
        "or explicit.",
        _radius,
        from_option=number_or_word,
    )
    weights: Any = setting(
        "auto",
        "Mixtures to guard against: auto (within max-cost), simplex (any), fixed (by rows), or the "
        "largest ratio of a client's weight to its share of the rows, such as 3.",
        _weights,
        from_option=number_or_word,
    )
    max_cost: float = setting(
        0.02,
        "By which share the mean loss may rise over pooled training for a better worst case, or inf.",
        _by_its_room,
        from_option=number_or_word,
        from_file=lambda value: math.inf if isinstance(value, str) and value == "inf" else value,
        to_file=lambda value: "inf" if value == math.inf else value,
    )
    criterion: str = setting(
        "risk", "risk, or regret: beyond what each client could attain by itself.", _one_of("risk", "regret")
    )
    personal: Literal["auto", "offset"] | None = setting(
        "auto",
        "Each client's personal model around the shared one: auto, offset or none.",
        _by_its_room,
        from_file=_or_none,
        to_file=_none_as_word,
    )
    curves: Any = setting(
        "auto",
        "Curves in place of straight lines: auto (as many segments as cross-validation chooses), none, a "
        "number of segments, or by feature, such as age=8,bmi=none; age=8@sex for a curve at each level of a "
        "category.",
        _by_its_room,
        from_option=curves_in,
        from_file=_curves_from_file,
        to_file=_curves_to_file,
    )
    pairs: Any = setting(
        "auto",
        "Pairs of features whose effects depend on each other: auto (as many as cross-validation chooses), "
        "none, a number of pairs, or the pairs, such as age*sex,bmi*dose.",
        _by_its_room,
        from_option=pairs_in,
        from_file=_pairs_from_file,
        to_file=_none_as_word,
        agreed=False,
    )
    increasing: Sequence[str] = names(
        "Features with which the prediction must rise, separated by commas.", check=_features
    )
    decreasing: Sequence[str] = names("Features with which it must fall.", check=_features)
    metric: str = setting(
        "features", "features (targets do not move) or joint.", _one_of("features", "joint")
    )
    label_cost: float = setting(
        1.0,
        "Cost of moving the target by one standard deviation, or of another label.",
        _positive,
        option=float,
    )
    p: float | None = of_python(
        None,
        _must(
            lambda v: v is None or (is_number(v) and 1 <= v < math.inf),
            "{name} must be a number of at least 1",
        ),
    )
    # By column, or for estimators (lower, upper) of all; [lower, upper] by column in a file.
    support: Any = setting(
        None,
        "TOML file with declared bounds: column = [lower, upper].",
        option=Path,
        from_option=read_toml,
        agreed=False,
    )
    confidence: float = setting(0.95, "Of the certificate.", _by_its_room, option=float)
    shift: float | None = setting(
        None, "Also bound the loss under a shift of so many standard deviations.", _by_its_room, option=float
    )
    hold_out: float = setting(
        0.2,
        "Share of every client's rows kept for the certificate; 0 for none.",
        _must(lambda v: is_number(v) and 0 <= v < 1, "{name} must be a share from 0 to below 1"),
        option=float,
    )
    new_clients: float = setting(
        0.0,
        "Share of the clients left out of training, so that intervals can be promised for a new client: 9 of "
        "them for 90%.",
        _must(lambda v: is_number(v) and 0 <= v < 1, "{name} must be a share from 0 to below 1"),
        option=float,
        agreed=False,
    )
    folds: int | None = setting(
        None,
        "Of cross-validation. [5]",
        _must(
            lambda v: v is None or (isinstance(v, Integral) and int(v) >= 2),
            "{name} must be a whole number of at least 2",
        ),
        option=int,
    )
    gap: float = setting(
        1e-6,
        "Certified relative duality gap.",
        _must(lambda v: is_number(v) and 0 < v < math.inf, "The gap must be a positive number such as 1e-6"),
        option=float,
    )
    seed: int = setting(
        0,
        "Of the held-out rows and the folds.",
        _must(
            lambda v: isinstance(v, Integral) and 0 <= int(v) < 2**62,
            "The random seed must be a whole number from 0 to below 2^62",
        ),
        option=int,
        parameter="random_state",
    )
    # Coded columns that do not move inside a ball: periods of time.
    held_still: Sequence[str] = of_python(())
    # Whether clients tell second moments and nothing else of their training rows; an agreement says it.
    moments_alone: bool = of_python(False)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.max_cost != FitSettings.max_cost and not (
            isinstance(self.weights, str) and self.weights == "auto"
        ):
            raise BidroError(
                f"max_cost is for weights='auto', which it chooses; with {self.weights!r} leave it out."
            )

    @property
    def cross_validates_radius(self) -> bool:
        return isinstance(self.radius, str) and self.radius == "cross-validate"

    @property
    def no_radius(self) -> bool:
        """Whether a radius is given, and 0 for all clients."""
        import numpy as np

        given = list(self.radius.values()) if isinstance(self.radius, Mapping) else self.radius
        return not isinstance(given, str) and not np.any(np.asarray(given, float))

    def loss_choice(self, classes: int | None) -> LossChoice:
        """The loss for a number (None) or for so many classes. Raises BidroError where there is none."""
        from bidro.losses.registry import LossChoice, default_word

        word = self.loss or default_word("regression" if classes is None else "classification")
        own = {
            field.name: getattr(self, field.name) for field, known in settings_of(FitSettings) if known.loss
        }
        return LossChoice(word, classes, self.fit_intercept, own)

    def in_file(self) -> dict[str, Any]:
        """By name, as TOML and JSON have them; None for what is left out of them."""
        return {
            field.name: known.to_file(getattr(self, field.name))
            for field, known in settings_of(type(self))
            if known.in_file
        }

    @classmethod
    def from_file(cls, content: Mapping[str, Any], where: str, **given: Any) -> Self:
        """From what a file says, and what was `given` in place of it. Raises BidroError for what it may not
        say; `where` begins the sentence."""
        known = {field.name: one for field, one in settings_of(cls) if one.in_file}
        found = {}
        for name, value in renamed(content).items():
            if name not in known:
                raise BidroError(
                    f"{where} has an unknown option '{name}'; there are {', '.join(sorted(known))}."
                )
            if known[name].names and not isinstance(value, list | tuple):
                raise BidroError(f"{name} in {where} is a list of names; got {value!r}.")
            found[name] = known[name].from_file(value)
        return cls(**{**found, **given})


# The settings that sites agree on, in the part [training].
TRAINING = tuple(field.name for field, known in settings_of(FitSettings) if known.agreed)
