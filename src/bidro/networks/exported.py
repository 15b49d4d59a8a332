"""A trained network as an ONNX file, where PyTorch can write one and ONNX Runtime computes the same with it.

The file takes one input, `features` (rows, k) of doubles in the columns' own units, and gives `prediction`
(rows, 1) in the target's own, or `probabilities` (rows, classes) with the classes in the metadata. The
network inside is in the precision of training; where ONNX Runtime has an operator in single precision alone
(convolutions), it is in that.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from scipy.special import softmax

from bidro.arrays import Floats
from bidro.errors import BidroError, one_line, require_package
from bidro.losses import Loss, TorchLoss
from bidro.losses.torch_loss import require_torch
from bidro.standard import Standard

# What the file may differ by from the network, as a share of the prediction's size and the target's spread.
TOLERANCE = 1e-6
# Rows that both are tried on.
_TRIED = 64
# Old enough for the runtimes that are in use.
_OPSET = 17


def network_onnx(
    loss: Loss, x: Floats, units: Standard, classes: Sequence[str] | None, target: str = "target"
) -> bytes:
    """The ONNX file of a network with flat parameters x (d,) that was trained on rows in these units.

    Raises BidroError that says why there is none: a JAX function, a module that PyTorch cannot write or ONNX
    Runtime cannot run, a package that is missing, or predictions that differ by more than `TOLERANCE`.
    """
    if not isinstance(loss, TorchLoss):
        raise BidroError("There is no ONNX file: only PyTorch modules can be written as one.")
    for package in ("onnx", "onnxruntime"):
        require_package(package, "onnx", "An ONNX file")
    why: BidroError | None = None
    for precision in dict.fromkeys((loss.dtype, "float32")):
        try:
            data = _written(_with_units(loss, x, units, classes is not None, precision), len(units.mean))
            data = _described(data, classes, target)
            _require_same(data, loss, x, units, classes is not None)
        except BidroError as error:
            why = why or error
        else:
            return data
    assert why is not None
    raise why


def _with_units(loss: TorchLoss, x: Floats, units: Standard, classes: bool, precision: str) -> Any:
    """The module from rows (N, k) in their own units to predictions (N, 1), or probabilities (N, classes)."""
    torch = require_torch()
    inner = loss.trained(x).to(getattr(torch, precision)).eval()
    mean, spread = (torch.tensor(np.asarray(one), dtype=torch.float64) for one in (units.mean, units.spread))
    shape = (-1, len(units.mean)) if loss.input_shape is None else (-1, *loss.input_shape)

    class WithUnits(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, features: Any) -> Any:
            rows = ((features - mean) / spread).to(getattr(torch, precision)).reshape(shape)
            found = self.inner(rows).to(torch.float64)
            if classes:
                return torch.softmax(found, dim=-1)
            return units.middle + units.target_spread * found.reshape(-1, 1)

    return WithUnits()


def _written(module: Any, features: int) -> bytes:
    torch, file = require_torch(), BytesIO()
    example = torch.zeros((2, features), dtype=torch.float64)
    names = {"input_names": ["features"], "output_names": ["found"]}
    rows = {"features": {0: "rows"}, "found": {0: "rows"}}
    try:
        with warnings.catch_warnings():
            # That it is the older of two exporters, the only one without another package, and what it traces.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, (example,), file, dynamo=False, opset_version=_OPSET, dynamic_axes=rows, **names
            )
    except Exception as error:  # what it raises are classes of its own
        raise BidroError(
            f"There is no ONNX file: PyTorch cannot write this module as one ({one_line(error, 200)})."
        ) from error
    return file.getvalue()


def _described(data: bytes, classes: Sequence[str] | None, target: str) -> bytes:
    """The file with a name for its output that says what it is, and with the classes in its metadata."""
    onnx = importlib.import_module("onnx")
    made = onnx.load_from_string(data)
    name = "prediction" if classes is None else "probabilities"
    for node in made.graph.node:
        for k, one in enumerate(node.output):
            if one == "found":
                node.output[k] = name
    made.graph.output[0].name = name
    about = {"target": target} if classes is None else {"target": target, "classes": json.dumps([*classes])}
    onnx.helper.set_model_props(made, about)
    made.producer_name = "bidro"
    return bytes(made.SerializeToString(deterministic=True))


def _require_same(data: bytes, loss: TorchLoss, x: Floats, units: Standard, classes: bool) -> None:
    """Raise BidroError where ONNX Runtime cannot run the file, or finds something else than the network."""
    runtime = importlib.import_module("onnxruntime")
    rows = np.random.default_rng(0).normal(size=(_TRIED, len(units.mean)))
    outputs = loss.outputs(x, rows)
    expected = softmax(outputs, axis=1) if classes else units.middle + units.target_spread * outputs
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        found = session.run(None, {"features": units.mean + units.spread * rows})[0]
    except Exception as error:  # what it raises are classes of its own
        raise BidroError(
            f"There is no ONNX file: ONNX Runtime does not run this module ({one_line(error, 200)})."
        ) from error
    size = 1.0 if classes else units.target_spread
    far = np.max(np.abs(found - expected) / (size + np.abs(expected)))
    if not far <= TOLERANCE:
        raise BidroError(
            f"There is no ONNX file: ONNX Runtime's predictions differ from the network's by {far:.1e} of "
            f"their size, more than {TOLERANCE:g}."
        )
