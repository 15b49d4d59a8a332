"""Table 1 from sums: against pandas, its noise, what a row may change, and what stands in its files."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import units_of
from bidro.fit.private_side import own_sums
from bidro.privacy.accounting import rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.table_one import CELLS, QUANTILES, STEPS, Described, TableOne, to_csv
from bidro.privacy.terms import Budget, SharedNoise
from bidro.report.table_one import table_one_html
from bidro.workflow.describe import described_here, together


def table(rows=2000, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, rows)
    age[rng.random(rows) < 0.1] = np.nan
    ward = rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2]).astype(object)
    ward[rng.random(rows) < 0.05] = None
    site = rng.choice(["east", "north", "south", "west"], rows)
    return pd.DataFrame({"site": site, "age": age, "ward": ward, "stay": rng.exponential(4.0, rows)})


def asked_of(whole):
    schema = learn_schema(whole, "site", "stay", None, None, "median")
    units = units_of(schema, whole)
    return schema, dict(units), TableOne.of(schema, units)


def lines_of(found):
    return {(one.column, one.level): one for one in found}


def test_without_noise_it_is_what_pandas_says():
    whole = table()
    schema, units, asked = asked_of(whole)
    told = [own_sums(asked, schema, part, None) for _, part in whole.groupby("site")]
    found = lines_of(together(asked, told))
    for name in ("age", "stay"):
        one, cell = found[name, ""], 8 * units[name][1] / CELLS
        inside = whole[name].clip(units[name][0] - 4 * units[name][1], units[name][0] + 4 * units[name][1])
        assert one.rows == whole[name].count()
        assert one.missing == pytest.approx(whole[name].isna().mean(), abs=1e-12)
        assert one.mean == pytest.approx(inside.mean(), abs=1e-3)
        assert one.deviation == pytest.approx(inside.std(ddof=0), rel=1e-3)
        np.testing.assert_allclose(one.quantiles, whole[name].quantile(QUANTILES), atol=cell)
        assert one.noise == 0
    for level, rows in whole["ward"].value_counts().items():
        assert found["ward", level].rows == rows
    assert found["ward", "a"].missing == pytest.approx(whole["ward"].isna().mean())
    assert found["ward", "(missing)"].rows == whole["ward"].isna().sum()


def test_levels_that_are_not_listed_are_counted_as_such():
    whole = table()
    schema, _, asked = asked_of(whole)
    whole.loc[:9, "ward"] = "z"
    found = lines_of(together(asked, [own_sums(asked, schema, whole, None)] * 3))
    assert found["ward", "(not listed)"].rows == 30


def test_no_row_changes_the_sums_by_more_than_is_charged_and_some_by_that():
    """By the squares of whole steps, of rows as odd as can be."""
    whole = table(50)
    schema, units, asked = asked_of(whole)
    whole.loc[0, ["age", "stay"]] = [1e50, -1e50]
    whole.loc[1, ["age", "stay"]] = [np.nan, 0.0]
    whole.loc[2, "age"] = units["age"][0] + 4 * units["age"][1]
    parts = asked.steps(schema, whole)
    changed = STEPS**2 + sum((part.astype(object) ** 2).sum(axis=1) for part in parts)
    assert max(changed) == asked.squared_steps == STEPS**2 * (1 + 3 + 3 + 1)
    assert all(part.min() >= -STEPS for part in parts)
    without = own_sums(asked, schema, whole.drop(index=0), None).values
    away = own_sums(asked, schema, whole, None).values.astype(object) - without
    assert (away**2).sum() == changed[0]


def test_noise_is_as_planned_and_shared_noise_less():
    whole, rho = table(800), rho_of(1.0, 1e-6)
    schema, units, asked = asked_of(whole)
    exact = own_sums(asked, schema, whole, None).sums
    scale = asked.scale(rho)
    off = np.array(
        [own_sums(asked, schema, whole, Budget(1.0), bits=seeded_bits(s)).sums - exact for s in range(40)]
    )
    assert float(scale.sigma[0]) == pytest.approx(math.sqrt(8 / (2 * float(rho))))
    assert off.std() == pytest.approx(scale.sigma[0], rel=0.05)
    each = [described_here(schema, units, whole, Budget(1.0), shared) for shared in (None, SharedNoise(1.0))]
    own, shared = (json.loads(files["table1.json"])["columns"][-1]["noise"] for files in each)
    # Of four clients two are relied on.
    assert own == pytest.approx(2 * float(scale.sigma[0]))
    assert own / shared == pytest.approx(math.sqrt(2), rel=1e-6)
    assert "keep their noise to themselves" in each[1]["table1.html"]


def test_quantiles_with_noise_never_fall():
    whole = table(300)
    schema, _, asked = asked_of(whole)
    for seed in range(20):
        told = own_sums(asked, schema, whole, Budget(0.5), bits=seeded_bits(seed))
        for one in asked.described(told):
            if one.quantiles:
                assert all(a <= b for a, b in zip(one.quantiles, one.quantiles[1:], strict=False))
                assert 0 <= one.missing <= 1
                assert one.deviation >= 0


def test_people_count_by_no_more_rows_than_the_budget_is_for():
    whole = table(600)
    whole["person"] = [f"p{i // 3}" for i in range(len(whole))]
    schema = learn_schema(whole, "site", "stay", None, None, "median", "person")
    asked = TableOne.of(schema, units_of(schema, whole))
    exact = own_sums(asked, schema, whole, None).sums[0]
    told = own_sums(asked, schema, whole, Budget(1e6, 1e-6, 2), bits=seeded_bits(1)).sums[0]
    assert exact == 600
    assert told == pytest.approx(400, abs=1)
    bare = learn_schema(whole.drop(columns="person"), "site", "stay", None, None, "median")
    with pytest.raises(BidroError, match="needs a column that says whose a row is"):
        own_sums(asked, bare, whole, Budget(1.0, 1e-6, 2))
    with pytest.raises(BidroError, match="has no rows"):
        own_sums(asked, schema, whole.head(0), None)


def test_names_from_others_data_are_neither_markup_nor_formulas():
    odd = Described("<script>alert(1)</script>", "=cmd()", 3.0, 1.0, 0.0, None, None, None, 0.0)
    page = table_one_html([odd], ["<b>said</b>"])
    assert "<script" not in page
    assert "&lt;b&gt;said" in page
    assert "default-src 'none'" in page
    assert ",'=cmd()," in to_csv([odd])
