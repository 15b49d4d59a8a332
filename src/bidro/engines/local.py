"""Rounds answered by clients whose rows are all in this process, or that have answered before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.algorithms.contract import Algorithm, HeldRows
from bidro.client import Client
from bidro.engines.in_process import all_replies
from bidro.engines.rounds import Ask, Deal, Rounds, Who, first_state, rounds
from bidro.problem import Problem


@dataclass(frozen=True)
class InProcess:
    """All clients' rows are here, and all of them always reply."""

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        federation = problem.federation
        held = HeldRows(problem.loss, federation.host_rows, np.asarray(federation.sizes))
        if problem.eps is not None:
            held = held._replace(inner=problem.inner, eps=np.asarray(problem.eps))
        if deal is not None:
            held = held._replace(marks=federation.folds(*deal), folds=deal.folds)
        everyone = np.ones(problem.n, bool)

        @cache
        def compiled() -> tuple[Client, Array]:
            clients = problem.clients
            if held.marks is not None:
                clients = replace(clients, rows=clients.rows.in_folds(held.marks, held.folds))
            return clients, jax.random.key(seed)

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None) -> tuple[Any, Who]:
            replies = algorithm.replies_on_host(broadcast, held)
            if replies is None:
                replies = all_replies(algorithm, *compiled(), broadcast, jnp.asarray(t))
            return replies, everyone if who is None else who

        return ask


IN_PROCESS = InProcess()


@dataclass(frozen=True, eq=False)
class Answered:
    """Clients that have told all that an algorithm will ask."""

    replies: Any  # with a leading axis of clients

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        everyone = np.ones(problem.n, bool)

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None) -> tuple[Any, Who]:
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
    ask, state = network.clients_of(problem, seed=seed), first_state(algorithm, problem, seed)
    for one in rounds(ask, algorithm, state, most):
        state = one.state
        if progress is not None:
            progress(one.t)
    return state
