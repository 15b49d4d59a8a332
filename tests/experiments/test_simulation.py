"""The data of Section VI, to the letter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.experiments.simulation import (
    COEFFICIENTS,
    OFFSETS,
    SHIFTS,
    SIZES,
    allocate,
    clean_mse,
    clean_test,
    observed_rows,
    paper_problem,
    simulate,
)


def test_directions_are_built_as_described():
    for seed in (2026, 2045):
        v = simulate(seed).directions
        u = COEFFICIENTS / np.linalg.norm(COEFFICIENTS)
        np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1.0)
        b_1, b_2 = v[3], v[4]
        assert abs(b_1 @ u) < 1e-12
        assert abs(b_2 @ u) < 1e-12
        for made, raw in zip(v[:3], (u + 0.2 * b_1, -u + 0.2 * b_1, u + 0.2 * b_2), strict=True):
            np.testing.assert_allclose(made, raw / np.linalg.norm(raw))


def test_rows_have_the_sizes_means_and_noise_of_the_paper():
    run = simulate(2026)
    assert run.samples.shape == (600, 4)
    assert np.array_equal(simulate(2026).samples, run.samples)
    assert not np.array_equal(simulate(2027).samples, run.samples)
    rng = np.random.default_rng(0)
    for i in range(5):
        v = run.directions[i]
        rows = observed_rows(OFFSETS[i] * v, SHIFTS[i] * v, 40_000, rng)
        # Means of 40,000 rows of variance 1.01: five standard errors are 0.026.
        np.testing.assert_allclose(rows[:, :3].mean(axis=0), (OFFSETS[i] + SHIFTS[i]) * v, atol=0.026)
        # y - <a, observed> = -<a, s v + gamma>: mean -s <a, v>, variance 0.01 ||a||^2.
        gap = rows[:, 3] - rows[:, :3] @ COEFFICIENTS
        assert gap.mean() == pytest.approx(-SHIFTS[i] * COEFFICIENTS @ v, abs=5 * 0.123 / 200)
        assert gap.std() == pytest.approx(0.1 * np.linalg.norm(COEFFICIENTS), rel=0.02)


def test_the_clean_test_is_clean_and_allotted_by_the_weights():
    run = simulate(2026)
    theta = clean_test(run, [0.5, 0.5, 0.0, 0.0, 0.0])
    assert theta.shape == (4000, 3)
    np.testing.assert_allclose(theta[:2000].mean(axis=0), run.means[0], atol=5 / np.sqrt(2000))
    x = np.array([0.9, 0.6, -0.4])
    by_hand = np.mean((theta @ COEFFICIENTS - theta @ x) ** 2)
    assert clean_mse(theta, x) == pytest.approx(by_hand)
    assert clean_mse(theta, np.stack([x, COEFFICIENTS])).tolist() == pytest.approx([by_hand, 0.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 1e-6))
def test_allotments_sum_up_and_stay_within_one(weights):
    w = np.array(weights)
    counts = allocate(w, 4000)
    assert counts.sum() == 4000
    assert np.all(np.abs(counts - w / w.sum() * 4000) < 1 + 1e-9)


def test_the_problem_of_section_vi():
    plain = paper_problem(simulate(2026), None)
    assert plain.federation.sizes == SIZES
    assert plain.ambiguity is None
    np.testing.assert_allclose(plain.initial_weights, np.array(SIZES) / 600)
    assert np.array_equal(plain.initial_model, np.zeros(3))
    assert float(plain.models.upper[0]) == 100.0
    assert float(plain.federation.support.upper[0]) == 500.0
