"""Means and second moments around them, of every client's rows, or of the training rows of every fold.

Plain NumPy over rows in memory, sorted by client: nothing is compiled, no copy of the table is made, and the
rows are read once. Rows are centred at the mean of their own block before they are squared, and blocks are
joined by adding squares only (Chan, Golub and LeVeque), so that nothing cancels. Means are kept with what
rounding took from them until then: a column whose mean is huge beside its spread keeps the latter's digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.losses import Loss

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

# Rows squared in one product: sums of so many round by little, and a block stays in the cache.
_BLOCK_ROWS = 1024
# Groups of up to this many rows are handled many at once, as stacks of this many numbers.
_FEW_ROWS = 128
_STACK_NUMBERS = 1 << 18
# Moments of so many bytes do no harm; larger ones are made where they are not much larger than the rows.
_SMALL, _TABLES = 3 << 23, 1


class Moments(NamedTuple):
    """Of rows (theta, y) in m columns, with any leading axes."""

    mean: Numbers  # (..., m)
    around: Numbers  # (..., m, m) mean of (row - mean)(row - mean)'


class TrainingMoments(NamedTuple):
    """Of the training rows of every fold at every client: all its rows but those of the fold."""

    mean: Numbers  # (n, folds, m)
    around: Numbers  # (n, folds, m, m)
    rows: Indices  # (n, folds) how many these are


def of_clients(samples: ArrayLike, sizes: Sequence[int] | Indices, loss: Loss | None = None) -> Moments:
    """The moments (n, m) and (n, m, m) of clients whose rows `samples` (N, m) holds one client after the
    other, `sizes` rows each and at least one; with a loss, of what its models are multiplied with."""
    each = _of_groups(_Table(np.asarray(samples), None, loss), np.asarray(sizes, np.int64))
    return Moments(each.centre + each.left, each.around)


def of_some(samples: Numbers, sizes: Indices, used: NDArray[np.bool_], loss: Loss) -> Moments:
    """Those of `of_clients` over the rows that are used (N,), at least one of every client."""
    counts = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[used], minlength=len(sizes))
    each = _of_groups(_Table(samples, np.flatnonzero(used), loss), counts)
    return Moments(each.centre + each.left, each.around)


def worth_their_memory(groups: int, columns: int, table: int) -> bool:
    """Whether second moments of so many groups of rows are small, or hardly larger than the table of these
    many bytes: with curves they can be larger by far."""
    return 8 * groups * columns**2 <= max(_SMALL, _TABLES * table)


def smoothed(moments: Moments, loss: Loss) -> Moments:
    """The moments of rows with which squared loss has the loss's penalty in its mean square."""
    if loss.penalty is None:
        return moments
    found = Moments(moments.mean, moments.around.copy())
    smooth(found, loss)
    return found


def smooth(moments: Moments, loss: Loss) -> None:
    """Make them those of `smoothed`, without a copy, which may be larger than the table."""
    if loss.penalty is not None:
        k = moments.mean.shape[-1] - 1
        moments.around[..., :k, :k] += loss.penalty[:k, :k]


def of_folds(
    samples: ArrayLike,
    sizes: Sequence[int] | Indices,
    marks: ArrayLike,
    folds: int,
    loss: Loss | None = None,
) -> TrainingMoments:
    """The moments of every fold's training rows; `marks` (N,) is the fold of each row, from 0.

    A fold may hold no rows of a client, but must leave it some to train on.
    """
    counts = np.asarray(sizes, np.int64)
    n = len(counts)
    group = np.repeat(np.arange(n) * folds, counts) + np.asarray(marks)
    order = None if np.all(group[:-1] <= group[1:]) else np.argsort(group, kind="stable")
    rows = np.bincount(group, minlength=n * folds)
    table = _Table(np.asarray(samples), order, loss)
    each = _Groups(*(part.reshape(n, folds, *part.shape[1:]) for part in _of_groups(table, rows)))
    rows = rows.reshape(n, folds)
    trained = rows.sum(axis=1, keepdims=True) - rows
    # A few clients at a time, in place of the folds' own moments: these may be larger than the table.
    together = max(1, _STACK_NUMBERS // each.around[0].size)
    for begin in range(0, n, together):
        some = slice(begin, begin + together)
        own = _Groups(*(part[some] for part in each))
        each.centre[some], each.around[some] = _of_others(own, rows[some], trained[some])
    return TrainingMoments(each.centre, each.around, trained)


class _Groups(NamedTuple):
    """Moments of groups of rows; their means are centre + left, with more digits than one number has."""

    centre: Numbers  # (..., m)
    left: Numbers  # (..., m)
    around: Numbers  # (..., m, m)


def _joined(share: Numbers, centre: Numbers, left: Numbers) -> _Groups:
    """Groups (..., groups, m) with a share (..., groups) of the rows each, taken together: their mean, and
    the second moments of the groups' means around it."""
    middle = share[..., None, :] @ centre
    away = (centre - middle) + left
    off = share[..., None, :] @ away
    away -= off
    between = np.matmul((share[..., None] * away).swapaxes(-1, -2), away)
    return _Groups(middle[..., 0, :], off[..., 0, :], between)


def of_all_folds(trained: TrainingMoments) -> Moments:
    """The moments of all rows, (n, m) and (n, m, m), from those of every fold's training rows, each row of
    which is in all folds but one."""
    share = trained.rows / trained.rows.sum(axis=1, keepdims=True)
    centre, left, between = _joined(share, trained.mean, np.zeros_like(trained.mean))
    return Moments(centre + left, np.einsum("nf,nfij->nij", share, trained.around) + between)


class LeftOutSums(NamedTuple):
    """Sums over the rows (theta, y) that folds leave out, counted from a centre of each client's own: what
    all folds' training rows hold, each row being in all of them but one, less what the fold's own hold."""

    centre: Numbers  # (n, m)
    rows: Numbers  # (n, folds)
    first: Numbers  # (n, folds, m)
    trained: TrainingMoments  # second moments are not copied, which may be larger than the table

    def squares(self, fold: int, models: Numbers) -> Numbers:
        """(n, candidates) sums of squared residuals of the models (candidates, d), or of each client's own
        (n, candidates, d)."""
        features = self.centre.shape[1] - 1
        v = np.concatenate([models[..., :features], -np.ones((*models.shape[:-1], 1))], axis=-1)
        v = np.broadcast_to(v, (len(self.centre), *v.shape[-2:]))
        base = (v @ self.centre[..., None])[..., 0] + models[..., features:].sum(axis=-1)
        counts = np.asarray(self.trained.rows, float)
        total = np.zeros(v.shape[:2])
        for one in range(counts.shape[1]):
            away = (v @ (self.trained.mean[:, one] - self.centre)[..., None])[..., 0]
            inside = np.sum((v @ self.trained.around[:, one]) * v, axis=-1)
            held = counts[:, one, None] * (inside + away**2)
            total += held * (1 / (counts.shape[1] - 1) - (one == fold))
        linear = (v @ self.first[:, fold][..., None])[..., 0]
        return np.asarray(total + 2 * base * linear + self.rows[:, fold, None] * base**2)

    def second(self, client: int, fold: int) -> Numbers:
        """(m, m) the sum of the rows' squares at one client."""
        counts = np.asarray(self.trained.rows, float)[client]
        share = counts * (1 / (len(counts) - 1) - (np.arange(len(counts)) == fold))
        away = self.trained.mean[client] - self.centre[client]
        inside = np.tensordot(share, self.trained.around[client], axes=1)
        return np.asarray(inside + (share[:, None] * away).T @ away)


def left_out_sums(trained: TrainingMoments) -> LeftOutSums:
    """What each fold leaves out: all rows but its training rows."""
    rows = np.asarray(trained.rows, float)
    centre = trained.mean.mean(axis=1)
    first = rows[..., None] * (trained.mean - centre[:, None])

    def rest(part: Numbers) -> Numbers:
        # Each row is left out once, so that the folds' training rows hold it folds - 1 times.
        return np.asarray(part.sum(axis=1, keepdims=True) / (rows.shape[1] - 1) - part)

    return LeftOutSums(centre, rest(rows), rest(first), trained)


def _of_others(each: _Groups, rows: Indices, trained: Indices) -> Moments:
    """From the folds' own moments (n, folds, ...), for each the moments of all other folds together, without
    subtracting anything."""
    folds = rows.shape[1]
    found = Moments(np.empty_like(each.centre), np.zeros_like(each.around))

    def sums(fold: int) -> Numbers:
        return np.asarray(rows[:, fold, None, None] * each.around[:, fold])

    # First sums over all later folds, then those over all earlier ones; they may be larger than the table,
    # and are kept once.
    for fold in range(folds - 1, 0, -1):
        found.around[:, fold - 1] = found.around[:, fold] + sums(fold)
    before = np.zeros_like(each.around[:, 0])
    for fold in range(folds):
        share = np.where(np.arange(folds) == fold, 0.0, rows / trained[:, [fold]])
        centre, left, between = _joined(share, each.centre, each.left)
        found.mean[:, fold] = centre + left
        found.around[:, fold] += before
        found.around[:, fold] /= trained[:, fold, None, None]
        found.around[:, fold] += between
        before += sums(fold)
    return found


class _Table(NamedTuple):
    """Rows in an order, as the loss has them: made a few at a time, for they may be wider than the table."""

    samples: Numbers  # (N, m)
    order: Indices | None
    loss: Loss | None

    @property
    def columns(self) -> int:
        m = self.samples.shape[1]
        return m if self.loss is None else self.loss.columns(m)

    def rows(self, at: Indices | slice) -> Numbers:
        """(..., columns)"""
        rows = self.samples[at if self.order is None else self.order[at]]
        return rows if self.loss is None else np.asarray(self.loss.design(rows))  # type: ignore[arg-type]


def _of_groups(table: _Table, counts: Indices) -> _Groups:
    """The moments of groups of consecutive rows of the table, `counts` of them each; 0 of empty ones."""
    m = table.columns
    found = _Groups(*(np.zeros((len(counts), *shape)) for shape in ((m,), (m,), (m, m))))
    starts = np.cumsum(counts) - counts
    few = (counts > 0) & (counts <= _FEW_ROWS)
    # Groups of like sizes together, so that stacks hold few empty places.
    small = np.flatnonzero(few)[np.argsort(counts[few], kind="stable")]
    at = 0
    while at < len(small):
        # As many as fit with the height of the tallest of them.
        together = max(1, _STACK_NUMBERS // (int(counts[small[at]]) * m))
        together = max(1, _STACK_NUMBERS // (int(counts[small[at : at + together][-1]]) * m))
        some = small[at : at + together]
        for part, of_some in zip(found, _of_stack(table, starts[some], counts[some]), strict=True):
            part[some] = of_some
        at += together
    for i in np.flatnonzero(counts > _FEW_ROWS):
        for part, own in zip(found, _of_many_rows(table, int(starts[i]), int(counts[i])), strict=True):
            part[i] = own
    return found


def _of_stack(table: _Table, starts: Indices, counts: Indices) -> _Groups:
    """The moments of small groups, all at once."""
    place = np.arange(counts.max())
    used = place < counts[:, None]
    at = np.where(used, starts[:, None] + place, starts[:, None])
    block = table.rows(at)  # (groups, height, m)
    share = (used / counts[:, None])[:, None]
    centre = share @ block
    away = np.where(used[..., None], block - centre, 0.0)
    left = share @ away
    around = np.matmul(away.swapaxes(1, 2), away) / counts[:, None, None] - left.swapaxes(1, 2) * left
    return _Groups(centre[:, 0], left[:, 0], around)


def _of_many_rows(table: _Table, start: int, count: int) -> _Groups:
    """The moments of one group, block by block."""
    m = table.columns
    begins = np.arange(start, start + count, _BLOCK_ROWS)
    rows = np.minimum(start + count - begins, _BLOCK_ROWS)
    centres, lefts = np.empty((2, len(begins), m))
    # Sums of sums of blocks: a sum over very many blocks, one after the other, would gather rounding.
    together = int(np.ceil(np.sqrt(len(begins))))
    inside = np.zeros((-(-len(begins) // together), m, m))
    for k, (begin, size) in enumerate(zip(begins.tolist(), rows.tolist(), strict=True)):
        block = table.rows(slice(begin, begin + size))
        share = np.full(size, 1 / size)
        centres[k] = centre = share @ block
        away = block - centre
        lefts[k] = left = share @ away
        inside[k // together] += away.T @ away - size * np.outer(left, left)
    joined = _joined(rows / count, centres, lefts)
    return joined._replace(around=inside.sum(axis=0) / count + joined.around)
