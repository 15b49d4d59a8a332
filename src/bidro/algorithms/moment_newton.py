"""MW-DRO with squared loss from second moments: Newton's method on the model, weights from a small program.

    min over x in X of max over alpha in A of sum_i alpha_i (RMSE_i(x) + eps_i nu(x))^2

At a model x, with risks R (n,), their gradients G (n, d) and H the mixture of their second derivatives, the
next weights maximise <alpha, R> - 1/2 (G' alpha)' H^-1 (G' alpha) over A, and the step is -H^-1 G' alpha:
that of a sequential quadratic method. The maximum over A is found from its corners (Wolfe 1976), of which one
more is looked for at a time, so that the cost grows with clients only as that of a sorted list does.

What it stops by is a bound: risks are convex, so that for any alpha in A and s = G' alpha

    min over X >= <alpha, R> + min over y in X of <s, y - x>,

which is worth little before s is nearly 0 and nearly all afterwards; coordinates at an edge of X to which
they fall are held there. Where steps find no such point (x is at a kink) the bound says so, and `ExactMWDRO`
is to go on from there.

References: Philip Wolfe. Finding the nearest point in a polytope. Mathematical Programming 11, 1976. Dimitri
P. Bertsekas. Projected Newton Methods for Optimization Problems with Simple Constraints. SIAM Journal on
Control and Optimization 20, 1982.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from bidro.algorithms.references import NO_REFERENCES, References
from bidro.algorithms.second_moments import Moments
from bidro.losses.base import Cone
from bidro.problem import Mixtures
from bidro.sets import Ball, Box

Numbers = NDArray[np.float64]

_MOST_STEPS = 100
_MOST_HALVINGS = 12
# A step must bring this share of what its model promises.
_ENOUGH = 1e-4
# Near the solution steps bring nothing but a smaller s; risks are compared up to this.
_ROUNDING = 1e-14
# Weights are found to this share of the gap that is wanted; where that hides what a step brings, to a smaller
# one, down to the least.
_SHARE_FOR_WEIGHTS, _LEAST_SHARE = 1e-2, 1e-10
_MOST_CORNERS = 400
# Second derivatives are raised by this share of their size, so that they can be divided by.
_LEAST_CURVATURE = 1e-12


class Found(NamedTuple):
    x: Numbers  # (d,)
    alpha: Numbers  # (n,) in A
    upper: float  # the worst mixture of the risks at x, references taken off
    lower: float  # no model of X has less
    size: float  # a mean risk at x: what gaps are relative to

    def reaches(self, gap: float) -> bool:
        return self.upper - self.lower <= gap * self.size


class SquaredRisks:
    """(RMSE_i(x) + eps_i nu(x))^2 of n clients with given moments of (theta, y)."""

    def __init__(self, moments: Moments, intercept: bool, cone: Cone) -> None:
        self.moments, self.intercept, self.cone = moments, intercept, cone
        ones = np.ones((len(moments.mean), int(intercept)))
        self._features = np.concatenate([moments.mean[:, :-1], ones], axis=1)  # (n, d)
        self._last: tuple[Numbers, tuple[Numbers, Numbers, Numbers]] | None = None

    @property
    def target_spread(self) -> float:
        """The mean square of targets around their mean, each client counting the same."""
        mean, around = self.moments.mean[:, -1], self.moments.around[:, -1, -1]
        return float(np.mean(around) + np.var(mean))

    def values(self, x: Numbers, eps: Numbers) -> Numbers:
        """(n,)"""
        return np.asarray((self._rmse(x)[0] + eps * self.cone.norm(self.cone.at(x))) ** 2)

    def _rmse(self, x: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(RMSE (n,), mean residual (n,), around v (n, m)) with v = (w, -1). A model that was tried is the
        next to be expanded at, and second moments are long to read: the last are kept."""
        if self._last is not None and np.array_equal(self._last[0], x):
            return self._last[1]
        features = self.moments.mean.shape[1] - 1
        v = np.append(x[:features], -1.0)
        bent = self.moments.around @ v
        residual = self.moments.mean @ v + x[features:].sum()
        found = np.sqrt(np.maximum(bent @ v, 0.0) + residual**2), residual, bent
        self._last = x.copy(), found
        return found

    def at(self, x: Numbers, eps: Numbers) -> Expansion:
        rmse, residual, bent = self._rmse(x)
        safe = np.where(rmse > 0, rmse, 1.0)
        slope = residual[:, None] * self._features
        slope[:, : bent.shape[1] - 1] += bent[:, :-1]
        slope /= safe[:, None]
        vector = self.cone.at(x)
        nu = self.cone.norm(vector)
        of_nu = self.cone.matrix.T @ self.cone.slope(vector)
        return Expansion(self, eps, rmse + eps * nu, safe, slope, nu or 1.0, of_nu)


class Expansion(NamedTuple):
    """The risks root^2 around a model, root = RMSE + eps nu."""

    of: SquaredRisks
    eps: Numbers  # (n,)
    root: Numbers  # (n,)
    rmse: Numbers  # (n,), 1 where it is 0
    slope: Numbers  # (n, d) of RMSE
    nu: float
    of_nu: Numbers  # (d,) slope of nu

    @property
    def values(self) -> Numbers:
        return np.asarray(self.root**2)

    @property
    def gradients(self) -> Numbers:
        """(n, d)"""
        return 2 * self.root[:, None] * (self.slope + self.eps[:, None] * self.of_nu)

    def curvature(self, alpha: Numbers) -> Numbers:
        """(d, d): sum_i alpha_i times the second derivative of R_i, raised to be positive definite."""
        # Of most clients no copy is made, which may be larger than the table.
        some = np.flatnonzero(alpha) if 4 * np.count_nonzero(alpha) < len(alpha) else slice(None)
        eps, root, slope = self.eps[some], self.root[some], self.slope[some]
        features, around = self.of._features[some], self.of.moments.around[some]
        bend = alpha[some] * root / self.rmse[some]
        of_root = slope + eps[:, None] * self.of_nu
        H = (of_root.T * alpha[some]) @ of_root + (features.T * bend) @ features - (slope.T * bend) @ slope
        k = around.shape[1] - 1
        H[:k, :k] += np.tensordot(bend, around, axes=1)[:k, :k]
        B = self.of.cone.matrix
        pull = float(alpha[some] @ (root * eps)) / self.nu
        H += pull * (B.T @ B - np.outer(self.of_nu, self.of_nu))
        H *= 2
        H[np.diag_indices(len(H))] += _LEAST_CURVATURE * max(float(np.trace(H)), np.finfo(float).tiny)
        return H


class Expanded(Protocol):
    """Risks around a model, as `Expansion` has them."""

    @property
    def values(self) -> Numbers: ...

    @property
    def gradients(self) -> Numbers: ...

    def curvature(self, alpha: Numbers) -> Numbers: ...


class Risks(Protocol):
    """n convex risks as functions of the model, as `SquaredRisks` has them."""

    def values(self, x: Numbers, eps: Numbers) -> Numbers: ...

    def at(self, x: Numbers, eps: Numbers) -> Expanded: ...


def minimax_from_moments(
    risks: Risks,
    eps: Numbers,
    models: Box | Ball,
    mixtures: Mixtures,
    x: Numbers,
    alpha: Numbers,
    gap: float,
    references: References = NO_REFERENCES,
) -> Found:
    """The best model found from x, with weights that begin with `alpha` in A. The search ends where the
    relative gap is at most `gap`, or with less than that where steps bring nothing any more. `references` are
    taken off the risks."""
    best = Found(x, alpha, np.inf, -np.inf, np.inf)
    corners, share = alpha[None], _SHARE_FOR_WEIGHTS
    for _ in range(_MOST_STEPS):
        here = risks.at(x, eps)
        R, G = references.off(here.values), here.gradients
        upper = float(mixtures.linear_maximum(R)[0])
        s = alpha @ G
        lower = float(alpha @ R - s @ x) - float(models.linear_maximum(-s)[0])
        if lower >= best.lower:
            best = best._replace(alpha=alpha, lower=lower)
        best = best._replace(x=x, upper=upper, size=references.risk(upper))
        if best.reaches(gap):
            return best
        free = ~_held(models, x, s)
        try:
            bent = here.curvature(alpha)
            root = np.linalg.cholesky(bent if free.all() else bent[np.ix_(free, free)])
            del bent  # with curves it may be as large as the table
            # (free, n)
            image = solve_triangular(root, G[:, free].T, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return best
        enough = share * min(gap, 1e-5) * best.size
        alpha, corners = _weights(mixtures, R, image, corners, enough)
        step = np.zeros(len(x))
        step[free] = -solve_triangular(root, image @ alpha, lower=True, trans="T", check_finite=False)
        promised = upper - float(alpha @ R + 0.5 * (alpha @ G) @ step)
        for _ in range(_MOST_HALVINGS):
            trial = np.asarray(models.project(x + step))
            reached = float(mixtures.linear_maximum(references.off(risks.values(trial, eps)))[0])
            if reached <= upper * (1 + _ROUNDING) + _ROUNDING * references.mean - _ENOUGH * promised:
                break
            step, promised = step / 2, promised / 2
        else:
            if share <= _LEAST_SHARE:
                return best
            share *= 1e-4
            continue
        x = trial
    return best


def _held(models: Box | Ball, x: Numbers, slope: Numbers) -> NDArray[np.bool_]:
    """(d,) which coordinates are at an edge of X to which they fall: they stay there (Bertsekas 1982)."""
    if isinstance(models, Ball):
        return np.zeros(len(x), bool)
    at_lower, at_upper = x <= np.asarray(models.lower), x >= np.asarray(models.upper)
    return np.asarray((at_lower & (slope > 0)) | (at_upper & (slope < 0)))


def _weights(
    mixtures: Mixtures, r: Numbers, image: Numbers, corners: Numbers, enough: float
) -> tuple[Numbers, Numbers]:
    """(alpha, the points of A that it mixes) that maximises <alpha, r> - 1/2 ||image alpha||^2 over A up to
    `enough`, begun with the points `corners` (points, n) of A.

    The maximum over the points known is taken; where the objective rises most beyond them, A's corner there
    becomes one of them.
    """
    share = np.full(len(corners), 1 / len(corners))
    images, values = corners @ image.T, corners @ r
    for _ in range(_MOST_CORNERS):
        share, kept = _mixed(values, images, share)
        corners, images, values = corners[kept], images[kept], values[kept]
        alpha = share @ corners
        rise = r - (share @ images) @ image
        top, corner = mixtures.linear_maximum(rise)
        if not float(top) - float(rise @ alpha) > enough:
            break
        # The maximum over it is known as well as rounding allows, as where columns are collinear.
        if np.any(np.all(corners == corner, axis=1)):
            break
        corners = np.vstack([corners, corner])
        images, values = np.vstack([images, image @ corner]), np.append(values, corner @ r)
        share = np.append(share, 0.0)
    return alpha, corners


def _mixed(values: Numbers, images: Numbers, share: Numbers) -> tuple[Numbers, NDArray[np.int64]]:
    """(shares, of which points) that maximise <share, values> - 1/2 ||share images||^2 over mixtures of the
    points, or of those of them that are left: on the way from `share` to the maximum without signs, a point
    whose share comes to 0 is left out."""
    kept = np.arange(len(share))
    squares = images @ images.T
    squares[np.diag_indices(len(share))] += 1e-13 * np.trace(squares) + np.finfo(float).tiny
    while len(kept) > 1:
        size = len(kept)
        system = np.ones((size + 1, size + 1))
        system[:size, :size], system[size, size] = squares[np.ix_(kept, kept)], 0.0
        wanted = np.linalg.solve(system, np.append(values[kept], 1.0))[:size]
        falls = wanted < 0
        if not falls.any():
            return wanted / wanted.sum(), kept
        here = share[kept]
        far = np.where(falls, here / np.where(falls, here - wanted, 1.0), np.inf)
        first = int(np.argmin(far))
        share[kept] = np.maximum(here + far[first] * (wanted - here), 0.0)
        kept = np.delete(kept, first)
    return np.ones(1), kept
