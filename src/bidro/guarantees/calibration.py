"""Choosing the weights, and if wanted the radius, by cross-validation inside the clients.

Every candidate is trained on each fold's training rows, and on all rows, and scored on the rows left out;
for squared loss all of it follows from second moments. Among the candidates are pooled training (kappa = 1,
c = 0) and AFL (no cap, c = 0); `choice` says which is taken, for the price that a user allows. A radius
chosen in this way promises nothing about the true distribution, and weights chosen so must not restrict the
mixtures of a statement: certify the model afterwards, with explicit radii or rows kept out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from bidro.algorithms.contract import HeldRows
from bidro.algorithms.cross_validation import Candidate, FoldScores, FoldSolves
from bidro.algorithms.fold_moments import FoldMoments, Told
from bidro.algorithms.fold_newton import FoldNewton
from bidro.algorithms.fold_rows import found_from_rows
from bidro.algorithms.second_moments import TrainingMoments, worth_their_memory
from bidro.arrays import Floats, column_deviations
from bidro.client import WassersteinBall
from bidro.engines.local import IN_PROCESS
from bidro.engines.rounds import Deal, Rounds, last_state, rounds
from bidro.errors import BidroError
from bidro.guarantees.price import PRICE, WEIGHINGS, LeftOut, check_price, choice, worst_decile, worst_fifth
from bidro.losses import LinearLoss, Loss, Squared, has_curves
from bidro.problem import Problem
from bidro.transport import Transport
from bidro.worst_case import Oracle, default_oracle

SCALES = (0.0, 0.5, 1.0, 2.0)
FOLDS = 5


@dataclass(frozen=True)
class Limits:
    """What all clients answer: these numbers of folds, 1 for all rows together; None for whatever is
    wanted."""

    folds: tuple[int, ...] | None = None
    without: tuple[str, ...] = ()  # the clients that answer over no folds


NO_LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Calibration:
    """The candidates, their losses on rows left out, and the choice.

    Examples:
        >>> from bidro import RobustRegressor, example_visits
        >>> rows = example_visits()
        >>> model = RobustRegressor().fit(rows[["age", "bmi"]], rows["stay"], clients=rows["hospital"])
        >>> found = model.calibration_
        >>> bool(found.means[found.place] <= (1 + found.price) * found.means[found.pooled])
        True
    """

    candidates: tuple[Candidate, ...]  # what was tried
    left_out: LeftOut  # losses by fold and client; beside a trained model over all folds at once
    names: tuple[str, ...]  # the clients'
    sizes: tuple[int, ...]  # their rows
    price: float  # that the choice was held to
    pooled: int  # which candidate is pooled training, or what comes closest to it
    place: int  # which is chosen
    radii: Floats  # (n,) of the choice
    pooled_model: Floats  # (d,) of pooled training, on all rows
    spread: float  # that radii are in units of
    deal: Deal  # of the folds
    rounds: int  # with the clients
    models: Floats | None  # (folds + 1, candidates, d): last those of all rows; None beside a trained model
    moments: Told | None = None  # of squared loss, where clients have sent them; None beside a trained model
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
        """(d,) to begin a solve with; None where second moments tell all that a solve asks for."""
        return None if self.moments is not None or self.models is None else self.models[-1, self.place]

    @property
    def start_mixture(self) -> Floats | None:
        """(n,) the worst at `start`, where it is known."""
        return None if self.start is None or self.mixtures is None else self.mixtures[self.place]

    def beside_a_model(self) -> Calibration:
        """What may be kept, pickled and shared with a trained model: no sums over single folds, from whose
        differences the rows of a small client follow, and no models of the other candidates: with the
        mixtures that these are optimal for they are linear equations for every client's second moments."""
        whole = LeftOut(self.left_out.pooled[None], self.left_out.rows.sum(axis=0, keepdims=True))
        return replace(self, left_out=whole, models=None, moments=None, mixtures=None)

    def held_to(self, weighing: tuple[float, float]) -> Calibration:
        """With the choice among candidates of one weighing (cap, blend) alone; the others are to compare."""
        places = [k for k, one in enumerate(self.candidates) if one.weighing == tuple(weighing)]
        losses = LeftOut(self.left_out.losses[:, :, places], self.left_out.rows)
        least = int(np.argmin([self.candidates[k].scale for k in places]))
        place = places[choice(losses, least, self.price)]
        more = self.spread * (self.candidates[place].scale - self.chosen.scale)
        return replace(self, place=place, radii=self.radii + more / np.sqrt(np.asarray(self.sizes, float)))


def calibrate(
    problem: Problem,
    scales: Sequence[float] = SCALES,
    weighings: Sequence[tuple[float, float]] = WEIGHINGS,
    price: float = PRICE,
    folds: int | None = None,
    seed: int = 0,
    spread: float | None = None,
    oracle: Oracle | None = None,
    progress: Callable[[int, int], None] | None = None,
    network: Rounds = IN_PROCESS,
    sends_curvature: bool = True,
    told: TrainingMoments | None = None,
) -> Calibration:
    """Choose, by cross-validation, a radius scale c and a weighing (cap, blend) for a problem.

    Radii are eps_i = c `spread` N_i^-1/2 beyond those of the problem, if it has any. Its own mixtures do not
    matter. How the choice is made is in `choice`.

    Args:
        problem: whose rows, loss and models are used.
        scales: the c to try.
        weighings: pairs (cap, blend) to try: see `CappedSimplex.blended`.
        price: by which share the mean loss may rise over that of pooled training.
        folds: 5 unless told otherwise, and fewer where a client has fewer rows, but at least 2.
        seed: of the folds.
        spread: by default `pooled_spread`.
        oracle: as in `solve`.
        progress: called after each round with its number and how many of the solves go on.
        network: answers the rounds.
        sends_curvature: whether clients send curvature and second moments.
        told: moments that clients have sent before, of this problem's rows, folds and seed.

    Returns:
        The candidates, their losses on rows left out, and the choice.

    Raises:
        BidroError: for a client with fewer rows than folds.

    Examples:
        >>> from bidro import Box, Federation, Problem, Squared, Transport, calibrate, example_visits
        >>> rows = example_visits()[["hospital", "age", "bmi", "stay"]]
        >>> federation = Federation.from_table(rows, "hospital", "stay", "unbounded")
        >>> problem = Problem(federation, Squared(), Box.cube(10, 2), Transport.features_only(3))
        >>> found = calibrate(problem, scales=(0.0,), price=0.05)
        >>> len(found.candidates) > 1, found.price
        (True, 0.05)
    """
    _check(scales, weighings, spread)
    check_price(price)
    candidates = candidates_of(scales, weighings)
    chosen = default_oracle(problem.inner) if oracle is None else oracle
    moving = any(scale > 0 for scale in scales)
    unit = (pooled_spread(problem) if moving else 1.0) if spread is None else float(spread)
    if folds is None:
        folds = max(2, min(FOLDS, *problem.federation.unit_counts))
    balls = problem if problem.eps is not None else replace(problem, ambiguity=WassersteinBall(0.0))
    ask = network.clients_of(balls, Deal(folds, seed))
    found = None
    if second_moments_tell(balls, sends_curvature):
        moments = FoldMoments(candidates, folds, unit)
        begun = moments.init(balls)
        if told is not None:
            found, took = moments.found(begun, told), 1
        elif not moving and moments_too_large(balls, folds):
            held = HeldRows(balls.loss, balls.federation.host_rows, np.asarray(balls.federation.sizes))
            marks = balls.federation.folds(folds, seed)
            found, took = found_from_rows(moments, begun, held._replace(marks=marks, folds=folds)), 1
        else:
            ended = last_state(rounds(ask, moments, begun), None)
            found, took = ended.found, ended.t
        models, left_out = found.models, LeftOut(found.losses, found.rows)
        if progress is not None:
            progress(took, 0)
    else:
        smooth = not _has_kinks(balls, moving)
        solves: Any = (
            FoldNewton(chosen, candidates, folds, unit)
            if sends_curvature and smooth and problem.federation.max_share == 1
            else FoldSolves(chosen, candidates, folds, unit, sends_curvature)
        )
        going = solves.init(balls)
        for one in rounds(ask, solves, going):
            going, took = one.state, one.t
            if progress is not None:
                progress(took, len(going.active))
        models = going.models
        scored = rounds(ask, FoldScores(), np.asarray(models[:-1]), took + 1, took)
        scores, took = last_state(scored, None), took + 1
        left_out = LeftOut(np.swapaxes(scores.loss, 0, 1), np.swapaxes(scores.rows, 0, 1))
    # By how many rows clients count, not by how many they say they have.
    counted = problem.federation.counted / np.asarray(problem.federation.sizes, float)
    left_out = left_out._replace(rows=left_out.rows * counted)
    pooled = min(
        range(len(candidates)), key=lambda j: (candidates[j].cap, candidates[j].blend, candidates[j].scale)
    )
    place = choice(left_out, pooled, price)
    assert balls.eps is not None
    sizes = problem.federation.sizes
    radii = np.asarray(balls.eps) + unit * candidates[place].scale / np.sqrt(np.asarray(sizes, float))
    return Calibration(
        candidates,
        left_out,
        problem.federation.names,
        sizes,
        price,
        pooled,
        place,
        radii,
        np.asarray(models)[-1, pooled],
        unit,
        Deal(folds, seed),
        took,
        np.asarray(models),
        None if found is None else found.told,
        None if found is None else found.weights,
    )


def candidates_of(scales: Sequence[float], weighings: Sequence[tuple[float, float]]) -> tuple[Candidate, ...]:
    """Every scale of the radii with every weighing."""
    return tuple(Candidate(float(c), *map(float, weighing)) for c, weighing in product(scales, weighings))


def loss_has_kinks(loss: Loss) -> bool:
    """Whether it is steeper on one side of a prediction than on the other: absolute, pinball, hinge."""
    return isinstance(loss, LinearLoss) and math.isinf(loss.scalar.curvature)


def _has_kinks(problem: Problem, moving: bool) -> bool:
    """Whether the clients' risks have kinks: those of the loss, or where labels have a price, which the worst
    case of a ball pays from some model on (at 0, where all labels are alike, for all rows at once)."""
    loss, transport = problem.loss, problem.transport
    if loss_has_kinks(loss):
        return True
    priced = transport.discrete_label and math.isfinite(transport.label_cost)
    return priced and (moving or bool(np.any(problem.eps)))


def second_moments_tell(problem: Problem, sends_curvature: bool) -> bool:
    """Whether cross-validation needs nothing of the clients but second moments."""
    ball = problem if problem.eps is not None else replace(problem, ambiguity=WassersteinBall(0.0))
    return isinstance(problem.loss, Squared) and ball.lifted and sends_curvature


def moments_too_large(problem: Problem, folds: int) -> bool:
    """Whether the second moments of every client and fold would be larger by far than the rows, which are
    here and tell the same: of curves, and without radii."""
    federation = problem.federation
    if federation.rows_elsewhere or not has_curves(problem.loss) or np.any(problem.eps):
        return False
    columns = problem.loss.columns(federation.m)
    return not worth_their_memory(federation.n * folds, columns, federation.host_rows.nbytes)


def told_moments(problem: Problem, folds: int, seed: int, network: Rounds = IN_PROCESS) -> TrainingMoments:
    """The second moments of every fold's training rows, where these tell all."""
    balls = problem if problem.eps is not None else replace(problem, ambiguity=WassersteinBall(0.0))
    asked = FoldMoments((), folds)
    ask = network.clients_of(balls, Deal(folds, seed))
    moments: TrainingMoments = last_state(rounds(ask, asked, asked.init(balls)), None).trained
    return moments


def _check(scales: Sequence[float], weighings: Sequence[tuple[float, float]], spread: float | None) -> None:
    if len(scales) == 0 or len(weighings) == 0:
        raise BidroError("Calibration needs at least one scale and one weighing to choose from.")
    if not all(0 <= c < math.inf for c in scales):
        raise BidroError(f"Every radius scale must be a number of at least 0; got {tuple(scales)}.")
    if not all(cap >= 1 and 0 <= blend <= 1 for cap, blend in weighings):
        raise BidroError(
            "A weighing is a cap of at least 1 (inf for none) and a blend from 0 to 1; got "
            f"{tuple(weighings)}."
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
