"""Held-out certificates: simulated coverage, exact special cases, and second ways to each number."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from bidro import certify_predictions
from bidro.certify.held_out import (
    ClientBound,
    client_bound,
    client_bounds,
    held_out_bound,
    shifted,
    shifted_squared,
    worst_mixture,
)
from bidro.certify.mean_bounds import betting, clopper_pearson, empirical_bernstein, rows_for_half_way
from bidro.core.errors import BidroError
from bidro.core.sets import CappedSimplex, Simplex

LAWS = {
    "rare ones": (lambda rng, n: (rng.uniform(size=n) < 0.05).astype(float), 0.05),
    "beta": (lambda rng, n: rng.beta(1, 9, n), 0.1),
    "uniform": (lambda rng, n: rng.uniform(size=n), 0.5),
}


@pytest.mark.parametrize("bound", [betting, empirical_bernstein], ids=lambda f: f.__name__)
@pytest.mark.parametrize("law", LAWS)
def test_bounds_hold_as_often_as_promised(law, bound):
    draw, mean = LAWS[law]
    beta, repetitions = 0.2, 500
    for n in (20, 200):
        rng = np.random.default_rng(n)
        held = sum(bound(draw(rng, n), beta) >= mean for _ in range(repetitions))
        # Four standard errors of a share at 1 - beta.
        assert held / repetitions >= 1 - beta - 4 * math.sqrt(beta * (1 - beta) / repetitions)


def test_betting_is_tighter_and_both_tighten_with_rows():
    rng = np.random.default_rng(0)
    values = rng.beta(1, 9, 5000)
    sizes = [50, 500, 5000]
    by_betting = [betting(values[:n], 0.05) for n in sizes]
    by_bernstein = [empirical_bernstein(values[:n], 0.05) for n in sizes]
    assert all(a < b for a, b in zip(by_betting, by_bernstein, strict=True))
    assert by_betting[0] > by_betting[1] > by_betting[2] > values.mean()
    assert by_betting[2] < 1.1 * values.mean()


def test_betting_against_plain_products():
    """The capital at the bound, multiplied out value by value and stake by stake, is 1 / beta."""
    rng = np.random.default_rng(1)
    values, beta = rng.uniform(size=60) ** 2, 0.1
    found = betting(values, beta)
    r = math.sqrt(2 * math.log(1 / beta) / 60)
    spreads = [0.7 * (0.01 / 0.7) ** (k / 15) for k in range(16)]
    shares = [math.exp(-(math.log(s / 0.2) ** 2) / (2 * 1.2**2)) for s in spreads]
    capital = 0.0
    for s, share in zip(spreads, shares, strict=True):
        stake = r / math.sqrt(r * r + s * s) / (1 - found)
        capital += share / sum(shares) * math.prod(1 + stake * (found - v) for v in values)
    assert capital == pytest.approx(1 / beta, rel=1e-6)


@pytest.mark.parametrize("n", [1, 5, 60, 1000])
def test_betting_without_any_loss_is_close_to_the_exact_bound(n):
    exact, found = 1 - 0.05 ** (1 / n), betting(np.zeros(n), 0.05)
    assert exact <= found <= 1.6 * exact
    assert betting(np.ones(n), 0.05) == 1.0


def test_repeated_values_and_counts_are_the_same():
    values, counts = np.array([0.0, 0.3, 1.0]), np.array([5.0, 2.0, 1.0])
    drawn = np.repeat(values, counts.astype(int))
    for bound in (betting, empirical_bernstein):
        assert bound(values, 0.1, counts) == pytest.approx(bound(drawn, 0.1), rel=1e-9)
    assert clopper_pearson(np.array([0.0, 1.0]), 0.1, np.array([5.0, 2.0])) == pytest.approx(
        clopper_pearson(np.array([1.0, 0, 0, 1, 0, 0, 0]), 0.1)
    )


def test_a_vacuous_bound_is_too_few_rows_and_says_how_many_would_do():
    few = held_out_bound({"a": [0.2, 1.0], "b": np.full(400, 0.1)}, 0.95, 1.0)
    assert few.vacuous
    assert few.vacuous_clients == {"a"}
    assert "too few rows" in few.promise
    assert f"'a' has 2, and {few.enough:,} rows" in few.promise
    # Zeros and ones spread most: so many of the same mean bring the bound to 0.8, one fewer does not.
    for n, reached in ((few.enough, True), (few.enough - 1, False)):
        counts = np.array([0.4 * n, 0.6 * n])
        assert (betting(np.array([0.0, 1.0]), 0.05, counts) <= 0.8) == reached
    assert not held_out_bound({"a": np.full(few.enough, 0.6)}, 0.95, 1.0).vacuous
    hopeless = held_out_bound({"a": np.ones(30)}, 0.95, 1.0)
    assert hopeless.vacuous
    assert "would not help" in hopeless.promise
    whole = held_out_bound({"b": np.full(400, 0.1)}, 0.95, 1.0)
    assert not whole.vacuous
    assert "independent draws" in whole.promise


@pytest.mark.parametrize("kind", ["betting", "bernstein", "clopper-pearson"])
@pytest.mark.parametrize(("mean", "beta"), [(0.0, 0.05), (0.3, 0.05), (0.3, 0.2), (0.97, 0.05)])
def test_the_fewest_rows_for_half_way_by_trying_them_all(kind, mean, beta):
    bound = {"betting": betting, "bernstein": empirical_bernstein, "clopper-pearson": clopper_pearson}[kind]
    needed = rows_for_half_way(mean, beta, kind)
    values = np.array([0.0, 1.0])
    tried = [bound(values, beta, n * np.array([1 - mean, mean])) for n in (needed - 1, needed)]
    assert tried[1] <= (1 + mean) / 2 < (tried[0] if needed > 1 else np.inf)
    if needed < 200:
        earlier = [bound(values, beta, n * np.array([1 - mean, mean])) for n in range(1, needed)]
        assert all(one > (1 + mean) / 2 for one in earlier)
    # Half way to 1 is above 0.99 from here on.
    assert rows_for_half_way(0.98, beta, kind) is None
    assert rows_for_half_way(0.979, beta, kind) > 0


def test_a_bound_says_nothing_from_99_in_100_of_the_largest_loss_on():
    def certificate(bounds, largest):
        clients = {name: ClientBound(bound, 0.5, 7) for name, bound in bounds.items()}
        return worst_mixture(clients, 0.9, largest, Simplex(len(clients)), "betting")

    below, at = certificate({"a": 1.97, "b": 0.1}, 2.0), certificate({"a": 1.98, "b": 0.1}, 2.0)
    assert (below.vacuous, at.vacuous) == (False, True)
    assert (below.vacuous_clients, at.vacuous_clients) == (frozenset(), frozenset({"a"}))
    assert (below.binding, at.binding) == ("a", "a")
    # The number of rows that would do is for the mean as a share of the largest loss.
    assert at.enough == rows_for_half_way(0.25, 1 - 0.9, "betting")
    assert f"'a' has 7, and {at.enough:,} rows" in at.promise
    assert not (below.clipped)
    assert not (below.mistakes)
    assert not (below.people)


def test_what_a_promise_is_about():
    rng = np.random.default_rng(5)
    wrong = {"a": (rng.uniform(size=300) < 0.1).astype(float)}
    assert (
        "the share of mistakes of this model on new rows"
        in held_out_bound(wrong, kind="clopper-pearson").promise
    )
    losses = {"a": rng.beta(1, 9, 300)}
    assert "the mean loss of this model on new rows" in held_out_bound(losses, largest=1.0).promise
    clipped = held_out_bound(losses, largest=0.3, clipped=True)
    assert "mean loss, each counted as at most 0.3, of this model" in clipped.promise
    assert clipped.confidence == 0.95
    assert clipped.means["a"] == pytest.approx(np.minimum(losses["a"], 0.3).mean())
    people = {"a": np.arange(4) // 2}
    few = held_out_bound({"a": [1.0, 1.0, 0.0, 1.0]}, largest=1.0, people=people)
    assert "too few people" in few.promise
    assert "'a' has 2, and" in few.promise
    assert "people of the same mean loss would be enough" in few.promise
    assert (
        "more people would not help" in held_out_bound({"a": np.ones(4)}, largest=1.0, people=people).promise
    )


def test_many_distinct_values_are_bet_on_as_one_by_one():
    """More than are handled together: the capital at the bound, by plain sums, is 1 / beta."""
    rng = np.random.default_rng(6)
    values, beta = rng.beta(2, 5, 9000), 0.05
    found = betting(values, beta)
    r = math.sqrt(2 * math.log(1 / beta) / len(values))
    spreads = np.array([0.7 * (0.01 / 0.7) ** (k / 15) for k in range(16)])
    shares = np.exp(-(np.log(spreads / 0.2) ** 2) / (2 * 1.2**2))
    ends = [np.log1p(r / math.hypot(r, s) / (1 - found) * (found - values)).sum() for s in spreads]
    assert shares / shares.sum() @ np.exp(ends) == pytest.approx(1 / beta, rel=1e-6)


def test_a_bound_errs_on_the_safe_side_of_the_root():
    """At the bound the capital is 1 / beta or more: precision is added to it, never taken."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values, beta = rng.beta(1, 4, 30), 0.05
        r = math.sqrt(2 * math.log(1 / beta) / 30)
        spreads = np.array([0.7 * (0.01 / 0.7) ** (k / 15) for k in range(16)])
        shares = np.exp(-(np.log(spreads / 0.2) ** 2) / (2 * 1.2**2))
        found = betting(values, beta)
        stakes = r / np.hypot(r, spreads) / (1 - found)
        capital = shares / shares.sum() @ np.prod(1 + stakes[:, None] * (found - values), axis=1)
        assert 1 <= capital * beta <= 1 + 1e-9


def test_losses_at_the_edge_of_their_range():
    """Rounding above the largest loss is taken for it, more is not; nothing is below 0."""
    assert held_out_bound({"a": [0.0, 2.0 * (1 + 5e-13)]}, largest=2.0).means["a"] == 1.0
    for bad in ([2.0 * (1 + 5e-12)], [-1e-300], [np.inf], [[0.5]]):
        with pytest.raises(BidroError, match="'a' has"):
            held_out_bound({"a": bad}, largest=2.0)
    for largest in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(BidroError, match="largest value"):
            held_out_bound({"a": [0.0]}, largest=largest)
    for confidence in (0.0, 1.0, -0.5, 2.0):
        with pytest.raises(BidroError, match="strictly between 0 and 1"):
            held_out_bound({"a": [0.0]}, confidence, 1.0)


def test_losses_are_clipped_only_where_that_is_said():
    for bound in (client_bound, lambda *given: client_bounds(*given[:2], [given[2]], *given[3:])):
        with pytest.raises(BidroError, match="outside"):
            bound("a", [0.5, 2.0], 0.1, 1.0, "betting")
    assert client_bound("a", [0.5, 2.0], 0.1, 1.0, "betting", True).mean == 0.75


def test_room_for_shift_is_for_numbers_that_make_sense():
    certificate = held_out_bound({"a": np.full(100, 0.2)}, largest=1.0)
    for room in (shifted, shifted_squared):
        assert room(certificate, 0.0, 3.0) == pytest.approx(certificate.bound, rel=1e-15)
        assert room(certificate, 3.0, 0.0) == pytest.approx(certificate.bound, rel=1e-15)
        for slope, shift in ((-0.1, 1.0), (1.0, -0.1), (np.inf, 1.0), (1.0, np.inf), (np.nan, 1.0)):
            with pytest.raises(BidroError, match="finite and not negative"):
                room(certificate, slope, shift)


def test_people_in_any_order_and_of_any_size():
    """Labels of rows that do not stand together, against a mean by hand; unknown ones are named."""
    losses, labels = np.array([0.1, 0.9, 0.3, 0.5, 0.7]), ["u", "v", "u", "w", "v"]
    found = held_out_bound({"a": losses}, 0.9, 1.0, people={"a": labels})
    by_hand = held_out_bound({"a": [0.2, 0.8, 0.5]}, 0.9, 1.0)
    assert found.bound == pytest.approx(by_hand.bound, rel=1e-12)
    assert found.means["a"] == pytest.approx(0.5)
    with pytest.raises(BidroError, match="'b' has labels of people but no rows"):
        held_out_bound({"a": losses}, 0.9, 1.0, people={"a": labels, "b": [1]})


def test_a_person_is_one_draw_with_the_mean_of_its_rows():
    losses, people = [0.0, 1.0, 0.4, 0.2], ["x", "x", "y", "z"]
    found = held_out_bound({"a": losses}, 0.9, 1.0, people={"a": people})
    by_hand = held_out_bound({"a": [0.5, 0.4, 0.2]}, 0.9, 1.0)
    assert found.bound == pytest.approx(by_hand.bound, rel=1e-12)
    assert found.rows == {"a": 3}
    assert found.people
    # The loss of a row is clipped before the mean is taken.
    clipped = held_out_bound({"a": losses}, 0.9, 0.5, clipped=True, people={"a": people})
    assert clipped.means["a"] == pytest.approx((0.25 + 0.4 + 0.2) / 3)
    many = held_out_bound({"a": np.tile(losses, 50)}, 0.9, 1.0, people={"a": np.arange(200) // 2})
    assert "a mean of people" in many.promise
    assert "is one draw" in many.promise
    assert "the rows of a client are independent" not in many.promise


def test_the_empirical_bernstein_bound_by_hand():
    """Fifty values 0 and fifty 0.2: variance (n / (n - 1)) 0.1^2, and ln(2 / 0.05) = 3.688879."""
    values = np.repeat([0.0, 0.2], 50)
    by_hand = 0.1 + math.sqrt(2 * 0.01 / 99 * 3.6888794541) + 7 * 3.6888794541 / (3 * 99)
    assert empirical_bernstein(values, 0.05) == pytest.approx(by_hand, rel=1e-9)
    # One value tells nothing, and no bound is above 1.
    assert empirical_bernstein(np.zeros(1), 0.05) == 1.0
    assert empirical_bernstein(np.ones(9), 0.05) == 1.0


@pytest.mark.parametrize(("wrong", "n"), [(0, 20), (3, 50), (20, 20)])
def test_clopper_pearson_by_its_definition(wrong, n):
    """The bound is the probability at which so few errors would have probability beta."""
    values = np.concatenate([np.ones(wrong), np.zeros(n - wrong)])
    found = clopper_pearson(values, 0.05)
    if wrong == n:
        assert found == 1.0
    else:
        assert binom.cdf(wrong, n, found) == pytest.approx(0.05, rel=1e-9)


def test_mistakes_have_the_exact_bound():
    wrong = np.array([0.0, 1.0, 0.0, 0.0])
    found = held_out_bound({"a": wrong}, 0.95, kind="clopper-pearson")
    assert found.bound == clopper_pearson(wrong, 1 - 0.95)


def test_the_worst_admissible_mixture_and_its_levels():
    rng = np.random.default_rng(2)
    losses = {"a": rng.beta(1, 9, 300), "b": rng.beta(2, 5, 300), "c": rng.beta(1, 1, 300)}
    full = held_out_bound(losses, 0.9, largest=1.0)
    assert full.level == pytest.approx(0.1)
    assert full.bound == max(full.clients.values()) == full.clients["c"]
    capped = held_out_bound(losses, 0.9, 1.0, CappedSimplex(np.zeros(3), np.full(3, 0.5)))
    assert (1 - capped.level) ** 3 == pytest.approx(0.9)
    assert capped.bound == pytest.approx(0.5 * capped.clients["c"] + 0.5 * capped.clients["b"])
    assert "0.9" in full.promise


def test_units_do_not_matter():
    rng = np.random.default_rng(3)
    losses = {"a": rng.uniform(size=50)}
    one = held_out_bound(losses, largest=1.0)
    ten = held_out_bound({"a": 10 * losses["a"]}, largest=10.0)
    assert ten.bound == pytest.approx(10 * one.bound, rel=1e-9)


def test_the_unknown_mixture_is_covered_over_500_repetitions():
    """Three clients, a mixture that the method never sees, 40 rows held out of each."""
    means, mixture = np.array([0.1, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    true, held, ratios = float(means @ mixture), 0, []
    for seed in range(500):
        rng = np.random.default_rng(seed)
        losses = {str(i): rng.beta(1, 1 / mean - 1, 40) for i, mean in enumerate(means)}
        bound = held_out_bound(losses, 0.8, largest=1.0).bound
        held += bound >= true
        ratios.append(bound / true)
    assert held / 500 >= 0.8 - 4 * math.sqrt(0.8 * 0.2 / 500)
    assert np.mean(ratios) < 3


def test_room_for_shift():
    certificate = held_out_bound({"a": np.full(100, 0.2)}, largest=1.0)
    assert shifted(certificate, 2.0, 0.1) == pytest.approx(certificate.bound + 0.2)
    assert shifted_squared(certificate, 2.0, 0.1) == pytest.approx((math.sqrt(certificate.bound) + 0.2) ** 2)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: held_out_bound({"a": [0.1]}, 1.0, 1.0), "confidence"),
        (lambda: held_out_bound({}, 0.9, 1.0), "at least one client"),
        (lambda: held_out_bound({"a": []}, 0.9, 1.0), "no held-out rows"),
        (lambda: held_out_bound({"a": [0.1]}, 0.9), "largest value"),
        (lambda: held_out_bound({"a": [2.0]}, 0.9, 1.0), "outside"),
        (lambda: held_out_bound({"a": [np.nan]}, 0.9, 1.0), "outside"),
        (lambda: held_out_bound({"a": [0.5]}, 0.9, kind="clopper-pearson"), "0 and 1"),
        (lambda: held_out_bound({"a": [0.0, 0.5, 1.0]}, 0.9, kind="clopper-pearson"), "0 and 1"),
        (lambda: held_out_bound({"a": [0.5]}, 0.9, 1.0, CappedSimplex(np.zeros(2), np.ones(2))), "2 clients"),
        (lambda: shifted(held_out_bound({"a": [0.5]}, 0.9, 1.0), -1.0, 0.0), "not negative"),
        (
            lambda: held_out_bound({"a": [0.5]}, 0.9, 1.0, people={"b": [1]}),
            "'a' has rows but no labels of people",
        ),
        (
            lambda: held_out_bound({"a": [0.5]}, 0.9, 1.0, people={"a": [1, 2]}),
            "1 held-out rows but 2 labels",
        ),
        (
            lambda: held_out_bound({"a": [0.0, 1.0]}, 0.9, kind="clopper-pearson", people={"a": [1, 1]}),
            "losses of 0 and 1",
        ),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def test_people_whose_means_round_above_the_largest_loss():
    found = held_out_bound({"a": [0.1, 0.1, 0.1, 0.0, 0.0]}, 0.95, 0.1, people={"a": [0, 0, 0, 1, 2]})
    assert 0 < found.bound <= 0.1


@pytest.mark.parametrize("capped", [False, True])
def test_a_table_of_clients_says_whether_their_bounds_hold_together(capped):
    """Of the full simplex one bound at a time is false with probability 1 - confidence, of a smaller set none
    of them."""
    mixtures = CappedSimplex(np.zeros(5), np.full(5, 0.5)) if capped else None
    losses = {f"c{k}": np.linspace(0, 1, 60) for k in range(5)}
    found = held_out_bound(losses, 0.95, 1.0, mixtures)
    assert found.each_by_itself is not capped
    assert found.level == pytest.approx(1 - 0.95 ** (1 / 5) if capped else 0.05)
    assert not held_out_bound({"a": losses["c0"]}, 0.95, 1.0).each_by_itself


def test_the_command_s_table_says_each_by_itself():
    y = np.tile([0, 1], 100)
    said = str(certify_predictions(y, y, np.repeat(["a", "b"], 100), loss="mistakes"))
    after = said[said.index("  b ") :]
    assert "each by itself, not all together" in after
    assert "each by itself" not in str(certify_predictions(y, y, loss="mistakes"))
