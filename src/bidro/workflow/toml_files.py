"""Small files of text that people and programs write: options, configurations, schemas, audits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from bidro.errors import BidroError, one_line
from bidro.given_files import parsed_json, parts_within, read_text

# A schema with a million levels is smaller.
_LARGEST_FILE = 32 << 20
# Nothing that is read here has parts within parts within parts beyond this.
_DEEPEST = 32
# A key of so many parts, which takes a reader of TOML long.
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_DEEPEST}}}")


def read_toml(path: Path) -> dict[str, Any]:
    """What is in the file. Raises BidroError where it does not exist, is not TOML, or is too large."""
    text, nested = _text(path), f"'{path}' is not valid TOML: it is nested too deeply."
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


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a file that is to be `what`. Raises BidroError where there is none."""
    return json_object(_text(path), f"'{path}' is damaged or not {what}")


def json_object(text: str, otherwise: str) -> dict[str, Any]:
    """The object that a text is. Raises BidroError with the words of `otherwise` where it is none."""
    try:
        content = parsed_json(text)
    except ValueError as error:
        raise BidroError(f"{otherwise}: {one_line(error, 100)}.") from error
    if not isinstance(content, dict) or _beyond(content):
        raise BidroError(f"{otherwise}: it is no JSON object, nested too deeply, or holds too large numbers.")
    return content


def _beyond(content: Any) -> bool:
    """Whether there are parts within parts beyond what is ever needed, or whole numbers beyond 64 bits."""
    levels = list(parts_within(content, _DEEPEST))
    large = any(isinstance(part, int) and abs(part) >= 2**63 for level in levels for part in level)
    return large or len(levels) == _DEEPEST


def _text(path: Path) -> str:
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    return read_text(path, _LARGEST_FILE)
