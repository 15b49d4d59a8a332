"""The exact solver's server, on risks that are written down: quadratics and absolute values, without rows, a
loss or an oracle, against CVXPY; and each of its steps by hand."""

import itertools
from typing import NamedTuple

import cvxpy as cp
import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.core.sets import Ball, Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.losses.base import Cone
from bidro.risk.inner import Exact
from bidro.risk.rows_jax import RiskModel
from bidro.solvers.bundle.algorithm import ExactMWDRO, to_gap
from bidro.solvers.bundle.bound import DualBound, require_consistent
from bidro.solvers.bundle.model import ConeModel, Cuts
from bidro.solvers.bundle.state import INFINITE, Reply, State, Target

SOLVER = ExactMWDRO(Exact())
TRIANGLE = np.triu_indices(2)


class Risks(NamedTuple):
    """R_i(x) = 1/2 (x - centre_i)' H_i (x - centre_i) + base_i + sum_j kink_i |x_j|."""

    centre: np.ndarray  # (n, 2)
    H: np.ndarray  # (n, 2, 2)
    base: np.ndarray  # (n,)
    kink: np.ndarray  # (n,)

    @classmethod
    def drawn(cls, seed, n=3, kinks=False):
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(n, 2, 2))
        H = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(2)
        kink = rng.uniform(0.5, 1.5, n) if kinks else np.zeros(n)
        return cls(rng.normal(size=(n, 2)), H, rng.uniform(1, 2, n), kink)

    def true(self, x):
        away = x - self.centre
        return 0.5 * np.einsum("ni,nij,nj->n", away, self.H, away) + self.base + self.kink * np.abs(x).sum()

    def reply(self, x, width, curvature=True):
        """With |u| smoothed to sqrt(u^2 + w^2), whose slope times v lies below |v|."""
        away, w = x - self.centre, 1e-2 * width
        smooth = np.sqrt(x**2 + w**2)
        slope = np.where(smooth > 0, x / smooth, 0.0)
        quadratic = self.true(x) - self.kink * np.abs(x).sum()
        attained = quadratic + self.kink * (slope @ x)
        gradient = np.einsum("nij,nj->ni", self.H, away) + self.kink[:, None] * slope
        bend = self.H + self.kink[:, None, None] * np.diag(w**2 / smooth**3)
        packed = bend[:, TRIANGLE[0], TRIANGLE[1]] if curvature else np.zeros((len(away), 0))
        ones = np.ones(len(away))
        over = self.kink * (smooth - slope * x).sum()
        return Reply(self.true(x), ones, attained, gradient, over, packed, 2 * ones)

    def best(self, mixtures, models):
        v = cp.Variable(2)
        risks = [
            0.5 * cp.quad_form(v - c, H) + b + k * cp.norm1(v)
            for c, H, b, k in zip(self.centre, self.H, self.base, self.kink, strict=True)
        ]
        s, polytope = cp.Variable(len(risks)), mixtures.polytope()
        y = cp.Variable(len(polytope.total))
        limits = [s[i] >= risk for i, risk in enumerate(risks)] + [
            polytope.matrix.T @ y >= polytope.lift.T @ s
        ]
        if isinstance(models, Box):
            limits += [v >= models.lower, v <= models.upper]
        else:
            limits += [cp.norm(v - models.center) <= models.radius]
        problem = cp.Problem(cp.Minimize(polytope.offset @ s + polytope.total @ y), limits)
        return problem.solve(cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11), v.value


def begun(mixtures, models=None, wanted=1e-6, small=None, floor=1e-6, x=None):
    models = Box.cube(3.0, 2) if models is None else models
    model = ConeModel(models, models, mixtures, (), nonnegative=True)
    x, n = np.array([1.5, -1.0]) if x is None else x, mixtures.dimension
    weights = np.full(n, 1 / n)
    dual = DualBound(0.0, weights, 0.0, np.zeros(2))
    return State.begun(x, model, Target(wanted, floor, small), weights, dual, width=2.0)


def one_round(state, risks, solver=SOLVER, who=None):
    reply = risks.reply(state.x, state.smoothing.width, solver.sends_curvature)
    everyone = np.ones(len(risks.base), bool)
    return solver.server(state, reply, everyone if who is None else who)


def run(risks, state, most, solver=SOLVER):
    states = [state]
    while not states[-1].finished and states[-1].t < most:
        states.append(one_round(states[-1], risks, solver))
    return states


MIXTURES = {
    "simplex": Simplex(3),
    "caps": CappedSimplex(np.zeros(3), np.array([0.6, 0.5, 0.4])),
    "l1": L1SimplexBall(np.array([0.5, 0.3, 0.2]), 0.4),
}
MODELS = {"wide": Box.cube(3.0, 2), "narrow": Box.cube(0.2, 2), "ball": Ball(np.array([0.3, 0.2]), 0.3)}


@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("name", MIXTURES)
def test_quadratics_in_few_rounds(name, models):
    """In about ten rounds to 1e-6, as the module says; bounds hold in every round."""
    for seed in range(3):
        risks, mixtures = Risks.drawn(seed), MIXTURES[name]
        best, x = risks.best(mixtures, MODELS[models])
        start = np.asarray(MODELS[models].project(np.array([1.5, -1.0])))
        states = run(risks, begun(mixtures, MODELS[models], x=start), 12)
        last = states[-1]
        assert last.gap <= 1e-6
        for state in states[1:]:
            assert state.dual.bound <= best * (1 + 1e-9)
            assert state.best.upper >= best * (1 - 1e-9)
            assert bool(mixtures.contains(state.dual.alpha))
        assert last.best.upper == pytest.approx(best, rel=2e-6)
        np.testing.assert_allclose(last.best.x, x, atol=5e-3)
        np.testing.assert_allclose(last.best.risks, risks.true(last.best.x))
        # The worst mixture at the optimum is what the bound was proven with.
        assert last.dual.alpha @ last.best.risks == pytest.approx(best, rel=1e-3)
        tried = np.array([state.x for state in states[:-1]])
        snapshot = SOLVER.snapshot(last)
        np.testing.assert_allclose(snapshot.x_average, tried.mean(axis=0))
        np.testing.assert_array_equal(snapshot.x, last.best.x)


CONES = (Cone(np.eye(2), np.zeros(2)), Cone(np.array([[1.0, 0.5]]), np.array([0.1])))


def lifted(risks, steep, scale):
    """`scale` times the risks, with steep_i nu added, as replies in (x, nu)."""

    def reply(state):
        x, nu = state.x, state.model.lift(state.x)[-1]
        plain = risks.reply(x, state.smoothing.width)
        upper, attained = (scale * (v + steep * nu) for v in (plain.upper, plain.attained))
        bend = np.zeros((len(steep), 3, 3))
        bend[:, :2, :2] = scale * risks.H
        rows, columns = np.triu_indices(3)
        return Reply(
            upper, plain.certified, attained, scale * np.column_stack([plain.gradient, steep]),
            scale * plain.smoothing, bend[:, rows, columns], plain.multiplier,
        )  # fmt: skip

    return reply


@pytest.mark.parametrize("at_kink", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_risks_in_other_units_take_the_same_steps(name, at_kink):
    """Risks times 2^20 or 2^-30, floor and all: the same models, bounds times as much; also where the optimum
    is near the kink of the steepness."""
    for seed in range(2):
        risks = Risks.drawn(seed)
        steep = np.array([4.0, 5.0, 6.0]) if at_kink else np.array([0.3, 0.2, 0.4])
        paths = []
        for scale in (1.0, 2.0**20, 2.0**-30):
            state = begun(MIXTURES[name], floor=1e-6 * scale)
            model = state.model._replace(cones=CONES)
            state = state._replace(model=model, cuts=Cuts.none(3))
            reply = lifted(risks, steep, scale)
            bounds = []
            while not state.finished and state.t < 20:
                state = SOLVER.server(state, reply(state), np.ones(3, bool))
                bounds.append((*state.x, state.best.upper / scale, state.dual.bound / scale))
            assert state.gap <= 1e-6
            paths.append(np.array(bounds))
        for path in paths[1:]:
            assert len(path) == len(paths[0])
            # What the cone solver rounds is all that may differ, in steps that are about as good.
            np.testing.assert_allclose(path[:4], paths[0][:4], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(path[-1, 2:], paths[0][-1, 2:], rtol=3e-6)
        v = cp.Variable(2)
        nu = cp.maximum(*(cp.norm(cone.matrix @ v + cone.offset) for cone in CONES))
        terms = [
            0.5 * cp.quad_form(v - c, H) + b + t * nu
            for c, H, b, t in zip(risks.centre, risks.H, risks.base, steep, strict=True)
        ]
        s, polytope = cp.Variable(3), MIXTURES[name].polytope()
        y = cp.Variable(len(polytope.total))
        limits = [s[i] >= term for i, term in enumerate(terms)]
        limits += [polytope.matrix.T @ y >= polytope.lift.T @ s]
        best = cp.Problem(cp.Minimize(polytope.offset @ s + polytope.total @ y), limits).solve(cp.CLARABEL)
        assert paths[0][-1, 2] == pytest.approx(best, rel=2e-6)
        assert paths[0][-1, 3] <= best * (1 + 1e-7)


def test_one_quadratic_is_solved_by_one_step():
    """M is then the curvature itself: the second model is the optimum, and the gap is proven there."""
    risks = Risks(np.array([[0.5, 0.25]]), np.array([[[2.0, 0.3], [0.3, 1.0]]]), np.ones(1), np.zeros(1))
    states = run(risks, begun(Simplex(1)), 9)
    assert len(states) == 3
    np.testing.assert_allclose(states[1].x, [0.5, 0.25], atol=1e-6)
    # What is predicted of the first step is what it gains: half of what the tangent promises.
    assert states[1].step.predicted == pytest.approx(float(risks.true(states[0].x)[0]) - 1.0, rel=1e-6)
    assert (states[-1].best.upper, states[-1].dual.bound) == pytest.approx((1.0, 1.0), rel=1e-6)


@pytest.mark.parametrize("name", MIXTURES)
def test_without_curvature_it_is_estimated(name):
    plain = ExactMWDRO(Exact(), sends_curvature=False)
    for seed in range(2):
        risks = Risks.drawn(seed)
        best, _ = risks.best(MIXTURES[name], MODELS["wide"])
        states = run(risks, begun(MIXTURES[name]), 25, plain)
        assert states[-1].gap <= 1e-6
        assert states[-1].dual.bound <= best * (1 + 1e-9)
        assert states[-1].best.upper == pytest.approx(best, rel=2e-6)
        assert states[1].prox.estimate is None
        assert states[-1].prox.estimate is not None


@pytest.mark.parametrize("saves_rounds", [True, False])
def test_kinks_are_smoothed_ever_less(saves_rounds):
    solver = ExactMWDRO(Exact(), saves_rounds=saves_rounds)
    for seed in range(3):
        risks = Risks.drawn(seed, kinks=True)
        best, _ = risks.best(MIXTURES["simplex"], MODELS["wide"])
        states = run(risks, begun(MIXTURES["simplex"]), 40, solver)
        assert states[-1].gap <= 1e-6
        for state in states[1:]:
            assert state.dual.bound <= best * (1 + 1e-9)
            assert state.best.upper >= best * (1 - 1e-9)
        widths = [state.smoothing.width for state in states]
        narrowed = [b / a for a, b in itertools.pairwise(widths) if b != a]
        assert len(narrowed) >= 3
        assert narrowed == pytest.approx([0.35] * len(narrowed))
        assert widths[0] == 2.0


def test_a_round_that_a_client_misses_is_repeated_with_the_cuts_of_the_others():
    risks = Risks.drawn(0)
    first = one_round(begun(Simplex(3)), risks, who=np.array([True, False, True]))
    assert (first.t, first.centre.merit, first.best.upper) == (1, np.inf, np.inf)
    np.testing.assert_array_equal(first.x, [1.5, -1.0])
    np.testing.assert_array_equal(first.cuts.owner, [0, 2])
    np.testing.assert_allclose(first.cuts.value, risks.true(first.x)[[0, 2]])
    second = one_round(first, risks)
    assert second.t == 2
    np.testing.assert_array_equal(second.cuts.owner, [0, 2, 0, 1, 2])
    np.testing.assert_allclose(second.x_sum, 2 * np.array([1.5, -1.0]))
    assert second.best.upper == pytest.approx(risks.true(np.array([1.5, -1.0])).max())


def test_once_finished_nothing_changes_until_a_smaller_gap_is_wanted():
    risks = Risks.drawn(1)
    last = run(risks, begun(Simplex(3), wanted=1e-2), 12)[-1]
    assert one_round(last, risks) is last
    again = to_gap(last, 1e-2)
    assert (again.finished, again.t) == (True, last.t)
    np.testing.assert_array_equal(again.x, last.x)
    closer = to_gap(last, 1e-8)
    assert not closer.finished
    assert closer.target.gap == 1e-8
    done = run(risks, closer, 20)[-1]
    assert done.gap <= 1e-8
    assert done.t > last.t


def test_the_gap_and_its_floor_by_hand():
    state = begun(Simplex(3), floor=0.5)
    assert state.gap == np.inf
    assert not state.finished

    def with_bounds(lower, upper, floor=0.5):
        best, dual = state.best._replace(upper=upper), state.dual._replace(bound=lower)
        return state._replace(best=best, dual=dual, target=state.target._replace(floor=floor))

    def at_gap(state, gap):
        return state._replace(target=state.target._replace(gap=gap))

    assert with_bounds(1.5, 2.0).gap == pytest.approx(0.25)
    assert with_bounds(0.1, 0.2).gap == pytest.approx(0.2)
    assert with_bounds(-2.5, -2.0).gap == pytest.approx(0.25)
    assert with_bounds(1.0, 1.0).finished
    exactly = at_gap(with_bounds(0.5, 1.0), 0.5)
    assert exactly.finished
    assert not at_gap(exactly, 0.49).finished
    assert at_gap(exactly, 0.49)._replace(stalled=True).finished
    # A share of the first model's risk, or of a constant prediction's where that is smaller.
    small = state._replace(target=state.target._replace(share=1e-6))
    assert small.floor_from(3e4) == pytest.approx(0.03)
    assert small.floor_from(-3e4) == pytest.approx(0.03)
    assert small.floor_from(1e9) == 0.5
    assert small.floor_from(0.0) == np.finfo(float).tiny
    assert state.floor_from(3e4) == 0.5


def test_the_floor_is_settled_by_the_first_model():
    risks = Risks.drawn(2)
    first = one_round(begun(Simplex(3), small=1e-3, floor=9.0), risks)
    assert first.target.floor == pytest.approx(1e-3 * risks.true(np.array([1.5, -1.0])).max())
    second = one_round(first, risks)
    assert second.target.floor == first.target.floor


def test_a_proven_bound_is_not_given_up_for_a_better_one_that_is_not():
    risks, everyone = Risks.drawn(3), np.ones(3, bool)
    first = one_round(begun(Simplex(3)), risks)
    reply = risks.reply(first.x, first.smoothing.width)
    unproven = reply._replace(certified=np.array([1.0, 0.0, 1.0]), upper=np.zeros(3))
    after = SOLVER.server(first, unproven, everyone)
    assert after.best.upper == first.best.upper
    assert after.best.certified
    # Where there is nothing else, what is attained counts, and the bound is marked.
    only = SOLVER.server(begun(Simplex(3)), risks.reply(np.array([1.5, -1.0]), 2.0)._replace(
        certified=np.array([1.0, 0.0, 1.0]), upper=np.array([0.1, 0.0, 0.2])
    ), everyone)  # fmt: skip
    assert not only.best.certified
    np.testing.assert_allclose(only.best.risks, [0.1, risks.true(np.array([1.5, -1.0]))[1], 0.2])
    # A proven bound takes the place of one that is not, even if it is higher.
    worse = np.array([2.5, 2.5])
    proven = SOLVER.server(only._replace(x=worse), risks.reply(worse, 2.0), everyone)
    assert proven.best.certified
    assert proven.best.upper == pytest.approx(risks.true(worse).max())
    with pytest.raises(BidroError, match="In round 1 a client's risk is not finite"):
        SOLVER.server(begun(Simplex(3)), reply._replace(upper=np.array([1.0, np.inf, 1.0])), everyone)


def test_multipliers_come_back_as_infinite_where_they_were():
    risks = Risks.drawn(3)
    reply = risks.reply(np.array([1.5, -1.0]), 2.0)._replace(multiplier=np.array([1.0, INFINITE, 0.0]))
    state = SOLVER.server(begun(Simplex(3)), reply, np.ones(3, bool))
    np.testing.assert_array_equal(state.best.multipliers, [1.0, np.inf, 0.0])


def test_a_step_that_falls_short_stiffens_and_one_that_holds_takes_it_back():
    """A trial that falls by less than a tenth of the prediction is no new centre; above a half, stiffening
    by 4 is taken back."""
    risks = Risks.drawn(4)
    first = one_round(begun(Simplex(3)), risks)
    fell = first.centre.merit - risks.true(first.x).max()
    for promised, weight, moved, after in (
        (fell, 16.0, True, 4.0),
        (1.9 * fell, 16.0, True, 4.0),
        (2.1 * fell, 16.0, True, 16.0),
        (9.9 * fell, 16.0, True, 16.0),
        (10.1 * fell, 16.0, False, 64.0),
        (fell, 2.0, True, 1.0),
        (fell, 1.0, True, 1.0),
    ):
        step, prox = first.step._replace(predicted=promised), first.prox._replace(weight=weight)
        state = one_round(first._replace(step=step, prox=prox), risks)
        np.testing.assert_array_equal(state.centre.z, first.x if moved else first.centre.z)
        assert state.prox.weight == after


def test_cuts_that_no_program_uses_are_dropped_in_time():
    risks = Risks.drawn(5)
    state = one_round(begun(Simplex(3)), risks)
    extra = Cuts.at_point(np.arange(3), np.full(3, -50.0), np.zeros((3, 2)), np.zeros(2))
    for idle, kept in ((23, True), (24, False)):
        more = state._replace(
            cuts=extra._replace(idle=np.full(3, idle)).with_more(state.cuts),
            centre=state.centre._replace(origin=state.centre.origin + 1),
        )
        after = one_round(more, risks)
        assert (-50.0 in after.cuts.value) == kept
        assert len(after.cuts.idle) == len(after.cuts.owner)
        if kept:
            np.testing.assert_array_equal(after.cuts.idle[:3], 24)


def test_bounds_may_contradict_each_other_by_rounding_alone():
    require_consistent(1.0 + 0.9e-8, 1.0, 1.0, 3)
    require_consistent(10.0 + 0.9e-7, 10.0, 10.0, 3)
    for lower in (1.0 + 1.1e-8, 1.5):
        with pytest.raises(BidroError, match="In round 3 the clients' replies contradict each other"):
            require_consistent(lower, 1.0, 1.0, 3)
    risks = Risks.drawn(6)
    first = one_round(begun(Simplex(3)), risks)
    # A little above is rounding, and taken for the upper one; more is somebody's fault.
    upper = risks.true(first.x).max()
    rounded = one_round(first._replace(dual=first.dual._replace(bound=upper * (1 + 1e-9))), risks)
    assert rounded.dual.bound == rounded.best.upper == pytest.approx(upper)
    with pytest.raises(BidroError, match="contradict"):
        one_round(first._replace(dual=first.dual._replace(bound=upper * 1.1)), risks)


def test_what_a_client_sends():
    """Upper triangles row by row; an infinite value is 0 and not certified, an infinite multiplier finite."""
    found = RiskModel(
        np.array([1.0, np.inf, 3.0]), np.array([0.5, 0.25, 2.0]), np.ones((3, 2)), np.array([0.1, 0.2, 0.0]),
        np.arange(12.0).reshape(3, 2, 2), np.array([2.0, np.inf, 0.0]), np.zeros(3), np.zeros(3),
    )  # fmt: skip
    reply = Reply.of(found)
    np.testing.assert_array_equal(reply.upper, [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(reply.certified, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(reply.attained, [0.5, 0.25, 2.0])
    np.testing.assert_array_equal(reply.smoothing, [0.1, 0.2, 0.0])
    np.testing.assert_array_equal(reply.curvature, [[0, 1, 3], [4, 5, 7], [8, 9, 11]])
    np.testing.assert_array_equal(reply.multiplier, [2.0, INFINITE, 0.0])
    assert Reply.of(found._replace(curvature=None)).curvature.shape == (3, 0)
    assert np.finfo(float).max == INFINITE
