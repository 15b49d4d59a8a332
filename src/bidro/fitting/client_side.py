"""What clients answer in a fit, over rows in memory: those of one client at a site, of all in one process.

Rows stand one client after the other, and every answer has a leading axis of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.client import WassersteinBall
from bidro.fitting.questions import Assess, Assessment, Fixed, HoldoutBounds, Prepared
from bidro.guarantees.heterogeneity import distance_to_reference
from bidro.guarantees.robust import mean_displacements, robust_risk
from bidro.guarantees.statements import Assessed, holdout_bounds
from bidro.losses import losses_of
from bidro.problem import Problem
from bidro.sets import Box
from bidro.splits import Units
from bidro.standard import client_moments

STATEMENTS = ("clipped", "held_out", "mistakes")


def prepared(
    rows: Floats,
    sizes: Sequence[int],
    holdout: Sequence[int],
    folds: Sequence[int],
    table: float = 0.0,
    units: NDArray[np.uint64] | None = None,
    holdout_units: NDArray[np.uint64] | None = None,
) -> Prepared:
    """Of training rows (N, k + 1) as they are in the table; sizes, holdout and folds are by client (n,).

    `units` and `holdout_units` say of which unit each row in training and kept out is, where these are named.
    """
    mean, deviation = client_moments(rows, sizes)
    return Prepared(
        np.asarray(sizes, float),
        np.asarray(holdout, float),
        unit_counts(sizes, units),
        unit_counts(holdout, holdout_units),
        np.asarray(folds, float),
        np.full(len(sizes), table),
        mean,
        deviation,
    )


def assessment(problem: Problem, declared: Box | None, message: Assess, fewest_largest: int) -> Assessment:
    """Of the rows of `problem`, which is as trained; explicit radii are around them on the declared support.

    Of the largest losses, the mean of at least `fewest_largest` is told (of all, where there are fewer).
    """
    federation, x = problem.federation, np.asarray(message.x)
    n, k, sizes = problem.n, federation.m - 1, np.asarray(federation.sizes)
    samples = np.asarray(federation.samples)
    losses = losses_of(problem.loss, x, samples)
    mean, se = _means(losses, sizes, federation.units)
    radii = np.asarray(message.radii).reshape(n, -1)
    robust = np.zeros((n, radii.shape[1]))
    for level in range(radii.shape[1]):
        assert declared is not None
        balls = replace(
            problem,
            federation=replace(federation, support=declared),
            ambiguity=WassersteinBall(radii[:, level]),
        )
        robust[:, level] = np.asarray(robust_risk(balls, x, curvature=False).value)
    distance = np.zeros((n, 0))
    if len(message.reference):
        far = [
            distance_to_reference(own, message.reference, problem.transport)
            for own in np.split(samples, np.cumsum(sizes)[:-1])
        ]
        distance = np.asarray(far)[:, None]
    moved, typical = np.zeros((n, k)), np.zeros((n, k))
    if problem.eps is not None:
        shown = np.flatnonzero(np.broadcast_to(message.shown, n))
        moved[shown], typical[shown] = mean_displacements(problem, x, [federation.names[i] for i in shown])
    return Assessment(mean, se, _largest(losses, sizes, fewest_largest), robust, distance, moved, typical)


def bounds(
    names: Sequence[str],
    rows: Floats,
    sizes: Sequence[int],
    of: Assessed,
    message: Fixed,
    units: NDArray[np.uint64] | None = None,
) -> HoldoutBounds:
    """Of rows kept out (M, k + 1) in the standard units of training, `sizes` of each client; with `units`
    (M,), one that several rows are of is one draw."""
    levels, counts = np.asarray(message.levels).tolist(), np.asarray(sizes)
    ends = np.cumsum(counts)[:-1]
    labels = [None] * len(counts) if units is None else np.split(units, ends)
    found = [
        holdout_bounds(name, of, own, levels, units=whose)
        for name, own, whose in zip(names, np.split(rows, ends), labels, strict=True)
    ]
    mean, se = _means(losses_of(of.loss, of.x, rows), counts, units)
    each = {
        part: np.array([[bound.bound for bound in one[part]] for one in found])
        if part in found[0]
        else np.zeros((len(found), 0))
        for part in STATEMENTS
    }
    means = [[one[part][0].mean if part in one else 0.0 for part in STATEMENTS] for one in found]
    return HoldoutBounds(mean, se, **each, means=np.array(means))


def error_by_unit(losses: Floats, units: NDArray[Any]) -> float:
    """The standard error of the mean of losses (N,) where units are independent and their rows are not: that
    of a mean over clusters, which for units of one row each is the usual one; 0 for a single unit."""
    _, of_row = np.unique(units, return_inverse=True)
    apart = np.bincount(of_row, losses - losses.mean())
    count = len(apart)
    return float(np.sqrt(apart @ apart * count / (count - 1)) / len(losses)) if count > 1 else 0.0


def unit_counts(sizes: Sequence[int], units: NDArray[np.uint64] | None) -> Floats:
    """(n,) how many units each client has, as many as rows where none are named."""
    if units is None:
        return np.asarray(sizes, float)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return Units.of(owner, units).counts(len(sizes)).astype(float)


def _means(
    losses: Floats, sizes: NDArray[np.int64], units: NDArray[np.uint64] | None
) -> tuple[Floats, Floats]:
    """(the clients' mean losses (n,), their standard errors, 0 for a single row or unit)."""
    first = np.cumsum(sizes) - sizes
    mean = np.add.reduceat(losses, first) / sizes
    if units is not None:
        parts = [np.split(part, first[1:]) for part in (losses, units)]
        return mean, np.array([error_by_unit(*own) for own in zip(*parts, strict=True)])
    squares = np.add.reduceat((losses - np.repeat(mean, sizes)) ** 2, first)
    return mean, np.sqrt(squares / np.maximum(sizes - 1, 1) / sizes)


def _largest(losses: Floats, sizes: NDArray[np.int64], fewest: int) -> Floats:
    """(n,) the mean of each client's largest losses."""
    if fewest == 1:
        return np.maximum.reduceat(losses, np.cumsum(sizes) - sizes)
    parts = np.split(losses, np.cumsum(sizes)[:-1])
    return np.array([np.sort(own)[-min(len(own), fewest) :].mean() for own in parts])
