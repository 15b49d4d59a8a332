"""Small changes of the cones' multipliers y, by which a proof cancels what is left of a slope (see `proof`).

A pull that holds the model can turn, which costs it length to second order only. That of a cone which does
not hold it (two classes of softmax that are nearer to each other than others) is 0, and can grow: a slope of
next to nothing, in which no two cuts differ, is cancelled by next to nothing of it. All of this only
proposes: what is proven with the changed y is evaluated afresh.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

if TYPE_CHECKING:
    from bidro.algorithms.cone_model import ConeModel
    from bidro.losses.base import Cone

Numbers = NDArray[np.float64]

# Pulls below this share of all of them are not turned.
_TURNED = 1e-3
# They may grow to at most this share.
_GROWN = 1e-6


def bends(model: ConeModel, pulls: tuple[Numbers, ...], width: Numbers, allowance: float) -> Numbers:
    """(rows,) weights of turns in the least squares: a pull turned by t is t^2 / (2 ||y||) too long, and
    shortening it to its length costs that much; where this is the allowance, the turn counts as much."""
    weights = []
    for cone, y in zip(model.cones, pulls, strict=True):
        size = cone.dual_norm(y) or 1.0
        shortened = float(np.linalg.norm(width * (cone.matrix.T @ y))) / size
        weights.append(np.full(len(y), math.sqrt(allowance * shortened / (2 * size))))
    return np.concatenate([np.zeros(0), *weights])


def stacked(model: ConeModel) -> Numbers:
    """(rows, d) the matrices of all cones, one below the other."""
    return np.vstack([np.zeros((0, model.models.dimension)), *(cone.matrix for cone in model.cones)])


def lengths(model: ConeModel, pulls: tuple[Numbers, ...]) -> Numbers:
    """(cones,) of every pull, in the dual norm of its cone."""
    return np.array([cone.dual_norm(y) for cone, y in zip(model.cones, pulls, strict=True)])


def directions(model: ConeModel, pulls: tuple[Numbers, ...]) -> tuple[Numbers, Numbers]:
    """(cones, rows) the direction of each pull, and (rows, rows) what is across it; 0 for a pull that is
    small beside all of them, which would not turn but grow."""
    if not pulls:
        return np.zeros((0, 0)), np.zeros((0, 0))
    sizes = lengths(model, pulls)
    large = sizes > _TURNED * sizes.sum()
    units = [
        np.where(able, y / (size or 1.0), 0.0) for y, size, able in zip(pulls, sizes, large, strict=True)
    ]
    across = [
        able * np.eye(len(u)) - np.outer(u, u) if cone.groups is None else able * _across_groups(cone, y)
        for u, able, cone, y in zip(units, large, model.cones, pulls, strict=True)
    ]
    return block_diag(*(u[None] for u in units)), block_diag(*across)


def _across_groups(cone: Cone, y: Numbers) -> Numbers:
    """(rows, rows) turns of y that leave its length and the rows that are 0 as they are, to first order."""
    toward = cone.toward(y)
    square = float(toward @ toward) or 1.0
    return np.asarray(np.diag((y != 0).astype(float)) - np.outer(toward, toward) / square)


def growths(model: ConeModel, pulls: tuple[Numbers, ...], slope: Numbers) -> Numbers:
    """(rows, growths) unit vectors by which pulls that are small beside all of them may grow: those of cones
    that do not hold the model, but where next to nothing of a pull cancels the slope (d,)."""
    sizes = lengths(model, pulls)
    small = np.repeat(sizes <= _TURNED * sizes.sum(), np.array([len(y) for y in pulls], int))
    matrix = np.abs(stacked(model))
    # The length of pull that each row would take, for the coordinate that asks for most of it.
    asked = np.where(matrix > 0, np.abs(slope) / np.where(matrix > 0, matrix, 1.0), 0.0)
    needed = asked.max(axis=1, initial=0.0)
    rows = np.flatnonzero(small & (needed > 0) & (needed <= _GROWN * sizes.sum()))
    units = np.eye(len(small))[:, rows]
    return np.hstack([units, -units])


def costs(model: ConeModel, z: Numbers, changes: Numbers) -> Numbers:
    """(changes,) what changes (rows, changes) of the pulls take off the bound's value at z."""
    here = [np.zeros(0), *(cone.at(z[: model.models.dimension]) for cone in model.cones)]
    return np.maximum(-np.concatenate(here) @ changes, 0.0)
