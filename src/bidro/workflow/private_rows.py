"""How many rows each site would need under a privacy budget, from a model and a table like theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.private_plan import private_plan
from bidro.losses import Squared
from bidro.model_file import Model
from bidro.privacy.accounting import rho_of
from bidro.privacy.terms import Terms


@dataclass(frozen=True)
class PrivateRows:
    """What it takes that noise raises the mean loss by at most the share `excess`."""

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


def private_rows(
    model: Model, rows: Mapping[str, Floats], epsilon: float, delta: float, excess: float
) -> PrivateRows:
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
    # Losses of rows kept out have the rest.
    found = private_plan(z, len(rows), rho * (1 - Fraction(Terms().losses)))
    needed = found.rows(excess)
    has = {name: len(own) for name, own in rows.items()}
    return PrivateRows(epsilon, delta, excess, needed, has, found.excess(len(pooled) / len(rows)))
