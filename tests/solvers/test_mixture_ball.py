"""One ball around the fixed mixture: its replies against closed forms, its optimum against exact solvers."""

from dataclasses import replace

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex
from bidro.data.federation import Federation
from bidro.federated.baselines.fedavg import FedAvg
from bidro.federated.contrib.mixture_ball import Broadcast, MixtureBall, Reply, multiplier
from bidro.federated.engines.in_process import all_replies, run
from bidro.losses import CustomLoss, Logistic, Squared
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.inner import BacktrackingAscent, Exact
from bidro.risk.transport import Transport
from bidro.solvers.solve import solve
from tests.small import SIZES, rows

EPS = 0.3
SHARES = np.array(SIZES) / sum(SIZES)
LABELLED = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0.2, 1.0, -1.0)]) for k, v in rows().items()}
ALL = np.concatenate(list(rows().values()))
ALL_LABELLED = np.concatenate(list(LABELLED.values()))


def squared(data=None, eps=EPS, **kwargs):
    """Only features move, p = 2, unbounded: R = (RMSE + eps nu)^2."""
    fed = Federation.from_arrays(rows() if data is None else data, "unbounded")
    return Problem(
        fed, Squared(), Box.cube(5.0, 3), Transport.features_only(4), WassersteinBall(eps), **kwargs
    )


def logistic(data=LABELLED, eps=0.1, kappa=np.inf):
    """p = 1, unbounded: R = mean loss + eps nu where labels stay."""
    fed = Federation.from_arrays(data, "unbounded")
    transport = Transport.classification(4, 1.0, kappa)
    return Problem(fed, Logistic(), Box.cube(5.0, 3), transport, WassersteinBall(eps))


def boxed(data=None, eps=EPS):
    """Squared loss, the target moves too, in a box that the moves reach."""
    fed = Federation.from_arrays(rows() if data is None else data, Box.cube(2.5, 4))
    return Problem(fed, Squared(), Box.cube(5.0, 3), Transport.euclidean(4), WassersteinBall(eps))


def as_one(problem):
    """The same rows, as those of one client."""
    fed = problem.federation
    one = Federation.from_arrays({"all": np.asarray(fed.samples)}, fed.support)
    return replace(problem, federation=one, mixtures=None)


def replies_at(problem, x, excess, **settings):
    broadcast = Broadcast(jnp.asarray(x), jnp.asarray(excess))
    algorithm = MixtureBall(**settings)
    return all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))


def part_of_squared(part, x, s, eps=EPS):
    """(lambda eps^2 + mean phi, mean cost) at lambda = nu^2 + s nu; phi = u^2 lambda / (lambda - nu^2)."""
    nu, u = np.linalg.norm(x), part[:, :3] @ x - part[:, 3]
    return (nu**2 + s * nu) * eps**2 + np.mean(u**2) * (1 + nu / s), np.mean(u**2) / s**2


def part_of_logistic(part, x, s, eps=0.1):
    """The same at lambda = nu + s nu, where no sample moves."""
    margins = part[:, 3] * (part[:, :3] @ x)
    return (1 + s) * np.linalg.norm(x) * eps + np.mean(np.logaddexp(0, -margins)), 0.0


def slopes(function, x):
    return np.array([(function(x + e) - function(x - e)) / 2e-6 for e in 1e-6 * np.eye(len(x))])


CLOSED = {
    "squared": (squared, part_of_squared, rows()),
    "logistic": (logistic, part_of_logistic, LABELLED),
}


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("s", [0.07, 0.9])
def test_a_reply_is_a_step_down_the_client_s_part_and_the_cost_of_its_moves(name, s):
    make, part_of, data = CLOSED[name]
    x = np.array([0.7, -0.4, 0.9])
    found = replies_at(make(), x, s, eta_x=1.0)
    for i, part in enumerate(data.values()):
        gradient = slopes(lambda v, part=part: part_of(part, v, s)[0], x)
        np.testing.assert_allclose(x - found.x[i], gradient, rtol=1e-6, atol=1e-8)
        cost = part_of(part, x, s)[1]
        assert found.cost[i] == pytest.approx(cost, rel=1e-6)
        # The cost of squared loss falls with s^-2.
        assert found.fall[i] == pytest.approx(2 * cost, rel=1e-6)


def test_the_gradients_in_x_and_s_are_those_of_one_function():
    """In a box, where there is no closed form: the dual value at lambda(x, s), differenced."""
    problem, s, x = as_one(boxed()), 0.8, np.array([0.5, -0.6, 0.4])

    @jax.jit
    def whole(x, s):
        price = multiplier(problem.inner, x, s)
        moved = jax.vmap(lambda zeta: Exact().maximise(problem.inner, x, zeta, price))
        return price * EPS**2 + jnp.mean(moved(problem.federation.samples).value)

    found = replies_at(problem, x, s, eta_x=1.0)
    np.testing.assert_allclose(x - found.x[0], slopes(lambda v: whole(v, s), x), rtol=1e-6)
    unit = multiplier(problem.inner, jnp.asarray(x), 1.0)
    by_s = (whole(x, s + 1e-6) - whole(x, s - 1e-6)) / 2e-6
    assert (EPS**2 - found.cost[0]) * unit == pytest.approx(float(by_s), rel=1e-6)


def test_local_steps_and_the_average_against_plain_numpy():
    """Five rounds of two steps each; as C = MSE / s^2, Newton's step in log s ends at RMSE / eps."""
    found = run(MixtureBall(eta_x=0.05, local_steps=2), squared(), 5)
    x, s, reach, cut = np.zeros(3), 1.0, np.log(8), 0
    for _ in range(5):
        models = []
        for part in rows().values():
            v = x
            for _ in range(2):
                nu = np.linalg.norm(v)
                u, along = part[:, :3] @ v - part[:, 3], v / nu if nu > 0 else np.zeros(3)
                plain = 2 * part[:, :3].T @ u / len(part) * (1 + nu / s)
                v = v - 0.05 * (plain + (np.mean(u**2) / s + (2 * nu + s) * EPS**2) * along)
            models.append(v)
        # At x = 0 nothing moves, and s falls as far as it may.
        rmse = np.sqrt(np.mean((ALL[:, :3] @ x - ALL[:, 3]) ** 2))
        wanted = np.log(rmse / EPS / s) if np.any(x) else -np.inf
        reach = reach / 2 if np.sign(wanted) * cut < 0 else min(1.2 * reach, np.log(8))
        s, cut = s * np.exp(np.clip(wanted, -reach, reach)), np.sign(wanted) * (abs(wanted) >= reach)
        x = SHARES @ np.array(models)
    np.testing.assert_allclose(found.x, x, rtol=1e-6)
    assert float(found.state.extra.excess) == pytest.approx(s, rel=1e-6)


def test_any_split_of_the_rows_gives_the_same_model():
    order = np.random.default_rng(3).permutation(len(ALL))
    other = dict(enumerate(np.split(ALL[order], [3, 20, 25, 40])))
    one, two, three = (run(MixtureBall(), p, 60) for p in (squared(), as_one(squared()), squared(other)))
    for again in (two, three):
        np.testing.assert_allclose(one.x, again.x, rtol=1e-9)
        np.testing.assert_allclose(one.state.extra.excess, again.state.extra.excess, rtol=1e-9)


def test_the_optimum_of_squared_loss_and_its_lambda():
    """(RMSE + eps nu)^2 of all rows, in NumPy, and lambda = nu^2 + nu RMSE / eps."""
    problem = squared()
    found = run(MixtureBall(eta_x=0.1), problem, 1500)
    rmse, nu = np.sqrt(np.mean((ALL[:, :3] @ found.x - ALL[:, 3]) ** 2)), np.linalg.norm(found.x)
    assert (rmse + EPS * nu) ** 2 == pytest.approx(solve(as_one(problem), 1e-9).upper, rel=1e-8)
    price = float(multiplier(problem.inner, jnp.asarray(found.x), found.state.extra.excess))
    assert price == pytest.approx(nu**2 + nu * rmse / EPS, rel=1e-6)


def test_the_optimum_of_logistic_loss():
    """mean loss + eps nu of all rows: lambda is at its floor."""
    problem = logistic()
    found = run(MixtureBall(eta_x=0.5), problem, 1000)
    margins, nu = ALL_LABELLED[:, 3] * (ALL_LABELLED[:, :3] @ found.x), np.linalg.norm(found.x)
    risk = np.mean(np.logaddexp(0, -margins)) + 0.1 * nu
    assert risk == pytest.approx(solve(as_one(problem), 1e-9).upper, rel=1e-7)
    price = float(multiplier(problem.inner, jnp.asarray(found.x), found.state.extra.excess))
    assert price == pytest.approx(nu, rel=1e-6)


def test_the_optimum_where_labels_change_against_a_cone_solver():
    """One lambda >= nu for all: lambda eps + mean max(l(m), l(-m) - lambda kappa). C jumps with lambda."""
    kappa = 0.6
    x, price = cp.Variable(3), cp.Variable()
    margins = cp.multiply(ALL_LABELLED[:, 3], ALL_LABELLED[:, :3] @ x)
    worst = cp.maximum(cp.logistic(-margins), cp.logistic(margins) - price * kappa)
    objective = cp.Minimize(price * 0.1 + cp.sum(worst) / len(ALL_LABELLED))
    best = cp.Problem(objective, [price >= cp.norm(x)]).solve(cp.CLARABEL)
    found = run(MixtureBall(eta_x=0.1), logistic(kappa=kappa), 3000)
    m = ALL_LABELLED[:, 3] * (ALL_LABELLED[:, :3] @ found.x)
    kept, changed = np.logaddexp(0, -m), np.logaddexp(0, m)
    # The dual is piecewise linear in lambda: it is lowest at the floor or at one of its corners.
    floor = np.linalg.norm(found.x)
    corners = np.append(np.maximum((changed - kept) / kappa, floor), floor)
    risk = min(c * 0.1 + np.mean(np.maximum(kept, changed - c * kappa)) for c in corners)
    assert risk == pytest.approx(best, rel=1e-3)
    assert float(found.state.extra.excess) > 0.01


def risk_in_box(x, eps=EPS):
    return float(robust_risk(as_one(boxed(eps=eps)), x, curvature=False).value[0])


@pytest.mark.slow
def test_the_optimum_in_a_box_with_and_without_closed_forms():
    """A small radius, and one so large that many moves end at the box. Then squared loss that nothing is
    known of, by ascent: without C's derivative s moves by halving."""
    small, large = (solve(as_one(boxed(eps=eps)), 1e-6).upper for eps in (EPS, 1.2))
    found = run(MixtureBall(eta_x=0.02), boxed(), 1000)
    assert risk_in_box(found.x) == pytest.approx(small, rel=1e-3)
    found = run(MixtureBall(eta_x=0.02), boxed(eps=1.2), 1000)
    assert risk_in_box(found.x, 1.2) == pytest.approx(large, rel=1e-3)
    unknown = replace(boxed(), loss=CustomLoss(lambda x, xi: (xi[:3] @ x - xi[3]) ** 2, jnp.zeros(3)))
    found = run(MixtureBall(oracle=BacktrackingAscent(steps=40)), unknown, 100)
    assert risk_in_box(found.x) == pytest.approx(small, rel=1e-2)


def test_a_radius_that_leaves_only_the_model_0():
    """The optimum is at the kink of the norm: steps of a fixed length stay near it, and do not blow up."""
    problem = squared(eps=1.5)
    found = run(MixtureBall(eta_x=0.002), problem, 3000, record_every=10)
    assert solve(as_one(problem)).x == pytest.approx(np.zeros(3), abs=1e-6)
    assert np.abs(found.history.x[-50:]).max() < 0.01
    assert np.abs(found.history.x).max() < 1.0


@pytest.mark.parametrize(("make", "local_steps"), [(squared, 1), (squared, 3), (boxed, 1)])
def test_without_a_radius_it_is_fedavg(make, local_steps):
    problem = make(eps=0.0)
    found = run(MixtureBall(0.05, local_steps), problem, 40)
    plain = run(FedAvg(0.05, local_steps), replace(problem, ambiguity=None), 40)
    np.testing.assert_allclose(found.x, plain.x, rtol=1e-12)


def test_the_mixture_set_plays_no_part():
    only_first = CappedSimplex(np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(MixtureBall().init(squared(mixtures=only_first)).alpha, SHARES, rtol=1e-12)


def test_averages_are_over_those_who_replied_by_size():
    """With costs of 7 and 30 rows, and C falling like s^-2, s moves by the square root of C / eps^2."""
    algorithm = MixtureBall()
    state = algorithm.init(squared())
    models, costs = np.arange(9.0).reshape(3, 3) / 10, np.array([0.2, np.nan, 0.04])
    replies = Reply(jnp.asarray(models), jnp.asarray(costs), jnp.asarray(2 * costs))
    after = algorithm.server(state, replies, jnp.array([True, False, True]))
    np.testing.assert_allclose(after.x, (7 * models[0] + 30 * models[2]) / 37, rtol=1e-12)
    cost = (7 * 0.2 + 30 * 0.04) / 37
    assert float(after.extra.excess) == pytest.approx(np.sqrt(cost / EPS**2), rel=1e-12)
    nobody = algorithm.server(state, replies, jnp.zeros(3, bool))
    assert float(nobody.extra.excess) == float(state.extra.excess)
    assert float(nobody.extra.reach) == float(state.extra.reach)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: MixtureBall(eta_x=-1.0), "eta_x"),
        (lambda: MixtureBall(local_steps=0), "local step"),
        (lambda: run(MixtureBall(), squared(eps=[0.1, 0.1, 0.2]), 1), "one ball"),
        (lambda: run(MixtureBall(), replace(squared(), ambiguity=Penalty(30.0)), 1), "one ball"),
        (lambda: run(MixtureBall(), replace(squared(), ambiguity=None), 1), "one ball"),
        (
            lambda: run(MixtureBall(), replace(boxed(), transport=Transport.euclidean(4, 3.0)), 1),
            "exact inner",
        ),
    ],
)
def test_what_does_not_suit_is_refused(make, word):
    with pytest.raises(BidroError, match=word):
        make()
