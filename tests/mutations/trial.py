"""Changes tried one by one in a copy of the source, never in the source itself."""

from __future__ import annotations

import compileall
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.mutations.changes import Change

Outcome = Literal["killed", "timeout", "survived"]
# Tests that take so many times as long as without a change have noticed it.
_TIMES_AS_LONG = 4
_LEAST_SECONDS = 60.0
# What tests load beside the source itself.
_LOADED = ["cvxpy", "hypothesis", "jax", "pandas", "pytest", "scipy.stats", "sklearn"]


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
        # Every trial loads all of it.
        compileall.compile_dir(folder, quiet=1)
        return cls(folder, source, tests_root)

    def run(self, tests: Sequence[str], timeout: float | None = None) -> int | None:
        """pytest's exit code, or None where the time was over; ends with the first test that fails."""
        started = _ready().Process(target=_tested, args=(self.folder, self.tests_root, tuple(tests)))
        started.start()
        started.join(timeout)
        if started.is_alive():
            # It leads a group of its own, with whatever its tests have started.
            os.killpg(started.pid, signal.SIGKILL)
            started.join()
            return None
        return started.exitcode

    def limit(self, tests: Sequence[str]) -> float:
        """Seconds that the tests may take, from what they take as things are; they must pass."""
        began = time.monotonic()
        if self.run(tests) != 0:
            raise SystemExit(f"The tests do not pass without any change: {' '.join(tests)}.")
        return max(_LEAST_SECONDS, _TIMES_AS_LONG * (time.monotonic() - began))

    def tried(self, file: str, change: Change, tests: Sequence[str], limit: float) -> Outcome:
        """What the tests, given so many seconds, make of a change of one file of the source."""
        path, kept = self.folder / file, (self.source / file).read_text()
        # Python tells a changed file by its size and second: what it has compiled of it must go.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(change.changed)
        try:
            code = self.run(tests, limit)
        finally:
            path.write_text(kept)
        if code is None:
            return "timeout"
        return "survived" if code == 0 else "killed"


@cache
def _ready() -> Any:
    """Processes begin as copies of one that has loaded what all tests need: that is most of their time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    return context


def _tested(source: Path, tests_root: Path, tests: tuple[str, ...]) -> None:
    """Ends this process with pytest's exit code."""
    os.setsid()
    # What the tests find, as examples that fail, is kept beside the copy and not in the work tree.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source.parent / "hypothesis")
    os.environ["PYTHONPATH"] = str(source)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(source))
    os.chdir(tests_root)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    os._exit(int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests])))


def sample(found: Iterable[Change], budget: int, seed: str) -> list[Change]:
    """At most `budget` of the changes, the same ones for the same seed, in the order of their lines."""
    every = list(found)
    chosen = every if len(every) <= budget else random.Random(seed).sample(every, budget)
    return sorted(chosen, key=lambda change: change.line)
