"""Rounds answered by clients whose rows are all in this process, or that have answered before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Algorithm
from bidro.client import Client
from bidro.engines.in_process import all_replies
from bidro.engines.rounds import Ask, Deal, Rounds, rounds
from bidro.problem import Problem


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


@dataclass(frozen=True, eq=False)
class Answered:
    """Clients that have told all that an algorithm will ask."""

    replies: Any  # with a leading axis of clients

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        everyone = jnp.ones(problem.n, bool)

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Array | None = None) -> tuple[Any, Array]:
            return self.replies, everyone

        return ask


def run_over(
    network: Rounds,
    algorithm: Algorithm,
    problem: Problem,
    most: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """The state after `most` rounds that a network answers; `progress` is called with those done."""
    ask, state = network.clients_of(problem, seed=seed), algorithm.init(problem, seed)
    for one in rounds(ask, algorithm, state, most):
        state = one.state
        if progress is not None:
            progress(one.t)
    return state


def in_folds(problem: Problem, deal: Deal) -> Client:
    """The clients of the problem with their rows dealt out to folds."""
    clients = problem.clients
    marks = problem.federation.folds(deal.folds, deal.seed)
    return replace(clients, rows=clients.rows.in_folds(marks, deal.folds))
