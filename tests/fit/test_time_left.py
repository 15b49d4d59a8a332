"""About how long a stage will still take."""

import math

import pytest

from bidro.fit.time_left import TimeLeft, left_in_words


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_solving_is_timed_by_the_logarithm_of_the_gap(clock):
    time_left = TimeLeft(1e-6, clock)
    assert time_left.solving(math.inf) is None
    clock.now = 110
    assert time_left.solving(1e-2) is None  # the first gap: the way begins here
    clock.now = 111
    assert time_left.solving(1e-3) is None  # a quarter of the way, and too soon to say
    clock.now = 116
    assert time_left.solving(1e-5) == pytest.approx(6 / 3)  # three quarters in six seconds
    clock.now = 119
    assert time_left.solving(1e-7) == 0
    assert time_left.solving(0.0) is None


def test_choosing_is_timed_by_the_solves_that_go_on(clock):
    time_left = TimeLeft(1e-6, clock)
    assert time_left.choosing(40) is None
    clock.now = 105
    assert time_left.choosing(30) == pytest.approx(15)
    assert time_left.choosing(60) is None  # other solves have begun
    clock.now = 115
    assert time_left.choosing(15) == pytest.approx(10 / 3)
    time_left.begin()
    assert time_left.choosing(5) is None


def test_a_stage_that_nobody_announced_begins_by_itself(clock):
    time_left = TimeLeft(1e-6, clock)
    assert time_left.choosing(0) is None  # all was solved at once
    clock.now = 150
    assert time_left.solving(1e-2) is None
    clock.now = 154
    assert time_left.solving(1e-4) == pytest.approx(4)


def test_nothing_is_said_without_a_wanted_gap_or_a_share_of_the_way(clock):
    time_left = TimeLeft(0.0, clock)
    clock.now = 200
    assert time_left.solving(1e-3) is None
    assert time_left.at(0.01) is None
    assert time_left.at(0.5) == pytest.approx(100)


def test_words_for_what_is_left():
    assert [left_in_words(s) for s in (None, 0.4, 39.2, 61.0, 600.0)] == [
        "",
        "",
        ", about 40 s left",
        ", about 2 min left",
        ", about 10 min left",
    ]
