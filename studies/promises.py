"""Promised and observed: the guarantees, simulated from end to end on the paper's data.

python -m studies.promises --out docs/studies [--repetitions 200]

The clients are those of Section VI with their rows kept inside a declared box. The true cost comes from a
large fresh sample of the very distributions that the clients' rows come from, under a mixture that no method
sees.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bidro.ambiguity import WassersteinBall
from bidro.certify.coverage import coverage_probability, failure_probabilities
from bidro.certify.held_out import held_out_bound
from bidro.certify.out_of_sample import largest_loss, out_of_sample_interval
from bidro.certify.radius import explicit_rule
from bidro.certify.statements import clip_level
from bidro.core.arrays import Floats
from bidro.core.files import write_json, write_text
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.experiments.simulation import MODEL_HALF_WIDTH, OFFSETS, SHIFTS, SIZES, observed_rows, simulate
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve

HALF_WIDTH = 8.0  # of the declared box: five standard deviations beyond the farthest mean
FRESH_ROWS = 200_000
CONFIDENCES = (0.5, 0.9)
HELD_OUT_ROWS = (50, 500, 5000)
FIRST_SEED = 40_000
# The column that every client's rows are sorted by before they are judged: features first, the target last.
ORDERS = {"as drawn": None, "by feature": 0, "by target": -1}


def boxed_rows(directions: Floats, sizes: tuple[int, ...], rng: np.random.Generator) -> list[Floats]:
    """Rows of every client, corrupted as in the paper and kept inside the box."""
    return [
        np.clip(observed_rows(OFFSETS[i] * v, SHIFTS[i] * v, size, rng), -HALF_WIDTH, HALF_WIDTH)
        for i, (v, size) in enumerate(zip(directions, sizes, strict=True))
    ]


def boxed_problem(rows: list[Floats]) -> Problem:
    """Squared loss; features and target move alike, so that coverage can be promised."""
    federation = Federation.from_arrays(rows, Box.cube(HALF_WIDTH, 4))
    return Problem(federation, Squared(), Box.cube(MODEL_HALF_WIDTH, 3), Transport.euclidean(4))


def second_moments(rows: list[Floats]) -> Floats:
    """(n, 4, 4) of every client's rows: all that squared losses depend on."""
    return np.stack([own.T @ own / len(own) for own in rows])


def true_risks(moments: Floats, x: Floats) -> Floats:
    """(n,) mean squared losses of the model."""
    v = np.append(x, -1.0)
    return np.asarray(np.einsum("i,nij,j->n", v, moments, v))


def interval_study(repetitions: int) -> list[dict[str, Any]]:
    """How often J lies in the interval of the exact solver's own model, at explicit radii."""
    directions = simulate(FIRST_SEED).directions
    moments = second_moments(
        boxed_rows(directions, (FRESH_ROWS,) * len(SIZES), np.random.default_rng([FIRST_SEED, 1]))
    )
    rows = []
    for confidence in CONFIDENCES:
        inside, upper_holds, ratios, widths = 0, 0, [], []
        for k in range(repetitions):
            rng = np.random.default_rng([FIRST_SEED, 2, k])
            problem = boxed_problem(boxed_rows(directions, SIZES, rng))
            rule = explicit_rule(problem.federation, problem.transport, problem.loss.labels)
            covered = coverage_probability(rule, SIZES, failure_probabilities(confidence, SIZES, rule))
            trained = solve(replace(problem, ambiguity=WassersteinBall(covered.radii)), 1e-4)
            interval = out_of_sample_interval(problem, trained.x, confidence)
            mixture = rng.dirichlet(np.ones(len(SIZES)))
            true = float(mixture @ true_risks(moments, trained.x))
            inside += interval.lower <= true <= interval.upper
            upper_holds += true <= interval.upper
            ratios.append(interval.upper / true)
            widths.append(interval.upper - interval.lower)
        rows.append(
            {
                "promised": confidence,
                "observed": inside / repetitions,
                "upper_end_observed": upper_holds / repetitions,
                "repetitions": repetitions,
                "mean_upper_over_true": float(np.mean(ratios)),
                "mean_width": float(np.mean(widths)),
            }
        )
        print(rows[-1], flush=True)
    return rows


def held_out_study(repetitions: int, confidence: float = 0.9) -> list[dict[str, Any]]:
    """How often the held-out bound is above the true cost of a trained model, and by how much, in every order
    of the rows."""
    run = simulate(FIRST_SEED)
    rng = np.random.default_rng([FIRST_SEED, 3])
    training = boxed_rows(run.directions, SIZES, rng)
    problem = boxed_problem(training)
    x = solve(problem, 1e-6).x
    moments = second_moments(boxed_rows(run.directions, (FRESH_ROWS,) * len(SIZES), rng))
    risks = true_risks(moments, x)
    residual = np.append(x, -1.0)
    seen = clip_level(max(float(np.mean((own @ residual) ** 2)) for own in training), 1.0)
    declared = largest_loss(problem, x)
    assert declared is not None
    rows = []
    for count, (order, column) in product(HELD_OUT_ROWS, ORDERS.items()):
        found: dict[str, list[float]] = {"declared": [], "bernstein": [], "clipped": []}
        clipped_truth = _clipped_truth(run.directions, residual, seen)
        for k in range(repetitions):
            fresh = boxed_rows(
                run.directions, (count,) * len(SIZES), np.random.default_rng([FIRST_SEED, 4, count, k])
            )
            if column is not None:
                fresh = [own[np.argsort(own[:, column])] for own in fresh]
            losses = {str(i): (own @ residual) ** 2 for i, own in enumerate(fresh)}
            found["declared"].append(held_out_bound(losses, confidence, declared).bound)
            found["bernstein"].append(held_out_bound(losses, confidence, declared, kind="bernstein").bound)
            found["clipped"].append(held_out_bound(losses, confidence, seen, clipped=True).bound)
        for kind, bounds in found.items():
            true = float((clipped_truth if kind == "clipped" else risks).max())
            rows.append(
                {
                    "rows_a_client": count,
                    "order": order,
                    "bound": kind,
                    "promised": confidence,
                    "observed": float(np.mean(np.asarray(bounds) >= true)),
                    "repetitions": repetitions,
                    "mean_bound_over_true": float(np.mean(bounds)) / true,
                }
            )
            print(rows[-1], flush=True)
    return rows


def _clipped_truth(directions: Floats, residual: Floats, largest: float) -> Floats:
    fresh = boxed_rows(directions, (FRESH_ROWS,) * len(SIZES), np.random.default_rng([FIRST_SEED, 5]))
    return np.array([np.minimum((own @ residual) ** 2, largest).mean() for own in fresh])


def page(intervals: list[dict[str, Any]], bounds: list[dict[str, Any]]) -> str:
    """The tables as Markdown."""
    lines = [
        "# Promised and observed",
        "",
        "Made by `python -m studies.promises`; do not edit. The numbers are in `promises.json`.",
        "",
        "The paper's five clients with their rows kept in a declared box; true costs from "
        f"{FRESH_ROWS:,} fresh rows",
        "a client, under a mixture that no method sees.",
        "",
        "## The interval of the out-of-sample theorem",
        "",
        "| promised | observed | upper end alone | repetitions | upper end / true cost | width |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['promised']:.2f} | {r['observed']:.3f} | {r['upper_end_observed']:.3f} | {r['repetitions']} "
        f"| {r['mean_upper_over_true']:.0f} | {r['mean_width']:.3g} |"
        for r in intervals
    ]
    lines += [
        "",
        "## Held-out bounds, against the true cost of the worst mixture",
        "",
        "`declared`: by betting, with the largest loss on the declared box. `bernstein`: the same by the",
        "empirical Bernstein bound. `clipped`: by betting, losses counted as at most the smallest power of",
        "two that is eight times each client's mean in training, against the true cost counted so too.",
        "",
        "| rows a client | order | bound | promised | observed | repetitions | bound / true cost |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['rows_a_client']:,} | {r['order']} | {r['bound']} | {r['promised']:.2f} | {r['observed']:.3f} "
        f"| {r['repetitions']} | {r['mean_bound_over_true']:.2f} |"
        for r in bounds
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the guarantees from end to end.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies"))
    parser.add_argument(
        "--repetitions", type=int, default=200, help="of the interval; 500 of held-out bounds"
    )
    chosen = parser.parse_args()
    started = time.perf_counter()
    bounds = held_out_study(500)
    intervals = interval_study(chosen.repetitions)
    write_json(chosen.out / "promises.json", {"intervals": intervals, "held_out": bounds})
    text = page(intervals, bounds)
    write_text(chosen.out / "promises.md", text)
    print(f"\n{text}\nWritten to {chosen.out} in {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
