"""Losses of many rows outside of compiled programs: in blocks of few shapes, so that little is compiled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bidro.losses.base import Loss

_LARGEST_BLOCK = 1 << 13
_SMALLEST_BLOCK = 1 << 6


def losses_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """l(x, xi) for every row (N, m); shape (N,)."""
    return _in_blocks(_values, loss, x, rows)


def mistakes_of(loss: Loss, x: ArrayLike, rows: ArrayLike) -> NDArray[np.float64]:
    """1 for every row (N, m) whose label the model does not predict, else 0; shape (N,)."""
    return _in_blocks(_mistakes, loss, x, rows)


@partial(jax.jit, static_argnums=0)
def _values(loss: Loss, x: Array, rows: Array) -> Array:
    return loss.values(x, rows)


@partial(jax.jit, static_argnums=0)
def _mistakes(loss: Loss, x: Array, rows: Array) -> Array:
    return loss.mistakes(x, rows)


def _in_blocks(
    function: Callable[[Loss, Array, Array], Array], loss: Loss, x: ArrayLike, rows: ArrayLike
) -> NDArray[np.float64]:
    table, model = np.asarray(rows, float), jnp.asarray(x)
    found = np.empty(len(table))
    for begin in range(0, len(table), _LARGEST_BLOCK):
        block = table[begin : begin + _LARGEST_BLOCK]
        # Sizes are powers of two; what is added is cut off again.
        size = max(_SMALLEST_BLOCK, 1 << (len(block) - 1).bit_length())
        padded = np.concatenate([block, np.repeat(block[-1:], size - len(block), axis=0)])
        values = function(loss, model, jnp.asarray(padded))
        found[begin : begin + len(block)] = np.asarray(values)[: len(block)]
    return found
