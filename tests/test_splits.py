"""What is kept out and how folds are dealt depend on what is in the rows, not on the order of a table."""

import numpy as np
import pytest

from bidro.splits import choose_holdout, content_order


def table(seed=0, rows=120):
    rng = np.random.default_rng(seed)
    features = np.column_stack([rng.normal(size=rows), rng.integers(0, 2, rows)])
    # Some rows twice, and zeros of both signs.
    features[10:20], features[30, 0], features[31, 0] = features[:10], 0.0, -0.0
    target = rng.normal(size=rows)
    target[10:20] = target[:10]
    return features, target, np.array([["a", "b", "c"][k % 3] for k in range(rows)])


def multiset(features, target, clients, chosen):
    rows = np.column_stack([np.unique(clients, return_inverse=True)[1], features, target])[chosen] + 0.0
    return rows[np.lexsort(rows.T)]


ORDERS = {
    "reversed": lambda features, target, clients: np.arange(len(target))[::-1],
    "by target": lambda features, target, clients: np.argsort(target),
    "by class": lambda features, target, clients: np.argsort(features[:, 1], kind="stable"),
    "by feature": lambda features, target, clients: np.argsort(features[:, 0]),
    "by client": lambda features, target, clients: np.argsort(clients, kind="stable"),
    "shuffled": lambda features, target, clients: np.random.default_rng(9).permutation(len(target)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_rows_in_any_order(order):
    whole = table()
    moved = tuple(part[ORDERS[order](*whole)] for part in whole)
    for seed in (0, 1):
        one, two = (choose_holdout(t[2], t[0], t[1], 0.25, seed) for t in (whole, moved))
        assert np.array_equal(multiset(*whole, one), multiset(*moved, two))
    first, second = (
        content_order(np.unique(t[2], return_inverse=True)[1], t[0], t[1]) for t in (whole, moved)
    )
    assert np.array_equal(whole[0][first], moved[0][second])
    assert np.array_equal(whole[1][first], moved[1][second])


def test_a_client_alone_chooses_as_among_others_and_seeds_differ():
    features, target, clients = table()
    whole = choose_holdout(clients, features, target, 0.25, 3)
    for name in "abc":
        own = clients == name
        alone = choose_holdout(clients[own], features[own], target[own], 0.25, 3)
        assert np.array_equal(alone, whole[own])
        assert alone.sum() == 10
    assert np.any(whole != choose_holdout(clients, features, target, 0.25, 4))


def test_what_is_kept_out_of_a_sorted_table_is_a_random_sample():
    """The mean of what is kept out spreads as that of a sample without replacement does, with one seed."""
    means = []
    for k in range(400):
        target = np.sort(np.random.default_rng(k).normal(size=60))
        kept = choose_holdout(np.full(60, "a"), target[:, None] ** 2, target, 0.25, 0)
        means.append(target[kept].mean() - target.mean())
    expected = np.sqrt((1 - 0.25) / 15)
    assert abs(np.mean(means)) < 4 * expected / np.sqrt(400)
    assert np.std(means) == pytest.approx(expected, rel=4 / np.sqrt(2 * 400))
