"""A fit of tables that are read in batches is the fit of the same tables in memory."""

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from bidro.core.errors import BidroError
from bidro.core.scratch import scratch_of
from bidro.data.tables import learn_schema, on_disk, read, read_on_disk
from bidro.fit.fitted import Progress
from bidro.workflow import fit as workflow
from bidro.workflow.fit import fit_tables
from bidro.workflow.options import FitOptions, bytes_in
from tests.cli.test_command import run

ROWS = 600


def visits(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 4, rows)
    table = pd.DataFrame(
        {
            "site": np.array(["north", "south", "west", "007"])[site],
            "age": rng.normal(60, 12, rows),
            "code": rng.integers(0, 40, rows),
            "ward": rng.choice(["medicine", "surgery", "trauma"], rows),
            "late": rng.random(rows) < 0.3,
        }
    )
    table["stay"] = 0.1 * table["age"] + (table["ward"] == "trauma") + 0.3 * site + rng.normal(size=rows)
    table.loc[::50, "age"] = np.nan
    return table


@pytest.fixture
def batches(monkeypatch):
    """Whatever is read is too large, and batches are of 70 rows."""
    monkeypatch.setattr(workflow, "MEMORY_OF_CELLS", 1e12)
    monkeypatch.setattr(on_disk, "batch_rows", lambda columns: 70)
    monkeypatch.setattr("bidro.data.tables.files.batch_rows", lambda columns: 70)


def fitted(monkeypatch, in_batches, tables, **more):
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(workflow, "MEMORY_OF_CELLS", 1e12 if in_batches else 4)
        patch.setattr("bidro.data.tables.files.batch_rows", lambda columns: 70)
        options = FitOptions(
            tables=tuple(map(str, tables)), target="stay", missing="median", memory="500GB", **more
        )
        found = fit_tables(options, Progress(stage=said.append))
    assert in_batches == any("in batches" in words for words in said)
    rows = found.clients.federation.samples
    assert (scratch_of(rows) is not None) == in_batches
    return found


def assert_same(one, other):
    np.testing.assert_allclose(one.model.x, other.model.x, rtol=0, atol=1e-8)
    assert one.model.schema == other.model.schema
    assert one.model.settings["chosen"] == other.model.settings["chosen"]
    assert str(one.certificate) == str(other.certificate)
    for name, loss in one.evaluation.items():
        assert loss == pytest.approx(other.evaluation[name], rel=1e-8)


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_a_fit_in_batches_is_the_fit_in_memory(monkeypatch, tmp_path, kind):
    path, table = tmp_path / f"t.{kind}", visits()
    table.to_parquet(path) if kind == "parquet" else table.to_csv(path, index=False)
    whole, some = (fitted(monkeypatch, how, [path], client="site") for how in (False, True))
    assert_same(some, whole)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"loss": "absolute"}, marks=pytest.mark.slow),
        {"radius": 0.1},
        {"personal": None, "curves": None},
    ],
)
def test_other_losses_and_radii(monkeypatch, tmp_path, more):
    visits().to_parquet(tmp_path / "t.parquet")
    assert_same(
        *(fitted(monkeypatch, how, [tmp_path / "t.parquet"], client="site", **more) for how in (True, False))
    )


def test_classes_and_people(monkeypatch, tmp_path):
    table = visits(1)
    table["stay"] = np.where(table["stay"] > 6.5, "long", "short")
    table["who"] = np.arange(ROWS) // 2
    table.to_csv(tmp_path / "t.csv", index=False)
    how = {"client": "site", "person": "who", "curves": None}
    assert_same(*(fitted(monkeypatch, batches, [tmp_path / "t.csv"], **how) for batches in (True, False)))


def test_a_folder_of_files_one_a_client_or_with_a_client_column(monkeypatch, tmp_path):
    table = visits(2)
    for name, own in table.groupby("site"):
        own.drop(columns="site").to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "_SUCCESS").write_text("")
    assert_same(*(fitted(monkeypatch, how, [tmp_path]) for how in (True, False)))
    parts = tmp_path / "parts"
    parts.mkdir()
    for k in range(3):
        table[k::3].to_parquet(parts / f"part-{k}.parquet", index=False)
    assert_same(*(fitted(monkeypatch, how, [parts], client="site") for how in (True, False)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BidroError, match="holds no table"):
        read([tmp_path / "empty"], "site")


def test_columns_that_are_numbers_in_some_batches_alone_are_text_as_a_whole(tmp_path, batches):
    """And what is empty, or true and false, in some of them."""
    rows = 300
    table = pd.DataFrame({"site": ["a", "b"] * (rows // 2), "y": np.arange(rows) + 0.25})
    table["code"] = [f"{k % 7:03d}" for k in range(rows - 1)] + ["x1"]
    table["gap"] = [""] * 100 + ["3"] * 100 + ["4"] * 100
    table["flag"] = [""] * 80 + ["True", "False"] * ((rows - 80) // 2)
    table["odd"] = ["True"] * 150 + ["yes"] * 75 + ["0"] * 75
    table["big"] = np.arange(rows) + 2**53
    table.to_csv(tmp_path / "t.csv", index=False)
    whole, _ = read([tmp_path / "t.csv"], "site")
    large, _ = read_on_disk([tmp_path / "t.csv"], "site", tmp_path)
    assert list(large.columns) == list(whole.columns)
    assert len(large) == len(whole)
    for name in whole:
        cells = [[None if pd.isna(cell) else cell for cell in made[name]] for made in (large, whole)]
        assert cells[0] == cells[1], name
    how = ("site", "y", None, None, "median", None, ("code",))
    assert learn_schema(large, *how) == learn_schema(whole, *how)


def test_parquet_is_read_as_it_is(tmp_path):
    table = visits(3).astype({"ward": "category"}).set_index("code")
    table.to_parquet(tmp_path / "t.parquet", row_group_size=100)
    whole, _ = read([tmp_path / "t.parquet"], "site")
    large, _ = read_on_disk([tmp_path / "t.parquet"], "site", tmp_path)
    assert list(large.columns) == list(whole.columns)
    for name in whole:
        pd.testing.assert_series_equal(large[name], whole[name], check_names=True)
    with pytest.raises(KeyError):
        large["nothing"]
    assert parquet.read_metadata(tmp_path / "t.parquet").num_row_groups == 6


def test_faults_are_named_as_in_memory(tmp_path, batches):
    table = visits(4).fillna(60.0)
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "u.csv", index=False)
    paths = [tmp_path / "t.csv", tmp_path / "u.csv"]
    for reading in (read, lambda *how: read_on_disk(*how, tmp_path)):
        with pytest.raises(BidroError, match="hold the same rows"):
            reading(paths, "site")
        with pytest.raises(BidroError, match="has no column 'where'"):
            reading(paths[:1], "where")
        with pytest.raises(BidroError, match="needs --client COLUMN"):
            reading(paths[:1], None)
    table.loc[333, "age"] = np.nan
    table.to_csv(tmp_path / "v.csv", index=False)
    for made in (
        read([tmp_path / "v.csv"], "site")[0],
        read_on_disk([tmp_path / "v.csv"], "site", tmp_path)[0],
    ):
        with pytest.raises(BidroError, match=r"1 in 'age' of .*Row 334 below the header of '.*v.csv'"):
            learn_schema(made, "site", "stay")
    (tmp_path / "w.csv").write_text("site,age\n" + "a,1\n" * 100 + "a,1,2\n")
    with pytest.raises(BidroError, match="line 102"):
        read_on_disk([tmp_path / "w.csv"], "site", tmp_path)


def test_what_needs_the_whole_table_is_refused_before_work(monkeypatch, tmp_path, capsys, batches):
    visits().to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(workflow, "read_on_disk", None)
    given = ("fit", tmp_path / "t.csv", "--client", "site", "--target", "stay", "--out", tmp_path / "m")
    code, _, err = run(capsys, *given, "--radius", "bootstrap")
    assert code == 1
    assert "--radius bootstrap needs them there as a whole" in err
    code, _, err = run(capsys, *given, "--memory", "much")
    assert code == 1
    assert "such as 2GB" in err
    assert not (tmp_path / "m").exists()


def test_too_many_rows_for_the_memory_are_refused(monkeypatch, tmp_path, batches):
    visits().to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(workflow, "MEMORY_OF_A_ROW", 10**9)
    options = FitOptions(
        tables=(str(tmp_path / "t.csv"),), client="site", target="stay", memory="2GB", missing="median"
    )
    with pytest.raises(BidroError, match=r"Even in batches a fit of 600 rows takes about 60\d\.\d GB"):
        fit_tables(options, Progress())


def test_the_command_says_which_it_is(tmp_path, capsys, batches):
    visits().to_csv(tmp_path / "t.csv", index=False)
    given = ("fit", tmp_path / "t.csv", "--client", "site", "--target", "stay", "--missing", "median")
    code, _, err = run(capsys, *given, "--memory", "64GB", "--out", tmp_path / "m")
    assert code == 0
    assert "reading tables in batches" in err
    assert "64.0 GB" in err


@pytest.mark.parametrize(("text", "number"), [("2GB", 2e9), ("1.5 GB", 1.5e9), ("900mb", 9e8), ("1T", 1e12)])
def test_memory_in_words(text, number):
    assert bytes_in(text) == number


@pytest.mark.parametrize("text", ["", "2", "2 potatoes", "-1GB", "1MB"])
def test_what_is_no_memory(text):
    with pytest.raises(BidroError, match="memory must be"):
        bytes_in(text)


def test_what_a_query_gives_is_read_in_batches_too(monkeypatch, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.register("given", visits(5))
        connection.sql("create table visits as select * from given")
    how = {
        "client": "site",
        "database": f"duckdb:///{tmp_path / 't.duckdb'}",
        "query": "select * from visits",
    }
    some = fitted(monkeypatch, True, (), **how)
    monkeypatch.setattr(workflow, "memory_here", lambda: 0)
    options = FitOptions(target="stay", missing="median", **how)
    assert_same(some, fit_tables(options, Progress()))
    with pytest.raises(BidroError, match="query may give too much for"):
        fit_tables(FitOptions(target="stay", radius="bootstrap", memory="2GB", **how), Progress())
