"""The strongest attack on a private run: who knows all rows but one, and every message, tells whether that
one is there, by how much likelier all that was sent is with it (`privacy.canary`)."""

import numpy as np
from safetensors.numpy import load

from bidro.federated.engines.wire import header_of, unpack
from bidro.fit.private_side import PrivateClient, PrivateRows
from bidro.fit.questions import GradientsQuery, NoisyHoldoutQuery
from tests.privacy.canary import log_likelihood_ratio


def transcript_score(transcript, plan, budget, others, canary, held_out=False):
    """From (request, reply) of one site. `others` (N, m) are the rows z of the part of the table that the
    canary (m,) would be in."""
    total = 0.0
    for request, reply in transcript:
        question = header_of(request)["question"]
        if held_out == (question == "losses"):
            with_it, without = (
                _exactly(request, question, plan, rows, held_out)
                for rows in (np.vstack([others, canary]), others)
            )
            variance = _scale(plan, budget, request, question).variance
            total += log_likelihood_ratio(load(reply)["values"], with_it, without, variance)
    return total


def _exactly(request, question, plan, rows, held_out):
    """What would be told of these rows without noise."""
    here = PrivateRows(rows[:0], rows) if held_out else PrivateRows(rows, rows[:0])
    exact = PrivateClient(here, plan, None)
    if question == "moments":
        return exact.moments().values
    if question == "gradients":
        return exact.gradients(unpack(request, GradientsQuery)).values
    return exact.losses(unpack(request, NoisyHoldoutQuery)).values


def _scale(plan, budget, request, question):
    if question == "moments":
        return plan.moments_scale(budget)
    if question == "losses":
        return plan.losses_scale(budget)
    query = unpack(request, GradientsQuery)
    return plan.gradients_scale(budget, float(query.clip), float(query.level))
