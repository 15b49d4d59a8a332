"""Batches of a client's rows: what is drawn for a round, and mean loss and gradient over one of them.

A batch is a uniformly random set of different rows: `batch` of them, or all where the client has no more. It
is found by Floyd's algorithm (Bentley and Floyd, 1987, A sample of brilliance), which needs as many random
numbers as the batch has rows, however many the client has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from bidro.algorithms.contract import Evidence
from bidro.client import Client
from bidro.errors import BidroError


def require_batch(batch: int | None) -> None:
    """Raise BidroError unless it is None or a whole number of rows, at least one."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise BidroError(f"A batch must be a whole number of rows, at least 1, or None; got {batch!r}.")


def evidence_of(batch: int | None, otherwise: Evidence) -> Evidence:
    """What replies rest on with batches of this size; `otherwise` without."""
    if batch is None:
        return otherwise
    return "one row" if batch == 1 else batch


def draw_batches(client: Client, key: Array, steps: int, batch: int) -> Array:
    """(steps, batch) which of its rows the client takes for every step; of those that it does not have, where
    it has fewer than `batch`, the first row stands in their place."""
    return jax.vmap(_one_batch, in_axes=(0, None))(jax.random.uniform(key, (steps, batch)), client.rows.size)


def _one_batch(u: Array, rows: Array) -> Array:
    """(batch,) different numbers below `rows`, from as many uniform ones."""
    batch = u.shape[0]
    size = jnp.minimum(batch, rows)

    def add(k: Array, taken: Array) -> Array:
        last = rows - size + k
        # Rounding could reach last + 1.
        guess = jnp.minimum((u[k] * (last + 1)).astype(int), last)
        new = jnp.where(jnp.any(taken == guess), last, guess)
        return taken.at[k].set(jnp.where(k < size, new, -1))

    taken = jax.lax.fori_loop(0, batch, add, jnp.full(batch, -1))
    return jnp.maximum(taken, 0)


def batch_rows(client: Client, positions: Array) -> tuple[Array, Array]:
    """(rows (batch, m), weights (batch,) of a mean over them) at the positions (batch,)."""
    batch = positions.shape[0]
    size = jnp.minimum(batch, client.rows.size)
    return jax.vmap(client.rows.row)(positions), (jnp.arange(batch) < size) / size


def batch_mean_and_gradient(client: Client, positions: Array, x: Array) -> tuple[Array, Array]:
    """The mean loss over the rows at positions (batch,), and its gradient in x."""
    rows, weights = batch_rows(client, positions)
    return jax.value_and_grad(lambda v: jnp.sum(weights * client.inner.loss.values(v, rows)))(x)
