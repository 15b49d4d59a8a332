"""What may be asked of a fit, at the edge of every range."""

import math

import numpy as np
import pytest

from bidro.errors import BidroError
from bidro.guarantees import asked

NUMBERLESS = ("0.5", None, True, False, [0.5], 1j)


@pytest.mark.parametrize(
    ("check", "allowed", "not_allowed"),
    [
        (asked.check_confidence, (1e-9, 0.5, np.float32(0.9), 1 - 1e-12), (0, 0.0, 1, 1.0, -0.5, math.nan)),
        (asked.check_confidence, (), NUMBERLESS),
        (asked.check_shift, (None, 0, 0.0, 2.5, np.int64(3)), (-1e-9, math.inf, math.nan)),
        (asked.check_shift, (), ("0.1", True, [0.1])),
        (asked.check_criterion, ("risk", "regret"), ("Risk", None, 1)),
        (lambda metric: asked.check_metric(metric, 1.0), ("features", "joint"), ("other", None)),
        (lambda cost: asked.check_metric("joint", cost), (1e-9, 3, 1e9), (0, -1.0, math.inf, math.nan)),
        (lambda cost: asked.check_metric("joint", cost), (), NUMBERLESS),
        (lambda p: asked.check_metric("joint", 1.0, p), (None, 1, 1.5, 2.0), (0.999, math.inf, math.nan)),
        (lambda p: asked.check_metric("joint", 1.0, p), (), ("2", True, [2.0])),
        (asked.check_radius, ("cross-validate", "bootstrap", "explicit", 0, 0.5, [0.1, 0.0]), ("auto",)),
        (asked.check_radius, ({"a": 0.0, "b": 1.0},), ({"a": -1.0}, {"a": "x"}, [[0.1]], object())),
        (asked.check_radius, (), (-1e-9, math.inf, math.nan, [0.1, -0.1], [0.1, math.inf])),
        (asked.check_weights, ("auto", "simplex", "fixed", 1, 1.0, 7.5), ("cap", 0.999, math.inf, math.nan)),
        (asked.check_weights, (), (None, True, [2.0])),
    ],
)
def test_what_is_refused_and_what_is_not(check, allowed, not_allowed):
    for value in allowed:
        check(value)
    for value in not_allowed:
        with pytest.raises(BidroError):
            check(value)


def test_words_are_named_one_after_the_other():
    with pytest.raises(BidroError, match=r"must be 'features' or 'joint'; got 'x'"):
        asked.check_metric("x", 1.0)
    with pytest.raises(BidroError, match=r"a cap of at least 1, 'auto', 'simplex' or 'fixed'; got 'x'"):
        asked.check_weights("x")
