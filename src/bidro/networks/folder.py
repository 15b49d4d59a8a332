"""A network in a folder: one file of weights (safetensors with a JSON header) that names the factory, and
the same as ONNX where that can be.

Reading it runs nothing. `LoadedNetwork.build` imports and calls the factory that the file names: only whoever
trusts that name asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.given_files import read_bytes
from bidro.guarantees.certificate import Certificate
from bidro.losses import CustomLoss, Loss, TorchLoss
from bidro.model_file import NETWORK_FILE
from bidro.networks.exported import network_onnx
from bidro.networks.models import JaxNetwork, from_factory
from bidro.packed import decoded, encoded
from bidro.report.files import require_writable, write_bytes, write_text
from bidro.standard import Standard

ONNX_FILE, CERTIFICATE_FILE = "model.onnx", "certificate.json"
_KIND = "bidro network 2"


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """What the file of a network holds.

    Examples:
        >>> import numpy as np
        >>> from bidro import LoadedNetwork
        >>> from bidro.standard import Standard
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
    no_onnx: str | None = None  # why there is no ONNX file beside it; None where there is one

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
    """Write the files of a network with flat parameters x (d,), and its certificate beside them.

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
