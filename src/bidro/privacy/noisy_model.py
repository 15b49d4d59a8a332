"""A linear model from noisy second moments and noisy gradients, each weighted by how much noise it has.

A client releases sum_i = sum of w^2 z z' over its rows z = (theta, 1, y), plus a symmetric matrix of
independent normal numbers, of standard deviation s_i on the diagonal and s_i / sqrt(2) off it. Summed over
clients the noise grows as a root and the rows do not. So clients are added up first, as they count, and only
the sum is projected to what second moments can be. One client's own is the common one and its deviation from
that, which counts by how far it is beyond its noise (James and Stein's estimate).

Features are rotated and scaled by these moments, denoised, so that along every new direction they
have mean square 1 and are not correlated, as far as is known: x = A u. Rows' gradients in u are what is
clipped, summed and released with noise. No other directions have less noise for it: with a clip in proportion
to the norm of a typical gradient, noise along A raises the loss in proportion to

    tr(M A A') tr((A' M A)^-1) >= d^2,

where M are the moments of features, with equality where A' M A is the identity, by Cauchy and Schwarz.

The mean loss has curvature about h in u, with h = 2 for squared loss and 1/4, which is at least it, for
logistic loss (Boehning and Lindsay, 1988). A gradient g at u with noise of variance r says of the best u*

    h (u - u*)_k = g_k,   with an error of variance   r + h^2 sum_j e_kj P_j + (c h)^2 P_k,

where P is the variance of what is not known yet of u*, e that of errors in the moments, and c the share by
which curvature may be another than is thought, as gradients are clipped. Moments give the gradient at any
constant prediction: of squared loss at 0, and of logistic loss where classes are as many as is released, too.
What has been released is added up in information (Kalman's filter), with u* about there beforehand, and every
direction explaining as much; how much is itself inferred from what is released. So a direction that noise
hides is left out, one that is known well is as without noise, and gradients are averaged instead of the last
one being trusted.

Rows' gradients are clipped at a norm that is large where there is little noise, and small where there is
much. Rows that are clipped do not answer to a change of x, but for their direction: what is left of the
curvature follows from how many are not clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from bidro.core.arrays import Floats
from bidro.privacy.row_arithmetic import PrivateLoss
from bidro.risk.moments import Moments

# Of the size that noise is expected to have, in the largest eigenvalue: added to what is solved with.
_RIDGE = 0.5
# How far, as a share, the mean square of a column may be from 1 in units that are agreed on beforehand.
_UNITS = 0.3
# The mean square of a target in agreed units, and of what a model leaves of it, before anything is released.
_TARGET, _TARGET_ERROR, _RESIDUAL, _RESIDUAL_ERROR = 1.0, 0.5, 2 / 3, 1 / 3
# The mean of classes of -1 and 1 before it is released: how far from 0, and how far at the most.
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
        """(n,) the same where it is divided by: at least as many as noise alone would give."""
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
        # At least as many as noise alone would give.
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
        """Of a target of -1 and 1, where rows are one: as released, and about 0; not so far that one is
        none."""
        released = weighed(float(self.moments[-2, -1]), self.noise / math.sqrt(2), 0.0, _CLASSES_ERROR)
        return min(max(released, -_MOST_OF_CLASS), _MOST_OF_CLASS)

    def mean_square(self, x: Floats) -> tuple[float, float]:
        """Of (<x, (theta, 1)> - y), where rows are one, and its standard error: as moments say, and as much
        of y's as models usually leave."""
        v = np.append(x, -1.0)
        of_target = max(weighed(float(self.moments[-1, -1]), self.noise, _TARGET, _TARGET_ERROR), 0.1)
        released, error = max(float(v @ self.moments @ v), 0.0), self.noise * float(v @ v)
        left, of_left = _RESIDUAL * of_target, _RESIDUAL_ERROR * of_target
        both = error * of_left / math.hypot(error, of_left)
        return max(weighed(released, error, left, of_left), 0.0), both


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


_CURVATURE: dict[PrivateLoss, float] = {"squared": 2.0, "logistic": 0.25}
# Typical slopes of the loss in a prediction, in root mean squares of the residual, or as they are.
_SLOPE: dict[PrivateLoss, float] = {"squared": 2.0, "logistic": 0.5}
# Clips are so many times the norm of a typical gradient, at the least and at the most: logistic slopes are at
# most twice the typical one, and beyond the most rounding to parts of the clip would matter.
_LEAST_CLIP: dict[PrivateLoss, float] = {"squared": 0.6, "logistic": 1.2}
_MOST_CLIP = 50.0
# Clipping at t times the typical norm is taken to cost this share of the loss, divided by t^2.
_CLIP_COST = 0.02
# The share by which curvature may be wrong.
_DOUBT: dict[PrivateLoss, float] = {"squared": 0.3, "logistic": 0.6}
# The least of it that is taken to be left where predictions are far out.
_LEAST_CURVED = 0.05
# By how much curvature may differ from moments along any direction, as a root mean square before gradients
# say more; and no difference is believed that is less than this share along the step that it is seen by.
_CURVATURE_ERROR, _LEAST_ALONG = 0.3, 0.1
# What clipping is thought to leave of it, how far that may be off, and between which numbers it is.
_LEFT_ERROR, _LEFT = 0.3, (0.3, 4.0)
_LOGISTIC_LEFT = 0.9
# At the most so many rows are one as moments count them.
_MOST_ROWS = 2.5
# The mean square of what a model predicts, beforehand; as how many of its numbers that counts; and the
# factors of it that are considered.
_SIZE: dict[PrivateLoss, float] = {"squared": 0.3, "logistic": 1.2}
_AS_KNOWN = 2.0
_FACTORS = np.geomspace(0.01, 100.0, 25)
# Losses are released as at most so many times the mean.
_LEVEL = 8.0
# A mean of logistic losses is this share of that of the best constant prediction, with that error, before it
# is released; and no less or more of it.
_LOGISTIC_LOSS, _LOGISTIC_ERROR, _LOGISTIC_LOSSES = 0.8, 0.2, (0.1, 1.2)
# A mean of squares that is less, in public units, cannot be distinguished from none.
_LEAST_LOSS = 1e-4
# The share by which a loss may be another after a step.
_BEFORE = 0.1
# And no step is thought to leave less of it: noise in it would make the next clip too small.
_LEAST_OF_BEFORE = 0.25


class Direction(NamedTuple):
    """What clients' sums say of a model, with noise; means over rows as moments count them."""

    gradient: Floats  # (d,) in u
    unclipped: float  # rows whose gradients are not clipped
    unclipped_error: float  # standard deviation of the noise in it
    loss: float
    loss_error: float
    variance: float  # of the noise in every direction of the gradient


class Curvature(NamedTuple):
    """What the differences of released gradients say of the loss's curvature.

    Moments count a row less the longer it is, and gradients do not. Where rows are long along one direction
    alone, as those with a level that few have, the loss is curved several times as much along it as moments
    say, and a step that trusts these goes past the best model, further in every round. So of

        g_s - g_t = h (I + E) (u_s - u_t) + noise,

    E is learnt from the last two gradients, by symmetric updates of rank one, as far as their noise lets it
    be seen. It never becomes less: gradients of clipped rows change less the further one goes, and whoever
    believed that would go too far again. With the largest curvature that was seen steps may be short, and do
    not go past.
    """

    share: Floats  # (d, d) symmetric: I + E
    u: Floats | None = None  # (d,) where a gradient was released last
    gradient: Floats | None = None  # (d,) there, in parts of the curvature h
    noise: float = 0.0  # variance of a number of it

    def with_gradient(self, u: Floats, gradient: Floats, noise: float) -> Curvature:
        """With one more gradient; all three as in the fields."""
        share = self.share
        if self.u is not None and self.gradient is not None:
            step = u - self.u
            expected = _CURVATURE_ERROR**2 / len(u) * float(step @ step)
            beyond = gradient - self.gradient - share @ step
            beyond *= expected / max(expected + noise + self.noise, 1e-300)
            along = float(step @ beyond)
            if along > _LEAST_ALONG * float(np.linalg.norm(step) * np.linalg.norm(beyond)):
                share = share + np.outer(beyond, beyond) / along
        return Curvature(share, u, gradient, noise)


class Known(NamedTuple):
    """What is known of numbers that are about 0 beforehand."""

    information: Floats  # (d,) without what was known beforehand
    pulled: Floats  # (d,) the estimate, times information

    def posterior(self, size: float) -> tuple[Floats, Floats]:
        """(mean, variance), each (d,), where numbers are about 0 beforehand, of a mean square that is itself
        about `size`, which counts as `_AS_KNOWN` numbers would; averaged over all such mean squares by their
        likelihood."""
        scales = size * _FACTORS
        seen = scales[:, None] * self.information
        # The likelihood of a mean square t: numbers of variance t + 1 / information.
        fits = (scales[:, None] * self.pulled**2 / (1 + seen) - np.log1p(seen)).sum(axis=1) / 2
        beforehand = -_AS_KNOWN / 2 * (np.log(_FACTORS) + 1 / _FACTORS)
        shares = np.exp(log_softmax(fits + beforehand))
        shrunk = scales[:, None] / (1 + seen)
        return shares @ (shrunk * self.pulled), shares @ shrunk


@dataclass(frozen=True, eq=False)
class NoisySteps:
    """A model on the way; every number is a mean over rows as moments count them."""

    loss: PrivateLoss
    pooled: Pooled  # of one row
    row_clip: float  # the norm of a row beyond which it counts less in the moments
    noise: float  # of a mean gradient in one round, in parts of the clip
    rounds: int
    spectrum: Spectrum
    centre: Floats  # (d,) what u is about beforehand
    known: Known  # of the best u, less the centre
    u: Floats  # (d,)
    variance: Floats  # (d,) of what is not known of the best u
    mean_loss: float  # about what it is at u
    curvature: Curvature

    @classmethod
    def begin(
        cls, loss: PrivateLoss, pooled: Pooled, row_clip: float, noise: float, rounds: int, largest: float
    ) -> NoisySteps:
        """With what moments give: the gradient at a constant prediction."""
        d, spectrum = len(pooled.moments) - 1, pooled.spectrum()
        slope, pull, left, at = 2.0, 0.0, 1.0, np.zeros(d)
        if loss == "logistic":
            slope, mean = 0.5, pooled.mean_of_classes
            at[-1], pull, left = math.log((1 + mean) / (1 - mean)), mean / 2, 1 - mean**2
        nothing = Known(np.zeros(d), np.zeros(d))
        offset, variance = nothing.posterior(_SIZE[loss] / d)
        centre = spectrum.coordinates(at)
        begun = cls(
            loss,
            pooled,
            row_clip,
            noise,
            rounds,
            spectrum,
            centre,
            nothing,
            centre + offset,
            variance,
            1.0,
            Curvature(np.eye(d)),
        )
        # At a constant score, whose logistic function is 1/2 + pull; that times its complement is left / 4.
        gradient = begun.directions.T @ (pull * pooled.moments[:d, d - 1] - slope * pooled.moments[:d, d])
        of_noise = (slope**2 + pull**2) * pooled.noise**2 / 2 / spectrum.values
        return begun._with(gradient / left, of_noise / left**2, largest)._with_mean_loss(None)

    @property
    def directions(self) -> Floats:
        """(d, d) A."""
        return self.spectrum.directions

    @property
    def x(self) -> Floats:
        """(d,) the model."""
        return np.asarray(self.directions @ self.u)

    @property
    def clip(self) -> float:
        """Of rows' gradients in the next round."""
        typical = math.sqrt(self.mean_loss) if self.loss == "squared" else 1.0
        return self._clips * _SLOPE[self.loss] * typical * math.sqrt(len(self.u))

    @property
    def _clips(self) -> float:
        """In typical norms: t where the cost of clipping, c / t^2, and that of noise, (noise d t)^2 / rounds,
        both in shares of the loss, are least together."""
        of_noise = self.noise * len(self.u) / math.sqrt(self.rounds)
        wanted = (_CLIP_COST / of_noise**2) ** 0.25 if of_noise > 0 else _MOST_CLIP
        return min(max(wanted, _LEAST_CLIP[self.loss]), _MOST_CLIP)

    @property
    def level(self) -> float:
        """What losses count as at the most: a power of two of at least eight times their mean."""
        return float(2.0 ** math.ceil(math.log2(_LEVEL * self.mean_loss)))

    @property
    def expected_excess(self) -> float:
        """The share by which what is not known of the best model is expected to raise the mean loss, and by
        which clipping is taken to, if moments are as they are thought to be. No upper end: a direction that
        noise hides, or along which rows are clipped much, may explain any share of what is left."""
        off = _CURVATURE[self.loss] * self._curved / 2 * float(self.variance.sum())
        return off / self.mean_loss + _CLIP_COST / self._clips**2

    def step(self, released: Direction, largest: float) -> NoisySteps:
        """With a gradient at u; no number of the model becomes larger than `largest`."""
        usual = math.erf(self._clips / math.sqrt(2)) if self.loss == "squared" else _LOGISTIC_LEFT
        unclipped = weighed(released.unclipped, released.unclipped_error, usual * self._rows, _LEFT_ERROR)
        left = min(max(unclipped, _LEFT[0]), _LEFT[1]) * self._curved
        h, gradient, noise = _CURVATURE[self.loss], released.gradient / left, released.variance / left**2
        curvature = self.curvature.with_gradient(self.u, gradient / h, noise / h**2)
        inverse = np.linalg.inv(curvature.share)
        after = replace(self, curvature=curvature)._with(
            inverse @ gradient, noise * np.sum(inverse**2, axis=1), largest
        )
        return after._forgetting(self)._with_mean_loss(released)

    @property
    def _curved(self) -> float:
        """The mean curvature at u, as a share of the largest: of a logistic loss with predictions that are
        normal, with its second derivative taken for a normal density, of variance 8 / pi, too."""
        if self.loss == "squared":
            return 1.0
        mean = float(self.x @ self.pooled.moments[:-1, -2])
        wide = max(float(self.u @ self.u) - mean**2, 0.0) + 8 / math.pi
        return max(math.sqrt(8 / math.pi / wide) * math.exp(-(mean**2) / (2 * wide)), _LEAST_CURVED)

    @property
    def _rows(self) -> float:
        """How many rows are one as moments count them: a row adds at most the square of the clip."""
        return min(max(float(np.trace(self.pooled.moments)) / self.row_clip**2, 1.0), _MOST_ROWS)

    def _with(self, gradient: Floats, noise: Floats | float, largest: float) -> NoisySteps:
        """With a mean gradient at u, of noise of these variances (d,), whose curvature is as moments say."""
        curvature, (values, _, doubt) = _CURVATURE[self.loss], self.spectrum
        of_moments = curvature**2 * doubt / values * float(np.sum(self.variance / values))
        of_clipping = (_DOUBT[self.loss] * curvature) ** 2 * self.variance
        by = curvature / (noise + of_moments + of_clipping)
        known = Known(
            self.known.information + by * curvature,
            self.known.pulled + by * (curvature * (self.u - self.centre) - gradient),
        )
        offset, variance = known.posterior(_SIZE[self.loss] / len(self.u))
        after = replace(self, known=known, u=self.centre + offset, variance=variance)
        beyond = float(np.abs(after.x).max()) / largest
        return after if beyond <= 1 else replace(after, u=after.u / beyond)

    def _forgetting(self, before: NoisySteps) -> NoisySteps:
        """With less belief in all that was released, where the step was longer than what was not known: as
        far as curvature is another than was thought, what is left may be half as long."""
        step, gone = self.u - before.u, before.variance.sum() - self.variance.sum()
        left = max(float(step @ step) - float(gone), 0.0) / 4
        if left == 0:
            return self
        kept = float(self.variance.sum()) / (float(self.variance.sum()) + left)
        known = Known(kept * self.known.information, kept * self.known.pulled)
        return replace(self, known=known, variance=known.posterior(_SIZE[self.loss] / len(self.u))[1])

    def _with_mean_loss(self, released: Direction | None) -> NoisySteps:
        """With the mean loss that moments and clients give."""
        if self.loss == "squared":
            (at, error), (least, most) = self.pooled.mean_square(self.x), (_LEAST_LOSS, math.inf)
        else:
            share = (1 + self.pooled.mean_of_classes) / 2
            constant = -share * math.log(share) - (1 - share) * math.log(1 - share)
            at, error, least, most = (
                constant * v for v in (_LOGISTIC_LOSS, _LOGISTIC_ERROR, *_LOGISTIC_LOSSES)
            )
        if released is not None:
            # Clients report of the model before, and count large losses less.
            before = max(error, _BEFORE * at)
            at = weighed(released.loss / self._rows, released.loss_error / self._rows, at, before)
            least = max(least, _LEAST_OF_BEFORE * self.mean_loss)
        return replace(self, mean_loss=min(max(at, least), most))
