"""What clients answer in a fit, over rows in memory: those of one client at a site, of all in one process.

Rows stand one client after the other, and every answer has a leading axis of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.algorithms import own_correction
from bidro.algorithms.own_correction import Shrinkage
from bidro.arrays import Floats
from bidro.client import WassersteinBall
from bidro.curves import spread_over
from bidro.fitting import coarse
from bidro.fitting.questions import Assess, Assessment, Fixed, HoldoutBounds, Prepared
from bidro.guarantees.heterogeneity import distance_to_reference
from bidro.guarantees.robust import mean_displacements, robust_risk
from bidro.guarantees.segments import without_smoothing
from bidro.guarantees.statements import CLIP, Assessed, holdout_bounds
from bidro.losses import Loss, losses_of, parts_of
from bidro.problem import Problem
from bidro.sets import Box
from bidro.splits import Units
from bidro.standard import client_moments

STATEMENTS = ("clipped", "held_out", "mistakes", "own", "own_mistakes")


def prepared(
    rows: Floats,
    sizes: Sequence[int],
    holdout: Sequence[int],
    folds: ArrayLike,
    table: float = 0.0,
    units: NDArray[np.uint64] | None = None,
    holdout_units: NDArray[np.uint64] | None = None,
) -> Prepared:
    """Of training rows (N, k + 1) as they are in the table; sizes and holdout are by client (n,), and so are
    the numbers of folds that are answered (n, FOLDS).

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


def spread(rows: Floats, sizes: Sequence[int]) -> tuple[Floats, Floats]:
    """(values, counts), both (n, k, places): how training rows (N, k + 1) in standard units, `sizes` of each
    client, are spread over the features: see `spread_over`."""
    parts = np.split(rows[:, :-1], np.cumsum(sizes)[:-1])
    values, counts = zip(*(spread_over(part) for part in parts), strict=True)
    return np.stack(values), np.stack(counts)


def own_models(loss: Loss, rows: Floats, sizes: Sequence[int], x: ArrayLike, freedoms: ArrayLike) -> Floats:
    """(n, d) the model that each client uses: its own around x, trained on its rows, or x itself where its
    freedom (n, 2) is 0. That of all clients that have some is the same."""
    shared, wanted = np.asarray(x, float), np.asarray(freedoms, float).reshape(len(sizes), -1)
    used = np.tile(shared, (len(sizes), 1))
    adopts = np.any(wanted > 0, axis=1)
    if adopts.any():
        counts, common = np.asarray(sizes), Shrinkage.of_freedom(wanted[adopts][0])
        some = rows if adopts.all() else rows[np.repeat(adopts, counts)]
        used[adopts] = own_correction.own_models(loss, some, counts[adopts], shared, common)
    return used


def assessment(problem: Problem, declared: Box | None, message: Assess, used: Floats) -> Assessment:
    """Of the rows of `problem`, which is as trained; explicit radii are around them on the declared support.
    `used` (n, d) are the models that the clients use."""
    # A site knows the loss as it is trained with.
    problem = without_smoothing(problem)
    federation, x = problem.federation, np.asarray(message.x)
    n, k, sizes = problem.n, federation.m - 1, np.asarray(federation.sizes)
    samples = np.asarray(federation.samples)
    losses = losses_of(problem.loss, x, samples)
    errors = _errors(_curbed(problem.loss, losses, sizes), sizes, federation.units)
    mean, se = means_of(losses, sizes), coarse.error(errors)
    own_mean = means_of(_own_losses(problem.loss, used, samples, sizes), sizes)
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
        found = mean_displacements(problem, x, [federation.names[i] for i in shown])
        moved[shown], typical[shown] = map(coarse.few_digits, found)
    predicted, centre = _predicted(problem.loss, [x, np.asarray(message.pooled)], samples, sizes)
    return Assessment(mean, se, own_mean, predicted, centre, robust, distance, moved, typical)


def bounds(
    names: Sequence[str],
    rows: Floats,
    sizes: Sequence[int],
    of: Assessed,
    message: Fixed,
    used: Floats,
    units: NDArray[np.uint64] | None = None,
) -> HoldoutBounds:
    """Of rows kept out (M, k + 1) in the standard units of training, `sizes` of each client; `used` (n, d)
    are the models that the clients use. With `units` (M,), one that several rows are of is one draw.

    All mean losses count a row as at most what losses are clipped at, so that none of them less another is
    what is clipped of a few rows; those over the declared support count it whole. What is told of them is
    coarse: see `coarse`."""
    levels, counts = np.asarray(message.levels).tolist(), np.asarray(sizes)
    ends, draws = np.cumsum(counts)[:-1], unit_counts(sizes, units)
    labels = [None] * len(counts) if units is None else np.split(units, ends)
    with_own = np.asarray(message.freedom).size > 0
    found = [
        holdout_bounds(name, of, part, levels, units=whose, own=x if with_own else None)
        for name, part, whose, x in zip(names, np.split(rows, ends), labels, used, strict=True)
    ]
    whole = losses_of(of.loss, of.x, rows)
    parts = [np.minimum(part, of.seen) for part in (whole, _own_losses(of.loss, used, rows, counts))]
    if np.asarray(message.pooled).size:
        parts.append(np.minimum(losses_of(of.loss, np.asarray(message.pooled), rows), of.seen))
    curbed = [_curbed(of.loss, part, counts) for part in parts]
    told = np.minimum(coarse.together(parts, counts, draws), of.seen)
    own_change = shared_change = np.zeros((len(names), 0))
    if len(parts) > 2:
        own_change, shared_change = (
            np.stack([told[k] - told[2], coarse.error(_errors(curbed[k] - curbed[2], counts, units))], axis=1)
            for k in (1, 0)
        )
    beyond = coarse.nearest(means_of(whole - parts[0], counts), coarse.steps(whole - parts[0], counts, draws))
    same = {"clipped": told[0], "held_out": told[0] + beyond, "own": told[1]}
    largest = {"clipped": parts[0], "held_out": whole, "own": parts[1]}
    each, means = {}, np.zeros((len(found), len(STATEMENTS)))
    for place, part in enumerate(STATEMENTS):
        each[part] = np.zeros((len(found), 0))
        if part not in found[0]:
            continue
        each[part] = np.array([[bound.bound for bound in one[part]] for one in found])
        means[:, place] = mean = np.array([one[part][0].mean for one in found])
        if part in same:
            step = coarse.steps(largest[part], counts, draws)
            most = np.asarray(of.largest if part == "held_out" else of.seen)
            # Units have other means than rows.
            means[:, place] = np.minimum(same[part] if units is None else coarse.nearest(mean, step), most)
            # Where the mean is told as more than it is, so is the bound.
            room = np.maximum(means[:, place] - mean, 0.0)[:, None]
            each[part] = np.minimum(coarse.upwards(each[part] + room, step[:, None]), most)
    se = np.minimum(coarse.error(_errors(curbed[0], counts, units)), told[0])
    return HoldoutBounds(told[0], se, told[1], own_change, shared_change, **each, means=means)


def _predicted(
    loss: Loss, models: Sequence[Floats], rows: Floats, sizes: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(mean squares (n, models) of the models' scores around their means, these means (n, models, scores));
    nothing where a model is empty."""
    if not all(x.size for x in models):
        return np.zeros((len(sizes), 0)), np.zeros((len(sizes), 0, 0))
    first, each = np.cumsum(sizes) - sizes, sizes[:, None]
    squares, centres = [], []
    for x in models:
        w, b = loss.split(x)  # type: ignore[attr-defined]
        scores = np.concatenate(
            [loss.design(rows[some])[:, :-1] @ np.atleast_2d(w).T for some in parts_of(loss, rows)]  # type: ignore[arg-type]
        ) + np.atleast_1d(b)
        # A common part of the scores of several classes says nothing.
        scores = scores - scores.mean(axis=1, keepdims=True) if scores.shape[1] > 1 else scores
        centre = np.add.reduceat(scores, first, axis=0) / each
        away = (scores - np.repeat(centre, sizes, axis=0)) ** 2
        squares.append((np.add.reduceat(away, first, axis=0) / each).sum(axis=1))
        centres.append(centre)
    return np.stack(squares, axis=1), np.stack(centres, axis=1)


def _own_losses(loss: Loss, models: Floats, rows: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(N,) each row under the model (n, d) of its own client."""
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    return np.concatenate([losses_of(loss, x, own) for x, own in zip(models, parts, strict=True)])


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


def means_of(values: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(n,) the clients' means of values (N,)."""
    return np.asarray(np.add.reduceat(values, np.cumsum(sizes) - sizes) / sizes)


def _curbed(loss: Loss, losses: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Losses (N,) counted as at most `CLIP` times their client's mean: standard errors are made of these, as
    squares of losses would be all but one row's where it lies far out."""
    if not loss.nonnegative:
        return losses
    return np.minimum(losses, np.repeat(CLIP * means_of(losses, sizes), sizes))


def _errors(values: Floats, sizes: NDArray[np.int64], units: NDArray[np.uint64] | None) -> Floats:
    """(n,) the standard errors of the clients' means of values (N,), 0 for a single row or unit."""
    first = np.cumsum(sizes) - sizes
    if units is not None:
        parts = [np.split(part, first[1:]) for part in (values, units)]
        return np.array([error_by_unit(*own) for own in zip(*parts, strict=True)])
    squares = np.add.reduceat((values - np.repeat(means_of(values, sizes), sizes)) ** 2, first)
    return np.asarray(np.sqrt(squares / np.maximum(sizes - 1, 1) / sizes))
