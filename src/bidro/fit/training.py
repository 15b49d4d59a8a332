"""From the problem of a fit, with straight lines and nothing chosen, to a trained model.

Choose (curves, radii, the mixtures to guard against), solve to a certified gap, personalise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from bidro.ambiguity import NoAmbiguity, Penalty, WassersteinBall
from bidro.certify.out_of_sample import explicit_radii
from bidro.certify.radius import bootstrap_radii
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.data.splines import Basis, Category, Levels
from bidro.data.standardise import Standard
from bidro.federated.algorithms import BiDROFL
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import Rounds, run_over
from bidro.fit.network import Clients
from bidro.fit.settings import FitSettings
from bidro.losses import Loss, Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS, NO_FOLD_LIMITS, SCALES, Calibration, FoldLimits, calibrate
from bidro.selection.cross_validate import loss_has_kinks
from bidro.selection.pairs import PairChoice, WantedPairs, can_choose_pairs, choose_pairs, with_pairs
from bidro.selection.personalise import (
    PersonalChoice,
    attainable,
    can_be_personal,
    choose_personal,
    personal_losses,
)
from bidro.selection.rule import MIXTURE_SPECS, MixtureSpec, choice, frontier
from bidro.selection.segments import SegmentChoice, Wanted, can_have_curves, choose_curves, without_smoothing
from bidro.solvers.solve import Method, Solution, solve

# Second moments of clients, in bytes, that a fit with pairs makes.
MOST_OF_MOMENTS = 1 << 28
# Models are sought within this many standard units of 0.
LARGEST_COEFFICIENT = 1e3


def has_pooled(found: Calibration | None) -> TypeGuard[Calibration]:
    """Whether pooled training is among the candidates, and so can be compared with."""
    return found is not None and found.candidates[found.pooled].mixture_spec.fixed


class FrontierModel(NamedTuple):
    """A candidate that some largest cost takes, as cross-validation solved it on all rows."""

    max_cost: float  # the least that takes it
    place: int  # among the candidates
    x: Floats  # (d,)
    alpha: Floats | None  # (n,) the worst mixture that it is optimal for, where it is known


@dataclass(frozen=True, eq=False)
class Trained:
    """A model, and how it came about."""

    problem: Problem  # as solved: balls of the chosen radii, weights of the chosen mixtures
    x: Floats  # (d,)
    alpha: Floats  # (n,) weights of the worst mixture, or those that training ended with
    rounds: int
    method: str
    calibration: Calibration | None
    radius_promise: str
    mixture_spec: MixtureSpec
    solution: Solution | None  # None where a model was trained without proof
    personal: PersonalChoice | None = None  # the clients' personal models; None where there are none
    segments: SegmentChoice | None = None  # of curves; None where there are none to choose from
    pairs: PairChoice | None = None  # of features; None where none were wanted or could be chosen
    robust: Floats | None = (
        None  # (d,) the candidate with the best worst fifth, whatever it costs; to compare
    )
    frontier: tuple[FrontierModel, ...] = ()  # what other largest costs take; none where weights are given
    taken_from: int = 1  # out of so many models somebody took it, who had seen what is stated of them

    @property
    def pooled(self) -> Floats | None:
        """(d,) of pooled training, for comparison; where that was chosen the model itself, as solved less
        closely it would differ by rounding. None where it was not cross-validated."""
        if not has_pooled(found := self.calibration):
            return None
        return self.x if found.place == found.pooled and self.gap is not None else found.pooled_model

    def instead(self, one: FrontierModel) -> Trained:
        """With another model of the frontier, around which clients correct as freely as around this one."""
        found = self.calibration
        assert found is not None
        candidate = found.candidates[one.place]
        more = found.spread * (candidate.scale - found.chosen.scale)
        radii = found.radii + more / np.sqrt(np.asarray(found.sizes, float))
        mixtures = candidate.mixture_spec.mixtures_of(self.problem.federation)
        return replace(
            self,
            problem=replace(self.problem, ambiguity=WassersteinBall(radii), mixtures=mixtures),
            x=one.x,
            alpha=self.problem.federation.proportions if one.alpha is None else np.asarray(one.alpha),
            rounds=found.rounds,
            method="cross-validation",
            calibration=replace(found, place=one.place, radii=radii, max_cost=one.max_cost),
            mixture_spec=candidate.mixture_spec,
            solution=None,
            taken_from=len(self.frontier),
        )

    @property
    def shares_robust(self) -> bool:
        """Whether the model is the one with the best worst fifth."""
        found = self.calibration
        return found is not None and found.place == choice(found.left_out, found.pooled, math.inf)

    @property
    def gap(self) -> float | None:
        """The certified duality gap; None where nothing is proven."""
        return self.solution.gap if self.solution is not None and self.solution.certified else None

    @property
    def risks(self) -> Floats | None:
        """(n,) upper ends of the clients' robust risks; None where nothing is proven."""
        return self.solution.risks if self.solution is not None and self.solution.certified else None


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


def transport_of(loss: Loss, m: int, choices: FitSettings, target_spread: float) -> Transport:
    """The cost of moving a row: labels immovable ("features") or at a price ("joint")."""
    growth, p = loss.growth, choices.p
    order = float(p) if p is not None else (2.0 if growth is not None and growth.order == 2 else 1.0)
    moves = choices.metric == "joint"
    if loss.labels is not None:
        return Transport.classification(m, order, choices.label_cost if moves else math.inf)
    scale = np.ones(m)
    scale[-1] = choices.label_cost / target_spread if moves else math.inf
    return Transport(scale, order)


# What is called with what is being chosen, and the share of it that is done.
Part = Callable[[str, float], None]


def unsaid(what: str, share: float) -> None:
    """Nobody is told."""


class Chosen(NamedTuple):
    """What is to be solved, and how it was chosen."""

    problem: Problem  # with curves, balls of the chosen radii and the chosen mixtures
    mixture_spec: MixtureSpec
    radius_promise: str
    calibration: Calibration | None  # None where there was nothing to choose by rows left out
    segments: SegmentChoice | None
    pairs: PairChoice | None


def train(
    problem: Problem,
    choices: FitSettings,
    support: Box | None = None,
    on_calibration: Callable[[int, int], None] | None = None,
    on_round: Callable[[int, float], None] | None = None,
    on_part: Part = unsaid,
    network: Rounds = IN_PROCESS,
    spread: float | None = None,
    limits: FoldLimits = NO_FOLD_LIMITS,
    curves: tuple[Wanted, Basis] | None = None,
    pairs: WantedPairs | None = None,
) -> Trained:
    """Choose, solve and personalise: from `problem` (see `unrestricted`) to a model.

    Training takes the whole space as support: worst cases over it are at least those over a declared box, and
    have a closed form. `network` answers the rounds, within `limits`; `spread` is what cross-validated radii
    are in units of, by default read off the rows. `curves` are those that are wanted, with the finest knots;
    how many segments they have is chosen before radii and weights, and so are `pairs` of features. The
    problem of the result is of the losses alone: what smooths curves in training is no part of it.
    """
    about = (network, spread, limits, curves, pairs, on_part)
    chosen = choose(problem, choices, support, on_calibration, *about)
    calibration = chosen.calibration
    begin: dict[str, Any] = {}
    if calibration is not None:
        begin = {"start": calibration.start, "mixture": calibration.start_mixture}
        # What was sent for cross-validation of squared loss is all that it depends on.
        begin["moments"] = calibration.moments and calibration.moments.whole
    # What rounding leaves open of second moments is left open where clients tell nothing else.
    method: Method | None = "one-shot" if choices.moments_alone else None
    solved = chosen.problem
    if chosen.pairs is not None and chosen.pairs.pairs and not np.any(solved.eps):
        # Nothing multiplies how steep the model is, which takes many cones with pairs.
        solved = replace(solved, ambiguity=NoAmbiguity())
        if isinstance(solved.loss, Squared) and 8 * solved.n * solved.dimension**2 <= MOST_OF_MOMENTS:
            # From moments Newton's method ends closer to the optimum than cross-validation did.
            method = "one-shot"
    solution = solve(solved, choices.gap, method, progress=on_round, network=network, **begin)
    personal = None
    if calibration is not None:
        on_part("personal models", 0.0)
        personal = choose_personal(chosen.problem, calibration, choices.personal, network)
    return Trained(
        without_smoothing(chosen.problem),
        solution.x,
        solution.alpha,
        solution.rounds,
        solution.method,
        calibration and calibration.without_folds(),
        chosen.radius_promise,
        chosen.mixture_spec,
        solution,
        personal,
        chosen.segments,
        chosen.pairs,
        most_robust(calibration),
        _frontier(calibration) if _is_word(choices.weights, "auto") else (),
    )


def _frontier(found: Calibration | None) -> tuple[FrontierModel, ...]:
    """What the largest costs take; none where the candidates' models are elsewhere."""
    if found is None or found.models is None or not has_pooled(found):
        return ()
    models, mixtures = found.models[-1], found.mixtures
    return tuple(
        FrontierModel(cost, place, np.asarray(models[place]), None if mixtures is None else mixtures[place])
        for cost, place in frontier(found.left_out, found.pooled)
    )


def most_robust(found: Calibration | None) -> Floats | None:
    """(d,) the model that max_cost = inf would take, as cross-validation solved it; None where the weights
    were not chosen, or its models are elsewhere."""
    if found is None or found.models is None or len({one.mixture_spec for one in found.candidates}) < 3:
        return None
    return np.asarray(found.models[-1, choice(found.left_out, found.pooled, math.inf)])


def choose(
    problem: Problem,
    choices: FitSettings,
    support: Box | None = None,
    progress: Callable[[int, int], None] | None = None,
    network: Rounds = IN_PROCESS,
    spread: float | None = None,
    limits: FoldLimits = NO_FOLD_LIMITS,
    curves: tuple[Wanted, Basis] | None = None,
    pairs: WantedPairs | None = None,
    on_part: Part = unsaid,
) -> Chosen:
    """How many segments curves have and which pairs there are, then radii and weights; see `train`."""
    segments = sent = calibration = found = None
    of_lines, signs = problem, (0,) * (problem.federation.m - 1) if curves is None else curves[0].signs
    if curves is not None:
        dealt = folds_of(min(problem.federation.sizes), choices, limits)
        problem, segments, sent = choose_curves(
            problem, *curves, dealt, True, choices.seed, network, choices.personal, partial(on_part, "curves")
        )
    if pairs is not None:
        folds = folds_of(min(problem.federation.sizes), choices, limits) if can_choose_pairs(problem) else 0
        found = choose_pairs(problem, pairs, folds, choices.seed, partial(on_part, "pairs of features"))
        if found.pairs:
            problem, sent = with_pairs(of_lines, problem, found.pairs, signs), None
    radii, promise = _radii(problem, choices, support)
    balls = replace(problem, ambiguity=WassersteinBall(radii))
    wanted = grid(choices, problem.n)
    mixture_specs = wanted.mixture_specs
    if cross_validates(choices, problem.n, can_be_personal(problem)):
        folds = folds_of(min(problem.federation.sizes), choices, limits)

        def calibrated(
            of: Problem, scales: Sequence[float], mixture_specs: Sequence[MixtureSpec]
        ) -> Calibration:
            return calibrate(
                of,
                scales,
                mixture_specs,
                choices.max_cost,
                folds,
                choices.seed,
                spread,
                progress=progress,
                network=network,
                sent=sent,
            )

        if choices.criterion == "regret":
            pooled = calibrated(balls, *POOLED)
            told, _ = personal_losses(balls, pooled, 0, "auto", network)
            balls = replace(balls, references=attainable(told))
        whole = wanted.compared(problem.n)
        calibration = calibrated(balls, *whole)
        calibration = calibration if whole == wanted else calibration.held_to(mixture_specs[0])
        balls = replace(balls, ambiguity=WassersteinBall(calibration.radii))
        promise = calibration.promise if len(wanted.scales) > 1 else promise
        mixture_specs = (calibration.chosen.mixture_spec,)
    (mixture_spec,) = mixture_specs
    balls = replace(balls, mixtures=mixture_spec.mixtures_of(problem.federation))
    return Chosen(balls, mixture_spec, promise, calibration, segments, found)


def _radii(problem: Problem, choices: FitSettings, support: Box | None) -> tuple[Floats, str]:
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
    """What cross-validation chooses from: every scale of the radii with every set of mixtures."""

    scales: tuple[float, ...]
    mixture_specs: tuple[MixtureSpec, ...]

    def compared(self, clients: int) -> Grid:
        """With pooled training among them also where weights are given: what they cost is said."""
        if clients == 1 or any(one.fixed for one in self.mixture_specs):
            return self
        return Grid(self.scales, (MixtureSpec(1.0), *self.mixture_specs))


# What the regret is measured from.
POOLED = Grid((0.0,), (MixtureSpec(1.0),))


def grid(choices: FitSettings, clients: int) -> Grid:
    """What there is to choose from for so many clients."""
    scales = SCALES if choices.cross_validates_radius else (0.0,)
    return Grid(scales, _mixture_specs(choices.weights, clients))


def cross_validates(choices: FitSettings, clients: int, can_be_personal: bool) -> bool:
    """Whether `train` cross-validates over so many clients: there is something to choose, or there can be
    personal models."""
    wanted = grid(choices, clients)
    several = len(wanted.scales) * len(wanted.mixture_specs) > 1
    return several or choices.criterion == "regret" or (choices.personal is not None and can_be_personal)


def grids(choices: FitSettings, clients: int) -> tuple[Grid, ...]:
    """All that `train` cross-validates over for so many clients; segments of curves are chosen under pooled
    training."""
    whole = grid(choices, clients).compared(clients)
    return (POOLED, whole) if choices.criterion == "regret" or choices.curves is not None else (whole,)


def _mixture_specs(weights: Any, clients: int) -> tuple[MixtureSpec, ...]:
    """The mixtures to choose from: one where the user has chosen, or there is one client alone."""
    if clients == 1:
        return (MixtureSpec(math.inf),)
    if _is_word(weights, "auto"):
        return MIXTURE_SPECS
    if isinstance(weights, str):
        return (MixtureSpec(1.0 if weights == "fixed" else math.inf),)
    return (MixtureSpec(float(weights)),)


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
    everything = MixtureSpec(math.inf)
    found = (x, alpha, settings.rounds, "Algorithm 1", None, words, everything, None)
    return Trained(without_smoothing(penalised), *found)


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


def folds_of(rows: int, choices: FitSettings, limits: FoldLimits) -> int:
    """The most folds that clients allow; `rows` are the fewest of a client."""
    answered = range(1, max(2, min(FOLDS, rows)) + 1) if limits.folds is None else limits.folds
    counts = [count for count in sorted(answered, reverse=True) if count > 1]
    counts = counts if choices.folds is None else [choices.folds]
    if counts:
        return counts[0]
    named = "".join([": " * bool(limits.without), ", ".join(f"'{name}'" for name in limits.without)])
    raise BidroError(
        "A site has too few people, or too few with a rare level or class, for cross-validation: sums over "
        "what a fold leaves out could give rows away; choose nothing (weights fixed, personal none), "
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


# A column of more values is no category that a feature has curves by.
MOST_LEVELS = 12


def wanted_curves(
    clients: Clients,
    problem: Problem,
    wanted: Wanted,
    choices: FitSettings,
    limits: FoldLimits,
    standard: Standard,
    draws: int,
    agreed: tuple[Floats, Floats] | None = None,
) -> tuple[tuple[Wanted, Basis] | None, tuple[Floats, Floats] | None]:
    """(what is wanted of the features, with the finest knots, None where every one is a straight line of any
    sign; between what values curves are drawn, None where there are none). `problem` is of straight lines,
    `wanted` what the user wants; `limits` are those of the clients' answers, `draws` the fewest rows, or
    people, that a client has, `agreed` as in `Clients.finest`. What is left to the rows is a straight line
    where there can be no curves, no cross-validation to choose them by, one of radii, each a cone program
    with curves, or a loss with kinks, of which every number of segments takes as long as a whole fit of
    lines."""
    dealt = limits.folds is None or max(limits.folds, default=0) > 1
    chosen = dealt and draws > 1 and not choices.cross_validates_radius
    if not (can_have_curves(problem) and chosen) or loss_has_kinks(problem.loss):
        wanted = wanted.of_lines
    lines = max(wanted.most, default=1) == 1 and not any(wanted.by)
    if lines and not any(wanted.signs):
        return None, None
    if lines:
        return (wanted, Basis(((),) * len(wanted.most))), None
    by = levels_of(clients.federation, wanted.by, standard)
    folds = folds_of(min(clients.federation.sizes), choices, limits)
    basis, seen = clients.finest(wanted.most, folds, by, agreed)
    return (wanted, basis), seen


def wanted_pairs(
    problem: Problem, wanted: Wanted, choices: FitSettings, limits: FoldLimits, draws: int
) -> WantedPairs | None:
    """The pairs that are wanted of the features; None where there are to be none. `problem` is of straight
    lines, `limits` and `draws` as in `wanted_curves`. Features that are asked to be straight lines are in
    none that are left to the rows. Nor is there any where there is a radius, as how steep pairs are makes its
    cone programs large; with a loss that has kinks; and across machines."""
    names = problem.federation.columns[:-1]
    found = WantedPairs.of(choices.pairs, names, wanted.without_pairs, wanted.straight)
    if found is None:
        return None
    dealt = (limits.folds is None or max(limits.folds, default=0) > 1) and draws > 1
    chosen = can_choose_pairs(problem) and can_have_curves(problem) and dealt and choices.no_radius
    possible = len(names) - len(set(found.without)) > 1
    if found.named is None and not (chosen and possible):
        if found.demanded:
            raise BidroError(
                "Which pairs there are can be chosen for one smooth score a row, without a radius, of rows "
                "that are here and not one of each client; name the pairs, or leave them out."
            )
        return None
    if problem.federation.rows_elsewhere or not can_have_curves(problem):
        raise BidroError(
            "Pairs of features need rows in one place and a loss and order of the cost that have curves; "
            "leave the pairs out."
        )
    return found


def levels_of(
    federation: Federation, by: Sequence[Category | None], standard: Standard
) -> tuple[Levels | None, ...]:
    """The levels of the categories that features (k,) have curves by, in standard units; empty where there
    are none. Raises BidroError for a column of so many values that it is no category."""
    if not any(by):
        return ()
    names = federation.columns[:-1]
    return tuple(None if one is None else _levels(federation, one, names, standard) for one in by)


def _levels(federation: Federation, category: Category, names: Sequence[str], standard: Standard) -> Levels:
    some = [names.index(name) for name in category.columns]
    if category.levels:
        coded = np.vstack([np.zeros(len(some)), np.eye(len(some))])
        words = [f"{category.name}={level}" for level in category.levels]
    else:
        seen = np.unique(federation.host_rows[:, some], axis=0)
        if len(seen) > MOST_LEVELS:
            raise BidroError(
                f"'{category.name}' has {len(seen)} different values; a curve for each is for categories of "
                f"at most {MOST_LEVELS} levels."
            )
        coded = standard.mean[some] + standard.spread[some] * seen
        words = [f"{category.name}={value:.6g}" for value in coded[:, 0]]
    values = (coded - standard.mean[some]) / standard.spread[some]
    return Levels(tuple(some), tuple(map(tuple, values.tolist())), tuple(words))


def held_still(
    transport: Transport, wanted: Wanted, names: Sequence[str], others: Sequence[str] = ()
) -> Transport:
    """The cost of moving a row, in which categories that features have curves by do not move, nor do the
    others that are named."""
    held = {name for category in wanted.by if category is not None for name in category.columns} | {*others}
    scale = np.array(transport.scale)
    scale[:-1][[name in held for name in names]] = np.inf
    return replace(transport, scale=scale) if held else transport


def require_lines(wanted: Wanted, choices: FitSettings) -> None:
    """Raise BidroError where curves, signs or pairs are demanded: Algorithm 1 trains straight lines of any
    sign."""
    if wanted.demands:
        raise BidroError("Algorithm 1 trains straight lines of any sign; leave the curves out.")
    if choices.pairs not in (None, "auto", 0):
        raise BidroError("Algorithm 1 trains straight lines of any sign; leave the pairs out.")
