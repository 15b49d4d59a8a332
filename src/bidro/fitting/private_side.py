"""What a client answers in a private fit, over its rows in memory: sums with noise, and nothing else.

Rows are z = (features, 1, target) in the agreed units, a numeric target in spreads of it; how they are
clipped, what is summed and how much noise is added is the `Plan`'s. Every number that is summed depends on
one row alone, to the last bit (`privacy.row_losses`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.fitting.questions import AtModel, Judge, NoisyGradients, NoisyLosses, NoisyMoments
from bidro.privacy import mechanisms
from bidro.privacy.discrete_gaussian import SECRET_BITS, Bits
from bidro.privacy.fixed_point import sum_of_columns
from bidro.privacy.row_losses import along, losses_and_gradients
from bidro.privacy.terms import Budget, Plan

# In a row of gradients the number beside them, as a share of the clip, where the gradient is so short that
# both together need not be clipped, and 0 elsewhere: it tells how many rows answer to a change of the model.
FACTOR = 0.25


class PrivateRows(NamedTuple):
    """One client's rows, those of training and those kept out."""

    training: Floats  # (N, m) z
    kept_out: Floats  # (M, m)
    units: NDArray[np.uint64] | None = None  # (M,) of which unit each row kept out is, where these are named

    @classmethod
    def of(
        cls,
        training: Floats,
        kept_out: Floats,
        units: NDArray[np.uint64] | None,
        kept_out_units: NDArray[np.uint64] | None,
        budget: Budget | None,
    ) -> PrivateRows:
        """From all rows z of both parts and the units that they are of, where these are named; of a unit no
        more rows are used than the budget is for. Raises BidroError where several rows of a person could not
        be told to be one's."""
        require_units(budget, units is not None)
        if units is None or kept_out_units is None:
            return cls(training, kept_out)
        if budget is not None:
            used, used_out = (at_most_each(own, budget.rows_per_person) for own in (units, kept_out_units))
            training, kept_out, kept_out_units = training[used], kept_out[used_out], kept_out_units[used_out]
        return cls(training, kept_out, kept_out_units)


def require_units(budget: Budget | None, named: bool) -> None:
    """Raise BidroError for a budget for people with several rows where nothing says whose a row is."""
    if budget is not None and budget.rows_per_person > 1 and not named:
        raise BidroError(
            "rows_per_person above 1 needs a column that says whose a row is: name it as the unit, so that "
            "all rows of one person are on one side of the split."
        )


class Answering(NamedTuple):
    """Who answers: its rows, by which plan, under which budget, with which random bits."""

    rows: PrivateRows
    plan: Plan
    budget: Budget | None  # None: without noise
    bits: Bits = SECRET_BITS

    @property
    def told(self) -> Floats:
        """The budget as it is sent."""
        return np.zeros(3) if self.budget is None else np.array(self.budget.numbers)

    def moments(self) -> NoisyMoments:
        found = mechanisms.moments(self.rows.training, self.plan.clip, *self._paid("moments"), bits=self.bits)
        return NoisyMoments(found.values, self.told)

    def gradients(self, asked: AtModel) -> NoisyGradients:
        clip, level = float(asked.clip), float(asked.level)
        rows = losses_and_gradients(self.rows.training, np.asarray(asked.x, float), self.plan.loss)
        slopes = along(rows[:, :-1], np.asarray(asked.directions, float))
        with np.errstate(over="ignore"):
            short = sum_of_columns(slopes**2) <= (1 - FACTOR**2) * clip**2
        beside = np.column_stack([slopes, FACTOR * clip * short, rows[:, -1]])
        found = mechanisms.gradients(beside, clip, level, *self._paid("gradients"), bits=self.bits)
        return NoisyGradients(found.values, self.told)

    def losses(self, asked: Judge) -> NoisyLosses:
        """Of rows kept out: their losses in parts of the level, and of classes the mistakes."""
        x, z = np.asarray(asked.x, float), self.rows.kept_out
        shares = np.minimum(losses_and_gradients(z, x, self.plan.loss)[:, -1] / float(asked.level), 1.0)
        paid = self.plan.paid_for_losses(self.budget)
        found = mechanisms.bernstein(self._draws(shares), self.plan.degree, *paid, bits=self.bits)
        mistakes = np.zeros(0, np.int64)
        if self.plan.classes:
            wrong = (sum_of_columns(z[:, :-1] * x) * z[:, -1] <= 0).astype(float)
            mistakes = mechanisms.bernstein(self._draws(wrong), 1, *paid, bits=self.bits).values
        return NoisyLosses(found.values, mistakes, self.told)

    def _paid(self, question: str) -> tuple[Fraction | None, int]:
        if self.budget is None:
            return None, 1
        return self.plan.cost(question, self.budget).rho, self.budget.rows_per_person

    def _draws(self, values: Floats) -> Floats:
        """Values of rows kept out, or of units the means over their rows."""
        units = self.rows.units
        if units is None or not len(values):
            return values
        order = np.argsort(units, kind="stable")
        _, first, counts = np.unique(units[order], return_index=True, return_counts=True)
        return np.minimum(np.add.reduceat(values[order], first) / counts, 1.0)


def in_agreed_units(rows: Floats, target_spread: float) -> Floats:
    """z (N, k + 2) of rows (N, k + 1) in standard units, the target last."""
    return np.column_stack([rows[:, :-1], np.ones(len(rows)), rows[:, -1] / target_spread])


def at_most_each(units: NDArray[np.uint64], most: int) -> NDArray[np.bool_]:
    """(N,) whether a row is among the first so many of its unit."""
    order = np.argsort(units, kind="stable")
    _, first, counts = np.unique(units[order], return_index=True, return_counts=True)
    rank = np.empty(len(units), np.int64)
    rank[order] = np.arange(len(units)) - np.repeat(first, counts)
    return rank < most
