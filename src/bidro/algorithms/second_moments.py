"""Means and second moments around them, of every client's rows, or of the training rows of every fold.

Plain NumPy over rows in memory, sorted by client: nothing is compiled, no copy of the table is made, and the
rows are read once. Rows are centred at the mean of their own block before they are squared, and blocks are
joined by adding squares only (Chan, Golub and LeVeque), so that nothing cancels: a column whose mean is huge
beside its spread keeps the digits of the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

# Rows squared in one product: sums of so many round by little, and a block stays in the cache.
_BLOCK_ROWS = 1024
# Groups of up to this many rows are handled many at once, as stacks of this many numbers.
_FEW_ROWS = 128
_STACK_NUMBERS = 1 << 18


class Moments(NamedTuple):
    """Of rows (theta, y) in m columns, with any leading axes."""

    mean: Numbers  # (..., m)
    around: Numbers  # (..., m, m) mean of (row - mean)(row - mean)'


class TrainingMoments(NamedTuple):
    """Of the training rows of every fold at every client: all its rows but those of the fold."""

    mean: Numbers  # (n, folds, m)
    around: Numbers  # (n, folds, m, m)
    rows: Indices  # (n, folds) how many these are


def of_clients(samples: ArrayLike, sizes: Sequence[int] | Indices) -> Moments:
    """The moments (n, m) and (n, m, m) of clients whose rows `samples` (N, m) holds one client after the
    other, `sizes` rows each and at least one."""
    return _of_groups(np.asarray(samples), None, np.asarray(sizes, np.int64))


def of_folds(
    samples: ArrayLike, sizes: Sequence[int] | Indices, marks: ArrayLike, folds: int
) -> TrainingMoments:
    """The moments of every fold's training rows; `marks` (N,) is the fold of each row, from 0.

    A fold may hold no rows of a client, but must leave it some to train on.
    """
    counts = np.asarray(sizes, np.int64)
    n = len(counts)
    group = np.repeat(np.arange(n) * folds, counts) + np.asarray(marks)
    order = None if np.all(group[:-1] <= group[1:]) else np.argsort(group, kind="stable")
    rows = np.bincount(group, minlength=n * folds)
    each = _of_groups(np.asarray(samples), order, rows)
    m = each.mean.shape[1]
    mean, around = each.mean.reshape(n, folds, m), each.around.reshape(n, folds, m, m)
    rows = rows.reshape(n, folds)
    trained = rows.sum(axis=1, keepdims=True) - rows
    # A few clients at a time, in place of the folds' own moments: these may be larger than the table.
    together = max(1, _STACK_NUMBERS // (folds * m * m))
    for begin in range(0, n, together):
        some = slice(begin, begin + together)
        mean[some], around[some] = _of_others(mean[some], around[some], rows[some], trained[some])
    return TrainingMoments(mean, around, trained)


def _of_others(mean: Numbers, around: Numbers, rows: Indices, trained: Indices) -> Moments:
    """From the folds' own moments (n, folds, ...), for each the moments of all other folds together."""
    joined = Moments(np.empty_like(mean), np.empty_like(around))
    for fold, inside in _sums_of_others(rows[..., None, None] * around):
        share = np.where(np.arange(rows.shape[1]) == fold, 0.0, rows / trained[:, [fold]])
        centre = _mended_mean(share[:, None], mean)
        away = mean - centre
        between = np.matmul((share[..., None] * away).swapaxes(1, 2), away)
        joined.mean[:, fold] = centre[:, 0]
        joined.around[:, fold] = inside / trained[:, fold, None, None] + between
    return joined


def _sums_of_others(parts: Numbers) -> Iterator[tuple[int, Numbers]]:
    """For each place along the second axis, the sum of the parts (n, places, ...) in all others, without
    subtracting anything."""
    after = np.zeros_like(parts)
    for place in range(parts.shape[1] - 1, 0, -1):
        after[:, place - 1] = after[:, place] + parts[:, place]
    before = np.zeros_like(parts[:, 0])
    for place in range(parts.shape[1]):
        yield place, before + after[:, place]
        before += parts[:, place]


def _mended_mean(share: Numbers, values: Numbers) -> Numbers:
    """share @ values, shares summing to 1, by a second pass free of the rounding of a large common part."""
    centre = share @ values
    return np.asarray(centre + share @ (values - centre))


def _of_groups(samples: Numbers, order: Indices | None, counts: Indices) -> Moments:
    """The moments of groups of consecutive rows of samples[order], `counts` of them each; 0 of empty ones."""
    m = samples.shape[1]
    found = Moments(np.zeros((len(counts), m)), np.zeros((len(counts), m, m)))
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
        found.mean[some], found.around[some] = _of_stack(samples, order, starts[some], counts[some])
        at += together
    for i in np.flatnonzero(counts > _FEW_ROWS):
        found.mean[i], found.around[i] = _of_many_rows(samples, order, int(starts[i]), int(counts[i]))
    return found


def _of_stack(samples: Numbers, order: Indices | None, starts: Indices, counts: Indices) -> Moments:
    """The moments of small groups, all at once."""
    place = np.arange(counts.max())
    used = place < counts[:, None]
    at = np.where(used, starts[:, None] + place, starts[:, None])
    block = samples[at if order is None else order[at]]  # (groups, height, m)
    share = (used / counts[:, None])[:, None]
    centre = share @ block
    away = np.where(used[..., None], block - centre, 0.0)
    left = share @ away
    around = np.matmul(away.swapaxes(1, 2), away) / counts[:, None, None] - left.swapaxes(1, 2) * left
    return Moments((centre + left)[:, 0], around)


def _of_many_rows(samples: Numbers, order: Indices | None, start: int, count: int) -> Moments:
    """The moments of one group, block by block."""
    m = samples.shape[1]
    begins = np.arange(start, start + count, _BLOCK_ROWS)
    rows = np.minimum(start + count - begins, _BLOCK_ROWS)
    means = np.empty((len(begins), m))
    # Sums of sums of blocks: a sum over very many blocks, one after the other, would gather rounding.
    together = int(np.ceil(np.sqrt(len(begins))))
    parts = np.zeros((-(-len(begins) // together), m, m))
    for k, (begin, size) in enumerate(zip(begins.tolist(), rows.tolist(), strict=True)):
        block = samples[begin : begin + size] if order is None else samples[order[begin : begin + size]]
        share = np.full(size, 1 / size)
        centre = share @ block
        away = block - centre
        left = share @ away
        means[k] = centre + left
        parts[k // together] += away.T @ away - size * np.outer(left, left)
    mean = _mended_mean(rows / count, means)
    away = means - mean
    return Moments(mean, (parts.sum(axis=0) + (away.T * rows) @ away) / count)
