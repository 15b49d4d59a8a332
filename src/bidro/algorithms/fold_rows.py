"""Cross-validation of squared loss with curves where the rows are here, and the second moments of every
client and fold would be larger than the table by far: one fold at a time, from its moments, or straight from
the rows where even these would be too large.

Moments are read once a step of Newton's method, rows whenever the weights of the clients have turned, which
takes longer the more rows there are.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import HeldRows
from bidro.algorithms.curve_rows import CurveRows, RowRisks
from bidro.algorithms.fold_moments import FoldMoments, Found, MomentsState, risks_of
from bidro.algorithms.second_moments import of_some, smooth
from bidro.losses import Squared

Numbers = NDArray[np.float64]

# The gap of the models of all rows, one of which is to be proven optimal.
_OF_ALL_ROWS = 1e-8
# Second moments of the clients in one fold may take this many bytes.
_ONE_FOLD = 1 << 27


def found_from_rows(moments: FoldMoments, state: MomentsState, held: HeldRows) -> Found:
    """What `moments` would find, from its first state and all clients' rows, in folds; no client has a
    radius."""
    assert isinstance(held.loss, Squared)
    assert held.marks is not None
    rows, marks, folds = CurveRows(held.loss, held.samples, held.sizes), held.marks, moments.folds
    counts = np.stack([rows.by_client((marks == fold).astype(float)) for fold in range(folds)])
    small = 8 * rows.n * held.loss.columns(held.samples.shape[1]) ** 2 <= _ONE_FOLD
    squares = None if small else _squares(rows, marks, folds)
    models, losses = [], []
    for fold in range(folds):
        others = [other for other in range(folds) if other != fold]
        models.append(_solved(moments, state, rows, marks != fold, squares, others)[0])
        losses.append(_sums_of_squares(rows, marks == fold, models[-1]) / counts[fold][:, None])
    everything = np.ones(len(marks), bool), squares, range(folds), _OF_ALL_ROWS
    of_all, weights = _solved(moments, state, rows, *everything)
    return Found(np.stack([*models, of_all]), np.stack(losses), counts, weights, None)


def _squares(rows: CurveRows, marks: NDArray[np.int64], folds: int) -> Numbers:
    """(folds, d, d) of the rows of each fold: once, and what is divided by is made of all other folds'."""
    d = rows.loss.dimension(rows.samples.shape[1])
    found = np.empty((folds, d, d))
    for fold in range(folds):
        found[fold] = rows.squared((marks == fold).astype(float))
    return found


def _solved(
    moments: FoldMoments,
    state: MomentsState,
    rows: CurveRows,
    used: NDArray[np.bool_],
    squares: Numbers | None,
    folds: Iterable[int],
    gap: float | None = None,
) -> tuple[Numbers, Numbers]:
    """(models (candidates, d), weights (candidates, n)) on the rows that are used: those of some folds, whose
    squares are (all folds, d, d); from the clients' moments without these."""
    counts = rows.by_client(used.astype(float))
    if squares is None:
        own = of_some(rows.samples, rows.sizes, used, rows.loss)
        smooth(own, rows.loss)
        return moments.models(state, risks_of(state, own), counts, gap)
    pooled = np.zeros(squares.shape[1:])
    for fold in folds:
        pooled += squares[fold]
    pooled /= np.count_nonzero(used)
    return moments.models(state, RowRisks(rows, used, pooled), counts, gap)


def _sums_of_squares(rows: CurveRows, used: NDArray[np.bool_], models: Numbers) -> Numbers:
    """(n, models) over the rows that are used."""
    some = rows.only(used)
    return np.stack([some.by_client(some.residuals(x) ** 2) for x in models], axis=1)
