"""Moments of clients and of folds, against NumPy's own on each client's rows, and in exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest

from bidro.risk import moments


def parts(sizes, m=3, seed=0, far=0.0):
    rng = np.random.default_rng(seed)
    return [
        far * (k + 1) + rng.normal(size=(size, m)) @ rng.normal(size=(m, m)) for k, size in enumerate(sizes)
    ]


# Few rows, many rows, one row, and sizes around a block and around the limit between the two ways.
@pytest.mark.parametrize("sizes", [(1, 2, 7, 5), (3000, 1), (128, 129, 1024, 1025, 2048, 20)])
def test_moments_of_clients(sizes):
    own = parts(sizes)
    mean, around = moments.of_clients(np.concatenate(own), sizes)
    for i, rows in enumerate(own):
        np.testing.assert_allclose(mean[i], rows.mean(axis=0), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(around[i], np.cov(rows.T, bias=True), rtol=1e-12, atol=1e-14)


def test_moments_of_many_small_clients_are_those_of_each():
    sizes = np.random.default_rng(1).integers(1, 40, 3000)
    own = parts(sizes, m=12)
    mean, around = moments.of_clients(np.concatenate(own), sizes)
    assert mean.shape == (3000, 12)
    assert around.shape == (3000, 12, 12)
    for i in range(0, 3000, 97):
        np.testing.assert_allclose(mean[i], own[i].mean(axis=0), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(around[i], np.cov(own[i].T, bias=True), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("sizes", [(9, 12, 5), (700, 3000, 9)])
@pytest.mark.parametrize("fold_spec", ["mixed", "fold after fold"])
def test_moments_of_training_rows(sizes, fold_spec):
    rng = np.random.default_rng(2)
    own = parts(sizes)
    fold_ids = [rng.permutation(np.arange(size) % 4) for size in sizes]
    if fold_spec != "mixed":
        fold_ids = [np.sort(of) for of in fold_ids]
    found = moments.of_folds(np.concatenate(own), sizes, np.concatenate(fold_ids), 4)
    for i, (rows, of) in enumerate(zip(own, fold_ids, strict=True)):
        for fold in range(4):
            trained = rows[of != fold]
            assert found.rows[i, fold] == len(trained)
            np.testing.assert_allclose(found.mean[i, fold], trained.mean(axis=0), rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(
                found.around[i, fold], np.cov(trained.T, bias=True), rtol=1e-11, atol=1e-13
            )


def test_sums_over_rows_left_out():
    """Squares of residuals and second moments, around each client's centre, by hand."""
    own, rng = parts((30, 41)), np.random.default_rng(3)
    fold_ids = [np.arange(len(rows)) % 3 for rows in own]
    found = moments.of_folds(np.concatenate(own), (30, 41), np.concatenate(fold_ids), 3)
    left, models = moments.left_out_sums(found), rng.normal(size=(2, 3))
    for fold in range(3):
        squares = left.squares(fold, models)
        for i, (rows, of) in enumerate(zip(own, fold_ids, strict=True)):
            out = rows[of == fold]
            away = out - left.centre[i]
            np.testing.assert_allclose(left.second(i, fold), away.T @ away, rtol=1e-10, atol=1e-10)
            residuals = out[:, :2] @ models[:, :2].T + models[:, 2] - out[:, 2:]
            np.testing.assert_allclose(squares[i], (residuals**2).sum(axis=0), rtol=1e-10)


def test_a_fold_may_hold_no_rows_of_a_client():
    rows = parts([6])[0]
    found = moments.of_folds(rows, [6], [0, 0, 2, 2, 0, 2], 3)
    np.testing.assert_array_equal(found.rows, [[3, 6, 3]])
    np.testing.assert_allclose(found.around[0, 1], np.cov(rows.T, bias=True), rtol=1e-12)
    np.testing.assert_allclose(found.mean[0, 0], rows[[2, 3, 5]].mean(axis=0), rtol=1e-12)


def test_the_rows_themselves_stay_as_they_are():
    rows = np.concatenate(parts([40, 2000]))
    before = rows.copy()
    moments.of_clients(rows, [40, 2000])
    moments.of_folds(rows, [40, 2000], np.arange(2040) % 5, 5)
    np.testing.assert_array_equal(rows, before)


def exact_moments(rows):
    """(mean, moments around it) of a table of few columns, in fractions."""
    exact = [[Fraction(float(v)) for v in row] for row in rows]
    count, m = len(exact), len(exact[0])
    mean = [sum(row[j] for row in exact) / count for j in range(m)]
    around = [
        [sum((row[j] - mean[j]) * (row[k] - mean[k]) for row in exact) / count for k in range(m)]
        for j in range(m)
    ]
    return np.array([float(v) for v in mean]), np.array([[float(v) for v in row] for row in around])


@pytest.mark.parametrize("size", [60, 1500])
def test_a_mean_that_is_huge_beside_the_spread_costs_no_digits(size):
    """Sums of squares around zero would lose 16 digits here, and a sorted column all of a first block's."""
    rng = np.random.default_rng(3)
    rows = np.column_stack(
        [1e8 + rng.normal(size=size), np.sort(1e6 + np.arange(size) * 1e3), rng.normal(size=size)]
    )
    mean, around = exact_moments(rows)
    found = moments.of_clients(rows, [size])
    np.testing.assert_allclose(found.mean[0], mean, rtol=4 * np.finfo(float).eps, atol=1e-15)
    size_of = np.sqrt(np.outer(np.diag(around), np.diag(around)))
    assert np.all(np.abs(found.around[0] - around) <= 1e-13 * size_of)
    fold_ids = rng.permutation(np.arange(size) % 3)
    folds = moments.of_folds(rows, [size], fold_ids, 3)
    mean, around = exact_moments(rows[fold_ids != 1])
    np.testing.assert_allclose(folds.mean[0, 1], mean, rtol=4 * np.finfo(float).eps, atol=1e-15)
    assert np.all(np.abs(folds.around[0, 1] - around) <= 1e-13 * size_of)


def test_a_fold_with_an_outlier_leaves_the_others_their_digits():
    rows = np.array([[1.0, 2.0], [1.5, 2.5], [1e12, -1e12], [0.5, 2.25]])
    found = moments.of_folds(rows, [4], [0, 0, 1, 2], 3)
    np.testing.assert_allclose(found.around[0, 1], np.cov(rows[[0, 1, 3]].T, bias=True), rtol=1e-14)


def test_all_rows_from_the_folds_training_rows():
    """Whatever the folds' sizes, and far from 0."""
    rng, sizes = np.random.default_rng(3), [40, 7, 300]
    rows = np.concatenate(parts(sizes, far=1e5))
    fold_ids = rng.integers(0, 4, sum(sizes))
    found = moments.of_all_folds(moments.of_folds(rows, sizes, fold_ids, 4))
    expected = moments.of_clients(rows, sizes)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-14)
    np.testing.assert_allclose(found.around, expected.around, rtol=1e-9, atol=1e-9)


def test_terms_that_round_the_same_way_stay_within_the_allowance():
    """The allowance that bounds are widened by is for up to ten million rows; rounding that gathers shows
    already here. Deviations of +-0.1 have squares that all round alike."""
    count = 1 << 21
    rows = np.tile([[0.1, 3.3], [-0.1, -3.3]], (count // 2, 1))
    around = moments.of_clients(rows, [count]).around[0]
    exact = [[float(Fraction(a) * Fraction(b)) for b in (0.1, 3.3)] for a in (0.1, 3.3)]
    assert np.max(np.abs(around / exact - 1)) <= 40 * np.finfo(float).eps
    assert math.isclose(around[0, 1], around[1, 0], rel_tol=0)
