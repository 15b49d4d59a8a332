"""What sites agree on for a private run (`Terms`), what one of them allows (`Budget`), and what follows for
every release (`Plan`): what it may cost, how rows are clipped and how large the noise is.

All of it is public and depends on no row. The plan is the site's own: it follows from its budget and the
agreement, so that a server can neither spend a budget in one query nor request less noise.

Where noise is shared (`SharedNoise`) sites' sums are masked, so that only the sum over all of them is seen
(`masking`), and each adds a share of the noise that this needs. How large a share is, is agreed on, as
everybody relies on everybody's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from bidro.core.errors import BidroError, is_number
from bidro.data.splines import Basis
from bidro.privacy.accounting import epsilon_of, honest_sites, of_one_share, rho_of, shared_rho
from bidro.privacy.masking import MIN_SITES, Roster, require_room
from bidro.privacy.mechanisms import (
    GRADIENT_STEPS,
    MOMENT_STEPS,
    MOST_DEGREE,
    Scale,
    bernstein_scale,
    count_scale,
    gradients_scale,
    moments_scale,
)
from bidro.privacy.row_arithmetic import PrivateLoss

# The two parts of a site's rows. They have one budget: by another agreement, or with a cell corrected, a
# person may be in the other part.
TRAINING, HELD_OUT = "training", "kept-out"
# Queries whose answers are masked where noise is shared.
MASKED = ("moments", "gradients", "describe")
# Rounds of gradients where the agreement says no number.
_ROUNDS: dict[PrivateLoss, int] = {"squared": 8, "logistic": 6}
_MOST_ROUNDS = 100
_MOST_ROWS_PER_PERSON = 10**6
_MOST_CLIP = 1e6


@dataclass(frozen=True)
class SharedNoise:
    """The part [privacy.shared] of an agreement: what a run costs everybody as long as `honest` of the sites,
    one's own among them, keep their share of the noise to themselves. Sums over training rows are masked, and
    sites' numbers of rows and losses of held-out rows, each told by itself, have all their noise."""

    epsilon: float
    delta: float = 1e-6
    rows_per_person: int = 1
    honest: float = 0.5
    rows: float = 0.02  # the share of the budget that sites' numbers of rows cost
    # Across machines, every site's name and public key, 64 hexadecimal digits (`bidro site key`).
    keys: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _keys(self.keys))
        self.budget  # noqa: B018 - a budget that is none is said now
        honest_sites(self.honest, 1)
        if not is_number(self.rows) or not 0.001 <= self.rows <= 0.5:
            raise BidroError(
                f"rows in [privacy.shared] must be a share from 0.001 to 0.5; got {self.rows!r}."
            )

    @classmethod
    def of(cls, content: Mapping[str, object]) -> SharedNoise:
        """From a file. Raises BidroError for what is not known, and where epsilon is missing."""
        known = cls.__dataclass_fields__
        for name in content:
            if name not in known:
                raise BidroError(f"[privacy.shared] has no '{name}'; it has {', '.join(known)}.")
        if "epsilon" not in content:
            raise BidroError("[privacy.shared] needs an epsilon, such as epsilon = 1: what a run is to cost.")
        return cls(**content)  # type: ignore[arg-type]

    @cached_property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta, self.rows_per_person)

    def relied_on(self, sites: int, honest: float | None = None) -> int:
        """h: of so many sites, on how many one relies, by what was agreed on or by one's own word."""
        share = self.honest if honest is None else honest
        return honest_sites(share, sites, max(len(self.keys), sites))

    def roster(self, names: Sequence[str]) -> Roster:
        """Of these sites. Raises BidroError where they are too few, or have no key that all agreed on."""
        known = dict(self.keys)
        missing = [name for name in names if name not in known]
        if missing:
            raise BidroError(
                f"Site '{missing[0]}' has no key in [privacy.shared.keys] of schema.toml: `bidro site key` "
                "there shows it, and all sites agree on all keys."
            )
        return Roster({name: bytes.fromhex(known[name]) for name in names})


@dataclass(frozen=True)
class Terms:
    """The part [privacy] of an agreement; None stands for what suits the loss and the columns."""

    gradients: int | None = None  # rounds of gradients
    losses: float = 0.3  # the share of the budget that losses of held-out rows cost, where there are some
    moments: float = 0.2  # the share of the rest that second moments cost
    clip: float | None = None  # the norm of (features, 1, target) beyond which rows count less
    degree: int = 4  # of the polynomials by which losses of held-out rows are released
    shared: SharedNoise | None = None  # None: every site adds all the noise that its own sums need

    def __post_init__(self) -> None:
        if isinstance(self.shared, Mapping):
            object.__setattr__(self, "shared", SharedNoise.of(self.shared))
        if self.gradients is not None and not _is_whole(self.gradients, 1, _MOST_ROUNDS):
            raise BidroError(
                f"gradients in [privacy] must be a whole number of rounds from 1 to {_MOST_ROUNDS}; got "
                f"{self.gradients!r}."
            )
        for name in ("losses", "moments"):
            share = getattr(self, name)
            if not is_number(share) or not 0.01 <= share <= 0.99:
                raise BidroError(f"{name} in [privacy] must be a share from 0.01 to 0.99; got {share!r}.")
        if self.clip is not None and (not is_number(self.clip) or not 1e-3 <= self.clip <= _MOST_CLIP):
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
    # Where noise is shared: on which share of the sites it relies; None for what is agreed on, 0 for its own.
    honest: float | None = None

    def __post_init__(self) -> None:
        if self.honest is not None:
            honest_sites(self.honest, 1)
        if not is_number(self.epsilon) or not 0 < self.epsilon <= 1e6:
            raise BidroError(f"epsilon must be a positive number, such as 1; got {self.epsilon!r}.")
        if not is_number(self.delta) or not 1e-300 < self.delta <= 0.01:
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
    columns: int  # m = features + 2; with curves their columns in place of the features
    rounds: int  # of gradients
    of_losses: Fraction  # the share of the budget that losses of held-out rows cost; 0 where there are none
    of_moments: Fraction  # the share of the rest that second moments cost
    clip: float  # of z
    degree: int
    people: bool = False  # whether rows are of people, so that held-out losses are means over one's rows
    shared: SharedNoise | None = None
    sites: int = 1  # over which sums are masked, where noise is shared
    basis: Basis | None = None  # of curves, in the agreed units; None for straight lines

    @classmethod
    def of(
        cls,
        terms: Terms,
        loss: PrivateLoss,
        features: int,
        people: bool = False,
        held_out: bool = True,
        sites: int = 1,
        basis: Basis | None = None,
    ) -> Plan:
        """`held_out`: whether there are held-out rows, whose losses are released."""
        m = features + 2  # a row with the columns of its curves is no longer than with its features
        of_losses = Fraction(terms.losses) if held_out else Fraction(0)
        clip = math.sqrt(m / 2) if terms.clip is None else float(terms.clip)
        rounds = _ROUNDS[loss] if terms.gradients is None else terms.gradients
        fixed = Fraction(terms.moments), clip, terms.degree, people, terms.shared
        columns = m if basis is None else basis.columns + 2
        return cls(loss, columns, rounds, of_losses, *fixed, basis=basis).over(sites)

    @classmethod
    def of_sums(cls, shared: SharedNoise, sites: int) -> Plan:
        """Where nothing is trained, and rows of any columns are summed up."""
        return cls.of(Terms(shared=shared), "squared", 1, held_out=False, sites=sites)

    def over(self, sites: int) -> Plan:
        """The same where sums are over so many sites. Raises BidroError where noise is shared by too few, or
        is so small that steps are too coarse for it."""
        if self.shared is None:
            return self
        if sites < MIN_SITES:
            raise BidroError(
                f"Noise is shared by at least {MIN_SITES} sites, and here are {sites}: leave "
                "[privacy.shared] out."
            )
        found, agreed = replace(self, sites=sites), self.shared.budget
        for query, scale in (
            ("moments", found.moments_scale(agreed)),
            ("gradients", found.gradients_scale(agreed, 1.0, 1.0)),
        ):
            of_share, least = found.charge(query, agreed)[0], min(scale.variance)
            assert of_share is not None
            if shared_rho(of_share, found.shares, least, len(scale.variance)) > found.cost(query, agreed).rho:
                raise BidroError(
                    f"epsilon = {agreed.epsilon:g} in [privacy.shared] leaves {sites} sites less noise than "
                    "can be shared in whole numbers; agree on a smaller one."
                )
        return found

    @property
    def classes(self) -> bool:
        return self.loss == "logistic"

    def cost(self, query: str, budget: Budget) -> Cost:
        """What a release costs: losses of held-out rows their share of the budget, numbers of rows theirs, of
        the rest second moments theirs, and every round of gradients as much of what is left. A whole run
        costs the budget: the site's, or where noise is shared that of the agreement, which the site charges
        by how many sites it relies on itself."""
        whole, by = budget.rho, Fraction(1)
        if self.shared is not None:
            whole = self.shared.budget.rho
            by = Fraction(self.shares, self.shared.relied_on(self.sites, budget.honest))
        if query == "describe":
            return Cost(TRAINING, by * whole)
        losses = whole * self.of_losses
        if query == "losses":
            return Cost(HELD_OUT, losses)
        rows = whole * self._of_rows
        if query == "counts":
            return Cost(TRAINING, rows)
        moments = (whole - losses - rows) * self.of_moments
        if query == "moments":
            return Cost(TRAINING, by * moments)
        return Cost(TRAINING, by * (whole - losses - rows - moments) / self.rounds)

    @property
    def _of_rows(self) -> Fraction:
        return Fraction(0) if self.shared is None else Fraction(self.shared.rows)

    @property
    def shares(self) -> int:
        """h: how many of the sites' shares of noise are relied on; 1 where noise is not shared."""
        return 1 if self.shared is None else self.shared.relied_on(self.sites)

    @property
    def alone(self) -> Budget:
        """What a run costs whatever all other sites do, where noise is shared: by one's own share alone."""
        assert self.shared is not None
        agreed = self.shared.budget
        together = self.cost("moments", agreed).rho + self.rounds * self.cost("gradients", agreed).rho
        rho = agreed.rho - together + of_one_share(together, self.shares)
        return Budget(epsilon_of(rho, agreed.delta), agreed.delta, agreed.rows_per_person)

    @property
    def alone_describing(self) -> Budget:
        """The same of a table that is described, which costs as much as a run."""
        assert self.shared is not None
        agreed = self.shared.budget
        rho = of_one_share(agreed.rho, self.shares)
        return Budget(epsilon_of(rho, agreed.delta), agreed.delta, agreed.rows_per_person)

    def require_room(self, rows: int) -> None:
        """Raise BidroError for a site with so many rows that masked sums might not fit in 64 bits."""
        assert self.shared is not None
        for steps, scale in (
            (MOMENT_STEPS**2, self.moments_scale(self.shared.budget)),
            (GRADIENT_STEPS, self.gradients_scale(self.shared.budget, 1.0, 1.0)),
        ):
            require_room(rows, self.sites, steps, max(scale.variance))

    def moments_scale(self, budget: Budget | None) -> Scale:
        return moments_scale(self.columns, self.clip, *self.charge("moments", budget))

    def gradients_scale(self, budget: Budget | None, clip: float, loss_clip: float) -> Scale:
        """Of the gradient, of the number of rows that are not clipped, and of the loss."""
        return gradients_scale(self.columns, clip, loss_clip, *self.charge("gradients", budget))

    def rows_scale(self, budget: Budget | None) -> Scale:
        rho, rows, _ = self.charge("counts", budget)
        return count_scale(rho, rows)

    def losses_scale(self, budget: Budget | None) -> Scale:
        return bernstein_scale(self.degree, *self.charge_of_losses(budget))

    def mistakes_scale(self, budget: Budget | None) -> Scale:
        """Of the numbers of right and wrong predictions."""
        return bernstein_scale(1, *self.charge_of_losses(budget))

    def charge_of_losses(self, budget: Budget | None) -> tuple[Fraction | None, int]:
        """(rho, rows a person) of the losses, and again of the mistakes, where there are classes; a person is
        one value, however many rows it has."""
        rho, rows, _ = self.charge("losses", budget)
        halved = rho / 2 if rho is not None and self.classes else rho
        return halved, 1 if self.people else rows

    def charge(self, query: str, budget: Budget | None) -> tuple[Fraction | None, int, int]:
        """(rho, rows a person, sites): what a site's noise costs by itself, for people with so many rows, in
        sums over so many sites."""
        if self.shared is None:
            rho = None if budget is None else self.cost(query, budget).rho
            return rho, 1 if budget is None else budget.rows_per_person, 1
        agreed = self.shared.budget
        rho = self.cost(query, agreed).rho
        if query not in MASKED:
            return rho, agreed.rows_per_person, 1
        return of_one_share(rho, self.shares), agreed.rows_per_person, self.sites


def _keys(given: object) -> tuple[tuple[str, str], ...]:
    """Names and public keys, from a table or a list of pairs."""
    pairs = given.items() if isinstance(given, Mapping) else given
    found = []
    for pair in pairs:  # type: ignore[attr-defined]
        name, key = pair
        if not isinstance(name, str) or not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
            raise BidroError(
                f"[privacy.shared.keys] has a key of 64 hexadecimal digits for every site; got {name!r} = "
                f"{key!r}."
            )
        found.append((name, key))
    return tuple(sorted(found))


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
