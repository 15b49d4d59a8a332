"""Which clients take a model of their own, and how strongly these are held at the shared one.

One shrinkage is common to all. Each client then takes its own model only if that has a lower loss on its rows
left out, under models trained without them; the shrinkage is the one with which that leaves the lowest mean
loss over all rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.own_correction import (
    NONE,
    Losses,
    OwnCorrections,
    Shrinkage,
    has_own_models,
)
from bidro.arrays import Floats
from bidro.engines.local import IN_PROCESS
from bidro.engines.rounds import Rounds, last_state, rounds
from bidro.errors import BidroError
from bidro.guarantees.calibration import Calibration
from bidro.losses import Squared
from bidro.problem import Problem

OwnWord = Literal["auto", "offset"]
OWN_WORDS = ("auto", "offset")

# Of the cross-validation; the first changes nothing.
OFFSETS, SLOPES = (1.0, 4.0, 16.0, 64.0), (4.0, 16.0, 64.0, 256.0)
SHRINKAGES = {
    "offset": (NONE, *(Shrinkage(offset, math.inf) for offset in OFFSETS)),
    "auto": (
        NONE,
        *(Shrinkage(offset, math.inf) for offset in OFFSETS),
        *(Shrinkage(*pair) for pair in product(OFFSETS, SLOPES) if pair[0] <= pair[1]),
    ),
}


@dataclass(frozen=True, eq=False)
class Own:
    """The choice, and the clients' losses on rows left out."""

    shrinkage: Shrinkage
    adopts: NDArray[np.bool_]  # (n,)
    shared: Floats  # (n,) under the shared model
    own: Floats  # (n,) under their own; of clients that do not take it, what it would have been


def check_own(own: Any) -> None:
    """Raise BidroError for a kind of correction that there is not; None stands for none."""
    if own is not None and own not in OWN_WORDS:
        raise BidroError(f"own must be 'auto', 'offset' or None; got {own!r}.")


def can_have_own(problem: Problem) -> bool:
    """Whether there are several clients, and corrections are known for the loss."""
    return problem.n > 1 and has_own_models(problem.loss)


def own_losses(
    problem: Problem, calibration: Calibration, place: int, word: OwnWord, network: Rounds = IN_PROCESS
) -> Losses:
    """The clients' losses by shrinkage of SHRINKAGES[word], around the models of one candidate.

    For squared loss they follow from what clients have sent for the calibration; else one round asks.
    """
    algorithm, models = OwnCorrections(SHRINKAGES[word]), calibration.models[:-1, place]
    if calibration.moments is not None:
        assert isinstance(problem.loss, Squared)
        told = algorithm.from_moments(problem.loss, calibration.moments.trained, models)
        return Losses(np.asarray(told.left_out), np.asarray(told.trained))
    ask = network.clients_of(problem, calibration.deal)
    done: Losses = last_state(rounds(ask, algorithm, models, 1), None)
    return done


def choose_own(
    problem: Problem, calibration: Calibration, word: OwnWord | None, network: Rounds = IN_PROCESS
) -> Own | None:
    """The corrections around the calibration's choice; None where none are wanted or possible."""
    if word is None or not can_have_own(problem):
        return None
    return own_choice(own_losses(problem, calibration, calibration.place, word, network), word, problem)


def own_choice(losses: Losses, word: OwnWord, problem: Problem) -> Own:
    left_out, rows = losses.left_out, np.asarray(problem.federation.sizes, float)
    shared = left_out[:, 0]
    best = int(np.argmin(rows @ np.minimum(left_out, shared[:, None])))
    return Own(SHRINKAGES[word][best], left_out[:, best] < shared, shared, left_out[:, best])


def attainable(losses: Losses) -> Floats:
    """(n,) the loss that each client could attain with a model of its own: half the sum of the losses inside
    training and on rows left out, of the shrinkage that is best for it there."""
    best = np.argmin(losses.left_out, axis=1)[:, None]
    both = np.take_along_axis(losses.left_out, best, 1) + np.take_along_axis(losses.trained, best, 1)
    return np.asarray(both[:, 0] / 2)
