"""Models from noisy moments and gradients: against enumeration, hand-worked numbers and simulated noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from bidro.privacy.noisy_model import (
    _AS_KNOWN,
    _FACTORS,
    Curvature,
    Direction,
    Known,
    NoisySteps,
    Pooled,
    weighed,
)


def pooled_of(z, noise=0.0, seed=0):
    """Mean moments of rows z, with noise of this standard deviation on the diagonal."""
    drawn = np.random.default_rng(seed).normal(size=(z.shape[1],) * 2) * noise / 2
    return Pooled(z.T @ z / len(z) + drawn + drawn.T, noise)


def rows(seed=0, count=4000, k=5):
    """Correlated features, a 1 and a target."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(count, k)) @ (np.eye(k) + 0.6 * rng.normal(size=(k, k)) / math.sqrt(k))
    target = theta @ rng.normal(size=k) * 0.3 + 0.7 * rng.normal(size=count) + 0.2
    return np.column_stack([theta, np.ones(count), target])


def test_two_readings_are_weighed_by_their_errors():
    # Of variance 1 and 4: four fifths of the first.
    assert weighed(10.0, 1.0, 20.0, 2.0) == pytest.approx(12.0)
    assert weighed(10.0, 0.0, 20.0, 2.0) == 10.0
    assert weighed(10.0, 1e9, 20.0, 2.0) == pytest.approx(20.0)


def test_the_number_of_rows_is_that_of_the_one_without_noise_and_of_the_diagonal_with_much():
    moments = np.diag([3.0, 5.0, 2.0, 2.0])
    assert Pooled(moments, 0.0).rows == pytest.approx(2.0)
    # Of the diagonal the mean, 3, with the noise of four and an error of 0.3 of it.
    error = math.hypot(2 / 2, 0.9)
    assert Pooled(moments, 2.0).rows == pytest.approx((2 / 4 + 3 / error**2) / (1 / 4 + 1 / error**2))
    # Where nothing but noise is told it is no less than that.
    assert Pooled(np.zeros((4, 4)), 2.0).rows > 0.5
    assert Pooled(moments, 1.0).divided(2.0).noise == 0.5


def test_the_posterior_is_that_of_bayes_by_enumeration():
    """Of every mean square by itself: the likelihood of estimates with a known error, and the mean of two
    readings, 0 and the estimate, by their variances."""
    information, estimate, size = np.array([0.5, 4.0, 30.0]), np.array([1.5, -0.4, 0.3]), 0.1
    weights, means, variances = [], [], []
    for factor in _FACTORS:
        t = size * factor
        likely = np.prod(norm.pdf(estimate, 0.0, np.sqrt(t + 1 / information)))
        weights.append(likely * factor ** (-_AS_KNOWN / 2) * math.exp(-_AS_KNOWN / 2 / factor))
        means.append(
            [
                weighed(e, math.sqrt(1 / i), 0.0, math.sqrt(t))
                for e, i in zip(estimate, information, strict=True)
            ]
        )
        variances.append(1 / (1 / t + information))
    weights = np.array(weights) / np.sum(weights)
    found, variance = Known(information, information * estimate).posterior(size)
    np.testing.assert_allclose(found, weights @ np.array(means), rtol=1e-9)
    np.testing.assert_allclose(variance, weights @ np.array(variances), rtol=1e-9)


def test_without_noise_a_spectrum_is_what_eigenvalues_are():
    pooled = pooled_of(rows())
    spectrum = pooled.spectrum()
    features = pooled.moments[:-1, :-1]
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(features), rtol=1e-9)
    assert spectrum.doubt == 0
    np.testing.assert_allclose(spectrum.directions.T @ features @ spectrum.directions, np.eye(6), atol=1e-9)


@pytest.mark.parametrize("truth", [np.ones(12), np.geomspace(3.0, 0.2, 12), np.r_[6.0, np.full(11, 0.5)]])
def test_a_spectrum_is_nearer_to_the_truth_than_eigenvalues_with_noise(truth):
    """What moments without noise are along the directions that are seen: the mean of squares of the errors
    is at most 0.6 times that of the eigenvalues that are seen."""
    rng, noise = np.random.default_rng(0), 0.3
    ours, theirs = [], []
    for _ in range(200):
        drawn = rng.normal(size=(13, 13)) * noise / 2
        pooled = Pooled(np.diag(np.append(truth, 1.0)) + drawn + drawn.T, noise)
        spectrum = pooled.spectrum()
        seen = np.linalg.eigvalsh(pooled.moments[:-1, :-1])
        along = np.einsum("ik,i,ik->k", spectrum.vectors, truth, spectrum.vectors)
        ours.append(np.mean((spectrum.values - along) ** 2))
        theirs.append(np.mean((seen - along) ** 2))
    assert np.mean(ours) < 0.6 * np.mean(theirs)


def test_no_directions_have_less_noise_for_the_norm_of_a_gradient():
    """tr(M A A') tr((A' M A)^-1) is d^2 along those of the spectrum, and more along any others."""
    moments, rng = pooled_of(rows()).moments, np.random.default_rng(0)
    features, d = moments[:-1, :-1], 6

    def cost(a):
        return np.trace(features @ a @ a.T) * np.trace(np.linalg.inv(a.T @ features @ a))

    ours = cost(Pooled(moments, 0.0).spectrum().directions)
    assert ours == pytest.approx(d**2)
    assert min(cost(rng.normal(size=(d, d))) for _ in range(200)) > d**2
    assert cost(np.eye(d)) > 1.1 * d**2


def test_a_gradient_adds_the_information_of_its_noise():
    """One number, by hand: h = 2, noise of variance r, and curvature that may be wrong by 0.3."""
    pooled = Pooled(np.array([[4.0, 2.0], [2.0, 3.0]]), 0.0)
    begun = NoisySteps.begin("squared", pooled, 10.0, 0.1, 8, 10.0)
    # Moments without noise tell 2 u* = 2 (2 / sqrt(4)) but for the doubt of the curvature.
    prior = Known(np.zeros(1), np.zeros(1)).posterior(0.3)[1]
    assert begun.known.information == pytest.approx(1 / (0.09 * prior))
    assert begun.known.pulled / begun.known.information == pytest.approx(1.0)
    # At u with clipping of nobody: all 1 row as moments count them.
    r, before = 0.5, begun
    gradient = 2 * (before.u - 0.7)
    after = before.step(Direction(gradient, 1.0, 0.0, 1.0, 0.0, r), 10.0)
    added = 4 / (r + 0.36 * before.variance)
    assert after.known.information == pytest.approx(before.known.information + added)
    assert after.known.pulled == pytest.approx(before.known.pulled + added * 0.7)
    assert after.x == pytest.approx(after.u / 2)


def test_exact_gradients_end_at_least_squares():
    """Also where the moments have noise: they are then believed less, and the curvature is wrong."""
    z = rows()
    exact = np.linalg.lstsq(z[:, :-1], z[:, -1], rcond=None)[0]
    least = np.mean((z[:, :-1] @ exact - z[:, -1]) ** 2)
    for noise in (0.0, 0.05):
        steps = NoisySteps.begin("squared", pooled_of(z, noise), 100.0, 0.0, 8, 10.0)
        for _ in range(8):
            residual = z[:, :-1] @ steps.x - z[:, -1]
            gradient = steps.directions.T @ (2 * residual @ z[:, :-1]) / len(z)
            steps = steps.step(Direction(gradient, 1.0, 0.0, np.mean(residual**2), 0.0, 0.0), 10.0)
        np.testing.assert_allclose(steps.x, exact, atol=1e-4 if noise == 0 else 2e-2)
        assert steps.mean_loss == pytest.approx(least, rel=0.02)
        assert steps.level in (least_power(8 * least), 2 * least_power(8 * least))


def test_curvature_is_learnt_from_exact_gradients_of_a_quadratic():
    """By as many differences along independent steps as there are numbers it is the Hessian; and it never
    becomes less than what moments say."""
    d = 5
    share = np.eye(d) + np.diag(np.arange(d)) + 0.2
    found = Curvature(np.eye(d))
    for u in np.cumsum(np.vstack([np.zeros(d), np.eye(d)]), axis=0):
        found = found.with_gradient(u, share @ u, 0.0)
    np.testing.assert_allclose(found.share, share, rtol=1e-8)
    flat = Curvature(np.eye(d)).with_gradient(np.zeros(d), np.zeros(d), 0.0)
    assert np.array_equal(flat.with_gradient(np.ones(d), 0.1 * np.ones(d), 0.0).share, np.eye(d))


def test_what_noise_hides_of_curvature_is_not_believed():
    u, gradient = np.array([0.1, 0.0]), np.array([0.3, 0.0])
    begun = Curvature(np.eye(2)).with_gradient(np.zeros(2), np.zeros(2), 0.5)
    assert begun.with_gradient(u, gradient, 0.0).share[0, 0] == pytest.approx(1 + 2 * 0.00045 / 0.50045)


def least_power(number):
    return 2.0 ** math.ceil(math.log2(number))


def test_clips_are_smaller_the_more_noise_there_is():
    """Least of c / t^2 + (noise d t)^2 / rounds, by search."""
    pooled = pooled_of(rows())
    for noise in (0.002, 0.01, 0.05):
        steps = NoisySteps.begin("squared", pooled, 100.0, noise, 8, 10.0)
        typical = 2 * math.sqrt(steps.mean_loss * 6)
        t = np.geomspace(0.1, 100, 20_000)
        best = t[np.argmin(0.02 / t**2 + (noise * 6 * t) ** 2 / 8)]
        assert steps.clip / typical == pytest.approx(max(best, 0.6), rel=1e-3)
    assert NoisySteps.begin("squared", pooled, 100.0, 0.0, 8, 10.0).clip / typical == pytest.approx(50.0)
    assert NoisySteps.begin("squared", pooled, 100.0, 1.0, 8, 10.0).clip / typical == pytest.approx(0.6)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_no_number_of_a_model_is_larger_than_asked_for(loss):
    steps = NoisySteps.begin(loss, pooled_of(rows()), 100.0, 0.0, 8, 0.05)
    for _ in range(3):
        assert np.abs(steps.x).max() <= 0.05 * (1 + 1e-12)
        steps = steps.step(Direction(np.full(6, -3.0), 1.0, 0.0, 0.5, 0.0, 0.0), 0.05)


def test_what_is_not_known_is_as_large_as_errors_are():
    """Over simulated moments and gradients with noise: the mean excess is what is said, to a half."""
    z, rounds = rows(), 8
    exact = np.linalg.lstsq(z[:, :-1], z[:, -1], rcond=None)[0]
    rng, said, true = np.random.default_rng(0), [], []
    second = z[:, :-1].T @ z[:, :-1] / len(z)
    for seed in range(60):
        steps = NoisySteps.begin("squared", pooled_of(z, 0.02, seed), 100.0, 0.05, rounds, 10.0)
        for _ in range(rounds):
            gradient = steps.directions.T @ (2 * second @ (steps.x - exact)) + 0.3 * rng.normal(size=6)
            steps = steps.step(Direction(gradient, 1.0, 0.0, 0.49, 0.01, 0.09), 10.0)
        away = steps.x - exact
        said.append(steps.variance.sum())
        true.append(away @ second @ away)
    assert np.mean(true) == pytest.approx(np.mean(said), rel=0.5)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.97])
def test_moments_tell_the_gradient_of_the_logistic_loss_at_the_share_of_a_class(share):
    """Against the gradient over rows, at the constant prediction whose logistic function is that share; and
    with what is doubted of the curvature, the first step is on its way to the best model."""
    rng = np.random.default_rng(0)
    theta = np.column_stack([rng.normal(size=(20_000, 3)) @ np.diag([1.0, 0.5, 2.0]), np.ones(20_000)])
    offset = math.log(share / (1 - share))
    y = np.where(rng.uniform(size=20_000) < 1 / (1 + np.exp(-offset - 0.2 * theta[:, 0])), 1.0, -1.0)
    pooled = pooled_of(np.column_stack([theta, y]))
    assert pooled.mean_of_classes == pytest.approx(min(max(y.mean(), -0.98), 0.98))
    steps = NoisySteps.begin("logistic", pooled, 100.0, 0.0, 6, 10.0)
    at = np.array([0.0, 0.0, 0.0, math.log((1 + y.mean()) / (1 - y.mean()))])
    np.testing.assert_allclose(steps.directions @ steps.centre, at, atol=1e-9)
    exact = (-y / (1 + np.exp(y * (theta @ at)))) @ theta / len(y)
    # What was told: information times what was left to go, of h times the distance.
    told = -0.25 * steps.known.pulled / steps.known.information
    curved = y.var()
    scale = np.linalg.solve(steps.directions.T, told) / exact
    np.testing.assert_allclose(scale[np.abs(exact) > 1e-3], 1 / curved, rtol=0.05)
    losses = [np.logaddexp(0, -y * (theta @ x)).mean() for x in (at, steps.x)]
    assert losses[1] < losses[0]
    assert steps.mean_loss == pytest.approx(0.8 * losses[0], rel=0.02)


def test_the_mean_curvature_of_the_logistic_loss_is_about_that_of_normal_predictions():
    rng = np.random.default_rng(0)
    theta = np.column_stack([rng.normal(size=(50_000, 2)), np.ones(50_000)])
    y = np.where(rng.uniform(size=50_000) < 0.5, 1.0, -1.0)
    steps = NoisySteps.begin("logistic", pooled_of(np.column_stack([theta, y])), 100.0, 0.0, 6, 10.0)
    for x in (np.zeros(3), np.array([0.5, -1.0, 0.0]), np.array([1.0, 1.0, -2.5]), np.array([2.0, 1.0, 1.0])):
        p = 1 / (1 + np.exp(-(theta @ x)))
        there = replace(steps, u=steps.spectrum.coordinates(x))
        assert there._curved == pytest.approx(4 * np.mean(p * (1 - p)), rel=0.12)
