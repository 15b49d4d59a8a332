"""Numbers and plain text in one file that shows any change: safetensors with a checked header.

A file is accepted only if writing its content again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.files import parsed_json


def encoded(tensors: Mapping[str, Floats], header: Mapping[str, Any]) -> bytes:
    return _encoded(tensors, {**header, "names": sorted(tensors)})


def _encoded(tensors: Mapping[str, Floats], header: Mapping[str, Any]) -> bytes:
    # A sum over the numbers is part of the header, which alone is plain enough to be read twice.
    numbers = hashlib.sha256(b"".join(np.ascontiguousarray(tensors[k]).tobytes() for k in sorted(tensors)))
    text = json.dumps({**header, "numbers": numbers.hexdigest()}, sort_keys=True, allow_nan=False)
    check = hashlib.sha256(text.encode()).hexdigest()
    # Of an array that lies otherwise in memory, safetensors would write the memory.
    whole = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    return save(whole, metadata={"bidro": f"{check}{text}"})


def decoded(data: bytes, where: str) -> tuple[dict[str, Floats], dict[str, Any]]:
    try:
        length = int.from_bytes(data[:8], "little")
        outer = parsed_json(data[8 : 8 + length])
        text = outer["__metadata__"]["bidro"][64:]
        tensors, header = load(data), parsed_json(text)
        finite = all(np.all(np.isfinite(v)) for v in tensors.values())
        numbers = {name: np.asarray(v, float) for name, v in tensors.items()}
        again = _encoded(numbers, {k: v for k, v in header.items() if k != "numbers"})
        # Older files do not name their numbers.
        named = header.get("names", sorted(tensors)) == sorted(tensors)
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        AttributeError,
        MemoryError,
    ) as error:
        raise BidroError(f"'{where}' is damaged or not a model of bidro; fetch it again or refit.") from error
    if again != data or not finite or not named:
        raise BidroError(
            f"'{where}' is damaged: its content and its check sum differ; fetch it again or refit."
        )
    return numbers, header
