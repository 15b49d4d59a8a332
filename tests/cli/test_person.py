"""`--person` from `fit` to `certify`: the column is no feature, and rows of one person are one draw."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

from bidro.certify.certificate import Certificate
from bidro.model.model_file import load_model
from tests.cli.test_command import run, visits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("people")
    for seed in (0, 1):
        patients(seed).to_csv(where / f"visits{seed}.csv", index=False)
    return where


def patients(seed):
    """Three rows a patient, who is named alike at all hospitals and has a stay of its own."""
    whole = visits(seed, (60, 90, 120))
    whole["patient"] = whole.groupby("hospital").cumcount() // 3
    own = np.random.default_rng(seed + 100).normal(size=(3, 40))
    whole["stay"] += own[whole["hospital"].str[1:].astype(int), whole["patient"]]
    return whole.sort_values("stay")


def fitted(capsys, folder, name, *options):
    return run(
        capsys, "fit", folder / "visits0.csv", "--client", "hospital", "--target", "stay", "--radius", "0.1",
        "--weights", "simplex", "--out", folder / name, "--force", *options,
    )  # fmt: skip


def test_a_fit_by_people_and_what_is_said_of_it(folder, capsys):
    code, out, err = fitted(capsys, folder, "model", "--person", "patient")
    assert code == 0, err
    assert "fresh people" in out
    model = load_model(folder / "model")
    assert model.schema.person == "patient"
    assert model.schema.features == ("age", "ward=b")
    assert tomllib.loads((folder / "model" / "run.toml").read_text())["person"] == "patient"
    certificate = Certificate.from_json((folder / "model" / "certificate.json").read_text())
    # A fifth of 90 patients, each by itself.
    assert set(certificate.clipped.rows) == {"h0", "h1", "h2"}
    assert sum(certificate.clipped.rows.values()) == pytest.approx(18, abs=4 * np.sqrt(90 * 0.2 * 0.8))
    content = json.loads((folder / "model" / "report.json").read_text())
    assert any("people held out" in line or "Too few people" in line for line in content["advice"])
    assert any("the same 'patient'" in value for _, value in content["settings"])
    again = folder / "again"
    code, _, err = run(capsys, "fit", "--config", folder / "model" / "run.toml", "--out", again)
    assert code == 0, err
    assert np.array_equal(load_model(again).x, model.x)

    fresh = pd.read_csv(folder / "visits1.csv")
    code, out, _ = run(capsys, "certify", folder / "model", folder / "visits1.csv", "--json")
    assert code == 0
    assert dict(Certificate.from_json(out).clipped.rows) == {"h0": 20, "h1": 30, "h2": 40}
    code, out, _ = run(capsys, "evaluate", folder / "model", folder / "visits1.csv", "--json")
    found = json.loads(out)["clients"]["h1"]
    own = fresh[fresh["hospital"] == "h1"]
    losses = pd.Series(model.losses(model.rows(own)), own.index)
    # Of people of three rows each, the error is that of their means.
    means = losses.groupby(own["patient"]).mean()
    assert found["se"] == pytest.approx(means.std(ddof=1) / np.sqrt(30))
    assert found["loss"] == pytest.approx(losses.mean())
    assert found["rows"] == 90

    fresh.drop(columns="patient").to_csv(folder / "nameless.csv", index=False)
    code, out, _ = run(capsys, "predict", folder / "model", folder / "nameless.csv")
    assert code == 0
    assert len(out.split()) == len(fresh) + 1
    for command in ("certify", "evaluate"):
        code, _, err = run(capsys, command, folder / "model", folder / "nameless.csv")
        assert code == 1
        assert "no column 'patient', which is to name the person" in " ".join(err.split())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--person", "pupil"), "no column 'pupil'"),
        (("--person", "hospital"), "A column has one role"),
        (("--person", "stay"), "A column has one role"),
        (("--person", "patient", "--features", "age,patient"), "A column has one role"),
        (("--person", "patient", "--radius", "bootstrap"), "takes these as independent draws"),
    ],
)
def test_people_that_do_not_fit_are_said_in_one_sentence(options, word, folder, capsys):
    code, _, err = fitted(capsys, folder, "none", *options)
    assert code == 1
    assert word in " ".join(err.split())
    assert not (folder / "none").exists()


def test_a_row_without_a_person_and_a_hospital_of_few(folder, capsys, caplog):
    whole = patients(0).reset_index(drop=True)
    whole.astype({"patient": float}).assign(patient=whole["patient"].where(whole.index != 4)).to_csv(
        folder / "visits2.csv", index=False
    )
    arguments = ("--client", "hospital", "--target", "stay", "--person", "patient", "--out", folder / "few")
    code, _, err = run(capsys, "fit", folder / "visits2.csv", *arguments)
    assert code == 1
    assert "Row 5 below the header of" in err
    assert "has no 'patient'" in " ".join(err.split())
    whole.loc[whole["hospital"] == "h0", "patient"] %= 2
    whole.to_csv(folder / "visits3.csv", index=False)
    code, _, err = run(capsys, "fit", folder / "visits3.csv", *arguments)
    assert code == 0, err
    assert "Client 'h0' has fewer than 3 people, too few to train on" in caplog.text
    assert "h0" not in load_model(folder / "few").clients


def test_comparisons_and_agreed_schemas_by_people(folder, capsys):
    arguments = (folder / "visits0.csv", "--client", "hospital", "--target", "stay", "--person", "patient")
    code, out, err = run(
        capsys, "compare", *arguments, "--methods", "FedAvg", "--passes", "2", "--splits", "1", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["features"] == 2
    code, out, err = run(capsys, "schema", *arguments)
    assert code == 0, err
    assert tomllib.loads(out)["person"] == "patient"
    assert [column["name"] for column in tomllib.loads(out)["columns"]] == ["age", "ward"]


def test_between_sites_the_schema_names_the_person(folder, capsys):
    code, _, err = run(
        capsys, "federate", folder / "federate.toml", "--person", "patient", "--out", folder / "no"
    )
    assert code == 2
    assert "the agreed schema names the person" in " ".join(err.split())
