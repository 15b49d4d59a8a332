"""What a request may say, at the edge of every range and next to it; nothing is read or run for it."""

import math
from dataclasses import replace

import numpy as np
import pytest

import bidro
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import AlgorithmOne
from bidro.deploy.messages.plan import QueryPlan
from bidro.deploy.messages.queries import QUERIES, checked_request
from bidro.deploy.site.answers import ANSWERS
from bidro.deploy.site.disclosure.rules import PolicyViolationError
from bidro.deploy.site.rows import SiteRows
from bidro.federated.algorithms.first_order import Broadcast as ModelAndWeights
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import described, pack
from bidro.fit.questions import Assess, HoldoutQuery
from bidro.selection.calibrate import FOLDS
from bidro.selection.fold_queries import (
    CutsBroadcast,
    FoldMoments,
    MomentsBroadcast,
    RisksBroadcast,
    ScoresBroadcast,
)
from bidro.selection.personal import Broadcast as Shared
from bidro.selection.personal import ExpansionsBroadcast
from bidro.solvers.bundle.one_shot import OneShotMWDRO
from bidro.solvers.bundle.state import Broadcast
from tests.deploy.test_site import CLIP, LEVELS, MODEL, SUPPORT, site_at

NONE, NUMBER = np.zeros(0), np.zeros(())
BALL = {"kind": "WassersteinBall", "radius": 0.25}
# The agreed largest coefficient is 20, in targets' spreads of 1.5.
LARGEST = 30.0
FREE = np.array([0.0, 0.1, 1 / 32, 1.0])


@pytest.fixture(scope="module")
def protocols(tmp_path_factory):
    """By name."""

    def agreed(name, **how):
        return SiteRows.load(site_at(tmp_path_factory.mktemp(name), **how)).protocol

    return {
        "usual": agreed("usual", support=SUPPORT, agreed_release="trusted"),
        "boundless": agreed("boundless", training={"personal": "none"}, agreed_release="trusted"),
        "algorithm one": QueryPlan(
            replace(agreed("one").agreed, release="trusted", algorithm=AlgorithmOne(3, rho=20.0))
        ),
        "radii": agreed("radii", training={"radius": "cross-validate"}, agreed_release="trusted"),
        "moments": agreed("moments", support=SUPPORT, training={"radius": "cross-validate"}),
    }


def query(protocol, question, message, changed=None, **more):
    header = {
        "version": bidro.__version__, "client": "east", "agreed": protocol.agreed.digest, "run": "one",
        "question": question, "round": 1, "table": 0.5, **more, **(changed or {}),
    }  # fmt: skip
    if question == "prepare":
        del header["table"]
    return checked_request(protocol, "east", header, pack(message, header))


def rounds(protocol, kind, folds, message, changed=None):
    """A round of the algorithm of that kind, the last of those that the protocol knows."""
    known = [one for one in protocol.algorithms[folds].values() if type(one).__name__ == kind]
    header = {"seed": 0, "folds": folds, "algorithm": described(known[-1]), "ambiguity": BALL}
    return query(protocol, "round", message, changed, **header)


def fixed(**changes):
    return HoldoutQuery(MODEL, LEVELS, np.asarray(CLIP), NONE, NONE, NONE, NONE)._replace(**changes)


def assess(**changes):
    return Assess(MODEL, NONE, np.zeros((0, 0)), NUMBER, NONE, NONE, NONE)._replace(**changes)


def solves(count=4, **changes):
    each = np.zeros(count)
    return CutsBroadcast(np.asarray(1), np.zeros((count, 3)), each, each.astype(int), each)._replace(
        **changes
    )


def newton(count=4, bends=2, **changes):
    each, few = np.zeros(count), np.zeros(bends)
    message = RisksBroadcast(
        *(np.asarray(1), np.zeros((count, 3)), each.astype(int), each),
        *(np.asarray(0), np.zeros((bends, 3)), few.astype(int), few),
    )
    return message._replace(**changes)


def test_what_is_asked_and_of_how_many_models(protocols):
    usual = protocols["usual"]
    prepare = query(usual, "prepare", Nothing())
    assert (prepare.models, prepare.table, prepare.kind, prepare.run, prepare.round) == (
        *(0, None, "prepare", "one", 1),
    )
    bounds = query(usual, "bounds", fixed(), round=7)
    assert (bounds.models, bounds.table, bounds.kind, bounds.round) == (2, 0.5, "bounds", 7)
    assessed = query(usual, "assess", assess(), ambiguity=BALL)
    assert (assessed.models, assessed.kind, assessed.ambiguity.radius) == (2, "assess", 0.25)
    one = rounds(usual, "ExactMWDRO", 0, Broadcast(MODEL, NUMBER), {"seed": 3})
    assert (one.models, one.kind, one.folds, one.seed, one.ambiguity.radius) == (1, "ExactMWDRO", 0, 3, 0.25)
    assert rounds(usual, "FoldScores", 3, ScoresBroadcast(np.zeros((3, 4, 3)))).models == 12
    assert rounds(usual, "FoldCuts", 2, solves()).models == 4
    assert rounds(usual, "FoldRisks", 2, newton()).models == 6
    moments = rounds(usual, "FoldMoments", 2, MomentsBroadcast())
    assert (moments.models, moments.folds) == (0, 2)


@pytest.mark.parametrize(
    ("name", "allowed", "not_allowed"),
    [
        ("round", (1, 10**9), (0, 10**9 + 1, True, 1.0, "1", None)),
        ("seed", (0, 2**62), (-1, 2**62 + 1, 0.0)),
        ("folds", (0,), (-1, 1, 2, 6, False)),
        ("table", (0.0, -1e300), (math.inf, -math.inf, math.nan, 1, "x", None)),
        ("run", ("a" * 100, "1.a-b_c"), ("a" * 101, "", ".a", "a/b", "a\n", 1)),
        ("client", ("east",), ("west", None)),
        ("version", (bidro.__version__,), ("0", None)),
        ("question", ("round",), ("bounds", "prepare", "rows", 1, None)),
        (
            "ambiguity",
            tuple({**BALL, "radius": radius} for radius in (0.0, 1e3)),
            (
                *({**BALL, "radius": radius} for radius in (-1e-9, 1000.1, math.nan, 1, True, None)),
                *({**BALL, "kind": "Penalty"}, {**BALL, "more": 1}, {"kind": "WassersteinBall"}, 0.25, None),
            ),
        ),
    ],
)
def test_headers(name, allowed, not_allowed, protocols):
    message = Broadcast(MODEL, NUMBER)
    for value in allowed:
        assert rounds(protocols["usual"], "ExactMWDRO", 0, message, {name: value}).models == 1
    for value in not_allowed:
        with pytest.raises(PolicyViolationError):
            rounds(protocols["usual"], "ExactMWDRO", 0, message, {name: value})


def test_headers_say_all_that_was_agreed_on_and_no_more(protocols):
    usual = protocols["usual"]
    with pytest.raises(PolicyViolationError, match="not agreed on"):
        query(usual, "bounds", fixed(), seed=0)
    with pytest.raises(PolicyViolationError, match="not agreed on"):
        query(usual, "assess", assess())
    with pytest.raises(PolicyViolationError, match="something else"):
        query(usual, "bounds", fixed(), agreed="0")
    with pytest.raises(PolicyViolationError, match="not agreed on"):
        rounds(usual, "ExactMWDRO", 0, Broadcast(MODEL, NUMBER), {"algorithm": {"kind": "ExactMWDRO"}})
    # An algorithm over folds is none over all rows.
    scores = next(one for one in usual.algorithms[2].values() if type(one).__name__ == "FoldScores")
    with pytest.raises(PolicyViolationError, match="not agreed on"):
        rounds(usual, "ExactMWDRO", 0, Broadcast(MODEL, NUMBER), {"algorithm": described(scores)})


def test_no_more_bytes_than_the_most_that_is_asked(protocols):
    usual = protocols["usual"]
    header = {
        "version": bidro.__version__, "client": "east", "agreed": usual.agreed.digest, "run": "one",
        "question": "prepare", "round": 1,
    }  # fmt: skip
    whole = pack(Nothing(), header)
    with pytest.raises(PolicyViolationError, match="larger than anything"):
        checked_request(usual, "east", header, whole + bytes(usual.most_bytes + 1 - len(whole)))
    # As long as anything that is asked, it is read, and found to be no message.
    with pytest.raises(BidroError) as found:
        checked_request(usual, "east", header, whole + bytes(usual.most_bytes - len(whole)))
    assert "larger" not in str(found.value)


def edge(value):
    """A model with a number of that size."""
    return np.array([0.0, -value, 0.0])


@pytest.mark.parametrize(
    ("question", "allowed", "not_allowed"),
    [
        (
            "bounds",
            [
                fixed(x=edge(LARGEST)),
                fixed(x=edge(LARGEST * (1 + 0.9e-9))),
                fixed(pooled=edge(LARGEST)),
                fixed(freedom=FREE),
                fixed(freedom=np.zeros(4)),
                fixed(seen=np.asarray(2.0**-40 * 1.5**2)),
                fixed(seen=np.asarray(2.0**40 * 1.5**2)),
            ],
            [
                fixed(x=edge(LARGEST * (1 + 1.1e-9))),
                fixed(x=MODEL[None]),
                fixed(x=NUMBER),
                fixed(x=MODEL[:2]),
                fixed(x=MODEL.astype(np.float32)),
                fixed(pooled=edge(1.01 * LARGEST)),
                fixed(pooled=MODEL[None]),
                fixed(freedom=2e13 * FREE),
                fixed(freedom=-FREE),
                fixed(freedom=FREE[:1]),
                fixed(freedom=FREE[None]),
                fixed(freedom=FREE.astype(np.float32)),
                fixed(freedom=np.append(FREE[:-1], 1.1)),
                fixed(levels=LEVELS[::-1]),
                fixed(levels=np.append(LEVELS, 0.5)),
                fixed(seen=np.asarray(1.5 * CLIP)),
                fixed(seen=np.asarray(-CLIP)),
                fixed(seen=np.asarray([CLIP])),
                fixed(seen=np.asarray(2.0**41 * 1.5**2)),
                fixed(seen=np.asarray(2.0**-41 * 1.5**2)),
            ],
        ),
        (
            "assess",
            [
                assess(shown=np.asarray(1.0)),
                assess(radii=np.zeros(5)),
                assess(radii=np.full(5, 1e3)),
                assess(freedom=FREE, pooled=MODEL, x=edge(LARGEST)),
                assess(freedom=FREE, common=edge(LARGEST)),
            ],
            [
                assess(shown=np.asarray(2.0)),
                assess(shown=np.asarray(-1.0)),
                assess(shown=np.zeros(1)),
                assess(radii=np.zeros(4)),
                assess(radii=np.full(5, 1000.5)),
                assess(radii=np.full(5, -1e-9)),
                assess(radii=np.append(np.zeros(4), 1e9)),
                assess(reference=np.zeros((1, 3))),
                assess(x=edge(1.01 * LARGEST)),
                assess(x=MODEL[None]),
                assess(freedom=np.append(FREE[:-1], 1.01)),
                assess(pooled=edge(1.01 * LARGEST)),
                assess(freedom=FREE, common=edge(1.01 * LARGEST)),
                assess(freedom=FREE, common=MODEL[:1]),
            ],
        ),
    ],
)
def test_numbers_of_a_question(question, allowed, not_allowed, protocols):
    more = {"ambiguity": BALL} if question == "assess" else {}
    for message in allowed:
        query(protocols["usual"], question, message, **more)
    for message in not_allowed:
        with pytest.raises(PolicyViolationError):
            query(protocols["usual"], question, message, **more)


def test_no_radii_without_a_support_and_no_personal_model_where_none_was_agreed_on(protocols):
    boundless = protocols["boundless"]
    query(boundless, "assess", assess(), ambiguity=BALL)
    query(boundless, "bounds", fixed(freedom=np.zeros(4)))
    with pytest.raises(PolicyViolationError, match="no support"):
        query(boundless, "assess", assess(radii=np.zeros(5)), ambiguity=BALL)
    with pytest.raises(PolicyViolationError, match="personal model that was not agreed on"):
        query(boundless, "bounds", fixed(freedom=FREE))


def whole(*values):
    return np.array(values)


@pytest.mark.parametrize(
    ("kind", "folds", "allowed", "not_allowed"),
    [
        (
            "ExactMWDRO",
            0,
            [Broadcast(edge(LARGEST), np.asarray(1e12))],
            [
                Broadcast(edge(1.01 * LARGEST), NUMBER),
                Broadcast(MODEL[None], NUMBER),
                Broadcast(MODEL, np.asarray(1.01e12)),
                Broadcast(MODEL, np.asarray(-1e-9)),
                Broadcast(MODEL, np.zeros(1)),
                Broadcast(MODEL, np.asarray(True)),
            ],
        ),
        (
            "FoldMoments",
            2,
            [MomentsBroadcast()],
            [],
        ),
        (
            "PersonalCorrections",
            3,
            [Shared(np.zeros((3, 3)), np.full((3, 3), 1e12))],
            [
                Shared(np.zeros((2, 3)), np.zeros((2, 3))),
                Shared(MODEL, FREE[:3]),
                Shared(np.zeros((3, 3)), np.zeros((3, 2))),
                Shared(np.zeros((3, 3)), np.full((3, 3), -1e-9)),
                Shared(np.zeros((3, 3)), np.full((3, 3), 1.1e12)),
            ],
        ),
        (
            "PersonalExpansions",
            3,
            [
                ExpansionsBroadcast(np.zeros((4, 3)), np.zeros((4, 3)), np.tile(np.arange(3), (4, 1))),
                ExpansionsBroadcast(np.zeros((4, 3)), np.ones((4, 3)), np.zeros((4, 0), np.int64)),
            ],
            [
                ExpansionsBroadcast(np.zeros((3, 3)), np.zeros((3, 3)), np.tile(np.arange(3), (3, 1))),
                ExpansionsBroadcast(np.zeros((4, 3)), np.zeros((4, 3)), np.tile(np.arange(1, 4), (4, 1))),
            ],
        ),
        (
            "FoldScores",
            2,
            [ScoresBroadcast(np.zeros((2, 45, 3))), ScoresBroadcast(np.zeros((2, 0, 3)))],
            [
                ScoresBroadcast(np.zeros((2, 46, 3))),
                ScoresBroadcast(np.zeros((3, 4, 3))),
                ScoresBroadcast(np.zeros((2, 3))),
                ScoresBroadcast(np.zeros((2, 2, 2, 3))),
                ScoresBroadcast(np.full((2, 4, 3), 1.01 * LARGEST)),
            ],
        ),
        (
            "FoldCuts",
            2,
            [
                solves(fold=whole(0, 1, 2, 2)),
                solves(fold=np.array([0.0, 1.0, 2.0, 2.0])),
                solves(active=np.asarray(0)),
                solves(active=np.asarray(4)),
                solves(width=np.full(4, 1e12)),
                solves(90),
            ],
            [
                solves(fold=whole(0, 1, 2, 3)),
                solves(fold=whole(0, -1, 2, 2)),
                solves(fold=np.array([0.0, 0.5, 1.0, 1.0])),
                solves(fold=whole(0, 1, 2)),
                solves(active=np.asarray(5)),
                solves(active=np.asarray(-1)),
                solves(active=np.asarray(1.5)),
                solves(width=np.full(4, 1.01e12)),
                solves(width=np.zeros(3)),
                solves(scale=np.array([0.0, 0.0, 0.0, 0.1])),
                solves(scale=np.zeros(3)),
                solves(x=np.full((4, 3), 1.01 * LARGEST)),
                solves(91),
            ],
        ),
        (
            "FoldRisks",
            2,
            [
                newton()._replace(bend_fold=whole(0, 2), bends=np.asarray(2)),
                newton(fold=whole(0, 1, 2, 2), models=np.asarray(4)),
                newton(90, 90),
                newton(4, 0),
            ],
            [
                newton(bend_fold=whole(0, 3)),
                newton(bend_fold=whole(0, -1)),
                newton(bend_fold=np.array([0.0, 0.5])),
                newton(bend_fold=whole(0)),
                newton(bend_scale=np.array([0.0, 0.1])),
                newton()._replace(bends=np.asarray(3)),
                newton()._replace(bends=np.asarray(-1)),
                newton()._replace(bends=np.asarray(0.5)),
                newton(bend_x=np.full((2, 3), 1.01 * LARGEST)),
                newton(models=np.asarray(5)),
                newton(4, 91),
            ],
        ),
    ],
)
def test_numbers_of_a_round(kind, folds, allowed, not_allowed, protocols):
    for message in allowed:
        rounds(protocols["usual"], kind, folds, message)
    for message in not_allowed:
        with pytest.raises(PolicyViolationError):
            rounds(protocols["usual"], kind, folds, message)


def test_a_request_for_moments_holds_nothing(protocols):
    for message in (Broadcast(MODEL, NUMBER), ScoresBroadcast(np.zeros((2, 1, 3)))):
        with pytest.raises(BidroError, match="where MomentsBroadcast needs"):
            rounds(protocols["usual"], "FoldMoments", 2, message)


def test_radii_of_candidates_are_those_agreed_on(protocols):
    radii = protocols["radii"]
    each = np.resize(radii.scales, 4)
    assert len(set(each)) > 1
    rounds(radii, "FoldCuts", 2, solves(scale=each))
    with pytest.raises(PolicyViolationError, match="agreed candidates"):
        rounds(radii, "FoldCuts", 2, solves(scale=1.001 * each))


def test_weights_and_the_penalty_of_algorithm_one(protocols):
    one = protocols["algorithm one"]
    known, penalty = next(iter(one.algorithms[0].values())), {"kind": "Penalty", "rho": 20.0}
    header = {"seed": 0, "folds": 0, "algorithm": described(known), "ambiguity": penalty}

    def models(*alpha, **changes):
        message = ModelAndWeights(MODEL, np.array(alpha))
        return query(one, "round", message, changes, **header).models

    assert models(0.0, 1.0) == models(1 + 0.9e-9) == models(0.2, 0.3, 0.5) == 1
    for alpha in ((1 + 2e-9,), (-1e-9, 1.0), ((0.5, 0.5),), 1.0):
        with pytest.raises(PolicyViolationError, match="another shape or size"):
            query(one, "round", ModelAndWeights(MODEL, np.array(alpha)), **header)
    for other in ({**penalty, "rho": 19.0}, BALL, None):
        with pytest.raises(PolicyViolationError, match="another penalty"):
            models(1.0, ambiguity=other)


def test_of_second_moments_alone_nothing_is_asked_about_a_model_of_the_server_s(protocols):
    """But of the one that training ends with: no gradient, loss or curvature anywhere else."""
    known = protocols["moments"].algorithms
    asked = {folds: [type(one) for one in some.values()] for folds, some in known.items()}
    assert asked == {0: [OneShotMWDRO], **{folds: [FoldMoments] for folds in range(2, FOLDS + 1)}}
    for folds, known in protocols["radii"].algorithms.items():
        for one in known.values():
            if type(one) in (OneShotMWDRO, FoldMoments):
                continue
            header = {"seed": 0, "folds": folds, "algorithm": described(one), "ambiguity": BALL}
            with pytest.raises(PolicyViolationError, match="a round of something that was not agreed on"):
                query(protocols["moments"], "round", Nothing(), **header)


def test_every_question_is_declared_and_answered_once():
    assert set(ANSWERS) == set(QUERIES)
    for query in QUERIES.values():
        assert bool(query.what) == bool(query.reveals) == (query.name != "round")
        assert set(query.numbers) <= {*query.message._fields, "x"}
        assert (query.reply is None) == (query.name in ("round", "train"))
