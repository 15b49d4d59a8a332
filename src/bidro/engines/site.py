"""A client's side of a round, on the machine that owns the data: bytes in, bytes out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Algorithm, client_key
from bidro.client import Client
from bidro.engines.wire import pack, unpack


def answer(algorithm: Algorithm, client: Client, seed: int, round_number: int, broadcast: bytes) -> bytes:
    """The client's reply to a broadcast in round `round_number` (from 1)."""
    message = unpack(broadcast, algorithm.broadcast_type)
    return pack(_reply(algorithm, client, jax.random.key(seed), jnp.asarray(round_number), message))


@jax.jit
def _reply(algorithm: Algorithm, client: Client, key: Array, t: Array, broadcast: Any) -> Any:
    draw = algorithm.draw(client, client_key(key, t, client.id))
    return algorithm.client(broadcast, client, draw)
