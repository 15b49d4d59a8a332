"""A private run on a real network whose server's job or lead is killed in the middle: it goes on to the bytes
of an undisturbed one, and every release is charged once."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bidro.deploy.site.answers import ledger_of
from bidro.deploy.site.config import Site
from bidro.deploy.transport.flare import local as flare_local
from bidro.deploy.transport.flower import local as flower_local
from bidro.federated.engines.coordinator import Policy
from bidro.privacy.terms import Budget
from tests.deploy.sites import PAIR, job, private_sites
from tests.deploy.test_masked_runs import sharing
from tests.testbed.breaking import Breakable
from tests.testbed.processes import ENVIRONMENT, Driven, wait_for_line

_NETWORKS = {"flare": flare_local, "flower": flower_local}
_FILES = ("model.safetensors", "certificate.json")
_END = 500.0
TRIO = ("east", "mid", "north")


@contextmanager
def private_network(engine, names, folder):
    """(the job that is to be run, the network of these sites with a budget each); where they are more than
    two they share their noise, and what leaves is masked."""
    shared = len(names) > 2
    agreed = sharing(folder, names=names) if shared else private_sites(folder)
    sites = {name: folder / f"{name}.toml" for name in names}
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with engine.network(folder / "network", sites, folder / "runs") as net:
            policy = Policy(timeout=60.0, patience=300.0)
            yield job(agreed, "killed", names, policy=policy, privacy=agreed.privacy), Breakable(net)


def releases(folder, names):
    """(what was released and what it cost, by site), without to whom it was sent."""
    found = {}
    for name in names:
        ledger = ledger_of(Site.read(folder / f"{name}.toml"))
        found[name] = [(one.key, one.part, one.rho, one.time) for one in ledger.releases()]
    return found


def killed(name, net, what, kind, folder):
    """Kill this in the middle of the rounds of gradients; what had been released when that began. On FLARE
    the server goes on without its lead."""
    line = f"gradients with noise: round {what.agreed.plan.rounds // 2}"
    if kind == "lead":
        order = {"engine": name, "job": what.to_text(), "settings": net.settings}
        lead = subprocess.Popen([sys.executable, "-m", "tests.testbed.faults", "--lead", json.dumps(order)])
        wait_for_line(folder / "runs", what.run, line, timeout=300)
        before = releases(folder, what.clients)
        lead.kill()
        lead.wait()
        return before
    done = Driven(name, what, net.settings)
    done.start()
    wait_for_line(folder / "runs", what.run, line, timeout=300)
    before = releases(folder, what.clients)
    net.kill_server_job()
    if name == "flower":
        # Flower's node ends itself if a run ends while it fetches a message: a service starts it again.
        for site in what.clients:
            net.kill_client(site)
            net.restart_client(site)
    done.outcome(_END)
    return before


@pytest.mark.deploy
@pytest.mark.parametrize(("kind", "names"), [("server's job", PAIR), ("lead", PAIR), ("server's job", TRIO)])
@pytest.mark.parametrize("name", _NETWORKS)
def test_a_private_run_that_was_killed_goes_on_to_the_same_bytes_and_pays_once(name, kind, names, tmp_path):
    with private_network(_NETWORKS[name], names, tmp_path) as (what, net):
        before = killed(name, net, what, kind, tmp_path)
        resumed = Driven(name, replace(what, resume=True), net.settings).outcome(_END)
        assert resumed.error is None, resumed.said
        after = releases(tmp_path, names)
        again = Driven(name, replace(what, run="undisturbed"), net.settings).outcome(_END)
        assert again.error is None, again.said
    rounds, rho = what.agreed.plan.rounds, Budget(3.0).rho
    asked = rounds + (2 if names == PAIR else 3)
    for site in names:
        # It was in the middle, what was released then is not released again, and all is the budget exactly.
        assert rounds // 2 <= len(before[site]) < asked
        assert after[site][: len(before[site])] == before[site]
        assert len(after[site]) == asked
        assert sum(cost for _, _, cost, _ in after[site]) == rho
    # Another run asks the same of the same sites and is told the same, for nothing.
    assert releases(tmp_path, names) == after
    for file in _FILES:
        assert resumed.files[file] == again.files[file]
