"""Losses of counts and of costs: halves of unit deviances of a mean exp(<w, theta> + b).

Tweedie's family (Jorgensen 1987) with variance mean^p: Poisson at 1, Gamma at 2, and between them costs of
which some are 0. With score s, mu = exp(s) and p the power, the loss is

    p = 1:       mu - y s + (y log y - y)
    between:     mu^(2 - p) / (2 - p) + y mu^(1 - p) / (p - 1) - y^(2 - p) / ((p - 1) (2 - p))
    p = 2:       y / mu + s - 1 - log y

which is convex in the score and 0 at mu = y. It grows exponentially as features move, so that on an
unbounded support the worst case of a ball is infinite for every model but the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace
from bidro.data.splines import Basis
from bidro.losses.linear import LinearScores

if TYPE_CHECKING:
    from jax import Array

Numbers = NDArray[np.float64]

# Beyond these scores means are no machine numbers.
_LARGEST_SCORE = 300.0


@dataclass(frozen=True)
class Tweedie(LinearScores):
    """Half the unit deviance of Tweedie's family, of a mean exp(<w, theta> + b).

    Args:
        power: of the mean that the variance is proportional to, from 1 to 2.
        intercept: whether the model has b, its last entry, besides w.
        basis: of curves; None for straight lines.
        smoothing: of curves in training.
        pseudo_rows: of every client in training.
        size: of a typical target, above 0, in the units of which smoothing and pseudo-rows count.

    Raises:
        BidroError: for a power outside [1, 2].

    Examples:
        >>> import numpy as np
        >>> from bidro.losses import Tweedie
        >>> loss = Tweedie(power=1.5)
        >>> float(loss.value(np.array([0.0]), np.array([3.0, 1.0])))  # mean 1, target 1
        0.0
    """

    power: float = 1.5
    intercept: bool = False
    basis: Basis | None = field(default=None, kw_only=True)
    smoothing: float = field(default=0.0, kw_only=True)
    pseudo_rows: float = field(default=0.0, kw_only=True)
    size: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.power <= 2:
            raise BidroError(f"Tweedie loss needs a power from 1 to 2; got {self.power}.")

    @property
    def infimum_at_infinity(self) -> bool:
        return True

    def require_targets(self, targets: Numbers, named: str) -> None:
        """Raise BidroError for targets (N,) that the loss is not defined for."""
        if np.any(targets < 0):
            raise BidroError(
                f"'{named}' has values below 0, such as {targets.min():g}, and {type(self).__name__} loss is "
                "for counts and costs; use loss squared, or fix the rows."
            )
        if self.power == 2 and np.any(targets == 0):
            raise BidroError(
                f"'{named}' has values of 0, which Gamma loss cannot have: its logarithm counts; use loss "
                "tweedie, or leave these rows out."
            )

    def middle(self, targets: Numbers) -> float:
        """The score of the targets' mean."""
        mean = float(np.mean(targets))
        return float(np.log(mean)) if mean > 0 else -_LARGEST_SCORE / 10

    def predicted(self, scores: Any) -> Any:
        """The mean at a score."""
        xp = namespace(scores)
        return xp.exp(xp.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE))

    def value(self, x: Array, xi: Array) -> Array:
        return self.values(x, xi[None])[0]

    def values(self, x: Array, rows: Array) -> Array:
        w, b = self.split(x)
        return self._derivatives(rows[:, -1], self.design(rows)[:, :-1] @ w + b)[0]

    def errors(self, x: Array, rows: Array) -> Array:
        """(N,) how far each target lies from the mean that is predicted."""
        w, b = self.split(x)
        mean = self.predicted(self.design(rows)[:, :-1] @ w + b)
        return namespace(mean).abs(rows[:, -1] - mean)

    def of_scores(self, target: Numbers, scores: Numbers, width: Any = 0.0) -> tuple[Numbers, Numbers]:
        value, slope, _ = self._derivatives(target, scores[0])
        return np.asarray(value), np.asarray(slope)[None]

    def score_hessian(self, target: Numbers, scores: Numbers, width: Any = 0.0) -> Numbers:
        return np.asarray(self._derivatives(target, scores[0])[2])[None, None]

    def score_curvature(self, width: Any) -> Any:
        """That of a typical row: there is no largest."""
        return self.size ** (2 - self.power) + 0 * np.asarray(width)

    @property
    def bounded_curvature(self) -> bool:
        return False

    def _derivatives(self, y: Any, scores: Any) -> tuple[Any, Any, Any]:
        """(loss, its slope, its curvature) in the score."""
        xp, p = namespace(y, scores), self.power
        s = xp.clip(scores, -_LARGEST_SCORE, _LARGEST_SCORE)
        known = xp.where(y > 0, y, 1.0)
        if p == 1:
            mu = xp.exp(s)
            # Of a close fit what cancels is summed as one: y (r - 1 - log r), r = mu / y.
            apart = s - xp.log(known)
            value = xp.where(y > 0, y * (xp.expm1(apart) - apart), mu)
            return value, mu - y, mu
        if p == 2:
            ratio = y * xp.exp(-s)
            apart = xp.log(known) - s
            return xp.expm1(apart) - apart, 1 - ratio, ratio
        rising, falling = xp.exp((2 - p) * s), y * xp.exp((1 - p) * s)
        least = y ** (2 - p) / ((p - 1) * (2 - p))
        value = rising / (2 - p) + falling / (p - 1) - least
        return xp.maximum(value, 0.0), rising - falling, (2 - p) * rising + (p - 1) * falling


@dataclass(frozen=True)
class Poisson(Tweedie):
    """Half the Poisson deviance of a count with mean exp(<w, theta> + b).

    Parameters are those of `Tweedie`, whose power is 1.

    Examples:
        >>> import numpy as np
        >>> from bidro.losses import Poisson
        >>> round(float(Poisson().value(np.array([1.0]), np.array([0.0, 2.0]))), 4)  # mean 1, target 2
        0.3863
    """

    power: float = field(default=1.0, init=False)


@dataclass(frozen=True)
class Gamma(Tweedie):
    """Half the Gamma deviance of a cost above 0 with mean exp(<w, theta> + b).

    Parameters are those of `Tweedie`, whose power is 2.

    Examples:
        >>> import numpy as np
        >>> from bidro.losses import Gamma
        >>> round(float(Gamma().value(np.array([1.0]), np.array([0.0, 2.0]))), 4)  # mean 1, target 2
        0.3069
    """

    power: float = field(default=2.0, init=False)
