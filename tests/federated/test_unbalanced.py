"""Unbalanced transport against an exponential-cone solver, the dual formula, and data with an outlier."""

from dataclasses import replace

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from bidro.ambiguity import Penalty
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.baselines.unbalanced import UnbalancedDRO
from bidro.federated.engines.in_process import all_replies, run
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.problem.worst_case import penalised_risk
from bidro.risk.transport import Transport
from tests.small import rows

RHO = 20.0


def unbounded(data=None, rho=RHO):
    """Squared loss, only features move: sup over xi of l - rho c = u^2 rho / (rho - |w|^2)."""
    fed = Federation.from_arrays(rows() if data is None else data, "unbounded")
    return Problem(fed, Squared(), Box.cube(1.5, 3), Transport.features_only(4), Penalty(rho))


def phi(part, x, rho=RHO):
    u = part[:, :3] @ x - part[:, 3]
    return u**2 * rho / (rho - x @ x)


def replies_at(algorithm, problem, x):
    at = algorithm.broadcast(algorithm.init(problem))._replace(x=jnp.asarray(x))
    return all_replies(algorithm, problem.clients, jax.random.key(0), at, jnp.asarray(1))


@pytest.mark.parametrize(("sign", "side"), [("up", 1.0), ("down", -1.0)])
@pytest.mark.parametrize("tau", [0.003, 0.05, 10.0])
def test_a_reply_is_the_value_and_its_gradient(sign, side, tau):
    """Value by scipy's logsumexp of the closed form, gradient by differences of it."""
    x = np.array([0.4, -0.3, 0.8])
    found = replies_at(UnbalancedDRO(tau, sign=sign), unbounded(), x)

    def value(part, x):
        return side * RHO * tau * (logsumexp(side * phi(part, x) / (RHO * tau)) - np.log(len(part)))

    for i, part in enumerate(rows().values()):
        assert found.value[i] == pytest.approx(value(part, x), rel=1e-10)
        step = 1e-6 * np.eye(3)
        slope = [(value(part, x + e) - value(part, x - e)) / 2e-6 for e in step]
        np.testing.assert_allclose(found.gradient[i], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("sign", "side"), [("up", 1.0), ("down", -1.0)])
def test_the_value_is_the_best_reweighting_of_rows(sign, side):
    """rho tau log mean exp(phi / (rho tau)) = max over q of q phi - rho tau KL(q | uniform); the other sign
    is the minimum with the divergence added."""
    x, tau, part = np.array([0.4, -0.3, 0.8]), 0.01, rows()["site-0"]
    values = phi(part, x)

    def objective(logits):
        q = np.exp(logits - logsumexp(logits))
        return -side * (q @ values - side * RHO * tau * q @ np.log(q * len(q)))

    best = minimize(objective, np.zeros(len(part)), method="BFGS", options={"gtol": 1e-10})
    found = replies_at(UnbalancedDRO(tau, sign=sign), unbounded(), x)
    assert float(found.value[0]) == pytest.approx(-side * best.fun, rel=1e-7)


def test_the_optimum_against_a_cone_solver():
    """Target alone moves (x - 1): sup = u^2 rho / (rho - 1) is convex, and the optimum over x and the worst
    mixture is an exponential cone program."""
    tau = 0.05
    transport = Transport(jnp.asarray([np.inf, np.inf, np.inf, 1.0]), 2.0)
    fed = Federation.from_arrays(rows(), "unbounded")
    problem = Problem(fed, Squared(), Box.cube(1.5, 3), transport, Penalty(RHO))
    x, t = cp.Variable(3), cp.Variable()
    cuts = [
        cp.log_sum_exp(cp.square(p[:, :3] @ x - p[:, 3]) * (RHO / (RHO - 1)) / (RHO * tau)) - np.log(len(p))
        <= t
        for p in rows().values()
    ]
    cp.Problem(cp.Minimize(t), cuts).solve(cp.CLARABEL)
    found = run(UnbalancedDRO(tau, eta_x=0.02, eta_alpha=0.02), problem, 20_000).x_average

    def worst(x):
        return max(
            logsumexp((p[:, :3] @ x - p[:, 3]) ** 2 * (RHO / (RHO - 1)) / (RHO * tau)) - np.log(len(p))
            for p in rows().values()
        )

    assert worst(x.value) == pytest.approx(float(t.value), rel=1e-6)
    assert worst(found) == pytest.approx(float(t.value), rel=5e-3)


@pytest.mark.parametrize("sign", ["up", "down"])
def test_a_large_tau_leaves_the_penalised_risk(sign):
    x = np.array([0.4, -0.3, 0.8])
    problem = unbounded()
    found = replies_at(UnbalancedDRO(1e7, sign=sign), problem, x)
    np.testing.assert_allclose(found.value, penalised_risk(problem, x).value, rtol=1e-6)


def test_one_wild_row_rules_up_and_not_down():
    """The plain problem lies between: what an outlier changes of the model."""
    data = rows()
    wild = {name: part.copy() for name, part in data.items()}
    wild["site-2"][0, 3] += 6.0

    def moved(algorithm, problem):
        models = [run(algorithm, problem(d), 3000).x for d in (data, wild)]
        return np.linalg.norm(models[1] - models[0])

    up, plain, down = (
        moved(UnbalancedDRO(tau, 0.05, 0.0, sign), unbounded)
        for tau, sign in ((0.05, "up"), (1e7, "up"), (0.05, "down"))
    )
    assert up > 2 * plain
    assert down < plain / 2


@pytest.mark.parametrize("sign", ["up", "down"])
def test_large_losses_do_not_overflow(sign):
    data = {name: 100 * part for name, part in rows().items()}
    found = run(UnbalancedDRO(1e-2, 1e-6, 0.1, sign), unbounded(data), 20)
    assert np.all(np.isfinite(found.x))
    assert found.alpha.sum() == pytest.approx(1.0)


def test_the_step_in_alpha_is_the_gradient():
    """By differences of the whole objective, up to a constant."""
    algorithm, problem, tau = UnbalancedDRO(0.02, 0.0, 1e-4), unbounded(), 0.02
    state = algorithm.init(problem)
    replies = replies_at(algorithm, problem, np.array([0.4, -0.3, 0.8]))
    after = algorithm.server(state, replies, jnp.ones(3, bool))
    values = np.asarray(replies.value)

    def whole(alpha):
        return RHO * tau * np.log(alpha @ np.exp(values / (RHO * tau)))

    alpha = np.asarray(state.alpha)
    slope = np.array([(whole(alpha + e) - whole(alpha - e)) / 2e-6 for e in 1e-6 * np.eye(3)])
    moved = (np.asarray(after.alpha) - alpha) / 1e-4
    np.testing.assert_allclose(moved - moved.mean(), slope - slope.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: UnbalancedDRO(tau=0.0), "tau"),
        (lambda: UnbalancedDRO(sign="left"), "'up' or 'down'"),
        (
            lambda: run(UnbalancedDRO(), replace(unbounded(), ambiguity=Penalty([20.0, 21.0, 22.0])), 1),
            "the same",
        ),
        (lambda: run(UnbalancedDRO(), replace(unbounded(), ambiguity=None), 1), "Penalty"),
    ],
)
def test_bad_settings_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
