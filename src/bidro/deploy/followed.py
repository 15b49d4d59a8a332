"""How a run goes, for whoever waits for it: what the server writes in the run's folder, in words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bidro.deploy.progress import ROUNDS_FILE, WORDS_FILE
from bidro.deploy.runs import VARIABLE, attempt
from bidro.fitting.pace import left_in_words

_SHOWN = 50  # lines that are told at once, at most


class Said(NamedTuple):
    total: int  # lines of words that the run has said
    last: list[str]  # the last of them
    now: str  # the round that goes on, in words


class Mark(NamedTuple):
    """How far a run was when somebody began to follow it."""

    attempt: int  # how often it had been begun under its name
    lines: int
    rounds: int


NEVER = Mark(0, 0, 0)


def mark(run: str, runs: str | None = None) -> Mark:
    """Of the run in the folder of runs, by default the server's own."""
    folder = _folder(run, runs)
    return Mark(attempt(folder), len(_lines(folder / WORDS_FILE)), len(_lines(folder / ROUNDS_FILE)))


def said_so_far(run: str, runs: str | None = None, since: Mark = NEVER) -> Said:
    """What the run has said since then: neither what an earlier attempt said before it failed, nor an earlier
    job of one that goes on."""
    folder = _folder(run, runs)
    lines, rounds = _lines(folder / WORDS_FILE), _lines(folder / ROUNDS_FILE)
    if attempt(folder) == since.attempt:
        lines, rounds = lines[since.lines :], rounds[since.rounds :]
    return Said(len(lines), lines[-_SHOWN:], in_words(rounds[-1]) if rounds else "")


def _folder(run: str, runs: str | None) -> Path:
    return Path(os.environ[VARIABLE] if runs is None else runs) / run


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []  # the run has not begun


def in_words(line: str) -> str:
    """A round: its stage and number, the gap that is proven and who is waited for, as far as it has them."""
    told: dict[str, Any] = json.loads(line)
    words = str(told["stage"])
    if told.get("round") is not None:
        words += f": round {told['round']}"
    if told.get("gap") is not None:
        words += f", gap {float(told['gap']):.1e}"
    if told.get("waiting_for"):
        words += f", waiting for {', '.join(told['waiting_for'])}"
    return words + left_in_words(told.get("seconds_left"))


class Followed:
    """Says what a run says, once, while others ask how it goes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen = 0
        self._now = ""

    def tell(self, said: Said) -> None:
        for line in said.last[-(said.total - self._seen) :] if said.total > self._seen else []:
            self._say(line)
        self._seen = said.total
        if said.now and said.now != self._now:
            self._now = said.now
            self._say(said.now)
