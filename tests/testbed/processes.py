"""Runs on real networks of processes on this machine, and ways to disturb them in the middle."""

import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from bidro.deploy.server.serve import run_job
from bidro.deploy.transport.drive import submit_and_wait
from tests.deploy.sites import NAMES, SHORT, SINGLE, carrier, job, table, write_sites
from tests.testbed.breaking import Breakable

# Many processes on two cores: one thread each.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def consortium_of(engine, folder: Path, names=NAMES):
    """(folder of the sites, what they agreed on, the network of the named sites, the files of a run in one
    process).

    That run comes first, and leaves compiled programs where the clients' processes find them.
    """
    # Runs here differ in what they hold out; so many rows have enough of each level on both sides.
    whole = table(sizes=(200, 220, 200, 220, 220))
    agreed = write_sites(folder, whole, extra=SINGLE)
    sites = {name: folder / f"{name}.toml" for name in names}
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        one = run_job(job(agreed, "one", names, options=SHORT), carrier(folder, names), folder / "in-process")
        with engine.network(folder / "network", sites, folder / "runs") as net:
            yield folder, agreed, Breakable(net), one


class Driven(threading.Thread):
    """A run in the background: its files, or what it raised."""

    def __init__(self, engine, job, settings):
        super().__init__(daemon=True)
        self.engine, self.job, self.how = engine, job, settings
        self.files, self.error, self.said = None, None, []

    def run(self):
        try:
            self.files = submit_and_wait(self.job, self.engine, self.how, self.said.append)
        except Exception as error:
            self.error = error

    def outcome(self, timeout=240):
        """Itself, when it is done; it is started here if it was not."""
        if not self.ident:
            self.start()
        self.join(timeout)
        assert not self.is_alive(), f"the run did not end: {self.said}"
        return self


def wait_for_line(runs: Path, run: str, line: str, times=1, timeout=120):
    """Until the run has said a line that begins so, so many times; it says it again when it is resumed."""
    path, deadline = runs / run / "progress.txt", time.monotonic() + timeout
    while time.monotonic() < deadline:
        if path.exists() and sum(s.startswith(line) for s in path.read_text().splitlines()) >= times:
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
