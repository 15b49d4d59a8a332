"""How a certificate is shown and kept, on one that is written down by hand: no problem, no solver."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bidro.certify.certificate import Certificate, Shift
from bidro.certify.held_out import HeldOut, Paired
from bidro.certify.out_of_sample import Interval
from bidro.core.errors import BidroError


def held(bound=0.5, largest=2.0, clipped=False, mistakes=False, people=False, kind="betting"):
    clients, means = {"north": bound, "south": bound / 2}, {"north": 0.25, "south": 0.125}
    return HeldOut(
        bound, 0.9, clients, means, {"north": 1200, "south": 7}, 0.1, kind, largest, clipped, mistakes, people
    )


INTERVAL = Interval(
    upper=3.0,
    lower=-math.inf,
    probability=0.9,
    upper_probability=0.95,
    sampling=1.0,
    heterogeneity=0.5,
    paper_lower=-math.inf,
    radii=np.array([0.25, 0.75]),
    risks=np.array([3.0, 2.0]),
    alpha=np.array([1.0, 0.0]),
    lipschitz=2.0,
    delta=0.5,
    names=("north", "south"),
    promise="in words",
)
WHOLE = Certificate(
    0.9,
    ("north", "south"),
    (4000, 30),
    (0.2, 0.1),
    "any mixture",
    INTERVAL,
    held(1.5),
    held(0.5, 2.0, clipped=True),
    held(0.125, 1.0, mistakes=True, kind="clopper-pearson"),
    Shift(0.1, 0.75, "in words"),
    {},
    "no balls",
    (0.7, 0.3),
)


def shown(certificate):
    """The lines, each without the spaces around it and with single ones inside."""
    return [" ".join(line.split()) for line in str(certificate).splitlines()]


def test_every_statement_has_its_line():
    assert shown(WHOLE) == [
        "Certificate at confidence 0.9, for any mixture",
        "Wasserstein true loss in [-inf, 3] (sampling 1, heterogeneity 0.5)",
        "Held out true loss at most 1.5",
        "Clipped true loss at most 0.5, each counted as at most 2",
        "With shift clipped loss at most 0.75 under a shift of 0.1",
        "Mistakes at most 12.50% of predictions",
        "client fresh rows counted loss at most radius robust",
        "north 1,200 0.25 0.5 0.25 3 *",
        "south 7 0.125 0.25 0.75 2",
        "The clients' bounds have this confidence each by itself, not all together.",
        "* counts most in the mixture that training ended with",
        "Sampling error dominates: collect more rows at 'north'.",
    ]


def test_without_fresh_rows_the_losses_are_those_of_training():
    why = {name: f"no {name}." for name in ("interval", "held_out", "clipped", "shift")}
    bare = replace(
        WHOLE, interval=None, held_out=None, clipped=None, mistakes=None, shift=None, weights=None, absent=why
    )
    assert shown(bare) == [
        "Certificate at confidence 0.9, for any mixture",
        "Wasserstein absent: no interval.",
        "Held out absent: no held_out.",
        "Clipped absent: no clipped.",
        "With shift absent: no shift.",
        "client trained on training loss",
        "north 4,000 0.2",
        "south 30 0.1",
    ]
    again = Certificate.from_json(bare.to_json())
    assert (again.interval, again.held_out, again.clipped, again.mistakes, again.shift) == (None,) * 5
    assert (again.weights, dict(again.absent)) == (None, why)


@pytest.mark.parametrize("people", [False, True])
def test_a_bound_that_says_nothing_is_shown_as_too_few_draws(people):
    what = "people" if people else "rows"
    few = replace(
        WHOLE,
        held_out=held(1.99, people=people),
        clipped=held(1.99, clipped=True, people=people),
        mistakes=held(0.995, 1.0, mistakes=True, people=people),
    )
    lines = shown(few)
    for title in ("Held out", "Clipped", "Mistakes"):
        (line,) = [line for line in lines if line.startswith(title)]
        assert line.startswith(f"{title} too few {what} to promise anything: 'north' has 1,200, and")
    assert f"client fresh {what} counted loss at most radius robust" in lines
    # Of the clients, those whose own bounds say nothing.
    assert "north 1,200 0.25 too few 0.25 3 *" in lines
    assert "south 7 0.125 0.995 0.75 2" in lines


def test_who_counts_most_is_so_to_the_precision_of_the_solver():
    for weights, most in (
        ((0.5, 0.5 - 5e-7), ("north", "south")),
        ((0.5, 0.5 - 5e-6), ("north",)),
        ((0.5 - 5e-6, 0.5), ("south",)),
        (None, ()),
    ):
        assert replace(WHOLE, weights=weights).counts_most == most


ELSEWHERE = replace(
    WHOLE,
    rows=(),
    empirical=(),
    interval=None,
    shift=None,
    absent={"interval": "none.", "shift": "unknown."},
    balls="Not from here.",
    weights=None,
)


def test_a_model_that_was_not_trained_here():
    pair = Paired(-0.25, 0.9, {"north": -0.25, "south": -0.5}, {"north": -0.5, "south": -1.0},
                  {"north": 1200, "south": 7}, 2.0, True, False, False)  # fmt: skip
    assert WHOLE.trained
    assert not ELSEWHERE.trained
    lines = shown(replace(ELSEWHERE, against=pair))
    assert lines[4:] == [
        "With shift absent: unknown.",
        "Mistakes at most 12.50% of predictions",
        "Against lower at every client, each loss counted as at most 2, by at least 0.25; better is not "
        "shown: what losses have above 2 is not compared",
        "client fresh rows counted loss at most difference its bound",
        "north 1,200 0.25 0.5 -0.5 -0.25",
        "south 7 0.125 0.25 -1 -0.5",
        "The clients' bounds have this confidence each by itself, not all together.",
        "Not from here.",
    ]
    whole = shown(replace(ELSEWHERE, against=replace(pair, clipped=False)))
    assert whole[6] == "Against better at every client: the difference is at most -0.25"
    none = {"clipped": None, "absent": {**ELSEWHERE.absent, "clipped": "none.", "held_out": "none."}}
    assert shown(replace(ELSEWHERE, **none))[6] == "client fresh rows mean loss at most"
    assert shown(replace(ELSEWHERE, **none))[7] == "north 1,200 0.25 1.5"
    only = replace(ELSEWHERE, held_out=None, **none)
    assert shown(only)[6:8] == ["client fresh rows mistakes at most", "north 1,200 0.25 0.125"]
    kept = json.loads(replace(ELSEWHERE, against=pair).to_json())["against"]
    assert (kept["bound"], kept["vacuous"], kept["clients"]) == (-0.25, False, dict(pair.clients))
    again = Certificate.from_json(replace(ELSEWHERE, against=pair).to_json())
    assert again.against.means == {"north": -0.5, "south": -1.0}
    assert "against" not in json.loads(ELSEWHERE.to_json())


def test_long_names_are_cut_in_the_table_alone():
    long = "a hospital with a long name"
    why = dict.fromkeys(("held_out", "clipped", "interval"), "none.")
    fresh = {"held_out": None, "clipped": None, "mistakes": None}
    renamed = replace(WHOLE, names=(long, "south"), interval=None, absent=why, **fresh)
    assert f"  {long[:16]} " in str(renamed)
    assert long not in str(renamed)
    assert json.loads(renamed.to_json())["names"] == [long, "south"]


def test_what_is_kept_is_plain_json():
    """Infinite ends are null, as JSON has none; arrays are lists, and what is vacuous is said."""
    whole = replace(WHOLE, rows=(np.int64(4000), np.int64(30)), empirical=(np.float64(0.2), np.float64(0.1)))
    kept = json.loads(whole.to_json())
    assert (kept["format"], kept["version"]) == ("bidro certificate", 3)
    assert kept["rows"] == [4000, 30]
    assert kept["empirical"] == [0.2, 0.1]
    assert kept["interval"]["lower"] is kept["interval"]["paper_lower"] is None
    assert kept["interval"]["radii"] == [0.25, 0.75]
    assert kept["held_out"]["vacuous"] is False
    assert whole.to_json().endswith("}\n")
    again = Certificate.from_json(whole.to_json())
    assert (again.interval.lower, again.interval.paper_lower) == (-math.inf, -math.inf)
    assert (again.weights, again.rows, again.shift) == ((0.7, 0.3), (4000, 30), WHOLE.shift)
    assert again.to_json() == whole.to_json()
    bounded = replace(WHOLE, interval=replace(INTERVAL, lower=1.0, paper_lower=0.5))
    assert Certificate.from_json(bounded.to_json()).interval.lower == 1.0
    assert Certificate.from_json(bounded.to_json()).interval.paper_lower == 0.5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": "other"}, "no format"),
        ({"version": 1}, "of version 1"),
        ({"held_out": {**json.loads(WHOLE.to_json())["held_out"], "vacuous": True}}, "marked vacuous"),
        ({"clipped": {**json.loads(WHOLE.to_json())["clipped"], "bound": 1.99}}, "marked vacuous"),
        ({"names": ["north"]}, "damaged"),
        ({"names": ["north", "south", "west"]}, "damaged"),
        ({"rows": ["many", 3]}, "damaged"),
        ({"weights": 3}, "damaged"),
        ({"absent": []}, "damaged"),
        ({"confidence": None}, "damaged"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(change, word):
    content = {**json.loads(WHOLE.to_json()), **change}
    with pytest.raises(BidroError, match=word):
        Certificate.from_json(json.dumps(content))
