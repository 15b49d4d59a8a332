"""Clients' risks to second order around a model, as `minimax_from_moments` takes them.

    r_i(z) = R_i + <G_i, z - z_hat> + 1/2 (z - z_hat)' H_i (z - z_hat),   z = x or (x, nu(x)),

nu(x) = ||B x + b|| where risks are lifted: what the last replies to the exact solver say of risks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.losses.base import Cone

Numbers = NDArray[np.float64]

# Second derivatives are raised by this share of their size, so that they can be divided by.
_LEAST_CURVATURE = 1e-9


class QuadraticRisks(NamedTuple):
    z: Numbers  # (k,)
    risks: Numbers  # (n,)
    gradient: Numbers  # (n, k)
    curvature: Numbers  # (n, k, k)
    cone: Cone | None  # of nu; None where risks are not lifted

    def values(self, x: Numbers, eps: Numbers) -> Numbers:
        """(n,); the radii are those of the replies."""
        del eps
        away = self._lift(x) - self.z
        bent = self.curvature @ away
        return np.asarray(self.risks + self.gradient @ away + 0.5 * bent @ away)

    def at(self, x: Numbers, eps: Numbers) -> QuadraticExpansion:
        away = self._lift(x) - self.z
        slopes = self.gradient + self.curvature @ away
        d = len(x)
        if self.cone is None:
            return QuadraticExpansion(self.values(x, eps), slopes, self.curvature)
        vector, matrix = self.cone.at(x), self.cone.matrix
        nu = float(np.linalg.norm(vector)) or 1.0
        of_nu = matrix.T @ vector / nu
        bend = (matrix.T @ matrix - np.outer(of_nu, of_nu)) / nu
        lift = np.vstack([np.eye(d), of_nu])  # (k, d) dz / dx
        second = lift.T @ self.curvature @ lift + np.maximum(slopes[:, d], 0.0)[:, None, None] * bend
        return QuadraticExpansion(self.values(x, eps), slopes @ lift, second)

    def _lift(self, x: Numbers) -> Numbers:
        return x if self.cone is None else np.append(x, np.linalg.norm(self.cone.at(x)))


class QuadraticExpansion(NamedTuple):
    """The risks around a model."""

    values: Numbers  # (n,)
    gradients: Numbers  # (n, d)
    second: Numbers  # (n, d, d)

    def curvature(self, alpha: Numbers) -> Numbers:
        """(d, d) of the mixture, raised to be positive definite."""
        mixed = np.tensordot(alpha, self.second, axes=1)
        mixed = (mixed + mixed.T) / 2
        mixed[np.diag_indices(len(mixed))] += _LEAST_CURVATURE * max(
            float(np.trace(mixed)), np.finfo(float).tiny
        )
        return np.asarray(mixed)
