"""Curves in a fit: how many segments, what the estimators have of them, and what they refuse."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone

from bidro import RobustClassifier, RobustRegressor
from bidro.core.errors import BidroError
from bidro.data.splines import Basis
from bidro.losses import Squared
from bidro.risk.moments import of_folds
from bidro.selection.rule import LeftOut
from bidro.selection.segments import Wanted, chosen_segments, coarser
from tests.small import classifier, regressor


def rows(n=600, bent=True, seed=0):
    rng = np.random.default_rng(seed)
    X, site = rng.normal(size=(n, 3)), rng.choice(["a", "b", "c"], n)
    f = 2 * np.abs(X[:, 0]) if bent else X[:, 0]
    X[:, 2] = X[:, 2] > 0  # a column of two values
    return X, f + X[:, 1] + 0.5 * X[:, 2] + 0.3 * rng.normal(size=n), site


def test_curves_are_taken_where_they_are_better_on_rows_left_out():
    X, y, site = rows()
    model = RobustRegressor(curves="auto", personal=None).fit(X, y, clients=site)
    assert [len(curve.slopes) > 1 for curve in model.curves_.values()] == [True, True, False]
    line = regressor(personal=None).fit(X, y, clients=site)
    fresh, truth, _ = rows(seed=1)
    errors = [np.mean((one.predict(fresh) - truth) ** 2) for one in (model, line)]
    assert errors[0] < 0.2 * errors[1]
    curve = model.curves_["x0"]
    assert curve.slopes[0] == pytest.approx(-2, abs=0.3)
    assert curve.slopes[-1] == pytest.approx(2, abs=0.3)


def test_a_straight_line_is_taken_where_nothing_bends():
    X, y, site = rows(bent=False)
    model = RobustRegressor(curves="auto", personal=None).fit(X, y, clients=site)
    line = regressor(personal=None).fit(X, y, clients=site)
    np.testing.assert_allclose(model.coef_, line.coef_, rtol=1e-9)
    assert model.curves_["x0"].slopes == pytest.approx([line.coef_[0]])


def test_one_segment_is_todays_problem():
    X, y, site = rows()
    models = [
        RobustRegressor(curves=curves, radius=0.1, personal=None).fit(X, y, clients=site)
        for curves in (1, None)
    ]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-9)


def test_predictions_follow_from_the_curves_and_the_shares_add_up():
    X, y, site = rows()
    X = X * [10.0, 0.1, 1.0] + [50.0, 3.0, 0.0]
    model = RobustRegressor(curves={"x0": 6, "x1": None, "x2": "auto"}, personal=None).fit(X, y, clients=site)
    assert [len(curve.slopes) for curve in model.curves_.values()] == [6, 1, 1]
    by_hand = model.intercept_ + sum(
        np.interp(X[:, j], curve.knots, curve.values) for j, curve in enumerate(model.curves_.values())
    )
    np.testing.assert_allclose(model.predict(X), by_hand, rtol=1e-9)
    shares = model.explain(pd.DataFrame(X[:7], columns=["x0", "x1", "x2"], index=list("abcdefg")).to_numpy())
    assert list(shares) == ["base", "x0", "x1", "x2"]
    np.testing.assert_allclose(shares.sum(axis=1), model.predict(X[:7]), rtol=1e-12)
    # Far out the last slope goes on.
    far = np.tile(X.mean(axis=0), (2, 1))
    far[:, 0] = model.curves_["x0"].knots[-1] + [10.0, 20.0]
    assert np.diff(model.predict(far))[0] == pytest.approx(10 * model.curves_["x0"].slopes[-1])
    slopes = np.diff(model.curves_["x0"].values) / np.diff(model.curves_["x0"].knots)
    np.testing.assert_allclose(model.curves_["x0"].slopes, slopes, rtol=1e-8)


def test_personal_models_with_curves():
    X, y, site = rows()
    y = y + 3.0 * (site == "a") + 1.0 * (site == "c") * X[:, 1]
    model = RobustRegressor(curves=4).fit(X, y, clients=site)
    assert set(model.personal_curves_) >= {"a"}
    shared, own = (np.mean((model.predict(X, *who) - y) ** 2) for who in ((), (site,)))
    assert own < 0.5 * shared
    shares = model.explain(X, clients=site)
    np.testing.assert_allclose(shares.sum(axis=1), model.predict(X, clients=site), rtol=1e-12)


def test_curves_that_must_rise_or_fall():
    X, y, site = rows()
    model = RobustRegressor(curves=8, increasing=["x0"], decreasing=["x1"], personal=None).fit(
        X, y, clients=site
    )
    assert np.all(model.curves_["x0"].slopes >= 0)
    assert np.all(model.curves_["x1"].slopes <= 0)
    assert model.duality_gap_ <= 1e-6
    line = regressor(increasing=["x0"], decreasing=["x1"], personal=None).fit(X, y, clients=site)
    assert line.coef_[1] == pytest.approx(0, abs=1e-6)


def test_curves_are_the_default_and_lines_where_there_can_be_none():
    X, y, site = rows()
    assert RobustRegressor().curves == RobustClassifier().curves == "auto"
    model = RobustRegressor(personal=None, weights="fixed").fit(X, y, clients=site)
    assert len(model.curves_["x0"].slopes) > 1
    # An order of the cost for which worst cases of curves are not bounded.
    of_order_3, line = (
        one.fit(X[:90], y[:90], clients=site[:90])
        for one in (
            RobustRegressor(p=3.0, personal=None, weights="fixed"),
            regressor(p=3.0, personal=None, weights="fixed"),
        )
    )
    np.testing.assert_array_equal(of_order_3.coef_, line.coef_)
    # Radii to be cross-validated, each of which would be a cone program.
    radii, line = (
        one.fit(X[:90], y[:90], clients=site[:90])
        for one in (
            RobustRegressor(radius="cross-validate", personal=None),
            regressor(radius="cross-validate", personal=None),
        )
    )
    np.testing.assert_array_equal(radii.coef_, line.coef_)
    # A client of one row, so that there is nothing to cross-validate.
    site = site.copy()
    site[0] = "d"
    alone, line = (
        one.fit(X, y, clients=site)
        for one in (
            RobustRegressor(personal=None, weights="simplex", radius=0.1),
            regressor(personal=None, weights="simplex", radius=0.1),
        )
    )
    np.testing.assert_array_equal(alone.coef_, line.coef_)


def test_coefficients_are_there_of_what_is_linear():
    X, y, site = rows(200)
    model = RobustRegressor(curves=4).fit(X, y, clients=site)
    assert np.isnan(model.coef_).tolist() == [True, True, False]  # the last has two values
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.coef_, model.coef_, equal_nan=True)
    # One curve among lines: the lines have their slopes, by which predictions change.
    some = RobustRegressor(curves={"x0": 4, "x1": None}).fit(X, y, clients=site)
    assert np.isnan(some.coef_[0])
    assert some.coef_[1] == pytest.approx(some.curves_["x1"].slopes[0])
    moved = X + np.eye(X.shape[1])[1]
    np.testing.assert_allclose(some.predict(moved) - some.predict(X), some.coef_[1], rtol=1e-9)
    assert all(np.isnan(own[0]) and np.isfinite(own[1]) for own in some.personal_coef_.values())


def test_coefficients_of_classes_and_of_levels():
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.normal(size=(240, 2)), rng.integers(0, 2, 240)])
    site = np.repeat(["a", "b"], 120)
    score = X[:, 0] + np.abs(X[:, 1]) + 0.5 * rng.normal(size=240)
    classes = np.digitize(score, [0.5, 1.5])
    curves = {"x0": None, "x1": 4, "x2": None}
    model = RobustClassifier(curves=curves, weights="fixed", personal=None).fit(X, classes, clients=site)
    assert np.isnan(model.coef_).all(axis=0).tolist() == [False, True, False]
    step = np.diff(model.decision_function([[0.0, 0.3, 0.0], [1.0, 0.3, 0.0]]), axis=0)[0]
    np.testing.assert_allclose(step, model.coef_[:, 0], rtol=1e-9)
    by_level = RobustRegressor(curves={"x0": None, "x1": (4, "x2")}, weights="fixed", personal=None)
    by_level.fit(X, score, clients=site)
    assert np.isnan(by_level.coef_).tolist() == [False, True, True]


def test_a_clone_has_the_curves_that_were_asked_for():
    model = RobustRegressor(curves=4)
    assert clone(model).curves == 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"curves": "many"}, "curves are 'auto', None, a number of segments"),
        ({"curves": 0}, "curves are 'auto', None, a number of segments"),
        ({"curves": True}, "curves are 'auto', None, a number of segments"),
        ({"curves": {"x9": 4}}, "'x9', which is no feature"),
        ({"curves": {"x0": "x"}}, "by feature; got 'x'"),
        ({"increasing": ["x9"]}, "'x9', which is no feature"),
        ({"increasing": "x0"}, "list of names"),
        ({"increasing": ["x0"], "decreasing": ["x0"]}, "both increasing and decreasing"),
        ({"curves": 4, "p": 3.0}, "order p = 1 or 2"),
    ],
)
def test_what_stands_for_nothing(asked, words):
    X, y, site = rows(60)
    with pytest.raises(BidroError, match=words):
        RobustRegressor(**asked).fit(X, y, clients=site)


def test_a_feature_constant_at_one_site_and_few_rows():
    X, y, site = rows(90)
    X[site == "a", 1] = 1.0
    model = RobustRegressor(curves="auto").fit(X, y, clients=site)
    assert np.all(np.isfinite(model.predict(X)))
    with pytest.raises(ValueError, match="NaN"):
        RobustRegressor(curves="auto").fit(np.where(X > 2, np.nan, X), y, clients=site)


def test_moments_of_fewer_segments_follow_from_those_of_more():
    X, y, _ = rows(120)
    table, marks = np.column_stack([X, y]), np.arange(120) % 3
    fine = Basis(((-1.0, -0.5, 0.0, 0.7), (0.0,), ()))
    few = Basis(((-0.5, 0.7), (), ()))
    told = of_folds(table, [120], marks, 3, Squared(True, basis=fine))
    direct = of_folds(table, [120], marks, 3, Squared(True, basis=few))
    for found, expected in zip(coarser(told, fine, few), direct, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_rule_by_which_segments_are_taken():
    bases = tuple(Basis((tuple(np.arange(s - 1.0)),)) for s in (1, 4, 8))
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.normal(size=(5, 4, 1))
    rows_of = np.full((5, 4), 20.0)

    def place(gains, used=None, spread=0.01):
        losses = 1.0 + noise - np.array(gains) + spread * rng.normal(size=(5, 4, 3)) * [0, 1, 1]
        left_out = LeftOut(losses, rows_of)
        as_used = left_out.pooled if used is None else np.tile(used, (4, 1))
        return chosen_segments(bases, left_out, lambda place: as_used[:, place]).place

    assert place([0, 0.1, 0.2]) == 2
    assert place([0, 0.2, 0.1]) == 1
    assert place([0, -0.1, -0.2]) == 0
    # Better, but not by a standard error.
    assert place([0, 0.02, 0.01], spread=0.5) == 0
    # Better as a shared model, but not as it is used.
    assert place([0, 0.1, 0.2], used=[0.5, 0.6, 0.7]) == 0


def test_what_is_wanted_feature_by_feature():
    wanted = Wanted.of({"a": 8, "b": None}, ["c"], [], ["a", "b", "c"])
    assert wanted == Wanted((8, 1, 16), (False, False, True), (0, 0, 1), (None, None, None))
    finest = Basis((tuple(range(7)), (), tuple(range(15))))
    assert [basis.segments.tolist() for basis in wanted.bases(finest)] == [
        [8, 1, 1],
        [8, 1, 4],
        [8, 1, 8],
        [8, 1, 16],
    ]


def test_two_classes():
    X, y, site = rows(300)
    label = np.where(y > np.median(y), "ill", "well")
    model = RobustClassifier(curves=4, personal=None, weights="fixed").fit(X, label, clients=site)
    line = classifier(personal=None, weights="fixed").fit(X, label, clients=site)
    assert model.score(X, label) > line.score(X, label) + 0.05
    np.testing.assert_allclose(model.explain(X).sum(axis=1), model.decision_function(X), rtol=1e-9)
    assert model.curves_["x0"].values.shape == (5,)


@pytest.mark.slow
def test_three_classes():
    X, y, site = rows(400)
    label = np.digitize(y, np.quantile(y, [0.33, 0.66]))
    model = RobustClassifier(curves=4).fit(X, label, clients=site)
    assert model.score(X, label) > classifier().fit(X, label, clients=site).score(X, label) + 0.05
    shares = model.explain(X[:5])
    assert shares.columns.nlevels == 2
    np.testing.assert_allclose(
        np.stack([shares[name].sum(axis=1) for name in ("0", "1", "2")], axis=1),
        model.decision_function(X[:5]),
        rtol=1e-9,
    )
    with pytest.raises(BidroError, match="no direction"):
        RobustClassifier(increasing=["x0"]).fit(X, label, clients=site)


def one_feature(*segments):
    return tuple(Basis((tuple(np.arange(s - 1.0)),)) for s in segments)


@pytest.mark.parametrize(("ratio", "place"), [(1.01, 1), (0.99, 0)])
def test_curves_are_better_by_a_standard_error_over_clients_and_folds(ratio, place):
    """Each client's fold is one draw, with its rows as weight; one that has none is none."""
    rows_of = np.array([[10.0, 20.0], [30.0, 15.0], [25.0, 0.0]])
    share = rows_of / rows_of.sum()
    gain = np.array([[0.2, -0.1], [0.05, 0.3], [-0.2, 7.0]])
    gain -= np.sum(share * gain)
    error = np.sqrt(5 / 4 * np.sum((share * gain) ** 2))
    gain += ratio * stats.t.ppf(stats.norm.cdf(1.0), 4) * error
    left_out = LeftOut(np.stack([np.full((3, 2), 2.0), 2.0 - gain], axis=-1), rows_of)
    found = chosen_segments(one_feature(1, 4), left_out, lambda place: np.ones(2))
    assert found.place == place
    np.testing.assert_allclose(found.errors, [0.0, error])
    np.testing.assert_allclose(found.means, [2.0, 2.0 - np.sum(share * gain)])
    assert found.basis == one_feature(1, 4)[place]


@pytest.mark.parametrize(
    ("rise", "place"),
    [
        # By a hundredth of the loss as used (4), or by a standard error of the clients' rises.
        ((0.039, 0.039, 0.039), 1),
        ((0.041, 0.041, 0.041), 0),
        ((1.0, 0.0, -0.05), 1),
        ((1.0, 0.9, 0.5), 0),
    ],
)
def test_curves_are_hardly_worse_as_they_are_used(rise, place):
    """Clients count by their rows: 1/2, 1/4 and 1/4; the rises (0.5, 0, -0.0125) have an error of 0.5 and a
    sum of 0.49, (0.5, 0.225, 0.125) one of 0.34 and a sum of 0.85."""
    rows_of = np.tile([20.0, 10.0, 10.0], (2, 1))
    left_out = LeftOut(np.stack([np.full((2, 3), 2.0), np.full((2, 3), 1.0)], axis=-1), rows_of)
    used = np.stack([np.array([3.0, 4.0, 6.0]), np.array([3.0, 4.0, 6.0]) + rise], axis=1)
    assert chosen_segments(one_feature(1, 4), left_out, lambda candidate: used[:, candidate]).place == place


def test_of_one_client_alone_the_folds_tell():
    """Its rise as used has no spread, so that a hundredth is all it may be."""
    left_out = LeftOut(np.array([[[2.0, 1.0]], [[2.0, 1.1]]]), np.full((2, 1), 20.0))
    for rise, place in ((0.039, 1), (0.041, 0)):
        with np.errstate(all="raise"):
            used = np.array([4.0, 4.0 + rise])
            found = chosen_segments(
                one_feature(1, 4), left_out, lambda candidate, used=used: used[[candidate]]
            )
            assert found.place == place
    # Nor has what a single fold tells of it.
    with np.errstate(all="raise"):
        one_fold = LeftOut(left_out.losses[:1], left_out.rows[:1])
        alone = chosen_segments(one_feature(1, 4), one_fold, lambda candidate: np.ones(1))
    assert (alone.place, alone.errors.tolist()) == (1, [0.0, 0.0])


def test_a_loss_with_kinks_has_lines_unless_segments_are_given():
    X, y, site = rows(120)
    left_to_rows = RobustRegressor(loss="absolute", personal=None, weights="fixed").fit(X, y, clients=site)
    lines = regressor(loss="absolute", personal=None, weights="fixed").fit(X, y, clients=site)
    np.testing.assert_array_equal(left_to_rows.coef_, lines.coef_)
