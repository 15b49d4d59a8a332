"""The site's memory of rows: the rule by brute force, with atoms that are worked out from plain sets."""

import io
from itertools import combinations

import numpy as np
import pytest

from bidro.data.tables import Column, Schema
from bidro.deploy.site.disclosure.known_rows import to_digits
from bidro.deploy.site.disclosure.memory import OUTSIDE, Demanded, RowMemory, refined, tells_few_apart
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.state import SiteState

NUMBERS = Schema("site", "y", None, (Column("u"), Column("v")))
LEVELS = Schema("site", "y", None, (Column("u"), Column("ward", ("a", "b", "c")), Column("sex", ("f", "m"))))
CLASSES = Schema("site", "y", ("high", "low", "mid"), (Column("u"), Column("sex", ("f", "m"))))


def memory(folder, min_rows=3, min_cell=2, parameters=0):
    return RowMemory(SiteState.open(folder, "east"), Demanded(min_rows, min_cell, parameters))


class Plain:
    """The same by plain sets: every row has a number of its own, and sets of numbers are released."""

    def __init__(self):
        self.sets = {"rows": [], "sums": []}

    def atoms(self, kind, more=()):
        """The classes of rows that are in the same sets, each a set of numbers."""
        sets = [*self.sets[kind], *more]
        classes = {}
        for row in set().union(*sets) if sets else ():
            classes.setdefault(tuple(row in one for one in sets), set()).add(row)
        return set(map(frozenset, classes.values()))

    def fresh(self, kind, more):
        """The atoms with these sets besides that were none before."""
        return self.atoms(kind, more) - self.atoms(kind)


def schedule(rng, rows, steps, moved=(1, 2, 3, 4, 6, 9)):
    """Tables as they change, by the rows' numbers, with a way to put rows into sets each."""
    number, table = rows, list(range(rows))
    shares = rng.random(10_000)
    for _ in range(steps):
        what = rng.integers(5)
        some = int(rng.choice(moved))
        if what == 0:
            table, number = [*table, *range(number, number + some)], number + some
        elif what == 1 and len(table) > some + 6:
            table = list(rng.permutation(table)[some:])
        elif what == 2 and len(table) > some + 6:  # changed: these go and others come
            table, number = (
                [*rng.permutation(table)[some:], *range(number, number + some)],
                number + some,
            )
        folds, keeps = int(rng.integers(1, 4)), rng.random() < 0.4
        table = [int(row) for row in rng.permutation(table)]
        u = shares[table]
        kept = (u < 0.25) if keeps else np.zeros(len(table), bool)
        fold = np.floor(shares[[row + 5_000 for row in table]] * folds).astype(int)
        yield table, kept, fold, folds


def labels_of(kept, fold, folds):
    return {"rows": np.where(kept, folds, fold), "sums": np.where(kept, OUTSIDE, fold)}


def persons(table):
    """Every row is of a person of its own, who has no other."""
    return np.array(table, np.uint64)


def sets_of(table, labels):
    return {
        kind: [
            {row for row, mark in zip(table, own, strict=True) if mark == one} for one in set(own) - {OUTSIDE}
        ]
        for kind, own in labels.items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_no_few_rows_can_be_isolated_after_any_schedule(seed, tmp_path):
    """Allowed is what keeps every new atom large, and nothing else is; and then no vector in the span of all
    released indicators is 0 but for fewer than min_rows rows, by the ranks of their matrix."""
    rng = np.random.default_rng(seed)
    content = rng.normal(size=(400, 3))
    min_rows, site, plain = 3, memory(tmp_path), Plain()
    answers = []
    for table, kept, fold, folds in schedule(rng, 16, 25):
        labels = {"rows": labels_of(kept, fold, folds)["rows"]}
        wanted = sets_of(table, labels)["rows"]
        known = site.known(NUMBERS, content[table, :2], content[table, 2], persons(table))
        allowed = all(len(atom) >= min_rows for atom in plain.fresh("rows", wanted))
        answers.append(allowed)
        if not allowed:
            with pytest.raises(
                PolicyViolationError,
                match=r"a sum over fewer than 3 of its (people|people of all its studies together)",
            ):
                site.release(known, labels)
            continue
        atoms = plain.atoms("rows", wanted)
        present = [len(atom) for atom in atoms if any(atom <= one for one in wanted)]
        assert site.check(known, labels) == site.release(known, labels) == min(present)
        plain.sets["rows"] += wanted
        assert all(len(atom) >= min_rows for atom in plain.atoms("rows"))
    assert {True, False} <= set(answers)
    everybody = sorted(set().union(*plain.sets["rows"]))
    matrix = np.array([[row in one for row in everybody] for one in plain.sets["rows"]], float)
    rank = np.linalg.matrix_rank(matrix)
    for few in combinations(range(len(everybody)), min_rows - 1):
        assert np.linalg.matrix_rank(np.delete(matrix, few, axis=1)) == rank


def categories(rng, schema, n):
    """(features, target, the levels of every row by column)."""
    levels = {c.name: rng.integers(len(c.levels), size=n) for c in schema.columns if c.levels}
    parts = [rng.normal(size=n)]
    for column in schema.columns[1:]:
        parts += [levels[column.name] == k for k in range(1, len(column.levels))]
    target = rng.normal(size=n)
    if schema.classes is not None:
        levels["y"] = rng.integers(len(schema.classes), size=n)
        target = levels["y"].astype(float)
    return np.column_stack(parts), target, levels


def least_level(atom, levels):
    return min(np.unique(own[list(atom)], return_counts=True)[1].min() for own in levels.values())


def least_cell(atom, levels):
    some = list(atom)
    pairs = [
        np.unique(np.stack([one[some], two[some]]), axis=1, return_counts=True)[1].min()
        for one, two in combinations(levels.values(), 2)
    ]
    return min([least_level(atom, levels), *pairs])


@pytest.mark.parametrize("schema", [LEVELS, CLASSES])
@pytest.mark.parametrize("seed", range(6))
def test_no_small_cell_can_be_worked_out_after_any_schedule(seed, schema, tmp_path):
    """Levels and cells counted afresh in the atoms of plain sets, in those of rows that are gone as well."""
    rng = np.random.default_rng(100 + seed)
    features, target, levels = categories(rng, schema, 4_000)
    min_rows, min_cell, site, plain = 3, 2, memory(tmp_path), Plain()
    answers = []
    for table, kept, fold, folds in schedule(rng, 120, 24, (1, 5, 20, 40, 80)):
        labels = labels_of(kept, np.minimum(fold, 1), min(folds, 2))
        wanted = sets_of(table, labels)
        known = site.known(schema, features[table], target[table], persons(table))
        fresh = {kind: plain.fresh(kind, wanted[kind]) for kind in wanted}
        allowed = all(len(atom) >= min_rows for atom in fresh["rows"]) and all(
            least_level(atom, levels) >= min_rows and least_cell(atom, levels) >= min_cell
            for atom in fresh["sums"]
        )
        answers.append(allowed)
        if allowed:
            present = [
                a for a in plain.atoms("sums", wanted["sums"]) if any(a <= one for one in wanted["sums"])
            ]
            sizes = [
                len(a) for a in plain.atoms("rows", wanted["rows"]) if any(a <= s for s in wanted["rows"])
            ]
            least = min([*sizes, *(least_cell(atom, levels) for atom in present)])
            assert site.release(known, labels) == least
            for kind, sets in wanted.items():
                plain.sets[kind] += sets
        else:
            with pytest.raises(PolicyViolationError):
                site.release(known, labels)
    assert {True, False} <= set(answers)


@pytest.mark.parametrize("seed", range(6))
def test_people_are_counted_and_not_their_rows(seed, tmp_path):
    """With people the counts of what is left behind are lower bounds: never too much is allowed."""
    rng = np.random.default_rng(500 + seed)
    features, target, levels = categories(rng, LEVELS, 4_000)
    # New rows are of new people, but for a few.
    whose = np.arange(4_000, dtype=np.uint64) // 3
    site, plain, allowed = memory(tmp_path), Plain(), 0
    for table, kept, _, _ in schedule(rng, 200, 30, (1, 20, 80, 120)):
        labels = labels_of(kept, np.zeros(len(table), int), 1)
        known = site.known(LEVELS, features[table], target[table], whose[table])
        try:
            site.release(known, labels)
        except PolicyViolationError:
            continue
        allowed += 1
        for kind, sets in sets_of(table, labels).items():
            plain.sets[kind] += sets

        def persons(atom, chosen):
            some = np.array(sorted(atom))
            return min(
                len(np.unique(whose[some[np.all([levels[c][some] == v for c, v in one], axis=0)]]))
                for one in chosen
                if np.all([levels[c][some] == v for c, v in one], axis=0).any()
            )

        values = [(name, v) for name, own in levels.items() for v in np.unique(own)]
        for atom in plain.atoms("rows"):
            assert len(np.unique(whose[sorted(atom)])) >= 3
        for atom in plain.atoms("sums"):
            assert persons(atom, [(one,) for one in values]) >= 3
            assert persons(atom, combinations(values, 2)) >= 2
    assert allowed > 1


def test_refining_by_hand():
    now = refined(np.array([0, 0, 1, 1, -1, -1]), np.array([0, 1, 0, 0, 1, OUTSIDE]))
    assert now.atoms.tolist() == [1, 2, 3, 3, 0, -1]
    assert now.before.tolist() == [-1, 0, 0, 1]
    assert now.label.tolist() == [1, 0, 1, 0]
    assert now.changed.tolist() == [True, True, True, False]


def rows(n, seed=0):
    whole = np.random.default_rng(seed).normal(size=(n, 3))
    return whole[:, :2], whole[:, 2]


def field_of(sets):
    """All unions and differences of sets of up to 12 people, as bits: whatever can be worked out of sums over
    these is over one of them."""
    found = set(sets)
    while True:
        more = {c for a in found for b in sets for c in (a | b, a & ~b, b & ~a)} - found
        if not more:
            return found
        found |= more


@pytest.mark.parametrize("seed", range(40))
def test_the_rule_is_that_of_all_unions_and_differences(seed, tmp_path):
    """A release is refused exactly where one of all sets that follow from it, and from those before, has
    somebody in it, and fewer than three."""
    rng, site = np.random.default_rng(seed), memory(tmp_path, min_rows=3)
    features, target = rows(12, seed)
    known, told, refused = site.known(NUMBERS, features, target, persons(range(12))), [], 0
    for _ in range(8):
        labels = rng.choice(rng.integers(-1, 3, 4), 12).astype(np.int64) if rng.random() < 0.7 else None
        labels = np.repeat(rng.integers(-1, 3, 4), 3) if labels is None else labels
        more = [
            sum(1 << k for k in np.flatnonzero(labels == one).tolist()) for one in set(labels.tolist()) - {-1}
        ]
        small = any(0 < some.bit_count() < 3 for some in field_of([*told, *more]))
        try:
            site.release(known, {"rows": labels})
        except PolicyViolationError:
            assert small
            refused += 1
        else:
            assert not small
            told += more
    assert told or refused


def everything(n):
    return {"rows": np.zeros(n, int), "sums": np.zeros(n, int)}


def test_what_makes_a_row_the_same(tmp_path):
    """Order, last digits and the sign of 0 do not matter; a copy is another row, as is another person's."""
    site = memory(tmp_path)
    features, target = map(to_digits, rows(40))
    features[0, 0] = 0.0
    hashes = site.known(NUMBERS, features, target, None).hashes
    order = np.random.default_rng(1).permutation(40)
    again = to_digits(features[order] * (1 + 1e-15))
    again[order == 0, 0] = -0.0
    np.testing.assert_array_equal(site.known(NUMBERS, again, target[order], None).hashes, hashes[order])
    changed = features.copy()
    changed[5, 1] *= 1 + 1e-11
    assert np.flatnonzero(site.known(NUMBERS, changed, target, None).hashes != hashes).tolist() == [5]
    # Of a time in seconds one second is another, although its first digits are the same.
    times = features.copy()
    times[:, 0] = 1.7e9 + np.arange(40)
    hashes_of_times = site.known(NUMBERS, times, target, None).hashes
    later = times + np.array([1.0, 0.0])
    assert not set(site.known(NUMBERS, later, target, None).hashes) & set(hashes_of_times)
    twice = site.known(NUMBERS, features[[3, 3, 4, 3]], target[[3, 3, 4, 3]], None).hashes
    assert len(set(twice)) == 4
    assert {hashes[3], hashes[4]} <= set(twice)
    # Another key, another hash of everything: the file tells nothing without it.
    other = memory(tmp_path / "other").known(NUMBERS, features, target, None).hashes
    assert not set(other) & set(hashes)
    whose = np.arange(40, dtype=np.uint64)
    assert not set(site.known(NUMBERS, features, target, whose).hashes) & set(hashes)


def test_one_row_more_or_less_or_changed_is_refused_and_ten_are_not(tmp_path):
    site = memory(tmp_path, min_rows=10)
    features, target = rows(100)

    def known_of(first, last):
        return site.known(NUMBERS, features[first:last], target[first:last], persons(range(first, last)))

    site.release(known_of(0, 60), everything(60))
    for first, last in ((0, 61), (0, 69), (1, 60), (9, 60), (1, 61), (5, 68)):
        with pytest.raises(PolicyViolationError, match="use its table as it was, wait for more new people"):
            site.release(known_of(first, last), everything(last - first))
        told = site.told(known_of(first, last))
        assert (np.sum(~told.before), told.gone) == (max(0, last - 60), first)
    # Refused is forgotten: the same table again is as before, and so is one with ten more.
    for first, last in ((0, 60), (0, 70), (0, 60), (10, 70), (0, 60)):
        site.release(known_of(first, last), everything(last - first))
    # Ten new rows were released with sixty, and without ten others: apart they are sets of ten.
    with pytest.raises(PolicyViolationError):
        site.release(known_of(0, 65), everything(65))


def test_rows_that_come_while_others_go_may_be_the_same_people(tmp_path):
    """Without a column of persons rows are added, or are gone, and not both: a table that was written with
    fewer digits, and one patient more, would be taken for another."""
    site = memory(tmp_path, min_rows=10)
    features, target = rows(100)

    def released(some, digits=9):
        known = site.known(NUMBERS, features[some].round(digits), target[some].round(digits), None)
        site.release(known, everything(len(target[some])))

    released(slice(0, 60))
    released(slice(0, 75))
    released(slice(15, 75))
    for some, digits in ((slice(30, 90), 9), (slice(15, 76), 1), (slice(80, 100), 9)):
        with pytest.raises(PolicyViolationError, match="no column tells whether these are the same people"):
            released(some, digits)
    # Nor may others come later: half of a table that goes, and comes again with fewer digits, is the same.
    with pytest.raises(PolicyViolationError, match="no column tells whether these are the same people"):
        released(slice(15, 90))
    # The same rows may.
    released(slice(0, 75))
    released(slice(0, 90))


def test_a_number_with_two_values_among_new_rows_is_a_level_there(tmp_path):
    site = memory(tmp_path, min_rows=5)
    features, target = rows(60)
    features[:, 1] = np.arange(60) % 3
    features[40:, 1] = 0
    features[59, 1] = 1
    first = site.known(NUMBERS, features[:40], target[:40], None)
    site.release(first, everything(40))
    with pytest.raises(PolicyViolationError, match="one of a column's two values"):
        site.release(site.known(NUMBERS, features, target, None), everything(60))


def test_the_first_level_counts_although_it_has_no_column(tmp_path):
    """Of three levels coded as two columns the first is what these leave: here one row."""
    site = memory(tmp_path, min_rows=5)
    rng = np.random.default_rng(0)
    ward = np.array([0] + [1] * 30 + [2] * 29)
    features = np.column_stack([rng.normal(size=60), ward == 1, ward == 2, np.arange(60) % 2])
    known = site.known(LEVELS, features, rng.normal(size=60), None)
    with pytest.raises(PolicyViolationError, match="with a level or class"):
        site.release(known, everything(60))


def test_every_set_that_sums_are_told_of_has_more_than_two_people_a_parameter(tmp_path):
    features, target = rows(40)
    for parameters, allowed in ((10, True), (11, False)):
        site = memory(tmp_path / str(parameters), parameters=parameters)
        known = site.known(NUMBERS, features, target, None)
        labels = {"sums": np.where(np.arange(40) < 21, 0, OUTSIDE)}
        if allowed:
            assert site.release(known, labels) == 21
        else:
            with pytest.raises(PolicyViolationError, match="too few people in a set"):
                site.release(known, labels)


OTHER = Schema("site", "y", None, (Column("u"), Column("w")), person="patient")
PATIENTS = Schema("site", "y", None, (Column("u"), Column("v")), person="patient")


def test_a_second_study_needs_a_column_of_persons_in_both(tmp_path):
    """Other columns are another memory of rows: whether the people are the same only persons can tell."""
    features, target = rows(60)
    renamed = Schema("site", "y", None, (Column("u"), Column("w")))
    site = memory(tmp_path / "without")
    site.release(site.known(NUMBERS, features, target, None), everything(60))
    for schema, whose in ((renamed, None), (OTHER, persons(range(60)))):
        with pytest.raises(PolicyViolationError, match="name the column of people"):
            site.release(site.known(schema, features, target, whose), everything(60))
    # What was known before is known still.
    with pytest.raises(PolicyViolationError, match="changed by too little"):
        site.release(site.known(NUMBERS, features[1:], target[1:], None), everything(59))
    # Persons of another column are not those.
    site = memory(tmp_path / "other")
    site.release(site.known(PATIENTS, features, target, persons(range(60))), everything(60))
    visits = Schema("site", "y", None, (Column("u"), Column("w")), person="visit")
    with pytest.raises(PolicyViolationError, match="name the column of people"):
        site.release(site.known(visits, features, target, persons(range(60))), everything(60))


@pytest.mark.parametrize("needed", [0, 12])
def test_what_two_studies_tell_together_is_of_many_people(needed, tmp_path):
    """The same people again, or as many new ones as both studies need; never one more, one less, or one whose
    shared column has changed."""
    site = memory(tmp_path, min_rows=5, parameters=needed)
    features, target = rows(200)

    def released(schema, some, change=None):
        own = features[some].copy()
        own[:, 1] += 10.0 * (schema is OTHER)  # another column
        if change is not None:
            own[change, 0] += 1.0
        known = site.known(schema, own, target[some], persons(some))
        return site.release(known, everything(len(own)))

    first = np.arange(100)
    released(PATIENTS, first)
    for some in (np.arange(101), np.arange(99), np.arange(1, 101)):
        with pytest.raises(PolicyViolationError):
            released(OTHER, some)
    with pytest.raises(PolicyViolationError, match="its column 'u' was used in another study"):
        released(OTHER, first, change=7)
    released(OTHER, first)
    with pytest.raises(PolicyViolationError, match="rows of people that earlier runs used have changed"):
        released(PATIENTS, first, change=range(100))
    # Twenty-five new people are enough for a study of twelve parameters, and not for two.
    enough = 5 if needed == 0 else 50
    for more in (4, enough):
        if more < enough:
            with pytest.raises(PolicyViolationError):
                released(OTHER, np.arange(100 + more))
        else:
            released(OTHER, np.arange(100 + more))
            released(PATIENTS, np.arange(100 + more))


@pytest.mark.parametrize("went_before", [False, True])
def test_people_whose_rows_were_told_of_are_not_written_anew(went_before, tmp_path):
    """All rows with fewer digits, or everybody a year older, and one cell that was corrected: the two sums
    differ by that cell alone, up to what is known of all. Nor if some went before they came again."""
    site = memory(tmp_path, min_rows=5)
    features, target = rows(160)

    def released(some, digits=9, later=0.0):
        own = features[some].round(digits)
        own[:, 0] += later
        known = site.known(PATIENTS, own, target[some].round(digits), persons(some))
        return site.release(known, everything(len(some)))

    released(np.arange(100))
    if went_before:
        released(np.arange(50))
    for count, digits, later in ((100, 1, 0.0), (100, 9, 1.0), (101, 1, 0.0), (99, 1, 0.0)):
        with pytest.raises(PolicyViolationError, match="rows of people that earlier runs used have changed"):
            released(np.arange(count), digits, later)
    # Others may come while some go, and the same as they were.
    released(np.arange(40, 160))
    released(np.arange(100))


@pytest.mark.parametrize(
    ("again", "times", "allowed"),
    [
        ([range(60)], 1, True),
        ([range(59)], 1, False),
        ([range(51)], 1, False),
        ([range(50)], 1, True),
        ([range(30), range(30, 59)], 1, False),  # in two batches
        ([range(30), range(30, 50)], 1, True),
        ([range(60)], 2, True),
        ([[*range(60), 7]], 1, False),  # one comes twice
    ],
)
def test_who_does_not_come_again_with_the_others_is_not_told_apart(again, times, allowed, tmp_path):
    """What is the same in all rows of a person: the first rows of all, less the later rows of most."""
    site = memory(tmp_path, min_rows=10)
    base = np.random.default_rng(0).normal(size=60)
    visits = np.arange(60)

    def released():
        whole = np.column_stack([base[visits], np.arange(len(visits))])
        known = site.known(PATIENTS, whole, whole[:, 1] % 7, persons(visits))
        return site.release(known, everything(len(visits)))

    released()
    for place, some in enumerate(again):
        visits = np.concatenate([visits, *[np.array(some)] * times])
        if allowed or place + 1 < len(again):
            released()
        else:
            with pytest.raises(PolicyViolationError, match="could be worked out of these few"):
                released()


def test_a_column_that_is_renamed_is_the_same_column(tmp_path):
    """By its values: one corrected cell under another name is what the two sums differ by."""
    site = memory(tmp_path, min_rows=5)
    features, target = rows(100)
    who = persons(range(100))
    site.release(site.known(PATIENTS, features, target, who), everything(100))
    renamed = Schema("site", "z", None, (Column("a"), Column("b")), person="patient")
    corrected = features.copy()
    corrected[7, 0] += 1.0
    with pytest.raises(PolicyViolationError, match="its column 'a' was used in another study"):
        site.release(site.known(renamed, corrected, target, who), everything(100))
    # As it was it tells nothing new, and another column is another.
    site.release(site.known(renamed, features, target, who), everything(100))
    other = Schema("site", "w", None, (Column("c"), Column("d")), person="patient")
    site.release(site.known(other, *rows(100, seed=5), who), everything(100))


def test_copies_count_as_one_and_tell_sets_apart(tmp_path):
    features, target = rows(60)
    # Two people with many copies each are two.
    site = memory(tmp_path / "two", min_rows=10)
    twice = np.repeat([0, 1], 100)
    with pytest.raises(PolicyViolationError, match="fewer than 10"):
        site.release(site.known(NUMBERS, features[twice], target[twice], None), everything(200))
    # Copies of most rows are added: sums over all less those over the copies are those of the others.
    for copied, allowed in ((50, True), (51, False), (60, True)):
        site = memory(tmp_path / str(copied), min_rows=10)
        site.release(site.known(NUMBERS, features, target, None), everything(60))
        some = np.concatenate([np.arange(60), np.arange(copied)])
        known = site.known(NUMBERS, features[some], target[some], None)
        if allowed:
            assert site.release(known, everything(len(some))) == (60 if copied == 60 else 10)
        else:
            with pytest.raises(PolicyViolationError, match="fewer than 10"):
                site.release(known, everything(len(some)))


@pytest.mark.parametrize("twice", [1, 3, 12, 30])
@pytest.mark.parametrize("apart", [False, True])
def test_a_few_rows_that_are_there_twice_tell_nothing_apart(apart, twice, tmp_path):
    """In one set, or with a copy on each side: no sums are over the few that are there twice, or once."""
    site = memory(tmp_path, min_rows=10)
    features, target = rows(100)
    some = np.concatenate([np.arange(100), np.arange(twice)])
    side = (np.arange(100) % 2)[some]
    side[100:] = 1 - side[:twice] if apart else side[:twice]
    sets = {"rows": side, "sums": np.where(side == 0, 0, OUTSIDE), "held_out": np.where(side, 0, OUTSIDE)}
    known = site.known(NUMBERS, features[some], target[some], None)
    assert site.release(known, sets) >= 10
    # Where all but a few have copies on the other side these few are told.
    side = np.concatenate([np.zeros(100, int), np.ones(93, int)])
    some = np.concatenate([np.arange(100), np.arange(93)])
    known = site.known(NUMBERS, features[some], target[some], None)
    with pytest.raises(PolicyViolationError):
        site.release(known, {"rows": side, "sums": side, "held_out": np.full(193, OUTSIDE)})


@pytest.mark.parametrize("seed", range(100))
def test_no_combination_of_totals_leaves_few_people(seed):
    """By brute force: every combination that leaves fewest is 0 for as many different people as it can be."""
    rng = np.random.default_rng(seed)
    atoms, kinds, least = int(rng.integers(2, 5)), int(rng.integers(2, 7)), 4
    patterns = np.unique(rng.integers(0, 3, (kinds, atoms)), axis=0)
    patterns = patterns[patterns.any(axis=1)]
    vectors = np.repeat(patterns, rng.integers(1, 7, len(patterns)), axis=0)
    person, atom = np.nonzero(vectors)
    times = vectors[person, atom]
    told = tells_few_apart(np.repeat(atom, times), np.repeat(person, times).astype(np.uint64), least)
    rank = np.linalg.matrix_rank(vectors)
    fewest = len(vectors)
    for zero in combinations(range(len(patterns)), rank - 1):
        span = np.linalg.svd(patterns[list(zero)].astype(float))[2][
            np.linalg.matrix_rank(patterns[list(zero)]) :
        ]
        for c in rng.normal(size=(5, len(span))) @ span:
            left = int(np.sum(np.abs(vectors @ c) > 1e-9))
            fewest = min(fewest, left) if left else fewest
    # Where everybody is in one atom, atoms are counted by themselves.
    few = fewest < least and len(person) > len(vectors)
    assert told or not few
    if rank <= 2:
        assert told == few


def test_a_state_of_an_earlier_version_is_read(tmp_path):
    """Its sets are known, and no part of them may be left behind; people may join."""
    site = memory(tmp_path, min_rows=5, parameters=2)
    features, target = rows(100)
    known = site.known(PATIENTS, features[:60], target[:60], persons(range(60)))
    zeros, none = np.zeros(60, np.int32), np.zeros((1, 0, 0), np.int32)
    parts = {"names": np.frombuffer(b"[]", np.uint8), "hashes": known.hashes, "units": known.hashed_people}
    for kind in ("rows", "sums", "moments"):
        parts |= {f"{kind}.atoms": zeros, f"{kind}.levels": none, f"{kind}.unit_levels": none}
    file = io.BytesIO()
    np.savez(file, **parts)
    with site.state.transaction() as connection:
        connection.execute("INSERT INTO memory VALUES (?, ?)", (known.coding, file.getvalue()))
    assert site.release(known, everything(60)) == 60
    for first, last, allowed in ((0, 61, False), (20, 60, False), (0, 90, True)):
        again = site.known(PATIENTS, features[first:last], target[first:last], persons(range(first, last)))
        if allowed:
            site.release(again, everything(last - first))
        else:
            with pytest.raises(PolicyViolationError):
                site.release(again, everything(last - first))


@pytest.mark.parametrize(("first", "allowed"), [(21, True), (20, False), (5, False)])
def test_every_set_rests_on_enough_people(first, allowed, tmp_path):
    """One of two sets that is too small is enough to refuse both, and so is a set that differences leave."""
    features, target = rows(80)
    site = memory(tmp_path, parameters=10)
    two = {"sums": np.where(np.arange(80) < first, 0, 1)}
    whole = site.known(NUMBERS, features, target, None)
    later = memory(tmp_path / "later", parameters=10)
    later.release(later.known(NUMBERS, features, target, None), {"sums": np.zeros(80, int)})
    fewer = later.known(NUMBERS, features[first:], target[first:], None)
    without = {"sums": np.zeros(80 - first, int)}
    if allowed:
        assert site.release(whole, two) == first
        later.release(fewer, without)
        return
    with pytest.raises(PolicyViolationError, match="too few people in a set"):
        site.release(whole, two)
    with pytest.raises(PolicyViolationError, match="too few people in a set"):
        later.release(fewer, without)


def test_the_refusal_of_a_first_run_speaks_of_no_earlier_one(tmp_path):
    features, target = rows(8)
    site = memory(tmp_path, min_rows=10)
    with pytest.raises(PolicyViolationError, match=r"could be worked out; use fewer folds"):
        site.release(site.known(NUMBERS, features, target, None), everything(8))


@pytest.mark.parametrize(("people", "allowed"), [(20, False), (60, True)])
def test_many_rows_of_few_people_are_no_more_people(people, allowed, tmp_path):
    """What is the same in all rows of a person is told of as many as there are people, however many
    different rows they have."""
    site = memory(tmp_path, min_rows=10, parameters=12)
    base = np.random.default_rng(0).normal(size=(people, 2))
    whose = np.repeat(np.arange(people), 30)
    last = np.random.default_rng(1).normal(size=len(whose))
    known = site.known(PATIENTS, base[whose], last, persons(whose))
    if allowed:
        site.release(known, everything(len(whose)))
    else:
        with pytest.raises(PolicyViolationError, match="too few people in a set"):
            site.release(known, everything(len(whose)))
