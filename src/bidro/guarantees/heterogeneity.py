"""delta: how far apart the clients' true distributions can lie, in W_p, from their samples.

On the event that every client's ball holds its own distribution, delta is at most the largest
W_p(P_hat_i, P_hat_j) + eps_i + eps_j, and never more than the diameter of the support. Distances between
clouds are exact up to a size; a larger cloud is replaced by some of its own points, each weighted by the rows
nearest to it, and what that moves, which is known exactly, is added. Where there are many clients, distances
go through one reference cloud: W(P_i, P_j) <= W(P_i, reference) + W(reference, P_j), one distance a client.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.problem import Problem
from bidro.transport import Cloud, Transport, thinned, wasserstein_distance

# Clouds up to this size are compared exactly.
EXACT_ROWS = 2000
# With more clients than this, distances go through a reference cloud of so many points.
MOST_PAIRED = 12
REFERENCE_POINTS = 500


def cloud_distances(problem: Problem) -> Floats:
    """(n, n): at most this far apart are the clients' samples, in W_p of the problem's transport cost."""
    federation, transport, n = problem.federation, problem.transport, problem.n
    rows = [federation.client_samples(name) for name in federation.names]
    apart = np.zeros((n, n))
    if n > MOST_PAIRED:
        reference = thinned(federation.samples, transport, REFERENCE_POINTS).points
        to_reference = np.array([distance_to_reference(own, reference, transport) for own in rows])
        apart = to_reference[:, None] + to_reference[None, :]
        np.fill_diagonal(apart, 0.0)
        return apart
    clouds = [thinned(own, transport, EXACT_ROWS) for own in rows]
    for i in range(n):
        for j in range(i):
            apart[i, j] = apart[j, i] = _apart(clouds[i], clouds[j], transport)
    return apart


def widened(distances: Floats, radii: ArrayLike, diameter: float) -> float:
    """The largest distance plus both radii, and at most the diameter of the support: a bound of the true
    delta that holds wherever all balls do."""
    width = np.asarray(radii, float)
    others = distances + width[:, None] + width[None, :]
    np.fill_diagonal(others, 0.0)
    return min(float(others.max()), diameter)


def distance_to_reference(rows: ArrayLike, reference: ArrayLike, transport: Transport) -> float:
    """At most this far lie a client's rows from a cloud that everybody has; the number that it sends."""
    points = np.atleast_2d(np.asarray(reference, float))
    return _apart(thinned(rows, transport, EXACT_ROWS), thinned(points, transport, EXACT_ROWS), transport)


def delta_from_reference(distances: ArrayLike, radii: ArrayLike) -> float:
    """The two largest sums of a client's distance to the reference and its radius, added up: where all balls
    hold, a bound of the true delta for which only one number a client has to travel."""
    far = np.asarray(distances, float) + np.asarray(radii, float)
    if far.ndim != 1 or not np.all(np.isfinite(far)) or np.any(far < 0):
        raise BidroError(f"Distances and radii must be finite and not negative, one a client; got {far}.")
    return float(np.sort(far)[-2:].sum()) if len(far) > 1 else 0.0


def _apart(a: Cloud, b: Cloud, transport: Transport) -> float:
    return wasserstein_distance(a.points, b.points, transport, a.masses, b.masses) + a.moved + b.moved
