"""Fits and messages are as they were recorded (`python -m tests.golden --record` records them anew)."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden.fits import FITS
from tests.golden.messages import EXCHANGES

# Relative to the largest number of its kind.
SAME_FIT, SAME_MESSAGE = 1e-8, 1e-9
# Of these, the last bits of sums, in which processors differ, decide where within the gap a solve ends.
FITS_WITHIN_THE_GAP = {
    "absolute, a radius",
    "pinball, radius cross-validated",
    "softmax, three classes",
    "softmax, four classes, a radius",
    "solve: hinge by gradients",
}
MESSAGES_WITHIN_THE_GAP = {"absolute, a radius", "softmax, a radius"}
WITHIN_THE_GAP = 1e-4
HERE = Path(__file__).parent


def recorded(kind):
    return json.loads((HERE / f"{kind}.json").read_text())


def given(found):
    assert "error" not in found, found["error"]
    return found


def numbers(values):
    """An array; infinities are words."""
    return np.asarray(values, float)


def kind(what):
    """Coefficients, curves and offsets of all clients are one kind."""
    return what.split(" of ")[0]


def largest(parts):
    """By its kind, the largest size of a number in (kind, numbers)."""
    found = {}
    for what, value in parts:
        sizes = np.abs(numbers(value))
        found[what] = max(found.get(what, 0.0), np.max(sizes[np.isfinite(sizes)], initial=0.0))
    return found


def require_same(name, now, before, within):
    np.testing.assert_allclose(numbers(now), numbers(before), rtol=0, atol=within, strict=True, err_msg=name)


def test_what_is_recorded_is_what_is_made():
    assert set(recorded("fits")) == set(FITS)
    assert set(recorded("messages")) == set(EXCHANGES)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_as_it_was(name, found):
    now, before = given(found["fits"][name]), recorded("fits")[name]
    assert now["chosen"] == before["chosen"]
    assert set(now["numbers"]) == set(before["numbers"])
    within = WITHIN_THE_GAP if name in FITS_WITHIN_THE_GAP else SAME_FIT
    # A curve that is nearly flat is compared by the size of the others.
    scales = largest((kind(what), value) for what, value in before["numbers"].items())
    for what, value in before["numbers"].items():
        require_same(what, now["numbers"][what], value, within * scales[kind(what)])


@pytest.mark.parametrize("name", EXCHANGES)
def test_messages_are_as_they_were(name, found):
    now, before = given(found["messages"][name]), recorded("messages")[name]
    assert [one["to"] for one in now["said"]] == [one["to"] for one in before["said"]]
    assert now["files"] == before["files"]
    for i, (one, other) in enumerate(zip(now["said"], before["said"], strict=True)):
        for way in ("request", "reply"):
            for part in ("header", "arrays", "after"):
                assert one[way][part] == other[way][part], f"{way} {i + 1}"
            assert set(one[way]["numbers"]) == set(other[way]["numbers"])
    within = WITHIN_THE_GAP if name in MESSAGES_WITHIN_THE_GAP else SAME_MESSAGE
    # What is nearly 0 in one message, such as a last gradient, is compared by its size in the others.
    scales = largest(((way, what), value) for _, way, what, value in each_array(before))
    for i, way, what, value in each_array(before):
        there = now["said"][i][way]["numbers"][what]
        require_same(f"{what} of {way} {i + 1}", there, value, within * scales[way, what])
    for what in ("model", "weights"):
        if what in before:
            require_same(what, now[what], before[what], max(within, SAME_FIT) * np.max(np.abs(before[what])))


def each_array(exchange):
    """(place, way, name, numbers) of all arrays in messages."""
    for i, one in enumerate(exchange["said"]):
        for way in ("request", "reply"):
            for what, value in one[way]["numbers"].items():
                yield i, way, what, value
