"""What the exact solver knows after each round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.cone_model import ConeModel
from bidro.algorithms.cuts import Cuts

Numbers = NDArray[np.float64]

_TINY = float(np.finfo(float).tiny)


class Centre(NamedTuple):
    """The replies at the point around which the program is solved."""

    z: Numbers  # (k,)
    merit: float  # worst mixture of the smoothed risks
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


class State(NamedTuple):
    x: Numbers  # (d,) the model to be assessed next
    x_sum: Numbers  # of the models assessed so far
    width: float
    model: ConeModel
    cuts: Cuts
    idle: NDArray[np.int64]  # (cuts,) rounds since a program used it
    singly: NDArray[np.int64]  # the clients that the last step held one by one
    centre: Centre | None
    best: Best
    certified: bool  # whether every client's upper end at the best model is proven
    wanted: float  # the relative gap at which to stop
    small: float | None  # share of the first model's risk that `floor` is; None where it is settled
    floor: float  # risks below this count as 0
    endless: bool  # whether the loss is 0 only at infinity
    lower: float
    alpha: Numbers  # (n,) weights of the best lower bound
    mixture: Numbers  # (n,) weights of the last step, by which curvatures are mixed
    estimate: Numbers | None  # (k, k) quasi-Newton curvature, None before two gradients are known
    stiffness: float
    left: float  # upper minus lower bound, a round ago
    predicted: float  # by how much the worst mixture of smoothed risks should fall at x
    t: int  # rounds done
    missing: tuple[Numbers, ...]  # (d,) slopes that the proofs of this round could not cancel
    probing: bool  # whether x is asked for its cuts alone
    stalled: bool  # whether the next model would be the centre itself: nothing more can be gained
    before: Numbers = np.zeros((0, 0))  # (models, d + 1) asked about, and widths, where kinks are followed

    @property
    def finished(self) -> bool:
        return self.stalled or self.gap <= self.wanted

    def floor_from(self, first: float) -> float:
        """The floor, once the risk of the first model is known; that of a model from elsewhere says nothing
        of the size of residuals."""
        return self.floor if self.small is None else max(min(self.small * abs(first), self.floor), _TINY)

    @property
    def gap(self) -> float:
        """(upper - lower) / size, see `size`.

        Where upper bounds are not certified, the distance of the lower ends to the best lower bound.
        """
        if not np.isfinite(self.best.upper):
            return float("inf")
        return (self.best.upper - self.lower) / self.size

    @property
    def size(self) -> float:
        """max(|risk|, floor), the mean risk being `upper` where there are no references, and the floor a
        small share of the first model's."""
        return max(abs(self.model.references.risk(self.best.upper)), self.floor)

    @property
    def scale(self) -> float:
        """By how much the risks may still fall, as far as is known: the unit in which programs are solved."""
        return float(np.clip(self.best.upper - self.lower, 1e-10 * self.size, self.size))
