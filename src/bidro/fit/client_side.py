"""What clients answer in a fit, over rows in memory: those of one client at a site, of all in one process.

Rows stand one client after the other, and every answer has a leading axis of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.ambiguity import WassersteinBall
from bidro.certify.intervals import (
    Fits,
    HeldOutFits,
    Spread,
    interval_obstacle,
    row_scores,
    tells_of_rows,
)
from bidro.certify.out_of_sample import distance_to_reference
from bidro.certify.rounding import QUANTISED
from bidro.certify.statements import CLIP, STATEMENTS, CertifiedModel, client_report
from bidro.core.arrays import Floats, means_of, split_by_sizes
from bidro.core.sets import Box
from bidro.core.splits import Draws
from bidro.data.federation import Federation
from bidro.data.splines import quantile_counts
from bidro.data.standardise import client_moments
from bidro.fit.questions import Assess, Assessment, HoldoutBounds, HoldoutQuery, Prepared
from bidro.losses import Loss, losses_of, mistakes_of, parts_of
from bidro.problem.problem import Problem
from bidro.problem.worst_case import mean_displacements, robust_risk
from bidro.selection.personal import personal_models as fit_personal_models
from bidro.selection.segments import without_smoothing

# How finely clients round the losses that they report.
ROUNDING = QUANTISED
# Training rows that a spread is fitted to, about.
MOST_FOR_SPREAD = 20_000


def prepared(
    rows: Floats,
    sizes: Sequence[int],
    holdout: Sequence[int],
    folds: ArrayLike,
    table: float = 0.0,
    people: NDArray[np.uint64] | None = None,
    holdout_people: NDArray[np.uint64] | None = None,
) -> Prepared:
    """Of training rows (N, k + 1) as they are in the table; sizes and holdout are by client (n,), and so are
    the numbers of folds that are answered (n, FOLDS).

    `people` and `holdout_people` say of which person each row in training and held out is, where these are
    named.
    """
    mean, deviation = client_moments(rows, sizes)
    return Prepared(
        np.asarray(sizes, float),
        np.asarray(holdout, float),
        draw_counts(sizes, people),
        draw_counts(holdout, holdout_people),
        np.asarray(folds, float),
        np.full(len(sizes), table),
        mean,
        deviation,
    )


def quantiles(rows: Floats, sizes: Sequence[int]) -> tuple[Floats, Floats]:
    """(values, counts), both (n, k, places): how training rows (N, k + 1) in standard units, `sizes` of each
    client, are distributed over the features: see `quantile_counts`."""
    parts = split_by_sizes(rows[:, :-1], sizes)
    values, counts = zip(*(quantile_counts(part) for part in parts), strict=True)
    return np.stack(values), np.stack(counts)


def personal_models(loss: Loss, rows: Floats, sizes: Sequence[int], message: Assess | HoldoutQuery) -> Floats:
    """(n, d) the model that each client uses, by what a message says of it: its own, trained on its rows, or
    the shared one where its freedom is 0. All clients with a personal model have the same freedoms."""
    x, freedom, around = message.x, message.freedom, np.asarray(message.common, float)
    around = around if around.size else np.asarray(x, float)
    shared, wanted = np.asarray(x, float), np.asarray(freedom, float).reshape(len(sizes), -1)
    used = np.tile(shared, (len(sizes), 1))
    adopts = np.any(wanted > 0, axis=1)
    if adopts.any():
        counts, common = np.asarray(sizes), wanted[adopts][0, :-1]
        some = rows if adopts.all() else rows[np.repeat(adopts, counts)]
        share = wanted[adopts, -1]
        used[adopts] = fit_personal_models(loss, some, counts[adopts], shared, common, share, around)
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
    errors = _errors(_curbed(problem.loss, losses, sizes), sizes, federation.people)
    mean, se = means_of(losses, sizes), ROUNDING.error(errors)
    personal_mean = means_of(_personal_losses(problem.loss, used, samples, sizes), sizes)
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
            for own in split_by_sizes(samples, sizes)
        ]
        distance = np.asarray(far)[:, None]
    moved, typical = np.zeros((n, k)), np.zeros((n, k))
    if problem.ambiguity_set.over_balls:
        shown = np.flatnonzero(np.broadcast_to(message.shown, n))
        found = mean_displacements(problem, x, [federation.names[i] for i in shown])
        moved[shown], typical[shown] = map(ROUNDING.moves, found)
    predicted, centre = _predicted(problem.loss, [x, np.asarray(message.pooled)], samples, sizes)
    return Assessment(mean, se, personal_mean, predicted, centre, robust, distance, moved, typical)


def bounds(
    names: Sequence[str],
    rows: Floats,
    sizes: Sequence[int],
    of: CertifiedModel,
    message: HoldoutQuery,
    used: Floats,
    people: NDArray[np.uint64] | None = None,
) -> HoldoutBounds:
    """Of held-out rows (M, k + 1) in the standard units of training, `sizes` of each client; `used` (n, d)
    are the models that the clients use. With `people` (M,), one that several rows are of is one draw.

    All mean losses count a row as at most what losses are clipped at, so that none of them less another is
    what is clipped of a few rows; those over the declared support count it whole. What is reported of them is
    rounded: see `rounding`."""
    labels = [None] * len(sizes) if people is None else split_by_sizes(people, sizes)
    personal = used if np.asarray(message.freedom).size else [None] * len(sizes)
    each = [
        _client_bounds(name, of, message, *parts)
        for name, *parts in zip(names, split_by_sizes(rows, sizes), personal, labels, strict=True)
    ]
    return HoldoutBounds(*(np.stack(parts) for parts in zip(*each, strict=True)))


def row_spread(federation: Federation, loss: Loss, used: Floats) -> Spread | None:
    """How far training rows lie from the models (n, d) that the clients use, from some where they are many;
    None where it is even, and for classes."""
    if not tells_of_rows(loss):
        return None
    rows, ends = federation.host_rows, np.cumsum([0, *federation.sizes])
    step = 1 + len(rows) // MOST_FOR_SPREAD
    some = [rows[a:b:step] for a, b in pairwise(ends)]
    errors = [row_scores(loss, x, part) for x, part in zip(used, some, strict=True)]
    return Spread.fitted(np.concatenate(some)[:, :-1], np.concatenate(errors))


def row_fits(
    federation: Federation,
    rows: Floats,
    sizes: Sequence[int],
    of: CertifiedModel,
    used: Floats,
    people: NDArray[np.uint64] | None,
    apart: Mapping[str, Floats],
) -> HeldOutFits | None:
    """Of held-out rows (M, k + 1) in the standard units of training, `sizes` of each client; `used` (n, d)
    are the models that the clients use, `apart` the rows of clients that training did not have. None for a
    loss that has no scores of rows."""
    if interval_obstacle(of.loss) is not None:
        return None
    names = federation.names
    parts = dict(zip(names, split_by_sizes(rows, sizes), strict=True))
    own = Fits.of(of.loss, parts, dict(zip(names, used, strict=True)))
    shared = Fits.of(of.loss, parts, dict.fromkeys(names, of.x))
    new = Fits.of(of.loss, apart, dict.fromkeys(apart, of.x)) if apart else None
    labels = None if people is None else dict(zip(names, split_by_sizes(people, sizes), strict=True))
    if of.loss.labels is not None:
        classes, counts = np.unique(federation.host_rows[:, -1], return_counts=True)
        most = classes[np.argmax(counts)]
        wrong = {name: mistakes_of(of.loss, x, parts[name]) for name, x in zip(names, used, strict=True)}
        guess = Fits(
            {name: (part[:, -1] != most).astype(float) for name, part in parts.items()}, own.features
        )
        return HeldOutFits(own, shared, guess, None, new, labels, wrong)
    spread = row_spread(federation, of.loss, used)
    middle = of.loss.predicted(np.asarray(of.loss.middle(federation.host_rows[:, -1])))
    guess = Fits({name: np.abs(part[:, -1] - middle) for name, part in parts.items()}, own.features)
    return HeldOutFits(own, shared, guess, spread, new, labels)


def _client_bounds(
    name: str,
    of: CertifiedModel,
    message: HoldoutQuery,
    rows: Floats,
    personal: Floats | None,
    people: NDArray[np.uint64] | None,
) -> HoldoutBounds:
    """The same of one client, `personal` (d,) being the model that it uses where clients have their own."""
    pooled, size = np.asarray(message.pooled), np.array([len(rows)])
    losses = of.losses(rows, personal, pooled if pooled.size else None)
    found, means = client_report(
        name, losses, of.limits, np.asarray(message.levels).tolist(), people=people, rounding=ROUNDING
    )
    models = losses.loss, losses.loss if personal is None else losses.personal, losses.pooled
    curbed = [_curbed(of.loss, np.minimum(one, of.seen), size) for one in models if one is not None]

    def error(values: Floats) -> float:
        return float(ROUNDING.error(_errors(values, size, people))[0])

    changes = [np.zeros(0)] * 2
    if len(curbed) > 2:
        changes = [np.array([means[k] - means[2], error(curbed[k] - curbed[2])]) for k in (1, 0)]
    bounds = [np.array([one.bound for one in found.get(part, ())]) for part in STATEMENTS]
    of_each = [found[part][0].mean if part in found else 0.0 for part in STATEMENTS]
    parts = [means[0], min(error(curbed[0]), means[0]), means[1], *changes, *bounds, np.array(of_each)]
    return HoldoutBounds(*parts)


def _predicted(
    loss: Loss, models: Sequence[Floats], rows: Floats, sizes: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """(mean squares (n, models) of the models' scores around their means, these means (n, models, scores));
    nothing where a model is empty."""
    if not all(x.size for x in models):
        return np.zeros((len(sizes), 0)), np.zeros((len(sizes), 0, 0))
    squares, centres = [], []
    for x in models:
        w, b = loss.split(x)  # type: ignore[attr-defined]
        scores = np.concatenate(
            [loss.design(rows[some])[:, :-1] @ np.atleast_2d(w).T for some in parts_of(loss, rows)]  # type: ignore[arg-type]
        ) + np.atleast_1d(b)
        # A common part of the scores of several classes says nothing.
        scores = scores - scores.mean(axis=1, keepdims=True) if scores.shape[1] > 1 else scores
        centre = means_of(scores, sizes)
        away = (scores - np.repeat(centre, sizes, axis=0)) ** 2
        squares.append(means_of(away, sizes).sum(axis=1))
        centres.append(centre)
    return np.stack(squares, axis=1), np.stack(centres, axis=1)


def _personal_losses(loss: Loss, models: Floats, rows: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(N,) each row under the model (n, d) of its own client."""
    parts = zip(models, split_by_sizes(rows, sizes), strict=True)
    return np.concatenate([losses_of(loss, x, own) for x, own in parts])


def error_by_person(losses: Floats, people: NDArray[Any]) -> float:
    """The standard error of the mean of losses (N,) where people are independent and their rows are not: that
    of a mean over clusters, which for people of one row each is the usual one; 0 for a single person."""
    _, of_row = np.unique(people, return_inverse=True)
    apart = np.bincount(of_row, losses - losses.mean())
    count = len(apart)
    return float(np.sqrt(apart @ apart * count / (count - 1)) / len(losses)) if count > 1 else 0.0


def draw_counts(sizes: Sequence[int], people: NDArray[np.uint64] | None) -> Floats:
    """(n,) how many people each client has, as many as rows where none are named."""
    if people is None:
        return np.asarray(sizes, float)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return Draws.of(owner, people).counts(len(sizes)).astype(float)


def _curbed(loss: Loss, losses: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Losses (N,) counted as at most `CLIP` times their client's mean: standard errors are made of these, as
    squares of losses would be all but one row's where it lies far out."""
    if not loss.nonnegative:
        return losses
    return np.minimum(losses, np.repeat(CLIP * means_of(losses, sizes), sizes))


def _errors(values: Floats, sizes: NDArray[np.int64], people: NDArray[np.uint64] | None) -> Floats:
    """(n,) the standard errors of the clients' means of values (N,), 0 for a single row or person."""
    if people is not None:
        parts = zip(split_by_sizes(values, sizes), split_by_sizes(people, sizes), strict=True)
        return np.array([error_by_person(*own) for own in parts])
    variances = means_of((values - np.repeat(means_of(values, sizes), sizes)) ** 2, sizes)
    return np.asarray(np.sqrt(variances / np.maximum(sizes - 1, 1)))
