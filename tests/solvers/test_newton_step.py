"""Newton's own step: against derivatives taken numerically and a minimum found by search, and what it leaves
to the cone program."""

import numpy as np
import pytest
from scipy.optimize import minimize

from bidro.core.sets import Box, CappedSimplex, L1SimplexBall, Simplex
from bidro.losses.base import Cone
from bidro.solvers.bundle.bound import proven_at
from bidro.solvers.bundle.model import ConeModel, Cuts
from bidro.solvers.bundle.steps import newton_step

D = 3


def model(cones=1, half=50.0):
    rng = np.random.default_rng(5)
    box = Box.cube(half, D)
    own = tuple(Cone(rng.normal(size=(2, D)), rng.normal(size=2) * (cones > 1)) for _ in range(cones))
    return ConeModel(box, box, Simplex(1), own, nonnegative=True)


def quadratic(seed=0):
    """(gradient at 0, second derivative) in z = (x, nu), rising with nu."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(D + 1, D + 1))
    gradient = rng.normal(size=D + 1)
    return np.append(gradient[:D], 0.4), root @ root.T + 0.1 * np.eye(D + 1)


def test_the_step_is_newtons():
    """By numerical derivatives of F(x) = q(x, nu(x)), at a model whose nu is not 0."""
    at, (slope, H) = model(), quadratic()

    def total(x):
        z = at.lift(x)
        return slope @ z + 0.5 * z @ H @ z

    x, small = np.array([0.7, -0.4, 1.1]), 1e-4
    eye = small * np.eye(D)
    gradient = np.array([(total(x + e) - total(x - e)) / (2 * small) for e in eye])
    second = [
        [total(x + e + f) - total(x + e - f) - total(x - e + f) + total(x - e - f) for e in eye] for f in eye
    ]
    wanted = -np.linalg.solve(np.array(second) / (4 * small**2), gradient)
    z = at.lift(x)
    found = newton_step(at, z, slope + H @ z, H)
    np.testing.assert_allclose(found.x - x, wanted, rtol=1e-5)
    assert found.fall == pytest.approx(-0.5 * gradient @ wanted, rel=1e-5)


def test_from_a_kink_the_step_keeps_the_norm_as_it_is():
    at, (slope, H) = model(), quadratic()
    H[-1] = H[:, -1] = 0.0

    def total(x):
        z = at.lift(x)
        return slope @ z + 0.5 * z @ H @ z

    found = newton_step(at, np.zeros(D + 1), slope, H)
    best = minimize(total, found.x, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13}).fun
    assert found.fall == pytest.approx(-total(found.x), rel=1e-12)
    assert best <= total(found.x) <= best + 0.01 * abs(best)
    # So steep that the minimum is the kink itself.
    assert newton_step(at, np.zeros(D + 1), slope * [1, 1, 1, 100], H) is None


def test_what_is_left_to_the_program():
    at, (slope, H) = model(), quadratic()
    z = at.lift(np.array([0.7, -0.4, 1.1]))
    assert newton_step(at, z, slope, H) is not None
    assert newton_step(model(half=1e-3), z, slope, H) is None
    assert newton_step(model(cones=2), z, slope, H) is None
    assert newton_step(at, z, slope, -H) is None
    assert newton_step(at, np.zeros(D + 1), slope, H) is None
    assert newton_step(at, z, slope * np.nan, H) is None
    plain = at._replace(cones=())
    np.testing.assert_allclose(
        newton_step(plain, z[:D], slope[:D], H[:D, :D]).x, z[:D] - np.linalg.solve(H[:D, :D], slope[:D])
    )


def test_which_sets_hold_one_mixture():
    share = np.array([0.2, 0.3, 0.5])
    assert Simplex(1).is_single_point
    assert CappedSimplex(share, share).is_single_point
    assert CappedSimplex.around_proportions(np.array([3, 7, 11, 13]), 1.0).is_single_point
    assert CappedSimplex(share, 2 * share).is_single_point
    assert not CappedSimplex.around_proportions(np.array([3, 7, 11, 13]), 1.0 + 1e-9).is_single_point
    assert L1SimplexBall(share, 0.0).is_single_point
    assert not Simplex(3).is_single_point
    assert not CappedSimplex(0 * share, 2 * share).is_single_point
    assert not L1SimplexBall(share, 0.1).is_single_point


def test_what_is_proven_at_a_point_holds_everywhere_and_is_tight_at_an_optimum():
    """F(x) = 1/2 x'x - <c, x> + 0.4 nu of one client: the cut at any point is below it, and at its minimum it
    proves it."""
    rng = np.random.default_rng(1)
    at, c = model(), np.array([1.0, -2.0, 0.5])

    def total(x):
        return 0.5 * x @ x - c @ x + 0.4 * at.lift(x)[-1]

    def bound(x):
        gradient = np.append(x - c, 0.4)
        cut = Cuts.at_point(np.zeros(1, np.int64), np.array([total(x)]), gradient[None], at.lift(x))
        return proven_at(at, cut, at.lift(x), 0, np.ones(1)).bound

    x = minimize(total, c, method="BFGS", options={"gtol": 1e-10}).x
    assert total(x) - 1e-4 <= bound(x) <= total(x)
    points = rng.normal(size=(20, D))
    assert max(map(bound, points)) <= total(x) + 1e-12
