"""One ball around a Wasserstein barycentre of the clients (Rychener et al., as the paper cites it).

The centre is the cloud B of a given number of points, all of equal mass, that minimises
sum_i w_i W_2(B, P_i)^2 over the points (a local minimum, by POT), and the problem

    min over x in X of sup { E_Q[l(x, xi)] : W_p(Q, B) <= eps }

is that of MW-DRO with B as the only client: `solve` on the federation that `barycentre` returns.

A barycentre is no mixture. It averages positions of rows, so that of clients which are copies of each other,
shifted apart, it is one copy half way, where nobody has rows, and what differs between clients is lost. It
also takes the clients' rows to one place: this is no federated method.

Reference: Yves Rychener, Adrian Esteban-Perez, Juan M. Morales and Daniel Kuhn. Wasserstein Distributionally
Robust Optimization with Heterogeneous Data Sources. 2024.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bidro.core.arrays import Floats, split_by_sizes
from bidro.core.errors import BidroError
from bidro.data.federation import Federation
from bidro.risk.transport import require_distances

_ITERATIONS = 10
_ROUNDING = 1e-12


def barycentre(
    federation: Federation,
    points: int = 100,
    rows_per_client: int = 200,
    classes: bool = False,
    seed: int = 0,
) -> Federation:
    """The Wasserstein barycentre of the clients' rows, as a federation of one client.

    The weights of the clients are w_i = N_i / N. Needs the extra `distances`.

    Args:
        federation: the clients.
        points: how many points the barycentre has, all of equal mass.
        rows_per_client: of a client with more rows than this, a random choice of so many is used.
        classes: whether the last column is a label. It cannot be averaged: every class gets a barycentre
            of its rows' features, and points in proportion to its rows.
        seed: of the choice of rows and of where the search begins.

    Returns:
        A federation whose one client is called "barycentre", on the same support.

    Raises:
        BidroError: for fewer than one point a class, and where the extra is missing.

    Examples:
        >>> import numpy as np
        >>> from bidro import Federation
        >>> from bidro.federated.baselines.barycentre import barycentre
        >>> rows = np.random.default_rng(0).normal(size=(40, 2))
        >>> shifted = Federation.from_arrays({"left": rows - 1, "right": rows + 1}, "unbounded")
        >>> centre = barycentre(shifted, points=40).samples
        >>> bool(np.allclose(centre.mean(axis=0), rows.mean(axis=0)))  # half way, where nobody has rows
        True
    """
    require_distances()
    rng = np.random.default_rng(seed)
    samples = np.asarray(federation.samples)
    parts = split_by_sizes(samples, federation.sizes)
    if not classes:
        centre = _centre(parts, points, rows_per_client, rng)
    else:
        labels, counts = np.unique(samples[:, -1], return_counts=True)
        centre = np.concatenate(
            [
                np.column_stack([_centre(own, share, rows_per_client, rng), np.full(share, label)])
                for label, share in zip(labels, _shares(counts, points), strict=True)
                for own in [[part[part[:, -1] == label, :-1] for part in parts]]
            ]
        )
    # Where averages cancel, what is left is rounding, and no column for a model to follow; where they do not,
    # it may carry them out of the support.
    size = np.sqrt(np.mean(samples**2, axis=0))
    cleared = np.where(np.abs(centre) > _ROUNDING * size, centre, 0.0)
    inside = np.stack([federation.support.project(row) for row in cleared])
    return replace(
        federation, samples=inside, sizes=(len(centre),), names=("barycentre",), people=None, ids=None
    )


def _centre(parts: list[Floats], points: int, most: int, rng: np.random.Generator) -> Floats:
    """(points, k) of the clouds that have rows, weighted by them."""
    import ot  # as in `transport`: a second to load

    clouds = [part for part in parts if len(part)]
    sizes = np.array([len(cloud) for cloud in clouds], float)
    chosen = [cloud if len(cloud) <= most else rng.choice(cloud, most, replace=False) for cloud in clouds]
    together = np.concatenate(clouds)
    # A start among the rows themselves; with as many points as rows it is all of them.
    start = together[rng.choice(len(together), points, replace=points > len(together))]
    masses = [np.full(len(cloud), 1 / len(cloud)) for cloud in chosen]
    found: Floats = ot.lp.free_support_barycenter(
        chosen, masses, start, weights=sizes / sizes.sum(), numItermax=_ITERATIONS
    )
    return found


def _shares(counts: NDArray[np.int64], points: int) -> list[int]:
    """Points of each class, by largest remainders, at least one each."""
    if points < len(counts):
        raise BidroError(f"{len(counts)} classes need at least as many points; got {points}.")
    exact = counts / counts.sum() * (points - len(counts))
    shares = np.floor(exact).astype(int)
    order = np.argsort(shares - exact)
    shares[order[: points - len(counts) - shares.sum()]] += 1
    return (shares + 1).tolist()
