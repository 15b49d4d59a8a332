"""Mixtures whose divergence from given weights is bounded.

With weights c of the clients and a divergence D, {alpha in the simplex : D(alpha, c) <= radius}. Its support
function is an upper bound at every value of its multipliers (Ben-Tal et al., 2013), so that what a statement
rests on does not depend on how well a search has ended:

    chi-squared   max <g, alpha> = min over eta of eta + sqrt((1 + radius) sum_i c_i max(g_i - eta, 0)^2),
    KL            max <g, alpha> = min over t > 0 of t radius + t log sum_i c_i exp(g_i / t).
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from bidro.core.pytrees import namespace, pytree, repeat_while
from bidro.core.sets.base import AnyArray, V
from bidro.core.sets.vectors import _bisect, _double_until
from bidro.core.sets.weights import _ROOT_OF_2, MixtureSet, _finite_or_nan, _on_simplex, around

# Newton's steps to the root of exp(u) + u = y, from above, and to the level at which weights sum to 1.
_NEWTON_STEPS, _MOST_LEVELS = 8, 60
# exp of less than this is 0 for what is done with it.
_NOTHING = -700.0
_EPS = float(np.finfo(float).eps)


class DivergenceBall(MixtureSet):
    """What both balls share: their centre and radius, and mixtures moved back onto them."""

    center: AnyArray
    radius: AnyArray

    def __post_init__(self) -> None:
        center, radius = around(self.center, self.radius)
        object.__setattr__(self, "center", center / center.sum())
        object.__setattr__(self, "radius", radius)

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    @abstractmethod
    def divergence(self, alpha: V) -> V:
        """D(alpha, center) of weights (n,) that sum to 1."""

    @abstractmethod
    def _penalised(self, v: V, mu: Any) -> V:
        """argmin over the simplex of ||alpha - v||^2 / 2 + mu D(alpha, center), mu > 0."""

    @abstractmethod
    def _dual(self, c: V, top: V, spread: V) -> tuple[V, V]:
        """(an upper bound of max <c, alpha>, weights that come to it up to rounding and scale), of values c
        (n,) whose largest is `top` and which lie within `spread`, where the radius binds."""

    @abstractmethod
    def _slope(self, alpha: V) -> V:
        """(n,) of the divergence in weights above 0, where the centre has some."""

    @abstractmethod
    def _l1_radius(self) -> AnyArray:
        """A bound of ||alpha - center||_1 over the set."""

    def linear_maximum(self, c: V) -> tuple[V, V]:
        xp = namespace(c, self.center)
        center, counts = self.center, self.center > 0
        top = xp.max(xp.where(counts, c, -xp.inf))
        low = xp.min(xp.where(counts, c, xp.inf))
        value, alpha = self._dual(c, top, xp.where(top > low, top - low, 1.0))
        best = (c == top) & counts
        alone = xp.where(best, center, 0.0) / xp.sum(xp.where(best, center, 0.0))
        whole = self.divergence(alone) <= self.radius
        value = xp.where(whole, top, xp.minimum(value, top))
        still = (self.radius == 0) | (top == low)
        mean = xp.sum(center * xp.where(counts, c, 0.0))
        alpha = xp.where(whole, alone, self._held(alpha))
        return xp.where(still, mean, value), xp.where(still, center, alpha)

    def contains(self, v: V, tolerance: float = 1e-9) -> V:
        xp = namespace(v, self.center)
        counts = self.center > 0
        weights = xp.all(v >= -tolerance) & (xp.abs(xp.sum(v) - 1) <= tolerance)
        weights = weights & xp.all(counts | (v <= tolerance))
        # What weights may be off by, up to what they have in common, changes the divergence by so much.
        alpha = xp.where(counts, xp.maximum(v, 0.0), 0.0)
        slope = xp.where(counts, self._slope(xp.maximum(v, tolerance)), 0.0)
        slope = xp.where(counts, slope - xp.sum(slope) / xp.sum(counts), 0.0)
        near = self.divergence(alpha) <= self.radius * (1 + 64 * _EPS) + tolerance * xp.sum(xp.abs(slope))
        return weights & xp.where(self.radius > 0, near, xp.all(xp.abs(v - self.center) <= tolerance))

    def _inside(self, alpha: V) -> Any:
        return self.divergence(alpha) <= self.radius * (1 + 64 * _EPS)

    def project(self, v: V) -> V:
        xp = namespace(v, self.center)
        free = _on_simplex(v - xp.max(v))
        settled = self._inside(free) | (self.radius == 0)

        def outside(mu: Any) -> Any:
            return ~self._inside(self._penalised(v, mu))

        # Where nothing is cut there is nothing to search for.
        most = _double_until(lambda mu: settled | ~outside(mu), xp.ones(()))
        mu = _bisect(outside, xp.zeros(()), xp.where(settled, 0.0, most))
        found = xp.where(settled, free, self._held(self._penalised(v, xp.where(settled, 1.0, mu))))
        return _finite_or_nan(v, xp.where(self.radius > 0, found, self.center + 0 * v))

    def _held(self, alpha: V) -> V:
        """Weights in the set, from ones that lie in it up to rounding: D is convex, and 0 at the centre."""
        xp = namespace(alpha, self.center)
        alpha = alpha / xp.sum(alpha)
        size = self.divergence(alpha)
        share = xp.minimum(1.0, self.radius / xp.where(size > 0, size, 1.0))
        return self.center + share * (alpha - self.center)

    def diameter(self) -> AnyArray:
        """An upper bound: ||a - b|| <= ||a - b||_1 / sqrt(2) for vectors of equal sum."""
        return namespace(self.radius).minimum(_ROOT_OF_2, self._l1_radius() * _ROOT_OF_2)

    def l1_diameter(self) -> float:
        return min(super().l1_diameter(), 2 * float(self._l1_radius()))

    @property
    def in_words(self) -> str:
        return "mixtures within the declared divergence of given weights, if the true one is among them"


@pytree
class ChiSquaredSimplexBall(DivergenceBall):
    """{alpha in the simplex : sum_i (alpha_i - c_i)^2 / c_i <= radius}, c in the simplex.

    Args:
        center: weights c (n,) that sum to 1; a client with weight 0 has none in any mixture.
        radius: at least 0; 1 / min c - 1 is every mixture.

    Raises:
        BidroError: for a centre outside the simplex, or a negative radius.

    Examples:
        >>> import numpy as np
        >>> from bidro import ChiSquaredSimplexBall
        >>> ChiSquaredSimplexBall([0.5, 0.5], 0.16).linear_maximum(np.array([1.0, 0.0]))[1].round(2).tolist()
        [0.7, 0.3]
    """

    center: AnyArray
    radius: AnyArray

    def divergence(self, alpha: V) -> V:
        xp = namespace(alpha, self.center)
        c = self.center
        none = xp.where(alpha > 0, xp.inf, 0.0)
        return xp.sum(xp.where(c > 0, (alpha - c) ** 2 / xp.where(c > 0, c, 1.0), none))

    def _penalised(self, v: V, mu: Any) -> V:
        # Stationarity gives w max(v - level, 0), w = c / (c + 2 mu), after a shift of the level: in falling
        # order of v, those above it are the first.
        xp = namespace(v, self.center)
        w, falling = self.center / (self.center + 2 * mu), xp.argsort(-v)
        near = v - xp.max(v)
        sums, moments = xp.cumsum(w[falling]), xp.cumsum((w * near)[falling])
        levels = xp.where(sums > 0, (moments - 1) / xp.where(sums > 0, sums, 1.0), xp.inf)
        level = levels[xp.max(xp.where(near[falling] > levels, xp.arange(self.dimension), 0))]
        return w * xp.maximum(near - level, 0.0)

    def _dual(self, c: V, top: V, spread: V) -> tuple[V, V]:
        xp = namespace(c, self.center)
        center, counts = self.center, self.center > 0

        def worst(eta: Any) -> V:
            g = xp.where(counts, xp.maximum(c - eta, 0.0), 0.0)
            size = xp.sum(center * g)
            return xp.where(size > 0, center * g / xp.where(size > 0, size, 1.0), center)

        def inside(eta: Any) -> Any:
            return (self.divergence(worst(eta)) <= self.radius) & (eta < top)

        # The divergence is at most the variance over the mean's square, and the variance a quarter of that.
        first = xp.sum(center * xp.where(counts, c, 0.0)) - spread * (
            1 + 0.5 / xp.sqrt(xp.maximum(self.radius, 1e-30))
        )
        eta = _bisect(inside, first, top)
        squares = xp.sum(center * xp.where(counts, xp.maximum(c - eta, 0.0), 0.0) ** 2)
        return eta + xp.sqrt((1 + self.radius) * squares), worst(eta)

    def _slope(self, alpha: V) -> V:
        return 2 * alpha / namespace(alpha, self.center).where(self.center > 0, self.center, 1.0) - 2

    def _l1_radius(self) -> AnyArray:
        # Cauchy-Schwarz: (sum |a - c|)^2 <= sum (a - c)^2 / c.
        return namespace(self.radius).sqrt(self.radius)


@pytree
class KLSimplexBall(DivergenceBall):
    """{alpha in the simplex : sum_i alpha_i log(alpha_i / c_i) <= radius}, c in the simplex.

    Args:
        center: weights c (n,) that sum to 1; a client with weight 0 has none in any mixture.
        radius: at least 0; log(1 / min c) is every mixture.

    Raises:
        BidroError: for a centre outside the simplex, or a negative radius.

    Examples:
        >>> import numpy as np
        >>> from bidro import KLSimplexBall
        >>> KLSimplexBall([0.5, 0.5], 0.1).linear_maximum(np.array([1.0, 0.0]))[1].round(2).tolist()
        [0.72, 0.28]
    """

    center: AnyArray
    radius: AnyArray

    def divergence(self, alpha: V) -> V:
        xp = namespace(alpha, self.center)
        some = (alpha > 0) & (self.center > 0)
        ratio = xp.where(some, alpha, 1.0) / xp.where(some, self.center, 1.0)
        # The two parts beside the logarithm sum to 0, and keep terms from cancelling near the centre.
        none = xp.where((alpha > 0) & (self.center == 0), xp.inf, self.center)
        return xp.sum(xp.where(some, alpha * xp.log(ratio) - (alpha - self.center), none))

    def _penalised(self, v: V, mu: Any) -> V:
        # alpha + mu log(alpha / c) = v - level gives alpha = mu omega(y), omega(y) + log omega(y) = y and
        # y = (v - level) / mu + log(c / mu). The sum falls, and is convex, in the level: Newton's steps from
        # where it is above 1 never pass its place.
        xp = namespace(v, self.center)
        counts = self.center > 0
        logs = xp.log(xp.where(counts, self.center, 1.0)) - xp.log(mu)
        near = v - xp.max(xp.where(counts, v, -xp.inf))

        def omega(level: Any) -> V:
            y = xp.maximum((near - level) / mu + logs, _NOTHING)
            u = xp.where(y > 0, xp.log1p(xp.maximum(y, 0.0)), y)
            for _ in range(_NEWTON_STEPS):
                w = xp.exp(u)
                u = u - (w + u - y) / (w + 1)
            return xp.where(counts, xp.exp(u), 0.0)

        def goes_on(carry: Any) -> Any:
            level, before, k = carry
            return (level > before) & (k < _MOST_LEVELS)

        def step(carry: Any) -> Any:
            level, _, k = carry
            w = omega(level)
            return level + (mu * xp.sum(w) - 1) / xp.sum(w / (1 + w)), level, k + 1

        # One weight of 1 alone has alpha + mu log(alpha / c) = 1 - mu log c: at this level it has at least 1.
        first = xp.max(xp.where(counts, near - 1 + mu * xp.log(xp.where(counts, self.center, 1.0)), -xp.inf))
        level, _, _ = repeat_while(goes_on, step, (first, first - 1, xp.zeros((), int)))
        alpha = mu * omega(level)
        return alpha / xp.sum(alpha)

    def _dual(self, c: V, top: V, spread: V) -> tuple[V, V]:
        xp = namespace(c, self.center)
        center, counts = self.center, self.center > 0

        def tilted(log_t: Any) -> V:
            return center * xp.exp((xp.where(counts, c, top) - top) / xp.exp(log_t))

        def outside(log_t: Any) -> Any:
            parts = tilted(log_t)
            return self.divergence(parts / xp.sum(parts)) > self.radius

        # At t the divergence is at most (spread / t)^2 / 8 (Hoeffding).
        hottest = xp.log(spread) - xp.log(8 * xp.maximum(self.radius, 1e-30)) / 2 + 1
        coldest = xp.log(spread) - 30.0
        log_t = _bisect(outside, coldest, xp.maximum(hottest, coldest + 1))
        parts = tilted(log_t)
        value = top + xp.exp(log_t) * (self.radius + xp.log(xp.sum(parts)))
        return value, parts / xp.sum(parts)

    def _slope(self, alpha: V) -> V:
        xp = namespace(alpha, self.center)
        return xp.log(alpha / xp.where(self.center > 0, self.center, 1.0))

    def _l1_radius(self) -> AnyArray:
        # Pinsker.
        return namespace(self.radius).sqrt(2 * self.radius)
