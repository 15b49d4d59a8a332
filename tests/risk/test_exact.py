"""The exact inner supremum against brute force: all losses, p = 1 and 2, both supports, scaled metrics."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, WholeSpace
from bidro.losses import (
    Absolute,
    CustomLoss,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    SmoothedHinge,
    Softmax,
    Squared,
)
from bidro.losses.scalar import PiecewiseQuadratic
from bidro.risk.inner import BacktrackingAscent, Exact, Inner, default_oracle
from bidro.risk.inner.path import Pieces, maximise_on_path, ray
from bidro.risk.transport import Transport
from tests.risk.brute_force import supremum
from tests.small import mostly_slow

REGRESSION = [Squared(), Absolute(), Huber(threshold=0.7), Pinball(quantile=0.3)]
MARGIN = [Logistic(), Hinge(), SmoothedHinge(width=0.5)]
LINEAR = REGRESSION + MARGIN


def transports(loss, m, p):
    scale = np.linspace(0.6, 1.7, m)
    if loss.labels is None:
        fixed = scale.copy()
        fixed[-1] = np.inf
        return [Transport.euclidean(m, p), Transport(scale, p), Transport(fixed, p)]
    flips = Transport(scale, p, discrete_label=True, label_cost=1.3)
    return [Transport.classification(m, p), flips]


def draw(loss, m, rng, width):
    x = rng.normal(size=loss.dimension(m)) * rng.choice([0.3, 1.0, 3.0])
    zeta = rng.uniform(-1, 1, m) * width
    if loss.labels is not None:
        zeta[-1] = rng.choice(loss.labels)
    return jnp.asarray(x), jnp.asarray(zeta)


@pytest.mark.parametrize(
    ("loss", "p"),
    mostly_slow(
        product(LINEAR, (1.0, 2.0)),
        lambda case: isinstance(case[0], Hinge) or case == (Squared(), 2.0),
    ),
)
def test_box_support_against_brute_force(loss, p):
    loss = type(loss)(**{**loss.__dict__, "intercept": True})
    rng = np.random.default_rng(7)
    solve = jax.jit(Exact().maximise)
    # Six coordinates for one loss of each kind: what is compiled anew takes most of the time.
    for m, repeats in ((3, 3), (6, 1)) if isinstance(loss, Squared | Logistic) else ((3, 3),):
        width = np.linspace(0.5, 2.0, m)
        box = Box(-width, 1.2 * width)
        for transport in transports(loss, m, p):
            inner = Inner(transport, box, loss)
            for k in range(repeats):
                x, zeta = draw(loss, m, rng, width)
                rho = float(rng.choice([0.02, 0.3, 1.0, 4.0]))
                found = solve(inner, x, zeta, rho)
                slow = supremum(inner, x, zeta, rho, box.lower, box.upper, seed=k)
                assert box.contains(found.point)
                assert float(found.error_bound) == 0
                assert float(found.value) == pytest.approx(
                    float(inner.phi(x, zeta, found.point, rho)), rel=1e-12, abs=1e-12
                )
                scale = 1 + abs(slow)
                assert float(found.value) >= slow - 1e-9 * scale
                assert float(found.value) <= slow + 1e-6 * scale


@pytest.mark.parametrize("loss", mostly_slow(LINEAR, lambda loss: isinstance(loss, Logistic)))
def test_unbounded_support_with_squared_cost_against_brute_force(loss):
    rng = np.random.default_rng(3)
    solve = jax.jit(Exact().maximise)
    m = 3
    for transport in transports(loss, m, 2.0):
        inner = Inner(transport, WholeSpace(m), loss)
        for k in range(6):
            x, zeta = draw(loss, m, rng, np.ones(m))
            dual = float(loss.dual_norm(x, transport.inverse_scale))
            rho = 1.2 * dual**2 + 0.05 if isinstance(loss, Squared) else rng.choice([0.2, 1.0])
            found = solve(inner, x, zeta, rho)
            reach = 40.0 * np.ones(m)
            slow = supremum(inner, x, zeta, rho, -reach, reach, seed=k)
            assert float(found.value) == pytest.approx(slow, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize("loss", [v for v in LINEAR if v != Squared()], ids=lambda v: type(v).__name__)
def test_unbounded_support_with_p_1_is_the_loss_itself_or_infinite(loss):
    """p = 1: finite exactly where rho is at least the Lipschitz constant, and then the sample stays."""
    rng = np.random.default_rng(5)
    m = 3
    transport = transports(loss, m, 1.0)[0]
    inner = Inner(transport, WholeSpace(m), loss)
    x, zeta = draw(loss, m, rng, np.ones(m))
    lipschitz = float(loss.lipschitz(x, transport.inverse_scale))
    above = Exact().maximise(inner, x, zeta, jnp.asarray(lipschitz * 1.0001))
    below = Exact().maximise(inner, x, zeta, jnp.asarray(lipschitz * 0.999))
    assert float(above.value) == pytest.approx(float(loss.value(x, zeta)))
    assert np.array_equal(above.point, zeta)
    assert np.isinf(below.value)


def test_squared_loss_below_its_growth_is_infinite_and_above_it_has_the_closed_form():
    m = 4
    inner = Inner(Transport.euclidean(m), WholeSpace(m), Squared())
    x, zeta = jnp.array([1.0, 0.5, -0.5]), jnp.array([0.3, -0.2, 0.9, 0.4])
    residual = float(x @ zeta[:3] - zeta[3])
    found = Exact().maximise(inner, x, zeta, jnp.asarray(4.0))
    # ||(x, -1)||^2 = 2.5, so sup = residual^2 * 4 / (4 - 2.5).
    assert float(found.value) == pytest.approx(residual**2 * 4 / 1.5)
    assert np.isinf(Exact().maximise(inner, x, zeta, jnp.asarray(2.4)).value)


def test_the_number_of_the_paper_s_setting():
    """x = 1.02 a, rho = 2.5, box 500: the exact supremum is tens of thousands, the residual tiny."""
    m = 4
    inner = Inner(Transport.euclidean(m), Box.cube(500.0, m), Squared())
    a = np.array([1.0, 0.5, -0.5])
    theta = np.array([1.2, 0.4, -0.1])
    zeta = jnp.asarray(np.append(theta, theta @ a + 0.2))
    found = Exact().maximise(inner, jnp.asarray(1.02 * a), zeta, jnp.asarray(2.5))
    slow = supremum(inner, 1.02 * a, zeta, 2.5, -500 * np.ones(m), 500 * np.ones(m))
    assert float(found.value) == pytest.approx(slow, rel=1e-9)
    assert float(found.value) > 10_000


def test_the_plain_ray_falls_short_on_a_box():
    """Stopping at the first wall loses most of the supremum; the clipped path does not."""
    m = 3
    box = Box(np.array([-0.1, -10.0, -10.0]), np.array([0.1, 10.0, 10.0]))
    inner = Inner(Transport.euclidean(m), box, Squared())
    x, zeta, rho = jnp.array([1.0, 1.0]), jnp.array([0.0, 0.5, 0.0]), 1.5
    found = Exact().maximise(inner, x, zeta, jnp.asarray(rho))
    direction = np.array([1.0, 1.0, -1.0])
    steps = np.linspace(-0.1, 0.1, 2001)
    ray = max(float(inner.phi(x, zeta, zeta + s * direction, rho)) for s in steps)
    assert ray < 0.5 * float(found.value)
    assert float(found.value) == pytest.approx(supremum(inner, x, zeta, rho, box.lower, box.upper), rel=1e-8)


@pytest.mark.parametrize(
    ("loss", "p"),
    [(Logistic(), 1.0), (Logistic(), 2.0), (Hinge(), 1.0), (SmoothedHinge(width=0.5), 1.0)],
    ids=["Logistic-1", "Logistic-2", "Hinge-1", "SmoothedHinge-1"],
)
def test_margins_on_a_box_with_many_bends(loss, p):
    """Pieces of very different length, where local maxima compete; checked on a dense path."""
    rng = np.random.default_rng(11)
    m = 9
    solve = jax.jit(Exact().maximise)
    for _ in range(40):
        scale = np.exp(rng.normal(size=m))
        width = np.exp(2 * rng.normal(size=m))
        box = Box(-width, width)
        inner = Inner(Transport(scale, p, discrete_label=True), box, loss)
        x = rng.normal(size=m - 1) * rng.choice([0.1, 1.0, 10.0])
        zeta = np.append(rng.uniform(-1, 1, m - 1) * width[:-1], 0.0)
        box = Box(np.append(-width[:-1], -1), np.append(width[:-1], 1))
        zeta[-1] = rng.choice([-1.0, 1.0])
        inner = Inner(inner.transport, box, loss)
        norm = np.linalg.norm(x / scale[:-1])
        rho = norm**p * np.exp(rng.uniform(-4, 0.5))
        found = solve(inner, jnp.asarray(x), jnp.asarray(zeta), jnp.asarray(rho))
        speed = -zeta[-1] * x / scale[:-1] ** 2
        ends = np.where(speed > 0, box.upper[:-1], box.lower[:-1]) - zeta[:-1]
        bends = np.sort(ends / speed)
        nu = np.unique(np.concatenate([np.linspace(0, b, 4000) for b in bends]))
        path = np.clip(zeta[:-1] + nu[:, None] * speed, box.lower[:-1], box.upper[:-1])
        u = zeta[-1] * path @ x
        cost = np.linalg.norm((path - zeta[:-1]) * scale[:-1], axis=1) ** p
        dense = np.max(np.asarray(loss.scalar.value(jnp.asarray(u))) - rho * cost)
        assert float(found.value) >= dense - 1e-10 * (1 + abs(dense))
        assert float(found.value) <= dense + 1e-3 * (1 + abs(dense))


@pytest.mark.parametrize(
    ("rate", "spent", "travel", "u0", "rho"),
    [
        (0.82151690, 3.12841936, 11.40936693, 11.44680195, 0.94377428),
        (124.23161086, 0.03621505, 0.53871316, 0.48331335, 12.10052143),
    ],
)
def test_a_local_maximum_on_a_short_stretch(rate, spent, travel, u0, rho):
    """The logistic loss on one piece of a path, p = 1; the stretch on which a maximum lies is found by its
    ends, of which one is close to where the search for both of them begins."""
    side, one = np.array([[1.0], [-1.0]]), np.ones((2, 1))
    parts = (side, 0 * one, 1e6 * one, rate * one, travel * one, spent * one)
    path = Pieces(*(jnp.asarray(part) for part in parts))
    _, highest = maximise_on_path(Logistic().scalar, path, jnp.asarray(u0), jnp.asarray(rho), 1.0)
    nu = np.concatenate([np.linspace(0, 1, 200_001), np.linspace(1, 100, 200_001)])
    values = np.logaddexp(0, -(u0 + side * (travel + rate * nu))) - rho * np.sqrt(spent + rate * nu**2)
    assert float(highest) == pytest.approx(values.max(), abs=1e-7)


def test_several_coordinates_that_cannot_move():
    """All that is gained comes from the one that can, up to the wall at 2."""
    box = Box(np.array([-1.0, -5.0, -5.0, -9.0]), np.array([2.0, 5.0, 5.0, 9.0]))
    x, zeta, rho = jnp.array([1.0, 3.0, -2.0]), jnp.array([0.5, 1.0, 1.5, 0.0]), jnp.asarray(0.4)
    for p in (1.0, 2.0):
        inner = Inner(Transport(np.array([0.7, np.inf, np.inf, np.inf]), p), box, Squared())
        found = Exact().maximise(inner, x, zeta, rho)
        axis = np.linspace(-1.0, 2.0, 30_001)
        gains = (axis + 3.0 - 3.0) ** 2 - 0.4 * (0.7 * np.abs(axis - 0.5)) ** p
        assert float(found.value) == pytest.approx(gains.max(), rel=1e-7)
        np.testing.assert_array_equal(found.point[1:], zeta[1:])


@pytest.mark.parametrize(
    ("left", "right", "infimum_at_infinity"), [(0.2, 1.0, True), (1.0, 0.2, True), (0.4, 0.4, False)]
)
def test_growth_on_either_side_outgrows_a_quadratic_cost(left, right, infimum_at_infinity):
    """L(u) = left u^2 for u < 0 and right u^2 for u > 0 at a price of 0.5."""
    scalar = PiecewiseQuadratic((0.0,), ((left, 0.0, 0.0), (right, 0.0, 0.0)))
    _, highest = maximise_on_path(scalar, ray(jnp.ones(())), jnp.asarray(0.3), jnp.asarray(0.5), 2.0)
    assert np.isinf(highest) == infimum_at_infinity


def test_coordinates_of_very_different_size():
    """A huge range or a huge cost in one coordinate must not blur what the others do."""
    rng = np.random.default_rng(0)
    solve = jax.jit(Exact().maximise)
    wide = Box(np.array([-1e8, -1.0, -10.0]), np.array([1e8, 1.0, 10.0]))
    cases = [(wide, np.ones(3), np.array([1e-8, 1.0]))]
    cases += [(Box.cube(500.0, 3), np.array([1.0, 1.0, s]), np.ones(2)) for s in (1e7, 1e12)]
    for box, scale, size in cases:
        inner = Inner(Transport(scale), box, Squared())
        without = Inner(Transport(np.where(scale > 1e6, np.inf, scale)), box, Squared())
        first = Inner(Transport(np.array([np.inf, *scale[1:]])), box, Squared())
        for _ in range(100):
            x = jnp.asarray(rng.normal(size=2) * size)
            zeta = jnp.asarray(rng.uniform(box.lower, box.upper))
            rho = jnp.asarray(np.exp(rng.uniform(-1, 2)))
            best = float(solve(inner, x, zeta, rho).value)
            # Fewer ways to move can never reach a higher value.
            for fewer in (without, first):
                assert best >= float(solve(fewer, x, zeta, rho).value) * (1 - 1e-9) - 1e-6


@pytest.mark.parametrize(("loss", "p"), [(loss, 1.0 + k % 2) for k, loss in enumerate((*LINEAR, LINEAR[0]))])
def test_extreme_numbers_give_finite_values_on_a_box(loss, p):
    transport = transports(loss, 3, p)[0]
    inner = Inner(transport, Box.cube(500.0, 3), loss)
    solve = jax.jit(Exact().maximise)
    for x in ([1e-160, 0.0], [1e-155, 1.0], [0.0, 0.0], [1e-9, 0.0], [1e150, 1.0]):
        for zeta in ([1.0, 2.0, 1.0], [500.0, -500.0, 1.0]):
            for rho in (1e-300, 1.0, 1e300):
                found = solve(inner, jnp.array(x), jnp.array(zeta), jnp.asarray(rho))
                here = float(inner.phi(jnp.array(x), jnp.array(zeta), jnp.array(zeta), rho))
                assert np.isfinite(found.value) or not np.isfinite(here)
                assert float(found.value) >= here * (1 - 1e-12)


def test_softmax_p_1_unbounded_is_exact():
    m, loss = 4, Softmax(classes=3)
    inner = Inner(Transport.classification(m, 1.0), WholeSpace(m), loss)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=loss.dimension(m)))
    zeta = jnp.array([0.1, -0.4, 0.7, 2.0])
    weights = np.asarray(x).reshape(3, 3)
    steepest = max(np.linalg.norm(weights[k] - weights[2]) for k in range(3))
    assert float(loss.steepness(x, inner.transport.inverse_scale, zeta[-1])) == pytest.approx(steepest)
    above = Exact().maximise(inner, x, zeta, jnp.asarray(steepest * 1.001))
    assert float(above.value) == pytest.approx(float(loss.value(x, zeta)))
    assert float(above.error_bound) == 0
    assert np.isinf(Exact().maximise(inner, x, zeta, jnp.asarray(steepest * 0.99)).value)


SOFTMAX = [(classes, p, cost) for classes, p, cost in product((2, 3), (1.0, 2.0), (0.8, np.inf))]


@pytest.mark.parametrize(
    ("classes", "p", "label_cost"),
    mostly_slow(SOFTMAX, lambda case: case in [(2, 1.0, 0.8), (3, 1.0, np.inf), (3, 2.0, 0.8)]),
)
def test_softmax_on_a_box_is_its_supremum(classes, p, label_cost):
    """Two classes are exact; of three, the bound is hardly above what brute force finds."""
    m, loss = 3, Softmax(classes=classes, intercept=True)
    box = Box(np.array([-1.0, -1.5, 0.0]), np.array([1.2, 0.7, classes - 1.0]))
    inner = Inner(Transport.classification(m, p, label_cost), box, loss)
    solve, rng = jax.jit(Exact().maximise), np.random.default_rng(1)
    for k in range(8):
        # Steep ones have several maxima.
        x = jnp.asarray(rng.choice([1.0, 4.0]) * rng.normal(size=loss.dimension(m)))
        zeta = jnp.array([rng.uniform(-1, 1), rng.uniform(-1, 0.5), float(rng.integers(classes))])
        rho = float(rng.choice([0.3, 1.0, 3.0]))
        found = solve(inner, x, zeta, jnp.asarray(rho))
        slow = supremum(inner, x, zeta, rho, box.lower, box.upper, seed=k, grid=41)
        assert float(found.value) == pytest.approx(slow, rel=1e-9, abs=1e-9)
        assert float(found.value) == pytest.approx(float(inner.phi(x, zeta, found.point, rho)), rel=1e-12)
        assert float(found.value + found.error_bound) >= slow - 1e-9
        assert float(found.error_bound) <= (0.0 if classes == 2 else 1e-8 * max(slow, 1.0))


def far_and_near(classes, rho):
    """(found, the highest phi on fine grids): the scores of classes 0 and 1 are -3 t and 3 t; those of others
    are between them, and lower."""
    loss = Softmax(classes=classes, intercept=True)
    inner = Inner(Transport.classification(2, 2.0), WholeSpace(2), loss)
    x = np.concatenate([[-3.0, 3.0], np.zeros(classes - 2), np.zeros(2), np.full(classes - 2, -1.0)])
    zeta = np.array([-1.5, 0.0])

    def phi(t):
        scores = np.column_stack([0 * t, 6 * t, *[3 * t - 1.0] * (classes - 2)])
        return np.logaddexp.reduce(scores, axis=1) - rho * (t + 1.5) ** 2

    t = np.linspace(-20, 20, 400_001)
    truth = phi(t[phi(t).argmax()] + np.linspace(-2e-4, 2e-4, 100_001)).max()
    return Exact().maximise(inner, jnp.asarray(x), jnp.asarray(zeta), jnp.asarray(rho)), truth


@pytest.mark.parametrize("classes", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_best_of_two_softmax_maxima_is_found_and_proven(classes):
    """From a sample that is fitted well, ascent goes nowhere: its loss is flat there, and the worst case of a
    small price far away. At 1.9 both are nearly as high as each other."""
    for rho in (0.3, 1.0, 1.9, 2.1, 10.0):
        found, truth = far_and_near(classes, rho)
        assert float(found.value) == pytest.approx(truth, rel=1e-9)
        assert truth - 1e-12 <= float(found.value + found.error_bound) <= truth * (1 + 1e-8)


def test_the_bound_for_many_classes_is_above_the_supremum():
    """Six classes: no cells, and each class's own supremum bounds it. Against brute force."""
    loss = Softmax(classes=6)
    box = Box(np.array([-1.0, -1.5, 0.0]), np.array([1.2, 0.7, 5.0]))
    inner = Inner(Transport.classification(3, 1.0), box, loss)
    rng = np.random.default_rng(2)
    for k in range(3):
        x, zeta = jnp.asarray(3 * rng.normal(size=12)), jnp.array([0.3, -0.2, float(k)])
        found = Exact().maximise(inner, x, zeta, jnp.asarray(1.0))
        slow = supremum(inner, x, zeta, 1.0, box.lower, box.upper, seed=k, grid=41)
        assert float(found.value) == pytest.approx(slow, rel=1e-9)
        assert slow <= float(found.value + found.error_bound) < slow + np.log(6)


def test_exact_says_why_it_cannot():
    m = 3
    ball = Inner(Transport.euclidean(m), Ball(np.zeros(m), 1.0), Squared())
    cubic = Inner(Transport.euclidean(m, 3.0), Box.cube(1.0, m), Squared())
    custom = CustomLoss(lambda w, xi: jnp.sum(w * xi), jnp.ones(m))
    own = Inner(Transport.euclidean(m), Box.cube(1.0, m), custom)
    for inner, word in ((ball, "ball"), (cubic, "p = 3"), (own, "CustomLoss")):
        with pytest.raises(BidroError, match=word):
            Exact().check(inner)
        assert isinstance(default_oracle(inner), BacktrackingAscent)
    plain = Inner(Transport.euclidean(m), Box.cube(1.0, m), Squared())
    assert isinstance(default_oracle(plain), Exact)
