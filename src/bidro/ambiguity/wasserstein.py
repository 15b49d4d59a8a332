"""Wasserstein balls around the clients' samples (eq. problem_separability)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity.base import Ambiguity, Domain, numbers_per_client
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.pytrees import pytree
from bidro.core.sets import VectorSet, WholeSpace
from bidro.core.sets.base import AnyArray
from bidro.data.federation import Federation
from bidro.losses import Softmax, Tweedie, has_curves
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.inner.ball import ball_risk, has_closed_form, is_lifted
from bidro.risk.rows_jax import Point, RiskModel
from bidro.risk.rows_kinked import kinked_risks, known_with_kinks
from bidro.risk.rows_numpy import FoldedRows, needs_no_search, proven_risks


@pytree
class WassersteinBall(Ambiguity):
    """eps_i >= 0 for each client (a single number is shared): how far its distribution may lie from
    its samples, in W_p of the problem's transport cost.

    Args:
        radius: one number, or one a client (n,); in units of the transport cost's metric.

    Raises:
        BidroError: from `Problem`, for a negative radius, or not one a client.

    Examples:
        >>> from bidro import WassersteinBall
        >>> WassersteinBall([0.1, 0.2]).per_client(2).radii.tolist()
        [0.1, 0.2]
    """

    radius: AnyArray

    over_balls: ClassVar[bool] = True
    has_curvature: ClassVar[bool] = True

    def risk(self, rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, curvature: bool) -> RiskModel:
        return ball_risk(rows, inner, oracle, at, self.radius, curvature)

    def on_host(
        self,
        inner: Inner,
        samples: Floats,
        sizes: NDArray[np.int64],
        x: Floats,
        width: float,
        curvature: bool,
        before: Floats | None = None,
    ) -> RiskModel | None:
        radii = np.broadcast_to(np.asarray(self.radius, float), len(sizes))
        rows = FoldedRows(samples, sizes, np.zeros(len(samples), np.int64))
        if needs_no_search(inner, radii):
            return proven_risks(inner, rows, x, radii, curvature)
        if known_with_kinks(inner, radii):
            return kinked_risks(inner, rows, x, radii, width, curvature, before)
        return None

    @property
    def radii(self) -> AnyArray:
        return self.radius

    @property
    def matters(self) -> bool:
        return bool(np.any(np.asarray(self.radius) > 0))

    def lifted(self, inner: Inner) -> bool:
        return is_lifted(inner)

    def closed_form(self, inner: Inner) -> bool:
        return has_closed_form(inner)

    def domain(self, federation: Federation, inner: Inner, models: VectorSet) -> Domain:
        loss, p = inner.loss, inner.transport.p
        still = isinstance(loss, Tweedie) and not np.any(self.radii)
        if has_curves(loss) and not is_lifted(inner) and not still:
            orders = "1" if isinstance(loss, Softmax) else "1 or 2"
            raise BidroError(
                f"Curves with {type(loss).__name__} loss need a transport cost of order p = {orders}; "
                f"got {p:g}."
            )
        require_growth(inner)
        return Domain(models, models)

    def widened(self, by: AnyArray) -> WassersteinBall:
        return WassersteinBall(self.radius + by)

    def per_client(self, n: int) -> WassersteinBall:
        eps = numbers_per_client("radii", self.radius, n)
        if np.any(eps < 0):
            raise BidroError(f"Every radius must be a number of at least 0; got {eps}.")
        return WassersteinBall(eps)


def require_growth(inner: Inner) -> None:
    """Raise BidroError where moves pay without end for every model: the loss grows faster than the cost."""
    growth, p = inner.loss.growth, inner.transport.p
    if isinstance(inner.support, WholeSpace) and growth is not None and growth.order > p:
        raise BidroError(
            f"{type(inner.loss).__name__} loss grows with order {growth.order:g}, faster than the transport "
            f"cost with p = {p:g}: the worst case over an unbounded support is infinite for every model; "
            "raise p or declare a bounded support."
        )
