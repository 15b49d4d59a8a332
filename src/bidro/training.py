"""From rows in standard units to a trained model: radius, weights, and the exact solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

# Models are sought within this many standard units of 0.
LARGEST_COEFFICIENT = 1e3


@dataclass(frozen=True, eq=False)
class Trained:
    problem: Problem  # as solved: balls of the chosen radii, weights of the chosen cap
    solution: Solution
    calibration: Calibration | None
    radius_promise: str
    weights_in_words: str


@dataclass(frozen=True, eq=False)
class Choices:
    """What a user may choose besides loss and rows; radii are in standard units."""

    radius: Any = "cross-validate"  # a Radius
    weights: Any = "auto"  # Weights
    gap: float = 1e-6
    folds: int | None = None
    seed: int = 0
    confidence: float = 0.95  # of bootstrap and explicit radii
    method: Method | None = None  # of the solver
    fold_curvature: bool = True  # whether replies in cross-validation hold curvature


def transport_of(
    loss: Loss, m: int, metric: str, label_cost: float, p: float | None, target_spread: float
) -> Transport:
    """The cost of moving a row: labels immovable ("features") or at a price ("joint")."""
    if metric not in ("features", "joint"):
        raise BidroError(f"metric must be 'features' or 'joint'; got {metric!r}.")
    if not (isinstance(label_cost, int | float) and 0 < label_cost < math.inf):
        raise BidroError(f"label_cost must be a positive number; got {label_cost!r}.")
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
    check_words(radius, weights)
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
    return Trained(balls, solution, calibration, promise, _cap_in_words(cap))


def unrestricted(federation: Federation, loss: Loss, transport: Transport, target_spread: float) -> Problem:
    """Without ambiguity, for any mixture and any model that is likely to be wanted."""
    half = LARGEST_COEFFICIENT * max(target_spread, 1.0 if loss.labels is not None else 0.0)
    return Problem(federation, loss, Box.cube(half, loss.dimension(federation.m)), transport)


def check_words(radius: Any, weights: Any) -> None:
    """Raise BidroError for a radius or weights that stand for nothing."""
    if isinstance(radius, str) and radius not in ("cross-validate", "bootstrap", "explicit"):
        raise BidroError(
            "radius must be a number, one a client, 'cross-validate', 'bootstrap' or 'explicit'; got "
            f"{radius!r}."
        )
    if isinstance(weights, str):
        if weights not in ("auto", "simplex", "fixed"):
            raise BidroError(
                f"weights must be 'auto', 'simplex', 'fixed' or a cap of at least 1; got {weights!r}."
            )
    elif not isinstance(weights, int | float) or not weights >= 1:
        raise BidroError(f"A cap on the weights must be a number of at least 1; got {weights!r}.")


def _cap(weights: Any) -> float:
    """kappa: 1 for fixed weights, inf where there is none."""
    if isinstance(weights, str):
        return 1.0 if weights == "fixed" else math.inf
    return float(weights)


def _cap_in_words(cap: float) -> str:
    if math.isinf(cap):
        return "any mixture of the clients"
    if cap == 1:
        return "each client counts by its rows"
    return f"no client counts for more than {cap:g} times its share of the rows"


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
    try:
        given = np.asarray(radius, float)
    except (TypeError, ValueError) as error:
        raise BidroError(f"radius must be a number, one a client, or a word; got {radius!r}.") from error
    return np.broadcast_to(given, (len(names),)) if given.ndim == 0 else given
