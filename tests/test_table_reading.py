"""Tables as people have them: each is read right, or refused with a sentence that names the place."""

import bz2
import datetime
import decimal
import gzip
import logging
import lzma
import warnings

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from bidro.core.errors import BidroError
from bidro.core.splits import choose_holdout
from bidro.data.tables import (
    Column,
    Schema,
    learn_schema,
    read,
    read_one,
    require_declared,
    require_every_class,
)
from bidro.model.model_file import target_numbers

ROWS = 60


def good(**changed):
    rng = np.random.default_rng(3)
    whole = pd.DataFrame(
        {
            "site": np.repeat(["n", "s", "w"], ROWS // 3),
            "age": rng.integers(20, 90, ROWS),
            "ward": rng.choice(["medicine", "surgery", "trauma"], ROWS),
            "y": rng.normal(size=ROWS),
        }
    )
    return whole.assign(**changed)


def with_cell(column, row, value, kind=object):
    values = good()[column].astype(kind)
    values.iloc[row] = value
    return values


def prepared(table, **options):
    """What `fit` does before it trains, with numpy's warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = learn_schema(table, "site", "y", **options)
        clients, target = schema.clients(table), schema.labels(table)
        features = schema.matrix(table)
        kept = choose_holdout(clients, features, target_numbers(schema, table), 0.2, 0)
        require_every_class(schema, target[~kept])
        return schema, features


REFUSED = {
    "one n/k": (good(age=with_cell("age", 4, "n/k")), "Row 5 below the header: 'age' is 'n/k'"),
    "many n/k": (
        good(age=[str(k / 7) if k % 4 == 0 else "n/k" for k in range(ROWS)]),
        "Row 2 below the header: 'age' is 'n/k'",
    ),
    "a bound": (good(age=with_cell("age", 0, "<5")), "'<5', which is no number"),
    "per cent": (good(age=[f"{k}%" for k in range(ROWS)]), "'0%', which is no number"),
    "money": (good(age=[f"$ {k}.50" for k in range(ROWS)]), "which is no number"),
    "thousands and a point": (good(age=[f"{k + 1},234.5" for k in range(ROWS)]), "which is no number"),
    "thousands or a comma": (
        good(age=[f"{k + 1},234" for k in range(ROWS)]),
        "a thousand or a decimal comma",
    ),
    "points and commas": (good(age=["1,5", "1.5"] * (ROWS // 2)), "'1,5', which is no number"),
    "ISO dates": (
        good(age=[f"2024-01-{k % 28 + 1:02d}" for k in range(ROWS)]),
        "dates or times, such as '2024-",
    ),
    "German dates": (good(age=[f"{k % 28 + 1}.3.2024" for k in range(ROWS)]), "dates or times"),
    "American dates": (good(age=[f"3/{k % 28 + 1}/24" for k in range(ROWS)]), "dates or times"),
    "dates in words": (good(age=[f"{k % 28 + 1} March 2024" for k in range(ROWS)]), "dates or times"),
    "months": (good(age=[f"2024-{k % 12 + 1:02d}" for k in range(ROWS)]), "dates or times"),
    "times": (good(age=[f"{k % 24:02d}:30" for k in range(ROWS)]), "dates or times"),
    "instants": (good(age=[f"2024-01-02T03:04:{k:02d}Z" for k in range(ROWS)]), "dates or times"),
    "datetime64": (good(age=pd.date_range("2024", periods=ROWS)), "dates or times"),
    "timedelta64": (good(age=pd.to_timedelta(range(ROWS), unit="D")), "dates or times"),
    "periods": (good(age=pd.period_range("2024-01", periods=ROWS, freq="M")), "dates or times"),
    "date objects": (good(age=[datetime.date(2024, 1, k % 28 + 1) for k in range(ROWS)]), "dates or times"),
    "one date object": (
        good(age=with_cell("age", 5, np.datetime64("2024"))),
        "dates or times, such as '2024'",
    ),
    "a date target": (good(y=pd.date_range("2024", periods=ROWS)), "'y' holds dates"),
    "lists": (good(age=[[k] for k in range(ROWS)]), "Row 1 below the header: 'age' is a list"),
    "mappings": (good(age=[{"a": k} for k in range(ROWS)]), "'age' is a dict"),
    "arrays": (good(age=[np.ones(2) for _ in range(ROWS)]), "'age' is a ndarray"),
    "tuples": (good(age=[(k, 1) for k in range(ROWS)]), "'age' is a tuple"),
    "bytes": (good(age=[b"a"] * ROWS), "'age' is a bytes"),
    "one list": (good(age=with_cell("age", 7, [1])), "Row 8 below the header: 'age' is a list"),
    "a nested target": (good(y=[[1]] * ROWS), "'y' is a list"),
    "complex": (good(age=np.ones(ROWS) * 1j), "complex"),
    "names": (good(ward=[f"person {chr(65 + k % 26)}{k}" for k in range(ROWS)]), "60 different texts"),
    "mostly names": (
        good(ward=["known" if k % 3 == 0 else f"p{k}x" for k in range(ROWS)]),
        "leave it out with --drop 'ward'",
    ),
    "nothing but gaps": (good(age=np.nan), "missing values"),
    "an infinite feature": (good(age=with_cell("age", 2, np.inf, float)), "Row 3 .* not a finite number"),
    "a huge feature": (good(age=with_cell("age", 2, 1e300, float)), "Row 3 .*1e\\+300, too large"),
    "a huge whole number": (good(age=with_cell("age", 2, 10**400)), "Row 3 .* not a finite number"),
    "a huge target": (good(y=with_cell("y", 9, -1e300)), "Row 10 .*'y' is -1e\\+300, too large"),
    "an infinite target": (good(y=with_cell("y", 9, np.inf)), "Row 10 .*'y' is not a finite"),
    "a missing target": (good(y=with_cell("y", 9, np.nan)), "1 in 'y' of 'n'. Row 10 below the header"),
    "a constant target": (good(y=3.0), "one class only|nothing to learn"),
    "a tiny spread": (good(age=np.arange(ROWS) * 1e-200), "varies by"),
    "a tiny target": (good(y=np.arange(ROWS) * 1e-160), "'y' varies by"),
    "one class": (good(y="a"), "one class only"),
    "a class of one row": (good(y=["a"] * 30 + ["b"] * 29 + ["c"]), "Row 60 .* only one of class 'c'"),
    "a number-like target": (good(y=with_cell("y", 3, "unknown")), "Row 4 .*'y' is 'unknown'"),
    "names as target": (good(y=[f"person {k}" for k in range(ROWS)]), "only one of class"),
    "one row": (good().head(1), "1 row"),
    "two columns of one name": (
        pd.concat([good(), good()[["age"]]], axis=1),
        "two columns named 'age'",
    ),
    "a column that numbers the rows": (good(**{"Unnamed: 0": range(ROWS)}), "Column 5 has no name"),
    "a name made twice": (good(**{"ward=surgery": range(ROWS)}), "'ward=surgery'"),
    "no client in a row": (good(site=with_cell("site", 1, None)), "Row 2 .* has no 'site'"),
    "no varying feature": (good(age="a", ward="b"), "no features"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_model_can_be_trained_on_is_named(case):
    table, words = REFUSED[case]
    with pytest.raises(BidroError, match=words):
        prepared(table)


# In a CSV file these become words, or other columns.
NOT_IN_CSV = {
    *("lists", "one list", "mappings", "arrays", "tuples", "bytes", "complex", "timedelta64"),
    *("two columns of one name", "one date object"),
}


@pytest.mark.parametrize("case", [case for case in REFUSED if case not in NOT_IN_CSV])
def test_and_so_it_is_after_a_file(case, tmp_path):
    table, words = REFUSED[case]
    table.to_csv(tmp_path / "t.csv", index=False)
    whole, _ = read([tmp_path / "t.csv"], "site")
    with pytest.raises(BidroError) as refused:
        prepared(whole)
    if "Row" in words:
        assert "t.csv" in str(refused.value)


# Before pandas 3 `str` is no type of its own: a gap would become a word.
KINDS = ["string", "string[pyarrow]", "object", "category", *["str"] * (pd.__version__ >= "3")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, "", "  "])
def test_median_fills_words_by_the_commonest_level(kind, gap):
    words = ["medicine"] * 10 + ["surgery"] * 30 + ["trauma"] * 19
    values = pd.Series([*words, gap], dtype=object).astype(kind)
    schema, matrix = prepared(good(ward=values), missing="median")
    (ward,) = (column for column in schema.columns if column.name == "ward")
    assert ward == Column("ward", ("medicine", "surgery", "trauma"), "surgery")
    coded = matrix[:, 1:].tolist()
    assert coded == [[0, 0]] * 10 + [[1, 0]] * 30 + [[0, 1]] * 19 + [[1, 0]]
    with pytest.raises(BidroError, match="Row 60 below the header has the first"):
        prepared(good(ward=values))


@pytest.mark.parametrize(
    "values",
    [
        [f"{k},5" for k in range(ROWS)],
        pd.Series([f"{k},5" for k in range(ROWS)], dtype="string[pyarrow]"),
        [f"{k}.5" for k in range(ROWS)],
        [f" {k}.5 " for k in range(ROWS)],
        [decimal.Decimal(2 * k + 1) / 2 for k in range(ROWS)],
        pd.Series([k + 0.5 for k in range(ROWS)], dtype="Float64"),
        pd.Series([k + 0.5 for k in range(ROWS)], dtype=object),
    ],
)
def test_numbers_in_any_clothes_are_numbers(values):
    schema, matrix = prepared(good(age=values))
    assert schema.columns[0] == Column("age")
    np.testing.assert_array_equal(matrix[:, 0], np.arange(ROWS) + 0.5)
    np.testing.assert_array_equal(schema.matrix(good(age=np.arange(ROWS) + 0.5))[:, 0], matrix[:, 0])


def test_text_with_points_is_not_taken_for_months():
    assert prepared(good(age=[f"{2000 + k}.5" for k in range(ROWS)]))[0].columns[0] == Column("age")


def test_what_was_declared_a_category_stays_one(tmp_path):
    codes = pd.Series(["1", "2", "V3"] * 20).astype("category")
    good(ward=codes).to_parquet(tmp_path / "t.parquet")
    schema, _ = prepared(read_one(tmp_path / "t.parquet"))
    assert schema.columns[1].levels == ("1", "2", "V3")
    halves = []
    for k, half in enumerate((slice(0, 30), slice(30, 60))):
        part = good(ward=codes).iloc[half]
        part = part.assign(ward=part["ward"].cat.rename_categories({"V3": f"V{k}"}))
        part.to_parquet(tmp_path / f"{k}.parquet")
        halves.append(tmp_path / f"{k}.parquet")
    assert prepared(read(halves, "site")[0])[0].columns[1].levels == ("1", "2", "V0", "V1")


def test_rare_levels_are_merged_said_and_new_ones_join_them(caplog):
    words = ["medicine"] * 30 + ["surgery"] * 24 + ["eye", "eye", "ear", "skin", "skin", "skin"]
    schema, matrix = prepared(good(ward=words))
    (ward,) = (column for column in schema.columns if column.name == "ward")
    assert ward == Column("ward", ("medicine", "other", "surgery"), None, "other")
    assert matrix[:, 1].sum() == 6
    assert "3 level(s) of fewer than 5 rows (ear, eye, skin; 6 row(s) in all) count as 'other'" in caplog.text
    new = good(ward=["teeth", "lung"] * 10 + ["medicine"] * 40)
    assert schema.matrix(new)[:20, 1:].tolist() == [[1, 0]] * 20
    assert schema.counted_as_other(new) == {"ward": 20}
    assert schema.counted_as_other(good(ward="medicine")) == {}
    assert Schema.from_dict(schema.to_dict()) == schema
    # A level that the table itself calls "Other" takes them in.
    own = prepared(good(ward=["medicine"] * 30 + ["Other"] * 28 + ["eye", "ear"]))[0].columns[1]
    assert own == Column("ward", ("Other", "medicine"), None, "Other")
    # Without such a level they count as the average one, and training refuses and counts them.
    schema, new = prepared(good())[0], good(ward=["trauma", "trauma", "eye", "ear", *["trauma"] * 56])
    levels = len(schema.columns[1].levels)
    assert schema.matrix(new)[2:4, 1:].tolist() == [[1 / levels] * (levels - 1)] * 2
    assert (schema.unseen_levels(new), schema.counted_as_other(new)) == ({"ward": 2}, {})
    with pytest.raises(BidroError, match=r"Row 3 .*'eye' is not a level of 'ward'.* 2 rows have such"):
        schema.require_listed_levels(new)


def test_true_and_false_are_never_merged():
    schema, _ = prepared(good(flag=[True, *[False] * 59]))
    assert schema.columns[2] == Column("flag", ("False", "True"))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"levels": ("a",), "other": "b"}, "other = 'b'"),
        ({"levels": ("a",), "filler": "b"}, "filler = 'b'"),
        ({"filler": "b"}, "finite number"),
        ({"filler": float("nan")}, "finite number"),
        ({"other": "b"}, "one of its levels"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(column, words):
    with pytest.raises(BidroError, match=words):
        Column("x", **column)


def written(table, sep=","):
    return table.to_csv(index=False, sep=sep, lineterminator="\n")


PACKED = {
    "t.csv": lambda data: data,
    "t.csv.gz": gzip.compress,
    "t.CSV.bz2": bz2.compress,
    "t.csv.xz": lzma.compress,
    "t.csv.zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
def test_packed_files_and_separators(name, sep, tmp_path):
    (tmp_path / name).write_bytes(PACKED[name](written(good(), sep).encode()))
    pd.testing.assert_frame_equal(read_one(tmp_path / name), good(), check_dtype=False)


def test_decimal_commas_between_semicolons(tmp_path):
    text = good().to_csv(index=False, sep=";", decimal=",")
    (tmp_path / "t.csv").write_text(text)
    whole = read_one(tmp_path / "t.csv")
    schema, _ = prepared(whole)
    np.testing.assert_allclose(schema.labels(whole), good()["y"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_encodings(encoding, tmp_path, caplog):
    table = good(ward=["Zürich", "Łódź" if "utf" in encoding else "Genève"] * 30)
    (tmp_path / "t.csv").write_bytes(written(table).encode(encoding))
    pd.testing.assert_frame_equal(read_one(tmp_path / "t.csv"), table, check_dtype=False)
    assert ("Windows-1252" in caplog.text) == (encoding == "cp1252")


def test_a_packed_file_is_named_by_its_client(tmp_path):
    for name in ("n", "s"):
        part = good()[good()["site"] == name].drop(columns="site")
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(written(part).encode()))
    table, client = read([tmp_path / "n.csv.gz", tmp_path / "s.csv.gz"], None)
    assert table[client].unique().tolist() == ["n", "s"]
    table["age"] = np.where(np.arange(len(table)) == 25, np.inf, table["age"])
    with pytest.raises(BidroError, match=r"Row 6 below the header of '.*s.csv.gz'"):
        learn_schema(table, client, "y")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n\n", "is empty"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", b"a,a\n1,2\n", "two columns named 'a'"),
        ("t.csv", b"a,b\n1,2,3\n4,5,6\n", "more cells than the header"),
        ("t.csv", b"a,b\n1,2\n4,5,6\n", "line 3 \\(the header is line 1\\): 3 cells"),
        ("t.csv", b"a,b\n\x81\x8d,2\n", "neither UTF-8 nor"),
        ("t.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "not text but a packed file"),
        ("t.csv", b"PK\x03\x04", "a workbook"),
        ("t.csv", b"a\0b", "not text"),
        ("t.csv.gz", b"a,b\n1,2\n", "could not be read"),
        ("t.xlsx", b"PK", "save it as one of them"),
        ("t.gz", b"PK", "neither .csv"),
        ("t.parquet", b"PAR1", "could not be read"),
        ("t.csv", b'a,b\n"1,2\n', "could not be read"),
    ],
)
def test_files_that_are_no_tables(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BidroError, match=words):
        read([tmp_path / name], "a")


def test_parquet_with_columns_of_one_name_or_an_index(tmp_path):
    ones = pyarrow.array([1, 2])
    parquet.write_table(pyarrow.Table.from_arrays([ones, ones], names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(BidroError, match="two columns named 'a'"):
        read_one(tmp_path / "t.parquet")
    good().set_index("site").to_parquet(tmp_path / "t.parquet")
    assert set(read_one(tmp_path / "t.parquet").columns) == {"site", "age", "ward", "y"}
    with pytest.raises(BidroError, match="is a folder"):
        read_one(tmp_path)


def test_a_value_outside_the_declared_support_is_named_by_its_row():
    schema, _ = prepared(good())
    require_declared({"age": (0, 100), "y": (-9, 9)}, schema, good())
    with pytest.raises(BidroError, match=r"Row 8 below the header: 'age' is 101, outside .* \[0, 100\]"):
        require_declared({"age": (0, 100), "y": (-9, 9)}, schema, good(age=with_cell("age", 7, 101)))


def test_a_class_whose_rows_are_all_kept_out_is_named():
    schema = Schema("site", "y", ("a", "b"), (Column("age"),))
    with pytest.raises(BidroError, match="class 'b' of 'y' were held out"):
        require_every_class(schema, np.array(["a", "a"]))


def test_a_plain_table_is_read_without_a_word(tmp_path, caplog):
    good().to_csv(tmp_path / "t.csv", index=False)
    with caplog.at_level(logging.DEBUG, "bidro"):
        prepared(read([tmp_path / "t.csv"], "site")[0])
    assert caplog.text == ""


def test_numbers_of_csv_are_read_to_the_last_bit_whatever_the_version_of_pandas(tmp_path):
    """Sides and folds are dealt by the bits of a row: against Python's own reading of the same texts."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**63, 4000, dtype=np.uint64).view(float)
    bits = np.where(np.isfinite(bits) & (np.abs(bits) < 1e60) & (np.abs(bits) > 1e-60), bits, 0.5)
    words = [repr(float(v)) for v in rng.normal(size=4000)], [f"{v:.24e}" for v in bits]
    lines = [f"n,{one},{other}" for one, other in zip(*words, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["site,age,y", *lines]))
    table, _ = read([tmp_path / "t.csv"], "site")
    exact = [np.array([float(word) for word in column]) for column in words]
    for name, column in zip(("age", "y"), exact, strict=True):
        np.testing.assert_array_equal(table[name].to_numpy(), column)
    sides = [
        choose_holdout(table["site"].to_numpy(str), age[:, None], y, 0.2, 1)
        for age, y in (exact, (table["age"].to_numpy(), table["y"].to_numpy()))
    ]
    np.testing.assert_array_equal(*sides)
