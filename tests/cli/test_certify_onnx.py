"""`bidro certify --onnx`: a model in a file, run on tables here, is certified as its predictions are."""

import json

import numpy as np
import pytest
from onnx import helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import bidro
from bidro.certify.certificate import Certificate
from tests.cli.test_command import run
from tests.cli.test_command import visits as visits_without_bmi
from tests.model.onnx.graphs import DOUBLE, linear, of_matrix

COLUMNS = ("--client", "hospital", "--target", "stay")
FEATURES = ["age", "bmi"]


def visits(seed, rows=(150, 200, 250)):
    table = visits_without_bmi(seed, rows)
    return table.assign(bmi=np.random.default_rng(seed).normal(25, 4, len(table)))


def long_or_short(table):
    return np.where(table["stay"] > table["stay"].median(), "yes", "no")


@pytest.fixture(scope="module")
def models():
    past = visits(0)
    rows = past[FEATURES].to_numpy(np.float32)
    numbers = GradientBoostingRegressor(n_estimators=30, random_state=0).fit(rows, past["stay"])
    coding = ColumnTransformer([("ward", OneHotEncoder(), ["ward"])], remainder="passthrough")
    classes = make_pipeline(coding, GradientBoostingClassifier(n_estimators=30, random_state=0))
    classes.fit(past[[*FEATURES, "ward"]], long_or_short(past))
    return numbers, classes


@pytest.fixture(scope="module")
def folder(tmp_path_factory, models):
    where = tmp_path_factory.mktemp("onnx")
    numbers, classes = models
    (where / "model.onnx").write_bytes(
        to_onnx(numbers, initial_types=[("X", FloatTensorType([None, 2]))]).SerializeToString()
    )
    ports = [(name, FloatTensorType([None, 1])) for name in FEATURES]
    ports.append(("ward", StringTensorType([None, 1])))
    for zipmap in (True, False):
        made = to_onnx(classes, initial_types=ports, options={"zipmap": zipmap})
        (where / f"classes-{zipmap}.onnx").write_bytes(made.SerializeToString())
    helper.set_model_props(made, {"classes": json.dumps(["yes", "no"])})
    (where / "turned.onnx").write_bytes(made.SerializeToString())
    (where / "mean.onnx").write_bytes(linear([0.0, 0.0], float(visits(0)["stay"].mean())))
    for seed, name in ((1, "fresh"), (2, "other")):
        table = visits(seed)
        table.assign(long=long_or_short(table)).to_csv(where / f"{name}.csv", index=False)
    return where


def certified(capsys, folder, model, *options):
    return run(capsys, "certify", "--onnx", folder / model, folder / "fresh.csv", *options)


def test_numbers_as_their_predictions(folder, models, capsys):
    fresh, other = (visits(seed) for seed in (1, 2))
    options = ("--features", "age,bmi", "--loss", "absolute", "--clip-from", folder / "other.csv")
    code, out, err = certified(
        capsys, folder, "model.onnx", *COLUMNS, *options, "--against", folder / "mean.onnx", "--json"
    )
    assert (code, err) == (0, "")
    said, before = (models[0].predict(t[FEATURES].to_numpy(np.float32)) for t in (fresh, other))
    expected = bidro.certify_predictions(
        fresh["stay"], said, fresh["hospital"], loss="absolute", clip_from=(other["stay"], before),
        against=np.full(len(fresh), visits(0)["stay"].mean()),
    )  # fmt: skip
    found = Certificate.from_json(out)
    # The file computes in single precision.
    assert found.clipped.bound == pytest.approx(expected.clipped.bound, rel=1e-5)
    assert found.against.bound == pytest.approx(expected.against.bound, rel=1e-4)
    assert dict(found.clipped.rows) == dict(expected.clipped.rows)


@pytest.mark.parametrize("model", ["classes-True.onnx", "classes-False.onnx"])
def test_classes_with_raw_columns(folder, models, model, capsys):
    table = visits(1)
    columns = ("--client", "hospital", "--target", "long")
    for loss in ("mistakes", "brier"):
        code, out, err = certified(capsys, folder, model, *columns, "--loss", loss, "--json")
        assert (code, err) == (0, "")
        said = models[1].predict_proba(table[[*FEATURES, "ward"]])
        expected = bidro.certify_predictions(
            long_or_short(table), said, table["hospital"], loss=loss, classes=["no", "yes"]
        )
        found = Certificate.from_json(out)
        assert found.mistakes.bound == pytest.approx(expected.mistakes.bound, rel=1e-9)
        if loss == "brier":
            assert found.held_out.bound == pytest.approx(expected.held_out.bound, rel=1e-5)


def test_our_own_model_there_and_back(folder, tmp_path, capsys):
    """Fit, export, certify: as certifying its predictions, which the command writes, too."""
    visits(0).to_csv(tmp_path / "past.csv", index=False)
    assert run(capsys, "fit", tmp_path / "past.csv", *COLUMNS, "--radius", "0.1", "--personal", "auto",
               "--out", tmp_path / "model")[0] == 0  # fmt: skip
    assert run(capsys, "export", tmp_path / "model", "--onnx", tmp_path / "model.onnx")[0] == 0
    fresh = visits(1)
    said = bidro.load_model(tmp_path / "model").predict(fresh)["prediction"]
    expected = bidro.certify_predictions(fresh["stay"], said, fresh["hospital"], largest=400.0)
    code, out, err = run(capsys, "certify", "--onnx", tmp_path / "model.onnx", folder / "fresh.csv", *COLUMNS,
                         "--largest", "400", "--json", "--report", tmp_path / "page.html")  # fmt: skip
    assert code == 0
    assert "the report is in" in err
    assert Certificate.from_json(out).held_out.bound == pytest.approx(expected.held_out.bound, rel=1e-9)
    assert "model.onnx" in (tmp_path / "page.html").read_text()


def test_one_sentence_for_every_kind_of_trouble(folder, tmp_path, capsys):
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "wide.onnx").write_bytes(
        of_matrix([("Identity", ["X"], ["y"], {})], 2, None, (DOUBLE, [None, 2]))
    )
    age = ("--features", "age,bmi", "--largest", "9")
    cases = (
        ("text.onnx", (*COLUMNS, *age), "text.onnx': The file is no ONNX model"),
        ("none.onnx", (*COLUMNS, *age), "none.onnx' cannot be read"),
        ("wide.onnx", (*COLUMNS, *age, "--loss", "squared"), "one number a row"),
        (folder / "model.onnx", (*COLUMNS, "--features", "age", "--largest", "9"), "takes 2 numbers a row"),
        (folder / "model.onnx", (*COLUMNS, "--largest", "9"), "none was named"),
        (folder / "model.onnx", (*COLUMNS, "--features", "age,none", "--largest", "9"), "no column 'none'"),
        (folder / "model.onnx", (*COLUMNS, "--features", "age,ward", "--largest", "9"), "'ward'"),
        (folder / "model.onnx", (*COLUMNS, *age, "--loss", "mistakes"), "classes"),
        (folder / "model.onnx", (*COLUMNS, "--features", "age,bmi"), "no largest value of its own"),
        (folder / "turned.onnx", ("--client", "hospital", "--target", "long", "--loss", "brier"),
         "is not the class of its highest probability"),
    )  # fmt: skip
    for model, options, words in cases:
        code, _, err = run(capsys, "certify", "--onnx", tmp_path / model, folder / "fresh.csv", *options)
        assert code == 1, (model, options)
        assert words in err, err
        assert err.count("\n") == 1
    for options, words in (
        ((folder / "fresh.csv", *COLUMNS, "--prediction", "stay"), "--prediction goes with --predictions"),
        ((*COLUMNS,), "needs tables of fresh rows"),
        ((folder / "fresh.csv", "--client", "hospital"), "needs --client COLUMN and --target COLUMN"),
        ((folder / "fresh.csv", *COLUMNS, "--shift", "0.1"), "--shift needs a model that was trained here"),
        ((*COLUMNS, "--predictions", folder / "fresh.csv"), "not two of them"),
    ):
        code, _, err = run(capsys, "certify", "--onnx", folder / "model.onnx", *options)
        assert code == 2
        assert words in " ".join(err.replace("│", " ").split())
