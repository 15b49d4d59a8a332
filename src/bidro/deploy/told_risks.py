"""What a client has said of its risk must fit together: values, cuts, and what its columns allow.

Over the same rows, with the same loss, R_eps(y) >= attained + <gradient, y - z> for every cut and every y,
and R_eps grows with eps. So no cut may lie above a value that was told at another model, with the same radius
or a larger one, earlier or later. And u, the residual or margin of a linear predictor, has a root mean square
of at most B(x) = sum_j |x_j| q_j (+ that of the target), q_j those of the columns as the client has told
them; that bounds risks and slopes, whatever the rows are. What rounding can do is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.losses import LinearLoss, Loss, Softmax
from bidro.transport import Transport

# What rounding can do to a cut at another model, as a share of the sizes of its terms: sums over ten million
# rows lose less, and a lie of this size changes nothing that is stated.
_ROUNDING = 1e-9
# Kinks that are smoothed, and roundings, raise a client's numbers above what columns allow by less than this.
_SLACK = 1.01
# Kinks are smoothed over twice the loss of a constant prediction at the most, which raises a risk by less
# than this multiple of that loss.
_SMOOTHED = 32.0
# Of a risk that is told by its lower end alone, this share may be missing.
_LOWER_END = 1e-6
# An eigenvalue of a curvature may be below 0 by this share of the largest.
_INDEFINITE = 1e-6


class Allowed(NamedTuple):
    """What a client's columns allow at models (r, d)."""

    risk: Floats  # (r,) no risk is above it
    slope: Floats  # (r, d) no slope is beyond it
    of_nu: Floats  # (r,) nor that in nu


class Columns(NamedTuple):
    """How large the columns of a client's rows are, in the units of training."""

    size: Floats  # (m,) root mean squares, the target's last

    def allowed(
        self, loss: Loss, x: Floats, transport: Transport | None = None, eps: Floats | None = None
    ) -> Allowed | None:
        """At models x (r, d), with radii eps (r,) if there are any; None for a loss that nothing is known
        of."""
        if not isinstance(loss, LinearLoss | Softmax):
            return None
        inverse, nu = np.zeros(len(self.size)), np.zeros(len(x))
        if transport is None or eps is None:
            eps = np.zeros(len(x))
        else:
            inverse, nu = np.asarray(transport.inverse_scale), _steepness(loss, transport, x)
        ones = np.ones(loss.scores * int(loss.intercept))
        sizes, moves = self.size[:-1], inverse[:-1]
        if loss.basis is not None:
            # What of a curve lies in one segment is no larger than its feature, and moves no further.
            sizes, moves = sizes[loss.basis.feature], moves[loss.basis.feature]
        of_x = np.append(np.tile(sizes, loss.scores), ones)
        moved = np.append(np.tile(moves, loss.scores), 0 * ones)
        if isinstance(loss, Softmax):
            size, at_zero, slope = 2 * np.abs(x) @ of_x + eps * nu, math.log(loss.classes), np.ones(len(x))
        else:
            size = np.abs(x) @ of_x + eps * nu + (self.size[-1] if loss.labels is None else 0.0)
            scalar = loss.scalar
            at_zero = float(scalar.value(np.zeros(())))
            slope = np.full(len(x), scalar.lipschitz)
            if math.isfinite(scalar.curvature):
                steep = abs(float(scalar.tangent(np.zeros(()), np.zeros(())).slope))
                gentle = np.minimum(slope, steep + scalar.curvature * size)
                # A row that moves far, which few may do in W_1, meets the steepest slope.
                slope = np.where((eps > 0) & np.isfinite(slope), slope, gentle)
        risk = _SLACK * (at_zero + slope * size)
        slopes = _SLACK * slope[:, None] * (of_x + eps[:, None] * moved)
        return Allowed(risk, slopes, _SLACK * slope * eps)


def _steepness(loss: Loss, transport: Transport, x: Floats) -> Floats:
    """(r,) nu of models (r, d): what a radius multiplies."""
    cones = loss.steepness_cones(transport.inverse_scale)
    return np.max([[one.norm(one.at(model)) for model in x] for one in cones], axis=0)


class Cuts(NamedTuple):
    """Answers about the risk over some rows, at r models; lifted points have nu as their last coordinate."""

    z: Floats  # (r, k)
    eps: Floats  # (r,)
    upper: Floats  # (r,) inf where none is told
    attained: Floats  # (r,)
    gradient: Floats  # (r, k)
    slope: Floats  # (r, k) sizes of the terms that slopes are summed from

    def joined(self, more: Cuts) -> Cuts:
        return Cuts(*(np.concatenate(parts) for parts in zip(self, more, strict=True)))

    def require_below(self, values: Cuts) -> None:
        """Raise BidroError where a cut of these lies above a value among those, by more than rounding."""
        at = (self.attained - np.sum(self.gradient * self.z, axis=1))[:, None] + self.gradient @ values.z.T
        terms = np.abs(self.slope) @ np.abs(values.z).T + np.sum(np.abs(self.slope * self.z), axis=1)[:, None]
        upper = np.where(np.isfinite(values.upper), values.upper, 0.0)
        allowed = upper + _ROUNDING * (np.abs(upper) + np.abs(self.attained)[:, None] + terms)
        # A hundredth of a share: radii are sums, too.
        comparable = np.isfinite(values.upper) & (self.eps[:, None] <= values.eps * (1 + 1e-12))
        wrong = comparable & ~(at <= allowed)
        if wrong.any():
            cut, value = map(int, np.argwhere(wrong)[0])
            raise BidroError(
                f"its risk at one model is at most {values.upper[value]:.6g} by one reply, and at least "
                f"{at[cut, value]:.6g} by another."
            )


@dataclass(eq=False)
class ToldRisks:
    """All that one client has told of its risk, by which of its rows it is over."""

    loss: Loss
    transport: Transport
    lifted: bool
    columns: Columns
    rows: int  # of training
    told: dict[object, Cuts] = field(default_factory=dict)

    def add(
        self,
        rows: object,
        x: Floats,
        eps: Floats,
        most_eps: Floats,
        attained: Floats,
        smoothing: Floats,
        gradient: Floats,
        upper: Floats,
        widened: float = 1.0,
    ) -> None:
        """Risks over `rows` (whatever names them) at models x (r, d): lower ends (r,), what smoothed risks
        exceed them by, gradients (r, k) of cuts there, upper ends (r,), inf where none is told. Radii eps
        (r,) are known up to a common factor of the rows, and at most `most_eps`. Columns of these rows may be
        larger than those of all by a factor `widened`. Raises BidroError for a contradiction, and then keeps
        nothing."""
        columns = Columns(widened * self.columns.size)
        allowed = columns.allowed(self.loss, x, self.transport, most_eps)
        if allowed is not None and self.loss.penalty is not None:
            more = _SLACK * np.abs(x) @ np.abs(self.loss.penalty)
            risk, slopes = allowed.risk + np.sum(more * np.abs(x), axis=1), allowed.slope + 2 * more
            allowed = allowed._replace(risk=risk, slope=slopes)
        if allowed is not None and (pull := self.loss.pull(x.shape[1])) is not None:
            # Of how many rows a fold is, is not known here: of one at least.
            more = _SLACK * np.abs(x) @ np.abs(pull) * widened**2 / self.rows
            risk, slopes = allowed.risk + np.sum(more * np.abs(x), axis=1), allowed.slope + 2 * more
            allowed = allowed._replace(risk=risk, slope=slopes)
        z, slope = x, np.abs(gradient)
        if self.lifted:
            z = np.column_stack([x, self._nu(x)])
        if allowed is not None:
            slope = np.column_stack([allowed.slope, allowed.of_nu]) if self.lifted else allowed.slope
            require(attained, allowed.risk, "a risk of {0:.6g}, where its columns allow at most {1:.6g}")
            constant = columns.allowed(self.loss, np.zeros((1, x.shape[1])))
            assert constant is not None
            smoothed = allowed.risk + _SMOOTHED * constant.risk
            require(
                attained + smoothing, smoothed, "a smoothed risk of {0:.6g}, where at most {1:.6g} can be"
            )
            finite = np.where(np.isfinite(upper), upper, 0.0)
            require(finite, allowed.risk, "a risk of up to {0:.6g}, where its columns allow at most {1:.6g}")
            require(np.abs(gradient), slope, "a slope of {0:.6g}, where its columns allow at most {1:.6g}")
        if self.lifted and np.any(gradient[:, -1] < -_ROUNDING * np.abs(slope[:, -1])):
            raise BidroError("its risk falls where the radius has more to move, which no risk does.")
        require(attained, upper + _ROUNDING * np.abs(upper), "a risk of at least {0:.6g} and at most {1:.6g}")
        new = Cuts(z, eps, upper, attained, gradient, slope)
        before = self.told.get(rows)
        new.require_below(new)
        if before is not None:
            new.require_below(before)
            before.require_below(new)
        self.told[rows] = new if before is None else before.joined(new)

    def require_mean(self, rows: object, x: Floats, mean: float) -> None:
        """Raise BidroError where the mean loss over `rows` at x (d,) lies below a cut without a radius, or
        above a risk at the same model; risks have in them what smooths curves."""
        told = self.told.get(rows)
        if told is None:
            return
        if self.loss.penalty is not None:
            mean += float(x @ self.loss.penalty @ x)
        if (pull := self.loss.pull(len(x))) is not None:
            mean += float(x @ pull @ x) / self.rows
        lift = np.zeros((1, told.z.shape[1]))
        lift[0, : len(x)] = x
        if self.lifted:
            lift[0, -1] = self._nu(x[None])[0]
        value, none = np.array([mean]), np.zeros(1)
        told.require_below(Cuts(lift, none, value, none, 0 * lift, 0 * lift))
        same = np.all(told.z[:, : len(x)] == x, axis=1)
        most = np.min(told.upper[same], initial=np.inf)
        require(
            value, np.array([most + _LOWER_END * abs(most)]), "a mean loss of {0:.6g} and a risk of {1:.6g}"
        )

    def _nu(self, x: Floats) -> Floats:
        """(r,) the steepness of models (r, d)."""
        return _steepness(self.loss, self.transport, x)


def lower_end(attained: Floats, smoothing: Floats) -> Floats:
    """(r,) what risks without an upper end are at most, where worst cases are known exactly."""
    value = attained + smoothing
    return np.asarray(value + _LOWER_END * (np.abs(attained) + np.abs(smoothing)))


def require(found: Floats, most: Floats, words: str) -> None:
    """Raise BidroError, saying that it told such a thing, where a number is above the most that it may be."""
    wrong = ~(np.asarray(found) <= most)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        pair = np.broadcast_to(found, wrong.shape)[place], np.broadcast_to(most, wrong.shape)[place]
        raise BidroError(f"it tells {words.format(*map(float, pair))}.")


def require_convex(packed: Floats, k: int) -> None:
    """Raise BidroError for upper triangles (r, k (k + 1) / 2) of matrices with an eigenvalue below 0."""
    if not packed.size:
        return
    rows, columns = np.triu_indices(k)
    whole = np.zeros((len(packed), k, k))
    whole[:, rows, columns] = whole[:, columns, rows] = packed
    size = np.abs(whole).max(axis=(1, 2))
    with np.errstate(over="ignore"):
        values = np.linalg.eigvalsh(whole / np.where(size > 0, size, 1.0)[:, None, None])
    if np.any(values[:, 0] < -_INDEFINITE * k * np.maximum(values[:, -1], 1.0)):
        raise BidroError("it tells a curvature that is not positive semidefinite, which no convex risk has.")
