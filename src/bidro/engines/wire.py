"""Messages as plain bytes: named arrays with their shapes, no pickle, nothing that executes."""

from __future__ import annotations

from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bidro.errors import BidroError

T = TypeVar("T")


def pack(message: Any) -> bytes:
    """A NamedTuple of arrays as bytes."""
    return save({name: np.asarray(value) for name, value in message._asdict().items()})


def unpack(data: bytes, kind: type[T]) -> T:
    """The message of type `kind` (a NamedTuple of arrays) in `data`.

    Raises BidroError where the bytes are no such message or a value is not finite.
    """
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise BidroError(f"A message could not be read as {kind.__name__}: {error}.") from error
    expected: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    if set(arrays) != set(expected):
        raise BidroError(
            f"A message holds {', '.join(sorted(arrays)) or 'nothing'} where {kind.__name__} needs "
            f"{', '.join(expected)}."
        )
    for name, value in arrays.items():
        if not np.all(np.isfinite(value)):
            raise BidroError(f"'{name}' in a message of type {kind.__name__} is not finite.")
    return kind(**{name: jnp.asarray(arrays[name]) for name in expected})
