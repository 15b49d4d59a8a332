"""Real processes on loopback over Flower, with TLS and authenticated nodes.

A message takes seconds here: one short run of two clients is in `make test`, and `make test-deploy` has five
clients, longer runs and processes that are killed.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.cli.build import build_fab_from_files

from bidro.certify.certificate import Certificate
from bidro.deploy.server.serve import run_job
from bidro.deploy.transport.flower import app as flower_app
from bidro.deploy.transport.flower import drive as flower_drive
from bidro.deploy.transport.flower import local as flower_local
from bidro.deploy.transport.flower.kit import certificates
from bidro.deploy.transport.flower.local import ENVIRONMENT
from bidro.deploy.transport.local import HOST, free_port
from bidro.federated.engines.coordinator import Policy
from bidro.fit.training import AlgorithmOne
from bidro.model.model_file import Model
from tests.deploy.sites import NAMES, PAIR, SHORT, carrier, forget_statements, job
from tests.testbed.breaking import kill_flower
from tests.testbed.processes import Driven, consortium_of, wait_for_line


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    with stopped_network(tmp_path_factory.mktemp("consortium"), NAMES) as made:
        yield made


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with stopped_network(tmp_path_factory.mktemp("pair"), PAIR) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_stated(request):
    """Sites count what they say of their rows, whatever agreement it is by, and tests share them."""
    for name in {"consortium", "pair"} & set(request.fixturenames):
        forget_statements(request.getfixturevalue(name)[0])


@contextmanager
def stopped_network(folder, names):
    with consortium_of(flower_local, folder, names) as made:
        yield made
    left = [process for name in ("server", *names) for process in made[2].running(name)]
    assert left == [], "every process has been stopped"


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


def test_the_model_is_that_of_one_process(pair):
    _, agreed, net, one = pair
    done = Driven("flower", job(agreed, "whole", PAIR, options=SHORT), net.settings).outcome(300)
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(one).x, rtol=0, atol=1e-9)
    audit = json.loads(done.files["audit.json"])
    assert audit["rounds"] == json.loads(one["audit.json"])["rounds"]
    assert audit["lost"] == {}
    # The lead sees how it goes.
    assert any(line.startswith("solving: round 1, gap") for line in done.said)


def test_sites_answer_no_run_that_brings_another_app(pair, monkeypatch):
    """Even one that differs from bidro's in its version alone, and whose parts are bidro's."""
    other, _ = build_fab_from_files({"pyproject.toml": flower_app._APP.replace(b"1.0.0", b"1.0.1")})
    digest = hashlib.sha256(other).hexdigest()
    assert digest != flower_app.bidros_app().digest
    monkeypatch.setattr(flower_drive, "bidros_app", lambda: flower_app.App(other, digest))
    policy = Policy(timeout=30.0, patience=0.1)
    done = Driven("flower", job(pair[1], "other-app", PAIR, options=SHORT, policy=policy), pair[2].settings)
    assert "the run's app is not bidro's" in str(done.outcome(300).error)


@pytest.mark.deploy
def test_the_model_is_that_of_one_process_also_without_a_killed_client(consortium):
    """kill -9 of a site after its first answer; the others go on, and the certificate names them."""
    folder, agreed, net, _ = consortium
    left = tuple(name for name in NAMES if name != "mid")
    alone = run_job(job(agreed, "left", left, options=SHORT), carrier(folder, left), folder / "in-process")
    policy = Policy(timeout=40, on_client_loss="continue", min_clients=3)
    done = Driven("flower", job(agreed, "continued", options=SHORT, policy=policy), net.settings)
    done.start()
    wait_for_line(folder / "runs", "continued", "solving: round 1")
    net.kill_client("mid")
    done.outcome(400)
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(alone).x, rtol=0, atol=1e-9)
    certificate = Certificate.from_json(done.files["certificate.json"].decode())
    assert certificate.names == left
    assert "not of 'mid'" in certificate.mixtures
    assert list(json.loads(done.files["audit.json"])["lost"]) == ["mid"]
    net.restart_client("mid")


@pytest.mark.deploy
def test_all_five_clients_give_the_model_of_one_process(consortium):
    folder, agreed, net, _ = consortium
    done = Driven("flower", job(agreed, "whole"), net.settings)
    done.start()
    theirs = run_job(job(agreed, "whole"), carrier(folder), folder / "in-process")
    done.outcome(900)
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(theirs).x, rtol=0, atol=1e-9)


@pytest.mark.deploy
def test_algorithm_1_is_that_of_one_process(consortium):
    folder, agreed, net, _ = consortium
    settings = AlgorithmOne(3, rho=20.0, eta_x=0.05, eta_alpha=0.02)
    parts = {"algorithm": settings, "options": {"hold_out": 0.0}}
    done = Driven("flower", job(agreed, "one-sample", **parts), net.settings)
    done.start()
    theirs = run_job(job(agreed, "one-sample", **parts), carrier(folder), folder / "in-process")
    done.outcome(400)
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(theirs).x, rtol=0, atol=1e-9)


@pytest.mark.deploy
@pytest.mark.parametrize("what", ["server job", "server", "client"])
def test_after_a_crash_the_run_goes_on_to_the_same_model(what, consortium):
    """The run waits for a client that comes back, and goes on in another job after the server's has died."""
    folder, agreed, net, one = consortium
    name = what.replace(" ", "-")
    policy = Policy(timeout=90)
    done = Driven("flower", job(agreed, name, options=SHORT, policy=policy), net.settings)
    done.start()
    wait_for_line(folder / "runs", name, "solving: round 1")
    if what == "client":
        net.kill_client("south")
        net.restart_client("south")
    else:
        (net.kill_server if what == "server" else net.kill_server_job)()
        if what == "server":
            net.restart_server()
    done.outcome(600)
    assert done.error is None, done.said
    np.testing.assert_allclose(model_of(done.files).x, model_of(one).x, rtol=0, atol=1e-9)


FLOWERS_NODE = ("flower-supernode", "--host", "127.0.0.1", "--port")
BIDROS_NODE = (sys.executable, "-m", "bidro.deploy.transport.flower.node")


def said_by(node, folder, address, authority, *more):
    """What a node says when it is started, and its exit code."""
    command = [*node, str(free_port())] if node is FLOWERS_NODE else list(node)
    home, log = folder / "flwr", folder / "log.txt"
    own = {"FLWR_HOME": str(home), "HOME": str(folder), "BIDRO_SITE": "site.toml"}
    try:
        # A file, not a pipe, which a process that the node leaves behind would keep open.
        with log.open("wb") as file:
            done = subprocess.run(
                [*command, "--superlink", address, "--root-certificates", str(authority), *more],
                env={**os.environ, **ENVIRONMENT, **own},
                cwd=folder,
                stdout=file,
                stderr=file,
                timeout=60,
                check=False,
            )
    finally:
        kill_flower(home)
    return done.returncode, log.read_text()


@pytest.mark.deploy
def test_who_is_not_registered_or_has_another_authority_is_refused(pair, tmp_path):
    net = pair[2]
    key = ec.generate_private_key(ec.SECP384R1())
    secret = tmp_path / "stranger.key"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    address, authority = net.settings["address"], net.settings["root_certificates"]
    with_key = ("--auth-supernode-private-key", str(secret))
    code, said = said_by(BIDROS_NODE, tmp_path, address, authority, *with_key)
    assert code != 0
    assert "2004" in said
    code, said = said_by(FLOWERS_NODE, tmp_path, address, authority)
    assert code != 0
    assert "2001" in said
    certificates(tmp_path, [HOST])
    other = tmp_path / "ca.pem"
    code, said = said_by(BIDROS_NODE, tmp_path, address, other, *with_key)
    assert code != 0
    assert "CERTIFICATE_VERIFY_FAILED" in said
    code, said = said_by(
        BIDROS_NODE, tmp_path, address, authority, "--auth-supernode-private-key", str(other)
    )
    assert code != 0
    assert "is not a private key" in said.splitlines()[-1]
    wrong = Driven("flower", job(pair[1], "wrong", PAIR), {**net.settings, "root_certificates": str(other)})
    wrong.run()
    assert "CERTIFICATE_VERIFY_FAILED" in str(wrong.error)


@pytest.mark.deploy
def test_a_plaintext_node_is_not_let_in(pair, tmp_path):
    net = pair[2]
    command = ["flower-supernode", "--insecure", "--host", "127.0.0.1", "--port", str(free_port())]
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--superlink", net.settings["address"]],
            env={**ENVIRONMENT, "FLWR_HOME": str(tmp_path / "flwr"), "HOME": str(tmp_path)},
            cwd=tmp_path,
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + 60
        while b"Connection attempt failed" not in log.read_bytes():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            assert process.poll() is None, log.read_text()[-2000:]
            time.sleep(0.2)
    finally:
        kill_flower(tmp_path / "flwr")
        process.wait()
