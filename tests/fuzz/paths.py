"""The supremum of loss - price cost over the places that one sample can move to, along the cheapest path.

Only u = <a, xi> matters to a linear predictor, and softmax of one feature has one way to move. Suprema are
bounded from above and from below, so that a certificate is refuted by a bound and never by an estimate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.fuzz.plain import (
    INF,
    Wide,
    best_direction,
    inverse_scale,
    knots,
    length,
    losses,
    split,
    steepest_slope,
    steepness,
)
from tests.fuzz.problems import RESIDUAL, Case

# Intervals kept in each round of branch and bound, parts that each is cut into, and rounds.
_KEPT, _PARTS, _REFINEMENTS = 5, 8, 12
PRECISE = Wide(1e-13)


class Moves(NamedTuple):
    """Samples moved at one price: bounds above of the suprema, and the best moves found; each (N,)."""

    upper: np.ndarray
    loss: np.ndarray
    cost: np.ndarray


class _Path(NamedTuple):
    """Rows (2 N, m), both sides; position s moves coordinate j by min(speed_j s, room_j) in its direction."""

    start: np.ndarray
    sign: np.ndarray
    speed: np.ndarray
    room: np.ndarray
    scale: np.ndarray  # (m,) 0 where nothing moves


def along_path(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide) -> Moves:
    """The supremum over the cheapest way to change u: xi(s) = clip(zeta +- s S^-2 a), from both sides."""
    n = len(rows)
    path, end = _path(case, x, rows, price)
    if not np.all(np.isfinite(end)):
        return Moves(np.full(n, INF), losses(case, x, rows), np.zeros(n, Wide))
    with np.errstate(divide="ignore", invalid="ignore"):
        bends = np.where(path.speed > 0, path.room / path.speed, 0)
    nodes = np.sort(np.minimum(np.concatenate([0 * end, bends, end], axis=1), end), axis=1)
    nodes = np.sort(np.concatenate([nodes, _at_knots(case, x, path, nodes)], axis=1), axis=1)
    quadratic = case.family.p == 2 and case.family.loss not in ("logistic", "softmax")
    found = (_best_of_parabolas if quadratic else _branch_and_bound)(case, x, path, nodes, price)
    value = (found.loss - price * found.cost).reshape(2, n)
    side = value.argmax(axis=0)[None]
    loss, cost = (np.take_along_axis(v.reshape(2, n), side, 0)[0] for v in (found.loss, found.cost))
    return Moves(np.maximum(found.upper.reshape(2, n).max(axis=0), value.max(axis=0)), loss, cost)


def _best_of_parabolas(case: Case, x: np.ndarray, path: _Path, nodes: np.ndarray, price: Wide) -> Moves:
    """p = 2 and a piecewise quadratic loss: between bends and knots the objective is a parabola."""
    left, right = nodes[:, :-1], nodes[:, 1:]
    ends, middle = (_valued(case, x, path, s, price)[0] for s in (nodes, (left + right) / 2))
    bend = 2 * (ends[:, :-1] - 2 * middle + ends[:, 1:])
    rise = 4 * middle - 3 * ends[:, :-1] - ends[:, 1:]
    share = np.where(bend < 0, -rise / np.where(bend < 0, 2 * bend, 1), 0)
    tops = left + np.clip(share, 0, 1) * (right - left)
    value, loss, cost = _valued(case, x, path, np.concatenate([nodes, tops], axis=1), price)
    best = value.argmax(axis=1)[:, None]
    return Moves(*(np.take_along_axis(v, best, 1)[:, 0] for v in (value, loss, cost)))


def _branch_and_bound(case: Case, x: np.ndarray, path: _Path, nodes: np.ndarray, price: Wide) -> Moves:
    """Between bends the loss is convex in s, so below its chord, and the cost convex, so above its tangents:
    the most promising intervals are cut until the two agree."""
    count = len(nodes)
    best, dropped, ceiling_of = np.full(count, -INF), np.full(count, -INF), np.full(count, INF)
    loss, cost = np.zeros(count, Wide), np.zeros(count, Wide)
    edges = _cut(nodes[:, :-1], nodes[:, 1:], 2)
    who = np.arange(count)  # paths that are not settled yet
    for _ in range(_REFINEMENTS):
        part = _Path(*(v[who] for v in path[:4]), path.scale)
        ceiling, values, at_loss, at_cost = _interval_bounds(case, x, part, edges, price)
        k = values.argmax(axis=1)[:, None]
        found = np.take_along_axis(values, k, 1)[:, 0]
        better = found > best[who]
        chosen = who[better]
        best[chosen] = found[better]
        loss[chosen] = np.take_along_axis(at_loss, k, 1)[better, 0]
        cost[chosen] = np.take_along_axis(at_cost, k, 1)[better, 0]
        order = np.argsort(-ceiling, axis=1)
        if ceiling.shape[1] > _KEPT:
            rest = np.take_along_axis(ceiling, order[:, _KEPT : _KEPT + 1], 1)[:, 0]
            dropped[who] = np.maximum(dropped[who], rest)
        ceiling_of[who] = np.maximum(dropped[who], ceiling.max(axis=1))
        # A side of a sample is settled too where the other side is known to be better.
        reached = np.tile(best.reshape(2, -1).max(axis=0), 2)
        open_ones = (ceiling_of > reached + PRECISE / 4 * np.abs(reached))[who]
        if not open_ones.any():
            break
        kept = order[open_ones, :_KEPT]
        left, right = edges[..., :-1].reshape(len(who), -1), edges[..., 1:].reshape(len(who), -1)
        edges = _cut(
            np.take_along_axis(left[open_ones], kept, 1),
            np.take_along_axis(right[open_ones], kept, 1),
            _PARTS,
        )
        who = who[open_ones]
    return Moves(np.maximum(ceiling_of, best), loss, cost)


def _path(case: Case, x: np.ndarray, rows: np.ndarray, price: Wide) -> tuple[_Path, np.ndarray]:
    f, inverse = case.family, inverse_scale(case)
    if f.loss == "softmax":
        a = np.zeros_like(rows)
        a[:, 0] = 1
    else:
        w = split(case, x)[0][0]
        residual = f.loss in RESIDUAL
        a = np.tile(np.append(w, -1 if residual else 0), (len(rows), 1))
        if not residual:
            a *= rows[:, -1:]
    step = np.concatenate([a, -a]) * inverse**2
    scale = np.where(inverse > 0, 1 / np.where(inverse > 0, inverse, 1), 0)
    if f.norm != "euclidean":
        # All rows move along one line, on which lengths are Euclidean ones times a number.
        move = best_direction(case, np.append(w, -1 if residual else 0))
        size, plain = length(case, move), np.sqrt(((move * scale) ** 2).sum())
        rate = steepness(case, x)[0] / size if size > 0 else Wide(0)
        step, scale = np.concatenate([0 * a + move * rate, 0 * a - move * rate]), scale * size / (plain or 1)
    start = np.concatenate([rows, rows])
    room = np.full(step.shape, INF)
    if case.support is not None:
        low, high = (np.asarray(v, Wide) for v in case.support)
        room = np.where(step > 0, high - start, start - low)
    speed = np.abs(step)
    with np.errstate(divide="ignore", invalid="ignore"):
        end = np.where(speed > 0, room / speed, 0).max(axis=1, keepdims=True)
        if f.p == 2:
            # Beyond this a move costs more than the loss can rise.
            furthest = Wide(steepest_slope(case)) / price
            if f.loss == "softmax":
                furthest = steepness(case, x).max() / inverse[0] / price
            end = np.where(end > 0, np.minimum(end, furthest), 0)
    return _Path(start, np.sign(step), speed, room, scale), end


def _points(path: _Path, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(points (2 N, J, m), squared lengths of the moves) at positions s (2 N, J)."""
    moved = path.sign[:, None] * np.minimum(path.speed[:, None] * s[..., None], path.room[:, None])
    return path.start[:, None] + moved, ((moved * path.scale) ** 2).sum(axis=-1)


def _at_knots(case: Case, x: np.ndarray, path: _Path, nodes: np.ndarray) -> np.ndarray:
    """Positions on each piece where u meets a knot of the loss (the piece's end where it does not)."""
    if case.family.loss == "softmax" or not knots(case):
        return nodes[:, :0]
    w, b = split(case, x)
    points, _ = _points(path, nodes)
    u = (points[..., :-1] * w[0]).sum(axis=-1) + b[0]
    u = u - points[..., -1] if case.family.loss in RESIDUAL else u * points[..., -1]
    rise, length = np.diff(u, axis=1), np.diff(nodes, axis=1)
    found = []
    for knot in knots(case):
        share = np.where(rise != 0, (Wide(knot) - u[:, :-1]) / np.where(rise != 0, rise, 1), 0)
        found.append(nodes[:, :-1] + np.clip(share, 0, 1) * length)
    return np.concatenate(found, axis=1)


def _valued(
    case: Case, x: np.ndarray, path: _Path, s: np.ndarray, price: Wide
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(loss - price cost, loss, cost) at positions s (paths, J)."""
    points, square = _points(path, s)
    loss, cost = losses(case, x, points), square if case.family.p == 2 else np.sqrt(square)
    return loss - price * cost, loss, cost


def _cut(left: np.ndarray, right: np.ndarray, parts: int) -> np.ndarray:
    """Edges (paths, intervals, parts + 1) of the parts of intervals (paths, intervals)."""
    edges = left[..., None] + (right - left)[..., None] * (np.arange(parts + 1, dtype=Wide) / parts)
    edges[..., -1] = right
    return edges


def _interval_bounds(
    case: Case, x: np.ndarray, path: _Path, edges: np.ndarray, price: Wide
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(bound above of loss - price cost on each part, its values at all edges, losses and costs there)."""
    count = len(edges)
    flat = edges.reshape(count, -1)
    value, loss, cost = _valued(case, x, path, flat, price)
    shaped = [v.reshape(edges.shape) for v in (loss, cost)]
    (loss_l, loss_r), (cost_l, cost_r) = ((v[..., :-1], v[..., 1:]) for v in shaped)
    left, right = edges[..., :-1], edges[..., 1:]
    middle = ((left + right) / 2).reshape(count, -1)
    moving = path.speed[:, None] * middle[..., None] < path.room[:, None]
    rate = np.where(moving, (path.speed * path.scale)[:, None] ** 2, 0).sum(axis=-1).reshape(left.shape)
    if case.family.p == 2:
        slope_l, slope_r = 2 * rate * left, 2 * rate * right
    else:
        slope_l = np.where(cost_l > 0, rate * left / np.where(cost_l > 0, cost_l, 1), np.sqrt(rate))
        slope_r = np.where(cost_r > 0, rate * right / np.where(cost_r > 0, cost_r, 1), np.sqrt(rate))
    h = right - left
    bend = (slope_r - slope_l) * h
    # Where the tangents at both ends meet.
    theta = np.where(bend > 0, (cost_l - (cost_r - slope_r * h)) / np.where(bend > 0, bend, 1), 0)
    theta = np.clip(theta, 0, 1)
    tangent = np.minimum(cost_l + slope_l * h * theta, cost_r - slope_r * h * (1 - theta))
    between = loss_l + theta * (loss_r - loss_l) - price * tangent
    ends = np.maximum(loss_l - price * cost_l, loss_r - price * cost_r)
    return np.maximum(ends, between).reshape(count, -1), value, loss, cost
