"""What the two processes of a scoring tell each other: JSON with a few parts of plain bytes behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

from bidro.errors import BidroError


def packed(content: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    head = json.dumps({**content, "parts": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *parts])


def read(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Raises BidroError for anything that `packed` has not made."""
    try:
        content = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 8), "little")))
        return content, [_exactly(stream, int(size)) for size in content.pop("parts")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise BidroError("A message between processes is cut off.") from error


def _exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise ValueError("too short")
    return found
