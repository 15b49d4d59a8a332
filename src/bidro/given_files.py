"""Files that somebody else may have written: read whole and within bounds, or refused in a sentence.

A name in a folder may be a link to a device that never ends, or a pipe that never begins; and text of a few
kilobytes may be JSON nested more deeply than any parser goes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bidro.errors import BidroError, one_line

MOST_TEXT = 64 * 2**20
MOST_BYTES = 2**31
# Parts within parts: more than any file of this package has.
_DEEPEST, _NESTED = 64, "it is nested too deeply"


def require_file(path: Path) -> None:
    """Raise BidroError for a name that is no file with an end: a device, a pipe, a socket, a folder."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BidroError(f"'{path}' cannot be read: {one_line(error.strerror)}.") from error
    _require_regular(path, mode)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file. Raises BidroError for what is no file, cannot be read, or has more than `most` bytes."""
    try:
        # Without waiting: a pipe that nobody writes to would never be opened.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BidroError(f"'{path}' cannot be read: {one_line(error.strerror)}.") from error
    try:
        _require_regular(path, os.fstat(handle).st_mode)
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise BidroError(f"'{path}' cannot be read: {one_line(error.strerror)}.") from error
    finally:
        os.close(handle)
    if len(data) > most:
        raise BidroError(f"'{path}' has more than {most:,} bytes, too many for such a file.")
    return data


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """All of a file of UTF-8 text. Raises BidroError as `read_bytes`, and for other text."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BidroError(f"'{path}' is not text in UTF-8; save it as such.") from error


def parsed_json(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for other text, also for parts within parts beyond what can be
    read."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(_NESTED) from None
    if len(list(parts_within(content, _DEEPEST))) == _DEEPEST:
        # What can be read could be too deep to be written again.
        raise ValueError(_NESTED)
    return content


def parts_within(content: Any, deepest: int) -> Iterator[list[Any]]:
    """The parts of what a file says, then the parts of these, and so on while there are any, at the most so
    many times."""
    level = [content]
    for _ in range(deepest):
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
        yield level


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise BidroError(f"'{path}' is a folder; name a file in it.")
    if not stat.S_ISREG(mode):
        raise BidroError(f"'{path}' is a device or a pipe, or links to one; give a file.")
