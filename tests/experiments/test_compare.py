"""The comparison of methods: splits, tuning, what is measured, and the page."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.core.splits import choose_holdout
from bidro.data.tables import learn_schema
from bidro.experiments import compare, methods
from bidro.experiments.splits import SHIFTS, Grouped, Split, groups_of_clients
from bidro.federated.baselines import FedAvg
from bidro.selection.calibrate import worst_fifth
from studies import comparison_page, real_tables
from studies.comparison_figure import ranks_figure


def made_up(classes=0, rows=60, clients=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(3.0, 2.0, (rows * clients, 2))
    names = np.repeat([f"c{k}" for k in range(clients)], rows)
    slope = 1.0 + 0.3 * np.repeat(np.arange(clients), rows)
    target = 5.0 + 4.0 * slope * features[:, 0] + 2.0 * rng.normal(size=len(names))
    if classes:
        target = np.where(target > np.median(target), 1.0, -1.0)
    return Grouped(features, target, names, ("u", "v"), classes)


def test_a_table_becomes_numbers():
    rng = np.random.default_rng(0)
    data = pd.DataFrame(
        {
            "rownames": range(65),
            "school": ["a"] * 30 + ["b"] * 30 + ["small"] * 5,
            "sex": rng.choice(["F", "M"], 65),
            "age": rng.normal(size=65),
            "same": 1.0,
            "pupil": range(65),
            "score": np.exp(rng.normal(size=65)),
        }
    )
    data.loc[0, "age"] = math.nan
    table = real_tables.Table("", "", "school", "score", drop=("pupil",), change=np.log)
    found = real_tables.grouped(table, data)
    assert found.columns == ("age", "sex_M")
    assert found.features.shape == (59, 2)
    assert set(found.clients) == {"a", "b"}
    np.testing.assert_allclose(found.target, np.log(data["score"][1:60]))
    with pytest.raises(BidroError, match="no table 'x'"):
        real_tables.load("x")


def test_a_split_is_in_units_of_its_training_rows():
    table = made_up()
    split = Split.of(table, 1)
    rows = np.asarray(split.problem.federation.samples)
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows.std(axis=0), 1.0, rtol=1e-12)
    assert len(rows) + len(split.test) == 180
    assert len(split.test) == pytest.approx(54, abs=4 * np.sqrt(180 * 0.3 * 0.7))
    # Folds stand one after the other at every client, and over the pooled rows.
    for own in np.split(split.of_row, np.cumsum(split.problem.federation.sizes)[:-1]):
        assert np.all(np.diff(own) >= 0)
        assert np.bincount(own).min() >= len(own) / (2 * split.folds)
    assert np.all(np.diff(split.of_pooled_row) >= 0)
    both = (rows, np.asarray(split.pooled.federation.samples))
    np.testing.assert_allclose(*(np.sort(v, axis=0) for v in both), rtol=1e-12)
    other = Split.of(table, 2)
    assert not np.array_equal(other.test, split.test)


def test_what_is_measured_against_numpy():
    """Losses in the target's own unit; the shift of a linear model's loss worked out by hand."""
    table = made_up()
    split = Split.of(table, 3)
    w, b = np.array([0.7, -0.2]), 0.1
    found = split.evaluate(np.append(w, b))
    holdout = choose_holdout(table.clients, table.features, table.target, 0.3, 3)
    spread = table.target[~holdout].std()
    residuals = spread * (split.test[:, :2] @ w + b - split.test[:, 2])
    by_client = np.array([np.mean(residuals[split.test_client == k] ** 2) for k in range(3)])
    assert found["mean"] == pytest.approx(np.mean(residuals**2))
    assert found["worst_client"] == found["worst_decile"] == pytest.approx(by_client.max())
    assert by_client.mean() * 0.8 < found["mixtures"] < found["worst_mixture"] < by_client.max()
    # A common shift v adds (w v)^2 + 2 w v mean residual; over random directions the first is |w|^2 / 2.
    for length in SHIFTS:
        added = found[f"shift_{length:g}"] - found["worst_decile"]
        assert -0.1 < added / (spread * length) ** 2 < 4 * w @ w
    assert found["shift_0.25"] < found["shift_0.5"] < found["shift_1"]


def test_held_out_losses_are_those_of_the_model_of_the_other_folds():
    split = Split.of(made_up(), 4)
    rng = np.random.default_rng(0)
    models = rng.normal(size=(2, split.folds + 1, 3))
    rows = np.asarray(split.problem.federation.samples)
    expected = np.zeros((3, 2))
    sizes = split.problem.federation.sizes
    for row, fold, client in zip(rows, split.of_row, np.repeat(np.arange(3), sizes), strict=True):
        for c in range(2):
            x = models[c, fold]
            expected[client, c] += (row[:2] @ x[:2] + x[2] - row[2]) ** 2 / sizes[client]
    np.testing.assert_allclose(split.held_out_losses(models), expected, rtol=1e-10)


def test_fedavg_comes_to_least_squares_on_the_same_split(monkeypatch):
    """All candidates have the same step, so that tuning cannot matter; worked out with NumPy."""
    monkeypatch.setitem(
        methods.METHODS,
        "FedAvg",
        methods.Steps(lambda problem: [methods.Candidate(FedAvg(0.2), None, "0.2")] * methods.CANDIDATES),
    )
    table = made_up()
    found = compare.compare_methods(table, 2, 200, ["FedAvg"])
    values = found["methods"]["FedAvg"]["mean"]["values"]
    for k, value in enumerate(values):
        test = choose_holdout(table.clients, table.features, table.target, 0.3, compare.FIRST_SEED + k)
        design = np.column_stack([table.features, np.ones(len(test))])
        fitted = np.linalg.lstsq(design[~test], table.target[~test], rcond=None)[0]
        assert value == pytest.approx(np.mean((table.target - design @ fitted)[test] ** 2), rel=1e-6)
    assert found["methods"]["FedAvg"]["mean"]["se"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(2))


FEW = ("FedAvg", "Group DRO", "FDR-SVM", "exact MW-DRO")


@pytest.mark.parametrize(
    ("classes", "names"),
    [(0, FEW), pytest.param(0, None, marks=pytest.mark.slow), pytest.param(2, None, marks=pytest.mark.slow)],
)
def test_every_method_trains_and_none_is_far_off(classes, names):
    """Few passes on easy data: what each comes to is better than the best constant. Those whose rounds cost
    two passes take half as many."""
    table = made_up(classes)
    split = Split.of(table, 0)
    found = compare.compare_methods(table, 1, 30, names)
    constant = split.evaluate(np.zeros(3))["mean"]
    only_for_classes = {"FDR-SVM": "it is for two classes"}
    assert found["failed"] == ({} if classes else only_for_classes)
    for name, one in found["methods"].items():
        assert one["mean"]["mean"] < 0.9 * constant, name
        assert len(one["chosen"]) == 1
        assert ("mistakes" in one) == (classes == 2)
    text = compare.comparison_table(found)
    assert all(name in text for name in names or methods.METHODS)


def test_every_method_has_as_many_candidates():
    split = Split.of(made_up(2), 0)
    for name, method in methods.METHODS.items():
        if isinstance(method, methods.Steps):
            problem = split.pooled if method.pooled else split.problem
            assert len(method.candidates(problem)) == methods.CANDIDATES, name
    with pytest.raises(BidroError, match="28 candidates"):
        methods.Steps(lambda problem: []).train(split, 10, lambda share: None)


def test_the_best_candidate_is_the_one_with_the_lowest_worst_fifth():
    split = Split.of(made_up(), 0)
    rng = np.random.default_rng(1)
    models = rng.normal(size=(5, split.folds + 1, 3))
    models[3, 2, 0] = np.nan
    best = methods._best(split, models, list("abcde"))
    scores = worst_fifth(split.held_out_losses(models))
    scores[3] = np.inf
    assert best.words == "abcde"[int(np.argmin(scores))]
    with pytest.raises(BidroError, match="none of its candidates"):
        methods._best(split, np.full((2, split.folds + 1, 3), np.nan), ["a", "b"])


def test_what_is_asked_wrongly_is_said():
    with pytest.raises(BidroError, match="no method 'SGD'"):
        compare.compare_methods(made_up(), 1, 10, ["SGD"])
    with pytest.raises(BidroError, match="at least one split"):
        compare.compare_methods(made_up(), 0, 10)


def test_a_users_table_as_numbers():
    table = pd.DataFrame({"site": ["a", "b"] * 10, "x": np.arange(20.0), "y": ["no", "yes", "yes", "no"] * 5})
    found = compare.grouped_from(learn_schema(table, "site", "y"), table)
    assert found.classes == 2
    np.testing.assert_array_equal(found.target[:4], [-1.0, 1.0, 1.0, -1.0])


def _study(worst_deciles):
    def summary(values):
        return {"mean": float(np.mean(values)), "se": 0.5, "values": values}

    keys = ("mean", "worst_client", "mixtures", "worst_mixture", "shift_0.25", "shift_0.5", "shift_1")
    return {
        "clients": 7, "rows": 100, "features": 2, "splits": 2, "passes": 10, "candidates": 28, "folds": 5,
        "failed": {},
        "methods": {
            name: {"worst_decile": summary(values), **{key: summary([1.0, 1.0]) for key in keys}}
            for name, values in worst_deciles.items()
        },
    }  # fmt: skip


def test_the_page_counts_and_ranks():
    """By hand: on `one` ours is 0.5 ± 0.5 above AFL, on `two` it is best."""
    studies = {
        "one": _study({"FedAvg": [3.0, 3.0], "AFL": [1.0, 2.0], compare.OURS: [2.0, 2.0]}),
        "two": _study({"FedAvg": [1.0, 2.0], "AFL": [2.0, 2.0], compare.OURS: [0.5, 1.0]}),
    }
    assert comparison_page.ranks(studies) == {
        compare.OURS: {"one": 2, "two": 1},
        "AFL": {"one": 1, "two": 3},
        "FedAvg": {"one": 3, "two": 2},
    }
    text = comparison_page.page(studies)
    assert "| AFL | 1.5 ± 0.5 | +0.5000 ± 0.5000 | no | yes | yes |" in text
    assert "| FedAvg | 1.5 ± 0.5 | -0.7500 ± 0.2500 | yes | yes | yes |" in text
    assert "Of 2 tables ours is best on 1, within one standard error of the difference on 2" in text
    assert "DRFA is absent: it was not run." in text
    figure = ranks_figure(comparison_page.ranks(studies), compare.OURS)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [compare.OURS, "AFL", "FedAvg"]


def differing(rows=60, clients=6):
    """Clients that differ in their offsets, far more than rows vary."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(clients), rows)
    X = rng.normal(size=(len(owner), 2))
    y = X @ [1.0, -1.0] + 3.0 * rng.normal(size=clients)[owner] + rng.normal(size=len(owner))
    return Grouped(X, y, np.char.add("c", owner.astype(str)), ("a", "b"), 0)


def test_every_method_is_also_judged_with_personal_models():
    found = compare.compare_methods(differing(), 2, 20, ["FedAvg", "exact MW-DRO"])
    for one in found["methods"].values():
        assert set(one["personal"]) == set(one) - {"personal", "chosen", "seconds"}
        assert one["personal"]["mean"]["mean"] < 0.5 * one["mean"]["mean"]
    text = compare.comparison_table(found)
    assert [line.split()[0] for line in text.splitlines()[2:]].count("with") == 2
    study = comparison_page.page({"made-up": {**found, "failed": {}}})
    assert "| FedAvg, with own |" in study


def test_models_in_use_are_the_clients_personal_or_the_shared_one():
    split = Split.of(differing(), 0)
    x = np.array([0.7, -0.7, 0.0])
    own = split.personal_around(np.tile(x, (split.folds + 1, 1)))
    assert own.adopts.all()
    some = replace(own, share=np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    models = split.models_used(x, some)
    assert np.array_equal(models[2:], np.tile(x, (4, 1)))
    # The model that a client's rows ask for, pulled back to what all have in common, by its normal equations.
    rows = np.asarray(split.problem.federation.by_client()["c1"])
    psi = np.column_stack([rows[:, :2], np.ones(len(rows))])
    pull = np.diag(1 / np.maximum(2 * own.freedom, 1e-12))
    step = np.linalg.solve(psi.T @ psi + pull, psi.T @ (rows[:, 2] - psi @ own.common))
    np.testing.assert_allclose(models[1], own.common + step, rtol=1e-6, atol=1e-9)
    # One model for all, written out for every client, is judged as that one model.
    both = split.evaluate(x), split.evaluate(np.tile(x, (6, 1)))
    assert both[0] == pytest.approx(both[1])
    by_hand = split.unit * np.array(
        [
            (row[:2] @ models[k][:2] + models[k][2] - row[2]) ** 2
            for row, k in zip(split.test, split.test_client, strict=True)
        ]
    )
    assert split.evaluate(models)["mean"] == pytest.approx(by_hand.mean())


def test_clients_left_out_are_judged_by_models_that_never_saw_them(monkeypatch):
    monkeypatch.setitem(
        methods.METHODS,
        "FedAvg",
        methods.Steps(lambda problem: [methods.Candidate(FedAvg(0.2), None, "0.2")] * methods.CANDIDATES),
    )
    table = differing()
    found = compare.compare_methods(table, 1, 200, ["FedAvg"], leave_clients_out=True)
    groups = groups_of_clients(table.clients, compare.FIRST_SEED)
    assert sorted(np.bincount(groups) // 60) == [1, 1, 1, 1, 2]
    design = np.column_stack([table.features, np.ones(len(groups))])
    losses = np.empty(len(groups))
    for group in range(5):
        test = groups == group
        fitted = np.linalg.lstsq(design[~test], table.target[~test], rcond=None)[0]
        losses[test] = (table.target - design @ fitted)[test] ** 2
    one = found["methods"]["FedAvg"]
    assert one["mean"]["mean"] == pytest.approx(losses.mean(), rel=1e-6)
    assert one["worst_client"]["mean"] == pytest.approx(losses.reshape(6, 60).mean(axis=1).max(), rel=1e-6)
    assert "personal" not in one
    text = compare.comparison_table(found)
    assert "clients that were not in training" in text
    assert "shift" not in text
    with pytest.raises(BidroError, match="at least 3"):
        compare.compare_methods(differing(clients=2), 1, 2, ["FedAvg"], leave_clients_out=True)
