"""`bidro compare`: five methods on the same rows, each tuned over six candidates in the same way.

In every split 30% of each client's rows are the test, and 30% of the others judge the candidates by the worst
decile of the clients; the best candidate is trained again on all rows that are not the test. FedAvg, AFL,
DRO-FL and BiDRO-FL are the step-taking algorithms, exact MW-DRO the exact solver over balls.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bidro.algorithms import AFL, BiDROFL, FedAvg
from bidro.algorithms.contract import Algorithm
from bidro.algorithms.cross_validation import Candidate
from bidro.client import Penalty, WassersteinBall
from bidro.engines.in_process import run
from bidro.engines.solve import GapNotReachedWarning, solve
from bidro.errors import BidroError
from bidro.guarantees.calibration import worst_decile
from bidro.losses import Logistic, Loss, Softmax, Squared, losses_of
from bidro.problem import Problem, UncheckedDomainWarning
from bidro.sets import Box
from bidro.standard import Moments, Standard, signs
from bidro.tables import Schema, choose_kept_out
from bidro.training import LARGEST_COEFFICIENT, transport_of
from bidro.workflow.fit import Progress
from bidro.worst_case import default_oracle

Floats = NDArray[np.float64]

TEST_SHARE = 0.3
FIRST_SEED = 7000


class Rows(NamedTuple):
    """Standardised features and target of some rows, and whose they are."""

    features: Floats
    target: Floats
    clients: NDArray[np.str_]

    def only(self, chosen: NDArray[np.bool_]) -> Rows:
        return Rows(self.features[chosen], self.target[chosen], self.clients[chosen])


class Step(NamedTuple):
    """A step-taking algorithm, on the problem with these penalties (None: without ambiguity)."""

    algorithm: Algorithm
    penalty: float | None = None
    by_size: bool = False  # whether small clients get larger penalties, as in the paper

    def train(self, problem: Problem, rounds: int) -> Floats:
        algorithm = self.algorithm
        if self.penalty is not None:
            sizes = np.asarray(problem.federation.sizes, float)
            rho = self.penalty * (np.sqrt(sizes.max() / sizes) if self.by_size else np.ones(len(sizes)))
            problem = replace(problem, ambiguity=Penalty(rho))
            assert isinstance(algorithm, BiDROFL)
            algorithm = replace(algorithm, oracle=default_oracle(problem.inner))
        # The mean of the iterates, which the rates are for.
        return run(algorithm, problem, rounds).x_average


class Balls(NamedTuple):
    """Exact MW-DRO at a radius scale and a cap."""

    candidate: Candidate

    def train(self, problem: Problem, rounds: int) -> Floats:
        del rounds
        sizes = problem.federation.sizes
        radii = self.candidate.scale / np.sqrt(np.asarray(sizes, float))
        balls = replace(problem, ambiguity=WassersteinBall(radii), mixtures=self.candidate.mixtures(sizes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GapNotReachedWarning)
            return solve(balls, 1e-6, max_rounds=100).x


_STEPS = (0.01, 0.03, 0.1)
METHODS: dict[str, list[Step | Balls]] = {
    "FedAvg": [Step(FedAvg(eta_x=eta)) for eta in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)],
    "AFL": [Step(AFL(eta_x=x, eta_alpha=a)) for x, a in product(_STEPS, (0.01, 0.1))],
    "DRO-FL": [
        Step(BiDROFL(eta_x=x, eta_alpha=x), rho) for x, rho in product((0.01, 0.03), (2.0, 5.0, 20.0))
    ],
    "BiDRO-FL": [
        Step(BiDROFL(eta_x=x, eta_alpha=x), rho, True) for x, rho in product((0.01, 0.03), (2.0, 5.0, 20.0))
    ],
    "exact MW-DRO": [Balls(Candidate(c, k)) for c, k in product((0.0, 0.5, 1.0), (2.0, math.inf))],
}


def compare_methods(
    schema: Schema, table: pd.DataFrame, rounds: int, splits: int, progress: Progress
) -> dict[str, Any]:
    """For each method the test losses in every split: mean over rows, worst client, worst decile."""
    matrix, clients = schema.matrix(table), schema.clients(table)
    labels = schema.labels(table)
    target = np.asarray(labels, float) if schema.classes is None else _codes(labels, schema.classes)
    found: dict[str, Any] = {name: {"mean": [], "worst_client": [], "worst_decile": []} for name in METHODS}
    failures: dict[str, str] = {}
    for k in range(splits):
        test = choose_kept_out(clients, TEST_SHARE, FIRST_SEED + k)
        standard = Standard.of(Moments.of(matrix[~test], target[~test]), schema.classes is not None)
        rows = Rows((matrix - standard.mean) / standard.spread, _unit(target, standard), clients)
        unit = standard.target_spread**2
        for name, candidates in METHODS.items():
            progress.begin(f"comparing: split {k + 1} of {splits}, {name}")
            try:
                x = _tuned(candidates, rows.only(~test), schema, rounds, FIRST_SEED + k)
            except BidroError as error:
                failures[name] = str(error)
                continue
            means = _client_losses(_loss(schema), x, rows.only(test)) * unit
            counts = np.unique(clients[test], return_counts=True)[1]
            found[name]["mean"].append(float(means @ counts / counts.sum()))
            found[name]["worst_client"].append(float(means.max()))
            found[name]["worst_decile"].append(float(worst_decile(means)))
    methods = {
        name: {key: _summary(values) for key, values in one.items()}
        for name, one in found.items()
        if name not in failures
    }
    return {"splits": splits, "rounds": rounds, "methods": methods, "failed": failures}


def comparison_table(found: Mapping[str, Any]) -> str:
    """The result as a table to read."""
    lines = [
        f"Test losses over {found['splits']} splits, mean ± standard error; {found['rounds']} rounds of "
        "steps",
        f"  {'method':<14} {'mean':>18} {'worst client':>18} {'worst decile':>18}",
    ]
    for name, one in found["methods"].items():
        cells = [one[key] for key in ("mean", "worst_client", "worst_decile")]
        words = [f"{c['mean']:.4g}" + ("" if c["se"] is None else f" ± {c['se']:.2g}") for c in cells]
        lines.append(f"  {name:<14} " + " ".join(f"{word:>18}" for word in words))
    lines += [f"  {name:<14} absent: {why}" for name, why in found["failed"].items()]
    return "\n".join(lines)


def _tuned(candidates: list[Step | Balls], rows: Rows, schema: Schema, rounds: int, seed: int) -> Floats:
    """The best candidate by the worst decile on rows set aside, trained on all rows."""
    aside = choose_kept_out(rows.clients, TEST_SHARE, seed)
    problem, loss = _problem(rows.only(~aside), schema), _loss(schema)
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncheckedDomainWarning)
        for candidate in candidates:
            try:
                losses = _client_losses(loss, candidate.train(problem, rounds), rows.only(aside))
                scores.append(float(worst_decile(losses)))
            except BidroError:
                # Steps that run away, or penalties that no model satisfies, are not chosen.
                scores.append(math.inf)
        if not np.isfinite(min(scores)):
            raise BidroError("none of its candidates could be trained")
        return candidates[int(np.argmin(scores))].train(_problem(rows, schema), rounds)


def _problem(rows: Rows, schema: Schema) -> Problem:
    loss = _loss(schema)
    names = [*schema.features, schema.target]
    still = Standard(np.zeros(rows.features.shape[1]), np.ones(rows.features.shape[1]), 0.0, 1.0)
    federation = still.federation(rows.features, rows.target, rows.clients, names)
    transport = transport_of(loss, federation.m, "features", 1.0, None, 1.0)
    models = Box.cube(LARGEST_COEFFICIENT, loss.dimension(federation.m))
    return Problem(federation, loss, models, transport)


def _loss(schema: Schema) -> Loss:
    if schema.classes is None:
        return Squared(intercept=True)
    return Logistic(True) if len(schema.classes) == 2 else Softmax(len(schema.classes), True)


def _client_losses(loss: Loss, x: Floats, rows: Rows) -> Floats:
    """(n,) mean losses, clients in alphabetical order."""
    values = losses_of(loss, x, np.column_stack([rows.features, rows.target]))
    if not np.all(np.isfinite(values)):
        raise BidroError("a loss is not finite")
    _, codes = np.unique(rows.clients, return_inverse=True)
    return np.asarray(np.bincount(codes, values) / np.bincount(codes))


def _codes(labels: NDArray[Any], classes: tuple[str, ...]) -> Floats:
    return signs(np.searchsorted(np.asarray(classes), labels), len(classes))


def _unit(target: Floats, standard: Standard) -> Floats:
    """A numeric target in standard deviations; classes as they are."""
    return np.asarray((target - standard.middle) / standard.target_spread)


def _summary(values: list[float]) -> dict[str, Any]:
    several = len(values) > 1
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if several else None
    return {"mean": float(np.mean(values)), "se": error, "values": values}
