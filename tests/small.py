"""Small problems that several tests share."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from bidro import RobustClassifier, RobustRegressor
from bidro.client import Penalty
from bidro.engines.local import Answered
from bidro.engines.rounds import last_state, rounds
from bidro.federation import Federation
from bidro.guarantees.price import LeftOut
from bidro.losses import Squared
from bidro.problem import NonconcaveInnerWarning, Problem
from bidro.sets import Box
from bidro.transport import Transport

TRUE = np.array([1.0, 0.5, -0.5])


def in_folds(problem, deal):
    """The clients of the problem with their rows dealt out to folds."""
    marks = problem.federation.folds(deal.folds, deal.seed)
    return replace(problem.clients, rows=problem.clients.rows.in_folds(marks, deal.folds))


def fold_losses(algorithm, problem, trained):
    """(n, candidates) what `FoldMoments` finds from the moments of every fold's training rows."""
    ask = Answered(trained).clients_of(problem)
    found = last_state(rounds(ask, algorithm, algorithm.init(problem)), None).found
    return LeftOut(found.losses, found.rows).pooled


SIZES = (7, 12, 30)


def rows(seed=0, sizes=SIZES):
    rng = np.random.default_rng(seed)
    parts = []
    for k, size in enumerate(sizes):
        theta = rng.uniform(-1, 1, (size, 3)) + 0.3 * k
        parts.append(np.column_stack([theta, theta @ TRUE + 0.2 * rng.normal(size=size) - 0.1 * k]))
    return {f"site-{k}": part for k, part in enumerate(parts)}


def federation(seed=0, half_width=3.0):
    return Federation.from_arrays(rows(seed), Box.cube(half_width, 4))


def admissible(rho=(20.0, 12.0, 9.0), seed=0, **kwargs):
    """Penalties above ||(x, -1)||^2 <= 7.75 on the model set: concave inner problems."""
    return Problem(
        federation(seed), Squared(), Box.cube(1.5, 3), Transport.euclidean(4), Penalty(rho), **kwargs
    )


def paper_like(rho=(15.0, 5.0, 2.5), seed=0):
    """Penalties below the curvature on a large model set, as in the paper; the warning is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonconcaveInnerWarning)
        return Problem(federation(seed), Squared(), Box.cube(100.0, 3), Transport.euclidean(4), Penalty(rho))


def regressor(*loss, **how):
    """Of straight lines, for tests that are not about curves."""
    return RobustRegressor(*loss, **{"curves": None, **how})


def classifier(*loss, **how):
    """Of straight lines, for tests that are not about curves."""
    return RobustClassifier(*loss, **{"curves": None, **how})


def mostly_slow(cases, quick):
    """The cases as parameters; of a large product, those for which `quick` does not hold are for
    `make test-slow`."""
    return [
        case
        if quick(case)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
