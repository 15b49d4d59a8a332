"""How models from elsewhere are scored, where sites agree on that: the part [scores] of `schema.toml`.

Without it, no site scores any. What a loss counts as at most stands here, so that nobody takes it from the
rows that are certified; and how many models may be scored over one table, as each tells a little of its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bidro.errors import BidroError
from bidro.guarantees.asked import is_number
from bidro.losses.predicted import PredictedLoss

# Models that may be scored over one table.
_MOST_MODELS = 8


@dataclass(frozen=True)
class AgreedScores:
    """Raises BidroError for what stands for nothing."""

    loss: str = ""
    quantile: float = 0.5  # of the pinball loss
    largest: float | None = (
        None  # no loss counts as more; None for a loss that has a largest value of its own
    )
    models: int = 2  # over one table, in all runs

    def __post_init__(self) -> None:
        if not isinstance(self.loss, str) or not self.loss:
            raise BidroError('[scores] must name a loss: loss = "absolute".')
        if not is_number(self.quantile):
            raise BidroError(f"quantile in [scores] must be a number; got {self.quantile!r}.")
        loss = self.predicted
        if (self.largest is None) == (loss.largest(2) is None):
            given = (
                "a largest value of its own" if self.largest is not None else "no largest value of its own"
            )
            raise BidroError(
                f"[scores]: the {loss.in_words} has {given}; largest = NUMBER, as which larger ones count, "
                "is for losses that have none, and for all of these."
            )
        if self.largest is not None and not (is_number(self.largest) and 0 < self.largest < math.inf):
            raise BidroError(f"largest in [scores] must be a finite number above 0; got {self.largest!r}.")
        if type(self.models) is not int or not 1 <= self.models <= _MOST_MODELS:
            raise BidroError(
                f"models in [scores] must be a whole number from 1 to {_MOST_MODELS}; got {self.models!r}."
            )

    @property
    def predicted(self) -> PredictedLoss:
        return PredictedLoss(self.loss, float(self.quantile))

    def require_fits(self, classes: tuple[str, ...] | None) -> None:
        """Raise BidroError where the loss is for another kind of target."""
        if self.predicted.of_numbers != (classes is None):
            kind = "a number" if classes is None else "of classes"
            raise BidroError(f"[scores]: the {self.predicted.in_words} is not for a target that is {kind}.")

    def most(self, classes: tuple[str, ...] | None) -> float:
        """What a loss counts as at most."""
        found = self.predicted.largest(len(classes or ())) if self.largest is None else float(self.largest)
        assert found is not None
        return found
