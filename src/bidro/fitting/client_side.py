"""What clients answer in a fit, over rows in memory: those of one client at a site, of all in one process.

Rows stand one client after the other, and every answer has a leading axis of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from bidro.standard import client_moments

STATEMENTS = ("clipped", "held_out", "mistakes")


def prepared(
    rows: Floats, sizes: Sequence[int], holdout: Sequence[int], folds: Sequence[int], table: float = 0.0
) -> Prepared:
    """Of training rows (N, k + 1) in their own units; sizes, holdout and folds are by client (n,)."""
    mean, deviation = client_moments(rows, sizes)
    return Prepared(
        np.asarray(sizes, float),
        np.asarray(holdout, float),
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
    mean, se = _means(losses, sizes)
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
    names: Sequence[str], rows: Floats, sizes: Sequence[int], of: Assessed, message: Fixed
) -> HoldoutBounds:
    """Of rows kept out (M, k + 1) in the units of training, `sizes` of each client."""
    levels, counts = np.asarray(message.levels).tolist(), np.asarray(sizes)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    found = [holdout_bounds(name, of, own, levels) for name, own in zip(names, parts, strict=True)]
    mean, se = _means(losses_of(of.loss, of.x, rows), counts)
    each = {
        part: np.array([[bound.bound for bound in one[part]] for one in found])
        if part in found[0]
        else np.zeros((len(found), 0))
        for part in STATEMENTS
    }
    means = [[one[part][0].mean if part in one else 0.0 for part in STATEMENTS] for one in found]
    return HoldoutBounds(mean, se, **each, means=np.array(means))


def _means(losses: Floats, sizes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(the clients' mean losses (n,), their standard errors, 0 for a single row)."""
    first = np.cumsum(sizes) - sizes
    mean = np.add.reduceat(losses, first) / sizes
    squares = np.add.reduceat((losses - np.repeat(mean, sizes)) ** 2, first)
    return mean, np.sqrt(squares / np.maximum(sizes - 1, 1) / sizes)


def _largest(losses: Floats, sizes: NDArray[np.int64], fewest: int) -> Floats:
    """(n,) the mean of each client's largest losses."""
    if fewest == 1:
        return np.maximum.reduceat(losses, np.cumsum(sizes) - sizes)
    parts = np.split(losses, np.cumsum(sizes)[:-1])
    return np.array([np.sort(own)[-min(len(own), fewest) :].mean() for own in parts])
