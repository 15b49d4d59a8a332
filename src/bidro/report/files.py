"""Results appear whole or not at all: written under a temporary name, then moved into place.

What is there and is no file of its own kind is left in its place: a link keeps pointing where it did, and
pipes, devices and this process's own open files (/dev/stdout) are written through.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bidro.errors import BidroError

# Names that stand for files which a process has open already.
_OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd/*", "/proc/*/fd/*")


def is_stream(path: Path) -> bool:
    """Whether what is written to `path` goes elsewhere: to a pipe, a device or an open file."""
    if any(path.absolute().match(pattern) for pattern in _OPEN_FILES):
        return True
    return path.exists() and not (path.is_file() or path.is_dir())


def require_file_place(path: Path) -> None:
    """Raise BidroError where no file can be written at `path`; leaves nothing behind."""
    if path.is_dir():
        raise BidroError(f"'{path}' is a folder; name a file to write.")
    if is_stream(path):
        if not (path.exists() and os.access(path, os.W_OK)):
            raise BidroError(f"'{path}' cannot be written to; name a file to write.")
    else:
        require_writable(_target(path).parent)


def require_writable(folder: Path) -> None:
    """Raise BidroError where nothing can be written in `folder`, or where it cannot be made."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".bidro-"):
            pass
    except OSError as error:
        raise BidroError(f"The folder '{folder}' cannot be written to ({error.strerror}).") from error


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary path and move the file to `path`, or to what a link there points at."""
    require_file_place(path)
    target = _target(path)
    through = is_stream(path)
    if not through:
        target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=None if through else target.parent, prefix=f".{path.stem}-", suffix=path.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        if through:
            # Appending, so that what an open file holds already stays.
            with path.open("ab") as stream:
                stream.write(temporary.read_bytes())
            return
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_whole(path, write)


def write_bytes(path: Path, data: bytes) -> None:
    def write(temporary: Path) -> None:
        temporary.write_bytes(data)

    write_whole(path, write)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON; numbers must be finite."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _target(path: Path) -> Path:
    """The file that `path` is, or that it links to."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise BidroError(f"'{path}' cannot be followed: its links go in a circle.") from error
