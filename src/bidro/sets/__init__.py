"""Convex sets: supports Xi, model sets X and mixture sets A.

Each set offers the Euclidean projection, membership, the linear maximum
max {<c, v> : v in the set} with a maximiser, and its Euclidean diameter. All sets are JAX pytrees, so
they can be passed through `jit` and `vmap`.
"""

from bidro.sets.base import ConvexSet, VectorSet
from bidro.sets.vectors import Ball, Box, ScaledNormCut, WholeSpace
from bidro.sets.weights import CappedSimplex, L1SimplexBall, Simplex, capped_sizes

__all__ = [
    "Ball",
    "Box",
    "CappedSimplex",
    "ConvexSet",
    "L1SimplexBall",
    "ScaledNormCut",
    "Simplex",
    "VectorSet",
    "WholeSpace",
    "capped_sizes",
]
