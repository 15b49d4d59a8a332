"""What clients answer in a fit, against plain NumPy and closed forms, one client at a time."""

import math

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.stats import beta

from bidro.ambiguity import WassersteinBall
from bidro.certify.held_out import client_bounds
from bidro.certify.statements import CertifiedModel
from bidro.core.sets import Box, Simplex
from bidro.data.federation import Federation
from bidro.fit.client_side import assessment, bounds, prepared
from bidro.fit.questions import Assess, HoldoutQuery
from bidro.losses import Logistic, Squared, losses_of
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS

SIZES = (1, 6, 9)
MODEL = np.array([0.8, -0.5])
WHOLE = np.random.default_rng(0).normal(size=(sum(SIZES), 3)) * [1.0, 2.0, 3.0]
PARTS = np.split(WHOLE, np.cumsum(SIZES)[:-1])
RESIDUALS = [part[:, :2] @ MODEL - part[:, 2] for part in PARTS]
STEEPNESS = np.sqrt(MODEL @ MODEL + 1)


def query(radii=(0.2, 0.0, 0.4), levels=(), reference=(), shown=1.0, declared=None):
    clients = {f"c{k}": part for k, part in enumerate(PARTS)}
    problem = Problem(
        Federation.from_arrays(clients, "unbounded"),
        Squared(),
        Box.cube(5.0, 2),
        Transport.euclidean(3),
        None if radii is None else WassersteinBall(np.array(radii)),
    )
    cloud, none = np.reshape(reference, (-1, 3)), np.zeros((3, 0))
    message = Assess(MODEL, np.asarray(levels, float), cloud, np.asarray(shown), none, none, np.zeros(0))
    return assessment(problem, declared, message, np.tile(MODEL, (3, 1)))


def assert_few_digits(found, exact):
    """Four binary digits, towards 0."""
    found, exact = np.asarray(found, float), np.asarray(exact, float)
    exact = np.where(np.abs(exact) < 1e-12, 0.0, exact)
    digits = np.frexp(found)[0] * 16
    np.testing.assert_array_equal(np.where(np.abs(found) < 1e-12, 0.0, digits % 1), 0.0)
    assert np.all(np.abs(found) <= np.abs(exact) * (1 + 1e-9) + 1e-12)
    assert np.all(np.abs(found - exact) <= np.abs(exact) / 8 + 1e-12)


def assert_error(found, exact):
    """Four binary digits, upwards."""
    found, exact = np.asarray(found, float), np.asarray(exact, float)
    np.testing.assert_array_equal(np.frexp(found)[0] * 16 % 1, 0.0)
    assert np.all(found >= exact * (1 - 1e-9))
    assert np.all(found <= exact * (1 + 1 / 8) + 1e-12)


def test_what_is_prepared_is_by_client():
    offered = np.eye(3, FOLDS)
    found = prepared(WHOLE, SIZES, [2, 0, 3], offered, 7.0)
    np.testing.assert_array_equal(found.rows, SIZES)
    np.testing.assert_array_equal(found.holdout, [2, 0, 3])
    np.testing.assert_array_equal(found.folds, offered)
    np.testing.assert_array_equal(found.table, [7.0, 7.0, 7.0])
    np.testing.assert_allclose(found.mean, [part.mean(axis=0) for part in PARTS])
    np.testing.assert_allclose(found.deviation, [part.std(axis=0) for part in PARTS], atol=1e-12)
    # A digest is a site's own: in one process there is none to tell.
    np.testing.assert_array_equal(prepared(WHOLE, SIZES, SIZES, offered).table, np.zeros(3))


def test_losses_with_standard_errors():
    """Of one row there is no standard error; others are told to three binary digits after the first."""
    found = query()
    losses = [own**2 for own in RESIDUALS]
    np.testing.assert_allclose(found.loss, [own.mean() for own in losses])
    errors = [own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else 0.0 for own in losses]
    assert_error(found.se, errors)


def test_risks_over_explicit_radii_on_the_declared_support():
    """On a support that is wide enough (RMSE + radius * steepness)^2; on one that ends at the data the moves
    end there too, and no risk is above that of the farthest point."""
    levels = np.array([[0.1, 0.3], [0.0, 0.5], [0.2, 1.0]])
    found = query(levels=levels, declared=Box.cube(1e4, 3))
    root = np.array([np.sqrt(np.mean(own**2)) for own in RESIDUALS])
    np.testing.assert_allclose(found.robust, (root[:, None] + levels * STEEPNESS) ** 2, rtol=1e-9)
    edge = Box(WHOLE.min(axis=0), WHOLE.max(axis=0))
    narrow = query(levels=levels, declared=edge)
    farthest = np.abs(edge.largest_norm(np.ones(3))) ** 2 * STEEPNESS**2
    assert np.all(narrow.robust <= np.minimum(np.asarray(found.robust) * (1 + 1e-9), farthest))
    assert np.any(narrow.robust < np.asarray(found.robust) - 0.1)
    assert query().robust.shape == (3, 0)


def test_the_distance_to_a_reference_is_that_of_an_assignment():
    """Clients and reference of sizes that divide each other: rows repeated and assigned at least cost."""
    reference = np.random.default_rng(1).normal(size=(18, 3))
    found = query(reference=reference)
    assert found.distance.shape == (3, 1)
    for part, far in zip(PARTS, found.distance[:, 0], strict=True):
        costs = ((np.repeat(part, 18 // len(part), axis=0)[:, None] - reference) ** 2).sum(axis=-1)
        assert far == pytest.approx(np.sqrt(costs[linear_sum_assignment(costs)].mean()))
    assert query().distance.shape == (3, 0)


def test_worst_cases_are_shown_of_those_that_are_asked_for():
    """In a ball of order 2 a row moves along (x, -1), as far as its residual is large beside the others."""
    found = query(shown=[1.0, 1.0, 0.0])
    along = np.append(MODEL, -1.0) / STEEPNESS
    for k, (own, radius) in enumerate(zip(RESIDUALS, (0.2, 0.0, 0.4), strict=True)):
        lengths = radius * own / np.sqrt(np.mean(own**2)) if k < 2 else np.zeros(len(own))
        assert_few_digits(found.moved[k], lengths.mean() * along[:2])
        assert_few_digits(found.typical[k], np.sqrt(np.mean(lengths**2)) * np.abs(along[:2]))
    assert np.all(query(shown=[0.0, 0.0, 1.0]).typical[2] > 0)
    # Without balls there is no worst case.
    unmoved = query(radii=None)
    np.testing.assert_array_equal(unmoved.moved, np.zeros((3, 2)))
    np.testing.assert_array_equal(unmoved.typical, np.zeros((3, 2)))


def test_bounds_of_rows_kept_out_are_each_client_s_own():
    """Mistakes by Clopper and Pearson's own formula; every bound above its mean, and lower at a level of more
    risk; what losses are clipped at counts, and a statement that is not made is empty."""
    rng = np.random.default_rng(2)
    sizes, levels = [40, 25, 1], [0.01, 0.2]
    rows = np.column_stack([rng.normal(size=(66, 2)), rng.choice([-1.0, 1.0], 66)])
    of = CertifiedModel(Logistic(), MODEL, Simplex(3), 0.6, 5.0, None, False)
    none = np.zeros((3, 0))
    message = HoldoutQuery(MODEL, np.array(levels), np.asarray(0.6), np.array([5.0]), none, none, np.zeros(0))
    found = bounds(["a", "b", "c"], rows, sizes, of, message, np.tile(MODEL, (3, 1)))
    for k, own in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        margins = own[:, 2] * (own[:, :2] @ MODEL)
        losses, wrong = np.logaddexp(0, -margins), int((margins <= 0).sum())
        n = len(own)
        np.testing.assert_allclose(losses_of(Logistic(), MODEL, own), losses)
        counted = np.minimum(losses, 0.6)
        # A quarter of what the largest loss, as the next power of two, adds to a mean.
        step, whole_step, beyond = (
            2.0 ** math.ceil(math.log2(part.max())) / (4 * n) for part in (counted, losses, losses - counted)
        )
        assert found.loss[k] == pytest.approx(step * round(counted.mean() / step))
        assert_error(found.se[k], counted.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0)
        np.testing.assert_allclose(
            # Nobody has a personal model, of which the last two would be.
            found.means[k],
            [
                found.loss[k],
                found.loss[k] + beyond * round((losses - counted).mean() / beyond),
                wrong / n,
                0,
                0,
            ],
            atol=1e-12,
        )
        for bound, part, to, most in (
            (found.clipped, counted, step, 0.6),
            (found.held_out, losses, whole_step, 5.0),
        ):
            true = np.array([one.bound for one in client_bounds("it", part, levels, most, "betting")])
            assert np.all(bound[k] >= true)
            assert np.all(bound[k] <= np.minimum(true + 1.5 * to, most) * (1 + 1e-12))
        exact = [1.0 if wrong == n else beta.ppf(1 - level, wrong + 1, n - wrong) for level in levels]
        np.testing.assert_allclose(found.mistakes[k], exact, rtol=1e-6)
        for bound, mean, most in (
            (found.clipped, found.means[k, 0], 0.6),
            (found.held_out, found.means[k, 1], 5),
        ):
            assert mean <= bound[k, 1] <= bound[k, 0] <= most * (1 + 1e-12)
            assert n == 1 or mean < bound[k, 1] < bound[k, 0] < most or bound[k, 0] == most
    number = CertifiedModel(Squared(), MODEL, Simplex(3), 0.6, None, None, False)
    plain = bounds(["a", "b", "c"], rows, sizes, number, message, np.tile(MODEL, (3, 1)))
    assert plain.clipped.shape == (3, 2)
    assert plain.held_out.shape == plain.mistakes.shape == (3, 0)
    np.testing.assert_array_equal(plain.means[:, 1:], 0.0)
