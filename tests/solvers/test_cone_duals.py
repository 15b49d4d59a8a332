"""How proofs turn, shorten and grow the cones' multipliers: each proposal against what it says of itself."""

import numpy as np
import pytest

from bidro.core.sets import Box, Simplex
from bidro.losses.base import Cone
from bidro.solvers.bundle.bound import costs, directions, growths, lengths, turn_weights
from bidro.solvers.bundle.model import ConeModel

PLAIN = Cone(np.array([[1.0, 2.0], [0.0, -4.0]]), np.array([0.5, 1.0]))
GROUPED = Cone(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]), np.zeros(3), np.array([0, 0, 1]))


def model_of(*cones):
    box = Box.cube(1.0, 2)
    return ConeModel(box, box, Simplex(1), cones, nonnegative=False)


def test_lengths_and_matrices_by_hand():
    model, duals = model_of(PLAIN, GROUPED), np.array([3.0, -4.0, 1.0, -2.0, 4.0])
    np.testing.assert_allclose(lengths(model, duals), [5.0, 5.0])
    np.testing.assert_array_equal(model.cone_matrix, [[1, 2], [0, -4], [1, 0], [1, 1], [0, 3]])
    assert model_of().cone_matrix.shape == (0, 2)


def test_a_turn_weighs_as_much_as_what_it_costs():
    """Turned by t across, a pull is too long; what is left of the slope when it is shortened again costs
    width times that. A turn that costs the allowance weighs the allowance."""
    y, width, allowance, t = np.array([3.0, -4.0]), np.array([2.0, 0.5]), 0.7, 1e-3
    cone = Cone(PLAIN.matrix, PLAIN.offset)
    first, second, *grouped = turn_weights(
        model_of(cone, GROUPED), np.append(y, np.zeros(3)), width, allowance
    )
    assert first == second
    turned = y + t * np.array([0.8, 0.6])
    excess = np.linalg.norm(turned) - 5.0
    cost = np.linalg.norm(width * (cone.matrix.T @ (excess * y / 5.0)))
    assert (first * t) ** 2 == pytest.approx(allowance * cost, rel=1e-6)
    assert grouped == [0.0, 0.0, 0.0]  # a pull of nothing is none that could be shortened
    assert turn_weights(model_of(), np.zeros(0), width, allowance).shape == (0,)


def test_turns_keep_lengths_and_the_rows_that_are_0():
    duals = np.array([3.0, -4.0, 1.0, -2.0, 0.0])
    model = model_of(PLAIN, GROUPED)
    toward, across = directions(model, duals)
    np.testing.assert_allclose(toward, [[0.6, -0.8, 0, 0, 0], [0, 0, 1 / 3, -2 / 3, 0]])
    assert np.linalg.matrix_rank(across) == 2  # of two rows each that are not 0, one direction
    np.testing.assert_allclose(across[:2, :2], [[0.64, 0.48], [0.48, 0.36]])
    for column in across.T:
        np.testing.assert_array_equal(column[4], 0.0)
        ahead, back = (lengths(model, duals + step * column) for step in (1e-5, -1e-5))
        np.testing.assert_allclose(ahead - back, 0.0, atol=1e-13)
    nothing = directions(model_of(), np.zeros(0))
    assert nothing[0].shape == nothing[1].shape == (0, 0)


@pytest.mark.parametrize(("share", "turns"), [(1.5e-3, True), (1e-3, False), (0.0, False)])
def test_what_is_small_beside_all_pulls_does_not_turn_but_grows(share, turns):
    """From a thousandth of them on; the turns of one group as those of rows by themselves."""
    slope = np.array([1e-7, 1e-7])
    for cone, small in ((PLAIN, np.array([0.0, 4 * share])), (GROUPED, np.array([4 * share, 0.0, 0.0]))):
        model = model_of(Cone(np.eye(2), np.zeros(2)), cone)
        duals = np.append([4 - 4 * share, 0.0], small)
        with np.errstate(all="raise"):
            toward, across = directions(model, duals)
        assert bool(toward[1].any()) == turns
        assert bool(across[2:, 2:].any()) == (turns and cone is PLAIN)  # of one row alone there is no turn
        assert bool(growths(model, duals, slope).size) != turns
        np.testing.assert_allclose(across[:2, :2], np.diag([0.0, 1.0]))


def test_rows_grow_where_next_to_nothing_of_them_cancels_the_slope():
    """Up to a millionth of all pulls, for the coordinate that asks for most of it."""
    holds, grows = Cone(np.eye(2), np.zeros(2)), Cone(np.array([[-2.0, 0.0], [0.5, 1.0]]), np.zeros(2))
    model, duals = model_of(holds, grows), np.array([0.0, 4.0, 0.0, 0.0])

    def found(*slope):
        with np.errstate(all="raise"):
            columns = growths(model, duals, np.array(slope))
        half = columns.shape[1] // 2
        np.testing.assert_array_equal(columns[:, half:], -columns[:, :half])
        assert set(np.abs(columns).sum(axis=0)) <= {1.0}
        return [int(row) for row in np.argmax(columns[:, :half], axis=0)]

    assert found(1e-7, 1e-7) == [2, 3]
    assert found(0.0, 1e-7) == [3]  # nothing is asked of the other
    assert found(-1e-7, 1.0) == [2]
    assert found(3e-6, 1e-7) == [2]  # 1.5e-6 of the one and 6e-6 of the other, of at most 4e-6
    assert found(2e-6, 1e-7) == [2, 3]  # just as much as there may be
    assert found(-9e-6, 0.0) == []
    assert growths(model_of(), np.zeros(0), np.ones(2)).shape == (0, 0)


def test_what_a_change_takes_off_the_bound_at_a_model():
    """<y, matrix x + offset> is part of it: at (1, 1) the cones are (3.5, -3) and (1, 2, 3)."""
    model, z = model_of(PLAIN, GROUPED), np.array([1.0, 1.0, 99.0])
    changes = np.array([[1.0, 0, 0, 0, 0], [-1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, -1, -1, 1]]).T
    np.testing.assert_allclose(costs(model, z, changes), [0.0, 3.5, 3.0, 0.0])
    np.testing.assert_allclose(costs(model, z, -changes), [3.5, 0.0, 0.0, 0.0])
    assert costs(model_of(), z, np.zeros((0, 3))).tolist() == [0.0, 0.0, 0.0]
