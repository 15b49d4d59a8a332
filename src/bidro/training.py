"""From rows in standard units to a trained model: radius, weights, and the exact solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from bidro.algorithms import BiDROFL
from bidro.algorithms.cross_validation import Candidate
from bidro.arrays import Floats
from bidro.client import Penalty, WassersteinBall
from bidro.curves import Basis
from bidro.engines.local import IN_PROCESS, run_over
from bidro.engines.rounds import Rounds
from bidro.engines.solve import Method, Solution, solve
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.asked import (
    check_confidence,
    check_criterion,
    check_metric,
    check_radius,
    check_weights,
    is_number,
)
from bidro.guarantees.calibration import FOLDS, NO_LIMITS, SCALES, Calibration, Limits, calibrate
from bidro.guarantees.empirical_radius import bootstrap_radii
from bidro.guarantees.out_of_sample import explicit_radii
from bidro.guarantees.own import Own, attainable, can_have_own, check_own, choose_own, own_losses
from bidro.guarantees.price import PRICE, WEIGHINGS, check_price
from bidro.guarantees.segments import DEFAULT_CURVES, SegmentChoice, Wanted, check_curves, choose_curves
from bidro.losses import Loss
from bidro.problem import Problem
from bidro.sets import Box
from bidro.transport import Transport

Radius = float | ArrayLike | Mapping[str, float] | Literal["cross-validate", "bootstrap", "explicit"]
Weights = float | Literal["auto", "simplex", "fixed"]
Replies = Literal["curvature", "gradient"]

# Models are sought within this many standard units of 0.
LARGEST_COEFFICIENT = 1e3


class Weighing(NamedTuple):
    """The mixtures that training guards against."""

    cap: float  # no client counts for more than so many times its share; inf for none
    blend: float = 1.0  # the share of the weight that this holds for; the rest is by the clients' rows

    @property
    def fixed(self) -> bool:
        """Whether every client counts by its rows, as in pooled training."""
        return self.cap == 1 or self.blend == 0


def has_pooled(found: Calibration | None) -> TypeGuard[Calibration]:
    """Whether pooled training is among the candidates, and so can be compared with."""
    return found is not None and Weighing(*found.candidates[found.pooled].weighing).fixed


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, and how it came about."""

    problem: Problem  # as solved: balls of the chosen radii, weights of the chosen cap
    x: Floats  # (d,)
    alpha: Floats  # (n,) weights of the worst mixture, or those that training ended with
    rounds: int
    method: str
    calibration: Calibration | None
    radius_promise: str
    weighing: Weighing
    solution: Solution | None  # None where a model was trained without proof
    own: Own | None = None  # the clients' own corrections; None where there are none
    segments: SegmentChoice | None = None  # of curves; None where there are none to choose from

    @property
    def pooled(self) -> Floats | None:
        """(d,) of pooled training, for comparison; where that was chosen the model itself, as solved less
        closely it would differ by rounding. None where it was not cross-validated."""
        if not has_pooled(found := self.calibration):
            return None
        return self.x if found.place == found.pooled and self.gap is not None else found.pooled_model

    @property
    def gap(self) -> float | None:
        """The certified duality gap; None where nothing is proven."""
        return self.solution.gap if self.solution is not None and self.solution.certified else None

    @property
    def risks(self) -> Floats | None:
        """(n,) upper ends of the clients' robust risks; None where nothing is proven."""
        return self.solution.risks if self.solution is not None and self.solution.certified else None


@dataclass(frozen=True, eq=False)
class Choices:
    """What a user may choose besides loss and rows; radii are in standard units.

    Raises BidroError for what stands for nothing, so that it is said before any work begins.
    """

    radius: Any = 0.0  # a Radius
    weights: Any = "auto"  # Weights
    price: float = PRICE  # of weights="auto": by which share the mean loss may rise over pooled training
    criterion: str = "risk"  # or "regret": of what the worst mixture is
    own: Any = "auto"  # each client's own correction: "auto", "offset" or None
    metric: str = "features"
    label_cost: float = 1.0
    p: float | None = None
    gap: float = 1e-6
    folds: int | None = None
    seed: int = 0
    confidence: float = 0.95  # of bootstrap and explicit radii
    replies: Replies = "curvature"  # what clients may be asked for at the most
    curves: Any = DEFAULT_CURVES  # "auto", None, a number of segments, or one of these by feature
    increasing: Sequence[str] = ()  # features whose curves must rise
    decreasing: Sequence[str] = ()

    @property
    def cross_validates_radius(self) -> bool:
        return _is_word(self.radius, "cross-validate")

    def __post_init__(self) -> None:
        check_radius(self.radius)
        check_weights(self.weights)
        check_price(self.price)
        if self.price != PRICE and not _is_word(self.weights, "auto"):
            raise BidroError(
                f"A price is for weights='auto', which it chooses; with {self.weights!r} leave it out."
            )
        check_criterion(self.criterion)
        check_curves(self.curves, self.increasing, self.decreasing)
        check_own(self.own)
        check_metric(self.metric, self.label_cost, self.p)
        if not is_number(self.gap) or not 0 < self.gap < math.inf:
            raise BidroError(f"The gap must be a positive number such as 1e-6; got {self.gap!r}.")
        if self.folds is not None and (not isinstance(self.folds, Integral) or self.folds < 2):
            raise BidroError(f"folds must be a whole number of at least 2; got {self.folds!r}.")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**62:
            raise BidroError(
                f"The random seed must be a whole number from 0 to below 2^62; got {self.seed!r}."
            )
        check_confidence(self.confidence)
        if self.replies not in ("curvature", "gradient"):
            raise BidroError(f"replies are 'curvature' or 'gradient'; got {self.replies!r}.")


@dataclass(frozen=True)
class AlgorithmOne:
    """BiDRO-FL as in the paper, with one-sample replies, in place of the exact solver."""

    rounds: int
    rho: float = 5.0
    eta_x: float = 0.01
    eta_alpha: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise BidroError(f"Algorithm 1 needs a whole number of rounds; got {self.rounds!r}.")


def transport_of(loss: Loss, m: int, choices: Choices, target_spread: float) -> Transport:
    """The cost of moving a row: labels immovable ("features") or at a price ("joint")."""
    growth, p = loss.growth, choices.p
    order = float(p) if p is not None else (2.0 if growth is not None and growth.order == 2 else 1.0)
    moves = choices.metric == "joint"
    if loss.labels is not None:
        return Transport.classification(m, order, choices.label_cost if moves else math.inf)
    scale = np.ones(m)
    scale[-1] = choices.label_cost / target_spread if moves else math.inf
    return Transport(scale, order)


def train(
    problem: Problem,
    choices: Choices,
    support: Box | None = None,
    on_calibration: Callable[[int, int], None] | None = None,
    on_round: Callable[[int, float], None] | None = None,
    network: Rounds = IN_PROCESS,
    spread: float | None = None,
    limits: Limits = NO_LIMITS,
    curves: tuple[Wanted, Basis] | None = None,
) -> Trained:
    """Choose radii and weights for `problem` (see `unrestricted`), and solve to the gap.

    Training takes the whole space as support: worst cases over it are at least those over a declared box, and
    have a closed form. `network` answers the rounds, within `limits`; `spread` is what cross-validated radii
    are in units of, by default read off the rows. `curves` are those that are wanted, with the finest knots;
    how many segments they have is chosen before radii and weights.
    """
    segments = told = calibration = None
    if curves is not None:
        dealt = folds_of(min(problem.federation.sizes), choices, limits)
        problem, segments, told = choose_curves(problem, *curves, *dealt, choices.seed, network, choices.own)
    radii, promise = _radii(problem, choices, support)
    balls = replace(problem, ambiguity=WassersteinBall(radii))
    wanted = grid(choices, problem.n)
    weighings = wanted.weighings
    if cross_validates(choices, problem.n, can_have_own(problem)):
        folds, curvature = folds_of(min(problem.federation.sizes), choices, limits)

        def calibrated(of: Problem, scales: Sequence[float], weighings: Sequence[Weighing]) -> Calibration:
            return calibrate(
                of,
                scales,
                weighings,
                choices.price,
                folds,
                choices.seed,
                spread,
                progress=on_calibration,
                network=network,
                sends_curvature=curvature,
                told=told,
            )

        if choices.criterion == "regret":
            pooled = calibrated(balls, *POOLED)
            balls = replace(balls, references=attainable(own_losses(balls, pooled, 0, "auto", network)))
        whole = wanted.compared(problem.n)
        calibration = calibrated(balls, *whole)
        calibration = calibration if whole == wanted else calibration.held_to(weighings[0])
        balls = replace(balls, ambiguity=WassersteinBall(calibration.radii))
        promise = calibration.promise if len(wanted.scales) > 1 else promise
        weighings = (Weighing(*calibration.chosen.weighing),)
    (weighing,) = weighings
    balls = replace(balls, mixtures=Candidate(0.0, *weighing).mixtures_of(problem.federation))
    solution = solve(
        balls,
        choices.gap,
        _method(choices),
        progress=on_round,
        network=network,
        start=None if calibration is None else calibration.start,
        mixture=None if calibration is None else calibration.start_mixture,
        # What was told for cross-validation of squared loss is all that it depends on.
        moments=None if calibration is None else calibration.moments and calibration.moments.whole,
    )
    own = None if calibration is None else choose_own(balls, calibration, choices.own, network)
    calibration = calibration and calibration.beside_a_model()
    found = (solution.x, solution.alpha, solution.rounds, solution.method)
    return Trained(balls, *found, calibration, promise, weighing, solution, own, segments)


def _radii(problem: Problem, choices: Choices, support: Box | None) -> tuple[Floats, str]:
    """(each client's radius, before cross-validation adds to it, what it promises)."""
    radius, federation = choices.radius, problem.federation
    if _is_word(radius, "cross-validate"):
        return np.zeros(federation.n), ""
    if _is_word(radius, "bootstrap"):
        found = bootstrap_radii(problem, choices.confidence, seed=choices.seed)
        return found.radii, found.promise
    if _is_word(radius, "explicit"):
        return _explicit(problem, support, choices.confidence)
    return _given(radius, federation.names), "The radii were given."


def _is_word(radius: Any, word: str) -> bool:
    return isinstance(radius, str) and radius == word


class Grid(NamedTuple):
    """What cross-validation chooses from: every scale of the radii with every weighing."""

    scales: tuple[float, ...]
    weighings: tuple[Weighing, ...]

    def compared(self, clients: int) -> Grid:
        """With pooled training among them also where weights are given: what they cost is said."""
        if clients == 1 or any(one.fixed for one in self.weighings):
            return self
        return Grid(self.scales, (Weighing(1.0), *self.weighings))


# What the regret is measured from.
POOLED = Grid((0.0,), (Weighing(1.0),))


def grid(choices: Choices, clients: int) -> Grid:
    """What there is to choose from for so many clients."""
    scales = SCALES if choices.cross_validates_radius else (0.0,)
    return Grid(scales, _weighings(choices.weights, clients))


def cross_validates(choices: Choices, clients: int, can_have_own: bool) -> bool:
    """Whether `train` asks so many clients about folds: there is something to choose, or there can be own
    models."""
    wanted = grid(choices, clients)
    several = len(wanted.scales) * len(wanted.weighings) > 1
    return several or choices.criterion == "regret" or (choices.own is not None and can_have_own)


def grids(choices: Choices, clients: int) -> tuple[Grid, ...]:
    """All that `train` cross-validates over for so many clients; segments of curves are chosen under pooled
    training."""
    whole = grid(choices, clients).compared(clients)
    return (POOLED, whole) if choices.criterion == "regret" or choices.curves is not None else (whole,)


def _weighings(weights: Any, clients: int) -> tuple[Weighing, ...]:
    """The mixtures to choose from: one where the user has chosen, or there is one client alone."""
    if clients == 1:
        return (Weighing(math.inf),)
    if _is_word(weights, "auto"):
        return tuple(Weighing(*one) for one in WEIGHINGS)
    if isinstance(weights, str):
        return (Weighing(1.0 if weights == "fixed" else math.inf),)
    return (Weighing(float(weights)),)


def train_penalised(
    problem: Problem,
    settings: AlgorithmOne,
    seed: int,
    network: Rounds = IN_PROCESS,
    on_round: Callable[[int], None] | None = None,
) -> Trained:
    """Algorithm 1 on `problem`, whose own ambiguity and mixtures do not matter: a client that does not answer
    in a round counts as one that stood still."""
    penalised = replace(problem, ambiguity=Penalty(settings.rho))
    algorithm = BiDROFL(settings.eta_x, settings.eta_alpha)
    state = run_over(network, algorithm, penalised, settings.rounds, seed, on_round)
    final = algorithm.snapshot(state)
    words = f"Algorithm 1 with penalties rho = {settings.rho:g}: there are no balls."
    x, alpha = np.asarray(final.x), np.asarray(final.alpha)
    everything = Weighing(math.inf)
    return Trained(penalised, x, alpha, settings.rounds, "Algorithm 1", None, words, everything, None)


def unrestricted(
    federation: Federation,
    loss: Loss,
    transport: Transport,
    target_spread: float,
    largest_coefficient: float = LARGEST_COEFFICIENT,
) -> Problem:
    """Without ambiguity, for any mixture and any model that is likely to be wanted."""
    half = largest_coefficient * max(target_spread, 1.0 if loss.labels is not None else 0.0)
    return Problem(federation, loss, Box.cube(half, loss.dimension(federation.m)), transport)


def _method(choices: Choices) -> Method | None:
    """What the solver may ask of the clients: None for whatever it likes best."""
    return None if choices.replies == "curvature" else "gradients"


def folds_of(rows: int, choices: Choices, limits: Limits) -> tuple[int, bool]:
    """(how many folds, whether their replies may hold curvature): the most folds that clients allow; `rows`
    are the fewest of a client."""
    answered = range(1, max(2, min(FOLDS, rows)) + 1) if limits.folds is None else limits.folds
    counts = [count for count in sorted(answered, reverse=True) if count > 1]
    counts = counts if choices.folds is None else [choices.folds]
    if counts:
        return counts[0], choices.replies == "curvature"
    named = "".join([": " * bool(limits.without), ", ".join(f"'{name}'" for name in limits.without)])
    raise BidroError(
        "A site has too few people, or too few with a rare level or class, for cross-validation: sums over "
        "what a fold leaves out could give rows away; name the weights (such as fixed) and set own to none, "
        f"use fewer columns, or leave that site out{named}."
    )


def _explicit(problem: Problem, support: Box | None, confidence: float) -> tuple[Floats, str]:
    if support is None:
        raise BidroError("radius='explicit' needs a declared support; give lower and upper bounds.")
    declared = replace(problem, federation=replace(problem.federation, support=support))
    radii = explicit_radii(declared, confidence)
    return radii, f"Explicit radii: with probability at least {confidence:g} every ball holds its client."


def _given(radius: Any, names: Sequence[str]) -> Floats:
    if isinstance(radius, Mapping):
        missing = [name for name in names if name not in radius]
        if missing:
            raise BidroError(f"There is no radius for client '{missing[0]}'.")
        return np.array([float(radius[name]) for name in names])
    given = np.asarray(radius, float)
    return np.broadcast_to(given, (len(names),)) if given.ndim == 0 else given
