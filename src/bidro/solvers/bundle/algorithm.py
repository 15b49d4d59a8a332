"""The exact solver: MW-DRO itself, to a certified gap, in about ten rounds.

    min over x in X of max over alpha in A of sum_i alpha_i R_i(x)

A proximal bundle method with second-order information. A client replies with bounds of its risk R_i at the
model, a cut below R_i and, where it sends curvature, a model H_i of its second derivative. The server keeps
the cuts and takes the next model from a small cone program with M = sum_i alpha_i H_i in its proximal term.
The model becomes the new centre where the worst mixture falls as predicted (a serious step); else the
proximal term is made heavier (a null step). Without curvature from the clients, M is a quasi-Newton estimate.
Of many clients a program holds few (`model`).

Kinks of the loss (hinge, absolute, pinball) are smoothed, ever less: progress is judged on the smoothed
risks, which have curvature, while cuts lie below the true ones. Upper bounds are dual values of the true
risks, and lower bounds are proven from the cuts: see `bound`. The penalised problem, and the one without
ambiguity inside the clients (AFL's), are solved in the same way. Where the problem has references, they are
taken off the risks as these arrive, and all of this is of regrets (`references`).

References: Claude Lemarechal, Arkadii Nemirovskii and Yurii Nesterov. New variants of bundle methods.
Mathematical Programming 69, 1995. Krzysztof C. Kiwiel. Proximity control in bundle methods for convex
nondifferentiable minimization. Mathematical Programming 46, 1990.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import mapped, pytree, static
from bidro.core.sets import Ball, Box, ConstrainedBox
from bidro.federated.algorithm import BaseAlgorithm, HostData, RowsBehind, Snapshot
from bidro.losses import Squared
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Oracle
from bidro.solvers.bundle import steps
from bidro.solvers.bundle.bound import DualBound
from bidro.solvers.bundle.model import ConeModel, Cuts
from bidro.solvers.bundle.state import INFINITE, Best, Broadcast, Centre, Following, Reply, State, Target
from bidro.solvers.references import References

if TYPE_CHECKING:
    from jax import Array

Numbers = NDArray[np.float64]

# A trial becomes the centre (a serious step) if the worst mixture falls by this share of the prediction;
# above the second share, the proximal term is made lighter again.
_ENOUGH, _GOOD = 0.1, 0.5
_ROUNDING = 1e-11
# A loss that can be brought to 0 has no relative gap: risks below this share of the first model's, or of a
# constant prediction's, count as that share. For squared loss it is a share of the residuals.
_SMALL = 1e-6
# Kinks are first smoothed over this multiple of the residuals.
_FIRST_WIDTH = 2.0


@pytree
class ExactMWDRO(BaseAlgorithm):
    """The exact solver as an algorithm of the contract; `solve` runs it until the gap is reached.

    Args:
        oracle: solves the inner problems that have no closed form.
        sends_curvature: whether clients send it; else more rounds.
        gap: the relative gap at which it stops.
        saves_rounds: solve the lower-bound subproblem every round, not only after null steps and where kinks
            are smoothed less than at first. It takes as long as a step and usually saves a few of them.
        kink_history: through how many earlier models the clients' curvature follows kinks of the loss.

    Raises:
        BidroError: from `init`, for a loss that is not convex in the model, and for an unbounded model set,
            over which cuts prove nothing.

    Examples:
        >>> from bidro import Exact, run
        >>> from bidro.solvers.bundle.algorithm import ExactMWDRO
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> run(ExactMWDRO(Exact()), paper_problem(simulate(0), None), rounds=10).x.round(2).tolist()
        [0.99, 0.48, -0.51]
    """

    oracle: Oracle = static()
    sends_curvature: bool = static(default=True)
    gap: float = static(default=1e-6)
    saves_rounds: bool = static(default=True)
    kink_history: int = static(default=0)

    reply_type: ClassVar[type] = Reply
    rows_behind: ClassVar[RowsBehind] = "all rows"
    traceable_server: ClassVar[bool] = False

    @property
    def second_order(self) -> bool:
        return self.sends_curvature

    @property
    def broadcast_type(self) -> type:
        return Following if self.kink_history else Broadcast

    def init(self, problem: Problem, seed: int = 0) -> State:
        if not problem.loss.convex_in_x:
            raise BidroError(
                "The exact solver needs a loss that is convex in the model; "
                f"{type(problem.loss).__name__} is not known to be."
            )
        if not isinstance(problem.models, Box | Ball | ConstrainedBox):
            raise BidroError(
                "The exact solver proves its lower bound over a bounded model set; give the problem "
                "models=Box.cube(half_width, d) with a half-width beyond any model you expect."
            )
        self.oracle.check(problem.inner)
        x, weights = np.asarray(problem.constant_model), np.asarray(problem.initial_weights)
        references = References.of(problem)
        model = ConeModel(
            models=problem.domain,
            finite=problem.finite,
            mixtures=problem.mixture_set,
            cones=problem.cones,
            nonnegative=problem.loss.nonnegative,
            references=references,
            shift_invariance=problem.loss.shift_invariance(problem.federation.m),
            norm_bounds=problem.norm_bounds,
            infimum_at_infinity=problem.loss.infimum_at_infinity,
        )
        # Where no risk is below 0, this much is proven before anything is known, and with which weights.
        lower, alpha = 0.0 if model.nonnegative else -np.inf, weights
        if model.nonnegative and references.each is not None:
            least, corner = problem.mixture_set.linear_maximum(-references.each)
            lower, alpha = float(least), np.asarray(corner)
        share = _SMALL**2 if isinstance(problem.loss, Squared) else _SMALL
        target = Target(self.gap, share * problem.constant_risk, share)
        dual = DualBound(lower, alpha, 0.0, np.zeros_like(x))
        return State.begun(x, model, target, weights, dual, _FIRST_WIDTH)

    def broadcast(self, state: State) -> Broadcast | Following:
        x, width = np.asarray(state.x), np.asarray(0.0 if state.step.sharp else state.smoothing.width)
        if not self.kink_history:
            return Broadcast(x, width)
        return Following.of(x, width, state.smoothing.history, self.kink_history)

    def client(self, broadcast: Broadcast | Following, client: Client, draw: object) -> Reply:
        before = broadcast.before if isinstance(broadcast, Following) else None
        return Reply.of(client.risk(self.oracle, broadcast.x, broadcast.width, self.sends_curvature, before))

    def client_batch_numpy(self, broadcast: Broadcast | Following, rows: HostData) -> Reply | None:
        if rows.ambiguity is None or rows.inner is None:
            return None
        x, width = np.asarray(broadcast.x), float(broadcast.width)
        before = np.asarray(broadcast.before) if isinstance(broadcast, Following) else None
        about = (rows.inner, rows.samples, rows.sizes, x, width, self.sends_curvature, before)
        found = rows.ambiguity.on_host(*about)
        return None if found is None else Reply.of(found)

    def server(self, state: State, replies: Reply, replied: Array) -> State:
        """A round that not all clients answer is repeated, with the cuts of those who did.

        Once finished, nothing changes any more.
        """
        if state.finished:
            return state
        state = assessed(state, replies, replied, self.kink_history)
        if not np.all(np.asarray(replied)):
            return state
        if state.step.sharp:
            # Then the model is assessed with its kinks smoothed.
            state = steps.with_lower_bound(state)
            return state._replace(step=state.step._replace(extra_cut=False, sharp=False))
        if state.t == 1:
            state = steps.proven_as_begun(state)
            if state.finished:
                return state
        far = steps.by_newton(state)
        if far is not None:
            return far
        if self.saves_rounds or state.prox.weight > 1 or state.smoothing.width < _FIRST_WIDTH:
            state = steps.with_lower_bound(state)
        return state if state.finished else steps.next_model(state)

    def snapshot(self, state: State) -> Snapshot:
        return Snapshot(state.best.x, state.x_sum / max(state.t, 1), state.dual.alpha)


def to_gap(state: State, gap: float) -> State:
    """A state from which to go on to another gap."""
    stopped = state.finished
    state = state._replace(target=state.target._replace(gap=gap), stalled=False)
    return steps.next_model(state) if stopped and not state.finished else state


def assessed(state: State, replies: Reply, replied: Array, kink_history: int = 0) -> State:
    """With the cuts of the clients that replied (n,) and, where all did, with the upper bound at the model,
    and the model as the centre if it is good enough."""
    who, replies = np.flatnonzero(np.asarray(replied)), mapped(np.asarray, replies)
    attained, z = state.model.references.off(replies.attained), state.model.lift(state.x)
    cuts = Cuts.at_point(who, attained[who], replies.gradient[who], z)
    state = state._replace(
        cuts=state.cuts.with_more(cuts), x_sum=state.x_sum + state.x, t=state.t + 1, uncancelled=()
    )
    if len(who) < len(state.dual.alpha):
        return state
    if state.step.sharp:
        return _with_best(state, replies)
    state = state._replace(smoothing=state.smoothing.after(state.x, kink_history))
    return _with_centre(_with_best(state, replies), replies, attained, z)


def _with_best(state: State, replies: Reply) -> State:
    proven, references = replies.certified == 1, state.model.references
    certified, risks = bool(np.all(proven)), np.where(proven, replies.upper, replies.attained)
    if not np.all(np.isfinite(risks)):
        raise BidroError(f"In round {state.t} a client's risk is not finite; declare a bounded support.")
    upper, best = state.model.worst_mixture(references.off(risks)), state.best
    # A proven bound is never given up for a better one that is not.
    if (certified, -upper) <= (best.certified and np.isfinite(best.upper), -best.upper):
        return state
    if not np.isfinite(best.upper):
        floor = state.floor_from(references.risk(upper))
        state = state._replace(target=state.target._replace(floor=floor))
    multipliers = np.where(replies.multiplier == INFINITE, np.inf, replies.multiplier)
    return steps.consistent(state._replace(best=Best(state.x, upper, risks, multipliers, certified)))


def _with_centre(state: State, replies: Reply, attained: Numbers, z: Numbers) -> State:
    """Make the point just assessed the centre, if it is good enough, and learn from it if it is not."""
    gradient, smoothing, packed = replies.gradient, replies.smoothing, replies.curvature
    centre, step, merit = state.centre, state.step, state.model.worst_mixture(attained + smoothing)
    weight, estimate = state.prox
    if packed.shape[1] == 0 and np.isfinite(centre.merit):
        estimate = steps.quasi_newton(estimate, z - centre.z, step.mixture @ (gradient - centre.gradient))
    fall = centre.merit - merit
    if step.extra_cut and fall <= 0:
        return state
    rounding = _ROUNDING * abs(state.model.references.risk(centre.merit))
    if fall < _ENOUGH * step.predicted - rounding:
        return state._replace(prox=state.prox._replace(weight=steps.HEAVIER * weight, estimate=estimate))
    if fall > _GOOD * step.predicted:
        weight = max(1.0, weight / steps.HEAVIER)
    centre = Centre(z, merit, len(state.cuts.points) - 1, attained, smoothing, gradient, packed)
    return state._replace(centre=centre, prox=state.prox._replace(weight=weight, estimate=estimate))
