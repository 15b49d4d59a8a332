"""What cross-validation asks of clients whose rows are in folds, one round a query: risks of many models with
shared curvature, cuts of many solves, second moments by fold, mean losses on held-out rows.

Each query is an algorithm of the contract whose state is the message to be sent, and after the round the
replies of all clients, with a leading axis of clients; until all have replied, the round is repeated. What is
made of the replies is `selection.cross_validate`'s business.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.core.pytrees import pytree, static
from bidro.core.sets.base import AnyArray
from bidro.federated.algorithm import BaseAlgorithm, HostData, RowsBehind, Snapshot
from bidro.problem.client import Client
from bidro.problem.problem import Problem
from bidro.risk.inner import Oracle
from bidro.risk.moments import of_folds
from bidro.risk.rows_jax import RiskModel
from bidro.risk.rows_kinked import kinked_risks, known_with_kinks
from bidro.risk.rows_numpy import curvatures, has_mean_losses, mean_losses, needs_no_search, risks
from bidro.solvers.bundle.state import Reply as Cut

Numbers = NDArray[np.float64]

# Models that are assessed in one pass over a client's rows.
TOGETHER = 10
# RMSE, which has a kink at an exact fit, is smoothed over a small share of this multiple of the residuals.
_WIDTH = 2.0


class FoldQuery(BaseAlgorithm):
    """One round: `state` is the message, then the replies."""

    rows_behind: ClassVar[RowsBehind] = "folds"

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> Any:
        raise BidroError(f"{type(self).__name__} trains nothing: its first state is the message to be sent.")

    def broadcast(self, state: Any) -> Any:
        return state

    def server(self, state: Any, replies: Any, replied: Array) -> Any:
        return Answered(replies) if np.all(np.asarray(replied)) else state

    def snapshot(self, state: Any) -> Snapshot:
        """Nothing is trained: the first of the models in the query."""
        first = np.asarray(state.x).reshape(-1, np.shape(state.x)[-1])[0]
        return Snapshot(first, first, jnp.zeros(0))


class Answered(NamedTuple):
    replies: Any  # of all clients

    @property
    def finished(self) -> bool:
        return True


class RisksBroadcast(NamedTuple):
    """The first `models` and the first `bends` count; what comes after them is to be ignored."""

    models: AnyArray
    x: AnyArray  # (solves, d)
    fold: AnyArray  # (solves,) whose rows are left out; one past the last for none
    scale: AnyArray  # (solves,) of radii beyond the client's own, times the root of its rows
    bends: AnyArray
    bend_x: AnyArray  # (candidates, d) where curvature is wanted
    bend_fold: AnyArray  # (candidates,) whose rows are left out; one past the last for none
    bend_scale: AnyArray  # (candidates,)


class RisksReply(NamedTuple):
    attained: AnyArray  # (solves,) of a cut below the risk over the fold's training rows
    smoothing: AnyArray  # (solves,) what the risk with this gradient exceeds it by
    gradient: AnyArray  # (solves, k) of that cut
    curvature: AnyArray  # (candidates, k (k + 1) / 2) upper triangles


@pytree
class FoldRisks(FoldQuery):
    """Risks and gradients of many models, each over the training rows of its fold, and curvatures of some."""

    oracle: Oracle = static()

    broadcast_type: ClassVar[type] = RisksBroadcast
    reply_type: ClassVar[type] = RisksReply
    second_order: ClassVar[bool] = True

    def client(self, broadcast: RisksBroadcast, client: Client, draw: object) -> RisksReply:
        solves, candidates = len(broadcast.x), len(broadcast.bend_x)

        def risk(x: Array, fold: Array, scale: Array, curvature: bool) -> RiskModel:
            return _without(client, fold, scale).risk(self.oracle, x, jnp.asarray(_WIDTH), curvature)

        def assessed(x: Array, fold: Array, scale: Array) -> tuple[Array, Array, Array]:
            found = risk(x, fold, scale, False)
            return found.attained, found.smoothing, found.gradient

        def some(block: Array, so_far: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            first = block * TOGETHER
            parts = (broadcast.x, broadcast.fold, broadcast.scale)
            own = (jax.lax.dynamic_slice_in_dim(v, first, TOGETHER) for v in parts)
            found = jax.vmap(assessed)(*own)
            return jax.tree.map(
                lambda all_, v: jax.lax.dynamic_update_slice_in_dim(all_, v, first, 0), so_far, found
            )

        def one(j: Array, so_far: Array) -> Array:
            found = risk(broadcast.bend_x[j], broadcast.bend_fold[j], broadcast.bend_scale[j], True)
            assert found.curvature is not None
            return so_far.at[j].set(found.curvature[jnp.triu_indices(len(found.gradient))])

        shapes = jax.eval_shape(assessed, broadcast.x[0], broadcast.fold[0], broadcast.scale[0])
        none = jax.tree.map(lambda v: jnp.zeros((solves, *v.shape), v.dtype), shapes)
        blocks = -(-broadcast.models // TOGETHER)
        found = jax.lax.fori_loop(0, blocks, some, none)
        k = shapes[2].shape[0]
        flat = jnp.zeros((candidates, k * (k + 1) // 2))
        attained, smoothing, gradient = found
        return RisksReply(attained, smoothing, gradient, jax.lax.fori_loop(0, broadcast.bends, one, flat))

    def client_batch_numpy(self, broadcast: RisksBroadcast, rows: HostData) -> RisksReply | None:
        x, fold, scale, bend_x, bend_fold = (
            np.asarray(part)
            for part in (broadcast.x, broadcast.fold, broadcast.scale, broadcast.bend_x, broadcast.bend_fold)
        )
        if rows.inner is None or rows.eps is None:
            return None
        models, bends = int(broadcast.models), int(broadcast.bends)
        folded, n = rows.folded, len(rows.sizes)
        radii = rows.eps[:, None] + scale[:models] / np.sqrt(folded.left(fold[:models]))
        if not needs_no_search(rows.inner, radii):
            return None
        found = risks(rows.inner, folded, x[:models], fold[:models], radii)
        hessians = curvatures(rows.inner, folded, bend_x[:bends], bend_fold[:bends])

        def padded(part: Numbers, length: int) -> Numbers:
            return np.concatenate([part, np.zeros((n, length - part.shape[1], *part.shape[2:]))], axis=1)

        value = padded(found.value, len(x))
        return RisksReply(
            value, np.zeros_like(value), padded(found.gradient, len(x)), padded(hessians, len(bend_x))
        )


class CutsBroadcast(NamedTuple):
    """The first `active` rows count; the others are to be ignored."""

    active: AnyArray
    x: AnyArray  # (solves, d)
    width: AnyArray  # (solves,)
    fold: AnyArray  # (solves,) whose rows are left out; one past the last for none
    scale: AnyArray  # (solves,) as in `RisksBroadcast`


@pytree
class FoldCuts(FoldQuery):
    """The query of the bundle method, for many solves at once: one `bundle.state.Reply` each."""

    oracle: Oracle = static()
    sends_curvature: bool = static(default=True)

    broadcast_type: ClassVar[type] = CutsBroadcast
    reply_type: ClassVar[type] = Cut

    @property
    def second_order(self) -> bool:
        return self.sends_curvature

    def client(self, broadcast: CutsBroadcast, client: Client, draw: object) -> Cut:
        """Replies with a leading axis of solves, zero from `active` on."""

        def one(j: Array) -> Cut:
            own = _without(client, broadcast.fold[j], broadcast.scale[j])
            return Cut.of(own.risk(self.oracle, broadcast.x[j], broadcast.width[j], self.sends_curvature))

        def add(j: Array, so_far: Cut) -> Cut:
            return jax.tree.map(lambda all_, v: all_.at[j].set(v), so_far, one(j))

        shapes = jax.eval_shape(one, jnp.asarray(0))
        solves = broadcast.x.shape[0]
        empty = jax.tree.map(lambda v: jnp.zeros((solves, *v.shape), v.dtype), shapes)
        return jax.lax.fori_loop(0, broadcast.active, add, empty)

    def client_batch_numpy(self, broadcast: CutsBroadcast, rows: HostData) -> Cut | None:
        if rows.inner is None or rows.eps is None:
            return None
        active, folded = int(broadcast.active), rows.folded
        x, width, fold, scale = (np.asarray(part)[:active] for part in broadcast[1:])
        radii = rows.eps[:, None] + scale / np.sqrt(folded.left(fold))
        if not known_with_kinks(rows.inner, radii):
            return None
        each = [
            Cut.of(kinked_risks(rows.inner, folded, one, eps, over, self.sends_curvature, fold=out))
            for one, eps, over, out in zip(x, radii.T, width.tolist(), fold.tolist(), strict=True)
        ]
        rest = [(0, 0), (0, len(broadcast.x) - active)]
        parts = (np.stack(part, axis=1) for part in zip(*each, strict=True))
        return Cut(*(np.pad(part, rest + [(0, 0)] * (part.ndim - 2)) for part in parts))


class MomentsBroadcast(NamedTuple):
    """Nothing but the request."""


class MomentsReply(NamedTuple):
    mean: Array | Numbers  # (folds, m) of the training rows of every fold
    around: Array | Numbers  # (folds, m, m) their second moments around it
    rows: Array | NDArray[np.int64]  # (folds,) how many these are


@pytree
class FoldMoments(FoldQuery):
    """The second moments of every fold's training rows: all that squared loss depends on."""

    broadcast_type: ClassVar[type] = MomentsBroadcast
    reply_type: ClassVar[type] = MomentsReply
    second_order: ClassVar[bool] = True

    def client_batch_numpy(self, broadcast: MomentsBroadcast, rows: HostData) -> MomentsReply:
        assert rows.fold_ids is not None
        found = of_folds(rows.samples, rows.sizes, rows.fold_ids, rows.folds, rows.loss)
        return MomentsReply(found.mean, found.around, found.rows)

    def snapshot(self, state: Any) -> Snapshot:
        none = np.zeros(0)
        return Snapshot(none, none, none)


class ScoresBroadcast(NamedTuple):
    x: AnyArray  # (folds, candidates, d)


class ScoresReply(NamedTuple):
    loss: AnyArray  # (folds, candidates) mean over the rows of the fold, under the models not trained on them
    rows: AnyArray  # (folds,) how many these are


@pytree
class FoldScores(FoldQuery):
    """Mean losses of models (folds, candidates, d) on the rows that their folds leave out."""

    broadcast_type: ClassVar[type] = ScoresBroadcast
    reply_type: ClassVar[type] = ScoresReply
    second_order: ClassVar[bool] = False

    def client(self, broadcast: ScoresBroadcast, client: Client, draw: object) -> ScoresReply:
        loss = client.inner.loss

        def left_out(solves: tuple[Array, Array]) -> ScoresReply:
            fold, models = solves
            rows = client.rows.only(fold)
            return ScoresReply(jax.vmap(lambda x: rows.mean(loss.values, x))(models), rows.size)

        return jax.lax.map(left_out, (jnp.arange(len(broadcast.x)), broadcast.x))

    def client_batch_numpy(self, broadcast: ScoresBroadcast, rows: HostData) -> ScoresReply | None:
        if not has_mean_losses(rows.loss):
            return None
        folds = [rows.folded.only(fold) for fold in range(len(broadcast.x))]
        losses = [
            mean_losses(rows.loss, own, x) for own, x in zip(folds, np.asarray(broadcast.x), strict=True)
        ]
        sizes = np.stack([own.sizes for own in folds], axis=1)
        return ScoresReply(np.stack(losses, axis=1), sizes)


def _without(client: Client, fold: Array, scale: Array) -> Client:
    """The client without the rows of a fold, with a radius that is larger by scale / sqrt(rows)."""
    rows = client.rows.without(fold)
    return client.over(rows, scale / jnp.sqrt(rows.size))
