"""Columns whose kind is declared: categories whatever their cells look like, dates as numbers, columns left
out; the same when the model is used."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Column, Schema, learn_schema, read_one
from bidro.data.tables.cells import days
from bidro.deploy.agreement.agreement import Agreement, draft, written
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.model.model_file import load_model
from bidro.workflow.options import TableColumns
from tests.cli.test_command import run

ROWS = 60
DAY = (datetime.date(2024, 3, 5) - datetime.date(1970, 1, 1)).days


def frame():
    rng = np.random.default_rng(8)
    table = pd.DataFrame({"site": np.repeat(["n", "s"], ROWS // 2)})
    table["grade"] = rng.permutation(np.repeat(["K", "01", "2", "3"], ROWS // 4))
    table["when"] = pd.date_range("2023-12-20", periods=ROWS).strftime("%d/%m/%Y")
    table["note"] = [f"patient {k}" for k in range(ROWS)]
    table["y"] = rng.normal(size=ROWS) + 3.0 * (table["grade"] == "01")
    return table


def learned(table, **options):
    given = {"categories": ("grade",), "dates": ("when",), "drop": ("note",)} | options
    return learn_schema(table, "site", "y", **given)


def test_a_refused_column_names_the_option_that_takes_it():
    for column, words in (
        ("grade", "say --categories 'grade' in training; --drop 'grade' leaves it out"),
        ("when", "say --dates 'when' in training for days since 1970-01-01.* --drop 'when'"),
        ("note", "leave it out with --drop 'note'"),
    ):
        with pytest.raises(BidroError, match=words):
            learn_schema(frame()[["site", "y", column]], "site", "y")


def test_declared_columns_are_learned_and_said(caplog):
    schema = learned(frame())
    grade, when = schema.columns
    assert grade == Column("grade", ("01", "2", "3", "K"))
    assert when == Column("when", dates="day first")
    assert "'when' counts as days since 1970-01-01, read with the day first" in caplog.text
    first = (datetime.date(2023, 12, 20) - datetime.date(1970, 1, 1)).days
    assert schema.matrix(frame())[:, -1].tolist() == [first + k for k in range(ROWS)]
    assert Schema.from_dict(schema.to_dict()) == schema
    numbers = learned(frame().assign(grade=np.arange(ROWS) % 3))
    assert numbers.columns[0].levels == ("0", "1", "2")


def test_the_agreed_schema_keeps_what_was_declared(tmp_path):
    schema = learned(frame())
    (tmp_path / "schema.toml").write_text(draft(schema, frame()))
    agreed = Agreement.read(tmp_path / "schema.toml")
    assert agreed.schema == schema
    (tmp_path / "schema.toml").write_text(written(agreed))
    assert Agreement.read(tmp_path / "schema.toml") == agreed


def test_a_level_is_the_same_however_its_file_was_read(tmp_path):
    schema = learned(frame())
    table = frame()[frame()["grade"] != "K"]
    table.to_csv(tmp_path / "t.csv", index=False)
    read = read_one(tmp_path / "t.csv")
    assert read["grade"].dtype == np.int64  # 01 is 1 where no word stands in the column
    np.testing.assert_array_equal(schema.matrix(read), schema.matrix(table))
    assert schema.unseen_levels(read) == {}


@pytest.mark.parametrize(
    ("cell", "order", "expected"),
    [
        ("2024-03-05", "year first", DAY),
        ("2024/3/5", "year first", DAY),
        ("2024-03", "year first", DAY - 4),
        ("20240305", "year first", DAY),
        (20240305, "year first", DAY),
        (20240305.0, "year first", DAY),
        ("2024-03-05T06:00:00", "year first", DAY + 0.25),
        ("2024-03-05 06:00", "year first", DAY + 0.25),
        ("2024-03-05T06:00:00+06:00", "year first", DAY),
        ("2024-03-05T06:00:00Z", "year first", DAY + 0.25),
        ("5.3.2024", "day first", DAY),
        ("05/03/2024 12:00", "day first", DAY + 0.5),
        ("3/5/2024", "month first", DAY),
        ("5 Mar 2024", "year first", DAY),
        ("March 5, 2024", "year first", DAY),
        (datetime.date(2024, 3, 5), "year first", DAY),
        (pd.Timestamp("2024-03-05 18:00"), "year first", DAY + 0.75),
        (np.datetime64("2024-03-05"), "year first", DAY),
        (pd.Period("2024-03", "M"), "year first", DAY - 4),
    ],
)
def test_dates_are_days_since_1970(cell, order, expected):
    column = pd.Series([cell, None], dtype=object, name="when")
    found = days(column, order)
    assert found[0] == expected
    assert np.isnan(found[1])


@pytest.mark.parametrize(
    "cell", ["now", "today", "13/13/2024", "5/3/24", "2024", 2024, 43831, "12:30", "2024-02-30", "x", True]
)
def test_what_is_no_date_is_refused_with_its_row(cell):
    column = pd.Series(["6/12/2024", cell], dtype=object, name="when")
    with pytest.raises(BidroError, match=r"Row 2 below the header: 'when' is '.*', which is no date"):
        days(column, "day first")


def test_a_day_in_another_order_is_not_said_to_be_no_date():
    """And an empty cell is no way out unless training fills it."""
    words = "'7/6/1989', which is no date with the year first, as in the rest of the column or in training; "
    with pytest.raises(BidroError, match=words + ".* leave the cell empty and say --missing median"):
        days(pd.Series(["1989-06-07", "7/6/1989"], name="when"), "year first")
    with pytest.raises(BidroError, match="'soon', which is no date; write"):
        days(pd.Series(["1989-06-07", "soon"], name="when"), "year first")


def test_a_table_that_leaves_day_and_month_open_is_refused():
    open_ = frame().assign(when=[f"{1 + k % 12}/{1 + k % 7}/2024" for k in range(ROWS)])
    with pytest.raises(BidroError, match="'1/1/2024', and nothing in the column says which is the day"):
        learned(open_)
    # In use the order is that of training, whatever the table shows.
    new = open_.assign(when="3/4/2024")
    assert learned(frame()).matrix(new)[0, -1] == (datetime.date(2024, 4, 3) - datetime.date(1970, 1, 1)).days
    with pytest.raises(BidroError, match="'4/13/2024', which is no date with the day first"):
        learned(frame()).matrix(new.assign(when="4/13/2024"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"categories": ("odd",)}, "'odd' in --categories is no column of the table"),
        ({"categories": ("grade", "y")}, "'y' in --categories is no feature"),
        ({"dates": ("when", "grade")}, "'grade' is declared twice"),
        ({"drop": ("odd",)}, "The table has no column 'odd'"),
        ({"drop": ("note", "y")}, "'y' is named for use and in --drop"),
        ({"features": ("grade", "when", "note")}, "'note' is named for use and in --drop"),
    ],
)
def test_what_is_declared_must_be_there_and_mean_one_thing(options, words):
    with pytest.raises(BidroError, match=words):
        learned(frame(), **options)


def test_a_target_of_figures_and_words_has_classes_on_request():
    schema = learn_schema(frame().drop(columns=["note", "when"]), "site", "grade", task="classification")
    assert schema.classes == ("01", "2", "3", "K")


def test_the_command_declares_uses_and_replaces(tmp_path, capsys):
    frame().to_csv(tmp_path / "t.csv", index=False)
    declared = ["--categories", "grade", "--dates", "when", "--drop", "note"]
    base = [tmp_path / "t.csv", "--client", "site", "--target", "y"]
    quick = ["--curves", "none", "--personal", "none", "--weights", "fixed", "--out", tmp_path / "model"]
    code, _, err = run(capsys, "fit", *base, *declared, *quick)
    assert code == 0, err
    model = load_model(tmp_path / "model")
    assert model.schema == learned(frame(), missing="median")
    assert 'categories = ["grade"]' in (tmp_path / "model" / "run.toml").read_text()
    code, _, err = run(
        capsys, "fit", "--config", tmp_path / "model" / "run.toml", "--out", tmp_path / "again"
    )
    assert code == 0, err
    assert load_model(tmp_path / "again").schema == model.schema
    code, out, err = run(capsys, "evaluate", tmp_path / "model", tmp_path / "t.csv", "--json")
    assert (code, json.loads(out)["unseen_levels"]) == (0, {}), err
    place = ["--out", tmp_path / "p.csv"]
    assert run(capsys, "predict", tmp_path / "model", tmp_path / "t.csv", *place)[0] == 0
    before = (tmp_path / "p.csv").read_text()
    code, _, err = run(capsys, "predict", tmp_path / "again", tmp_path / "t.csv", *place, "--explain")
    assert (code, (tmp_path / "p.csv").read_text()) == (1, before)
    assert "p.csv' exists already; choose another --out, or replace it with --force" in err
    code, _, err = run(
        capsys, "predict", tmp_path / "again", tmp_path / "t.csv", *place, "--explain", "--force"
    )
    assert code == 0, err
    assert (tmp_path / "p.csv").read_text() != before
    code, out, err = run(capsys, "schema", tmp_path / "t.csv", "--client", "site", "--target", "y", *declared)
    assert code == 0, err
    assert 'dates = "day first"' in out


def test_a_rehearsal_declares_as_a_fit_does(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    kinds = {"categories": ("grade",), "drop": ("note",), "dates": ("when",)}
    columns = TableColumns(client="site", target="y", **kinds)
    sites = split_by_client(tmp_path / "t.csv", columns, tmp_path / "sites")
    assert sites.agreed.schema == learned(frame())
    rows = SiteRows.load(Site.read(tmp_path / "sites" / "site-0.toml"))
    own = frame()[frame()["site"] == "n"]
    assert sorted(map(tuple, rows.features)) == sorted(map(tuple, learned(frame()).matrix(own)))
