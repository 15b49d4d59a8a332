"""How well coefficients are known: the covariance of a model that minimises a mean loss, and intervals for
how much clients differ.

Of the model x that minimises sum_r w_r l(x, xi_r) + <x, P x> / 2, rows xi_r of persons g that are drawn
independently, with slopes s_r, curvatures h_r and A = sum_r w_r h_r + P,

    V = A^-1 (c B + phi P) A^-1,   B = sum_g (sum_{r in g} w_r s_r) (sum_{r in g} w_r s_r)',
    c = G / (G - 1) (N - 1) / (N - e),   e = tr(A^-1 sum_r w_r h_r).

Without P it is the sandwich clustered by person (Liang and Zeger 1986, with the usual correction for few of
them), whatever rows of one person have in common and however their spread varies. With P it is the posterior
covariance phi A^-1 of a model whose prior is the penalty (Wahba 1983; Nychka 1988), with the sandwich for
what phi sum_r w_r h_r says of the rows: what the penalty has pulled away from the truth is in it on average
over curves, not at every place. phi is the dispersion, 1 for a log-likelihood.

Clients' coefficients b_i ~ N(m, D + v_i) with known v_i: sum_i (b_i - mean)^2 / (D + v_i), the mean weighted
alike, is chi-squared with n - 1 degrees of freedom at the true D, and falls in D, so that two quantiles of it
have an interval for D between them (Viechtbauer 2007): of normal b_i at every n, with no estimate of D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import csr_matrix
from scipy.stats import chi2, t

from bidro.core.arrays import Floats
from bidro.losses import Loss, parts_of
from bidro.losses.linear import LinearScores

# The fewest clients with an interval for how much these differ.
FEWEST_CLIENTS = 6
# A direction whose curvature is below this share of the largest, in units of its columns, is not determined.
_SINGULAR = 1e-11
# A coefficient is not determined either where more than this share of it lies in such directions.
_UNDETERMINED = 1e-6


class RowSums(NamedTuple):
    """Sums over weighted rows of what a covariance is made of."""

    curvature: Floats  # (d, d) of the losses
    scatter: Floats  # (d, d) B, of the persons' sums of slopes
    people: int  # G, the rows where each is a draw by itself
    squares: float  # of slopes in the scores, each by its weight
    bend: float  # of curvatures in the scores
    rows: int


def row_sums(
    loss: LinearScores,
    x: Floats,
    rows: Floats,
    weights: Floats,
    draws: NDArray[np.int64] | None = None,
) -> RowSums:
    """Of rows (N, m) with weights (N,), `draws` (N,) saying of which person, from 0, each is; each of its own
    where None."""
    K, layout = loss.scores, loss.layout(rows.shape[1])
    d, people = len(x), 0 if draws is None else int(draws.max()) + 1
    curvature, scatter, of_people = np.zeros((d, d)), np.zeros((d, d)), np.zeros((people, d))
    squares = bend = 0.0
    for part in parts_of(loss, rows):
        target, psi, w = rows[part][:, -1], loss.score_columns(rows[part]), weights[part]
        scores = x[layout] @ psi.T  # (K, rows)
        slope = loss.of_scores(target, scores)[1]
        bent = np.broadcast_to(loss.score_hessian(target, scores), (K, K, len(psi)))
        slopes = np.zeros((len(psi), d))
        for k in range(K):
            slopes[:, layout[k]] = (w * slope[k])[:, None] * psi
            for j in range(K):
                curvature[np.ix_(layout[k], layout[j])] += (psi * (w * bent[k, j])[:, None]).T @ psi
            bend += float(np.sum(w * bent[k, k]))
        squares += float(np.sum(w * slope**2))
        if draws is None:
            scatter += slopes.T @ slopes
        else:
            own = csr_matrix((np.ones(len(psi)), (draws[part], np.arange(len(psi)))), (people, len(psi)))
            of_people += own @ slopes
    if draws is not None:
        scatter = of_people.T @ of_people
    return RowSums(curvature, scatter, len(rows) if draws is None else people, squares, bend, len(rows))


@dataclass(frozen=True, eq=False)
class Covariance:
    """Of a model (d,)."""

    matrix: Floats  # (d, d) V
    null: Floats  # (d, directions) that rows and penalty say nothing of
    degrees: float  # of freedom: of the t distribution that intervals take
    dispersion: float  # phi
    effective: float  # e: how many coefficients the rows have determined

    @classmethod
    def of(cls, sums: RowSums, penalty: Floats, log_likelihood: bool) -> Covariance:
        """`penalty` (d, d) is P."""
        A = sums.curvature + penalty
        size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(A / size / size[:, None])
        known = values > _SINGULAR * max(float(values[-1]), 0.0)
        root = vectors[:, known] / np.sqrt(values[known]) / size[:, None]
        inverse = root @ root.T
        effective = float(np.sum((root.T @ sums.curvature) * root.T))
        N, G = sums.rows, sums.people
        free = max(N - effective, 1.0)
        dispersion = 1.0
        if not log_likelihood:
            dispersion = sums.squares / sums.bend * N / free if sums.bend > 0 else 0.0
        few = G / (G - 1) * (N - 1) / free if G > 1 else math.inf
        matrix = inverse @ (few * sums.scatter + dispersion * penalty) @ inverse
        null = vectors[:, ~known] / size[:, None]
        null = null / np.linalg.norm(null, axis=0)
        return cls(matrix, null, max(min(G - 1, free), 1.0), dispersion, effective)

    def errors(self, lines: Floats) -> Floats:
        """(M,) standard errors of lines (M, d) times the model; NaN where they are not determined."""
        found = np.sqrt(np.maximum(np.einsum("md,de,me->m", lines, self.matrix, lines), 0.0))
        if self.null.shape[1]:
            lost = np.abs(lines @ self.null).max(axis=1)
            found[lost > _UNDETERMINED * np.linalg.norm(lines, axis=1)] = np.nan
        return found

    def interval(self, estimate: Floats, errors: Floats, confidence: float) -> tuple[Floats, Floats]:
        """(lower, upper) ends."""
        half = t.ppf((1 + confidence) / 2, self.degrees) * errors
        return estimate - half, estimate + half

    def p_values(self, estimate: Floats, errors: Floats) -> Floats:
        """Of the hypothesis that a coefficient is 0, on both sides."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(2 * t.sf(np.abs(estimate / errors), self.degrees))


def coefficient_obstacle(loss: Loss) -> str | None:
    """Why there are no intervals for the coefficients of a loss; None where there are."""
    if not isinstance(loss, LinearScores):
        return "intervals for coefficients are for losses of linear scores."
    if math.isinf(float(loss.score_curvature(0.0))):
        return (
            "this loss has kinks, where it has no second derivative, and the interval needs one; use "
            "squared, huber or a loss of classes."
        )
    return None


def of_contrasts(loss: LinearScores, m: int) -> Floats:
    """(d, d) what takes from a model of K > 1 scores what all have in common, which no row tells."""
    K, layout = loss.scores, loss.layout(m)
    found = np.eye(loss.dimension(m))
    if K > 1:
        for k in range(K):
            for j in range(K):
                found[layout[k], layout[j]] -= 1 / K
    return found


def within_contrasts(covariance: Covariance, contrasts: Floats) -> Covariance:
    """The same with directions that the contrasts leave out no longer counted as undetermined."""
    left = contrasts @ covariance.null
    kept = np.linalg.norm(left, axis=0) > _UNDETERMINED
    return replace(covariance, null=left[:, kept])


def posterior_covariances(
    curvatures: Floats, freedom: Floats, variance: Floats, dispersion: float, shares: Floats
) -> Floats:
    """(n, q, q) of how far the clients' personal models are from their true ones, on average over clients.

    A client's coefficients are x* + u_i, u_i ~ N(0, D); the shared model x is that of all rows together, and
    the client's x + s_i K_i (b_i - x) with K_i = (A_i + diag(1 / f))^-1 A_i, b_i its own rows' best. With
    W_i = (sum_k A_k)^-1 A_i and F = I - s_i K_i the difference is a sum of independent parts,

        F sum_{k != i} W_k (u_k + e_k) + (F W_i - F) u_i + (F W_i + s_i K_i) e_i,   e_k ~ N(0, phi A_k^-1),

    in which A_k^-1 is always next to A_k, so that a client may have few rows. Where f is D / phi, s_i is 1
    and x is known, it is the posterior covariance phi (A_i + phi D^-1)^-1.

    Args:
        curvatures: (n, q, q) A_i.
        freedom: (q,) f, 0 for a coefficient that all share.
        variance: (q,) D.
        dispersion: phi.
        shares: (n,) s_i of its own change that a client keeps.
    """
    n, q, _ = curvatures.shape
    total = np.linalg.pinv(curvatures.sum(axis=0), hermitian=True)
    D = np.diag(variance)
    # A_k D A_k + phi A_k, what a client adds to the covariance of sum_k A_k (x - x*).
    adds = curvatures @ D @ curvatures + dispersion * curvatures
    whole, root = adds.sum(axis=0), np.sqrt(freedom)
    found = np.empty((n, q, q))
    for i, (A, share) in enumerate(zip(curvatures, shares, strict=True)):
        # (A + diag(1 / f))^-1, also where f is 0.
        inner = root[:, None] * np.linalg.inv(root[:, None] * A * root + np.eye(q)) * root
        F = np.eye(q) - share * inner @ A
        others = F @ total @ (whole - adds[i]) @ total @ F.T
        own = F @ total @ A - F
        rows = F @ total + share * inner
        found[i] = others + own @ D @ own.T + dispersion * rows @ A @ rows.T
    return found


def apart(curvatures: Floats, pulls: Floats, freedom: Floats, dispersion: float) -> tuple[Floats, Floats]:
    """(b, v), both (n, q): each coefficient of every client by itself, as a difference from the shared model,
    and the variance of that estimate; the client's other coefficients differ as freely as `freedom` (q,)
    says. inf where a client's rows say nothing of it."""
    n, q = pulls.shape
    b, v = np.zeros((n, q)), np.full((n, q), np.inf)
    for j in range(q):
        others = np.flatnonzero((np.arange(q) != j) & (freedom > 0))
        root = np.sqrt(freedom[others])
        inner = curvatures[:, others[:, None], others] * root[:, None] * root + np.eye(len(others))
        across = curvatures[:, others, j] * root  # (n, others)
        solved = np.linalg.solve(inner, across[..., None])[..., 0] if len(others) else across
        known = curvatures[:, j, j] - np.einsum("nk,nk->n", solved, across)
        pull = pulls[:, j] - np.einsum("nk,nk->n", solved, pulls[:, others] * root)
        some = known > _SINGULAR * np.maximum(curvatures[:, j, j].max(initial=0.0), np.finfo(float).tiny)
        b[some, j], v[some, j] = pull[some] / known[some], dispersion / known[some]
    return b, v


def variance_interval(b: Floats, v: Floats, confidence: float) -> tuple[float, float]:
    """(lower, upper) ends of D where b (n,) are independent, normal with variances D + v (n,), v known; nan
    for fewer than `FEWEST_CLIENTS`."""
    known = np.isfinite(v)
    b, v = b[known], v[known]
    n = len(b)
    if n < FEWEST_CLIENTS:
        return math.nan, math.nan

    def spread(D: float) -> float:
        weights = 1 / (D + v)
        return float(weights @ (b - weights @ b / weights.sum()) ** 2)

    def end(quantile: float) -> float:
        least = float(v.min())
        if least > 0 and spread(0.0) <= quantile:
            return 0.0
        high = float(np.sum((b - b.mean()) ** 2)) / quantile
        if not high > 0:
            return 0.0
        while spread(high) > quantile:
            high *= 2
        return float(brentq(lambda D: spread(D) - quantile, high * 1e-12 if least == 0 else 0.0, high))

    few, many = (float(chi2.ppf(p, n - 1)) for p in ((1 - confidence) / 2, (1 + confidence) / 2))
    return end(many), end(few)
