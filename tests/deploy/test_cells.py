"""Counts of levels and of pairs of levels, row by row in plain Python."""

from itertools import product

import numpy as np
import pytest

from bidro.data.tables import Column, Schema
from bidro.deploy.site.disclosure.cells import Levels, cell_counts, smallest
from bidro.deploy.site.disclosure.memory import distinct_by_atom

SCHEMA = Schema(
    "site",
    "y",
    None,
    (Column("u"), Column("ward", ("a", "b", "c")), Column("flag"), Column("sex", ("f", "m"))),
)


def coded(seed, n=80):
    rng = np.random.default_rng(seed)
    ward, sex, flag = rng.integers(3, size=n), rng.integers(2, size=n), rng.choice([2.5, 7.0], n)
    features = np.column_stack([rng.normal(size=n), ward == 1, ward == 2, flag, sex == 1])
    words = [
        {f"ward={'abc'[w]}", f"sex={'fm'[s]}", f"flag={f:.17g}"}
        for w, s, f in zip(ward, sex, flag, strict=True)
    ]
    return features, rng.normal(size=n), words


def test_the_first_level_and_numbers_with_two_values_are_levels_too():
    features, target, words = coded(0)
    levels = Levels.of(SCHEMA, features, target)
    assert set(levels.names) == set().union(*words)
    for row, own in zip(levels.has, words, strict=True):
        assert {name for name, has in zip(levels.names, row, strict=True) if has} == own
    # A number with three values is none, unless it had two before; a target with two values is one.
    features[0, 3] = 9.0
    assert not any(name.startswith("flag") for name in Levels.of(SCHEMA, features, target).names)
    again = Levels.of(SCHEMA, features, np.sign(target), levels.names)
    assert {"flag=2.5", "flag=7", "y=-1", "y=1"} <= set(again.names)
    assert again.has[0, again.names.index("flag=2.5")] == again.has[0, again.names.index("flag=7")] == 0
    ordered = again.in_order(("sex=m", "nobody", "y=1"))
    np.testing.assert_array_equal(
        ordered, np.column_stack([features[:, 4] == 1, np.zeros(80, bool), target > 0])
    )


@pytest.mark.parametrize(
    ("classes", "numbers"), [(("no", "yes"), [-1.0, 1.0]), (("a", "b", "c"), [0.0, 1.0, 2.0])]
)
def test_every_class_is_a_level_by_its_word(classes, numbers):
    schema = Schema("site", "y", classes, (Column("u"),))
    target = np.array([numbers[k] for k in (0, 1, 1, 0, 1)])
    levels = Levels.of(schema, np.arange(5.0)[:, None], target)
    assert levels.names == tuple(f"y={word}" for word in classes)
    assert levels.has.sum(axis=0).tolist() == [2, 3, 0][: len(classes)]


@pytest.mark.parametrize("by_people", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_counts_by_atom_are_those_of_plain_loops(seed, by_people, monkeypatch):
    monkeypatch.setattr("bidro.deploy.site.disclosure.cells.ROWS_AT_ONCE", 7)
    features, target, words = coded(seed)
    levels = Levels.of(SCHEMA, features, target)
    rng = np.random.default_rng(50 + seed)
    atoms, people = rng.integers(-1, 4, 80), rng.integers(0, 25, 80).astype(np.uint64)
    whose = people if by_people else np.arange(80)
    given = people if by_people else None

    def plain(atom, *wanted):
        return len({whose[i] for i in range(80) if atoms[i] == atom and set(wanted) <= words[i]})

    pairs = cell_counts(levels.has, atoms, 5, given)
    sizes = distinct_by_atom(atoms, 5, given)
    for atom in range(5):
        assert sizes[atom] == plain(atom)
        for (i, one), (j, two) in product(enumerate(levels.names), repeat=2):
            assert pairs[atom, i, j] == plain(atom, one, two)


def test_the_smallest_count_is_of_somebody():
    assert smallest(np.array([[0, 4], [3, 0]])) == 3
    assert smallest(np.zeros((2, 0))) == smallest(np.zeros(3)) == 0


def test_a_level_that_nobody_has_and_more_levels_than_a_word_has_bits():
    rng = np.random.default_rng(3)
    has, people = rng.random((60, 130)) < 0.3, rng.integers(0, 20, 60).astype(np.uint64)
    has[:, 7] = False
    found = cell_counts(has, np.zeros(60, np.int64), 1, people)[0]
    assert not found[7].any()
    assert not found[:, 7].any()
    for i, j in ((0, 129), (63, 64), (128, 128)):
        assert found[i, j] == found[j, i] == len(np.unique(people[has[:, i] & has[:, j]]))
