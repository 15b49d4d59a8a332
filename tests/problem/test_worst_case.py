"""Risks over Wasserstein balls against closed forms and linear programs; worst cases against POT."""

from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from bidro.ambiguity import WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.losses import (
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    SmoothedHinge,
    Softmax,
    Squared,
)
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk, worst_case_distribution, worst_case_mixture
from bidro.risk.inner import BacktrackingAscent
from bidro.risk.transport import Transport, wasserstein_distance
from tests.small import admissible, mostly_slow, rows

X = np.array([0.8, 0.4, -0.3])
LABELLED = {k: np.column_stack([v[:, :3], np.where(v[:, 3] > 0, 1.0, -1.0)]) for k, v in rows().items()}
RADII = np.array([0.3, 0.0, 0.05])
LOSSES = [
    Squared(), Absolute(), Huber(threshold=0.5), Pinball(quantile=0.3), Logistic(), Hinge(),
    SmoothedHinge(width=0.5),
]  # fmt: skip

# One of each kind: quadratic, piecewise, smooth with linear tails, kinked margin.
SOME = [Squared(), Huber(threshold=0.5), Logistic(), Hinge()]


def ball_problem(loss, p, support, radii=RADII, transport=None):
    data = rows() if loss.labels is None else LABELLED
    if transport is None:
        transport = Transport.euclidean(4, p) if loss.labels is None else Transport.classification(4, p)
    fed = Federation.from_arrays(data, support)
    return Problem(fed, loss, Box.cube(2.0, 3), transport, WassersteinBall(radii))


@pytest.mark.parametrize("movable", [True, False])
def test_squared_loss_in_closed_form_and_by_the_dual_search(movable):
    """(RMSE + eps ||(x, -1)||)^2, and ||x|| where labels cannot move; a huge box has the same value."""
    transport = Transport.euclidean(4) if movable else Transport.features_only(4)
    closed = robust_risk(ball_problem(Squared(), 2.0, "unbounded", transport=transport), X)
    search = robust_risk(ball_problem(Squared(), 2.0, Box.cube(1e4, 4), transport=transport), X)
    norm = np.sqrt(X @ X + movable)
    for k, part in enumerate(rows().values()):
        expected = (np.sqrt(np.mean((part[:, :3] @ X - part[:, 3]) ** 2)) + RADII[k] * norm) ** 2
        assert float(closed.value[k]) == pytest.approx(expected, rel=1e-13)
        assert float(search.value[k]) == pytest.approx(expected, rel=1e-11)
        assert float(search.attained[k]) == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(search.gradient, closed.gradient, rtol=1e-9)
    np.testing.assert_allclose(search.multiplier, closed.multiplier, rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES[1:], ids=lambda v: type(v).__name__)
def test_p_1_unbounded_is_the_mean_loss_plus_radius_times_slope(loss):
    problem = ball_problem(loss, 1.0, "unbounded")
    found = robust_risk(problem, X)
    steep = {"Huber": 0.5, "Pinball": 0.7}.get(type(loss).__name__, 1.0)
    norm = np.linalg.norm(np.append(X, -1.0) if loss.labels is None else X)
    for k, name in enumerate(problem.federation.names):
        mean = float(jnp.mean(loss.values(jnp.asarray(X), problem.federation.client_samples(name))))
        assert float(found.value[k]) == pytest.approx(mean + RADII[k] * steep * norm, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "p"),
    mostly_slow(
        product(LOSSES, (1.0, 2.0)), lambda case: case[1] == 2.0 and isinstance(case[0], Squared | Logistic)
    ),
)
def test_on_a_box_against_a_linear_program(loss, p):
    """One feature that moves, four samples: the program over couplings with a grid of spacing 0.002."""
    samples = np.array([[-0.6, 1.0], [0.2, -1.0], [0.9, 1.0], [0.5, -1.0]])
    fed = Federation.from_arrays([samples], Box(np.array([-1.5, -1.0]), np.array([1.5, 1.0])))
    priced = Transport.classification(2, p, 0.8)
    transport = Transport.features_only(2, p) if loss.labels is None else priced
    x = np.array([1.3])
    axis = np.union1d(np.linspace(-1.5, 1.5, 1501), samples[:, 0])
    for eps in (0.05, 0.4, 5.0):
        problem = Problem(fed, loss, Box.cube(2.0, 1), transport, WassersteinBall(eps))
        found = robust_risk(problem, x)
        # Targets: every grid point with every label; the cost is infinite where a label cannot change.
        labels = np.unique(samples[:, 1])
        targets = np.array([[a, b] for b in labels for a in axis])
        losses = np.asarray(loss.values(jnp.asarray(x), jnp.asarray(targets)))
        change = samples[:, 1][:, None] != targets[:, 1][None]
        jump = 0.8**p if loss.labels is not None else np.inf
        costs = np.abs(samples[:, 0][:, None] - targets[:, 0][None]) ** p + np.where(change, jump, 0.0)
        allowed = np.isfinite(costs).ravel()
        first = np.kron(np.eye(4), np.ones(len(targets)))[:, allowed]
        program = linprog(
            -np.tile(losses, 4)[allowed],
            A_ub=costs.ravel()[allowed][None],
            b_ub=[eps**p],
            A_eq=first,
            b_eq=np.full(4, 0.25),
        )
        assert -program.fun <= float(found.value[0]) + 1e-8
        # Between grid points a move of 0.001 gains at most slope (here below 7) times 0.001.
        assert float(found.value[0]) <= -program.fun + 7 * 0.002
        assert float(found.attained[0]) == pytest.approx(float(found.value[0]), rel=1e-9)


@pytest.mark.parametrize(
    "support", ["unbounded", pytest.param(Box.cube(3.0, 4), marks=pytest.mark.slow)], ids=["unbounded", "box"]
)
@pytest.mark.parametrize("loss", SOME, ids=lambda v: type(v).__name__)
def test_gradients_support_the_convex_risk_from_below(loss, support):
    """R(y) >= attained(x) + <gradient(x), y - x> for every y: what a certified lower bound rests on."""
    p = 2.0
    problem = ball_problem(loss, p, support, radii=0.2)
    here = robust_risk(problem, X)
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.1, 1.0):
        y = X + size * rng.normal(size=3)
        there = robust_risk(problem, y)
        below = here.attained + here.gradient @ jnp.asarray(y - X)
        assert np.all(np.asarray(there.value) >= np.asarray(below) - 1e-10)
    assert np.all(np.asarray(here.value - here.attained) < 1e-8)


@pytest.mark.parametrize(
    "loss", [Squared(), Logistic(), Huber(threshold=0.5)], ids=lambda v: type(v).__name__
)
def test_gradients_against_finite_differences(loss):
    problem = ball_problem(loss, 2.0, Box.cube(3.0, 4), radii=0.2)
    found = robust_risk(problem, X)
    for j in range(3):
        step = 1e-5 * np.eye(3)[j]
        change = robust_risk(problem, X + step).value - robust_risk(problem, X - step).value
        np.testing.assert_allclose(found.gradient[:, j], change / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "p", "support", "radii"),
    [
        (Squared(), 2.0, "unbounded", RADII),
        (Logistic(), 1.0, "unbounded", RADII),
        (Logistic(), 2.0, "unbounded", 0.2),
        (Huber(), 2.0, "unbounded", 0.2),
        (Squared(), 2.0, Box.cube(3.0, 4), 2.2),
        (Logistic(), 2.0, Box.cube(3.0, 4), 0.2),
    ],
    ids=lambda v: type(v).__name__,
)
def test_curvature_is_the_second_derivative_where_there_is_one(loss, p, support, radii):
    """Against differences of the gradient; here no sample sits at a jump."""
    problem = ball_problem(loss, p, support, radii)
    found = robust_risk(problem, X)
    for j in range(3):
        step = 1e-5 * np.eye(3)[j]
        change = robust_risk(problem, X + step).gradient - robust_risk(problem, X - step).gradient
        np.testing.assert_allclose(found.curvature[:, j], change / 2e-5, rtol=1e-6, atol=1e-7)


def test_at_a_jump_curvature_stays_finite_and_positive():
    samples = np.column_stack([np.full((6, 1), 4.0), np.ones(6)])
    fed = Federation.from_arrays([samples], "unbounded")
    transport = Transport.classification(2)
    for eps in (1.0, 2.0, 3.0):
        problem = Problem(fed, Logistic(), Box.cube(2.0, 1), transport, WassersteinBall(eps))
        curvature = np.asarray(robust_risk(problem, [1.5]).curvature)
        assert np.all(np.isfinite(curvature))
        assert curvature.min() >= 0


def test_at_a_jump_the_worst_case_splits_mass():
    """Logistic, p = 2: one lambda serves many radii while the moves jump; mass makes up the difference."""
    samples = np.column_stack([np.full((6, 1), 4.0), np.ones(6)])
    fed = Federation.from_arrays([samples], "unbounded")
    multipliers, shares = [], []
    for eps in (1.0, 2.0, 3.0):
        problem = Problem(
            fed, Logistic(), Box.cube(2.0, 1), Transport.classification(2), WassersteinBall(eps)
        )
        found = robust_risk(problem, [1.5])
        worst = worst_case_distribution(problem, [1.5], "client-1")
        multipliers.append(float(found.multiplier[0]))
        shares.append(worst.masses.min() * 6)
        assert len(worst.points) == 12
        assert worst.expected_loss == pytest.approx(float(found.value[0]), rel=1e-9)
    np.testing.assert_allclose(multipliers, multipliers[0], rtol=1e-6)
    assert all(0 < share < 0.5 for share in shares)
    assert len(set(np.round(shares, 6))) == 3


@pytest.mark.parametrize(
    ("loss", "support", "p"),
    [
        *((loss, "unbounded", p) for loss in SOME for p in (1.0, 2.0)),
        *mostly_slow(
            [(loss, Box.cube(3.0, 4), 1.0 + k % 2) for k, loss in enumerate(SOME)],
            lambda case: isinstance(case[0], Squared),
        ),
    ],
)
def test_worst_cases_lie_in_their_ball_and_attain_the_risk(loss, support, p):
    """W_p by POT at most the radius (to 1e-6), expected loss equal to the risk (to 1e-6)."""
    if isinstance(loss, Squared) and p == 1 and support == "unbounded":
        with pytest.raises(BidroError, match="infinite for every model"):
            ball_problem(loss, p, support)
        return
    problem = ball_problem(loss, p, support)
    risks = robust_risk(problem, X)
    for k, name in enumerate(problem.federation.names[:2]):
        worst = worst_case_distribution(problem, X, name)
        samples = np.asarray(problem.federation.client_samples(name))
        assert worst.masses.sum() == pytest.approx(1.0)
        distance = wasserstein_distance(worst.points, samples, problem.transport, a_masses=worst.masses)
        # The square root in W_2 turns rounding of 1e-17 in a cost into 3e-9.
        assert distance <= RADII[k] * (1 + 1e-6) + 1e-8
        assert worst.expected_loss == pytest.approx(float(risks.value[k]), rel=1e-6)
        assert -1e-9 <= worst.deficit <= 1.01e-7 * worst.risk + 1e-9
        assert np.bincount(worst.origins, worst.masses) == pytest.approx(
            np.full(len(samples), 1 / len(samples))
        )
        if isinstance(support, Box):
            assert all(bool(support.contains(jnp.asarray(point))) for point in worst.points)


@pytest.mark.parametrize(
    ("loss", "cost"),
    mostly_slow(
        [(Softmax(classes=3), np.inf), (Softmax(classes=3), 0.7), (Logistic(), 0.7), (Hinge(), np.inf)],
        lambda case: not np.isfinite(case[1]),
    ),
)
def test_p_1_unbounded_near_worst_cases_of_classes(loss, cost):
    """With and without labels that flip: in the ball by POT, and short of the risk by 1e-7 of it at most."""
    rng = np.random.default_rng(4)
    labels = rng.choice(loss.labels, 9)
    rows_ = np.column_stack([rng.normal(size=(9, 2)), labels])
    fed = Federation.from_arrays([rows_], "unbounded")
    transport = Transport.classification(3, 1.0, cost)
    x = rng.normal(size=loss.dimension(3))
    for eps in (0.05, 0.4, 2.0):
        problem = Problem(fed, loss, Box.cube(5.0, len(x)), transport, WassersteinBall(eps))
        found = robust_risk(problem, x)
        assert float(found.attained[0]) == pytest.approx(float(found.value[0]), rel=1e-9)
        worst = worst_case_distribution(problem, x, "client-1")
        assert -1e-9 <= worst.deficit <= 1.1e-7 * worst.risk + 1e-9
        assert worst.masses.sum() == pytest.approx(1.0)
        assert wasserstein_distance(worst.points, rows_, transport, a_masses=worst.masses) <= eps * (1 + 1e-6)


@pytest.mark.parametrize("eps", [0.1, 0.6])
def test_far_out_with_another_label_where_the_loss_is_steeper(eps):
    """One row of class 1, which is 2 from the farthest class in its weights; a row of class 0 or 2 is 4. The
    risk is that of a little mass that changes its label and goes far; short of it by 1e-7 at most."""
    loss = Softmax(classes=3)
    x = np.array([-2.0, 0.0, 0.0, 0.0, 2.0, 0.0])  # classes 0, 1, 2 along the first feature
    row = np.array([[0.3, -1.0, 1.0]])
    transport = Transport.classification(3, 1.0, 5.0)
    fed = Federation.from_arrays([row], "unbounded")
    problem = Problem(fed, loss, Box.cube(5.0, 6), transport, WassersteinBall(eps))
    scores = row[0, 0] * np.array([-2.0, 0.0, 2.0])
    risk = np.log(np.exp(scores).sum()) - scores[1] + 4.0 * eps
    worst = worst_case_distribution(problem, x, "client-1")
    assert worst.risk == pytest.approx(risk, rel=1e-6)
    assert -1e-9 <= worst.deficit <= 1.1e-7 * worst.risk + 1e-9
    assert wasserstein_distance(worst.points, row, transport, a_masses=worst.masses) <= eps * (1 + 1e-6)


def test_the_worst_mixture():
    problem = ball_problem(Squared(), 2.0, "unbounded")
    alpha = np.array([0.5, 0.2, 0.3])
    mixed = worst_case_mixture(problem, X, alpha)
    risks = np.asarray(robust_risk(problem, X).value)
    assert mixed.risk == pytest.approx(alpha @ risks)
    assert mixed.expected_loss == pytest.approx(alpha @ risks, rel=1e-9)
    assert mixed.masses.sum() == pytest.approx(1.0)
    losses = np.asarray(Squared().values(jnp.asarray(X), jnp.asarray(mixed.points)))
    assert mixed.masses @ losses == pytest.approx(mixed.expected_loss)


def test_an_uncertified_oracle_gives_no_finite_upper_bound():
    fed = Federation.from_arrays([rows()["site-0"][:2]], Box.cube(3.0, 4))
    problem = Problem(fed, Squared(), Box.cube(2.0, 3), Transport.euclidean(4), WassersteinBall(5.0))
    found = robust_risk(problem, X, BacktrackingAscent(steps=3))
    assert np.all(np.isinf(found.value))
    assert np.all(np.isfinite(found.attained))


def test_the_price_of_movement_next_to_zero():
    """There every slope of the logistic loss is 1/2: R = ln 2 + eps nu / 2, and its derivative in eps^2 is
    nu / (4 eps)."""
    problem = ball_problem(Logistic(), 2.0, "unbounded", radii=[0.3, 0.2, 0.1])
    found = robust_risk(problem, 1e-13 * X)
    expected = 1e-13 * np.linalg.norm(X) / (4 * np.array([0.3, 0.2, 0.1]))
    np.testing.assert_allclose(found.multiplier, expected, rtol=1e-9)
    np.testing.assert_allclose(found.value, np.log(2), rtol=1e-12)


def test_radii_too_small_to_show():
    """The mean loss plus eps nu rms(L'), also as it is attained, and its gradient."""
    problem = ball_problem(Logistic(), 2.0, "unbounded", radii=1e-12)
    found = robust_risk(problem, X)
    plain = robust_risk(replace(problem, ambiguity=WassersteinBall(0.0)), X)
    np.testing.assert_allclose(found.attained, plain.value, rtol=1e-10)
    np.testing.assert_allclose(found.value, plain.value, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, plain.gradient, rtol=1e-8)


def test_exact_fit_and_zero_model():
    fed = Federation.from_arrays([np.array([[1.0, 2.0, 0.5, 1.0]])], "unbounded")
    exact = np.array([1.0, 0.0, 0.0])
    joint = Problem(fed, Squared(), Box.cube(2.0, 3), Transport.euclidean(4), WassersteinBall(0.5))
    assert float(robust_risk(joint, exact).value[0]) == pytest.approx(0.25 * 2)
    assert np.all(np.isfinite(robust_risk(joint, exact).gradient))
    assert worst_case_distribution(joint, exact, "client-1").expected_loss == pytest.approx(0.5)
    fixed = Problem(fed, Squared(), Box.cube(2.0, 3), Transport.features_only(4), WassersteinBall(0.5))
    found = robust_risk(fixed, np.zeros(3))
    assert float(found.value[0]) == pytest.approx(1.0)
    np.testing.assert_allclose(found.gradient[0], [-2.0, -4.0, -1.0])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: robust_risk(admissible(), X), "WassersteinBall"),
        (lambda: robust_risk(ball_problem(Squared(), 2.0, "unbounded"), X[:2]), "3 finite numbers"),
        (lambda: robust_risk(ball_problem(Squared(), 2.0, "unbounded"), [1, np.nan, 1]), "3 finite numbers"),
        (
            lambda: robust_risk(ball_problem(Squared(), 2.0, "unbounded"), 1e160 * X),
            "too large to be squared",
        ),
        (lambda: ball_problem(Squared(), 2.0, "unbounded", radii=-1.0), "at least 0"),
        (lambda: ball_problem(Squared(), 2.0, "unbounded", radii=[1.0]), "3 clients"),
        (lambda: ball_problem(Squared(), 2.0, "unbounded", radii=np.nan), "finite"),
        (lambda: worst_case_mixture(ball_problem(Squared(), 2.0, "unbounded"), X, [1.0, 1.0, 0.0]), "set A"),
        (lambda: worst_case_distribution(ball_problem(Squared(), 2.0, "unbounded"), X, "east"), "'east'"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
