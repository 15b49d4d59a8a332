"""The exact solver: MW-DRO itself, to a certified gap, in about ten rounds.

    min over x in X of max over alpha in A of sum_i alpha_i R_i(x)

A proximal bundle method with second-order information. A client replies with bounds of its risk R_i at the
model, a cut below R_i and, where it sends curvature, a model H_i of its second derivative. The server keeps
the cuts and takes the next model from a small cone program with M = sum_i alpha_i H_i in its proximal term.
The model becomes the new centre where the worst mixture falls as predicted; else M is stiffened. Without
curvature from the clients, M is a quasi-Newton estimate. Of many clients a program holds few (`working_set`).

Kinks of the loss (hinge, absolute, pinball) are smoothed, ever less: progress is judged on the smoothed
risks, which have curvature, while cuts lie below the true ones. Upper bounds are dual values of the true
risks, and lower bounds are proven from the cuts: see `cone_model`. The penalised problem, and the one without
ambiguity inside the clients (AFL's), are solved in the same way. Where the problem has references, they are
taken off the risks as these arrive, and all of this is of regrets (`references`).

References: Claude Lemarechal, Arkadii Nemirovskii and Yurii Nesterov. New variants of bundle methods.
Mathematical Programming 69, 1995. Krzysztof C. Kiwiel. Proximity control in bundle methods for convex
nondifferentiable minimization. Mathematical Programming 46, 1990.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.cone_model import ConeModel
from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.cuts import Cuts
from bidro.algorithms.exact_messages import INFINITE, Broadcast, Reply
from bidro.algorithms.exact_state import Best, Centre, State
from bidro.algorithms.kinks import Following, with_asked
from bidro.algorithms.mixed_curvature import held_curvature, mixed, stiffened
from bidro.algorithms.newton_step import newton_step, one_mixture, proven_at
from bidro.algorithms.probe import probe
from bidro.algorithms.proof import lower_bound, require_consistent
from bidro.algorithms.quasi_newton import quasi_newton
from bidro.algorithms.ray import outward
from bidro.algorithms.references import References
from bidro.algorithms.together import centred
from bidro.algorithms.working_set import Solved, solved
from bidro.client import Client
from bidro.errors import BidroError
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.sets import Ball, Box
from bidro.trees import pytree, static
from bidro.worst_case import Oracle
from bidro.worst_case.on_host import needs_no_search, proven_risks

Numbers = NDArray[np.float64]

# A trial becomes the centre if the worst mixture falls by this share of the prediction; above the second
# share, stiffening is taken back.
_ENOUGH, _GOOD = 0.1, 0.5
_STIFFEN = 4.0
_ROUNDING = 1e-11
# A loss that can be brought to 0 has no relative gap: risks below this share of the first model's, or of a
# constant prediction's, count as that share. For squared loss it is a share of the residuals.
_SMALL = 1e-6
# The program for the lower bound has no steps whose size would go down with the gap; its unit stays above
# this share of the risks.
_COARSEST = 1e-5
# Kinks are smoothed over this multiple of the residuals, then a share of that, the second where followed.
_FIRST_WIDTH = 2.0
_NARROW, _NARROW_FOLLOWED = 0.35, 0.1
# What that costs shows if it is more than this share of the gap; nothing helps where the gap stays above the
# second share of what it was a round ago.
_SHOWS, _HARDLY = 0.1, 0.9999
# Cuts that neither program has used for this many rounds are dropped.
_IDLE_ROUNDS = 25
# Newton's method has done its part where it promises less than this share of the risk.
_FOUND = 1e-14
# Curvatures are mixed anew where the weights of the step differ by more than this in all.
_SAME_MIXTURE = 1e-3
# Where a step promises less than this share of the gap that is wanted, only the proof is short of it, and
# what is asked for is cuts for it: at models that are worse by these multiples of the gap.
_SETTLED = 1e-4
_LENGTHS = (1.0, 100.0, 0.01)


@pytree
class ExactMWDRO(Usual):
    """The exact solver as an algorithm of the contract; `solve` runs it until the gap is reached.

    Args:
        oracle: solves the inner problems that have no closed form.
        sends_curvature: whether clients send it; else more rounds.
        gap: the relative gap at which it stops.
        saves_rounds: solve a program for the lower bound in every round, not only where steps fail or
            kinks are smoothed. It takes as long as a step and usually saves a few of them.
        follows: through how many earlier models the clients' curvature follows kinks; see `kinks`.

    Raises:
        BidroError: from `init`, for a loss that is not convex in the model, and for an unbounded model set,
            over which cuts prove nothing.

    Examples:
        >>> from bidro import Exact, ExactMWDRO, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(ExactMWDRO(Exact()), paper_problem(simulate(0), None), rounds=10).x.round(2).tolist()
        [0.99, 0.48, -0.51]
    """

    oracle: Oracle = static()
    sends_curvature: bool = static(default=True)
    gap: float = static(default=1e-6)
    saves_rounds: bool = static(default=True)
    follows: int = static(default=0)

    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "all rows"
    traceable_server: ClassVar[bool] = False

    @property
    def second_order(self) -> bool:
        return self.sends_curvature

    @property
    def broadcast_type(self) -> type:
        return Following if self.follows else Broadcast

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.loss.convex_in_x:
            raise BidroError(
                "The exact solver needs a loss that is convex in the model; "
                f"{type(problem.loss).__name__} is not known to be."
            )
        if not isinstance(problem.models, Box | Ball):
            raise BidroError(
                "The exact solver proves its lower bound over a bounded model set; give the problem "
                "models=Box.cube(half_width, d) with a half-width beyond any model you expect."
            )
        self.oracle.check(problem.inner)
        n, x = problem.n, np.asarray(problem.constant_model)
        cones = problem.loss.steepness_cones(problem.transport.inverse_scale) if problem.lifted else []
        nonnegative, references = problem.loss.nonnegative, References.of(problem)
        together = problem.loss.together(problem.federation.m)
        sets = problem.domain, problem.finite, problem.mixture_set
        model = ConeModel(*sets, tuple(cones), nonnegative, references, together, problem.steepest)
        unknown = np.full(n, np.nan)
        weights = np.asarray(problem.initial_weights)
        # Where no risk is below 0, this much is proven before anything is known, and with which weights.
        lower, alpha = 0.0 if nonnegative else -np.inf, weights
        if nonnegative and references.each is not None:
            least, corner = problem.mixture_set.linear_maximum(-references.each)
            lower, alpha = float(least), np.asarray(corner)
        small = _SMALL**2 if isinstance(problem.loss, Squared) else _SMALL
        return State(
            x,
            np.zeros_like(x),
            _FIRST_WIDTH,
            model,
            Cuts.none(len(model.lift(x))),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            None,
            Best(x, np.inf, unknown, unknown),
            True,
            self.gap,
            small,
            small * problem.constant_risk,
            problem.loss.endless,
            lower,
            alpha,
            weights,
            None,
            1.0,
            np.inf,
            0.0,
            0,
            (),
            False,
            False,
        )

    def broadcast(self, state: State) -> Broadcast | Following:
        x, width = np.asarray(state.x), np.asarray(state.width)
        return Following.of(x, width, state.before, self.follows) if self.follows else Broadcast(x, width)

    def client(self, broadcast: Broadcast | Following, client: Client, draw: object) -> Reply:
        before = broadcast.before if isinstance(broadcast, Following) else None
        return Reply.of(client.risk(self.oracle, broadcast.x, broadcast.width, self.sends_curvature, before))

    def replies_on_host(self, broadcast: Broadcast | Following, rows: HeldRows) -> Reply | None:
        if rows.inner is None or rows.eps is None or not needs_no_search(rows.inner, rows.eps):
            return None
        x = np.asarray(broadcast.x)
        return Reply.of(proven_risks(rows.inner, rows.dealt, x, rows.eps, self.sends_curvature))

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        """A round that not all clients answer is repeated, with the cuts of those who did.

        Once finished, nothing changes any more.
        """
        if state.finished:
            return state
        state = state._replace(x_sum=state.x_sum + state.x)
        who = np.flatnonzero(np.asarray(replied))
        arrived: Reply = jax.tree.map(np.asarray, replies)
        z = state.model.lift(state.x)
        attained = state.model.references.off(np.asarray(arrived.attained))
        cuts = Cuts.at_point(who, attained[who], np.asarray(arrived.gradient)[who], z)
        idle = np.append(state.idle, np.zeros(len(who), np.int64))
        state = state._replace(cuts=state.cuts.with_more(cuts), idle=idle, t=state.t + 1, missing=())
        if len(who) < len(state.alpha):
            return state
        state = state._replace(before=with_asked(state.before, state.x, state.width, self.follows))
        state = _with_best(state, arrived)
        state = _with_centre(state, arrived, attained, z)
        if state.t == 1:
            state = _proven_as_begun(state)
            if state.finished:
                return state
        far = _by_newton(state)
        if far is not None:
            return far
        if self.saves_rounds or state.stiffness > 1 or state.width < _FIRST_WIDTH:
            state = _with_lower_bound(state)
        return state if state.finished else _with_next(state)

    def snapshot(self, state: State) -> Snapshot:
        return Snapshot(state.best.x, state.x_sum / max(state.t, 1), state.alpha)


def to_gap(state: State, gap: float) -> State:
    """A state from which to go on to another gap."""
    stopped = state.finished
    state = state._replace(wanted=gap, stalled=False)
    return _with_next(state) if stopped and not state.finished else state


def _with_best(state: State, replies: Reply) -> State:
    certified = bool(np.all(np.asarray(replies.certified) == 1))
    risks = np.where(np.asarray(replies.certified) == 1, replies.upper, replies.attained)
    if not np.all(np.isfinite(risks)):
        raise BidroError(f"In round {state.t} a client's risk is not finite; declare a bounded support.")
    references = state.model.references
    upper = state.model.worst_mixture(references.off(risks))
    # A proven bound is never given up for a better one that is not.
    if (certified, -upper) <= (state.certified and np.isfinite(state.best.upper), -state.best.upper):
        return state
    if not np.isfinite(state.best.upper):
        state = state._replace(floor=state.floor_from(references.risk(upper)))
    multipliers = np.where(np.asarray(replies.multiplier) == INFINITE, np.inf, replies.multiplier)
    return _consistent(state._replace(best=Best(state.x, upper, risks, multipliers), certified=certified))


def _with_centre(state: State, replies: Reply, attained: Numbers, z: Numbers) -> State:
    """Make the point just assessed the centre, if it is good enough, and learn from it if it is not."""
    gradient, smoothing = np.asarray(replies.gradient), np.asarray(replies.smoothing)
    merit = state.model.worst_mixture(attained + smoothing)
    estimate, centre = state.estimate, state.centre
    packed = np.asarray(replies.curvature)
    if packed.shape[1] == 0 and centre is not None and np.isfinite(centre.merit):
        change = state.mixture @ (gradient - centre.gradient)
        estimate = quasi_newton(estimate, z - centre.z, change)
    stiffness = state.stiffness
    if centre is not None:
        fall = centre.merit - merit
        if state.probing and fall <= 0:
            return state
        rounding = _ROUNDING * abs(state.model.references.risk(centre.merit))
        if fall < _ENOUGH * state.predicted - rounding:
            return state._replace(stiffness=_STIFFEN * stiffness, estimate=estimate)
        if fall > _GOOD * state.predicted:
            stiffness = max(1.0, stiffness / _STIFFEN)
    new = Centre(z, merit, len(state.cuts.points) - 1, attained, smoothing, gradient, packed)
    return state._replace(centre=new, stiffness=stiffness, estimate=estimate)


def _proven_as_begun(state: State) -> State:
    """With what the first cuts prove with the weights that were begun with: all, where these and the model
    are optimal already."""
    assert state.centre is not None
    proof = proven_at(state.model, state.cuts, state.centre.z, state.centre.origin, state.mixture)
    return _with_bound(state, proof.bound, state.mixture) if proof.bound > state.lower else state


def _by_newton(state: State) -> State | None:
    """The state with the next model by Newton's method, or with the proof that none is needed; None where
    Newton's method does not serve, or has nothing more to gain."""
    centre, model, size = state.centre, state.model, state.size
    assert centre is not None
    if state.stiffness > 1 or not centre.curvature.shape[1] or centre.smoothing.any():
        return None
    if not one_mixture(model.mixtures):
        return None
    step = newton_step(model, centre.z, state.mixture @ centre.gradient, held_curvature(state, state.mixture))
    if step is None:
        return None
    if step.fall <= state.wanted * size:
        proof = proven_at(model, state.cuts, centre.z, centre.origin, state.mixture)
        state = _with_bound(state, proof.bound, state.mixture)
        # In wide sets a slope costs so much that only multipliers that are mended prove anything.
        if not state.finished and (proof.lost > size or step.fall <= _FOUND * size):
            return None
    return state._replace(x=step.x, predicted=step.fall)


def _with_lower_bound(state: State) -> State:
    assert state.centre is not None
    scale = max(state.scale, _COARSEST * abs(state.model.references.risk(state.best.upper)))
    bound = solved(state.model, state.cuts, state.centre.z, None, scale, state.singly)
    if bound is None:
        return state
    return _with_proof(state._replace(idle=np.where(bound.used, 0, state.idle)), bound)


def _with_proof(state: State, found: Solved) -> State:
    """The better of the lower bound known and the one that the multipliers found prove."""
    assert state.centre is not None
    enough = (upper := state.best.upper) - state.wanted * state.size
    proof = lower_bound(found.model, found.cuts, state.centre.z, found.answer, upper, enough)
    state = state._replace(missing=(*state.missing, proof.slope))
    return _with_bound(state, proof.bound, found.clients(proof.alpha))


def _with_bound(state: State, bound: float, alpha: Numbers) -> State:
    """The better of the lower bound known and one that is proven with these weights (n,)."""
    known = state.t > 1 or state.model.references.each is not None
    if bound <= state.lower and known:
        return state
    return _consistent(state._replace(lower=max(bound, state.lower), alpha=alpha))


def _consistent(state: State) -> State:
    """The state with a lower bound that rounding has not put above the upper one, where that is proven."""
    if not state.certified:
        return state
    upper = state.best.upper
    require_consistent(state.lower, upper, max(abs(upper), state.size), state.t)
    return state._replace(lower=min(state.lower, upper))


def _with_next(state: State) -> State:
    """The next model: from the program with curvature around the centre."""
    centre, model = state.centre, state.model
    assert centre is not None
    far = outward(state)
    if far is not None:
        return far
    # Cuts at the centre count as tangents of the smoothed risks, which lie above them.
    program = partial(solved, model, state.cuts, centre.z, scale=state.scale, also=state.singly)
    program = partial(program, origin=centre.origin, raised=centre.smoothing)
    M = stiffened(state, state.mixture)
    step = program(M)
    turned = 0.0 if step is None else float(np.abs(step.alpha - state.mixture).sum())
    if step is not None and centre.curvature.shape[1] and turned > _SAME_MIXTURE:
        # The weights that mix the curvatures come from the program itself: once more with what it gave.
        M = stiffened(state, step.alpha)
        step = program(M, before=step) or step
    if step is None:
        return state._replace(stiffness=_STIFFEN * state.stiffness)
    # Near the solution these multipliers prove more than those of the bound's own program.
    state = _with_proof(state, step)
    move, probed = step.answer.z - centre.z, state.probing
    predicted = centre.merit - step.value - M.of_step(move)
    idle = np.where(step.used | (state.cuts.origin == centre.origin), 0, state.idle + 1)
    kept = idle < _IDLE_ROUNDS
    state = state._replace(
        x=centred(model.models, step.answer.z[: model.models.dimension], model.together),
        cuts=state.cuts.only(kept),
        idle=idle[kept],
        singly=step.singly,
        mixture=step.alpha,
        predicted=max(predicted, 0.0),
        probing=False,
    )
    # Smoothing costs this much; when steps promise less, and it shows in the gap or nothing else helps, kinks
    # are smoothed less.
    cost = centre.merit - model.worst_mixture(centre.attained)
    left, before = state.best.upper - state.lower, state.left
    state = state._replace(left=left)
    still = float(np.linalg.norm(move)) <= 1e-15 * float(np.linalg.norm(centre.z))
    if state.predicted < cost and (still or cost > _SHOWS * left or left > _HARDLY * before):
        # The centre was judged by other smoothing: it gives way to the next point whatever that is like.
        width = state.width * (_NARROW_FOLLOWED if len(state.before) else _NARROW)
        return state._replace(width=width, centre=centre._replace(merit=float("inf")))
    size = state.wanted * state.size
    if state.predicted <= _SETTLED * size and not state.finished and not probed:
        # By turns what either program's proof lacked, and steps of other lengths: one that did not help once
        # does not help again.
        turn = state.t // 2
        missing, length = state.missing[turn % len(state.missing)], _LENGTHS[turn // 2 % len(_LENGTHS)]
        slope = float(step.alpha @ centre.gradient[:, -1])
        x = probe(model, centre.z, mixed(state, step.alpha), slope, missing, length * size)
        if x is not None:
            x = model.reached(centre.z[: model.models.dimension], x)
            return state._replace(x=x, probing=True)
    return state._replace(stalled=still)
