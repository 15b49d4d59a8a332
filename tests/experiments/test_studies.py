"""The studies that the docs quote: their parts on small inputs."""

import math

import numpy as np
import pandas as pd
import pytest

from bidro.algorithms import BiDROFL, FedAvg
from bidro.errors import BidroError
from bidro.experiments import compare, promises, real
from bidro.tables import choose_kept_out, learn_schema
from bidro.workflow.fit import Progress


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
    table = real.Table("", "", "school", "score", drop=("pupil",), change=np.log)
    found = real.grouped(table, data)
    assert found.columns == ("age", "sex_M")
    assert found.features.shape == (59, 2)
    assert set(found.clients) == {"a", "b"}
    np.testing.assert_allclose(found.target, np.log(data["score"][1:60]))
    test = real.split(found, 1)
    assert [int(test[found.clients == name].sum()) for name in "ab"] == [9, 9]
    features, target = real.standardised(found, test)
    np.testing.assert_allclose(features[~test].mean(axis=0), 0.0, atol=1e-12)
    assert target[~test].std() == pytest.approx(1.0)
    problem = real.problem_of(features[~test], target[~test], found.clients[~test], False)
    losses = real.test_losses(
        problem, np.zeros(3), np.column_stack([features, target])[test], found.clients[test]
    )
    assert losses[0] == pytest.approx(np.mean(target[test & (found.clients == "a")] ** 2))
    with pytest.raises(BidroError, match="no table 'x'"):
        real.load("x")


def test_the_page_of_the_tables():
    values = {
        "FedAvg": [2.0, 2.0],
        "AFL": [1.0, 3.0],
        "calibrated": [1.0, 2.0],
        "by worst decile": [3.0, 1.0],
    }
    text = real.page({"exam": {"clients": 7, "worst_decile": values}})
    assert "| exam | 7 | 2 | 2.0000 | 2.0000 | 1.5000 | 2.0000 | -0.5000 ± 0.5000 |" in text
    assert "`calibrated` is -25.00% on average" in text


def test_held_out_bounds_hold_on_the_papers_data(monkeypatch):
    monkeypatch.setattr(promises, "HELD_OUT_ROWS", (50,))
    monkeypatch.setattr(promises, "FRESH_ROWS", 20_000)
    found = promises.held_out_study(30)
    assert [row["bound"] for row in found] == ["declared", "bernstein", "clipped"]
    # Four standard errors of a share of 30 repetitions.
    assert all(row["observed"] >= 0.9 - 4 * math.sqrt(0.09 / 30) for row in found)
    assert found[0]["mean_bound_over_true"] > found[2]["mean_bound_over_true"] > 1
    page = promises.page([], found)
    assert page.count("| 50 |") == 3


def test_compare_gives_every_method_the_same_rows(monkeypatch):
    """FedAvg's averaged steps come to least squares on the same split, worked out with NumPy."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": np.repeat(["a", "b"], 40), "x": rng.normal(size=80)})
    table["y"] = 3.0 * table["x"] + 10.0 + 0.5 * rng.normal(size=80)
    schema = learn_schema(table, "site", "y")
    few = {name: candidates[-1:] for name, candidates in compare.METHODS.items()}
    few["FedAvg"] = [compare.Step(FedAvg(eta_x=0.1))]
    monkeypatch.setattr(compare, "METHODS", few)
    found = compare.compare_methods(schema, table, 3000, 1, Progress())
    assert set(found["methods"]) == set(few)
    assert found["failed"] == {}
    test = choose_kept_out(table["site"].to_numpy(str), 0.3, compare.FIRST_SEED)
    design = np.column_stack([table["x"], np.ones(80)])
    fitted = np.linalg.lstsq(design[~test], table["y"][~test], rcond=None)[0]
    errors = (table["y"] - design @ fitted)[test] ** 2
    # The mean of 3,000 iterates still carries a little of the first ones.
    assert found["methods"]["FedAvg"]["mean"]["mean"] == pytest.approx(errors.mean(), rel=0.02)
    worst = errors.groupby(table["site"][test]).mean().max()
    assert found["methods"]["FedAvg"]["worst_client"]["mean"] == pytest.approx(worst, rel=0.02)
    text = compare.comparison_table(found)
    assert all(name in text for name in few)


def test_compare_says_which_method_could_not_be_trained(monkeypatch):
    table = pd.DataFrame({"site": np.repeat(["a", "b"], 20), "x": np.arange(40.0), "y": np.arange(40.0) ** 2})
    monkeypatch.setattr(compare, "METHODS", {"DRO-FL": [compare.Step(BiDROFL(), -1.0)]})
    found = compare.compare_methods(learn_schema(table, "site", "y"), table, 500, 1, Progress())
    assert found["methods"] == {}
    assert "none of its candidates" in found["failed"]["DRO-FL"]
    assert "absent" in compare.comparison_table(found)
