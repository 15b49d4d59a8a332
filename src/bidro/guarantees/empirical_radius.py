"""Radii read off the samples: of a useful size where the explicit ones are not, and without their promise.

Each result says what it promises. Distances run over the coordinates that can move. Clouds of more than 1,000
rows are thinned to a random 1,000 of them, which makes radii larger, not smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.transport import Transport, wasserstein_distance

_MOST_ROWS = 1000

OneClient = Callable[[Floats, Transport, np.random.Generator], float]


@dataclass(frozen=True, eq=False)
class EmpiricalRadii:
    """Radii read off the samples, and what they do and do not promise.

    Examples:
        >>> from bidro import split_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> split_radii(paper_problem(simulate(0), None), repetitions=2).radii.shape
        (5,)
    """

    radii: Floats  # (n,)
    promise: str  # in words


def bootstrap_radii(
    problem: Problem, confidence: float = 0.95, repetitions: int = 100, seed: int = 0
) -> EmpiricalRadii:
    """For each client the `confidence` quantile of W_p(P_hat*, P_hat) over resamples P_hat* of its rows.

    Needs the extra `distances`.

    Args:
        problem: whose rows and transport cost are used.
        confidence: of the quantile.
        repetitions: resamples of each client.
        seed: of the resamples.

    Returns:
        The radii, and what they promise.

    Raises:
        BidroError: for a confidence outside (0, 1) or fewer than 2 repetitions.

    Examples:
        >>> from bidro import bootstrap_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> bool((bootstrap_radii(paper_problem(simulate(0), None), repetitions=3).radii > 0).all())
        True
    """
    if not 0 < confidence < 1:
        raise BidroError(f"The confidence must lie strictly between 0 and 1; got {confidence}.")
    if repetitions < 2:
        raise BidroError(f"A bootstrap needs at least 2 repetitions; got {repetitions}.")

    def one(rows: Floats, transport: Transport, rng: np.random.Generator) -> float:
        cloud = _some(rows, _MOST_ROWS, rng)
        size = len(cloud)
        found = []
        for _ in range(repetitions):
            counts = np.bincount(rng.integers(size, size=size), minlength=size)
            drawn = counts > 0
            found.append(wasserstein_distance(cloud[drawn], cloud, transport, counts[drawn] / size))
        return float(np.quantile(found, confidence, method="higher"))

    return EmpiricalRadii(
        _each_client(problem, one, seed),
        f"The {confidence:g} quantile of the distance between resampled and observed rows of each client. No "
        "promise for a finite sample: resamples reuse the observed points, and in many dimensions the true "
        f"distribution is farther away.{_what_stays(problem)}",
    )


def split_radii(problem: Problem, repetitions: int = 20, seed: int = 0) -> EmpiricalRadii:
    """For each client the root of the mean of W_p^p between two random halves of its rows.

    Needs the extra `distances`.

    Args:
        problem: whose rows and transport cost are used.
        repetitions: random halvings of each client.
        seed: of the halvings.

    Returns:
        The radii, and what they promise.

    Raises:
        BidroError: for no repetition, or a client with a single row.

    Examples:
        >>> from bidro import split_radii
        >>> from bidro.experiments.simulation import paper_problem, simulate
        >>> bool((split_radii(paper_problem(simulate(0), None), repetitions=3).radii > 0).all())
        True
    """
    if repetitions < 1:
        raise BidroError(f"A split estimate needs at least one repetition; got {repetitions}.")
    p = problem.transport.p

    def one(rows: Floats, transport: Transport, rng: np.random.Generator) -> float:
        total = 0.0
        for _ in range(repetitions):
            halves = _some(rows, 2 * _MOST_ROWS, rng)
            middle = len(halves) // 2
            total += wasserstein_distance(halves[:middle], halves[middle : 2 * middle], transport) ** p
        return float((total / repetitions) ** (1 / p))

    return EmpiricalRadii(
        _each_client(problem, one, seed),
        "From the distance between two halves of each client's rows. Its p-th power is in the mean at least "
        "that of the distance between all rows and the true distribution (W_p^p is convex); for a single "
        f"sample it promises nothing.{_what_stays(problem)}",
    )


def _each_client(problem: Problem, one: OneClient, seed: int) -> Floats:
    if problem.federation.units is not None:
        raise BidroError(
            "A radius read off the rows takes these as independent draws, and several rows are of one unit; "
            "use radius='cross-validate' or numbers."
        )
    movable = np.asarray(problem.transport.inverse_scale) > 0
    label_moves = problem.transport.discrete_label and math.isfinite(problem.transport.label_cost)
    kept = movable | (np.arange(len(movable)) == len(movable) - 1) & label_moves
    if not kept.any():
        raise BidroError("No coordinate can move, so there is no distance to take a radius from.")
    transport = problem.transport
    inner = Transport(
        transport.scale[kept], transport.p, label_moves, transport.label_cost if label_moves else math.inf
    )
    radii = []
    for i, name in enumerate(problem.federation.names):
        rows = np.asarray(problem.federation.client_samples(name))[:, kept]
        if len(rows) < 2:
            raise BidroError(
                f"Client '{name}' has a single row, from which no radius can be read; give it more rows or "
                "set its radius yourself."
            )
        radii.append(one(rows, inner, np.random.default_rng([seed, i])))
    return np.array(radii)


def _some(rows: Floats, most: int, rng: np.random.Generator) -> Floats:
    """The rows in random order, and no more than `most` of them."""
    return np.asarray(rows[rng.permutation(len(rows))[:most]])


def _what_stays(problem: Problem) -> str:
    """What to add where the label does not move."""
    still = np.isinf(np.asarray(problem.transport.scale))
    if problem.transport.discrete_label:
        still[-1] = math.isinf(problem.transport.label_cost)
    if not still.any():
        return ""
    names = ", ".join(f"'{c}'" for c, s in zip(problem.federation.columns, still, strict=True) if s)
    return f" {names} cannot move: this is robustness to shift of the other columns, without coverage."
