"""What one client can say of its risk at a model: bounds, a cut, and curvature, from passes over its rows.

A pass is at one price of movement, each sample moved to its maximiser. With z the model, it gives means over
the rows of phi(z, zeta_k) = sup over xi of l(z, xi) - lambda c(zeta_k, xi), of the cost of the moves, and of
the losses where they end; lines below the losses there, as functions of z; and second derivatives of the mean
of phi in z and lambda.

For a linear predictor on an unbounded support a move of length t in the scaled norm changes u by at most
nu t, with nu = ||S^-1 a(x)||. Then phi depends on x through u and nu alone, is convex in the two together,
and is taken as a function of the *lifted* model z = (x, nu): it is smooth where the norm is not, at x = 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import namespace
from bidro.core.sets import Box
from bidro.losses import LinearLoss, PiecewiseLinear, Softmax
from bidro.losses.scalar import Followed, Tangent
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner.path import maximise_on_path, ray
from bidro.risk.inner.problem import Inner, Oracle
from bidro.risk.rounding import of_cost, of_linear, of_pieces, of_softmax, of_sum

# Where moves are this close to jumping, their response to the model is no guide any more.
_LEAST_STIFFNESS = 1e-3


class Point(NamedTuple):
    """Where a client's risk is modelled: z = x, or z = (x, nu) where it is lifted."""

    x: Array  # (d,)
    nu: Array | None  # steepness; None where the risk is not lifted
    width: Array  # kinks of the loss are smoothed over this distance in u
    before: Array | None = None  # (models, d + 1) at which the risk was modelled before, and these widths
    of_loss: Array | float = 0.0  # kinks of the ambiguity are smoothed over this, in units of the loss

    @property
    def size(self) -> int:
        """Length k of z."""
        return self.x.shape[0] + (self.nu is not None)

    def padded(self, gradient: Array) -> Array:
        """A gradient in x (..., d) as one in z (..., k)."""
        extra = self.size - gradient.shape[-1]
        return jnp.pad(gradient, [(0, 0)] * (gradient.ndim - 1) + [(0, extra)])


class Pass(NamedTuple):
    """Means over one client's rows."""

    value: Array  # phi, its upper end where it is not known exactly, and above what rounding hides
    cost: Array  # of the moves; nan or inf where a supremum is infinite
    minorant: Array  # at z, of lines in z below the losses of the moved samples; rounding is taken off
    gradient: Array  # (k,) of these lines
    smoothing: Array  # what the losses with smoothed kinks, whose tangents these lines are, exceed them by
    hessian: Array | None = None  # (k, k) of phi in z
    coupling: Array | None = None  # (k,) minus the mixed second derivative of phi in z and lambda
    lambda_curvature: Array | None = None  # second derivative of phi in lambda


class RiskModel(NamedTuple):
    """R(z) of one client lies in [attained, value], and above a cut everywhere: R(y) >= attained +
    <gradient, y - z> for every y, where the loss is convex in the model.

    The cut is that of the loss expected under a distribution Q of the client's set. Over a ball, Q moves
    every sample to its maximiser at `multiplier`, and a share of it to that at `lower_multiplier`. The
    curvature is positive semidefinite up to rounding, which can be large where nu is tiny; it is the second
    derivative where R is twice differentiable and p = 2 or the support is unbounded.

    Examples:
        >>> from bidro import RiskModel
        >>> RiskModel.of(value=1.0, attained=0.9, gradient=[0.5]).curvature is None
        True
    """

    value: Array  # a dual value, an upper bound for every lambda; inf where the inner suprema are not known
    attained: Array  # a lower bound, and the cut at z
    gradient: Array  # (k,) of the cut
    smoothing: Array  # what the risk with smoothed kinks, which has this gradient, exceeds `attained` by
    curvature: Array | None  # (k, k) a model of the second derivative
    multiplier: Array  # lambda; inf where no sample moves
    lower_multiplier: Array  # just below
    lower_share: Array  # of every sample's mass, at `lower_multiplier`

    @classmethod
    def of(cls, value: Array, attained: Array, gradient: Array, curvature: Array | None = None) -> RiskModel:
        """One that bounds and a cut (k,) say all of: no kink is smoothed, and no sample moves."""
        zero, never = jnp.zeros(()), jnp.full((), jnp.inf)
        return cls(value, attained, gradient, zero, curvature, never, never, zero)

    @classmethod
    def unsplit(
        cls, found: Pass, value: Array, attained: Array, gradient: Array, multiplier: Array
    ) -> RiskModel:
        """One whose worst case needs no split of mass; curvature and smoothing are those of the pass."""
        zero = namespace(value).zeros_like(value)
        return cls(value, attained, gradient, found.smoothing, found.hessian, multiplier, multiplier, zero)

    def through(self, apart: NDArray[np.float64]) -> RiskModel:
        """A risk as a function of v = apart x, or of (v, nu), as one of x, or of (x, nu)."""
        extra = self.gradient.shape[-1] - len(apart)
        whole = np.block(
            [[apart, np.zeros((len(apart), extra))], [np.zeros((extra, apart.shape[1])), np.eye(extra)]]
        )
        curvature = None if self.curvature is None else whole.T @ self.curvature @ whole
        return self._replace(gradient=self.gradient @ whole, curvature=curvature)


def unmoved_risk(rows: ClientRows, inner: Inner, at: Point, curvature: bool) -> RiskModel:
    """The mean loss: no ambiguity inside the client."""
    plain = still_pass(rows, inner, at, curvature)
    never = jnp.asarray(jnp.inf)
    return RiskModel.unsplit(plain, plain.value, plain.minorant, plain.gradient, never)


class _Atom(NamedTuple):
    """One moved sample of a linear predictor, and how the move responds to z.

    With M = 1 - L'' stretch > 0, the Hessian of phi is
    (L'' / M) (psi + L' drift)(psi + L' drift)' + L'^2 diag(spread).
    """

    value: Array
    cost: Array
    u: Array
    psi: Array  # (k,) du/dz at a move held fixed
    drift: Array  # (k,)
    stretch: Array
    spread: Array  # (k,)


def still_pass(rows: ClientRows, inner: Inner, at: Point, curvature: bool) -> Pass:
    """The pass in which no sample moves."""

    def of_row(at: Point, price: Array, inner: Inner, zeta: Array) -> _Atom:
        loss = inner.loss
        assert isinstance(loss, LinearLoss)
        psi, offset = loss.of_model(zeta)
        u = jnp.sum(psi * at.x) + offset
        none = jnp.zeros(at.size)
        return _Atom(loss.scalar.value(u), jnp.zeros(()), u, at.padded(psi), none, jnp.zeros(()), none)

    def stay(inner: Inner, at: Point, price: Array, zeta: Array) -> tuple[Array, Array, Array]:
        return zeta, inner.loss.value(at.x, zeta), jnp.zeros(())

    return _means(rows, inner, at, jnp.zeros(()), curvature, of_row, stay)


def moved_pass(
    rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, price: Array, curvature: bool
) -> Pass:
    """The pass in which every sample moves to its maximiser at price lambda."""

    def of_row(at: Point, price: Array, inner: Inner, zeta: Array) -> _Atom:
        if at.nu is not None:
            return _lifted_atom(at, price, inner, zeta)
        return _direct_atom(oracle, at, price, inner, zeta)

    def move(inner: Inner, at: Point, price: Array, zeta: Array) -> tuple[Array, Array, Array]:
        best = oracle.maximise(inner, at.x, zeta, price)
        return best.point, best.value + best.error_bound, _finite_cost(inner, zeta, best.point, best.value)

    return _means(rows, inner, at, price, curvature, of_row, move)


def first_order_pass(rows: ClientRows, inner: Inner, at: Point, eps: Array, curvature: bool) -> Pass:
    """p = 2, lifted: moves t_k = eps L'_k / rms(L'), which spend the budget exactly and are the worst ones
    to first order in nu eps. A cut from them is valid at any nu, and has its slope in nu at nu = 0 too."""

    def squares(args: tuple[Point, Inner], block: Array, weights: Array) -> Array:
        at, inner = args
        return weights @ _slopes(at, inner, block) ** 2

    size = jnp.sqrt(rows.sum(squares, (at, inner)) / rows.size)
    stretch = eps / jnp.where(size > 0, size, 1.0)

    def of_row(at: Point, price: Array, inner: Inner, zeta: Array) -> _Atom:
        loss = inner.loss
        assert isinstance(loss, LinearLoss)
        assert at.nu is not None
        psi, offset = loss.of_model(zeta)
        t = price * _slopes(at, inner, zeta[None])[0]
        u = jnp.sum(psi * at.x) + offset + at.nu * t
        none = jnp.zeros(at.size)
        return _Atom(loss.scalar.value(u), t**2, u, jnp.append(psi, t), none, jnp.zeros(()), none)

    return _means(rows, inner, at, stretch, curvature, of_row, None)


def _slopes(at: Point, inner: Inner, block: Array) -> Array:
    """L' of every row, unmoved."""
    loss = inner.loss
    assert isinstance(loss, LinearLoss)
    return loss.scalar.tangent(loss.arguments(at.x, block), at.width).slope


class RowLosses(NamedTuple):
    """The losses of a block of unmoved rows at a model, each (rows,)."""

    value: Array
    line: Array  # of the tangent at the model, which lies below the loss
    smoothed: Array  # with kinks smoothed
    off: Array  # what rounding can get wrong
    slopes: Array | None  # (rows, d) of the smoothed losses in the model, for a linear predictor
    columns: Array | None  # (rows, d) what the model is multiplied with, and
    bent: Array | None  # the second derivative in that product

    @classmethod
    def of(cls, inner: Inner, at: Point, block: Array) -> RowLosses:
        loss = inner.loss
        value = loss.values(at.x, block)
        if isinstance(loss, LinearLoss):
            xp = namespace(block, at.x)
            psi, u = loss.design(block)[:, :-1], loss.arguments(at.x, block)
            if loss.intercept:
                psi = xp.concatenate([psi, xp.ones((len(block), 1))], axis=1)
            if loss.labels is not None:
                psi = loss.sign(block[:, -1])[:, None] * psi
            line = loss.scalar.tangent(u, at.width)
            off = of_linear(loss.scalar, u, psi, at.x, line.slope)
            return cls(value, line.value, line.smoothed, off, line.slope[:, None] * psi, psi, line.curvature)
        off = of_softmax(loss, at.x, block) if isinstance(loss, Softmax) else jnp.zeros_like(value)
        off = of_pieces(loss, at.x, block) if isinstance(loss, PiecewiseLinear) else off
        return cls(value, value, value, off, None, None, None)


def _followed(at: Point, loss: LinearLoss, block: Array) -> Followed | None:
    if at.before is None:
        return None
    return Followed(jax.vmap(lambda x: loss.arguments(x, block))(at.before[:, :-1]), at.before[:, -1:])


def _means(
    rows: ClientRows, inner: Inner, at: Point, price: Array, curvature: bool, of_row: Any, of_point: Any
) -> Pass:
    def linear(args: tuple[Point, Array, Inner], block: Array, weights: Array) -> Pass:
        at, price, inner = args
        loss = inner.loss
        assert isinstance(loss, LinearLoss)
        atom = jax.vmap(lambda zeta: of_row(at, price, inner, zeta))(block)
        line = loss.scalar.tangent(atom.u, at.width, _followed(at, loss, block))
        z = at.x if at.nu is None else jnp.append(at.x, at.nu)
        off = of_linear(loss.scalar, atom.u, atom.psi, z, line.slope) + of_cost(price, atom.cost)
        sums = Pass(
            weights @ (atom.value + off),
            weights @ atom.cost,
            weights @ (line.value - off),
            (weights * line.slope) @ atom.psi,
            weights @ (line.smoothed - line.value),
        )
        return _with_curvature(sums, weights, atom, line, price) if curvature else sums

    def general(args: tuple[Point, Array, Inner], block: Array, weights: Array) -> Pass:
        at, price, inner = args
        points, values, costs = jax.vmap(lambda zeta: of_point(inner, at, price, zeta))(block)
        loss, gradient = jax.value_and_grad(lambda x: weights @ inner.loss.values(x, points))(at.x)
        off = of_cost(price, costs)
        if isinstance(inner.loss, Softmax):
            off = off + of_softmax(inner.loss, at.x, points)
        if isinstance(inner.loss, PiecewiseLinear):
            off = off + of_pieces(inner.loss, at.x, points)
        value, minorant = weights @ (values + off), loss - weights @ off
        sums = Pass(value, weights @ costs, minorant, at.padded(gradient), jnp.zeros(()))
        if not curvature:
            return sums
        # Moves held fixed: a lower end of the curvature, and positive semidefinite for a convex loss.
        hessian = at.padded(at.padded(inner.loss.hessian_sum(at.x, points, weights)).T)
        return sums._replace(hessian=hessian, coupling=jnp.zeros(at.size), lambda_curvature=jnp.zeros(()))

    block_sum = linear if isinstance(inner.loss, LinearLoss) else general
    means: Pass = jax.tree.map(lambda s: s / rows.size, rows.sum(block_sum, (at, price, inner)))
    return completed(means, rows, inner, at)


def completed(means: Pass, rows: ClientRows, inner: Inner, at: Point) -> Pass:
    """Means over a client's rows with what training adds to the loss, and beyond what their sums round."""
    if inner.loss.penalty is not None:
        means = _with_penalty(means, at, inner.loss.penalty)
    if (pull := inner.loss.pull(at.x.shape[0])) is not None:
        means = _with_penalty(means, at, jnp.asarray(pull) / rows.size)
    return means._replace(
        value=means.value + of_sum(rows.size, means.value),
        minorant=means.minorant - of_sum(rows.size, means.minorant),
    )


def _with_penalty(means: Pass, at: Point, Q: Any) -> Pass:
    """With <x, Q x> added to the mean loss."""
    slope = Q @ at.x
    term = jnp.sum(at.x * slope)
    hessian = means.hessian
    if hessian is not None:
        hessian = hessian + at.padded(at.padded(jnp.asarray(2 * Q)).T)
    return means._replace(
        value=means.value + term,
        minorant=means.minorant + term,
        gradient=means.gradient + at.padded(2 * jnp.asarray(slope)),
        hessian=hessian,
    )


def _with_curvature(sums: Pass, weights: Array, atom: _Atom, line: Tangent, price: Array) -> Pass:
    """Adds the sums of second derivatives, from L' and L'' at the moved samples."""
    slope, bent = line.slope, line.curvature
    prox_weight = 1 - bent * atom.stretch
    steady = prox_weight > _LEAST_STIFFNESS
    give = jnp.where(steady, 1 / jnp.where(steady, prox_weight, 1.0), 1.0)
    vector = atom.psi + slope[:, None] * atom.drift
    hessian = (vector.T * (weights * bent * give)) @ vector + jnp.diag((weights * slope**2) @ atom.spread)
    pull = slope / jnp.where(price > 0, price, 1.0) * give
    mixed = (bent * atom.stretch)[:, None] * atom.psi + slope[:, None] * atom.drift
    coupling = (weights * pull) @ mixed
    lambda_curvature = weights @ (pull * slope / jnp.where(price > 0, price, 1.0) * atom.stretch)
    return sums._replace(hessian=hessian, coupling=coupling, lambda_curvature=lambda_curvature)


def _direct_atom(oracle: Oracle, at: Point, price: Array, inner: Inner, zeta: Array) -> _Atom:
    """z = x: the sample moves within the support, coordinates at its edge stay there."""
    loss, transport = inner.loss, inner.transport
    assert isinstance(loss, LinearLoss)
    best = oracle.maximise(inner, at.x, zeta, price)
    psi, offset = loss.of_model(best.point)
    free = transport.inverse_scale > 0
    if isinstance(inner.support, Box):
        free &= (best.point > inner.support.lower) & (best.point < inner.support.upper)
    give = jnp.where(free, transport.inverse_scale**2, 0.0) * _per_price(transport.p, price)
    w = loss.split(at.x)[0]
    a = loss.direction(at.x, 1.0)[0]
    return _Atom(
        best.value + best.error_bound,
        _finite_cost(inner, zeta, best.point, best.value),
        jnp.sum(psi * at.x) + offset,
        psi,
        jnp.pad(give[:-1] * w, (0, int(loss.intercept))),
        jnp.sum(a**2 * give),
        jnp.pad(give[:-1], (0, int(loss.intercept))),
    )


def _lifted_atom(at: Point, price: Array, inner: Inner, zeta: Array) -> _Atom:
    """z = (x, nu): the sample moves by t, u by nu t, and the label to whichever it can take."""
    loss, transport = inner.loss, inner.transport
    assert isinstance(loss, LinearLoss)
    assert at.nu is not None
    nu, p = at.nu, transport.p
    give = _per_price(p, price)
    none = jnp.zeros(at.size)

    def with_label(label: Array) -> _Atom:
        psi, offset = loss.of_model(zeta.at[-1].set(label))
        u0 = jnp.sum(psi * at.x) + offset
        along, best = maximise_on_path(loss.scalar, ray(nu**2), u0, price, p)
        t = jnp.where(best < jnp.inf, along, 0.0) * nu
        cost = jnp.abs(t) ** p + jnp.where(label != zeta[-1], transport.label_cost**p, 0.0)
        u = u0 + nu * t
        value = jnp.where(best < jnp.inf, loss.scalar.value(u) - price * cost, jnp.inf)
        return _Atom(
            value,
            jnp.where(best < jnp.inf, cost, jnp.inf),
            u,
            jnp.append(psi, t),
            none.at[-1].set(nu * give),
            nu**2 * give,
            none.at[-1].set(give),
        )

    if inner.reachable_labels is None:
        return with_label(zeta[-1])
    options = [with_label(jnp.asarray(label)) for label in inner.reachable_labels]
    stacked = _Atom(*(jnp.stack(parts) for parts in zip(*options, strict=True)))
    return jax.tree.map(lambda v: v[jnp.argmax(stacked.value)], stacked)


def _per_price(p: float, price: Array) -> Array:
    """1 / (2 lambda) for the quadratic cost; a cost of order 1 leaves no slack to respond with."""
    if p != 2:
        return jnp.zeros(())
    return jnp.where(price > 0, 0.5 / jnp.where(price > 0, price, 1.0), 0.0)


def _finite_cost(inner: Inner, zeta: Array, point: Array, value: Array) -> Array:
    return jnp.where(value < jnp.inf, inner.transport.cost(zeta, point), jnp.inf)
