"""Estimators and the command: the order of the rows changes nothing, and statements hold in sorted tables."""

import math

import numpy as np
import pandas as pd
import pytest

from bidro import RobustClassifier, RobustRegressor
from bidro.core.errors import BidroError
from bidro.fit.fitted import Progress
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions
from tests.small import classifier, regressor

CONFIDENCE = 0.9


def visits(rng, rows):
    """(features (N, 2), number, class, client) of two sites."""
    features = rng.normal(size=(rows, 2))
    site = rng.choice(["north", "south"], rows)
    number = features[:, 0] + (site == "south") + 0.5 * rng.normal(size=rows)
    return features, number, np.where(number + rng.normal(size=rows) > 0.5, "ill", "well"), site


def sorted_by(order, features, number, kind, site):
    key = {"target": number, "class": kind, "feature": features[:, 0], "client": site}[order]
    return np.argsort(key, kind="stable")


def test_fit_and_certify_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    features, number, kind, site = visits(rng, 200)
    fresh = visits(rng, 100)
    every = (None, "target", "class", "feature", "client")
    cases = (RobustRegressor(), number, 1, every), (RobustClassifier(), kind, 2, (None, "class"))
    for estimator, target, of_fresh, orders in cases:
        found = []
        for order in orders:
            places = np.arange(200) if order is None else sorted_by(order, features, number, kind, site)
            estimator.fit(features[places], target[places], clients=site[places])
            again = np.arange(100) if order is None else sorted_by(order, *fresh)
            stated = estimator.certify(fresh[0][again], fresh[of_fresh][again], fresh[3][again], CONFIDENCE)
            found.append([*estimator.model_, stated.clipped.bound, *np.ravel(estimator.calibration_.losses)])
        # To the bit: rows come to the solver, to the folds and to the bounds in one order.
        assert all(one == found[0] for one in found)


def test_certify_on_sorted_rows_covers_as_promised():
    """One classifier, fresh rows sorted by class, 300 times: losses and mistakes."""
    rng = np.random.default_rng(1)
    features, _, kind, site = visits(rng, 200)
    model = classifier(radius=0.05, weights="fixed").fit(features, kind, clients=site)
    many = visits(rng, 400_000)
    seen = model.certify(*(many[j] for j in (0, 2, 3)), CONFIDENCE)
    held, repetitions = {"clipped": 0, "mistakes": 0}, 300
    for k in range(repetitions):
        fresh = visits(np.random.default_rng([2, k]), 120)
        places = sorted_by("class", *fresh)
        found = model.certify(*(fresh[j][places] for j in (0, 2, 3)), CONFIDENCE)
        for name in held:
            held[name] += getattr(found, name).bound >= max(getattr(seen, name).means.values())
    for name, count in held.items():
        assert count / repetitions >= CONFIDENCE - 3 * math.sqrt(0.09 / repetitions), name


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_whole_command_on_sorted_tables_covers_as_promised(task, tmp_path):
    """With one seed: rows are held out of tables sorted by target or class, 40 times."""
    many = visits(np.random.default_rng(3), 200_000)
    held, repetitions, path = 0, 40, tmp_path / "table.csv"
    for k in range(repetitions):
        features, number, kind, site = visits(np.random.default_rng([4, k]), 160)
        target = number if task == "regression" else kind
        whole = pd.DataFrame({"u": features[:, 0], "v": features[:, 1], "y": target, "site": site})
        whole.sort_values("y").to_csv(path, index=False)
        options = FitOptions(
            tables=(str(path),), client="site", target="y", hold_out=0.4, radius=0.05, weights="fixed",
            confidence=CONFIDENCE, gap=1e-4,
        )  # fmt: skip
        done = fit_tables(options, Progress())
        truth = pd.DataFrame(
            {"u": many[0][:, 0], "v": many[0][:, 1], "y": many[1 if task == "regression" else 2]}
        )
        losses = np.minimum(done.model.losses(done.model.rows(truth)), done.certificate.clipped.largest)
        true = max(losses[many[3] == name].mean() for name in ("north", "south"))
        held += done.certificate.clipped.bound >= true
    assert held / repetitions >= CONFIDENCE - 3 * math.sqrt(0.09 / repetitions)


def test_rows_outside_the_declared_support_are_refused():
    rng = np.random.default_rng(5)
    X, site = rng.uniform(size=(60, 1)), np.repeat(["a", "b"], 30)
    model = regressor(radius=0.05, support=([0.0, -1.0], [1.0, 2.0])).fit(X, X[:, 0], clients=site)
    X = rng.uniform(size=(60, 1))
    model.certify(X, X[:, 0], site)
    X[40] = 1.5
    with pytest.raises(
        BidroError, match=r"Row 40, of client 'b': 'x0' is 1\.5, outside the declared support"
    ):
        model.certify(X, X[:, 0], site)


def test_people_are_given_by_row():
    rng = np.random.default_rng(6)
    X, site = rng.uniform(size=(60, 1)), np.tile(["a", "b"], 30)
    model = regressor(radius=0.05).fit(X, X[:, 0] + rng.normal(size=60), clients=site)
    found = model.certify(X, X[:, 0] + rng.normal(size=60), site, people=np.arange(60) // 4)
    assert found.clipped.rows == {"a": 15, "b": 15}
    assert "a mean of people" in found.clipped.promise or found.clipped.vacuous
    with pytest.raises(BidroError, match="60 rows but 2 person labels"):
        model.certify(X, X[:, 0], site, people=[1, 2])
