"""The strongest attack on a private run: who knows all rows but one, and every message, tells whether that
one is there.

Releases are sums of whole numbers with discrete Gaussian noise of known variance, so that the best test is
the ratio of two likelihoods: with the row in question and without it. What it attains is known, too: releases
that cost rho in all separate the two by sqrt(2 rho) standard deviations, and the area under the curve is
at most Phi(sqrt(rho)) (for the continuous Gaussian, of which the discrete one is within 1e-9 here).
"""

import math

import numpy as np
from safetensors.numpy import load

from bidro.engines.wire import header_of, unpack
from bidro.fitting.private_side import Answering, PrivateRows
from bidro.fitting.questions import AtModel, Judge

_ASKED = {"gradients": AtModel, "losses": Judge}


def score(transcript, plan, budget, others, canary, kept_out=False):
    """The logarithm of the ratio, from (request, reply) of one site. `others` (N, m) are the rows z of the
    part that the canary (m,) would be in."""
    total = 0.0
    none = others[:0]
    for request, reply in transcript:
        question = header_of(request)["question"]
        if kept_out != (question == "losses"):
            continue
        values = load(reply)["values"].astype(object)
        sums = []
        for rows in (others, np.vstack([others, canary])):
            here = PrivateRows(none, rows) if kept_out else PrivateRows(rows, none)
            exact = Answering(here, plan, None)
            asked = unpack(request, _ASKED[question]) if question in _ASKED else None
            told = getattr(exact, question)(*([] if asked is None else [asked]))
            sums.append(told.values.astype(object))
        without, with_it = sums
        for value, a, b, variance in zip(
            values, without, with_it, _scale(plan, budget, request, question).variance, strict=True
        ):
            total += float((int(value) - int(a)) ** 2 - (int(value) - int(b)) ** 2) / (2 * float(variance))
    return total


def _scale(plan, budget, request, question):
    if question == "moments":
        return plan.moments_scale(budget)
    if question == "losses":
        return plan.losses_scale(budget)
    asked = unpack(request, AtModel)
    return plan.gradients_scale(budget, float(asked.clip), float(asked.level))


def area(absent, present):
    """Under the curve, and its standard error where both are as hard to tell apart as they are."""
    absent, present = np.asarray(absent), np.asarray(present)
    found = np.mean((present[:, None] > absent) + 0.5 * (present[:, None] == absent))
    return float(found), math.sqrt((len(absent) + len(present) + 1) / (12 * len(absent) * len(present)))


def most(rho):
    """The area that releases of so much rho in all can be told apart by."""
    return 0.5 * (1 + math.erf(math.sqrt(float(rho)) / math.sqrt(2)))
