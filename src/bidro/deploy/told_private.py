"""Whether what a site tells with noise can be what the agreed sums of any rows are, noise included.

Noise hides most lies, and a consistent one cannot be refuted. What is left to check: that the budget is one,
and the same in every reply, and that no sum lies where none of any rows does by far more than the noise that
the budget and the agreement stand for can move it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bidro.errors import BidroError
from bidro.fitting.private_side import FACTOR
from bidro.fitting.questions import AtModel, NoisyGradients, NoisyLosses, NoisyMoments
from bidro.privacy.mechanisms import Noisy, Scale, symmetric
from bidro.privacy.terms import Budget, Plan

# Normal noise beyond so many standard deviations is met once in 10^100 times.
_FAR = 22.0
# What rounding to whole steps, and that of this check, can do to a sum of n rows, as a share of it.
_ROUNDING = 1e-6


@dataclass(eq=False)
class ToldPrivately:
    """What one client has told so far."""

    plan: Plan
    budget: Budget | None = None
    begun: bool = field(default=False)

    def moments(self, reply: NoisyMoments, rows: int) -> None:
        """Raise BidroError for second moments that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        scale = self.plan.moments_scale(self.budget)
        told, noise = symmetric(self._sums(reply.values, scale), self.plan.columns), float(scale.sigma[0])
        # The largest eigenvalue of the noise is about s sqrt(2 m), and strays by s.
        m = self.plan.columns
        room = noise * (np.sqrt(2 * m) + _FAR) + _ROUNDING * float(np.abs(told).max())
        least = float(np.linalg.eigvalsh(told)[0])
        if least < -room:
            raise BidroError(
                f"it tells second moments with an eigenvalue of {least:.3g}, which no rows and no noise have."
            )

    def gradients(self, asked: AtModel, reply: NoisyGradients, rows: int) -> None:
        """Raise BidroError for gradients and losses that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        clip, level = float(asked.clip), float(asked.level)
        scale = self.plan.gradients_scale(self.budget, clip, level)
        sums, noise = self._sums(reply.values, scale), scale.sigma
        factor, loss = float(sums[-2]) / (FACTOR * clip), float(sums[-1])
        of_factor = _FAR * float(noise[-2]) / (FACTOR * clip)
        if factor < -of_factor or loss < -_FAR * float(noise[-1]):
            raise BidroError("it tells a number of rows, or a sum of losses, far below 0.")

    def losses(self, reply: NoisyLosses, rows: int) -> None:
        """Raise BidroError for counts of rows kept out that no rows have."""
        self._require_budget(reply.budget, rows, reply.exact)
        scale = self.plan.losses_scale(self.budget)
        sums, noise = self._sums(reply.values, scale), float(scale.sigma[0])
        self._require_counts(sums, noise)
        if not self.plan.classes:
            return
        scale = self.plan.mistakes_scale(self.budget)
        wrong, of_wrong = self._sums(reply.mistakes, scale), float(scale.sigma[0])
        self._require_counts(wrong, of_wrong)
        both = float(np.hypot(noise * np.sqrt(len(sums)), of_wrong * np.sqrt(2)))
        if abs(float(sums.sum() - wrong.sum())) > _FAR * both + _ROUNDING * float(np.abs(sums).sum()):
            raise BidroError(
                f"it tells of about {sums.sum():.0f} rows kept out by their losses, and of about "
                f"{wrong.sum():.0f} by its mistakes."
            )

    def _require_counts(self, sums: Any, noise: float) -> None:
        if float(sums.min()) < -_FAR * noise:
            raise BidroError(f"it tells {sums.min():.3g} as a sum of shares of rows kept out.")

    def _require_budget(self, numbers: Any, rows: int, exact: Any) -> None:
        try:
            found = Budget.told(tuple(np.asarray(numbers, float).tolist()))
        except BidroError as error:
            raise BidroError(f"it tells of a privacy budget that is none: {error}") from error
        if self.begun and found != self.budget:
            raise BidroError("it tells of another privacy budget than before.")
        if (found is None) != (rows > 0):
            raise BidroError("it says over how many rows a reply with noise is, or not of one without.")
        if float(exact) not in (0.0, 1.0):
            raise BidroError("it does not say whether exact sums have left it before.")
        self.budget, self.begun = found, True

    def _sums(self, values: Any, scale: Scale) -> Any:
        return Noisy(np.asarray(values), scale).sums
