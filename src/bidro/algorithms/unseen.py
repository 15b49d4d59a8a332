"""Directions in which a model can move without anybody's risk changing, and how steps are kept off them.

What is added to all scores of a softmax model, or to one of two equal columns and taken from the other, changes
nothing. The curvature M is 0 along such a direction N, so that the next model's program would allow it any
step, and its own unit of a step would be millions of times larger than the others: all that is to be found is
then lost in the program's tolerances. So M is raised along N to its largest value, which costs nothing, as
nobody gains by steps along N. Only where an edge of X is near, which such a step can make room at, is it
raised less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from bidro.algorithms.cone_model import LEAST_CURVATURE, ConeModel, Curvature
from bidro.losses.base import Cone

Numbers = NDArray[np.float64]

# A direction is not seen where slopes along it are below this share of the steepest, but for rounding.
_UNSEEN = 1e-12
# Near an edge M is raised to this share of the least value that is seen.
_MOVABLE = 1e-3
# A coordinate is near an edge where it is this much of the way to it from the middle.
_NEAR = 0.8
_ROOM = 0.99


class Held(NamedTuple):
    curvature: Curvature
    unseen: Numbers  # (d, directions) along which nobody sees a model move


def held(model: ConeModel, M: Curvature, slopes: Numbers, x: Numbers) -> Held:
    """M raised along directions that neither cuts with these slopes (cuts, k) nor cones see; less where
    coordinates that are near an edge of X change."""
    values, vectors, d = M.values.copy(), M.vectors.copy(), len(x)
    flat = int(np.count_nonzero(values <= LEAST_CURVATURE * values.max()))
    if not flat or flat == len(values):
        return Held(M, np.zeros((d, 0)))
    near = _out(model, x) > _NEAR
    sights = _sights(slopes, model.cones) * M.units
    sights = sights[(lengths := np.linalg.norm(sights, axis=1)) > 0] / lengths[lengths > 0][:, None]
    bent = values[flat:] / values.max()
    # Rounding in M turns its vectors by so much towards others.
    turned = len(values) * float(np.finfo(float).eps) / bent
    sizes, turn = _by_size(sights @ vectors[:, :flat])
    rounding = _UNSEEN + float(turned @ np.linalg.norm(sights @ vectors[:, flat:], axis=0))
    unseen = vectors[:, :flat] @ turn[:, sizes <= rounding]
    seen = vectors[:, :flat] @ turn[:, sizes > rounding]
    at_edge, apart = _by_size(unseen[:d][near])
    unseen = unseen @ apart
    # What is held of others by that turn must stay small beside their own.
    most = min(1.0, 1e-2 * float(bent.min()) / float(turned.max()) ** 2)
    raised = np.where(at_edge > _UNSEEN, min(_MOVABLE * float(bent.min()), most), most) * values.max()
    vectors[:, :flat] = np.hstack([seen, unseen])
    values[seen.shape[1] : flat] = np.maximum(raised, LEAST_CURVATURE * values.max())
    return Held(M._replace(values=values, vectors=vectors), M.units[:d, None] * unseen[:d, at_edge > _UNSEEN])


def centred(model: ConeModel, x: Numbers, unseen: Numbers) -> Numbers:
    """x (d,), or where it is near an edge of X, the model that nobody tells from it which is farthest from
    the edges."""
    if not unseen.shape[1] or _out(model, x).max() <= _NEAR:
        return x
    lower, upper = (np.asarray(side) for side in model.models.bounding_box())
    half = (upper - lower) / 2
    ways, out = unseen / half[:, None], (x - (lower + upper) / 2) / half
    size = np.abs(ways).max(axis=0)
    ways = ways / size
    block = np.vstack([np.column_stack([ways, -np.ones(len(x))]), np.column_stack([-ways, -np.ones(len(x))])])
    cost = np.append(np.zeros(ways.shape[1]), 1.0)
    found = linprog(cost, A_ub=block, b_ub=np.append(-out, out), bounds=(None, None), method="highs-ds")
    if found.x is None or found.x[-1] > _ROOM * np.abs(out).max():
        return x
    moved = x + unseen @ (found.x[:-1] / size)
    return moved if model.models.contains(moved, 0.0) else x


def _out(model: ConeModel, x: Numbers) -> Numbers:
    """(d,) how far out in X each coordinate is: 0 in the middle, 1 at an edge."""
    lower, upper = (np.asarray(side) for side in model.models.bounding_box())
    return np.abs(x - (lower + upper) / 2) / ((upper - lower) / 2)


def _sights(slopes: Numbers, cones: tuple[Cone, ...]) -> Numbers:
    """(rows, k) all 0 along a step that is not seen. The last coordinate, nu, is seen in any case: it follows
    the model."""
    if not cones:
        return slopes
    steep, d = float(np.abs(slopes[:, -1]).max()), slopes.shape[1] - 1
    of_cones = [np.pad(steep * cone.matrix, ((0, 0), (0, 1))) for cone in cones]
    return np.vstack([slopes, *of_cones, np.append(np.zeros(d), 1.0)])


def _by_size(rows: Numbers) -> tuple[Numbers, Numbers]:
    """(columns,) sizes of rows @ v for the orthonormal v that are returned too, as (columns, columns)."""
    _, sizes, vectors = np.linalg.svd(rows)
    return np.append(sizes, np.zeros(rows.shape[1] - len(sizes))), vectors.T
