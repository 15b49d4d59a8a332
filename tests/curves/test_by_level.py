"""A curve of its own for each level of a category: columns, fit, bound, files, and what is refused."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from bidro import RobustClassifier, RobustRegressor
from bidro.core.errors import BidroError
from bidro.data.splines import Basis, Levels
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import drafted
from bidro.losses import Squared
from bidro.model.model_file import load_model
from tests.cli.test_command import run

SEX = Levels((1,), ((0.0,), (1.0,)), ("sex=0", "sex=1"))
# Feature 0 by the level of feature 1; feature 1 a line; feature 2 with one knot.
BASIS = Basis(((0.5,), (-1.0, 1.0), (), (0.0,)), (SEX, None, None))


def test_a_row_is_on_the_curve_of_its_level():
    rows = np.array([[0.8, 0.0, 2.0], [0.8, 1.0, -2.0], [-3.0, 0.9, 0.0]])
    by_hand = [
        # (up to 0.5, above), (below -1, to 1, above), the line, (below 0, above)
        [0.5, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0],
        [0.0, 0.0, 0.0, 0.8, 0.0, 1.0, -2.0, 0.0],
        [0.0, 0.0, -2.0, -1.0, 0.0, 0.9, 0.0, 0.0],
    ]
    np.testing.assert_allclose(BASIS.expand(rows), by_hand, atol=1e-15)
    assert BASIS.feature.tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    assert BASIS.segments.tolist() == [2, 3, 1, 2]
    assert BASIS.most_segments.tolist() == [3, 1, 2]
    slopes = np.array([1.0, 2.0, -3.0, 0.5, 7.0, 4.0, 0.1, -0.2])
    np.testing.assert_allclose(
        BASIS.contributions(rows, slopes), [[1.1, 0, -0.4], [0.4, 4, -0.2], [5.5, 3.6, 0]]
    )
    # The steepest slope of any level counts.
    assert BASIS.steepest(slopes).tolist() == [7.0, 4.0, 0.2]
    # Slopes of different levels are not neighbours.
    assert BASIS.roughness[1, 2] == 0
    assert not BASIS.straight
    assert not Basis(((), (), ()), (SEX, None)).straight
    fewer = BASIS.thinned([2, 1, 1])
    assert fewer.knots == ((0.5,), (1.0,), (), ())
    coarse = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    np.testing.assert_allclose(BASIS.expand(rows) @ coarse[BASIS.onto(fewer)], fewer.expand(rows) @ coarse)
    moved = BASIS.in_units(np.array([10.0, 2.0, 0.0]), np.array([2.0, 3.0, 1.0]))
    assert moved.knots[:2] == ((11.0,), (8.0, 12.0))
    assert moved.by[0].values == ((2.0,), (5.0,))
    least, most = BASIS.ranges(slopes, np.array([-2.0, 0.0, -1.0]), np.array([2.0, 1.0, 1.0]))
    fine = np.stack(np.meshgrid(np.linspace(-2, 2, 401), [0.0, 1.0], [0.0]), axis=-1).reshape(-1, 3)
    values = BASIS.contributions(fine, slopes)[:, 0]
    assert (least[0], most[0]) == pytest.approx((values.min(), values.max()))


def people(n=900, seed=0):
    """The target rises with age for one sex and falls for the other."""
    rng = np.random.default_rng(seed)
    age, sex, bmi = rng.uniform(20, 80, n), rng.integers(0, 2, n), rng.normal(25, 4, n)
    bend = np.where(sex == 1, np.abs(age - 50), -np.abs(age - 40)) / 10
    table = pd.DataFrame({"age": age, "sex": sex.astype(float), "bmi": bmi})
    return table, bend + 0.1 * bmi + 0.2 * rng.normal(size=n), rng.choice(["a", "b", "c"], n)


def test_the_fit_is_least_squares_with_the_columns_of_both_levels():
    """Pooled training without a radius, against a least-squares problem that is built here."""
    X, y, site = people()
    asked = {"age": (4, "sex"), "sex": None, "bmi": None}
    model = RobustRegressor(curves=asked, personal=None, weights="fixed", gap=1e-10).fit(X, y, clients=site)
    assert list(model.curves_) == ["age, sex=0", "age, sex=1", "sex", "bmi"]
    age = ((X["age"] - X["age"].mean()) / X["age"].std(ddof=0)).to_numpy()
    columns, smooth = [], []
    for level in (0, 1):
        own = X["sex"].to_numpy() == level
        inner = (model.curves_[f"age, sex={level}"].knots[1:-1] - X["age"].mean()) / X["age"].std(ddof=0)
        assert len(inner) == 3
        # At quarters of the rows of that level.
        np.testing.assert_allclose(
            [np.mean(age[own] <= knot) for knot in inner], [0.25, 0.5, 0.75], atol=0.02
        )
        ends = [-np.inf, *inner, np.inf]
        for low, high in pairwise(ends):
            columns.append(np.where(own, np.clip(age, low, high) - np.clip(0.0, low, high), 0.0))
        for s in range(3):
            row = np.zeros(8)
            row[4 * level + s], row[4 * level + s + 1] = 1.0, -1.0
            # c / 2 times 2 / N, c = 2, of N times the mean.
            smooth.append(np.sqrt(2.0) * row)
    rest = [X["sex"] - X["sex"].mean(), X["bmi"] - X["bmi"].mean(), np.ones(len(X))]
    design = np.column_stack([*columns, *rest])
    padded = np.pad(np.array(smooth), [(0, 0), (0, 3)])
    best = np.linalg.lstsq(np.vstack([design, padded]), np.append(y, np.zeros(6)), rcond=None)[0]
    np.testing.assert_allclose(model.predict(X), design @ best, atol=1e-5)
    assert np.mean((model.predict(X) - y) ** 2) < 0.06
    shares = model.explain(X)
    assert list(shares) == ["base", "age", "sex", "bmi"]
    np.testing.assert_allclose(shares.sum(axis=1), model.predict(X), rtol=1e-12)


def test_the_bound_holds_and_the_category_does_not_move():
    X, y, site = people(240)
    model = RobustRegressor(
        curves={"age": (2, "sex"), "bmi": None}, personal=None, weights="fixed", radius=0.2
    )
    model.fit(X, y, clients=site)
    slopes = [np.abs(model.curves_[f"age, sex={level}"].slopes).max() for level in (0, 1)]
    spread = X.std(ddof=0)
    # nu: the steeper of the two levels, the line of bmi, and nothing of sex.
    nu = np.hypot(max(slopes) * spread["age"], model.curves_["bmi"].slopes[0] * spread["bmi"])
    for name in ("a", "b", "c"):
        own = site == name
        rmse = np.sqrt(np.mean((model.predict(X[own]) - y[own]) ** 2))
        assert model.client_risks_[name] >= (rmse + 0.2 * nu) ** 2 * (1 - 1e-6)
        found = model.worst_case(name)
        assert np.array_equal(found.points[:, 1], X["sex"].to_numpy()[own][found.origins])
        assert rmse**2 < found.expected_loss <= model.client_risks_[name] * (1 + 1e-9)


def test_classes_and_personal_models():
    X, y, site = people(400)
    # What the level itself adds is not the point.
    label = y > np.where(X["sex"] == 1, np.median(y[X["sex"] == 1]), np.median(y[X["sex"] == 0]))
    model = RobustClassifier(curves={"age": (4, "sex")}, weights="fixed").fit(X, label, clients=site)
    line = RobustClassifier(curves=None, weights="fixed").fit(X, label, clients=site)
    assert model.score(X, label) > line.score(X, label) + 0.05
    np.testing.assert_allclose(model.explain(X).sum(axis=1), model.decision_function(X), rtol=1e-9)


def test_the_command_its_file_and_its_pictures(tmp_path, capsys):
    X, y, site = people(600)
    table = X.assign(sex=np.where(X["sex"] == 1, "woman", "man"), stay=y, site=site)
    table.to_csv(tmp_path / "t.csv", index=False)
    named = ("--client", "site", "--target", "stay", "--personal", "none", "--out", tmp_path / "model")
    code, _, err = run(capsys, "fit", tmp_path / "t.csv", *named, "--curves", "age=4@sex,bmi=none")
    assert code == 0, err
    model = load_model(tmp_path / "model")
    basis = model.loss.basis
    assert basis.by[0].names == ("sex=man", "sex=woman")
    assert model.to_bytes() == load_model(tmp_path / "model").to_bytes()
    drawn = json.loads((tmp_path / "model" / "report.json").read_text())["curves"]["columns"]
    assert [one["name"] for one in drawn][:2] == ["age, sex=man", "age, sex=woman"]
    code, _, err = run(
        capsys, "predict", tmp_path / "model", tmp_path / "t.csv", "--explain", "--out", tmp_path / "e.csv"
    )
    assert code == 0, err
    again = ("fit", "--config", tmp_path / "model" / "run.toml", "--out", tmp_path / "again")
    assert run(capsys, *again)[0] == 0
    np.testing.assert_allclose(load_model(tmp_path / "again").x, model.x, rtol=1e-7)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"age": (4, "ward")}, "curves of 'age' names 'ward', which is no feature"),
        ({"age": (4, "age")}, "cannot have curves by itself"),
        ({"age": (4, "bmi")}, "900 different values"),
        ({"age": (4,)}, "by its segments and the category"),
        ({"age": (4, 3)}, "by its segments and the category"),
        ({"age": ("many", "sex")}, "curves are 'auto', None, a number"),
    ],
)
def test_what_stands_for_nothing(asked, words):
    X, y, site = people()
    with pytest.raises(BidroError, match=words):
        RobustRegressor(curves=asked).fit(X, y, clients=site)


def test_levels_and_machines_apart():
    with pytest.raises(BidroError, match="different finite values"):
        Levels((0,), ((1.0,), (1.0,)), ("a", "b"))
    with pytest.raises(BidroError, match="needs a name"):
        Levels((0,), ((1.0,), (2.0,)), ("a",))
    with pytest.raises(BidroError, match="4 curves of 3 features, and knots of 3"):
        Basis(((), (), ()), (SEX, None, None))
    X, y, site = people(60)
    table = X.assign(sex=np.where(X["sex"] == 1, "woman", "man"), stay=y, site=site)
    schema = learn_schema(table, "site", "stay", None, None, "refuse")
    with pytest.raises(BidroError, match="not for machines apart"):
        drafted(schema, table, training={"curves": {"age": "4@sex"}})
    assert Squared(True, basis=BASIS).dimension(4) == 9
