"""What a client answers in a private fit, over its rows in memory: sums with noise, and nothing else.

Rows are z = (features, 1, target) in the agreed units, a numeric target in spreads of it; how they are
clipped, what is summed and how much noise is added is the `Plan`'s. Every number that is summed depends on
one row alone, to the last bit (`privacy.row_arithmetic`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats, person_means
from bidro.core.errors import BidroError
from bidro.core.splits import label_ids, places
from bidro.data.splines import Basis
from bidro.fit.questions import (
    GradientsQuery,
    NoisyCount,
    NoisyGradients,
    NoisyHoldoutQuery,
    NoisyLosses,
    NoisyMoments,
)
from bidro.privacy import mechanisms
from bidro.privacy.discrete_gaussian import Bits, secret_bits
from bidro.privacy.masking import require_room
from bidro.privacy.row_arithmetic import along, losses_and_gradients, sum_of_columns
from bidro.privacy.table_one import STEPS, TableOne
from bidro.privacy.terms import Budget, Plan

if TYPE_CHECKING:
    import pandas as pd

    from bidro.data.tables import Schema

# The number after a row's gradient, as a share of the clip, where the gradient is so short that both together
# need not be clipped, and 0 elsewhere: its sum counts the rows whose gradients are not clipped.
FACTOR = 0.25


class PrivateRows(NamedTuple):
    """One client's rows, those of training and those held out."""

    training: Floats  # (N, m) z
    held_out: Floats  # (M, m)
    people: NDArray[np.uint64] | None = None  # (M,) of which person each held-out row is, if named

    @classmethod
    def of(
        cls,
        training: Floats,
        held_out: Floats,
        people: NDArray[np.uint64] | None,
        held_out_people: NDArray[np.uint64] | None,
        budget: Budget | None,
        most: int | None = None,
    ) -> PrivateRows:
        """From all rows z of both parts and the people that they are of, where these are named; of a person
        no more rows are used than the budget is for, nor than `most`. Raises BidroError where nothing says
        which rows are of one person."""
        if budget is not None and most is not None:
            budget = replace(budget, rows_per_person=min(most, budget.rows_per_person))
        require_people(budget, people is not None)
        if people is None or held_out_people is None:
            return cls(training, held_out)
        if budget is not None:
            used, used_out = (at_most_each(own, budget.rows_per_person) for own in (people, held_out_people))
            training, held_out, held_out_people = (
                training[used],
                held_out[used_out],
                held_out_people[used_out],
            )
        return cls(training, held_out, held_out_people)


def require_people(budget: Budget | None, named: bool) -> None:
    """Raise BidroError for a budget for people with several rows where nothing says whose a row is."""
    if budget is not None and budget.rows_per_person > 1 and not named:
        raise BidroError(
            "rows_per_person above 1 needs a column that says whose a row is: name it as `person`, so that "
            "all rows of one person are on one side of the split."
        )


class PrivateClient(NamedTuple):
    """A client of a private fit: its rows, the plan of releases, its budget and its random bits."""

    rows: PrivateRows
    plan: Plan
    budget: Budget | None  # None: without noise
    bits: Bits = secret_bits

    @classmethod
    def of(
        cls, rows: PrivateRows, plan: Plan, budget: Budget | None, bits: Bits = secret_bits
    ) -> PrivateClient:
        """Raises BidroError where noise is shared and it has no budget, or too many rows for masked sums."""
        if plan.shared is not None:
            if budget is None:
                raise BidroError(
                    "Where noise is shared every site needs a privacy budget, and this one has none."
                )
            plan.require_room(len(rows.training))
        return cls(rows, plan, budget, bits)

    @property
    def budget_numbers(self) -> Floats:
        """The budget as it is sent."""
        return np.zeros(3) if self.budget is None else np.array(self.budget.numbers)

    def moments(self) -> NoisyMoments:
        rho, rows, sites = self.plan.charge("moments", self.budget)
        found = mechanisms.moments(self.rows.training, self.plan.clip, rho, rows, self.bits, sites)
        return NoisyMoments(found.values, self.budget_numbers)

    def counts(self) -> NoisyCount:
        """Of the training rows, where noise is shared."""
        rho, rows, _ = self.plan.charge("counts", self.budget)
        found = mechanisms.count(len(self.rows.training), rho, rows, self.bits)
        return NoisyCount(found.values, self.budget_numbers)

    def gradients(self, query: GradientsQuery) -> NoisyGradients:
        clip, level = float(query.clip), float(query.level)
        rows = losses_and_gradients(self.rows.training, np.asarray(query.x, float), self.plan.loss)
        slopes = along(rows[:, :-1], np.asarray(query.directions, float))
        with np.errstate(over="ignore"):
            short = sum_of_columns(slopes**2) <= (1 - FACTOR**2) * clip**2
        columns = np.column_stack([slopes, FACTOR * clip * short, rows[:, -1]])
        rho, most, sites = self.plan.charge("gradients", self.budget)
        found = mechanisms.gradients(columns, clip, level, rho, most, self.bits, sites)
        return NoisyGradients(found.values, self.budget_numbers)

    def losses(self, query: NoisyHoldoutQuery) -> NoisyLosses:
        """Of held-out rows: their losses in parts of the level, and of classes the mistakes."""
        x, z = np.asarray(query.x, float), self.rows.held_out
        shares = np.minimum(losses_and_gradients(z, x, self.plan.loss)[:, -1] / float(query.level), 1.0)
        charge = self.plan.charge_of_losses(self.budget)
        found = mechanisms.bernstein(self._draws(shares), self.plan.degree, *charge, bits=self.bits)
        mistakes = np.zeros(0, np.int64)
        if self.plan.classes:
            wrong = (sum_of_columns(z[:, :-1] * x) * z[:, -1] <= 0).astype(float)
            mistakes = mechanisms.bernstein(self._draws(wrong), 1, *charge, bits=self.bits).values
        return NoisyLosses(found.values, mistakes, self.budget_numbers)

    def _draws(self, values: Floats) -> Floats:
        """Values of held-out rows, or of people the means over their rows."""
        people = self.rows.people
        if people is None or not len(values):
            return values
        return person_means(values, people)[0]


def own_sums(
    asked: TableOne,
    schema: Schema,
    table: pd.DataFrame,
    budget: Budget | None,
    plan: Plan | None = None,
    bits: Bits = secret_bits,
) -> mechanisms.Noisy:
    """One client's sums for Table 1, with the noise of its share where noise is shared by a plan. Raises
    BidroError for a table that does not fit the schema or the budget."""
    if len(table) == 0:
        raise BidroError("The table has no rows; there is nothing to describe.")
    rho, most, sites = None, 1, 1
    if plan is not None:
        rho, most, sites = plan.charge("describe", budget)
    elif budget is not None:
        rho, most = budget.rho, budget.rows_per_person
    labels = schema.people(table)
    if budget is not None:
        require_people(replace(budget, rows_per_person=most), labels is not None)
        if labels is not None:
            table = table.loc[at_most_each(label_ids(labels), most)]
    if plan is not None:
        require_room(len(table), plan.sites, STEPS, max(asked.scale(rho, most).variance))
    return asked.noisy(asked.steps(schema, table), rho, most, bits, sites)


def in_agreed_units(rows: Floats, target_spread: float, basis: Basis | None = None) -> Floats:
    """z (N, m) of rows (N, k + 1) in standard units, the target last; with the columns of curves in place of
    the features, each of which depends on one number of the row."""
    features = rows[:, :-1] if basis is None else np.asarray(basis.expand(rows[:, :-1]))
    return np.column_stack([features, np.ones(len(rows)), rows[:, -1] / target_spread])


def at_most_each(people: NDArray[np.uint64], most: int) -> NDArray[np.bool_]:
    """(N,) whether a row is among the first so many of its person."""
    order = np.argsort(people, kind="stable")
    rank = np.empty(len(people), np.int64)
    rank[order] = places(np.unique(people, return_counts=True)[1])
    return rank < most
