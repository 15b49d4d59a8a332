"""What can be stated of a model: the parts of a `Certificate`, each from what it needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.certificate import Certificate, Shift
from bidro.guarantees.held_out import (
    Bound,
    ClientBound,
    HeldOut,
    check_rows_per_unit,
    client_bounds,
    client_level,
    shifted,
    shifted_squared,
    units_of,
    worst_mixture,
)
from bidro.guarantees.on_support import largest_loss, support_lipschitz
from bidro.guarantees.out_of_sample import client_means, out_of_sample_interval
from bidro.guarantees.radius import coverage_obstacle
from bidro.losses import Loss, Squared, losses_of, mistakes_of
from bidro.problem import Mixtures, Problem
from bidro.sets import CappedSimplex, Simplex
from bidro.sets.base import Held
from bidro.trees import Frozen

# Losses are clipped at so many times a client's mean loss in training at the least.
CLIP = 8
# Binary digits of a level at which losses are clipped, in their unit, either way.
_CLIP_DIGITS = 40


def certificate(
    problem: Problem,
    x: ArrayLike,
    confidence: float = 0.95,
    holdout: Mapping[str, ArrayLike] | None = None,
    *,
    shift: float | None = None,
    delta: float | None = None,
    split: Literal["equal", "smallest largest"] = "equal",
    bound: Bound = "betting",
    units: Mapping[str, ArrayLike] | None = None,
    rows_per_unit: int | None = None,
) -> Certificate:
    """Everything that can be stated about a model with this confidence, each statement by itself.

    Args:
        problem: holds the clients' rows, the metric and the mixtures. Set these to the ones that statements
            are to cover, not to a calibrated cap.
        x: the model (d,), from wherever it is.
        confidence: of every statement.
        holdout: rows (N_i, m) by client that training never saw, on the declared support.
        shift: room for so much shift inside every client, in units of the cost.
        delta: the largest distance between two clients' true distributions, where it is known beforehand.
        split: of the failure probability among clients; see `failure_probabilities`.
        bound: of means of held-out losses: "betting", "bernstein" or "clopper-pearson".
        units: as in `held_out`.
        rows_per_unit: as in `held_out`.

    Returns:
        The certificate; what cannot be stated is absent with a reason.

    Raises:
        BidroError: for rows that do not fit the problem, and settings that make no sense.

    Examples:
        >>> from bidro import certificate, solve
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> problem = paper_problem(simulate(0), None)
        >>> stated = certificate(problem, solve(problem).x, confidence=0.9)
        >>> stated.confidence, stated.interval.lower <= stated.interval.upper, stated.held_out
        (0.9, True, None)
    """
    fresh = None if holdout is None else _holdout_rows(problem.federation, holdout)
    bare = without_holdout(problem, x, confidence, delta, split)
    if fresh is None:
        return bare
    return with_holdout(
        bare, Assessed.of(problem, x), fresh, confidence, shift, bound, units, None, rows_per_unit
    )


@dataclass(frozen=True, eq=False)
class Assessed:
    """All that statements from rows kept out need of a problem and a model: no training rows."""

    loss: Loss
    x: NDArray[np.float64]  # (d,)
    mixtures: Mixtures
    seen: float  # what losses are clipped at, from `clip_level`: fixed before fresh rows are looked at
    largest: float | None  # on the declared support; None where it is not known
    slope: float | None  # what a shift of 1 does to the loss, or to its root; None where it is not known
    of_root: bool  # whether it is to the root: squared loss with p >= 2

    @classmethod
    def of(cls, problem: Problem, x: ArrayLike, seen: float | None = None) -> Assessed:
        """Losses are clipped at `seen`; by default at the `clip_level` of the problem's rows, in units of
        1."""
        model = np.asarray(x, float)
        if seen is None:
            parts = problem.federation.by_client().values()
            seen = clip_level(max(float(losses_of(problem.loss, model, own).mean()) for own in parts), 1.0)
        of_root = isinstance(problem.loss, Squared) and problem.transport.p >= 2
        slope = shift_slope(problem, model)
        return cls(problem.loss, model, problem.mixture_set, seen, largest_loss(problem, x), slope, of_root)


def clip_level(mean: float, unit: float) -> float:
    """What losses are clipped at: the smallest power of two, in a unit of losses that everybody knows, that
    is at least eight times `mean`, the largest of the clients' mean losses in training; the unit itself where
    that is 0, and no less than 2^-40 of it: below, of a model that fits exactly, all is rounding.

    Any level that is fixed before fresh rows are looked at will do. This one tells next to nothing of the
    rows, it is the same wherever these are, and no client's is so low that where its losses are clipped
    would tell of single rows. With 16 or 32 in place of 8 bounds are wider, with 4 too much of the mean is
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
    """What can be stated from the training rows alone; `distances` and `risks` are as in
    `out_of_sample_interval`, and `means` (n,) the clients' mean losses, where they have been computed."""
    if not 0 < confidence < 1:
        raise BidroError(f"The confidence must lie strictly between 0 and 1; got {confidence}.")
    none = "no rows were kept out of training."
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
        mixtures_in_words(problem.mixture_set),
        interval,
        None,
        None,
        None,
        None,
        Frozen(absent),
        ball_promise(problem),
    )


def with_holdout(
    bare: Certificate,
    of: Assessed,
    fresh: Mapping[str, ArrayLike],
    confidence: float,
    shift: float | None = None,
    bound: Bound = "betting",
    units: Mapping[str, ArrayLike] | None = None,
    own: Mapping[str, NDArray[np.float64]] | None = None,
    rows_per_unit: int | None = None,
) -> Certificate:
    """The certificate with what rows (N_i, m) that training never saw add to it, in the order of its clients.

    `units` and `rows_per_unit` as in `held_out`; `own` (d,) are the models of clients that have one of their
    own, where there are any. An interval for another confidence is left out.
    """
    level, labels = client_level(confidence, len(fresh), of.mixtures), units_of(fresh, units)
    check_rows_per_unit(rows_per_unit, units)
    found = {
        name: holdout_bounds(
            name,
            of,
            rows,
            [level],
            bound,
            labels[name],
            None if own is None else own.get(name, of.x),
            rows_per_unit,
        )
        for name, rows in fresh.items()
    }
    bounds = {name: {part: each[0] for part, each in own.items()} for name, own in found.items()}
    return from_bounds(bare, of, bounds, confidence, shift, bound, units is not None, rows_per_unit)


def holdout_bounds(
    name: str,
    of: Assessed,
    rows: ArrayLike,
    levels: Sequence[float],
    bound: Bound = "betting",
    units: ArrayLike | None = None,
    own: NDArray[np.float64] | None = None,
    most: int | None = None,
) -> dict[str, list[ClientBound]]:
    """What one client's rows that training never saw say, by statement at every level: all that has to leave
    it. `own` (d,) is the model that this client uses, where the clients have models of their own."""
    losses = losses_of(of.loss, of.x, rows)
    # What losses are clipped at was fixed before these rows were seen.
    found = {"clipped": client_bounds(name, losses, levels, of.seen, bound, True, units, most)}
    if of.largest is not None:
        found["held_out"] = client_bounds(name, losses, levels, of.largest, bound, False, units, most)
    if of.loss.labels is not None:
        wrong, kind = mistakes_of(of.loss, of.x, rows), _of_mistakes(bound, units)
        found["mistakes"] = client_bounds(name, wrong, levels, 1.0, kind, False, units, most)
    if own is not None:
        as_used = holdout_bounds(
            name, dataclasses.replace(of, x=own, largest=None), rows, levels, bound, units, most=most
        )
        found["own"] = as_used["clipped"]
        if "mistakes" in as_used:
            found["own_mistakes"] = as_used["mistakes"]
    return found


def _of_mistakes(bound: Bound, units: ArrayLike | bool | None) -> Bound:
    """A unit's share of mistakes is not 0 or 1, so that the exact bound is not for it, nor for noisy sums."""
    if bound == "private":
        return bound
    return "clopper-pearson" if units is None or units is False else bound


def from_bounds(
    bare: Certificate,
    of: Assessed,
    bounds: Mapping[str, Mapping[str, ClientBound]],
    confidence: float,
    shift: float | None = None,
    bound: Bound = "betting",
    units: bool = False,
    most: int | None = None,
) -> Certificate:
    """`with_holdout` from the clients' own `holdout_bounds`; `units`: whether these are of units, of at most
    so many rows each."""
    absent = {name: why for name, why in bare.absent.items() if name == "interval"}
    interval = bare.interval
    if interval is not None and confidence != bare.confidence:
        interval = None
        absent["interval"] = f"it was computed for a confidence of {bare.confidence:g}."
    held = mistakes = room = own = own_mistakes = None

    def whole(statement: str, largest: float, kind: Bound) -> HeldOut:
        clients = {name: found[statement] for name, found in bounds.items()}
        what = statement in ("clipped", "own"), statement in ("mistakes", "own_mistakes")
        by_own = statement.startswith("own")
        return worst_mixture(clients, confidence, largest, of.mixtures, kind, *what, units, by_own, most)

    clipped = whole("clipped", of.seen, bound)
    if of.largest is None:
        absent["held_out"] = "no declared support bounds the loss, so rare large ones cannot be ruled out."
    else:
        held = whole("held_out", of.largest, bound)
    if of.loss.labels is not None:
        mistakes = whole("mistakes", 1.0, _of_mistakes(bound, units))
    if all("own" in found for found in bounds.values()):
        own = whole("own", of.seen, bound)
        if of.loss.labels is not None:
            own_mistakes = whole("own_mistakes", 1.0, _of_mistakes(bound, units))
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
                "losses count as at most; keep out more rows or choose a smaller shift."
            )
    return dataclasses.replace(
        bare,
        confidence=confidence,
        interval=interval,
        held_out=held,
        clipped=clipped,
        mistakes=mistakes,
        shift=room,
        absent=Frozen(absent),
        own=own,
        own_mistakes=own_mistakes,
    )


def interval_obstacle(problem: Problem, x: ArrayLike) -> str | None:
    """Why the out-of-sample theorem says nothing of this model; None where it does."""
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return why
    try:
        support_lipschitz(problem, x)
    except BidroError as error:
        return str(error)
    return None


def ball_promise(problem: Problem) -> str:
    """What the balls that a model was trained with stand for."""
    if problem.eps is None:
        return "Trained without Wasserstein balls around the clients' samples."
    radii = np.asarray(problem.eps)
    size = f"Trained with radii from {radii.min():.4g} to {radii.max():.4g}: robustness to shift"
    why = coverage_obstacle(problem.federation, problem.transport)
    if why is not None:
        return f"{size}, without coverage of the true distribution: {why}"
    return f"{size}; coverage is stated for the explicit radii of the interval only."


def shift_slope(problem: Problem, x: Held) -> float | None:
    """What a shift of 1 in W_p does to the loss at most, or for squared loss with p >= 2 to its root; None
    where it is not known."""
    loss, transport = problem.loss, problem.transport
    if isinstance(loss, Squared) and transport.p >= 2:
        return float(loss.dual_norm(x, transport.inverse_scale))
    try:
        return support_lipschitz(problem, x)
    except BidroError:
        return None


def mixtures_in_words(weights: Mixtures) -> str:
    if isinstance(weights, Simplex):
        return "any mixture of the clients"
    if isinstance(weights, CappedSimplex):
        return "mixtures within the declared bounds of each client's weight, if the true one is among them"
    return "mixtures within the declared distance of a centre, if the true one is among them"


def _with_shift(of: Assessed, held: HeldOut, shift: float) -> Shift:
    assert of.slope is not None
    bound = (shifted_squared if of.of_root else shifted)(held, of.slope, shift)
    of_people = " as a mean of people" if held.units else ""
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
            "Rows kept out must be of the clients of the problem: "
            + (f"there are none of '{missing[0]}'." if missing else f"there is no client '{unknown[0]}'.")
        )
    ordered = {name: holdout[name] for name in federation.names}
    fresh = Federation.from_arrays(ordered, federation.support, federation.columns)
    rows = np.asarray(fresh.samples)
    return dict(zip(fresh.names, np.split(rows, np.cumsum(fresh.sizes)[:-1]), strict=True))
