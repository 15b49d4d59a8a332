"""Steps of the exact solver: the next model around the centre, and the lower bound that goes with it.

Where A holds one mixture and no risk has kinks, the next model is Newton's (`newton_step`); where risks fall
to 0 only at infinity, it is far out along a ray (`scale_along_ray`); else it minimises the program over the
cuts with the curvature of the worst mixture in its proximal term (`next_model`). Once the best model is
settled, the next model is where clients have a cut that the lower bound lacks (`extra_cut`).

Scores of softmax can all rise together without any risk changing. Along such a rise nobody has curvature, and
the program would allow a step along it of millions of times the size of those that matter, and lose these in
its tolerances. So the curvature is given a value of its own there, which holds the step and costs nothing
(`hold_shifts`), as nothing is gained along it but room: where an edge of X is near, the next model is moved
to the middle between the edges instead (`centre_shifts`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from bidro.core.sets import Ball, Box, Simplex, VectorSet
from bidro.risk.oracle import NO_LIFT, Lift, QuadraticRisks
from bidro.solvers.bundle.bound import DualBound, lower_bound, proven_at, reach, require_consistent
from bidro.solvers.bundle.model import ConeModel, Curvature, Groups, Solved, held_by_cones, solved
from bidro.solvers.bundle.state import State, Step
from bidro.solvers.minimax_newton import Mix, quadratic_minimax

Numbers = NDArray[np.float64]

# The proximal term is made heavier by this factor where a step fails.
HEAVIER = 4.0
# The program for the lower bound has no steps whose size would go down with the gap; its unit stays above
# this share of the risks.
_COARSEST = 1e-5
# Kinks are smoothed over a share of the width before, the second where they are followed.
_NARROW, _NARROW_FOLLOWED = 0.35, 0.1
# What smoothing costs shows if it is more than this share of the gap; nothing helps where the gap stays above
# the second share of what it was a round ago.
_SHOWS, _HARDLY = 0.1, 0.9999
# Where kinks are followed: also where steps promise less than the first share of what smoothing costs. Below
# the second share of the gap that is wanted, what steps promise and smoothing costs no longer matters.
_SETTLED_AT_WIDTH, _SHARP = 0.05, 0.5
# Cuts that neither program has used for this many rounds are dropped.
_IDLE_ROUNDS = 25
# Newton's method has done its part where it promises less than this share of the risk.
_FOUND = 1e-14
# Curvatures are mixed anew where the weights of the step differ by more than this in all.
_SAME_MIXTURE = 1e-3
# Where a step promises less than this share of the gap that is wanted, only the proof is short of it, and
# the next models are to give cuts for it: models that are worse by these multiples of the gap.
_SETTLED = 1e-4
_LENGTHS = (1.0, 100.0, 0.01)
# An edge of X is near from this share of the way from the middle to it. A rise of all scores from edge to
# edge may then cost the second share of the risk.
_NEAR, _CHEAP = 0.8, 1e-3
# From a kink, the minimum is found up to the first share of what would be gained without the kink, unless the
# step falls to the second share of what it would be then.
_SAME_FALL, _SHORTEST = 1e-3, 1e-3
# What a weight may be off by in a sum of weights.
_ROUNDING = 4 * float(np.finfo(float).eps)
# Directions with less than this share of the largest curvature are left out of extra cuts: no cut differs
# along them. So are coordinates with curvature from the cones alone, but for the second share.
_LEAST, _OWN = 1e-12, 1e-6
# Coordinates whose slope costs less than this share of the costliest get no extra cut.
_COSTLY = 1e-2
# Risks that fall to 0 only at infinity have come near it below this multiple of the floor. Along a ray they
# are then brought to the second share of what still counts, by a model at most so many times farther out.
_VANISHING, _VANISHED, _FARTHEST = 1e4, 0.1, 20.0


def with_lower_bound(state: State) -> State:
    """With what the lower-bound subproblem, the program without a proximal term, proves."""
    scale = max(state.scale, _COARSEST * abs(state.model.references.risk(state.best.upper)))
    found = solved(state.model, state.cuts, state.centre.z, None, scale, state.step.singly)
    if found is None:
        return state
    cuts = state.cuts._replace(idle=np.where(found.used, 0, state.cuts.idle))
    return _proven_by(state._replace(cuts=cuts), found)


def proven_as_begun(state: State) -> State:
    """With what the cuts at the centre prove with the weights of the step: all, where these and the model are
    optimal already."""
    dual = proven_at(state.model, state.cuts, state.centre.z, state.centre.origin, state.step.mixture)
    return _with_dual(state, dual) if dual.bound > state.dual.bound else state


def _proven_by(state: State, found: Solved) -> State:
    """The better of the lower bound known and the one that the multipliers found prove."""
    enough = (upper := state.best.upper) - state.target.gap * state.size
    dual = lower_bound(found.model, found.cuts, state.centre.z, found.answer, upper, enough)
    state = state._replace(uncancelled=(*state.uncancelled, dual.slope))
    return _with_dual(state, dual._replace(alpha=found.clients(dual.alpha)))


def _with_dual(state: State, dual: DualBound) -> State:
    """The better of the lower bound known and this one, whose weights are the clients'."""
    known = state.t > 1 or state.model.references.each is not None
    if dual.bound <= state.dual.bound and known:
        return state
    return consistent(state._replace(dual=dual._replace(bound=max(dual.bound, state.dual.bound))))


def consistent(state: State) -> State:
    """The state with a lower bound that rounding has not put above the upper one, where that is proven."""
    if not state.best.certified:
        return state
    lower, upper = state.dual.bound, state.best.upper
    require_consistent(lower, upper, max(abs(upper), state.size), state.t)
    return state._replace(dual=state.dual._replace(bound=min(lower, upper)))


def next_model(state: State) -> State:
    """With the next model: from the program with curvature around the centre."""
    far = scale_along_ray(state)
    if far is not None:
        return far
    centre, model = state.centre, state.model
    # Cuts at the centre count as tangents of the smoothed risks, which lie above them.
    program = partial(solved, model, state.cuts, centre.z, scale=state.scale, also=state.step.singly)
    program = partial(program, origin=centre.origin, raised=centre.smoothing)
    M = _prox_curvature(state, state.step.mixture)
    step = program(M)
    turned = 0.0 if step is None else float(np.abs(step.alpha - state.step.mixture).sum())
    if step is not None and centre.curvature.shape[1] and turned > _SAME_MIXTURE:
        # The weights that mix the curvatures come from the program itself: once more with what it gave.
        M = _prox_curvature(state, step.alpha)
        step = program(M, before=step) or step
    if step is None:
        return state._replace(prox=state.prox._replace(weight=HEAVIER * state.prox.weight))
    # Near the solution these multipliers prove more than those of the bound's own program.
    state = _proven_by(state, step)
    move, cuts = step.answer.z - centre.z, state.cuts
    predicted = max(centre.merit - step.value - M.of_step(move), 0.0)
    idle = np.where(step.used | (cuts.origin == centre.origin), 0, cuts.idle + 1)
    was_extra_cut = state.step.extra_cut
    state = state._replace(
        x=centre_shifts(model.models, step.answer.z[: model.models.dimension], model.shift_invariance),
        cuts=cuts._replace(idle=idle).only(idle < _IDLE_ROUNDS),
        step=Step(step.alpha, step.singly, predicted),
    )
    # Smoothing costs this much; when steps promise less, and it shows in the gap or nothing else helps, kinks
    # are smoothed less.
    cost = centre.merit - model.worst_mixture(centre.attained)
    left, smoothing = state.best.upper - state.dual.bound, state.smoothing
    still = float(np.linalg.norm(move)) <= 1e-15 * float(np.linalg.norm(centre.z))
    followed = len(smoothing.history) > 0
    free = followed and state.prox.weight <= 1  # a short step promises little wherever it is
    if free and not state.finished and predicted + cost <= _SHARP * state.target.gap * state.size:
        # The optimum is reached, and lines with the slopes that kinks have there are what proves it.
        smoothing = smoothing._replace(left=left)
        return state._replace(smoothing=smoothing, step=state.step._replace(extra_cut=True, sharp=True))
    settled = free and predicted < _SETTLED_AT_WIDTH * cost
    if predicted < cost and (still or settled or cost > _SHOWS * left or left > _HARDLY * smoothing.left):
        # The centre was judged by other smoothing: it gives way to the next point whatever that is like.
        width = smoothing.width * (_NARROW_FOLLOWED if followed else _NARROW)
        centre = centre._replace(merit=np.inf)
        return state._replace(smoothing=smoothing._replace(width=width, left=left), centre=centre)
    state = state._replace(smoothing=smoothing._replace(left=left))
    size = state.target.gap * state.size
    if predicted <= _SETTLED * size and not state.finished and not was_extra_cut:
        # By turns what either program's proof lacked, and steps of other lengths: one that did not help once
        # does not help again.
        turn = state.t // 2
        slope = state.uncancelled[turn % len(state.uncancelled)]
        length = _LENGTHS[turn // 2 % len(_LENGTHS)]
        r_nu = float(step.alpha @ centre.gradient[:, -1])
        x = extra_cut(model, centre.z, _mixed_curvature(state, step.alpha), r_nu, slope, length * size)
        if x is not None:
            x = model.reached(centre.z[: model.models.dimension], x)
            return state._replace(x=x, step=state.step._replace(extra_cut=True))
    return state._replace(stalled=still)


def by_newton(state: State) -> State | None:
    """With the next model by Newton's method, or with the proof that none is needed; None where Newton's
    method does not serve, or has nothing more to gain.

    At the optimum of one mixture the slope is 0, so that the cuts there prove it by themselves.
    """
    centre, model, mixture, size = state.centre, state.model, state.step.mixture, state.size
    if state.prox.weight > 1 or not centre.curvature.shape[1] or centre.smoothing.any():
        return None
    if not model.mixtures.is_single_point:
        return None
    step = newton_step(model, centre.z, mixture @ centre.gradient, _held_curvature(state, mixture))
    if step is None:
        return None
    if step.fall <= state.target.gap * size:
        dual = proven_at(model, state.cuts, centre.z, centre.origin, mixture)
        state = _with_dual(state, dual)
        # In wide sets a slope costs so much that only multipliers that are mended prove anything.
        if not state.finished and (dual.lost > size or step.fall <= _FOUND * size):
            return None
    return state._replace(x=step.x, step=state.step._replace(predicted=step.fall))


def scale_along_ray(state: State) -> State | None:
    """With the next model t x on the ray through the centre's x, where risks fall to 0 as they do far out;
    None where that is not so, or has just been tried in vain.

    Without a radius, classes that x separates have risks that fall like exp(-margin t), with the margin
    given by the slope along the ray. Newton's method would bring them down by a factor e a round.
    """
    centre, model, floor = state.centre, state.model, state.target.floor
    goal = _VANISHED * state.target.gap * floor
    near = goal < centre.merit < _VANISHING * floor
    # With a radius there is a minimum, which a ray would only lead away from.
    steepness = centre.gradient[:, model.models.dimension :]
    fixed = not steepness.any() if model.cones else bool(np.all(np.isinf(state.best.multipliers)))
    fixed = fixed and model.references.each is None
    if not (
        model.infimum_at_infinity and fixed and near and state.dual.bound <= 0 and state.prox.weight <= 1
    ):
        return None
    weights = np.asarray(model.mixtures.linear_maximum(centre.attained + centre.smoothing)[1])
    margin = -float(weights @ (centre.gradient @ centre.z)) / centre.merit
    longer = math.log(centre.merit / goal)
    if longer > (_FARTHEST - 1) * margin:
        return None
    x = (1 + longer / margin) * centre.z[: model.models.dimension]
    if not model.models.contains(x):
        return None
    smoothing = state.smoothing._replace(left=state.best.upper - state.dual.bound)
    return state._replace(x=x, step=state.step._replace(predicted=centre.merit - goal), smoothing=smoothing)


def extra_cut(
    model: ConeModel, z: Numbers, M: Numbers, r_nu: float, slope: Numbers, cost: float
) -> Numbers | None:
    """The model (d,) to ask at for a cut that a lower bound lacks, worse than z by about `cost`; None where
    there is nothing to cancel.

    Once the best model is settled, what a proof lacks is a cut that cancels the last of a slope s (see
    `bound`). At x - t H^-1 s, H being the curvature of the worst mixture, the slope is (1 - t) s: for t > 1
    the opposite of s, so that a share 1 / t of the cut there cancels it. The step that s itself asks for,
    t = 1, would be lost in the rounding of x.

    M (k, k) is the mixture's curvature at z, r_nu its slope in nu, `slope` (d,) what is to be cancelled.
    """
    d = model.models.dimension
    x, H, own_curvature = z[:d], M[:d, :d], np.diag(M)[:d] > 0
    if model.cones and z[d] > 0:
        slopes = np.append(np.zeros(d), r_nu)
        risk = QuadraticRisks(z, np.zeros(1), slopes[None], M[None], Lift(model.cones))
        H = risk.lift.chained(risk.at(z[None]), 0, x).hessian(np.ones(1))
        own_curvature = np.diag(M)[:d] > _OWN * np.diag(H)
    width = reach(model, z, slope)
    free = (width > 0) & own_curvature
    loss = np.where(free, np.abs(slope) * width, 0.0)
    slope = np.where(loss > _COSTLY * loss.max(), slope, 0.0)
    if not free.any():
        return None
    units = 1 / np.sqrt(np.diag(H)[free])
    values, vectors = np.linalg.eigh(H[np.ix_(free, free)] * np.outer(units, units))
    along = vectors.T @ (units * slope[free])
    curved = values > _LEAST * values[-1]
    steps = np.where(curved, along / np.where(curved, values, 1.0), 0.0)
    fall = 0.5 * float(along[curved] @ steps[curved])
    if not fall > 0 or not np.isfinite(fall):
        return None
    move = np.zeros(d)
    move[free] = -units * (vectors @ steps) * np.sqrt(cost / fall)
    return np.asarray(model.models.project(x + move))


def quasi_newton(B: Numbers | None, s: Numbers, y: Numbers) -> Numbers | None:
    """The damped BFGS estimate after a move s (k,) that changed the gradient by y (k,).

    Powell's damping keeps it positive definite. The first estimate is the multiple of the identity that fits
    the move.
    """
    length, sy = float(s @ s), float(s @ y)
    if length == 0 or not np.isfinite(sy) or (B is None and sy <= 0):
        return B
    if B is None:
        B = np.eye(len(s)) * sy / length
    Bs = B @ s
    sBs = float(s @ Bs)
    if not sBs > 0:  # what is left of B along s is rounding
        return B
    share = 1.0 if sy >= 0.2 * sBs else 0.8 * sBs / (sBs - sy)
    y = share * y + (1 - share) * Bs
    updated: Numbers = B - np.outer(Bs, Bs) / sBs + np.outer(y, y) / float(s @ y)
    return updated


def _mixed_curvature(state: State, mixture: Numbers) -> Numbers:
    """(k, k) the curvature of the mixture at the centre, as far as is known."""
    packed, estimate, k = state.centre.curvature, state.prox.estimate, len(state.centre.z)
    M = np.zeros((k, k)) if estimate is None else estimate.copy()
    if packed.shape[1]:
        rows, columns = np.triu_indices(k)
        M[rows, columns] = M[columns, rows] = mixture @ packed
    return M


def _held_curvature(state: State, mixture: Numbers) -> Numbers:
    """The same, with curvature also where coordinates rise together unseen."""
    model, x = state.model, state.centre.z[: state.model.models.dimension]
    return hold_shifts(_mixed_curvature(state, mixture), model.shift_invariance, model.models, x, state.size)


def _prox_curvature(state: State, mixture: Numbers) -> Curvature:
    """That of the proximal term, by its weight; where nothing is known of M, the multiple of the identity for
    steps of about 1."""
    centre, cones, weight = state.centre, state.model.cones, state.prox.weight
    M = _held_curvature(state, mixture)
    slope = float(mixture @ centre.gradient[:, -1])
    if cones and slope > 0:
        M = held_by_cones(M, cones, slope, max(centre.z[-1], state.scale / slope))
    steepest = float(np.linalg.norm(centre.gradient, axis=1).max())
    return Curvature.of(weight * M, weight * (steepest or 1.0), cones)


def hold_shifts(M: Numbers, groups: Groups, models: VectorSet, x: Numbers, risk: float) -> Numbers:
    """M (k, k) with a curvature along the rise of each group: as large as its members have by themselves, but
    where x (d,) is near an edge so small that it does not keep the others from moving."""
    raised, room = M.copy(), _room(models, x, groups)
    for group, width, near in zip(groups, room.width, room.near, strict=True):
        own = np.diag(M)[group]
        if own.sum() > 0:
            share = min(1.0, _CHEAP * risk / (own.sum() * width**2)) if near else 1.0
            raised[np.ix_(group, group)] += share * np.outer(own, own) / own.sum()
    return raised


def centre_shifts(models: VectorSet, x: Numbers, groups: Groups) -> Numbers:
    """x (d,) with those groups that are near an edge of the box around X moved to where both edges are
    equally far; x itself where that leads out of X."""
    room, moved = _room(models, x, groups), x.copy()
    moved[groups[room.near]] += ((room.up - room.down) / 2)[room.near, None]
    return moved if models.contains(moved, 0.0) else x


class _Room(NamedTuple):
    """How far each group (groups,) can fall and rise in the box around X, and between its edges."""

    down: Numbers
    up: Numbers
    width: Numbers

    @property
    def near(self) -> NDArray[np.bool_]:
        return np.asarray(np.minimum(self.down, self.up) < (1 - _NEAR) / 2 * self.width)


def _room(models: VectorSet, x: Numbers, groups: Groups) -> _Room:
    lower, upper = (np.asarray(side)[groups] for side in models.bounding_box())
    spans = (x[groups] - lower, upper - x[groups], upper - lower)
    return _Room(*(span.min(axis=1, initial=np.inf) for span in spans))


class NewtonStep(NamedTuple):
    x: Numbers  # (d,) the next model
    fall: float  # of F, as its second-order model predicts


def newton_step(model: ConeModel, z: Numbers, gradient: Numbers, curvature: Numbers) -> NewtonStep | None:
    """Newton's step from z = (x, nu) by the gradient (k,) and second derivative (k, k) in z of mixed risks.

    Where A holds one mixture and no risk has kinks, F(x) = sum_i alpha_i R_i(x, nu(x)) is smooth around
    models at which nu(x) = ||B x + b|| is not 0. Its Newton step is then as good as that of the program over
    cuts, and a system of equations in place of an interior point method. None where F is not curved in every
    direction, its minimum may lie at a kink, or the step leads out of X.
    """
    d, x = model.models.dimension, z[: model.models.dimension]
    flat = not (gradient[d:].any() or curvature[d:].any())
    lift = NO_LIFT if flat else Lift(model.cones)
    if len(lift.cones) > 1 or not lift.smooth:
        return None  # norms, or the largest slopes of curves, tie at the optimum: it lies at a kink
    k = d + bool(lift.cones)
    risks = QuadraticRisks(z[:k], np.zeros(1), gradient[None, :k], curvature[None, :k, :k], lift)
    if lift.cones and z[d] == 0:
        return _from_kink(model, risks)
    here = lift.chained(risks.at(z[None, :k]), 0, x)
    step = _solved(here.hessian(np.ones(1)), -here.gradients[0])
    return None if step is None else _inside(model, x, x + step, -0.5 * float(here.gradients[0] @ step))


def _from_kink(model: ConeModel, risks: QuadraticRisks) -> NewtonStep | None:
    """From where B x + b = 0: to the minimum of what is quadratic in (x, nu)."""
    d, B = model.models.dimension, model.cones[0].matrix
    x, slope, curvature = risks.z[:d], risks.gradient[0], risks.curvature[0]
    free = _solved(curvature[:d, :d], -slope[:d])
    if free is None or curvature[d].any() or not isinstance(model.models, Box | Ball):
        return None
    most = -0.5 * float(slope[:d] @ free)
    mix = Mix.of(risks.lift, x, np.ones(1))
    there, _ = quadratic_minimax(risks, model.models, Simplex(1), x, mix, _SAME_FALL * most, most)
    if np.linalg.norm(B @ (there - x)) <= _SHORTEST * np.linalg.norm(B @ free):
        return None
    return _inside(model, x, there, -float(risks.values(there[None])[0, 0]))


def _inside(model: ConeModel, x: Numbers, there: Numbers, fall: float) -> NewtonStep | None:
    """The step from x, unless it leads out of X, or less far than the program would go."""
    inside = fall > 0 and model.models.contains(there, 0.0) and model.reached(x, there) is there
    return NewtonStep(there, fall) if inside else None


def _solved(H: Numbers, wanted: Numbers) -> Numbers | None:
    """The v with H v = wanted, None where H is not positive definite."""
    diagonal = np.diag(H)
    if not np.all(diagonal > 0):
        return None
    units = 1 / np.sqrt(diagonal)
    try:
        found = units * cho_solve(cho_factor(H * np.outer(units, units)), units * wanted)
    except (LinAlgError, ValueError):  # not positive definite, or not finite
        return None
    return found if np.all(np.isfinite(found)) else None
