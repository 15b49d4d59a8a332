"""The curvature of a mixture of the clients at the exact solver's centre, as its steps use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.cone_model import Curvature, held_by_cones
from bidro.algorithms.exact_state import State
from bidro.algorithms.together import held

Numbers = NDArray[np.float64]


def mixed(state: State, mixture: Numbers) -> Numbers:
    """(k, k) the curvature of the mixture at the centre, as far as is known."""
    centre = state.centre
    assert centre is not None
    k = len(centre.z)
    M = np.zeros((k, k)) if state.estimate is None else state.estimate.copy()
    if centre.curvature.shape[1]:
        rows, columns = np.triu_indices(k)
        M[rows, columns] = M[columns, rows] = mixture @ centre.curvature
    return M


def held_curvature(state: State, mixture: Numbers) -> Numbers:
    """The same, with curvature also where coordinates rise together unseen."""
    centre, model = state.centre, state.model
    assert centre is not None
    x = centre.z[: model.models.dimension]
    return held(mixed(state, mixture), model.together, model.models, x, state.size)


def stiffened(state: State, mixture: Numbers) -> Curvature:
    """M, stiffened; where nothing is known of it, the multiple of the identity for steps of about 1."""
    centre = state.centre
    assert centre is not None
    M = held_curvature(state, mixture)
    slope = float(mixture @ centre.gradient[:, -1])
    if state.model.cones and slope > 0:
        M = held_by_cones(M, state.model.cones, slope, max(centre.z[-1], state.scale / slope))
    steepest = float(np.linalg.norm(centre.gradient, axis=1).max())
    return Curvature.of(state.stiffness * M, state.stiffness * (steepest or 1.0), state.model.cones)
