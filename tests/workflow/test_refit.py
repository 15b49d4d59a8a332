"""Certify, then train again on all rows: which model is in the folder, and what is promised of what."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from bidro import BidroError, Certificate, example_visits, load_model
from bidro.cli import app
from bidro.workflow.options import FitOptions


def _run(*words) -> None:
    app([str(word) for word in words], standalone_mode=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("refit")
    example_visits().to_csv(at / "visits.csv", index=False)
    common = ("--client", "hospital", "--target", "stay", "--curves", "none")
    for name, more in (("refit", ["--refit"]), ("before", []), ("all", ["--hold-out", "0"])):
        _run("fit", at / "visits.csv", *common, "--out", at / name, *more)
    return at


def _certificate(folder):
    return Certificate.from_json((folder / "certificate.json").read_text())


def test_the_model_is_that_of_all_rows_and_what_is_promised_that_of_the_one_before(folder):
    refit, whole = load_model(folder / "refit"), load_model(folder / "all")
    assert np.array_equal(refit.x, whole.x)
    assert all(np.array_equal(own, whole.personal[name]) for name, own in refit.personal.items())
    found, before = _certificate(folder / "refit"), _certificate(folder / "before")
    for name in ("clipped", "personal"):
        assert getattr(found, name).clients == getattr(before, name).clients
    assert found.of_rows.promise == before.of_rows.promise
    assert found.procedure == pytest.approx(0.8, abs=0.01)
    assert sum(found.rows) == len(example_visits())
    words = "of the procedure, trained on 80% of the rows"
    assert words in str(found)
    report = json.loads((folder / "refit" / "report.json").read_text())
    assert any(words in one for one in report["concerns"])
    assert words in report["levels"][report["default_level"]]["of_rows"]["promise"]
    assert Certificate.from_json(found.to_json()).to_json() == found.to_json()


def test_there_are_no_intervals_around_a_model_that_they_were_not_made_for(folder):
    with pytest.raises(BidroError, match="no intervals"):
        load_model(folder / "refit").predict_interval(example_visits(1))


def test_fresh_rows_certify_the_model_itself_and_no_row_is_fresh_that_was_held_out(folder, capsys):
    fresh = folder / "fresh.csv"
    example_visits(3).to_csv(fresh, index=False)
    capsys.readouterr()
    _run("certify", folder / "refit", fresh, "--json")
    found = Certificate.from_json(capsys.readouterr().out)
    assert found.procedure is None
    assert "procedure" not in str(found)
    table = example_visits()
    model = load_model(folder / "before")
    assert model.settings["hold_out"] == 0.2
    held = folder / "held.csv"
    table.to_csv(held, index=False)
    with pytest.raises(BidroError, match="in training"):
        _run("certify", folder / "refit", held)


def test_every_client_that_can_has_a_promise_of_its_own(folder, tmp_path):
    table = example_visits()
    sizes = {"north": 20, "south": 60, "west": 120}
    parts = [own[: sizes.get(name, len(own))] for name, own in table.groupby("hospital")]
    path = tmp_path / "small.csv"
    pd.concat(parts).to_csv(path, index=False)
    common = ("--client", "hospital", "--target", "stay", "--curves", "none")
    _run("fit", path, *common, "--out", tmp_path / "plain")
    _run("fit", path, *common, "--out", tmp_path / "each", "--promise-each")
    before, after = (_certificate(tmp_path / name).of_rows for name in ("plain", "each"))
    assert set(before.others) == {"north", "south", "west"}
    assert after.others == ("north",)
    assert {name: after.draws[name] for name in sizes} == {"north": 10, "south": 29, "west": 29}
    # Large clients keep the share of before.
    assert all(after.draws[name] == before.draws[name] for name in after.draws if name not in sizes)
    settings = json.loads((tmp_path / "each" / "report.json").read_text())["settings"]
    assert "at least 29" in dict(settings)["Held-out rows"]
    with pytest.raises(BidroError, match="--promise-each"):
        FitOptions(tables=("v.csv",), target="stay", promise_each=True, hold_out=0.0)


@pytest.mark.parametrize("more", [{"hold_out": 0.0}, {"schema": "schema.toml"}])
def test_what_cannot_be_refitted_is_refused_before_work_begins(more):
    with pytest.raises(BidroError, match="--refit"):
        FitOptions(tables=("visits.csv",), target="stay", refit=True, **more)


def test_refit_is_written_to_and_read_from_run_toml(folder):
    assert "refit = true" in (folder / "refit" / "run.toml").read_text()
    with pytest.raises(BidroError, match="true or false"):
        FitOptions(tables=("visits.csv",), refit="yes")
