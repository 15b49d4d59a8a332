"""Masked sums: exact to the bit, and nothing but the sum."""

import hashlib
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from bidro.core.errors import BidroError
from bidro.privacy import masking
from bidro.privacy.masking import Release, Roster, SiteKey, masked, most_rows, require_room, sum_of_masked

NAMES = ("east", "north", "south", "upland", "west")


def key(number):
    return SiteKey(hashlib.sha256(f"site {number}".encode()).digest())


def sites(count):
    """(roster, its keys by name); names in another order than keys."""
    keys = {f"site-{(7 * i) % count if count % 7 else i:02d}": key(i) for i in range(count)}
    return Roster({name: one.public for name, one in keys.items()}), keys


FIVE = {name: key(name) for name in NAMES}
ROSTER = Roster({name: one.public for name, one in FIVE.items()})
RELEASE = Release(ROSTER, "agreed", "stay-2026", 3, "gradients", b"x")
ABOUT = {
    "agreement": "agreed again",
    "run": "stay-2027",
    "round": 4,
    "question": "losses",
    "message": b"y",
    "roster": Roster({name: ROSTER.keys[name] for name in NAMES[:4]}),
}


def messages(values, keys, release):
    return np.stack(
        [masked(v, name, keys[name], release) for v, name in zip(values, sorted(keys), strict=True)]
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 50),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 1000, 2**57, 2**63]),
)
def test_sums_are_plain_sums_to_the_bit(count, numbers, seed, size):
    """Of any sizes and signs, those that leave 64 bits modulo 2^64 too."""
    roster, keys = sites(count)
    values = np.random.default_rng(seed).integers(-size, size, (count, numbers), endpoint=size < 2**63)
    found = sum_of_masked(messages(values, keys, Release(roster, "agreed", "run", 1, "moments")))
    plain = values.astype(object).sum(axis=0) if numbers else []
    assert [int(v) for v in found] == [(int(v) + 2**63) % 2**64 - 2**63 for v in plain]


def test_no_proper_subset_of_five_messages_unmasks_anything():
    """What masks leave of the sum of a subset is that of all pairs across its edge; and of all whole-number
    combinations with factors of -2 to 2 those alone have no masks left whose factors are all the same."""
    none = np.zeros((5, 4), np.int64)
    left = messages(none, FIVE, RELEASE).view(np.uint64)
    for size in range(1, 5):
        for some in itertools.combinations(range(5), size):
            assert np.all(left[list(some)].sum(axis=0, dtype=np.uint64) != 0)
    for factors in itertools.product(range(-2, 3), repeat=5):
        found = (np.array(factors).astype(np.uint64)[:, None] * left).sum(axis=0, dtype=np.uint64)
        assert np.all(found == 0) == (len(set(factors)) == 1)


def test_messages_of_other_rosters_rounds_or_questions_do_not_add_up():
    """A server that shows one site something else gets random numbers, of whichever site it is."""
    values = np.arange(20).reshape(5, 4)
    for what, other in ABOUT.items():
        shown = replace(RELEASE, **{what: other})
        for one in range(4):  # 'west' is not of the smaller roster
            mixed = messages(values, FIVE, RELEASE)
            mixed[one] = masked(values[one], NAMES[one], FIVE[NAMES[one]], shown)
            assert np.all(np.abs(sum_of_masked(mixed).astype(float)) > 2**40), (what, one)


def test_whoever_knows_other_keys_learns_the_honest_sum_and_no_more(monkeypatch):
    """With two of five colluding, nothing tells two tables of the honest three apart that have the same sum:
    for every choice of the honest pairs' masks there is one, just as likely, with the same messages."""
    rng = np.random.default_rng(4)
    honest, a = NAMES[:3], rng.integers(-1000, 1000, (5, 6))
    b = a.copy()
    b[:3] = rng.integers(-1000, 1000, (3, 6))
    b[2] = a[:3].sum(axis=0) - b[:2].sum(axis=0)
    drawn = {
        frozenset(pair): rng.integers(0, 2**64, 6, dtype=np.uint64)
        for pair in itertools.combinations(NAMES, 2)
    }
    of_key = {public: name for name, public in ROSTER.keys.items()}
    moved = dict(drawn)
    # Along the path of the honest sites, masks take up what the values differ by.
    by = np.zeros(6, np.uint64)
    for i in range(2):
        by = by + (a[i] - b[i]).view(np.uint64)
        moved[frozenset(honest[i : i + 2])] = drawn[frozenset(honest[i : i + 2])] + by
    seen = []
    for values, masks in ((a, drawn), (b, moved)):
        monkeypatch.setattr(
            masking, "_mask", lambda _, pair, *__, m=masks: m[frozenset(of_key[one] for one in pair)]
        )
        seen.append(messages(values, FIVE, RELEASE))
    np.testing.assert_array_equal(*seen)
    assert not np.array_equal(a[:3], b[:3])


def test_colluders_can_take_off_their_own_masks_alone():
    """From the keys of two sites and all messages: the sum over the honest three, and of fewer nothing."""
    values = np.arange(-10, 10).reshape(5, 4)
    found = messages(values, FIVE, RELEASE)[:3].view(np.uint64).copy()
    for i, one in enumerate(NAMES[:3]):
        for other in NAMES[3:]:
            pair = ROSTER.keys[one], ROSTER.keys[other]
            found[i] -= masking._mask(FIVE[other].shared_with(ROSTER.keys[one]), pair, RELEASE, 4)
    np.testing.assert_array_equal(sum_of_masked(found), values[:3].sum(axis=0))
    for size in (1, 2):
        for some in itertools.combinations(range(3), size):
            assert np.all(np.abs(sum_of_masked(found[list(some)]).astype(float)) > 2**40)


def test_messages_are_as_random_bytes():
    """By chi-squared over the bytes of 200,000 numbers that are all the same."""
    found = masked(np.full(200_000, 7), "north", FIVE["north"], RELEASE)
    counts = np.bincount(np.frombuffer(found.tobytes(), np.uint8), minlength=256)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi2.ppf(1e-4, 255) < statistic < chi2.ppf(1 - 1e-4, 255)


def test_the_same_release_has_the_same_bytes():
    values = np.arange(4)
    first, again = (masked(values, "west", FIVE["west"], replace(RELEASE)) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    assert np.array_equal(values, np.arange(4))


@pytest.mark.parametrize("sites_", [3, 8, 50])
@pytest.mark.parametrize("steps", [1, 2**20, 2**36])
@pytest.mark.parametrize("variance", [Fraction(0), Fraction(2**80), Fraction(2**110)])
def test_sums_of_so_many_rows_fit_in_64_bits(sites_, steps, variance):
    """With noise of 30 standard deviations of the sum, and no more rows by far."""
    most, deviation = most_rows(sites_, steps, variance), math.isqrt(int(sites_ * variance))
    assert sites_ * most * steps + 31 * deviation < 2**63
    assert sites_ * (most + 1) * steps + 33 * deviation >= 2**63 - 1
    require_room(most, sites_, steps, variance)
    with pytest.raises(BidroError, match=f"at most {most:,} rows"):
        require_room(most + 1, sites_, steps, variance)


def test_rosters_that_are_none_are_refused():
    keys = dict(ROSTER.keys)
    with pytest.raises(
        BidroError, match=r"at least 3 sites \(min_sites\); here it would be over 2: east, north"
    ):
        Roster({name: keys[name] for name in NAMES[:2]})
    with pytest.raises(BidroError, match="at least 5 sites"):
        Roster({name: keys[name] for name in NAMES[:4]}, 5)
    with pytest.raises(BidroError, match="min_sites must be at least 3"):
        Roster(keys, 2)
    with pytest.raises(BidroError, match="north and west have the same key"):
        Roster({**keys, "west": keys["north"]})
    with pytest.raises(BidroError, match="'west' has 3 bytes"):
        Roster({**keys, "west": b"key"})
    # A point of low order, with which anybody's shared secret would be zero.
    weak = Release(Roster({**keys, "west": bytes(32)}), "agreed", "run", 1, "moments")
    with pytest.raises(BidroError, match="A site key must be 32 bytes"):
        masked(np.arange(4), "north", FIVE["north"], weak)
    with pytest.raises(BidroError, match="another key for site 'north'"):
        masked(np.arange(4), "north", FIVE["south"], RELEASE)
    with pytest.raises(BidroError, match="another key for site 'abroad'"):
        masked(np.arange(4), "abroad", FIVE["south"], RELEASE)


def test_rosters_have_one_order_and_no_two_the_same_digest():
    turned = Roster(dict(reversed(list(ROSTER.keys.items()))))
    assert turned.names == NAMES
    assert turned.digest == ROSTER.digest
    # A border between two words may not move.
    one, other = (Release(ROSTER, a, b, 1, "moments").digest for a, b in (("ab", "c"), ("a", "bc")))
    assert one != other
    assert Roster(ROSTER.keys, 4).digest != ROSTER.digest
    assert "secret" not in repr(FIVE["north"])


def test_made_keys_differ():
    assert SiteKey.made().public != SiteKey.made().public
