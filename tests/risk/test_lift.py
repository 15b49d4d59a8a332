"""The steepness nu(x) that balls multiply: what it is, its slopes, and its smoothing."""

import math

import numpy as np
import pytest

from bidro.losses.base import Cone
from bidro.risk.oracle import NO_LIFT, Lift

GROUPS = {"none": None, "some": np.array([0, 0, 1, 2, 2])}


def lift_of(groups, cones=3, seed=0):
    rng = np.random.default_rng(seed)
    return Lift(tuple(Cone(rng.normal(size=(5, 4)), rng.normal(size=5), groups) for _ in range(cones)))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("delta", [0.3, 0.02])
@pytest.mark.parametrize("cones", [1, 3])
def test_the_smoothed_steepness_has_its_derivatives(groups, delta, cones):
    """It is above the steepness, by no more than it says, and `smoothed_at` is its value."""
    lift, h = lift_of(groups, cones), 1e-5
    for x in np.random.default_rng(2).normal(size=(2, 4)):
        exact = max(cone.norm(cone.at(x)) for cone in lift.cones)
        np.testing.assert_allclose(lift.at(x), exact)
        found = lift.smoothed(x, delta)
        assert found.nu == lift.smoothed_at(x, delta)
        assert exact <= found.nu <= exact + lift.overshoot * delta
        for i in range(4):
            step = h * np.eye(4)[i]
            up, down = lift.smoothed(x + step, delta), lift.smoothed(x - step, delta)
            slope = (up.norms - down.norms) / (2 * h)
            np.testing.assert_allclose(slope, found.slopes[:, i], rtol=1e-5, atol=1e-7)
            for p, gamma in enumerate(np.eye(cones)):
                bent = (up.slopes - down.slopes)[p] / (2 * h)
                np.testing.assert_allclose(bent, found.second(gamma)[i], rtol=1e-4, atol=1e-5)


def test_how_far_smoothing_goes_beyond_by_hand():
    """Without groups every row is one of its own; the largest of several norms is not smoothed."""
    assert lift_of(None, 1).overshoot == pytest.approx(1 + math.sqrt(5))
    assert lift_of(None, 3).overshoot == pytest.approx(1 + math.sqrt(5))
    of_groups = math.sqrt((1 + math.log(2)) ** 2 * 2 + 1)
    assert lift_of(GROUPS["some"], 1).overshoot == pytest.approx(1 + of_groups)
    assert NO_LIFT.overshoot == 0


def test_the_steepness_itself_has_its_derivatives_where_there_are_any():
    lift, h = lift_of(None, 1), 1e-5
    assert lift.smooth
    assert lift_of(None, 2).smooth
    assert not lift_of(GROUPS["some"], 1).smooth
    x = np.random.default_rng(3).normal(size=4)
    found = lift.exact(x)
    assert found.nu == pytest.approx(float(lift.at(x)))
    for i in range(4):
        up, down = lift.exact(x + h * np.eye(4)[i]), lift.exact(x - h * np.eye(4)[i])
        assert (up.nu - down.nu) / (2 * h) == pytest.approx(found.slopes[0, i], abs=1e-8)
        bent = (up.slopes - down.slopes)[0] / (2 * h)
        np.testing.assert_allclose(bent, found.second(np.ones(1))[i], atol=1e-6)


def test_models_are_lifted_one_by_one_and_not_without_cones():
    lift, X = lift_of(GROUPS["some"]), np.random.default_rng(4).normal(size=(2, 3, 4))
    np.testing.assert_array_equal(lift.lifted(X)[..., :4], X)
    np.testing.assert_allclose(lift.lifted(X)[1, 2, 4], lift.at(X[1, 2]))
    assert NO_LIFT.lifted(X) is X
