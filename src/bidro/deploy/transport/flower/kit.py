"""Keys and certificates of a Flower network, what runs its server and its sites, and the proxy before it.
All APIs of a SuperLink share one port, and its control API asks for no credentials. So it listens on this
machine alone, and a proxy passes nothing but the sites' part of it.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bidro.core.files import write_private
from bidro.deploy.consortium.kits import SERVER, Provisioned

LOOPBACK, PORT = "127.0.0.1", 8000  # where the SuperLink listens, behind the proxy
AUTHORITY, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
SITE_KEY = "site.key"
_AUTHORITY_KEY = "ca.key"
_AUTHORITY_DAYS, _DAYS = 3650, 360
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; by default 1
}


def certificates(folder: Path, hosts: Sequence[str], authority: Path | None = None) -> None:
    """ca.pem, server.pem and server.key in `folder`: a certificate for the server by these names and
    addresses, signed by the authority in the folder `authority`, which is made there where there is none;
    without such a folder its key is forgotten."""
    now = datetime.now(UTC)
    root_key, root = _authority(authority, now)
    key = ec.generate_private_key(ec.SECP384R1())
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    certificate = (
        x509.CertificateBuilder(root.subject, _named(hosts[0]), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(root_key, hashes.SHA384())
    )
    (folder / AUTHORITY).write_bytes(root.public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    write_private(folder / KEY, _pem(key))


def _authority(folder: Path | None, now: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    if folder is not None and (folder / _AUTHORITY_KEY).exists():
        known = load_pem_private_key((folder / _AUTHORITY_KEY).read_bytes(), None)
        assert isinstance(known, ec.EllipticCurvePrivateKey)
        return known, x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    key, name = ec.generate_private_key(ec.SECP384R1()), _named("bidro consortium")
    root = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA384())
    )
    if folder is not None:
        folder.mkdir(exist_ok=True, mode=0o700)
        (folder / AUTHORITY).write_bytes(root.public_bytes(Encoding.PEM))
        write_private(folder / _AUTHORITY_KEY, _pem(key))
    return key, root


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def site_key(path: Path) -> bytes:
    """Write a site's new key, and return its public half as the SuperLink registers it."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def provisioned(authority: Path, scratch: Path, host: str, port: int, sites: Sequence[str]) -> Provisioned:
    """Kits for the server and the sites; the lead works on the server's machine, and has none."""
    kits = {name: scratch / name for name in (SERVER, *sites)}
    for kit in kits.values():
        kit.mkdir()
    certificates(kits[SERVER], [host, "localhost", LOOPBACK], authority)
    for name in sites:
        (kits[SERVER] / f"{name}.pub").write_bytes(site_key(kits[name] / SITE_KEY))
        (kits[name] / AUTHORITY).write_bytes((kits[SERVER] / AUTHORITY).read_bytes())
    lead = f'[flower]\naddress = "{LOOPBACK}:{PORT}"\nroot_certificates = "kit/{AUTHORITY}"\nruns = "runs"\n'
    return Provisioned(kits, lead)


def site_command(kit: Path, server: str) -> list[str]:
    """What runs a site's node; `server` is host:port."""
    ways = ["--superlink", server, "--root-certificates", str(kit / AUTHORITY)]
    module = "bidro.deploy.transport.flower.node"
    return [sys.executable, "-m", module, *ways, "--auth-supernode-private-key", str(kit / SITE_KEY)]


def server_command(kit: Path, database: Path, port: int = PORT) -> list[str]:
    """What runs a SuperLink, on this machine alone."""
    command = ["flower-superlink", "--host", LOOPBACK, "--port", str(port), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(kit / AUTHORITY), "--ssl-certfile", str(kit / CERTIFICATE)]
    return [*command, "--ssl-keyfile", str(kit / KEY), "--database", str(database)]


def registered(kit: Path, settings: Mapping[str, str]) -> list[str]:
    """Register the sites of a server's kit with the SuperLink, those that it does not know by this key; their
    names. Raises BidroError as long as the SuperLink cannot be reached."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

    from bidro.deploy.transport.flower.drive import control

    fresh = []
    with control(settings) as superlink:
        known = {node.public_key for node in superlink.ListNodes(ListNodesRequest()).nodes_info}
        for path in sorted(kit.glob("*.pub")):
            public = path.read_bytes()
            if public not in known:
                superlink.RegisterNode(RegisterNodeRequest(public_key=public, name=path.stem))
                fresh.append(path.stem)
    return fresh


def proxy(host: str, port: int, kit: Path) -> str:
    """What nginx is told: pass on the sites' part of the SuperLink, and nothing else."""
    return f"""\
server {{
    listen {port} ssl;
    server_name {host};
    ssl_certificate     {kit / CERTIFICATE};
    ssl_certificate_key {kit / KEY};
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 100m;

    location /v1/fleet/ {{
        proxy_pass https://{LOOPBACK}:{PORT};
        proxy_ssl_trusted_certificate {kit / AUTHORITY};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 75s;
    }}
    location / {{ return 403; }}
}}
"""
