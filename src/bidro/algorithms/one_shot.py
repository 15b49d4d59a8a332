"""One round for squared loss: every client sends its second moments, and the server solves everything.

    min over x in X of max over alpha in A of sum_i alpha_i (RMSE_i(x) + eps_i nu(x))^2

With v = (w, -1), RMSE_i(x)^2 = v' S_i v + (<v, m_i> + b)^2, m_i the mean and S_i the second moments around it
of client i's (theta, y): they are all there is to know of it. The server then finds the solution by Newton's
method (`moment_newton`), proves it, and runs the rounds of the exact solver by itself where that is not
enough; it compiles nothing. What is revealed is (m_i, S_i): one reply of the exact solver with curvature
determines them too, where the model has an intercept. Moments around zero would say the same, but lose what
they have in common to rounding; what rounding is left is bounded and added to the bounds.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.cone_model import Answer
from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.cuts import Cuts
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.exact_messages import INFINITE, Broadcast
from bidro.algorithms.exact_messages import Reply as Risks
from bidro.algorithms.exact_state import Best, Centre, State
from bidro.algorithms.moment_newton import SquaredRisks, minimax_from_moments
from bidro.algorithms.proof import lower_bound, require_consistent
from bidro.algorithms.second_moments import Moments, of_clients, smoothed
from bidro.client import ambiguity_kind
from bidro.errors import BidroError
from bidro.losses import Squared
from bidro.losses.base import Cone
from bidro.problem import Problem
from bidro.sets import Ball, Box
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner
from bidro.worst_case.atoms import Pass, Point
from bidro.worst_case.ball import root_form
from bidro.worst_case.risk import RiskModel

Numbers = NDArray[np.float64]

# Rounds that the server makes by itself before it gives up, and those without a gain: then rounding is what
# is left.
_MOST_STEPS, _WITHOUT_GAIN, _GAIN = 500, 15, 0.99


# Sums over up to ten million rows are off by no more than this share of the sizes of their terms: twice what
# was found for terms made to round the same way.
_ROUNDING = 320 * float(np.finfo(float).eps)
# Means are mended by a second pass, and off by a few units only.
_OF_MEANS = 16 * float(np.finfo(float).eps)
# The solution is looked for to this share of the gap, so that bounds with their rounding reach it.
_OF_THE_GAP = 0.1


class Reply(NamedTuple):
    """Of (theta, y)."""

    mean: Array | Numbers  # (m,)
    around: Array | Numbers  # (m, m) second moments around the mean


class OneShotState(NamedTuple):
    solver: State  # of the exact solver
    eps: Numbers  # (n,)
    inner: Inner
    lifted: bool

    @property
    def finished(self) -> bool:
        return self.solver.finished


@pytree
class OneShotMWDRO(Usual):
    """Squared loss on an unbounded support with p = 2, over balls or without ambiguity inside clients.

    Args:
        gap: the relative gap at which the server has done.

    Raises:
        BidroError: from `init`, for any other problem, or models that are not a box or a ball.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box, Federation, OneShotMWDRO, Problem, Squared, Transport, WassersteinBall, run
        >>> rows = np.random.default_rng(0).normal(size=(2, 40, 3))
        >>> federation = Federation.from_arrays({"north": rows[0], "south": rows[1]}, "unbounded")
        >>> cost = Transport.euclidean(3)
        >>> problem = Problem(federation, Squared(), Box.cube(2, 2), cost, WassersteinBall(0.1))
        >>> run(OneShotMWDRO(), problem, rounds=1).x.shape
        (2,)
    """

    gap: float = static(default=1e-6)

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "all rows"
    second_order: ClassVar[bool] = True

    @property
    def traceable_server(self) -> bool:
        return False

    @staticmethod
    def suits(problem: Problem) -> bool:
        """Whether the second moments tell all of this problem."""
        kind = ambiguity_kind(problem.ambiguity)
        squared = isinstance(problem.loss, Squared)
        return squared and (kind == "none" or (kind == "ball" and problem.lifted))

    def init(self, problem: Problem, seed: int = 0) -> OneShotState:
        if not self.suits(problem):
            raise BidroError(
                "One round is enough only for squared loss over Wasserstein balls with p = 2 on an unbounded "
                "support, or without ambiguity inside clients; choose another method."
            )
        solver = ExactMWDRO(Exact(), gap=self.gap).init(problem)
        eps = np.zeros(problem.n) if problem.eps is None else np.asarray(problem.eps)
        return OneShotState(solver, eps, problem.inner, problem.lifted)

    def broadcast(self, state: OneShotState) -> Broadcast:
        return Broadcast(np.asarray(state.solver.x), np.asarray(state.solver.width))

    def replies_on_host(self, broadcast: Broadcast, rows: HeldRows) -> Reply:
        return Reply(*of_clients(rows.samples, rows.sizes, rows.loss))

    def server(self, state: OneShotState, replies: Reply, replied: Array) -> OneShotState:
        """Needs all clients: until then, the round is repeated."""
        if not np.all(np.asarray(replied)):
            return state._replace(solver=state.solver._replace(t=state.solver.t + 1))
        told = Moments(np.asarray(replies.mean), np.asarray(replies.around))
        moments = smoothed(told, state.inner.loss)
        before = state.solver.t
        solver = _with_newton(state, moments)
        exact = ExactMWDRO(Exact(), gap=self.gap, saves_rounds=False)
        least, since = np.inf, 0
        while not solver.finished and solver.t - before < _MOST_STEPS and since < _WITHOUT_GAIN:
            found = _risks(state, moments, solver.x, solver.width)
            solver = exact.server(solver, found, replied)
            since = 0 if solver.gap < _GAIN * least else since + 1
            least = min(least, solver.gap)
        # Nothing new would come of asking again.
        return state._replace(solver=solver._replace(t=before + 1, stalled=True))

    def snapshot(self, state: OneShotState) -> Snapshot:
        return Snapshot(state.solver.best.x, state.solver.best.x, state.solver.alpha)


def squared_risks(moments: Moments, loss: Squared, cones: tuple[Cone, ...]) -> SquaredRisks:
    """The clients' risks as functions of the model; without cones no client has a radius."""
    d = loss.dimension(moments.mean.shape[1])
    none = Cone(np.zeros((0, d)), np.zeros(0))
    return SquaredRisks(moments, loss.intercept, cones[0] if cones else none)


def _with_newton(state: OneShotState, moments: Moments) -> State:
    """The solver at the model that Newton's method finds, with the bounds that are proven there."""
    solver, loss = state.solver, state.inner.loss
    model = solver.model
    references = model.references
    assert isinstance(loss, Squared)
    assert isinstance(model.models, Box | Ball)
    known = np.isfinite(solver.best.upper)
    if not known:
        begun = _risks(state, moments, solver.x, 0.0, curvature=False)
        first = model.worst_mixture(references.off(np.asarray(begun.upper)))
        solver = solver._replace(floor=solver.floor_from(references.risk(first)), small=None)
    found = minimax_from_moments(
        squared_risks(moments, loss, model.cones),
        state.eps,
        model.models,
        model.mixtures,
        solver.best.x if known else solver.x,
        solver.alpha,
        _OF_THE_GAP * solver.wanted,
        references,
    )
    risks = _risks(state, moments, found.x, 0.0, curvature=False)
    if not np.all(np.asarray(risks.certified) == 1):
        return state.solver  # the exact solver says what is wrong
    upper = model.worst_mixture(references.off(np.asarray(risks.upper)))
    attained = references.off(np.asarray(risks.attained))
    solver = solver._replace(x=found.x, mixture=found.alpha)
    if known and upper >= solver.best.upper:
        return solver
    everyone, z = np.arange(len(state.eps)), model.lift(found.x)
    cuts = Cuts.at_point(everyone, attained, risks.gradient, z)
    # The cone is steepest along itself: of what nu earns, all goes to the model.
    earned = float(found.alpha @ cuts.gradient[:, -1])
    pulls = tuple(earned * cone.slope(cone.at(found.x)) for cone in model.cones)
    answer = Answer(z, upper, found.alpha, found.alpha, np.zeros(0), pulls, ())
    proof = lower_bound(model, cuts, z, answer, upper, enough=-np.inf)
    size = max(abs(upper), abs(references.risk(upper)), solver.floor)
    require_consistent(proof.bound, upper, size, solver.t + 1)
    lower = min(proof.bound, upper)
    nothing = np.zeros(len(everyone))
    multipliers = np.where(risks.multiplier == INFINITE, np.inf, risks.multiplier)
    proven = solver._replace(
        cuts=cuts,
        idle=np.zeros(len(everyone), np.int64),
        centre=Centre(z, upper, 0, attained, nothing, risks.gradient, nothing[:, None][:, :0]),
        best=Best(found.x, upper, risks.upper, multipliers),
        lower=max(lower, solver.lower),
        alpha=proof.alpha if lower > solver.lower else solver.alpha,
        x_sum=found.x,
        t=solver.t + 1,
    )
    return proven if proven.finished else solver


def _risks(state: OneShotState, moments: Moments, x: Numbers, width: float, curvature: bool = True) -> Any:
    return risks_from_moments(state.lifted, moments, state.eps, state.inner, x, width, curvature)


def risks_from_moments(
    lifted: bool,
    moments: Moments,
    eps: Numbers,
    inner: Inner,
    x: Numbers,
    width: float,
    curvature: bool = True,
) -> Risks:
    """What each client would reply, from the moments of n of them."""
    loss, (mean, around) = inner.loss, moments
    assert isinstance(loss, Squared)
    features = mean.shape[1] - 1
    d, b = len(x), x[features:].sum()
    v = np.append(x[:features], -1.0)
    residual, bent = mean @ v + b, around @ v
    squares = np.maximum(bent @ v, 0.0) + residual**2
    # Rounding of the mean residual, and of the moments: RMSE^2 is this far off at the most.
    slip = _OF_MEANS * (np.abs(mean) @ np.abs(v) + abs(b))
    off = 2 * np.abs(residual) * slip + slip**2
    off += _ROUNDING * (np.abs(around) @ np.abs(v) @ np.abs(v) + squares)
    slopes = np.ones((len(mean), d))
    slopes[:, :features] = mean[:, :-1]
    gradient = residual[:, None] * slopes
    gradient[:, :features] += bent[:, :-1]
    spread = around[:, -1, -1] + (0.0 if loss.intercept else mean[:, -1] ** 2)
    scale: Any = np.asarray(inner.transport.inverse_scale)
    nu = loss.dual_norm(cast(Array, x), scale) if lifted else None
    at: Any = (x, nu, width * np.sqrt(spread))
    k = d + lifted
    hessian = None
    if curvature:
        hessian = np.zeros((len(mean), k, k))
        hessian[:, :d, :d] = slopes[:, :, None] * slopes[:, None, :]
        hessian[:, :features, :features] += around[:, :-1, :-1]
        hessian *= 2
    padded = np.zeros((len(mean), k))
    padded[:, :d] = 2 * gradient
    none = np.zeros(len(mean))
    means: Any = (squares + off, none, np.maximum(squares - off, 0.0), padded, none, hessian)
    still, radii, never = Pass(*means), cast(Array, eps), cast(Array, np.full(len(mean), np.inf))
    if lifted:
        return Risks.of(root_form(Point(*at), still, radii))
    return Risks.of(RiskModel.unsplit(still, still.value, still.minorant, still.gradient, never))
