"""The comparison on real tables as a page: every table, ranks, and our default beside the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bidro.experiments.compare import OURS, in_words, paired
from bidro.experiments.methods import METHODS

_COLUMNS = {
    "mean": "mean",
    "worst_client": "worst client",
    "worst_decile": "worst decile",
    "mixtures": "mixtures, mean",
    "worst_mixture": "mixtures, worst",
    "shift_0.25": "shift 0.25",
    "shift_0.5": "shift 0.5",
    "shift_1": "shift 1",
}
_OF_CLASSES = {"mistakes": "mistakes", "worst_decile_mistakes": "mistakes, worst decile"}
KEY = "worst_decile"


def ranks(studies: Mapping[str, Any], key: str = KEY) -> dict[str, dict[str, int]]:
    """For every method its rank on every table it could be trained on, 1 for the lowest mean; methods by
    their mean rank."""
    found: dict[str, dict[str, int]] = {}
    for table, study in studies.items():
        order = sorted(study["methods"], key=lambda name: study["methods"][name][key]["mean"])
        for place, name in enumerate(order):
            found.setdefault(name, {})[table] = place + 1
    return dict(sorted(found.items(), key=lambda item: float(np.mean(list(item[1].values())))))


def page(studies: Mapping[str, Any]) -> str:
    """The whole page as Markdown."""
    any_study = next(iter(studies.values()))
    lines = [
        "# All methods on grouped tables",
        "",
        "Made by `python -m studies.real_data`; do not edit. The numbers are in `comparison.json`. What",
        "the methods are, and when to take which, is in [the comparison](../comparison.md).",
        "",
        f"Every method is tuned over {any_study['candidates']} candidates by {any_study['folds']}-fold",
        "cross-validation inside the clients, by the same score (the worst fifth of the clients), with the",
        f"same {any_study['passes']} passes over the rows, and judged on the same 30% of each client's rows.",
        "Losses are squared errors in units of the target's variance, or log loss in nats: mean over splits",
        "± standard error. *Worst decile* is the mean over the worst tenth of the clients; *mixtures* are",
        "200 random ones of the clients; *shift* is the worst decile where every client's features are off",
        "by a vector of random direction and that many standard deviations. *With own* is with the clients'",
        "personal models around the method's model, chosen for every method in the same way.",
        "",
        "![Ranks by worst decile](ranks.png)",
        "",
        *_summary(studies),
    ]
    for name, study in studies.items():
        lines += ["", *_table(name, study)]
    return "\n".join([*lines, ""])


def _summary(studies: Mapping[str, Any]) -> list[str]:
    """How our default does beside the best method of each table."""
    lines = [
        f"## {OURS} beside the best other method, worst decile",
        "",
        "The difference is taken split by split, with its own standard error; below 0 ours is the best.",
        "*Within* is whether ours is at most one standard error above the best other: of the difference,",
        "and of the other's mean. The best of many is picked after the fact, which favours it.",
        "",
        "| table | n | ours | best other | its loss | difference | best | within, diff. | within, mean |",
        "| --- | ---: | ---: | --- | ---: | ---: | --- | --- | --- |",
    ]
    counts = np.zeros(3, int)
    for table, study in studies.items():
        methods = study["methods"]
        other = min((m for m in methods if m != OURS), key=lambda m: methods[m][KEY]["mean"])
        apart, error = paired(study, OURS, other, KEY)
        answers = (apart < 0, apart <= error, apart <= (methods[other][KEY]["se"] or math.nan))
        counts += answers
        lines.append(
            f"| {table} | {study['clients']} | {in_words(methods[OURS][KEY])} | {other} | "
            f"{in_words(methods[other][KEY])} | {apart:+.4f} ± {error:.4f} | "
            + " | ".join("yes" if answer else "no" for answer in answers)
            + " |"
        )
    lines += [
        "",
        f"Of {len(studies)} tables ours is best on {counts[0]}, within one standard error of the difference "
        f"on {counts[1]}, and of the best method's mean on {counts[2]}.",
        "",
        "| method | mean rank | " + " | ".join(studies) + " |",
        "| --- | ---: |" + " ---: |" * len(studies),
    ]
    for method, places in ranks(studies).items():
        cells = " | ".join(str(places.get(table, "")) for table in studies)
        lines.append(f"| {method} | {np.mean(list(places.values())):.1f} | {cells} |")
    return lines


def _table(name: str, study: Mapping[str, Any]) -> list[str]:
    methods = study["methods"]
    classes = "mistakes" in next(iter(methods.values()))
    columns = {**_COLUMNS, **(_OF_CLASSES if classes else {})}
    lines = [
        f"## {name}",
        "",
        f"{study['rows']:,} rows, {study['features']} features, {study['clients']} clients, "
        f"{study['splits']} splits.",
        "",
        "| method | " + " | ".join(columns.values()) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for method in sorted(methods, key=lambda m: methods[m][KEY]["mean"]):
        for title, values in (
            (method, methods[method]),
            (f"{method}, with own", methods[method].get("personal")),
        ):
            if values is not None:
                lines.append(f"| {title} | " + " | ".join(_cell(values[key]) for key in columns) + " |")
    absent = {method: "it was not run" for method in METHODS if method not in methods} | study["failed"]
    lines += ["", *(f"{method} is absent: {why}.  " for method, why in absent.items())] if absent else []
    return lines


def _cell(summary: Mapping[str, Any]) -> str:
    error = summary["se"]
    return f"{summary['mean']:.4f}" + ("" if error is None or math.isnan(error) else f" ± {error:.4f}")
