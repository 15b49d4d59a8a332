"""Curves of many columns: how long a regression takes with all its cross-validation, and how much memory,
beside an explainable boosting machine without interactions on the same rows. Prints JSON.

python bench/wide_curves.py [--rows 100000] [--features 31] [--clients 50] [--without-ebm]

Its column needs the package `interpret-core`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from bidro import RobustRegressor
from bidro.core.arrays import Floats


def made(rows: int, features: int, clients: int) -> tuple[Floats, Floats, Floats]:
    """Features that all bend, and clients that are alike."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features))
    y = 0.5 * rng.normal(size=rows)
    for j in range(features):
        y += np.sin((1 + 0.2 * j) * X[:, j]) / (1 + 0.3 * j)
    return X, y, rng.integers(0, clients, rows).astype(float)


def megabytes() -> float:
    """The most that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("--rows", 100_000), ("--features", 31), ("--clients", 50)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--without-ebm", action="store_true")
    given = parser.parse_args()
    X, y, clients = made(given.rows, given.features, given.clients)
    # Libraries and programs are loaded before anything is measured.
    RobustRegressor(curves=4).fit(X[:2000], y[:2000], clients=clients[:2000] % 2)
    before, began = megabytes(), time.perf_counter()
    model = RobustRegressor(curves="auto").fit(X, y, clients=clients)
    found = {
        "rows": given.rows,
        "features": given.features,
        "clients": given.clients,
        "parameters": 1 + sum(len(curve.slopes) for curve in model.curves_.values()),
        "seconds": time.perf_counter() - began,
        "table_megabytes": X.nbytes / 2**20,
        "more_megabytes": megabytes() - before,
    }
    if not given.without_ebm:
        from interpret.glassbox import ExplainableBoostingRegressor

        began = time.perf_counter()
        ExplainableBoostingRegressor(interactions=0).fit(X, y)
        found["ebm_seconds"] = time.perf_counter() - began
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
