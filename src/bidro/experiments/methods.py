"""The methods that are compared, and the candidates among which each is tuned: as many for each.

Steps and penalties are for rows in standard units. A method is trained on the training rows of every fold
and on all rows; the candidate with the lowest mean held-out loss over the worst fifth of the clients is
taken, and the clients' own corrections are chosen around its models of the folds, for every method alike.
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

from bidro.algorithms import (
    AFL,
    DRFA,
    FDRSVM,
    QFFL,
    BiDROFL,
    FedAvg,
    GroupDRO,
    GroupDROBalls,
    UnbalancedDRO,
)
from bidro.algorithms.barycentre import barycentre
from bidro.algorithms.contract import Algorithm
from bidro.arrays import Floats
from bidro.client import Penalty, WassersteinBall
from bidro.engines.side_by_side import Setting, train_settings
from bidro.engines.solve import GapNotReachedWarning, Method, solve
from bidro.errors import BidroError
from bidro.experiments.splits import Split
from bidro.federation import Federation
from bidro.guarantees.own import Own
from bidro.guarantees.price import worst_fifth
from bidro.losses import Hinge, Squared
from bidro.problem import NonconcaveInnerWarning, Problem, UncheckedDomainWarning
from bidro.training import Choices, train, unrestricted
from bidro.worst_case import default_oracle

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
    own: Own | None  # the clients' own models around it; None for a single client


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
            settings = [
                Setting(one.algorithm, replace(problem, ambiguity=one.ambiguity)) for one in candidates
            ]
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
            rows = replace(federation, samples=federation.samples[kept], sizes=tuple(sizes), units=None)
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
        choices = Choices(folds=split.folds)
        whole = unrestricted(problem.federation, problem.loss, problem.transport, 1.0)
        found = train(whole, choices)
        assert found.calibration is not None
        best = found.calibration.chosen
        return Chosen(found.x, f"cap = {best.cap:g}, blend = {best.blend:g}", found.own)


def _best(split: Split, models: Floats, words: Sequence[str]) -> Chosen:
    """The candidate with the lowest held-out loss; models (candidates, folds + 1, d)."""
    finite = np.all(np.isfinite(models), axis=(1, 2))
    scores = np.full(len(models), math.inf)
    if finite.any():
        scores[finite] = worst_fifth(split.held_out_losses(models[finite]))
    if not np.isfinite(scores).any():
        raise BidroError("none of its candidates could be trained")
    best = int(np.nanargmin(scores))
    own = split.own_around(np.asarray(models[best])) if split.problem.n > 1 else None
    return Chosen(models[best, -1], words[best], own)


def _plain(make: Callable[..., Algorithm], **grid: Sequence[float]) -> Callable[[Problem], list[Candidate]]:
    """Candidates without ambiguity inside clients: the product of a grid."""

    def candidates(problem: Problem) -> list[Candidate]:
        del problem
        return [
            Candidate(make(**dict(zip(grid, values, strict=True))), None, _words(grid, values))
            for values in product(*grid.values())
        ]

    return candidates


def _words(names: Sequence[str] | dict[str, Sequence[float]], values: Sequence[float]) -> str:
    return ", ".join(f"{name} = {value:.3g}" for name, value in zip(names, values, strict=True))


def _drfa(problem: Problem) -> list[Candidate]:
    sampled = max(1, -(-problem.n // 4))
    grid = product(_SMALL_ETAS, _ETA_ALPHAS)
    return [
        Candidate(DRFA(x, a, _LOCAL_STEPS, sampled), None, _words(("eta_x", "eta_alpha"), (x, a)))
        for x, a in grid
    ]


def _group_dro(problem: Problem) -> list[Candidate]:
    # The published step is weighted by alpha_g, of the size of 1 / n.
    grid = product((0.0003, 0.001, 0.003, 0.01), _ETA_ALPHAS)
    return [
        Candidate(GroupDRO(problem.n * x, a), None, _words(("eta_x / n", "eta_alpha"), (x, a)))
        for x, a in grid
    ]


def _group_dro_adjusted(problem: Problem) -> list[Candidate]:
    grid = product((0.001, 0.003), (0.01, 0.1), (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0))
    return [
        Candidate(GroupDRO(problem.n * x, a, c), None, _words(("eta_x / n", "eta_alpha", "C"), (x, a, c)))
        for x, a, c in grid
    ]


def _group_dro_balls(problem: Problem) -> list[Candidate]:
    sizes = np.asarray(problem.federation.sizes, float)
    oracle = default_oracle(problem.inner)
    grid = product((0.03, 0.1), (0.01, 0.1), _BALL_SCALES)
    return [
        Candidate(
            GroupDROBalls(x, a, oracle),
            WassersteinBall(c / np.sqrt(sizes)),
            _words(("eta_x", "eta_alpha", "c"), (x, a, c)),
        )
        for x, a, c in grid
    ]


def _penalised(by_size: bool) -> Callable[[Problem], list[Candidate]]:
    """BiDRO-FL; with `by_size` small clients get larger penalties, as in the paper."""

    def candidates(problem: Problem) -> list[Candidate]:
        sizes = np.asarray(problem.federation.sizes, float)
        share = np.sqrt(sizes.max() / sizes) if by_size else np.ones(len(sizes))
        oracle = default_oracle(problem.inner)
        return [
            Candidate(BiDROFL(x, x, oracle), Penalty(rho * share), _words(("eta", "rho"), (x, rho)))
            for x, rho in product(_SMALL_ETAS, _RHOS)
        ]

    return candidates


def _unbalanced(sign: Literal["up", "down"]) -> Callable[[Problem], list[Candidate]]:
    def candidates(problem: Problem) -> list[Candidate]:
        oracle = default_oracle(problem.inner)
        grid = product((0.03, 0.1), (5.0, 50.0), (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0))
        return [
            Candidate(
                UnbalancedDRO(tau / rho, x, x, sign, oracle),
                Penalty(rho),
                _words(("eta", "rho", "rho tau"), (x, rho, tau)),
            )
            for x, rho, tau in grid
        ]

    return candidates


def _fdr_svm(problem: Problem) -> list[Candidate]:
    sizes = np.asarray(problem.federation.sizes, float)
    return [
        Candidate(
            FDRSVM(c, 100), WassersteinBall(scale / np.sqrt(sizes)), _words(("penalty", "c"), (c, scale))
        )
        for c, scale in product((0.01, 0.03, 0.1, 0.3), _BALL_SCALES)
    ]


METHODS: dict[str, Trainer] = {
    "FedAvg": Steps(
        _plain(lambda eta_x: FedAvg(eta_x, _LOCAL_STEPS), eta_x=tuple(np.geomspace(0.001, 1.0, CANDIDATES))),
        1 / _LOCAL_STEPS,
    ),
    "AFL": Steps(_plain(AFL, eta_x=_ETAS, eta_alpha=_ETA_ALPHAS)),
    "DRFA": Steps(_drfa, 2 / _LOCAL_STEPS),
    "q-FFL": Steps(_plain(QFFL, eta_x=_ETAS, q=(0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0))),
    # One row of one client a round, where the others below take one of every client.
    "Group DRO": Steps(_group_dro, 3 * _ONE_ROW),
    "adjusted Group DRO": Steps(_group_dro_adjusted, 3 * _ONE_ROW),
    "Group DRO with balls": Steps(_group_dro_balls),
    "WRM": Steps(_penalised(by_size=False), _ONE_ROW, pooled=True),
    "mixture ball": OneBall(lambda rows, classes: rows.pooled(), many_rows=True),
    "barycentre ball": OneBall(lambda rows, classes: barycentre(rows, 50, 100, classes), many_rows=False),
    # A round of these goes over the rows twice.
    "unbalanced up": Steps(_unbalanced("up"), 1 / 2),
    "unbalanced down": Steps(_unbalanced("down"), 1 / 2),
    "FDR-SVM": Steps(_fdr_svm, 1 / 10, hinge=True),
    "DRO-FL": Steps(_penalised(by_size=False), _ONE_ROW),
    "BiDRO-FL": Steps(_penalised(by_size=True), _ONE_ROW),
    "exact MW-DRO": ExactDefault(),
}
