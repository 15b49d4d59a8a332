"""Calls over a network that may break for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from bidro.errors import BidroError

T = TypeVar("T")

_FIRST, _LONGEST = 0.5, 15.0  # seconds between two attempts: twice as long each time


class BrokenError(BidroError):
    """The other side cannot be reached now; it may be later."""


class LostJobError(BidroError):
    """A job has ended without a result, by what happened around it; the run can go on in another."""


class Persistent:
    """Makes a call that fails by the network again, ever more seldom, for up to `patience` seconds.

    Only once a call has succeeded: before that, an address or a key is wrong more often than a network is
    broken.
    """

    def __init__(self, patience: float, say: Callable[[str], None]) -> None:
        self._patience = patience
        self._say = say
        self._reached = False

    def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns. Raises BrokenError when the patience has ended, and what else it raises."""
        began, pause = time.monotonic(), _FIRST
        while True:
            try:
                found = call()
            except BrokenError as error:
                if not self._reached or time.monotonic() + pause - began > self._patience:
                    raise
                self._say(f"{error}; trying again in {pause:g} s")
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            else:
                self._reached = True
                return found
