"""What cross-validation by Newton's method keeps, asks of its clients and is told: see `fold_newton`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.local_minimax import Caps, Steepness
from bidro.algorithms.references import References
from bidro.sets.base import Constraints, Held

Numbers = NDArray[np.float64]

# A prediction within this share is right enough for curvature to stay.
_CURVED = 0.02


class NewtonBroadcast(NamedTuple):
    """The first `models` and the first `bends` are asked for; what comes after them is to be ignored."""

    models: Held
    x: Held  # (solves, d)
    fold: Held  # (solves,) whose rows are left out; one past the last for none
    scale: Held  # (solves,) c times the spread
    bends: Held
    bend_x: Held  # (candidates, d) where curvature is asked for
    bend_fold: Held  # (candidates,) whose rows are left out; one past the last for none
    bend_scale: Held  # (candidates,)


class NewtonReply(NamedTuple):
    attained: Held  # (solves,) of a cut below the risk over the fold's training rows
    smoothing: Held  # (solves,) what the risk with this gradient exceeds it by
    gradient: Held  # (solves, k) of that cut
    curvature: Held  # (candidates, k (k + 1) / 2) upper triangles


class NewtonState(NamedTuple):
    """Arrays have leading axes (candidates, folds), those on all rows as one more fold, the last."""

    caps: Caps
    references: References
    steepness: Steepness
    limits: Constraints
    scale: Numbers  # (candidates,) c times the spread
    endless: bool  # whether the loss is 0 only at infinity
    x: Numbers  # (..., d) to be assessed next; of finished solves the solution
    going: NDArray[np.bool_]  # (...) solves that are not finished
    wrong: Numbers  # (...) by which share of it the last prediction was wrong
    centre: Numbers  # (..., d)
    merit: Numbers  # (...) worst mixture of the risks there, inf before the first
    risks: Numbers  # (..., n) references taken off
    gradient: Numbers  # (..., n, k)
    curvature: Numbers  # (known, n, k, k)
    bend: NDArray[np.int64]  # (...) which of these is the solve's
    stiffness: Numbers  # (...)
    predicted: Numbers  # (...) fall of the merit at x
    floor: Numbers  # (...)
    t: int

    @property
    def active(self) -> NDArray[np.int64]:
        """The solves that are not finished."""
        return np.flatnonzero(self.going)

    @property
    def finished(self) -> bool:
        return not self.going.any()

    @property
    def models(self) -> Numbers:
        """(folds + 1, candidates, d): last those of all rows."""
        return np.swapaxes(self.x, 0, 1)


class Asked(NamedTuple):
    """The different questions of a round, and which solve or candidate each answer is for."""

    x: Numbers  # (questions, d)
    fold: NDArray[np.int64]
    scale: Numbers
    of_solve: NDArray[np.int64]  # (going solves,)
    bend_x: Numbers
    bend_fold: NDArray[np.int64]
    bend_scale: Numbers
    bend: NDArray[np.int64]  # (candidates, folds) -1 where no curvature is asked for


def asked_in(state: NewtonState) -> Asked:
    """Solves with the same model, fold and radius ask once, and so do candidates."""
    candidate, fold = np.nonzero(state.going)
    solves = np.column_stack([state.x[state.going], fold, state.scale[candidate]])
    different, of_solve = np.unique(solves, axis=0, return_inverse=True)
    wanted = state.going & (state.wrong > _CURVED)
    candidates, folds, _ = state.x.shape
    bend = np.full(state.going.shape, -1)
    bends = np.zeros((0, solves.shape[1]))
    if wanted.any():
        one, of = np.nonzero(wanted)
        bends, which = np.unique(
            np.column_stack([state.x[wanted], of, state.scale[one]]), axis=0, return_inverse=True
        )
        bend[wanted] = which.ravel()
    if len(bends) > candidates or not np.isfinite(state.predicted).any():
        some = np.flatnonzero(wanted.any(axis=1))
        share = state.going[some] / state.going[some].sum(axis=1, keepdims=True)
        middle = np.einsum("cf,cfd->cd", share, state.x[some])
        middles = np.column_stack([middle, np.full(len(some), folds - 1), state.scale[some]])
        bends, which = np.unique(middles, axis=0, return_inverse=True)
        bend[some] = which.ravel()[:, None]
    return Asked(
        different[:, :-2],
        different[:, -2].astype(np.int64),
        different[:, -1],
        of_solve.ravel(),
        bends[:, :-2],
        bends[:, -2].astype(np.int64),
        bends[:, -1],
        bend,
    )
