"""From rows in standard units to a trained model: radius, weights, and the exact solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.algorithms.cross_validation import Candidate
from bidro.client import WassersteinBall
from bidro.engines.network import IN_PROCESS, Network
from bidro.engines.solve import Method, Solution, solve
from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.guarantees.asked import check_confidence, is_number
from bidro.guarantees.calibration import CAPS, Calibration, calibrate
from bidro.guarantees.empirical_radius import bootstrap_radii
from bidro.guarantees.out_of_sample import explicit_radii
from bidro.losses import Loss
from bidro.problem import Problem
from bidro.sets import Box
from bidro.transport import Transport

Floats = NDArray[np.float64]
Radius = float | ArrayLike | Mapping[str, float] | Literal["cross-validate", "bootstrap", "explicit"]
Weights = float | Literal["auto", "simplex", "fixed"]

RADIUS_WORDS = ("cross-validate", "bootstrap", "explicit")
WEIGHT_WORDS = ("auto", "simplex", "fixed")
METRICS = ("features", "joint")

# Models are sought within this many standard units of 0.
LARGEST_COEFFICIENT = 1e3


@dataclass(frozen=True, eq=False)
class Trained:
    problem: Problem  # as solved: balls of the chosen radii, weights of the chosen cap
    solution: Solution
    calibration: Calibration | None
    radius_promise: str
    cap: float  # on the weights: no client counts for more than so many times its share; inf for none


@dataclass(frozen=True, eq=False)
class Choices:
    """What a user may choose besides loss and rows; radii are in standard units.

    Raises BidroError for what stands for nothing, so that it is said before any work begins.
    """

    radius: Any = "cross-validate"  # a Radius
    weights: Any = "auto"  # Weights
    gap: float = 1e-6
    folds: int | None = None
    seed: int = 0
    confidence: float = 0.95  # of bootstrap and explicit radii
    method: Method | None = None  # of the solver
    fold_curvature: bool = True  # whether replies in cross-validation hold curvature

    def __post_init__(self) -> None:
        _check_radius(self.radius)
        _check_weights(self.weights)
        if not is_number(self.gap) or not 0 < self.gap < math.inf:
            raise BidroError(f"The gap must be a positive number such as 1e-6; got {self.gap!r}.")
        if self.folds is not None and (not isinstance(self.folds, Integral) or self.folds < 2):
            raise BidroError(f"folds must be a whole number of at least 2; got {self.folds!r}.")
        if not isinstance(self.seed, Integral) or self.seed < 0:
            raise BidroError(f"The random seed must be a whole number of at least 0; got {self.seed!r}.")
        check_confidence(self.confidence)


def transport_of(
    loss: Loss, m: int, metric: str, label_cost: float, p: float | None, target_spread: float
) -> Transport:
    """The cost of moving a row: labels immovable ("features") or at a price ("joint")."""
    check_metric(metric, label_cost, p)
    growth = loss.growth
    order = float(p) if p is not None else (2.0 if growth is not None and growth.order == 2 else 1.0)
    moves = metric == "joint"
    if loss.labels is not None:
        return Transport.classification(m, order, label_cost if moves else math.inf)
    scale = np.ones(m)
    scale[-1] = label_cost / target_spread if moves else math.inf
    return Transport(jnp.asarray(scale), order)


def train(
    federation: Federation,
    loss: Loss,
    transport: Transport,
    choices: Choices,
    target_spread: float,
    support: Box | None = None,
    on_calibration: Callable[[int, int], None] | None = None,
    on_round: Callable[[int, float], None] | None = None,
    network: Network = IN_PROCESS,
    spread: float | None = None,
) -> Trained:
    """Choose radii and weights, and solve to the gap.

    Training takes the whole space as support: worst cases over it are at least those over a declared box, and
    have a closed form. `network` answers the rounds; `spread` is what cross-validated radii are in units of,
    by default read off the rows.
    """
    problem = unrestricted(federation, loss, transport, target_spread)
    radius, weights = choices.radius, choices.weights
    calibration, cap = None, _cap(weights)
    if isinstance(radius, str) and radius == "cross-validate":
        caps = CAPS if weights == "auto" else (cap,)
        caps = caps if federation.n > 1 else (math.inf,)
        calibration = calibrate(
            problem,
            caps=caps,
            folds=choices.folds,
            seed=choices.seed,
            spread=spread,
            progress=on_calibration,
            network=network,
            sends_curvature=choices.fold_curvature,
        )
        radii, cap, promise = calibration.radii, calibration.chosen.cap, calibration.promise
    elif isinstance(radius, str) and radius == "bootstrap":
        found = bootstrap_radii(problem, choices.confidence, seed=choices.seed)
        radii, promise = found.radii, found.promise
    elif isinstance(radius, str):
        radii, promise = _explicit(problem, support, choices.confidence)
    else:
        radii, promise = _given(radius, federation.names), "The radii were given."
    mixtures = Candidate(0.0, cap).mixtures(federation.sizes)
    balls = replace(problem, ambiguity=WassersteinBall(radii), mixtures=mixtures)
    solution = solve(balls, choices.gap, choices.method, progress=on_round, network=network)
    return Trained(balls, solution, calibration, promise, cap)


def unrestricted(federation: Federation, loss: Loss, transport: Transport, target_spread: float) -> Problem:
    """Without ambiguity, for any mixture and any model that is likely to be wanted."""
    half = LARGEST_COEFFICIENT * max(target_spread, 1.0 if loss.labels is not None else 0.0)
    return Problem(federation, loss, Box.cube(half, loss.dimension(federation.m)), transport)


def check_metric(metric: Any, label_cost: Any, p: Any = None) -> None:
    """Raise BidroError for a cost of moving rows that stands for nothing."""
    if metric not in METRICS:
        raise BidroError(f"metric must be {_or(METRICS)}; got {metric!r}.")
    if not is_number(label_cost) or not 0 < label_cost < math.inf:
        raise BidroError(f"label_cost must be a positive number; got {label_cost!r}.")
    if p is not None and (not is_number(p) or not 1 <= p < math.inf):
        raise BidroError(f"p must be a number of at least 1; got {p!r}.")


def _check_radius(radius: Any) -> None:
    if isinstance(radius, str):
        if radius not in RADIUS_WORDS:
            raise BidroError(f"radius must be a number, one a client, {_or(RADIUS_WORDS)}; got {radius!r}.")
        return
    try:
        given = np.asarray(list(radius.values()) if isinstance(radius, Mapping) else radius, float)
    except (TypeError, ValueError) as error:
        raise BidroError(
            f"radius must be a number, one a client, {_or(RADIUS_WORDS)}; got {radius!r}."
        ) from error
    if given.ndim > 1 or not np.all((given >= 0) & (given < math.inf)):
        raise BidroError(f"A radius must be a finite number of at least 0; got {radius!r}.")


def _check_weights(weights: Any) -> None:
    if isinstance(weights, str):
        if weights not in WEIGHT_WORDS:
            raise BidroError(f"weights must be a cap of at least 1, {_or(WEIGHT_WORDS)}; got {weights!r}.")
    elif not is_number(weights) or not 1 <= weights < math.inf:
        raise BidroError(
            "A cap on the weights must be a finite number of at least 1 ('simplex' is without a cap); got "
            f"{weights!r}."
        )


def _or(words: Sequence[str]) -> str:
    """'a', 'b' or 'c'."""
    quoted = [f"'{word}'" for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _cap(weights: Any) -> float:
    """kappa: 1 for fixed weights, inf where there is none."""
    if isinstance(weights, str):
        return 1.0 if weights == "fixed" else math.inf
    return float(weights)


def _explicit(problem: Problem, support: Box | None, confidence: float) -> tuple[Floats, str]:
    if support is None:
        raise BidroError("radius='explicit' needs a declared support; give lower and upper bounds.")
    declared = replace(problem, federation=replace(problem.federation, support=support))
    radii = explicit_radii(declared, confidence)
    return radii, f"Explicit radii: with probability at least {confidence:g} every ball holds its client."


def _given(radius: Any, names: Sequence[str]) -> Floats:
    if isinstance(radius, Mapping):
        missing = [name for name in names if name not in radius]
        if missing:
            raise BidroError(f"There is no radius for client '{missing[0]}'.")
        return np.array([float(radius[name]) for name in names])
    given = np.asarray(radius, float)
    return np.broadcast_to(given, (len(names),)) if given.ndim == 0 else given
