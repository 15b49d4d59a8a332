"""Tables that queries give: the same as from a file, on DuckDB and a real PostgreSQL; and no password is ever
told."""

import logging
import sqlite3
import traceback

import duckdb
import numpy as np
import pandas as pd
import pytest

from bidro.cli import main
from bidro.core.errors import BidroError
from bidro.data.tables import Query, learn_schema, read, read_one
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows
from bidro.deploy.site.session import _loaded, _stamp
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import pack
from bidro.model.model_file import load_model
from bidro.workflow.options import FitOptions
from tests.deploy.sites import table, write_sites
from tests.testbed.postgres import PASSWORD, connected, postgres

SELECT = "select * from visits where age > 17 order by age, stay"


def visits(rows=240):
    """Numbers with gaps, decimals, categories, dates, truths, and persons with numbers beyond doubles."""
    rng = np.random.default_rng(4)
    age = rng.integers(1, 90, rows).astype(float)
    return pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south", "größer"], rows),
            "patient": 2**53 + 1 + 2 * np.arange(rows),
            "age": age,
            "price": np.round(rng.normal(10, 3, rows), 2),
            "ward": rng.choice(["a:b", "100%", "c"], rows),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "urgent": rng.random(rows) < 0.5,
            "pulse": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(50, 120, rows)),
            "stay": np.round(age / 10 + rng.normal(size=rows), 3),
        }
    )


@pytest.fixture(scope="module")
def on_duckdb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("duckdb")
    whole = visits()
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.register("given", whole)
        connection.execute(
            "create table visits as select hospital, patient, age, price::decimal(9, 2) as price, ward, "
            "day::date as day, urgent, pulse::integer as pulse, stay from given"
        )
    return Query("duckdb:///visits.duckdb", SELECT, folder)


@pytest.fixture(scope="module")
def on_postgres():
    with postgres() as place:
        with connected(place) as connection, connection.cursor() as cursor:
            connection.execute(
                "create table visits (hospital text, patient bigint, age double precision, price "
                "numeric(9, 2), ward text, day date, urgent boolean, pulse integer, stay double precision)"
            )
            rows = visits().astype(object).where(visits().notna(), None)
            cursor.executemany(
                f"insert into visits values ({', '.join(['%s'] * 9)})", rows.to_numpy().tolist()
            )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VISITS_PASSWORD", PASSWORD)
            yield Query(f"postgresql://keeper:${{VISITS_PASSWORD}}@{place}", SELECT)


def from_file(folder):
    whole = visits()
    whole[whole["age"] > 17].sort_values(["age", "stay"]).to_parquet(folder / "visits.parquet", index=False)
    return read_one(folder / "visits.parquet")


@pytest.mark.parametrize("source", ["on_duckdb", "on_postgres"])
def test_a_query_gives_the_numbers_of_a_file(source, request, tmp_path):
    query = request.getfixturevalue(source)
    found, whole = query.read(), from_file(tmp_path)
    schema = learn_schema(whole, "hospital", "stay", None, None, "median", "patient", (), (), ("day",))
    assert list(found.columns) == list(whole.columns)
    assert (
        learn_schema(found, "hospital", "stay", None, None, "median", "patient", (), (), ("day",)) == schema
    )
    for part in ("numbers", "clients", "people"):
        np.testing.assert_array_equal(getattr(schema, part)(found), getattr(schema, part)(whole))


@pytest.mark.parametrize("source", ["on_duckdb", "on_postgres"])
def test_rows_come_in_batches_and_are_the_same(source, request):
    query = request.getfixturevalue(source)
    parts = list(query.frames(50))
    assert [len(part) for part in parts[:-1]] == [50] * (len(parts) - 1)
    assert len(parts) > 3
    whole = query.read()
    for name in ("age", "price", "pulse", "stay"):
        np.testing.assert_array_equal(np.concatenate([p[name].to_numpy(float) for p in parts]), whole[name])
    (empty,) = Query(query.database, "select age from visits where age < 0", query.folder).frames()
    assert list(empty) == ["age"]
    assert len(empty) == 0


@pytest.mark.parametrize("source", ["on_duckdb", "on_postgres"])
def test_nothing_is_written(source, request):
    query = request.getfixturevalue(source)
    before = len(query.read())
    for text in ("delete from visits", "insert into visits select * from visits", "drop table visits"):
        with pytest.raises(BidroError, match=r"did not give a table|gives no rows"):
            Query(query.database, text, query.folder).read()
    assert len(query.read()) == before


def test_what_looks_like_a_parameter_is_the_querys_own(on_duckdb, on_postgres):
    for query in (on_duckdb, on_postgres):
        text = "select ward, '%s :x ::y' as odd, age::integer % 10 as last from visits where ward like '%0%'"
        found = Query(query.database, text, query.folder).read()
        assert set(found["ward"]) == {"100%"}
        assert set(found["odd"]) == {"%s :x ::y"}


def secrets_of(text):
    """What of the password a text holds: the whole, or a part that is long enough to be no chance."""
    return [part for part in (PASSWORD, "p%40ss", "p@ss", "w:rd", "w%3Ard") if part in text]


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place,  # another password
        lambda place: place.replace("127.0.0.1", "nowhere.invalid"),
        lambda place: place.replace("/visits", "/nothing"),
        lambda place: place.rsplit(":", 1)[0] + ":1/visits",
        lambda place: place.rsplit(":", 1)[0] + ":port/visits",
    ],
)
def test_no_error_tells_the_password(change, on_postgres, monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("VISITS_PASSWORD", PASSWORD + "2")
    place = on_postgres.database.rsplit("@", 1)[1]
    query = Query(f"postgresql://keeper:${{VISITS_PASSWORD}}@{change(place)}", SELECT)
    with pytest.raises(BidroError) as caught:
        query.read()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(query) + str(query)
    assert secrets_of(told) == []
    assert "keeper" in told


def test_an_address_with_a_password_is_refused_and_not_repeated(tmp_path):
    for address in (
        f"postgresql://keeper:{PASSWORD}@db/visits",
        "postgresql://kee/per:p@ss@db/visits",
        "mysql+pymysql://keeper:p@ss/w:rd@db/visits",
        "postgresql://db/visits?user=keeper&password=p@ss",
        "postgresql://keeper:before${VISITS_PASSWORD}p@ss@db/visits",
    ):
        for said in (
            lambda address=address: Query(address, SELECT),
            lambda address=address: FitOptions(target="stay", database=address, query=SELECT),
        ):
            with pytest.raises(BidroError, match=r"holds a password.*\$\{VISITS_PASSWORD\}") as caught:
                said()
            assert secrets_of("".join(traceback.format_exception(caught.value))) == []
    Query("postgresql://keeper:${VISITS_PASSWORD}@db/visits?sslmode=verify-full", SELECT)
    Query("postgresql://keeper@db/visits", SELECT)


@pytest.mark.parametrize(
    ("database", "query", "words"),
    [
        ("visits.duckdb", SELECT, "named by its address"),
        ("duckdb:///visits.duckdb", " ", "needs a query"),
        ("duckdb://", SELECT, "is a file"),
        ("duckdb:///nowhere.duckdb", SELECT, "There is no database"),
        ("sqlite:///nowhere.db", SELECT, "There is no database"),
        ("duckdb:///visits.duckdb", "select 1 as a, 2 as a", "'a'"),
        ("duckdb:///visits.duckdb", "select nothing from visits", "did not give a table.*nothing"),
        ("postgresql://keeper:${NOWHERE}@db/visits", SELECT, "variable NOWHERE"),
        ("odd://db/visits", SELECT, "did not give a table"),
    ],
)
def test_what_is_wrong_is_said(database, query, words, on_duckdb):
    with pytest.raises(BidroError, match=words):
        Query(database, query, on_duckdb.folder).read()


def test_sqlite_is_read_where_it_lies(tmp_path):
    with sqlite3.connect(tmp_path / "visits.db") as connection:
        visits().drop(columns="day").to_sql("visits", connection, index=False)
    found, client = read([Query("sqlite:///visits.db", SELECT, tmp_path)], "hospital")
    assert client == "hospital"
    assert len(found) == (visits()["age"] > 17).sum()


def run(*arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bidro", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_bidro_fit_by_a_query_is_the_fit_of_the_file(on_postgres, tmp_path, monkeypatch, capsys):
    """And what repeats it names the variable, not what it holds."""
    way = ["--client", "hospital", "--target", "stay", "--features", "age,price", "--curves", "none"]
    way += ["--personal", "none"]
    from_file(tmp_path)
    rows = ["--database", on_postgres.database, "--query", SELECT]
    monkeypatch.chdir(tmp_path)
    assert run("fit", "visits.parquet", *way, "--out", "of-file", monkeypatch=monkeypatch) == 0
    assert run("fit", *rows, *way, "--out", "of-query", monkeypatch=monkeypatch) == 0
    models = [load_model(tmp_path / name) for name in ("of-file", "of-query")]
    np.testing.assert_array_equal(models[0].x, models[1].x)
    for path in (tmp_path / "of-query").iterdir():
        assert secrets_of(path.read_bytes().decode(errors="replace")) == [], path.name
    repeat = ["fit", "--config", "of-query/run.toml", "--out", "again"]
    assert run(*repeat, monkeypatch=monkeypatch) == 0
    np.testing.assert_array_equal(load_model(tmp_path / "again").x, models[0].x)
    assert run("fit", "visits.parquet", *rows, *way, "--out", "both", monkeypatch=monkeypatch) == 1
    assert run("fit", *rows[:2], *way, "--out", "half", monkeypatch=monkeypatch) == 1
    assert "query is none" in capsys.readouterr().err
    way = ["--client", "hospital", "--target", "stay", "--missing", "median", "--drop", "day"]
    assert run("schema", *rows, *way, monkeypatch=monkeypatch) == 0
    drafted = capsys.readouterr().out
    assert run("schema", "visits.parquet", *way, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == drafted


def test_a_site_answers_by_a_query_as_by_a_file_and_asks_it_anew_for_every_run(tmp_path, monkeypatch):
    agreed = write_sites(tmp_path, table())
    with duckdb.connect(str(tmp_path / "east.duckdb")) as connection:
        connection.execute(f"create table visits as from read_csv('{tmp_path}/east.csv')")
    before = SiteRows.load(Site.read(tmp_path / "east.toml"))
    text = (tmp_path / "east.toml").read_text()
    query = 'data = "duckdb:///east.duckdb"\nquery = "select * from visits"'
    (tmp_path / "east.toml").write_text(text.replace('data = "east.csv"', query))
    (tmp_path / "east.csv").unlink()
    after = SiteRows.load(Site.read(tmp_path / "east.toml"))
    for part in ("features", "target", "ids"):
        np.testing.assert_array_equal(getattr(after, part), getattr(before, part))
    monkeypatch.setenv("BIDRO_SITE", str(tmp_path / "east.toml"))

    def asked(run):
        request = pack(Nothing(), {"question": "prepare", "run": run, "agreed": agreed.digest})
        site = Site.read(tmp_path / "east.toml")
        return len(_loaded(site, _stamp(site, request)).target)

    assert asked("one") == len(before.target)
    with duckdb.connect(str(tmp_path / "east.duckdb")) as connection:
        connection.execute("delete from visits where u < 0")
    assert asked("one") == len(before.target) > asked("two")
    for line, words in (
        (query.splitlines()[0], "query says what of it"),
        (query.splitlines()[1], "does not say 'data'"),
        ('database = "duckdb:///east.duckdb"', "data names the database"),
    ):
        (tmp_path / "east.toml").write_text(text.replace('data = "east.csv"', line))
        with pytest.raises(BidroError, match=words):
            Site.read(tmp_path / "east.toml")
