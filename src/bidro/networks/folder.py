"""A network in a folder: one file of weights (safetensors with a JSON header) that names the factory.

Reading it runs nothing. `LoadedNetwork.build` imports and calls the factory that the file names: only whoever
trusts that name asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bidro.arrays import Floats
from bidro.errors import BidroError
from bidro.guarantees.certificate import Certificate
from bidro.losses import CustomLoss, Loss, TorchLoss
from bidro.networks.models import JaxNetwork, from_factory
from bidro.packed import decoded, encoded
from bidro.report.files import require_writable, write_text, write_whole

FILE, CERTIFICATE_FILE = "network.safetensors", "certificate.json"
_KIND = "bidro network 1"


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """What the file of a network holds.

    Examples:
        >>> import numpy as np
        >>> from bidro import LoadedNetwork
        >>> LoadedNetwork({"weight": np.zeros((1, 3))}, "mine.nets:small", None, None).factory
        'mine.nets:small'
    """

    weights: dict[str, Floats]  # by the names of the module's parameters, or of the places in a pytree
    factory: str  # "package.module:function"
    input_shape: tuple[int, ...] | None  # that a row's features are reshaped to
    classes: tuple[str, ...] | None  # in the order of the outputs

    def build(self) -> Any:
        """Import and call the factory, and put the weights into what it returns: the PyTorch module, or the
        `JaxNetwork`. Raises BidroError where they do not fit."""
        made = from_factory(self.factory)
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
    factory: str,
    input_shape: tuple[int, ...] | None,
    classes: Sequence[str] | None,
    certificate: Certificate | None = None,
) -> None:
    """Write the weights of a network with flat parameters x (d,), and its certificate beside them.

    Raises BidroError where the folder cannot be written to, or the loss is not one of a network.
    """
    require_writable(folder)
    if isinstance(loss, TorchLoss):
        weights, begin = {}, 0
        for name, shape in loss.shapes:
            end = begin + int(np.prod(shape))
            weights[name], begin = np.asarray(x[begin:end]).reshape(shape), end
    elif isinstance(loss, CustomLoss):
        weights = {
            name: np.asarray(value, float) for name, value in _places(loss.model(jnp.asarray(x))).items()
        }
    else:
        raise BidroError(f"A {type(loss).__name__} loss is not that of a network; use save of its estimator.")
    header = {
        "kind": _KIND,
        "factory": factory,
        "input_shape": None if input_shape is None else list(input_shape),
        "classes": None if classes is None else list(classes),
    }
    data = encoded(weights, header)
    write_whole(folder / FILE, lambda place: _write(place, data))
    if certificate is not None:
        write_text(folder / CERTIFICATE_FILE, certificate.to_json())


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
    path = Path(folder) / FILE
    if not path.exists():
        raise BidroError(f"There is no network in '{folder}': '{path}' does not exist.")
    weights, header = decoded(path.read_bytes(), str(path))
    if header.get("kind") != _KIND or not isinstance(header.get("factory"), str):
        raise BidroError(f"'{path}' is not a network of this version of bidro.")
    shape, classes = header["input_shape"], header["classes"]
    return LoadedNetwork(
        weights,
        header["factory"],
        None if shape is None else tuple(int(v) for v in shape),
        None if classes is None else tuple(str(v) for v in classes),
    )


def _places(parameters: Any) -> dict[str, Any]:
    """The leaves of a pytree by their places in it."""
    return {jax.tree_util.keystr(place): leaf for place, leaf in jax.tree.leaves_with_path(parameters)}


def _write(place: Path, data: bytes) -> None:
    place.write_bytes(data)
