"""What noise costs: zero-concentrated differential privacy (zCDP), and which (epsilon, delta) that is.

A release is rho-zCDP if the Renyi divergence of order alpha between what is released with and without one
person is at most rho alpha, for every alpha > 1; the rho of several releases add up. Noise of variance
sigma^2 on a value that one person changes by at most Delta, in the L2 norm, is Delta^2 / (2 sigma^2)-zCDP,
and that holds for the discrete Gaussian as for the continuous one (Canonne, Kamath and Steinke, 2020).

rho-zCDP is (epsilon, delta)-differential privacy with, for any alpha > 1 (the same authors),

    epsilon = alpha rho + (ln(1 / delta) + (alpha - 1) ln(1 - 1 / alpha) - ln(alpha)) / (alpha - 1),

so that a search for the best alpha cannot make a claim false. What is found is evaluated with 50 digits and
rounded to the safe side: epsilon up, rho down.

Where h sites each add noise of variance sigma^2 to what they sum up, the sum of their noise is not itself
a discrete Gaussian, but nearly: every probability is that of the discrete Gaussian of variance h sigma^2
but for a factor of at most e^(tau / 2), with

    tau = 10 sum_{k=1}^{h-1} exp(-2 pi^2 sigma^2 k / (k + 1)) <= 10 (h - 1) exp(-pi^2 sigma^2),

for sigma >= 1/2, and the release of d numbers costs (Kairouz, Liu and Steinke, 2021)

    rho = (Delta / (sigma sqrt(h)) + tau sqrt(d))^2 / 2.

So h shares cost the h-th part of what one costs by itself, but for a correction that a fine grid makes
negligible. It is charged all the same: shares are a little larger than the h-th part (`of_one_share`), which
covers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from bidro.core.errors import BidroError

# A budget is a multiple of 1 / _PARTS, so that its shares are fractions that can be read.
_PARTS = 2**40
_DIGITS = Context(prec=50)
# Corrections are rounded up to a multiple of 1 / _FINEST, and given this share of what a release costs.
_FINEST, _OF_CORRECTION = 2**120, Fraction(1, 2**30)
_SEARCHED = (-20.0, 60.0)  # of ln(alpha - 1)
_STEPS = 120


def rho_of(epsilon: float, delta: float) -> Fraction:
    """The largest rho, to 1e-12, for which rho-zCDP is (epsilon, delta)-differential privacy; never above it.

    Raises BidroError for an epsilon or delta that is none, or one so small that nothing can be released.
    """
    if not 0 < epsilon < math.inf:
        raise BidroError(f"epsilon must be a positive number; got {epsilon}.")
    check_delta(delta)

    def at(order: float) -> float:
        return (epsilon - _beyond(order, delta)) / (1 + math.exp(order))

    order = _best(lambda order: -at(order))
    with localcontext(_DIGITS):
        alpha = 1 + Decimal(order).exp()
        exact = (Decimal(epsilon) - _beyond_exactly(alpha, delta)) / alpha
        # One part less, so that the search for the same order from the other side cannot end above epsilon.
        parts = math.floor(exact * _PARTS) - 1
    if parts <= 0:
        raise BidroError(
            f"A budget of epsilon = {epsilon:g} with delta = {delta:g} is too small for any release; "
            "epsilon is usually between 0.1 and 10."
        )
    return Fraction(parts, _PARTS)


def epsilon_of(rho: Fraction, delta: float) -> float:
    """The smallest epsilon for which rho-zCDP is known to be (epsilon, delta)-differential privacy, rounded
    up; 0 where nothing was released."""
    check_delta(delta)
    if rho < 0:
        raise BidroError(f"rho must not be negative; got {float(rho):g}.")
    if rho == 0:
        return 0.0
    # Of alpha rho the part that depends on the order.
    order = _best(lambda order: math.exp(order) * float(rho) + _beyond(order, delta))
    with localcontext(_DIGITS):
        alpha = 1 + Decimal(order).exp()
        exact = alpha * rho.numerator / rho.denominator + _beyond_exactly(alpha, delta)
        found = max(float(exact), 0.0)
        return found if Decimal(found) >= exact else math.nextafter(found, math.inf)


def noise_variance(rho: Fraction, sensitivity2: Fraction | int) -> Fraction:
    """sigma^2 = Delta^2 / (2 rho): the variance of noise that costs rho where one person changes what is
    released by at most Delta (`sensitivity2` is its square), exactly."""
    if rho <= 0:
        raise BidroError(f"A release must cost a positive rho; got {float(rho):g}.")
    return Fraction(sensitivity2) / (2 * rho)


def honest_sites(honest: float, sites: int, everyone: int | None = None) -> int:
    """Of so many sites, how many keep their share of the noise to themselves, one's own among them, where at
    least this share of `everyone` does (of the same, unless it is said). Who is left out of a sum is the
    server's choice, so that all who are may be honest ones."""
    if not 0 <= honest <= 1:
        raise BidroError(f"honest must be a share of the sites from 0 to 1, such as 0.5; got {honest!r}.")
    whole = sites if everyone is None else everyone
    return max(1, math.ceil(honest * whole) - (whole - sites))


def shared_rho(alone: Fraction, shares: int, variance: Fraction, numbers: int) -> Fraction:
    """At most what a release of so many numbers costs with so many equal shares of noise, of which one costs
    `alone` by itself and has no less than this variance."""
    if shares == 1:
        return alone
    if variance < Fraction(1, 4):
        raise BidroError(f"A share of noise needs a variance of at least 1/4 steps; got {float(variance):g}.")
    with localcontext(_DIGITS):
        # Never as small as it is, where that is below all that could matter.
        exponent = -min(Decimal(math.floor(variance * 9)), Decimal(1000))  # pi^2 > 9
        tau = 10 * (shares - 1) * exponent.exp()
        of_noise = (2 * Decimal(alone.numerator) / Decimal(alone.denominator) / shares).sqrt()
        beyond = tau * Decimal(numbers).sqrt()
        exact = of_noise * beyond + beyond * beyond / 2
        correction = Fraction(math.ceil(exact * _FINEST), _FINEST)
    return alone / shares + correction


def of_one_share(rho: Fraction, shares: int) -> Fraction:
    """What the noise of one of so many shares costs by itself where all of them together cost rho."""
    return rho * shares * (1 - _OF_CORRECTION) if shares > 1 else rho


def check_delta(delta: float) -> None:
    """Raise BidroError where delta is no probability that a budget can have."""
    if not 0 < delta < 1:
        raise BidroError(
            f"delta must lie strictly between 0 and 1, well below one in the number of rows; got {delta}."
        )


def _beyond(order: float, delta: float) -> float:
    """What epsilon has beyond alpha rho, at alpha = 1 + e^order."""
    above = math.exp(order)
    log = -math.log1p(1 / above)  # ln(1 - 1 / alpha)
    return log - (math.log(delta) + math.log1p(above)) / above


def _beyond_exactly(alpha: Decimal, delta: float) -> Decimal:
    return (1 - 1 / alpha).ln() - (Decimal(delta).ln() + alpha.ln()) / (alpha - 1)


def _best(cost: Callable[[float], float]) -> float:
    """The order of least cost, by golden section."""
    low, high = _SEARCHED
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    of_left, of_right = cost(left), cost(right)
    for _ in range(_STEPS):
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = high - golden * (high - low)
            of_left = cost(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + golden * (high - low)
            of_right = cost(right)
    return (low + high) / 2
