"""Risks from replies of clients whose rows are in folds: a batch of models is one round, whether clients
answer from rows in this process, by compiled programs, or on other machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError
from bidro.federated.algorithm import Algorithm
from bidro.federated.engines.rounds import Ask, rounds
from bidro.risk.inner import Oracle
from bidro.risk.oracle import Given, Lift, Views
from bidro.selection.fold_queries import (
    TOGETHER,
    CutsBroadcast,
    FoldCuts,
    FoldRisks,
    RisksBroadcast,
)
from bidro.solvers.bundle.state import Reply as Cut

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

# A round that not all clients answer is repeated so often.
_MOST_REPEATS = 30


class FoldClients:
    """Clients that answer queries about folds, and how many rounds that has taken."""

    def __init__(self, ask: Ask, progress: Callable[[int, int], None] | None = None) -> None:
        self.ask, self.rounds, self._progress = ask, 0, progress

    def replies(self, query: Algorithm, message: Any) -> Any:
        """Of all clients, with a leading axis of clients. Raises BidroError where some never reply."""
        for one in rounds(self.ask, query, message, self.rounds + _MOST_REPEATS, self.rounds):
            self.rounds = one.t
            message = one.state
        if not getattr(message, "finished", False):
            raise BidroError(f"Not all clients replied in {_MOST_REPEATS} rounds; try again when they can.")
        return message.replies

    def progress(self, going: int) -> None:
        """Say how many solves go on, in this round; what is solved without one counts as the first."""
        if self._progress is not None:
            self._progress(max(self.rounds, 1), going)


@dataclass(frozen=True, eq=False)
class RepliesOracle:
    """A `RiskOracle` whose batches are rounds. Models of one batch with the same scale of the radii that
    leave out different folds share one curvature, over all rows at their mean: rows that a fold leaves out
    hardly change it, and curvature is most of a reply. `groups` says which do."""

    clients: FoldClients
    oracle: Oracle  # of the inner problems
    n: int
    folds: int
    lift: Lift
    candidates: int  # curvatures of a message, to which it is filled up
    solves: int  # models of the largest batch, to which messages are filled up
    groups: Whole  # (B,) models with the same number share their curvature
    views: Views

    def values(self, X: Numbers) -> Numbers:
        return self.expand(X, False).values

    def expand(self, X: Numbers, curved: ArrayLike = True) -> Given:
        scale, fold = self._views(len(X))
        models = np.column_stack([X, fold, scale])
        # Solves with the same model, fold and radius share one entry of the query.
        different, of_model = np.unique(models, axis=0, return_inverse=True)
        curved_at, of_hessian = self._curved_at(models, np.broadcast_to(curved, len(X)))
        # Filled up to the same lengths in every round, for which clients' programs are compiled once.
        length = -(-self.solves // TOGETHER) * TOGETHER
        valued, curved_parts = _filled(different, length), _filled(curved_at, self.candidates)
        message = RisksBroadcast(
            np.asarray(len(different)), *valued, np.asarray(len(curved_at)), *curved_parts
        )
        reply = self.clients.replies(FoldRisks(self.oracle), message)
        attained, smoothing, gradient, packed = (np.moveaxis(np.asarray(v), 0, 1) for v in reply)
        values = (attained + smoothing)[of_model.ravel()]
        if not np.all(np.isfinite(values)):
            raise BidroError(
                f"In round {self.clients.rounds} a client's risk is not finite; declare a bounded support."
            )
        columns = gradient.shape[-1]
        k = X.shape[1] + bool(self.lift.cones)
        above, right = np.triu_indices(columns)
        inside = right < k
        above, right = above[inside], right[inside]
        hessians = np.zeros((len(curved_at), self.n, k, k))
        hessians[..., above, right] = hessians[..., right, above] = packed[: len(curved_at)][..., inside]
        # Of replies from rows on the host, rounding is not taken off.
        lower, upper = np.full_like(values, -np.inf), np.full_like(values, np.inf)
        return Given(values, gradient[of_model.ravel()][..., :k], hessians, of_hessian, lower, upper)

    def _curved_at(self, models: Numbers, curved: NDArray[np.bool_]) -> tuple[Numbers, Whole]:
        """(where Hessians are wanted (hessians, d + 2), which of these is each model's (B,), -1 for none)."""
        which, middle = np.full(len(models), -1), models.copy()
        for group in np.unique(self.groups[curved]):
            some = self.groups == group
            middle[some, :-2], middle[some, -2] = models[some, :-2].mean(axis=0), self.folds
        # The models' own, where these are no more: as of models that leave nothing out.
        own, shared = (np.unique(each[curved], axis=0, return_inverse=True) for each in (models, middle))
        found, of_model = own if len(own[0]) <= len(shared[0]) else shared
        which[curved] = of_model.ravel()
        return found, which

    def with_radii(self, eps: ArrayLike, scale: ArrayLike = 0.0) -> RepliesOracle:
        """The clients know their own radii."""
        return replace(self, views=self.views.scaled(scale))

    def without_fold(self, fold: ArrayLike) -> RepliesOracle:
        return replace(self, views=self.views.without(fold))

    def only(self, which: Whole) -> RepliesOracle:
        return replace(self, groups=self.groups[which], views=self.views.only(which))

    def _views(self, count: int) -> Views:
        """One a model, with one past the last fold for none, as messages have it."""
        scale, fold = self.views.of(count)
        return Views(scale, np.where(fold < 0, self.folds, fold))

    def cuts(self, X: Numbers, widths: Numbers, sends_curvature: bool) -> list[Cut]:
        """The bundle method's cuts at each model, kinks smoothed over the widths (B,)."""
        scale, fold = self._views(len(X))
        parts: Any = (_padded(part, self.solves) for part in (X, widths, fold, scale))
        message = CutsBroadcast(np.asarray(len(X)), *parts)
        reply = self.clients.replies(FoldCuts(self.oracle, sends_curvature), message)
        each: Any = [[np.asarray(part)[:, j] for part in reply] for j in range(len(X))]
        return [Cut(*one) for one in each]


def _filled(models: Numbers, length: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(x, fold, scale) of (models, d + 2), filled up with zeros."""
    fold = models[:, -2].astype(np.int64)
    return _padded(models[:, :-2], length), _padded(fold, length), _padded(models[:, -1], length)


def _padded(values: NDArray[Any], length: int) -> NDArray[Any]:
    return np.pad(values, [(0, length - len(values)), *[(0, 0)] * (values.ndim - 1)])
