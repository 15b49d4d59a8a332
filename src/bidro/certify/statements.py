"""Statement builders: the parts of a `Certificate`, each from the data that it needs.

Held-out statements are built in one way, whoever certifies which model. The losses of a client's rows
(`RowLosses`) and what a loss counts as at the most (`LossLimits`) become bounds by statement at that client
(`client_report`, as finely as a `Rounding` lets them leave it); the clients' bounds become statements under
any mixture (`statements_of`), and these a certificate: of a model that was trained here (`with_statements`)
or elsewhere (`of_model_from_elsewhere`). Where clients report noisy sums, `noisy_client_bound` makes their
bounds of these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.certify.certificate import Certificate, Shift
from bidro.certify.held_out import (
    Bound,
    ClientBound,
    HeldOut,
    Paired,
    check_rows_per_person,
    client_bounds,
    client_level,
    people_of,
    shifted,
    shifted_squared,
    worst_mixture,
)
from bidro.certify.intervals import interval_obstacle as no_intervals
from bidro.certify.intervals import row_scores
from bidro.certify.out_of_sample import client_means, largest_loss, out_of_sample_interval, support_lipschitz
from bidro.certify.radius import coverage_obstacle
from bidro.certify.rounding import EXACT, Rounding
from bidro.certify.row_promise import SHARE, RowPromise, row_promise
from bidro.core.arrays import Floats, split_by_sizes
from bidro.core.errors import BidroError, check_confidence
from bidro.core.pytrees import Frozen
from bidro.core.sets import MixtureSet
from bidro.core.sets.base import AnyArray
from bidro.data.federation import Federation
from bidro.losses import Loss, Squared, losses_of, mistakes_of
from bidro.problem.problem import Problem
from bidro.risk.inner.ball import steepness

# The held-out statements of a certificate, by their names there.
STATEMENTS = ("clipped", "held_out", "mistakes", "personal", "personal_mistakes")
CLIPPED, MISTAKES = ("clipped", "personal"), ("mistakes", "personal_mistakes")
NOT_TRAINED_HERE = "This model was not trained here."
NO_INTERVAL = "it needs the model itself and the rows that it was trained on."
# Losses are clipped at so many times a client's mean loss in training at the least.
CLIP = 8
# Binary digits of a level at which losses are clipped, in their unit, either way.
_CLIP_DIGITS = 40


def certify_solution(
    problem: Problem,
    x: ArrayLike,
    confidence: float = 0.95,
    holdout: Mapping[str, ArrayLike] | None = None,
    *,
    shift: float | None = None,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    bound: Bound = "betting",
    people: Mapping[str, ArrayLike] | None = None,
    rows_per_person: int | None = None,
) -> Certificate:
    """Everything that can be stated about a model with this confidence, each statement by itself.

    Args:
        problem: holds the clients' rows, the metric and the mixtures. Set these to the ones that statements
            are to cover, not to the calibrated mixtures.
        x: the model (d,), from wherever it is.
        confidence: of every statement.
        holdout: rows (N_i, m) by client that training never saw, on the declared support.
        shift: room for so much shift inside every client, in units of the cost.
        delta: the largest distance between two clients' true distributions, where it is known beforehand.
        split: of the failure probability among clients; see `failure_probabilities`.
        bound: of means of held-out losses: "betting", "bernstein" or "clopper-pearson".
        people: as in `held_out`.
        rows_per_person: as in `held_out`.

    Returns:
        The certificate; what cannot be stated is absent with a reason.

    Raises:
        BidroError: for rows that do not fit the problem, and settings that make no sense.

    Examples:
        >>> from bidro import certify_solution, solve
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), None)
        >>> stated = certify_solution(problem, solve(problem).x, confidence=0.9)
        >>> stated.confidence, stated.interval.lower <= stated.interval.upper, stated.held_out
        (0.9, True, None)
    """
    fresh = None if holdout is None else _holdout_rows(problem.federation, holdout)
    bare = without_holdout(problem, x, confidence, delta, split)
    if fresh is None:
        return bare
    return with_holdout(
        bare, CertifiedModel.of(problem, x), fresh, confidence, shift, bound, people, None, rows_per_person
    )


@dataclass(frozen=True, eq=False)
class CertifiedModel:
    """All that held-out statements need of a problem and a model: no training rows."""

    loss: Loss
    x: NDArray[np.float64]  # (d,)
    mixtures: MixtureSet
    seen: float  # what losses are clipped at, from `clip_level`: fixed before fresh rows are looked at
    largest: float | None  # on the declared support; None where it is not known
    slope: float | None  # what a shift of 1 does to the loss, or to its root; None where it is not known
    of_root: bool  # whether it is to the root: squared loss with p >= 2

    @classmethod
    def of(cls, problem: Problem, x: ArrayLike, seen: float | None = None) -> CertifiedModel:
        """Losses are clipped at `seen`; by default at the `clip_level` of the problem's rows, in units of
        1."""
        model = np.asarray(x, float)
        if seen is None:
            seen = clip_level(float(client_means(problem, model).max()), 1.0)
        of_root = isinstance(problem.loss, Squared) and problem.transport.p >= 2
        slope = shift_slope(problem, model)
        return cls(problem.loss, model, problem.mixture_set, seen, largest_loss(problem, x), slope, of_root)

    @property
    def limits(self) -> LossLimits:
        return LossLimits(self.seen, self.largest)

    def losses(
        self, rows: ArrayLike, personal: ArrayLike | None = None, pooled: ArrayLike | None = None
    ) -> RowLosses:
        """What rows (N, m) cost; `personal` (d,) is the model that their client uses where it may be its own,
        and `pooled` (d,) that of pooled training."""

        def values(x: ArrayLike | None) -> Floats | None:
            return None if x is None else losses_of(self.loss, x, rows)

        def wrong(x: ArrayLike | None) -> Floats | None:
            return None if x is None or self.loss.labels is None else mistakes_of(self.loss, x, rows)

        return RowLosses(values(self.x), wrong(self.x), values(personal), wrong(personal), values(pooled))


def clip_level(mean: float, unit: float) -> float:
    """What losses are clipped at: the smallest power of two, in a unit of losses that everybody knows, that
    is at least eight times `mean`, the largest of the clients' mean losses in training; the unit itself where
    that is 0, and no less than 2^-40 of it: below, of a model that fits exactly, all is rounding.

    Any level that is fixed before fresh rows are looked at will do. This one reveals next to nothing of the
    rows, it is the same wherever these are, and no client's is so low that where its losses are clipped
    would reveal single rows. With 16 or 32 in place of 8 bounds are wider, with 4 too much of the mean is
    clipped.
    """
    if mean <= 0:
        return unit
    return unit * 2.0 ** max(math.ceil(math.log2(CLIP * mean / unit)), -_CLIP_DIGITS)


def is_clip_level(level: float, unit: float) -> bool:
    """Whether `clip_level` may have said so, for losses that are neither lost in rounding nor overflow."""
    if not level > 0:
        return False
    return math.frexp(level / unit)[0] == 0.5 and 2.0**-_CLIP_DIGITS <= level / unit <= 2.0**_CLIP_DIGITS


def loss_unit(loss: Loss, columns: int, target_spread: float) -> float:
    """The unit in which losses are clipped: that of predicting the middle where a target lies one spread
    away; 1 for classes."""
    if loss.labels is not None:
        return 1.0
    row = np.zeros((1, columns))
    row[0, -1] = target_spread
    unit = float(losses_of(loss, np.zeros(loss.dimension(columns)), row)[0])
    return unit if unit > 0 else 1.0


def without_holdout(
    problem: Problem,
    x: ArrayLike,
    confidence: float,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    distances: NDArray[np.float64] | None = None,
    risks: NDArray[np.float64] | None = None,
    means: NDArray[np.float64] | None = None,
) -> Certificate:
    """The statements from training rows alone; `distances` and `risks` are as in
    `out_of_sample_interval`, and `means` (n,) the clients' mean losses, where they have been computed."""
    check_confidence(confidence)
    none = "no rows were held out of training."
    absent = {"held_out": none, "clipped": none, "shift": f"it is added to a held-out bound, and {none}"}
    interval = None
    if means is None:
        means = client_means(problem, x)
    if (why := interval_obstacle(problem, x)) is None:
        interval = out_of_sample_interval(problem, x, confidence, delta, split, distances, risks, means)
    else:
        absent["interval"] = why
    return Certificate(
        confidence,
        problem.federation.names,
        problem.federation.sizes,
        tuple(float(v) for v in means),
        problem.mixture_set.in_words,
        interval,
        None,
        None,
        None,
        None,
        Frozen(absent),
        ball_promise(problem),
    )


class LossLimits(NamedTuple):
    """What a loss counts as at most, known before held-out rows are seen; None where nothing is known."""

    clip: float | None  # losses count as at most this
    largest: float | None  # no loss is larger

    def of(self, statement: str) -> float | None:
        """The largest value that a loss counts as in a statement; None where none is known."""
        if statement in MISTAKES:
            return 1.0
        return self.clip if statement in CLIPPED else self.largest


class RowLosses(NamedTuple):
    """The losses of one client's held-out rows, each (N,) in their order; None for what is not needed."""

    loss: Floats | None  # under the shared model
    mistakes: Floats | None = None  # 1 where the predicted class is wrong, else 0
    personal: Floats | None = None  # as `loss`, under the model that the client uses
    personal_mistakes: Floats | None = None
    pooled: Floats | None = None  # as `loss`, under pooled training


class ClientReport(NamedTuple):
    """What a client reports of its held-out rows: all that has to leave it."""

    bounds: dict[str, list[ClientBound]]  # by statement, at every level
    means: Floats  # of losses that count as at most the clip: shared, in use, and pooled where it is given


def client_report(
    name: str,
    losses: RowLosses,
    limits: LossLimits,
    levels: Sequence[float],
    kind: Bound = "betting",
    people: ArrayLike | None = None,
    most: int | None = None,
    rounding: Rounding = EXACT,
) -> ClientReport:
    """One client's held-out bounds, by statement at every level, each of which is beta by itself.

    Args:
        name: the client's, for error messages.
        losses: of its rows.
        limits: fixed before these rows were seen.
        levels: the probabilities with which a bound may fail.
        kind: of bound of a mean; mistakes of independent rows have Clopper and Pearson's.
        people: (N,) the person or thing of each row, as in `held_out`.
        most: rows of a person, where that is declared.
        rounding: how finely numbers are reported.

    Raises:
        BidroError: for no rows, and for losses outside the limits.
    """
    found = {}
    for statement in STATEMENTS:
        values = losses.loss if statement in ("clipped", "held_out") else getattr(losses, statement)
        if values is not None and (largest := limits.of(statement)) is not None:
            of, clips = _kind_of(statement, kind, people is not None), statement in CLIPPED
            found[statement] = client_bounds(name, values, levels, largest, of, clips, people, most)
    found |= {statement: rounding.mistakes(found[statement]) for statement in MISTAKES if statement in found}
    whole = losses.loss
    if whole is None:
        return ClientReport(found, np.zeros(0))
    draws = len(whole) if people is None else len(np.unique(np.asarray(people)))
    clip = math.inf if limits.clip is None else limits.clip
    models = whole, whole if losses.personal is None else losses.personal, losses.pooled
    counted = [np.minimum(each, clip) for each in models if each is not None]
    means = np.minimum(rounding.means(counted, draws), clip)
    beyond = rounding.means([whole - counted[0]], draws)[0]
    reported = {
        "clipped": (counted[0], means[0]),
        "held_out": (whole, means[0] + beyond),
        "personal": (counted[1], means[1]),
    }
    for statement, (values, mean) in reported.items():
        if statement in found and (largest := limits.of(statement)) is not None:
            # People have other means than rows.
            reported_mean = float(mean) if people is None else None
            found[statement] = rounding.bounds(found[statement], values, draws, largest, reported_mean)
    return ClientReport(found, means)


def _kind_of(statement: str, kind: Bound, people: bool) -> Bound:
    """A person's share of mistakes is not 0 or 1, so that the exact bound is not for it, nor for noisy
    sums."""
    return kind if statement not in MISTAKES or people or kind == "private" else "clopper-pearson"


def statements_of(
    bounds: Mapping[str, Mapping[str, ClientBound]],
    limits: LossLimits,
    confidence: float,
    mixtures: MixtureSet,
    kind: Bound = "betting",
    people: bool = False,
    most: int | None = None,
) -> dict[str, HeldOut]:
    """What clients' bounds, by client and statement and each of `client_level`, say under any mixture: every
    statement that all clients have. `people`: whether they are of people, of at most so many rows each."""
    found = {}
    for statement in STATEMENTS:
        largest = limits.of(statement)
        if largest is not None and all(statement in own for own in bounds.values()):
            found[statement] = worst_mixture(
                {name: own[statement] for name, own in bounds.items()},
                confidence,
                largest,
                mixtures,
                _kind_of(statement, kind, people),
                statement in CLIPPED,
                statement in MISTAKES,
                people,
                statement.startswith("personal"),
                most,
            )
    return found


def statements_of_rows(
    losses: Mapping[str, RowLosses],
    limits: LossLimits,
    confidence: float,
    mixtures: MixtureSet,
    kind: Bound = "betting",
    people: Mapping[str, ArrayLike] | None = None,
    most: int | None = None,
    rounding: Rounding = EXACT,
) -> dict[str, HeldOut]:
    """`statements_of` held-out rows, by client; the arguments are as in `client_report`."""
    level, labels = client_level(confidence, len(losses), mixtures), people_of(losses, people)
    check_rows_per_person(most, people)
    bounds = {}
    for name, own in losses.items():
        found = client_report(name, own, limits, [level], kind, labels[name], most, rounding).bounds
        bounds[name] = {statement: each[0] for statement, each in found.items()}
    return statements_of(bounds, limits, confidence, mixtures, kind, people is not None, most)


def with_holdout(
    bare: Certificate,
    of: CertifiedModel,
    fresh: Mapping[str, ArrayLike],
    confidence: float,
    shift: float | None = None,
    bound: Bound = "betting",
    people: Mapping[str, ArrayLike] | None = None,
    personal: Mapping[str, NDArray[np.float64]] | None = None,
    rows_per_person: int | None = None,
    rounding: Rounding = EXACT,
) -> Certificate:
    """The certificate with what rows (N_i, m) that training never saw add to it, in the order of its clients.

    `people` and `rows_per_person` as in `held_out_bound`; `personal` (d,) are the clients' personal models,
    where there are any. An interval for another confidence is left out.
    """
    losses = {
        name: of.losses(rows, None if personal is None else personal.get(name, of.x))
        for name, rows in fresh.items()
    }
    parts = of.limits, confidence, of.mixtures, bound, people, rows_per_person, rounding
    found = statements_of_rows(losses, *parts)
    made = None
    if no_intervals(of.loss) is None:
        used = {name: (personal or {}).get(name, of.x) for name in fresh}
        rows = {name: np.asarray(own, float) for name, own in fresh.items()}
        classes = of.loss.labels is not None
        errors = {
            n: (mistakes_of if classes else row_scores)(of.loss, used[n], own) for n, own in rows.items()
        }
        share = None if classes else SHARE
        made = row_promise(errors, confidence, share, people=people, personal=bool(personal))
    return with_statements(bare, of, found, confidence, shift, made)


def with_statements(
    bare: Certificate,
    of: CertifiedModel,
    found: Mapping[str, HeldOut],
    confidence: float,
    shift: float | None = None,
    of_rows: RowPromise | None = None,
) -> Certificate:
    """The certificate with held-out statements of this confidence, and room for a shift if one is given."""
    absent = {name: why for name, why in bare.absent.items() if name == "interval"}
    interval, clipped, room = bare.interval, found["clipped"], None
    if interval is not None and confidence != bare.confidence:
        interval = None
        absent["interval"] = f"it was computed for a confidence of {bare.confidence:g}."
    if "held_out" not in found:
        absent["held_out"] = "no declared support bounds the loss, so rare large ones cannot be ruled out."
    if shift is None:
        absent["shift"] = "no shift radius was chosen."
    elif of.slope is None:
        absent["shift"] = "the slope of this loss on the support is not known; declare a box."
    else:
        room = _with_shift(of, clipped, shift)
        if clipped.vacuous or room.bound >= clipped.largest:
            room = None
            absent["shift"] = (
                f"with room for a shift of {shift:g} the bound is no lower than {clipped.largest:.6g}, what "
                "losses count as at most; hold out more rows or choose a smaller shift."
            )
    made: dict[str, Any] = {statement: found.get(statement) for statement in STATEMENTS}
    return dataclasses.replace(
        bare,
        confidence=confidence,
        interval=interval,
        shift=room,
        absent=Frozen(absent),
        of_rows=of_rows,
        procedure=None,
        **made,
    )


def of_model_from_elsewhere(
    confidence: float,
    names: Sequence[str],
    mixtures: str,
    found: Mapping[str, HeldOut],
    absent: Mapping[str, str],
    origin: str,
    against: Paired | None = None,
    of_rows: RowPromise | None = None,
) -> Certificate:
    """All that is stated of a model whose training rows are not known: held-out statements alone.

    Args:
        confidence: of every statement.
        names: the clients'.
        mixtures: the admissible ones, in words.
        found: the statements.
        absent: why the interval, `held_out`, `clipped` and `shift` are absent, where they are.
        origin: where the model is from, and what bounds its loss.
        against: the difference from another model.
        of_rows: what is promised of rows.
    """
    why = {name: said for name, said in absent.items() if name not in found}
    if "held_out" in why and "clipped" in why:
        why |= dict.fromkeys(("held_out", "clipped"), "the loss is the mistakes themselves.")
    return Certificate(
        confidence,
        tuple(names),
        rows=(),
        empirical=(),
        mixtures=mixtures,
        interval=None,
        held_out=found.get("held_out"),
        clipped=found.get("clipped"),
        mistakes=found.get("mistakes"),
        shift=None,
        absent=Frozen(why),
        balls=origin,
        against=against,
        of_rows=of_rows,
    )


def interval_obstacle(problem: Problem, x: ArrayLike) -> str | None:
    """Why the out-of-sample theorem does not apply to this model; None where it does."""
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return why
    try:
        support_lipschitz(problem, x)
    except BidroError as error:
        return str(error)
    return None


def ball_promise(problem: Problem) -> str:
    """What the Wasserstein balls of training guarantee, as a sentence."""
    if not problem.ambiguity_set.over_balls:
        return "Trained without Wasserstein balls around the clients' samples."
    radii = np.asarray(problem.eps)
    size = f"Trained with radii from {radii.min():.4g} to {radii.max():.4g}: robustness to shift"
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return f"{size}, without coverage of the true distribution: {why}"
    return f"{size}; coverage is stated for the explicit radii of the interval only."


def shift_slope(problem: Problem, x: AnyArray) -> float | None:
    """What a shift of 1 in W_p does to the loss at most, or for squared loss with p >= 2 to its root; None
    where it is not known."""
    loss, transport = problem.loss, problem.transport
    if isinstance(loss, Squared) and transport.p >= 2:
        return float(steepness(problem.inner, x))
    try:
        return support_lipschitz(problem, x)
    except BidroError:
        return None


def _with_shift(of: CertifiedModel, held: HeldOut, shift: float) -> Shift:
    assert of.slope is not None
    bound = (shifted_squared if of.of_root else shifted)(held, of.slope, shift)
    of_people = " as a mean of people" if held.people else ""
    return Shift(
        shift,
        bound,
        f"With confidence {held.confidence:g} the mean loss, each counted as at most {held.largest:.6g}, "
        f"stays at most {bound:.6g}{of_people} if, after the {held.draws} were drawn, independently of "
        f"each other, every client's distribution moves by at most {shift:g} in the metric of the problem.",
    )


def _holdout_rows(federation: Federation, holdout: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
    if set(holdout) != set(federation.names):
        missing = sorted(set(federation.names) - set(holdout))
        unknown = sorted(set(holdout) - set(federation.names))
        raise BidroError(
            "Held-out rows must be of the clients of the problem: "
            + (f"there are none of '{missing[0]}'." if missing else f"there is no client '{unknown[0]}'.")
        )
    ordered = {name: holdout[name] for name in federation.names}
    fresh = Federation.from_arrays(ordered, federation.support, federation.columns)
    rows = np.asarray(fresh.samples)
    return dict(zip(fresh.names, split_by_sizes(rows, fresh.sizes), strict=True))
