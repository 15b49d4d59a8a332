"""Federations: what they hold, and one clear sentence for every kind of bad input."""

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, WholeSpace
from bidro.core.splits import client_id
from bidro.data.federation import Federation

NORTH = np.array([[0.0, 1.0], [2.0, 3.0]])
SOUTH = np.array([[4.0, -1.0]])
BOX = Box.cube(5.0, 2)


def test_ragged_clients_by_name():
    fed = Federation.from_arrays({"north": NORTH, "south": SOUTH}, BOX, columns=["age", "cost"])
    assert (fed.n, fed.m, fed.sizes, fed.names) == (2, 2, (2, 1), ("north", "south"))
    np.testing.assert_allclose(fed.proportions, [2 / 3, 1 / 3])
    np.testing.assert_array_equal(fed.client_samples("south"), SOUTH)
    assert fed.locate(2) == ("south", 0)
    assert not fed.support_from_data


def test_support_from_the_data_is_marked_as_such():
    fed = Federation.from_arrays([NORTH, SOUTH], "from data")
    assert fed.support_from_data
    np.testing.assert_array_equal(fed.support.upper, [4.0, 3.0])
    assert isinstance(Federation.from_arrays([NORTH], "unbounded").support, WholeSpace)


def test_client_ids_depend_on_names_alone():
    one = Federation.from_arrays({"a": NORTH, "b": SOUTH}, BOX)
    two = Federation.from_arrays({"b": SOUTH, "a": NORTH, "c": NORTH}, BOX)
    assert one.client_ids[0].tolist() == two.client_ids[1].tolist() == client_id("a").tolist()
    assert client_id("a").tolist() != client_id("b").tolist()


def test_from_a_table():
    table = pd.DataFrame({"site": ["b", "a", "b"], "x": [1, 2, 3], "z": [0.5, 0.5, 0.5], "y": [1, 2, 3.0]})
    fed = Federation.from_table(table, client="site", target="y", support="from data")
    assert fed.names == ("a", "b")
    assert fed.columns == ("x", "z", "y")
    np.testing.assert_array_equal(fed.client_samples("b"), [[1, 0.5, 1], [3, 0.5, 3]])


def with_value(value):
    rows = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 1.0]])
    rows[1, 1] = value
    return {"north": NORTH, "south": rows}


TABLE = pd.DataFrame({"site": ["a", None], "x": ["p", "q"], "y": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Federation.from_arrays({}, BOX), ["at least one client"]),
        (
            lambda: Federation.from_arrays({"north": NORTH, "west": np.zeros((0, 2))}, BOX),
            ["'west'", "must have rows"],
        ),
        (
            lambda: Federation.from_arrays(with_value(np.nan), BOX, ["age", "cost"]),
            ["'south'", "row 1", "'cost'", "finite", "fix or drop"],
        ),
        (
            lambda: Federation.from_arrays(with_value(9.0), BOX, ["age", "cost"]),
            ["'south'", "row 1", "'cost'", "9", "outside the declared support", "[-5, 5]"],
        ),
        (
            lambda: Federation.from_arrays(with_value(9.0), Ball(np.zeros(2), 5.0)),
            ["'south'", "row 1", "outside the declared support", "distance", "9.2"],
        ),
        (lambda: Federation.from_arrays({"north": NORTH, "south": np.zeros((2, 3))}, BOX), ["3 columns"]),
        (lambda: Federation.from_arrays({"north": np.zeros(3)}, BOX), ["rows x columns"]),
        (lambda: Federation.from_arrays({"north": NORTH}, Box.cube(5.0, 3)), ["3 coordinates"]),
        (lambda: Federation.from_samples(NORTH, [1], BOX), ["sum to 1"]),
        (lambda: Federation.from_samples(NORTH, [1, 1], BOX, ["a", "a"]), ["'a'", "more than once"]),
        (lambda: Federation.from_arrays({1: NORTH, "1": SOUTH}, BOX), ["'1'", "more than once"]),
        (lambda: Federation.from_arrays([3.0], BOX), ["rows x columns"]),
        (lambda: Federation.from_arrays({"b": []}, BOX), ["'b'", "must have rows"]),
        (lambda: Federation.from_arrays([NORTH + 1j], BOX), ["complex"]),
        (lambda: Federation.from_arrays([NORTH], np.ones(2)), ["support must be"]),
        (lambda: Federation.from_arrays([NORTH], BOX, ["a", "a"]), ["'a'", "more than once"]),
        (lambda: Federation.from_table({"site": []}, "site", "y", BOX), ["data frame"]),
        (lambda: Federation.from_arrays([[[1.0, "a"]]], BOX), ["numbers"]),
        (lambda: Federation.from_samples(NORTH, [0.7, 1.3], BOX), ["whole numbers"]),
        (lambda: Federation.from_table(TABLE[:1], "site", "y", BOX, ["y"]), ["'y'", "more than once"]),
        (lambda: Federation.from_arrays([NORTH], "everywhere"), ["'everywhere'"]),
        (lambda: Federation.from_table(TABLE, "hospital", "y", BOX), ["no column 'hospital'", "site"]),
        (lambda: Federation.from_table(TABLE, "site", "y", BOX), ["Row 1", "'site'"]),
        (lambda: Federation.from_table(TABLE[:1], "site", "y", BOX), ["'x'", "not numeric"]),
        (lambda: Federation.from_arrays([NORTH], BOX).client_samples("east"), ["'east'", "client-1"]),
    ],
)
def test_bad_input_gets_one_clear_sentence(make, words):
    with pytest.raises(BidroError) as error:
        make()
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_folds_are_even_random_and_the_same_for_a_client_alone():
    rng = np.random.default_rng(0)
    parts = {"north": rng.normal(size=(31, 2)), "south": rng.normal(size=(90, 2))}
    folds = Federation.from_arrays(parts, "unbounded").folds(3, 5)
    for name, part in zip(parts, (folds[:31], folds[31:]), strict=True):
        counts = np.bincount(part, minlength=3)
        assert counts == pytest.approx(len(part) / 3, abs=4 * np.sqrt(len(part) * 2 / 9))
        assert counts.min() >= len(part) / 6
        alone = Federation.from_arrays({name: parts[name]}, "unbounded").folds(3, 5)
        np.testing.assert_array_equal(alone, part)
        # 3 of 30 or 90 rows in order would have a correlation of 1 with their place.
        assert abs(np.corrcoef(part, np.arange(len(part)) % 3)[0, 1]) < 0.5
    assert np.any(folds != Federation.from_arrays(parts, "unbounded").folds(3, 6))


def test_folds_need_rows():
    federation = Federation.from_arrays({"a": np.zeros((1, 2)), "b": np.zeros((9, 2))}, "unbounded")
    with pytest.raises(BidroError, match="Client 'a' has 1 row"):
        federation.folds(3)
    with pytest.raises(BidroError, match="at least 2 folds"):
        federation.folds(1)
