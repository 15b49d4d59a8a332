"""The protocol of an agreement that names a neural network: what a server asks, and what a site answers.

Rows are in the agreed units, a number as target in its spreads too, and classes by their numbers from 0: what
step sizes suit does not depend on the units of a table. Nothing is imported by its name before the loss is
asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax

from bidro.algorithms.contract import Algorithm
from bidro.arrays import Floats
from bidro.client import Penalty
from bidro.deploy.agreed import Agreed
from bidro.deploy.agreed_network import AgreedNetwork
from bidro.deploy.protocol import HEADER_BYTES, Protocol, as_text
from bidro.engines.plain import described
from bidro.federation import Federation
from bidro.guarantees.segments import Wanted
from bidro.losses import Loss
from bidro.networks.models import network_digest, outputs_of
from bidro.problem import Problem
from bidro.sets import Box
from bidro.transport import Transport

# Of the clients' weights, which some algorithms send along.
_MOST_CLIENTS = 4096


@dataclass(frozen=True, eq=False)
class NetworkProtocol(Protocol):
    @property
    def network(self) -> AgreedNetwork:
        found = self.agreed.neural_network
        assert found is not None
        return found

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.agreed.schema.classes

    @cached_property
    def made(self) -> tuple[Any, Loss]:
        """(what the factory makes, the same with its loss): imports and calls it."""
        return self.network.made(self.classes, self.agreed.options.seed)

    @cached_property
    def loss(self) -> Loss:
        return self.made[1]

    @cached_property
    def digest(self) -> str:
        """Of the network that the factory makes here."""
        return network_digest(self.loss)

    @cached_property
    def wanted(self) -> Wanted:
        found = super().wanted
        return replace(found, most=(1,) * len(found.most))

    @property
    def moments_dimension(self) -> int:
        return len(self.columns)

    @cached_property
    def transport(self) -> Transport:
        m = len(self.columns)
        return Transport.features_only(m) if self.classes is None else Transport.classification(m)

    @cached_property
    def ambiguity(self) -> Penalty | None:
        return self.network.ambiguity

    @cached_property
    def algorithm(self) -> Algorithm:
        return self.network.trained_by

    @cached_property
    def algorithms(self) -> dict[int, dict[str, Algorithm]]:
        return {0: {as_text(described(self.algorithm)): self.algorithm}}

    @cached_property
    def most_bytes(self) -> int:
        return HEADER_BYTES + 8 * (self.dimension + _MOST_CLIENTS)

    def problem(self, federation: Federation) -> Problem:
        """For any mixture, with the agreed penalty if there is one."""
        models = Box.cube(self.agreed.limits.largest_coefficient, self.dimension)
        return Problem(federation, self.loss, models, self.transport, self.ambiguity)

    def rows(self, features: Floats, target: Floats) -> Floats:
        found = super().rows(features, target)
        if self.classes is None:
            found[:, -1] /= self.standard.target_spread
        elif len(self.classes) == 2:
            found[:, -1] = (found[:, -1] + 1) / 2
        return found

    def predicted(self, x: Floats, features: Floats) -> Floats:
        """(N,) predictions in the target's own unit, or (N, classes) probabilities, of the network with
        weights x (d,), for rows (N, k) of features in their own units."""
        rows = self.standard.rows(features, np.zeros(len(features)))[:, :-1]
        found = outputs_of(*self.made, x, rows, self.network.input_shape)
        if self.classes is None:
            return self.standard.middle + self.standard.target_spread * found[:, 0]
        with np.errstate(invalid="ignore"):
            return np.asarray(softmax(found, axis=1))


def protocol_of(agreed: Agreed) -> Protocol:
    """What is asked by an agreement."""
    return Protocol(agreed) if agreed.neural_network is None else NetworkProtocol(agreed)
