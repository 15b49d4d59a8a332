"""`bidro plan`: the problem of a saved model on its declared support under any mixture, and the rows that a
privacy budget needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from bidro.certify.plan import noise_cost
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.data.tables import bounds_of
from bidro.fit.settings import FitSettings
from bidro.fit.training import transport_of, unrestricted
from bidro.losses import Squared
from bidro.model.model_file import Model
from bidro.privacy.accounting import rho_of
from bidro.privacy.terms import Terms
from bidro.problem.problem import Problem


def declared_problem(model: Model, rows: Mapping[str, NDArray[np.float64]]) -> Problem:
    """The problem of a model over rows (N_i, m) by client, in the units of training. Raises BidroError
    without a declared support, and for a model fitted by people, whose rows are not independent draws."""
    settings = model.settings
    if settings.get("support") is None:
        raise BidroError("The model was fitted without a declared support; fit it with --support FILE.")
    if model.schema.person is not None:
        raise BidroError(
            f"The model was fitted by people ('{model.schema.person}'), and the Wasserstein interval needs "
            "rows that are independent draws; judge it by held-out rows."
        )
    columns = [*model.schema.features, model.schema.target]
    federation = Federation.from_arrays(dict(rows), "unbounded", columns)
    box = model.standard.box(bounds_of(settings["support"], model.schema), model.loss.labels)
    metric = FitSettings(metric=settings["metric"], label_cost=settings["label_cost"], p=settings["p"])
    transport = transport_of(model.loss, federation.m, metric, model.standard.target_spread)
    return unrestricted(replace(federation, support=box), model.loss, transport, model.standard.target_spread)


@dataclass(frozen=True)
class BudgetPlan:
    """How many rows a privacy budget needs, so that its noise raises the mean loss by at most `excess`."""

    epsilon: float
    delta: float
    excess: float
    needed: int  # rows a site
    rows: dict[str, int]  # that each has
    now: float  # the share by which noise raises the loss with the mean number of rows that they have

    @property
    def advice(self) -> str:
        return (
            f"With epsilon = {self.epsilon:g} and delta = {self.delta:g} at each of {len(self.rows)} sites, "
            f"about {self.needed:,} rows a site keep what the noise costs below {100 * self.excess:.3g}% of "
            f"the mean squared error; with those of these tables it would cost about {100 * self.now:.3g}%. "
            "That is of one release of second moments, with what a private fit has for training, to first "
            "order. It is no upper end for a private fit, which asks for gradients too and clips rows: where "
            "rows lie far out, or few have a level, that can cost many times as much. Try bidro fit "
            "--epsilon on tables like these."
        )


def rows_for_budget(
    model: Model, rows: Mapping[str, Floats], epsilon: float, delta: float, excess: float
) -> BudgetPlan:
    """From rows (N_i, m) of every client, in the units of training. Raises BidroError for another loss than
    the squared one, of which no formula is known, and for a budget or a share that is none."""
    rho = rho_of(epsilon, delta)
    if not isinstance(model.loss, Squared) or model.loss.basis is not None:
        raise BidroError(
            "How many rows a privacy budget needs is known for squared loss without curves only; try others "
            "with bidro fit --epsilon."
        )
    pooled = np.concatenate(list(rows.values()))
    ones, target = np.ones(len(pooled)), pooled[:, -1] / model.standard.target_spread
    z = np.column_stack([pooled[:, :-1], ones, target])
    # Held-out losses have the rest.
    found = noise_cost(z, len(rows), rho * (1 - Fraction(Terms().losses)))
    needed = found.rows(excess)
    has = {name: len(own) for name, own in rows.items()}
    return BudgetPlan(epsilon, delta, excess, needed, has, found.excess(len(pooled) / len(rows)))
