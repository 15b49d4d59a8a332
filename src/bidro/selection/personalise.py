"""Which clients take a personal model, and how strongly these are held at the shared one.

One shrinkage is common to all: that with the lowest mean loss over all rows left out, each under models
trained without it, if it is lower than that of the shared model by more than a standard error, over clients
and over their folds. Of few clients that error is itself uncertain, and more is required
(`rule.required_errors`). A client then takes its personal model only if that lowers its own loss by half a
standard error over its folds.

For clients that come later, with few rows, the strongest shrinkage counts that is within a standard error of
the best: what few rows gain by less they lose where the clients are not alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import Rounds, last_state, rounds
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.moments import TrainingMoments
from bidro.selection.calibrate import Calibration
from bidro.selection.personal import NONE, Losses, PersonalCorrections, Shrinkage, has_personal_models
from bidro.selection.rule import required_errors

PersonalWord = Literal["auto", "offset"]
PERSONAL_WORDS = ("auto", "offset")

# Of the cross-validation; the first changes nothing.
_OFFSETS, _SLOPES = (256.0, 64.0, 16.0, 4.0), (math.inf, 1024.0, 256.0, 64.0)
# From the strongest to the weakest.
SHRINKAGES = {
    "offset": (NONE, *(Shrinkage(offset, math.inf) for offset in _OFFSETS)),
    "auto": (NONE, *(Shrinkage(offset, slopes) for slopes, offset in product(_SLOPES, _OFFSETS))),
}
# A client's own loss must be lower by so many of its standard errors.
_ERRORS_OF_CLIENT = 0.5


@dataclass(frozen=True, eq=False)
class PersonalChoice:
    """The choice, and the clients' losses on rows left out."""

    shrinkage: Shrinkage
    newcomers: Shrinkage  # for clients that come later
    adopts: NDArray[np.bool_]  # (n,)
    shared: Floats  # (n,) under the shared model
    personal: Floats  # (n,) under their own; of clients that do not take it, what it would have been


def check_personal(personal: Any) -> None:
    """Raise BidroError for a kind of correction that there is not; None stands for none."""
    if personal is not None and personal not in PERSONAL_WORDS:
        raise BidroError(f"personal must be 'auto', 'offset' or None; got {personal!r}.")


def can_be_personal(problem: Problem) -> bool:
    """Whether there are several clients, and corrections are known for the loss."""
    return problem.n > 1 and has_personal_models(problem.loss)


def personal_losses(
    problem: Problem,
    calibration: Calibration,
    place: int,
    word: PersonalWord,
    network: Rounds = IN_PROCESS,
    sent: TrainingMoments | None = None,
) -> Losses:
    """The clients' losses by shrinkage of SHRINKAGES[word], around the models of one candidate.

    For squared loss they follow from what clients have sent for the calibration, or from what they have
    `sent` before; else they take one round.
    """
    assert calibration.models is not None
    algorithm, models = PersonalCorrections(SHRINKAGES[word]), calibration.models[:-1, place]
    if sent is None and calibration.moments is not None:
        sent = calibration.moments.trained
    if sent is not None:
        assert isinstance(problem.loss, Squared)
        return Losses(*map(np.asarray, algorithm.from_moments(problem.loss, sent, models)))
    ask = network.clients_of(problem, calibration.fold_spec)
    done: Losses = last_state(rounds(ask, algorithm, models, 1), None)
    return done


def choose_personal(
    problem: Problem,
    calibration: Calibration,
    word: PersonalWord | None,
    network: Rounds = IN_PROCESS,
    sent: TrainingMoments | None = None,
) -> PersonalChoice | None:
    """The corrections around the calibration's choice; None where none are wanted or possible. `sent` as in
    `personal_losses`."""
    if word is None or not can_be_personal(problem):
        return None
    losses = personal_losses(problem, calibration, calibration.place, word, network, sent)
    return personal_choice(losses, word, problem)


def personal_choice(losses: Losses, word: PersonalWord, problem: Problem) -> PersonalChoice:
    """From the clients' losses by shrinkage of SHRINKAGES[word]."""
    rows = problem.federation.counted[:, None]
    shared, totals = losses.left_out[:, 0], np.sum(rows * losses.left_out, axis=0)
    best = int(np.argmin(totals))

    def error(place: int) -> float:
        """Of how much the total is above that of the best, over clients and their folds."""
        apart = rows[:, 0] * (losses.left_out[:, place] - losses.left_out[:, best])
        n = len(apart)
        over_clients = n / (n - 1) * np.sum((apart - apart.mean()) ** 2)
        over_folds = np.sum((rows[:, 0] * losses.error[:, best]) ** 2)
        return required_errors(1.0, n - 1) * float(np.sqrt(over_clients + over_folds))

    if totals[0] - totals[best] <= error(0):
        best = 0
    close = [place for place in range(best) if totals[place] - totals[best] <= error(place)]
    personal = losses.left_out[:, best]
    adopts = shared - personal > _ERRORS_OF_CLIENT * losses.error[:, best]
    known = SHRINKAGES[word]
    return PersonalChoice(known[best], known[close[0] if close else best], adopts, shared, personal)


def attainable(losses: Losses) -> Floats:
    """(n,) the loss that each client could attain with a personal model: half the sum of the losses inside
    training and on rows left out, of the shrinkage that is best for it there."""
    best = np.argmin(losses.left_out, axis=1)[:, None]
    both = np.take_along_axis(losses.left_out, best, 1) + np.take_along_axis(losses.trained, best, 1)
    return np.asarray(both[:, 0] / 2)
