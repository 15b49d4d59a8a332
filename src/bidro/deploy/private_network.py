"""The sites of a private run: three questions over the network, and what their replies are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import numpy as np

from bidro.deploy.told_private import ToldPrivately
from bidro.engines.coordinator import Coordinator, Nothing
from bidro.fitting.questions import AtModel, Judge, NoisyGradients, NoisyLosses, NoisyMoments
from bidro.privacy.terms import Plan

T = TypeVar("T")

# Under a budget nobody is asked what this would take.
NO_INFLUENCE = {
    "words": "How the model would change without a site is not worked out of sums with noise.",
    "sites": [],
}


@dataclass(frozen=True, eq=False)
class PrivateSites:
    """Sites that answer one by one, as bytes; `about` is what every request says."""

    names: tuple[str, ...]
    coordinator: Coordinator
    about: Mapping[str, Any]
    plan: Plan
    told: dict[str, ToldPrivately] = field(default_factory=dict)

    def moments(self) -> NoisyMoments:
        def check(name: str, reply: NoisyMoments, rows: int) -> None:
            self._of(name).moments(reply, rows)

        return self._asked("moments", 1, Nothing(), NoisyMoments.like(self.plan.columns), check)

    def gradients(self, t: int, message: AtModel) -> NoisyGradients:
        def check(name: str, reply: NoisyGradients, rows: int) -> None:
            self._of(name).gradients(message, reply, rows)

        return self._asked("gradients", t, message, NoisyGradients.like(self.plan.columns), check)

    def losses(self, message: Judge) -> NoisyLosses:
        def check(name: str, reply: NoisyLosses, rows: int) -> None:
            self._of(name).losses(reply, rows)

        like = NoisyLosses.like(self.plan.degree, self.plan.classes)
        return self._asked("losses", 1, message, like, check)

    def _of(self, name: str) -> ToldPrivately:
        return self.told.setdefault(name, ToldPrivately(self.plan))

    def _asked(self, question: str, t: int, message: Any, like: T, check: Callable[..., None]) -> T:
        settings, messages = dict.fromkeys(self.names, self.about), dict.fromkeys(self.names, message)
        found = self.coordinator.ask(question, t, settings, messages, like, check=check, counts_rows=False)
        return jax.tree.map(lambda *parts: np.stack(parts), *found.values())
