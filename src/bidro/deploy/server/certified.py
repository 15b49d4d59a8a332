"""Models from elsewhere, and networks trained here, certified across sites: what the server asks.

Every site runs the model on its own held-out rows, and tells bounds alone. If a client is lost and the policy
is to go on without it, the certificate is of the others.

Rounds of a neural network are those of one process: the same algorithm, over sites that answer one by one, as
bytes. Then every site tells bounds of it, as of a model from elsewhere. If a client is lost, all of it begins
again with the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import bidro
from bidro.certify.certificate import Certificate
from bidro.certify.held_out import ClientBound, client_bound
from bidro.certify.statements import (
    NO_INTERVAL,
    NOT_TRAINED_HERE,
    LossLimits,
    of_model_from_elsewhere,
    statements_of,
)
from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.sets import Simplex
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.agreement.job import Job
from bidro.deploy.messages.plan import NetworkQueryPlan
from bidro.deploy.messages.queries import Score, Scores, Weights
from bidro.deploy.server.fit import SiteClients, SiteNetwork, with_clients_left
from bidro.deploy.site.answers import checked_model
from bidro.federated.engines.coordinator import Coordinator
from bidro.federated.engines.remote import Remote, RoundReply
from bidro.federated.engines.rounds import run_over
from bidro.model.onnx.run import file_bytes
from bidro.neural.folder import LoadedNetwork, network_files
from bidro.report.page import page_html
from bidro.workflow.page_content import bounds_content

NOT_AGREED = "The schema does not say how models are scored; agree on [scores] in schema.toml, with a loss."
# What rounding can do to the least bound that a site can tell.
_SAME = 1e-9


def job_to_certify(job: Job, path: Path) -> Job:
    """The job, to certify the model in a file instead of training one. Raises BidroError for a file that no
    site would accept, before any is asked."""
    scores = job.agreed.scores
    if scores is None:
        raise BidroError(NOT_AGREED)
    data = file_bytes(path)
    try:
        checked_model(data, job.agreed.schema, job.clients[0], scores.predicted.of_probabilities, False)
    except BidroError as error:
        raise BidroError(f"'{path}': {error}") from error
    return replace(job, certify=data)


def federated_scores(job: Job, coordinator: Coordinator, created: str) -> dict[str, str | bytes]:
    """The files of a certified model but for the audit. Raises BidroError where the run must stop."""
    assert job.certify is not None
    message = Score(np.frombuffer(job.certify, np.uint8))
    about = {"version": bidro.__version__, "agreed": job.agreed.digest}

    def scored(names: tuple[str, ...], lost: Mapping[str, str]) -> dict[str, str | bytes]:
        settings = dict.fromkeys(names, about)
        told, rows = requested_scores(job.agreed, coordinator, "score", settings, message)
        return stated_files(job.agreed, certificate_of(job.agreed, told, rows, tuple(lost)), created)

    return with_clients_left(job, coordinator, scored)


def stated_files(agreed: Agreement, found: Certificate, created: str) -> dict[str, str | bytes]:
    """The certificate and its page, as files."""
    assert agreed.scores is not None
    loss = agreed.scores.predicted
    named = loss.in_words, loss.unit(agreed.schema.measure)
    content = bounds_content(found, agreed.schema, named, created)
    return {
        "certificate.json": found.to_json(),
        "report.html": page_html(content),
        "report.json": json.dumps(content, indent=1, allow_nan=False) + "\n",
    }


def requested_scores(
    agreed: Agreement,
    coordinator: Coordinator,
    question: str,
    settings: Mapping[str, Mapping[str, Any]],
    message: Score | Weights,
) -> tuple[dict[str, Scores], dict[str, int]]:
    """(what every site tells of a model, over how many rows or people); `settings` are what its request says,
    by site."""
    scores = agreed.scores
    if scores is None:
        raise BidroError(NOT_AGREED)
    classes, alone = agreed.schema.classes, scores.loss == "mistakes"
    most, level = scores.most(classes), 1 - agreed.options.confidence
    counts: dict[str, int] = {}

    def check(name: str, reply: Scores, rows: int) -> None:
        """What no rows can say is a contradiction."""
        counts[name] = rows
        by_people = agreed.schema.person is not None
        for part, largest in ((reply.loss, most), (reply.mistakes, 1.0)):
            exact = part is reply.mistakes and not by_people
            least = client_bound(
                "it", np.zeros(rows), level, largest, "clopper-pearson" if exact else "betting"
            )
            for bound in np.asarray(part).tolist():
                if not least.bound - _SAME * largest <= bound <= largest * (1 + _SAME):
                    raise BidroError(
                        f"it tells a bound of {bound:.6g}, where {rows} draws can say {least.bound:.6g} to "
                        f"{largest:.6g}."
                    )

    coordinator.say("scoring the model on held-out rows")
    like = Scores.like(alone, classes is not None)
    told = coordinator.ask(question, 1, settings, dict.fromkeys(settings, message), like, check=check)
    return told, counts


def certificate_of(
    agreed: Agreement,
    told: Mapping[str, Scores],
    rows: Mapping[str, int],
    lost: tuple[str, ...] = (),
    origin: str = NOT_TRAINED_HERE,
    no_interval: str = NO_INTERVAL,
) -> Certificate:
    """From every site's bounds, and the numbers of rows, or people, behind them; `origin` says where the
    model is from, and `no_interval` why it has no Wasserstein interval."""
    scores = agreed.scores
    assert scores is not None
    by_people, confidence = agreed.schema.person is not None, agreed.options.confidence
    most, clips = scores.most(agreed.schema.classes), scores.largest is not None
    of_loss = "clipped" if clips else "held_out"
    bounds = {
        name: {
            part: ClientBound(float(values[0]), None, rows[name])
            for part, values in ((of_loss, one.loss), ("mistakes", one.mistakes))
            if len(values)
        }
        for name, one in told.items()
    }
    limits = LossLimits(most, None) if clips else LossLimits(None, most)
    found = statements_of(bounds, limits, confidence, Simplex(len(told)), people=by_people)
    absent = {
        "interval": no_interval,
        "shift": "bounds alone do not show how the loss changes as rows move.",
        "held_out": "the agreed range of the loss is a level at which losses are clipped.",
        "clipped": "the range of the loss is known, and no level was agreed on to clip it lower.",
    }
    words = f"any mixture of {', '.join(told)}"
    if lost:
        words += f" (not of {', '.join(map(repr, lost))}: lost)"
    counted = f"Losses count as at most {most:g}, as agreed. " if clips else ""
    return of_model_from_elsewhere(
        confidence,
        [*told],
        f"{words}, as reported by the sites",
        found,
        absent,
        f"{origin} {counted}Every site ran it on rows that it holds out, and told bounds alone, each rounded "
        "up.",
    )


# Weights after local steps may be so many times as large as those that any round begins with.
_FAR = 2.0


def federated_network(job: Job, coordinator: Coordinator, created: str) -> dict[str, str | bytes]:
    """The files of the network's folder but for the audit. Raises BidroError where the run must stop."""
    protocol = NetworkQueryPlan(job.agreed)
    protocol.dimension  # noqa: B018 - a network that cannot be made is said before any site is asked
    return with_clients_left(
        job,
        coordinator,
        lambda names, lost: _trained(job, protocol, coordinator, names, tuple(lost), created),
    )


def _trained(
    job: Job,
    protocol: NetworkQueryPlan,
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
    told, rows = requested_scores(agreed, coordinator, "evaluate", settings, Weights(x))
    words = (
        f"This is the network of '{network.factory}', trained across the sites by {network.rounds} rounds of "
        f"{network.algorithm}."
    )
    why = "it needs a largest slope of the loss, and of a network none is known."
    return {**files, **stated_files(agreed, certificate_of(agreed, told, rows, lost, words, why), created)}


def _weights(protocol: NetworkQueryPlan, coordinator: Coordinator, clients: SiteClients) -> Floats:
    """(d,) after all rounds."""
    agreed, network, algorithm = protocol.agreed, protocol.network, protocol.algorithm

    def about(_: Any) -> dict[str, str]:
        return {"network": protocol.digest}

    def said(t: int) -> None:
        coordinator.say(f"{network.algorithm}: round {t} of {network.rounds}")

    def check(one: RoundReply) -> None:
        """As of any reply, and that a network has not gone further from 0 in its steps than is sane."""
        clients.consistency(one)
        told, most = one.reply._asdict(), agreed.limits.largest_coefficient
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


def _files(protocol: NetworkQueryPlan, x: Floats) -> dict[str, bytes]:
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
