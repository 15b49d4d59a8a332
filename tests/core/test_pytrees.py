"""Trees of arrays: what is done with them without JAX is what JAX would do."""

import subprocess
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from bidro import Ball, Box, CappedSimplex, L1SimplexBall, Simplex, Transport, WholeSpace
from bidro.core.pytrees import mapped, namespace, register_pytrees, stack_trees, structured
from bidro.core.sets import ScaledNormCut

register_pytrees()  # JAX may have been imported after the classes


class Pair(NamedTuple):
    left: Any
    right: Any


CUT = ScaledNormCut(Box.cube(1.0, 2), np.ones(2), 1.5)
TREES = [
    (("loss", Transport.classification(3), WholeSpace(3), Box.cube(1.0, 2), Simplex(4)), None, np.ones(3)),
    (Ball(np.zeros(2), 1.0), CUT, CappedSimplex(np.zeros(2), np.ones(2))),
    (L1SimplexBall([0.5, 0.5], 0.4),),
    Pair(np.arange(3.0), (None, np.ones((2, 2)))),
]


@pytest.mark.parametrize("tree", TREES[:3])
def test_leaves_and_structure_are_those_that_jax_finds(tree):
    leaves, structure = structured(tree)
    expected, of_jax = jax.tree.flatten(tree)
    assert structure == repr(of_jax)
    assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in expected]


@pytest.mark.parametrize("tree", [CUT, TREES[3], {"a": [np.ones(2), None]}])
def test_a_function_of_leaves_gives_the_tree_that_jax_gives(tree):
    ours, theirs = (
        mapped(lambda a, b: a + 2 * b, tree, tree),
        jax.tree.map(lambda a, b: a + 2 * b, tree, tree),
    )
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_trees_are_stacked_along_a_leading_axis():
    stacked = stack_trees(Pair(np.full(2, k), (k,)) for k in range(3))
    np.testing.assert_array_equal(stacked.left, [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(stacked.right[0], [0, 1, 2])


def test_the_namespace_is_that_of_the_arrays():
    assert namespace(np.ones(2), 3.0) is np
    assert namespace(np.ones(2), jax.numpy.ones(2)) is jax.numpy


def test_classes_that_were_made_before_jax_was_imported_are_traced_like_others():
    script = """
import sys
from bidro import Box
assert "jax" not in sys.modules
from bidro.core.jax_on_use import jax
print(jax.jit(lambda box, v: box.project(v))(Box.cube(1.0, 2), jax.numpy.array([3.0, 0.5])).tolist())
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[1.0, 0.5]", found.stderr
