"""Networks as scikit-learn estimators: what is trained, stated, estimated and written."""

import pickle
import sys

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bidro import RobustNetClassifier, RobustNetRegressor, load_network
from bidro.ambiguity import Penalty
from bidro.core.errors import BidroError
from bidro.core.sets import WholeSpace
from bidro.core.splits import choose_holdout
from bidro.data.federation import Federation
from bidro.losses import TorchLoss
from bidro.neural.shift import shift_estimate
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from tests.networks import factories

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
SITE = RNG.choice(["a", "b", "c"], 240, p=[0.5, 0.3, 0.2])
Y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=240)
PLACE = "tests.networks.factories"


@pytest.fixture(scope="module")
def fitted():
    return RobustNetRegressor(f"{PLACE}:small", rounds=150).fit(X, Y, clients=SITE)


def test_a_regressor_learns_and_its_certificate_is_of_rows_it_never_saw(fitted):
    assert fitted.score(X, Y) > 0.6
    assert set(fitted.client_weights_) == {"a", "b", "c"}
    kept = choose_holdout(SITE, X, Y, 0.2, 0)
    losses = (fitted.predict(X[kept]) - Y[kept]) ** 2
    stated = fitted.certificate_.clipped
    clip = stated.largest
    for name in fitted.certificate_.names:
        own = np.minimum(losses[SITE[kept] == name], clip)
        assert stated.rows[name] == len(own)
        assert stated.means[name] == pytest.approx(own.mean(), rel=1e-9)
    assert "not trained here" not in str(fitted.certificate_)
    assert fitted.shift_estimate_ is None


def test_the_module_itself_and_its_factory_s_name_train_the_same_model(fitted):
    again = RobustNetRegressor(factories.small(), rounds=150).fit(X, Y, clients=SITE)
    np.testing.assert_array_equal(again.model_, fitted.model_)


def test_a_pickle_predicts_the_same_and_a_clone_has_the_parameters(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert clone(fitted).get_params() == fitted.get_params()
    assert type(fitted.module_[0]).__name__ == "Linear"


def test_a_folder_holds_weights_and_a_name_and_runs_nothing_until_asked(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path)
    monkeypatch.delitem(sys.modules, PLACE)
    found = load_network(tmp_path)
    assert PLACE not in sys.modules
    assert found.factory == f"{PLACE}:small"
    module = found.build()
    rows = X[:5]
    theirs = TorchLoss(module).outputs(TorchLoss(module).initial(4), rows)[:, 0]
    np.testing.assert_array_equal(theirs, fitted.predict(rows))
    assert (tmp_path / "certificate.json").exists()
    path = tmp_path / "network.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BidroError, match="damaged"):
        load_network(tmp_path)
    fitted.set_params(module=f"{PLACE}:other")
    try:
        fitted.save(tmp_path)
        with pytest.raises(BidroError, match=r"makes another network .* parameter '0\.bias' differs"):
            load_network(tmp_path).build()
    finally:
        fitted.set_params(module=f"{PLACE}:small")
    with pytest.raises(BidroError, match="no network in"):
        load_network(tmp_path / "nowhere")
    with pytest.raises(BidroError, match="give the estimator `module='package"):
        pickle.loads(pickle.dumps(fitted)).set_params(module=factories.small()).save(tmp_path)


def test_a_jax_function_trains_is_saved_and_made_again(tmp_path):
    found = RobustNetRegressor(f"{PLACE}:in_jax", rounds=60).fit(X, Y, clients=SITE)
    assert found.score(X, Y) > 0.5
    assert set(found.module_) == {"out", "hidden"}
    found.save(tmp_path)
    again = load_network(tmp_path).build()
    expected = np.array([again.function(again.parameters, row) for row in X[:4]])
    np.testing.assert_allclose(found.predict(X[:4]), expected, rtol=1e-12)


def test_a_classifier_in_a_pipeline_with_clients_routed():
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    with sklearn.config_context(enable_metadata_routing=True):
        network = RobustNetClassifier(f"{PLACE}:three_classes", rounds=80, dtype="float32").set_fit_request(
            clients=True
        )
        model = make_pipeline(StandardScaler(), network).fit(X[:, :2], y, clients=SITE)
    assert model.score(X[:, :2], y) > 0.8
    inner = model[-1]
    assert inner.classes_.tolist() == ["high", "low", "middle"]
    chances = model.predict_proba(X[:, :2])
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert inner.certificate_.mistakes is not None
    assert inner.certificate_.names == ("a", "b", "c")


def test_the_estimate_of_shift_against_the_closed_form():
    """A linear module: the supremum of u^2 - rho ||d||^2 is u^2 rho / (rho - |w|^2), which ascent reaches."""
    import torch

    module = torch.nn.Linear(3, 1, bias=False)
    loss, rho = TorchLoss(module), 6.0
    rows = np.column_stack([X[:20], Y[:20]])
    fed = Federation.from_arrays({"a": rows}, "unbounded")
    problem = Problem(fed, loss, WholeSpace(3), Transport.features_only(4), Penalty(rho))
    w = np.array([0.7, -0.4, 0.2])
    found = shift_estimate(problem, w, {"a": rows})
    u = rows[:, :3] @ w - rows[:, 3]
    rest = rho - w @ w
    assert found.losses["a"] == pytest.approx(np.mean(u**2), rel=1e-12)
    assert found.penalised["a"] == pytest.approx(np.mean(u**2) * rho / rest, rel=1e-8)
    assert found.moved_losses["a"] == pytest.approx(np.mean(u**2) * (rho / rest) ** 2, rel=1e-4)
    assert found.distances["a"] == pytest.approx(np.mean(np.abs(u)) * np.linalg.norm(w) / rest, rel=1e-4)
    assert "An estimate by gradient ascent, not a bound" in str(found)


def test_training_against_shift_leaves_an_estimate():
    found = RobustNetRegressor(factories.small(), rounds=20, penalty=4.0).fit(X, Y, clients=SITE)
    estimate = found.shift_estimate_
    assert set(estimate.losses) == {"a", "b", "c"}
    assert all(estimate.penalised[name] > estimate.losses[name] for name in estimate.losses)


BAD = {
    "The share `holdout` must be above 0": lambda: RobustNetRegressor(factories.small(), holdout=0.7),
    "is named 'package.module:function'": lambda: RobustNetRegressor("small"),
    "The factory 'tests.nowhere:f' cannot be called": lambda: RobustNetRegressor("tests.nowhere:f"),
    "compute in float64": lambda: RobustNetRegressor(factories.in_jax(), dtype="float32"),
    "The loss of a JAX function is": lambda: RobustNetRegressor(factories.in_jax(), "hinge"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_settings_say_what_is_wrong(sentence):
    with pytest.raises(BidroError, match=sentence):
        BAD[sentence]().fit(X, Y, clients=SITE)
