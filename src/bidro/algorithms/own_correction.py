"""Each client's own correction of a shared model, shrunk towards it.

Client i's own model minimises its sum of losses plus a pull back to the shared model (w, b),

    sum_k l(x_i, xi_i^k) + c / 2 (lambda_1 ||w_i - w||^2 + lambda_0 (b_i - b)^2),

c the largest curvature of the loss in the score: lambda_0 and lambda_1 are then numbers of pseudo-rows, of a
client that the shared model fits, with features of size 1. Squared loss needs nothing but second moments.
Other losses are minimised by accelerated steps of a quadratic majorant with curvature c (Boehning and Lindsay
1988; Nesterov 1983, restarted as by O'Donoghue and Candes 2015), kinks smoothed, all shrinkages at once, for
stacks of clients of like sizes: plain NumPy, nothing is compiled.

`OwnCorrections` is the round by which a common shrinkage is chosen: how well each client would do with each,
on rows that neither its own nor the shared model was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.second_moments import Moments, TrainingMoments, left_out_sums, of_clients, of_folds
from bidro.errors import BidroError
from bidro.losses import LinearLoss, Loss, Softmax, Squared
from bidro.problem import Problem
from bidro.trees import pytree, static

Numbers = NDArray[np.float64]

# Numbers that are handled together, so that no second copy of the table is made.
_STACK_NUMBERS = 1 << 20
# And of second moments.
_MOMENTS_TOGETHER = 1 << 20
# Kinks are smoothed over this share of the deviation of the client's own residuals (of 1 for margins).
_SMOOTHING = 0.1
# Steps in cross-validation, and for a model that is kept; they end earlier where they have become small.
_TRIAL_STEPS, _MOST_STEPS = 15, 1000
_LEAST_CHANGE = 1e-10


class Shrinkage(NamedTuple):
    """How strongly a client's own model is held at the shared one, in pseudo-rows; inf: not changed."""

    offset: float  # lambda_0
    slopes: float  # lambda_1

    @property
    def freedom(self) -> tuple[float, float]:
        """The inverses, which are finite: what messages hold."""
        return 1 / self.offset, 1 / self.slopes

    @classmethod
    def of_freedom(cls, freedom: Iterable[float]) -> Shrinkage:
        offset, slopes = (1 / part if part > 0 else math.inf for part in freedom)
        return cls(offset, slopes)


NONE = Shrinkage(math.inf, math.inf)


def has_own_models(loss: Loss) -> bool:
    """Whether corrections are known for this loss: linear scores, one or one a class."""
    return isinstance(loss, LinearLoss | Softmax)


class Broadcast(NamedTuple):
    x: Numbers | Array  # (folds, d) the shared model of every fold


class Reply(NamedTuple):
    """Mean losses of a client under its own model, by shrinkage."""

    left_out: Numbers | Array  # (shrinkages,) each row under the models that were not trained on it
    error: Numbers | Array  # (shrinkages,) over the folds, of how far that is above the first
    trained: Numbers | Array  # (shrinkages,) on the rows that models were trained on, mean over the folds


class Losses(NamedTuple):
    """The replies of all clients."""

    left_out: Numbers  # (n, shrinkages)
    error: Numbers  # (n, shrinkages)
    trained: Numbers  # (n, shrinkages)


@pytree
class OwnCorrections(Usual):
    """One round; its state is the shared models (folds, d) before it, and `Losses` after it. It needs all
    clients: until then the round is repeated. The first of the shrinkages changes nothing."""

    shrinkages: tuple[Shrinkage, ...] = static()

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "folds"
    second_order: ClassVar[bool] = False

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> Numbers:
        raise BidroError("OwnCorrections corrects models: its first state is those of the folds.")

    def broadcast(self, state: Numbers) -> Broadcast:
        return Broadcast(state)

    def replies_on_host(self, broadcast: Broadcast, rows: HeldRows) -> Reply:
        assert rows.marks is not None
        models = np.asarray(broadcast.x)
        if isinstance(rows.loss, Squared):
            return self._of_squares(rows.loss, rows, models)
        n, count = len(rows.sizes), len(self.shrinkages)
        sums, held, inside = np.zeros((n, rows.folds, count)), np.zeros((n, rows.folds)), np.zeros((n, count))
        for stack in _stacks(rows.samples, rows.sizes):
            marks = rows.marks[stack.at]
            for fold, x in enumerate(models):
                kept = stack.used & (marks != fold)
                # As many steps for everybody, so that a client alone finds the same.
                found = _minimised(rows.loss, stack.rows, kept, x, self.shrinkages, _TRIAL_STEPS, 0.0)
                losses = _Scored(rows.loss, stack.rows).losses(found)
                out = stack.used & (marks == fold)
                sums[stack.clients, fold] = np.einsum("gh,ghp->gp", out, losses)
                held[stack.clients, fold] = out.sum(axis=1)
                mean = np.einsum("gh,ghp->gp", kept, losses) / kept.sum(axis=1)[:, None]
                inside[stack.clients] += mean / len(models)
        return Reply(*_over_folds(sums, held), inside)

    def _of_squares(self, loss: Squared, rows: HeldRows, models: Numbers) -> Reply:
        """A few clients at a time: second moments of all may be larger than the table."""
        assert rows.marks is not None
        found = []
        for clients, some in _few_clients(rows.sizes, rows.folds * loss.columns(rows.samples.shape[1]) ** 2):
            own = rows.samples[some], rows.sizes[clients], rows.marks[some]
            found.append(self.from_moments(loss, of_folds(*own, rows.folds, loss), models))
        return Reply(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def from_moments(self, loss: Squared, trained: TrainingMoments, models: Numbers) -> Reply:
        """What clients with these moments would reply, of squared loss."""
        left_out = left_out_sums(trained)
        n, count = len(trained.rows), len(self.shrinkages)
        sums, inside = np.zeros((n, len(models), count)), np.zeros((n, count))
        for fold, x in enumerate(models):
            own = Moments(trained.mean[:, fold], trained.around[:, fold])
            rows = trained.rows[:, fold].astype(float)
            found = _least_squares(loss, own, rows, x, self.shrinkages)
            sums[:, fold] = np.maximum(left_out.squares(fold, found), 0.0)
            inside += np.maximum(_mean_squares(own, found), 0.0) / len(models)
        return Reply(*_over_folds(sums, left_out.rows), inside)

    def server(self, state: Any, replies: Reply, replied: Array) -> Any:
        if not np.all(np.asarray(replied)):
            return state
        return Losses(*(np.asarray(part, float) for part in replies))

    def snapshot(self, state: Numbers) -> Snapshot:
        """Nothing is trained that is kept: the first of the shared models."""
        return Snapshot(state[0], state[0], np.zeros(0))


def _over_folds(sums: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """(mean losses (n, shrinkages), the standard errors of what they are above the first), from the folds'
    sums (n, folds, shrinkages) and numbers of rows (n, folds)."""
    total, folds = rows.sum(axis=1)[:, None], rows.shape[1]
    mean = sums.sum(axis=1) / total
    above = (mean - mean[:, :1])[:, None] * rows[..., None]
    away = (sums - sums[..., :1] - above) / total[..., None]
    return mean, np.sqrt(folds / (folds - 1) * np.sum(away**2, axis=1))


def own_models(
    loss: Loss, samples: Numbers, sizes: Sequence[int] | NDArray[np.int64], x: Numbers, shrinkage: Shrinkage
) -> Numbers:
    """(n, d) every client's own model around the shared model x (d,), from all its rows; `samples` (N, m)
    hold one client's after the other's."""
    counts = np.asarray(sizes)
    found = np.empty((len(counts), len(x)))
    if isinstance(loss, Squared):
        for clients, some in _few_clients(counts, loss.columns(samples.shape[1]) ** 2):
            own = counts[clients].astype(float)
            moments = of_clients(samples[some], counts[clients], loss)
            found[clients] = _least_squares(loss, moments, own, x, (shrinkage,))[:, 0]
        return found
    for stack in _stacks(samples, counts):
        own = _minimised(loss, stack.rows, stack.used, x, (shrinkage,), _MOST_STEPS, _LEAST_CHANGE)
        found[stack.clients] = _flat(loss, own[:, 0])
    return found


def _few_clients(sizes: NDArray[np.int64], numbers: int) -> Iterator[tuple[slice, slice]]:
    """(clients, their rows) that are handled together, where each needs so many numbers."""
    together, ends = max(1, _MOMENTS_TOGETHER // numbers), np.append(0, np.cumsum(sizes))
    for begin in range(0, len(sizes), together):
        clients = slice(begin, min(begin + together, len(sizes)))
        yield clients, slice(int(ends[clients.start]), int(ends[clients.stop]))


def _scales(loss: Loss, columns: int, shrinkages: Sequence[Shrinkage]) -> Numbers:
    """(shrinkages, columns) lambda^-1/2 of every row of a model's matrix; 0 for what does not change."""
    found = np.empty((len(shrinkages), columns))
    for p, one in enumerate(shrinkages):
        found[p] = 1 / math.sqrt(one.slopes)
        if loss.intercept:  # type: ignore[attr-defined]
            found[p, -1] = 1 / math.sqrt(one.offset)
    return found


def _least_squares(
    loss: Squared, moments: Moments, rows: Numbers, x: Numbers, shrinkages: Sequence[Shrinkage]
) -> Numbers:
    """(n, shrinkages, d) the minimisers for squared loss, of clients with so many rows (n,).

    With mu the mean and C the second moments of the features around it, r the mean residual of x and c its
    moments with the features, the change of the slopes solves (M + kappa mu mu') dw = -N c - kappa r mu,
    M = N C + lambda_1 I and kappa = N lambda_0 / (N + lambda_0), once the intercept is eliminated. So one
    system a lambda_1 serves every lambda_0.
    """
    together = max(1, _STACK_NUMBERS // len(x) ** 2)
    if len(rows) > together:
        parts = [slice(begin, begin + together) for begin in range(0, len(rows), together)]
        some = [Moments(moments.mean[part], moments.around[part]) for part in parts]
        found = [
            _least_squares(loss, *own, x, shrinkages)
            for own in zip(some, (rows[p] for p in parts), strict=True)
        ]
        return np.concatenate(found)
    mean, around = moments
    features = mean.shape[1] - 1
    v = np.append(x[:features], -1.0)
    mu, residual = mean[:, :-1], mean @ v + x[features:].sum()
    sides = np.stack([rows[:, None] * (around @ v)[:, :-1], mu], axis=-1)  # (n, features, 2)
    change = np.zeros((len(rows), len(shrinkages), len(x)))
    for slopes in sorted({one.slopes for one in shrinkages}):
        solved = np.zeros_like(sides)
        if math.isfinite(slopes):
            M = rows[:, None, None] * around[:, :-1, :-1]
            M[:, np.arange(features), np.arange(features)] += slopes
            solved = np.linalg.solve(M, sides)
        p, q = solved[..., 0], solved[..., 1]
        ahead, share = np.sum(mu * p, axis=1), np.sum(mu * q, axis=1)
        for place, one in enumerate(shrinkages):
            if one.slopes != slopes:
                continue
            kappa = rows.copy()
            if loss.intercept and math.isfinite(one.offset):
                kappa = rows * one.offset / (rows + one.offset)
            own = p + (kappa * (residual - ahead) / (1 + kappa * share))[:, None] * q
            change[:, place, :features] = own
            if loss.intercept and math.isfinite(one.offset):
                left = residual - np.sum(mu * own, axis=1)
                change[:, place, -1] = rows * left / (rows + one.offset)
    return np.asarray(x - change)


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
    loss: Loss,
    rows: Numbers,
    kept: NDArray[np.bool_],
    x: Numbers,
    shrinkages: Sequence[Shrinkage],
    most_steps: int,
    least_change: float,
) -> Numbers:
    """(G, shrinkages, q, K) the clients' own models from the rows kept (G, H) of rows (G, H, m).

    A model is a matrix (q, K), one column a score: shared + scale * step, so that `step` is pulled to 0 with
    weight 1, whatever the shrinkage.
    """
    shared, scored = _matrix(loss, x), _Scored(loss, rows)
    weighed = np.where(kept[..., None], scored.design, 0.0).swapaxes(1, 2)  # (G, q, H)
    width, curvature = scored.smoothing(shared, kept)
    scale = _scales(loss, len(shared), shrinkages)
    bent = scale[:, :, None] * (weighed @ scored.design)[:, None] * scale[:, None, :]
    inverse = np.linalg.inv(bent + np.eye(len(shared)))  # (G, P, q, q)
    G, P, (q, K) = len(rows), len(shrinkages), shared.shape
    step = before = np.zeros((G, P, q, K))
    momentum = np.ones((G, P, 1, 1))
    for _ in range(most_steps):
        raised = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = step + (momentum - 1) / raised * (step - before)
        slopes = scored.slopes(scored.scores(shared + scale[..., None] * ahead), width)
        pull = (weighed @ slopes.reshape(G, -1, P * K)).reshape(G, q, P, K).transpose(0, 2, 1, 3)
        after = ahead - inverse @ (scale[..., None] * pull / curvature + ahead)
        # Momentum that works against the step is given up.
        against = np.sum((ahead - after) * (after - step), axis=(2, 3), keepdims=True) > 0
        momentum = np.where(against, 1.0, raised)
        before, step = step, after
        if np.max(np.abs(step - before)) <= least_change * max(1.0, float(np.max(np.abs(step)))):
            break
    return shared + scale[..., None] * step


class _Scored:
    """Clients' rows as what their scores are made of, K a row, and the losses and slopes of scores."""

    def __init__(self, loss: Loss, rows: Numbers) -> None:
        self.loss, self.target = loss, rows[..., -1]
        theta = loss.design(rows)[..., :-1]  # type: ignore[arg-type]
        ones = np.ones((*theta.shape[:2], int(loss.intercept)))  # type: ignore[attr-defined]
        self.design = np.concatenate([theta, ones], axis=-1)  # (G, H, q)

    def scores(self, matrices: Numbers) -> Numbers:
        """(G, H, P, K) of models (G, P, q, K)."""
        G, P, q, K = matrices.shape
        return (self.design @ matrices.transpose(0, 2, 1, 3).reshape(G, q, P * K)).reshape(G, -1, P, K)

    def losses(self, matrices: Numbers) -> Numbers:
        """(G, H, P)"""
        scores, loss = self.scores(matrices), self.loss
        if isinstance(loss, LinearLoss):
            return np.asarray(loss.scalar.value(self._argument(scores[..., 0])))
        own = np.take_along_axis(scores, self.target.astype(int)[:, :, None, None], axis=-1)[..., 0]
        return np.asarray(logsumexp(scores, axis=-1) - own)

    def smoothing(self, shared: Numbers, kept: NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
        """(width (G, 1, 1) that kinks are smoothed over, largest curvature (G, 1, 1, 1) that is left), around
        the shared model (q, K)."""
        every = np.ones((len(self.target), 1, 1))
        if not isinstance(self.loss, LinearLoss):
            return 0 * every, 0.5 * every[..., None]
        width = 0 * every
        if math.isinf(self.loss.scalar.curvature):
            away = np.ones_like(self.target)
            if self.loss.labels is None:
                away = (self.design @ shared)[..., 0] - self.target
            spread = np.sqrt(np.sum(kept * away**2, axis=1) / kept.sum(axis=1))[:, None, None]
            width = _SMOOTHING * np.where(spread > 0, spread, 1.0)
        return width, np.asarray(self.loss.scalar.curvature_of(width))[..., None] * every[..., None]

    def slopes(self, scores: Numbers, width: Numbers) -> Numbers:
        """(G, H, P, K) derivatives of the losses in the scores."""
        loss = self.loss
        if isinstance(loss, LinearLoss):
            slope = loss.scalar.tangent(self._argument(scores[..., 0]), width).slope
            turned = slope if loss.labels is None else self.target[:, :, None] * slope
            return np.asarray(turned)[..., None]
        shares = softmax(scores, axis=-1)
        own = np.broadcast_to(self.target.astype(int)[:, :, None, None], (*scores.shape[:3], 1))
        np.put_along_axis(shares, own, np.take_along_axis(shares, own, axis=-1) - 1, axis=-1)
        return np.asarray(shares)

    def _argument(self, scores: Numbers) -> Numbers:
        """The residual or margin of scores (G, H, P)."""
        target = self.target[:, :, None]
        return scores - target if self.loss.labels is None else target * scores


def _matrix(loss: Loss, x: Numbers) -> Numbers:
    """(q, K) a model's coefficients, one column a score; the offsets are the last row where there are any."""
    w, b = loss.split(x)  # type: ignore[attr-defined]
    slopes = np.atleast_2d(w).T
    return np.vstack([slopes, np.atleast_1d(b)]) if loss.intercept else slopes  # type: ignore[attr-defined]


def _flat(loss: Loss, matrix: Numbers) -> Numbers:
    """(..., d) from (..., q, K)."""
    if isinstance(loss, LinearLoss):
        return matrix[..., 0]
    lead, last = matrix.shape[:-2], -1 if loss.intercept else None  # type: ignore[attr-defined]
    slopes = matrix[..., :last, :].swapaxes(-1, -2).reshape(*lead, -1)
    return np.concatenate([slopes, matrix[..., -1, :]], axis=-1) if last else slopes
