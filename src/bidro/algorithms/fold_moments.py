"""Cross-validation of squared loss in one round: every client sends its second moments, fold by fold.

The second moments of the training rows of each fold are all that squared loss depends on, so the server
solves every candidate by itself, on every fold's training rows and on all rows, each beginning where its
neighbour ended, and scores it: what is left out of a fold is the difference between all rows and its training
rows. Nothing is compiled.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, cast

import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.curve_rows import RowRisks
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.exact_messages import Broadcast
from bidro.algorithms.exact_state import State
from bidro.algorithms.moment_newton import SquaredRisks, minimax_from_moments
from bidro.algorithms.one_shot import risks_from_moments, squared_risks
from bidro.algorithms.second_moments import (
    Moments,
    TrainingMoments,
    left_out_sums,
    of_all_folds,
    of_folds,
    smoothed,
)
from bidro.losses import Squared
from bidro.problem import Problem
from bidro.sets import Ball, Box
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner

Numbers = NDArray[np.float64]

# Where squared errors are below this share of the target's own spread, rounding hides bounds, and nothing is
# at stake.
_EXACT_FIT = 1e-6
# Where Newton's method fails, as at the kink of an exact fit, this gap is good enough to choose by.
_FALLBACK_GAP = 1e-4


class Reply(NamedTuple):
    mean: Array | Numbers  # (folds, m) of the training rows of every fold
    around: Array | Numbers  # (folds, m, m) their second moments around it
    rows: Array | NDArray[np.int64]  # (folds,) how many these are


class Found(NamedTuple):
    """What follows from the clients' moments, or from their rows."""

    models: Numbers  # (folds + 1, candidates, d): last those of all rows
    losses: Numbers  # (folds, n, candidates) mean squares over the rows of each fold
    rows: Numbers  # (folds, n) how many these are
    weights: Numbers  # (candidates, n) of the worst mixtures at the models of all rows
    told: Told | None  # None where all of it came from rows


class Told(NamedTuple):
    """The moments that clients have sent."""

    trained: TrainingMoments
    whole: Moments  # of all rows


class MomentsState(NamedTuple):
    starts: dict[tuple[float, float], State]  # of the solver, by cap and blend
    inner: Inner
    eps: Numbers  # (n,) the clients' radii, beyond which candidates go
    trained: TrainingMoments | None  # once all clients have replied
    found: Found | None
    t: int

    @property
    def finished(self) -> bool:
        return self.trained is not None


@pytree
class FoldMoments(Usual):
    """For squared loss over balls with p = 2 on an unbounded support; see `FoldSolves` for the settings.

    Without candidates it asks for the moments and solves nothing.
    """

    candidates: tuple[Candidate, ...] = static()
    folds: int = static()
    spread: float = static(default=1.0)
    gap: float = static(default=1e-5)
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
        return ExactMWDRO(Exact(), gap=max(self.gap, _FALLBACK_GAP), saves_rounds=False)

    def init(self, problem: Problem, seed: int = 0) -> MomentsState:
        different = {one.weighing: one for one in self.candidates}
        starts = {
            weighing: self._exact.init(problem.with_mixtures(one.mixtures_of(problem.federation)))
            for weighing, one in different.items()
        }
        # Cones of curves are as large as second moments, and the same for all mixtures.
        cones = next((start.model.cones for start in starts.values()), ())
        starts = {
            weighing: start._replace(model=start.model._replace(cones=cones))
            for weighing, start in starts.items()
        }
        assert problem.eps is not None
        return MomentsState(starts, problem.inner, np.asarray(problem.eps), None, None, 0)

    def broadcast(self, state: MomentsState) -> Broadcast:
        first = next(iter(state.starts.values()), None)
        if first is None:
            return Broadcast(np.zeros(0), np.zeros(()))
        return Broadcast(np.asarray(first.x), np.asarray(first.width))

    def replies_on_host(self, broadcast: Broadcast, rows: HeldRows) -> Reply:
        assert rows.marks is not None
        found = of_folds(rows.samples, rows.sizes, rows.marks, rows.folds, rows.loss)
        return Reply(found.mean, found.around, found.rows)

    def server(self, state: MomentsState, replies: Reply, replied: Array) -> MomentsState:
        """Needs all clients: until then, the round is repeated."""
        state = state._replace(t=state.t + 1)
        if not np.all(np.asarray(replied)):
            return state
        trained = TrainingMoments(*(np.asarray(part) for part in replies))
        return state._replace(trained=trained, found=self.found(state, trained) if self.candidates else None)

    def found(self, state: MomentsState, trained: TrainingMoments) -> Found:
        """From the first state and the moments of all clients."""
        rows, left_out, whole = np.asarray(trained.rows, float), left_out_sums(trained), of_all_folds(trained)
        loss = state.inner.loss
        models, losses = [], []
        for fold in range(self.folds):
            moments = Moments(trained.mean[:, fold], trained.around[:, fold])
            models.append(self.models(state, risks_of(state, smoothed(moments, loss)), rows[:, fold])[0])
            squares = np.maximum(left_out.squares(fold, models[-1]), 0.0)
            losses.append(squares / left_out.rows[:, fold, None])
        of_all, weights = self.models(
            state, risks_of(state, smoothed(whole, loss)), left_out.rows.sum(axis=1)
        )
        told = Told(trained, whole)
        return Found(np.stack([*models, of_all]), np.stack(losses), left_out.rows.T, weights, told)

    def models(
        self,
        state: MomentsState,
        risks: SquaredRisks | RowRisks,
        rows: Numbers,
        gap: float | None = None,
    ) -> tuple[Numbers, Numbers]:
        """(the solutions (candidates, d) where clients have these risks over so many rows (n,), the weights
        (candidates, n) of their worst mixtures), each begun at one with the same mixtures, or at the one
        before it; to the gap, or to another."""
        first = next(iter(state.starts.values()))
        x, alpha, found = first.x, first.mixture, []
        ended = dict[tuple[float, float], tuple[Numbers, Numbers]]()
        for one in self.candidates:
            start = state.starts[one.weighing]
            x, alpha = ended.get(one.weighing, (x, alpha))
            if not start.model.mixtures.contains(alpha):
                alpha = start.mixture
            eps = state.eps + self.spread * one.scale / np.sqrt(rows)
            x, alpha = ended[one.weighing] = self._solved(
                start, risks, eps, state.inner, x, alpha, gap or self.gap
            )
            found.append((x, alpha))
        models, weights = map(np.stack, zip(*found, strict=True))
        return models, weights

    def _solved(
        self,
        start: State,
        risks: SquaredRisks | RowRisks,
        eps: Numbers,
        inner: Inner,
        x: Numbers,
        alpha: Numbers,
        gap: float,
    ) -> tuple[Numbers, Numbers]:
        """(model, weights) to the gap, by Newton's method, or by the exact solver from where that ends."""
        models, mixtures = start.model.models, start.model.mixtures
        assert isinstance(models, Box | Ball)
        references = start.model.references
        newton = minimax_from_moments(risks, eps, models, mixtures, x, alpha, gap, references)
        if newton.reaches(gap) or newton.size <= _EXACT_FIT * risks.target_spread:
            return newton.x, newton.alpha
        if isinstance(risks, RowRisks):
            # Clients that are not at all alike: with second derivatives of every step's own weights. What is
            # short of the gap even then is good enough to choose by, and `solve` says so of what is kept.
            risks.turned = (0.0, 0.0)
            newton = minimax_from_moments(
                risks, eps, models, mixtures, newton.x, newton.alpha, gap, references
            )
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


def risks_of(state: MomentsState, moments: Moments) -> SquaredRisks:
    """The clients' risks as functions of the model, from moments with the loss's penalty in them."""
    loss, first = state.inner.loss, next(iter(state.starts.values()))
    assert isinstance(loss, Squared)
    return squared_risks(moments, loss, first.model.cones)
