"""Standard errors against statsmodels and closed forms; intervals for differences against simulation."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import minimize

from bidro import BidroError, RobustClassifier, RobustRegressor
from bidro.certify.coefficients import (
    Covariance,
    apart,
    coefficient_obstacle,
    posterior_covariances,
    row_sums,
    variance_interval,
)
from bidro.losses import Absolute, Huber, Logistic, Softmax, Squared

PLAIN = {"weights": "fixed", "curves": None, "personal": None}


def _rows(seed, n=400, people=80):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 5.0, 0.1] + [0.0, 1e4, 3.0]
    person = rng.integers(0, people, n)
    noise = rng.normal(size=people)[person] + rng.normal(size=n) * (0.2 + np.abs(X[:, 0]))
    site = np.array(["a", "b", "c"])[person % 3]
    return X, X @ [1.0, -0.5, 2.0] + noise, site, person


@pytest.mark.parametrize("order", ["as drawn", "sorted"])
def test_least_squares_has_the_covariance_of_statsmodels(order):
    X, y, site, person = _rows(0)
    if order == "sorted":
        some = np.argsort(y)
        X, y, site, person = X[some], y[some], site[some], person[some]
    found = RobustRegressor(**PLAIN).fit(X, y, clients=site, people=person).summary(0.9).coefficients
    # statsmodels' own arithmetic loses digits where a column lies far from 0.
    centred = X - X.mean(axis=0)
    by = sm.OLS(y, sm.add_constant(centred)).fit(cov_type="cluster", cov_kwds={"groups": person}, use_t=True)
    assert found["estimate"].to_numpy()[1:] == pytest.approx(by.params[1:], rel=1e-8)
    assert found["standard error"].to_numpy()[1:] == pytest.approx(by.bse[1:], rel=1e-8)
    assert found[["lower", "upper"]].to_numpy()[1:] == pytest.approx(by.conf_int(0.1)[1:], rel=1e-8)
    assert found["p"].to_numpy()[1:] == pytest.approx(by.pvalues[1:], rel=1e-6)
    at_zero = np.append(1.0, -X.mean(axis=0))
    error = math.sqrt(at_zero @ by.cov_params() @ at_zero)
    assert found["standard error"].iloc[0] == pytest.approx(error, rel=1e-8)


def test_rows_without_people_are_clusters_of_their_own():
    X, y, site, _ = _rows(1)
    found = RobustRegressor(**PLAIN).fit(X, y, clients=site).summary().coefficients
    by = sm.OLS(y, sm.add_constant(X - X.mean(axis=0))).fit(cov_type="HC1", use_t=True)
    assert found["standard error"].to_numpy()[1:] == pytest.approx(by.bse[1:], rel=1e-8)
    assert found["lower"].to_numpy()[1:] == pytest.approx(by.conf_int()[1:, 0], rel=1e-8)


def test_logistic_loss_has_the_covariance_of_statsmodels_at_its_maximum():
    X, y, _, person = _rows(2)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    label = y > np.median(y)
    by = sm.Logit(label, sm.add_constant(X)).fit(
        disp=False, cov_type="cluster", cov_kwds={"groups": person}, tol=1e-14
    )
    rows, x = np.column_stack([X, 2.0 * label - 1]), np.append(by.params[1:], by.params[0])
    _, draws = np.unique(person, return_inverse=True)
    sums = row_sums(Logistic(intercept=True), x, rows, np.ones(len(rows)), draws)
    covariance = Covariance.of(sums, np.zeros((4, 4)), log_likelihood=True)
    order = [3, 0, 1, 2]
    assert covariance.matrix[np.ix_(order, order)] == pytest.approx(by.cov_params(), rel=1e-8)
    # The estimator holds slopes back by a quarter of a row of every client.
    site = np.array(["a", "b"])[person % 2]
    table = RobustClassifier(**PLAIN).fit(X, label, clients=site, people=person).summary().coefficients
    assert table["standard error"].to_numpy() == pytest.approx(by.bse, rel=0.05)


@pytest.mark.parametrize("loss", [Squared(), Huber(threshold=1.0), Logistic(), Softmax(3), Squared(True)])
def test_sums_over_rows_are_derivatives_of_the_loss(loss):
    """Slopes and curvature against differences of the loss itself."""
    rng = np.random.default_rng(3)
    target = rng.normal(size=7)
    if loss.labels is not None:
        target = rng.choice(loss.labels, 7)
    rows, weights = np.column_stack([rng.normal(size=(7, 2)), target]), rng.uniform(0.5, 2, 7)
    x, draws = 0.3 * rng.normal(size=loss.dimension(3)), np.array([0, 0, 1, 2, 2, 2, 1])
    found = row_sums(loss, x, rows, weights, draws)

    def slopes(at):
        h = 1e-6
        each = []
        for j in range(len(x)):
            step = np.zeros(len(x))
            step[j] = h
            each.append((loss.values(at + step, rows) - loss.values(at - step, rows)) / (2 * h))
        return weights[:, None] * np.array(each).T

    by_person = np.stack([slopes(x)[draws == g].sum(axis=0) for g in range(3)])
    assert found.scatter == pytest.approx(by_person.T @ by_person, abs=1e-6)
    h, bent = 1e-4, []
    for j in range(len(x)):
        step = np.zeros(len(x))
        step[j] = h
        bent.append((slopes(x + step).sum(axis=0) - slopes(x - step).sum(axis=0)) / (2 * h))
    assert found.curvature == pytest.approx(np.array(bent), abs=1e-3)
    assert (found.people, found.rows) == (3, 7)


def test_a_penalty_gives_the_posterior_of_its_prior():
    """Ridge: where errors have one spread the formula is phi (A + P)^-1, the posterior of a normal prior."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200_000, 3))
    y = X @ [0.3, -0.2, 0.1] + rng.normal(size=len(X))
    penalty = 2 * np.diag([0.0, 1e5, 4e5])
    x = np.linalg.solve(2 * X.T @ X + penalty, 2 * X.T @ y)
    sums = row_sums(Squared(), x, np.column_stack([X, y]), np.ones(len(X)))
    found = Covariance.of(sums, penalty, log_likelihood=False)
    posterior = 2 * np.linalg.inv(2 * X.T @ X + penalty)  # phi = 2 sigma^2, and sigma = 1
    away = (x - [0.3, -0.2, 0.1]) @ (x - [0.3, -0.2, 0.1])
    assert np.diag(found.matrix) == pytest.approx(np.diag(posterior), rel=0.02 + away)
    assert found.dispersion == pytest.approx(2.0, rel=0.02 + away)


def test_what_rows_do_not_determine_has_no_standard_error():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3))
    X = np.column_stack([X, X[:, 0] + X[:, 1], np.ones(300)])
    y, site = X[:, 2] + rng.normal(size=300), np.repeat(["a", "b"], 150)
    table = RobustRegressor(**PLAIN).fit(X, y, clients=site).summary().coefficients
    assert table["standard error"].isna().tolist() == [False, True, True, False, True, True]


@pytest.mark.parametrize(("shift", "scale"), [(1e6, 1.0), (0.0, 1e-8), (0.0, 1e8)])
def test_units_do_not_matter(shift, scale):
    X, y, site, person = _rows(6)
    plain, other = (
        RobustRegressor(**PLAIN).fit(features, y, clients=site, people=person).summary().coefficients
        for features in (X, scale * (X + shift))
    )
    assert other["standard error"].to_numpy()[1:] * scale == pytest.approx(
        plain["standard error"].to_numpy()[1:], rel=1e-5
    )


def test_there_is_never_a_normal_interval_where_weights_were_chosen():
    X, y, site, _ = _rows(7)
    for settings, why in (
        ({"weights": "simplex"}, "not normal"),
        ({"weights": 2.0}, "not normal"),
        ({"weights": "fixed", "radius": 0.1}, "worst case"),
        ({"weights": "fixed", "loss": "absolute"}, "kinks"),
        ({"weights": "fixed", "increasing": ["x0"]}, "one sign"),
    ):
        found = RobustRegressor(**{"curves": None, **settings}).fit(X, y, clients=site).summary()
        assert found.coefficients["estimate"].notna().all()
        assert found.coefficients[["standard error", "lower", "upper", "p"]].isna().all(axis=None)
        assert why in found.notes[0]
    assert "kinks" in coefficient_obstacle(Absolute())


def test_a_bad_confidence_and_rows_that_did_not_travel_are_refused():
    X, y, site, _ = _rows(8)
    fitted = RobustRegressor(**PLAIN).fit(X, y, clients=site)
    with pytest.raises(BidroError, match="strictly between 0 and 1"):
        fitted.summary(95)
    with pytest.raises(BidroError, match="unpickled"):
        pickle.loads(pickle.dumps(fitted)).summary()


def test_bands_of_curves_are_at_their_knots_and_say_what_they_are():
    rng = np.random.default_rng(9)
    X = rng.uniform(-2, 2, (500, 2))
    y, site = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=500), np.repeat(["a", "b"], 250)
    fitted = RobustRegressor(weights="fixed", personal=None, curves={"x0": 8, "x1": 1}).fit(
        X, y, clients=site
    )
    found = fitted.summary()
    curve = found.curves["x0"]
    assert curve["value"].to_numpy() == pytest.approx(fitted.curves_["x0"].values)
    assert curve.index.to_numpy() == pytest.approx(fitted.curves_["x0"].knots)
    assert found.coefficients.index.tolist() == ["(intercept)", "x1"]
    assert "Bayesian" in " ".join(found.notes)
    assert "lower" in str(found)


def _differing(rng, clients, rows, D=(1.0, 0.25)):
    of = np.repeat(np.arange(clients), rows)
    x = rng.normal(size=len(of))
    u = rng.normal(size=(clients, 2)) * np.sqrt(D)
    y = u[of, 0] + (1 + u[of, 1]) * x + rng.normal(size=len(of))
    return of, x, y, u


def test_personal_coefficients_are_as_far_from_the_truth_as_is_said():
    """Mean squared distance over clients and repetitions against the formula, with components known, of
    clients of many rows and of one alone."""
    rng = np.random.default_rng(10)
    sizes, D, phi = np.array([1, 3, 8, 20, 40]), np.array([1.0, 0.25]), 2.0
    X = np.column_stack([rng.normal(size=sizes.sum()), np.ones(sizes.sum())])
    parts = np.split(X, np.cumsum(sizes)[:-1])
    A = np.stack([2 * part.T @ part for part in parts])
    freedom, shares = np.array([0.7, 1.1]) * D / phi, np.array([1.0, 0.5, 1.0, 0.8, 1.0])
    said = posterior_covariances(A, freedom, D, phi, shares)
    errors = []
    for _ in range(20_000):
        u = rng.normal(size=(5, 2)) * np.sqrt(D)
        y = [part @ own + rng.normal(size=len(part)) for part, own in zip(parts, u, strict=True)]
        x = np.linalg.lstsq(X, np.concatenate(y), rcond=None)[0]
        pull = np.stack([2 * part.T @ (own - part @ x) for part, own in zip(parts, y, strict=True)])
        change = np.linalg.solve(A + np.diag(1 / freedom), pull[..., None])[..., 0]
        errors.append((x + shares[:, None] * change - u) ** 2)
    mean, chance = np.mean(errors, axis=0), np.std(errors, axis=0) / math.sqrt(len(errors))
    assert np.all(np.abs(mean - np.einsum("njj->nj", said)) < 4 * chance)
    exact = posterior_covariances(A, D / phi, D, phi, np.ones(5))
    posterior = phi * np.linalg.inv(A + phi * np.diag(1 / D))
    assert np.all(np.einsum("njj->nj", exact) > np.einsum("njj->nj", posterior))


def test_coefficients_apart_are_those_of_the_marginal_law():
    """Against the generalised least squares of one coefficient, the others being random."""
    rng = np.random.default_rng(11)
    X, D, sigma = rng.normal(size=(9, 3)), np.array([0.5, 2.0, 1.0]), 0.7
    y = rng.normal(size=9)
    phi = 2 * sigma**2
    b, v = apart((2 * X.T @ X)[None], (2 * X.T @ y)[None], D / phi, phi)
    for j in range(3):
        others = [k for k in range(3) if k != j]
        S = sigma**2 * np.eye(9) + (X[:, others] * D[others]) @ X[:, others].T
        inverse = np.linalg.inv(S)
        known = X[:, j] @ inverse @ X[:, j]
        assert b[0, j] == pytest.approx(X[:, j] @ inverse @ y / known)
        assert v[0, j] == pytest.approx(1 / known)
    b, v = apart(np.zeros((1, 2, 2)), np.zeros((1, 2)), np.ones(2), 1.0)
    assert np.isinf(v).all()
    assert not b.any()


@pytest.mark.parametrize("D", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("n", [6, 25])
def test_an_interval_of_a_variance_has_its_confidence(n, D):
    rng = np.random.default_rng(12)
    v = rng.uniform(0.05, 2.0, n)
    held = []
    for _ in range(1500):
        low, high = variance_interval(np.sqrt(D + v) * rng.normal(size=n), v, 0.9)
        held.append(low <= D <= high)
    rate = np.mean(held)
    # At D = 0 only the lower end can be wrong: coverage is 95%.
    wanted = 0.95 if D == 0 else 0.9
    assert abs(rate - wanted) < 3.5 * math.sqrt(wanted * (1 - wanted) / 1500)


def test_the_ends_of_an_interval_of_a_variance_solve_their_equations():
    rng = np.random.default_rng(13)
    b, v = 2 * rng.normal(size=10), rng.uniform(0.1, 1.0, 10)
    from scipy.stats import chi2

    for D, p in zip(variance_interval(b, v, 0.8), (0.9, 0.1), strict=True):
        # The weighted spread is the least over means.
        spread = minimize(lambda m, D=D: float(np.sum((b - m[0]) ** 2 / (D + v))), [0.0]).fun
        assert spread == pytest.approx(chi2.ppf(p, 9), rel=1e-6)
    assert all(math.isnan(end) for end in variance_interval(b[:5], v[:5], 0.8))
    assert variance_interval(np.zeros(8), np.zeros(8), 0.9) == (0.0, 0.0)


def test_differences_between_clients_are_in_the_units_of_the_columns():
    rng = np.random.default_rng(14)
    of, x, y, _ = _differing(rng, 60, 25)
    site = np.array([f"c{i:02d}" for i in range(60)])[of]
    found = (
        RobustRegressor(weights="fixed", curves=None).fit(1000 * x[:, None], y, clients=site).summary(0.99)
    )
    variation = found.variation
    assert variation.loc["level", "lower"] < 1.0 < variation.loc["level", "upper"]
    slope = 1000 * variation.loc["slope of x0"]
    assert slope["lower"] < 0.5 < slope["upper"]
    assert slope["upper"] - slope["lower"] < 0.5
    assert len(found.clients) == 120
    assert "p" not in found.clients
