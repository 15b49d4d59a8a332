"""Frames with columns of text go straight in: the same model as of columns coded by hand."""

import pickle

import numpy as np
import pandas as pd
import polars
import pytest

from bidro import RobustClassifier, RobustRegressor, example_visits, plot_clients, plot_curves, plot_frontier
from bidro.core.errors import BidroError

ROWS, FRESH = example_visits()[:1500], example_visits(seed=1)[:500]
X, Y = ROWS.drop(columns="stay"), ROWS["stay"]
NEW = FRESH.drop(columns="stay")


@pytest.fixture(scope="module")
def model():
    return RobustRegressor(curves=None).fit(X, Y, clients="hospital")


def by_hand(table):
    plain = table.drop(columns=["hospital", "ward", "stay"], errors="ignore")
    for level in ("surgery", "trauma"):
        plain[f"ward={level}"] = (table["ward"] == level).astype(float)
    return plain[["age", "ward=surgery", "ward=trauma", "bmi", "earlier", "walk", "frailty"]]


def test_text_is_coded_as_one_would_by_hand(model):
    plain = RobustRegressor(curves=None).fit(by_hand(X), Y, clients=X["hospital"])
    assert model.get_feature_names_out().tolist() == plain.feature_names_in_.tolist()
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    expected = plain.predict(by_hand(NEW), clients=NEW["hospital"])
    np.testing.assert_array_equal(model.predict(NEW), expected)
    # Columns in another order, and one besides, are found by their names.
    mixed = NEW[NEW.columns[::-1]].assign(more="x")
    np.testing.assert_array_equal(model.predict(mixed), expected)
    bounds = [
        one.certify(table, FRESH["stay"], clients=NEW["hospital"]).personal.bound
        for one, table in ((model, NEW), (plain, by_hand(NEW)))
    ]
    assert bounds[0] == bounds[1]
    assert model.score(NEW, FRESH["stay"]) == plain.score(
        by_hand(NEW), FRESH["stay"], clients=NEW["hospital"]
    )
    np.testing.assert_allclose(model.explain(NEW).sum(axis=1), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(NEW), expected)


def test_frames_of_polars_and_declared_categories_are_the_same(model):
    def of(table):
        return polars.DataFrame({name: table[name].to_list() for name in table})

    other = RobustRegressor(curves=None).fit(of(X), Y.to_numpy(), clients="hospital")
    np.testing.assert_array_equal(other.coef_, model.coef_)
    np.testing.assert_array_equal(other.predict(of(NEW)), model.predict(NEW))
    declared = RobustRegressor(curves=None).fit(X.astype({"ward": "category"}), Y, clients="hospital")
    np.testing.assert_array_equal(declared.coef_, model.coef_)


def test_people_may_be_a_column_and_are_no_feature():
    table = X.assign(patient=np.arange(len(X)) // 2)
    found = RobustClassifier(curves=None).fit(table, Y > 8, clients="hospital", people="patient")
    assert "patient" not in found.get_feature_names_out()
    assert found.certificate_.names == tuple(sorted(set(X["hospital"])))


def test_what_is_no_frame_of_training_is_refused(model):
    with pytest.raises(BidroError, match="fitted on a frame with columns of text"):
        model.predict(np.ones((2, 7)))
    with pytest.raises(BidroError, match="no column 'ward'"):
        model.predict(NEW[["age", "hospital"]])
    with pytest.raises(BidroError, match=r"'name' has .* different texts"):
        RobustRegressor().fit(X.assign(name=[f"p{k}" for k in range(len(X))]), Y, clients="hospital")
    with pytest.raises(BidroError, match="missing values: 3 in 'ward'"):
        RobustRegressor().fit(X.assign(ward=X["ward"].where(X.index > 2)), Y, clients="hospital")
    with pytest.warns(UserWarning, match="level"):
        model.predict(NEW.assign(ward="elsewhere"))


def test_pictures_show_the_numbers_of_the_model(model):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    _, axes = pyplot.subplots(1, 3)
    found = model.calibration_
    drawn = plot_frontier(model, ax=axes[0]).get_lines()[0].get_xdata()
    np.testing.assert_allclose(drawn, 100 * (found.means / found.means[found.pooled] - 1))
    curves = plot_curves(model, "age", ax=axes[1]).get_lines()
    np.testing.assert_array_equal(
        curves[len(model.personal_curves_)].get_ydata(), model.curves_["age"].values
    )
    assert len([line for line in curves if len(line.get_xdata())]) == len(model.personal_curves_) + 1
    shown = plot_clients(model, NEW, FRESH["stay"], ax=axes[2])
    names = [label.get_text() for label in shown.get_yticklabels()]
    worst = NEW["hospital"] == names[-1]
    error = np.sqrt(np.mean((model.predict(NEW[worst]) - FRESH["stay"][worst]) ** 2))
    assert shown.get_lines()[1].get_xdata()[-1] == pytest.approx(error)
    assert error == max(shown.get_lines()[1].get_xdata())
    for wrong in (lambda: plot_curves(model, "height"), lambda: plot_curves(model, "age", ["nowhere"])):
        with pytest.raises(BidroError):
            wrong()
    with pytest.raises(BidroError, match="no frontier"):
        plot_frontier(RobustRegressor(weights="fixed", personal=None, curves=None).fit(X[["age"]], Y))
    with pytest.raises(BidroError, match="Name the client"):
        plot_clients(RobustRegressor(curves=None).fit(X[["age"]], Y), X[["age"]], Y)


def test_rows_of_numbers_are_as_before():
    numbers = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30) % 4})
    found = RobustRegressor(curves=None).fit(numbers, numbers["a"] + numbers["b"])
    assert found.feature_names_in_.tolist() == ["a", "b"]
    assert found.predict(numbers.to_numpy()).shape == (30,)
