"""What the exact solver sends to its clients, what they reply, and what its server knows after each round."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.pytrees import namespace
from bidro.risk.inner import Inner
from bidro.risk.inner.ball import can_follow
from bidro.risk.rows_jax import RiskModel
from bidro.solvers.bundle.bound import DualBound
from bidro.solvers.bundle.model import ConeModel, Cuts, Indices

Numbers = NDArray[np.float64]

# Sent in place of an infinite multiplier, since messages hold finite numbers only.
INFINITE = float(np.finfo(float).max)
# Kinks are followed through so many models; of what was before, nothing is left in the slopes by then.
_MODELS = 12
_TINY = float(np.finfo(float).tiny)


class Broadcast(NamedTuple):
    x: Any  # (d,) the model to be assessed
    width: Any  # kinks of the loss are smoothed over this, in the client's own units


class Following(NamedTuple):
    """A broadcast where kinks of the loss are followed from model to model.

    The curvature by which a step goes right takes the slopes of kinks not where they are at the model but
    where the steps before have brought them (`losses.scalar`). Clients need not remember these: the server
    sends the models along.
    """

    x: Any  # (d,) the model to be assessed
    width: Any  # kinks of the loss are smoothed over this, in the client's own units
    before: Any  # (models, d + 1) those assessed before x, oldest first, each with its width

    @classmethod
    def of(cls, x: Numbers, width: Numbers, history: Numbers, count: int) -> Following:
        """With `count` models, of which `history` are the last: what comes before them, or x, is the same as
        they, which changes nothing."""
        known = history if len(history) else np.append(x, width)[None]
        first = np.broadcast_to(known[0], (count - len(known), known.shape[1]))
        return cls(x, width, np.vstack([first, known]))


class Reply(NamedTuple):
    """All that leaves a site, each number computed over all its rows."""

    upper: Any  # upper end of R_i(x); 0 where none is known
    certified: Any  # 1 where `upper` is proven, else 0
    attained: Any  # at x, of a cut below R_i
    gradient: Any  # (k,) of that cut
    smoothing: Any  # what the risk with smoothed kinks exceeds `attained` by
    curvature: Any  # upper triangle of H_i, row by row; empty where it is not sent
    multiplier: Any  # lambda_i; the largest float stands for infinity

    @classmethod
    def of(cls, found: RiskModel) -> Reply:
        xp = namespace(found.value)
        known = xp.isfinite(found.value)
        above = (..., *np.triu_indices(found.gradient.shape[-1]))
        packed = xp.zeros((*known.shape, 0)) if found.curvature is None else found.curvature[above]
        return cls(
            xp.where(known, found.value, 0.0),
            known.astype(float),
            found.attained,
            found.gradient,
            found.smoothing,
            packed,
            xp.minimum(found.multiplier, INFINITE),
        )


def kink_history(inner: Inner, sends_curvature: bool) -> int:
    """What `ExactMWDRO.kink_history` is to be over balls: more than 0 where losses have kinks to follow."""
    return _MODELS if sends_curvature and can_follow(inner) else 0


class Centre(NamedTuple):
    """The replies at the point around which programs are solved."""

    z: Numbers  # (k,)
    merit: float  # worst mixture of the smoothed risks; inf where any next point is to take its place
    origin: int  # where its cuts are
    attained: Numbers  # (n,)
    smoothing: Numbers  # (n,) what the smoothed risks exceed them by
    gradient: Numbers  # (n, k)
    curvature: Numbers  # (n, k (k + 1) / 2) upper triangles; (n, 0) where it is estimated


class Best(NamedTuple):
    """The best model so far, by the upper end of its worst mixture."""

    x: Numbers
    upper: float
    risks: Numbers  # (n,) upper ends, nothing taken off
    multipliers: Numbers  # (n,)
    certified: bool  # whether every client's upper end is proven


class Target(NamedTuple):
    """Where to stop: at this gap relative to the risk, or to the floor if that is more."""

    gap: float
    floor: float  # risks below this count as 0
    share: float | None = None  # of the first model's risk that the floor is; None where it is settled


class Step(NamedTuple):
    """How the model to be assessed next was chosen."""

    mixture: Numbers  # (n,) weights of the step, by which curvatures are mixed
    singly: Indices = np.zeros(0, np.int64)  # the clients that its program held one by one
    predicted: float = 0.0  # by how much the worst mixture of smoothed risks should fall
    extra_cut: bool = False  # whether the model is assessed for its cuts alone
    sharp: bool = False  # and these are to have the slopes to which kinks are followed, not smoothed ones


class Prox(NamedTuple):
    """The proximal term 1/2 weight (z - z_hat)' M (z - z_hat)."""

    weight: float = 1.0
    estimate: Numbers | None = None  # (k, k) quasi-Newton M, None before two gradients are known


class Smoothing(NamedTuple):
    """How kinks of the loss are smoothed, and through which models they are followed."""

    width: float
    history: Numbers = np.zeros((0, 0))  # (models, d + 1) assessed, each with its width
    left: float = np.inf  # upper minus lower bound, a round ago

    def after(self, x: Numbers, count: int) -> Smoothing:
        """With the last `count` models, now that all clients have answered for x too."""
        if not count:
            return self
        latest = np.append(x, self.width)[None]
        earlier = self.history.reshape(-1, latest.shape[1])
        return self._replace(history=np.vstack([earlier, latest])[-count:])


class State(NamedTuple):
    x: Numbers  # (d,) the model to be assessed next
    model: ConeModel
    cuts: Cuts
    centre: Centre
    best: Best
    dual: DualBound  # the best lower bound
    target: Target
    step: Step
    prox: Prox
    smoothing: Smoothing
    uncancelled: tuple[Numbers, ...]  # (d,) slopes that the proofs of this round could not cancel
    x_sum: Numbers  # of the models assessed so far
    t: int  # rounds done
    stalled: bool  # whether the next model would be the centre itself: nothing more can be gained

    @classmethod
    def begun(
        cls, x: Numbers, model: ConeModel, target: Target, weights: Numbers, dual: DualBound, width: float
    ) -> State:
        """Before the first round: the model x (d,), weights (n,) to begin with, and what is proven."""
        z, n = model.lift(x), len(weights)
        unknown, nothing = np.full(n, np.nan), np.zeros((n, 0))
        return cls(
            x=x,
            model=model,
            cuts=Cuts.none(len(z)),
            centre=Centre(z, np.inf, -1, unknown, unknown, nothing, nothing),
            best=Best(x, np.inf, unknown, unknown, certified=True),
            dual=dual,
            target=target,
            step=Step(weights),
            prox=Prox(),
            smoothing=Smoothing(width),
            uncancelled=(),
            x_sum=np.zeros_like(x),
            t=0,
            stalled=False,
        )

    def at(self, x: Numbers, mixture: Numbers | None = None, floor: float | None = None) -> State:
        """The same with another model to be assessed next, by a step of this mixture (n,); a floor that is
        given is settled, as that of a model from elsewhere says nothing of the size of residuals."""
        step = self.step if mixture is None else self.step._replace(mixture=mixture)
        target = self.target if floor is None else self.target._replace(floor=floor, share=None)
        return self._replace(x=x, step=step, target=target)

    @property
    def finished(self) -> bool:
        return self.stalled or self.gap <= self.target.gap

    def floor_from(self, first: float) -> float:
        """The floor, once the risk of the first model is known."""
        floor, share = self.target.floor, self.target.share
        return floor if share is None else max(min(share * abs(first), floor), _TINY)

    @property
    def gap(self) -> float:
        """(upper - lower) / size, see `size`.

        Where upper bounds are not certified, the distance of the lower ends to the best lower bound.
        """
        if not np.isfinite(self.best.upper):
            return float("inf")
        return (self.best.upper - self.dual.bound) / self.size

    @property
    def size(self) -> float:
        """max(|risk|, floor), the mean risk being `upper` where there are no references, and the floor a
        small share of the first model's; never 0, also where that model has no loss at all."""
        return max(abs(self.model.references.risk(self.best.upper)), self.target.floor, _TINY)

    @property
    def scale(self) -> float:
        """By how much the risks may still fall, as far as is known: the unit in which programs are solved.
        Risks that are never negative fall by no more than themselves."""
        left = self.best.upper - self.dual.bound
        signed = not self.model.nonnegative and np.isfinite(left)
        return float(np.clip(left, 1e-10 * self.size, max(left, self.size) if signed else self.size))
