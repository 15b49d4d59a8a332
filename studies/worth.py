"""Is the default worth having? It against pooled training, as users would judge it, on real tables.

python -m studies.worth --out docs/studies [--splits 10] [--tables exam,radon]

The same as `python -m studies.real_data --study worth`. The estimators are fitted as a user would fit
them. In every split 30% of each client's rows (of its people, where rows are of people or things) are the
test. For new clients, whole clients are left out of training, in five groups, and every row is judged by the
model that was trained without its client. A split that the output already has is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.core.splits import choose_holdout
from bidro.estimators import RobustClassifier, RobustEstimator, RobustRegressor
from bidro.experiments.splits import TEST_SHARE, Grouped, groups_of_clients
from bidro.selection.rule import worst_decile
from bidro.solvers.solve import GapNotReachedWarning
from studies import on_commit
from studies.real_tables import TABLES, load
from studies.worth_page import page

FIRST_SEED = 9000
# A client is said to lose if its loss is by more than this share above that under pooled training.
LOSING = 0.01

POOLED = "pooled"
DEFAULT = "default"
# What is fitted; a second line of each is that with the clients' personal models.
SETTINGS: dict[str, dict[str, Any]] = {
    POOLED: {"weights": "fixed"},
    DEFAULT: {},
    "max_cost = inf": {"max_cost": math.inf},
    "regret": {"criterion": "regret"},
}


@dataclass(frozen=True, eq=False)
class Judged:
    """Losses (N,) and scores (N,) of rows, and the client of each as a number from 0."""

    losses: Floats
    scores: Floats
    owner: NDArray[np.int64]

    @property
    def by_client(self) -> Floats:
        return np.bincount(self.owner, self.losses) / np.bincount(self.owner)

    def compared(self, pooled: Judged) -> dict[str, float]:
        """Mean over rows and worst decile of the clients, the share of clients that lose, and the deviation
        of the predictions as a share of that under pooled training."""
        losing = self.by_client > (1 + LOSING) * pooled.by_client
        return {
            "mean": float(self.losses.mean()),
            "worst_decile": float(worst_decile(self.by_client)),
            "losing": float(losing.mean()),
            "varies": float(self.scores.std() / pooled.scores.std()),
        }


def one_split(table: Grouped, seed: int) -> dict[str, Any]:
    """What came of one split: measures of every setting, alone and with personal models, and on new
    clients."""
    test = choose_holdout(table.clients, table.features, table.target, TEST_SHARE, seed, table.people)
    judged: dict[str, Judged] = {}
    personal: dict[str, Judged] = {}
    adopts: dict[str, float] = {}
    chosen: dict[str, list[float | None]] = {}
    for name, setting in SETTINGS.items():
        model = _fitted(table, ~test, seed, setting)
        judged[name] = _judged(model, table, test, None)
        personal[name] = _judged(model, table, test, table.clients[test])
        adopts[name] = len(model.personal_intercept_) / len(model.client_weights_)
        assert model.calibration_ is not None
        best = model.calibration_.chosen
        chosen[name] = [None if math.isinf(best.max_weight_ratio) else best.max_weight_ratio, best.mixing]
    pooled = judged[POOLED]
    return {
        "seed": seed,
        "shared": {name: one.compared(pooled) for name, one in judged.items()},
        "personal": {name: one.compared(pooled) for name, one in personal.items()},
        "adopts": adopts,
        "chosen": chosen,
        "new": _new_clients(table, seed),
    }


def _new_clients(table: Grouped, seed: int) -> dict[str, dict[str, float]]:
    """Pooled training and the default on the rows of clients that were left out, of all groups together."""
    codes, groups = np.unique(table.clients, return_inverse=True)[1], groups_of_clients(table.clients, seed)
    found = {}
    for name in (POOLED, DEFAULT):
        losses, scores = np.zeros(len(codes)), np.zeros(len(codes))
        for left_out in range(groups.max() + 1):
            test = groups == left_out
            model = _fitted(table, ~test, seed, {**SETTINGS[name], "personal": None})
            one = _judged(model, table, test, None)
            losses[test], scores[test] = one.losses, one.scores
        found[name] = Judged(losses, scores, codes)
    return {name: one.compared(found[POOLED]) for name, one in found.items()}


def _fitted(
    table: Grouped, rows: NDArray[np.bool_], seed: int, setting: Mapping[str, Any]
) -> RobustEstimator:
    make = RobustRegressor if table.classes == 0 else RobustClassifier
    model = make(random_state=seed, **setting)
    people = None if table.people is None else table.people[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapNotReachedWarning)
        return model.fit(table.features[rows], table.target[rows], table.clients[rows], people)


def _judged(
    model: RobustEstimator, table: Grouped, rows: NDArray[np.bool_], clients: NDArray[np.str_] | None
) -> Judged:
    """On some rows of the table, in units of the target's variance or in nats."""
    X, y = table.features[rows], table.target[rows]
    if isinstance(model, RobustClassifier):
        scores = model.decision_function(X, clients)
        losses = np.logaddexp(0.0, -y * scores)
    else:
        assert isinstance(model, RobustRegressor)
        scores = model.predict(X, clients)
        losses = (y - scores) ** 2 / table.target.var()
    return Judged(losses, scores, np.unique(table.clients[rows], return_inverse=True)[1])


def run(out: Path, splits: int, tables: Sequence[str], say: Callable[[str], None] = print) -> dict[str, Any]:
    """All tables, split after split, so that a study that is stopped leaves as much of each."""
    compilation_cache()
    path = out / "worth.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    loaded = {name: load(name) for name in tables}
    for name, table in loaded.items():
        known = {
            "rows": len(table.target),
            "features": table.features.shape[1],
            "clients": len(np.unique(table.clients)),
            "classes": table.classes,
            "people": table.people is not None,
        }
        before = found.get(name, {})
        same = all(before.get(key) == value for key, value in known.items())
        found[name] = {**known, "splits": before["splits"] if same else []}
    for k in range(splits):
        for name, table in loaded.items():
            done = found[name]["splits"]
            if any(one["seed"] == FIRST_SEED + k for one in done):
                continue
            began = time.process_time()
            done.append(one_split(table, FIRST_SEED + k))
            say(f"{name}, split {k + 1} of {splits}: {time.process_time() - began:.1f} s of the processor")
            _publish(out, found)
    _publish(out, found)
    return found


def _publish(out: Path, found: Mapping[str, Any]) -> None:
    whole = {name: found[name] for name in TABLES if name in found and found[name]["splits"]}
    write_json(out / "worth.json", whole)
    write_text(out / "worth.md", page(whole, on_commit()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The default against pooled training on real tables.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", default=",".join(TABLES), help=f"Some of {', '.join(TABLES)}.")
    chosen = parser.parse_args(arguments)
    run(chosen.out, chosen.splits, chosen.tables.split(","))
    print(f"Written to {chosen.out}.")


if __name__ == "__main__":
    main()
