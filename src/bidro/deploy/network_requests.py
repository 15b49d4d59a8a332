"""What a request about a neural network may say, checked before any work: the agreed network, algorithm, seed
and rounds, and weights of its shape with sane numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bidro.algorithms.contract import Algorithm
from bidro.deploy.network_protocol import NetworkProtocol
from bidro.deploy.protocol import as_text
from bidro.deploy.rules import RefusedError
from bidro.deploy.score_messages import Weights
from bidro.engines.plain import described
from bidro.engines.wire import unpack
from bidro.errors import BidroError

T = TypeVar("T")

# What a request says besides what all do, by question: a round of training, and the bounds of what came out.
NETWORK_QUESTIONS = {
    "train": frozenset({"table", "network", "seed", "folds", "algorithm", "ambiguity"}),
    "evaluate": frozenset({"table", "network"}),
}
# Numbers may be beyond their limits by rounding.
_ROUNDING = 1e-9
_MOST_STEPS = 10**6


class CheckedTraining(NamedTuple):
    message: Any
    algorithm: Algorithm | None = None
    described: str = ""


def checked_training(protocol: NetworkProtocol, header: Mapping[str, Any], data: bytes) -> CheckedTraining:
    """What is asked, by an agreement on a network. Raises RefusedError for anything else."""
    if header["network"] != protocol.digest:
        raise RefusedError(
            f"the factory '{protocol.network.factory}' makes another network here than at the server; "
            "install the same version of it at both."
        )
    if header["question"] == "evaluate":
        weights = _unpacked(data, Weights)
        _require_weights(protocol, weights.x)
        return CheckedTraining(weights)
    most, seed = protocol.network.rounds, protocol.agreed.options.seed
    if header["round"] > most:
        raise RefusedError(f"it was asked for round {header['round']}, and {most} were agreed on.")
    if (header["seed"], header["folds"]) != (seed, 0) or isinstance(header["seed"], bool):
        raise RefusedError(f"batches are drawn from the agreed seed, {seed}, over all training rows.")
    if header["ambiguity"] != described(protocol.ambiguity):
        raise RefusedError("it was asked for another penalty than was agreed on.")
    text = as_text(header["algorithm"])
    algorithm = protocol.algorithms[0].get(text)
    if algorithm is None:
        raise RefusedError("it was asked for a round of something that was not agreed on.")
    message = _unpacked(data, algorithm.broadcast_type)
    for name, value in message._asdict().items():
        if name == "x":
            _require_weights(protocol, value)
        else:
            _require_beside(name, value)
    return CheckedTraining(message, algorithm, text)


def _unpacked(data: bytes, kind: type[T]) -> T:
    """What is wrong with a message is of the message alone, and may be said."""
    try:
        return unpack(data, kind)
    except BidroError as error:
        raise RefusedError(f"it does not follow the request: {error}") from error


def _require_weights(protocol: NetworkProtocol, x: Any) -> None:
    """Of the network; that all are finite has been seen."""
    if x.dtype != np.float64 or x.shape != (protocol.dimension,):
        raise RefusedError(
            f"it was asked about weights of shape {x.shape}, and the agreed network has "
            f"{protocol.dimension:,} in one row."
        )
    largest = protocol.agreed.limits.largest_coefficient
    if np.abs(x).max() > largest * (1 + _ROUNDING):
        raise RefusedError(
            "it was asked about a network with larger weights than the agreed largest_coefficient = "
            f"{largest:g} allows."
        )


def _require_beside(name: str, value: Any) -> None:
    """Of what some algorithms send along: the clients' weights, and how far a stage of DRFA is."""
    fits = value.dtype == np.float64 and value.ndim == 1 if name == "alpha" else value.dtype == np.int64
    most = {"alpha": 1 + _ROUNDING, "step": _MOST_STEPS, "in_b": 1}[name]
    if not fits or (name != "alpha" and value.shape != ()) or np.any(value < 0) or np.any(value > most):
        raise RefusedError("a message holds a number of another shape or size than agreed on.")
