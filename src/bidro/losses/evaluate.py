"""Losses of many rows on the host: with NumPy, or compiled in blocks of few shapes, so that little is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.losses.base import Loss

_LARGEST_BLOCK = 1 << 13
# Numbers that are made of rows together on the host: with curves rows are wider than the table.
_NUMBERS = 1 << 18
_SMALLEST_BLOCK = 1 << 6


def losses_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """l(x, xi) for every row (N, m); shape (N,)."""
    return _in_blocks(loss.values, _values, loss, x, rows)


def mistakes_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """1 for every row (N, m) whose label the model does not predict, else 0; shape (N,)."""
    return _in_blocks(loss.mistakes, _mistakes, loss, x, rows)


def parts_of(loss: Loss, table: NDArray[np.float64]) -> list[slice]:
    """Rows (N, m) that are handled together, so few that what is made of them stays small."""
    height = max(_SMALLEST_BLOCK, min(_LARGEST_BLOCK, _NUMBERS // loss.columns(table.shape[1])))
    return [slice(begin, begin + height) for begin in range(0, len(table), height)]


@partial(jax.jit, static_argnums=0)
def _values(loss: Loss, x: Array, rows: Array) -> Array:
    return loss.values(x, rows)


@partial(jax.jit, static_argnums=0)
def _mistakes(loss: Loss, x: Array, rows: Array) -> Array:
    return loss.mistakes(x, rows)


def _in_blocks(
    on_host: Callable[..., Any],
    compiled: Callable[[Loss, Array, Array], Array],
    loss: Loss,
    x: ArrayLike,
    rows: ArrayLike,
) -> NDArray[np.float64]:
    table, model = np.asarray(rows, float), np.asarray(x, float)
    found = np.empty(len(table))
    if loss.host_values:
        for some in parts_of(loss, table):
            found[some] = on_host(model, table[some])
        return found
    for begin in range(0, len(table), _LARGEST_BLOCK):
        block = table[begin : begin + _LARGEST_BLOCK]
        # Sizes are powers of two; what is added is cut off again.
        size = max(_SMALLEST_BLOCK, 1 << (len(block) - 1).bit_length())
        padded = np.concatenate([block, np.repeat(block[-1:], size - len(block), axis=0)])
        values = compiled(loss, jnp.asarray(model), jnp.asarray(padded))
        found[begin : begin + len(block)] = np.asarray(values)[: len(block)]
    return found
