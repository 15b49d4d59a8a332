"""MW-DRO as one cone program in cvxpy, from its closed forms: what the exact solver is held against."""

import cvxpy as cp
import numpy as np

from bidro.core.sets import CappedSimplex, L1SimplexBall
from bidro.losses import Absolute, Hinge, Huber, Logistic, Pinball, Squared


def optimum(parts, loss, eps, p, movable=False, mixtures=None, half_width=10.0, references=0.0):
    """min over |x| <= half_width of max over mixtures of the robust risks less references, by
    CLARABEL to 1e-11.

    Squared loss with p = 2: (RMSE + eps nu)^2; others with p = 1: mean loss + eps Lip nu, where
    nu = ||(w, -1)|| if a continuous target can move, else ||w||.
    """
    d = parts[0].shape[1] - 1
    x = cp.Variable(d + int(loss.intercept))
    nu = cp.norm(cp.hstack([x[:d], [-1.0]])) if movable else cp.norm(x[:d])
    radii = np.broadcast_to(eps, len(parts))
    risks = [_risk(part, loss, e, x, nu, d, p) for part, e in zip(parts, radii, strict=True)]
    risks = [risk - b for risk, b in zip(risks, np.broadcast_to(references, len(parts)), strict=True)]
    program = cp.Problem(cp.Minimize(worst_mixture(risks, mixtures)), [cp.abs(x) <= half_width])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return program.value, x.value


def _risk(part, loss, eps, x, nu, d, p):
    score = part[:, :d] @ x[:d] + (x[d] if loss.intercept else 0.0)
    n, y = len(part), part[:, d]
    if isinstance(loss, Squared):
        assert p == 2
        return cp.square(cp.norm(score - y) / np.sqrt(n) + eps * nu)
    assert p == 1
    if isinstance(loss, Absolute):
        return cp.norm1(score - y) / n + eps * nu
    if isinstance(loss, Pinball):
        q = loss.quantile
        return cp.sum(cp.maximum((1 - q) * (score - y), q * (y - score))) / n + eps * max(q, 1 - q) * nu
    if isinstance(loss, Huber):
        return cp.sum(cp.huber(score - y, loss.threshold)) / (2 * n) + eps * loss.threshold * nu
    if isinstance(loss, Hinge):
        return cp.sum(cp.pos(1 - cp.multiply(y, score))) / n + eps * nu
    assert isinstance(loss, Logistic)
    return cp.sum(cp.logistic(-cp.multiply(y, score))) / n + eps * nu


def worst_mixture(risks, mixtures):
    if mixtures is None:
        return cp.maximum(*risks) if len(risks) > 1 else risks[0]
    if isinstance(mixtures, CappedSimplex):
        lower, upper = np.asarray(mixtures.lower), np.asarray(mixtures.upper)
        if np.array_equal(lower, upper):
            return sum(a * r for a, r in zip(lower, risks, strict=True))
        # The dual of max { alpha' r : lower <= alpha <= upper, sum alpha = 1 }.
        tau = cp.Variable()
        least = sum(low * r for low, r in zip(lower, risks, strict=True))
        above = sum(room * cp.pos(r - tau) for room, r in zip(upper - lower, risks, strict=True))
        return least + (1 - lower.sum()) * tau + above
    assert isinstance(mixtures, L1SimplexBall)
    center, half = np.asarray(mixtures.center), float(mixtures.radius) / 2
    assert half <= center.min()
    # Vertices: half the radius moves from one client to another.
    n = len(risks)
    vertices = [center + half * (np.eye(n)[i] - np.eye(n)[j]) for i in range(n) for j in range(n) if i != j]
    return cp.maximum(*[sum(a * r for a, r in zip(v, risks, strict=True)) for v in vertices])
