"""Squared loss of curves from the rows, against the columns themselves and against second moments."""

import numpy as np
import pytest

from bidro import RobustRegressor
from bidro.data.splines import Basis, Levels
from bidro.losses import Squared
from bidro.risk import moments
from bidro.risk.rows_curves import CurveOracle, CurveRows
from bidro.selection import cross_validate

SIZES = np.array([300, 1, 499])
BY_LEVEL = (None, Levels((0,), ((0.0,), (1.0,)), ("no", "yes")), None)


def _rows(basis: Basis, intercept: bool = True) -> tuple[CurveRows, np.ndarray]:
    """(the rows, what models are multiplied with (N, d))."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(SIZES.sum(), 4))
    samples[:, 0] = rng.integers(0, 2, len(samples))
    samples[5, 1] = -0.5  # on a knot
    samples[6, 1] = 1e6
    design = np.column_stack([basis.expand(samples[:, :3]), np.ones((len(samples), int(intercept)))])
    return CurveRows(Squared(intercept=intercept, basis=basis, smoothing=0.01), samples, SIZES), design


BASES = (
    Basis(((), (-0.5, 0.2, 0.9), (0.3, 1.0))),
    Basis(((), (-0.5, 0.2, 0.9), (0.1,), (-2.0, -1.0)), BY_LEVEL),
)


@pytest.mark.parametrize("basis", BASES, ids=["common", "by level"])
@pytest.mark.parametrize("intercept", [True, False])
def test_residuals_and_sums_are_those_of_the_columns(basis, intercept):
    rows, design = _rows(basis, intercept)
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=design.shape[1]), rng.random(len(design))
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    np.testing.assert_allclose(rows.residuals(x), design @ x - rows.samples[:, -1], rtol=1e-9, atol=1e-9)
    by_client = np.stack([(design * weights[:, None])[owner == i].sum(axis=0) for i in range(3)])
    np.testing.assert_allclose(rows.weighed(weights), by_client, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(rows.squared(weights), (design.T * weights) @ design, rtol=1e-9, atol=1e-9)
    some = weights > 0.4
    np.testing.assert_allclose(rows.only(some).residuals(x), rows.residuals(x)[some])


def test_gradients_of_the_risks_are_their_differences():
    rows, design = _rows(BASES[0])
    used = np.random.default_rng(2).random(len(design)) < 0.7
    used[SIZES[0]] = True  # the only row of a client
    used[6] = False  # the row of 1e6 would hide the differences of all others
    risks = CurveOracle(rows, used)
    x = np.random.default_rng(3).normal(size=design.shape[1])
    here = risks.expand(x[None])
    for j in range(len(x)):
        step = np.zeros(len(x))
        step[j] = 1e-4
        up, down = risks.values(np.stack([x + step, x - step]))
        np.testing.assert_allclose(here.gradients[0, :, j], (up - down) / 2e-4, rtol=1e-6, atol=1e-7)


def _of_no_worth(monkeypatch, one_fold: bool) -> list[int]:
    """No second moments of all folds, or not even those of one; the list grows with every use of rows."""
    used, made = [], cross_validate.CurveRows

    def counted(*given):
        used.append(1)
        return made(*given)

    monkeypatch.setattr(cross_validate, "CurveRows", counted)
    monkeypatch.setattr(moments, "_SMALL", 0)
    monkeypatch.setattr(moments, "_TABLES", 0)
    if not one_fold:
        monkeypatch.setattr(cross_validate, "_ONE_FOLD", 0)
    return used


@pytest.mark.parametrize("one_fold", [True, False])
@pytest.mark.parametrize(("weights", "times"), [("auto", 1.0), ("simplex", 1.0), ("simplex", 20.0)])
def test_a_fit_from_rows_is_that_from_second_moments(weights, times, one_fold, monkeypatch):
    """Also where a client's features are so many times as large as those of the others: second derivatives of
    other weights are then no guide."""
    rng = np.random.default_rng(4)
    X, clients = rng.normal(size=(1200, 3)), rng.integers(0, 4, 1200)
    # Clients differ in what they look like and in noise, so that weights and personal models matter.
    X[:, 1] += 0.5 * clients
    X[clients == 0] *= times
    y = np.sin(2 * X[:, 0]) + (clients == 1) * np.abs(X[:, 1]) + rng.normal(size=1200) * (0.3 + 0.3 * clients)
    told = RobustRegressor(weights=weights).fit(X, y, clients=clients)
    used = _of_no_worth(monkeypatch, one_fold)
    rows = RobustRegressor(weights=weights).fit(X, y, clients=clients)
    assert used
    assert [len(own.slopes) for own in told.curves_.values()] == [
        len(own.slopes) for own in rows.curves_.values()
    ]
    # A cap that binds nowhere is as good as none: which of the two is taken is rounding's.
    scores = [found.calibration_.scores[found.calibration_.place] for found in (rows, told)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    np.testing.assert_allclose(rows.calibration_.losses, told.calibration_.losses, rtol=1e-5)
    np.testing.assert_allclose(rows.predict(X), told.predict(X), atol=1e-4 * np.std(y))
    assert rows.duality_gap_ <= 1e-6
    assert rows.n_rounds_ == 1
    assert rows.client_risks_ == pytest.approx(told.client_risks_, rel=1e-5)


@pytest.mark.parametrize("one_fold", [True, False])
def test_an_exact_fit_from_rows(one_fold, monkeypatch):
    """Rounding hides the gap there, and nothing is at stake."""
    used = _of_no_worth(monkeypatch, one_fold)
    rng = np.random.default_rng(5)
    X, clients = rng.normal(size=(900, 2)), rng.integers(0, 3, 900)
    model = RobustRegressor(curves=4).fit(X, 2 * X[:, 0] - X[:, 1], clients=clients)
    assert used
    np.testing.assert_allclose(model.predict(X), 2 * X[:, 0] - X[:, 1], atol=1e-3)
    rows = CurveRows(Squared(intercept=True, basis=BASES[0]), rng.normal(size=(800, 4)), SIZES)
    y = np.split(rows.samples[:, -1], np.cumsum(SIZES)[:-1])
    spread = np.mean([np.var(own) for own in y]) + np.var([np.mean(own) for own in y])
    assert CurveOracle(rows, np.ones(800, bool)).target_spread == pytest.approx(spread)
