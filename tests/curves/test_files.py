"""Models with curves as files, and in the command."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.splines import Basis
from bidro.losses import Squared
from bidro.model.model_file import Model
from tests.cli.test_command import run
from tests.model.test_model_file import model, written

BASIS = Basis(((-0.5, 0.25), ()))
CURVED = replace(
    model(Squared(True, basis=BASIS), [1.0, -2.0, 0.5, 3.0, 0.1]),
    low=np.array([20.0, 0.0]),
    high=np.array([60.0, 1.0]),
)


def test_knots_and_ranges_come_back():
    again = Model.from_bytes(CURVED.to_bytes(), "here")
    assert again.loss == CURVED.loss
    assert np.array_equal(again.low, CURVED.low)
    assert np.array_equal(again.high, CURVED.high)
    assert again.to_bytes() == CURVED.to_bytes()
    curve = again.predictor().curves(["age", "ward=y"], again.low, again.high)["age"]
    # The knots are at 40 - 0.5 * 10 and 40 + 0.25 * 10, slopes a tenth of those in standard units.
    assert curve.knots.tolist() == [20.0, 35.0, 42.5, 60.0]
    np.testing.assert_allclose(curve.slopes, [0.1, -0.2, 0.05])
    np.testing.assert_allclose(np.diff(curve.values), [1.5, -1.5, 0.05 * 17.5])


def test_predictions_shares_and_rows_outside_what_was_seen():
    table = pd.DataFrame({"age": [40.0, 30.0, 70.0], "ward": ["x", "y", "y"]})
    # In standard units -1, -0.5 (a knot) and so on; the second feature is (0 - 0.5) / 0.25 = -2, or 2.
    expected = 3.1 + np.array([0.0, 1.0 - 0.5, -0.5 + 0.5 * 2.75]) + 3 * np.array([-2.0, 2.0, 2.0])
    phi = BASIS.expand((np.array([[40.0, 0], [30.0, 1], [70.0, 1]]) - [40.0, 0.5]) / [10.0, 0.25])
    np.testing.assert_allclose(CURVED.predict(table)["prediction"], phi @ CURVED.x[:4] + 3.1)
    assert expected[0] == pytest.approx(CURVED.predict(table)["prediction"][0])
    shares = CURVED.explain(table)
    assert list(shares) == ["base", "age", "ward=y"]
    np.testing.assert_allclose(shares.sum(axis=1), CURVED.predict(table)["prediction"])
    assert CURVED.outside(table) == {"age": 1}
    assert replace(CURVED, low=None, high=None).outside(table) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"knots": [[0.5, -0.5], []]},
        {"knots": [[0.5]]},
        {"knots": [["0.5"], []]},
        {"knots": [[True], []]},
        {"knots": [[-0.5, 0.25, 1.0], []]},
        {"knots": "0.5"},
        {"knots": {"age": 1.0}},
    ],
    ids=str,
)
def test_hostile_knots_are_refused(changes):
    header = {"name": "squared", "intercept": True, **changes}
    with pytest.raises(BidroError, match=r"'here' is not a whole model|ascending order"):
        Model.from_bytes(written(CURVED, loss=header), "here")


def test_the_command_from_fit_to_explained_predictions(tmp_path, capsys):
    rng = np.random.default_rng(0)
    age, ward = rng.uniform(20, 80, 400), rng.choice(["a", "b"], 400)
    stay = np.abs(age - 50) / 10 + 2.0 * (ward == "b") + 0.3 * rng.normal(size=400)
    table = pd.DataFrame({"site": rng.choice(["n", "s"], 400), "age": age, "ward": ward, "stay": stay})
    table.to_csv(tmp_path / "t.csv", index=False)
    asked = ("--client", "site", "--target", "stay", "--curves", "auto", "--out", tmp_path / "m", "--json")
    code, out, _ = run(capsys, "fit", tmp_path / "t.csv", *asked)
    assert code == 0
    assert "1 of 2 features are curves of up to" in json.loads(out)["chosen"]["curves"]
    assert 'curves = "auto"' in (tmp_path / "m" / "run.toml").read_text()
    page = json.loads((tmp_path / "m" / "report.json").read_text())
    assert page["features"][0]["curve"]["knots"][0] == pytest.approx(age.min(), rel=0.2)
    fresh = pd.DataFrame({"age": [25.0, 50.0, 200.0], "ward": ["a", "b", "a"]})
    fresh.to_csv(tmp_path / "f.csv", index=False)
    code, out, err = run(capsys, "predict", tmp_path / "m", tmp_path / "f.csv", "--explain", "--json")
    found = pd.DataFrame(json.loads(out)["predictions"])
    assert code == 0
    assert "1 row lies outside the values that the curve of 'age' is drawn over" in err
    np.testing.assert_allclose(found.drop(columns="prediction").sum(axis=1), found["prediction"])
    assert found["prediction"][0] == pytest.approx(2.5, abs=0.3)
    code, out, err = run(capsys, "evaluate", tmp_path / "m", tmp_path / "t.csv", "--json")
    assert json.loads(out)["mean"] < 0.2


@pytest.mark.parametrize(
    ("curves", "words"),
    [("many", "a number of segments"), ("size=4", "'size', which is no feature"), ("age=x", "by feature")],
)
def test_the_command_refuses_curves_that_stand_for_nothing(tmp_path, capsys, curves, words):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": ["n", "s"] * 20, "age": rng.normal(size=40), "stay": rng.normal(size=40)})
    table.to_csv(tmp_path / "t.csv", index=False)
    asked = ("--client", "site", "--target", "stay", "--out", tmp_path / "m", "--curves", curves)
    code, _, err = run(capsys, "fit", tmp_path / "t.csv", *asked)
    assert code == 1
    assert words in err


def test_ranges_that_are_not_of_the_features_are_refused():
    for sides in ({"low": np.zeros(3)}, {"high": np.ones(1)}, {"low": np.zeros((2, 1))}):
        with pytest.raises(BidroError, match="do not fit its 2 features"):
            Model.from_bytes(replace(CURVED, **sides).to_bytes(), "here")
