"""How many segments curves have, by cross-validation inside the clients.

Every number of segments is tried under pooled training, whose mean loss on rows left out has the least noise;
weights and radii are chosen afterwards, for the curves that were taken. A straight line is always among the
candidates, and is taken unless curves are better on rows left out by a standard error, over clients and their
folds, and not worse with the clients' personal models, where these are wanted: a client's own line can do
what a common curve does, and better. For squared loss all of it follows from the second moments of the finest
basis: fewer segments are equalities between neighbouring slopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import thinned
from bidro.data.splines import SEGMENTS, Basis, Category
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import FoldSpec, Rounds
from bidro.losses import LinearLoss, LinearScores, Softmax, Tweedie, has_curves
from bidro.problem.problem import Problem
from bidro.risk.moments import Moments, TrainingMoments
from bidro.selection.calibrate import Calibration, calibrate
from bidro.selection.cross_validate import fold_moments, moments_too_large, second_moments_suffice
from bidro.selection.personal import held_slopes
from bidro.selection.personalise import PersonalWord, choose_personal
from bidro.selection.rule import MIXTURE_SPECS, LeftOut, required_errors

MOST_SEGMENTS = 64
# Slopes are held at their neighbours' as strongly as by so many rows more. Without it 16 segments follow the
# noise, and outliers at the ends of a column; see docs/curves.md for what was tried.
SMOOTHING_ROWS = 2.0
# Segments are chosen on about so many rows where there are more, and at least so many of a client: what is
# better by less than these can tell is not worth the wait. The curves themselves are trained on all rows.
ENOUGH_ROWS, ENOUGH_OF_CLIENT = 30_000, 200
_OF_A_FOLD = 20  # where there are very many folds
# Curves must be better by so many standard errors, and with personal models worse by at most one, or by this
# share.
_ERRORS, _HARDLY = 1.0, 0.01


def with_a_line(curves: Any, feature: str | None, names: Sequence[str]) -> Any:
    """The curves that are wanted, with a straight line for a feature."""
    if feature is None or curves is None:
        return curves
    given = curves if isinstance(curves, Mapping) else dict.fromkeys(names, curves)
    return {**given, feature: None}


@dataclass(frozen=True)
class Wanted:
    """The curves that a user wants, feature by feature."""

    most: tuple[int, ...]  # (k,) segments at the most; 1 for a straight line
    chosen: tuple[bool, ...]  # (k,) whether cross-validation chooses how many
    signs: tuple[int, ...]  # (k,) 1 for a curve that rises, -1 for one that falls, 0 for any
    by: tuple[Category | None, ...]  # (k,) of which category every level has a curve of its own, if any

    @classmethod
    def of(
        cls, curves: Any, increasing: Sequence[str], decreasing: Sequence[str], names: Sequence[str]
    ) -> Wanted:
        """Raises BidroError for a feature that there is not, or one that is to rise and to fall."""
        each = dict.fromkeys(names, curves)
        if isinstance(curves, Mapping):
            _require_known("curves", curves, names)
            each = {name: curves.get(name, "auto") for name in names}
        _require_known("increasing", increasing, names)
        _require_known("decreasing", decreasing, names)
        both = sorted(set(increasing) & set(decreasing))
        if both:
            raise BidroError(f"'{both[0]}' cannot be both increasing and decreasing.")
        words = [one[0] if isinstance(one, tuple) else one for one in each.values()]
        by = [_category(name, one, names) for name, one in each.items()]
        most = [1 if one is None else SEGMENTS[0] if one == "auto" else int(one) for one in words]
        signs = [(name in increasing) - (name in decreasing) for name in names]
        return cls(tuple(most), tuple(one == "auto" for one in words), tuple(signs), tuple(by))

    @property
    def demands(self) -> bool:
        """Whether more is wanted than straight lines of any sign, and not left to cross-validation."""
        fixed = (most > 1 and not free for most, free in zip(self.most, self.chosen, strict=True))
        return any(self.signs) or any(self.by) or any(fixed)

    @property
    def without_pairs(self) -> tuple[int, ...]:
        """The features that can be in no pair: by what they do for others a prediction need not rise or fall
        with them; and those that have curves by level."""
        each = enumerate(zip(self.signs, self.by, strict=True))
        return tuple(j for j, (sign, by) in each if sign or by is not None)

    @property
    def straight(self) -> tuple[int, ...]:
        """The features that are asked to be straight lines."""
        each = enumerate(zip(self.most, self.chosen, strict=True))
        return tuple(j for j, (most, free) in each if most == 1 and not free)

    @property
    def of_lines(self) -> Wanted:
        """The same with straight lines where the rows were to say."""
        most = (1 if free else own for own, free in zip(self.most, self.chosen, strict=True))
        return replace(self, most=tuple(most), chosen=(False,) * len(self.most))

    def bases(self, finest: Basis) -> tuple[Basis, ...]:
        """The different candidates, from the fewest segments to the most."""
        found: list[Basis] = []
        for segments in sorted(SEGMENTS):
            fewer = finest.thinned(segments).knots
            chosen = [self.chosen[j] for j in finest.feature_of_curve.tolist()]
            knots = tuple(
                few if free else own for few, own, free in zip(fewer, finest.knots, chosen, strict=True)
            )
            if not found or found[-1].knots != knots:
                found.append(Basis(knots, finest.by))
        return tuple(found)


@dataclass(frozen=True, eq=False)
class SegmentChoice:
    """The candidates, and which was taken."""

    bases: tuple[Basis, ...]  # from the fewest segments to the most
    means: Floats  # (candidates,) mean losses on rows left out, under pooled training; empty for one alone
    errors: Floats  # (candidates,) standard errors of how far each is below the first
    place: int

    @property
    def basis(self) -> Basis:
        return self.bases[self.place]


def check_curves(curves: Any) -> None:
    """Raise BidroError for curves that stand for nothing."""
    for given in curves.values() if isinstance(curves, Mapping) else (curves,):
        one = given
        if isinstance(curves, Mapping) and isinstance(given, tuple):
            if len(given) != 2 or not isinstance(given[1], str | Category):
                raise BidroError(
                    "A curve for each level of a category is named by its segments and the category, such as "
                    f"(8, 'sex') or ('auto', 'sex'); got {given!r}."
                )
            one = given[0]
        number = isinstance(one, Integral) and not isinstance(one, bool) and 1 <= int(one) <= MOST_SEGMENTS
        if not (one is None or (isinstance(one, str) and one == "auto") or number):
            raise BidroError(
                f"curves are 'auto', None, a number of segments from 1 to {MOST_SEGMENTS}, or one of these "
                f"by feature; got {one!r}."
            )


def _require_known(what: str, given: Any, names: Sequence[str]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise BidroError(f"{what} names '{unknown[0]}', which is no feature; there are {', '.join(names)}.")


def _category(name: str, one: Any, names: Sequence[str]) -> Category | None:
    """Of which category each level has a curve of this feature."""
    if not isinstance(one, tuple):
        return None
    category = Category(one[1], (one[1],)) if isinstance(one[1], str) else one[1]
    _require_known(f"curves of '{name}'", category.columns, names)
    if name in category.columns:
        raise BidroError(f"'{name}' cannot have curves by itself; name a category.")
    return category


def choose_curves(
    problem: Problem,
    wanted: Wanted,
    finest: Basis,
    folds: int,
    sends_curvature: bool,
    seed: int = 0,
    network: Rounds = IN_PROCESS,
    personal: PersonalWord | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Problem, SegmentChoice, TrainingMoments | None]:
    """(the problem with the curves that are taken, the choice, the second moments that clients have sent of
    them), from the problem of straight lines and the finest knots; `personal` are the corrections that
    clients may have, which can make curves idle; `progress` is called with the share that is done."""
    federation, said = problem.federation, progress or (lambda share: None)
    many = not federation.rows_elsewhere and sum(federation.sizes) > ENOUGH_ROWS
    if many and len(wanted.bases(finest)) > 1:
        fewest = max(ENOUGH_OF_CLIENT, _OF_A_FOLD * folds)
        some = replace(problem, federation=thinned(federation, ENOUGH_ROWS, fewest))
        _, choice, _ = _chosen(some, wanted, finest, folds, sends_curvature, seed, network, personal, said)
        return with_curves(problem, choice.basis, wanted.signs), choice, None
    return _chosen(problem, wanted, finest, folds, sends_curvature, seed, network, personal, said)


def _chosen(
    problem: Problem,
    wanted: Wanted,
    finest: Basis,
    folds: int,
    sends_curvature: bool,
    seed: int,
    network: Rounds,
    personal: PersonalWord | None,
    progress: Callable[[float], None],
) -> tuple[Problem, SegmentChoice, TrainingMoments | None]:
    """As `choose_curves`, on all rows of the problem."""
    bases = wanted.bases(finest)
    problems = [with_curves(problem, basis, wanted.signs) for basis in bases]
    sent = None
    if second_moments_suffice(problems[-1].with_balls(), sends_curvature) and not moments_too_large(
        problems[-1], folds
    ):
        sent = fold_moments(problems[-1].with_balls(), FoldSpec(folds, seed), network)
    if len(bases) == 1:
        none = np.zeros(0)
        return problems[0], SegmentChoice(bases, none, none, 0), sent

    def of(basis: Basis) -> TrainingMoments | None:
        return None if sent is None else coarser(sent, finest, basis)

    how: dict[str, Any] = {"folds": folds, "seed": seed, "network": network}
    how["sends_curvature"] = sends_curvature
    each: list[Calibration] = []
    for one, basis in zip(problems, bases, strict=True):
        progress(len(each) / len(bases))
        # Moments of every candidate at once would be larger than the table by far: they are made again.
        each.append(replace(calibrate(one, (0.0,), MIXTURE_SPECS[:1], sent=of(basis), **how), moments=None))
    losses = np.concatenate([found.left_out.losses for found in each], axis=-1)

    def used(place: int) -> Floats:
        return _used(problems[place], each[place], personal, network, of(bases[place]), sends_curvature)

    choice = chosen_segments(bases, LeftOut(losses, each[0].left_out.rows), used)
    return problems[choice.place], choice, of(choice.basis)


def _used(
    problem: Problem,
    found: Calibration,
    personal: PersonalWord | None,
    network: Rounds,
    sent: TrainingMoments | None,
    sends_curvature: bool,
) -> Floats:
    """(n,) losses on rows left out of the models that clients would use: their own, where they gain; `sent`
    are the clients' second moments, where nothing else is needed."""
    if (chosen := choose_personal(problem, found, personal, network, sent, sends_curvature)) is None:
        return found.losses[:, 0]
    return chosen.used


def can_have_curves(problem: Problem) -> bool:
    """Whether worst cases of curves are bounded for this loss and transport cost."""
    loss = problem.loss
    several = isinstance(loss, Softmax)
    return isinstance(loss, LinearLoss | Softmax | Tweedie) and problem.transport.p in (
        (1,) if several else (1, 2)
    )


def with_curves(problem: Problem, basis: Basis, signs: Sequence[int]) -> Problem:
    """The problem of straight lines, with curves in their place and with signs of their slopes."""
    smoothing = 0.0 if basis.straight else smoothing_of(problem)
    curved = replace(  # type: ignore[type-var]
        problem.loss, basis=None if basis.straight else basis, smoothing=smoothing
    )
    d = curved.dimension(problem.federation.m)
    assert isinstance(problem.models, Box)
    half = float(np.max(problem.models.upper))
    lower, upper = np.full(d, -half), np.full(d, half)
    columns, scores = np.asarray(signs)[basis.feature], curved.scores
    if columns.any() and scores > 1:
        raise BidroError("Curves of several classes have no direction; leave out increasing and decreasing.")
    lower[: len(columns)][columns > 0] = 0.0
    upper[: len(columns)][columns < 0] = 0.0
    if curved.scores == 1:
        known = held_slopes(problem)[basis.feature]
        lower[: len(columns)][known] = upper[: len(columns)][known] = 1.0
    return replace(problem, loss=curved, models=Box(lower, upper))


def proportional_to(problem: Problem, feature: int) -> Problem:
    """The problem of straight lines in which the slope of a feature, the logarithm of an exposure, is 1."""
    assert isinstance(problem.models, Box)
    lower, upper = (np.array(side, float) for side in (problem.models.lower, problem.models.upper))
    lower[feature] = upper[feature] = 1.0
    return replace(problem, models=Box(lower, upper))


def smoothing_of(problem: Problem) -> float:
    """What training adds to the mean loss a unit of roughness: SMOOTHING_ROWS rows more, of all clients
    together, that ask for equal slopes, in the units of the loss's curvature in the score."""
    loss = problem.loss
    assert isinstance(loss, LinearScores)
    curvature = float(loss.score_curvature(0.0))
    if math.isinf(curvature):
        # A loss with kinks has a curvature of about one over the size of the residuals.
        curvature = 1 / problem.constant_risk if 0 < problem.constant_risk < math.inf else 1.0
    return 0.5 * curvature * SMOOTHING_ROWS / sum(problem.federation.sizes)


def with_smoothing(problem: Problem) -> Problem:
    """The problem as its curves were trained, from one of the losses alone."""
    if not has_curves(problem.loss):
        return problem
    return replace(problem, loss=replace(problem.loss, smoothing=smoothing_of(problem)))  # type: ignore[type-var]


def without_smoothing(problem: Problem) -> Problem:
    """The problem whose risks are of the losses alone."""
    if problem.loss.penalty is None and not getattr(problem.loss, "pseudo_rows", 0.0):
        return problem
    return replace(problem, loss=replace(problem.loss, smoothing=0.0, pseudo_rows=0.0))  # type: ignore[type-var]


def chosen_segments(
    bases: tuple[Basis, ...], left_out: LeftOut, used: Callable[[int], Floats]
) -> SegmentChoice:
    """The candidate with the lowest mean loss on rows left out, of the first and those that are better by a
    standard error and, as clients would use them, hardly worse. `used` gives the clients' losses (n,) of one
    candidate as they would use it, and is called no more often than is needed."""
    losses, rows = left_out
    share = rows / rows.sum()
    means = left_out.means
    apart = losses[..., :1] - losses  # (folds, n, candidates)
    gain = means[0] - means
    cells = int(np.count_nonzero(rows))
    away = np.sum((share[..., None] * (apart - gain)) ** 2, axis=(0, 1)) * cells / max(cells - 1, 1)
    errors = np.sqrt(away)
    better = gain > required_errors(_ERRORS, cells - 1) * errors
    place, first = 0, used(0) if better.any() else np.zeros(0)
    for candidate in np.argsort(means, kind="stable").tolist():
        if candidate == 0 or (better[candidate] and _hardly_worse(share.sum(axis=0), used(candidate), first)):
            place = candidate
            break
    return SegmentChoice(bases, means, errors, place)


def _hardly_worse(share: Floats, used: Floats, before: Floats) -> bool:
    """Whether losses (n,) of clients with these shares (n,) of the rows rise by no more than a standard error
    or a small part."""
    worse = share * (used - before)
    n, rise = len(worse), float(worse.sum())
    noise = np.sqrt(n / max(n - 1, 1) * np.sum((worse - rise / n) ** 2))
    return bool(rise <= max(noise, _HARDLY * float(share @ before)))


def straight(basis: Basis) -> Basis:
    """As many features and curves, each of one segment."""
    return basis.thinned(1)


_Some = TypeVar("_Some", Moments, TrainingMoments)


def coarser(moments: _Some, finest: Basis, basis: Basis) -> _Some:
    """The moments of a basis with some of the knots of the finest, from those of the finest."""
    if basis == finest:
        return moments
    onto = np.append(finest.onto(basis), basis.columns)  # the target stays the last
    starts = np.flatnonzero(np.diff(onto, prepend=-1))
    mean: Floats = np.add.reduceat(moments.mean, starts, axis=-1)
    around = np.empty((*mean.shape, mean.shape[-1]))
    # One after the other, as half-way they are larger than in the end.
    for place in np.ndindex(mean.shape[:-1]):
        rows = np.add.reduceat(moments.around[place], starts, axis=0)
        around[place] = np.add.reduceat(rows, starts, axis=1)
    return moments._replace(mean=mean, around=around)
