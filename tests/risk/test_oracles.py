"""All oracles say the same of the same problems, and what their formulas in extended precision say.

They run in a process of its own, with the compiler's settings that users have (`oracles`); the formulas
(`plain`) share no code with them.
"""

import pickle

import numpy as np
import pytest

from bidro.core.errors import BidroError
from bidro.risk.moments import MomentsOracle, of_clients
from bidro.risk.oracle import NO_LIFT, Lift
from bidro.risk.rows_numpy import FoldedRows, RowsOracle, needs_no_search
from tests.fuzz import reference
from tests.fuzz.measures import models
from tests.fuzz.problems import case_of
from tests.own_process import made_once
from tests.risk.oracles import CASES, FOLDS
from tests.risk.plain import Wide

SAME = 1e-10
BOTH = [(name, backend) for name, case in CASES.items() for backend in case.backends]


@pytest.fixture(scope="session")
def told(tmp_path_factory, worker_id):
    """By (case, backend), what oracles say; once for all workers."""
    return pickle.loads(made_once(tmp_path_factory, worker_id, "tests.risk.oracles").read_bytes())


def formula(case, backend, x, fold, scale, alone=False):
    """(values (n,), gradients (n, k), Hessians (n, k, k))."""
    each = [case.stated(i, fold, scale, backend, alone).at(x, case.radii) for i in range(3)]
    return tuple(np.stack(parts) for parts in zip(*each, strict=True))


def formulas(case, backend, alone=False):
    """The same with a leading axis of models."""
    views = zip(case.models, FOLDS, case.scales, strict=True)
    each = [formula(case, backend, x, fold, scale, alone) for x, fold, scale in views]
    return tuple(np.stack(parts) for parts in zip(*each, strict=True))


def require_same(now, expected, what):
    """To a share of the largest number: what is nearly 0 by chance is no measure."""
    expected = np.asarray(expected, Wide)
    assert now.shape == expected.shape, what
    assert float(np.max(np.abs(now - expected)) / np.max(np.abs(expected))) <= SAME, what


@pytest.mark.parametrize("name", CASES)
def test_the_formulas_have_the_derivatives_that_they_say(name):
    """By differences of the eighth order in extended precision: (x, nu) are free of one another."""
    case, h = CASES[name], Wide(2e-3)
    x = np.asarray(case.models[1], Wide)
    stated = case.stated(1, int(FOLDS[1]), case.scales[1])
    nu = max(norm for norm, *_ in stated.pairs(x))
    _, gradient, hessian = stated.at(x, case.radii)
    weights = {1: Wide(4) / 5, 2: -Wide(1) / 5, 3: Wide(4) / 105, 4: -Wide(1) / 280}

    def moved(step):
        return stated.at(x + step[: len(x)], case.radii, nu + (step[len(x)] if case.radii else 0))

    for j, e in enumerate(np.eye(len(gradient), dtype=Wide)):
        ends = {k: (moved(k * h * e), moved(-k * h * e)) for k in weights}
        slope = sum(c * (ends[k][0][0] - ends[k][1][0]) for k, c in weights.items()) / h
        bend = sum(c * (ends[k][0][1] - ends[k][1][1]) for k, c in weights.items()) / h
        if "huber" not in name:  # Huber's second derivative jumps
            assert abs(slope - gradient[j]) <= 1e-12 * np.max(np.abs(gradient))
            assert np.max(np.abs(bend - hessian[j])) <= 1e-11 * np.max(np.abs(hessian))
        else:
            assert abs(slope - gradient[j]) <= 1e-4 * np.max(np.abs(gradient))


@pytest.mark.parametrize(("name", "backend"), BOTH)
def test_values_gradients_and_hessians_are_those_of_the_formulas(name, backend, told):
    """Of a batch whose models leave out different folds with different radii, and of each model alone."""
    case, found = CASES[name], told[name, backend]
    values, gradients, hessians = formulas(case, backend)
    require_same(found["values alone"], values, "values")
    if backend != "curves":
        require_same(found["values"], values, "values of a batch")
        require_same(found["gradients"], gradients, "gradients of a batch")
        require_same(found["hessians"], hessians, "Hessians of the clients")
        require_same(found["views"], values[[3, 1]], "values of some of the views")
    values, gradients, hessians = formulas(case, backend, alone=True)
    mixed = np.einsum("bn,bnij->bij", case.alpha, hessians)
    require_same(found["values of one"], values, "values of a model alone")
    require_same(found["gradients of one"], gradients, "gradients of a model alone")
    require_same(found["mixed"], mixed, "mixed Hessians")


@pytest.mark.parametrize(("name", "backend"), [one for one in BOTH if one[1] not in ("curves", "moments")])
def test_models_without_different_folds_share_hessians_over_all_rows_at_their_mean(name, backend, told):
    """With the same scale of radii; of second moments each model has its own."""
    case = CASES[name]
    _, _, hessians = formula(case, backend, case.models[:3].mean(axis=0), -1, case.scales[1])
    expected = np.einsum("bn,nij->bij", case.alpha[:3], hessians)
    require_same(told[name, backend]["shared"], expected, "shared Hessians")


@pytest.mark.parametrize("name", [name for name, backend in BOTH if backend == "moments"])
def test_hessians_from_moments_are_each_model_s_own(name, told):
    case = CASES[name]
    each = [
        formula(case, "moments", case.models[b], fold, case.scales[1])[2] for b, fold in enumerate((1, 0, -1))
    ]
    expected = np.einsum("bn,bnij->bij", case.alpha[:3], np.stack(each))
    require_same(told[name, "moments"]["shared"], expected, "Hessians")


@pytest.mark.parametrize(("name", "backend"), BOTH)
def test_bounds_enclose_the_formulas_and_cuts_stay_below_them(name, backend, told):
    """lower + <gradient, y - z> is at most R(y) at models y near and far; upper is at least R. From moments
    and from rows both are finite; replies and curves prove nothing."""
    case, found = CASES[name], told[name, backend]
    lower, upper = found["lower of one"], found["upper of one"]
    gradients, rng = np.asarray(found["gradients of one"], Wide), np.random.default_rng(1)
    assert np.all(np.isfinite(lower) & np.isfinite(upper)) == (backend in ("moments", "rows"))
    for b, (x, fold, scale) in enumerate(zip(case.models, FOLDS, case.scales, strict=True)):
        for i in range(3):
            stated = case.stated(i, fold, scale)
            value = stated.at(x, case.radii)[0]
            assert lower[b, i] <= value <= upper[b, i]
            z = lifted(case, stated, x)
            for size in (0.0, 1e-6, 1e-2, 1.0, 10.0):
                y = x + size * rng.normal(size=len(x))
                cut = lower[b, i] + gradients[b, i] @ (lifted(case, stated, y) - z)
                assert cut <= stated.at(y, case.radii)[0], (b, i, size)


def lifted(case, stated, x):
    x = np.asarray(x, Wide)
    return np.append(x, max(norm for norm, *_ in stated.pairs(x))) if case.radii else x


def test_quadratic_risks_are_their_formula(told):
    found = told["quadratic"]
    z, risks, gradient, curvature = (np.asarray(part, Wide) for part in found["parts"])
    away = np.asarray(found["Z"], Wide) - z
    bent = np.einsum("nij,bj->bni", curvature, away)
    values = risks + np.einsum("nk,bk->bn", gradient, away) + np.einsum("bnk,bk->bn", bent, away) / 2
    require_same(found["values"], values, "values")
    require_same(found["alone"], values, "values alone")
    require_same(found["some"], values[:, [2, 0]], "values of some clients")
    require_same(found["gradients"], gradient + bent, "gradients")
    require_same(
        found["mixed"], np.einsum("bn,nij->bij", CASES["softmax"].alpha, curvature), "mixed Hessians"
    )


def _suits(case):
    f = case.family
    try:
        case.problem()
    except BidroError:
        return False
    if f.ambiguity == "penalty" or case.support is not None:
        return False
    if f.ambiguity == "none" or not np.any(case.levels):
        return f.loss in ("squared", "huber", "logistic", "softmax", "smoothed hinge")
    if f.loss == "squared":
        return f.p == 2
    closed = f.p == 1 and f.metric == "features only"
    return closed and f.loss in ("huber", "logistic", "softmax", "smoothed hinge")


# Of the fuzzer's cases, those that oracles on the host can state: hard data of all its styles.
FUZZED = [number for number in range(0, 900, 3) if _suits(case_of(number, quick=True))][:40]


@pytest.mark.parametrize("number", FUZZED)
def test_bounds_enclose_the_fuzzers_reference(number):
    """Its bounds are in extended precision, of distributions in the ball and of dual values."""
    case = case_of(number, quick=True)
    problem = case.problem()
    eps = np.zeros(problem.n) if case.family.ambiguity == "none" else np.asarray(case.levels, float)
    cones = problem.cones if np.any(eps) else ()
    lift, sizes = Lift(tuple(cones)) if np.any(eps) else NO_LIFT, np.asarray(case.family.sizes)
    oracles = []
    if case.family.loss == "squared":
        moments = of_clients(problem.federation.host_rows, sizes)
        oracles.append(MomentsOracle.given(problem.loss, moments, eps, lift))
    if needs_no_search(problem.inner, eps):
        folded = FoldedRows(problem.federation.host_rows, sizes, np.zeros(sizes.sum(), np.int64))
        oracles.append(RowsOracle(problem.inner, folded, eps, lift))
    assert oracles
    pool = models(case, np.random.default_rng(number), case.planted)
    X = np.stack(list(pool.values()))
    for oracle in oracles:
        found = oracle.expand(X)
        for b, x in enumerate(X):
            for i in range(problem.n):
                low, high = reference.risk(case, i, x)
                # The reference itself rounds, in the nineteenth digit.
                slack = 1e-17 * abs(high)
                assert found.lower[b, i] <= high + slack, (list(pool)[b], i)
                assert found.upper[b, i] >= low - slack, (list(pool)[b], i)
