"""What goes beside a mean loss: typical errors, mistakes, how well classes are told apart and calibrated."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from bidro.arrays import Floats
from bidro.losses import registry
from bidro.model_file import Model

# Of the calibration error, of equal width.
BINS = 10


def measures(
    model: Model, scores: Floats, rows: Floats, right: NDArray[np.bool_] | None, loss: float
) -> dict[str, Any]:
    """Of scores (N, outputs) for rows (N, m) in the units of training, whose mean loss is `loss`. `right`
    (N,) says whose class is predicted, None for a number.

    Squared loss has `root_mean_squared_error`, in the target's own unit. Classes have `accuracy`, `mistakes`
    (the share of wrong predictions) and `auc`, the area under the curve of one class against the rest, of
    more than two classes the mean; None where the rows are of one class. Of probabilities there are
    `expected_minus_observed`, of two classes the mean probability of the second less its share of the rows,
    and `calibration_error`, see there.
    """
    entry, classes = registry.entry_of(model.loss), model.schema.classes
    if classes is None or right is None:
        return {"root_mean_squared_error": float(np.sqrt(loss))} if entry.root_unit else {}
    if scores.shape[1] == 1:
        each, truth = scores, (rows[:, -1:] > 0)
        chances = expit(scores)
    else:
        # Only differences between the scores of a row mean anything.
        each = chances = softmax(scores, axis=1)
        truth = rows[:, -1:] == np.arange(len(classes))
    shares = {"accuracy": float(right.mean()), "mistakes": float(1 - right.mean())}
    found: dict[str, Any] = {**shares, "auc": _mean_area(each, truth)}
    if entry.probabilities:
        if scores.shape[1] == 1:
            found["expected_minus_observed"] = float(chances.mean() - truth.mean())
        found["calibration_error"] = calibration_error(chances, truth)
    return found


def area_under_curve(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """How often a positive one has a higher score than another, ties counted by half; None where there is
    only one kind. Both (N,)."""
    several, others = int(positive.sum()), int((~positive).sum())
    if several == 0 or others == 0:
        return None
    below = np.sort(scores[~positive])
    lower, at_most = (np.searchsorted(below, scores[positive], side) for side in ("left", "right"))
    return float((lower.sum() + at_most.sum()) / (2 * several * others))


def calibration_error(chances: Floats, truth: NDArray[np.bool_]) -> float:
    """The mean distance of probabilities (N, classes) from the shares of what is true, over rows, in ten bins
    of equal width a class; the mean over classes. By chance it is above 0, of few rows far above."""
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    apart = [
        np.abs(np.bincount(bins[:, k], chances[:, k] - truth[:, k], BINS)).sum() / len(chances)
        for k in range(chances.shape[1])
    ]
    return float(np.mean(apart))


def deviation(scores: Floats) -> float:
    """The standard deviation of scores (N, outputs), of several outputs together; for a numeric target in its
    own unit."""
    return float(np.sqrt(np.sum(np.var(scores, axis=0))))


def _mean_area(scores: Floats, truth: NDArray[np.bool_]) -> float | None:
    areas = [area_under_curve(scores[:, k], truth[:, k]) for k in range(truth.shape[1])]
    known = [area for area in areas if area is not None]
    return float(np.mean(known)) if known else None
