"""Sets of distributions on a client's own rows, weighted anew: what they share.

With weights q >= 0 of the rows that have mean 1, and a measure D(q) of how far they are from 1,

    R(x) = max over q with D(q) <= level of mean_k q_k l(x, xi_k).

For its multiplier lambda the worst weights are a function of a row's loss and a few numbers, and
E_q[l] + lambda (level - D(q)) bounds R from above. A search over one number finds them; the losses are
computed once, and what is searched are sums over them.

R has kinks at models where rows change places at the edge of the set. So lambda is held at or above a width:
that gives the maximum of E_q[l] less lambda D(q), a smooth function above R whose weights lie in the set.
With b = dq/dl and v = (dl/dx, 1, dq/dlambda over dq/dl), its second derivative is that of the losses,
weighted by q, and mean b v v' with the two numbers behind the last entries eliminated (a Schur complement).

What is certified for these sets is the optimum: none of them says how far new rows may be from these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity.base import Ambiguity, numbers_per_client
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import mapped, namespace, repeat_while
from bidro.core.sets.base import AnyArray
from bidro.losses import LinearLoss, Squared
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.rounding import of_sum, of_value
from bidro.risk.rows_jax import Pass, Point, RiskModel, RowLosses, completed

_HALVINGS = 200
# Distances below this are lost in the rounding of a mean of weights.
LEAST_LEVEL = 8e-15
# Widths are at least this share of the spread of the losses.
_LEAST_WIDTH, _EPS = 1e-13, float(np.finfo(float).eps)
# Smoothing that changes a risk by no more than this share of it is none.
_NOTHING = 1e-11
# Up to this many numbers in their rows, clients of linear predictors answer on the host: nothing is compiled.
_HOST_NUMBERS = 1 << 22
# The curvature of numbers that are eliminated is raised by this share of its trace.
_RAISED = 1e-10


class Weights(NamedTuple):
    """Of rows with given losses, in parts that sum to q and are eliminated one by one; each (parts, rows)."""

    each: Array  # q
    response: Array  # dq/dl
    along: Array  # dq/dlambda over dq/dl, up to its scale; 0 where lambda is held


class Worst(NamedTuple):
    """What a search finds for one client."""

    value: Array  # an upper bound of R
    smoothed: Array  # of the smooth function above R
    theta: Any  # the numbers by which `Reweighting.weights` gives a row's weight


class Losses(NamedTuple):
    """The losses of one client as rows of one number, traced; or those of all clients on the host, one client
    after the other: then numbers of a client have an axis of clients (n,)."""

    rows: ClientRows | Floats  # (N,) on the host
    size: AnyArray  # how many
    mean: AnyArray
    top: AnyArray
    bottom: AnyArray

    @classmethod
    def of(cls, rows: ClientRows) -> Losses:
        none = jnp.zeros(())
        top = rows.largest(lambda _, block: block[:, 0], none)
        bottom = -rows.largest(lambda _, block: -block[:, 0], none)
        return cls(rows, rows.size, rows.mean(lambda _, block: block[:, 0], none), top, bottom)

    @classmethod
    def on_host(cls, losses: Floats, sizes: NDArray[np.int64]) -> Losses:
        first = np.cumsum(sizes) - sizes
        top, bottom = (reduce.reduceat(losses, first) for reduce in (np.maximum, np.minimum))
        return cls(losses, sizes, np.add.reduceat(losses, first) / sizes, top, bottom)

    @property
    def spread(self) -> AnyArray:
        """The largest less the smallest; 1 where all are the same."""
        return namespace(self.top).where(self.top > self.bottom, self.top - self.bottom, 1.0)

    def differ(self, width: AnyArray) -> AnyArray:
        """Whether they differ by more than rounding, or are smoothed over a width: else weights change
        nothing, and what they would respond by is rounding."""
        size = namespace(self.top).maximum(abs(self.top), abs(self.bottom))
        return (self.top - self.bottom > 64 * _EPS * size) | (width > 0)

    def wide(self, width: AnyArray) -> AnyArray:
        """A width, or the least that arithmetic allows."""
        xp = namespace(self.top, width)
        size = xp.maximum(abs(self.top), abs(self.bottom))
        return xp.maximum(width, xp.maximum(_LEAST_WIDTH * self.spread, 16 * _EPS * size))

    def means(self, function: Callable[[Any, Any], Any], arguments: Any) -> Any:
        """Means of a function of (arguments, losses (B,)), an array or a pair."""
        if isinstance(self.rows, ClientRows):
            return self.rows.mean(lambda args, block: function(args, block[:, 0]), arguments)
        first = np.cumsum(self.size) - self.size
        found = function(of_rows(arguments, self.size), self.rows)
        return mapped(lambda v: np.add.reduceat(v, first) / self.size, found)


def of_rows(numbers: Any, sizes: NDArray[np.int64]) -> Any:
    """Numbers one a client (n,) as one a row (N,); others stay."""
    return mapped(lambda v: np.repeat(v, sizes) if np.ndim(v) else v, numbers)


class Reweighting(Ambiguity):
    """The base of sets that weigh rows anew; a subclass has one field, its level, and the two methods."""

    moves_samples: ClassVar[bool] = False
    has_curvature: ClassVar[bool] = True
    has_kinks: ClassVar[bool] = True
    largest: ClassVar[float] = np.inf  # levels lie from 0 to below this

    @abstractmethod
    def worst(self, losses: Losses, width: AnyArray) -> Worst:
        """The worst weights of one client; kinks are smoothed over `width`, in units of the losses."""

    @abstractmethod
    def weights(self, losses: AnyArray, theta: Any) -> Weights:
        """Of rows with these losses (rows,)."""

    @property
    def matters(self) -> bool:
        return bool(np.any(np.asarray(getattr(self, self._levels[0])) > 0))

    def per_client(self, n: int) -> Self:
        name = self._levels[0]
        level = numbers_per_client(f"{name}s", getattr(self, name), n)
        if np.any(level < 0) or np.any(level >= self.largest):
            below = "" if np.isinf(self.largest) else f" and below {self.largest:g}"
            raise BidroError(f"Every {name} of {type(self).__name__} must be at least 0{below}; got {level}.")
        return replace(self, **{name: level})  # type: ignore[type-var]

    def row_weights(self, losses: Floats) -> Floats:
        """(N,) the worst weights, with mean 1, of one client's rows with these losses."""
        sizes = np.array([len(losses)])
        found = self.per_client(1).worst(Losses.on_host(np.asarray(losses, float), sizes), np.zeros(1))
        q: Any = self.weights(np.asarray(losses, float), of_rows(found.theta, sizes)).each
        return np.asarray(q.sum(axis=0))

    def risk(self, rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, curvature: bool) -> RiskModel:
        def highest(args: tuple[Point, Inner], block: Array) -> Array:
            found = RowLosses.of(args[1], args[0], block)
            return (found.value + found.off)[:, None]

        def smooth(args: tuple[Point, Inner], block: Array) -> Array:
            return RowLosses.of(args[1], args[0], block).smoothed[:, None]

        value = self.worst(Losses.of(rows.mapped(highest, (at, inner))), jnp.zeros(())).value
        smoothed = Losses.of(rows.mapped(smooth, (at, inner)))
        found = self.worst(smoothed, jnp.asarray(at.of_loss))

        def total(args: tuple[Point, Inner, Any, Array], block: Array, counts: Array) -> Any:
            at, inner, theta, differ = args
            losses = RowLosses.of(inner, at, block)
            q = self.weights(losses.smoothed, theta)
            q = q._replace(response=q.response * differ)
            return _sums(inner, at.x, block, losses, q, counts, curvature)

        sums = rows.sum(total, (at, inner, found.theta, smoothed.differ(jnp.asarray(at.of_loss))))
        means = jax.tree.map(lambda s: s / rows.size, sums)
        model = completed(_means(value, found.smoothed, means), rows, inner, at)
        never = jnp.asarray(jnp.inf)
        return RiskModel.unsplit(model, model.value, model.minorant, model.gradient, never)

    def on_host(
        self,
        inner: Inner,
        samples: Floats,
        sizes: NDArray[np.int64],
        x: Floats,
        width: float,
        curvature: bool,
        before: Floats | None = None,
    ) -> RiskModel | None:
        loss = inner.loss
        plain = loss.penalty is None and loss.pull(len(x)) is None
        if not isinstance(loss, LinearLoss) or not plain or samples.size > _HOST_NUMBERS:
            return None
        first = np.cumsum(sizes) - sizes
        # As `Client.risk` has it: what is smoothed is in units of the losses of a model of nothing.
        start = np.zeros(len(samples))
        if loss.labels is None:
            middle = np.add.reduceat(samples[:, -1], first) / sizes * float(loss.intercept)
            start = np.repeat(middle, sizes) - samples[:, -1]
        unit = np.add.reduceat(np.asarray(loss.scalar.value(start)), first) / sizes
        of_u = (
            np.sqrt(unit) if isinstance(loss, Squared) else np.where(np.isinf(loss.scalar.curvature), unit, 1)
        )
        at: Any = Point(x, None, np.repeat(width * of_u, sizes))  # type: ignore[arg-type]
        losses = RowLosses.of(inner, at, samples)  # type: ignore[arg-type]
        value = self.worst(
            Losses.on_host(np.asarray(losses.value + losses.off), sizes), np.zeros(len(sizes))
        ).value
        smoothed = Losses.on_host(np.asarray(losses.smoothed), sizes)
        found = self.worst(smoothed, width * unit)
        q: Any = self.weights(losses.smoothed, of_rows(found.theta, sizes))
        q = q._replace(response=q.response * np.repeat(smoothed.differ(width * unit), sizes))
        sums = []
        for begin, size in zip(first, sizes, strict=True):
            own = slice(int(begin), int(begin + size))
            mine, weights = mapped(lambda v, own=own: v[own], losses), mapped(lambda v, own=own: v[:, own], q)
            counts: Any = np.full(int(size), 1 / size)
            sums.append(_sums(inner, at.x, samples[own], mine, weights, counts, curvature))  # type: ignore[arg-type]
        means = _means(value, found.smoothed, mapped(lambda *parts: np.stack(parts), *sums))
        k, never = len(x), np.full(len(sizes), np.inf)
        above = means.value + of_sum(sizes, means.value)
        below = means.minorant - of_sum(sizes, means.minorant)
        above, below = above + of_value(above, k), below - of_value(below, k)
        return RiskModel.unsplit(means, above, below, means.gradient, never)  # type: ignore[arg-type]


def _sums(
    inner: Inner, x: Array, block: Array, losses: RowLosses, q: Weights, counts: Array, curvature: bool
) -> tuple[Any, ...]:
    """What cuts and curvature are made of, of rows that count as often as `counts` says."""
    xp, each = namespace(losses.value), counts * q.each.sum(axis=0)
    if losses.slopes is None:
        slope = jax.grad(lambda v: each @ inner.loss.values(v, block))(x)
    else:
        slope = each @ losses.slopes
    cut = (each @ (losses.line - losses.off), slope)
    if not curvature:
        return cut
    if losses.slopes is None or losses.columns is None or losses.bent is None:
        slopes = jax.jacrev(lambda v: inner.loss.values(v, block))(x)
        bent = inner.loss.hessian_sum(x, block, each)
    else:
        slopes = losses.slopes
        bent = (losses.columns.T * (each * losses.bent)) @ losses.columns
    response = counts * q.response
    others = xp.stack([xp.ones_like(q.along), q.along], axis=-1)
    return (
        *cut,
        bent + (slopes.T * response.sum(axis=0)) @ slopes,
        xp.einsum("prt,rd->pdt", response[..., None] * others, slopes),
        xp.einsum("prs,prt->pst", response[..., None] * others, others),
    )


def _means(value: AnyArray, smoothed: AnyArray, means: tuple[Any, ...]) -> Pass:
    """The pass that such sums, as means, make; of one client, or of all along a leading axis."""
    (attained, gradient, *second), hessian = means, None
    xp = namespace(attained)
    if second:
        hessian, mixed, own = second
        traces = xp.trace(own, axis1=-2, axis2=-1)[..., None, None]
        own = own + xp.where(traces > 0, _RAISED * traces, 1.0) * xp.eye(2)
        # What the two numbers give way to, summed over the parts.
        given_up = mixed @ xp.linalg.solve(own, xp.swapaxes(mixed, -1, -2))
        hessian = hessian - given_up.sum(axis=-3)
    smoothing = smoothed - attained
    # Where nothing is smoothed, what is left is rounding and the end of the search.
    smoothing = xp.where(smoothing > _NOTHING * abs(smoothed), smoothing, 0.0)
    return Pass(value, xp.zeros_like(value), attained, gradient, smoothing, hessian)


def last_true(holds: Callable[[Any], Any], low: AnyArray, high: AnyArray) -> tuple[AnyArray, AnyArray]:
    """(the last number of [low, high] at which the predicate holds, the next one, at which it does not): it
    holds below some number, and is taken to hold at `low` and not to hold at `high`."""
    xp = namespace(low, high)
    low, high = xp.broadcast_arrays(low, high)

    def divisible(bracket: tuple[Any, Any, Any]) -> Any:
        a, b, k = bracket
        middle = (a + b) / 2
        return xp.any((a < middle) & (middle < b)) & xp.all(k < _HALVINGS)

    def halve(bracket: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        a, b, k = bracket
        middle = (a + b) / 2
        true = holds(middle)
        return xp.where(true, middle, a), xp.where(true, b, middle), k + 1

    found: tuple[AnyArray, AnyArray] = repeat_while(divisible, halve, (low, high, xp.zeros((), int)))[:2]
    return found


class Tail(NamedTuple):
    """The largest mean of q l with 0 <= q <= cap and mean q = 1: that of the largest losses, a share 1 / cap
    of all. Smoothed, q = clip((l - level) / width, 0, cap) for the level at which that has mean 1."""

    value: Array
    smoothed: Array
    theta: Any  # (cap, width, level of weights above 1 in the mean, that of those below, share of the first)

    @classmethod
    def of(cls, losses: Losses, cap: AnyArray, width: AnyArray) -> Tail:
        xp = namespace(losses.top, cap)

        def above(level: Any) -> Any:
            return losses.means(lambda eta, given: (given > eta).astype(float), level) * cap >= 1

        _, eta = last_true(above, losses.bottom - losses.spread, losses.top)
        value = eta + cap * losses.means(lambda eta, given: xp.maximum(given - eta, 0.0), eta)
        narrow = losses.wide(width / cap)

        def mean_weight(level: Any) -> Any:
            return losses.means(lambda args, given: _clipped(given, *args), (level, narrow, cap))

        low, high = last_true(lambda v: mean_weight(v) >= 1, losses.bottom - 2 * narrow, losses.top)
        much, little = mean_weight(low), mean_weight(high)
        room = xp.where(much > little, much - little, 1.0)
        theta = (cap, narrow, low, high, xp.clip((1 - little) / room, 0.0, 1.0))

        def squares(theta: Any, given: Any) -> tuple[Any, Any]:
            q = cls.weights(given, theta)[0]
            return q * given, q**2

        attained, square = losses.means(squares, theta)
        return cls(value, attained + narrow / 2 * (cap - square), theta)

    @staticmethod
    def weights(losses: Any, theta: Any) -> tuple[Any, Any]:
        """(q, dq/dl)"""
        cap, width, low, high, share = theta
        much, little = ((losses - level) / width for level in (low, high))
        inside = [(at > 0) & (at < cap) for at in (much, little)]
        q = share * _within(much, cap) + (1 - share) * _within(little, cap)
        return q, (share * inside[0] + (1 - share) * inside[1]) / width


def _clipped(losses: Any, level: Any, width: Any, cap: Any) -> Any:
    return _within((losses - level) / width, cap)


def _within(q: Any, cap: Any) -> Any:
    return namespace(q, cap).clip(q, 0.0, cap)
