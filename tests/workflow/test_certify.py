"""`certify_predictions` and `certify_model`: any model, numbers, classes and probabilities."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

import bidro
from bidro.certify.held_out import Paired
from bidro.core.errors import BidroError
from bidro.report.figures import certificate_figure


def rows(seed, count=150):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2))
    target = features @ [1.0, -0.5] + 0.3 * rng.normal(size=count)
    return features, target, np.array(["north", "south", "west"])[np.arange(count) % 3]


class Reported:
    """A score on paper: nothing but `predict`."""

    def predict(self, features):
        return np.asarray(features)[:, :1]


def test_any_model_with_predict_and_its_predictions_are_the_same():
    X, y, clients = rows(0)
    other = rows(1)
    found = bidro.certify_model(Reported(), X, y, clients, clip_from=other[:2], confidence=0.9)
    same = bidro.certify_predictions(
        y.tolist(), X[:, 0], clients, clip_from=(other[1], other[0][:, 0]), confidence=0.9
    )
    assert found.to_json() == same.to_json()
    assert found.names == ("north", "south", "west")
    assert found.clipped.largest == pytest.approx(((other[0][:, 0] - other[1]) ** 2).max())
    alone = bidro.certify_predictions(y, X[:, 0], loss="absolute", largest=50.0)
    assert alone.names == ("all",)
    assert alone.held_out.means["all"] == pytest.approx(np.abs(X[:, 0] - y).mean())
    table = pd.DataFrame({"x": X[:, 0], "z": X[:, 1]})
    framed = bidro.certify_model(
        LinearRegression().fit(table, y), table, pd.Series(y), pd.Series(clients), largest=90.0,
        loss="pinball", quantile=0.8, people=pd.Series(np.arange(150) // 2),
    )  # fmt: skip
    assert framed.held_out.people


def test_numbers_that_pandas_keeps_in_a_type_of_its_own():
    X, y, clients = rows(11)
    whole = pd.Series(np.round(3 * y), dtype="Int64")
    found = bidro.certify_predictions(whole, pd.Series(X[:, 0], dtype="Float64"), clients, largest=500.0)
    same = bidro.certify_predictions(np.round(3 * y), X[:, 0], clients, largest=500.0)
    assert found.to_json() == same.to_json()
    whole[3] = pd.NA
    with pytest.raises(BidroError, match="Row 3 has no target"):
        bidro.certify_predictions(whole, X[:, 0], clients, largest=500.0)


def test_a_better_model_is_called_better_and_the_worse_is_not():
    X, y, clients = rows(2, 600)
    train = rows(3, 300)
    good = LinearRegression().fit(*train[:2])
    poor = DummyRegressor().fit(*train[:2])
    most = 1.01 * max(np.max((model.predict(X) - y) ** 2) for model in (good, poor))
    found = bidro.certify_model(good, X, y, clients, against=poor, largest=most)
    assert found.against.better
    assert isinstance(found.against, Paired)
    clipped = bidro.certify_model(good, X, y, clients, against=poor, clip_from=rows(4)[:2])
    assert clipped.against.lower
    assert not clipped.against.better
    assert bidro.Certificate.from_json(clipped.to_json()).against.verdict == clipped.against.verdict
    assert not bidro.certify_model(poor, X, y, clients, against=good, clip_from=rows(4)[:2]).against.lower
    assert not bidro.certify_model(good, X, y, clients, against=good, clip_from=rows(4)[:2]).against.lower


@pytest.mark.parametrize("kind", [str, float, bool])
def test_classes_of_every_kind(kind):
    X, y, _ = rows(5)
    labels = (y > 0).astype(kind) if kind is not str else np.where(y > 0, "yes", "no")
    model = LogisticRegression().fit(X, labels)
    fresh, target, owners = rows(6)
    truth = (target > 0).astype(kind) if kind is not str else np.where(target > 0, "yes", "no")
    wrong = (model.predict(fresh) != truth).mean()
    found = bidro.certify_model(model, fresh, truth, owners)
    assert found.mistakes.means.keys() == set(owners)
    assert np.mean([found.mistakes.means[name] for name in owners]) == pytest.approx(wrong)
    as_float = truth if kind is str else truth.astype(float)
    by_label = bidro.certify_predictions(as_float, model.predict(fresh), owners, loss="mistakes")
    assert by_label.to_json() == found.to_json()
    brier = bidro.certify_model(model, fresh, truth, owners, loss="brier")
    assert brier.held_out.largest == 1.0
    assert brier.mistakes.bound == found.mistakes.bound
    logs = bidro.certify_model(
        model, fresh, truth, owners, loss="log loss", clip_from=(X, labels),
        against=DummyClassifier().fit(X, labels),
    )  # fmt: skip
    assert logs.clipped.clipped
    assert logs.against.lower


def test_pictures_of_such_certificates():
    X, y, clients = rows(7)
    for options in ({"largest": 90.0}, {"clip_from": (y[::-1] + 1, X[:, 1])}):
        found = bidro.certify_predictions(y, X[:, 0], clients, **options)
        texts = [text.get_text() for text in certificate_figure(found).axes[0].get_yticklabels()]
        assert "north (N = 50)" in texts
    labels = np.where(y > 0, "yes", "no")
    figure = certificate_figure(
        bidro.certify_predictions(labels, np.where(X[:, 0] > 0, "yes", "no"), clients)
    )
    assert figure.axes[0].get_xlabel() == "share of mistakes"
    assert "share of mistakes, held out" in [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_rows_that_may_be_the_same_are_named_in_a_warning():
    X, y, clients = rows(8)
    other = rows(9)
    mixed = (np.concatenate([other[1], y[:2]]), np.concatenate([other[0][:, 0], X[:2, 0]]))
    with pytest.warns(bidro.TrainedRowsWarning, match="2 of the other rows"):
        bidro.certify_predictions(y, X[:, 0], clients, clip_from=mixed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bidro.certify_predictions(y, X[:, 0], clients, clip_from=(other[1], other[0][:, 0]))


class Silent:
    """Predicts one row too few."""

    def predict(self, features):
        return np.zeros(len(features) - 1)


X, Y, OWNERS = rows(10)
WORDS = np.where(Y > 0, "yes", "no")
SHARES = np.full((len(Y), 2), 0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bidro.certify_predictions(Y, X[:, 0]), "no largest value"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], clip_from=(Y, X[:, 0])), "those to certify"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], clip_from=Y), "clip_from must be two"),
        (lambda: bidro.certify_predictions(Y, X, largest=9), "Probabilities need `classes`"),
        (lambda: bidro.certify_predictions(Y, X[:-1, 0], largest=9), "150 targets but predictions of 149"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], OWNERS[1:], largest=99), "150 rows but 149 client"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], people=OWNERS[1:], largest=99), "149 person labels"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], largest=99, confidence=1), "confidence"),
        (lambda: bidro.certify_predictions(Y[:1], X[:1, 0], largest=9), "too few rows"),
        (lambda: bidro.certify_predictions([], [], largest=9), "too few rows"),
        (lambda: bidro.certify_predictions(Y, np.full(150, np.nan), largest=9), "Row 0 has no prediction"),
        (lambda: bidro.certify_predictions(WORDS, X[:, 0], loss="squared"), "must be numbers"),
        (lambda: bidro.certify_predictions(WORDS, np.where(Y > 0, "1", "0")), "write classes in both"),
        (lambda: bidro.certify_predictions(WORDS, WORDS, loss="brier"), "a probability of every class"),
        (lambda: bidro.certify_predictions(WORDS, WORDS, loss="hinge"), "loss must be one of"),
        (lambda: bidro.certify_predictions(WORDS, SHARES, classes=["no", "maybe"]), "the class '"),
        (lambda: bidro.certify_predictions(WORDS, 2 * SHARES, classes=["no", "yes"]), "sum to 2"),
        (lambda: bidro.certify_predictions(WORDS, SHARES[:, 0], classes=["no", "yes"]), "got shape"),
        (lambda: bidro.certify_predictions(Y, X[:, 0], largest=99, against=X[1:, 0]), "predictions of 149"),
        (lambda: bidro.certify_model(Silent(), X, Y, OWNERS, largest=9), "predictions of 149"),
        (lambda: bidro.certify_model(Reported(), X, WORDS, loss="brier"), "Reported has no `classes_`"),
        (lambda: bidro.certify_model("model", X, Y, largest=9), "str has no `predict`"),
    ],
)  # fmt: skip
def test_one_sentence_for_what_cannot_be_used(call, words):
    with pytest.raises(BidroError, match=words) as found:
        call()
    assert "\n" not in str(found.value)
