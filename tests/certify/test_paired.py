"""The difference of two models' losses on the same rows: coverage, a second way to the number, and words."""

import math

import numpy as np
import pytest

from bidro.certify.held_out import paired
from bidro.certify.mean_bounds import empirical_bernstein
from bidro.core.errors import BidroError

CONFIDENCE, REPETITIONS = 0.9, 500
ALLOWED = CONFIDENCE - 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / REPETITIONS)


def drawn(rng, rows, shift, rare=0.0):
    """Losses in [0, 4] of two models that are wrong together, the first more by `shift` and rarely by 3."""
    common = rng.beta(1, 6, rows)
    far = 3.0 * (rng.uniform(size=rows) < rare)
    return np.minimum(common + np.maximum(shift, 0) + far, 4.0), common + np.maximum(-shift, 0)


@pytest.mark.parametrize("rows", [20, 60])
def test_the_bound_holds_as_often_as_promised(rows):
    """At clients that differ, with rare large losses, rows sorted by client and loss; no order counts."""
    shifts, rare = {"a": 0.02, "b": 0.0, "c": -0.3}, {"a": 0.1, "b": 0.01, "c": 0.0}
    # No loss is cut: 1 + 0.02 + 3 is above 4 only where `common` is nearly 1.
    truth = 0.02 + 3.0 * 0.1
    held = 0
    for k in range(REPETITIONS):
        rng = np.random.default_rng([rows, k])
        both = {name: drawn(rng, rows, shift, rare[name]) for name, shift in shifts.items()}
        order = {name: np.argsort(one) for name, (one, _) in both.items()}
        one = {name: each[0][order[name]] for name, each in both.items()}
        two = {name: each[1][order[name]] for name, each in both.items()}
        found = paired(one, two, 4.0, CONFIDENCE)
        held += found.bound >= truth
        if k < 3:
            unsorted = paired(
                {n: e[0] for n, e in both.items()}, {n: e[1] for n, e in both.items()}, 4.0, 0.9
            )
            assert unsorted.bound == found.bound
    assert held / REPETITIONS >= ALLOWED


def test_a_model_that_is_no_better_somewhere_is_seldom_called_better():
    """The two are alike at one client: so it is called better with probability 1 - confidence at most."""
    called = 0
    for k in range(REPETITIONS):
        rng = np.random.default_rng([3, k])
        much, little = drawn(rng, 30, 0.4)
        # Either is the better one with the same probability.
        alike = rng.permuted(np.stack([much, little]), axis=0)
        found = paired({"a": little, "b": alike[0]}, {"a": much, "b": alike[1]}, 1.5, CONFIDENCE)
        assert found.clients["a"] < 0
        called += found.better
    assert called / REPETITIONS <= 1 - ALLOWED


def test_the_bound_by_plain_products():
    """At the bound the capital of the gambler, multiplied out value by value, is 1 / beta."""
    rng = np.random.default_rng(2)
    one, two = rng.uniform(size=50), rng.uniform(size=50)
    found = paired({"a": one}, {"a": two}, 1.0, 0.9)
    r = math.sqrt(2 * math.log(10) / 50)
    spreads = [0.7 * (0.01 / 0.7) ** (k / 15) for k in range(16)]
    shares = [math.exp(-(math.log(s / 0.2) ** 2) / (2 * 1.2**2)) for s in spreads]
    capital = 0.0
    for s, share in zip(spreads, shares, strict=True):
        stake = r / math.sqrt(r * r + s * s) / (1 - found.bound)
        capital += share / sum(shares) * math.prod(1 + stake * (found.bound - d) for d in one - two)
    assert capital == pytest.approx(10, rel=1e-6)
    assert found.means["a"] == pytest.approx((one - two).mean())
    assert found.bound < 2 * empirical_bernstein((one - two + 1) / 2, 0.1) - 1


def test_common_difficulty_cancels():
    """Two bounds of the losses overlap where one of the difference tells the models apart."""
    rng = np.random.default_rng(4)
    common = rng.uniform(0.1, 0.9, 300)
    found = paired({"a": common}, {"a": common + 0.05}, 1.0, 0.95)
    assert found.better
    assert -0.05 < found.bound < 0
    assert "better than the other at every client" in found.promise
    assert f"lower by at least {-found.bound:.6g}" in found.promise
    assert found.verdict == f"better at every client: the difference is at most {found.bound:.6g}"
    assert "counted as" not in found.promise
    other = paired({"a": common + 0.05}, {"a": common}, 1.0, 0.95)
    assert not other.better
    assert "is not shown, because of 'a'" in other.promise
    assert "not shown to be better" in other.verdict


@pytest.mark.parametrize("most", [None, 100])
@pytest.mark.parametrize("clipped", [False, True])
def test_better_for_people_may_be_worse_for_rows_and_says_so(clipped, most):
    """Of 400 people with one row the model is right, of 20 with 100 rows each the other is."""
    people = np.append(np.arange(400), np.repeat(np.arange(400, 420), 100))
    wrong = (people >= 400).astype(float)
    found = paired(
        {"a": wrong}, {"a": 1 - wrong}, 1.0, clipped=clipped, people={"a": people}, rows_per_person=most
    )
    assert found.lower
    assert found.over_rows.means["a"] > 0.6
    assert "at every client as a mean of people" in found.verdict
    of_rows = (
        f"{found.over_rows.largest_mean:.6g} observed"
        if most is None
        else f"at most {found.over_rows.bound:.6g}"
    )
    assert of_rows in found.verdict
    assert ("better than the other at every client, as a mean of people:" in found.promise) != clipped
    assert f"the difference was {found.over_rows.means['a']:.6g}" in found.promise


def test_clipped_losses_people_and_too_few_rows():
    one, two = np.array([9.0, 0.2, 0.1]), np.array([0.5, 70.0, 0.1])
    clipped = paired({"a": one}, {"a": two}, 1.0, 0.9, clipped=True)
    by_hand = paired({"a": np.minimum(one, 1)}, {"a": np.minimum(two, 1)}, 1.0, 0.9)
    assert clipped.bound == by_hand.bound
    assert "counted as at most 1" in clipped.promise
    for outside in (one, -one):
        with pytest.raises(BidroError, match=r"'a' has losses outside \[0, 1\]"):
            paired({"a": outside}, {"a": two}, 1.0, 0.9)
    wrong, right = np.repeat([0.0, 1.0], 30), np.zeros(60)
    labels = {"a": np.repeat(np.arange(20), 3)}
    by_people = paired({"a": wrong}, {"a": right}, 1.0, 0.9, mistakes=True, people=labels)
    assert by_people.rows["a"] == 20
    assert by_people.bound > paired({"a": wrong}, {"a": right}, 1.0, 0.9).bound
    assert "percentage points" in by_people.promise
    few = paired({"a": np.ones(2)}, {"a": np.zeros(2)}, 1.0, 0.9)
    assert few.vacuous
    assert "too few rows" in few.promise
    assert "too few rows" in few.verdict


def test_where_nothing_is_said_the_confidence_is_0_95():
    one, two = np.linspace(0.0, 0.5, 30), np.linspace(0.1, 0.9, 30)
    found = paired({"a": one}, {"a": two}, 1.0)
    assert (found.confidence, found.clipped, found.mistakes, found.people) == (0.95, False, False, False)
    assert found.bound == paired({"a": one}, {"a": two}, 1.0, 0.95).bound


def test_clipped_losses_never_make_a_model_better():
    """Rare losses far above the clip level: the model is far worse, and lower as losses count."""
    called = 0
    for k in range(30):
        rng = np.random.default_rng([6, k])
        one = np.where(rng.uniform(size=400) < 0.004, 1000.0, 0.4)
        two = rng.uniform(0.6, 1.0, 400)
        found = paired({"a": one}, {"a": two}, 1.0, 0.95, clipped=True)
        called += found.lower
        assert not found.better
        assert "each loss counted as at most 1," in found.verdict or found.vacuous
        if found.lower:
            assert found.verdict.startswith("lower at every client")
            assert "is not compared" in found.verdict
            assert "this model is better" not in found.promise
            assert "is not compared" in found.promise
            assert found.above == (int((one > 1).sum()), 0)
    # The true means are 4.4 and 0.8.
    assert called > 10
    whole = paired({"a": np.full(400, 0.4)}, {"a": np.full(400, 0.8)}, 1.0, 0.95)
    assert whole.better
    assert whole.above is None
