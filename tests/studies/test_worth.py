"""The study of what the default is worth, on made-up tables."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bidro.core.splits import choose_holdout
from studies import real_data, real_tables, worth, worth_page
from tests.experiments.test_compare import differing


@pytest.fixture
def tables(monkeypatch):
    made = {"exam": differing(), "radon": replace(differing(40, 4), people=None)}
    monkeypatch.setattr(worth, "load", made.__getitem__)
    return made


def test_measures_against_numpy(tables):
    table = tables["exam"]
    found = worth.one_split(table, 3)
    test = choose_holdout(table.clients, table.features, table.target, 0.3, 3)
    design = np.column_stack([table.features, np.ones(len(test))])
    fitted = np.linalg.lstsq(design[~test], table.target[~test], rcond=None)[0]
    losses = (table.target - design @ fitted)[test] ** 2 / table.target.var()
    by_client = [losses[table.clients[test] == name].mean() for name in np.unique(table.clients)]
    pooled = found["shared"]["pooled"]
    assert pooled["mean"] == pytest.approx(losses.mean(), rel=1e-5)
    assert pooled["worst_decile"] == pytest.approx(max(by_client), rel=1e-5)
    assert (pooled["losing"], pooled["varies"]) == (0, 1)
    # The clients differ by their offsets, which new ones have no correction for.
    assert found["personal"]["default"]["mean"] < 0.4 * pooled["mean"]
    assert found["new"]["pooled"]["mean"] > pooled["mean"]
    assert found["adopts"]["default"] > 0.5


def test_losing_is_by_more_than_a_hundredth_and_deviation_is_of_predictions():
    owner = np.array([0, 0, 1, 1])
    pooled = worth.Judged(np.array([1.0, 1.0, 2.0, 2.0]), np.array([0.0, 2.0, 0.0, 2.0]), owner)
    other = worth.Judged(np.array([1.0, 1.01, 2.1, 2.0]), np.array([0.0, 1.0, 0.0, 1.0]), owner)
    found = other.compared(pooled)
    assert found["losing"] == 0.5
    assert found["varies"] == 0.5
    assert found["worst_decile"] == pytest.approx(2.05)


def test_what_is_there_is_not_run_again_and_the_page_says_who_fails(tables, tmp_path, monkeypatch):
    said = []
    worth.run(tmp_path, 2, ["exam"], said.append)
    assert len(said) == 2
    real_data.main(["--out", str(tmp_path), "--study", "worth", "--splits", "2", "--tables", "exam,radon"])
    found = json.loads((tmp_path / "worth.json").read_text())
    assert [one["seed"] for one in found["exam"]["splits"]] == [worth.FIRST_SEED, worth.FIRST_SEED + 1]
    assert list(found) == ["exam", "radon"]
    for one in found["radon"]["splits"]:
        one["shared"]["default"]["mean"] = 1.03 * one["shared"]["pooled"]["mean"]
        one["shared"]["default"]["varies"] = 0.1
    page = worth_page.page(found)
    assert "in the mean | no: radon |" in page
    assert "nearly constant (deviation below 50% in any split) | no: radon | lowest 0.10" in page
    change = worth_page.change(found["radon"], "shared", "default", "mean")
    assert change.mean == pytest.approx(0.03)
    assert change.worse


def test_a_change_is_paired_by_split():
    def split(before, after):
        return {"shared": {"pooled": {"mean": before}, "default": {"mean": after}}}

    table = {"splits": [split(1.0, 1.1), split(2.0, 2.0), split(4.0, 4.4)]}
    change = worth_page.change(table, "shared", "default", "mean")
    assert change.mean == pytest.approx(0.2 / 3)
    assert change.se == pytest.approx(np.std([0.1, 0.0, 0.1], ddof=1) / np.sqrt(3))
    assert (change.worse, change.better) == (change.mean > 2 * change.se, False)


def test_people_stay_with_rows_and_rare_columns_are_left_out():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    data = pd.DataFrame(
        {
            "site": np.repeat(["a", "b", "few"], 1000),
            "person": np.append(np.arange(2000) // 4, np.repeat(np.arange(5), 200)),
            "x": rng.normal(size=3000),
            "rare": np.arange(3000) < 3,
            "y": rng.normal(size=3000),
        }
    )
    found = real_tables.grouped(real_tables.Table("", "", "site", "y", person="person"), data)
    assert set(found.clients) == {"a", "b"}
    assert found.columns == ("x",)
    assert len(np.unique(found.people)) == 500


def test_what_weights_gain_is_beside_what_they_pay_for_known_and_new_clients():
    def split(mean, worst):
        own = {"pooled": {"mean": 1.0, "worst_decile": 2.0}, "default": {"mean": mean, "worst_decile": worst}}
        return {"shared": own, "personal": own, "new": own}

    found = {"a": {"splits": [split(1.02, 1.8), split(1.02, 1.8)]}, "b": {"splits": [split(1.0, 2.0)] * 2}}
    lines = worth_page._weights(found)
    assert lines[-1] == "| new clients | +1.00 | 0, 1 | -5.00 | 1, 0 |"
    assert lines[-2].startswith("| known clients, with their personal models | +1.00 |")
