"""Softmax of two classes against logistic loss, which it is: risks, cuts and curvatures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.sets import Box, WholeSpace
from bidro.losses import Logistic, Softmax
from bidro.problem.client import Client
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from tests.small import mostly_slow

AMBIGUITIES = [WassersteinBall(0.3), Penalty(2.5), None]
CASES = [
    (p, bounded, ambiguity, cost)
    for p in (1.0, 2.0)
    for bounded in (False, True)
    for ambiguity in AMBIGUITIES
    for cost in (np.inf, 0.7)
]
FAST = [
    (2.0, False, AMBIGUITIES[0], np.inf),
    (1.0, True, AMBIGUITIES[0], 0.7),
    (2.0, False, AMBIGUITIES[1], 0.7),
]


@pytest.mark.parametrize(
    ("p", "bounded", "ambiguity", "label_cost"), mostly_slow(CASES, lambda case: case in FAST)
)
def test_two_classes_have_the_risk_of_their_difference(p, bounded, ambiguity, label_cost):
    """With the scores that both classes have in common at 7, which changes nothing."""
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.uniform(-1, 1, (9, 2)), rng.integers(0, 2, 9)])
    signs = np.column_stack([rows[:, :2], 2 * rows[:, 2] - 1])
    v = np.array([1.3, -0.4, 0.6])
    half = np.concatenate([-v[:2], v[:2], [-v[2], v[2]]]) / 2
    x = half + 7.0
    transport = Transport(np.array([0.8, 1.3, 1.0]), p, True, label_cost)
    ends = np.full(2, 1.6)

    def risk(loss, rows, lowest, model):
        support = Box(np.append(-ends, lowest), np.append(ends, 1.0)) if bounded else WholeSpace(3)
        client = Client.single("a", rows, loss, transport, support, ambiguity)
        ask = jax.jit(lambda c, m: c.risk(Exact(), m, jnp.zeros(()), True))
        return ask(client, jnp.asarray(model))

    of_scores = risk(Softmax(2, intercept=True, pseudo_rows=0.5), rows, 0.0, x)
    of_margin = risk(Logistic(intercept=True, pseudo_rows=0.5), signs, -1.0, v)
    for name in ("value", "attained", "multiplier"):
        assert float(getattr(of_scores, name)) == pytest.approx(float(getattr(of_margin, name)), rel=1e-9)
    # v = D x, and nu is its own where risks are lifted.
    apart = np.zeros((3, 6))
    apart[[0, 1, 2], [0, 1, 4]], apart[[0, 1, 2], [2, 3, 5]] = -1.0, 1.0
    lifted = len(of_margin.gradient) == 4
    if lifted:
        apart = np.pad(apart, ((0, 1), (0, 1)))
        apart[-1, -1] = 1.0
    assert lifted == (isinstance(ambiguity, WassersteinBall) and not bounded)
    np.testing.assert_allclose(of_scores.gradient, apart.T @ of_margin.gradient, rtol=1e-6, atol=1e-9)
    bent = apart.T @ np.asarray(of_margin.curvature) @ apart
    np.testing.assert_allclose(of_scores.curvature, bent, rtol=1e-5, atol=1e-8)
