"""Softmax of two classes as logistic loss of the difference of their scores.

Of the model x only v = D x matters, and a sample moves along one line: worst cases are exact, and on an
unbounded support risks are lifted, as those of any linear predictor.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bidro.losses import ScoreDifference, Softmax
from bidro.worst_case.inner import Inner
from bidro.worst_case.risk import RiskModel


class TwoClasses(NamedTuple):
    """The inner problem of v, and the map D to v."""

    inner: Inner
    apart: NDArray[np.float64]  # D, (d / 2, d)

    @classmethod
    def of(cls, inner: Inner) -> TwoClasses | None:
        """None where the loss is no softmax of two straight scores."""
        loss = inner.loss
        if not isinstance(loss, Softmax) or loss.difference is None:
            return None
        apart = loss.apart(inner.transport.dimension)
        return cls(Inner(inner.transport, inner.support, loss.difference), apart)

    @property
    def loss(self) -> ScoreDifference:
        assert isinstance(self.inner.loss, ScoreDifference)
        return self.inner.loss

    def model(self, x: Array) -> Array:
        """v (d / 2,) of x (d,); each number is rounded once."""
        return jnp.asarray(self.apart) @ x

    def in_scores(self, risk: RiskModel) -> RiskModel:
        """A risk as a function of v, or of (v, nu), as one of x, or of (x, nu)."""
        extra = risk.gradient.shape[-1] - len(self.apart)
        whole = jnp.asarray(
            np.block(
                [
                    [self.apart, np.zeros((len(self.apart), extra))],
                    [np.zeros((extra, self.apart.shape[1])), np.eye(extra)],
                ]
            )
        )
        curvature = None if risk.curvature is None else whole.T @ risk.curvature @ whole
        return risk._replace(gradient=risk.gradient @ whole, curvature=curvature)
