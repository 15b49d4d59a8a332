"""Two studies of the same people: what the sums of one have more than those of the other is the patient who
came between, or whose cell was corrected, unless the site knows its people again."""

import numpy as np
import pandas as pd
import pytest

from tests.deploy.hostile import Rebuilt, Server
from tests.deploy.sites import write_sites

pytestmark = pytest.mark.usefixtures("agreed_release")

SHARED = [f"x{j}" for j in range(6)]
SEEDS = range(3)
ALL_ROWS = {"hold_out": 0.0, "personal": "none"}
# The columns of a first study and of one that comes after it.
FIRST, OTHER = [*SHARED, "a", "y"], [*SHARED, "b", "y"]


def patients(seed, count=120, decimals=3):
    """People with two columns that name them and others in two studies."""
    rng = np.random.default_rng(seed)
    x = rng.normal(50, 10, (count, len(SHARED) + 2))
    y = x.mean(axis=1) + rng.normal(0, 5, count)
    names = [*SHARED, "a", "b", "y"]
    table = pd.DataFrame(np.column_stack([x, y]).round(decimals), columns=names)
    return table.assign(who=[f"p{i}" for i in range(count)], bed=[f"b{i}" for i in rng.permutation(count)])


def study(folder, table, columns, person):
    """What a server is told in a study of these columns: sums over all rows of the shared ones, the target
    and ones, in their own units, or None."""
    whole = table[[*columns, *([person] if person else [])]].assign(site="east")
    agreed = write_sites(folder, whole, person=person, training=ALL_ROWS)
    told = Server(folder, run=f"study-{len(table)}-{'-'.join(columns)}-{person}").over_all()
    if not told:
        return None
    units, names = agreed.standard, [*agreed.schema.features, "y"]
    turn = np.diag(np.concatenate([units.spread, [1.0, 1.0]]))
    turn[:-1, -1] = np.append(units.mean, units.middle)
    places = [*(names.index(name) for name in [*SHARED, "y"]), len(names)]
    return (turn @ told[0] @ turn.T)[np.ix_(places, places)]


def of_two_studies(before, after, patient):
    """How near the difference of two studies' sums comes to a patient."""
    if before is None or after is None:
        return Rebuilt(1, refused=("one of the studies was not answered",))
    more = after - before
    if round(more[-1, -1]) == 1:
        guess = more[-1, :-1]
    else:
        # A cell changed, which has changed the sums of products with the others by as many times these.
        changed = int(np.argmax(np.abs(more[-1, :-1])))
        step = more[changed, -1]
        guess = more[changed, :-1] / step
        guess[changed] = (more[changed, changed] / step + step) / 2
    truth, spread = patient[[*SHARED, "y"]].to_numpy(float), 10.0
    away = np.abs(guess - truth).max() / spread
    return Rebuilt(1, int(away < 1e-6), int(away < 0.1))


def in_all(found):
    """Of several tables together."""
    return Rebuilt(
        *(sum(getattr(one, name) for one in found) for name in ("rows", "exact", "near", "chance"))
    )


PERSON = pytest.mark.parametrize("person", [None, "who"], ids=["no people", "people"])


def sums(table):
    """Of shared columns, the target and ones, by plain NumPy."""
    numbers = table[[*SHARED, "y"]].assign(one=1.0).to_numpy(float)
    return numbers.T @ numbers


def test_the_difference_of_two_sums_is_the_patient():
    """Else nothing below would show anything."""
    people = patients(0)
    patient = people.iloc[-1]
    assert of_two_studies(sums(people[:-1]), sums(people), patient) == Rebuilt(1, 1, 1)
    assert of_two_studies(sums(people[:-1]), sums(people.round(1)), patient) == Rebuilt(1, 0, 1)
    assert of_two_studies(sums(people[:-1]), sums(people), people.iloc[0]).nobody
    corrected = people.copy()
    corrected.loc[7, "x2"] += 12.5
    assert of_two_studies(sums(people), sums(corrected), corrected.iloc[7]) == Rebuilt(1, 1, 1)


@PERSON
def test_a_patient_who_came_before_a_study_of_other_columns(person, tmp_path):
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people[:-1], FIRST, person)
        assert before is not None
        after = study(folder, people, OTHER, person)
        found.append(of_two_studies(before, after, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


@PERSON
def test_a_patient_who_came_before_a_table_was_written_with_fewer_decimals(person, tmp_path):
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people[:-1], FIRST, person)
        assert before is not None
        after = study(folder, people.round(1), FIRST, person)
        found.append(of_two_studies(before, after, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


@PERSON
def test_a_cell_that_was_corrected_before_a_study_of_other_columns(person, tmp_path):
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people, FIRST, person)
        assert before is not None
        corrected = people.copy()
        corrected.loc[7, "x2"] += 12.5
        after = study(folder, corrected, OTHER, person)
        found.append(of_two_studies(before, after, corrected.iloc[7]))
    assert in_all(found).nobody, in_all(found)


@pytest.mark.parametrize(("first", "second"), [("who", "bed"), ("who", None), (None, "who")])
def test_a_patient_who_came_before_a_study_by_another_column_of_people(first, second, tmp_path):
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people[:-1], FIRST, first)
        assert before is not None
        after = study(folder, people, FIRST, second)
        found.append(of_two_studies(before, after, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


def test_a_patient_whose_name_turns_the_others_from_numbers_to_words(tmp_path):
    """A reader of files makes 7 of 0007 as long as all cells are numbers."""
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        people["who"] = [f"{place:04d}" for place in range(119)] + ["x1"]
        before = study(folder, people[:-1], FIRST, "who")
        assert before is not None
        after = study(folder, people, FIRST, "who")
        found.append(of_two_studies(before, after, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


def test_a_patient_who_does_not_come_again_with_the_others(tmp_path):
    """Later visits of all but one: what does not change between visits is told of that one."""
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people, FIRST, "who")
        assert before is not None
        later = people.assign(a=people["a"] + np.random.default_rng(seed).normal(0, 1, len(people)).round(3))
        after = study(folder, pd.concat([people, later[:-1]]), FIRST, "who")
        later = None if after is None else 2 * before - after
        found.append(of_two_studies(np.zeros_like(before), later, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


@pytest.mark.parametrize("person", [None, "who"])
def test_a_cell_that_was_corrected_when_everybody_was_a_year_older(person, tmp_path):
    """Without people, after half of the table was taken out, so that no row goes when others come."""
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people, FIRST, person)
        assert before is not None
        again = people.index >= (60 if person is None else 0)
        if person is None:
            assert study(folder, people[~again], FIRST, person) is not None
        corrected = people.copy()
        corrected.loc[again, "a"] += 1.0
        corrected.loc[107, "x2"] += 12.5
        after = study(folder, corrected, FIRST, person)
        found.append(of_two_studies(before, after, corrected.iloc[107]))
    assert in_all(found).nobody, in_all(found)
