"""The cutting-plane model of min over x in X of max over alpha in A of sum_i alpha_i R_i(x).

Every reply adds a cut below R_i. Where risks are lifted, cuts are in z = (x, nu), and the steepness nu is
kept exactly, as a cone: nu >= ||B x + b||, with curves the norm of the features' largest slopes. Two programs
are solved over the cuts:

    minimise  max over alpha in A of sum_i alpha_i s_i  +  1/2 (z - z_hat)' M (z - z_hat)
    subject to  s_i >= every cut of client i at z,  x in X,  nu >= ||B x + b||

with M = 0 for a lower bound, and with M a model of the curvature around the best point for the next model to
try. The lower bound is not the program's value, which is only as good as the solver: its multipliers are made
feasible, and the bound they prove is evaluated afresh (`bound`).

Of n clients a program needs those one by one whose weights are not settled: near the worst for a simplex,
near the level at which weights meet their caps for a capped simplex. The rest are left out (simplex), or held
in groups, whose members share their weight in fixed proportions (`WorkingSet`). Both only take weights away
from A, so that what is proven with the weights that are left holds for all of A. Whether they were the right
ones is seen at the solution: where the worst mixture of all clients is worse than that of those held, the
ones who are now near are held too, and the program is solved again. A set of mixtures that no linear program
states, such as a curved one, is held by corners in the same way: their hull is a part of A (`Hull`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bidro.core.sets import MixtureSet, Polytope, VectorSet
from bidro.core.sets.base import NormBound
from bidro.losses.base import Cone
from bidro.solvers.references import NO_REFERENCES, References

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Groups = NDArray[np.int64]  # (groups, members) coordinates, none of them in two groups


class Cuts(NamedTuple):
    """Affine functions below the clients' risks: R_owner(z) >= value + <gradient, z - points[origin]>.

    Cuts of one origin lie together, in the order of the points, and no two of them have the same owner.
    """

    owner: Indices  # (cuts,)
    value: Numbers  # (cuts,) at the point that the client assessed
    gradient: Numbers  # (cuts, k)
    origin: Indices  # (cuts,) which point that was, never falling
    idle: Indices  # (cuts,) rounds since a program used it
    points: Numbers  # (points, k)

    @classmethod
    def none(cls, k: int) -> Cuts:
        nobody = np.zeros(0, np.int64)
        return cls(nobody, np.zeros(0), np.zeros((0, k)), nobody, nobody, np.zeros((0, k)))

    @classmethod
    def at_point(cls, owner: Indices, value: Numbers, gradient: Numbers, z: Numbers) -> Cuts:
        """One cut of each owner, all known at z."""
        first = np.zeros(len(owner), np.int64)
        return cls(owner, value, gradient, first, first, z[None])

    def with_more(self, more: Cuts) -> Cuts:
        more = more._replace(origin=more.origin + len(self.points))
        return Cuts(*(np.concatenate(pair) for pair in zip(self, more, strict=True)))

    def only(self, kept: NDArray[np.bool_]) -> Cuts:
        """Those to be kept; points stay, so that origins mean what they did."""
        columns: list[Any] = [*(column[kept] for column in self[:-1]), self.points]
        return Cuts(*columns)

    def raised(self, origin: int, by: Numbers) -> Cuts:
        """Those of one origin raised by so much for each client (n,)."""
        return self._replace(value=self.value + np.where(self.origin == origin, by[self.owner], 0.0))

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """Each origin that has cuts, and where they are."""
        starts = np.flatnonzero(np.diff(self.origin, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(self.origin)), strict=True):
            yield int(self.origin[start]), slice(int(start), int(end))

    def at(self, z: Numbers) -> Numbers:
        """Their values at z."""
        values = self.value.copy()
        for origin, rows in self.blocks():
            values[rows] += self.gradient[rows] @ (z - self.points[origin])
        return values

    def highest(self, z: Numbers, n: int) -> Numbers:
        """(n,) the highest cut of each client at z; -inf where it has none."""
        heights, values = np.full(n, -np.inf), self.at(z)
        for _, rows in self.blocks():
            owner = self.owner[rows]
            heights[owner] = np.maximum(heights[owner], values[rows])
        return heights


_STATUS, _SETTINGS = clarabel.SolverStatus, clarabel.DefaultSettings()
_FAILED = {_STATUS.PrimalInfeasible, _STATUS.DualInfeasible, _STATUS.NumericalError, _STATUS.Unsolved}
_SETTINGS.verbose, _SETTINGS.max_threads = False, 1
_SETTINGS.tol_gap_abs = _SETTINGS.tol_gap_rel = _SETTINGS.tol_feas = 1e-10


class Largest(NamedTuple):
    """The largest of every group of a cone, as variables of a program."""

    tops: Numbers  # (groups,) at w = 0
    chosen: Numbers  # (groups, taus) what they rise by with tau
    start: int  # where the rows of the program begin that hold them up
    rows: NDArray[np.int64]  # of the cone, in the program: once from above and once from below
    unit: float

    def multipliers(self, dual: Numbers, size: int) -> Numbers:
        """(size,) the vector y for which <y, matrix x + offset> takes the cone's place in the Lagrangian."""
        count, found = len(self.rows), np.zeros(size)
        above, below = np.maximum(dual[self.start : self.start + 2 * count], 0.0).reshape(2, -1)
        found[self.rows] = (above - below) / self.unit
        return found


class ConeProgram:
    """A cone program stated piece by piece, as sparse matrices, and solved by Clarabel.

    Its variables are v = (w, s, pi, tau), w being the step in units of its own and tau the steps of the
    largest of groups; its constraints are affine in v.
    """

    def __init__(self, w: int, s: int = 0, pi: int = 0, tau: int = 0) -> None:
        self.starts = np.cumsum([0, w, s, pi, tau])
        # The entries that are not 0, as (row, column, value).
        self.entries: list[tuple[Indices, Indices, Numbers]] = []
        self.constants: list[Numbers] = []
        self.height = 0
        self.free = 0  # rows of equations
        self.norms: list[Numbers] = []  # maps from a cone's multiplier to that of the vector under the norm

    def at_least_zero(self, constant: Numbers, w: Numbers, **others: Numbers) -> None:
        """constant + w-part + the parts of other variables, by name >= 0; these all come before the norms."""
        for name, part in {"w": w, **others}.items():
            start = self.starts[("w", "s", "pi", "tau").index(name)]
            row, column = np.nonzero(part)
            self.entries.append((self.height + row, start + column, part[row, column]))
        self.constants.append(constant)
        self.height += len(constant)

    def equals_zero(self, constant: Numbers, w: Numbers) -> None:
        """constant + w-part = 0; these come between what is at least zero and the norms."""
        self.at_least_zero(constant, w)
        self.free += len(constant)

    def largest_of_groups(
        self, cone: Cone, matrix: Numbers, here: Numbers, first: int, reach: float
    ) -> Largest:
        """top_g + unit tau_g >= |here_r + (matrix w)_r| for the rows of every group: top_g is the largest of
        them at w = 0, the unit what a step changes, and `first` the place of the groups' first tau. Rows so
        far below the largest of their group that no step of size `reach` brings them there are left out."""
        assert cone.groups is not None
        tops, unit = cone.largest(here), _size(matrix, np.zeros(1))
        taus = np.zeros((len(here), self.starts[4] - self.starts[3]))
        taus[np.arange(len(here)), first + cone.groups] = 1.0
        left = (tops[cone.groups] - np.abs(here)) / unit
        near = np.flatnonzero(left <= 2 * reach)
        start = self.height
        for side in (1.0, -1.0):
            room = (tops[cone.groups] - side * here) / unit
            self.at_least_zero(room[near], -side * matrix[near] / unit, tau=taus[near])
        chosen = np.zeros((len(tops), taus.shape[1]))
        chosen[np.arange(len(tops)), first + np.arange(len(tops))] = unit
        return Largest(tops, chosen, start, near, unit)

    def sum_at_most(self, top: Largest, along: Numbers, nu: float) -> None:
        """sum of the largest of groups <= nu + <along, w>, for the step w."""
        unit = _size(along[None], top.chosen.sum(axis=0))
        left = np.array([nu - top.tops.sum()])
        self.at_least_zero(left / unit, along[None] / unit, tau=-top.chosen.sum(axis=0)[None] / unit)

    def _add_cone(self, constant: Numbers, block: Numbers) -> None:
        """A block (rows, k) in the step, or (rows, k + taus) in the step and tau."""
        k = self.starts[1]
        self.at_least_zero(constant, block[:, :k], tau=block[:, k:])

    def norm_at_most(self, matrix: Numbers, here: Numbers, along: Numbers, radius: float) -> None:
        """||here + matrix w|| <= radius + <along, w>, for the step w, or for (w, tau)."""
        unit = _size(matrix, along)
        self._add_cone(np.append(radius, here) / unit, np.vstack([along, matrix]) / unit)
        self.norms.append(-np.eye(len(here), len(here) + 1, 1) / unit)

    def under_nu(self, matrix: Numbers, here: Numbers, along: Numbers, nu: float) -> None:
        """||here + matrix w|| <= nu + <along, w>, where ||here|| <= nu, for the step w, or for (w, tau).

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
        self._add_cone(np.concatenate([[low0 + high0], np.zeros(len(here)), [low0 - high0]]), block)
        back = np.column_stack([(size - 1 / size) * u, -2 * across, (size + 1 / size) * u])
        self.norms.append(back / unit)

    def minimise(self, q: Numbers, curved: bool) -> tuple[Numbers, Numbers] | None:
        """(v, multipliers) that minimise <q, v>, and if `curved` half the square of the step as well."""
        k, b = self.starts[1], np.concatenate(self.constants)
        P = sparse.csc_matrix(sparse.eye(k) if curved else (k, k))
        P.resize(len(q), len(q))
        row, column, value = (np.concatenate(parts) for parts in zip(*self.entries, strict=True))
        A = sparse.csc_matrix((-value, (row, column)), (len(b), len(q)))
        sizes = [back.shape[1] for back in self.norms]
        cones = [clarabel.NonnegativeConeT(len(b) - self.free - sum(sizes))]
        cones += [clarabel.ZeroConeT(self.free)] if self.free else []
        cones += [clarabel.SecondOrderConeT(size) for size in sizes]
        solved = clarabel.DefaultSolver(P, q, A, b, cones, _SETTINGS).solve()
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


def _size(matrix: Numbers, along: Numbers) -> float:
    """The size of what a step of size 1 changes under a norm or beside it."""
    return float(max(np.linalg.norm(matrix, axis=1).max(), np.linalg.norm(along), 1e-300))


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
            moved = max(float(np.linalg.norm(cone.matrix * units[:-1])) for cone in cones)
            units[-1] = moved or units[-1]
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
    cone_duals: Numbers  # (rows,) multipliers of the cones' rows, one cone after the other
    norm_duals: tuple[Numbers, ...]  # of X's own norm bounds, then of `norm_bounds`, a vector each


class ConeModel(NamedTuple):
    """X, A and the cones: all of the problem that does not come from the clients."""

    models: VectorSet
    finite: VectorSet  # contains `models`; the same but for a margin, see `Problem`
    mixtures: MixtureSet
    cones: tuple[Cone, ...]  # empty where risks are not lifted
    nonnegative: bool  # whether risks are known to be at least 0, before references are taken off
    references: References = NO_REFERENCES
    shift_invariance: Groups = np.zeros((0, 0), np.int64)  # coordinates that can all rise unseen
    norm_bounds: tuple[NormBound, ...] = ()  # models beyond these have infinite risks
    infimum_at_infinity: bool = False  # whether the loss is 0 only at infinity

    @property
    def cone_matrix(self) -> Numbers:
        """(rows, d) the matrices of all cones, one below the other; that of one alone may be large."""
        if len(self.cones) == 1:
            return self.cones[0].matrix
        return np.vstack([np.zeros((0, self.models.dimension)), *(cone.matrix for cone in self.cones)])

    def of_cones(self, rows: Numbers) -> Iterator[tuple[Cone, Numbers]]:
        """Each cone with its part of a vector (rows,) over all of their rows."""
        end = 0
        for cone in self.cones:
            start, end = end, end + len(cone.offset)
            yield cone, rows[start:end]

    def lift(self, x: Numbers) -> Numbers:
        """z = (x, nu(x)), or x itself."""
        if not self.cones:
            return x
        return np.append(x, max(cone.norm(cone.at(x)) for cone in self.cones))

    def reached(self, start: Numbers, x: Numbers) -> Numbers:
        """x (d,) where its risks are finite; else x made smaller until they are, or if that leads out of X,
        how far one gets from `start` towards it."""
        share, size = 1.0, 1.0
        for matrix, offset, radius in self.norm_bounds:
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
        if self.cones and not (np.any(cuts.gradient[:, d]) and np.any(self.cone_matrix)):
            # Nobody's risk depends on nu, which would be free to rise without end; or nu, which is that of
            # the target alone, does not depend on the model.
            in_x = cuts._replace(gradient=cuts.gradient[:, :d], points=cuts.points[:, :d])
            of_x = None if curvature is None else curvature.first(d)
            flat = self._replace(cones=()).solve(in_x, z[:d], of_x, scale)
            if flat is None:
                return None
            here = [cone.at(z[:d]) for cone in self.cones]
            steepest = int(np.argmax([cone.norm(v) for cone, v in zip(self.cones, here, strict=True)]))
            r_nu = float(flat.multipliers @ cuts.gradient[:, d]) * np.eye(len(here))[steepest]
            held = [r * cone.slope(v) for r, cone, v in zip(r_nu, self.cones, here, strict=True)]
            return flat._replace(z=self.lift(flat.z), cone_duals=np.concatenate(held))
        polytope, limits = self.mixtures.polytope(), self.models.constraints()
        assert polytope is not None
        heights, highest = cuts.at(z), cuts.highest(z, n)
        # s and pi are counted from where they are at z, so that only what may still change is to be found.
        room = polytope.matrix.T @ self.mixtures.prices(highest) - polytope.lift.T @ highest
        T = np.eye(k) if curvature is None else curvature.unit_steps(scale)
        reach = np.inf if curvature is None else _REACH
        # The largest of groups are variables of their own.
        first = np.cumsum([0, *(0 if cone.groups is None else cone.groups[-1] + 1 for cone in self.cones)])
        program = ConeProgram(k, n, len(polytope.total), int(first[-1]))
        slopes, below_top = cuts.gradient @ T / scale, (highest[cuts.owner] - heights) / scale
        near = below_top < reach * (1 + np.linalg.norm(slopes, axis=1))
        owners = (cuts.owner[near][:, None] == np.arange(n)).astype(float)
        program.at_least_zero(below_top[near], -slopes[near], s=owners)
        none, limited = np.zeros((len(room), k)), np.clip(room / scale, 0.0, reach)
        program.at_least_zero(limited, none, s=-polytope.lift.T, pi=polytope.matrix.T)
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
        for cone, top in zip(self.cones, tops, strict=True):
            if cone.summed:
                assert top is not None
                program.sum_at_most(top, T[-1], z[-1])
        if limits.rows is not None:
            matrix, least, most = limits.rows
            there, along, equal = matrix @ z[:d], matrix @ T[:d], least == most
            size = np.linalg.norm(along, axis=1)
            along, size = along / np.where(size > 0, size, 1.0)[:, None], np.where(size > 0, size, 1.0)
            for distance, sign in ((most - there, -1), (there - least, 1)):
                close = ~equal & (distance < reach * size)
                program.at_least_zero(distance[close] / size[close], sign * along[close])
            program.equals_zero((most - there)[equal] / size[equal], -along[equal])
        norms = (*limits.norms, *self.norm_bounds)
        for matrix, offset, radius in norms:
            program.norm_at_most(matrix @ T[:d], matrix @ z[:d] + offset, np.zeros(k), radius)
        for cone, top in zip(self.cones, tops, strict=True):
            if top is None:
                program.under_nu(cone.matrix @ T[:d], cone.at(z[:d]), T[-1], z[-1])
            if top is None or cone.summed:
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
        split = len(norms)
        # All cones but those that are summed up have a norm of their own in the program.
        of_norms = iter(vectors[split:])
        of_cones = []
        for cone, top in zip(self.cones, tops, strict=True):
            vector = None if cone.summed else next(of_norms)
            of_cones.append(vector if top is None else top.multipliers(scale * dual, len(cone.offset)))
        cone_duals = np.concatenate([np.zeros(0), *of_cones])
        return Answer(self.lift(x), value, multipliers, alpha, shares, cone_duals, vectors[:split])

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


# This many clients more than there are coordinates are held one by one around each place that matters, and
# all of them where there are few times as many.
_NEAREST = 20
_FEW_TIMES = 3
# Groups begin where the rank's distance from such a place has grown by this factor.
_GROWTH = 1.25
# A program is solved again, at most so often, where leaving out costs more than this share of what is left.
_PASSES = 6
_COSTS = 1e-2
# Corners that a program holds of a set of mixtures that no linear program states.
_MOST_CORNERS = 50
_USED = 1e-9


class WorkingSet(NamedTuple):
    """Members in place of clients: member j stands for sum_i share_ji R_i, `mixtures` are their weights."""

    singly: Indices  # the clients that are members by themselves
    share: sparse.csr_matrix  # (members, n), rows summing to 1
    mixtures: MixtureSet  # of members; with `share`, a part of A

    @classmethod
    def around(cls, mixtures: MixtureSet, tops: Numbers, nearest: int, also: Indices) -> WorkingSet:
        """Holds the `nearest` clients around each place that matters if their risks were `tops` (n,), and
        `also` those one by one."""
        n = len(tops)
        if mixtures.is_whole:
            singly = np.union1d(np.argpartition(-tops, nearest)[:nearest], also)
            rest, label = np.zeros(0, np.int64), np.zeros(0, np.int64)
        else:
            order = np.argsort(-tops, kind="stable")
            rank = np.empty(n, np.int64)
            rank[order] = np.arange(n)
            places = mixtures.unsettled(order)
            assert places is not None
            distance = np.min([np.abs(rank - place) for place in places], axis=0)
            singly = np.union1d(np.flatnonzero(distance < nearest), also)
            rest = np.setdiff1d(np.arange(n), singly)
            # Groups are apart before, between and after the places, and halfway between two of them.
            side = np.searchsorted(places, rank) * 2 + (np.abs(rank - places[0]) > distance)
            step = np.log(np.maximum(distance, nearest) / nearest) / np.log(_GROWTH)
            label = (side * (n + 1) + step.astype(np.int64))[rest]
        group = np.full(n, -1)
        group[singly] = np.arange(len(singly))
        group[rest] = len(singly) + np.unique(label, return_inverse=True)[1]
        return cls(singly, *mixtures.grouped(group))

    def of(self, model: ConeModel) -> ConeModel:
        """The model with members in place of clients."""
        references = model.references.of_members(self.share)
        return model._replace(mixtures=self.mixtures, references=references)

    def cuts(self, cuts: Cuts) -> Cuts:
        """Those of the members: of an origin that all its clients have cuts of."""
        n, parts = self.share.shape[1], []
        for origin, rows in cuts.blocks():
            share, owner = self.share, cuts.owner[rows]
            complete = np.arange(share.shape[0])
            if len(owner) < n:
                has = np.zeros(n)
                has[owner] = 1.0
                complete = np.flatnonzero((share != 0) @ (1 - has) == 0)
                share = share[complete][:, owner]
            of, idle = np.full(len(complete), origin), np.zeros(len(complete), np.int64)
            parts.append((complete, share @ cuts.value[rows], share @ cuts.gradient[rows], of, idle))
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Cuts(*[*columns, cuts.points])

    def weights(self, alpha: Numbers) -> Numbers:
        """(n,) of the clients, if these are those of the members."""
        return np.asarray(self.share.T @ alpha)

    def used(self, all_cuts: Cuts, own: Cuts, multipliers: Numbers) -> NDArray[np.bool_]:
        """Which of all cuts the members' cuts with such multipliers are made of."""
        marks = np.zeros(len(all_cuts.owner), bool)
        taken = multipliers > _USED
        for origin, rows in all_cuts.blocks():
            who = np.zeros(self.share.shape[0])
            who[own.owner[taken & (own.origin == origin)]] = 1.0
            marks[rows] = (self.share.T @ who)[all_cuts.owner[rows]] > 0
        return marks


class Hull(MixtureSet):
    """The mixtures of some corners of A, in place of A."""

    def __init__(self, whole: MixtureSet, corners: Numbers) -> None:
        self.whole, self.corners = whole, corners  # (corners, n)

    @property
    def dimension(self) -> int:
        return self.whole.dimension

    def project(self, v: Any) -> Any:
        """On A: what is proven with any weights of A holds."""
        return self.whole.project(v)

    def linear_maximum(self, c: Any) -> tuple[Any, Any]:
        values = self.corners @ c
        return values.max(), self.corners[int(np.argmax(values))]

    def polytope(self) -> Polytope:
        count, n = self.corners.shape
        return Polytope(np.zeros(n), self.corners.T, np.ones((1, count)), np.ones(1))

    def prices(self, c: Numbers) -> Numbers:
        return np.atleast_1d(np.max(self.corners @ c))

    def with_corner(self, c: Numbers) -> Hull:
        """With that corner of A where c (n,) is largest."""
        return Hull(self.whole, np.vstack([self.corners, np.asarray(self.whole.linear_maximum(c)[1])]))


class Solved(NamedTuple):
    """What a program gave, over the members that it held."""

    held: WorkingSet | None  # None for all clients, one by one
    model: ConeModel  # with the members' mixtures
    cuts: Cuts  # the members', none of them raised
    answer: Answer  # of the members
    value: float  # worst mixture of all clients' cuts at the answer
    used: NDArray[np.bool_]  # (all cuts,)
    singly: Indices  # the clients held one by one that count

    def clients(self, alpha: Numbers) -> Numbers:
        """(n,) the clients' weights, if these are those of the members."""
        return alpha if self.held is None else self.held.weights(alpha)

    @property
    def alpha(self) -> Numbers:
        """(n,)"""
        return self.clients(self.answer.alpha)


def solved(
    model: ConeModel,
    cuts: Cuts,
    z: Numbers,
    curvature: Curvature | None,
    scale: float,
    also: Indices,
    before: Solved | None = None,
    origin: int = 0,
    raised: Numbers | None = None,
) -> Solved | None:
    """Solve the program of `ConeModel.solve` over as few clients as will do; None where the solver fails.

    `also` are clients to be held in any case; `before` is what nearly the same program gave. The cuts of
    `origin` count as `raised` by so much (n,).
    """
    n = model.mixtures.dimension
    all_cuts = cuts if raised is None else cuts.raised(origin, raised)
    nearest = len(z) + _NEAREST
    if not model.mixtures.is_polytope:
        return _over_corners(model, cuts, all_cuts, z, curvature, scale, before)
    if n <= _FEW_TIMES * nearest or model.mixtures.unsettled(np.arange(n)) is None:
        answer = model.solve(all_cuts, z, curvature, scale)
        if answer is None:
            return None
        used = answer.multipliers > _USED
        return Solved(None, model, cuts, answer, answer.value, used, np.unique(cuts.owner[used]))
    best, tops = None, all_cuts.highest(z if before is None else before.answer.z, n)
    if before is not None and before.held is not None:
        also = before.held.singly
    for _ in range(_PASSES):
        held = WorkingSet.around(model.mixtures, tops, nearest, also)
        part, own = held.of(model), held.cuts(cuts)
        answer = part.solve(
            own if raised is None else own.raised(origin, held.share @ raised), z, curvature, scale
        )
        if answer is None:
            break
        tops = all_cuts.highest(answer.z, n)
        value = model.worst_mixture(tops)
        # Who has weight in a simplex is not settled; around a cap, the nearest are found afresh.
        counts = held.singly[(answer.alpha[: len(held.singly)] > _USED) & model.mixtures.is_whole]
        used = held.used(cuts, own, answer.multipliers)
        found = Solved(held, part, own, answer, value, used, counts)
        if best is None or value < best.value:
            best = found
        if value - answer.value <= _COSTS * scale:
            break
        also = held.singly
    return best


def _over_corners(
    model: ConeModel,
    cuts: Cuts,
    all_cuts: Cuts,
    z: Numbers,
    curvature: Curvature | None,
    scale: float,
    before: Solved | None,
) -> Solved | None:
    """The same over as few corners of A as will do: where A has a worse mixture than those held, its corner
    there is held too, and the program is solved again."""
    n, best = model.mixtures.dimension, None
    if before is not None and isinstance(before.model.mixtures, Hull):
        hull = before.model.mixtures
    else:
        hull = Hull(model.mixtures, np.asarray(model.mixtures.project(np.full(n, 1 / n)))[None])
        hull = hull.with_corner(all_cuts.highest(z, n))
    while len(hull.corners) < _MOST_CORNERS:
        part = model._replace(mixtures=hull)
        answer = part.solve(all_cuts, z, curvature, scale)
        if answer is None:
            break
        tops = all_cuts.highest(answer.z, n)
        value, used = model.worst_mixture(tops), answer.multipliers > _USED
        if best is None or value < best.value:
            best = Solved(None, part, cuts, answer, value, used, np.unique(cuts.owner[used]))
        if value - answer.value <= _COSTS * scale:
            break
        hull = hull.with_corner(tops)
    return best
