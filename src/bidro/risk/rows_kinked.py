"""Risks with kinks from rows on the host, in NumPy: hinge, absolute and pinball loss, and labels that change.

With u_k the argument of row k, for p = 1 and an unbounded support, L at most Lip steep and c the cost of the
other label, with which a row has the argument -u_k, a risk is

    R(x) = min over lambda >= Lip nu of  lambda eps + mean_k max(L(u_k), L(-u_k) - lambda c).

The best lambda is a quantile of what rows gain a unit of cost by the other label: the worst distribution
gives it to those that gain most, as far as the budget goes, and what is left moves rows far out. Where labels
keep their values lambda is Lip nu, and R = mean L(u_k) + eps Lip nu.

For the cut and the curvature kinks are smoothed, those of L over a width in u, that of the maximum over a
width in units of the loss; the best lambda is then a root. Curvature follows both kinds from model to model
(`losses.scalar`), and lambda gives way to the model in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.sets.base import AnyArray
from bidro.losses import LinearLoss, ResidualLoss
from bidro.losses.scalar import Followed, Tangent
from bidro.risk.inner.ball import has_kinks, is_lifted
from bidro.risk.inner.problem import Inner, TwoClasses
from bidro.risk.rounding import of_cost, of_sum, of_terms, of_value
from bidro.risk.rows_jax import RiskModel
from bidro.risk.rows_numpy import FoldedRows, blocks

Numbers = NDArray[np.float64]

_EPS = float(np.finfo(float).eps)
# Roots are found to this share of the budget, in at most so many steps.
_CLOSE, _STEPS = 1e-12, 100
# Where slopes of kinks meet their ends, a price gives way once more, so often.
_GIVES = 10


def known_with_kinks(inner: Inner, radii: Numbers) -> bool:
    """Whether risks over balls of these radii have kinks, and are known here."""
    two = TwoClasses.of(inner)
    inner = inner if two is None else two.inner
    if not isinstance(inner.loss, LinearLoss) or not has_kinks(inner):
        return False
    return not np.any(radii) or (is_lifted(inner) and inner.transport.p == 1)


def kinked_risks(
    inner: Inner,
    rows: FoldedRows,
    x: Numbers,
    eps: Numbers,
    width: float,
    curvature: bool,
    before: Numbers | None = None,
    fold: int = -1,
) -> RiskModel:
    """What `Client.risk` says of one model x (d,), for all clients with radii eps (n,), without the rows of a
    fold; `before` (models, d + 1) are models that were assessed before, each with its width."""
    two = TwoClasses.of(inner)
    path = np.append(x, width)[None] if before is None or not curvature else np.vstack([before, [*x, width]])
    if two is None:
        return _risks(inner, rows, path[:, :-1], path[:, -1], eps, curvature, fold)
    apart = path[:, :-1] @ two.apart.T
    found = _risks(two.inner, rows, apart, path[:, -1], eps, curvature, fold).through(two.apart)
    balanced: AnyArray = np.stack([np.asarray(inner.loss.balanced(own)) for own in found.gradient])
    return found._replace(gradient=balanced)


def _risks(
    inner: Inner,
    rows: FoldedRows,
    models: Numbers,
    widths: Numbers,
    eps: Numbers,
    curvature: bool,
    fold: int,
) -> RiskModel:
    """At the last of models (M, d), to which the others lead."""
    loss, x = inner.loss, models[-1]
    assert isinstance(loss, LinearLoss)
    lifted, d, n = is_lifted(inner), len(x), len(eps)
    count, by = rows.left(np.full(1, fold))[:, 0], _ByClient.of(rows, fold)
    steep = np.zeros(len(models))
    if lifted:
        (cone,) = inner.transport.steepness_cones(loss)
        steep = loss.scalar.lipschitz * cone.norms(models @ cone.matrix.T + cone.offset)
    of_row = _Rows.of(loss, rows, by, models, widths)
    if inner.reachable_labels is None or not np.any(eps):
        worst = _unchanged(of_row, np.full(n, steep[-1]), n)
    else:
        worst = _changed(of_row, by, float(inner.transport.label_cost), steep, eps)
    left = np.maximum(eps - worst.spent, 0.0)
    line, smoothed = by.mean(worst.line), by.mean(worst.smoothed) + worst.smoothed_price * eps
    value, attained = by.mean(worst.value), by.mean(worst.line - worst.off)
    gradient, hessian = np.zeros((n, d + lifted)), None
    slopes, bent = by.weights * worst.slope, by.weights * worst.bent
    crossed = by.weights * worst.crossed
    across, second = np.zeros((n, d)), np.zeros((n, d, d))
    begin = 0
    for block in blocks(rows, loss, 1, d**2):
        psi = block.design if loss.labels is None else loss.sign(block.target)[:, None] * block.design
        for client, own in block.parts:
            part, at = psi[own], slice(begin + own.start, begin + own.stop)
            gradient[client, :d] += slopes[at] @ part
            if curvature:
                across[client] += crossed[at] @ part
                second[client] += (part.T * bent[at]) @ part
        begin += len(block.design)
    if lifted:
        gradient[:, d] = left * loss.scalar.lipschitz
    value = value + by.mean(worst.off)
    value, attained = value + of_sum(count, value), attained - of_sum(count, attained)
    value, attained = value + worst.price * eps, attained + left * steep[-1]
    smoothing = smoothed - (line + left * steep[-1])
    if curvature:
        least = worst.smoothed_price <= steep[-1]
        hessian = _hessians(second, across, by.mean(worst.stiff), least, lifted, loss.scalar.lipschitz)
    for term, share in ((loss.penalty, np.ones(n)), (loss.pull(d), 1 / count)):
        if term is None:
            continue
        slope = term @ x
        added = max(float(slope @ x), 0.0) * share
        value, attained = value + added, attained + added
        gradient[:, :d] += 2 * share[:, None] * slope
        if hessian is not None:
            hessian[:, :d, :d] += 2 * share[:, None, None] * term
    k, zero = gradient.shape[1], np.zeros(n)
    ends: tuple[AnyArray, ...] = value + of_value(value, k), attained - of_value(attained, k)
    rest: tuple[AnyArray, ...] = (gradient, smoothing, hessian, worst.price, worst.price, zero)
    return RiskModel(*ends, *rest)


def _hessians(
    second: Numbers, across: Numbers, stiff: Numbers, at_least: NDArray[np.bool_], lifted: bool, lip: float
) -> Numbers:
    """(n, k, k) from second derivatives in x and x (n, d, d), x and lambda (n, d), and lambda (n,): lambda is
    Lip nu where it is at its least, and elsewhere where the derivative in lambda is 0."""
    n, d = across.shape
    found = np.zeros((n, d + lifted, d + lifted))
    gives = np.where(at_least | (stiff <= 0), 0.0, 1 / np.where(stiff > 0, stiff, 1.0))
    found[:, :d, :d] = second - gives[:, None, None] * across[:, :, None] * across[:, None, :]
    if lifted:
        along = np.where(at_least, lip, 0.0)
        found[:, :d, d] = found[:, d, :d] = along[:, None] * across
        found[:, d, d] = along**2 * stiff
    return found


class _ByClient(NamedTuple):
    """Means over the rows of each client that are not in a fold."""

    weights: Numbers  # (N,) 1 / rows that count, 0 of those that do not
    starts: NDArray[np.int64]  # (n,)
    sizes: NDArray[np.int64]  # (n,)

    @classmethod
    def of(cls, rows: FoldedRows, fold: int) -> _ByClient:
        each = np.repeat(1 / rows.left(np.full(1, fold))[:, 0], rows.sizes)
        return cls(each * (rows.fold_ids != fold), np.cumsum(rows.sizes) - rows.sizes, rows.sizes)

    def mean(self, v: Numbers) -> Numbers:
        """(..., n) of v (..., N)."""
        return np.asarray(np.add.reduceat(self.weights * v, self.starts, axis=-1))

    def each(self, v: Numbers) -> Numbers:
        """(..., N) of v (..., n)."""
        return np.repeat(v, self.sizes, axis=-1)


class _Rows(NamedTuple):
    """The losses' arguments at models that lead to the last one."""

    loss: LinearLoss
    u: Numbers  # (M, N)
    terms: Numbers  # (N,) the sizes of the terms that u is summed from at the last model
    columns: int  # how many these are
    spans: Numbers  # (M, N) over which kinks of the loss are smoothed, in u
    size: Numbers  # (M, N) the same in units of the loss

    @classmethod
    def of(cls, loss: LinearLoss, rows: FoldedRows, by: _ByClient, models: Numbers, widths: Numbers) -> _Rows:
        parts = list(blocks(rows, loss, len(models), len(models) * models.shape[1]))
        u = np.hstack([loss.of_residuals(one.target, models @ one.design.T) for one in parts])
        terms = np.concatenate([abs(one.design) @ abs(models[-1]) for one in parts])
        # As `Client` has it: the losses of a model that predicts the same for every row.
        target, middle = rows.samples[:, -1], np.zeros(len(rows.samples))
        if isinstance(loss, ResidualLoss) and loss.intercept:
            middle = by.each(by.mean(target))
        size = by.each(by.mean(loss.scalar.value(loss.of_residuals(target, middle))))
        unit = size if np.isinf(loss.scalar.curvature) else np.ones(len(size))
        spans = widths[:, None]
        return cls(loss, u, terms, models.shape[1], spans * unit, spans * size)

    def tangent(self, sign: float) -> Tangent:
        """Of L(sign u) at the last model, kinks followed through those before."""
        u, before = sign * self.u, None
        if len(u) > 1:
            before = Followed(u[:-1], self.spans[:-1])
        return self.loss.scalar.tangent(u[-1], self.spans[-1], before)

    def rounding(self, sign: float, slope: Numbers) -> Numbers:
        return np.asarray(of_terms(self.loss.scalar, sign * self.u[-1], self.terms, self.columns, slope))


class _Worst(NamedTuple):
    """What becomes of the rows, each with the other label for a share of its mass."""

    value: Numbers  # (N,) of the maxima
    off: Numbers  # (N,) what rounding hides of these, and of the lines
    line: Numbers  # (N,) below the losses where the rows' mass goes
    slope: Numbers  # (N,) of these in u
    smoothed: Numbers  # (N,) the smoothed maxima
    bent: Numbers  # (N,) second derivatives of these in u,
    crossed: Numbers  # (N,) in u and lambda
    stiff: Numbers  # (N,) and in lambda
    price: Numbers  # (n,) the best lambda
    smoothed_price: Numbers  # (n,) that of the smoothed maxima
    spent: Numbers  # (n,) of the budget


def _unchanged(rows: _Rows, price: Numbers, n: int) -> _Worst:
    """Every row keeps its label."""
    line, none = rows.tangent(1.0), np.zeros(rows.u.shape[1])
    value, off = rows.loss.scalar.value(rows.u[-1]), rows.rounding(1.0, line.slope)
    means = (line.value, line.slope, line.smoothed, line.curvature, none, none)
    return _Worst(value, off, *means, price, price, np.zeros(n))


def _changed(rows: _Rows, by: _ByClient, cost: float, steep: Numbers, eps: Numbers) -> _Worst:
    """Labels change where that pays at lambda >= steep (M,)."""
    scalar, u, budget = rows.loss.scalar, rows.u[-1], eps / cost
    own, other = scalar.value(u), scalar.value(-u)
    price = np.maximum(_quantiles((other - own) / cost, by, budget), steep[-1])
    here, there = rows.tangent(1.0), rows.tangent(-1.0)
    off = np.maximum(rows.rounding(1.0, here.slope), rows.rounding(-1.0, there.slope))
    off = off + of_cost(by.each(price), np.full(len(u), cost))
    value = np.maximum(own, other - cost * by.each(price))

    smoothed = [scalar.tangent(sign * rows.u, rows.spans).smoothed for sign in (1.0, -1.0)]
    gain, width = (smoothed[1] - smoothed[0]) / cost, rows.size / cost
    sharp = not rows.spans[-1].any()  # only the slopes of kinks that are followed there are wanted
    smooth = len(gain) - sharp
    prices = np.tile(price, (len(gain), 1))
    prices[:smooth] = _roots(gain[:smooth], width[:smooth], by, budget, steep)
    away = gain - by.each(prices)
    root = np.hypot(away, width)
    turns = away / np.where(root > 0, root, 1.0)
    followed = _followed(gain, turns, root, by, prices, prices <= steep[:, None])
    # No client's mass may change by more than its budget, rounding included.
    moved = (1 + (followed if sharp else turns[-1])) / 2
    mean = by.mean(moved)
    moved = moved * by.each(np.minimum(1.0, (1 - 1e-14) * budget / np.where(mean > 0, mean, 1.0)))
    kept, last = 1 - moved, prices[-1]
    line = kept * here.value + moved * there.value
    slope = kept * here.slope - moved * there.slope
    maximum = here.smoothed + cost * (away[-1] + root[-1]) / 2
    bends = cost * (1 - followed * turns[-1]) / (2 * np.where(root[-1] > 0, root[-1], 1.0))
    apart = -(there.slope + here.slope) / cost
    bent = kept * here.curvature + moved * there.curvature + bends * apart**2
    spent = cost * by.mean(moved) * (1 + 1e-14)
    return _Worst(value, off, line, slope, maximum, bent, -bends * apart, bends, price, last, spent)


def _followed(
    gain: Numbers, turns: Numbers, root: Numbers, by: _ByClient, prices: Numbers, at_least: NDArray[np.bool_]
) -> Numbers:
    """(N,) as `Followed.slope`, of kinks at a price that gives way to every step: by as much as leaves what
    is spent of the budget, (1 + slope) / 2 in the mean, as it was, but where the price is at its least."""
    slope = turns[0]
    for j in range(len(gain) - 1):
        bends, step, spent = (1 - slope * turns[j]) / root[j], gain[j + 1] - gain[j], by.mean(turns[j])
        given = np.where(at_least[j], prices[j + 1] - prices[j], _ratio(by, bends * step, bends))
        for _ in range(_GIVES):
            slope = np.clip(turns[j] + bends * (step - by.each(given)), -1.0, 1.0)
            more = _ratio(by, slope - by.each(spent), bends * (abs(slope) < 1))
            if not np.any(more[~at_least[j]]):
                break
            given = given + np.where(at_least[j], 0.0, more)
    return slope


def _ratio(by: _ByClient, part: Numbers, whole: Numbers) -> Numbers:
    """(n,) the means' ratio; 0 where the second is."""
    size = by.mean(whole)
    return np.asarray(np.where(size > 0, by.mean(part) / np.where(size > 0, size, 1.0), 0.0))


def _quantiles(gain: Numbers, by: _ByClient, budget: Numbers) -> Numbers:
    """(..., n) the least price at which the rows of each client that gain more (..., N) are at most a share
    `budget` of them; -inf where all may gain."""
    found = np.full((*gain.shape[:-1], len(budget)), -np.inf)
    for i, (start, size) in enumerate(zip(by.starts.tolist(), by.sizes.tolist(), strict=True)):
        own = gain[..., start : start + size][..., by.weights[start : start + size] > 0]
        last = own.shape[-1] - 1 - int(budget[i] * own.shape[-1])
        if last >= 0:
            found[..., i] = np.partition(own, last)[..., last]
    return found


def _roots(gain: Numbers, width: Numbers, by: _ByClient, budget: Numbers, least: Numbers) -> Numbers:
    """(M, n) the prices at which the mean of (1 + t / r) / 2, t = gain - price and r = (t^2 + width^2)^1/2,
    is the budget, or the least (M,) where it is not more there: Newton's method within brackets."""

    def over(price: Numbers) -> tuple[Numbers, Numbers]:
        away = gain - by.each(price)
        root = np.hypot(away, width)
        slope = width**2 / (2 * root**3)
        return by.mean((1 + away / root) / 2) - budget, by.mean(slope)

    floor, span = np.tile(least[: len(gain), None], len(budget)), width[:, by.starts]
    # As good as no mass is left at this price.
    none = np.maximum.reduceat(gain, by.starts, axis=1) + 1e8 * span
    price = np.clip(_quantiles(gain, by, budget), floor, none)
    low, high, stride = floor, none, span
    for _ in range(_STEPS):
        excess, slope = over(price)
        low, high = np.where(excess > 0, price, low), np.where(excess > 0, high, price)
        if np.all((abs(excess) <= _CLOSE * budget) | (high - low <= _EPS * abs(price))):
            break
        step = price + excess / np.where(slope > 0, slope, np.inf)
        # Near the quantile, in strides of the width that double; then within the bracket.
        step = np.clip(step, price - stride, price + stride)
        price = np.where((step > low) & (step < high), step, (low + high) / 2)
        stride = 2 * stride
    return np.where(budget > 0, np.maximum(price, floor), none)
