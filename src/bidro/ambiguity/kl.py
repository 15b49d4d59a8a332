"""Kullback-Leibler balls: E_q[log q] <= radius, with the dual (Hu and Hong, 2013)

R(x) = min over t >= 0 of t radius + t log mean_k exp(l(x, xi_k) / t),      q_k = exp(l_k / t) / their mean.
"""

from __future__ import annotations

from typing import Any

from bidro.ambiguity.reweighting import LEAST_LEVEL, Losses, Reweighting, Weights, Worst, last_true
from bidro.core.pytrees import namespace, pytree
from bidro.core.sets.base import AnyArray

# Temperatures are searched from this share of the spread of the losses.
_COLDEST = 1e-12


@pytree
class KLBall(Reweighting):
    """A client's rows weighted anew, with a divergence E_q[log q] of at most `radius` from what they are.

    Args:
        radius: one number, or one a client (n,), at least 0; log N_i allows any weights.

    Raises:
        BidroError: from `Problem`, for a negative radius, or not one a client.

    Examples:
        >>> import numpy as np
        >>> from bidro.ambiguity import KLBall
        >>> KLBall(0.1).row_weights(np.array([0.0, 0.0, 1.0])).round(3).tolist()
        [0.673, 0.673, 1.655]
    """

    radius: AnyArray

    def worst(self, losses: Losses, width: AnyArray) -> Worst:
        xp = namespace(losses.top)
        radius, top = xp.asarray(self.radius), losses.top

        def parts(t: Any) -> tuple[Any, Any]:
            """(mean exp((l - top) / t), the mean of (l - top) / t under q)"""

            def of(args: tuple[Any, Any], given: Any) -> tuple[Any, Any]:
                s = (given - args[1]) / args[0]
                return xp.exp(s), xp.exp(s) * s

            size, weighted = losses.means(of, (t, top))
            return size, weighted / size

        def far(log_t: Any) -> Any:
            size, mean = parts(xp.exp(log_t))
            return mean - xp.log(size) > radius - LEAST_LEVEL / 2

        # The divergence at t is at most (spread / t)^2 / 8 (Hoeffding).
        coldest = xp.log(_COLDEST * losses.spread)
        hottest = xp.log(losses.spread) - xp.log(8 * xp.maximum(radius, LEAST_LEVEL)) / 2 + 1
        t = xp.exp(last_true(far, coldest, hottest)[1])
        t = xp.where(far(coldest), t, xp.exp(coldest))
        held = xp.maximum(t, losses.wide(width))

        def dual(t: Any) -> Any:
            return top + t * (radius + xp.log(parts(t)[0]))

        # At the coldest t the dual may lie above the largest loss, which no weights exceed.

        nothing = radius < LEAST_LEVEL
        theta = (xp.where(nothing, xp.inf, held), top, parts(held)[0], held > t)
        theta = (*theta[:2], xp.where(nothing, 1.0, theta[2]), theta[3])
        value = xp.where(radius == 0, losses.mean, xp.minimum(dual(t), top))
        return Worst(value, xp.where(radius == 0, losses.mean, dual(held)), theta)

    def weights(self, losses: AnyArray, theta: Any) -> Weights:
        xp = namespace(losses)
        t, top, size, held = theta
        s = (losses - top) / t
        q = xp.exp(s) / size
        return Weights(q[None], (q / t)[None], xp.where(held, 0.0, s)[None])
