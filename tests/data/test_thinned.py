"""A federation with some of its rows."""

import jax
import numpy as np

from bidro import Federation
from bidro.data.federation import thinned


def _federation(sizes, people=None):
    rows = np.random.default_rng(0).normal(size=(sum(sizes), 3))
    return Federation.from_samples(jax.device_put(rows), sizes, "unbounded", people=people)


def test_large_clients_lose_the_same_share_and_small_ones_nothing():
    few = thinned(_federation([40_000, 10_000, 150]), 5_000, 200)
    share = 5_000 / 50_150
    for size, before in zip(few.sizes, (40_000, 10_000), strict=False):
        assert abs(size - share * before) < 5 * np.sqrt(share * before)
    assert few.sizes[2] == 150


def test_rows_are_drawn_by_what_is_in_them():
    whole = _federation([2_000, 1_000])
    turned = np.asarray(whole.samples).copy()
    turned[:2_000] = turned[:2_000][::-1]
    again = Federation.from_samples(jax.device_put(turned), whole.sizes, "unbounded")
    kept = [thinned(one, 600, 50).by_client() for one in (whole, again)]
    for name, rows in kept[0].items():
        np.testing.assert_array_equal(
            np.sort(rows.view("f8,f8,f8"), axis=0), np.sort(kept[1][name].view("f8,f8,f8"), axis=0)
        )


def test_people_stay_whole():
    people = np.repeat(np.arange(500, dtype=np.uint64), 4)
    whole = _federation([2_000], people)
    few = thinned(whole, 400, 10)
    assert few.people is not None
    assert 0 < len(few.people) < 2_000
    assert set(np.unique(few.people, return_counts=True)[1]) == {4}
