"""Rows for a privacy budget: against the mechanism itself, solved with its noise many times."""

import math

import numpy as np
import pytest

from bidro.certify.plan import noise_cost
from bidro.core.errors import BidroError
from bidro.privacy.accounting import rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import moments, symmetric

DELTA = 1e-6


def rows_of(kind, rng, count):
    """(features, 1, target), in units in which all have a spread of about 1."""
    if kind == "independent":
        features = rng.normal(size=(count, 6))
    elif kind == "correlated":
        common = rng.normal(size=(count, 1))
        features = 0.6 * common + 0.8 * rng.normal(size=(count, 6))
    else:
        features = (rng.uniform(size=(count, 6)) < 0.2) / 0.4 - 0.5
    target = features @ np.array([0.5, -0.3, 0.2, 0.0, 0.1, 0.0]) + 0.7 * rng.normal(size=count)
    return np.column_stack([features, np.ones(count), target])


def measured_excess(z, sites, count, rho, repetitions, rows_per_person=1):
    """The mean rise of the loss, as a share, when the rows of every site are drawn from z and its moments
    are released once; the loss is that on all of z."""
    whole = z.T @ z / len(z)
    clip, m = math.sqrt(z.shape[1] / 2), z.shape[1]
    rng = np.random.default_rng(count)
    found = []
    for repetition in range(repetitions):
        total, exact = np.zeros((m, m)), np.zeros((m, m))
        for site in range(sites):
            own = z[rng.integers(len(z), size=count)]
            bits = seeded_bits(1000 * repetition + site)
            total += symmetric(moments(own, clip, rho, rows_per_person, bits).sums, m)
            exact += symmetric(moments(own, clip, None).sums, m)
        model, without = (np.linalg.solve(s[:-1, :-1], s[:-1, -1]) for s in (total, exact))
        losses = [float(np.append(x, -1) @ whole @ np.append(x, -1)) for x in (model, without)]
        found.append(losses[0] / losses[1] - 1)
    return np.mean(found), np.std(found) / math.sqrt(repetitions)


@pytest.mark.parametrize("kind", ["independent", "correlated", "of yes and no"])
def test_the_rows_that_it_asks_for_are_those_that_the_mechanism_needs(kind):
    """With so many rows a site the loss rises by the wanted share: the first order is right to a third."""
    z = rows_of(kind, np.random.default_rng(0), 20_000)
    rho, sites, share = rho_of(1.0, DELTA), 4, 0.05
    needed = noise_cost(z, sites, rho).rows(share)
    excess, error = measured_excess(z, sites, needed, rho, 60)
    assert abs(excess - share) <= share / 3 + 4 * error
    # Half as many are not enough, and twice as many more than that: what "to a factor of two" means.
    assert measured_excess(z, sites, needed // 2, rho, 40)[0] > share
    assert measured_excess(z, sites, 2 * needed, rho, 40)[0] < share


def test_the_short_formula_is_below_it_but_not_by_much():
    """N >= (sigma C^2 / w^2) sqrt((1 + ||b||^2) tr(S^-1) / (2 share n MSE)), by hand: clipping takes more
    from long rows, so that it does not scale all moments alike."""
    z = rows_of("independent", np.random.default_rng(1), 50_000)
    rho, sites, share = rho_of(3.0, DELTA), 5, 0.0005
    whole = z.T @ z / len(z)
    model = np.linalg.solve(whole[:-1, :-1], whole[:-1, -1])
    loss = whole[-1, -1] - model @ whole[:-1, -1]
    square = z.shape[1] / 2
    scaled = np.minimum(1, square / (z**2).sum(axis=1)).mean()
    sigma = math.sqrt(1 / (2 * float(rho)))
    inside = (1 + model @ model) * np.trace(np.linalg.inv(whole[:-1, :-1])) / (2 * share * sites * loss)
    short = sigma * square / scaled * math.sqrt(inside)
    found = noise_cost(z, sites, rho)
    assert short <= found.rows(share) <= 1.5 * short
    assert found.excess(found.rows(share)) == pytest.approx(share, rel=0.01)


def test_how_rows_depend_on_the_budget_and_the_people():
    z = rows_of("correlated", np.random.default_rng(2), 5_000)
    rho = rho_of(1.0, DELTA)
    one = noise_cost(z, 4, rho).rows(0.01)
    assert noise_cost(z, 4, rho / 4).rows(0.01) == pytest.approx(2 * one, abs=2)
    assert noise_cost(z, 4, rho, rows_per_person=3).rows(0.01) == pytest.approx(3 * one, abs=3)
    assert noise_cost(z, 16, rho).rows(0.01) == pytest.approx(one / 2, abs=2)
    assert noise_cost(z, 4, rho).rows(0.04) == pytest.approx(one / 2, abs=2)


def test_bad_requests_say_what_is_wrong():
    z = rows_of("independent", np.random.default_rng(3), 100)
    rho = rho_of(1.0, DELTA)
    with pytest.raises(BidroError, match="positive share"):
        noise_cost(z, 4, rho).rows(0.0)
    with pytest.raises(BidroError, match="do not determine"):
        noise_cost(z[:3], 4, rho)
    exact = np.column_stack([z[:, :-1], z[:, 0]])
    with pytest.raises(BidroError, match="determine the target exactly"):
        noise_cost(exact, 4, rho)
