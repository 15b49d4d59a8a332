"""FDR-SVM by ADMM against a cone solver."""

from dataclasses import replace

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.baselines.fdr_svm import FDRSVM, _onto_cone
from bidro.federated.engines.in_process import run
from bidro.losses import Hinge, Logistic
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from tests.small import rows

DATA = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0.3, 1.0, -1.0)]) for k, v in rows().items()}
EPS = np.array([0.1, 0.05, 0.02])


def problem(eps=EPS, kappa=1.0, data=DATA, intercept=True):
    fed = Federation.from_arrays(data, "unbounded")
    loss = Hinge(intercept=intercept)
    transport = Transport.classification(4, 1.0, kappa)
    return Problem(fed, loss, Box.cube(20.0, loss.dimension(4)), transport, WassersteinBall(eps))


def cone_optimum(eps, kappa, data=DATA, fixed=None):
    """The optimum by cvxpy, or the value at a given model (w, b)."""
    w, b, lam = cp.Variable(3), cp.Variable(), cp.Variable(len(data))
    total = sum(len(part) for part in data.values())
    value = 0
    for i, part in enumerate(data.values()):
        margins = cp.multiply(part[:, 3], part[:, :3] @ w + b)
        kept, changed = cp.pos(1 - margins), cp.pos(1 + margins)
        worst = kept if np.isinf(kappa) else cp.maximum(kept, changed - lam[i] * kappa)
        value = value + (lam[i] * eps[i] * len(part) + cp.sum(worst)) / total
    cuts = [lam >= cp.norm(w)]
    if fixed is not None:
        cuts += [w == fixed[:3], b == fixed[3]]
    return float(cp.Problem(cp.Minimize(value), cuts).solve(cp.CLARABEL))


@pytest.mark.parametrize("kappa", [0.3, 1.0, np.inf])
def test_the_optimum_against_a_cone_solver(kappa):
    found = run(FDRSVM(), problem(kappa=kappa), 400)
    best = cone_optimum(EPS, kappa)
    assert cone_optimum(EPS, kappa, fixed=found.x) == pytest.approx(best, rel=5e-3)
    # All clients agree.
    assert np.abs(found.state.extra.own - found.x).max() < 0.05


def test_without_balls_it_is_the_plain_machine():
    """eps = 0 and labels that stay: hinge loss over all rows, by cvxpy."""
    none = np.zeros(3)
    found = run(FDRSVM(), problem(eps=none, kappa=np.inf), 400)
    pooled = np.concatenate(list(DATA.values()))
    margins = pooled[:, 3] * (pooled[:, :3] @ found.x[:3] + found.x[3])
    assert np.mean(np.maximum(1 - margins, 0)) == pytest.approx(cone_optimum(none, np.inf), rel=5e-3)


def test_one_client():
    one = {"site-2": DATA["site-2"]}
    found = run(FDRSVM(), problem(eps=EPS[:1], data=one), 200)
    best = cone_optimum(EPS[:1], 1.0, one)
    assert cone_optimum(EPS[:1], 1.0, one, fixed=found.x) == pytest.approx(best, rel=5e-3)


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4), st.floats(-5, 5))
@settings(max_examples=60, deadline=None)
def test_projection_on_the_cone(v, price):
    """Against its optimality conditions: inside, and no nearer point along the way to any point inside."""
    loss, point = Hinge(intercept=True), np.append(v, price)
    found = np.append(*(np.asarray(part) for part in _onto_cone(loss, jnp.asarray(v), jnp.asarray(price))))
    assert np.linalg.norm(found[:3]) <= found[4] + 1e-9
    assert found[3] == v[3]
    rng = np.random.default_rng(0)
    inside = rng.normal(size=(50, 5))
    inside[:, 4] = np.linalg.norm(inside[:, :3], axis=1) + rng.exponential(size=50)
    assert np.all((inside - found) @ (point - found) <= 1e-8)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: FDRSVM(c=0.0), "penalty c"),
        (lambda: FDRSVM(inner_steps=0), "inner step"),
        (lambda: run(FDRSVM(), replace(problem(), loss=Logistic(intercept=True)), 1), "hinge"),
        (lambda: run(FDRSVM(), replace(problem(), ambiguity=Penalty(30.0)), 1), "balls"),
        (lambda: run(FDRSVM(), replace(problem(), transport=Transport.classification(4, 2.0)), 1), "p = 1"),
    ],
)
def test_what_does_not_suit_is_refused(make, word):
    with pytest.raises(BidroError, match=word):
        make()
