"""The pieces of a path against the path itself, and the maxima on them against fine grids, many at once."""

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.sets import Box, WholeSpace
from bidro.losses import Absolute, Hinge, Huber, Logistic, Pinball, SmoothedHinge, Squared
from bidro.risk.inner.path import Pieces, norm_cost_maxima, pieces_of_path, ray, squared_cost_maxima

LOSSES = [
    Squared(),
    Absolute(),
    Huber(threshold=0.5),
    Pinball(quantile=0.3),
    Hinge(),
    SmoothedHinge(width=0.5),
]
LOSSES += [Logistic()]


@pytest.mark.parametrize("case", range(4))
def test_pieces_are_those_of_the_clipped_path(case):
    """At any nu on either side: how far u has come, and at what squared cost; coordinates without weight or
    that cannot move stay, and where all have met the box the path ends."""
    rng = np.random.default_rng(case)
    a, scale = rng.normal(size=5), np.exp(rng.normal(size=5))
    inverse = 1 / scale
    if case:
        a[1], inverse[3] = 0.0, 0.0
    box = Box(-np.exp(rng.normal(size=5)), np.exp(rng.normal(size=5)))
    zeta = rng.uniform(box.lower, box.upper)
    if case == 2:
        zeta[0], zeta[2] = box.upper[0], box.lower[2]
    found = Pieces(
        *(np.asarray(v) for v in pieces_of_path(jnp.asarray(a), jnp.asarray(zeta), jnp.asarray(inverse), box))
    )
    moving = (a != 0) & (inverse > 0)
    for s in range(2):
        side = 1.0 - 2 * s
        np.testing.assert_array_equal(found.side[s], side)
        assert found.begin[s, 0] == 0
        count = np.count_nonzero(moving)
        np.testing.assert_allclose(found.begin[s, 1:count], found.end[s, : count - 1])
        assert np.all(np.isfinite(found.begin))
        # Pieces on which nothing moves are single points.
        np.testing.assert_array_equal(found.end[s, count:], found.begin[s, count:])
        last = found.end[s, count - 1]
        for nu in (*np.linspace(0, last, 40), 0.5 * found.end[s, 0]):
            xi = np.where(moving, np.clip(zeta + side * nu * a * inverse**2, box.lower, box.upper), zeta)
            (on,) = np.nonzero((found.begin[s, :count] <= nu) & (nu <= found.end[s, :count]))
            assert len(on) > 0
            step = np.where(moving, (xi - zeta) * np.where(moving, scale, 0.0), 0.0)
            for k in on:
                come = side * (found.travel[s, k] + found.rate[s, k] * nu)
                assert come == pytest.approx(a @ (xi - zeta), abs=1e-12)
                assert found.spent[s, k] + found.rate[s, k] * nu**2 == pytest.approx(step @ step, abs=1e-12)


def test_the_path_without_a_box_is_a_ray():
    a, inverse = jnp.array([1.0, 2.0]), jnp.array([2.0, 0.5])
    for found in (pieces_of_path(a, jnp.zeros(2), inverse, WholeSpace(2)), ray(jnp.asarray(5.0))):
        np.testing.assert_array_equal(found.side, [[1.0], [-1.0]])
        np.testing.assert_array_equal(found.rate, [[5.0], [5.0]])
        np.testing.assert_array_equal(found.end, [[np.inf], [np.inf]])
        for zero in (found.begin, found.travel, found.spent):
            np.testing.assert_array_equal(zero, np.zeros((2, 1)))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
def test_the_highest_of_a_loss_less_a_square(loss):
    """Over many prices above the loss's growth and many centres: no point of a fine grid is higher."""
    scalar, rng = loss.scalar, np.random.default_rng(0)
    growth = 1.0 if isinstance(loss, Squared) else 0.0
    kappa = growth + np.exp(rng.uniform(-3.5, 2, 60))
    centre = 3 * rng.normal(size=60)
    found = np.asarray(squared_cost_maxima(scalar, jnp.asarray(kappa), jnp.asarray(centre)))
    grid = centre + np.linspace(-60, 60, 8_001)[:, None]

    def value(u):
        return np.asarray(scalar.value(u)) - kappa * (u - centre) ** 2

    best, highest = value(found).max(axis=0), value(grid).max(axis=0)
    assert np.all(best >= highest - 1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda v: type(v).__name__)
def test_the_highest_of_a_loss_less_a_length(loss):
    """On pieces that have spent something already, of any rate and on either side: of the ends and what is
    found between them one is as high as any point of a fine grid."""
    scalar, rng, count, between = loss.scalar, np.random.default_rng(1), 60, 0
    side = np.repeat([[1.0], [-1.0]], count, axis=1)
    for u0, rho in ((0.3, 0.6), (-0.2, 1.0), (1.5, 1.7)):
        rate, spent, travel = (np.exp(rng.uniform(-2.5, 0.5, (2, count))) for _ in range(3))
        begin = rng.uniform(0, 0.3, (2, count))
        end = begin + np.exp(rng.uniform(-1, 3, (2, count)))
        spent[:, ::10] = 0.0
        pieces = Pieces(*map(jnp.asarray, (side, begin, end, rate, travel, spent)))
        found = np.asarray(norm_cost_maxima(scalar, pieces, jnp.asarray(u0), jnp.asarray(rho)))
        inner = np.where(np.isfinite(found), np.clip(found, begin, end), begin)

        def value(nu, u0=u0, rho=rho, rate=rate, spent=spent, travel=travel):
            u = u0 + side * (travel + rate * nu)
            return np.asarray(scalar.value(u)) - rho * np.sqrt(spent + rate * nu**2)

        best = value(np.concatenate([begin[None], end[None], inner])).max(axis=0)
        highest = value(begin + (end - begin) * np.linspace(0, 1, 1501)[:, None, None]).max(axis=0)
        assert np.all(best >= highest - 1e-9 * (1 + np.abs(highest)))
        between += np.count_nonzero(best > value(np.stack([begin, end])).max(axis=0) + 1e-6)
    assert between >= 5


def test_every_local_maximum_of_logistic_loss_less_a_length_is_found():
    """Over prices and rates of many sizes, some with two of them: each lies next to one that is found."""
    rng, count = np.random.default_rng(2), 800
    rate, spent = np.exp(rng.uniform(-1, 5, count)), np.exp(rng.uniform(-3, 4, count))
    rho = np.sqrt(rate) * np.exp(rng.uniform(-2, 0.7, count))
    travel, u0 = np.zeros(count), rng.uniform(-3, 14, count)
    side, none, far = -np.ones(count), np.zeros(count), np.full(count, np.inf)
    pieces = Pieces(*map(jnp.asarray, (side, none, far, rate, travel, spent)))
    found = np.asarray(norm_cost_maxima(Logistic().scalar, pieces, jnp.asarray(u0), jnp.asarray(rho)))
    nu = np.sqrt(spent / rate) * np.tan(np.linspace(0, 1.56, 2_001))[:, None]
    value = np.logaddexp(0, -(u0 - rate * nu)) - rho * np.sqrt(spent + rate * nu**2)
    peak = (value[1:-1] > value[:-2] + 1e-9) & (value[1:-1] > value[2:] + 1e-9)
    places, case = np.nonzero(peak)
    low, high = nu[places, case], nu[places + 2, case]
    assert np.all(np.any((found[:, case] >= low) & (found[:, case] <= high), axis=0))
    twice = np.bincount(case, minlength=count) == 2
    assert np.count_nonzero(twice) >= 5
