"""Cross-validation by Newton's method: every candidate on every fold's training rows and on all rows, all of
them in the same rounds.

A client replies with its risk and gradient at every solve's model, over the fold's training rows, and with
one curvature a candidate, over all its rows at the mean of the folds' models: rows that a fold leaves out
hardly bend the risk. When no more solves go on than there are candidates, each has a curvature of its own.
The server takes every solve's next model from `local_minimax`. A solve whose risks fell as they were
predicted to needs no new curvature, and takes its last step unseen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.algorithms.contract import Evidence, HeldRows, Snapshot, Usual
from bidro.algorithms.cross_validation import Candidate
from bidro.algorithms.fold_newton_state import NewtonBroadcast, NewtonReply, NewtonState, asked_in
from bidro.algorithms.group_steepness import steepness_of
from bidro.algorithms.local_minimax import Caps, Local, LocalMinimax
from bidro.algorithms.references import References
from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.trees import pytree, static
from bidro.worst_case import Oracle
from bidro.worst_case.on_host import curvatures, needs_no_search, risks
from bidro.worst_case.risk import RiskModel

Numbers = NDArray[np.float64]

# Models that are assessed in one pass over a client's rows.
TOGETHER = 10
# A model becomes the centre if the worst mixture falls by this share of the prediction; above the second
# share, stiffening is taken back.
_ENOUGH, _GOOD = 0.1, 0.5
# A prediction within this share is right enough for a last step.
_RIGHT = 0.15
_STIFFEN = 4.0
_ROUNDING = 1e-11
# A step that promises less than this multiple of the gap is the last where the one before was as predicted.
_LAST = 8.0
# What each smoothing of the server's programs may change, as a share of the gap.
_UNIT = 0.1
# The programs' smoothing begins with this share of the risks, or with what is expected to be gained if that
# is less.
_FIRST_SMOOTHING = 0.1
# RMSE, which has a kink at an exact fit, is smoothed over a small share of this multiple of the residuals.
_WIDTH = 2.0
# Training risks below this share of the first model's count as that share.
_SMALL = 1e-4
# Without a radius, classes that a model can tell apart bring the risk to 0 at infinity. Below this share of
# the first model's that is taken for granted, and the model goes out along its own direction to where the
# risk would be the second share: about where the exact solver stops.
_VANISHING, _VANISHED = 1e-3, 1e-12
# After so many rounds, steps are lengthened where risks fall by this multiple of what was predicted: they can
# be brought to 0, which Newton's method does by a factor e a round.
_EARLY, _MORE = 4, 1.2


@pytree
class FoldNewton(Usual):
    """For risks without kinks. The clients' rows must be in folds; `spread` is what radii are in units of.

    A solve is finished where no more than a relative `gap` is to be gained, as far as risks, gradients and
    curvatures tell, or after `most_rounds`.
    """

    oracle: Oracle = static()
    candidates: tuple[Candidate, ...] = static()
    folds: int = static()
    spread: float = static(default=1.0)
    gap: float = static(default=1e-5)
    most_rounds: int = static(default=20)

    broadcast_type: ClassVar[type] = NewtonBroadcast
    reply_type: ClassVar[type] = NewtonReply
    evidence: ClassVar[Evidence] = "folds"
    second_order: ClassVar[bool] = True

    @property
    def traceable_server(self) -> bool:
        return False

    def init(self, problem: Problem, seed: int = 0) -> NewtonState:
        if not problem.loss.convex_in_x:
            name = type(problem.loss).__name__
            raise BidroError(
                f"Cross-validation needs a loss that is convex in the model; {name} is not known to be."
            )
        self.oracle.check(problem.inner)
        assert problem.eps is not None
        # Without a radius nothing depends on the steepness, and risks count as functions of x alone.
        still = not np.any(problem.eps) and all(one.scale == 0 for one in self.candidates)
        lifted = problem.lifted and not still
        cones = problem.loss.steepness_cones(problem.transport.inverse_scale) if lifted else []
        steepness = steepness_of(tuple(cones))
        x = np.asarray(problem.constant_model)
        C, F, n, d = len(self.candidates), self.folds + 1, problem.n, len(x)
        k = d + (steepness.count > 0)
        sizes = np.asarray(problem.federation.sizes, float)
        kappa, blend = np.array([one.weighing for one in self.candidates]).T[..., None, None]
        caps = Caps(sizes / sizes.sum(), kappa, blend)
        every = np.ones((C, F))
        models = np.tile(x, (C, F, 1))
        return NewtonState(
            caps=caps,
            references=References.of(problem),
            steepness=steepness,
            limits=problem.domain.constraints(),
            scale=self.spread * np.array([one.scale for one in self.candidates]),
            endless=problem.loss.endless,
            x=models,
            going=every > 0,
            wrong=np.inf * every,
            centre=models,
            merit=np.inf * every,
            risks=np.zeros((C, F, n)),
            gradient=np.zeros((C, F, n, k)),
            curvature=np.zeros((1, n, k, k)),
            bend=np.zeros((C, F), np.int64),
            stiffness=every,
            predicted=np.inf * every,
            floor=0 * every,
            t=0,
        )

    def broadcast(self, state: NewtonState) -> NewtonBroadcast:
        asked = asked_in(state)
        C, F, _ = state.x.shape
        solves = -(-C * F // TOGETHER) * TOGETHER

        def padded(values: NDArray[Any], length: int) -> NDArray[Any]:
            return np.pad(values, [(0, length - len(values)), *[(0, 0)] * (values.ndim - 1)])

        return NewtonBroadcast(
            np.asarray(len(asked.x)),
            padded(asked.x, solves),
            padded(asked.fold, solves),
            padded(asked.scale, solves),
            np.asarray(len(asked.bend_x)),
            padded(asked.bend_x, C),
            padded(asked.bend_fold, C),
            padded(asked.bend_scale, C),
        )

    def client(self, broadcast: NewtonBroadcast, client: Client, draw: object) -> NewtonReply:
        solves, candidates = len(broadcast.x), len(broadcast.bend_x)

        def risk(x: Array, fold: Array, scale: Array, curvature: bool) -> RiskModel:
            rows = client.rows.without(fold)
            own = replace(client, rows=rows, eps=client.eps + scale / jnp.sqrt(rows.size))
            return own.risk(self.oracle, x, jnp.asarray(_WIDTH), curvature)

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
        return NewtonReply(attained, smoothing, gradient, jax.lax.fori_loop(0, broadcast.bends, one, flat))

    def replies_on_host(self, broadcast: NewtonBroadcast, rows: HeldRows) -> NewtonReply | None:
        x, fold, scale, bend_x, bend_fold = (
            np.asarray(part)
            for part in (broadcast.x, broadcast.fold, broadcast.scale, broadcast.bend_x, broadcast.bend_fold)
        )
        if rows.inner is None or rows.eps is None:
            return None
        models, bends = int(broadcast.models), int(broadcast.bends)
        dealt, n = rows.dealt, len(rows.sizes)
        radii = rows.eps[:, None] + scale[:models] / np.sqrt(dealt.left(fold[:models]))
        if not needs_no_search(rows.inner, radii):
            return None
        found = risks(rows.inner, dealt, x[:models], fold[:models], radii)
        bent = curvatures(rows.inner, dealt, bend_x[:bends], bend_fold[:bends])

        def padded(part: Numbers, length: int) -> Numbers:
            return np.concatenate([part, np.zeros((n, length - part.shape[1], *part.shape[2:]))], axis=1)

        value = padded(found.value, len(x))
        return NewtonReply(
            value, np.zeros_like(value), padded(found.gradient, len(x)), padded(bent, len(bend_x))
        )

    def server(self, state: NewtonState, replies: NewtonReply, replied: Array) -> NewtonState:
        """A round that not all clients answer is repeated."""
        state = state._replace(t=state.t + 1)
        if not np.all(np.asarray(replied)):
            return state
        state = _with_replies(state, replies)
        return self._with_next(state)

    def _with_next(self, state: NewtonState) -> NewtonState:
        """The next models, and which of them are the last."""
        risk = state.references.risk(state.merit)
        size = np.maximum(np.abs(risk), state.floor)
        going, x, predicted = state.going.copy(), state.x.copy(), state.predicted.copy()
        expected = np.minimum(predicted, _FIRST_SMOOTHING * size)
        shared = bool(np.all(state.bend == state.bend[:, :1]))
        # Arrays (candidates, folds) where the folds share their curvature, else (solves, 1).
        batch = going.any(axis=1) if shared else going

        def part(of_solves: NDArray[Any]) -> NDArray[Any]:
            return of_solves[batch] if shared else of_solves[batch][:, None]

        local = Local(
            part(state.centre),
            part(state.risks),
            part(state.gradient),
            state.curvature[part(state.bend)[:, 0]],
            part(state.stiffness),
            part(_UNIT * self.gap * size),
            part(expected),
            part(going),
        )
        kappa, blend = (
            part(np.broadcast_to(limit[..., 0], going.shape))[:, :1, None]
            for limit in (state.caps.kappa, state.caps.blend)
        )
        caps = state.caps._replace(kappa=kappa, blend=blend)
        step = LocalMinimax(caps, state.steepness, state.limits, local).solve()
        found = step.x if shared else step.x[:, 0]
        x[batch] = np.where(going[batch][..., None], found, x[batch])
        predicted[batch] = np.maximum(step.predicted if shared else step.predicted[:, 0], 0.0)
        # A stiffened step promises less than there is to be gained.
        left = predicted * state.stiffness
        enough = np.where(state.wrong < _RIGHT, _LAST, 1.0) * self.gap * size
        share = risk / (state.floor / _SMALL)
        vanishing = going & state.endless & (state.scale[:, None] == 0) & (share < _VANISHING)
        far = np.log(_VANISHED) / np.log(np.where(vanishing, share, 0.5))
        outside = np.clip(far[..., None] * state.centre, state.limits.lower, state.limits.upper)
        x, going = np.where(vanishing[..., None], outside, x), going & ~vanishing
        going &= (left > enough) & (state.t < self.most_rounds)
        return state._replace(x=x, predicted=predicted, going=going)

    def snapshot(self, state: NewtonState) -> Snapshot:
        """That of the first solve; the weights are the clients' shares."""
        return Snapshot(state.x[0, 0], state.x[0, 0], state.caps.shares)


def _with_replies(state: NewtonState, replies: NewtonReply) -> NewtonState:
    """The models just assessed become centres where they are good enough; steps are stiffened elsewhere."""
    asked, going = asked_in(state), state.going
    attained, smoothing, gradient = (
        np.moveaxis(np.asarray(part), 0, 1)[asked.of_solve]
        for part in (replies.attained, replies.smoothing, replies.gradient)
    )
    if not np.all(np.isfinite(attained)):
        raise BidroError(f"In round {state.t} a client's risk is not finite; declare a bounded support.")
    risks, gradients = state.risks.copy(), state.gradient.copy()
    risks[going] = state.references.off(attained + smoothing)
    gradients[going] = gradient[..., : gradients.shape[-1]]
    merit = state.caps.worst(risks)
    first = ~np.isfinite(state.merit)
    with np.errstate(invalid="ignore"):
        fall, predicted = state.merit - merit, state.predicted
        rounding = _ROUNDING * np.abs(state.references.risk(merit))
        good = going & (first | (fall >= _ENOUGH * predicted - rounding))
        ratio = np.where(first | (predicted <= 0), 1.0, fall / predicted)
    stiffness = np.where(going & ~good, _STIFFEN * state.stiffness, state.stiffness)
    stiffness = np.where(good & (ratio > _GOOD) & (stiffness > 1), stiffness / _STIFFEN, stiffness)
    more = good & (ratio > _MORE) & (state.t > _EARLY) & (stiffness > 1 / _STIFFEN**2)
    stiffness = np.where(more, stiffness / _STIFFEN, stiffness)
    told = gradient.shape[-1]
    curvature, bend = _with_curvature(state, np.asarray(replies.curvature), told, asked.bend, good)
    keep = good[..., None]
    floor = state.floor if np.any(state.floor > 0) else _SMALL * np.abs(state.references.risk(merit))
    return state._replace(
        centre=np.where(keep, state.x, state.centre),
        merit=np.where(good, merit, state.merit),
        risks=np.where(keep, risks, state.risks),
        gradient=np.where(keep[..., None], gradients, state.gradient),
        wrong=np.where(good & ~first, np.abs(ratio - 1.0), np.inf),
        curvature=curvature,
        bend=bend,
        stiffness=stiffness,
        floor=floor,
    )


def _with_curvature(
    state: NewtonState, packed: Numbers, told: int, asked: NDArray[np.int64], good: NDArray[np.bool_]
) -> tuple[Numbers, NDArray[np.int64]]:
    """(curvatures that some solve uses, which of them is each solve's), from upper triangles of (told, told)
    matrices. The new ones are of use to a candidate where most of its solves that asked have moved there."""
    k = state.curvature.shape[-1]
    rows, columns = np.triu_indices(told)
    of_model = columns < k
    rows, columns, packed = rows[of_model], columns[of_model], packed[..., of_model]
    count = asked.max(initial=-1) + 1
    new = np.zeros((count, packed.shape[0], k, k))
    new[:, :, rows, columns] = new[:, :, columns, rows] = np.moveaxis(packed[:, :count], 0, 1)
    of_folds = np.sum(good, axis=1, keepdims=True) * 2 > np.sum(state.going, axis=1, keepdims=True)
    together = np.all(asked == asked[:, :1], axis=1, keepdims=True)
    taken = (asked >= 0) & np.where(together, of_folds, good)
    bend = np.where(taken, len(state.curvature) + asked, state.bend)
    used, bend = np.unique(bend, return_inverse=True)
    return np.concatenate([state.curvature, new])[used], bend.reshape(asked.shape)
