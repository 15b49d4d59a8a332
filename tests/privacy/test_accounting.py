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
from bidro.privacy.accounting import epsilon_of, noise_variance, rho_of

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
