"""Means and second moments that a site tells, at the edge of every rule: by hand, and from rows."""

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.data.tables import Column, Schema
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.server.plausibility import ReportedMoments, Values, require_semidefinite
from bidro.risk.moments import left_out_sums, of_clients, of_folds
from tests.deploy.test_reported import SCHEMA, SUPPORT, UNITS, rows_of, told_of

NAMES = ("u", "w=b", "w=c", "v", "y")
MEAN = np.array([0.0, 0.5, 0.25, 1.0, 0.0])
DEVIATION = np.array([1.0, 0.5, np.sqrt(3) / 4, 1.0, 1.0])
PLAIN = Values(Agreement.of(SCHEMA, UNITS))
BOUNDED = Values(Agreement.of(SCHEMA, UNITS, SUPPORT))


def of_classes(count):
    schema = Schema("site", "y", tuple("abcd"[:count]), SCHEMA.columns)
    return Values(Agreement.of(schema, {name: UNITS[name] for name in ("u", "v")}))


def test_ends_and_two_values_of_columns():
    inf = np.inf
    assert PLAIN.names == NAMES
    assert PLAIN.column.tolist() == [-1, 1, 1, -1, -1]
    np.testing.assert_array_equal(PLAIN.ends, [[-inf, 0, 0, -inf, -inf], [inf, 1, 1, inf, inf]])
    np.testing.assert_array_equal(BOUNDED.ends, [[-50, 0, 0, -1e9, -200], [50, 1, 1, 1e9, 200]])
    assert PLAIN.two_values.tolist() == [False, True, True, False, False]
    for count, last, two in ((2, (-1, 1), True), (3, (0, 2), False), (4, (0, 3), False)):
        values = of_classes(count)
        assert (values.ends[0][-1], values.ends[1][-1]) == last
        assert values.two_values.tolist() == [False, True, True, False, two]


def told(place, mean, deviation, rows=40, values=BOUNDED):
    m, s = MEAN.copy(), DEVIATION.copy()
    m[place], s[place] = mean, deviation
    values.require(m, s, rows)


@pytest.mark.parametrize(
    ("place", "allowed", "not_allowed", "words"),
    [
        (
            3,
            ((1e60, 1.0), (-1e60, 1.0), (1.0, 1e60)),
            ((1.1e60, 1.0), (-1.1e60, 1.0), (1.0, 1.1e60)),
            "above 1e",
        ),
        (0, ((50 * (1 + 0.9e-9), 0.0), (-50 * (1 + 0.9e-9), 0.0)), ((50 * (1 + 1.1e-9), 0.0),), "outside"),
        (0, ((0.0, 50.0),), ((-50 * (1 + 1.1e-9), 0.0),), "outside"),
        (0, ((0.0, 0.0),), ((0.0, -1e-300),), "below 0"),
        # (50 - 40) (40 + 50) = 30^2, and a millionth of the width's square.
        (0, ((40.0, np.sqrt(900 + 0.9e-2)),), ((40.0, np.sqrt(900 + 1.2e-2)),), "agreed bounds allow"),
        # A tenth of 40 rows: p (1 - p) and nothing else, up to a millionth.
        (1, ((0.1, np.sqrt(0.09 + 0.9e-6)),), ((0.1, np.sqrt(0.09 - 1.1e-6)),), "two values"),
        (1, ((0.1, np.sqrt(0.09 - 0.9e-6)),), ((0.1, np.sqrt(0.09 + 1.1e-6)),), "agreed bounds allow"),
    ],
)
def test_columns_at_their_edges(place, allowed, not_allowed, words):
    values = PLAIN if place == 3 else BOUNDED
    for mean, deviation in allowed:
        told(place, mean, deviation, values=values)
    for mean, deviation in not_allowed:
        with pytest.raises(BidroError, match=words):
            told(place, mean, deviation, values=values)


def test_shares_are_of_whole_numbers_of_rows():
    for rows_with, refused in ((4 + 0.9e-3, False), (4 + 1.1e-3, True), (4 - 1.1e-3, True)):
        p = rows_with / 40
        if refused:
            with pytest.raises(BidroError, match="number of rows"):
                told(1, p, np.sqrt(p * (1 - p)))
        else:
            told(1, p, np.sqrt(p * (1 - p)))


def test_shares_of_very_many_rows_cannot_be_counted():
    for rows, words in ((1e6, "number of rows"), (1e6 + 1, None)):
        mean = 0.5 + 0.4 / rows
        if words is None:
            told(1, mean, 0.5, rows)
        else:
            with pytest.raises(BidroError, match=words):
                told(1, mean, 0.5, rows)


def test_one_row_has_no_deviation_but_for_rounding():
    at_u = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    for deviation, refused in ((0.0, False), (1e-9 * 100.0, False), (2e-9 * 100.0, True)):
        mean, s = 100.0 * at_u, deviation * at_u
        if refused:
            with pytest.raises(BidroError, match="'u' though it has one row"):
                PLAIN.require(mean, s, 1)
        else:
            PLAIN.require(mean, s, 1)
            PLAIN.require(mean, s, 2)


def test_both_levels_of_two_columns_are_had_by_whole_numbers_of_rows():
    """Shares of 1/2 and 1/4 of 40 rows; of two levels of one column no row has both."""
    two = Schema(
        "site", "y", None, (Column("u"), Column("w", ("a", "b")), Column("z", ("a", "b")), Column("v"))
    )
    baselines = Values(Agreement.of(two, UNITS))

    def shares(both, values=baselines, mean=MEAN):
        covariance = np.diag(mean * (1 - mean))
        covariance[1, 2] = covariance[2, 1] = both - mean[1] * mean[2]
        ReportedMoments(values, None, 40, MEAN, DEVIATION)._require_shares(mean, covariance, 40)

    for both in (0.0, 0.9e-6):
        shares(both, PLAIN)
    for both in (1.1e-6, -1.1e-6, 0.025):
        with pytest.raises(BidroError, match="'w=b' and 'w=c'"):
            shares(both, PLAIN)
    # Of two columns: any whole number of rows from none to a quarter of all.
    for both in (0.0, 0.1, 0.25, 0.1 + 0.9e-3 / 40, 0.25 + 0.9e-6):
        shares(both)
    for both in (0.275, -0.025, 0.1 + 1.1e-3 / 40, 0.25 + 1.1e-6):
        with pytest.raises(BidroError, match="'w=b' and 'z=b'"):
            shares(both)
    # Three quarters of all have the one and half have the other: a quarter or more has both.
    many = np.array([0.0, 0.75, 0.5, 1.0, 0.0])
    shares(0.25, mean=many)
    with pytest.raises(BidroError, match="'w=b' and 'z=b'"):
        shares(0.225, mean=many)


def test_second_moments_at_their_edges():
    """Without rounding: symmetric up to 1e-9, no correlation above 1, no eigenvalue below -1e-6."""
    none = np.zeros(2)
    scale = np.array([2.0, 5.0])

    def moments(correlation, other=None, slack=none, rows=40):
        matrix = np.array([[1.0, correlation], [correlation if other is None else other, 1.0]])
        require_semidefinite(matrix * scale[:, None] * scale, slack, rows)

    moments(0.5, 0.5 + 0.9e-9)
    moments(1 + 0.9e-9)
    moments(-1.0, rows=2)
    for words, how in (
        ("not symmetric", {"correlation": 0.5, "other": 0.5 + 1.1e-9}),
        ("larger than the deviations", {"correlation": 1 + 1.1e-9}),
        ("2 row", {"correlation": 0.5, "rows": 2}),
        ("1 row", {"correlation": 1.0, "rows": 1}),
    ):
        with pytest.raises(BidroError, match=words):
            moments(**how)
    # Rounding of a share s of each deviation: twice s of both, to first order.
    loose = 1e-4 * scale
    moments(1 + 3.9e-4, slack=loose)
    with pytest.raises(BidroError, match="larger than the deviations"):
        moments(1 + 4.1e-4, slack=loose)
    with pytest.raises(BidroError, match="not symmetric"):
        moments(0.5, 0.5 + 4.1e-4, slack=loose)
    # Three columns that vary against each other: eigenvalues 1 + 2 c and 1 - c.
    for c, refused in ((-0.5 - 0.4e-6, False), (-0.5 - 0.6e-6, True)):
        matrix = np.full((3, 3), c) + (1 - c) * np.eye(3)
        if refused:
            with pytest.raises(BidroError, match="not positive semidefinite"):
                require_semidefinite(matrix, np.zeros(3), 40)
        else:
            require_semidefinite(matrix, np.zeros(3), 40)
    with pytest.raises(BidroError, match="larger than the deviations"):
        require_semidefinite(np.diag([1.0, -1e-9]), none, 40)


def test_columns_that_rounding_hides_are_not_held_against_others():
    """Of two columns that vary by less than a thousand times their rounding nothing is concluded."""
    matrix = np.full((3, 3), -0.6) + 1.6 * np.eye(3)
    require_semidefinite(matrix, np.full(3, 1.1e-3), 40)
    with pytest.raises(BidroError, match="not positive semidefinite"):
        require_semidefinite(matrix, np.full(3, 0.9e-3), 40)


def test_what_is_told_again_is_what_was_told_when_the_run_began():
    rows = rows_of(np.random.default_rng(2), 40)
    moments, samples = told_of(rows)
    whole = of_clients(samples, [40])
    mean, around = whole.mean[0], whole.around[0]
    centre, spread = moments.units
    sizes = np.abs(moments.mean) + np.abs(centre) + moments.deviation
    digits = 100 * 64 * 2.0**-52
    slack = (1e-9 * (moments.deviation + np.abs(moments.mean - centre)) + digits * sizes) / spread
    exact = np.hypot(moments.mean - centre, moments.deviation) / spread
    np.testing.assert_allclose(moments.size - exact, slack, rtol=1e-3)
    for j in (0, 3):
        for off, refused in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
            changed = mean + off * slack[j] * (np.arange(5) == j)
            if refused:
                with pytest.raises(BidroError, match=f"'{NAMES[j]}' other than it told"):
                    moments.require_whole(changed, around)
            else:
                moments.require_whole(changed, around)
        deviation = np.sqrt(around[j, j])
        for off, refused in ((0.9e-6, False), (-0.9e-6, False), (1.2e-6, True), (-1.2e-6, True)):
            factor = 1 + off * (np.arange(5) == j)
            changed = around * factor[:, None] * factor
            assert abs(np.sqrt(changed[j, j]) - deviation) == pytest.approx(abs(off) * deviation, rel=1e-6)
            if refused:
                with pytest.raises(BidroError, match=f"'{NAMES[j]}' other than it told"):
                    moments.require_whole(mean, changed)
            else:
                moments.require_whole(mean, changed)


def test_bounds_that_are_narrow_beside_their_place_leave_room_for_rounding():
    """Between 10^9 and one more, where a billionth of a value is all of it."""
    narrow = Values(Agreement.of(SCHEMA, UNITS, {**SUPPORT, "u": (1e9, 1e9 + 1)}))
    for deviation in (0.0, 0.5, 0.9):
        told(0, 1e9 + 0.5, deviation, values=narrow)
    with pytest.raises(BidroError, match="agreed bounds allow"):
        told(0, 1e9 + 0.5, 1.2, values=narrow)


def test_eigenvalues_may_be_below_0_by_what_rounding_makes_of_all_columns():
    """Of three columns, each off by a share of 1e-4: four times three times that, and a millionth."""
    room = 1e-6 + 12e-4
    for factor, refused in ((0.95, False), (1.05, True)):
        c = -(1 + factor * room) / 2
        matrix = np.full((3, 3), c) + (1 - c) * np.eye(3)
        if refused:
            with pytest.raises(BidroError, match="not positive semidefinite"):
                require_semidefinite(matrix, np.full(3, 1e-4), 40)
        else:
            require_semidefinite(matrix, np.full(3, 1e-4), 40)


def test_moments_of_each_fold_are_looked_at_and_so_is_what_it_leaves_out():
    moments, samples = told_of(rows_of(np.random.default_rng(3), 60))
    found = of_folds(samples, [60], np.arange(60) % 3, 3)
    left = left_out_sums(found)
    moments.require_folds(found.mean[0], found.around[0], found.rows[0], left)
    for fold in range(3):
        around = found.around[0].copy()
        around[fold, 0, 3] += 0.1
        with pytest.raises(BidroError, match="not symmetric"):
            moments.require_folds(found.mean[0], around, found.rows[0], left)
