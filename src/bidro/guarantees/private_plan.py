"""How many rows a site needs so that noise for a privacy budget costs at most a wanted share of the loss.

For squared loss and one release of the second moments, with noise of standard deviation sigma C^2 on the
diagonal and sigma C^2 / sqrt(2) off it, summed over n sites of N rows. To first order the noise moves the
least-squares model b by (n N W)^-1 E (b, -1), where W are the mean moments of the clipped rows and S those
of the rows as they are, and the mean loss rises by

    sigma^2 C^4 ((1 + ||b||^2) tr(A) + b' A b) / (2 n N^2),     A = W^-1 S W^-1.

Where clipping scales all moments alike, by w^2 (the mean squared weight of rows), and without the last term,

    N >= (sigma C^2 / w^2) sqrt((1 + ||b||^2) tr(S^-1) / (2 share n MSE)).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError


class PrivatePlan(NamedTuple):
    """What noise costs at any number of rows."""

    cost: float  # the mean loss rises by cost / N^2 with N rows a site
    loss: float  # mean squared error of least squares without noise, in the same units
    sites: int

    def excess(self, rows: float) -> float:
        """By which share the mean loss rises, to first order, with so many rows a site."""
        return self.cost / rows**2 / self.loss

    def rows(self, share: float) -> int:
        """The rows a site from which it rises by no more than this share; right to a factor of two."""
        if not 0 < share < math.inf:
            raise BidroError(f"The wanted excess must be a positive share of the loss; got {share}.")
        return math.ceil(math.sqrt(self.cost / (share * self.loss)))


def private_plan(
    z: Floats, sites: int, rho: Fraction, clip: float | None = None, rows_per_person: int = 1
) -> PrivatePlan:
    """From rows z = (features, 1, target) (N, m) in public units that stand for those of the sites.

    rho : what the release of moments costs; see `bidro.privacy.accounting.rho_of`.
    clip : the norm C to which rows are scaled; C^2 = m / 2 unless it is given.

    Raises BidroError for rows that least squares fits exactly or that do not determine it.
    """
    norm = math.sqrt(z.shape[1] / 2) if clip is None else clip
    weights = np.minimum(1.0, norm / np.maximum(np.linalg.norm(z, axis=1), 1e-300))
    clipped = z * weights[:, None]
    whole, used = z.T @ z / len(z), clipped.T @ clipped / len(z)
    second, inner = whole[:-1, :-1], used[:-1, :-1]
    if np.linalg.matrix_rank(inner) < len(inner):
        raise BidroError(
            "The rows do not determine a model: some features are constant or follow from others; leave "
            "these out, or give more rows."
        )
    model = np.linalg.solve(second, whole[:-1, -1])
    loss = float(whole[-1, -1] - model @ whole[:-1, -1])
    if loss <= 1e-12 * whole[-1, -1]:
        raise BidroError("The features determine the target exactly: no noise is a small share of no loss.")
    spread = np.linalg.solve(inner, np.linalg.solve(inner, second).T)
    variance = rows_per_person**2 * norm**4 / (2 * float(rho))
    size = (1 + float(model @ model)) * float(np.trace(spread)) + float(model @ spread @ model)
    return PrivatePlan(variance * size / (2 * sites), loss, sites)
