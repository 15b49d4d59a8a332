"""The bound of softmax's inner supremum by cells, against many probabilities and many moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from bidro.core.sets import Box, WholeSpace
from bidro.losses import Softmax
from bidro.risk.inner import Inner
from bidro.risk.inner.exact import Sample, ceiling, highest
from bidro.risk.transport import Transport

SCALE = np.array([0.7, 1.6, 1.0])
BOX = Box(np.array([-1.0, -2.0, 0.0]), np.array([1.5, 1.0, 2.0]))


@pytest.mark.parametrize(("p", "support"), [(2.0, WholeSpace(3)), (2.0, BOX), (1.0, BOX)])
def test_no_probabilities_and_no_move_are_above_the_bound_which_is_reached(p, support):
    """Of 60 samples with models of all sizes; h is written out anew for p = 2, where it is that of a clipped
    move, and moves are drawn at random for both."""
    inner = Inner(Transport(SCALE, p, True), support, Softmax(3, intercept=True))
    rng = np.random.default_rng(7)

    @jax.jit
    def bounds(x, start, rho):
        sample = Sample.of(inner, x, start, rho)
        tops = highest(sample)
        value = sample.value(tops.theta)
        return value, ceiling(sample, tops, value, jnp.asarray(True))

    q = rng.dirichlet([0.4, 0.4, 0.4], 2000)
    entropy = -np.sum(q * np.log(np.maximum(q, 1e-300)), axis=1)
    for _ in range(60):
        x = rng.normal(size=9) * rng.choice([0.3, 1.0, 3.0, 10.0])
        start = np.array([rng.uniform(-1, 1.5), rng.uniform(-2, 1), float(rng.integers(3))])
        rho = float(rng.choice([0.2, 1.0, 5.0]))
        value, top = (float(v) for v in bounds(jnp.asarray(x), jnp.asarray(start), jnp.asarray(rho)))
        weights, own = x[:6].reshape(3, 2), int(start[2])
        weights, shifts = weights - weights[own], x[6:] - x[6 + own]

        def cost(theta, start=start, rho=rho):
            return rho * np.linalg.norm(SCALE[:2] * (theta - start[:2]), axis=1) ** p

        if p == 2:
            theta = start[:2] + q @ weights / (2 * rho * SCALE[:2] ** 2)
            theta = theta if support is not BOX else np.clip(theta, BOX.lower[:2], BOX.upper[:2])
            of_q = entropy + np.sum(q * (theta @ weights.T + shifts), axis=1) - cost(theta)
            assert of_q.max() <= top + 1e-9
        theta = rng.uniform(BOX.lower[:2], BOX.upper[:2], (2000, 2))
        assert (logsumexp(theta @ weights.T + shifts, axis=1) - cost(theta)).max() <= top + 1e-9
        assert value <= top <= value + 1e-8 * max(abs(value), 1.0)
