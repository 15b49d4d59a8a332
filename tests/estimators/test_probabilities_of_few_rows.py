"""Probabilities from few rows: a client whose few rows are all of one class is told apart, but never with
certainty, however much it counts in the mixture of training."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from bidro import Federation, Logistic, RobustClassifier, Softmax, Transport
from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box
from bidro.losses.registry import PSEUDO_ROWS, LossChoice
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.rows_numpy import FoldedRows, proven_risks
from bidro.selection.segments import without_smoothing


def table(seed, classes=2):
    """8 clients of 40 rows; one more of four, all of the last class, with a feature that nobody else has."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(324, 4))
    X[:, 3] = np.arange(324) >= 320
    scores = X[:, :3] @ rng.normal(size=(3, classes)) + rng.gumbel(size=(324, classes))
    y = np.where(X[:, 3] == 1, classes - 1, np.argmax(scores, axis=1))
    return X, y, np.array([f"c{k // 40}" for k in range(324)])


@pytest.mark.parametrize(("classes", "weights"), [(2, "auto"), (2, "simplex"), (3, 1.0)])
def test_four_rows_of_one_class_leave_a_chance_to_the_others(classes, weights):
    X, y, clients = table(0, classes)
    model = RobustClassifier(weights=weights, curves=None).fit(X, y, clients=clients)
    at_zero = model.predict_proba(np.eye(4)[3:], clients=["c8"])[0]
    # The class is likelier than by its share of all rows, and the others are not ruled out.
    assert at_zero[-1] > np.mean(y == classes - 1) + 0.2
    assert at_zero[:-1].min() > 1e-4


def test_clients_of_many_rows_are_not_held_back():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 2))
    y = (X @ [1.0, -2.0] + rng.logistic(size=4000) > 0).astype(int)
    model = RobustClassifier(weights=1.0, personal=None, curves=None).fit(
        X, y, clients=np.arange(4000) // 2000
    )

    def mean(x):
        return np.mean(np.logaddexp(0, -(2 * y - 1) * (X @ x[:2] + x[2])))

    free = minimize(mean, np.zeros(3)).x
    assert model.coef_[0] == pytest.approx(free[:2], rel=2e-3)


def small(loss):
    """(problem of two clients with pseudo-rows, their rows, the risk of rows at a model by hand)"""
    rng = np.random.default_rng(2)
    parts = {name: rng.normal(size=(n, 3)) for name, n in (("a", 5), ("b", 30))}
    for rows in parts.values():
        rows[:, -1] = rng.choice(np.asarray(loss.labels), len(rows))

    def risk(rows, x):
        if isinstance(loss, Logistic):
            values = np.logaddexp(0, -rows[:, -1] * (rows[:, :2] @ x[:2] + x[2]))
            pull = 0.5 * 0.25 * np.sum(x[:2] ** 2)
        else:
            w, b = x[:6].reshape(3, 2), x[6:]
            scores = rows[:, :2] @ w.T + b
            values = logsumexp(scores, axis=1) - scores[np.arange(len(rows)), rows[:, -1].astype(int)]
            pull = 0.5 * 0.5 * np.sum((w - w.mean(axis=0)) ** 2)
        return values.mean() + pull / len(rows)

    federation = Federation.from_arrays(parts, "unbounded", ["u", "v", "y"])
    models, balls = Box.cube(50.0, loss.dimension(3)), WassersteinBall(0.0)
    return Problem(federation, loss, models, Transport.classification(3), ambiguity=balls), parts, risk


LOSSES = [Logistic(True, pseudo_rows=1.0), Softmax(3, True, pseudo_rows=1.0)]


@pytest.mark.parametrize("loss", LOSSES)
def test_risks_in_training_have_pseudo_rows_of_every_client(loss):
    """Value, slope and curvature, by hand: a client of five rows is held back six times as much."""
    problem, parts, risk = small(loss)
    d = loss.dimension(3)
    x = np.random.default_rng(3).normal(size=d)
    folded = FoldedRows(problem.federation.host_rows, np.asarray(problem.federation.sizes), np.zeros(35, int))
    found = proven_risks(problem.inner, folded, x, np.zeros(2), True)
    assert found.value == pytest.approx([risk(rows, x) for rows in parts.values()], rel=1e-9)
    step = np.eye(d)
    slopes = [[_slope(risk, r, x, e) for e in step] for r in parts.values()]
    assert found.gradient[:, :d] == pytest.approx(np.array(slopes), abs=1e-6)
    bends = [
        [[_slope(risk, r, x + 1e-4 * f, e) - _slope(risk, r, x - 1e-4 * f, e) for f in step] for e in step]
        for r in parts.values()
    ]
    assert found.curvature[:, :d, :d] == pytest.approx(np.array(bends) / 2e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_compiled_risks_have_them_too(loss):
    problem, parts, risk = small(loss)
    x = np.random.default_rng(3).normal(size=loss.dimension(3))
    found = robust_risk(problem, x, curvature=False)
    assert np.asarray(found.value) == pytest.approx([risk(rows, x) for rows in parts.values()], rel=1e-9)
    slopes = [[_slope(risk, r, x, e) for e in np.eye(len(x))] for r in parts.values()]
    assert np.asarray(found.gradient)[:, : len(x)] == pytest.approx(np.array(slopes), abs=1e-6)


def _slope(risk, rows, x, along):
    return (risk(rows, x + 1e-4 * along) - risk(rows, x - 1e-4 * along)) / 2e-4


def test_statements_are_about_the_losses_alone():
    X, y, clients = table(0)
    rows = {name: np.column_stack([X, 2.0 * y - 1])[clients == name] for name in np.unique(clients)}
    federation = Federation.from_arrays(rows, "unbounded", [*"abcd", "y"])
    loss = LossChoice("logistic", 2).in_units(1.0)
    assert loss.pseudo_rows == PSEUDO_ROWS
    problem = Problem(federation, loss, Box.cube(9.0, loss.dimension(5)), Transport.classification(5))
    assert without_smoothing(problem).loss.pull(5) is None
    assert LossChoice("squared", None).in_units(1.0).pull(4) is None
    assert LossChoice("smoothed hinge", 2).in_units(1.0).pull(4) is None
