"""What float64 can get wrong in a client's risk: added to upper ends, taken off lower ones.

A sum of n products is off by at most about n eps / 2 times the sum of their sizes, however small it is
itself: where a model fits a row nearly exactly, u is what is left of terms that cancel. So each u has an
interval u +- delta, delta = n eps (sum_j |psi_j z_j| + |offset|), and a loss over it exceeds L(u) by at most
delta times its steepest slope there. All bounds here are twice what the analysis gives to first order, which
covers the terms of second order and their own rounding. JAX arrays give JAX arrays, NumPy's NumPy's.

The rounding of a cut's slope is not bounded here: `solvers.bundle.bound` does that.
"""

from __future__ import annotations

import math

import numpy as np

from bidro.core.pytrees import namespace
from bidro.core.sets.base import AnyArray
from bidro.losses import PiecewiseLinear, Softmax, Tweedie
from bidro.losses.scalar import PiecewiseQuadratic, Scalar

_EPS = float(np.finfo(float).eps)
# Operations behind one value, besides the sums: products, a square, a root, a subtraction.
_OPERATIONS = 8


def of_linear(scalar: Scalar, u: AnyArray, psi: AnyArray, z: AnyArray, slope: AnyArray) -> AnyArray:
    """(rows,) of L(u), u (rows,) = <psi, z> + offset summed from psi (rows, k) and z (k,).

    `slope` (rows,) is L' where L has no kinks. The offset is at most |u| and the other terms together.
    """
    return of_terms(scalar, u, abs(psi) @ abs(z), psi.shape[1], slope)


def of_terms(scalar: Scalar, u: AnyArray, terms: AnyArray, k: int, slope: AnyArray) -> AnyArray:
    """The same of the sums (rows,) of the sizes of those k terms."""
    delta = (k + 2) * _EPS * (2 * terms + abs(u))
    return delta * _steepest(scalar, slope, delta) + _OPERATIONS * _EPS * _sizes(scalar, u)


def of_log_link(loss: Tweedie, target: AnyArray, psi: AnyArray, z: AnyArray) -> AnyArray:
    """(rows,) of losses at scores <psi, z>, summed from psi (rows, k) and z (k,): the steepest slope within
    what rounding moves a score by, and the sizes of the terms that a loss is summed from."""
    score = psi @ z
    delta = (psi.shape[1] + 2) * _EPS * 2 * (abs(psi) @ abs(z))
    ends = [loss.of_scores(target, (score + side)[None]) for side in (-delta, delta)]
    steepest = np.maximum(*(abs(slope[0]) for _, slope in ends))
    # Logarithms and powers of the target are within a unit of the score or of it.
    sizes = np.maximum(*(value for value, _ in ends)) + steepest * (1 + abs(score))
    return np.asarray(delta * steepest + 8 * _OPERATIONS * _EPS * (sizes + target ** (2 - loss.power)))


def _steepest(scalar: Scalar, slope: AnyArray, delta: AnyArray) -> AnyArray:
    """The steepest slope of L within delta of u."""
    xp = namespace(delta)
    if scalar.curvature == math.inf:
        return xp.full_like(delta, scalar.lipschitz)
    return xp.minimum(abs(slope) + scalar.curvature * delta, scalar.lipschitz)


def _sizes(scalar: Scalar, u: AnyArray) -> AnyArray:
    """The sum of the sizes of the terms that L(u) is summed from."""
    if not isinstance(scalar, PiecewiseQuadratic):
        return scalar.value(u)

    def of_piece(piece: tuple[float, float, float]) -> AnyArray:
        q2, q1, q0 = map(abs, piece)
        return (q2 * abs(u) + q1) * abs(u) + q0

    result = of_piece(scalar.pieces[0])
    for knot, piece in zip(scalar.knots, scalar.pieces[1:], strict=True):
        result = namespace(u).where(u >= knot, of_piece(piece), result)
    return result


def of_softmax(loss: Softmax, x: AnyArray, rows: AnyArray) -> AnyArray:
    """(rows,) of the losses of `rows` (rows, m), computed from differences to the own score.

    Each of these may be off by delta, and the loss moves by at most 1 - exp(-loss - delta) <= min(1, loss +
    delta) of that: the probability of the other classes.
    """
    weights, intercepts = loss.split(x)
    sizes = (abs(loss.design(rows)[:, :-1]) @ abs(weights).T + abs(intercepts)).max(axis=1)
    delta = 4 * (weights.shape[1] + 2) * _EPS * sizes
    value = loss.values(x, rows)
    return delta * namespace(value).minimum(1.0, value + delta) + (_OPERATIONS + loss.classes) * _EPS * value


def of_pieces(loss: PiecewiseLinear, x: AnyArray, rows: AnyArray) -> AnyArray:
    """(rows,) of the largest of pieces at `rows` (rows, m), each summed twice: over the model and the row."""
    xp = namespace(x, rows)
    matrices = np.abs(np.array(loss.pieces))
    sizes = xp.append(abs(x), 1.0) @ matrices
    terms = abs(rows) @ sizes[:, :-1].T + sizes[:, -1]
    return (sum(matrices.shape) + _OPERATIONS) * _EPS * terms.max(axis=1)


def of_cost(price: AnyArray, cost: AnyArray) -> AnyArray:
    """(rows,) of price times cost; 0 where that is not finite, and so is the value."""
    paid = price * cost
    xp = namespace(paid)
    return xp.where(xp.isfinite(paid), _OPERATIONS * _EPS * abs(paid), 0.0)


def of_sum(count: AnyArray, mean: AnyArray) -> AnyArray:
    """Of a mean of `count` numbers of one sign."""
    xp = namespace(mean)
    return xp.where(xp.isfinite(mean), (count + _OPERATIONS) * _EPS * abs(mean), 0.0)


def of_value(value: AnyArray, k: int) -> AnyArray:
    """Of a risk put together from such means, a norm of k terms and a radius."""
    xp = namespace(value)
    return xp.where(xp.isfinite(value), (k + _OPERATIONS) * _EPS * abs(value), 0.0)
