"""Held-out bounds: confidence bounds of the true risk of a model under any admissible mixture.

For each client a one-sided confidence bound of its true mean loss, from losses on rows that training never
saw; then the worst admissible mixture of these bounds. It covers the unknown mixture and the sampling error,
but no shift inside a client. Bounded losses have a betting bound (the default) or the empirical Bernstein
bound, mistakes Clopper and Pearson's. Each is a function of the losses as a multiset: the order of a table
cannot matter.

Two models on the same rows (`Paired`): both losses of a row lie in [0, R], so that the difference d lies in
[-R, R] and (d + R) / 2R in [0, 1]: the bound of a client's true mean difference is the held-out bound of
d + R, with largest value 2R, less R. What makes a row hard for both models cancels in d, so that far fewer
rows separate two models than two bounds of their losses would need. If the bound is below 0, the loss that
is compared is lower at every client: it fails only where the bound of the client at which the model truly
does worst against the other fails, which has probability at most 1 - confidence. Where losses can be larger
than R and count as R, that is not to say that the model is better: rare losses far above R may make it worse,
and of them nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bidro.certify.mean_bounds import (
    BOUNDS,
    VACUOUS_SHARE,
    betting_ratio,
    noisy_bound,
    noisy_mean,
    rows_for_half_way,
)
from bidro.core.arrays import Floats, person_means
from bidro.core.errors import BidroError, check_confidence, is_number
from bidro.core.pytrees import Frozen
from bidro.core.sets import MixtureSet, Simplex
from bidro.privacy.mechanisms import Noisy

# "private" bounds come from sums with noise: see `mean_bounds`.
Bound = Literal["betting", "bernstein", "clopper-pearson", "private"]


def check_shift(shift: Any) -> None:
    """Raise BidroError for a shift that is no distance; None stands for no statement about shift."""
    if shift is not None and (not is_number(shift) or not 0 <= shift < math.inf):
        raise BidroError(
            "The shift is a distance in standard deviations, a number of at least 0 such as 0.1; got "
            f"{shift!r}."
        )


@dataclass(frozen=True, eq=False)
class OverRows:
    """The mean over rows, where a draw is a person: people with many rows count for more in it.

    It is the ratio of a person's mean sum to its mean number of rows, and bounded only where no person has
    more than a declared number of rows: else a few people with any number of rows could be all of it.
    """

    means: Mapping[str, float]  # by client, on held-out rows
    clients: Mapping[str, float]  # one-sided bounds, each of the statement's level; {} where there are none
    bound: float | None  # under the worst mixture; None where `most` is
    most: int | None  # rows of a person, declared; None where it is not

    def __post_init__(self) -> None:
        for name in ("means", "clients"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def largest_mean(self) -> float:
        """The largest of the clients' means: the worst mixture may be that client alone."""
        return max(self.means.values())

    def minus(self, constant: float) -> OverRows:
        """All of it less a constant."""
        return OverRows(
            {name: mean - constant for name, mean in self.means.items()},
            {name: bound - constant for name, bound in self.clients.items()},
            None if self.bound is None else self.bound - constant,
            self.most,
        )

    def short(self, text: Callable[[float], str]) -> str:
        """A phrase; `text` formats a number."""
        if self.bound is None:
            return f"of rows up to {text(self.largest_mean)} observed, not bounded"
        return f"of rows at most {text(self.bound)}"

    def sentence(self, text: Callable[[float], str], what: str = "it") -> str:
        """A sentence; `what` names the quantity whose mean it is, `text` formats a number."""
        worst = max(self.means, key=lambda name: self.means[name])
        seen = f"on those held out {what} was {text(self.means[worst])} at '{worst}', where it was largest"
        if self.bound is None:
            return (
                f"As a mean of rows, in which people with many rows count for more, {seen}; that is observed "
                "and not bounded, because no largest number of rows a person was declared. "
            )
        return (
            f"As a mean of rows, in which people with many rows count for more, {what} is at most "
            f"{text(self.bound)} with that confidence by itself, if nobody has more than {self.most} rows; "
            f"{seen}. "
        )


class _OfClients:
    """A bound under every mixture, made of the clients' own."""

    bound: float
    clients: Mapping[str, float]
    largest: float
    clipped: bool
    mistakes: bool
    people: bool

    def __post_init__(self) -> None:
        for name in ("clients", "means", "rows"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def binding(self) -> str:
        """The client with the highest bound."""
        return max(self.clients, key=lambda name: self.clients[name])

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that losses count as at most `largest`."""
        return self.bound >= VACUOUS_SHARE * self.largest

    @property
    def draws(self) -> str:
        """What is drawn, in words. A person may be a thing, too."""
        return "people" if self.people else "rows"

    @property
    def _new_draws(self) -> str:
        return "people (a mean of people, not of rows)" if self.people else "rows"

    @property
    def _what(self) -> str:
        """What the bound is of, in words."""
        what = "share of mistakes" if self.mistakes else "mean loss"
        return f"{what}, each counted as at most {self.largest:.6g}," if self.clipped else what


@dataclass(frozen=True, eq=False)
class HeldOut(_OfClients):
    """With probability at least `confidence` the true risk under every mixture in A is at most `bound`, if
    the draws are independent; `vacuous` where that says nothing.

    Examples:
        >>> from bidro import held_out_bound
        >>> found = held_out_bound({"north": [0.1, 0.2] * 100, "south": [0.2, 0.3] * 100}, largest=1.0)
        >>> found.binding, found.bound == max(found.clients.values()), found.vacuous
        ('south', True, False)
    """

    bound: float  # of the true risk under the worst mixture
    confidence: float  # of that bound
    clients: Mapping[str, float]  # one-sided bounds of the clients' true risks
    means: Mapping[str, float]  # mean held-out losses; {} where clients report bounds alone
    rows: Mapping[str, int]  # held-out draws: rows, or people
    level: float  # beta of each client's bound
    kind: Bound  # which bound of a mean
    largest: float  # that a loss counts as
    clipped: bool  # whether losses can be larger than that
    mistakes: bool  # whether losses are shares of wrong predictions
    people: bool  # whether a draw is a person with the mean loss of its rows, not a row
    personal: bool = False  # whether every client uses its personal model
    over_rows: OverRows | None = None  # the mean over rows, where draws are people and it is known

    @property
    def each_by_itself(self) -> bool:
        """Whether every client's bound has the confidence by itself only, so that of several some may be
        false with a larger probability; else they hold all together. See `client_level`."""
        return len(self.clients) > 1 and self.level >= (1 - self.confidence) * (1 - 1e-9)

    @property
    def vacuous_clients(self) -> frozenset[str]:
        """The clients whose own bounds are vacuous."""
        return frozenset(n for n, own in self.clients.items() if own >= VACUOUS_SHARE * self.largest)

    @property
    def enough(self) -> int | None:
        """The number of rows (or people) of the binding client, with the same mean loss, that brings its
        bound half way from `largest` to that mean, whatever their variance; None where none does, or
        unknown."""
        if not self.means or self.kind == "private":
            return None
        return rows_for_half_way(self.means[self.binding] / self.largest, self.level, self.kind)

    @property
    def shortage(self) -> str:
        """Why a bound is vacuous, and what would help."""
        what, binding = self.draws, self.binding
        if self.kind == "private":
            return f"'{binding}' has about {self.rows[binding]:,}; more {what} or a larger budget would do"
        if not self.means:
            return f"'{binding}' has {self.rows[binding]:,}, or its losses are as large as any that counts"
        if self.enough is None:
            return f"more {what} would not help: the losses of '{binding}' are as large as any that counts"
        return (
            f"'{binding}' has {self.rows[binding]:,}, and {self.enough:,} {what} of the same mean loss would "
            "be enough for a promise"
        )

    @property
    def _over_rows(self) -> str:
        if self.over_rows is None:
            return "The mean of rows, in which people with many rows count for more, is not released. "
        return self.over_rows.sentence("{:.6g}".format)

    @property
    def promise(self) -> str:
        model = "the models that the clients use, each its personal one," if self.personal else "this model"
        if self.vacuous:
            return (
                f"There are too few {self.draws} to promise anything at confidence {self.confidence:g}: the "
                f"bound of the {self._what} is {self.bound:.6g}, and none counts as more than "
                f"{self.largest:.6g}; {self.shortage}."
            )
        assumed = "It assumes that the rows of a client are independent draws, which several rows of one "
        assumed += "person are not. "
        if self.people:
            assumed = "A person is one draw, with the mean over its own rows; it assumes that "
            assumed += f"people are independent. {self._over_rows}"
        if self.kind == "private":
            assumed += "It was worked out from sums with noise, whose chance is part of the confidence. "
        return (
            f"With confidence {self.confidence:g} the {self._what} of {model} on new {self._new_draws}, "
            f"drawn as those held out were and mixed in any admissible way, is at most {self.bound:.6g}. "
            f"{assumed}It says nothing about shift inside a client."
        )


class ClientBound(NamedTuple):
    """One client's held-out bound; all that has to leave it."""

    bound: float  # one-sided, of its true mean loss
    mean: float | None  # of the held-out losses; None where it is not reported
    rows: int  # draws: rows, or people
    over_rows: float | None = None  # the mean over rows, where draws are people and it is reported
    rows_bound: float | None = None  # one-sided, of the true mean over rows; None where there is none


def held_out_bound(
    losses: Mapping[str, ArrayLike],
    confidence: float = 0.95,
    largest: float | None = None,
    mixtures: MixtureSet | None = None,
    kind: Bound = "betting",
    clipped: bool = False,
    people: Mapping[str, ArrayLike] | None = None,
    rows_per_person: int | None = None,
) -> HeldOut:
    """A bound of the true risk under any mixture, from each client's losses on held-out rows.

    For the full simplex each bound needs level 1 - confidence only, since the whole fails only if that of the
    truly worst client does; a smaller set of mixtures needs all of them to hold together.

    Args:
        losses: (N_i,) by client, in [0, largest], of independent draws in any order.
        confidence: of the bound.
        largest: known beforehand, from the declared support: a range read off the losses proves nothing.
        mixtures: A, the full simplex by default.
        kind: "betting", "bernstein" or "clopper-pearson" (of mistakes).
        clipped: whether larger losses count as `largest`; the statement is about losses counted so.
        people: a label (N_i,) a row for every client, where several rows belong to one person (or thing),
            which is then one draw, with the mean loss of its rows.
        rows_per_person: the largest number of rows that a person can have, known beforehand: the mean over
            rows is then bounded, too.

    Returns:
        The bound, with that of every client.

    Raises:
        BidroError: for losses outside [0, largest], where `largest` is missing, and for a person with more
            than `rows_per_person` rows.

    Examples:
        >>> from bidro import held_out_bound
        >>> losses = {"north": [0.1, 0.2] * 100, "south": [0.2, 0.3] * 100}
        >>> round(held_out_bound(losses, confidence=0.95, largest=1.0).bound, 2)
        0.27
    """
    if not losses:
        raise BidroError("A held-out certificate needs the losses of at least one client.")
    if kind == "clopper-pearson":
        largest = 1.0
    if largest is None or not 0 < largest < math.inf:
        raise BidroError(
            "A held-out bound needs the largest value that the loss can take on the declared support; got "
            f"{largest}."
        )
    whole = Simplex(len(losses)) if mixtures is None else mixtures
    level = client_level(confidence, len(losses), whole)
    labels = people_of(losses, people)
    check_rows_per_person(rows_per_person, people)
    clients = {
        name: client_bound(name, given, level, largest, kind, clipped, labels[name], rows_per_person)
        for name, given in losses.items()
    }
    mistakes = kind == "clopper-pearson"
    return worst_mixture(
        clients, confidence, largest, whole, kind, clipped, mistakes, people is not None, most=rows_per_person
    )


def check_rows_per_person(most: int | None, people: Mapping[str, ArrayLike] | None) -> None:
    """Raise BidroError for a largest number of rows a person that is no such number, that comes without
    people, or that a person exceeds."""
    if most is None:
        return
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise BidroError(
            f"The largest number of rows of a person must be a whole number from 1; got {most!r}."
        )
    if people is None:
        raise BidroError("A largest number of rows of a person needs `people`; name whose row each is.")
    for name, own in people.items():
        labels, counts = np.unique(np.asarray(own), return_counts=True)
        if len(counts) and counts.max() > most:
            raise BidroError(
                f"A person of client '{name}', '{labels[int(np.argmax(counts))]}', has {counts.max():,} "
                f"rows, and {most:,} were declared as the largest number; declare one that you know to hold "
                "for everybody without these rows, as one read off them would void the bound, or none."
            )


def people_of(
    clients: Iterable[str], people: Mapping[str, ArrayLike] | None
) -> dict[str, ArrayLike] | dict[str, None]:
    """The labels of every client's rows, None where a row is a draw by itself. Raises BidroError for a client
    without labels, or labels of no client."""
    names = list(clients)
    if people is None:
        return dict.fromkeys(names)
    odd = sorted(set(names) ^ set(people))
    if odd:
        where = "has rows but no labels of people" if odd[0] in names else "has labels of people but no rows"
        raise BidroError(f"Client '{odd[0]}' {where}; give a label for every row of every client.")
    return {name: people[name] for name in names}


def client_level(confidence: float, n: int, mixtures: MixtureSet) -> float:
    """beta of each of n clients' bounds: see `held_out_bound`."""
    check_confidence(confidence)
    if mixtures.dimension != n:
        raise BidroError(f"The mixtures are for {mixtures.dimension} clients but there are {n}.")
    return 1 - confidence if mixtures.is_whole else -math.expm1(math.log(confidence) / n)


def client_bound(
    name: str,
    losses: ArrayLike,
    level: float,
    largest: float,
    kind: Bound,
    clipped: bool = False,
    people: ArrayLike | None = None,
    most: int | None = None,
) -> ClientBound:
    """From one client's losses (N_i,) in any order; it fails with probability at most `level`."""
    return client_bounds(name, losses, [level], largest, kind, clipped, people, most)[0]


def client_bounds(
    name: str,
    losses: ArrayLike,
    levels: Iterable[float],
    largest: float,
    kind: Bound,
    clipped: bool = False,
    people: ArrayLike | None = None,
    most: int | None = None,
) -> list[ClientBound]:
    """`client_bound` at several levels, each by itself. With people, and at most so many rows of each, there
    are bounds of the mean over rows, too."""
    values = checked_losses(name, losses, largest, clipped)
    over_rows: float | None = None
    means, sizes = values, np.ones(len(values))
    if people is not None:
        means, sizes = _person_means(name, values, people)
        over_rows = float(np.sort(values).mean())
    # Sorted, so that not even rounding depends on the order of the rows.
    draws = np.sort(means)
    if kind == "clopper-pearson" and not np.all(np.isin(draws, (0.0, 1.0))):
        raise BidroError(f"Clopper and Pearson's bound is for losses of 0 and 1; client '{name}' has others.")
    values, repeated = np.unique(draws / largest, return_counts=True)
    mean, counts = float(draws.mean()), repeated.astype(float)

    def of_rows(level: float) -> float | None:
        if over_rows is None or most is None:
            return None
        return betting_ratio(np.minimum(means / largest, 1.0) * sizes, sizes, most, level) * largest

    return [
        ClientBound(
            BOUNDS[kind](values, float(level), counts) * largest,
            mean,
            len(draws),
            over_rows,
            of_rows(float(level)),
        )
        for level in levels
    ]


def noisy_client_bound(sums: Noisy, level: float, expected: float, largest: float) -> ClientBound:
    """`client_bound` from noisy sums of Bernstein polynomials of losses / `largest`; `expected` is a rough
    number of draws, known from elsewhere."""
    count = max(1, round(float(sums.sums.sum())))
    return ClientBound(noisy_bound(sums, level, expected) * largest, noisy_mean(sums) * largest, count)


def worst_mixture(
    clients: Mapping[str, ClientBound],
    confidence: float,
    largest: float,
    mixtures: MixtureSet,
    kind: Bound,
    clipped: bool = False,
    mistakes: bool = False,
    people: bool = False,
    personal: bool = False,
    most: int | None = None,
) -> HeldOut:
    """The bound under the worst admissible mixture, from the clients' bounds, each of `client_level`; `most`
    is the declared largest number of rows of a person."""
    worst = float(mixtures.linear_maximum(np.array([one.bound for one in clients.values()]))[0])
    over_rows = None
    means = {name: one.over_rows for name, one in clients.items() if one.over_rows is not None}
    if people and len(means) == len(clients):
        bounds = {name: one.rows_bound for name, one in clients.items() if one.rows_bound is not None}
        whole = float(mixtures.linear_maximum(np.array([*bounds.values()]))[0]) if bounds else None
        over_rows = OverRows(means, bounds, whole, most)
    return HeldOut(
        worst,
        confidence,
        {name: one.bound for name, one in clients.items()},
        {name: one.mean for name, one in clients.items() if one.mean is not None},
        {name: one.rows for name, one in clients.items()},
        client_level(confidence, len(clients), mixtures),
        kind,
        largest,
        clipped,
        mistakes,
        people,
        personal,
        over_rows,
    )


def shifted(certificate: HeldOut, slope: float, shift: float) -> float:
    """A held-out bound with room for shift: every client may move by so much in W_1 (or W_p, p >= 1).

    Args:
        certificate: of `held_out_bound`.
        slope: the loss's, at most, in the sample.
        shift: how far, in the metric that the slope is in.

    Returns:
        bound + slope shift.

    Raises:
        BidroError: for a slope or shift that is negative or not finite.

    Examples:
        >>> from bidro import held_out_bound
        >>> from bidro.certify import shifted
        >>> found = held_out_bound({"north": [0.1, 0.2] * 100}, largest=1.0)
        >>> round(shifted(found, slope=2.0, shift=0.1) - found.bound, 6)
        0.2
    """
    if not (0 <= slope < math.inf and 0 <= shift < math.inf):
        raise BidroError(f"Slope and shift must be finite and not negative; got {slope} and {shift}.")
    return certificate.bound + slope * shift


def shifted_squared(certificate: HeldOut, steepness: float, shift: float) -> float:
    """`shifted` for squared loss and a shift in W_2: (sqrt(bound) + shift nu)^2.

    Args:
        certificate: of `held_out_bound`.
        steepness: nu = ||S^-1 a(x)||.
        shift: how far.

    Returns:
        The bound with room for that shift.

    Raises:
        BidroError: for a steepness or shift that is negative or not finite.

    Examples:
        >>> from bidro import held_out_bound
        >>> from bidro.certify import shifted_squared
        >>> found = held_out_bound({"north": [0.1, 0.2] * 100}, largest=1.0)
        >>> shifted_squared(found, steepness=1.0, shift=0.1) > found.bound
        True
    """
    if not (0 <= steepness < math.inf and 0 <= shift < math.inf):
        raise BidroError(f"Steepness and shift must be finite and not negative; got {steepness} and {shift}.")
    return (math.sqrt(certificate.bound) + shift * steepness) ** 2


def checked_losses(name: str, given: ArrayLike, largest: float, clipped: bool) -> Floats:
    """(N_i,) a client's losses in [0, largest], with `clipped` larger ones as that; BidroError for others."""
    values = np.asarray(np.minimum(given, largest) if clipped else given, float)
    if values.ndim != 1 or len(values) == 0:
        raise BidroError(f"Client '{name}' has no held-out rows; keep at least one.")
    if not np.all(np.isfinite(values)) or values.min() < 0 or values.max() > largest * (1 + 1e-12):
        raise BidroError(f"Client '{name}' has losses outside [0, {largest:g}], the range that was declared.")
    return np.minimum(values, largest)


def _person_means(name: str, values: Floats, people: ArrayLike) -> tuple[Floats, Floats]:
    """(people,) the mean over each person's rows, and how many these are."""
    labels = np.asarray(people)
    if labels.shape != values.shape:
        raise BidroError(
            f"Client '{name}' has {len(values)} held-out rows but {labels.size} labels of people; give one "
            "a row."
        )
    means, sizes = person_means(values, labels)
    return means, sizes.astype(float)


@dataclass(frozen=True, eq=False)
class Paired(_OfClients):
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
    rows: Mapping[str, int]  # draws: rows, or people
    largest: float  # R: no loss counts as more
    clipped: bool  # whether losses can be larger than that
    mistakes: bool  # whether losses are mistakes, so that differences are of shares
    people: bool  # whether a draw is a person with the mean difference of its rows, not a row
    over_rows: OverRows | None = None  # the mean over rows, where draws are people
    above: tuple[int, int] | None = None  # rows whose loss is larger than that: of this model, of the other

    @property
    def lower(self) -> bool:
        """Whether the mean of the losses as they count is, with this confidence, lower at every client."""
        return self.bound < 0

    @property
    def better(self) -> bool:
        """Whether the model is, with this confidence, better than the other at every client, with `people` as
        a mean of people: never where losses can be larger than they count, as a few such may make it
        worse."""
        return self.lower and not self.clipped

    @property
    def verdict(self) -> str:
        """Whether the model is better than the other, as a phrase."""
        people, of_rows = (" as a mean of people" if self.people else ""), ""
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
        if self.vacuous:
            return f"too few {self.draws} to tell, {self.rows[self.binding]:,} of '{self.binding}'"
        return (
            f"not shown to be better at every client{people}: at '{self.binding}' the difference{counted} "
            f"may be up to {self.in_units(self.bound)}{of_rows}"
        )

    @property
    def _not_compared(self) -> str:
        """What is not compared because losses are clipped, as a phrase."""
        said = f"what losses have above {self.largest:.6g} is not compared"
        if self.above is None:
            return said
        ours, theirs = (f"{rows:,} row{'' if rows == 1 else 's'}" for rows in self.above)
        return f"{said} (here {ours} of this model, {theirs} of the other)"

    @property
    def promise(self) -> str:
        if self.vacuous:
            return (
                f"There are too few {self.draws} to compare the two models at confidence "
                f"{self.confidence:g}: '{self.binding}' has {self.rows[self.binding]:,}."
            )
        what, where = (
            self._what,
            f"on new {self._new_draws}, drawn as these were and mixed in any admissible way",
        )
        assumed = f"It assumes that {self.draws} of a client are independent draws."
        if self.over_rows is not None:
            assumed = f"{assumed} {self.over_rows.sentence(self.in_units, 'the difference')}".rstrip()
        if self.better:
            people = ", as a mean of people" if self.people else ""
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
    people: Mapping[str, ArrayLike] | None = None,
    rows_per_person: int | None = None,
) -> Paired:
    """From each client's losses (N_i,) of a model and of the other on the same rows, in the same order.

    Losses must lie in [0, largest]; with `clipped` larger ones count as `largest`, of both models. `people`
    and `rows_per_person` as in `held_out_bound`. Raises BidroError for losses outside.
    """
    differences = {}
    ours, theirs = (
        sum(int(np.sum(np.asarray(each) > largest)) for each in of.values()) for of in (losses, others)
    )
    for name, own in losses.items():
        one, two = (checked_losses(name, each, largest, clipped) for each in (own, others[name]))
        # In [0, 2R] but for rounding.
        differences[name] = np.clip(one - two + largest, 0.0, 2 * largest)
    found = held_out_bound(
        differences, confidence, 2 * largest, people=people, rows_per_person=rows_per_person
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
        people is not None,
        None if found.over_rows is None else found.over_rows.minus(largest),
        (ours, theirs) if clipped else None,
    )
