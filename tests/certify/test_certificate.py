"""The certificate and the planner: every number a second time, in and out of JSON, and what is absent."""

import dataclasses
import json
import math
import operator

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidro.ambiguity import WassersteinBall
from bidro.certify import held_out_bound, out_of_sample_interval, plan_sample_size
from bidro.certify.certificate import Certificate
from bidro.certify.coverage import failure_probabilities
from bidro.certify.out_of_sample import largest_loss, support_lipschitz
from bidro.certify.plan import rows_for_radius
from bidro.certify.radius import explicit_rule
from bidro.certify.statements import certify_solution
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall
from bidro.data.federation import Federation
from bidro.losses import Absolute, CustomLoss, Hinge, Logistic, Pinball, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.report.figures import certificate_figure
from bidro.risk.transport import Transport

X = np.array([0.8, 0.1])


def draw(rows, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    dose = rng.uniform(0, 1, rows)
    return np.column_stack([dose, np.clip(0.8 * dose + shift + 0.1 * rng.normal(size=rows), -1, 2)])


def problem(support=None, transport=None, loss=None, mixtures=None):
    box = Box(np.array([0.0, -1.0]), np.array([1.0, 2.0])) if support is None else support
    federation = Federation.from_arrays(
        {"north": draw(40, 0), "south": draw(150, 1, 0.2)}, box, ["dose", "y"]
    )
    cost = Transport.euclidean(2) if transport is None else transport
    chosen = Squared(intercept=True) if loss is None else loss
    return Problem(federation, chosen, Box.cube(5.0, 2), cost, None, mixtures)


KEPT_OUT = {"north": draw(80, 2), "south": draw(80, 3, 0.2)}


@pytest.fixture(scope="module")
def whole():
    found = certify_solution(problem(), X, 0.9, KEPT_OUT, shift=0.05, delta=0.4)
    return dataclasses.replace(found, weights=(0.3, 0.7))


def test_every_statement_a_second_time(whole):
    again = out_of_sample_interval(problem(), X, 0.9, delta=0.4)
    assert (whole.interval.lower, whole.interval.upper) == (again.lower, again.upper)
    losses = {name: (rows @ [0.8, -1.0] + 0.1) ** 2 for name, rows in KEPT_OUT.items()}
    # The largest residual on the box is at (1, -1) or (0, 2).
    largest = max(0.8 + 0.1 + 1, 2 - 0.1) ** 2
    by_hand = held_out_bound(losses, 0.9, largest)
    assert whole.held_out.bound == pytest.approx(by_hand.bound, rel=1e-9)
    steep = math.hypot(0.8, 1.0)
    rows = draw(40, 0)
    means = [np.mean((own @ [0.8, -1.0] + 0.1) ** 2) for own in (rows, draw(150, 1, 0.2))]
    seen = 2.0 ** np.ceil(np.log2(8 * max(means)))
    clipped = held_out_bound(losses, 0.9, seen, clipped=True)
    assert whole.clipped.bound == pytest.approx(clipped.bound, rel=1e-9)
    assert whole.shift.bound == pytest.approx((math.sqrt(clipped.bound) + 0.05 * steep) ** 2, rel=1e-9)
    assert whole.empirical[0] == pytest.approx(np.mean((rows @ [0.8, -1.0] + 0.1) ** 2), rel=1e-9)
    assert whole.mistakes is None


def test_json_in_and_out(whole):
    text = whole.to_json()
    back = Certificate.from_json(text)
    assert back.to_json() == text
    assert str(back) == str(whole)
    assert json.loads(text)["held_out"]["clients"].keys() == {"north", "south"}


def test_the_mark_is_by_the_weights_of_training_not_by_the_losses(whole):
    def marked(found):
        return [line.split()[0] for line in str(found).splitlines() if line.endswith(" *")]

    assert whole.counts_most == ("south",)
    assert marked(whole) == ["south"]
    assert "* counts most in the mixture that training ended with" in str(whole)
    even = dataclasses.replace(whole, weights=(0.5 - 1e-9, 0.5 + 1e-9))
    assert marked(even) == ["north", "south"]
    unknown = dataclasses.replace(whole, weights=None)
    assert (marked(unknown), unknown.counts_most) == ([], ())
    assert "counts most" not in str(unknown)
    assert Certificate.from_json(unknown.to_json()).to_json() == unknown.to_json()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_json_is_refused_in_a_sentence(whole, data):
    content = json.loads(whole.to_json())
    parts = [content, *(content[name] for name in ("interval", "held_out", "shift", "of_rows"))]
    part = data.draw(st.sampled_from(parts))
    # Certificates of before have nothing of rows.
    key = data.draw(st.sampled_from(sorted({*part} - {"of_rows"})))
    if data.draw(st.booleans()):
        del part[key]
    else:
        part["unheard of" if part is not content else "format"] = 1
    with pytest.raises(BidroError, match="certificate"):
        Certificate.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "bidro certificate", "version": 99}'])
def test_other_text_is_refused(text):
    with pytest.raises(BidroError, match="certificate"):
        Certificate.from_json(text)


def test_nothing_can_be_changed(whole):
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.confidence = 1.0
    for change in (
        (whole.interval.radii, 0, 0.0),
        (whole.held_out.clients, "north", 0.0),
        (whole.absent, "shift", ""),
    ):
        with pytest.raises((ValueError, TypeError)):
            operator.setitem(*change)


def test_what_cannot_be_stated_is_absent_with_a_reason():
    undeclared = problem("unbounded", Transport.features_only(2))
    found = certify_solution(undeclared, X, 0.9, KEPT_OUT, shift=0.1)
    assert found.interval is None
    assert "declared before anybody saw the rows" in found.absent["interval"]
    assert found.held_out is None
    assert "cannot be ruled out" in found.absent["held_out"]
    losses = (np.asarray(undeclared.federation.samples) @ [0.8, -1.0] + 0.1) ** 2
    mean = max(own.mean() for own in np.split(losses, np.cumsum(undeclared.federation.sizes)[:-1]))
    assert 8 * mean <= found.clipped.largest < 16 * mean
    assert "counted as at most" in found.clipped.promise
    assert found.shift.bound == pytest.approx((math.sqrt(found.clipped.bound) + 0.1 * 0.8) ** 2)
    assert "absent: " in str(found)
    assert Certificate.from_json(found.to_json()).interval is None
    bare = certify_solution(problem(transport=Transport.features_only(2)), X)
    assert "'y' cannot move" in bare.absent["interval"]
    assert "held out" in bare.absent["held_out"]
    assert "shift" in bare.absent
    from_data = certify_solution(problem("from data"), X)
    assert "read off the data" in from_data.absent["interval"]
    assert certify_solution(undeclared, X, 0.9, KEPT_OUT).absent["shift"] == "no shift radius was chosen."


def test_a_restricted_set_of_mixtures_is_named():
    found = certify_solution(problem(mixtures=CappedSimplex(np.zeros(2), np.array([0.6, 0.6]))), X, delta=0.1)
    assert "if the true one is among them" in str(found)
    assert "if it is in A" in found.interval.promise


def test_mixtures_and_balls_in_words():
    """Balls say that they cover only where some radius can."""
    near = L1SimplexBall(np.array([0.5, 0.5]), 0.2)
    within = CappedSimplex(np.zeros(2), np.array([0.6, 0.6]))
    trained = {
        words: dataclasses.replace(problem(support, mixtures=mixtures), ambiguity=WassersteinBall(0.1))
        for words, support, mixtures in (
            ("distance of a centre", None, near),
            ("bounds of each client's weight", "unbounded", within),
            ("any mixture", None, None),
        )
    }
    for words, one in trained.items():
        found = certify_solution(one, X, 0.9, delta=0.1)
        assert words in found.mixtures
        declared = isinstance(one.federation.support, Box)
        assert ("explicit radii" in found.balls) == declared
        assert ("without coverage" in found.balls) == (not declared)
    assert "without Wasserstein balls" in certify_solution(problem("unbounded"), X).balls


def test_rows_kept_out_must_lie_on_the_declared_support():
    outside = {**KEPT_OUT, "south": np.vstack([KEPT_OUT["south"], [[0.5, 2.5]]])}
    with pytest.raises(BidroError, match=r"Client 'south', row 80, column 'y': 2\.5 lies outside"):
        certify_solution(problem(), X, 0.9, outside)


def test_too_few_rows_are_no_result():
    few = {"north": draw(80, 2), "south": np.array([[0.5, 2.0], [0.5, 0.6]])}
    found = certify_solution(problem("unbounded", Transport.features_only(2)), X, 0.9, few, shift=0.05)
    assert found.clipped.vacuous
    assert "too few rows to promise anything: 'south' has 2" in str(found)
    assert f"{found.clipped.bound:.6g}" not in str(found)
    assert "hold out more rows" in found.absent["shift"]
    assert json.loads(found.to_json())["clipped"]["vacuous"] is True
    assert Certificate.from_json(found.to_json()).clipped.vacuous
    figure = certificate_figure(found)
    titles = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert not any("held out" in title for title in titles)
    assert any("Too few rows" in " ".join(text.get_text().split()) for text in figure.texts)


def test_people_in_a_certificate():
    people = {name: np.arange(len(rows)) // 4 for name, rows in KEPT_OUT.items()}
    found = certify_solution(problem(), X, 0.9, KEPT_OUT, people=people)
    losses = {name: (rows @ [0.8, -1.0] + 0.1) ** 2 for name, rows in KEPT_OUT.items()}
    means = {
        name: np.minimum(own, found.clipped.largest).reshape(20, 4).mean(axis=1)
        for name, own in losses.items()
    }
    assert found.clipped.bound == pytest.approx(
        held_out_bound(means, 0.9, found.clipped.largest).bound, rel=1e-9
    )
    assert "a mean of people" in found.clipped.promise
    assert Certificate.from_json(found.to_json()).clipped.people


def test_classes_have_a_bound_on_mistakes():
    rng = np.random.default_rng(5)
    theta = rng.uniform(-1, 1, (120, 1))
    rows = np.column_stack([theta, np.where(theta[:, 0] + 0.3 * rng.normal(size=120) > 0, 1.0, -1.0)])
    box = Box(np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    federation = Federation.from_arrays({"a": rows[:60]}, box)
    cost = Transport.classification(2, 1.0, 0.5)
    whole = Problem(federation, Logistic(), Box.cube(5.0, 1), cost)
    found = certify_solution(whole, [2.0], 0.9, {"a": rows[60:]}, shift=0.1)
    wrong = rows[60:, 1] * rows[60:, 0] <= 0
    assert found.mistakes.means["a"] == pytest.approx(wrong.mean())
    assert found.interval is not None
    assert found.shift.bound == pytest.approx(found.clipped.bound + 0.1 * support_lipschitz(whole, [2.0]))
    assert "mistakes" in found.mistakes.promise.lower()


@pytest.mark.parametrize(
    "loss",
    [
        Absolute(intercept=True),
        Pinball(quantile=0.1, intercept=True),
        Pinball(quantile=0.9, intercept=True),
        Softmax(classes=3, intercept=True),
    ],
)
def test_the_largest_loss_and_slope_on_the_support(loss):
    """No point of the box has a larger loss; corners come close. No pair of points is steeper."""
    rng = np.random.default_rng(6)
    classes = isinstance(loss, Softmax)
    box = Box(np.array([-1.0, 0.0, 0.0]), np.array([2.0, 1.0, 2.0]))
    rows = np.column_stack([rng.uniform([-1, 0], [2, 1], (3000, 2)), rng.integers(0, 3, 3000)])
    rows[:400, :2] = rng.choice([0.0, 1.0], (400, 2)) * [3, 1] + [-1, 0]
    cost = Transport.classification(3, 1.0, 0.7) if classes else Transport.euclidean(3, 1.0)
    x = rng.normal(size=loss.dimension(3))
    whole = Problem(Federation.from_arrays([rows[:5]], box), loss, Box.cube(9.0, len(x)), cost)
    values = np.asarray(loss.values(jnp.asarray(x), jnp.asarray(rows)))
    top = largest_loss(whole, x)
    assert values.max() <= top * (1 + 1e-12)
    assert values.max() >= (0.7 if classes else 0.99) * top
    a, b = rows, rng.permutation(rows)
    rise = np.abs(values - np.asarray(loss.values(jnp.asarray(x), jnp.asarray(b))))
    if classes:
        run = np.linalg.norm((a - b)[:, :2], axis=1) + 0.7 * (a[:, 2] != b[:, 2])
    else:
        run = np.linalg.norm(a - b, axis=1)
    assert np.max(rise[run > 0] / run[run > 0]) <= support_lipschitz(whole, x) * (1 + 1e-9)


def test_a_loss_of_unknown_slope_has_no_interval():
    loss = CustomLoss(lambda x, xi: (x[0] * xi[0] + x[1] - xi[1]) ** 2, np.zeros(2), convex=True)
    found = certify_solution(problem(loss=loss), X, 0.9, KEPT_OUT, shift=0.1)
    assert "not known" in found.absent["interval"]
    assert "not known" in found.absent["shift"]
    assert found.held_out is None
    assert found.clipped is not None


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: certify_solution(problem(), X, 1.0), "confidence"),
        # Also where there is no interval that would be refused.
        (lambda: certify_solution(problem("unbounded"), X, 1.0), "confidence"),
        (lambda: certify_solution(problem("unbounded"), X, 0.0), "confidence"),
        (lambda: certify_solution(problem(), X, 0.9, {"north": draw(5, 0)}), "none of 'south'"),
        (lambda: certify_solution(problem(), X, 0.9, {**KEPT_OUT, "west": draw(5, 0)}), "no client 'west'"),
        (
            lambda: certify_solution(problem(), X, 0.9, {**KEPT_OUT, "south": np.zeros((0, 2))}),
            "must have rows",
        ),
        (lambda: plan_sample_size(problem()), "one target"),
        (lambda: plan_sample_size(problem(), X, radius=1.0, width=1.0), "one target"),
        (lambda: plan_sample_size(problem(), radius=-1.0), "positive"),
        (lambda: plan_sample_size(problem(), width=1.0), "give the model"),
        (lambda: plan_sample_size(problem("unbounded"), radius=1.0), "No radius covers"),
    ],
)
def test_bad_requests_say_what_is_wrong(make, word):
    with pytest.raises(BidroError, match=word):
        make()


def test_the_fewest_rows_for_a_radius():
    whole = problem()
    rule = explicit_rule(whole.federation, whole.transport)
    for radius in (2.0, 1.0, 0.5):
        rows = rows_for_radius(rule, radius, 0.05)
        assert rule.radius(rows, 0.05) <= radius < rule.radius(rows - 1, 0.05)
    assert rows_for_radius(rule, 1e-9, 0.05) is None
    found = plan_sample_size(whole, radius=1.0, confidence=0.9)
    beta = failure_probabilities(0.9, whole.federation.sizes, rule)[0]
    assert found.needed == dict.fromkeys(("north", "south"), rows_for_radius(rule, 1.0, beta))
    assert found.best == "north"
    assert found.now == pytest.approx(rule.radius(40, beta))
    assert found.then == pytest.approx(max(rule.radius(80, beta), rule.radius(150, beta)))
    assert plan_sample_size(whole, radius=100.0).advice.startswith("The target is met")


def test_the_rows_for_a_width_reach_it():
    """At the planned radius, the terms of the interval add up to the width; doubling by hand gives `then`."""
    whole = problem()
    found = plan_sample_size(whole, X, width=3.0, confidence=0.9, delta=0.2)
    interval = out_of_sample_interval(whole, X, 0.9, delta=0.2)
    assert found.now == pytest.approx(interval.sampling + interval.heterogeneity)
    assert interval.lipschitz * (2 * found.radius + 0.2) == pytest.approx(3.0)
    rule = explicit_rule(whole.federation, whole.transport)
    beta = failure_probabilities(0.9, whole.federation.sizes, rule)[0]
    assert rule.radius(found.needed["north"], beta) <= found.radius
    assert found.then <= found.now
    never = plan_sample_size(whole, X, width=0.1, confidence=0.9, delta=0.2)
    assert never.needed == {"north": None, "south": None}
    assert "Rows alone do not reach" in never.advice
    estimated = plan_sample_size(whole, X, width=8.0, confidence=0.9)
    assert estimated.radius < plan_sample_size(whole, X, width=8.0, confidence=0.9, delta=0.2).radius


def test_the_picture_names_clients_and_statements(whole):
    figure = certificate_figure(whole)
    words = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert words == [
        *(w for w in words if "N =" in w),
        "clipped cost, held out",
        "clipped cost, shift up to 0.05",
        "true cost, held out",
        "true cost, Wasserstein interval",
    ]
    bold = [
        label.get_text() for label in figure.axes[0].get_yticklabels() if label.get_fontweight() == "bold"
    ]
    assert len(bold) == 1
    assert bold[0].startswith("south")


def test_losses_of_zero_in_training_leave_a_level_to_clip_at():
    rows = np.array([[1.0, 1.0], [-1.0, -1.0]] * 5)
    fed = Federation.from_arrays({"a": rows}, "unbounded")
    separable = Problem(fed, Hinge(), Box.cube(5.0, 1), Transport.classification(2, 1.0))
    found = certify_solution(separable, [2.0], 0.9, {"a": rows})
    assert found.clipped.largest == 1.0
    assert found.clipped.bound <= 1.0
