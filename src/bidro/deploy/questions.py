"""What a server may ask a site, and all that a site sends back: one declared type a question.

Rounds of an algorithm are the fourth question, "round"; their reply is the algorithm's own `Reply`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

Numbers = Array | NDArray[np.float64]


class Prepared(NamedTuple):
    """ "prepare": how many rows there are, and their mean and deviation in every column."""

    rows: Numbers  # () in training
    kept_out: Numbers  # ()
    folds: Numbers  # () the most folds that the site's rules allow, up to five; 0 for none
    table: Numbers  # () a digest of the site's rows, by which a changed table is noticed
    mean: Numbers  # (k + 1,) of the training rows; features first, the target last
    deviation: Numbers  # (k + 1,)

    @classmethod
    def like(cls, columns: int) -> Prepared:
        number, each = np.zeros(()), np.zeros(columns)
        return cls(number, number, number, number, each, each)


class Model(NamedTuple):
    """The message of "assess"."""

    x: Numbers  # (d,)
    reference: Numbers  # (points, m) a cloud that everybody has, empty where there is no interval


class Assessment(NamedTuple):
    """ "assess": how the trained model does on the training rows."""

    loss: Numbers  # () mean
    se: Numbers  # () its standard error
    largest: Numbers  # () mean of the largest losses, at least ten of them
    robust: Numbers  # (levels,) the risk over balls of the explicit radii
    distance: Numbers  # (1,) of the rows to the reference cloud, in W_p; empty where there is none
    moved: Numbers  # (k,) how far the worst case moves the mean of every feature
    typical: Numbers  # (k,) how far it moves rows on average

    @classmethod
    def like(cls, levels: int, features: int) -> Assessment:
        number = np.zeros(())
        one = np.zeros(1 if levels else 0)
        k = np.zeros(features)
        return cls(number, number, number, np.zeros(levels), one, k, k)


class Fixed(NamedTuple):
    """The message of "bounds"; what is fixed before the rows kept out are looked at."""

    x: Numbers  # (d,)
    levels: Numbers  # (levels,) the risk beta of every bound
    seen: Numbers  # () what losses are clipped at
    largest: Numbers  # (1,) the largest loss on the declared support; empty where it is not known


class FreshBounds(NamedTuple):
    """ "bounds": what rows kept out say of the model, by statement; empty where a statement is not made."""

    loss: Numbers  # () mean over the rows kept out
    se: Numbers  # ()
    clipped: Numbers  # (levels,)
    held_out: Numbers  # (levels,)
    mistakes: Numbers  # (levels,)
    means: Numbers  # (3,) of clipped losses, losses and mistakes; 0 where a statement is not made

    @classmethod
    def like(cls, levels: int, bounded: bool, labels: bool) -> FreshBounds:
        number, none = np.zeros(()), np.zeros(0)
        each = np.zeros(levels)
        return cls(number, number, each, each if bounded else none, each if labels else none, np.zeros(3))
