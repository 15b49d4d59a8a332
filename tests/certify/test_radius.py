"""Radii against their formulas written out, hand-worked numbers, and simulated coverage by POT."""

import math
from itertools import product

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.certify.coverage import coverage_probability, failure_probabilities, has_every_vertex
from bidro.certify.radius import (
    ExplicitRadius,
    PaperRadius,
    explicit_rule,
    h,
    inverse_h,
    mean_bound,
    metric_diameter,
    paper_rule,
)
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.losses import Logistic, Softmax
from bidro.risk.transport import Transport
from tests.small import mostly_slow


def slow_mean_bound(rows, m, p, finest=2):
    """A by plain summation of 400 levels, over every k up to 60."""
    best = math.inf
    for k in range(finest, 61):
        total = 0.0
        for level in range(1, 401):
            power = m * level * math.log(k)
            share = 1.0 if power > 200 else min(1.0, math.sqrt((math.exp(power) - 1) / rows) / 2)
            total += math.exp(-p * level * math.log(k)) * share
        best = min(best, (k**p - 1) * total)
    return min(1.0, best)


@pytest.mark.parametrize("m", [2, 3, 4, 10])
@pytest.mark.parametrize("p", [1.0, 2.0, 1.5])
@pytest.mark.parametrize("rows", [1, 30, 300])
def test_the_mean_bound_against_plain_summation(m, p, rows):
    assert mean_bound(rows, m, p) == pytest.approx(slow_mean_bound(rows, m, p), rel=1e-9)
    assert mean_bound(rows, m, p, 5) == pytest.approx(slow_mean_bound(rows, m, p, 5), rel=1e-9)


def test_by_hand():
    """m = 1: D sqrt(sqrt(ln(2 / beta) / (2 N))) for p = 2. In ten dimensions 300 rows say next to nothing."""
    assert ExplicitRadius(3.0, 1, 2.0).radius(50, 0.1) == pytest.approx(
        3.0 * (math.log(20) / 100) ** 0.25, rel=1e-12
    )
    assert ExplicitRadius(3.0, 10, 1.0).radius(300, 0.1) > 0.55 * 3.0
    # p != m / 2: R (ln(c1 / beta) / (c2 N))^(1 / max(2 p, m)).
    rule = PaperRadius(2.0, 3, 1.0, c1=4.0, c2=0.5)
    assert rule.radius(100, 0.1) == pytest.approx(2.0 * (math.log(40) / 50) ** (1 / 3), rel=1e-12)
    # No risk is above 1, where one row has 2 exp(-2 0.1^2).
    assert ExplicitRadius(1.0, 1, 1.0).risk(1, 0.1) == 1.0


def test_the_paper_s_own_case_p_is_half_of_m():
    """p = 2, m = 4: R h^-1(y)^(1/2)."""
    rule = PaperRadius(500.0, 4, 2.0, c1=3.0, c2=1.5)
    y = math.log(3.0 / 0.05) / (1.5 * 30)
    found = rule.radius(30, 0.05)
    x = (found / 500.0) ** 2
    assert x**2 / math.log(2 + 1 / x) ** 2 == pytest.approx(y, rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-12, 1e6))
def test_the_inverse_of_h(y):
    assert h(inverse_h(y)) == pytest.approx(y, rel=1e-9)
    assert inverse_h(0.0) == 0.0


RULES = st.one_of(
    st.builds(ExplicitRadius, st.floats(0.1, 10), st.integers(1, 6), st.sampled_from([1.0, 2.0, 3.0])),
    st.builds(
        PaperRadius,
        st.floats(0.1, 10),
        st.integers(1, 6),
        st.sampled_from([1.0, 2.0, 3.0]),
        st.floats(1.0, 5.0),
        st.floats(0.1, 2.0),
    ),
)


@settings(max_examples=80, deadline=None)
@given(RULES, st.integers(1, 2000), st.floats(1e-6, 0.99))
def test_radii_fall_with_rows_and_risk_and_have_an_inverse(rule, rows, beta):
    here = rule.radius(rows, beta)
    assert rule.radius(rows + 50, beta) <= here * (1 + 1e-12)
    assert rule.radius(rows, beta / 2) >= here * (1 - 1e-12)
    back = rule.risk(rows, here)
    assert back <= beta * (1 + 1e-6)
    if isinstance(rule, PaperRadius) or here < rule.diameter * (1 - 1e-9):
        assert back == pytest.approx(beta, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 5.0), st.integers(2, 5), st.floats(1.1, 4.0))
def test_explicit_radii_scale_with_the_support_and_stay_within_it(diameter, m, factor):
    one, other = (ExplicitRadius(d, m, 2.0).radius(40, 0.1) for d in (diameter, factor * diameter))
    assert other == pytest.approx(factor * one, rel=1e-12)
    assert one <= diameter


LAWS = {
    "two points": lambda rng, n, m: np.repeat(rng.integers(0, 2, (n, 1)), m, axis=1).astype(float),
    "corners": lambda rng, n, m: rng.integers(0, 2, (n, m)).astype(float),
    "uniform": lambda rng, n, m: rng.uniform(size=(n, m)),
}


def distance_to_truth(law, rows, p, rng):
    """W_p^p between samples and the true law; uniform laws by a reference of 1,000 draws."""
    m = rows.shape[1]
    if law == "uniform" and m == 1:
        # Exact in one dimension: the quantile coupling, by a fine grid of midpoints.
        grid = (np.arange(20_000) + 0.5) / 20_000
        ordered = np.sort(rows[:, 0])
        quantiles = ordered[np.minimum((grid * len(rows)).astype(int), len(rows) - 1)]
        return float(np.mean(np.abs(quantiles - grid) ** p))
    if law == "uniform":
        truth = rng.uniform(size=(1000, m))
        masses = np.full(1000, 1e-3)
    else:
        truth = np.array([[0.0] * m, [1.0] * m])
        if law == "corners":
            truth = np.stack(np.meshgrid(*[[0.0, 1.0]] * m), -1).reshape(-1, m)
        masses = np.full(len(truth), 1 / len(truth))
    costs = ot.dist(rows, truth, metric="euclidean") ** p
    return float(ot.emd2(np.full(len(rows), 1 / len(rows)), masses, costs, numItermax=1_000_000))


@pytest.mark.parametrize(
    ("law", "m", "p"),
    mostly_slow(
        product(LAWS, (1, 2, 3), (1.0, 2.0)), lambda case: case[0] != "uniform" or case[1:] != (3, 2.0)
    ),
)
def test_simulated_coverage(law, m, p):
    """At least 1 - beta of repetitions within the radius, in every cell.

    A uniform law with m > 1 is stood in for by 1,000 draws, which adds to the mean distance: passing is then
    the stronger statement.
    """
    beta = 0.3
    for rows in (30, 100, 300):
        repetitions = 150
        if law == "uniform" and m > 1:
            repetitions = 15 if rows == 300 else 40
        rng = np.random.default_rng([rows, m])
        eps = ExplicitRadius(math.sqrt(m), m, p).radius(rows, beta)
        inside = sum(
            distance_to_truth(law, LAWS[law](rng, rows, m), p, rng) <= eps**p for _ in range(repetitions)
        )
        # Five standard errors of a binomial share at 1 - beta.
        slack = 5 * math.sqrt(beta * (1 - beta) / repetitions)
        assert inside / repetitions >= 1 - beta - slack
        # The bound is loose: in truth it holds almost always, and that is what must show.
        assert inside / repetitions >= 1 - beta


@pytest.mark.parametrize("classes", [2, 3, 10, 50, 400])
def test_simulated_coverage_of_a_label_alone(classes):
    """Of unordered classes that are all one cost apart, W_p^p is cost^p times the total variation. Where the
    classes are equally likely, that is largest."""
    beta, cost, repetitions = 0.1, 2.0, 2000
    for rows in (100, 1000):
        label = np.arange(classes, dtype=float)
        some = Federation.from_arrays({"a": label[:, None]}, Box([0.0], [classes - 1.0]))
        for p in (1.0, 2.0):
            rule = explicit_rule(some, Transport.classification(1, p, cost), label)
            counts = np.random.default_rng(classes).multinomial(
                rows, np.full(classes, 1 / classes), repetitions
            )
            variation = np.abs(counts / rows - 1 / classes).sum(axis=1) / 2
            inside = np.mean(cost * variation ** (1 / p) <= rule.radius(rows, beta))
            assert inside >= 1 - beta


def test_a_label_alone_by_hand():
    """Two classes have an order; of more, all sets of classes count, or the mean of the total variation."""
    two, ten, many = (ExplicitRadius(1.0, 1, 1.0, classes) for classes in (2, 10, 400))
    assert two.radius(100, 0.1) == pytest.approx(math.sqrt(math.log(20) / 200))
    assert ten.radius(100, 0.1) == pytest.approx(math.sqrt(math.log(1022 / 0.1) / 200))
    assert many.radius(1000, 0.1) == pytest.approx(math.sqrt(399 / 1000) / 2 + math.sqrt(math.log(10) / 2000))
    for rule in (two, ten, many, ExplicitRadius(1.0, 1, 2.0, 5000)):
        for beta in (0.01, 0.3):
            assert rule.risk(20_000, rule.radius(20_000, beta)) == pytest.approx(beta)


def test_the_paper_s_radius_at_its_edges():
    """Below its own constant there is nothing to fear; a support of one point needs no radius."""
    rule = PaperRadius(2.0, 3, 1.0, 0.5, 4.0)
    assert rule.radius(10, 0.6) == 0.0
    assert rule.radius(10, 0.1) == pytest.approx(2.0 * (math.log(5) / 40) ** (1 / 3))
    assert rule.risk(10, 0.0) == 1.0
    assert rule.risk(10, -1.0) == 1.0
    assert rule.risk(10, 0.5) == pytest.approx(0.5 * math.exp(-40 * 0.25**3))
    assert PaperRadius(2.0, 3, 1.0, 9.0, 4.0).risk(10, 1e-6) == 1.0
    point = PaperRadius(0.0, 3, 1.0, 0.5, 4.0)
    assert (point.risk(10, 0.1), point.risk(10, 0.0), point.radius(10, 0.1)) == (0.0, 1.0, 0.0)


def test_the_explicit_risk_at_its_edges():
    """One coordinate: 2 exp(-2 N eps^2); none from the diameter on, and certain where nothing is to spare."""
    line = ExplicitRadius(2.0, 1, 1.0)
    assert line.risk(50, 0.4) == pytest.approx(2 * math.exp(-2 * 50 * 0.2**2))
    assert line.risk(50, 0.01) == 1.0
    assert (line.risk(50, 2.0), line.risk(50, 0.0), line.risk(50, -1.0)) == (0.0, 1.0, 1.0)
    assert line.risk(50, 1.999) > 0
    plane = ExplicitRadius(2.0, 2, 2.0)
    mean = slow_mean_bound(5000, 2, 2.0)
    assert plane.risk(5000, 2 * math.sqrt(mean)) == pytest.approx(1.0)
    spare = 0.7**2 / 4 - mean
    assert plane.risk(5000, 0.7) == pytest.approx(math.exp(-2 * 5000 * spare**2))
    # A support of one point: no sample is away from it.
    assert ExplicitRadius(0.0, 2, 2.0).radius(3, 0.1) == 0.0


def test_coverage_of_the_whole():
    """Both bounds of Proposition 1, worked out once more from their definitions."""
    rule, sizes = ExplicitRadius(1.0, 1, 1.0), [40, 100, 400]
    found = coverage_probability(rule, sizes, [0.01, 0.02, 0.03], delta=0.05)
    assert found.together == pytest.approx(0.99 * 0.98 * 0.97)
    bars = []
    for n, b in zip(sizes, [0.01, 0.02, 0.03], strict=True):
        smaller = math.sqrt(math.log(2 / b) / (2 * n)) - 0.05
        bars.append(min(1.0, 2 * math.exp(-2 * n * smaller**2)))
    assert found.by_one == pytest.approx(1 - math.prod(bars))
    assert found.probability == max(found.together, found.by_one)
    # Without delta, or where no client alone is admissible, the second bound says nothing.
    assert coverage_probability(rule, sizes, 0.02).by_one == 0.0
    capped = CappedSimplex(np.zeros(3), np.full(3, 0.5))
    assert coverage_probability(rule, sizes, 0.02, capped, delta=0.0).by_one == 0.0
    # A delta above every radius leaves beta-bar = 1.
    assert coverage_probability(rule, sizes, 0.02, delta=5.0).by_one == 0.0
    # One distribution, three looks at it: beta-bar_i = beta_i.
    assert coverage_probability(rule, sizes, 0.02, delta=0.0).by_one == pytest.approx(1 - 0.02**3)


def test_vertices():
    assert has_every_vertex(Simplex(3), 3)
    assert has_every_vertex(CappedSimplex(np.zeros(3), np.ones(3)), 3)
    assert not has_every_vertex(L1SimplexBall(np.full(3, 1 / 3), 0.5), 3)


@pytest.mark.parametrize("m", [1, 3])
def test_splits_of_a_wanted_confidence(m):
    rule, sizes = ExplicitRadius(1.0, m, 1.0), [20, 200, 2000]
    equal = failure_probabilities(0.9, sizes, rule)
    assert np.prod(1 - equal) == pytest.approx(0.9, rel=1e-12)
    assert len(set(equal)) == 1
    uneven = failure_probabilities(0.9, sizes, rule, "smallest largest")
    assert np.prod(1 - uneven) == pytest.approx(0.9, rel=1e-6)
    radii = [[rule.radius(n, b) for n, b in zip(sizes, beta, strict=True)] for beta in (equal, uneven)]
    assert max(radii[1]) < max(radii[0])


def test_no_split_spends_more_than_there_is():
    rule = ExplicitRadius(1.0, 1, 1.0)
    for confidence in np.linspace(0.05, 0.995, 60):
        risks = failure_probabilities(confidence, [20, 2_000, 200_000], rule, "smallest largest")
        assert -np.log1p(-risks).sum() <= -math.log(confidence) * (1 + 6e-16)


def test_the_diameter_in_a_scaled_metric_and_with_labels():
    box = Box(np.array([-1.0, 0.0, -1.0]), np.array([2.0, 4.0, 1.0]))
    fed = Federation.from_arrays([np.zeros((2, 3))], box)
    scaled = Transport(np.array([2.0, 0.5, 1.0]), 2.0)
    assert metric_diameter(fed, scaled) == pytest.approx(math.sqrt(36 + 4 + 4))
    assert explicit_rule(fed, scaled).coordinates == 3
    assert paper_rule(fed, scaled, 1.0, 1.0).half_width == pytest.approx(3.0)
    labelled = Federation.from_arrays([np.array([[0.0, 1.0, 1.0], [0.0, 1.0, -1.0]])], box)
    assert metric_diameter(labelled, Transport.classification(3, 1.0, 0.7)) == pytest.approx(5.0 + 0.7)
    # A flip is as wide as it costs, here more than any feature.
    assert paper_rule(labelled, Transport.classification(3, 1.0, 9.0), 1.0, 1.0).half_width == 4.5


def test_labels_are_counted_as_the_loss_has_them():
    """-1 and 1 are two labels, although a box from -1 to 1 has room for three whole numbers."""
    box = Box(np.array([0.0, 0.0, -1.0]), np.array([1.0, 2.0, 1.0]))
    fed = Federation.from_arrays([np.array([[0.0, 1.0, 1.0], [0.0, 1.0, -1.0]])], box)
    flips = Transport.classification(3, 1.0, 0.7)
    assert explicit_rule(fed, flips, Logistic().labels).finest == 2
    assert explicit_rule(fed, flips).finest == 3
    classes = Box(np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 6.0]))
    seven = Federation.from_arrays([np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 6.0]])], classes)
    rule = explicit_rule(seven, flips, Softmax(classes=7).labels)
    assert rule.finest == explicit_rule(seven, flips).finest == 7
    diameter = math.sqrt(5) + 0.7
    by_hand = diameter * (slow_mean_bound(400, 3, 1.0, 7) + math.sqrt(math.log(10) / 800))
    assert rule.radius(400, 0.1) == pytest.approx(by_hand, rel=1e-9)
    # The bound with cells that mix labels would be smaller, and would not hold.
    assert rule.radius(400, 0.1) > ExplicitRadius(diameter, 3, 1.0).radius(400, 0.1)
    assert explicit_rule(fed, Transport.euclidean(3), None).finest == 2


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ExplicitRadius(1.0, 2, 2.0).radius(10, 0.0), "between 0 and 1"),
        (lambda: ExplicitRadius(1.0, 2, 2.0).radius(0, 0.1), "at least one"),
        (lambda: ExplicitRadius(math.inf, 2, 2.0), "bounded support"),
        (lambda: ExplicitRadius(1.0, 2, 0.5), "p >= 1"),
        (lambda: PaperRadius(1.0, 2, 1.0, -1.0, 1.0), "c1 and c2"),
        (
            lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], 1.0),
            "Every risk beta must lie strictly",
        ),
        (lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], [0.1, 0.0]), "Every risk beta"),
        (lambda: ExplicitRadius(1.0, 2, 2.0).radius(10, 1.0), "between 0 and 1"),
        (lambda: ExplicitRadius(1.0, 2, 2.0).radius(2.5, 0.1), "whole number of rows"),
        (lambda: ExplicitRadius(1.0, 0, 2.0), "at least one coordinate"),
        (lambda: ExplicitRadius(1.0, 2, math.inf), "p >= 1"),
        (lambda: PaperRadius(1.0, 0, 2.0, 1.0, 1.0), "at least one coordinate"),
        (lambda: PaperRadius(1.0, 2, 0.5, 1.0, 1.0), "p >= 1"),
        (lambda: PaperRadius(1.0, 2, math.inf, 1.0, 1.0), "p >= 1"),
        (lambda: PaperRadius(math.inf, 2, 1.0, 1.0, 1.0), "bounded support"),
        (lambda: PaperRadius(1.0, 2, 1.0, 1.0, 0.0), "c1 and c2"),
        (lambda: PaperRadius(1.0, 2, 1.0, 0.0, 1.0), "c1 and c2"),
        (lambda: PaperRadius(1.0, 2, 1.0, 1.0, 1.0).radius(0, 0.1), "at least one"),
        (lambda: PaperRadius(1.0, 2, 1.0, 1.0, 1.0).risk(0, 0.1), "at least one"),
        (lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], 0.1, delta=-1.0), "delta"),
        (lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], 0.1, delta=math.inf), "delta"),
        (lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], 0.1, delta=math.nan), "delta"),
        (lambda: coverage_probability(ExplicitRadius(1.0, 2, 2.0), [3, 4], math.nan), "Every risk beta"),
        (lambda: failure_probabilities(0.0, [3], ExplicitRadius(1.0, 2, 2.0)), "confidence"),
        (lambda: failure_probabilities(0.5, [3], ExplicitRadius(1.0, 2, 2.0), "odd"), "A split must be"),
        (lambda: failure_probabilities(1.0, [3], ExplicitRadius(1.0, 2, 2.0)), "confidence"),
        (
            lambda: explicit_rule(
                Federation.from_arrays([np.zeros((2, 3))], "unbounded"), Transport.euclidean(3)
            ),
            "declared before anybody saw the rows",
        ),
        (
            lambda: explicit_rule(Federation.from_arrays([np.eye(3)], "from data"), Transport.euclidean(3)),
            "read off the data",
        ),
        (
            lambda: explicit_rule(
                Federation.from_arrays([np.zeros((2, 3))], Box.cube(1.0, 3)), Transport.features_only(3)
            ),
            "cannot move",
        ),
        (
            lambda: explicit_rule(
                Federation.from_arrays([np.ones((2, 3))], Box.cube(1.0, 3), ["age", "dose", "ill"]),
                Transport(np.ones(3), 1.0, True, math.inf),
            ),
            "'ill' cannot move",
        ),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()
