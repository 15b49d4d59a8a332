"""How finely means, bounds and errors are told, by hand."""

import numpy as np
import pytest

from bidro.fitting import coarse


def test_steps_are_a_quarter_of_what_the_largest_adds_to_a_mean():
    """Largest 5, which counts as 8, of 4 draws; largest 4, a power of two itself, of 2; all 0."""
    values = np.array([1.0, -5.0, 2.0, 0.5, 4.0, 3.0, 0.0])
    found = coarse.steps(values, np.array([4, 2, 1]), np.array([4.0, 2.0, 1.0]))
    np.testing.assert_array_equal(found, [8 / 16, 4 / 8, 1.0])


def test_means_are_told_as_the_nearest_step_and_bounds_as_the_next():
    values, steps = np.array([1.2, 1.3, -0.2, 0.0]), np.array([0.5, 0.5, 0.5, 1.0])
    np.testing.assert_array_equal(coarse.nearest(values, steps), [1.0, 1.5, 0.0, 0.0])
    np.testing.assert_array_equal(coarse.upwards(values, steps), [1.5, 1.5, 0.0, 0.0])


def test_few_digits_by_hand():
    """16/16 to 31/16, times a power of two."""
    values = np.array([0.0, 1.0, 1.124, 1.126, 3.9, -0.55, 1e-300])
    np.testing.assert_array_equal(coarse.few_digits(values)[:6], [0.0, 1.0, 1.0, 1.125, 3.75, -0.5])
    assert coarse.few_digits(values)[6] == pytest.approx(1e-300, rel=1 / 8)


def test_no_mean_is_told_as_nothing():
    """The largest is at most n times the mean, so that a step is at most half the mean."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 30):
        values = rng.exponential(size=n) ** 8
        step = coarse.steps(values, np.array([n]), np.array([float(n)]))[0]
        assert step <= values.mean() / 2
        assert abs(coarse.nearest(values.mean(), step) / values.mean() - 1) <= 1 / 4


def test_means_of_the_same_rows_are_told_by_how_they_differ():
    """Means 1.03 and 1.12: the first, of losses up to 2, to 1/8 with 4 draws; what is above it to 1/32."""
    first = np.array([2.0, 1.0, 0.62, 0.5])
    second = first + np.array([0.4, -0.2, 0.1, 0.06])
    found = coarse.together([second, first], np.array([4]), np.array([4.0]))
    np.testing.assert_allclose(found, [[1.0 + 3 / 32], [1.0]])
    both = coarse.together([np.r_[second, first], np.r_[first, second]], np.array([4, 4]), np.full(2, 4.0))
    np.testing.assert_allclose(both, [[1.0 + 3 / 32, 1.0], [1.0, 1.0 + 3 / 32]])
