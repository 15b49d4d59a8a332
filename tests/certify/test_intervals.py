"""Conformal quantiles against their definitions: brute force over targets and mixtures, exact chances."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta, binom

from bidro.certify.intervals import (
    SHARES,
    Calibration,
    Fits,
    Groups,
    HeldOutFits,
    Intervals,
    Spread,
    class_scores,
    class_sets,
    confident_rank,
    draws_needed,
    interval_obstacle,
    rank_of,
    room_for_shift,
    row_quantiles,
    row_scores,
    stratified_rank,
)
from bidro.core.errors import BidroError
from bidro.losses import Logistic, Poisson, Softmax, Squared


@pytest.mark.parametrize("n", [5, 8, 9, 10, 19, 20, 99, 1000])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.95])
def test_the_rank_is_the_first_that_covers(n, share):
    # The k-th of n is exceeded with probability (n + 1 - k) / (n + 1).
    enough = [k for k in range(1, n + 1) if (n + 1 - k) / (n + 1) <= 1 - share + 1e-12]
    assert rank_of(n, 1 - share) == (enough[0] if enough else n + 1)


@pytest.mark.parametrize("n", [20, 29, 30, 59, 200, 5000])
def test_a_confident_rank_is_the_first_whose_beta_distribution_is_high_enough(n):
    k = confident_rank(n, 1 - 0.9, 0.95)
    # The share below the k-th smallest is distributed as Beta(k, n + 1 - k).
    covered = [j for j in range(1, n + 1) if beta.sf(0.9, j, n + 1 - j) >= 0.95]
    assert k == (covered[0] if covered else n + 1)


def test_the_fewest_draws_are_known():
    assert draws_needed(1 - 0.9) == 9
    assert draws_needed(1 - 0.9, 0.95) == 29  # 0.9^29 < 0.05
    assert draws_needed(1 - 0.5) == 1


def _exact_misses(k: int, shares: np.ndarray, levels: np.ndarray) -> float:
    """What the k-th smallest of draws leaves out on average, draw i being uniform on its own interval of
    levels: by brute force over a fine grid of the distribution of the number below each level."""
    grid = np.linspace(levels.min(), levels.max(), 4001)
    below = np.clip((grid - levels[:, :1]) / (levels[:, 1:] - levels[:, :1]), 0.0, 1.0)  # (draws, grid)
    counts = np.zeros((len(shares) + 1, len(grid)))
    counts[0] = 1.0
    for p in below:
        counts[1:] = counts[1:] * (1 - p) + counts[:-1] * p
        counts[0] *= 1 - p
    mixed = shares @ below
    return float(np.trapezoid(counts[k:].sum(axis=0), mixed))


@pytest.mark.parametrize("sizes", [(1, 18), (10, 9), (1,) * 14, (3, 5, 11), (2, 30)])
def test_a_stratified_rank_holds_where_clients_have_nothing_in_common(sizes):
    n = sum(sizes)
    k = stratified_rank(n, 0.1)
    for order in itertools.islice(itertools.permutations(range(len(sizes))), 6):
        place = np.repeat(np.argsort(order), sizes).astype(float)
        levels = np.stack([place, place + 1], axis=1)
        assert k > n or _exact_misses(k, np.full(n, 1 / n), levels) <= 0.1 + 1e-3


def test_the_plain_rank_does_not_hold_for_strata():
    """Why groups have a rank of their own: one row of a client that lies above all others."""
    place = np.repeat([1.0, 0.0], [1, 18])
    missed = _exact_misses(rank_of(19, 0.1), np.full(19, 1 / 19), np.stack([place, place + 1], axis=1))
    assert missed > 0.102


def test_one_client_of_single_rows_has_its_order_statistic():
    scores = np.random.default_rng(0).normal(size=57)
    found = row_quantiles({"a": scores}, 0.8).clients["a"]
    assert found == np.sort(scores)[math.ceil(0.8 * 58) - 1]


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_max_p_by_brute_force(share):
    """y stays unless every client rejects it, p-value by p-value, for every y that can matter."""
    rng = np.random.default_rng(1)
    scores = {name: np.round(rng.exponential(size=n), 2) for name, n in (("a", 12), ("b", 31), ("c", 9))}
    found = row_quantiles(scores, share).any_mixture
    for y in np.concatenate([*scores.values(), [0.0, 10.0]]):
        p = [(1 + np.sum(own >= y)) / (len(own) + 1) for own in scores.values()]
        assert (max(p) > 1 - share + 1e-12) == (y <= found)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_max_p_of_classes_by_brute_force(share):
    """A class stays unless every client rejects it, or it is the likeliest; outputs tie, and are of three
    classes, whose scores are no distances."""
    rng = np.random.default_rng(15)
    sizes, scores = {"a": 12, "b": 31, "c": 9}, {}
    for name, n in sizes.items():
        outputs, truth = rng.integers(-2, 3, (n, 3)).astype(float), rng.integers(0, 3, n)
        scores[name] = class_scores(outputs)[np.arange(n), truth]
    most = row_quantiles(scores, share).any_mixture
    fresh = np.array(list(itertools.product((-2.0, -1.0, 0.0, 1.0, 2.0), repeat=3)))
    sets = class_sets(fresh, np.full(len(fresh), most))
    for outputs, inside in zip(fresh, sets, strict=True):
        weights = np.exp(outputs)
        for k in range(3):
            # As often as equal numbers are equal to rounding.
            own = -math.log(weights[k] / weights.sum()) - 1e-9
            p = [(1 + np.sum(of_client >= own)) / (len(of_client) + 1) for of_client in scores.values()]
            likeliest = weights[k] == weights.max()
            assert inside[k] == (max(p) > 1 - share + 1e-12 or likeliest)


def test_any_mixture_is_covered_by_brute_force_over_mixtures():
    """Coverage is linear in the mixture, so that none on a grid of the simplex is below the worst client."""
    rng = np.random.default_rng(2)
    scales, covered = np.array([0.5, 1.0, 4.0]), []
    for _ in range(1000):
        scores = {str(i): scale * np.abs(rng.normal(size=15)) for i, scale in enumerate(scales)}
        q = row_quantiles(scores, 0.9).any_mixture
        covered.append(np.array([math.erf(q / scale / math.sqrt(2)) for scale in scales]))
    rates = np.mean(covered, axis=0)
    error = np.std(covered, axis=0).max() / math.sqrt(1000)
    for a, b in itertools.product(np.linspace(0, 1, 21), repeat=2):
        if a + b <= 1:
            assert np.array([a, b, 1 - a - b]) @ rates >= 0.9 - 3 * error


def test_people_and_new_clients_share_their_mass():
    """Against the definition: each draw has mass 1 / (K + 1), shared by its rows, the rest is at infinity."""
    rng = np.random.default_rng(3)
    labels = np.repeat([f"p{k}" for k in range(25)], rng.integers(1, 9, 25))
    scores = rng.exponential(size=len(labels))
    found = row_quantiles({"a": scores}, 0.9, people={"a": labels})
    mass = np.array([1 / (26 * np.sum(labels == one)) for one in labels])
    by_hand = min(s for s in scores if mass[scores > s].sum() + 1 / 26 <= 0.1 + 1e-12)
    assert found.clients["a"] == by_hand
    assert found.draws["a"] == 25

    new = {name: scores[labels == name] for name in np.unique(labels)}
    assert row_quantiles({"a": scores}, 0.9, new=new).new_client == by_hand
    few = dict(itertools.islice(new.items(), 8))
    assert row_quantiles({"a": scores}, 0.9, new=few).new_client == math.inf
    assert math.isfinite(row_quantiles({"a": scores}, 0.9, new=new | few).new_client)


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(4)
    labels, scores = rng.integers(0, 60, 300), rng.exponential(size=300)
    order = rng.permutation(300)
    for confidence in (None, 0.9):
        one, other = (
            row_quantiles({"a": s, "b": s[:7]}, 0.8, confidence=confidence, people={"a": p, "b": p[:7]})
            for s, p in ((scores, labels), (scores, labels))
        )
        shuffled = row_quantiles(
            {"a": scores[order], "b": scores[:7][::-1]},
            0.8,
            confidence=confidence,
            people={"a": labels[order], "b": labels[:7][::-1]},
        )
        assert one == other
        assert dict(one.clients) == dict(shuffled.clients)


def test_a_bound_of_people_is_never_below_that_of_its_definition():
    rng = np.random.default_rng(5)
    labels, scores = np.repeat(np.arange(80), 3), rng.exponential(size=240)
    bound = Calibration.of(scores, labels).bound(0.2, 0.9)
    assert bound > Calibration.of(scores, labels).quantile(0.2)
    from bidro.certify.mean_bounds import betting

    shares = np.bincount(labels, scores > bound) / 3
    assert betting(shares, 0.1) <= 0.2
    below = scores[scores < bound].max()
    assert betting(np.bincount(labels, scores > below) / 3, 0.1) > 0.2


def test_people_of_several_rows_share_a_quantile_whatever_their_rows_have_in_common():
    """15 clients of 8 people, of whom each has a near row and a far one: which of a person's rows stands for
    it must not be the same in every draw of the rows."""
    clients, inside = [f"c{k}" for k in range(15)], []
    labels = dict.fromkeys(clients, np.repeat(np.arange(8), 2))
    for k in range(600):
        rows = np.random.default_rng([13, k]).exponential(size=(15, 16)) * np.tile([1.0, 8.0], 8)
        q = row_quantiles(dict(zip(clients, rows, strict=True)), 0.9, people=labels).clients["c0"]
        inside.append(1 - (math.exp(-q) + math.exp(-q / 8)) / 2)
    assert np.mean(inside) >= 0.9 - 3 * np.std(inside) / math.sqrt(len(inside))


def test_small_clients_share_one_quantile_and_say_so():
    rng = np.random.default_rng(6)
    scores = {"big": rng.exponential(size=200)} | {f"small{k}": rng.exponential(size=5) for k in range(4)}
    found = row_quantiles(scores, 0.9)
    assert found.sharing == ("small0", "small1", "small2", "small3")
    small = np.concatenate([scores[name] for name in found.sharing])
    assert found.clients["small2"] == np.sort(small)[stratified_rank(20, 0.1) - 1]
    assert "share one" in found.promise
    # With too few of their own, the next larger client lends its rows, and keeps its own quantile.
    lent = row_quantiles({"big": scores["big"], "small0": scores["small0"]}, 0.9)
    assert lent.sharing == ("small0",)
    # The rows that were lent are of the mixture that it holds for.
    assert lent.group == ("small0", "big")
    assert "have it and 'big', who lends rows," in lent.promise
    assert lent.clients["big"] == found.clients["big"]
    assert math.isfinite(lent.any_mixture)
    alone = row_quantiles({"small0": scores["small0"]}, 0.9)
    assert math.isinf(alone.any_mixture)
    assert "nothing is promised" in alone.promise


def test_groups_are_chosen_by_numbers_alone():
    sizes = {"a": 50, "b": 3, "c": 4, "d": 20}
    assert Groups.of(sizes, 9, 14) == Groups(("a", "d"), ("b", "c", "d"))
    assert Groups.of(sizes, 1, 14) == Groups(("a", "b", "c", "d"))
    assert Groups.of({"b": 3}, 9, 14).without == ("b",)


def test_room_for_shift_covers_rows_that_move():
    """An adversary who spends W_1 on as many rows as Markov allows, each just beyond the distance."""
    rng = np.random.default_rng(7)
    r, share, slope = 0.2, 0.9, 1.0
    level, more = room_for_shift(r, 1.0, slope, share)
    assert (level, more) == pytest.approx((0.95, 4.0))
    covered = []
    for _ in range(500):
        q = row_quantiles({"a": np.abs(rng.normal(size=99))}, level).clients["a"] + more
        for u in (0.2, 1.0, 4.0, 5.0):
            covered.append([math.erf(max(q - u, 0) / math.sqrt(2)) * min(1, r / u) + (1 - min(1, r / u))])
    assert np.mean(covered, axis=0)[0] >= share


def test_a_spread_finds_where_errors_are_large():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(1500, 3))
    sigma = 0.3 + np.abs(X[:, 1])
    errors = sigma * np.abs(rng.normal(size=1500))
    found = Spread.fitted(X, errors)
    assert found is not None
    assert np.corrcoef(found.of(X), sigma)[0, 1] > 0.97
    assert found.of(1e6 * X).max() <= 1.2 * found.of(X).max()  # kept in range
    assert found.of(-1e6 * X).min() > 0
    again = Spread.from_dict(json.loads(json.dumps(found.to_dict())))
    assert np.array_equal(again.of(X), found.of(X))


@pytest.mark.parametrize(
    "errors", [np.zeros(200), np.ones(200), np.abs(np.random.default_rng(9).normal(size=200))]
)
def test_no_spread_where_it_is_even(errors):
    X = np.column_stack([np.ones(200), np.random.default_rng(10).normal(size=200)])
    assert Spread.fitted(X, errors) is None


def test_scores_of_rows_are_what_they_say():
    rows = np.array([[1.0, 2.0, 5.0], [0.0, 1.0, -1.0]])
    x = np.array([2.0, 1.0, 0.5])
    assert row_scores(Squared(intercept=True), x, rows) == pytest.approx([0.5, 2.5])
    signs = np.array([[1.0, 2.0, 1.0], [1.0, 2.0, -1.0]])
    p = 1 / (1 + math.exp(-4.5))
    assert row_scores(Logistic(intercept=True), x, signs) == pytest.approx([-math.log(p), -math.log(1 - p)])
    assert class_scores(np.array([[1.0, 2.0, 3.0]])) == pytest.approx(
        -np.log(np.exp([[1.0, 2.0, 3.0]]) / np.exp([1.0, 2.0, 3.0]).sum())
    )
    three = Softmax(3, intercept=False)
    assert row_scores(three, np.array([1.0, 2.0, 3.0]), np.array([[1.0, 2.0]]))[0] == pytest.approx(
        class_scores(np.array([[1.0, 2.0, 3.0]]))[0, 2]
    )


def test_a_loss_without_seen_targets_is_refused():
    class Survival:
        labels = None

    assert "censored" in interval_obstacle(Survival())
    assert interval_obstacle(Poisson()) is None
    with pytest.raises(BidroError, match="survival"):
        row_scores(Survival(), np.zeros(1), np.zeros((1, 2)))


def _intervals() -> Intervals:
    rng = np.random.default_rng(11)
    rows = {name: rng.normal(size=(n, 3)) for name, n in (("a", 120), ("b", 30), ("c", 3))}
    models = dict.fromkeys(rows, np.array([1.0, 0.0]))
    fits = Fits.of(Squared(), rows, models)
    spread = Spread(1.0, np.array([0]), np.array([[-1.0, 0.0, 1.0]]), np.ones((1, 3)), np.zeros((1, 3)))
    return Intervals.of(HeldOutFits(fits, fits, spread=spread), slope=1.5, order=2.0)


def test_kept_intervals_are_the_same_when_they_are_read_again():
    kept = _intervals()
    again = Intervals.from_json(kept.to_json(), "intervals.json")
    assert again.to_json() == kept.to_json()
    X, clients = np.zeros((3, 2)), np.array(["a", "c", "new"])
    for share in SHARES:
        for shift in (None, 0.1):
            assert np.array_equal(
                again.half_widths(X, clients, share, shift), kept.half_widths(X, clients, share, shift)
            )
    assert kept.half_widths(X, clients, 0.9)[2] == math.inf
    assert kept.half_widths(X, None, 0.9)[0] >= kept.half_widths(X, clients, 0.9)[0]
    assert kept.half_widths(X, clients, 0.9, 0.1)[0] == pytest.approx(
        kept.shifted[2].clients["a"] + 1.5 * 0.1 * math.sqrt(20)
    )


@pytest.mark.parametrize(
    "damage", [{"version": 2}, {"quantiles": []}, {"spread": {"base": -1.0}}, {"order": None}]
)
def test_damaged_intervals_are_refused(damage):
    content = json.loads(_intervals().to_json())
    with pytest.raises(BidroError, match="no intervals that this program reads"):
        Intervals.from_json(json.dumps(content | damage), "intervals.json")


def test_what_is_not_kept_is_refused():
    kept = _intervals()
    with pytest.raises(BidroError, match=r"0\.5, 0\.8, 0\.9"):
        kept.at(0.85)
    with pytest.raises(BidroError, match="how fast a score changes"):
        replace(kept, slope=None).at(0.9, 0.1)


def test_coverage_on_average_and_with_confidence():
    rng = np.random.default_rng(12)
    n, runs = 40, 3000
    covered, held = [], []
    for _ in range(runs):
        scores = Calibration.of(rng.uniform(size=n))
        covered.append(scores.quantile(0.1))
        held.append(scores.bound(0.1, 0.9) >= 0.9)
    assert np.mean(covered) == pytest.approx(
        rank_of(n, 0.1) / (n + 1), abs=3 * np.std(covered) / math.sqrt(runs)
    )
    exact = binom.cdf(confident_rank(n, 0.1, 0.9) - 1, n, 0.9)
    assert np.mean(held) == pytest.approx(exact, abs=3 * math.sqrt(0.1 * 0.9 / runs))
    assert exact >= 0.9
