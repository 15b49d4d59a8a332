"""Coordinates of a model that can all rise together without any risk changing: the scores of softmax.

Along such a rise nobody has curvature. The program for the next model would then allow a step along it of
millions of times the size of those that matter, and lose these in its tolerances. So the curvature is given a
value of its own there, which holds the step and costs nothing, as nothing is gained along it but room: where
an edge of X is near, the next model is moved to the middle between the edges instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.sets import VectorSet

Numbers = NDArray[np.float64]
Groups = NDArray[np.int64]  # (groups, members) coordinates, none of them in two groups

# An edge is near from this share of the way from the middle to it. Rising from edge to edge may then cost the
# second share of the risk.
_NEAR, _CHEAP = 0.8, 1e-3


def held(M: Numbers, groups: Groups, models: VectorSet, x: Numbers, risk: float) -> Numbers:
    """M (k, k) with a curvature along the rise of each group: as large as its members have by themselves, but
    where x (d,) is near an edge so small that it does not keep the others from moving."""
    raised, room = M.copy(), _room(models, x, groups)
    for group, width, near in zip(groups, room.width, room.near, strict=True):
        own = np.diag(M)[group]
        if own.sum() > 0:
            share = min(1.0, _CHEAP * risk / (own.sum() * width**2)) if near else 1.0
            raised[np.ix_(group, group)] += share * np.outer(own, own) / own.sum()
    return raised


def centred(models: VectorSet, x: Numbers, groups: Groups) -> Numbers:
    """x (d,) with those groups that are near an edge of the box around X moved to where both edges are
    equally far; x itself where that leads out of X."""
    room, moved = _room(models, x, groups), x.copy()
    moved[groups[room.near]] += ((room.up - room.down) / 2)[room.near, None]
    return moved if models.contains(moved, 0.0) else x


class _Room(NamedTuple):
    """How far each group (groups,) can fall and rise in the box around X, and between its edges."""

    down: Numbers
    up: Numbers
    width: Numbers

    @property
    def near(self) -> NDArray[np.bool_]:
        return np.asarray(np.minimum(self.down, self.up) < (1 - _NEAR) / 2 * self.width)


def _room(models: VectorSet, x: Numbers, groups: Groups) -> _Room:
    lower, upper = (np.asarray(side)[groups] for side in models.bounding_box())
    spans = (x[groups] - lower, upper - x[groups], upper - lower)
    return _Room(*(span.min(axis=1, initial=np.inf) for span in spans))
