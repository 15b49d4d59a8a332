"""Minimax by Newton's method over a `RiskOracle`, many solves at once.

    min over x in X of max over alpha in A of sum_i alpha_i R_i(x)

At a model x, with risks R (n,), their gradients G (n, d) and H the mixture of their second derivatives, the
next weights maximise <alpha, R> - 1/2 (G' alpha)' H^-1 (G' alpha) over A, and the step is -H^-1 G' alpha:
that of a sequential quadratic method. The maximum over A is found from its corners (Wolfe 1976), of which one
more is looked for at a time, so that the cost grows with clients only as that of a sorted list does. Where
risks rise with nu = max_p N_p, the norms are mixed as the risks are: a corner is one of A and one norm.

A certified search stops by a bound: risks are convex, so that for any alpha in A and s = G' alpha

    min over X >= <alpha, R> + min over y in X of <s, y - x>,

which is worth little before s is nearly 0 and nearly all afterwards; coordinates at an edge of X to which
they fall are held there (Bertsekas 1982). Where steps find no such point (x is at a kink) the bound says so,
and the bundle method goes on from there. For cross-validation a search stops where its steps promise less
than the gap, and a last step that is as good as sure is not checked; near a kink of a norm a step goes to the
minimax of the risks' quadratic models in (x, nu), with norms smoothed over less and less.

Each solve is a generator that asks for its risks at one model after the other, so that those of many solves
are expanded in one batch: one pass over rows, or one round with clients elsewhere.

References: Philip Wolfe. Finding the nearest point in a polytope. Mathematical Programming 11, 1976. Dimitri
P. Bertsekas. Projected Newton Methods for Optimization Problems with Simple Constraints. SIAM Journal on
Control and Optimization 20, 1982.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrtrs

from bidro.core.arrays import one_thread
from bidro.core.sets import Ball, Box, MixtureSet
from bidro.core.sets.base import Constraints
from bidro.risk.oracle import Expansion, InModel, Lift, QuadraticRisks, RiskOracle
from bidro.solvers.references import NO_REFERENCES, References

Numbers = NDArray[np.float64]

_MOST_STEPS = 100
# A step is shortened so often. In a search without proof every one may take a round: the bundle
# method soon goes on.
_MOST_SHORTENED, _MOST_SHORTENED_UNPROVEN = 12, 4
# It is shortened to between these shares of what it was, found by so many sections of the interval.
_SHORTEST, _LONGEST, _SECTIONS = 0.02, 0.7, 12
# Where steps of a search without proof fail, so much of the Hessian is that of all clients alike, then ten
# times as much, up to the second share.
_LEAST_OF_EVERYONE, _MOST_OF_EVERYONE = 1e-4, 0.5
# Which coordinates an edge of X holds is found in so many passes.
_MOST_HELD = 10
# A step must bring this share of what its model promises.
_ENOUGH = 1e-4
# Of a search without proof: factors serve while the weights that they are of differ by no more than the first
# number in all, and where steps have not brought what they promised, than the second.
_TURNED, _TURNED_LITTLE = 0.3, 1e-3
# Near the solution steps bring nothing but a smaller s; risks are compared up to this.
_ROUNDING = 1e-14
# Weights are found to this share of the gap that is wanted; where that hides what a step brings, to a smaller
# one, down to the least.
_SHARE_FOR_WEIGHTS, _LEAST_SHARE = 1e-2, 1e-10
_MOST_CORNERS = 400
# Slopes over the root of the Hessian are squared and summed: beyond this there is no curvature to divide by.
_LARGEST_IMAGE = 1e140
# Of a search without proof: a step is the last where it promises less than the first multiple of the gap and
# the one before brought what it promised within the second share; Hessians stay where within the third.
_LAST, _RIGHT, _SAME_HESSIAN = 8.0, 0.15, 0.02
# Around a model, nu is smoothed over what changes the risks by this share of them at first, then by less, and
# at last by the third share of the gap.
_FIRST_SMOOTHING, _LESS_SMOOTH, _INNER_GAP, _MOST_INNER = 0.1, 20.0, 0.1, 80
# Where nu adds less than this share to the risks, the minimum may lie at its kink.
_NEAR_KINK = 1e-2
# Risks below this share of the first model's count as that share.
_SMALL = 1e-4
# A loss whose infimum is at infinity falls by a factor e a step where classes are separable. Below this
# share of the first model's risk that is taken for granted, and the model goes out along its own direction to
# where the risk would be the second share: about where the bundle method stops.
_VANISHING, _VANISHED = 1e-3, 1e-12


class Minimax(NamedTuple):
    """Where a search ended."""

    x: Numbers  # (d,)
    alpha: Numbers  # (n,) in A
    upper: float  # the worst mixture of the risks at x, references taken off
    lower: float  # no model of X has less; -inf of a search without proof
    size: float  # a mean risk at x: what gaps are relative to
    first: float  # that of the model that was begun with, or one that was given
    settled: bool  # whether the search ended as it should
    curved: Curvature | None = None  # of a search without proof: its last
    wrong: float = np.inf  # and by which share its last step but one brought less, or more, than promised

    def reaches(self, gap: float) -> bool:
        return self.upper - self.lower <= gap * self.size


class _Request(NamedTuple):
    x: Numbers  # (d,) where risks are wanted
    curved: bool  # with Hessians


class _Factor(NamedTuple):
    """L L' = the mixture of second derivatives, over the coordinates that no edge of X holds."""

    weights: Numbers  # (n + P,) of risks and norms, as in `Mix`
    free: NDArray[np.bool_]  # (d,)
    L: Numbers  # (free, free) lower, above its diagonal whatever was there


@dataclass(eq=False)
class Curvature:
    """Second derivatives around a model, which solves of one candidate share over folds and radii, and the
    factor that was last made of them. What steps are divided by need not be exact: they are checked against
    what they promise, and the factor serves as long as weights turn little."""

    expansion: Expansion
    b: int
    factor: _Factor | None = None

    def divisor(
        self, here: InModel, weights: Numbers, free: NDArray[np.bool_], turned: float
    ) -> _Factor | None:
        """Of these weights (n + P,), or such as differ by at most `turned` in all; None where the matrix
        cannot be divided by."""
        known = self.factor
        if (
            known is not None
            and np.abs(known.weights - weights).sum() <= turned
            and np.array_equal(known.free, free)
        ):
            return known
        n = len(here.values)
        H = here._replace(expansion=self.expansion, b=self.b).hessian(
            weights[:n], weights[n:] if len(weights) > n else None
        )
        # The transpose of what is symmetric has LAPACK's order, and is factored in its own memory.
        L, failed = dpotrf(H.T if free.all() else H[np.ix_(free, free)].T, lower=1, clean=0, overwrite_a=1)
        if failed:
            return None
        self.factor = _Factor(weights, free, L)
        return self.factor


# What a solve is sent: the expansion, which of its models is the solve's, and the curvature there.
_Search = Generator[_Request, tuple[Expansion, int, Curvature], Minimax]


def minimax_newton(
    oracle: RiskOracle,
    models: Box | Ball,
    mixtures: Sequence[MixtureSet],
    starts: Numbers,
    weights: Numbers,
    gap: float,
    references: References = NO_REFERENCES,
    certified: bool = True,
    infimum_at_infinity: Sequence[bool] | None = None,
    neighbours: Sequence[Minimax | None] | None = None,
    most_rounds: int = 10 * _MOST_STEPS,
    progress: Callable[[int], None] | None = None,
) -> list[Minimax]:
    """Solve one problem a view of the oracle, all of them in the same batches.

    Args:
        oracle: the risks; its views by fold or scale, if it has any, are one a solve.
        models: X.
        mixtures: A of every solve.
        starts: (B, d) models to begin with.
        weights: (B, n) in A, to begin with.
        gap: the relative gap to be reached.
        references: taken off the risks.
        certified: whether searches end by a proven bound; else where steps promise less than the gap.
        infimum_at_infinity: of which solves risks may fall to 0 as models go to infinity; by default none.
        neighbours: where searches without proof begin with what a like one ended with: its Hessians, until
            they fail, and what its risks are small beside.
        most_rounds: batches at the most.
        progress: called after every batch with how many solves go on.

    Returns:
        One result a solve.
    """
    nothing: Sequence[None] = [None] * len(starts)
    searches: list[_Search] = [
        _searched(oracle.lift, models, own, x, alpha, gap, references)
        if certified
        else _predicted(oracle.lift, models, own, x, alpha, gap, references, far, neighbour)
        for own, x, alpha, far, neighbour in zip(
            mixtures,
            starts,
            weights,
            infimum_at_infinity or [False] * len(starts),
            neighbours or nothing,
            strict=True,
        )
    ]
    with one_thread(starts.shape[1]):
        return _ended(oracle, searches, most_rounds, progress)


def _ended(
    oracle: RiskOracle, searches: list[_Search], most_rounds: int, progress: Callable[[int], None] | None
) -> list[Minimax]:
    """Where all searches end, or have come to after so many batches."""
    found: list[Minimax | None] = [None] * len(searches)
    going = {j: next(search) for j, search in enumerate(searches)}
    for _ in range(most_rounds):
        which = np.array(list(going))
        view = oracle if len(which) == len(searches) else oracle.only(which)
        curved = np.array([request.curved for request in going.values()])
        there = view.expand(np.stack([request.x for request in going.values()]), curved)
        shared = dict[int, Curvature]()
        for place, j in enumerate(which.tolist()):
            around = shared.setdefault(there.curved_at(place), Curvature(there, place))
            try:
                going[j] = searches[j].send((there, place, around))
            except StopIteration as ended:
                found[j] = ended.value
                del going[j]
        if progress is not None:
            progress(len(going))
        if not going:
            break
    for j in going:
        try:
            searches[j].throw(TimeoutError)
        except StopIteration as ended:
            found[j] = ended.value
    return [one for one in found if one is not None]


def _searched(
    lift: Lift,
    models: Box | Ball,
    mixtures: MixtureSet,
    x: Numbers,
    alpha: Numbers,
    gap: float,
    references: References,
) -> _Search:
    """Ends where the relative gap is proven to be at most `gap`, or where steps bring nothing any more."""
    best = Minimax(x, alpha, np.inf, -np.inf, np.inf, np.inf, False)
    share, mix = _SHARE_FOR_WEIGHTS, Mix.of(lift, x, alpha)
    try:
        there, b, around = yield _Request(x, True)
        here, limits = lift.chained(there, b, x), models.constraints()
        for _ in range(_MOST_STEPS):
            pieces = _Pieces.of(here, references)
            R = pieces.R
            upper = float(mixtures.linear_maximum(R)[0])
            value, s = pieces.linear(mix)
            lower = value - float(s @ x) - float(models.linear_maximum(-s)[0])
            if lower >= best.lower:
                best = best._replace(alpha=mix.mean[: len(R)], lower=lower)
            best = best._replace(x=x, upper=upper, size=references.risk(upper))
            if best.reaches(gap):
                return best._replace(settled=True)
            enough = share * min(gap, 1e-5) * best.size
            found = _step(limits, mixtures, x, pieces, mix, enough, around)
            if found is None:
                return best
            mix, step, reached = found
            promised = upper - reached
            moved = None
            for _ in range(_MOST_SHORTENED):
                trial = np.asarray(models.project(x + step))
                there, b, around_trial = yield _Request(trial, True)
                ahead = references.off(there.values[b])
                reached = float(mixtures.linear_maximum(ahead)[0])
                if reached <= upper * (1 + _ROUNDING) + _ROUNDING * references.mean - _ENOUGH * promised:
                    moved = trial, lift.chained(there, b, trial), around_trial
                    break
                length, least = _shorter(mixtures, R, here.gradients @ (trial - x), ahead)
                step, promised = length * step, length * promised
                if upper - least < _ENOUGH * promised:
                    break
            if moved is None:
                if share <= _LEAST_SHARE:
                    return best
                share *= 1e-4
                continue
            x, here, around = moved
    except TimeoutError:
        pass
    return best


def _predicted(
    lift: Lift,
    models: Box | Ball,
    mixtures: MixtureSet,
    x: Numbers,
    alpha: Numbers,
    gap: float,
    references: References,
    infimum_at_infinity: bool,
    neighbour: Minimax | None,
) -> _Search:
    """Ends where a step promises less than a relative `gap`: without proof, for the choice among models."""
    first, curved, wrong = None, None, np.inf
    if neighbour is not None:
        first, curved, wrong = neighbour.first, neighbour.curved, neighbour.wrong
    mix, expected, stuck = Mix.of(lift, x, alpha), np.inf, not lift.smooth
    everyone, turned, limits = 0.0, _TURNED, models.constraints()
    ended = Minimax(x, alpha, np.inf, -np.inf, np.inf, np.inf, False)
    try:
        there, b, around = yield _Request(x, curved is None)
        curved = curved or around
        R = references.off(there.values[b])
        upper = float(mixtures.linear_maximum(R)[0])
        while True:
            risk = references.risk(upper)
            first = abs(risk) if first is None else first
            size = max(abs(risk), _SMALL * first)
            ended = Minimax(x, mix.mean[: len(R)], upper, -np.inf, size, first, False, curved, wrong)
            if size == 0:
                return ended._replace(settled=True)  # nothing is lost, and there was nothing to lose
            if infimum_at_infinity and risk < _VANISHING * first:
                return ended._replace(x=_far_out(models, x, risk / first), settled=True)
            # What nu adds to the risks; near 0 it has a kink.
            steep = float(there.gradients[b][:, len(x)].max()) if lift.cones else 0.0
            near_kink = steep > 0 and (stuck or steep * float(lift.at(x)) <= _NEAR_KINK * size)
            here = lift.chained(there, b, x)
            if near_kink:
                known = there.values[b], there.gradients[b], curved.expansion.hessians(curved.b)
                quadratic = QuadraticRisks(lift.lifted(x), *known, lift)
                enough, most = _INNER_GAP * gap * size, min(expected, _FIRST_SMOOTHING * size)
                trial, mix = quadratic_minimax(quadratic, models, mixtures, x, mix, enough, most, references)
                reached = float(mixtures.linear_maximum(references.off(quadratic.values(trial[None])[0]))[0])
                promised = expected = upper - reached
            else:
                pieces = _Pieces.of(here, references)
                enough = _SHARE_FOR_WEIGHTS * gap * size
                found = _step(limits, mixtures, x, pieces, mix, enough, curved, everyone, turned)
                if found is None:
                    if everyone >= _MOST_OF_EVERYONE:
                        return ended
                    # Those with weight have no curvature here, as where all residuals are large.
                    everyone = max(10 * everyone, _LEAST_OF_EVERYONE)
                    continue
                mix, step, reached = found
                trial = np.asarray(models.project(x + step))
                promised = upper - reached
            if promised <= (_LAST if wrong < _RIGHT else 1.0) * gap * size:
                return ended._replace(x=trial, alpha=mix.mean[: len(R)], settled=True)
            at_x, moved = (there, b, around), False
            for shortened in range(_MOST_SHORTENED_UNPROVEN):
                renewed = wrong > _SAME_HESSIAN
                there, b, around = yield _Request(trial, renewed)
                ahead = references.off(there.values[b])
                reached = float(mixtures.linear_maximum(ahead)[0])
                moved = upper - reached >= _ENOUGH * promised - 1e-11 * abs(risk)
                if moved:
                    break
                length, least = _shorter(mixtures, R, here.gradients @ (trial - x), ahead)
                trial, promised, wrong = x + length * (trial - x), length * promised, np.inf
                # The minimum lies at a kink of nu, or near one.
                stuck |= shortened > 0
                if upper - least < _ENOUGH * promised:
                    break
            if not moved:
                # Few clients have weight, and do not hold the step where others would.
                if near_kink or everyone >= _MOST_OF_EVERYONE:
                    return ended
                everyone = max(10 * everyone, _LEAST_OF_EVERYONE)
                there, b, around = at_x
                continue
            wrong = abs((upper - reached) / promised - 1) if promised > 0 else 0.0
            if wrong > _SAME_HESSIAN:
                turned = _TURNED_LITTLE
                if renewed:
                    curved = around
            x, R, upper = trial, ahead, reached
    except TimeoutError:
        return ended


def quadratic_minimax(
    risks: QuadraticRisks,
    models: Box | Ball,
    mixtures: MixtureSet,
    x: Numbers,
    mix: Mix,
    enough: float,
    expected: float,
    references: References = NO_REFERENCES,
) -> tuple[Numbers, Mix]:
    """(model, weights): the minimax of risks that are quadratic in (x, nu), to a few times `enough`, from x.
    Norms, which have kinks, are smoothed over less and less, at first by what changes the risks by as much as
    is expected to be gained."""
    lift, d, limits = risks.lift, len(x), models.constraints()
    steep = float(np.max(risks.gradient[:, d])) * lift.overshoot
    least = enough / steep
    delta = max(min(expected / steep, 1e3 + float(risks.z[d])), least)

    for _ in range(_MOST_INNER):
        nu = lift.smoothed(x, delta)
        there_x = risks.at(np.append(x, nu.nu)[None])
        here = lift.chained(there_x, 0, x, nu)
        pieces = _Pieces.of(here, references)
        upper = float(mixtures.linear_maximum(pieces.R)[0])
        found = _step(limits, mixtures, x, pieces, mix, 1e-2 * enough, Curvature(there_x, 0))
        if found is None:
            break
        mix, step, reached = found
        promised = upper - reached
        if promised <= 0.5 * max(enough, steep * delta):
            if delta <= least:
                break
            delta = max(delta / _LESS_SMOOTH, least)
            continue
        for _ in range(_MOST_SHORTENED):
            trial = np.asarray(models.project(x + step))
            there = references.off(risks.at(np.append(trial, lift.smoothed_at(trial, delta))[None]).values[0])
            reached = float(mixtures.linear_maximum(there)[0])
            if upper - reached >= _ENOUGH * promised - 1e-13 * abs(upper):
                x = trial
                break
            length, _ = _shorter(mixtures, pieces.R, here.gradients @ (trial - x), there)
            step, promised = length * step, length * promised
        else:
            break
    return x, mix


class Mix(NamedTuple):
    """Weights alpha (n,) in A, with shares of the norms in nu where there are P > 1 (else P is 0 here), and
    the corners that they mix."""

    mean: Numbers  # (n + P,) alpha, and the shares
    corners: Numbers  # (corners, n + P)

    @classmethod
    def of(cls, lift: Lift, x: Numbers, alpha: Numbers) -> Mix:
        mean = np.append(alpha, lift.top(x))
        return cls(mean, mean[None])


class _Pieces(NamedTuple):
    """Risks and norms around a model, as the mixtures' maximum of linear functions."""

    here: InModel
    R: Numbers  # (n,) the risks without references
    values: Numbers  # (n + P,) these, and how far the norms are below nu
    slopes: Numbers  # (n + P, d)

    @classmethod
    def of(cls, here: InModel, references: References) -> _Pieces:
        R, steep = references.off(here.values), here.steep
        if steep is None or len(steep.norms) == 1:  # one norm is nu itself
            return cls(here, R, R, here.gradients)
        return cls(here, R, np.append(R, steep.norms - steep.nu), np.vstack([here.in_x, steep.slopes]))

    def weights(self, corners: Numbers) -> Numbers:
        """(..., n + P) of risks and norms: the shares of norms count by how risks rise with nu."""
        if len(self.values) == len(self.R):
            return corners
        alpha, share = corners[..., : len(self.R)], corners[..., len(self.R) :]
        return np.concatenate([alpha, (alpha @ self.here.in_nu)[..., None] * share], axis=-1)

    def linear(self, mix: Mix) -> tuple[float, Numbers]:
        """(value, slope (d,)) of what the mixture is at least, around the model."""
        weights = self.weights(mix.mean)
        return float(weights @ self.values), weights @ self.slopes

    def support(self, mixtures: MixtureSet, c: Numbers) -> tuple[float, Numbers]:
        """(the largest <c, weights>, the corner (n + P,) that attains it)."""
        n = len(self.R)
        if len(c) == n:
            most, alpha = mixtures.linear_maximum(c)
            return float(most), np.asarray(alpha)
        top = np.argmax(c[n:])
        most, alpha = mixtures.linear_maximum(c[:n] + self.here.in_nu * c[n + top])
        return float(most), np.append(alpha, np.arange(len(c) - n) == top)


def _step(
    limits: Constraints,
    mixtures: MixtureSet,
    x: Numbers,
    pieces: _Pieces,
    mix: Mix,
    enough: float,
    curved: Curvature,
    everyone: float = 0.0,
    turned: float = 0.0,
) -> tuple[Mix, Numbers, float] | None:
    """(weights, step, what the worst mixture comes to by its quadratic model); None where the mixed Hessian
    cannot be divided by. A share of the Hessian is that of `everyone`, all clients alike; it may be that of
    weights that differ by `turned`."""
    here, n = pieces.here, len(pieces.R)
    held = _held(limits, x, pieces.linear(mix)[1])
    for _ in range(_MOST_HELD):
        free, weights = ~held, mix.mean
        if everyone:
            weights = np.append((1 - everyone) * weights[:n] + everyone / n, weights[n:])
        factor = curved.divisor(here, weights, free, turned)
        if factor is None:
            return None
        # (free, n + P)
        image = dtrtrs(factor.L, (pieces.slopes if free.all() else pieces.slopes[:, free]).T, lower=1)[0]
        if not np.abs(image).max(initial=0.0) < _LARGEST_IMAGE:
            return None
        mix = _best_mix(mixtures, pieces, image, mix.corners, enough)
        value, slope = pieces.linear(mix)
        # By these weights others may be held, or fewer.
        before, held = held, _held(limits, x, slope)
        if (before == held).all():
            break
    step = np.zeros(len(x))
    assert factor is not None
    ahead = image @ pieces.weights(mix.mean)
    step[free] = -dtrtrs(factor.L, ahead, lower=1, trans=1)[0]
    return mix, step, value + 0.5 * float(slope @ step)


def _shorter(mixtures: MixtureSet, R: Numbers, slopes: Numbers, ahead: Numbers) -> tuple[float, float]:
    """(share of a failed step, worst mixture) where that is least, if risks that are R (n,) with `slopes`
    (n,) along the step before it and `ahead` (n,) after it are quadratic between."""
    curvature = np.maximum(ahead - R - slopes, 0.0)

    def worst(length: float) -> float:
        return float(mixtures.linear_maximum(R + length * slopes + length**2 * curvature)[0])

    golden = (math.sqrt(5) - 1) / 2
    low, high = _SHORTEST, _LONGEST
    left, right = high - golden * (high - low), low + golden * (high - low)
    of_left, of_right = worst(left), worst(right)
    for _ in range(_SECTIONS):
        if of_left <= of_right:
            high, right, of_right = right, left, of_left
            left = high - golden * (high - low)
            of_left = worst(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + golden * (high - low)
            of_right = worst(right)
    return ((low + high) / 2, worst((low + high) / 2))


def _held(limits: Constraints, x: Numbers, slope: Numbers) -> NDArray[np.bool_]:
    """(d,) which coordinates are at a bound of X to which they fall: they stay there."""
    return np.asarray(((x <= limits.lower) & (slope > 0)) | ((x >= limits.upper) & (slope < 0)))


def _far_out(models: Box | Ball, x: Numbers, share: float) -> Numbers:
    """The model along its own direction at which the risk, now so much of the first, is `_VANISHED` of it."""
    far = np.log(_VANISHED) / np.log(max(share, _VANISHED))
    return np.asarray(models.project(far * x))


def _best_mix(mixtures: MixtureSet, pieces: _Pieces, image: Numbers, corners: Numbers, enough: float) -> Mix:
    """The mixture whose weights w maximise <w, values> - 1/2 ||image w||^2 up to `enough`, begun with these
    corners.

    The maximum over the corners known is taken; where the objective rises most beyond them, the corner there
    becomes one of them.
    """
    r, share, weights = pieces.values, np.full(len(corners), 1 / len(corners)), pieces.weights(corners)
    images, values = weights @ image.T, weights @ r
    for _ in range(_MOST_CORNERS):
        share, kept = _mixed(values, images, share)
        if len(kept) < len(corners):
            corners, weights, images, values = corners[kept], weights[kept], images[kept], values[kept]
        rise = r - (share @ images) @ image
        most, corner = pieces.support(mixtures, rise)
        if not most - float(share @ (weights @ rise)) > enough:
            break
        # The maximum over it is known as well as rounding allows, as where columns are collinear.
        if (corners == corner).all(axis=1).any():
            break
        added = pieces.weights(corner)
        corners, weights = np.vstack([corners, corner]), np.vstack([weights, added])
        images, values = np.vstack([images, image @ added]), np.append(values, added @ r)
        share = np.append(share, 0.0)
    # Weights of norms mix as weights of risks do, so that shares count by the risks' rise.
    n, mean = len(pieces.R), share @ corners
    if len(mean) > n:
        rises = share * (corners[:, :n] @ pieces.here.in_nu)
        if rises.sum() > 0:
            mean[n:] = rises @ corners[:, n:] / rises.sum()
    return Mix(mean, corners)


def _mixed(values: Numbers, images: Numbers, share: Numbers) -> tuple[Numbers, NDArray[np.int64]]:
    """(shares, of which points) that maximise <share, values> - 1/2 ||share images||^2 over mixtures of the
    points, or of those of them that are left: on the way from `share` to the maximum without signs, a point
    whose share comes to 0 is left out."""
    kept = np.arange(len(share))
    if len(kept) == 1:
        return np.ones(1), kept
    squares = images @ images.T
    squares.flat[:: len(share) + 1] += 1e-13 * np.trace(squares) + np.finfo(float).tiny
    system = np.ones((len(share) + 1, len(share) + 1))
    system[:-1, :-1], system[-1, -1] = squares, 0.0
    target = np.append(values, 1.0)
    while len(kept) > 1:
        wanted = np.linalg.solve(system, target)[:-1]
        falls = wanted < 0
        if not falls.any():
            return wanted / wanted.sum(), kept
        here = share[kept]
        far = np.where(falls, here / np.where(falls, here - wanted, 1.0), np.inf)
        first = int(np.argmin(far))
        share[kept] = np.maximum(here + far[first] * (wanted - here), 0.0)
        left = np.arange(len(system)) != first
        kept, system, target = kept[left[:-1]], system[left][:, left], target[left]
    return np.ones(1), kept
