"""The problem that statements about a model are made for: fresh rows, the declared support, any mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bidro.errors import BidroError
from bidro.federation import Federation
from bidro.model_file import Model
from bidro.problem import Problem
from bidro.tables import bounds_of
from bidro.training import Choices, transport_of, unrestricted


def declared_problem(model: Model, rows: Mapping[str, NDArray[np.float64]]) -> Problem:
    """Rows (N_i, m) of every client are in the units of training. Raises BidroError without a support,
    and for a model of units, whose rows are no independent draws."""
    settings = model.settings
    if settings.get("support") is None:
        raise BidroError("The model was fitted without a declared support; fit it with --support FILE.")
    if model.schema.unit is not None:
        raise BidroError(
            f"The model was fitted by units ('{model.schema.unit}'), and the Wasserstein interval needs rows "
            "that are independent draws; judge it by rows kept out."
        )
    columns = [*model.schema.features, model.schema.target]
    federation = Federation.from_arrays(dict(rows), "unbounded", columns)
    box = model.standard.box(bounds_of(settings["support"], model.schema), model.loss.labels)
    metric = Choices(metric=settings["metric"], label_cost=settings["label_cost"], p=settings["p"])
    transport = transport_of(model.loss, federation.m, metric, model.standard.target_spread)
    return unrestricted(replace(federation, support=box), model.loss, transport, model.standard.target_spread)
