"""The data of Section VI: five heterogeneous clients, corrupted features, clean labels.

Client i observes (theta + s_i v_i + gamma, <a, theta>) with theta ~ N(delta_i v_i, I_3) restricted to
[-500, 500]^3 and gamma ~ N(0, 0.1^2 I_3). The directions v_i are drawn once a run from b_1 and b_2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.ambiguity import Penalty
from bidro.core.arrays import Floats
from bidro.core.sets import Box
from bidro.data.federation import Federation
from bidro.losses import Squared
from bidro.problem.problem import Problem
from bidro.risk.transport import Transport

COEFFICIENTS = np.array([1.0, 0.5, -0.5])  # a
SIZES = (30, 40, 80, 150, 300)
OFFSETS = np.array([3.0, 1.0, 1.0, 0.5, 0.5])  # delta_i
SHIFTS = np.array([0.2, -0.1, 0.0, 0.0, 0.0])  # s_i
NOISE = 0.1
HALF_WIDTH = 500.0  # of the support, in every coordinate
MODEL_HALF_WIDTH = 100.0
PENALTIES = (15.0, 10.0, 5.0, 4.0, 2.5)
SHARED_PENALTY = 5.0
TEST_ROWS = 4000


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """One draw of directions and training data, and the source of this run's test data."""

    seed: int
    directions: Floats  # v_i, (5, 3)
    samples: Floats  # (600, 4), client after client: corrupted features, then the label

    @property
    def means(self) -> Floats:
        """mu_i = delta_i v_i, (5, 3)."""
        return OFFSETS[:, None] * self.directions


def simulate(seed: int) -> SimulatedRun:
    """The training data of the run with this seed."""
    rng = np.random.default_rng([seed, 0])
    directions = _directions(rng)
    rows = [
        observed_rows(OFFSETS[i] * v, SHIFTS[i] * v, size, rng)
        for i, (v, size) in enumerate(zip(directions, SIZES, strict=True))
    ]
    return SimulatedRun(seed, directions, np.concatenate(rows))


def observed_rows(mean: Floats, shift: Floats, count: int, rng: np.random.Generator) -> Floats:
    """`count` rows (corrupted features, label) of a client with this mean and shift."""
    theta = _restricted_normal(mean, count, rng)
    labels = theta @ COEFFICIENTS
    corrupted = theta + shift + NOISE * rng.standard_normal(theta.shape)
    return np.clip(np.column_stack([corrupted, labels]), -HALF_WIDTH, HALF_WIDTH)


def clean_test(run: SimulatedRun, alpha: ArrayLike, rows: int = TEST_ROWS) -> Floats:
    """Clean features (rows, 3) of the test mixture; `alpha` allots the rows to the clients."""
    rng = np.random.default_rng([run.seed, 1])
    counts = allocate(np.asarray(alpha, float), rows)
    return np.concatenate(
        [_restricted_normal(mu, count, rng) for mu, count in zip(run.means, counts, strict=True)]
    )


def clean_mse(theta: Floats, x: ArrayLike) -> Floats:
    """Mean of (<a, theta> - <x, theta>)^2 for one model (3,) or many (..., 3)."""
    second_moments = theta.T @ theta / len(theta)
    gap = np.asarray(x) - COEFFICIENTS
    return np.asarray(np.einsum("...i,ij,...j->...", gap, second_moments, gap))


def allocate(weights: Floats, total: int) -> NDArray[np.int64]:
    """Whole numbers that sum to `total`, each within 1 of weights * total (largest remainders)."""
    exact = weights / weights.sum() * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def paper_problem(run: SimulatedRun, penalties: ArrayLike | None) -> Problem:
    """The problem of Section VI on this run's data; no penalties for AFL and FedAvg."""
    federation = Federation.from_samples(
        run.samples,
        SIZES,
        Box.cube(HALF_WIDTH, 4),
        columns=["theta_1", "theta_2", "theta_3", "y"],
    )
    return Problem(
        federation,
        Squared(),
        Box.cube(MODEL_HALF_WIDTH, 3),
        Transport.euclidean(4),
        None if penalties is None else Penalty(penalties),
    )


def _directions(rng: np.random.Generator) -> Floats:
    u = COEFFICIENTS / np.linalg.norm(COEFFICIENTS)

    def orthogonal() -> Floats:
        g = rng.standard_normal(3)
        g = g - (g @ u) * u
        return np.asarray(g / np.linalg.norm(g))

    b_1, b_2 = orthogonal(), orthogonal()
    mixed = [u + 0.2 * b_1, -u + 0.2 * b_1, u + 0.2 * b_2]
    return np.stack([*(v / np.linalg.norm(v) for v in mixed), b_1, b_2])


def _restricted_normal(mean: Floats, count: int, rng: np.random.Generator) -> Floats:
    """N(mean, I) restricted to the support box, by rejection."""
    rows = mean + rng.standard_normal((count, 3))
    while (outside := np.any(np.abs(rows) > HALF_WIDTH, axis=1)).any():
        rows[outside] = mean + rng.standard_normal((int(outside.sum()), 3))
    return np.asarray(rows)
