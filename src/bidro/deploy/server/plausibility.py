"""Consistency of one site's replies: no site contradicts itself unnoticed, and none stops the others.

The server cannot verify rows that it never sees. A site that reports consistently about rows of its own
making is believed; `max_weight` bounds what it counts for, and `influence` shows what it changes. What is
checked is that replies agree with each other, and that none makes the server's arithmetic fail. A violation
raises BidroError; the sentence begins with "it", and the coordinator puts the client's name before it.

DOMAIN. Numbers are finite (checked on arrival) and too small to overflow in sums and squares. Losses without
negative values have no negative mean; standard errors, distances and multipliers are not negative.

COUNTS. Numbers of rows and people are whole, at least one in training, and people are no more than rows. No
later reply states more rows than the first, and folds split the rows in one way.

SECOND MOMENTS. Those of all rows, of the training rows of each fold, and of the rows that a fold leaves out
are symmetric and positive semidefinite; so are Hessians of risks. Means and deviations are those of the first
reply, and moments that are reported twice are the same.

BOUNDS. Over the same rows and with the same loss, R_eps(y) >= attained + <gradient, y - z> for every cut and
every y, and R_eps grows with eps. So no cut lies above a value reported at another model with the same radius
or a larger one, no lower end above its upper end, and no mean loss below a cut or above a risk at its model.
Where worst cases are known exactly, both ends of a risk agree. For squared loss, second moments determine the
mean loss. A confidence bound is at least the mean that it bounds, and at most the largest value of a loss.

NOISE. Every reply with noise states one privacy budget, and all of them the same. No sum with noise lies
further than the noise from what rows can have: second moments are positive semidefinite, counts and losses
not negative, and held-out rows are counted alike by losses and by mistakes.

All comparisons allow for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bidro.certify.statements import STATEMENTS, CertifiedModel
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.federation import LARGEST_SIZE
from bidro.data.splines import Basis
from bidro.data.standardise import Standard
from bidro.federated.engines.remote import RoundReply
from bidro.federated.engines.rounds import FoldSpec
from bidro.fit.private_side import FACTOR
from bidro.fit.questions import (
    FEW,
    Assess,
    Assessment,
    GradientsQuery,
    HoldoutBounds,
    HoldoutQuery,
    NoisyCount,
    NoisyGradients,
    NoisyLosses,
    NoisyMoments,
    NoisyTable,
    Prepared,
)
from bidro.losses import LinearLoss, Loss, Softmax, Squared
from bidro.privacy.mechanisms import Noisy, Scale, symmetric
from bidro.privacy.terms import Budget, Plan
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import Moments, TrainingMoments, left_out_sums, of_all_folds
from bidro.risk.transport import Transport
from bidro.selection.calibrate import FOLDS
from bidro.selection.fold_queries import FoldCuts, MomentsReply, RisksReply, ScoresReply
from bidro.selection.personal import ExpansionsReply
from bidro.selection.personal import Reply as PersonalReply
from bidro.selection.segments import coarser, straight
from bidro.solvers.bundle import one_shot
from bidro.solvers.bundle.state import Reply as Risks

# Rounding of a column's moments, as a share of its size, and of its mean by the digits of a machine number.
_ROUNDING = 1e-9
_DIGITS = 64 * float(np.finfo(float).eps)
# Rounding of a number that is computed twice, as a share of the sizes of its terms.
_SAME = 1e-6
# A column varies whose deviation rounding changes by less than this share.
_VARIES = 1e-3
# Rounding of a cut at another model, as a share of the sizes of its terms: sums over ten million rows lose
# less.
_CUT_ROUNDING = 1e-9
# Both ends of a risk that is known exactly agree up to this share.
_LOWER_END = 1e-6
# An eigenvalue of a Hessian may be negative by this share of the largest.
_INDEFINITE = 1e-6
# No table holds numbers above `LARGEST_SIZE`; nothing that is computed from them at any model is above this.
_LARGEST_REPLY = 1e10 * LARGEST_SIZE**2
# Pooled with columns larger than others by this factor, the others are lost in rounding.
LOST_IN_ROUNDING = float(np.finfo(float).eps) ** -0.5


def require(found: ArrayLike, most: ArrayLike, words: str) -> None:
    """Raise BidroError, with the two numbers in `words`, where a reported number is above a bound."""
    found, most = np.broadcast_arrays(found, most)
    wrong = ~(found <= most)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise BidroError(f"it reports {words.format(float(found[place]), float(most[place]))}.")


def _require_size(reply: Any) -> None:
    """No overflow: an infinite multiplier is sent as the largest number, and nothing is computed from it."""
    for name, value in reply._asdict().items():
        if name != "multiplier" and np.max(np.abs(value), initial=0.0) > _LARGEST_REPLY:
            raise BidroError(f"it reports a '{name}' above {_LARGEST_REPLY:g}, which no rows have.")


def _not_negative(reply: Any, names: tuple[str, ...]) -> None:
    for name in names:
        least = float(np.min(getattr(reply, name), initial=0.0))
        if least < 0:
            raise BidroError(f"it reports {least:.6g} as its '{name}', which is below 0.")


def require_rows_behind(behind: int, rows: float) -> None:
    """Raise BidroError for a reply computed from more rows than there are."""
    if behind > rows:
        raise BidroError(f"it reports {behind} rows behind a reply, and {rows:g} in all.")


def require_prepared(columns: tuple[str, ...], has_people: bool, reply: Prepared, behind: int) -> None:
    """Raise BidroError for counts, means and deviations (m,) of a first reply that no table has; it states
    that it is computed from `behind` rows."""
    counts = {name: float(getattr(reply, name)) for name in ("rows", "holdout", "people", "holdout_people")}
    for name, count in counts.items():
        if not 0 <= count < 2**53 or count != int(count):
            raise BidroError(f"it reports {count:g} as its number of {name}, which is no count.")
    if counts["rows"] < 1 or counts["people"] < 1:
        raise BidroError("it reports that it trains on no rows.")
    for whole, part in (("rows", "people"), ("holdout", "holdout_people")):
        if counts[part] > counts[whole] or (counts[whole] > 0 and counts[part] < 1):
            raise BidroError(f"it reports {counts[part]:g} people among {counts[whole]:g} rows.")
        if not has_people and counts[part] != counts[whole]:
            raise BidroError("it reports a number of people, and the agreed schema names none.")
    offered = np.asarray(reply.folds)
    if not np.all(np.isin(offered, (0.0, 1.0))) or offered[0] != 1:
        raise BidroError("it reports numbers of folds that it answers over in a way that means nothing.")
    if np.any(offered[np.arange(1, FOLDS + 1) > counts["people"]]):
        raise BidroError(
            f"it reports that it allows more folds than its {counts['people']:g} rows or people."
        )
    require_rows_behind(behind, counts["rows"])
    mean, deviation = np.abs(np.asarray(reply.mean)), np.asarray(reply.deviation)
    for name, *sizes in zip(columns, mean.tolist(), deviation.tolist(), strict=True):
        if max(sizes) > LARGEST_SIZE:
            raise BidroError(f"it reports values of '{name}' above {LARGEST_SIZE:g}, which no site reads.")
    _not_negative(reply, ("deviation",))


def others_lost(
    names: tuple[str, ...], columns: tuple[str, ...], prepared: Prepared, agreed: Standard
) -> dict[str, str]:
    """By client, why its columns cannot be pooled with those of the others; `prepared` is of all clients. Of
    two clients one alone could make the other look large: there the agreed units count as well."""
    size = np.abs(np.asarray(prepared.mean)) + np.asarray(prepared.deviation)  # (n, m)
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


def require_semidefinite(around: Floats, slack: Floats) -> None:
    """Raise BidroError for central second moments (m, m) that are not symmetric and positive semidefinite;
    `slack` (m,) is the rounding of a deviation."""
    variance = np.diag(around)
    scale = np.sqrt(np.maximum(variance, 0.0) + slack**2)
    safe = np.where(scale > 0, scale, 1.0)
    off = slack / safe  # (m,) a share; 1 for a column that does not vary
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = around / safe[:, None] / safe
    pairs = _ROUNDING + 2 * (off[:, None] + off)
    if not np.all(np.abs(matrix - matrix.T) <= pairs):
        raise BidroError("it reports second moments that are not symmetric.")
    if np.any(variance < -(slack**2)) or np.any(np.abs(matrix) > 1 + pairs):
        raise BidroError("it reports a covariance larger than the deviations of its two columns allow.")
    varies = off <= _VARIES
    room = _SAME + 4 * len(around) * np.max(off[varies], initial=0.0)
    if np.any(np.linalg.eigvalsh(matrix[np.ix_(varies, varies)]) < -room):
        raise BidroError("it reports second moments that are not positive semidefinite.")


def require_convex(packed: Floats, k: int) -> None:
    """Raise BidroError for upper triangles (r, k (k + 1) / 2) of Hessians with a negative eigenvalue."""
    if not packed.size:
        return
    rows, columns = np.triu_indices(k)
    whole = np.zeros((len(packed), k, k))
    whole[:, rows, columns] = whole[:, columns, rows] = packed
    size = np.abs(whole).max(axis=(1, 2))
    with np.errstate(over="ignore"):
        values = np.linalg.eigvalsh(whole / np.where(size > 0, size, 1.0)[:, None, None])
    if np.any(values[:, 0] < -_INDEFINITE * k * np.maximum(values[:, -1], 1.0)):
        raise BidroError("it reports a Hessian that is not positive semidefinite, which no convex risk has.")


class Cuts(NamedTuple):
    """Bounds on the risk over some rows, at r models; lifted points have nu as their last coordinate."""

    z: Floats  # (r, k)
    eps: Floats  # (r,)
    upper: Floats  # (r,) inf where none is reported
    attained: Floats  # (r,)
    gradient: Floats  # (r, k)
    slope: Floats  # (r, k) sizes of the terms that gradients are summed from

    def joined(self, more: Cuts) -> Cuts:
        return Cuts(*(np.concatenate(parts) for parts in zip(self, more, strict=True)))

    def require_below(self, values: Cuts) -> None:
        """Raise BidroError where a cut of these lies above an upper end of those, by more than rounding."""
        at = (self.attained - np.sum(self.gradient * self.z, axis=1))[:, None] + self.gradient @ values.z.T
        terms = np.abs(self.slope) @ np.abs(values.z).T + np.sum(np.abs(self.slope * self.z), axis=1)[:, None]
        upper = np.where(np.isfinite(values.upper), values.upper, 0.0)
        allowed = upper + _CUT_ROUNDING * (np.abs(upper) + np.abs(self.attained)[:, None] + terms)
        # Radii are sums, too.
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
    """All bounds that one client has reported on its risk, by which of its rows it is over."""

    loss: Loss
    transport: Transport
    lifted: bool
    sizes: Floats  # (columns,) root mean squares of the loss's columns, the target's last
    rows: int  # in training
    reported: dict[object, Cuts] = field(default_factory=dict)

    def add(
        self, rows: object, x: Floats, eps: Floats, attained: Floats, gradient: Floats, upper: Floats
    ) -> None:
        """Risks over `rows` (a name for them) at models x (r, d) with radii eps (r,): lower ends (r,),
        gradients (r, k) of cuts there, upper ends (r,), inf where none is reported. Raises BidroError for a
        contradiction, and then keeps nothing."""
        slope = np.abs(gradient)
        if isinstance(self.loss, LinearLoss | Softmax):
            terms = rounding_terms(self.loss, self.sizes, x, eps * self._nu(x))
            slope = slope + (np.column_stack([terms, 0 * eps]) if self.lifted else terms)
        if self.lifted and np.any(gradient[:, -1] < -_CUT_ROUNDING * np.max(slope, axis=1)):
            raise BidroError("its risk falls where the radius has more to move, which no risk does.")
        require(
            attained, upper + _CUT_ROUNDING * np.abs(upper), "a risk of at least {0:.6g} and at most {1:.6g}"
        )
        new, before = Cuts(self._lift(x), eps, upper, attained, gradient, slope), self.reported.get(rows)
        new.require_below(new)
        if before is not None:
            new.require_below(before)
            before.require_below(new)
        self.reported[rows] = new if before is None else before.joined(new)

    def require_mean(self, rows: object, x: Floats, mean: float) -> None:
        """Raise BidroError where the mean loss over `rows` at x (d,) lies below a cut without a radius, or
        above a risk at the same model; risks include the penalties that smooth curves."""
        known = self.reported.get(rows)
        if known is None:
            return
        if self.loss.penalty is not None:
            mean += float(x @ self.loss.penalty @ x)
        if (pull := self.loss.pull(len(x))) is not None:
            mean += float(x @ pull @ x) / self.rows
        lift, value, none = self._lift(x[None]), np.array([mean]), np.zeros(1)
        known.require_below(Cuts(lift, none, value, none, 0 * lift, 0 * lift))
        same = np.all(known.z[:, : len(x)] == x, axis=1)
        most = np.min(known.upper[same], initial=np.inf)
        require(value, most + _LOWER_END * abs(most), "a mean loss of {0:.6g} and a risk of {1:.6g}")

    def _lift(self, x: Floats) -> Floats:
        return np.column_stack([x, self._nu(x)]) if self.lifted else x

    def _nu(self, x: Floats) -> Floats:
        return _steepness(self.loss, self.transport, x)


def _steepness(loss: Loss, transport: Transport, x: Floats) -> Floats:
    """(r,) nu of models (r, d): what a radius multiplies."""
    cones = transport.steepness_cones(loss)
    return np.max([[one.norm(one.at(model)) for model in x] for one in cones], axis=0)


def rounding_terms(loss: LinearLoss | Softmax, sizes: Floats, x: Floats, reach: Floats) -> Floats:
    """(r, d) sizes of the terms that gradients at models x (r, d) are summed from, for rows of columns of
    root mean squares `sizes`, of which predictions move by up to `reach` (r,)."""
    of_x = np.append(np.tile(sizes[:-1], loss.scores), np.ones(loss.scores * int(loss.intercept)))
    slope = np.ones(len(x))
    if isinstance(loss, LinearLoss):
        scalar, slope = loss.scalar, np.full(len(x), loss.scalar.lipschitz)
        if math.isfinite(scalar.curvature):
            size = np.abs(x) @ of_x + reach + (sizes[-1] if loss.labels is None else 0.0)
            steep = abs(float(scalar.tangent(np.zeros(()), np.zeros(())).slope))
            slope = np.minimum(slope, steep + scalar.curvature * size)
    return slope[:, None] * of_x


def lower_end(attained: Floats, smoothing: Floats) -> Floats:
    """(r,) the upper ends of risks, from their lower ends, where worst cases are known exactly."""
    return np.asarray(attained + smoothing + _LOWER_END * (np.abs(attained) + np.abs(smoothing)))


@dataclass(eq=False)
class Reported:
    """What one client has reported so far."""

    columns: tuple[str, ...]
    standard: Standard  # the units of training
    rows: int  # in training
    holdout: int  # held-out rows
    mean: Floats  # (m,) in the columns' own units
    deviation: Floats  # (m,)
    risks: dict[Basis | None, ReportedRisks] = field(default_factory=dict)  # by the curves that they are of
    moments: Moments | None = None  # second moments of all its training rows
    bends: Basis | None = None  # the curves whose columns these are of; None for the features themselves
    left_out: dict[FoldSpec, Floats] = field(default_factory=dict)  # (folds,) rows that each fold leaves out

    @cached_property
    def units(self) -> tuple[Floats, Floats]:
        """(centre, spread), both (m,)."""
        return np.append(self.standard.mean, self.standard.middle), np.append(self.standard.spread, 1.0)

    @cached_property
    def slack(self) -> Floats:
        """(m,) rounding of a mean or deviation, in the units of training."""
        centre, spread = self.units
        size = np.abs(self.mean) + np.abs(centre) + self.deviation
        off = _ROUNDING * (self.deviation + np.abs(self.mean - centre)) + 100 * _DIGITS * size
        return np.asarray(off / spread)

    def sizes(self, bends: Basis | None) -> Floats:
        """(columns,) root mean squares in the units of training; a column of a curve is no larger than its
        feature."""
        centre, spread = self.units
        size = np.hypot(self.mean - centre, self.deviation) / spread + self.slack
        return _by_segment(np.asarray(size), bends)

    def moments_of(self, loss: Loss) -> Moments | None:
        """The second moments of all training rows in the columns of a loss; None where they are not known."""
        wanted: Basis | None = getattr(loss, "basis", None)
        if self.moments is None or wanted == self.bends:
            return self.moments
        if self.bends is None:
            return None
        coarse = straight(self.bends) if wanted is None else wanted
        if not all(set(few) <= set(many) for few, many in zip(coarse.knots, self.bends.knots, strict=True)):
            return None
        return coarser(self.moments, self.bends, coarse)

    def mean_by_moments(self, loss: Loss, x: Floats) -> tuple[float, float] | None:
        """(mean squared loss at x (d,), its rounding); None where second moments do not determine it."""
        moments = self.moments_of(loss)
        if moments is None or not isinstance(loss, Squared):
            return None
        features, sizes = len(moments.mean) - 1, self.sizes(loss.basis)
        v = np.append(x[:features], -1.0)
        mean = float(v @ moments.around @ v + (v @ moments.mean + x[features:].sum()) ** 2)
        largest = float(np.abs(v) @ sizes + np.abs(x[features:]).sum())
        return mean, 2e-9 * largest**2 + _SAME * mean

    def require_moments(self, loss: Loss, found: Moments) -> None:
        """Raise BidroError for second moments of all rows, in the columns of a loss, that are not positive
        semidefinite or not those reported before; keeps them."""
        bends: Basis | None = getattr(loss, "basis", None)
        lines = found if bends is None else coarser(found, bends, straight(bends))
        centre, spread = self.units
        far = np.abs(lines.mean - (self.mean - centre) / spread)
        deviation = self.deviation / spread
        off = np.abs(np.sqrt(np.maximum(np.diag(lines.around), 0.0)) - deviation)
        wrong = (far > self.slack) | ~(off <= self.slack + _SAME * deviation)
        if wrong.any():
            name = self.columns[int(np.argmax(wrong))]
            raise BidroError(f"it reports a mean or deviation of '{name}' other than when the run began.")
        require_semidefinite(found.around, _by_segment(self.slack, bends))
        if (known := self.moments_of(loss)) is None:
            self.moments, self.bends = found, bends
            return
        size = self.sizes(bends)
        if not np.all(np.abs(known.around - found.around) <= _SAME * size[:, None] * size):
            raise BidroError("it reports other second moments than before.")

    def require_fold_moments(self, loss: Loss, fold_spec: FoldSpec, reply: MomentsReply) -> None:
        """Raise BidroError where second moments of every fold's training rows, or of the rows that it leaves
        out, are not positive semidefinite, or do not add up to those of all rows."""
        mean, around, rows = (np.asarray(part) for part in reply)
        self.require_left_out(fold_spec, self.rows - rows.astype(float))
        trained = TrainingMoments(mean[None], around[None], rows[None])
        left, bends = left_out_sums(trained), getattr(loss, "basis", None)
        slack, size = _by_segment(self.slack, bends), self.sizes(bends)
        for fold, count in enumerate(rows.tolist()):
            out = self.rows - count
            require_semidefinite(around[fold], slack * np.sqrt(self.rows / max(count, 1)))
            first = left.first[0, fold] / out
            second = left.second(0, fold) / out - first[:, None] * first
            # Differences of sums over all rows: what they lose is a share of those.
            require_semidefinite(second, (slack + 1e-7 * size) * np.sqrt(self.rows / out))
        whole = of_all_folds(trained)
        self.require_moments(loss, Moments(whole.mean[0], whole.around[0]))

    def require_left_out(self, fold_spec: FoldSpec, rows: Floats) -> None:
        """Raise BidroError for numbers (folds,) of rows left out that do not add up to all its rows, or are
        not those reported before."""
        counts = rows.tolist()
        if any(count != int(count) or count < 1 for count in counts) or sum(counts) != self.rows:
            numbers = ", ".join(f"{count:g}" for count in counts)
            raise BidroError(f"it reports folds of {numbers} of its {self.rows} rows.")
        if not np.array_equal(self.left_out.setdefault(fold_spec, rows), rows):
            raise BidroError("it reports other numbers of rows in its folds than before.")

    def require_trained(self, problem: Problem, x: Floats, mean: float) -> None:
        """Raise BidroError where the mean loss at x (d,) contradicts the rounds that trained it."""
        if (risks := self.risks.get(getattr(problem.loss, "basis", None))) is not None:
            risks.require_mean(None, x, mean)
        known, off = self.mean_by_moments(problem.loss, x) or (mean, 0.0)
        if abs(known - mean) > off:
            raise BidroError(
                f"it reports a mean loss of {mean:.6g}, where its second moments make it {known:.6g}."
            )


def _by_segment(columns: Floats, bends: Basis | None) -> Floats:
    """Numbers of features and target, for the columns of curves."""
    return columns if bends is None else np.append(columns[:-1][bends.feature], columns[-1])


@dataclass(eq=False)
class Consistency:
    """The replies to rounds in one fit, in one set of units."""

    reported: Mapping[str, Reported]

    @classmethod
    def of(
        cls, columns: tuple[str, ...], names: tuple[str, ...], prepared: Prepared, standard: Standard
    ) -> Consistency:
        """From the first replies of all clients (leading axis)."""
        parts = (prepared.rows, prepared.holdout, prepared.mean, prepared.deviation)
        each = zip(names, *(np.asarray(part) for part in parts), strict=True)
        return cls(
            {
                name: Reported(columns, standard, int(rows), int(holdout), mean, deviation)
                for name, rows, holdout, mean, deviation in each
            }
        )

    def __call__(self, one: RoundReply) -> None:
        """Raise BidroError where the reply of one client to a round contradicts its earlier replies."""
        own, problem, fold_spec, reply = self.reported[one.client], one.problem, one.fold_spec, one.reply
        require_rows_behind(one.rows, own.rows)
        _require_size(reply)
        if isinstance(reply, one_shot.Reply):
            own.require_moments(problem.loss, Moments(np.asarray(reply.mean), np.asarray(reply.around)))
        elif isinstance(reply, MomentsReply):
            assert fold_spec is not None
            own.require_fold_moments(problem.loss, fold_spec, reply)
        elif isinstance(reply, ScoresReply):
            assert fold_spec is not None
            own.require_left_out(fold_spec, np.asarray(reply.rows, float))
            _not_negative(reply, ("loss",) if problem.loss.nonnegative else ())
        elif isinstance(reply, PersonalReply):
            _not_negative(reply, reply._fields)
        elif isinstance(reply, ExpansionsReply):
            _not_negative(reply, ("diagonal", "squares", "bend", "rows"))
        elif isinstance(reply, Risks | RisksReply) and not problem.ambiguity_set.penalised:
            _require_risks(own, one)


def _require_risks(own: Reported, told: RoundReply) -> None:
    """Raise BidroError for contradictions of bounds on risks over all rows, or over the training rows of
    folds."""
    _, problem, fold_spec, algorithm, message, reply, _ = told
    # The client's radius, before a scale adds to it.
    eps = float(problem.eps[problem.federation.names.index(told.client)])
    curves: Basis | None = getattr(problem.loss, "basis", None)
    risks = own.risks.setdefault(
        curves,
        ReportedRisks(problem.loss, problem.transport, problem.lifted, own.sizes(curves), own.rows),
    )
    parts = {name: np.asarray(value) for name, value in reply._asdict().items()}
    if isinstance(reply, RisksReply):
        count, bends = int(message.models), int(message.bends)
    elif isinstance(algorithm, FoldCuts):
        count = bends = int(message.active)
    else:
        count = bends = 1
        parts = {name: value[None] for name, value in parts.items()}
    require_convex(parts.pop("curvature")[:bends], parts["gradient"].shape[-1])
    parts = {name: value[:count] for name, value in parts.items()}
    exact = isinstance(getattr(algorithm, "oracle", None), Exact)
    _require_ends(parts, problem.loss.nonnegative, exact)
    x = np.atleast_2d(np.asarray(message.x))[:count]
    everything = 0 if fold_spec is None else fold_spec.folds
    fold = np.asarray(getattr(message, "fold", np.zeros(count, int)))[:count]
    scale = np.asarray(getattr(message, "scale", np.zeros(count)))[:count]
    for one in np.unique(fold).tolist():
        some, whole = fold == one, one == everything
        attained = parts["attained"][some]
        upper = np.full(len(attained), np.inf)
        if "upper" in parts:
            upper = np.where(parts["certified"][some] == 1, parts["upper"][some], np.inf)
        elif exact:
            upper = lower_end(attained, parts["smoothing"][some])
        # Of a fold's rows the radius is known up to a common factor, which compares as well.
        radius = eps + scale[some] / math.sqrt(own.rows)
        rows = None if whole else (fold_spec, one)
        risks.add(rows, x[some], radius, attained, parts["gradient"][some], upper)


def _require_ends(parts: Mapping[str, Floats], nonnegative: bool, exact: bool) -> None:
    """Signs of what is reported of risks, and that their ends agree where worst cases are known exactly."""
    attained, smoothing = parts["attained"], parts["smoothing"]
    size = np.abs(attained) + np.abs(smoothing)
    if np.any(smoothing < -_SAME * size):
        raise BidroError("it reports that smoothing lowers its risk, which it never does.")
    least = np.minimum(attained + smoothing + _SAME * size, parts.get("upper", np.inf))
    if nonnegative and np.any(least < 0):
        raise BidroError(f"it reports a risk of {np.min(least):.6g}, below 0.")
    if "upper" not in parts:
        return
    if np.any(parts["multiplier"] < 0) or not np.all(np.isin(parts["certified"], (0.0, 1.0))):
        raise BidroError(
            "it reports a multiplier below 0, or neither that its risk is proven nor that it is not."
        )
    if exact and np.any(parts["certified"] != 1):
        raise BidroError("it reports no upper end of a risk that is known exactly.")
    if exact:
        ends = "a risk of up to {0:.6g} that is known exactly, and {1:.6g} as its lower end"
        require(parts["upper"], lower_end(attained, smoothing), ends)


def require_assessment(
    own: Reported, problem: Problem, message: Assess, reply: Assessment, behind: int
) -> None:
    """Raise BidroError where losses on training rows contradict each other or earlier replies."""
    require_rows_behind(behind, own.rows)
    _require_size(reply)
    _not_negative(reply, ("se", "predicted", "distance", "typical"))
    loss = float(reply.loss)
    if problem.loss.nonnegative or problem.loss.infimum_at_infinity:
        _not_negative(reply, ("loss", "personal_loss"))
    own.require_trained(problem, np.asarray(message.x), loss)
    if not np.asarray(message.freedom).any():
        _require_shared(loss, float(reply.personal_loss))
    # The risk over a ball of radius 0 is the mean loss.
    rising = np.append(loss, np.asarray(reply.robust)[np.argsort(np.asarray(message.radii))])
    most = rising[1:] + _SAME * np.abs(rising[1:])
    require(rising[:-1], most, "a risk of {0:.6g} in a ball, and of {1:.6g} in a larger one")


def require_bounds(
    own: Reported, of: CertifiedModel, message: HoldoutQuery, reply: HoldoutBounds, behind: int
) -> None:
    """Raise BidroError where losses on held-out rows, and bounds on them, contradict each other."""
    require_rows_behind(behind, own.holdout)
    _require_size(reply)
    _not_negative(reply, ("se",))
    if of.loss.nonnegative or of.loss.infimum_at_infinity:
        _not_negative(reply, ("loss", "personal_loss", "means"))
    if not np.asarray(message.freedom).any():
        _require_shared(float(reply.loss), float(reply.personal_loss))
    for mean, part in zip(np.asarray(reply.means).tolist(), STATEMENTS, strict=True):
        largest = of.largest if part == "held_out" else of.seen
        if part in ("mistakes", "personal_mistakes"):
            largest = 1.0
        bounds = np.asarray(getattr(reply, part))
        if bounds.size:
            most = float(largest) * (1 + _SAME)  # type: ignore[arg-type]
            require(bounds, most, "a bound of {0:.6g}, where no loss counts as more than {1:.6g}")
            require(mean, bounds * (1 + _SAME), "a mean of {0:.6g}, and a bound on it of {1:.6g}")
    own_rows = np.asarray(reply.rows)
    if np.any((own_rows < 0) & (own_rows != FEW)):
        raise BidroError("it reports that rows lie less than 0 from their prediction.")
    if own_rows.size > 1 and not np.asarray(message.freedom).any() and own_rows[0] != own_rows[1]:
        raise BidroError("it reports other errors of its personal model, which is the shared one.")


def _require_shared(loss: float, personal: float) -> None:
    if abs(loss - personal) > _SAME * abs(loss):
        raise BidroError(
            f"it reports a loss of {personal:.6g} under its personal model, which is the shared one, with "
            f"{loss:.6g}."
        )


# Normal noise beyond so many standard deviations is met once in 10^100 times.
_FAR_NOISE = 22.0
# Rounding to whole steps, and of this check, as a share of a sum.
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
        if self.plan.shared is not None:
            return  # under its mask anything may be
        scale = self.plan.moments_scale(self.budget)
        told, noise = symmetric(self._sums(reply.values, scale), self.plan.columns), float(scale.sigma[0])
        # The largest eigenvalue of the noise is about s sqrt(2 m), and strays by s.
        m = self.plan.columns
        room = noise * (np.sqrt(2 * m) + _FAR_NOISE) + _STEP_ROUNDING * float(np.abs(told).max())
        least = float(np.linalg.eigvalsh(told)[0])
        if least < -room:
            raise BidroError(
                f"it reports second moments with an eigenvalue of {least:.3g}, which no rows with noise have."
            )

    def gradients(self, query: GradientsQuery, reply: NoisyGradients, rows: int) -> None:
        """Raise BidroError for gradients and losses that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        if self.plan.shared is not None:
            return
        clip, level = float(query.clip), float(query.level)
        scale = self.plan.gradients_scale(self.budget, clip, level)
        sums, noise = self._sums(reply.values, scale), scale.sigma
        factor, loss = float(sums[-2]) / (FACTOR * clip), float(sums[-1])
        of_factor = _FAR_NOISE * float(noise[-2]) / (FACTOR * clip)
        if factor < -of_factor or loss < -_FAR_NOISE * float(noise[-1]):
            raise BidroError("it reports a number of rows, or a sum of losses, far below 0.")

    def masked(self, reply: NoisyTable, rows: int) -> None:
        """Raise BidroError for what says of its budget what it cannot; under its mask anything may be."""
        self._require_budget(reply.budget, rows, reply.exact)

    def counts(self, reply: NoisyCount, rows: int) -> None:
        """Raise BidroError for a number of rows that nobody has."""
        self._require_budget(reply.budget, rows, reply.exact)
        noise = float(self.plan.rows_scale(self.budget).sigma[0])
        if float(np.asarray(reply.values)[0]) < -_FAR_NOISE * noise:
            raise BidroError("it reports a number of rows far below 0.")

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
                f"it reports about {sums.sum():.0f} held-out rows by their losses, and of about "
                f"{wrong.sum():.0f} by its mistakes."
            )

    def _require_counts(self, sums: Any, noise: float) -> None:
        if float(sums.min()) < -_FAR_NOISE * noise:
            raise BidroError(f"it reports {sums.min():.3g} as a sum of shares of held-out rows.")

    def _require_budget(self, numbers: Any, rows: int, exact: Any) -> None:
        try:
            found = Budget.reported(tuple(np.asarray(numbers, float).tolist()))
        except BidroError as error:
            raise BidroError(f"it reports a privacy budget that is none: {error}") from error
        if self.begun and found != self.budget:
            raise BidroError("it reports another privacy budget than before.")
        if (found is None) != (rows > 0):
            raise BidroError("it says over how many rows a reply with noise is, or not of one without.")
        if float(exact) not in (0.0, 1.0):
            raise BidroError("it does not say whether exact sums have left it before.")
        self.budget, self.begun = found, True

    def _sums(self, values: Any, scale: Scale) -> Any:
        return Noisy(np.asarray(values), scale).sums
