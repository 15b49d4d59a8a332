"""Choosing the weights, and if wanted the radius, by cross-validation inside the clients.

Every candidate is trained on each fold's training rows, and on all rows, and scored on the rows left out;
for squared loss all of it follows from second moments. Among the candidates are pooled training (kappa = 1,
c = 0) and AFL (any mixture, c = 0); `choice` says which is taken, for the largest cost that a user allows. A
radius chosen in this way promises nothing about the true distribution, and weights chosen so must not
restrict the mixtures of a statement: certify the model afterwards, with explicit radii or held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from bidro.core.arrays import Floats, column_deviations
from bidro.core.errors import BidroError
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import FoldSpec, Rounds
from bidro.problem.problem import Problem
from bidro.risk.inner import Oracle, default_oracle
from bidro.risk.moments import TrainingMoments
from bidro.risk.transport import Transport
from bidro.selection.cross_validate import Candidate, SentMoments, cross_validate
from bidro.selection.rule import (
    MAX_COST,
    MIXTURE_SPECS,
    LeftOut,
    check_max_cost,
    choice,
    worst_decile,
    worst_fifth,
)

SCALES = (0.0, 0.5, 1.0, 2.0)
FOLDS = 5


@dataclass(frozen=True)
class FoldLimits:
    """What all clients answer: these numbers of folds, 1 for all rows together; None for whatever is
    wanted."""

    folds: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()  # the clients that answer over no folds


NO_FOLD_LIMITS = FoldLimits()


@dataclass(frozen=True, eq=False)
class Calibration:
    """The candidates, their losses on rows left out, and the choice.

    Examples:
        >>> from bidro import RobustRegressor, example_visits
        >>> rows = example_visits()
        >>> model = RobustRegressor().fit(rows[["age", "bmi"]], rows["stay"], clients=rows["hospital"])
        >>> found = model.calibration_
        >>> bool(found.means[found.place] <= (1 + found.max_cost) * found.means[found.pooled])
        True
    """

    candidates: tuple[Candidate, ...]  # what was tried
    left_out: LeftOut  # losses by fold and client; of a model already trained, over all folds at once
    names: tuple[str, ...]  # the clients'
    sizes: tuple[int, ...]  # their rows
    max_cost: float  # that the choice was held to
    pooled: int  # which candidate is pooled training, or what comes closest to it
    place: int  # which is chosen
    radii: Floats  # (n,) of the choice
    pooled_model: Floats  # (d,) of pooled training, on all rows
    spread: float  # that radii are in units of
    fold_spec: FoldSpec  # of the folds
    rounds: int  # with the clients
    models: Floats | None  # (folds + 1, candidates, d), last of all rows; None for a model already trained
    moments: SentMoments | None = None  # of squared loss, where clients have sent them
    mixtures: Floats | None = None  # (candidates, n) the worst at the models of all rows, where known

    @property
    def promise(self) -> str:
        return "Chosen by cross-validation: good on rows like these, with no promise about the truth."

    @property
    def chosen(self) -> Candidate:
        return self.candidates[self.place]

    @property
    def losses(self) -> Floats:
        """(n, candidates) pooled over folds at the client."""
        return self.left_out.pooled

    @property
    def means(self) -> Floats:
        """(candidates,) over all rows."""
        return self.left_out.means

    @property
    def scores(self) -> Floats:
        """(candidates,) the mean over the worst fifth of the clients, by which the choice is made."""
        return worst_fifth(self.losses)

    @property
    def worst_deciles(self) -> Floats:
        """(candidates,)"""
        return worst_decile(self.losses)

    @property
    def start(self) -> Floats | None:
        """(d,) to begin a solve with; None where a solve depends on second moments alone."""
        return None if self.moments is not None or self.models is None else self.models[-1, self.place]

    @property
    def start_mixture(self) -> Floats | None:
        """(n,) the worst at `start`, where it is known."""
        return None if self.start is None or self.mixtures is None else self.mixtures[self.place]

    def without_folds(self) -> Calibration:
        """What may be kept, pickled and shared with a trained model: no sums over single folds, from whose
        differences the rows of a small client follow, and no models of the other candidates: with the
        mixtures that these are optimal for they are linear equations for every client's second moments."""
        whole = LeftOut(self.left_out.pooled[None], self.left_out.rows.sum(axis=0, keepdims=True))
        return replace(self, left_out=whole, models=None, moments=None, mixtures=None)

    def held_to(self, mixture_spec: tuple[float, float]) -> Calibration:
        """With the choice among candidates of this (max_weight_ratio, mixing) alone; the others are to
        compare."""
        places = [k for k, one in enumerate(self.candidates) if one.mixture_spec == tuple(mixture_spec)]
        losses = LeftOut(self.left_out.losses[:, :, places], self.left_out.rows)
        least = int(np.argmin([self.candidates[k].scale for k in places]))
        place = places[choice(losses, least, self.max_cost)]
        more = self.spread * (self.candidates[place].scale - self.chosen.scale)
        return replace(self, place=place, radii=self.radii + more / np.sqrt(np.asarray(self.sizes, float)))


def calibrate(
    problem: Problem,
    scales: Sequence[float] = SCALES,
    mixture_specs: Sequence[tuple[float, float]] = MIXTURE_SPECS,
    max_cost: float = MAX_COST,
    folds: int | None = None,
    seed: int = 0,
    spread: float | None = None,
    oracle: Oracle | None = None,
    progress: Callable[[int, int], None] | None = None,
    network: Rounds = IN_PROCESS,
    sends_curvature: bool = True,
    sent: TrainingMoments | None = None,
) -> Calibration:
    """Choose, by cross-validation, a radius scale c and the set of mixtures, as (max_weight_ratio, mixing),
    for a problem.

    Radii are eps_i = c `spread` N_i^-1/2 beyond those of the problem, if it has any. Its own mixtures do not
    matter. How the choice is made is in `choice`.

    Args:
        problem: whose rows, loss and models are used.
        scales: the c to try.
        mixture_specs: pairs (max_weight_ratio, mixing) to try: see `CappedSimplex.mixed`.
        max_cost: by which share the mean loss may rise over that of pooled training.
        folds: 5 unless given, and fewer where a client has fewer rows, but at least 2.
        seed: of the folds.
        spread: by default `pooled_spread`.
        oracle: as in `solve`.
        progress: called after each round with its number and how many of the solves go on.
        network: answers the rounds.
        sends_curvature: whether clients send curvature and second moments.
        sent: moments that clients have sent before, of this problem's rows, folds and seed.

    Returns:
        The candidates, their losses on rows left out, and the choice.

    Raises:
        BidroError: for a client with fewer rows than folds.

    Examples:
        >>> from bidro import Box, Federation, Problem, Squared, Transport, calibrate, example_visits
        >>> rows = example_visits()[["hospital", "age", "bmi", "stay"]]
        >>> federation = Federation.from_table(rows, "hospital", "stay", "unbounded")
        >>> problem = Problem(federation, Squared(), Box.cube(10, 2), Transport.features_only(3))
        >>> found = calibrate(problem, scales=(0.0,), max_cost=0.05)
        >>> len(found.candidates) > 1, found.max_cost
        (True, 0.05)
    """
    _check(scales, mixture_specs, spread)
    check_max_cost(max_cost)
    candidates = candidates_of(scales, mixture_specs)
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    moving = any(scale > 0 for scale in scales)
    unit = (pooled_spread(problem) if moving else 1.0) if spread is None else float(spread)
    if folds is None:
        folds = max(2, min(FOLDS, *problem.federation.draw_counts))
    balls = problem.with_balls()
    fold_spec = FoldSpec(folds, seed)
    found = cross_validate(
        balls, candidates, fold_spec, unit, chosen, network, sends_curvature, sent, progress
    )
    left_out = LeftOut(found.losses, found.rows)
    # By how many rows clients count, not by how many they say they have.
    counted = problem.federation.counted / np.asarray(problem.federation.sizes, float)
    left_out = left_out._replace(rows=left_out.rows * counted)
    pooled = min(
        range(len(candidates)),
        key=lambda j: (candidates[j].max_weight_ratio, candidates[j].mixing, candidates[j].scale),
    )
    place = choice(left_out, pooled, max_cost)
    sizes = problem.federation.sizes
    radii = balls.eps + unit * candidates[place].scale / np.sqrt(np.asarray(sizes, float))
    return Calibration(
        candidates,
        left_out,
        problem.federation.names,
        sizes,
        max_cost,
        pooled,
        place,
        radii,
        found.models[-1, pooled],
        unit,
        fold_spec,
        found.rounds,
        found.models,
        found.sent,
        found.weights,
    )


def candidates_of(
    scales: Sequence[float], mixture_specs: Sequence[tuple[float, float]]
) -> tuple[Candidate, ...]:
    """Every scale of the radii with every set of mixtures."""
    return tuple(
        Candidate(float(c), *map(float, mixture_spec)) for c, mixture_spec in product(scales, mixture_specs)
    )


def _check(
    scales: Sequence[float], mixture_specs: Sequence[tuple[float, float]], spread: float | None
) -> None:
    if len(scales) == 0 or len(mixture_specs) == 0:
        raise BidroError("Calibration needs at least one scale and one set of mixtures to choose from.")
    if not all(0 <= c < math.inf for c in scales):
        raise BidroError(f"Every radius scale must be a number of at least 0; got {tuple(scales)}.")
    if not all(ratio >= 1 and 0 <= mixing <= 1 for ratio, mixing in mixture_specs):
        raise BidroError(
            "A set of mixtures is a max_weight_ratio of at least 1 (inf for none) and a mixing from 0 to 1; "
            f"got {tuple(mixture_specs)}."
        )
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
