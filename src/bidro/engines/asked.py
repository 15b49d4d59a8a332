"""A client's side of a round, on the machine that owns the data: what was asked, and the reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm, HeldRows, client_key
from bidro.client import Client, check_samples
from bidro.engines.plain import made
from bidro.engines.rounds import Deal
from bidro.engines.wire import unpack
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.losses import Loss


@dataclass(frozen=True, eq=False)
class Asked:
    """The algorithm and the problem that `Remote` describes, on one client's rows."""

    algorithm: Algorithm
    loss: Loss
    rows: HeldRows
    parts: tuple[Any, ...]  # what a `Client` is made of besides

    @classmethod
    def of(
        cls,
        name: str,
        samples: Any,
        asked: Mapping[str, Any],
        units: NDArray[np.uint64] | None = None,
        ids: NDArray[np.uint64] | None = None,
    ) -> Asked:
        """From rows (N_i, m), with the unit of each where these are named and what it is dealt to folds by,
        and a request. Raises BidroError where that describes no round."""
        parts = ("algorithm", "loss", "transport", "support", "ambiguity", "deal")
        missing = [part for part in parts if part not in asked]
        if missing:
            raise BidroError(f"A request for a round says nothing of '{missing[0]}'.")
        algorithm, loss, transport, support, ambiguity, dealt = (made(asked[part]) for part in parts)
        federation = Federation.from_arrays({name: samples}, "unbounded", units=units, ids=ids)
        check_samples(federation, loss, transport)
        rows = HeldRows(loss, np.asarray(samples), np.array([len(samples)]), units=units)
        if dealt is not None:
            deal = Deal(*dealt)
            rows = rows._replace(marks=federation.folds(*deal), folds=deal.folds)
        return cls(algorithm, loss, rows, (name, rows.samples, loss, transport, support, ambiguity))

    @cached_property
    def client(self) -> Client:
        """For compiled programs."""
        client = Client.single(*self.parts)
        if self.rows.marks is None:
            return client
        return replace(client, rows=client.rows.in_folds(self.rows.marks, self.rows.folds))

    def answer(self, seed: int, round_number: int, broadcast: bytes) -> Any:
        """The client's reply to a broadcast in round `round_number` (from 1)."""
        if not 0 <= seed < 2**63:
            raise BidroError(f"A seed must be a whole number from 0 to 2^63 - 1; got {seed!r}.")
        return self.reply(unpack(broadcast, self.algorithm.broadcast_type), seed, round_number)

    def reply(self, message: Any, seed: int, round_number: int) -> Any:
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
