"""Total variation balls: mean |q - 1| / 2 <= radius. The worst weights take that much mass from the smallest
losses and give it to the largest (Jiang and Guan, 2018):

R(x) = radius max_k l(x, xi_k) + (1 - radius) CVaR of level `radius`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bidro.ambiguity.reweighting import Losses, Reweighting, Tail, Weights, Worst
from bidro.core.pytrees import namespace, pytree
from bidro.core.sets.base import AnyArray


@pytree
class TotalVariationBall(Reweighting):
    """A client's rows weighted anew, with a total variation distance of at most `radius`.

    Args:
        radius: one number, or one a client (n,), from 0 to below 1.

    Raises:
        BidroError: from `Problem`, for a radius that is negative or 1 and more, or not one a client.

    Examples:
        >>> import numpy as np
        >>> from bidro.ambiguity import TotalVariationBall
        >>> TotalVariationBall(0.25).row_weights(np.array([0.0, 3.0, 1.0, 2.0])).round(3).tolist()
        [0.0, 2.0, 1.0, 1.0]
    """

    radius: AnyArray

    largest: ClassVar[float] = 1.0

    def worst(self, losses: Losses, width: AnyArray) -> Worst:
        xp = namespace(losses.top)
        radius = xp.asarray(self.radius)
        largest = Tail.of(losses, xp.asarray(losses.size, float), width)
        kept = Tail.of(losses, 1 / (1 - radius), width)
        value = radius * losses.top + (1 - radius) * kept.value
        smoothed = radius * largest.smoothed + (1 - radius) * kept.smoothed
        return Worst(value, smoothed, (radius, largest.theta, kept.theta))

    def weights(self, losses: AnyArray, theta: Any) -> Weights:
        xp = namespace(losses)
        radius, *parts = theta
        (top, of_top), (kept, of_kept) = (Tail.weights(losses, part) for part in parts)
        q = xp.stack([radius * top, (1 - radius) * kept])
        response = xp.stack([radius * of_top, (1 - radius) * of_kept])
        return Weights(q, response, xp.zeros_like(q))
