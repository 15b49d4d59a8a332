"""How many different rows a set needs, so that what is told of it does not determine them.

Second moments of m columns are m (m + 3) / 2 numbers, and all that rounds tell of squared loss follows from
them, at whatever models, gradients no less than curvature: those at m models are they. n rows are n m
numbers. Recorded numbers are whole multiples of some unit (0.1, 1, a twelfth), so that few enough rows follow
from their second moments exactly: up to m + 2 by reducing a lattice, and beyond that by search, as far as the
moments hold as many bits as the rows. So bits are counted, of the rows from below, of the moments from above:

- A column has h bits a row: the entropy of its values where these repeat, and else that of a normal number of
  its deviation s, recorded in units of u, 1/2 log2(2 pi e (s^2 / u^2 + 1/12)). Columns that go together have
  less: 1/2 log2 det R of their correlations R is added, which is negative.
- D different rows in no order hold D h - log2(D!) bits. Rows that are there more than once do not count:
  where most people have one of few patterns, those who have not are found, however many people there are.
- A sum over rows of a product of two centred columns holds 1/2 log2(2 pi e (n v / u^2 + 1/12)) bits, where v
  is the product's variance and u the product of the units; of columns of few values, no more than the counts
  of their pairs.

THE RULE: different rows hold at least `MARGIN` times as many bits as is told of them, or there are as many
times more of them than equations; and there are more than `ROWS_A_PARAMETER` for every parameter. For
numbers of many digits the bits say no more than the last. In a set in which every row is had by enough people
nobody is to be found, and it needs no more.

Tried on 0/1 tables of up to 12 columns with a solver that looks for other tables with the same sums: no row
that follows from them was seen in a table with more bits than are told, nor with 1.05 times more different
rows than equations.

DOMINANCE: sums of many rows are nearly one row's where it outweighs the others. Let rows z_i, with a 1 before
their numbers, have second moments S = sum_i z_i z_i', and let u combine columns. S u = sum_i (u'z_i) z_i is a
sum of rows with weights u'z_i. If a row r has the share

    h = (u'z_r)^2 / sum_i (u'z_i)^2

of these weights' squares, S u / (u'S u)^1/2 is z_r up to sqrt((1 - h) / h) deviations of the others: a
column of thousandths in which one row has a 1, or a number far from all others, tells all numbers of its row,
however many rows there are. The largest share over all u is the row's leverage, z_r' S^-1 z_r, the same in
any units. Statistical offices withhold sums that one contributor dominates for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from bidro.core.arrays import Floats
from bidro.deploy.site.disclosure.rules import PolicyViolationError

# A set that sums are told of has more people than so many a parameter.
ROWS_A_PARAMETER = 2
# And its rows hold so many times the bits that are told of them.
MARGIN = 2.0
# More binary digits than this a number is not counted with.
_DIGITS = 40
# A recorded unit is looked for up to such parts of the smallest difference of two values.
_PARTS = 12
# People of whom entropies are estimated, at the most.
SAMPLE = 4_000
# What is left of a column's variance, as a share of it, where it follows from the others.
_FOLLOWS = 1e-12
# More people than any table has.
NEVER = 2**40


class Columns(NamedTuple):
    """What a row's numbers are like."""

    units: Floats  # (m,) of which every number is a whole multiple, but for a constant
    values: NDArray[np.int64]  # (m,) how many different ones there are
    entropy: Floats  # (m,) bits of one row

    @classmethod
    def of(cls, rows: Floats) -> Columns:
        """From rows (n, m)."""
        found = [_column(column) for column in rows.T]
        units, values, entropy = (np.array(part) for part in zip(*found, strict=True))
        return cls(units, values.astype(np.int64), entropy)


def recorded_unit(values: Floats) -> float:
    """The largest unit of which all differences of some values (K,), sorted and different, are whole
    multiples; a small share of the largest value where there is none."""
    finest = max(float(np.abs(values).max()), float(np.ptp(values))) * 2.0**-_DIGITS
    steps = values - values[0]
    smallest = float(np.diff(values).min())
    for parts in range(1, _PARTS + 1):
        unit = smallest / parts
        multiples = steps / unit
        # Numbers that were written with all their digits are multiples up to these.
        slack = 1e-3 + np.abs(values).max() * 2.0**-50 / unit
        if slack < 0.05 and np.all(np.abs(multiples - np.rint(multiples)) < slack * np.maximum(1, parts)):
            return max(unit, finest)
    return finest


def _column(values: Floats) -> tuple[float, int, float]:
    """(unit, number of different values, entropy in bits) of a column (n,)."""
    different, counts = np.unique(values, return_counts=True)
    if len(different) == 1:
        return 1.0, 1, 0.0
    unit = recorded_unit(different)
    scaled = float(np.var(values / unit))
    entropy = min(float(_bits(scaled)), math.log2(float(np.ptp(different)) / unit + 1))
    if 2 * len(different) <= len(values):
        share = counts / len(values)
        entropy = min(entropy, float(-np.sum(share * np.log2(share))))
    return unit, len(different), entropy


def _bits(variance: Floats | float) -> Floats | float:
    """The entropy of a whole number of this variance, about."""
    return np.maximum(0.5 * np.log2(2 * np.pi * math.e * (variance + 1 / 12)), 0.0)


def _independent(rows: Floats) -> NDArray[np.intp]:
    """The columns of (n, m) that vary and do not follow from others before them: those whose variance is not
    used up when the earlier ones are taken out of all correlations."""
    centred = rows - rows.mean(axis=0)
    size = np.sqrt(np.mean(centred**2, axis=0))
    varies = np.flatnonzero(size > 1e-12 * np.abs(rows).max(axis=0))
    scaled = centred[:, varies] / size[varies]
    left = scaled.T @ scaled / len(rows)
    kept = []
    for place in range(len(varies)):
        if left[place, place] > _FOLLOWS:
            kept.append(place)
            column = left[:, place] / math.sqrt(left[place, place])
            left -= np.multiply.outer(column, column)
    return varies[np.array(kept, np.intp)]


def _going_together(rows: Floats) -> float:
    """Bits that a row of independent columns (n, m) has less because they go together: 1/2 log2 det of their
    correlations, without what chance makes of so few rows."""
    n, m = rows.shape
    if m < 2 or n <= m + 1:
        return 0.0
    _, log_det = np.linalg.slogdet(np.corrcoef(rows.T))
    by_chance = np.sum(digamma((n - 1 - np.arange(m)) / 2) - digamma((n - 1) / 2))
    return min(0.0, float(log_det - by_chance) / (2 * math.log(2)))


class Information(NamedTuple):
    """What people like some have, and what is told of them, for any number of them."""

    entropy: float  # bits of one person's row
    means: Floats  # (d,) variance of the columns that second moments are told of, in their units
    products: Floats  # (d, d) of products of two of them
    pairs: Floats  # (d, d) pairs of values that two of them can have; 0 where the product is told already

    @classmethod
    def of(cls, rows: Floats, told: Floats) -> Information:
        """From rows (n, m), one a person or of a random sample of people, and the columns (n, d) that second
        moments are told of."""
        kept, columns = rows[:, _independent(rows)], told
        entropy = 0.0
        if kept.shape[1]:
            entropy = max(float(Columns.of(kept).entropy.sum()) + _going_together(kept), 0.0)
        columns = columns[:, _independent(columns)]
        if not columns.shape[1]:
            return cls(entropy, np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)))
        own = Columns.of(columns)
        centred = (columns - columns.mean(axis=0)) / own.units
        squares, n = centred**2, len(columns)
        products = np.maximum(squares.T @ squares / n - (centred.T @ centred / n) ** 2, 0.0)
        values = own.values.astype(float)
        # The square of a column of two values is the column.
        pairs = np.triu(np.multiply.outer(values, values), 1) + np.diag(np.where(values > 2, values, 0.0))
        return cls(entropy, centred.var(axis=0), products, pairs)

    def held(self, different: int) -> float:
        """Bits, about and rather fewer, that so many different rows hold, in no order."""
        return different * self.entropy - float(gammaln(different + 1)) / math.log(2)

    def told(self, people: int) -> float:
        """Bits, about and rather more, that means and second moments over so many people hold."""
        some = self.pairs > 0
        each = np.minimum(_bits(people * self.products[some]), (self.pairs[some] - 1) * _bits(people / 4))
        return float(each.sum() + np.sum(_bits(people * self.means)))

    def needed(self, parameters: int, people: float = 1.0) -> int:
        """How many different rows a set needs by THE RULE for a model of so many parameters, where each is
        had by so many people on average."""
        equations = 1 + len(self.means) + int(np.sum(self.pairs > 0))
        by_bits = _smallest(lambda n: self.held(n) - MARGIN * self.told(math.ceil(n * people)))
        return max(min(by_bits, math.ceil(MARGIN * equations)), ROWS_A_PARAMETER * parameters + 1)

    def needed_by_means(self, means: int) -> int:
        """The same where so many mean losses are told, each to a quarter of what one row adds to it."""
        if means == 0:
            return 0
        by_bits = _smallest(lambda n: self.held(n) - MARGIN * means * math.log2(4 * n + 1))
        return min(by_bits, math.ceil(MARGIN * (means + 1)))


def _smallest(more: Callable[[int], float]) -> int:
    """The smallest number at which `more` is no longer negative; `NEVER` where there is none: what rows hold
    falls again once there are more than there are patterns."""
    high = 1
    while more(high) < 0:
        high *= 2
        if high > NEVER:
            return NEVER
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if more(middle) >= 0 else (middle, high)
    return high


# Some rows, (N, m) of which parts are asked for: by a slice, or by places.
Some = Callable[[Any], Floats]
# The share of a sum of squares that a row, or a person, may have: then it is known to 0.23 deviations at
# best.
LARGEST_SHARE = 0.95
# Combinations of columns that vary less than this, beside others, are lost in the rounding of second moments.
_LOST = 1e-8
# Rows that are handled together, so that no copy of all of them is made.
_TOGETHER = 65_536


def require_none_outweighs(rows: Some, people: NDArray[np.uint64]) -> None:
    """Raise PolicyViolationError where sums over rows (N, m) are nearly those of one of the people (N,) they
    are of."""
    if largest_share(rows, people) > LARGEST_SHARE:
        raise PolicyViolationError(
            "one of its rows outweighs all others in a column, or in a combination of columns, so that sums "
            "over them are nearly that row's; use fewer folds, agree on another scale of that column, such "
            "as logarithms, or leave it out."
        )


def largest_share(rows: Some, people: NDArray[np.uint64]) -> float:
    """The largest share of a sum of squares of combined columns that the rows of (N, m) of one of the people
    (N,) have, exact where it is above `LARGEST_SHARE`. Of so few rows that all have a large share in some
    combination of the columns, columns are looked at one by one."""
    if len(people) > ROWS_A_PARAMETER * rows(slice(0, 1)).shape[1]:
        return _largest_share(rows, people)
    return max(shares_of_columns(rows, people))


def shares_of_columns(rows: Some, people: NDArray[np.uint64]) -> list[float]:
    """(m,) the largest share in every column of (N, m) by itself, as in `largest_share`; none of no rows."""
    m = rows(slice(0, 1)).shape[1]
    if not len(people):
        return [0.0] * m

    def column(j: int) -> Some:
        return lambda part: rows(part)[:, j : j + 1]

    return [_largest_share(column(j), people) for j in range(m)]


def _largest_share(rows: Some, owners: NDArray[np.uint64]) -> float:
    n = len(owners)
    parts = [slice(begin, begin + _TOGETHER) for begin in range(0, n, _TOGETHER)]
    # Shares are the same in any units: those of the first rows are near enough to lose nothing in rounding.
    first = rows(parts[0])
    centre, deviation = first.mean(axis=0), first.std(axis=0)
    deviation[deviation == 0] = 1.0

    def scaled(part: Any) -> Floats:
        some = (rows(part) - centre) / deviation
        return np.column_stack([np.ones(len(some)), some])

    root = np.zeros((0, 1 + first.shape[1]))
    for part in parts:
        root = np.asarray(np.linalg.qr(np.vstack([root, scaled(part)]), mode="r"))
    _, sizes, directions = np.linalg.svd(root, full_matrices=False)
    seen = sizes > _LOST * sizes[0]
    whitening = directions[seen].T / sizes[seen]

    def whitened(part: Any) -> Floats:
        return np.asarray(scaled(part) @ whitening)

    shares = np.concatenate([np.sum(whitened(part) ** 2, axis=1) for part in parts])
    return _of_owners(whitened, shares, owners)


def _of_owners(whitened: Some, shares: Floats, owners: NDArray[np.uint64]) -> float:
    """The largest share of an owner (N,), from those (N,) of the rows, whose second moments are the identity
    once they are whitened."""
    order = np.argsort(owners, kind="stable")
    first = np.flatnonzero(np.r_[True, owners[order][1:] != owners[order][:-1]])
    at_most = np.add.reduceat(shares[order], first)
    ends = np.append(first[1:], len(order))
    # The shares of several rows of one owner in one direction are no more than their sum.
    several = (
        float(np.linalg.norm(whitened(order[first[k] : ends[k]]), 2) ** 2)
        for k in np.flatnonzero(at_most > LARGEST_SHARE)
    )
    return max(several, default=float(at_most.max()))
