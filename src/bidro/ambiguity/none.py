"""No ambiguity inside the clients: R_i is the mean loss, as in agnostic federated learning."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bidro.ambiguity.base import Ambiguity
from bidro.ambiguity.wasserstein import WassersteinBall
from bidro.core.arrays import Floats
from bidro.core.pytrees import pytree
from bidro.risk.client_rows import ClientRows
from bidro.risk.inner import Inner, Oracle
from bidro.risk.rows_jax import Point, RiskModel, unmoved_risk


@pytree
class NoAmbiguity(Ambiguity):
    """The samples' own distribution alone: what a problem has that is given none."""

    moves_samples: ClassVar[bool] = False
    has_curvature: ClassVar[bool] = True

    def risk(self, rows: ClientRows, inner: Inner, oracle: Oracle, at: Point, curvature: bool) -> RiskModel:
        return unmoved_risk(rows, inner, at, curvature)

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
        found = WassersteinBall(0.0).on_host(inner, samples, sizes, x, width, curvature, before)
        if found is None:
            return None
        # No sample moves, and nothing depends on how steep the model is.
        d, never = len(x), np.full(len(sizes), np.inf)
        hessian = None if found.curvature is None else found.curvature[:, :d, :d]
        multipliers: dict[str, Any] = {"multiplier": never, "lower_multiplier": never}
        return found._replace(gradient=found.gradient[:, :d], curvature=hessian, **multipliers)

    @property
    def matters(self) -> bool:
        return False

    def closed_form(self, inner: Inner) -> bool:
        return True
