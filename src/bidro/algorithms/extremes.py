"""Maxima over sets and projections on them, on the server: NumPy for mixtures, whose number may vary."""

from __future__ import annotations

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.problem import Mixtures
from bidro.sets import CappedSimplex, ConvexSet, Simplex, VectorSet

Numbers = NDArray[np.float64]


def linear_maximum(of: Mixtures | VectorSet, c: Numbers) -> float:
    """max of <c, v> over the set."""
    if not isinstance(of, Mixtures):
        return float(_linear_maximum(of, c))
    if isinstance(of, Simplex):
        return float(np.max(c))
    if isinstance(of, CappedSimplex):
        lower, room = np.asarray(of.lower), np.asarray(of.upper) - np.asarray(of.lower)
        return float(c @ (lower + _filled(room, np.argsort(-c, kind="stable"), 1 - lower.sum())))
    center = np.asarray(of.center)
    taken = _filled(center, np.argsort(c, kind="stable"), float(of.radius) / 2)
    return float(c @ (center - taken) + taken.sum() * np.max(c))


def project(on: Mixtures | VectorSet, v: Numbers) -> Numbers:
    """The nearest point of the set to v."""
    if not isinstance(on, Mixtures):
        return np.asarray(_project(on, v))
    if isinstance(on, Simplex):
        return _lowered(v, np.zeros(len(v)), np.ones(len(v)), 1.0)
    if isinstance(on, CappedSimplex):
        return _lowered(v, np.asarray(on.lower), np.asarray(on.upper), 1.0)
    center, half, zero = np.asarray(on.center), float(on.radius) / 2, np.zeros(len(v))
    free = _lowered(v, zero, zero + 1, 1.0)
    if np.abs(free - center).sum() <= 2 * half:
        return free
    # Weights that rise gain half the radius in all, and weights that fall lose as much.
    rise = _lowered(v - center, zero, zero + half, half)
    return center + rise - _lowered(center - v, zero, center, half)


def _filled(room: Numbers, order: NDArray[np.int64], total: float) -> Numbers:
    """`total` poured into slots of size `room`, each filled before the next in order."""
    before = np.cumsum(room[order]) - room[order]
    poured = np.empty(len(room))
    poured[order] = np.clip(total - before, 0.0, room[order])
    return poured


def _lowered(v: Numbers, lower: Numbers, upper: Numbers, total: float) -> Numbers:
    """clip(v - tau, lower, upper) for the level tau at which it sums to `total`."""
    # A second pass on values that are now near zero removes the rounding of a large level.
    near = v - v.max()
    first = near - _level(near, lower, upper, total)
    return np.clip(first - _level(first, lower, upper, total), lower, upper)


def _level(v: Numbers, lower: Numbers, upper: Numbers, total: float) -> float:
    """The tau with sum_i clip(v_i - tau, lower_i, upper_i) = total, exactly.

    The sum falls with tau, linearly between the breakpoints v - upper and v - lower; a search over them
    finds the interval, and arithmetic the level in it.
    """
    points = np.sort(np.concatenate([v - upper, v - lower]))
    low, high = 0, len(points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if np.clip(v - points[middle], lower, upper).sum() >= total:
            low = middle
        else:
            high = middle
    between = (points[low] + points[high]) / 2
    moves = (v - upper < between) & (between < v - lower)
    if not moves.any():
        return float(between)
    still = np.clip(v - between, lower, upper)[~moves].sum()
    return float((v[moves].sum() + still - total) / np.count_nonzero(moves))


@jax.jit
def _linear_maximum(of: ConvexSet, c: Array) -> Array:
    return of.linear_maximum(c)[0]


@jax.jit
def _project(on: ConvexSet, v: Array) -> Array:
    return on.project(v)
