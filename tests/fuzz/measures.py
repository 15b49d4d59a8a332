"""What statements are held against: models of X, the worst mixture over A, and what rounding allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fuzz.plain import INF, Wide, split, steepest_slope, steepness
from tests.fuzz.problems import RESIDUAL, Case
from tests.fuzz.reference import Bounds
from tests.fuzz.weights import ROW_WEIGHTS, highest_mean

# A sum of rounded products is off by a few units in the last place of its largest term.
UNITS = 64 * np.finfo(float).eps
# Cuts and programs add rounding of their own, over several rounds.
PROOF_UNITS = 1024 * np.finfo(float).eps
TINY = np.finfo(float).tiny


def models(case: Case, rng: np.random.Generator, solution: np.ndarray) -> dict[str, np.ndarray]:
    """Models of X at which objectives and cuts are checked."""
    d = case.family.dimension
    pool = {
        "solution": solution,
        "near": solution * (1 + 1e-6 * rng.normal(size=d)),
        "not far": solution + 0.1 * (np.abs(solution) + 1e-3) * rng.normal(size=d),
        "planted": case.planted,
        "zero": np.zeros(d),
        "vertex": case.half_width * rng.choice([-1.0, 1.0], d),
        "any": rng.uniform(-1, 1, d) * case.half_width * 10.0 ** rng.uniform(-6, 0),
    }
    if case.family.loss in RESIDUAL:
        pool["least squares"] = _least_squares(case)
    return {name: inside(case, x) for name, x in pool.items()}


def _least_squares(case: Case) -> np.ndarray:
    rows = np.concatenate(case.rows)
    theta, y = rows[:, :-1], rows[:, -1]
    if not case.family.intercept:
        return np.linalg.lstsq(theta, y, rcond=None)[0]
    centre, level = theta.mean(axis=0), y.mean()
    size = np.abs(theta - centre).max(axis=0)
    size[size == 0] = 1
    w = np.linalg.lstsq((theta - centre) / size, y - level, rcond=1e-12)[0] / size
    return np.append(w, level - w @ centre)


def inside(case: Case, x: np.ndarray) -> np.ndarray:
    if case.models == "box":
        return np.clip(x, -case.half_width, case.half_width)
    norm = np.linalg.norm(x)
    return x if norm <= case.half_width else x * (case.half_width / norm) * (1 - 1e-15)


def constant_model(case: Case) -> np.ndarray:
    """The model that predicts the pooled median, or 0 where there is no intercept."""
    x = np.zeros(case.family.dimension)
    if case.family.intercept and case.family.loss in RESIDUAL:
        x[-1] = np.median(np.concatenate(case.rows)[:, -1])
    return inside(case, x)


def worst_mixture(case: Case, risks: Sequence[Wide] | np.ndarray) -> Wide:
    """max over alpha in A of <alpha, risks>."""
    return highest_mean(case.weights, case.weight_bounds, risks)


def rounding(case: Case, client: int, x: np.ndarray, risk: Wide) -> Wide:
    """What float64 can get wrong in R_i(x): each u by some units of the largest term it is summed from."""
    rows, (w, b) = np.asarray(case.rows[client], Wide), split(case, x)
    sizes = np.abs(rows[:, None, :-1] * w).sum(axis=-1).max(axis=1) + np.abs(b).max()
    if case.family.loss in RESIDUAL:
        sizes = sizes + np.abs(rows[:, -1])
    delta = Wide(UNITS) * sizes
    if case.family.ambiguity in ROW_WEIGHTS:  # any row may have all of the weight
        delta = delta.max(keepdims=True)
    rms = np.sqrt((delta**2).mean())
    steep = Wide(steepest_slope(case)) * (2 if case.family.loss == "softmax" else 1)
    risk = abs(risk) if np.isfinite(risk) else Wide(0)
    # Where the loss is flat at its least, its slope is at most 2 sqrt(risk).
    change = 2 * np.sqrt(risk) * rms + rms**2
    if case.family.loss != "squared":
        change = steep * delta.mean() if case.family.loss != "huber" else min(change, steep * delta.mean())
    amplified = Wide(1)
    if case.family.ambiguity == "penalty" and case.family.loss == "squared" and case.support is None:
        rho, nu = Wide(case.levels[client]), steepness(case, x)[0]
        amplified = rho / (rho - nu * nu) if rho > nu * nu else Wide(0)
    return (change + Wide(UNITS) * risk) * max(amplified, Wide(1)) + Wide(TINY)


def of_moments(case: Case, client: int, x: np.ndarray, risk: Wide) -> Wide:
    """What rounding of second moments can add to the risk of squared loss at most: RMSE^2 is off by some
    units of the largest squares it is summed from, however small it is itself."""
    rows, (w, b) = np.asarray(case.rows[client], Wide), split(case, x)
    sizes = np.abs(rows[:, None, :-1] * w).sum(axis=-1).max(axis=1) + np.abs(b).max() + np.abs(rows[:, -1])
    off = 5 * Wide(UNITS) * (sizes**2).mean()
    return 2 * np.sqrt(abs(risk) * off) + off


def objective(case: Case, x: np.ndarray, risks: Sequence[Bounds]) -> tuple[Wide, Wide]:
    """(upper bound of the worst mixture of what references leave of the risks, rounding of it)."""
    uppers = [b.upper for b in risks]
    if not np.all(np.isfinite(uppers)):
        return INF, Wide(0)
    off = np.asarray(case.taken_off, Wide)
    slack = max(rounding(case, i, x, u) for i, u in enumerate(uppers)) + Wide(UNITS) * np.abs(off).max()
    return worst_mixture(case, np.asarray(uppers, Wide) - off), slack
