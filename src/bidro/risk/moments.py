"""Means and second moments around them, of every client's rows or of the training rows of every fold, and the
risks of squared loss, which depend on nothing else (`MomentsOracle`).

Plain NumPy over rows in memory, sorted by client: nothing is compiled, no copy of the table is made, and the
rows are read once. Rows are centred at the mean of their own block before they are squared, and blocks are
joined by adding squares only (Chan, Golub and LeVeque), so that nothing cancels. Means are kept with what
rounding took from them until then: a column whose mean is huge next to its spread keeps the latter's digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.losses import Loss, Squared
from bidro.risk.oracle import ALL_ROWS, NO_LIFT, Lift, Views
from bidro.risk.rounding import of_value

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

# Rows squared in one product: sums of so many round by little, and a block stays in the cache.
_BLOCK_ROWS = 1024
# Groups of up to this many rows are handled many at once, as stacks of this many numbers.
_FEW_ROWS = 128
_STACK_NUMBERS = 1 << 18
# Sums over up to ten million rows are off by no more than this share of the sizes of their terms: twice what
# was found for terms made to round the same way.
_ROUNDING = 320 * float(np.finfo(float).eps)
# Means are mended by a second pass, and off by a few units only.
_OF_MEANS = 16 * float(np.finfo(float).eps)
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
    fold_ids: ArrayLike,
    folds: int,
    loss: Loss | None = None,
) -> TrainingMoments:
    """The moments of every fold's training rows; `fold_ids` (N,) is the fold of each row, from 0.

    A fold may hold no rows of a client, but must leave it some to train on.
    """
    counts = np.asarray(sizes, np.int64)
    n = len(counts)
    group = np.repeat(np.arange(n) * folds, counts) + np.asarray(fold_ids)
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


@dataclass(frozen=True, eq=False)
class MomentsOracle:
    """(RMSE_i(x) + eps_i nu(x))^2 of n clients with given moments of (theta, y): squared loss over balls with
    p = 2 on an unbounded support, or without radii.

    With v = (w, -1), RMSE_i(x)^2 = v' S_i v + (<v, m_i> + b)^2, m_i the mean and S_i the second moments
    around it. The moments are those of `smoothed`: a penalty of the loss is part of them.
    """

    loss: Squared
    of: Callable[[int], Moments]  # the clients' moments (n, ...) without a fold; of all rows below 0
    rows: Callable[[int], Numbers]  # (n,) how many rows these are of
    eps: Numbers  # (n,)
    lift: Lift = NO_LIFT
    views: Views = ALL_ROWS

    @classmethod
    def given(
        cls, loss: Squared, moments: Moments, eps: Numbers, lift: Lift = NO_LIFT, rows: Numbers | None = None
    ) -> MomentsOracle:
        """From the moments of so many rows (n,) that are those of `smoothed`; nothing is known of folds."""
        counts = np.ones(len(eps)) if rows is None else rows
        return cls(loss, lambda _: moments, lambda _: counts, eps, lift)

    @property
    def n(self) -> int:
        return len(self.eps)

    @property
    def target_spread(self) -> float:
        """The mean square of targets around their mean, each client counting the same."""
        moments = self.of(int(self.views.fold[0]))
        mean, around = moments.mean[:, -1], moments.around[:, -1, -1]
        return float(np.mean(around) + np.var(mean))

    def values(self, X: Numbers) -> Numbers:
        return self.expand(X).values

    def expand(self, X: Numbers, curvature: ArrayLike = True) -> MomentsExpansion:
        scale, fold = self.views.of(len(X))
        each = zip(X, fold.tolist(), scale.tolist(), strict=True)
        return MomentsExpansion(tuple(self.at(x, f, c) for x, f, c in each))

    def at(self, x: Numbers, fold: int = -1, scale: float = 0.0) -> SquaredRisks:
        """The risks around one model (d,)."""
        moments, features = self.of(fold), len(x) - int(self.loss.intercept)
        eps = self.eps + scale / np.sqrt(self.rows(fold)) if scale else self.eps
        v = np.append(x[:features], -1.0)
        bent = moments.around @ v
        residual = moments.mean @ v + x[features:].sum()
        squares = np.maximum(bent @ v, 0.0) + residual**2
        nu = float(self.lift.at(x)) if self.lift.cones else 0.0
        return SquaredRisks(moments, x, eps, nu, bool(self.lift.cones), squares, residual, bent)

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> MomentsOracle:
        own = np.broadcast_to(np.asarray(eps, float), self.n)
        return replace(self, eps=own, views=self.views.scaled(scale))

    def without_fold(self, fold: ArrayLike) -> MomentsOracle:
        return replace(self, views=self.views.without(fold))

    def only(self, which: Indices) -> MomentsOracle:
        return replace(self, views=self.views.only(which))


@dataclass(frozen=True, eq=False)
class MomentsExpansion:
    each: tuple[SquaredRisks, ...]  # one a model

    @cached_property
    def values(self) -> Numbers:
        return np.stack([one.values for one in self.each])

    @cached_property
    def gradients(self) -> Numbers:
        return np.stack([one.gradients for one in self.each])

    @property
    def lower(self) -> Numbers:
        return np.stack([one.bounds[0] for one in self.each])

    @property
    def upper(self) -> Numbers:
        return np.stack([one.bounds[1] for one in self.each])

    def curved_at(self, b: int) -> int:
        return b

    def hessian(self, b: int, alpha: Numbers) -> Numbers:
        return self.each[b].hessian(alpha)

    def hessians(self, b: int) -> Numbers:
        return np.stack([self.each[b].hessian(one) for one in np.eye(len(self.each[b].eps))])


@dataclass(frozen=True, eq=False)
class SquaredRisks:
    """The risks root^2 around a model x, root = RMSE + eps nu, as functions of z."""

    moments: Moments
    x: Numbers  # (d,)
    eps: Numbers  # (n,)
    nu: float
    lifted: bool
    squares: Numbers  # (n,) RMSE^2
    residual: Numbers  # (n,) the mean one
    bent: Numbers  # (n, m) around v

    @cached_property
    def rmse(self) -> Numbers:
        return np.sqrt(self.squares)

    @cached_property
    def root(self) -> Numbers:
        return np.asarray(self.rmse + self.eps * self.nu)

    @property
    def values(self) -> Numbers:
        return np.asarray(self.root**2)

    @cached_property
    def features(self) -> Numbers:
        """(n, d) the means of what models are multiplied with."""
        mean = self.moments.mean[:, :-1]
        return np.concatenate([mean, np.ones((len(mean), len(self.x) - mean.shape[1]))], axis=1)

    @cached_property
    def slope_of_half_squares(self) -> Numbers:
        """(n, d) of RMSE^2 / 2."""
        found = self.residual[:, None] * self.features
        found[:, : self.bent.shape[1] - 1] += self.bent[:, :-1]
        return np.asarray(found)

    @cached_property
    def slope(self) -> Numbers:
        """(n, d) of RMSE; 0 at an exact fit."""
        return np.asarray(self.slope_of_half_squares / np.where(self.squares > 0, self.rmse, 1.0)[:, None])

    @property
    def rounding(self) -> Numbers:
        """(n,) what rounding hides of RMSE^2: of the mean residual, and of the moments."""
        mean, around = self.moments
        features = mean.shape[1] - 1
        v, b = np.append(self.x[:features], -1.0), self.x[features:].sum()
        slip = _OF_MEANS * (np.abs(mean) @ np.abs(v) + abs(b))
        off = 2 * np.abs(self.residual) * slip + slip**2
        return np.asarray(off + _ROUNDING * (np.abs(around) @ np.abs(v) @ np.abs(v) + self.squares))

    @property
    def gradients(self) -> Numbers:
        """(n, k)"""
        of_root = self.slope
        if self.lifted:
            of_root = np.concatenate([of_root, self.eps[:, None]], axis=1)
        return np.asarray(2 * self.root[:, None] * of_root)

    @property
    def bounds(self) -> tuple[Numbers, Numbers]:
        """(lower, upper) ends (n,), with what rounding hides of the moments and of this sum."""
        off = self.rounding
        reward = self.eps * self.nu
        above = (np.sqrt(self.squares + off) + reward) ** 2
        # The cut of root^2 at this root, with a smaller RMSE under it.
        rmse = np.where(self.squares > 0, self.rmse, 1.0)
        least = np.where(self.squares > 0, np.maximum(self.squares - off, 0.0) / rmse, 0.0)
        below = 2 * self.root * (least + reward) - self.root**2
        d = len(self.x)
        return np.asarray(below - of_value(self.values, d)), np.asarray(above + of_value(above, d))

    def hessian(self, alpha: Numbers) -> Numbers:
        """(k, k) sum_i alpha_i times the second derivative of R_i in z."""
        # Of most clients no copy is made, which may be larger than the table.
        some: Any = np.flatnonzero(alpha) if 4 * np.count_nonzero(alpha) < len(alpha) else slice(None)
        around, features, slope = self.moments.around[some], self.features[some], self.slope[some]
        weight, root, eps = alpha[some], self.root[some], self.eps[some]
        curvature = weight * root / np.where(self.squares[some] > 0, self.rmse[some], 1.0)
        d, k = len(self.x), around.shape[1] - 1
        H = np.zeros((d + self.lifted, d + self.lifted))
        H[:d, :d] = (slope.T * (weight - curvature)) @ slope + (features.T * curvature) @ features
        H[:k, :k] += np.tensordot(curvature, around, axes=1)[:k, :k]
        if self.lifted:
            H[:d, d] = H[d, :d] = (weight * eps) @ slope
            H[d, d] = weight @ eps**2
        return np.asarray(2 * H)


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
