"""The study of later years and new regions: its parts on small inputs."""

import numpy as np
import pytest

from bidro.experiments.splits import Grouped
from studies import shift


def test_nothing_later_is_in_the_training_rows_and_every_region_is_the_test_once():
    where = np.array([0, 1, 1, 2, 3, 4, 4])
    for train, test in shift.parts_of(where, place=False):
        assert where[train].max() < where[test].min()
        assert len(np.unique(where[test])) == 1
    tests = [test for _, test in shift.parts_of(where, place=True)]
    np.testing.assert_array_equal(np.sum(tests, axis=0), 1)


def test_every_method_is_judged_on_the_same_rows(monkeypatch):
    monkeypatch.setattr(shift, "METHODS", (*shift.OURS, "LightGBM"))
    rng = np.random.default_rng(0)
    clients = np.repeat(["a", "b", "c"], 60)
    X = rng.normal(size=(180, 2))
    table = Grouped(X, X @ [1.0, 2.0] + rng.normal(size=180), clients, ("x", "z"), 0)
    test = np.arange(180) % 3 == 0
    pytest.importorskip("lightgbm")
    found = shift.one_split(table, ~test, test, {"bidro": {"mean": 1.0}})
    assert found["methods"]["bidro"] == {"mean": 1.0}
    pooled = found["methods"][shift.POOLED]
    # By hand: the same least squares, its residuals as shares of the target's variance.
    A = np.column_stack([X, np.ones(180)])
    fitted = A[test] @ np.linalg.lstsq(A[~test], table.target[~test], rcond=None)[0]
    squares = (table.target[test] - fitted) ** 2 / table.target.var()
    assert pooled["mean"] == pytest.approx(squares.mean(), rel=1e-6)
    assert pooled["worst_client"] == pytest.approx(squares.reshape(3, -1).mean(axis=1).max(), rel=1e-6)


def test_changes_are_shares_of_pooled_training_with_the_error_over_splits():
    splits = [
        {"methods": {m: {"mean": base * (0.5 if m == "bidro" else 1.0)} for m in shift.METHODS}}
        for base in (1.0, 2.0)
    ]
    splits[1]["methods"]["bidro"]["mean"] = 1.4
    found = shift.compared(splits, "mean")
    assert found["AFL"] == (0.0, 0.0)
    assert found["bidro"] == pytest.approx((-0.4, 0.1))
    for one in splits:
        for measures in one["methods"].values():
            measures |= {"worst_client": measures["mean"], "worst_tenth": measures["mean"]}
    text = shift.page({"wages": splits})
    assert "-40.0 ± 10.0" in text
