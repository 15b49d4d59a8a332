"""What may be asked of a statement, at the edge of every range."""

import math

import numpy as np
import pytest

from bidro.certify.held_out import check_shift
from bidro.core.errors import BidroError, check_confidence

NUMBERLESS = ("0.5", None, True, False, [0.5], 1j)


@pytest.mark.parametrize(
    ("check", "allowed", "not_allowed"),
    [
        (check_confidence, (1e-9, 0.5, np.float32(0.9), 1 - 1e-12), (0, 0.0, 1, 1.0, -0.5, math.nan)),
        (check_confidence, (), NUMBERLESS),
        (check_shift, (None, 0, 0.0, 2.5, np.int64(3)), (-1e-9, math.inf, math.nan)),
        (check_shift, (), ("0.1", True, [0.1])),
    ],
)
def test_what_is_refused_and_what_is_not(check, allowed, not_allowed):
    for value in allowed:
        check(value)
    for value in not_allowed:
        with pytest.raises(BidroError):
            check(value)
