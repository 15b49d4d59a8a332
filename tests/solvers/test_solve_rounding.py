"""Lower bounds stay below what a model attains where everything cancels, and rounding is all that is left."""

import warnings

import numpy as np
import pytest

from bidro import Box, Federation, GapNotReachedWarning, Problem, Squared, Transport, WassersteinBall, solve


def constant_target(seed: int, eps: float, half: float) -> Problem:
    """The model of slopes 0 errs nowhere and moves nowhere: the optimum is exactly 0."""
    rng = np.random.default_rng(seed)
    scale, target = 10.0 ** rng.uniform(-2, 2), rng.normal()
    rows = {
        name: np.column_stack(
            [scale * rng.normal(size=(6, 2)) + rng.choice([0, 10, 1000]), np.full(6, target)]
        )
        for name in "ab"
    }
    federation = Federation.from_arrays(rows, "unbounded")
    transport = Transport.features_only(3)
    return Problem(federation, Squared(intercept=True), Box.cube(half, 3), transport, WassersteinBall(eps))


@pytest.mark.parametrize(("method", "seed"), [("gradients", 2), ("gradients", 3), ("curvature", 1)])
def test_no_bound_is_above_a_model_that_errs_nowhere(method, seed):
    for eps, half in ((0.3, 200.0), (1e-9, 2000.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GapNotReachedWarning)
            found = solve(constant_target(seed, eps, half), 1e-9, method, max_rounds=40)
        assert found.lower <= 0.0 <= found.upper
