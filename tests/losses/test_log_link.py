"""Counts and costs: against other packages, a cone solver and closed forms."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import GammaRegressor, PoissonRegressor, TweedieRegressor
from sklearn.metrics import mean_tweedie_deviance

from bidro import Box, Federation, Problem, RobustRegressor, Transport, solve
from bidro.core.errors import BidroError
from bidro.core.sets import CappedSimplex, Simplex
from bidro.data.splines import Basis
from bidro.losses import Gamma, Poisson, Tweedie, losses_of
from bidro.losses.registry import LossChoice

KINDS = {"poisson": Poisson, "gamma": Gamma, "tweedie": Tweedie}


def table(word, count=240, seed=0):
    """(features, targets, clients)"""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2))
    mean = np.exp(0.5 + X @ [0.5, -0.3])
    counts, costs = rng.poisson(mean), rng.gamma(2, mean / 2)
    y = {"poisson": counts, "gamma": costs, "tweedie": counts * costs}[word]
    return X, y.astype(float), np.repeat(list("abcd"), count // 4)


def problem(word, mixtures=None, **loss):
    X, y, clients = table(word)
    frame = pd.DataFrame(np.column_stack([X, y]), columns=["u", "v", "y"]).assign(client=clients)
    federation = Federation.from_table(frame, "client", "y", "unbounded")
    found = Problem(
        federation, KINDS[word](intercept=True, **loss), Box.cube(50, 3), Transport.features_only(3, 1.0)
    )
    pooled = CappedSimplex.around_proportions(np.asarray(federation.sizes), 1.0)
    return found.with_mixtures(pooled if mixtures is None else mixtures)


@pytest.mark.parametrize("word", KINDS)
def test_without_robustness_other_packages_find_the_same(word):
    X, y, _ = table(word)
    common = {"alpha": 0, "tol": 1e-11, "max_iter": 10_000}
    known = {
        "poisson": PoissonRegressor(**common),
        "gamma": GammaRegressor(**common),
        "tweedie": TweedieRegressor(power=1.5, link="log", **common),
    }[word].fit(X, y)
    found = solve(problem(word), 1e-11)
    np.testing.assert_allclose(found.x, [*known.coef_, known.intercept_], atol=1e-6)
    sm = pytest.importorskip("statsmodels.api")
    family = {
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "tweedie": sm.families.Tweedie(sm.families.links.Log(), var_power=1.5),
    }[word]
    other = sm.GLM(y, np.column_stack([X, np.ones(len(y))]), family).fit(tol=1e-12)
    np.testing.assert_allclose(found.x, other.params, atol=1e-6)


def test_the_worst_mixture_is_a_cone_solvers():
    cp = pytest.importorskip("cvxpy")
    X, y, clients = table("poisson")
    design, x, worst = np.column_stack([X, np.ones(len(y))]), cp.Variable(3), cp.Variable()
    constant = np.where(y > 0, y * np.log(np.maximum(y, 1)) - y, 0.0)
    held = []
    for name in np.unique(clients):
        own = clients == name
        rows = cp.exp(design[own] @ x) - cp.multiply(y[own], design[own] @ x) + constant[own]
        held.append(cp.sum(rows) / own.sum() <= worst)
    cp.Problem(cp.Minimize(worst), held).solve(solver=cp.CLARABEL)
    found = solve(problem("poisson", Simplex(4)), 1e-9)
    assert found.upper == pytest.approx(worst.value, rel=1e-6)
    assert found.lower <= worst.value * (1 + 1e-7)
    np.testing.assert_allclose(found.x, x.value, atol=1e-3)


@pytest.mark.parametrize("power", [1.0, 1.3, 2.0])
def test_losses_are_half_the_deviance_and_their_derivatives_those_of_it(power):
    rng = np.random.default_rng(1)
    y, s, step = rng.gamma(1, 2, 50), rng.normal(size=50), 1e-5
    loss = Tweedie(power)
    value, slope = loss.of_scores(y, s[None])
    assert 2 * value.mean() == pytest.approx(mean_tweedie_deviance(y, np.exp(s), power=power))
    above, below = (loss.of_scores(y, (s + side)[None])[0] for side in (step, -step))
    np.testing.assert_allclose(slope[0], (above - below) / (2 * step), rtol=1e-5, atol=1e-6)
    ends = [loss.of_scores(y, (s + side)[None])[1][0] for side in (step, -step)]
    bends = loss.score_hessian(y, s[None])[0, 0]
    np.testing.assert_allclose(bends, (ends[0] - ends[1]) / (2 * step), rtol=1e-5)
    rows = np.column_stack([s, y])
    np.testing.assert_allclose(losses_of(loss, np.ones(1), rows), value, rtol=1e-12)
    # Far off it is a number still, and at a perfect fit nothing is left.
    assert np.all(np.isfinite(loss.of_scores(y, np.full((1, 50), 1e4))[0]))
    np.testing.assert_allclose(loss.of_scores(y, np.log(y)[None])[0], 0.0, atol=1e-14)


def test_zeros_count_as_their_mean():
    value, slope = Poisson().of_scores(np.zeros(2), np.array([[0.0, 1.0]]))
    np.testing.assert_allclose(value, np.exp([0.0, 1.0]))
    np.testing.assert_allclose(slope[0], np.exp([0.0, 1.0]))


def test_what_the_losses_are_not_for_is_refused():
    X, y, clients = table("poisson")
    for word, targets, words in (
        ("gamma", y, "has values of 0, which Gamma loss cannot have"),
        ("poisson", y - 3, "values below 0, such as -3"),
    ):
        with pytest.raises(BidroError, match=words):
            RobustRegressor(loss=word).fit(X, targets, clients=clients)
    with pytest.raises(BidroError, match="worst case of poisson loss is infinite"):
        RobustRegressor(loss="poisson", radius=0.1).fit(X, y, clients=clients)
    with pytest.raises(BidroError, match="power from 1 to 2"):
        Tweedie(2.5)
    assert LossChoice("poisson", None).log_link
    assert not LossChoice("squared", None).log_link


@pytest.mark.parametrize("word", KINDS)
def test_estimators_predict_means_and_clients_have_their_own(word):
    rng = np.random.default_rng(2)
    X, _, _ = table(word, 1200, 3)
    owner = np.repeat(np.arange(12), 100)
    level = rng.normal(size=12)[owner]
    mean = np.exp(1 + 0.5 * X[:, 0] + level)
    y = rng.poisson(mean) if word == "poisson" else rng.gamma(3, mean / 3)
    clients = np.char.add("c", owner.astype(str))
    model = RobustRegressor(loss=word, curves=None).fit(X, y, clients=clients)
    own, shared = (mean_tweedie_deviance(mean, model.predict(X, who), power=1.5) for who in (clients, None))
    assert own < 0.2 * shared
    # All predictions are means, whatever the unit of the target.
    other = RobustRegressor(loss=word, curves=None).fit(X, 1000 * y, clients=clients)
    np.testing.assert_allclose(other.predict(X, clients), 1000 * model.predict(X, clients), rtol=0.1)


def test_curves_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(3000, 1))
    y = rng.poisson(np.exp(np.abs(X[:, 0])))
    model = RobustRegressor(loss="poisson").fit(X, y, clients=np.repeat(list("abc"), 1000))
    at = np.array([[-1.5], [0.0], [1.5]])
    np.testing.assert_allclose(model.predict(at), np.exp([1.5, 0.0, 1.5]), rtol=0.15)
    assert Poisson(True, basis=Basis(((0.0,),))).dimension(2) == 3


def exposed(count=1200, seed=4):
    """(frame, counts, clients) over times that differ, with effects of (0.5, -0.3)."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"u": rng.normal(size=count), "v": rng.normal(size=count)})
    frame["years"] = rng.uniform(0.1, 3.0, count)
    level = np.repeat([0.0, 0.3, -0.3, 0.6], count // 4)
    mean = frame["years"] * np.exp(0.2 + 0.5 * frame["u"] - 0.3 * frame["v"] + level)
    return frame, rng.poisson(mean).astype(float), np.repeat(list("abcd"), count // 4)


def test_of_an_exposure_the_slope_is_1_and_statsmodels_finds_the_rest():
    sm = pytest.importorskip("statsmodels.api")
    frame, y, clients = exposed()
    plain = {"loss": "poisson", "weights": "fixed", "personal": None, "curves": None, "pairs": None}
    model = RobustRegressor(**plain, exposure="years").fit(frame, y, clients=clients)
    design = sm.add_constant(frame[["u", "v"]].to_numpy())
    known = sm.GLM(y, design, sm.families.Poisson(), offset=np.log(frame["years"])).fit(tol=1e-12).params
    assert model.coef_[2] == pytest.approx(1.0, abs=1e-14)
    # Training pulls slopes by a quarter of a row a client.
    np.testing.assert_allclose([model.intercept_, *model.coef_[:2]], known, atol=2e-3)
    np.testing.assert_allclose(model.predict(frame.assign(years=2 * frame.years)), 2 * model.predict(frame))
    # Exactly, the problem that it is: features and the logarithm whose slope is held.
    rows = frame.assign(years=np.log(frame.years), y=y, client=clients)
    federation = Federation.from_table(rows, "client", "y", "unbounded")
    box = Box([-50.0, -50.0, 1.0, -50.0], [50.0, 50.0, 1.0, 50.0])
    whole = Problem(federation, Poisson(intercept=True), box, Transport.features_only(4, 1.0))
    pooled = CappedSimplex.around_proportions(np.asarray(federation.sizes), 1.0)
    found = solve(whole.with_mixtures(pooled), 1e-11).x
    np.testing.assert_allclose(found, [*known[1:], 1.0, known[0]], atol=1e-6)


def test_curves_pairs_and_personal_models_keep_to_the_exposure():
    frame, y, clients = exposed(2400)
    frame["u"] = np.abs(frame["u"])
    model = RobustRegressor(loss="poisson", exposure="years").fit(frame, y, clients=clients)
    assert "years" not in model.curves_ or len(model.curves_["years"].knots) == 2
    assert model.personal_coef_
    for who in (None, clients):
        twice = model.predict(frame.assign(years=2 * frame.years), who)
        np.testing.assert_allclose(twice, 2 * model.predict(frame, who), rtol=1e-12)


def test_what_an_exposure_may_be():
    frame, y, clients = exposed(400)
    for given, words in (
        ({"loss": "squared", "exposure": "years"}, "An exposure is for losses of counts and costs"),
        ({"loss": "poisson", "exposure": "days"}, "exposure='days' is no feature; there are u, v, years"),
        ({"loss": "poisson", "exposure": "u"}, "the exposure 'u' is .*, and must be above 0"),
    ):
        with pytest.raises(BidroError, match=words):
            RobustRegressor(**given).fit(frame, y, clients=clients)


def test_the_power_of_tweedie_loss_is_the_users():
    X, y, clients = table("tweedie", 400)
    found = RobustRegressor(loss="tweedie", power=1.2, curves=None, personal=None).fit(X, y, clients=clients)
    assert found._assessed.loss.power == 1.2
