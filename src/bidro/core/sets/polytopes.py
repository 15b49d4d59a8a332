"""Mixtures within linear constraints of the user's own."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax, namespace, pytree
from bidro.core.sets.base import AnyArray, Polytope, V, require_finite
from bidro.core.sets.weights import MixtureSet, Numbers

_SETTINGS = clarabel.DefaultSettings()
_SETTINGS.verbose, _SETTINGS.max_threads = False, 1
_SETTINGS.tol_gap_abs = _SETTINGS.tol_gap_rel = _SETTINGS.tol_feas = 1e-11
_LINEAR = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
# By how much of its size a mixture may miss a constraint, and still count as meeting it.
_ROUNDING = 1e-12


@pytree
class ConstrainedSimplex(MixtureSet):
    """{alpha in the simplex : matrix alpha <= bound}.

    An equation is two rows, one of each sign. Its programs are solved on the host, also from compiled code.

    Args:
        matrix: (constraints, n).
        bound: (constraints,), or one number for all.

    Raises:
        BidroError: for shapes that do not fit, numbers that are not finite, or where no weights are left.

    Examples:
        >>> import numpy as np
        >>> from bidro import ConstrainedSimplex
        >>> at_most = ConstrainedSimplex([[1.0, 1.0, 0.0]], 0.6)  # the first two together
        >>> at_most.linear_maximum(np.array([2.0, 1.0, 0.0]))[1].round(2).tolist()
        [0.6, 0.0, 0.4]
    """

    matrix: AnyArray
    bound: AnyArray

    def __post_init__(self) -> None:
        matrix = np.atleast_2d(np.array(self.matrix, float))
        bound = np.atleast_1d(np.array(self.bound, float))
        if matrix.ndim != 2 or bound.ndim != 1 or len(bound) not in (1, len(matrix)):
            raise BidroError(
                f"Constraints of weights are a matrix (constraints, n) and a bound of each; got shapes "
                f"{matrix.shape} and {bound.shape}."
            )
        require_finite("Constraints of weights", matrix, bound)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "bound", np.array(np.broadcast_to(bound, len(matrix))))
        if self._program(np.zeros(self.dimension)) is None:
            raise BidroError("No weights of at least 0 that sum to 1 satisfy these constraints.")

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    def polytope(self) -> Polytope:
        n, rows = self.dimension, len(self.bound)
        matrix = np.block([[np.ones((1, n)), np.zeros((1, rows))], [np.asarray(self.matrix), np.eye(rows)]])
        lift = np.hstack([np.eye(n), np.zeros((n, rows))])
        return Polytope(np.zeros(n), lift, matrix, np.append(1.0, np.asarray(self.bound)))

    def prices(self, c: Numbers) -> Numbers:
        # For any nonnegative prices of the constraints, what the best client has left is one of the sum.
        found = self._program(c)
        assert found is not None
        own = np.maximum(found[1], 0.0)
        return np.append(np.max(c - own @ np.asarray(self.matrix)), own)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v, self.matrix)
        inside = xp.all(v >= -tolerance) & (xp.abs(xp.sum(v) - 1) <= tolerance)
        return inside & xp.all(self.matrix @ v <= self.bound + tolerance * xp.abs(self.matrix).sum(axis=1))

    def linear_maximum(self, c: V) -> tuple[V, V]:
        """The value is that of the dual, an upper bound."""
        return self._on_host(_maximised, c, (np.zeros(()), np.zeros(self.dimension)))

    def project(self, v: V) -> V:
        return self._on_host(_projected, v, np.zeros(self.dimension))

    def _on_host(self, function: AnyArray, v: V, like: AnyArray) -> AnyArray:
        if namespace(v, self.matrix) is np:
            return function(self.matrix, self.bound, v)
        jax = loaded_jax()
        shapes = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype), like)
        parts = (self.matrix, self.bound, v)
        return jax.pure_callback(function, shapes, *parts, vmap_method="sequential")

    def _program(self, c: Numbers) -> tuple[Numbers, Numbers] | None:
        return _solved(np.asarray(self.matrix), np.asarray(self.bound), c)

    @property
    def in_words(self) -> str:
        return "mixtures within the declared constraints, if the true one is among them"


def _solved(matrix: Numbers, bound: Numbers, c: Numbers) -> tuple[Numbers, Numbers] | None:
    """(alpha, prices of the constraints) of max <c, alpha>; None where there are no weights. The program's
    tolerances are absolute: it is stated in units of what it is about."""
    unit = float(np.max(np.abs(c), initial=0.0)) or 1.0
    size = np.maximum(np.abs(matrix).max(axis=1, initial=0.0), np.abs(bound))
    size = np.where(size > 0, size, 1.0)
    ones = np.ones((1, len(c)))
    found = linprog(-c / unit, matrix / size[:, None], bound / size, ones, [1.0], options=_LINEAR)
    if found.status != 0:
        return None
    alpha = _met(matrix, bound, np.asarray(found.x))
    return alpha, -unit * np.asarray(found.ineqlin.marginals) / size


def _maximised(matrix: AnyArray, bound: AnyArray, c: AnyArray) -> tuple[Numbers, Numbers]:
    matrix, bound, c = (np.asarray(part, float) for part in (matrix, bound, c))
    if not np.all(np.isfinite(c)):
        return np.asarray(np.nan), np.full(len(c), np.nan)
    found = _solved(matrix, bound, c)
    if found is None:
        return np.asarray(np.nan), np.full(len(c), np.nan)
    prices = np.maximum(found[1], 0.0)
    return np.asarray(np.max(c - prices @ matrix) + prices @ bound), found[0]


def _projected(matrix: AnyArray, bound: AnyArray, v: AnyArray) -> Numbers:
    """min ||alpha - v||^2 over the set, by a cone solver, and from the constraints that it finds active."""
    matrix, bound, v = (np.asarray(part, float) for part in (matrix, bound, v))
    n = len(v)
    if not np.all(np.isfinite(v)):
        return np.full(n, np.nan)
    near = v - v.max()  # a common shift changes nothing but the rounding
    far = max(1.0, float(np.abs(near).max()))
    A = np.vstack([np.ones((1, n)), -np.eye(n), matrix])
    b = np.concatenate([[1.0], np.zeros(n), bound])
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n + len(bound))]
    parts = sparse.csc_matrix(np.eye(n) / far), -near / far, sparse.csc_matrix(A), b, cones
    solved = clarabel.DefaultSolver(*parts, _SETTINGS).solve()
    dual, slack = np.asarray(solved.z), np.asarray(solved.s)
    return _met(matrix, bound, np.asarray(solved.x), near, np.flatnonzero((dual > slack)[1:]))


def _met(
    matrix: Numbers,
    bound: Numbers,
    alpha: Numbers,
    near: Numbers | None = None,
    active: NDArray[np.int64] | None = None,
) -> Numbers:
    """Weights that meet the constraints to the last digits: the nearest to `near` (or to alpha itself) that
    meet those that are active as equations, if these meet all."""
    n = len(alpha)
    G, h = np.vstack([-np.eye(n), matrix]), np.concatenate([np.zeros(n), bound])
    if active is None:
        active = np.flatnonzero(h - G @ alpha <= 1e-8 * (1 + np.abs(h)))
    start = alpha if near is None else near
    rows, ends = np.vstack([np.ones((1, n)), G[active]]), np.append(1.0, h[active])
    best = alpha
    for _ in range(2):
        start = start + np.linalg.lstsq(rows, ends - rows @ start, rcond=None)[0]
    if np.all(G @ start <= h + _ROUNDING * (1 + np.abs(h))) and abs(start.sum() - 1) <= _ROUNDING:
        best = start
    best = np.maximum(best, 0.0)
    return np.asarray(best / best.sum())
