"""What a private fit states: bounds from the noisy sums of rows kept out, the noise in them included."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bidro.arrays import Floats
from bidro.fitting.fitted import ClientLoss
from bidro.fitting.questions import NoisyLosses
from bidro.guarantees.certificate import Certificate
from bidro.guarantees.held_out import ClientBound, client_level
from bidro.guarantees.privacy_promise import Privacy
from bidro.guarantees.private_bounds import mean_bound
from bidro.guarantees.statements import Assessed, from_bounds, without_holdout
from bidro.privacy.mechanisms import Noisy
from bidro.privacy.terms import Budget, Plan
from bidro.problem import Problem
from bidro.training import Trained
from bidro.trees import Frozen

_NO_INTERVAL = (
    "it needs distances between clients' rows and risks over balls around them, which are not told under a "
    "privacy budget."
)
_ONE_LEVEL = "under a privacy budget losses are told as counted at most at one level: see the clipped bound."


class Judged(NamedTuple):
    """What n clients tell of rows kept out: sums of polynomials of their losses in parts of a level."""

    sums: tuple[Noisy, ...]
    mistakes: tuple[Noisy, ...]  # () for a number
    expected: Floats  # (n,) about how many rows, known from elsewhere

    @classmethod
    def of(cls, plan: Plan, told: NoisyLosses, budgets: Sequence[Budget | None], expected: Floats) -> Judged:
        values, wrong = np.asarray(told.values), np.asarray(told.mistakes)
        sums = tuple(Noisy(v, plan.losses_scale(b)) for v, b in zip(values, budgets, strict=True))
        mistakes: tuple[Noisy, ...] = ()
        if plan.classes:
            mistakes = tuple(Noisy(v, plan.mistakes_scale(b)) for v, b in zip(wrong, budgets, strict=True))
        return cls(sums, mistakes, expected)

    @property
    def rows(self) -> Floats:
        """(n,) rows kept out, or units, with noise."""
        return np.array([one.sums.sum() for one in self.sums])

    def losses(self, names: Sequence[str], largest: float) -> dict[str, ClientLoss]:
        """Mean losses by client, and how far off they may be, noise included."""
        found = {}
        for name, one in zip(names, self.sums, strict=True):
            mean, count = mean_of(one), _count(one)
            places = np.arange(len(one.values)) / (len(one.values) - 1)
            of_noise = float(np.sum((one.scale.sigma * (places - mean)) ** 2)) / count**2
            # No spread of values between 0 and 1 is larger.
            error = float(np.sqrt(mean * (1 - mean) / count + of_noise)) * largest
            found[name] = ClientLoss(mean * largest, error, count, mean * largest)
        return found

    def bounds(self, names: Sequence[str], beta: float, largest: float) -> dict[str, dict[str, ClientBound]]:
        """By client and statement, each of which fails with probability at most `beta`."""
        found: dict[str, dict[str, ClientBound]] = {name: {} for name in names}
        parts = [("clipped", self.sums, largest)]
        parts += [("mistakes", self.mistakes, 1.0)] if self.mistakes else []
        for part, each, most in parts:
            for name, one, rows in zip(names, each, self.expected, strict=True):
                bound = mean_bound(one, beta, float(rows)) * most
                found[name][part] = ClientBound(bound, mean_of(one) * most, _count(one))
        return found


def _count(one: Noisy) -> int:
    return max(1, round(float(one.sums.sum())))


def mean_of(one: Noisy) -> float:
    """The mean that noisy sums tell, in parts of the level."""
    places = np.arange(len(one.values)) / (len(one.values) - 1)
    return float(np.clip(places @ one.sums / max(float(one.sums.sum()), 1.0), 0.0, 1.0))


def without_rows(stated: Problem, trained: Trained, mean_loss: float, privacy: Privacy) -> Certificate:
    """What can be stated without rows kept out: nothing of the loss but about what it is in training."""
    means = np.full(stated.n, mean_loss)
    bare = without_holdout(stated, trained.x, 0.5, means=means)
    absent = Frozen({**bare.absent, "interval": _NO_INTERVAL})
    weights = tuple(trained.alpha.tolist())
    return dataclasses.replace(bare, weights=weights, privacy=privacy, absent=absent)


def with_judged(
    bare: Certificate, of: Assessed, judged: Judged | None, level: float, shift: float | None, units: bool
) -> Certificate:
    """At one confidence, with what the rows kept out say, where there are some."""
    if judged is None:
        return dataclasses.replace(bare, confidence=level)
    beta = client_level(level, len(bare.names), of.mixtures)
    bounds = judged.bounds(bare.names, beta, of.seen)
    found = from_bounds(bare, of, bounds, level, shift, "private", units)
    return dataclasses.replace(found, absent=Frozen({**found.absent, "held_out": _ONE_LEVEL}))
