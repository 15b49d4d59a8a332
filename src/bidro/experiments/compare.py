"""`bidro compare`: all methods on the same splits, each tuned by the same cross-validation.

In every split 30% of each client's rows are the test. A method is tuned on the other rows, by folds inside
the clients, and trained on all of them. Nothing of the test is seen before. Every method is evaluated twice:
its shared model, and with the clients' personal models around that, chosen for every method in the same way.

With clients left out, the test is whole clients that were not in training: in every split, the clients are in
random groups, a method is trained without each, and the clients of all groups are evaluated together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.splits import label_ids
from bidro.data.tables import Schema
from bidro.experiments.methods import CANDIDATES, METHODS, Chosen
from bidro.experiments.splits import Grouped, Split, groups_of_clients, measures
from bidro.fit.fitted import Progress
from bidro.model.model_file import target_numbers

PASSES = 100
FIRST_SEED = 7000
OURS = "exact MW-DRO"
_WITH_PERSONAL = "  with personal"
_LEAST_CLIENTS = 3
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
    target, clients, labels = target_numbers(schema, table), schema.clients(table), schema.people(table)
    people = None if labels is None else label_ids(labels)
    classes = 0 if schema.classes is None else len(schema.classes)
    return Grouped(schema.matrix(table), target, clients, tuple(schema.features), classes, people)


def compare_methods(
    table: Grouped,
    splits: int,
    passes: int = PASSES,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
    leave_clients_out: bool = False,
) -> dict[str, Any]:
    """For each method (all of them by default) its test losses in every split, in the target's own unit, with
    those under the clients' personal models under `personal`; or, with `leave_clients_out`, on clients that
    were not in training, who have none.

    A method that cannot be trained on some split is absent, with the reason under `failed`.
    """
    names = known_methods(names)
    if splits < 1 or passes < 2:
        raise BidroError("A comparison needs at least one split and two passes.")
    if leave_clients_out and len(np.unique(table.clients)) < _LEAST_CLIENTS:
        raise BidroError(
            f"Leaving clients out takes at least {_LEAST_CLIENTS} of them; compare without "
            "--leave-clients-out."
        )
    progress = progress or Progress()
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    personal: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    chosen: dict[str, list[str]] = {name: [] for name in names}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)
    failures: dict[str, str] = {}
    for k in range(splits):
        parts = _parts(table, FIRST_SEED + k, leave_clients_out)
        for name in names:
            if name in failures:
                continue
            stage = f"split {k + 1} of {splits}, {name}"
            progress.begin(stage)
            began = time.perf_counter()
            try:
                shown = _shown(progress, stage)
                trained = [METHODS[name].train(part.split, passes, shown) for part in parts]
            except BidroError as error:
                failures[name] = str(error)
                continue
            seconds[name] += time.perf_counter() - began
            chosen[name] += [one.words for one in trained]
            shared, corrected = _evaluated(parts, trained, leave_clients_out)
            for values, of_split in ((found[name], shared), (personal[name], corrected)):
                for key, value in of_split.items():
                    values.setdefault(key, []).append(value)
    split = parts[0].split
    methods = {
        name: {
            **{key: _summary(values) for key, values in found[name].items()},
            **(
                {"personal": {key: _summary(values) for key, values in personal[name].items()}}
                if personal[name]
                else {}
            ),
            "chosen": chosen[name],
            "seconds": round(seconds[name], 1),
        }
        for name in names
        if name not in failures
    }
    return {
        "clients": len(np.unique(table.clients)),
        "clients_left_out": leave_clients_out,
        "rows": len(table.target),
        "features": table.features.shape[1],
        "splits": splits,
        "passes": passes,
        "candidates": CANDIDATES,
        "folds": split.folds,
        "methods": methods,
        "failed": failures,
    }


class _Part(NamedTuple):
    split: Split
    clients: NDArray[np.int64]  # (M,) whose each test row is, as a number from 0


def _parts(table: Grouped, seed: int, leave_clients_out: bool) -> list[_Part]:
    """What a method is trained on, once or without each group of clients."""
    if not leave_clients_out:
        split = Split.of(table, seed)
        return [_Part(split, split.test_client)]
    codes, groups = np.unique(table.clients, return_inverse=True)[1], groups_of_clients(table.clients, seed)
    tests = [groups == group for group in range(groups.max() + 1)]
    return [_Part(Split.with_test(table, test, seed), codes[test]) for test in tests]


def _evaluated(
    parts: Sequence[_Part], trained: Sequence[Chosen], leave_clients_out: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """(of the shared models, with the clients' personal models: nothing where there can be none)."""
    if leave_clients_out:
        losses = [part.split.test_losses(one.x) for part, one in zip(parts, trained, strict=True)]
        return measures(np.concatenate(losses), np.concatenate([part.clients for part in parts])), {}
    ((split, _),), (one,) = parts, trained
    shared = split.evaluate(one.x)
    return shared, {} if one.personal is None else split.evaluate(split.models_used(one.x, one.personal))


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
    of = " of clients that were not in training" if found["clients_left_out"] else ""
    head = (
        f"Test losses{of} over {found['splits']} splits, mean ± standard error; every method tuned over "
        f"{found['candidates']} candidates by {found['folds']}-fold cross-validation inside the clients"
    )
    width = max(len(name) for name in (*found["methods"], *found["failed"], "method", _WITH_PERSONAL))
    shown = {
        key: word for key, word in MEASURES.items() if all(key in one for one in found["methods"].values())
    }
    lines = [head, f"  {'method':<{width}} " + " ".join(f"{word:>17}" for word in shown.values())]
    for name, one in sorted(found["methods"].items(), key=lambda item: item[1]["worst_decile"]["mean"]):
        for title, values in ((name, one), (_WITH_PERSONAL, one.get("personal"))):
            if values is not None:
                words = [in_words(values[key]) for key in shown]
                lines.append(f"  {title:<{width}} " + " ".join(f"{word:>17}" for word in words))
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
