"""What the page draws of curves: the shares of predictions, what matters most first, and where rows lie."""

import json

import numpy as np
import pandas as pd
import pytest

from bidro.fit.fitted import Progress
from bidro.model.summary import summary_of
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from bidro.workflow.page_content import QUANTILES, drawn_curves, page_content, row_quantiles
from tests.cli.test_command import run


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    rng = np.random.default_rng(0)
    n = 900
    ward = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])
    age = rng.uniform(20, 80, n)
    dull = rng.normal(size=n)
    stay = (
        np.abs(age - 50) / 10 + np.select([ward == "b", ward == "c"], [0.5, -0.5]) + 0.2 * rng.normal(size=n)
    )
    table = pd.DataFrame(
        {"hospital": rng.choice(["x", "y"], n), "dull": dull, "ward": ward, "age": age, "stay": stay}
    )
    path = tmp_path_factory.mktemp("drawn") / "visits.csv"
    table.to_csv(path, index=False)
    return path, table


def fitted(path, **more):
    options = FitOptions(
        (str(path),),
        client="hospital",
        target="stay",
        personal=None,
        hold_out=0.0,
        **{"curves": "auto", **more},
    )
    return fit_tables(options, Progress())


def test_what_is_drawn_adds_up_to_the_predictions(visits):
    path, table = visits
    done = fitted(path)
    found = drawn_curves(done.model, row_quantiles(done.clients.federation, done.standard))
    columns = {one["name"]: one for one in found["columns"]}
    assert [one["name"] for one in found["columns"]] == ["age", "ward", "dull"]
    by_hand = done.model.predictor().base[0] + sum(
        np.interp(table[name], columns[name]["knots"], columns[name]["values"]) for name in ("age", "dull")
    )
    place = table["ward"].map({level: k for k, level in enumerate(columns["ward"]["levels"])})
    by_hand = by_hand + np.array(columns["ward"]["values"])[place]
    predicted = done.model.predictor().scores(done.model.schema.matrix(table))[:, 0]
    np.testing.assert_allclose(by_hand, predicted, rtol=1e-9)


def test_how_much_a_column_matters_is_how_much_its_share_varies(visits):
    path, table = visits
    done = fitted(path)
    found = {
        one["name"]: one
        for one in drawn_curves(done.model, row_quantiles(done.clients.federation, done.standard))["columns"]
    }
    shares = done.model.predictor().explained(
        done.model.schema.matrix(table), done.model.schema.features, None
    )
    assert found["age"]["matters"] == pytest.approx(shares["age"].std(), rel=0.02)
    levels = shares["ward=b"] + shares["ward=c"]
    assert found["ward"]["matters"] == pytest.approx(levels.std(), rel=0.02)
    np.testing.assert_allclose(
        found["ward"]["shares"], table["ward"].value_counts(normalize=True)[["a", "b", "c"]], atol=1e-9
    )
    for name, own in table.groupby("hospital"):
        np.testing.assert_allclose(found["age"]["rows"][name], own["age"].quantile(QUANTILES), rtol=1e-9)


def test_without_rows_a_column_matters_by_its_unit(visits):
    """Over a normal distribution a line of slope w varies by w times the spread, about."""
    path, table = visits
    done = fitted(path, curves={"dull": None})
    found = drawn_curves(done.model, None)
    assert not found["rows_here"]
    dull = next(one for one in found["columns"] if one["name"] == "dull")
    assert "rows" not in dull
    slope = (dull["values"][1] - dull["values"][0]) / (dull["knots"][1] - dull["knots"][0])
    assert dull["matters"] == pytest.approx(abs(slope) * table["dull"].std(), rel=0.03)


def test_lines_are_not_drawn_as_curves(visits, tmp_path, capsys):
    path, _ = visits
    base = ("fit", path, "--client", "hospital", "--target", "stay", "--personal", "none", "--hold-out", "0")
    assert run(capsys, *base, "--curves", "none", "--out", tmp_path / "line")[0] == 0
    assert json.loads((tmp_path / "line" / "report.json").read_text())["curves"] is None
    code, _, err = run(capsys, "report", tmp_path / "line", "--curves", tmp_path / "pictures")
    assert code != 0
    assert "has no curves" in err


def test_pictures_of_curves_are_written(visits, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, _ = visits
    base = ("fit", path, "--client", "hospital", "--target", "stay", "--personal", "none", "--hold-out", "0")
    assert run(capsys, *base, "--curves", "auto", "--out", tmp_path / "model")[0] == 0
    code, out, _ = run(capsys, "report", tmp_path / "model", "--curves", tmp_path / "pictures", "--json")
    assert code == 0
    paths = json.loads(out)["curves"]
    assert [name.rsplit("/", 1)[1] for name in paths] == ["01-age.png", "02-ward.png", "03-dull.png"]
    for name in paths:
        with open(name, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_curves_have_the_bands_of_the_summary_where_there_are_any(visits):
    path, _ = visits
    done = fitted(path, weights="fixed")
    found = json.loads(json.dumps(page_content(done)["curves"]))
    columns = {one["name"]: one for one in found["columns"]}
    of_age = summary_of(done, done.model.schema.features).curves["age"]
    assert columns["age"]["band"]["share"] == 0.95
    lower, upper = (np.array(end) for end in columns["age"]["band"]["ends"])
    values = np.array(columns["age"]["values"])
    np.testing.assert_allclose(upper - values, of_age["upper"] - of_age["value"])
    np.testing.assert_allclose(values - lower, of_age["value"] - of_age["lower"])
    np.testing.assert_allclose(values, of_age["value"], atol=1e-9)
    assert (upper > lower).all()
    assert "band" not in columns["ward"]
    radius = page_content(fitted(path, weights="fixed", radius=0.1))["curves"]["columns"]
    assert not any("band" in one for one in radius)
