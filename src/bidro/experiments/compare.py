"""`bidro compare`: all methods on the same splits, each tuned by the same cross-validation.

In every split 30% of each client's rows are the test. A method is tuned on the other rows, by folds inside
the clients, and trained on all of them. Nothing of the test is seen before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.experiments.methods import CANDIDATES, METHODS
from bidro.experiments.splits import Grouped, Split
from bidro.fitting import Progress
from bidro.splits import unit_ids
from bidro.standard import signs
from bidro.tables import Schema

PASSES = 100
FIRST_SEED = 7000
OURS = "exact MW-DRO"
# What is shown, and under which words.
MEASURES = {
    "mean": "mean",
    "worst_client": "worst client",
    "worst_decile": "worst decile",
    "worst_mixture": "worst mixture",
    "shift_0.5": "shift 0.5",
}


def grouped_from(schema: Schema, table: pd.DataFrame) -> Grouped:
    """A user's table as numbers."""
    labels = schema.labels(table)
    if schema.classes is None:
        target, classes = np.asarray(labels, float), 0
    else:
        classes = len(schema.classes)
        target = signs(np.searchsorted(np.asarray(schema.classes), labels), classes)
    clients, labels_of_units = schema.clients(table), schema.units(table)
    units = None if labels_of_units is None else unit_ids(labels_of_units)
    return Grouped(schema.matrix(table), target, clients, tuple(schema.features), classes, units)


def compare_methods(
    table: Grouped,
    splits: int,
    passes: int = PASSES,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """For each method (all of them by default) its test losses in every split, in the target's own unit.

    A method that cannot be trained on some split is absent, with the reason under `failed`.
    """
    names = known_methods(names)
    if splits < 1 or passes < 2:
        raise BidroError("A comparison needs at least one split and two passes.")
    progress = progress or Progress()
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    chosen: dict[str, list[str]] = {name: [] for name in names}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)
    failures: dict[str, str] = {}
    for k in range(splits):
        split = Split.of(table, FIRST_SEED + k)
        for name in names:
            if name in failures:
                continue
            stage = f"split {k + 1} of {splits}, {name}"
            progress.begin(stage)
            began = time.perf_counter()
            try:
                trained = METHODS[name].train(split, passes, _shown(progress, stage))
            except BidroError as error:
                failures[name] = str(error)
                continue
            seconds[name] += time.perf_counter() - began
            chosen[name].append(trained.words)
            for key, value in split.judged(trained.x).items():
                found[name].setdefault(key, []).append(value)
    methods = {
        name: {
            **{key: _summary(values) for key, values in found[name].items()},
            "chosen": chosen[name],
            "seconds": round(seconds[name], 1),
        }
        for name in names
        if name not in failures
    }
    return {
        "clients": split.problem.n,
        "rows": len(table.target),
        "features": table.features.shape[1],
        "splits": splits,
        "passes": passes,
        "candidates": CANDIDATES,
        "folds": split.folds,
        "methods": methods,
        "failed": failures,
    }


def known_methods(names: Sequence[str] | None) -> list[str]:
    """The names as a list, all methods where none are given. Raises BidroError for one that is none."""
    names = list(METHODS) if names is None else list(names)
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise BidroError(f"There is no method '{unknown[0]}'; there are {', '.join(METHODS)}.")
    return names


def _shown(progress: Progress, stage: str) -> Callable[[float], None]:
    return lambda share: progress.begin(f"{stage}: {share:.0%}")


def comparison_table(found: Mapping[str, Any]) -> str:
    """The result as a table to read."""
    head = (
        f"Test losses over {found['splits']} splits, mean ± standard error; every method tuned over "
        f"{found['candidates']} candidates by {found['folds']}-fold cross-validation inside the clients"
    )
    width = max(len(name) for name in (*found["methods"], *found["failed"], "method"))
    lines = [head, f"  {'method':<{width}} " + " ".join(f"{word:>17}" for word in MEASURES.values())]
    for name, one in sorted(found["methods"].items(), key=lambda item: item[1]["worst_decile"]["mean"]):
        words = [in_words(one[key]) for key in MEASURES]
        lines.append(f"  {name:<{width}} " + " ".join(f"{word:>17}" for word in words))
    lines += [f"  {name:<{width}} absent: {why}" for name, why in found["failed"].items()]
    return "\n".join(lines)


def in_words(summary: Mapping[str, Any]) -> str:
    """mean ± standard error"""
    return f"{summary['mean']:.4g}" + ("" if summary["se"] is None else f" ± {summary['se']:.2g}")


def _summary(values: list[float]) -> dict[str, Any]:
    several = len(values) > 1
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if several else None
    return {"mean": float(np.mean(values)), "se": error, "values": values}


def paired(found: Mapping[str, Any], one: str, other: str, key: str) -> tuple[float, float]:
    """(mean, standard error) over splits of `one`'s loss minus `other`'s."""
    values: list[NDArray[np.float64]] = [
        np.asarray(found["methods"][name][key]["values"]) for name in (one, other)
    ]
    apart = values[0] - values[1]
    error = apart.std(ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return float(apart.mean()), float(error)
