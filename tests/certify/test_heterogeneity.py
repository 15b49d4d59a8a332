"""How far clouds are apart: thinned, through a reference, and widened."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.certify import out_of_sample
from bidro.certify.out_of_sample import cloud_distances, delta_from_reference, distance_to_reference, widened
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport, thinned, wasserstein_distance


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), most=st.integers(1, 40), p=st.sampled_from([1.0, 2.0]))
def test_a_thinned_cloud_is_as_far_as_it_says(seed, most, p):
    rng = np.random.default_rng(seed)
    rows, other = rng.normal(size=(40, 2)), rng.normal(size=(15, 2)) + 1
    transport = Transport(np.array([1.0, 3.0]), p)
    cloud = thinned(rows, transport, most, seed)
    assert cloud.masses.sum() == pytest.approx(1.0)
    between = wasserstein_distance(rows, cloud.points, transport, None, cloud.masses)
    # Every row goes to its nearest point, which no plan to these masses beats.
    assert between == pytest.approx(cloud.moved, abs=1e-7)
    exact = wasserstein_distance(rows, other, transport)
    short = wasserstein_distance(cloud.points, other, transport, cloud.masses)
    assert abs(exact - short) <= cloud.moved + 1e-9


def problem(n, seed=0):
    rng = np.random.default_rng(seed)
    parts = [np.clip(rng.normal(0.2 * k, 1, (12 + k, 2)), -9, 9) for k in range(n)]
    federation = Federation.from_arrays(parts, Box.cube(9.0, 2))
    return Problem(federation, Squared(), Box.cube(5.0, 1), Transport.euclidean(2))


def test_pairs_exactly_thinned_and_through_a_reference(monkeypatch):
    whole = problem(4)
    rows = [np.asarray(whole.federation.client_samples(name)) for name in whole.federation.names]
    exact = cloud_distances(whole)
    for i in range(4):
        for j in range(i):
            truth = wasserstein_distance(rows[i], rows[j], whole.transport)
            assert exact[i, j] == pytest.approx(truth, abs=1e-7)
    monkeypatch.setattr(out_of_sample, "EXACT_ROWS", 8)
    thin = cloud_distances(whole)
    monkeypatch.setattr(out_of_sample, "EXACT_ROWS", 2000)
    monkeypatch.setattr(out_of_sample, "MOST_PAIRED", 3)
    through = cloud_distances(whole)
    off = ~np.eye(4, dtype=bool)
    assert np.all(thin[off] >= exact[off])
    assert np.all(through[off] >= exact[off] - 1e-12)
    np.testing.assert_array_equal(np.diag(through), 0.0)


def test_what_thinning_moves_counts_on_both_sides(monkeypatch):
    """Two rows a client, one kept: where both inner ones are, the bound is tight and needs both moves."""
    monkeypatch.setattr(out_of_sample, "EXACT_ROWS", 1)
    left, right = np.array([[-1.0, 0.0], [0.0, 0.0]]), np.array([[11.0, 0.0], [10.0, 0.0]])
    found = []
    for a, b in itertools.product((left, left[::-1]), (right, right[::-1])):
        federation = Federation.from_arrays([a, b], Box.cube(20.0, 2))
        whole = Problem(federation, Squared(), Box.cube(5.0, 1), Transport.euclidean(2, 1.0))
        found.append(cloud_distances(whole)[0, 1])
    assert wasserstein_distance(left, right, Transport.euclidean(2, 1.0)) == pytest.approx(11.0)
    assert sorted(found) == pytest.approx([11.0, 12.0, 12.0, 13.0])


def test_widened_and_no_more_than_the_diameter():
    apart = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]])
    assert widened(apart, [0.1, 5.0, 0.3], 100.0) == pytest.approx(1.0 + 5.1)
    assert widened(apart, [0.1, 5.0, 0.3], 4.0) == 4.0
    assert widened(np.zeros((1, 1)), [3.0], 4.0) == 0.0


def test_one_number_a_client_bounds_delta():
    whole = problem(3)
    rows = [np.asarray(whole.federation.client_samples(name)) for name in whole.federation.names]
    reference = np.random.default_rng(1).uniform(-3, 3, (30, 2))
    sent = [distance_to_reference(own, reference, whole.transport) for own in rows]
    radii = np.array([0.1, 0.2, 0.3])
    far = np.sort(np.array(sent) + radii)
    assert delta_from_reference(sent, radii) == pytest.approx(far[-1] + far[-2])
    assert delta_from_reference(sent, radii) >= widened(cloud_distances(whole), radii, np.inf)
    assert delta_from_reference([1.0, 2.0], [0.25, 0.0]) == 3.25
    assert delta_from_reference(sent[:1], radii[:1]) == 0.0
    with pytest.raises(BidroError, match="not negative"):
        delta_from_reference([-1.0, 2.0], 0.0)
