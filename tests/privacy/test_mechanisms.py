"""What one person can change of each release: searched for on whole numbers, attained, never exceeded."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bidro.core.errors import BidroError
from bidro.losses import Logistic, Squared
from bidro.privacy.accounting import rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import (
    BERNSTEIN_STEPS,
    MOMENT_STEPS,
    Noisy,
    bernstein,
    bernstein_scale,
    bernstein_steps,
    gradients,
    gradients_scale,
    moments,
    moments_scale,
    symmetric,
    upper,
)
from bidro.privacy.row_arithmetic import (
    along,
    clipped_rows,
    column_sums,
    gram,
    logistic,
    losses_and_gradients,
    softplus,
)

RHO = Fraction(1, 40)
CLIP, LOSS_CLIP, DEGREE = math.sqrt(2.5), 3.0, 4
# Any finite double: huge, denormal, negative zero.
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
ODD = st.sampled_from([0.0, -0.0, 5e-324, -2.3e-308, 1e300, -1.7e308, CLIP, -CLIP, 1.0, 0.1, 1e-12])

# Each release of rows (N, 4): without noise, and what the numbers mean with a budget.
RELEASES = {
    "moments": (
        lambda z: moments(z, CLIP, None),
        lambda k: moments_scale(4, CLIP, RHO, k),
    ),
    "gradients": (
        lambda z: gradients(z, CLIP, LOSS_CLIP, None),
        lambda k: gradients_scale(3, CLIP, LOSS_CLIP, RHO, k),
    ),
    "losses": (
        lambda z: bernstein(z[:, 0], DEGREE, None),
        lambda k: bernstein_scale(DEGREE, RHO, k),
    ),
}
# A row of each that changes it as much as any can.
LONGEST = {
    "moments": np.array([[0.0, -CLIP, 0.0, 0.0]]),
    "gradients": np.array([[0.0, 0.0, CLIP, LOSS_CLIP]]),
    "losses": np.array([[1.0, 0.0, 0.0, 0.0]]),
}


def cost(release, others, person, k):
    """rho that the release costs a person with these rows, by the noise of each number, exactly."""
    exact, scale = RELEASES[release]
    with_person, without = exact(np.vstack([others, person])).values, exact(others).values
    return sum(
        Fraction(int(a) - int(b)) ** 2 / (2 * variance)
        for a, b, variance in zip(with_person, without, scale(k).variance, strict=True)
    )


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("k", [1, 3])
def test_some_row_costs_all_that_is_charged_and_none_more(release, k):
    rng = np.random.default_rng(0)
    others = rng.normal(size=(20, 4))
    assert cost(release, others, np.repeat(LONGEST[release], k, axis=0), k) == RHO
    for trial in range(200):
        directions = rng.normal(size=(k, 4)) ** (1 + 2 * (trial % 3))
        if trial % 2:
            directions = np.repeat(directions[:1], k, axis=0)
        assert cost(release, others, directions * 10.0 ** rng.integers(-3, 4), k) <= RHO


def test_the_symmetric_noise_by_all_whole_rows_of_a_small_ball():
    """||z z'||_F = ||z||^2, with the entries off the diagonal counted twice, over every whole row of norm at
    most 5 in three dimensions."""
    most = 0
    for z in itertools.product(range(-5, 6), repeat=3):
        if sum(a * a for a in z) > 25:
            continue
        weighted = sum((1 if i == j else 2) * (z[i] * z[j]) ** 2 for i in range(3) for j in range(i, 3))
        assert weighted == sum(a * a for a in z) ** 2
        most = max(most, weighted)
    assert most == 25**2
    rows, columns = upper(3)
    variance = moments_scale(3, 1.0, RHO).variance
    assert [v / variance[0] for v in variance] == [
        1 if i == j else Fraction(1, 2) for i, j in zip(rows, columns, strict=True)
    ]


def test_every_row_of_a_small_grid_stays_in_its_ball():
    """All rows with coordinates in tenths, at a norm of few steps, where rounding is coarsest."""
    grid = np.array(list(itertools.product(np.linspace(-2, 2, 21), repeat=3)))
    for steps in (1, 2, 5, 13):
        found = clipped_rows(grid, 1.0, steps)
        squares = (found**2).sum(axis=1)
        assert squares.max() == steps**2
        # Of what rounding allows: within one step of the clipped row in every coordinate.
        norms = np.maximum(np.linalg.norm(grid, axis=1), 1.0)
        assert np.abs(found - grid / norms[:, None] * steps).max() <= 1 + 1e-9


@settings(max_examples=150, deadline=None)
@given(arrays(float, st.tuples(st.integers(1, 30), st.just(4)), elements=DOUBLES | ODD), st.data())
def test_any_doubles_keep_the_bound_the_order_and_the_sensitivity(table, data):
    for steps in (1, 7, MOMENT_STEPS):
        found = clipped_rows(table, CLIP, steps)
        assert all(sum(int(v) ** 2 for v in row) <= steps**2 for row in found)
    order = data.draw(st.permutations(range(len(table))))
    left_out = data.draw(st.integers(0, len(table) - 1))
    others = np.delete(table, left_out, axis=0)
    for release, (exact, _) in RELEASES.items():
        assert exact(table).values.tobytes() == exact(table[order]).values.tobytes()
        assert cost(release, others, table[left_out : left_out + 1], 1) <= RHO


@settings(max_examples=100, deadline=None)
@given(arrays(float, (17, 5), elements=DOUBLES | ODD), arrays(float, (4,), elements=st.floats(-1e3, 1e3)))
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_losses_and_gradients_are_finite_and_the_same_wherever_a_row_stands(loss, table, x):
    whole = losses_and_gradients(table, x, loss)
    assert np.all(np.isfinite(whole))
    for begin, end in ((0, 1), (3, 4), (2, 11), (16, 17)):
        part = losses_and_gradients(np.ascontiguousarray(table[begin:end]), x, loss)
        assert part.tobytes() == whole[begin:end].tobytes()
    turned = losses_and_gradients(np.asfortranarray(table[::-1]), x, loss)
    assert np.ascontiguousarray(turned[::-1]).tobytes() == np.ascontiguousarray(whole).tobytes()


def test_along_directions_a_row_is_the_same_wherever_it_stands():
    rng = np.random.default_rng(0)
    rows, directions = rng.normal(size=(1000, 7)), rng.normal(size=(7, 7))
    found = along(rows, directions)
    np.testing.assert_allclose(found, rows @ directions, rtol=1e-12, atol=1e-12)
    for place in (0, 1, 2, 3, 501, 999):
        assert along(rows[place : place + 1], directions).tobytes() == found[place].tobytes()
    turned = along(np.asfortranarray(rows[::-1]), np.asfortranarray(directions))
    assert np.ascontiguousarray(turned[::-1]).tobytes() == found.tobytes()
    for wrong in (np.nan, np.inf, 1e7):
        with pytest.raises(BidroError, match="Directions must be of finite numbers"):
            along(rows[:0], np.full((7, 7), wrong))


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_losses_and_gradients_are_those_of_the_library(loss):
    import jax

    rng = np.random.default_rng(1)
    table, x = rng.normal(size=(40, 4)), rng.normal(size=4)
    target = rng.normal(size=40) if loss == "squared" else rng.choice([-1.0, 1.0], 40)
    kind = Squared(intercept=True) if loss == "squared" else Logistic(intercept=True)
    z = np.column_stack([table[:, :3], np.ones(40), target])
    found = losses_and_gradients(z, x, loss)
    samples = np.column_stack([table[:, :3], target])
    values, slopes = jax.vmap(jax.value_and_grad(kind.value), (None, 0))(x, samples)
    np.testing.assert_allclose(found[:, -1], values, rtol=1e-13)
    np.testing.assert_allclose(found[:, :-1], slopes, rtol=1e-12, atol=1e-14)


def test_softplus_and_logistic_against_numpy():
    t = np.concatenate(
        [np.linspace(-700, 700, 20_001), np.linspace(-3, 3, 20_001), [1e60, -1e60, 0.0, -745.0]]
    )
    np.testing.assert_allclose(softplus(t), np.logaddexp(0, t), rtol=1e-14, atol=1e-320)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(logistic(t), 1 / (1 + np.exp(-t)), rtol=1e-14, atol=1e-320)


@pytest.mark.parametrize("degree", [1, 2, 4, 16, 64])
def test_bernstein_steps_are_weights_whose_mean_is_no_less_than_the_value(degree):
    rng = np.random.default_rng(degree)
    v = np.concatenate(
        [rng.uniform(size=300), rng.uniform(size=100) ** 30, [0.0, 1.0, 5e-324, 1 - 2**-53, 0.5]]
    )
    steps = bernstein_steps(v, degree)
    assert steps.min() >= 0
    assert np.all(steps.sum(axis=1) == BERNSTEIN_STEPS)
    assert np.all(np.array([sum(int(s) ** 2 for s in row) for row in steps]) <= BERNSTEIN_STEPS**2)
    exact = [
        [
            math.comb(degree, k) * Fraction(value) ** k * (1 - Fraction(value)) ** (degree - k)
            for k in range(degree + 1)
        ]
        for value in v[-20:]
    ]
    rounded = [[Fraction(int(s), BERNSTEIN_STEPS) for s in row] for row in steps[-20:]]
    for ours, theirs, value in zip(rounded, exact, v[-20:], strict=True):
        assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 3e-9
        mean = sum(Fraction(k, degree) * w for k, w in enumerate(ours))
        assert 0 <= mean - Fraction(value) <= 2e-9 * (degree + 1)
    # Losses above the level count as the level.
    assert np.array_equal(
        bernstein_steps(np.array([7.0, np.inf]), degree), bernstein_steps(np.ones(2), degree)
    )


def test_sums_mean_what_they_say():
    rng = np.random.default_rng(2)
    z = 0.7 * rng.normal(size=(20_000, 4))
    weights = np.minimum(1, CLIP / np.linalg.norm(z, axis=1))
    second = (z * weights[:, None] ** 2).T @ z
    found = symmetric(moments(z, CLIP, None).sums, 4)
    np.testing.assert_allclose(found, second, atol=2e-5 * second.max())
    norms = np.linalg.norm(z[:, :3], axis=1)
    clipped = (z[:, :3] * np.minimum(1, CLIP / norms)[:, None]).sum(axis=0)
    rows = np.column_stack([z[:, :3], 4 * np.abs(z[:, 3])])
    sums = gradients(rows, CLIP, LOSS_CLIP, None).sums
    np.testing.assert_allclose(sums[:3], clipped, atol=0.1)
    assert sums[3] == pytest.approx(np.minimum(rows[:, 3], LOSS_CLIP).sum(), rel=1e-5)
    assert list(bernstein(np.array([0.0, 1.0, 1.0]), 1, None).values) == [
        BERNSTEIN_STEPS - 1,
        2 * BERNSTEIN_STEPS + 1,
    ]
    # Products and sums of whole numbers, against Python's own.
    whole = clipped_rows(z[:9000], CLIP, MOMENT_STEPS)
    plain = sum(int(a) * int(b) for a, b in whole[:, :2])
    assert gram(whole)[0][1] == plain
    assert column_sums(whole)[2] == sum(int(a) for a in whole[:, 2])


def test_noise_has_the_size_that_is_told():
    """Of an empty table: nothing but noise, which has the told standard deviation, number by number."""
    repeated = 400
    for release, scale in (
        (lambda bits: moments(np.zeros((3, 4)), CLIP, RHO, 2, bits), moments_scale(4, CLIP, RHO, 2)),
        (
            lambda bits: gradients(np.zeros((3, 4)), CLIP, LOSS_CLIP, RHO, 2, bits),
            gradients_scale(3, CLIP, LOSS_CLIP, RHO, 2),
        ),
    ):
        drawn = np.array([release(seeded_bits(seed)).sums for seed in range(repeated)])
        spread = np.sqrt((drawn**2).mean(axis=0)) / scale.sigma
        assert np.all(np.abs(spread - 1) <= 4.5 / math.sqrt(2 * repeated))
        between = np.corrcoef(drawn.T)[np.triu_indices(drawn.shape[1], 1)]
        assert np.abs(between).max() <= 4.5 / math.sqrt(repeated)
    sigma = moments_scale(4, CLIP, RHO, 2).sigma
    assert sigma[0] == pytest.approx(2 * CLIP**2 / math.sqrt(2 * RHO), rel=1e-12)
    assert sigma[1] == pytest.approx(sigma[0] / math.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("release", RELEASES)
def test_no_rows_are_zeros_before_the_noise(release):
    """That a table is empty is itself a secret: it is answered as any other."""
    values = RELEASES[release][0](np.zeros((0, 4))).values
    assert len(values) == len(RELEASES[release][1](1).unit)
    assert not values.any()


def test_a_person_has_one_row_unless_another_number_is_given():
    z = np.zeros((2, 4))
    for noisy, scale, one in (
        (moments(z, CLIP, RHO), moments_scale(4, CLIP, RHO), moments_scale(4, CLIP, RHO, 1)),
        (
            gradients(z, CLIP, LOSS_CLIP, RHO),
            gradients_scale(3, CLIP, LOSS_CLIP, RHO),
            gradients_scale(3, CLIP, LOSS_CLIP, RHO, 1),
        ),
        (bernstein(z[:, 0], 2, RHO), bernstein_scale(2, RHO), bernstein_scale(2, RHO, 1)),
    ):
        assert noisy.scale.variance == scale.variance == one.variance


def test_sums_beyond_sixty_four_bits_are_cut_after_the_noise():
    tiny = Fraction(1, 2**80)
    drawn = moments(np.zeros((1, 2)), 1.0, tiny, 1, seeded_bits(0)).values
    assert set(np.abs(drawn)) == {2**63 - 1}
    assert isinstance(moments(np.zeros((1, 2)), 1.0, rho_of(1, 1e-6)), Noisy)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: moments(np.array([[1.0, math.nan]]), 1.0, RHO), "finite numbers"),
        (lambda: moments(np.array([[1.0, math.inf]]), 1.0, RHO), "finite numbers"),
        (lambda: bernstein(np.array([math.nan]), 2, RHO), "Losses must be numbers"),
        (lambda: bernstein(np.zeros(2), 0, RHO), "from 1 to 64"),
        (lambda: moments(np.zeros((2, 2)), 0.0, RHO), "largest norm"),
        (lambda: gradients(np.zeros((2, 2)), 1.0, math.inf, RHO), "largest norm"),
        (lambda: moments(np.zeros((2, 2)), 1.0, RHO, 0), "rows_per_person must be at least 1"),
        (lambda: losses_and_gradients(np.zeros((2, 2)), np.array([math.nan]), "squared"), "finite numbers"),
        (lambda: losses_and_gradients(np.zeros((2, 2)), np.array([1e99]), "squared"), "finite numbers"),
        (lambda: losses_and_gradients(np.zeros((2, 2)), np.zeros(1), "hinge"), "squared or logistic"),
    ],
)
def test_bad_requests_say_what_is_wrong(call, words):
    with pytest.raises(BidroError, match=words):
        call()
