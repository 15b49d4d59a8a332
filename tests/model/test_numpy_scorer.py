"""`bidro export --numpy`: the file predicts what the model does, in a process that has NumPy alone."""

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from bidro import example_visits
from bidro.model.model_file import load_model
from bidro.model.numpy_scorer import numpy_scorer
from tests.cli.test_command import run
from tests.model.onnx.test_exported import CASES, fitted, table

# Imports of anything but the standard library and NumPy fail.
ALONE = """
import json, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("bidro", "pandas", "scipy", "sklearn", "jax"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
import scorer
found = scorer.predict(json.load(open("rows.json")))
json.dump({name: values.tolist() for name, values in found.items()}, sys.stdout)
"""


def scored(model, rows, folder):
    (folder / "scorer.py").write_text(numpy_scorer(model))
    cells = rows.astype(object).where(rows.notna(), None)
    (folder / "rows.json").write_text(json.dumps({name: cells[name].tolist() for name in cells}))
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", ["squared", "personal models", "curves", "curves by level", "two classes",
                                  "smoothed hinge", "curves of two classes", "three classes"])  # fmt: skip
def test_the_file_predicts_what_the_model_does(case, tmp_path):
    kind, options = CASES[case]
    model = fitted(tmp_path, table(kind), **{**options, "personal": "auto"})
    assert model.personal
    rows = pd.concat([table(kind, 200), table(kind, 100).assign(site="new")], ignore_index=True).drop(
        columns="y"
    )
    found, expected = scored(model, rows, tmp_path), model.predict(rows)
    if kind == "number":
        np.testing.assert_allclose(found["prediction"], expected["prediction"], rtol=0, atol=1e-10)
    else:
        assert found["label"] == expected["prediction"].tolist()
        if "probabilities" in found:
            np.testing.assert_allclose(found["probabilities"], expected.iloc[:, 1:], rtol=0, atol=1e-10)
    shared = scored(model, rows.drop(columns="site"), tmp_path)
    plain = model.predict(rows.drop(columns="site"))["prediction"]
    if kind == "number":
        np.testing.assert_allclose(shared["prediction"], plain, rtol=0, atol=1e-10)
    else:
        assert shared["label"] == plain.tolist()


def test_gaps_levels_and_counts(tmp_path):
    rng = np.random.default_rng(0)
    whole = table("number").drop(columns="y")
    whole["dose"] = rng.choice(["1", "2", "10"], len(whole))
    whole.loc[::7, "u"], whole.loc[::9, "ward"] = np.nan, None
    whole["y"] = rng.poisson(np.exp(0.3 * whole["u"].fillna(0) + (whole["dose"] == "2")))
    more = {"missing": "median", "categories": ("dose",), "loss": "poisson", "radius": 0.0}
    model = fitted(tmp_path, whole, **more)
    rows = whole.drop(columns="y")[:60].assign(dose=lambda t: t["dose"].where(t.index % 5 > 0, "1.0"))
    np.testing.assert_allclose(
        scored(model, rows, tmp_path)["prediction"], model.predict(rows)["prediction"], rtol=1e-12
    )
    # An exposure counts by its logarithm.
    whole["hours"] = rng.uniform(0.5, 3, len(whole))
    model = fitted(tmp_path, whole, **more, exposure="hours")
    rows = whole.drop(columns="y")[:60]
    np.testing.assert_allclose(
        scored(model, rows, tmp_path)["prediction"], model.predict(rows)["prediction"], rtol=1e-12
    )
    refusing = fitted(tmp_path, table("number"), missing="refuse")
    rows = table("number", 5).drop(columns="y")
    rows.loc[0, "u"], rows.loc[1, "ward"] = np.nan, None
    gaps = np.isnan(np.array(scored(refusing, rows, tmp_path)["prediction"], float))
    assert gaps.tolist() == [True, True, False, False, False]


def test_the_command_writes_a_program(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example_visits()[:900].to_csv("visits.csv", index=False)
    code, _, err = run(
        capsys, "fit", "visits.csv", "--client", "hospital", "--target", "stay", "--out", "model"
    )
    assert code == 0, err
    code, _, err = run(capsys, "export", "model", "--numpy", "stay.py")
    assert code == 0, err
    done = subprocess.run([sys.executable, "stay.py", "visits.csv"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = load_model(tmp_path / "model").predict(example_visits()[:900])
    np.testing.assert_allclose(
        pd.read_csv(io.StringIO(done.stdout))["prediction"], expected["prediction"], atol=1e-9
    )
    for wrong in ((), ("--numpy", "a.py", "--onnx", "a.onnx")):
        code, _, err = run(capsys, "export", "model", *wrong)
        assert code == 2
        assert "Name one file to write" in err


def test_names_of_columns_are_never_code(tmp_path):
    whole = table("number").rename(columns={"u": "'); raise SystemExit(3) #\\"})
    model = fitted(tmp_path, whole)
    rows = whole[:5].drop(columns="y")
    np.testing.assert_allclose(scored(model, rows, tmp_path)["prediction"], model.predict(rows)["prediction"])
