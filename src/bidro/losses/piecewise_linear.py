"""The largest of several functions, each linear in the model and linear in the sample."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bidro.core.errors import BidroError
from bidro.core.pytrees import namespace
from bidro.core.sets.base import AnyArray, V, require_finite
from bidro.losses.base import Cone, Growth, Loss

if TYPE_CHECKING:
    from jax import Array


@dataclass(frozen=True)
class PiecewiseLinear(Loss):
    """l(x, xi) = max over pieces j of (x, 1)' M_j (xi, 1), convex in the model and in the sample.

    Over a ball of order p = 1 on an unbounded support its risk is the mean loss + radius
    max_j ||S^-1 a_j(x)||, a_j being the slope of a piece in the sample (Mohajerin Esfahani and Kuhn,
    2018). All coordinates of a sample are data: there is no label.

    Args:
        pieces: M_j (pieces, d + 1, m + 1), the last row what does not depend on the model, the last column
            what does not depend on the sample.

    Raises:
        BidroError: for other shapes, and numbers that are not finite.

    Examples:
        >>> import numpy as np
        >>> from bidro import PiecewiseLinear
        >>> distance = PiecewiseLinear([[[0, 1], [-1, 0]], [[0, -1], [1, 0]]])  # |x - xi|
        >>> float(distance.value(np.array([2.0]), np.array([5.0])))
        3.0
    """

    pieces: Any

    def __post_init__(self) -> None:
        matrices = np.array(self.pieces, float)
        if matrices.ndim != 3 or min(matrices.shape) < 1 or min(matrices.shape[1:]) < 2:
            raise BidroError(
                f"The pieces must be matrices (pieces, d + 1, m + 1) of numbers; got shape {matrices.shape}."
            )
        require_finite("The pieces of a loss", matrices)
        # Hashable, as losses are.
        object.__setattr__(self, "pieces", tuple(tuple(map(tuple, matrix.tolist())) for matrix in matrices))

    @classmethod
    def newsvendor(cls, cost: float, price: float, salvage: float = 0.0) -> PiecewiseLinear:
        """cost x - price min(x, demand) - salvage max(x - demand, 0), x being ordered before demand is known.

        Args:
            cost: of a unit ordered.
            price: of a unit sold, at least the salvage value.
            salvage: what a unit that is left over brings.

        Returns:
            The loss of an order (1,) at a demand (1,).

        Raises:
            BidroError: for a price below the salvage value, for which it is not convex.
        """
        if not price >= salvage:
            raise BidroError(
                f"A unit sold must bring at least what one left over does; got {price}, {salvage}."
            )
        all_sold = [[0.0, cost - price], [0.0, 0.0]]
        some_left = [[0.0, cost - salvage], [salvage - price, 0.0]]
        return cls([all_sold, some_left])

    @classmethod
    def mean_cvar(cls, assets: int, weight: float, level: float = 0.95) -> PiecewiseLinear:
        """-<w, xi> + weight (t + max(-<w, xi> - t, 0) / (1 - level)): its mean, least over t, is minus the
        mean return of a portfolio w plus weight times the conditional value at risk (Rockafellar and Uryasev,
        2000).

        Args:
            assets: how many; a sample has their returns.
            weight: of the risk, at least 0.
            level: the conditional value at risk is the mean of the worst share 1 - level; in [0, 1).

        Returns:
            The loss of a model (w, t) (assets + 1,) at returns (assets,).

        Raises:
            BidroError: for a weight below 0 or a level outside [0, 1).
        """
        if not weight >= 0 or not 0 <= level < 1:
            raise BidroError(f"The weight must be at least 0 and the level in [0, 1); got {weight}, {level}.")
        tail = weight / (1 - level)
        pieces = np.zeros((2, assets + 2, assets + 1))
        for piece, of_returns, of_t in zip(pieces, (1.0, 1 + tail), (weight, weight - tail), strict=True):
            piece[:assets, :assets] = -of_returns * np.eye(assets)
            piece[assets, assets] = of_t
        return cls(pieces)

    def __repr__(self) -> str:
        """A digest stands for the numbers, which may be many."""
        count, d, m = self._matrices.shape
        digest = hashlib.blake2b(self._matrices.tobytes(), digest_size=16).hexdigest()
        return f"PiecewiseLinear({count} pieces, d = {d - 1}, m = {m - 1}, {digest})"

    @property
    def _matrices(self) -> NDArray[np.float64]:
        return np.array(self.pieces)

    @property
    def convex_in_x(self) -> bool:
        return True

    @property
    def growth(self) -> Growth:
        return Growth(1, 1.0)

    @property
    def host_values(self) -> bool:
        return True

    def dimension(self, m: int) -> int:
        _, d, columns = self._matrices.shape
        if columns != m + 1:
            raise BidroError(f"The pieces of the loss are for {columns - 1} columns but the rows have {m}.")
        return d - 1

    def work(self, m: int) -> int:
        return self._matrices.size

    def slopes(self, x: V) -> AnyArray:
        """(pieces, m) of the pieces in the sample, at a model (d,)."""
        return namespace(x).append(x, 1.0) @ self._matrices[:, :, :-1]

    def of_pieces(self, x: AnyArray, rows: AnyArray) -> AnyArray:
        """(rows, pieces) what each piece says of every row (rows, m)."""
        offsets = namespace(x).append(x, 1.0) @ self._matrices[:, :, -1:]
        return rows @ self.slopes(x).T + offsets[:, 0]

    def value(self, x: Array, xi: Array) -> Array:
        return self.values(x, xi[None])[0]

    def values(self, x: Array, rows: Array) -> Array:
        s = self.of_pieces(x, rows)
        # By its place: the derivative of a maximum compares it with what a program may compute anew, and
        # round otherwise.
        first = s.argmax(axis=1)[:, None]
        found: Array = namespace(x, rows).take_along_axis(s, first, axis=1)[:, 0]
        return found

    def lipschitz(self, x: Array, inverse_scale: Array) -> AnyArray:
        return namespace(x, inverse_scale).linalg.norm(self.slopes(x) * inverse_scale, axis=1).max()

    def steepness_cones(self, inverse_scale: Array) -> list[Cone]:
        """||S^-1 a_j(x)|| of every piece."""
        inverse = np.asarray(inverse_scale)
        slopes = self._matrices[:, :, :-1] * inverse
        return [Cone(own[:-1].T, own[-1]) for own in slopes]
