"""A private fit: from noisy sums to a model, against cone programs on the same sums and plain NumPy."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy.stats import norm

from bidro.certify.held_out import noisy_client_bound
from bidro.core.errors import BidroError
from bidro.data.standardise import Standard
from bidro.fit.fit import fit
from bidro.fit.fitted import Options
from bidro.fit.network import LocalNetwork
from bidro.fit.private import _HeldOutSums, added_up, noisy_sums, private_plan, reported_budgets
from bidro.fit.private_side import PrivateClient, PrivateRows, at_most_each, in_agreed_units
from bidro.fit.questions import GradientsQuery, NoisyHoldoutQuery, NoisyLosses
from bidro.fit.settings import FitSettings
from bidro.fit.training import AlgorithmOne
from bidro.losses.registry import LossChoice
from bidro.model.predictor import Predictor
from bidro.privacy.discrete_gaussian import seeded_bits
from bidro.privacy.mechanisms import JOINT_STEPS, Noisy, bernstein, symmetric
from bidro.privacy.noisy_model import NoisySums, Pooled, around_means, positive
from bidro.privacy.terms import Budget, Plan, Terms

UNITS = Standard(np.array([1.0, -2.0]), np.array([2.0, 1.0]), 3.0, 2.0)
OPTIONS = Options(
    LossChoice("squared", None), FitSettings(weights="fixed", personal=None), units=UNITS, privacy=Terms()
)
CLASSES = replace(
    OPTIONS, loss=LossChoice("logistic", 2), units=replace(UNITS, middle=0.0, target_spread=1.0)
)


def rows(sizes=(300, 500, 400), seed=0, classes=False):
    """Features, targets and clients that differ in slope."""
    rng = np.random.default_rng(seed)
    clients = np.repeat([f"site-{i}" for i in range(len(sizes))], sizes)
    x = np.column_stack([rng.normal(1, 2, len(clients)), rng.normal(-2, 1, len(clients))])
    slope = np.repeat(1 + 0.2 * np.arange(len(sizes)), sizes)
    y = 3 + slope * (x[:, 0] - 1) - 0.7 * (x[:, 1] + 2) + rng.normal(size=len(clients))
    return x, (np.where(y > 3, 1.0, -1.0) if classes else y), clients


def network(budget, seed=0, bits=None, hold_out=0.2, people=None, **how):
    x, y, clients = rows(**how)
    made = LocalNetwork.of(x, y, clients, ("u", "v", "y"), hold_out, seed, people, budget)
    return made if bits is None else replace(made, bits=seeded_bits(bits))


def z_of(net, standard=UNITS):
    """The training rows z of a network that no fit has used yet, all clients together."""
    copied = net.rows.copy()
    standard.convert(copied)
    return in_agreed_units(copied, standard.target_spread)


def test_the_projection_is_the_nearest_positive_semidefinite_matrix():
    rng = np.random.default_rng(0)
    for m in (2, 4, 7):
        matrix = rng.normal(size=(m, m))
        matrix = matrix + matrix.T
        found = cp.Variable((m, m), PSD=True)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(found - matrix)))
        problem.solve(solver="CLARABEL")
        ours = positive(matrix)
        assert np.linalg.eigvalsh(ours)[0] >= -1e-12
        assert np.sum((ours - matrix) ** 2) == pytest.approx(problem.value, rel=1e-6)


def test_least_squares_on_noisy_moments_against_a_cone_program():
    """The same noisy sums, projected and solved by another program: ridge regression."""
    net = network(Budget(1.0), bits=1)
    plan = private_plan(OPTIONS, ("u", "v"), people=False)
    told = net.privately(UNITS, plan).moments()
    budgets = reported_budgets(told.budget)
    assert budgets == (Budget(1.0),) * 3
    sums = noisy_sums(plan, told, budgets)
    by = np.full(3, 1 / sums.counts.sum())
    pooled = sums.pooled(by)
    matrix = np.tensordot(by, sums.values, axes=1)
    projected = cp.Variable((4, 4), PSD=True)
    cp.Problem(cp.Minimize(cp.sum_squares(projected - matrix))).solve(solver="CLARABEL", tol_gap_abs=1e-12)
    noise = np.linalg.norm(by * sums.noise)
    values, vectors = np.linalg.eigh(projected.value)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    x = cp.Variable(3)
    residual = root[:, :3] @ x - root[:, 3]
    ridge = 0.5 * noise * np.sqrt(2 * 4)
    cp.Problem(cp.Minimize(cp.sum_squares(residual) + ridge * cp.sum_squares(x))).solve(solver="CLARABEL")
    np.testing.assert_allclose(pooled.least_squares(), x.value, atol=2e-5)
    assert pooled.ridge == pytest.approx(ridge)


def test_the_sums_are_those_of_the_rows_as_they_are_clipped_and_their_noise_is_as_planned():
    net = network(Budget(1.0))
    z, plan = z_of(net), private_plan(OPTIONS, ("u", "v"), people=False)
    weight = np.minimum(1.0, plan.clip / np.linalg.norm(z, axis=1))
    expected = np.einsum("ni,nj->ij", z * weight[:, None], z * weight[:, None])
    one = PrivateClient(PrivateRows(z, z[:0]), plan, None)
    exact = symmetric(Noisy(one.moments().values, plan.moments_scale(None)).sums, 4)
    np.testing.assert_allclose(exact, expected, rtol=1e-4, atol=1e-2)
    scale = plan.moments_scale(Budget(1.0))
    assert scale.sigma[1] == pytest.approx(scale.sigma[0] / np.sqrt(2))
    # rho of the moments is their share of what losses leave of the budget: sigma = C^2 / sqrt(2 rho).
    rho = 0.2 * 0.7 * float(Budget(1.0).rho)
    assert scale.sigma[0] == pytest.approx(plan.clip**2 / np.sqrt(2 * rho), rel=1e-9)
    drawn = np.stack(
        [
            Noisy(PrivateClient(one.rows, plan, Budget(1.0), seeded_bits(s)).moments().values, scale).sums
            for s in range(200)
        ]
    )
    exactly = Noisy(one.moments().values, plan.moments_scale(None)).sums
    off = (drawn - exactly) / scale.sigma
    assert abs(off.mean()) < 4 / np.sqrt(off.size)
    assert off.var() == pytest.approx(1.0, abs=4 * np.sqrt(2 / off.size))


@pytest.mark.parametrize("classes", [False, True])
def test_gradients_are_those_of_the_loss(classes):
    net = network(Budget(1.0), classes=classes)
    options = CLASSES if classes else OPTIONS
    z, plan = z_of(net, options.units), private_plan(options, ("u", "v"), people=False)
    x, one = np.array([0.3, -0.2, 0.1]), PrivateClient(PrivateRows(z, z[:0]), plan, None)
    turned = np.array([[1.0, 0.5, 0.0], [-0.5, 1.0, 0.0], [0.25, 0.0, 2.0]])
    query = GradientsQuery(x, turned, np.array(1e4), np.array(2.0**30))
    sums = Noisy(one.gradients(query).values, plan.gradients_scale(None, 1e4, 2.0**30)).sums
    score, y = z[:, :-1] @ x, z[:, -1]
    slope = -y / (1 + np.exp(y * score)) if classes else 2 * (score - y)
    np.testing.assert_allclose(sums[:3], slope @ z[:, :-1] @ turned, rtol=1e-3, atol=1.0)
    # Nothing was scaled down: all rows are counted, each as a quarter of the clip.
    assert sums[3] == pytest.approx(0.25 * 1e4 * len(z), rel=1e-6)
    # With a small clip those alone whose gradient is shorter; the others count by their direction.
    rows = slope[:, None] * z[:, :-1] @ turned
    length = np.linalg.norm(rows, axis=1)
    clip = float(np.median(length))
    query = query._replace(clip=np.array(clip))
    sums = Noisy(one.gradients(query).values, plan.gradients_scale(None, clip, 2.0**30)).sums
    short = length <= np.sqrt(15 / 16) * clip
    assert sums[3] == pytest.approx(0.25 * clip * short.sum(), rel=1e-6)
    clipped = rows * np.minimum(1, clip / length)[:, None]
    np.testing.assert_allclose(sums[:3], clipped.sum(axis=0), rtol=1e-4, atol=0.01)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_row_more_changes_what_is_told_of_gradients_by_no_more_than_is_paid_for(loss):
    """In whole steps, whatever a server asks: any model, any directions, any clip; and by that much exactly
    where the gradient and the loss are as long as they count."""
    rng = np.random.default_rng(0)
    plan, attained = Plan.of(Terms(), loss, 2), 0
    for _ in range(300):
        z = np.column_stack([rng.normal(size=(20, 2)) * 10.0 ** rng.uniform(-3, 3), np.ones(20)])
        z = np.column_stack([z, np.where(rng.normal(size=20) > 0, 1.0, -1.0)])
        query = GradientsQuery(
            rng.normal(size=3) * 10.0 ** rng.uniform(-2, 2),
            rng.normal(size=(3, 3)) * 10.0 ** rng.uniform(-3, 3, size=3),
            np.array(10.0 ** rng.uniform(-3, 3)),
            np.array(2.0 ** rng.integers(-6, 6)),
        )
        whole, less = (
            PrivateClient(PrivateRows(rows, rows[:0]), plan, None).gradients(query).values
            for rows in (z, z[1:])
        )
        square = sum(int(v) ** 2 for v in whole - less)
        assert square <= JOINT_STEPS**2
        attained += square >= (0.9999 * JOINT_STEPS) ** 2
    assert attained > 0


def test_with_a_huge_budget_the_model_is_that_of_pooled_least_squares():
    """And closer the larger it is; the agreed clip is one that no row reaches."""
    far = []
    for epsilon in (1.0, 30.0, 1e6):
        net = network(Budget(epsilon), bits=3)
        z = z_of(net)
        exact = np.linalg.lstsq(z[:, :-1], z[:, -1], rcond=None)[0] * UNITS.target_spread
        fitted = fit(net, replace(OPTIONS, privacy=Terms(clip=20.0)))
        far.append(np.abs(fitted.trained.x - exact).max())
    assert far[2] < 1e-3 < far[1] < far[0]


def test_curves_with_a_huge_budget_are_those_of_least_squares_on_hats():
    """Knots are at the quartiles of a normal column of the agreed centre and spread: known without a row."""
    options = replace(OPTIONS, choices=FitSettings(weights="fixed", personal=None, curves={"u": 4}))
    options = replace(options, privacy=Terms(gradients=40))
    net = network(Budget(1e5), bits=3, hold_out=0.0, sizes=(3000, 5000, 4000))
    z, knots = z_of(net), norm.ppf([0.25, 0.5, 0.75])
    fitted = fit(net, options)
    hats = [np.interp(z[:, 0], knots, np.eye(3)[j]) for j in range(3)]
    beyond = [np.minimum(z[:, 0] - knots[0], 0), np.maximum(z[:, 0] - knots[2], 0)]
    columns = np.column_stack([*hats, *beyond, z[:, 1]])
    best = columns @ np.linalg.lstsq(columns, z[:, -1], rcond=None)[0]
    model = fitted.trained.problem.loss
    scores = np.column_stack([model.basis.expand(z[:, :2]), z[:, 2]]) @ fitted.trained.x
    assert np.mean((scores / 2 - best) ** 2) < 1e-4 * np.var(best)
    assert fitted.trained.segments.basis.most_segments.tolist() == [4, 1]
    # Lines are what is left to the rows.
    lines = replace(options, choices=replace(options.choices, curves={"v": None, "u": "auto"}))
    assert private_plan(lines, ("u", "v"), people=False).basis is None


def test_logistic_loss_with_a_huge_budget_ends_near_the_solution():
    net = network(Budget(1e6), bits=3, classes=True)
    z = z_of(net, CLASSES.units)
    x = np.zeros(3)
    for _ in range(30):  # Newton's method
        p = 1 / (1 + np.exp(z[:, -1] * (z[:, :-1] @ x)))
        gradient = -(z[:, -1] * p) @ z[:, :-1]
        x = x - np.linalg.solve((z[:, :-1] * (p * (1 - p))[:, None]).T @ z[:, :-1], gradient)
    least = np.logaddexp(0, -z[:, -1] * (z[:, :-1] @ x)).mean()
    terms = Terms(gradients=60, clip=20.0)
    fitted = fit(net, replace(CLASSES, privacy=terms))
    ours = np.logaddexp(0, -z[:, -1] * (z[:, :-1] @ fitted.trained.x)).mean()
    assert ours <= least * 1.01


def test_capped_weights_solve_the_minimax_problem_of_the_shrunk_moments():
    """Against a cone program on the same moments; the gradients that follow keep the weights."""
    net = network(Budget(8.0), bits=5, sizes=(500, 500, 500))
    plan = private_plan(OPTIONS, ("u", "v"), people=False)
    clients = net.privately(UNITS, plan)
    told = clients.moments()
    sums = noisy_sums(plan, told, reported_budgets(told.budget))
    means = sums.shrunk()
    share = sums.counts / sums.counts.sum()
    noise = float(np.linalg.norm(share / sums.counts * sums.noise))
    moments = around_means(means, Pooled(np.tensordot(share, means, axes=1), noise).ridge)
    x, t = cp.Variable(3), cp.Variable()
    rules = []
    for mean, around in zip(*moments, strict=True):
        values, vectors = np.linalg.eigh(around)
        root = (vectors * np.sqrt(np.maximum(values, 0))).T
        v = cp.hstack([x[:2], -1])
        rules.append(cp.sum_squares(root @ v) + (mean @ v + x[2]) ** 2 <= t)
    problem = cp.Problem(cp.Minimize(t), rules)
    problem.solve(solver="CLARABEL")
    again = network(Budget(8.0), bits=5, sizes=(500, 500, 500))
    worst = replace(OPTIONS, choices=FitSettings(weights="simplex", personal=None))
    fitted = fit(again, replace(worst, privacy=Terms(gradients=1)))
    weights = np.abs([np.ravel(rule.dual_value)[0] for rule in rules])
    np.testing.assert_allclose(fitted.trained.alpha, weights, atol=5e-3)
    assert fitted.trained.mixture_spec.max_weight_ratio == np.inf


def test_a_client_is_drawn_to_the_others_by_as_much_as_is_noise():
    rng = np.random.default_rng(0)
    common, own = np.diag([2.0, 1.0, 1.0]), np.diag([3.0, 1.0, 2.0])
    noise = rng.normal(size=(3, 3))
    values = np.stack([1000 * common, 1000 * common, 1000 * own + (noise + noise.T) / 2])
    same = NoisySums(values, np.array([0.0, 0.0, 1e4])).shrunk()
    exact = NoisySums(values, np.zeros(3)).shrunk()
    # All is noise: the common moments. None is: its own.
    np.testing.assert_allclose(same[2], values.sum(axis=0) / values[:, 1, 1].sum(), rtol=1e-9)
    np.testing.assert_allclose(exact[2], values[2] / values[2, 1, 1], rtol=1e-9)
    # James and Stein's factor for what lies between.
    s = 100.0
    between = NoisySums(values, np.array([0.0, 0.0, s])).shrunk()
    mean = values.sum(axis=0) / values[:, 1, 1].sum()
    away = values[2] - values[2, 1, 1] * mean
    kept = max(0.0, 1 - s**2 * 6 / np.sum(away**2))
    np.testing.assert_allclose(between[2], mean + kept * away / values[2, 1, 1], rtol=1e-9, atol=1e-12)


def test_what_the_noise_is_said_to_cost_is_about_what_it_costs():
    """Over many fits to the same rows: the mean excess of the loss that is minimised, against the mean of
    what each fit says."""
    said, true = [], []
    for seed in range(12):
        net = network(Budget(2.0), bits=seed, hold_out=0.0)
        z = z_of(net)
        exact = np.linalg.lstsq(z[:, :-1], z[:, -1], rcond=None)[0]
        fitted = fit(net, OPTIONS)
        said.append(fitted.certificates[0.95].privacy.excess)
        least = np.mean((z[:, :-1] @ exact - z[:, -1]) ** 2)
        true.append(np.mean((z[:, :-1] @ (fitted.trained.x / 2) - z[:, -1]) ** 2) / least - 1)
    # What clipping is taken to cost is in it too, and is more than it costs here.
    assert np.mean(true) < np.mean(said) < 5 * np.mean(true)


@pytest.mark.parametrize("kind", ["nearly collinear", "a rare level"])
def test_what_the_noise_is_said_to_cost_is_said_to_be_no_upper_end(kind):
    """Where noise hides the direction that explains the target, the truth is many times what is said."""
    rng, count = np.random.default_rng(0), 2000
    first, noise = rng.normal(size=(2, count))
    if kind == "nearly collinear":
        second, gain = first + 0.05 * rng.normal(size=count), np.array([21.0, -20.0])
    else:
        second, gain = (rng.uniform(size=count) < 0.01) / 0.5, np.array([1.0, 2.5])
    x = np.column_stack([first, second])
    y = (x @ gain + noise) / 1.5
    names = np.repeat([f"site-{i}" for i in range(4)], count // 4)
    net = LocalNetwork.of(x.copy(), y.copy(), names, ("u", "v", "y"), 0.0, 0, None, Budget(3.0))
    standard = Standard(np.zeros(2), np.ones(2), 0.0, 1.0)
    fitted = fit(replace(net, bits=seeded_bits(0)), replace(OPTIONS, units=standard))
    z = np.column_stack([x, np.ones(count)])
    best = np.linalg.lstsq(z, y, rcond=None)[0]
    true = np.mean((z @ fitted.trained.x - y) ** 2) / np.mean((z @ best - y) ** 2) - 1
    found = fitted.certificates[0.95].privacy
    assert true > 10 * found.excess
    assert f"about {found.excess:.1%}. That is no upper end, and none is known" in found.cost
    assert "expected" not in found.cost


@pytest.mark.parametrize("rows", [2000, 8000])
def test_more_rows_with_a_rare_level_make_the_model_better(rows):
    """Moments count the rows with that level less than gradients do, so that the loss is curved several times
    as much along it: steps that trusted moments alone went past the best model, in every round further."""
    rng, sites = np.random.default_rng(0), 8
    count = rows * sites
    x = np.column_stack([rng.normal(size=(count, 6)), (rng.uniform(size=count) < 0.01) / 0.5])
    y = (x @ np.append(np.full(6, 0.4), 2.5) + rng.normal(size=count)) / 2
    names, columns = np.repeat([f"site-{i}" for i in range(sites)], rows), (*"abcdefg", "y")
    net = LocalNetwork.of(x.copy(), y.copy(), names, columns, 0.0, 0, None, Budget(3.0))
    options = replace(OPTIONS, units=Standard(np.zeros(7), np.ones(7), 0.0, 1.0))
    fitted = fit(replace(net, bits=seeded_bits(0)), options)
    z = np.column_stack([x, np.ones(count)])
    best = np.linalg.lstsq(z, y, rcond=None)[0]
    excess = np.mean((z @ fitted.trained.x - y) ** 2) / np.mean((z @ best - y) ** 2) - 1
    assert excess < 2.0 / rows


def test_of_a_person_no_more_rows_count_than_the_budget_is_for():
    people = np.array([3, 5, 3, 3, 5, 9], np.uint64)
    assert at_most_each(people, 1).tolist() == [True, True, False, False, False, True]
    assert at_most_each(people, 2).tolist() == [True, True, True, False, True, True]
    z = np.arange(24.0).reshape(6, 4)
    used = PrivateRows.of(z, z, people, people, Budget(1.0, 1e-6, 2))
    assert len(used.training) == len(used.held_out) == 5
    exactly = PrivateRows.of(z, z, people, people, None)
    assert len(exactly.training) == 6
    with pytest.raises(BidroError, match="needs a column that says whose a row is"):
        PrivateRows.of(z, z, None, None, Budget(1.0, 1e-6, 2))


def test_kept_out_losses_of_a_person_are_one_value():
    plan = Plan.of(Terms(degree=1), "squared", 2, people=True)
    z = np.column_stack([np.zeros((4, 2)), np.ones(4), [1.0, 0.0, 1.0, 1.0]])
    people = np.array([7, 7, 8, 8], np.uint64)
    one = PrivateClient(PrivateRows(z, z, people), plan, None)
    told = one.losses(NoisyHoldoutQuery(np.zeros(3), np.array(1.0)))
    # Means of 1/2 and 1 in parts of the level: 1 - v and v, added up.
    np.testing.assert_allclose(Noisy(told.values, plan.losses_scale(None)).sums, [0.5, 1.5], atol=1e-8)


@pytest.mark.parametrize("classes", [False, True])
def test_the_bound_over_all_clients_together_holds_and_noise_hides_it_less(classes):
    """Clients of few rows, each with a law of its own, over 300 draws of rows and noise: at 90% the mean of
    their means, by rows, is above the bound in no more draws than one tenth and three standard errors; and it
    is below that of the worst client, which noise hides."""
    plan = Plan.of(Terms(degree=4), "logistic" if classes else "squared", 2)
    sizes, means = np.array([20, 40, 10, 200, 80, 30]), np.array([0.1, 0.5, 0.9, 0.2, 0.3, 0.05])
    budgets, rng = [Budget(8.0)] * 5 + [Budget(4.0)], np.random.default_rng(0)
    true, missed, lower = sizes @ means / sizes.sum(), 0, 0
    for seed in range(300):
        values, wrong = [], []
        for i, (rows, mean) in enumerate(zip(sizes, means, strict=True)):
            charge, bits = plan.charge_of_losses(budgets[i]), seeded_bits(1000 * seed + i)
            draws = rng.beta(2 * mean, 2 * (1 - mean), rows)
            values.append(bernstein(draws, 4, *charge, bits=bits).values)
            wrong.append(
                bernstein((rng.uniform(size=rows) < mean).astype(float), 1, *charge, bits=bits).values
            )
        reply = NoisyLosses(np.stack(values), np.stack(wrong), np.zeros((6, 3)))
        found = _HeldOutSums.of(plan, reply, budgets, sizes.astype(float))
        said = found.on_average(0.9, 5.0)
        missed += said.bound < 5.0 * true
        if classes:
            missed += said.mistakes < true
        worst = max(
            noisy_client_bound(one, 0.1, n, 5.0).bound for one, n in zip(found.sums, sizes, strict=True)
        )
        lower += said.bound < worst
    count = 300 * (2 if classes else 1)
    assert missed / count <= 0.1 + 3 * np.sqrt(0.09 / count)
    assert lower == 300
    # All the noise is in it.
    assert added_up(found.sums).scale.variance[0] == sum(one.scale.variance[0] for one in found.sums)


def test_on_which_side_a_row_is_depends_on_no_other_row():
    """Of tables with and without a row; small ones too, where at least two rows would be trained on."""
    x, y, clients = rows(sizes=(3, 4, 2))
    whole = LocalNetwork.of(x, y, clients, ("u", "v", "y"), 0.5, 0, None, Budget(1.0))
    kept = {tuple(row) for row in whole.fresh}
    for left_out in range(len(y)):
        rest = np.arange(len(y)) != left_out
        less = LocalNetwork.of(x[rest], y[rest], clients[rest], ("u", "v", "y"), 0.5, 0, None, Budget(1.0))
        row = (*x[left_out], y[left_out])
        assert {tuple(one) for one in less.fresh} == kept - {row}


def test_a_certificate_says_what_is_private_and_comes_back_from_json():
    from bidro.certify.certificate import Certificate

    fitted = fit(network(Budget(2.0, 1e-7), bits=0), OPTIONS)
    found = fitted.certificates[0.95]
    assert "epsilon = 2 and delta = 1e-07, for adding or removing a row" in str(found)
    assert "It counts this run alone" in str(found)
    assert "sums with noise, whose chance is part of the confidence" in found.clipped.promise
    assert found.interval is None
    assert (
        Certificate.from_json(found.to_json()) == found
        or Certificate.from_json(found.to_json()).to_json() == found.to_json()
    )
    changed = found.to_json().replace("epsilon = 2 and", "epsilon = 1 and")
    with pytest.raises(BidroError, match="damaged"):
        Certificate.from_json(changed)


@pytest.mark.parametrize("rows_here", [20, 60, 200])
def test_private_bounds_of_a_fit_hold(rows_here):
    """The bounds of held-out rows, over many draws of rows and noise, at a level of 80%."""
    level, misses, runs = 0.8, 0, 60
    for seed in range(runs):
        net = network(Budget(3.0), bits=seed, sizes=(rows_here,), seed=seed, hold_out=0.5)
        options = replace(OPTIONS, levels=(level,))
        fitted = fit(net, options)
        found = fitted.certificates[level].clipped
        x, y, _ = rows(sizes=(20_000,), seed=10_000 + seed)
        score = (x - UNITS.mean) / UNITS.spread @ fitted.trained.x[:2] + fitted.trained.x[2] + UNITS.middle
        true = np.minimum((score - y) ** 2, found.largest).mean()
        misses += true > found.bound
    assert misses / runs <= 1 - level + 3 * np.sqrt(level * (1 - level) / runs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(OPTIONS, units=None), "units that are public"),
        (replace(OPTIONS, loss=LossChoice("huber", None)), "the loss is squared, or logistic"),
        (replace(OPTIONS, loss=LossChoice("logistic", 3)), "the loss is squared, or logistic"),
        (replace(OPTIONS, choices=FitSettings(radius=0.1)), "the radius must be 0"),
        (replace(OPTIONS, choices=FitSettings(radius="cross-validate")), "the radius must be 0"),
        (replace(OPTIONS, choices=FitSettings(criterion="regret")), "regret"),
        (replace(OPTIONS, choices=FitSettings(personal="offset")), "personal model"),
        (replace(OPTIONS, choices=FitSettings(curves=8)), "curves"),
        (replace(OPTIONS, choices=FitSettings(increasing=("u",))), "rising"),
        (replace(OPTIONS, algorithm=AlgorithmOne(10)), "Algorithm 1"),
        (replace(CLASSES, choices=FitSettings(weights=3.0)), "weights of logistic loss are fixed"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_is_asked(options, words):
    net = network(Budget(1.0))
    with pytest.raises(BidroError, match=words):
        fit(net, options)
    assert net.rows.flags.writeable  # nothing was done with the rows


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Terms(gradients=0), "whole number of rounds"),
        (lambda: Terms(moments=1.0), "moments in .* must be a share from"),
        (lambda: Terms(losses=0.0), "losses in .* must be a share from"),
        (lambda: Terms(clip=0.0), "agreed units"),
        (lambda: Terms(degree=65), "whole number from 1 to 64"),
        (lambda: Budget(0.0), "epsilon must be"),
        (lambda: Budget(True), "epsilon must be"),
        (lambda: Budget(1.0, 0.5), "delta must be"),
        (lambda: Budget(1.0, 1e-6, 0), "rows_per_person"),
        (lambda: Budget.reported((1.0, 1e-6, 1.5)), "whole number"),
    ],
)
def test_terms_and_budgets_that_are_none(made, words):
    with pytest.raises(BidroError, match=words):
        made()


@pytest.mark.parametrize("held_out", [True, False])
def test_the_costs_of_a_plan_add_up_to_the_budget(held_out):
    """Training and held-out rows together; where none are held out, training has all of it."""
    budget = Budget(3.0)
    for loss, terms in (("squared", Terms()), ("logistic", Terms(gradients=3, moments=0.7, losses=0.5))):
        plan = Plan.of(terms, loss, 5, held_out=held_out)
        training = plan.cost("moments", budget).rho + plan.rounds * plan.cost("gradients", budget).rho
        losses = plan.cost("losses", budget).rho
        assert training + losses == budget.rho
        assert float(losses / budget.rho) == (terms.losses if held_out else 0.0)


def test_the_noise_of_a_fit_is_that_of_the_budget_over_all_that_it_asks(monkeypatch):
    """What one row costs in a whole fit in one process, by the noise that is drawn: no more than the
    budget, and all of it where rows are as long as they count."""
    from bidro.privacy import mechanisms

    honest, drawn = mechanisms.with_noise, []

    def noted(sums, scale, bits):
        drawn.append(scale)
        return honest(sums, scale, bits)

    monkeypatch.setattr(mechanisms, "with_noise", noted)
    for hold_out in (0.2, 0.0):
        drawn.clear()
        fit(network(Budget(2.0), bits=0, hold_out=hold_out, sizes=(60,)), OPTIONS)
        # In steps, one row changes moments by 2^36, gradients by 25 2^14 and losses by 2^30 at the most.
        steps = [2**36, *[25 * 2**14] * 8, *([2**30] if hold_out else [])]
        paid = sum(most**2 / (2 * scale.variance[0]) for most, scale in zip(steps, drawn, strict=True))
        assert paid == Budget(2.0).rho


@pytest.mark.parametrize("people", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_what_is_promised_of_rows_needs_no_more_of_the_budget(classes, people):
    """From the sums that bounds of mean losses are made of: it holds of fresh rows, and a client of which
    noise hides too much has none."""
    sizes = (4000, 6000, 80)
    labels = np.arange(sum(sizes)) // 2 if people else None
    net = network(
        Budget(3.0, rows_per_person=2) if people else Budget(3.0),
        bits=5,
        sizes=sizes,
        classes=classes,
        people=None if labels is None else labels.astype(str),
    )
    fitted = fit(net, CLASSES if classes else OPTIONS)
    found = fitted.certificates[0.95].of_rows
    if people and not classes:
        # Of means of a person's squared errors the first power alone tells of rows, and here too little.
        assert found is None or set(found.clients) <= {"site-0", "site-1"}
        return
    assert set(found.clients) == {"site-0", "site-1"}
    assert found.others == ("site-2",)
    assert "Nothing is promised of 'site-2'" in found.promise
    assert "with at least" not in found.in_words()
    x, y, clients = rows(sizes, 1, classes)
    predicted = Predictor(fitted.assessed.loss, fitted.assessed.x, fitted.standard).scores(x)[:, 0]
    far = (predicted * y <= 0) if classes else np.abs(predicted - y) > found.bound
    most = found.bound if classes else 0.1
    for name in found.clients:
        assert far[clients == name].mean() <= most
        assert most < 0.35 or not classes
