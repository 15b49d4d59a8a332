"""The one loop over rounds that a server runs: broadcast, replies, server step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm
from bidro.errors import BidroError
from bidro.problem import Problem

# (n,) true for some of the clients.
Who = Array | NDArray[np.bool_]


class Deal(NamedTuple):
    """How each client deals its rows out to folds: see `Federation.folds`."""

    folds: int
    seed: int


class Ask(Protocol):
    def __call__(
        self, algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None
    ) -> tuple[Any, Who]:
        """(replies with a leading axis of clients, who replied (n,)) in round t, from 1; `who` (n,) is asked,
        None for everyone."""


class Rounds(Protocol):
    """Who answers the rounds of an algorithm."""

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        """A way to ask the clients of `problem`, with their rows in folds if a deal is given; `seed` is that
        of all that is random in a client's round."""


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
    begin, end = (_begun, _ended) if algorithm.traceable_server else (_begin, _end)
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


def _begin(algorithm: Algorithm, state: Any) -> tuple[Any, Array | None]:
    return algorithm.broadcast(state), algorithm.participants(state)


def _end(algorithm: Algorithm, state: Any, replies: Any, replied: Any) -> Any:
    return algorithm.server(state, replies, replied)


_begun, _ended = jax.jit(_begin), jax.jit(_end)
