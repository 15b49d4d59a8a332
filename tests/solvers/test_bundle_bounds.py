"""The parts of the exact solver: bounds that hold whatever the cone solver returns, and its estimates."""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import all_replies
from bidro.losses import Absolute, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.bound import exact_combination, lower_bound
from bidro.solvers.bundle.model import Answer, ConeModel, Curvature, Cuts
from bidro.solvers.bundle.steps import quasi_newton
from tests.small import rows

MIXTURES = [
    Simplex(3),
    CappedSimplex(np.zeros(3), np.array([0.6, 0.5, 0.4])),
    L1SimplexBall(np.array([0.5, 0.3, 0.2]), 0.4),
]


def made(kind):
    fed = Federation.from_arrays(rows(), "unbounded")
    arguments = (fed, Squared()), Transport.euclidean(4)
    models = Ball(np.array([0.2, -0.1, 0.3]), 0.9) if kind == "ball" else Box.cube(1.2, 3)
    ambiguity = Penalty([4.0, 5.0, 6.0]) if kind == "cut" else WassersteinBall([0.3, 0.0, 0.1])
    return Problem(*arguments[0], models, arguments[1], ambiguity)


def replies_at(problem, x):
    algorithm = ExactMWDRO(Exact())
    broadcast = algorithm.broadcast(algorithm.init(problem)._replace(x=x))
    return all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))


@pytest.mark.parametrize("kind", ["box", "ball", "cut"])
def test_no_multipliers_prove_too_much(kind):
    """Random ones, made feasible as the solver's are: what they prove never exceeds the true objective."""
    problem, rng = made(kind), np.random.default_rng(0)
    start = ExactMWDRO(Exact()).init(problem).model
    points = [np.asarray(problem.domain.project(jnp.asarray(v))) for v in rng.normal(size=(6, 3))]
    replies = [replies_at(problem, x) for x in points]
    tight = 0
    for mixtures in MIXTURES:
        model = start._replace(mixtures=mixtures)
        cuts = Cuts.none(len(model.lift(points[0])))
        for x, reply in zip(points, replies, strict=True):
            cuts = cuts.with_more(
                Cuts.at_point(
                    np.arange(3), np.asarray(reply.attained), np.asarray(reply.gradient), model.lift(x)
                )
            )
        objectives = [model.worst_mixture(np.asarray(reply.upper)) for reply in replies]
        z = model.lift(points[0])
        solved = model.solve(cuts, z, None, 1.0)
        trained = model._replace(finite=model.models)
        exact = lower_bound(trained, cuts, z, solved, solved.value, np.inf).bound
        assert lower_bound(model, cuts, z, solved, solved.value, np.inf).bound <= exact
        assert exact <= min(objectives) + 1e-9
        # The solver's own multipliers prove its value, as far as it is accurate.
        assert exact == pytest.approx(solved.value, abs=1e-6)
        for _ in range(30):
            raw = rng.exponential(size=len(cuts.owner)) * (rng.uniform(size=len(cuts.owner)) < 0.4)
            multipliers, alpha = model.feasible(cuts, raw, cuts.at(z))
            assert bool(mixtures.contains(jnp.asarray(alpha)))
            sums = np.bincount(cuts.owner, multipliers, 3)
            np.testing.assert_allclose(sums, alpha, atol=1e-12)
            cone_duals = 5 * rng.normal(size=len(model.cone_matrix))
            norm_duals = tuple(rng.normal(size=len(n.offset)) for n in model.models.constraints().norms)
            shares = rng.exponential(size=len(solved.shares))
            answer = Answer(z, 0.0, multipliers, alpha, shares, cone_duals, norm_duals)
            # Whatever is known at z, they are mended: -inf lies below all that cuts say there.
            proof = lower_bound(model, cuts, z, answer, -np.inf, np.inf)
            assert bool(mixtures.contains(jnp.asarray(proof.alpha)))
            assert proof.bound <= min(objectives) + 1e-9
            tight += proof.bound > min(objectives) - 50.0
    assert tight > 0


@pytest.mark.parametrize("kind", ["box", "cut"])
def test_planes_touch_the_risks_where_they_are_made(kind):
    """But for the rounding of the kink at an exact fit, over 1e-4 of a width of 2."""
    reply = replies_at(made(kind), np.array([0.3, -0.2, 0.4]))
    np.testing.assert_allclose(reply.attained, reply.upper, rtol=1e-6)


@pytest.mark.parametrize(("loss", "share"), [(Squared(), 1e-12), (Absolute(), 1e-6)])
def test_what_is_known_before_the_first_round(loss, share):
    """Risks below a millionth of a constant prediction's count as 0, of residuals for squared loss."""
    problem = replace(made("box"), loss=loss, transport=Transport.features_only(4))
    state = ExactMWDRO(Exact(), gap=1e-4).init(problem)
    assert (state.target.share, state.target.floor) == (share, pytest.approx(share * problem.constant_risk))
    assert (state.smoothing.width, state.target.gap, state.dual.bound, state.t) == (2.0, 1e-4, 0.0, 0)
    assert (state.prox.weight, state.smoothing.left, state.step.predicted) == (1.0, np.inf, 0.0)
    assert state.best.certified
    assert not state.stalled
    assert not state.finished
    np.testing.assert_array_equal(state.dual.alpha, problem.initial_weights)
    assert len(state.model.cones) == (1 if problem.lifted else 0)
    assert ExactMWDRO(Exact()).gap == 1e-6
    assert ExactMWDRO(Exact()).second_order
    assert not ExactMWDRO(Exact(), sends_curvature=False).second_order


def test_without_curvature_none_is_sent():
    problem, algorithm = made("box"), ExactMWDRO(Exact(), sends_curvature=False)
    broadcast = algorithm.broadcast(algorithm.init(problem))
    reply = all_replies(algorithm, problem.clients, jax.random.key(0), broadcast, jnp.asarray(1))
    assert reply.curvature.shape == (3, 0)


def test_a_worse_model_does_not_become_the_centre():
    problem, algorithm = made("box"), ExactMWDRO(Exact())
    state, everyone = algorithm.init(problem), jnp.ones(3, bool)
    first = algorithm.server(state, replies_at(problem, state.x), everyone)
    worse = np.array([-1.2, 1.2, -1.2])
    after = algorithm.server(first._replace(x=worse), replies_at(problem, worse), everyone)
    np.testing.assert_array_equal(after.centre.z, first.centre.z)
    assert after.prox.weight > first.prox.weight
    assert after.best.upper == first.best.upper


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_plane_too_steep_to_cancel_with_is_left_alone():
    """Its slope times the width of X is no number any more; the others prove what they prove."""
    wide = Box.cube(1e150, 2)
    model = ConeModel(wide, wide, Simplex(1), (), nonnegative=True)
    z = np.zeros(2)
    gradient = np.array([[1e200, 0.0], [0.5, 0.0]])
    cuts = Cuts(
        np.zeros(2, np.int64), np.ones(2), gradient, np.arange(2), np.zeros(2, np.int64), np.stack([z, z])
    )
    answer = Answer(z, 1.0, np.array([0.0, 1.0]), np.ones(1), np.ones(1), np.zeros(0), ())
    assert lower_bound(model, cuts, z, answer, -np.inf, np.inf).bound == pytest.approx(-0.5e150)


def test_curvature_of_coordinates_of_any_size():
    rng = np.random.default_rng(2)
    root, units = rng.normal(size=(4, 4)), 10.0 ** np.array([-6, 0, 3, 6])
    M = np.outer(units, units) * (root @ root.T + np.eye(4))
    curvature, step = Curvature.of(M), rng.normal(size=4) / units
    assert curvature.of_step(step) == pytest.approx(0.5 * step @ M @ step, rel=1e-10)
    assert curvature.first(2).of_step(step[:2]) == pytest.approx(
        0.5 * step[:2] @ M[:2, :2] @ step[:2], rel=1e-9
    )
    T = curvature.unit_steps(0.3)
    np.testing.assert_allclose(T.T @ M @ T, 0.3 * np.eye(4), atol=1e-9)


def test_steps_solve_the_program_that_they_state():
    """One quadratic program without cuts that matter: a Newton step, by hand, within and at the box."""
    square = Box.cube(1.0, 2)
    model = ConeModel(square, square, Simplex(1), (), nonnegative=False)
    M = np.array([[2.0, 0.5], [0.5, 1.0]])
    for gradient in (np.array([0.4, -0.3]), np.array([4.0, 0.1])):
        cuts = Cuts.at_point(np.zeros(1, np.int64), np.ones(1), gradient[None], np.zeros(2))
        answer = model.solve(cuts, np.zeros(2), Curvature.of(M), 1.0)
        expected = -np.linalg.solve(M, gradient)
        if np.max(np.abs(expected)) > 1:
            # The first coordinate meets the box at -1, the second then solves its own equation.
            expected = np.array([-1.0, (0.5 - gradient[1]) / 1.0])
        np.testing.assert_allclose(answer.z, expected, atol=1e-7)


def test_far_from_the_kink_the_cone_is_the_same_set():
    """The form for small steps beside a large nu and the plain form have the same solution."""
    problem = made("box")
    model = ExactMWDRO(Exact()).init(problem).model
    x = np.array([0.9, -0.7, 0.4])
    reply, z = replies_at(problem, x), model.lift(x)
    cuts = Cuts.at_point(np.arange(3), np.asarray(reply.attained), np.asarray(reply.gradient), z)
    packed = np.asarray(reply.curvature)[0]
    M = np.zeros((4, 4))
    M[np.triu_indices(4)] = packed
    M = M + M.T - np.diag(np.diag(M)) + 1e-3 * np.eye(4)
    large, small = (model.solve(cuts, z, Curvature.of(M * stiff), 1.0) for stiff in (1.0, 1e4))
    for answer, stiff in ((large, 1.0), (small, 1e4)):
        # Stationarity in x of max_i plane_i + stiff/2 d'Md with nu = ||(x, -1)|| eliminated.
        y = answer.z[:3]
        unit = y / np.sqrt(y @ y + 1)
        r = answer.multipliers @ cuts.gradient + stiff * M @ (answer.z - z)
        free = np.abs(y) < 1.2 - 1e-6
        assert free.any()
        np.testing.assert_allclose((r[:3] + r[3] * unit)[free], 0.0, atol=1e-5 * stiff**0.5)
    assert np.linalg.norm(small.z - z) < 1e-2


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_combinations_are_summed_without_rounding(seed):
    rng = np.random.default_rng(seed)
    coefficients, rows = rng.normal(size=9), rng.normal(size=(9, 3)) * 10.0 ** rng.integers(-12, 12, (9, 3))
    # Large terms that cancel, beside small ones that are left.
    coefficients, rows = np.append(coefficients, -coefficients[:4]), np.vstack([rows, rows[:4]])
    exact = [sum(map(Fraction.__mul__, map(Fraction, coefficients), map(Fraction, v))) for v in rows.T]
    assert exact_combination(coefficients, rows).tolist() == [float(v) for v in exact]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_quasi_newton_estimates_stay_positive_and_fit_the_last_change(seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(4, 4))
    H, B = A @ A.T + 0.1 * np.eye(4), None
    for _ in range(8):
        s, before = rng.normal(size=4), B
        B = quasi_newton(B, s, H @ s)
        assert np.linalg.eigvalsh(B)[0] > 0
    if s @ H @ s >= 0.2 * (s @ before @ s):
        np.testing.assert_allclose(B @ s, H @ s, rtol=1e-6)


def test_quasi_newton_learns_nothing_from_nothing():
    assert quasi_newton(None, np.zeros(2), np.ones(2)) is None
    assert quasi_newton(None, np.ones(2), -np.ones(2)) is None
