"""The clients that the server's program holds: few, however many there are.

Of n clients a program needs those one by one whose weights are not settled: near the worst for a simplex,
near the level at which weights meet their caps for a capped simplex. The rest are left out (simplex), or held
in groups, whose members share their weight in fixed proportions. Both only take weights away from A: what is
proven with the weights that are left holds for all of A, and so the lower bound needs no other proof.

Whether they were the right ones is seen at the solution: where the worst mixture of all clients is worse than
that of those held, the ones who are now near are held too, and the program is solved again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bidro.algorithms.cone_model import Answer, ConeModel, Curvature
from bidro.algorithms.cuts import Cuts
from bidro.problem import Mixtures
from bidro.sets import CappedSimplex, L1SimplexBall, Simplex

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]

# This many clients more than there are coordinates are held one by one around each place that matters, and
# all of them where there are few times as many.
_NEAREST = 20
_FEW_TIMES = 3
# Groups begin where the rank's distance from such a place has grown by this factor.
_GROWTH = 1.25
# A program is solved again, at most so often, where leaving out costs more than this share of what is left.
_PASSES = 6
_COSTS = 1e-2
_USED = 1e-9


class WorkingSet(NamedTuple):
    """Members in place of clients: member j stands for sum_i share_ji R_i, `mixtures` are their weights."""

    singly: Indices  # the clients that are members by themselves
    share: sparse.csr_matrix  # (members, n), rows summing to 1
    mixtures: Mixtures  # of members; with `share`, a part of A

    @classmethod
    def around(cls, mixtures: Mixtures, tops: Numbers, nearest: int, also: Indices) -> WorkingSet:
        """Holds the `nearest` clients around each place that matters if their risks were `tops` (n,), and
        `also` those one by one."""
        n = len(tops)
        if isinstance(mixtures, Simplex):
            singly = np.union1d(np.argpartition(-tops, nearest)[:nearest], also)
            rest, label = np.zeros(0, np.int64), np.zeros(0, np.int64)
        else:
            order = np.argsort(-tops, kind="stable")
            rank = np.empty(n, np.int64)
            rank[order] = np.arange(n)
            places = _places(mixtures, order)
            distance = np.min([np.abs(rank - place) for place in places], axis=0)
            singly = np.union1d(np.flatnonzero(distance < nearest), also)
            rest = np.setdiff1d(np.arange(n), singly)
            # Groups are apart before, between and after the places, and halfway between two of them.
            side = np.searchsorted(places, rank) * 2 + (np.abs(rank - places[0]) > distance)
            step = np.log(np.maximum(distance, nearest) / nearest) / np.log(_GROWTH)
            label = (side * (n + 1) + step.astype(np.int64))[rest]
        group = np.full(n, -1)
        group[singly] = np.arange(len(singly))
        group[rest] = len(singly) + np.unique(label, return_inverse=True)[1]
        return cls(singly, *_members(mixtures, group))

    def of(self, model: ConeModel) -> ConeModel:
        """The model with members in place of clients."""
        references = model.references.of_members(self.share)
        return model._replace(mixtures=self.mixtures, references=references)

    def cuts(self, cuts: Cuts) -> Cuts:
        """Those of the members: of an origin that all its clients have cuts of."""
        n, parts = self.share.shape[1], []
        for origin, rows in cuts.blocks():
            share, owner = self.share, cuts.owner[rows]
            complete = np.arange(share.shape[0])
            if len(owner) < n:
                has = np.zeros(n)
                has[owner] = 1.0
                complete = np.flatnonzero((share != 0) @ (1 - has) == 0)
                share = share[complete][:, owner]
            of = np.full(len(complete), origin)
            parts.append((complete, share @ cuts.value[rows], share @ cuts.gradient[rows], of))
        owners, value, gradient, origins = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Cuts(owners, value, gradient, origins, cuts.points)

    def weights(self, alpha: Numbers) -> Numbers:
        """(n,) of the clients, if these are those of the members."""
        return np.asarray(self.share.T @ alpha)

    def used(self, all_cuts: Cuts, own: Cuts, multipliers: Numbers) -> NDArray[np.bool_]:
        """Which of all cuts the members' cuts with such multipliers are made of."""
        marks = np.zeros(len(all_cuts.owner), bool)
        taken = multipliers > _USED
        for origin, rows in all_cuts.blocks():
            who = np.zeros(self.share.shape[0])
            who[own.owner[taken & (own.origin == origin)]] = 1.0
            marks[rows] = (self.share.T @ who)[all_cuts.owner[rows]] > 0
        return marks


class Solved(NamedTuple):
    """What a program gave, over the members that it held."""

    held: WorkingSet | None  # None for all clients, one by one
    model: ConeModel  # with the members' mixtures
    cuts: Cuts  # the members', none of them raised
    answer: Answer  # of the members
    value: float  # worst mixture of all clients' cuts at the answer
    used: NDArray[np.bool_]  # (all cuts,)
    singly: Indices  # the clients held one by one that count

    def clients(self, alpha: Numbers) -> Numbers:
        """(n,) the clients' weights, if these are those of the members."""
        return alpha if self.held is None else self.held.weights(alpha)

    @property
    def alpha(self) -> Numbers:
        """(n,)"""
        return self.clients(self.answer.alpha)


def solved(
    model: ConeModel,
    cuts: Cuts,
    z: Numbers,
    curvature: Curvature | None,
    scale: float,
    also: Indices,
    before: Solved | None = None,
    origin: int = 0,
    raised: Numbers | None = None,
) -> Solved | None:
    """Solve the program of `ConeModel.solve` over as few clients as will do; None where the solver fails.

    `also` are clients to be held in any case; `before` is what nearly the same program gave. The cuts of
    `origin` count as `raised` by so much (n,).
    """
    n = model.mixtures.dimension
    all_cuts = cuts if raised is None else cuts.raised(origin, raised)
    nearest = len(z) + _NEAREST
    if n <= _FEW_TIMES * nearest:
        answer = model.solve(all_cuts, z, curvature, scale)
        if answer is None:
            return None
        used = answer.multipliers > _USED
        return Solved(None, model, cuts, answer, answer.value, used, np.unique(cuts.owner[used]))
    best, tops = None, all_cuts.highest(z if before is None else before.answer.z, n)
    if before is not None and before.held is not None:
        also = before.held.singly
    for _ in range(_PASSES):
        held = WorkingSet.around(model.mixtures, tops, nearest, also)
        part, own = held.of(model), held.cuts(cuts)
        answer = part.solve(
            own if raised is None else own.raised(origin, held.share @ raised), z, curvature, scale
        )
        if answer is None:
            break
        tops = all_cuts.highest(answer.z, n)
        value = model.worst_mixture(tops)
        # Who has weight in a simplex is not settled; around a cap, the nearest are found afresh.
        counts = held.singly[(answer.alpha[: len(held.singly)] > _USED) & isinstance(model.mixtures, Simplex)]
        used = held.used(cuts, own, answer.multipliers)
        found = Solved(held, part, own, answer, value, used, counts)
        if best is None or value < best.value:
            best = found
        if value - answer.value <= _COSTS * scale:
            break
        also = held.singly
    return best


def _places(mixtures: Mixtures, order: Indices) -> Indices:
    """The ranks around which weights are not settled, the worst client having rank 0."""
    if isinstance(mixtures, Simplex):
        return np.zeros(1, np.int64)
    if isinstance(mixtures, CappedSimplex):
        lower, upper = np.asarray(mixtures.lower), np.asarray(mixtures.upper)
        room, total = (upper - lower)[order], 1 - lower.sum()
    else:
        # The worst client gains what the least bad ones lose.
        room, total = np.asarray(mixtures.center)[order[::-1]], float(mixtures.radius) / 2
    last = min(int(np.searchsorted(np.cumsum(room), total)), len(order) - 1)
    if isinstance(mixtures, L1SimplexBall):
        return np.unique([0, len(order) - 1 - last])
    return np.array([last])


def _members(mixtures: Mixtures, group: Indices) -> tuple[sparse.csr_matrix, Mixtures]:
    """The clients' shares in their groups (n,), -1 for none, and the weights of A that are in proportion."""
    n, count = len(group), int(group.max()) + 1
    held = np.flatnonzero(group >= 0)
    of = group[held]
    size = np.bincount(of, minlength=count).astype(float)

    def shares(by: Numbers, total: Numbers) -> sparse.csr_matrix:
        # Where none has any, all have the same.
        data = np.where(total[of] > 0, by[held] / np.where(total > 0, total, 1.0)[of], 1 / size[of])
        return sparse.csr_matrix((data, (of, held)), (count, n))

    if isinstance(mixtures, Simplex):
        return shares(np.ones(n), size), Simplex(count)
    if isinstance(mixtures, L1SimplexBall):
        center = np.asarray(mixtures.center)
        total = np.bincount(of, center[held], count).astype(float)
        return shares(center, total), L1SimplexBall(jnp.asarray(total / total.sum()), mixtures.radius)
    # What a group may have above its clients' least weights goes to them in proportion to their room; their
    # least weights are a member of their own, of a weight that is settled.
    lower, room = np.asarray(mixtures.lower), np.asarray(mixtures.upper) - np.asarray(mixtures.lower)
    least, above = (np.bincount(of, part, count).astype(float) for part in (lower[held], room[held]))
    apart = np.flatnonzero((least > 0) & (size > 1))
    share = sparse.vstack([shares(room, above), shares(lower, least)[apart]], format="csr")
    fixed = np.where(size == 1, least, 0.0)
    ends = (np.append(fixed, least[apart]), np.append(fixed + above, least[apart]))
    return share, CappedSimplex(*map(jnp.asarray, ends))
