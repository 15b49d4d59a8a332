"""Startup kits: what they allow, whose keys are where, and that certificates can be renewed."""

import json
import shutil
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from bidro.deploy import flare_kit
from bidro.deploy.flare_local import provisioned
from bidro.errors import BidroError


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
    assert mode(kits[0] / "west" / "startup" / "client.key") == 0o600


def sealed(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["flare_kit", *map(str, arguments)])
    flare_kit.main()


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


def test_a_servers_kit_needs_its_storage(kits, tmp_path, monkeypatch):
    kit = tmp_path / "kit"
    shutil.copytree(kits[0] / "localhost", kit)
    with pytest.raises(SystemExit, match="--storage is needed"):
        sealed(monkeypatch, kit)
    sealed(monkeypatch, kit, "--storage", "/var/lib/bidro/flare")
    roles = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
    assert roles["project_admin"]["operate"] == "any"
    assert roles["lead"]["operate"] == roles["project_admin"]["byoc"] == "none"
    with pytest.raises(BidroError, match="not the folder 'local' of a startup kit"):
        flare_kit.seal(tmp_path, None)
    with pytest.raises(SystemExit, match="not the folder 'local'"):
        sealed(monkeypatch, tmp_path)
    with pytest.raises(BidroError, match="no certificate"):
        flare_kit.valid_until(tmp_path)
