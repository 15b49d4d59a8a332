"""The curves that a fit asks for, and the problem that is stated of them once they are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bidro.arrays import Floats
from bidro.curves import Basis, Category, Levels
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.fitting.network import Clients
from bidro.fitting.questions import Assessment
from bidro.guarantees.calibration import Limits, loss_has_kinks
from bidro.guarantees.segments import Wanted, can_have_curves, without_smoothing
from bidro.losses import has_curves
from bidro.problem import Problem
from bidro.standard import Standard
from bidro.training import Choices, Trained, folds_of
from bidro.transport import Transport

# A column of more values is no category that a feature has curves by.
MOST_LEVELS = 12


def wanted_curves(
    clients: Clients,
    problem: Problem,
    wanted: Wanted,
    choices: Choices,
    limits: Limits,
    standard: Standard,
    draws: int,
) -> tuple[tuple[Wanted, Basis] | None, tuple[Floats, Floats] | None]:
    """(what is wanted of the features, with the finest knots, None where every one is a straight line of any
    sign; between what values curves are drawn, None where there are none). `problem` is of straight lines,
    `wanted` what the user asks for; `limits` are those of the clients' answers, `draws` the fewest rows, or
    units, that a client has. What is left to the rows is a straight line where there can be no curves, no
    cross-validation to choose them by, one of radii, each a cone program with curves, or a loss with kinks,
    of which every number of segments takes as long as a whole fit of lines."""
    dealt = limits.folds is None or max(limits.folds, default=0) > 1
    chosen = dealt and draws > 1 and not choices.cross_validates_radius
    if not (can_have_curves(problem) and chosen) or loss_has_kinks(problem.loss):
        wanted = wanted.of_lines
    lines = max(wanted.most, default=1) == 1 and not any(wanted.by)
    if lines and not any(wanted.signs):
        return None, None
    if lines:
        return (wanted, Basis(((),) * len(wanted.most))), None
    by = levels_of(clients.federation, wanted.by, standard)
    folds, curvature = folds_of(min(clients.federation.sizes), choices, limits)
    basis, seen = clients.finest(wanted.most, folds, curvature, by)
    return (wanted, basis), seen


def levels_of(
    federation: Federation, by: Sequence[Category | None], standard: Standard
) -> tuple[Levels | None, ...]:
    """The levels of the categories that features (k,) have curves by, in standard units; empty where there
    are none. Raises BidroError for a column of so many values that it is no category."""
    if not any(by):
        return ()
    names = federation.columns[:-1]
    return tuple(None if one is None else _levels(federation, one, names, standard) for one in by)


def _levels(federation: Federation, category: Category, names: Sequence[str], standard: Standard) -> Levels:
    some = [names.index(name) for name in category.columns]
    if category.levels:
        coded = np.vstack([np.zeros(len(some)), np.eye(len(some))])
        words = [f"{category.name}={level}" for level in category.levels]
    else:
        seen = np.unique(federation.host_rows[:, some], axis=0)
        if len(seen) > MOST_LEVELS:
            raise BidroError(
                f"'{category.name}' has {len(seen)} different values; a curve for each is for categories of "
                f"at most {MOST_LEVELS} levels."
            )
        coded = standard.mean[some] + standard.spread[some] * seen
        words = [f"{category.name}={value:.6g}" for value in coded[:, 0]]
    values = (coded - standard.mean[some]) / standard.spread[some]
    return Levels(tuple(some), tuple(map(tuple, values.tolist())), tuple(words))


def held_still(transport: Transport, wanted: Wanted, names: Sequence[str]) -> Transport:
    """The cost of moving a row, in which categories that features have curves by do not move."""
    held = {name for category in wanted.by if category is not None for name in category.columns}
    scale = np.array(transport.scale)
    scale[:-1][[name in held for name in names]] = np.inf
    return replace(transport, scale=scale) if held else transport


def require_lines(wanted: Wanted) -> None:
    """Raise BidroError where more than straight lines of any sign is asked for: Algorithm 1 trains these."""
    if wanted.demands:
        raise BidroError("Algorithm 1 trains straight lines of any sign; leave the curves out.")


def of_losses_alone(trained: Trained) -> Trained:
    """With the problem that statements are about: what smooths curves in training is no part of it."""
    return replace(trained, problem=without_smoothing(trained.problem))


def with_risks(trained: Trained, found: Assessment) -> Trained:
    """Where curves were smoothed and there is no radius, the risks are the mean losses; with a radius those
    of the solution, smoothing included, are upper ends of them."""
    loss = trained.problem.loss
    smoothed = loss.endless or (trained.segments is not None and has_curves(loss))
    if not smoothed or trained.solution is None or np.any(np.asarray(trained.problem.eps) > 0):
        return trained
    return replace(trained, solution=replace(trained.solution, risks=np.asarray(found.loss, float)))
