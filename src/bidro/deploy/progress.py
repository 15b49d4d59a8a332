"""How far a run is, for people and for monitoring: lines of words, and one JSON object a round.

The last line of `progress.jsonl` is what goes on now: a line is written when a round begins and whenever
others are waited for, with what is known then: the time, the stage, the round, the gap that is proven so far,
who has not answered yet, the bytes sent both ways, and about how many seconds solving will still take. Texts
in it are the server's own, or cleaned.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bidro.errors import one_line
from bidro.fitting.pace import Pace

WORDS_FILE, ROUNDS_FILE = "progress.txt", "progress.jsonl"

# What a round is for, by what is asked: a question or the algorithm of a round.
_STAGES = {
    "prepare": "preparing",
    "FoldMoments": "choosing",
    "FoldNewton": "choosing",
    "FoldSolves": "choosing",
    "FoldScores": "choosing",
    "OwnCorrections": "choosing",
    "OneShotMWDRO": "solving",
    "ExactMWDRO": "solving",
    "BiDROFL": "solving",
    **dict.fromkeys(("FedAvg", "AFL", "DRFA", "QFFL", "GroupDRO", "BiDROLocal"), "training"),
    "ServerOptimised": "training",
    "assess": "assessing",
    "bounds": "certifying",
    "evaluate": "certifying",
}


@dataclass(eq=False)
class RunProgress:
    """Of one run, in its folder on the server."""

    folder: Path
    wanted: float = 0.0  # the gap that solving ends with; 0 where it has none
    gap: float | None = None  # after the last round that has one
    bytes: int = 0  # to and from sites so far
    seconds_left: float | None = None  # of solving, as far as it can be said
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.wanted)

    def say(self, line: str) -> None:
        """A line of words, also in the server's log."""
        words = one_line(line)
        _append(self.folder / WORDS_FILE, words)
        print(words, file=sys.stderr, flush=True)

    def round(self, what: str, number: int, waiting_for: Sequence[str], sent: int) -> None:
        """A round of `what` has begun, or goes on; so many bytes have been sent both ways in the run."""
        self.bytes = sent
        stage = _STAGES.get(what, what)
        if stage != "solving":
            self.seconds_left = None
        self._line(stage, number, waiting_for)

    def solved_to(self, gap: float) -> None:
        self.gap = gap if math.isfinite(gap) else None
        self.seconds_left = self.pace.solving(gap)

    def ended(self, stage: str) -> None:
        """The run is "done", or has "stopped"."""
        self.seconds_left = None
        self._line(stage, None, ())

    def _line(self, stage: str, number: int | None, waiting_for: Sequence[str]) -> None:
        content = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "stage": stage,
            "round": number,
            "gap": self.gap,
            "waiting_for": sorted(waiting_for),
            "bytes": self.bytes,
            "seconds_left": self.seconds_left,
        }
        _append(self.folder / ROUNDS_FILE, json.dumps(content))


def _append(path: Path, line: str) -> None:
    """A line at the end of a file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")
