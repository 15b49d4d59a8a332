"""No ambiguity inside the clients: R_i is the mean loss, as in agnostic federated learning."""

from __future__ import annotations

from typing import ClassVar

from bidro.ambiguity.base import Ambiguity
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

    @property
    def matters(self) -> bool:
        return False

    def closed_form(self, inner: Inner) -> bool:
        return True
