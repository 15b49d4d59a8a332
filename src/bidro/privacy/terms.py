"""What sites agree on for a private run (`Terms`), what one of them allows (`Budget`), and what follows for
every release (`Plan`): what it may cost, how rows are clipped and how large the noise is.

All of it is public and depends on no row. The plan is the site's own: it follows from its budget and the
agreement, so that a server can neither spend a budget in one query nor request less noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from bidro.core.errors import BidroError
from bidro.privacy.accounting import rho_of
from bidro.privacy.mechanisms import MOST_DEGREE, Scale, bernstein_scale, gradients_scale, moments_scale
from bidro.privacy.row_arithmetic import PrivateLoss

# The two parts of a site's rows. They have one budget: by another agreement, or with a cell corrected, a
# person may be in the other part.
TRAINING, HELD_OUT = "training", "kept-out"
# Rounds of gradients where the agreement says no number.
_ROUNDS: dict[PrivateLoss, int] = {"squared": 8, "logistic": 6}
_MOST_ROUNDS = 100
_MOST_ROWS_PER_PERSON = 10**6
_MOST_CLIP = 1e6


@dataclass(frozen=True)
class Terms:
    """The part [privacy] of an agreement; None stands for what suits the loss and the columns."""

    gradients: int | None = None  # rounds of gradients
    losses: float = 0.3  # the share of the budget that losses of held-out rows cost, where there are some
    moments: float = 0.2  # the share of the rest that second moments cost
    clip: float | None = None  # the norm of (features, 1, target) beyond which rows count less
    degree: int = 4  # of the polynomials by which losses of held-out rows are released

    def __post_init__(self) -> None:
        if self.gradients is not None and not _is_whole(self.gradients, 1, _MOST_ROUNDS):
            raise BidroError(
                f"gradients in [privacy] must be a whole number of rounds from 1 to {_MOST_ROUNDS}; got "
                f"{self.gradients!r}."
            )
        for name in ("losses", "moments"):
            share = getattr(self, name)
            if not _is_number(share) or not 0.01 <= share <= 0.99:
                raise BidroError(f"{name} in [privacy] must be a share from 0.01 to 0.99; got {share!r}.")
        if self.clip is not None and (not _is_number(self.clip) or not 1e-3 <= self.clip <= _MOST_CLIP):
            raise BidroError(
                f"clip in [privacy] must be a number of agreed units from 0.001 to {_MOST_CLIP:g}; got "
                f"{self.clip!r}."
            )
        if not _is_whole(self.degree, 1, MOST_DEGREE):
            raise BidroError(
                f"degree in [privacy] must be a whole number from 1 to {MOST_DEGREE}; got {self.degree!r}."
            )


@dataclass(frozen=True)
class Budget:
    """What a site's releases may cost everyone it has rows of, at the most `rows_per_person` each, for ever:
    (epsilon, delta)-differential privacy of all that leaves, for people added or removed."""

    epsilon: float
    delta: float = 1e-6
    rows_per_person: int = 1

    def __post_init__(self) -> None:
        if not _is_number(self.epsilon) or not 0 < self.epsilon <= 1e6:
            raise BidroError(f"epsilon must be a positive number, such as 1; got {self.epsilon!r}.")
        if not _is_number(self.delta) or not 1e-300 < self.delta <= 0.01:
            raise BidroError(f"delta must be a small positive number, such as 1e-6; got {self.delta!r}.")
        if not _is_whole(self.rows_per_person, 1, _MOST_ROWS_PER_PERSON):
            raise BidroError(
                f"rows_per_person must be a whole number from 1 to {_MOST_ROWS_PER_PERSON}; got "
                f"{self.rows_per_person!r}."
            )
        self.rho  # noqa: B018 - a budget too small for anything is said now

    @cached_property
    def rho(self) -> Fraction:
        """Of all releases together, whichever rows they are over."""
        return rho_of(self.epsilon, self.delta)

    @property
    def numbers(self) -> tuple[float, float, float]:
        """As they are sent."""
        return float(self.epsilon), float(self.delta), float(self.rows_per_person)

    @classmethod
    def reported(cls, numbers: tuple[float, float, float]) -> Budget | None:
        """From what a site reports; None for three zeros, which say that it has none. Raises BidroError for
        what is no budget."""
        if numbers == (0.0, 0.0, 0.0):
            return None
        epsilon, delta, rows = numbers
        if rows != int(rows):
            raise BidroError(f"rows_per_person must be a whole number; got {rows!r}.")
        return cls(epsilon, delta, int(rows))


class Cost(NamedTuple):
    """Of one release."""

    part: str  # of the rows that it is over: `TRAINING` or `HELD_OUT`
    rho: Fraction


@dataclass(frozen=True)
class Plan:
    """What is released in a private run, for rows z = (features, 1, target) of `columns` numbers."""

    loss: PrivateLoss
    columns: int  # m = features + 2
    rounds: int  # of gradients
    of_losses: Fraction  # the share of the budget that losses of held-out rows cost; 0 where there are none
    of_moments: Fraction  # the share of the rest that second moments cost
    clip: float  # of z
    degree: int
    people: bool = False  # whether rows are of people, so that held-out losses are means over one's rows

    @classmethod
    def of(
        cls, terms: Terms, loss: PrivateLoss, features: int, people: bool = False, held_out: bool = True
    ) -> Plan:
        """`held_out`: whether there are held-out rows, whose losses are released."""
        m = features + 2
        of_losses = Fraction(terms.losses) if held_out else Fraction(0)
        clip = math.sqrt(m / 2) if terms.clip is None else float(terms.clip)
        rounds = _ROUNDS[loss] if terms.gradients is None else terms.gradients
        return cls(loss, m, rounds, of_losses, Fraction(terms.moments), clip, terms.degree, people)

    @property
    def classes(self) -> bool:
        return self.loss == "logistic"

    def cost(self, query: str, budget: Budget) -> Cost:
        """What a release costs: losses of held-out rows their share of the budget, of the rest second moments
        theirs, and every round of gradients as much of what is left. A whole run costs the budget."""
        losses = budget.rho * self.of_losses
        if query == "losses":
            return Cost(HELD_OUT, losses)
        moments = (budget.rho - losses) * self.of_moments
        if query == "moments":
            return Cost(TRAINING, moments)
        return Cost(TRAINING, (budget.rho - losses - moments) / self.rounds)

    def moments_scale(self, budget: Budget | None) -> Scale:
        return moments_scale(self.columns, self.clip, *self.charge("moments", budget))

    def gradients_scale(self, budget: Budget | None, clip: float, loss_clip: float) -> Scale:
        """Of the gradient, of the number of rows that are not clipped, and of the loss."""
        return gradients_scale(self.columns, clip, loss_clip, *self.charge("gradients", budget))

    def losses_scale(self, budget: Budget | None) -> Scale:
        return bernstein_scale(self.degree, *self.charge_of_losses(budget))

    def mistakes_scale(self, budget: Budget | None) -> Scale:
        """Of the numbers of right and wrong predictions."""
        return bernstein_scale(1, *self.charge_of_losses(budget))

    def charge_of_losses(self, budget: Budget | None) -> tuple[Fraction | None, int]:
        """(rho, rows a person) of the losses, and again of the mistakes, where there are classes; a person is
        one value, however many rows it has."""
        rho, rows = self.charge("losses", budget)
        halved = rho / 2 if rho is not None and self.classes else rho
        return halved, 1 if self.people else rows

    def charge(self, query: str, budget: Budget | None) -> tuple[Fraction | None, int]:
        return (None, 1) if budget is None else (self.cost(query, budget).rho, budget.rows_per_person)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
