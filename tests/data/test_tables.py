"""Tables as numbers: what is read, what is refused, and in which words."""

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Schema, bounds_of, learn_schema, read

# Four rows, and each five times, so that no level is rare.
FOUR = pd.DataFrame(
    {
        "hospital": ["n", "n", "s", "s"],
        "age": [30, 41, 52, 63],
        "ward": ["b", "a", "c", "a"],
        "smoker": [True, False, True, True],
        "stay": [1.0, 2.5, 3.0, 4.0],
    }
)
FRAME = pd.concat([FOUR] * 5, ignore_index=True)


def test_numbers_categories_and_back():
    schema = learn_schema(FRAME, "hospital", "stay")
    assert schema.features == ("age", "ward=b", "ward=c", "smoker=True")
    assert schema.classes is None
    np.testing.assert_array_equal(
        schema.matrix(FOUR), [[30, 1, 0, 1], [41, 0, 0, 0], [52, 0, 1, 1], [63, 0, 0, 1]]
    )
    np.testing.assert_array_equal(schema.labels(FRAME), FRAME["stay"])
    assert schema.clients(FOUR).tolist() == ["n", "n", "s", "s"]
    assert Schema.from_dict(schema.to_dict()) == schema


def test_tasks():
    assert learn_schema(FRAME, "hospital", "ward").classes == ("a", "b", "c")
    assert learn_schema(FRAME, "hospital", "smoker").classes == ("False", "True")
    whole = FRAME.assign(y=[0, 1, 1, 0] * 5)
    assert learn_schema(whole, "hospital", "y").classes == ("0", "1")
    assert learn_schema(whole, "hospital", "y", task="regression").classes is None
    # A number read as a float in one table and as an integer in another is the same class.
    schema = learn_schema(whole, "hospital", "y")
    assert schema.labels(whole.assign(y=[0.0, 1.0, 1.0, 0.0] * 5)).tolist() == ["0", "1", "1", "0"] * 5


def test_missing_values_are_counted_or_filled():
    gaps = FRAME.assign(age=[30, None, 52, 63] * 5, ward=["b", None, "c", "b"] * 5)
    with pytest.raises(
        BidroError, match=r"5 in 'age' of 'n', 5 in 'ward' of 'n'\. Row 2 below the header has"
    ):
        learn_schema(gaps, "hospital", "stay")
    both = gaps.assign(age=[None, 41] * 10, stay=[1.0, None, *FRAME["stay"][2:-1], None])
    with pytest.raises(BidroError) as refused:
        learn_schema(both, "hospital", "stay")
    assert "2 in 'stay' of 2 clients, 10 in 'age' of 2 clients, 5 in 'ward' of 'n'. Row 1 " in str(
        refused.value
    )
    assert str(refused.value).endswith("Rows without 'stay', the target, can only be dropped.")
    with pytest.raises(
        BidroError, match=r"Row 2 below the header and 1 more have no 'stay'; .* leave out those"
    ):
        learn_schema(both, "hospital", "stay", missing="median")
    schema = learn_schema(gaps, "hospital", "stay", missing="median-alone")
    assert schema.matrix(gaps)[1].tolist() == [52, 0, 0]  # 'b', the commonest, is the reference
    strict = learn_schema(FRAME, "hospital", "stay")
    with pytest.raises(BidroError, match="Row 2 below the header has no 'age'"):
        strict.matrix(gaps)


def test_a_column_that_numbers_the_rows_is_used_and_said(caplog):
    rng = np.random.default_rng(0)
    rows = {
        "counted": rng.permutation(20) + 7.0,
        "with gaps": np.append(np.arange(19.0), 38),
        "far apart": np.append(np.arange(19.0), 41),
        "twice": np.append(np.arange(19.0), 3),
        "half": np.arange(20) + 0.5,
    }
    table = FRAME.assign(**rows)
    assert "counted" in learn_schema(table, "hospital", "stay").features
    said = [record.getMessage().split("'")[1] for record in caplog.records]
    assert said == ["counted", "with gaps"]
    assert "leave it out with --drop 'counted' if that is all it does" in caplog.text
    caplog.clear()
    learn_schema(table, "hospital", "stay", list(rows))
    learn_schema(table[:19], "hospital", "stay")
    assert caplog.text == ""


def test_files(tmp_path):
    FRAME.to_csv(tmp_path / "all.csv", index=False)
    FRAME.to_parquet(tmp_path / "all.parquet")
    for name in ("all.csv", "all.parquet"):
        table, client = read([tmp_path / name], "hospital")
        assert client == "hospital"
        assert len(table) == 20
    for name, part in FRAME.drop(columns="hospital").groupby(FRAME["hospital"]):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    table, client = read([tmp_path / "n.csv", tmp_path / "s.csv"], None)
    assert client == "client"
    assert table["client"].tolist() == ["n"] * 10 + ["s"] * 10
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    (tmp_path / "odd.xyz").write_text("a")
    pd.DataFrame({"age": []}).to_csv(tmp_path / "empty.csv", index=False)
    FRAME.drop(columns="age").to_csv(tmp_path / "less.csv", index=False)
    for folder in ("again", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "again" / "n.csv").symlink_to(tmp_path / "n.csv")
    FOUR.drop(columns="hospital").to_csv(tmp_path / "other" / "n.csv", index=False)
    for paths, column, word in (
        ([], None, "at least one table"),
        (["none.csv"], "hospital", "no file"),
        (["bad.parquet"], "hospital", "could not be read"),
        (["odd.xyz"], "hospital", "neither"),
        (["all.csv"], None, "--client"),
        (["all.csv"], "clinic", "no column 'clinic'"),
        (["empty.csv"], "age", "has no rows"),
        (["n.csv", "n.csv"], None, "hold the same rows"),
        (["n.csv", "again/n.csv"], None, "hold the same rows"),
        (["all.csv", "all.parquet"], "hospital", "hold the same rows"),
        (["n.csv", "other/n.csv"], None, "Two files are named 'n'"),
        (["all.csv", "less.csv"], "hospital", "'age' is in one only"),
    ):
        with pytest.raises(BidroError, match=word):
            read([tmp_path / p for p in paths], column)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: learn_schema(FRAME, "hospital", "none"), "no column 'none'"),
        (lambda: learn_schema(FRAME, "hospital", "stay", ["none"]), "no column 'none'"),
        (lambda: learn_schema(FRAME, "hospital", "stay", []), "no features"),
        (lambda: learn_schema(FRAME, "hospital", "stay", ["age", "stay"]), "one role"),
        (lambda: learn_schema(FRAME, "hospital", "ward", task="regression"), "not a number"),
        (lambda: learn_schema(FRAME, "hospital", "stay", task="odd"), "task must be"),
        (lambda: learn_schema(FRAME, "hospital", "stay", missing="odd"), "one of refuse, median"),
        (lambda: learn_schema(FRAME.assign(y="a"), "hospital", "y"), "one class only"),
        (lambda: learn_schema(FRAME.assign(d=pd.Timestamp("2026-01-01")), "hospital", "stay"), "dates"),
        (
            lambda: learn_schema(FRAME.assign(age=[1, 2, 3, np.inf] * 5), "hospital", "stay"),
            "Row 4 below the header: 'age' is not a finite",
        ),
        (
            lambda: learn_schema(
                pd.DataFrame({"c": "x", "t": range(300), "name": [f"p{k}" for k in range(300)]}), "c", "t"
            ),
            "300 different texts",
        ),
        (lambda: SCHEMA.matrix(FRAME.drop(columns="age")), "no column 'age'"),
        (
            lambda: SCHEMA.require_listed_levels(FRAME.assign(ward="z")),
            "'z' is not a level of 'ward'; there are a, b, c",
        ),
        (
            lambda: SCHEMA.matrix(FRAME.assign(age="old")),
            "Row 1 below the header: 'age' must be a number; it is 'old'",
        ),
        (lambda: SCHEMA.labels(FRAME.drop(columns="stay")), "no column 'stay'"),
        (lambda: SCHEMA.labels(FOUR.assign(stay=[1, None, 2, 3])), "Row 2 below the header has no 'stay'"),
        (lambda: SCHEMA.clients(FRAME.drop(columns="hospital")), "no column 'hospital'"),
        (lambda: SCHEMA.clients(FOUR.assign(hospital=["n", None, "s", "s"])), "Row 2 .* has no 'hospital'"),
        (lambda: CLASSES.labels(FRAME.assign(ward="z")), "'z' is not a class"),
        (lambda: bounds_of({"age": [0, 100]}, SCHEMA), "no bounds of 'stay'"),
        (lambda: bounds_of({"age": [0, 100], "stay": [0, 9], "ward": [0, 1]}, SCHEMA), "'ward'"),
        (lambda: bounds_of({"age": [100, 0], "stay": [0, 9]}, SCHEMA), "lower < upper"),
        (lambda: bounds_of({"age": 3, "stay": [0, 9]}, SCHEMA), "must be \\[lower, upper\\]"),
    ],
)
def test_what_does_not_fit_is_named(make, word):
    with pytest.raises(BidroError, match=word):
        make()


SCHEMA = learn_schema(FRAME, "hospital", "stay")
CLASSES = learn_schema(FRAME, "hospital", "ward")


def test_bounds_in_the_order_of_the_features():
    lower, upper = bounds_of({"age": [0, 100], "stay": [0, 9]}, SCHEMA)
    assert lower.tolist() == [0, 0, 0, 0, 0]
    assert upper.tolist() == [100, 1, 1, 1, 9]
    assert bounds_of({"age": [0, 100], "stay": [0, 9]}, CLASSES)[1].tolist() == [100, 1, 9]
