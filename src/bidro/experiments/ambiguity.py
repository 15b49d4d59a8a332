"""Fig. 1 from real quantities: where the clients' true and empirical distributions lie.

All positions come from exact 2-Wasserstein distances between clouds of (corrupted features, label),
laid out in the plane by classical scaling. A radius is the 95% quantile, over fresh draws, of the distance
between a client's samples and its true distribution.
"""

from __future__ import annotations

import numpy as np

from bidro.arrays import Floats
from bidro.experiments.simulation import OFFSETS, SHIFTS, SIZES, SimulatedRun, observed_rows
from bidro.report.figures import AmbiguityPicture
from bidro.transport import Transport, wasserstein_distance


def ambiguity_picture(
    run: SimulatedRun, cloud: int = 300, mixtures: int = 24, draws: int = 40
) -> AmbiguityPicture:
    """Positions and radii for one run; `cloud` points stand for each true distribution."""
    rng = np.random.default_rng([run.seed, 2])
    transport = Transport.euclidean(4)
    n = len(SIZES)

    def true_rows(i: int, count: int) -> Floats:
        v = run.directions[i]
        return observed_rows(OFFSETS[i] * v, SHIFTS[i] * v, count, rng)

    true = [true_rows(i, cloud) for i in range(n)]
    empirical = np.split(run.samples, np.cumsum(SIZES)[:-1])
    mixed = []
    for weights in rng.dirichlet(np.full(n, 0.6), mixtures):
        owners = rng.choice(n, size=cloud, p=weights)
        mixed.append(np.concatenate([true_rows(i, int(np.sum(owners == i))) for i in range(n)]))

    clouds = [*true, *empirical, *mixed]
    squared = np.zeros((len(clouds), len(clouds)))
    for a in range(len(clouds)):
        for b in range(a):
            squared[a, b] = squared[b, a] = wasserstein_distance(clouds[a], clouds[b], transport) ** 2
    places, explained = _classical_scaling(squared)

    def radius(i: int) -> float:
        distances = [
            wasserstein_distance(true_rows(i, SIZES[i]), true_rows(i, cloud), transport) for _ in range(draws)
        ]
        return float(np.quantile(distances, 0.95))

    return AmbiguityPicture(
        places[:n],
        places[n : 2 * n],
        places[2 * n :],
        np.array([radius(i) for i in range(n)]),
        SIZES,
        explained,
    )


def _classical_scaling(squared: Floats) -> tuple[Floats, float]:
    """Points in the plane whose distances come closest (Torgerson), and the share they explain."""
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    top = values[::-1][:2]
    places = vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(top, 0.0))
    return places, float(top.sum() / np.abs(values).sum())
