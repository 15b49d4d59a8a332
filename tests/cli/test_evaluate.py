"""`bidro evaluate`: what goes beside the loss, clients and levels that training did not see, many clients."""

import json

import numpy as np
import pandas as pd
import pytest

from bidro.losses import Logistic, Softmax, Squared
from bidro.model_file import Model
from bidro.standard import Standard
from bidro.tables import Column, Schema
from tests.cli.test_command import run

STANDARD = Standard(np.array([10.0, 0.2]), np.array([2.0, 0.5]), 0.0, 1.0)
WARD = Column("ward", ("a", "other"), None, "other")


def saved(folder, loss, x, classes=None, other=True):
    ward = WARD if other else Column("ward", ("a", "other"))
    schema = Schema("site", "y", classes, (Column("age"), ward))
    standard = STANDARD if classes else Standard(STANDARD.mean, STANDARD.spread, 3.0, 1.0)
    model = Model(schema, loss, x, standard, ("s0", "s1"), 1.0, None, None, False, {}, {})
    (folder / "model.safetensors").write_bytes(model.to_bytes())
    return model


def table(classes=None, clients=3, rows=20):
    rng = np.random.default_rng(2)
    n = clients * rows
    y = rng.normal(3, 1, n) if classes is None else rng.choice(classes, n)
    return pd.DataFrame(
        {
            "site": np.repeat([f"s{k}" for k in range(clients)], rows),
            "age": rng.normal(10, 2, n),
            "ward": rng.choice(["a", "new", "other"], n),
            "y": y,
        }
    )


def test_root_mean_squared_error_new_clients_and_new_levels(tmp_path, capsys):
    model = saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]))
    fresh = table()
    fresh.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found = json.loads(out)
    errors = (fresh["y"] - model.predict(fresh)["prediction"]) ** 2
    assert code == 0
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(errors.mean()))
    own = errors[fresh["site"] == "s2"].mean()
    assert found["clients"]["s2"]["root_mean_squared_error"] == pytest.approx(np.sqrt(own))
    assert found["not_in_training"] == ["s2"]
    new = int((fresh["ward"] == "new").sum())
    assert found["counted_as_other"] == {"ward": new}
    assert "client 's2' was not in training" in err
    assert f"{new} rows have a level of 'ward' that the model does not know by name" in err
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    assert f"(root {np.sqrt(errors.mean()):.4g})" in out.splitlines()[0]
    assert "20 rows, not in training)" in out
    _, _, err = run(capsys, "predict", tmp_path, tmp_path / "t.csv")
    assert "counts as 'other'" in err


@pytest.mark.parametrize(
    ("loss", "x", "classes"),
    [
        (Logistic(intercept=True), np.array([0.5, -0.2, 0.1]), ("no", "yes")),
        (
            Softmax(3, intercept=True),
            np.array([0.5, -0.2, 0.1, 0.3, -0.7, 0.2, -0.4, 0.1, 0.6]),
            ("hi", "lo", "mid"),
        ),
    ],
)
def test_accuracy_is_that_of_the_predictions(loss, x, classes, tmp_path, capsys):
    model = saved(tmp_path, loss, x, classes)
    fresh = table(classes)
    fresh.to_csv(tmp_path / "t.csv", index=False)
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found, right = json.loads(out), model.predict(fresh)["prediction"] == fresh["y"]
    assert 0 < right.mean() < 1
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["clients"]["s1"]["accuracy"] == pytest.approx(right[fresh["site"] == "s1"].mean())
    _, out, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    assert f"(accuracy {right.mean():.1%})" in out.splitlines()[0]


def test_many_clients_are_summarised_and_all_are_in_json(tmp_path, capsys):
    saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]))
    for clients, lines in ((50, 51), (51, 13)):
        table(clients=clients, rows=3).to_csv(tmp_path / "t.csv", index=False)
        _, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
        assert len(out.splitlines()) == lines
        assert f"{clients - 2} clients ('s10' and others) were not in training" in err
    _, printed, _ = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv", "--json")
    found = json.loads(printed)
    losses = sorted(one["loss"] for one in found["clients"].values())
    assert len(losses) == 51
    assert f"median {np.median(losses):.4g}, 90% {np.quantile(losses, 0.9):.4g}" in out
    assert f"{losses[-10]:.4g} ± " in out.splitlines()[-1]


def test_a_new_level_without_a_place_for_it_is_refused_and_counted(tmp_path, capsys):
    saved(tmp_path, Squared(intercept=True), np.array([0.5, -0.2, 0.1]), other=False)
    fresh = table()
    fresh.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run(capsys, "evaluate", tmp_path, tmp_path / "t.csv")
    assert (code, out) == (1, "")
    assert "'new' is not a level of 'ward'; there are a, other, and no level for others" in err
    assert f"{(fresh['ward'] == 'new').sum()} rows have such levels" in err


def test_cells_that_are_filled_on_use_are_counted(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": np.repeat(["a", "b"], 40), "x": rng.normal(size=80)})
    table["w"] = rng.choice(["p", "q"], 80)
    table["y"] = table["x"] + rng.normal(size=80)
    table.loc[[3, 50], "w"] = None
    table.to_csv(tmp_path / "gaps.csv", index=False)
    code, _, err = run(
        capsys, "fit", tmp_path / "gaps.csv", "--client", "site", "--target", "y", "--missing", "median",
        "--radius", "0.1", "--weights", "simplex", "--gap", "1e-3", "--out", tmp_path / "model",
    )  # fmt: skip
    assert code == 0, err
    code, _, err = run(capsys, "predict", tmp_path / "model", tmp_path / "gaps.csv")
    assert code == 0
    assert "2 missing cells of 'w' filled by" in err
