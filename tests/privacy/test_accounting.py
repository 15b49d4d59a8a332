"""rho, epsilon and variances: closed forms, the privacy loss summed up, and rounding to the safe side."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.core.errors import BidroError
from bidro.privacy.accounting import (
    epsilon_of,
    honest_sites,
    noise_variance,
    of_one_share,
    rho_of,
    shared_rho,
)

BUDGETS = [(0.1, 1e-6), (0.5, 1e-6), (1.0, 1e-6), (3.0, 1e-6), (10.0, 1e-5), (1.0, 1e-12), (0.5, 0.01)]


def delta_of_discrete_gaussian(variance, shift, epsilon):
    """The exact delta at epsilon of noise on a whole number that one person changes by `shift`: the sum of
    what is likelier than e^epsilon times as likely, by the definition of (epsilon, delta)."""
    reach = math.ceil(40 * math.sqrt(variance) + 3 * shift)
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * variance))
    weights /= weights.sum()
    moved = np.exp(-((x - shift) ** 2) / (2 * variance))
    moved /= moved.sum()
    return float(np.maximum(weights - math.exp(epsilon) * moved, 0).sum())


def plain_epsilon(rho, delta):
    """The tight conversion by trying orders, in floats."""
    alpha = 1 + np.geomspace(1e-6, 1e8, 400_000)
    beyond = (math.log(1 / delta) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (alpha - 1)
    return float(np.min(alpha * rho + beyond))


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_rho_and_epsilon_are_inverse_and_the_search_finds_the_best_order(epsilon, delta):
    rho = rho_of(epsilon, delta)
    back = epsilon_of(rho, delta)
    assert epsilon * (1 - 1e-8) <= back <= epsilon
    assert back == pytest.approx(plain_epsilon(float(rho), delta), rel=1e-7)
    # Better than the simple conversion rho + 2 sqrt(rho ln(1 / delta)).
    assert back < float(rho) + 2 * math.sqrt(float(rho) * math.log(1 / delta))
    assert rho.denominator <= 2**40


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 50), st.floats(1e-15, 0.1))
def test_what_is_claimed_is_never_below_what_was_asked_for(epsilon, delta):
    assert epsilon_of(rho_of(epsilon, delta), delta) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
@pytest.mark.parametrize("sensitivity", [1, 4])
def test_noise_for_a_budget_keeps_it_by_the_definition(epsilon, delta, sensitivity):
    """The privacy loss of the discrete Gaussian, summed up. And not by a wide margin: with half of the
    standard deviation delta is exceeded."""
    variance = float(noise_variance(rho_of(epsilon, delta), sensitivity**2))
    assert delta_of_discrete_gaussian(variance, sensitivity, epsilon) <= delta
    assert delta_of_discrete_gaussian(variance / 4, sensitivity, epsilon) > delta


@pytest.mark.parametrize("variance", [0.3, 1.0, 6.25, 40.0])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 8.0, 30.0])
def test_the_discrete_gaussian_costs_its_rho_at_every_order(variance, order):
    """Renyi divergences, summed up number by number, are at most alpha / (2 sigma^2) and close to it where
    the noise is wide."""
    reach = math.ceil(60 * math.sqrt(variance) + 3 * order)
    x = np.arange(-reach, reach + 1)
    for shift in (1, 2):
        log_weights = -(x**2) / (2 * variance)
        log_weights = log_weights - np.logaddexp.reduce(log_weights)
        log_moved = -((x - shift) ** 2) / (2 * variance)
        log_moved = log_moved - np.logaddexp.reduce(log_moved)
        divergence = np.logaddexp.reduce(order * log_weights + (1 - order) * log_moved) / (order - 1)
        claimed = order * shift**2 / (2 * variance)
        assert divergence <= claimed * (1 + 1e-9)
        if variance >= 1:
            assert divergence >= 0.99 * claimed


def test_epsilon_is_rounded_up_and_rho_down():
    """Against the best order, found again with sixty digits: not a bit below it, and hardly above."""

    delta = 1e-6

    def epsilon_at(rho, above):
        alpha = 1 + above
        return alpha * rho + (1 - 1 / alpha).ln() - (Decimal(delta).ln() + alpha.ln()) / above

    with localcontext(prec=60):
        for k in range(1, 13):
            rho = Fraction(k * k, 997)
            exact = Decimal(rho.numerator) / rho.denominator
            low, high = Decimal("0.01"), Decimal(10_000)
            for _ in range(250):
                third = (high - low) / 3
                better = epsilon_at(exact, low + third) < epsilon_at(exact, high - third)
                low, high = (low, high - third) if better else (low + third, high)
            least = epsilon_at(exact, low)
            found = epsilon_of(rho, delta)
            assert least <= Decimal(found) <= least * (1 + Decimal("1e-14"))
            assert rho_of(found, delta) <= rho


def test_variances_are_exact():
    assert noise_variance(Fraction(1, 50), Fraction(9)) == 225
    assert noise_variance(Fraction(1, 3), 7**2) == Fraction(147, 2)
    # Shares of a budget cost together what the budget is.
    whole = rho_of(1.0, 1e-6)
    parts = [whole * Fraction(3, 10), *[whole * Fraction(7, 40)] * 4]
    assert sum(parts) == whole
    assert sum(4 / (2 * noise_variance(part, 4)) for part in parts) == whole


def test_nothing_released_costs_nothing_and_more_costs_more():
    assert epsilon_of(Fraction(0), 1e-6) == 0.0
    found = [epsilon_of(Fraction(k, 100), 1e-6) for k in range(1, 30)]
    assert all(a < b for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rho_of(0.0, 1e-6), "epsilon must be a positive number"),
        (lambda: rho_of(math.inf, 1e-6), "epsilon must be a positive number"),
        (lambda: rho_of(math.nan, 1e-6), "epsilon must be a positive number"),
        (lambda: rho_of(1.0, 0.0), "delta must lie strictly between 0 and 1"),
        (lambda: epsilon_of(Fraction(1), 1.0), "delta must lie strictly between 0 and 1"),
        (lambda: rho_of(1e-7, 1e-12), "too small for any release"),
        (lambda: epsilon_of(Fraction(-1), 1e-6), "must not be negative"),
        (lambda: noise_variance(Fraction(0), 1), "must cost a positive rho"),
    ],
)
def test_bad_requests_say_what_is_wrong(call, words):
    with pytest.raises(BidroError, match=words):
        call()


def shares_of_noise(variance, shares):
    """(whole numbers, probabilities) of the sum of so many discrete Gaussians, convolved with 60 digits."""
    with localcontext() as context:
        context.prec = 60
        reach = math.ceil(12 * math.sqrt(variance)) + 27  # order times shift goes to 24
        weights = [(-Decimal(x * x) / (2 * Decimal(variance))).exp() for x in range(-reach, reach + 1)]
        one = [w / sum(weights) for w in weights]
        found = one
        for _ in range(shares - 1):
            whole = [Decimal(0)] * (len(found) + len(one) - 1)
            for i, a in enumerate(found):
                for j, b in enumerate(one):
                    whole[i + j] += a * b
            found = whole
        return found


def divergence(law, shift, order):
    """Renyi's, between a law on whole numbers and that law shifted, in floats of what was found with 60
    digits, over all numbers that count."""
    moved = law[shift:] if shift else law
    pairs = [(float(a.ln()), float(b.ln())) for a, b in zip(law, moved, strict=False) if a and b]
    logs = [order * a + (1 - order) * b for a, b in pairs]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(v - top) for v in logs))) / (order - 1)


@pytest.mark.parametrize("shares", [2, 3, 5])
@pytest.mark.parametrize("variance", [0.25, 0.5, 1.0, 4.0])
def test_shares_of_noise_cost_no_more_than_is_charged_by_exact_convolution(shares, variance):
    """At every order and shift, on grids so coarse that the correction matters; and on one of four steps the
    charge is what the divergence is."""
    law = shares_of_noise(variance, shares)
    for shift in (1, 2, 3):
        charged = shared_rho(Fraction(shift**2) / (2 * Fraction(variance)), shares, Fraction(variance), 1)
        for order in (1.1, 2.0, 4.0, 8.0):
            found = divergence(law, shift, order)
            assert found <= order * float(charged) * (1 + 1e-9)
            if variance == 4:
                assert found == pytest.approx(order * float(charged), rel=1e-6)


def test_the_sum_of_shares_is_no_discrete_gaussian():
    """Of which the charge without a correction would be true: on a coarse grid it is not."""
    law, variance = shares_of_noise(0.25, 2), Fraction(1, 4)
    plain = [
        divergence(law, 1, order) / order / float(Fraction(1) / (2 * 2 * variance))
        for order in (1.1, 2.0, 8.0)
    ]
    assert max(plain) > 1.001


def test_many_numbers_add_up_by_coordinates():
    """A shift of several numbers at once, each of its own variance, no smaller than what is stated, costs the
    sum of their divergences: no more than is charged."""
    variances, shifts, shares, order = (0.5, 1.0, 0.5), (1, 2, 0), 3, 2.0
    found = sum(
        divergence(shares_of_noise(v, shares), s, order) for v, s in zip(variances, shifts, strict=True) if s
    )
    alone = sum(Fraction(s**2) / (2 * Fraction(v)) for v, s in zip(variances, shifts, strict=True))
    assert found <= order * float(shared_rho(alone, shares, Fraction(min(variances)), 3))


@pytest.mark.parametrize("shares", [1, 2, 4, 50])
def test_what_one_share_costs_covers_the_correction_on_a_fine_grid(shares):
    rho = rho_of(1.0, 1e-6)
    alone = of_one_share(rho, shares)
    assert shared_rho(alone, shares, Fraction(100), 10_000) <= rho
    assert float(shared_rho(alone, shares, Fraction(100), 10_000)) == pytest.approx(float(rho), rel=1e-8)
    if shares > 1:
        assert shared_rho(alone, shares, Fraction(1, 4), 10) > rho


@pytest.mark.parametrize(
    ("sites", "half", "everybody"), [(3, 1.45, 1.8), (8, 2.1, 3.1), (12, 2.6, 3.9), (63, 6.7, 10.0)]
)
def test_epsilon_of_a_site_by_itself_where_noise_is_shared(sites, half, everybody):
    """What its own share alone would have cost at epsilon = 1 for all: the square root of h, about."""
    rho = rho_of(1.0, 1e-6)
    for honest, wanted in ((0.5, half), (1.0, everybody)):
        h = honest_sites(honest, sites)
        assert epsilon_of(of_one_share(rho, h), 1e-6) == pytest.approx(wanted, rel=0.03)


def test_honest_sites():
    assert [honest_sites(0.5, n) for n in (3, 4, 8, 9)] == [2, 2, 4, 5]
    assert honest_sites(0, 8) == 1
    with pytest.raises(BidroError, match="honest must be a share of the sites from 0 to 1"):
        honest_sites(1.5, 3)
    with pytest.raises(BidroError, match="variance of at least 1/4"):
        shared_rho(Fraction(1), 2, Fraction(1, 5), 1)
