"""What a network is here: a PyTorch module, a JAX function with its parameters, or the name of a factory."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError, one_line
from bidro.core.jax_on_use import Array, jax, jnp
from bidro.losses import CustomLoss, Loss, TorchLoss
from bidro.losses.torch_loss import require_torch

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class JaxNetwork:
    """A JAX function with its parameters, in place of a PyTorch module.

    Args:
        function: of (parameters, features of one row, reshaped if a shape is given), that returns the
            outputs (outputs,) or a number.
        parameters: any JAX pytree, from which training starts.

    Examples:
        >>> import jax.numpy as jnp
        >>> from bidro import JaxNetwork
        >>> network = JaxNetwork(lambda w, row: w @ jnp.tanh(row), jnp.ones(3))
        >>> float(network.function(network.parameters, jnp.zeros(3)))
        0.0
    """

    function: Callable[[Any, Array], Array]
    parameters: Any


def require_factory_name(name: Any) -> None:
    """Raise BidroError for what is no name of a function; nothing is imported."""
    if not isinstance(name, str) or not _FACTORY.fullmatch(name):
        raise BidroError(f"A factory is named 'package.module:function'; got {name!r}.")


def from_factory(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """The network that the function named "package.module:function" returns, called with these keyword
    arguments: this imports and runs it.

    Raises BidroError where there is none of that name, or what it returns is no network.
    """
    require_factory_name(name)
    where, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(where), function)(**(arguments or {}))
    except Exception as error:  # whatever another package raises
        if isinstance(error, ImportError) and error.name == "torch":
            require_torch()
        raise BidroError(f"The factory '{name}' cannot be called: {one_line(error, 200)}.") from error
    return made


def loss_of(
    network: Any,
    loss: Any,
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    dtype: str,
) -> Loss:
    """The network with a loss by its word: "squared", "absolute" or "cross entropy"; for a PyTorch module
    also a function of its tensors."""
    if isinstance(network, str):
        network = from_factory(network)
    if not isinstance(network, JaxNetwork):
        return TorchLoss(network, loss, input_shape=input_shape, classes=classes, dtype=dtype)  # type: ignore[arg-type]
    if dtype != "float64":
        raise BidroError("JAX functions compute in float64 here; give dtype='float64'.")
    if loss not in ("squared", "absolute", "cross entropy"):
        raise BidroError(
            f"The loss of a JAX function is 'squared', 'absolute' or 'cross entropy'; got {loss!r}."
        )

    def value(parameters: Any, xi: Array) -> Array:
        output = jnp.ravel(_at(network, parameters, xi[:-1], input_shape))
        if loss == "cross entropy":
            return jax.nn.logsumexp(output) - output[xi[-1].astype(int)]
        residual = output[0] - xi[-1]
        return jnp.abs(residual) if loss == "absolute" else residual**2

    labels = None if classes is None else tuple(float(k) for k in range(classes))
    return CustomLoss(value, network.parameters, labels, never_negative=True)


def _at(network: JaxNetwork, parameters: Any, features: Array, shape: tuple[int, ...] | None) -> Array:
    return network.function(parameters, features if shape is None else features.reshape(shape))


def outputs_of(
    network: Any, loss: Loss, x: Floats, features: Floats, input_shape: tuple[int, ...] | None
) -> Floats:
    """(N, outputs) of the network with flat parameters x (d,) for rows of features (N, m - 1)."""
    if isinstance(loss, TorchLoss):
        return loss.outputs(x, features)
    assert isinstance(loss, CustomLoss)
    if isinstance(network, str):
        network = from_factory(network)

    @jax.jit
    def all_rows(x: Array, rows: Array) -> Array:
        model = loss.model(x)
        return jax.vmap(lambda row: jnp.ravel(_at(network, model, row, input_shape)))(rows)

    return np.asarray(all_rows(jnp.asarray(x), jnp.asarray(features)), float)


def trained_network(loss: Loss, x: Floats) -> Any:
    """The PyTorch module, or the parameters of the JAX function, with flat parameters x (d,)."""
    if isinstance(loss, TorchLoss):
        return loss.trained(x)
    assert isinstance(loss, CustomLoss)
    return loss.model(jnp.asarray(x))


def network_digest(loss: Loss) -> str:
    """The same wherever the same network is made: of what is trained the names, shapes and order, of what is
    not (frozen parameters, buffers) the numbers too."""
    if isinstance(loss, TorchLoss):
        trained = {name for name, _ in loss.shapes}
        digest = hashlib.sha256(f"{loss.module!r} {loss.shapes!r}".encode())
        for name, value in sorted(loss.module.state_dict().items()):
            if name not in trained:
                digest.update(name.encode() + value.numpy().tobytes())
        return digest.hexdigest()
    assert isinstance(loss, CustomLoss)
    leaves = jax.tree.leaves_with_path(loss.template)
    shapes = [(jax.tree_util.keystr(place), np.shape(leaf)) for place, leaf in leaves]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()
