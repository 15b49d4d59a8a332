"""Chi-squared balls: mean (q - 1)^2 <= radius, with the dual (Ben-Tal et al., 2013; Duchi and Namkoong, 2021)

R(x) = min over eta of eta + sqrt(1 + radius) sqrt(mean_k max(l(x, xi_k) - eta, 0)^2),
q_k = max(l_k - eta, 0) / their mean.
"""

from __future__ import annotations

from typing import Any

from bidro.ambiguity.reweighting import LEAST_LEVEL, Losses, Reweighting, Weights, Worst, last_true
from bidro.core.pytrees import namespace, pytree
from bidro.core.sets.base import AnyArray


@pytree
class ChiSquaredBall(Reweighting):
    """A client's rows weighted anew, with mean (q - 1)^2 of at most `radius`.

    Args:
        radius: one number, or one a client (n,), at least 0; N_i - 1 allows any weights.

    Raises:
        BidroError: from `Problem`, for a negative radius, or not one a client.

    Examples:
        >>> import numpy as np
        >>> from bidro.ambiguity import ChiSquaredBall
        >>> ChiSquaredBall(0.5).row_weights(np.array([0.0, 0.0, 1.0])).round(3).tolist()
        [0.5, 0.5, 2.0]
    """

    radius: AnyArray

    def worst(self, losses: Losses, width: AnyArray) -> Worst:
        xp = namespace(losses.top)
        radius = xp.asarray(self.radius)

        def moments(eta: Any) -> tuple[Any, Any]:
            def of(eta: Any, given: Any) -> tuple[Any, Any]:
                g = xp.maximum(given - eta, 0.0)
                return g, g**2

            found: tuple[Any, Any] = losses.means(of, eta)
            return found

        def inside(eta: Any) -> Any:
            g, squares = moments(eta)
            return (squares <= (1 + radius - LEAST_LEVEL / 2) * g**2) & (g > 0)

        # The variance is at most a quarter of the spread's square.
        far = 1 + 0.5 / xp.sqrt(xp.maximum(radius, LEAST_LEVEL))
        eta = last_true(inside, losses.mean - far * losses.spread, losses.top)[0]
        wide = losses.wide(width)
        # Weights of no more than (l - eta) / width.
        edge = last_true(lambda v: moments(v)[0] >= wide, losses.mean - 2 * wide, losses.top)[0]
        held = xp.minimum(eta, edge)

        def dual(eta: Any) -> Any:
            # With lambda = mean g / 2: E_q[l] + lambda (radius - mean (q - 1)^2), q = g / mean g.
            g, squares = moments(eta)
            return eta + squares / g + g / 2 * (radius + 1 - squares / g**2)

        nothing = radius < LEAST_LEVEL
        size = xp.where(nothing, xp.inf, moments(held)[0])
        theta = (held, size, held < eta)
        value = xp.where(radius == 0, losses.mean, dual(eta))
        return Worst(value, xp.where(radius == 0, losses.mean, dual(held)), theta)

    def weights(self, losses: AnyArray, theta: Any) -> Weights:
        xp = namespace(losses)
        eta, size, held = theta
        plain = xp.isinf(size)
        q = xp.where(plain, 1.0, xp.maximum(losses - eta, 0.0) / size)
        response = xp.where((losses > eta) & ~plain, 1 / size, 0.0)
        return Weights(q[None], response[None], xp.where(held, 0.0, q)[None])
