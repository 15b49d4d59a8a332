"""Real processes on loopback over NVIDIA FLARE, with mutual TLS: one server and five clients."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from bidro.deploy.flare_drive import session
from bidro.deploy.flare_local import _provision, network
from bidro.deploy.job import AlgorithmOne
from bidro.deploy.server import run_job
from bidro.engines.coordinator import Policy
from bidro.errors import BidroError
from bidro.guarantees.certificate import Certificate
from bidro.model_file import Model
from tests.deploy.processes import ENVIRONMENT, Driven, Paused, alive, below, wait_for_round
from tests.deploy.sites import NAMES, QUICK, carrier, job, table, write_sites


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """(folder of the sites, what they agreed on, the network)."""
    folder = tmp_path_factory.mktemp("consortium")
    agreed = write_sites(folder, table(), extra="one_sample_replies = true")
    sites = {name: folder / f"{name}.toml" for name in NAMES}
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}.items():
            patch.setenv(name, value)
        with network(folder / "network", sites, folder / "runs") as net:
            yield folder, agreed, net
            started = [p.pid for process in net.processes.values() for p in _tree(process)]
    assert alive(started) == set(), "every process that was started has been stopped"


def _tree(process):
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(process.pid), *below(process)]
    return []


@pytest.fixture(scope="module")
def expected(consortium):
    """The files of the same run in one process."""
    folder, agreed, _ = consortium
    return run_job(job(agreed, "expected", options=QUICK), carrier(folder), folder / "in-process")


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


def test_the_model_is_that_of_one_process(consortium, expected):
    _, agreed, net = consortium
    done = Driven("flare", job(agreed, "whole", options=QUICK), net.settings)
    done.start()
    done.outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(expected).x, rtol=0, atol=1e-9)
    ours, theirs = (Certificate.from_json(f["certificate.json"].decode()) for f in (done.files, expected))
    assert ours.clipped.bound == pytest.approx(theirs.clipped.bound, rel=1e-9)
    assert json.loads(done.files["audit.json"])["faults"] == []


def test_algorithm_1_is_that_of_one_process(consortium):
    folder, agreed, net = consortium
    settings = AlgorithmOne(3, rho=20.0, eta_x=0.05, eta_alpha=0.02)
    done = Driven("flare", job(agreed, "one-sample", algorithm=settings), net.settings)
    done.start()
    theirs = run_job(job(agreed, "one-sample", algorithm=settings), carrier(folder), folder / "in-process")
    done.outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(theirs).x, rtol=0, atol=1e-9)


def test_a_killed_client_is_left_out_and_the_certificate_says_so(consortium):
    """kill -9 of a site in the midst of a run, whose policy is to go on; then the site comes back."""
    folder, agreed, net = consortium
    policy = Policy(timeout=30, lost="continue", min_clients=3)
    done = Driven("flare", job(agreed, "continued", options=QUICK, policy=policy), net.settings)
    done.start()
    wait_for_round(folder / "runs", "continued", "solving: round 1")
    net.kill_client("mid")
    left = tuple(name for name in NAMES if name != "mid")
    alone = run_job(job(agreed, "left", left, options=QUICK), carrier(folder, left), folder / "in-process")
    done.outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(alone).x, rtol=0, atol=1e-9)
    certificate = Certificate.from_json(done.files["certificate.json"].decode())
    assert certificate.names == left
    assert "not of 'mid'" in certificate.mixtures
    net.restart_client("mid")


def test_after_a_crash_of_job_client_or_server_the_run_resumes_to_the_same_bytes(consortium, expected):
    """kill -9 of a client's job (a new job goes on when it is back), of the server's job, of the server."""
    folder, agreed, net = consortium

    def interrupted(name, break_it, **parts):
        done = Driven("flare", job(agreed, name, options=QUICK, **parts), net.settings)
        done.start()
        wait_for_round(folder / "runs", name, "solving: round 1")
        # One client stands still, so that the run cannot end before it is broken.
        with Paused(below(net.processes["west"])):
            break_it()
        return done.outcome()

    waited = interrupted("client-job", lambda: net.kill_client_job("south"))
    assert waited.error is None, waited.said
    assert any("left the network" in line for line in waited.said)
    bytes_of = waited.files["model.safetensors"]
    np.testing.assert_allclose(model_of(waited.files).x, model_of(expected).x, rtol=0, atol=1e-9)

    stopped = interrupted("server-job", net.kill_server_job)
    assert isinstance(stopped.error, BidroError)
    assert not (folder / "runs" / "server-job" / "result").exists()
    resumed = Driven("flare", job(agreed, "server-job", options=QUICK, resume=True), net.settings)
    resumed.start()
    resumed.outcome()
    assert resumed.error is None
    assert resumed.files["model.safetensors"] == bytes_of

    dead = interrupted("server", net.kill_server)
    assert isinstance(dead.error, BidroError)
    net.restart_server()
    again = Driven("flare", job(agreed, "server", options=QUICK, resume=True), net.settings)
    again.start()
    again.outcome()
    assert again.error is None
    assert again.files["model.safetensors"] == bytes_of
    assert again.files["certificate.json"] == waited.files["certificate.json"]


def test_who_has_no_certificate_of_the_project_is_refused(consortium, tmp_path):
    kits = consortium[2].kits
    server = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())["servers"][0]
    port = int(server["service"]["target"].split(":")[1])
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(10)
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    context = ssl.create_default_context(cafile=str(kits / "north" / "startup" / "rootCA.pem"))
    context.check_hostname = False

    def without_a_certificate():
        with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as nameless:
            nameless.sendall(b"x")
            nameless.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        without_a_certificate()
    # A kit of another project, with the same names and this server's port.
    other = _provision(tmp_path.resolve(), ["north"])
    for part in ("rootCA.pem", "client.crt", "client.key"):
        shutil.copy(other / "north" / "startup" / part, tmp_path / part)
    stranger = tmp_path / "stranger"
    shutil.copytree(kits / "north", stranger, ignore=shutil.ignore_patterns("*.log", "*-*-*-*"))
    for part in ("rootCA.pem", "client.crt", "client.key"):
        shutil.copy(tmp_path / part, stranger / "startup" / part)
    log = tmp_path / "stranger.log"
    command = [sys.executable, "-m", "nvflare.private.fed.app.client.client_train", "-m", str(stranger)]
    command += ["-s", "fed_client.json", "--set", "secure_train=true", "uid=east-2", "org=bidro"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "config_folder=config"], stdout=file, stderr=file, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while b"CERTIFICATE_VERIFY_FAILED" not in log.read_bytes():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            assert process.poll() is None or b"CERTIFICATE" in log.read_bytes(), log.read_text()[-2000:]
            time.sleep(0.2)
    finally:
        for one in _tree(process):
            one.kill()
        process.wait()
    with session(consortium[2].settings) as admin:
        names = [client.name for client in admin.get_system_info().client_info]
    assert sorted(names) == sorted(NAMES)


def test_a_network_that_is_not_there_is_said_in_one_sentence(consortium, tmp_path):
    _, agreed, net = consortium
    missing = Driven("flare", job(agreed, "none", options=QUICK), {"startup_kit": str(tmp_path)})
    missing.run()
    assert "startup kit" in str(missing.error)
    stranger = job(agreed, "stranger", (*NAMES, "nobody"), options=QUICK, policy=Policy(patience=0.1))
    absent = Driven("flare", stranger, net.settings | {"clients": [*NAMES, "nobody"]})
    absent.run()
    assert "not connected to the FLARE server: nobody" in str(absent.error)
