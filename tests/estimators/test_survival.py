"""`RobustSurvival`: as scikit-survival's estimators, and as the command on the same rows."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from bidro import BidroError, RobustClassifier, RobustSurvival
from bidro.model.survival import concordance, restricted_means
from bidro.survival import observed_of
from tests.deploy.test_survival_sites import patients

GRID = (90, 180, 365)


def rows(count=150, seed=0):
    whole = patients(count, seed)
    y = np.array(list(zip(whole.died == 1, whole.days, strict=True)), dtype=[("died", bool), ("days", float)])
    return whole[["age", "sex", "site"]], y


def fitted(**more):
    X, y = rows()
    plain = {"curves": None, "pairs": None, "weights": "fixed", **more}
    return RobustSurvival(GRID, RobustClassifier(**plain)).fit(X, y, clients="site"), X, y


def test_without_robustness_statsmodels_finds_the_same_hazards():
    sm = pytest.importorskip("statsmodels.api")
    from bidro import Box, Federation, Problem, Transport, solve
    from bidro.core.sets import CappedSimplex
    from bidro.losses import Logistic

    X, y = rows()
    model = RobustSurvival(GRID)
    laid = model._laid_out(X.assign(sex=(X.sex == "m").astype(float)), y, "site", None)
    # Person by person, as a loop writes it.
    design, happened = [], []
    for (died, days), age, sex in zip(y, X.age, X.sex == "m", strict=True):
        begin = 0
        for j, end in enumerate(GRID):
            here = died and begin < days <= end
            if here or days > end or (not died and days >= (begin + end) / 2):
                design.append([j == 1, j == 2, age, sex, 1])
                happened.append(here)
            begin = end
    known = sm.GLM(happened, np.array(design, float), sm.families.Binomial()).fit(tol=1e-13)
    frame = laid.X.assign(y=np.where(laid.y, 1.0, -1.0), client=laid.clients)
    frame["age"] /= 30  # of a size that the solver's model set has room for
    federation = Federation.from_table(frame, "client", "y", "unbounded")
    transport = Transport.classification(federation.m, 1.0, np.inf)
    found = Problem(federation, Logistic(intercept=True), Box.cube(100, federation.m), transport)
    pooled = CappedSimplex.around_proportions(np.asarray(federation.sizes), 1.0)
    x = solve(found.with_mixtures(pooled), 1e-12).x
    x[2] /= 30
    np.testing.assert_allclose(x, known.params, atol=1e-6)


def test_curves_fall_and_risks_are_what_they_lose():
    model, X, y = fitted()
    found = model.predict_survival(X)
    assert found.shape == (len(X), 3)
    assert (np.diff(found, axis=1) < 0).all()
    np.testing.assert_allclose(model.predict(X), 1 - restricted_means(found, GRID) / 365)
    assert model.score(X, y) == concordance(observed_of(y), model.predict(X)) > 0.6
    assert 0 < model.brier_score(X, y) < 0.25
    assert np.isnan(model.predict_median(X)).sum() == (found[:, -1] > 0.5).sum()


def test_targets_are_two_fields_or_two_columns():
    model, X, y = fitted()
    columns = np.column_stack([y["died"], y["days"]])
    same = clone(model).fit(X, columns, clients="site")
    np.testing.assert_array_equal(same.hazards_.coef_, model.hazards_.coef_)
    for wrong, words in (
        (y["days"], "structured array with two fields, or two columns"),
        (columns[:, ::-1], "events must be 0 or 1, or true or false; is the event first?"),
        (np.where(columns > 1, -columns, columns), "times must be numbers of at least 0"),
        (np.column_stack([columns, columns[:, 1]]), "entries must be numbers from 0 to before the time"),
        (columns[:5], "450 rows but 5 times"),
    ):
        with pytest.raises(BidroError, match=words):
            clone(model).fit(X, wrong, clients="site")


def test_clients_have_their_own_curves_and_people_are_kept_together():
    model, X, y = fitted(personal="auto")
    shared, own = model.predict_survival(X.drop(columns="site")), model.predict_survival(X)
    assert np.abs(shared - own).max() > 0.02
    # The order of rows makes no difference.
    order = np.random.default_rng(0).permutation(len(X))
    other = clone(model).fit(X.iloc[order], y[order], clients="site")
    np.testing.assert_allclose(other.predict_survival(X), own, atol=1e-8)
    fresh, target = rows(150, 1)
    certificate = model.certify(fresh, target, "site")
    assert certificate.clipped.people
    assert sum(certificate.clipped.rows.values()) <= len(fresh)


def test_periods_do_not_move_in_a_ball():
    model, _, _ = fitted(radius=0.03, personal=None)
    worst = model.hazards_.worst_case("east")
    levels = worst.points[:, :2]
    assert np.all(np.isclose(levels, 0, atol=1e-9) | np.isclose(levels, 1, atol=1e-9))


def test_it_is_an_estimator_like_others():
    X, y = rows()
    numbers = np.column_stack([X.age, X.sex == "m"])
    plain = RobustSurvival(GRID, RobustClassifier(curves=None, pairs=None, weights="fixed", personal=None))
    search = GridSearchCV(plain, {"hazards__radius": [0.0, 0.3]}, cv=3).fit(numbers, y)
    assert search.best_params_["hazards__radius"] in (0.0, 0.3)
    assert isinstance(search.predict(numbers), np.ndarray)
    with pytest.raises(BidroError, match="Nobody is watched in the period 900 to 9000"):
        RobustSurvival((90, 365, 900, 9000)).fit(numbers, y)
    with pytest.raises(BidroError, match="time_grid must be the ends of periods"):
        RobustSurvival().fit(numbers, y)
    with pytest.raises(BidroError, match="no sample_weight"):
        search.best_estimator_.score(numbers, y, sample_weight=np.ones(len(y)))


def test_polars_frames_and_pandas_frames_give_the_same():
    polars = pytest.importorskip("polars")
    model, X, y = fitted()
    frame = polars.DataFrame({name: X[name].to_list() for name in X})
    same = clone(model).fit(frame, y, clients="site")
    np.testing.assert_allclose(same.predict(frame), model.predict(X))
