"""The sketch of training rows: what it tells of other rows, and what it gives away of its own."""

import itertools
import json
import math
import pickle

import numpy as np
import pytest
from scipy.stats import binom

from bidro import BidroError
from bidro.certify import trained_rows
from bidro.certify.trained_rows import (
    EPSILON,
    FLIP,
    UNLIKELY,
    TrainedRows,
    TrainedRowsWarning,
    occupied,
    same_rows,
    trained_rows_in,
)

KEY = 12345


def continuous(rng, count):
    return rng.normal(size=(count, 3))


def whole_numbers(rng, count):
    return rng.integers(0, 10, (count, 3)).astype(float)


def zeros_and_ones(rng, count):
    return rng.integers(0, 2, (count, 5)).astype(float)


def counts(rng, count):
    return np.stack([rng.poisson(mean, count) for mean in (2, 3, 20)], axis=1).astype(float)


def heavy_tails(rng, count):
    return rng.zipf(1.3, (count, 1)).astype(float)


MAKERS = [continuous, whole_numbers, zeros_and_ones, counts, heavy_tails]


def of_two_clients(make, rng, count):
    return {"north": make(rng, count // 4), "south": make(rng, count - count // 4)}


def in_part_trained_on(trained, fresh, share, rng):
    return {
        name: np.concatenate(
            [rng.permutation(rows)[: round(share * len(fresh[name]))], fresh[name]]
        )[: len(fresh[name])]
        for name, rows in trained.items()
    }  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("trained", "given"), [(100, 100), (1_000, 250), (1_000, 1_000), (300, 1_500)])
def test_rows_drawn_anew_are_never_refused(make, trained, given):
    """Also where most of them equal training rows, because there are few values."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        sketch = TrainedRows.of(of_two_clients(make, rng, trained))
        found = sketch.compare(of_two_clients(make, rng, given))
        assert not found.trained_on
        if make is continuous:
            assert found.note is None
            assert found.share < 0.5


def test_a_shift_or_another_mix_of_clients_does_not_make_new_rows_look_trained_on():
    """The north has few values and most of the fresh rows, the south had most of the training rows."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        sketch = TrainedRows.of({"north": whole_numbers(rng, 500), "south": continuous(rng, 3_000)})
        given = {"north": np.minimum(whole_numbers(rng, 900), 8.0), "south": continuous(rng, 50)}
        assert not sketch.compare(given).trained_on


@pytest.mark.parametrize("make", [continuous, whole_numbers])
def test_rows_that_were_trained_on_are_refused_and_counted(make):
    rng = np.random.default_rng(2)
    for share in (0.8, 1.0):
        trained = of_two_clients(make, rng, 1_000)
        given = in_part_trained_on(trained, of_two_clients(make, rng, 1_000), share, rng)
        found = TrainedRows.of(trained).compare(given)
        assert found.trained_on
        # Four standard errors of the estimate: the hits are binomial, and about 0.45 of a hit tells.
        if make is continuous:
            assert found.share == pytest.approx(share, abs=4 * 0.5 / 0.45 / math.sqrt(found.rows))


def test_no_more_than_all_rows_were_in_training():
    rows = {"north": continuous(np.random.default_rng(12), 200)}
    # The estimate has a standard error of some 8 percent: half of the time it would be above 1.
    shares = [TrainedRows.of(rows).compare(rows).share for _ in range(20)]
    assert max(shares) == 1.0


def test_a_client_of_a_single_row():
    rng = np.random.default_rng(13)
    rows = {"north": continuous(rng, 1_000), "south": continuous(rng, 1)}
    sketch = TrainedRows.of(rows)
    found = sketch.compare(rows)
    assert found.trained_on
    assert found.rows == 1_001
    assert TrainedRows.from_json(sketch.to_json(), "sketch").compare(rows) == found


def test_what_chance_explains_by_hand():
    """Without equal rows among 500 given, Poisson's number of pairs is below -ln(1e-5) = 11.513 but for 1e-5;
    2 rows a pair, and 1,000 rows of training for 499 others."""
    rng = np.random.default_rng(14)
    trained = continuous(rng, 1_000)
    sketch = TrainedRows.of({"north": trained})
    given = np.concatenate([trained[:100], continuous(rng, 400)])
    found = sketch.compare({"north": given})
    anywhere = sketch.slots.mean()
    step = 1 - FLIP - anywhere
    hits = round(500 * (anywhere + step * found.share))
    by_chance = 1_000 / 499 * 2 * 11.512925465 / 500
    expected = binom.sf(hits - 1, 500, anywhere + step * by_chance)
    assert 0 < found.share < 1
    assert found.if_by_chance == pytest.approx(expected, rel=1e-6)
    assert found.if_new == pytest.approx(binom.sf(hits - 1, 500, anywhere), rel=1e-6)


@pytest.mark.parametrize(("share", "count"), [(0.5, 1_000), (0.1, 6_000)])
def test_a_part_is_enough_where_equal_rows_are_rare(share, count):
    rng = np.random.default_rng(3)
    trained = of_two_clients(continuous, rng, count)
    given = in_part_trained_on(trained, of_two_clients(continuous, rng, count), share, rng)
    assert TrainedRows.of(trained).compare(given).trained_on


def test_order_copies_and_the_sign_of_zero_do_not_hide_rows():
    rng = np.random.default_rng(4)
    rows = continuous(rng, 400)
    rows[:, 0] = 0.0
    sketch = TrainedRows.of({"north": rows})
    turned = rng.permutation(rows)
    turned[:, 0] = -0.0
    assert sketch.compare({"north": turned}).trained_on
    assert sketch.compare({"north": np.concatenate([turned, turned[:50]])}).trained_on
    # The same numbers of another client are other rows.
    assert sketch.compare({"south": turned}).note is None


def test_where_it_cannot_be_told_that_is_said():
    rng = np.random.default_rng(5)
    few = {"north": continuous(rng, 500)}
    assert "too few" in TrainedRows.of(few).compare({"north": few["north"][:8]}).note
    binary = {"north": zeros_and_ones(rng, 2_000)}
    assert "equal one another too often" in TrainedRows.of(binary).compare(binary).note
    # Here it is the training rows alone that have no row without an equal.
    saturated = {"north": whole_numbers(rng, 20_000)}
    assert TrainedRows.of(saturated).compare({"north": saturated["north"][:200]}).note is not None
    assert TrainedRows.of(few).compare({"north": np.empty((0, 3))}).note is not None


def test_refusing_warning_and_keeping_silent():
    rng = np.random.default_rng(6)
    rows = {"north": continuous(rng, 1_000)}
    sketch = TrainedRows.of(rows)
    with pytest.raises(BidroError, match=r"About \d+% of these rows were in training, .*never saw"):
        sketch.require_new(rows)
    with pytest.warns(TrainedRowsWarning, match="too few"):
        sketch.require_new({"north": continuous(rng, 8)})
    sketch.require_new({"north": continuous(rng, 500)})
    with pytest.warns(TrainedRowsWarning, match="equal rows of training, whether by chance"):
        sketch.require_new({"north": np.concatenate([rows["north"][:125], continuous(rng, 125)])})


def test_the_chance_of_a_false_alarm_is_that_of_the_binomial():
    """Many sketches, one table: p-values of new rows are at most as often below a level as it says."""
    rng = np.random.default_rng(7)
    trained, given = of_two_clients(counts, rng, 60), of_two_clients(continuous, rng, 200)
    trained = {name: np.round(rows) for name, rows in trained.items()}
    values = np.array([TrainedRows.of(trained).compare(given).if_new for _ in range(1_500)])
    for level in (0.3, 0.1, 0.02):
        assert np.mean(values <= level) <= level + 4 * math.sqrt(level * (1 - level) / len(values))
    assert values.min() > UNLIKELY


def test_a_row_more_or_less_changes_one_slot_at_most_whatever_the_others_are():
    rng = np.random.default_rng(8)
    for make in MAKERS:
        for _ in range(30):
            rows = of_two_clients(make, rng, 40)
            less = {"north": rows["north"][1:], "south": rows["south"]}
            assert np.sum(occupied(rows, KEY, 64) != occupied(less, KEY, 64)) <= 1
    # A twin takes away what the first one set, in the same slot.
    one = {"north": np.ones((1, 2))}
    two = {"north": np.ones((2, 2))}
    assert np.sum(occupied(one, KEY, 64)) == 1
    assert np.sum(occupied(two, KEY, 64)) == 0


def test_slots_are_flipped_as_often_as_privacy_needs():
    needed = 1 / (1 + math.exp(EPSILON))
    assert needed <= FLIP <= needed + 1e-9
    size = 1 << 21  # more than are flipped together
    for before in (np.zeros(size, bool), np.ones(size, bool)):
        share = np.mean(trained_rows._flipped(before) != before)
        assert share == pytest.approx(FLIP, abs=4 * math.sqrt(FLIP * (1 - FLIP) / size))
    halves = trained_rows._flipped(np.zeros(size, bool)).reshape(2, -1)
    # Neither block repeats the other, nor does one sketch another.
    assert np.mean(halves[0] & halves[1]) == pytest.approx(FLIP**2, abs=4 * FLIP / math.sqrt(size // 2))


def test_no_sketch_tells_one_row_from_its_absence_by_more_than_e():
    """The exact chances of all 2^10 sketches on ten slots, from the table with a row and from that without
    it: the odds of whoever knows every other row; and of two rows that may stand in one place."""
    rng = np.random.default_rng(9)
    size = 10
    sketches = np.array(list(itertools.product([False, True], repeat=size)))

    def chances(slots):
        return np.where(sketches == slots, 1 - FLIP, FLIP).prod(axis=1)

    for make in (continuous, zeros_and_ones):
        rest = make(rng, 6)
        # Ten slots of the sixteen that a power of two has; the others are flips alone.
        with_row, without, with_other = (
            occupied({"north": rows}, KEY, 16)[:size]
            for rows in (np.vstack([rest, make(rng, 1)]), rest, np.vstack([rest, make(rng, 1)]))
        )
        assert chances(with_row).sum() == pytest.approx(1.0)
        ratio = chances(with_row) / chances(without)
        assert max(ratio.max(), (1 / ratio).max()) <= math.exp(EPSILON) * (1 + 1e-12)
        swapped = chances(with_row) / chances(with_other)
        assert max(swapped.max(), (1 / swapped).max()) <= math.exp(2 * EPSILON) * (1 + 1e-12)
        # With even odds beforehand nobody is surer than e to 1 that the row was there.
        posterior = chances(with_row) / (chances(with_row) + chances(without))
        assert posterior.max() <= math.e / (1 + math.e) + 1e-12


@pytest.mark.parametrize(("rows", "slots"), [(1, 1_024), (64, 1_024), (65, 2_048), (128, 2_048)])
def test_sixteen_slots_a_row_and_the_fewest_such_power_of_two(rows, slots):
    assert len(TrainedRows.of({"north": continuous(np.random.default_rng(0), rows)}).slots) == slots


def test_two_sketches_of_the_same_rows_have_nothing_in_common():
    rows = {"north": continuous(np.random.default_rng(10), 50)}
    one, other = TrainedRows.of(rows), TrainedRows.of(rows)
    assert one.key != other.key
    assert not np.array_equal(one.slots, other.slots)


def test_a_sketch_as_text(tmp_path):
    rng = np.random.default_rng(11)
    sketch = TrainedRows.of(of_two_clients(continuous, rng, 300))
    text = sketch.to_json()
    again = TrainedRows.from_json(text, "sketch")
    assert again.to_json() == text
    # As it is written it must stay: a sketch is read only if it would be written so again.
    assert text.startswith('{\n "format": "bidro trained rows",\n "version": 1,\n "key": "')
    given = of_two_clients(continuous, rng, 100)
    assert again.compare(given) == sketch.compare(given)
    assert trained_rows_in(tmp_path) is None
    (tmp_path / trained_rows.FILE).write_text(text)
    assert trained_rows_in(tmp_path).to_json() == text
    places = rng.integers(0, len(text), 100)
    bad = [text[:k] + chr(ord(text[k]) ^ 1) + text[k + 1 :] for k in places]
    content = json.loads(text)
    bad += [text[:-30], "", "[]", json.dumps({**content, "rows": {}}), json.dumps({**content, "key": 3})]
    for one in bad:
        with pytest.raises(BidroError, match=r"damaged|this program reads"):
            TrainedRows.from_json(one, "sketch")
    with pytest.raises(BidroError, match="version 2"):
        TrainedRows.from_json(json.dumps({**content, "version": 2}), "sketch")


def test_a_pickled_sketch_keeps_whose_rows_it_is_of():
    sketch = trained_rows.TrainedRows.of({"a": np.arange(12.0).reshape(6, 2)}, adapted="a")
    again = pickle.loads(pickle.dumps(sketch))
    assert again.adapted == "a"
    assert again.to_json() == sketch.to_json()


@pytest.mark.parametrize("make", MAKERS)
def test_two_tables_side_by_side(make):
    """Drawn anew they are never called the same, in whatever sizes; the same ones are, in any order."""
    for seed, (one, two) in enumerate([(40, 40), (40, 400), (400, 40), (2, 300), (300, 300)] * 10):
        rng = np.random.default_rng(seed)
        rows, others = make(rng, one), make(rng, two)
        assert not same_rows(rows, others).sure
        mixed = same_rows(rows, rng.permutation(rows))
        assert mixed.whole
        assert mixed == same_rows(rows, rows)
        if make is continuous:
            assert mixed.sure == (one > 2)


def test_rows_in_both_tables_are_counted():
    rng = np.random.default_rng(1)
    rows, others = continuous(rng, 100), continuous(rng, 300)
    assert same_rows(rows, others) == (0, False, False, False)
    assert same_rows(rows, np.concatenate([others, rows[:2]])) == (2, False, False, True)
    assert same_rows(rows[:60], rows) == same_rows(rows, rows[:60]) == (60, True, False, True)
    # Where some rows of one side are equal, a few that both have are no wonder.
    for twice in (
        (np.concatenate([rows, rows[:1]]), rows[1:3]),
        (rows[1:3], np.concatenate([rows, rows[:1]])),
    ):
        assert same_rows(*twice) == (2, False, False, False)
    # Equal rows do not count, and may be by chance.
    assert same_rows(np.zeros((50, 1)), np.zeros((60, 1))) == (0, False, False, False)
    assert same_rows(np.zeros((50, 1)), np.zeros((50, 1))) == (0, False, True, False)
    assert same_rows(np.zeros((2, 1)), -np.zeros((2, 1))) == (0, False, True, False)
