"""Risks by plain NumPy in extended precision, sharing no code with bidro.

Every number returned is a bound: `Bounds.lower` is the loss expected under a distribution that lies in the
ball (or the penalised value of moves), `Bounds.upper` a dual value with bounds above of its suprema.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.fuzz.paths import PRECISE, Moves, along_path
from tests.fuzz.plain import INF, Wide, inverse_scale, losses, split, steepest_slope, steepness
from tests.fuzz.problems import Case
from tests.fuzz.weights import ROW_WEIGHTS, highest_mean

_SEARCH = 90


class Bounds(NamedTuple):
    lower: Wide
    upper: Wide


def risk(case: Case, client: int, x: np.ndarray) -> Bounds:
    """Bounds of R_i(x)."""
    rows, level = np.asarray(case.rows[client], Wide), Wide(case.levels[client])
    still = losses(case, x, rows).mean()
    if case.family.ambiguity == "none" or (case.family.ambiguity == "ball" and level == 0):
        return Bounds(still, still)
    if case.family.ambiguity in ROW_WEIGHTS:
        bounds = ROW_WEIGHTS[case.family.ambiguity](len(rows), level)
        value = highest_mean(*bounds, losses(case, x, rows))
        return Bounds(value, value)
    if case.family.ambiguity == "penalty":
        found = moves(case, x, rows, level)
        return Bounds(np.maximum(still, (found.loss - level * found.cost).mean()), found.upper.mean())
    if case.support is None and case.family.loss == "squared":
        value = (np.sqrt(still) + level * steepness(case, x)[0]) ** 2
        return Bounds(value, value)
    found = _ball(case, x, rows, level)
    return Bounds(max(found.lower, still), found.upper)


class _Trial(NamedTuple):
    """Moves at one multiplier: mean loss and cost, and a bound above of the dual value."""

    price: Wide
    loss: Wide
    cost: Wide
    upper: Wide

    def dual(self, budget: Wide) -> Wide:
        return self.loss + self.price * (budget - self.cost)


def _ball(case: Case, x: np.ndarray, rows: np.ndarray, eps: Wide) -> Bounds:
    """A search for the multiplier: a trial gives a bound above, a bracket a distribution in the ball."""
    budget = eps**case.family.p
    # What moves without end earn a unit of cost.
    infimum_at_infinity = _endless(case, x, rows) if case.support is None and case.family.p == 1 else Wide(0)

    def at(price: Wide) -> _Trial:
        found = moves(case, x, rows, price)
        upper = price * budget + found.upper.mean()
        finite = np.isfinite(upper)
        return _Trial(
            price, found.loss.mean() if finite else INF, found.cost.mean() if finite else INF, upper
        )

    low = at(infimum_at_infinity)
    if low.cost <= budget:
        return Bounds(low.loss + (budget - low.cost) * infimum_at_infinity, low.upper)
    high = at(max(losses(case, x, rows).mean() / budget, infimum_at_infinity, Wide(1e-290)))
    while high.cost > budget:
        low, high = high, at(64 * high.price)
    best = Bounds(high.loss + (budget - high.cost) * infimum_at_infinity, min(low.upper, high.upper))
    for step in range(_SEARCH):
        if np.isfinite(low.cost):
            share = (budget - high.cost) / (low.cost - high.cost)
            best = Bounds(max(best.lower, share * low.loss + (1 - share) * high.loss), best.upper)
        close = best.upper - best.lower <= PRECISE * abs(best.upper)
        if close or high.price - low.price <= Wide(1e-17) * high.price:
            break
        trial = at(_between(low, high, budget, step))
        low, high = (trial, high) if trial.cost > budget else (low, trial)
        best = Bounds(best.lower, min(best.upper, trial.upper))
    return best


def _between(low: _Trial, high: _Trial, budget: Wide, step: int) -> Wide:
    """The next multiplier: by turns where slopes would vanish, where tangents meet, and the middle."""
    middle = (
        (low.price + high.price) / 2
        if low.price > high.price / 4
        else max(high.price / 64, np.sqrt(low.price * high.price))
    )
    middle = max(middle, low.price + (high.price - low.price) / 64)
    if not np.isfinite(low.cost) or step % 3 == 2:
        return middle
    down, up = low.cost - budget, budget - high.cost
    if step % 3 == 0:
        trial = low.price + (high.price - low.price) * down / (down + up)
    else:
        trial = (low.dual(budget) - high.dual(budget) + down * low.price + up * high.price) / (down + up)
    return trial if low.price < trial < high.price else middle


def _endless(case: Case, x: np.ndarray, rows: np.ndarray) -> Wide:
    """The slope of the loss far out, over the labels that some row has or can take, p = 1, unbounded."""
    steep = steepness(case, x)
    if case.family.loss != "softmax":
        return steep[0] * Wide(steepest_slope(case))
    if np.isfinite(case.family.label_cost):
        return steep.max()
    return steep[np.unique(rows[:, -1]).astype(int)].max()


def moves(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide) -> Moves:
    """Every row moved to the best place at this price of movement, over all labels that it can take."""
    labels: list[float | None] = [None]
    if case.family.labels is not None and np.isfinite(case.family.label_cost):
        labels = list(case.family.labels)
    results = []
    for label in labels:
        start, paid = rows, np.zeros(len(rows), Wide)
        if label is not None:
            start = rows.copy()
            start[:, -1] = label
            paid = np.where(rows[:, -1] == label, Wide(0), Wide(case.family.label_cost) ** case.family.p)
        found = _moves_with_label(case, x, start, price)
        results.append(Moves(found.upper - price * paid, found.loss, found.cost + paid))
    values = np.stack([r.loss - price * r.cost for r in results])
    chosen = values.argmax(axis=0)[None]
    upper = np.stack([r.upper for r in results]).max(axis=0)
    loss, cost = (np.take_along_axis(np.stack([r[k] for r in results]), chosen, 0)[0] for k in (1, 2))
    return Moves(upper, loss, cost)


def _moves_with_label(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide) -> Moves:
    f = case.family
    still, none = losses(case, x, rows), np.zeros(len(rows), Wide)
    if case.support is None and f.p == 1:
        own = steepness(case, x) * Wide(steepest_slope(case))
        slope = own[rows[:, -1].astype(int)] if f.loss == "softmax" else own[0]
        # Convex minus linear growth that is at least as steep: staying is best.
        return Moves(np.where(slope <= price * (1 + Wide(1e-15)), still, INF), still, none)
    if case.support is None and f.loss == "squared":
        return _squared_unbounded(case, x, rows, price, still)
    if f.loss == "softmax" and f.features > 1:
        return _softmax_moves(case, x, rows, price, still)
    return along_path(case, x, rows, price)


def _squared_unbounded(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide, still: np.ndarray) -> Moves:
    """sup over t of (|u| + nu t)^2 - price t^2."""
    nu = steepness(case, x)[0]
    room = price - nu * nu
    if room > 0:
        length = np.sqrt(still) * nu / room
        return Moves(still * (price / room), (np.sqrt(still) + nu * length) ** 2, length**2)
    return Moves(np.where((still == 0) & (room == 0), Wide(0), INF), still, np.zeros(len(rows), Wide))


def _softmax_moves(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide, still: np.ndarray) -> Moves:
    """Several features: bounds above from the steepest slope, moves towards the other classes."""
    w, _ = split(case, x)
    inverse, place = inverse_scale(case)[:-1], rows[:, -1].astype(int)
    steep = steepness(case, x)[place]
    reach = np.full(len(rows), INF)
    if case.support is not None:
        low, high = (np.asarray(v, Wide)[:-1] for v in case.support)
        far = np.maximum(rows[:, :-1] - low, high - rows[:, :-1])
        reach = np.sqrt(((far / inverse) ** 2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        if case.family.p == 2:
            best = np.minimum(steep / (2 * price), reach)
            upper = still + np.where(steep > 0, steep * best - price * best**2, 0)
        else:
            upper = still + np.where(steep > price, (steep - price) * reach, 0)
    loss, cost = still.copy(), np.zeros(len(rows), Wide)
    longest = np.where(np.isfinite(reach), reach, steep / (2 * price) if price > 0 else 0)
    for k in range(len(w)):
        direction = (w[k] - w[place]) * inverse**2
        length = np.sqrt(((direction / inverse) ** 2).sum(axis=1))
        unit = direction / np.where(length > 0, length, 1)[:, None]
        for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
            point = rows.copy()
            point[:, :-1] += share * longest[:, None] * unit
            if case.support is not None:
                point[:, :-1] = np.clip(point[:, :-1], low, high)
            moved = losses(case, x, point)
            spent = np.sqrt((((point - rows)[:, :-1] / inverse) ** 2).sum(axis=1)) ** case.family.p
            better = moved - price * spent > loss - price * cost
            loss, cost = np.where(better, moved, loss), np.where(better, spent, cost)
    return Moves(np.where(np.isnan(upper), INF, upper), loss, cost)
