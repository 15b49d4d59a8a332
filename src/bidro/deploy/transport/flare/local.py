"""A whole FLARE network on this machine, with mutual TLS, for rehearsals and tests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from bidro.core.errors import BidroError
from bidro.deploy.transport.flare.drive import session
from bidro.deploy.transport.flare.kit import command, kits_of
from bidro.deploy.transport.local import LocalProcesses, free_port

_ADMIN = "admin@bidro.local"
_GRACE = 2.0  # seconds between asking a process to stop and killing it
_START = 60.0  # seconds for the server and all sites to come up


class FlareNetwork(LocalProcesses):
    """kits: a folder with one for each participant. environments: by site, and for "server"."""

    def __init__(self, kits: Path, environments: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(kits)
        self._environments = environments
        clients = [name for name in environments if name != "server"]
        self.settings = {"startup_kit": str(kits / _ADMIN), "clients": clients}

    def start(self, names: Sequence[str]) -> None:
        """Start these processes and wait for the sites among them, for all sites if the server is one."""
        began = time.time()
        for name in names:
            server = name == "server"
            ways = command(self.folder / ("localhost" if server else name), name, server)
            ways += [] if server else ["heart_beat_interval=2"]
            self.launch(name, ways, self._environments[name], self.folder / f"{name}.log")
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
        raise BidroError(f"the local FLARE network did not come up; see the logs in {self.folder}")


@contextmanager
def network(folder: Path, sites: Mapping[str, Path], runs: Path) -> Iterator[FlareNetwork]:
    """Run a server and a process for each site (name and its site.toml) until the end of the block."""
    for name in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name in ("server", "localhost"):
            raise BidroError(
                f"On FLARE a client cannot be called '{name}': letters, digits, dashes and underscores only, "
                "and not 'server' or 'localhost'; rename it, or use --engine flower."
            )
    environments = {name: {"BIDRO_SITE": str(path.resolve())} for name, path in sites.items()}
    environments["server"] = {"BIDRO_RUNS": str(runs.resolve()), "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "3"}
    net = FlareNetwork(provisioned(folder.resolve(), list(sites), free_port()), environments)
    try:
        net.start(list(environments))
        yield net
    finally:
        net.close(_GRACE)


def provisioned(
    folder: Path,
    sites: Sequence[str],
    port: int,
    admins: Mapping[str, str] = MappingProxyType({_ADMIN: "lead"}),
) -> Path:
    """The folder of the startup kits, made as for a real network; admins are roles by name."""
    return kits_of(folder, "localhost", port, sites, admins, str(folder / "storage"))
