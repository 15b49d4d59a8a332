"""`solve`: MW-DRO to a certified gap, with all clients in this process or across a network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm
from bidro.algorithms.exact import ExactMWDRO, State, to_gap
from bidro.algorithms.one_shot import OneShotMWDRO
from bidro.engines.network import IN_PROCESS, Network
from bidro.engines.wire import pack
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.worst_case import Oracle, default_oracle

Method = Literal["curvature", "gradients", "one-shot"]

# Up to this many parameters, clients send curvature: half its square in numbers a round.
LARGEST_CURVATURE = 300


class GapNotReachedWarning(UserWarning):
    """The solver stopped at a wider gap than was asked for."""


@dataclass(frozen=True, eq=False)
class Solution:
    """A model, and what is proven of it: the optimum of MW-DRO lies in [lower, upper], upper being the
    risk of `x` under the worst mixture."""

    x: NDArray[np.float64]  # (d,)
    alpha: NDArray[np.float64]  # (n,) worst-case weights, in the order of `names`
    risks: NDArray[np.float64]  # (n,) upper ends of R_i(x)
    multipliers: NDArray[np.float64]  # (n,) lambda_i; inf where no sample moves
    names: tuple[str, ...]
    upper: float
    lower: float
    certified: bool  # False where the inner suprema are not known: then upper is inf, and nothing is proven
    method: str
    why: str  # why this method
    rounds: int
    bytes_to_client: int  # sent to each client in all rounds
    bytes_from_client: int  # sent by each client in all rounds
    history: NDArray[np.float64]  # (rounds, 2) upper and lower bound after each round
    seconds: float
    problem: str  # the problem's fingerprint
    state: Any

    @property
    def absolute_gap(self) -> float:
        return self.upper - self.lower

    @property
    def gap(self) -> float:
        """(upper - lower) / |upper|, or over a small share of the risk at the first model (1e-6, for squared
        loss 1e-12) if that is more; inf where nothing is proven."""
        return _solver(self.state).gap if self.certified else float("inf")


def chosen_method(problem: Problem) -> tuple[Method, str]:
    """(method, why): the one rule by which `solve` chooses."""
    d = problem.dimension
    if d <= LARGEST_CURVATURE:
        return "curvature", f"the model has {d} parameters, at most {LARGEST_CURVATURE}"
    return "gradients", f"the model has {d} parameters, more than {LARGEST_CURVATURE}: curvature is too large"


def solve(
    problem: Problem,
    gap: float = 1e-6,
    method: Method | None = None,
    max_rounds: int = 500,
    oracle: Oracle | None = None,
    progress: Callable[[int, float], None] | None = None,
    resume: Solution | None = None,
    network: Network = IN_PROCESS,
) -> Solution:
    """Solve `problem` to a relative gap, over balls, with penalties, or without ambiguity inside clients.

    `method`: "curvature" (about ten rounds), "gradients" (clients reveal less; more rounds), "one-shot"
    (squared loss: second moments, once), or None for the rule of `chosen_method`. `progress` is called after
    each round with its number and the gap. `resume` goes on from a solution of the same problem by the same
    method, up to `max_rounds` in all. `network` answers the rounds. Warns (GapNotReachedWarning) where it
    stops short of the gap, and raises BidroError for a problem that it cannot treat.
    """
    if not isinstance(gap, int | float) or not 0 < gap < np.inf:
        raise BidroError(f"The gap must be a positive number such as 1e-6; got {gap!r}.")
    if not isinstance(max_rounds, int) or max_rounds < 1:
        raise BidroError(f"max_rounds must be a whole number of at least 1; got {max_rounds!r}.")
    rule, why = chosen_method(problem)
    chosen: str = method or (rule if resume is None else resume.method)
    if method is not None or resume is not None:
        why = "it was asked for"
    algorithm = _algorithm(chosen, default_oracle(problem.inner) if oracle is None else oracle, gap)
    if resume is not None and (resume.problem, resume.method) != (problem.fingerprint, chosen):
        raise BidroError("A solution resumes only with the problem and the method that it began with.")
    started = time.perf_counter()
    state = algorithm.init(problem)
    history: list[tuple[float, float]] = []
    down = up = done = 0
    if resume is not None:
        state, done = _with_gap(resume.state, gap), resume.rounds
        down, up = resume.bytes_to_client, resume.bytes_from_client
        history = [(float(u), float(v)) for u, v in resume.history]
    ask = network.clients_of(problem)
    while done < max_rounds and not _solver(state).finished:
        broadcast = algorithm.broadcast(state)
        replies, replied = ask(algorithm, broadcast, done + 1)
        state = algorithm.server(state, replies, replied)
        done += 1
        down += len(pack(broadcast))
        up += len(pack(jax.tree.map(lambda v: v[0], replies)))
        now = _solver(state)
        history.append((now.best.upper, now.lower))
        if progress is not None:
            progress(done, now.gap)
    solver = _solver(state)
    if not solver.gap <= gap:
        warnings.warn(
            f"Stopped after {done} rounds at a relative gap of {solver.gap:.1e}, short of {gap:.1e}.",
            GapNotReachedWarning,
            stacklevel=2,
        )
    # Where every client's loss can be brought to 0, all mixtures are equally bad: none is singled out.
    nothing = solver.best.upper <= gap * solver.floor
    return Solution(
        x=solver.best.x,
        alpha=np.asarray(problem.initial_weights) if nothing else solver.alpha,
        risks=solver.best.risks,
        multipliers=solver.best.multipliers,
        names=problem.federation.names,
        upper=solver.best.upper if solver.certified else float("inf"),
        lower=solver.lower,
        certified=solver.certified,
        method=chosen,
        why=why,
        rounds=done,
        bytes_to_client=down,
        bytes_from_client=up,
        history=np.array(history).reshape(-1, 2),
        seconds=time.perf_counter() - started,
        problem=problem.fingerprint,
        state=state,
    )


def _algorithm(method: str, oracle: Oracle, gap: float) -> Algorithm:
    if method == "one-shot":
        return OneShotMWDRO(gap)
    if method in ("curvature", "gradients"):
        return ExactMWDRO(oracle, method == "curvature", gap)
    raise BidroError(f"The method must be 'curvature', 'gradients' or 'one-shot'; got {method!r}.")


def _solver(state: Any) -> State:
    return state if isinstance(state, State) else state.solver


def _with_gap(state: Any, gap: float) -> Any:
    """The state of an earlier solution, with another gap to reach."""
    again = to_gap(_solver(state), gap)
    return again if isinstance(state, State) else state._replace(solver=again)
