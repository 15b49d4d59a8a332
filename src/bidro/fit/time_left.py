"""How long a stage of a fit will still take, by how far it has come; nothing is promised by it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# Before so many seconds, and so small a share of the way, nothing is said.
_SOON, _LEAST = 2.0, 0.02
_MINUTE = 60.0


@dataclass(eq=False)
class TimeLeft:
    """Of one stage after the other: seconds that it will still take if the rest of its way goes as the way so
    far, None where that is not known yet.

    wanted: the gap that solving ends with; its way is from the logarithm of the first gap to that of this.
    """

    wanted: float
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _first: tuple[str, float] | None = field(init=False)  # of which stage, and what it began with

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A stage begins."""
        self._began, self._first = self.clock(), None

    def solving(self, gap: float) -> float | None:
        """A round ended with this relative gap."""
        if not 0 < gap < math.inf or not 0 < self.wanted < 1:
            return None
        first = self._first_of("solving", gap)
        whole = math.log(first / self.wanted)
        return self.at(math.log(first / gap) / whole if whole > 0 else 1.0)

    def choosing(self, going_on: int) -> float | None:
        """A round ended with so many solves that go on."""
        if going_on > self._first_of("choosing", going_on):
            self.begin()  # with other solves
        first = self._first_of("choosing", going_on)
        return self.at(1 - going_on / first if first > 0 else 1.0)

    def at(self, share: float) -> float | None:
        """This share of the stage's way has been gone."""
        elapsed = self.clock() - self._began
        if elapsed < _SOON or share < _LEAST:
            return None
        return elapsed * (1 - min(share, 1.0)) / share

    def _first_of(self, stage: str, now: float) -> float:
        """What the stage began with: what is now, where it begins."""
        if self._first is None or self._first[0] != stage:
            self._began, self._first = self.clock(), (stage, float(now))
        return self._first[1]


def left_in_words(seconds: float | None) -> str:
    """To be put behind what goes on: nothing where it is not known, or as good as over."""
    if seconds is None or seconds < 1:
        return ""
    if seconds < _MINUTE:
        return f", about {math.ceil(seconds)} s left"
    return f", about {math.ceil(seconds / _MINUTE)} min left"
