"""TOML files that people write: options, configurations, schemas."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from bidro.errors import BidroError


def read_toml(path: Path) -> dict[str, Any]:
    """What is in the file. Raises BidroError where it does not exist or is not TOML."""
    if not path.exists():
        raise BidroError(f"There is no file '{path}'.")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BidroError(f"'{path}' is not valid TOML: {error}.") from error
