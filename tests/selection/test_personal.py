"""Each client's personal model: the minimiser of its loss with a pull back to the shared model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from bidro.federated.algorithm import HostData
from bidro.losses import Absolute, Huber, Logistic, Pinball, SmoothedHinge, Softmax, Squared, losses_of
from bidro.risk.moments import of_folds
from bidro.selection.personal import NONE, PersonalCorrections, Shrinkage, personal_models

SHRINKAGES = (NONE, Shrinkage(4.0, math.inf), Shrinkage(4.0, 16.0), Shrinkage(64.0, 2.0))
CURVATURE = {Squared: 2.0, Huber: 1.0, Logistic: 0.25, SmoothedHinge: 1.0, Softmax: 0.5}
LOSSES = (Squared(True), Huber(True), Logistic(True), SmoothedHinge(True), Softmax(3, True))


def clients(loss, sizes=(30, 7, 45, 12), k=3, seed=0):
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(sum(sizes), k))
    score = (
        theta @ rng.normal(size=k)
        + np.repeat(rng.normal(size=len(sizes)), sizes)
        + rng.normal(size=len(theta))
    )
    if loss.labels is None:
        target = score
    elif len(loss.labels) == 2:
        target = np.where(score > 0, 1.0, -1.0)
    else:
        target = np.digitize(score, [-1.0, 1.0]).astype(float)
    x = 0.3 * rng.normal(size=loss.dimension(k + 1))
    return np.column_stack([theta, target]), np.array(sizes), x


def offsets(loss, x):
    """Which coordinates of a model are intercepts."""
    place = np.arange(len(x))
    return np.isin(place, np.atleast_1d(loss.split(place)[1])) if loss.intercept else place < 0


def by_scipy(loss, rows, x, shrinkage):
    """The same problem, written down plainly."""
    weight = np.where(offsets(loss, x), shrinkage.offset, shrinkage.slopes)
    free = np.isfinite(weight)
    if not free.any():
        return x

    def objective(change):
        own = x.copy()
        own[free] += change
        return losses_of(loss, own, rows).sum() + CURVATURE[type(loss)] / 2 * np.sum(weight[free] * change**2)

    found = x.copy()
    found[free] += minimize(objective, np.zeros(free.sum()), method="BFGS", options={"gtol": 1e-9}).x
    return found


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("shrinkage", SHRINKAGES)
def test_personal_models_are_the_minimisers(loss, shrinkage):
    samples, sizes, x = clients(loss)
    found = personal_models(loss, samples, sizes, x, shrinkage)
    for own, rows in zip(found, np.split(samples, np.cumsum(sizes)[:-1]), strict=True):
        assert own == pytest.approx(by_scipy(loss, rows, x, shrinkage), abs=2e-5)


@pytest.mark.parametrize("loss", LOSSES[1:], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("sizes", [(5, 6), (5, 9), (1,)], ids=str)
def test_fewer_rows_than_columns(loss, sizes):
    """What slopes add lies in the span of the client's rows: of some clients of a batch, and of one row."""
    samples, sizes, x = clients(loss, sizes, k=8)
    shrinkage = Shrinkage(4.0, 2.0)
    found = personal_models(loss, samples, sizes, x, shrinkage)
    for own, rows in zip(found, np.split(samples, np.cumsum(sizes)[:-1]), strict=True):
        assert own == pytest.approx(by_scipy(loss, rows, x, shrinkage), abs=2e-5)


def test_without_an_intercept_only_slopes_are_corrected():
    loss = Logistic(False)
    samples, sizes, x = clients(loss)
    found = personal_models(loss, samples, sizes, x, Shrinkage(1.0, 8.0))
    assert found[0] == pytest.approx(by_scipy(loss, samples[:30], x, Shrinkage(1.0, 8.0)), abs=2e-5)


@pytest.mark.parametrize("loss", [Absolute(True), Pinball(True, 0.8)], ids=["absolute", "pinball"])
def test_losses_with_kinks_come_close(loss):
    """Kinks are smoothed: what is lost is small beside what is gained."""
    samples, sizes, x = clients(loss, sizes=(60, 80))
    found = personal_models(loss, samples, sizes, x, Shrinkage(0.01, 0.01))
    for own, rows in zip(found, np.split(samples, [60]), strict=True):
        best = minimize(lambda v, rows=rows: losses_of(loss, v, rows).mean(), own, method="Nelder-Mead")
        best = minimize(
            lambda v, rows=rows: losses_of(loss, v, rows).mean(), best.x, method="Nelder-Mead"
        ).fun
        shared = losses_of(loss, x, rows).mean()
        assert losses_of(loss, own, rows).mean() < best + 0.03 * (shared - best)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_rows_are_judged_by_models_that_never_saw_them(loss):
    samples, sizes, x = clients(loss, sizes=(24, 30), seed=3)
    folds, fold_ids = 3, np.arange(54) % 3
    models = np.stack([x, 0.5 * x, -x])
    reply = PersonalCorrections(SHRINKAGES).client_batch_numpy(
        broadcast=PersonalCorrections(SHRINKAGES).broadcast(models),
        rows=HostData(loss, samples, sizes, fold_ids, folds),
    )
    starts = [0, 24]
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows, fold = samples[start : start + size], fold_ids[start : start + size]
        for p, shrinkage in enumerate(SHRINKAGES):
            total, inside, above = 0.0, [], []
            for f in range(folds):
                own = by_scipy(loss, rows[fold != f], models[f], shrinkage)
                out = losses_of(loss, own, rows[fold == f])
                total += out.sum()
                above.append(np.mean(out - losses_of(loss, models[f], rows[fold == f])))
                inside.append(losses_of(loss, own, rows[fold != f]).mean())
            # Steps of a cross-validation end early.
            assert reply.left_out[i, p] == pytest.approx(total / size, rel=5e-3)
            # Of folds of equal sizes it is the usual standard error of a mean.
            assert reply.error[i, p] == pytest.approx(
                np.std(above, ddof=1) / np.sqrt(folds), rel=0.15, abs=1e-9
            )
            assert reply.trained[i, p] == pytest.approx(np.mean(inside), rel=5e-3)


def test_second_moments_tell_the_same():
    loss = Squared(True)
    samples, sizes, x = clients(loss, seed=5)
    fold_ids = np.arange(len(samples)) % 4
    models = np.stack([x + 0.1 * f for f in range(4)])
    algorithm = PersonalCorrections(SHRINKAGES)
    from_moments = algorithm.from_moments(loss, of_folds(samples, sizes, fold_ids, 4), models)
    rows = HostData(loss, samples, sizes, fold_ids, 4)
    assert from_moments.left_out == pytest.approx(
        algorithm.client_batch_numpy(algorithm.broadcast(models), rows).left_out
    )
    # The shared model itself is the one that nothing is changed of.
    shared = [
        np.mean(
            [
                losses_of(loss, models[f], samples[k : k + 1])[0]
                for k, f in zip(own, fold_ids[own], strict=True)
            ]
        )
        for own in np.split(np.arange(len(samples)), np.cumsum(sizes)[:-1])
    ]
    assert from_moments.left_out[:, 0] == pytest.approx(shared)
