"""Real processes on loopback over NVIDIA FLARE, with mutual TLS.

One server and two clients in `make test`; `make test-deploy` has five clients and processes that are killed.
"""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import psutil
import pytest

from bidro.certify.certificate import Certificate
from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.transport.flare import drive as flare_drive
from bidro.deploy.transport.flare import kit as flare_kit
from bidro.deploy.transport.flare import local as flare_local
from bidro.deploy.transport.flare.drive import session
from bidro.deploy.transport.flare.local import provisioned
from bidro.federated.engines.coordinator import Policy
from bidro.fit.training import AlgorithmOne
from bidro.model.model_file import Model
from tests.deploy.sites import NAMES, PAIR, QUICK, SHORT, carrier, forget_statements, job
from tests.deploy.stealing import ended, rows_that_left, stealing_job, targets_of
from tests.testbed.processes import Driven, Paused, alive, below, consortium_of, wait_for_line


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
    with consortium_of(flare_local, folder, names) as made:
        yield made
        started = [p.pid for process in made[2].processes.values() for p in _tree(process)]
    assert alive(started) == set(), "every process that was started has been stopped"


def _tree(process):
    with suppress(psutil.NoSuchProcess):
        return [psutil.Process(process.pid), *below(process)]
    return []


def model_of(files):
    return Model.from_bytes(files["model.safetensors"], "model")


def test_the_model_is_that_of_one_process(pair, monkeypatch):
    _, agreed, net, one = pair
    # A run as short as this could be over between two looks of the lead.
    monkeypatch.setattr(flare_drive, "POLL", 0.02)
    done = Driven("flare", job(agreed, "whole", PAIR, options=SHORT), net.settings).outcome()
    check_whole(done, one)
    assert any(line.startswith(("preparing", "solving", "assessing")) for line in done.said), done.said


@pytest.mark.deploy
def test_a_run_goes_on_by_itself_after_a_sites_job_died_at_the_start_and_the_servers_job_in_the_midst(pair):
    """One of the faults of `test_faults` in every run of the tests; nobody resumes it."""
    folder, agreed, net, one = pair
    run = Driven("flare", job(agreed, "dies", PAIR, options=SHORT), net.settings)
    run.start()
    while not below(net.processes["west"]):
        run.join(0.05)
        assert run.is_alive(), run.error
    net.kill_client_job("west")
    wait_for_line(folder / "runs", "dies", "preparing")
    net.kill_server_job()
    check_whole(run.outcome(), one)
    assert sum("goes on in another job" in line for line in run.said) == 2


@pytest.mark.deploy
def test_algorithm_1_is_that_of_one_process(consortium):
    folder, agreed, net, _ = consortium
    settings = AlgorithmOne(3, rho=20.0, eta_x=0.05, eta_alpha=0.02)
    parts = {"algorithm": settings, "options": {"hold_out": 0.0}}
    theirs = run_job(job(agreed, "one-sample", **parts), carrier(folder), folder / "in-process")
    done = Driven("flare", job(agreed, "one-sample", **parts), net.settings).outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(theirs).x, rtol=0, atol=1e-9)


@pytest.mark.deploy
def test_a_killed_client_is_left_out_and_the_certificate_says_so(consortium):
    """kill -9 of a site in the midst of a run whose policy is to go on, to a gap of 1e-6."""
    folder, agreed, net, _ = consortium
    left = tuple(name for name in NAMES if name != "mid")
    alone = run_job(job(agreed, "left", left, options=QUICK), carrier(folder, left), folder / "in-process")
    policy = Policy(timeout=30, on_client_loss="continue", min_clients=3)
    done = Driven("flare", job(agreed, "continued", options=QUICK, policy=policy), net.settings)
    done.start()
    wait_for_line(folder / "runs", "continued", "solving: round 1")
    net.kill_client("mid")
    done.outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(alone).x, rtol=0, atol=1e-9)
    ours, theirs = (Certificate.from_json(f["certificate.json"].decode()) for f in (done.files, alone))
    assert ours.names == left
    assert "not of 'mid'" in ours.mixtures
    assert ours.clipped.bound == pytest.approx(theirs.clipped.bound, rel=1e-9)
    assert model_of(done.files).settings["gap"] <= 1e-6
    net.restart_client("mid")


def going_on(consortium, run, resume):
    """The run in the background, begun or resumed."""
    _, agreed, net, _ = consortium
    done = Driven("flare", job(agreed, run, options=SHORT, resume=resume), net.settings)
    done.start()
    return done


def check_whole(ends, one):
    """The model of the run `one` in one process, and nobody was asked twice."""
    assert ends.error is None
    np.testing.assert_allclose(model_of(ends.files).x, model_of(one).x, rtol=0, atol=1e-9)
    audit = json.loads(ends.files["audit.json"])
    assert audit["rounds"] == json.loads(one["audit.json"])["rounds"]
    assert audit["lost"] == {}


@pytest.mark.deploy
def test_a_run_whose_server_was_killed_goes_on_to_the_model_of_one_process(consortium):
    """kill -9 of the server and its job; one client stands still, so that the run cannot end before it."""
    folder, _, net, _ = consortium
    dies = going_on(consortium, "server-dies", False)
    wait_for_line(folder / "runs", "server-dies", "solving: round 1")
    with Paused(below(net.processes["west"])):
        net.kill_server()
    assert not (folder / "runs" / "server-dies" / "result").exists()
    net.restart_server()
    check_whole(dies.outcome(), consortium[3])


@pytest.mark.deploy
def test_a_run_waits_for_a_killed_client_and_goes_on_after_its_job_was_killed(consortium):
    """kill -9 of a client's job, which the run waits for in a new job of the network; then of the server's
    job in that one. Who resumes it meanwhile gets the same model."""
    folder, _, net, _ = consortium
    runs = folder / "runs"
    waits = going_on(consortium, "jobs-die", False)
    wait_for_line(runs, "jobs-die", "solving: round 1")
    with Paused(below(net.processes["west"])):
        net.kill_client_job("south")
        wait_for_line(runs, "jobs-die", "south: connection lost")
    wait_for_line(runs, "jobs-die", "preparing", times=2)
    with Paused(below(net.processes["west"])):
        net.kill_server_job()
    again = going_on(consortium, "jobs-die", True)
    check_whole(waits.outcome(), consortium[3])
    assert any("south left the network" in line for line in waits.said)
    check_whole(again.outcome(), consortium[3])


@pytest.mark.deploy
@pytest.mark.parametrize("after", [2.0, 9.0])
def test_a_break_of_the_network_does_not_end_the_leads_command(after, pair):
    """The server stands still for longer than the lead's client waits; once while the job starts."""
    _, agreed, net, one = pair
    run = Driven("flare", job(agreed, f"break-{after:g}", PAIR, options=SHORT), net.settings)
    run.start()
    time.sleep(after)
    with Paused([psutil.Process(net.processes["server"].pid)]):
        time.sleep(20.0)
    check_whole(run.outcome(), one)
    assert any("trying again in 0.5 s" in line for line in run.said)


@pytest.mark.deploy
def test_with_default_options_the_model_is_that_of_one_process(consortium):
    folder, agreed, net, _ = consortium
    theirs = run_job(job(agreed, "default"), carrier(folder), folder / "in-process")
    done = Driven("flare", job(agreed, "default"), net.settings).outcome()
    assert done.error is None
    np.testing.assert_allclose(model_of(done.files).x, model_of(theirs).x, rtol=0, atol=1e-9)


def test_who_has_no_certificate_of_the_project_is_refused(pair, tmp_path):
    kits = pair[2].folder
    server = json.loads((kits / "localhost" / "startup" / "fed_server.json").read_text())["servers"][0]
    port = int(server["service"]["target"].split(":")[1])
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(10)
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    context = ssl.create_default_context(cafile=str(kits / "west" / "startup" / "rootCA.pem"))
    context.check_hostname = False

    def without_a_certificate():
        with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as nameless:
            nameless.sendall(b"x")
            nameless.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        without_a_certificate()
    # A kit of another project, with the same names and this server's port.
    other = provisioned(tmp_path.resolve(), ["west"], port)
    for part in ("rootCA.pem", "client.crt", "client.key"):
        shutil.copy(other / "west" / "startup" / part, tmp_path / part)
    stranger = tmp_path / "stranger"
    shutil.copytree(kits / "west", stranger, ignore=shutil.ignore_patterns("*.log", "*-*-*-*"))
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
    with session(pair[2].settings) as admin:
        names = [client.name for client in admin.get_system_info().client_info]
    assert sorted(names) == sorted(PAIR)


@pytest.mark.deploy
def test_with_kits_that_are_not_sealed_a_job_with_code_brings_the_tables(tmp_path, monkeypatch):
    """What the next tests rule out: FLARE's own policy lets the role lead bring code."""
    sealed = flare_kit.seal

    def with_flares_policy(local, storage, ending=""):
        policy = (local / "authorization.json.default").read_text()
        sealed(local, storage, ending)
        (local / "authorization.json.default").write_text(policy)

    monkeypatch.setattr(flare_kit, "seal", with_flares_policy)
    with stopped_network(tmp_path, PAIR) as (folder, _, net, _):
        job = stealing_job(tmp_path / "steal", True, "steal.Asker", "steal.Giver")
        _, text = ended(net, job, tmp_path / "scratch")
        assert rows_that_left(folder, text) == len(targets_of(folder)) == 420


def test_a_job_with_code_is_refused_and_no_row_leaves(pair, tmp_path):
    folder, _, net, _ = pair
    job = stealing_job(tmp_path / "steal", True, "steal.Asker", "steal.Giver")
    meta, text = ended(net, job, tmp_path / "scratch")
    assert "BYOC not permitted" in json.dumps(meta)
    assert meta["status"] != "FINISHED:COMPLETED"
    assert rows_that_left(folder, text) == 0


def test_every_participant_refuses_code_of_every_role(pair):
    kits = pair[2].folder
    for name in ("localhost", *PAIR):
        roles = json.loads((kits / name / "local" / "authorization.json.default").read_text())["permissions"]
        assert {"project_admin", "org_admin", "lead", "member"} == set(roles)
        for rights in roles.values():
            assert rights["byoc"] == rights["shell_commands"] == rights["server-predeployed-flwr"] == "none"
            assert name == "localhost" or rights["operate"] == "none"


@pytest.mark.deploy
def test_a_job_may_name_no_class_but_bidros(pair, tmp_path):
    """Without code of its own, but with a class of FLARE's that reads and writes files."""
    folder, _, net, _ = pair
    trainer = "nvflare.app_common.np.np_trainer.NPTrainer"
    job = stealing_job(tmp_path / "steal", False, "bidro.deploy.transport.flare.job.Controller", trainer)
    meta, text = ended(net, job, tmp_path / "scratch")
    assert meta["status"] != "FINISHED:COMPLETED"
    assert "is not in allow_list" in (net.folder / "west.log").read_text()
    assert rows_that_left(folder, text) == 0


@pytest.mark.deploy
def test_a_site_comes_back_with_a_renewed_certificate_and_not_once_it_is_shut_out(pair):
    """To provision again is to renew; the project's admin shuts a site out, also after a server's restart."""
    folder, agreed, net, one = pair
    startup = net.folder / "west" / "startup"
    target = json.loads((startup / "fed_client.json").read_text())["servers"][0]["service"]["target"]
    admins = {"operator@bidro.local": "project_admin", "admin@bidro.local": "lead"}
    again = provisioned(folder / "network", PAIR, int(target.split(":")[1]), admins)
    assert again.name == "prod_01"
    old = (startup / "client.crt").read_bytes()
    shutil.copytree(again / "west" / "startup", startup, dirs_exist_ok=True)
    assert (startup / "client.crt").read_bytes() != old
    net.kill_client("west")
    net.restart_client("west")
    check_whole(Driven("flare", job(agreed, "renewed", PAIR, options=SHORT), net.settings).outcome(), one)
    with session(net.settings) as lead, pytest.raises(Exception, match="not authorized"):
        lead.disable_client("west")
    with session({"startup_kit": str(again / "operator@bidro.local")}) as operator:
        operator.disable_client("west")
    net.kill_server()
    net.processes.pop("west").kill()
    net.restart_server()
    with pytest.raises(BidroError, match="did not come up"):
        net.restart_client("west")
    absent = job(agreed, "shut-out", PAIR, options=SHORT, policy=Policy(patience=1.0))
    assert "not connected to the FLARE server: west" in str(
        Driven("flare", absent, net.settings).outcome().error
    )
    with session({"startup_kit": str(again / "operator@bidro.local")}) as operator:
        operator.enable_client("west")
    net.kill_client("west")
    net.restart_client("west")


def test_nobody_looks_at_a_sites_files_by_commands(pair):
    with session(pair[2].settings) as admin, pytest.raises(Exception, match="not authorized"):
        admin._do_command("ls west")


def test_a_network_that_is_not_there_is_said_in_one_sentence(pair, tmp_path):
    _, agreed, net, _ = pair
    missing = Driven("flare", job(agreed, "none", PAIR, options=QUICK), {"startup_kit": str(tmp_path)})
    missing.run()
    assert "startup kit" in str(missing.error)
    stranger = job(agreed, "stranger", (*PAIR, "nobody"), options=QUICK, policy=Policy(patience=0.1))
    absent = Driven("flare", stranger, net.settings | {"clients": [*PAIR, "nobody"]})
    absent.run()
    assert "not connected to the FLARE server: nobody" in str(absent.error)
