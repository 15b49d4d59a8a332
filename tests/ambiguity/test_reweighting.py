"""KL, chi-squared and total variation balls and CVaR against cvxpy: optima, worst weights, odd scales."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from bidro import (
    Absolute,
    Box,
    CappedSimplex,
    CustomLoss,
    Federation,
    Hinge,
    Logistic,
    Problem,
    Softmax,
    Squared,
    Transport,
    robust_risk,
    run,
    solve,
    worst_case_distribution,
)
from bidro.ambiguity import ChiSquaredBall, CVaR, KLBall, TotalVariationBall
from bidro.core.errors import BidroError
from bidro.federated.baselines import GroupDROBalls

KINDS = {
    "KL": (KLBall, [0.1, 0.3, 0.05]),
    "chi-squared": (ChiSquaredBall, [0.2, 0.5, 1.0]),
    "CVaR": (CVaR, [0.5, 0.8, 0.3]),
    "total variation": (TotalVariationBall, [0.1, 0.2, 0.05]),
}
LOSSES = {
    "squared": (Squared(), cp.square),
    "absolute": (Absolute(), cp.abs),
    "logistic": (Logistic(), lambda u: cp.logistic(-u)),
    "hinge": (Hinge(), lambda u: cp.pos(1 - u)),
}


def clients(labels=False):
    rng, found = np.random.default_rng(0), {}
    for k, size in enumerate((30, 45, 12)):
        X = rng.normal(size=(size, 3))
        y = X.sum(axis=1) * (1 + 0.3 * k) + 0.5 * rng.standard_t(4, size=size)
        found[f"client {k}"] = np.column_stack([X, np.where(y > 0, 1.0, -1.0) if labels else y])
    return found


def problem(loss, ambiguity, rows=None, **how):
    rows = clients(loss.labels is not None) if rows is None else rows
    m = next(iter(rows.values())).shape[1]
    cost = Transport.features_only(m) if loss.labels is None else Transport.classification(m)
    models = Box.cube(5.0, loss.dimension(m))
    return Problem(Federation.from_arrays(rows, "unbounded"), loss, models, cost, ambiguity, **how)


def by_dual(kind, losses, level):
    """(R, constraints) of losses (N,), an expression, by each set's dual as its papers state it."""
    count, eta = losses.shape[0], cp.Variable()
    if kind == "KL":
        t, above, size = cp.Variable(nonneg=True), cp.Variable(count), cp.Variable(count)
        inside = [above >= losses, cp.constraints.ExpCone(above - eta, t * np.ones(count), size)]
        return t * level + eta, [*inside, cp.sum(size) / count <= t]
    if kind == "chi-squared":
        return eta + np.sqrt((1 + level) / count) * cp.norm(cp.pos(losses - eta)), []
    excess = cp.sum(cp.pos(losses - eta)) / count
    if kind == "CVaR":
        return eta + excess / (1 - level), []
    return level * cp.max(losses) + (1 - level) * eta + excess, []


def by_weights(kind, losses, level):
    """The same over the weights q themselves."""
    count = len(losses)
    q = cp.Variable(count, nonneg=True)
    inside = {
        "KL": lambda: cp.sum(-cp.entr(q)) / count <= level,
        "chi-squared": lambda: cp.sum_squares(q - 1) / count <= level,
        "CVaR": lambda: q <= 1 / (1 - level),
        "total variation": lambda: cp.norm1(q - 1) / (2 * count) <= level,
    }[kind]()
    scale = np.abs(losses).max()
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    return scale * cp.Problem(cp.Maximize(losses @ q / (scale * count)), [inside, cp.sum(q) == count]).solve(
        cp.CLARABEL, **tight
    )


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_that_of_a_cone_solver(kind, loss):
    made, form = LOSSES[loss]
    make, levels = KINDS[kind]
    x, t = cp.Variable(3), cp.Variable()
    limits = [cp.abs(x) <= 5]
    for own, level in zip(clients(made.labels is not None).values(), levels, strict=True):
        score = own[:, :3] @ x
        u = score - own[:, 3] if made.labels is None else cp.multiply(own[:, 3], score)
        risk, inside = by_dual(kind, form(u), level)
        limits += [*inside, risk <= t]
    tight = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    least = cp.Problem(cp.Minimize(t), limits).solve(cp.CLARABEL, **tight)
    found = solve(problem(made, make(levels)), 5e-8)
    assert found.certified
    assert found.gap <= 5e-8
    assert found.upper == pytest.approx(least, rel=1e-7)
    assert found.lower <= least * (1 + 1e-8)


ODD = {
    "one row": np.array([3.0]),
    "all the same": np.full(5, 2.0),
    "two of many": np.array([0.0] * 9 + [1.0, 1.0]),
    "duplicates": np.repeat(np.random.default_rng(1).exponential(size=6), 4),
    "negative": np.random.default_rng(2).normal(size=17) - 5.0,
    "tiny": 1e-8 * np.random.default_rng(3).exponential(size=13),
    "huge": 1e8 * np.random.default_rng(4).exponential(size=13),
    "far from 0": 1e6 + np.random.default_rng(5).exponential(size=20),
}
LEVELS = {"KL": (0.0, 1e-9, 0.2, 50.0), "chi-squared": (0.0, 1e-9, 0.5, 1e8)}


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("style", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_worst_weights_are_in_the_set_and_attain_the_best(kind, style):
    losses, count = ODD[style], len(ODD[style])
    for level in LEVELS.get(kind, (0.0, 1e-9, 0.37, 0.999)):
        q = KINDS[kind][0](level).row_weights(losses)
        assert np.all(q >= 0)
        assert q.mean() == pytest.approx(1, abs=1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = {
                "KL": np.mean(np.where(q > 0, q * np.log(q), 0.0)),
                "chi-squared": np.mean((q - 1) ** 2),
                "CVaR": 1 - 1 / q.max(),
                "total variation": np.mean(np.abs(q - 1)) / 2,
            }[kind]
        assert distance <= level * (1 + 1e-9) + 1e-12
        if level in (0.0, 1e-9):
            assert np.mean(q * losses) == pytest.approx(losses.mean(), rel=1e-4)
        elif level > 1 or level == 0.999:
            assert np.mean(q * losses) == pytest.approx(losses.max(), rel=1e-2 if kind == "CVaR" else 1e-3)
        else:
            best = by_weights(kind, losses - losses.mean() + np.ptp(losses) + 1e-300, level)
            size = np.ptp(losses) or 1.0
            shifted = best + losses.mean() - np.ptp(losses)
            assert abs(np.mean(q * losses) - shifted) <= 1e-7 * size + 1e-12 * np.abs(losses).max(), count


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_hold_at_any_scale_and_are_attained(kind, scale):
    """Below the upper end lie the worst distribution and the cut from any other model, on either backend."""
    make, levels = KINDS[kind]
    rows = {name: own * [1.0, 1.0, 1.0, scale] for name, own in clients().items()}
    given = problem(Squared(), make(levels), rows)
    x, y = scale * np.array([0.9, 1.2, 0.4]), scale * np.array([1.5, -0.3, 0.2])
    here, there = robust_risk(given, x, curvature=False), robust_risk(given, y, curvature=False)
    host = given.ambiguity_set.on_host(
        given.inner, given.federation.host_rows, np.array([30, 45, 12]), x, 0.0, True
    )
    np.testing.assert_allclose(host.value, here.value, rtol=1e-11)
    np.testing.assert_allclose(host.gradient, here.gradient, rtol=1e-6, atol=1e-9 * scale)
    for found in (here, host):
        assert np.all(found.attained <= found.value)
        assert np.all(found.attained >= found.value * (1 - 1e-9))
        assert np.all(found.attained + found.gradient @ (y - x) <= there.value * (1 + 1e-12))
    for k, name in enumerate(rows):
        worst = worst_case_distribution(given, x, name)
        assert worst.masses.sum() == pytest.approx(1)
        assert worst.expected_loss <= here.value[k] * (1 + 1e-12)
        assert worst.expected_loss >= here.value[k] * (1 - 1e-9)
    found = solve(given, 1e-6)
    assert found.gap <= 1e-6
    assert found.lower <= found.upper
    assert np.all(robust_risk(given, found.x, curvature=False).value <= found.upper * (1 + 1e-9))


@pytest.mark.parametrize("kind", KINDS)
def test_smoothed_curvature_is_the_second_derivative(kind):
    """By differences of the smoothed risks' slopes, where no row is at an edge of what is smoothed."""
    make, levels = KINDS[kind]
    given = problem(Logistic(), make(levels))
    sizes, x, step = np.array([30, 45, 12]), np.array([0.3, 0.1, -0.2]), 1e-6

    def at(v, width=0.5):
        return given.ambiguity_set.on_host(given.inner, given.federation.host_rows, sizes, v, width, True)

    slopes = [(at(x + step * e).gradient - at(x - step * e).gradient) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(at(x).curvature, np.stack(slopes, axis=2), rtol=1e-4, atol=1e-6)


def test_losses_of_several_scores_and_functions_are_solved_too():
    """By compiled programs: softmax of two classes is logistic loss, and a function is what it computes."""
    labelled = {name: own[:, [0, 3]] for name, own in clients(labels=True).items()}
    logistic = solve(problem(Logistic(), CVaR(0.5), labelled), 1e-6)
    classes = {name: np.column_stack([own[:, 0], own[:, 1] > 0]) for name, own in labelled.items()}
    softmax = solve(problem(Softmax(2), CVaR(0.5), classes), 1e-6)
    assert softmax.upper == pytest.approx(logistic.upper, rel=3e-6)
    numbers = {name: own[:, 2:] for name, own in clients().items()}
    own = CustomLoss(lambda w, xi: (w[0] * xi[0] - xi[1]) ** 2, np.zeros(1), convex=True, never_negative=True)
    for ambiguity in (KLBall(0.2), TotalVariationBall(0.1)):
        found = solve(problem(own, ambiguity, numbers), 1e-6)
        assert found.upper == pytest.approx(
            solve(problem(Squared(), ambiguity, numbers), 1e-6).upper, rel=3e-6
        )


def test_a_client_of_no_weight_and_one_row_do_no_harm():
    rows = clients() | {"alone": np.array([[1.0, 2.0, 3.0, 4.0]])}

    for make, _ in KINDS.values():
        given = problem(
            Squared(), make(0.3), rows, mixtures=CappedSimplex([0, 0, 0.2, 0.1], [0.0, 1, 1, 0.1])
        )
        found = solve(given, 1e-6)
        assert found.gap <= 1e-6
        assert found.alpha[0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_one_row_holds_nobody_back(kind):
    """All of its losses are the same, so that weights change nothing, and an intercept makes them 0."""
    make, levels = KINDS[kind]
    for seed in (3, 6):
        rng, rows = np.random.default_rng(seed), {}
        for name, size in (("one", 1), ("thirty", 30)):
            X = rng.normal(size=(size, 2))
            rows[name] = np.column_stack([X, X @ [1.0, -0.5] + 0.3 * rng.normal(size=size)])
        found = solve(problem(Absolute(intercept=True), make(levels[1]), rows))
        x, t, limits = cp.Variable(3), cp.Variable(), []
        for own in rows.values():
            risk, inside = by_dual(kind, cp.abs(own[:, :2] @ x[:2] + x[2] - own[:, 2]), levels[1])
            limits += [*inside, risk <= t]
        limits.append(cp.abs(x) <= 5)
        least = cp.Problem(cp.Minimize(t), limits).solve(cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        assert found.upper == pytest.approx(least, rel=2e-6)


def test_steps_train_on_them_too():
    found = run(GroupDROBalls(0.02, 0.1), problem(Squared(), KLBall(0.1)), 2000)
    exact = solve(problem(Squared(), KLBall(0.1)), 1e-6)
    assert np.max(robust_risk(problem(Squared(), KLBall(0.1)), found.x_average).value) < 1.05 * exact.upper


def test_levels_that_make_no_set_are_refused():
    for wrong, words in (
        (KLBall(-1.0), "at least 0"),
        (KLBall(np.inf), "finite"),
        (CVaR(1.0), "below 1"),
        (TotalVariationBall([0.1, 0.2]), "3 clients"),
        (ChiSquaredBall("wide"), "must be numbers"),
    ):
        with pytest.raises(BidroError, match=words):
            problem(Squared(), wrong)
    nothing = replace(problem(Squared(), CVaR(0.0)))
    assert not nothing.ambiguity_set.matters
    assert solve(nothing, 1e-8).upper == pytest.approx(solve(problem(Squared(), None), 1e-8).upper, rel=1e-7)
