"""Cross-validation inside clients: many exact solves side by side, and the scores of what they found.

A candidate is a radius scale c, for eps_i = c spread N_i^-1/2 beyond the client's own radius, a cap kappa on
the weights, and a blend mu of these with the clients' shares. `FoldSolves` solves every candidate on every
fold's training rows, and on all rows, all of them in the same rounds: a reply carries one `exact.Reply` for
each solve that is not finished. `FoldScores` then asks once for the mean loss of each candidate on the rows
of each fold, which it was not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.exact import ExactMWDRO
from bidro.algorithms.exact_messages import Reply
from bidro.algorithms.exact_state import State
from bidro.client import Client
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.problem import Mixtures, Problem
from bidro.sets import CappedSimplex, Simplex
from bidro.sets.base import Held
from bidro.trees import pytree, static
from bidro.worst_case import Oracle
from bidro.worst_case.on_host import has_mean_losses, mean_losses

Numbers = NDArray[np.float64]


class Candidate(NamedTuple):
    scale: float  # c
    cap: float  # kappa: no client counts for more than kappa times its share of the rows; inf for no cap
    blend: float = 1.0  # mu: the share of the weight that this is about; the rest is by the clients' shares

    @property
    def weighing(self) -> tuple[float, float]:
        """(cap, blend): what A depends on."""
        return self.cap, self.blend

    def mixtures(self, sizes: Sequence[int] | Numbers, most: float = 1.0) -> Mixtures:
        """A: what the cap and the blend leave of the simplex, and of that the weights of at most `most`;
        sizes (n,) are what clients count by, none for more than that share."""
        if most < 1:
            free = CappedSimplex.blended(np.asarray(sizes), self.cap, self.blend)
            return CappedSimplex(free.lower, np.minimum(free.upper, most))
        if self.blend != 1:
            return CappedSimplex.blended(np.asarray(sizes), self.cap, self.blend)
        if math.isinf(self.cap):
            return Simplex(len(sizes))
        return CappedSimplex.around_proportions(np.asarray(sizes), self.cap)

    def mixtures_of(self, federation: Federation) -> Mixtures:
        """A, for these clients."""
        return self.mixtures(federation.counted, federation.max_share)


class SolvesBroadcast(NamedTuple):
    """The first `active` rows are solves that go on; the others are to be ignored."""

    active: Array
    x: Array  # (solves, d)
    width: Array  # (solves,)
    fold: Array  # (solves,) whose rows are left out; one past the last for none
    scale: Array  # (solves,) c times the spread


class SolvesState(NamedTuple):
    solvers: tuple[State, ...]  # one a solve: folds outside, candidates inside
    fold: NDArray[np.int64]  # (solves,)
    scale: Numbers  # (solves,)
    t: int

    @property
    def active(self) -> NDArray[np.int64]:
        """The solves that are not finished."""
        return np.flatnonzero([not solver.finished for solver in self.solvers])

    @property
    def finished(self) -> bool:
        return len(self.active) == 0

    @property
    def models(self) -> Numbers:
        """(folds + 1, candidates, d): last those of all rows."""
        best = np.stack([solver.best.x for solver in self.solvers])
        return best.reshape(int(self.fold.max()) + 1, -1, best.shape[1])


@pytree
class FoldSolves(Usual):
    """The clients' rows must be in folds. `spread` is what radii are in units of.

    A solve is finished at a relative `gap`, or after `most_rounds`.
    """

    oracle: Oracle = static()
    candidates: tuple[Candidate, ...] = static()
    folds: int = static()
    spread: float = static(default=1.0)
    sends_curvature: bool = static(default=True)
    gap: float = static(default=1e-3)
    most_rounds: int = static(default=30)

    broadcast_type: ClassVar[type] = SolvesBroadcast
    reply_type: ClassVar[type] = Reply
    evidence: ClassVar[Evidence] = "folds"

    @property
    def second_order(self) -> bool:
        return self.sends_curvature

    @property
    def traceable_server(self) -> bool:
        return False

    @property
    def _exact(self) -> ExactMWDRO:
        return ExactMWDRO(self.oracle, self.sends_curvature, self.gap, saves_rounds=False)

    def init(self, problem: Problem, seed: int = 0) -> SolvesState:
        different = {one.weighing: one for one in self.candidates}
        starts = {
            weighing: self._exact.init(problem.with_mixtures(one.mixtures_of(problem.federation)))
            for weighing, one in different.items()
        }
        solvers = tuple(starts[one.weighing] for one in self.candidates)
        solves = self.folds + 1
        fold = np.repeat(np.arange(solves), len(solvers))
        scale = np.tile([self.spread * one.scale for one in self.candidates], solves)
        return SolvesState(solvers * solves, fold, scale, 0)

    def broadcast(self, state: SolvesState) -> SolvesBroadcast:
        active = state.active
        order = np.append(active, np.setdiff1d(np.arange(len(state.solvers)), active))
        return SolvesBroadcast(
            jnp.asarray(len(active)),
            jnp.asarray(np.stack([state.solvers[j].x for j in order])),
            jnp.asarray([state.solvers[j].width for j in order]),
            jnp.asarray(state.fold[order]),
            jnp.asarray(state.scale[order]),
        )

    def client(self, broadcast: SolvesBroadcast, client: Client, draw: object) -> Reply:
        """Replies with a leading axis of solves, zero from `active` on."""

        def one(j: Array) -> Reply:
            rows = client.rows.without(broadcast.fold[j])
            own = replace(client, rows=rows, eps=client.eps + broadcast.scale[j] / jnp.sqrt(rows.size))
            found = own.risk(self.oracle, broadcast.x[j], broadcast.width[j], self.sends_curvature)
            return Reply.of(found)

        def add(j: Array, so_far: Reply) -> Reply:
            return jax.tree.map(lambda all_, v: all_.at[j].set(v), so_far, one(j))

        shapes = jax.eval_shape(one, jnp.asarray(0))
        solves = broadcast.x.shape[0]
        empty = jax.tree.map(lambda v: jnp.zeros((solves, *v.shape), v.dtype), shapes)
        return jax.lax.fori_loop(0, broadcast.active, add, empty)

    def server(self, state: SolvesState, replies: Reply, replied: Array) -> SolvesState:
        """Every solve makes its own step, as `ExactMWDRO` does."""
        arrived: Reply = jax.tree.map(np.asarray, replies)
        solvers = list(state.solvers)
        for place, j in enumerate(state.active):
            own = jax.tree.map(lambda v, place=place: v[:, place], arrived)
            after = self._exact.server(solvers[j], own, replied)
            solvers[j] = after._replace(stalled=after.stalled or after.t >= self.most_rounds)
        return state._replace(solvers=tuple(solvers), t=state.t + 1)

    def snapshot(self, state: SolvesState) -> Snapshot:
        """That of the first solve."""
        return self._exact.snapshot(state.solvers[0])


class ScoresBroadcast(NamedTuple):
    x: Held  # (folds, candidates, d)


class ScoresReply(NamedTuple):
    loss: Held  # (folds, candidates) mean over the rows of the fold, under the models not trained on them
    rows: Held  # (folds,) how many these are


@pytree
class FoldScores(Usual):
    """One round: the held-out losses of the models that `FoldSolves` found. It begins from these models
    (folds, candidates, d) as its state, which after the round is the `ScoresReply` of all clients, nan for
    who did not reply."""

    broadcast_type: ClassVar[type] = ScoresBroadcast
    reply_type: ClassVar[type] = ScoresReply
    evidence: ClassVar[Evidence] = "folds"
    second_order: ClassVar[bool] = False

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> Array:
        raise BidroError("FoldScores trains nothing: its first state is the models to be scored.")

    def broadcast(self, state: Array) -> ScoresBroadcast:
        return ScoresBroadcast(state)

    def client(self, broadcast: ScoresBroadcast, client: Client, draw: object) -> ScoresReply:
        loss = client.inner.loss

        def left_out(solves: tuple[Array, Array]) -> ScoresReply:
            fold, models = solves
            rows = client.rows.only(fold)
            return ScoresReply(jax.vmap(lambda x: rows.mean(loss.values, x))(models), rows.size)

        return jax.lax.map(left_out, (jnp.arange(len(broadcast.x)), broadcast.x))

    def replies_on_host(self, broadcast: ScoresBroadcast, rows: HeldRows) -> ScoresReply | None:
        if not has_mean_losses(rows.loss):
            return None
        folds = [rows.dealt.only(fold) for fold in range(len(broadcast.x))]
        losses = [
            mean_losses(rows.loss, own, x) for own, x in zip(folds, np.asarray(broadcast.x), strict=True)
        ]
        sizes = np.stack([own.sizes for own in folds], axis=1)
        return ScoresReply(np.stack(losses, axis=1), sizes)

    def server(self, state: Array, replies: ScoresReply, replied: Array) -> ScoresReply:
        there = np.asarray(replied)
        return ScoresReply(
            *(np.where(there.reshape(-1, *[1] * (np.ndim(part) - 1)), part, np.nan) for part in replies)
        )

    def snapshot(self, state: Array) -> Snapshot:
        """Nothing is trained: the first of what it has."""
        first = state.reshape(-1, state.shape[-1])[0]
        return Snapshot(first, first, jnp.zeros(0))
