"""The server's picture of min over x in X of max over alpha in A of sum_i alpha_i R_i(x), and what it gives.

Every reply adds a cut below R_i. Where risks are lifted, cuts are in z = (x, nu), and the steepness nu is
kept exactly, as a cone: nu >= ||B x + b||, with curves the norm of the features' largest slopes. Two programs
are solved over the cuts:

    minimise  max over alpha in A of sum_i alpha_i s_i  +  1/2 (z - z_hat)' M (z - z_hat)
    subject to  s_i >= every cut of client i at z,  x in X,  nu >= ||B x + b||

with M = 0 for a lower bound, and with M a model of the curvature around the best point for the next model to
try. The lower bound is not the program's value, which is only as good as the solver: its multipliers are made
feasible, and the bound they prove is evaluated afresh (`proof`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from bidro.algorithms.cone_program import ConeProgram
from bidro.algorithms.cuts import Cuts
from bidro.algorithms.references import NO_REFERENCES, References
from bidro.algorithms.together import Groups
from bidro.losses.base import Cone
from bidro.problem import Mixtures
from bidro.sets import CappedSimplex, VectorSet
from bidro.sets.base import NormBound, Polytope

Numbers = NDArray[np.float64]


# Curvature is raised to this share of the largest.
_LEAST_CURVATURE = 1e-13
# Curvature is raised to a share of what the cones have in a coordinate, which the program has already; to all
# of it where risks have hardly any of their own, less than the second share.
_OF_CONES = 1e-2
_HARDLY_BENT = 1e-6
# Models stay this share of a bound on their steepness inside of it.
_SPARE = 1e-12


class Curvature(NamedTuple):
    """A positive definite M = U^-1 V diag(values) V' U^-1, U = diag(units): coordinates are first put in
    units of their own, so that features of any size are alike."""

    values: Numbers  # (k,)
    vectors: Numbers  # V, (k, k)
    units: Numbers  # (k,)

    @classmethod
    def of(cls, M: Numbers, otherwise: float = 1.0, cones: tuple[Cone, ...] = ()) -> Curvature:
        """M with eigenvalues (in units) raised to a small share of the largest; `otherwise` times the
        identity where nothing is above 0.

        Where nu, the last coordinate, has no curvature of its own, its unit is what it changes by when the
        model does by its units.
        """
        diagonal = np.diag(M)
        if not np.any(diagonal > 0):
            return cls(np.full(len(M), otherwise), np.eye(len(M)), np.ones(len(M)))
        units = 1 / np.sqrt(np.where(diagonal > 0, diagonal, diagonal[diagonal > 0].min()))
        if cones and not diagonal[-1] > 0:
            units[-1] = max(float(np.linalg.norm(cone.matrix * units[:-1])) for cone in cones)
        values, vectors = np.linalg.eigh(M * np.outer(units, units))
        return cls(np.maximum(values, _LEAST_CURVATURE * values[-1]), vectors, units)

    def of_step(self, step: Numbers) -> float:
        """1/2 step' M step."""
        return 0.5 * float(self.values @ (self.vectors.T @ (step / self.units)) ** 2)

    def first(self, d: int) -> Curvature:
        """That of the first d coordinates."""
        root = self.vectors / self.units[:, None]
        return Curvature.of(((root * self.values) @ root.T)[:d, :d])

    def unit_steps(self, scale: float) -> Numbers:
        """T with T' M T = scale I: steps T w with w of size 1 change the quadratic term by about `scale`."""
        steps: Numbers = self.units[:, None] * self.vectors * np.sqrt(scale / self.values)
        return steps


def held_by_cones(M: Numbers, cones: tuple[Cone, ...], slope: float, nu: float) -> Numbers:
    """M (k, k) raised, where it has less, to a share of the curvature of slope ||B x + b|| at a norm of nu.

    A coordinate that no risk depends on (a column of rounding noise) is held by the cone alone; without it a
    step along it would have no end.
    """
    columns = np.max([np.sum(cone.matrix**2, axis=0) for cone in cones], axis=0)
    held = np.append(slope * columns / nu, 0.0)
    share = np.where(np.diag(M) < _HARDLY_BENT * held, 1.0, _OF_CONES)
    return M + np.diag(np.maximum(share * held - np.diag(M), 0.0))


class Answer(NamedTuple):
    """The solution of one program, in the units of the risks."""

    z: Numbers  # (k,)
    value: float  # of max_alpha sum_i alpha_i s_i at z
    multipliers: Numbers  # (cuts,), nonnegative, per client summing to alpha, which is in A
    alpha: Numbers  # (n,)
    shares: Numbers  # (variables,) of A's polytope, nonnegative: offset + lift shares is alpha, as solved
    pulls: tuple[Numbers, ...]  # multipliers of the cones, one vector a cone
    pushes: tuple[Numbers, ...]  # multipliers of X's own norm bounds, and of those on steepness


class ConeModel(NamedTuple):
    """X, A and the cones: all of the problem that does not come from the clients."""

    models: VectorSet
    finite: VectorSet  # contains `models`; the same but for a margin, see `Problem`
    mixtures: Mixtures
    cones: tuple[Cone, ...]  # empty where risks are not lifted
    nonnegative: bool  # whether risks are known to be at least 0, before references are taken off
    references: References = NO_REFERENCES
    together: Groups = np.zeros((0, 0), np.int64)  # coordinates that rise unseen, see `together`
    steepest: tuple[NormBound, ...] = ()  # models beyond these have infinite risks

    def lift(self, x: Numbers) -> Numbers:
        """z = (x, nu(x)), or x itself."""
        if not self.cones:
            return x
        return np.append(x, max(cone.norm(cone.at(x)) for cone in self.cones))

    def reached(self, start: Numbers, x: Numbers) -> Numbers:
        """x (d,) where its risks are finite; else x made smaller until they are, or if that leads out of X,
        how far one gets from `start` towards it."""
        share, size = 1.0, 1.0
        for matrix, offset, radius in self.steepest:
            here, there = (float(np.linalg.norm(matrix @ v + offset)) for v in (start, x))
            # Norms are convex: on the way they are at most what lies between the two ends.
            if there > (inside := (1 - _SPARE) * radius):
                size = min(size, inside / there)
                share = min(share, max(inside - here, 0.0) / (there - here) if there > here else 0.0)
        if size == 1:
            return x
        return size * x if self.models.contains(size * x, 0.0) else start + share * (x - start)

    def worst_mixture(self, risks: Numbers) -> float:
        """max over alpha in A of sum_i alpha_i risks_i."""
        return float(self.mixtures.linear_maximum(risks)[0])

    def solve(self, cuts: Cuts, z: Numbers, curvature: Curvature | None, scale: float) -> Answer | None:
        """Solve the program around z; `scale` is by how much the risks may still fall. None where the solver
        fails.

        The program is stated in that unit, and in units of steps that gain as much in every direction: near
        the solution, where all are small, it would else be solved to no more than the root of the tolerance.
        """
        k, n, d = len(z), self.mixtures.dimension, self.models.dimension
        if self.cones and not np.any(cuts.gradient[:, d]):
            # Nobody's risk depends on nu, which would be free to rise without end.
            in_x = cuts._replace(gradient=cuts.gradient[:, :d], points=cuts.points[:, :d])
            of_x = None if curvature is None else curvature.first(d)
            flat = self._replace(cones=()).solve(in_x, z[:d], of_x, scale)
            still = tuple(np.zeros(len(cone.offset)) for cone in self.cones)
            return flat and flat._replace(z=self.lift(flat.z), pulls=still)
        polytope, limits = self.mixtures.polytope(), self.models.constraints()
        heights, highest = cuts.at(z), cuts.highest(z, n)
        # s and pi are counted from where they are at z, so that only what may still change is to be found.
        room = polytope.matrix.T @ _prices(self.mixtures, polytope, highest) - polytope.lift.T @ highest
        T = np.eye(k) if curvature is None else curvature.unit_steps(scale)
        reach = np.inf if curvature is None else _REACH
        # The largest of groups are variables of their own.
        first = np.cumsum([0, *(0 if cone.groups is None else cone.groups[-1] + 1 for cone in self.cones)])
        program = ConeProgram(k, n, len(polytope.total), int(first[-1]))
        slopes, below_top = cuts.gradient @ T / scale, (highest[cuts.owner] - heights) / scale
        near = below_top < reach * (1 + np.linalg.norm(slopes, axis=1))
        owners = (cuts.owner[near][:, None] == np.arange(n)).astype(float)
        program.at_least_zero(below_top[near], -slopes[near], s=owners)
        program.at_least_zero(np.clip(room / scale, 0.0, reach), s=-polytope.lift.T, pi=polytope.matrix.T)
        unit = np.linalg.norm(T[:d], axis=1)
        for distance, sign in ((limits.upper - z[:d], -1), (z[:d] - limits.lower, 1)):
            close = np.isfinite(distance) & (distance < reach * unit)
            program.at_least_zero(distance[close] / unit[close], sign * T[:d][close] / unit[close][:, None])
        if curvature is not None:
            # No farther than what has been left out can be neglected.
            for side in (-np.eye(k), np.eye(k)):
                program.at_least_zero(np.full(k, reach / np.sqrt(k)), side)
        tops = [
            None
            if cone.groups is None
            else program.largest_of_groups(cone, cone.matrix @ T[:d], cone.at(z[:d]), int(at), reach)
            for cone, at in zip(self.cones, first[:-1], strict=True)
        ]
        for matrix, offset, radius in limits.norms:
            program.norm_at_most(matrix @ T[:d], matrix @ z[:d] + offset, np.zeros(k), radius)
        for matrix, offset, radius in self.steepest:
            program.norm_at_most(matrix @ T[:d], matrix @ z[:d] + offset, np.zeros(k), radius)
        for cone, top in zip(self.cones, tops, strict=True):
            if top is None:
                program.under_nu(cone.matrix @ T[:d], cone.at(z[:d]), T[-1], z[-1])
                continue
            matrix = np.hstack([np.zeros((len(top.tops), k)), top.chosen])
            along = np.append(T[-1], np.zeros(first[-1]))
            program.under_nu(matrix, top.tops, along, z[-1])
        linear = np.concatenate([np.zeros(k), polytope.offset, polytope.total, np.zeros(first[-1])])
        solved = program.minimise(linear, curved=curvature is not None)
        if solved is None:
            return None
        step, dual = T @ solved[0][:k], solved[1]
        x = self.reached(z[:d], np.asarray(self.models.project(z[:d] + step[:d])))
        value = self.worst_mixture(cuts.highest(z + step, n))
        raw = np.zeros(len(heights))
        count = np.count_nonzero(near)
        raw[near] = np.maximum(dual[:count], 0.0)
        shares = np.maximum(dual[count : count + len(room)], 0.0)
        multipliers, alpha = self.feasible(cuts, raw, heights)
        vectors = program.norm_multipliers(scale * dual)
        split = len(limits.norms) + len(self.steepest)
        pulls = tuple(
            vector if top is None else top.multipliers(scale * dual, len(cone.offset))
            for cone, top, vector in zip(self.cones, tops, vectors[split:], strict=True)
        )
        return Answer(self.lift(x), value, multipliers, alpha, shares, pulls, vectors[:split])

    def feasible(self, cuts: Cuts, raw: Numbers, heights: Numbers) -> tuple[Numbers, Numbers]:
        """The solver's multipliers, moved to where they prove a bound, and the weights they sum to."""
        sums = np.bincount(cuts.owner, raw, self.mixtures.dimension).astype(float)
        alpha = np.asarray(self.mixtures.project(sums))
        multipliers = raw * np.where(sums > 0, alpha / np.where(sums > 0, sums, 1.0), 0.0)[cuts.owner]
        for i in np.flatnonzero((sums == 0) & (alpha > 0)):
            own = np.flatnonzero(cuts.owner == i)
            multipliers[own[np.argmax(heights[own])]] = alpha[i]
        return multipliers, alpha


# Steps are of size 1 in the units of their program; what is this far away does not matter, and would only
# take the solver's time and digits.
_REACH = 1e3


def _prices(mixtures: Mixtures, polytope: Polytope, c: Numbers) -> Numbers:
    """pi that minimises <total, pi> subject to matrix' pi >= lift' c: the dual of the worst mixture of c."""
    if isinstance(mixtures, CappedSimplex):
        # What the cheapest client among those that the worst mixture fills up would bring.
        order = np.argsort(-c)
        filled = np.cumsum(polytope.total[:-1][order])
        last = min(int(np.searchsorted(filled, polytope.total[-1])), len(c) - 1)
        level = c[order[last]]
        return np.append(np.maximum(c - level, 0.0), level)
    need = polytope.lift.T @ c
    if len(polytope.total) == 1:
        return np.atleast_1d(np.max(need / polytope.matrix[0]))
    # The program's tolerances are absolute: it is stated in units of what it is about.
    unit = float(np.max(np.abs(need))) or 1.0
    found = linprog(
        polytope.total, A_ub=-polytope.matrix.T, b_ub=-need / unit, bounds=(None, None), method="highs-ds"
    )
    return np.asarray(unit * found.x)
