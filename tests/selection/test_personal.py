"""Each client's personal model: the minimiser of its loss with a pull back to the shared model."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from bidro.data.splines import Basis, Pair
from bidro.federated.algorithm import HostData
from bidro.losses import Absolute, Huber, Logistic, Pinball, SmoothedHinge, Softmax, Squared, losses_of
from bidro.risk.moments import of_clients, of_folds
from bidro.selection.components import common_change, moved
from bidro.selection.personal import (
    SCALES,
    Broadcast,
    ExpansionsBroadcast,
    PersonalCorrections,
    PersonalExpansions,
    expansion_of_squares,
    expansions,
    lifted,
    losses_of_squares,
    personal_models,
    sums_of_squares,
    training_moments,
)

# Of three slopes and the offset.
FREEDOMS = (np.zeros(4), np.array([0, 0, 0, 0.25]), np.array([0.1, 0.0, 0.02, 0.5]), np.full(4, 0.3))
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


def by_scipy(loss, rows, x, freedom):
    """The same problem, written down plainly."""
    free = np.flatnonzero(freedom)
    K, q = loss.scores, len(freedom)
    if not len(free):
        return x

    def own(change):
        parts = np.zeros((K, q))
        parts[:, free] = change.reshape(K, -1)
        return x + lifted(loss, rows.shape[1], parts)

    def objective(change):
        pull = change.reshape(K, -1) ** 2 / freedom[free]
        return losses_of(loss, own(change), rows).sum() + pull.sum() / 2

    return own(minimize(objective, np.zeros(K * len(free)), method="BFGS", options={"gtol": 1e-9}).x)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("freedom", FREEDOMS, ids=["none", "offset", "some", "all"])
def test_personal_models_are_the_minimisers(loss, freedom):
    samples, sizes, x = clients(loss)
    found = personal_models(loss, samples, sizes, x, freedom)
    for own, rows in zip(found, np.split(samples, np.cumsum(sizes)[:-1]), strict=True):
        assert own == pytest.approx(by_scipy(loss, rows, x, freedom), abs=2e-5)


@pytest.mark.parametrize("loss", [Squared(True), Logistic(True)], ids=["squared", "logistic"])
@pytest.mark.parametrize("sizes", [(5, 6), (5, 9), (1,)], ids=str)
def test_fewer_rows_than_columns(loss, sizes):
    samples, sizes, x = clients(loss, sizes, k=8)
    freedom = np.linspace(0.1, 0.9, 9)
    found = personal_models(loss, samples, sizes, x, freedom)
    for own, rows in zip(found, np.split(samples, np.cumsum(sizes)[:-1]), strict=True):
        assert own == pytest.approx(by_scipy(loss, rows, x, freedom), abs=2e-5)


def test_a_client_keeps_a_share_of_its_change():
    samples, sizes, x = clients(Squared(True))
    whole = personal_models(Squared(True), samples, sizes, x, FREEDOMS[2])
    half = personal_models(Squared(True), samples, sizes, x, FREEDOMS[2], [1.0, 0.5, 0.0, 0.5])
    np.testing.assert_allclose(half - x, np.array([1.0, 0.5, 0.0, 0.5])[:, None] * (whole - x))


@pytest.mark.parametrize("loss", [Squared, Logistic])
def test_of_curves_all_segments_become_as_much_steeper(loss):
    """With slopes of the features, whatever the curves: the changes are those around the same scores."""
    curved = loss(True, basis=Basis(((-0.5, 0.4), (), (0.0,))))
    samples, sizes, _ = clients(loss(True))
    slopes = np.array([1.0, -0.5, 0.2, 0.7, 0.3, -1.0, 0.4])
    found = personal_models(curved, samples, sizes, slopes, FREEDOMS[2])
    change = found - slopes
    np.testing.assert_allclose(change[:, [0, 0, 4, 6]], change[:, [1, 2, 5, 6]], atol=1e-12)
    for own, rows in zip(found, np.split(samples, np.cumsum(sizes)[:-1]), strict=True):
        assert own == pytest.approx(by_scipy(curved, rows, slopes, FREEDOMS[2]), abs=2e-5)


def test_without_an_intercept_only_slopes_are_corrected():
    loss, freedom = Logistic(False), np.array([0.5, 0.5, 0.1])
    samples, sizes, x = clients(loss)
    found = personal_models(loss, samples, sizes, x, freedom)
    assert found[0] == pytest.approx(by_scipy(loss, samples[:30], x, freedom), abs=2e-5)


@pytest.mark.parametrize("loss", [Absolute(True), Pinball(True, 0.8)], ids=["absolute", "pinball"])
def test_losses_with_kinks_come_close(loss):
    """Kinks are smoothed: what is lost is small beside what is gained."""
    samples, sizes, x = clients(loss, sizes=(60, 80))
    found = personal_models(loss, samples, sizes, x, np.full(4, 100.0))
    for own, rows in zip(found, np.split(samples, [60]), strict=True):
        best = minimize(lambda v, rows=rows: losses_of(loss, v, rows).mean(), own, method="Nelder-Mead")
        best = minimize(
            lambda v, rows=rows: losses_of(loss, v, rows).mean(), best.x, method="Nelder-Mead"
        ).fun
        shared = losses_of(loss, x, rows).mean()
        assert losses_of(loss, own, rows).mean() < best + 0.03 * (shared - best)


@pytest.mark.parametrize(
    "loss", [Squared(True), Logistic(True), Huber(True)], ids=lambda loss: type(loss).__name__
)
def test_rows_are_judged_by_models_that_never_saw_them(loss):
    samples, sizes, x = clients(loss, sizes=(24, 30), seed=3)
    folds, fold_ids = 3, np.arange(54) % 3
    models, freedom = np.stack([x, 0.5 * x, -x]), np.outer([0.1, 0.2, 0.05], [1.0, 0.5, 0.2, 2.0])
    reply = PersonalCorrections().client_batch_numpy(
        Broadcast(models, freedom), HostData(loss, samples, sizes, fold_ids, folds)
    )
    for i, (start, size) in enumerate(zip([0, 24], sizes, strict=True)):
        rows, fold = samples[start : start + size], fold_ids[start : start + size]
        for p in (0, 2, 4, 6):
            total, inside, above = 0.0, [], []
            for f in range(folds):
                own = by_scipy(loss, rows[fold != f], models[f], SCALES[p] * freedom[f])
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
    told = Broadcast(models, np.tile([0.3, 0.1, 0.0, 1.0], (4, 1)))
    algorithm = PersonalCorrections()
    moments = of_folds(samples, sizes, fold_ids, 4)
    from_moments = losses_of_squares(loss, [moments], models, *told)
    rows = HostData(loss, samples, sizes, fold_ids, 4)
    by_rows = algorithm.client_batch_numpy(told, rows)
    assert from_moments.left_out == pytest.approx(by_rows.left_out)
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


def test_the_first_scale_is_the_shared_model_and_others_are_around_what_clients_have_in_common():
    loss = Squared(True)
    samples, sizes, x = clients(loss, seed=6)
    fold_ids = np.arange(len(samples)) % 3
    models, common = np.tile(x, (3, 1)), np.tile(x + 0.5, (3, 1))
    free = np.tile(FREEDOMS[2], (3, 1))
    parts = list(training_moments(loss, samples, sizes, fold_ids, 3))
    found = losses_of_squares(loss, parts, models, common, free)
    alone = losses_of_squares(loss, parts, models, models, free)
    np.testing.assert_allclose(found.left_out[:, 0], alone.left_out[:, 0])
    around = losses_of_squares(loss, parts, common, common, free)
    np.testing.assert_allclose(found.left_out[:, 1:], around.left_out[:, 1:])
    # A client that keeps half of its change is half-way between the shared model and its own.
    whole, half = (
        personal_models(loss, samples, sizes, x, FREEDOMS[2], share, common[0]) for share in (1.0, 0.5)
    )
    np.testing.assert_allclose(whole, personal_models(loss, samples, sizes, common[0], FREEDOMS[2]))
    np.testing.assert_allclose(half, (x + whole) / 2)


def test_what_clients_have_in_common_minimises_with_their_own_changes():
    """All of it at once, as one least-squares problem: curves, a pair, and what smooths them."""
    pair = Pair((0, 2), ((-1.0, 0.0, 1.0), (-0.5, 0.5)))
    basis = Basis(((0.1,), (), (-0.3, 0.5)), pairs=(pair,))
    loss = Squared(True, basis=basis, smoothing=0.03)
    samples, sizes, _ = clients(Squared(True), seed=3)
    x, freedom = np.random.default_rng(1).normal(size=loss.dimension(4)), np.array([0.2, 0.0, 0.05, 0.4])
    moments = of_clients(samples, sizes, loss)
    each = [  # in two parts
        (type(moments)(moments.mean[some], moments.around[some]), sizes[some].astype(float))
        for some in (slice(0, 3), slice(3, 4))
    ]
    told, sums = sums_of_squares(loss, each, x)
    free = np.ones(len(x), bool)
    found = common_change(told, sums, freedom, free)
    design = np.column_stack([basis.expand(samples[:, :-1]), np.ones(len(samples))])
    onto, d = lifted(loss, 4, np.eye(4)[:, None]).T, len(x)
    parts = [design]
    owner = np.repeat(np.arange(4), sizes)
    parts += [(design @ onto) * (owner == i)[:, None] for i in range(4)]
    columns = [*range(d)] + [d + 4 * i + j for i in range(4) for j in range(4) if freedom[j] > 0]
    whole = np.concatenate(parts, axis=1)[:, columns]
    residual = samples[:, -1] - design @ x
    held = np.zeros((len(columns), len(columns)))
    held[:d, :d] = len(samples) * loss.penalty
    held[d:, d:] = np.diag(np.tile(1 / freedom[freedom > 0], 4)) / 2
    right = whole.T @ residual
    right[:d] -= len(samples) * loss.penalty @ x
    both = np.linalg.solve(whole.T @ whole + held, right)
    np.testing.assert_allclose(found, both[:d], rtol=1e-5, atol=1e-6)
    # Around it the expansion is that from the rows.
    around = expansion_of_squares(loss, moments, sizes.astype(float), x + found)
    at = moved(told, sums, found)
    np.testing.assert_allclose(at.pull, around.pull, rtol=1e-6, atol=1e-6)
    assert at.squares.sum() == pytest.approx(around.squares.sum(), rel=1e-8)
    # Clients' own changes are those of the same problem.
    own = personal_models(loss, samples, sizes, x, freedom, 1.0, x + found)
    changes = np.zeros((4, 4))
    changes[:, freedom > 0] = both[d:].reshape(4, -1)
    np.testing.assert_allclose(own, x + both[:d] + changes @ onto.T, rtol=1e-5, atol=1e-5)
    # What must not change does not, and the rest is the best that is left.
    free[[0, 3]] = False
    some = common_change(told, sums, freedom, free)
    np.testing.assert_array_equal(some[[0, 3]], 0.0)
    left = [j for j in range(len(columns)) if j not in (0, 3)]
    best = np.linalg.solve((whole.T @ whole + held)[np.ix_(left, left)], right[left])
    np.testing.assert_allclose(some[free], best[: d - 2], rtol=1e-5, atol=1e-6)


def expanded(loss, samples, sizes, x, freedom):
    """By the round, over all rows and over those of two folds."""
    fold_ids = np.arange(len(samples)) % 2
    reply = PersonalExpansions().client_batch_numpy(
        ExpansionsBroadcast(np.tile(x, (3, 1)), np.tile(freedom, (3, 1)), np.tile(np.arange(4), (3, 1))),
        HostData(loss, samples, sizes, fold_ids, 2),
    )
    exact = isinstance(loss, Squared)
    return [expansions(reply, f, np.arange(4), exact) for f in range(3)], fold_ids


def test_expansions_of_squares_from_moments_and_rows_are_one():
    loss = Squared(True, basis=Basis(((0.1,), (), (-0.3, 0.5))))
    samples, sizes, _ = clients(Squared(True))
    x = np.random.default_rng(1).normal(size=7)
    (*_, whole), _ = expanded(loss, samples, sizes, x, np.zeros(4))
    known = expansion_of_squares(loss, of_clients(samples, sizes, loss), sizes.astype(float), x)
    for one, other in zip(whole, known, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", [Logistic(True), Huber(True)], ids=["logistic", "huber"])
def test_expansions_are_the_second_order_of_sums_of_losses(loss):
    """Around the most probable models: by differences of sums of losses."""
    samples, sizes, x = clients(loss)
    freedom = np.full(4, 0.2)
    found, fold_ids = expanded(loss, samples, sizes, x, freedom)
    rows = samples[: sizes[0]][fold_ids[: sizes[0]] != 1]
    change = by_scipy(loss, rows, x, freedom) - x
    step = 1e-4

    def total(u):
        return losses_of(loss, x + u, rows).sum()

    eye = step * np.eye(4)
    slope = np.array([(total(change + e) - total(change - e)) / (2 * step) for e in eye])
    told = found[1].at(np.array([0]))
    assert told.rows[0] == len(rows)
    # At the change itself the slope is that of the expansion.
    np.testing.assert_allclose(told.curvature[0] @ change - told.pull[0], slope, atol=0.02)
    if isinstance(loss, Logistic):
        bent = [
            [total(change + e + f) - total(change + e) - total(change + f) + total(change) for f in eye]
            for e in eye
        ]
        np.testing.assert_allclose(told.curvature[0], np.array(bent) / step**2, atol=0.01)
