"""A trained model as one Python file that needs NumPy alone: `bidro export --numpy`.

The file holds the model as text and the few lines that score with it (`scorer_template.py`, which is that
file without a model). What it takes and gives is what the ONNX file does: see `model.onnx.exported`.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import numpy as np

import bidro
from bidro.core.arrays import Floats
from bidro.losses import Tweedie, registry
from bidro.model.model_file import Model

_PLACE = "MODEL: dict[str, Any] = {}"


def numpy_scorer(model: Model) -> str:
    """The text of the file."""
    template = resources.files("bidro.model").joinpath("scorer_template.py").read_text(encoding="utf-8")
    assert template.count(_PLACE) == 1
    # As a Python literal of JSON, so that nothing that a column is called is ever code.
    return template.replace(_PLACE, f"MODEL = json.loads({json.dumps(_content(model))!r})")


def _content(model: Model) -> dict[str, Any]:
    predictor, schema = model.predictor(), model.schema
    content: dict[str, Any] = {
        "bidro": bidro.__version__,
        "target": schema.target,
        "client": schema.client,
        "columns": [
            {
                "name": one.name,
                "of": one.of,
                "levels": None if one.levels is None else list(one.levels),
                "other": one.other,
                "filler": one.filler if one.filler is None or one.levels is not None else float(one.filler),
                **({"exposure": True} if one.exposure else {}),
            }
            for one in schema.columns
        ],
        "classes": None if schema.classes is None else list(schema.classes),
        "probabilities": registry.entry_of(model.loss).probabilities,
        "exponential": isinstance(model.loss, Tweedie),
        "models": {name: _lines(model, x) for name, x in [(None, model.x), *model.personal.items()]},
    }
    content["shared"] = content["models"].pop(None)
    if not predictor.straight:
        basis = predictor.basis
        content["curves"] = {
            "mean": model.standard.mean.tolist(),
            "spread": model.standard.spread.tolist(),
            "feature": basis.feature.tolist(),
            "curve": basis.curve.tolist(),
            # Beyond its outermost knots a curve goes on: JSON has no infinite number.
            "low": [None if np.isinf(v) else float(v) for v in basis.ends[0]],
            "high": [None if np.isinf(v) else float(v) for v in basis.ends[1]],
            "by": [
                None
                if one is None
                else {"columns": list(one.columns), "values": [list(map(float, own)) for own in one.values]}
                for one in basis.by
            ],
        }
    return content


def _lines(model: Model, x: Floats) -> list[Any]:
    slopes, offsets = model.predictor(x).linear
    return [slopes.tolist(), offsets.tolist()]
