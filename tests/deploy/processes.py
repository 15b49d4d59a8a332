"""Runs on real networks of processes on this machine, and ways to disturb them in the middle."""

import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from bidro.deploy.rehearsal import driven

# Many processes on two cores: one thread each.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Driven(threading.Thread):
    """A run in the background: its files, or what it raised."""

    def __init__(self, engine, job, settings):
        super().__init__(daemon=True)
        self.engine, self.job, self.how = engine, job, settings
        self.files, self.error, self.said = None, None, []

    def run(self):
        try:
            self.files = driven(self.job, self.engine, self.how, self.said.append)
        except Exception as error:
            self.error = error

    def outcome(self, timeout=240):
        self.join(timeout)
        assert not self.is_alive(), f"the run did not end: {self.said}"
        return self


def wait_for_round(runs: Path, run: str, line: str, timeout=120):
    """Until the run has said a line that begins so."""
    path, deadline = runs / run / "progress.txt", time.monotonic() + timeout
    while time.monotonic() < deadline:
        if path.exists() and any(said.startswith(line) for said in path.read_text().splitlines()):
            return
        time.sleep(0.01)
    raise AssertionError(f"run '{run}' never said '{line}'")


class Paused:
    """Processes that stand still in the block, so that a round cannot end."""

    def __init__(self, processes):
        self.processes = processes

    def __enter__(self):
        for process in self.processes:
            process.suspend()

    def __exit__(self, *_):
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def below(process: subprocess.Popen) -> list[psutil.Process]:
    """The processes that this one started."""
    return psutil.Process(process.pid).children(recursive=True)


def alive(pids) -> set[int]:
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found
