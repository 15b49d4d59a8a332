"""Which cases are left to `make test-slow`: by what was recorded of real runs, whatever has been renamed."""

from tests.durations import left_out, recorded, updated

FILE = "tests/test_durations.py"  # one that there is


def names(*cases, file=FILE):
    return [f"{file}::{case}" for case in cases]


def test_long_cases_are_left_out_and_unknown_and_stale_names_are_not():
    there = names("test_a[1]", "test_a[2]", "test_new")
    known = dict.fromkeys(names("test_a[2]", "test_gone"), 3.0)
    assert left_out(there, set(), known) == set(names("test_a[2]"))


def test_something_of_every_file_stays_the_shortest_that_is_known():
    there = names("test_a", "test_b", "test_c", "test_marked")
    known = dict(zip(there, (None, 2.0, 3.0), strict=False))
    assert left_out(there, set(names("test_marked")), known) == set(names("test_a", "test_c"))
    assert left_out(there, set(), known) == set(names("test_a", "test_b", "test_c"))


def test_a_recording_adds_what_is_long_and_like_another_that_stays():
    there = names("test_a[1]", "test_a[2]", "test_a[3]", "test_alone")
    took = dict(zip(there, (0.6, 0.9, 0.7, 5.0), strict=True))
    # Of three long cases the shortest stays, and so does a test that has one case.
    assert updated({}, there, took, took) == {there[1]: 0.9, there[2]: 0.7}


def test_a_recording_drops_what_is_short_with_its_fixtures_or_gone():
    there = names("test_a[1]", "test_a[2]", "test_a[3]", "test_a[4]")
    known = dict.fromkeys((*there, *names("test_gone"), *names("test_b", file="tests/test_gone.py")))
    calls = dict(zip(there, (0.1, 0.1, 0.3), strict=False))
    wholes = dict(zip(there, (0.1, 4.1, 0.3), strict=False))
    # The second needs a long fixture, the third is between both limits, the fourth was not run.
    assert updated(known, there, calls, wholes) == {there[1]: 4.1, there[2]: 0.3, there[3]: None}
    # Of a file that was not collected all stays.
    other = dict.fromkeys(names("test_x", file="tests/test_package.py"))
    assert updated(other, there, calls, wholes) == other


def test_the_file_is_read_as_it_is_written():
    assert all("::test_" in name and (s is None or s > 0) for name, s in recorded().items())
