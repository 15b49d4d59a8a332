"""The processes of a network on this machine, for rehearsals and tests; engines say what these are."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

HOST = "127.0.0.1"
# In the environment of a process, and of whatever it starts: some of that outlives it.
_MARK = "BIDRO_PROCESS"
_KILLED = 10.0  # seconds for what was killed to be gone


class LocalProcesses:
    """A server and a process for every site, by name: "server", and the sites'."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}  # those that should run

    def launch(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process under a name, where its log is."""
        log.parent.mkdir(exist_ok=True)
        marked = {_MARK: self._mark(name)}
        with log.open("ab") as file:
            self.processes[name] = subprocess.Popen(
                command,
                env={**os.environ, **environment, **marked},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return self.processes[name]

    def running(self, name: str) -> list[psutil.Process]:
        """What was launched under a name, directly or not, and runs."""
        return with_variable(_MARK, self._mark(name))

    def end(self, name: str) -> None:
        """Kill all of it, as a power cut does."""
        while left := self.running(name):
            kill(left)
        self.processes.pop(name).wait()

    def close(self, grace: float = 0.0) -> None:
        """End everything; with a grace of so many seconds it is asked to stop first."""
        if grace:
            every = [process for name in self.processes for process in self.running(name)]
            for process in every:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            psutil.wait_procs(every, grace)
        for name in list(self.processes):
            self.end(name)

    def _mark(self, name: str) -> str:
        return f"{self.folder} {name}"


def with_variable(name: str, value: str) -> list[psutil.Process]:
    """The processes that run with this in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill these, and wait until they are gone."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(killed, _KILLED)


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port: int = free.getsockname()[1]
        return port
