"""Two models on the same rows: a bound of the difference of their mean losses, under any mixture.

Both losses of a row lie in [0, R], so that the difference d lies in [-R, R] and (d + R) / 2R in [0, 1]: the
bound of a client's true mean difference is the held-out bound of d + R, with largest value 2R, less R. What
makes a row hard for both models cancels in d, so that far fewer rows tell two models apart than two bounds
of their losses would need.

If the bound is below 0, the loss that is compared is lower at every client: it fails only where the bound of
the client at which the model truly does worst against the other fails, which has probability at most
1 - confidence. Where losses can be larger than R and count as R, that is not to say that the model is better:
rare losses far above R may make it worse, and of them nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bidro.guarantees.held_out import OverRows, checked_losses, draws_in_words, held_out
from bidro.guarantees.mean_bounds import VACUOUS_SHARE
from bidro.trees import Frozen


@dataclass(frozen=True, eq=False)
class Paired:
    """With probability at least `confidence` the true mean loss of this model less that of the other is at
    most `bound` under every mixture, if the draws are independent.

    Examples:
        >>> from bidro import certify_predictions
        >>> y, new, old = [0, 1] * 100, [0, 1] * 100, [0, 0] * 100
        >>> certify_predictions(y, new, loss="mistakes", against=old).against.better
        True
    """

    bound: float  # of the true mean difference under the worst mixture
    confidence: float  # of that bound
    clients: Mapping[str, float]  # one-sided bounds of the true mean differences, each of this confidence
    means: Mapping[str, float]  # mean differences on the rows
    rows: Mapping[str, int]  # draws: rows, or units
    largest: float  # R: no loss counts as more
    clipped: bool  # whether losses can be larger than that
    mistakes: bool  # whether losses are mistakes, so that differences are of shares
    units: bool  # whether a draw is a unit with the mean difference of its rows, not a row
    over_rows: OverRows | None = None  # beside a mean of units
    above: tuple[int, int] | None = None  # rows whose loss is larger than that: of this model, of the other

    def __post_init__(self) -> None:
        for name in ("clients", "means", "rows"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def lower(self) -> bool:
        """Whether the mean of the losses as they count is, with this confidence, lower at every client."""
        return self.bound < 0

    @property
    def better(self) -> bool:
        """Whether the model is, with this confidence, better than the other at every client, with `units` as
        a mean of units: never where losses can be larger than they count, as a few such may make it worse."""
        return self.lower and not self.clipped

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that losses count as at most `largest`."""
        return self.bound >= VACUOUS_SHARE * self.largest

    @property
    def binding(self) -> str:
        """The client with the highest bound."""
        return max(self.clients, key=lambda name: self.clients[name])

    @property
    def verdict(self) -> str:
        """In a few words."""
        people, of_rows = (" as a mean of people" if self.units else ""), ""
        if self.over_rows is not None:
            # Its sign may be another.
            of_rows = f" ({self.over_rows.short(self.in_units)})"
        if self.better:
            most = self.in_units(self.bound)
            return f"better at every client{people}: the difference is at most {most}{of_rows}"
        counted = f", each loss counted as at most {self.largest:.6g}," if self.clipped else ""
        if self.lower:
            return (
                f"lower at every client{people}{counted} by at least {self.in_units(-self.bound)}"
                f"{of_rows}; better is not shown: {self._not_compared}"
            )
        draws = draws_in_words(self.units)
        if self.vacuous:
            return f"too few {draws} to tell, {self.rows[self.binding]:,} of '{self.binding}'"
        return (
            f"not shown to be better at every client{people}: at '{self.binding}' the difference{counted} "
            f"may be up to {self.in_units(self.bound)}{of_rows}"
        )

    @property
    def _not_compared(self) -> str:
        """What clipping leaves out, in words."""
        said = f"what losses have above {self.largest:.6g} is not compared"
        if self.above is None:
            return said
        ours, theirs = (f"{rows:,} row{'' if rows == 1 else 's'}" for rows in self.above)
        return f"{said} (here {ours} of this model, {theirs} of the other)"

    @property
    def promise(self) -> str:
        what = "share of mistakes" if self.mistakes else "mean loss"
        if self.clipped:
            what += f", each counted as at most {self.largest:.6g},"
        draws = draws_in_words(self.units)
        if self.vacuous:
            return (
                f"There are too few {draws} to compare the two models at confidence {self.confidence:g}: "
                f"'{self.binding}' has {self.rows[self.binding]:,}."
            )
        new = "people (a mean of people, not of rows)" if self.units else "rows"
        where = f"on new {new}, drawn as these were and mixed in any admissible way"
        assumed = f"It assumes that {draws} of a client are independent draws."
        if self.over_rows is not None:
            assumed = f"{assumed} {self.over_rows.sentence(self.in_units, 'the difference')}".rstrip()
        if self.better:
            people = ", as a mean of people" if self.units else ""
            return (
                f"With confidence {self.confidence:g} this model is better than the other at every "
                f"client{people}: its {what} {where}, is lower by at least {self.in_units(-self.bound)}. "
                f"{assumed}"
            )
        if self.lower:
            return (
                f"With confidence {self.confidence:g} the {what} of this model {where}, is lower than that "
                f"of the other at every client, by at least {self.in_units(-self.bound)}. That it is better "
                f"is not shown: {self._not_compared}. {assumed}"
            )
        return (
            f"With confidence {self.confidence:g} the {what} of this model {where}, is higher than that of "
            f"the other by at most {self.in_units(self.bound)}; that it is better at every client is not "
            f"shown, because of '{self.binding}'. {assumed}"
        )

    def in_units(self, difference: float) -> str:
        """A difference as text: of mistakes in percentage points."""
        return f"{100 * difference:.4g} percentage points" if self.mistakes else f"{difference:.6g}"


def paired(
    losses: Mapping[str, ArrayLike],
    others: Mapping[str, ArrayLike],
    largest: float,
    confidence: float = 0.95,
    clipped: bool = False,
    mistakes: bool = False,
    units: Mapping[str, ArrayLike] | None = None,
    rows_per_unit: int | None = None,
) -> Paired:
    """From each client's losses (N_i,) of a model and of the other on the same rows, in the same order.

    Losses must lie in [0, largest]; with `clipped` larger ones count as `largest`, of both models. `units`
    and `rows_per_unit` as in `held_out`. Raises BidroError for losses outside.
    """
    differences = {}
    above = [0, 0]
    for name, own in losses.items():
        for place, each in enumerate((own, others[name])):
            above[place] += int(np.sum(np.asarray(each) > largest))
        one, two = (checked_losses(name, each, largest, clipped) for each in (own, others[name]))
        # In [0, 2R] but for rounding.
        differences[name] = np.clip(one - two + largest, 0.0, 2 * largest)
    found = held_out(differences, confidence, 2 * largest, units=units, rows_per_unit=rows_per_unit)
    over_rows = found.over_rows
    if over_rows is not None:
        over_rows = OverRows(
            {name: mean - largest for name, mean in over_rows.means.items()},
            {name: bound - largest for name, bound in over_rows.clients.items()},
            None if over_rows.bound is None else over_rows.bound - largest,
            over_rows.most,
        )
    return Paired(
        found.bound - largest,
        confidence,
        {name: bound - largest for name, bound in found.clients.items()},
        {name: mean - largest for name, mean in found.means.items()},
        found.rows,
        largest,
        clipped,
        mistakes,
        units is not None,
        over_rows,
        (above[0], above[1]) if clipped else None,
    )
