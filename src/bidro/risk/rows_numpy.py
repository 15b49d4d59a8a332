"""Risks from rows on the host, in NumPy: of many models, at all clients, in one pass over their rows.

With a radius of 0, and for p = 1 on an unbounded support with labels that keep their values, a client's risk
is its mean loss plus its radius times a norm of the model: `ball` has the same forms for compiled programs.
Here they are sums over rows of what matrix products give, so that nothing is compiled, and a pass for a
hundred models takes little longer than one for ten. A penalty of the loss is part of risks, and not of
`mean_losses`. What losses of linear scores are made of, as functions of the scores, they say themselves
(`LinearScores`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.sets.base import AnyArray
from bidro.losses import LinearLoss, LinearScores, Loss, Softmax, Squared, Tweedie
from bidro.risk.inner.ball import has_closed_form, is_lifted
from bidro.risk.inner.problem import Inner
from bidro.risk.oracle import ALL_ROWS, Lift, Views
from bidro.risk.rounding import of_linear, of_log_link, of_softmax, of_sum, of_value
from bidro.risk.rows_jax import RiskModel

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

# Numbers of one kind that a block of rows makes: few enough to stay in the cache.
_BLOCK_NUMBERS = 1 << 16
# Matrix products of so few multiplications are made by one thread. Those of many blocks would wait for their
# other threads most of the time where the machine has other work.
_ONE_THREAD = 1 << 18
_FEWEST_ROWS = 16
# Clients' Hessians of so many bytes are kept, or such as are no larger than the rows; else they are mixed
# from rows, and mixed anew where the weights have turned by more than the second number in all.
_SMALL_HESSIANS, _TURNED = 1 << 24, 0.3


def has_mean_losses(loss: Loss) -> bool:
    """Whether losses and their derivatives are known here: those of linear scores."""
    return isinstance(loss, LinearScores)


def needs_no_search(inner: Inner, radii: Numbers) -> bool:
    """Whether risks over balls of these radii are known here: of losses without kinks; of squared loss with
    radii second moments are enough."""
    loss = inner.loss
    if isinstance(loss, LinearLoss) and np.isinf(loss.scalar.curvature):
        return False
    if isinstance(loss, Squared) and np.any(radii):
        return False
    return has_mean_losses(loss) and (not np.any(radii) or has_closed_form(inner))


@dataclass(frozen=True, eq=False)
class FoldedRows:
    """Rows of clients, one client after the other, and the fold of each."""

    samples: Numbers  # (N, m)
    sizes: Whole  # (n,)
    fold_ids: Whole  # (N,) from 0

    @cached_property
    def folds(self) -> int:
        return int(self.fold_ids.max(initial=0)) + 1

    @cached_property
    def by_fold(self) -> list[FoldedRows]:
        """The rows of every fold: one copy of the table, which all passes over it share."""
        return [self.only(fold) for fold in range(self.folds)]

    def only(self, fold: int) -> FoldedRows:
        """The rows of one fold."""
        if self.folds == 1:
            return self
        some = np.flatnonzero(self.fold_ids == fold)
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)[some]
        sizes = np.bincount(owner, minlength=len(self.sizes))
        return FoldedRows(self.samples[some], sizes, np.zeros_like(some))

    def left(self, fold: Whole) -> Numbers:
        """(n, models) rows that are not in the model's fold (models,)."""
        folds = self.folds
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        counts = np.bincount(owner * folds + self.fold_ids, minlength=len(self.sizes) * folds)
        counts = np.pad(counts.reshape(-1, folds), [(0, 0), (0, 1)])
        known = (fold >= 0) & (fold < folds)
        return np.asarray(self.sizes[:, None] - counts[:, np.where(known, fold, folds)], float)


@dataclass(frozen=True, eq=False)
class RowsOracle:
    """Risks of losses of linear scores that need no search: see `needs_no_search`."""

    inner: Inner
    rows: FoldedRows
    eps: Numbers  # (n,)
    lift: Lift  # without cones where no client has a radius: then nothing depends on nu
    views: Views = ALL_ROWS

    @property
    def n(self) -> int:
        return len(self.rows.sizes)

    def values(self, X: Numbers) -> Numbers:
        return self.expand(X).values

    def expand(self, X: Numbers, curved: ArrayLike = True) -> RowsExpansion:
        scale, fold = self.views.of(len(X))
        radii = self.eps[:, None] + scale / np.sqrt(self.rows.left(fold))
        found, k = risks(self.inner, self.rows, X, fold, radii), X.shape[1] + bool(self.lift.cones)
        gradients = found.gradient.swapaxes(0, 1)[..., :k]
        return RowsExpansion(self.inner, self.rows, X, fold, scale, radii, found.value.T, gradients)

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> RowsOracle:
        own = np.broadcast_to(np.asarray(eps, float), self.n)
        return replace(self, eps=own, views=self.views.scaled(scale))

    def without_fold(self, fold: ArrayLike) -> RowsOracle:
        return replace(self, views=self.views.without(fold))

    def only(self, which: Whole) -> RowsOracle:
        return replace(self, views=self.views.only(which))


@dataclass(frozen=True, eq=False)
class RowsExpansion:
    """Models of one batch with the same scale of radii share their Hessians where they leave out different
    folds: these are taken over all rows at the models' mean, as rows that a fold leaves out hardly change
    them."""

    inner: Inner
    rows: FoldedRows
    X: Numbers  # (B, d)
    fold: Whole  # (B,)
    scale: Numbers  # (B,)
    radii: Numbers  # (n, B)
    values: Numbers  # (B, n)
    gradients: Numbers  # (B, n, k)

    @cached_property
    def _bounds(self) -> tuple[Numbers, Numbers]:
        return bounds(self.inner, self.rows, self.X, self.fold, self.radii, self.values.T)

    @property
    def lower(self) -> Numbers:
        return self._bounds[0].T

    @property
    def upper(self) -> Numbers:
        return self._bounds[1].T

    @cached_property
    def _kept(self) -> dict[int, Any]:
        """By model: the Hessians of all clients, or the weights that they were mixed by and the mixture."""
        return {}

    @cached_property
    def _places(self) -> list[tuple[int, Numbers, Whole]]:
        """(a number that stands for the place, model, fold) at which each model has its Hessians."""
        found = [(b, self.X[b], self.fold[b : b + 1]) for b in range(len(self.X))]
        for scale in np.unique(self.scale):
            some = np.flatnonzero(self.scale == scale)
            if len(some) > 1 and len(np.unique(self.fold[some])) == len(some):
                shared = int(some[0]), self.X[some].mean(axis=0), np.full(1, -1)
                for b in some:
                    found[b] = shared
        return found

    def curved_at(self, b: int) -> int:
        return self._places[b][0]

    def hessian(self, b: int, alpha: Numbers) -> Numbers:
        n, k = self.values.shape[1], self.gradients.shape[-1]
        if 8 * n * k**2 <= max(_SMALL_HESSIANS, self.rows.samples.nbytes):
            return np.asarray(alpha @ self.hessians(b).reshape(n, k * k)).reshape(k, k)
        place, x, fold = self._places[b]
        weights, H = self._kept.get(place, (np.inf, None))
        if np.abs(weights - alpha).sum() > _TURNED:
            H = mixed_curvature(self.inner, self.rows, x, fold, alpha)[:k, :k]
            self._kept[place] = alpha, H
        return np.array(H)

    def hessians(self, b: int) -> Numbers:
        place, x, fold = self._places[b]
        if place not in self._kept:
            n, k, size = self.values.shape[1], self.gradients.shape[-1], len(x) + is_lifted(self.inner)
            packed = curvatures(self.inner, self.rows, x[None], fold)[:, 0]
            H, (above, right) = np.zeros((n, size, size)), np.triu_indices(size)
            H[:, above, right] = H[:, right, above] = packed
            self._kept[place] = H[:, :k, :k]
        return np.asarray(self._kept[place])


class Means(NamedTuple):
    """Of risks at models, over the rows that are not in the model's fold."""

    value: Numbers  # (n, models)
    gradient: Numbers  # (n, models, k) in z = x, or (x, nu) where risks are lifted


def risks(inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole, radii: Numbers) -> Means:
    """The clients' risks over balls of radii (n, models) at models (models, d), without the rows of a fold
    (models,) each; a number that is none of a fold leaves none out."""
    still = _still(inner, rows, x, fold)
    if not np.any(radii):
        return still
    reward = _reward(inner, rows, x, fold)
    return Means(still.value + radii * reward.value, still.gradient + radii[..., None] * reward.gradient)


def curvatures(inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole) -> Numbers:
    """(n, models, k (k + 1) / 2) upper triangles of the second derivatives, which radii do not change."""
    loss = _linear(inner.loss)
    layout = loss.layout(rows.samples.shape[1])
    (classes, columns), (models, d) = layout.shape, x.shape
    matrices = x[:, layout].transpose(1, 2, 0)
    k = d + is_lifted(inner)
    above, right = np.triu_indices(k)
    inside = right < d
    above, right = above[inside], right[inside]
    packed = np.zeros((len(rows.sizes), models, len(inside)))
    flat = np.argsort(layout, axis=None)  # of every coordinate of a model, its place in the layout
    for block in blocks(rows, loss, models * classes**2, columns**2):
        # (classes, classes, rows, models)
        bent = loss.score_hessian(block.target[:, None], block.design @ matrices)
        bent *= block.fold_ids[:, None] != fold
        for client, own in block.parts:
            design = block.design[own]
            weighed = bent[:, :, own].swapaxes(2, 3)[..., None, :] * design.T
            full = (weighed @ design).transpose(2, 0, 3, 1, 4).reshape(models, d, d)
            packed[client][:, inside] += full[:, flat[above], flat[right]]
    count = rows.left(fold)[..., None]
    packed /= count
    if loss.penalty is not None:
        packed[..., inside] += 2 * loss.penalty[above, right]
    if (pull := loss.pull(d)) is not None:
        packed[..., inside] += 2 * pull[above, right] / count
    return packed


def mixed_curvature(inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole, alpha: Numbers) -> Numbers:
    """(k, k) the second derivatives at x (d,), mixed by the clients' weights (n,): no client's is kept."""
    loss, d = _linear(inner.loss), len(x)
    layout = loss.layout(rows.samples.shape[1])
    classes, columns = layout.shape
    count = rows.left(fold)[:, 0]
    weight = np.repeat(alpha / count, rows.sizes)
    found = np.zeros((classes, columns, classes, columns))
    begin = 0
    for block in blocks(rows, loss, classes**2 * columns, columns**2):
        own = slice(begin, begin + len(block.design))
        begin = own.stop
        bent = loss.score_hessian(block.target, x[layout] @ block.design.T)  # (classes, classes, rows)
        bent = bent * (weight[own] * (block.fold_ids != fold[0]))
        for j, k in np.ndindex(classes, classes):
            if j == k:  # a matrix times its own transpose takes half as long
                half = np.sqrt(np.maximum(bent[j, j], 0.0))[:, None] * block.design
                found[j, :, j] += half.T @ half
            elif j < k:
                found[j, :, k] += (block.design.T * bent[j, k]) @ block.design
    for j, k in np.ndindex(classes, classes):
        if j > k:
            found[j, :, k] = found[k, :, j].T
    flat, size = np.argsort(layout, axis=None), d + is_lifted(inner)
    H = np.zeros((size, size))
    H[:d, :d] = found.reshape(d, d)[np.ix_(flat, flat)]
    if loss.penalty is not None:
        H[:d, :d] += 2 * alpha.sum() * loss.penalty
    if (pull := loss.pull(d)) is not None:
        H[:d, :d] += 2 * float(np.sum(alpha / count)) * pull
    return H


def mean_losses(loss: Loss, rows: FoldedRows, x: Numbers) -> Numbers:
    """(n, models) over all rows, at models (models, d); nan for a client without any."""
    loss = _linear(loss)
    layout = loss.layout(rows.samples.shape[1])
    (classes, columns), models = layout.shape, len(x)
    matrices = x[:, layout].transpose(1, 2, 0)
    sums = np.zeros((len(rows.sizes), models))
    for block in blocks(rows, loss, models * classes, models * columns):
        losses = loss.of_scores(block.target[:, None], block.design @ matrices)[0]
        sums[block.clients] += np.add.reduceat(losses, block.first, axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / rows.sizes[:, None])


def bounds(
    inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole, radii: Numbers, value: Numbers
) -> tuple[Numbers, Numbers]:
    """(lower, upper) ends (n, models) of risks with these values: what rounding hides is taken off and
    added."""
    off = np.stack([_rounding(inner.loss, rows, own, int(f)) for own, f in zip(x, fold, strict=True)], axis=1)
    earned = radii * _reward(inner, rows, x, fold).value if np.any(radii) else 0 * radii
    mean, count, k = value - earned, rows.left(fold), x.shape[1] + is_lifted(inner)
    upper = mean + off + of_sum(count, mean + off) + earned
    lower = mean - off - of_sum(count, mean - off) + earned
    return np.asarray(lower - of_value(lower, k)), np.asarray(upper + of_value(upper, k))


def proven_risks(inner: Inner, rows: FoldedRows, x: Numbers, eps: Numbers, curvature: bool) -> RiskModel:
    """What `Client.risk` says of one model x (d,), for all clients with radii eps (n,)."""
    none = np.full(1, -1)
    found = risks(inner, rows, x[None], none, eps[:, None])
    gradients = found.gradient[:, 0]
    lower, upper = bounds(inner, rows, x[None], none, eps[:, None], found.value)
    k = gradients.shape[-1]
    multiplier = np.full(len(eps), np.inf)
    if has_closed_form(inner) and not isinstance(inner.loss, Squared):
        multiplier = _reward(inner, rows, x[None], none).value[:, 0]
    hessian = None
    if curvature:
        hessian, (above, right) = np.zeros((len(eps), k, k)), np.triu_indices(k)
        hessian[:, above, right] = hessian[:, right, above] = curvatures(inner, rows, x[None], none)[:, 0]
    balanced, zero = np.stack([inner.loss.balanced(own) for own in gradients]), np.zeros(len(eps))
    ends: tuple[AnyArray, AnyArray] = (upper[:, 0], lower[:, 0])
    rest: tuple[AnyArray, ...] = (balanced, zero, hessian, multiplier, multiplier, zero)
    return RiskModel(*ends, *rest)


def _linear(loss: Loss) -> LinearScores:
    assert isinstance(loss, LinearScores)
    return loss


def _still(inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole) -> Means:
    """The mean losses: no sample moves."""
    loss = _linear(inner.loss)
    layout = loss.layout(rows.samples.shape[1])
    (classes, columns), models = layout.shape, len(x)
    matrices = x[:, layout].transpose(1, 2, 0)  # (classes, columns, models)
    value = np.zeros((len(rows.sizes), models))
    sums = np.zeros((len(rows.sizes), classes, models, columns))
    for one in range(rows.folds):
        wanted = np.flatnonzero(fold != one)
        at = np.ascontiguousarray(matrices[..., wanted])
        of_fold, slope_sums = value[:, wanted], sums[:, :, wanted]
        for block in blocks(rows.by_fold[one], loss, len(wanted) * classes, len(wanted) * columns):
            losses, slopes = loss.of_scores(block.target[:, None], block.design @ at)
            of_fold[block.clients] += np.add.reduceat(losses, block.first, axis=0)
            for client, own in block.parts:
                slope_sums[client] += slopes[:, own].swapaxes(1, 2) @ block.design[own]
        value[:, wanted], sums[:, :, wanted] = of_fold, slope_sums
    count, d = rows.left(fold), x.shape[1]
    gradient = np.zeros((*value.shape, d + is_lifted(inner)))
    gradient[..., layout] = sums.swapaxes(1, 2)
    value, gradient = value / count, gradient / count[..., None]
    if loss.penalty is not None:
        slope = x @ loss.penalty
        # Of equal slopes rounding would leave less than nothing.
        value += np.maximum(np.sum(slope * x, axis=1), 0.0)
        gradient[..., :d] += 2 * slope
    if (pull := loss.pull(d)) is not None:
        slope = x @ pull
        value += np.maximum(np.sum(slope * x, axis=1), 0.0) / count
        gradient[..., :d] += 2 * slope / count[..., None]
    return Means(value, gradient)


def _reward(inner: Inner, rows: FoldedRows, x: Numbers, fold: Whole) -> Means:
    """What moves earn a unit of radius in the closed forms: the steepness, and where labels matter that of
    the labels which the client has."""
    loss = inner.loss
    cones = inner.transport.steepness_cones(loss)
    matrix, offset = np.stack([cone.matrix for cone in cones]), np.stack([cone.offset for cone in cones])
    vectors = np.einsum("prd,qd->qpr", matrix, x) + offset
    norms = cones[0].norms(vectors)  # (models, cones), which are all in the same groups
    n, models = len(rows.sizes), len(x)
    gradient = np.zeros((n, models, x.shape[1] + 1))
    if isinstance(loss, LinearLoss):
        steep = loss.scalar.lipschitz
        gradient[..., -1] = steep
        return Means(np.tile(steep * norms[:, 0], (n, 1)), gradient)
    assert isinstance(loss, Softmax)
    owner = np.repeat(np.arange(n), rows.sizes)
    has = np.zeros((n, models, loss.classes), bool)
    for label in range(loss.classes):
        some = rows.samples[:, -1] == label
        own = FoldedRows(rows.samples[some], np.bincount(owner[some], minlength=n), rows.fold_ids[some])
        has[..., label] = own.left(fold) > 0
    one, other = np.triu_indices(loss.classes, 1)
    # Pairs of classes of which a client has neither are left out; where there is none, the norm is nu.
    reached = has[..., one] | has[..., other]
    top = np.argmax(np.where(reached, norms, -1.0), axis=-1)  # (n, models)
    lifted = np.asarray(reached.all(axis=-1))
    for client, model in np.argwhere(~lifted):
        cone = cones[top[client, model]]
        gradient[client, model, :-1] = cone.matrix.T @ cone.slope(vectors[model, top[client, model]])
    gradient[..., -1] = lifted
    return Means(norms[np.arange(models), top], gradient)


class Block(NamedTuple):
    """Some consecutive rows."""

    rows: Numbers  # (rows, m)
    design: Numbers  # (rows, columns) what scores are linear in
    fold_ids: Whole  # (rows,)
    clients: Whole  # whose rows these are
    first: Whole  # of each of these clients
    parts: list[tuple[int, slice]]  # the rows of each

    @property
    def target(self) -> Numbers:
        """(rows,)"""
        return self.rows[:, -1]


def blocks(rows: FoldedRows, loss: LinearScores, numbers: int, multiplications: int) -> Iterator[Block]:
    """All rows; `numbers` of one kind are made of each, and so many multiplications a matrix product."""
    numbers = max(numbers, loss.columns(rows.samples.shape[1]))
    height = max(_BLOCK_NUMBERS // numbers, _FEWEST_ROWS)
    if multiplications * _FEWEST_ROWS <= _ONE_THREAD:
        height = min(height, _ONE_THREAD // max(multiplications, 1))
    ends = np.cumsum(rows.sizes)
    for begin in range(0, len(rows.samples), height):
        some = slice(begin, min(begin + height, len(rows.samples)))
        low, high = np.searchsorted(ends, [begin, some.stop - 1], side="right")
        clients = low + np.flatnonzero(rows.sizes[low : high + 1])
        first = np.maximum((ends - rows.sizes)[clients] - begin, 0)
        last = np.minimum(ends[clients], some.stop) - begin
        parts = [(int(i), slice(a, b)) for i, a, b in zip(clients, first, last, strict=True)]
        own = rows.samples[some]
        yield Block(own, loss.score_columns(own), rows.fold_ids[some], clients, first, parts)


def _rounding(loss: Loss, rows: FoldedRows, x: Numbers, fold: int = -1) -> Numbers:
    """(n,) the mean over a client's rows, but those of a fold, of what rounding may hide of their losses."""
    found = np.zeros(len(rows.sizes))
    for block in blocks(rows, _linear(loss), 1, len(x)):
        if isinstance(loss, LinearLoss):
            u: Any = loss.of_residuals(block.target, block.design @ x)
            off = of_linear(loss.scalar, u, block.design, x, loss.scalar.tangent(u, np.zeros(())).slope)
        elif isinstance(loss, Tweedie):
            off = of_log_link(loss, block.target, block.design, x)
        else:
            assert isinstance(loss, Softmax)
            off = of_softmax(loss, x, block.rows)
        found[block.clients] += np.add.reduceat(off * (block.fold_ids != fold), block.first)
    return np.asarray(found / rows.left(np.full(1, fold))[:, 0])
