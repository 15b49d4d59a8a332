"""`bidro reproduce`: the paper's simulation section, from data to figures and a table.

Fig. 1 is drawn from real quantities: exact 2-Wasserstein distances between clouds of (corrupted features,
label), laid out in the plane by classical scaling. A radius there is the 95% quantile, over fresh draws, of
the distance between a client's samples and its true distribution. The reference values of Fig. 2a come from
small minimax problems that are solved numerically.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from bidro import __version__
from bidro.ambiguity import Penalty
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import write_json, write_whole
from bidro.core.sets import Box
from bidro.experiments import simulation
from bidro.experiments.simulation import (
    OFFSETS,
    SHIFTS,
    SIZES,
    SimulatedRun,
    clean_mse,
    clean_test,
    observed_rows,
    paper_problem,
    simulate,
)
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import BiDROFL
from bidro.federated.baselines import AFL, FedAvg
from bidro.federated.engines.in_process import Result, run_many
from bidro.problem.problem import Problem
from bidro.problem.worst_case import penalised_risk
from bidro.report import figures
from bidro.report.figures import AmbiguityPicture
from bidro.risk.inner import Exact, FixedStepAscent, Oracle
from bidro.risk.transport import Transport, wasserstein_distance
from bidro.solvers.solve import solve


def largest_risk(problem: Problem, oracle: Oracle, x: Floats) -> float:
    """max_i F_i(x), as this oracle finds the suprema."""
    return float(np.max(penalised_risk(problem, x, oracle).value))


def least_largest_risk(problem: Problem, oracle: Oracle, starts: Sequence[Floats]) -> float:
    """min over x in X of `largest_risk`, the best of SLSQP on its epigraph form from each start: what an
    oracle that stops early defines has no certified solver, and only three coefficients to differentiate
    by."""
    lower, upper = (np.asarray(v) for v in problem.models.bounding_box())

    def risks(x: Floats) -> Floats:
        return np.asarray(penalised_risk(problem, x, oracle).value)

    best = np.inf
    for start in starts:
        top = float(risks(start).max())
        found = minimize(
            lambda v: v[-1],
            np.append(start, top),
            jac="3-point",
            method="SLSQP",
            bounds=[*zip(lower, upper, strict=True), (None, None)],
            constraints={"type": "ineq", "fun": lambda v: v[-1] - risks(v[:-1])},
            options={"maxiter": 500, "ftol": 1e-14},
        )
        best = min(best, top, float(risks(np.clip(found.x[:-1], lower, upper)).max()))
    return best


def ambiguity_picture(
    run: SimulatedRun, cloud: int = 300, mixtures: int = 24, draws: int = 40
) -> AmbiguityPicture:
    """Positions and radii for one run; `cloud` points stand for each true distribution. The paper draws six
    clients and simulates five: here the sixth is like the fifth, but for its direction and its size."""
    rng = np.random.default_rng([run.seed, 2])
    transport = Transport.euclidean(4)
    sizes = (*SIZES, 60)
    n = len(sizes)
    offsets, shifts = np.append(OFFSETS, OFFSETS[-1]), np.append(SHIFTS, SHIFTS[-1])
    directions = np.vstack([run.directions, -run.directions[-1]])

    def true_rows(i: int, count: int) -> Floats:
        v = directions[i]
        return observed_rows(offsets[i] * v, shifts[i] * v, count, rng)

    true = [true_rows(i, cloud) for i in range(n)]
    empirical = [*np.split(run.samples, np.cumsum(SIZES)[:-1]), true_rows(n - 1, sizes[-1])]
    mixed = []
    for weights in rng.dirichlet(np.full(n, 0.6), mixtures):
        owners = rng.choice(n, size=cloud, p=weights)
        mixed.append(np.concatenate([true_rows(i, int(np.sum(owners == i))) for i in range(n)]))

    clouds = [*true, *empirical, *mixed]
    squared = np.zeros((len(clouds), len(clouds)))
    for a in range(len(clouds)):
        for b in range(a):
            squared[a, b] = squared[b, a] = wasserstein_distance(clouds[a], clouds[b], transport) ** 2
    places, explained = _classical_scaling(squared)

    def radius(i: int) -> float:
        distances = [
            wasserstein_distance(true_rows(i, sizes[i]), true_rows(i, cloud), transport) for _ in range(draws)
        ]
        return float(np.quantile(distances, 0.95))

    return AmbiguityPicture(
        places[:n],
        places[n : 2 * n],
        places[2 * n :],
        np.array([radius(i) for i in range(n)]),
        sizes,
        explained,
    )


def _classical_scaling(squared: Floats) -> tuple[Floats, float]:
    """Points in the plane whose distances come closest (Torgerson), and the share they explain."""
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    top = values[::-1][:2]
    places = vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(top, 0.0))
    return places, float(top.sum() / np.abs(values).sum())


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
REFERENCE_GAP = 1e-10

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
        own, models = problem.with_samples(run.samples), np.asarray(result.history.x_average)[chosen]
        curves.append(np.array([largest_risk(own, FIGURE_ORACLE, x) for x in models]))
        report("objective of Fig. 2a", k + 1)
    starts = [np.asarray(results[0].x_average), simulation.COEFFICIENTS]
    reference = least_largest_risk(problem, FIGURE_ORACLE, starts)
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
    problems = [admissible_problem(run) for run in data]
    samples = np.stack([run.samples for run in data])
    seeds = [run.seed for run in data]
    stage = "admissible problem"
    references = []
    for k, problem in enumerate(problems):
        references.append(solve(problem, gap=REFERENCE_GAP).lower)
        report(stage, k + 1)
    horizons = [t for t in HORIZONS if t <= rounds] or [rounds]
    gaps, before = [], len(data)
    for horizon in horizons:
        step = 1 / np.sqrt(horizon)
        results = run_many(
            BiDROFL(eta_x=step, eta_alpha=step, oracle=Exact()),
            problems[0],
            samples,
            horizon,
            seeds,
            record_every=horizon,
            progress=lambda done, before=before: report(stage, before + done),  # type: ignore[misc]
        )
        before += len(data) * horizon
        gaps.append(
            [
                largest_risk(problem, Exact(), r.x_average) - reference
                for problem, r, reference in zip(problems, results, references, strict=True)
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
        write_whole(path, lambda temporary, figure=figure: figures.save(figure, temporary))  # type: ignore[misc]
    return paths
