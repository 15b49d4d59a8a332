"""A cone program stated piece by piece, as sparse matrices, and solved by Clarabel."""

from __future__ import annotations

from typing import Any, NamedTuple

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bidro.losses.base import Cone

Numbers = NDArray[np.float64]

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
    """A program over v = (w, s, pi, tau), w being the step in units of its own and tau the steps of the
    largest of groups, under constraints affine in v."""

    def __init__(self, *sizes: int) -> None:
        self.starts = np.cumsum([0, *sizes])
        # The entries that are not 0, as (row, column, value).
        self.entries: list[tuple[NDArray[np.int64], NDArray[np.int64], Numbers]] = []
        self.constants: list[Numbers] = []
        self.height = 0
        self.norms: list[Numbers] = []  # maps from a cone's multiplier to that of the vector under the norm

    def _add(self, constant: Numbers, *parts: Numbers | None) -> None:
        for start, part in zip(self.starts, parts, strict=False):
            if part is not None:
                row, column = np.nonzero(part)
                self.entries.append((self.height + row, start + column, part[row, column]))
        self.constants.append(constant)
        self.height += len(constant)

    def at_least_zero(
        self, constant: Numbers, z: Numbers | None = None, s: Numbers | None = None, pi: Numbers | None = None
    ) -> None:
        """constant + z-part + s-part + pi-part >= 0; all of these come before the norms."""
        self._add(constant, z, s, pi)

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
            self._add(room[near], -side * matrix[near] / unit, None, None, taus[near])
        chosen = np.zeros((len(tops), taus.shape[1]))
        chosen[np.arange(len(tops)), first + np.arange(len(tops))] = unit
        return Largest(tops, chosen, start, near, unit)

    def _add_cone(self, constant: Numbers, block: Numbers) -> None:
        """A block (rows, k) in the step, or (rows, k + taus) in the step and tau."""
        k = self.starts[1]
        self._add(constant, block[:, :k], None, None, block[:, k:])

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


def _size(matrix: Numbers, along: Numbers) -> float:
    """The size of what a step of size 1 changes under a norm or beside it."""
    return float(max(np.linalg.norm(matrix, axis=1).max(), np.linalg.norm(along), 1e-300))
