"""Which clients take a personal model, and how freely these differ from the shared one.

Variance components say how much clients differ in each coefficient (`components`), or in the offset alone;
they are estimated on the training rows of every fold, and on all rows. One scale of them is common to all
clients: that with the lowest mean loss over all rows left out, each under models trained without it, if it is
lower than that of the shared model by more than a standard error, over clients and over their folds. Of few
clients that error is itself uncertain, and more is required (`rule.required_errors`). Of its own change a
client keeps the share Phi(gain / error), by what its own rows left out gain and by the standard error of that
over its folds; a client of one row, or person, keeps nothing.

For clients that come later, with few rows, the scale is at most `_MOST_OF_NEWCOMERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import Box
from bidro.federated.engines.in_process import IN_PROCESS
from bidro.federated.engines.rounds import Rounds, last_state, rounds
from bidro.losses import LinearScores, Squared
from bidro.problem.problem import Problem
from bidro.risk.moments import Moments, TrainingMoments, of_all_folds, of_some
from bidro.selection.calibrate import Calibration
from bidro.selection.components import (
    MOST_SLOPES,
    Components,
    Expansion,
    columns_that_differ,
    common_change,
    components,
    moved,
    solved,
    weights,
)
from bidro.selection.personal import (
    SCALES,
    Broadcast,
    ExpansionsBroadcast,
    ExpansionsReply,
    Losses,
    PersonalCorrections,
    PersonalExpansions,
    coefficients,
    expansions,
    few_clients,
    has_personal_models,
    held_slopes,
    losses_of_squares,
    sums_of_squares,
    training_moments,
)
from bidro.selection.replies import FoldClients
from bidro.selection.rule import required_errors

PersonalWord = Literal["auto", "offset"]
PERSONAL_WORDS = ("auto", "offset")

# What few rows gain by a larger scale they lose where the clients are not alike.
_MOST_OF_NEWCOMERS = 0.5
# How often components and what clients have in common are estimated in turns, at the most, and until the
# common model's losses change by this share.
_TURNS, _SAME = 6, 1e-6
# Expansions of a loss that is no square: around the shared models, and around the most probable ones.
_EXPANSIONS = 3


class Freedoms(NamedTuple):
    """What clients differ by, from the training rows of every fold, and last from all rows."""

    freedom: Floats  # (folds + 1, q) D / phi of every coefficient
    common: Floats | None  # (folds + 1, d) what clients' own models are around; None for the shared ones
    deviation: Floats  # (q,) D^1/2, from all rows
    whole: Expansion | None  # of all clients on all rows; None where no curvature is sent
    columns: NDArray[np.int64]  # of which coefficients that is


@dataclass(frozen=True, eq=False)
class PersonalChoice:
    """The choice, and the clients' losses on rows left out.

    Coefficients are the slope of every feature, and last the offset where the model has one."""

    scale: float  # tau; 0 where every client uses the shared model
    freedom: Floats  # (q,) tau D / phi, of all clients' models
    common: Floats | None  # (d,) what clients' own models are around; None for the shared one
    newcomers: Floats  # (q,) for clients that come later
    share: Floats  # (n,) of its own change that a client keeps; 0 for the shared model
    shared: Floats  # (n,) losses under the shared model
    personal: Floats  # (n,) under their own, kept whole
    deviation: Floats  # (q,) D^1/2: by how much clients differ
    own: Floats  # (n,) what a client keeps of its own last coefficient, from 0 to 1

    @property
    def adopts(self) -> NDArray[np.bool_]:
        """(n,) who has a personal model."""
        return self.share > 0

    @property
    def used(self) -> Floats:
        """(n,) losses on rows left out under the models in use, or above that: losses are convex."""
        return self.share * self.personal + (1 - self.share) * self.shared


def check_personal(personal: Any) -> None:
    """Raise BidroError for a kind of correction that there is not; None stands for none."""
    if personal is not None and personal not in PERSONAL_WORDS:
        raise BidroError(f"personal must be 'auto', 'offset' or None; got {personal!r}.")


def can_be_personal(problem: Problem) -> bool:
    """Whether there are several clients, and corrections are known for the loss."""
    return problem.n > 1 and has_personal_models(problem.loss)


def freedoms(
    problem: Problem,
    models: Floats,
    word: PersonalWord,
    replies: Callable[[PersonalExpansions, ExpansionsBroadcast], ExpansionsReply],
    sent: TrainingMoments | None = None,
    sends_curvature: bool = True,
    fold_ids: NDArray[np.int64] | None = None,
) -> Freedoms:
    """How much clients differ, around the models (folds + 1, d) of the folds and of all rows.

    Of squared loss it follows from the second moments that clients have sent, or from the rows where these
    are here, whose folds are `fold_ids` (N,); and so does what they have in common. Else it takes a few
    rounds, and clients' own models are around the shared one. Without curvature all coefficients count the
    same, by how many rows clients have.
    """
    loss, m = problem.loss, problem.federation.m
    assert isinstance(loss, LinearScores)
    q = coefficients(loss, m)
    may = np.flatnonzero(~np.append(held_slopes(problem), [False] * loss.intercept))
    if isinstance(loss, Squared) and (sent is not None or fold_ids is not None):
        every = [
            _of_squares(problem, partial(_moments, problem, fold, sent, fold_ids), x, word)
            for fold, x in enumerate(models)
        ]
        found, common, told, columns = (list(part) for part in zip(*every, strict=True))
        return _freedoms(found, np.array(common), columns, told[-1], may, q)
    if not sends_curvature:
        curvature = loss.score_curvature(1.0 if np.isinf(loss.score_curvature(0.0)) else 0.0)
        free = np.full(q, 1 / (curvature * float(np.mean(problem.federation.counted))))
        free[: q - 1] *= word != "offset"
        free[np.setdiff1d(np.arange(q), may)] = 0.0
        return Freedoms(np.tile(free, (len(models), 1)), None, np.zeros(q), None, np.arange(q))
    free = np.zeros((len(models), q))
    chosen = [may] * len(models)
    if q - loss.intercept > MOST_SLOPES or word == "offset":
        none = np.zeros((len(models), 0), np.int64)
        first = replies(PersonalExpansions(), ExpansionsBroadcast(models, free, none))
        # Every score as a client of its own: (K n, folds + 1, q).
        pull, diagonal = (
            np.concatenate(np.moveaxis(np.asarray(part), 2, 0)) for part in (first.gradient, first.diagonal)
        )
        chosen = [_columns(pull[:, f], diagonal[:, f], problem, word) for f in range(len(models))]
    around: list[Components] = []
    for _ in range(1 if isinstance(loss, Squared) else _EXPANSIONS):
        reply = replies(PersonalExpansions(), ExpansionsBroadcast(models, free, np.stack(chosen)))
        parts = [expansions(reply, f, some, isinstance(loss, Squared)) for f, some in enumerate(chosen)]
        around = [
            _components(problem, one, len(models[0]), around[f] if around else None)
            for f, one in enumerate(parts)
        ]
        free = _freedoms(around, None, chosen, parts[-1], may, q).freedom
    return _freedoms(around, None, chosen, parts[-1], may, q)


def _moments(
    problem: Problem, fold: int, sent: TrainingMoments | None, fold_ids: NDArray[np.int64] | None
) -> Iterator[tuple[Moments, Floats]]:
    """(moments of the training rows of a fold, or of all rows past the last, how many these are) of some
    clients after the others."""
    loss, federation = problem.loss, problem.federation
    assert isinstance(loss, Squared)
    if sent is not None:
        folds = sent.rows.shape[1]
        if fold == folds:
            yield of_all_folds(sent), sent.rows.sum(axis=1) / (folds - 1)
        else:
            yield Moments(sent.mean[:, fold], sent.around[:, fold]), sent.rows[:, fold].astype(float)
        return
    assert fold_ids is not None
    samples, sizes = federation.host_rows, np.asarray(federation.sizes)
    for clients, some in few_clients(sizes, loss.columns(federation.m) ** 2):
        used = fold_ids[some] != fold
        own = of_some(samples[some], sizes[clients], used, loss)
        yield own, np.bincount(np.repeat(np.arange(len(sizes[clients])), sizes[clients])[used]).astype(float)


def _of_squares(
    problem: Problem,
    moments: Callable[[], Iterable[tuple[Moments, Floats]]],
    x: Floats,
    word: PersonalWord,
) -> tuple[Components, Floats, Expansion, NDArray[np.int64]]:
    """(how much clients differ, what they have in common (d,), their sums around it, of which coefficients),
    in turns, from the shared model x (d,) on."""
    assert isinstance(problem.loss, Squared)
    told, sums = sums_of_squares(problem.loss, moments(), x)
    columns = _columns(told.pull, np.einsum("nqq->nq", told.curvature), problem, word)
    held = np.flatnonzero(np.append(held_slopes(problem), [False] * problem.loss.intercept))
    columns = np.setdiff1d(columns, held)
    told, sums = told.among(columns), sums.among(columns)
    models = problem.models
    assert isinstance(models, Box)
    lower, upper = np.asarray(models.lower), np.asarray(models.upper)
    free = (lower < 0) & (upper > 0)  # slopes that have a sign stay as they are
    around, change, found = told, np.zeros(len(x)), None
    # As many parameters as smoothing leaves of them.
    parameters = float(np.trace(solved(sums.curvature + sums.held, sums.curvature)))
    for _ in range(_TURNS):
        found = _components(problem, around, parameters, found)
        if not np.any(found.variance > 0):
            return found, x, told, columns
        before, change = change, common_change(told, sums, found.freedom, free)
        change = np.clip(x + change, lower, upper) - x
        around = moved(told, sums, change)
        apart = change - before
        if apart @ sums.curvature @ apart <= _SAME * change @ sums.curvature @ change:
            break
    assert found is not None
    return found, x + change, around, columns


def _columns(pull: Floats, diagonal: Floats, problem: Problem, word: PersonalWord) -> NDArray[np.int64]:
    """The coefficients that may differ."""
    offset: bool = problem.loss.intercept  # type: ignore[attr-defined]
    if word == "offset":
        return np.arange(pull.shape[1])[-1:] if offset else np.zeros(0, np.int64)
    return columns_that_differ(pull, diagonal, offset)


def _components(
    problem: Problem, told: Expansion, parameters: float, begin: Components | None = None
) -> Components:
    loss = problem.loss
    assert isinstance(loss, LinearScores)
    return components(told, loss.intercept, loss.log_likelihood, parameters, begin)


def _freedoms(
    found: Sequence[Components],
    common: Floats | None,
    columns: Sequence[NDArray[np.int64]],
    whole: Expansion,
    may: NDArray[np.int64],
    q: int,
) -> Freedoms:
    """Of q coefficients, of which those that `may` differ are not held by X."""
    freedom, deviation = np.zeros((len(found), q)), np.zeros(q)
    for own, one, some in zip(freedom, found, columns, strict=True):
        own[some] = one.freedom
    deviation[columns[-1]] = np.sqrt(found[-1].variance)
    held = np.setdiff1d(np.arange(q), may)
    freedom[:, held], deviation[held] = 0.0, 0.0
    return Freedoms(freedom, common, deviation, whole, columns[-1])


def personal_losses(
    problem: Problem,
    calibration: Calibration,
    place: int,
    word: PersonalWord,
    network: Rounds = IN_PROCESS,
    sent: TrainingMoments | None = None,
    sends_curvature: bool = True,
) -> tuple[Losses, Freedoms]:
    """(the clients' losses by scale, how much they differ), around the models of one candidate: of squared
    loss from what clients have sent for the calibration, or from what they have `sent` before; else by a few
    rounds."""
    assert calibration.models is not None
    loss, federation = problem.loss, problem.federation
    models, folds = calibration.models[:, place], calibration.fold_spec
    if sent is None and calibration.moments is not None:
        sent = calibration.moments.trained
    here = isinstance(loss, Squared) and sends_curvature and not federation.rows_elsewhere
    fold_ids = federation.folds(folds.folds, folds.seed) if here and sent is None else None
    ask = network.clients_of(problem, folds)
    free = freedoms(problem, models, word, FoldClients(ask).replies, sent, sends_curvature, fold_ids)
    if free.common is not None:
        assert isinstance(loss, Squared)
        parts: Iterable[TrainingMoments] = () if sent is None else (sent,)
        if fold_ids is not None:
            sizes = np.asarray(federation.sizes)
            parts = training_moments(loss, federation.host_rows, sizes, fold_ids, folds.folds)
        reply = losses_of_squares(loss, parts, models[:-1], free.common[:-1], free.freedom[:-1])
        return Losses(*map(np.asarray, reply)), free
    algorithm = PersonalCorrections()
    return last_state(rounds(ask, algorithm, Broadcast(models[:-1], free.freedom[:-1]), 1), None), free


def choose_personal(
    problem: Problem,
    calibration: Calibration,
    word: PersonalWord | None,
    network: Rounds = IN_PROCESS,
    sent: TrainingMoments | None = None,
    sends_curvature: bool = True,
) -> PersonalChoice | None:
    """The corrections around the calibration's choice; None where none are wanted or possible. `sent` as in
    `personal_losses`."""
    if word is None or not can_be_personal(problem):
        return None

    def choice(of: PersonalWord) -> PersonalChoice:
        place = calibration.place
        told = personal_losses(problem, calibration, place, of, network, sent, sends_curvature)
        return personal_choice(*told, problem)

    return with_slopes(problem, choice) if word == "auto" else choice(word)


def with_slopes(problem: Problem, choice: Callable[[PersonalWord], PersonalChoice]) -> PersonalChoice:
    """The choice with slopes, or, of squared loss, that of offsets alone, unless slopes are better on rows
    left out by a standard error over clients: slopes of few rows go far astray where a feature is far out."""
    slopes = choice("auto")
    if not isinstance(problem.loss, Squared) or not problem.loss.intercept:
        return slopes
    offsets, rows = choice("offset"), problem.federation.counted
    gain, n = rows * (offsets.used - slopes.used), problem.n
    error = np.sqrt(n / (n - 1) * np.sum((gain - gain.mean()) ** 2))
    return slopes if gain.sum() > required_errors(1.0, n - 1) * float(error) else offsets


def personal_choice(losses: Losses, free: Freedoms, problem: Problem) -> PersonalChoice:
    """From the clients' losses by scale."""
    rows = problem.federation.counted[:, None]
    shared, totals = losses.left_out[:, 0], np.sum(rows * losses.left_out, axis=0)
    best = int(np.argmin(totals))
    apart = rows[:, 0] * (shared - losses.left_out[:, best])
    n = len(apart)
    # Of how much the total is above that of the best, over clients and their folds.
    over_clients = n / (n - 1) * np.sum((apart - apart.mean()) ** 2)
    over_folds = np.sum((rows[:, 0] * losses.error[:, best]) ** 2)
    if totals[0] - totals[best] <= required_errors(1.0, n - 1) * float(np.sqrt(over_clients + over_folds)):
        best = 0
    scale = SCALES[best]
    personal = losses.left_out[:, best]
    gain, error = shared - personal, losses.error[:, best]
    certain = np.where(gain > 0, 1.0, 0.0)
    share = np.where(error > 0, ndtr(gain / np.where(error > 0, error, 1.0)), certain)
    # Of a single row or person nothing was left out.
    share *= (np.asarray(problem.federation.draw_counts) > 1) & (scale > 0)
    whole, own = free.freedom[-1], np.zeros(n)
    if free.whole is not None and len(free.columns) and scale > 0:
        own = weights(free.whole, scale * whole[free.columns]).reshape(n, -1).mean(axis=1) * share
    newcomers = min(scale, _MOST_OF_NEWCOMERS) * whole
    common = None if free.common is None else free.common[-1]
    return PersonalChoice(
        scale, scale * whole, common, newcomers, share, shared, personal, free.deviation, own
    )


def attainable(losses: Losses) -> Floats:
    """(n,) the loss that each client could attain with a personal model: half the sum of the losses inside
    training and on rows left out, of the scale that is best for it there."""
    best = np.argmin(losses.left_out, axis=1)[:, None]
    both = np.take_along_axis(losses.left_out, best, 1) + np.take_along_axis(losses.trained, best, 1)
    return np.asarray(both[:, 0] / 2)
