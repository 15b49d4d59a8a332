"""`solve`: MW-DRO to a certified gap, with all clients in this process or across a network."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import mapped
from bidro.core.sets import Ball, Box
from bidro.federated.algorithm import Algorithm
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import KnownReplies, Rounds, rounds
from bidro.federated.engines.wire import pack
from bidro.losses import PiecewiseLinear, has_curves
from bidro.losses.fingerprints import require_known
from bidro.problem.problem import Problem
from bidro.risk.inner import Oracle, default_oracle
from bidro.risk.inner.ball import has_kinks
from bidro.risk.moments import worth_their_memory
from bidro.risk.oracle import Lift
from bidro.risk.rows_numpy import FoldedRows, RowsOracle, needs_no_search
from bidro.solvers.bundle.algorithm import ExactMWDRO, to_gap
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from bidro.solvers.bundle.state import State, kink_history
from bidro.solvers.minimax_newton import minimax_newton
from bidro.solvers.references import References

Method = Literal["curvature", "gradients", "one-shot"]

# Up to this many parameters, clients send curvature: half its square in numbers a round, and a cone program.
LARGEST_CURVATURE = 300
# Second moments are sent once, and no program is solved with them: with 300 parameters they take a hundredth
# of the time that gradients do. This many are a message of 32 MB. In one process nothing is sent, and they
# are taken as long as they are hardly larger than the table.
LARGEST_MOMENTS = 2000
# Where rows are here, the solution is looked for to this share of the gap before it is proven.
_OF_THE_GAP = 0.1

# A solve ends where so many rounds have not brought the gap below this share of the least before.
_WITHOUT_GAIN, _GAIN = 60, 0.99


class GapNotReachedWarning(UserWarning):
    """The solver stopped at a wider gap than was requested.

    Examples:
        >>> import warnings
        >>> from bidro import solve
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> with warnings.catch_warnings(record=True) as found:
        ...     warnings.simplefilter("always")
        ...     solution = solve(paper_problem(simulate(0), None), method="gradients", max_rounds=1)
        >>> found[0].category.__name__
        'GapNotReachedWarning'
    """


@dataclass(frozen=True, eq=False)
class Solution:
    """A model, and what is proven of it: the optimum of MW-DRO lies in [lower, upper], upper being the
    risk of `x` under the worst mixture.

    With curves and a radius, a smoothing of curves, or a loss with `pseudo_rows`, as classes are
    trained with, the solver minimises a surrogate that is never below MW-DRO's risks (`surrogate` says
    which). Then it is the surrogate's optimum that lies in [lower, upper]: MW-DRO's is at most `upper`, and
    may be below `lower`. `promise` says it of this solution.

    Where the problem has references, lower and upper are of the regret, sum_i alpha_i (R_i(x) - b_i).

    Examples:
        >>> from bidro import solve
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> solution = solve(paper_problem(simulate(0), None))
        >>> solution.lower <= solution.upper, solution.alpha.round(2).tolist()
        (True, [0.28, 0.72, 0.0, 0.0, 0.0])
    """

    x: NDArray[np.float64]  # (d,)
    alpha: NDArray[np.float64]  # (n,) worst-case weights, in the order of `names`
    risks: NDArray[np.float64]  # (n,) upper ends of R_i(x), references not taken off
    multipliers: NDArray[np.float64]  # (n,) lambda_i; inf where no sample moves
    names: tuple[str, ...]  # the clients'
    upper: float  # bound of the optimum: the risk of x, or what the surrogate makes of it
    lower: float  # bound of the optimum, proven; where there is a surrogate, of the surrogate's, not MW-DRO's
    certified: bool  # False where the inner suprema are not known: then upper is inf, and nothing is proven
    method: str  # that was used
    why: str  # why this method
    rounds: int  # with the clients
    bytes_to_client: int  # sent to each client in all rounds
    bytes_from_client: int  # sent by each client in all rounds
    history: NDArray[np.float64]  # (rounds, 2) upper and lower bound after each round
    seconds: float  # of this part of the solve
    problem: str  # the problem's fingerprint
    surrogate: str | None  # what is minimised in place of MW-DRO's risks, in words; None where these are
    state: Any  # to go on from; holds sums over each client's rows, and so belongs where the rows are

    @property
    def promise(self) -> str:
        """What is proven, in a sentence."""
        what = "regret" if _solver(self.state).model.references.each is not None else "risk"
        if not self.certified:
            return f"Nothing is proven: the inner suprema are not known, nor how low the worst {what} can be."
        ends = f"[{self.lower:.6g}, {self.upper:.6g}]"
        if self.surrogate is None:
            return f"The least worst {what} of any model lies in {ends}; this model attains the upper end."
        return (
            f"The least value of a surrogate of the worst {what}, in which {self.surrogate}, lies in {ends}; "
            f"the worst {what} of this model is at most {self.upper:.6g}, and that of another model may be "
            f"below {self.lower:.6g}."
        )

    def __repr__(self) -> str:
        return f"Solution({len(self.x)} parameters, {self.method}, {self.rounds} rounds. {self.promise})"

    @property
    def absolute_gap(self) -> float:
        return self.upper - self.lower

    @property
    def gap(self) -> float:
        """(upper - lower) / |upper|, or over a small share of the risk at the first model (1e-6, for squared
        loss 1e-12) if that is more; inf where nothing is proven. With references b, |upper + <p, b>| takes
        the place of |upper|, p being the clients' shares (projected on A): it is a risk, not a regret."""
        return _solver(self.state).gap if self.certified else float("inf")


def surrogate_of(problem: Problem) -> str | None:
    """What is minimised in place of MW-DRO's risks where these are not known exactly, in words: it is never
    below them, so that what bounds it from below bounds no optimum of MW-DRO. None where it is the risks."""
    parts = []
    if has_curves(problem.loss) and np.any(problem.eps):
        parts.append("every curve counts as steep everywhere as it is where it is steepest")
    if problem.loss.penalty is not None:
        parts.append("a term that smooths the curves is added")
    if problem.loss.pull(problem.dimension) is not None:
        parts.append("a term that holds slopes near 0 is added to every client's losses")
    return " and ".join(parts) or None


def chosen_method(problem: Problem, here: bool = False) -> tuple[Method, str]:
    """(method, why): the one rule by which `solve` chooses, by bytes across machines and by work where all
    rows are here."""
    d = problem.dimension
    if OneShotMWDRO.suits(problem) and (d <= LARGEST_MOMENTS or (here and _moments_fit(problem))):
        return "one-shot", "squared loss depends on second moments alone"
    if isinstance(problem.loss, PiecewiseLinear):
        return "gradients", "a loss of linear pieces has no curvature"
    if not problem.ambiguity_set.has_curvature:
        return "gradients", f"{type(problem.ambiguity_set).__name__} has no curvature"
    if d > LARGEST_CURVATURE and here and _known_here(problem):
        return "gradients", "rows are here: Newton's method finds the solution, which one round is to prove"
    if d > LARGEST_CURVATURE:
        why = f"the model has {d} parameters, more than {LARGEST_CURVATURE}: curvature is too large"
        return "gradients", why
    return "curvature", f"the model has {d} parameters, at most {LARGEST_CURVATURE}"


def _moments_fit(problem: Problem) -> bool:
    federation = problem.federation
    columns = problem.loss.columns(federation.m)
    return worth_their_memory(federation.n, columns, federation.host_rows.nbytes)


def _known_here(problem: Problem) -> bool:
    """Whether risks over balls follow from rows on the host without a search."""
    balls = problem.ambiguity_set.over_balls and isinstance(problem.domain, Box | Ball)
    return balls and needs_no_search(problem.inner, problem.eps) and not has_kinks(problem.inner)


def _found_here(problem: Problem, gap: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(model, weights) by Newton's method over the clients' rows."""
    federation, models = problem.federation, problem.domain
    rows = FoldedRows(
        federation.host_rows, np.asarray(federation.sizes), np.zeros(len(federation.host_rows), np.int64)
    )
    assert isinstance(models, Box | Ball)
    (found,) = minimax_newton(
        RowsOracle(problem.inner, rows, problem.eps, Lift(problem.cones)),
        models,
        [problem.mixture_set],
        np.asarray(problem.constant_model, float)[None],
        np.asarray(problem.initial_weights, float)[None],
        _OF_THE_GAP * gap,
        References.of(problem),
    )
    return found.x, found.alpha


def solve(
    problem: Problem,
    gap: float = 1e-6,
    method: Method | None = None,
    max_rounds: int = 500,
    oracle: Oracle | None = None,
    progress: Callable[[int, float], None] | None = None,
    resume: Solution | None = None,
    network: Rounds = IN_PROCESS,
    start: NDArray[np.float64] | None = None,
    moments: Any = None,
    mixture: NDArray[np.float64] | None = None,
) -> Solution:
    """Solve a problem to a certified relative gap: over balls, with penalties, or AFL's.

    Args:
        problem: what to solve.
        gap: the relative gap to stop at.
        method: "curvature" (about ten rounds), "gradients" (clients reveal less; more rounds), "one-shot"
            (squared loss: second moments, once), or None for the rule of `chosen_method`; where that is
            "one-shot" and the rounding of second moments leaves a wider gap, rounds with curvature follow.
        max_rounds: stop after so many in all, whatever the gap.
        oracle: solves inner problems without a closed form; exact where there is one, by default.
        progress: called after each round with its number and the gap.
        resume: a solution of the same problem by the same method to go on from; refused where it is
            unknown whether a loss of your own is still the same.
        network: answers the rounds; clients in this process by default.
        start: (d,) a model to begin with.
        moments: the replies of "one-shot", where clients have sent them before (they are taken to be of this
            problem's rows).
        mixture: (n,) the worst at `start`, if that is thought to be optimal: then one round may prove it.

    Returns:
        The model, the worst-case weights, and bounds that hold the optimum between them: that of a surrogate
        where `Solution.surrogate` says so.

    Raises:
        BidroError: for a problem that it cannot treat.

    Warns (GapNotReachedWarning) where it stops short of the gap.

    Examples:
        >>> from bidro import solve
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> solution = solve(paper_problem(simulate(0), None), gap=1e-6)
        >>> solution.x.round(2).tolist(), solution.gap <= 1e-6
        ([0.99, 0.48, -0.51], True)
    """
    if not isinstance(gap, int | float) or not 0 < gap < np.inf:
        raise BidroError(f"The gap must be a positive number such as 1e-6; got {gap!r}.")
    if not isinstance(max_rounds, int) or max_rounds < 1:
        raise BidroError(f"max_rounds must be a whole number of at least 1; got {max_rounds!r}.")
    here = network is IN_PROCESS and not problem.federation.rows_elsewhere
    rule, why = chosen_method(problem, here)
    if moments is not None and OneShotMWDRO.suits(problem):
        # Nothing more is sent, however many parameters there are.
        rule, why = "one-shot", "the second moments, which are all that it depends on, have been sent"
    elif start is not None and mixture is not None:
        rule, why = "gradients", "a solution was given, which one round is to prove"
    chosen: str = method or (rule if resume is None else resume.method)
    if method is not None or resume is not None:
        why = "it was asked for"
    oracle = default_oracle(problem.inner) if oracle is None else oracle
    if resume is not None:
        require_known(problem.fingerprint)
    if resume is not None and (resume.problem, resume.method) != (problem.fingerprint, chosen):
        raise BidroError("A solution resumes only with the problem and the method that it began with.")
    algorithm = _algorithm(problem, chosen, oracle, gap)
    state = algorithm.init(problem)
    if moments is not None:
        _check_moments(problem, moments)
    state = state if start is None else _begun_at(state, problem, start, mixture)
    began = time.perf_counter()
    begins = start is None and resume is None and method is None
    if here and begins and chosen == "gradients" and _known_here(problem):
        state = _begun_at(state, problem, *_found_here(problem, gap))
    run = _Run(chosen, why, began, state)
    if resume is not None:
        run.go_on_from(resume, gap)
    clients = network if moments is None or chosen != "one-shot" else KnownReplies(moments)
    run.rounds(clients, algorithm, problem, max_rounds, progress)
    by_rule = chosen == "one-shot" and method is None and resume is None
    if by_rule and not run.solver.gap <= gap and run.done < max_rounds:
        algorithm, one_shot = _algorithm(problem, "curvature", oracle, gap), (run.method, run.why, run.state)
        run.method, run.why = "curvature", "the rounding of second moments hides what is left"
        # The first model sets the floor of risks, not the one that this solve begins at.
        x, floor = np.asarray(problem.domain.project(run.solver.best.x)), run.solver.target.floor
        run.state = algorithm.init(problem).at(x, floor=floor)
        run.rounds(network, algorithm, problem, max_rounds, progress)
        if not run.solver.gap < _solver(one_shot[2]).gap:
            run.method, run.why, run.state = one_shot
    if not run.solver.gap <= gap:
        warnings.warn(
            f"Stopped after {run.done} rounds at a relative gap of {run.solver.gap:.1e}, short of {gap:.1e}.",
            GapNotReachedWarning,
            stacklevel=2,
        )
    return run.solution(problem, gap)


@dataclass(eq=False)
class _Run:
    """A solve under way."""

    method: str
    why: str
    began: float
    state: Any
    done: int = 0
    down: int = 0
    up: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)

    @property
    def solver(self) -> State:
        return _solver(self.state)

    def go_on_from(self, earlier: Solution, gap: float) -> None:
        self.state, self.done = (
            _with_solver(earlier.state, to_gap(_solver(earlier.state), gap)),
            earlier.rounds,
        )
        self.down, self.up = earlier.bytes_to_client, earlier.bytes_from_client
        self.history = [(float(u), float(v)) for u, v in earlier.history]

    def rounds(
        self,
        network: Rounds,
        algorithm: Algorithm,
        problem: Problem,
        most: int,
        progress: Callable[[int, float], None] | None,
    ) -> None:
        least, since = math.inf, 0
        for one in rounds(network.clients_of(problem), algorithm, self.state, most, self.done):
            self.state, self.done = one.state, one.t
            self.down += len(pack(one.broadcast))
            self.up += len(pack(mapped(lambda v: np.asarray(v)[0], one.replies)))
            self.history.append((self.solver.best.upper, self.solver.dual.bound))
            if progress is not None:
                progress(self.done, self.solver.gap)
            since = 0 if self.solver.gap < _GAIN * least or math.isinf(least) else since + 1
            least = min(least, self.solver.gap)
            if since >= _WITHOUT_GAIN:
                break  # rounding is what is left

    def solution(self, problem: Problem, gap: float) -> Solution:
        solver = self.solver
        # Where every client's loss can be brought to 0, all mixtures are equally bad: none is singled out.
        alike = solver.model.references.each is None
        nothing = alike and solver.best.upper <= gap * solver.target.floor
        return Solution(
            x=solver.best.x,
            alpha=np.asarray(problem.initial_weights) if nothing else solver.dual.alpha,
            risks=solver.best.risks,
            multipliers=solver.best.multipliers,
            names=problem.federation.names,
            upper=solver.best.upper if solver.best.certified else float("inf"),
            lower=solver.dual.bound,
            certified=solver.best.certified,
            method=self.method,
            why=self.why,
            rounds=self.done,
            bytes_to_client=self.down,
            bytes_from_client=self.up,
            history=np.array(self.history).reshape(-1, 2),
            seconds=time.perf_counter() - self.began,
            problem=problem.fingerprint,
            surrogate=surrogate_of(problem),
            state=self.state,
        )


def _check_moments(problem: Problem, moments: Any) -> None:
    """Raise BidroError for what cannot be the moments of the problem's clients."""
    mean, around = (np.asarray(part, float) for part in moments)
    n, m = problem.n, problem.loss.columns(problem.federation.m)
    if mean.shape != (n, m) or around.shape != (n, m, m):
        raise BidroError(
            f"Moments of {n} clients with {m} columns have shapes ({n}, {m}) and ({n}, {m}, {m}); got "
            f"{mean.shape} and {around.shape}."
        )
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(around))):
        raise BidroError("Moments must be finite numbers.")


def _begun_at(
    state: Any, problem: Problem, x: NDArray[np.float64], mixture: NDArray[np.float64] | None = None
) -> Any:
    """The first state of a solver, with another model, and other weights (n,), to begin with: the nearest
    that are admissible."""
    given = np.asarray(x, float)
    if given.shape != (problem.dimension,) or not np.all(np.isfinite(given)):
        raise BidroError(f"A model to start from has {problem.dimension} finite numbers; got {given}.")
    solver, weights = _solver(state), None
    if mixture is not None:
        weights = np.asarray(mixture, float)
        if weights.shape != (problem.n,) or not np.all(np.isfinite(weights)):
            raise BidroError(f"A mixture to start from has {problem.n} finite numbers; got {weights}.")
        weights = np.asarray(problem.mixture_set.project(weights))
    floor = solver.target.floor if np.isfinite(solver.target.floor) else None
    return _with_solver(state, solver.at(np.asarray(problem.domain.project(given)), weights, floor))


def _algorithm(problem: Problem, method: str, oracle: Oracle, gap: float) -> Algorithm:
    if method == "one-shot":
        return OneShotMWDRO(gap)
    if method in ("curvature", "gradients"):
        curvature = method == "curvature"
        history = kink_history(problem.inner, curvature) if problem.ambiguity_set.over_balls else 0
        return ExactMWDRO(oracle, curvature, gap, kink_history=history)
    raise BidroError(f"The method must be 'curvature', 'gradients' or 'one-shot'; got {method!r}.")


def _solver(state: Any) -> State:
    return state if isinstance(state, State) else state.solver


def _with_solver(state: Any, solver: State) -> Any:
    return solver if isinstance(state, State) else state._replace(solver=solver)
