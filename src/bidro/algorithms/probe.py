"""Where to ask for a cut that a lower bound lacks.

Once the best model is settled, what a proof lacks is a cut that cancels the last of a slope s (see `proof`).
At x - t H^-1 s, H being the curvature of the worst mixture, the slope is (1 - t) s: for t > 1 the opposite of
s, so that a share 1 / t of the cut there cancels it. The step that s itself asks for, t = 1, would be lost in
the rounding of x.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.cone_model import ConeModel

Numbers = NDArray[np.float64]

# Directions with less than this share of the largest curvature are left out: no cut differs along them.
_LEAST = 1e-12
# Coordinates bent by the cones alone, but for this share, are left out: pulls of the cones meet their slope.
_OWN = 1e-6
# Coordinates whose slope costs less than this share of the costliest are not asked about, nor those this near
# (in widths of X) to the edge to which the slope leads.
_COSTLY, _AT_EDGE = 1e-2, 1e-6


def probe(
    model: ConeModel, z: Numbers, M: Numbers, r_nu: float, slope: Numbers, cost: float
) -> Numbers | None:
    """The model (d,) to ask at, worse than z by about `cost`; None where there is nothing to cancel.

    M (k, k) is the mixture's curvature at z, r_nu its slope in nu, `slope` (d,) what is to be cancelled.
    """
    d = model.models.dimension
    x = z[:d]
    H, bent_itself = M[:d, :d].copy(), np.diag(M)[:d] > 0
    if model.cones and z[d] > 0:
        norms = [cone.norm(cone.at(x)) for cone in model.cones]
        cone = model.cones[int(np.argmax(norms))]
        rise = cone.matrix.T @ cone.slope(cone.at(x))
        H += np.outer(M[:d, d], rise) + np.outer(rise, M[:d, d]) + M[d, d] * np.outer(rise, rise)
        held = sum((other.matrix.T @ other.matrix for other in model.cones), -np.outer(rise, rise))
        H += max(r_nu, 0.0) / z[d] * held
        bent_itself = np.diag(M)[:d] > _OWN * np.diag(H)
    lower, upper = (np.asarray(side) for side in model.models.bounding_box())
    left = np.where(slope > 0, x - lower, upper - x)
    free = (left > _AT_EDGE * (upper - lower)) & bent_itself
    loss = np.where(free, np.abs(slope) * (upper - lower), 0.0)
    slope = np.where(loss > _COSTLY * loss.max(), slope, 0.0)
    if not free.any():
        return None
    units = 1 / np.sqrt(np.diag(H)[free])
    values, vectors = np.linalg.eigh(H[np.ix_(free, free)] * np.outer(units, units))
    along = vectors.T @ (units * slope[free])
    bent = values > _LEAST * values[-1]
    steps = np.where(bent, along / np.where(bent, values, 1.0), 0.0)
    fall = 0.5 * float(along[bent] @ steps[bent])
    if not fall > 0 or not np.isfinite(fall):
        return None
    move = np.zeros(d)
    move[free] = -units * (vectors @ steps) * np.sqrt(cost / fall)
    return np.asarray(model.models.project(x + move))
