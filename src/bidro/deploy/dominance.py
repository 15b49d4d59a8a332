"""Sums of many rows that are nearly one row's: what second moments tell where one row outweighs the others.

Let rows z_i, with a 1 before their numbers, have second moments S = sum_i z_i z_i', and let u combine
columns. S u = sum_i (u'z_i) z_i is a sum of rows with weights u'z_i. If a row r has the share

    h = (u'z_r)^2 / sum_i (u'z_i)^2

of these weights' squares, S u / (u'S u)^1/2 is z_r up to sqrt((1 - h) / h) deviations of the others: a
column of thousandths in which one row has a 1, or a number far from all others, tells all numbers of its row,
however many rows there are. The largest share over all u is the row's leverage, z_r' S^-1 z_r, the same in
any units. Statistical offices withhold sums that one contributor dominates for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.arrays import Floats
from bidro.deploy.information import ROWS_A_PARAMETER
from bidro.deploy.rules import RefusedError

# Some rows, (N, m) of which parts are asked for: by a slice, or by places.
Some = Callable[[Any], Floats]
# The share of a sum of squares that a row, or a unit, may have: then it is known to 0.23 deviations at best.
LARGEST_SHARE = 0.95
# Combinations of columns that vary less than this, beside others, are lost in the rounding of second moments.
_LOST = 1e-8
# Rows that are handled together, so that no copy of all of them is made.
_TOGETHER = 65_536


def require_none_outweighs(rows: Some, people: NDArray[np.uint64]) -> None:
    """Raise RefusedError where sums over rows (N, m) are nearly those of one of the people (N,) they are
    of."""
    if largest_share(rows, people) > LARGEST_SHARE:
        raise RefusedError(
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
