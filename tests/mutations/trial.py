"""Changes tried one by one in a copy of the source, never in the source itself."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutations.changes import Change

Outcome = Literal["killed", "timeout", "survived"]
# Tests that take so many times as long as without a change have noticed it.
_TIMES_AS_LONG = 4
_LEAST_SECONDS = 60.0


@dataclass(frozen=True)
class Copy:
    """A copy of the folder `source`, which the tests in `tests_root` import in its place."""

    folder: Path
    source: Path
    tests_root: Path

    @classmethod
    def of(cls, source: Path, tests_root: Path, folder: Path) -> Copy:
        """Into `folder`, which must not exist."""
        shutil.copytree(source, folder)
        return cls(folder, source, tests_root)

    def run(self, tests: Sequence[str], timeout: float | None = None) -> int | None:
        """pytest's exit code, or None where the time was over; ends with the first test that fails."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        # What tests find and compile is kept beside the copy; compiled programs are shared by all changes.
        env = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder.parent / "hypothesis"),
        }
        started = subprocess.Popen(
            command,
            cwd=self.tests_root,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return started.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()

    def seconds_unchanged(self, tests: Sequence[str]) -> float:
        """How long the tests take as things are; they must pass."""
        began = time.monotonic()
        if self.run(tests) != 0:
            raise SystemExit(f"The tests do not pass without any change: {' '.join(tests)}.")
        return time.monotonic() - began

    def tried(self, file: str, change: Change, tests: Sequence[str], seconds: float) -> Outcome:
        """What the tests, which take so many seconds, make of a change of one file of the source."""
        path, kept = self.folder / file, (self.source / file).read_text()
        # Python tells a changed file by its size and second: what it has compiled of it must go.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(change.changed)
        try:
            code = self.run(tests, max(_LEAST_SECONDS, _TIMES_AS_LONG * seconds))
        finally:
            path.write_text(kept)
        if code is None:
            return "timeout"
        return "survived" if code == 0 else "killed"


def sample(found: Iterable[Change], budget: int, seed: str) -> list[Change]:
    """At most `budget` of the changes, the same ones for the same seed, in the order of their lines."""
    every = list(found)
    chosen = every if len(every) <= budget else random.Random(seed).sample(every, budget)
    return sorted(chosen, key=lambda change: change.line)
