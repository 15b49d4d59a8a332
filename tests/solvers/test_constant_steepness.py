"""Losses of a target without features: what a radius multiplies does not depend on the model."""

import numpy as np
import pytest

from bidro import Absolute, Box, Federation, Huber, Pinball, Problem, Transport, WassersteinBall, solve
from bidro.core.errors import BidroError


def rows():
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(20, 1)), "b": rng.normal(size=(10, 1)) + 1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["curvature", "gradients"])
@pytest.mark.parametrize("loss", [Absolute(True), Pinball(True, quantile=0.8), Huber(True)])
def test_a_kinked_loss_of_a_constant(loss, method):
    """The risk is the worst mean loss of the constant, by a fine grid, and the radius times the slope."""
    federation = Federation.from_arrays(rows(), "unbounded")
    problem = Problem(federation, loss, Box.cube(5.0, 1), Transport.euclidean(1, 1.0), WassersteinBall(0.1))
    found = solve(problem, method=method)
    constants = np.linspace(-1.0, 3.0, 40_001)
    means = [loss.scalar.value(constants[:, None] - own[:, 0]).mean(axis=1) for own in rows().values()]
    assert found.gap <= 1e-6
    assert found.upper == pytest.approx(np.min(np.max(means, axis=0)) + 0.1 * loss.scalar.lipschitz, abs=1e-4)


def test_a_cost_of_ones_own_is_refused():
    class Manhattan(Transport):
        def cost(self, zeta, xi):
            return abs(zeta - xi).sum()

    with pytest.raises(BidroError, match="must be a Transport itself"):
        Problem(
            Federation.from_arrays(rows(), "unbounded"),
            Absolute(True),
            Box.cube(5.0, 1),
            Manhattan(np.ones(1), 1.0),
        )
