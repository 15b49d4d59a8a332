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
# How far, as a share, the mean square of a column may be from 1 in units that are agreed on beforehand.
_UNITS = 0.3
# The mean square of a target in agreed units, and of what a model leaves of it, before anything is told.
_TARGET, _TARGET_ERROR, _LEFT, _LEFT_ERROR = 1.0, 0.5, 2 / 3, 1 / 3
# The mean of classes of -1 and 1 before it is told: how far from 0, and how far at the most.
_CLASSES_ERROR, _MOST_OF_CLASS = 0.5, 0.98
# Eigenvalues are taken for at least this share of the noise's largest one, or of their mean if that is less.
_LEAST_OF_NOISE, _LEAST_OF_MEAN = 0.25, 0.5
# Shrunk moments are taken to have at least this share of the noise left in them.
_LEAST_DOUBT = 0.05


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
        return Pooled(whole, float(np.sqrt(by**2 @ self.noise**2)))

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


class Spectrum(NamedTuple):
    """The moments of features as they are thought to be without noise, in directions of their own."""

    values: Floats  # (d,) positive
    vectors: Floats  # (d, d) in columns
    doubt: float  # variance of an entry's error that is left

    @property
    def directions(self) -> Floats:
        """(d, d) columns along which features are of mean square 1 and not correlated."""
        return np.asarray(self.vectors / np.sqrt(self.values))

    def coordinates(self, x: Floats) -> Floats:
        """(d,) u, where x is `directions` times it."""
        return np.asarray(self.vectors.T @ x * np.sqrt(self.values))


class Pooled(NamedTuple):
    """Second moments of rows (theta, 1, y) as they count together, and how far they may be off."""

    moments: Floats  # (m, m) symmetric; with noise they need not be positive
    noise: float  # standard deviation of an entry on the diagonal

    @property
    def rows(self) -> float:
        """How many rows there are, as they count: from the entry of the 1, and from the mean of the diagonal,
        which has less noise but is that many only as far as units are as agreed."""
        m = len(self.moments)
        of_mean = self.noise / math.sqrt(m)
        # At least as many as noise alone would tell of.
        mean = max(float(np.trace(self.moments)) / m, of_mean, 1e-300)
        error = math.hypot(of_mean, _UNITS * mean)
        return max(weighed(float(self.moments[-2, -2]), self.noise, mean, error), 0.1 * mean)

    def divided(self, rows: float) -> Pooled:
        return Pooled(self.moments / rows, self.noise / rows)

    @property
    def ridge(self) -> float:
        """Half the size that the largest eigenvalue of the noise is expected to have, s sqrt(2 m)."""
        return _RIDGE * self.noise * math.sqrt(2 * len(self.moments))

    def least_squares(self) -> Floats:
        """(d,) argmin over x of the mean of (<x, (theta, 1)> - y)^2 + ridge ||x||^2, with the nearest moments
        that rows can have."""
        nearest = positive(self.moments)
        d = len(nearest) - 1
        lifted = nearest[:d, :d] + max(self.ridge, 1e-12 * np.trace(nearest)) * np.eye(d)
        return np.asarray(np.linalg.solve(lifted, nearest[:-1, -1]), float)

    def spectrum(self) -> Spectrum:
        """The features' moments with the noise drawn out of their eigenvalues.

        Noise drives eigenvalues apart, and turns their directions: along the k-th direction that is seen, the
        moments without noise are about

            lambda_k - s^2 sum_j (lambda_k - lambda_j) / ((lambda_k - lambda_j)^2 + s^2),

        which is the best estimate that keeps the directions, for noise of independent normal numbers (Bun,
        Allez, Bouchaud and Potters, 2016). Where all is noise it is their mean: the public units.
        """
        d, s = len(self.moments) - 1, self.noise
        features = self.moments[:d, :d]
        seen, vectors = np.linalg.eigh((features + features.T) / 2)
        mean = max(float(seen.mean()), s / math.sqrt(d), 1e-300)
        apart = seen[:, None] - seen
        pushed = s**2 * np.sum(apart / np.where(apart == 0, 1.0, apart**2 + s**2), axis=1)
        least = min(_LEAST_OF_NOISE * s * math.sqrt(2 * d), _LEAST_OF_MEAN * mean)
        size = float(np.sum((seen - mean) ** 2))
        # Of the deviation from the mean, the share that is not noise: James and Stein's.
        kept = 1 - s**2 * d * (d + 1) / 2 / size if size > 0 else 0.0
        doubt = max(kept, _LEAST_DOUBT) * s**2 / 2
        return Spectrum(np.maximum(seen - pushed, max(least, 1e-9 * mean)), vectors, doubt)

    @property
    def mean_of_classes(self) -> float:
        """Of a target of -1 and 1, where rows are one: as told, and about 0; not so far that one is none."""
        told = weighed(float(self.moments[-2, -1]), self.noise / math.sqrt(2), 0.0, _CLASSES_ERROR)
        return min(max(told, -_MOST_OF_CLASS), _MOST_OF_CLASS)

    def mean_square(self, x: Floats) -> tuple[float, float]:
        """Of (<x, (theta, 1)> - y), where rows are one, and its standard error: as moments tell, and as much
        of y's as models usually leave."""
        v = np.append(x, -1.0)
        of_target = max(weighed(float(self.moments[-1, -1]), self.noise, _TARGET, _TARGET_ERROR), 0.1)
        told, error = max(float(v @ self.moments @ v), 0.0), self.noise * float(v @ v)
        left, of_left = _LEFT * of_target, _LEFT_ERROR * of_target
        both = error * of_left / math.hypot(error, of_left)
        return max(weighed(told, error, left, of_left), 0.0), both


def weighed(first: float, error: float, second: float, other_error: float) -> float:
    """The mean of two readings of a number, by their errors; the second's is positive."""
    share = error**2 / (error**2 + other_error**2)
    return first + share * (second - first)


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
