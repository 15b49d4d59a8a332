"""Time a round and peak memory along one axis at a time: clients, total samples, dimension. Prints JSON.

    python bench/scale.py            # minutes; the largest case holds 2.5 GB of data
    python bench/scale.py --quick    # small sizes, seconds

Every case runs in a process of its own. `memory_ratio` is its peak memory above the process's baseline
(after imports, before any data) over the size of the data. A round of AFL reads all rows; a round of
Algorithm 1 samples one row a client. On the axis `solve`, the exact solver goes to a certified gap of 1e-6,
compilation included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from functools import partial

CLIENTS = [5, 100, 1_000, 10_000, 100_000]
SAMPLES = [10_000, 100_000, 1_000_000, 10_000_000]
DIMENSIONS = [10, 30, 100, 300, 1_000]


def cases(quick: bool) -> list[dict]:
    limit = 100_000 if quick else 10**9
    return [
        *({"axis": "clients", "clients": n, "samples": min(1_000_000, limit), "d": 10} for n in CLIENTS),
        *({"axis": "samples", "clients": 100, "samples": s, "d": 30} for s in SAMPLES if s <= limit),
        *({"axis": "dimension", "clients": 100, "samples": min(100_000, limit), "d": d} for d in DIMENSIONS),
        *(
            {"axis": "solve", "clients": 100, "samples": s, "d": 30, "loss": loss}
            for loss in ("squared", "logistic")
            for s in SAMPLES
            if s <= limit
        ),
    ]


def measure(case: dict) -> dict:
    """In a fresh process: the case with its figures added."""
    import warnings

    import jax
    import jax.numpy as jnp
    import numpy as np

    from bidro import (
        AFL,
        BiDROFL,
        Federation,
        Logistic,
        Penalty,
        Problem,
        Squared,
        Transport,
        WassersteinBall,
        run,
        solve,
    )
    from bidro.core.sets import Box

    warnings.simplefilter("ignore")
    jnp.ones(3).block_until_ready()
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    n, rows, d = case["clients"], case["samples"], case["d"]

    # Filled in place, block by block: the making of the data must not count as its training.
    @partial(jax.jit, donate_argnums=0)
    def fill(table, k):
        block = jax.random.uniform(jax.random.fold_in(jax.random.key(0), k), (10_000, d + 1), minval=-1.0)
        if case["axis"] == "solve":
            y = block[:, 0] - 0.5 * block[:, 1] + 0.5 * block[:, -1]
            block = block.at[:, -1].set(y if case["loss"] == "squared" else jnp.where(y > 0, 1.0, -1.0))
        return jax.lax.dynamic_update_slice(table, block, (k * 10_000, 0))

    samples = jnp.zeros((rows, d + 1))
    for k in range(rows // 10_000):
        samples = fill(samples, k)
    # Sizes spread over two orders of magnitude, as real federations are.
    weights = np.geomspace(1, 100, n)
    sizes = np.maximum(1, np.floor(weights / weights.sum() * (rows - n))).astype(int)
    sizes[-1] += rows - sizes.sum()
    data = rows * (d + 1) * 8

    def memory() -> dict:
        above = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - baseline
        return {"peak_above_baseline_mb": above / 1e6, "memory_ratio": above / data}

    if case["axis"] == "solve":
        federation = Federation.from_samples(samples, sizes.tolist(), "unbounded")
        squared = case["loss"] == "squared"
        transport = Transport.features_only(d + 1) if squared else Transport.classification(d + 1, 1.0)
        loss = Squared() if squared else Logistic()
        problem = Problem(federation, loss, Box.cube(10.0, d), transport, WassersteinBall(0.01))
        found = solve(problem)
        figures = {"solve_s": found.seconds, "rounds": found.rounds, "gap": found.gap}
        return {**case, "data_mb": data / 1e6, **figures, **memory()}
    federation = Federation.from_samples(samples, sizes.tolist(), Box.cube(1.0, d + 1))
    problem = Problem(federation, Squared(), Box.cube(1.0, d), Transport.euclidean(d + 1), Penalty(2.0 * d))

    def per_round(algorithm, rounds: int) -> float:
        run(algorithm, problem, 1)
        start = time.perf_counter()
        run(algorithm, problem, rounds)
        whole = time.perf_counter() - start
        start = time.perf_counter()
        run(algorithm, problem, 1)
        return (whole - (time.perf_counter() - start)) / (rounds - 1)

    numbers = rows * (d + 1)
    afl = per_round(AFL(eta_x=0.01, eta_alpha=0.01), int(np.clip(2e9 / numbers, 5, 500)))
    algorithm_1 = per_round(BiDROFL(), int(np.clip(2e6 / n, 20, 2000)))
    return {
        **case,
        "data_mb": data / 1e6,
        "afl_s_per_round": afl,
        "afl_ns_per_number": afl / numbers * 1e9,
        "algorithm_1_s_per_round": algorithm_1,
        **memory(),
    }


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--case":
        print(json.dumps(measure(json.loads(sys.argv[2]))))
        return
    results = []
    for case in cases("--quick" in sys.argv):
        output = subprocess.run(
            [sys.executable, __file__, "--case", json.dumps(case)], check=True, capture_output=True, text=True
        )
        results.append(json.loads(output.stdout))
        print(f"{case['axis']}: {json.dumps(results[-1])}", file=sys.stderr)
    print(json.dumps({"cases": results}, indent=2))


if __name__ == "__main__":
    main()
