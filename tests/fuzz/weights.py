"""Sets of weights, of clients and of rows: the highest mean that they allow, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.fuzz.plain import Wide

# Of a set of weights of N rows, the set of mixtures that it is, and its bounds.
ROW_WEIGHTS = {
    "KL": lambda n, level: ("KL ball", (np.full(n, 1 / n), level)),
    "chi-squared": lambda n, level: ("chi-squared ball", (np.full(n, 1 / n), level)),
    "TV": lambda n, level: ("l1 ball", (np.full(n, 1 / n), 2 * level)),
    "CVaR": lambda n, level: ("capped", (np.zeros(n), np.full(n, 1 / (Wide(n) * (1 - level))))),
}


def highest_mean(kind: str, bounds: tuple[np.ndarray, ...], values: Sequence[Wide] | np.ndarray) -> Wide:
    """max over the weights of a set of <alpha, values>, by filling weights in the order of the values."""
    risks = np.asarray(values, Wide)
    if kind == "simplex":
        return risks.max()
    if kind == "l1 ball":
        centre, radius = np.asarray(bounds[0], Wide), Wide(bounds[1])
        left, weights = min(radius, Wide(2)) / 2, centre.copy()
        for i in np.argsort(risks):
            taken = min(weights[i], left)
            weights[i] -= taken
            left -= taken
        weights[np.argmax(risks)] += 1 - weights.sum()
    elif kind == "first bounded":
        first, bound = bounds[0] > 0, Wide(bounds[1])
        own, others = risks[first].max(), risks[~first].max()
        return max(others, bound * own + (1 - bound) * others) if bound > 0 else others
    elif kind in ("chi-squared ball", "KL ball"):
        return _within_divergence(kind, bounds, risks)
    else:
        lower, upper = (np.asarray(v, Wide) for v in bounds)
        weights, left = lower.copy(), 1 - lower.sum()
        for i in np.argsort(-risks):
            added = min(upper[i] - lower[i], left)
            weights[i] += added
            left -= added
    return Wide(np.where(weights > 0, weights * np.where(weights > 0, risks, 0), 0).sum())


def _tilted(kind: str, center: np.ndarray, risks: np.ndarray, by: Wide) -> np.ndarray:
    """Weights that grow with the risks: in proportion to what these exceed a level by, or exponentially."""
    top = risks.max()
    if kind == "KL ball":
        parts = center * np.exp((risks - top) / by)
    else:
        parts = center * np.maximum(risks - (top - by), 0)
    return parts / parts.sum()


def _divergence(kind: str, center: np.ndarray, alpha: np.ndarray) -> Wide:
    if kind == "chi-squared ball":
        return ((alpha - center) ** 2 / center).sum()
    some = alpha > 0
    return (alpha[some] * np.log(alpha[some] / center[some])).sum()


def _within_divergence(kind: str, bounds: tuple[np.ndarray, ...], risks: np.ndarray) -> Wide:
    """The tilt, by halvings of its logarithm, at which weights are as far from the centre as they may."""
    center, radius = (np.asarray(part, Wide) for part in bounds)
    spread = risks.max() - risks.min()
    if radius == 0 or spread == 0:
        return (center * risks).sum()
    best = np.where(risks == risks.max(), center, 0)
    if _divergence(kind, center, best / best.sum()) <= radius:
        return risks.max()
    low, high = np.log(spread) - 40, np.log(spread) + 40
    for _ in range(150):
        middle = (low + high) / 2
        far = _divergence(kind, center, _tilted(kind, center, risks, np.exp(middle))) > radius
        low, high = (middle, high) if far else (low, middle)
    return (_tilted(kind, center, risks, np.exp(high)) * risks).sum()


def in_weights(kind: str, bounds: tuple[np.ndarray, ...], alpha: np.ndarray) -> bool:
    small = 1e-7
    ok = bool(np.all(alpha >= -small)) and abs(alpha.sum() - 1) <= small
    if kind == "l1 ball":
        return ok and np.abs(alpha - bounds[0]).sum() <= bounds[1] + small
    if kind == "simplex":
        return ok
    if kind == "first bounded":
        return ok and float(alpha @ bounds[0]) <= float(bounds[1]) + small
    if kind in ("chi-squared ball", "KL ball"):
        inside = np.maximum(np.asarray(alpha, Wide), 0)
        return (
            ok
            and float(_divergence(kind, np.asarray(bounds[0], Wide), inside / inside.sum()))
            <= float(bounds[1]) + small
        )
    lower, upper = bounds
    return ok and bool(np.all((alpha >= lower - small) & (alpha <= upper + small)))
