"""Newton's own step, where it can take the place of the cone program's.

Where A holds one mixture and no risk has kinks, the worst mixture F(x) = sum_i alpha_i R_i(x, nu(x)) is
smooth around models at which nu(x) = ||B x + b|| is not 0. Its Newton step is then as good as that of the
program over cuts, and a system of equations in place of an interior point method. At the optimum the slope
of F is 0, so that the cuts there prove it by themselves, with y = (dF/dnu) (B x + b) / ||B x + b||.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from bidro.algorithms.cone_model import Answer, ConeModel
from bidro.algorithms.cuts import Cuts
from bidro.algorithms.proof import Proof, proven
from bidro.losses.base import Cone
from bidro.problem import Mixtures
from bidro.sets import CappedSimplex, L1SimplexBall

Numbers = NDArray[np.float64]

# From a kink, the length of a step is found within the first share, in so many trials, unless it falls to
# the second share of what it would be without the kink.
_SAME_LENGTH, _MOST_LENGTHS, _SHORTEST = 0.05, 20, 1e-3
# What a weight may be off by in a sum of weights.
_ROUNDING = 4 * float(np.finfo(float).eps)


class NewtonStep(NamedTuple):
    x: Numbers  # (d,) the next model
    fall: float  # of F, as its second-order model predicts


def one_mixture(mixtures: Mixtures) -> bool:
    """Whether A holds a single mixture, up to rounding: no weight can be lowered, or none raised."""
    if isinstance(mixtures, CappedSimplex):
        room = min(1.0 - float(np.sum(mixtures.lower)), float(np.sum(mixtures.upper)) - 1.0)
        return room <= mixtures.dimension * _ROUNDING
    if isinstance(mixtures, L1SimplexBall) and float(mixtures.radius) == 0:
        return True
    return mixtures.dimension == 1


def newton_step(model: ConeModel, z: Numbers, gradient: Numbers, curvature: Numbers) -> NewtonStep | None:
    """The step from z = (x, nu) by the gradient (k,) and second derivative (k, k) in z of the risks, mixed;
    None where F is not bent in every direction, its minimum may lie at a kink, or the step leads out of X."""
    d = model.models.dimension
    slope, bent = gradient[:d], curvature[:d, :d]
    if len(model.cones) > 1:
        return None
    grouped = any(cone.groups is not None for cone in model.cones)
    if grouped and (gradient[d:].any() or curvature[d:].any()):
        return None  # the largest slopes of curves tie at the optimum: it lies at a kink
    if not model.cones or grouped:
        step = _solved(bent, -slope)
        fall = 0.0 if step is None else -0.5 * float(slope @ step)
    elif z[d] > 0:
        step, fall = _around(z, gradient, curvature, model.cones[0])
    else:
        step, fall = _from_kink(gradient, curvature, model.cones[0].matrix)
    if step is None or not fall > 0 or not model.models.contains(z[:d] + step, 0.0):
        return None
    there = z[:d] + step
    return NewtonStep(there, fall) if model.reached(z[:d], there) is there else None


def _around(z: Numbers, gradient: Numbers, curvature: Numbers, cone: Cone) -> tuple[Numbers | None, float]:
    """(step, fall) with nu to second order."""
    x, nu, matrix = z[:-1], z[-1], cone.matrix
    of_nu = matrix.T @ cone.at(x) / nu
    cross = np.outer(curvature[:-1, -1], of_nu)
    turned = (matrix.T @ matrix - np.outer(of_nu, of_nu)) / nu
    slope = gradient[:-1] + gradient[-1] * of_nu
    bent = curvature[:-1, :-1] + cross + cross.T + curvature[-1, -1] * np.outer(of_nu, of_nu)
    step = _solved(bent + max(float(gradient[-1]), 0.0) * turned, -slope)
    return step, 0.0 if step is None else -0.5 * float(slope @ step)


def _from_kink(gradient: Numbers, curvature: Numbers, matrix: Numbers) -> tuple[Numbers | None, float]:
    """(step, fall) from where B x + b = 0 and nu = ||B step||, which is kept as it is: as long as the step
    gets longer or shorter by much, nu^2 / length stands for it with the length of the step before."""
    slope, bent, steep = gradient[:-1], curvature[:-1, :-1], float(gradient[-1])
    if curvature[-1].any():
        return None, 0.0
    step = _solved(bent, -slope)
    first = length = 0.0 if step is None else float(np.linalg.norm(matrix @ step))
    for _ in range(_MOST_LENGTHS):
        if step is None or not length > _SHORTEST * first:
            return None, 0.0
        step = _solved(bent + steep / length * (matrix.T @ matrix), -slope)
        before, length = length, 0.0 if step is None else float(np.linalg.norm(matrix @ step))
        if abs(length - before) <= _SAME_LENGTH * before:
            break
    if step is None:
        return None, 0.0
    return step, -float(slope @ step + 0.5 * step @ bent @ step + steep * length)


def _solved(bent: Numbers, wanted: Numbers) -> Numbers | None:
    """The v with bent v = wanted, None where `bent` is not positive definite."""
    diagonal = np.diag(bent)
    if not np.all(diagonal > 0):
        return None
    units = 1 / np.sqrt(diagonal)
    try:
        found = units * cho_solve(cho_factor(bent * np.outer(units, units)), units * wanted)
    except (LinAlgError, ValueError):  # not positive definite, or not finite
        return None
    return found if np.all(np.isfinite(found)) else None


def proven_at(model: ConeModel, cuts: Cuts, z: Numbers, origin: int, alpha: Numbers) -> Proof:
    """The lower bound that the clients' cuts of one origin, known at z, prove when mixed by alpha (n,)."""
    d, own = model.models.dimension, np.where(cuts.origin == origin, alpha[cuts.owner], 0.0)
    pulls = tuple(float(own @ cuts.gradient[:, d]) * cone.slope(cone.at(z[:d])) for cone in model.cones)
    bounds = (*model.models.constraints().norms, *model.steepest)
    pushes = tuple(np.zeros(len(norm.offset)) for norm in bounds)
    return proven(model, cuts, z, Answer(z, float(own @ cuts.value), own, alpha, np.zeros(0), pulls, pushes))
