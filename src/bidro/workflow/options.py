"""All options of `bidro fit` as one object, from a TOML file and back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidro.errors import BidroError
from bidro.guarantees.asked import check_shift, is_number
from bidro.guarantees.price import PRICE
from bidro.guarantees.segments import DEFAULT_CURVES
from bidro.losses.registry import TASKS, LossChoice, default_word, require_word
from bidro.privacy.terms import Budget
from bidro.tables.learned import require_filling
from bidro.tables.schema import require_measure
from bidro.training import Choices, Replies
from bidro.transport import require_distances
from bidro.workflow.toml_files import read_toml


@dataclass(frozen=True)
class FitOptions:
    """See `bidro fit --help`. `support` has [lower, upper] by column."""

    tables: tuple[str, ...] = ()
    schema: str | None = None  # the file that sites agree on, where it says all the rest
    client: str | None = None
    target: str | None = None
    measured_in: str | None = None  # what a target that is a number is counted in: for people
    task: str | None = None
    features: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ()  # columns that are categories whatever their cells look like
    drop: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()  # columns of dates, which count as days since 1970-01-01
    unit: str | None = None
    loss: str | None = None
    quantile: float = 0.5
    threshold: float = 1.35
    radius: float | str | Mapping[str, float] = 0.0
    weights: float | str = "auto"
    price: float | str = PRICE
    criterion: str = "risk"
    own: str = "auto"
    curves: int | str | Mapping[str, int | str] = DEFAULT_CURVES
    increasing: tuple[str, ...] = ()
    decreasing: tuple[str, ...] = ()
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
    epsilon: float | None = None  # of a private fit in one process; between sites it is each site's own
    delta: float = 1e-6
    rows_per_person: int = 1

    def changed(self, given: Mapping[str, Any]) -> FitOptions:
        """With the options that were given; None stands for "not given"."""
        return dataclasses.replace(self, **{k: v for k, v in given.items() if v is not None})

    def check(self) -> None:
        """Raise BidroError for an option that stands for nothing, as far as it shows before tables are read.

        Whether the loss is one of the task's is said here only where the task is given.
        """
        self.choices()
        check_shift(self.shift)
        if self.radius == "bootstrap" or (self.support is not None and self.metric == "joint"):
            require_distances()
        if not is_number(self.hold_out) or not 0 <= self.hold_out < 1:
            raise BidroError(f"hold_out must be a share from 0 to below 1; got {self.hold_out!r}.")
        if not is_number(self.quantile) or not 0 < self.quantile < 1:
            raise BidroError(f"quantile must be a number strictly between 0 and 1; got {self.quantile!r}.")
        if not is_number(self.threshold) or not 0 < self.threshold < math.inf:
            raise BidroError(f"threshold must be a positive number; got {self.threshold!r}.")
        check_task(self.task, self.missing)
        if self.measured_in is not None:
            require_measure(self.measured_in)
        self.budget()
        if self.loss is not None:
            require_word(self.loss, self.task)

    def budget(self) -> Budget | None:
        """The privacy budget of every client; None where the fit is not private. Raises BidroError for what
        is none, and where units would be read off the rows."""
        if self.epsilon is None:
            return None
        if self.schema is None:
            raise BidroError(
                "A private fit needs units that are public: draft them with `bidro schema TABLE --target "
                "COLUMN --out schema.toml`, see to it that they tell nothing of the rows, and give --schema "
                "schema.toml."
            )
        return Budget(self.epsilon, self.delta, self.rows_per_person)

    def choices(self, replies: Replies = "curvature") -> Choices:
        """What training is to choose by. Raises BidroError for what stands for nothing."""
        return Choices(
            radius=self.radius,
            weights=self.weights,
            # A TOML file of this program holds no infinite numbers.
            price=math.inf if self.price == "inf" else self.price,  # type: ignore[arg-type]
            criterion=self.criterion,
            own=None if self.own == "none" else self.own,
            metric=self.metric,
            label_cost=self.label_cost,
            gap=self.gap,
            folds=self.folds,
            seed=self.seed,
            confidence=self.confidence,
            replies=replies,
            curves=self._curves(),
            increasing=self.increasing,
            decreasing=self.decreasing,
        )

    def _curves(self) -> Any:
        """As `Choices` has them: a TOML file has no word for None but "none"."""
        if isinstance(self.curves, Mapping):
            return {name: _curve(one) for name, one in self.curves.items()}
        return None if self.curves == "none" else self.curves

    def loss_choice(self, classes: int | None) -> LossChoice:
        """The loss for a number (None) or for so many classes. Raises BidroError where there is none."""
        word = self.loss or default_word("regression" if classes is None else "classification")
        return LossChoice(word, classes, True, {"threshold": self.threshold, "quantile": self.quantile})

    def to_toml(self) -> str:
        lines, tables = [], []
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, Mapping):
                tables += ["", f"[{name}]", *(f"{_quoted(k)} = {_toml(v)}" for k, v in value.items())]
            elif value is not None:
                # Only a price may be infinite, and JSON has no word for that.
                lines.append(f"{name} = {_toml('inf' if value == math.inf else value)}")
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
        for name in ("tables", "features", "categories", "drop", "dates", "increasing", "decreasing"):
            if name in content:
                if not isinstance(content[name], list):
                    raise BidroError(f"'{path}': {name} is a list of names; got {content[name]!r}.")
                content[name] = tuple(map(str, content[name]))
        return cls(**content)


def _curve(asked: int | str) -> Any:
    """Segments, or segments and the category that there is a curve for each level of: "8@sex"."""
    if not isinstance(asked, str) or "@" not in asked:
        return None if asked == "none" else asked
    segments, category = asked.split("@", 1)
    return (int(segments) if segments.isdigit() else segments), category


def check_task(task: str | None, missing: str) -> None:
    """Raise BidroError for words that `tables.learn_schema` would refuse once a table is read."""
    if task is not None and task not in TASKS:
        raise BidroError(f"task must be one of {', '.join(TASKS)}; got {task!r}.")
    require_filling(missing)


def _toml(value: Any) -> str:
    """Text, finite numbers and lists of them are the same in TOML as in JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _quoted(key: str) -> str:
    return json.dumps(str(key), ensure_ascii=False)
