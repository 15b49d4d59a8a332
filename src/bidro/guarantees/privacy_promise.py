"""What is promised to the people in the rows, where sites have privacy budgets: `Privacy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bidro.trees import Frozen

_MOST_NAMED = 5


@dataclass(frozen=True)
class Privacy:
    """Of all that left clients in a run: by which budgets it is differentially private."""

    budgets: Mapping[str, tuple[float, float, int] | None]  # by client: epsilon, delta, rows a person
    excess: float  # the share by which noise and clipping are expected to raise the mean loss in training
    kept: bool  # whether every client keeps account of all runs, and not of this one alone
    units: bool = False  # whether rows are of people or things that have several, and not each of its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "budgets", Frozen(self.budgets))

    @classmethod
    def restored(cls, content: Mapping[str, Any]) -> Privacy:
        """From JSON. Raises ValueError, TypeError or KeyError for what is none."""
        part = {**content}
        said = part.pop("promise")
        budgets = {
            str(name): None if one is None else (float(one[0]), float(one[1]), int(one[2]))
            for name, one in part.pop("budgets").items()
        }
        found = cls(budgets, **part)
        if found.promise != said:
            raise ValueError("what is promised is not what the budgets say")
        return found

    @property
    def promise(self) -> str:
        """Who is protected, by how much, and what that assumes."""
        lines = [self._budget(budget, names) for budget, names in self._together() if budget is not None]
        bare = [names for budget, names in self._together() if budget is None]
        if bare:
            lines.append(f"Nothing is promised to the people at {_named(bare[0])}, which has no budget.")
        lines.append(
            "It assumes that all rows of a person are at one client; who has rows at several is covered by "
            "the sums of their epsilons and deltas."
        )
        lines.append(
            "Each client keeps account of all that it releases, in every run together."
            if self.kept
            else "It counts this run alone: another on the same rows costs as much again."
        )
        return " ".join(lines)

    def _budget(self, budget: tuple[float, float, int], names: list[str]) -> str:
        epsilon, delta, rows = budget
        whose = f"one unit, of which at most {rows} row{'s' * (rows > 1)} count" if self.units else "a row"
        return (
            f"All that left {_named(names)}, and so this model and all that is stated of it, is "
            f"differentially private with epsilon = {epsilon:g} and delta = {delta:g}, for adding or "
            f"removing {whose}."
        )

    def _together(self) -> list[tuple[tuple[float, float, int] | None, list[str]]]:
        """Clients by what their budget is."""
        found: dict[tuple[float, float, int] | None, list[str]] = {}
        for name, budget in self.budgets.items():
            found.setdefault(None if budget is None else tuple(budget), []).append(name)  # type: ignore[arg-type]
        return list(found.items())

    @property
    def cost(self) -> str:
        """What the noise costs, as far as it can be known without the rows."""
        return (
            f"Noise and clipping are expected to raise the mean loss in training by about {self.excess:.1%}; "
            "numbers of rows and losses of clients are shown with the noise that they were told with."
        )


def _named(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
