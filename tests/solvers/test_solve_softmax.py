"""Softmax to a certified gap, where worst cases are far from the samples or models can be too steep."""

import warnings

import numpy as np
import pytest
from scipy.optimize import NonlinearConstraint, minimize
from scipy.special import logsumexp

from bidro.ambiguity import Penalty, UncheckedDomainWarning, WassersteinBall
from bidro.core.sets import Box, CappedSimplex
from bidro.data.federation import Federation
from bidro.losses import Softmax
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import mostly_slow


def rows(classes, seed=5, n=14, features=2):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(n, features))
    scores = theta @ rng.normal(size=(features, classes)) + 0.7 * rng.gumbel(size=(n, classes))
    return np.column_stack([theta, scores.argmax(axis=1)])


def problem(classes, p, support, ambiguity, mixtures=None):
    data = rows(classes)
    if support == "box":
        around = np.array([1.0, 1.0, 0.0])
        support = Box(data.min(axis=0) - around, data.max(axis=0) + around)
    fed = Federation.from_arrays({"a": data[:9], "b": data[9:]}, support)
    transport = Transport.classification(3, p)
    models = Box.cube(20.0, 3 * classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncheckedDomainWarning)
        return Problem(fed, Softmax(classes, intercept=True), models, transport, ambiguity, mixtures)


@pytest.mark.parametrize(
    ("classes", "p", "support"),
    mostly_slow([(2, 1.0, "box"), (2, 2.0, "unbounded"), (3, 2.0, "unbounded")], lambda case: case[1] == 1.0),
)
def test_the_gap_is_reached_over_balls(classes, p, support):
    found = solve(problem(classes, p, support, WassersteinBall(0.1)), 1e-6, "curvature", 30)
    assert found.certified
    assert found.gap <= 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_models_that_are_too_steep_are_kept_away_from(classes):
    """p = 1 with a price, unbounded: the risk is the mean loss where no two classes' weights are farther than
    that apart, else infinite. Against SciPy's constrained minimum."""
    data, rho = rows(classes), 0.8
    share = np.array([9, 5]) / 14
    given = problem(classes, 1.0, "unbounded", Penalty([rho, 5.0]), CappedSimplex(share, share))
    pairs = np.triu_indices(classes, 1)

    def mean(x):
        w, b = x[: 2 * classes].reshape(classes, 2), x[2 * classes :]
        scores = data[:, :2] @ w.T + b
        return np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(data)), data[:, 2].astype(int)])

    def squared_steepness(x):
        w = x[: 2 * classes].reshape(classes, 2)
        return np.sum((w[pairs[0]] - w[pairs[1]]) ** 2, axis=1)

    limit = NonlinearConstraint(squared_steepness, -np.inf, rho**2)
    start = 1e-3 * np.arange(3.0 * classes)
    best = minimize(mean, start, method="SLSQP", constraints=limit, options={"ftol": 1e-14, "maxiter": 500})
    found = solve(given, 1e-7, "curvature", 30)
    assert found.gap <= 1e-7
    assert found.upper == pytest.approx(best.fun, rel=1e-6)
    assert squared_steepness(found.x).max() == pytest.approx(rho**2, rel=1e-4)


def test_the_steepest_models_of_a_wide_set_are_proven_best():
    """The slope that the bound on steepness holds costs nothing; what is left of the intercepts' is cancelled
    though X is wide and rows are far from 0."""
    data = rows(2) + np.array([1e4, -2e4, 0.0])
    fed = Federation.from_arrays({"a": data[:9], "b": data[9:]}, "unbounded")
    parts = (Softmax(2, intercept=True), Box.cube(1e6, 6), Transport.classification(3, 1.0), Penalty(0.8))
    with pytest.warns(UncheckedDomainWarning):
        found = solve(Problem(fed, *parts), 1e-6, "curvature", 30)
    assert found.gap <= 1e-6
    assert np.linalg.norm(found.x[2:4] - found.x[:2]) == pytest.approx(0.8, rel=1e-9)


def test_pairs_of_classes_that_nobody_has_are_not_bounded():
    """Of three classes client `a` has 0 and 1 and client `b` only 1: the pair (0, 2) is bounded by
    a's price alone, and (1, 2) by the lower of the two; (0, 1) too."""
    a, b = np.array([[0.1, 0.2, 0.0], [1.0, 0.3, 1.0]]), np.array([[0.4, -1.0, 1.0]])
    fed = Federation.from_arrays({"a": a, "b": b}, "unbounded")
    settings = (fed, Softmax(3), Box.cube(5.0, 6), Transport.classification(3, 1.0), Penalty([3.0, 2.0]))
    with pytest.warns(UncheckedDomainWarning):
        plain = Problem(*settings)
    assert [bound.radius for bound in plain.norm_bounds] == [2.0, 3.0, 2.0]
    with pytest.warns(UncheckedDomainWarning):
        only_a = Problem(*settings, CappedSimplex(np.array([1.0, 0.0]), np.array([1.0, 0.0])))
    assert [bound.radius for bound in only_a.norm_bounds] == [3.0, 3.0, 3.0]
    with pytest.warns(UncheckedDomainWarning):
        labels = Problem(*settings[:3], Transport.classification(3, 1.0, 0.5), Penalty([3.0, 2.0]))
    assert [bound.radius for bound in labels.norm_bounds] == [2.0, 2.0, 2.0]
