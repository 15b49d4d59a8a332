"""Squared loss from second moments, beside scikit-learn's `RidgeCV` in the same run. Prints JSON.

    python bench/squared.py [--rows 1000000] [--columns 30] [--clients 50]

`choose`: the moments of all folds, and 28 candidates (4 radii x 7 caps) in 5 folds, to the held-out losses of
every client. `solve`: the moments of all clients, and the problem to a gap of 1e-6. `ridge_cv`: 28 penalties
on the same rows pooled, by its leave-one-out formula (which is exact, and takes no folds). `one_client`:
30,000 x 30, against one `lstsq`; `many_clients`: 100,000 clients x 20 rows x 10 columns, any mixture. CPU
seconds, medians of 3; `ratio` is to the peer's. `extra_memory` is the peak that choosing and solving add to
the process, in tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import of_clients, of_folds
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS
from bidro.selection.cross_validate import Candidate, cross_validate
from bidro.selection.rule import MIXTURE_SPECS
from bidro.solvers.solve import solve


def table(rows: int, columns: int, sizes: np.ndarray) -> np.ndarray:
    """Rows in standard units, sorted by client; every client has coefficients of its own."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    theta = rng.normal(size=(rows, columns))
    w = 0.3 + 0.1 * rng.normal(size=(len(sizes), columns))
    y = np.einsum("ij,ij->i", theta, w[owner]) + rng.normal(size=rows)
    return np.column_stack([theta, y / y.std()])


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return float(np.median(times))


def peak_mb() -> float:
    line = next(v for v in Path("/proc/self/status").read_text().splitlines() if v.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def problem_of(samples: np.ndarray, sizes: np.ndarray, radius: float) -> Problem:
    m = samples.shape[1]
    federation = Federation.from_samples(samples, sizes.tolist(), "unbounded")
    return Problem(
        federation,
        Squared(intercept=True),
        Box.cube(1e3, m),
        Transport.features_only(m),
        WassersteinBall(radius),
    )


def large(rows: int, columns: int, clients: int) -> dict[str, object]:
    rng = np.random.default_rng(1)
    sizes = rng.multinomial(rows, rng.dirichlet(np.full(clients, 3.0)))
    problem = problem_of(table(rows, columns, sizes), sizes, 0.01)
    samples = np.asarray(problem.federation.samples)
    marks = problem.federation.folds(FOLDS)
    candidates = tuple(Candidate(0.0, *mixture_spec) for mixture_spec in MIXTURE_SPECS)
    before = peak_mb()

    def choose() -> object:
        trained = of_folds(samples, sizes, marks, FOLDS)
        return cross_validate(problem, candidates, FoldSpec(FOLDS, 0), 1.0, Exact(), IN_PROCESS, sent=trained)

    def solved() -> float:
        return solve(problem, moments=of_clients(samples, sizes)).gap

    ours = {"choose_seconds": seconds(choose), "solve_seconds": seconds(solved), "gap": solved()}
    memory = (peak_mb() - before) * 2**20 / samples.nbytes
    ridge = seconds(lambda: RidgeCV(np.logspace(-3, 3, 28)).fit(samples[:, :-1], samples[:, -1]), 1)
    ratio = (float(ours["choose_seconds"]) + float(ours["solve_seconds"])) / ridge
    return {**ours, "extra_memory": memory, "ridge_cv_seconds": ridge, "ratio": ratio}


def one_client() -> dict[str, float]:
    sizes = np.array([30_000])
    problem = problem_of(table(30_000, 30, sizes), sizes, 0.1)
    samples = np.asarray(problem.federation.samples)
    ours = seconds(lambda: solve(problem, moments=of_clients(samples, sizes)), 9)
    design = np.column_stack([samples[:, :-1], np.ones(len(samples))])
    peer = seconds(lambda: np.linalg.lstsq(design, samples[:, -1], rcond=None), 9)
    return {"seconds": ours, "lstsq_seconds": peer, "ratio": ours / peer}


def many_clients() -> dict[str, float]:
    sizes = np.full(100_000, 20)
    problem = problem_of(table(2_000_000, 10, sizes), sizes, 0.1)
    samples = np.asarray(problem.federation.samples)
    moments = of_clients(samples, sizes)
    return {
        "moments_seconds": seconds(lambda: of_clients(samples, sizes), 1),
        "solve_seconds": seconds(lambda: solve(problem, moments=moments), 1),
        "gap": solve(problem, moments=moments).gap,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--clients", type=int, default=50)
    chosen = parser.parse_args()
    found = {
        "rows": chosen.rows,
        "columns": chosen.columns,
        "clients": chosen.clients,
        **large(chosen.rows, chosen.columns, chosen.clients),
        "one_client": one_client(),
        "many_clients": many_clients(),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
