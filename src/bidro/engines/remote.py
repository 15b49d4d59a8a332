"""Rounds answered by clients on machines of their own: an algorithm's broadcast out, its replies back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from bidro.algorithms.contract import Algorithm, part_of
from bidro.client import Penalty, WassersteinBall
from bidro.engines.asked import Asked
from bidro.engines.coordinator import Coordinator
from bidro.engines.plain import described
from bidro.engines.rounds import Ask, Deal, Who
from bidro.federation import Federation
from bidro.losses import Loss
from bidro.problem import Problem


class RoundCheck(Protocol):
    def __call__(
        self,
        name: str,
        problem: Problem,
        deal: Deal | None,
        algorithm: Algorithm,
        message: Any,
        reply: Any,
        rows: int,
    ) -> None:
        """Raise BidroError where a client's reply to a message, over so many rows, contradicts what it has
        told."""


@dataclass(frozen=True)
class Remote:
    """`settings` are what every request to a client says. Loss, transport and support are not among it:
    clients have agreed on them, but for the curves of a loss, which `about` names. With `needs_all` a round
    is over when every client has replied. `check` holds replies against what clients have told before."""

    coordinator: Coordinator
    settings: Mapping[str, Mapping[str, Any]]  # by client
    needs_all: bool = True
    check: RoundCheck | None = None
    about: Callable[[Loss], Mapping[str, Any]] = lambda _: {}  # what requests say of the loss
    question: str = "round"  # what a round is asked as

    def clients_of(self, problem: Problem, deal: Deal | None = None, seed: int = 0) -> Ask:
        names = problem.federation.names
        shared = {"folds": 0 if deal is None else deal.folds, "seed": seed, **self.about(problem.loss)}
        own = {name: described(own_ambiguity(problem, i)) for i, name in enumerate(names)}

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None) -> tuple[Any, Who]:
            how = {**shared, "algorithm": described(algorithm)}
            chosen = [i for i in range(len(names)) if who is None or bool(who[i])]
            settings = {
                names[i]: {**self.settings[names[i]], **how, "ambiguity": own[names[i]]} for i in chosen
            }
            messages = {names[i]: part_of(algorithm, broadcast, i) for i in chosen}
            like = _reply_shapes(problem, algorithm, deal, part_of(algorithm, broadcast, 0))

            def check(name: str, reply: Any, rows: int) -> None:
                if self.check is not None:
                    self.check(name, problem, deal, algorithm, messages[name], reply, rows)

            found = self.coordinator.ask(self.question, t, settings, messages, like, self.needs_all, check)
            none = jax.tree.map(lambda v: np.zeros(v.shape, v.dtype), like)
            replies = [found.get(name, none) for name in names]
            stacked = jax.tree.map(lambda *v: np.stack(v), *replies)
            return stacked, np.array([name in found for name in names])

        return ask


def _reply_shapes(problem: Problem, algorithm: Algorithm, deal: Deal | None, broadcast: Any) -> Any:
    """The shapes and types of one client's reply, found without anybody's rows."""
    labels, support = problem.loss.labels, problem.federation.support
    row = np.array(support.project(np.zeros(problem.federation.m)))
    row[-1] = row[-1] if labels is None else labels[0]
    rows = np.tile(row, (1 if deal is None else deal.folds, 1))
    one = Federation.from_arrays({problem.federation.names[0]: rows}, "unbounded")
    parts = (problem.loss, problem.transport, support, own_ambiguity(problem, 0))
    return Asked.of(algorithm, one, *parts, deal).reply_shapes(broadcast)


def own_ambiguity(problem: Problem, i: int) -> Penalty | WassersteinBall | None:
    """What client i is told of its penalty or radius: its own, and no other's."""
    if problem.rho is not None:
        return Penalty(float(problem.rho[i]))
    return None if problem.eps is None else WassersteinBall(float(problem.eps[i]))
