"""The methods that are compared, and the candidates among which each is tuned: as many for each.

Steps and penalties are for rows in standard units. A method is trained on the training rows of every fold
and on all rows; the candidate with the lowest mean held-out loss over the worst fifth of the clients is
taken, and the clients' personal models are chosen around its models of the folds, for every method alike.
`passes` is how often a method that uses all rows may go over them; one that uses one row of a client a round
gets ten times as many rounds. The mixture ball is solved exactly here, as the barycentre's is: `MixtureBall`
comes to the same model by steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple, Protocol

import numpy as np

from bidro.ambiguity import NonconcaveInnerWarning, Penalty, UncheckedDomainWarning, WassersteinBall
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.experiments.splits import Split
from bidro.federated.algorithm import Algorithm
from bidro.federated.algorithms import BiDROFL
from bidro.federated.baselines import AFL, DRFA, FDRSVM, QFFL, FedAvg, GroupDRO, GroupDROBalls, UnbalancedDRO
from bidro.federated.baselines.barycentre import barycentre
from bidro.federated.engines.side_by_side import Trial, train_settings
from bidro.fit.settings import FitSettings
from bidro.fit.training import train, unrestricted
from bidro.losses import Hinge, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import default_oracle
from bidro.selection.personalise import PersonalChoice
from bidro.selection.rule import worst_fifth
from bidro.solvers.solve import GapNotReachedWarning, Method, solve

# Every method that takes steps tries so many.
CANDIDATES = 28
_LOCAL_STEPS = 5
_ONE_ROW = 10

_ETAS = (0.01, 0.03, 0.1, 0.3)
_SMALL_ETAS = (0.003, 0.01, 0.03, 0.1)
_ETA_ALPHAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_RHOS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_BALL_SCALES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)  # of N_i^-1/2


class Chosen(NamedTuple):
    x: Floats  # trained on all training rows
    words: str  # the candidate
    personal: PersonalChoice | None  # the clients' personal models around it; None for a single client


class Trainer(Protocol):
    def train(self, split: Split, passes: int, progress: Callable[[float], None]) -> Chosen:
        """Tune and train; `progress` is called with the share of the work done. Raises BidroError where the
        method does not suit the problem or no candidate could be trained."""


class Candidate(NamedTuple):
    algorithm: Algorithm
    ambiguity: Penalty | WassersteinBall | None
    words: str


@dataclass(frozen=True)
class Steps:
    """A step-taking algorithm. `rounds` is what `passes` are worth; `pooled`: all rows as one client."""

    candidates: Callable[[Problem], Sequence[Candidate]]
    rounds: float = 1.0
    pooled: bool = False
    hinge: bool = False

    def train(self, split: Split, passes: int, progress: Callable[[float], None]) -> Chosen:
        problem, of_row = (
            (split.pooled, split.of_pooled_row) if self.pooled else (split.problem, split.of_row)
        )
        if self.hinge:
            if problem.loss.labels is None or len(problem.loss.labels) != 2:
                raise BidroError("it is for two classes")
            problem = replace(problem, loss=Hinge(intercept=True))
        candidates = self.candidates(problem)
        if len(candidates) != CANDIDATES:
            raise BidroError(f"Every method has {CANDIDATES} candidates; here are {len(candidates)}.")
        rounds = max(2, round(self.rounds * passes))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncheckedDomainWarning)
            warnings.simplefilter("ignore", NonconcaveInnerWarning)
            settings = [Trial(one.algorithm, replace(problem, ambiguity=one.ambiguity)) for one in candidates]
            models = train_settings(settings, of_row, split.folds, rounds, progress=progress)
        return _best(split, models, [one.words for one in candidates])


@dataclass(frozen=True)
class OneBall:
    """The exact solver over one ball around a cloud made from all clients' training rows."""

    centre: Callable[[Federation, bool], Federation]  # of the rows, and whether there are classes
    many_rows: bool

    def train(self, split: Split, passes: int, progress: Callable[[float], None]) -> Chosen:
        radii = np.append(0.0, np.geomspace(0.003, 3.0, CANDIDATES - 1))
        problem, federation = split.problem, split.problem.federation
        owner = np.repeat(np.arange(federation.n), federation.sizes)
        # Second moments where there are many rows; else rounds, whose number can be limited.
        many = self.many_rows and isinstance(problem.loss, Squared)
        method: Method = "one-shot" if many else "curvature"
        models = []
        for fold in range(split.folds + 1):
            kept = split.of_row != fold
            sizes = np.bincount(owner[kept], minlength=federation.n).tolist()
            rows = replace(federation, samples=federation.samples[kept], sizes=tuple(sizes), people=None)
            centre = self.centre(rows, problem.loss.labels is not None)
            whole = replace(problem, federation=centre, mixtures=None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GapNotReachedWarning)
                balls = [replace(whole, ambiguity=WassersteinBall(r)) for r in radii]
                models.append([solve(ball, 1e-3, method, max_rounds=20).x for ball in balls])
            progress((fold + 1) / (split.folds + 1))
        return _best(split, np.swapaxes(np.asarray(models), 0, 1), [f"eps = {r:.3g}" for r in radii])


@dataclass(frozen=True)
class ExactDefault:
    """Exact MW-DRO as `bidro fit` trains by default, on rows in these units."""

    def train(self, split: Split, passes: int, progress: Callable[[float], None]) -> Chosen:
        problem = split.problem
        choices = FitSettings(folds=split.folds)
        whole = unrestricted(problem.federation, problem.loss, problem.transport, 1.0)
        found = train(whole, choices)
        assert found.calibration is not None
        best = found.calibration.chosen
        words = f"max_weight_ratio = {best.max_weight_ratio:g}, mixing = {best.mixing:g}"
        return Chosen(found.x, words, found.personal)


def _best(split: Split, models: Floats, words: Sequence[str]) -> Chosen:
    """The candidate with the lowest held-out loss over the worst fifth of the clients; models (candidates,
    folds + 1, d)."""
    finite = np.all(np.isfinite(models), axis=(1, 2))
    scores = np.full(len(models), math.inf)
    if finite.any():
        scores[finite] = worst_fifth(split.held_out_losses(models[finite]))
    if not np.isfinite(scores).any():
        raise BidroError("none of its candidates could be trained")
    best = int(np.nanargmin(scores))
    personal = split.personal_around(np.asarray(models[best])) if split.problem.n > 1 else None
    return Chosen(models[best, -1], words[best], personal)


def _grid(
    make: Callable[..., tuple[Algorithm, Penalty | WassersteinBall | None]], **grid: Sequence[float]
) -> Callable[[Problem], list[Candidate]]:
    """The product of a grid: `make(problem, *values)` is the algorithm and the ambiguity inside clients."""

    def words(values: Sequence[float]) -> str:
        return ", ".join(f"{name} = {value:.3g}" for name, value in zip(grid, values, strict=True))

    return lambda problem: [
        Candidate(*make(problem, *values), words(values)) for values in product(*grid.values())
    ]


def _drfa(problem: Problem, eta_x: float, eta_alpha: float) -> tuple[Algorithm, None]:
    return DRFA(eta_x, eta_alpha, _LOCAL_STEPS, max(1, -(-problem.n // 4))), None


def _group_dro(problem: Problem, eta_x: float, eta_alpha: float, c: float = 0.0) -> tuple[Algorithm, None]:
    # The published step is weighted by alpha_g, of the size of 1 / n.
    return GroupDRO(problem.n * eta_x, eta_alpha, c), None


def _balls(problem: Problem, c: float) -> WassersteinBall:
    return WassersteinBall(c / np.sqrt(np.asarray(problem.federation.sizes, float)))


def _group_dro_balls(
    problem: Problem, eta_x: float, eta_alpha: float, c: float
) -> tuple[Algorithm, WassersteinBall]:
    return GroupDROBalls(eta_x, eta_alpha, default_oracle(problem.inner)), _balls(problem, c)


def _one_penalty(problem: Problem, eta: float, rho: float) -> tuple[Algorithm, Penalty]:
    return BiDROFL(eta, eta, default_oracle(problem.inner)), Penalty(np.full(problem.n, rho))


def _penalty_by_size(problem: Problem, eta: float, rho: float) -> tuple[Algorithm, Penalty]:
    """Small clients get larger penalties, as in the paper."""
    sizes = np.asarray(problem.federation.sizes, float)
    return BiDROFL(eta, eta, default_oracle(problem.inner)), Penalty(rho * np.sqrt(sizes.max() / sizes))


def _unbalanced(sign: Literal["up", "down"]) -> Callable[[Problem], list[Candidate]]:
    def make(problem: Problem, eta: float, rho: float, rho_tau: float) -> tuple[Algorithm, Penalty]:
        return UnbalancedDRO(rho_tau / rho, eta, eta, sign, default_oracle(problem.inner)), Penalty(rho)

    taus = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    return _grid(make, **{"eta": (0.03, 0.1), "rho": (5.0, 50.0), "rho tau": taus})


_PENALTIES = {"eta": _SMALL_ETAS, "rho": _RHOS}
METHODS: dict[str, Trainer] = {
    "FedAvg": Steps(
        _grid(
            lambda problem, eta_x: (FedAvg(eta_x, _LOCAL_STEPS), None),
            eta_x=tuple(np.geomspace(0.001, 1.0, CANDIDATES)),
        ),
        1 / _LOCAL_STEPS,
    ),
    "AFL": Steps(_grid(lambda problem, *etas: (AFL(*etas), None), eta_x=_ETAS, eta_alpha=_ETA_ALPHAS)),
    "DRFA": Steps(_grid(_drfa, eta_x=_SMALL_ETAS, eta_alpha=_ETA_ALPHAS), 2 / _LOCAL_STEPS),
    "q-FFL": Steps(
        _grid(
            lambda problem, eta_x, q: (QFFL(eta_x=eta_x, q=q), None),
            eta_x=_ETAS,
            q=(0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
        )
    ),
    # One row of one client a round, where the others below take one of every client.
    "Group DRO": Steps(
        _grid(_group_dro, **{"eta_x / n": (0.0003, 0.001, 0.003, 0.01), "eta_alpha": _ETA_ALPHAS}),
        3 * _ONE_ROW,
    ),
    "adjusted Group DRO": Steps(
        _grid(
            _group_dro,
            **{"eta_x / n": (0.001, 0.003), "eta_alpha": (0.01, 0.1)},
            C=(0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0),
        ),
        3 * _ONE_ROW,
    ),
    "Group DRO with balls": Steps(
        _grid(_group_dro_balls, eta_x=(0.03, 0.1), eta_alpha=(0.01, 0.1), c=_BALL_SCALES)
    ),
    "WRM": Steps(_grid(_one_penalty, **_PENALTIES), _ONE_ROW, pooled=True),
    "mixture ball": OneBall(lambda rows, classes: rows.pooled(), many_rows=True),
    "barycentre ball": OneBall(lambda rows, classes: barycentre(rows, 50, 100, classes), many_rows=False),
    # A round of these goes over the rows twice.
    "unbalanced up": Steps(_unbalanced("up"), 1 / 2),
    "unbalanced down": Steps(_unbalanced("down"), 1 / 2),
    "FDR-SVM": Steps(
        _grid(
            lambda problem, penalty, c: (FDRSVM(penalty, 100), _balls(problem, c)),
            penalty=(0.01, 0.03, 0.1, 0.3),
            c=_BALL_SCALES,
        ),
        1 / 10,
        hinge=True,
    ),
    "DRO-FL": Steps(_grid(_one_penalty, **_PENALTIES), _ONE_ROW),
    "BiDRO-FL": Steps(_grid(_penalty_by_size, **_PENALTIES), _ONE_ROW),
    "exact MW-DRO": ExactDefault(),
}
