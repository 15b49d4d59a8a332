"""The basis of piecewise-linear curves, and where its knots are."""

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.data.splines import PLACES, Basis, common_knots, quantile_counts
from tests.curves.references import columns

KNOTS = ((-0.7, 0.0, 0.6), (), (0.5, 0.9))


def rows(n=50, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3))


def test_columns_are_how_far_a_value_has_come_through_each_segment():
    theta, basis = rows(), Basis(KNOTS)
    expected, owner = columns(theta, KNOTS)
    np.testing.assert_allclose(basis.expand(theta), expected, atol=1e-15)
    assert basis.feature.tolist() == owner
    assert basis.segments.tolist() == [4, 1, 3]
    # One feature's columns add up to it, so that equal slopes are a straight line.
    np.testing.assert_allclose(basis.contributions(theta, np.ones(8)), theta, atol=1e-15)


def test_a_straight_feature_is_its_own_column_to_the_bit():
    theta = rows()
    assert np.array_equal(Basis(((), (), ())).expand(theta), theta)


def test_curves_are_interpolated_between_knots_and_extended_beyond_them():
    slopes = np.array([2.0, -1.0, 0.5, 3.0])
    basis, v = Basis((KNOTS[0],)), np.linspace(-3, 3, 61)
    # np.interp through f at points that include every knot, from f(0) = 0.
    places = np.array([-3.0, -0.7, 0.0, 0.6, 3.0])
    values = np.array([0.7 - 2 * 2.3, 0.7, 0.0, 0.3, 0.3 + 3 * 2.4])
    found = basis.contributions(v[:, None], slopes)[:, 0]
    np.testing.assert_allclose(found, np.interp(v, places, values), atol=1e-12)


def test_the_largest_slope_of_every_feature():
    slopes = np.array([1.0, -4.0, 2.0, 0.5, -3.0, 0.1, 0.2, -0.3])
    assert Basis(KNOTS).steepest(slopes).tolist() == [4.0, 3.0, 0.3]
    assert Basis(KNOTS).steepest(np.stack([slopes, 2 * slopes])).tolist() == [[4, 3, 0.3], [8, 6, 0.6]]


def test_the_range_of_a_curve_over_an_interval():
    basis, slopes = Basis(KNOTS), np.random.default_rng(3).normal(size=8)
    lower, upper = np.array([-1.0, -0.5, 0.2]), np.array([0.3, 2.0, 0.6])
    fine = lower + np.linspace(0, 1, 20_001)[:, None] * (upper - lower)
    values = basis.contributions(fine, slopes)
    least, most = basis.ranges(slopes, lower, upper)
    np.testing.assert_allclose(least, values.min(axis=0), atol=1e-3)
    np.testing.assert_allclose(most, values.max(axis=0), atol=1e-3)
    assert np.all(least <= values.min(axis=0) + 1e-12)
    assert np.all(most >= values.max(axis=0) - 1e-12)


@pytest.mark.parametrize("most", [8, 4, 1])
def test_fewer_segments_are_equalities_between_neighbouring_slopes(most):
    values, counts = quantile_counts(rows(2000))
    basis = common_knots(values[None], counts[None], [16, 16, 5])
    coarse = basis.thinned(most)
    assert coarse.segments.max() <= most
    onto = basis.onto(coarse)
    slopes = np.random.default_rng(1).normal(size=coarse.columns)
    theta = 3 * rows(seed=2)
    np.testing.assert_allclose(coarse.expand(theta) @ slopes, basis.expand(theta) @ slopes[onto], atol=1e-12)
    merged = np.zeros((len(theta), coarse.columns))
    np.add.at(merged.T, onto, basis.expand(theta).T)
    np.testing.assert_allclose(merged, coarse.expand(theta), atol=1e-13)


def test_knots_are_quantiles_of_all_clients_rows_together():
    parts = [rows(3000, 1) - 1, rows(1000, 2) + 2]
    told = [quantile_counts(part) for part in parts]
    values, counts = (np.stack(part) for part in zip(*told, strict=True))
    basis = common_knots(values, counts, [16, 8, 1])
    assert basis.segments.tolist() == [16, 8, 1]
    pooled = np.concatenate(parts)[:, 0]
    below = np.array([np.mean(pooled <= knot) for knot in basis.knots[0]])
    np.testing.assert_allclose(below, np.arange(1, 16) / 16, atol=1.5 / PLACES)


def test_columns_of_few_values_have_fewer_segments():
    n = 300
    table = np.column_stack([np.zeros(n), np.arange(n) % 2, np.arange(n) % 3, np.maximum(rows(n)[:, 0], 0.5)])
    values, counts = quantile_counts(table)
    basis = common_knots(values[None], counts[None], [16] * 4)
    assert basis.knots[:3] == ((), (), (1.0,))
    # Most rows are at one value: what is left of the knots has enough rows on either side.
    inside = np.histogram(table[:, 3], [-np.inf, *basis.knots[3], np.inf])[0]
    assert inside.min() >= 20


def test_every_segment_holds_enough_rows():
    table = np.concatenate([np.zeros(100), np.arange(1, 31)])[:, None]
    values, counts = quantile_counts(table)
    assert common_knots(values[None], counts[None], [16], fewest_rows=20).segments[0] <= 2
    assert common_knots(values[None], counts[None], [16], fewest_rows=200).straight


def test_knots_that_are_none():
    with pytest.raises(BidroError, match="ascending"):
        Basis(((1.0, 1.0),))
    with pytest.raises(BidroError, match="finite"):
        Basis(((np.nan,),))
    with pytest.raises(BidroError, match="some of the knots"):
        Basis(((1.0, 2.0),)).onto(Basis(((1.5,),)))


def test_spreads_by_hand():
    """At the least value and at thirds of ten rows; four values at four places are told as they are."""
    column = np.arange(10.0)[::-1, None]
    values, counts = quantile_counts(column, 4)
    assert values.tolist() == [[0.0, 3.0, 6.0, 9.0]]
    assert counts.tolist() == [[1.0, 3.0, 3.0, 3.0]]
    few = np.array([5.0, 1.0, 1.0, 7.0, 2.0])[:, None]
    assert quantile_counts(few, 4)[0].tolist() == [[1.0, 2.0, 5.0, 7.0]]
    assert quantile_counts(few, 4)[1].tolist() == [[2.0, 1.0, 1.0, 1.0]]
    assert quantile_counts(few, 6)[0].tolist() == [[1.0, 2.0, 5.0, 7.0, 7.0, 7.0]]
    assert quantile_counts(few, 6)[1].tolist() == [[2.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    assert quantile_counts(np.arange(65.0)[:, None])[0].shape == (1, 64)


@pytest.mark.parametrize(
    ("rows_at", "most", "fewest", "knots"),
    [
        # A hundred values of one row each: quarters, if every segment may hold 25 rows, and no more.
        (dict.fromkeys(range(100), 1), 4, 20, (24, 49, 74)),
        (dict.fromkeys(range(100), 1), 4, 25, (24, 49, 74)),
        (dict.fromkeys(range(100), 1), 4, 26, (49,)),
        (dict.fromkeys(range(100), 1), 1, 20, ()),
        (dict.fromkeys(range(100), 1), 2, 20, (49,)),
        # Where there are few values each inner one is a knot; else those at the quantiles.
        ({0: 30, 1: 30, 2: 30, 3: 30}, 4, 20, (1, 2)),
        ({0: 30, 1: 30, 2: 30, 3: 30}, 3, 20, (1, 2)),
        ({0: 30, 1: 30, 2: 30, 3: 30}, 2, 20, (1,)),
        ({0: 30, 1: 30, 2: 30}, 2, 20, (1,)),
        ({0: 30, 1: 30}, 2, 20, ()),
        # Half of the rows at one end: that is no knot, nor is the other.
        ({0: 60, 1: 10, 2: 10, 3: 20, 4: 20}, 3, 20, (2,)),
        ({0: 20, 1: 20, 2: 10, 3: 10, 4: 60}, 3, 20, (1,)),
        ({0: 20, 1: 20, 2: 20, 3: 20}, 3, 20, (1, 2)),
        ({0: 20, 1: 19, 2: 20, 3: 20}, 3, 20, (1, 2)),
        ({0: 20, 1: 20, 2: 19, 3: 19, 4: 20}, 4, 20, (1, 3)),
    ],
)
def test_knots_by_hand(rows_at, most, fewest, knots):
    """A segment holds what lies above the knot before it and up to its own; places without rows are none."""
    values, counts = np.array([[*rows_at, 50.5]], float), np.array([[*rows_at.values(), 0]], float)
    found = common_knots(values[:, None], counts[:, None], [most], fewest).knots[0]
    assert found == knots
    # Of two clients, half of the rows each.
    both = np.repeat(values[:, None], 2, axis=0), np.repeat(counts[:, None] / 2, 2, axis=0)
    assert common_knots(*both, [most], fewest).knots[0] == knots


def test_twenty_rows_a_segment_are_enough_where_nothing_is_said():
    values = np.arange(3.0)[None, None]
    assert common_knots(values, np.array([[[10.0, 10.0, 20.0]]]), [2]).knots == ((1.0,),)
    assert common_knots(values, np.array([[[10.0, 10.0, 19.0]]]), [2]).straight
    assert common_knots(values, np.array([[[10.0, 9.0, 20.0]]]), [2]).straight


def test_differences_of_neighbouring_slopes():
    slopes = np.array([1.0, -4.0, 2.0, 0.5, -3.0, 0.1, 0.2, -0.3])
    basis = Basis(KNOTS)
    assert slopes @ basis.roughness @ slopes == pytest.approx(25 + 36 + 2.25 + 0.01 + 0.25)
    assert not Basis(((), ())).roughness.any()
    assert Basis(()).columns == 0
    assert Basis(((), ())).straight
    assert not basis.straight


def test_knots_in_other_units_and_every_second_of_them():
    basis = Basis(((1.0, 2.0), ()))
    assert basis.in_units(np.array([10.0, 5.0]), np.array([3.0, 2.0])).knots == ((13.0, 16.0), ())
    eight = Basis((tuple(map(float, range(1, 8))),))
    assert eight.thinned(8) == eight
    assert eight.thinned(7).knots == ((2.0, 4.0, 6.0),)
    assert eight.thinned(3).knots == ((4.0,),)
    assert eight.thinned(1).straight
    assert eight.onto(eight.thinned(4)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_rows_with_their_features_expanded_keep_the_target_last():
    table = np.array([[0.5, 2.0, 7.0], [-1.0, 3.0, 8.0]])
    found = Basis(((0.0,), ())).rows(table)
    assert found.tolist() == [[0.0, 0.5, 2.0, 7.0], [-1.0, 0.0, 3.0, 8.0]]
