"""Risks that need no search, in NumPy: of many models, at all clients, in one pass over their rows.

With a radius of 0, and for p = 1 on an unbounded support with labels that keep their values, a client's risk
is its mean loss plus its radius times a norm of the model: `ball` has the same forms for compiled programs.
Here they are sums over rows of what matrix products give, so that nothing is compiled, and a pass for a
hundred models takes little longer than one for ten. A penalty of the loss is part of risks, and not of
`mean_losses`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.losses import LinearLoss, Loss, Softmax, Squared
from bidro.sets.base import Held
from bidro.worst_case.ball import has_closed_form, is_lifted
from bidro.worst_case.inner import Inner
from bidro.worst_case.risk import RiskModel
from bidro.worst_case.rounding import of_linear, of_softmax, of_sum, of_value

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

# Numbers of one kind that a block of rows makes: few enough to stay in the cache.
_BLOCK_NUMBERS = 1 << 16
# Matrix products of so few multiplications are made by one thread. Those of many blocks would wait for their
# other threads most of the time where the machine has other work.
_ONE_THREAD = 1 << 18
_FEWEST_ROWS = 16


def has_mean_losses(loss: Loss) -> bool:
    """Whether losses and their derivatives are known here: those of linear scores."""
    return isinstance(loss, LinearLoss | Softmax)


def needs_no_search(inner: Inner, radii: Numbers) -> bool:
    """Whether risks over balls of these radii are known here: of losses without kinks; of squared loss with
    radii second moments tell all."""
    loss = inner.loss
    if isinstance(loss, LinearLoss) and np.isinf(loss.scalar.curvature):
        return False
    if isinstance(loss, Squared) and np.any(radii):
        return False
    return has_mean_losses(loss) and (not np.any(radii) or has_closed_form(inner))


class Dealt(NamedTuple):
    """Rows of clients, one client after the other, and the fold of each."""

    samples: Numbers  # (N, m)
    sizes: Whole  # (n,)
    marks: Whole  # (N,) from 0

    @property
    def folds(self) -> int:
        return int(self.marks.max(initial=0)) + 1

    def only(self, fold: int) -> Dealt:
        """The rows of one fold."""
        if self.folds == 1:
            return self
        some = np.flatnonzero(self.marks == fold)
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)[some]
        sizes = np.bincount(owner, minlength=len(self.sizes))
        return Dealt(self.samples[some], sizes, np.zeros_like(some))

    def left(self, fold: Whole) -> Numbers:
        """(n, models) rows that are not in the model's fold (models,)."""
        folds = self.folds
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        counts = np.bincount(owner * folds + self.marks, minlength=len(self.sizes) * folds)
        counts = np.pad(counts.reshape(-1, folds), [(0, 0), (0, 1)])
        known = (fold >= 0) & (fold < folds)
        return np.asarray(self.sizes[:, None] - counts[:, np.where(known, fold, folds)], float)


class Means(NamedTuple):
    """Of risks at models, over the rows that are not in the model's fold."""

    value: Numbers  # (n, models)
    gradient: Numbers  # (n, models, k) in z = x, or (x, nu) where risks are lifted


def risks(inner: Inner, rows: Dealt, x: Numbers, fold: Whole, radii: Numbers) -> Means:
    """The clients' risks over balls of radii (n, models) at models (models, d), without the rows of a fold
    (models,) each; a number that is none of a fold leaves none out."""
    still = _still(inner, rows, x, fold)
    if not np.any(radii):
        return still
    reward = _reward(inner, rows, x, fold)
    return Means(still.value + radii * reward.value, still.gradient + radii[..., None] * reward.gradient)


def curvatures(inner: Inner, rows: Dealt, x: Numbers, fold: Whole) -> Numbers:
    """(n, models, k (k + 1) / 2) upper triangles of the second derivatives, which radii do not change."""
    loss = inner.loss
    place = _places(loss, rows)
    (classes, columns), (models, d) = place.shape, x.shape
    matrices = x[:, place].transpose(1, 2, 0)
    k = d + is_lifted(inner)
    above, right = np.triu_indices(k)
    inside = right < d
    above, right = above[inside], right[inside]
    packed = np.zeros((len(rows.sizes), models, len(inside)))
    flat = np.argsort(place, axis=None)  # of every coordinate of a model, its place among classes and columns
    for block in _blocks(rows, loss, models * classes**2, columns**2):
        bent = _bends(loss, block.target, block.design @ matrices)  # (classes, classes, rows, models)
        bent *= block.marks[:, None] != fold
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


def mean_losses(loss: Loss, rows: Dealt, x: Numbers) -> Numbers:
    """(n, models) over all rows, at models (models, d); nan for a client without any."""
    place = _places(loss, rows)
    (classes, columns), models = place.shape, len(x)
    matrices = x[:, place].transpose(1, 2, 0)
    sums = np.zeros((len(rows.sizes), models))
    for block in _blocks(rows, loss, models * classes, models * columns):
        losses = _tangents(loss, block.target, block.design @ matrices)[0]
        sums[block.clients] += np.add.reduceat(losses, block.first, axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / rows.sizes[:, None])


def proven_risks(inner: Inner, rows: Dealt, x: Numbers, eps: Numbers, curvature: bool) -> RiskModel:
    """What `Client.risk` says of one model x (d,), for all clients with radii eps (n,): what rounding
    hides is added to upper ends and taken off lower ones."""
    model, nowhere = x[None], np.full(1, -1)
    still, reward = (
        _still(inner, rows, model, nowhere),
        Means(np.zeros((len(eps), 1)), np.zeros((len(eps), 1, 1))),
    )
    multiplier = np.full(len(eps), np.inf)
    if has_closed_form(inner) and not isinstance(inner.loss, Squared):
        reward = _reward(inner, rows, model, nowhere)
        multiplier = reward.value[:, 0]
    mean, off = still.value[:, 0], _rounding(inner.loss, rows, x)
    earned = eps * reward.value[:, 0]
    upper = mean + off + of_sum(rows.sizes, mean + off) + earned
    lower = mean - off - of_sum(rows.sizes, mean - off) + earned
    gradient: Held = still.gradient[:, 0] + (eps[:, None, None] * reward.gradient)[:, 0]
    k, hessian = gradient.shape[1], None
    if curvature:
        hessian, (above, right) = np.zeros((len(eps), k, k)), np.triu_indices(k)
        packed = curvatures(inner, rows, model, nowhere)[:, 0]
        hessian[:, above, right] = hessian[:, right, above] = packed
    balanced, zero = np.stack([inner.loss.balanced(own) for own in gradient]), np.zeros(len(eps))
    ends: tuple[Held, Held] = (upper + of_value(upper, k), lower - of_value(lower, k))
    rest: tuple[Held, ...] = (balanced, zero, hessian, multiplier, multiplier, zero)
    return RiskModel(*ends, *rest)


def _still(inner: Inner, rows: Dealt, x: Numbers, fold: Whole) -> Means:
    """The mean losses: no sample moves."""
    loss = inner.loss
    place = _places(loss, rows)
    (classes, columns), models = place.shape, len(x)
    matrices = x[:, place].transpose(1, 2, 0)  # (classes, columns, models)
    value = np.zeros((len(rows.sizes), models))
    sums = np.zeros((len(rows.sizes), classes, models, columns))
    for one in range(rows.folds):
        asked = np.flatnonzero(fold != one)
        at = np.ascontiguousarray(matrices[..., asked])
        of_fold, slope_sums = value[:, asked], sums[:, :, asked]
        for block in _blocks(rows.only(one), loss, len(asked) * classes, len(asked) * columns):
            losses, slopes = _tangents(loss, block.target, block.design @ at)
            of_fold[block.clients] += np.add.reduceat(losses, block.first, axis=0)
            for client, own in block.parts:
                slope_sums[client] += slopes[:, own].swapaxes(1, 2) @ block.design[own]
        value[:, asked], sums[:, :, asked] = of_fold, slope_sums
    count, d = rows.left(fold), x.shape[1]
    gradient = np.zeros((*value.shape, d + is_lifted(inner)))
    gradient[..., place] = sums.swapaxes(1, 2)
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


def _reward(inner: Inner, rows: Dealt, x: Numbers, fold: Whole) -> Means:
    """What moves earn a unit of radius in the closed forms: the steepness, and where labels matter that of
    the labels which the client has."""
    loss = inner.loss
    cones = loss.steepness_cones(inner.transport.inverse_scale)
    matrix, offset = np.stack([cone.matrix for cone in cones]), np.stack([cone.offset for cone in cones])
    vectors = np.einsum("prd,qd->qpr", matrix, x) + offset
    sizes = vectors if cones[0].groups is None else cones[0].largest(vectors)  # cones are all in these groups
    norms = np.linalg.norm(sizes, axis=-1)  # (models, cones)
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
        own = Dealt(rows.samples[some], np.bincount(owner[some], minlength=n), rows.marks[some])
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


class _Block(NamedTuple):
    """Some consecutive rows."""

    rows: Numbers  # (rows, m)
    design: Numbers  # (rows, columns) what scores are linear in; margins, of a loss of them
    marks: Whole  # (rows,)
    clients: Whole  # whose rows these are
    first: Whole  # of each of these clients
    parts: list[tuple[int, slice]]  # the rows of each

    @property
    def target(self) -> Numbers:
        """(rows,)"""
        return self.rows[:, -1]


def _blocks(rows: Dealt, loss: Any, numbers: int, multiplications: int) -> Iterator[_Block]:
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
        theta = np.asarray(loss.design(rows.samples[some]))[:, :-1]
        design = np.concatenate([theta, np.ones((len(theta), int(loss.intercept)))], axis=1)
        if isinstance(loss, LinearLoss) and loss.labels is not None:
            design *= rows.samples[some, -1:]
        parts = [(int(i), slice(a, b)) for i, a, b in zip(clients, first, last, strict=True)]
        yield _Block(rows.samples[some], design, rows.marks[some], clients, first, parts)


def _places(loss: Any, rows: Dealt) -> Whole:
    """(classes, columns) where a model has the coefficient of each column in each score."""
    features = loss.columns(rows.samples.shape[1]) - 1
    if isinstance(loss, LinearLoss):
        return np.arange(features + int(loss.intercept))[None]
    place = np.arange(loss.classes * features).reshape(loss.classes, features)
    offsets = loss.classes * features + np.arange(loss.classes)[:, None]
    return np.concatenate([place, offsets], axis=1) if loss.intercept else place


def _tangents(loss: Any, target: Numbers, scores: Numbers) -> tuple[Numbers, Numbers]:
    """(losses (rows, models), their derivatives in the scores (classes, rows, models))."""
    if isinstance(loss, LinearLoss):
        line = loss.scalar.tangent(_argument(loss, target, scores), np.zeros(()))
        return line.value, line.slope[None]
    own = target.astype(int)[None, :, None]
    # From differences to the own score: a small loss then keeps its digits, however large the scores are.
    apart = scores - np.take_along_axis(scores, own, axis=0)
    first = apart.argmax(axis=0)[None]
    highest = np.take_along_axis(apart, first, axis=0)
    shares = np.exp(apart - highest)
    np.put_along_axis(shares, first, 0.0, axis=0)
    others = shares.sum(axis=0)
    np.put_along_axis(shares, first, 1.0, axis=0)
    shares /= 1.0 + others
    # 1 less the own share is the sum of the others, which keeps its digits too.
    np.put_along_axis(shares, own, 0.0, axis=0)
    np.put_along_axis(shares, own, -shares.sum(axis=0, keepdims=True), axis=0)
    return highest[0] + np.log1p(others), shares


def _argument(loss: LinearLoss, target: Numbers, scores: Numbers) -> Numbers:
    """(rows, models) the residuals or margins."""
    return scores[0] - target[:, None] if loss.labels is None else scores[0]


def _bends(loss: Any, target: Numbers, scores: Numbers) -> Numbers:
    """(classes, classes, rows, models) the second derivatives of the losses in the scores."""
    if isinstance(loss, LinearLoss):
        line = loss.scalar.tangent(_argument(loss, target, scores), np.zeros(()))
        return np.asarray(line.curvature)[None, None]
    shares = np.exp(scores - scores.max(axis=0))
    shares /= shares.sum(axis=0)
    bent = -shares[:, None] * shares[None, :]
    each = np.arange(len(shares))
    bent[each, each] += shares
    return np.asarray(bent)


def _rounding(loss: Any, rows: Dealt, x: Numbers) -> Numbers:
    """(n,) the mean over a client's rows of what rounding may hide of their losses."""
    found = np.zeros(len(rows.sizes))
    for block in _blocks(rows, loss, 1, len(x)):
        if isinstance(loss, LinearLoss):
            psi = block.design
            u = _argument(loss, block.target, (psi @ x)[None, :, None])[:, 0]
            off = of_linear(loss.scalar, u, psi, x, loss.scalar.tangent(u, np.zeros(())).slope)
        else:
            off = of_softmax(loss, x, block.rows)
        found[block.clients] += np.add.reduceat(off, block.first)
    return np.asarray(found / rows.sizes)
