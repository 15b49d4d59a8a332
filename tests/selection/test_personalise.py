"""Which clients take a personal model, and how strongly it is held: the rule by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.data.splines import Basis
from bidro.estimators import RobustRegressor
from bidro.fit.training import unrestricted
from bidro.losses import Softmax, Squared
from bidro.risk.moments import of_folds
from bidro.risk.transport import Transport
from bidro.selection.personal import SCALES, Losses
from bidro.selection.personalise import (
    Freedoms,
    PersonalChoice,
    attainable,
    can_be_personal,
    check_personal,
    freedoms,
    personal_choice,
    with_slopes,
)
from bidro.selection.segments import with_curves

ROWS = np.array([10.0, 20.0, 30.0, 40.0])
FREE = Freedoms(
    np.array([[0.0, 0.0], [0.1, 0.4]]), np.zeros((2, 2)), np.array([0.3, 0.6]), None, np.arange(2)
)
# What one standard error is of an estimate from four clients.
STUDENT = stats.t.ppf(stats.norm.cdf(1.0), 3)


def problem(rows=ROWS, draws=None):
    return SimpleNamespace(
        federation=SimpleNamespace(counted=rows, draw_counts=rows if draws is None else draws)
    )


def losses(totals, errors=0.0):
    """From how far each client's total loss (n, scales) is below that of the shared model."""
    left_out = 5.0 - totals / ROWS[:, None]
    return Losses(left_out, np.broadcast_to(errors, left_out.shape), left_out)


def gains(ratio, of_folds=0.0):
    """(n,) gains of clients, in all so many times the error that is asked: of their spread, and of their
    folds."""
    spread = np.array([3.0, -1.0, -1.5, -0.5])
    error = STUDENT * np.sqrt(4 * np.var(spread, ddof=1) + np.sum((ROWS * of_folds) ** 2))
    return spread + ratio * error / 4


def at(place, totals):
    """(n, scales) with these at one place."""
    found = np.zeros((len(totals), len(SCALES)))
    found[:, place] = totals
    return found


@pytest.mark.parametrize("of_folds", [0.0, 0.02])
@pytest.mark.parametrize(("ratio", "scale"), [(1.01, 0.25), (0.99, 0.0), (-1.0, 0.0)])
def test_personal_models_gain_more_than_a_standard_error_over_clients_and_folds(ratio, scale, of_folds):
    told = losses(at(2, gains(ratio, of_folds)), of_folds)
    found = personal_choice(told, FREE, problem())
    assert found.scale == scale
    np.testing.assert_allclose(found.freedom, scale * np.array([0.1, 0.4]))
    np.testing.assert_array_equal(found.shared, 5.0)
    assert found.adopts.any() == (scale > 0)


@pytest.mark.parametrize(("place", "scale"), [(1, 1 / 16), (3, 1 / 2), (8, 1 / 2)])
def test_newcomers_differ_at_most_by_half(place, scale):
    found = personal_choice(losses(at(place, np.full(4, 40.0))), FREE, problem())
    assert found.scale == SCALES[place]
    np.testing.assert_allclose(found.newcomers, scale * np.array([0.1, 0.4]))


def test_a_client_keeps_what_its_own_rows_confirm():
    """By how many standard errors of its own it gains; where the folds agree to the bit, all or nothing."""
    gain, error = (
        np.array([*[1.0] * 9, 0.2, -0.2, 1.0, 0.0, 1.0]),
        np.array([*[0.1] * 9, 0.2, 0.2, 0, 0, 0.1]),
    )
    rows, left_out = np.ones(14), 5.0 - at(4, gain)
    told = Losses(left_out, at(4, error), left_out)
    found = personal_choice(told, FREE, problem(rows, np.array([*[9] * 13, 1])))
    one = stats.norm.cdf(1.0)
    np.testing.assert_allclose(found.share, [*[1.0] * 9, one, 1 - one, 1.0, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.used[9:11], [5 - 0.2 * one, 5 + 0.2 * (1 - one)])


def test_the_loss_that_each_client_could_attain():
    """That of the scale which is best on rows left out, half way to what it is inside training."""
    told = Losses(
        np.array([[3.0, 2.0, 4.0], [1.0, 2.0, 3.0]]), np.zeros((2, 3)), np.array([[9, 1, 0], [0.5, 0, 0]])
    )
    np.testing.assert_allclose(attainable(told), [1.5, 0.75])


def test_two_clients_can_have_personal_models_and_one_alone_cannot():
    for n, loss, can in (
        (1, Squared(), False),
        (2, Squared(), True),
        (2, Softmax(3), True),
        (5, None, False),
    ):
        assert can_be_personal(SimpleNamespace(n=n, loss=loss)) == can
    for word in ("auto", "offset", None):
        check_personal(word)
    for word in ("none", True, 1):
        with pytest.raises(BidroError, match="'auto', 'offset' or None"):
            check_personal(word)


LEVEL, SLOPE, NOISE = 2.0, 0.4, 0.5


def panel(seed=0, clients=60, rows=18):
    """Clients whose levels are far apart, and whose features are about as far apart as these."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    level = LEVEL * rng.normal(size=clients)
    X = rng.normal(size=(len(owner), 2)) + level[owner, None] * [0.5, 0.0]
    own = SLOPE * rng.normal(size=(clients, 2))
    y = level[owner] + np.sum(([1.0, -1.0] + own[owner]) * X, axis=1) + NOISE * rng.normal(size=len(owner))
    return X, y, owner


@pytest.mark.parametrize("sends", ["moments", "rows"])
def test_around_pooled_training_components_are_those_of_the_restricted_likelihood(sends):
    """Against statsmodels, whose common model is by generalised least squares: that of pooled training is far
    from it, as levels go with the features."""
    mixed = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    X, y, owner = panel()
    Z = np.column_stack([X, np.ones(len(y))])
    free = mixed.MixedLMParams.from_components(np.ones(3), np.eye(3))
    known = mixed.MixedLM(y, Z, owner, exog_re=Z).fit(reml=True, free=free, method="bfgs")
    pooled = np.linalg.lstsq(Z, y, rcond=None)[0]
    rows, sizes = np.column_stack([X, y]), np.bincount(owner)
    loss = Squared(True)
    federation = Federation.from_samples(rows, sizes.tolist(), "unbounded")
    problem = unrestricted(federation, loss, Transport.features_only(3), 1.0)
    fold_ids = federation.folds(3, 0)
    sent = of_folds(rows, sizes, fold_ids, 3, loss)
    how = {"sent": sent} if sends == "moments" else {"fold_ids": fold_ids}
    found = freedoms(problem, np.tile(pooled, (4, 1)), "auto", lambda *_: None, **how)
    assert np.abs(pooled - known.fe_params)[0] > 0.3
    np.testing.assert_allclose(found.common[-1], known.fe_params, rtol=0.01, atol=0.02)
    np.testing.assert_allclose(found.deviation, np.sqrt(np.diag(known.cov_re)), rtol=0.03)
    used = fold_ids != 1
    part = mixed.MixedLM(y[used], Z[used], owner[used], exog_re=Z[used]).fit(
        reml=True, free=free, method="bfgs"
    )
    np.testing.assert_allclose(found.common[1], part.fe_params, rtol=0.01, atol=0.03)


def test_where_levels_go_with_features_clients_are_predicted_as_a_mixed_model_does():
    X, y, owner = panel(1)
    test = np.arange(len(y)) % 3 == 0
    model = RobustRegressor(curves=None, pairs=None).fit(X[~test], y[~test], clients=owner[~test])
    own = np.mean((model.predict(X[test], clients=owner[test]) - y[test]) ** 2)
    # By whole covariance matrices with the true variances: the best there is.
    Z = np.column_stack([X, np.ones(len(y))])
    between = (Z * [SLOPE**2, SLOPE**2, LEVEL**2]) @ Z.T * (owner[:, None] == owner)
    V = (between + NOISE**2 * np.eye(len(y)))[np.ix_(~test, ~test)]
    x = np.linalg.solve(Z[~test].T @ np.linalg.solve(V, Z[~test]), Z[~test].T @ np.linalg.solve(V, y[~test]))
    most = Z[test] @ x + between[np.ix_(test, ~test)] @ np.linalg.solve(V, y[~test] - Z[~test] @ x)
    best = np.mean((most - y[test]) ** 2)
    shared = np.mean((model.predict(X[test]) - y[test]) ** 2)
    assert shared > 5 * best
    assert own < 1.05 * best


def test_what_clients_have_in_common_keeps_to_the_wanted_signs():
    X, y, owner = panel(2)
    rows, sizes = np.column_stack([X, y]), np.bincount(owner)
    federation = Federation.from_samples(rows, sizes.tolist(), "unbounded")
    problem = unrestricted(federation, Squared(True), Transport.features_only(3), 1.0)
    problem = with_curves(problem, Basis(((), ())), (1, 0))
    x = np.array([2.0, -1.0, 0.0])
    found = freedoms(problem, np.tile(x, (3, 1)), "auto", lambda *_: None, fold_ids=federation.folds(2, 0))
    np.testing.assert_array_equal(found.common[:, 0], 2.0)
    assert np.all(found.common[:, 1:] != x[1:])


def chosen(used, scale):
    """A choice with these losses of the models in use."""
    none = np.zeros(2)
    return PersonalChoice(scale, none, none, none, np.ones(4), used, used, none, none)


@pytest.mark.parametrize(("ratio", "scale"), [(1.01, 2.0), (0.99, 1.0), (-1.0, 1.0)])
def test_slopes_differ_where_that_gains_more_than_a_standard_error(ratio, scale):
    gain = gains(ratio) / ROWS
    of = SimpleNamespace(loss=Squared(True), federation=problem().federation, n=4)
    told = {"auto": chosen(5 - gain, 2.0), "offset": chosen(np.full(4, 5.0), 1.0)}
    assert with_slopes(of, told.__getitem__).scale == scale
    # Of other losses, and without offsets, there is nothing to compare.
    for loss in (Softmax(3), Squared()):
        assert with_slopes(SimpleNamespace(**{**vars(of), "loss": loss}), told.__getitem__).scale == 2.0


def test_a_feature_that_is_far_out_in_one_row_does_not_spoil_levels():
    """Five rows a client and many slopes: levels alone are predicted."""
    rng = np.random.default_rng(3)
    owner, X = np.repeat(np.arange(60), 5), rng.normal(size=(300, 12))
    X[rng.integers(0, 300, 6), rng.integers(0, 12, 6)] += 30
    y = 3 * rng.normal(size=60)[owner] + X[:, 0] + rng.normal(size=300)
    model = RobustRegressor(curves=None, pairs=None).fit(X, y, clients=owner)
    assert len(model.personal_intercept_) > 30
    # Slopes are between those of the shared model and what clients have in common, and differ by no more.
    apart = np.array(list(model.personal_coef_.values())) - model.coef_
    assert np.linalg.matrix_rank(apart, tol=1e-9) <= 1
