"""Who answers the rounds: all clients in this process, or sites across machines (`engines.remote`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Algorithm
from bidro.client import Client
from bidro.engines.in_process import all_replies
from bidro.problem import Problem


class Deal(NamedTuple):
    """How each client deals its rows out to folds: see `Federation.folds`."""

    folds: int
    seed: int


class Ask(Protocol):
    def __call__(
        self, algorithm: Algorithm, broadcast: Any, t: int, who: Array | None = None
    ) -> tuple[Any, Array]:
        """(replies with a leading axis of clients, who replied (n,)) in round t, from 1; `who` (n,) is asked,
        None for everyone."""


class Network(Protocol):
    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        """A way to ask the clients of `problem`, with their rows in folds if a deal is given; `seed` is that
        of all that is random in a client's round."""


@dataclass(frozen=True)
class InProcess:
    """All clients' rows are here, and all of them always reply."""

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        clients = problem.clients if deal is None else in_folds(problem, deal)
        key, everyone = jax.random.key(seed), jnp.ones(problem.n, bool)

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Array | None = None) -> tuple[Any, Array]:
            replies = all_replies(algorithm, clients, key, broadcast, jnp.asarray(t))
            return replies, everyone if who is None else who

        return ask


IN_PROCESS = InProcess()


def run_over(
    network: Network,
    algorithm: Algorithm,
    problem: Problem,
    rounds: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The state after `rounds` rounds that a network answers; `progress` is called with those done."""
    ask, state = network.clients_of(problem, seed=seed), algorithm.init(problem, seed)
    begin, end = (_begun, _ended) if algorithm.traceable_server else (_begin, _end)
    for t in range(1, rounds + 1):
        broadcast, who = begin(algorithm, state)
        state = end(algorithm, state, *ask(algorithm, broadcast, t, who))
        if progress is not None:
            progress(t)
    return state


def _begin(algorithm: Algorithm, state: Any) -> tuple[Any, Array | None]:
    return algorithm.broadcast(state), algorithm.participants(state)


def _end(algorithm: Algorithm, state: Any, replies: Any, replied: Array) -> Any:
    return algorithm.server(state, replies, replied)


_begun, _ended = jax.jit(_begin), jax.jit(_end)


def in_folds(problem: Problem, deal: Deal) -> Client:
    """The clients of the problem with their rows dealt out to folds."""
    clients = problem.clients
    marks = problem.federation.folds(deal.folds, deal.seed)
    return replace(clients, rows=clients.rows.in_folds(marks, deal.folds))
