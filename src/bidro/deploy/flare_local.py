"""A whole FLARE network on this machine, with mutual TLS, for rehearsals and tests."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from bidro.deploy.flare_drive import session
from bidro.errors import BidroError

_ADMIN = "admin@bidro.local"
_GRACE = 2.0  # seconds between asking a process to stop and killing it
_START = 60.0  # seconds for the server and all sites to come up


@dataclass
class LocalNetwork:
    """The processes of the network; tests kill and restart them by name, as crashes and reboots would."""

    kits: Path  # a folder for each participant
    environments: Mapping[str, Mapping[str, str]]  # by site, and for "server"
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # those that should run

    @property
    def settings(self) -> dict[str, Any]:
        clients = [name for name in self.environments if name != "server"]
        return {"startup_kit": str(self.kits / _ADMIN), "clients": clients}

    def kill_client(self, name: str) -> None:
        _end(_tree(self.processes.pop(name)), 0.0)

    def kill_client_job(self, name: str) -> None:
        _end(_tree(self.processes[name])[1:], 0.0)

    def kill_server(self) -> None:
        self.kill_client("server")

    def kill_server_job(self) -> None:
        self.kill_client_job("server")

    def restart_client(self, name: str) -> None:
        self.start([name])

    def restart_server(self) -> None:
        self.start(["server"])

    def start(self, names: Sequence[str]) -> None:
        """Start these processes and wait for the sites among them, for all sites if the server is one."""
        began = time.time()
        for name in names:
            role = "server" if name == "server" else "client"
            command = [sys.executable, "-m", f"nvflare.private.fed.app.{role}.{role}_train"]
            command += ["-m", str(self.kits / _kit(name)), "-s", f"fed_{role}.json"]
            command += ["--set", "secure_train=true", "org=bidro", "config_folder=config"]
            if role == "client":
                command += [f"uid={name}", "heart_beat_interval=2"]
            with open(self.kits / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environments[name]},
                    start_new_session=True,
                )
        expected = self.processes if "server" in names else names
        self._await(set(expected) - {"server"}, began)

    def _await(self, sites: set[str], since: float) -> None:
        deadline = since + _START
        while time.time() < deadline and all(process.poll() is None for process in self.processes.values()):
            with suppress(Exception), session(self.settings) as admin:  # as long as the server is not ready
                while time.time() < deadline:
                    info = admin.get_system_info().client_info
                    if sites <= {site.name for site in info if site.last_connect_time > since}:
                        return
                    time.sleep(0.2)
        raise BidroError(f"the local FLARE network did not come up; see the logs in {self.kits}")


@contextmanager
def network(folder: Path, sites: Mapping[str, Path], runs: Path) -> Iterator[LocalNetwork]:
    """Run a server and a process for each site (name and its site.toml) until the end of the block."""
    for name in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name in ("server", "localhost"):
            raise BidroError(
                f"On FLARE a client cannot be called '{name}': letters, digits, dashes and underscores only, "
                "and not 'server' or 'localhost'; rename it, or use --engine flower."
            )
    environments = {name: {"BIDRO_SITE": str(path.resolve())} for name, path in sites.items()}
    environments["server"] = {"BIDRO_RUNS": str(runs.resolve()), "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "3"}
    net = LocalNetwork(provisioned(folder.resolve(), list(sites), _free_port()), environments)
    try:
        net.start(list(environments))
        yield net
    finally:
        _end([process for started in net.processes.values() for process in _tree(started)], _GRACE)


def _kit(name: str) -> str:
    return "localhost" if name == "server" else name


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def provisioned(
    folder: Path,
    sites: Sequence[str],
    port: int,
    admins: Mapping[str, str] = MappingProxyType({_ADMIN: "lead"}),
) -> Path:
    """The folder of the startup kits, made as for a real network; admins are roles by name."""
    server = {
        "name": "localhost",
        "type": "server",
        "org": "bidro",
        "fed_learn_port": port,
        "admin_port": port,
    }
    clients = [{"name": name, "type": "client", "org": "bidro"} for name in sites]
    people = [{"name": name, "type": "admin", "org": "bidro", "role": role} for name, role in admins.items()]
    builders = [
        {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
        {
            "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
            "args": {"config_folder": "config", "scheme": "tcp"},
        },
        {"path": "bidro.deploy.flare_kit.BidroBuilder", "args": {"storage": str(folder / "storage")}},
        {"path": "bidro.deploy.flare_kit.BidroCertBuilder"},
        {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
    ]
    project = {
        "api_version": 4,
        "name": "bidro",
        "participants": [server, *clients, *people],
        "builders": builders,
    }
    provisioner = Provisioner(str(folder), prepare_builders(project))
    with redirect_stdout(StringIO()):
        return Path(provisioner.provision(prepare_project(project))[CtxKey.CURRENT_PROD_DIR])


def _tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The process, then the jobs it started, that still run."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _end(processes: Sequence[psutil.Process], grace: float) -> None:
    """Ask them to stop, and kill those that have not after `grace` seconds."""
    if grace:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, processes = psutil.wait_procs(processes, grace)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 10.0)
