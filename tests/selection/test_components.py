"""Variance components: against closed forms, another package, and the marginal likelihood by brute force."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from bidro.losses import Squared
from bidro.risk.moments import of_clients
from bidro.selection.components import MOST_SLOPES, changes, columns_that_differ, components, weights
from bidro.selection.personal import expansion_of_squares

EXACT = {"steps": 20_000, "least_change": 1e-12, "prior": 0.0}


def table(sizes, slopes, seed=0, deviations=(0.7, 0.4), noise=1.0):
    rng = np.random.default_rng(seed)
    owner, count = np.repeat(np.arange(len(sizes)), sizes), sum(sizes)
    theta = rng.normal(size=(count, slopes))
    u = rng.normal(size=(len(sizes), slopes + 1)) * np.resize(deviations, slopes + 1)
    y = 1 + theta.sum(axis=1) + np.sum(u[owner, :-1] * theta, axis=1) + u[owner, -1]
    return theta, y + noise * rng.normal(size=count), owner


def expansion(theta, y, owner, x):
    sizes = np.bincount(owner)
    loss, rows = Squared(True), np.column_stack([theta, y])
    return expansion_of_squares(loss, of_clients(rows, sizes, loss), sizes.astype(float), x)


def test_the_balanced_one_way_layout_is_the_analysis_of_variance():
    _, y, owner = table([12] * 9, 0)
    told = expansion(np.zeros((len(y), 0)), y, owner, np.array([y.mean()]))
    found = components(told, True, False, 1, **EXACT)
    means = np.array([y[owner == i].mean() for i in range(9)])
    within = sum(np.sum((y[owner == i] - means[i]) ** 2) for i in range(9)) / (len(y) - 9)
    assert found.dispersion / 2 == pytest.approx(within, rel=1e-6)
    assert found.variance[0] == pytest.approx(np.var(means, ddof=1) - within / 12, rel=1e-6)
    kept = 12 * found.variance[0] / (12 * found.variance[0] + within)
    np.testing.assert_allclose(weights(told, found.freedom), kept, rtol=1e-6)
    np.testing.assert_allclose(
        changes(told, found.freedom[None])[:, 0, 0], kept * (means - y.mean()), rtol=1e-6
    )


def restricted(theta, y, owner, variance, noise):
    """(the restricted log-likelihood, the generalised least squares), by whole covariance matrices."""
    Z = np.column_stack([theta, np.ones(len(y))])
    V = noise * np.eye(len(y)) + (Z * variance) @ Z.T * (owner[:, None] == owner)
    inside = Z.T @ np.linalg.solve(V, Z)
    x = np.linalg.solve(inside, Z.T @ np.linalg.solve(V, y))
    value = stats.multivariate_normal(Z @ x, V).logpdf(y) - np.linalg.slogdet(inside)[1] / 2
    return value, x


def test_they_are_at_the_maximum_of_the_restricted_likelihood():
    theta, y, owner = table([4, 9, 6, 12, 3, 8, 10], 1, seed=2)
    best = minimize(
        lambda v: -restricted(theta, y, owner, np.exp(v[:2]), np.exp(v[2]))[0],
        np.zeros(3),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    ).x
    _, x = restricted(theta, y, owner, np.exp(best[:2]), np.exp(best[2]))
    found = components(expansion(theta, y, owner, x), True, False, 2, **EXACT)
    np.testing.assert_allclose([*found.variance, found.dispersion / 2], np.exp(best), rtol=1e-4)


def test_another_package_finds_the_same():
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    theta, y, owner = table([12, 30, 7, 22, 18, 9, 25, 14, 33, 6], 1, seed=1)
    Z = np.column_stack([theta, np.ones(len(y))])
    free = mixed.MixedLMParams.from_components(np.ones(2), np.eye(2))
    known = mixed.MixedLM(y, Z, owner, exog_re=Z).fit(reml=True, free=free, method="bfgs")
    found = components(expansion(theta, y, owner, np.asarray(known.fe_params)), True, False, 2, **EXACT)
    np.testing.assert_allclose(found.variance, np.diag(known.cov_re), rtol=1e-4)
    assert found.dispersion / 2 == pytest.approx(known.scale, rel=1e-4)


def test_nothing_depends_on_units_and_nothing_is_found_where_nothing_is():
    theta, y, owner = table([10] * 20, 2)
    x = np.linalg.lstsq(np.column_stack([theta, np.ones(len(y))]), y, rcond=None)[0]
    found = components(expansion(theta, y, owner, x), True, False, 3)
    for unit in (1e-8, 1e6):
        other = components(expansion(theta, unit * y, owner, unit * x), True, False, 3)
        np.testing.assert_allclose(other.variance, unit**2 * found.variance, rtol=1e-6)
    exact = theta @ [1.0, 2.0] + 3
    alike = components(expansion(theta, exact, owner, np.array([1.0, 2.0, 3.0])), True, False, 3)
    assert np.all(alike.variance <= 1e-20)
    still = components(expansion(0 * theta, y, owner, np.array([0.0, 0.0, y.mean()])), True, False, 1)
    assert np.all(np.isfinite(still.freedom))


def test_of_many_slopes_those_that_differ_most_may():
    rng = np.random.default_rng(0)
    pull = rng.normal(size=(30, 81))
    pull[:, [3, 70]] *= 4
    found = columns_that_differ(pull, np.ones((30, 81)), True)
    assert len(found) == MOST_SLOPES + 1
    assert {3, 70, 80} <= set(found.tolist())
    assert columns_that_differ(pull[:, :9], np.ones((30, 9)), True).tolist() == list(range(9))
