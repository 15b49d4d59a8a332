"""One round for squared loss: every client sends its second moments, and the server solves everything.

    min over x in X of max over alpha in A of sum_i alpha_i (RMSE_i(x) + eps_i nu(x))^2

With v = (w, -1), RMSE_i(x)^2 = v' S_i v + (<v, m_i> + b)^2, m_i the mean and S_i the second moments around it
of client i's (theta, y): they are all there is to know of it, and answer the server in place of the clients.
It finds the solution by Newton's method (`minimax_newton`), proves it as the exact solver proves what it
begins with, and makes the rounds of that solver where this is not enough; it compiles nothing. What is
revealed is (m_i, S_i): one reply of the exact solver with curvature determines them too, where the model has
an intercept. Moments around zero would say the same, but lose what they have in common to rounding; what
rounding is left is bounded and added to the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import pytree, static
from bidro.core.sets import Ball, Box
from bidro.federated.algorithm import BaseAlgorithm, HostData, RowsBehind, Snapshot
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Inner
from bidro.risk.inner.ball import root_form, steepness
from bidro.risk.moments import Moments, MomentsOracle, of_clients, smoothed
from bidro.risk.oracle import Lift
from bidro.risk.rows_jax import Pass, Point, RiskModel
from bidro.solvers.bundle.algorithm import ExactMWDRO, assessed
from bidro.solvers.bundle.state import Broadcast, State
from bidro.solvers.bundle.state import Reply as Risks
from bidro.solvers.bundle.steps import proven_as_begun
from bidro.solvers.minimax_newton import minimax_newton

if TYPE_CHECKING:
    from jax import Array

Numbers = NDArray[np.float64]

# Rounds that the server makes by itself before it gives up, and those without a gain: then rounding is what
# is left.
_MOST_STEPS, _WITHOUT_GAIN, _GAIN = 500, 15, 0.99
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
class OneShotMWDRO(BaseAlgorithm):
    """Squared loss on an unbounded support with p = 2, over balls or without ambiguity inside clients.

    Args:
        gap: the relative gap at which the server has done.

    Raises:
        BidroError: from `init`, for any other problem, or models that are not a box or a ball.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box, Federation, Problem, Squared, Transport, WassersteinBall, run
        >>> from bidro.solvers.bundle.one_shot import OneShotMWDRO
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
    rows_behind: ClassVar[RowsBehind] = "all rows"
    second_order: ClassVar[bool] = True
    traceable_server: ClassVar[bool] = False

    @staticmethod
    def suits(problem: Problem) -> bool:
        """Whether the problem depends on second moments alone."""
        return isinstance(problem.loss, Squared) and problem.ambiguity_set.closed_form(problem.inner)

    def init(self, problem: Problem, seed: int = 0) -> OneShotState:
        if not self.suits(problem):
            raise BidroError(
                "One round is enough only for squared loss over Wasserstein balls with p = 2 on an unbounded "
                "support, or without ambiguity inside clients; choose another method."
            )
        solver = ExactMWDRO(Exact(), gap=self.gap).init(problem)
        return OneShotState(solver, problem.eps, problem.inner, problem.lifted)

    def broadcast(self, state: OneShotState) -> Broadcast:
        return Broadcast(np.asarray(state.solver.x), np.asarray(state.solver.smoothing.width))

    def client_batch_numpy(self, broadcast: Broadcast, rows: HostData) -> Reply:
        return Reply(*of_clients(rows.samples, rows.sizes, rows.loss))

    def server(self, state: OneShotState, replies: Reply, replied: Array) -> OneShotState:
        """Needs all clients: until then, the round is repeated."""
        if not np.all(np.asarray(replied)):
            return state._replace(solver=state.solver._replace(t=state.solver.t + 1))
        received = Moments(np.asarray(replies.mean), np.asarray(replies.around))
        moments = smoothed(received, state.inner.loss)
        risks = partial(risks_from_moments, state.lifted, moments, state.eps, state.inner)
        before, solver = state.solver.t, state.solver
        if isinstance(solver.model.models, Box | Ball):
            solver = _by_newton(state, moments, risks)
        proven = proven_as_begun(assessed(solver, risks(solver.x, 0.0, curvature=False), replied))
        solver = proven if proven.finished and proven.best.certified else solver
        exact = ExactMWDRO(Exact(), gap=self.gap, saves_rounds=False)
        least, since = np.inf, 0
        while not solver.finished and solver.t - before < _MOST_STEPS and since < _WITHOUT_GAIN:
            solver = exact.server(solver, risks(solver.x, solver.smoothing.width), replied)
            since = 0 if solver.gap < _GAIN * least else since + 1
            least = min(least, solver.gap)
        # Another round would bring nothing new.
        return state._replace(solver=solver._replace(t=before + 1, stalled=True))

    def snapshot(self, state: OneShotState) -> Snapshot:
        return Snapshot(state.solver.best.x, state.solver.best.x, state.solver.dual.alpha)


def _by_newton(state: OneShotState, moments: Moments, risks: Callable[..., Risks]) -> State:
    """The solver at the model that Newton's method finds, with the weights of the worst mixture there."""
    solver, loss = state.solver, state.inner.loss
    model, references, x, floor = solver.model, solver.model.references, solver.best.x, None
    assert isinstance(loss, Squared)
    assert isinstance(model.models, Box | Ball)
    if not np.isfinite(solver.best.upper):
        # The first model, which Newton's method leaves, sets the floor of risks.
        x = solver.x
        first = references.off(np.asarray(risks(x, 0.0, curvature=False).upper))
        floor = solver.floor_from(references.risk(model.worst_mixture(first)))
    (found,) = minimax_newton(
        MomentsOracle.given(loss, moments, state.eps, Lift(model.cones)),
        model.models,
        [model.mixtures],
        x[None],
        solver.dual.alpha[None],
        _OF_THE_GAP * solver.target.gap,
        references,
    )
    return solver.at(found.x, found.alpha, floor)


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
    known = MomentsOracle.given(loss, moments, eps).at(x)
    features, d = mean.shape[1] - 1, len(x)
    spread = around[:, -1, -1] + (0.0 if loss.intercept else mean[:, -1] ** 2)
    nu = steepness(inner, cast("Array", x)) if lifted else None
    at: Any = (x, nu, width * np.sqrt(spread))
    k = d + lifted
    hessian = None
    if curvature:
        hessian = np.zeros((len(mean), k, k))
        hessian[:, :d, :d] = known.features[:, :, None] * known.features[:, None, :]
        hessian[:, :features, :features] += around[:, :-1, :-1]
        hessian *= 2
    padded = np.zeros((len(mean), k))
    padded[:, :d] = 2 * known.slope_of_half_squares
    none = np.zeros(len(mean))
    above, below = known.squares + known.rounding, np.maximum(known.squares - known.rounding, 0.0)
    means: Any = (above, none, below, padded, none, hessian)
    still, radii, never = Pass(*means), cast("Array", eps), cast("Array", np.full(len(mean), np.inf))
    if lifted:
        return Risks.of(root_form(Point(*at), still, radii))
    return Risks.of(RiskModel.unsplit(still, still.value, still.minorant, still.gradient, never))
