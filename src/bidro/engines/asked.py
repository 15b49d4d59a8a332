"""A client's side of a round, on the machine that owns the data: what was asked, and the reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bidro.algorithms.contract import Algorithm, HeldRows, client_key
from bidro.client import Client, Penalty, WassersteinBall, check_samples
from bidro.errors import BidroError
from bidro.federation import Federation, Support
from bidro.losses import Loss
from bidro.splits import Key
from bidro.transport import Transport
from bidro.worst_case import Inner


@dataclass(frozen=True, eq=False)
class Asked:
    """An algorithm and its problem on one client's rows."""

    algorithm: Algorithm
    loss: Loss
    rows: HeldRows
    parts: tuple[Any, ...]  # what a `Client` is made of besides

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        here: Federation,
        loss: Loss,
        transport: Transport,
        support: Support,
        ambiguity: Penalty | WassersteinBall | None,
        deal: tuple[int, Key] | None = None,
    ) -> Asked:
        """`here` is of one client, its rows in folds where `deal` says how many and by which key. Raises
        BidroError where rows do not fit the problem."""
        check_samples(here, loss, transport)
        samples = here.host_rows
        rows = HeldRows(loss, samples, np.array([len(samples)]), units=here.units)
        if isinstance(ambiguity, WassersteinBall):
            rows = rows._replace(inner=Inner(transport, support, loss), eps=ambiguity.per_client(1))
        if deal is not None:
            rows = rows._replace(marks=here.folds(*deal), folds=deal[0])
        return cls(algorithm, loss, rows, (here.names[0], samples, loss, transport, support, ambiguity))

    @cached_property
    def client(self) -> Client:
        """For compiled programs."""
        client = Client.single(*self.parts)
        if self.rows.marks is None:
            return client
        return replace(client, rows=client.rows.in_folds(self.rows.marks, self.rows.folds))

    def reply(self, message: Any, seed: int, round_number: int) -> Any:
        """The client's reply to a broadcast in round `round_number` (from 1)."""
        if not 0 <= seed < 2**63:
            raise BidroError(f"A seed must be a whole number from 0 to 2^63 - 1; got {seed!r}.")
        here = self.algorithm.replies_on_host(message, self.rows)
        if here is not None:
            return jax.tree.map(lambda part: part[0], here)
        return _reply(self.algorithm, self.client, jax.random.key(seed), jnp.asarray(round_number), message)

    def reply_shapes(self, message: Any) -> Any:
        """The shapes and types of the reply, without computing it where that is dear."""
        here = self.algorithm.replies_on_host(message, self.rows)
        if here is not None:
            return jax.tree.map(lambda part: part[0], here)

        def one(message: Any, own: Client) -> Any:
            return self.algorithm.client(message, own, self.algorithm.draw(own, jax.random.key(0)))

        return jax.eval_shape(one, message, self.client)


@jax.jit
def _reply(algorithm: Algorithm, client: Client, key: Array, t: Array, broadcast: Any) -> Any:
    draw = algorithm.draw(client, client_key(key, t, client.id))
    return algorithm.client(broadcast, client, draw)
