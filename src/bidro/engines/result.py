"""What a run leaves: models, weights, their history, and the state to go on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidro.algorithms.contract import Algorithm, Snapshot
from bidro.problem import Problem


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: models, weights, the recorded history, and the state to go on from.

    Examples:
        >>> from bidro import FedAvg, run
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> found = run(FedAvg(0.1), paper_problem(simulate(0), None), rounds=100, record_every=25)
        >>> found.history_rounds.tolist(), found.history.x.shape
        ([25, 50, 75, 100], (4, 3))
    """

    x: NDArray[np.float64]  # (d,) final model
    x_average: NDArray[np.float64]  # (d,) mean of x_1, ..., x_T
    alpha: NDArray[np.float64]  # (n,) final mixture weights, in the order of `names`
    names: tuple[str, ...]  # the clients'
    algorithm: Algorithm  # with its settings
    problem: str  # the problem's fingerprint
    rounds: int  # done in all
    seed: int  # of everything random
    history_rounds: NDArray[np.int64]  # (records,)
    history: Snapshot  # arrays with a leading axis of records
    seconds: float  # of this part of the run
    state: Any  # to go on from; what clients replied is in it, so that it belongs where the rows are


def result_of(
    algorithm: Algorithm,
    state: Any,
    problem: Problem,
    rounds: int,
    seed: int,
    at: NDArray[np.int64],
    history: Snapshot,
    seconds: float,
) -> Result:
    """The result of a run that has ended in this state."""
    final = algorithm.snapshot(state)
    return Result(
        np.asarray(final.x),
        np.asarray(final.x_average),
        np.asarray(final.alpha),
        problem.federation.names,
        algorithm,
        problem.fingerprint,
        rounds,
        seed,
        at,
        history,
        seconds,
        state,
    )
