"""Where people wait: fits and solves on wide tables, many levels, several classes and labels that move. JSON.

    python bench/waiting.py [--case classes wide ...] [--limit 600] [--no-peers]

Every case is a process of its own with `--limit` seconds of the clock; `processor_s` is of the fit alone,
once libraries are imported, `peak_mb` the largest resident size. Peers fit the same rows in a process of
theirs: scikit-learn's `LogisticRegressionCV(Cs=10, cv=5)` or `RidgeCV`, and where it is installed
`ExplainableBoosting*(interactions=0)`; `ratio` is processor seconds over the linear peer's.

Tables are made up, in the shapes of tables on which people waited: `SHAPES` says which.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SHAPES = {
    "classes": "3,031 x 6, 4 classes, 14 clients",
    "wide": "7,600 x 203 with rare levels, 68 clients, two classes",
    "levels": "16,000 rows, 7 numbers and categories of 312 levels in all, 76 clients, a number",
    "clients": "37,000 rows, 4 numbers and a category of 46 levels, 2,197 clients, a number",
    "tall": "34,000 x 200, 20 clients, two classes, straight lines",
    "tall curves": "the same, with curves",
    "eight": "10,000 x 200, 8 clients, two classes, straight lines",
    "eight curves": "the same, with curves",
    "curved": "20,000 x 10 with a curved effect, 20 clients, two classes",
    "logistic 400": "solve: logistic, 400 parameters, 5 x 1,000 rows, balls of 0.05",
    "squared 2500": "solve: squared, 2,500 parameters, 4 x 3,000 rows, balls of 0.05",
    "hinge labels": "solve: hinge, labels move, 300 x 30, ball 0.1, box 10",
    "logistic labels": "solve: logistic, labels move, 300 x 30, ball 0.1, box 1000",
    "logistic labels near": "solve: the same, box 10",
    "joint": "RobustClassifier(metric='joint', radius=0.1), 300 x 30, 3 clients",
    "hinge": "solve: hinge, 3,000 x 30, ball 0.1",
    "absolute": "solve: absolute, 3,000 x 30, ball 0.1",
}


def _grouped(rows: int, columns: int, clients: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(features, the client of each row), clients of unequal sizes."""
    rng = np.random.default_rng(seed)
    owner = np.concatenate(
        [np.arange(clients), rng.choice(clients, rows - clients, p=rng.dirichlet(np.full(clients, 2.0)))]
    )
    return rng.normal(size=(rows, columns)), owner


def _named(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])


def _table(case: str) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, dict[str, Any]]:
    """(features, target, clients, parameters of the estimator)."""
    rng = np.random.default_rng(1)
    if case == "classes":
        X, owner = _grouped(3031, 6, 14)
        scores = X @ rng.normal(size=(6, 4)) + 0.5 * rng.normal(size=(14, 4))[owner]
        return _named(X), (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), owner, {}
    if case in ("wide", "tall", "tall curves", "eight", "eight curves"):
        sizes = {"wide": (7600, 203, 68), "tall": (34_000, 200, 20), "eight": (10_000, 200, 8)}
        X, owner = _grouped(*sizes[case.split()[0]])
        if case == "wide":  # 120 of the columns are levels of few rows
            X[:, :120] = rng.random((len(X), 120)) < rng.uniform(0.001, 0.05, 120)
        w = rng.normal(size=X.shape[1]) / np.sqrt(X.shape[1])
        score = 2 * X @ w + 0.5 * rng.normal(size=owner.max() + 1)[owner]
        if "curves" in case:
            score += np.sin(2 * X[:, 150])
        y = (score + rng.logistic(size=len(X)) > 0).astype(int)
        return _named(X), y, owner, {} if "curves" in case or case == "wide" else {"curves": None}
    if case in ("levels", "clients"):
        rows, numbers, clients, levels = (
            (16_000, 7, 76, (200, 80, 32)) if case == "levels" else (37_000, 4, 2197, (46,))
        )
        X, owner = _grouped(rows, numbers, clients)
        y = X @ rng.normal(size=numbers) + rng.normal(size=rows) + 0.5 * rng.normal(size=clients)[owner]
        frame = _named(X)
        for place, count in enumerate(levels):
            own = rng.choice(count, rows, p=rng.dirichlet(np.full(count, 1.0)))
            frame[f"level{place}"] = np.array([f"v{k}" for k in range(count)])[own]
            y += 0.7 * rng.normal(size=count)[own]
        return frame, y, owner, {}
    if case == "curved":
        X, owner = _grouped(20_000, 10, 20)
        score = X @ (0.5 * rng.normal(size=10)) + 1.5 * np.sin(2 * X[:, 0])
        return _named(X), (score + rng.logistic(size=len(X)) > 0).astype(int), owner, {}
    assert case == "joint"
    X, owner = _grouped(300, 30, 3)
    y = (X @ rng.normal(size=30) + rng.logistic(size=300) > 0).astype(int)
    return _named(X), y, owner, {"metric": "joint", "radius": 0.1}


def _problem(case: str) -> Callable[[], Any]:
    """A solve to a gap of 1e-6, ready to be called."""
    from bidro import (
        Absolute,
        Box,
        Federation,
        Hinge,
        Logistic,
        Problem,
        Squared,
        Transport,
        WassersteinBall,
        solve,
    )

    rng = np.random.default_rng(2)
    clients, rows, columns = {
        "logistic 400": (5, 1000, 399),
        "squared 2500": (4, 3000, 2499),
        "hinge": (1, 3000, 30),
        "absolute": (1, 3000, 30),
    }.get(case, (1, 300, 30))
    w, parts = rng.normal(size=columns) / np.sqrt(columns), []
    for _ in range(clients):
        X = rng.normal(size=(rows, columns))
        y = X @ (w + 0.2 * rng.normal(size=columns) / np.sqrt(columns)) + 0.5 * rng.normal(size=rows)
        if case not in ("squared 2500", "absolute"):
            y = np.where(y > 0, 1.0, -1.0)
        parts.append(np.column_stack([X, y]))
    losses = {
        "squared 2500": Squared(True),
        "absolute": Absolute(),
        "hinge": Hinge(),
        "hinge labels": Hinge(),
    }
    loss = losses.get(case, Logistic(case == "logistic 400"))
    m = columns + 1
    transport = Transport.features_only(m, 1.0 if case == "absolute" else 2.0)
    if "labels" in case:
        transport = Transport.classification(m, 1.0, 1.0)
    elif case not in ("squared 2500", "absolute"):
        transport = Transport.classification(m, 1.0)
    half = 1000.0 if case in ("logistic labels", "logistic 400", "squared 2500") else 10.0
    eps = np.full(clients, 0.05 if clients > 1 else 0.1)
    problem = Problem(
        Federation.from_arrays(parts, "unbounded"),
        loss,
        Box.cube(half, loss.dimension(m)),
        transport,
        WassersteinBall(eps),
    )
    return lambda: solve(problem, 1e-6)


def _peak_mb() -> float:
    line = next(v for v in Path("/proc/self/status").read_text().splitlines() if v.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _ours(case: str) -> dict[str, Any]:
    from bidro import RobustClassifier, RobustRegressor

    more: dict[str, Any] = {}
    if SHAPES[case].startswith("solve"):
        work = _problem(case)
        began, clock = time.process_time(), time.perf_counter()
        found = work()
        more = {"gap": float(found.gap), "rounds": int(found.rounds)}
    else:
        X, y, owner, parameters = _table(case)
        X = pd.get_dummies(X, dtype=float, drop_first=True)
        kind = RobustRegressor if y.dtype == float else RobustClassifier
        estimator = kind(**parameters)
        began, clock = time.process_time(), time.perf_counter()
        estimator.fit(X, y, clients=owner)
    return {
        "processor_s": round(time.process_time() - began, 2),
        "clock_s": round(time.perf_counter() - clock, 2),
        "peak_mb": round(_peak_mb()),
        **more,
    }


def _linear(case: str) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegressionCV, RidgeCV

    X, y, owner, _ = _table(case)
    design = pd.get_dummies(X.assign(client=owner.astype(str)), dtype=float, drop_first=True)
    began = time.process_time()
    model = RidgeCV() if y.dtype == float else LogisticRegressionCV(Cs=10, cv=5, max_iter=1000)
    model.fit(design, y)
    return {"processor_s": round(time.process_time() - began, 2)}


def _boosting(case: str) -> dict[str, Any]:
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    X, y, owner, _ = _table(case)
    kind = ExplainableBoostingRegressor if y.dtype == float else ExplainableBoostingClassifier
    began, clock = time.process_time(), time.perf_counter()
    kind(interactions=0, n_jobs=1).fit(X.assign(client=owner.astype(str)), y)
    used = time.process_time() - began
    return {"processor_s": round(used, 2), "clock_s": round(time.perf_counter() - clock, 2)}


_PARTS = {"ours": _ours, "linear": _linear, "boosting": _boosting}


def _apart(case: str, part: str, limit: float) -> dict[str, Any]:
    """In a process of its own, of one thread."""
    command = [sys.executable, "-W", "ignore", __file__, "--case", case, "--part", part]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"unfinished_after_s": limit}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs="*", choices=tuple(SHAPES), default=list(SHAPES))
    parser.add_argument("--part", choices=tuple(_PARTS))
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    if given.part:
        print(json.dumps(_PARTS[given.part](given.case[0])))
        return
    found: dict[str, Any] = {}
    for case in given.case:
        peers = [] if given.no_peers or SHAPES[case].startswith("solve") else ["linear", "boosting"]
        found[case] = {"shape": SHAPES[case]}
        for part in ["ours", *peers]:
            found[case][part] = _apart(case, part, given.limit)
        ours, peer = (found[case].get(part, {}).get("processor_s") for part in ("ours", "linear"))
        if ours and peer:
            found[case]["ratio"] = round(ours / peer, 1)
        print(json.dumps({case: found[case]}), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
