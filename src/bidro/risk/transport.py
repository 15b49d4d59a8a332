"""The transport cost c(zeta, xi) and Wasserstein distances between empirical distributions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError, require_package
from bidro.core.pytrees import namespace, pytree, static
from bidro.core.sets.base import AnyArray, V

# Rows whose distances to all points of a cloud are looked at together.
_THINNED_TOGETHER = 4096


@pytree
class Transport:
    """c(zeta, xi) = ||S (zeta - xi)||^p, with S = diag(scale).

    A large scale makes a coordinate costly to move, an infinite one immovable. With
    `discrete_label`, the last coordinate is a class instead:
    c = ||S (theta - theta')||^p + label_cost^p 1[y != y'], the scale of the label being unused.

    Args:
        scale: (m,) diagonal of S, above 0.
        p: the order, at least 1.
        discrete_label: whether the last coordinate is a class.
        label_cost: of a discrete label; inf where it cannot change.

    Raises:
        BidroError: for a scale or cost that is not above 0, an order below 1, or a label cost of no label.

    Examples:
        >>> import numpy as np
        >>> from bidro import Transport
        >>> float(Transport.features_only(3).cost(np.array([0.0, 0.0, 1.0]), np.array([3.0, 4.0, 1.0])))
        25.0
    """

    scale: AnyArray
    p: float = static(default=2.0)
    discrete_label: bool = static(default=False)
    label_cost: float = static(default=np.inf)

    def __post_init__(self) -> None:
        scale = np.atleast_1d(np.array(self.scale, float))
        if scale.ndim != 1:
            raise BidroError(f"Scales must be a vector, one a coordinate; got shape {scale.shape}.")
        if not 1 <= self.p < np.inf:
            raise BidroError(
                f"The order p of the transport cost must be a number of at least 1; got {self.p}."
            )
        if np.any(np.isnan(scale)) or np.any(scale <= 0):
            raise BidroError(f"Every scale must be positive (inf: immovable); got {scale}.")
        if not self.label_cost > 0:
            raise BidroError(f"The label cost must be positive; got {self.label_cost}.")
        if np.isfinite(self.label_cost) and not self.discrete_label:
            raise BidroError(
                "label_cost is for discrete labels; scale the last coordinate to price a continuous target."
            )
        object.__setattr__(self, "scale", scale)

    @classmethod
    def euclidean(cls, m: int, p: float = 2.0) -> Transport:
        """||zeta - xi||^p on R^m: the paper's cost, in which the target moves like a feature.

        Args:
            m: coordinates of a sample, the target or label among them.
            p: the order.

        Returns:
            The cost.
        """
        return cls(np.ones(m), p)

    @classmethod
    def features_only(cls, m: int, p: float = 2.0) -> Transport:
        """||theta - theta'||^p on the first m - 1 coordinates; a continuous target cannot move.

        Args:
            m: coordinates of a sample, the target or label among them.
            p: the order.

        Returns:
            The cost.
        """
        return cls(np.append(np.ones(m - 1), np.inf), p)

    @classmethod
    def classification(cls, m: int, p: float = 2.0, label_cost: float = np.inf) -> Transport:
        """||theta - theta'||^p + label_cost^p 1[y != y'], for a discrete label in coordinate m.

        Args:
            m: coordinates of a sample, the target or label among them.
            p: the order.
            label_cost: of another label; inf where labels do not change.

        Returns:
            The cost.
        """
        return cls(np.ones(m), p, True, label_cost)

    @property
    def dimension(self) -> int:
        return self.scale.shape[-1]

    @property
    def inverse_scale(self) -> AnyArray:
        """Diagonal of S^-1: zero for coordinates that do not move continuously."""
        xp = namespace(self.scale)
        inverse = xp.where(xp.isinf(self.scale), 0.0, 1.0 / self.scale)
        label = xp.arange(self.dimension) == self.dimension - 1
        return xp.where(label, 0.0, inverse) if self.discrete_label else inverse

    def cost(self, zeta: V, xi: V) -> V:
        """c(zeta, xi).

        Args:
            zeta: a sample (m,).
            xi: where it is moved to (m,).

        Returns:
            The cost; inf where a coordinate differs that cannot move.
        """
        xp = namespace(self.scale, zeta, xi)
        differs = (self.inverse_scale == 0) & (zeta != xi)
        jumps: V = xp.sum(xp.where(differs, self._jump_prices, 0.0))
        return self.movement_cost(zeta, xi) + jumps

    def movement_cost(self, zeta: V, xi: V) -> V:
        """||S (zeta - xi)||^p over the coordinates that move continuously.

        Its gradient at zeta = xi is taken as zero, also for p = 1 where the norm has none.

        Args:
            zeta: a sample (m,).
            xi: where it is moved to (m,).

        Returns:
            The cost of these coordinates alone.
        """
        xp = namespace(self.scale, zeta, xi)
        movable = self.inverse_scale > 0
        step = xp.where(movable, xp.where(movable, self.scale, 1.0) * (zeta - xi), 0.0)
        squared: V = xp.sum(step**2)
        if self.p == 2:
            return squared
        power: V = xp.where(squared > 0, xp.where(squared > 0, squared, 1.0) ** (self.p / 2), 0.0)
        return power

    def row_costs(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
        """c of each row and the one in the same place.

        Args:
            left: rows (N, m).
            right: rows (N, m).

        Returns:
            Costs (N,).
        """
        movable = np.asarray(self.inverse_scale) > 0
        steps = (left - right)[:, movable] * np.asarray(self.scale)[movable]
        jumps = np.where((left != right)[:, ~movable], self._jump_prices[~movable], 0.0)
        return np.asarray(np.linalg.norm(steps, axis=1) ** self.p + jumps.sum(axis=1))

    @property
    def _jump_prices(self) -> NDArray[np.float64]:
        """What a change costs in a coordinate that does not move continuously, shape (m,)."""
        prices = np.full(self.dimension, np.inf)
        if self.discrete_label:
            prices[-1] = self.label_cost**self.p
        return prices


def wasserstein_distance(
    a: ArrayLike,
    b: ArrayLike,
    transport: Transport,
    a_masses: ArrayLike | None = None,
    b_masses: ArrayLike | None = None,
) -> float:
    """W_p between two clouds of samples, exactly, by POT's network simplex.

    Memory is len(a) x len(b). Needs the extra `distances`.

    Args:
        a: rows (N, m).
        b: rows (M, m).
        transport: the cost c; its order is the p of W_p.
        a_masses: (N,) that sum to 1; the same for all rows by default.
        b_masses: (M,), likewise.

    Returns:
        The distance; inf where labels that cannot move do not match.

    Raises:
        BidroError: for clouds or masses that do not fit together, and where the extra is missing.

    Examples:
        >>> import numpy as np
        >>> from bidro import Transport
        >>> from bidro.risk.transport import wasserstein_distance
        >>> rows = np.random.default_rng(0).normal(size=(50, 2))
        >>> round(wasserstein_distance(rows, rows + [3.0, 4.0], Transport.euclidean(2)), 6)
        5.0
    """
    left, right = np.atleast_2d(np.asarray(a, float)), np.atleast_2d(np.asarray(b, float))
    if left.shape[1] != transport.dimension or right.shape[1] != transport.dimension:
        raise BidroError(
            f"The clouds have {left.shape[1]} and {right.shape[1]} columns, the transport cost "
            f"{transport.dimension}."
        )
    require_distances()
    costs = _pairwise_costs(left, right, transport)
    forbidden = np.isinf(costs)
    masses = [
        np.full(len(cloud), 1 / len(cloud)) if given is None else np.asarray(given, float)
        for cloud, given in ((left, a_masses), (right, b_masses))
    ]
    # The solver needs finite costs: a forbidden move gets a price that no allowed plan reaches.
    price = (costs[~forbidden].max() if (~forbidden).any() else 1.0) * 4 * (len(left) + len(right))
    import ot  # a second to load, and most work needs no distances

    plan = ot.emd(*masses, np.where(forbidden, price + 1.0, costs), numItermax=10_000_000)
    if plan[forbidden].sum() > 1e-12:
        return float("inf")
    total = np.sum(plan[~forbidden] * costs[~forbidden])
    return float(max(total, 0.0) ** (1 / transport.p))


def require_distances() -> None:
    """Raise BidroError where the package that computes distances between clouds is not installed."""
    require_package("ot", "distances", "A Wasserstein distance between samples")


class Cloud(NamedTuple):
    """Points (k, m) with masses (k,) that stand for rows, and the cost in W_p of moving the rows to them."""

    points: NDArray[np.float64]
    masses: NDArray[np.float64]
    moved: float


def thinned(rows: ArrayLike, transport: Transport, most: int, seed: int = 0) -> Cloud:
    """At most `most` points for the rows (N, m): a random choice of them, each with the mass of the rows that
    are nearest to it. By the triangle inequality W_p to the rows differs from W_p to the cloud by at most
    `moved`, which is known, not estimated. Rows that fit are kept as they are, with `moved` 0."""
    table = np.atleast_2d(np.asarray(rows, float))
    if len(table) <= most:
        return Cloud(table, np.full(len(table), 1 / len(table)), 0.0)
    points = table[np.random.default_rng(seed).choice(len(table), most, replace=False)]
    counts, total = np.zeros(most), 0.0
    for begin in range(0, len(table), _THINNED_TOGETHER):
        costs = _pairwise_costs(table[begin : begin + _THINNED_TOGETHER], points, transport)
        nearest = costs.argmin(axis=1)
        counts += np.bincount(nearest, minlength=most)
        total += float(costs[np.arange(len(costs)), nearest].sum())
    return Cloud(points, counts / len(table), (total / len(table)) ** (1 / transport.p))


def _pairwise_costs(
    left: NDArray[np.float64], right: NDArray[np.float64], transport: Transport
) -> NDArray[np.float64]:
    from scipy.spatial.distance import cdist  # as for `ot`

    movable = np.asarray(transport.inverse_scale) > 0
    scale = np.asarray(transport.scale)[movable]
    costs: NDArray[np.float64] = cdist(left[:, movable] * scale, right[:, movable] * scale) ** transport.p
    for j in np.flatnonzero(~movable):
        differs = left[:, j][:, None] != right[:, j][None, :]
        costs = costs + np.where(differs, transport._jump_prices[j], 0.0)
    return costs
