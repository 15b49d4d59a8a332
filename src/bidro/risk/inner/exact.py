"""The inner supremum without iteration error, for losses of linear predictors and p = 1 or 2.

For softmax of several classes it is a local maximum, and a bound of how high the supremum is.

With a_k = w_k - w_y and s_k the scores less that of the label y, the loss is log sum_k exp(s_k), which is the
largest over probabilities q of <q, s> + H(q), H being the entropy. So the supremum over theta is one over q:

    F(q) = H(q) + h(q),      h(q) = sup over theta of <q, s(theta)> - rho c(zeta, theta),

where h is convex and known exactly: its supremum is that of a linear function. To go by turns from q to the
theta of h(q), and from theta to its classes' probabilities, never lowers the value; it ends in a local
maximum, and Newton's method on the same map gets there sooner. It is begun at the sample and where each class
by itself would lead.

The upper bound is by cells, simplices of probabilities. Over one of them h is at most what its corners say,
linearly in between, and H at most its tangent at any p, -sum_k q_k log p_k: so F is at most the largest of
h(v) - <v, log p> over the corners v. The cell with the highest bound is split until that hardly matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jit, jnp
from bidro.core.sets import Ball, Box, WholeSpace
from bidro.losses import LinearLoss, PiecewiseLinear, Softmax, has_curves
from bidro.losses.scalar import PiecewiseQuadratic, Scalar
from bidro.risk.inner.ascent import measured
from bidro.risk.inner.path import maximise_on_path, pieces_of_path, ray
from bidro.risk.inner.problem import Inner, InnerMax, TwoClasses, best_over_labels

_LINEAR = PiecewiseQuadratic((), ((0.0, 1.0, 0.0),))
# Turns between q and theta end where q changes by less than this, or after so many.
_STILL, _TURNS = 1e-12, 50
# Cells are split as long as the bound exceeds the value by this share of it, up to so many times. Of more
# than five classes, simplices have too many corners for that to get anywhere.
_CLOSE, _SPLITS, _KEPT, _MOST_CLASSES = 1e-10, 200, 64, 5
# Turns towards the tangent that bounds a cell best.
_TANGENTS = 8
_EPS, _TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Exact:
    """The global maximum of phi over Xi.

    Linear predictors, p = 1 and 2, unbounded and box support: exact, with error bound 0. The value is
    inf, and the point that of the sample, where phi is unbounded. Softmax of two classes is such a loss,
    and that of more is exact for p = 1 on unbounded support; elsewhere it is a local maximum, and `value +
    error_bound` an upper bound of the supremum.

    Raises:
        BidroError: from `check`, for a loss, order or support without a closed form.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import Exact, Squared, Transport, WholeSpace
        >>> from bidro.risk.inner import Inner
        >>> inner, zeta = Inner(Transport.euclidean(2), WholeSpace(2), Squared()), jnp.array([1.0, 0.0])
        >>> found = Exact().maximise(inner, jnp.array([0.5]), zeta, jnp.asarray(2.0))
        >>> round(float(found.value), 4), float(found.error_bound)  # 0.25 / (1 - 1.25 / 2)
        (0.6667, 0.0)
    """

    @staticmethod
    def obstacle(inner: Inner) -> str | None:
        """Why this problem has no exact treatment here; None where it has one."""
        if not isinstance(inner.loss, LinearLoss | PiecewiseLinear | Softmax):
            return f"{type(inner.loss).__name__} is not a loss of a linear predictor"
        if inner.transport.p not in (1, 2):
            return f"the order p = {inner.transport.p:g} of the cost is neither 1 nor 2"
        if not inner.transport.is_euclidean and not (
            isinstance(inner.support, WholeSpace) and isinstance(inner.loss, LinearLoss | PiecewiseLinear)
        ):
            return f"{inner.transport.metric} needs an unbounded support and a loss of one linear predictor"
        if has_curves(inner.loss):
            # Rows do not move along one line: what is known of the supremum is a bound, see `ball`.
            needs_one = isinstance(inner.loss, Softmax) and inner.transport.p != 1
            return "curves of several classes need a cost of order p = 1" if needs_one else None
        if isinstance(inner.support, Ball):
            return "the support is a ball"
        return None

    @property
    def needs_noise(self) -> bool:
        return False

    def check(self, inner: Inner) -> None:
        if (why := self.obstacle(inner)) is not None:
            raise BidroError(f"There is no exact inner supremum here: {why}; use BacktrackingAscent instead.")

    def maximise(
        self, inner: Inner, x: Array, zeta: Array, rho: Array, noise: Array | None = None
    ) -> InnerMax:
        two = TwoClasses.of(inner)
        if two is not None:
            inner, x = two.inner, two.model(x)
        loss = inner.loss
        if isinstance(loss, LinearLoss):
            return best_over_labels(inner, zeta, lambda label: _linear(inner, loss, x, zeta, label, rho))
        if isinstance(loss, PiecewiseLinear):
            return _of_pieces(inner, loss, x, zeta, rho)
        assert isinstance(loss, Softmax)
        return best_over_labels(inner, zeta, lambda label: _softmax(inner, loss, x, zeta, label, rho))


def _of_pieces(inner: Inner, loss: PiecewiseLinear, x: Array, zeta: Array, rho: Array) -> InnerMax:
    """The largest of the pieces' suprema: where it is attained, no other piece says more."""

    def of_piece(a: Array, u0: Array) -> tuple[Array, InnerMax]:
        found = _along(inner, _LINEAR, a, u0, zeta, x, zeta, rho)
        own = u0 + jnp.sum(a * (found.point - zeta)) - rho * inner.transport.cost(zeta, found.point)
        return jnp.where(found.value < jnp.inf, own, jnp.inf), found

    own, found = jax.vmap(of_piece)(loss.slopes(x), loss.of_pieces(x, zeta[None])[0])
    best: InnerMax = jax.tree.map(lambda v: v[jnp.argmax(own)], found)
    return best


def _linear(inner: Inner, loss: LinearLoss, x: Array, zeta: Array, label: Array, rho: Array) -> InnerMax:
    """sup over the features with the label held at `label`, along the clipped path."""
    start = zeta if loss.labels is None else zeta.at[-1].set(label)
    a, offset = loss.direction(x, label)
    return _along(inner, loss.scalar, a, jnp.sum(a * zeta) + offset, start, x, zeta, rho)


def _along(
    inner: Inner, scalar: Scalar, a: Array, u0: Array, start: Array, x: Array, zeta: Array, rho: Array
) -> InnerMax:
    """sup of L(u) less the price along the cheapest way to change u = u0 + <a, xi - zeta>; `start` is zeta,
    with a label of its own."""
    support, transport = inner.support, inner.transport
    assert isinstance(support, Box | WholeSpace)
    if not transport.is_euclidean:
        # On an unbounded support the best moves are along the steepest one, by which u gains its dual norm.
        steep = transport.dual_norm(a)
        along, best = maximise_on_path(scalar, ray(steep**2), u0, rho, transport.p)
        finite = best < jnp.inf
        point = start + jnp.where(finite, along, 0.0) * steep * transport.steepest(a)
        return InnerMax(point, jnp.where(finite, inner.phi(x, zeta, point, rho), jnp.inf), jnp.zeros(()))
    pieces = pieces_of_path(a, zeta, transport.inverse_scale, support)
    nu, best = maximise_on_path(scalar, pieces, u0, rho, transport.p)
    finite = best < jnp.inf
    moved = start + jnp.where(finite, nu, 0.0) * a * transport.inverse_scale**2
    point = jnp.where(transport.inverse_scale > 0, support.project(moved), start)
    value = jnp.where(finite, inner.phi(x, zeta, point, rho), jnp.inf)
    return InnerMax(point, value, jnp.zeros(()))


def _softmax(inner: Inner, loss: Softmax, x: Array, zeta: Array, label: Array, rho: Array) -> InnerMax:
    """sup over the features with the label held at `label`.

    The loss is convex in theta with slope at most K_y = max_k ||S^-1 (w_k - w_y)||, reached far out. On an
    unbounded support with p = 1, the supremum is the value at the sample if K_y <= rho, else inf. Elsewhere
    it is the best local maximum found, with a bound by cells, and where phi is strongly concave by its slope.
    """
    support, transport = inner.support, inner.transport
    start = zeta.at[-1].set(label)
    if transport.p == 1 and isinstance(support, WholeSpace):
        steepest = loss.steepness(x, transport.inverse_scale, label)
        here = inner.phi(x, zeta, start, rho)
        return InnerMax(start, jnp.where(steepest <= rho, here, jnp.inf), jnp.zeros(()))
    sample = Sample.of(inner, x, start, rho)
    tops = highest(sample)
    found = measured(inner, x, zeta, jnp.append(tops.theta, label), rho)
    # What a change of the label costs is no part of the sample's own.
    paid = rho * transport.cost(zeta, start)
    open_still = found.error_bound > _CLOSE * jnp.abs(found.value)
    above = jnp.maximum(ceiling(sample, tops, found.value + paid, open_still) - paid - found.value, 0.0)
    return found._replace(error_bound=jnp.fmin(above, found.error_bound))


class Sample(NamedTuple):
    """One sample with its label held, at one model and price."""

    inner: Inner
    weights: Array  # (K, features), less those of the label
    intercepts: Array  # (K,)
    theta: Array  # (features,) where it is
    rho: Array

    @classmethod
    def of(cls, inner: Inner, x: Array, start: Array, rho: Array) -> Sample:
        assert isinstance(inner.loss, Softmax)
        weights, intercepts = inner.loss.split(x)
        own = start[-1].astype(int)
        return cls(inner, weights - weights[own], intercepts - intercepts[own], start[:-1], rho)

    def scores(self, theta: Array) -> Array:
        """s (K,)"""
        return self.weights @ theta + self.intercepts

    def moved(self, q: Array) -> Array:
        """theta at which the supremum h(q) is attained."""
        transport, support = self.inner.transport, self.inner.support
        a, inverse = q @ self.weights, transport.inverse_scale[:-1]
        if transport.p == 2:
            theta = self.theta + a * inverse**2 / (2 * self.rho)
        else:
            assert isinstance(support, Box)
            whole = jnp.append(a, 0.0)
            pieces = pieces_of_path(whole, jnp.append(self.theta, 0.0), transport.inverse_scale, support)
            nu, _ = maximise_on_path(_LINEAR, pieces, jnp.zeros(()), self.rho, 1)
            theta = self.theta + nu * a * inverse**2
        if isinstance(support, Box):
            theta = jnp.clip(theta, support.lower[:-1], support.upper[:-1])
        return jnp.where(inverse > 0, theta, self.theta)

    def price(self, theta: Array) -> Array:
        """rho c; the label keeps its value."""
        cost = self.inner.transport.movement_cost(jnp.append(self.theta, 0.0), jnp.append(theta, 0.0))
        return self.rho * cost

    def h(self, q: Array) -> Array:
        theta = self.moved(q)
        return q @ self.scores(theta) - self.price(theta)

    def value(self, theta: Array) -> Array:
        """The loss less the price, up to rounding."""
        return jax.nn.logsumexp(self.scores(theta)) - self.price(theta)

    def rounding(self) -> Array:
        """What float64 can get wrong in h, twice."""
        support, corners = self.inner.support, jax.vmap(self.moved)(jnp.eye(len(self.weights)))
        reach = jnp.max(jnp.abs(corners), axis=0)
        if isinstance(support, Box):
            reach = jnp.maximum(abs(support.lower), abs(support.upper))[:-1]
        sizes = jnp.abs(self.weights) @ jnp.maximum(reach, jnp.abs(self.theta)) + jnp.abs(self.intercepts)
        return 4 * (self.weights.shape[1] + len(self.weights) + 8) * _EPS * (1 + jnp.max(sizes))


class Tops(NamedTuple):
    """Local maxima, one of each class that is begun with."""

    q: Array  # (K, K) probabilities there
    theta: Array  # (features,) the best of them, or the sample itself


@jit
def highest(sample: Sample) -> Tops:
    """The local maxima that turns lead to."""

    def probabilities(q: Array) -> Array:
        return jax.nn.softmax(sample.scores(sample.moved(q)))

    def turn(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, q, _ = state
        plain = after = probabilities(q)
        if sample.inner.transport.p == 1:
            # Moves hardly change with q, unless they jump: a few turns are enough.
            return k + 1, after, jnp.max(jnp.abs(after - q))
        response = jax.jacfwd(probabilities)(q)
        newton = jnp.maximum(q + _solved(jnp.eye(len(q)) - response, plain - q), 0.0)
        newton = newton / jnp.sum(newton)
        better = sample.value(sample.moved(newton)) >= sample.value(sample.moved(plain))
        after = jnp.where(better & jnp.all(jnp.isfinite(newton)), newton, plain)
        return k + 1, after, jnp.max(jnp.abs(after - q))

    def climb(q: Array) -> Array:
        start = (jnp.zeros((), int), q, jnp.asarray(jnp.inf))
        return jax.lax.while_loop(lambda s: (s[0] < _TURNS) & (s[2] > _STILL), turn, start)[1]

    # The label's own class leads nowhere: from there it is the sample that is begun at.
    q = jax.vmap(climb)(jnp.eye(len(sample.weights)))
    points = jnp.vstack([sample.theta, jax.vmap(sample.moved)(q)])
    values = jax.vmap(sample.value)(points)
    return Tops(q, points[jnp.argmax(jnp.where(jnp.isnan(values), -jnp.inf, values))])


def _solved(matrix: Array, right: Array) -> Array:
    """matrix^-1 right (K,) by elimination as it comes, which is fast for many; what comes of a pivot of 0 is
    not finite, and of a small one no better than the plain turn."""
    rows = jnp.column_stack([matrix, right])
    for k in range(len(right)):
        pivot = rows[k] / rows[k, k]
        rows = (rows - rows[:, k : k + 1] * pivot).at[k].set(pivot)
    return rows[:, -1]


class _Cells(NamedTuple):
    corners: Array  # (cells, K, K)
    h: Array  # (cells, K) at the corners
    bound: Array  # (cells,) of F; -inf where there is no cell
    splits: Array


@jit
def ceiling(sample: Sample, tops: Tops, value: Array, needed: Array) -> Array:
    """An upper bound of the supremum, of which `value` is known to be attained; where it is not `needed`, the
    first that comes."""
    classes = len(sample.weights)
    corners = jnp.eye(classes)
    h = jax.vmap(sample.h)(corners)
    hills = _Hills.of(sample, tops)
    first = _bound(corners, h, hills)
    if classes > _MOST_CLASSES:
        return first + sample.rounding()
    none = jnp.full(_KEPT, -jnp.inf)
    cells = _Cells(
        jnp.zeros((_KEPT, classes, classes)).at[0].set(corners),
        jnp.zeros((_KEPT, classes)).at[0].set(h),
        none.at[0].set(first),
        jnp.zeros((), int),
    )
    enough = value + _CLOSE * jnp.abs(value) + sample.rounding()
    inverse = sample.inner.transport.inverse_scale[:-1]
    steep = sample.weights * inverse
    # Edges are long where their ends differ, and all the more where moves do.
    units = jnp.hstack([jnp.eye(classes), steep / jnp.maximum(jnp.max(jnp.abs(steep)), _TINY)])

    def unsettled(cells: _Cells) -> Array:
        room = jnp.min(cells.bound) <= enough
        return needed & (jnp.max(cells.bound) > enough) & room & (cells.splits < _SPLITS)

    def split(cells: _Cells) -> _Cells:
        widest, spare = jnp.argmax(cells.bound), jnp.argmin(cells.bound)
        corners, h = cells.corners[widest], cells.h[widest]
        places = corners @ units
        lengths = jnp.sum((places[:, None] - places[None]) ** 2, axis=2)
        i, j = jnp.unravel_index(jnp.argmax(lengths), lengths.shape)
        middle = (corners[i] + corners[j]) / 2
        of_middle = sample.h(middle)
        one, other = (corners.at[k].set(middle) for k in (i, j))
        h_one, h_other = (h.at[k].set(of_middle) for k in (i, j))
        # No part is higher than the whole.
        most = cells.bound[widest]
        return _Cells(
            cells.corners.at[widest].set(one).at[spare].set(other),
            cells.h.at[widest].set(h_one).at[spare].set(h_other),
            cells.bound.at[widest]
            .set(jnp.minimum(_bound(one, h_one, hills), most))
            .at[spare]
            .set(jnp.minimum(_bound(other, h_other, hills), most)),
            cells.splits + 1,
        )

    cells = jax.lax.while_loop(unsettled, split, cells)
    # Cells that made room for others were no higher than what is enough.
    return jnp.maximum(jnp.max(cells.bound), enough) + sample.rounding()


class _Hills(NamedTuple):
    """What is known of F around the tops."""

    sample: Sample
    logs: Array  # (tops, K) of the probabilities q there
    slope: Array  # (tops, K) of F at q
    height: Array  # (tops,) F(q)

    @classmethod
    def of(cls, sample: Sample, tops: Tops) -> _Hills:
        logs = jax.vmap(lambda q: jax.nn.log_softmax(sample.scores(sample.moved(q))))(tops.q)
        q = jnp.exp(logs)
        slope = jax.vmap(lambda p: sample.scores(sample.moved(p)))(q) - logs
        return cls(sample, logs, slope, jax.vmap(sample.h)(q) - jnp.sum(q * logs, axis=1))

    def bound(self, corners: Array) -> Array:
        """Of F over a cell, where F is concave between it and a top: by the tangent there; else inf, and for
        p = 1, where h has kinks."""
        transport, support = self.sample.inner.transport, self.sample.inner.support
        if transport.p != 2:
            return jnp.asarray(jnp.inf)
        q, weights = jnp.exp(self.logs), self.sample.weights * transport.inverse_scale[:-1]
        # In differences of probabilities what all classes have in common does not matter.
        apart = (weights - (q @ weights)[:, None]) / jnp.sqrt(2 * self.sample.rho)
        if isinstance(support, Box):
            # Moves are linear in q before they are clipped: what is clipped at all ends is so in between.
            ends = jnp.concatenate([jnp.broadcast_to(corners, (len(q), *corners.shape)), q[:, None]], axis=1)
            move = weights * transport.inverse_scale[:-1] / (2 * self.sample.rho)
            target = self.sample.theta + ends @ move
            held = jnp.all(target >= support.upper[:-1], axis=1) | jnp.all(
                target <= support.lower[:-1], axis=1
            )
            apart = jnp.where(held[:, None], 0.0, apart)
        # The second derivative of h is at most G = A S^-2 A' / (2 rho), that of F at most G - diag(1 / q): so
        # D^1/2 G D^1/2 is to have no eigenvalue above 1, D being the largest q. The trace of its 16th power
        # is at least the largest to that power.
        roots = jnp.sqrt(jnp.maximum(jnp.max(corners, axis=0), q))
        bent = roots[:, :, None] * apart
        bent = bent @ bent.swapaxes(1, 2)
        for _ in range(4):
            bent = bent @ bent
        rise = jnp.max(self.slope @ corners.T, axis=1) - jnp.sum(self.slope * q, axis=1)
        tangent = self.height + jnp.maximum(rise, 0.0)
        concave = (jnp.trace(bent, axis1=1, axis2=2) <= 1) & ~jnp.isnan(tangent)
        return jnp.min(jnp.where(concave, tangent, jnp.inf))


def _bound(corners: Array, h: Array, hills: _Hills) -> Array:
    """Of F over a cell: the least of the tangents at the tops and at a p in the cell, h being linear between
    its corners, and what the hills say.

    That p is near the one whose tangent is the least: shares of the corners grow with what these contribute
    (Blahut and Arimoto).
    """

    def terms(shares: Array) -> Array:
        p = shares @ corners
        # A class that no corner of the cell has does not count.
        logs = jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)), 0.0)
        return h - corners @ logs

    def turn(_: int, shares: Array) -> Array:
        grown = terms(shares)
        grown = shares * jnp.exp(grown - jnp.max(grown))
        # Kept above 0, for a corner whose class no other has.
        return jnp.maximum(grown / jnp.sum(grown), 1e-12)

    shares = jax.lax.fori_loop(0, _TANGENTS, turn, jnp.full(len(h), 1 / len(h)))
    inside = jnp.max(terms(shares / jnp.sum(shares)))
    at_tops = jnp.max(h - hills.logs @ corners.T, axis=1)
    at_tops = jnp.min(jnp.where(jnp.isnan(at_tops), jnp.inf, at_tops))
    return jnp.minimum(jnp.minimum(inside, at_tops), hills.bound(corners))
