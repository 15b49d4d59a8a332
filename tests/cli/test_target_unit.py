"""`--target-unit`: what a target is counted in, from options and schemas to the words that people read."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from bidro.certify.trained_rows import TrainedRows
from bidro.core.errors import BidroError
from bidro.data.tables import Schema
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.server.serve import run_job
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.losses import registry
from bidro.model.model_file import Model, load_model
from bidro.workflow.adapt import Adapted
from bidro.workflow.options import FitOptions, TableColumns
from tests.cli.test_command import run, visits
from tests.deploy.sites import SHORT, agree, carrier, job, table, write_sites

BAD = ["", " ", "days ", "days\n", "d\x1b[31m", "d\u202eays", "d" * 41, 3, ["days"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("measured")
    visits(0, (60, 90, 120)).to_csv(where / "visits.csv", index=False)
    return where


def fit(capsys, folder, name, *options):
    return run(
        capsys, "fit", folder / "visits.csv", "--client", "hospital", "--target", "stay", "--radius", "0.1",
        "--weights", "simplex", "--curves", "none", "--personal", "none", "--verbose",
        "--out", folder / name, *options,
    )  # fmt: skip


def test_all_that_a_fit_writes_and_says_has_the_word_and_is_else_the_same(folder, capsys):
    both = {}
    for name, options in {"plain": (), "days": ("--target-unit", "days")}.items():
        code, out, err = fit(capsys, folder, name, *options)
        assert code == 0, err
        both[name] = " ".join(out.split())
    content = {name: json.loads((folder / name / "report.json").read_text()) for name in both}
    assert (content["plain"]["target_unit"], content["days"]["target_unit"]) == (None, "days")
    assert (content["plain"]["loss"]["unit"], content["days"]["loss"]["unit"]) == ("stay²", "days²")
    for one in content.values():
        del one["target_unit"], one["loss"]
    for plain, days in zip(content["plain"]["levels"], content["days"]["levels"], strict=True):
        for said in ("words", "amount"):
            in_days, bare = days["of_rows"].pop(said), plain["of_rows"].pop(said)
            assert bare == (in_days and in_days.replace(" days", ""))
    assert "Typical error in days, on" in both["days"]
    assert content["plain"] == content["days"]
    assert "counts as that" in both["plain"]
    assert ", in days²: mean loss" in both["days"]
    assert "days" not in both["plain"]
    assert load_model(folder / "days").schema.target_unit == "days"
    assert load_model(folder / "plain").schema.to_dict().keys() == {"client", "target", "classes", "columns"}
    options = FitOptions.from_toml(folder / "days" / "run.toml")
    assert options.target_unit == "days"
    assert "target_unit" not in tomllib.loads((folder / "plain" / "run.toml").read_text())
    # And of the model in use.
    code, out, _ = run(capsys, "evaluate", folder / "days", folder / "visits.csv")
    assert code == 0
    found = json.loads(run(capsys, "evaluate", folder / "days", folder / "visits.csv", "--json")[1])
    root = f"{found['root_mean_squared_error']:#.3g}"
    assert out.startswith("Typical error in days, on ")
    assert f"the shared model {root}".split() == next(
        line.split()[:4] for line in out.splitlines() if line.startswith("the shared model")
    )
    code, out, _ = run(capsys, "evaluate", folder / "plain", folder / "visits.csv")
    assert out.startswith("Typical error, on ")
    assert "days" not in out


@pytest.mark.parametrize("words", BAD)
def test_what_is_no_name_of_a_unit_is_refused_in_one_sentence(words):
    for use in (
        lambda: FitOptions(target_unit=words),
        lambda: Schema("site", "y", None, (), None, words),
    ):
        with pytest.raises(BidroError, match="target_unit names what the target is counted in"):
            use()


@pytest.mark.parametrize("command", ["fit", "schema", "federate"])
def test_it_is_refused_before_any_work(command, folder, capsys):
    arguments = {
        "fit": (folder / "no.csv", "--out", folder / "no"),
        "schema": (folder / "no.csv", "--out", folder / "no"),
        "federate": ("--local", folder / "no.csv", "--out", folder / "no"),
    }[command]
    code, _, err = run(
        capsys, command, *arguments, "--client", "hospital", "--target", "stay", "--target-unit", "d\x07"
    )
    assert code == 1
    assert "target_unit names what the target is counted in" in " ".join(err.split())
    assert "\x07" not in err
    assert not (folder / "no").exists()


def test_classes_are_not_measured_in_anything(folder, capsys):
    code, _, err = run(
        capsys, "fit", folder / "visits.csv", "--client", "hospital", "--target", "ward", "--out",
        folder / "no", "--target-unit", "beds",
    )  # fmt: skip
    assert code == 1
    assert "'ward' has classes, which are not measured in anything" in " ".join(err.split())


@pytest.mark.parametrize(
    ("measure", "squared"),
    [
        ("days", "days²"),
        ("°C", "°C²"),
        ("km/h", "(km/h)²"),
        ("days of care", "(days of care)²"),
        ("m²", "(m²)²"),
    ],
)
def test_what_is_squared_is_the_whole_of_it(measure, squared):
    assert registry.unit_of("squared", measure) == squared
    assert registry.unit_of("huber", measure) == squared
    assert registry.unit_of("absolute", measure) == measure
    assert registry.unit_of("logistic", measure) == "nats"


def test_sites_agree_on_it_and_the_model_across_them_is_the_same(folder, tmp_path):
    plain = write_sites(tmp_path, table())
    agreed = replace(
        plain,
        schema=replace(plain.schema, target_unit="days"),
        options=replace(plain.options, target_unit="days"),
    )
    agree(tmp_path, agreed)
    assert Agreement.read(tmp_path / "schema.toml") == agreed
    assert Agreement.from_dict(json.loads(json.dumps(agreed.to_dict()))) == agreed
    # It is public text that all keep alike, and no site is asked in another way for it.
    assert plain.digest != agreed.digest
    found = []
    for run_name, one in {"first": plain, "other": agreed}.items():
        agree(tmp_path, one)
        found.append(run_job(job(one, run_name, options=SHORT), carrier(tmp_path), tmp_path / "runs"))
    content = json.loads(found[1]["report.json"])
    assert (content["target_unit"], content["loss"]["unit"]) == ("days", "days²")
    models = [Model.from_bytes(files["model.safetensors"], "model") for files in found]
    assert models[0].x.tolist() == models[1].x.tolist()
    audits = [json.loads(files["audit.json"]) for files in found]
    for one, other in zip(*(audit["kinds"] for audit in audits), strict=True):
        assert {k: (one[k], other[k]) for k in one if k != "seconds" and one[k] != other[k]} == {}


def test_a_draft_and_a_rehearsal_say_it(folder, tmp_path, capsys):
    code, out, err = run(
        capsys, "schema", folder / "visits.csv", "--client", "hospital", "--target", "stay",
        "--target-unit", "days",
    )  # fmt: skip
    assert code == 0, err
    assert tomllib.loads(out)["target_unit"] == "days"
    sites = split_by_client(
        folder / "visits.csv",
        TableColumns(client="hospital", target="stay", target_unit="days"),
        tmp_path / "r",
    )
    assert sites.agreed.schema.target_unit == "days"
    assert Agreement.read(tmp_path / "r" / "schema.toml").options.target_unit == "days"
    code, _, err = run(
        capsys, "federate", folder / "federate.toml", "--target-unit", "days", "--out", folder / "no"
    )
    assert code == 2
    assert "the agreed schema says it" in " ".join(err.split())


def test_a_newcomers_change_is_said_in_it():
    rows = TrainedRows.of({"east": np.zeros((40, 3))}, adapted="east")
    found = Adapted("east", np.zeros(3), 40, np.array([0.25, 0.25, 1.0]), 0.5, 2.0, rows)
    assert "change by 0.5 (root mean square; the shared model's deviate by 2)" in found.in_words("stay")
    said = found.in_words("stay", "days")
    assert "change by 0.5 days (root mean square; the shared model's deviate by 2 days)" in said
