"""The curves that a fit asks for, and the problem that is stated of them once they are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bidro.arrays import Floats
from bidro.curves import Basis
from bidro.errors import BidroError
from bidro.fitting.network import Clients
from bidro.fitting.questions import Assessment
from bidro.guarantees.segments import Wanted, can_have_curves, without_smoothing
from bidro.losses import has_curves
from bidro.problem import Problem
from bidro.training import Choices, Limits, Trained, folds_of


def wanted_curves(
    clients: Clients, problem: Problem, choices: Choices, names: Sequence[str], limits: Limits
) -> tuple[tuple[Wanted, Basis] | None, tuple[Floats, Floats] | None]:
    """(what is wanted of the features, with the finest knots, None where every one is a straight line of any
    sign; between what values curves are drawn, None where there are none). `problem` is of straight lines;
    `limits` are those of the clients' answers. What is left to the rows is a straight line where there can
    be no curves, no cross-validation to choose them by, or one of radii, each a cone program with curves."""
    wanted = Wanted.of(choices.curves, choices.increasing, choices.decreasing, names)
    dealt = limits.folds is None or max(limits.folds, default=0) > 1
    chosen = dealt and min(clients.federation.unit_counts) > 1 and not choices.cross_validates_radius
    if not (can_have_curves(problem) and chosen):
        wanted = wanted.of_lines
    if not any(wanted.signs) and max(wanted.most, default=1) == 1:
        return None, None
    if max(wanted.most) == 1:
        return (wanted, Basis(((),) * len(names))), None
    folds, curvature = folds_of(min(clients.federation.sizes), choices, limits)
    basis, seen = clients.finest(wanted.most, folds, curvature)
    return (wanted, basis), seen


def require_lines(choices: Choices, names: Sequence[str]) -> None:
    """Raise BidroError where more than straight lines of any sign is asked for: Algorithm 1 trains these."""
    if Wanted.of(choices.curves, choices.increasing, choices.decreasing, names).demands:
        raise BidroError("Algorithm 1 trains straight lines of any sign; leave the curves out.")


def of_losses_alone(trained: Trained) -> Trained:
    """With the problem that statements are about: what smooths curves in training is no part of it."""
    return replace(trained, problem=without_smoothing(trained.problem))


def with_risks(trained: Trained, found: Assessment) -> Trained:
    """Where curves were smoothed and there is no radius, the risks are the mean losses; with a radius those
    of the solution, smoothing included, are upper ends of them."""
    smoothed = trained.segments is not None and has_curves(trained.problem.loss)
    if not smoothed or trained.solution is None or np.any(np.asarray(trained.problem.eps) > 0):
        return trained
    return replace(trained, solution=replace(trained.solution, risks=np.asarray(found.loss, float)))
