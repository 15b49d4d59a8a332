"""Messages as plain bytes: named arrays with their shapes, and a header of JSON; nothing that executes.

Algorithms, their settings, penalties and radii are described in the header. Nothing is built from such a
description: a client describes all that it would answer, and compares.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bidro.core.errors import BidroError

T = TypeVar("T")


def pack(message: Any, header: Mapping[str, Any] | None = None) -> bytes:
    """A NamedTuple of arrays and a header as bytes: the same bytes for the same content."""
    # Rows after rows: of an array that lies otherwise in memory, safetensors would write the memory.
    arrays = {name: np.asarray(value, order="C") for name, value in message._asdict().items()}
    if header is None:
        return save(arrays)
    return save(arrays, metadata={"bidro": json.dumps(header, sort_keys=True)})


def header_of(data: bytes) -> dict[str, Any]:
    """What `pack` was given as header. Raises BidroError where there is none."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bidro"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BidroError("A message has no header that can be read.") from error
    if not isinstance(header, dict):
        raise BidroError("A message has no header that can be read.")
    return header


def unpack(data: bytes, kind: type[T]) -> T:
    """The message of type `kind` (a NamedTuple of arrays) in `data`.

    Raises BidroError where the bytes are no such message or a value is not finite.
    """
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
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
    return kind(**{name: arrays[name] for name in expected})


def unpack_like(data: bytes, like: T) -> T:
    """The message in `data`, whose arrays must have the shapes and types of those in `like`."""
    found = unpack(data, type(like))
    for name, value in like._asdict().items():  # type: ignore[attr-defined]
        got = getattr(found, name)
        if got.shape != value.shape or got.dtype != value.dtype:
            raise BidroError(
                f"'{name}' in a message of type {type(like).__name__} is {got.dtype} of shape {got.shape}, "
                f"not {value.dtype} of shape {value.shape}."
            )
    return found


def described(value: Any) -> Any:
    """Numbers, text, and bidro's own algorithms, parts of these and ambiguities, as JSON holds them. Raises
    BidroError for others."""
    if isinstance(value, bool | int | float | str | None):
        return value
    kind = type(value)
    if kind.__module__.startswith("bidro."):
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind) if field.init]
            return {"kind": kind.__name__, **{name: described(getattr(value, name)) for name in names}}
        if hasattr(kind, "_fields"):
            return {"kind": kind.__name__, **{name: described(getattr(value, name)) for name in kind._fields}}
    if isinstance(value, tuple):
        return [described(part) for part in value]
    raise BidroError(f"A {type(value).__name__} cannot be sent to another machine.")
