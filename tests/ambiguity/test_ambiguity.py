"""What an ambiguity says of itself, and a user's own, lifted and with curvature, against a cone solver."""

from typing import ClassVar

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro import Ambiguity, Penalty, RiskModel, WassersteinBall, pytree, run, solve
from bidro.ambiguity import NoAmbiguity
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.baselines import GroupDROBalls
from bidro.federated.engines.in_process import HostClients, all_replies
from bidro.losses import Absolute, Huber, Logistic, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.state import Broadcast

SLOPES = {"north": 1.0, "south": 1.8, "harbour": 0.4}


def rows():
    rng = np.random.default_rng(3)
    parts = {}
    for k, (name, slope) in enumerate(SLOPES.items()):
        X = rng.normal(size=(20 + 5 * k, 2))
        parts[name] = np.column_stack([X, X @ [slope, -0.5] + 0.4 * rng.normal(size=len(X))])
    return parts


def problem(ambiguity):
    federation = Federation.from_arrays(rows(), "unbounded")
    return Problem(federation, Squared(), Box.cube(5.0, 2), Transport.features_only(3), ambiguity)


@pytree
class CommonShift(Ambiguity):
    """All rows of a client move by the same vector, of a length of at most `length`: squared loss."""

    length: float

    has_curvature: ClassVar[bool] = True

    def lifted(self, inner):
        return True

    def risk(self, rows, inner, oracle, at, curvature):
        def total(args, block, weights):
            z, move = args

            def value(v):
                return weights @ (inner.loss.arguments(v[:-1], block) + move * v[-1]) ** 2

            return value(z), jax.grad(value)(z), jax.hessian(value)(z)

        # Of the two ends the worse is the one to which the mean residual points, also where nu = 0.
        away = jnp.where(rows.mean(inner.loss.arguments, at.x) < 0, -1.0, 1.0)
        found = rows.sum(total, (jnp.append(at.x, at.nu), away * self.length))
        value, gradient, hessian = (part / rows.size for part in found)
        return RiskModel.of(value, value, gradient, hessian if curvature else None)


def by_cone_solver(length):
    x, t = cp.Variable(2), cp.Variable()
    nu = cp.Variable()
    limits = [cp.norm(x) <= nu, cp.abs(x) <= 5]
    for own, eps in zip(rows().values(), np.broadcast_to(length, 3), strict=True):
        left = own[:, :2] @ x - own[:, 2]
        limits += [cp.sum_squares(left + s * eps * nu) <= len(own) * t for s in (1.0, -1.0)]
    cp.Problem(cp.Minimize(t), limits).solve(cp.CLARABEL)
    return x.value, float(t.value)


@pytest.mark.parametrize("method", ["curvature", "gradients"])
def test_an_own_ambiguity_is_solved_as_a_cone_solver_does(method):
    for length in (0.0, 0.3, np.array([0.1, 0.5, 0.2])):
        solution = solve(problem(CommonShift(length)), 1e-7, method=method)
        x, least = by_cone_solver(length)
        assert solution.certified
        assert solution.gap <= 1e-7
        assert solution.upper == pytest.approx(least, rel=1e-6)
        np.testing.assert_allclose(solution.x, x, atol=2e-3)


def test_an_own_ambiguity_is_larger_than_none_and_smaller_than_a_ball():
    shift, ball, none = (solve(problem(a)).upper for a in (CommonShift(0.3), WassersteinBall(0.3), None))
    assert none < shift < ball


def test_algorithms_that_take_steps_take_an_own_ambiguity_too():
    found = run(GroupDROBalls(0.02, 0.1), problem(CommonShift(0.2)), 3000)
    np.testing.assert_allclose(found.x_average, by_cone_solver(0.2)[0], atol=0.05)


def test_numbers_are_one_a_client_or_shared():
    each = CommonShift([0.1, 0.2, 0.3]).per_client(3)
    assert each.of_client(1).length == 0.2
    np.testing.assert_array_equal(CommonShift(0.5).per_client(2).length, [0.5, 0.5])
    assert Penalty(2.0).per_client(2).of_client(0).rho == 2.0
    assert WassersteinBall(0.0).per_client(1).radius == 0.0
    for wrong, words in (([0.1, 0.2], "3 clients but length of shape"), ("far", "length must be numbers")):
        with pytest.raises(BidroError, match=words):
            problem(CommonShift(wrong))
    with pytest.raises(BidroError, match="finite"):
        problem(CommonShift(np.nan))


def test_what_each_says_of_itself():
    ambiguities = (WassersteinBall(0.1), Penalty(9.0), None, CommonShift(0.1))
    ball, penalty, none, own = map(problem, ambiguities)
    assert [p.ambiguity_set.over_balls for p in (ball, penalty, none, own)] == [True, False, False, False]
    assert [p.ambiguity_set.penalised for p in (ball, penalty, none, own)] == [False, True, False, False]
    assert [p.lifted for p in (ball, penalty, none, own)] == [True, False, False, True]
    assert [len(p.cones) for p in (ball, penalty, none, own)] == [1, 0, 0, 1]
    closed = [p.ambiguity_set.closed_form(p.inner) for p in (ball, penalty, none, own)]
    assert closed == [True, False, True, False]
    assert [p.eps.tolist() for p in (ball, none)] == [[0.1] * 3, [0.0] * 3]
    assert [p.rho.tolist() for p in (penalty, none)] == [[9.0] * 3, [np.inf] * 3]
    assert isinstance(none.ambiguity_set, NoAmbiguity)
    assert [p.own_ambiguity(0) is None for p in (ball, none)] == [False, True]
    assert ball.with_balls() is ball
    assert own.with_balls().eps.tolist() == [0.0] * 3
    with pytest.raises(BidroError, match="CommonShift has no radius"):
        own.ambiguity_set.widened(0.1)
    assert len({p.fingerprint for p in (ball, penalty, none, own)}) == 4
    assert own.fingerprint == problem(CommonShift(0.1)).fingerprint
    assert own.fingerprint != problem(CommonShift(0.2)).fingerprint


@pytest.mark.parametrize(
    "loss", [Logistic(True), Softmax(3), Huber(), Absolute(True)], ids=lambda v: type(v).__name__
)
def test_without_ambiguity_rows_on_the_host_say_what_compiled_clients_do(loss):
    rng = np.random.default_rng(0)
    table = [rng.normal(size=(size, 4)) for size in (20, 30)]
    cost = Transport.features_only(4, 1.0)
    if loss.labels is not None:
        cost = Transport.classification(4, 1.0)
        for own in table:
            own[:, -1] = rng.choice(loss.labels, len(own))
    federation = Federation.from_arrays(table, "unbounded")
    clients = HostClients(Problem(federation, loss, Box.cube(5.0, loss.dimension(4)), cost), None, 0)
    query, sent = ExactMWDRO(Exact()), Broadcast(0.3 * rng.normal(size=loss.dimension(4)), np.asarray(0.1))
    found = query.client_batch_numpy(sent, clients.host)
    for one, other in zip(found, all_replies(query, *clients._compiled, sent, 0), strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-12, atol=1e-14)
