"""What is promised of rows, with a confidence: how far nearly all of them lie from their prediction at
most, or how many of a hundred are predicted wrongly; at every client with enough held-out rows, and at
the others together.

Of a number, client i's bound U_i is not below the true quantile q_i of its errors with this confidence
(`Calibration.bound`). max_i U_i is then a bound for every mixture of these clients: if it is false, it is
below max_i q_i, and so is the bound of the client that has that quantile, which is not random; so one
client's confidence is enough for all of them. Of classes it is Clopper and Pearson's bound of a share of
mistakes (by betting, where people have several rows each), and the same argument holds.

A client with few rows has no such bound: below `draws_needed` rows none is finite, however good the model is.
In place of nothing there is one for these clients together, in the proportions of their held-out rows. Their
rows are independent, not alike: where p is the mean of the chances of n zeros and ones, their number is at
most k with a probability no larger than the binomial's of n and p, wherever that is below a half (Hoeffding
1956), and their betting capital is no larger on average, as the logarithm is concave.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from bidro.certify.held_out import client_bound
from bidro.certify.intervals import Calibration, Groups, HeldOutFits, draws_needed, pooled
from bidro.certify.mean_bounds import noisy_bound
from bidro.certify.rounding import decimals_up
from bidro.core.errors import check_confidence, listed
from bidro.core.pytrees import Frozen
from bidro.privacy.mechanisms import Noisy

# Of rows whose errors are bounded, such as 9 of 10.
SHARE = 0.9
_MOST_NAMED = 5
# Bounds are rounded up to so many digits, so that what is shown is what is promised.
_DIGITS = 3


@dataclass(frozen=True, eq=False)
class RowPromise:
    """See the module's docstring. Each bound holds with the confidence by itself.

    Examples:
        >>> import numpy as np
        >>> from bidro.certify.row_promise import row_promise
        >>> errors = {"north": np.arange(100.0), "south": np.arange(50.0), "west": np.arange(9.0)}
        >>> found = row_promise(errors)
        >>> found.bound, sorted(found.clients), found.needed
        (95.0, ['north', 'south'], 29)
    """

    confidence: float
    share: float | None  # of rows whose error is at most the bound; None where the bound is of mistakes
    clients: Mapping[str, float]  # bounds of those with enough held-out rows
    bound: float | None  # under any mixture of these; None where there are none
    together: float | None  # the bound of the others as a group; None where there are none, or too few rows
    others: tuple[str, ...]  # clients without enough
    group: tuple[str, ...]  # whose rows the group has: the others, and who lends rows where these are too few
    draws: Mapping[str, int]  # held-out rows, or people, by client
    needed: int  # of them, for a bound of a client's own
    people: bool  # whether a draw is a person, and a row a random one of a new person
    guess: float | None = None  # the bound of one guess for everybody, at the same clients
    personal: bool = False  # whether clients use personal models

    def __post_init__(self) -> None:
        for name in ("clients", "draws"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))
        for name in ("others", "group"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def binding(self) -> str | None:
        """The client that sets the bound."""
        return max(self.clients, key=lambda name: self.clients[name]) if self.clients else None

    def in_words(self, unit: str = "") -> str:
        """In a few sentences, for everybody; `unit` is the target's."""
        what = "people" if self.people else "rows"
        level = f"With {100 * self.confidence:g}% confidence"
        if self.bound is None:
            enough = f"the {self.needed} held-out {what} that this takes" if self.needed else "enough rows"
            alone = f"no client has {enough}."
            if self.together is None:
                return f"Nothing is promised: {alone}"
            return (
                f"{level}, {self._says(self.together, unit)}, in the mix of clients of the held-out {what}. "
                f"Nothing is promised of a client by itself, or of another mix: {alone}"
            )
        at = "the" if not self.others else "these"
        whom = (
            f"whatever the mix of {at} {len(self.clients)} clients"
            if len(self.clients) > 1
            else f"at '{self.binding}'"
        )
        if self.others and self.needed:
            whom += f" with at least {self.needed} held-out {what}"
        said = f"{level}, {self._says(self.bound, unit)}, {whom}."
        if self.guess is not None:
            said += f" One guess for everybody: {self.amount(self.guess, unit)}."
        if self.others:
            which = listed([f"'{name}'" for name in self.others], _MOST_NAMED)
            lent = "" if set(self.group) <= set(self.others) else ", with rows of larger clients"
            said += (
                f" Nothing is promised of {which}: {len(self.others)} with too few."
                if self.together is None
                else f" At the others together ({which}{lent}), in the proportions of their held-out rows: "
                f"{self.amount(self.together, unit)}."
            )
        return said

    def _says(self, bound: float, unit: str) -> str:
        row = "random rows of new people" if self.people else "new rows"
        if self.share is None:
            return f"at most {self.amount(bound, unit)} {row} are predicted wrongly"
        return f"at least {self.share:.0%} of {row} lie {self.amount(bound, unit)} of their prediction"

    def amount(self, bound: float, unit: str = "") -> str:
        """A bound in words."""
        if self.share is None:
            return f"{100 * bound:.3g} in a hundred"
        return f"within {bound:.3g}{unit and ' '}{unit}"

    @property
    def promise(self) -> str:
        """In full, with what is assumed."""
        draws = "people are" if self.people else "rows of a client are"
        using = " Clients use their personal models." if self.personal else ""
        return (
            f"{self.in_words()}{using} It assumes that {draws} independent draws, and new ones drawn as "
            "those held out were. Each bound has this confidence by itself. It says nothing about shift "
            "inside a client."
        )

    @classmethod
    def restored(cls, content: Mapping[str, Any]) -> RowPromise:
        """From JSON. Raises ValueError, TypeError or KeyError for what is none."""
        part = dict(content)
        said = part.pop("promise")
        if set(part) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError("what is promised of rows has other parts than it should")
        found = cls(**part)
        bounds, named = [*found.clients.values()], {*found.others, *found.group}
        whole = (
            all(type(n) is int for n in found.draws.values())
            and all(type(own) is float for own in bounds)
            and type(found.people) is bool
            and type(found.personal) is bool
            and found.bound == max(bounds, default=None)
            and (found.together is None) == (not found.group)
            and {*found.clients, *named} == set(found.draws)
        )
        if not whole or found.promise != said:
            raise ValueError("what is promised of rows is not what its bounds say")
        return found


def row_promise(
    errors: Mapping[str, ArrayLike],
    confidence: float = 0.95,
    share: float | None = SHARE,
    *,
    guess: Mapping[str, ArrayLike] | None = None,
    people: Mapping[str, ArrayLike] | None = None,
    personal: bool = False,
) -> RowPromise:
    """From held-out rows of every client.

    Args:
        errors: (N_i,) by client, how far each row lies from its prediction; with `share` None, 1 where the
            predicted class is wrong and else 0.
        confidence: of every bound by itself.
        share: of rows whose error is bounded; None where errors are mistakes.
        guess: the same of one guess for everybody, on the same rows.
        people: labels (N_i,) of the persons that rows are of, where these are draws.
        personal: whether errors are of clients' personal models.

    Returns:
        The promise.

    Raises:
        BidroError: for a confidence or share outside (0, 1), and errors that are not numbers.
    """
    check_confidence(confidence)
    if share is not None:
        check_confidence(share)

    def calibrations(of: Mapping[str, ArrayLike]) -> dict[str, Calibration]:
        return {n: Calibration.of(e, None if people is None else people[n]) for n, e in of.items()}

    def bound_of(own: Calibration) -> float:
        if share is not None:
            return own.bound(1 - share, confidence)
        if own.single:
            return client_bound("all", own.scores, 1 - confidence, 1.0, "clopper-pearson").bound
        return client_bound("all", own.scores, 1 - confidence, 1.0, "betting", people=own.draws).bound

    used = calibrations(errors)
    draws = {name: own.count for name, own in used.items()}
    several = any(not own.single for own in used.values())
    # Of mistakes a bound is never infinite: the same numbers as of errors are asked for.
    needed = needed_for(confidence, several, SHARE if share is None else share)
    groups = Groups.of(draws, needed, needed)
    others = tuple(name for name in draws if name not in groups.alone)
    clients = {name: decimals_up(bound_of(used[name]), _DIGITS) for name in groups.alone}
    together = decimals_up(bound_of(pooled(used, groups.together)), _DIGITS) if groups.together else None
    guessed = None
    if guess is not None and clients:
        of_guess = calibrations(guess)
        guessed = max(decimals_up(bound_of(of_guess[name]), _DIGITS) for name in groups.alone)
    return RowPromise(
        confidence,
        share,
        clients,
        max(clients.values(), default=None),
        together,
        others,
        groups.together,
        draws,
        needed,
        people is not None,
        guessed,
        personal,
    )


def noisy_row_bound(sums: Noisy, beta: float, expected: float, largest: float, power: int) -> float:
    """How far 9 of 10 rows lie from their prediction at most, from noisy sums of Bernstein polynomials of
    their squared errors as parts v of `largest`; inf where nothing is known. By Markov's inequality
    P(v > t) <= E v^j / t^j, j the `power`: 1 where v is a mean of a person's."""
    part = (noisy_bound(sums, beta, expected, power) / (1 - SHARE)) ** (1 / power)
    return math.sqrt(largest * part) if part < 1 else math.inf


def of_bounds(
    bounds: Mapping[str, float],
    draws: Mapping[str, int],
    rows: Mapping[str, int],
    confidence: float,
    share: float | None,
    people: bool,
    personal: bool = False,
    noise: bool = False,
) -> RowPromise:
    """From bounds that sites tell of their own rows, inf where there is none; `rows` and `draws` are how many
    rows and people each holds out. No rows leave, so that sites with too few have none together. With `noise`
    how many are needed is not known."""
    needed = needed_for(confidence, dict(draws) != dict(rows), SHARE if share is None else share)
    needed = 0 if noise else needed
    enough = {n: own for n, own in bounds.items() if math.isfinite(own) and draws[n] >= needed}
    clients = {name: decimals_up(own, _DIGITS) for name, own in enough.items()}
    others = tuple(name for name in bounds if name not in clients)
    most = max(clients.values(), default=None)
    return RowPromise(
        confidence, share, clients, most, None, others, (), draws, needed, people, None, personal
    )


def needed_for(confidence: float, people: bool, share: float = SHARE) -> int:
    """The held-out rows, or people of several rows each, that a promise of a client's own takes."""
    return draws_needed(1 - share, confidence, people=people)


def of_fits(fits: HeldOutFits, confidence: float, personal: bool = False) -> RowPromise:
    """From how well held-out rows fit the models that clients use."""
    guess = None if fits.guess is None else fits.guess.scores
    errors, share = (fits.used.scores, SHARE) if fits.mistakes is None else (fits.mistakes, None)
    return row_promise(errors, confidence, share, guess=guess, people=fits.people, personal=personal)
