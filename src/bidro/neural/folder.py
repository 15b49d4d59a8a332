"""A network in a folder: one file of weights (safetensors with a JSON header) that names the factory, and the
same network as ONNX where PyTorch can write it and ONNX Runtime computes the same with it.

Reading a folder runs no code. `LoadedNetwork.build` imports and calls the factory that the file names: only
for those who trust that name.

The ONNX file takes one input, `features` (rows, k) of doubles in the columns' own units, and gives
`prediction` (rows, 1) in the target's own, or `probabilities` (rows, classes) with the classes in the
metadata. The network inside has the precision of training, or single precision where ONNX Runtime has an
operator in that alone (convolutions).
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from bidro.certify.certificate import Certificate
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, one_line, require_package
from bidro.core.files import read_bytes, require_writable, write_bytes, write_text
from bidro.core.jax_on_use import jax, jnp
from bidro.core.packed import decoded, encoded
from bidro.data.standardise import Standard
from bidro.losses import CustomLoss, Loss, TorchLoss
from bidro.losses.torch_loss import require_torch
from bidro.model.model_file import NETWORK_FILE
from bidro.neural.models import JaxNetwork, from_factory

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


ONNX_FILE, CERTIFICATE_FILE = "model.onnx", "certificate.json"
_KIND = "bidro network 2"


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """What the file of a network holds.

    Examples:
        >>> import numpy as np
        >>> from bidro.neural.folder import LoadedNetwork
        >>> from bidro.data.standardise import Standard
        >>> weights, units = {"weight": np.zeros((1, 3))}, Standard.as_they_are(3)
        >>> LoadedNetwork(weights, "mine.nets:small", None, None, units).factory
        'mine.nets:small'
    """

    weights: dict[str, Floats]  # by the names of the module's parameters, or of the places in a pytree
    factory: str  # "package.module:function"
    input_shape: tuple[int, ...] | None  # that a row's features are reshaped to
    classes: tuple[str, ...] | None  # in the order of the outputs
    units: Standard  # that rows are put into before the network has them, and its prediction is in
    arguments: Mapping[str, Any] = field(default_factory=dict)  # that the factory is called with
    features: tuple[str, ...] | None = None  # names of the columns, where they are known
    no_onnx: str | None = None  # why there is no ONNX file with it; None where there is one

    def build(self) -> Any:
        """Import and call the factory, and put the weights into what it returns: the PyTorch module, or the
        `JaxNetwork`. Raises BidroError where they do not fit."""
        made = from_factory(self.factory, self.arguments)
        if isinstance(made, JaxNetwork):
            named = _places(made.parameters)
            self._require(named)
            leaves = [np.asarray(self.weights[name]) for name in named]
            structure = jax.tree.structure(made.parameters)
            return JaxNetwork(made.function, jax.tree.unflatten(structure, leaves))
        loss = TorchLoss(made)
        named = {name: np.zeros(shape) for name, shape in loss.shapes}
        self._require(named)
        return loss.trained(np.concatenate([self.weights[name].ravel() for name in named]))

    def _require(self, named: Mapping[str, Any]) -> None:
        ours = {name: value.shape for name, value in self.weights.items()}
        theirs = {name: np.shape(value) for name, value in named.items()}
        if ours != theirs:
            other = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
            raise BidroError(
                f"The factory '{self.factory}' makes another network than the one that was saved: parameter "
                f"'{other}' differs."
            )


def save_network(
    folder: Path,
    loss: Loss,
    x: Floats,
    network: LoadedNetwork,
    certificate: Certificate | None = None,
) -> None:
    """Write the files of a network with flat parameters x (d,), and its certificate.

    Raises BidroError where the folder cannot be written to, or the loss is not one of a network.
    """
    require_writable(folder)
    files = network_files(loss, x, network)
    for name, data in files.items():
        write_bytes(folder / name, data)
    if ONNX_FILE not in files:
        (folder / ONNX_FILE).unlink(missing_ok=True)  # of a network that was here before
    if certificate is not None:
        write_text(folder / CERTIFICATE_FILE, certificate.to_json())


def network_files(loss: Loss, x: Floats, network: LoadedNetwork, target: str = "target") -> dict[str, bytes]:
    """By name, the file of weights and, where there can be one, the ONNX file, of a network with flat
    parameters x (d,); `network` says all but the weights. Raises BidroError for a loss of no network."""
    weights, units = weights_of(loss, x), network.units
    files, why = dict[str, bytes](), None
    try:
        files[ONNX_FILE] = network_onnx(loss, x, units, network.classes, target)
    except BidroError as error:
        why = str(error)
    header = {
        "kind": _KIND,
        "factory": network.factory,
        "arguments": dict(network.arguments),
        "input_shape": None if network.input_shape is None else list(network.input_shape),
        "classes": None if network.classes is None else list(network.classes),
        "features": None if network.features is None else list(network.features),
        "units": [units.mean.tolist(), units.spread.tolist(), units.middle, units.target_spread],
        "no_onnx": why,
    }
    return {NETWORK_FILE: encoded(weights, header), **files}


def weights_of(loss: Loss, x: Floats) -> dict[str, Floats]:
    """The flat parameters x (d,) of a network by the names that they have in it. Raises BidroError for a loss
    of no network."""
    if isinstance(loss, TorchLoss):
        weights, begin = {}, 0
        for name, shape in loss.shapes:
            end = begin + int(np.prod(shape))
            weights[name], begin = np.asarray(x[begin:end]).reshape(shape), end
        return weights
    if isinstance(loss, CustomLoss):
        named = _places(loss.model(jnp.asarray(x)))
        return {name: np.asarray(value, float) for name, value in named.items()}
    raise BidroError(f"A {type(loss).__name__} loss is not that of a network; use save of its estimator.")


def load_network(folder: Path | str) -> LoadedNetwork:
    """The network in a folder that `save` of its estimator wrote. Runs no code of it.

    Args:
        folder: with the file of weights.

    Returns:
        Its weights and the name of its factory, which `build` calls.

    Raises:
        BidroError: where there is no such file, or it is damaged or another version's.

    Examples:
        >>> from bidro import BidroError, load_network
        >>> try:
        ...     load_network("nowhere")
        ... except BidroError as error:
        ...     print(str(error)[:32])
        There is no network in 'nowhere'
    """
    path = Path(folder) / NETWORK_FILE
    if not path.exists():
        raise BidroError(f"There is no network in '{folder}': '{path}' does not exist.")
    weights, header = decoded(read_bytes(path), str(path))
    if header.get("kind") != _KIND or not isinstance(header.get("factory"), str):
        raise BidroError(f"'{path}' is not a network of this version of bidro.")
    shape, classes, features, units = (header[k] for k in ("input_shape", "classes", "features", "units"))
    return LoadedNetwork(
        weights,
        header["factory"],
        None if shape is None else tuple(int(v) for v in shape),
        None if classes is None else tuple(str(v) for v in classes),
        Standard(np.array(units[0]), np.array(units[1]), *map(float, units[2:])),
        header["arguments"],
        None if features is None else tuple(str(v) for v in features),
        header["no_onnx"],
    )


def _places(parameters: Any) -> dict[str, Any]:
    """The leaves of a pytree by their places in it."""
    return {jax.tree_util.keystr(place): leaf for place, leaf in jax.tree.leaves_with_path(parameters)}
