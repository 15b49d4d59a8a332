"""Cross-validation of squared loss in one round: every client sends its second moments, fold by fold.

The second moments of the training rows of each fold are all that squared loss depends on, so the server
solves every candidate by itself, each beginning where its neighbour ended, and scores it: what is left out of
a fold is the difference between all rows and its training rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Evidence, Snapshot, Usual
from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.exact import Broadcast, ExactMWDRO, State
from bidro.algorithms.one_shot import risks_from_moments, second_moments
from bidro.client import Client
from bidro.problem import Problem
from bidro.trees import pytree, static
from bidro.worst_case import Exact, Inner

Numbers = NDArray[np.float64]


class Reply(NamedTuple):
    moments: Array  # (folds, d + 1, d + 1) of the training rows of every fold
    rows: Array  # (folds,) how many these are


class MomentsState(NamedTuple):
    starts: dict[float, State]  # of the solver, by cap
    inner: Inner
    sizes: tuple[int, ...]
    losses: Numbers | None  # (n, candidates) on rows left out, once all clients have replied
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
        return MomentsState(starts, problem.inner, sizes, None, 0)

    def broadcast(self, state: MomentsState) -> Broadcast:
        first = next(iter(state.starts.values()))
        return Broadcast(jnp.asarray(first.x), jnp.asarray(first.width))

    def client(self, broadcast: Broadcast, client: Client, draw: object) -> Reply:
        def one(fold: Array) -> tuple[Array, Array]:
            rows = client.rows.without(fold)
            return second_moments(rows, client.inner.loss), rows.size

        return Reply(*jax.lax.map(one, jnp.arange(self.folds)))

    def server(self, state: MomentsState, replies: Reply, replied: Array) -> MomentsState:
        """Needs all clients: until then, the round is repeated."""
        state = state._replace(t=state.t + 1)
        if not np.all(np.asarray(replied)):
            return state
        moments, rows = np.asarray(replies.moments), np.asarray(replies.rows, float)
        sums = moments * rows[:, :, None, None]
        # Each row is left out once, so that the folds' training rows hold it folds - 1 times.
        left_out = sums.sum(axis=1, keepdims=True) / (self.folds - 1) - sums
        losses = np.zeros((len(state.sizes), len(self.candidates)))
        for fold in range(self.folds):
            models = self._models(state, jnp.asarray(moments[:, fold]), rows[:, fold], replied)
            v = np.column_stack([models, -np.ones(len(models))])
            losses += np.einsum("ci,nij,cj->nc", v, left_out[:, fold], v)
        return state._replace(losses=np.maximum(losses, 0.0) / np.asarray(state.sizes)[:, None])

    def _models(self, state: MomentsState, moments: Array, rows: Numbers, replied: Array) -> Numbers:
        """(candidates, d) the solutions on one fold's training rows, each begun at the one before."""
        x, found = next(iter(state.starts.values())).x, []
        for one in self.candidates:
            solver = state.starts[one.cap]._replace(x=x)
            eps = jnp.asarray(self.spread * one.scale / np.sqrt(rows))
            while not solver.finished and solver.t < self.most_rounds:
                at = self._exact.broadcast(solver)
                risks = risks_from_moments(True, moments, eps, state.inner, at.x, at.width)
                solver = self._exact.server(solver, risks, replied)
            x = solver.best.x
            found.append(x)
        return np.stack(found)

    def snapshot(self, state: MomentsState) -> Snapshot:
        """Nothing is trained that is kept: the model that solves begin with."""
        first = next(iter(state.starts.values()))
        return Snapshot(first.x, first.x, first.alpha)
