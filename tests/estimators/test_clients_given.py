"""Whose row each is, as estimators are told it: in scores, by a column's name, of clients with one row; and
sparse rows."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from sklearn import config_context
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bidro import BidroError, RobustClassifier, RobustRegressor
from bidro.data import given_rows as given


def data(rows=40):
    """Two clients far apart, so that each has a personal model."""
    rng = np.random.default_rng(4)
    clients = np.repeat(["north", "south"], rows)
    X = rng.normal(size=(2 * rows, 2))
    y = X[:, 0] + 5.0 * (clients == "south") + 0.3 * rng.normal(size=2 * rows)
    return X, y, clients


def regressor(**options):
    return RobustRegressor(**{"weights": "fixed", "curves": None, "gap": 1e-3, **options})


def test_a_score_is_of_the_models_that_clients_use():
    X, y, clients = data()
    model = regressor().fit(X, y, clients=clients)
    assert model.personal_coef_
    own, shared = model.score(X, y, clients=clients), model.score(X, y)
    assert own == pytest.approx(r2_score(y, model.predict(X, clients)))
    assert shared == pytest.approx(r2_score(y, model.predict(X)))
    assert own > 0.9 > 0.5 > shared
    counts = np.where(clients == "south", 3.0, 1.0)
    weighted = r2_score(y, model.predict(X, clients), sample_weight=counts)
    assert model.score(X, y, counts, clients) == pytest.approx(weighted)


def test_a_classifiers_score_is_of_the_models_that_clients_use():
    X, _, clients = data()
    # North says no where south says yes.
    labels = np.where((X[:, 0] > 0) == (clients == "south"), "yes", "no")
    model = RobustClassifier(weights="fixed", curves=None, gap=1e-3).fit(X, labels, clients=clients)
    assert model.score(X, labels, clients=clients) == accuracy_score(labels, model.predict(X, clients)) > 0.8
    assert model.score(X, labels) < 0.7


def test_a_grid_search_with_routed_clients_scores_personal_models():
    X, y, clients = data()
    with config_context(enable_metadata_routing=True):
        whole = make_pipeline(StandardScaler(), regressor().set_fit_request(clients=True))
        folds = KFold(2, shuffle=True, random_state=0)
        search = GridSearchCV(whole, {"robustregressor__personal": [None, "offset"]}, cv=folds)
        search.fit(X, y, clients=clients)
        assert search.best_params_ == {"robustregressor__personal": "offset"}
        without, with_personal = search.cv_results_["mean_test_score"]
        assert with_personal > 0.8 > 0.5 > without
        # Who asks for scores of the shared model has them.
        plain = regressor().set_fit_request(clients=True).set_score_request(clients=False)
        found = cross_val_score(plain, X, y, params={"clients": clients}, cv=folds)
        assert found.max() < 0.5


def test_a_client_of_one_row_gets_the_shared_model():
    X, y, clients = data()
    X, y, clients = np.vstack([X, [[9.0, 9.0]]]), np.append(y, 99.0), np.append(clients, "alone")
    with pytest.warns(UserWarning, match="Client 'alone' has one row, too few .* 1 of 81 rows are left out"):
        model = regressor(personal="offset").fit(X, y, clients=clients)
    assert set(model.client_weights_) == {"north", "south"}
    same = regressor(personal="offset").fit(X[:-1], y[:-1], clients=clients[:-1])
    np.testing.assert_array_equal(model.model_, same.model_)
    np.testing.assert_array_equal(model.predict(X[-1:], clients[-1:].tolist()), model.predict(X[-1:]))
    # Where nothing is cross-validated, it is trained on as any other.
    assert "alone" in regressor(personal=None).fit(X, y, clients=clients).client_weights_
    people = np.append(np.arange(80), 0)
    people[:40] = 7
    with pytest.warns(UserWarning, match="2 clients, such as 'alone', have one person"):
        assert set(regressor().fit(X, y, clients, people).client_weights_) == {"south"}


@pytest.mark.filterwarnings("ignore:Client 'alone' has one row", "ignore:None of these clients")
def test_a_client_of_one_row_does_not_stop_a_cross_validation():
    X, y, clients = data()
    clients[0] = "alone"
    with config_context(enable_metadata_routing=True):
        model = regressor(personal="offset").set_fit_request(clients=True)
        found = cross_val_score(model, X, y, params={"clients": clients}, cv=4, error_score="raise")
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_a_column_of_the_frame_may_name_the_clients(kind):
    X, y, clients = data()
    frame = kind({"age": X[:, 0], "school": clients, "dose": X[:, 1], "pupil": np.arange(80)})
    expected = regressor().fit(X, y, clients=clients, people=np.arange(80))
    model = regressor().fit(frame, y, clients="school", people="pupil")
    assert list(model.feature_names_in_) == ["age", "dose"]
    np.testing.assert_array_equal(model.model_, expected.model_)
    own = expected.predict(X, clients)
    np.testing.assert_allclose(model.predict(frame, clients="school"), own)
    # The column that `fit` took is no feature afterwards, and says whose rows they are.
    np.testing.assert_allclose(model.predict(frame), own)
    assert model.score(frame, y) == pytest.approx(expected.score(X, y, clients=clients))
    assert model.explain(frame).shape == (80, 3)
    # Without it rows get the shared model.
    np.testing.assert_allclose(model.predict(frame[["age", "dose"]]), expected.predict(X))
    fresh = kind({"age": X[:, 0] + 1, "school": clients, "dose": X[:, 1], "pupil": np.arange(80) + 500})
    assert model.certify(fresh, y).names == ("north", "south")


def test_a_column_that_is_not_there_is_said():
    X, y, clients = data()
    with pytest.raises(BidroError, match="names a column, and X has no names of columns; give a DataFrame"):
        regressor().fit(X, y, clients="school")
    frame = pd.DataFrame(X, columns=["age", "dose"])
    with pytest.raises(BidroError, match="X has no column 'school', which is to name the client"):
        regressor().fit(frame, y, clients="school")
    model = regressor().fit(frame, y, clients=clients)
    with pytest.raises(BidroError, match="X has no column 'school'"):
        model.predict(frame, clients="school")
    with pytest.raises(BidroError, match="'school' names one client, or a column"):
        given.client_labels("school", 80)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix"])
def test_sparse_rows_are_as_dense_ones(form, monkeypatch):
    X, y, clients = data()
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    sparse = getattr(scipy.sparse, form)(X)
    model, expected = (regressor().fit(rows, y, clients=clients) for rows in (sparse, X))
    np.testing.assert_array_equal(model.model_, expected.model_)
    np.testing.assert_array_equal(model.predict(sparse, clients), expected.predict(X, clients))
    assert model.score(sparse, y, clients=clients) == expected.score(X, y, clients=clients)
    monkeypatch.setattr(given, "machine_memory", lambda: 4 * X.nbytes - 1)
    with pytest.raises(BidroError, match="Sparse rows are trained on as dense ones, which here take"):
        regressor().fit(sparse, y, clients=clients)
