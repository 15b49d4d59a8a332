"""Cross-validation by Newton's method: every candidate on every fold's training rows, all in the same rounds.

A client replies with its risk and gradient at every solve's model, over the fold's training rows, and with one
curvature a candidate, over all its rows at the mean of the folds' models: rows that a fold leaves out hardly
bend the risk. The server takes every solve's next model from `local_minimax`. A solve whose risks fell as they
were predicted to needs no new curvature, and takes its last step unseen.
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
from bidro.algorithms.local_minimax import Caps, Local, LocalMinimax, Steepness
from bidro.client import Client
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.sets.base import Constraints
from bidro.trees import pytree, static
from bidro.worst_case import Oracle

Numbers = NDArray[np.float64]

# Models that are assessed in one pass over a client's rows.
_TOGETHER = 10
# A model becomes the centre if the worst mixture falls by this share of the prediction; above the second
# share, stiffening is taken back; and within this share of 1 the prediction was right.
_ENOUGH, _GOOD, _RIGHT = 0.1, 0.5, 0.15
_STIFFEN = 4.0
_ROUNDING = 1e-11
# A step that promises less than this multiple of the gap is the last where the one before was as predicted.
_LAST = 8.0
# What each smoothing of the server's programs may change, as a share of the gap.
_UNIT = 0.1
# The programs' smoothing begins with this share of the risks, or where less is expected to be gained, with that.
_FIRST_SMOOTHING = 0.1
# Kinks are first rounded over this multiple of the residuals, then over this share of that, until it costs
# less than this share of the gap.
_FIRST_WIDTH, _NARROW, _COSTS = 2.0, 0.35, 0.3
# Training risks below this share of the first model's count as that share.
_SMALL = 1e-3


class NewtonBroadcast(NamedTuple):
    """The first `models` and the first `bends` are asked for; what comes after them is to be ignored."""

    models: Array
    x: Array  # (solves, d)
    fold: Array  # (solves,) whose rows are left out
    scale: Array  # (solves,) c times the spread
    bends: Array
    middle: Array  # (candidates, d) where curvature is asked for
    middle_scale: Array  # (candidates,)
    width: Array  # kinks of the loss are rounded over this, in the client's own units


class NewtonReply(NamedTuple):
    attained: Array  # (solves,) of a plane below the risk over the fold's training rows
    rounding: Array  # (solves,) what the risk with rounded kinks exceeds it by
    gradient: Array  # (solves, k) of that plane
    curvature: Array  # (candidates, k (k + 1) / 2) upper triangles, over all rows


class NewtonState(NamedTuple):
    """Arrays have leading axes (candidates, folds)."""

    caps: Caps
    steepness: Steepness
    limits: Constraints
    scale: Numbers  # (candidates,) c times the spread
    width: float
    x: Numbers  # (..., d) to be assessed next; of finished solves the solution
    going: NDArray[np.bool_]  # (...) solves that are not finished
    right: NDArray[np.bool_]  # (...) whose last prediction was right
    centre: Numbers  # (..., d)
    merit: Numbers  # (...) worst mixture of the risks there, inf before the first
    cost: Numbers  # (...) what rounding kinks adds to it
    risks: Numbers  # (..., n), with kinks rounded
    gradient: Numbers  # (..., n, k)
    curvature: Numbers  # (candidates, n, k, k)
    stiffness: Numbers  # (...)
    predicted: Numbers  # (...) fall of the merit at x
    floor: Numbers  # (...)
    t: int

    @property
    def active(self) -> NDArray[np.int64]:
        """The solves that are not finished."""
        return np.flatnonzero(self.going)

    @property
    def finished(self) -> bool:
        return not self.going.any()

    @property
    def models(self) -> Numbers:
        """(folds, candidates, d)"""
        return np.swapaxes(self.x, 0, 1)


class _Asked(NamedTuple):
    """The different questions of a round, and which solve or candidate each answer is for."""

    x: Numbers  # (questions, d)
    fold: NDArray[np.int64]
    scale: Numbers
    of_solve: NDArray[np.int64]  # (going solves,)
    middle: Numbers
    middle_scale: Numbers
    candidates: NDArray[np.int64]  # that curvature is asked for
    of_candidate: NDArray[np.int64]


@pytree
class FoldNewton(Usual):
    """The clients' rows must be in folds. `spread` is what radii are in units of.

    A solve is finished where no more than a relative `gap` is to be gained, as far as risks, gradients and
    curvatures tell, or after `most_rounds`.
    """

    oracle: Oracle = static()
    candidates: tuple[Candidate, ...] = static()
    folds: int = static()
    spread: float = static(default=1.0)
    gap: float = static(default=1e-3)
    most_rounds: int = static(default=30)

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
            raise BidroError(f"Cross-validation needs a loss that is convex in the model; {name} is not known to be.")
        self.oracle.check(problem.inner)
        cones = problem.loss.steepness_cones(problem.transport.inverse_scale) if problem.lifted else []
        steepness = Steepness(tuple(cones))
        x = np.asarray(problem.constant_model)
        C, F, n, d = len(self.candidates), self.folds, problem.n, len(x)
        k = d + (steepness.count > 0)
        sizes = np.asarray(problem.federation.sizes, float)
        caps = Caps(sizes / sizes.sum(), np.array([one.cap for one in self.candidates])[:, None, None])
        every = np.ones((C, F))
        models = np.tile(x, (C, F, 1))
        return NewtonState(
            caps=caps,
            steepness=steepness,
            limits=problem.domain.constraints(),
            scale=self.spread * np.array([one.scale for one in self.candidates]),
            width=_FIRST_WIDTH,
            x=models,
            going=every > 0,
            right=every < 0,
            centre=models,
            merit=np.inf * every,
            cost=0 * every,
            risks=np.zeros((C, F, n)),
            gradient=np.zeros((C, F, n, k)),
            curvature=np.zeros((C, n, k, k)),
            stiffness=every,
            predicted=np.inf * every,
            floor=0 * every,
            t=0,
        )

    def broadcast(self, state: NewtonState) -> NewtonBroadcast:
        asked = _asked(state)
        C, F, _ = state.x.shape
        solves = -(-C * F // _TOGETHER) * _TOGETHER

        def padded(values: NDArray, length: int) -> Array:
            rest = [(0, length - len(values)), *[(0, 0)] * (values.ndim - 1)]
            return jnp.asarray(np.pad(values, rest))

        return NewtonBroadcast(
            jnp.asarray(len(asked.x)),
            padded(asked.x, solves),
            padded(asked.fold, solves),
            padded(asked.scale, solves),
            jnp.asarray(len(asked.middle)),
            padded(asked.middle, C),
            padded(asked.middle_scale, C),
            jnp.asarray(state.width),
        )

    def client(self, broadcast: NewtonBroadcast, client: Client, draw: object) -> NewtonReply:
        solves, candidates = len(broadcast.x), len(broadcast.middle)

        def assessed(x: Array, fold: Array, scale: Array) -> tuple[Array, Array, Array]:
            rows = client.rows.without(fold)
            own = replace(client, rows=rows, eps=scale / jnp.sqrt(rows.size))
            found = own.risk(self.oracle, x, broadcast.width, False)
            return found.attained, found.rounding, found.gradient

        def bent(x: Array, scale: Array) -> Array:
            own = replace(client, eps=scale / jnp.sqrt(client.rows.size))
            found = own.risk(self.oracle, x, broadcast.width, True)
            return found.curvature[jnp.triu_indices(len(found.gradient))]

        def some(block: Array, so_far: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            first = block * _TOGETHER
            parts = (broadcast.x, broadcast.fold, broadcast.scale)
            own = (jax.lax.dynamic_slice_in_dim(v, first, _TOGETHER) for v in parts)
            found = jax.vmap(assessed)(*own)
            return jax.tree.map(
                lambda all_, v: jax.lax.dynamic_update_slice_in_dim(all_, v, first, 0), so_far, found
            )

        def one(j: Array, so_far: Array) -> Array:
            return so_far.at[j].set(bent(broadcast.middle[j], broadcast.middle_scale[j]))

        shapes = jax.eval_shape(assessed, broadcast.x[0], broadcast.fold[0], broadcast.scale[0])
        none = jax.tree.map(lambda v: jnp.zeros((solves, *v.shape), v.dtype), shapes)
        blocks = -(-broadcast.models // _TOGETHER)
        found = jax.lax.fori_loop(0, blocks, some, none)
        k = shapes[2].shape[0]
        flat = jnp.zeros((candidates, k * (k + 1) // 2))
        return NewtonReply(*found, jax.lax.fori_loop(0, broadcast.bends, one, flat))

    def server(self, state: NewtonState, replies: NewtonReply, replied: Array) -> NewtonState:
        """A round that not all clients answer is repeated."""
        state = state._replace(t=state.t + 1)
        if not np.all(np.asarray(replied)):
            return state
        state = _with_replies(state, jax.tree.map(np.asarray, replies))
        return self._with_next(state)

    def _with_next(self, state: NewtonState) -> NewtonState:
        """The next models, and which of them are the last."""
        some = state.going.any(axis=1)
        size = np.maximum(np.abs(state.merit), state.floor)
        local = Local(
            state.centre[some],
            state.risks[some],
            state.gradient[some],
            state.curvature[some],
            state.stiffness[some],
            (_UNIT * self.gap * size)[some],
            np.minimum(state.predicted, _FIRST_SMOOTHING * size)[some],
            state.going[some],
        )
        caps = state.caps._replace(kappa=state.caps.kappa[some])
        step = LocalMinimax(caps, state.steepness, state.limits, local).solve()
        going, x, predicted = state.going.copy(), state.x.copy(), state.predicted.copy()
        x[some] = np.where(going[some][..., None], step.x, x[some])
        predicted[some] = np.maximum(step.predicted, 0.0)
        # A stiffened step promises less than there is to be gained.
        left = predicted * state.stiffness
        enough = np.where(state.right, _LAST, 1.0) * self.gap * size
        rounded = state.cost > _COSTS * self.gap * size
        going &= ((left > enough) | rounded) & (state.t < self.most_rounds)
        if np.any(rounded & going):
            # Risks with less rounding are others: the next models are centres whatever they are like.
            return state._replace(
                x=x, predicted=predicted, going=going, width=_NARROW * state.width, merit=np.inf * size
            )
        return state._replace(x=x, predicted=predicted, going=going)

    def snapshot(self, state: NewtonState) -> Snapshot:
        """That of the first solve; the weights are the clients' shares."""
        return Snapshot(state.x[0, 0], state.x[0, 0], state.caps.shares)


def _asked(state: NewtonState) -> _Asked:
    """Solves with the same model, fold and radius ask once, and so do candidates."""
    candidate, fold = np.nonzero(state.going)
    solves = np.column_stack([state.x[state.going], fold, state.scale[candidate]])
    different, of_solve = np.unique(solves, axis=0, return_inverse=True)
    wanted = np.flatnonzero(np.any(state.going & ~state.right, axis=1))
    share = state.going[wanted] / state.going[wanted].sum(axis=1, keepdims=True)
    middles = np.column_stack([np.einsum("cf,cfd->cd", share, state.x[wanted]), state.scale[wanted]])
    bends, of_candidate = np.unique(middles, axis=0, return_inverse=True)
    return _Asked(
        different[:, :-2],
        different[:, -2].astype(np.int64),
        different[:, -1],
        of_solve.ravel(),
        bends[:, :-1],
        bends[:, -1],
        wanted,
        of_candidate.ravel(),
    )


def _with_replies(state: NewtonState, replies: NewtonReply) -> NewtonState:
    """The models just assessed become centres where they are good enough; steps are stiffened elsewhere."""
    asked, going = _asked(state), state.going
    attained, rounding, gradient = (
        np.moveaxis(part, 0, 1)[asked.of_solve] for part in (replies.attained, replies.rounding, replies.gradient)
    )
    if not np.all(np.isfinite(attained)):
        raise BidroError(f"In round {state.t} a client's risk is not finite; declare a bounded support.")
    risks, gradients = state.risks.copy(), state.gradient.copy()
    risks[going], gradients[going] = attained + rounding, gradient
    merit = state.caps.worst(risks)
    plain = risks.copy()
    plain[going] = attained
    cost = merit - state.caps.worst(plain)
    first = ~np.isfinite(state.merit)
    with np.errstate(invalid="ignore"):
        fall, predicted = state.merit - merit, state.predicted
        good = going & (first | (fall >= _ENOUGH * predicted - _ROUNDING * np.abs(merit)))
        right = ~first & (np.abs(fall - predicted) <= _RIGHT * predicted)
        softer = good & ~first & (fall > _GOOD * predicted)
    stiffness = np.where(going & ~good, _STIFFEN * state.stiffness, state.stiffness)
    stiffness = np.where(softer, np.maximum(stiffness / _STIFFEN, 1.0), stiffness)
    # Curvature where most of the folds failed is of no use where they are.
    curvature = state.curvature.copy()
    k = curvature.shape[-1]
    rows, columns = np.triu_indices(k)
    moved = np.sum(good, axis=1) * 2 > np.sum(going, axis=1)
    for j, answer in zip(asked.candidates, asked.of_candidate, strict=True):
        if moved[j]:
            packed = replies.curvature[:, answer]
            curvature[j][:, rows, columns] = curvature[j][:, columns, rows] = packed
    keep = good[..., None]
    floor = state.floor if np.any(state.floor > 0) else _SMALL * np.abs(merit)
    return state._replace(
        centre=np.where(keep, state.x, state.centre),
        merit=np.where(good, merit, state.merit),
        cost=np.where(good, cost, state.cost),
        risks=np.where(keep, risks, state.risks),
        gradient=np.where(keep[..., None], gradients, state.gradient),
        right=np.where(going, right & good, state.right),
        curvature=curvature,
        stiffness=stiffness,
        floor=floor,
    )
