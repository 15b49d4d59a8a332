"""`solve` with many clients, and how its cost grows with them. Prints JSON.

    python bench/many_clients.py            # 200, 1,000, 4,000, 20,000 and 100,000 clients
    python bench/many_clients.py 200 1000   # these alone

Clients of 20 rows x 10 features, each with a model of its own around a common one; squared loss over balls of
radius 0.05, to a gap of 1e-6, over all mixtures and over those that give no client more than twice its share.
Seconds are of the processor, compilation included. `clarabel_s`: the peer, one cone program that holds every
client (a QR factorisation each, then CLARABEL, stated directly), at sizes where it takes less than minutes;
`ratio` is its seconds over ours, and `relative_difference` that of the two values. `growth`: by what factor
the seconds grow for each factor by which clients do, 1 being linear, from one size to the next.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from itertools import pairwise

import clarabel
import numpy as np
from scipy import sparse

from bidro import Box, CappedSimplex, Federation, Problem, Squared, Transport, WassersteinBall, solve

SIZES = (200, 1_000, 4_000, 20_000, 100_000)
ROWS, FEATURES, RADIUS, KAPPA = 20, 10, 0.05, 2.0
# The peer holds every client: beyond this many it takes minutes.
LARGEST_PEER = 4_000


def clients(n: int) -> np.ndarray:
    """(n, rows, features + 1)"""
    rng = np.random.default_rng(n)
    features = rng.standard_normal((n, ROWS, FEATURES)) + 0.3 * rng.standard_normal((n, 1, FEATURES))
    own = rng.standard_normal(FEATURES) + 0.3 * rng.standard_normal((n, FEATURES))
    target = np.einsum("nrd,nd->nr", features, own) + 0.5 * rng.standard_normal((n, ROWS))
    return np.concatenate([features, target[:, :, None]], axis=2)


def ours(tables: np.ndarray, capped: bool) -> tuple[float, object]:
    started = time.process_time()
    federation = Federation.from_arrays(list(tables), "unbounded")
    mixtures = CappedSimplex.around_proportions(federation.sizes, KAPPA) if capped else None
    problem = Problem(
        federation,
        Squared(),
        Box.cube(100.0, FEATURES),
        Transport.features_only(FEATURES + 1),
        WassersteinBall(RADIUS),
        mixtures,
    )
    found = solve(problem, gap=1e-6)
    return time.process_time() - started, found


def peer(tables: np.ndarray, capped: bool) -> tuple[float, float]:
    """(seconds, optimum) of one program over x, nu, and root_i >= RMSE_i + radius nu for every client.

    Over all mixtures the largest root is least; with a cap of c, level + c sum_i excess_i is, where
    excess_i >= root_i^2 - level.
    """
    started, (n, rows, m) = time.process_time(), tables.shape
    factors = np.linalg.qr(tables, mode="r") / np.sqrt(rows)
    d = m - 1
    # Variables: x (d), nu, then t, or roots (n), squares (n), level and excesses (n).
    size = d + 2 if not capped else d + 2 + 3 * n
    root = np.full(n, d + 1) if not capped else d + 1 + np.arange(n)
    q = np.zeros(size)
    entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    offsets, cones, height = [], [], 0

    def add(row: np.ndarray, column: np.ndarray, value: np.ndarray) -> None:
        entries.append((height + np.ravel(row), np.ravel(column), np.ravel(value)))

    if capped:
        square, level, excess = d + 1 + n + np.arange(n), d + 1 + 2 * n, d + 2 + 2 * n + np.arange(n)
        q[level], q[excess] = 1.0, KAPPA / n
        each, one = np.arange(n), np.ones(n)
        add(np.tile(each, 3), np.concatenate([excess, square, np.full(n, level)]), np.repeat([1, -1, 1.0], n))
        add(n + each, excess, one)
        offsets.append(np.zeros(2 * n))
        cones.append(clarabel.NonnegativeConeT(2 * n))
        height += 2 * n
        # root^2 <= square: ||(2 root, square - 1)|| <= square + 1.
        first = 3 * each
        add(
            np.concatenate([first, first + 1, first + 2]),
            np.concatenate([square, root, square]),
            np.repeat([1, 2.0, 1], n),
        )
        offsets.append(np.tile([1.0, 0.0, -1.0], n))
        cones += [clarabel.SecondOrderConeT(3)] * n
        height += 3 * n
    else:
        q[d + 1] = 1.0
    # ||R_i (x, -1)|| <= root_i - radius nu.
    start = (m + 1) * np.arange(n)
    add(np.append(start, start), np.append(root, np.full(n, d)), np.repeat([1.0, -RADIUS], n))
    place = start[:, None, None] + 1 + np.arange(m)[:, None]
    add(place + np.zeros((1, 1, d), int), np.broadcast_to(np.arange(d), (n, m, d)), factors[:, :, :d])
    offsets.append(np.column_stack([np.zeros(n), -factors[:, :, d]]).ravel())
    cones += [clarabel.SecondOrderConeT(m + 1)] * n
    height += (m + 1) * n
    add(np.arange(d + 1), np.append(d, np.arange(d)), np.ones(d + 1))
    offsets.append(np.zeros(d + 1))
    cones.append(clarabel.SecondOrderConeT(d + 1))
    height += d + 1
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix((size, size)),
        q,
        sparse.csc_matrix((-value, (row, column)), (height, size)),
        np.concatenate(offsets),
        cones,
        settings,
    )
    solved = solver.solve()
    return time.process_time() - started, solved.obj_val if capped else solved.obj_val**2


def measured(n: int, capped: bool) -> dict:
    tables = clients(n)
    seconds, found = ours(tables, capped)
    case = {
        "clients": n,
        "mixtures": f"at most {KAPPA:g} times its share" if capped else "any",
        "seconds": seconds,
        "rounds": found.rounds,
        "gap": found.gap,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    if n <= LARGEST_PEER:
        taken, value = peer(tables, capped)
        case |= {
            "clarabel_s": taken,
            "ratio": taken / seconds,
            "relative_difference": abs(found.upper - value) / value,
        }
    print(json.dumps(case), file=sys.stderr)
    return case


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    result: dict = {}
    for kind, capped in (("any_mixture", False), ("cap", True)):
        cases = [measured(n, capped) for n in sizes]
        growth = [
            math.log(b["seconds"] / a["seconds"]) / math.log(b["clients"] / a["clients"])
            for a, b in pairwise(cases)
        ]
        result[kind] = {"cases": cases, "growth": growth}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
