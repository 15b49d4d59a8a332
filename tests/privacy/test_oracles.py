"""The costs of noise against OpenDP and dp-accounting, where the extra `privacy-oracles` is installed."""

import math
from fractions import Fraction

import numpy as np
import pytest

from bidro.privacy.accounting import epsilon_of, noise_variance, rho_of
from bidro.privacy.discrete_gaussian import discrete_gaussian, seeded_bits

MISSING = "{} is not installed: pip install 'bidro[privacy-oracles]' compares the costs of noise with it"
SIGMAS = [Fraction(v) for v in ("1/2", "1", "9/2", "20", "300")]


@pytest.fixture(scope="module")
def opendp():
    pytest.importorskip("opendp", reason=MISSING.format("OpenDP"))
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


@pytest.fixture(scope="module")
def accounting():
    return pytest.importorskip("dp_accounting", reason=MISSING.format("dp-accounting"))


def discrete(dp, sigma):
    """OpenDP's own discrete Gaussian, on vectors of whole numbers."""
    domain = dp.vector_domain(dp.atom_domain(T=int))
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), float(sigma))


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("sensitivity", [1, 3])
def test_rho_is_that_of_opendp(opendp, sigma, sensitivity):
    rho = Fraction(sensitivity**2) / (2 * sigma**2)
    assert noise_variance(rho, sensitivity**2) == sigma**2
    assert discrete(opendp, sigma).map(float(sensitivity)) == pytest.approx(float(rho), rel=1e-12)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_epsilon_of_rho_is_that_of_opendp(opendp, sigma, delta):
    theirs = opendp.c.make_zCDP_to_approxDP(discrete(opendp, sigma)).map(1.0).epsilon(delta)
    assert epsilon_of(1 / (2 * sigma**2), delta) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("sigma", [2, 30])
def test_draws_are_like_those_of_opendp(opendp, sigma):
    """Two samples, by the largest distance of their distribution functions (Kolmogorov and Smirnov)."""
    count = 20_000
    theirs = np.sort(discrete(opendp, sigma)([0] * count))
    ours = np.sort(discrete_gaussian(Fraction(sigma) ** 2, count, seeded_bits(5)))
    at = np.arange(-8 * sigma, 8 * sigma + 1)
    apart = np.abs(np.searchsorted(theirs, at, "right") - np.searchsorted(ours, at, "right")).max() / count
    assert apart <= math.sqrt(math.log(2 / 1e-4) / count)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_sigma_for_a_budget_against_dp_accounting(accounting, epsilon, delta):
    """Its Renyi accountant has the same conversion, at the orders that it tries; its privacy loss
    distributions have the true epsilon, which ours must not be below nor above 1.3 times."""
    from dp_accounting import pld, rdp

    sigma = math.sqrt(noise_variance(rho_of(epsilon, delta), 1))
    noise = accounting.GaussianDpEvent(sigma)
    renyi = rdp.RdpAccountant(orders=1 + np.geomspace(1e-3, 1e6, 20_000))
    assert renyi.compose(noise).get_epsilon(delta) == pytest.approx(epsilon, rel=1e-5)
    exact = pld.PLDAccountant().compose(noise).get_epsilon(delta)
    assert exact <= epsilon <= 1.3 * exact


def test_shares_of_a_budget_add_up_to_it(accounting):
    """Five releases, as a fit of squared loss makes, composed by dp-accounting."""
    from dp_accounting import pld, rdp

    epsilon, delta = 1.0, 1e-6
    whole = rho_of(epsilon, delta)
    shares = [Fraction(3, 10), *[Fraction(7, 40)] * 4]
    sigmas = [math.sqrt(noise_variance(whole * share, 1)) for share in shares]
    events = accounting.ComposedDpEvent([accounting.GaussianDpEvent(sigma) for sigma in sigmas])
    renyi = rdp.RdpAccountant(orders=1 + np.geomspace(1e-3, 1e6, 20_000)).compose(events)
    assert renyi.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-5)
    assert pld.PLDAccountant().compose(events).get_epsilon(delta) <= epsilon
