"""Pairs of features: what they are, how steep they make a model, which are chosen, and what carries over."""

import json
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

from bidro import RobustClassifier, RobustRegressor
from bidro.ambiguity import NoAmbiguity
from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.data.splines import Basis, Pair
from bidro.fit.training import unrestricted
from bidro.losses import Huber, Logistic, Poisson, Softmax, Squared
from bidro.model.model_file import Model
from bidro.problem.worst_case import robust_risk, worst_case_distribution
from bidro.risk.rows_curves import CurveRows
from bidro.risk.transport import Transport
from bidro.selection import pairs as of_pairs
from bidro.selection.pairs import WantedPairs, choose_pairs
from bidro.selection.personal import lifted, personal_models
from bidro.selection.segments import smoothing_of, with_curves
from bidro.solvers.solve import solve
from bidro.workflow.options import FitOptions
from tests.cli.test_command import run
from tests.curves.test_bound import posed, worst_on_a_grid
from tests.model.test_model_file import model, written

NAMES = tuple("abcdef")
PAIR = Pair((0, 1), ((-1.5, -0.2, 0.8), (-1.0, 0.0, 1.2)))
BASIS = Basis(((-0.5, 0.4), ()), pairs=(PAIR,))
THREE = Basis(
    ((-1.0, 0.3, 1.0), (), (0.5,)), pairs=(PAIR, Pair((0, 2), ((-0.5, 0.5), (-1.0, 1.0)), held=2.0))
)


def value(pair, cells, v, w):
    return float(pair.expand(np.array(v), np.array(w)) @ cells)


def test_a_pair_is_bilinear_between_knots_level_beyond_and_zero_at_the_means():
    cells = np.random.default_rng(0).normal(size=PAIR.columns)
    corners = {(v, w): value(PAIR, cells, v, w) for v in PAIR.knots[0] for w in PAIR.knots[1]}
    by_hand = (corners[-0.2, 0.0] + corners[-0.2, 1.2] + corners[0.8, 0.0] + corners[0.8, 1.2]) / 4
    assert value(PAIR, cells, 0.3, 0.6) == pytest.approx(by_hand)
    assert value(PAIR, cells, 9.0, -7.0) == corners[0.8, -1.0]
    assert value(PAIR, cells, 0.0, 3.0) == value(PAIR, cells, -3.0, 0.0) == 0.0


def test_roughness_is_of_what_cells_add_to_their_corners():
    slopes = np.random.default_rng(1).normal(size=THREE.columns)
    slopes[: THREE.of_curves] = 1.0  # of straight lines
    expected = 0.0
    for some, pair in zip(THREE.of_pairs, THREE.pairs, strict=True):
        first, second = pair.knots
        for a, b in pairwise(first):
            for c, d in pairwise(second):
                signs = ((b, d, 1), (b, c, -1), (a, d, -1), (a, c, 1))
                added = sum(sign * value(pair, slopes[some], v, w) for v, w, sign in signs)
                expected += pair.held * added**2
    assert slopes @ THREE.roughness @ slopes == pytest.approx(expected)


def random_basis(rng):
    def knots(count):
        return tuple(np.sort(rng.choice(np.linspace(-1.5, 1.5, 9), count, replace=False)).tolist())

    def sides():
        return knots(rng.integers(2, 5)), knots(rng.integers(2, 5))

    pairs = tuple(Pair(features, sides()) for features in ((0, 1), (0, 2), (1, 2))[: rng.integers(1, 4)])
    return Basis(tuple(knots(rng.integers(0, 4)) for _ in range(3)), pairs=pairs)


@pytest.mark.parametrize("seed", range(12))
def test_the_steepest_slope_is_reached_and_never_exceeded(seed):
    rng = np.random.default_rng(seed)
    basis = random_basis(rng)
    slopes = rng.normal(size=basis.columns)
    steepest = basis.steepest(slopes)
    grid = np.linspace(-1.5, 1.5, 9)
    for j in range(3):
        # Slopes are largest where the other features are at knots.
        rows, step = rng.choice(grid, (20_000, 3)), np.zeros(3)
        rows[:, j] = rng.uniform(-2, 2, len(rows))
        step[j] = 1e-7
        found = np.abs((basis.expand(rows + step) - basis.expand(rows)) @ slopes / 1e-7)
        assert found.max() == pytest.approx(steepest[j], abs=1e-5)
    matrix, feature, group = basis.slope_rows()
    tops = np.array([np.abs(matrix[group == g] @ slopes).max() for g in range(group.max() + 1)])
    of = np.array([feature[group == g][0] for g in range(group.max() + 1)])
    bound = np.sqrt([np.sum(tops[of == j] ** 2) for j in range(3)])
    assert np.all(bound >= steepest * (1 - 1e-12))
    if np.bincount(of).max() == 1:
        np.testing.assert_allclose(bound, steepest)


def test_too_many_combinations_of_knots_are_bounded():
    rng = np.random.default_rng(3)
    pairs = tuple(
        Pair((0, k), (tuple(np.linspace(-1, 1, 7)), tuple(np.linspace(-1, 1, 7)))) for k in (1, 2, 3)
    )
    basis = Basis(((),) * 4, pairs=pairs)
    matrix, feature, group = basis.slope_rows()
    assert np.unique(group[feature == 0]).size == 4
    for _ in range(20):
        slopes = rng.normal(size=basis.columns)
        tops = [np.abs(matrix[group == g] @ slopes).max() for g in np.unique(group[feature == 0])]
        assert basis.steepest(slopes)[0] <= np.linalg.norm(tops) <= 2 * 2 * basis.steepest(slopes)[0]


@pytest.mark.parametrize("seed", range(4))
def test_ranges_hold_all_that_rows_come_to(seed):
    rng = np.random.default_rng(seed)
    basis, lower, upper = random_basis(rng), np.full(3, -1.3), np.full(3, 0.9)
    slopes = rng.normal(size=basis.columns)
    rows = rng.uniform(lower, upper, (20_000, 3))
    shares = basis.contributions(rows, slopes)
    np.testing.assert_allclose(shares.sum(axis=1), basis.expand(rows) @ slopes)
    least, most = basis.ranges(slopes, lower, upper)
    assert np.all(least <= shares.min(axis=0) + 1e-12)
    assert np.all(most >= shares.max(axis=0) - 1e-12)
    np.testing.assert_allclose(most, shares.max(axis=0), atol=0.2)


@pytest.mark.parametrize(
    ("loss", "p"),
    [
        (Squared(True, basis=BASIS), 2.0),
        (Huber(True, 0.5, basis=BASIS), 1.0),
        (Logistic(True, basis=BASIS), 1.0),
        pytest.param(Logistic(True, basis=BASIS), 2.0, marks=pytest.mark.slow),
    ],
)
def test_no_distribution_in_the_ball_is_worse_than_the_bound(loss, p):
    for seed, eps in enumerate((0.05, 0.5, 1.0)):
        problem, x = posed(loss, p, eps, seed)
        bound = float(robust_risk(problem, x, curvature=False).value[0])
        found = worst_case_distribution(problem, x, "one")
        rows = np.asarray(problem.federation.samples)
        mean = float(np.mean(loss.values(x, rows)))
        costs = problem.transport.row_costs(rows[found.origins], found.points)
        assert float(found.masses @ costs) <= eps**p * (1 + 1e-9)
        assert mean <= found.expected_loss <= bound * (1 + 1e-9)
        assert mean <= worst_on_a_grid(problem, x, eps) <= bound * (1 + 1e-9)


def test_several_classes_have_the_steepest_difference():
    loss = Softmax(3, True, basis=BASIS)
    problem, x = posed(loss, 1.0, 0.2)
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=(4_000, 2)) * 2, rng.integers(3, size=4_000)])
    moved = rows + np.append(rng.normal(size=2) * 1e-5, 0.0)
    length = np.sqrt(problem.transport.row_costs(rows, moved) ** 2)
    rise = np.abs(np.asarray(loss.values(x, moved)) - np.asarray(loss.values(x, rows)))
    assert np.max(rise / length) <= float(loss.lipschitz(x, problem.transport.inverse_scale)) * (1 + 1e-6)


# ---- solving


def rows_of(kind, clients=6, each=60, strength=1.0, seed=0, k=6):
    """Rows with one pair of numbers and one of a number with a level."""
    rng = np.random.default_rng(seed)
    own = np.repeat(np.arange(clients), each)
    X = rng.normal(size=(len(own), k))
    X[:, 5] = rng.random(len(own)) < 0.4
    score = X[:, 0] + 0.5 * X[:, 2] + rng.normal(size=clients)[own]
    score += strength * (X[:, 0] * X[:, 1] + 1.5 * (X[:, 2] > 0) * X[:, 5])
    if kind == "number":
        return X, score + rng.normal(size=len(own)), own
    if kind == "class":
        return X, np.where(rng.random(len(own)) < 1 / (1 + np.exp(-2 * score)), "yes", "no"), own
    return X, rng.poisson(np.exp(0.4 * score)).astype(float), own


def problem_of(kind, basis=None, people=None, order=None, **more):
    X, y, own = rows_of(kind, **more)
    order = np.arange(len(y)) if order is None else order
    X, y, own = X[order], y[order], own[order]
    y = np.where(y == "yes", 1.0, -1.0) if kind == "class" else y
    samples = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), y])[np.argsort(own, kind="stable")]
    federation = Federation.from_samples(
        samples, np.bincount(own).tolist(), "unbounded", columns=[*NAMES, "y"], people=people
    )
    loss = {"number": Squared, "class": Logistic, "count": Poisson}[kind](intercept=True)
    transport = Transport(np.append(np.ones(6), np.inf), 2.0 if kind == "number" else 1.0, kind == "class")
    problem = unrestricted(federation, loss, transport, float(np.std(y)))
    problem = replace(problem, ambiguity=NoAmbiguity())
    return problem if basis is None else with_curves(problem, basis, [0] * 6)


@pytest.mark.parametrize("kind", ["number", "class", "count"])
def test_pairs_are_solved_as_an_independent_minimiser_does(kind):
    basis = Basis(((-0.5, 0.5), (), (), (), (), ()), pairs=(replace(PAIR, held=16.0),))
    problem = problem_of(kind, basis, clients=1, each=300)
    found = solve(problem, gap=1e-9)
    loss, rows = problem.loss, problem.federation.host_rows

    def objective(x):
        smooth = loss.penalty if loss.penalty is not None else 0.0
        return float(np.mean(loss.values(x, rows)) + x @ smooth @ x)

    by_hand = minimize(
        objective, np.zeros(len(found.x)), method="BFGS", options={"gtol": 1e-8, "maxiter": 5000}
    )
    assert objective(found.x) <= by_hand.fun + 1e-7
    np.testing.assert_allclose(found.x, by_hand.x, atol=2e-3)


def test_rows_give_the_sums_that_columns_do():
    rng = np.random.default_rng(0)
    rows, sizes = np.column_stack([rng.normal(size=(700, 3)), rng.normal(size=700)]), np.array([300, 1, 399])
    loss = Squared(True, basis=THREE)
    of, x, weights = CurveRows(loss, rows, sizes), rng.normal(size=THREE.columns + 1), rng.normal(size=700)
    design = np.column_stack([THREE.expand(rows[:, :-1]), np.ones(700)])
    np.testing.assert_allclose(of.residuals(x), design @ x - rows[:, -1], atol=1e-10)
    by_hand = np.add.reduceat(weights[:, None] * design, [0, 300, 301])
    np.testing.assert_allclose(of.weighed(weights), by_hand, atol=1e-10)
    some = weights > 0
    np.testing.assert_allclose(of.only(some).residuals(x), (design @ x - rows[:, -1])[some], atol=1e-10)


@pytest.mark.parametrize("loss", [Squared(True, basis=THREE), Huber(True, 0.5, basis=THREE)])
def test_what_pairs_add_is_common_to_all_clients(loss):
    rng = np.random.default_rng(0)
    rows, x = rng.normal(size=(60, 4)), rng.normal(size=THREE.columns + 1)
    own = personal_models(loss, rows, [40, 20], x, np.ones(4))
    apart = own - x
    assert np.all(apart[:, THREE.of_curves : THREE.columns] == 0)
    # All segments of a curve become as much steeper, and the offset moves.
    changes = apart[:, [0, 4, 5, THREE.columns]]
    np.testing.assert_allclose(apart, lifted(loss, 4, changes[:, None]))
    assert np.all(np.abs(changes) > 1e-4)


# ---- choosing


@pytest.mark.parametrize("kind", ["number", "class", "count"])
def test_pairs_that_are_there_are_found(kind):
    problem = problem_of(kind, each=200)
    found = choose_pairs(problem, WantedPairs.of("auto", NAMES), 5)
    assert found.pairs[0].features == (0, 1)
    assert {own.features for own in found.pairs} <= {(0, 1), (2, 5)}
    assert found.means[0] > found.means.min()


def test_hardly_ever_is_there_one_where_there_is_none():
    taken = [
        len(
            choose_pairs(
                problem_of("number", strength=0.0, seed=seed), WantedPairs.of("auto", NAMES), 5
            ).pairs
        )
        for seed in range(20)
    ]
    assert np.count_nonzero(taken) <= 1


def test_the_choice_is_that_of_the_rows_whatever_their_order_origin_and_scale():
    X, y, own = rows_of("number", each=120)
    found = list(RobustRegressor(personal=None).fit(X, y, clients=own).pairs_)
    assert "x0*x1" in found
    order = np.lexsort(X.T)
    assert list(RobustRegressor(personal=None).fit(X[order], y[order], clients=own[order]).pairs_) == found
    assert list(RobustRegressor(personal=None).fit(1e-8 * X, y, clients=own).pairs_) == found
    assert list(RobustRegressor(personal=None).fit(X + 1e6, y, clients=own).pairs_) == found


@pytest.mark.parametrize("kind", ["number", "class"])
def test_of_many_pairs_the_few_that_are_tested_hold_those_that_gain(kind, monkeypatch):
    """Twenty features, two of them of few values: 190 pairs, of which the ranking is that of testing all."""
    rng = np.random.default_rng(3)
    v = rng.normal(size=(1200, 20))
    v[:, 0], v[:, 1] = v[:, 0] > 1, np.round(np.clip(v[:, 1], -1, 1))
    y = v @ rng.normal(size=20) / 4 + v[:, 0] * v[:, 5] + 0.4 * v[:, 1] * v[:, 6] - 0.5 * v[:, 7] * v[:, 8]
    y += rng.normal(size=1200)
    loss = Squared(True) if kind == "number" else Logistic(True)
    table = np.column_stack([v, y if kind == "number" else np.where(y > 0, 1.0, -1.0)])
    federation = Federation.from_arrays(np.split(table, 4), "unbounded")
    cost = Transport(np.append(np.ones(20), np.inf), 1.0, kind == "class")
    problem = unrestricted(federation, loss, cost, float(np.std(y)))
    rows = of_pairs._Rows(problem, range(20))
    fitted = rows.fitted(np.arange(1200) % 5 > 0)
    found = of_pairs._ranked(rows, fitted, 10)
    monkeypatch.setattr(of_pairs, "_SCREENED", 190)
    assert found == of_pairs._ranked(rows, fitted, 10)
    assert set(found[:3]) == {(0, 5), (1, 6), (7, 8)}


def test_offsets_of_clients_are_no_pair():
    # Two features tell clients apart whose levels differ; without offsets their product stands for these.
    rng = np.random.default_rng(0)
    own = np.repeat(np.arange(30), 40)
    X = rng.normal(size=(1200, 6))
    X[:, :2] = rng.normal(size=(30, 2))[own] + 0.1 * X[:, :2]
    y = 3 * rng.normal(size=30)[own] + X[:, 2] + rng.normal(size=1200)
    assert RobustRegressor().fit(X, y, clients=own).pairs_ == {}


def test_who_asks_for_straight_lines_gets_them():
    X, y, own = rows_of("number", each=120)
    assert RobustRegressor(curves=None).fit(X, y, clients=own).pairs_ == {}
    assert len(RobustRegressor(curves=None, pairs=2).fit(X, y, clients=own).pairs_) == 2


def test_rows_of_a_person_count_as_one_where_pairs_are_ranked():
    # Persons have levels of their own, and pair (3, 4) hardly varies within one: over rows it looks as if
    # it gained most.
    rng = np.random.default_rng(5)
    each, persons = 20, 60
    person = np.repeat(np.arange(persons), each)
    X = rng.normal(size=(len(person), 6))
    X[:, 3:5] = rng.normal(size=(persons, 2))[person]
    y = 2.0 * rng.normal(size=persons)[person] + 0.25 * X[:, 0] * X[:, 1] + rng.normal(size=len(person))
    samples = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), y])

    def first(people):
        federation = Federation.from_samples(
            samples, [len(y)], "unbounded", columns=[*NAMES, "y"], people=people
        )
        transport = Transport(np.append(np.ones(6), np.inf), 2.0)
        problem = unrestricted(federation, Squared(True), transport, float(np.std(y)))
        return choose_pairs(problem, WantedPairs.of(1, NAMES), 5).pairs[0].features

    assert first(None) == (3, 4)
    assert first(person.astype(np.uint64)) == (0, 1)


def test_columns_of_one_value_and_features_that_must_rise_are_in_no_pair():
    X, y, own = rows_of("number")
    X[:, 3] = 2.0
    found = RobustRegressor(pairs=10, curves=None, increasing=["x0"]).fit(X, y, clients=own).pairs_
    assert found
    assert not any("x0" in name or "x3" in name for name in found)
    with pytest.raises(BidroError, match="'x0' can be in no pair"):
        RobustRegressor(pairs=[("x0", "x1")], increasing=["x0"]).fit(X, y, clients=own)
    with pytest.raises(BidroError, match="'x3' has hardly more than one value"):
        RobustRegressor(pairs=[("x1", "x3")]).fit(X, y, clients=own)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (11, "a number from 0 to 10"),
        ("some", "a list of pairs"),
        ([("x0",)], "a list of pairs"),
        ([("x0", "zz")], "'zz', which is no feature"),
        ([("x0", "x0")], "two different features"),
    ],
)
def test_pairs_that_stand_for_nothing_are_refused(pairs, words):
    X, y, own = rows_of("number")
    with pytest.raises(BidroError, match=words):
        RobustRegressor(pairs=pairs).fit(X, y, clients=own)


def test_a_number_of_pairs_needs_something_to_choose_by():
    X, y, own = rows_of("number")
    with pytest.raises(BidroError, match="name the pairs"):
        RobustRegressor(pairs=2, loss="absolute").fit(X, y, clients=own)
    with pytest.raises(BidroError, match="name the pairs"):
        RobustRegressor(pairs=2, radius=0.1).fit(X, y, clients=own)


@pytest.mark.slow
def test_pairs_can_be_named_for_a_loss_with_kinks():
    X, y, own = rows_of("number", clients=2, each=40)
    more = {"weights": "fixed", "personal": None, "curves": None}
    found = RobustRegressor(pairs=[("x0", "x1")], loss="absolute", **more).fit(X, y, clients=own)
    lines = RobustRegressor(pairs=None, loss="absolute", **more).fit(X, y, clients=own)
    assert list(found.pairs_) == ["x0*x1"]
    assert np.mean(np.abs(found.predict(X) - y)) < 0.9 * np.mean(np.abs(lines.predict(X) - y))


def test_with_a_radius_the_worst_case_is_bounded():
    X, y, own = rows_of("number", clients=3, each=40)
    found = RobustRegressor(
        pairs=[("x0", "x1")], curves=None, radius=0.1, weights="fixed", personal=None
    ).fit(X, y, clients=own)
    assert found.duality_gap_ <= 1e-6
    worst = found.worst_case("0")
    assert worst.expected_loss <= worst.risk <= found.client_risks_["0"] * (1 + 1e-9)


# ---- what carries over


def test_shares_add_up_and_tables_of_pairs_are_in_the_rows_units():
    X, y, own = rows_of("number", each=120)
    frame = pd.DataFrame(7 + 3 * X, columns=NAMES)
    found = RobustRegressor(pairs=[("a", "b"), ("c", "f")]).fit(frame, y, clients=own)
    shares = found.explain(frame, clients=own)
    assert list(shares) == ["base", *NAMES, "a*b", "c*f"]
    np.testing.assert_allclose(shares.sum(axis=1), found.predict(frame, clients=own))
    (first, second), values = found.pairs_["a*b"]
    at = frame.iloc[[0]].assign(a=first[1], b=second[4])
    assert found.explain(at)["a*b"][0] == pytest.approx(values[1, 4])
    assert np.isnan(found.coef_[[0, 1, 2, 5]]).all()


def test_a_summary_has_bands_of_features_in_pairs():
    X, y, own = rows_of("number", each=80)
    found = (
        RobustRegressor(pairs=[("x0", "x1")], curves=None, weights="fixed").fit(X, y, clients=own).summary()
    )
    assert list(found.curves) == ["x0", "x1"]
    assert "x0" not in found.coefficients.index
    assert "x2" in found.coefficients.index
    assert "Bands of features in pairs" in str(found)


def test_a_pickle_keeps_the_pairs():
    X, y, own = rows_of("number", each=80)
    found = RobustRegressor(pairs=[("x0", "x1")]).fit(X, y, clients=own)
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict(X), found.predict(X))
    assert np.array_equal(again.pairs_["x0*x1"].values, found.pairs_["x0*x1"].values)


def test_classes_have_a_table_each():
    X, y, own = rows_of("class", each=80)
    three = np.where(X[:, 3] > 1, "maybe", y)
    found = RobustClassifier(pairs=[("x0", "x1")], curves=None).fit(X, three, clients=own)
    assert found.pairs_["x0*x1"].values.shape == (7, 7, 3)
    shares = found.explain(X[:5])
    np.testing.assert_allclose(
        np.stack([shares[name].sum(axis=1) for name in found.classes_], axis=1),
        found.decision_function(X[:5]),
    )


CURVED = replace(
    model(Squared(True, basis=BASIS), [1.0, -2.0, 0.5, 3.0, 0.3, -0.2, 0.7, 0.1, 0.1]),
    low=np.array([20.0, 0.0]),
    high=np.array([60.0, 1.0]),
)


def test_pairs_come_back_from_a_file():
    again = Model.from_bytes(CURVED.to_bytes(), "here")
    assert again.loss == CURVED.loss
    assert again.to_bytes() == CURVED.to_bytes()
    table = pd.DataFrame({"age": [40.0, 30.0, 70.0], "ward": ["x", "y", "y"]})
    rows = (np.array([[40.0, 0], [30.0, 1], [70.0, 1]]) - [40.0, 0.5]) / [10.0, 0.25]
    np.testing.assert_allclose(CURVED.predict(table)["prediction"], BASIS.expand(rows) @ CURVED.x[:-1] + 3.1)


@pytest.mark.parametrize(
    "pairs",
    [
        [{"features": [0, 2], "knots": [[0.0, 1.0], [0.0, 1.0]]}],
        [{"features": [0, 1], "knots": [[0.0, 0.0], [0.0, 1.0]]}],
        [{"features": [0, 1], "knots": [["0", 1.0], [0.0, 1.0]]}],
        [{"features": [0], "knots": [[0.0, 1.0], [0.0, 1.0]]}],
        [{"features": [0, 1]}],
        [1],
    ],
)
def test_a_file_with_other_pairs_is_refused(pairs):
    loss = {
        "name": "squared",
        "intercept": True,
        "pseudo_rows": 0.0,
        "knots": [[-0.5, 0.4], []],
        "pairs": pairs,
    }
    with pytest.raises(BidroError):
        Model.from_bytes(written(CURVED, loss=loss), "here")


def test_the_command_takes_pairs_and_says_which(capsys, tmp_path):
    X, y, own = rows_of("number", each=120)
    table = pd.DataFrame(X, columns=NAMES).assign(y=y, own=own)
    table["f"] = np.where(X[:, 5] > 0, "yes", "no")
    table.to_csv(tmp_path / "rows.csv", index=False)
    options = ("--client", "own", "--target", "y", "--out", tmp_path / "m", "--force", "--json")

    def chosen(*more):
        code, out, err = run(capsys, "fit", tmp_path / "rows.csv", *more, *options)
        assert code == 0, err
        return json.loads(out)["chosen"]

    found = chosen()
    assert "a and b" in found["pairs"]
    named = chosen("--pairs", "c*f")
    assert named["pairs"].startswith("1 pair of features has effects that depend on each other: c and f=")
    assert "pairs" not in chosen("--pairs", "none")


def test_pairs_stand_in_a_file_of_options(tmp_path):
    for pairs in ("auto", None, 3, (("age", "sex"), ("bmi", "dose"))):
        path = tmp_path / "run.toml"
        path.write_text(
            FitOptions(("t.csv",), client="c", target="y", pairs=pairs).to_toml(), encoding="utf-8"
        )
        assert FitOptions.from_toml(path).pairs == pairs


def test_smoothing_of_cells_counts_rows():
    # A cell's sum of corners s costs as much as `held` times two rows that ask for 0, s^2 each, of all rows.
    problem = problem_of("number", Basis(((),) * 6, pairs=(replace(PAIR, held=3.0),)))
    N = sum(problem.federation.sizes)
    unit = np.zeros(problem.dimension)
    low, high, other_low, other_high = PAIR.ends
    unit[6] = 1 / ((high - low) * (other_high - other_low))[0]
    assert N * unit @ problem.loss.penalty @ unit == pytest.approx(3.0 * 2.0)
    assert smoothing_of(problem) == pytest.approx(2.0 / N)
