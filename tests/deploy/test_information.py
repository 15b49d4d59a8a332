"""How many different rows a set needs: units, bits and exchanges by brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom

from bidro.deploy.site.disclosure.information import NEVER, Columns, Information, recorded_unit


@pytest.mark.parametrize("shift", [0.0, 1e6, -3.7])
@pytest.mark.parametrize("unit", [1.0, 0.1, 0.25, 1 / 12, 1 / 3, 1e-8, 2.54, 1000.0])
def test_the_unit_of_recorded_numbers_is_found(unit, shift):
    whole = np.unique(np.random.default_rng(0).integers(-300, 900, 60))
    values = np.sort(whole * unit + shift * unit)
    found = recorded_unit(values)
    # The unit of the whole numbers, times what all their differences share.
    assert found == pytest.approx(unit * np.gcd.reduce(np.diff(whole)), rel=1e-6)


def test_numbers_without_a_unit_count_with_forty_digits():
    values = np.sort(np.random.default_rng(0).normal(size=80))
    assert recorded_unit(values) == np.abs(values).max() * 2.0**-40 or recorded_unit(values) < 1e-11
    assert 35 < Columns.of(values[:, None]).entropy[0] <= 41


def test_entropies_of_columns_are_those_of_their_values():
    rng = np.random.default_rng(1)
    rows = np.column_stack(
        [rng.random(4_000) < 0.1, rng.integers(1, 6, 4_000), rng.normal(size=4_000).round(1)]
    )
    found = Columns.of(rows.astype(float))
    exact = [-(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9)), math.log2(5)]
    np.testing.assert_allclose(found.entropy[:2], exact, rtol=0.06)
    # A normal number of deviation 1 to a tenth.
    assert found.entropy[2] == pytest.approx(0.5 * math.log2(2 * math.pi * math.e * 100), rel=0.02)
    np.testing.assert_array_equal(found.values[:2], [2, 5])
    np.testing.assert_allclose(found.units, [1.0, 1.0, 0.1])
    assert Columns.of(np.ones((5, 1))).entropy[0] == 0.0


@pytest.mark.parametrize("n", [40, 400])
def test_bits_of_moments_are_those_of_the_counts_of_answers_and_pairs(n):
    """Of independent answers a sum is a binomial number, whose entropy is summed up here; the sums of three
    columns are two-way tables."""
    rows = (np.random.default_rng(2).random((20_000, 3)) < 0.5).astype(float)
    found = Information.of(rows, rows).told(n)

    def entropy(p):
        share = binom.pmf(np.arange(n + 1), n, p)
        share = share[share > 0]
        return float(-np.sum(share * np.log2(share)))

    # Centred products of two fair answers are 1/4 or -1/4: half as likely each, in steps of a half.
    assert found == pytest.approx(3 * entropy(0.5) + 3 * (entropy(0.5) - 1), rel=0.03)


def test_bits_of_rows_are_the_logarithm_of_the_number_of_tables():
    """Of five different rows of eight fair answers there are 256 over 5."""
    rows = (np.random.default_rng(3).random((20_000, 8)) < 0.5).astype(float)
    found = Information.of(rows, rows)
    assert found.entropy == pytest.approx(8, rel=0.01)
    assert found.held(5) == pytest.approx(math.log2(math.comb(256, 5)), rel=0.02)


def test_columns_that_follow_from_others_add_nothing_and_those_that_nearly_do_little():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(200, 3)).round(1)
    alone, twice = (
        Information.of(rows, rows),
        Information.of(np.c_[rows, rows @ [1, 2, 0]], np.c_[rows, rows]),
    )
    assert twice.entropy == pytest.approx(alone.entropy)
    assert twice.told(200) == pytest.approx(alone.told(200))
    assert twice.needed(3) == alone.needed(3)
    near = rows[:, :1] + 0.1 * rng.integers(-1, 2, (200, 1))
    more = Information.of(np.c_[rows, near], rows).entropy - alone.entropy
    assert 0.5 < more < 3.0  # three values around another column: 1.6 bits, of six in it alone


def test_what_is_needed_does_not_depend_on_order_shift_scale_or_copies():
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(150, 6)).round(2)
    needed = Information.of(rows, rows).needed(6)
    for other in (rows[::-1], rows + 1e6, rows * 1e-8, rows[:, ::-1]):
        assert abs(Information.of(other, other).needed(6) - needed) <= 1
    assert Information.of(rows[:100], rows[:100]).needed(6) == pytest.approx(needed, abs=1)


def test_numbers_of_many_digits_need_little_more_than_two_rows_a_parameter_and_answers_more():
    rng = np.random.default_rng(6)
    real = rng.normal(size=(400, 20))
    answers = (rng.random((400, 30)) < 0.5).astype(float)
    rare = (rng.random((2_000, 30)) < 0.1).astype(float)
    scales = rng.integers(1, 6, (400, 30)).astype(float)
    assert Information.of(real, real).needed(100) == 201
    assert 41 < Information.of(real, real).needed(20) < 50
    assert 61 < Information.of(scales, scales).needed(30) < 110
    assert 130 < Information.of(answers, answers).needed(30) < 160
    assert 350 < Information.of(rare, rare).needed(30) < 500
    assert Information.of(rare, rare).needed_by_means(0) == 0
    assert Information.of(answers, answers).needed_by_means(59) < Information.of(rare, rare).needed_by_means(
        59
    )
    assert Information.of(answers[:, :1], answers[:, :1]).needed(0) < NEVER


@pytest.mark.parametrize(("columns", "share"), [(8, 0.5), (10, 0.5), (10, 0.3)])
def test_rows_of_a_set_that_is_large_enough_can_be_exchanged_for_others(columns, share):
    """Four rows whose answers add up to even numbers everywhere are every second vertex of a cube, and
    the other four have the same sums and second moments. In a set as large as is needed every row that few
    have can go in that way, and in one of as many rows as columns none can."""
    rng = np.random.default_rng(columns)
    rows = rng.random((4_000, columns)) < share
    needed = Information.of(rows.astype(float), rows.astype(float)).needed(columns)
    codes = rows @ (1 << np.arange(columns))
    different, first = np.unique(codes, return_index=True)
    order = different[np.argsort(first)]
    for count, every in ((needed, True), (columns, False)):
        here = set(order[:count].tolist())
        assert len(here) == count
        exchanged = set()
        for a, b, c in combinations(sorted(here), 3):
            if a ^ b ^ c in here:
                exchanged |= {a, b, c, a ^ b ^ c}
        assert (exchanged == here) is every
    # And the exchange keeps what is told.
    a, b, c = next(
        (a, b, c) for a, b, c in combinations(sorted(order[:needed].tolist()), 3) if a ^ b ^ c in order
    )
    x, y = a ^ b, a ^ c
    others = [a ^ (x & y), a ^ (x & ~y), a ^ (y & ~x), a ^ (x | y)]

    def told(codes):
        some = np.array([[code >> k & 1 for k in range(columns)] for code in codes])
        return some.T @ some

    np.testing.assert_array_equal(told([a, b, c, a ^ b ^ c]), told(others))
