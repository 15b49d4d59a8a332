"""The transport cost c(zeta, xi) and Wasserstein distances between empirical distributions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bidro.core.errors import BidroError, require_package
from bidro.core.pytrees import namespace, pytree, static
from bidro.core.sets.base import AnyArray, V
from bidro.losses.base import Cone, Loss

# Rows whose distances to all points of a cloud are looked at together.
_THINNED_TOGETHER = 4096


@pytree
class Transport:
    """c(zeta, xi) = ||S (zeta - xi)||^p, with S = diag(scale), in the Euclidean norm or another.

    A large scale makes a coordinate costly to move, an infinite one immovable. With
    `discrete_label`, the last coordinate is a class instead:
    c = ||S (theta - theta')||^p + label_cost^p 1[y != y'], the scale of the label being unused.

    The paper's norm is the Euclidean. In l1, l-infinity or sqrt(v' M v) (Mahalanobis), worst cases of linear
    predictors on an unbounded support are known as well: what moves earn is the dual norm of the model.

    Args:
        scale: (m,) diagonal of S, above 0.
        p: the order, at least 1.
        discrete_label: whether the last coordinate is a class.
        label_cost: of a discrete label; inf where it cannot change.
        norm: 1, 2 or inf.
        matrix: M (m, m), symmetric and positive definite, or (m - 1, m - 1) where the last coordinate does
            not move continuously; it goes with norm 2.

    Raises:
        BidroError: for a scale or cost that is not above 0, an order below 1, a label cost of no label,
            another norm, or a matrix that is none of a norm.

    Examples:
        >>> import numpy as np
        >>> from bidro import Transport
        >>> here, there = np.array([0.0, 0.0, 1.0]), np.array([3.0, 4.0, 1.0])
        >>> float(Transport.features_only(3).cost(here, there))
        25.0
        >>> float(Transport([1.0, 1.0, np.inf], p=1, norm=np.inf).cost(here, there))
        4.0
    """

    scale: AnyArray
    p: float = static(default=2.0)
    discrete_label: bool = static(default=False)
    label_cost: float = static(default=np.inf)
    norm: float = static(default=2.0)
    matrix: AnyArray = None

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
        if self.norm not in (1, 2, np.inf):
            raise BidroError(f"The norm of the transport cost must be 1, 2 or inf; got {self.norm!r}.")
        object.__setattr__(self, "scale", scale)
        if self.matrix is not None:
            object.__setattr__(self, "matrix", self._checked(self.matrix))

    def _checked(self, given: ArrayLike) -> NDArray[np.float64]:
        """M (m, m); of a coordinate that it is not given for, that of the Euclidean norm."""
        if self.norm != 2:
            raise BidroError(f"A matrix goes with the norm 2; got the norm {self.norm:g} beside it.")
        matrix, m = np.array(given, float), len(self.scale)
        if matrix.shape == (m - 1, m - 1) and (self.discrete_label or np.isinf(self.scale[-1])):
            matrix = np.pad(matrix, (0, 1))
            matrix[-1, -1] = 1.0
        if matrix.shape != (m, m):
            raise BidroError(
                f"The matrix of the transport cost must be of shape ({m}, {m}), or without the last "
                f"coordinate where that does not move; got {matrix.shape}."
            )
        size = np.abs(matrix).max(initial=0.0)
        symmetric = np.isfinite(size) and np.allclose(matrix, matrix.T, rtol=0, atol=1e-12 * size)
        if not symmetric or np.linalg.eigvalsh(matrix)[0] <= 1e-14 * size:
            raise BidroError(
                "The matrix of the transport cost must be symmetric and positive definite, such as the "
                "inverse of a covariance."
            )
        return np.asarray((matrix + matrix.T) / 2)

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

    @property
    def is_euclidean(self) -> bool:
        """Whether the norm is the paper's."""
        return self.norm == 2 and self.matrix is None

    @property
    def metric(self) -> str:
        """The norm in words."""
        if self.matrix is not None:
            return "a Mahalanobis metric"
        return "the Euclidean metric" if self.norm == 2 else f"the l{self.norm:g} metric"

    def dual_norm(self, a: V) -> V:
        """max <a, v> over moves v of size 1: the dual norm of S^-1 a, over coordinates that move.

        Args:
            a: what a move earns by coordinates (m,).

        Returns:
            The norm.
        """
        xp = namespace(self.scale, a)
        b = a * self.inverse_scale
        if self.norm == 1:
            return xp.max(xp.abs(b))
        if self.norm == np.inf:
            return xp.sum(xp.abs(b))
        return xp.linalg.norm(b if self.matrix is None else self._inverse_root @ b)

    def steepest(self, a: V) -> V:
        """The move (m,) of size 1 that attains `dual_norm`; 0 where nothing is to be earned.

        Args:
            a: what a move earns by coordinates (m,).

        Returns:
            The move.
        """
        xp = namespace(self.scale, a)
        b, size = a * self.inverse_scale, self.dual_norm(a)
        if self.norm == 1:
            v = xp.sign(b) * (xp.arange(self.dimension) == xp.argmax(xp.abs(b)))
        elif self.norm == np.inf:
            v = xp.sign(b)
        else:
            root = None if self.matrix is None else self._inverse_root
            v = (b if root is None else root.T @ (root @ b)) / xp.where(size > 0, size, 1.0)
        return v * self.inverse_scale

    def steepness_cones(self, loss: Loss) -> list[Cone]:
        """Functions of a model whose maximum is what moves of size 1 earn: see `Loss.steepness_cones`.

        Args:
            loss: of a linear predictor or of pieces, unless the metric is Euclidean.

        Returns:
            The dual norms; empty where there is no such form.
        """
        cones = loss.steepness_cones(self.inverse_scale)
        if self.is_euclidean:
            return cones
        rows = len(cones[0].offset)
        if self.norm == 1:
            return [cone._replace(groups=np.zeros(rows, np.int64)) for cone in cones]
        if self.norm == np.inf:
            return [cone._replace(groups=np.arange(rows), summed=True) for cone in cones]
        root = np.asarray(self._inverse_root)[:rows, :rows]
        return [Cone(root @ cone.matrix, root @ cone.offset) for cone in cones]

    @property
    def _root(self) -> AnyArray:
        """(m, m) L' with ||v|| = ||L' v||, M = L L' over coordinates that move continuously."""
        xp = namespace(self.scale, self.matrix)
        free = self.inverse_scale > 0
        moving = xp.where(free[:, None] & free[None, :], self.matrix, xp.eye(self.dimension))
        return xp.linalg.cholesky(moving).T

    @property
    def _inverse_root(self) -> AnyArray:
        """(m, m) L^-1, lower triangular."""
        return namespace(self.scale, self.matrix).linalg.inv(self._root).T

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
        if self.norm != 2:
            size: V = xp.sum(xp.abs(step)) if self.norm == 1 else xp.max(xp.abs(step))
            return size**self.p
        squared: V = xp.sum((step if self.matrix is None else self._root @ step) ** 2)
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
        steps = self._measured(left) - self._measured(right)
        jumps = np.where((left != right)[:, ~movable], self._jump_prices[~movable], 0.0)
        return np.asarray(np.linalg.norm(steps, self.norm, axis=1) ** self.p + jumps.sum(axis=1))

    def _measured(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows (N, m) as points whose differences have the cost's norm as their own, of order `norm`."""
        movable = np.asarray(self.inverse_scale) > 0
        points = rows[:, movable] * np.asarray(self.scale)[movable]
        if self.matrix is None:
            return np.asarray(points)
        return np.asarray(points @ np.asarray(self._root)[np.ix_(movable, movable)].T)

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
    name = {1.0: "cityblock", 2.0: "euclidean", np.inf: "chebyshev"}[float(transport.norm)]
    points = (transport._measured(cloud) for cloud in (left, right))
    costs: NDArray[np.float64] = cdist(*points, name) ** transport.p
    for j in np.flatnonzero(~movable):
        differs = left[:, j][:, None] != right[:, j][None, :]
        costs = costs + np.where(differs, transport._jump_prices[j], 0.0)
    return costs
