"""Bounds from noisy sums: simulated coverage, what a false bound would do, and second ways to each number."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from bidro.certify.mean_bounds import _CANDIDATES, betting, clopper_pearson, log_capital, noisy_bound
from bidro.certify.row_promise import noisy_row_bound
from bidro.core.errors import BidroError
from bidro.privacy.accounting import rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import (
    BERNSTEIN_STEPS,
    Noisy,
    Scale,
    bernstein,
    bernstein_scale,
    bernstein_steps,
)
from bidro.privacy.terms import Terms
from tests.small import mostly_slow

DELTA = 1e-6
DEGREE = Terms().degree
EPSILONS = (0.5, 1.0, 3.0)


def _clipped(draw):
    return lambda rng, n: np.minimum(draw(rng, n), 1.0)


def _mean(draw):
    return float(draw(np.random.default_rng(99), 4_000_000).mean())


# Squared errors of Gaussian residuals, counted as at most twelve times their mean.
SQUARES = _clipped(lambda rng, n: rng.normal(size=n) ** 2 / 12)
LAWS = {
    "rare and large": (lambda rng, n: 0.02 + 0.98 * (rng.uniform(size=n) < 0.01), 0.02 + 0.98 * 0.01),
    "mistakes": (lambda rng, n: (rng.uniform(size=n) < 0.3).astype(float), 0.3),
    "few mistakes": (lambda rng, n: (rng.uniform(size=n) < 0.1).astype(float), 0.1),
    "uniform": (lambda rng, n: rng.uniform(size=n), 0.5),
    "constant": (lambda rng, n: np.full(n, 0.2), 0.2),
    "squares": (SQUARES, None),
}


@functools.cache
def scale_of(degree, epsilon):
    return bernstein_scale(degree, None if epsilon is None else rho_of(epsilon, DELTA))


def noisy_sums(rng, values, degree, epsilon):
    """Sums with noise. Drawn by NumPy, for speed, and rounded to steps, of which there are a billion to one:
    `test_drawn_exactly` has the same from the exact sampler."""
    scale = scale_of(degree, epsilon)
    noise = rng.normal(size=degree + 1) * math.sqrt(scale.variance[0])
    return Noisy(bernstein_steps(values, degree).sum(axis=0) + np.rint(noise).astype(np.int64), scale)


def misses(law, rows, epsilon, repetitions, beta, bound=noisy_bound, degree=DEGREE):
    """The share of simulations in which the bound is below the true mean."""
    draw, mean = LAWS[law]
    mean = _mean(draw) if mean is None else mean
    rng = np.random.default_rng(rows + int(100 * epsilon))
    found = [
        bound(noisy_sums(rng, draw(rng, rows), degree, epsilon), beta, float(rows))
        for _ in range(repetitions)
    ]
    return float(np.mean(np.array(found) < mean))


CASES = [(law, rows, epsilon) for law in LAWS for rows in (20, 60, 200) for epsilon in EPSILONS]


# A Latin square of them for every day.
@pytest.mark.parametrize(
    ("law", "rows", "epsilon"), [case for i, case in enumerate(CASES) if i % 9 in (0, 4, 8)]
)
def test_bounds_hold_as_often_as_promised(law, rows, epsilon):
    beta, repetitions = 0.2, 150
    # Three standard errors of a share at beta.
    most = beta + 3 * math.sqrt(beta * (1 - beta) / repetitions)
    assert misses(law, rows, epsilon, repetitions, beta) <= most


@pytest.mark.slow
@pytest.mark.parametrize(("law", "rows", "epsilon"), CASES)
def test_bounds_hold_as_often_as_promised_over_two_thousand_simulations(law, rows, epsilon):
    beta = 0.05
    most = beta + 3 * math.sqrt(beta * (1 - beta) / 2000)
    assert misses(law, rows, epsilon, 2000, beta) <= most


@pytest.mark.parametrize(("law", "rows"), [("mistakes", 20), ("few mistakes", 60)])
def test_clopper_and_pearson_on_noisy_counts_is_false(law, rows):
    """Of mistakes, at epsilon = 1 and a failure probability of 5%: it takes the noise for rows."""

    def taken_for_rows(noisy, beta, _):
        right, wrong = np.maximum(np.rint(noisy.sums), 0.0)
        return clopper_pearson(np.array([0.0, 1.0]), beta, np.array([right, wrong])) if right + wrong else 1.0

    assert misses(law, rows, 1.0, 1000, 0.05, taken_for_rows, degree=1) > 0.15
    assert misses(law, rows, 1.0, 200, 0.05, degree=1) <= 0.05


@pytest.mark.parametrize("law", ["few mistakes", "constant"])
def test_betting_that_forgets_the_noise_is_false(law):
    """The same bound with sigma = 0 said of noisy sums, so the simulations above can fail."""

    def forgetful(noisy, beta, rows):
        return noisy_bound(Noisy(noisy.values, bernstein_scale(DEGREE, None)), beta, rows)

    assert misses(law, 60, 1.0, 300, 0.05, forgetful) > 0.15


def test_drawn_exactly():
    """The whole way, as a site does it: the exact sampler."""
    rng, draw = np.random.default_rng(5), LAWS["uniform"][0]
    rho = rho_of(1.0, DELTA)
    found = [
        noisy_bound(bernstein(draw(rng, 60), DEGREE, rho, bits=seeded_bits(i)), 0.2, 60.0) for i in range(150)
    ]
    assert np.mean(np.array(found) < 0.5) <= 0.2 + 3 * math.sqrt(0.16 / 150)
    plain = [noisy_bound(noisy_sums(rng, draw(rng, 60), DEGREE, 1.0), 0.2, 60.0) for _ in range(150)]
    assert np.mean(found) == pytest.approx(np.mean(plain), abs=3 * np.std(plain) * math.sqrt(2 / 150))


def test_what_the_gambler_has_is_at_most_one_in_expectation():
    """Of rows that are their mean or more, with any stake: over all values of one row, and over the noise as
    it is, number by number."""
    v = np.linspace(0, 1, 301)
    for degree in (1, 4, 9):
        weights = bernstein_steps(v, degree) / 2.0**30
        for mu in (0.05, 0.3, 0.9):
            for stake in (0.01, 0.5, 0.999):
                theta = np.log1p(stake / (1 - mu) * (mu - np.arange(degree + 1) / degree))
                assert np.all(np.exp(weights @ theta) <= 1 + stake / (1 - mu) * (mu - v) + 1e-8)
    for variance in (0.2, 1.0, 30.0):
        x = np.arange(-400, 401)
        log_law = -(x**2) / (2 * variance)
        log_law = log_law - np.logaddexp.reduce(log_law)
        for theta in (0.01, 0.3, 1.0, 3.0):
            assert np.logaddexp.reduce(log_law + theta * x) <= theta**2 * variance / 2 + 1e-12


def test_the_capital_at_the_bound_multiplied_out():
    """By hand at one candidate, stake by stake."""
    rng = np.random.default_rng(3)
    noisy = noisy_sums(rng, rng.uniform(size=80) ** 2, 3, 1.0)
    variance, sums, wanted, mu = float(noisy.scale.variance[0]) / 4.0**30, noisy.sums, math.log(20), 0.4
    spreads = [0.7 * (0.02 / 0.7) ** (j / 7) for j in range(8)]
    shares = [math.exp(-(math.log(s / 0.2) ** 2) / (2 * 1.2**2)) for s in spreads]
    capital = 0.0
    noise = variance * sum((mu - k / 3) ** 2 for k in range(4))
    for s, share in zip(spreads, shares, strict=True):
        stake = math.sqrt(2 * wanted / (2 * wanted + (80 * s * s + noise) / (1 - mu) ** 2)) / (1 - mu)
        thetas = [math.log(1 + stake * (mu - k / 3)) for k in range(4)]
        end = sum(t * one for t, one in zip(thetas, sums, strict=True)) - variance / 2 * sum(
            t * t for t in thetas
        )
        capital += share / sum(shares) * math.exp(end)
    found = log_capital(noisy, np.array([mu]), wanted, 80.0)
    assert found[0] == pytest.approx(math.log(capital), rel=1e-9)
    bound = noisy_bound(noisy, 0.05, 80.0)
    candidates = np.concatenate(_CANDIDATES)
    ended = log_capital(noisy, candidates, wanted, 80.0)
    ruled_out = candidates >= bound
    assert np.all(ended[ruled_out] >= wanted)
    assert ended[np.argmin(ruled_out)] < wanted + 1e-6


def test_without_noise_it_is_close_to_betting_on_the_rows_themselves():
    rng = np.random.default_rng(4)
    for rows in (60, 1000):
        values = SQUARES(rng, rows)
        exact, found = betting(values, 0.05), noisy_bound(bernstein(values, 32, None), 0.05, float(rows))
        assert exact * 0.97 <= found <= 1.06 * exact


def test_no_loss_at_all_and_nothing_but_losses():
    assert noisy_bound(bernstein(np.zeros(1000), DEGREE, None), 0.05, 1000.0) < 0.006
    assert noisy_bound(bernstein(np.ones(1000), DEGREE, None), 0.05, 1000.0) == 1.0
    assert noisy_bound(bernstein(np.zeros(0), DEGREE, None), 0.05, 1000.0) == 1.0
    # So much noise that nothing can be said.
    assert noisy_bound(bernstein(np.zeros(50), DEGREE, Fraction(1, 10**6)), 0.05, 50.0) == 1.0


@pytest.mark.parametrize("guess", [0.0, 1.0, 20.0, 10_000.0])
def test_a_wrong_number_of_rows_costs_tightness_only(guess):
    rng = np.random.default_rng(6)
    draw = LAWS["mistakes"][0]
    sums = [noisy_sums(rng, draw(rng, 200), DEGREE, 1.0) for _ in range(150)]
    found = np.array([noisy_bound(one, 0.2, guess) for one in sums])
    right = np.array([noisy_bound(one, 0.2, 200.0) for one in sums])
    assert np.mean(found < 0.3) <= 0.2 + 3 * math.sqrt(0.16 / 150)
    assert found.mean() >= right.mean() - 0.01


# Rows: what the mean bound is in units of the true mean, for squared errors at epsilon = 1 and without noise.
# The issue that asked for this bound had 3.0, 1.84, 1.26 and 1.92, 1.36, 1.15 in a prototype.
RATIOS = {60: (3.7, 1.95), 200: (1.95, 1.5), 1000: (1.3, 1.23)}


@pytest.mark.parametrize("rows", mostly_slow(list(RATIOS), lambda rows: rows == 60))
def test_how_far_above_the_mean_the_bound_is(rows):
    rng, mean = np.random.default_rng(rows), _mean(SQUARES)
    values = [SQUARES(rng, rows) for _ in range(100)]
    for epsilon, most in zip((1.0, None), RATIOS[rows], strict=True):
        found = [noisy_bound(noisy_sums(rng, one, DEGREE, epsilon), 0.05, float(rows)) for one in values]
        ratio, error = np.mean(found) / mean, np.std(found) / mean / 10
        assert ratio <= most + 3 * error
        assert ratio >= 0.75 * most - 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("rows", [60, 200, 1000])
def test_the_degree_is_among_the_best(rows):
    """Of squared errors counted as at most 8 to 16 times their mean: within a tenth of the best of many.
    For 60 rows a smaller one would be 7% better, for 1,000 a larger one is as good."""
    for most in (8, 16):
        rng = np.random.default_rng(most)
        values = [np.minimum(rng.normal(size=rows) ** 2 / most, 1.0) for _ in range(150)]
        mean = {
            degree: np.mean([noisy_bound(noisy_sums(rng, v, degree, 1.0), 0.05, float(rows)) for v in values])
            for degree in (1, 2, 3, 4, 6, 8, 12, 16)
        }
        assert mean[DEGREE] <= 1.1 * min(mean.values())
        assert mean[16] > 1.06 * min(mean.values()) or rows == 1000


def test_bad_requests_say_what_is_wrong():
    for beta in (0.0, 1.0, math.nan):
        with pytest.raises(BidroError, match="failure probability"):
            noisy_bound(bernstein(np.zeros(5), DEGREE, None), beta, 5.0)


def test_noise_of_another_size_for_each_sum_is_not_taken():
    noisy = bernstein(np.zeros(5), 1, Fraction(1, 50))
    uneven = Noisy(noisy.values, Scale(noisy.scale.unit, (noisy.scale.variance[0], Fraction(0))))
    with pytest.raises(ValueError, match="same variance"):
        noisy_bound(uneven, 0.05, 5.0)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_sums_bound_the_mean_of_a_power_of_values(power):
    """The weights on Bernstein polynomials are those of the power; without noise, and with many rows, the
    bound comes down to its mean."""
    values = np.random.default_rng(0).uniform(size=4000)
    polynomials = bernstein_steps(values, DEGREE) / BERNSTEIN_STEPS
    weights = [math.comb(k, power) / math.comb(DEGREE, power) for k in range(DEGREE + 1)]
    np.testing.assert_allclose(polynomials @ weights, values**power, atol=1e-8)
    noisy = noisy_sums(np.random.default_rng(1), values, DEGREE, None)
    bound = noisy_bound(noisy, 0.05, 4000.0, power)
    assert np.mean(values**power) <= bound <= 1.15 * np.mean(values**power)


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize(
    ("law", "level"),
    [
        (stats.norm(), 8.0),
        (stats.t(3), 33.0),
        (stats.uniform(-1, 2), 3.0),
        (stats.lognorm(1.0), 60.0),
    ],
)
def test_nine_of_ten_rows_lie_within_what_noisy_sums_say(law, level, power):
    rng, held = np.random.default_rng(2), []
    for _ in range(100):
        parts = np.minimum(law.rvs(size=300, random_state=rng) ** 2 / level, 1.0)
        bound = noisy_row_bound(noisy_sums(rng, parts, DEGREE, 3.0), 0.2, 300.0, level, power)
        held.append(law.cdf(bound) - law.cdf(-bound) >= 0.9)
    assert np.mean(held) >= 0.8 - 3 * math.sqrt(0.2 * 0.8 / 100)


def test_it_is_as_far_as_markov_says():
    """Of errors of one size r, v = r^2 / level, and 9 of 10 rows lie within (v^3 / 0.1)^(1/3) of the level, a
    bound of 10^(1/6) r; where that is beyond the level nothing is said."""
    sums = noisy_sums(np.random.default_rng(3), np.full(10**6, 0.2), DEGREE, None)
    exact = math.sqrt(5.0 * 0.2) * 10 ** (1 / 6)
    assert exact <= noisy_row_bound(sums, 0.05, 1e6, 5.0, 3) <= 1.01 * exact
    assert noisy_row_bound(sums, 0.05, 1e6, 5.0, 1) == math.inf
