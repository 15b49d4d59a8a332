"""What columns allow, held against rows: no honest number is ever outside, and few numbers that are not."""

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import capped_sizes
from bidro.data.standardise import Moments, Standard
from bidro.data.tables import Column, Schema
from bidro.deploy.agreement.agreement import Agreement, Unit
from bidro.deploy.server.plausibility import (
    Columns,
    Cuts,
    Reported,
    ReportedMoments,
    ReportedRisks,
    Values,
    others_lost,
    require_convex,
    require_prepared,
)
from bidro.federated.engines.rounds import FoldSpec
from bidro.fit.client_side import prepared
from bidro.losses import Absolute, Hinge, Huber, Logistic, Softmax, Squared, losses_of
from bidro.losses.base import Cone
from bidro.risk.moments import TrainingMoments, left_out_sums, of_clients, of_folds
from bidro.risk.oracle import Lift, QuadraticRisks
from bidro.risk.transport import Transport

SCHEMA = Schema("site", "y", None, (Column("u"), Column("w", ("a", "b", "c")), Column("v")))
UNITS = dict.fromkeys(("u", "v", "y"), Unit(0.0, 1.0))
OFFERED = np.array([[1.0, 1.0, 0.0, 0.0, 0.0]])
SUPPORT = {"u": (-50.0, 50.0), "v": (-1e9, 1e9), "y": (-200.0, 200.0)}


def rows_of(rng, count, far=0.0, size=1.0):
    """Columns u, w=b, w=c, v, y."""
    level = rng.integers(3, size=count)
    u, v = rng.normal(size=count), far + size * rng.normal(size=count)
    return np.column_stack([u, level == 1, level == 2, v, u - 2 * (level == 1) + rng.normal(size=count)])


def told_of(rows, support=SUPPORT):
    """(what a client with these rows has told, the rows in the units of training)."""
    values = Values(Agreement.of(SCHEMA, UNITS, support))
    first = prepared(rows, [len(rows)], [0], OFFERED)
    moments = Moments.pooled(first.rows, first.mean, first.deviation)
    standard = Standard.of(moments, False)
    told = ReportedMoments(
        values, standard, len(rows), np.asarray(first.mean)[0], np.asarray(first.deviation)[0]
    )
    return told, standard.rows(rows[:, :-1], rows[:, -1])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40, 3000])
@pytest.mark.parametrize(("far", "size"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e-8), (1e6, 1e-3), (3.7, 0.0)])
def test_moments_of_rows_are_always_possible(count, far, size):
    rng = np.random.default_rng(count)
    for rows in (rows_of(rng, count, far, size), np.tile(rows_of(rng, 1, far, size), (count, 1))):
        told, samples = told_of(rows)
        whole = of_clients(samples, [count])
        told.require_whole(whole.mean[0], whole.around[0])
        assert np.all(np.sqrt(np.mean(samples**2, axis=0)) <= told.size * (1 + 1e-9))
        if count >= 5:
            fold_ids = rng.permutation(np.arange(count) % 3)
            found = of_folds(samples, [count], fold_ids, 3)
            told.require_folds(found.mean[0], found.around[0], found.rows[0], left_out_sums(found))


def test_moments_that_no_rows_have_are_named():
    rng = np.random.default_rng(0)
    told, samples = told_of(rows_of(rng, 60))
    mean, around = (part[0] for part in of_clients(samples, [60]))

    def refused(words, mean=mean, around=around):
        with pytest.raises(BidroError, match=words):
            told.require_whole(mean, around)

    def with_pair(i, j, value):
        changed = around.copy()
        changed[i, j] = changed[j, i] = value
        return changed

    spread = np.append(told.standard.spread, 1.0)
    refused("other than it told", mean=mean + 1e-6)
    refused("other than it told", around=with_pair(0, 0, 1.001 * around[0, 0]))
    refused("not symmetric", around=around + np.triu(0.01 * np.ones((5, 5)), 1))
    refused("larger than the deviations", around=with_pair(0, 3, 1.01 * np.sqrt(around[0, 0] * around[3, 3])))
    # No row has two levels of one column: their covariance is -p q, and nothing else.
    refused("'w=b' and 'w=c'", around=with_pair(1, 2, around[1, 2] + 0.02 / (spread[1] * spread[2])))
    # The correlation matrix of three columns with -0.6 each has the eigenvalue 1 - 2 * 0.6.
    indefinite = around.copy()
    for i, j in ((0, 3), (0, 4), (3, 4)):
        indefinite[i, j] = indefinite[j, i] = -0.6 * np.sqrt(around[i, i] * around[j, j])
    refused("not positive semidefinite", around=indefinite)


def test_so_few_rows_have_no_such_rank():
    rng = np.random.default_rng(1)
    told, samples = told_of(rows_of(rng, 3))
    mean, around = (part[0] for part in of_clients(samples, [3]))
    changed = around + np.diag(np.array([0.0, 0.0, 0.0, 0.0, 0.0]))
    changed[0, 3] = changed[3, 0] = 0.2 * np.sqrt(around[0, 0] * around[3, 3])
    with pytest.raises(BidroError, match=r"there are too few|not positive semidefinite"):
        told.require_whole(mean, changed)


def test_folds_that_do_not_add_up_are_named():
    rng = np.random.default_rng(2)
    told, samples = told_of(rows_of(rng, 60))
    found = of_folds(samples, [60], np.arange(60) % 3, 3)
    mean = found.mean[0].copy()
    mean[0, 0] += (
        0.3  # what this fold leaves out would have to lie far away, and to vary by less than nothing
    )
    changed = TrainingMoments(mean[None], found.around, found.rows)
    with pytest.raises(BidroError):
        told.require_folds(mean, found.around[0], found.rows[0], left_out_sums(changed))
    own = Reported(told, 60, 60, 0, 0)
    own.require_left_out(FoldSpec(3, 0), np.array([20.0, 20.0, 20.0]))
    for wrong in ([20.0, 20.0, 21.0], [60.0, 0.0, 0.0], [19.5, 20.5, 20.0], [21.0, 19.0, 20.0]):
        with pytest.raises(BidroError, match="folds"):
            own.require_left_out(FoldSpec(3, 0), np.array(wrong))


def test_a_support_bounds_means_and_deviations():
    values = Values(Agreement.of(SCHEMA, UNITS, SUPPORT))
    mean, deviation = np.array([0.0, 0.5, 0.25, 0.0, 0.0]), np.array([1.0, 0.5, np.sqrt(3) / 4, 1.0, 1.0])
    values.require(mean, deviation, 40)
    for place, at, words in (
        (0, (51.0, 1.0), "'u' outside"),
        (0, (49.0, 11.0), "'u' larger than"),  # (50 - 49)(49 + 50) < 11^2
        (1, (0.5, 0.49), "two values"),
        (1, (0.51, np.sqrt(0.51 * 0.49)), "no such number of rows"),
        (0, (0.0, -1.0), "below 0"),
        (3, (1e61, 1.0), "above 1e"),
    ):
        m, s = mean.copy(), deviation.copy()
        m[place], s[place] = at
        with pytest.raises(BidroError, match=words):
            values.require(m, s, 40)
    with pytest.raises(BidroError, match="one row"):
        values.require(np.array([0.0, 1.0, 0.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0, 0.0]), 1)


def test_counts_that_are_none_are_named():
    rng = np.random.default_rng(3)
    first = prepared(rows_of(rng, 30), [30], [0], OFFERED)
    one = type(first)(*(np.asarray(part)[0] for part in first))
    values = Values(Agreement.of(SCHEMA, UNITS))
    require_prepared(values, one, 30)
    for change in (
        {"rows": 30.5},
        {"holdout": -1.0},
        {"people": 31.0},
        {"folds": 7 * OFFERED[0]},
        {"rows": np.inf},
    ):
        with pytest.raises(BidroError):
            require_prepared(values, one._replace(**{k: np.asarray(v) for k, v in change.items()}), 30)
    with pytest.raises(BidroError, match="31 rows behind"):
        require_prepared(values, one, 31)


def test_who_hides_the_others_is_named_and_nobody_else():
    rng = np.random.default_rng(4)
    first = prepared(rows_of(rng, 90), [30, 30, 30], [0] * 3, np.tile(OFFERED, (3, 1)))
    agreed = Agreement.of(SCHEMA, UNITS).standard
    assert others_lost(("a", "b", "c"), tuple("uwxvy"), first, agreed) == {}
    mean = np.asarray(first.mean).copy()
    mean[1, 3] = 1e150
    assert list(others_lost(("a", "b", "c"), tuple("uwxvy"), first._replace(mean=mean), agreed)) == ["b"]
    # A level that only one site has is no sign of anything.
    mean = np.asarray(first.mean) * (np.arange(5) != 3)
    still = first._replace(mean=mean, deviation=np.asarray(first.deviation) * (np.arange(5) != 3))
    still.mean[2, 3] = 1.0
    assert others_lost(("a", "b", "c"), tuple("uwxvy"), still, agreed) == {}
    # Nor does one of two sites that tells of next to nothing make the other's column a large one.
    nothing = type(first)(*(np.asarray(part)[:2] for part in first))
    nothing.mean[0, 4], nothing.deviation[0, 4] = 1e-12, 0.0
    assert others_lost(("a", "b"), tuple("uwxvy"), nothing, agreed) == {}
    nothing.mean[1, 4] = 1e150
    assert list(others_lost(("a", "b"), tuple("uwxvy"), nothing, agreed)) == ["b"]


LOSSES = [
    Squared(True),
    Huber(True, 0.7),
    Absolute(True),
    Logistic(True),
    Hinge(False),
    Softmax(3, True),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_no_rows_have_a_risk_or_a_slope_beyond_what_columns_allow(loss):
    """Also rows that lie all along the model, where the bound is nearly reached."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        count, k = int(rng.integers(1, 30)), 3
        rows = rng.normal(size=(count, k + 1)) * 10.0 ** rng.uniform(-2, 2, size=k + 1)
        d = loss.dimension(k + 1)
        x = rng.normal(size=d) * 10.0 ** rng.uniform(-1, 1)
        if loss.labels is not None:
            rows[:, -1] = rng.choice(loss.labels, count)
        elif rng.random() < 0.5:
            rows[:, :k] = np.sign(x[:k]) * np.abs(rows[:, :k])
            rows[:, -1] = -np.abs(rows[:, -1])
        columns = Columns(np.sqrt(np.mean(rows**2, axis=0)))
        allowed = columns.allowed(loss, x[None])
        assert np.mean(losses_of(loss, x, rows)) <= allowed.risk[0]
        for j in range(d):
            step = np.zeros(d)
            step[j] = 1e-6 * max(1.0, abs(x[j]))
            rise = np.mean(losses_of(loss, x + step, rows)) - np.mean(losses_of(loss, x - step, rows))
            assert abs(rise) / (2 * step[j]) <= allowed.slope[0, j] * (1 + 1e-4) + 1e-6


def test_a_cut_above_a_value_is_named_whichever_came_first():
    """R(x) = x^2 over a client whose columns allow that; cuts are tangents."""
    columns, transport = Columns(np.array([3.0, 0.0])), Transport.features_only(2, 2.0)

    def told(*points, lie=None):
        risks = ReportedRisks(Squared(False), transport, False, columns, 40)
        for k, x in enumerate(points):
            value, slope = x**2, 2 * x
            if lie is not None and k == lie[0]:
                value, slope = value + lie[1], slope + lie[2]
            at, none = np.array([x]), np.zeros(1)
            risks.add(None, at[None], none, none, np.array([value]), none, np.array([[slope]]), at**2 + 1e-12)

    told(0.5, -0.3, 0.2, 0.01, 0.5)
    for k, slope in enumerate((-0.7, -0.7, 0.7)):
        with pytest.raises(BidroError, match=r"at most .* at least"):
            told(0.5, 0.4, 0.3, lie=(k, 0.0, slope))
    with pytest.raises(BidroError, match=r"at least .* at most|by another"):
        told(0.5, 0.4, lie=(0, 0.02, 0.0))


def test_cuts_are_compared_only_where_the_radius_is_no_smaller():
    one = np.ones(1)
    low = Cuts(np.zeros((1, 1)), 0.0 * one, 1.0 * one, 1.0 * one, np.zeros((1, 1)), np.zeros((1, 1)))
    wide = low._replace(eps=1.0 * one, upper=2.0 * one, attained=2.0 * one)
    low.require_below(wide)
    wide.require_below(wide)
    with pytest.raises(BidroError):
        wide._replace(eps=0.0 * one).require_below(low)
    wide.require_below(low)  # a risk over a larger ball may well be above one over a smaller


def test_curvature_that_no_convex_risk_has_is_named():
    rng = np.random.default_rng(6)
    above = np.triu_indices(4)
    for size in (1e-12, 1.0, 1e12):
        root = rng.normal(size=(3, 4, 2))
        half = size * root @ np.swapaxes(root, 1, 2)  # of rank 2, so that two eigenvalues are 0
        require_convex(half[:, *above], 4)
        with pytest.raises(BidroError, match="semidefinite"):
            require_convex((half - 0.01 * size * np.eye(4))[:, *above], 4)
    require_convex(np.zeros((2, 10)), 4)
    require_convex(np.zeros((2, 0)), 4)


def test_shares_are_capped_and_the_rest_keeps_its_proportions():
    for sizes, most in (([1, 1, 8], 0.5), ([5, 3, 1, 1], 0.3), ([1, 2, 3], 1.0), ([7, 7, 7, 1], 0.26)):
        found, plain = capped_sizes(sizes, most) / np.sum(sizes), np.array(sizes) / np.sum(sizes)
        assert found.sum() == pytest.approx(1)
        assert found.max() <= most + 1e-12
        free = found < most - 1e-9
        if free.any():
            ratio = found[free] / plain[free]
            np.testing.assert_allclose(ratio, ratio[0])
            # Who is held would have more otherwise.
            assert np.all(plain[~free] * ratio[0] >= most - 1e-9)
    np.testing.assert_allclose(capped_sizes([1, 100], 0.5), 50.5)
    with pytest.raises(BidroError, match="at least 1 / 3"):
        capped_sizes([1, 2, 3], 0.3)


@pytest.mark.parametrize("lifted", [False, True])
def test_risks_to_second_order_have_the_derivatives_they_say(lifted):
    rng = np.random.default_rng(7)
    d = 3
    k = d + lifted
    root = rng.normal(size=(2, k, k))
    lift = Lift((Cone(rng.normal(size=(4, d)), rng.normal(size=4)),) if lifted else ())
    x = rng.normal(size=d)
    z = lift.lifted(x)
    gradient = np.abs(rng.normal(size=(2, k)))
    risks = QuadraticRisks(z, rng.normal(size=2), gradient, root @ np.swapaxes(root, 1, 2), lift)
    y, step = x + 0.1 * rng.normal(size=d), 1e-5
    np.testing.assert_allclose(risks.values(x[None])[0], risks.risks)

    def around(y):
        return lift.chained(risks.expand(y[None]), 0, y)

    found = around(y)
    for j in range(d):
        e = step * (np.arange(d) == j)
        slope = (risks.values((y + e)[None]) - risks.values((y - e)[None]))[0] / (2 * step)
        np.testing.assert_allclose(found.gradients[:, j], slope, rtol=1e-6, atol=1e-8)
        bend = (around(y + e).gradients - around(y - e).gradients) / (2 * step)
        second = np.stack([found.hessian(one)[j] for one in np.eye(2)])
        np.testing.assert_allclose(second, bend, rtol=1e-5, atol=1e-6)
