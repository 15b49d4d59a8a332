"""Distributions in a client's ball that are bad for curves: the other end of a risk that is an upper bound.

With curves the risk over a ball is bounded by what the steepest slope of every feature would earn everywhere.
Here rows are moved, in the space of their features, to where they lose more. At a price lambda a row gains

    L(u) - lambda ||S delta||^2,   u = sum_j f_j(v_j + delta_j) + b - y   (or y times the score),

and since L is convex, L(u) is at least its tangent at any u: with the tangent in its place every feature
moves by itself, to the best of the best places of its segments, and doing so again never loses. The price is
that at which the moves spend the budget. For p = 1 on an unbounded support a little mass may move far out
instead, along the outermost segments. What is found is in the ball, so its expected loss is at most the risk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.curves import Basis
from bidro.losses import LinearLoss, Softmax, losses_of
from bidro.problem import Problem
from bidro.sets import Box, WholeSpace

Atoms = tuple[Floats, Floats, NDArray[np.int64]]

_STEPS, _HALVINGS = 12, 45
# Prices are looked for between these.
_CHEAPEST, _DEAREST = 1e-9, 1e9
# Of the mass of one row, so much moves far out.
_FAR_SHARE = 1e-6


def curved_atoms(problem: Problem, x: Floats, rows: Floats, eps: float) -> Atoms:
    """(points (atoms, m), masses, origins) of a distribution within eps of the rows (N, m), in W_p."""
    found = [(rows, np.full(len(rows), 1 / len(rows)), np.arange(len(rows)))]
    if isinstance(problem.loss, LinearLoss):
        found.append(_near(problem, problem.loss, x, rows, eps))
    if problem.transport.p == 1 and isinstance(problem.federation.support, WholeSpace):
        found.append(_far(problem, x, rows, eps))
    expected = [float(mass @ losses_of(problem.loss, x, points)) for points, mass, _ in found]
    return found[int(np.argmax(expected))]


def _near(problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, eps: float) -> Atoms:
    """The rows moved as far as one price allows, and where moves jump there, a share of each row's mass as if
    the price were lower, so that the budget is spent."""
    p = problem.transport.p

    def moved(price: float) -> tuple[Floats, float]:
        points = _moved(problem, loss, x, rows, price)
        return points, float(problem.transport.row_costs(rows, points).mean())

    budget, low, high = eps**p, _CHEAPEST, _DEAREST
    (dear, most), (cheap, least) = moved(low), (rows, 0.0)
    for _ in range(_HALVINGS):
        price = math.sqrt(low * high)
        points, cost = moved(price)
        if cost <= budget:
            (cheap, least), high = (points, cost), price
        else:
            (dear, most), low = (points, cost), price
    share = 1.0 if most <= budget else (budget - least) / (most - least)
    parts = [(points, mass) for points, mass in ((cheap, 1 - share), (dear, share)) if mass > 0]
    return (
        np.concatenate([points for points, _ in parts]),
        np.concatenate([np.full(len(rows), mass / len(rows)) for _, mass in parts]),
        np.tile(np.arange(len(rows)), len(parts)),
    )


def _moved(problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, price: float) -> Floats:
    """(N, m) the rows at the best places found at a price of the cost.

    A cost of order 1 is at most c / 2 + ||S delta||^2 / (2 c) for any c, and equal to it at the size of the
    move: moves are found for squares with the sizes of those before.
    """
    inverse, p = np.asarray(problem.transport.inverse_scale), problem.transport.p
    movable = inverse > 0
    start = np.asarray(loss.arguments(x, rows))  # type: ignore[arg-type]
    best, value = rows, np.asarray(loss.scalar.value(start))
    reach, none = float(np.std(start)) + 1e-3, np.zeros(())
    for side in (1.0, -1.0):
        u, of_square = start + side * reach, np.full(len(rows), price)
        for _ in range(_STEPS):
            slope = np.asarray(loss.scalar.tangent(u, none).slope)
            slope = slope if loss.labels is None else rows[:, -1] * slope
            points = _each_feature(problem, loss, x, rows, slope, of_square)
            u = np.asarray(loss.arguments(x, points))  # type: ignore[arg-type]
            size = np.linalg.norm((points - rows)[:, movable] / inverse[movable], axis=1)
            gained = np.asarray(loss.scalar.value(u)) - price * size**p
            better = gained > value
            best, value = np.where(better[:, None], points, best), np.where(better, gained, value)
            if p == 1:
                of_square = price / (2 * np.maximum(size, 1e-9))
    return best


def _each_feature(
    problem: Problem, loss: LinearLoss, x: Floats, rows: Floats, slope: Floats, prices: Floats
) -> Floats:
    """(N, m) where slope f_j(v) - price (S_j (v - v_j))^2 is largest, feature by feature, on the support;
    slopes and prices are the rows' own (N,)."""
    inverse, price = np.asarray(problem.transport.inverse_scale), prices[:, None]
    basis, support = loss.basis, problem.federation.support
    assert basis is not None
    w = np.asarray(loss.split(x)[0])  # type: ignore[arg-type]
    low, high = (np.broadcast_to(end, basis.columns) for end in basis.ends)
    if isinstance(support, Box):
        sides = [np.asarray(end)[:-1][basis.feature] for end in (support.lower, support.upper)]
        low, high = np.clip(low, *sides), np.clip(high, *sides)
    here = rows[:, :-1][:, basis.feature]
    moves = inverse[:-1][basis.feature]
    give = moves**2 / (2 * price)
    place = np.clip(here + slope[:, None] * w * give, low, high)
    place = np.where(moves > 0, place, here)
    still = np.where(moves > 0, moves, 1.0)
    value = slope[:, None] * (intercepts(basis, w) + w * place) - price * ((place - here) / still) ** 2
    # A row stays on the curve of its own level.
    value = np.where(basis.on(rows[:, :-1]), value, -np.inf)
    points = rows.copy()
    for j in range(basis.features):
        own = np.flatnonzero(basis.feature == j)
        if inverse[j] > 0:
            points[:, j] = np.take_along_axis(place[:, own], value[:, own].argmax(axis=1)[:, None], axis=1)[
                :, 0
            ]
    if loss.labels is None and inverse[-1] > 0:
        points[:, -1] -= slope * inverse[-1] ** 2 / (2 * prices)
        if isinstance(support, Box):
            points[:, -1] = np.clip(points[:, -1], support.lower[-1], support.upper[-1])
    return points


def intercepts(basis: Basis, slopes: Floats) -> Floats:
    """(columns,) c with f_j(v) = c + slope v on each segment, f_j(0) = 0."""
    found = np.zeros(basis.columns)
    starts = np.cumsum(basis.segments) - basis.segments
    for start, own in zip(starts, basis.knots, strict=True):
        some = slopes[start : start + len(own) + 1]
        rises = np.concatenate([[0.0], np.cumsum((some[:-1] - some[1:]) * np.array(own))])
        found[start : start + len(own) + 1] = rises - rises[np.searchsorted(np.array(own), 0.0)]
    return found


def _far(problem: Problem, x: Floats, rows: Floats, eps: float) -> Atoms:
    """A little mass of one row, moved so far for all of the budget that only the outermost segments count."""
    along, slope = _outward(problem, x, rows)
    k = int(np.argmax(slope))
    part = _FAR_SHARE / len(rows)
    masses = np.append(np.full(len(rows), 1 / len(rows)), part)
    masses[k] -= part
    points = np.vstack([rows, rows[k] + eps / part * along[k]])
    return points, masses, np.append(np.arange(len(rows)), k)


def _outward(problem: Problem, x: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """(directions (N, m) of length 1 in the scaled norm in which each row loses most far out, that slope)."""
    loss, inverse = problem.loss, np.asarray(problem.transport.inverse_scale)
    assert isinstance(loss, LinearLoss | Softmax)
    basis = loss.basis
    assert basis is not None
    w = np.asarray(loss.split(x)[0])  # type: ignore[arg-type]
    last = np.cumsum(basis.segments) - 1
    first = last - basis.segments + 1
    at = basis.curves_of(rows[:, :-1])  # (N, k)

    def steepest(own: Any, slopes: Floats, target: float) -> tuple[Floats, Floats]:
        """Of what rises with a score of these slopes, and with the target by `target`, for some of the rows:
        (directions, slopes)."""
        right, left = np.maximum(slopes[last[at[own]]], 0.0), np.maximum(-slopes[first[at[own]]], 0.0)
        outward = np.where(right >= left, right, -left)
        direction = np.column_stack([outward, np.full(len(outward), target)]) * inverse
        size = np.linalg.norm(direction, axis=1)
        return direction * inverse / np.where(size > 0, size, 1.0)[:, None], size

    along, slope = np.zeros(rows.shape), np.zeros(len(rows))

    def take(own: Any, direction: Floats, size: Floats) -> None:
        better = size > slope[own]
        slope[own] = np.where(better, size, slope[own])
        along[own] = np.where(better[:, None], direction, along[own])

    if isinstance(loss, Softmax):
        for y in range(loss.classes):
            own = np.flatnonzero(rows[:, -1] == y)
            for k in range(loss.classes):
                if k != y:
                    take(own, *steepest(own, w[k] - w[y], 0.0))
        return along, slope
    moves = -1.0 if loss.labels is None else 0.0
    for label in (1.0,) if loss.labels is None else loss.labels:
        own = np.arange(len(rows)) if loss.labels is None else np.flatnonzero(rows[:, -1] == label)
        for sign, rise in ((1.0, loss.scalar.right_slope), (-1.0, loss.scalar.left_slope)):
            direction, size = steepest(own, sign * label * w, sign * moves)
            take(own, direction, rise * size)
    return along, slope
