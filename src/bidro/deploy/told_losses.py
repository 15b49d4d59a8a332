"""What a client says of a model's losses must fit together, and fit what it has told of its rows.

Losses that are not negative have a standard error of at most their mean (twice that for units), and the mean
of the largest of N is between the mean and N times it. A risk over a ball is no smaller than the mean loss,
and grows with the radius. A confidence bound from n losses is no smaller than that of n losses that are all
their mean, and for mistakes it follows from their number.
"""

from __future__ import annotations

import numpy as np

from bidro.arrays import Floats
from bidro.deploy.consistency import Told
from bidro.deploy.told_risks import Columns, require
from bidro.errors import BidroError
from bidro.federation import LARGEST_SIZE
from bidro.fitting.client_side import STATEMENTS
from bidro.fitting.questions import Assess, Assessment, Fixed, HoldoutBounds
from bidro.guarantees.held_out import client_bounds
from bidro.guarantees.statements import Assessed
from bidro.losses import Loss, Squared
from bidro.problem import Problem

# What rounding can do to a mean that is told twice, as a share of the sizes of its terms.
_SAME = 1e-6
# On the rows that it was trained on, an own model's loss, of which kinks are smoothed, is not above that of
# the shared model by more than this factor.
_NO_BETTER = 2.0


def require_assessment(
    own: Told, problem: Problem, eps: float, message: Assess, reply: Assessment, behind: int
) -> None:
    """Raise BidroError where losses on training rows contradict themselves or earlier replies; `eps` is the
    client's radius."""
    if behind > own.rows:
        raise BidroError(f"it tells of {behind} rows behind a reply, and of {own.rows} in all.")
    x, loss = np.asarray(message.x), float(reply.loss)
    nonnegative = problem.loss.nonnegative or problem.loss.endless
    if nonnegative:
        _require_error(loss, float(reply.se), own.rows, own.has_units)
        _not_negative(reply, ("own_loss",))
    allowed = own.columns.allowed(problem.loss, x[None])
    if allowed is not None:
        require(
            np.array([loss]), allowed.risk, "a mean loss of {0:.6g}, where its columns allow at most {1:.6g}"
        )
    _require_trained(own, problem, x, loss)
    if not np.asarray(message.freedom).any():
        _require_shared(loss, float(reply.own_loss))
    elif allowed is not None:
        # An own model is trained on these very rows, and only to do better on them.
        most = np.array([_NO_BETTER * loss]) + _SAME * allowed.risk
        require(
            np.array([float(reply.own_loss)]),
            most,
            "a loss of {0:.6g} under its own model, where {1:.6g} is most",
        )
    _not_negative(reply, ("predicted", "robust", "distance", "typical"))
    _require_scores(own, problem.loss, message, reply)
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
            require(
                robust,
                np.full(robust.shape, bounded),
                "a robust risk of {0:.6g}, where the support allows at most {1:.6g}",
            )
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


def require_bounds(own: Told, of: Assessed, message: Fixed, reply: HoldoutBounds, behind: int) -> None:
    """Raise BidroError where losses on rows kept out contradict themselves or earlier replies."""
    units = own.holdout_units
    if behind > own.holdout:
        raise BidroError(f"it tells of {behind} rows behind a reply, and of {own.holdout} kept out.")
    loss, by_units = float(reply.loss), own.has_units
    if of.loss.nonnegative or of.loss.endless:
        _require_error(loss, float(reply.se), own.holdout, by_units)
        _not_negative(reply, ("own_loss", "means"))
    most = _bounded(own, of.loss, np.asarray(of.x))
    if of.largest is not None:
        most = float(of.largest)
    if most is not None:
        require(
            np.array([loss]),
            np.array([most * (1 + _SAME)]),
            "a mean loss of {0:.6g}, where no loss is above {1:.6g}",
        )
    if not np.asarray(message.freedom).any():
        _require_shared(loss, float(reply.own_loss))
    if np.asarray(reply.shared_change).size:
        shared, by_own = (np.asarray(part) for part in (reply.shared_change, reply.own_change))
        size = abs(loss) + abs(float(reply.own_loss)) + abs(float(shared[0])) + abs(float(by_own[0]))
        if abs((by_own[0] - shared[0]) - (float(reply.own_loss) - loss)) > _SAME * size:
            raise BidroError("it tells changes of its losses that are not those of its losses.")
        if (of.loss.nonnegative or of.loss.endless) and loss - shared[0] < -_SAME * size:
            raise BidroError("it tells that pooled training has losses below 0.")
        # That of a difference is at most the sum of those of its two parts.
        widest = (2.0 if by_units else 1.0) * (1 + _SAME) * np.array([loss, float(reply.own_loss)])
        widest = widest + (2.0 if by_units else 1.0) * (1 + _SAME) * abs(loss - shared[0])
        errors = np.array([shared[1], by_own[1]])
        if np.any(errors < 0) or np.any(errors > widest):
            raise BidroError("it tells standard errors of changes that losses of this size cannot have.")
    _require_statements(of, message, reply, units, by_units, loss)


def _require_statements(
    of: Assessed, message: Fixed, reply: HoldoutBounds, units: int, by_units: bool, loss: float
) -> None:
    """Each bound against its mean, the levels, and what so many draws can say."""
    levels, means = np.asarray(message.levels), np.asarray(reply.means)
    for mean, part in zip(means.tolist(), STATEMENTS, strict=True):
        bounds = np.asarray(getattr(reply, part))
        if not bounds.size:
            if mean != 0:
                raise BidroError("it tells the mean of a statement that was not asked for.")
            continue
        wrong = part in ("mistakes", "own_mistakes")
        largest = 1.0 if wrong else float(of.largest if part == "held_out" else of.seen)  # type: ignore[arg-type]
        if not 0 <= mean <= largest * (1 + _SAME):
            raise BidroError(
                f"it tells a mean of {mean:.6g}, where nothing counts as more than {largest:.6g}."
            )
        if part == "clipped" and not by_units and abs(mean - loss) > _SAME * loss + 1e-300:
            raise BidroError(
                f"it tells a mean loss of {loss:.6g} on rows kept out, and of {mean:.6g} with large ones "
                "cut, which they are in both."
            )
        if part == "held_out" and not by_units and mean < loss * (1 - _SAME):
            raise BidroError(
                f"it tells a mean loss of {mean:.6g} on rows kept out, and of {loss:.6g} with large ones cut."
            )
        count = mean * units
        if wrong and not by_units and abs(count - round(count)) > 1e-3:
            raise BidroError(f"it tells a share of mistakes of {mean:.6g}, which {units} rows cannot have.")
        kind = "clopper-pearson" if wrong and not by_units else "betting"
        draws = np.full(units, min(mean, largest))
        if kind == "clopper-pearson":
            draws = (np.arange(units) < round(count)).astype(float)
        least = np.array([one.bound for one in client_bounds("it", draws, levels.tolist(), largest, kind)])  # type: ignore[arg-type]
        require(
            least - _SAME * largest,
            bounds,
            "that its true mean is at most {1:.6g}, where so many rows can say no less than {0:.6g}",
        )
        require(
            bounds,
            np.full(bounds.shape, largest * (1 + _SAME)),
            "a bound of {0:.6g}, where nothing counts as more than {1:.6g}",
        )
        if kind == "clopper-pearson":
            require(
                bounds, least + _SAME, "a bound of {0:.6g} on its mistakes, which by their number is {1:.6g}"
            )


def _require_error(mean: float, error: float, rows: int, by_units: bool) -> None:
    """A mean of `rows` numbers that are not negative, and its standard error."""
    if mean < 0:
        raise BidroError(f"it tells a mean loss of {mean:.6g}, below 0.")
    if not 0 <= error <= (2.0 if by_units else 1.0) * mean * (1 + _SAME) or (rows == 1 and error > 0):
        raise BidroError(
            f"it tells a mean loss of {mean:.6g} with a standard error of {error:.6g}, which none has."
        )


def _not_negative(reply: Assessment | HoldoutBounds, names: tuple[str, ...]) -> None:
    for name in names:
        part = np.asarray(getattr(reply, name))
        if np.any(part < 0):
            raise BidroError(f"it tells {part.min():.6g} as its '{name}', which is below 0.")


def _require_shared(loss: float, own: float) -> None:
    if abs(loss - own) > _SAME * abs(loss):
        raise BidroError(
            f"it tells a loss of {own:.6g} under its own model, which is the shared one, with {loss:.6g}."
        )


def _require_trained(own: Told, problem: Problem, x: Floats, loss: float) -> None:
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


def _require_scores(own: Told, loss: Loss, message: Assess, reply: Assessment) -> None:
    """The spread and the means of the scores of the model, and of pooled training."""
    if not np.asarray(reply.predicted).size:
        return
    for model, spread, centre in zip((message.x, message.pooled), reply.predicted, reply.centre, strict=True):
        w, b = loss.split(np.asarray(model))  # type: ignore[attr-defined]
        size = own.moments.sizes(getattr(loss, "basis", None))[:-1]
        most = 1.01 * float(np.sum(np.abs(np.atleast_2d(w)) @ size)) + 1e-12
        if float(spread) > (2 * most) ** 2 or np.any(np.abs(centre) > 2 * (most + float(np.sum(np.abs(b))))):
            raise BidroError("it tells predictions that lie further apart than its columns allow.")


def _require_distance(own: Told, problem: Problem, message: Assess, reply: Assessment) -> None:
    """W_p between the rows and a cloud is at most the sizes of both together, where all columns can move."""
    scale = np.asarray(problem.transport.scale)
    if not np.asarray(reply.distance).size or not np.all(np.isfinite(scale)) or problem.transport.p > 2:
        return
    if problem.transport.discrete_label:
        return
    cloud = float(np.max(np.linalg.norm(scale * np.asarray(message.reference), axis=1)))
    most = 1.01 * (cloud + float(np.linalg.norm(scale * own.columns.size)))
    require(
        np.asarray(reply.distance),
        np.array([most]),
        "a distance of {0:.6g}, where its columns allow at most {1:.6g}",
    )


def _bounded(own: Told, loss: Loss, x: Floats) -> float | None:
    """What no mean loss at x is above by the agreed bounds, or as no table holds larger numbers; None where
    nothing is known."""
    (centre, spread), (lower, upper) = own.moments.units, own.moments.values.ends
    ends = [np.clip(end, -LARGEST_SIZE, LARGEST_SIZE) - centre for end in (lower, upper)]
    limit = Columns(np.max(np.abs(ends), axis=0) / spread)
    found = limit.allowed(loss, x[None])
    return None if found is None else float(found.risk[0])
