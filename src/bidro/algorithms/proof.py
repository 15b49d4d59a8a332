"""The lower bound that multipliers prove, evaluated afresh, and multipliers made to prove more.

For beta >= 0 whose sums over the clients' cuts are a mixture in A, and y with ||y|| <= r_nu for each cone (in
the dual norm of the cone's),

    objective(x) >= sum_j beta_j cut_j(x, nu)
                 >= constant + <s, x>,      s = sum_j beta_j gradient_j + B' y,

for every x in X, since nu r_nu >= <y, B x + b>; with its minimum over X, this is the bound. Of an interior
optimum s is 0, but a solver leaves a residual, and what it costs is multiplied by the width of X. So the
multipliers are mended twice. First all of them are moved a little, in proportion to their sizes, to where s
vanishes (least squares). What rounding leaves of s is then cancelled by tiny multiples of other cuts, kept
apart from the large ones beside which they would be lost. Slopes are summed without rounding error, and what
the rest of the arithmetic can get wrong is bounded by the sizes of its terms and taken off the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import nnls

from bidro.algorithms.exact_sums import exact_combination
from bidro.algorithms.pulls import bends, costs, directions, growths, lengths, stacked
from bidro.errors import BidroError
from bidro.sets import Ball, Box, ScaledNormCut
from bidro.sets.base import NormBound

if TYPE_CHECKING:
    from bidro.algorithms.cone_model import Answer, ConeModel
    from bidro.algorithms.cuts import Cuts

Numbers = NDArray[np.float64]

# Coordinates whose optimum lies within this share of the width of X of its edge are held by the edge.
_AT_EDGE = 1e-6
# Multipliers below this are not moved, and clients with weights below it lend no cuts to cancel with.
_USED = 1e-10
# How much more an equation weighs that must hold than one that is only wished for.
_FIRST = 1e2
_TINY, _EPS = float(np.finfo(float).tiny), float(np.finfo(float).eps)
# Operations behind each term of a bound, besides the sums: twice what the analysis gives to first order.
_OPERATIONS = 16
# Bounds may contradict each other by this share of the risk, which is rounding.
_CONTRADICTION = 1e-8
# How often each mending is repeated: its own rounding is what is left to mend.
_TIMES = 2
# Cancelling is repeated as long as it leaves less than a share of what was lost before, up to a limit.
_CANCELLINGS, _LESS = 20, 0.7
# A client's cuts are traded for others where its weight is at least this.
_TRADED = 1e-6
# All that a client has to trade counts as much as this share of the gap.
_TRADING = 1.0
# Shares of the gap that turns of pulls may cost, tried one after the other.
_OF_ALLOWANCE = (0.1, 0.0)

_of_bound = attrgetter("bound")


class Proof(NamedTuple):
    bound: float  # over all of X
    lost: float  # what the slope s costs in it
    alpha: Numbers  # (n,) weights of the mixture that it is proven with
    slope: Numbers  # (d,) s, or what could not be cancelled of it


def lower_bound(
    model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer, upper: float, enough: float
) -> Proof:
    """The best bound that the answer's multipliers prove, as they are or mended.

    They are mended where more is lost to the slope than lies between what the cuts say at z and the value
    `upper` that is known there, and until a bound is `enough`.
    """

    def serves(proof: Proof) -> bool:
        return proof.bound >= enough or proof.lost <= upper - (proof.bound + proof.lost)

    best = raw = proven(model, cuts, z, answer)
    if serves(best):
        return best._replace(slope=raw.slope)
    for share in _OF_ALLOWANCE if model.nonnegative else ():
        cancelled = _cancelled(model, cuts, z, answer, share, upper, enough)
        raw = raw._replace(slope=cancelled.slope)
        best = max(best, cancelled, key=_of_bound)
        if serves(best):
            return best._replace(slope=raw.slope)
    for by_cost in (True, False):
        mended = answer
        for _ in range(_TIMES):
            mended = _balanced(model, cuts, z, mended, by_cost)
            best = max(best, proven(model, cuts, z, mended), key=_of_bound)
            if serves(best):
                return best._replace(slope=raw.slope)
        if model.nonnegative and best.bound < enough:
            best = max(best, _cancelled(model, cuts, z, mended, 0.0, upper, enough), key=_of_bound)
        if best.bound >= enough:
            break
    return best._replace(slope=raw.slope)


def require_consistent(lower: float, upper: float, size: float, t: int) -> None:
    """Raise BidroError where a lower bound lies above an upper one by more than rounding, risks being of
    `size`: digits were lost, or a client contradicts itself."""
    if lower > upper + _CONTRADICTION * size:
        raise BidroError(
            f"In round {t} the clients' replies contradict each other: no model is better than {lower:.9g}, "
            f"but one has {upper:.9g}. Rescale columns whose mean is huge beside their spread, or look at "
            "who replied."
        )


def proven(model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer) -> Proof:
    """The bound that the answer's multipliers prove as they are."""
    d, beta, pulls = model.models.dimension, answer.multipliers, answer.pulls
    constant = float(beta @ cuts.at(z))
    if model.cones:
        r_nu = float(beta @ cuts.gradient[:, d])
        if r_nu < 0:  # no risk falls with nu, so that a client has replied nonsense; it proves nothing
            return Proof(-math.inf, math.inf, answer.alpha, np.zeros(d))
        pulls = _allowed(model, cuts, answer)
        constant -= r_nu * z[d]
        constant += sum(float(y @ cone.at(z[:d])) for cone, y in zip(model.cones, pulls, strict=True))
    slope, at_z = _slope(model, cuts, beta, pulls), constant
    constant -= float(slope @ z[:d])
    # Cuts lie below the risks wherever these are finite, also where models are not trained.
    models = model.finite
    if isinstance(models, ScaledNormCut):
        bounds = models.constraints().norms
        slope, constant = _pushed(slope, constant, bounds[-1], answer.pushes[len(bounds) - 1])
        models = models.base
    assert isinstance(models, Box | Ball)
    constant -= _hidden(model, cuts, z, beta, pulls, slope)
    bound, left = constant - float(models.linear_maximum(-slope)[0]), slope
    for matrix, y, price in _on_steepness(model, answer, slope):
        pushed = exact_combination(np.append(1.0, y), np.vstack([slope, matrix]))
        better = constant - price - float(models.linear_maximum(-pushed)[0])
        if better > bound:
            bound, left = better, pushed
    return Proof(bound if math.isfinite(bound) else -math.inf, at_z - bound, answer.alpha, left)


def _hidden(
    model: ConeModel, cuts: Cuts, z: Numbers, beta: Numbers, pulls: tuple[Numbers, ...], slope: Numbers
) -> float:
    """What rounding can add to a bound: a share of the sum of the sizes of its terms, however they cancel.

    These are the cuts at z, of which multipliers are a mixture only up to rounding, what nu costs and the
    pulls earn at z, and the slope over X.
    """
    d, used = model.models.dimension, beta != 0
    away = np.abs(z - cuts.points[cuts.origin[used]])
    size = np.abs(cuts.value[used]) + np.sum(np.abs(cuts.gradient[used]) * away, axis=1)
    total = float(np.abs(beta[used]) @ size)
    reach = np.max(np.abs([np.asarray(side) for side in model.models.bounding_box()]), axis=0)
    total += float(np.abs(slope) @ (np.abs(z[:d]) + reach))
    total += float(np.abs(beta) @ np.abs(cuts.gradient[:, d:]) @ np.abs(z[d:]))
    for cone, y in zip(model.cones, pulls, strict=True):
        total += 2 * float(np.abs(y) @ (np.abs(cone.matrix) @ np.abs(z[:d]) + np.abs(cone.offset)))
    return (len(size) + d + _OPERATIONS) * _EPS * total


def _on_steepness(
    model: ConeModel, answer: Answer, slope: Numbers
) -> Iterator[tuple[Numbers, Numbers, float]]:
    """(B, y, price) with 0 >= <y, B x> - price for all models whose risks are finite: by the answer's
    multipliers, and by those next to them that cancel most of the slope (d,)."""
    if not model.steepest:
        return
    matrix = np.vstack([norm.matrix for norm in model.steepest])
    given = np.concatenate(answer.pushes[len(answer.pushes) - len(model.steepest) :])
    ends = np.cumsum([len(norm.offset) for norm in model.steepest])[:-1]
    for y in (given, given - _least_squares(matrix.T, slope + given @ matrix)):
        parts = zip(model.steepest, np.split(y, ends), strict=True)
        yield matrix, y, sum(norm.radius * float(np.linalg.norm(part)) for norm, part in parts)


def _pushed(slope: Numbers, constant: float, norm: NormBound, y: Numbers) -> tuple[Numbers, float]:
    """(slope, constant) with 0 >= <y, B x + b> - radius ||y|| in the place of a norm's bound."""
    shift = float(y @ norm.offset) - norm.radius * float(np.linalg.norm(y))
    return slope + y @ norm.matrix, constant + shift


def _allowed(model: ConeModel, cuts: Cuts, answer: Answer) -> tuple[Numbers, ...]:
    """The answer's y, shortened to what r_nu allows them in all."""
    r_nu = float(answer.multipliers @ cuts.gradient[:, model.models.dimension]) if model.cones else 0.0
    length = float(lengths(model, answer.pulls).sum())
    if length <= r_nu:
        return answer.pulls
    # A little shorter than that, so that rounding does not shorten them again.
    return tuple((1 - 1e-15) * max(r_nu, 0.0) / length * y for y in answer.pulls)


def _slope(model: ConeModel, cuts: Cuts, beta: Numbers, pulls: tuple[Numbers, ...]) -> Numbers:
    """s (d,), to the last bit: large terms cancel in it."""
    rows = [cuts.gradient[:, : model.models.dimension], *(cone.matrix for cone in model.cones)]
    return exact_combination(np.concatenate([beta, *pulls]), np.vstack(rows))


def _width(model: ConeModel, z: Numbers, slope: Numbers) -> Numbers:
    """(d,) how far X reaches in each coordinate; 0 where z is held by the edge to which the slope leads."""
    here = z[: model.models.dimension]
    lower, upper = (np.asarray(side) for side in model.models.bounding_box())
    left = np.where(slope > 0, here - lower, upper - here)
    width = np.where(left > _AT_EDGE * (upper - lower), upper - lower, 0.0)
    for matrix, offset, radius in model.steepest:
        # At its bound a norm's multipliers meet the slope.
        if np.linalg.norm(matrix @ here + offset) > (1 - _AT_EDGE) * radius:
            width[np.any(matrix != 0, axis=0)] = 0.0
    return width


def _balanced(model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer, by_cost: bool) -> Answer:
    """Multipliers near the answer's for which s vanishes, their sums stay in A, and ||y|| = r_nu to first
    order: the least relative change that does it, or comes nearest."""
    d, polytope = model.models.dimension, model.mixtures.polytope()
    width = _width(model, z, _slope(model, cuts, answer.multipliers, answer.pulls))
    used, shared = answer.multipliers > _USED, answer.shares > _USED
    counted = np.unique(cuts.owner[used])
    gradient, y = cuts.gradient[used], np.concatenate([np.zeros(0), *answer.pulls])
    beta, q = answer.multipliers[used], answer.shares[shared]
    owners = (cuts.owner[used] == counted[:, None]).astype(float)
    # The unknowns are (beta, q, y); the equations: sums of beta = offset + lift q, matrix q = total, s = 0 in
    # units of what it costs, and sum <y / ||y||, y> = r_nu.
    pull = np.vstack([np.zeros((0, d)), *(cone.matrix for cone in model.cones)]).T
    toward = np.concatenate(
        [np.zeros(0), *(cone.toward(y) for cone, y in zip(model.cones, answer.pulls, strict=True))]
    )
    steep = gradient[:, d:].T
    equations = len(polytope.total)
    system = np.block(
        [
            [owners, -polytope.lift[counted][:, shared], np.zeros((len(counted), len(y)))],
            [np.zeros((equations, len(beta))), polytope.matrix[:, shared], np.zeros((equations, len(y)))],
            [width[:, None] * gradient[:, :d].T, np.zeros((d, len(q))), width[:, None] * pull],
            [-steep, np.zeros((len(steep), len(q))), np.tile(toward, (len(steep), 1))],
        ]
    )
    wanted = np.concatenate([polytope.offset[counted], polytope.total, np.zeros(d + len(steep))])
    r_nu = max(float(steep.sum(axis=0) @ beta), 0.0)
    # Of a group only those rows count that hold its largest up.
    free = [
        np.full(len(part), r_nu) if cone.groups is None else np.abs(part)
        for cone, part in zip(model.cones, answer.pulls, strict=True)
    ]
    size = np.concatenate([beta, q, *free])
    left = wanted - system @ np.concatenate([beta, q, y])
    scaled = system * size
    length = np.linalg.norm(scaled, axis=1)
    weight = np.where(length > 0, 1 / np.where(length > 0, length, 1.0), 0.0)
    # Sums and the norm are not to be traded for a smaller s.
    slopes = slice(len(counted) + equations, len(counted) + equations + d)
    weight[slopes] = 1 / length[slopes].max(initial=_TINY) if by_cost else weight[slopes] / _FIRST
    if not np.all(np.isfinite(scaled)):
        return answer
    live = _unsettled(scaled, slopes)
    change = np.zeros(len(size))
    change[live] = size[live] * _least_squares(weight[:, None] * scaled[:, live], weight * left)
    moved = answer.multipliers.copy()
    moved[used] = np.maximum(beta + change[: len(beta)], 0.0)
    shares = answer.shares.copy()
    shares[shared] = np.maximum(q + change[len(beta) : len(beta) + len(q)], 0.0)
    ends = np.cumsum([len(part) for part in answer.pulls])[:-1]
    pulls = tuple(np.split(y + change[len(beta) + len(q) :], ends)) if model.cones else ()
    multipliers, alpha = model.feasible(cuts, moved, cuts.at(z))
    return answer._replace(multipliers=multipliers, alpha=alpha, shares=shares, pulls=pulls)


def _unsettled(system: Numbers, slopes: slice) -> NDArray[np.bool_]:
    """(unknowns,) those that the equations besides the slopes' leave free: not alone in one of them, nor left
    alone by such."""
    entries = system != 0
    entries[slopes] = False
    live = np.ones(system.shape[1], bool)
    while True:
        alone = entries & (np.count_nonzero(entries & live, axis=1) == 1)[:, None] & live
        if not alone.any():
            return live
        live &= ~alone.any(axis=0)


def _least_squares(system: Numbers, wanted: Numbers) -> Numbers:
    """The smallest x (unknowns,) that comes nearest to system x = wanted; 0 where that cannot be found."""
    rows = np.any(system != 0, axis=1)
    if not rows.any():
        return np.zeros(system.shape[1])
    precision = float(np.finfo(float).eps) * max(system.shape)
    try:
        found: Numbers = lstsq(system[rows], wanted[rows], precision)[0]
    except np.linalg.LinAlgError:  # singular values that do not converge: then nothing is mended
        return np.zeros(system.shape[1])
    return found


def _cancelled(
    model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer, share: float, upper: float, enough: float
) -> Proof:
    """The bound after s has been cancelled, by what costs least: tiny multiples of cuts, in place of their
    clients' others or beside them, and pulls that turn, shorten or grow.

    All of it is nonnegative least squares in units of the bound: what is left of s times the width of X, what
    the multiples cost at z, and how much of its weight a client trades, which cannot be more than all.
    Beside the others a client's weight grows: with sums alpha + delta and risks of at least 0,
    sum_i delta_i R_i <= objective sum_i delta_i / alpha_i, so that the bound is divided by 1 more than that
    sum; references are added before and taken off after. The tiny multiples are kept apart from the large
    ones beside which they would be lost.
    """
    d, n, lent = model.models.dimension, len(answer.alpha), answer.alpha[cuts.owner] > _USED
    others, values = cuts.only(lent), cuts.at(z)
    owner, weight = others.owner, answer.alpha[others.owner]
    # What a client's multipliers make of its cuts, a unit of its weight.
    mean = np.zeros((n, cuts.gradient.shape[1] + 1))
    np.add.at(mean, cuts.owner, answer.multipliers[:, None] * np.column_stack([cuts.gradient, values]))
    mean = mean[owner] / weight[:, None]
    instead = np.column_stack([others.gradient, values[lent]]) - mean
    beside = np.column_stack([others.gradient, values[lent] - float(answer.multipliers @ values) / weight])
    offered = np.vstack([instead, beside])
    cost = np.maximum(-offered[:, -1], 0.0)
    twice, k = cuts.with_more(others).with_more(cuts), len(owner)
    matrix, ends = stacked(model), np.cumsum([len(part) for part in answer.pulls])[:-1]
    short = upper - enough if -math.inf < enough < upper else 0.0
    # What a client trades, in shares of its weight; it cannot trade more than all of it.
    traded = (owner == np.unique(owner)[:, None]) / weight
    traded = _TRADING * short * np.hstack([traded, np.zeros_like(traded)])

    def with_more(taken: Numbers, pulls: tuple[Numbers, ...]) -> Answer:
        gone = np.bincount(owner, taken[:k] / weight, n)[cuts.owner] * answer.multipliers
        multipliers = np.concatenate([answer.multipliers, taken[:k] + taken[k:], -gone])
        extended = answer._replace(multipliers=multipliers, pulls=pulls)
        return extended._replace(pulls=_allowed(model, twice, extended))

    taken = np.zeros(2 * k)
    extended = with_more(taken, answer.pulls)
    best, lost, missing = Proof(-math.inf, math.inf, answer.alpha, np.zeros(d)), math.inf, None
    for _ in range(_CANCELLINGS):
        slope = _slope(model, twice, extended.multipliers, extended.pulls)
        width = _width(model, z, slope)
        toward, turns = directions(model, extended.pulls)
        length = float(lengths(model, extended.pulls).sum())
        along = np.concatenate([np.zeros(0), *extended.pulls]) / (length or 1.0)
        # Pulls lengthen with the steepness that cuts bring.
        longer = np.outer(along, offered[:, d]) if model.cones else np.zeros((0, 2 * k))
        grown = growths(model, extended.pulls, slope) - along[:, None]
        of_pulls = np.hstack([longer, -toward.T, grown, turns, -turns])
        columns = matrix.T @ of_pulls
        columns[:, : 2 * k] += offered[:, :d].T
        weights = bends(model, extended.pulls, width, share * short)
        of_turns = np.hstack([np.zeros((len(weights), columns.shape[1] - 2 * len(weights))), turns, -turns])
        changed = [costs(model, z, part) for part in (-toward.T, grown)]
        at_z = np.concatenate([cost, *changed, np.zeros(2 * len(turns))])
        of_trades = np.pad(traded, ((0, 0), (0, columns.shape[1] - 2 * k)))
        columns = np.vstack([width[:, None] * columns, at_z, weights[:, None] * of_turns, of_trades])
        residual = np.concatenate([-width * slope, np.zeros(1 + len(weights)), -traded @ taken])
        unit, size = np.linalg.norm(columns, axis=0), float(np.linalg.norm(residual))
        if size == 0 or not np.all(np.isfinite(unit)):
            break
        unit[unit == 0] = np.inf
        # Clients of next to no weight have nothing to trade.
        unit[:k][weight < _TRADED] = np.inf
        try:
            found = nnls(columns / unit, residual / size)[0] / unit * size
            if missing is None:
                rest = columns @ found - residual
                cheap = abs(rest[d]) < np.linalg.norm(rest[:d])
                missing = (
                    np.where(width > 0, rest[:d] / np.where(width > 0, width, 1.0), 0.0) if cheap else slope
                )
        except RuntimeError:  # it has its own limit of iterations; what was found before it serves
            break
        taken = taken + found[: 2 * k]
        if np.any(np.bincount(owner, taken[:k] / weight, n) > 1):
            break  # no tiny multiples: less than nothing would be left of the others
        pulls = extended.pulls
        if model.cones:
            pulls = tuple(np.split(np.concatenate(pulls) + of_pulls @ found, ends))
        extended = with_more(taken, pulls)
        proof = proven(model, twice, z, extended)
        over = float(np.sum(taken[k:] / weight))
        of_risks = proof.bound + model.references.of_cuts(extended.multipliers, twice.owner)
        taken_off = model.references.of_cuts(answer.multipliers, cuts.owner)
        off = _OPERATIONS * _EPS * (abs(of_risks) + abs(taken_off))
        proof = proof._replace(bound=of_risks / (1 + over) - taken_off - off if of_risks > 0 else -math.inf)
        best = max(best, proof, key=_of_bound)
        if proof.lost > _LESS * lost:
            break
        lost = proof.lost
        if best.bound >= enough:
            break
    return best if missing is None else best._replace(slope=missing)
