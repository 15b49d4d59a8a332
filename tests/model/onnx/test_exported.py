"""`bidro export`: what an ONNX file predicts is what the model does, over losses, classes, curves and own
models."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.standardise import Standard
from bidro.data.tables import Column, Schema, UnseenLevelsWarning
from bidro.fit.fitted import Progress
from bidro.losses import Logistic, Squared
from bidro.model.model_file import Model, load_model
from bidro.model.onnx.exported import onnx_of
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from tests.cli.test_command import run
from tests.small import mostly_slow

CASES = {
    "squared": ("number", {}),
    "absolute": ("number", {"loss": "absolute"}),
    "huber": ("number", {"loss": "huber"}),
    "pinball": ("number", {"loss": "pinball", "quantile": 0.8}),
    "personal models": ("number", {"personal": "auto"}),
    "curves": ("number", {"curves": "auto"}),
    "curves by level": ("number", {"curves": {"u": (4, "ward"), "my v": None}}),
    "pairs": ("number", {"pairs": [("u", "my v"), ("u", "ward")], "radius": 0.0, "personal": "auto"}),
    "two classes": ("two", {}),
    "smoothed hinge": ("two", {"loss": "smoothed hinge"}),
    "curves of two classes": ("two", {"curves": "auto"}),
    "three classes": ("three", {}),
    "curves of three classes": ("three", {"curves": "auto"}),
}


def table(kind, rows=400):
    rng = np.random.default_rng(1)
    site, ward = rng.choice(["a", "b", "c"], rows), rng.choice(["x", "y", "z"], rows)
    u, v = rng.normal(size=rows), rng.normal(10, 5, rows)
    y = 2 * np.sin(2 * u) + 0.1 * v + (ward == "y") + 2.0 * (site == "b") + 0.3 * rng.normal(size=rows)
    if kind == "two":
        y = np.where(y > 1.5, "yes", "no")
    elif kind == "three":
        y = np.where(y > 2.5, "high", np.where(y > 1, "middle", "low"))
    return pd.DataFrame({"site": site, "u": u, "my v": v, "ward": ward, "y": y})


def fitted(folder, whole, **options):
    whole.to_csv(folder / "table.csv", index=False)
    parts = {"radius": 0.05, "weights": "simplex", "personal": None, "hold_out": 0.0, **options}
    parts |= {"client": "site", "target": "y", "tables": (str(folder / "table.csv"),)}
    return fit_tables(FitOptions(**parts), Progress()).model


def outputs(data, rows):
    """What ONNX Runtime makes of a table, by the names of the outputs."""
    session = onnxruntime.InferenceSession(data)
    fed = {
        port.name: rows[[port.name]].to_numpy(object if port.type == "tensor(string)" else float)
        for port in session.get_inputs()
    }
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(None, fed), strict=True)), set(fed)


# Lines of a number are one graph whatever loss they were trained by: "squared" and "absolute" show it.
LONGER = ("huber", "pinball", "curves of three classes")


@pytest.mark.parametrize("case", mostly_slow([*CASES], lambda case: case not in LONGER))
def test_the_file_predicts_what_the_model_does(case, tmp_path):
    kind, options = CASES[case]
    whole = table(kind)
    model = fitted(tmp_path, whole, **options)
    if "personal" in options:
        assert model.personal
    if "curves" in options or "pairs" in options:
        assert not model.predictor().straight
    fresh = table(kind, 300).assign(site="new")
    fresh["u"] *= 3  # beyond what training saw, too
    rows = pd.concat([whole, fresh], ignore_index=True)
    found, inputs = outputs(onnx_of(model), rows)
    expected = model.predict(rows)
    assert inputs == {"u", "my v", "ward"} | ({"site"} if model.personal else set())
    if kind == "number":
        np.testing.assert_allclose(found["prediction"][:, 0], expected["prediction"], atol=1e-6, rtol=0)
        return
    assert found["label"].tolist() == expected["prediction"].tolist()
    if case == "smoothed hinge":
        assert set(found) == {"label", "scores"}
    else:
        shares = expected.drop(columns="prediction").to_numpy(float)
        np.testing.assert_allclose(found["probabilities"], shares, atol=1e-6, rtol=0)


@pytest.mark.parametrize("classes", [None, ("no", "yes")])
def test_a_level_that_training_did_not_see_counts_as_in_the_model(tmp_path, classes):
    loss, x = (Logistic if classes else Squared)(intercept=True), np.array([2.0, -4.0, 1.0])
    schema = Schema("site", "y", classes, (Column("u"), Column("ward", ("x", "y"))))
    standard = Standard(np.zeros(2), np.ones(2), 0.0, 1.0)
    model = Model(schema, loss, x, standard, ("a",), 1.0, None, None, False, {}, {})
    new = pd.DataFrame({"u": [0.2], "ward": ["elsewhere"]})
    found, _ = outputs(onnx_of(model), new)
    with pytest.warns(UnseenLevelsWarning):
        expected = model.predict(new)["prediction"].tolist()
    # Twice 0.2, and half of the second level's -4, with the intercept: the mean over the two levels.
    assert expected == (pytest.approx([0.2 * 2 - 4 / 2 + 1]) if classes is None else ["no"])
    output = found["label"] if classes else found["prediction"][:, 0]
    assert output.tolist() == (expected if classes else pytest.approx(expected))


def test_what_the_model_refuses_has_no_prediction(tmp_path):
    whole = table("number")
    odd = whole.iloc[:2].assign(ward=["x", ""])
    odd.loc[odd.index[0], "u"] = np.nan
    found, _ = outputs(onnx_of(fitted(tmp_path, whole)), odd)
    assert np.isnan(found["prediction"]).all()
    classes, _ = outputs(onnx_of(fitted(tmp_path, table("two"))), odd)
    assert classes["label"].tolist() == ["", ""]
    # With a rule for missing values it has one, that of the model.
    gaps = table("number")
    gaps.loc[::7, "u"] = np.nan
    gaps.loc[::5, "ward"] = None
    model = fitted(tmp_path, gaps, missing="median")
    found, _ = outputs(onnx_of(model), gaps.assign(ward=gaps["ward"].fillna("")))
    np.testing.assert_allclose(found["prediction"][:, 0], model.predict(gaps)["prediction"], atol=1e-6)


def test_the_command_writes_the_file(tmp_path, capsys, monkeypatch):
    table("two").to_csv(tmp_path / "visits.csv", index=False)
    options = ("--client", "site", "--target", "y", "--radius", "0.1", "--personal", "none")
    assert run(capsys, "fit", tmp_path / "visits.csv", *options, "--out", tmp_path / "model")[0] == 0
    code, out, err = run(capsys, "export", tmp_path / "model", "--onnx", tmp_path / "model.onnx")
    assert (code, err) == (0, "")
    assert "its inputs are the columns u, my v, ward." in out
    model = load_model(tmp_path / "model")
    assert (tmp_path / "model.onnx").read_bytes() == onnx_of(model)
    code, _, err = run(capsys, "export", tmp_path / "model", "--onnx", tmp_path)
    assert code == 1
    assert "is a folder" in err
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = run(capsys, "export", tmp_path / "model", "--onnx", tmp_path / "other.onnx")
    assert code == 1
    assert "pip install 'bidro[onnx]'" in err
    assert not (tmp_path / "other.onnx").exists()


def test_columns_named_as_outputs_are_refused(tmp_path):
    whole = table("number").rename(columns={"u": "prediction"})
    with pytest.raises(BidroError, match="named as an output of the file"):
        onnx_of(fitted(tmp_path, whole))
