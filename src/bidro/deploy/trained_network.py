"""A neural network trained across sites: what the server asks and makes of the answers.

Rounds are those of one process: the same algorithm, over sites that answer one by one, as bytes. Then every
site runs the network on its own rows kept out, and tells bounds alone, as of a model from elsewhere. If a
client is lost and the policy is to go on without it, all of it begins again with the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bidro.algorithms.contract import Algorithm
from bidro.arrays import Floats
from bidro.deploy.certified import asked_scores, certificate_of, stated_files
from bidro.deploy.job import Job
from bidro.deploy.network_protocol import NetworkProtocol
from bidro.deploy.score_messages import Weights
from bidro.deploy.site_network import SiteClients, SiteNetwork
from bidro.engines.coordinator import Coordinator, LostClientsError
from bidro.engines.local import run_over
from bidro.engines.remote import Remote
from bidro.engines.rounds import Deal
from bidro.errors import BidroError
from bidro.networks.folder import LoadedNetwork, network_files
from bidro.problem import Problem

# Weights after local steps may be so many times as large as those that any round begins with.
_FAR = 2.0


def federated_network(job: Job, coordinator: Coordinator, created: str) -> dict[str, str | bytes]:
    """The files of the network's folder but for the audit. Raises BidroError where the run must stop."""
    protocol = NetworkProtocol(job.agreed)
    protocol.dimension  # noqa: B018 - a network that cannot be made is said before any site is asked
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    while True:
        names = tuple(sorted(name for name in job.clients if name not in lost))
        try:
            return _trained(job, protocol, coordinator, names, tuple(lost), created)
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")


def _trained(
    job: Job,
    protocol: NetworkProtocol,
    coordinator: Coordinator,
    names: tuple[str, ...],
    lost: tuple[str, ...],
    created: str,
) -> dict[str, str | bytes]:
    agreed, network = job.agreed, protocol.network
    sites = SiteNetwork(agreed, coordinator, names, job.max_weight)
    coordinator.say("preparing")
    prepared = sites.prepare()
    clients = sites.in_units(protocol.standard, prepared)
    x = _weights(protocol, coordinator, clients)
    files: dict[str, str | bytes] = {**_files(protocol, x)}
    if not np.asarray(prepared.holdout).any():
        return files
    settings = {name: {**own, "network": protocol.digest} for name, own in clients.settings.items()}
    told, rows = asked_scores(agreed, coordinator, "evaluate", settings, Weights(x))
    words = (
        f"This is the network of '{network.factory}', trained across the sites by {network.rounds} rounds of "
        f"{network.algorithm}."
    )
    why = "it needs a largest slope of the loss, and of a network none is known."
    return {**files, **stated_files(agreed, certificate_of(agreed, told, rows, lost, words, why), created)}


def _weights(protocol: NetworkProtocol, coordinator: Coordinator, clients: SiteClients) -> Floats:
    """(d,) after all rounds."""
    agreed, network, algorithm = protocol.agreed, protocol.network, protocol.algorithm

    def about(_: Any) -> dict[str, str]:
        return {"network": protocol.digest}

    def said(t: int) -> None:
        coordinator.say(f"{network.algorithm}: round {t} of {network.rounds}")

    def check(
        name: str,
        problem: Problem,
        deal: Deal | None,
        algorithm: Algorithm,
        message: Any,
        reply: Any,
        rows: int,
    ) -> None:
        """As of any reply, and that a network has not gone further from 0 in its steps than is sane."""
        clients.consistency(name, problem, deal, algorithm, message, reply, rows)
        told, most = reply._asdict(), agreed.limits.largest_coefficient
        for part in ("x", "x_between"):
            if part in told and (found := float(np.max(np.abs(told[part])))) > _FAR * most:
                raise BidroError(
                    f"it tells weights of up to {found:.3g}, and largest_coefficient = {most:g} was agreed "
                    "on; are the step sizes too large?"
                )

    remote = Remote(coordinator, clients.settings, True, check, about, "train")
    problem = protocol.problem(clients.federation)
    state = run_over(remote, algorithm, problem, network.rounds, agreed.options.seed, said)
    x = np.asarray(algorithm.snapshot(state).x, float)
    if not np.all(np.isfinite(x)):
        raise BidroError("The weights stopped being finite: the step sizes are too large.")
    return x


def _files(protocol: NetworkProtocol, x: Floats) -> dict[str, bytes]:
    network, schema = protocol.network, protocol.agreed.schema
    about = LoadedNetwork(
        {},
        network.factory,
        network.input_shape,
        schema.classes,
        protocol.standard,
        network.arguments,
        schema.features,
    )
    return network_files(protocol.loss, x, about, schema.target)
