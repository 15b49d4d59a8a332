"""Solves that begin elsewhere, or with moments that are known: what is stated holds all the same."""

from dataclasses import replace

import numpy as np
import pytest

from bidro import Box, Federation, Logistic, Problem, Softmax, Squared, Transport, WassersteinBall, solve
from bidro.core.errors import BidroError
from bidro.risk.moments import Moments, of_clients
from bidro.solvers import solve as solving
from bidro.solvers.bundle import one_shot
from bidro.solvers.solve import GapNotReachedWarning


def rows(seed=0):
    rng = np.random.default_rng(seed)
    theta = [rng.normal(size=(size, 2)) for size in (20, 30, 25)]
    return [np.column_stack([own, own @ [1.0, -1.0] + 0.5 * rng.normal(size=len(own))]) for own in theta]


def problem(radius=0.1, half=10.0):
    federation = Federation.from_arrays(rows(), "unbounded")
    models = Box.cube(half, 3)
    return Problem(federation, Squared(True), models, Transport.features_only(3), WassersteinBall(radius))


@pytest.mark.parametrize("method", ["one-shot", "curvature", "gradients"])
def test_a_start_outside_the_models_is_brought_inside(method):
    whole = problem(half=0.3)
    truth = solve(whole, 1e-8, "curvature")
    found = solve(whole, 1e-6, method, start=np.array([1.0, -1.0, 0.3]))
    assert bool(whole.models.contains(found.x))
    assert found.lower <= truth.upper * (1 + 1e-9)
    assert found.upper >= truth.lower * (1 - 1e-9)


def test_a_start_that_is_no_model_is_refused():
    for start in (np.full(3, np.nan), np.zeros(2)):
        with pytest.raises(BidroError, match="3 finite numbers"):
            solve(problem(), start=start)


def test_moments_that_cannot_be_of_the_clients_are_refused():
    mean, around = of_clients(np.concatenate(rows()), [20, 30, 25])
    for wrong in ((mean[:2], around[:2]), (mean[:, :2], around), (np.nan * mean, around)):
        with pytest.raises(BidroError, match="oments"):
            solve(problem(), moments=Moments(*wrong))


def test_risks_that_are_not_finite_certify_nothing():
    far = Problem(
        Federation.from_arrays(rows(), "unbounded"),
        Squared(True),
        Box.cube(10.0, 3),
        Transport.euclidean(3),
        WassersteinBall(1e160),
    )
    with pytest.raises(BidroError, match="not finite"):
        solve(far)


def test_radii_and_sets_are_copies_of_what_was_given():
    radii, upper = np.full(3, 0.1), np.full(3, 10.0)
    scale = np.ones(3)
    whole = Problem(
        Federation.from_arrays(rows(), "unbounded"),
        Squared(True),
        Box(-upper, upper),
        Transport(scale),
        WassersteinBall(radii),
    )
    before = solve(whole, 1e-6)
    radii *= 5
    upper[:] = 0.1
    scale *= 3
    again = solve(whole, 1e-6)
    assert again.upper == before.upper
    assert float(whole.models.upper[0]) == 10.0


def test_what_one_shot_proved_is_kept_where_rounds_are_too_few(monkeypatch):
    monkeypatch.setattr(one_shot, "_WITHOUT_GAIN", 2)
    whole = problem()
    with pytest.warns(GapNotReachedWarning):
        found = solve(whole, gap=1e-15, max_rounds=1)
    assert found.method == "one-shot"
    assert np.isfinite(found.upper)
    assert found.gap < 1e-6
    with pytest.warns(GapNotReachedWarning):
        more = solve(whole, gap=1e-15, max_rounds=3)
    assert more.gap <= found.gap


def test_moments_that_have_been_sent_are_used_however_many_parameters_there_are(monkeypatch):
    monkeypatch.setattr(solving, "LARGEST_CURVATURE", 2)
    monkeypatch.setattr(solving, "LARGEST_MOMENTS", 2)
    whole = problem()
    assert solving.chosen_method(whole)[0] == "gradients"
    federation = whole.federation
    told = of_clients(federation.host_rows, federation.sizes)
    found = solve(whole, 1e-9, moments=told)
    assert found.method == "one-shot"
    np.testing.assert_allclose(found.x, solve(whole, 1e-9, "one-shot").x, atol=1e-9)


def told_apart(classes):
    """Classes that a linear model tells apart, by little."""
    rng = np.random.default_rng(0)
    theta, directions = rng.normal(size=(900, 8)), rng.normal(size=(classes, 8))
    scores = np.sort(theta @ directions.T, axis=1)
    label = np.argmax(theta @ directions.T, axis=1)
    table = np.column_stack([theta, label if classes > 2 else 2 * label - 1])
    return np.split(table[scores[:, -1] - scores[:, -2] > 0.16][:120], 3)


@pytest.mark.parametrize("loss", [Logistic(True), Softmax(3, True)], ids=["two", "three"])
def test_risks_that_vanish_at_infinity_are_followed_along_their_ray(loss):
    """Without a radius there is no minimum: the risk comes below what counts in few rounds, by a model that
    is as far out as that takes and no farther."""
    federation = Federation.from_arrays(told_apart(len(loss.labels)), "unbounded")
    transport, models = Transport.classification(9, 1.0), Box.cube(1e3, loss.dimension(9))
    found = solve(Problem(federation, loss, models, transport, WassersteinBall(0.0)))
    assert found.gap <= 1e-6
    assert found.rounds <= 15
    assert found.lower == 0
    assert 1e-15 < found.upper < 1e-12
    assert np.abs(found.x).max() < 500


def test_a_small_radius_has_a_minimum_that_no_ray_leads_away_from():
    federation = Federation.from_arrays(told_apart(2), "unbounded")
    models, transport = Box.cube(1e3, 9), Transport.classification(9, 1.0)
    found = solve(Problem(federation, Logistic(True), models, transport, WassersteinBall(1e-5)))
    assert found.gap <= 1e-6
    assert found.rounds <= 20


def test_a_solution_that_is_given_with_its_weights_is_proven_in_one_round():
    whole = replace(problem(), ambiguity=WassersteinBall(0.0))
    known = solve(whole, 1e-12)
    again = solve(whole, 1e-6, start=known.x, mixture=known.alpha)
    assert (again.method, again.rounds) == ("gradients", 1)
    assert again.gap <= 1e-6
    assert again.upper == pytest.approx(known.upper, rel=1e-9)
    for bad in (known.alpha[1:], np.full(whole.n, np.nan)):
        with pytest.raises(BidroError, match="A mixture to start from has"):
            solve(whole, 1e-6, start=known.x, mixture=bad)
