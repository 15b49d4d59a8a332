"""A whole Flower network on this machine, for rehearsals and tests: a SuperLink and one node per site.

It is what a consortium runs, with TLS and authenticated nodes; only the machines are missing. It needs Linux,
because processes are found in /proc.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

from bidro.deploy.flower_drive import control
from bidro.errors import BidroError

_HOST = "127.0.0.1"
_PATIENCE = 120.0  # seconds for a process to be ready; a few are usual
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; by default 1
    "NO_PROXY": _HOST,
    # Flower finds its own commands by name.
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
}


class LocalNetwork:
    """The processes of a network, and ways to break it. `network` makes one."""

    def __init__(self, folder: Path, sites: Mapping[str, Path], runs: Path) -> None:
        self._folder = folder
        self._sites = sites
        self._port = _free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.settings: dict[str, Any] = {
            "address": f"{_HOST}:{self._port}",
            "root_certificates": str(folder / "ca.pem"),
            "runs": str(runs),
        }

    def restart_server(self) -> None:
        """Start the SuperLink, on the database it had, and wait until it listens."""
        folder = self._folder
        self._start(
            "server",
            {"BIDRO_RUNS": self.settings["runs"]},
            *("flower-superlink", "--host", _HOST, "--port", str(self._port), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(folder / "ca.pem"), "--ssl-certfile", str(folder / "server.pem")),
            *("--ssl-keyfile", str(folder / "server.key"), "--database", str(folder / "server" / "state.db")),
        )
        self._wait(self._listens, ["server"])

    def restart_client(self, *names: str) -> None:
        """Start the nodes of these sites and wait until they are connected.

        Each gets a new key: with the old one, a node that was killed is refused until the SuperLink takes its
        last session for lost, which is up to a minute.
        """
        nodes = {self._start_client(name) for name in names}
        self._wait(lambda: nodes <= self._online(), [self._site(name) for name in names])

    def kill_server(self) -> None:
        """End the SuperLink and the server's job, as a power cut does."""
        self._end("server")

    def kill_server_job(self) -> None:
        """End the process that runs the server's side of the job, and nothing else."""
        _kill(self._home("server"), b"flwr-serverapp")

    def kill_client(self, name: str) -> None:
        """End a site's node and whatever it is computing, as a power cut does."""
        self._end(self._site(name))

    def close(self) -> None:
        """End all that was started."""
        for what in list(self._running):
            self._end(what)

    def _site(self, name: str) -> str:
        """What a site's folder is called; its name may be no name of a folder."""
        return f"site-{list(self._sites).index(name)}"

    def _home(self, what: str) -> Path:
        return self._folder / what / "flwr"

    def _end(self, what: str) -> None:
        _kill(self._home(what))
        self._running.pop(what).wait()

    def _start(self, what: str, environment: Mapping[str, str], *command: str) -> None:
        folder = self._folder / what
        folder.mkdir(exist_ok=True)
        with (folder / "log.txt").open("ab") as log:
            self._running[what] = subprocess.Popen(
                command,
                env={**os.environ, **_ENVIRONMENT, "FLWR_HOME": str(self._home(what)), **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _start_client(self, name: str) -> int:
        key = ec.generate_private_key(ec.SECP384R1())
        secret = self._folder / f"{self._site(name)}.key"
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with control(self.settings) as superlink:
            node = superlink.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id
        self._start(
            self._site(name),
            {"BIDRO_SITE": str(self._sites[name].resolve())},
            *(sys.executable, "-m", "bidro.deploy.flower_node", "--superlink", self.settings["address"]),
            *("--auth-supernode-private-key", str(secret)),
            *("--root-certificates", self.settings["root_certificates"]),
        )
        return node

    def _wait(self, ready: Callable[[], bool], processes: list[str]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not ready():
            for what in processes:
                if self._running[what].poll() is not None or time.monotonic() > deadline:
                    raise BidroError(f"{what} did not start: {self._folder / what / 'log.txt'} says why.")
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((_HOST, self._port)) == 0

    def _online(self) -> set[int]:
        with control(self.settings) as superlink:
            nodes = superlink.ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id for node in nodes if node.status == "online"}


@contextmanager
def network(folder: Path, sites: Mapping[str, Path], runs: Path) -> Iterator[LocalNetwork]:
    """A network on this machine, with one client per name in `sites`, each with its site.toml.

    Keys, certificates, databases and logs are in `folder`. Everything that was started is ended on leaving.
    """
    folder, runs = folder.resolve(), runs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    _certificates(folder)
    local = LocalNetwork(folder, sites, runs)
    try:
        local.restart_server()
        local.restart_client(*sites)
        yield local
    finally:
        local.close()


def _certificates(folder: Path) -> None:
    """An authority, and the SuperLink's certificate signed by it: ca.pem, server.pem and server.key."""
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bidro rehearsal")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _HOST)])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        certificate = (
            x509.CertificateBuilder(authority, subject, public, x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(extension, critical=True)
            .sign(authority_key, hashes.SHA384())
        )
        return certificate.public_bytes(Encoding.PEM)

    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    is_here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))])
    (folder / "ca.pem").write_bytes(signed(authority, authority_key.public_key(), is_authority))
    (folder / "server.pem").write_bytes(signed(server, key.public_key(), is_here))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(secret)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _processes(home: Path, command: bytes = b"") -> list[int]:
    """What was started with this FLWR_HOME, directly or not: Flower starts processes that outlive it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"FLWR_HOME={home}\0".encode() in (process / "environ").read_bytes()
            if ours and command in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def _kill(home: Path, command: bytes = b"") -> None:
    while found := _processes(home, command):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
