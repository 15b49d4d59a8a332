"""Newton's steps with noisy gradients, from a model that noisy second moments gave.

The mean loss has curvature about H = h (M + ridge), with h = 2 for squared loss and 1/4, which is at least
it, for logistic loss (Boehning and Lindsay, 1988). A model x from moments is off the best one, x*, by H^-1 e
with e of variance about q in every direction; a step with a gradient whose noise has variance r ends at
x* + H^-1 (its noise). Both errors are known up to their sizes, so that they are weighed by these:

    x <- x - q / (q + r) H^-1 g,      1 / q <- 1 / q + 1 / r,

which is Kalman's filter. A full step each time would end with the noise of the last gradient alone.

Rows' gradients are clipped at a norm that is large where there is little noise, and small where there is
much: what clipping leaves of them is told by the sum of the factors that rows were scaled by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bidro.algorithms.noisy_moments import Pooled, positive
from bidro.arrays import Floats
from bidro.privacy.row_losses import PrivateLoss

_BEND: dict[PrivateLoss, float] = {"squared": 2.0, "logistic": 0.25}
# Typical slopes of the loss in a prediction, in root mean squares of the residual, or as they are.
_SLOPE: dict[PrivateLoss, float] = {"squared": 2.0, "logistic": 0.4}
# Clips are so many times the norm of a typical gradient; beyond the usual only where noise hardly matters,
# and never so large that rounding to parts of them does.
_LEAST_CLIP, _USUAL_CLIP, _WITHOUT_NOISE, _MOST_CLIP = 0.7, 3.0, 0.1, 50.0
# The share of the loss that noise in gradients may add before clips are lowered.
_NOISE_SHARE = 0.003
# A step is never longer than Newton's, and no shorter than by this factor for what clipping leaves.
_MOST_LEFT = 4.0
# Losses are told as at most so many times the mean.
_LEVEL = 8.0
# Fits that are simulated to know what noise costs.
_SIMULATED = 20
# A mean of logistic losses lies between these for any model worth having: a constant one reaches ln 2.
_LOGISTIC_LOSSES = (0.05, math.log(2))


class Direction(NamedTuple):
    """What clients' sums say of the mean loss at a model, with noise."""

    gradient: Floats  # (d,)
    left: float  # mean factor by which gradients were scaled down, over rows as moments count them
    left_error: float  # standard deviation of the noise in it
    loss: float  # mean
    variance: float  # of the noise in every direction of the gradient


@dataclass(frozen=True, eq=False)
class NoisySteps:
    """A model on the way; every number is a mean over rows as moments count them."""

    loss: PrivateLoss
    pooled: Pooled
    x: Floats  # (d,)
    q: float  # variance of the error H (x - x*), in every direction
    mean_loss: float  # about what it is at x

    @classmethod
    def begin(cls, loss: PrivateLoss, pooled: Pooled, largest: float, x: Floats | None = None) -> NoisySteps:
        """At the solution of least squares, or at another x that the same moments gave. Of logistic loss the
        first step from 0, which moments tell, is twice that solution."""
        begun = (pooled.least_squares() if x is None else x) * (1.0 if loss == "squared" else 2.0)
        x = np.clip(begun, -largest, largest)
        h, d = _BEND[loss], len(x)
        # Of the equation (M + ridge) x = b: its noise and its ridge, in the scale of gradients.
        scale = h if loss == "squared" else 2 * h
        size = float(x @ x) if loss == "squared" else float(x @ x) / 4
        q = scale**2 * (pooled.noise**2 / 2 * (1 + size) + pooled.ridge**2 * size / d)
        if loss == "logistic":
            # And it may be as wrong as it is long: least squares are another loss.
            q += float(np.sum((h * pooled.curvature @ x) ** 2)) / d
        at = pooled.mean_square(x) if loss == "squared" else _LOGISTIC_LOSSES[1]
        return cls(loss, pooled, x, q, at)

    @property
    def bend(self) -> Floats:
        """(d, d) H."""
        return np.asarray(_BEND[self.loss] * self.pooled.curvature)

    def clip(self, noise: float, rounds: int) -> float:
        """Of rows' gradients, where the mean gradient's noise is `noise` times the clip, in each of so many
        rounds."""
        d = len(self.x)
        room = math.sqrt(_NOISE_SHARE * rounds) / (noise * d) if noise > 0 else math.inf
        wanted = max(min(max(room, _LEAST_CLIP), _USUAL_CLIP), min(_WITHOUT_NOISE * room, _MOST_CLIP))
        typical = math.sqrt(self.mean_loss) if self.loss == "squared" else 1.0
        return wanted * _SLOPE[self.loss] * typical * math.sqrt(d)

    @property
    def level(self) -> float:
        """What losses count as at the most: a power of two of at least eight times their mean."""
        return float(2.0 ** math.ceil(math.log2(_LEVEL * self.mean_loss)))

    def step(self, told: Direction, largest: float) -> NoisySteps:
        """With a gradient at x; no number of the model becomes larger than `largest`."""
        left = min(max(told.left - told.left_error, 1.0), _MOST_LEFT) if self.loss == "squared" else 1.0
        r = told.variance / left**2
        gain = self.q / (self.q + r) if r > 0 else 1.0
        x = np.clip(self.x - gain * np.linalg.solve(left * self.bend, told.gradient), -largest, largest)
        q = self.q * r / (self.q + r) if r > 0 else 0.0
        if self.loss == "squared":
            mean_loss = self.pooled.mean_square(x)
        else:
            least, most = _LOGISTIC_LOSSES
            mean_loss = min(max(told.loss / max(told.left, 0.1), least), most)
            # The curvature is less than H, so that what is left may be half as long as the step was.
            step = gain**2 * max(float(told.gradient @ told.gradient) / len(x) - r, 0.0)
            q += step / 4
        return NoisySteps(self.loss, self.pooled, x, q, mean_loss)


def expected_excess(found: NoisySteps, variance: float, rounds: int, largest: float) -> float:
    """The share by which noise is expected to raise the mean loss, found by adding as much noise again: with
    the moments and the model that were found taken for the truth, the mean over simulated fits whose
    gradients have noise of this variance."""
    loss, pooled, x = found.loss, found.pooled, found.x
    d, rng = len(x), np.random.default_rng(0)
    bend, second = _BEND[loss], pooled.moments[:d, :d]
    truth = pooled.moments.copy()
    # Moments of which x is the solution, with the residual that was found.
    truth[:d, d] = truth[d, :d] = second @ x / (1.0 if loss == "squared" else 2.0)
    rest = found.mean_loss if loss == "squared" else 1.0
    truth[d, d] = max(float(x @ second @ x), 0.0) + rest * float(second[-1, -1])
    total = 0.0
    for _ in range(_SIMULATED):
        drawn = rng.normal(size=(d + 1, d + 1)) * pooled.noise / 2
        noisy = Pooled(positive(truth + drawn + drawn.T), pooled.noise)
        steps = NoisySteps.begin(loss, noisy, largest)
        for _ in range(rounds):
            gradient = bend * second @ (steps.x - x) + rng.normal(size=d) * math.sqrt(variance)
            steps = steps.step(Direction(gradient, 1.0, 0.0, found.mean_loss, variance), largest)
        away = steps.x - x
        total += 0.5 * bend * float(away @ second @ away)
    return total / _SIMULATED / found.mean_loss
