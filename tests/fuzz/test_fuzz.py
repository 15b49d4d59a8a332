"""About a minute of the fuzzer: cases of few sizes and families, since compiling takes most of the time."""

import pytest

from tests.fuzz.checks import check
from tests.fuzz.problems import CASES_A_GROUP, case_of, family_of

# Every loss, method, ambiguity and order; most of them in closed form, which compiles fast.
GROUPS = (56, 40, 48, 12, 18, 27, 53, 46, 63, 65, 10, 68)
WITH_DISTRIBUTIONS = (56, 27, 10)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g}-{family_of(g, quick=True).loss}")
def test_what_is_stated_of_random_problems_is_true(group):
    for number in range(CASES_A_GROUP * group, CASES_A_GROUP * (group + 1)):
        found = check(case_of(number, quick=True), distributions=group in WITH_DISTRIBUTIONS)
        assert not found.failures, f"python -m tests.fuzz --quick --case {number}: {found.failures}"
