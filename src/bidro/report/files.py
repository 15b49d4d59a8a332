"""Results appear whole or not at all: written under a temporary name, then moved into place."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary path in the same folder and move the file to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_whole(path, write)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON; numbers must be finite."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
