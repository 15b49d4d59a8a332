"""A client's side of a round, on the machine that owns the data: what was asked, and the reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm, client_key
from bidro.client import Client
from bidro.engines.plain import made
from bidro.engines.rounds import Deal
from bidro.engines.wire import unpack
from bidro.errors import BidroError
from bidro.federation import Federation


def answer(algorithm: Algorithm, client: Client, seed: int, round_number: int, broadcast: bytes) -> Any:
    """The client's reply to a broadcast in round `round_number` (from 1)."""
    message = unpack(broadcast, algorithm.broadcast_type)
    return _reply(algorithm, client, jax.random.key(seed), jnp.asarray(round_number), message)


def client_of(name: str, rows: NDArray[np.float64], asked: Mapping[str, Any]) -> tuple[Algorithm, Client]:
    """The algorithm and the problem that `Remote` describes, on this client's rows (N_i, m).

    Raises BidroError where it describes none.
    """
    parts = ("algorithm", "loss", "transport", "support", "ambiguity", "deal")
    missing = [part for part in parts if part not in asked]
    if missing:
        raise BidroError(f"A request for a round says nothing of '{missing[0]}'.")
    algorithm, loss, transport, support, ambiguity, dealt = (made(asked[part]) for part in parts)
    client = Client.single(name, rows, loss, transport, support, ambiguity)
    if dealt is not None:
        deal = Deal(*dealt)
        marks = Federation.from_arrays({name: rows}, "unbounded").folds(*deal)
        client = replace(client, rows=client.rows.in_folds(marks, deal.folds))
    return algorithm, client


@jax.jit
def _reply(algorithm: Algorithm, client: Client, key: Array, t: Array, broadcast: Any) -> Any:
    draw = algorithm.draw(client, client_key(key, t, client.id))
    return algorithm.client(broadcast, client, draw)
