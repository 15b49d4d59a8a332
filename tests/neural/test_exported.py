"""ONNX files of networks, against the networks themselves."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest

from bidro import BidroError, RobustNetClassifier, RobustNetRegressor, TorchLoss, load_network
from bidro.data.standardise import Standard
from bidro.losses import Squared
from bidro.neural import folder as network_folder
from bidro.neural.folder import LoadedNetwork, network_files, network_onnx
from tests.networks import factories

PLACE = "tests.networks.factories"
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3))
Y = np.sin(X[:, 0]) + X[:, 1]
SITE = np.repeat(["a", "b", "c"], 100)


def run(data, rows):
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"features": np.asarray(rows, float)})[0]


def test_a_saved_regressor_and_classifier_predict_the_same_as_onnx(tmp_path):
    found = RobustNetRegressor(f"{PLACE}:small", rounds=10).fit(X, Y, clients=SITE)
    found.save(tmp_path)
    ours = run((tmp_path / "model.onnx").read_bytes(), X)
    np.testing.assert_allclose(ours[:, 0], found.predict(X), rtol=1e-6, atol=1e-6)
    assert load_network(tmp_path).no_onnx is None
    y = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    classes = RobustNetClassifier(f"{PLACE}:three_classes", rounds=10, dtype="float32")
    classes.fit(X[:, :2], y, clients=SITE).save(tmp_path)
    data = (tmp_path / "model.onnx").read_bytes()
    np.testing.assert_allclose(run(data, X[:, :2]), classes.predict_proba(X[:, :2]), atol=1e-6)
    about = {one.key: one.value for one in onnx.load_from_string(data).metadata_props}
    assert json.loads(about["classes"]) == ["high", "low", "middle"]


def test_units_are_in_the_file():
    """A linear network by hand: y = middle + spread (w (x - mean) / scale + b)."""
    import torch

    loss = TorchLoss(torch.nn.Linear(2, 1))
    units = Standard(np.array([5.0, -1e6]), np.array([2.0, 1e3]), 40.0, 8.0)
    data = network_onnx(loss, np.array([0.5, -0.25, 0.1]), units, None, "stay")
    rows = np.array([[5.0, -1e6], [7.0, -1e6], [5.0, -1e6 + 4e3]])
    np.testing.assert_allclose(run(data, rows)[:, 0], [40.8, 44.8, 32.8], rtol=1e-12)


def test_convolutions_are_in_single_precision():
    """ONNX Runtime has them in no other."""
    loss = TorchLoss(factories.convolution(), "cross entropy", input_shape=(1, 3, 3), classes=3)
    rows = rng.normal(size=(20, 9))
    x = loss.initial(10)
    data = network_onnx(loss, x, Standard.as_they_are(9), ("a", "b", "c"))
    outputs = loss.outputs(x, rows)
    expected = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    found = run(data, rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found - expected).max() > 1e-12


def test_where_there_is_no_file_a_sentence_says_why(tmp_path, monkeypatch):
    found = RobustNetRegressor(f"{PLACE}:small", rounds=5).fit(X, Y, clients=SITE)
    found.save(tmp_path)
    RobustNetRegressor(f"{PLACE}:in_jax", rounds=5).fit(X, Y, clients=SITE).save(tmp_path)
    assert not (tmp_path / "model.onnx").exists()
    assert "only PyTorch modules" in load_network(tmp_path).no_onnx
    whole = Standard.as_they_are(3)
    loss = TorchLoss(factories.spectral())
    with pytest.raises(BidroError, match="PyTorch cannot write this module as one"):
        network_onnx(loss, loss.initial(4), whole, None)
    loss = TorchLoss(factories.small())
    monkeypatch.setattr(network_folder, "TOLERANCE", 0.0)
    with pytest.raises(BidroError, match="predictions differ from the network's by"):
        network_onnx(loss, loss.initial(4), Standard(np.ones(3), np.full(3, 0.3), 1.0, 3.0), None)
    with pytest.raises(BidroError, match="not that of a network"):
        network_files(Squared(), np.zeros(4), LoadedNetwork({}, "a:b", None, None, whole))


def test_without_the_packages_the_extra_is_named(monkeypatch):
    from bidro.core import errors

    loss = TorchLoss(factories.small())
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(BidroError, match=r"pip install 'bidro\[onnx\]'"):
        network_onnx(loss, loss.initial(4), Standard.as_they_are(3), None)
