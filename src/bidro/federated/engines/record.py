"""What a run has received so far, in one file that only grows: the checkpoint, and the source of the audit.

Every reply that was accepted is appended with the request that it answers, and is on the disk before it is
used. As clients answer the same request in the same way and the server's side is deterministic, a run that is
begun again and finds its replies here comes to the same state, bit for bit, and goes on from there. An entry
that was cut off by a crash is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError
from bidro.core.files import write_private

_FRAME = struct.Struct("<II32s")  # lengths of head and body, check sum of both
_MAGIC = b"bidro run 1\n"


class Record:
    """Entries are a head (JSON) and a body (bytes); those with a `client` and a `request` are replies."""

    def __init__(self, path: Path) -> None:
        """Opens or begins the record. Raises BidroError for a file that is none."""
        self._path = path
        self._heads: list[dict[str, Any]] = []
        self._missed: set[tuple[str, str]] = set()
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_private(path, _MAGIC)  # what clients sent is the owner's
        self._file = path.open("r+b")
        if self._file.read(len(_MAGIC)) != _MAGIC:
            self._file.close()
            raise BidroError(f"'{path}' is not the record of a run of this version of bidro.")
        end = len(_MAGIC)
        for head, place, length in self._entries():
            self._remember(head, place, length)
            end = place + length
        self._file.truncate(end)
        self._file.seek(end)

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def heads(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._heads)

    def append(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Raises OSError where the disk does not take it; then nothing of it counts."""
        text = json.dumps(head, sort_keys=True).encode()
        check = hashlib.sha256(text + body).digest()
        begin = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(_FRAME.pack(len(text), len(body), check) + text + body)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(begin)
            raise
        self._remember(head, begin + _FRAME.size + len(text), len(body))

    def reply(self, client: str, request: str) -> bytes | None:
        """What the client answered to the request with this digest, if it did."""
        if (client, request) not in self._places:
            return None
        place, length = self._places[client, request]
        self._file.seek(place)
        return self._file.read(length)

    def missed(self, client: str, request: str) -> bool:
        """Whether the run went on without the client's answer to this request."""
        return (client, request) in self._missed

    def _remember(self, head: dict[str, Any], place: int, length: int) -> None:
        self._heads.append(head)
        if "missed" in head:
            self._missed.add((head["client"], head["missed"]))
        if "request" in head:
            self._places[head["client"], head["request"]] = (place, length)

    def _entries(self) -> Iterator[tuple[dict[str, Any], int, int]]:
        """(head, place and length of the body) of every whole entry."""
        while len(frame := self._file.read(_FRAME.size)) == _FRAME.size:
            head, body, check = _FRAME.unpack(frame)
            content = self._file.read(head + body)
            if len(content) < head + body or hashlib.sha256(content).digest() != check:
                return
            yield json.loads(content[:head]), self._file.tell() - body, body
