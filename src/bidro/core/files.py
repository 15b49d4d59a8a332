"""Files: results appear whole or not at all, and what somebody else may have written is read within bounds.

Results are written under a temporary name and moved into place. A link keeps pointing where it did, and
pipes, devices and this process's own open files (/dev/stdout) are written through.

A name to read may be a link to a device that never ends, or a pipe that never begins; and text of a few
kilobytes may be JSON nested more deeply than any parser goes. Such files are refused in a sentence.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bidro.core.errors import BidroError, one_line

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


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
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
    write_whole(path, lambda temporary: temporary.write_text(text))


def write_bytes(path: Path, data: bytes) -> None:
    write_whole(path, lambda temporary: temporary.write_bytes(data))


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole, for its owner's eyes only."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON; numbers must be finite."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _target(path: Path) -> Path:
    """The file that `path` is, or that it links to."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise BidroError(f"'{path}' cannot be followed: its links go in a circle.") from error


MOST_TEXT = 64 * 2**20
MOST_BYTES = 2**31
# Parts within parts: more than any file of this package has.
_DEEPEST, _NESTED = 64, "it is nested too deeply"
# Options, configurations, schemas and audits are smaller (a schema with a million levels is), and less deep.
_LARGEST_SMALL, _DEEPEST_SMALL = 32 << 20, 32
# A key of so many parts, which takes a reader of TOML long.
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_DEEPEST_SMALL}}}")


# Names that entries of files had before, with those of today: run.toml, schema.toml, site.toml, federate.toml
# and model folders that have the old ones are still read.
RENAMED = {
    "blend": "mixing",
    "cap": "max_weight_ratio",
    "lost": "on_client_loss",
    "measured_in": "target_unit",
    "own": "personal",
    "own_mistakes": "personal_mistakes",
    "paid": "robustness_cost",
    "price": "max_cost",
    "unit": "person",
    "units": "people",
}


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


def read_toml(path: Path) -> dict[str, Any]:
    """What is in the file. Raises BidroError where it does not exist, is not TOML, or is too large."""
    text, nested = _small_text(path), f"'{path}' is not valid TOML: it is nested too deeply."
    if _DEEP_KEY.search(text):
        raise BidroError(nested)
    try:
        content = tomllib.loads(text)
    except RecursionError as error:
        raise BidroError(nested) from error
    except ValueError as error:
        if isinstance(error, BidroError):
            raise
        raise BidroError(f"'{path}' is not valid TOML: {one_line(error)}.") from error
    if _beyond(content):
        raise BidroError(f"{nested[:-1]}, or holds a number beyond 64 bits.")
    return content


def renamed(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a part of a file says, by the names of today (see RENAMED); a name of today goes before an old one
    for the same."""
    old = {RENAMED[name]: value for name, value in content.items() if name in RENAMED}
    return old | {name: value for name, value in content.items() if name not in RENAMED}


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a file that is to be `what`. Raises BidroError where there is none."""
    return json_object(_small_text(path), f"'{path}' is damaged or not {what}")


def json_object(text: str, otherwise: str) -> dict[str, Any]:
    """The object that a text is. Raises BidroError with the words of `otherwise` where it is none."""
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise BidroError(f"{otherwise}: {one_line(error, 100)}.") from error
    if not isinstance(content, dict) or _beyond(content):
        raise BidroError(f"{otherwise}: it is no JSON object, nested too deeply, or holds too large numbers.")
    return content


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise BidroError(f"'{path}' is a folder; name a file in it.")
    if not stat.S_ISREG(mode):
        raise BidroError(f"'{path}' is a device or a pipe, or links to one; give a file.")


def _beyond(content: Any) -> bool:
    """Whether there are parts within parts beyond what is ever needed, or whole numbers beyond 64 bits."""
    levels = list(parts_within(content, _DEEPEST_SMALL))
    large = any(isinstance(part, int) and abs(part) >= 2**63 for level in levels for part in level)
    return large or len(levels) == _DEEPEST_SMALL


def _small_text(path: Path) -> str:
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    return read_text(path, _LARGEST_SMALL)
