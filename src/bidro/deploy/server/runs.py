"""The folder of a server's runs: which there are, how far they came, and what is kept of them for how long.

    RUN/job.json      what was asked
    RUN/attempt       how often a run was begun under this name; stays when the run is deleted
    RUN/record        what the sites sent; deleted when the run is done
    RUN/progress.*    how far it is, of this attempt
    RUN/failed.txt    why it ended without a result, in one sentence
    RUN/result/       the model folder and the audit

All of it is its owner's only. A run is *going on* while a process holds its lock; without that it is *done*,
has *failed*, or was *cut off* (its process died) and can be resumed.

How far a run is stands there for people and for monitoring: lines of words, and one JSON object a round. The
last line of `progress.jsonl` is what goes on now: a line is written when a round begins and whenever
others are waited for, with what is known then: the time, the stage, the round, the gap that is proven so far,
who has not answered yet, the bytes sent both ways, and about how many seconds solving will still take. Texts
in it are the server's own, or cleaned.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bidro.core.errors import BidroError, one_line
from bidro.core.files import write_private
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.queries import stage_of
from bidro.federated.engines.coordinator import Policy
from bidro.fit.time_left import TimeLeft, left_in_words

# The environment variables with the folder of the server's runs, and with the days after which those without
# a result are deleted.
VARIABLE, KEEP_VARIABLE = "BIDRO_RUNS", "BIDRO_KEEP_DAYS"
_KEEP_DAYS = 30.0
RECORD = "record"
_JOB, _ATTEMPT, _RESULT, _FAILED, _LOCK = "job.json", "attempt", "result", "failed.txt", "lock"
_POLL = 0.5  # seconds between two attempts to get a lock

State = Literal["going on", "done", "failed", "cut off"]


class Begun(NamedTuple):
    name: str  # of the run in messages: another for every attempt under one name
    day: str  # when the attempt began
    result: dict[str, bytes] | None  # the files, if the run is done


@dataclass(frozen=True)
class Run:
    name: str
    state: State
    began: datetime
    changed: datetime
    why: str  # it failed
    record_bytes: int  # that the sites sent and that are kept

    def to_dict(self) -> dict[str, str | int]:
        times = {"began": self.began.isoformat(), "changed": self.changed.isoformat()}
        return {"name": self.name, "state": self.state, **times, "why": self.why, "record": self.record_bytes}


def runs_folder() -> Path:
    """Raises BidroError where none is named."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        raise BidroError(f"On the server, the environment variable {VARIABLE} must name a folder for runs.")
    return Path(folder)


@contextmanager
def locked(folder: Path, run: str, patience: float = 0.0) -> Iterator[None]:
    """One process at a time works on a run; the lock goes with the process.

    Waits for another one for up to `patience` seconds, and then raises BidroError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    deadline = time.monotonic() + patience
    with (folder / _LOCK).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise BidroError(
                        f"Run '{run}' is going on at this moment; wait for it with --resume, or stop it."
                    ) from error
            time.sleep(_POLL)
        yield


def begin(folder: Path, job: Job) -> Begun:
    """Begin the run in its folder, or find it begun. Raises BidroError where its name is another run's.

    Resumed, a run that never began begins. Not resumed, one that has failed begins anew, and what it had
    received is deleted. Sites remember what a run has asked: every attempt under a name is another run to
    them.
    """
    # What to do about lost clients may be another when a run goes on.
    text = replace(job, resume=False, policy=Policy()).to_text()
    path = folder / _JOB
    before = attempt(folder)
    if path.exists():
        done = (folder / _RESULT).exists()
        if job.resume:
            if path.read_text() != text:
                raise BidroError(
                    f"Run '{job.run}' was begun with other settings or another schema; use these, or name "
                    "another run by --run NAME."
                )
            if done:
                (folder / RECORD).unlink(missing_ok=True)
            (folder / _FAILED).unlink(missing_ok=True)
            return _begun(folder, job.run, before, _files(folder / _RESULT) if done else None)
        if done:
            raise BidroError(
                f"There is a run '{job.run}' on the server already, and it is done: get its result with "
                "--resume, name another by --run NAME, or delete it there by `bidro runs delete`."
            )
        if not (folder / _FAILED).exists():
            raise BidroError(
                f"There is a run '{job.run}' on the server already that was cut off: go on with --resume, "
                "name another by --run NAME, or delete it there by `bidro runs delete`."
            )
        (folder / RECORD).unlink(missing_ok=True)
        (folder / _FAILED).unlink()
    # What an earlier attempt said is not said of this one.
    for name in (WORDS_FILE, ROUNDS_FILE):
        (folder / name).unlink(missing_ok=True)
    write_private(folder / _ATTEMPT, str(before + 1).encode())
    write_private(path, text.encode())
    return _begun(folder, job.run, before + 1, None)


def attempt(folder: Path) -> int:
    """How often a run was begun in the folder."""
    path = folder / _ATTEMPT
    return int(path.read_text()) if path.exists() else 0


def _begun(folder: Path, run: str, attempt: int, result: dict[str, bytes] | None) -> Begun:
    day = datetime.fromtimestamp((folder / _JOB).stat().st_mtime, UTC).date().isoformat()
    return Begun(run if attempt == 1 else f"{run}.{attempt}", day, result)


def result_folder(folder: Path) -> Path:
    return folder / _RESULT


def done(folder: Path) -> dict[str, bytes]:
    """The run's files, once they are in its result folder; what the sites sent is deleted."""
    (folder / RECORD).unlink()
    return _files(folder / _RESULT)


def failed(folder: Path, why: str) -> None:
    """The run has ended without a result; its name is free for another attempt."""
    (folder / _FAILED).write_text(why)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def listed(runs: Path) -> list[Run]:
    """The runs in the folder, the one that changed last first."""
    found = [_run(path.parent) for path in runs.glob(f"*/{_JOB}")]
    return sorted(found, key=lambda run: run.changed, reverse=True)


def find(runs: Path, name: str) -> Run:
    """Raises BidroError where there is no such run."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or not (runs / name / _JOB).exists():
        raise BidroError(f"There is no run '{name}' in '{runs}'; `bidro runs list` names those there are.")
    return _run(runs / name)


def _run(folder: Path) -> Run:
    record = folder / RECORD
    times = [path.stat().st_mtime for path in folder.iterdir() if path.name != _LOCK]
    why = (folder / _FAILED).read_text() if (folder / _FAILED).exists() else ""
    return Run(
        folder.name,
        _state(folder),
        datetime.fromtimestamp((folder / _JOB).stat().st_mtime, UTC),
        datetime.fromtimestamp(max(times), UTC),
        why,
        record.stat().st_size if record.exists() else 0,
    )


def _state(folder: Path) -> State:
    try:
        with locked(folder, folder.name):
            if (folder / _RESULT).exists():
                return "done"
            return "failed" if (folder / _FAILED).exists() else "cut off"
    except BidroError:
        return "going on"


def delete(runs: Path, name: str) -> None:
    """Delete the run with all that is kept of it. Raises BidroError where there is none or it is going on."""
    find(runs, name)
    with locked(runs / name, name):
        for path in (runs / name).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (_ATTEMPT, _LOCK):
                path.unlink()


def expire(runs: Path, days: float | None = None) -> list[str]:
    """Delete runs without a result in which nothing has happened for so many days; their names.

    By default the days are those of the environment. Raises BidroError where these are no number.
    """
    given = os.environ.get(KEEP_VARIABLE, str(_KEEP_DAYS)) if days is None else str(days)
    try:
        oldest = time.time() - 86_400 * float(given)
    except ValueError as error:
        raise BidroError(f"{KEEP_VARIABLE} must be a number of days; got '{given}'.") from error
    old = [
        run.name
        for run in listed(runs)
        if run.state in ("failed", "cut off") and run.changed.timestamp() < oldest
    ]
    for name in old:
        delete(runs, name)
    return old


WORDS_FILE, ROUNDS_FILE = "progress.txt", "progress.jsonl"


@dataclass(eq=False)
class RunProgress:
    """Of one run, in its folder on the server."""

    folder: Path
    wanted: float = 0.0  # the gap that solving ends with; 0 where it has none
    gap: float | None = None  # after the last round that has one
    bytes: int = 0  # to and from sites so far
    seconds_left: float | None = None  # of solving, as far as it can be said
    time_left: TimeLeft = field(init=False)

    def __post_init__(self) -> None:
        self.time_left = TimeLeft(self.wanted)

    def say(self, line: str) -> None:
        """A line of words, also in the server's log."""
        words = one_line(line)
        _append(self.folder / WORDS_FILE, words)
        print(words, file=sys.stderr, flush=True)

    def round(self, what: str, number: int, waiting_for: Sequence[str], sent: int) -> None:
        """A round of `what` has begun, or goes on; so many bytes have been sent both ways in the run."""
        self.bytes = sent
        stage = stage_of(what)
        if stage != "solving":
            self.seconds_left = None
        self._line(stage, number, waiting_for)

    def solved_to(self, gap: float) -> None:
        self.gap = gap if math.isfinite(gap) else None
        self.seconds_left = self.time_left.solving(gap)

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


class RunFollower:
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
