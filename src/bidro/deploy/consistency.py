"""What a site says in a run must fit together: every reply is held against all that it has told before.

A server does not trust a number from a site. A lie that no rows can tell is a contradiction, and a fault of
that site; the sentence begins with "it" and the coordinator puts the name before it. A site that lies
consistently about its rows cannot be refuted: what it may change is bounded by `max_weight`, and shown by
`influence`. What was told of the columns when the run began bounds everything that follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bidro.algorithms import fold_moments, one_shot, own_correction
from bidro.algorithms.contract import Algorithm
from bidro.algorithms.cross_validation import FoldSolves, ScoresReply
from bidro.algorithms.exact_messages import Reply as Risks
from bidro.algorithms.fold_newton_state import NewtonReply
from bidro.algorithms.second_moments import Moments, TrainingMoments, left_out_sums, of_all_folds, smoothed
from bidro.arrays import Floats
from bidro.curves import Basis
from bidro.deploy.told_moments import ToldMoments, Values
from bidro.deploy.told_risks import Columns, ToldRisks, lower_end, require, require_convex
from bidro.engines.rounds import Deal
from bidro.errors import BidroError
from bidro.federation import LARGEST_SIZE
from bidro.fitting.questions import Prepared
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.segments import coarser, straight
from bidro.losses import Loss, Squared
from bidro.problem import Problem
from bidro.standard import Standard
from bidro.worst_case import Exact

# What rounding can do to a mean that is told twice, as a share of the sizes of its terms.
_SAME = 1e-6
# Own models lie around the shared one: their losses are not above what that one's may be by such a factor.
_FAR = 1e3
# No table holds numbers above `LARGEST_SIZE`; nothing that is computed from them at any model is above this.
_ABSURD = 1e10 * LARGEST_SIZE**2
# Beside columns larger than others by this factor, the others are lost in rounding.
LOST_IN_ROUNDING = float(np.finfo(float).eps) ** -0.5


def require_prepared(values: Values, told: Prepared, behind: int) -> None:
    """Raise BidroError for a first reply that no table has; `behind` is over how many rows it says it is."""
    counts = {name: float(getattr(told, name)) for name in ("rows", "holdout", "units", "holdout_units")}
    for name, count in counts.items():
        if not 0 <= count < 2**53 or count != int(count):
            raise BidroError(f"it tells {count:g} as its number of {name}, which is no count.")
    if counts["rows"] < 1 or counts["units"] < 1:
        raise BidroError("it tells that it trains on no rows.")
    for whole, part in (("rows", "units"), ("holdout", "holdout_units")):
        if counts[part] > counts[whole] or (counts[whole] > 0 and counts[part] < 1):
            raise BidroError(f"it tells {counts[part]:g} units among {counts[whole]:g} rows.")
    if values.agreed.schema.unit is None and (
        counts["units"] != counts["rows"] or counts["holdout_units"] != counts["holdout"]
    ):
        raise BidroError("it tells of units, and the agreed schema names none.")
    offered = np.asarray(told.folds)
    if not np.all(np.isin(offered, (0.0, 1.0))) or offered[0] != 1:
        raise BidroError("it tells numbers of folds that it answers over in a way that means nothing.")
    if np.any(offered[np.arange(1, FOLDS + 1) > counts["units"]]):
        raise BidroError(f"it tells that it allows more folds than its {counts['units']:g} rows or units.")
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
class Told:
    """What one client has told so far."""

    moments: ToldMoments
    rows: int  # in training
    units: int
    holdout: int  # rows kept out
    holdout_units: int
    risks: dict[Basis | None, ToldRisks] = field(default_factory=dict)  # by the curves that they are of
    whole: Moments | None = None  # second moments of all its training rows
    bends: Basis | None = None  # the curves whose columns these are of; None for the features themselves
    left_out: dict[Deal, Floats] = field(default_factory=dict)  # (folds,) rows that each fold leaves out
    scored: dict[bytes, float] = field(default_factory=dict)  # mean loss over left-out rows, by the models

    @property
    def has_units(self) -> bool:
        return self.moments.values.agreed.schema.unit is not None

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

    def require_left_out(self, deal: Deal, rows: Floats) -> None:
        """Raise BidroError for numbers (folds,) of rows left out that are not those of a dealing of its rows,
        or not those told before."""
        counts = rows.tolist()
        if any(count != int(count) or count < 1 for count in counts) or sum(counts) != self.rows:
            raise BidroError(
                f"it tells folds of {', '.join(f'{c:g}' for c in counts)} of its {self.rows} rows."
            )
        if not np.array_equal(self.left_out.setdefault(deal, rows), rows):
            raise BidroError("it tells other numbers of rows in its folds than before.")


@dataclass(eq=False)
class Consistency:
    """The replies to rounds in one fit, in one set of units."""

    told: Mapping[str, Told]

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
            moments = ToldMoments(values, standard, rows, mean, deviation)
            counts = (prepared.rows, prepared.units, prepared.holdout, prepared.holdout_units)
            here, units, out, out_units = (int(count[i]) for count in counts)
            told[name] = Told(moments, here, units, out, out_units)
        return cls(told)

    def __call__(
        self,
        name: str,
        problem: Problem,
        deal: Deal | None,
        algorithm: Algorithm,
        message: Any,
        reply: Any,
        rows: int,
    ) -> None:
        """Raise BidroError where the reply of one client to a round contradicts what it has told."""
        own, place = self.told[name], problem.federation.names.index(name)
        if rows > own.rows:
            raise BidroError(f"it tells of {rows} rows behind a reply, and of {own.rows} in all.")
        for part, value in reply._asdict().items():
            if part != "multiplier" and np.max(np.abs(value), initial=0.0) > _ABSURD:
                raise BidroError(f"it tells a '{part}' above {_ABSURD:g}, which no rows have.")
        eps = 0.0 if problem.eps is None else float(problem.eps[place])
        if isinstance(reply, one_shot.Reply):
            _require_whole(own, problem.loss, Moments(np.asarray(reply.mean), np.asarray(reply.around)))
        elif isinstance(reply, fold_moments.Reply):
            assert deal is not None
            _require_folds(own, problem.loss, deal, reply)
        elif isinstance(reply, ScoresReply):
            assert deal is not None
            _require_scores(own, problem, deal, np.asarray(message.x), reply)
        elif isinstance(reply, own_correction.Reply):
            _require_own(own, problem, np.asarray(message.x), reply)
        elif isinstance(reply, Risks | NewtonReply) and problem.rho is None:
            _Risks(own, problem, deal, algorithm, eps).require(message, reply)


def _require_whole(own: Told, loss: Loss, found: Moments) -> None:
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


def _require_folds(own: Told, loss: Loss, deal: Deal, reply: fold_moments.Reply) -> None:
    mean, around, rows = (np.asarray(part) for part in reply)
    own.require_left_out(deal, own.rows - rows.astype(float))
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


def _require_scores(own: Told, problem: Problem, deal: Deal, x: Floats, reply: ScoresReply) -> None:
    """Mean losses (folds, candidates) of models x (folds, candidates, d) over rows that folds leave out."""
    loss, rows = np.asarray(reply.loss), np.asarray(reply.rows, float)
    own.require_left_out(deal, rows)
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


def _require_own(own: Told, problem: Problem, x: Floats, reply: own_correction.Reply) -> None:
    """Losses under own models around the shared ones x (folds, d), by shrinkage."""
    columns = Columns(own.columns.size * math.sqrt(own.rows))
    allowed = columns.allowed(problem.loss, x)
    for name, part in reply._asdict().items():
        if np.any(np.asarray(part) < 0):
            raise BidroError(f"it tells {np.min(part):.6g} as a '{name}' of own models, which is below 0.")
        if allowed is not None:
            most = np.full(np.shape(part), _FAR * float(np.max(allowed.risk)))
            require(
                np.asarray(part),
                most,
                f"{{0:.6g}} as a '{name}' of own models, where no more than {{1:.6g}} is",
            )
    known, again = own.scored.get(x.tobytes()), float(np.asarray(reply.left_out)[0])
    if known is not None and abs(known - again) > _SAME * max(known, again):
        raise BidroError(f"it tells a mean loss of {again:.6g} on rows left out, and of {known:.6g} before.")


@dataclass(frozen=True, eq=False)
class _Risks:
    """A round about one client's risk, over all its rows or over the training rows of folds."""

    own: Told
    problem: Problem
    deal: Deal | None
    algorithm: Algorithm
    eps: float  # the client's radius, before a scale adds to it

    def require(self, message: Any, reply: Risks | NewtonReply) -> None:
        """Raise BidroError for what contradicts itself or earlier replies."""
        own, problem = self.own, self.problem
        curves: Basis | None = getattr(problem.loss, "basis", None)
        if curves not in own.risks:
            own.risks[curves] = ToldRisks(
                problem.loss, problem.transport, problem.lifted, own.columns, own.rows
            )
        parts = {name: np.asarray(value) for name, value in reply._asdict().items()}
        k = parts["gradient"].shape[-1]
        if isinstance(reply, NewtonReply):
            count, bends = int(message.models), int(message.bends)
            require_convex(parts.pop("curvature")[:bends], k)
        elif isinstance(self.algorithm, FoldSolves):
            count = int(message.active)
            require_convex(parts.pop("curvature")[:count], k)
        else:
            count = 1
            parts = {name: value[None] for name, value in parts.items()}
            require_convex(parts.pop("curvature"), k)
        parts = {name: value[:count] for name, value in parts.items()}
        self._require_signs(parts)
        x = np.atleast_2d(np.asarray(message.x))[:count]
        everything = 0 if self.deal is None else self.deal.folds
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
            rows = None if whole else (self.deal, one)
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
