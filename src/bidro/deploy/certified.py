"""A model from elsewhere, certified across sites: what the server asks and makes of the answers.

Every site runs the model on its own rows kept out, and tells bounds alone. If a client is lost and the policy
is to go on without it, the certificate is of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import bidro
from bidro.deploy.agreed import Agreed
from bidro.deploy.job import Job
from bidro.deploy.score_messages import Score, Scores, Weights
from bidro.deploy.scored_rows import checked_model
from bidro.engines.coordinator import Coordinator, LostClientsError
from bidro.errors import BidroError
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import ClientBound, HeldOut, client_bound, worst_mixture
from bidro.report.page import page_html
from bidro.scoring.run import file_bytes
from bidro.sets import Simplex
from bidro.trees import Frozen
from bidro.workflow.scored_page import bounds_content

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
    lost: dict[str, str] = {}
    for head in coordinator.record.heads:
        lost |= head.get("lost", {})
    coordinator.wait_for([name for name in job.clients if name not in lost])
    assert job.certify is not None
    message = Score(np.frombuffer(job.certify, np.uint8))
    about = {"version": bidro.__version__, "agreed": job.agreed.digest}
    while True:
        names = tuple(sorted(name for name in job.clients if name not in lost))
        try:
            told, rows = asked_scores(job.agreed, coordinator, "score", dict.fromkeys(names, about), message)
        except LostClientsError as error:
            lost |= error.reasons
            coordinator.say(f"going on without {', '.join(error.reasons)}")
            continue
        return stated_files(job.agreed, certificate_of(job.agreed, told, rows, tuple(lost)), created)


def stated_files(agreed: Agreed, found: Certificate, created: str) -> dict[str, str | bytes]:
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


def asked_scores(
    agreed: Agreed,
    coordinator: Coordinator,
    question: str,
    settings: Mapping[str, Mapping[str, Any]],
    message: Score | Weights,
) -> tuple[dict[str, Scores], dict[str, int]]:
    """(what every site tells of a model, over how many rows or units); `settings` are what its request says,
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
        by_units = agreed.schema.unit is not None
        for part, largest in ((reply.loss, most), (reply.mistakes, 1.0)):
            exact = part is reply.mistakes and not by_units
            least = client_bound(
                "it", np.zeros(rows), level, largest, "clopper-pearson" if exact else "betting"
            )
            for bound in np.asarray(part).tolist():
                if not least.bound - _SAME * largest <= bound <= largest * (1 + _SAME):
                    raise BidroError(
                        f"it tells a bound of {bound:.6g}, where {rows} draws can say {least.bound:.6g} to "
                        f"{largest:.6g}."
                    )

    coordinator.say("scoring the model on rows kept out")
    like = Scores.like(alone, classes is not None)
    told = coordinator.ask(question, 1, settings, dict.fromkeys(settings, message), like, check=check)
    return told, counts


def certificate_of(
    agreed: Agreed,
    told: Mapping[str, Scores],
    rows: Mapping[str, int],
    lost: tuple[str, ...] = (),
    origin: str = "This model was not trained here.",
    no_interval: str = "it needs the model itself and the rows that it was trained on.",
) -> Certificate:
    """From every site's bounds, and the numbers of rows, or units, behind them; `origin` says where the model
    is from, and `no_interval` why it has no Wasserstein interval."""
    scores = agreed.scores
    assert scores is not None
    by_units, confidence = agreed.schema.unit is not None, agreed.options.confidence

    def stated(part: str, largest: float, clipped: bool) -> HeldOut | None:
        if not len(getattr(next(iter(told.values())), part)):
            return None
        bounds = {n: ClientBound(float(getattr(one, part)[0]), 0.0, rows[n]) for n, one in told.items()}
        wrong = part == "mistakes"
        kind = "clopper-pearson" if wrong and not by_units else "betting"
        mixtures = Simplex(len(bounds))
        found = worst_mixture(bounds, confidence, largest, mixtures, kind, clipped, wrong, by_units)  # type: ignore[arg-type]
        return replace(found, means={})

    most = scores.most(agreed.schema.classes)
    of_loss = stated("loss", most, scores.largest is not None)
    held, clipped = (None, of_loss) if scores.largest is not None else (of_loss, None)
    absent = {
        "interval": no_interval,
        "shift": "bounds alone do not show how the loss changes as rows move.",
        "held_out": "the agreed range of the loss is a level at which losses are clipped.",
        "clipped": "the range of the loss is known, and no level was agreed on to clip it lower.",
    }
    if scores.loss == "mistakes":
        absent["held_out"] = absent["clipped"] = "the loss is the mistakes themselves."
    made = {"held_out": held, "clipped": clipped}
    words = f"any mixture of {', '.join(told)}"
    if lost:
        words += f" (not of {', '.join(map(repr, lost))}: lost)"
    counted = f"Losses count as at most {most:g}, as agreed. " if scores.largest is not None else ""
    return Certificate(
        confidence,
        tuple(told),
        (),
        (),
        f"{words}, as reported by the sites",
        None,
        held,
        clipped,
        stated("mistakes", 1.0, False),
        None,
        Frozen({name: why for name, why in absent.items() if made.get(name) is None}),
        f"{origin} {counted}Every site ran it on rows that it keeps out, and told "
        "bounds alone, each rounded up.",
    )
