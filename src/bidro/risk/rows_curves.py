"""Squared loss of curves straight from the rows, where second moments of every client would be too large.

A row's columns in the basis of curves follow from the segment that each of its values lies in: with c the
column of that segment, column c' of the same curve is L[c, c'] plus, for c' = c, the value itself. So a score
is a sum over features of (L x)[c] + x[c] v, and a sum of rows that are weighed needs two counts a segment.
Neither makes a column: both take as long as reading the table, however many segments there are. Columns of
pairs are made, a few rows at a time.

`CurveOracle` gives the clients' risks to solvers. Second derivatives do need the columns, and are
made a few rows at a time. What they are divided by need not be exact: as long as the weights of the clients
have turned little, those of earlier weights serve.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.data.splines import Basis
from bidro.losses import Squared
from bidro.risk.oracle import NO_LIFT

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

# Numbers that are handled together: few enough to stay in the cache.
_TOGETHER = 1 << 16
# Weights of clients that differ by more than this in all need second derivatives of their own; by more than
# the second number, where so many steps with the old ones have not been enough.
_TURNED, _TURNED_LITTLE, _STEPS = 0.3, 1e-3, 4


class CurveRows:
    """Rows (N, k + 1) of clients, `sizes` (n,) one after the other, and where their values lie."""

    def __init__(self, loss: Squared, samples: Numbers, sizes: Whole) -> None:
        assert loss.basis is not None
        self.loss, self.basis = loss, loss.basis
        self.samples, self.sizes = samples, np.asarray(sizes, np.int64)
        self._ends = np.cumsum(self.sizes)
        self._columns = _columns_of(self.basis, samples[:, :-1])
        self._before = _before(self.basis)
        self.penalty = loss.penalty

    def only(self, used: NDArray[np.bool_]) -> CurveRows:
        """Some of the rows (N,)."""
        sizes = self.by_client(used.astype(float)).astype(np.int64)
        some = copy(self)
        some.samples, some.sizes, some._columns = self.samples[used], sizes, self._columns[used]
        some._ends = np.cumsum(sizes)
        return some

    @property
    def n(self) -> int:
        return len(self.sizes)

    def residuals(self, x: Numbers) -> Numbers:
        """(N,) of a model (d,)."""
        C = self.basis.of_curves
        slopes, cells = x[:C], x[C : self.basis.columns]
        offset = x[self.basis.columns :].sum()
        base, found = self._before @ slopes, np.empty(len(self.samples))
        for some in self._parts(self.basis.columns - C):
            columns = self._columns[some]
            scores = slopes[columns]
            scores *= self.samples[some, :-1]
            scores += base[columns]
            found[some] = scores.sum(axis=1)
            if len(cells):
                found[some] += self.basis.expand_pairs(self.samples[some, :-1]) @ cells
        return found + offset - self.samples[:, -1]

    def weighed(self, weights: Numbers) -> Numbers:
        """(n, d) each client's sum of its rows, weighed (N,), in the basis of curves and the intercept."""
        C, n, cells = self.basis.of_curves, self.n, self.basis.columns - self.basis.of_curves
        counts, sums, of_pairs = np.zeros((n, C)), np.zeros((n, C)), np.zeros((n, cells))
        for some in self._parts(cells):
            first, last = np.searchsorted(self._ends, [some.start, some.stop - 1], side="right")
            owner = np.searchsorted(self._ends, np.arange(some.start, some.stop), side="right") - first
            place = (owner[:, None] * C + self._columns[some]).ravel()
            weight = np.broadcast_to(weights[some, None], self._columns[some].shape)
            size = (last - first + 1) * C
            own = slice(first, last + 1)
            counts[own] += np.bincount(place, weight.ravel(), size).reshape(-1, C)
            moved = weight * self.samples[some, :-1]
            sums[own] += np.bincount(place, moved.ravel(), size).reshape(-1, C)
            if cells:
                each = weights[some, None] * self.basis.expand_pairs(self.samples[some, :-1])
                starts = np.flatnonzero(np.diff(owner, prepend=-1))
                of_pairs[first + owner[starts]] += np.add.reduceat(each, starts, axis=0)
        found = np.concatenate([counts @ self._before + sums, of_pairs], axis=1)
        if not self.loss.intercept:
            return found
        return np.column_stack([found, self.by_client(weights)])

    def by_client(self, values: Numbers) -> Numbers:
        """(n,) sums of values (N,)."""
        return np.add.reduceat(np.append(values, 0.0), self._ends - self.sizes)[: self.n] * (self.sizes > 0)

    def squared(self, weights: Numbers) -> Numbers:
        """(d, d) the sum over all rows of what models are multiplied with, squared, with weights (N,) of at
        least 0."""
        d = self.loss.dimension(self.samples.shape[1])
        found = np.zeros((d, d))
        for some in self._parts(d):
            used = np.flatnonzero(weights[some]) + some.start
            design = np.ones((len(used), d))
            design[:, : self.basis.columns] = self.basis.expand(self.samples[used, :-1])
            design *= np.sqrt(weights[used])[:, None]
            found += design.T @ design
        return found

    def _parts(self, width: int = 0) -> list[slice]:
        height = max(256, _TOGETHER // max(self._columns.shape[1], width, 1))
        return [slice(b, min(b + height, len(self.samples))) for b in range(0, len(self.samples), height)]


class CurveOracle:
    """Mean squares of clients at models, over some of their rows, with the penalty of the loss: a
    `RiskOracle` of one view, without radii.

    Hessians are those of the weights that are wanted, or of earlier ones that were nearly the same: a step
    need not divide by the exact one. `exactly` asks for the weights' own.
    """

    lift = NO_LIFT

    def __init__(self, rows: CurveRows, used: NDArray[np.bool_], pooled: Numbers | None = None) -> None:
        """`used` (N,) are the rows that count, some of every client; `pooled` is what `rows.squared` gives
        with 1 over their number, where it is known."""
        self.rows, self.used = rows, used
        self.counts = rows.by_client(used.astype(float))
        self.penalty = rows.penalty
        total = float(self.counts.sum())
        matrix = rows.squared(used / total) if pooled is None else pooled
        self._mixed, self._served = (self.counts / total, matrix), 0
        # How far weights may turn, at first and after some steps, before second derivatives are made anew.
        self._turned = (_TURNED, _TURNED_LITTLE)

    @property
    def n(self) -> int:
        return self.rows.n

    def exactly(self) -> CurveOracle:
        """The same, with Hessians of the very weights from now on."""
        self._turned = (0.0, 0.0)
        return self

    @property
    def target_spread(self) -> float:
        """The mean square of targets around their mean, each client counting the same."""
        y, used = self.rows.samples[:, -1], self.used.astype(float)
        mean = self.rows.by_client(used * y) / self.counts
        away = (y - np.repeat(mean, self.rows.sizes)) ** 2
        return float(np.mean(self.rows.by_client(used * away) / self.counts) + np.var(mean))

    def values(self, X: Numbers) -> Numbers:
        return np.stack([self._at(x)[0] for x in X])

    def expand(self, X: Numbers, curved: ArrayLike = True) -> CurveExpansion:
        values, gradients = [], []
        for x in X:
            value, residuals = self._at(x)
            values.append(value)
            gradient = 2 * self.rows.weighed(residuals) / self.counts[:, None]
            gradients.append(gradient if self.penalty is None else gradient + 2 * (self.penalty @ x))
        return CurveExpansion(np.stack(values), np.stack(gradients), self)

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> CurveOracle:
        if np.any(eps) or np.any(scale):
            raise NotImplementedError("Risks with radii come from moments.")
        return self

    def without_fold(self, fold: ArrayLike) -> CurveOracle:
        raise NotImplementedError("A fold has an oracle of its own.")

    def only(self, which: Whole) -> CurveOracle:
        return self

    def second_derivative(self, alpha: Numbers) -> Numbers:
        """(d, d), of clients' weights (n,) or such as are nearly as large."""
        weights, matrix = self._mixed
        self._served += 1
        if np.abs(weights - alpha).sum() > self._turned[self._served > _STEPS]:
            matrix = self.rows.squared(
                np.where(self.used, np.repeat(alpha / self.counts, self.rows.sizes), 0.0)
            )
            self._mixed, self._served = (alpha, matrix), 0
        return np.asarray(2 * (matrix if self.penalty is None else matrix + self.penalty))

    def _at(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """(risks (n,), residuals (N,), 0 of rows that do not count)."""
        residuals = self.rows.residuals(x) * self.used
        values = self.rows.by_client(residuals**2) / self.counts
        if self.penalty is not None:
            values += max(float(x @ self.penalty @ x), 0.0)
        return values, residuals


class CurveExpansion(NamedTuple):
    """Risks around models; nothing is proven of them here: what is chosen is proven from moments."""

    values: Numbers  # (B, n)
    gradients: Numbers  # (B, n, d)
    of: CurveOracle

    @property
    def lower(self) -> Numbers:
        return np.full_like(self.values, -np.inf)

    @property
    def upper(self) -> Numbers:
        return np.full_like(self.values, np.inf)

    def curved_at(self, b: int) -> int:
        return b

    def hessian(self, b: int, alpha: Numbers) -> Numbers:
        return self.of.second_derivative(alpha)

    def hessians(self, b: int) -> Numbers:
        raise NotImplementedError("Hessians of curves from rows are mixed as they are made.")


def _columns_of(basis: Basis, features: Numbers) -> NDArray[np.uint16]:
    """(N, k) the column of the segment that each value of rows (N, k) lies in."""
    found = np.empty(features.shape, np.uint16)
    starts = np.cumsum(basis.segments) - basis.segments
    height = max(16, _TOGETHER // max(features.shape[1], 1))
    for begin in range(0, len(features), height):
        some = features[begin : begin + height]
        curves = basis.curves_of(some)
        for curve, (j, _) in enumerate(basis.each_curve()):
            own = curves[:, j] == curve
            inside = np.searchsorted(np.asarray(basis.knots[curve], float), some[own, j])
            found[begin : begin + len(some)][own, j] = starts[curve] + inside
    return found


def _before(basis: Basis) -> Numbers:
    """(of_curves, of_curves) L: what the columns of a curve are for a value in one of its segments, less the
    value itself in the segment's own."""
    low, high = basis.ends
    begin = np.clip(0.0, low, high)
    C = basis.of_curves
    own, other = np.arange(C)[:, None], np.arange(C)[None]
    with np.errstate(invalid="ignore"):
        reached = np.where(other < own, high, low) - begin
    found = np.where(own == other, -begin, reached)
    return np.where(basis.curve[:, None] == basis.curve, found, 0.0)
