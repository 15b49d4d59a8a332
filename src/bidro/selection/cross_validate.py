"""Cross-validation inside clients: every candidate on every fold's training rows and on all rows, and its
losses on the rows that folds leave out.

A candidate is a scale c of the radii, eps_i = c spread N_i^-1/2 beyond the client's own radius, a largest
weight ratio kappa on the weights, and a share mu of the weight that may leave the clients' proportions. The
loop is one: a `RiskOracle` without a fold, solved from where a neighbour ended. Where its risks come from
decides how many solves go together: from second moments or rows here, candidates one after the other, each
begun where the one before it ended; from clients elsewhere all at once, since every batch is a round. Risks
with kinks, and solves that Newton's method does not settle, are the bundle method's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bidro.core.sets import Ball, Box, MixtureSet
from bidro.federated.engines.in_process import HostClients
from bidro.federated.engines.rounds import Ask, FoldSpec, Rounds
from bidro.losses import LinearLoss, Loss, Squared, has_curves
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact, Oracle
from bidro.risk.moments import (
    Moments,
    MomentsOracle,
    TrainingMoments,
    left_out_sums,
    of_all_folds,
    of_some,
    smooth,
    smoothed,
    worth_their_memory,
)
from bidro.risk.oracle import NO_LIFT, Lift, RiskOracle, Views
from bidro.risk.rows_curves import CurveOracle, CurveRows
from bidro.risk.rows_numpy import RowsOracle, needs_no_search
from bidro.selection.fold_queries import FoldMoments, FoldScores, MomentsBroadcast, ScoresBroadcast
from bidro.selection.replies import FoldClients, RepliesOracle
from bidro.selection.rule import MixtureSpec
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.one_shot import risks_from_moments
from bidro.solvers.bundle.state import Reply as Cut
from bidro.solvers.bundle.state import State
from bidro.solvers.minimax_newton import Minimax, minimax_newton
from bidro.solvers.references import References

Numbers = NDArray[np.float64]

# Newton's method solves to these gaps, by where risks come from, and the bundle method to the last: good
# enough to choose by, and no closer where a step is a round or a pass over the rows.
_FROM_REPLIES, _FROM_ROWS, _FROM_MOMENTS, _BUNDLE_GAP = 1e-5, 1e-6, 1e-8, 1e-3
# With curves, from rows, where Hessians are those of other weights and promise nothing: gaps that are proven,
# the second of the models of all rows, one of which is to be proven optimal.
_OF_CURVES, _OF_ALL_ROWS = 1e-5, 1e-8
# The bundle method goes on to this gap where Newton's method fails on second moments, as at an exact fit.
_FALLBACK_GAP = 1e-4
_MOST_ROUNDS, _MOST_BATCHES = 30, 20
# Where squared errors are below this share of the target's own spread, rounding hides bounds, and nothing is
# at stake.
_EXACT_FIT = 1e-6
# Second moments of the clients in one fold may take this many bytes.
_ONE_FOLD = 1 << 27


class Candidate(NamedTuple):
    scale: float  # c
    max_weight_ratio: float  # kappa: no client counts for more than kappa times its share; inf for no limit
    mixing: float = 1.0  # mu: the share of the weight that this is about; the rest is by the clients' shares

    @property
    def mixture_spec(self) -> MixtureSpec:
        """What A depends on."""
        return MixtureSpec(self.max_weight_ratio, self.mixing)


class SentMoments(NamedTuple):
    """The moments that clients have sent."""

    trained: TrainingMoments
    whole: Moments  # of all rows


class CrossValidated(NamedTuple):
    """Of every candidate."""

    models: Numbers  # (folds + 1, candidates, d): last those of all rows
    losses: Numbers  # (folds, n, candidates) mean losses over the rows of each fold
    rows: Numbers  # (folds, n) how many these are
    weights: Numbers | None  # (candidates, n) of the worst mixtures at the models of all rows, where known
    sent: SentMoments | None  # of squared loss, where clients have sent them
    rounds: int  # batches, or rounds with the clients


@dataclass(frozen=True, eq=False)
class _Solves:
    """What all solves have in common."""

    problem: Problem  # with balls of the clients' own radii
    candidates: tuple[Candidate, ...]
    folds: int
    spread: float

    @property
    def scales(self) -> Numbers:
        """(candidates,)"""
        return self.spread * np.array([one.scale for one in self.candidates])

    def mixtures(self, one: Candidate) -> MixtureSet:
        return one.mixture_spec.mixtures_of(self.problem.federation)

    @property
    def models(self) -> Box | Ball:
        """X, which balls leave as it is."""
        models = self.problem.domain
        assert isinstance(models, Box | Ball)
        return models

    @property
    def lift(self) -> Lift:
        """Without a radius nothing depends on the steepness, and risks count as functions of x alone."""
        problem = self.problem
        if not problem.lifted or not (np.any(problem.eps) or np.any(self.scales)):
            return NO_LIFT
        return Lift(problem.cones)

    def first(self, one: Candidate) -> tuple[Numbers, Numbers]:
        """(model, weights) to begin with."""
        shares = np.asarray(self.problem.federation.proportions)
        return np.asarray(self.problem.constant_model, float), np.asarray(self.mixtures(one).project(shares))


def cross_validate(
    problem: Problem,
    candidates: tuple[Candidate, ...],
    fold_spec: FoldSpec,
    spread: float,
    oracle: Oracle,
    network: Rounds,
    sends_curvature: bool = True,
    sent: TrainingMoments | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CrossValidated:
    """Solve every candidate without every fold and on all rows, and score it on the rows left out.

    Args:
        problem: with balls of the clients' own radii, beyond which candidates go; its mixtures do not matter.
        candidates: what is tried.
        fold_spec: how rows are dealt out to folds.
        spread: what radii are in units of.
        oracle: of inner problems without closed form.
        network: answers queries.
        sends_curvature: whether clients may send curvature and second moments.
        sent: moments that clients have sent before, of these rows and folds.
        progress: called with the rounds made and how many solves go on.

    Returns:
        The models, and their losses on rows left out.

    Raises:
        BidroError: where a risk is not finite, or some clients never reply.
    """
    solves = _Solves(problem, candidates, fold_spec.folds, spread)
    moving = bool(np.any(solves.scales))
    if second_moments_suffice(problem, sends_curvature):
        if sent is None and not moving and moments_too_large(problem, fold_spec.folds):
            return _from_curves(solves, problem.federation.folds(*fold_spec))
        rounds = 1
        if sent is None:
            sent, rounds = _sent(problem, fold_spec, network)
        found = _from_moments(solves, sent)
        if progress is not None:
            progress(rounds, 0)
        return found._replace(rounds=rounds)
    clients = FoldClients(network.clients_of(problem, fold_spec), progress)
    B = len(candidates) * (fold_spec.folds + 1)
    groups = np.repeat(np.arange(len(candidates)), fold_spec.folds + 1)
    folds = np.tile(np.append(np.arange(fold_spec.folds), -1), len(candidates))
    replies = RepliesOracle(
        clients,
        oracle,
        problem.n,
        fold_spec.folds,
        solves.lift,
        len(candidates),
        B,
        groups,
        Views(solves.scales[groups], folds),
    )
    if not sends_curvature or has_kinks(problem, moving):
        models = _by_bundle(solves, replies, sends_curvature)
    elif (rows := _rows_here(solves, clients.ask)) is not None:
        models = _from_rows(solves, rows, replies)
    else:
        models = _from_replies(solves, replies)
    shaped = np.moveaxis(models.reshape(len(candidates), fold_spec.folds + 1, -1), 0, 1)
    scores = clients.replies(FoldScores(), ScoresBroadcast(np.ascontiguousarray(shaped[:-1])))
    losses, counts = (np.moveaxis(np.asarray(part), 0, 1) for part in scores)
    return CrossValidated(shaped, losses, counts, None, None, clients.rounds)


# Risks from second moments.


def second_moments_suffice(problem: Problem, sends_curvature: bool) -> bool:
    """Whether cross-validation needs nothing of the clients but second moments."""
    return isinstance(problem.loss, Squared) and problem.with_balls().lifted and sends_curvature


def moments_too_large(problem: Problem, folds: int) -> bool:
    """Whether the second moments of every client and fold would be larger by far than the rows, which are
    here and give the same: of curves, and without radii."""
    federation = problem.federation
    if federation.rows_elsewhere or not has_curves(problem.loss) or np.any(problem.eps):
        return False
    columns = problem.loss.columns(federation.m)
    return not worth_their_memory(federation.n * folds, columns, federation.host_rows.nbytes)


def fold_moments(problem: Problem, fold_spec: FoldSpec, network: Rounds) -> TrainingMoments:
    """The second moments of every fold's training rows, where nothing else is needed."""
    return _sent(problem, fold_spec, network)[0]


def _sent(problem: Problem, fold_spec: FoldSpec, network: Rounds) -> tuple[TrainingMoments, int]:
    """(the second moments, rounds that they took)."""
    clients = FoldClients(network.clients_of(problem, fold_spec))
    return TrainingMoments(
        *map(np.asarray, clients.replies(FoldMoments(), MomentsBroadcast()))
    ), clients.rounds


def _from_moments(solves: _Solves, trained: TrainingMoments) -> CrossValidated:
    loss, problem = solves.problem.loss, solves.problem
    assert isinstance(loss, Squared)
    left_out, whole = left_out_sums(trained), of_all_folds(trained)
    counts, everything = np.asarray(trained.rows, float), left_out.rows.sum(axis=1)
    oracle = MomentsOracle.given(loss, smoothed(whole, loss), problem.eps, solves.lift, everything)
    models, losses = [], []
    of_all = _one_by_one(solves, oracle)
    for fold in range(solves.folds):
        own = smoothed(Moments(trained.mean[:, fold], trained.around[:, fold]), loss)
        oracle = MomentsOracle.given(loss, own, problem.eps, solves.lift, counts[:, fold])
        found = _one_by_one(solves, oracle, near=of_all).models
        models.append(found)
        losses.append(np.maximum(left_out.squares(fold, found), 0.0) / left_out.rows[:, fold, None])
    return CrossValidated(
        np.stack([*models, of_all.models]),
        np.stack(losses),
        left_out.rows.T,
        of_all.weights,
        SentMoments(trained, whole),
        1,
    )


def _from_curves(solves: _Solves, fold_ids: NDArray[np.int64]) -> CrossValidated:
    """Squared loss of curves without radii, whose second moments of every client and fold would be larger
    than the table by far: one fold at a time, from its moments, or from the rows where even these are too
    large."""
    loss, federation, folds = solves.problem.loss, solves.problem.federation, solves.folds
    assert isinstance(loss, Squared)
    rows = CurveRows(loss, federation.host_rows, np.asarray(federation.sizes))
    counts = np.stack([rows.by_client((fold_ids == fold).astype(float)) for fold in range(folds)])
    squares = None
    if 8 * rows.n * loss.columns(federation.m) ** 2 > _ONE_FOLD:
        # What is divided by is made of all other folds'.
        squares = np.stack([rows.squared((fold_ids == fold).astype(float)) for fold in range(folds)])
    models, losses = [], []
    of_all: _Ended | None = None
    for fold in (-1, *range(folds)):
        used = fold_ids != fold
        oracle: MomentsOracle | CurveOracle
        if squares is None:
            own = of_some(rows.samples, rows.sizes, used, loss)
            smooth(own, loss)
            oracle = MomentsOracle.given(loss, own, np.zeros(rows.n))
        else:
            pooled = sum(squares[other] for other in range(folds) if other != fold)
            oracle = CurveOracle(rows, used, pooled / np.count_nonzero(used))
        if squares is None:
            found = _one_by_one(solves, oracle, near=of_all)
        else:
            found = _one_by_one(solves, oracle, of_all, _OF_CURVES if fold >= 0 else _OF_ALL_ROWS, True)
        if fold < 0:
            of_all = found
            continue
        models.append(found.models)
        some = rows.only(~used)
        sums = np.stack([some.by_client(some.residuals(x) ** 2) for x in found.models], axis=1)
        losses.append(sums / counts[fold][:, None])
    assert of_all is not None
    return CrossValidated(
        np.stack([*models, of_all.models]), np.stack(losses), counts, of_all.weights, None, 1
    )


# A model and weights to begin with, and a solve that was nearly the same.
Begun = tuple[Numbers, Numbers, Minimax | None]


class _Ended(NamedTuple):
    """Of every candidate."""

    models: Numbers  # (candidates, d)
    weights: Numbers  # (candidates, n) of their worst mixtures


def _one_by_one(
    solves: _Solves,
    oracle: MomentsOracle | CurveOracle,
    near: _Ended | None = None,
    gap: float = _FROM_MOMENTS,
    certified: bool = False,
) -> _Ended:
    """Each begun at one with the same mixtures, or at the one before it; where there are solutions `near`, as
    those of all rows are, at what these have changed by since."""
    problem, references = solves.problem, References.of(solves.problem)
    eps = problem.eps
    models = solves.models
    ended = dict[tuple[float, float], int]()
    found: list[Minimax] = []
    for j, (one, scale) in enumerate(zip(solves.candidates, solves.scales, strict=True)):
        mixtures = solves.mixtures(one)
        before = ended.get(one.mixture_spec, j - 1)
        x, alpha = (found[before].x, found[before].alpha) if j else solves.first(one)
        if near is not None:
            x, alpha = _along(solves, near.models[j], x - near.models[before] if j else 0.0), near.weights[j]
        if not mixtures.contains(alpha):
            alpha = solves.first(one)[1]
        view: Any = oracle.with_radii(eps, scale)
        start = models, [mixtures], x[None], alpha[None], gap, references
        (newton,) = minimax_newton(view, *start, certified=certified)
        if not newton.settled and newton.size > _EXACT_FIT * oracle.target_spread:
            newton = _retried(solves, view, one, newton, gap, references)
        ended[one.mixture_spec] = j
        found.append(newton)
    return _Ended(np.stack([one.x for one in found]), np.stack([one.alpha for one in found]))


def _along(solves: _Solves, x: Numbers, away: Numbers | float) -> Numbers:
    """A model to begin with, as far away from x (d,), the solution of all rows, as an earlier one was."""
    return np.asarray(solves.models.project(x + away))


def _retried(
    solves: _Solves,
    oracle: MomentsOracle | CurveOracle,
    one: Candidate,
    newton: Minimax,
    gap: float,
    references: References,
) -> Minimax:
    """Where Newton's method stopped short of the gap: at a kink, or between clients that are not at all
    alike."""
    problem, mixtures = solves.problem, solves.mixtures(one)
    if isinstance(oracle, CurveOracle):
        # What is short of the gap even with the weights' own Hessians is good enough to choose by, and
        # `solve` says so of what is kept.
        again = solves.models, [mixtures], newton.x[None], newton.alpha[None], gap, references
        return minimax_newton(oracle.exactly(), *again)[0]
    moments = oracle.of(-1)
    eps = oracle.eps + float(oracle.views.scale[0]) / np.sqrt(oracle.rows(-1))

    def cuts(X: Numbers, widths: Numbers, which: NDArray[np.int64]) -> list[Cut]:
        return [risks_from_moments(True, moments, eps, problem.inner, X[0], float(widths[0]))]

    exact = ExactMWDRO(Exact(), gap=_FALLBACK_GAP, saves_rounds=False)
    start = exact.init(problem.with_mixtures(mixtures)).at(newton.x, newton.alpha)
    (ended,) = _bundled(exact, [start], cuts)
    return newton._replace(x=ended.best.x)


# Risks from rows here, and from replies of clients.


def loss_has_kinks(loss: Loss) -> bool:
    """Whether it is steeper on one side of a prediction than on the other: absolute, pinball, hinge."""
    return isinstance(loss, LinearLoss) and math.isinf(loss.scalar.curvature)


def has_kinks(problem: Problem, moving: bool) -> bool:
    """Whether the clients' risks have kinks: those of the loss, or where labels have a cost, which the worst
    case of a ball pays from some model on (at 0, where all labels are alike, for all rows at once)."""
    loss, transport = problem.loss, problem.transport
    if loss_has_kinks(loss):
        return True
    priced = transport.discrete_label and math.isfinite(transport.label_cost)
    return priced and (moving or bool(np.any(problem.eps)))


def _rows_here(solves: _Solves, ask: Ask) -> RowsOracle | None:
    """The risks from rows on the host, where they are here and need no search."""
    inner, eps = solves.problem.inner, solves.problem.eps
    if not isinstance(ask, HostClients) or not needs_no_search(inner, eps + float(solves.scales.max())):
        return None
    return RowsOracle(inner, ask.host.folded, eps, solves.lift)


def _from_rows(solves: _Solves, rows: RowsOracle, replies: RepliesOracle) -> Numbers:
    """(candidates * (folds + 1), d): all radii of one set of mixtures at once, first of all rows, each begun
    where it ended with the set before; then without each fold, begun at what these have changed by since, and
    with their second derivatives."""
    without, every = np.arange(solves.folds), np.full(1, -1)
    found = dict[int, list[Minimax]]()  # by candidate, last those of all rows
    before = dict[float, list[Minimax]]()  # by scale
    for mixture_spec in dict.fromkeys(one.mixture_spec for one in solves.candidates):
        some = [j for j, one in enumerate(solves.candidates) if one.mixture_spec == mixture_spec]
        scales = [float(solves.scales[j]) for j in some]
        mixtures = solves.mixtures(solves.candidates[some[0]])

        begun: list[Begun] = []
        for j, scale in zip(some, scales, strict=True):
            known = before.get(scale)
            if known is None:
                begun.append((*solves.first(solves.candidates[j]), None))
            else:
                begun.append((known[-1].x, _inside(mixtures, known[-1].alpha), known[-1]))
        of_all = _begun(solves, rows, mixtures, every, scales, begun)
        begun = []
        for scale, one in zip(scales, of_all, strict=True):
            known = before.get(scale)
            for fold in without.tolist():
                away = 0.0 if known is None else known[fold].x - known[-1].x
                begun.append((_along(solves, one.x, away), one.alpha, one))
        of_folds = _begun(solves, rows, mixtures, without, np.repeat(scales, len(without)).tolist(), begun)
        for place, (j, scale) in enumerate(zip(some, scales, strict=True)):
            own = of_folds[place * solves.folds : (place + 1) * solves.folds]
            found[j] = before[scale] = [*own, of_all[place]]
        replies.clients.progress((solves.folds + 1) * (len(solves.candidates) - len(found)))
    return _settled(solves, [one for j in range(len(solves.candidates)) for one in found[j]], replies)


def _begun(
    solves: _Solves,
    rows: RowsOracle,
    mixtures: MixtureSet,
    folds: NDArray[np.int64],
    scales: list[float],
    begun: list[Begun],
) -> list[Minimax]:
    """Where solves end that are begun so, one a scale, with the folds from first to last in turn."""
    view = rows.without_fold(np.tile(folds, len(scales) // len(folds))).with_radii(rows.eps, scales)
    starts, weights, neighbours = zip(*begun, strict=True)
    each = [mixtures] * len(scales)
    return _newton(solves, view, each, np.stack(starts), np.stack(weights), None, scales, neighbours)


def _inside(mixtures: MixtureSet, alpha: Numbers) -> Numbers:
    return alpha if mixtures.contains(alpha) else np.asarray(mixtures.project(alpha))


def _from_replies(solves: _Solves, replies: RepliesOracle) -> Numbers:
    """(candidates * (folds + 1), d): all at once, as every batch is a round."""
    folds = np.append(np.arange(solves.folds), -1)
    starts, weights = _starts(solves, solves.candidates, folds)
    mixtures = [solves.mixtures(one) for one in solves.candidates for _ in folds]
    return _settled(
        solves,
        _newton(solves, replies, mixtures, starts, weights, replies.clients, replies.views.scale.tolist()),
        replies,
    )


def _starts(
    solves: _Solves, candidates: Sequence[Candidate], folds: NDArray[np.int64]
) -> tuple[Numbers, Numbers]:
    """(models, weights) to begin with, one a candidate and fold."""
    first = [solves.first(one) for one in candidates]
    x, alpha = (np.repeat(np.stack(part), len(folds), axis=0) for part in zip(*first, strict=True))
    return x, alpha


def _newton(
    solves: _Solves,
    oracle: RiskOracle,
    mixtures: Sequence[MixtureSet],
    starts: Numbers,
    weights: Numbers,
    clients: FoldClients | None,
    scales: Sequence[float],
    neighbours: Sequence[Minimax | None] | None = None,
) -> list[Minimax]:
    problem = solves.problem
    return minimax_newton(
        oracle,
        solves.models,
        mixtures,
        starts,
        weights,
        _FROM_REPLIES if clients is not None else _FROM_ROWS,
        References.of(problem),
        certified=False,
        infimum_at_infinity=[
            problem.loss.infimum_at_infinity and not np.any(problem.eps) and not one for one in scales
        ],
        neighbours=neighbours,
        most_rounds=_MOST_BATCHES,
        progress=None if clients is None else clients.progress,
    )


def _settled(solves: _Solves, found: list[Minimax], replies: RepliesOracle) -> Numbers:
    """The models; those of searches that did not settle are the bundle method's, from where they ended."""
    models = np.stack([one.x for one in found])
    short = np.flatnonzero([not one.settled for one in found])
    if len(short):
        begun = [(found[j].x, found[j].alpha) for j in short]
        models[short] = _by_bundle(solves, replies, True, short, begun)
    return models


def _by_bundle(
    solves: _Solves,
    replies: RepliesOracle,
    sends_curvature: bool,
    which: NDArray[np.int64] | None = None,
    begun: Sequence[tuple[Numbers, Numbers]] | None = None,
) -> Numbers:
    """(solves, d) by the bundle method, of all solves or some, from their first models or from others."""
    exact = ExactMWDRO(replies.oracle, sends_curvature, _BUNDLE_GAP, saves_rounds=False)
    starts = {
        one.mixture_spec: exact.init(solves.problem.with_mixtures(solves.mixtures(one)))
        for one in solves.candidates
    }
    some = np.arange(len(replies.groups)) if which is None else which
    first = [starts[solves.candidates[replies.groups[j]].mixture_spec] for j in some]
    if begun is not None:
        first = [state.at(x, alpha) for state, (x, alpha) in zip(first, begun, strict=True)]

    def cuts(X: Numbers, widths: Numbers, going: NDArray[np.int64]) -> list[Cut]:
        return replies.only(some[going]).cuts(X, widths, sends_curvature)

    return np.stack([state.best.x for state in _bundled(exact, first, cuts, replies.clients.progress)])


def _bundled(
    exact: ExactMWDRO,
    starts: Sequence[State],
    cuts: Callable[[Numbers, Numbers, NDArray[np.int64]], list[Cut]],
    progress: Callable[[int], None] | None = None,
) -> list[State]:
    """The bundle method from each of the starts, all in the same batches of cuts at (models, widths, which of
    the solves these are of)."""
    solvers, everyone = list(starts), cast(Any, np.ones(starts[0].model.mixtures.dimension, bool))
    while len(going := np.flatnonzero([not one.finished and one.t < _MOST_ROUNDS for one in solvers])):
        X = np.stack([solvers[j].x for j in going])
        there = cuts(X, np.array([solvers[j].smoothing.width for j in going]), going)
        for j, own in zip(going.tolist(), there, strict=True):
            solvers[j] = exact.server(solvers[j], own, everyone)
        if progress is not None:
            progress(len(going))
    return solvers
