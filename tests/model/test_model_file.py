"""Model files: what is written comes back, and a file made with malice is refused whole."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load

from bidro.core.errors import BidroError
from bidro.core.packed import encoded
from bidro.data.standardise import Standard
from bidro.data.tables import learn_schema
from bidro.losses import Huber, Logistic, Loss, SmoothedHinge, Softmax, Squared, registry
from bidro.model.model_file import FILE, Model, load_model

TABLE = pd.DataFrame(
    {
        "site": ["a", "a", "b", "b", "b", "b"],
        "age": [20.0, 40.0, 30.0, 60.0, 50.0, 25.0],
        "ward": ["x", "y", "x", "y", "y", "x"],
        "stay": [1.0, 4.0, 2.0, 8.0, 6.0, 1.5],
        "kind": ["p", "q", "r", "p", "q", "r"],
        "home": ["no", "yes", "no", "yes", "yes", "no"],
    }
)
# Levels and classes of few rows would be refused.
TABLE = pd.concat([TABLE] * 3, ignore_index=True)


def model(loss: Loss, x, target="stay"):
    others = [name for name in ("stay", "kind", "home") if name != target]
    schema = learn_schema(TABLE.drop(columns=others), "site", target, None, None, "refuse")
    numeric = target == "stay"
    standard = Standard(
        np.array([40.0, 0.5]), np.array([10.0, 0.25]), 3.0 if numeric else 0.0, 2.0 if numeric else 1.0
    )
    return Model(
        schema, loss, np.asarray(x, float), standard, ("a", "b"), 7.0, None, 1.5, True, {"gap": 1e-7}, {}
    )


def written(found: Model, **changes) -> bytes:
    """The file with other entries in its header, and with check sums that fit them."""
    data = found.to_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bidro"][64:])
    tensors = {**load(data), **{k: changes.pop(k) for k in ("model", "mean", "spread") if k in changes}}
    return encoded(tensors, {k: v for k, v in {**header, **changes}.items() if k != "numbers"})


HUBER = model(Huber(threshold=0.5, intercept=True), [1.0, -2.0, 0.5])


def test_what_is_written_comes_back():
    # Files that are already out there are of this format and version.
    assert written(HUBER, format="bidro model", version=2) == HUBER.to_bytes()
    again = Model.from_bytes(HUBER.to_bytes(), "here")
    assert again.loss == HUBER.loss
    assert again.schema == HUBER.schema
    assert np.array_equal(again.x, HUBER.x)
    assert (again.seen, again.largest, again.slope, again.of_root) == (7.0, None, 1.5, True)
    assert again.clients == ("a", "b")
    assert (dict(again.settings), dict(again.versions)) == ({"gap": 1e-7}, {})
    assert (again.standard.middle, again.standard.target_spread) == (3.0, 2.0)
    np.testing.assert_array_equal(again.standard.mean, [40.0, 0.5])
    np.testing.assert_array_equal(again.standard.spread, [10.0, 0.25])
    assert again.to_bytes() == HUBER.to_bytes()
    # The same content gives the same bytes, in whatever order its settings were made.
    one, other = (replace(HUBER, settings=order) for order in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert one.to_bytes() == other.to_bytes()


def test_what_a_model_may_leave_open_comes_back_too():
    """Losses of 0 throughout, a largest loss that is known, a slope that is not, and names in their order."""
    found = replace(
        HUBER, seen=0.0, largest=2.5, slope=None, of_root=False, clients=("b", "a"), versions={"bidro": "1"}
    )
    again = Model.from_bytes(found.to_bytes(), "here")
    assert (again.seen, again.largest, again.slope, again.of_root) == (0.0, 2.5, None, False)
    assert (again.clients, dict(again.versions)) == (("b", "a"), {"bidro": "1"})


def test_a_change_of_any_byte_shows():
    data = HUBER.to_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(BidroError, match="'here' is"):
            Model.from_bytes(bytes(changed), "here")
    for cut in (b"", data[:7], data[:-1], data + b"0"):
        with pytest.raises(BidroError, match="damaged"):
            Model.from_bytes(cut, "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {"name": "huber", "threshold": "0.5", "intercept": True}},
        {"loss": {"name": "huber", "threshold": 0.5, "intercept": "yes"}},
        {"loss": {"name": "huber", "threshold": 0.5, "intercept": ["yes"]}},
        {"loss": {"name": "huber", "threshold": 0.5, "intercept": True, "odd": 1.0}},
        {"loss": {"name": "os.system"}},
        {"loss": {"threshold": 0.5}},
        {"loss": {"name": "squared", "intercept": False}},
        {"model": np.zeros(4)},
        {"model": np.zeros((3, 1))},
        {"mean": np.zeros(1)},
        {"spread": np.ones(1)},
        {"spread": np.array([1.0, 0.0])},
        {"spread": np.array([-1.0, 1.0])},
        {"target_spread": -1.0},
        {"target_spread": 0.0},
        {"clients": "ab"},
        {"clients": ["a", 3]},
        {"clients": []},
        {"seen": -1.0},
        {"largest": "high"},
        {"versions": [1]},
        {"slope": [1.0]},
        {"schema": {}},
        {"middle": "zero"},
        {"settings": 3},
    ],
    ids=str,
)
def test_a_hostile_file_whose_check_sums_fit_is_refused(changes):
    with pytest.raises(BidroError, match="'here' is not a whole model"):
        Model.from_bytes(written(HUBER, **changes), "here")


@pytest.mark.parametrize("changes", [{"format": "other"}, {"version": 4}])
def test_another_format_or_version_is_named(changes):
    with pytest.raises(BidroError, match=f"is of format .*{next(iter(changes.values()))}"):
        Model.from_bytes(written(HUBER, **changes), "here")


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(BidroError, match="damaged"):
        Model.from_bytes(written(HUBER, model=np.array([1.0, np.nan, 2.0])), "here")


def test_a_header_that_only_python_reads_is_refused(monkeypatch):
    """NaN is no JSON: neither written nor taken, though Python would."""
    with pytest.raises(ValueError, match="JSON"):
        written(HUBER, largest=np.nan)
    with monkeypatch.context() as patch:
        patch.setattr(
            "bidro.core.packed.json.dumps", lambda v, **_: json.JSONEncoder(sort_keys=True).encode(v)
        )
        data = written(HUBER, largest=np.nan)
    with pytest.raises(BidroError, match="damaged"):
        Model.from_bytes(data, "here")


def test_predictions_by_hand():
    """A regression, two classes with probabilities, and three: scores on the original scale."""
    z = np.column_stack([(TABLE["age"] - 40) / 10, ((TABLE["ward"] == "y") - 0.5) / 0.25])
    numbers = HUBER.predict(TABLE)
    np.testing.assert_allclose(numbers["prediction"], z @ [1.0, -2.0] + 0.5 + 3.0)

    two = model(Logistic(intercept=True), [2.0, -0.5, 0.25], "home").predict(TABLE)
    score = z @ [2.0, -0.5] + 0.25
    np.testing.assert_allclose(two["probability of yes"], 1 / (1 + np.exp(-score)))
    np.testing.assert_allclose(two["probability of yes"] + two["probability of no"], 1.0)
    assert two["prediction"].tolist() == np.where(score > 0, "yes", "no").tolist()

    weights = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    x = np.concatenate([weights.ravel(), [0.1, 0.2, 0.3]])
    three = model(Softmax(classes=3, intercept=True), x, "kind").predict(TABLE)
    scores = np.exp(z @ weights.T + [0.1, 0.2, 0.3])
    shares = three[["probability of p", "probability of q", "probability of r"]]
    np.testing.assert_allclose(shares, scores / scores.sum(axis=1, keepdims=True))
    assert three["prediction"].tolist() == [list("pqr")[k] for k in scores.argmax(axis=1)]


def test_correct_is_where_the_prediction_is_the_target():
    """Two classes, where a score of 0 is for the first, and three; a number is neither right nor wrong."""
    assert HUBER.correct(HUBER.rows(TABLE)) is None
    shuffled = TABLE.set_index(np.arange(100, 100 + len(TABLE)))
    weights = np.concatenate([[1.0, 0.0, 0.0, 1.0, -1.0, -1.0], [0.1, 0.2, 0.3]])
    for found, target in (
        (model(Logistic(intercept=True), [2.0, -0.5, 0.25], "home"), "home"),
        (model(Logistic(intercept=True), [-2.0, 0.5, 0.25], "home"), "home"),
        (model(Logistic(intercept=True), [0.1, 0.05, 0.05], "home"), "home"),
        (model(Logistic(intercept=True), [0.0, 0.0, 0.0], "home"), "home"),
        (model(Softmax(classes=3, intercept=True), weights, "kind"), "kind"),
    ):
        predicted = found.predict(shuffled)
        assert predicted.index.equals(shuffled.index)
        right = predicted["prediction"].to_numpy() == shuffled[target].to_numpy()
        np.testing.assert_array_equal(found.correct(found.rows(shuffled)), right)
    undecided = model(Logistic(intercept=True), [0.0, 0.0, 0.0], "home").predict(TABLE)
    assert set(undecided["prediction"]) == {"no"}
    np.testing.assert_array_equal(undecided["probability of yes"], 0.5)


def test_a_loss_without_probabilities_has_none():
    hinge = model(SmoothedHinge(width=0.5, intercept=True), [2.0, -0.5, 0.25], "home")
    assert list(hinge.predict(TABLE).columns) == ["prediction"]


def test_losses_and_statements_are_those_of_the_model():
    residuals = HUBER.predict(TABLE)["prediction"] - TABLE["stay"]
    squared = model(Squared(intercept=True), HUBER.x)
    np.testing.assert_allclose(squared.losses(squared.rows(TABLE)), residuals**2)
    of = HUBER.assessed
    assert (of.seen, of.largest, of.slope, of.of_root, of.mixtures.dimension) == (7.0, None, 1.5, True, 2)
    assert registry.entry_of(HUBER.loss).word == "huber"


def test_a_model_is_found_in_a_folder_or_a_file(tmp_path):
    with pytest.raises(BidroError, match="There is no model in"):
        load_model(tmp_path)
    (tmp_path / FILE).write_bytes(HUBER.to_bytes())
    for where in (tmp_path, tmp_path / FILE):
        assert load_model(where).to_bytes() == HUBER.to_bytes()
