"""`python -m tests.risk.oracles FILE`: what every oracle says of the same problems, in a process in which XLA
optimises as it does for users."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bidro.ambiguity import WassersteinBall
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.data.splines import Basis
from bidro.federated.engines.rounds import FoldSpec
from bidro.losses import Huber, Logistic, Loss, Softmax, Squared
from bidro.problem.problem import Problem
from bidro.risk.inner import Exact
from bidro.risk.moments import Moments, MomentsOracle, of_clients, of_some, smoothed
from bidro.risk.oracle import NO_LIFT, Lift, QuadraticRisks, Views
from bidro.risk.rows_curves import CurveOracle, CurveRows
from bidro.risk.rows_numpy import FoldedRows, RowsOracle
from bidro.risk.transport import Transport
from bidro.selection.replies import FoldClients, RepliesOracle
from tests.risk.plain import Stated
from tests.small import ByBytes, Compiled

SIZES = (12, 30, 21)
SCALE = np.array([0.5, 2.0])
KNOTS = ((-0.5, 0.4), ())
DEAL = FoldSpec(3, 4)
# The share of the target's deviation over which compiled clients smooth: a ten-thousandth of a width of 2.
SMOOTHED = 2e-4
# Models of a batch leave out a fold each, or none, and have radii of their own.
FOLDS, SCALES = np.array([0, 2, -1, 1, 0]), np.array([0.0, 0.4, 0.9, 0.4, 0.2])


@dataclass(frozen=True)
class Stating:
    """A problem, and who can state it."""

    word: str
    loss: Loss
    radii: bool
    backends: tuple[str, ...]

    @cached_property
    def rows(self) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        found = []
        for i, size in enumerate(SIZES):
            own = rng.normal(size=(size, 3)) + 0.2 * i
            if self.loss.labels is not None:
                own[:, -1] = rng.choice(self.loss.labels, size)
                own[: 4 if i else size, -1] = self.loss.labels[-1]  # the first client has one class alone
            found.append(own)
        return found

    @cached_property
    def problem(self) -> Problem:
        labelled = self.loss.labels is not None
        transport = Transport(
            np.append(SCALE, 1.0 if labelled else np.inf), 2.0 if self.word == "squared" else 1.0, labelled
        )
        federation = Federation.from_arrays({f"c{i}": own for i, own in enumerate(self.rows)}, "unbounded")
        models = Box.cube(50.0, self.loss.dimension(3))
        return Problem(federation, self.loss, models, transport, WassersteinBall(self.eps))

    @property
    def eps(self) -> np.ndarray:
        return np.array([0.0, 0.3, 0.1]) * self.radii

    @property
    def scales(self) -> np.ndarray:
        return SCALES * self.radii

    @cached_property
    def fold_ids(self) -> np.ndarray:
        return np.asarray(self.problem.federation.folds(*DEAL))

    @property
    def lift(self) -> Lift:
        if not self.radii:
            return NO_LIFT
        return Lift(tuple(self.loss.steepness_cones(self.problem.transport.inverse_scale)))

    @cached_property
    def models(self) -> np.ndarray:
        return 0.6 * np.random.default_rng(8).normal(size=(len(FOLDS), self.problem.dimension))

    @cached_property
    def alpha(self) -> np.ndarray:
        """(B, n)"""
        return np.random.default_rng(9).dirichlet(np.ones(3), len(FOLDS))

    def stated(
        self, client: int, fold: int, scale: float, backend: str = "rows", alone: bool = False
    ) -> Stated:
        """The risk of a client without a fold, for `plain`; `alone` where no other model is asked about.

        Compiled clients, and those that are asked about a radius, smooth the root of squared loss at an exact
        fit by a share of the target's deviation, and reply with the risk that this gives: nobody asks them
        for it, as second moments tell all of squared loss.
        """
        own = np.split(self.fold_ids, np.cumsum(SIZES)[:-1])[client]
        rows, d = self.rows[client][own != fold], self.problem.dimension
        penalty, pull = self.loss.penalty, self.loss.pull(d)
        form = (0 if penalty is None else penalty) + (0 if pull is None else pull / len(rows))
        knots = ((), ()) if self.loss.basis is None else KNOTS
        eps = self.eps[client] + scale / np.sqrt(len(rows))
        whole = self.word, knots, self.loss.intercept, SCALE, rows, float(eps), np.broadcast_to(form, (d, d))
        asked = self.radii and not (alone and eps == 0)
        if self.word != "squared" or not (backend == "compiled" or (backend == "bytes" and asked)):
            return Stated(*whole)
        return Stated(*whole, (SMOOTHED * rows[:, -1].std()) ** 2)

    def oracle(self, backend: str, views: Views) -> Any:
        """That of a backend, with one view a model."""
        made = {"moments": self._moments, "rows": self._rows, "curves": self._curves}
        oracle: Any = made[backend]() if backend in made else self._replies(backend, views)
        return oracle.without_fold(views.fold).with_radii(self.eps, views.scale)

    def _rows(self) -> RowsOracle:
        folded = FoldedRows(self.problem.federation.host_rows, np.array(SIZES), self.fold_ids)
        return RowsOracle(self.problem.inner, folded, self.eps, self.lift)

    def _moments(self) -> MomentsOracle:
        samples, sizes, loss = self.problem.federation.host_rows, np.array(SIZES), self.loss
        assert isinstance(loss, Squared)

        def of(fold: int) -> Moments:
            if fold < 0:
                return smoothed(of_clients(samples, sizes, loss), loss)
            return smoothed(of_some(samples, sizes, self.fold_ids != fold, loss), loss)

        def counts(fold: int) -> np.ndarray:
            owner = np.repeat(np.arange(3), SIZES)
            return np.bincount(owner[self.fold_ids != fold], minlength=3).astype(float)

        return MomentsOracle(loss, of, counts, self.eps, self.lift)

    def _curves(self) -> _Curves:
        return _Curves(self)

    def _replies(self, backend: str, views: Views) -> RepliesOracle:
        networks = {"compiled": Compiled(), "bytes": ByBytes(), "compiled bytes": ByBytes(True)}
        clients = FoldClients(networks[backend].clients_of(self.problem, DEAL))
        B = len(views.fold)
        groups = np.unique(views.scale, return_inverse=True)[1].ravel()
        return RepliesOracle(clients, Exact(), 3, DEAL.folds, self.lift, B, 5, groups, views)


class _Curves:
    """`CurveOracle` has one view; here one of each fold."""

    def __init__(self, case: Stating, folds: np.ndarray | None = None) -> None:
        self.case, self.folds = case, folds

    def without_fold(self, folds: np.ndarray) -> _Curves:
        return _Curves(self.case, folds)

    def with_radii(self, eps: np.ndarray, scale: np.ndarray) -> _Curves:
        assert not np.any(eps)
        assert not np.any(scale)
        return self

    def only(self, which: np.ndarray) -> Any:
        if len(which) > 1:
            return _Curves(self.case, self.folds[which])
        case = self.case
        assert isinstance(case.loss, Squared)
        rows = CurveRows(case.loss, case.problem.federation.host_rows, np.array(SIZES))
        return CurveOracle(rows, case.fold_ids != self.folds[which[0]]).exactly()

    def values(self, X: np.ndarray) -> np.ndarray:
        return np.stack([self.only(np.array([b])).values(x[None])[0] for b, x in enumerate(X)])


CURVES: dict[str, Any] = {"basis": Basis(KNOTS), "smoothing": 0.3}
HOST, REPLIES = ("rows",), ("compiled", "bytes")
CASES: dict[str, Stating] = {
    "squared": Stating("squared", Squared(True), True, ("moments", "compiled", "bytes")),
    "squared, no radii": Stating("squared", Squared(True), False, ("moments", "rows", *REPLIES)),
    "squared curves": Stating("squared", Squared(True, **CURVES), True, ("moments", "compiled")),
    "squared curves, no radii": Stating(
        "squared", Squared(True, **CURVES), False, ("moments", "rows", "curves", "compiled")
    ),
    "logistic": Stating("logistic", Logistic(True, pseudo_rows=1.5), True, ("rows", "compiled", "bytes")),
    "logistic, no radii": Stating(
        "logistic", Logistic(pseudo_rows=1.5), False, ("rows", *REPLIES, "compiled bytes")
    ),
    "logistic curves": Stating(
        "logistic", Logistic(True, pseudo_rows=0.5, **CURVES), True, ("rows", *REPLIES)
    ),
    "huber": Stating("huber", Huber(True), True, ("rows", *REPLIES)),
    "huber curves, no radii": Stating("huber", Huber(True, **CURVES), False, ("rows", *REPLIES)),
    "softmax": Stating("softmax", Softmax(3, True, pseudo_rows=1.5), True, ("rows", *REPLIES)),
    "softmax, no radii": Stating("softmax", Softmax(3), False, ("rows", *REPLIES)),
    "softmax curves": Stating(
        "softmax", Softmax(3, True, pseudo_rows=0.5, **CURVES), True, ("rows", *REPLIES)
    ),
}


def told(case: Stating, backend: str) -> dict[str, Any]:
    """What one backend says: of a batch, of each of its models alone, and of folds that share Hessians."""
    oracle = case.oracle(backend, Views(case.scales, FOLDS))
    found: dict[str, Any] = {"values alone": oracle.values(case.models)}
    if backend != "curves":
        batch = oracle.expand(case.models)
        found |= {name: getattr(batch, name) for name in ("values", "gradients", "lower", "upper")}
        folds = Views(np.full(3, case.scales[1]), np.array([1, 0, -1]))
        together = case.oracle(backend, folds).expand(case.models[:3])
        found["shared"] = np.stack([together.hessian(b, case.alpha[b]) for b in range(3)])
    each = [oracle.only(np.array([b])).expand(x[None]) for b, x in enumerate(case.models)]
    for name in ("values", "gradients", "lower", "upper"):
        found[f"{name} of one"] = np.concatenate([getattr(one, name) for one in each])
    found["mixed"] = np.stack([one.hessian(0, case.alpha[b]) for b, one in enumerate(each)])
    if backend != "curves":
        found["hessians"] = np.stack([one.hessians(0) for one in each])
        found["views"] = oracle.only(np.array([3, 1])).values(case.models[[3, 1]])
    return {name: np.asarray(value) for name, value in found.items()}


def quadratic() -> dict[str, Any]:
    """A quadratic oracle at models, and what it is made of."""
    case, rng = CASES["softmax"], np.random.default_rng(3)
    z, root = (
        case.lift.lifted(case.models[0]),
        rng.normal(size=(3, case.models.shape[1] + 1, case.models.shape[1] + 1)),
    )
    parts = (z, rng.normal(size=3), rng.normal(size=(3, len(z))), root @ root.swapaxes(1, 2))
    risks = QuadraticRisks(*parts, case.lift)
    found = risks.expand(case.models)
    mixed = np.stack([found.hessian(b, case.alpha[b]) for b in range(len(case.models))])
    some = risks.of_clients([2, 0]).values(case.models)
    return {"parts": parts, "Z": case.lift.lifted(case.models), "values": found.values, "some": some,
            "gradients": found.gradients, "mixed": mixed, "alone": risks.values(case.models)}  # fmt: skip


if __name__ == "__main__":
    everything: dict[Any, Any] = {
        (name, backend): told(case, backend) for name, case in CASES.items() for backend in case.backends
    }
    everything["quadratic"] = quadratic()
    Path(sys.argv[1]).write_bytes(pickle.dumps(everything))
