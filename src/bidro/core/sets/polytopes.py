"""Mixtures and models within linear constraints of the user's own."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.optimize import linprog, nnls

from bidro.core.errors import BidroError
from bidro.core.pytrees import loaded_jax, mapped, namespace, pytree
from bidro.core.sets.base import AnyArray, Constraints, Polytope, V, require_finite
from bidro.core.sets.vectors import Box
from bidro.core.sets.weights import MixtureSet, Numbers

_LINEAR = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
# By how much of its size a point may miss a constraint, and still count as meeting it.
_ROUNDING = 1e-12
_EPS = float(np.finfo(float).eps)
# How often what is left is taken off again: its own rounding is what remains.
_TIMES = 2


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
        return _on_host(function, (self.matrix, self.bound, v), like)

    def _program(self, c: Numbers) -> tuple[Numbers, Numbers] | None:
        return _solved(np.asarray(self.matrix), np.asarray(self.bound), c)

    @property
    def in_words(self) -> str:
        return "mixtures within the declared constraints, if the true one is among them"


@pytree
class ConstrainedBox:
    """{v in box : least <= matrix v <= most}: models within linear constraints, such as the weights of a
    portfolio.

    Its programs are solved on the host, also from compiled code.

    Args:
        box: bounds of every coordinate.
        matrix: (constraints, dimension).
        least: of every constraint, or one number for all; -inf for none, and `most` for an equation.
        most: inf for none.

    Raises:
        BidroError: for shapes that do not fit, numbers that are not finite, or an empty set.

    Examples:
        >>> import numpy as np
        >>> from bidro import Box, ConstrainedBox
        >>> portfolio = ConstrainedBox(Box(np.zeros(3), 0.6), [[1.0, 1.0, 1.0]], 1.0, 1.0)
        >>> portfolio.project(np.array([1.0, 0.2, 0.0])).round(2).tolist()
        [0.6, 0.3, 0.1]
    """

    box: Box
    matrix: AnyArray
    least: AnyArray
    most: AnyArray

    def __post_init__(self) -> None:
        matrix = np.atleast_2d(np.array(self.matrix, float))
        ends = [np.atleast_1d(np.array(end, float)) for end in (self.least, self.most)]
        if matrix.ndim != 2 or any(end.ndim != 1 or len(end) not in (1, len(matrix)) for end in ends):
            raise BidroError(
                "Constraints of models are a matrix (constraints, dimension) and two bounds of each; got "
                f"shapes {matrix.shape}, {ends[0].shape} and {ends[1].shape}."
            )
        if not isinstance(self.box, Box) or self.box.dimension != matrix.shape[1]:
            raise BidroError(
                f"Constraints of {matrix.shape[1]} coordinates need a Box of as many; got {self.box}."
            )
        require_finite("Constraints of models", matrix)
        least, most = (np.array(np.broadcast_to(end, len(matrix))) for end in ends)
        if np.any(np.isnan(least)) or np.any(np.isnan(most)):
            raise BidroError("The bounds of constraints must be numbers, or infinite for none.")
        for name, part in zip(("matrix", "least", "most"), (matrix, least, most), strict=True):
            object.__setattr__(self, name, part)
        if _highest(*self._parts, np.zeros(self.dimension)) is None:
            raise BidroError("No model within these bounds satisfies these constraints.")

    @property
    def dimension(self) -> int:
        return self.box.dimension

    @property
    def _parts(self) -> tuple[AnyArray, ...]:
        return self.box.lower, self.box.upper, self.matrix, self.least, self.most

    def project(self, v: V, weights: V | None = None) -> V:
        metric = namespace(v).ones_like(v) if weights is None else weights
        return _on_host(_nearest_in_box, (*self._parts, v, metric), np.zeros(self.dimension))

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v, self.matrix)
        there, room = self.matrix @ v, tolerance * xp.abs(self.matrix).sum(axis=1)
        inside = xp.all((there >= self.least - room) & (there <= self.most + room))
        return inside & self.box.contains(v, tolerance)

    def linear_maximum(self, c: V) -> tuple[V, V]:
        """The value is that of the dual, an upper bound."""
        return _on_host(_highest, (*self._parts, c), (np.zeros(()), np.zeros(self.dimension)))

    def diameter(self) -> AnyArray:
        """An upper bound: that of the box."""
        return self.box.diameter()

    def bounding_box(self) -> tuple[AnyArray, AnyArray]:
        """That of the bounds alone."""
        return self.box.bounding_box()

    def constraints(self) -> Constraints:
        rows = np.asarray(self.matrix), np.asarray(self.least), np.asarray(self.most)
        return self.box.constraints()._replace(rows=rows)

    def largest_norm(self, scale: V) -> V:
        return self.box.largest_norm(scale)


def _on_host(function: AnyArray, parts: tuple[AnyArray, ...], like: AnyArray) -> AnyArray:
    """A function of arrays, also where JAX traces them."""
    if namespace(*parts) is np:
        return function(*parts)
    jax = loaded_jax()
    shapes = mapped(lambda part: jax.ShapeDtypeStruct(part.shape, part.dtype), like)
    return jax.pure_callback(function, shapes, *parts, vmap_method="sequential")


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
    n = len(c)
    G, h = np.vstack([-np.eye(n), matrix]), np.concatenate([np.zeros(n), bound])
    alpha = np.maximum(_met(G, h, ones, np.ones(1), np.asarray(found.x)), 0.0)
    return alpha / alpha.sum(), -unit * np.asarray(found.ineqlin.marginals) / size


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
    """min ||alpha - v||^2 over the mixtures within constraints."""
    matrix, bound, v = (np.asarray(part, float) for part in (matrix, bound, v))
    n = len(v)
    if not np.all(np.isfinite(v)):
        return np.full(n, np.nan)
    near = v - v.max()  # a common shift changes nothing but the rounding
    G, h = np.vstack([-np.eye(n), matrix]), np.concatenate([np.zeros(n), bound])
    found = np.maximum(_nearest(G, h, np.ones((1, n)), np.ones(1), near, np.ones(n)), 0.0)
    return np.asarray(found / found.sum())


def _inequalities(
    lower: Numbers, upper: Numbers, matrix: Numbers, least: Numbers, most: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """(G, h, E, e) with {v : G v <= h, E v = e} the box within constraints."""
    eye, equal = np.eye(len(lower)), least == most
    above, below = np.isfinite(most) & ~equal, np.isfinite(least) & ~equal
    G = np.vstack([eye, -eye, matrix[above], -matrix[below]])
    h = np.concatenate([upper, -lower, most[above], -least[below]])
    return G, h, matrix[equal], most[equal]


def _nearest_in_box(*parts: AnyArray) -> Numbers:
    """argmin of sum_j weights_j (u_j - v_j)^2 over a box within constraints."""
    lower, upper, matrix, least, most, v, weights = (np.asarray(part, float) for part in parts)
    if not np.all(np.isfinite(v)):
        return np.full(len(v), np.nan)
    held = np.isinf(weights)
    found = np.where(held, v, np.clip(v, lower, upper))
    # Coordinates that no constraint names, or that are held, have nothing to do with the others.
    free, ends = np.any(matrix != 0, axis=0) & ~held, matrix[:, held] @ v[held]
    size, near = _sizes(matrix[:, free]), v[free]
    for _ in range(_TIMES if free.any() else 0):
        # What is near beside where it came from may be outside of a set that is small beside that.
        unit = float(np.max([np.abs(part).max() for part in (lower[free], upper[free], near)])) or 1.0
        of_set = [lower[free] / unit, upper[free] / unit, matrix[:, free] / size[:, None]]
        of_set += [(end - ends) / (unit * size) for end in (least, most)]
        near = np.clip(
            unit * _nearest(*_inequalities(*of_set), near / unit, weights[free]), lower[free], upper[free]
        )
    found[free] = near
    return found


def _sizes(rows: Numbers) -> Numbers:
    """(rows,) the largest of each, 1 where all are 0."""
    size = np.abs(rows).max(axis=1, initial=0.0)
    return np.where(size > 0, size, 1.0)


def _highest(*parts: AnyArray) -> tuple[Numbers, Numbers] | None:
    """(max <c, v>, v) over a box within constraints, the maximum being what its prices prove and rounding
    does not hide; None where there is nothing in it."""
    lower, upper, matrix, least, most, c = (np.asarray(part, float) for part in parts)
    if not np.all(np.isfinite(c)):
        return np.asarray(np.nan), np.full(len(c), np.nan)
    # The program's tolerances are absolute: coordinates are in units of their bounds.
    units = np.maximum(np.abs(lower), np.abs(upper))
    units = np.where(units > 0, units, 1.0)
    low, high, c = lower / units, upper / units, c * units
    unit, d = float(np.max(np.abs(c), initial=0.0)) or 1.0, len(c)
    size = _sizes(matrix * units)
    G, h, E, e = _inequalities(low, high, matrix * units / size[:, None], least / size, most / size)
    box = np.column_stack([low, high])
    found = linprog(-c / unit, G[2 * d :], h[2 * d :], E, e, box, options=_LINEAR)
    if found.status != 0:
        return None
    prices = np.concatenate([np.maximum(-found.ineqlin.marginals, 0.0), -found.eqlin.marginals]) * unit
    rows, ends = np.vstack([G[2 * d :], E]), np.concatenate([h[2 * d :], e])
    left = c - prices @ rows
    value = float(np.sum(np.where(left > 0, high, low) * left) + prices @ ends)
    terms = np.abs(c).sum() + np.abs(prices) @ (np.abs(rows).sum(axis=1) + np.abs(ends))
    value += 4 * (d + len(rows)) * _EPS * float(terms)
    point = np.clip(units * _met(G, h, E, e, np.asarray(found.x)), lower, upper)
    return np.asarray(value), point


def _nearest(G: Numbers, h: Numbers, E: Numbers, e: Numbers, v: Numbers, weights: Numbers) -> Numbers:
    """argmin of sum_j weights_j (u_j - v_j)^2 over {u : G u <= h, E u = e}, which is not empty.

    On the plane of the equations it is the point of least distance from where v falls on it: with steps s
    from there, min ||s|| with A s >= b, whose solution follows from nonnegative least squares (Lawson and
    Hanson, 1974, chapter 23), exactly up to rounding.
    """
    if len(v) == 0 or (np.all(G @ v <= h) and np.all(E @ v == e)):
        return v
    # Coordinates in which the metric is the identity, and constraints of size 1.
    root = np.sqrt(weights / weights.max())
    size = np.linalg.norm(np.vstack([E, G]) / root, axis=1)
    size = np.where(size > 0, size, 1.0)
    rows, ends = np.vstack([E, G]) / root / size[:, None], np.concatenate([e, h]) / size
    q, (E, G), (e, h) = root * v, np.split(rows, [len(e)]), np.split(ends, [len(e)])
    q = q + np.linalg.lstsq(E, e - E @ q, rcond=None)[0]
    plane = null_space(E) if len(e) else np.eye(len(v))
    A, b, step = -G @ plane, G @ q - h, np.zeros(plane.shape[1])
    far = float(b.max())
    for _ in range(_TIMES if far > 0 else 0):
        system = np.vstack([A.T, b / far])
        found, _ = nnls(system, np.eye(len(system))[-1])
        left = system @ found - np.eye(len(system))[-1]
        step, active = -far * left[:-1] / left[-1], np.flatnonzero(found > 0)
        # Once more in units of the distance, with what digits this leaves.
        far = float(np.linalg.norm(step)) or far
    q = q + plane @ step
    if far > 0:
        q = _met(G, h, E, e, q, active)
    return np.asarray(q / root)


def _met(
    G: Numbers,
    h: Numbers,
    E: Numbers,
    e: Numbers,
    found: Numbers,
    active: NDArray[np.int64] | None = None,
) -> Numbers:
    """What is found of {u : G u <= h, E u = e}, meeting the constraints to the last digits: the nearest to it
    that meets those that are active as equations, if this meets all."""
    if active is None:
        active = np.flatnonzero(h - G @ found <= 1e-8 * (1 + np.abs(h)))
    start, rows, ends = found, np.vstack([E, G[active]]), np.concatenate([e, h[active]])
    for _ in range(_TIMES):
        start = start + np.linalg.lstsq(rows, ends - rows @ start, rcond=None)[0]
    inside = np.all(G @ start <= h + _ROUNDING * (1 + np.abs(h)))
    return start if inside and np.all(np.abs(E @ start - e) <= _ROUNDING * (1 + np.abs(e))) else found
