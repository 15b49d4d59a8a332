"""Choosing radius and cap from the data, by cross-validation inside the clients.

Every candidate (c, kappa) is trained, to a small gap, on each fold's training rows and scored on the rows
left out, pooled over the folds at each client; for squared loss all of it follows from second moments. What
is wanted is a low worst decile: the mean over the worst tenth of the clients. As few clients make a noisy
judge, the choice is by the worst fifth. The grid holds FedAvg (kappa = 1, c = 0) and AFL
(no cap, c = 0). A radius chosen in this way promises nothing about the true distribution, and a cap chosen
so must not restrict the mixtures of a statement: certify the model afterwards, with explicit radii or rows
kept out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np

from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments
from bidro.algorithms.fold_newton import FoldNewton
from bidro.arrays import Floats
from bidro.client import WassersteinBall
from bidro.engines.local import IN_PROCESS
from bidro.engines.rounds import Deal, Rounds, last_state, rounds
from bidro.errors import BidroError
from bidro.federation import column_deviations
from bidro.losses import LinearLoss, Squared
from bidro.problem import Problem
from bidro.transport import Transport
from bidro.worst_case import Oracle, default_oracle

SCALES = (0.0, 0.5, 1.0, 2.0)
CAPS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, math.inf)
FOLDS = 5


def worst_decile(losses: Floats) -> Floats:
    """The mean of the ceil(n / 10) largest of n clients' losses, along the first axis."""
    return _worst_share(losses, 10)


def worst_fifth(losses: Floats) -> Floats:
    """The mean of the ceil(n / 5) largest: what candidates are chosen by."""
    return _worst_share(losses, 5)


def _worst_share(losses: Floats, parts: int) -> Floats:
    """The mean of the ceil(n / parts) largest."""
    worst = -(-len(losses) // parts)
    return np.asarray(np.sort(losses, axis=0)[-worst:].mean(axis=0))


@dataclass(frozen=True, eq=False)
class Calibration:
    """The candidates, their held-out losses at every client, and the choice."""

    candidates: tuple[Candidate, ...]
    losses: Floats  # (n, candidates) pooled over folds at the client
    names: tuple[str, ...]
    radii: Floats  # (n,) of the choice
    chosen: Candidate
    spread: float  # that radii are in units of
    folds: int
    rounds: int
    start: Floats | None  # (d,) mean over the folds of the choice's models, to begin a solve with; None where
    # the candidates were solved from second moments
    moments: Any  # of all rows, as `OneShotMWDRO` asks for; None where clients have not sent them

    @property
    def promise(self) -> str:
        return "Chosen by cross-validation: good on rows like these, with no promise about the truth."

    @property
    def scores(self) -> Floats:
        """(candidates,) the mean over the worst fifth of the clients, by which the choice is made."""
        return worst_fifth(self.losses)

    @property
    def worst_deciles(self) -> Floats:
        """(candidates,)"""
        return worst_decile(self.losses)


def calibrate(
    problem: Problem,
    scales: Sequence[float] = SCALES,
    caps: Sequence[float] = CAPS,
    folds: int | None = None,
    seed: int = 0,
    spread: float | None = None,
    oracle: Oracle | None = None,
    progress: Callable[[int, int], None] | None = None,
    network: Rounds = IN_PROCESS,
    sends_curvature: bool = True,
) -> Calibration:
    """Choose the radius scale and the cap for `problem`, whose own ambiguity and mixtures do not matter.

    There are 5 folds unless told otherwise, and fewer where a client has fewer rows, but at least 2. Radii
    are eps_i = c `spread` N_i^-1/2; the spread is by default `pooled_spread`. `progress` is called after each
    round with its number and how many of the solves go on. `network` answers the rounds, without curvature or
    second moments unless `sends_curvature`. Raises BidroError for a client with fewer rows
    than folds.
    """
    _check(scales, caps, spread)
    whole = None
    candidates = tuple(Candidate(float(c), float(k)) for c, k in product(scales, caps))
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    unit = pooled_spread(problem) if spread is None else float(spread)
    if folds is None:
        folds = max(2, min(FOLDS, *problem.federation.unit_counts))
    balls = replace(problem, ambiguity=WassersteinBall(0.0))
    ask = network.clients_of(balls, Deal(folds, seed))
    models = None
    if isinstance(problem.loss, Squared) and balls.lifted and sends_curvature:
        moments = FoldMoments(candidates, folds, unit)
        told = last_state(rounds(ask, moments, moments.init(balls)), None)
        losses, took, whole = told.losses, told.t, told.whole
        if progress is not None:
            progress(took, 0)
    else:
        kinks = isinstance(problem.loss, LinearLoss) and math.isinf(problem.loss.scalar.curvature)
        solves: Any = (
            FoldNewton(chosen, candidates, folds, unit)
            if sends_curvature and not kinks
            else FoldSolves(chosen, candidates, folds, unit, sends_curvature)
        )
        going = solves.init(balls)
        for one in rounds(ask, solves, going):
            going, took = one.state, one.t
            if progress is not None:
                progress(took, len(going.active))
        models = going.models
        scored = rounds(ask, FoldScores(), jnp.asarray(models), took + 1, took)
        losses, took = np.asarray(last_state(scored, None)), took + 1
    place = int(np.argmin(worst_fifth(losses)))
    best, start = candidates[place], None if models is None else models[:, place].mean(axis=0)
    radii = unit * best.scale / np.sqrt(np.asarray(problem.federation.sizes, float))
    names = problem.federation.names
    return Calibration(candidates, losses, names, radii, best, unit, folds, took, start, whole)


def _check(scales: Sequence[float], caps: Sequence[float], spread: float | None) -> None:
    if len(scales) == 0 or len(caps) == 0:
        raise BidroError("Calibration needs at least one scale and one cap to choose from.")
    if not all(0 <= c < math.inf for c in scales):
        raise BidroError(f"Every radius scale must be a number of at least 0; got {tuple(scales)}.")
    if not all(k >= 1 for k in caps):
        raise BidroError(f"Every cap must be at least 1 (inf for none); got {tuple(caps)}.")
    if spread is not None and not 0 < spread < math.inf:
        raise BidroError(f"The spread must be a positive number; got {spread}.")


def pooled_spread(problem: Problem) -> float:
    """The root mean square, over the coordinates that move, of their pooled standard deviations in the metric
    of the transport cost: 1 in pooled standardised units."""
    return spread_of(column_deviations(np.asarray(problem.federation.samples)), problem.transport)


def spread_of(deviations: Floats, transport: Transport) -> float:
    """`pooled_spread` from the standard deviations (m,) of the columns."""
    inverse = np.asarray(transport.inverse_scale)
    movable = inverse > 0
    moving = deviations[movable] / inverse[movable]
    size = float(np.sqrt(np.mean(moving**2))) if movable.any() else 0.0
    if not size > 0:
        raise BidroError(
            "No feature that can move varies in the data, so there is no spread to scale radii by."
        )
    return size
