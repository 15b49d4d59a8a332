"""What a site says in a run must fit together: every reply is held against all that it has told before.

A server does not trust a number from a site. A lie that no rows can tell is a contradiction, and a fault of
that site; the sentence begins with "it" and the coordinator puts the name before it. A site that lies
consistently about its rows cannot be refuted: what it may change is bounded by `max_weight`, and shown by
`influence`. What was told of the columns when the run began bounds everything that follows.

COLUMNS: second moments are positive semidefinite, of a rank below the number of rows; a column of 0 and 1 has
the variance p (1 - p) with p N a whole number, two such columns a share of rows where both are 1 that fits
theirs, and no row has two levels of one column. Values within [lower, upper] have a mean in it and a variance
of at most (upper - mean)(mean - lower). What rounding can do is allowed.

RISKS: over the same rows, with the same loss, R_eps(y) >= attained + <gradient, y - z> for every cut and
every y, and R_eps grows with eps. So no cut may lie above a value that was told at another model, with the
same radius or a larger one, earlier or later. And u, the residual or margin of a linear predictor, has a root
mean square of at most B(x) = sum_j |x_j| q_j (+ that of the target), q_j those of the columns as the client
has told them; that bounds risks and slopes, whatever the rows are. What rounding can do is allowed.

LOSSES that are not negative have a standard error of at most their mean (twice that for people), and the mean
of the largest of N is between the mean and N times it. A risk over a ball is no smaller than the mean loss,
and grows with the radius. A confidence bound from n losses is no smaller than that of n losses that are all
their mean, and for mistakes it follows from their number.

NOISE hides most lies, and a consistent one cannot be refuted. What is left to check: that the budget is one,
and the same in every reply, and that no sum lies where none of any rows does by far more than the noise that
the budget and the agreement stand for can move it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.certify.held_out import client_bounds
from bidro.certify.statements import STATEMENTS, CertifiedModel
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.federation import LARGEST_SIZE
from bidro.data.splines import Basis
from bidro.data.standardise import Standard
from bidro.data.tables import bounds_of
from bidro.deploy.agreement.agreement import Agreement
from bidro.federated.algorithm import Algorithm
from bidro.federated.engines.rounds import FoldSpec
from bidro.fit.private_side import FACTOR
from bidro.fit.questions import (
    Assess,
    Assessment,
    GradientsQuery,
    HoldoutBounds,
    HoldoutQuery,
    NoisyGradients,
    NoisyLosses,
    NoisyMoments,
    Prepared,
)
from bidro.losses import LinearLoss, Loss, Softmax, Squared
from bidro.privacy.mechanisms import Noisy, Scale, symmetric
from bidro.privacy.terms import Budget, Plan
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import LeftOutSums, Moments, TrainingMoments, left_out_sums, of_all_folds, smoothed
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS
from bidro.selection.fold_queries import FoldCuts, MomentsReply, RisksReply, ScoresReply
from bidro.selection.personal import Reply as PersonalReply
from bidro.selection.segments import coarser, straight
from bidro.solvers.bundle import one_shot
from bidro.solvers.bundle.state import Reply as Risks

# What rounding can do, as a share of a column's size.
_ROUNDING = 1e-9
# Of numbers that are 0 or 1, as a share of 1.
_OF_SHARES = 1e-6
# Above so many rows, whether a share of them is a whole number cannot be told.
_COUNTABLE = 1e6
# A machine's number has so many digits: a column's own rounding, as a share of its mean.
_DIGITS = 64 * float(np.finfo(float).eps)
# A column varies whose deviation rounding changes by less than this share.
_VARIES = 1e-3


@dataclass(frozen=True, eq=False)
class Values:
    """What is agreed on of the columns, the target last."""

    agreed: Agreement

    @cached_property
    def names(self) -> tuple[str, ...]:
        schema = self.agreed.schema
        return (*schema.features, schema.target)

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """(lower, upper), both (m,), infinite where nothing is agreed."""
        schema, m = self.agreed.schema, len(self.names)
        lower, upper = np.full(m, -np.inf), np.full(m, np.inf)
        if self.agreed.support is not None:
            low, high = bounds_of(self.agreed.support, schema)
            lower[: len(low)], upper[: len(high)] = low, high
        lower[self.column >= 0], upper[self.column >= 0] = 0.0, 1.0
        if schema.classes is not None:
            lower[-1], upper[-1] = (
                (-1.0, 1.0) if len(schema.classes) == 2 else (0.0, len(schema.classes) - 1.0)
            )
        return lower, upper

    @cached_property
    def column(self) -> NDArray[np.int64]:
        """(m,) of which category each column of 0 and 1 is a level; -1 for others."""
        places = [
            -1 if one.levels is None else j
            for j, one in enumerate(self.agreed.schema.columns)
            for _ in one.coded
        ]
        return np.array([*places, -1])

    @cached_property
    def two_values(self) -> NDArray[np.bool_]:
        """(m,) columns that have no values but their ends."""
        classes = self.agreed.schema.classes
        last = np.arange(len(self.names)) == len(self.names) - 1
        return (self.column >= 0) | (last & (classes is not None and len(classes) == 2))

    def require(self, mean: Floats, deviation: Floats, rows: float) -> None:
        """Raise BidroError for means and deviations (m,) that no `rows` rows have, in the columns' units."""
        if np.any(np.abs(mean) > LARGEST_SIZE) or np.any(deviation > LARGEST_SIZE):
            j = int(np.argmax(np.maximum(np.abs(mean), deviation)))
            raise BidroError(
                f"it tells values of '{self.names[j]}' above {LARGEST_SIZE:g}, which no site reads."
            )
        lower, upper = self.ends
        size = np.hypot(mean, deviation)
        slack = _ROUNDING * size + _DIGITS * np.abs(mean)
        self._none(
            (mean < lower - slack) | (mean > upper + slack), "a mean of '{}' outside its agreed bounds"
        )
        self._none(deviation < 0, "a deviation of '{}' below 0")
        if rows == 1:
            self._none(deviation > slack, "a deviation of '{}' though it has one row")
        bounded = np.isfinite(lower) & np.isfinite(upper)
        room = np.where(bounded, (upper - mean) * (mean - lower), np.inf)
        width = np.where(bounded, upper - lower, 0.0)
        off = _OF_SHARES * width**2 + slack**2
        self._none(
            bounded & (deviation**2 > room + off), "a deviation of '{}' larger than its agreed bounds allow"
        )
        two = self.two_values
        self._none(
            two & (np.abs(deviation**2 - room) > off),
            "a deviation of '{}' that is not that of a column of two values with its mean",
        )
        if rows <= _COUNTABLE:
            share = np.where(two, (mean - lower) / np.where(two, width, 1.0), 0.0) * rows
            self._none(
                np.abs(share - np.round(share)) > 1e-3, "a mean of '{}' that no such number of rows has"
            )

    def _none(self, wrong: NDArray[np.bool_], words: str) -> None:
        if np.any(wrong):
            raise BidroError(f"it tells {words.format(self.names[int(np.argmax(wrong))])}.")


@dataclass(frozen=True, eq=False)
class ReportedMoments:
    """One client's columns as it has told them, and the units of training."""

    values: Values
    standard: Standard
    rows: int
    mean: Floats  # (m,) in the columns' own units
    deviation: Floats  # (m,)

    @cached_property
    def units(self) -> tuple[Floats, Floats]:
        """(centre, spread), both (m,)."""
        return np.append(self.standard.mean, self.standard.middle), np.append(self.standard.spread, 1.0)

    @cached_property
    def _slack(self) -> Floats:
        """(m,) what rounding can do to a mean or deviation, in the units of training."""
        centre, spread = self.units
        size = np.abs(self.mean) + np.abs(centre) + self.deviation
        return np.asarray(
            (_ROUNDING * (self.deviation + np.abs(self.mean - centre)) + 100 * _DIGITS * size) / spread
        )

    @cached_property
    def size(self) -> Floats:
        """(m,) root mean squares of the columns in the units of training."""
        centre, spread = self.units
        return np.asarray(np.hypot(self.mean - centre, self.deviation) / spread + self._slack)

    def sizes(self, bends: Basis | None) -> Floats:
        """(columns,) no column of curves is larger: none is larger than its feature."""
        return self.size if bends is None else np.append(self.size[:-1][bends.feature], self.size[-1])

    def require_curves(self, bends: Basis, around: Floats, rows: int) -> None:
        """Raise BidroError for second moments (columns, columns) in the columns of curves that no rows have.
        Columns of one feature grow together, one after the other."""
        more = np.sqrt(self.rows / max(rows, 1))
        require_semidefinite(around, more * np.append(self._slack[:-1][bends.feature], self._slack[-1]), rows)
        size = more * self.sizes(bends)[:-1]
        same = bends.feature[:, None] == bends.feature
        if np.any(same & (around[:-1, :-1] < -_ROUNDING * size[:, None] * size)):
            raise BidroError("it tells columns of a curve of which one falls as another grows, as none do.")

    def require_whole(self, mean: Floats, around: Floats) -> None:
        """Raise BidroError for moments (m,) and (m, m) of all rows, in the units of training, that are not
        those of the columns as told, or that no rows have."""
        centre, spread = self.units
        far = np.abs(mean - (self.mean - centre) / spread)
        variance = np.diag(around)
        deviation = self.deviation / spread
        wrong = (far > self._slack) | ~(
            np.abs(np.sqrt(np.maximum(variance, 0.0)) - deviation) <= self._slack + _OF_SHARES * deviation
        )
        if wrong.any():
            name = self.values.names[int(np.argmax(wrong))]
            raise BidroError(
                f"it tells a mean or deviation of '{name}' other than it told when the run began."
            )
        self.require_part(mean, around, self.rows)

    def require_part(self, mean: Floats, around: Floats, rows: int) -> None:
        """Raise BidroError for moments that no `rows` of the client's rows have, in the units of training."""
        slack = self._slack * np.sqrt(self.rows / max(rows, 1))
        require_semidefinite(around, slack, rows)
        centre, spread = self.units
        raw, covariance = mean * spread + centre, around * spread[:, None] * spread
        self.values.require(raw, np.sqrt(np.maximum(np.diag(covariance), 0.0)), rows)
        self._require_shares(raw, covariance, rows)

    def _require_shares(self, mean: Floats, covariance: Floats, rows: int) -> None:
        """The shares of rows where two columns of 0 and 1 are both 1."""
        coded = np.flatnonzero(self.values.column >= 0)
        p = mean[coded]
        both = covariance[np.ix_(coded, coded)] + p[:, None] * p
        of = self.values.column[coded]
        apart = (of[:, None] == of) & ~np.eye(len(coded), dtype=bool)
        least, most = np.maximum(p[:, None] + p - 1, 0.0), np.minimum(p[:, None], p)
        most = np.where(apart, 0.0, most)
        counts = both * rows
        wrong = (both < np.where(apart, 0.0, least) - _OF_SHARES) | (both > most + _OF_SHARES)
        if rows <= _COUNTABLE:
            wrong |= np.abs(counts - np.round(counts)) > 1e-3
        if wrong.any():
            i, j = (self.values.names[coded[int(k)]] for k in np.argwhere(wrong)[0])
            raise BidroError(f"it tells a second moment of '{i}' and '{j}' that no such number of rows has.")

    def require_folds(self, mean: Floats, around: Floats, rows: NDArray[np.int64], left: LeftOutSums) -> None:
        """Raise BidroError for moments (folds, ...) of every fold's training rows that no dealing of the rows
        has; `left` are the sums over what folds leave out."""
        for fold, count in enumerate(rows.tolist()):
            self.require_part(mean[fold], around[fold], count)
            out = self.rows - count
            first = left.first[0, fold] / out
            second = left.second(0, fold) / out - first[:, None] * first
            # Differences of sums over all rows: what they lose is a share of those.
            slack = (self._slack + 1e-7 * self.size) * np.sqrt(self.rows / out)
            require_semidefinite(second, slack, out)


def require_semidefinite(around: Floats, slack: Floats, rows: int) -> None:
    """Raise BidroError for second moments (m, m) around a mean that no `rows` rows have; `slack` (m,) is what
    rounding can do to a deviation."""
    variance = np.diag(around)
    scale = np.sqrt(np.maximum(variance, 0.0) + slack**2)
    safe = np.where(scale > 0, scale, 1.0)
    off = slack / safe  # (m,) a share; 1 for a column that does not vary
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = around / safe[:, None] / safe
    pairs = _ROUNDING + 2 * (off[:, None] + off)
    if not np.all(np.abs(matrix - matrix.T) <= pairs):
        raise BidroError("it tells second moments that are not symmetric.")
    if np.any(variance < -(slack**2)) or np.any(np.abs(matrix) > 1 + pairs):
        raise BidroError("it tells a covariance larger than the deviations of its two columns allow.")
    varies = off <= _VARIES
    room = _OF_SHARES + 4 * len(around) * np.max(off[varies], initial=0.0)
    values = np.linalg.eigvalsh(matrix[np.ix_(varies, varies)])
    if np.any(values < -room):
        raise BidroError("it tells second moments that are not positive semidefinite.")
    if np.sum(values > room) > rows - 1:
        raise BidroError(f"it tells second moments that {rows} row(s) cannot have: there are too few.")


# What rounding can do to a cut at another model, as a share of the sizes of its terms: sums over ten million
# rows lose less, and a lie of this size changes nothing that is stated.
_CUT_ROUNDING = 1e-9
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
        allowed = upper + _CUT_ROUNDING * (np.abs(upper) + np.abs(self.attained)[:, None] + terms)
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
class ReportedRisks:
    """All that one client has told of its risk, by which of its rows it is over."""

    loss: Loss
    transport: Transport
    lifted: bool
    columns: Columns
    rows: int  # of training
    reported: dict[object, Cuts] = field(default_factory=dict)

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
        # Of how many rows a fold is, is not known here: of one at least.
        for added, times in ((self.loss.penalty, 1.0), (self.loss.pull(x.shape[1]), widened**2 / self.rows)):
            if allowed is not None and added is not None:
                more = _SLACK * np.abs(x) @ np.abs(added) * times
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
        if self.lifted and np.any(gradient[:, -1] < -_CUT_ROUNDING * np.abs(slope[:, -1])):
            raise BidroError("its risk falls where the radius has more to move, which no risk does.")
        require(
            attained, upper + _CUT_ROUNDING * np.abs(upper), "a risk of at least {0:.6g} and at most {1:.6g}"
        )
        new = Cuts(z, eps, upper, attained, gradient, slope)
        before = self.reported.get(rows)
        new.require_below(new)
        if before is not None:
            new.require_below(before)
            before.require_below(new)
        self.reported[rows] = new if before is None else before.joined(new)

    def require_mean(self, rows: object, x: Floats, mean: float) -> None:
        """Raise BidroError where the mean loss over `rows` at x (d,) lies below a cut without a radius, or
        above a risk at the same model; risks have in them what smooths curves."""
        told = self.reported.get(rows)
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
        require(value, most + _LOWER_END * abs(most), "a mean loss of {0:.6g} and a risk of {1:.6g}")

    def _nu(self, x: Floats) -> Floats:
        """(r,) the steepness of models (r, d)."""
        return _steepness(self.loss, self.transport, x)


def lower_end(attained: Floats, smoothing: Floats) -> Floats:
    """(r,) what risks without an upper end are at most, where worst cases are known exactly."""
    value = attained + smoothing
    return np.asarray(value + _LOWER_END * (np.abs(attained) + np.abs(smoothing)))


def require(found: ArrayLike, most: ArrayLike, words: str) -> None:
    """Raise BidroError, saying that it told such a thing, where a number is above the most that it may be."""
    found, most = np.broadcast_arrays(found, most)
    wrong = ~(found <= most)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise BidroError(f"it tells {words.format(float(found[place]), float(most[place]))}.")


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


# What rounding can do to a mean that is told twice, as a share of the sizes of its terms.
_SAME = 1e-6
# Personal models lie around the shared one: their losses are not above what that one's may be by such a
# factor.
_FAR_OWN = 1e3
# No table holds numbers above `LARGEST_SIZE`; nothing that is computed from them at any model is above this.
_ABSURD = 1e10 * LARGEST_SIZE**2
# Beside columns larger than others by this factor, the others are lost in rounding.
LOST_IN_ROUNDING = float(np.finfo(float).eps) ** -0.5


def require_prepared(values: Values, told: Prepared, behind: int) -> None:
    """Raise BidroError for a first reply that no table has; `behind` is over how many rows it says it is."""
    counts = {name: float(getattr(told, name)) for name in ("rows", "holdout", "people", "holdout_people")}
    for name, count in counts.items():
        if not 0 <= count < 2**53 or count != int(count):
            raise BidroError(f"it tells {count:g} as its number of {name}, which is no count.")
    if counts["rows"] < 1 or counts["people"] < 1:
        raise BidroError("it tells that it trains on no rows.")
    for whole, part in (("rows", "people"), ("holdout", "holdout_people")):
        if counts[part] > counts[whole] or (counts[whole] > 0 and counts[part] < 1):
            raise BidroError(f"it tells {counts[part]:g} people among {counts[whole]:g} rows.")
    if values.agreed.schema.person is None and (
        counts["people"] != counts["rows"] or counts["holdout_people"] != counts["holdout"]
    ):
        raise BidroError("it tells of people, and the agreed schema names none.")
    offered = np.asarray(told.folds)
    if not np.all(np.isin(offered, (0.0, 1.0))) or offered[0] != 1:
        raise BidroError("it tells numbers of folds that it answers over in a way that means nothing.")
    if np.any(offered[np.arange(1, FOLDS + 1) > counts["people"]]):
        raise BidroError(f"it tells that it allows more folds than its {counts['people']:g} rows or people.")
    if behind > counts["rows"]:
        raise BidroError(f"it tells of {behind} rows behind a reply, and of {counts['rows']:g} in all.")
    values.require(np.asarray(told.mean), np.asarray(told.deviation), counts["rows"])


def others_lost(
    names: tuple[str, ...], columns: tuple[str, ...], told: Prepared, agreed: Standard
) -> dict[str, str]:
    """By client, why its columns cannot be pooled with those of the others; `told` is of all clients. Of two
    clients one alone could make the other look large: there the agreed units count as well."""
    size = np.abs(np.asarray(told.mean)) + np.asarray(told.deviation)  # (n, m)
    expected = np.append(np.abs(agreed.mean) + agreed.spread, abs(agreed.middle) + agreed.target_spread)
    found = {}
    for i, name in enumerate(names):
        others = np.delete(size, i, axis=0)
        usual = np.median(others, axis=0) if len(others) else np.zeros(size.shape[1])
        least = np.maximum(usual, expected) if len(others) == 1 else usual
        wrong = (usual > 0) & (size[i] > LOST_IN_ROUNDING * least)
        if wrong.any():
            j = int(np.argmax(wrong))
            found[name] = (
                f"its column '{columns[j]}' is of size {size[i, j]:.3g}, and that of other sites of size "
                f"{usual[j]:.3g}, which would be lost in rounding beside it; is it in another unit?"
            )
    return found


@dataclass(eq=False)
class Reported:
    """What one client has told so far."""

    moments: ReportedMoments
    rows: int  # in training
    people: int
    holdout: int  # held-out rows
    holdout_people: int
    risks: dict[Basis | None, ReportedRisks] = field(default_factory=dict)  # by the curves that they are of
    whole: Moments | None = None  # second moments of all its training rows
    bends: Basis | None = None  # the curves whose columns these are of; None for the features themselves
    left_out: dict[FoldSpec, Floats] = field(default_factory=dict)  # (folds,) rows that each fold leaves out
    scored: dict[bytes, float] = field(default_factory=dict)  # mean loss over left-out rows, by the models

    @property
    def has_people(self) -> bool:
        return self.moments.values.agreed.schema.person is not None

    @property
    def columns(self) -> Columns:
        return Columns(self.moments.size)

    def moments_of(self, loss: Loss) -> Moments | None:
        """The second moments of all training rows in the columns of a loss; None where they are not known."""
        wanted: Basis | None = getattr(loss, "basis", None)
        if self.whole is None or wanted == self.bends:
            return self.whole
        if self.bends is None:
            return None
        coarse = straight(self.bends) if wanted is None else wanted
        if not all(set(few) <= set(many) for few, many in zip(coarse.knots, self.bends.knots, strict=True)):
            return None
        return coarser(self.whole, self.bends, coarse)

    def require_left_out(self, fold_spec: FoldSpec, rows: Floats) -> None:
        """Raise BidroError for numbers (folds,) of rows left out that are not those of a dealing of its rows,
        or not those told before."""
        counts = rows.tolist()
        if any(count != int(count) or count < 1 for count in counts) or sum(counts) != self.rows:
            raise BidroError(
                f"it tells folds of {', '.join(f'{c:g}' for c in counts)} of its {self.rows} rows."
            )
        if not np.array_equal(self.left_out.setdefault(fold_spec, rows), rows):
            raise BidroError("it tells other numbers of rows in its folds than before.")


@dataclass(eq=False)
class Consistency:
    """The replies to rounds in one fit, in one set of units."""

    reported: Mapping[str, Reported]

    @classmethod
    def of(
        cls, values: Values, names: tuple[str, ...], prepared: Prepared, standard: Standard
    ) -> Consistency:
        """From what all clients (leading axis) have told when the run began."""
        told = {}
        for i, name in enumerate(names):
            rows, mean, deviation = (
                int(prepared.rows[i]),
                np.asarray(prepared.mean)[i],
                np.asarray(prepared.deviation)[i],
            )
            moments = ReportedMoments(values, standard, rows, mean, deviation)
            counts = (prepared.rows, prepared.people, prepared.holdout, prepared.holdout_people)
            here, people, out, out_people = (int(count[i]) for count in counts)
            told[name] = Reported(moments, here, people, out, out_people)
        return cls(told)

    def __call__(
        self,
        name: str,
        problem: Problem,
        fold_spec: FoldSpec | None,
        algorithm: Algorithm,
        message: Any,
        reply: Any,
        rows: int,
    ) -> None:
        """Raise BidroError where the reply of one client to a round contradicts what it has told."""
        own, place = self.reported[name], problem.federation.names.index(name)
        if rows > own.rows:
            raise BidroError(f"it tells of {rows} rows behind a reply, and of {own.rows} in all.")
        for part, value in reply._asdict().items():
            if part != "multiplier" and np.max(np.abs(value), initial=0.0) > _ABSURD:
                raise BidroError(f"it tells a '{part}' above {_ABSURD:g}, which no rows have.")
        eps = float(problem.eps[place])
        if isinstance(reply, one_shot.Reply):
            _require_whole(own, problem.loss, Moments(np.asarray(reply.mean), np.asarray(reply.around)))
        elif isinstance(reply, MomentsReply):
            assert fold_spec is not None
            _require_folds(own, problem.loss, fold_spec, reply)
        elif isinstance(reply, ScoresReply):
            assert fold_spec is not None
            _require_scores(own, problem, fold_spec, np.asarray(message.x), reply)
        elif isinstance(reply, PersonalReply):
            _require_personal(own, problem, np.asarray(message.x), reply)
        elif isinstance(reply, Risks | RisksReply) and not problem.ambiguity_set.penalised:
            _Risks(own, problem, fold_spec, algorithm, eps).require(message, reply)


def _require_whole(own: Reported, loss: Loss, found: Moments) -> None:
    """Second moments in the columns of a loss: those of its features are in them."""
    bends: Basis | None = getattr(loss, "basis", None)
    lines = found if bends is None else coarser(found, bends, straight(bends))
    own.moments.require_whole(lines.mean, lines.around)
    if bends is not None:
        own.moments.require_curves(bends, found.around, own.rows)
    known = own.moments_of(loss)
    if known is not None:
        size = own.moments.sizes(bends)
        if not np.all(np.abs(known.around - found.around) <= _SAME * size[:, None] * size):
            raise BidroError("it tells other second moments than before.")
        return
    own.whole, own.bends = found, bends


def _require_folds(own: Reported, loss: Loss, fold_spec: FoldSpec, reply: MomentsReply) -> None:
    mean, around, rows = (np.asarray(part) for part in reply)
    own.require_left_out(fold_spec, own.rows - rows.astype(float))
    trained = TrainingMoments(mean[None], around[None], rows[None])
    whole = of_all_folds(trained)
    bends: Basis | None = getattr(loss, "basis", None)
    if bends is not None:
        for part, count in zip(around, rows.tolist(), strict=True):
            own.moments.require_curves(bends, part, count)
        trained = coarser(trained, bends, straight(bends))
    lines = trained.mean[0], trained.around[0]
    own.moments.require_folds(*lines, rows, left_out_sums(trained))
    _require_whole(own, loss, Moments(whole.mean[0], whole.around[0]))


def _require_scores(
    own: Reported, problem: Problem, fold_spec: FoldSpec, x: Floats, reply: ScoresReply
) -> None:
    """Mean losses (folds, candidates) of models x (folds, candidates, d) over rows that folds leave out."""
    loss, rows = np.asarray(reply.loss), np.asarray(reply.rows, float)
    own.require_left_out(fold_spec, rows)
    if problem.loss.nonnegative and np.any(loss < 0):
        raise BidroError(f"it tells a mean loss of {loss.min():.6g}, below 0.")
    for fold, models in enumerate(x):
        columns = Columns(own.columns.size * math.sqrt(own.rows / rows[fold]))
        allowed = columns.allowed(problem.loss, models)
        if allowed is not None:
            require(
                loss[fold], allowed.risk, "a mean loss of {0:.6g}, where its columns allow at most {1:.6g}"
            )
    for j in range(x.shape[1]):
        own.scored[x[:, j].tobytes()] = float(rows @ loss[:, j] / rows.sum())


def _require_personal(own: Reported, problem: Problem, x: Floats, reply: PersonalReply) -> None:
    """Losses under personal models around the shared ones x (folds, d), by shrinkage."""
    columns = Columns(own.columns.size * math.sqrt(own.rows))
    allowed = columns.allowed(problem.loss, x)
    for name, part in reply._asdict().items():
        if np.any(np.asarray(part) < 0):
            raise BidroError(
                f"it tells {np.min(part):.6g} as a '{name}' of personal models, which is below 0."
            )
        if allowed is not None:
            most = _FAR_OWN * float(np.max(allowed.risk))
            require(
                np.asarray(part),
                most,
                f"{{0:.6g}} as a '{name}' of personal models, where no more than {{1:.6g}} is",
            )
    known, again = own.scored.get(x.tobytes()), float(np.asarray(reply.left_out)[0])
    if known is not None and abs(known - again) > _SAME * max(known, again):
        raise BidroError(f"it tells a mean loss of {again:.6g} on rows left out, and of {known:.6g} before.")


@dataclass(frozen=True, eq=False)
class _Risks:
    """A round about one client's risk, over all its rows or over the training rows of folds."""

    own: Reported
    problem: Problem
    fold_spec: FoldSpec | None
    algorithm: Algorithm
    eps: float  # the client's radius, before a scale adds to it

    def require(self, message: Any, reply: Risks | RisksReply) -> None:
        """Raise BidroError for what contradicts itself or earlier replies."""
        own, problem = self.own, self.problem
        curves: Basis | None = getattr(problem.loss, "basis", None)
        if curves not in own.risks:
            own.risks[curves] = ReportedRisks(
                problem.loss, problem.transport, problem.lifted, own.columns, own.rows
            )
        parts = {name: np.asarray(value) for name, value in reply._asdict().items()}
        k = parts["gradient"].shape[-1]
        if isinstance(reply, RisksReply):
            count, bends = int(message.models), int(message.bends)
            require_convex(parts.pop("curvature")[:bends], k)
        elif isinstance(self.algorithm, FoldCuts):
            count = int(message.active)
            require_convex(parts.pop("curvature")[:count], k)
        else:
            count = 1
            parts = {name: value[None] for name, value in parts.items()}
            require_convex(parts.pop("curvature"), k)
        parts = {name: value[:count] for name, value in parts.items()}
        self._require_signs(parts)
        x = np.atleast_2d(np.asarray(message.x))[:count]
        everything = 0 if self.fold_spec is None else self.fold_spec.folds
        fold = np.asarray(getattr(message, "fold", np.zeros(count, int)))[:count]
        scale = np.asarray(getattr(message, "scale", np.zeros(count)))[:count]
        exact = isinstance(getattr(self.algorithm, "oracle", None), Exact)
        for one in np.unique(fold).tolist():
            some, whole = fold == one, one == everything
            attained, smoothing = parts["attained"][some], parts["smoothing"][some]
            upper = np.full(int(some.sum()), np.inf)
            if "upper" in parts:
                upper = np.where(parts["certified"][some] == 1, parts["upper"][some], np.inf)
            elif exact:
                upper = lower_end(attained, smoothing)
            radius = self.eps + scale[some] / math.sqrt(own.rows)
            most = radius if whole else self.eps + scale[some]
            widened = 1.0 if whole else math.sqrt(own.rows)
            rows = None if whole else (self.fold_spec, one)
            gradient = parts["gradient"][some]
            own.risks[curves].add(rows, x[some], radius, most, attained, smoothing, gradient, upper, widened)
            moments = own.moments_of(problem.loss) if whole else None
            if moments is not None and isinstance(problem.loss, Squared) and problem.lifted:
                moments = smoothed(moments, problem.loss)
                self._require_of_moments(moments, x[some], radius, attained, upper)

    def _require_signs(self, parts: Mapping[str, Floats]) -> None:
        attained, smoothing = parts["attained"], parts["smoothing"]
        size = np.abs(attained) + np.abs(smoothing)
        if np.any(smoothing < -_SAME * size):
            raise BidroError("it tells that smoothing lowers its risk, which it never does.")
        if self.problem.loss.nonnegative and np.any(attained + smoothing < -_SAME * size):
            raise BidroError(f"it tells a risk of {np.min(attained + smoothing):.6g}, below 0.")
        if "upper" not in parts:
            return
        if np.any(parts["multiplier"] < 0) or not np.all(np.isin(parts["certified"], (0.0, 1.0))):
            raise BidroError(
                "it tells a multiplier below 0, or neither that its risk is proven nor that it is not."
            )
        if isinstance(getattr(self.algorithm, "oracle", None), Exact) and np.any(parts["certified"] != 1):
            raise BidroError("it tells no upper end of a risk that is known exactly.")
        if self.problem.loss.nonnegative and np.any(parts["upper"] < 0):
            raise BidroError(f"it tells a risk of at most {parts['upper'].min():.6g}, below 0.")

    def _require_of_moments(
        self, told: Moments, x: Floats, eps: Floats, attained: Floats, upper: Floats
    ) -> None:
        """Of squared loss the second moments tell the risk: (RMSE + eps nu)^2."""
        features = told.mean.shape[0] - 1
        v = np.column_stack([x[:, :features], -np.ones(len(x))])
        base = v @ told.mean + x[:, features:].sum(axis=1)
        square = np.sum((v @ told.around) * v, axis=1) + base**2
        cones = self.problem.loss.steepness_cones(self.problem.transport.inverse_scale)
        nu = np.array([cones[0].norm(cones[0].at(model)) for model in x])
        risk = (np.sqrt(np.maximum(square, 0.0)) + eps * nu) ** 2
        allowed = self.own.columns.allowed(self.problem.loss, x, self.problem.transport, eps)
        assert allowed is not None
        off = 1e-9 * allowed.risk + _SAME * risk
        require(attained, risk + off, "a risk of at least {0:.6g}, where its second moments make it {1:.6g}")
        require(
            risk, upper + off, "second moments that make its risk {0:.6g}, which it says is at most {1:.6g}"
        )


# On the rows that it was trained on, a personal model's loss, of which kinks are smoothed, is not above that
# of the shared model by more than this factor.
_NO_BETTER = 2.0


def require_assessment(
    own: Reported, problem: Problem, eps: float, message: Assess, reply: Assessment, behind: int
) -> None:
    """Raise BidroError where losses on training rows contradict themselves or earlier replies; `eps` is the
    client's radius."""
    if behind > own.rows:
        raise BidroError(f"it tells of {behind} rows behind a reply, and of {own.rows} in all.")
    x, loss = np.asarray(message.x), float(reply.loss)
    nonnegative = problem.loss.nonnegative or problem.loss.infimum_at_infinity
    if nonnegative:
        _require_error(loss, float(reply.se), own.rows, own.has_people)
        _not_negative(reply, ("personal_loss",))
    allowed = own.columns.allowed(problem.loss, x[None])
    if allowed is not None:
        require(loss, allowed.risk, "a mean loss of {0:.6g}, where its columns allow at most {1:.6g}")
    _require_trained(own, problem, x, loss)
    if not np.asarray(message.inverse_shrinkage).any():
        _require_shared(loss, float(reply.personal_loss))
    elif allowed is not None:
        # A personal model is trained on these very rows, and only to do better on them.
        most = _NO_BETTER * loss + _SAME * allowed.risk
        require(
            float(reply.personal_loss),
            most,
            "a loss of {0:.6g} under its personal model, where {1:.6g} is most",
        )
    _not_negative(reply, ("predicted", "robust", "distance", "typical"))
    _require_predictions(own, problem.loss, message, reply)
    radii, robust = np.asarray(message.radii), np.asarray(reply.robust)
    if robust.size:
        order = np.argsort(radii)
        rising = np.append(loss, robust[order])
        require(
            rising[:-1],
            rising[1:] * (1 + _SAME),
            "a risk of {0:.6g} in a ball, and of {1:.6g} in a larger one",
        )
        bounded = _bounded(own, problem.loss, x)
        if bounded is not None:
            require(robust, bounded, "a robust risk of {0:.6g}, where the support allows at most {1:.6g}")
    moved, typical = np.abs(np.asarray(reply.moved)), np.asarray(reply.typical)
    require(
        moved,
        typical * (1 + _SAME) + 1e-12,
        "that its worst case moves a mean by {0:.6g}, and rows by {1:.6g}",
    )
    far = 1.01 * eps * np.asarray(problem.transport.inverse_scale)[:-1]
    require(typical, far + 1e-9, "that its worst case moves rows by {0:.6g}, and its radius allows {1:.6g}")
    if not np.any(np.asarray(message.shown)) and typical.any():
        raise BidroError("it tells of a worst case that was not asked for.")
    _require_distance(own, problem, message, reply)


def require_bounds(
    own: Reported, of: CertifiedModel, message: HoldoutQuery, reply: HoldoutBounds, behind: int
) -> None:
    """Raise BidroError where losses on held-out rows contradict themselves or earlier replies."""
    people = own.holdout_people
    if behind > own.holdout:
        raise BidroError(f"it tells of {behind} rows behind a reply, and of {own.holdout} held out.")
    loss, by_people = float(reply.loss), own.has_people
    if of.loss.nonnegative or of.loss.infimum_at_infinity:
        _require_error(loss, float(reply.se), own.holdout, by_people)
        _not_negative(reply, ("personal_loss", "means"))
    most = _bounded(own, of.loss, np.asarray(of.x))
    if of.largest is not None:
        most = float(of.largest)
    if most is not None:
        require(loss, most * (1 + _SAME), "a mean loss of {0:.6g}, where no loss is above {1:.6g}")
    if not np.asarray(message.inverse_shrinkage).any():
        _require_shared(loss, float(reply.personal_loss))
    if np.asarray(reply.shared_change).size:
        shared, by_personal = (np.asarray(part) for part in (reply.shared_change, reply.personal_change))
        size = (
            abs(loss) + abs(float(reply.personal_loss)) + abs(float(shared[0])) + abs(float(by_personal[0]))
        )
        if abs((by_personal[0] - shared[0]) - (float(reply.personal_loss) - loss)) > _SAME * size:
            raise BidroError("it tells changes of its losses that are not those of its losses.")
        if (of.loss.nonnegative or of.loss.infimum_at_infinity) and loss - shared[0] < -_SAME * size:
            raise BidroError("it tells that pooled training has losses below 0.")
        # That of a difference is at most the sum of those of its two parts.
        widest = (2.0 if by_people else 1.0) * (1 + _SAME) * np.array([loss, float(reply.personal_loss)])
        widest = widest + (2.0 if by_people else 1.0) * (1 + _SAME) * abs(loss - shared[0])
        errors = np.array([shared[1], by_personal[1]])
        if np.any(errors < 0) or np.any(errors > widest):
            raise BidroError("it tells standard errors of changes that losses of this size cannot have.")
    _require_statements(of, message, reply, people, by_people, loss)


def _require_statements(
    of: CertifiedModel, message: HoldoutQuery, reply: HoldoutBounds, people: int, by_people: bool, loss: float
) -> None:
    """Each bound against its mean, the levels, and what so many draws can say."""
    levels, means = np.asarray(message.levels), np.asarray(reply.means)
    for mean, part in zip(means.tolist(), STATEMENTS, strict=True):
        bounds = np.asarray(getattr(reply, part))
        if not bounds.size:
            if mean != 0:
                raise BidroError("it tells the mean of a statement that was not asked for.")
            continue
        wrong = part in ("mistakes", "personal_mistakes")
        largest = 1.0 if wrong else float(of.largest if part == "held_out" else of.seen)  # type: ignore[arg-type]
        if not 0 <= mean <= largest * (1 + _SAME):
            raise BidroError(
                f"it tells a mean of {mean:.6g}, where nothing counts as more than {largest:.6g}."
            )
        if part == "clipped" and not by_people and abs(mean - loss) > _SAME * loss + 1e-300:
            raise BidroError(
                f"it tells a mean loss of {loss:.6g} on held-out rows, and of {mean:.6g} with large ones "
                "cut, which they are in both."
            )
        if part == "held_out" and not by_people and mean < loss * (1 - _SAME):
            raise BidroError(
                f"it tells a mean loss of {mean:.6g} on held-out rows, and of {loss:.6g} with large ones cut."
            )
        count = mean * people
        if wrong and not by_people and abs(count - round(count)) > 1e-3:
            raise BidroError(f"it tells a share of mistakes of {mean:.6g}, which {people} rows cannot have.")
        kind = "clopper-pearson" if wrong and not by_people else "betting"
        draws = np.full(people, min(mean, largest))
        if kind == "clopper-pearson":
            draws = (np.arange(people) < round(count)).astype(float)
        least = np.array([one.bound for one in client_bounds("it", draws, levels.tolist(), largest, kind)])  # type: ignore[arg-type]
        require(
            least - _SAME * largest,
            bounds,
            "that its true mean is at most {1:.6g}, where so many rows can say no less than {0:.6g}",
        )
        require(
            bounds, largest * (1 + _SAME), "a bound of {0:.6g}, where nothing counts as more than {1:.6g}"
        )
        if kind == "clopper-pearson":
            require(
                bounds, least + _SAME, "a bound of {0:.6g} on its mistakes, which by their number is {1:.6g}"
            )


def _require_error(mean: float, error: float, rows: int, by_people: bool) -> None:
    """A mean of `rows` numbers that are not negative, and its standard error."""
    if mean < 0:
        raise BidroError(f"it tells a mean loss of {mean:.6g}, below 0.")
    if not 0 <= error <= (2.0 if by_people else 1.0) * mean * (1 + _SAME) or (rows == 1 and error > 0):
        raise BidroError(
            f"it tells a mean loss of {mean:.6g} with a standard error of {error:.6g}, which none has."
        )


def _not_negative(reply: Assessment | HoldoutBounds, names: tuple[str, ...]) -> None:
    for name in names:
        part = np.asarray(getattr(reply, name))
        if np.any(part < 0):
            raise BidroError(f"it tells {part.min():.6g} as its '{name}', which is below 0.")


def _require_shared(loss: float, personal: float) -> None:
    if abs(loss - personal) > _SAME * abs(loss):
        raise BidroError(
            f"it tells a loss of {personal:.6g} under its personal model, which is the shared one, with "
            f"{loss:.6g}."
        )


def _require_trained(own: Reported, problem: Problem, x: Floats, loss: float) -> None:
    """The mean loss at the trained model against the rounds that trained it."""
    if (risks := own.risks.get(getattr(problem.loss, "basis", None))) is not None:
        risks.require_mean(None, x, loss)
    whole = own.moments_of(problem.loss)
    if whole is not None and isinstance(problem.loss, Squared):
        features = len(whole.mean) - 1
        v = np.append(x[:features], -1.0)
        base = float(whole.mean @ v + x[features:].sum())
        known = float(v @ whole.around @ v) + base**2
        allowed = own.columns.allowed(problem.loss, x[None])
        assert allowed is not None
        if abs(known - loss) > _SAME * abs(known) + 1e-9 * float(allowed.risk[0]):
            raise BidroError(
                f"it tells a mean loss of {loss:.6g}, where its second moments make it {known:.6g}."
            )


def _require_predictions(own: Reported, loss: Loss, message: Assess, reply: Assessment) -> None:
    """The spread and the means of the scores of the model, and of pooled training."""
    if not np.asarray(reply.predicted).size:
        return
    for model, spread, centre in zip((message.x, message.pooled), reply.predicted, reply.centre, strict=True):
        w, b = loss.split(np.asarray(model))  # type: ignore[attr-defined]
        size = own.moments.sizes(getattr(loss, "basis", None))[:-1]
        most = 1.01 * float(np.sum(np.abs(np.atleast_2d(w)) @ size)) + 1e-12
        if float(spread) > (2 * most) ** 2 or np.any(np.abs(centre) > 2 * (most + float(np.sum(np.abs(b))))):
            raise BidroError("it tells predictions that lie further apart than its columns allow.")


def _require_distance(own: Reported, problem: Problem, message: Assess, reply: Assessment) -> None:
    """W_p between the rows and a cloud is at most the sizes of both together, where all columns can move."""
    scale = np.asarray(problem.transport.scale)
    if not np.asarray(reply.distance).size or not np.all(np.isfinite(scale)) or problem.transport.p > 2:
        return
    if problem.transport.discrete_label:
        return
    cloud = float(np.max(np.linalg.norm(scale * np.asarray(message.reference), axis=1)))
    most = 1.01 * (cloud + float(np.linalg.norm(scale * own.columns.size)))
    require(
        np.asarray(reply.distance), most, "a distance of {0:.6g}, where its columns allow at most {1:.6g}"
    )


def _bounded(own: Reported, loss: Loss, x: Floats) -> float | None:
    """What no mean loss at x is above by the agreed bounds, or as no table holds larger numbers; None where
    nothing is known."""
    (centre, spread), (lower, upper) = own.moments.units, own.moments.values.ends
    ends = [np.clip(end, -LARGEST_SIZE, LARGEST_SIZE) - centre for end in (lower, upper)]
    limit = Columns(np.max(np.abs(ends), axis=0) / spread)
    found = limit.allowed(loss, x[None])
    return None if found is None else float(found.risk[0])


# Normal noise beyond so many standard deviations is met once in 10^100 times.
_FAR_NOISE = 22.0
# What rounding to whole steps, and that of this check, can do to a sum of n rows, as a share of it.
_STEP_ROUNDING = 1e-6


@dataclass(eq=False)
class ReportedWithNoise:
    """What one client has told so far."""

    plan: Plan
    budget: Budget | None = None
    begun: bool = field(default=False)

    def moments(self, reply: NoisyMoments, rows: int) -> None:
        """Raise BidroError for second moments that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        scale = self.plan.moments_scale(self.budget)
        told, noise = symmetric(self._sums(reply.values, scale), self.plan.columns), float(scale.sigma[0])
        # The largest eigenvalue of the noise is about s sqrt(2 m), and strays by s.
        m = self.plan.columns
        room = noise * (np.sqrt(2 * m) + _FAR_NOISE) + _STEP_ROUNDING * float(np.abs(told).max())
        least = float(np.linalg.eigvalsh(told)[0])
        if least < -room:
            raise BidroError(
                f"it tells second moments with an eigenvalue of {least:.3g}, which no rows and no noise have."
            )

    def gradients(self, query: GradientsQuery, reply: NoisyGradients, rows: int) -> None:
        """Raise BidroError for gradients and losses that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        clip, level = float(query.clip), float(query.level)
        scale = self.plan.gradients_scale(self.budget, clip, level)
        sums, noise = self._sums(reply.values, scale), scale.sigma
        factor, loss = float(sums[-2]) / (FACTOR * clip), float(sums[-1])
        of_factor = _FAR_NOISE * float(noise[-2]) / (FACTOR * clip)
        if factor < -of_factor or loss < -_FAR_NOISE * float(noise[-1]):
            raise BidroError("it tells a number of rows, or a sum of losses, far below 0.")

    def losses(self, reply: NoisyLosses, rows: int) -> None:
        """Raise BidroError for counts of held-out rows that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        scale = self.plan.losses_scale(self.budget)
        sums, noise = self._sums(reply.values, scale), float(scale.sigma[0])
        self._require_counts(sums, noise)
        if not self.plan.classes:
            return
        scale = self.plan.mistakes_scale(self.budget)
        wrong, of_wrong = self._sums(reply.mistakes, scale), float(scale.sigma[0])
        self._require_counts(wrong, of_wrong)
        both = float(np.hypot(noise * np.sqrt(len(sums)), of_wrong * np.sqrt(2)))
        if abs(float(sums.sum() - wrong.sum())) > _FAR_NOISE * both + _STEP_ROUNDING * float(
            np.abs(sums).sum()
        ):
            raise BidroError(
                f"it tells of about {sums.sum():.0f} held-out rows by their losses, and of about "
                f"{wrong.sum():.0f} by its mistakes."
            )

    def _require_counts(self, sums: Any, noise: float) -> None:
        if float(sums.min()) < -_FAR_NOISE * noise:
            raise BidroError(f"it tells {sums.min():.3g} as a sum of shares of held-out rows.")

    def _require_budget(self, numbers: Any, rows: int, exact: Any) -> None:
        try:
            found = Budget.reported(tuple(np.asarray(numbers, float).tolist()))
        except BidroError as error:
            raise BidroError(f"it tells of a privacy budget that is none: {error}") from error
        if self.begun and found != self.budget:
            raise BidroError("it tells of another privacy budget than before.")
        if (found is None) != (rows > 0):
            raise BidroError("it says over how many rows a reply with noise is, or not of one without.")
        if float(exact) not in (0.0, 1.0):
            raise BidroError("it does not say whether exact sums have left it before.")
        self.budget, self.begun = found, True

    def _sums(self, values: Any, scale: Scale) -> Any:
        return Noisy(np.asarray(values), scale).sums
