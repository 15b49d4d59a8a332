"""The problem of curves as one cone program in cvxpy, written from its statement alone."""

from itertools import pairwise

import cvxpy as cp
import numpy as np

from bidro.losses import Huber, Logistic, Squared
from tests.cone_references import worst_mixture


def columns(theta, knots):
    """phi_js by the definition, one number at a time, and whose each is."""
    found, owner = [], []
    for j, own in enumerate(knots):
        ends = [-np.inf, *own, np.inf]
        for low, high in pairwise(ends):
            found.append([min(max(v, low), high) - min(max(0.0, low), high) for v in theta[:, j]])
            owner.append(j)
    return np.array(found).T, owner


def optimum(
    parts, loss, knots, eps, scale, p, mixtures=None, signs=None, movable=None, half=10.0, smooth=0.0
):
    """min over |x| <= half of the worst mixture of (RMSE + eps nu)^2 or mean loss + eps Lip nu, nu the norm
    of (the largest slope of every feature) / scale, and of 1 / movable where the target moves."""
    designs = [columns(part[:, :-1], knots)[0] for part in parts]
    owner = columns(parts[0][:1, :-1], knots)[1]
    d = designs[0].shape[1]
    x = cp.Variable(d + int(loss.intercept))
    tops = [cp.max(cp.abs(x[[c for c in range(d) if owner[c] == j]])) / scale[j] for j in range(len(knots))]
    nu = cp.norm(cp.hstack(tops if movable is None else [*tops, 1 / movable]))
    pairs = [c for c in range(d - 1) if owner[c] == owner[c + 1]]
    steps = x[[c + 1 for c in pairs]] - x[pairs]
    rough = smooth * cp.sum_squares(steps)
    risks = []
    for part, design, e in zip(parts, designs, np.broadcast_to(eps, len(parts)), strict=True):
        score, y, n = design @ x[:d] + (x[d] if loss.intercept else 0.0), part[:, -1], len(part)
        if isinstance(loss, Squared):
            assert p == 2
            root = cp.norm(cp.hstack([(score - y) / np.sqrt(n), np.sqrt(smooth) * steps]))
            risks.append(cp.square(root + e * nu))
        elif isinstance(loss, Huber):
            assert p == 1
            mean = cp.sum(cp.huber(score - y, loss.threshold)) / (2 * n)
            risks.append(mean + rough + e * loss.threshold * nu)
        else:
            assert isinstance(loss, Logistic)
            assert p == 1
            risks.append(cp.sum(cp.logistic(-cp.multiply(y, score))) / n + rough + e * nu)
    limits = [cp.abs(x) <= half]
    for j, sign in (signs or {}).items():
        limits += [sign * x[c] >= 0 for c in range(d) if owner[c] == j]
    program = cp.Problem(cp.Minimize(worst_mixture(risks, mixtures)), limits)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return program.value, x.value
