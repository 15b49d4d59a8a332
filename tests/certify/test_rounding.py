"""How finely means, bounds and errors are reported, by hand."""

import numpy as np
import pytest

from bidro.certify.held_out import ClientBound
from bidro.certify.rounding import EXACT, QUANTISED, among_people, nearest, step, upwards


def test_steps_are_a_quarter_of_what_the_largest_adds_to_a_mean():
    """Largest 5, which counts as 8, of 4 draws; largest 4, a power of two itself, of 2; all 0."""
    assert step(np.array([1.0, -5.0, 2.0, 0.5]), 4) == 8 / 16
    assert step(np.array([4.0, 3.0]), 2) == 4 / 8
    assert step(np.array([0.0]), 1) == 1.0


def test_means_are_told_as_the_nearest_step_and_bounds_as_the_next():
    values, steps = [1.2, 1.3, -0.2, 0.0], [0.5, 0.5, 0.5, 1.0]
    np.testing.assert_array_equal(list(map(nearest, values, steps)), [1.0, 1.5, 0.0, 0.0])
    np.testing.assert_array_equal(list(map(upwards, values, steps)), [1.5, 1.5, 0.0, 0.0])


def test_few_digits_by_hand():
    """16/16 to 31/16, times a power of two: lengths of moves towards 0, standard errors upwards."""
    values = np.array([0.0, 1.0, 1.124, 1.126, 3.9, -0.55, 1e-300])
    np.testing.assert_array_equal(QUANTISED.moves(values)[:6], [0.0, 1.0, 1.0, 1.125, 3.75, -0.5])
    assert QUANTISED.moves(values)[6] == pytest.approx(1e-300, rel=1 / 8)
    np.testing.assert_array_equal(QUANTISED.error(values)[:5], [0.0, 1.0, 1.125, 1.25, 4.0])


def test_no_mean_is_told_as_nothing():
    """The largest is at most n times the mean, so that a step is at most half the mean."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        values = rng.exponential(size=n) ** 8
        width = step(values, n)
        assert width <= values.mean() / 2
        assert abs(nearest(values.mean(), width) / values.mean() - 1) <= 1 / 4


def test_means_of_the_same_rows_are_told_by_how_they_differ():
    """Means 1.03 and 1.12: the first, of losses up to 2, to 1/8 with 4 draws; what is above it to 1/32."""
    first = np.array([2.0, 1.0, 0.62, 0.5])
    second = first + np.array([0.4, -0.2, 0.1, 0.06])
    np.testing.assert_allclose(QUANTISED.means([second, first], 4), [1.0 + 3 / 32, 1.0])
    np.testing.assert_allclose(QUANTISED.means([first, second], 4), [1.0, 1.0 + 3 / 32])


def test_a_bound_rises_with_its_mean_and_to_its_step_and_counts_no_more_than_anything_does():
    """Losses up to 2 of 4 draws: steps of 1/8. A mean of 1.03 told as 1.125 adds 0.095 to a bound of 1.5."""
    losses, found = np.array([2.0, 1.0, 0.62, 0.5]), [ClientBound(1.5, 1.03, 4), ClientBound(1.99, 1.03, 4)]
    assert QUANTISED.bounds(found, losses, 4, 2.0, 1.125) == [
        ClientBound(1.625, 1.125, 4),
        ClientBound(2.0, 1.125, 4),
    ]
    assert QUANTISED.bounds(found[:1], losses, 4, 2.0, None) == [ClientBound(1.5, 1.0, 4)]


def test_a_score_leaves_as_one_that_may_be_that_of_many():
    """1.3 is 11/8 at four digits, as is 1.26; 3/2 at three, with 1.4 and 1.45, which is of 1.26's person, and
    at two, with 1.01; 2 at one."""
    scores = np.array([1.3, 1.4, 1.26, 1.45, 1.9, 1.01, 0.4])
    draws = np.array([0, 1, 2, 2, 3, 4, 5])
    told = [among_people(1.3, scores, draws, least) for least in range(1, 7)]
    assert told == [1.375, 1.375, 1.5, 1.5, 2.0, 2.0]
    assert among_people(0.0, np.zeros(4), np.arange(4), 4) == 0.0
    assert among_people(9.0, np.append(np.ones(20), 9.0), np.arange(21), 5) == 16.0


def test_no_score_that_leaves_is_below_the_one_it_stands_for_or_twice_it():
    rng = np.random.default_rng(1)
    for _ in range(300):
        scores, draws = rng.exponential(size=40) ** 2, rng.integers(0, 30, 40)
        bound = float(rng.choice(scores))
        told = among_people(bound, scores, draws, 5)
        assert bound <= told <= 2 * bound
        if np.log2(told) % 1:
            places = [np.ldexp(k, e) for e in range(-40, 10) for k in range(8, 17)]
            before = max(place for place in [0.0, *places] if place < told)
            # At four digits, or fewer: in what lies between two such places there are five people.
            coarser = [before, *(told - 2.0**e for e in range(-30, 10) if told % 2.0**e == 0)]
            assert any(
                len(np.unique(draws[(scores > low) & (scores <= told)])) >= 5 and low < bound
                for low in coarser
            )


def test_exact_numbers_are_as_they_are():
    losses, found = np.array([2.0, 1.0]), [ClientBound(1.9, 1.5, 2, 1.5)]
    assert EXACT.means([losses, 2 * losses], 2).tolist() == [1.5, 3.0]
    assert EXACT.bounds(found, losses, 2, 2.0, 1.0) == found
    assert EXACT.error(losses) is losses
    assert EXACT.moves(losses) is losses
