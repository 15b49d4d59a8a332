"""The basis of piecewise-linear curves, and where its knots are."""

import numpy as np
import pytest

from bidro.curves import PLACES, Basis, common_knots, spread_over
from bidro.errors import BidroError
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
    assert basis.slopes_at(np.array([[-0.7], [0.1]]), slopes, right=True)[:, 0].tolist() == [-1.0, 0.5]
    assert basis.slopes_at(np.array([[-0.7], [0.1]]), slopes, right=False)[:, 0].tolist() == [2.0, 0.5]


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
    values, counts = spread_over(rows(2000))
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
    told = [spread_over(part) for part in parts]
    values, counts = (np.stack(part) for part in zip(*told, strict=True))
    basis = common_knots(values, counts, [16, 8, 1])
    assert basis.segments.tolist() == [16, 8, 1]
    pooled = np.concatenate(parts)[:, 0]
    below = np.array([np.mean(pooled <= knot) for knot in basis.knots[0]])
    np.testing.assert_allclose(below, np.arange(1, 16) / 16, atol=1.5 / PLACES)


def test_columns_of_few_values_have_fewer_segments():
    n = 300
    table = np.column_stack([np.zeros(n), np.arange(n) % 2, np.arange(n) % 3, np.maximum(rows(n)[:, 0], 0.5)])
    values, counts = spread_over(table)
    basis = common_knots(values[None], counts[None], [16] * 4)
    assert basis.knots[:3] == ((), (), (1.0,))
    # Most rows are at one value: what is left of the knots has enough rows on either side.
    inside = np.histogram(table[:, 3], [-np.inf, *basis.knots[3], np.inf])[0]
    assert inside.min() >= 20


def test_every_segment_holds_enough_rows():
    table = np.concatenate([np.zeros(100), np.arange(1, 31)])[:, None]
    values, counts = spread_over(table)
    assert common_knots(values[None], counts[None], [16], fewest_rows=20).segments[0] <= 2
    assert common_knots(values[None], counts[None], [16], fewest_rows=200).straight


def test_knots_that_are_none():
    with pytest.raises(BidroError, match="ascending"):
        Basis(((1.0, 1.0),))
    with pytest.raises(BidroError, match="finite"):
        Basis(((np.nan,),))
    with pytest.raises(BidroError, match="some of the knots"):
        Basis(((1.0, 2.0),)).onto(Basis(((1.5,),)))
