"""About a minute of the fuzzer: a fixed run of cases with few sizes, so that few programs are compiled."""

import pytest

from tests.fuzz.checks import check
from tests.fuzz.problems import CASES_A_GROUP, case_of

GROUPS = 16


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_is_stated_of_random_problems_is_true(group):
    for number in range(CASES_A_GROUP * group, CASES_A_GROUP * group + 4):
        found = check(case_of(number, quick=True), distributions=group % 4 == 0)
        assert not found.failures, f"python -m tests.fuzz --quick --case {number}: {found.failures}"
