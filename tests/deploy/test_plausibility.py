"""Consistency of one site's replies, at the edge of every rule: by hand, and from rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from bidro.ambiguity import NoAmbiguity
from bidro.core.errors import BidroError
from bidro.core.sets import capped_sizes
from bidro.data.standardise import ColumnMoments as Pooled
from bidro.data.standardise import Standard
from bidro.data.tables import Column, Schema
from bidro.deploy.agreement.agreement import Agreement, Unit
from bidro.deploy.server.plausibility import (
    Consistency,
    Cuts,
    Reported,
    ReportedRisks,
    _require_ends,
    lower_end,
    others_lost,
    require_assessment,
    require_bounds,
    require_convex,
    require_prepared,
    require_semidefinite,
    rounding_terms,
)
from bidro.federated.engines.remote import RoundReply
from bidro.federated.engines.rounds import FoldSpec
from bidro.fit.client_side import prepared
from bidro.fit.questions import FEW, Assess, Assessment, HoldoutBounds, HoldoutQuery
from bidro.losses import Absolute, Hinge, Huber, Logistic, Softmax, Squared, losses_of
from bidro.losses.base import Cone
from bidro.risk.moments import Moments, of_clients, of_folds
from bidro.risk.oracle import Lift, QuadraticRisks
from bidro.risk.transport import Transport
from bidro.selection.fold_queries import MomentsReply, ScoresReply
from bidro.selection.personal import Reply as PersonalReply
from bidro.solvers.bundle.one_shot import Reply as Whole

SCHEMA = Schema("site", "y", None, (Column("u"), Column("w", ("a", "b", "c")), Column("v")))
UNITS = dict.fromkeys(("u", "v", "y"), Unit(0.0, 1.0))
OFFERED = np.array([[1.0, 1.0, 0.0, 0.0, 0.0]])
NAMES = ("u", "w=b", "w=c", "v", "y")
NONE = np.zeros(0)


def rows_of(rng, count, far=0.0, size=1.0):
    """Columns u, w=b, w=c, v, y."""
    level = rng.integers(3, size=count)
    u, v = rng.normal(size=count), far + size * rng.normal(size=count)
    return np.column_stack([u, level == 1, level == 2, v, u - 2 * (level == 1) + rng.normal(size=count)])


def reported_of(rows):
    """(what a client with these rows has reported, the rows in the units of training)."""
    first = prepared(rows, [len(rows)], [0], OFFERED)
    standard = Standard.of(Pooled.pooled(first.rows, first.mean, first.deviation), False)
    mean, deviation = np.asarray(first.mean)[0], np.asarray(first.deviation)[0]
    return Reported(NAMES, standard, len(rows), 20, mean, deviation), standard.rows(rows[:, :-1], rows[:, -1])


ROWS = rows_of(np.random.default_rng(11), 40)


def first(rows=ROWS):
    found = prepared(rows, [len(rows)], [0], OFFERED)
    return type(found)(*(np.asarray(part)[0] for part in found))


# ---- counts and sizes


def test_counts_at_their_edges():
    one = first()

    def reported(behind=40, **changes):
        changed = one._replace(**{k: np.asarray(v) for k, v in changes.items()})
        require_prepared(NAMES, False, changed, behind)

    reported()
    reported(behind=0)
    reported(holdout=5.0, holdout_people=5.0)
    for words, changes in (
        ("no count", {"holdout": 2.0**53}),
        ("no count", {"rows": 39.5}),
        ("trains on no rows", {"rows": 0.0, "people": 0.0}),
        ("trains on no rows", {"people": 0.0}),
        ("people among", {"people": 41.0}),
        ("people among", {"holdout": 5.0, "holdout_people": 0.0}),
        ("people among", {"holdout": 0.0, "holdout_people": 1.0}),
        ("names none", {"people": 39.0}),
        ("names none", {"holdout": 5.0, "holdout_people": 4.0}),
        ("means nothing", {"folds": 0.5 * np.ones(5)}),
        ("means nothing", {"folds": np.zeros(5)}),
        ("41 rows behind", {"behind": 41}),
        ("above 1e", {"mean": one.mean * [1, 1, 1, 1e61, 1]}),
        ("above 1e", {"deviation": one.deviation + 1.1e60}),
        ("'deviation', which is below 0", {"deviation": one.deviation * [-1, 1, 1, 1, 1]}),
    ):
        with pytest.raises(BidroError, match=words):
            reported(**changes)
    people = one._replace(people=np.asarray(39.0))
    require_prepared(NAMES, True, people, 40)
    few = first(ROWS[:3])
    require_prepared(NAMES, False, few._replace(folds=np.array([1.0, 1, 1, 0, 0])), 3)
    with pytest.raises(BidroError, match="more folds than its 3"):
        require_prepared(NAMES, False, few._replace(folds=np.array([1.0, 1, 1, 1, 0])), 3)


def test_columns_beside_which_others_are_lost():
    """From 2^26 times the median of the others on; of a client alone nothing is lost."""
    size = np.array([[1.0, 3.0], [2.0, 5.0], [3.0, 7.0]])
    agreed = Standard(np.zeros(1), np.ones(1), 0.0, 4.0)

    def lost(mean, deviation=0.0, count=3):
        told = SimpleNamespace(mean=mean[:count], deviation=np.full((count, 2), deviation))
        return others_lost(("a", "b", "c")[:count], ("u", "v"), told, agreed)

    for factor, names in ((0.999, []), (1.001, ["b"])):
        changed = size.copy()
        changed[1, 1] = -factor * 2**26 * 5.0  # the median of 3 and 7
        assert list(lost(changed)) == names
    # As large by how it varies.
    told = SimpleNamespace(mean=size, deviation=np.array([[0, 0], [0, 2.01**26], [0, 0.0]]))
    found = others_lost(("a", "b", "c"), ("u", "v"), told, agreed)
    assert list(found) == []
    told.deviation[1, 1] = 1.01 * 2**26 * 5.0
    assert "'v'" in others_lost(("a", "b", "c"), ("u", "v"), told, agreed)["b"]
    assert lost(np.array([[1e300, 1.0]]), count=1) == {}
    assert lost(np.array([[1.0, 0.0], [1.0, 1e300]]), count=2) == {}  # the other has none
    # Of two, the agreed unit of the column, 4, counts as well.
    assert lost(np.array([[1.0, 1e-12], [1.0, 0.999 * 2**28]]), count=2) == {}
    assert list(lost(np.array([[1.0, 1e-12], [1.0, 1.001 * 2**28]]), count=2)) == ["b"]


def test_who_hides_the_others_is_named_and_nobody_else():
    rng = np.random.default_rng(4)
    first = prepared(rows_of(rng, 90), [30, 30, 30], [0] * 3, np.tile(OFFERED, (3, 1)))
    agreed = Agreement.of(SCHEMA, UNITS, release="moments").standard
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


# ---- second moments


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40, 3000])
@pytest.mark.parametrize(("far", "size"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e-8), (1e6, 1e-3), (3.7, 0.0)])
def test_moments_of_rows_are_always_possible(count, far, size):
    rng = np.random.default_rng(count)
    for rows in (rows_of(rng, count, far, size), np.tile(rows_of(rng, 1, far, size), (count, 1))):
        own, samples = reported_of(rows)
        whole = of_clients(samples, [count])
        own.require_moments(Squared(True), Moments(whole.mean[0], whole.around[0]))
        assert np.all(np.sqrt(np.mean(samples**2, axis=0)) <= own.sizes(None) * (1 + 1e-9))
        if count >= 5:
            found = of_folds(samples, [count], rng.permutation(np.arange(count) % 3), 3)
            reply = MomentsReply(found.mean[0], found.around[0], found.rows[0])
            own.require_fold_moments(Squared(True), FoldSpec(3, 0), reply)


def test_moments_that_no_rows_have_are_named():
    rng = np.random.default_rng(0)
    own, samples = reported_of(rows_of(rng, 60))
    mean, around = (part[0] for part in of_clients(samples, [60]))

    def refused(words, mean=mean, around=around):
        with pytest.raises(BidroError, match=words):
            own.require_moments(Squared(True), Moments(mean, around))

    def with_pair(i, j, value):
        changed = around.copy()
        changed[i, j] = changed[j, i] = value
        return changed

    refused("other than when", mean=mean + 1e-6)
    refused("other than when", around=with_pair(0, 0, 1.001 * around[0, 0]))
    refused("not symmetric", around=around + np.triu(0.01 * np.ones((5, 5)), 1))
    refused("larger than the deviations", around=with_pair(0, 3, 1.01 * np.sqrt(around[0, 0] * around[3, 3])))
    # The correlation matrix of three columns with -0.6 each has the eigenvalue 1 - 2 * 0.6.
    indefinite = around.copy()
    for i, j in ((0, 3), (0, 4), (3, 4)):
        indefinite[i, j] = indefinite[j, i] = -0.6 * np.sqrt(around[i, i] * around[j, j])
    refused("not positive semidefinite", around=indefinite)


def test_folds_that_do_not_add_up_are_named():
    own, samples = reported_of(rows_of(np.random.default_rng(2), 60))
    found = of_folds(samples, [60], np.arange(60) % 3, 3)
    honest, spec = MomentsReply(found.mean[0], found.around[0], found.rows[0]), FoldSpec(3, 0)
    own.require_fold_moments(Squared(True), spec, honest)
    for fold in range(3):
        # What this fold leaves out would vary by less than nothing, or all folds together have another mean.
        mean, around = honest.mean.copy(), honest.around.copy()
        mean[fold, 0] += 0.3
        around[fold, 0, 3] += 0.1
        with pytest.raises(BidroError, match=r"larger than|semidefinite|mean or deviation of 'u'"):
            own.require_fold_moments(Squared(True), spec, honest._replace(mean=mean))
        with pytest.raises(BidroError, match="not symmetric"):
            own.require_fold_moments(Squared(True), spec, honest._replace(around=around))
    for wrong in ([20.0, 20.0, 21.0], [60.0, 0.0, 0.0], [19.5, 20.5, 20.0], [21.0, 19.0, 20.0]):
        with pytest.raises(BidroError, match="folds"):
            own.require_left_out(spec, np.array(wrong))


def test_second_moments_at_their_edges():
    """Without rounding: symmetric up to 1e-9, no correlation above 1, no eigenvalue below -1e-6."""
    none = np.zeros(2)
    scale = np.array([2.0, 5.0])

    def moments(correlation, other=None, slack=none):
        matrix = np.array([[1.0, correlation], [correlation if other is None else other, 1.0]])
        require_semidefinite(matrix * scale[:, None] * scale, slack)

    moments(0.5, 0.5 + 0.9e-9)
    moments(1 + 0.9e-9)
    moments(-1.0)
    for words, how in (
        ("not symmetric", {"correlation": 0.5, "other": 0.5 + 1.1e-9}),
        ("larger than the deviations", {"correlation": 1 + 1.1e-9}),
    ):
        with pytest.raises(BidroError, match=words):
            moments(**how)
    # Rounding of a share s of each deviation: twice s of both, to first order.
    loose = 1e-4 * scale
    moments(1 + 3.9e-4, slack=loose)
    with pytest.raises(BidroError, match="larger than the deviations"):
        moments(1 + 4.1e-4, slack=loose)
    with pytest.raises(BidroError, match="not symmetric"):
        moments(0.5, 0.5 + 4.1e-4, slack=loose)
    # Three columns that vary against each other: eigenvalues 1 + 2 c and 1 - c.
    for c, refused in ((-0.5 - 0.4e-6, False), (-0.5 - 0.6e-6, True)):
        matrix = np.full((3, 3), c) + (1 - c) * np.eye(3)
        if refused:
            with pytest.raises(BidroError, match="not positive semidefinite"):
                require_semidefinite(matrix, np.zeros(3))
        else:
            require_semidefinite(matrix, np.zeros(3))
    with pytest.raises(BidroError, match="larger than the deviations"):
        require_semidefinite(np.diag([1.0, -1e-9]), none)


def test_columns_that_rounding_hides_are_not_held_against_others():
    """Of two columns that vary by less than a thousand times their rounding nothing is concluded."""
    matrix = np.full((3, 3), -0.6) + 1.6 * np.eye(3)
    require_semidefinite(matrix, np.full(3, 1.1e-3))
    with pytest.raises(BidroError, match="not positive semidefinite"):
        require_semidefinite(matrix, np.full(3, 0.9e-3))


def test_eigenvalues_may_be_below_0_by_what_rounding_makes_of_all_columns():
    """Of three columns, each off by a share of 1e-4: four times three times that, and a millionth."""
    room = 1e-6 + 12e-4
    for factor, refused in ((0.95, False), (1.05, True)):
        c = -(1 + factor * room) / 2
        matrix = np.full((3, 3), c) + (1 - c) * np.eye(3)
        if refused:
            with pytest.raises(BidroError, match="not positive semidefinite"):
                require_semidefinite(matrix, np.full(3, 1e-4))
        else:
            require_semidefinite(matrix, np.full(3, 1e-4))


def test_moments_are_those_of_the_first_reply():
    rows = rows_of(np.random.default_rng(2), 40)
    own, samples = reported_of(rows)
    whole = of_clients(samples, [40])
    mean, around = whole.mean[0], whole.around[0]
    loss, (centre, spread) = Squared(True), own.units
    sizes = np.abs(own.mean) + np.abs(centre) + own.deviation
    digits = 100 * 64 * 2.0**-52
    slack = (1e-9 * (own.deviation + np.abs(own.mean - centre)) + digits * sizes) / spread
    exact = np.hypot(own.mean - centre, own.deviation) / spread
    np.testing.assert_allclose(own.sizes(None) - exact, slack, rtol=1e-3)
    for j in (0, 3):
        for off, refused in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
            changed = mean + off * slack[j] * (np.arange(5) == j)
            if refused:
                with pytest.raises(BidroError, match=f"'{NAMES[j]}' other than when"):
                    own.require_moments(loss, Moments(changed, around))
            else:
                own.require_moments(loss, Moments(changed, around))
        deviation = np.sqrt(around[j, j])
        for off, refused in ((0.9e-6, False), (-0.9e-6, False), (1.2e-6, True), (-1.2e-6, True)):
            factor = 1 + off * (np.arange(5) == j)
            changed = around * factor[:, None] * factor
            assert abs(np.sqrt(changed[j, j]) - deviation) == pytest.approx(abs(off) * deviation, rel=1e-6)
            own.moments = None
            if refused:
                with pytest.raises(BidroError, match=f"'{NAMES[j]}' other than when"):
                    own.require_moments(loss, Moments(mean, changed))
            else:
                own.require_moments(loss, Moments(mean, changed))


def test_second_moments_reported_twice_are_the_same():
    """Up to a millionth of the columns' sizes; and no reply rests on more rows than there are, nor holds
    what no rows have."""
    own, samples = reported_of(ROWS)
    whole = of_clients(samples, [40])
    mean, around = whole.mean[0], whole.around[0]
    problem = SimpleNamespace(
        federation=SimpleNamespace(names=("east",)), eps=np.zeros(1), loss=Squared(True)
    )
    check = Consistency({"east": own})

    def reported(by=0.0, rows=40, size=1.0):
        changed = around.copy()
        changed[0, 3] += by
        changed[3, 0] += by
        check(RoundReply("east", problem, None, None, None, Whole(size * mean, changed), rows))

    reported()
    unit = np.prod(own.sizes(None)[[0, 3]])
    reported(0.9e-6 * unit)
    reported(0.0)
    with pytest.raises(BidroError, match="other second moments than before"):
        reported(1.1e-6 * unit)
    with pytest.raises(BidroError, match="41 rows behind a reply, and 40"):
        reported(rows=41)
    with pytest.raises(BidroError, match="which no rows have"):
        reported(size=1e200)


# ---- bounds on risks


def test_a_cut_above_a_value_is_named_whichever_came_first():
    """R(x) = x^2 over a client whose columns allow that; cuts are tangents."""
    sizes, transport = np.array([3.0, 0.0]), Transport.features_only(2, 2.0)

    def reported(*points, lie=None):
        risks = ReportedRisks(Squared(False), transport, False, sizes, 40)
        for k, x in enumerate(points):
            value, slope = x**2, 2 * x
            if lie is not None and k == lie[0]:
                value, slope = value + lie[1], slope + lie[2]
            at, none = np.array([x]), np.zeros(1)
            risks.add(None, at[None], none, np.array([value]), np.array([[slope]]), at**2 + 1e-12)

    reported(0.5, -0.3, 0.2, 0.01, 0.5)
    for k, slope in enumerate((-0.7, -0.7, 0.7)):
        with pytest.raises(BidroError, match=r"at most .* at least"):
            reported(0.5, 0.4, 0.3, lie=(k, 0.0, slope))
    with pytest.raises(BidroError, match=r"at least .* at most|by another"):
        reported(0.5, 0.4, lie=(0, 0.02, 0.0))


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


def test_upper_ends_and_eigenvalues_at_their_edges():
    np.testing.assert_allclose(lower_end(np.array([2.0]), np.array([-1.0])), 1.0 + 3e-6, rtol=1e-12)
    for share, refused in ((0.9e-6, False), (1.1e-6, True)):
        # Of two: the largest times a millionth times two.
        packed = np.array([[5.0, 0.0, -2 * share * 5.0]])
        if refused:
            with pytest.raises(BidroError, match="semidefinite"):
                require_convex(packed, 2)
        else:
            require_convex(packed, 2)


def test_a_mean_loss_lies_above_every_cut_and_below_the_risk_at_its_model():
    """Of R(x) = (x - 1)^2, reported at x = 2 without a radius: its value is 1 there, and its slope 2."""
    risks = ReportedRisks(Squared(False), Transport.features_only(2, 2.0), True, np.array([3.0, 3.0]), 40)
    none = np.zeros(1)
    risks.require_mean(None, np.array([2.0]), 1e9)  # nothing was reported
    risks.add(None, np.array([[2.0]]), none, np.array([1.0]), np.array([[2.0, 0.0]]), np.array([1.0]))
    for mean in (1.0, 1.0 + 0.9e-6):
        risks.require_mean(None, np.array([2.0]), mean)
    with pytest.raises(BidroError, match="a mean loss of"):
        risks.require_mean(None, np.array([2.0]), 1.0 + 1.1e-6)
    # The cut at 2 is 1 + 2 (x - 2): at 3 it is 3.
    risks.require_mean(None, np.array([3.0]), 3.0)
    risks.require_mean(None, np.array([3.0]), 1e3)  # no risk was reported there
    with pytest.raises(BidroError, match=r"at most 2\.99 by one reply, and at least 3 by another"):
        risks.require_mean(None, np.array([3.0]), 2.99)


def test_a_risk_does_not_fall_with_what_the_radius_moves():
    risks = ReportedRisks(Squared(False), Transport.features_only(2, 2.0), True, np.array([3.0, 3.0]), 40)
    at, none = np.array([[2.0]]), np.zeros(1)
    with pytest.raises(BidroError, match="falls where the radius"):
        risks.add(None, at, none, np.array([1.0]), np.array([[2.0, -0.1]]), np.array([1.0]))


def signs(attained=1.0, smoothing=0.0, exact=True, **more):
    parts = {"attained": attained, "smoothing": smoothing, **more}
    _require_ends({name: np.array([value]) for name, value in parts.items()}, True, exact)


def test_risks_have_signs_and_ends_that_agree():
    """Up to a millionth of their size, which rounding may make."""
    signs(0.0)
    signs(1.0, -0.9e-6)
    signs(-0.9e-6, 1.0)
    signs(-1.0, 1.0)
    ends = {"upper": 0.0, "multiplier": 0.0, "certified": 1.0}
    signs(0.0, **ends)
    signs(1.0, 0.5, **{**ends, "upper": 1.5 * (1 + 0.9e-6)})
    for words, how in (
        ("smoothing lowers", {"smoothing": -1.1e-6}),
        ("below 0", {"attained": -1.0, "smoothing": 0.999}),
        ("below 0", {"attained": -1.0, "smoothing": 1 - 2.1e-6}),
        ("multiplier below 0", {"attained": 0.0, **ends, "multiplier": -1e-9}),
        ("multiplier below 0", {"attained": 0.0, **ends, "certified": 0.5}),
        ("known exactly", {"attained": 0.0, **ends, "certified": 0.0}),
        ("known exactly", {"smoothing": 0.5, **ends, "upper": 1.5 * (1 + 1.1e-6)}),
        ("-1e-09, below 0", {"attained": 0.0, **ends, "upper": -1e-9}),
    ):
        with pytest.raises(BidroError, match=words):
            signs(**how)
    # What is not known exactly need not be proven, nor need its ends agree.
    signs(0.0, exact=False, **{**ends, "certified": 0.0})
    signs(0.0, exact=False, **{**ends, "upper": 9.0})


@pytest.mark.parametrize(
    "loss",
    [Squared(True), Huber(True, 0.7), Absolute(True), Logistic(True), Hinge(False), Softmax(3, True)],
    ids=lambda loss: type(loss).__name__,
)
def test_gradients_are_summed_from_terms_of_the_size_that_rounding_is_a_share_of(loss):
    """No rows have a larger one, also rows that lie all along the model, where the size is nearly reached."""
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
        terms = rounding_terms(loss, np.sqrt(np.mean(rows**2, axis=0)), x[None], np.zeros(1))
        for j in range(d):
            step = np.zeros(d)
            step[j] = 1e-6 * max(1.0, abs(x[j]))
            rise = np.mean(losses_of(loss, x + step, rows)) - np.mean(losses_of(loss, x - step, rows))
            assert abs(rise) / (2 * step[j]) <= terms[0, j] * (1 + 1e-4) + 1e-6


def test_every_kind_of_reply_is_checked():
    """Through the one door that replies come in by: each with something that no rows have."""
    own, samples = reported_of(ROWS)
    problem = SimpleNamespace(
        federation=SimpleNamespace(names=("west", "east")),
        eps=np.zeros(2),
        loss=Squared(True),
        ambiguity_set=NoAmbiguity(),
    )
    check, fold_spec = Consistency({"east": own}), FoldSpec(2, 0)
    folds = of_folds(samples, [40], np.arange(40) % 2, 2)
    honest = MomentsReply(folds.mean[0], folds.around[0], folds.rows[0])
    check(RoundReply("east", problem, fold_spec, None, None, honest, 40))
    whole = of_clients(samples, [40])
    np.testing.assert_allclose(own.moments.mean, whole.mean[0], atol=1e-9)
    np.testing.assert_allclose(own.moments.around, whole.around[0], atol=1e-9)
    two = np.array([1.0, 1.0])
    scores, personal = ScoresReply(np.ones((2, 1)), np.array([20.0, 20.0])), PersonalReply(two, two, two)
    for right in (scores, personal):
        check(RoundReply("east", problem, fold_spec, None, None, right, 40))
    for reply, words in (
        (honest._replace(around=-honest.around), "reports second moments"),
        (scores._replace(loss=-scores.loss), "below 0"),
        (scores._replace(rows=np.array([19.0, 21.0])), "other numbers of rows"),
        (personal._replace(left_out=-two), "below 0"),
    ):
        with pytest.raises(BidroError, match=words):
            check(RoundReply("east", problem, fold_spec, None, None, reply, 40))


# ---- losses


X = np.array([0.3, -0.2, 0.1, 0.5, 0.2])
OWN, SAMPLES = reported_of(ROWS)
LOSS = float(losses_of(Squared(True), X, SAMPLES).mean())
PROBLEM = SimpleNamespace(loss=Squared(True), transport=Transport.features_only(5, 2.0))
PERSONAL = np.array([0.0, 0.1, 1.0])
STILL = Assessment(LOSS, 0.1, LOSS, NONE, np.zeros((0, 1)), NONE, NONE, np.zeros(4), np.zeros(4))


def assessed(radii=NONE, freedom=NONE, behind=40, own=OWN, **parts):
    message = Assess(X, radii, np.zeros((0, 0)), np.zeros(()), freedom, NONE, NONE)
    require_assessment(own, PROBLEM, message, STILL._replace(**parts), behind)


def test_assessments_that_agree():
    assessed()
    assessed(behind=0)
    assessed(personal_loss=LOSS * (1 + 0.9e-6))
    assessed(freedom=PERSONAL, personal_loss=0.2 * LOSS)
    assessed(personal_loss=0.0, loss=0.0, se=0.0)
    # Risks rise with the radius, in whatever order these come, from the mean loss on.
    radii = np.array([0.2, 0.1])
    assessed(radii=radii, robust=np.array([3.0, 2.0]) * LOSS)
    assessed(radii=radii, robust=np.array([1.0, 1.0]) * LOSS * (1 - 0.4e-6))
    for robust in ([2.0, 3.0], [2.0, 0.999], [1 - 3e-6, 1 - 3e-6]):
        with pytest.raises(BidroError, match="in a larger one"):
            assessed(radii=radii, robust=np.array(robust) * LOSS)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("41 rows behind", {"behind": 41}),
        ("'loss', which is below 0", {"loss": -1e-9}),
        ("'se', which is below 0", {"se": -1e-9}),
        ("'personal_loss', which is below 0", {"personal_loss": -1e-9, "freedom": PERSONAL}),
        ("'personal_loss' above", {"personal_loss": 1e131, "freedom": PERSONAL}),
        ("which is the shared one", {"personal_loss": LOSS * (1 + 1.1e-6)}),
        ("which is the shared one", {"personal_loss": LOSS * (1 - 1.1e-6)}),
        ("'typical', which is below 0", {"typical": np.array([0, 0, -1e-9, 0])}),
        ("'predicted', which is below 0", {"predicted": np.array([-1e-9, 0.0])}),
        ("'distance', which is below 0", {"distance": np.array([-1e-9])}),
    ],
)
def test_assessments_that_contradict_themselves(words, parts):
    with pytest.raises(BidroError, match=words):
        assessed(**parts)


def test_the_mean_loss_is_what_second_moments_make_it():
    own, samples = reported_of(ROWS)
    whole = of_clients(samples, [40])
    own.require_moments(Squared(True), Moments(whole.mean[0], whole.around[0]))
    sizes = own.sizes(None)
    slack = 1e-6 * LOSS + 2e-9 * (np.abs(X) @ np.append(sizes[:-1], 1.0) + sizes[-1]) ** 2
    for off, refused in ((0.9, False), (-0.9, False), (1.1, True), (-1.1, True)):
        loss = LOSS + off * slack
        if refused:
            with pytest.raises(BidroError, match="where its second moments make it"):
                assessed(own=own, loss=loss, personal_loss=loss)
        else:
            assessed(own=own, loss=loss, personal_loss=loss)


def bounds(behind=20, freedom=NONE, **parts):
    """Of a loss that counts as at most 8, and a declared largest of 9."""
    means, of = np.array([1.5, 0, 0, 0, 0]), SimpleNamespace(loss=Squared(True), x=X, seen=8.0, largest=9.0)
    reply = HoldoutBounds(1.5, 0.1, 1.5, NONE, NONE, np.full(2, 3.0), NONE, NONE, NONE, NONE, means)
    message = HoldoutQuery(X, np.array([0.1, 0.05]), np.asarray(8.0), NONE, freedom, NONE, NONE)
    require_bounds(OWN, of, message, reply._replace(**parts), behind)


def test_bounds_that_agree():
    bounds()
    bounds(clipped=np.full(2, 8.0 * (1 + 0.9e-6)))
    bounds(clipped=np.full(2, 1.5 * (1 - 0.9e-6)))
    bounds(held_out=np.full(2, 8.9), means=np.array([1.5, 1.5, 0, 0, 0]))
    bounds(mistakes=np.full(2, 0.5), means=np.array([1.5, 0, 0.25, 0, 0]))
    bounds(freedom=PERSONAL, personal_loss=0.5)
    bounds(rows=np.array([FEW]))
    bounds(freedom=PERSONAL, rows=np.array([0.5, 0.75]))


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("21 rows behind", {"behind": 21}),
        ("'loss', which is below 0", {"loss": -1e-9}),
        ("'se', which is below 0", {"se": -1e-9}),
        ("less than 0 from their prediction", {"rows": np.array([-0.5])}),
        ("which is the shared one", {"rows": np.array([0.5, 0.75])}),
        ("'means', which is below 0", {"means": np.array([-1e-9, 0, 0, 0, 0])}),
        ("'loss' above", {"loss": 1e131}),
        ("which is the shared one", {"personal_loss": 1.5 * (1 + 1.1e-6)}),
        ("counts as more than 8", {"clipped": np.full(2, 8.0 * (1 + 1.1e-6))}),
        ("counts as more than 9", {"held_out": np.full(2, 9.1)}),
        ("counts as more than 1", {"mistakes": np.full(2, 1.1)}),
        ("a bound on it of 1.4", {"clipped": np.array([3.0, 1.4])}),
        ("a bound on it of 0.2", {"mistakes": np.full(2, 0.2), "means": np.array([1.5, 0, 0.25, 0, 0])}),
    ],
)
def test_bounds_that_contradict_themselves(words, parts):
    with pytest.raises(BidroError, match=words):
        bounds(**parts)


# ---- what a consistent lie may change


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
