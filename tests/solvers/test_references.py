"""Minimax regret and mixed sets: references taken off the risks, against cone programs and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bidro.ambiguity import WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.data.federation import Federation
from bidro.federated.baselines.fedavg import FedAvg
from bidro.federated.engines.in_process import IN_PROCESS, run
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Absolute, Logistic, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import of_folds
from bidro.risk.transport import Transport
from bidro.selection.cross_validate import Candidate, cross_validate
from bidro.solvers.bundle.bound import _cancelled
from bidro.solvers.bundle.model import Answer, ConeModel, Cuts
from bidro.solvers.references import References
from bidro.solvers.solve import solve
from tests.cone_references import optimum
from tests.small import Compiled, fold_losses, mostly_slow

SIZES = (15, 25, 40)
SHARE = np.array(SIZES) / sum(SIZES)
RADII = np.array([0.05, 0.2, 0.1])
MIXTURES = {
    "simplex": None,
    "cap": CappedSimplex.around_proportions(np.array(SIZES), 1.5),
    "mixed": CappedSimplex.mixed(np.array(SIZES), math.inf, 0.3),
    "mixed with limits": CappedSimplex.mixed(np.array(SIZES), 1.6, 0.5),
    "l1 ball": L1SimplexBall(SHARE, 0.3),
    "pooled": CappedSimplex.mixed(np.array(SIZES), 3.0, 0.0),
}


def parts(classes=False):
    rng = np.random.default_rng(5)
    found = []
    for k, size in enumerate(SIZES):
        theta = rng.normal(size=(size, 2)) + 0.3 * k
        score = theta @ (np.array([1.0, -0.5]) + 0.5 * rng.normal(size=2)) + (0.3 + k) * rng.normal(size=size)
        found.append(np.column_stack([theta, np.where(score > 0, 1.0, -1.0) if classes else score]))
    return found


def problem(loss, mixtures=None, references=None, radii=RADII):
    transport = Transport.features_only(3) if isinstance(loss, Squared) else Transport.classification(3, 1.0)
    if isinstance(loss, Absolute):
        transport = Transport(np.array([1.0, 1.0, np.inf]), 1.0)
    rows = Federation.from_arrays(parts(isinstance(loss, Logistic)), "unbounded")
    return Problem(rows, loss, Box.cube(10.0, 3), transport, WassersteinBall(radii), mixtures, references)


def risks_at(loss, x, radii=RADII):
    """(n,) by their closed forms."""
    found = []
    for rows, eps in zip(parts(isinstance(loss, Logistic)), radii, strict=True):
        score, nu = rows[:, :2] @ x[:2] + x[2], np.linalg.norm(x[:2])
        if isinstance(loss, Squared):
            found.append((np.sqrt(np.mean((score - rows[:, 2]) ** 2)) + eps * nu) ** 2)
        elif isinstance(loss, Logistic):
            found.append(np.mean(np.logaddexp(0, -rows[:, 2] * score)) + eps * nu)
        else:
            found.append(np.mean(np.abs(score - rows[:, 2])) + eps * nu)
    return np.array(found)


def references_of(loss):
    """By the sign of the optimal regret over sets that hold the clients' shares; it is 0 where the references
    are the risks of the pooled model, which no model improves on in the mean."""
    p = 2 if isinstance(loss, Squared) else 1
    pooled = optimum(parts(isinstance(loss, Logistic)), loss, RADII, p, mixtures=MIXTURES["pooled"])[1]
    return {
        "positive": 0.5 * risks_at(loss, pooled) * np.array([1.0, 0.3, 1.2]),
        "zero": risks_at(loss, pooled),
        "negative": risks_at(loss, np.zeros(3)) + np.array([0.0, 1.0, 0.2]),
    }


@pytest.mark.parametrize(
    ("loss", "method"),
    mostly_slow(
        [
            (Squared(True), "one-shot"),
            (Squared(True), "curvature"),
            (Squared(True), "gradients"),
            (Logistic(True), "curvature"),
            (Logistic(True), "gradients"),
            (Absolute(True), "curvature"),
        ],
        lambda case: case[1] != "gradients" and not isinstance(case[0], Absolute),
    ),
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_the_regret_is_that_of_a_cone_program(loss, method):
    p, rng, rows = (
        2 if isinstance(loss, Squared) else 1,
        np.random.default_rng(0),
        parts(isinstance(loss, Logistic)),
    )
    gap = 1e-6 if method == "gradients" else 1e-8
    for sign, references in references_of(loss).items():
        for mixtures in MIXTURES.values() if sign == "positive" else (None, MIXTURES["mixed with limits"]):
            value, best = optimum(rows, loss, RADII, p, mixtures=mixtures, references=references)
            found = solve(problem(loss, mixtures, references), gap, method)
            size = float(SHARE @ risks_at(loss, best))
            assert found.certified
            assert found.gap <= gap
            assert found.lower - 1e-7 * size <= value <= found.upper + 1e-7 * size
            assert found.upper - found.lower <= 2 * gap * (size + abs(value))
            if mixtures is not MIXTURES["l1 ball"]:
                assert np.sign(np.round(value / size, 7)) == {"positive": 1, "zero": 0, "negative": -1}[sign]
            # The risks are the clients' own; the bounds are of what is left of them.
            np.testing.assert_allclose(found.risks, risks_at(loss, found.x), rtol=1e-9)
            over = Simplex(3) if mixtures is None else mixtures
            worst = float(over.linear_maximum(found.risks - references)[0])
            assert worst == pytest.approx(found.upper, abs=1e-12 * size)
            for x in rng.uniform(-1, 1, (50, 3)) * 10.0 ** rng.uniform(-2, 1, (50, 1)):
                assert found.lower <= float(over.linear_maximum(risks_at(loss, x) - references)[0])
                near = np.clip(found.x + 1e-3 * x, -10, 10)
                assert found.lower <= float(over.linear_maximum(risks_at(loss, near) - references)[0]) + 1e-12


def test_references_of_zero_change_nothing_and_equal_ones_shift_the_bounds():
    plain = solve(problem(Squared(True)), 1e-8)
    none = solve(problem(Squared(True), references=np.zeros(3)), 1e-8)
    np.testing.assert_array_equal(plain.x, none.x)
    assert (plain.upper, plain.lower) == (none.upper, none.lower)
    shifted = solve(problem(Squared(True), references=np.full(3, 2.5)), 1e-8)
    np.testing.assert_allclose(shifted.x, plain.x, atol=1e-5)
    np.testing.assert_allclose(
        (shifted.upper, shifted.lower), (plain.upper - 2.5, plain.lower - 2.5), atol=1e-7
    )


def test_weights_carry_the_bound_that_no_risk_is_negative():
    """One client can be fitted exactly and has a negative reference: the least that a risk can be is the
    optimum, and all weight on that client proves it."""
    rows = [np.array([[1.0, 2.0]]), np.array([[1.0, 1.5], [0.5, 1.2], [-1.0, -2.0]])]
    whole = Problem(
        Federation.from_arrays(rows, "unbounded"),
        Squared(),
        Box.cube(10.0, 1),
        Transport.features_only(2),
        None,
        references=np.array([-0.5, 3.0]),
    )
    for method in ("one-shot", "curvature"):
        found = solve(whole, 1e-8, method)
        assert (found.lower, found.upper) == pytest.approx((0.5, 0.5), abs=1e-7)
        assert found.alpha @ (found.risks - whole.references) >= found.lower - 1e-12


def test_many_clients_are_held_in_groups():
    """More clients than a program holds one by one: members have references of their own."""
    rng, n = np.random.default_rng(3), 120
    rows = []
    for _ in range(n):
        theta = rng.normal(size=(6, 1))
        rows.append(np.column_stack([theta, theta[:, 0] * rng.normal() + rng.normal() + rng.normal(size=6)]))
    federation, references = Federation.from_arrays(rows, "unbounded"), rng.uniform(0, 2, n)
    for mixtures in (None, CappedSimplex.mixed(np.full(n, 6), 3.0, 0.4)):
        whole = Problem(
            federation,
            Squared(True),
            Box.cube(20.0, 2),
            Transport.features_only(2),
            None,
            mixtures,
            references,
        )
        found = solve(whole, 1e-7, "curvature")
        again = solve(whole, 1e-7, "one-shot")
        assert found.gap <= 1e-7
        assert again.gap <= 1e-7
        assert max(found.lower, again.lower) <= min(found.upper, again.upper) + 1e-12
        over = whole.mixture_set
        for x in again.x + rng.normal(size=(100, 2)) * 10.0 ** rng.uniform(-4, 1, (100, 1)):
            risks = np.array([np.mean((own[:, 0] * x[0] + x[1] - own[:, 1]) ** 2) for own in rows])
            assert found.lower <= float(over.linear_maximum(risks - references)[0]) + 1e-12


@pytest.mark.parametrize("references", [None, np.array([3.0]), np.array([-2.0])])
def test_added_multiples_prove_no_more_than_holds(references):
    """R(x) = |x| + 1 by its two cuts: multipliers that do not cancel are mended, and references shift what
    they prove by as much."""
    wide = Box.cube(1e6, 1)
    known = References() if references is None else References(references, float(references[0]))
    model = ConeModel(wide, wide, Simplex(1), (), True, known)
    off = 0.0 if references is None else float(references[0])
    cuts = Cuts(
        np.zeros(2, np.int64),
        np.full(2, 1.0 - off),
        np.array([[1.0], [-1.0]]),
        np.zeros(2, np.int64),
        np.zeros(2, np.int64),
        np.zeros((1, 1)),
    )
    slant = np.array([0.5 + 1e-9, 0.5 - 1e-9])
    answer = Answer(np.zeros(1), 1.0, slant, np.ones(1), np.ones(1), np.zeros(0), ())
    bound = _cancelled(model, cuts, np.zeros(1), answer, 0.0, np.inf, -np.inf).bound
    assert 1.0 - off - 1e-8 <= bound <= 1.0 - off + 1e-15


CANDIDATES = (
    Candidate(0.0, math.inf, 0.3),
    Candidate(0.5, 1.5, 0.6),
    Candidate(0.5, 1.5),
    Candidate(0.5, 2.0, 0.0),
)


@pytest.mark.parametrize("kind", ["rows", "replies", "bundle"])
def test_cross_validation_of_mixed_sets_and_regret(kind):
    """By Newton's method from rows here and from replies of compiled clients, and by the bundle method."""
    loss = Logistic(True)
    whole = problem(loss, references=references_of(loss)["zero"], radii=0.0)
    network = Compiled() if kind == "replies" else IN_PROCESS
    found = cross_validate(whole, CANDIDATES, FoldSpec(2, 1), 0.7, Exact(), network, kind != "bundle")
    marks = np.split(whole.federation.folds(2, 1), np.cumsum(SIZES)[:-1])
    training = [own[of != 1] for own, of in zip(parts(True), marks, strict=True)]
    for one, x in zip(CANDIDATES, found.models[1], strict=True):
        radii, over = (
            0.7 * one.scale / np.sqrt([len(own) for own in training]),
            one.mixture_spec.mixtures(SIZES),
        )
        value = optimum(training, loss, radii, 1, mixtures=over, references=whole.references)[0]
        risks = [
            np.mean(np.logaddexp(0, -own[:, 2] * (own[:, :2] @ x[:2] + x[2]))) + eps * np.linalg.norm(x[:2])
            for own, eps in zip(training, radii, strict=True)
        ]
        ours = float(over.linear_maximum(np.array(risks) - whole.references)[0])
        # By its own gap, relative to the risks.
        gap = 1e-3 * float(SHARE @ np.array(risks)) if kind == "bundle" else 3e-4
        assert value - 1e-9 <= ours <= value + gap


def test_cross_validation_from_moments_of_mixed_sets_and_regret():
    """Candidates whose A differs by its mixing alone begin apart, and each ends at its own solution."""
    loss = Squared(True)
    whole = problem(loss, references=references_of(loss)["zero"], radii=0.0)
    marks = whole.federation.folds(3, 1)
    trained = of_folds(np.asarray(whole.federation.samples), np.array(SIZES), marks, 3)
    losses = fold_losses(whole, CANDIDATES, trained)
    again, ends = np.zeros((3, len(CANDIDATES))), np.cumsum(SIZES)[:-1]
    for fold in range(3):
        keep = [of != fold for of in np.split(marks, ends)]
        training = [own[k] for own, k in zip(parts(), keep, strict=True)]
        for j, one in enumerate(CANDIDATES):
            radii, over = (
                one.scale / np.sqrt([len(own) for own in training]),
                one.mixture_spec.mixtures(SIZES),
            )
            x = optimum(training, loss, radii, 2, mixtures=over, references=whole.references)[1]
            for i, (own, k) in enumerate(zip(parts(), keep, strict=True)):
                again[i, j] += np.sum((own[~k, :2] @ x[:2] + x[2] - own[~k, 2]) ** 2) / SIZES[i]
    np.testing.assert_allclose(losses, again, rtol=1e-3)


def test_references_are_checked_and_tell_problems_apart():
    plain = problem(Squared(True))
    for bad, words in (([1.0, 2.0], "3 clients"), ([1.0, np.nan, 0.0], "finite"), ("abc", "numbers")):
        with pytest.raises(BidroError, match=words):
            replace(plain, references=bad)
    with pytest.raises(BidroError, match="3 clients"):
        replace(plain, references=1.0)
    one, other = (replace(plain, references=[0.0, b, 0.0]) for b in (0.0, 1.0))
    assert len({plain.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert "references" in repr(one)
    assert "references" not in repr(plain)
    np.testing.assert_array_equal(other.with_samples(other.federation.samples).references, [0.0, 1.0, 0.0])


def test_algorithms_that_know_no_references_refuse_them():
    with pytest.raises(BidroError, match="references"):
        run(FedAvg(0.1), problem(Squared(True), references=np.ones(3)), 2)
