"""A neural network over real processes on loopback, FLARE and Flower: the weights of one process, whatever is
killed. All of it is in `make test-deploy`; test_networks.py has the same over bytes in one process."""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bidro.certify.certificate import Certificate
from bidro.deploy.transport.flare import local as flare_local
from bidro.deploy.transport.flower import local as flower_local
from bidro.federated.engines.coordinator import Policy
from tests.deploy.networks import in_one_process, network, network_sites, weights
from tests.deploy.sites import PAIR, job, table
from tests.testbed.breaking import Breakable
from tests.testbed.processes import ENVIRONMENT, Driven, wait_for_line

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
ENGINES = {"flare": flare_local, "flower": flower_local}
ROUNDS = 6


@contextmanager
def trained_over(name, folder):
    """(folder, what sites agreed on, their network, the weights of one process)."""
    agreed = network_sites(folder, network(ROUNDS))
    (folder / "runs").mkdir()
    sites = {site: folder / f"{site}.toml" for site in PAIR}
    with pytest.MonkeyPatch.context() as patch:
        # The factory is installed at every site: here it is among the tests.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        for variable, value in {**ENVIRONMENT, "PYTHONPATH": path}.items():
            patch.setenv(variable, value)
        with ENGINES[name].network(folder / "network", sites, folder / "runs") as net:
            yield folder, agreed, Breakable(net), in_one_process(agreed, table())


@pytest.fixture(scope="module")
def made(request, tmp_path_factory):
    with trained_over(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield request.param, *found


def query(agreed, run, **how):
    parts = {"scores": agreed.scores, "neural_network": agreed.neural_network}
    return job(agreed, run, PAIR, policy=Policy(timeout=60.0, patience=300.0), **parts, **how)


def require_same(done, expected):
    assert done.error is None, (done.error, done.said)
    np.testing.assert_allclose(weights(done.files), expected, rtol=0, atol=1e-6)
    assert Certificate.from_json(done.files["certificate.json"].decode()).names == PAIR
    assert "model.onnx" in done.files


@pytest.mark.parametrize("made", ENGINES, indirect=True)
def test_the_network_is_that_of_one_process(made):
    name, _, agreed, net, expected = made
    done = Driven(name, query(agreed, "whole"), net.settings).outcome(400)
    require_same(done, expected)
    assert any(line.startswith("FedAvg: round ") for line in done.said), done.said


@pytest.mark.parametrize("made", ENGINES, indirect=True)
@pytest.mark.parametrize("what", ["site", "server's job"])
def test_after_kill_9_it_goes_on_to_the_same_weights(what, made):
    name, folder, agreed, net, expected = made
    run = what.replace("'", "").replace(" ", "-")
    done = Driven(name, query(agreed, run), net.settings)
    done.start()
    wait_for_line(folder / "runs", run, "FedAvg: round 2 of 6")
    if what == "site":
        net.kill_client("west")
        net.restart_client("west")
    else:
        net.kill_server_job()
    require_same(done.outcome(500), expected)


@pytest.mark.parametrize("made", ENGINES, indirect=True)
def test_resumed_after_the_server_was_killed_it_has_the_same_weights(made):
    """The lead gives up at once, and goes on later by --resume."""
    name, folder, agreed, net, expected = made
    first = query(agreed, "resumed")
    impatient = Driven(name, first, net.settings)
    impatient.start()
    wait_for_line(folder / "runs", "resumed", "FedAvg: round 2 of 6")
    net.kill_server()
    net.restart_server()
    again = Driven(name, query(agreed, "resumed", resume=True), net.settings).outcome(500)
    require_same(again, expected)
    impatient.outcome(500)
