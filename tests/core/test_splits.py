"""What is held out and how folds are dealt depend on what is in the rows, not on the order of a table."""

import math

import numpy as np
import pytest

from bidro import Federation
from bidro.core.errors import BidroError
from bidro.core.splits import (
    KEY_BYTES,
    Draws,
    arranged,
    choose_holdout,
    cut_of,
    dealt,
    holdout_of,
    key_of_seed,
    label_ids,
    random_bits,
    siphash,
)


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
        arranged(np.unique(t[2], return_inverse=True)[1], t[0], t[1]).order for t in (whole, moved)
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
    assert np.any(whole != choose_holdout(clients, features, target, 0.25, 4))


def test_what_is_kept_out_of_a_sorted_table_is_a_random_sample():
    """Its mean spreads as that of a sample of its size, with one seed, which is exactly the share."""
    apart = []
    for k in range(400):
        target = np.sort(np.random.default_rng(k).normal(size=60))
        kept = choose_holdout(np.full(60, "a"), target[:, None] ** 2, target, 0.25, 0)
        assert kept.sum() == 15
        # Of a sample without replacement, in its standard errors.
        error = target.std(ddof=1) * math.sqrt((1 - kept.mean()) / kept.sum())
        apart.append((target[kept].mean() - target.mean()) / error)
    assert abs(np.mean(apart)) < 4 / np.sqrt(400)
    assert np.std(apart) == pytest.approx(1, rel=4 / np.sqrt(2 * 400))


@pytest.mark.parametrize("by_people", [False, True])
def test_a_share_is_exact_at_every_client(by_people):
    """Of 18 rows, or people, a client a fifth is 4, not 1 to 9; people of all sizes stay whole."""
    rng = np.random.default_rng(6)
    sizes = dict(zip("abcdefgh", [18] * 5 + [3, 5, 1001], strict=True))
    labels = np.concatenate([np.full(size, name) for name, size in sizes.items()])
    people = np.arange(len(labels))
    if by_people:
        times = rng.integers(1, 5, len(labels))
        labels, people = np.repeat(labels, times), np.repeat(people, times)
    rows = rng.integers(0, 3, (len(labels), 2)).astype(float)  # most have equals
    for share, expected in ((0.2, 4), (0.5, 9), (0.25, 5)):
        of = label_ids(people.astype(str)) if by_people else None
        kept = choose_holdout(labels, rows[:, :1], rows[:, 1], share, 3, of)
        found = {name: len(np.unique(people[kept & (labels == name)])) for name in sizes}
        assert [found[name] for name in "abcde"] == [expected] * 5
        assert (found["f"], found["h"]) == (1, math.floor(share * 1001 + 0.5))
        assert not set(people[kept].tolist()) & set(people[~kept].tolist())


def test_a_row_more_moves_at_most_one_other_and_none_by_an_earlier_cut():
    rng = np.random.default_rng(7)
    names = np.array(["a"])
    for k in range(100):
        rows = rng.normal(size=(int(rng.integers(5, 60)), 2))
        before, after = (
            arranged(np.zeros(n, np.int64), rows[:n, :1], rows[:n, 1]).ids for n in (len(rows) - 1, len(rows))
        )
        one, two = (holdout_of(names, np.zeros(len(ids), np.int64), ids, 0.3, k) for ids in (before, after))
        assert np.sum(one != two[:-1]) <= 1
        cut = cut_of("a", before, one, k)
        here = np.zeros(len(rows), np.int64)
        np.testing.assert_array_equal(holdout_of(names, here, after, 0.3, k, cut=cut)[:-1], one)


def test_adding_a_row_moves_no_other():
    """1,000 times a row is added, one time in three another copy of one that is there, at a random place."""
    rng = np.random.default_rng(1)
    for k in range(1000):
        rows = int(rng.integers(150, 250))
        features, target = rng.integers(0, 3, (rows, 2)).astype(float), rng.integers(0, 4, rows) * 1.0
        added = np.append(features[0], target[0]) if k % 3 == 0 else rng.normal(size=3)
        place = int(rng.integers(0, rows + 1))
        more = np.insert(np.column_stack([features, target]), place, added, axis=0)
        before = sides(features, target, k)
        after = sides(more[:, :2], more[:, 2], k)
        assert len(after) == rows + 1
        assert len(before - after) == 0


def sides(features, target, key):
    """(id, whether held out, fold) of every row, as a set."""
    names, here = ["a"], np.zeros(len(target), np.int64)
    ids = arranged(here, features, target).ids
    kept = holdout_of(np.array(names), here, ids, 0.25, key, alone=True)
    folds = dealt(names, Draws.single_rows(here, ids), "row", 2, key)
    return set(zip(ids.tolist(), kept.tolist(), folds.tolist(), strict=True))


def test_copies_of_a_row_are_drawn_apart():
    same = np.ones((4000, 2))
    kept = choose_holdout(np.full(4000, "a"), same, same[:, 0], 0.25, 5)
    assert kept.sum() == 1000
    fold_ids = Federation.from_arrays({"a": same}, "unbounded").folds(5, 5)
    assert np.bincount(fold_ids) == pytest.approx(800, abs=4 * math.sqrt(4000 * 0.2 * 0.8))
    assert len(set(arranged(np.zeros(4000, np.int64), same, same[:, 0]).ids.tolist())) == 4000


def test_sides_and_folds_are_independent():
    """Of each other, and between keys, clients and purposes: counts in all cells of a table."""
    rows = np.random.default_rng(2).normal(size=(20_000, 2))
    clients = np.full(20_000, "a")
    kept = choose_holdout(clients, rows[:, :1], rows[:, 1], 0.5, 3)
    again = choose_holdout(clients, rows[:, :1], rows[:, 1], 0.5, 4)
    other = choose_holdout(np.full(20_000, "b"), rows[:, :1], rows[:, 1], 0.5, 3)
    folds = Federation.from_arrays({"a": rows}, "unbounded").folds(4, 3)
    for first, second, parts in ((kept, folds, 4), (kept, again, 2), (kept, other, 2)):
        cells = np.bincount(first * parts + second, minlength=2 * parts)
        share = 1 / (2 * parts)
        assert np.max(np.abs(cells - 20_000 * share)) < 4 * math.sqrt(20_000 * share * (1 - share))


@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_tiny_clients_keep_one_out_and_train_on_two(share):
    for k in range(200):
        rows = np.random.default_rng(k).normal(size=(3 + k % 4, 2))
        kept = choose_holdout(np.full(len(rows), "a"), rows[:, :1], rows[:, 1], share, k)
        assert 1 <= kept.sum() <= len(rows) - 2
        assert share < 0.9 or kept.sum() == len(rows) - 2
        assert share > 0.1 or kept.sum() == 1
    with pytest.raises(BidroError, match=r"'a' has 2 rows, too few to keep some out"):
        choose_holdout(np.full(2, "a"), rows[:2, :1], rows[:2, 1], share, 0)


def test_folds_of_small_clients_are_dealt_in_turn_and_of_others_drawn():
    """No fold has less than half its fair share; the small clients' folds differ by one row at most."""
    for k in range(300):
        size = 5 + k
        rows = np.random.default_rng(k).normal(size=(size, 2))
        fold_ids = Federation.from_arrays({"a": rows}, "unbounded").folds(5, k)
        counts = np.bincount(fold_ids, minlength=5)
        assert counts.min() >= size / 10
        ids = arranged(np.zeros(size, np.int64), rows[:, :1], rows[:, 1]).ids
        bits = random_bits(["a"], np.zeros(size, np.int64), ids, k, np.uint64(1))
        drawn = np.array([int(one) * 5 >> 64 for one in bits])
        if np.bincount(drawn, minlength=5).min() >= size / 10:
            assert np.array_equal(fold_ids, drawn)
        else:
            assert np.ptp(counts) <= 1


def test_a_key_of_a_site_and_that_of_a_seed():
    rows = np.random.default_rng(3).normal(size=(200, 2))
    clients, whole = np.full(200, "a"), Federation.from_arrays({"a": rows}, "unbounded")
    given = [choose_holdout(clients, rows[:, :1], rows[:, 1], 0.3, key) for key in (7, key_of_seed(7))]
    assert np.array_equal(*given)
    assert np.array_equal(whole.folds(4, 7), whole.folds(4, key_of_seed(7)))
    other = bytes(KEY_BYTES)
    assert np.any(choose_holdout(clients, rows[:, :1], rows[:, 1], 0.3, other) != given[0])
    assert np.any(whole.folds(4, other) != whole.folds(4, 7))


def test_the_hash_is_siphash():
    """The published test vector for 8 bytes, and plain whole numbers for longer messages."""
    key = np.frombuffer(bytes(range(16)), dtype="<u8")
    word = np.frombuffer(bytes(range(8)), dtype="<u8")
    assert int(siphash(key, [word])[0]) == 0x93F5F5799A932462
    words = [np.array([3, 2**64 - 1], np.uint64), np.uint64(9), np.array([1, 2], np.uint64)]
    found = siphash(key, words).tolist()
    assert found == [plain_siphash(key.tolist(), message) for message in ([3, 9, 1], [2**64 - 1, 9, 2])]


def plain_siphash(key, words):
    mask = 2**64 - 1

    def turned(x, bits):
        return (x << bits | x >> (64 - bits)) & mask

    def mixed(a, b, c, d):
        a, c = (a + b) & mask, (c + d) & mask
        b, d = turned(b, 13) ^ a, turned(d, 16) ^ c
        a, c = (turned(a, 32) + d) & mask, (c + b) & mask
        return a, turned(b, 17) ^ c, turned(c, 32), turned(d, 21) ^ a

    text = b"somepseudorandomlygeneratedbytes"
    state = [int.from_bytes(text[8 * i : 8 * i + 8], "big") ^ key[i % 2] for i in range(4)]
    for word in [*words, 8 * len(words) << 56]:
        a, b, c, d = mixed(*mixed(state[0], state[1], state[2], state[3] ^ word))
        state = [a ^ word, b, c, d]
    state[2] ^= 0xFF
    for _ in range(4):
        state = mixed(*state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def test_people_are_kept_out_with_the_share_and_do_not_move_each_other():
    rng = np.random.default_rng(4)
    person = np.repeat(np.arange(3000), rng.integers(1, 4, 3000))
    rows, ids = rng.normal(size=(len(person), 2)), label_ids(person.astype(str))
    kept = choose_holdout(np.full(len(person), "a"), rows[:, :1], rows[:, 1], 0.2, 1, ids)
    share = len(set(ids[kept])) / 3000
    assert share == pytest.approx(0.2, abs=4 * math.sqrt(0.2 * 0.8 / 3000))
    fewer = person != 17
    again = choose_holdout(np.full(fewer.sum(), "a"), rows[fewer, :1], rows[fewer, 1], 0.2, 1, ids[fewer])
    assert np.array_equal(again, kept[fewer])
