"""The server's picture of min over x in X of max over alpha in A of sum_i alpha_i R_i(x), and what it gives.

Every reply adds a plane below R_i. Where risks are lifted, planes are in z = (x, nu), and the steepness nu is
kept exactly, as a cone: nu >= ||B x + b||. Two programs are solved over the planes:

    minimise  max over alpha in A of sum_i alpha_i s_i  +  1/2 (z - z_hat)' M (z - z_hat)
    subject to  s_i >= every plane of client i at z,  x in X,  nu >= ||B x + b||

with M = 0 for a lower bound, and with M a model of the curvature around the best point for the next model to
try. The lower bound is not the program's value, which is only as good as the solver: its multipliers are made
feasible, and the bound they prove is evaluated afresh (`proof`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import clarabel
import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from bidro.losses.base import Cone
from bidro.problem import Mixtures
from bidro.sets import CappedSimplex, ConvexSet, VectorSet
from bidro.sets.base import Polytope

Numbers = NDArray[np.float64]


# Curvature is raised to this share of the largest.
_LEAST_CURVATURE = 1e-13
# Curvature is raised to a share of what the cones have in a coordinate, which the program has already; to all
# of it where risks have hardly any of their own, less than the second share.
_OF_CONES = 1e-2
_HARDLY_BENT = 1e-6


class Planes(NamedTuple):
    """R_owner(z) >= value + <gradient, z - point>, for every row."""

    owner: NDArray[np.int64]  # (planes,)
    value: Numbers  # (planes,)
    gradient: Numbers  # (planes, k)
    point: Numbers  # (planes, k)

    @classmethod
    def none(cls, k: int) -> Planes:
        return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, k)), np.zeros((0, k)))

    @classmethod
    def at_point(cls, owner: NDArray[np.int64], value: Numbers, gradient: Numbers, z: Numbers) -> Planes:
        """One plane of each owner, all known at z."""
        return cls(owner, value, gradient, np.tile(z, (len(owner), 1)))

    def with_more(self, more: Planes) -> Planes:
        return jax.tree.map(lambda a, b: np.concatenate([a, b]), self, more)

    def only(self, kept: NDArray[np.bool_]) -> Planes:
        return jax.tree.map(lambda part: part[kept], self)

    def at(self, z: Numbers) -> Numbers:
        """Their values at z."""
        values: Numbers = self.value + np.sum(self.gradient * (z - self.point), axis=1)
        return values


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
    multipliers: Numbers  # (planes,), nonnegative, per client summing to alpha, which is in A
    alpha: Numbers  # (n,)
    shares: Numbers  # (variables,) of A's polytope, nonnegative: offset + lift shares is alpha, as solved
    pulls: tuple[Numbers, ...]  # multipliers of the cones, one vector a cone
    pushes: tuple[Numbers, ...]  # multipliers of X's own norm bounds


class ConeModel(NamedTuple):
    """X, A and the cones: all of the problem that does not come from the clients."""

    models: VectorSet
    finite: VectorSet  # contains `models`; the same but for a margin, see `Problem`
    mixtures: Mixtures
    cones: tuple[Cone, ...]  # empty where risks are not lifted
    nonnegative: bool  # whether risks are known to be at least 0

    def lift(self, x: Numbers) -> Numbers:
        """z = (x, nu(x)), or x itself."""
        if not self.cones:
            return x
        return np.append(x, max(float(np.linalg.norm(cone.at(x))) for cone in self.cones))

    def worst_mixture(self, risks: Numbers) -> float:
        """max over alpha in A of sum_i alpha_i risks_i."""
        return float(_linear_maximum(self.mixtures, risks))

    def solve(self, planes: Planes, z: Numbers, curvature: Curvature | None, scale: float) -> Answer | None:
        """Solve the program around z; `scale` is by how much the risks may still fall. None where the solver
        fails.

        The program is stated in that unit, and in units of steps that gain as much in every direction: near
        the solution, where all are small, it would else be solved to no more than the root of the tolerance.
        """
        k, n, d = len(z), self.mixtures.dimension, self.models.dimension
        if self.cones and not np.any(planes.gradient[:, d]):
            # Nobody's risk depends on nu, which would be free to rise without end.
            in_x = planes._replace(gradient=planes.gradient[:, :d], point=planes.point[:, :d])
            of_x = None if curvature is None else curvature.first(d)
            flat = self._replace(cones=()).solve(in_x, z[:d], of_x, scale)
            still = tuple(np.zeros(len(cone.offset)) for cone in self.cones)
            return flat and flat._replace(z=self.lift(flat.z), pulls=still)
        polytope, limits = self.mixtures.polytope(), self.models.constraints()
        heights, tops = planes.at(z), _highest(planes, z, n)
        # s and pi are counted from where they are at z, so that only what may still change is to be found.
        room = polytope.matrix.T @ _prices(self.mixtures, polytope, tops) - polytope.lift.T @ tops
        T = np.eye(k) if curvature is None else curvature.unit_steps(scale)
        reach = np.inf if curvature is None else _REACH
        program = _Program(k, n, len(polytope.total))
        slopes, below_top = planes.gradient @ T / scale, (tops[planes.owner] - heights) / scale
        near = below_top < reach * (1 + np.linalg.norm(slopes, axis=1))
        program.at_least_zero(below_top[near], -slopes[near], s=_owners(planes, n)[near])
        program.at_least_zero(np.clip(room / scale, 0.0, reach), s=-polytope.lift.T, pi=polytope.matrix.T)
        unit = np.linalg.norm(T[:d], axis=1)
        for distance, sign in ((limits.upper - z[:d], -1), (z[:d] - limits.lower, 1)):
            close = np.isfinite(distance) & (distance < reach * unit)
            program.at_least_zero(distance[close] / unit[close], sign * T[:d][close] / unit[close][:, None])
        if curvature is not None:
            # No farther than what has been left out can be neglected.
            for side in (-np.eye(k), np.eye(k)):
                program.at_least_zero(np.full(k, reach / np.sqrt(k)), side)
        for matrix, offset, radius in limits.norms:
            program.norm_at_most(matrix @ T[:d], matrix @ z[:d] + offset, np.zeros(k), radius)
        for cone in self.cones:
            program.under_nu(cone.matrix @ T[:d], cone.at(z[:d]), T[-1], z[-1])
        linear = np.concatenate([np.zeros(k), polytope.offset, polytope.total])
        solved = program.minimise(linear, curved=curvature is not None)
        if solved is None:
            return None
        step, dual = T @ solved[0][:k], solved[1]
        x = np.asarray(_project(self.models, z[:d] + step[:d]))
        value = self.worst_mixture(_highest(planes, z + step, n))
        raw = np.zeros(len(heights))
        count = np.count_nonzero(near)
        raw[near] = np.maximum(dual[:count], 0.0)
        shares = np.maximum(dual[count : count + len(room)], 0.0)
        multipliers, alpha = self.feasible(planes, raw, heights)
        vectors = program.norm_multipliers(scale * dual)
        split = len(limits.norms)
        return Answer(self.lift(x), value, multipliers, alpha, shares, vectors[split:], vectors[:split])

    def feasible(self, planes: Planes, raw: Numbers, heights: Numbers) -> tuple[Numbers, Numbers]:
        """The solver's multipliers, moved to where they prove a bound, and the weights they sum to."""
        sums = np.bincount(planes.owner, raw, self.mixtures.dimension)
        alpha = np.asarray(_project(self.mixtures, sums))
        multipliers = raw * np.where(sums > 0, alpha / np.where(sums > 0, sums, 1.0), 0.0)[planes.owner]
        for i in np.flatnonzero((sums == 0) & (alpha > 0)):
            own = np.flatnonzero(planes.owner == i)
            multipliers[own[np.argmax(heights[own])]] = alpha[i]
        return multipliers, alpha


class _Program:
    """A program over v = (w, s, pi), w being the step in units of its own, under constraints affine in v."""

    def __init__(self, *sizes: int) -> None:
        self.starts = np.cumsum([0, *sizes])
        self.rows: list[Numbers] = []
        self.constants: list[Numbers] = []
        self.norms: list[Numbers] = []  # maps from a cone's multiplier to that of the vector under the norm

    def _add(self, constant: Numbers, **parts: Numbers | None) -> None:
        block = np.zeros((len(constant), self.starts[-1]))
        for start, part in zip(self.starts, parts.values(), strict=False):
            if part is not None:
                block[:, start : start + part.shape[1]] = part
        self.rows.append(block)
        self.constants.append(constant)

    def at_least_zero(
        self, constant: Numbers, z: Numbers | None = None, s: Numbers | None = None, pi: Numbers | None = None
    ) -> None:
        """constant + z-part + s-part + pi-part >= 0; all of these come before the norms."""
        self._add(constant, z=z, s=s, pi=pi)

    def norm_at_most(self, matrix: Numbers, here: Numbers, along: Numbers, radius: float) -> None:
        """||here + matrix w|| <= radius + <along, w>, for the step w."""
        unit = _size(matrix, along)
        self._add(np.append(radius, here) / unit, z=np.vstack([along, matrix]) / unit)
        self.norms.append(-np.eye(len(here), len(here) + 1, 1) / unit)

    def under_nu(self, matrix: Numbers, here: Numbers, along: Numbers, nu: float) -> None:
        """||here + matrix w|| <= nu + <along, w>, where ||here|| <= nu.

        Where steps are small beside nu, all that matters is lost in nu. With u = here / ||here||, p and o the
        parts of matrix w along u and across it, a = <along, w> - p and b = 2 nu + <along, w> + p, the same
        set is a b >= ||o||^2, and as ||(2 o, nu a - b / nu)|| <= nu a + b / nu everything is of size 1.
        """
        unit = _size(matrix, along)
        size, left = float(np.linalg.norm(here)) / unit, (nu - float(np.linalg.norm(here))) / unit
        if size <= 1 or left > 1e-6 * size:
            self.norm_at_most(matrix, here, along, nu)
            return
        u = here / np.linalg.norm(here)
        matrix, along = matrix / unit, along / unit
        p = u @ matrix
        low, high = size * (along - p), (along + p) / size
        # Here nu is ||here|| and something left, which counts as a step already made.
        low0, high0 = size * left, 2 + left / size
        across = np.eye(len(u)) - np.outer(u, u)
        block = np.vstack([low + high, 2 * (across @ matrix), low - high])
        self._add(np.concatenate([[low0 + high0], np.zeros(len(here)), [low0 - high0]]), z=block)
        back = np.column_stack([(size - 1 / size) * u, -2 * across, (size + 1 / size) * u])
        self.norms.append(back / unit)

    def minimise(self, q: Numbers, curved: bool) -> tuple[Numbers, Numbers] | None:
        """(v, multipliers) that minimise <q, v>, and if `curved` half the square of the step as well."""
        k = self.starts[1]
        P = sparse.diags(np.where(np.arange(len(q)) < k, float(curved), 0.0), format="csc")
        A, b = sparse.csc_matrix(-np.vstack(self.rows)), np.concatenate(self.constants)
        sizes = [back.shape[1] for back in self.norms]
        cones = [clarabel.NonnegativeConeT(len(b) - sum(sizes))]
        cones += [clarabel.SecondOrderConeT(size) for size in sizes]
        solved = clarabel.DefaultSolver(P, q, A, b, cones, _settings()).solve()
        v, dual = np.asarray(solved.x), np.asarray(solved.z)
        # A solution short of the tolerance still serves: bounds are proven from multipliers, not from it.
        usable = solved.status not in _FAILED and np.all(np.isfinite(v)) and np.all(np.isfinite(dual))
        return (v, dual) if usable else None

    def norm_multipliers(self, dual: Numbers) -> tuple[Numbers, ...]:
        """For each norm the vector y for which <y, matrix x + offset> takes its place in the Lagrangian."""
        vectors, end = [], len(dual)
        for back in reversed(self.norms):
            vectors.append(back @ dual[end - back.shape[1] : end])
            end -= back.shape[1]
        return tuple(reversed(vectors))


# Steps are of size 1 in the units of their program; what is this far away does not matter, and would only
# take the solver's time and digits.
_REACH = 1e3

_FAILED = {
    clarabel.SolverStatus.PrimalInfeasible,
    clarabel.SolverStatus.DualInfeasible,
    clarabel.SolverStatus.NumericalError,
    clarabel.SolverStatus.Unsolved,
}


def _settings() -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    settings.max_threads = 1
    return settings


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
    found = linprog(
        polytope.total, A_ub=-polytope.matrix.T, b_ub=-need, bounds=(None, None), method="highs-ds"
    )
    return np.asarray(found.x)


def _size(matrix: Numbers, along: Numbers) -> float:
    """The size of what a step of size 1 changes under a norm or beside it."""
    return float(max(np.linalg.norm(matrix, axis=1).max(), np.linalg.norm(along), 1e-300))


def _owners(planes: Planes, n: int) -> Numbers:
    """(planes, n): 1 where the client owns the plane."""
    owners: Numbers = (planes.owner[:, None] == np.arange(n)).astype(float)
    return owners


def _highest(planes: Planes, z: Numbers, n: int) -> Numbers:
    """The highest plane of each client at z."""
    heights = np.full(n, -np.inf)
    np.maximum.at(heights, planes.owner, planes.at(z))
    return heights


@jax.jit
def _linear_maximum(of: ConvexSet, c: Array) -> Array:
    return of.linear_maximum(c)[0]


@jax.jit
def _project(on: ConvexSet, v: Array) -> Array:
    return on.project(v)
