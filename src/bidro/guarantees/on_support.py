"""How steep and how large a loss can be on the support: what statements about the true cost rest on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.errors import BidroError
from bidro.losses import LinearLoss, Softmax
from bidro.problem import Problem
from bidro.sets import Box
from bidro.sets.base import Held
from bidro.transport import Transport


def support_lipschitz(problem: Problem, x: ArrayLike) -> float:
    """L: the largest slope of xi -> l(x, xi) on the support, in the metric of the transport cost.

    Exact for linear predictors, in the features: |L'| is largest at an end of the range of u over the box.
    Where labels can flip, a flip counts with the largest change it makes, divided by its cost.
    """
    loss, transport, support = problem.loss, problem.transport, problem.federation.support
    model: Held = np.asarray(x, float)
    if isinstance(loss, Softmax) and isinstance(support, Box):
        slope = float(loss.lipschitz(model, transport.inverse_scale))
        return _with_flips(slope, float(np.max(_score_gaps(loss, model, support))), transport)
    if not isinstance(loss, LinearLoss) or not isinstance(support, Box):
        known = float(loss.lipschitz(model, transport.inverse_scale))
        flips = transport.discrete_label and math.isfinite(transport.label_cost)
        if not math.isfinite(known) or flips:
            raise BidroError(
                "The slope of this loss on the support is not known; a linear predictor on a box has one."
            )
        return known
    ends = _ends(loss, model, support)
    # At a kink the slope on its other side counts too.
    beside = np.concatenate([ends, np.nextafter(ends, -np.inf)])
    steep = float(np.max(np.abs(loss.scalar.tangent(beside, np.zeros(())).slope)))
    slope = steep * float(loss.dual_norm(model, transport.inverse_scale))
    if loss.labels is None:
        return slope
    values = loss.scalar.value(ends)
    return _with_flips(slope, float(np.max(np.abs(values[:2] - values[2:]))), transport)


def largest_loss(problem: Problem, x: ArrayLike) -> float | None:
    """An upper bound of l(x, .) on the declared support: exact for linear predictors; None where none is
    known, or where the support was read off the data."""
    loss, support, model = problem.loss, problem.federation.support, np.asarray(x, float)
    if not isinstance(support, Box) or problem.federation.support_from_data:
        return None
    if isinstance(loss, LinearLoss):
        return float(np.max(loss.scalar.value(_ends(loss, model, support))))
    if isinstance(loss, Softmax):
        # log sum_k exp(s_k - s_y), with each difference of scores as large as it can be on the box.
        return float(np.max(np.logaddexp.reduce(_score_gaps(loss, model, support), axis=1)))
    return None


def _score_gaps(loss: Softmax, model: Held, support: Box) -> NDArray[np.float64]:
    """(y, k): the largest s_k - s_y on the box, s being the classes' scores."""
    weights, intercepts = loss.split(model)
    apart = weights[None] - weights[:, None]  # (y, k, features), with curves (y, k, columns)
    if loss.basis is not None:
        lower, upper = (np.asarray(end)[:-1] for end in (support.lower, support.upper))
        most = [[loss.basis.ranges(own, lower, upper)[1].sum() for own in row] for row in apart]
        return np.asarray(most) + intercepts[None] - intercepts[:, None]
    centre = np.asarray(support.lower + support.upper)[:-1] / 2
    half = np.asarray(support.upper - support.lower)[:-1] / 2
    return np.asarray(apart @ centre + np.abs(apart) @ half + intercepts[None] - intercepts[:, None])


def _with_flips(slope: float, change: float, transport: Transport) -> float:
    """The slope in the features together with labels that change the loss by at most `change`."""
    if not math.isfinite(transport.label_cost):
        return slope
    flip = change / transport.label_cost
    if transport.p == 1:
        return max(slope, flip)
    q = transport.p / (transport.p - 1)
    return float((slope**q + flip**q) ** (1 / q))


def _ends(loss: LinearLoss, model: Held, support: Box) -> NDArray[np.float64]:
    """The least and largest residual on the box, or the margins with the label 1 and then with -1."""
    if loss.basis is not None:
        return _ends_of_curves(loss, model, support)
    a, offset = loss.direction(model, 1.0)
    centre = np.asarray(support.lower + support.upper) / 2
    half = np.array((support.upper - support.lower) / 2)
    if loss.labels is not None:
        half[-1] = 0.0
    middle, reach = float(a @ centre + offset), float(np.abs(a) @ half)
    ends = [middle - reach, middle + reach]
    return np.array(ends if loss.labels is None else [*ends, *(-end for end in ends)])


def _ends_of_curves(loss: LinearLoss, model: Held, support: Box) -> NDArray[np.float64]:
    """The same, of curves: each is least and largest at an end of its side of the box, or at a knot."""
    assert loss.basis is not None
    w, b = loss.split(model)
    lower, upper = np.asarray(support.lower), np.asarray(support.upper)
    least, most = (side.sum() + float(b) for side in loss.basis.ranges(np.asarray(w), lower[:-1], upper[:-1]))
    if loss.labels is None:
        return np.array([least - upper[-1], most - lower[-1]])
    return np.array([least, most, -least, -most])
