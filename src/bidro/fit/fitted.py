"""What a fit is to do, what to call while it goes on, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.certify.certificate import Certificate
from bidro.certify.intervals import Intervals, Spread
from bidro.certify.statements import CertifiedModel
from bidro.core.arrays import Floats
from bidro.data.standardise import Standard
from bidro.fit.baselines import Baselines
from bidro.fit.client_side import error_by_person, row_spread
from bidro.fit.network import Clients
from bidro.fit.settings import FitSettings
from bidro.fit.training import LARGEST_COEFFICIENT, AlgorithmOne, Trained
from bidro.losses.registry import LossChoice
from bidro.privacy.terms import Terms
from bidro.problem.problem import Problem

# Means and quantiles are shown of clients with so many rows at the least: of fewer, they are the rows.
FEWEST_DESCRIBED = 10


@dataclass(frozen=True, eq=False)
class Options:
    """What a fit is to do, whoever's rows it uses."""

    loss: LossChoice
    choices: FitSettings
    support: tuple[ArrayLike, ArrayLike] | None = None  # declared bounds of the columns, in their own units
    levels: tuple[float, ...] = ()  # more confidences to state, besides that of `choices`
    algorithm: AlgorithmOne | None = None  # in place of the exact solver
    shown: bool = True  # whether what is only shown is found: worst cases, what to hold the model against
    units: Standard | None = None  # agreed beforehand; None for those of all clients' training rows
    largest_coefficient: float = LARGEST_COEFFICIENT  # of models, in standard units
    privacy: Terms | None = None  # of a fit over clients with privacy budgets
    frontier: bool = False  # whether what other largest costs take is assessed, too, where rows are here
    units_drafted: bool = False  # whether the units were read off rows, so that no budget is promised

    @property
    def confidences(self) -> list[float]:
        return sorted({*self.levels, self.choices.confidence})


@dataclass(frozen=True, eq=False)
class Progress:
    """What to call while work goes on; each may be None."""

    stage: Callable[[str], None] | None = None
    part: Callable[[str, float], None] | None = None  # (what is being chosen, the share that is done)
    calibration: Callable[[int, int], None] | None = None  # (round, solves that go on)
    solving: Callable[[int, float], None] | None = None  # (round, gap)
    stepping: Callable[[int], None] | None = None  # (round) of Algorithm 1

    def begin(self, stage: str) -> None:
        if self.stage is not None:
            self.stage(stage)


class ClientLoss(NamedTuple):
    loss: float  # mean over its rows
    se: float | None  # standard error of the mean; None for a single row or person
    rows: int
    personal: float  # mean under the model that the client uses: its own, or the shared one

    @classmethod
    def of(
        cls, losses: Floats, people: NDArray[Any] | None = None, personal: Floats | None = None
    ) -> ClientLoss:
        """From the losses (N,) of its rows under the shared model, and under its own if it has one. `people`
        (N,) are those that rows are of, where these and not rows are independent."""
        draws = len(losses) if people is None else len(np.unique(people))
        error = error_by_person(losses, np.arange(len(losses)) if people is None else people)
        mean = float(losses.mean())
        used = mean if personal is None else float(personal.mean())
        return cls(mean, error if draws > 1 else None, len(losses), used)


class Change(NamedTuple):
    """How a client's mean loss on held-out rows differs from that under pooled training."""

    mean: float
    se: float | None  # standard error of the mean; None for a single row


class Changes(NamedTuple):
    shared: Change
    personal: Change  # under the model that the client uses


class Displacement(NamedTuple):
    """How a client's worst case moves its features, in pooled standard deviations."""

    before: Floats | None  # (k,) the means; None where clients do not report them, or have too few rows
    moved: Floats  # (k,) how far these move
    typical: Floats  # (k,) how far rows move on average


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, how it came about, and what is stated of it."""

    clients: Clients | None  # None where they have released noisy sums alone
    standard: Standard
    trained: Trained
    stated: Problem  # as trained, but for any mixture, on the declared support
    assessed: CertifiedModel
    distances: Floats | None  # (n, n) between the clients' training rows; None where there is no interval
    certificates: Mapping[float, Certificate]  # by confidence
    evaluation: Mapping[str, ClientLoss]  # on held-out rows (on training rows where there are none)
    held_out_rows: int
    displaced: Mapping[str, Displacement]  # of the clients that count most in the worst mixture
    personal_models: Mapping[str, Floats]  # (d,) that are known here, by client
    changes: Mapping[str, Changes] | None  # on held-out rows; None where there is nothing to compare with
    varies: float | None  # deviation of the predictions, as a share of that under pooled training
    baselines: Baselines  # what to hold the model against
    seen: tuple[Floats, Floats] | None = (
        None  # (k,) least and largest values in training, where curves need them
    )
    intervals: Intervals | None = None  # for rows; None where no rows that are here were held out
    steepness: tuple[float | None, float] = None, 1.0  # of residuals, as in `Intervals`: slope and order
    frontier: tuple[Fitted, ...] = ()  # the models of all largest costs, each with its share of the level

    def spread(self) -> Spread | None:
        """Of training rows that are here, around the models that their clients use."""
        assert self.clients is not None
        problem = self.trained.problem
        used = np.stack([self.personal_models.get(n, self.assessed.x) for n in problem.federation.names])
        return row_spread(problem.federation, self.assessed.loss, used)
