"""Cross-validation of squared loss with curves straight from the rows, where these are here and the second
moments of every client and fold would be larger than the table by far."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import HeldRows
from bidro.algorithms.curve_rows import CurveRows, RowRisks
from bidro.algorithms.fold_moments import FoldMoments, Found, MomentsState
from bidro.losses import Squared

Numbers = NDArray[np.float64]

# The gap of the models of all rows, one of which is to be proven optimal.
_OF_ALL_ROWS = 1e-8


def found_from_rows(moments: FoldMoments, state: MomentsState, held: HeldRows) -> Found:
    """What `moments` would find, from its first state and all clients' rows, in folds; no client has a
    radius."""
    assert isinstance(held.loss, Squared)
    assert held.marks is not None
    rows, marks = CurveRows(held.loss, held.samples, held.sizes), held.marks
    folds = moments.folds
    counts = np.stack([rows.by_client((marks == fold).astype(float)) for fold in range(folds)])
    # Rows of a fold are squared once: what is divided by is made of all other folds'.
    d = held.loss.dimension(held.samples.shape[1])
    squares = np.empty((folds, d, d))
    for fold in range(folds):
        squares[fold] = rows.squared((marks == fold).astype(float))
    models, losses = [], []
    for fold in range(folds):
        others = [other for other in range(folds) if other != fold]
        models.append(_solved(moments, state, rows, marks != fold, squares, others)[0])
        losses.append(_sums_of_squares(rows, marks == fold, models[-1]) / counts[fold][:, None])
    everything = np.ones(len(marks), bool), squares, range(folds), _OF_ALL_ROWS
    of_all, weights = _solved(moments, state, rows, *everything)
    return Found(np.stack([*models, of_all]), np.stack(losses), counts, weights, None)


def _solved(
    moments: FoldMoments,
    state: MomentsState,
    rows: CurveRows,
    used: NDArray[np.bool_],
    squares: Numbers,
    folds: Iterable[int],
    gap: float | None = None,
) -> tuple[Numbers, Numbers]:
    """(models (candidates, d), weights (candidates, n)) on the rows that are used: those of some folds, whose
    squares are (all folds, d, d)."""
    pooled = np.zeros(squares.shape[1:])
    for fold in folds:
        pooled += squares[fold]
    pooled /= np.count_nonzero(used)
    risks = RowRisks(rows, used, pooled)
    return moments.models(state, risks, risks.counts, gap)


def _sums_of_squares(rows: CurveRows, used: NDArray[np.bool_], models: Numbers) -> Numbers:
    """(n, models) over the rows that are used."""
    some = rows.only(used)
    return np.stack([some.by_client(some.residuals(x) ** 2) for x in models], axis=1)
