"""The interval of the out-of-sample theorem: its parts by second ways, and simulated from end to end."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.certify.out_of_sample import (
    cloud_distances,
    explicit_radii,
    out_of_sample_interval,
    support_lipschitz,
    widened,
)
from bidro.certify.radius import ExplicitRadius
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.losses import Absolute, Hinge, Huber, Logistic, Pinball, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.problem.worst_case import robust_risk
from bidro.risk.transport import Transport, wasserstein_distance

BOX = Box(np.array([-1.0, 0.0, -2.0]), np.array([2.0, 1.0, 1.5]))
X = np.array([0.7, -0.4])


def regression(loss, seed=0, sizes=(20, 60), mixtures=None, p=2.0):
    rng = np.random.default_rng(seed)
    parts = []
    for k, size in enumerate(sizes):
        theta = rng.uniform([-1, 0], [2, 1], (size, 2)) * (1 - 0.2 * k)
        y = np.clip(theta @ X + 0.2 * rng.normal(size=size), -2, 1.5)
        parts.append(np.column_stack([theta, y]))
    fed = Federation.from_arrays(parts, BOX)
    return Problem(fed, loss, Box.cube(3.0, 2), Transport(np.array([1.0, 2.0, 0.5]), p), None, mixtures)


@pytest.mark.parametrize(
    "loss",
    [Squared(), Absolute(), Huber(threshold=0.3), Pinball(quantile=0.8)],
    ids=lambda v: type(v).__name__,
)
def test_the_slope_on_the_support_against_pairs_of_points(loss):
    """No pair of points is steeper; a short step at the steepest corner comes within 1 per cent."""
    problem, rng = regression(loss), np.random.default_rng(1)
    slope = support_lipschitz(problem, X)
    scale = np.asarray(problem.transport.scale)
    lower, upper = np.asarray(BOX.lower), np.asarray(BOX.upper)
    corners = np.array(list(itertools.product(*zip(lower, upper, strict=True))))
    starts = np.vstack([rng.uniform(lower, upper, (300, 3)), corners])
    direction = np.append(X, -1.0) / scale**2
    ends = [rng.uniform(lower, upper, starts.shape)]
    ends += [np.clip(starts + sign * 1e-4 * direction, lower, upper) for sign in (-1, 1)]
    steepest = 0.0
    for end in ends:
        rise = np.abs(
            np.asarray(
                loss.values(jnp.asarray(X), jnp.asarray(end))
                - loss.values(jnp.asarray(X), jnp.asarray(starts))
            )
        )
        run = np.linalg.norm((end - starts) * scale, axis=1)
        steepest = max(steepest, float(np.max(rise[run > 0] / run[run > 0])))
    assert steepest <= slope * (1 + 1e-9)
    assert steepest >= 0.99 * slope


@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("loss", [Logistic(), Hinge()], ids=lambda v: type(v).__name__)
def test_the_slope_with_labels_that_flip(loss, p):
    rng, cost = np.random.default_rng(2), 0.6
    box = Box(np.array([-1.0, -1.0, -1.0]), np.array([2.0, 1.0, 1.0]))
    rows = np.column_stack([rng.uniform(-1, 1, (10, 2)), rng.choice([-1.0, 1.0], 10)])
    fed = Federation.from_arrays([rows], box)
    problem = Problem(fed, loss, Box.cube(3.0, 2), Transport.classification(3, p, cost))
    slope = support_lipschitz(problem, X)
    points = [
        np.column_stack([rng.uniform([-1, -1], [2, 1], (4000, 2)), rng.choice([-1.0, 1.0], 4000)])
        for _ in range(2)
    ]
    a, b = (np.asarray(loss.values(jnp.asarray(X), jnp.asarray(v))) for v in points)
    moved = np.linalg.norm((points[0] - points[1])[:, :2], axis=1)
    flipped = points[0][:, 2] != points[1][:, 2]
    distance = (moved**p + np.where(flipped, cost**p, 0.0)) ** (1 / p)
    assert np.max(np.abs(a - b) / distance) <= slope * (1 + 1e-9)


def test_a_move_and_a_flip_together_can_be_steeper_than_either():
    """p = 2 and 40 classes, 38 of them with the score theta: from (-1/2, class 1) to (1/2, class 0) the loss
    rises by more than the larger of both slopes allows."""
    loss, cost = Softmax(classes=40, intercept=True), 1.5
    scores, intercepts = np.ones(40), np.zeros(40)
    scores[:2], intercepts[1] = 0.0, 1.0
    x = np.concatenate([scores, intercepts])
    box = Box(np.array([-0.5, 0.0]), np.array([0.5, 39.0]))
    fed = Federation.from_arrays([np.array([[0.5, 0.0], [-0.5, 1.0]])], box)
    problem = Problem(fed, loss, Box.cube(3.0, 80), Transport.classification(2, 2.0, cost))
    high, low = (float(loss.value(jnp.asarray(x), row)) for row in jnp.array([[0.5, 0.0], [-0.5, 1.0]]))
    steepness = (high - low) / math.hypot(1.0, cost)
    found = support_lipschitz(problem, x)
    # Slopes: 1 in the feature; a flip changes the loss by at most 3/2, at a cost of 3/2.
    assert steepness > 1.05
    assert found == pytest.approx(math.sqrt(2))
    assert steepness <= found


@pytest.mark.parametrize("p", [pytest.param(1.0, marks=pytest.mark.slow), 2.0])
def test_two_classes_have_the_radii_of_two(p):
    rng = np.random.default_rng(5)
    rows = np.column_stack([rng.uniform(-1, 1, (500, 1)), rng.choice([-1.0, 1.0], 500)])
    fed = Federation.from_arrays([rows], Box(np.array([-1.0, -1.0]), np.array([1.0, 1.0])))
    problem = Problem(fed, Logistic(), Box.cube(3.0, 1), Transport.classification(2, p, 0.6))
    diameter = (2.0**p + 0.6**p) ** (1 / p)
    by_hand = ExplicitRadius(diameter, 2, p, finest=2).radius(500, 0.1)
    assert out_of_sample_interval(problem, np.array([0.5]), 0.9, delta=0.0).radii == pytest.approx(by_hand)
    assert explicit_radii(problem, 0.9) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "mixtures",
    [
        Simplex(3),
        CappedSimplex(np.array([0.1, 0.0, 0.2]), np.array([0.5, 0.6, 0.7])),
        L1SimplexBall(np.array([0.2, 0.5, 0.3]), 0.3),
    ],
)
def test_the_l1_diameter_bounds_all_distances(mixtures):
    rng = np.random.default_rng(3)
    points = [np.asarray(mixtures.linear_maximum(jnp.asarray(c))[1]) for c in rng.normal(size=(60, 3))]
    widest = max(np.abs(a - b).sum() for a in points for b in points)
    assert widest <= mixtures.l1_diameter() + 1e-12
    if not isinstance(mixtures, CappedSimplex):
        assert widest == pytest.approx(mixtures.l1_diameter())


def test_the_l1_diameter_of_narrow_bounds_is_their_width():
    narrow = CappedSimplex(np.array([0.2, 0.3, 0.1]), np.array([0.4, 0.5, 0.3]))
    assert narrow.l1_diameter() == pytest.approx(0.6)


@pytest.mark.parametrize("mixtures", [None, CappedSimplex(np.zeros(2), np.array([0.7, 0.8]))])
def test_every_part_of_the_interval_a_second_time(mixtures):
    problem = regression(Squared(), mixtures=mixtures)
    found = out_of_sample_interval(problem, X, 0.9)
    balls = Problem(
        problem.federation,
        problem.loss,
        problem.models,
        problem.transport,
        WassersteinBall(found.radii),
        mixtures,
    )
    risks = np.asarray(robust_risk(balls, X).value)
    tops = [risks] if mixtures is None else [0.7 * risks[0] + 0.3 * risks[1], 0.2 * risks[0] + 0.8 * risks[1]]
    assert found.upper == pytest.approx(float(np.max(tops)), rel=1e-9)
    assert found.probability == pytest.approx(0.9)
    assert out_of_sample_interval(problem, X).probability == pytest.approx(0.95)
    clouds = [np.asarray(problem.federation.client_samples(name)) for name in problem.federation.names]
    apart = wasserstein_distance(clouds[0], clouds[1], problem.transport) + found.radii.sum()
    assert widened(cloud_distances(problem), found.radii, math.inf) == pytest.approx(apart)
    diameter = np.linalg.norm((np.asarray(BOX.upper) - np.asarray(BOX.lower)) * [1.0, 2.0, 0.5])
    apart = min(apart, float(diameter))
    assert found.delta == pytest.approx(apart)
    assert found.sampling == pytest.approx(2 * found.lipschitz * (found.alpha @ found.radii))
    wide = 2.0 if mixtures is None else 1.5
    assert found.heterogeneity == pytest.approx(found.lipschitz * apart * wide / 2)
    assert found.lower >= found.paper_lower
    assert found.lower == max(0.0, found.upper - found.sampling - found.heterogeneity)
    assert ("if it is in A" in found.promise) == (mixtures is not None)
    assert found.advice.startswith("Sampling" if found.sampling >= found.heterogeneity else "Heterogeneity")


def test_a_known_delta_and_more_confidence():
    problem = regression(Squared())
    known, estimated = (
        out_of_sample_interval(problem, X, 0.9, delta=0.1),
        out_of_sample_interval(problem, X, 0.9),
    )
    assert known.heterogeneity < estimated.heterogeneity
    assert known.upper == estimated.upper
    assert out_of_sample_interval(problem, X, 0.99).upper >= known.upper
    uneven = out_of_sample_interval(problem, X, 0.9, split="smallest largest")
    assert uneven.radii.max() <= estimated.radii.max()


def test_the_true_cost_lies_within_as_often_as_promised():
    """Any model, not an optimal one; a mixture that is never seen; 60 draws of the clients' rows."""
    rng = np.random.default_rng(9)
    fresh = regression(Squared(), seed=10_000, sizes=(40_000, 40_000)).federation
    losses = [
        np.asarray(Squared().values(jnp.asarray(X), jnp.asarray(fresh.client_samples(name))))
        for name in fresh.names
    ]
    mixture = rng.dirichlet([1.0, 1.0])
    true = float(mixture @ [part.mean() for part in losses])
    inside = 0
    for seed in range(60):
        found = out_of_sample_interval(regression(Squared(), seed=seed), X, 0.7, delta=0.5)
        inside += found.lower <= true <= found.upper
    assert inside / 60 >= 0.7


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: out_of_sample_interval(regression(Squared()), X, 1.5), "confidence"),
        (lambda: out_of_sample_interval(regression(Squared()), X, 0.9, split="odd"), "split"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def test_the_promise_owns_up_to_radii_that_say_little():
    assert (
        "conservative"
        in out_of_sample_interval(regression(Squared(), sizes=(3, 4)), X, 0.99, delta=0.0).promise
    )
    assert math.isfinite(
        out_of_sample_interval(regression(Squared(), sizes=(1, 2)), X, 0.99, delta=0.0).upper
    )
