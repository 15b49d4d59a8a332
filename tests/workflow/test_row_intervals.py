"""Intervals for rows from a fit to a prediction: what is kept in a folder, for whom, and that it covers."""

from __future__ import annotations

import itertools
import json
import math
import pickle

import numpy as np
import pandas as pd
import pytest

from bidro import BidroError, RobustClassifier, RobustRegressor, example_visits, load_model
from bidro.certify.intervals import rank_of
from bidro.cli import app
from bidro.core.splits import left_out_clients


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("visits")
    example_visits().to_csv(at / "visits.csv", index=False)
    _run(f"fit {at / 'visits.csv'} --client hospital --target stay --curves none --out {at / 'model'}")
    return at


def _run(command: str) -> None:
    app(command.split(), standalone_mode=False)


def _inside(found: pd.DataFrame, target: pd.Series) -> pd.Series:
    return (found["lower"] <= target) & (target <= found["upper"])


def test_known_clients_unknown_ones_and_new_ones(folder):
    model, fresh = load_model(folder / "model"), example_visits(3)
    known = model.predict_interval(fresh, 0.9)
    assert 0.86 < _inside(known, fresh["stay"]).mean() < 0.94
    # Around the model that the client uses.
    assert np.allclose((known["lower"] + known["upper"]) / 2, model.predict(fresh)["prediction"])
    nobody = fresh.drop(columns="hospital")
    unknown = model.predict_interval(nobody, 0.9)
    assert _inside(unknown, fresh["stay"]).groupby(fresh["hospital"]).mean().min() > 0.86
    assert np.allclose((unknown["lower"] + unknown["upper"]) / 2, model.predict(nobody)["prediction"])
    new = model.predict_interval(fresh.assign(hospital="elsewhere"), 0.9)
    assert np.isinf(new.to_numpy()).all()
    narrow, wide = (model.predict_interval(fresh, share) for share in (0.5, 0.99))
    assert (narrow["lower"] > wide["lower"]).all()


def test_the_command_says_what_is_promised(folder, capsys):
    fresh = folder / "fresh.csv"
    example_visits(4)[:5].to_csv(fresh, index=False)
    capsys.readouterr()
    _run(f"predict {folder / 'model'} {fresh} --interval 0.9 --json")
    said = capsys.readouterr()
    content = json.loads(said.out)
    assert {"prediction", "lower", "upper"} == set(content["predictions"])
    assert "on average over calibration rows" in content["promise"]
    assert content["promise"] in said.err
    _run(f"predict {folder / 'model'} {fresh} --interval 0.9 --shift 0.01 --json")
    shifted = json.loads(capsys.readouterr().out)
    assert "rows have moved" in shifted["promise"]
    assert shifted["predictions"]["upper"][0] > content["predictions"]["upper"][0]
    pd.read_csv(fresh).assign(hospital="elsewhere").to_csv(fresh, index=False)
    _run(f"predict {folder / 'model'} {fresh} --interval 0.9 --json")
    assert json.loads(capsys.readouterr().out)["predictions"]["upper"] == [None] * 5


def test_a_share_that_is_not_kept_is_refused(folder):
    with pytest.raises(BidroError, match=r"0\.5, 0\.8, 0\.9"):
        load_model(folder / "model").predict_interval(example_visits(1), 0.85)


def _clients(n: int, rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.normal(size=n), rows)
    x = rng.normal(size=n * rows)
    return pd.DataFrame(
        {
            "site": np.repeat([f"s{seed}-{i:02d}" for i in range(n)], rows),
            "x": x,
            "y": x + level + 0.5 * rng.normal(size=n * rows),
        }
    )


def test_clients_are_left_out_for_new_ones(tmp_path):
    _clients(30, 12, 0).to_csv(tmp_path / "t.csv", index=False)
    _run(
        f"fit {tmp_path / 't.csv'} --client site --target y --curves none --new-clients 0.4 --out "
        f"{tmp_path / 'm'}"
    )
    model = load_model(tmp_path / "m")
    left = left_out_clients(sorted(set(_clients(30, 12, 0)["site"])), 0.4, 0)
    assert len(model.clients) == 18
    assert set(left).isdisjoint(model.clients)
    assert model.intervals.at(0.9)[0].new_clients == 12
    fresh = _clients(200, 3, 1)
    found = model.predict_interval(fresh, 0.9)
    assert np.isfinite(found.to_numpy()).all()
    assert _inside(found, fresh["y"]).mean() > 0.85
    assert "left out of training" in model.intervals.promise(0.9)


def test_too_many_clients_left_out_are_refused():
    with pytest.raises(BidroError, match="fewer than 2 stay"):
        left_out_clients(["a", "b", "c"], 0.5, 0)
    assert left_out_clients(["a", "b", "c"], 0.0, 0) == ()
    # By names alone: another client moves nobody from the left-out ones, only the number of them.
    names = [f"s{i}" for i in range(40)]
    assert set(left_out_clients(names[:30], 0.5, 0)) - {*left_out_clients(names, 0.5, 0)} <= set(names)


def test_an_estimator_has_intervals_from_fresh_rows():
    train, fresh, test = (example_visits(seed) for seed in (0, 1, 2))
    columns = ["age", "bmi"]
    model = RobustRegressor(curves=None).fit(train[columns], train["stay"], clients=train["hospital"])
    with pytest.raises(BidroError, match="conformalize"):
        model.predict_interval(test[columns])
    with pytest.raises(BidroError):
        model.conformalize(train[columns], train["stay"], train["hospital"])
    model.conformalize(fresh[columns], fresh["stay"], fresh["hospital"])
    low, high = model.predict_interval(test[columns], test["hospital"])
    inside = pd.Series((low <= test["stay"]) & (test["stay"] <= high)).groupby(test["hospital"]).mean()
    assert inside.min() > 0.8
    one, other = (pickle.loads(pickle.dumps(model)).predict_interval(test[columns]) for _ in range(2))
    assert np.array_equal(one, other)
    people = model.conformalize(
        fresh[columns], fresh["stay"], fresh["hospital"], people=np.arange(len(fresh)) // 2
    )
    assert "one random row of a new person" in people.intervals_.promise(0.9)


def test_sets_of_classes():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(900, 2)), np.repeat(["a", "b", "c"], 300)
    y = np.where(X[:, 0] + rng.logistic(size=900) > 0.7, "ill", "well")
    train, fresh, test = (np.arange(900) % 3 == k for k in range(3))
    model = RobustClassifier(curves=None, personal=None, weights="fixed")
    model.fit(X[train], y[train], site[train]).conformalize(X[fresh], y[fresh], site[fresh])
    sets = model.predict_set(X[test], site[test])
    truth = np.searchsorted(model.classes_, y[test])
    assert sets[np.arange(len(truth)), truth].mean() > 0.85
    assert sets.any(axis=1).all()
    assert 1.0 < sets.sum(axis=1).mean() < 1.9
    wider = model.predict_set(X[test], confidence=0.99)
    assert (wider | ~sets).all()
    with pytest.raises(BidroError, match="of classes"):
        model.intervals_.at(0.9, 0.1)


@pytest.mark.parametrize(("shift", "scale"), [(1e6, 1.0), (0.0, 1e-8), (0.0, 1e6)])
def test_units_of_the_target_do_not_matter(shift, scale):
    train, fresh = example_visits(0), example_visits(1)
    found = []
    for a, b in ((0.0, 1.0), (shift, scale)):
        model = RobustRegressor(curves=None, personal=None, weights="fixed")
        model.fit(train[["age"]], a + b * train["stay"], train["hospital"])
        model.conformalize(fresh[["age"]], a + b * fresh["stay"], fresh["hospital"])
        found.append((np.subtract(*model.predict_interval(fresh[["age"]], fresh["hospital"])[::-1])) / b)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert not math.isinf(found[0].max())


@pytest.mark.parametrize("kind", ["counts", "tenths", "classes"])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e-8)])
def test_rows_whose_scores_are_equal_are_inside_together(kind, shift, scale):
    """Of categories and counts many rows lie equally far from their prediction, but for rounding. Of the very
    rows that a quantile is of, its rank are inside."""
    for seed in range(3 if (shift, scale) == (0.0, 1.0) else 1):
        rng = np.random.default_rng(seed)
        site, X = np.repeat(["a", "b"], 200), rng.integers(0, 2, (400, 2)).astype(float)
        if kind == "classes":
            y = np.where(rng.uniform(size=400) < 0.3 + 0.3 * X[:, 0], "yes", "no")
        else:
            tenths = rng.integers(0, 4, 400) / 10 + 0.1 * X[:, 1]
            y = shift + scale * (rng.poisson(1 + X[:, 0]) if kind == "counts" else tenths)
        one, other = np.arange(400) % 2 == 0, np.arange(400) % 2 == 1
        fitted = RobustClassifier if kind == "classes" else RobustRegressor
        model = fitted(curves=None, weights="fixed").fit(X[one], y[one], site[one])
        with pytest.warns(match="too few"):
            model.conformalize(X[other], y[other], site[other])
        for share, clients in itertools.product((0.5, 0.8, 0.9), (site[other], None)):
            if kind == "classes":
                sets = model.predict_set(X[other], clients, share)
                inside = sets[np.arange(200), np.searchsorted(model.classes_, y[other])]
            else:
                low, high = model.predict_interval(X[other], clients, share)
                inside = (low <= y[other]) & (y[other] <= high)
            rank = rank_of(100, 1 - share)
            assert all(inside[site[other] == name].sum() >= rank for name in ("a", "b"))


def test_counts_and_costs_have_intervals():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(1200, 1)), np.repeat(["a", "b"], 600)
    y = rng.poisson(np.exp(0.5 + 0.6 * X[:, 0])).astype(float)
    train, fresh, test = (np.arange(1200) % 3 == k for k in range(3))
    model = RobustRegressor("poisson", curves=None).fit(X[train], y[train], site[train])
    model.conformalize(X[fresh], y[fresh], site[fresh])
    low, high = model.predict_interval(X[test], site[test])
    assert 0.85 < np.mean((low <= y[test]) & (y[test] <= high)) < 0.97
    assert low.min() == 0
    # Means that grow have errors that grow.
    assert (high - low)[X[test, 0] > 1].mean() > 1.5 * (high - low)[X[test, 0] < -1].mean()
    promise = model.certify(X[fresh], y[fresh], site[fresh]).of_rows
    error = np.abs(y[test] - model.predict(X[test], site[test]))
    assert np.mean(error <= promise.bound) >= 0.9
    with pytest.raises(BidroError, match="counts"):
        model.intervals_.at(0.9, 0.1)


def test_evaluate_counts_the_rows_inside_beside_what_chance_shows(folder, capsys):
    fresh = folder / "fresh-rows.csv"
    rows = example_visits(6)
    pd.concat([rows, rows.head(5).assign(hospital="elsewhere")]).to_csv(fresh, index=False)
    capsys.readouterr()
    _run(f"evaluate {folder / 'model'} {fresh} --json")
    found = json.loads(capsys.readouterr().out)
    inside = _inside(load_model(folder / "model").predict_interval(rows), rows["stay"])
    shares = inside.groupby(rows["hospital"]).mean()
    assert {name: one["inside"] for name, one in found["clients"].items()} == pytest.approx(
        {**shares, "elsewhere": 1.0}
    )
    assert found["intervals"]["inside"] == pytest.approx((inside.sum() + 5) / (len(rows) + 5))
    assert found["intervals"]["worst_decile"] == pytest.approx(shares.min())
    # The lowest of seven binomial shares, the last of five rows.
    sizes = [*rows.groupby("hospital").size(), 5]
    rng = np.random.default_rng(1)
    lowest = [min(rng.binomial(n, 0.9) / n for n in sizes) for _ in range(1500)]
    assert found["intervals"]["by_chance"] == pytest.approx(np.mean(lowest), abs=0.02)
    _run(f"evaluate {folder / 'model'} {fresh}")
    out = capsys.readouterr().out
    assert f"Intervals at 90%: {found['intervals']['inside']:.1%} of the rows are inside" in out
    assert f"chance alone, with 90% everywhere, shows {found['intervals']['by_chance']:.1%}" in out


def test_sets_of_classes_are_counted_too(tmp_path, capsys):
    rows = example_visits(0)
    rows["long"] = np.where(rows["stay"] > 5, "yes", "no")
    rows.drop(columns="stay").to_csv(tmp_path / "t.csv", index=False)
    _run(f"fit {tmp_path / 't.csv'} --client hospital --target long --curves none --out {tmp_path / 'm'}")
    capsys.readouterr()
    _run(f"evaluate {tmp_path / 'm'} {tmp_path / 't.csv'} --json")
    found = json.loads(capsys.readouterr().out)
    sets = load_model(tmp_path / "m").predict_interval(rows)
    inside = np.where(rows["long"] == "yes", sets["may be yes"], sets["may be no"])
    assert found["intervals"]["inside"] == pytest.approx(inside.mean())
