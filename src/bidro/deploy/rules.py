"""What a site does not send, whoever asks: anything from which a row could be read.

Numbers rest on at least `min_rows` rows. A sum against a column of two values, such as a coded level or a
class, is a sum over the rows with one of them, so that each value at a site must be had by as many rows. Of
folds, what is left out counts, as a server can take differences. Curvature needs more rows than twice its
dimension. Near a kink of a loss the answer changes with the few rows next to it, so such losses are for the
site to allow, as replies from one row are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm, HeldRows
from bidro.algorithms.own_correction import OwnCorrections, Shrinkage
from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.calibration import FOLDS
from bidro.guarantees.own import SHRINKAGES
from bidro.losses import LinearLoss, Loss


class RefusedError(BidroError):
    """Why a site does not answer, in words that hold nothing of its data and may leave it."""


ONE_SAMPLE = (
    "replies from one row give records away: gradient and value of one row's loss, with the settings that "
    "the server chose, are enough to rebuild about four fifths of the sampled rows; if that is acceptable "
    "here, set one_sample_replies = true in this site's configuration."
)
KINKS = (
    "this loss has kinks, and near its optimum its messages change with the few rows at a kink, which can be "
    "read from them; use a smooth loss (huber, smoothed hinge), or, if that is acceptable here, set "
    "losses_with_kinks = true in this site's configuration."
)


def rarest_value(rows: Floats, classes: bool) -> int:
    """How many rows (N, m) have the rarer value of a column of two values, the least over such columns, or,
    where the target (last) is of `classes`, the rarest of these; N where there are none.

    Of several classes, too, there is a sum over the rows of each: the gradient has a part for every class.
    """
    least = len(rows)
    if classes and len(rows):
        least = int(np.unique(rows[:, -1], return_counts=True)[1].min())
    for column in rows.T:
        first = column[0]
        others = column[column != first]
        if len(others) and np.all(others == others[0]):
            least = min(least, len(others), len(rows) - len(others))
    return least


def require_common_values(rows: Floats, min_rows: int, classes: bool) -> None:
    """Raise RefusedError where one of a column's two values, or a class, is had by fewer than `min_rows` rows
    (N, m)."""
    if rarest_value(rows, classes) < min_rows:
        raise RefusedError(
            f"a level or class is had by fewer than its min_rows = {min_rows} of its training rows; merge "
            "rare levels in the schema, or lower min_rows at that site."
        )


def most_folds(rows: Floats, marks: dict[int, NDArray[np.int64]], min_rows: int, classes: bool) -> int:
    """The most folds, of those dealt in `marks` (N,) by their number, of which each leaves out enough rows,
    and enough of every value that it leaves out; 0 where none does."""
    for count in range(FOLDS, 1, -1):
        parts = [rows[marks[count] == fold] for fold in range(count)] if count in marks else []
        if parts and min(min(len(part), rarest_value(part, classes)) for part in parts) >= min_rows:
            return count
    return 0


def require_allowed_loss(loss: Loss, allowed: bool) -> None:
    """Raise RefusedError for a loss with kinks unless the site allows them."""
    if isinstance(loss, LinearLoss) and math.isinf(loss.scalar.curvature) and not allowed:
        raise RefusedError(KINKS)


def require_known_shrinkages(asked: Iterable[Shrinkage]) -> None:
    """Raise RefusedError for an own model that is held at the shared one in a way nobody has agreed on: one
    that is hardly held follows single rows."""
    if not set(asked) <= set(SHRINKAGES["auto"]):
        raise RefusedError("it was asked for an own model with a shrinkage that is none of bidro's.")


def rows_behind(
    algorithm: Algorithm, loss: Loss, rows_here: HeldRows, min_rows: int, one_sample: bool
) -> int:
    """The fewest rows that a number in the reply rests on. Raises RefusedError where these are too few."""
    if algorithm.evidence == "one row":
        if not one_sample:
            raise RefusedError(ONE_SAMPLE)
        return 1
    if isinstance(algorithm, OwnCorrections):
        require_known_shrinkages(algorithm.shrinkages)
    samples, what = rows_here.samples, "a reply"
    parts = [samples]
    if rows_here.marks is not None:
        what = "what a fold leaves out"
        parts = [samples[rows_here.marks == fold] for fold in range(rows_here.folds)]
    rows = min(len(part) for part in parts)
    classes = loss.labels is not None
    behind = min(rows, *(rarest_value(part, classes) for part in parts if len(part)))
    if behind < min_rows:
        raise RefusedError(
            f"{what} would rest on {behind} rows, fewer than its min_rows = {min_rows}; use fewer folds, or "
            "lower min_rows at that site."
        )
    dimension = loss.dimension(samples.shape[-1])
    if algorithm.second_order and rows <= 2 * dimension:
        raise RefusedError(
            f"{what} rests on {rows} rows, too few to send curvature for a model of {dimension} parameters: "
            "it needs more than twice as many; use --replies gradient or fewer folds."
        )
    return behind
