"""The one loop over rounds that a server runs: broadcast, replies, server step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax
from bidro.federated.algorithm import Algorithm
from bidro.problem.problem import Problem

if TYPE_CHECKING:
    from jax import Array

# (n,) true for some of the clients.
Who: TypeAlias = "Array | NDArray[np.bool_]"


class FoldSpec(NamedTuple):
    """How each client deals its rows out to folds: see `Federation.folds`."""

    folds: int
    seed: int


class Ask(Protocol):
    def __call__(
        self, algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None
    ) -> tuple[Any, Who]:
        """(replies with a leading axis of clients, who replied (n,)) in round t, from 1; `who` (n,) takes
        part, None for everyone."""


class Rounds(Protocol):
    """Who answers the rounds of an algorithm."""

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> Ask:
        """A function that queries the clients of `problem`, with their rows in folds if a `fold_spec` says
        so; `seed` is that of all that is random in a client's round."""


class Round(NamedTuple):
    """What a round leaves."""

    t: int  # its number, from 1
    state: Any
    broadcast: Any
    replies: Any  # with a leading axis of clients


def rounds(
    ask: Ask, algorithm: Algorithm, state: Any, most: int | None = None, done: int = 0
) -> Iterator[Round]:
    """Rounds from number `done` + 1 to `most`, or until the state says that it is `finished`, for those that
    do."""
    begin, end = map(_compiled, (_begin, _end)) if algorithm.traceable_server else (_begin, _end)
    while (most is None or done < most) and not getattr(state, "finished", False):
        broadcast, who = begin(algorithm, state)
        replies, replied = ask(algorithm, broadcast, done + 1, who)
        state = end(algorithm, state, replies, replied)
        done += 1
        yield Round(done, state, broadcast, replies)


def first_state(algorithm: Algorithm, problem: Problem, seed: int) -> Any:
    """The state before round 1. Raises BidroError for a problem that does not suit the algorithm: one with
    references suits the exact solver and what is made of it, whose servers are not compiled."""
    taken_off = problem.references is not None and bool(np.any(np.asarray(problem.references)))
    if taken_off and algorithm.traceable_server:
        raise BidroError(
            f"{type(algorithm).__name__} trains on the risks as they are, and this problem takes references "
            "off them; use solve, or a problem without references."
        )
    return algorithm.init(problem, seed)


def last_state(went: Iterator[Round], state: Any) -> Any:
    """The state after the last of some rounds, `state` where there were none."""
    for one in went:
        state = one.state
    return state


def run_over(
    network: Rounds,
    algorithm: Algorithm,
    problem: Problem,
    most: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The state after `most` rounds that a network answers; `progress` is called with those done."""
    ask, state = network.clients_of(problem, seed=seed), first_state(algorithm, problem, seed)
    for one in rounds(ask, algorithm, state, most):
        state = one.state
        if progress is not None:
            progress(one.t)
    return state


@dataclass(frozen=True, eq=False)
class KnownReplies:
    """Clients whose replies are known: whatever the query, these are returned."""

    replies: Any  # with a leading axis of clients

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> Ask:
        everyone = np.ones(problem.n, bool)

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None) -> tuple[Any, Who]:
            return self.replies, everyone

        return ask


def _begin(algorithm: Algorithm, state: Any) -> tuple[Any, Array | None]:
    return algorithm.broadcast(state), algorithm.participants(state)


def _end(algorithm: Algorithm, state: Any, replies: Any, replied: Any) -> Any:
    return algorithm.server(state, replies, replied)


@cache
def _compiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a server that is traced, compiled once for every algorithm and shape."""
    program: Callable[..., Any] = loaded_jax().jit(step)
    return program
