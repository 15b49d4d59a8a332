"""`bidro schema`, `federate` and `audit`, with a network that is this process."""

import importlib
import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.server.serve import serve
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import reply_of
from bidro.deploy.transport import drive, rehearsal
from bidro.federated.engines.coordinator import InMemory
from bidro.model.model_file import load_model
from bidro.neural.folder import load_network
from tests.cli.test_command import run
from tests.deploy.networks import network as neural_network
from tests.deploy.networks import network_sites
from tests.deploy.sites import NAMES, table, write_sites


@contextmanager
def network(folder, sites, runs):
    """What the engines' `network` is, without processes."""

    def one(path):
        site = Site.read(path)
        rows = SiteRows.load(site)
        return lambda request: reply_of(site, rows, request)

    clients = {name: one(path) for name, path in sites.items()}
    yield SimpleNamespace(settings={"carrier": InMemory(clients), "runs": runs})


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    def run_here(job, settings, say, persistent):
        say("the network is this process")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BIDRO_RUNS", str(settings["runs"]))
            return serve(job, settings["carrier"])

    here = SimpleNamespace(drive=run_here, network=network)
    monkeypatch.setattr(drive, "engine", lambda name, local=False: here)
    monkeypatch.setattr(rehearsal, "engine", lambda name, local=False: here)


@pytest.fixture
def visits(tmp_path):
    table().to_csv(tmp_path / "visits.csv", index=False)
    training = {"radius": 0.1, "weights": "simplex"}
    write_sites(tmp_path, table(), training=training)
    (tmp_path / "schema.toml").rename(tmp_path / "agreed.toml")
    (tmp_path / "options.toml").write_text('schema = "agreed.toml"\n')
    return tmp_path


def rehearse(capsys, folder, *more):
    named = ("--local", folder / "visits.csv", "--out", folder / "model")
    return run(capsys, "federate", folder / "options.toml", *named, *more)


def test_a_rehearsal_leaves_a_model_folder_and_its_audit(capsys, visits):
    code, out, err = rehearse(capsys, visits)
    assert code == 0, err
    assert "to a certified gap of" in out
    assert "solving: round 1" in err or "the network is this process" in err
    model = load_model(visits / "model")
    assert model.clients == NAMES
    # On one machine the sites' personal models are at hand.
    page = json.loads((visits / "model" / "report.json").read_text())
    assert sorted(model.personal) == model.settings["personal"]["clients"]
    assert [client["name"] for client in page["clients"] if client["has_personal"]] == model.settings[
        "personal"
    ]["clients"]
    assert model.settings["personal"]["clients"]
    assert page["levels"][page["default_level"]]["personal"] is not None
    code, out, _ = run(capsys, "audit", visits / "model")
    assert code == 0
    assert "second moments" in out
    code, out, _ = run(capsys, "audit", visits / "model", "--json")
    asked = {kind["question"] for kind in json.loads(out)["kinds"]}
    assert asked == {"prepare", "round", "assess", "bounds"}
    code, out, _ = run(capsys, "evaluate", visits / "model", visits / "visits.csv", "--json")
    assert code == 0
    assert np.isfinite(json.loads(out)["mean"])


def test_a_rehearsal_is_fit_by_the_same_schema(capsys, visits):
    """Without a configuration, too: the schema is then drafted from the table."""
    assert rehearse(capsys, visits)[0] == 0
    tables = ("fit", visits / "visits.csv", "--out", visits / "fitted")
    code, _, err = run(capsys, *tables, "--schema", visits / "agreed.toml")
    assert code == 0, err
    one, other = load_model(visits / "model"), load_model(visits / "fitted")
    assert np.array_equal(one.standard.spread, other.standard.spread)
    assert set(one.standard.spread.tolist()) <= {0.5, 1.0, 5.0}
    np.testing.assert_allclose(one.x, other.x, rtol=0, atol=1e-9)
    bounds = [
        json.loads((visits / name / "certificate.json").read_text())["clipped"]
        for name in ("model", "fitted")
    ]
    assert bounds[0]["largest"] == bounds[1]["largest"]
    assert bounds[0]["bound"] == pytest.approx(bounds[1]["bound"], rel=1e-7)
    again = ("fit", "--config", visits / "fitted" / "run.toml", "--out", visits / "again")
    assert run(capsys, *again)[0] == 0
    assert np.array_equal(load_model(visits / "again").x, other.x)
    code, _, err = run(capsys, *tables, "--force", "--schema", visits / "agreed.toml", "--hold-out", "0.3")
    assert code == 2
    assert "leave --hold-out out" in err


def test_a_script_sees_rounds_bytes_and_the_certificate(capsys, visits):
    code, out, err = rehearse(capsys, visits, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["gap"] <= 1e-6
    assert found["rounds"] <= 25
    assert found["lost"] == {}
    assert found["certificate"]["names"] == list(NAMES)
    settings = load_model(visits / "model").settings
    for name in ("robustness_cost", "personal", "varies", "concerns"):
        assert found[name] == settings[name]
    assert found["evaluation"]["on"] == "held-out rows"
    assert set(found["evaluation"]["clients"]) == set(NAMES)


def test_algorithm_1_needs_its_flag(capsys, visits):
    agreed = (visits / "agreed.toml").read_text().replace("hold_out = 0.2", "hold_out = 0.0")
    (visits / "agreed.toml").write_text(f"{agreed}\n[algorithm]\nrounds = 2\nrho = 20.0\n")
    code, _, err = rehearse(capsys, visits)
    assert code == 1
    assert "rebuild about four fifths" in err
    assert not (visits / "model").exists()
    code, out, err = rehearse(capsys, visits, "--one-sample-replies")
    assert code == 0, err
    assert "without a certified gap" in out


def test_a_schema_is_drafted_from_one_sites_table(capsys, visits):
    write_sites(visits, table())
    named = ("--target", "y", "--client", "site", "--out", visits / "draft.toml")
    code, out, _ = run(capsys, "schema", visits / "east.csv", *named)
    assert code == 0
    assert "same copy" in out
    assert Agreement.read(visits / "draft.toml").schema == Agreement.read(visits / "schema.toml").schema
    code, out, _ = run(capsys, "schema", visits / "east.csv", "--target", "y", "--features", "u")
    assert code == 0
    assert "# support" in out
    assert "ward" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("federate", "--out", "m"), 2, "Give a configuration"),
        (("federate", "options.toml"), 2, "--out DIR"),
        (("federate", "--local", "visits.csv", "--out", "m"), 2, "--client COLUMN"),
        (("federate", "none.toml", "--out", "m"), 1, "no file"),
        (("federate", "options.toml", "--out", "m"), 1, "does not say 'clients'"),
        (("federate", "old.toml", "--out", "m"), 1, "says 'radius', which sites agree on"),
        (
            ("federate", "options.toml", "--local", "visits.csv", "--person", "u", "--out", "m"),
            2,
            "columns these are",
        ),
        (("federate", "real.toml", "--out", "m"), 1, "no [flare] part"),
        (("federate", "real.toml", "--out", "my model"), 1, "--run NAME"),
        (("federate", "real.toml", "--out", "."), 1, "not a model folder"),
        (("audit", "."), 1, "no audit"),
        (("schema", "visits.csv", "--target", "odd"), 1, "no column 'odd'"),
    ],
)
def test_trouble_is_one_sentence(arguments, code, words, capsys, visits, monkeypatch):
    monkeypatch.chdir(visits)
    write_sites(visits, table())
    (visits / "real.toml").write_text('schema = "schema.toml"\nclients = ["east", "west"]\n')
    (visits / "old.toml").write_text('schema = "schema.toml"\nclients = ["east", "west"]\nradius = 0.1\n')
    found, _, err = run(capsys, *arguments)
    assert found == code
    assert words in err
    assert "Traceback" not in err


def test_a_missing_engine_says_what_to_install(monkeypatch):
    monkeypatch.undo()

    def missing(name):
        raise ImportError("No module named 'nvflare'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Exception, match=r"install bidro\[flare\]"):
        drive.engine("flare")
    with pytest.raises(Exception, match="flare or flower"):
        drive.engine("odd")


def test_a_rehearsal_trains_the_network_that_a_schema_names(capsys, tmp_path):
    table().to_csv(tmp_path / "visits.csv", index=False)
    network_sites(tmp_path, neural_network(2))
    (tmp_path / "schema.toml").rename(tmp_path / "agreed.toml")
    (tmp_path / "options.toml").write_text('schema = "agreed.toml"\n')
    code, _, err = rehearse(capsys, tmp_path)
    assert code == 1
    assert "a batch of 40 rows, or what in it has one level or class" in err
    assert not (tmp_path / "model").exists()
    code, out, err = rehearse(capsys, tmp_path, "--one-sample-replies")
    assert code == 0, err
    assert "Trained the network of 'tests.networks.factories:with_arguments', 26 weights" in out
    assert "any mixture of east, mid, north, south, west" in out
    assert "model.onnx" in out
    assert load_network(tmp_path / "model").arguments == {"hidden": 5}
    code, out, _ = run(capsys, "audit", tmp_path / "model")
    assert "train: 10 messages from 5 clients" in out
    tables = ("fit", tmp_path / "visits.csv", "--out", tmp_path / "fitted")
    code, _, err = run(capsys, *tables, "--schema", tmp_path / "agreed.toml")
    assert code == 1
    assert "names a neural network, which `bidro fit` does not train" in err
    code, out, err = rehearse(capsys, tmp_path, "--one-sample-replies", "--force", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["messages_in_training"], found["no_onnx"]) == (10, None)
    assert set(found["certificate"]["clipped"]["clients"]) == set(NAMES)
