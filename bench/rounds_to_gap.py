"""Rounds to a certified relative gap of 1e-6, and bytes, for every method of the exact solver. Prints JSON.

    python bench/rounds_to_gap.py

Cases: the paper's data (d = 3, 5 clients) and made-up sites with models of their own (d = 30 and 100, 5 and
50 clients), squared loss in both metrics and logistic loss (p = 1; for the paper's data the label is the sign
of its target), and for context losses with kinks, logistic loss with p = 2, and a box support. Every case is
solved on three data sets; `rounds`, `gap` and `bytes_per_client` (both ways, all rounds) are those of the one
that took most rounds. `penalised`: Algorithm 1 on an admissible penalised problem, its averaged iterate after
12, 100 and 10,000 rounds against the optimum of that problem, and the exact solver on the same.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings

import numpy as np

from bidro import (
    Absolute,
    BiDROFL,
    Box,
    Exact,
    Federation,
    Hinge,
    Logistic,
    Penalty,
    Problem,
    Squared,
    Transport,
    WassersteinBall,
    run,
    solve,
)
from bidro.experiments.reproduce import ADMISSIBLE_HALF_WIDTH, ADMISSIBLE_PENALTIES
from bidro.experiments.simulation import SIZES, paper_problem, simulate
from bidro.problem.worst_case import penalised_risk

GAP = 1e-6
SETS = 3
RADIUS = 0.1


def paper_clients(seed: int) -> list[np.ndarray]:
    return np.split(simulate(2026 + seed).samples, np.cumsum(SIZES)[:-1])


def made_up_clients(d: int, n: int, seed: int, rows: int = 400) -> list[np.ndarray]:
    """Correlated features, a model of each site's own around a common one, noise that grows with the site."""
    rng = np.random.default_rng([seed, d, n])
    mix = np.eye(d) + 0.3 * rng.standard_normal((d, d)) / np.sqrt(d)
    common = rng.standard_normal(d) / np.sqrt(d)
    clients = []
    for i in range(n):
        theta = rng.standard_normal((rows, d)) @ mix + 0.5 * rng.standard_normal(d)
        own = common + 0.3 * rng.standard_normal(d) / np.sqrt(d)
        y = theta @ own + (0.3 + 0.5 * i / n) * rng.standard_normal(rows)
        clients.append(np.column_stack([theta, y]))
    return clients


def problem(clients: list[np.ndarray], loss, p: float, movable: bool, support="unbounded") -> Problem:
    m = clients[0].shape[1]
    if loss.labels is not None:
        clients = [np.column_stack([c[:, :-1], np.where(c[:, -1] > 0, 1.0, -1.0)]) for c in clients]
        transport = Transport.classification(m, p)
    else:
        transport = Transport.euclidean(m, p) if movable else Transport.features_only(m, p)
    if support == "box":
        half_width = 1.2 * max(np.abs(c).max() for c in clients)
        support = Box.cube(half_width, m)
    models = Box.cube(100.0, loss.dimension(m))
    return Problem(Federation.from_arrays(clients, support), loss, models, transport, WassersteinBall(RADIUS))


def measured(
    name: str, clients_of, loss, p: float = 2.0, movable=True, support="unbounded", method=None
) -> dict:
    worst = None
    for seed in range(SETS):
        found = solve(problem(clients_of(seed), loss, p, movable, support), gap=GAP, method=method)
        if worst is None or found.rounds > worst.rounds:
            worst = found
    first = clients_of(0)
    case = {
        "name": name,
        "d": first[0].shape[1] - 1,
        "n": len(first),
        "loss": type(loss).__name__.lower(),
        "p": p,
        "method": worst.method,
        "rounds": worst.rounds,
        "gap": worst.gap,
        "bytes_per_client": worst.bytes_to_client + worst.bytes_from_client,
    }
    print(json.dumps(case), file=sys.stderr)
    return case


def cases() -> list[dict]:
    shapes = {
        "paper": paper_clients,
        "d = 30, n = 5": lambda seed: made_up_clients(30, 5, seed),
        "d = 100, n = 5": lambda seed: made_up_clients(100, 5, seed),
        "d = 100, n = 50": lambda seed: made_up_clients(100, 50, seed),
    }
    required = [
        measured(f"{shape}, {text}", clients, loss, p, movable)
        for shape, clients in shapes.items()
        for text, loss, p, movable in (
            ("squared, target moves", Squared(), 2.0, True),
            ("squared, target cannot move", Squared(), 2.0, False),
            ("logistic, p = 1", Logistic(), 1.0, False),
        )
    ]
    thirty = shapes["d = 30, n = 5"]
    context = [
        measured("d = 30, n = 5, squared, gradients only", thirty, Squared(), method="gradients"),
        measured("d = 30, n = 5, squared, one-shot", thirty, Squared(), method="one-shot"),
        measured("d = 30, n = 5, logistic, gradients only", thirty, Logistic(), 1.0, method="gradients"),
        measured("d = 30, n = 5, hinge", thirty, Hinge(), 1.0),
        measured("d = 30, n = 5, absolute", thirty, Absolute(), 1.0),
        measured("d = 30, n = 5, hinge, gradients only", thirty, Hinge(), 1.0, method="gradients"),
        measured("d = 30, n = 5, logistic, p = 2", thirty, Logistic(), 2.0),
        measured("paper, squared, box support", paper_clients, Squared(), 2.0, support="box"),
    ]
    return required + context


def penalised() -> dict:
    """Algorithm 1 with the exact supremum and its best of four step sizes, against the same optimum."""
    data = simulate(2026)
    admissible = dataclasses.replace(
        paper_problem(data, None),
        ambiguity=Penalty(ADMISSIBLE_PENALTIES),
        models=Box.cube(ADMISSIBLE_HALF_WIDTH, 3),
    )
    exact = solve(admissible, gap=1e-10)
    result: dict = {"optimum": exact.lower, "algorithm_1": []}
    for rounds in (12, 100, 10_000):
        gaps = []
        for step in (0.001, 0.003, 0.01, 0.03):
            averaged = run(BiDROFL(step, step, Exact()), admissible, rounds).x_average
            risk = float(np.max(penalised_risk(admissible, averaged).value))
            gaps.append((risk - exact.lower) / exact.lower)
        result["algorithm_1"].append({"rounds": rounds, "relative_gap": min(gaps)})
    found = solve(admissible, gap=GAP)
    result["exact"] = {"rounds": found.rounds, "gap": found.gap}
    return result


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps({"cases": cases(), "penalised": penalised()}, indent=2))


if __name__ == "__main__":
    main()
