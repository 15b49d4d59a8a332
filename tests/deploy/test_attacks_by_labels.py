"""Between two runs one patient joins, and the others seem to have gone: people have other labels, all or some
of them; or one cell of theirs changes in a digit by which nobody looks. What the sums differ by is a row."""

import numpy as np
import pandas as pd
import pytest

from tests.deploy.test_attacks_between_studies import (
    FIRST,
    OTHER,
    SEEDS,
    SHARED,
    in_all,
    of_two_studies,
    patients,
    study,
)

pytestmark = pytest.mark.usefixtures("agreed_release")
# What becomes of labels p0, p1, ... when a register is moved, or pseudonyms are drawn anew.
LABELS = {
    "drawn anew": lambda who: [f"q{7919 * i % 10007}" for i in range(len(who))],
    "in capitals": lambda who: [label.upper() for label in who],
    "with blanks": lambda who: [f" {label} " for label in who],
    "some of them": lambda who: [label if i % 3 else f"q{i}" for i, label in enumerate(who)],
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("columns", [FIRST, OTHER], ids=["the same study", "another study"])
def test_a_patient_who_came_when_labels_changed(labels, columns, tmp_path):
    if (labels, columns) == ("some of them", OTHER):
        pytest.skip("labels are the owner's word: docs/threats.md says so")
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people[:-1], FIRST, "who")
        assert before is not None
        after = study(folder, people.assign(who=LABELS[labels](people["who"])), columns, "who")
        found.append(of_two_studies(before, after, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


def test_a_patient_beside_copies_of_all_others_under_other_labels(tmp_path):
    """Sums over everybody twice, less those over everybody, are those of the one who is there once."""
    found = []
    for seed in SEEDS:
        people, folder = patients(seed), tmp_path / str(seed)
        folder.mkdir()
        before = study(folder, people[:-1], FIRST, "who")
        assert before is not None
        again = people[:-1].assign(who=[f"q{i}" for i in range(len(people) - 1)])
        after = study(folder, pd.concat([people, again]), FIRST, "who")
        more = None if after is None else after - before
        found.append(of_two_studies(before, more, people.iloc[-1]))
    assert in_all(found).nobody, in_all(found)


@pytest.mark.parametrize("person", [None, "who"], ids=["no people", "people"])
@pytest.mark.parametrize("change", [1e-9, 1e-10, 1e-12, 1e-14])
def test_a_cell_whose_last_digit_changes(change, person, tmp_path):
    """What changes in the sums is its change times its row: sums are of the digits of the memory."""
    people = patients(0)
    people.loc[7, "x2"] += 0.0001234567
    before = study(tmp_path, people, FIRST, person)
    changed = people.copy()
    changed.loc[7, "x2"] *= 1 + change
    assert changed.loc[7, "x2"] != people.loc[7, "x2"]
    after = study(tmp_path, changed, FIRST, person)
    assert before is not None
    if after is not None:
        more = after - before
        # Either nothing, or sums without that person and others.
        assert np.all(more == 0) or more[-1, -1] <= -10
        with np.errstate(all="ignore"):
            row = more[SHARED.index("x2")] / more[SHARED.index("x2"), -1]
        assert not np.all(np.abs(row[:2] - changed.loc[7, SHARED[:2]].to_numpy(float)) < 1.0)
