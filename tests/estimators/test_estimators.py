"""The estimators: scikit-learn's own checks, units, and what is there after `fit`."""

import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import has_fit_parameter

from bidro import BidroError, RobustClassifier, RobustRegressor
from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box, CappedSimplex
from bidro.data.federation import Federation
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import classifier, regressor

SIZES = (20, 30, 60)


def data(seed=0, classes=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(sum(SIZES), 2)) * [1.0, 20.0] + [3.0, -40.0]
    clients = np.repeat(["north", "south", "west"], SIZES)
    y = X @ [2.0, 0.1] + 0.3 * rng.normal(size=len(X)) + (clients == "north") * X[:, 0]
    if classes == 2:
        return X, np.where(y > np.median(y), "ill", "well"), clients
    if classes == 3:
        return X, np.digitize(y, np.quantile(y, [0.3, 0.7])), clients
    return X, y, clients


@pytest.mark.parametrize(
    "estimator",
    [
        RobustRegressor(radius=0.05, curves=None),
        pytest.param(RobustRegressor(radius=0.05), marks=pytest.mark.slow),
        pytest.param(RobustClassifier(curves=4), marks=pytest.mark.slow),
        # Classes, and cross-validation, compile more for every shape of the checks' data: `make test-slow`.
        pytest.param(RobustRegressor(), marks=pytest.mark.slow),
        pytest.param(RobustClassifier(), marks=pytest.mark.slow),
    ],
)
def test_scikit_learns_own_checks(estimator):
    """All of them; scikit-learn itself skips the one for other array types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = [(r["check_name"], r["exception"]) for r in results if r["status"] not in ("passed", "skipped")]
    assert failed == []
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}


def test_a_fit_is_the_exact_solution_in_pooled_units():
    """The same problem built by hand: standardised features, a capped set of mixtures, radii by client."""
    X, y, clients = data()
    radii = {"north": 0.2, "south": 0.1, "west": 0.05}
    model = regressor(radius=radii, weights=2.0).fit(X, y, clients=clients)
    standard = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = np.column_stack([standard, y - y.mean()])
    federation = Federation.from_arrays(
        {name: rows[clients == name] for name in radii}, "unbounded", ["x0", "x1", "target"]
    )
    problem = Problem(
        federation,
        Squared(intercept=True),
        Box.cube(1e3 * y.std(), 3),
        Transport.features_only(3),
        WassersteinBall(list(radii.values())),
        CappedSimplex.around_proportions(np.array(SIZES), 2.0),
    )
    found = solve(problem, 1e-7)
    np.testing.assert_allclose(model.coef_, found.x[:2] / X.std(axis=0), rtol=1e-3)
    predicted = standard @ found.x[:2] + found.x[2] + y.mean()
    np.testing.assert_allclose(model.predict(X), predicted, rtol=1e-3, atol=1e-3)
    # Robust risks are in the unit of the target, squared.
    np.testing.assert_allclose(list(model.client_risks_.values()), found.risks, rtol=1e-3)
    assert model.radii_ == pytest.approx(radii)
    assert model.duality_gap_ <= 1e-6
    assert sum(model.client_weights_.values()) == pytest.approx(1.0)
    assert max(model.client_weights_[n] / (s / sum(SIZES)) for n, s in zip(radii, SIZES, strict=True)) <= 2.01


@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_units_of_the_target_do_not_matter(unit):
    X, y, clients = data()
    one = regressor(radius=0.1).fit(X, y, clients=clients)
    other = regressor(radius=0.1).fit(X, unit * y + 5 * unit, clients=clients)
    np.testing.assert_allclose(other.coef_, unit * one.coef_, rtol=1e-4)
    assert other.client_risks_["north"] == pytest.approx(unit**2 * one.client_risks_["north"], rel=1e-4)


def test_the_default_chooses_mixtures_and_radii_on_request():
    X, y, clients = data()
    model = regressor().fit(X, y, clients=clients)
    assert set(model.radii_.values()) == {0.0}
    assert len(model.calibration_.candidates) == 15
    both = regressor(radius="cross-validate").fit(X, y, clients=clients)
    chosen = both.calibration_.chosen
    np.testing.assert_allclose(list(both.radii_.values()), chosen.scale / np.sqrt(SIZES))
    assert len(both.calibration_.candidates) == 60
    fixed = regressor(weights="fixed").fit(X, y, clients=clients)
    assert {c.max_weight_ratio for c in fixed.calibration_.candidates} == {1.0}
    np.testing.assert_allclose(list(fixed.client_weights_.values()), np.array(SIZES) / sum(SIZES), atol=1e-6)


def test_losses_of_the_regressor():
    X, y, clients = data()
    low, high = (
        regressor("pinball", quantile=q, radius=0.01, weights="fixed", gap=1e-3).fit(X, y, clients=clients)
        for q in (0.1, 0.9)
    )
    # Nearly a tenth and nine tenths of the rows lie below.
    assert np.mean(y < low.predict(X)) == pytest.approx(0.1, abs=0.06)
    assert np.mean(y < high.predict(X)) == pytest.approx(0.9, abs=0.06)
    wild = y.copy()
    wild[::20] += 200.0
    squared, huber = (
        regressor(loss, radius=0.01, weights="fixed", gap=1e-3).fit(X, wild, clients=clients)
        for loss in ("squared", "huber")
    )
    assert np.abs(huber.predict(X) - y).mean() < np.abs(squared.predict(X) - y).mean()


@pytest.mark.parametrize(("classes", "loss"), [(2, "logistic"), (2, "smoothed hinge"), (3, "logistic")])
def test_classes(classes, loss):
    X, y, clients = data(classes=classes)
    model = classifier(loss, radius=0.02, gap=1e-4).fit(X, y, clients=clients)
    assert model.coef_.shape == ((1, 2) if classes == 2 else (3, 2))
    assert model.score(X, y) > 0.75
    if loss == "logistic":
        shares = model.predict_proba(X)
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
        np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X))
        np.testing.assert_allclose(model.predict_log_proba(X), np.log(shares), rtol=1e-9, atol=1e-12)
        # Far out a probability rounds to 0 or 1; its logarithm is the score.
        far = 1e4 * X
        logs, scores = model.predict_log_proba(far), model.decision_function(far)
        assert np.all(np.isfinite(logs))
        assert logs.min() == pytest.approx(-np.abs(scores).max() if classes == 2 else logs.min())
        np.testing.assert_allclose(logs.max(axis=1), 0.0, atol=1e-3)
        owners = {n: clients == n for n in np.unique(clients)}
        codes = np.searchsorted(model.classes_, y)
        losses = -np.log(shares[np.arange(len(y)), codes])
        # The robust risk is above the mean log loss in nats.
        assert all(model.client_risks_[n] > losses[own].mean() for n, own in owners.items())
    else:
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model, "predict_log_proba")


def test_the_certificate_says_what_is_missing_and_certify_adds_it():
    X, y, clients = data()
    fresh = data(1)
    model = regressor(radius=0.1, metric="features").fit(X, y, clients=clients)
    assert model.certificate_.interval is None
    assert "declare bounds" in model.certificate_.absent["interval"]
    found = model.certify(*fresh, confidence=0.9, shift=0.1)
    assert found.clipped.bound > max(found.clipped.means.values())
    assert found.confidence == 0.9
    declared = regressor(
        radius=0.1, metric="joint", support=([-10, -200, -100], [20, 150, 100]), confidence=0.9
    ).fit(X, y, clients=clients)
    assert declared.certificate_.interval.upper >= max(declared.client_risks_.values())
    assert declared.certify(*fresh, confidence=0.9).interval is not None
    again = pickle.loads(pickle.dumps(declared))
    assert again.certify(*fresh, confidence=0.9).interval is not None
    # Without the training rows an interval for another confidence is not at hand.
    assert "0.9" in again.certify(*fresh, confidence=0.5).absent["interval"]


@pytest.mark.parametrize("estimator", [regressor(radius=0.1), classifier(radius=0.1)])
def test_certify_refuses_the_rows_of_fit(estimator):
    kind = 2 if isinstance(estimator, RobustClassifier) else None
    X, y, clients = (np.concatenate([data(seed, kind)[k] for seed in (0, 1, 2)]) for k in range(3))
    model = clone(estimator).set_params(gap=1e-3).fit(X, y, clients=clients)
    for one in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(BidroError, match="were in training"):
            one.certify(X[::-1], y[::-1], clients[::-1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.certify(*data(3, kind))


def test_worst_cases_are_on_the_original_scale_and_rows_stay_out_of_pickles():
    X, y, clients = data()
    model = regressor(radius=0.3).fit(X, y, clients=clients)
    found = model.worst_case("west")
    own = np.column_stack([X, y])[clients == "west"]
    np.testing.assert_allclose(found.points[:, -1], own[:, -1])
    moved = (found.points - own)[:, :2] / X.std(axis=0)
    assert np.sqrt(np.mean(np.sum(moved**2, axis=1))) == pytest.approx(0.3, rel=1e-6)
    losses = (found.points[:, :2] @ model.coef_ + model.intercept_ - found.points[:, 2]) ** 2
    assert found.masses @ losses == pytest.approx(model.client_risks_["west"], rel=1e-6)
    data_in_pickle = pickle.dumps(model)
    assert len(data_in_pickle) < X.nbytes + 20_000
    with pytest.raises(BidroError, match="do not travel"):
        pickle.loads(data_in_pickle).worst_case("west")


def test_pipelines_grids_and_frames():
    X, y, clients = data()
    frame = pd.DataFrame(X, columns=["age", "dose"])
    model = regressor(radius=0.1).fit(frame, y, clients=clients)
    assert list(model.feature_names_in_) == ["age", "dose"]
    same = regressor(radius=0.1).fit(pl.DataFrame({"age": X[:, 0], "dose": X[:, 1]}), y, clients=clients)
    np.testing.assert_allclose(same.coef_, model.coef_)
    with config_context(enable_metadata_routing=True):
        routed = regressor(gap=1e-3).set_fit_request(clients=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), routed), {"robustregressor__radius": [0.0, 0.5]}, cv=2
        )
        search.fit(X, y, clients=clients)
        best = search.best_estimator_[-1]
        assert set(best.client_weights_) == {"north", "south", "west"}
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda X, y, c: regressor("odd").fit(X, y, clients=c), "loss must be"),
        (lambda X, y, c: regressor(radius="odd").fit(X, y, clients=c), "radius must be"),
        (lambda X, y, c: regressor(radius=-1.0).fit(X, y, clients=c), "radius"),
        (lambda X, y, c: regressor(radius={"north": 1.0}).fit(X, y, clients=c), "no radius for client"),
        (lambda X, y, c: regressor(radius="explicit").fit(X, y, clients=c), "declared support"),
        (lambda X, y, c: regressor(weights=0.5).fit(X, y, clients=c), "largest weight ratio"),
        (lambda X, y, c: regressor(weights="odd").fit(X, y, clients=c), "weights must be"),
        (lambda X, y, c: regressor(metric="odd").fit(X, y, clients=c), "metric must be"),
        (lambda X, y, c: regressor(label_cost=0).fit(X, y, clients=c), "label_cost"),
        (lambda X, y, c: regressor(p=0.5).fit(X, y, clients=c), "p must be"),
        (lambda X, y, c: regressor(support=([0], [1])).fit(X, y, clients=c), "3 numbers"),
        (lambda X, y, c: regressor(support=([5] * 3, [1] * 3)).fit(X, y, clients=c), "below its upper"),
        (
            lambda X, y, c: regressor(support=([0] * 3, [1] * 3)).fit(X, y, clients=c),
            "'x0' is .*, outside the declared support",
        ),
        (lambda X, y, c: regressor().fit(X, y, clients=c[:5]), "110 rows but 5"),
        (lambda X, y, c: regressor().fit(X, y, clients=[None, *c[1:]]), "Row 0 has no client"),
        (lambda X, y, c: classifier("smoothed hinge").fit(X, c, clients=c), "two classes"),
        (lambda X, y, c: classifier("odd").fit(X, y > 0, clients=c), "loss must be"),
        (
            lambda X, y, c: regressor(radius=0.1).fit(X, y, clients=c).certify(X[:20], y[:20], c[:20]),
            "no rows",
        ),
        (lambda X, y, c: regressor(radius=0.1).fit(X, y).certify(X, y, c), "was not in training"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make(*data())


@pytest.mark.parametrize(
    ("parameter", "values", "word"),
    [
        ("gap", (0, -1e-6, np.inf, np.nan, "small", None), "gap must be a positive number"),
        ("confidence", (0, 1.0, 95, np.nan, "high"), "strictly between 0 and 1"),
        ("folds", (1, 0, 2.5, "five"), "whole number of at least 2"),
        ("random_state", (-1, 0.5, None), "random seed must be a whole number"),
        ("radius", (-1.0, None, np.inf, np.nan, {"north": -1}, [[0.1]]), "finite number of at least 0"),
        ("radius", ("odd", object()), "'cross-validate', 'bootstrap' or 'explicit'"),
        ("weights", (0.5, np.inf, np.nan, None), "finite number of at least 1"),
        ("label_cost", (0, np.inf, "dear"), "label_cost must be a positive number"),
        ("p", (0.5, np.inf, "two"), "p must be a number of at least 1"),
    ],
)
@pytest.mark.parametrize("kind", [RobustRegressor, RobustClassifier])
def test_parameters_are_checked_before_rows_are_looked_at(kind, parameter, values, word):
    for value in values:
        with pytest.raises(BidroError, match=word):
            kind(**{parameter: value}).fit("no rows", "no targets")


def test_weights_of_rows_are_refused_in_a_sentence():
    X, y, clients = data()
    for kind in (RobustRegressor, RobustClassifier):
        with pytest.raises(BidroError, match="counts a row as one draw"):
            kind().fit(X, y, clients=clients, sample_weight=np.ones(len(y)))
        with pytest.raises(TypeError, match="unexpected keyword argument 'odd'"):
            kind().fit(X, y, odd=1)
    # scikit-learn does not take it for a parameter, and "none" is no weights.
    assert not has_fit_parameter(regressor(), "sample_weight")
    regressor(radius=0.1, gap=1e-2).fit(X, y, clients, sample_weight=None)


def test_certify_is_refused_before_rows_are_looked_at():
    X, y, clients = data()
    model = regressor(radius=0.1, gap=1e-2).fit(X, y, clients=clients)
    for asked, word in (({"confidence": 1.0}, "strictly between"), ({"shift": -1}, "a distance")):
        with pytest.raises(BidroError, match=word):
            model.certify("no rows", "no targets", **asked)


@pytest.mark.parametrize("settings", [{}, {"radius": 0.1}], ids=["no radius", "radius"])
@pytest.mark.parametrize("loss", ["squared", "absolute", "huber", "pinball"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_target_that_does_not_vary_is_predicted(loss, settings):
    X, _, clients = data()
    model = RobustRegressor(loss=loss, **settings).fit(X, np.full(len(X), 3.3), clients=clients)
    assert model.predict(X) == pytest.approx(np.full(len(X), 3.3))
    assert model.duality_gap_ == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_steps_are_not_divided_by_curvature_that_is_not_there():
    # Beside such a value a step of Huber's loss leads to where all residuals are large.
    rng = np.random.default_rng(0)
    X, clients = rng.normal(size=(150, 3)), np.repeat(list("abcde"), 30)
    y = X @ [1.0, 0.0, -1.0] + 0.3 * rng.normal(size=150)
    X[0, 0] = 1e12
    model = RobustRegressor(loss="huber").fit(X, y, clients=clients)
    assert model.duality_gap_ <= 1e-6
    assert np.isfinite(model.calibration_.losses).all()
