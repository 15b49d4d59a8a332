"""Each client's personal version of a shared model, shrunk towards it.

Client i's personal model adds u_i to the slope of every feature, and to the offset: of curves all segments
become as much steeper. u_i minimises its sum of losses plus a pull back to the shared model x,

    sum_k l(x + u, xi_i^k) + 1/2 sum_j u_j^2 / f_j,

where the freedoms f_j = tau D_j / phi are common to all clients: D the variance components of the
coefficients and phi the dispersion of the rows (`components`), tau a scale that cross-validation chooses. Of
squared loss x is here what clients have in common (`components.common_change`), which is not the shared model
that they are trained with together.
Squared loss needs nothing but second moments. Other losses are minimised by accelerated steps of a quadratic
majorant with curvature c (Boehning and Lindsay 1988; Nesterov 1983, restarted as by O'Donoghue and Candes
2015), kinks smoothed, all scales at once, for stacks of clients of like sizes: plain NumPy, nothing is
compiled.

`PersonalExpansions` is the round that components are estimated from: risks to second order around the
clients' most probable models. `PersonalCorrections` is the round by which the scale is chosen: how well each
client would do with each, on rows that neither its own nor the shared model was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import pytree
from bidro.core.sets import Box
from bidro.federated.algorithm import BaseAlgorithm, HostData, RowsBehind, Snapshot
from bidro.losses import LinearScores, Loss, Squared
from bidro.problem.problem import Problem
from bidro.risk.moments import Moments, TrainingMoments, left_out_sums, of_clients, of_folds
from bidro.selection.components import Expansion, Sums, changes
from bidro.selection.fold_queries import FoldQuery

if TYPE_CHECKING:
    from jax import Array

Numbers = NDArray[np.float64]

# The scales tau of the components that are tried; the first changes nothing.
SCALES = (0.0, 1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 16.0, 64.0)
# Numbers that are handled together, so that no second copy of the table is made.
_STACK_NUMBERS = 1 << 20
# And of second moments.
_MOMENTS_TOGETHER = 1 << 20
# Kinks are smoothed over this share of the deviation of the client's own residuals (of 1 for margins).
_SMOOTHING = 0.1
# Steps in cross-validation, and for a model that is kept; they end earlier where they have become small.
_TRIAL_STEPS, _MOST_STEPS = 15, 1000
_LEAST_CHANGE = 1e-10
_NEWTON_STEPS = 50


def has_personal_models(loss: Loss) -> bool:
    """Whether corrections are known for this loss: linear scores, or one a class."""
    return isinstance(loss, LinearScores)


def coefficients(loss: Loss, m: int) -> int:
    """q: how many coefficients a personal model changes in each score: a slope a feature, and the offset."""
    return m - 1 + int(loss.intercept)  # type: ignore[attr-defined]


def held_slopes(problem: Problem) -> NDArray[np.bool_]:
    """(m - 1,) the features whose slopes X leaves no choice of."""
    features, loss, models = problem.federation.m - 1, problem.loss, problem.models
    if not isinstance(loss, LinearScores) or loss.scores > 1 or not isinstance(models, Box):
        return np.zeros(features, bool)
    same = np.asarray(models.lower) == np.asarray(models.upper)
    of_slope = np.arange(features) if loss.basis is None else loss.basis.feature
    found = np.zeros(features, bool)
    found[of_slope[same[: len(of_slope)]]] = True
    return found


def lifted(loss: LinearScores, m: int, changes: Numbers) -> Numbers:
    """(..., d) what changes (..., K, q) of the coefficients add to a model."""
    layout, feature = loss.layout(m), np.arange(m - 1)
    if loss.basis is not None:
        feature = loss.basis.feature
        # What pairs add is common to all clients.
        layout = np.delete(layout, np.arange(loss.basis.of_curves, loss.basis.columns), axis=1)
    columns = np.append(feature, [m - 1] * int(loss.intercept)).astype(np.int64)
    found = np.zeros((*changes.shape[:-2], loss.dimension(m)))
    found[..., layout] = changes[..., columns]
    return found


class Broadcast(NamedTuple):
    x: Numbers | Array  # (folds, d) the shared model of every fold
    freedom: Numbers | Array  # (folds, q) of its coefficients, at scale 1


class Reply(NamedTuple):
    """Mean losses of a client under its personal model, by the scales of `SCALES`."""

    left_out: Numbers | Array  # (scales,) each row under the models that were not trained on it
    error: Numbers | Array  # (scales,) over the folds, of how far that is above the first
    trained: Numbers | Array  # (scales,) on the rows that models were trained on, mean over the folds


class Losses(NamedTuple):
    """The replies of all clients."""

    left_out: Numbers  # (n, scales)
    error: Numbers  # (n, scales)
    trained: Numbers  # (n, scales)


@pytree
class PersonalCorrections(BaseAlgorithm):
    """One round; its state is the `Broadcast` before it, and `Losses` after it. It needs all clients: until
    then the round is repeated."""

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    rows_behind: ClassVar[RowsBehind] = "folds"
    second_order: ClassVar[bool] = False

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> Numbers:
        raise BidroError("PersonalCorrections corrects models: its first state is those of the folds.")

    def broadcast(self, state: Broadcast) -> Broadcast:
        return state

    def client_batch_numpy(self, broadcast: Broadcast, rows: HostData) -> Reply:
        assert rows.fold_ids is not None
        models, freedom = np.asarray(broadcast.x), np.asarray(broadcast.freedom)
        if isinstance(rows.loss, Squared):
            trained = training_moments(rows.loss, rows.samples, rows.sizes, rows.fold_ids, rows.folds)
            return losses_of_squares(rows.loss, trained, models, models, freedom)
        assert isinstance(rows.loss, LinearScores)
        n, count = len(rows.sizes), len(SCALES)
        sums, held, inside = np.zeros((n, rows.folds, count)), np.zeros((n, rows.folds)), np.zeros((n, count))
        for stack in _stacks(rows.samples, rows.sizes):
            fold_ids, scored = rows.fold_ids[stack.at], _Scored(rows.loss, stack.rows)
            for fold, x in enumerate(models):
                kept = stack.used & (fold_ids != fold)
                # As many steps for everybody, so that a client alone finds the same.
                found = _minimised(scored, kept, x, _scaled(freedom[fold]), _TRIAL_STEPS, 0.0)
                losses = scored.losses(scored.base(x), found)
                out = stack.used & (fold_ids == fold)
                sums[stack.clients, fold] = np.einsum("gh,ghp->gp", out, losses)
                held[stack.clients, fold] = out.sum(axis=1)
                mean = np.einsum("gh,ghp->gp", kept, losses) / kept.sum(axis=1)[:, None]
                inside[stack.clients] += mean / len(models)
        return Reply(*_over_folds(sums, held), inside)

    def server(self, state: Any, replies: Reply, replied: Array) -> Any:
        if not np.all(np.asarray(replied)):
            return state
        return Losses(*(np.asarray(part, float) for part in replies))

    def snapshot(self, state: Broadcast) -> Snapshot:
        """Nothing is trained that is kept: the first of the shared models."""
        return Snapshot(state.x[0], state.x[0], np.zeros(0))


class ExpansionsBroadcast(NamedTuple):
    x: Numbers | Array  # (folds + 1, d) the shared model of every fold, and last of all rows
    freedom: Numbers | Array  # (folds + 1, q) of the personal models that risks are expanded around
    columns: NDArray[np.int64] | Array  # (folds + 1, s) between which curvature is wanted; s = 0 for none


class ExpansionsReply(NamedTuple):
    """Of one client, over the training rows of every fold and over all rows; see `Expansion`."""

    curvature: Numbers | Array  # (folds + 1, K, s, s)
    diagonal: Numbers | Array  # (folds + 1, K, q) of the curvature in all columns
    gradient: Numbers | Array  # (folds + 1, K, q) minus the pull
    squares: Numbers | Array  # (folds + 1, K)
    bend: Numbers | Array  # (folds + 1, K)
    rows: Numbers | Array  # (folds + 1,)


@pytree
class PersonalExpansions(FoldQuery):
    """Sums of losses to second order around the clients' most probable models, as functions of how these
    differ from the shared model; of several scores, of each alone."""

    broadcast_type: ClassVar[type] = ExpansionsBroadcast
    reply_type: ClassVar[type] = ExpansionsReply
    second_order: ClassVar[bool] = True

    def client_batch_numpy(self, broadcast: ExpansionsBroadcast, rows: HostData) -> ExpansionsReply:
        assert rows.fold_ids is not None
        assert isinstance(rows.loss, LinearScores)
        models, freedom = np.asarray(broadcast.x), np.asarray(broadcast.freedom)
        columns = np.asarray(broadcast.columns)
        n, K, q = len(rows.sizes), rows.loss.scores, freedom.shape[1]
        s = columns.shape[1]
        shapes = ((K, s, s), (K, q), (K, q), (K,), (K,), ())
        found = ExpansionsReply(*(np.zeros((n, len(models), *shape)) for shape in shapes))
        for stack in _stacks(rows.samples, rows.sizes):
            fold_ids, scored = rows.fold_ids[stack.at], _Scored(rows.loss, stack.rows)
            for fold, x in enumerate(models):
                kept = stack.used & (fold_ids != fold)
                added = _minimised(scored, kept, x, freedom[fold][None], _TRIAL_STEPS, 0.0)
                for part, own in zip(found, scored.expanded(x, added, kept, columns[fold]), strict=True):
                    np.asarray(part)[stack.clients, fold] = own
        return found


def expansions(
    reply: ExpansionsReply, fold: int, columns: NDArray[np.int64], exact: bool = False
) -> Expansion:
    """Of all clients' replies, for one fold; every score is as a client of its own. `exact` as there."""
    n, _, K, q = np.shape(reply.gradient)
    s = len(columns)
    pull = -np.asarray(reply.gradient)[:, fold].reshape(n * K, q)
    return Expansion(
        np.asarray(reply.curvature)[:, fold].reshape(n * K, s, s),
        pull[:, columns],
        np.asarray(reply.squares)[:, fold].ravel(),
        np.asarray(reply.bend)[:, fold].ravel(),
        np.repeat(np.asarray(reply.rows, float)[:, fold], K),
        exact,
    )


def training_moments(
    loss: Squared,
    samples: Numbers,
    sizes: NDArray[np.int64],
    fold_ids: NDArray[np.int64],
    folds: int,
) -> Iterator[TrainingMoments]:
    """A few clients at a time: second moments of all may be larger than the table."""
    for clients, some in few_clients(sizes, folds * loss.columns(samples.shape[1]) ** 2):
        yield of_folds(samples[some], sizes[clients], fold_ids[some], folds, loss)


def losses_of_squares(
    loss: Squared,
    parts: Iterable[TrainingMoments],
    models: Numbers,
    common: Numbers,
    freedom: Numbers,
) -> Reply:
    """What clients with these moments would reply, of squared loss: the first scale is of the models
    (folds, d), all others are around what clients have in common (folds, d)."""
    found = [_losses_of_squares(loss, part, models, common, freedom) for part in parts]
    return Reply(*(np.concatenate(part) for part in zip(*found, strict=True)))


def _losses_of_squares(
    loss: Squared, trained: TrainingMoments, models: Numbers, common: Numbers, freedom: Numbers
) -> Reply:
    left_out = left_out_sums(trained)
    n, count = len(trained.rows), len(SCALES)
    sums, inside = np.zeros((n, len(models), count)), np.zeros((n, count))
    for fold, x in enumerate(common):
        own = Moments(trained.mean[:, fold], trained.around[:, fold])
        rows = trained.rows[:, fold].astype(float)
        found = _least_squares(loss, own, rows, x, _scaled(freedom[fold]))
        found[:, 0] = models[fold]
        sums[:, fold] = np.maximum(left_out.squares(fold, found), 0.0)
        inside += np.maximum(_mean_squares(own, found), 0.0) / len(models)
    return Reply(*_over_folds(sums, left_out.rows), inside)


def expansion_of_squares(loss: Squared, moments: Moments, rows: Numbers, x: Numbers) -> Expansion:
    """That of squared loss, around the shared model x (d,), from the moments of so many rows (n,)."""
    features = moments.mean.shape[1] - 1
    v = np.append(x[:features], -1.0)
    bent = moments.around @ v
    residual = moments.mean @ v + x[features:].sum()
    starts = np.arange(features) if loss.basis is None else _starts(loss.basis.feature)
    own = features if loss.basis is None else loss.basis.of_curves
    mean = np.add.reduceat(moments.mean[:, :own], starts, axis=1) if own else moments.mean[:, :0]
    slopes = np.add.reduceat(bent[:, :own], starts, axis=1) + residual[:, None] * mean
    around = moments.around[:, :own, :own]
    if len(starts) < own:
        around = np.add.reduceat(np.add.reduceat(around, starts, axis=1), starts, axis=2)
    curvature = around + mean[:, :, None] * mean[:, None, :]
    if loss.intercept:
        curvature = np.block([[curvature, mean[:, :, None]], [mean[:, None, :], np.ones((len(mean), 1, 1))]])
        slopes = np.concatenate([slopes, residual[:, None]], axis=1)
    squares = np.maximum(bent @ v, 0.0) + residual**2
    twice = 2 * rows
    return Expansion(
        twice[:, None, None] * curvature, -twice[:, None] * slopes, 2 * twice * squares, twice, rows, True
    )


def sums_of_squares(
    loss: Squared, parts: Iterable[tuple[Moments, Numbers]], x: Numbers
) -> tuple[Expansion, Sums]:
    """Those of squared loss around the shared model x (d,), from the moments of rows, a few clients after the
    others, and how many rows (clients,) these are."""
    told: list[Expansion] = []
    each: list[tuple[Numbers, Numbers]] = []
    d, curvature, count = len(x), np.zeros((len(x), len(x))), 0.0
    for moments, rows in parts:
        k = moments.mean.shape[1] - 1
        v = np.append(x[:k], -1.0)
        bent, residual = np.zeros((len(rows), d)), moments.mean @ v + x[k:].sum()
        bent[:, :k] = (moments.around @ v)[:, :k]
        # Of every number of the model its column; the intercept's is 1.
        mean, around = np.ones((len(rows), d)), np.zeros((len(rows), d, d))
        mean[:, :k], around[:, :k, :k] = moments.mean[:, :k], moments.around[:, :k, :k]
        own = expansion_of_squares(loss, moments, rows, x)
        q = own.pull.shape[1]
        onto = lifted(loss, q + 1 - int(loss.intercept), np.eye(q)[:, None]).T
        twice = 2 * rows[:, None]
        cross = around @ onto + mean[..., None] * (mean @ onto)[:, None]
        curvature += np.einsum("n,nij->ij", twice[:, 0], around) + (twice * mean).T @ mean
        told.append(own)
        each.append((twice[..., None] * cross, -twice * (bent + residual[:, None] * mean)))
        count += float(rows.sum())
    held = np.zeros((d, d)) if loss.penalty is None else 2 * count * loss.penalty
    A, r, squares, bend, sizes = (np.concatenate(part) for part in zip(*(t[:-1] for t in told), strict=True))
    whole = Expansion(A, r, squares, bend, sizes, True)
    cross, pull = (np.concatenate(part) for part in zip(*each, strict=True))
    return whole, Sums(x, curvature, held, cross, pull)


def _starts(feature: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the columns of each feature begin, in ascending order."""
    return np.flatnonzero(np.diff(feature, prepend=-1))


def _over_folds(sums: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """(mean losses (n, scales), the standard errors of what they are above the first), from the folds'
    sums (n, folds, scales) and numbers of rows (n, folds)."""
    total, folds = rows.sum(axis=1)[:, None], rows.shape[1]
    mean = sums.sum(axis=1) / total
    above = (mean - mean[:, :1])[:, None] * rows[..., None]
    away = (sums - sums[..., :1] - above) / total[..., None]
    return mean, np.sqrt(folds / (folds - 1) * np.sum(away**2, axis=1))


def _scaled(freedom: Numbers) -> Numbers:
    """(scales, q)"""
    return np.multiply.outer(np.array(SCALES), freedom)


def personal_models(
    loss: Loss,
    samples: Numbers,
    sizes: Sequence[int] | NDArray[np.int64],
    x: Numbers,
    freedom: Numbers,
    share: ArrayLike = 1.0,
    common: Numbers | None = None,
) -> Numbers:
    """(n, d) every client's personal model around what clients have in common (d,), which is the shared model
    x (d,) where it is not given, from all its rows, at freedoms (q,); `samples` (N, m) hold one client's
    after the other's. Of how it differs from x a client keeps a share (n,)."""
    assert isinstance(loss, LinearScores)
    around = x if common is None else common
    counts, m, kept = np.asarray(sizes), samples.shape[1], np.asarray(share)
    if not np.any(freedom > 0):
        return np.tile(x, (len(counts), 1))
    found = np.empty((len(counts), loss.scores, len(freedom)))
    if isinstance(loss, Squared):
        for clients, some in few_clients(counts, loss.columns(m) ** 2):
            own = expansion_of_squares(
                loss, of_clients(samples[some], counts[clients], loss), counts[clients].astype(float), around
            )
            found[clients] = _changes(own, freedom[None])
    else:
        for stack in _stacks(samples, counts):
            scored = _Scored(loss, stack.rows)
            added = _minimised(scored, stack.used, around, freedom[None], _MOST_STEPS, _LEAST_CHANGE)[:, 0]
            found[stack.clients] = added.swapaxes(1, 2)
    change = around - x + lifted(loss, m, found)
    return np.asarray(x + np.broadcast_to(kept, len(counts))[:, None] * change)


def _changes(expansion: Expansion, freedoms: Numbers) -> Numbers:
    """(n, P, q) `changes`, solved in the columns that are free."""
    found = np.zeros((len(expansion.rows), *freedoms.shape))
    some = np.flatnonzero(freedoms.max(axis=0) > 0)
    if len(some):
        found[..., some] = changes(expansion.among(some), freedoms[:, some])
    return found


def few_clients(sizes: NDArray[np.int64], numbers: int) -> Iterator[tuple[slice, slice]]:
    """(clients, their rows) that are handled together, where each needs so many numbers."""
    together, ends = max(1, _MOMENTS_TOGETHER // numbers), np.append(0, np.cumsum(sizes))
    for begin in range(0, len(sizes), together):
        clients = slice(begin, min(begin + together, len(sizes)))
        yield clients, slice(int(ends[clients.start]), int(ends[clients.stop]))


def _least_squares(loss: Squared, moments: Moments, rows: Numbers, x: Numbers, freedoms: Numbers) -> Numbers:
    """(n, P, d) the personal models for squared loss, of clients with so many rows (n,), at freedoms
    (P, q)."""
    together = max(1, _STACK_NUMBERS // len(x) ** 2)
    found = []
    for begin in range(0, len(rows), together):
        part = slice(begin, begin + together)
        own = expansion_of_squares(loss, Moments(moments.mean[part], moments.around[part]), rows[part], x)
        m = len(own.pull[0]) - int(loss.intercept) + 1
        found.append(x + lifted(loss, m, _changes(own, freedoms)[..., None, :]))
    return np.concatenate(found)


def _mean_squares(moments: Moments, models: Numbers) -> Numbers:
    """(n, shrinkages) mean squared residuals of models (n, shrinkages, d)."""
    features = moments.mean.shape[1] - 1
    v = np.concatenate([models[..., :features], -np.ones((*models.shape[:2], 1))], axis=-1)
    base = np.einsum("npi,ni->np", v, moments.mean) + models[..., features:].sum(axis=-1)
    return np.asarray(np.sum((v @ moments.around) * v, axis=-1) + base**2)


class _Stack(NamedTuple):
    """Clients of like sizes, their rows side by side."""

    clients: NDArray[np.int64]  # (G,)
    at: NDArray[np.int64]  # (G, H) where their rows are; past a client's last, its first
    used: NDArray[np.bool_]  # (G, H)
    rows: Numbers  # (G, H, m)


def _stacks(samples: Numbers, sizes: NDArray[np.int64]) -> Iterator[_Stack]:
    starts, order = np.cumsum(sizes) - sizes, np.argsort(sizes, kind="stable")
    begin = 0
    while begin < len(order):
        # As many as fit with the height of the tallest, whose rows are at most twice those of the first.
        together = max(1, _STACK_NUMBERS // (2 * int(sizes[order[begin]]) * samples.shape[1]))
        some = order[begin : begin + together]
        some = some[sizes[some] <= 2 * sizes[some[0]]]
        place = np.arange(sizes[some].max())
        used = place < sizes[some][:, None]
        at = np.where(used, starts[some][:, None] + place, starts[some][:, None])
        yield _Stack(some, at, used, samples[at])
        begin += len(some)


def _minimised(
    scored: _Scored,
    kept: NDArray[np.bool_],
    x: Numbers,
    freedoms: Numbers,
    most_steps: int,
    least_change: float,
) -> Numbers:
    """(G, P, q, K) what clients' personal models add to the coefficients of the shared model x (d,), from the
    rows kept (G, H), at freedoms (P, q): scale * step, so that `step` is pulled to 0 with weight 1."""
    free = np.flatnonzero(freedoms.max(axis=0) > 0)
    design = scored.design if len(free) == freedoms.shape[1] else scored.design[..., free]
    base = scored.base(x)
    weighed = np.where(kept[..., None], design, 0.0).swapaxes(1, 2)  # (G, columns, H)
    width, curvature = scored.smoothing(base, kept)
    (G, _, q), P, K = design.shape, len(freedoms), len(base)
    scale = np.sqrt(freedoms[:, free] * curvature[..., 0])  # (G, P, columns)
    if not scored.loss.bounded_curvature:
        found = np.zeros((G, P, freedoms.shape[1], K))
        steps = min(most_steps, _NEWTON_STEPS) if q else 0
        found[:, :, free, 0] = _by_newton(scored, base, design, weighed, freedoms[:, free], steps)
        return found
    hessian = scale[..., :, None] * (weighed @ design)[:, None] * scale[..., None, :]
    inverse = np.linalg.inv(hessian + np.eye(q))  # (G, P, columns, columns)
    step = before = np.zeros((G, P, q, K))
    momentum = np.ones((G, P, 1, 1))
    for _ in range(most_steps if q else 0):
        raised = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = step + (momentum - 1) / raised * (step - before)
        slopes = scored.slopes(base, design, scale[..., None] * ahead, width)
        pull = (weighed @ slopes.reshape(G, -1, P * K)).reshape(G, q, P, K).transpose(0, 2, 1, 3)
        after = ahead - inverse @ (scale[..., None] * pull / curvature + ahead)
        # Momentum that works against the step is given up.
        against = np.sum((ahead - after) * (after - step), axis=(2, 3), keepdims=True) > 0
        momentum = np.where(against, 1.0, raised)
        before, step = step, after
        if np.max(np.abs(step - before)) <= least_change * max(1.0, float(np.max(np.abs(step)))):
            break
    found = np.zeros((G, P, freedoms.shape[1], K))
    found[:, :, free] = scale[..., None] * step
    return found


def _by_newton(
    scored: _Scored, base: Numbers, design: Numbers, weighed: Numbers, freedoms: Numbers, steps: int
) -> Numbers:
    """(G, P, q) the same of a smooth loss of one score whose curvature is not bounded, by Newton's method:
    no step moves a score by more than 1, within which the curvature of a log link hardly changes."""
    (G, _, q), P = design.shape, len(freedoms)
    scale, used = np.sqrt(freedoms), np.any(weighed != 0, axis=1)[..., None]  # (P, q), (G, H, 1)
    step, target = np.zeros((G, P, q)), scored.target[..., None]
    for _ in range(steps):
        scores = _scores(base, design, (scale * step)[..., None])
        slopes = scored.loss.of_scores(target, scores)[1][0]  # (G, H, P)
        bends = scored.loss.score_hessian(target, scores)[0, 0]
        pull = scale * (weighed @ slopes).swapaxes(1, 2) + step
        hessian = np.einsum("gqh,ghp,ghr->gpqr", weighed, bends, design, optimize=True)
        hessian = scale[:, :, None] * hessian * scale[:, None, :] + np.eye(q)
        ahead = -np.linalg.solve(hessian, pull[..., None])[..., 0]
        moves = np.abs(design @ (scale * ahead).swapaxes(1, 2)) * used
        step = step + ahead / np.maximum(1.0, moves.max(axis=1))[..., None]
        if np.max(np.abs(ahead), initial=0.0) <= _LEAST_CHANGE * max(1.0, float(np.abs(step).max())):
            break
    return scale * step


class _Scored:
    """Clients' rows (G, H, m) as what personal models change, and the losses and slopes of models' scores."""

    def __init__(self, loss: LinearScores, rows: Numbers) -> None:
        self.loss, self.target, self._rows = loss, rows[..., -1], rows
        ones = np.ones((*rows.shape[:-1], int(loss.intercept)))
        self.design = np.concatenate([rows[..., :-1], ones], axis=-1)  # (G, H, q)

    def base(self, x: Numbers) -> Numbers:
        """(K, G, H, 1) scores of the shared model x (d,)."""
        loss = self.loss
        columns = self.design if loss.basis is None else loss.score_columns(self._rows)
        return np.asarray((columns @ x[loss.layout(self._rows.shape[-1])].T).transpose(2, 0, 1)[..., None])

    def losses(self, base: Numbers, changes: Numbers) -> Numbers:
        """(G, H, P) of the shared model with changes (G, P, q, K)."""
        return self.loss.of_scores(self.target[:, :, None], _scores(base, self.design, changes))[0]

    def slopes(self, base: Numbers, design: Numbers, changes: Numbers, width: Numbers) -> Numbers:
        """(G, H, P, K) derivatives of the losses in the scores, of changes in the columns of `design`."""
        slopes = self.loss.of_scores(self.target[:, :, None], _scores(base, design, changes), width)[1]
        return slopes.transpose(1, 2, 3, 0)

    def expanded(
        self, x: Numbers, changes: Numbers, kept: NDArray[np.bool_], columns: NDArray[np.int64]
    ) -> tuple[Numbers, ...]:
        """The fields of `ExpansionsReply` of sums over the rows kept (G, H), to second order around changes
        (G, 1, q, K), as functions of the whole change from x."""
        base = self.base(x)
        width, _ = self.smoothing(base, kept)
        scores = _scores(base, self.design, changes)
        slopes = np.where(kept, self.loss.of_scores(self.target[..., None], scores, width)[1][..., 0], 0.0)
        hessian = self.loss.score_hessian(self.target[..., None], scores, width)
        bends = np.where(kept, np.einsum("kkgh->kgh", hessian[..., 0]), 0.0)  # (K, G, H)
        some = self.design[..., columns]
        curvature = np.stack([(some * own[..., None]).swapaxes(1, 2) @ some for own in bends], axis=1)
        moved = np.einsum("ghq,gqk->kgh", self.design, changes[:, 0])
        gradient = np.einsum("kgh,ghq->gkq", slopes - bends * moved, self.design)
        diagonal = np.einsum("kgh,ghq->gkq", bends, self.design**2)
        squares = np.sum(slopes**2, axis=2).T
        return curvature, diagonal, gradient, squares, bends.sum(axis=2).T, kept.sum(axis=1).astype(float)

    def smoothing(self, base: Numbers, kept: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
        """(width (G, 1, 1) that kinks are smoothed over, largest curvature (G, 1, 1, 1) that is left), around
        the shared model's scores (K, G, H, 1)."""
        width = np.zeros((len(self.target), 1, 1))
        if math.isinf(self.loss.score_curvature(0.0)):
            away = np.ones_like(self.target)
            if self.loss.labels is None:
                away = base[0, ..., 0] - self.target
            spread = np.sqrt(np.sum(kept * away**2, axis=1) / kept.sum(axis=1))[:, None, None]
            width = _SMOOTHING * np.where(spread > 0, spread, 1.0)
        return width, np.asarray(self.loss.score_curvature(width) + 0 * width)[..., None]


def _scores(base: Numbers, design: Numbers, changes: Numbers) -> Numbers:
    """(K, G, H, P) of a shared model's scores with changes (G, P, columns, K) in the columns of `design`."""
    G, P, q, K = changes.shape
    found = design @ changes.transpose(0, 2, 3, 1).reshape(G, q, K * P)
    return base + found.reshape(G, -1, K, P).transpose(2, 0, 1, 3)
