"""What is promised to the people in the rows, where sites have privacy budgets: `Privacy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bidro.trees import Frozen

_MOST_NAMED = 5
TO_TRY = (
    "To try out, not private: the units that rows are put into were drafted from rows, so that one row far "
    "out moves them and all that follows. Write units that are known from elsewhere into schema.toml, take "
    "its line units_drafted out and use that; then budgets are promised."
)


@dataclass(frozen=True)
class Privacy:
    """Of all that left clients in a run: by which budgets it is differentially private."""

    budgets: Mapping[str, tuple[float, float, int] | None]  # by client: epsilon, delta, rows a person
    excess: float  # the share by which the mean loss in training rises if noisy sums show rows as they are
    kept: bool  # whether every client keeps account of all runs, and not of this one alone
    units: bool = False  # whether rows are of people or things that have several, and not each of its own
    exact: tuple[str, ...] = ()  # clients that exact sums over rows have left in other runs, by no budget
    drafted: bool = False  # whether the units that rows were put into were read off rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "budgets", Frozen(self.budgets))
        object.__setattr__(self, "exact", tuple(self.exact))

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
        if not set(found.exact) <= set(budgets) or type(found.drafted) is not bool:
            raise ValueError("what is said of clients or units is not of these")
        if found.promise != said:
            raise ValueError("what is promised is not what the budgets say")
        return found

    @property
    def promise(self) -> str:
        """Who is protected, by how much, and what that assumes."""
        if self.drafted:
            return TO_TRY
        lines = []
        for (budget, exact), names in self._together().items():
            if budget is not None:
                lines.append(self._budget(budget, names, exact))
        bare = [name for name, budget in self.budgets.items() if budget is None]
        if bare:
            lines.append(f"Nothing is promised to the people at {_named(bare)}, which has no budget.")
        lines.append(
            "It assumes that all rows of a person are at one client; who has rows at several is covered by "
            "the sums of their epsilons and deltas."
        )
        lines.append(
            f"Each client keeps account of all that it releases{' with noise' * bool(self.exact)}, in every "
            "run together."
            if self.kept
            else "It counts this run alone: another on the same rows costs as much again."
        )
        return " ".join(lines)

    def _budget(self, budget: tuple[float, float, int], names: list[str], exact: bool) -> str:
        epsilon, delta, rows = budget
        here = _named(names)
        left = f"What left {here} in private runs" if exact else f"All that left {here}"
        besides = (
            f" Exact sums over rows have left {here} in other runs, which had no budget: of these nothing is "
            "promised."
        )
        whose = f"one unit, of which at most {rows} row{'s' * (rows > 1)} count" if self.units else "a row"
        return (
            f"{left}, and so this model and all that is stated of it, is differentially private with "
            f"epsilon = {epsilon:g} and delta = {delta:g}, for adding or removing {whose}.{besides * exact}"
        )

    def _together(self) -> dict[tuple[tuple[float, float, int] | None, bool], list[str]]:
        """Clients by what their budget is, and by whether exact sums have left them."""
        found: dict[tuple[tuple[float, float, int] | None, bool], list[str]] = {}
        for name, budget in self.budgets.items():
            found.setdefault((budget, name in self.exact), []).append(name)
        return found

    @property
    def cost(self) -> str:
        """What the noise costs, as far as it can be known without the rows: no upper end, as what noise hides
        may explain all of a target."""
        return (
            "If rows are as the noisy sums show them, noise and clipping raise the mean loss in training by "
            f"about {self.excess:.1%}. That is no upper end, and none is known: where a feature nearly "
            "follows from others, few rows have a level, or rows lie far out, it can be many times as much; "
            "what the loss is at most is told by rows kept out. Numbers of rows and losses of clients are "
            "shown with the noise that they were told with."
        )


def _named(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
