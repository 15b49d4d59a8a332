"""Rounds with clients on machines of their own: the server's side (`Remote`) sends an algorithm's broadcast
and stacks the replies, and the client's side (`Participant`) computes a reply from its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bidro.ambiguity import Ambiguity, NoAmbiguity
from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jit, jnp
from bidro.core.splits import Key
from bidro.data.federation import Federation, Support
from bidro.federated.algorithm import Algorithm, HostData, client_key, part_of
from bidro.federated.engines.coordinator import Coordinator
from bidro.federated.engines.rounds import Ask, FoldSpec, Who
from bidro.federated.engines.wire import described
from bidro.losses import Loss
from bidro.problem.client import Client, check_samples
from bidro.problem.problem import Problem
from bidro.risk.inner import Inner
from bidro.risk.transport import Transport


@dataclass(frozen=True, eq=False)
class Participant:
    """An algorithm and its problem on one client's rows."""

    algorithm: Algorithm
    loss: Loss
    rows: HostData
    parts: tuple[Any, ...]  # what a `Client` is made of besides

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        here: Federation,
        loss: Loss,
        transport: Transport,
        support: Support,
        ambiguity: Ambiguity | None,
        fold_spec: tuple[int, Key] | None = None,
    ) -> Participant:
        """`here` is of one client, its rows in folds where `fold_spec` says how many and by which key. Raises
        BidroError where rows do not fit the problem."""
        check_samples(here, loss, transport)
        around = NoAmbiguity() if ambiguity is None else ambiguity.per_client(1)
        rows = HostData.of(here, Inner(transport, support, loss), around, fold_spec)
        return cls(algorithm, loss, rows, (here.names[0], rows.samples, loss, transport, support, ambiguity))

    @cached_property
    def client(self) -> Client:
        """For compiled programs."""
        client = Client.single(*self.parts)
        if self.rows.fold_ids is None:
            return client
        return replace(client, rows=client.rows.in_folds(self.rows.fold_ids, self.rows.folds))

    def reply(self, message: Any, seed: int, round_number: int) -> Any:
        """The client's reply to a broadcast in round `round_number` (from 1)."""
        if not 0 <= seed < 2**63:
            raise BidroError(f"A seed must be a whole number from 0 to 2^63 - 1; got {seed!r}.")
        here = self.algorithm.client_batch_numpy(message, self.rows)
        if here is not None:
            return jax.tree.map(lambda part: part[0], here)
        return _reply(self.algorithm, self.client, jax.random.key(seed), jnp.asarray(round_number), message)

    def reply_shapes(self, message: Any) -> Any:
        """The shapes and types of the reply, without computing it where that is costly."""
        here = self.algorithm.client_batch_numpy(message, self.rows)
        if here is not None:
            return jax.tree.map(lambda part: part[0], here)

        def one(message: Any, own: Client) -> Any:
            return self.algorithm.client(message, own, self.algorithm.draw(own, jax.random.key(0)))

        return jax.eval_shape(one, message, self.client)


@jit
def _reply(algorithm: Algorithm, client: Client, key: Array, t: Array, broadcast: Any) -> Any:
    draw = algorithm.draw(client, client_key(key, t, client.id))
    return algorithm.client(broadcast, client, draw)


class RoundReply(NamedTuple):
    """What a client says to a message of a round."""

    client: str
    problem: Problem
    fold_spec: FoldSpec | None
    algorithm: Algorithm
    message: Any
    reply: Any
    rows: int  # behind the reply, as the client says


@dataclass(frozen=True)
class Remote:
    """`settings` are what every request to a client says. Loss, transport and support are not among it:
    clients have agreed on them, but for the curves of a loss, which `about` names. With `needs_all` a round
    is over when every client has replied. `check` raises BidroError where a reply contradicts what its
    client has reported before."""

    coordinator: Coordinator
    settings: Mapping[str, Mapping[str, Any]]  # by client
    needs_all: bool = True
    check: Callable[[RoundReply], None] | None = None
    about: Callable[[Loss], Mapping[str, Any]] = lambda _: {}  # what requests say of the loss
    query: str = "round"  # the name of a round's query

    def clients_of(self, problem: Problem, fold_spec: FoldSpec | None = None, seed: int = 0) -> Ask:
        names = problem.federation.names
        shared = {
            "folds": 0 if fold_spec is None else fold_spec.folds,
            "seed": seed,
            **self.about(problem.loss),
        }
        own = {name: described(problem.own_ambiguity(i)) for i, name in enumerate(names)}

        def ask(algorithm: Algorithm, broadcast: Any, t: int, who: Who | None = None) -> tuple[Any, Who]:
            how = {**shared, "algorithm": described(algorithm)}
            chosen = [i for i in range(len(names)) if who is None or bool(who[i])]
            settings = {
                names[i]: {**self.settings[names[i]], **how, "ambiguity": own[names[i]]} for i in chosen
            }
            messages = {names[i]: part_of(algorithm, broadcast, i) for i in chosen}
            like = _reply_shapes(problem, algorithm, fold_spec, part_of(algorithm, broadcast, 0))

            def check(name: str, reply: Any, rows: int) -> None:
                if self.check is not None:
                    known = (problem, fold_spec, algorithm, messages[name])
                    self.check(RoundReply(name, *known, reply, rows))

            found = self.coordinator.ask(self.query, t, settings, messages, like, self.needs_all, check)
            none = jax.tree.map(lambda v: np.zeros(v.shape, v.dtype), like)
            replies = [found.get(name, none) for name in names]
            stacked = jax.tree.map(lambda *v: np.stack(v), *replies)
            return stacked, np.array([name in found for name in names])

        return ask


def _reply_shapes(problem: Problem, algorithm: Algorithm, fold_spec: FoldSpec | None, broadcast: Any) -> Any:
    """The shapes and types of one client's reply, found without anybody's rows."""
    labels, support = problem.loss.labels, problem.federation.support
    row = np.array(support.project(np.zeros(problem.federation.m)))
    row[-1] = row[-1] if labels is None else labels[0]
    rows = np.tile(row, (1 if fold_spec is None else fold_spec.folds, 1))
    one = Federation.from_arrays({problem.federation.names[0]: rows}, "unbounded")
    parts = (problem.loss, problem.transport, support, problem.own_ambiguity(0))
    return Participant.of(algorithm, one, *parts, fold_spec).reply_shapes(broadcast)
