"""Tables of times to an event: which periods count for whom, whose rows they are, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Schema, learn_survival
from bidro.data.tables.schema import Column
from bidro.data.tables.survival import OUTCOMES, ROW, Grid, Observed, Survival, event_words

ENDS = (30.0, 90.0, 180.0)


def people(count=200, seed=0, ties=False, late=False):
    rng = np.random.default_rng(seed)
    time = rng.exponential(100, count)
    time = np.ceil(time / 30) * 30 if ties else time.round(1) + 0.1
    entry = np.where(rng.random(count) < 0.4, (time * rng.random(count) * 0.9).round(1), 0.0)
    return Observed(time, rng.random(count) < 0.6, entry if late else np.zeros(count))


def table(count=120, seed=0):
    rng, seen = np.random.default_rng(seed), people(count, seed)
    return pd.DataFrame(
        {
            "hospital": rng.choice(["north", "south"], count),
            "age": rng.integers(30, 90, count),
            "sex": rng.choice(["f", "m"], count),
            "days": seen.time,
            "died": seen.event.astype(int),
        }
    )


def learned(whole, event="died", **more):
    return learn_survival(whole, "hospital", event, "days", ENDS, **more)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_periods_are_those_that_the_rule_says_of_each_person(ties, late):
    seen, expected = people(ties=ties, late=late), []
    for i in range(len(seen.time)):
        begin = 0.0
        for j, end in enumerate(ENDS):
            middle, time = (begin + end) / 2, seen.time[i]
            here = bool(seen.event[i]) and begin < time <= end
            survived = time > end or (not seen.event[i] and time >= middle)
            if seen.entry[i] <= middle and (here or survived):
                expected.append((i, j, here))
            begin = end
    found = Grid(ENDS).periods(seen)
    assert list(zip(found.person, found.period, found.happened, strict=True)) == expected


def test_an_event_at_time_0_is_in_the_first_period_and_who_is_censored_there_says_nothing():
    found = Grid(ENDS).periods(Observed(np.zeros(2), np.array([True, False]), np.zeros(2)))
    assert [part.tolist() for part in found] == [[0], [0], [True]]


def test_with_times_at_the_ends_the_product_of_hazards_is_the_curve_of_kaplan_and_meier():
    rng = np.random.default_rng(3)
    time, event = rng.choice([*ENDS, 400.0], 300), rng.random(300) < 0.5
    found = Grid(ENDS).periods(Observed(time, event, np.zeros(300)))
    hazards = [found.happened[found.period == j].mean() for j in range(3)]
    known = [1 - (event & (time == end)).sum() / (time >= end).sum() for end in ENDS]
    np.testing.assert_allclose(np.cumprod(1 - np.array(hazards)), np.cumprod(known))


def test_a_row_is_a_person_by_what_is_in_it_alone():
    whole = table()
    # Two rows that say the same are two people.
    whole = pd.concat([whole, whole.iloc[:3]], ignore_index=True)
    schema = learned(whole)
    laid = schema.laid_out(whole)
    assert schema.person == ROW
    seen = schema.survival.observed(whole, "died")
    watched = len(set(schema.survival.grid.periods(seen).person.tolist()))
    assert laid.groupby("hospital")[ROW].nunique().sum() == watched
    order = np.random.default_rng(1).permutation(len(whole))
    other = schema.laid_out(whole.iloc[order].reset_index(drop=True))
    columns = ["hospital", ROW, "days", "age", "sex", "died"]
    both = [one[columns].astype(str).sort_values(columns).to_numpy() for one in (laid, other)]
    assert (both[0] == both[1]).all()
    # A hospital by itself names its people as all together do.
    north = schema.laid_out(whole[whole.hospital == "north"].drop(columns="hospital"))
    assert set(north[ROW]) == set(laid.loc[laid.hospital == "north", ROW])
    # What is laid out already stays as it is.
    assert schema.laid_out(laid) is laid


def test_the_schema_has_the_periods_and_is_written_whole():
    whole = table()
    schema = learned(whole)
    assert schema.classes == OUTCOMES
    assert schema.columns[0] == Column("days", ("0 to 30", "30 to 90", "90 to 180"))
    assert schema.features == ("days=30 to 90", "days=90 to 180", "age", "sex=m")
    assert Schema.from_dict(schema.to_dict()) == schema
    numbers = schema.matrix(schema.laid_out(whole))
    assert numbers[:, :2].sum(axis=1).max() == 1
    with pytest.raises(BidroError, match="The levels of 'days' are the periods of the grid"):
        Schema("hospital", "died", OUTCOMES, (Column("days", ("a", "b")),), ROW, None, schema.survival)


@pytest.mark.parametrize(
    ("cells", "named", "found"),
    [
        ([0, 1, 1], None, ("1", ("0",))),
        ([1, 2, 2], None, ("2", ("1",))),
        (["Yes", "No"], None, ("yes", ("no",))),
        ([True, False], None, ("true", ("false",))),
        (["alive", "dead"], None, ("dead", ("alive",))),
        (["yes", "yes"], None, ("yes", ("no",))),
        ([0, 1, 2], "2", ("2", ("0", "1"))),
        ([0.0, 1.0, 2.0], "2", ("2", ("0", "1"))),
        ([1, 1], "1", ("1", ())),
    ],
)
def test_what_the_event_is_called(cells, named, found):
    assert event_words(pd.Series(cells, name="died"), named) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"died": 0}, "the event happened to nobody"),
        ({"died": 1}, "'died' is 1; say which of them is the event: --event died=1"),
        ({"died": [0, 1, 2] * 40}, "say which of them is the event: --event died=2"),
        ({"died": [None, *[0, 1] * 59, 0]}, "Row 1 below the header has no 'died' .1 in all."),
        ({"days": [-1.0, *[50.0] * 118, 60.0]}, "Row 1 below the header: 'days' is -1; times count from 0"),
        ({"days": [20.0, *[50.0] * 119]}, "Nobody is watched in the period 90 to 180 of 'days'"),
        ({"days": [None, *[50.0] * 119]}, "missing values: 1 in 'days'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(change, words):
    with pytest.raises(BidroError, match=words):
        learned(table().assign(**change))


def test_late_entry_must_be_before_the_time():
    whole = table()
    assert learned(whole.assign(since=whole.days / 2), entry="since").survival.entry == "since"
    with pytest.raises(BidroError, match=r"Row 1 below the header: 'since' is .*, not before 'days'"):
        learned(whole.assign(since=whole.days), entry="since")


def test_a_column_has_one_role_and_a_grid_rises():
    with pytest.raises(BidroError, match="'days' is of the time to the event; it is named for another use"):
        learned(table(), drop=("days",))
    with pytest.raises(BidroError, match="The table has no column 'gone'"):
        learned(table(), event="gone")
    with pytest.raises(BidroError, match="rising numbers above 0 such as 30,90,180,365; got 90,30"):
        Grid((90.0, 30.0))
    with pytest.raises(BidroError, match=r"\[survival\] names the column of times"):
        Survival.from_dict({"time": "days", "grid": ["a"]})


def test_what_periods_do_not_tell_is_said(caplog):
    whole = table()
    learned(whole.assign(days=np.where(whole.index < 5, 5.0, np.where(whole.index < 9, 500.0, whole.days))))
    assert "happened after 180, the end of the grid, in" in caplog.text
    assert "row(s) say nothing, as they were watched for less than half of a period" in caplog.text
