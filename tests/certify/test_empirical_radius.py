"""Radii read off the samples: by hand in one dimension, and what each says that it promises."""

import numpy as np
import pytest
from scipy.stats import wasserstein_distance as one_dimensional

from bidro.certify.radius import bootstrap_radii, split_radii
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.losses import Logistic, Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport


def problem(rows, transport=None):
    federation = Federation.from_arrays(rows, "unbounded", ["age", "cost"])
    return Problem(
        federation, Squared(), Box.cube(5.0, 1), transport or Transport(np.array([1.0, np.inf]), 1.0)
    )


def test_the_bootstrap_against_an_own_one_in_one_dimension():
    """The cost cannot move, so only ages count; the quantile is that of another generator's draws within the
    sampling error of 300 draws."""
    rng = np.random.default_rng(0)
    ages = rng.normal(size=40)
    found = bootstrap_radii(problem({"a": np.column_stack([ages, rng.normal(size=40)])}), 0.8, 300)
    draws = [one_dimensional(rng.choice(ages, 40), ages) for _ in range(2000)]
    # Quantiles at 0.8 -+ four standard errors of a share of 300 draws.
    low, high = np.quantile(draws, [0.8 - 0.093, 0.8 + 0.093])
    assert low <= found.radii[0] <= high
    assert "No promise" in found.promise
    assert "'cost' cannot move" in found.promise


def test_the_split_estimate_is_in_the_mean_above_the_true_distance():
    """W_1 of N uniform rows from the uniform law, by a fine grid; its mean is below the mean estimate."""
    grid = (np.arange(2000) + 0.5) / 2000
    estimates, distances = [], []
    for seed in range(40):
        ages = np.random.default_rng(seed).uniform(size=30)
        rows = {"a": np.column_stack([ages, np.zeros(30)])}
        estimates.append(split_radii(problem(rows), 3, seed).radii[0])
        distances.append(one_dimensional(ages, grid))
    assert np.mean(estimates) > np.mean(distances)
    # Halves have twice the error of all rows in the square, and there are two of them: about twice in all.
    assert np.mean(estimates) < 3 * np.mean(distances)


def test_labels_count_where_they_move():
    rng = np.random.default_rng(1)
    rows = {"a": np.column_stack([np.zeros(20), rng.normal(size=20)])}
    still, moving = (problem(rows, Transport(np.array([1.0, s]), 2.0)) for s in (np.inf, 1.0))
    assert split_radii(still, 2).radii[0] == 0.0
    found = split_radii(moving, 2)
    assert found.radii[0] > 0.0
    assert "cannot move" not in found.promise


def test_seeds_fix_the_draws_and_large_clients_are_thinned():
    rng = np.random.default_rng(2)
    whole = problem({"a": rng.normal(size=(25, 2)), "b": rng.normal(size=(2600, 2))})
    first, again = (split_radii(whole, 1, seed=4).radii for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first[1] < first[0]


def test_halves_by_hand():
    """Of an odd number of rows one stays out; of a large client 1,000 rows make a half."""
    for count, half in ((31, 15), (2_600, 1_000)):
        ages = np.random.default_rng(3).normal(size=count)
        found = split_radii(problem({"a": np.column_stack([ages, np.zeros(count)])}), 1, seed=7)
        order = np.random.default_rng([7, 0]).permutation(count)
        by_hand = one_dimensional(ages[order[:half]], ages[order[half : 2 * half]])
        assert found.radii[0] == pytest.approx(by_hand, rel=1e-9)
    # p = 2: the root of the mean square between the halves in order, over two repetitions.
    ages, rng, squares = np.random.default_rng(5).normal(size=12), np.random.default_rng([7, 0]), []
    for _ in range(2):
        order = rng.permutation(12)
        squares.append(np.mean((np.sort(ages[order[:6]]) - np.sort(ages[order[6:]])) ** 2))
    still = Transport(np.array([1.0, np.inf]), 2.0)
    found = split_radii(problem({"a": np.column_stack([ages, np.zeros(12)])}, still), 2, seed=7)
    assert found.radii[0] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-9)


def test_two_repetitions_are_the_fewest_and_a_hundred_the_usual():
    rng = np.random.default_rng(4)
    some = problem({"a": rng.normal(size=(6, 2))})
    two = bootstrap_radii(some, 0.5, 2).radii[0]
    assert two <= bootstrap_radii(some, 0.99, 2).radii[0]
    assert bootstrap_radii(some).radii[0] == bootstrap_radii(some, 0.95, 100).radii[0]


@pytest.mark.parametrize("price", [0.5, np.inf])
def test_a_label_that_cannot_flip_is_named(price):
    labelled = Federation.from_arrays({"a": np.array([[0.1, 1.0], [0.7, -1.0]])}, "unbounded", ["age", "ill"])
    whole = Problem(labelled, Logistic(), Box.cube(5.0, 1), Transport.classification(2, 1.0, price))
    found = split_radii(whole, 1)
    assert found.radii[0] == pytest.approx(0.6 if price == np.inf else 0.6 + price)
    assert ("'ill' cannot move" in found.promise) == (price == np.inf)
    assert "'age'" not in found.promise


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: split_radii(problem({"a": np.zeros((1, 2))})), "Client 'a' has a single row"),
        (lambda: bootstrap_radii(problem({"a": np.zeros((3, 2))}), 1.0), "confidence"),
        (lambda: bootstrap_radii(problem({"a": np.zeros((3, 2))}), 0.0), "confidence"),
        (
            lambda: split_radii(problem({"a": np.zeros((3, 2))}, Transport(np.full(2, np.inf), 1.0))),
            "No coordinate can move",
        ),
        (lambda: bootstrap_radii(problem({"a": np.zeros((3, 2))}), 0.9, 1), "repetitions"),
        (lambda: split_radii(problem({"a": np.zeros((3, 2))}), 0), "repetition"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
