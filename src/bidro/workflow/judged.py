"""How good a model is: mean losses of the clients, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidro.guarantees.calibration import worst_decile

Floats = NDArray[np.float64]


class ClientLoss(NamedTuple):
    loss: float  # mean over its rows
    se: float | None  # standard error of the mean; None for a single row
    rows: int

    @classmethod
    def of(cls, losses: Floats) -> ClientLoss:
        se = float(losses.std(ddof=1) / np.sqrt(len(losses))) if len(losses) > 1 else None
        return cls(float(losses.mean()), se, len(losses))


def evaluation(clients: Mapping[str, ClientLoss]) -> dict[str, Any]:
    """Mean over all rows, worst client, worst decile, and each client's mean with its standard error."""
    means = np.array([own.loss for own in clients.values()])
    rows = np.array([own.rows for own in clients.values()])
    return {
        "mean": float(rows @ means / rows.sum()),
        "worst_client": float(means.max()),
        "worst_decile": float(worst_decile(means)),
        "clients": {name: own._asdict() for name, own in clients.items()},
    }
