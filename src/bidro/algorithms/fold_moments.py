"""Cross-validation of squared loss in one round: every client sends its second moments, fold by fold.

The second moments of the training rows of each fold are all that squared loss depends on, so the server
solves every candidate by itself, each beginning where its neighbour ended, and scores it: what is left out of
a fold is the difference between all rows and its training rows. Nothing is compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple, cast

import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.exact_messages import Broadcast
from bidro.algorithms.exact_state import State
from bidro.algorithms.moment_newton import SquaredRisks, minimax_from_moments
from bidro.algorithms.one_shot import risks_from_moments, squared_risks
from bidro.algorithms.second_moments import Moments, TrainingMoments, of_all_folds, of_folds
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.sets import Ball, Box
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner

Numbers = NDArray[np.float64]


class Reply(NamedTuple):
    mean: Array | Numbers  # (folds, m) of the training rows of every fold
    around: Array | Numbers  # (folds, m, m) their second moments around it
    rows: Array | NDArray[np.int64]  # (folds,) how many these are


class MomentsState(NamedTuple):
    starts: dict[float, State]  # of the solver, by cap
    inner: Inner
    sizes: tuple[int, ...]
    losses: Numbers | None  # (n, candidates) on rows left out, once all clients have replied
    whole: Moments | None  # of all rows
    t: int

    @property
    def finished(self) -> bool:
        return self.losses is not None


@pytree
class FoldMoments(Usual):
    """For squared loss over balls with p = 2 on an unbounded support; see `FoldSolves` for the settings."""

    candidates: tuple[Candidate, ...] = static()
    folds: int = static()
    spread: float = static(default=1.0)
    gap: float = static(default=1e-3)
    most_rounds: int = static(default=30)

    broadcast_type: ClassVar[type] = Broadcast
    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "folds"
    second_order: ClassVar[bool] = True

    @property
    def traceable_server(self) -> bool:
        return False

    @property
    def _exact(self) -> ExactMWDRO:
        return ExactMWDRO(Exact(), gap=self.gap, saves_rounds=False)

    def init(self, problem: Problem, seed: int = 0) -> MomentsState:
        sizes = problem.federation.sizes
        starts = {
            cap: self._exact.init(replace(problem, mixtures=Candidate(0.0, cap).mixtures(sizes)))
            for cap in dict.fromkeys(one.cap for one in self.candidates)
        }
        return MomentsState(starts, problem.inner, sizes, None, None, 0)

    def broadcast(self, state: MomentsState) -> Broadcast:
        first = next(iter(state.starts.values()))
        return Broadcast(np.asarray(first.x), np.asarray(first.width))

    def replies_on_host(self, broadcast: Broadcast, rows: HeldRows) -> Reply:
        assert rows.marks is not None
        found = of_folds(rows.samples, rows.sizes, rows.marks, rows.folds)
        return Reply(found.mean, found.around, found.rows)

    def server(self, state: MomentsState, replies: Reply, replied: Array) -> MomentsState:
        """Needs all clients: until then, the round is repeated."""
        state = state._replace(t=state.t + 1)
        if not np.all(np.asarray(replied)):
            return state
        trained = TrainingMoments(*(np.asarray(part) for part in replies))
        return state._replace(losses=self._losses(state, trained), whole=of_all_folds(trained))

    def _losses(self, state: MomentsState, trained: TrainingMoments) -> Numbers:
        rows = np.asarray(trained.rows, float)
        left_out = _left_out(trained.mean, trained.around, rows)
        losses = np.zeros((len(state.sizes), len(self.candidates)))
        for fold in range(self.folds):
            moments = Moments(trained.mean[:, fold], trained.around[:, fold])
            losses += left_out.squares(fold, self._models(state, moments, rows[:, fold]))
        return np.maximum(losses, 0.0) / np.asarray(state.sizes)[:, None]

    def _models(self, state: MomentsState, moments: Moments, rows: Numbers) -> Numbers:
        """(candidates, d) the solutions on one fold's training rows, each begun at one with the same cap, or
        at the one before it."""
        first = next(iter(state.starts.values()))
        loss = state.inner.loss
        assert isinstance(loss, Squared)
        risks = squared_risks(moments, loss, first.model.cones)
        x, alpha, found, ended = first.x, first.mixture, [], dict[float, tuple[Numbers, Numbers]]()
        for one in self.candidates:
            start = state.starts[one.cap]
            x, alpha = ended.get(one.cap, (x, alpha))
            if not start.model.mixtures.contains(alpha):
                alpha = start.mixture
            eps = self.spread * one.scale / np.sqrt(rows)
            x, alpha = ended[one.cap] = self._solved(start, risks, eps, state.inner, x, alpha)
            found.append(x)
        return np.stack(found)

    def _solved(
        self, start: State, risks: SquaredRisks, eps: Numbers, inner: Inner, x: Numbers, alpha: Numbers
    ) -> tuple[Numbers, Numbers]:
        """(model, weights) to the gap, by Newton's method, or by the exact solver from where that ends."""
        models, mixtures = start.model.models, start.model.mixtures
        assert isinstance(models, Box | Ball)
        newton = minimax_from_moments(risks, eps, models, mixtures, x, alpha, self.gap)
        if newton.upper - newton.lower <= self.gap * newton.upper:
            return newton.x, newton.alpha
        solver, everyone = (
            start._replace(x=newton.x, mixture=newton.alpha),
            cast(Array, np.ones(len(eps), bool)),
        )
        while not solver.finished and solver.t < self.most_rounds:
            replies = risks_from_moments(True, risks.moments, eps, inner, solver.x, solver.width)
            solver = self._exact.server(solver, replies, everyone)
        return solver.best.x, newton.alpha

    def snapshot(self, state: MomentsState) -> Snapshot:
        """Nothing is trained that is kept: the model that solves begin with."""
        first = next(iter(state.starts.values()))
        return Snapshot(first.x, first.x, first.alpha)


class _LeftOut(NamedTuple):
    """Sums over the rows (theta, y) that folds leave out, counted from a centre of each client's own."""

    centre: Numbers  # (n, m)
    rows: Numbers  # (n, folds)
    first: Numbers  # (n, folds, m)
    second: Numbers  # (n, folds, m, m)

    def squares(self, fold: int, models: Numbers) -> Numbers:
        """(n, candidates) sums of squared residuals of the models (candidates, d)."""
        features = self.centre.shape[1] - 1
        v = np.column_stack([models[:, :features], -np.ones(len(models))])
        base = self.centre @ v.T + models[:, features:].sum(axis=1)
        square = np.einsum("ci,nij,cj->nc", v, self.second[:, fold], v)
        return square + 2 * base * (self.first[:, fold] @ v.T) + self.rows[:, fold, None] * base**2


def _left_out(mean: Numbers, around: Numbers, rows: Numbers) -> _LeftOut:
    """From the moments of the folds' training rows: (n, folds, m), (n, folds, m, m) and (n, folds)."""
    others = mean.shape[1] - 1
    centre = mean.mean(axis=1)
    away = mean - centre[:, None]
    first = rows[..., None] * away
    second = rows[..., None, None] * (around + away[..., :, None] * away[..., None, :])

    def rest(trained: Numbers) -> Numbers:
        # Each row is left out once, so that the folds' training rows hold it folds - 1 times.
        return np.asarray(trained.sum(axis=1, keepdims=True) / others - trained)

    return _LeftOut(centre, rest(rows), rest(first), rest(second))
