"""The cost of robustness and personal models through the estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from bidro.core.errors import BidroError
from tests.small import classifier, regressor


def table(n=8, rows=60, k=3, apart=1.0, seed=0):
    """Clients with offsets of their own; a row each as (features, target, client)."""
    rng = np.random.default_rng(seed)
    site = np.repeat([f"s{i}" for i in range(n)], rows)
    X = rng.normal(size=(n * rows, k))
    y = X @ np.arange(1.0, k + 1) + np.repeat(apart * rng.normal(size=n), rows) + rng.normal(size=n * rows)
    return X, y, site


def test_personal_models_lower_the_loss_of_clients_that_differ():
    X, y, site = table()
    model = regressor().fit(X, y, clients=site)
    assert set(model.personal_coef_) == set(model.personal_intercept_) <= set(site)
    assert len(model.personal_coef_) >= 6
    shared, own = model.predict(X), model.predict(X, clients=site)
    assert np.mean((own - y) ** 2) < 0.75 * np.mean((shared - y) ** 2)
    # A client that training did not know gets the shared model.
    assert np.array_equal(model.predict(X, clients=np.full(len(X), "new")), shared)


def test_clients_alike_have_no_use_for_corrections():
    X, y, site = table(apart=0.0, rows=200)
    model = regressor().fit(X, y, clients=site)
    shared, own = model.predict(X), model.predict(X, clients=site)
    assert np.max(np.abs(shared - own)) < 0.35


@pytest.mark.parametrize("personal", ["offset", None])
def test_offsets_alone_or_nothing(personal):
    X, y, site = table()
    model = regressor(personal=personal).fit(X, y, clients=site)
    assert bool(model.personal_coef_) == (personal == "offset")
    # All clients have the slopes that they have in common, given that their levels differ.
    within = [
        part[site == name] - part[site == name].mean(axis=0) for part in (X, y) for name in np.unique(site)
    ]
    half = len(within) // 2
    common = np.linalg.lstsq(np.concatenate(within[:half]), np.concatenate(within[half:]), rcond=None)[0]
    # A client whose own rows gain little keeps a share of that change.
    for slopes in model.personal_coef_.values():
        share = (slopes - model.coef_) / (common - model.coef_)
        assert share == pytest.approx(np.full(3, share.mean()), abs=0.05)
        assert 0 < share.mean() < 1.05


def test_classes_have_personal_models_too():
    X, y, site = table(apart=2.0)
    model = classifier().fit(X, y > 0, clients=site)
    assert (
        model.personal_coef_["s0"].shape == (1, 3) if "s0" in model.personal_coef_ else model.personal_coef_
    )
    right = np.mean(model.predict(X, clients=site) == (y > 0))
    assert right > model.score(X, y > 0) + 0.01
    shares = model.predict_proba(X, clients=site)
    assert shares.sum(axis=1) == pytest.approx(np.ones(len(X)))
    assert np.exp(model.predict_log_proba(X, clients=site)) == pytest.approx(shares)


def test_the_certificate_states_both():
    X, y, site = table(rows=80)
    model = regressor().fit(X, y, clients=site)
    fresh, target, owners = table(rows=80, seed=0)
    rng = np.random.default_rng(9)
    target = target + 0.01 * rng.normal(size=len(target))
    found = model.certify(fresh + 1e-9, target, owners)
    assert found.personal is not None
    assert found.personal.bound < found.clipped.bound
    assert "the models that the clients use" in found.personal.promise or found.personal.vacuous
    assert "Personal" in str(found)
    # Each client's own losses, by hand.
    errors = (model.predict(fresh + 1e-9, clients=owners) - target) ** 2
    clipped = np.minimum(errors, found.personal.largest)
    assert found.personal.means["s3"] == pytest.approx(clipped[owners == "s3"].mean())


def test_robustness_within_the_largest_cost():
    """One client is far off: pooled training ignores it, and a larger cost buys it in."""
    X, y, site = table(n=10, apart=0.2, seed=3)
    odd = site == "s9"
    y[odd] += 2.0 * X[odd, 0]
    cheap, dear, pooled = (
        regressor(personal=None, **how).fit(X, y, clients=site)
        for how in ({"max_cost": 0.02}, {"max_cost": 0.5}, {"weights": "fixed"})
    )
    mean, worst = (
        [np.mean((m.predict(X[rows]) - y[rows]) ** 2) for m in (pooled, cheap, dear)]
        for rows in (~odd | odd, odd)
    )
    assert worst[2] < worst[1] < worst[0]
    assert mean[1] < 1.03 * mean[0] < mean[2]
    found = cheap.calibration_
    assert found.means[found.place] <= 1.02 * found.means[found.pooled]


def test_regret_looks_past_noise():
    """A client of pure noise has the largest loss whatever the model; regret does not chase it."""
    rng = np.random.default_rng(0)
    X, y, site = table(n=6, rows=200, apart=0.0)
    noisy, other = site == "s0", site == "s1"
    y[noisy] = 6 * rng.normal(size=noisy.sum())
    y[other] += X[other, 0]
    risk, regret = (
        regressor(personal=None, weights="simplex", criterion=word).fit(X, y, clients=site)
        for word in ("risk", "regret")
    )
    assert risk.client_weights_["s0"] > 0.9
    assert regret.client_weights_["s0"] < 0.6
    loss = {m: np.mean((m.predict(X[~noisy]) - y[~noisy]) ** 2) for m in (risk, regret)}
    assert loss[regret] < 0.6 * loss[risk]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"max_cost": -1}, "by which share the mean loss may rise"),
        ({"criterion": "loss"}, "criterion must be 'risk' or 'regret'"),
        ({"personal": "none"}, "personal must be 'auto', 'offset' or None"),
    ],
)
def test_choices_that_are_none(how, sentence):
    X, y, site = table(n=2, rows=20)
    with pytest.raises(BidroError, match=sentence):
        regressor(**how).fit(X, y, clients=site)


def test_one_client_alone_has_no_cost_and_no_correction():
    X, y, _ = table(n=1)
    model = regressor().fit(X, y)
    assert model.personal_coef_ == {}
    assert model.calibration_ is None
    again = clone(model).fit(X, y)
    assert again.coef_.tolist() == model.coef_.tolist()


def test_personal_models_travel_in_a_pickle_and_rows_do_not():
    X, y, site = table()
    model = regressor().fit(X, y, clients=site)
    data = pickle.dumps(model)
    assert X[7].tobytes() not in data
    again = pickle.loads(data)
    assert np.array_equal(again.predict(X, clients=site), model.predict(X, clients=site))
