"""Startup kits: what they allow, whose keys are where, and that certificates can be renewed."""

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from bidro.cli import main
from bidro.core.errors import BidroError
from bidro.deploy.transport.flare import kit as flare_kit
from bidro.deploy.transport.flare.local import FlareNetwork, provisioned
from bidro.deploy.transport.local import free_port
from tests.deploy.sites import PAIR, SHORT, job, table, write_sites
from tests.deploy.stealing import ended, rows_that_left, stealing_job
from tests.testbed.processes import Driven


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Of the same project, provisioned twice."""
    folder = tmp_path_factory.mktemp("kits")
    return [provisioned(folder, ["west"], 8002) for _ in range(2)]


def certificate(kit, name="client.crt"):
    return x509.load_pem_x509_certificate((kit / "startup" / name).read_bytes())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_to_provision_again_renews_every_certificate(kits):
    first, second = (certificate(kit / "west") for kit in kits)
    root = certificate(kits[0] / "west", "rootCA.pem")
    assert certificate(kits[1] / "west", "rootCA.pem") == root
    assert first.public_key() != second.public_key()
    for one in (first, second):
        one.verify_directly_issued_by(root)
        left = one.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=358) < left < timedelta(days=361)
    assert root.not_valid_after_utc - datetime.now(UTC) > timedelta(days=3600)


def test_the_state_holds_the_authoritys_key_and_no_participants(kits):
    state = json.loads((kits[0].parent / "state" / "cert.json").read_text())
    assert set(state) == {"root_cert", "root_pri_key"}
    assert mode(kits[0].parent) == 0o700
    assert mode(kits[0].parent / "state" / "cert.json") == 0o600
    assert mode(kits[0] / "west" / "startup" / "client.key") == 0o600


def sealed(monkeypatch, *arguments):
    """As its operator seals a kit; SystemExit with what is said where it fails."""
    monkeypatch.setattr(sys, "argv", ["bidro", "site", "seal", *map(str, arguments)])
    err = io.StringIO()
    with pytest.raises(SystemExit) as end, redirect_stderr(err):
        main()
    if end.value.code:
        raise SystemExit(err.getvalue())


def test_a_site_seals_the_kit_that_it_has(kits, tmp_path, monkeypatch, capsys):
    """Its own files come before those that the kit came with, whatever these allow."""
    kit = tmp_path / "kit"
    shutil.copytree(kits[0] / "west", kit)
    local = kit / "local"
    open_policy = {"format_version": "1.0", "permissions": {"lead": "any"}}
    (local / "authorization.json.default").write_text(json.dumps(open_policy))
    resources = json.loads((local / "resources.json.default").read_text())
    (local / "resources.json.default").write_text(json.dumps({**resources, "class_allow_list": ["*"]}))
    sealed(monkeypatch, kit)
    roles = json.loads((local / "authorization.json").read_text())["permissions"]
    assert {rights["byoc"] for rights in roles.values()} == {"none"}
    found = json.loads((local / "resources.json").read_text())
    assert found["class_allow_list"] == list(flare_kit._CLASSES)
    assert found["allow_log_streaming"] is False
    assert mode(kit) == 0o700
    assert f"valid until {certificate(kit).not_valid_after_utc:%Y-%m-%d}, 35" in capsys.readouterr().out


@pytest.mark.parametrize(("days", "ago"), [(41, 41), (0.5, 0)])
def test_a_kit_that_has_expired_says_since_when_and_fails(days, ago, kits, tmp_path, monkeypatch, capsys):
    kit = tmp_path / "kit"
    shutil.copytree(kits[0] / "west", kit)
    end = datetime.now(UTC) - timedelta(days=days, minutes=1)
    monkeypatch.setattr(flare_kit, "valid_until", lambda _: end)
    with pytest.raises(SystemExit, match=f"expired on {end:%Y-%m-%d}, {ago} days ago: .* a new kit"):
        sealed(monkeypatch, kit)
    assert capsys.readouterr().out == ""


def test_a_servers_kit_needs_its_storage(kits, tmp_path, monkeypatch):
    kit = tmp_path / "kit"
    shutil.copytree(kits[0] / "localhost", kit)
    with pytest.raises(SystemExit, match="--storage is needed"):
        sealed(monkeypatch, kit)
    sealed(monkeypatch, kit, "--storage", "/var/lib/bidro/flare")
    roles = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
    assert roles["project_admin"]["operate"] == "any"
    assert roles["lead"]["operate"] == roles["project_admin"]["byoc"] == "none"
    # Whatever is sealed how often, the server watches once who is connected.
    sealed(monkeypatch, kit, "--storage", "/var/lib/bidro/flare")
    parts = json.loads((kit / "local" / "resources.json").read_text())["components"]
    assert [one["id"] for one in parts].count("bidro_watch") == 1
    with pytest.raises(BidroError, match="not the folder 'local' of a startup kit"):
        flare_kit.seal(tmp_path, None)
    with pytest.raises(SystemExit, match="not the folder 'local'"):
        sealed(monkeypatch, tmp_path)
    with pytest.raises(BidroError, match="no certificate"):
        flare_kit.valid_until(tmp_path)


def nvflare(folder, *arguments):
    """FLARE's command, whose own notes go to a home in the folder."""
    command = [str(Path(sys.executable).with_name("nvflare")), *map(str, arguments)]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deploy
def test_a_network_whose_participants_made_their_own_keys(tmp_path):
    """As the docs say: the authority signs requests and sees no key; every kit is sealed where it is made."""
    agreed = write_sites(tmp_path, table())
    port = free_port()
    (tmp_path / "profile.yml").write_text(
        "name: bidro\nscheme: tcp\nconnection_security: mtls\n"
        f"server: {{host: localhost, fed_learn_port: {port}, admin_port: {port}}}\n"
    )
    nvflare(tmp_path, "cert", "init", "--profile", "profile.yml", "-o", "ca")
    root = x509.load_pem_x509_certificate((tmp_path / "ca" / "rootCA.pem").read_bytes())
    fingerprint = root.fingerprint(hashes.SHA256()).hex(":").upper()
    kits = tmp_path / "kits" / "bidro" / "prod_00"
    participants = {"localhost": "server", **dict.fromkeys(PAIR, "client"), "admin@bidro.local": "admin"}
    for name, kind in participants.items():
        role = ", role: lead" if kind == "admin" else ""
        one = f"name: bidro\nparticipants:\n  - {{name: {name}, type: {kind}, org: bidro{role}}}\n"
        (tmp_path / "one.yml").write_text(one)
        nvflare(tmp_path, "cert", "request", "-p", "one.yml", "--out", f"own-{name}")
        request, signed = tmp_path / f"own-{name}" / f"{name}.request.zip", tmp_path / f"{name}.signed.zip"
        with zipfile.ZipFile(request) as sent:
            assert not [part for part in sent.namelist() if part.endswith(".key")]
        way = ("-c", "ca", "--profile", "profile.yml", "--out", signed, "--valid-days", "360")
        nvflare(tmp_path, "cert", "approve", request, *way)
        checked = ("--request-dir", f"own-{name}", "--fingerprint", fingerprint, "-w", "kits")
        nvflare(tmp_path, "package", signed, *checked)
        if kind != "admin":
            flare_kit.seal(kits / name / "local", str(tmp_path / "storage") if kind == "server" else None)
    environments = {name: {"BIDRO_SITE": str(tmp_path / f"{name}.toml")} for name in PAIR}
    environments["server"] = {"BIDRO_RUNS": str(tmp_path / "runs")}
    net = FlareNetwork(kits, environments)
    try:
        net.start(list(environments))
        done = Driven("flare", job(agreed, "own-keys", PAIR, options=SHORT), net.settings).outcome()
        assert done.error is None
        refused, text = ended(
            net, stealing_job(tmp_path / "steal", True, "steal.Asker", "steal.Giver"), tmp_path / "scratch"
        )
        assert "BYOC not permitted" in json.dumps(refused)
        assert rows_that_left(tmp_path, text) == 0
    finally:
        net.close()
