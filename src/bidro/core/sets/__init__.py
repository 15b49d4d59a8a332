"""Convex sets with exact projections."""

from bidro.core.sets.base import ConvexSet, Polytope, VectorSet
from bidro.core.sets.divergence_balls import ChiSquaredSimplexBall, KLSimplexBall
from bidro.core.sets.polytopes import ConstrainedBox, ConstrainedSimplex
from bidro.core.sets.vectors import Ball, Box, ScaledNormCut, WholeSpace
from bidro.core.sets.weights import CappedSimplex, L1SimplexBall, MixtureSet, Simplex, capped_sizes

__all__ = [
    "Ball",
    "Box",
    "CappedSimplex",
    "ChiSquaredSimplexBall",
    "ConstrainedBox",
    "ConstrainedSimplex",
    "ConvexSet",
    "KLSimplexBall",
    "L1SimplexBall",
    "MixtureSet",
    "Polytope",
    "ScaledNormCut",
    "Simplex",
    "VectorSet",
    "WholeSpace",
    "capped_sizes",
]
