"""The exact sampler: against exact probabilities, without a float, and as fast as releases need."""

import ast
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from bidro.core.errors import BidroError
from bidro.privacy import discrete_gaussian as module
from bidro.privacy.discrete_gaussian import _Coins, discrete_gaussian, seeded_bits


def probabilities(variance, reach):
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * float(variance)))
    return weights / weights.sum()


def chi_square(found, expected):
    """The probability of so large a distance, cells with few expected counts taken together."""
    order = np.argsort(expected)
    found, expected = found[order], expected[order]
    few = int(np.searchsorted(expected, 10.0))
    found = np.append(found[few:], found[:few].sum())
    expected = np.append(expected[few:], expected[:few].sum())
    if expected[-1] < 10:
        found = np.append(found[1:-1], found[0] + found[-1])
        expected = np.append(expected[1:-1], expected[0] + expected[-1])
    return float(chi2.sf(((found - expected) ** 2 / expected).sum(), len(found) - 1))


@pytest.mark.parametrize("variance", [Fraction(v) for v in ("1/8", "1/3", "1", "7/2", "20", "1000/7")])
def test_draws_have_the_exact_probabilities(variance):
    count, reach = 40_000, math.ceil(12 * math.sqrt(variance)) + 2
    drawn = np.array(discrete_gaussian(variance, count, seeded_bits(7)))
    assert np.abs(drawn).max() <= reach
    found = np.bincount(drawn + reach, minlength=2 * reach + 1)
    assert chi_square(found, count * probabilities(variance, reach)) > 1e-3


def test_the_chi_square_notices_a_rounded_gaussian_of_the_same_variance():
    """Of small variance, where the two differ; so the test above can fail."""
    count, variance = 40_000, Fraction(1, 3)
    drawn = np.rint(np.random.default_rng(0).normal(size=count) * math.sqrt(variance)).astype(int)
    found = np.bincount(drawn + 9, minlength=19)
    assert chi_square(found, count * probabilities(variance, 9)) < 1e-6


def test_wide_noise_is_gaussian_in_each_of_its_parts():
    """With a variance of 2^145 / 3, by cells of equal probability and by the lowest digits."""
    variance, count = Fraction(2**145, 3), 20_000
    drawn = discrete_gaussian(variance, count, seeded_bits(11))
    scaled = np.array([float(x) for x in drawn]) / math.sqrt(variance)
    cells = np.floor(50 * (1 + np.vectorize(math.erf)(scaled / math.sqrt(2))) / 2).astype(int)
    assert chi_square(np.bincount(cells, minlength=50), np.full(50, count / 50)) > 1e-3
    digits = np.array([x % 64 for x in drawn])
    assert chi_square(np.bincount(digits, minlength=64), np.full(64, count / 64)) > 1e-3


def test_coins_have_their_probabilities_to_the_last_digit():
    """Words that are not random: a coin compares n / d with the number that they spell, exactly."""

    def coin(n, d, *words):
        spelled = b"".join(word.to_bytes(8, "little") for word in words)
        return _Coins(lambda count: spelled.ljust(count, b"\0"))._coin(n, d)

    third = (2**64 - 1) // 3
    assert coin(1, 3, third - 1)
    assert not coin(1, 3, third + 1)
    # 1 / 3 has the same digits again in the next word.
    assert coin(1, 3, third, third - 1)
    assert not coin(1, 3, third, third, third + 1)
    assert coin(1, 1, 2**64 - 1)
    assert not coin(0, 5, 1)


def test_the_probability_of_an_exponential_coin():
    for n, d in ((0, 1), (1, 3), (1, 1), (7, 2)):
        coins = _Coins(seeded_bits(n))
        share = np.mean([coins._exponential(n, d) for _ in range(20_000)])
        exact = math.exp(-n / d)
        assert abs(share - exact) <= 4 * math.sqrt(exact * (1 - exact) / 20_000)


def test_no_float_is_in_the_way_of_a_draw():
    """No float constant, no true division, no root or exponential of floats, in the whole file."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
            assert node.attr == "frombuffer"
    drawn = discrete_gaussian(Fraction(2**150), 5)
    assert all(type(x) is int for x in drawn)
    # Of such width a float would have lost the lowest twenty bits.
    assert any(x % 2**20 for x in drawn)


def test_seeds_and_the_systems_own_bits():
    variance = Fraction(2**70)
    assert discrete_gaussian(variance, 9, seeded_bits(3)) == discrete_gaussian(variance, 9, seeded_bits(3))
    assert discrete_gaussian(variance, 9, seeded_bits(3)) != discrete_gaussian(variance, 9, seeded_bits(4))
    assert discrete_gaussian(variance, 9, seeded_bits(b"3")) == discrete_gaussian(variance, 9, seeded_bits(3))
    assert discrete_gaussian(variance, 9) != discrete_gaussian(variance, 9)
    assert discrete_gaussian(Fraction(0), 3) == [0, 0, 0]
    with pytest.raises(BidroError, match="must not be negative"):
        discrete_gaussian(Fraction(-1), 3)


def test_ten_thousand_values_take_few_words():
    """What a draw costs is the random words that it uses, of which there are about ten."""
    requested = 0
    bits = seeded_bits(1)

    def counted(count):
        nonlocal requested
        requested += count
        return bits(count)

    discrete_gaussian(Fraction(2**75, 3), 10_000, counted)
    assert requested / 8 / 10_000 < 20
