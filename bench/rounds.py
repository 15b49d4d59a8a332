"""Rounds per second of Algorithm 1 against a plain NumPy loop, and of plain FedAvg. Prints JSON.

    python bench/rounds.py

Algorithm 1 runs at the paper's settings (5 clients, 30 ascent steps), one run of 10,000 rounds and 20 runs
batched, both after compilation, whose time is stated. The NumPy loop is Algorithm 1 as the paper reads, over
clients and ascent steps, in the same process. FedAvg: 5 clients (d = 3) and 1,000 clients x 50 rows
(d = 100).
"""

from __future__ import annotations

import json
import time
import warnings

import numpy as np

from bidro import (
    BiDROFL,
    FedAvg,
    Federation,
    Problem,
    Squared,
    Transport,
    WholeSpace,
    run,
)
from bidro.ambiguity import NonconcaveInnerWarning
from bidro.experiments.simulation import PENALTIES, SIZES, paper_problem, simulate
from bidro.federated.engines.in_process import run_many

ROUNDS = 10_000
RUNS = 20
NUMPY_ROUNDS = 1000
REPEATS = 9


def numpy_algorithm_1(samples: np.ndarray, rounds: int, seed: int) -> np.ndarray:
    """Algorithm 1 as it stands in the paper, one client and one ascent step after the other."""
    rng = np.random.default_rng(seed)
    clients = np.split(samples, np.cumsum(SIZES)[:-1])
    x, alpha = np.zeros(3), np.array(SIZES) / sum(SIZES)
    for _ in range(rounds):
        x_clients, g_alpha = np.zeros((5, 3)), np.zeros(5)
        for i in range(5):
            zeta = clients[i][rng.integers(SIZES[i])]
            z = zeta.copy()
            for _ in range(30):
                residual = z[3] - z[:3] @ x
                gradient = np.append(-2 * residual * x, 2 * residual) - 2 * PENALTIES[i] * (z - zeta)
                z = np.clip(z + 0.003 * gradient, -500, 500)
            noise = rng.standard_normal(4)
            z = np.clip(z + 0.01 * noise / np.linalg.norm(noise), -500, 500)
            residual = z[3] - z[:3] @ x
            x_clients[i] = x + 0.01 * 2 * residual * z[:3]
            g_alpha[i] = residual**2 - PENALTIES[i] * np.sum((z - zeta) ** 2)
        x = np.clip(alpha @ x_clients, -100, 100)
        v = alpha + 0.01 * g_alpha
        ordered = np.sort(v)[::-1]
        levels = (np.cumsum(ordered) - 1) / np.arange(1, 6)
        alpha = np.maximum(v - levels[np.nonzero(ordered > levels)[0][-1]], 0)
    return x


def seconds(work) -> float:
    """The median time of some repetitions: other work on the machine only ever slows one down."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def fedavg_rounds_per_s(clients: int, rows: int, features: int, rounds: int) -> float:
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((clients * rows, features + 1))
    federation = Federation.from_samples(samples, [rows] * clients, "unbounded")
    problem = Problem(federation, Squared(), WholeSpace(features), Transport.euclidean(features + 1))
    algorithm = FedAvg(eta_x=0.01)
    run(algorithm, problem, rounds)
    return rounds / seconds(lambda: run(algorithm, problem, rounds))


def main() -> None:
    warnings.simplefilter("ignore", NonconcaveInnerWarning)
    data = [simulate(2026 + k) for k in range(RUNS)]
    samples = np.stack([d.samples for d in data])
    problem = paper_problem(data[0], PENALTIES)
    algorithm = BiDROFL()

    start = time.perf_counter()
    run(algorithm, problem, ROUNDS)
    first = time.perf_counter() - start
    single = seconds(lambda: run(algorithm, problem, ROUNDS))

    def batch() -> None:
        run_many(algorithm, problem, samples, ROUNDS, range(RUNS))

    batch()
    batched = seconds(batch)
    plain = seconds(lambda: numpy_algorithm_1(data[0].samples, NUMPY_ROUNDS, 0))

    result = {
        "rounds_per_s": ROUNDS / single,
        "batched_rounds_per_s": RUNS * ROUNDS / batched,
        "numpy_rounds_per_s": NUMPY_ROUNDS / plain,
        "compile_s": first - single,
        "fedavg_rounds_per_s": {
            "5 clients, 120 rows each, d = 3": fedavg_rounds_per_s(5, 120, 3, 20_000),
            "1000 clients, 50 rows each, d = 100": fedavg_rounds_per_s(1000, 50, 100, 400),
        },
    }
    result["speedup"] = result["rounds_per_s"] / result["numpy_rounds_per_s"]
    result["batched_speedup"] = result["batched_rounds_per_s"] / result["numpy_rounds_per_s"]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
