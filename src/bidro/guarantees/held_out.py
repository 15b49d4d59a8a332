"""What rows kept out of training say about the true risk of a model, under any admissible mixture.

For each client a one-sided confidence bound of its true mean loss, from losses on rows that training never
saw; then the worst admissible mixture of these bounds. It covers the unknown mixture and the sampling error,
but no shift inside a client. Bounded losses: a betting bound and the empirical Bernstein bound, whichever a
user asks for; wrong or right: Clopper and Pearson's. Each is a function of the losses as a multiset: the
order of a table cannot matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.mean_bounds import BOUNDS, VACUOUS_SHARE, betting_ratio, rows_for_half_way
from bidro.sets import CappedSimplex, L1SimplexBall, Simplex
from bidro.trees import Frozen

# "private" bounds come from sums with noise: see `private_bounds`.
Bound = Literal["betting", "bernstein", "clopper-pearson", "private"]


@dataclass(frozen=True, eq=False)
class OverRows:
    """The mean over rows, beside a mean of units: units with many rows count for more in it.

    It is the ratio of a unit's mean sum to its mean number of rows, and bounded only where no unit has more
    than a declared number of rows: else a few units with any number of rows could be all of it.
    """

    means: Mapping[str, float]  # by client, on the rows kept out
    clients: Mapping[str, float]  # one-sided bounds, each of the statement's level; {} where there are none
    bound: float | None  # under the worst mixture; None where `most` is
    most: int | None  # rows of a unit, declared; None where it is not

    def __post_init__(self) -> None:
        for name in ("means", "clients"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def largest_mean(self) -> float:
        """Of the clients: any mixture may be theirs."""
        return max(self.means.values())

    def short(self, text: Callable[[float], str]) -> str:
        """In a few words; `text` says how a number is written."""
        if self.bound is None:
            return f"of rows up to {text(self.largest_mean)} observed, not bounded"
        return f"of rows at most {text(self.bound)}"

    def sentence(self, text: Callable[[float], str], what: str = "it") -> str:
        """`what` has the mean, where that is not plain from what was said before."""
        worst = max(self.means, key=lambda name: self.means[name])
        seen = f"on those kept out {what} was {text(self.means[worst])} at '{worst}', where it was largest"
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


def draws_in_words(units: bool) -> str:
    return "people" if units else "rows"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """With probability at least `confidence` the true risk under every mixture in A is at most `bound`, if
    the draws are independent; `vacuous` where that says nothing.

    Examples:
        >>> from bidro import held_out
        >>> found = held_out({"north": [0.1, 0.2] * 100, "south": [0.2, 0.3] * 100}, largest=1.0)
        >>> found.binding, found.bound == max(found.clients.values()), found.vacuous
        ('south', True, False)
    """

    bound: float  # of the true risk under the worst mixture
    confidence: float  # of that bound
    clients: Mapping[str, float]  # one-sided bounds of the clients' true risks
    means: Mapping[str, float]  # mean losses of the draws kept out; {} where clients tell bounds alone
    rows: Mapping[str, int]  # draws kept out: rows, or units
    level: float  # beta of each client's bound
    kind: Bound  # which bound of a mean
    largest: float  # that a loss counts as
    clipped: bool  # whether losses can be larger than that
    mistakes: bool  # whether losses are shares of wrong predictions
    units: bool  # whether a draw is a unit with the mean loss of its rows, not a row
    own: bool = False  # whether every client uses its own model
    over_rows: OverRows | None = None  # beside a mean of units, where it is known

    def __post_init__(self) -> None:
        for name in ("clients", "means", "rows"):
            object.__setattr__(self, name, Frozen(getattr(self, name)))

    @property
    def draws(self) -> str:
        """What is drawn, in words. A unit may be a thing, too; of people everybody knows what is meant."""
        return draws_in_words(self.units)

    @property
    def each_by_itself(self) -> bool:
        """Whether every client's bound has the confidence by itself only, so that of several some may be
        false with a larger probability; else they hold all together. See `client_level`."""
        return len(self.clients) > 1 and self.level >= (1 - self.confidence) * (1 - 1e-9)

    @property
    def vacuous(self) -> bool:
        """Whether the bound says no more than that losses count as at most `largest`."""
        return self.bound >= VACUOUS_SHARE * self.largest

    @property
    def vacuous_clients(self) -> frozenset[str]:
        """The clients whose own bounds are vacuous."""
        return frozenset(n for n, own in self.clients.items() if own >= VACUOUS_SHARE * self.largest)

    @property
    def binding(self) -> str:
        """The client with the highest bound."""
        return max(self.clients, key=lambda name: self.clients[name])

    @property
    def enough(self) -> int | None:
        """So many rows (or units) of the binding client with the same mean loss bring its bound half way down
        from `largest` to that mean, however the losses spread; None where none does, or it is unknown."""
        if not self.means or self.kind == "private":
            return None
        return rows_for_half_way(self.means[self.binding] / self.largest, self.level, self.kind)

    @property
    def shortage(self) -> str:
        """What a vacuous bound comes from, and what would help, in a few words."""
        what, binding = self.draws, self.binding
        if self.kind == "private":
            return f"'{binding}' has about {self.rows[binding]:,}; more {what} or a larger budget would do"
        if not self.means:
            return f"'{binding}' has {self.rows[binding]:,}, or its losses are as large as any that counts"
        if self.enough is None:
            return f"more {what} would not help: the losses of '{binding}' are as large as any that counts"
        return (
            f"'{binding}' has {self.rows[binding]:,}, and {self.enough:,} {what} with the same mean would do"
        )

    @property
    def _over_rows(self) -> str:
        if self.over_rows is None:
            return "The mean of rows, in which people with many rows count for more, is not told. "
        return self.over_rows.sentence("{:.6g}".format)

    @property
    def promise(self) -> str:
        what = "share of mistakes" if self.mistakes else "mean loss"
        if self.clipped:
            what += f", each counted as at most {self.largest:.6g},"
        draws = self.draws
        new = "people (a mean of people, not of rows)" if self.units else "rows"
        model = "the models that the clients use, each its own," if self.own else "this model"
        if self.vacuous:
            return (
                f"There are too few {draws} to promise anything at confidence {self.confidence:g}: the bound "
                f"of the {what} is {self.bound:.6g}, and none counts as more than {self.largest:.6g}; "
                f"{self.shortage}."
            )
        assumed = "It assumes that the rows of a client are independent draws, which several rows of one "
        assumed += "person or unit are not. "
        if self.units:
            assumed = "A person (a unit) is one draw, with the mean over its own rows; it assumes that "
            assumed += f"people are independent. {self._over_rows}"
        if self.kind == "private":
            assumed += "It was worked out from sums with noise, whose chance is part of the confidence. "
        return (
            f"With confidence {self.confidence:g} the {what} of {model} on new {new}, drawn as "
            f"those kept out were and mixed in any admissible way, is at most {self.bound:.6g}. {assumed}It "
            "says nothing about shift inside a client."
        )


class ClientBound(NamedTuple):
    """What one client's rows kept out say; all that has to leave it."""

    bound: float  # one-sided, of its true mean loss
    mean: float
    rows: int  # draws: rows, or units
    over_rows: float | None = None  # the mean over rows, beside that of units; None where it is not told
    rows_bound: float | None = None  # one-sided, of the true mean over rows; None where there is none


def held_out(
    losses: Mapping[str, ArrayLike],
    confidence: float = 0.95,
    largest: float | None = None,
    mixtures: Simplex | CappedSimplex | L1SimplexBall | None = None,
    kind: Bound = "betting",
    clipped: bool = False,
    units: Mapping[str, ArrayLike] | None = None,
    rows_per_unit: int | None = None,
) -> HeldOut:
    """A bound of the true risk under any mixture, from each client's losses on rows kept out of training.

    For the full simplex each bound needs level 1 - confidence only, since the whole fails only if that of the
    truly worst client does; a smaller set of mixtures needs all of them to hold together.

    Args:
        losses: (N_i,) by client, in [0, largest], of independent draws in any order.
        confidence: of the bound.
        largest: known beforehand, from the declared support: a range read off the losses proves nothing.
        mixtures: A, the full simplex by default.
        kind: "betting", "bernstein" or "clopper-pearson" (of mistakes).
        clipped: whether larger losses count as `largest`; the statement is about losses counted so.
        units: a label (N_i,) a row for every client, where several rows belong to one person or thing: a unit
            is then one draw, with the mean loss of its rows.
        rows_per_unit: the largest number of rows that a unit can have, known beforehand: the mean over rows
            is then bounded, too.

    Returns:
        The bound, with that of every client.

    Raises:
        BidroError: for losses outside [0, largest], where `largest` is missing, and for a unit with more than
            `rows_per_unit` rows.

    Examples:
        >>> from bidro import held_out
        >>> losses = {"north": [0.1, 0.2] * 100, "south": [0.2, 0.3] * 100}
        >>> round(held_out(losses, confidence=0.95, largest=1.0).bound, 2)
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
    labels = units_of(losses, units)
    check_rows_per_unit(rows_per_unit, units)
    clients = {
        name: client_bound(name, given, level, largest, kind, clipped, labels[name], rows_per_unit)
        for name, given in losses.items()
    }
    mistakes = kind == "clopper-pearson"
    return worst_mixture(
        clients, confidence, largest, whole, kind, clipped, mistakes, units is not None, most=rows_per_unit
    )


def check_rows_per_unit(most: int | None, units: Mapping[str, ArrayLike] | None) -> None:
    """Raise BidroError for a declared number of rows that is none, that is declared of no units, or that a
    unit exceeds."""
    if most is None:
        return
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise BidroError(f"The largest number of rows of a unit must be a whole number from 1; got {most!r}.")
    if units is None:
        raise BidroError("A largest number of rows of a unit needs units; name whose row each is.")
    for name, own in units.items():
        labels, counts = np.unique(np.asarray(own), return_counts=True)
        if len(counts) and counts.max() > most:
            raise BidroError(
                f"A unit of client '{name}', '{labels[int(np.argmax(counts))]}', has {counts.max():,} rows, "
                f"and {most:,} were declared as the largest number; declare one that you know to hold for "
                "everybody without these rows, as one read off them would void the bound, or none."
            )


def units_of(
    clients: Iterable[str], units: Mapping[str, ArrayLike] | None
) -> dict[str, ArrayLike] | dict[str, None]:
    """The labels of every client's rows, None where a row is a draw by itself. Raises BidroError for a client
    without labels, or labels of no client."""
    names = list(clients)
    if units is None:
        return dict.fromkeys(names)
    odd = sorted(set(names) ^ set(units))
    if odd:
        where = "has rows but no units" if odd[0] in names else "has units but no rows"
        raise BidroError(f"Client '{odd[0]}' {where}; give a label for every row of every client.")
    return {name: units[name] for name in names}


def client_level(confidence: float, n: int, mixtures: Simplex | CappedSimplex | L1SimplexBall) -> float:
    """beta of each of n clients' bounds: see `held_out`."""
    if not 0 < confidence < 1:
        raise BidroError(f"The confidence must lie strictly between 0 and 1; got {confidence}.")
    if mixtures.dimension != n:
        raise BidroError(f"The mixtures are for {mixtures.dimension} clients but there are {n}.")
    full = isinstance(mixtures, Simplex)
    return 1 - confidence if full else -math.expm1(math.log(confidence) / n)


def client_bound(
    name: str,
    losses: ArrayLike,
    level: float,
    largest: float,
    kind: Bound,
    clipped: bool = False,
    units: ArrayLike | None = None,
    most: int | None = None,
) -> ClientBound:
    """From one client's losses (N_i,) in any order; it fails with probability at most `level`."""
    return client_bounds(name, losses, [level], largest, kind, clipped, units, most)[0]


def client_bounds(
    name: str,
    losses: ArrayLike,
    levels: Iterable[float],
    largest: float,
    kind: Bound,
    clipped: bool = False,
    units: ArrayLike | None = None,
    most: int | None = None,
) -> list[ClientBound]:
    """`client_bound` at several levels, each by itself. With units, and at most so many rows of each, there
    are bounds of the mean over rows, too."""
    values = checked_losses(name, losses, largest, clipped)
    over_rows: float | None = None
    means, sizes = values, np.ones(len(values))
    if units is not None:
        means, sizes = _unit_means(name, values, units)
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


def worst_mixture(
    clients: Mapping[str, ClientBound],
    confidence: float,
    largest: float,
    mixtures: Simplex | CappedSimplex | L1SimplexBall,
    kind: Bound,
    clipped: bool = False,
    mistakes: bool = False,
    units: bool = False,
    own: bool = False,
    most: int | None = None,
) -> HeldOut:
    """The whole from its clients' bounds, each of `client_level`; `most`: rows of a unit, where declared."""
    worst = float(mixtures.linear_maximum(np.array([one.bound for one in clients.values()]))[0])
    over_rows = None
    means = {name: one.over_rows for name, one in clients.items() if one.over_rows is not None}
    if units and len(means) == len(clients):
        bounds = {name: one.rows_bound for name, one in clients.items() if one.rows_bound is not None}
        whole = float(mixtures.linear_maximum(np.array([*bounds.values()]))[0]) if bounds else None
        over_rows = OverRows(means, bounds, whole, most)
    return HeldOut(
        worst,
        confidence,
        {name: one.bound for name, one in clients.items()},
        {name: one.mean for name, one in clients.items()},
        {name: one.rows for name, one in clients.items()},
        client_level(confidence, len(clients), mixtures),
        kind,
        largest,
        clipped,
        mistakes,
        units,
        own,
        over_rows,
    )


def shifted(certificate: HeldOut, slope: float, shift: float) -> float:
    """A held-out bound with room for shift: every client may move by so much in W_1 (or W_p, p >= 1).

    Args:
        certificate: of `held_out`.
        slope: the loss's, at most, in the sample.
        shift: how far, in the metric that the slope is in.

    Returns:
        bound + slope shift.

    Raises:
        BidroError: for a slope or shift that is negative or not finite.

    Examples:
        >>> from bidro import held_out, shifted
        >>> found = held_out({"north": [0.1, 0.2] * 100}, largest=1.0)
        >>> round(shifted(found, slope=2.0, shift=0.1) - found.bound, 6)
        0.2
    """
    if not (0 <= slope < math.inf and 0 <= shift < math.inf):
        raise BidroError(f"Slope and shift must be finite and not negative; got {slope} and {shift}.")
    return certificate.bound + slope * shift


def shifted_squared(certificate: HeldOut, steepness: float, shift: float) -> float:
    """`shifted` for squared loss and a shift in W_2: (sqrt(bound) + shift nu)^2.

    Args:
        certificate: of `held_out`.
        steepness: nu = ||S^-1 a(x)||.
        shift: how far.

    Returns:
        The bound with room for that shift.

    Raises:
        BidroError: for a steepness or shift that is negative or not finite.

    Examples:
        >>> from bidro import held_out, shifted_squared
        >>> found = held_out({"north": [0.1, 0.2] * 100}, largest=1.0)
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
        raise BidroError(f"Client '{name}' has no rows kept out; keep at least one.")
    if not np.all(np.isfinite(values)) or values.min() < 0 or values.max() > largest * (1 + 1e-12):
        raise BidroError(f"Client '{name}' has losses outside [0, {largest:g}], the range that was declared.")
    return np.minimum(values, largest)


def _unit_means(name: str, values: Floats, units: ArrayLike) -> tuple[Floats, Floats]:
    """(units,) the mean over each unit's rows, and how many these are."""
    labels = np.asarray(units)
    if labels.shape != values.shape:
        raise BidroError(
            f"Client '{name}' has {len(values)} rows kept out but {labels.size} labels of units; give one "
            "a row."
        )
    order = np.lexsort((values, labels))
    _, first, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    # No mean lies above its largest part, but for rounding.
    return np.minimum(np.add.reduceat(values[order], first) / sizes, values.max()), sizes.astype(float)
