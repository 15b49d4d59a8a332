"""The queries of a fit to its clients, rounds aside, and their replies: one declared type each.

A reply is of one client; replies of several clients have a leading axis of clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bidro.selection.calibrate import FOLDS

if TYPE_CHECKING:
    from jax import Array

Numbers: TypeAlias = "Array | NDArray[np.float64]"


class Prepared(NamedTuple):
    """ "prepare": how many rows there are, and their mean and deviation in every column."""

    rows: Numbers  # () in training
    holdout: Numbers  # ()
    people: Numbers  # () in training; as many as rows where no people are named
    holdout_people: Numbers  # ()
    folds: Numbers  # (FOLDS,) 1 where it answers over 1 (all rows), 2, ... folds, else 0
    table: Numbers  # () a digest of the client's rows, by which a changed table is noticed; 0 where it cannot
    mean: Numbers  # (k + 1,) of the training rows; features first, the target last
    deviation: Numbers  # (k + 1,)

    @classmethod
    def like(cls, columns: int) -> Prepared:
        number, each, offered = np.zeros(()), np.zeros(columns), np.zeros(FOLDS)
        return cls(number, number, number, number, offered, number, each, each)


class Segments(NamedTuple):
    """ "segments": how many segments of each curve a client's rows bear."""

    segments: Numbers  # (k,) at the most; 1 where a straight line alone is answered

    @classmethod
    def like(cls, features: int) -> Segments:
        return cls(np.zeros(features))


class Assess(NamedTuple):
    """The message of "assess"; radii, `shown` and `freedom` are each client's own, with a leading
    axis for several. A client whose freedom is not 0 trains a personal model of its own and keeps
    it."""

    x: Numbers  # (d,)
    radii: Numbers  # (levels,) explicit radii; empty where there is no interval
    reference: Numbers  # (points, m) a cloud that everybody has; empty where its distance is not wanted
    shown: Numbers  # () 1 where the worst case is to be shown, else 0
    # (q + 1,) how freely a personal model's coefficients differ from the shared ones (`selection.personal`),
    # and what share of its change is kept; 0 keeps all as shared, empty where no client has a personal model
    freedom: Numbers
    common: Numbers  # (d,) what personal models are around; empty where that is x
    pooled: Numbers  # (d,) the model of pooled training, for comparison; empty where there is none


class Assessment(NamedTuple):
    """ "assess": how the trained model does on the training rows."""

    loss: Numbers  # () mean
    se: Numbers  # () its standard error, large losses counted as less; 0 for a single row or person
    personal_loss: Numbers  # () mean under the client's personal model; the same where it has none
    predicted: Numbers  # (2,) mean square of the model's scores around their mean, and the same of pooled
    centre: Numbers  # (2, scores) these means; both empty where there is no pooled training
    robust: Numbers  # (levels,) the risk over balls of the explicit radii
    distance: Numbers  # (1,) of the rows to the reference cloud, in W_p; empty where there is none
    moved: Numbers  # (k,) how far the worst case moves the mean of every feature; 0 where it is not shown
    typical: Numbers  # (k,) how far it moves rows on average

    @classmethod
    def like(cls, levels: int, reference: int, features: int, scores: int) -> Assessment:
        """`scores` is 0 where there is no pooled training."""
        number = np.zeros(())
        one = np.zeros(1 if reference else 0)
        k, both = np.zeros(features), 2 if scores else 0
        moments = np.zeros(both), np.zeros((both, scores))
        return cls(number, number, number, *moments, np.zeros(levels), one, k, k)


class HoldoutQuery(NamedTuple):
    """The message of "bounds"; what is fixed before the held-out rows are looked at."""

    x: Numbers  # (d,)
    levels: Numbers  # (levels,) beta of every bound
    seen: Numbers  # () what losses are clipped at: see `statements.clip_level`
    largest: Numbers  # (1,) the largest loss on the declared support; empty where it is not known
    freedom: Numbers  # (q + 1,) as in `Assess`, with a leading axis for several
    common: Numbers  # (d,) as in `Assess`
    pooled: Numbers  # (d,) the model of pooled training, for comparison; empty where there is none


# No bound of rows is below 0.
FEW = -1.0
_NONE = np.zeros(0)


class HoldoutBounds(NamedTuple):
    """ "bounds": what held-out rows say of the model, by statement; empty where a statement is not made.
    Losses count as at most what they are clipped at, but for `held_out`; in standard errors as less."""

    loss: Numbers  # () mean over the held-out rows
    se: Numbers  # () 0 for a single row or person
    personal_loss: Numbers  # () mean under the client's personal model; the same where it has none
    personal_change: (
        Numbers  # (2,) mean and standard error of the rows' losses under it minus those under pooled
    )
    shared_change: Numbers  # (2,) the same of the shared model; both empty where there is no pooled training
    clipped: Numbers  # (levels,)
    held_out: Numbers  # (levels,)
    mistakes: Numbers  # (levels,)
    personal: Numbers  # (levels,) as `clipped`, of the client's personal model
    personal_mistakes: Numbers  # (levels,)
    means: Numbers  # (5,) of what these five bound; 0 where a statement is not made
    # (1,) how far 9 of 10 rows lie from what the model in use predicts at most, with the agreed confidence,
    # and where some client has a personal model (2,) from what the shared one does; `FEW` where there are too
    # few rows. Empty of classes, and of rows that are here: these say more (`Clients.row_fits`).
    rows: Numbers = _NONE

    @classmethod
    def like(
        cls, levels: int, bounded: bool, labels: bool, personal: bool, pooled: bool, rows: bool = False
    ) -> HoldoutBounds:
        number, none = np.zeros(()), np.zeros(0)
        each, change = np.zeros(levels), np.zeros(2 if pooled else 0)
        clipped, held_out, mistakes, as_used, personal_mistakes = (
            each if made else none for made in (True, bounded, labels, personal, personal and labels)
        )
        of_means = (number, number, number, change, change)
        of_rows = np.zeros(1 + personal) if rows else none
        return cls(*of_means, clipped, held_out, mistakes, as_used, personal_mistakes, np.zeros(5), of_rows)


_NEVER = np.zeros(())


class NoisyMoments(NamedTuple):
    """ "moments", of a private run: sums over the training rows z = (features, 1, target) of z z', rows
    beyond the agreed norm scaled down to it, with noise. What a whole number stands for, and how large the
    noise is, follows from the agreement and the budget: see `privacy.terms`."""

    values: NDArray[np.int64]  # (m (m + 1) / 2,) the upper triangle, row after row
    budget: Numbers  # (3,) epsilon, delta, rows a person; zeros where there is none, and no noise
    exact: Numbers = _NEVER  # () 1 where exact sums over rows have left before, by no budget; else 0

    @classmethod
    def like(cls, columns: int) -> NoisyMoments:
        """`columns` of z."""
        return cls(np.zeros(columns * (columns + 1) // 2, np.int64), np.zeros(3))


class NoisyCount(NamedTuple):
    """ "counts", of a private run in which noise is shared: how many training rows there are, with noise."""

    values: NDArray[np.int64]  # (1,)
    budget: Numbers  # (3,) as in `NoisyMoments`
    exact: Numbers = _NEVER  # ()

    @classmethod
    def like(cls) -> NoisyCount:
        return cls(np.zeros(1, np.int64), np.zeros(3))


class NoisyTable(NamedTuple):
    """ "describe", where noise is shared: the sums of Table 1 over all rows, see `privacy.table_one`."""

    values: NDArray[np.int64]  # (numbers,)
    budget: Numbers  # (3,) as in `NoisyMoments`
    exact: Numbers = _NEVER  # ()

    @classmethod
    def like(cls, numbers: int) -> NoisyTable:
        return cls(np.zeros(numbers, np.int64), np.zeros(3))


class GradientsQuery(NamedTuple):
    """The message of "gradients"; targets and the model are in spreads of the target."""

    x: Numbers  # (d,) coefficients and intercept
    directions: Numbers  # (d, d) whose columns are the directions along which gradients are released
    clip: Numbers  # () the norm beyond which a row's gradient, along these, is scaled down
    level: Numbers  # () what its loss counts as at the most


class NoisyGradients(NamedTuple):
    """ "gradients", of a private run: sums over the training rows, with noise."""

    values: NDArray[np.int64]  # (d + 2,) of gradients, of rows that were not scaled down, and of losses
    budget: Numbers  # (3,) as in `NoisyMoments`
    exact: Numbers = _NEVER  # ()

    @classmethod
    def like(cls, columns: int) -> NoisyGradients:
        return cls(np.zeros(columns + 1, np.int64), np.zeros(3))


class NoisyHoldoutQuery(NamedTuple):
    """The message of "losses"."""

    x: Numbers  # (d,) as in `GradientsQuery`
    level: Numbers  # () what losses are clipped at: a power of two


class NoisyLosses(NamedTuple):
    """ "losses", of a private run: sums over the held-out rows, with noise."""

    values: NDArray[np.int64]  # (degree + 1,) of Bernstein polynomials of the losses, in parts of the level
    mistakes: NDArray[np.int64]  # (2,) right and wrong predictions; empty for a number
    budget: Numbers  # (3,) as in `NoisyMoments`
    exact: Numbers = _NEVER  # ()

    @classmethod
    def like(cls, degree: int, classes: bool) -> NoisyLosses:
        mistakes = np.zeros(2 if classes else 0, np.int64)
        return cls(np.zeros(degree + 1, np.int64), mistakes, np.zeros(3))
