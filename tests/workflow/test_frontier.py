"""The models of all largest costs: which they are, what is stated of each, and taking another one."""

import json
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from bidro import Certificate, example_visits, load_model
from bidro.core.errors import BidroError
from bidro.selection.rule import LeftOut, choice, frontier
from bidro.workflow.frontier import FRONTIER_FILE, read_frontier
from tests.cli.test_command import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("frontier")
    example_visits().to_csv(where / "visits.csv", index=False)
    return where


@pytest.fixture(scope="module")
def made(folder):
    """A model folder, which no test changes."""
    command = ["fit", "visits.csv", "--client", "hospital", "--target", "stay", "--curves", "none"]
    code = (
        f"import sys; sys.argv = ['bidro', *{command!r}, '--out', 'made']; from bidro.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr
    return folder / "made"


@pytest.fixture
def model(made, tmp_path):
    return shutil.copytree(made, tmp_path / "model")


def test_the_frontier_has_every_choice_and_no_other():
    """Against `choice` at a thousand largest costs, on random losses."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        clients, candidates = int(rng.integers(3, 30)), 8
        level, slope = rng.normal(5, 1, (clients, 1)), rng.normal(0, 1, (clients, 1))
        t = np.linspace(0, 1, candidates)
        losses = level - 0.5 * slope.clip(0) * t + 0.2 * (-slope).clip(0) * t + 0.3 * t**2
        left_out = LeftOut(
            losses + 0.01 * rng.normal(size=(5, clients, candidates)), np.full((5, clients), 20.0)
        )
        steps = frontier(left_out, 0)
        costs = [cost for cost, _ in steps]
        assert costs == sorted(costs)
        assert costs[0] == 0.0
        tried = {choice(left_out, 0, cost) for cost in [*np.linspace(0, 0.5, 1000), np.inf]}
        assert tried <= {place for _, place in steps}
        for cost, place in steps:
            assert choice(left_out, 0, cost) == place


def test_another_model_is_the_one_that_a_fit_with_that_cost_gives(model, folder, capsys):
    found, _ = read_frontier(model)
    assert len(found.models) > 2
    code, words, err = run(capsys, "choose", model, "--prefer", "worst")
    assert code == 0, err
    assert words.splitlines()[len(found.models)].endswith("in the folder")
    asked = ("fit", folder / "visits.csv", "--client", "hospital", "--target", "stay", "--curves", "none")
    again = model.parent / "again"
    code, _, err = run(capsys, *asked, "--prefer", "worst", "--out", again)
    assert code == 0, err
    taken, fitted = load_model(model), load_model(again)
    # One is solved as closely as a choice needs, the other to the gap that is certified.
    np.testing.assert_allclose(taken.x, fitted.x, atol=2e-3)
    table = example_visits(seed=1).drop(columns="hospital")
    one, other = (found["prediction"] for found in (taken.predict(table), fitted.predict(table)))
    np.testing.assert_allclose(one, other, atol=0.01)
    page = json.loads((model / "report.json").read_text())
    assert page["plainly"]["models"]["personal"] == pytest.approx(found.models[-1].personal[0])
    assert (model / "report.html").read_text().count("bidro choose MODEL") == 1
    assert not (model / "intervals.json").exists()
    assert (model / FRONTIER_FILE).exists()


def test_what_is_stated_is_stated_of_all_models_at_once(model):
    """The level is shared out: bounds are those of 1 - (1 - c) / K, above those of the fit's own at c."""
    found, files = read_frontier(model)
    own = Certificate.from_json((model / "certificate.json").read_text())
    many = len(files)
    for content in files:
        one = Certificate.from_json(content["certificate.json"].decode())
        assert one.confidence == pytest.approx(1 - (1 - found.confidence) / many)
        assert one.clipped.rows == own.clipped.rows
    page = json.loads((model / "report.json").read_text())
    chosen = found.place(page["calibration"]["max_cost"])
    same = Certificate.from_json(files[chosen]["certificate.json"].decode())
    assert same.personal.bound > own.personal.bound


def test_costs_between_two_models_take_the_cheaper_one(model, capsys):
    found, _ = read_frontier(model)
    cost = found.models[1].max_cost
    for wanted, place in ((cost, 1), (cost * 0.99, 0), (0.0, 0)):
        code, out, err = run(capsys, "choose", model, "--max-cost", wanted, "--json")
        assert code == 0, err
        assert json.loads(out)["in_the_folder"] == place
    code, out, _ = run(capsys, "choose", model, "--json")
    assert code == 0
    assert json.loads(out)["in_the_folder"] == 0


def test_what_cannot_be_chosen_is_refused(model, capsys, tmp_path):
    code, _, err = run(capsys, "choose", model, "--max-cost", -1)
    assert code == 1
    assert "max_cost says by which share" in err
    code, _, err = run(capsys, "choose", model, "--max-cost", 1, "--prefer", "mean")
    assert code == 2
    rows = example_visits(seed=3)
    rows[rows["hospital"] == "east"].drop(columns="hospital").to_csv(tmp_path / "new.csv", index=False)
    code, _, err = run(capsys, "adapt", model, tmp_path / "new.csv", "--client", "new")
    assert code == 0, err
    code, _, err = run(capsys, "choose", model, "--prefer", "mean")
    assert code == 1
    assert "'new' was adapted to the model" in err
    (model / FRONTIER_FILE).write_bytes(b"PK")
    with pytest.raises(BidroError, match="is damaged"):
        read_frontier(model)
    with zipfile.ZipFile(model / FRONTIER_FILE, "w") as archive:
        archive.writestr("index.json", "{}")
    with pytest.raises(BidroError, match="is damaged"):
        read_frontier(model)
    (model / FRONTIER_FILE).unlink()
    with pytest.raises(BidroError, match="holds one model"):
        read_frontier(model)
