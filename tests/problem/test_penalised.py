"""Statements about the penalised problem: Proposition 2, weak duality, Theorem 2."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.ambiguity import Penalty
from bidro.certify import convergence_bound
from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, WholeSpace
from bidro.data.federation import Federation
from bidro.experiments.reproduce import largest_risk, least_largest_risk
from bidro.federated.algorithms import BiDROFL
from bidro.federated.engines.in_process import run_many
from bidro.losses import Hinge, Huber, Logistic, SmoothedHinge, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.problem.worst_case import ball_bound, implied_radii, penalised_risk
from bidro.risk.inner import Exact, FixedStepAscent
from bidro.risk.transport import Transport
from tests.small import admissible, federation, mostly_slow, rows

X = np.array([0.8, 0.4, -0.3])


def tiny(loss, p):
    """Three samples of one feature and a label, on a grid of the support."""
    samples = np.array([[-0.5, 0.25], [0.75, 0.5], [0.25, -1.0]])
    if loss.labels is not None:
        samples[:, 1] = [1.0, -1.0, 1.0]
    transport = Transport.euclidean(2, p) if loss.labels is None else Transport.classification(2, p, 0.7)
    fed = Federation.from_arrays([samples], Box.cube(1.0, 2))
    return Problem(fed, loss, Box.cube(0.5, 1), transport, Penalty(3.0)), samples


@pytest.mark.parametrize(
    ("loss", "p"),
    mostly_slow(product([Squared(), Huber(), Logistic()], (1.0, 2.0)), lambda case: case == (Squared(), 2.0)),
)
def test_proposition_2_by_a_linear_program(loss, p):
    """sup over distributions of E_Q[l] - rho W_p^p, as a program over couplings with a fine grid.

    The grid contains the samples. Around a smooth maximum the program is short by at most half the
    curvature (2 rho + 2.4) times the squared distance to a grid point (2 * 0.025^2): 0.006.
    """
    problem, samples = tiny(loss, p)
    axis = np.linspace(-1, 1, 41)
    labels = axis if loss.labels is None else np.array([-1.0, 1.0])
    grid = np.array([[a, b] for a in axis for b in labels])
    x = jnp.array([0.45])
    losses = np.asarray(loss.values(x, jnp.asarray(grid)))
    costs = np.array(
        [[float(problem.transport.cost(jnp.asarray(z), jnp.asarray(g))) for g in grid] for z in samples]
    )
    # Variables: the coupling (3 x grid), first marginal 1/3 each, second free.
    first = np.kron(np.eye(3), np.ones(len(grid)))
    program = linprog(-(losses - 3.0 * costs).ravel(), A_eq=first, b_eq=np.full(3, 1 / 3))
    value = float(penalised_risk(problem, x).value[0])
    assert -program.fun <= value + 1e-9
    assert value <= -program.fun + 0.01


def test_the_implied_radius_is_where_the_penalty_is_the_optimal_multiplier():
    """Squared loss, p = 2, support wide: R_eps = (RMSE + eps ||(x, -1)||)^2 in closed form."""
    wide = Problem(
        federation(half_width=100.0),
        Squared(),
        Box.cube(1.5, 3),
        Transport.euclidean(4),
        Penalty([20, 12, 9]),
    )
    radii = implied_radii(wide, X)
    bounds = ball_bound(wide, X, radii)
    norm = np.linalg.norm(np.append(X, -1))
    for part, eps, bound, rho in zip(rows().values(), radii, bounds, [20, 12, 9], strict=True):
        rmse = np.sqrt(np.mean((part[:, :3] @ X - part[:, 3]) ** 2))
        assert bound == pytest.approx((rmse + eps * norm) ** 2, rel=1e-9)
        # The multiplier of that ball by hand: lambda = ||a||^2 + RMSE ||a|| / eps.
        assert norm**2 + rmse * norm / eps == pytest.approx(rho, rel=1e-9)


def test_the_ball_bound_holds_at_every_radius():
    wide = Problem(
        federation(half_width=100.0), Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty(12.0)
    )
    norm = np.linalg.norm(np.append(X, -1))
    for eps in (0.0, 0.01, 0.1, 0.5):
        bounds = ball_bound(wide, X, eps)
        for part, bound in zip(rows().values(), bounds, strict=True):
            rmse = np.sqrt(np.mean((part[:, :3] @ X - part[:, 3]) ** 2))
            assert bound >= (rmse + eps * norm) ** 2 - 1e-12


def test_an_unknown_supremum_gives_no_bound():
    """With ascent below the curvature nothing may call itself certified."""
    with pytest.warns(UserWarning, match="curvature"):
        problem = Problem(federation(), Squared(), Box.cube(100.0, 3), Transport.euclidean(4), Penalty(1.5))
    assert np.all(np.isinf(ball_bound(problem, X, 0.1, FixedStepAscent())))
    assert np.all(np.isfinite(ball_bound(problem, X, 0.1)))


def test_no_radius_where_the_penalised_risk_is_infinite():
    fed = Federation.from_arrays(rows(), "unbounded")
    problem = Problem(fed, Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty([9.0, 9.0, 1.5]))
    radii = implied_radii(problem, np.array([1.0, 1.0, 0.0]))
    assert np.all(np.isfinite(radii[:2]))
    assert np.isnan(radii[2])


def test_the_constants_of_the_theorem_are_upper_bounds():
    """Every constant against 20,000 random points of X and Xi, for several set-ups."""
    import jax

    rng = np.random.default_rng(0)
    labelled = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, -1.0)]) for k, v in rows().items()}
    scaled = Transport(np.array([0.5, 1.0, 2.0, 1.5]))
    set_ups = [
        admissible(),
        Problem(federation(), Huber(), Ball(np.full(3, 0.2), 1.0), scaled, Penalty([9.0, 9.0, 4.0])),
        Problem(
            Federation.from_arrays(labelled, Box.cube(3.0, 4)), Logistic(intercept=True), Box.cube(1.0, 4),
            Transport.classification(4), Penalty(2.0),
        ),
    ]  # fmt: skip
    for problem in set_ups:
        bound = convergence_bound(problem)
        loss, d = problem.loss, problem.dimension
        x = jax.jit(jax.vmap(problem.models.project))(jnp.asarray(rng.uniform(-2, 2, (20_000, d))))
        pairs = rng.uniform(-3, 3, (2, 20_000, 4))
        if loss.labels is not None:
            pairs[:, :, 3] = rng.choice(loss.labels, 20_000)
        xi, other = (jnp.asarray(v) for v in pairs)
        values = jax.jit(jax.vmap(loss.value))
        gradients = jax.jit(jax.vmap(jax.grad(loss.value)))
        distance = jnp.linalg.norm(xi - other, axis=1)
        assert float(jnp.max(jnp.abs(values(x, xi)))) <= bound.B_1
        assert float(jnp.max(jnp.linalg.norm(gradients(x, xi), axis=1))) <= bound.B_2
        change = jnp.linalg.norm(gradients(x, xi) - gradients(x, other), axis=1)
        assert bound.L_xxi >= float(jnp.max(change / distance))
        cost = jax.jit(jax.vmap(problem.transport.cost))(xi, other)
        assert bound.D_c >= float(jnp.max(cost))
        zeta, rho = xi[::-1], float(jnp.max(problem.rho))
        if loss.labels is None:
            phi = jax.jit(jax.vmap(problem.inner.phi, in_axes=(0, 0, 0, None)))
            assert bound.L_cxi >= float(
                jnp.max(jnp.abs(phi(x, zeta, xi, rho) - phi(x, zeta, other, rho)) / distance)
            )


def test_the_bound_by_hand():
    """One client, X = [-1, 1], Xi = [-1, 1]^2, squared loss, rho = 4, T = 100."""
    fed = Federation.from_arrays([np.array([[0.5, 0.5]])], Box.cube(1.0, 2))
    problem = Problem(fed, Squared(), Box.cube(1.0, 1), Transport.euclidean(2), Penalty(4.0))
    bound = convergence_bound(problem)
    # |u| <= 2: B_1 = 4, |L'| = 4, ||theta|| <= 1: B_2 = 4; ||(x, -1)|| = sqrt 2: L_xxi = 2 sqrt 2 + 4;
    # D_c = 8, C = 4 + 32; L_c = 4 sqrt 2 + 4 * 2 * sqrt 8.
    assert (bound.D_x, bound.D_alpha, bound.B_1, bound.B_2) == pytest.approx((2.0, 0.0, 4.0, 4.0))
    assert bound.L_xxi == pytest.approx(2 * np.sqrt(2) + 4)
    assert bound.L_cxi == pytest.approx(4 * np.sqrt(2) + 8 * np.sqrt(8))
    assert pytest.approx((36.0,)) == bound.C
    expected = (2 * 2 * 4 + 2 * 36) / 10 + (4 + 0 + 16 + 36**2) / 20
    assert bound.gap(100) == pytest.approx(expected)
    inexact = (2 * (2 * np.sqrt(2) + 4) + 4 * np.sqrt(2) + 8 * np.sqrt(8)) * 0.01
    assert bound.gap(100, epsilon=0.01) == pytest.approx(expected + inexact)


def test_the_constants_by_hand_with_labels_and_an_intercept():
    """Smoothed hinge, X = [-1, 2] x [-3, 1], a feature in [-2, 1] that counts 0.5, labels at a price of 0.7,
    p = 1: |score| <= 2 * 2 + 3 = 7, where the loss is 8 - width / 2 and its slope 1."""
    box = Box(np.array([-2.0, -1.0]), np.array([1.0, 1.0]))
    fed = Federation.from_arrays([np.array([[0.5, 1.0]]), np.array([[-0.5, -1.0]])], box)
    models = Box(np.array([-1.0, -3.0]), np.array([2.0, 1.0]))
    cost = Transport(np.array([0.5, np.inf]), 1.0, discrete_label=True, label_cost=0.7)
    problem = Problem(fed, SmoothedHinge(width=0.5, intercept=True), models, cost, Penalty([4.0, 2.0]))
    bound = convergence_bound(problem)
    assert (bound.n, bound.D_x, bound.D_alpha) == pytest.approx((2, 5.0, np.sqrt(2)))
    assert pytest.approx(8 - 0.25) == bound.B_1
    assert pytest.approx(np.sqrt(5)) == bound.B_2
    # Curvature 1 / width, ||(theta, 1)|| <= sqrt 5, |w| <= 2, and the slope itself.
    assert bound.L_xxi == pytest.approx(2 * np.sqrt(5) * 2 + 1)
    # The feature's width of 3 at 0.5, and the label's price.
    assert bound.D_c == pytest.approx(1.5 + 0.7)
    assert bound.L_cxi == pytest.approx(2 + 4 * 0.5)
    assert pytest.approx((7.75 + 4 * 2.2, 7.75 + 2 * 2.2)) == bound.C


def test_the_measured_gap_is_below_the_bound_and_falls_at_the_rate():
    """Theorem 2 on an admissible problem: 16 runs at each T, steps 1 / sqrt(T)."""
    problem = admissible()
    best = least_largest_risk(problem, Exact(), [np.array([1.0, 0.5, -0.5])])
    bound = convergence_bound(problem)
    horizons, means = [200, 800, 3200], []
    samples = np.repeat(np.asarray(problem.federation.samples)[None], 16, axis=0)
    for rounds in horizons:
        step = 1 / np.sqrt(rounds)
        algorithm = BiDROFL(eta_x=step, eta_alpha=step, oracle=Exact())
        results = run_many(algorithm, problem, samples, rounds, seeds=range(16))
        gaps = np.array([largest_risk(problem, Exact(), r.x_average) - best for r in results])
        assert np.all(gaps > -1e-9)
        means.append(gaps.mean())
        assert gaps.mean() + 3 * gaps.std() / 4 < bound.gap(rounds)
    slope = np.polyfit(np.log(horizons), np.log(means), 1)[0]
    # Sixteen runs leave a standard error near 0.05 in the slope.
    assert slope < -0.5 + 0.15


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: convergence_bound(Problem(federation(), Squared(), Box.cube(1, 3), Transport.euclidean(4))),
         "Penalty"),
        (lambda: implied_radii(admissible(), np.ones(2)), "3 finite numbers"),
        (lambda: implied_radii(admissible(), np.array([1.0, np.nan, 1.0])), "3 finite numbers"),
        (lambda: ball_bound(admissible(), X, [0.1, np.inf, 0.1]), "finite"),
        (lambda: ball_bound(admissible(), X, [0.1, -0.1, 0.1]), "not negative"),
        (lambda: convergence_bound(admissible()).gap(1, -1e-9), "epsilon >= 0"),
        (lambda: ball_bound(admissible(), X, [0.1, 0.2]), "one number or 3"),
        (lambda: ball_bound(admissible(), X, -1.0), "not negative"),
        (lambda: convergence_bound(admissible()).gap(0), "rounds"),
    ],
)  # fmt: skip
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


@pytest.mark.filterwarnings("ignore::bidro.problem.problem.NonconcaveInnerWarning")
def test_the_theorem_says_where_it_does_not_apply():
    labelled = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, -1.0)]) for k, v in rows().items()}
    fed = Federation.from_arrays(labelled, Box.cube(3.0, 4))
    hinge = Problem(fed, Hinge(), Box.cube(1.0, 3), Transport.classification(4), Penalty(2.0))
    with pytest.raises(BidroError, match="not differentiable"):
        convergence_bound(hinge)
    open_models = Problem(federation(), Squared(), WholeSpace(3), Transport.euclidean(4), Penalty(2.0))
    with pytest.raises(BidroError, match="compact model set"):
        convergence_bound(open_models)
    unbounded = Federation.from_arrays(rows(), "unbounded")
    open_support = Problem(unbounded, Squared(), Box.cube(1, 3), Transport.euclidean(4), Penalty(9.0))
    with pytest.raises(BidroError, match="compact support"):
        convergence_bound(open_support)
    classes = {k: np.column_stack([v[:, :3], (v[:, 3] > 0).astype(float)]) for k, v in rows().items()}
    fed = Federation.from_arrays(classes, Box.cube(3.0, 4))
    softmax = Problem(fed, Softmax(), Box.cube(1.0, 6), Transport.classification(4), Penalty(2.0))
    with pytest.raises(BidroError, match="Softmax"):
        convergence_bound(softmax)
