"""What becomes of empty cells: by default of filling, a level of their own or a column that tells which."""

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Column, Schema, learn_schema, usable_rows
from bidro.deploy.agreement.agreement import Agreement, draft, drafted, written
from bidro.deploy.site.answers import _inputs
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.model.onnx.exported import onnx_of
from bidro.model.onnx.run import Port
from tests.cli.test_command import run
from tests.model.onnx.test_exported import outputs

ROWS = 80


def frame(age_gaps=0, race_gaps=0):
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"site": np.repeat(["n", "s"], ROWS // 2), "age": rng.normal(50, 9, ROWS).round(1)})
    table["race"] = ["black"] * 40 + ["white"] * 30 + ["asian"] * 10
    table["y"] = table["age"] / 10 + rng.normal(size=ROWS)
    places = rng.permutation(ROWS)
    table.loc[places[:age_gaps], "age"] = np.nan
    table.loc[places[20 : 20 + race_gaps], "race"] = None
    return table


def test_empty_categories_are_a_level_and_empty_numbers_are_told_beside_their_median(caplog):
    table = frame(age_gaps=6, race_gaps=5)
    schema = learn_schema(table, "site", "y", missing="median")
    middle = float(table["age"].median())
    age, told, race = schema.columns
    assert age == Column("age", None, middle)
    assert told == Column("age is missing", ("no", "yes"), of="age")
    assert race == Column("race", ("asian", "black", "missing", "white"), "missing")
    assert "6 empty cells of 'age' count as '" in caplog.text
    assert "'age is missing' tells which" in caplog.text
    assert "5 empty cells of 'race' count as 'missing'" in caplog.text
    found = pd.DataFrame(schema.matrix(table), columns=schema.features)
    assert found["age is missing=yes"].tolist() == table["age"].isna().astype(float).tolist()
    assert found["race=missing"].tolist() == table["race"].isna().astype(float).tolist()
    assert (found["age"][table["age"].isna()] == middle).all()
    assert (found["age"][table["age"].notna()] == table["age"].dropna()).all()
    assert Schema.from_dict(schema.to_dict()) == schema


def test_a_column_without_gaps_in_training_takes_them_afterwards():
    schema = learn_schema(frame(), "site", "y", missing="median")
    assert schema.features == ("age", "race=black", "race=white")
    gaps = frame().iloc[:2].assign(age=np.nan, race=None)
    # The median, and the average of the three levels.
    assert schema.matrix(gaps)[0].tolist() == [frame()["age"].median(), 1 / 3, 1 / 3]
    assert schema.filled(gaps) == {"age": 2, "race": 2}
    assert schema.unseen_levels(gaps) == {}
    assert schema.columns[1].filled_by == "the average level"
    with pytest.raises(
        BidroError, match="Row 1 below the header: 'race' is empty; there are asian, black, wh"
    ):
        schema.require_listed_levels(gaps)


def test_few_gaps_make_no_level_and_no_column():
    table = frame(age_gaps=4, race_gaps=4)
    schema = learn_schema(table, "site", "y", missing="median")
    assert schema.columns[1] == Column("race", ("asian", "black", "white"), "black")
    assert schema.features == ("age", "race=black", "race=white")


def test_the_median_alone_and_the_commonest_level_on_request():
    table = frame(age_gaps=9, race_gaps=9)
    schema = learn_schema(table, "site", "y", missing="median-alone")
    assert schema.features == ("age", "race=black", "race=white")
    assert schema.columns[1].filler == "black"


def test_sites_code_empty_cells_by_the_agreed_schema(tmp_path):
    table = frame(age_gaps=8, race_gaps=8)
    schema = learn_schema(table, "site", "y", missing="median")
    agreed = drafted(schema, table)
    for text in (written(agreed), draft(schema, table)):
        (tmp_path / "schema.toml").write_text(text)
        assert Agreement.read(tmp_path / "schema.toml").schema == schema
    assert agreed.options.features == ("age", "race")
    # 0 and 1 with a spread of one half, as any level.
    place = schema.features.index("age is missing=yes")
    assert (agreed.standard.mean[place], agreed.standard.spread[place]) == (0.0, 0.5)
    # A site that has no empty cell has the same columns.
    table[table["site"] == "n"].dropna().to_csv(tmp_path / "n.csv", index=False)
    (tmp_path / "n.toml").write_text(
        'client = "n"\ndata = "n.csv"\nschema = "schema.toml"\nstate = "state"\n'
    )
    rows = SiteRows.load(Site.read(tmp_path / "n.toml"))
    assert rows.features.shape[1] == len(schema.features)
    assert not rows.features[:, place].any()


def test_models_from_elsewhere_see_what_is_empty():
    table = frame(age_gaps=6, race_gaps=6)
    schema = learn_schema(table, "site", "y", missing="median")

    class Model:
        inputs = (Port("age", "float64", False, 1), Port("race", "text", False, 1))

    found = _inputs(Model(), schema, schema.matrix(table), "n")
    np.testing.assert_array_equal(found["age"][:, 0], table["age"])
    assert found["race"].tolist() == table["race"].fillna("missing").tolist()


def test_a_column_that_tells_of_no_number_is_refused():
    told = Column("age is missing", ("no", "yes"), of="age")
    with pytest.raises(BidroError, match="tells which cells of 'age' are empty, and that is no number"):
        Schema("site", "y", None, (told, Column("age")))
    with pytest.raises(BidroError, match="has the levels no and yes and no filler"):
        Column("age is missing", ("a", "b"), of="age")
    table = frame(age_gaps=9).assign(**{"age is missing": [1.5, 2.0] * 40})
    with pytest.raises(BidroError, match="Two features would be named 'age is missing'"):
        learn_schema(table, "site", "y", missing="median")


def test_the_command_fills_predicts_and_exports_alike(tmp_path, capsys):
    from bidro.model.model_file import load_model

    table = frame(age_gaps=12, race_gaps=12)
    # Who is not asked stays long: only what is missing tells it.
    table["y"] += 5.0 * table["age"].isna() + 9.0 * table["race"].isna()
    table.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = run(
        capsys, "fit", tmp_path / "t.csv", "--client", "site", "--target", "y", "--missing", "median",
        "--curves", "none", "--personal", "none", "--weights", "fixed", "--out", tmp_path / "model",
    )  # fmt: skip
    assert code == 0, err
    model = load_model(tmp_path / "model")
    found = dict(zip(model.schema.features, model.coefficients[0][0], strict=True))
    assert found["age is missing=yes"] == pytest.approx(5.0, abs=1.5)
    assert found["race=missing"] - found["race=black"] == pytest.approx(9.0, abs=1.5)
    code, _, err = run(capsys, "predict", tmp_path / "model", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert "12 missing cells of 'race' filled by 'missing', as in training" in err
    given, inputs = outputs(onnx_of(model), table.assign(race=table["race"].fillna("")))
    assert inputs == {"age", "race"}
    np.testing.assert_allclose(given["prediction"][:, 0], pd.read_csv(tmp_path / "p.csv")["prediction"])


@pytest.mark.parametrize("missing", ["refuse", "median"])
@pytest.mark.parametrize("which", ["site", "person"])
def test_rows_of_nobody_are_said_before_anything_else(missing, which, caplog):
    """No filling tells whose a row is, and gaps in features are told by client."""
    table = pd.DataFrame({"site": ["a", "b"] * 4, "person": list("pqrstuvw"), "y": np.arange(8.0)})
    table["x"] = [None, 2.0, 3.0, 4.0, 5.0, 7.0, 7.0, 8.0]
    table.loc[2, which] = None
    with pytest.raises(BidroError, match=rf"^Row 3 .*has no '{which}'"):
        learn_schema(table, "site", "y", missing=missing, person="person")
    assert not caplog.text


@pytest.mark.parametrize(("columns", "words"), [(6, " and 1 more column. "), (7, " and 2 more columns. ")])
def test_columns_with_gaps_that_are_not_listed_are_counted(columns, words):
    table = pd.DataFrame({f"x{k}": [None, 1.0, 2.0, 3.0] for k in range(columns)})
    with pytest.raises(BidroError, match=words):
        learn_schema(table.assign(site="a", y=[1.0, 2.0, 3.0, 4.0]), "site", "y")


def test_rows_without_a_target_and_clients_too_small_are_left_out_and_said(caplog):
    table = frame()
    table.loc[[0, 50], "y"] = np.nan
    table.loc[[7, 8], "site"] = "small"
    table.loc[9, "site"] = "single"
    used = usable_rows(table, "site", "y", None, least=3)
    expected = table.drop(index=[0, 7, 8, 9, 50])
    pd.testing.assert_frame_equal(used, expected.reset_index(drop=True))
    assert "2 rows have no 'y' and are left out" in caplog.text
    assert "2 clients (single, small) have fewer than 3 rows" in caplog.text
    # People count, not rows: 'n' has two, of whom one has most of the rows.
    table["who"] = ["a"] * 30 + ["b"] * 5 + [f"p{i}" for i in range(ROWS - 35)]
    table = table.drop(index=[7, 8, 9])
    table.loc[table.index < 40, "who"] = np.where(table.index[table.index < 40] < 30, "a", "b")
    assert set(usable_rows(table, "site", "y", "who", least=3)["site"]) == {"s"}
    # With nobody left there is nothing to leave out: what is wrong is said where it is.
    assert usable_rows(frame().iloc[:2], "site", "y", None, least=3).equals(frame().iloc[:2])


def test_a_fit_of_a_table_with_gaps_ends_and_says_what_it_did(tmp_path, capsys, caplog):
    table = frame(age_gaps=6, race_gaps=5)
    table.loc[3, "y"] = np.nan
    table.loc[len(table)] = ["alone", 40.0, "white", 4.0]
    table.to_csv(tmp_path / "gaps.csv", index=False)
    given = ("fit", tmp_path / "gaps.csv", "--client", "site", "--target", "y", "--weights", "fixed")
    code, _, err = run(capsys, *given, "--curves", "none", "--personal", "none", "--out", tmp_path / "m")
    assert code == 0, err
    for said in ("1 row has no 'y'", "Client 'alone' has fewer than 3 rows", "6 empty cells of 'age'"):
        assert said in caplog.text
    fresh = frame(age_gaps=1, race_gaps=1).drop(columns="y")
    fresh.loc[len(fresh)] = ["alone", 40.0, "white"]
    fresh.to_csv(tmp_path / "fresh.csv", index=False)
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "fresh.csv", "--out", tmp_path / "p.csv")
    assert code == 0, err
    assert pd.read_csv(tmp_path / "p.csv")["prediction"].notna().all()
    code, _, err = run(capsys, *given, "--missing", "refuse", "--out", tmp_path / "other")
    assert code == 1
    assert "There are missing values" in err
