"""Conditional value at risk: the mean of the largest losses (Rockafellar and Uryasev, 2000)

R(x) = min over eta of eta + mean_k max(l(x, xi_k) - eta, 0) / (1 - level),      0 <= q <= 1 / (1 - level).
"""

from __future__ import annotations

from typing import Any, ClassVar

from bidro.ambiguity.reweighting import Losses, Reweighting, Tail, Weights, Worst
from bidro.core.pytrees import namespace, pytree
from bidro.core.sets.base import AnyArray


@pytree
class CVaR(Reweighting):
    """The mean loss over the worst share 1 - level of a client's rows.

    Args:
        level: one number, or one a client (n,), from 0, the mean over all rows, to below 1.

    Raises:
        BidroError: from `Problem`, for a level that is negative or 1 and more, or not one a client.

    Examples:
        >>> import numpy as np
        >>> from bidro.ambiguity import CVaR
        >>> CVaR(0.5).row_weights(np.array([0.0, 3.0, 1.0, 2.0])).round(3).tolist()
        [0.0, 2.0, 0.0, 2.0]
    """

    level: AnyArray

    largest: ClassVar[float] = 1.0

    def worst(self, losses: Losses, width: AnyArray) -> Worst:
        xp = namespace(losses.top)
        return Worst(*Tail.of(losses, 1 / (1 - xp.asarray(self.level)), width))

    def weights(self, losses: AnyArray, theta: Any) -> Weights:
        xp = namespace(losses)
        q, response = Tail.weights(losses, theta)
        return Weights(q[None], response[None], xp.zeros_like(q)[None])
