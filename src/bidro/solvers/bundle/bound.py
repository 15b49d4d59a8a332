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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, lstsq
from scipy.optimize import nnls

from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, ConstrainedBox, ScaledNormCut
from bidro.losses.base import Cone
from bidro.solvers.bundle.model import Answer, ConeModel, Cuts

Numbers = NDArray[np.float64]


def exact_combination(coefficients: Numbers, rows: Numbers) -> Numbers:
    """sum_j coefficients_j rows_j (columns,), each sum rounded once: products are split into their value and
    their rounding error (Dekker), and all of them summed exactly."""
    coefficients, rows = coefficients[coefficients != 0], rows[coefficients != 0]
    products = coefficients[:, None] * rows
    high, low = _halves(coefficients)
    row_high, row_low = _halves(rows)
    error = (high[:, None] * row_high - products) + high[:, None] * row_low + low[:, None] * row_high
    error = error + low[:, None] * row_low
    # Where splitting overflows, the products alone are as good as it gets.
    error[~np.isfinite(error)] = 0.0
    return np.array([math.fsum(column) for column in np.vstack([products, error]).T.tolist()])


def _halves(v: Numbers) -> tuple[Numbers, Numbers]:
    """v as a sum of two numbers of half as many digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        turned = (2.0**27 + 1) * v
        high = turned - (turned - v)
    return high, v - high


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
# Shares of the gap that turns of the cones' multipliers may cost, tried one after the other.
_OF_ALLOWANCE = (0.1, 0.0)
# Multipliers of a cone below this share of all of them are not turned; they may grow to at most the second.
_TURNED, _GROWN = 1e-3, 1e-6

_of_bound = attrgetter("bound")


class DualBound(NamedTuple):
    """A lower bound of the optimum, and what it is proven with."""

    bound: float  # over all of X
    alpha: Numbers  # (n,) weights of the mixture that it is proven with
    lost: float  # what the slope s costs in it
    slope: Numbers  # (d,) s, or what could not be cancelled of it


def lower_bound(
    model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer, upper: float, enough: float
) -> DualBound:
    """The best bound that the answer's multipliers prove, as they are or mended.

    They are mended where more is lost to the slope than lies between what the cuts say at z and the value
    `upper` that is known there, and until a bound is `enough`.
    """

    def serves(found: DualBound) -> bool:
        return found.bound >= enough or found.lost <= upper - (found.bound + found.lost)

    best = proven(model, cuts, z, answer)
    slope = best.slope
    for share in _OF_ALLOWANCE if model.nonnegative and not serves(best) else ():
        cancelled = _cancelled(model, cuts, z, answer, share, upper, enough)
        best, slope = max(best, cancelled, key=_of_bound), cancelled.slope
        if serves(best):
            break
    for by_cost in (True, False) if not serves(best) else ():
        mended = answer
        for _ in range(_TIMES):
            mended = _balanced(model, cuts, z, mended, by_cost)
            best = max(best, proven(model, cuts, z, mended), key=_of_bound)
            if serves(best):
                return best._replace(slope=slope)
        if model.nonnegative:
            best = max(best, _cancelled(model, cuts, z, mended, 0.0, upper, enough), key=_of_bound)
        if best.bound >= enough:
            break
    return best._replace(slope=slope)


def require_consistent(lower: float, upper: float, size: float, t: int) -> None:
    """Raise BidroError where a lower bound lies above an upper one by more than rounding, risks being of
    `size`: digits were lost, or a client contradicts itself."""
    if lower > upper + _CONTRADICTION * size:
        raise BidroError(
            f"In round {t} the clients' replies contradict each other: no model is better than {lower:.9g}, "
            f"but one has {upper:.9g}. Rescale columns whose mean is huge beside their spread, or look at "
            "who replied."
        )


def proven_at(model: ConeModel, cuts: Cuts, z: Numbers, origin: int, alpha: Numbers) -> DualBound:
    """The bound that the clients' cuts of one origin, known at z, prove when mixed by alpha (n,): all there
    is to prove at a smooth optimum, where y = (dF/dnu) (B x + b) / ||B x + b|| cancels their slope."""
    d, own = model.models.dimension, np.where(cuts.origin == origin, alpha[cuts.owner], 0.0)
    of_cones = (float(own @ cuts.gradient[:, d]) * cone.slope(cone.at(z[:d])) for cone in model.cones)
    cone_duals = np.concatenate([np.zeros(0), *of_cones])
    norms = (*model.models.constraints().norms, *model.norm_bounds)
    norm_duals = tuple(np.zeros(len(norm.offset)) for norm in norms)
    value = float(own @ cuts.value)
    return proven(model, cuts, z, Answer(z, value, own, alpha, np.zeros(0), cone_duals, norm_duals))


def proven(model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer) -> DualBound:
    """The bound that the answer's multipliers prove as they are."""
    d, beta, y = model.models.dimension, answer.multipliers, answer.cone_duals
    constant = float(beta @ cuts.at(z))
    if model.cones:
        r_nu = float(beta @ cuts.gradient[:, d])
        if r_nu < 0:  # no risk falls with nu, so that a client has replied nonsense; it proves nothing
            return DualBound(-math.inf, answer.alpha, math.inf, np.zeros(d))
        y = _allowed(model, cuts, answer)
        constant -= r_nu * z[d]
        constant += sum(float(part @ cone.at(z[:d])) for cone, part in model.of_cones(y))
    slope, at_z = _slope(model, cuts, beta, y), constant
    constant -= float(slope @ z[:d])
    # Cuts lie below the risks wherever these are finite, also where models are not trained.
    models = model.finite
    if isinstance(models, ScaledNormCut):
        # 0 >= <p, B x + b> - radius ||p|| takes the place of the norm's bound.
        bounds = models.constraints().norms
        (matrix, offset, radius), p = bounds[-1], answer.norm_duals[len(bounds) - 1]
        slope = slope + p @ matrix
        constant += float(p @ offset) - radius * float(np.linalg.norm(p))
        models = models.base
    assert isinstance(models, Box | Ball | ConstrainedBox)
    constant -= _hidden(model, cuts, z, beta, y, slope)
    bound, left = constant - float(models.linear_maximum(-slope)[0]), slope
    for matrix, p, price in _on_norms(model, answer, slope):
        pushed = exact_combination(np.append(1.0, p), np.vstack([slope, matrix]))
        better = constant - price - float(models.linear_maximum(-pushed)[0])
        if better > bound:
            bound, left = better, pushed
    return DualBound(bound if math.isfinite(bound) else -math.inf, answer.alpha, at_z - bound, left)


def _hidden(
    model: ConeModel, cuts: Cuts, z: Numbers, beta: Numbers, cone_duals: Numbers, slope: Numbers
) -> float:
    """What rounding can add to a bound: a share of the sum of the sizes of its terms, however they cancel.

    These are the cuts at z, of which multipliers are a mixture only up to rounding, what nu costs and the
    cones earn at z, and the slope over X.
    """
    d, used = model.models.dimension, beta != 0
    away = np.abs(z - cuts.points[cuts.origin[used]])
    size = np.abs(cuts.value[used]) + np.sum(np.abs(cuts.gradient[used]) * away, axis=1)
    total = float(np.abs(beta[used]) @ size)
    reach = np.max(np.abs([np.asarray(side) for side in model.models.bounding_box()]), axis=0)
    total += float(np.abs(slope) @ (np.abs(z[:d]) + reach))
    total += float(np.abs(beta) @ np.abs(cuts.gradient[:, d:]) @ np.abs(z[d:]))
    for cone, y in model.of_cones(cone_duals):
        total += 2 * float(np.abs(y) @ (np.abs(cone.matrix) @ np.abs(z[:d]) + np.abs(cone.offset)))
    return (len(size) + d + _OPERATIONS) * _EPS * total


def _on_norms(model: ConeModel, answer: Answer, slope: Numbers) -> Iterator[tuple[Numbers, Numbers, float]]:
    """(B, p, price) with 0 >= <p, B x> - price for all models whose risks are finite: by the answer's
    multipliers, and by those next to them that cancel most of the slope (d,)."""
    if not model.norm_bounds:
        return
    matrix = np.vstack([norm.matrix for norm in model.norm_bounds])
    given = np.concatenate(answer.norm_duals[len(answer.norm_duals) - len(model.norm_bounds) :])
    ends = np.cumsum([len(norm.offset) for norm in model.norm_bounds])[:-1]
    for p in (given, given - _least_squares(matrix.T, slope + given @ matrix)):
        parts = zip(model.norm_bounds, np.split(p, ends), strict=True)
        yield matrix, p, sum(norm.radius * float(np.linalg.norm(part)) for norm, part in parts)


def _allowed(model: ConeModel, cuts: Cuts, answer: Answer) -> Numbers:
    """The answer's multipliers of the cones, shortened to what r_nu allows them in all."""
    r_nu = float(answer.multipliers @ cuts.gradient[:, model.models.dimension]) if model.cones else 0.0
    length = float(lengths(model, answer.cone_duals).sum())
    if length <= r_nu:
        return answer.cone_duals
    # A little shorter than that, so that rounding does not shorten them again.
    return (1 - 1e-15) * max(r_nu, 0.0) / length * answer.cone_duals


def _slope(model: ConeModel, cuts: Cuts, beta: Numbers, cone_duals: Numbers) -> Numbers:
    """s (d,), to the last bit: large terms cancel in it."""
    rows = np.vstack([cuts.gradient[:, : model.models.dimension], model.cone_matrix])
    return exact_combination(np.concatenate([beta, cone_duals]), rows)


def reach(model: ConeModel, z: Numbers, slope: Numbers) -> Numbers:
    """(d,) how far X reaches in each coordinate; 0 where z is held by the edge to which the slope leads."""
    here = z[: model.models.dimension]
    lower, upper = (np.asarray(side) for side in model.models.bounding_box())
    left = np.where(slope > 0, here - lower, upper - here)
    width = np.where(left > _AT_EDGE * (upper - lower), upper - lower, 0.0)
    for matrix, offset, radius in model.norm_bounds:
        # At its bound a norm's multipliers meet the slope.
        if np.linalg.norm(matrix @ here + offset) > (1 - _AT_EDGE) * radius:
            width[np.any(matrix != 0, axis=0)] = 0.0
    if (rows := model.models.constraints().rows) is not None:
        # So do those of a constraint at either of its ends.
        matrix, least, most = rows
        there, edge = matrix @ here, _AT_EDGE * (np.abs(matrix) @ (upper - lower))
        met = (there - least <= edge) | (most - there <= edge)
        width[np.any(matrix[met] != 0, axis=0)] = 0.0
    return width


def _balanced(model: ConeModel, cuts: Cuts, z: Numbers, answer: Answer, by_cost: bool) -> Answer:
    """Multipliers near the answer's for which s vanishes, their sums stay in A, and ||y|| = r_nu to first
    order: the least relative change that does it, or comes nearest."""
    d, polytope = model.models.dimension, model.mixtures.polytope()
    assert polytope is not None
    width = reach(model, z, _slope(model, cuts, answer.multipliers, answer.cone_duals))
    used, shared = answer.multipliers > _USED, answer.shares > _USED
    counted = np.unique(cuts.owner[used])
    gradient, y, cones = cuts.gradient[used], answer.cone_duals, list(model.of_cones(answer.cone_duals))
    beta, q = answer.multipliers[used], answer.shares[shared]
    owners = (cuts.owner[used] == counted[:, None]).astype(float)
    # The unknowns are (beta, q, y); the equations: sums of beta = offset + lift q, matrix q = total, s = 0 in
    # units of what it costs, and sum <y / ||y||, y> = r_nu.
    toward = np.concatenate([np.zeros(0), *(cone.toward(part) for cone, part in cones)])
    steep = gradient[:, d:].T
    equations = len(polytope.total)
    system = np.block(
        [
            [owners, -polytope.lift[counted][:, shared], np.zeros((len(counted), len(y)))],
            [np.zeros((equations, len(beta))), polytope.matrix[:, shared], np.zeros((equations, len(y)))],
            [width[:, None] * gradient[:, :d].T, np.zeros((d, len(q))), width[:, None] * model.cone_matrix.T],
            [-steep, np.zeros((len(steep), len(q))), np.tile(toward, (len(steep), 1))],
        ]
    )
    wanted = np.concatenate([polytope.offset[counted], polytope.total, np.zeros(d + len(steep))])
    r_nu = max(float(steep.sum(axis=0) @ beta), 0.0)
    # Of a group only those rows count that hold its largest up.
    free = [np.full(len(part), r_nu) if cone.groups is None else np.abs(part) for cone, part in cones]
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
    multipliers, alpha = model.feasible(cuts, moved, cuts.at(z))
    y = y + change[len(beta) + len(q) :]
    return answer._replace(multipliers=multipliers, alpha=alpha, shares=shares, cone_duals=y)


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
) -> DualBound:
    """The bound after s has been cancelled, by what costs least: tiny multiples of cuts, in place of their
    clients' others or beside them, and multipliers of cones that turn, shorten or grow.

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
    additional = np.column_stack(
        [others.gradient, values[lent] - float(answer.multipliers @ values) / weight]
    )
    offered = np.vstack([instead, additional])
    cost = np.maximum(-offered[:, -1], 0.0)
    twice, k = cuts.with_more(others).with_more(cuts), len(owner)
    matrix = model.cone_matrix
    short = upper - enough if -math.inf < enough < upper else 0.0
    # What a client trades, in shares of its weight; it cannot trade more than all of it.
    traded = (owner == np.unique(owner)[:, None]) / weight
    traded = short * np.hstack([traded, np.zeros_like(traded)])

    def with_more(taken: Numbers, cone_duals: Numbers) -> Answer:
        gone = np.bincount(owner, taken[:k] / weight, n)[cuts.owner] * answer.multipliers
        multipliers = np.concatenate([answer.multipliers, taken[:k] + taken[k:], -gone])
        extended = answer._replace(multipliers=multipliers, cone_duals=cone_duals)
        return extended._replace(cone_duals=_allowed(model, twice, extended))

    taken = np.zeros(2 * k)
    extended = with_more(taken, answer.cone_duals)
    best, lost, missing = DualBound(-math.inf, answer.alpha, math.inf, np.zeros(d)), math.inf, None
    for _ in range(_CANCELLINGS):
        y = extended.cone_duals
        slope = _slope(model, twice, extended.multipliers, y)
        width = reach(model, z, slope)
        toward, turns = directions(model, y)
        along = y / (float(lengths(model, y).sum()) or 1.0)
        # Multipliers of cones lengthen with the steepness that cuts bring.
        longer = np.outer(along, offered[:, d])
        grown = growths(model, y, slope) - along[:, None]
        of_cones = np.hstack([longer, -toward.T, grown, turns, -turns])
        columns = matrix.T @ of_cones
        columns[:, : 2 * k] += offered[:, :d].T
        weights = turn_weights(model, y, width, share * short)
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
        extended = with_more(taken, y + of_cones @ found)
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


# Small changes of the cones' multipliers y, by which a proof cancels what is left of a slope. Those of a cone
# that holds the model can turn, which costs them length to second order only. Those of a cone which does not
# hold it (two classes of softmax that are nearer to each other than others) are 0, and can grow: a slope of
# next to nothing, in which no two cuts differ, is cancelled by next to nothing of them. All of this only
# proposes: what is proven with the changed y is evaluated afresh.


def turn_weights(model: ConeModel, cone_duals: Numbers, width: Numbers, allowance: float) -> Numbers:
    """(rows,) weights of turns in the least squares: y turned by t is t^2 / (2 ||y||) too long, and
    shortening it to its length costs that much; where this is the allowance, the turn counts as much."""
    weights = np.zeros(0)
    for cone, y in model.of_cones(cone_duals):
        size = cone.dual_norm(y) or 1.0
        shortened = float(np.linalg.norm(width * (cone.matrix.T @ y))) / size
        weights = np.append(weights, np.full(len(y), math.sqrt(allowance * shortened / (2 * size))))
    return weights


def lengths(model: ConeModel, cone_duals: Numbers) -> Numbers:
    """(cones,) of every cone's multipliers, in the dual norm of the cone."""
    return np.array([cone.dual_norm(y) for cone, y in model.of_cones(cone_duals)])


def directions(model: ConeModel, cone_duals: Numbers) -> tuple[Numbers, Numbers]:
    """(cones, rows) the direction of each cone's multipliers, and (rows, rows) what is across it; 0 where
    they are small beside those of all cones: these would not turn but grow."""
    if not model.cones:
        return np.zeros((0, 0)), np.zeros((0, 0))
    sizes = lengths(model, cone_duals)
    large, units, across = sizes > _TURNED * sizes.sum(), [], []
    for (cone, y), size, able in zip(model.of_cones(cone_duals), sizes, large, strict=True):
        u = np.where(able, y / (size or 1.0), 0.0)
        units.append(u[None])
        across.append(
            able * np.eye(len(u)) - np.outer(u, u) if cone.groups is None else able * _across_groups(cone, y)
        )
    return block_diag(*units), block_diag(*across)


def _across_groups(cone: Cone, y: Numbers) -> Numbers:
    """(rows, rows) turns of y that leave its length and the rows that are 0 as they are, to first order."""
    toward = cone.toward(y)
    square = float(toward @ toward) or 1.0
    return np.asarray(np.diag((y != 0).astype(float)) - np.outer(toward, toward) / square)


def growths(model: ConeModel, cone_duals: Numbers, slope: Numbers) -> Numbers:
    """(rows, growths) unit vectors by which multipliers that are small beside those of all cones may grow:
    those of cones that do not hold the model, but where next to nothing of them cancels the slope (d,)."""
    sizes = lengths(model, cone_duals)
    small = np.repeat(sizes <= _TURNED * sizes.sum(), np.array([len(c.offset) for c in model.cones], int))
    matrix = np.abs(model.cone_matrix)
    # The length that each row would take, for the coordinate that needs most of it.
    each = np.where(matrix > 0, np.abs(slope) / np.where(matrix > 0, matrix, 1.0), 0.0)
    needed = each.max(axis=1, initial=0.0)
    rows = np.flatnonzero(small & (needed > 0) & (needed <= _GROWN * sizes.sum()))
    units = np.eye(len(small))[:, rows]
    return np.hstack([units, -units])


def costs(model: ConeModel, z: Numbers, changes: Numbers) -> Numbers:
    """(changes,) what changes (rows, changes) of the cones' multipliers take off the bound's value at z."""
    here = [np.zeros(0), *(cone.at(z[: model.models.dimension]) for cone in model.cones)]
    return np.maximum(-np.concatenate(here) @ changes, 0.0)
