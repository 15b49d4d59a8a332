"""The steepness of curves for `local_minimax`: the l2 norm over features of their largest slopes, smoothed.

With v = B x + b, delta the smoothing and g the groups of rows,

    a_r = sqrt(v_r^2 + delta^2),   m_g = delta log sum over r in g of exp(a_r / delta),
    nu = sqrt(sum_g m_g^2 + delta^2),

which is convex, above the norm of the largest |v_r|, and above it by no more than `overshoot` times delta.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.local_minimax import Steepness
from bidro.losses.base import Cone

Numbers = NDArray[np.float64]


def steepness_of(cones: tuple[Cone, ...]) -> Steepness:
    """That of the cones, which are all in the same groups, or none of them is."""
    if cones and cones[0].groups is not None:
        return GroupSteepness(cones)
    return Steepness(cones)


class GroupSteepness(Steepness):
    def __init__(self, cones: tuple[Cone, ...]) -> None:
        super().__init__(cones)
        groups = cones[0].groups
        assert groups is not None
        self.groups = groups  # (rows,) ascending
        self.starts = np.flatnonzero(np.diff(groups, prepend=-1))

    @property
    def overshoot(self) -> float:
        sizes = np.diff(self.starts, append=len(self.groups))
        of_groups = float(np.linalg.norm(1 + np.log(sizes)))
        return 1 + of_groups + float(np.log(self.count))

    def at(self, x: Numbers) -> Numbers:
        largest = np.maximum.reduceat(np.abs(self.vectors(x)), self.starts, axis=-1)
        return np.asarray(np.linalg.norm(largest, axis=-1).max(axis=-1))

    def norm_of(self, v: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        _, _, m = self._largest(v, delta)
        return self._maximum(m, delta)

    def _largest(self, v: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(a (..., cones, rows), the rows' shares of their groups, m (..., cones, groups))."""
        unit = delta[..., None, None]
        a = np.sqrt(v**2 + unit**2)
        tops = np.maximum.reduceat(a, self.starts, axis=-1)
        powers = np.exp((a - tops[..., self.groups]) / unit)
        sums = np.add.reduceat(powers, self.starts, axis=-1)
        return a, powers / sums[..., self.groups], tops + unit * np.log(sums)

    def _maximum(self, m: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        norms = np.sqrt(np.sum(m**2, axis=-1) + delta[..., None] ** 2)
        top = norms.max(axis=-1, keepdims=True)
        parts = np.exp((norms - top) / delta[..., None])
        return top[..., 0] + delta * np.log(parts.sum(axis=-1)), norms, parts

    def smoothed(self, x: Numbers, delta: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        v = self.vectors(x)
        a, shares, m = self._largest(v, delta)
        nu, norms, parts = self._maximum(m, delta)
        share = parts / parts.sum(axis=-1, keepdims=True)  # (..., cones)
        unit, d = delta[..., None, None], x.shape[-1]
        along, weight = v / a, m / norms[..., None]
        # Of the rows: what B_r B_r' counts with in the second derivative of each cone's norm.
        bent = weight[..., self.groups] * shares * (unit**2 / a**3 + along**2 / unit)
        # Of the groups: the same of the squares of the gradients of m_g.
        turned = 1 / norms[..., None] - weight / unit
        gradient, second = np.zeros(x.shape), np.zeros((*x.shape, d))
        for p, B in enumerate(self.matrix):
            rows = (shares * along)[..., p, :, None] * B
            of_groups = np.add.reduceat(rows, self.starts, axis=-2)  # (..., groups, d)
            slope = (weight[..., p, None, :] @ of_groups)[..., 0, :]
            own = np.swapaxes(bent[..., p, :, None] * B, -1, -2) @ B
            own += np.swapaxes(turned[..., p, :, None] * of_groups, -1, -2) @ of_groups
            count = share[..., p, None]
            less = 1 / delta - 1 / norms[..., p]
            second += count[..., None] * (
                own + less[..., None, None] * slope[..., :, None] * slope[..., None, :]
            )
            gradient += count * slope
        second -= (gradient[..., :, None] / unit) * gradient[..., None, :]
        return nu, gradient, second
