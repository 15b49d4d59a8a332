"""Losses, and how steep they are, by plain NumPy in extended precision, sharing no code with bidro."""

from __future__ import annotations

import numpy as np

from tests.fuzz.problems import RESIDUAL, Case

Wide = np.longdouble
INF = Wide(np.inf)


def split(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(weights (classes or 1, features), intercepts (classes or 1,))."""
    f = case.family
    count = int(f.parameter) if f.loss == "softmax" else 1
    wide = np.asarray(x, Wide)
    w = wide[: count * f.features].reshape(count, f.features)
    return w, wide[count * f.features :] if f.intercept else np.zeros(count, Wide)


def scalar_loss(name: str, c: float, u: np.ndarray) -> np.ndarray:
    """The loss of residuals (prediction minus target) or margins u."""
    c = Wide(c)
    if name == "squared":
        return u * u
    if name == "absolute":
        return np.abs(u)
    if name == "huber":
        return np.where(np.abs(u) <= c, u * u / 2, c * (np.abs(u) - c / 2))
    if name == "pinball":
        return np.maximum(-c * u, (1 - c) * u)
    if name == "logistic":
        return np.logaddexp(Wide(0), -u)
    if name == "hinge":
        return np.maximum(1 - u, 0)
    short = np.maximum(1 - u, 0)
    return np.where(short < c, short * short / (2 * c), short - c / 2)


def knots(case: Case) -> tuple[float, ...]:
    """Where the loss of a linear predictor changes its formula."""
    c = case.family.parameter
    return {
        "absolute": (0.0,),
        "huber": (-c, c),
        "pinball": (0.0,),
        "hinge": (1.0,),
        "smoothed hinge": (1 - c, 1.0),
    }.get(case.family.loss, ())


def steepest_slope(case: Case) -> float:
    """The Lipschitz constant of the loss in u; inf for squared loss."""
    c = case.family.parameter
    return {"squared": np.inf, "huber": c, "pinball": max(c, 1 - c)}.get(case.family.loss, 1.0)


def losses(case: Case, x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The loss at points (..., m), labels or targets last; shape (...)."""
    w, b = split(case, x)
    points = np.asarray(points, Wide)
    if case.family.loss == "softmax":
        scores = (points[..., None, :-1] * w).sum(axis=-1) + b
        own = np.take_along_axis(scores, points[..., -1:].astype(int), axis=-1)
        top = (scores - own).max(axis=-1)
        return top + np.log(np.exp(scores - own - top[..., None]).sum(axis=-1))
    u = (points[..., :-1] * w[0]).sum(axis=-1) + b[0]
    last = points[..., -1]
    return scalar_loss(
        case.family.loss, case.family.parameter, u - last if case.family.loss in RESIDUAL else u * last
    )


def inverse_scale(case: Case) -> np.ndarray:
    """(m,) what a coordinate moves for a unit of length; 0 where it does not."""
    inverse = 1 / np.asarray(case.scale, Wide)
    if case.family.labels is not None:
        inverse[-1] = 0
    return inverse


def length(case: Case, moved: np.ndarray) -> np.ndarray:
    """(...) how long moves (..., m) of the coordinates that move are, in the metric."""
    inverse = inverse_scale(case)
    movable = inverse > 0
    own = np.asarray(moved, Wide)[..., movable] / inverse[movable]
    match case.family.norm:
        case "l1":
            return np.abs(own).sum(axis=-1)
        case "linf":
            return np.abs(own).max(axis=-1)
        case "mahalanobis":
            within = np.asarray(case.matrix, Wide)[np.ix_(movable, movable)]
            return np.sqrt(((own @ within) * own).sum(axis=-1))
        case _:
            return np.sqrt((own**2).sum(axis=-1))


def best_direction(case: Case, a: np.ndarray) -> np.ndarray:
    """(m,) the move by which <a, move> rises most for its length; of any length."""
    inverse = inverse_scale(case)
    b, v = a * inverse, np.zeros(len(a), Wide)
    movable = inverse > 0
    match case.family.norm:
        case "l1":
            v[np.argmax(np.abs(b))] = np.sign(b[np.argmax(np.abs(b))])
        case "linf":
            v = np.sign(b)
        case "mahalanobis":
            within = np.asarray(case.matrix, float)[np.ix_(movable, movable)]
            found = np.linalg.solve(within, np.asarray(b[movable], float)).astype(Wide)
            # One step of refinement: the solve is in fewer digits than the rest.
            left = b[movable] - np.asarray(within, Wide) @ found
            v[movable] = found + np.linalg.solve(within, np.asarray(left, float))
        case _:
            v = b
    return v * inverse


def steepness(case: Case, x: np.ndarray) -> np.ndarray:
    """How much u changes for a unit of length: (1,) for a linear predictor, (K,) for softmax, where it is the
    largest slope of the loss far out from each label."""
    w, _ = split(case, x)
    inverse = inverse_scale(case)
    if case.family.loss == "softmax":
        gaps = (w[:, None] - w[None]) * inverse[:-1]
        return np.sqrt((gaps**2).sum(axis=-1)).max(axis=0)
    a = np.append(w[0], -1 if case.family.loss in RESIDUAL else 0)
    if case.family.norm == "euclidean":
        return np.sqrt(((a * inverse) ** 2).sum())[None]
    move = best_direction(case, a)
    size = length(case, move)
    return np.asarray((a @ move) / size if size > 0 else Wide(0))[None]
