"""A whole Flower network on this machine, for rehearsals and tests: a SuperLink and one node per site.

It is what a consortium runs, with TLS and authenticated nodes; only the machines are missing.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

from bidro.core.errors import BidroError
from bidro.deploy.transport.flower.drive import control
from bidro.deploy.transport.flower.kit import ENVIRONMENT as _ENVIRONMENT
from bidro.deploy.transport.flower.kit import certificates, server_command, site_key
from bidro.deploy.transport.local import HOST, LocalProcesses, free_port

_NODE = (sys.executable, "-m", "bidro.deploy.transport.flower.node")
_PATIENCE = 120.0  # seconds for a process to be ready; a few are usual
ENVIRONMENT = {
    **_ENVIRONMENT,
    "NO_PROXY": HOST,
    # Flower finds its own commands by name.
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
}


class FlowerNetwork(LocalProcesses):
    """Keys, certificates, databases and logs are in `folder`; sites have their site.toml by name."""

    def __init__(self, folder: Path, sites: Mapping[str, Path], runs: Path) -> None:
        super().__init__(folder)
        self._sites = sites
        self._port = free_port()
        self.settings: dict[str, Any] = {
            "address": f"{HOST}:{self._port}",
            "root_certificates": str(folder / "ca.pem"),
            "runs": str(runs),
        }

    def start(self, names: Sequence[str]) -> None:
        """Start these processes, the server first, on the database it had, and wait until they are ready."""
        if "server" in names:
            self._start_server()
        sites = [name for name in names if name != "server"]
        nodes = {self.start_node(name, _NODE) for name in sites}
        self.wait(lambda: nodes <= self._online(), sites)

    def _start_server(self) -> None:
        folder = self.folder
        command = server_command(folder, folder / "server" / "state.db", self._port)
        self._launch("server", command, {"BIDRO_RUNS": self.settings["runs"]})
        self.wait(self._listens, ["server"])

    def start_node(self, name: str, command: Sequence[str]) -> int:
        """Register a node under a name, start it by this command, with what tells it its key and the
        SuperLink, and return its id.

        Each gets a new key: with the old one, a node that was killed is refused until the SuperLink takes its
        last session for lost, which is up to a minute.
        """
        secret = self.folder / f"{self._called(name)}.key"
        public = site_key(secret)
        with control(self.settings) as superlink:
            node: int = superlink.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id
        way = ["--superlink", self.settings["address"], "--auth-supernode-private-key", str(secret)]
        way += ["--root-certificates", self.settings["root_certificates"]]
        site = {"BIDRO_SITE": str(self._sites[name].resolve())} if name in self._sites else {}
        self._launch(name, [*command, *way], site)
        return node

    def _launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        folder = self.folder / self._called(name)
        home = {"FLWR_HOME": str(folder / "flwr")}
        self.launch(name, command, {**ENVIRONMENT, **home, **environment}, folder / "log.txt")

    def _called(self, name: str) -> str:
        """What the folder of a process is called; a site's name may be no name of a folder."""
        return f"site-{list(self._sites).index(name)}" if name in self._sites else name

    def wait(self, ready: Callable[[], bool], names: Sequence[str]) -> None:
        """Until these processes are ready. Raises BidroError where one ends before, or is not in time."""
        deadline = time.monotonic() + _PATIENCE
        while not ready():
            for name in names:
                if self.processes[name].poll() is not None or time.monotonic() > deadline:
                    log = self.folder / self._called(name) / "log.txt"
                    raise BidroError(f"{self._called(name)} did not start: {log} says why.")
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex((HOST, self._port)) == 0

    def _online(self) -> set[int]:
        with control(self.settings) as superlink:
            nodes = superlink.ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id for node in nodes if node.status == "online"}


@contextmanager
def network(folder: Path, sites: Mapping[str, Path], runs: Path) -> Iterator[FlowerNetwork]:
    """Run a SuperLink and a node for each site (name and its site.toml) until the end of the block."""
    folder, runs = folder.resolve(), runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    certificates(folder, [HOST])
    net = FlowerNetwork(folder, sites, runs)
    try:
        net.start(["server", *sites])
        yield net
    finally:
        net.close()
