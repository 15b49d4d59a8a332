"""How a run goes, for whoever waits for it: the lines that the server writes, in words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from bidro.deploy.runs import VARIABLE
from bidro.deploy.server import PROGRESS_FILE

_SHOWN = 50  # lines that are told at once, at most


class Said(NamedTuple):
    total: int  # lines that the run has said
    last: list[str]  # the last of them, in words

    def after(self, seen: int) -> list[str]:
        """What was said since there were `seen` lines."""
        return self.last[-(self.total - seen) :] if self.total > seen else []


def said_so_far(run: str, runs: str | None = None) -> Said:
    """Of the run in the folder of runs, by default the server's own."""
    path = Path(os.environ[VARIABLE] if runs is None else runs) / run / PROGRESS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return Said(0, [])  # it has not begun
    return Said(len(lines), [in_words(line) for line in lines[-_SHOWN:]])


def in_words(line: str) -> str:
    """A line of the file: JSON with stage, round, gap and whom the round waits for, as far as it has them."""
    try:
        told: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    words = str(told.get("stage", "working"))
    if told.get("round") is not None:
        words += f": round {told['round']}"
    if told.get("gap") is not None:
        words += f", gap {float(told['gap']):.1e}"
    if told.get("waiting_for"):
        words += f", waiting for {', '.join(map(str, told['waiting_for']))}"
    return words
