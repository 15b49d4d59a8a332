"""`bidro reproduce`: the paper's simulation section, from data to figures and a table."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bidro import __version__
from bidro.algorithms import AFL, Algorithm, BiDROFL, FedAvg
from bidro.arrays import Floats
from bidro.client import Penalty
from bidro.engines.in_process import run_many
from bidro.engines.result import Result
from bidro.errors import BidroError
from bidro.experiments import simulation
from bidro.experiments.ambiguity import ambiguity_picture
from bidro.experiments.reference import ClientRisks, minimise_largest
from bidro.experiments.simulation import (
    SimulatedRun,
    clean_mse,
    clean_test,
    paper_problem,
    simulate,
)
from bidro.problem import Problem
from bidro.report import figures
from bidro.report.files import write_json, write_whole
from bidro.report.style import save
from bidro.sets import Box
from bidro.worst_case import Exact, FixedStepAscent

# The settings of Section VI. FedAvg is not in the paper; its step is that of BiDRO-FL.
ALGORITHMS: dict[str, Algorithm] = {
    "BiDRO-FL": BiDROFL(eta_x=0.01, eta_alpha=0.01),
    "DRO-FL": BiDROFL(eta_x=0.01, eta_alpha=0.01),
    "AFL": AFL(eta_x=0.001, eta_alpha=0.001),
    "FedAvg": FedAvg(eta_x=0.01),
}
PENALTIES: dict[str, Any] = {
    "BiDRO-FL": simulation.PENALTIES,
    "DRO-FL": simulation.SHARED_PENALTY,
    "AFL": None,
    "FedAvg": None,
}
# Final figures of Fig. 2b, after this many rounds.
PAPER_ROUNDS = 10_000
PAPER_MSE = {"BiDRO-FL": 0.00470, "DRO-FL": 0.00569, "AFL": 0.01318, "FedAvg": None}

# The objective of Fig. 2a: the ascent of training without its random last step.
FIGURE_ORACLE = FixedStepAscent(perturbation=0.0)

# The admissible problem of the second panel: on this smaller model set ||(x, -1)||^2 <= 7.75, and every
# penalty is raised to at least 8.
ADMISSIBLE_HALF_WIDTH = 1.5
ADMISSIBLE_PENALTIES = tuple(max(r, 8.0) for r in simulation.PENALTIES)
HORIZONS = (100, 300, 1000, 3000, 10_000)

NOTE = (
    "The penalties are below half the curvature of the loss, which is up to 30001 on the model set, so the "
    "inner problem is not concave. rho_5 = 2.5 equals ||(x, -1)||^2 at the true model: near it the exact "
    "inner supremum over the box is huge (tens of thousands against squared residuals below 0.1), the 30 "
    "short ascent steps of the paper never get near it, and with an exact inner solver Algorithm 1 diverges."
)


@dataclass(frozen=True)
class Stage:
    """A part of the work, for a progress bar: `total` units, all of which will be reported."""

    name: str
    total: int


Report = Callable[[str, int], None]


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Everything the simulation section shows."""

    seeds: tuple[int, ...]
    rounds: int
    results: dict[str, list[Result]]
    mse: dict[str, Floats]  # (runs, records) clean-test MSE of the model x_{t+1}
    mse_average: dict[str, Floats]  # (runs,) of the averaged model at the end
    at: NDArray[np.int64]  # rounds of the records of `mse`
    objective_at: NDArray[np.int64]
    objective: Floats  # (runs, records) Fig. 2a's objective minus the common reference
    reference: float
    horizons: NDArray[np.int64]
    admissible_gap: Floats  # (runs, horizons)
    picture: figures.AmbiguityPicture
    seconds: float


def stages(runs: int, rounds: int) -> list[Stage]:
    """The stages that `reproduce` reports on, in order."""
    horizons = [t for t in HORIZONS if t <= rounds] or [rounds]
    return [
        *(Stage(name, runs * rounds) for name in ALGORITHMS),
        Stage("objective of Fig. 2a", runs),
        Stage("admissible problem", runs * (sum(horizons) + 1)),
        Stage("ambiguity set", 1),
    ]


def reproduce(
    runs: int = 20,
    rounds: int = 10_000,
    seed_base: int = 2026,
    report: Report = lambda stage, done: None,
) -> Reproduction:
    """Run all methods on the data of seeds seed_base, ..., seed_base + runs - 1."""
    if runs < 1 or rounds < 1:
        raise BidroError(f"reproduce needs at least one run and one round; got {runs}, {rounds}.")
    started = time.perf_counter()
    seeds = tuple(range(seed_base, seed_base + runs))
    data = [simulate(seed) for seed in seeds]
    results = train(data, rounds, report)
    tests = [clean_test(run, result.alpha) for run, result in zip(data, results["BiDRO-FL"], strict=True)]
    mse = {
        name: np.stack([clean_mse(t, r.history.x) for t, r in zip(tests, method, strict=True)])
        for name, method in results.items()
    }
    average = {
        name: np.array([clean_mse(t, r.x_average) for t, r in zip(tests, method, strict=True)])
        for name, method in results.items()
    }
    at = results["BiDRO-FL"][0].history_rounds
    objective_at, objective, reference = _paper_objective(data, results["BiDRO-FL"], report)
    horizons, gap = _admissible(data, rounds, report)
    picture = ambiguity_picture(data[0])
    report("ambiguity set", 1)
    return Reproduction(
        seeds,
        rounds,
        results,
        mse,
        average,
        at,
        objective_at,
        objective,
        reference,
        horizons,
        gap,
        picture,
        time.perf_counter() - started,
    )


def train(
    data: Sequence[SimulatedRun], rounds: int, report: Report = lambda stage, done: None
) -> dict[str, list[Result]]:
    """All methods on all runs' data, a thousand snapshots each."""
    samples = np.stack([run.samples for run in data])
    seeds = [run.seed for run in data]
    results = {}
    for name, algorithm in ALGORITHMS.items():
        results[name] = run_many(
            algorithm,
            paper_problem(data[0], PENALTIES[name]),
            samples,
            rounds,
            seeds,
            record_every=max(1, rounds // 1000),
            progress=lambda done, name=name: report(name, done),  # type: ignore[misc]
        )
    return results


def _paper_objective(
    data: Sequence[SimulatedRun], results: list[Result], report: Report
) -> tuple[NDArray[np.int64], Floats, float]:
    """max_i F_i(x-bar_t) with the 30-step ascent, minus its minimum on the first run's data."""
    problem = paper_problem(data[0], PENALTIES["BiDRO-FL"])
    at = results[0].history_rounds
    chosen = np.unique(np.searchsorted(at, np.geomspace(at[0], at[-1], 60)))
    curves = []
    for k, (run, result) in enumerate(zip(data, results, strict=True)):
        risks = ClientRisks(problem, FIGURE_ORACLE, run.samples)
        models = np.asarray(result.history.x_average)[chosen]
        curves.append(np.array([float(jnp.max(risks(x))) for x in models]))
        report("objective of Fig. 2a", k + 1)
    reference = minimise_largest(
        ClientRisks(problem, FIGURE_ORACLE),
        problem,
        [results[0].x_average, simulation.COEFFICIENTS],
    )
    return at[chosen], np.stack(curves) - reference, reference


def admissible_problem(run: SimulatedRun) -> Problem:
    """The paper's data with penalties above the curvature of the loss on the model set."""
    template = paper_problem(run, None)
    return Problem(
        template.federation,
        template.loss,
        Box.cube(ADMISSIBLE_HALF_WIDTH, 3),
        template.transport,
        Penalty(ADMISSIBLE_PENALTIES),
    )


def _admissible(
    data: Sequence[SimulatedRun], rounds: int, report: Report
) -> tuple[NDArray[np.int64], Floats]:
    """Gap of x-bar_T after T rounds with the theorem's steps 1 / sqrt(T), per run and horizon."""
    problem = admissible_problem(data[0])
    samples = np.stack([run.samples for run in data])
    seeds = [run.seed for run in data]
    stage = "admissible problem"
    references = []
    for k, run in enumerate(data):
        risks = ClientRisks(problem, Exact(), run.samples)
        references.append(minimise_largest(risks, problem, [simulation.COEFFICIENTS]))
        report(stage, k + 1)
    horizons = [t for t in HORIZONS if t <= rounds] or [rounds]
    gaps, before = [], len(data)
    for horizon in horizons:
        step = 1 / np.sqrt(horizon)
        results = run_many(
            BiDROFL(eta_x=step, eta_alpha=step, oracle=Exact()),
            problem,
            samples,
            horizon,
            seeds,
            record_every=horizon,
            progress=lambda done, before=before: report(stage, before + done),  # type: ignore[misc]
        )
        before += len(data) * horizon
        gaps.append(
            [
                float(jnp.max(ClientRisks(problem, Exact(), run.samples)(r.x_average))) - reference
                for run, r, reference in zip(data, results, references, strict=True)
            ]
        )
    return np.asarray(horizons), np.asarray(gaps).T


def summary(done: Reproduction) -> dict[str, Any]:
    """The content of results.json."""
    methods = {}
    for name, results in done.results.items():
        final = done.mse[name][:, -1]
        # One run has no spread.
        spread = float(final.std(ddof=1)) if len(final) > 1 else None
        alphas = np.stack([r.alpha for r in results])
        methods[name] = {
            "mse_mean": float(final.mean()),
            "mse_std": spread,
            "mse_se": None if spread is None else spread / np.sqrt(len(final)),
            "paper": PAPER_MSE[name],
            "paper_rounds": PAPER_ROUNDS,
            "mse_by_run": final.tolist(),
            "mse_mean_averaged_iterate": float(done.mse_average[name].mean()),
            "final_weights_mean": dict(zip(results[0].names, alphas.mean(axis=0).tolist(), strict=True)),
            "final_weights_by_run": alphas.tolist(),
            "final_model_by_run": [r.x.tolist() for r in results],
            "settings": {
                **asdict(ALGORITHMS[name]),  # type: ignore[call-overload]
                "rho": PENALTIES[name],
                "rounds": done.rounds,
            },
        }
    return {
        "methods": methods,
        "note": NOTE,
        "convergence": {
            "reference_value": done.reference,
            "rounds": done.objective_at.tolist(),
            "objective_minus_reference_mean": done.objective.mean(axis=0).tolist(),
            "admissible_rounds": done.horizons.tolist(),
            "admissible_gap_mean": done.admissible_gap.mean(axis=0).tolist(),
            "admissible_penalties": ADMISSIBLE_PENALTIES,
            "admissible_model_half_width": ADMISSIBLE_HALF_WIDTH,
        },
        "seeds": list(done.seeds),
        "rounds": done.rounds,
        "test_rows": simulation.TEST_ROWS,
        "problem": {
            "loss": "squared",
            "p": 2,
            "support_half_width": simulation.HALF_WIDTH,
            "model_half_width": simulation.MODEL_HALF_WIDTH,
            "client_sizes": simulation.SIZES,
        },
        "seconds": done.seconds,
        "versions": {
            "bidro": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "numpy", "scipy", "pot")},
        },
    }


def write(done: Reproduction, folder: Path) -> list[Path]:
    """Write results.json and the three figures; each appears whole or not at all."""
    paths = [
        folder / name
        for name in ("results.json", "convergence.png", "clean_test_loss.png", "ambiguity_set.png")
    ]
    write_json(paths[0], summary(done))
    drawings = (
        figures.convergence(
            done.objective_at,
            done.objective,
            done.horizons,
            done.admissible_gap,
        ),
        figures.clean_test_loss(done.at, done.mse, PAPER_MSE, PAPER_ROUNDS),
        figures.ambiguity_set(done.picture),
    )
    for path, figure in zip(paths[1:], drawings, strict=True):
        write_whole(path, lambda temporary, figure=figure: save(figure, temporary))  # type: ignore[misc]
    return paths
