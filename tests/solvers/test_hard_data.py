"""Certificates and solves on data that are shifted, scaled, noisy or fitted exactly."""

from fractions import Fraction

import numpy as np
import pytest

from bidro.ambiguity import Penalty, WassersteinBall
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.losses import Absolute, Huber, Logistic, SmoothedHinge, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.problem.worst_case import worst_case_distribution
from bidro.risk.inner import Exact
from bidro.risk.transport import Transport
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.bound import require_consistent
from bidro.solvers.bundle.state import Broadcast
from bidro.solvers.solve import GapNotReachedWarning, solve
from tests.small import mostly_slow

SMOOTH = {
    "squared": Squared(intercept=True),
    "huber": Huber(intercept=True),
    "logistic": Logistic(intercept=True),
    "smoothed hinge": SmoothedHinge(intercept=True),
}


def data(labelled=False, seed=1, middle=0.0):
    """Three clients of 40 rows with residuals of 0.3; labels are noisy, so that no classes separate."""
    rng, parts = np.random.default_rng(seed), []
    for k in range(3):
        theta = rng.normal(size=(40, 3))
        y = theta @ [1.0, -0.8, 0.6] + 0.4 * k + 0.3 * rng.normal(size=40) + middle
        if labelled:
            y = np.where(rng.uniform(size=40) < 0.15, -1.0, 1.0) * np.sign(y - np.median(y) + 1e-9)
        parts.append(np.column_stack([theta, y]))
    return parts


def styled(parts, style, seed=5):
    """The half-width of X for rows that are changed, in place, to a style."""
    rng, half_width = np.random.default_rng(seed), 1e3
    for rows in parts:
        if style == "year":
            rows[:, 0], half_width = rows[:, 0] + 2000, 1e4
        elif style == "far":
            rows[:, 0], half_width = rows[:, 0] + 1e5, 1e6
        elif style == "sizes":
            rows[:, :2] *= [1e-8, 1e8]
        elif style == "noise":
            rows[:, 0] = 3.7 + rng.integers(-1, 2, len(rows)) * 4.4e-16
        elif style == "traces":
            rows[:, 0] = rng.integers(-1, 2, len(rows)) * 4.4e-16
        else:
            half_width = 1e6
    return half_width


def problem(parts, loss, eps, p=None, label_cost=np.inf, half_width=10.0, ambiguity=WassersteinBall):
    m = parts[0].shape[1]
    order = p or (2.0 if isinstance(loss, Squared) else 1.0)
    transport = (
        Transport.features_only(m, order)
        if loss.labels is None
        else Transport.classification(m, order, label_cost)
    )
    models = Box.cube(half_width, loss.dimension(m))
    return Problem(Federation.from_arrays(parts, "unbounded"), loss, models, transport, ambiguity(eps))


def squared_risks(parts, x, eps):
    """(RMSE + eps ||w||)^2 in extended precision."""
    wide = [np.asarray(rows, np.longdouble) for rows in parts]
    x = np.asarray(x, np.longdouble)
    rmse = [np.sqrt(np.mean((rows[:, :-1] @ x[:-1] + x[-1] - rows[:, -1]) ** 2)) for rows in wide]
    return np.array([(r + eps * np.sqrt(np.sum(x[:-1] ** 2))) ** 2 for r in rmse])


@pytest.mark.parametrize("method", ["one-shot", "curvature"])
@pytest.mark.parametrize("middle", [0.0, 1e4, 1e6, 7e6])
def test_bounds_hold_however_far_the_target_is_from_zero(method, middle):
    parts, eps = data(middle=middle), 0.05
    found = solve(problem(parts, SMOOTH["squared"], eps, half_width=1e8), method=method)
    truth = squared_risks(parts, found.x, eps)
    assert np.all(found.risks >= truth * (1 - 1e-9))
    assert np.all(found.risks <= truth * (1 + 1e-6))
    assert 0 <= found.gap <= 1e-6
    # The optimum does not depend on where the target's zero is.
    reference = solve(problem(data(), SMOOTH["squared"], eps, half_width=1e8))
    assert found.lower <= reference.upper * (1 + 1e-9)
    assert found.upper >= reference.lower * (1 - 1e-9)


@pytest.mark.parametrize("loss", [Squared(intercept=True), Huber(intercept=True), Absolute(intercept=True)])
def test_the_gap_is_one_of_residuals(loss):
    """A gap relative to how far targets are from 0 would hide everything: slope 0, interval [0, 0.65]."""
    parts = data(middle=1e6)
    found = solve(problem(parts, loss, 0.0, half_width=1e8))
    assert found.upper - found.lower <= 2e-6 * found.upper
    np.testing.assert_allclose(found.x[:3], [1.0, -0.8, 0.6], atol=0.3)


@pytest.mark.parametrize("loss", [Squared(), Absolute()])
def test_a_column_of_ones_is_as_good_as_an_intercept(loss):
    """The first model is then far off, and the gap is still one of residuals."""
    parts = [np.column_stack([np.ones(40), rows]) for rows in data(middle=1e9)]
    found = solve(problem(parts, loss, 0.0, half_width=1e10))
    assert found.upper - found.lower <= max(2e-6, 2 * found.gap) * found.upper


def test_a_solution_resumes_with_its_own_rows_only():
    parts = data()
    first = solve(problem(parts, SMOOTH["squared"], 0.1), gap=1e-3)
    swapped = [rows.copy() for rows in parts]
    swapped[1][[5, 6], -1] = swapped[1][[6, 5], -1]
    with pytest.raises(BidroError, match="resumes only with the problem"):
        solve(problem(swapped, SMOOTH["squared"], 0.1), resume=first)


@pytest.mark.parametrize("name", [*SMOOTH])
@pytest.mark.parametrize("eps", [0.0, 0.05])
@pytest.mark.parametrize("style", ["year", "far", "sizes", "noise", "traces", "wide"])
def test_smooth_losses_reach_the_gap_on_data_of_any_kind(name, eps, style):
    loss = SMOOTH[name]
    parts = data(labelled=loss.labels is not None)
    half_width = styled(parts, style)
    assert solve(problem(parts, loss, eps, half_width=half_width), max_rounds=30).gap <= 1e-6


@pytest.mark.parametrize(
    ("style", "eps", "seed"),
    [
        ("sizes", 0.0, 0),
        ("sizes", 0.0, 4),
        ("traces", 0.0, 3),
        ("far", 0.0, 4),
        ("sizes", 0.05, 3),
    ],
)
def test_softmax_reaches_the_gap_on_data_of_any_kind(style, eps, seed):
    """What all scores have in common is seen by nobody, in steps and in proofs."""
    parts = data(seed=seed)
    for rows in parts:
        rows[:, -1] = np.digitize(rows[:, -1], [-0.5, 0.8])
    made = problem(parts, Softmax(3, intercept=True), eps, half_width=styled(parts, style, 5 + seed))
    assert solve(made, max_rounds=30).gap <= 1e-6


@pytest.mark.parametrize(("name", "seed"), [("logistic", 7), ("smoothed hinge", 1), ("smoothed hinge", 4)])
def test_the_proof_keeps_up_with_the_model(name, seed):
    """Columns of sizes 1e-8 and 1e8: the model is settled after five rounds, and the last digits of slopes
    are then all that keeps the bound from it."""
    parts = data(labelled=True, seed=seed)
    for rows in parts:
        rows[:, :2] *= [1e-8, 1e8]
    assert solve(problem(parts, SMOOTH[name], 0.05, half_width=1e3), max_rounds=20).gap <= 1e-6


@pytest.mark.parametrize("seed", [0, 2])
def test_scores_that_all_rise_together_cost_a_bound_nothing(seed):
    parts = data(seed=seed)
    for rows in parts:
        rows[:, -1] = np.digitize(rows[:, -1], [-0.5, 0.8])
    assert solve(problem(parts, Softmax(3, intercept=True), 0.05, half_width=1e6), max_rounds=20).gap <= 1e-6


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_risks_are_not_below_the_truth_by_rounding(size):
    """One row, fitted to the last digit: what is left of its residual is rounding, and not 0."""
    row = np.array([[0.1, 0.7, 0.3]]) * [1, 1, size]
    x = np.array([0.2, (0.3 * size - 0.1 * 0.2) / 0.7])
    exact = [Fraction(float(v)) for v in (*row[0], *x)]
    truth = abs(exact[0] * exact[3] + exact[1] * exact[4] - exact[2])
    made = problem([row], Absolute(), 0.0, half_width=1e6)
    replies, _ = IN_PROCESS.clients_of(made)(ExactMWDRO(Exact()), Broadcast(x, np.zeros(())), 1)
    assert Fraction(float(replies.upper[0])) >= truth
    assert Fraction(float(replies.attained[0])) <= truth
    assert float(replies.upper[0]) <= 1e-13 * size


def test_tiny_residuals_are_not_near_a_slope():
    """Huber loss of residuals of 1e-12 is quadratic: its risk is about their square, not their size."""
    parts = [rows * 1e-12 for rows in data()]
    made = problem(parts, Huber(intercept=True), 1e-13, p=2.0)
    x = np.array([1.0, -0.8, 0.6, 0.0])
    replies, _ = IN_PROCESS.clients_of(made)(ExactMWDRO(Exact()), Broadcast(x, np.zeros(())), 1)
    assert np.all(np.asarray(replies.upper) <= np.asarray(replies.attained) * (1 + 1e-6))


@pytest.mark.parametrize(
    ("eps", "rows"), mostly_slow([(0.05, 12), (0.05, 40), (0.3, 40)], lambda case: case[1] < 40)
)
def test_softmax_with_a_quadratic_cost_reaches_the_gap(eps, rows):
    parts = [own[:rows] for own in data()]
    for own in parts:
        own[:, -1] = np.digitize(own[:, -1], [-0.5, 0.8])
    assert solve(problem(parts, Softmax(3, intercept=True), eps, p=2.0), max_rounds=30).gap <= 1e-6


@pytest.mark.parametrize("name", ["logistic", "smoothed hinge"])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_labels_at_a_price_leave_the_model_without_slope(name, seed):
    """p = 2, unbounded: at x = 0 moves of features gain to first order, whatever labels cost."""
    parts = data(labelled=True, seed=seed)
    made = problem(parts, SMOOTH[name], 0.25, p=2.0, label_cost=1.0, half_width=1e3)
    found = solve(made, max_rounds=60)
    assert found.gap <= 1e-6
    assert np.linalg.norm(found.x[:3]) > 0.01


def test_penalties_prove_nothing_about_models_that_are_not_trained():
    """Rows y = x: the model 1 at the edge of the domain has risk 0, and training stops short of it."""
    x = np.linspace(-1, 1, 10)
    rows = [np.column_stack([x, x])] * 2
    with pytest.warns(GapNotReachedWarning):
        found = solve(problem(rows, Squared(), 1.0, ambiguity=Penalty))
    assert found.lower <= 0
    assert found.upper < 1e-6


def test_where_every_loss_can_be_zero_no_client_counts_most():
    rows = data()
    for part in rows:
        part[:, -1] = part[:, :-1] @ [1.0, 2.0, 3.0]
    found = solve(problem(rows, SMOOTH["squared"], 0.0))
    np.testing.assert_allclose(found.alpha, 1 / 3)


@pytest.mark.parametrize(("size", "word"), [(1e-160, "lost in rounding"), (1e160, "too large")])
def test_numbers_without_squares_are_refused(size, word):
    parts = [rows * [1, 1, 1, size] for rows in data()]
    with pytest.raises(BidroError, match=word):
        problem(parts, SMOOTH["squared"], 0.1)


def test_bounds_that_contradict_each_other_are_an_error():
    require_consistent(1.0 + 1e-10, 1.0, 1.0, 3)
    with pytest.raises(BidroError, match="In round 3 the clients' replies contradict each other"):
        require_consistent(1.001, 1.0, 1.0, 3)


def test_a_client_that_contradicts_itself_is_noticed():
    """Its cut lies above what it later says its risk is."""
    made = problem(data(), SMOOTH["squared"], 0.0)
    algorithm = ExactMWDRO(Exact())
    state, ask = algorithm.init(made), IN_PROCESS.clients_of(made)
    for t in (1, 2, 3):
        replies, replied = ask(algorithm, algorithm.broadcast(state), t)
        state = algorithm.server(state, replies, replied)
    replies, replied = ask(algorithm, algorithm.broadcast(state), 4)
    with pytest.raises(BidroError, match="contradict each other"):
        algorithm.server(state, replies._replace(upper=replies.upper * 0.5), replied)


@pytest.mark.parametrize("loss", [Absolute(intercept=True), Huber(threshold=1e-13, intercept=True)])
def test_worst_cases_of_tiny_data_attain_the_risk(loss):
    rows = [part * 1e-12 for part in data()]
    made = problem(rows, loss, 1e-13)
    found = worst_case_distribution(made, [1.0, -0.8, 0.6, 0.0], made.federation.names[0])
    assert abs(found.deficit) <= 1e-6 * found.risk


@pytest.mark.parametrize("rows", mostly_slow([1, 2, 5], lambda rows: rows != 2))
def test_worst_cases_stay_in_the_ball_where_moves_jump(rows):
    """Rows that are fitted exactly jump to either side at one price."""
    eps, part = 1e-3, data()[0][:rows]
    part[:, -1] = part[:, :-1] @ [1.0, 2.0, 3.0]
    made = problem([part], Huber(intercept=True), eps, p=2.0)
    found = worst_case_distribution(made, [1.0, 2.0, 3.0, 0.0], made.federation.names[0])
    cost = found.masses @ made.transport.row_costs(part[found.origins], found.points)
    assert cost <= eps**2 * (1 + 1e-9)
    assert found.masses.sum() == pytest.approx(1.0, abs=1e-12)
    assert -1e-9 <= found.deficit / found.risk <= 1e-6
