"""Least squares from second moments with noise of a known size: what is told of n clients, made of use again.

A client tells sum_i = sum of w^2 z z' over its rows z = (theta, 1, y), plus a symmetric matrix of independent
normal numbers, of standard deviation s_i on the diagonal and s_i / sqrt(2) beside it. Summed over clients the
noise grows as a root and the rows do not. So clients are added up first, as they count, and only the sum is
projected to what second moments can be. One client's own is the common one and its deviation from that,
which counts by how far it is beyond its noise (James and Stein's estimate).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bidro.algorithms.second_moments import Moments
from bidro.arrays import Floats

# Of the size that noise is expected to have, in the largest eigenvalue: added to what is solved with.
_RIDGE = 0.5


class NoisySums(NamedTuple):
    """Of n clients; the last but one column is the 1."""

    values: Floats  # (n, m, m)
    noise: Floats  # (n,) standard deviation on the diagonal; 0 without noise

    @property
    def counts(self) -> Floats:
        """(n,) about how many rows there are, those that were scaled down counting less; with noise."""
        return np.asarray(self.values[:, -2, -2])

    @property
    def trusted(self) -> Floats:
        """(n,) the same where it is divided by: at least as many as noise alone would tell of."""
        return np.maximum(self.counts, np.maximum(self.noise, 1.0))

    def pooled(self, by: Floats) -> Pooled:
        """Added up, a row of client i counting `by` (n,)[i]."""
        whole = np.einsum("n,nij->ij", by, self.values)
        return Pooled(positive(whole), float(np.sqrt(by**2 @ self.noise**2)))

    def shrunk(self) -> Floats:
        """(n, m, m) means of z z' by client, drawn towards the common one by as much as is noise."""
        m = self.values.shape[1]
        total = max(float(self.counts.sum()), 1.0)
        common = positive(self.values.sum(axis=0)) / total
        away = self.values - self.counts[:, None, None] * common
        size = np.einsum("nij,nij->n", away, away)
        # Expected of the noise: s^2 for each of m entries, s^2 / 2 for each of the m (m - 1) others.
        of_noise = self.noise**2 * m * (m + 1) / 2
        kept = np.clip(1 - of_noise / np.where(size > 0, size, 1.0), 0.0, 1.0)
        means = common + (kept / self.trusted)[:, None, None] * away
        return np.stack([positive(one) for one in means])


class Pooled(NamedTuple):
    """Second moments of rows (theta, 1, y) as they count together, and how far they may be off."""

    moments: Floats  # (m, m) positive semidefinite
    noise: float  # standard deviation of an entry on the diagonal

    @property
    def ridge(self) -> float:
        """Half the size that the largest eigenvalue of the noise is expected to have, s sqrt(2 m)."""
        return _RIDGE * self.noise * math.sqrt(2 * len(self.moments))

    @property
    def curvature(self) -> Floats:
        """(d, d) mean of (theta, 1)(theta, 1)', raised by the ridge."""
        d = len(self.moments) - 1
        lifted = self.moments[:d, :d] + max(self.ridge, 1e-12 * np.trace(self.moments)) * np.eye(d)
        return np.asarray(lifted)

    def least_squares(self) -> Floats:
        """(d,) argmin over x of the mean of (<x, (theta, 1)> - y)^2 + ridge ||x||^2."""
        return np.asarray(np.linalg.solve(self.curvature, self.moments[:-1, -1]), float)

    def mean_square(self, x: Floats) -> float:
        """Of (<x, (theta, 1)> - y); at least a fiftieth of that of y, below which it is noise."""
        v = np.append(x, -1.0)
        rows = max(float(self.moments[-2, -2]), 1e-300)
        return max(float(v @ self.moments @ v), 0.02 * float(self.moments[-1, -1]), 1e-12) / rows


def positive(matrix: Floats) -> Floats:
    """The nearest positive semidefinite matrix, in the Frobenius norm."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def around_means(moments: Floats, ridge: float) -> Moments:
    """Means of z z' (n, m, m) as second moments of (theta, y) around their means, the features' raised by
    the ridge."""
    columns = np.delete(np.arange(moments.shape[1]), -2)
    rows = np.maximum(moments[:, -2, -2], 1e-300)
    mean = moments[:, -2, columns] / rows[:, None]
    second = moments[:, columns[:, None], columns] / rows[:, None, None]
    around = second - mean[:, :, None] * mean[:, None, :]
    k = len(columns) - 1
    around[:, range(k), range(k)] += ridge
    return Moments(mean, np.stack([positive(one) for one in around]))
