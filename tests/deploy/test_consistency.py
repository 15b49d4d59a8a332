"""What one client's replies are held against, at the edge of every rule: by hand, without a network."""

from types import SimpleNamespace

import numpy as np
import pytest

from bidro.ambiguity import NoAmbiguity
from bidro.core.errors import BidroError
from bidro.data.standardise import Standard
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.server.plausibility import (
    Columns,
    Consistency,
    Reported,
    ReportedRisks,
    Values,
    _require_personal,
    _require_scores,
    _Risks,
    lower_end,
    others_lost,
    require_convex,
    require_prepared,
)
from bidro.federated.engines.rounds import FoldSpec
from bidro.fit.client_side import prepared
from bidro.losses import Logistic, Softmax, Squared, losses_of
from bidro.risk.inner import Exact
from bidro.risk.moments import Moments, of_clients, of_folds
from bidro.risk.transport import Transport
from bidro.selection.fold_queries import MomentsReply, ScoresReply
from bidro.selection.personal import Reply as PersonalReply
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import Reply as Whole
from tests.deploy.test_reported import OFFERED, SCHEMA, UNITS, rows_of, told_of

ROWS = rows_of(np.random.default_rng(11), 40)


def first(rows=ROWS):
    told = prepared(rows, [len(rows)], [0], OFFERED)
    return type(told)(*(np.asarray(part)[0] for part in told))


def test_counts_at_their_edges():
    values, one = Values(Agreement.of(SCHEMA, UNITS)), first()

    def told(behind=40, **changes):
        require_prepared(values, one._replace(**{k: np.asarray(v) for k, v in changes.items()}), behind)

    told()
    told(behind=0)
    told(holdout=5.0, holdout_people=5.0)
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
    ):
        with pytest.raises(BidroError, match=words):
            told(**changes)
    few = first(ROWS[:3])
    require_prepared(values, few._replace(folds=np.array([1.0, 1, 1, 0, 0])), 3)
    with pytest.raises(BidroError, match="more folds than its 3"):
        require_prepared(values, few._replace(folds=np.array([1.0, 1, 1, 1, 0])), 3)


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


def own_of(rows=ROWS):
    told, samples = told_of(rows)
    return Reported(told, len(rows), len(rows), 0, 0), samples


def reply_of(left_out=1.0, error=0.1, trained=0.5):
    return PersonalReply(*(np.array([part, part]) for part in (left_out, error, trained)))


PROBLEM = SimpleNamespace(loss=Squared(True))


def test_losses_of_own_models():
    """Neither below 0 nor a thousand times what columns allow the shared ones, nor other than told before."""
    own, _ = own_of()
    x = np.array([[0.3, -0.2, 0.1, 0.5, 0.2], [0.1, 0.1, 0.0, 0.4, 0.3]])
    _require_personal(own, PROBLEM, x, reply_of())
    _require_personal(own, PROBLEM, x, reply_of(0.0, 0.0, 0.0))
    for part in ("left_out", "error", "trained"):
        with pytest.raises(BidroError, match=f"as a '{part}' of personal models, which is below 0"):
            _require_personal(own, PROBLEM, x, reply_of(**{part: -1e-12}))
    # Root mean squares of columns may be those of one row alone: larger by the root of 40.
    size = np.sqrt(40) * own.columns.size
    u = np.abs(x) @ np.append(size[:-1], 1.0) + size[-1]
    most = 1e3 * 1.01 * np.max(2 * u**2)
    _require_personal(own, PROBLEM, x, reply_of(left_out=0.999 * most))
    for part in ("left_out", "error", "trained"):
        with pytest.raises(BidroError, match=f"as a '{part}' of personal models, where no more"):
            _require_personal(own, PROBLEM, x, reply_of(**{part: 1.001 * most}))
    own.scored[x.tobytes()] = 2.0
    _require_personal(own, PROBLEM, x, reply_of(2.0 * (1 + 0.9e-6)))
    _require_personal(own, PROBLEM, x, reply_of(2.0 * (1 - 0.9e-6)))
    for other in (2.0 * (1 + 1.2e-6), 2.0 * (1 - 1.2e-6)):
        with pytest.raises(BidroError, match="on rows left out, and of 2 before"):
            _require_personal(own, PROBLEM, x, reply_of(other))


def test_losses_on_rows_left_out():
    own, samples = own_of()
    fold_spec, rows = FoldSpec(2, 0), np.array([15.0, 25.0])
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    fold_ids = np.arange(40) >= 15
    loss = np.stack(
        [[losses_of(PROBLEM.loss, z, samples[fold_ids == f]).mean() for z in x[f]] for f in (0, 1)]
    )
    _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(loss, rows))
    for j in range(3):
        expected = (15 * loss[0, j] + 25 * loss[1, j]) / 40
        assert own.scored[x[:, j].tobytes()] == pytest.approx(expected)
    _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(0 * loss, rows))
    with pytest.raises(BidroError, match="below 0"):
        _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(loss * [[1, 1, -1e-9]], rows))
    for f, count in enumerate(rows):
        size = np.sqrt(40 / count) * own.columns.size
        u = np.abs(x[f]) @ np.append(size[:-1], 1.0) + size[-1]
        for factor, refused in ((0.999, False), (1.001, True)):
            told = loss.copy()
            told[f, 1] = factor * 1.01 * 2 * u[1] ** 2
            if refused:
                with pytest.raises(BidroError, match="where its columns allow"):
                    _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(told, rows))
            else:
                _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(told, rows))
    with pytest.raises(BidroError, match="other numbers of rows"):
        _require_scores(own, PROBLEM, fold_spec, x, ScoresReply(loss, rows[::-1]))


def signs(attained=1.0, smoothing=0.0, algorithm=None, **more):
    parts = {"attained": attained, "smoothing": smoothing, **more}
    how = ExactMWDRO(Exact()) if algorithm is None else algorithm
    _Risks(own_of()[0], PROBLEM, None, how, 0.0)._require_signs({k: np.array([v]) for k, v in parts.items()})


def test_risks_have_signs():
    """Up to a millionth of their size, which rounding may make."""
    signs(0.0)
    signs(1.0, -0.9e-6)
    signs(-0.9e-6, 1.0)
    signs(-1.0, 1.0)
    ends = {"upper": 0.0, "multiplier": 0.0, "certified": 1.0}
    signs(0.0, **ends)
    for words, how in (
        ("smoothing lowers", {"smoothing": -1.1e-6}),
        ("below 0", {"attained": -1.0, "smoothing": 0.999}),
        ("below 0", {"attained": -1e-9}),
        ("multiplier below 0", {**ends, "multiplier": -1e-9}),
        ("multiplier below 0", {**ends, "certified": 0.5}),
        ("known exactly", {**ends, "certified": 0.0}),
        ("at most -1e-09, below 0", {**ends, "upper": -1e-9}),
    ):
        with pytest.raises(BidroError, match=words):
            signs(**how)
    # What is not known exactly need not be proven.
    signs(0.0, algorithm=SimpleNamespace(oracle=None), **{**ends, "certified": 0.0})


def test_a_risk_of_squared_loss_is_what_second_moments_make_it():
    own, samples = own_of()
    whole = of_clients(samples, [40])
    moments, x = Moments(whole.mean[0], whole.around[0]), np.array([[0.3, -0.2, 0.1, 0.5, 0.2]])
    problem = SimpleNamespace(loss=Squared(True), transport=Transport.features_only(5, 2.0))
    eps, risks = np.array([0.25]), _Risks(own, problem, None, ExactMWDRO(Exact()), 0.25)
    root = np.sqrt(losses_of(problem.loss, x[0], samples).mean())
    risk = np.array([(root + 0.25 * np.linalg.norm(x[0, :4])) ** 2])
    for share in (0.9e-6, -0.9e-6):
        risks._require_of_moments(moments, x, eps, risk * (1 + share), risk * (1 + share))
    with pytest.raises(BidroError, match="at least"):
        risks._require_of_moments(moments, x, eps, risk * (1 + 1.3e-6), 2 * risk)
    with pytest.raises(BidroError, match="which it says is at most"):
        risks._require_of_moments(moments, x, eps, 0 * risk, risk * (1 - 1.3e-6))


def test_second_moments_told_twice_are_the_same():
    """Up to a millionth of the columns' sizes; and no reply rests on more rows than there are, nor holds
    what no rows have."""
    own, samples = own_of()
    whole = of_clients(samples, [40])
    mean, around = whole.mean[0], whole.around[0]
    problem = SimpleNamespace(
        federation=SimpleNamespace(names=("east",)), eps=np.zeros(1), loss=Squared(True)
    )
    check = Consistency({"east": own})

    def told(by=0.0, rows=40, size=1.0):
        changed = around.copy()
        changed[0, 3] += by
        changed[3, 0] += by
        check("east", problem, None, None, None, Whole(size * mean, changed), rows)

    told()
    unit = own.moments.size[0] * own.moments.size[3]
    told(0.9e-6 * unit)
    told(0.0)
    with pytest.raises(BidroError, match="other second moments than before"):
        told(1.1e-6 * unit)
    with pytest.raises(BidroError, match="41 rows behind a reply, and of 40"):
        told(rows=41)
    with pytest.raises(BidroError, match="which no rows have"):
        told(size=1e200)


def test_what_columns_allow_by_hand():
    """Columns of root mean squares 2 and 3, a target of 5, x = (1, -2), an intercept of 0.5: u is at most
    2 + 6 + 0.5 + 5."""
    columns, x = Columns(np.array([2.0, 3.0, 5.0])), np.array([[1.0, -2.0, 0.5]])
    found = columns.allowed(Squared(True), x)
    np.testing.assert_allclose(found.risk, 1.01 * 2 * 13.5**2)
    np.testing.assert_allclose(found.slope, 1.01 * 2 * 13.5 * np.array([[2.0, 3.0, 1.0]]))
    np.testing.assert_allclose(found.of_nu, 0.0)
    # A radius of 0.1 in a norm that counts the first twice: nu = |(1 / 2, -2)|.
    transport, eps = Transport(np.array([2.0, 1.0, np.inf]), 2.0), np.array([0.1])
    moved = columns.allowed(Squared(True), x, transport, eps)
    u = 13.5 + 0.1 * np.hypot(0.5, 2.0)
    np.testing.assert_allclose(moved.risk, 1.01 * 2 * u**2)
    np.testing.assert_allclose(moved.slope, 1.01 * 2 * u * np.array([[2.05, 3.1, 1.0]]))
    np.testing.assert_allclose(moved.of_nu, 1.01 * 2 * u * 0.1)
    # Margins have no target: 8.5 and log 2; the slope at 0 is a half, and a quarter of u more, but at most 1,
    # which a row that moves far meets anywhere.
    small, labels = 0.1 * x, Transport.classification(3, 1.0)
    margin = columns.allowed(Logistic(True), small)
    np.testing.assert_allclose(margin.risk, 1.01 * (np.log(2) + (0.5 + 0.25 * 0.85) * 0.85))
    np.testing.assert_allclose(columns.allowed(Logistic(True), x).risk, 1.01 * (np.log(2) + 8.5))
    far = columns.allowed(Logistic(True), small, labels, eps)
    np.testing.assert_allclose(far.risk, 1.01 * (np.log(2) + 0.85 + 0.1 * np.hypot(0.1, 0.2)))
    still = columns.allowed(Logistic(True), small, labels, 0 * eps)
    np.testing.assert_allclose(still.risk, margin.risk)
    # Two classes, each with two coefficients and an intercept: differences of scores, so all of it twice.
    both = columns.allowed(Softmax(2, True), np.array([[1.0, -2.0, 0.0, 1.0, 0.5, -0.5]]))
    np.testing.assert_allclose(both.risk, 1.01 * (np.log(2) + 2 * (2 + 6 + 3 + 1)))
    np.testing.assert_allclose(both.slope, 1.01 * np.array([[2.0, 3.0, 2.0, 3.0, 1.0, 1.0]]))


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


def test_every_kind_of_reply_is_looked_at():
    """Through the one door that replies come in by: each with something that no rows have."""
    own, samples = own_of()
    problem = SimpleNamespace(
        federation=SimpleNamespace(names=("west", "east")),
        eps=np.zeros(2),
        loss=Squared(True),
        ambiguity_set=NoAmbiguity(),
    )
    check, fold_spec, two = Consistency({"east": own}), FoldSpec(2, 0), np.zeros((2, 1, 5))
    fold_ids = np.arange(40) % 2
    folds = of_folds(samples, [40], fold_ids, 2)
    honest = MomentsReply(folds.mean[0], folds.around[0], folds.rows[0])
    check("east", problem, fold_spec, None, None, honest, 40)
    whole = of_clients(samples, [40])
    np.testing.assert_allclose(own.whole.mean, whole.mean[0], atol=1e-9)
    np.testing.assert_allclose(own.whole.around, whole.around[0], atol=1e-9)
    for reply, x, words in (
        (honest._replace(around=-honest.around), None, "tells second moments"),
        (ScoresReply(-np.ones((2, 1)), np.array([20.0, 20.0])), two, "below 0"),
        (reply_of(left_out=-1.0), two[:, 0], "below 0"),
    ):
        with pytest.raises(BidroError, match=words):
            check("east", problem, fold_spec, None, SimpleNamespace(x=x), reply, 40)


def test_a_mean_loss_lies_above_every_cut_and_below_the_risk_at_its_model():
    """Of R(x) = (x - 1)^2, told at x = 2 without a radius: its value is 1 there, and its slope 2."""
    risks = ReportedRisks(
        Squared(False), Transport.features_only(2, 2.0), True, Columns(np.array([3.0, 3.0])), 40
    )
    none = np.zeros(1)
    risks.require_mean(None, np.array([2.0]), 1e9)  # nothing was told
    risks.add(
        None, np.array([[2.0]]), none, none, np.array([1.0]), none, np.array([[2.0, 0.0]]), np.array([1.0])
    )
    for mean in (1.0, 1.0 + 0.9e-6):
        risks.require_mean(None, np.array([2.0]), mean)
    with pytest.raises(BidroError, match="a mean loss of"):
        risks.require_mean(None, np.array([2.0]), 1.0 + 1.1e-6)
    # The cut at 2 is 1 + 2 (x - 2): at 3 it is 3.
    risks.require_mean(None, np.array([3.0]), 3.0)
    risks.require_mean(None, np.array([3.0]), 1e3)  # no risk was told there
    with pytest.raises(BidroError, match=r"at most 2\.99 by one reply, and at least 3 by another"):
        risks.require_mean(None, np.array([3.0]), 2.99)
